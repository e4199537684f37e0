"""The rows of the cold tier's table: what is shown of each, what it must reach, and the sums behind both.

Owns the rows, their goals, verdicts, percentiles and rates over windows, and how all of it is written. Pure:
no broker, no clock.
Invariant: a goal bounds our own figure, or compares it with Kafka's of the same run; a figure that is missing
is neither met nor missed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tools.console import Failure
from tools.versus import rows
from tools.versus.rows import Figures, Measure

LOCAL, MINIO, KAFKA = "Tidewal, local store", "Tidewal, MinIO", "Kafka 4.3.1"
OURS = (LOCAL, MINIO)
WINDOW_S = 11.0
"""What Kafka's quotas look at: eleven samples of a second each."""
MEGA = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure must reach in the columns `of`. With `as_kafka` the bound is Kafka's figure."""

    figure: str
    label: str
    at_least: float | None = None
    at_most: float | None = None
    as_kafka: bool = False
    of: Sequence[str] = OURS

    def told(self, found: Mapping[str, Figures]) -> str:
        """Return the bound and whether it is met, with the columns that miss it; "-" without figures."""
        values = {name: found[name][self.figure] for name in self.of if self.figure in found.get(name, {})}
        bound = found.get(KAFKA, {}).get(self.figure) if self.as_kafka else self._bound
        if not values or bound is None:
            return "-"
        missed = [name for name, value in values.items() if not self._is_met(value, bound)]
        told = "Kafka's" if self.as_kafka else f"{bound:g}"
        where = "" if len(self.of) > 1 or len(found) == 1 else f" ({_short(self.of[0])})"
        verdict = f"**missed** ({', '.join(map(_short, missed))})" if missed else "met"
        return f"{self.label}{where} {'≤' if self.at_most is not None else '≥'} {told} {verdict}"

    @property
    def _bound(self) -> float | None:
        return self.at_least if self.at_most is None else self.at_most

    def _is_met(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_most is not None else value >= bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    title: str
    measures: tuple[Measure, ...]
    goals: tuple[Goal, ...] = ()
    systems: tuple[str, ...] = (*OURS, KAFKA)


def _shown(name: str, unit: str) -> Measure:
    return Measure(name=name, unit=unit)


_BESIDE = (
    _shown("idle_p99_ms", "ms p99 before"),
    _shown("p99_ms", "ms meanwhile"),
    _shown("p99_times", "times"),
    _shown("stall_ms", "ms longest stall"),
    _shown("mb_per_s", "MB/s"),
)
_MANY = (
    _shown("mb_per_s", "MB/s"),
    _shown("extra_mb", "MB more memory"),
    _shown("idle_p99_ms", "ms p99 of the tail before"),
    _shown("p99_ms", "ms meanwhile"),
    _shown("p99_times", "times"),
)
_MANY_GOALS = (
    Goal(figure="extra_mb", label="memory", at_most=128),
    Goal(figure="p99_times", label="p99", at_most=1.5),
)
_JOIN = (
    _shown("copied_mb", "MB copied"),
    _shown("seconds", "s from its start to the ISR"),
    _shown("ready_s", "s of it until it was ready"),
)

ROWS: tuple[Row, ...] = (
    Row(
        name="upload",
        title="closed segments uploaded, nothing else going on; broker's CPU",
        measures=(_shown("mb_per_s", "MB/s"), _shown("cpu_s_per_gb", "s/GB")),
        goals=(
            Goal(figure="mb_per_s", label="speed", at_least=150, of=(MINIO,)),
            Goal(figure="cpu_s_per_gb", label="CPU", at_most=4),
        ),
    ),
    Row(
        name="paced",
        title="C producer, 10 MB/s, beside an upload under a quota of 20 MB/s",
        measures=(
            *_BESIDE,
            _shown("slowest", "of the quota in the slowest 11 s"),
            _shown("fastest", "in the fastest"),
        ),
        goals=(
            Goal(figure="p99_times", label="p99", at_most=1.2),
            Goal(figure="stall_ms", label="stall", at_most=20),
            Goal(figure="slowest", label="rate", at_least=0.95),
            Goal(figure="fastest", label="rate", at_most=1.05),
        ),
        systems=OURS,
    ),
    Row(
        name="unpaced",
        title="the same without a quota",
        measures=_BESIDE,
        goals=(Goal(figure="p99_times", label="p99", at_most=2),),
    ),
    Row(
        name="memory",
        title="ten large segments uploaded at once: the broker's memory",
        measures=(
            _shown("segment_mb", "MB a segment"),
            _shown("before_mb", "MB before"),
            _shown("extra_mb", "MB more at most"),
            _shown("mb_per_s", "MB/s"),
        ),
        goals=(Goal(figure="extra_mb", label="memory", at_most=96),),
        systems=OURS,
    ),
    Row(
        name="cold",
        title="C consumer, 2,000 B, from the tier, and the same bytes from local segments",
        measures=(
            _shown("mb_per_s", "MB/s cold"),
            _shown("local_mb_per_s", "MB/s local"),
            _shown("of_local", "of local"),
            _shown("cpu_s_per_gb", "s/GB cold"),
        ),
        goals=(
            Goal(figure="of_local", label="of local", at_least=0.7, of=(LOCAL,)),
            Goal(figure="of_local", label="of local", at_least=0.5, of=(MINIO,)),
            Goal(figure="mb_per_s", label="cold", at_least=0, as_kafka=True),
        ),
    ),
    Row(
        name="many",
        title="100 consumers from the tier, as fast as they can",
        measures=_MANY,
        goals=_MANY_GOALS,
        systems=OURS,
    ),
    Row(
        name="many-paced",
        title="100 consumers from the tier, 50 MB/s together",
        measures=_MANY,
        goals=_MANY_GOALS,
        systems=OURS,
    ),
    Row(
        name="join-copy",
        title="an empty disk joins, follower.fetch.last.tiered.offset.enable=false",
        measures=_JOIN,
        systems=(LOCAL, KAFKA),
    ),
    Row(
        name="join",
        title="an empty disk joins, follower.fetch.last.tiered.offset.enable=true",
        measures=(*_JOIN, _shown("of_copy", "of the time without")),
        goals=(
            Goal(figure="over_mb", label="MB copied over two segments", at_most=1, of=(LOCAL,)),
            Goal(figure="of_copy", label="time", at_most=0.1, of=(LOCAL,)),
        ),
        systems=(LOCAL, KAFKA),
    ),
    Row(
        name="fold",
        title="live segments folded from their records",
        measures=(
            _shown("segments", "segments"),
            _shown("cpu_s", "s CPU"),
            _shown("bytes", "B each"),
            _shown("find_us", "µs a look-up"),
        ),
        goals=(
            Goal(figure="cpu_s", label="CPU", at_most=5, of=(LOCAL,)),
            Goal(figure="bytes", label="memory", at_most=600, of=(LOCAL,)),
            Goal(figure="find_us", label="look-up", at_most=20, of=(LOCAL,)),
        ),
        systems=(LOCAL,),
    ),
)


def select(names: Iterable[str]) -> list[Row]:
    """Return the rows asked for, in the table's order; all when none is named. An unknown name is a
    ValueError."""
    wanted, known = set(names), {row.name for row in ROWS}
    if unknown := sorted(wanted - known):
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if not wanted or row.name in wanted]


# --- sums ---


def percentile(values: Sequence[float], share: float) -> float:
    if not values:
        raise Failure("nothing was answered while it counted")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def within(at_s: Sequence[float], values: Sequence[float], start_s: float, end_s: float) -> list[float]:
    """Return the values whose time is in [start, end)."""
    return [value for at, value in zip(at_s, values, strict=True) if start_s <= at < end_s]


def rates(at_s: Sequence[float], totals: Sequence[float], window_s: float = WINDOW_S) -> list[float]:
    """Return by how much a total has grown a second in every window, one from each sample on.

    Windows lie between the first growth and the last. One sample that differs from both beside it is a file
    seen twice or not at all while it was renamed: each counts as the middle one of three.
    """
    smooth = [*totals[:1], *(sorted(totals[at - 1 : at + 2])[1] for at in range(1, len(totals) - 1))]
    smooth += totals[len(smooth) :]
    if not smooth or smooth[0] == smooth[-1]:
        return []
    first = next(at for at, total in enumerate(smooth) if total > smooth[0]) - 1
    last = next(at for at in range(len(smooth) - 1, -1, -1) if smooth[at] < smooth[-1]) + 1
    found = []
    for at in range(first, last):
        end = bisect_left(at_s, at_s[at] + window_s)
        if end > last:
            break
        found.append((smooth[end] - smooth[at]) / (at_s[end] - at_s[at]))
    return found


# --- how it is written ---


def markdown(
    chosen: Sequence[Row], systems: Sequence[str], results: Mapping[str, Mapping[str, Figures]]
) -> str:
    """Format one line per row. `results` is by system, then row."""
    lines = [_line(["row", *systems, "targets"]), _line("---" for _ in range(len(systems) + 2))]
    for row in chosen:
        found = {name: results[name][row.name] for name in systems if row.name in results.get(name, {})}
        cells = [_told(row, found.get(name, {})) for name in systems]
        goals = [told for goal in row.goals if (told := goal.told(found)) != "-"]
        lines.append(_line([row.title, *cells, ", ".join(goals) or "-"]))
    return "\n".join(lines) + "\n"


def _told(row: Row, found: Figures) -> str:
    shown = [measure for measure in row.measures if measure.name in found]
    return ", ".join(f"{rows.number(found[each.name])} {each.unit}" for each in shown) or "-"


def _short(name: str) -> str:
    return name.removeprefix("Tidewal, ")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
