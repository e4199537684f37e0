"""One run of the compose file: its containers, volumes and what the brokers say of themselves.

Owns what is done to them. Does not own the engine (tests.compose.engine) nor what clients do.
Invariant: nothing of a project is left after `close`, whatever became of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.compose.engine import Engine
from tools.console import Failure
from tools.ports import free_port
from tools.versus.caller import until

BROKERS = ("broker-1", "broker-2", "broker-3")
INSIDE = ",".join(f"{broker}:9092" for broker in BROKERS)
HEALTHY_S_MAX = 90.0


class Project:
    def __init__(self, engine: Engine, folder: Path, name: str) -> None:
        self.engine = engine
        self.name = name
        self._folder = folder
        self._ports = [free_port() for _ in BROKERS]
        self._environ = {f"PORT_{number}": str(port) for number, port in enumerate(self._ports, 1)}
        self._environ["TIDEWAL_IMAGE"] = self.image = f"{name}:latest"

    @property
    def outside(self) -> str:
        return ",".join(f"localhost:{port}" for port in self._ports)

    def compose(self, *arguments: str) -> str:
        file = self._folder / "docker-compose.yml"
        options = ("--file", str(file), "--project-directory", str(self._folder), "--project-name", self.name)
        return self.engine.run(*self.engine.compose, *options, *arguments, environ=self._environ)

    def docker(self, *arguments: str, stdin: str = "") -> str:
        return self.engine.run(*self.engine.docker, *arguments, stdin=stdin)

    def container(self, service: str) -> str:
        """Return the id of a service's container; empty where it has none."""
        wanted = {"project": self.name, "service": service}
        filters = [f"label=com.docker.compose.{name}={value}" for name, value in wanted.items()]
        options = [each for wanted_label in filters for each in ("--filter", wanted_label)]
        return self.docker("ps", "--all", "--quiet", *options).strip()

    def up(self) -> None:
        """Do as `docker compose up` and wait until the brokers say that they are healthy."""
        self.compose("up", "--detach")
        for broker in BROKERS:
            self.wait_healthy(broker)

    def wait_healthy(self, service: str) -> None:
        def is_healthy() -> bool:
            container = self.container(service)
            if not container:
                return False
            state = json.loads(self.docker("inspect", "--format", "{{json .State}}", container))
            if state["Status"] == "exited":
                raise Failure(f"{service} ended:\n{self.docker('logs', '--tail', '20', container)}")
            return bool(state["Health"]["Status"] == "healthy")

        until(is_healthy, f"healthy {service}", HEALTHY_S_MAX)

    def tidewal(self, *arguments: str, broker: str = "broker-1") -> str:
        """Return what a command says that is run within a broker's container."""
        return self.docker("exec", self.container(broker), "tidewal", *arguments)

    def python(self, program: str, *arguments: str) -> str:
        """Return what a program prints that is run within the network, with what the image has."""
        options = ("--rm", "--interactive", "--network", f"{self.name}_default", "--entrypoint", "python")
        return self.docker("run", *options, self.image, "-", *arguments, stdin=program)

    def offsets(self, topic: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.tidewal("offsets", topic, "-b", INSIDE, "--json"))
        return rows

    def wait_in_sync(self, *topics: str) -> None:
        """Wait until all replicas of these topics are in sync."""
        until(lambda: self._are_in_sync(topics), f"replicas in sync of {', '.join(topics)}", HEALTHY_S_MAX)

    def _are_in_sync(self, topics: tuple[str, ...]) -> bool:
        told = json.loads(self.tidewal("topics", "describe", *topics, "-b", INSIDE, "--json"))
        rows = [row for topic in told for row in topic["partitions"]]
        return all(sorted(row["isr"]) == sorted(row["replicas"]) for row in rows)

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "60")

    def close(self) -> None:
        self.compose("kill")
        self.compose("down", "--volumes", "--remove-orphans")
        self.docker("rmi", "--force", self.image)
