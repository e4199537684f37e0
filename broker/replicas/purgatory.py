"""Where requests wait: one timer for all deadlines, and waking in portions.

Owns: deadlines and the order of waking. Does not own: what is waited for (the partition) nor the answer (the
waiter). Invariant: every watched waiter is finished exactly once, by `finish` of its owner or by `expired`
here, and is not held from then on, however far its deadline is; one timer is armed at most, whatever the
number of waiters.

A stored deadline and a direct call cost 0.5 µs a waiter, a future with a time-out 7 to 8. Waking is cut into
portions because a thousand woken consumers with their next requests would hold the loop for 25 ms.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Final

from broker.replicas.partition import Partition

WAKE_PORTION: Final = 32
_SLACK_S: Final = 0.001
_COMPACT_AT: Final = 1024


class Waiter(ABC):
    """Something with a deadline. What ends its wait calls `finish`; then it is not held here any more."""

    __slots__ = ("done", "is_to_wake", "moved", "number", "watched")

    def __init__(self) -> None:
        self.done = False
        self.is_to_wake = False
        self.moved: dict[Partition, None] | None = None
        """Where something happened since it was poked last, if it wants to know."""
        self.number = 0
        self.watched: dict[int, Waiter] = _NOWHERE
        """Where it is found by its number until it is finished."""

    @abstractmethod
    def expired(self) -> None: ...

    def finish(self) -> None:
        self.done = True
        self.watched.pop(self.number, None)

    def poke(self) -> None:
        """Look again: something this waiter waits for may have happened."""
        raise NotImplementedError

    def abandoned(self) -> None:
        """End the wait: the answer is not wanted any more."""
        self.finish()

    def broke(self, error: Exception) -> None:
        """Take a bug in `poke` or `expired`: it must not fail the append that woke this, nor come again."""
        raise error


_NOWHERE: Final[dict[int, Waiter]] = {}


class Purgatory:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int]] = []
        """Deadlines and the numbers of their waiters, some of which are finished."""
        self._watched: dict[int, Waiter] = {}
        self._count = 0
        self._compact_at = _COMPACT_AT
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._wakes: deque[Waiter] = deque()
        self._waking = False

    def __repr__(self) -> str:
        return f"<Purgatory {len(self._watched)} deadlines, {len(self._wakes)} to wake>"

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, waiter: Waiter, wait_s: float) -> None:
        deadline = self._loop.time() + wait_s
        heap = self._heap
        self._count = number = self._count + 1
        waiter.watched, waiter.number = self._watched, number
        self._watched[number] = waiter
        heappush(heap, (deadline, number))
        if len(heap) > self._compact_at:
            self._compact()
        if self._timer is None or deadline < self._armed_for:
            self._arm()

    def wake(self, partition: Partition) -> None:
        """Poke the consumers that wait for data here: some now and the rest in later turns of the loop.

        A waiter still to be poked for an earlier append sees this one too, and stands in line once.
        """
        wakes = self._wakes
        waiter: Any
        for waiter in partition.data_waiters:
            if waiter.moved is not None:
                waiter.moved[partition] = None
            if not waiter.is_to_wake:
                waiter.is_to_wake = True
                wakes.append(waiter)
        if not self._waking:
            self._wake_portion()

    def wake_followers(self, partition: Partition) -> None:
        """Poke followers before any consumer, however many stand in line: producers wait for what they
        fetch."""
        wakes = self._wakes
        waiter: Any
        for waiter in partition.replica_waiters:
            if not waiter.is_to_wake:
                waiter.is_to_wake = True
                wakes.appendleft(waiter)
        if not self._waking:
            self._wake_portion()

    def _wake_portion(self) -> None:
        self._waking = True
        wakes = self._wakes
        try:
            for _ in range(min(len(wakes), WAKE_PORTION)):
                waiter = wakes.popleft()
                waiter.is_to_wake = False
                if not waiter.done:
                    try:
                        waiter.poke()
                    except Exception as error:
                        waiter.broke(error)
        finally:
            if wakes:
                self._loop.call_soon(self._wake_portion)
            else:
                self._waking = False

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = self._heap[0][0]
        self._timer = self._loop.call_at(self._armed_for, self._fire)

    def _fire(self) -> None:
        self._timer = None
        heap, watched = self._heap, self._watched
        due = self._loop.time() + _SLACK_S
        left = WAKE_PORTION
        try:
            while left and heap and (heap[0][0] <= due or heap[0][1] not in watched):
                waiter = watched.pop(heappop(heap)[1], None)
                if waiter is not None:
                    left -= 1
                    try:
                        waiter.expired()
                    except Exception as error:
                        waiter.broke(error)
        finally:
            if heap and self._timer is None:
                self._arm()

    def _compact(self) -> None:
        """Drop the deadlines of finished waiters."""
        self._heap[:] = [entry for entry in self._heap if entry[1] in self._watched]
        heapify(self._heap)
        self._compact_at = max(_COMPACT_AT, 2 * len(self._heap))
