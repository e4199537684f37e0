"""In which turns of the loop an object is cut.

Owns: how long a cut may hold the loop at a time, and what it took in all. Does not own: the cut (cutter),
what its time does to the interval (combiner). Invariant: a turn ends after TURN_MAX_S of work, and after a
number of slices where the clock does not tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from remote.wal.stats import WalStats

TURN_S: Final = 0.001
"""So long a cut holds the loop at a time."""
TURN_MAX_S: Final = 0.003
TURN_SHARE: Final = 0.05
"""Where others hold it for long between two turns, a turn is longer, in this proportion: a cut of hundreds of
slices would take seconds."""
TURN_SLICES: Final = 64
"""At most so many slices in one turn, where no clock tells."""


class Turns:
    """How long a cut holds the loop, and when it is the others' turn.

    What counts is the time that the cut itself works: where other processes take the processor, slower cuts
    would widen the interval and take no less of it."""

    __slots__ = ("_began_at", "_clock", "_cpu_s", "_stats", "_steps", "_turn_s", "_worked_s", "total_s")

    def __init__(self, clock: Callable[[], float], cpu_s: Callable[[], float], stats: WalStats) -> None:
        self.total_s = 0.0
        self._clock = clock
        self._cpu_s = cpu_s
        self._stats = stats
        self._turn_s = TURN_S
        self.begin()

    def begin(self) -> None:
        self._began_at, self._worked_s = self._clock(), self._cpu_s()
        self._steps = 0

    def end(self) -> None:
        self.total_s += self._cpu_s() - self._worked_s
        self._stats.cut_loop_s.note(self._clock() - self._began_at)

    async def step(self) -> None:
        """Let others run once the turn is over."""
        self._steps += 1
        turn_s = self._turn_s
        if self._steps >= TURN_SLICES * turn_s / TURN_S or self._cpu_s() - self._worked_s >= turn_s:
            await self.over()

    async def over(self) -> None:
        self.end()
        ended_at = self._clock()
        await asyncio.sleep(0)
        self.begin()
        self._turn_s = min(max(TURN_SHARE * (self._began_at - ended_at), TURN_S), TURN_MAX_S)
