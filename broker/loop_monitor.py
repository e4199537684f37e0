"""How long the loop is held: what everybody waits for while one piece of work does not end.

Owns: the measure, the name of what held the loop, and the line in the log. Does not own: turns (turns), the
thread (World). Invariant: nothing is done for a request; a line is written at most once per second.

A timer of the loop is due every `PROBE_S`, and how late it comes is what any request that arrived then waited
for; a loop that sleeps is not late. How much of that the loop's thread was on the processor is counted by
itself: the rest was taken by other processes, or by a disk. While the timer is overdue for `TOLD_FROM_S`,
another thread looks at what the loop is doing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from broker.ports import World

logger = logging.getLogger(__name__)

PROBE_S: Final = 0.02
LOOK_S: Final = 0.05
TOLD_FROM_S: Final = 0.1
_TOLD_EVERY_S: Final = 1.0
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROOT: Final = Path(__file__).parent.parent
_OURS: Final = tuple(f"{_ROOT / name}/" for name in ("broker", "remote", "storage", "protocol"))


class Durations:
    """Counts by `BOUNDS_S`."""

    __slots__ = ("counts", "sum_s", "worst_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.worst_s = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s
        self.worst_s = max(self.worst_s, duration_s)


class LoopMonitor:
    """Between `start` and `stop`, which do nothing where `World.watch` is None."""

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, world: World, request_in: Callable[[FrameType], str | None]
    ) -> None:
        """`request_in` names the request that a frame works on, if it is one of the dispatcher's."""
        self.stalls = Durations()
        """How late the loop came."""
        self.held = Durations()
        """How much of each the loop's thread was on the processor."""
        self._loop = loop
        self._world = world
        self._request_in = request_in
        self._thread_id = threading.get_ident()
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._seen: str | None = None
        self._next_line_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stop_watching: Callable[[], None] | None = None

    def start(self) -> None:
        if self._world.watch is None:
            return
        self._wait()
        self._stop_watching = self._world.watch(LOOK_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._stop_watching is not None:
            self._stop_watching()

    def _wait(self) -> None:
        self._due_s = self._world.elapsed_s() + PROBE_S
        self._cpu_s = self._world.cpu_s()
        self._timer = self._loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        now_s = self._world.elapsed_s()
        late_s = max(now_s - self._due_s, 0.0)
        held_s = min(self._world.cpu_s() - self._cpu_s, late_s)
        self.stalls.add(late_s)
        self.held.add(held_s)
        if late_s >= TOLD_FROM_S and now_s >= self._next_line_s:
            self._next_line_s = now_s + _TOLD_EVERY_S
            logger.warning(
                "the loop was held for %.0f ms, %.0f of them on the processor, by %s",
                late_s * 1000,
                held_s * 1000,
                self._seen or "what nobody saw",
            )
        self._seen = None
        self._wait()

    def _look(self) -> None:
        """See what the loop does if it is overdue; called by another thread."""
        due_s = self._due_s
        if self._seen is None and self._world.elapsed_s() - due_s >= TOLD_FROM_S:
            seen = self._described(sys._current_frames().get(self._thread_id))
            if due_s == self._due_s:
                self._seen = seen

    def _described(self, frame: FrameType | None) -> str:
        """Name the request and the place in our code that this frame and its callers are in."""
        place = request = None
        while frame is not None and request is None:
            code = frame.f_code
            if place is None and code.co_filename.startswith(_OURS):
                file = Path(code.co_filename).relative_to(_ROOT)
                place = f"{file}:{frame.f_lineno} ({code.co_qualname})"
            request = self._request_in(frame)
            frame = frame.f_back
        return f"{request or 'work in the background'}, in {place or 'code that is not ours'}"
