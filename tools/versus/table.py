"""`make bench`: Apache Kafka and this broker in turn, row by row, in one run on one machine.

Owns the order of the measurement, its rounds and its bound in time. Does not own the rows, the load or the
brokers.
Invariant: every system does the same rounds with the same load process; the first round warms and is not
counted.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows
from tools.versus.caller import Caller
from tools.versus.load import run
from tools.versus.rows import Row

MINUTES = 11.0
STARTS = 3
REST_S = 5.0
Start = Callable[[Path], brokers.Broker]


@dataclass(slots=True)
class System:
    """`share` of the whole time is what its rounds may take."""

    name: str
    start: Start
    share: float
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def medians(self) -> dict[str, dict[str, float]]:
        return {name: rows.median(found) for name, found in self.rounds.items()}


def systems(*, with_kafka: bool, with_unpinned: bool) -> list[System]:
    core, _ = brokers.two_cores()
    both = set(brokers.two_cores())
    found = [System("Tidewal", lambda folder: brokers.Tidewal(folder, {core}), 0.3)]
    if with_kafka:
        found.append(System("Kafka 4.3.1", lambda folder: brokers.Kafka(folder, {core}), 0.4))
        if with_unpinned:
            found.append(
                System(
                    "Kafka, not pinned",
                    lambda folder: brokers.Kafka(folder, both, name="Kafka, not pinned"),
                    0.3,
                )
            )
    return found


def measure(system: System, chosen: Sequence[Row], folder: Path, minutes: float) -> None:
    """A warming round and then the counted ones, each over all rows; starts last."""
    deadline_s = time.perf_counter() + minutes * 60 * system.share
    loads = [row for row in chosen if row.load is not None]
    if loads:
        with system.start(folder / "rows") as broker:
            broker.start()
            for number in range(1 + max(row.rounds for row in loads)):
                if number > 1 and time.perf_counter() > deadline_s:
                    complain(f"{system.name}: {number - 1} rounds, then its time was over")
                    break
                _round(system, broker, [row for row in loads if number <= row.rounds], number)
            broker.stop()
    for row in chosen:
        if row.load is None:
            system.rounds[row.name] = [_start(system, folder, number) for number in range(STARTS)]


def _round(system: System, broker: brokers.Broker, loads: Sequence[Row], number: int) -> None:
    _, core = brokers.two_cores()
    label = f"round {number}" if number else "warming"
    readers = {row.reads for row in loads if row.reads is not None}
    for row in loads:
        assert row.load is not None
        topic = f"{row.reads or row.name}-{number}"
        with Caller(broker.port) as caller:
            if row.reads is None:
                caller.create(topic)
            found = rows.figures(run(row.load, broker, topic, core))
            if row.name not in readers:
                caller.delete(topic)
        complain(f"{system.name}, {label}: {row.name}: {rows.told(row, found)}")
        if number:
            system.rounds.setdefault(row.name, []).append(found)


def _start(system: System, folder: Path, number: int) -> dict[str, float]:
    """An empty data directory; memory some seconds after it was ready, the same for all."""
    with system.start(folder / f"start-{number}") as broker:
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
        for number, system in enumerate((*compared[1:], *compared[:1])):
            try:
                measure(system, chosen, Path(folder) / str(number), options.minutes)
            except Failure as failure:  # what the others gave, and this one before, is shown all the same
                complain(f"bench: {failure}")
                failed = True
    results = {system.name: system.medians() for system in compared}
    names = [system.name for system in compared]
    table = rows.markdown(chosen, names, results)
    emit(table)
    if with_kafka:
        emit(rows.summary(chosen, results[names[0]], results[names[1]]))
    emit(f"{time.perf_counter() - started_s:.0f} s; each figure is the median of its rounds")
    if options.markdown is not None:
        options.markdown.write_text(table)
    if options.json is not None:
        rounds = {system.name: system.rounds for system in compared}
        options.json.write_text(json.dumps({"medians": results, "rounds": rounds}, indent=2) + "\n")
    return 1 if failed else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--rows", action="append", default=[], metavar="NAME[,…]", help="only these rows (and what they read)"
    )
    parser.add_argument("--own", action="store_true", help="this broker alone, as when Kafka is not here")
    parser.add_argument("--pinned-only", action="store_true", help="no second column for Kafka on both cores")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="bound of the whole run (default: 11)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
