"""Producer ids for the producers of this broker, out of blocks the controller hands out.

Owns: the blocks at hand and asking for the next one in time. Does not own: which broker has which block
(image.py). Invariant: an id is given once; all that wait for a block share one question, and wait for a
bounded time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from broker.control.brokers import PRODUCER_ID_BLOCK
from broker.net.channel import PeerLost
from protocol.errors import ErrorCode, KafkaError


class ProducerIds:
    def __init__(
        self,
        fetch: Callable[[], Awaitable[range]],
        *,
        timeout_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._spawn = spawn
        self._blocks: deque[range] = deque()
        self._fetching: asyncio.Task[None] | None = None
        self._problem: str | None = None

    def __repr__(self) -> str:
        return f"ProducerIds({sum(map(len, self._blocks))} at hand)"

    async def next(self) -> int:
        """Return an id no other producer has; raise COORDINATOR_LOAD_IN_PROGRESS while there is none.

        The next block is asked for while a tenth of this one is left.
        """
        while not self._blocks:
            await self._wait()
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        if sum(map(len, self._blocks)) <= PRODUCER_ID_BLOCK // 10:
            self._fetch_soon()
        return block[0]

    async def _wait(self) -> None:
        done, _ = await asyncio.wait({self._fetch_soon()}, timeout=self._timeout_s)
        if not done or self._problem is not None:
            # Kafka's clients try again after this one; not_controller would be news to a producer.
            raise KafkaError(ErrorCode.coordinator_load_in_progress, self._problem)

    def _fetch_soon(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = self._spawn(self._add())
        return self._fetching

    async def _add(self) -> None:
        self._problem = None
        try:
            self._blocks.append(await self._fetch())
        except (KafkaError, PeerLost) as error:
            # Nothing may be waiting for it: the next id that is missed asks again.
            self._problem = str(error)
