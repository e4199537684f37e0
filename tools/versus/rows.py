"""The rows of the table: what each sends, in which units it is told, and what it must reach against Kafka.

Owns the row's targets, medians over rounds, ratios, verdicts and how they are written. Pure: no broker, no
clock.
Invariant: a ratio is ours divided by theirs in the same run; a figure that is missing is neither met nor
missed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.versus.load import Load, Measured

Figures = Mapping[str, float]
MEGA = 1e6
MEBI_RECORD_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure of a row. `at_least` or `at_most` bounds ours / theirs; with neither it is shown only."""

    name: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def has_target(self) -> bool:
        return self.at_least is not None or self.at_most is not None

    @property
    def target(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def is_met(self, ratio: float) -> bool:
        if self.at_least is not None:
            return ratio >= self.at_least
        assert self.at_most is not None
        return ratio <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`load` is None for a row that is no load: starts, memory, faults. A consume row reads what the row
    `reads` has written.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    load: Load | None
    reads: str | None = None
    rounds: int = 3


def _mb_per_s(at_least: float, cpu_at_most: float) -> tuple[Measure, ...]:
    return (
        Measure(name="mb_per_s", unit="MB/s", at_least=at_least),
        Measure(name="cpu_s_per_gb", unit="s/GB", at_most=cpu_at_most),
    )


def _requests_per_s(at_least: float, cpu_at_most: float) -> tuple[Measure, ...]:
    return (
        Measure(name="requests_per_s", unit="requests/s", at_least=at_least),
        Measure(name="cpu_us", unit="µs CPU", at_most=cpu_at_most),
    )


def _client_rows() -> list[Row]:
    kinds = (
        ("2000", "2,000 B", 2000, 200_000, 20, 1.2, 0.35),
        ("100", "100 B", 100, 1_000_000, 20, 1.0, 0.25),
        ("10000", "10,000 B", 10_000, 40_000, 5, 1.5, 0.35),
        ("1mb", "1 MB", MEBI_RECORD_BYTES, 400, 5, 2.0, 0.20),
    )
    rows = []
    for name, size, record_bytes, count, linger_ms, rate, cpu in kinds:
        rows.append(
            Row(
                name=f"produce-{name}",
                title=f"C client, produce {size}, linger {linger_ms} ms",
                measures=_mb_per_s(rate, cpu),
                load=Load(
                    kind="client-produce", record_bytes=record_bytes, records=count, linger_ms=linger_ms
                ),
            )
        )
        rows.append(
            Row(
                name=f"consume-{name}",
                title=f"C client, consume {size}",
                measures=_mb_per_s(1.0, 0.70),
                load=Load(kind="client-consume", record_bytes=record_bytes),
                reads=f"produce-{name}",
            )
        )
    return rows


LATENCY = (
    Measure(name="p50_us", unit="µs p50", at_most=0.6),
    Measure(name="p99_us", unit="µs p99", at_most=0.6),
    Measure(name="cpu_us", unit="µs CPU", at_most=0.4),
)
STARTS = (
    Measure(name="ready_s", unit="s to ready", at_most=0.15),
    Measure(name="memory_mb", unit="MB at rest", at_most=0.2),
)

ROWS: tuple[Row, ...] = (
    *_client_rows(),
    Row(
        name="raw-1x1",
        title="raw, 1 KB, 1 connection × 1 in flight",
        measures=LATENCY,
        load=Load(kind="produce", record_bytes=1000),
        rounds=5,
    ),
    Row(
        name="raw-50x1",
        title="raw, 1 KB, 50 connections × 1 in flight",
        measures=_requests_per_s(3, 0.35),
        load=Load(kind="produce", record_bytes=1000, connections=50),
    ),
    Row(
        name="raw-1x100",
        title="raw, 1 KB, 1 × 100 in flight",
        measures=_requests_per_s(10, 0.10),
        load=Load(kind="produce", record_bytes=1000, in_flight=100),
    ),
    Row(
        name="raw-1x500",
        title="raw, 0.1 KB, 1 × 500 in flight",
        measures=_requests_per_s(10, 0.10),
        load=Load(kind="produce", record_bytes=100, in_flight=500),
    ),
    Row(
        name="raw-8x2000",
        title="raw, 8 × 2,000 B a batch, 1 × 20 in flight",
        measures=_mb_per_s(8, 0.12),
        load=Load(kind="produce", record_bytes=2000, batch_records=8, in_flight=20),
    ),
    Row(
        name="raw-100x10000",
        title="raw, 100 × 10,000 B a batch, 1 × 5 in flight",
        measures=_mb_per_s(5, 0.20),
        load=Load(kind="produce", record_bytes=10_000, batch_records=100, in_flight=5),
    ),
    Row(name="start", title="time to ready; memory at rest", measures=STARTS, load=None),
)


def select(names: Iterable[str]) -> list[Row]:
    """Return the rows asked for, in the table's order, with the rows they read from; all when none is named.

    An unknown name is a ValueError.
    """
    wanted = set(names)
    known = {row.name: row for row in ROWS}
    if unknown := sorted(wanted - known.keys()):
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(known)}")
    wanted |= {reads for name in wanted if (reads := known[name].reads) is not None}
    return [row for row in ROWS if not wanted or row.name in wanted]


def figures(measured: Measured) -> dict[str, float]:
    """Return every figure one round gives, whichever of them its row shows."""
    found = {
        "mb_per_s": measured.bytes / measured.seconds / MEGA,
        "cpu_s_per_gb": measured.broker_cpu_s / measured.bytes * 1e9,
        "broker_use": measured.broker_cpu_s / measured.seconds,
        "client_use": measured.client_cpu_s / measured.seconds,
    }
    if measured.requests:
        found["requests_per_s"] = measured.requests / measured.seconds
        found["cpu_us"] = measured.broker_cpu_s / measured.requests * MEGA
    if measured.latency_us:
        found["p50_us"], found["p99_us"] = measured.latency_us["p50"], measured.latency_us["p99"]
    return found


def median(rounds: Sequence[Figures]) -> dict[str, float]:
    """Return each figure's median over the rounds."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]} if rounds else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    measure: Measure
    ratio: float

    @property
    def is_met(self) -> bool:
        return self.measure.is_met(self.ratio)

    def __str__(self) -> str:
        return f"{self.measure.target} {'met' if self.is_met else '**missed**'}"


def verdicts(row: Row, ours: Figures, theirs: Figures) -> list[Verdict]:
    return [
        Verdict(measure=measure, ratio=ours[measure.name] / theirs[measure.name])
        for measure in row.measures
        if measure.has_target and measure.name in ours and theirs.get(measure.name)
    ]


def markdown(
    rows: Sequence[Row], systems: Sequence[str], results: Mapping[str, Mapping[str, Figures]]
) -> str:
    """Format one line per row. `results` is by system, then row; the first system is ours, the second
    decides."""
    rivals = systems[1:]
    heads = ["row", *systems[:1], *rivals, *(f"ours / {rival}" for rival in rivals)]
    if rivals:
        heads.append("target")
    lines = [_line(heads), _line("---" for _ in heads)]
    ours = results[systems[0]]
    for row in rows:
        cells = [row.title, *(told(row, results[system].get(row.name, {})) for system in systems)]
        judged = [verdicts(row, ours.get(row.name, {}), results[rival].get(row.name, {})) for rival in rivals]
        cells += [", ".join(f"{verdict.ratio:.2f}" for verdict in found) or "-" for found in judged]
        if rivals:
            cells.append(", ".join(map(str, judged[0])) or "-")
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Row], ours: Mapping[str, Figures], theirs: Mapping[str, Figures]) -> str:
    found = [
        verdict for row in rows for verdict in verdicts(row, ours.get(row.name, {}), theirs.get(row.name, {}))
    ]
    return f"{sum(verdict.is_met for verdict in found)} of {len(found)} targets met"


def told(row: Row, found: Figures) -> str:
    return (
        ", ".join(
            f"{number(found[measure.name])} {measure.unit}"
            for measure in row.measures
            if measure.name in found
        )
        or "-"
    )


def number(value: float) -> str:
    """Format three digits that count, and no fewer than all before the point."""
    if not value:
        return "0"
    for bound, digits in ((1, 3), (10, 2), (100, 1)):
        if abs(value) < bound:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def report_file(text: str) -> Path:
    """Return the path of an option's file, which can be made once everything was measured."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent}: no such directory")
    return path
