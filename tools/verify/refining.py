"""The second pass: copies whose sums differ are read again, batch by batch.

Owns which stretches of which places are read for that, and which answers are believed. Does not own sums or
the comparison (compare) or the reading (scan). Invariant: what cannot be read a second time is told as not
read, and no difference is named of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tools.verify.core.compare import SUSPECTS_MAX, Suspect, compare
from tools.verify.core.facts import BatchRow, NotRead
from tools.verify.core.findings import Finding
from tools.verify.core.judge import Verdict
from tools.verify.core.outcome import Unchecked, Unread
from tools.verify.core.scan import LookTask
from tools.verify.core.stores import Source
from tools.verify.engines.engine import Engine


class Refined(NamedTuple):
    findings: dict[tuple[str, int], list[Finding]]
    unread: list[Unread]
    unchecked: list[Unchecked]


class _Doubt(NamedTuple):
    verdict: Verdict
    suspect: Suspect
    tasks: range
    """The numbers of its looks."""


def refine(
    engine: Engine, verdicts: Iterable[Verdict], store: Source | None, data: Sequence[Source]
) -> Refined:
    """Return what differs, for each partition of which copies do not agree."""
    tasks: list[LookTask] = []
    doubts: list[_Doubt] = []
    found = Refined(defaultdict(list), [], [])
    for verdict in verdicts:
        for suspect in verdict.suspects[:SUSPECTS_MAX]:
            start = len(tasks)
            for look in suspect.looks:
                source, key = _source_of(look.place, store, data)
                stretch = look.position, look.size, suspect.first, suspect.end
                tasks.append(LookTask(len(tasks), source, look.place, key, *stretch))
            doubts.append(_Doubt(verdict, suspect, range(start, len(tasks))))
        if len(verdict.suspects) > SUSPECTS_MAX:
            place = f"{verdict.topic_id} {verdict.partition}"
            why = (
                f"of {place}, {len(verdict.suspects)} ranges differ; {SUSPECTS_MAX} were compared by batches"
            )
            found.unchecked.append(Unchecked("differences", why))
    seen = engine.look(tasks)
    for doubt in doubts:
        rows: list[BatchRow] = []
        is_whole = True
        for number in doubt.tasks:
            for fact in seen[number]:
                if isinstance(fact, BatchRow):
                    rows.append(fact)
                else:
                    is_whole = False
                    if isinstance(fact, NotRead):
                        found.unread.append(Unread(fact.place, fact.why))
        if is_whole:
            verdict = doubt.verdict
            about = verdict.topic_id, verdict.partition
            found.findings[about] += compare(*about, verdict.chains, doubt.suspect, rows)
    return found


def _source_of(place: str, store: Source | None, data: Sequence[Source]) -> tuple[Source, str]:
    number, colon, key = place.partition(":")
    if colon and number.isdecimal():
        return data[int(number)], key
    assert store is not None
    return store, place
