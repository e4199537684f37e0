"""`tidewal cluster`: several brokers of one cluster on this machine, each a process of its own.

Owns: their node ids, ports, directories and the store they share, their lines on stdout, and that they live
and end together. Does not own: a broker (tools.broker_command runs in each process).
Invariant: when this process ends, for whatever reason it can act on, no broker of it is left; one broker that
ends by itself ends the others, and the exit code says so.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from remote.store.location import BadStoreUrl, parse_store_url
from storage.files import DiskFiles
from tools.broker_command import BrokerOptions, print_ready, read_config
from tools.console import Failure, check_address, complain, read_pairs

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_WITHIN_S = 30.0
READY_WITHIN_S = 120.0
LOOK_EVERY_S = 0.2
_FEW = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
"""Kafka's defaults, which fewer brokers cannot meet."""
_OWN = {"node.id", "broker.id", "listeners", "advertised.listeners", "log.dir", "log.dirs"}


@dataclass(slots=True, kw_only=True)
class ClusterOptions:
    brokers: int = 3
    listen: str = "127.0.0.1:9092"
    data: Path = Path(".tidewal-cluster")
    store: str | None = None
    settings: list[str] = field(default_factory=list)


def run_cluster(options: ClusterOptions) -> None:
    """Until a signal."""
    brokers = [_broker_options(options, number) for number in range(options.brokers)]
    # a mistake is named once, not by each broker
    read_config(brokers[0])
    _check_store(brokers[0])
    stopping = [False]

    def stop(number: int, frame: object) -> None:
        stopping[0] = True

    for signal_number in STOP_SIGNALS:
        signal.signal(signal_number, stop)
    with _locked(options.data):
        _check_ports(brokers)
        with _processes(map(_command, brokers)) as processes:
            _watch(processes, stopping)
    # The handlers are gone before the interpreter is, and one more signal would end a clean stop otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _watch(processes: Sequence[subprocess.Popen[bytes]], stopping: list[bool]) -> None:
    for line in _ready_lines(processes, stopping, time.monotonic() + READY_WITHIN_S):
        print_ready(line)
    if not stopping[0]:
        print_ready("ready cluster")
    while not stopping[0]:
        _fail_if_one_ended(processes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[0].wait(LOOK_EVERY_S)


def _broker_options(options: ClusterOptions, number: int) -> BrokerOptions:
    host, _, first_port = check_address(options.listen, "--listen", port_min=0).rpartition(":")
    port = int(first_port) + number if int(first_port) else 0
    if port > 65535:
        raise Failure(f"--listen {options.listen}: no room for {options.brokers} ports", exit_code=2)
    node_id = number + 1
    data = options.data.absolute()
    few = {name: str(options.brokers) for name, usual in _FEW.items() if options.brokers < usual}
    settings = few | read_pairs(options.settings, "--set")
    for name in sorted(settings.keys() & _OWN):
        why = "each broker of a cluster has its own; use --listen and --data"
        raise Failure(f"--set {name}: {why}", exit_code=2)
    return BrokerOptions(
        node_id=node_id,
        listen=f"{host}:{port}",
        data=data / str(node_id),
        store=options.store or f"file://{data}/store",
        settings=[f"{name}={value}" for name, value in settings.items()],
    )


def _command(broker: BrokerOptions) -> list[str]:
    command = [sys.executable, "-m", "tools.cli", "broker"]
    named = {"node-id": broker.node_id, "listen": broker.listen, "data": broker.data, "store": broker.store}
    for name, value in named.items():
        command += [f"--{name}", str(value)]
    for setting in broker.settings:
        command += ["--set", setting]
    return command


def _check_store(broker: BrokerOptions) -> None:
    try:
        parse_store_url(str(broker.store), os.environ)
    except BadStoreUrl as error:
        raise Failure(f"--store {error}") from None


def _check_ports(brokers: Iterable[BrokerOptions]) -> None:
    """One line for a port that is taken, before any broker is started that would have to be stopped."""
    for broker in brokers:
        host, _, port = str(broker.listen).rpartition(":")
        try:
            for family, kind, protocol, _name, address in socket.getaddrinfo(
                host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                with socket.socket(family, kind, protocol) as probe:
                    # as a listener does it: what an earlier broker left open is no hindrance
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.bind(address)
        except OSError as error:
            raise Failure(f"cannot listen on {broker.listen}: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """One cluster at a time on one directory."""
    files = DiskFiles()
    try:
        files.makedirs(str(data))
        lock = files.lock(str(data / ".lock"))
    except BlockingIOError:
        raise Failure(f"--data {data}: in use by another `tidewal cluster`") from None
    except OSError as error:
        raise Failure(f"--data {data}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.close()


@contextlib.contextmanager
def _processes(commands: Iterable[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
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
                else:
                    _await_end_of(processes, pipe)
            _fail_if_one_ended(processes)


def _line_of(pipe: IO[bytes]) -> str:
    """A broker writes one line and nothing else; at the end of the pipe there is none."""
    return pipe.readline().decode(errors="replace").rstrip("\n")


def _await_end_of(processes: Sequence[subprocess.Popen[bytes]], pipe: object) -> None:
    """Of the one that has closed its stdout without a word."""
    for process in processes:
        if process.stdout is pipe:
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _fail_if_one_ended(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for number, process in enumerate(processes, 1):
        code = process.poll()
        if code is not None:
            raise Failure(f"broker {number} ended with exit code {code}; the others are stopped")
