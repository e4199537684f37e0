"""`make bench-idle`: what a cluster costs in which nothing happens, beside Apache Kafka's.

Owns the window of time that is watched, what is read at both ends of it, the rows, and what requests to a
store cost at list price. Does not own the nodes (nodes, brokers) nor the prices (tools.verify.core.price).
Invariant: the CPU is that of the brokers in the window alone, without the reading of their metrics; nobody
asks a broker anything meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.ports import free_port
from tools.scrape import Scrape, look
from tools.verify.core.price import DOLLARS_PER_1000_GETS, DOLLARS_PER_1000_LISTS
from tools.versus import brokers, nodes, rows
from tools.versus.caller import Caller
from tools.versus.nodes import Cluster
from tools.versus.rows import Figures, Measure, Row
from tools.versus.table import add_report_options, report

NODES = 3
PARTITIONS = 500
SECONDS = 300.0
SETTLE_S = 45.0
"""What follows a creation, the first look at retention after half a minute among it, is no rest."""
HOURS_PER_MONTH = 730
TOPIC = "idle"
REQUESTS = ("tidewal_object_store_requests_total", "tidewal_wal_store_requests_total")
"""The WAL tier has connections and counters of its own."""
READS, FREE = frozenset({"get", "get_range"}), frozenset({"delete", "abort_upload"})
"""Operations by price; every other one costs as much as a listing."""
PLAIN, COLD, WAL = "plain", "cold", "wal"
KINDS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {},
    COLD: {"remote.storage.enable": "true"},
    WAL: {"remote.wal.storage.enable": "true"},
}


def _row(name: str, what: str) -> Row:
    measures = (
        Measure(name="cpu_percent", unit="% of a core, each broker", at_most=1),
        Measure(name="busiest_percent", unit="% the busiest", at_most=1),
        Measure(name="switches_per_s", unit="switches/s", at_most=1),
        Measure(name="written_per_hour", unit="puts and lists an hour"),
        Measure(name="read_per_hour", unit="gets an hour"),
        Measure(name="dollars", unit="$ a month"),
    )
    return Row(name=name, title=what, measures=measures, load=None)


ROWS: tuple[Row, ...] = (
    _row(PLAIN, "partitions at rest"),
    _row(COLD, "the same, of a tiered topic"),
    _row(WAL, "the same, of a WAL topic"),
)


# --- pure ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What was read at one end of the window: CPU and voluntary switches, by node."""

    at_s: float
    cpu_s: Sequence[float]
    switches: Sequence[int]


def costs(asked: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return what so many requests in that time, by operation, are an hour and a month."""
    hours = seconds / 3600
    read = sum(many for operation, many in asked.items() if operation in READS)
    written = sum(many for operation, many in asked.items() if operation not in READS | FREE)
    dollars = read / 1000 * DOLLARS_PER_1000_GETS + written / 1000 * DOLLARS_PER_1000_LISTS
    return {
        "written_per_hour": written / hours,
        "read_per_hour": read / hours,
        "dollars": dollars / hours * HOURS_PER_MONTH,
    }


def work(before: Moment, after: Moment) -> dict[str, float]:
    """Return what the nodes did between two moments."""
    seconds = after.at_s - before.at_s
    percents = [100 * (end - start) / seconds for start, end in zip(before.cpu_s, after.cpu_s, strict=True)]
    switches = sum(after.switches) - sum(before.switches)
    return {
        "cpu_percent": sum(percents) / len(percents),
        "busiest_percent": max(percents),
        "switches_per_s": switches / seconds / len(percents),
    }


def operations(seen: Scrape) -> dict[str, float]:
    """Return how often each operation of the store was asked for, over all its connections."""
    found: dict[str, float] = {}
    for labels, value in chain.from_iterable(map(seen.samples, REQUESTS)):
        if operation := labels.get("operation"):
            found[operation] = found.get(operation, 0.0) + value
    return found


# --- the window ---


@dataclass(slots=True)
class System:
    name: str
    make: Callable[[Path], tuple[Cluster, Sequence[int]]]
    """Nodes, and the admin ports of those that have one."""
    kinds: Sequence[str]
    rounds: dict[str, list[Figures]] = field(default_factory=dict)


def systems(*, with_kafka: bool) -> list[System]:
    found = [System("Tidewal", _tidewal, tuple(KINDS))]
    if with_kafka:
        found.append(System("Kafka 4.3.1", _kafka, (PLAIN,)))
    return found


def _tidewal(folder: Path) -> tuple[Cluster, Sequence[int]]:
    ports = [free_port() for _ in range(NODES)]
    store = f"file://{folder}/store"
    return nodes.of_tidewal(folder, NODES, store=store, admin_ports=ports), ports


def _kafka(folder: Path) -> tuple[Cluster, Sequence[int]]:
    return nodes.of_kafka(folder, NODES), ()


def measure(
    compared: Sequence[System], chosen: Sequence[str], partitions: int, seconds: float, folder: Path
) -> None:
    """Watch each kind of topic in each system, in clusters of their own."""
    for kind in chosen:
        for at, system in enumerate(compared):
            if kind in system.kinds:
                found = _watched(system, kind, partitions, seconds, folder / f"{kind}-{at}")
                system.rounds.setdefault(kind, []).append(found)
                told = ", ".join(f"{name} {rows.number(value)}" for name, value in found.items())
                complain(f"{system.name}: {kind}: {told}")


def _watched(system: System, kind: str, partitions: int, seconds: float, folder: Path) -> Figures:
    made, admin_ports = system.make(folder)
    with made as cluster:
        cluster.rise()
        cluster.wait_member_of_all()
        with Caller(cluster.up[0].port) as caller:
            caller.create(TOPIC, configs=dict(KINDS[kind]), replicas=cluster.assignment(partitions))
        cluster.wait_whole()
        _pass(SETTLE_S)
        asked_before = look(admin_ports)
        before = _moment(cluster)
        _pass(seconds)
        after = _moment(cluster)
        found = work(before, after)
        if admin_ports:
            asked = operations(look(admin_ports) - asked_before)
            complain(", ".join(f"{operation} {many:,.0f}" for operation, many in asked.items() if many))
            found |= costs(asked, after.at_s - before.at_s)
        return found


def _pass(seconds: float) -> None:
    threading.Event().wait(seconds)


def _moment(cluster: Cluster) -> Moment:
    return Moment(
        at_s=time.perf_counter(),
        cpu_s=[brokers.cpu_s(node.pid) for node in cluster.up],
        switches=[voluntary_switches(node.pid) for node in cluster.up],
    )


def voluntary_switches(pid: int) -> int:
    """Return how often the threads that a process has now have gone to sleep."""
    found = 0
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in path.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                found += int(line.split()[1])
    return found


# --- all of it ---


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    if not options.own and not brokers.Kafka.is_there():
        complain("bench-idle: Apache Kafka is not here (make kafka); --own measures this broker alone")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    compared, chosen = systems(with_kafka=not options.own), options.rows.split(",")
    started_s, failed = time.perf_counter(), False
    try:
        with tempfile.TemporaryDirectory(prefix="tidewal-idle-") as folder:
            measure(compared, chosen, options.partitions, options.seconds, Path(folder))
    except (Failure, OSError) as failure:  # what was measured before is shown all the same
        complain(f"bench-idle: {failure}")
        failed = True
    except KeyboardInterrupt:
        complain("bench-idle: stopped")
        return 130
    shown = [row for row in ROWS if row.name in chosen]
    report(shown, {system.name: system.rounds for system in compared}, options)
    emit(
        f"{options.partitions} partitions, {NODES} replicas, {options.seconds:.0f} s each on "
        f"{len(os.sched_getaffinity(0))} cores; {time.perf_counter() - started_s:.0f} s in all"
    )
    return 1 if failed else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-idle", description="Three brokers at rest, beside Apache Kafka."
    )
    parser.add_argument(
        "--partitions", type=int, default=PARTITIONS, metavar="N", help=f"(default: {PARTITIONS})"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"to watch (default: {SECONDS:.0f})"
    )
    parser.add_argument(
        "--rows", default=",".join(KINDS), metavar="NAME[,…]", help=f"of {', '.join(KINDS)} (default: all)"
    )
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
