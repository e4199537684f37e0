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


def _shown(**units: str) -> tuple[Measure, ...]:
    """Show these figures, in their order; each with its unit."""
    return tuple(Measure(name=name, unit=unit) for name, unit in units.items())


def _at_most(label: str, *of: str, **bound: float) -> Goal:
    """Bound one figure; in all columns of ours unless some are named."""
    ((figure, most),) = bound.items()
    return Goal(figure=figure, label=label, at_most=most, of=of or OURS)


def _at_least(label: str, *of: str, **bound: float) -> Goal:
    ((figure, least),) = bound.items()
    return Goal(figure=figure, label=label, at_least=least, of=of or OURS)


_BESIDE = _shown(
    idle_p99_ms="ms p99 before",
    p99_ms="ms meanwhile",
    p99_times="times",
    stall_ms="ms longest stall",
    mb_per_s="MB/s",
)
_MANY = _shown(
    mb_per_s="MB/s",
    extra_mb="MB more memory",
    idle_p99_ms="ms p99 of the tail before",
    p99_ms="ms meanwhile",
    p99_times="times",
)
_MANY_GOALS = (_at_most("memory", extra_mb=128), _at_most("p99", p99_times=1.5))
_JOIN = _shown(
    copied_mb="MB copied",
    seconds="s from its start to the ISR",
    ready_s="s of it until it was ready",
)

ROWS: tuple[Row, ...] = (
    Row(
        name="upload",
        title="closed segments uploaded, nothing else going on; broker's CPU",
        measures=_shown(mb_per_s="MB/s", cpu_s_per_gb="s/GB"),
        goals=(_at_least("speed", MINIO, mb_per_s=150), _at_most("CPU", cpu_s_per_gb=4)),
    ),
    Row(
        name="paced",
        title="C producer, 10 MB/s, beside an upload under a quota of 20 MB/s",
        measures=_BESIDE + _shown(slowest="of the quota in the slowest 11 s", fastest="in the fastest"),
        goals=(
            _at_most("p99", p99_times=1.2),
            _at_most("stall", stall_ms=20),
            _at_least("rate", slowest=0.95),
            _at_most("rate", fastest=1.05),
        ),
        systems=OURS,
    ),
    Row(
        name="unpaced",
        title="the same without a quota",
        measures=_BESIDE,
        goals=(_at_most("p99", p99_times=2),),
    ),
    Row(
        name="memory",
        title="ten large segments uploaded at once: the broker's memory",
        measures=_shown(
            segment_mb="MB a segment", before_mb="MB before", extra_mb="MB more at most", mb_per_s="MB/s"
        ),
        goals=(_at_most("memory", extra_mb=96),),
        systems=OURS,
    ),
    Row(
        name="cold",
        title="C consumer, 2,000 B, from the tier, and the same bytes from local segments",
        measures=_shown(
            mb_per_s="MB/s cold",
            local_mb_per_s="MB/s local",
            of_local="of local",
            cpu_s_per_gb="s/GB cold",
        ),
        goals=(
            _at_least("of local", LOCAL, of_local=0.7),
            _at_least("of local", MINIO, of_local=0.5),
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
        measures=_JOIN
        + _shown(of_copy="of the time without", of_copy_once_ready="of it from the moment it was ready"),
        goals=(
            _at_most("MB copied over two segments", LOCAL, over_mb=1),
            _at_most("time", LOCAL, of_copy=0.1),
            Goal(figure="seconds", label="time", at_most=0, as_kafka=True, of=(LOCAL,)),
        ),
        systems=(LOCAL, KAFKA),
    ),
    Row(
        name="fold",
        title="live segments folded from their records",
        measures=_shown(segments="segments", cpu_s="s CPU", bytes="B each", find_us="µs a look-up"),
        goals=(
            _at_most("CPU", LOCAL, cpu_s=5),
            _at_most("memory", LOCAL, bytes=600),
            _at_most("look-up", LOCAL, find_us=20),
        ),
        systems=(LOCAL,),
    ),
    Row(
        name="ready",
        title="a start with so many live segments, beside a start with three",
        measures=_shown(
            segments="segments",
            ready_s="s to ready",
            plain_ready_s="s with three",
            ready_cpu_s="s CPU to ready",
            plain_ready_cpu_s="s CPU with three",
            read_s="s to the first read from the tier",
            plain_read_s="s with three",
        ),
        goals=(_at_most("s later", LOCAL, later_s=0.1), _at_most("s CPU more", LOCAL, later_cpu_s=0.1)),
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
