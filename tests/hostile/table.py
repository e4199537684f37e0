"""The table of named attacks: each measured on brokers of its own, and what it costs held to the limits.

Owns: how often an attack is measured and which figure counts, the limits, and how rows are written. Does not
own the attacks, nor the measurement itself.
Invariant: every run has a broker of its own; the wait that counts is the median of the runs, the memory their
worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from tests.hostile.attacks import WRONG, Attack
from tests.hostile.ground import Measured, fresh_ground

WAIT_MS_MAX: Final = 50.0
PEAK_MB_MAX: Final = 256.0
LEFT_MB_MAX: Final = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    what: str
    wait_ms: float
    raw_wait_ms: float
    peak_mb: float
    left_mb: float
    lost: int
    notes: tuple[str, ...]

    @property
    def is_within(self) -> bool:
        return is_within(self) and not any(note.startswith(WRONG) for note in self.notes)


def is_within(cost: Any) -> bool:
    return bool(
        cost.wait_ms <= WAIT_MS_MAX
        and cost.peak_mb <= PEAK_MB_MAX
        and cost.left_mb <= LEFT_MB_MAX
        and not cost.lost
    )


def measured(attack: Attack, *, runs: int) -> Row:
    return row_of(attack, [one_run(attack) for _ in range(runs)])


def one_run(attack: Attack) -> Measured:
    with fresh_ground(settings=attack.settings, has_large_probe=attack.has_large_probe) as ground:
        return ground.measure(attack.make(ground))


def row_of(attack: Attack, runs: Sequence[Measured]) -> Row:
    return Row(
        name=attack.name,
        what=attack.what,
        wait_ms=median(run.wait_ms for run in runs),
        raw_wait_ms=median(run.raw_wait_ms for run in runs),
        peak_mb=max(run.peak_mb for run in runs),
        left_mb=max(run.left_mb for run in runs),
        lost=max(run.lost for run in runs),
        notes=tuple(dict.fromkeys(run.note for run in runs)),
    )


def markdown(rows: Sequence[Row]) -> str:
    heads = [
        "attack",
        "what one client does",
        "longest wait, ms",
        "as it was, ms",
        "peak above rest, MB",
        "left after 10 s, MB",
        "lost",
        "what becomes of it",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|---|--:|--:|--:|--:|--:|---|"]
    for row in rows:
        cells = [
            row.name if row.is_within else f"**{row.name}**",
            row.what,
            figure(row.wait_ms, WAIT_MS_MAX),
            f"{row.raw_wait_ms:,.0f}",
            figure(row.peak_mb, PEAK_MB_MAX),
            figure(row.left_mb, LEFT_MB_MAX),
            figure(row.lost, 0),
            "; ".join(row.notes),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(value: float, limit: float) -> str:
    shown = f"{value:,.0f}"
    return f"**{shown}**" if value > limit else shown


def as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "is_within": row.is_within}
