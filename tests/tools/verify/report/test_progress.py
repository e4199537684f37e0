"""Progress is a bar with rate and time left on a terminal, and a line every ten seconds elsewhere."""

from __future__ import annotations

import io

import pytest

from tools.verify.core.outcome import Progress
from tools.verify.report.progress import ProgressShown, duration_text


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_every_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    shown = ProgressShown(stream, is_terminal=False, clock=clock)
    for second in range(35):
        clock.now_s = 100.0 + second
        shown(Progress("scanning", second * 50_000_000, 5_000_000_000, findings=second))
    shown.close()
    lines = stream.getvalue().splitlines()
    assert lines == [
        "scanning, 10%, 500 MB of 5.0 GB, 50 MB/s, 1 min 30 s left, 10 findings",
        "scanning, 20%, 1.0 GB of 5.0 GB, 50 MB/s, 1 min 20 s left, 20 findings",
        "scanning, 30%, 1.5 GB of 5.0 GB, 50 MB/s, 1 min 10 s left, 30 findings",
    ]


def test_a_bar_that_is_drawn_anew_and_goes_away(clock: Clock) -> None:
    stream = io.StringIO()
    shown = ProgressShown(stream, is_terminal=True, clock=clock)
    for tenth in range(11):
        clock.now_s = 100.0 + tenth / 8
        shown(Progress("scanning", tenth * 100, 1000))
    drawn = stream.getvalue().split("\r\x1b[K")[1:]
    assert 5 <= len(drawn) <= 6, "it is drawn five times a second"
    assert drawn[0] == "scanning [------------------------], 0%, 0 bytes of 1.0 kB"
    assert drawn[-1].startswith("scanning [########################], 100%, 1.0 kB of 1.0 kB, ")
    assert "\n" not in stream.getvalue()
    shown.close()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_the_rate_is_that_of_the_last_ten_seconds_of_a_phase(clock: Clock) -> None:
    stream = io.StringIO()
    shown = ProgressShown(stream, is_terminal=False, clock=clock)
    for second in range(60):
        clock.now_s += 1
        shown(Progress("scanning", min(second, 30) * 10_000_000 + max(0, second - 30) * 1_000_000, 10**12))
    assert ", 1 MB/s, " in stream.getvalue().splitlines()[-1]
    for _ in range(11):
        clock.now_s += 1
        shown(Progress("refining", 0, 10**9))
    assert "MB/s" not in stream.getvalue().splitlines()[-1], "nothing of the phase before counts"


def test_without_bytes_tasks_are_told(clock: Clock) -> None:
    stream = io.StringIO()
    shown = ProgressShown(stream, is_terminal=False, clock=clock)
    clock.now_s += 10
    shown(Progress("listing", done_tasks=3, all_tasks=1234))
    assert stream.getvalue() == "listing, 3 of 1,234\n"


def test_durations() -> None:
    assert [duration_text(s) for s in (0.2, 59, 61, 3661)] == ["0 s", "59 s", "1 min 01 s", "1 h 01 min"]
