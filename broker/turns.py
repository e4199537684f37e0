"""Long work in turns: a large request gets a slice of each turn of the loop and never the loop.

Owns: the two queues of all unfinished work of a broker, and how much of it runs per turn of the loop. Does
not own: the work (`protocol.work.Work`, a generator that yields wherever it may be interrupted), nor the
tasks that wait for it. Invariant: however much is in work, all of it together takes at most `SLICE_S` of one
turn of the loop from the queues, and `INLINE_S` where it begins; whoever waits no longer has nothing running.

What the controller, the coordinators and followers need is in a queue of its own (`Turns.own`): as long as it
has anything, every other slice is for it, however many requests of clients are in work, and none is kept from
its turn by it.

Pure parts (protocol, storage, machines) only yield and know nothing of this class.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from broker.at_work import AtWork, Request
from protocol.work import Work

T = TypeVar("T")

SLICE_S: Final = 0.001
"""What runs of the queue per turn of the loop."""
INLINE_S: Final = 0.0005
"""What all work that begins within one turn may run before it is queued; most ends within it."""


_Queue: TypeAlias = "deque[tuple[asyncio.Future[Any], Work[Any], Request | None]]"


class Turns:
    """Runs `Work` for those who wait for it. `elapsed_s` goes on during a turn of the loop; where it stands
    still, `steps` bounds how often work goes on in one slice."""

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, elapsed_s: Callable[[], float], steps: Callable[[], int]
    ) -> None:
        self._loop = loop
        self.at_work: AtWork = AtWork(loop)
        """Whose request the loop works on, also while its work goes on in the queues."""
        self._elapsed_s = elapsed_s
        self._steps = steps
        self._queue: _Queue = deque()
        """What is unfinished, the next first; some of it may be waited for no longer, and is closed then."""
        self._own_queue: _Queue = deque()
        """The same for what is the broker's own."""
        self._is_owns_turn = True
        self.own: Turns = _Own(self)
        """For work of the broker itself."""
        self._is_due = False
        """Whether `_turn` is called in the next turn of the loop."""
        self._inline_s = INLINE_S
        self._inline_steps = steps()

    def __repr__(self) -> str:
        return f"<Turns {len(self._queue)} in work, {len(self._own_queue)} of the broker's own>"

    @property
    def in_work(self) -> int:
        """How much work waits for its next slice."""
        return len(self._queue) + len(self._own_queue)

    async def run(self, work: Work[T]) -> T:
        """Return what it returns or raise what it raises; close it where the caller is cancelled.

        Work that ends within what is left of this turn's share ends without the caller being suspended.
        """
        done = self.begin(work)
        return done[0] if done is not None else await self.go_on(work)

    def begin(self, work: Work[T]) -> tuple[T] | None:
        """Do what this turn's share allows. Return the result if that was all; otherwise `go_on` has to
        follow."""
        if self._inline_s > 0 and self._inline_steps > 0:
            begun = self._elapsed_s()
            until = begun + self._inline_s
            try:
                while self._inline_steps > 0:
                    self._inline_steps -= 1
                    next(work)
                    if self._elapsed_s() >= until:
                        break
            except StopIteration as end:
                return (end.value,)
            finally:
                self._inline_s -= self._elapsed_s() - begun
                self._call_turn()
        return None

    async def go_on(self, work: Work[T]) -> T:
        """Return what it returns in the end, as `run` does; a slice at a time."""
        return await self._go_on(work, self._queue)

    async def _go_on(self, work: Work[T], queue: _Queue) -> T:
        waiting: asyncio.Future[T] = self._loop.create_future()
        queue.append((waiting, work, self.at_work.in_hand()))
        self._call_turn()
        try:
            return await waiting
        finally:
            work.close()
            del waiting  # the error that it may hold would hold this frame

    def _call_turn(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run one slice: of the next work, and of those after it where that ends within the slice."""
        self._is_due = False
        self._inline_s = INLINE_S
        self._inline_steps = steps = self._steps()
        until = self._elapsed_s() + SLICE_S
        while steps > 0 and (queue := self._next_queue()):
            waiting, work, request = queue.popleft()
            if waiting.done():
                continue
            self.at_work.request = request
            try:
                while steps > 0:
                    steps -= 1
                    next(work)
                    if self._elapsed_s() >= until:
                        steps = 0
                queue.append((waiting, work, request))
            except StopIteration as end:
                if not waiting.done():
                    waiting.set_result(end.value)
            except Exception as error:
                if not waiting.done():
                    waiting.set_exception(_without_first_frame(error))
            if self._elapsed_s() >= until:
                steps = 0
        self.at_work.request = None
        if self._queue or self._own_queue:
            self._call_turn()

    def _next_queue(self) -> _Queue:
        """Return whose turn it is; the other one where there is nothing in that."""
        is_own = self._is_owns_turn
        self._is_owns_turn = not is_own
        first, second = (self._own_queue, self._queue) if is_own else (self._queue, self._own_queue)
        return first or second


class _Own(Turns):
    """The broker's own queue of its `Turns`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.at_work = turns.at_work
        self.own = self

    @property
    def in_work(self) -> int:
        return self._turns.in_work

    def begin(self, work: Work[T]) -> tuple[T] | None:
        return self._turns.begin(work)

    async def go_on(self, work: Work[T]) -> T:
        return await self._turns._go_on(work, self._turns._own_queue)

    def __repr__(self) -> str:
        return f"<own of {self._turns!r}>"


def _without_first_frame(error: Exception) -> Exception:
    """Drop the frame that caught it, which holds the future that will hold the error."""
    return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
