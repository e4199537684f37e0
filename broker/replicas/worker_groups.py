"""A few workers for the partitions of one kind of work: each has its turn, and none has two at once.

Owns: the queue, how many run, and the turns that are due later. Does not own: what a turn does, the clock's
timer (the owner asks `due`). Invariant: a partition stands in the queue at most once and runs at most once
at a time; what comes for it while it runs gives it another turn after that; at most `size` turns are under
way, whatever number of partitions waits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkerGroup(Generic[KeyT]):
    """`size` may change at any time; workers beyond it end after their turn."""

    def __init__(
        self,
        name: str,
        *,
        size: Callable[[], int],
        turn: Callable[[KeyT], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.name = name
        self._size = size
        self._turn = turn
        self._spawn = spawn
        self._queue: OrderedDict[KeyT, None] = OrderedDict()
        self._busy: dict[KeyT, bool] = {}
        """Whether each is to have another turn after this one."""
        self._later: list[tuple[float, int, KeyT]] = []
        self._due_at: dict[KeyT, float] = {}
        self._number = 0
        self._workers = 0

    def __repr__(self) -> str:
        return (
            f"<WorkerGroup {self.name}: {len(self._busy)} busy, {len(self._queue)} wait, "
            f"{len(self._due_at)} later>"
        )

    @property
    def size(self) -> int:
        return max(1, self._size())

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def add(self, key: KeyT) -> None:
        """Give it a turn, after those that wait already."""
        self._due_at.pop(key, None)
        if key in self._busy:
            self._busy[key] = True
        elif key not in self._queue:
            self._queue[key] = None
            self._staff()

    def add_at(self, key: KeyT, when: float) -> None:
        """Give it a turn at `when`, unless it has one before."""
        known = self._due_at.get(key)
        if key in self._queue or self._busy.get(key, False) or (known is not None and known <= when):
            return
        self._due_at[key] = when
        self._number += 1
        heapq.heappush(self._later, (when, self._number, key))

    def discard(self, key: KeyT) -> None:
        """It needs no turn any more; one that is under way goes on."""
        self._due_at.pop(key, None)
        self._queue.pop(key, None)
        if key in self._busy:
            self._busy[key] = False

    def due(self, now: float) -> float | None:
        """Queue what is due by now. Return when more is, None if nothing is set for later."""
        while self._later:
            when, _, key = self._later[0]
            if self._due_at.get(key) != when:
                heapq.heappop(self._later)
            elif when <= now:
                heapq.heappop(self._later)
                self.add(key)
            else:
                return when
        return None

    def _staff(self) -> None:
        if self._workers < self.size:
            self._workers += 1
            self._spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._queue and self._workers <= self.size:
                key, _ = self._queue.popitem(last=False)
                self._busy[key] = False
                try:
                    await self._turn(key)
                finally:
                    if self._busy.pop(key):
                        self._queue[key] = None
                await asyncio.sleep(0)
        finally:
            self._workers -= 1
