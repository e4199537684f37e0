"""`make bench-features`: what our own features cost a produce request, this build against itself.

Owns the variants, their rows and their table. Does not own the load, nor how counters are left out.
Invariant: the variants differ only in a stock configuration, in what the client sends, or in the module that
starts the broker (tools.versus.uncounted), never by a switch in the broker that exists for this measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.console import Failure, complain, emit
from tools.versus import brokers, rows
from tools.versus.caller import Caller
from tools.versus.load import Load, run

ROUNDS = 5
NO_INDEX = {"log.index.interval.bytes": "2147483647"}
LOADS = {
    "1 MB, 5 in flight": Load(kind="produce", record_bytes=1_000_000, in_flight=5),
    "16 KB, 20 in flight": Load(kind="produce", record_bytes=16 << 10, in_flight=20),
    "1 KB, 1000 in flight": Load(kind="produce", record_bytes=1000, in_flight=1000),
    "0.2 KB, 1000 in flight": Load(kind="produce", record_bytes=200, in_flight=1000),
    "1 KB, 50 connections × 1 in flight": Load(kind="produce", record_bytes=1000, connections=50),
    "1 KB, 1 connection × 1 in flight": Load(kind="produce", record_bytes=1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    has_counters: bool = False
    has_index: bool = False
    idempotent: bool = False


VARIANTS = (
    Variant(name="none"),
    Variant(name="counters", has_counters=True),
    Variant(name="indexes", has_index=True),
    Variant(name="idempotent producer", idempotent=True),
    Variant(name="all", has_counters=True, has_index=True, idempotent=True),
)


def measure(folder: Path, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the least CPU of several rounds, by row and variant: in µs a request."""
    core, client = brokers.two_cores()
    found: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        started: dict[tuple[bool, bool], brokers.Broker] = {}
        for kind in sorted({(variant.has_counters, variant.has_index) for variant in VARIANTS}):
            has_counters, has_index = kind
            process = brokers.Tidewal(
                folder / str(len(started)),
                {core},
                settings=None if has_index else NO_INDEX,
                module="tools.cli" if has_counters else "tools.versus.uncounted",
            )
            started[kind] = stack.enter_context(process).start()
        for number in range(rounds):
            for row, (title, load) in enumerate(LOADS.items()):
                for variant in VARIANTS[:: -1 if number % 2 else 1]:
                    broker = started[variant.has_counters, variant.has_index]
                    wanted = dataclasses.replace(load, seconds=seconds, idempotent=variant.idempotent)
                    topic = f"row-{row}-{number}-{variant.idempotent}"
                    with Caller(broker.port) as caller:
                        caller.create(topic)
                        cost = rows.figures(run(wanted, broker, topic, client))["cpu_us"]
                        caller.delete(topic)
                    costs = found.setdefault(title, {})
                    costs[variant.name] = min(cost, costs.get(variant.name, cost))
            complain(f"round {number + 1} of {rounds} done")
    return found


def markdown(found: Mapping[str, Mapping[str, float]]) -> str:
    names = [variant.name for variant in VARIANTS]
    lines = [["row", *names], ["---"] * (1 + len(names))]
    for title, costs in found.items():
        base = costs[names[0]]
        cells = [f"{rows.number(costs[name])} µs CPU ({costs[name] / base:.2f})" for name in names]
        lines.append([title, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench-features", description="What our own features cost.")
    parser.add_argument("--markdown", type=rows.report_file, metavar="FILE", help="write the table there too")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: 5")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each run (default: 0.4)")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="tidewal-features-") as name:
            table = markdown(measure(Path(name), options.rounds, options.seconds))
    except Failure as failure:
        complain(f"bench-features: {failure}")
        return 1
    emit(table)
    if options.markdown is not None:
        options.markdown.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
