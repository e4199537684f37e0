"""Outcomes: what they exit with, and which ranges they call damaged."""

from __future__ import annotations

import pytest

from tools.verify.core.findings import CODES, Code, Finding, Severity
from tools.verify.core.outcome import Exit, Figures, Outcome, Unread, damaged_ranges


def outcome(*findings: Finding, unread: tuple[Unread, ...] = ()) -> Outcome:
    return Outcome(findings=findings, counted=(), coverage=(), unread=unread, unchecked=(), figures=Figures())


def test_what_could_not_be_read_comes_before_findings() -> None:
    assert outcome().exit_code() is Exit.CLEAN
    assert outcome(unread=(Unread("meta/1", "503"),)).exit_code() is Exit.UNFINISHED


def test_warnings_count_only_where_it_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODES, "mild", Code(Severity.WARNING, "", ""))
    monkeypatch.setitem(CODES, "bad", Code(Severity.ERROR, "", ""))
    mild, bad = Finding("mild"), Finding("bad")
    assert outcome(mild).exit_code() is Exit.CLEAN
    assert outcome(mild).exit_code(is_strict=True) is Exit.FINDINGS
    assert outcome(mild, bad).exit_code() is Exit.FINDINGS
    assert outcome(bad, unread=(Unread("meta/1", "503"),)).exit_code() is Exit.UNFINISHED


@pytest.mark.parametrize(
    ("ranges", "united"),
    [
        ([], ()),
        ([(5, 9), (1, 3)], ((1, 3), (5, 9))),
        ([(1, 3), (3, 9), (2, 4)], ((1, 9),)),
        ([(-1, -1), (4, 4), (6, 7)], ((6, 7),)),
    ],
)
def test_damaged_ranges_are_united(
    ranges: list[tuple[int, int]], united: tuple[tuple[int, int], ...]
) -> None:
    assert damaged_ranges([Finding("gap", "t", 0, *each) for each in ranges]) == united
