"""Brokers under measurement: a process of its own each, pinned, timed to ready, its CPU and memory read.

Owns how Tidewal (of any source tree) and Apache Kafka are started with their defaults, and what the kernel
says of their processes. Does not own any load.
Invariant: a broker that was started is gone, with its data, when its `with` block ends; no wait is unbounded.
"""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.console import Failure
from tools.ports import free_port
from tools.versus.caller import READY_S_MAX, answers, until

ROOT = Path(__file__).resolve().parent.parent.parent
KAFKA_HOME = ROOT / ".peers" / "kafka"
STOP_S_MAX = 60.0
# As bin/kafka-run-class.sh and bin/kafka-server-start.sh give them.
KAFKA_FLAGS = (
    *("-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)
DELETE_DELAY = {"log.segment.delete.delay.ms": "1000"}
"""A minute by default, in both: the dirty pages of a round that is over would burden the next one."""


class Broker:
    """A process that serves Kafka's protocol on `port` once `start` returned."""

    def __init__(
        self,
        name: str,
        folder: Path,
        cores: set[int],
        *,
        node_id: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.settings = {**DELETE_DELAY, **(settings or {})}
        """What is set on top of the defaults. A change counts from the next start on an empty disk."""
        self.folder = folder
        self.data = folder / "data"
        self.cores = cores
        self.node_id = node_id
        self.port = free_port()
        self.ready_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def working_folder(self) -> Path:
        return ROOT

    def prepare(self) -> None:
        """Make what must be there before the process is started, and is not part of its start."""

    def renew(self) -> Path:
        """Let the next start be on an empty data directory; return the one so far, to be deleted once
        unused."""
        old = self.data
        self.data = self.folder / f"{old.name}-again"
        self.prepare()
        return old

    def launch(self) -> float:
        """Start the process; return when that was."""
        command, cores = self.command(), self.cores
        with (self.folder / "output.txt").open("ab") as output:
            started_s = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.working_folder(),
                env=self.environment(),
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        return started_s

    def start(self) -> Self:
        """Start it and wait until it serves; `ready_s` is how long that took."""
        self.prepare()
        started_s = self.launch()
        until(self._serves, f"{self.name} that is ready")
        self.ready_s = time.perf_counter() - started_s
        return self

    def _serves(self) -> bool:
        self.check_running()
        return answers(self.port)

    def check_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise Failure(f"{self.name} ended by itself: {self._last_words()}")

    def stop(self) -> None:
        """Stop it cleanly, by SIGTERM."""
        self.terminate()
        self.wait_stopped()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait_stopped(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name} did not stop within {STOP_S_MAX:.0f} s") from None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _last_words(self) -> str:
        text = (self.folder / "output.txt").read_text(errors="replace")
        return text.strip().rpartition("\n")[2] or "it said nothing"


class Tidewal(Broker):
    """This broker, from `tree`: the one this module belongs to, or a worktree of another commit."""

    def __init__(
        self,
        folder: Path,
        cores: set[int],
        *,
        name: str = "Tidewal",
        node_id: int = 1,
        store: str | None = None,
        tree: Path = ROOT,
        settings: Mapping[str, str] | None = None,
        module: str = "tools.cli",
        environ: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """`module` is what runs `tidewal`; `store` is what makes several of them one cluster; `environ` holds
        the store's keys; `arguments` are further ones of `tidewal broker`."""
        super().__init__(name, folder, cores, node_id=node_id, settings=settings)
        self._store = store
        self._tree = tree
        self._module = module
        self._environ = environ or {}
        self._arguments = arguments

    def command(self) -> list[str]:
        settings = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        member = [] if self._store is None else ["--node-id", str(self.node_id), "--store", self._store]
        return [
            *(sys.executable, "-m", self._module, "broker", "--listen", f"127.0.0.1:{self.port}"),
            *("--data", str(self.data), *member, *settings, *self._arguments),
        ]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._tree), **self._environ}

    def working_folder(self) -> Path:
        return self._tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The KRaft controllers of one cluster: their ports, by node id."""

    cluster_id: str
    ports: Mapping[int, int]

    @staticmethod
    def of(node_ids: Iterable[int]) -> Quorum:
        # The zero keeps the id from starting with a dash, which the storage tool takes for an option.
        identity = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
        return Quorum(cluster_id=identity, ports={node_id: free_port() for node_id in node_ids})


class Kafka(Broker):
    """Apache Kafka: a KRaft node that is broker and controller, alone or one of a quorum; its default
    configuration and its scripts' JVM flags, 1 GB of heap.
    """

    def __init__(
        self,
        folder: Path,
        cores: set[int],
        *,
        name: str = "Kafka",
        node_id: int = 1,
        quorum: Quorum | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, folder, cores, node_id=node_id, settings=settings)
        self._quorum = quorum or Quorum.of([node_id])
        self._properties = folder / "server.properties"

    @staticmethod
    def is_there() -> bool:
        return (KAFKA_HOME / ".stamp").exists() and shutil.which("java") is not None

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties))

    def prepare(self) -> None:
        """Format the data directory, unless that was done."""
        if (self.data / "meta.properties").exists():
            return
        ports = self._quorum.ports
        replicas = min(3, len(ports))
        values = {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{port}" for each, port in ports.items()),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{ports[self.node_id]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(2, replicas)),
            **self.settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._format("-t", self._quorum.cluster_id, "-c", str(self._properties))

    def _format(self, *arguments: str) -> None:
        command = self._java("kafka.tools.StorageTool", "format", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S_MAX, check=False)
        if done.returncode != 0:
            raise Failure(f"Apache Kafka's storage tool failed: {done.stderr.strip() or done.stdout.strip()}")

    def _java(self, main: str, *arguments: str) -> list[str]:
        log_config = f"-Dlog4j2.configurationFile={KAFKA_HOME / 'config' / 'log4j2.xml'}"
        return ["java", *KAFKA_FLAGS, log_config, "-cp", f"{KAFKA_HOME / 'libs'}/*", main, *arguments]


# --- what the kernel says ---


def two_cores() -> tuple[int, int]:
    """Return one core for the broker, one for the client."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failure("a measurement needs two cores: one for the broker, one for the client")
    return cores[0], cores[1]


def cpu_s(pid: int) -> float:
    """Return the user and system time of all threads a process has or had, to the nanosecond.

    Its CPU clock holds the same sum as utime + stime in /proc/PID/stat, which are rounded to 10 ms.
    """
    return time.clock_gettime((~pid << 3) | 2)


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise Failure(f"process {pid} has no resident memory")


def proportional_mb(pid: int) -> float:
    """Return its memory, pages that it shares with other processes counted in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise Failure(f"process {pid} has no memory")


def read_bytes(pid: int) -> int:
    """Return what a process has read so far, from the page cache or from the disk."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise Failure(f"process {pid} says nothing of what it read")


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def raise_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft
