"""`make bench-features`: what our own features cost a produce request, this build against itself.

Owns the variants and their table. Metrics are in all of them: nothing switches them off. Does not own the
load.
Invariant: the variants differ only in a stock configuration or in what the client sends, never by a switch
that exists for this measurement.
"""

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
from tools.versus.load import run

ROUNDS = 5
SECONDS = 0.6
ROWS = ("raw-1x1", "raw-1x100", "raw-1x500", "raw-8x2000", "raw-100x10000")
NO_INDEX = {"log.index.interval.bytes": "2147483647"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    has_index: bool
    idempotent: bool


VARIANTS = (
    Variant(name="neither", has_index=False, idempotent=False),
    Variant(name="indexes", has_index=True, idempotent=False),
    Variant(name="indexes, idempotent producer", has_index=True, idempotent=True),
)


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """The least CPU of several rounds, by row and variant: in µs a request."""
    core, client = brokers.two_cores()
    found: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        with_index = stack.enter_context(brokers.Tidewal(folder / "index", {core})).start()
        without = stack.enter_context(brokers.Tidewal(folder / "bare", {core}, settings=NO_INDEX)).start()
        for number in range(ROUNDS):
            for row in rows.select(ROWS):
                for variant in VARIANTS:
                    assert row.load is not None
                    load = dataclasses.replace(row.load, seconds=SECONDS, idempotent=variant.idempotent)
                    broker = with_index if variant.has_index else without
                    topic = f"{row.name}-{number}-{variant.idempotent}"
                    with Caller(broker.port) as caller:
                        caller.create(topic)
                        cost = rows.figures(run(load, broker, topic, client))["cpu_us"]
                        caller.delete(topic)
                    costs = found.setdefault(row.title, {})
                    costs[variant.name] = min(cost, costs.get(variant.name, cost))
            complain(f"round {number + 1} of {ROUNDS} done")
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
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="tidewal-features-") as name:
            table = markdown(measure(Path(name)))
    except Failure as failure:
        complain(f"bench-features: {failure}")
        return 1
    emit(table)
    if options.markdown is not None:
        options.markdown.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
