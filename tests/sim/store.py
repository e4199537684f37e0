"""Owns the bucket of a simulation: one MemoryStore that outlives every process, seen through a bad line.

Each process has its own view with latency, outages, hangs, and the case that matters most: done, but the
reply was lost. A request that was under way when its process died may still take effect. Does not own what
the objects mean.

Invariant: what the bucket holds changes only by whole puts and deletes, and a lost reply is UNKNOWN, never
LOST or WON.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from remote.object_store import MemoryStore, PutResult, StoreError
from tests.sim.loop import Process, SimLoop

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0


@dataclass(slots=True)
class StoreProfile:
    """How the store behaves now; the scenario changes it while running."""

    latency_min_s: float = 0.0005
    latency_max_s: float = 0.01
    error_before_chance: float = 0.0
    error_after_chance: float = 0.0
    down: bool = False
    hang: bool = False
    released: list[asyncio.Future[None]] = field(default_factory=list)

    def heal(self) -> None:
        self.error_before_chance = self.error_after_chance = 0.0
        self.down = self.hang = False
        waiting, self.released = self.released, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class SimStore:
    """The ObjectStore seam of one process."""

    def __init__(
        self, loop: SimLoop, bucket: MemoryStore, profile: StoreProfile, rng: random.Random, process: Process
    ) -> None:
        self._loop = loop
        self._bucket = bucket
        self._profile = profile
        self._rng = rng
        self._process = process

    async def get(self, key: str) -> bytes:
        return await self._ask(lambda: self._bucket.get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._ask(lambda: self._bucket.get_range(key, start, end))

    async def list(self, prefix: str, *, after: str = "") -> list[str]:
        return await self._ask(lambda: self._bucket.list(prefix, after=after))

    async def put(self, key: str, data: bytes) -> None:
        await self._change("put", key, lambda: self._bucket.put(key, bytes(data)))

    async def delete(self, key: str) -> None:
        await self._change("delete", key, lambda: self._bucket.delete(key))

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        try:
            result = await self._change(
                "put-if-absent", key, lambda: self._bucket.put_if_absent(key, bytes(data))
            )
        except StoreError:
            return PutResult.UNKNOWN
        return result

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        self._process.check_alive()
        await self._travel()
        self._maybe_fail(self._profile.error_before_chance, "refused")
        result = await call()
        await self._travel()
        return result

    async def _change(self, kind: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        """The effect happens outside the caller's process, so that its death does not undo a request that
        had left."""
        self._process.check_alive()
        if self._profile.down or self._profile.hang:
            await self._travel()
        self._maybe_fail(self._profile.error_before_chance, "refused")
        done: asyncio.Future[Any] = self._loop.create_future()

        def take_effect() -> None:
            outcome = _run_now(call)
            self._loop.trace("store", kind, key)
            if not done.done():
                done.set_result(outcome)

        self._loop.call_later(self._latency(), take_effect, context=contextvars.Context())
        result = await done
        await self._travel()
        self._maybe_fail(self._profile.error_after_chance, "the reply was lost")
        return result

    async def _travel(self) -> None:
        await asyncio.sleep(self._latency())
        if self._profile.hang:
            waiter = self._loop.create_future()
            self._profile.released.append(waiter)
            await asyncio.wait([waiter], timeout=CALL_TIMEOUT_S)
            raise StoreError("deadline passed")
        if self._profile.down:
            raise StoreError("503 the store is down")

    def _maybe_fail(self, chance: float, why: str) -> None:
        if chance and self._rng.random() < chance:
            raise StoreError(why)

    def _latency(self) -> float:
        profile = self._profile
        return profile.latency_min_s + self._rng.random() * (profile.latency_max_s - profile.latency_min_s)


def _run_now(call: Callable[[], Awaitable[T]]) -> T:
    """A MemoryStore call never waits: run it to its end."""
    coroutine: Any = call()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a MemoryStore call waited")
