"""Long work of a task of its own, with room for others.

Owns when such work lets other tasks run. Does not own work of requests, which goes in turns (`broker.turns`).
Invariant: with a call after every small step, such work holds the loop for a slice and one step at most.
"""

from __future__ import annotations

import asyncio
from typing import Final

SLICE_S: Final = 0.001


class Pace:
    """Let other tasks run between slices of long work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slice_end = loop.time() + SLICE_S

    async def yield_if_due(self) -> None:
        if self._loop.time() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = self._loop.time() + SLICE_S
