"""What rounds of faults showed: a table, a file of JSON, and what is wrong.

Owns the figures of one fault, the limits, and how rounds are gathered in one file. Does not own the faults
nor the clock. Invariant: a figure is the longest silence of any one partition of its group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.links.faults import CALM

WHERE: Final = ("led", "followed", "elsewhere")
"""A partition that the victim led, followed, or has no replica of."""
ACKS, READS = "acks", "reads"
KILLED_S_MAX = 3.0
SILENT_S_MAX = 9.0
UNAFFECTED_S_MAX = 2.0
"""Longer than when nothing is done, in the same round."""
SILENT: Final = frozenset({"pause", "cut off", "half-open", "not heard", "hears nothing"})
"""What a broker does that the others only miss."""
FILE = Path("build") / "chaos-links.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one fault: by partitions, the longest time without an acknowledgement and without a record read."""

    kind: str
    role: str
    seconds: float
    acks: dict[str, float]
    reads: dict[str, float]
    whole_s: float
    """From its end until all replicas were in sync again."""

    def told(self) -> str:
        silences = ", ".join(
            f"{where} {self.acks[where]:.1f} / {self.reads[where]:.1f} s"
            for where in WHERE
            if where in self.acks
        )
        return (
            f"{self.kind} {self.role} for {self.seconds:.1f} s: {silences}, whole after {self.whole_s:.1f} s"
        )

    def silence_s(self, where: str) -> float:
        return max(self.acks.get(where, 0.0), self.reads.get(where, 0.0))

    def over(self, calm_s: float) -> list[str]:
        """What is over its limit, where partitions stand still for `calm_s` when nothing is done."""
        return [
            f"{self.kind} of the {self.role}: what is {where} stood still for {self.silence_s(where):.1f} s,"
            f" {limit_s:.1f} s are allowed"
            for where, limit_s in limits(self.kind, self.role, calm_s).items()
            if self.silence_s(where) > limit_s
        ]


def limits(kind: str, role: str, calm_s: float) -> dict[str, float]:
    """Of those partitions, in seconds."""
    if role == "controller":
        return {"elsewhere": calm_s + UNAFFECTED_S_MAX}
    if kind == "kill -9":
        return {"led": KILLED_S_MAX}
    return {"led": SILENT_S_MAX} if kind in SILENT else {}


@dataclass(slots=True, kw_only=True)
class Round:
    seed: int
    links: str
    store: str
    tiers: bool
    outcomes: list[Outcome] = field(default_factory=list)
    acknowledged: int = 0
    read: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    """What `tidewal verify` found wrong, by code."""
    load: float = 0.0
    """Of the machine, over the last five minutes of the round."""

    failed: str = ""
    """What ended it too early."""

    def wrong(self) -> list[str]:
        """All that must not be."""
        calm_s = max(
            (each.silence_s("elsewhere") for each in self.outcomes if each.kind == CALM), default=0.0
        )
        return [
            *([f"it ended early: {self.failed}"] if self.failed else []),
            *(f"verify found {code} {count} times" for code, count in self.findings.items()),
            *(told for outcome in self.outcomes for told in outcome.over(calm_s)),
        ]


def gather(path: Path, commit: str, done: Round) -> list[Round]:
    """Write it in place of an earlier one of the same seed; all rounds of this commit."""
    rounds = [each for each in read(path, commit) if each.seed != done.seed]
    rounds = sorted([*rounds, done], key=lambda each: each.seed)
    document: dict[str, Any] = {
        "commit": commit,
        "wrong": [f"seed {each.seed}: {told}" for each in rounds for told in each.wrong()],
        "rounds": [asdict(each) for each in rounds],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return rounds


def read(path: Path, commit: str) -> list[Round]:
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    if document["commit"] != commit:
        return []
    return [
        Round(**{**each, "outcomes": [Outcome(**one) for one in each["outcomes"]]})
        for each in document["rounds"]
    ]


def show(rounds: Sequence[Round]) -> None:
    """The table of all of them."""
    table = Table(title="Longest silence, in seconds: without an acknowledgement / without a record read")
    for name in ("fault", "broker", "times", *WHERE, "whole again"):
        table.add_column(name, justify="left" if name in ("fault", "broker") else "right")
    outcomes = [outcome for each in rounds for outcome in each.outcomes]
    for kind, role in sorted({(outcome.kind, outcome.role) for outcome in outcomes}):
        same = [each for each in outcomes if (each.kind, each.role) == (kind, role)]
        silences = [
            f"{worst([each.acks for each in same], where)} / {worst([each.reads for each in same], where)}"
            for where in WHERE
        ]
        table.add_row(kind, role, str(len(same)), *silences, f"{max(each.whole_s for each in same):.1f}")
    console = Console(width=110)
    console.print(table)
    for each in rounds:
        console.print(
            f"seed {each.seed}: {each.links}, {each.store}, tiers {'on' if each.tiers else 'off'},"
            f" {each.acknowledged} acknowledged, {each.read} read, load {each.load:.1f}"
        )
        for told in each.wrong() or ["nothing"]:
            console.print(f"  wrong: {told}")


def worst(silences: Sequence[dict[str, float]], where: str) -> str:
    known = [each[where] for each in silences if where in each]
    return f"{max(known):.1f}" if known else "-"
