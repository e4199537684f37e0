"""Deadlines, retries and hedged reads around a store that is far away.

Owns: how long one attempt may take, which failures are retried and when, when a read is sent a second time,
and the bound on each. Does not own the order in which they are put together (remote.store.stores), nor what a
failure means to the caller.

Invariants: every wait ends. A conditional put is sent once: after a failure only its caller, who can read
the key, may send it again; so is the beginning of an upload, whose caller can look for one left over. Extra
requests stay a bounded share of those that were asked for.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from remote.store.metered import StoreStats
from remote.store.object_store import Fault, NoSuchObject, ObjectStore, Operation, StoreError
from remote.store.wrapper import Call, StoreWrapper

T = TypeVar("T")

DEADLINE_S: Final = 10.0
LONG_DEADLINE_S: Final = 120.0
"""The time for all pages of a list, and for a store to put an object together from its parts; the store
itself gives up on an answer that does not begin to come."""
BYTES_PER_S_MIN: Final = 1 << 20
"""A store slower than this with a large object counts as hanging."""

RETRIES_MAX: Final = 3
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
RETRIES_END_S: Final = 5.0
"""No retry begins later than this after the first attempt: the caller has to learn of an outage."""

HEDGE_SHARE: Final = 0.05
HEDGES_SAVED_MAX: Final = 10.0
HEDGE_FIRST_S: Final = 0.25
"""The delay of a hedge before enough latencies are known."""
HEDGE_MIN_S: Final = 0.005
HEDGE_SAMPLES: Final = 200
HEDGE_SAMPLES_MIN: Final = 20
HEDGE_QUANTILE: Final = 0.95

_LONG: Final = frozenset({Operation.LIST, Operation.LIST_UPLOADS, Operation.COMPLETE_UPLOAD})
_ONCE: Final = frozenset({Operation.PUT_IF_ABSENT, Operation.BEGIN_UPLOAD})


class DeadlineStore(StoreWrapper):
    """Give up an attempt that takes too long; whether the store did it is then unknown."""

    def __init__(
        self, inner: ObjectStore, *, limit_s: float = DEADLINE_S, bytes_per_s: int = BYTES_PER_S_MIN
    ) -> None:
        super().__init__(inner)
        self._limit_s = limit_s
        self._bytes_per_s = bytes_per_s

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        is_long = call.operation in _LONG
        limit_s = LONG_DEADLINE_S if is_long else self._limit_s + call.size_bytes / self._bytes_per_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await ask()
        except TimeoutError:
            if not limit.expired():
                raise
            raise StoreError(
                f"{call.operation} {call.key}: no answer within {limit_s:.1f} s", fault=Fault.TIMEOUT
            ) from None


class RetryStore(StoreWrapper):
    """Retry what may be asked twice, after a pause with full jitter."""

    def __init__(self, inner: ObjectStore, *, rng: random.Random, stats: StoreStats) -> None:
        super().__init__(inner)
        self._random = rng
        self._stats = stats

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        if call.operation in _ONCE:
            return await ask()
        time = asyncio.get_running_loop().time
        ends_s = time() + RETRIES_END_S
        for retry in range(RETRIES_MAX):
            try:
                return await ask()
            except StoreError as error:
                pause_s = self._pause_s(retry)
                if error.permanent or time() + pause_s > ends_s:
                    raise
            await asyncio.sleep(pause_s)
            self._stats.retries += 1
        return await ask()

    def _pause_s(self, retry: int) -> float:
        return self._random.uniform(0, min(RETRY_FIRST_S * 2**retry, RETRY_MAX_S))


class HedgePolicy:
    """Decide when a second request is worth it, and whether the budget allows it. Pure."""

    def __init__(self, *, least_s: float = HEDGE_MIN_S) -> None:
        self._least_s = least_s
        self._samples: dict[Operation, deque[float]] = {}
        self._delays_s: dict[Operation, float] = {}
        self._answers = 0
        self._saved = 1.0

    def delay_s(self, operation: Operation) -> float:
        return self._delays_s.get(operation, HEDGE_FIRST_S)

    def note_asked(self) -> None:
        self._saved = min(self._saved + HEDGE_SHARE, HEDGES_SAVED_MAX)

    def may_hedge(self) -> bool:
        """Take the cost of a hedge from the budget; False if it does not allow one."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def note_answer(self, operation: Operation, elapsed_s: float) -> None:
        samples = self._samples.setdefault(operation, deque(maxlen=HEDGE_SAMPLES))
        samples.append(elapsed_s)
        self._answers += 1
        if self._answers % HEDGE_SAMPLES_MIN == 0 and len(samples) >= HEDGE_SAMPLES_MIN:
            ranked = sorted(samples)
            self._delays_s[operation] = max(ranked[int(HEDGE_QUANTILE * len(ranked))], self._least_s)


class HedgedStore(StoreWrapper):
    """Send a second request for a read that takes longer than most; the first answer counts."""

    def __init__(self, inner: ObjectStore, *, stats: StoreStats, policy: HedgePolicy | None = None) -> None:
        super().__init__(inner)
        self._stats = stats
        self._policy = policy or HedgePolicy()

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        if not call.is_read:
            return await ask()
        policy = self._policy
        policy.note_asked()
        first = asyncio.create_task(self._timed(call.operation, ask))
        attempts = {first}
        try:
            await asyncio.wait(attempts, timeout=policy.delay_s(call.operation))
            if not first.done() and policy.may_hedge():
                self._stats.hedges += 1
                attempts.add(asyncio.create_task(self._timed(call.operation, ask)))
            winner = await _first_answer(attempts)
            self._stats.hedges_won += winner is not first
            return winner.result()
        finally:
            await _abandon(attempts)

    async def _timed(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        time = asyncio.get_running_loop().time
        begun_s = time()
        answer = await ask()
        self._policy.note_answer(operation, time() - begun_s)
        return answer


async def _first_answer(attempts: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Return the first attempt that was answered, or a failed one when none is left."""
    pending = attempts
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        answered = next(filter(_has_answered, done), None)
        if answered is not None or not pending:
            return answered or done.pop()


def _has_answered(attempt: asyncio.Task[T]) -> bool:
    error = attempt.exception()
    return error is None or isinstance(error, NoSuchObject)


async def _abandon(attempts: set[asyncio.Task[T]]) -> None:
    late = [attempt for attempt in attempts if not attempt.done()]
    for attempt in late:
        attempt.cancel()
    if late:
        await asyncio.wait(late)
    for attempt in attempts:
        if not attempt.cancelled():
            attempt.exception()
