"""What the demo says of a verification, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest

from tools.console import Failure
from tools.demo.steps import judged

FIGURES = {"batches": 1200, "records": 24000, "objects": 7, "files": 5}


def report(result: str, **more: Any) -> dict[str, Any]:
    return {"result": result, "codes": [], "unread": [], "figures": FIGURES, **more}


def test_a_clean_report_is_told_in_figures() -> None:
    assert judged(0, report("clean")) == (
        "clean: 1,200 batches with 24,000 records, all copies, in 12 objects and files"
    )


@pytest.mark.parametrize(
    ("exit_code", "found", "told"),
    [
        (1, report("findings", codes=[{"code": "gap", "findings": 2}]), "says findings: gap 2"),
        (
            2,
            report("unfinished", unread=[{"place": "wal/1", "why": "gone"}]),
            "says unfinished: wal/1: gone",
        ),
        (1, report("clean"), "says clean"),
    ],
)
def test_anything_else_fails_the_demo(exit_code: int, found: dict[str, Any], told: str) -> None:
    with pytest.raises(Failure, match=told):
        judged(exit_code, found)
