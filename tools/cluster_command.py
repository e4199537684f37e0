"""`tidewal cluster`: several brokers of one cluster on this machine, each a process of its own.

Owns: their node ids, ports, directories and the store they share, their lines on stdout, and that they live
and end together. Does not own: a broker (tools.broker_command runs in each process).
Invariant: when this process ends, for whatever reason it can act on, no broker of it is left; one broker that
ends by itself ends the others, and the exit code says so.
"""

import contextlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.broker_command import print_ready
from tools.console import Failure, check_address, complain, read_pairs

STOP_WITHIN_S = 30.0
READY_WITHIN_S = 120.0
LOOK_EVERY_S = 0.2
_FEW = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
"""Kafka's defaults, which fewer brokers cannot meet."""


@dataclass(slots=True, kw_only=True)
class ClusterOptions:
    brokers: int = 3
    listen: str = "127.0.0.1:9092"
    data: Path = Path(".tidewal-cluster")
    store: str | None = None
    settings: list[str] = field(default_factory=list)


def run_cluster(options: ClusterOptions) -> None:
    """Until a signal."""
    commands = [_command(options, number) for number in range(options.brokers)]
    stopping = [False]

    def stop(number: int, frame: object) -> None:
        stopping[0] = True

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    with _processes(commands) as processes:
        deadline_s = time.monotonic() + READY_WITHIN_S
        for line in _ready_lines(processes, stopping, deadline_s):
            print_ready(line)
        if not stopping[0]:
            print_ready("ready cluster")
        while not stopping[0]:
            _fail_if_one_ended(processes)
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes[0].wait(LOOK_EVERY_S)


def _command(options: ClusterOptions, number: int) -> list[str]:
    host, _, first_port = check_address(options.listen, "--listen", port_min=0).rpartition(":")
    port = int(first_port) + number if int(first_port) else 0
    if port > 65535:
        raise Failure(f"--listen {options.listen}: no room for {options.brokers} ports")
    node_id = number + 1
    data = options.data.absolute()
    store = options.store or f"file://{data}/store"
    command = [sys.executable, "-m", "tools.cli", "broker", "--node-id", str(node_id)]
    command += ["--listen", f"{host}:{port}", "--data", str(data / str(node_id)), "--store", store]
    for name, value in _settings(options).items():
        command += ["--set", f"{name}={value}"]
    return command


def _settings(options: ClusterOptions) -> dict[str, str]:
    few = {name: str(options.brokers) for name, usual in _FEW.items() if options.brokers < usual}
    return few | read_pairs(options.settings, "--set")


@contextlib.contextmanager
def _processes(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            # A signal from the terminal comes to this process alone, which passes it on.
            started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
            processes.append(started)
        yield processes
    finally:
        _stop(processes)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """All at once; who has others left hands over to them."""
    deadline_s = time.monotonic() + STOP_WITHIN_S
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            complain(f"tidewal: broker process {process.pid} did not stop and is killed")
            process.kill()
            process.wait()


def _ready_lines(
    processes: Sequence[subprocess.Popen[bytes]], stopping: list[bool], deadline_s: float
) -> Iterator[str]:
    """Each broker's line as it comes."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map() and not stopping[0]:
            if time.monotonic() > deadline_s:
                raise Failure(f"no ready cluster within {READY_WITHIN_S:.0f} s")
            for key, _ in selector.select(LOOK_EVERY_S):
                pipe = key.fileobj
                assert not isinstance(pipe, int)
                line = _line_of(pipe)  # type: ignore[arg-type]
                selector.unregister(pipe)
                if line:
                    yield line
            _fail_if_one_ended(processes)


def _line_of(pipe: IO[bytes]) -> str:
    """A broker writes one line and nothing else; at the end of the pipe there is none."""
    return pipe.readline().decode(errors="replace").rstrip("\n")


def _fail_if_one_ended(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for number, process in enumerate(processes, 1):
        code = process.poll()
        if code is not None:
            raise Failure(f"broker {number} ended with exit code {code}; the others are stopped")
