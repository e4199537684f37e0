"""`make bench-groups`: coordinators of Apache Kafka and of this broker in turn, in one run on one machine:
committed transactions, commits of offsets, rebalances of 50 members by both protocols.

Owns the rows, their order and their goals. Does not own the clients (group_clients) nor the brokers.
Invariant: every system does the same rows with the same clients, in turn; the first rounds warm and are not
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows, table
from tools.versus.caller import Caller
from tools.versus.group_clients import MEMBERS, PARTITIONS, GroupLoad, run
from tools.versus.rows import Measure, Row

MINUTES = 6.0
ROUNDS, WARMING = 3, 1
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.assignment.interval.ms": "0"}
"""Without waits that are there to do less: what is measured is what a rebalance costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    row: Row
    load: GroupLoad
    partitions: int = 1


def _per_s(unit: str, at_least: float) -> tuple[Measure, ...]:
    return (
        Measure(name="per_s", unit=unit, at_least=at_least),
        Measure(name="p50_ms", unit="ms p50"),
        Measure(name="p99_ms", unit="ms p99"),
        Measure(name="cpu_us", unit="µs CPU"),
    )


def _transactions(clients: int, title: str) -> GroupRow:
    measures = _per_s("transactions/s", 1.5)
    return GroupRow(
        row=Row(name=f"transactions-{clients}", title=title, measures=measures, load=None, rounds=ROUNDS),
        load=GroupLoad(kind="transactions", clients=clients),
        partitions=clients,
    )


def _rebalance(kind: str, protocol: str) -> GroupRow:
    measures = (
        Measure(name="one_ms", unit="ms when one comes back", at_most=1.0),
        Measure(name="joined_ms", unit="ms when all come at once", at_most=1.0),
        Measure(name="one_cpu_ms", unit="ms CPU"),
    )
    title = f"rebalance of {MEMBERS} members, {PARTITIONS} partitions, {protocol}"
    return GroupRow(
        row=Row(name=f"rebalance-{kind}", title=title, measures=measures, load=None, rounds=ROUNDS),
        load=GroupLoad(kind=kind, clients=MEMBERS),
        partitions=PARTITIONS,
    )


def _commits(name: str, title: str, *, groups: int) -> GroupRow:
    return GroupRow(
        row=Row(name=name, title=title, measures=_per_s("commits/s", 3), load=None, rounds=ROUNDS),
        load=GroupLoad(kind="commits", clients=MEMBERS, groups=groups),
        partitions=MEMBERS,
    )


ROWS: tuple[GroupRow, ...] = (
    _rebalance("classic", "classic"),
    _rebalance("consumer", "assigned by the broker"),
    _transactions(1, "committed transactions of one record, one producer"),
    _transactions(20, "the same, 20 producers"),
    _commits("commits-1", f"OffsetCommit, {MEMBERS} clients of one group × 1 in flight", groups=1),
    _commits(
        f"commits-{MEMBERS}", f"OffsetCommit, {MEMBERS} clients of a group each × 1 in flight", groups=MEMBERS
    ),
)


@dataclass(slots=True)
class _System:
    name: str
    broker: brokers.Broker
    rounds: dict[str, list[rows.Figures]] = field(default_factory=dict)


def measure(
    compared: Sequence[brokers.Broker], chosen: Sequence[GroupRow], minutes: float
) -> dict[str, table.Rounds]:
    """Measure all rows in rounds, the brokers in turn in each row; those that warm are dropped."""
    deadline_s = time.perf_counter() + minutes * 60
    _, core = brokers.two_cores()
    with contextlib.ExitStack() as stack:
        systems = [_System(broker.name, stack.enter_context(broker).start()) for broker in compared]
        for number in range(WARMING + ROUNDS):
            if number > WARMING and time.perf_counter() > deadline_s:
                complain(f"{number - WARMING} rounds, then the time was over")
                break
            label = f"round {number - WARMING + 1}" if number >= WARMING else "warming"
            for row in chosen:
                for system in systems:
                    told = f"{label}: {row.row.name}: {system.name}"
                    try:
                        found = _round(row, system.broker, f"{row.row.name}-{number}", core)
                    except Failure as failure:  # the other rows and rounds count all the same
                        complain(f"{told}: {failure}")
                        continue
                    client = f"client {found['client_use']:.2f} of a core"
                    complain(f"{told}: {rows.told(row.row, found)}, {client}")
                    if number >= WARMING:
                        system.rounds.setdefault(row.row.name, []).append(found)
        return {system.name: system.rounds for system in systems}


def _round(row: GroupRow, broker: brokers.Broker, topic: str, core: int) -> rows.Figures:
    with Caller(broker.port) as caller:
        caller.create(topic, row.partitions)
        found = run(row.load, broker, topic, core)
        caller.delete(topic)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    wanted = {name for names in options.rows for name in names.split(",")}
    chosen = [row for row in ROWS if not wanted or row.row.name in wanted]
    known = {row.row.name for row in ROWS}
    if wanted - known:
        complain(f"bench: no row {', '.join(sorted(wanted - known))}; there are {', '.join(sorted(known))}")
        return 1
    started_s = time.perf_counter()
    core, _ = brokers.two_cores()
    with tempfile.TemporaryDirectory(prefix="tidewal-bench-") as folder:
        compared: list[brokers.Broker] = []
        if not options.kafka_only:
            compared.append(brokers.Tidewal(Path(folder) / "ours", {core}, settings=SETTINGS))
        if not options.own and brokers.Kafka.is_there():
            compared.append(
                brokers.Kafka(Path(folder) / "theirs", {core}, name="Kafka 4.3.1", settings=SETTINGS)
            )
        elif not options.own:
            complain("Apache Kafka is not here (make kafka): this broker alone, without ratios")
        found = measure(compared, chosen, options.minutes)
    table.report([row.row for row in chosen], found, options)
    emit(f"{time.perf_counter() - started_s:.0f} s; each figure is the median of its rounds")
    return 0 if all(len(by_row) == len(chosen) for by_row in found.values()) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-groups", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--rows", action="append", default=[], metavar="NAME[,…]", help="only these rows")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="bound of the whole run (default: 6)")
    parser.add_argument("--kafka-only", action="store_true", help="Apache Kafka alone")
    table.add_report_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
