"""`make bench-cluster`: three brokers of ours and three nodes of Apache Kafka, one cluster after the other,
in one run.

Owns the order of the measurement, its rows and its sizes. Does not own the nodes (nodes, brokers), the load,
or what a kill does to clients (failover).
Invariant: both clusters go through the same steps with the same clients on all cores of the machine; a record
that is lost, doubled or out of order makes the exit code 1; what was started or written is gone at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, nodes, rows
from tools.versus.caller import until
from tools.versus.failover import NOTHING_READ, KillOutcome, ReadBack, kill_leader
from tools.versus.load import Load, Measured, run
from tools.versus.nodes import SETTLE_S, Cluster
from tools.versus.rows import Figures, Measure, Row
from tools.versus.table import add_report_options, report

NODES = 3
KILLS = 5
FILL_MB = 512
RECORD_BYTES = 1000
BUSY, DEEP = "busy", "deep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything. `kills` is of each kind of leader."""

    starts: int = 3
    rounds: int = 3
    latency_records: int = 2000
    throughput_records: int = 200_000
    kills: int = KILLS
    fill_bytes: int = FILL_MB * 1_000_000

    @property
    def latency(self) -> Load:
        return Load(
            kind="client-latency",
            record_bytes=RECORD_BYTES,
            records=self.latency_records,
            partitions=NODES,
            acks="all",
        )

    @property
    def throughput(self) -> Load:
        return _idempotent(self.throughput_records)

    @property
    def fill(self) -> Load:
        return _idempotent(self.fill_bytes // RECORD_BYTES)


def _idempotent(count: int) -> Load:
    """librdkafka's default linger, 5 ms, and default batches."""
    return Load(
        kind="client-produce",
        record_bytes=RECORD_BYTES,
        records=count,
        linger_ms=5,
        partitions=NODES,
        acks="all",
        idempotent=True,
    )


def _row(name: str, title: str, *measures: Measure) -> Row:
    return Row(name=name, title=title, measures=measures, load=None)


def _less(name: str, unit: str) -> Measure:
    """Less is better, and not more than Kafka is the target."""
    return Measure(name=name, unit=unit, at_most=1)


SILENCE = (_less("median_s", "s median"), _less("max_s", "s longest"))
ROLES = ("member", "controller")
ROWS: tuple[Row, ...] = (
    _row("start", "from empty directories to a cluster that makes topics", _less("seconds", "s")),
    _row(
        "memory",
        "memory of a node, ready and after the load",
        _less("ready_mb", "MB"),
        _less("loaded_mb", "MB"),
    ),
    _row(
        "latency",
        "C client, 1 KB, one at a time, acks=all",
        _less("p50_us", "µs p50"),
        _less("p99_us", "µs p99"),
    ),
    _row(
        "throughput",
        "C client, 1 KB, idempotent, default batches; CPU of all nodes",
        Measure(name="mb_per_s", unit="MB/s", at_least=1),
        _less("cpu_s_per_gb", "s/GB"),
    ),
    _row(
        "kill-member-stock",
        "kill -9 of a leader, not the controller: C client without acknowledgement",
        *SILENCE,
    ),
    _row("kill-member-raw", "the same: raw client", *SILENCE),
    _row(
        "kill-controller-stock",
        "kill -9 of a leader, the controller: C client without acknowledgement",
        *SILENCE,
    ),
    _row("kill-controller-raw", "the same: raw client", *SILENCE),
    _row(
        "read",
        "read back after the kills",
        Measure(name="checked", unit="records"),
        Measure(name="lost", unit="lost"),
        Measure(name="doubled", unit="twice"),
        Measure(name="disordered", unit="out of order"),
    ),
    _row("replace", "kill -9, empty disk, same node id: in every ISR again", _less("seconds", "s")),
    _row("stop", "SIGTERM to all nodes", _less("seconds", "s")),
    _row("restart", "all started again: every partition led and in sync", _less("seconds", "s")),
)


@dataclass(slots=True)
class System:
    """One kind of cluster, and what was found of it, by row."""

    name: str
    make: Callable[[Path], Cluster]
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    read: ReadBack = NOTHING_READ

    def add(self, row: str, **figures: float) -> None:
        self.rounds.setdefault(row, []).append(figures)
        told = ", ".join(f"{name} {rows.number(value)}" for name, value in figures.items())
        complain(f"{self.name}: {row}: {told}")


def systems(*, with_kafka: bool) -> list[System]:
    found = [System("Tidewal", _tidewal)]
    if with_kafka:
        found.append(System("Kafka 4.3.1", _kafka))
    return found


def _tidewal(folder: Path) -> Cluster:
    return nodes.of_tidewal(folder, NODES, store=f"file://{folder}/store")


def _kafka(folder: Path) -> Cluster:
    return nodes.of_kafka(folder, NODES)


# --- the steps ---


def measure(compared: Sequence[System], sizes: Sizes, folder: Path) -> None:
    """Start each from nothing in turn; the last one of each goes through everything else."""
    for number in range(sizes.starts):
        for at, system in enumerate(compared):
            with system.make(folder / f"{number}-{at}") as cluster:
                _start(system, cluster)
                if number == sizes.starts - 1:
                    _live(system, cluster, sizes)


def _start(system: System, cluster: Cluster) -> None:
    started_s = cluster.rise()
    cluster.wait_member_of_all()
    system.add("start", seconds=time.perf_counter() - started_s)


def _live(system: System, cluster: Cluster, sizes: Sizes) -> None:
    ready_mb = cluster.memory_mb()
    _load(system, cluster, sizes)
    system.add("memory", ready_mb=ready_mb, loaded_mb=cluster.memory_mb())
    for role in ROLES:
        _kill(system, cluster, role, sizes.kills)
    _replace(system, cluster, sizes.fill)
    _stop_and_restart(system, cluster)


def _load(system: System, cluster: Cluster, sizes: Sizes) -> None:
    """Load each; the first round warms and is not counted."""
    for row, load in (("latency", sizes.latency), ("throughput", sizes.throughput)):
        for number in range(1 + sizes.rounds):
            topic = f"{BUSY}-{row}-{number}"
            cluster.create(topic, NODES)
            found = rows.figures(_run(load, cluster, topic))
            cluster.delete(topic)
            if number:
                system.add(row, **found)


def _run(load: Load, cluster: Cluster, topic: str) -> Measured:
    first, *peers = cluster.up
    return run(load, first, topic, None, peers=peers)


def _kill(system: System, cluster: Cluster, role: str, count: int) -> None:
    """Kill leaders; those that are not the controller take turns."""
    found: list[KillOutcome] = []
    for number in range(count):
        controller = cluster.controller()
        others = [node_id for node_id in cluster.nodes if node_id != controller]
        victim = controller if role == "controller" else others[number % len(others)]
        found.append(kill_leader(cluster, victim, f"kill-{role}-{number}"))
        told = f"{found[-1].stock_s:.2f} s, raw client {found[-1].raw_s:.2f} s"
        complain(f"{system.name}: kill -9 of a leader ({role}): {told}")
    if found:
        system.add(f"kill-{role}-stock", **silences([each.stock_s for each in found]))
        system.add(f"kill-{role}-raw", **silences([each.raw_s for each in found]))
        system.read = sum((each.read for each in found), system.read)
        system.rounds["read"] = [dataclasses.asdict(system.read)]


def silences(seconds: Sequence[float]) -> dict[str, float]:
    each = {f"round_{number}_s": one for number, one in enumerate(seconds, 1)}
    return {"median_s": statistics.median(seconds), "max_s": max(seconds), **each}


def _replace(system: System, cluster: Cluster, fill: Load) -> None:
    """Replace the disk of a node that is not the controller. The data is there again when the node's files
    are as long as another's."""
    cluster.create(DEEP, NODES)
    _run(fill, cluster, DEEP)
    cluster.wait_whole()
    controller = cluster.controller()
    victim, other = (node_id for node_id in cluster.nodes if node_id != controller)
    wanted = cluster.stored_bytes(other, DEEP)
    killed_s = cluster.replace(victim)
    until(lambda: cluster.stored_bytes(victim, DEEP) >= wanted, f"{wanted} bytes on the new disk", SETTLE_S)
    cluster.wait_whole()
    system.add("replace", seconds=time.perf_counter() - killed_s, bytes=wanted)


def _stop_and_restart(system: System, cluster: Cluster) -> None:
    system.add("stop", seconds=cluster.stop())
    started_s = cluster.rise()
    cluster.wait_whole()
    system.add("restart", seconds=time.perf_counter() - started_s)


# --- all of it ---


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    if not options.own and not brokers.Kafka.is_there():
        complain("bench-cluster: Apache Kafka is not here (make kafka); --own measures this broker alone")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    compared = systems(with_kafka=not options.own)
    sizes = Sizes(kills=options.kills, fill_bytes=options.fill_mb * 1_000_000)
    started_s, failed = time.perf_counter(), False
    try:
        with tempfile.TemporaryDirectory(prefix="tidewal-cluster-", dir=options.folder) as folder:
            measure(compared, sizes, Path(folder))
    except (Failure, OSError) as failure:  # what was measured before is shown all the same
        complain(f"bench-cluster: {failure}")
        failed = True
    except KeyboardInterrupt:
        complain("bench-cluster: stopped")
        return 130
    report(ROWS, {system.name: system.rounds for system in compared}, options)
    emit(f"{time.perf_counter() - started_s:.0f} s")
    return 1 if failed or not all(system.read.is_good for system in compared) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-cluster", description="Three brokers as one cluster, beside Apache Kafka."
    )
    parser.add_argument(
        "--kills", type=int, default=KILLS, metavar="N", help=f"of each kind of leader (default: {KILLS})"
    )
    parser.add_argument(
        "--fill-mb", type=int, default=FILL_MB, metavar="MB", help=f"on a replaced disk (default: {FILL_MB})"
    )
    parser.add_argument("--folder", type=Path, help="where the data goes; the system's temporary folder")
    add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
