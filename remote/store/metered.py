"""Counters of what a store is asked and how it answers.

Owns: the numbers, one StoreStats for all wrappers of one store, and the wrapper that takes most of them.
Does not own how they are shown (broker.admin.metrics, tools).
Invariant: every call that reaches the store inside is counted once, and once more by its answer or its fault,
unless it was given up before; counting is an addition and never waits.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from remote.store.object_store import (
    NoSuchObject,
    NoSuchUpload,
    ObjectStore,
    Operation,
    PutResult,
    StoreError,
)
from remote.store.wrapper import Call, StoreWrapper

T = TypeVar("T")

LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNKNOWN_OUTCOME: Final = "unknown"
"""The label of a conditional put whose reply was lost: it is neither an error nor an answer."""
_WRITES: Final = frozenset({Operation.PUT, Operation.PUT_PART})


class StoreStats:
    def __init__(self) -> None:
        self.requests: Counter[Operation] = Counter()
        self.errors: Counter[tuple[Operation, str]] = Counter()
        """Failed calls by operation and fault."""
        self.latency_counts = {operation: [0] * (len(LATENCY_BOUNDS_S) + 1) for operation in Operation}
        """Answers by the first bound they do not exceed; the last number is of those that exceed all."""
        self.latency_sums_s = dict.fromkeys(Operation, 0.0)
        self.bytes_read = 0
        self.bytes_written = 0
        self.retries = 0
        self.hedges = 0
        self.hedges_won = 0

    def __repr__(self) -> str:
        return f"StoreStats({self.requests.total()} requests, {self.errors.total()} errors)"

    def note_answer(self, operation: Operation, elapsed_s: float) -> None:
        self.latency_counts[operation][bisect_left(LATENCY_BOUNDS_S, elapsed_s)] += 1
        self.latency_sums_s[operation] += elapsed_s


class MeteredStore(StoreWrapper):
    def __init__(self, inner: ObjectStore, stats: StoreStats) -> None:
        super().__init__(inner)
        self.stats = stats

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        stats, operation = self.stats, call.operation
        stats.requests[operation] += 1
        time = asyncio.get_running_loop().time
        begun_s = time()
        try:
            answer = await ask()
        except (NoSuchObject, NoSuchUpload):
            stats.note_answer(operation, time() - begun_s)
            raise
        except StoreError as error:
            stats.errors[operation, error.fault] += 1
            raise
        if answer is PutResult.UNKNOWN:
            stats.errors[operation, UNKNOWN_OUTCOME] += 1
            return answer
        stats.note_answer(operation, time() - begun_s)
        if isinstance(answer, bytes):
            stats.bytes_read += len(answer)
        elif operation is Operation.GET_RANGE and isinstance(answer, Sequence):
            stats.bytes_read += sum(map(len, answer))
        elif operation in _WRITES or answer is PutResult.WON:
            stats.bytes_written += call.size_bytes
        return answer
