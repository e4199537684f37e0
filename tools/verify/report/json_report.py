"""The report for programs: one JSON document, as schema-1.json beside this file describes it.

Owns the document and its version. Does not own what is shown of the findings (summary).
Invariant: the same bytes verified give the same document, whatever engine ran and however long it took;
a change that a reader of version 1 would not survive is a new version with a schema of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tools.verify.core.findings import CODES
from tools.verify.core.outcome import Coverage, Outcome
from tools.verify.report.summary import Row, Summary, summarize

FORMAT: Final = "tidewal-verify-report"
VERSION: Final = 1
ROWS_MAX: Final = 1000
SCHEMA: Final = Path(__file__).with_name(f"schema-{VERSION}.json")
_RESULTS: Final = ("clean", "findings", "unfinished")


def render(outcome: Outcome, *, is_strict: bool) -> str:
    return json.dumps(document(outcome, is_strict=is_strict), indent=1) + "\n"


def document(outcome: Outcome, *, is_strict: bool) -> dict[str, Any]:
    summary = summarize(outcome, is_strict=is_strict, rows_max=ROWS_MAX)
    return {
        "format": FORMAT,
        "version": VERSION,
        "result": _RESULTS[summary.exit_code],
        "exit_code": int(summary.exit_code),
        "is_strict": is_strict,
        "unread": [each._asdict() for each in summary.unread],
        "unread_left_off": summary.unread_left_off,
        "unchecked": [each._asdict() for each in summary.unchecked],
        "cluster_id": outcome.cluster_id,
        "errors": summary.errors,
        "warnings": summary.warnings,
        "figures": outcome.figures._asdict(),
        "findings": [_finding(summary, row) for code in summary.codes for row in code.rows],
        "codes": _codes(summary),
        "counted": [each._asdict() for each in summary.counted],
        "tier_bytes": dict(summary.tier_bytes),
        "coverage": [_coverage(each) for each in outcome.coverage],
    }


def _finding(summary: Summary, row: Row) -> dict[str, Any]:
    found = row.finding
    return {
        "code": found.code,
        "severity": found.severity.value,
        "topic_id": found.topic_id or None,
        "topic": summary.topics.get(found.topic_id),
        "partition": _known(found.partition),
        "first": _known(found.first),
        "end": _known(found.end),
        "place": found.place or None,
        "position": _known(found.position),
        "expected": found.expected,
        "actual": found.actual,
        "times": row.times,
    }


def _codes(summary: Summary) -> list[dict[str, Any]]:
    """Return every code there is: a reader sees what could have been found, too."""
    found = {each.code: each for each in summary.codes}
    return [
        {
            "code": name,
            "severity": code.severity.value,
            "meaning": code.meaning,
            "hint": code.hint,
            "findings": found[name].findings if name in found else 0,
            "left_off": found[name].left_off if name in found else 0,
        }
        for name, code in sorted(CODES.items())
    ]


def _coverage(each: Coverage) -> dict[str, Any]:
    return {
        "topic_id": each.topic_id,
        "topic": each.topic or None,
        "partition": each.partition,
        "log_start": _known(each.log_start),
        "log_end": _known(each.log_end),
        "spans": [span._asdict() for span in each.spans],
        "damaged": [list(part) for part in each.damaged],
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number
