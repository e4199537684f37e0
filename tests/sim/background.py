"""Owns what the threads of one broker do, in virtual time: jobs take a while, and may be held.

A hold keeps a job between its effect and the report of it: a sync that is done and not yet known to be, a
checkpoint that is on the disk and not yet believed; or before its effect, as by a disk that hangs. Whoever
changes its mind meanwhile must not be fooled by what it hears afterwards. Does not own when there is a hold
(nemesis.py).

Invariant: a job runs once, and what it returned or raised is reported once, when it is let go; a job of a
process that died is never heard of again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from tests.sim.loop import SimLoop

T = TypeVar("T")

LONGEST_S = 0.003
SLOW_S = 1.0
"""A disk that is busy: two syncs of one log may then overlap and end in either order."""
SLOW_CHANCE = 0.1
BEFORE_CHANCE = 0.3
"""That a held job waits before its effect, and not after it."""


class Hold:
    """What one broker's jobs wait for."""

    def __init__(self, loop: SimLoop, name: str, rng: random.Random) -> None:
        self._loop = loop
        self._name = name
        self._rng = rng
        self._waiting: list[asyncio.Future[None]] = []
        self.is_on = False

    def begin(self) -> None:
        self.is_on = True
        self._loop.trace("hold", self._name)

    def let_go(self) -> None:
        """In any order."""
        self.is_on = False
        waiting, self._waiting = self._waiting, []
        self._rng.shuffle(waiting)
        if waiting:
            self._loop.trace("let go", self._name, len(waiting))
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def is_before(self) -> bool:
        return self._rng.random() < BEFORE_CHANCE

    async def wait(self, when: str) -> None:
        self._loop.trace("held", self._name, when)
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter


class Background:
    """The threads of one life."""

    def __init__(self, hold: Hold, rng: random.Random) -> None:
        self._hold = hold
        self._rng = rng

    async def run(self, call: Callable[[], T]) -> T:
        rng, hold = self._rng, self._hold
        slowest_s = SLOW_S if rng.random() < SLOW_CHANCE else LONGEST_S
        await asyncio.sleep(rng.random() * slowest_s)
        if hold.is_on and hold.is_before():
            await hold.wait("before")
        try:
            return call()
        finally:
            if hold.is_on:
                await hold.wait("after")
