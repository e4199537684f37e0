"""Who goes next under a quota of the cold tier, for all copies or all reads of a broker (KIP-956).

Owns: the line of those who wait, and what they waited. Does not own: the arithmetic (quota), what the bytes
are. Invariant: they go in the order in which they came, whatever the size of what they ask for; who is
cancelled gives up the place, and the bytes if they were granted already. A changed rate counts within
`_LOOK_AGAIN_S` for those who wait, at once for all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from remote.cold.quota import Quota, Samples

_LOOK_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerStatistics:
    """Over the window of samples."""

    byte_rate: float
    throttled_ms_average: float
    throttled_ms_max: float
    waiting: int


class Pacer:
    def __init__(self, *, rate: Callable[[], int], samples: int, sample_s: float) -> None:
        """`rate` is the quota in bytes a second, asked each time."""
        self._rate = rate
        self._quota = Quota(samples=samples, sample_s=sample_s)
        self._throttled_ms = Samples(samples=samples, sample_s=sample_s)
        self._line: deque[_Turn] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Pacer {len(self._line)} wait, {self._quota}>"

    async def take(self, size: int) -> None:
        """Wait until nothing is owed and nobody is in front; then `size` bytes are owed. So what is larger
        than the quota of a second passes as well, and those behind it wait for it. Callers set deadlines."""
        time = asyncio.get_running_loop().time
        begun = time()
        turn = _Turn(size=size, granted=asyncio.get_running_loop().create_future())
        self._line.append(turn)
        self._serve()
        if turn.granted.done():
            return
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.cancelled():
                self._line.remove(turn)
            else:
                self._quota.refund(size, time(), self._rate())
            self._serve()
            raise
        self._throttled_ms.add((time() - begun) * 1000, time())

    def note(self, size: int) -> None:
        """Owe bytes that were not waited for."""
        self._quota.charge(size, asyncio.get_running_loop().time(), self._rate())

    def is_spent(self) -> bool:
        """Whether whoever asks now would have to wait."""
        return bool(self._line) or self.opens_in() > 0

    def opens_in(self) -> float:
        """Seconds until nothing is owed, if nothing more is."""
        return self._quota.wait_s(asyncio.get_running_loop().time(), self._rate())

    def note_throttled(self) -> None:
        """Count one who was sent away because the quota is spent."""
        self._throttled_ms.add(self.opens_in() * 1000, asyncio.get_running_loop().time())

    def statistics(self) -> PacerStatistics:
        now = asyncio.get_running_loop().time()
        throttled = self._throttled_ms.statistics(now)
        return PacerStatistics(
            byte_rate=self._quota.byte_rate(now),
            throttled_ms_average=throttled.average,
            throttled_ms_max=throttled.max,
            waiting=len(self._line),
        )

    def _serve(self) -> None:
        """Let those go whose turn it is, and look again when it is the next one's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._line:
            if self._line[0].granted.done():
                return  # cancelled; it leaves the line itself and serves again
            wait_s = self._quota.wait_s(loop.time(), self._rate())
            if wait_s > 0:
                self._timer = loop.call_later(min(wait_s, _LOOK_AGAIN_S), self._serve)
                return
            turn = self._line.popleft()
            self._quota.charge(turn.size, loop.time(), self._rate())
            turn.granted.set_result(None)


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn:
    size: int
    granted: asyncio.Future[None]
