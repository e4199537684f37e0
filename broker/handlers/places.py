"""How many large requests are in work at once.

Owns: the places, and who is next for one. Does not own: what is done in a place (dispatch). Invariant: at
most `count` are taken; who waits is served in the order of coming, and who comes back to end what it began is
served before anybody begins.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Places:
    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0
        self.waiting: deque[asyncio.Future[bool]] = deque()

    def __repr__(self) -> str:
        return f"<Places {self.taken} of {self.count} taken, {len(self.waiting)} wait>"


class Place:
    """One request's claim to a place, which it takes, may give back while it waits for others, and gives
    back in the end."""

    __slots__ = ("_is_taken", "_places", "_waiting")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._is_taken = False
        self._waiting: asyncio.Future[bool] | None = None

    async def take(self) -> bool:
        """Return True with a place, or False when it is wanted no longer."""
        return await self._take(is_back=False)

    async def take_again(self) -> None:
        """Return with a place, before all who had none yet."""
        await self._take(is_back=True)

    @property
    def done(self) -> bool:
        """Whether it does not wait for a place."""
        return self._waiting is None or self._waiting.done()

    def abandoned(self) -> None:
        """Want none any longer, because nobody waits for what would be done in it."""
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(False)

    def give_back(self) -> None:
        """Hand it to the next who still waits; do nothing without one."""
        if not self._is_taken:
            return
        self._is_taken = False
        places = self._places
        while places.waiting:
            waiting = places.waiting.popleft()
            if not waiting.done():
                waiting.set_result(True)
                return
        places.taken -= 1

    async def _take(self, *, is_back: bool) -> bool:
        places = self._places
        if places.taken < places.count:
            places.taken += 1
            self._is_taken = True
            return True
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        if is_back:
            places.waiting.appendleft(waiting)
        else:
            places.waiting.append(waiting)
        try:
            self._is_taken = await waiting
        except asyncio.CancelledError:
            # it may have been given in the same moment
            self._is_taken = waiting.done() and not waiting.cancelled() and waiting.result()
            self.give_back()
            raise
        finally:
            self._waiting = None
        return self._is_taken
