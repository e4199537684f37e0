"""Markdown and the terminal say the worst first, and no text of others becomes markup."""

from __future__ import annotations

import re

import pytest

from tests.tools.verify.report.outcomes import ID, hostile_outcome, outcome
from tools.verify.core.findings import Finding
from tools.verify.core.outcome import Outcome, Unchecked, Unread
from tools.verify.report.markdown import render, terminal_lines


def markdown(told: Outcome) -> str:
    return render(told, is_strict=False)


def test_what_was_not_checked_comes_first() -> None:
    told = outcome(
        Finding("bad-crc", ID, 0, 5, 9, "0:orders-0/1.log", 7, "00", "01"),
        unread=(Unread("meta/1", "HTTP 503"),),
        unchecked=(Unchecked("sampled", "Half of it."),),
    )
    text = markdown(told)
    at = [text.index(part) for part in ("meta/1", "Not checked", "sampled", "bad-crc: 1", "Checked:")]
    assert at == sorted(at)
    lines = "\n".join(terminal_lines(told, is_strict=False))
    at = [lines.index(part) for part in ("meta/1", "not checked", "sampled", "bad-crc: 1", "checked: ")]
    assert at == sorted(at)
    assert lines.endswith("could not finish: 1 error, 0 warnings")


def test_findings_are_in_a_table_with_a_cap() -> None:
    told = outcome(*(Finding("bad-crc", ID, 0, 2 * n, 2 * n + 1, "p") for n in range(30)))
    text = markdown(told)
    assert "### error bad-crc: 30" in text and "… and 10 more." in text
    assert len(re.findall(r"^\| orders", text, re.MULTILINE)) == 20
    lines = terminal_lines(told, is_strict=False)
    assert "  … and 25 more" in lines
    assert sum(line.startswith("  orders-0, offsets ") for line in lines) == 5


def test_hostile_text_is_never_markup() -> None:
    text = markdown(hostile_outcome())
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    for line in text.splitlines():
        cells = re.sub(r"\\.", "", line)  # without what is escaped
        assert "`" not in cells and "](" not in cells and "<" not in cells
        if cells.startswith("| ") and "---" not in cells:
            assert cells.count("|") in (3, 7), line
    text.encode()


def test_hostile_text_cannot_steer_a_terminal() -> None:
    for line in terminal_lines(hostile_outcome(), is_strict=False):
        assert line.isprintable(), line


@pytest.mark.parametrize(
    ("told", "start"),
    [
        (outcome(), "## ✅ tidewal verify: clean"),
        (outcome(Finding("gap", ID, 0, 1, 2)), "## ❌ tidewal verify: findings"),
        (outcome(unread=(Unread("a", "b"),)), "## ⚠️ tidewal verify: could not finish"),
    ],
)
def test_the_verdict_is_the_headline(told: Outcome, start: str) -> None:
    assert markdown(told).splitlines()[0].startswith(start)
