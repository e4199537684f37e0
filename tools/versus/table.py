"""`make bench`: Apache Kafka and this broker in turn, row by row, in one run on one machine.

Owns the order of the measurement, its rounds and its bound in time. Does not own the rows, the load or the
brokers.
Invariant: every system does the same rows with the same load process, in turn; the first round warms and is
not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows
from tools.versus.caller import Caller
from tools.versus.load import run
from tools.versus.rows import Figures, Row

MINUTES = 11.0
STARTS = 3
REST_S = 5.0
Start = Callable[[Path], brokers.Broker]
LOADS = [row for row in rows.ROWS if row.load is not None]
"""All of them warm, whichever rows are asked for: the same row costs a JVM that has seen only that row two or
three times as much CPU, and a row alone must say what it says in the table.
"""


@dataclass(slots=True)
class System:
    name: str
    start: Start
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)


Running = list[tuple[System, brokers.Broker]]


def systems(*, with_kafka: bool, with_unpinned: bool) -> list[System]:
    core, _ = brokers.two_cores()
    both = set(brokers.two_cores())
    found = [System("Tidewal", lambda folder: brokers.Tidewal(folder, {core}))]
    if with_kafka:
        found.append(System("Kafka 4.3.1", lambda folder: brokers.Kafka(folder, {core})))
        if with_unpinned:
            found.append(
                System(
                    "Kafka, not pinned", lambda folder: brokers.Kafka(folder, both, name="Kafka, not pinned")
                )
            )
    return found


def measure(
    compared: Sequence[System], chosen: Sequence[Row], folder: Path, minutes: float, *, fresh: bool = False
) -> None:
    """Measure starts first, one broker at a time; then all rows in rounds, the brokers in turn in each row.

    In turn row by row, because a neighbour which comes or goes between two brokers' turns decides a ratio
    more than they do. A broker that waits for its turn is idle, which costs Kafka one or two percent of a
    core and Tidewal nothing: what that is worth goes against Tidewal.
    """
    deadline_s = time.perf_counter() + minutes * 60
    for row in chosen:
        if row.load is None:
            for number in range(STARTS):
                for at, system in enumerate(compared):
                    found = _start(system, folder / f"start-{number}-{at}")
                    system.rounds.setdefault(row.name, []).append(found)
    loads = [row for row in chosen if row.load is not None]
    for at, family in enumerate(_families(loads) if fresh else [loads] if loads else []):
        _measure_loads(compared, family, LOADS if not fresh else family, folder / f"loads-{at}", deadline_s)


def _families(loads: Sequence[Row]) -> list[list[Row]]:
    """Group each row with those that read what it wrote."""
    return [
        [row, *(reader for reader in loads if reader.reads == row.name)] for row in loads if row.reads is None
    ]


def _measure_loads(
    compared: Sequence[System], loads: Sequence[Row], warming: Sequence[Row], folder: Path, deadline_s: float
) -> None:
    """Measure on brokers that have just started: a round of `warming`, then those that count."""
    with contextlib.ExitStack() as stack:
        running = [
            (system, stack.enter_context(system.start(folder / str(at))).start())
            for at, system in enumerate(compared)
        ]
        for number in range(1 + max(row.rounds for row in loads)):
            if number > 1 and time.perf_counter() > deadline_s:
                complain(f"{number - 1} rounds, then the time was over")
                break
            is_warming = not number and len(running) > 1
            _round(running, warming if is_warming else [row for row in loads if number <= row.rounds], number)


def _round(running: Running, loads: Sequence[Row], number: int) -> None:
    label = f"round {number}" if number else "warming"
    readers = {row.reads for row in loads if row.reads is not None}
    for row in loads:
        for system, broker in running:
            found = _row(row, broker, number, is_read=row.name in readers)
            complain(f"{label}: {row.name}: {system.name}: {rows.told(row, found)}")
            if number:
                system.rounds.setdefault(row.name, []).append(found)


def _row(row: Row, broker: brokers.Broker, number: int, *, is_read: bool) -> dict[str, float]:
    assert row.load is not None
    _, core = brokers.two_cores()
    topic = f"{row.reads or row.name}-{number}"
    with Caller(broker.port) as caller:
        if row.reads is None:
            caller.create(topic)
        found = rows.figures(run(row.load, broker, topic, core))
        if not is_read:
            caller.delete(topic)
    return found


def _start(system: System, folder: Path) -> dict[str, float]:
    """Start on an empty data directory; take the memory some seconds after it was ready, the same for all."""
    with system.start(folder) as broker:
        broker.start()
        threading.Event().wait(REST_S)
        found = {"ready_s": broker.ready_s, "memory_mb": brokers.resident_mb(broker.pid)}
    complain(f"{system.name}: ready in {found['ready_s']:.2f} s, {found['memory_mb']:.0f} MB")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    started_s = time.perf_counter()
    try:
        chosen = rows.select(name for names in options.rows for name in names.split(","))
        with_kafka = not options.own and brokers.Kafka.is_there()
        compared = systems(with_kafka=with_kafka, with_unpinned=not options.pinned_only)
        if not with_kafka and not options.own:
            complain("Apache Kafka is not here (make kafka): this broker alone, without ratios")
    except (Failure, ValueError) as failure:
        complain(f"bench: {failure}")
        return 1
    failed = False
    with tempfile.TemporaryDirectory(prefix="tidewal-bench-") as folder:
        try:
            measure(compared, chosen, Path(folder), options.minutes, fresh=options.fresh)
        except Failure as failure:  # what was measured before is shown all the same
            complain(f"bench: {failure}")
            failed = True
    report(chosen, {system.name: system.rounds for system in compared}, options)
    emit(f"{time.perf_counter() - started_s:.0f} s; each figure is the median of its rounds")
    return 1 if failed else 0


Rounds = Mapping[str, Sequence[Figures]]
"""By row: each round's figures."""


def report(chosen: Sequence[Row], found: Mapping[str, Rounds], options: argparse.Namespace) -> None:
    """Report the medians of each system, ours first: on stdout, and in the files that were asked for."""
    results = {
        name: {row: rows.median(rounds) for row, rounds in by_row.items()} for name, by_row in found.items()
    }
    names = list(results)
    table = rows.markdown(chosen, names, results)
    emit(table)
    if len(names) > 1:
        emit(rows.summary(chosen, results[names[0]], results[names[1]]))
    if options.markdown is not None:
        options.markdown.write_text(table)
    if options.json is not None:
        options.json.write_text(json.dumps({"medians": results, "rounds": found}, indent=2) + "\n")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--rows", action="append", default=[], metavar="NAME[,…]", help="only these rows (and what they read)"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="each row on brokers that have just started, warmed by one round of that row alone",
    )
    parser.add_argument("--pinned-only", action="store_true", help="no second column for Kafka on both cores")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="bound of the whole run (default: 11)")
    add_report_options(parser)
    return parser


def add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--own", action="store_true", help="this broker alone, as when Kafka is not here")
    parser.add_argument("--markdown", type=rows.report_file, metavar="FILE", help="write the table there too")
    parser.add_argument(
        "--json", type=rows.report_file, metavar="FILE", help="write every round's figures there"
    )


if __name__ == "__main__":
    sys.exit(main())
