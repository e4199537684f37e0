"""A store that misbehaves as real ones do, for tests, simulations and chaos runs.

Owns: errors before the request and after it was done, outages, hangs, latency, short bodies and lists that
lag behind. Does not own when they happen: the profile says how likely each is, and may be changed at any
moment.

Invariant: what the store inside holds changes only by whole operations, and the same random numbers give the
same faults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from remote.store.object_store import Fault, ObjectStore, StoreError
from remote.store.wrapper import Call, StoreWrapper

T = TypeVar("T")

HANG_S_MAX: Final = 10.0


@dataclass(slots=True, kw_only=True)
class FaultProfile:
    """How the store behaves now. Chances are per call; `down` and `hang` are for all of them."""

    latency_min_s: float = 0.0
    latency_max_s: float = 0.0
    error_before_chance: float = 0.0
    error_after_chance: float = 0.0
    hang_chance: float = 0.0
    short_body_chance: float = 0.0
    stale_list_chance: float = 0.0
    down: bool = False
    hang: bool = False
    _hanging: set[asyncio.Future[None]] = field(default_factory=set, repr=False)

    def heal(self) -> None:
        """Everything works again but for the latency; what hangs fails now."""
        self.error_before_chance = self.error_after_chance = self.hang_chance = 0.0
        self.short_body_chance = self.stale_list_chance = 0.0
        self.down = self.hang = False
        for waiter in self._hanging:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_healed(self) -> None:
        """Until `heal`, or until whoever hangs here would have given up."""
        waiter = asyncio.get_running_loop().create_future()
        self._hanging.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=HANG_S_MAX)
        finally:
            self._hanging.discard(waiter)


class FaultyStore(StoreWrapper):
    def __init__(self, inner: ObjectStore, profile: FaultProfile, rng: random.Random) -> None:
        super().__init__(inner)
        self.profile = profile
        self._random = rng

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        if self._hits(self.profile.error_before_chance):
            raise StoreError("503 refused")
        answer = await ask()
        await self._travel()
        if self._hits(self.profile.error_after_chance):
            raise StoreError("the reply was lost", fault=Fault.CONNECTION)
        spoilt: T = self._spoil(answer)
        return spoilt

    async def _travel(self) -> None:
        profile = self.profile
        if profile.latency_max_s:
            await asyncio.sleep(self._random.uniform(profile.latency_min_s, profile.latency_max_s))
        if profile.hang or self._hits(profile.hang_chance):
            await profile.wait_healed()
            raise StoreError("no answer", fault=Fault.TIMEOUT)
        if profile.down:
            raise StoreError("503 the store is down")

    def _spoil(self, answer: Any) -> Any:
        """A short body loses its end; a list that lags behind has not heard of the newest keys."""
        if isinstance(answer, bytes) and answer and self._hits(self.profile.short_body_chance):
            return answer[: self._random.randrange(len(answer))]
        if isinstance(answer, list) and answer and self._hits(self.profile.stale_list_chance):
            return answer[: self._random.randrange(len(answer))]
        return answer

    def _hits(self, chance: float) -> bool:
        """Draws nothing for what cannot happen, so that a new fault does not shift the others."""
        return chance > 0 and self._random.random() < chance
