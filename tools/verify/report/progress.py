"""How far a verification is: a bar on a terminal, otherwise a line now and then.

Owns how progress is told. Does not own when (the engines). Invariant: at most five times a second on a
terminal and once in ten seconds elsewhere; what it wrote on a terminal is gone when it is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

from tools.verify.core.outcome import Progress
from tools.verify.report.summary import plain, size_text

REDRAW_S: Final = 0.2
LINE_S: Final = 10.0
RATE_S: Final = 10.0
"""Over which the rate is taken."""
BAR: Final = 24
_CLEAR: Final = "\r\x1b[K"


class ProgressShown:
    """Is called with each progress; close it at the end."""

    def __init__(self, stream: TextIO, *, is_terminal: bool, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._is_terminal = is_terminal
        self._clock = clock
        self._every_s = REDRAW_S if is_terminal else LINE_S
        now_s = clock()
        self._shown_s = now_s - (REDRAW_S if is_terminal else 0)
        self._phase = ""
        self._samples: deque[tuple[float, int]] = deque(maxlen=1000)

    def __call__(self, progress: Progress) -> None:
        now_s = self._clock()
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._samples.clear()
        self._samples.append((now_s, progress.done_bytes))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= RATE_S:
            self._samples.popleft()
        if now_s - self._shown_s < self._every_s:
            return
        self._shown_s = now_s
        line = self._line(progress)
        self._write(f"{_CLEAR}{line}" if self._is_terminal else f"{line}\n")

    def close(self) -> None:
        if self._is_terminal:
            self._write(_CLEAR)

    def _line(self, progress: Progress) -> str:
        parts = [plain(progress.phase)]
        if progress.all_bytes:
            share = min(1.0, progress.done_bytes / progress.all_bytes)
            if self._is_terminal:
                parts[0] += f" [{'#' * round(BAR * share):-<{BAR}}]"
            done, whole = size_text(progress.done_bytes), size_text(progress.all_bytes)
            parts.append(f"{share:.0%}, {done} of {whole}")
            rate = self._rate()
            if rate > 0:
                parts.append(f"{rate / 1e6:,.0f} MB/s")
                left_s = (progress.all_bytes - progress.done_bytes) / rate
                parts.append(f"{duration_text(max(0.0, left_s))} left")
        elif progress.all_tasks:
            parts.append(f"{progress.done_tasks:,} of {progress.all_tasks:,}")
        if progress.findings:
            parts.append(f"{progress.findings:,} findings")
        return ", ".join(parts)

    def _rate(self) -> float:
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
