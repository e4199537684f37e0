"""Findings are collapsed to ranges and capped, and nothing that is left off goes uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tools.verify.report.outcomes import HOSTILE, ID, outcome
from tools.verify.core.findings import Counted, Finding, Severity
from tools.verify.core.outcome import Exit, Span, Unread
from tools.verify.report.summary import (
    UNREAD_MAX,
    by_code,
    collapsed,
    offsets_text,
    plain,
    size_text,
    summarize,
)


def at(first: int, end: int, place: str = "p", code: str = "bad-crc") -> Finding:
    return Finding(code, ID, 0, first, end, place)


def test_findings_that_follow_each_other_are_one_row() -> None:
    rows = collapsed([at(0, 5), at(5, 9), at(9, 10), at(11, 12), at(5, 6, "q"), at(0, 5, code="gap")])
    found = [row.finding for row in rows]
    assert [
        (one.code, one.place, one.first, one.end, row.times) for one, row in zip(found, rows, strict=True)
    ] == [
        ("bad-crc", "p", 0, 10, 3),
        ("bad-crc", "q", 5, 6, 1),
        ("bad-crc", "p", 11, 12, 1),
        ("gap", "p", 0, 5, 1),
    ]


def test_what_has_no_offsets_or_no_end_stays_apart() -> None:
    assert len(collapsed([at(-1, -1), at(-1, -1)])) == 2
    assert len(collapsed([at(3, -1), at(4, 5)])) == 2
    assert len(collapsed([at(0, 5)._replace(partition=1), at(5, 9)])) == 2


@given(
    st.lists(
        st.builds(
            lambda first, size, place, code: at(first, first + size, place, code),
            st.integers(0, 30),
            st.integers(1, 5),
            st.sampled_from("pq"),
            st.sampled_from(["bad-crc", "gap"]),
        )
    ),
    st.integers(1, 3),
)
def test_every_finding_is_in_a_row_or_counted_as_left_off(findings: list[Finding], rows_max: int) -> None:
    for code in by_code(findings, rows_max):
        assert code.findings == sum(each.code == code.code for each in findings)
        assert code.findings == sum(row.times for row in code.rows) + code.left_off
        assert len(code.rows) <= rows_max
        named = {offset for row in code.rows for offset in range(row.finding.first, row.finding.end)}
        real = {x for each in findings if each.code == code.code for x in range(each.first, each.end)}
        assert named == real if not code.left_off else named <= real


def test_errors_come_before_warnings() -> None:
    found = summarize(outcome(at(0, 1), at(0, 1, code="gap")), is_strict=False, rows_max=5)
    assert [each.code for each in found.codes] == ["bad-crc", "gap"]
    assert {each.severity for each in found.codes} == {Severity.ERROR}
    assert found.errors == 2 and found.exit_code is Exit.FINDINGS


def test_unread_places_are_capped_and_decide() -> None:
    found = summarize(
        outcome(unread=tuple(Unread(f"{n:04}", "503") for n in range(UNREAD_MAX + 7))),
        is_strict=False,
        rows_max=5,
    )
    assert (len(found.unread), found.unread_left_off) == (UNREAD_MAX, 7)
    assert found.result == "could not finish"


def test_bytes_are_summed_by_tier_and_what_is_counted_by_kind() -> None:
    spans = (Span("local", 0, 9, 10, 2), Span("cold", 0, 5, 7), Span("cold", 6, 9, 4))
    counted = (Counted("aborted", ID, 0, 0, 9, 4), Counted("aborted", ID, 1, 0, 9, 2), Counted("dead"))
    first = outcome(counted=counted)
    found = summarize(
        outcome(counted=counted, coverage=(first.coverage[0]._replace(spans=spans),)),
        is_strict=False,
        rows_max=5,
    )
    assert found.tier_bytes == {"local": 10, "wal": 0, "cold": 11}
    assert [tuple(each) for each in found.counted] == [("aborted", 2, 6), ("dead", 1, 1)]


def test_text_of_others_is_one_printable_line() -> None:
    shown = plain(HOSTILE)
    assert shown.isprintable() and "\\x1b" in shown and "\\u202e" in shown and "\\ud800" in shown
    assert plain("x" * 1000) == "x" * 300 + "… (1000 characters)"


@given(st.text())
def test_any_text_can_be_printed(text: str) -> None:
    plain(text).encode()


def test_sizes_and_offsets() -> None:
    assert [size_text(n) for n in (0, 1, 999, 1000, 1234, 45_678, 999_999, 1_500_000_000)] == [
        "0 bytes", "1 byte", "999 bytes", "1.0 kB", "1.2 kB", "46 kB", "1.0 MB", "1.5 GB",
    ]  # fmt: skip
    assert [offsets_text(*pair) for pair in ((-1, -1), (5, -1), (5, 6), (5, 9))] == ["", "5–", "5", "5–8"]
