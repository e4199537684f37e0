"""Where the good copy of each damaged range is: a plan for whoever repairs, which changes nothing itself.

Owns the plan and its JSON. Does not own which copies there are (the coverage of an outcome) or what is
wrong with one (its findings). Invariant: a place is called good for offsets only if it was read, counts, and
no finding names it there; where there is none, the plan says so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tools.verify.core.findings import CODES, Finding, Severity
from tools.verify.core.lineage import Range, united, without
from tools.verify.core.outcome import Coverage, Holder, Outcome

FORMAT: Final = "tidewal-verify-repair-plan"
VERSION: Final = 1
LIMITLESS: Final = 1 << 62
_RANKS: Final = {"local": 0, "cold": 1, "wal": 2}
"""Of copies that reach equally far, which is named: a segment can be put in place as it is."""


class Repair(NamedTuple):
    """Offsets with one answer."""

    topic_id: str
    topic: str
    partition: int
    first: int
    end: int
    """Exclusive, -1: nobody knows how far it goes."""
    good: Holder | None
    codes: tuple[str, ...]
    bad: tuple[str, ...]
    """Places that findings name within these offsets."""


def plan(outcome: Outcome) -> list[Repair]:
    mine: dict[tuple[str, int], list[Finding]] = defaultdict(list)
    for each in outcome.findings:
        if each.severity is Severity.ERROR and each.topic_id and each.first >= 0:
            mine[each.topic_id, each.partition].append(each)
    coverage = {(each.topic_id, each.partition): each for each in outcome.coverage}
    found: list[Repair] = []
    for (topic_id, partition), findings in sorted(mine.items()):
        known = coverage.get((topic_id, partition), Coverage(topic_id, "", partition, -1, -1))
        found += _of_partition(known, findings, outcome.findings)
    return found


def render(outcome: Outcome) -> str:
    repairs = plan(outcome)
    named = {code for each in repairs for code in each.codes}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "repairs": [_row(each) for each in repairs],
        "hints": {code: CODES[code].hint for code in sorted(named)},
        "without_offsets": [
            {"code": each.code, "place": each.place or None, "hint": CODES[each.code].hint}
            for each in outcome.findings
            if each.severity is Severity.ERROR and not (each.topic_id and each.first >= 0)
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _row(each: Repair) -> dict[str, Any]:
    good = each.good
    return {
        "topic_id": each.topic_id,
        "topic": each.topic or None,
        "partition": each.partition,
        "first": each.first,
        "end": each.end if each.end >= 0 else None,
        "good": None
        if good is None
        else {
            "tier": good.tier,
            "place": good.place,
            "position": good.position if good.position >= 0 else None,
        },
        "codes": list(each.codes),
        "bad": list(each.bad),
    }


def _of_partition(
    coverage: Coverage, findings: Sequence[Finding], all_findings: Iterable[Finding]
) -> list[Repair]:
    known_end = max([coverage.log_end, *(each.end for each in coverage.holders)])
    sound = _sound(coverage, all_findings)
    found: list[Repair] = []
    for first, end in united((each.first, _end_of(each)) for each in findings):
        bounded = max(known_end, first + 1) if end == LIMITLESS else end
        for low, high, good in _covered(first, bounded, sound):
            met = [each for each in findings if each.first < high and low < _end_of(each)]
            is_open = high == bounded and end == LIMITLESS
            found.append(
                Repair(
                    coverage.topic_id,
                    coverage.topic,
                    coverage.partition,
                    low,
                    -1 if is_open else high,
                    good,
                    tuple(sorted({each.code for each in met})),
                    tuple(sorted({each.place for each in met if each.place})),
                )
            )
    return found


def _end_of(finding: Finding) -> int:
    return max(finding.end, finding.first + 1) if finding.end >= 0 else LIMITLESS


def _sound(coverage: Coverage, findings: Iterable[Finding]) -> list[Holder]:
    """Return the holders without what findings name: at their place, or whatever the place."""
    named: dict[str, list[Range]] = defaultdict(list)
    for each in findings:
        if each.severity is not Severity.ERROR:
            continue
        if each.topic_id and (each.topic_id, each.partition) != (coverage.topic_id, coverage.partition):
            continue
        if each.topic_id and each.first >= 0:
            named[each.place].append((each.first, _end_of(each)))
        elif each.place:
            named[each.place].append((0, LIMITLESS))
    return [
        holder._replace(first=first, end=end)
        for holder in coverage.holders
        for first, end in without([(holder.first, holder.end)], [*named[""], *named[holder.place]])
    ]


def _covered(first: int, end: int, sound: Sequence[Holder]) -> Iterable[tuple[int, int, Holder | None]]:
    """Cut a range where another copy has to be taken; as few parts as there can be."""
    at = first
    while at < end:
        here = [each for each in sound if each.first <= at < each.end]
        if here:
            best = min(here, key=lambda each: (-min(each.end, end), _RANKS.get(each.tier, 9), each))
            high = min(best.end, end)
            yield at, high, best
        else:
            high = min([end, *(each.first for each in sound if each.first > at)])
            yield at, high, None
        at = high
