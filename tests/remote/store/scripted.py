"""A store that does what a script says, in virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from remote.store.memory_store import MemoryStore
from remote.store.object_store import Fault, Operation, StoreError
from remote.store.wrapper import Call, StoreWrapper
from tests.sim.loop import SimLoop

T = TypeVar("T")
NEVER_S = 1e6
DONE, NOT_DONE = True, False


class Scripted(StoreWrapper):
    """A memory store that takes its time, and fails before or after it did what it was asked."""

    def __init__(self) -> None:
        self.bucket = MemoryStore()
        super().__init__(self.bucket)
        self.script: deque[tuple[float, StoreError | None, bool]] = deque()
        self.calls: list[Operation] = []
        self.cancelled = 0

    def will(self, elapsed_s: float = 0.0, error: StoreError | None = None, *, done: bool = DONE) -> None:
        self.script.append((elapsed_s, error, done))

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(call.operation)
        elapsed_s, error, done = self.script.popleft() if self.script else (0.0, None, DONE)
        try:
            outcome = await asyncio.gather(ask(), return_exceptions=True) if done else [None]
            await asyncio.sleep(elapsed_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        failure = error or outcome[0]
        if isinstance(failure, BaseException):
            raise failure
        return outcome[0]  # type: ignore[return-value]


def run(coro: Coroutine[Any, Any, T]) -> T:
    return SimLoop().run(coro)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def passing(fault: Fault = Fault.SERVER) -> StoreError:
    return StoreError("503", fault=fault)
