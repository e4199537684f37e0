"""Apache Kafka as a peer: its broker in a process of its own, its Java tools, and waiting for either.

Owns starting, killing and stopping them. Does not own what a test asserts, nor Tidewal's own process.
Invariant: no wait is a fixed sleep; each polls a condition against a deadline and names what it missed.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Self, TypeVar

from confluent_kafka.admin import AdminClient

T = TypeVar("T")

KAFKA_READY_TIMEOUT_S = 60.0
KAFKA_STOP_TIMEOUT_S = 60.0
JAVA_TIMEOUT_S = 60.0
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m")


def until(condition: Callable[[], T], what: str, timeout_s: float = 20.0, pause_s: float = 0.02) -> T:
    """The first truthy value of `condition`; a failed wait names `what` and the last value seen."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}; last seen: {value!r}")
        pause.wait(pause_s)


def has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Kafka answers CreateTopics before every reader of Metadata sees the topic."""
    seen = admin.list_topics(timeout=10).topics.get(topic)
    return seen is not None and [p.leader >= 0 for p in seen.partitions.values()] == [True] * partitions


def unique(prefix: str) -> str:
    """A topic or group name no other test, worker or earlier run on the same broker has used."""
    return f"{prefix}-{secrets.token_hex(5)}"


def stable_port() -> int:
    """A port below the ephemeral range: no client's outgoing connection takes it while its broker is down."""
    for _ in range(200):
        port = 12000 + secrets.randbelow(18000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port between 12000 and 30000")


def accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


class Java:
    """Apache Kafka's own classes, straight from the jars below `home`."""

    def __init__(self, home: Path) -> None:
        self.class_path = f"{next(home.rglob('kafka_2.13-*.jar')).parent}/*"
        self.log_config = next(home.rglob("log4j2.xml"))

    def with_classes(self, folder: Path) -> Java:
        """One that finds the classes in a folder too."""
        found = copy(self)
        found.class_path = f"{self.class_path}:{folder}"
        return found

    def command(self, main: str, *args: str) -> list[str]:
        log_config = f"-Dlog4j2.configurationFile={self.log_config}"
        return ["java", *JVM_FLAGS, log_config, "-cp", self.class_path, main, *args]

    def run(self, main: str, *args: str, stdin: str = "", timeout_s: float = JAVA_TIMEOUT_S) -> str:
        """What it printed; a non-zero exit fails the test with everything it said."""
        done = self.attempt(main, *args, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, f"{main} {args} exited {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def attempt(
        self, main: str, *args: str, stdin: str = "", timeout_s: float = JAVA_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(main, *args),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, main: str, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(main, *args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )


class ApacheKafka:
    """Apache Kafka in KRaft mode: one node, formatted on first start."""

    def __init__(self, folder: Path, java: Java, *, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.log = folder / "stderr.txt"
        self.child: subprocess.Popen[bytes] | None = None
        self.java = java
        self.port = stable_port()
        self.data = folder / "data"
        self.properties = folder / "server.properties"
        self.settings = dict(settings or {})

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        if not self.properties.exists():
            self._format()
        with self.log.open("ab") as stderr:
            self.child = subprocess.Popen(
                self.java.command("kafka.Kafka", str(self.properties)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        until(
            lambda: accepts("127.0.0.1", self.port) or not self.is_running(),
            "Apache Kafka to listen",
            timeout_s=KAFKA_READY_TIMEOUT_S,
        )
        assert self.is_running(), self.log.read_text(errors="replace")[-4000:]
        return self

    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def stop(self) -> None:
        """A clean stop, as SIGTERM asks for."""
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(timeout=KAFKA_STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait(timeout=KAFKA_STOP_TIMEOUT_S)

    def _format(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        controller = stable_port()
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.initial.task.delay.ms": "100",
            **self.settings,
        }
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        cluster_id = self.java.run("kafka.tools.StorageTool", "random-uuid").strip()
        # Eligible leader replicas come with a dynamic min.insync.replicas that no server.properties asks for.
        self.java.run(
            "kafka.tools.StorageTool",
            *("format", "--standalone", "-t", cluster_id, "-c", str(self.properties)),
            *("--feature", "eligible.leader.replicas.version=0"),
        )
