"""Outcomes made by hand, and one whose every text is hostile."""

from __future__ import annotations

from typing import Any

from tools.verify.core import batches, compare, judge, manifest_rules  # noqa: F401 (they declare codes)
from tools.verify.core.findings import Counted, Finding
from tools.verify.core.outcome import Coverage, Effort, Figures, Outcome, Span, Unchecked, Unread

ID = "AAAAAAAAAAAAAAAAAAAAAQ"
HOSTILE = "<script>alert(1)</script>|`x`\n\x1b[31m\u202e\"'&\ud800 ![a](http://b) @all **x**"


def coverage(*spans: Span, **other: Any) -> Coverage:
    return Coverage(
        ID, **{"topic": "orders", "partition": 0, "log_start": 0, "log_end": 100, "spans": spans, **other}
    )


def outcome(*findings: Finding, **other: Any) -> Outcome:
    fields: dict[str, Any] = {
        "counted": (),
        "coverage": (coverage(Span("local", 0, 100, 5000, 3)),),
        "unread": (),
        "unchecked": (),
        "figures": Figures(1, 2, 3, 4, 5, 6, 7, 8, 9),
        **other,
    }
    return Outcome(findings=tuple(sorted(findings)), **fields)


def hostile_outcome() -> Outcome:
    bad = Finding("bad-crc", ID, 3, 5, 9, HOSTILE, 7, HOSTILE, HOSTILE)
    return outcome(
        bad,
        bad._replace(topic_id=HOSTILE),
        Finding("gap", ID, 3, 5, -1),
        counted=(Counted(HOSTILE, ID, 3, 0, 5, 9),),
        coverage=(
            Coverage(ID, HOSTILE, 3, 2, 40, (Span("local", 2, 40, 10), Span("cold", 2, 9, 10)), ((5, 9),)),
            Coverage(HOSTILE, "", 0, -1, -1),
        ),
        unread=(Unread(HOSTILE, HOSTILE),),
        unchecked=(Unchecked(HOSTILE, HOSTILE),),
        cluster_id=HOSTILE,
        effort=Effort(1.5, 2.5, 3, 4, 5),
    )
