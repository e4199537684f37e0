"""The rows of the WAL tier's table: runs with it and without it in pairs, what is shown and what must hold.

Owns the rows, their goals, medians over runs, how far runs of the same kind differ, the stages of a record's
way through the store, and how all of it is written. Pure: no broker, no clock.
Invariant: a goal that compares is judged by the medians of the pairs; where "on" and "off" differ by no more
than runs of "off" differ among themselves, the table says that there is no difference.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tools.versus import rows
from tools.versus.rows import Figures, Measure

FILE, MINIO = "file", "minio"
OFF, ON = "off", "on"

STAGES: Mapping[str, str] = {
    "wait_ms": "wait for the cut",
    "copy_ms": "PUT",
    "told_ms": "pointer",
    "get_ms": "GET",
    "append_ms": "append",
    "report_ms": "report",
    "rest_ms": "the rest: to the leader, watermark, consumer",
    "whole_ms": "whole",
}


@dataclass(slots=True)
class Runs:
    """The figures of each run of one row."""

    off: list[Figures] = field(default_factory=list)
    on: list[Figures] = field(default_factory=list)
    failure: str = ""

    def add(self, which: str, found: Figures) -> None:
        (self.on if which == ON else self.off).append(found)

    def median(self, which: str, figure: str) -> float | None:
        values = self.values(which, figure)
        return statistics.median(values) if values else None

    def values(self, which: str, figure: str) -> list[float]:
        return [found[figure] for found in (self.on if which == ON else self.off) if figure in found]

    def spread(self, figure: str) -> float | None:
        """Return how far apart runs of "off" are; None of a single one."""
        values = self.values(OFF, figure)
        return max(values) - min(values) if len(values) > 1 else None

    def is_same(self, figure: str) -> bool:
        """Return whether "on" and "off" differ by no more than "off" and "off"."""
        off, on, spread = self.median(OFF, figure), self.median(ON, figure), self.spread(figure)
        return None not in (off, on, spread) and abs(on - off) <= spread  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure must reach with the tier on. With `times_off` the bound is that of the figure divided by
    the one without; `or_more` is met too, a difference that is small in itself."""

    figure: str
    label: str
    at_most: float | None = None
    at_least: float | None = None
    times_off: bool = False
    or_more: float | None = None
    stores: Sequence[str] = (FILE, MINIO)

    def told(self, runs: Runs) -> str:
        """Return the bound and whether it is met; nothing where a figure is missing."""
        on, off = runs.median(ON, self.figure), runs.median(OFF, self.figure)
        if on is None or (self.times_off and not off):
            return ""
        bound = f"{'≤' if self.at_least is None else '≥'} {self._bound:g}"
        if self.times_off:
            bound += " × off"
        if self.or_more is not None:
            bound += f" or {self.or_more:g} more"
        return f"{self.label} {bound} {'met' if self._is_met(on, off or 0.0) else '**missed**'}"

    @property
    def _bound(self) -> float:
        found = self.at_most if self.at_least is None else self.at_least
        assert found is not None
        return found

    def _is_met(self, on: float, off: float) -> bool:
        bound = self._bound * off if self.times_off else self._bound
        if self.or_more is not None and on <= off + self.or_more:
            return True
        return on >= bound if self.at_least is not None else on <= bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`compared` are the figures of which "on" is told as a multiple of "off"; `group` names several rows."""

    name: str
    title: str
    group: str
    measures: tuple[Measure, ...]
    compared: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()


def _shown(**units: str) -> tuple[Measure, ...]:
    return tuple(Measure(name=name, unit=unit) for name, unit in units.items())


_ACKS = _shown(mb_per_s="MB/s", p50_ms="ms p50 to the acknowledgement", p99_ms="ms p99")
_END_TO_END = _shown(p50_ms="ms p50", p99_ms="ms p99", max_ms="ms longest", records="records")
_OBJECTS = _shown(object_kb="KB an object", interval_ms="ms between objects", direct_share="sent directly")
_CPU = (
    _shown(
        mb_per_s="MB/s",
        cpu_s_per_gb="s/GB, all brokers",
        cpu_cores="cores",
        store_s_per_gb="s/GB, store's process",
    )
    + _OBJECTS
)
_BYTES = (
    _shown(
        mb_per_s="MB/s",
        record_share="records over replication connections, of what was produced",
        socket_share="all bytes between brokers, of what was produced",
    )
    + _OBJECTS
)


_CPU_GOALS = (
    Goal(figure="cpu_s_per_gb", label="CPU", at_most=1.3, times_off=True),
    Goal(figure="direct_share", label="sent directly", at_most=0),
)
"""What is sent directly costs what it costs without the tier: that is no figure of the tier."""


def _latency_goals(p50_ms: float, p99_ms: float, store: str) -> tuple[Goal, ...]:
    return (
        Goal(figure="p50_ms", label="p50", at_most=p50_ms, stores=(store,)),
        Goal(figure="p99_ms", label="p99", at_most=p99_ms, stores=(store,)),
    )


def _byte_goals(socket_share: float) -> tuple[Goal, ...]:
    return (
        Goal(figure="record_share", label="records", at_most=0),
        Goal(figure="socket_share", label="all bytes", at_most=socket_share),
    )


ROWS: tuple[Row, ...] = (
    Row(
        name="bytes-12",
        group="bytes",
        title="30 MB/s, 12 partitions: bytes between brokers",
        measures=_BYTES,
        goals=_byte_goals(0.03),
    ),
    Row(
        name="bytes-1000",
        group="bytes",
        title="the same with 1,000 partitions",
        measures=_BYTES,
        goals=_byte_goals(0.15),
    ),
    Row(
        name="acks1-cpu",
        group="acks1",
        title="produce requests, acks=1, a local store that refuses: CPU a request, two brokers each",
        measures=_shown(
            one_us="µs 1 × 1", many_us="µs 50 × 1", deep_us="µs 1 × 100", large_s_per_gb="s/GB 8 × 2,000 B"
        ),
        compared=("one_us", "many_us", "deep_us", "large_s_per_gb"),
        goals=tuple(
            Goal(figure=figure, label=label, at_most=1.02, times_off=True)
            for figure, label in (
                ("one_us", "1 × 1"),
                ("many_us", "50 × 1"),
                ("deep_us", "1 × 100"),
                ("large_s_per_gb", "8 × 2,000 B"),
            )
        ),
    ),
    Row(
        name="acks1-latency",
        group="acks1",
        title="C client, 2,000 B, linger 20 ms, 39.2 MB/s, acks=1",
        measures=_ACKS,
        compared=("p50_ms", "p99_ms"),
        goals=(
            Goal(figure="p50_ms", label="p50", at_most=1.1, times_off=True),
            Goal(figure="p99_ms", label="p99", at_most=1.5, times_off=True, or_more=1),
        ),
    ),
    Row(
        name="acks1-rate",
        group="acks1",
        title="C client, 2,000 B, linger 20 ms, acks=1, as fast as it goes",
        measures=_shown(mb_per_s="MB/s", gb="GB") + _OBJECTS,
        compared=("mb_per_s",),
        goals=(Goal(figure="mb_per_s", label="speed", at_least=0.85, times_off=True, stores=(FILE,)),),
    ),
    Row(
        name="e2e-alone",
        group="e2e",
        title="1,600 B, 50 records a second out of phase, to a consumer at a follower",
        measures=_END_TO_END,
        goals=_latency_goals(15, 50, MINIO) + _latency_goals(8, 40, FILE),
    ),
    Row(
        name="e2e-load",
        group="e2e",
        title="the same beside 39.2 MB/s of 2,000 B over 6 partitions",
        measures=_shown(mb_per_s="MB/s") + _END_TO_END,
        goals=_latency_goals(30, 100, MINIO),
    ),
    Row(
        name="acks-all-50",
        group="acks-all",
        title="C client, 1,600 B, one at a time, 50 a second out of phase, acks=all",
        measures=_END_TO_END,
        compared=("p50_ms",),
        goals=(Goal(figure="p50_ms", label="p50", at_most=12, stores=(MINIO,)),),
    ),
    Row(
        name="acks-all-next",
        group="acks-all",
        title="the same, each as soon as the one before is acknowledged",
        measures=_END_TO_END,
        compared=("p50_ms",),
    ),
    Row(
        name="cpu-30",
        group="cpu",
        title="16 KB batches, 30 MB/s",
        measures=_CPU,
        compared=("cpu_s_per_gb",),
        goals=_CPU_GOALS,
    ),
    Row(
        name="cpu-100",
        group="cpu",
        title="16 KB batches, 100 MB/s",
        measures=_CPU,
        compared=("cpu_s_per_gb",),
        goals=_CPU_GOALS,
    ),
    Row(
        name="cpu-300k",
        group="cpu",
        title="16 KB batches, 30 MB/s, objects of at most 300 KB",
        measures=_CPU,
        compared=("cpu_s_per_gb",),
    ),
    Row(
        name="partitions",
        group="partitions",
        title="1,000 partitions, all written to, 10 MB/s, acks=1",
        measures=_ACKS + _OBJECTS + _shown(cut_over_5ms="turns of a cut over 5 ms", cut_ms="ms longest turn"),
        compared=("p50_ms", "p99_ms"),
        goals=(
            Goal(figure="cut_over_5ms", label="turns over 5 ms", at_most=0),
            Goal(figure="p99_ms", label="p99", at_most=2, times_off=True),
        ),
    ),
)


def select(names: Iterable[str]) -> list[Row]:
    """Return the rows and groups asked for, in the table's order; all when none is named. An unknown name is
    a ValueError."""
    wanted, known = set(names), {row.name for row in ROWS} | {row.group for row in ROWS}
    if unknown := sorted(wanted - known):
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if not wanted or wanted & {row.name, row.group}]


# --- stages ---


def stages(means_s: Mapping[str, float], whole_ms: float) -> Figures:
    """Split the whole way by the means of the brokers' histograms. A report's time contains the GET and the
    append; what no broker times is the rest."""
    found = {f"{name}_ms": 1000 * means_s.get(name, 0.0) for name in ("wait", "copy", "told")}
    get_ms, append_ms, report_ms = (1000 * means_s.get(name, 0.0) for name in ("get", "append", "report"))
    found |= {
        "get_ms": get_ms,
        "append_ms": append_ms,
        "report_ms": report_ms - get_ms - append_ms,
        "rest_ms": whole_ms - sum(found.values()) - report_ms,
        "whole_ms": whole_ms,
    }
    return found


def stages_markdown(chosen: Sequence[Row], results: Mapping[str, Runs]) -> str:
    """Format the stages of each row that has them: means over all runs, in ms, that sum to the whole."""
    lines = []
    for row in chosen:
        found = results[row.name].on if row.name in results else []
        means = [
            statistics.fmean(each[stage] for each in found)
            for stage in STAGES
            if found and all(stage in each for each in found)
        ]
        if means:
            lines.append(_line([row.title, *(f"{mean:.2f}" for mean in means)]))
    if not lines:
        return ""
    heads = [
        _line(["mean ms with the tier on", *STAGES.values()]),
        _line("---" for _ in range(len(STAGES) + 1)),
    ]
    return "\n".join([*heads, *lines]) + "\n"


# --- how it is written ---


def markdown(chosen: Sequence[Row], store: str, results: Mapping[str, Runs]) -> str:
    """Format one line per row."""
    heads = ["row", "off", "on", "on / off", "off against off", "targets"]
    lines = [_line(heads), _line("---" for _ in heads)]
    for row in chosen:
        runs = results.get(row.name, Runs())
        goals = [told for goal in row.goals if store in goal.stores and (told := goal.told(runs))]
        lines.append(
            _line(
                [
                    row.title,
                    _medians(row, runs, OFF),
                    _medians(row, runs, ON),
                    ", ".join(_ratios(row, runs)) or "-",
                    ", ".join(_spreads(row, runs)) or "-",
                    ", ".join(goals) or "-",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _medians(row: Row, runs: Runs, which: str) -> str:
    shown = [(each, runs.median(which, each.name)) for each in row.measures]
    return ", ".join(f"{rows.number(value)} {each.unit}" for each, value in shown if value is not None) or "-"


def _ratios(row: Row, runs: Runs) -> Iterable[str]:
    for figure in row.compared:
        on, off = runs.median(ON, figure), runs.median(OFF, figure)
        if on is not None and off:
            yield f"{on / off:.2f}" + (" (no difference)" if runs.is_same(figure) else "")


def _spreads(row: Row, runs: Runs) -> Iterable[str]:
    """How far apart the runs without the tier are, as a part of their median."""
    for figure in row.compared:
        off, spread = runs.median(OFF, figure), runs.spread(figure)
        if off and spread is not None:
            yield f"{100 * spread / off:.0f} %"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
