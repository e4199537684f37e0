"""`tidewal cluster`: several brokers of one cluster on this machine, each a process of its own.

Owns: their node ids, ports, directories and the store they share, one such command per directory, and the
exit code. Does not own: the processes (tools.supervisor) or a broker (tools.broker_command, in each process).
Invariant: a mistake is named in one line before any broker is started; the exit code is 0 only when every
broker ended cleanly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from remote.store.location import BadStoreUrl, parse_store_url
from storage.files import DiskFiles
from tools.broker_command import BrokerOptions, check_end, print_ready, read_config
from tools.console import Failure, check_address, read_pairs
from tools.supervisor import Supervisor, check_clean

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The last one comes when the terminal is closed; the brokers, in sessions of their own, do not get it."""
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
    restart: bool = False
    settings: list[str] = field(default_factory=list)
    exit_with_stdin: bool = False


def run_cluster(options: ClusterOptions) -> None:
    """Run the brokers until a signal or the end of standard input, if that was asked for, or until none is
    left; Failure when not all of them ended cleanly."""
    brokers = [broker_options(options, number) for number in range(options.brokers)]
    # a mistake is named once, not by each broker
    read_config(brokers[0])
    _check_store(brokers[0])
    end = check_end(options.exit_with_stdin)
    supervisor = Supervisor(brokers, restarts=options.restart, print_line=print_ready, end=end)
    stop_on_signals(supervisor.request_stop)
    with _locked(options.data):
        _check_ports(brokers)
        with supervisor:
            if supervisor.wait_ready():
                print_ready("ready cluster")
                supervisor.watch()
    # The handlers are gone before the interpreter is, and one more signal would end a clean stop otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    check_clean(supervisor.unclean)


def stop_on_signals(request_stop: Callable[[], None]) -> None:
    """Let the signals that end a command end this one in order; under nohup a closed terminal does not."""

    def stop(number: int, frame: object) -> None:
        request_stop()

    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def broker_options(options: ClusterOptions, number: int) -> BrokerOptions:
    """Return what the broker of that number, from 0, is started with."""
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
        exit_with_stdin=options.exit_with_stdin,
    )


def _check_store(broker: BrokerOptions) -> None:
    try:
        parse_store_url(str(broker.store), os.environ)
    except BadStoreUrl as error:
        raise Failure(f"--store {error}") from None


def _check_ports(brokers: Iterable[BrokerOptions]) -> None:
    """Name a port that is taken, before any broker is started that would have to be stopped."""
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
    """Hold the directory: one cluster at a time runs on it."""
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
