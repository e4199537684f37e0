"""How long the loop is held: what everybody waits for while one piece of work does not end.

Owns: the measure, the name of what held the loop, and the line in the log. Does not own: turns (turns), the
thread (World). Invariant: nothing is done for a request; a line is written at most once per second.

A timer of the loop is due every `PROBE_S`, and how late it comes is what any request that arrived then
waited for; a loop that sleeps is not late. How much of that the loop's thread was on the processor is
counted by itself: the rest was taken by other processes, or by a disk. While the timer is overdue for
`TOLD_FROM_S`, another thread looks at what the loop is doing: it reads the note of the request (at_work),
and the place in the code from a traceback of all threads, which the interpreter writes without making an
object of any frame. A frame of the loop's thread is left alone: to read its variables takes references to
them, and what the loop lets go of meanwhile (handles, futures, coroutines) would be freed by this thread,
which must not do that.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import re
import threading
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from broker.at_work import AtWork
from broker.ports import World

logger = logging.getLogger(__name__)

PROBE_S: Final = 0.02
LOOK_S: Final = 0.05
TOLD_FROM_S: Final = 0.1
_TOLD_EVERY_S: Final = 1.0
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROOT: Final = Path(__file__).parent.parent
_OURS: Final = tuple(f"{_ROOT / name}/" for name in ("broker", "remote", "storage", "protocol"))
_FRAME: Final = re.compile(r'  File "(.+)", line (\d+) in (.+)')


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

    def __init__(self, *, loop: asyncio.AbstractEventLoop, world: World, at_work: AtWork) -> None:
        self.stalls = Durations()
        """How late the loop came."""
        self.held = Durations()
        """How much of each the loop's thread was on the processor."""
        self._loop = loop
        self._world = world
        self._at_work = at_work
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
            seen = self._described()
            if due_s == self._due_s:
                self._seen = seen

    def _described(self) -> str:
        """Name the request that is in hand, and the place in our code."""
        request = self._at_work.name()
        return f"{request or 'work in the background'}, in {self._place() or 'code that is not ours'}"

    def _place(self) -> str | None:
        try:
            with TemporaryFile() as written:
                faulthandler.dump_traceback(written, all_threads=True)
                written.seek(0)
                text = written.read().decode(errors="replace")
        except OSError:  # no descriptor is left, or the disk is full
            return None
        return place_in(text, self._thread_id)


def place_in(traceback: str, thread_id: int) -> str | None:
    """Return the innermost place of a thread in our code, of a traceback of all threads."""
    _, _, rest = traceback.partition(f"hread 0x{thread_id:016x} ")
    for line in rest.split("\n\n")[0].splitlines():
        frame = _FRAME.match(line)
        if frame is not None and frame[1].startswith(_OURS):
            return f"{Path(frame[1]).relative_to(_ROOT)}:{frame[2]} ({frame[3]})"
    return None
