"""How uploads give way to the clients of the same process.

Owns: whether clients are being served, whose turn it is then, how long an upload rests after a slice of work.
Does not own: quotas (remote.cold.pacing), what is sent in a slice. Invariant: nothing rests and nobody waits
for a turn while no client is served; a wait for a turn ends after TURN_S_MAX, or when the speed that uploads
have to reach would be missed, a rest after REST_S_MAX.

A part of 8 MiB that is read, summed and sent at once takes the cores, and the interpreter, for 30 to 100 ms,
with ten copies at once for much longer: the requests that come meanwhile make the 99th percentile. So beside
clients there is one part under way at a time, in slices, and after each slice a rest three times as long as
it took, whatever it waited for: a busy machine makes the rests longer by itself. It costs a half to three
quarters of the speed meanwhile; what it gained, and how far figures of a busy machine lie apart, is in
BENCHMARKS.md. Slices alone, with ten copies at once, seemed to gain less, and longer rests nothing more.

Uploads must not fall behind what is written for that: a rest, and a wait for a turn, ends where it would go
slower than twice the greater of what the quota allows, if there is one, and of what is being closed. A turn
lasts until the store has answered, which takes a slow one a quarter of a second: parts no larger than a slice
take none, or small segments would leave one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

SLICE_BYTES: Final = 256 << 10
RESTS: Final = 3.0
"""Times as long as the slice."""
REST_S_MAX: Final = 0.1
BUSY_PER_S: Final = 20.0
"""Fewer requests a second are no load: idle consumers and followers ask twice a second each."""
LOOK_EVERY_S: Final = 0.1
TURN_S_MAX: Final = 10.0


def _none() -> int:
    return 0


class Tempo:
    """`served` counts requests of clients. `floor` is the bytes a second that uploads have to reach."""

    def __init__(self) -> None:
        self._served: Callable[[], int] = _none
        self._floor: Callable[[], float] = _none
        self._seen = 0
        self._looked_at = 0.0
        self._is_busy = False
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Tempo {'beside clients' if self._is_busy else 'alone'}>"

    def give_way(self, *, served: Callable[[], int], floor: Callable[[], float]) -> None:
        self._served = served
        self._floor = floor

    def is_busy(self) -> bool:
        """Whether clients have been served in the last tenth of a second or two."""
        now = asyncio.get_running_loop().time()
        elapsed_s = now - self._looked_at
        if elapsed_s >= LOOK_EVERY_S:
            served = self._served()
            self._is_busy = served - self._seen >= BUSY_PER_S * elapsed_s
            self._seen, self._looked_at = served, now
        return self._is_busy

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Have the only turn for so many bytes, if clients are served."""
        is_ours = size > SLICE_BYTES and self.is_busy() and await self._wait_for_turn(size)
        try:
            yield
        finally:
            if is_ours:
                self._turn.release()

    async def rest(self, size: int, took_s: float) -> None:
        """Let the loop do other things after a slice of `size` bytes, for a while if clients are served."""
        rest_s = 0.0
        if self.is_busy():
            rest_s = min(RESTS * took_s, REST_S_MAX)
            floor = 2 * self._floor()
            if floor > 0:
                rest_s = min(rest_s, max(0.0, size / floor - took_s))
        await asyncio.sleep(rest_s)

    async def _wait_for_turn(self, size: int) -> bool:
        """Wait for the turn, but not for ever: what has it may wait for a store that does not answer."""
        floor = 2 * self._floor()
        try:
            async with asyncio.timeout(min(TURN_S_MAX, size / floor) if floor > 0 else TURN_S_MAX):
                await self._turn.acquire()
        except TimeoutError:
            return False
        return True
