"""Looking up an offset of a partition by time, or by what a special timestamp stands for.

Owns: what ListOffsets may tell, for each isolation level; running what takes long of it. Does not own: the
look-ups in the log (log), which version knows which special timestamp (handlers). Invariant: a client is told
no offset past what it may read, and no end by a leader that does not know yet how much is committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker.ports import Offload
from broker.replicas.partition import Partition
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work
from storage.log import AbstractLog
from storage.prepare import Task
from storage.times import Found, Steps

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
T = TypeVar("T")

UNPACKED_AT_ONCE: Final = 2
"""Batches, which may become 64 MiB each."""
_READ_COMMITTED: Final = 1
_UNKNOWN: Final = (-1, -1, -1)
"""(timestamp, offset, leader epoch) of nothing."""


class LookUps:
    """Runs look-ups by time, which may have to unpack a batch: a few at once, away from the loop."""

    def __init__(self, turns: Turns, offload: Offload) -> None:
        self._turns = turns
        self._offload = offload
        self._room = asyncio.Semaphore(UNPACKED_AT_ONCE)

    def __repr__(self) -> str:
        return f"<LookUps {self._room!r}>"

    async def run(self, steps: Steps[T]) -> T:
        while True:
            step = await self._turns.run(_until_task(steps))
            if isinstance(step, _End):
                return step.result
            async with self._room:
                await self._offload(step.run)


@dataclass(frozen=True, slots=True)
class _End(Generic[T]):
    result: T


def _until_task(steps: Steps[T]) -> Work[Task | _End[T]]:
    """Go on to the next task, or to the end."""
    while True:
        try:
            task = next(steps)
        except StopIteration as end:
            return _End(end.value)
        if task is not None:
            return task
        yield


def finding(partition: Partition, timestamp: int, isolation: int | None) -> Steps[Found]:
    """Find (timestamp, offset, leader epoch) for one of the special timestamps or a real one."""
    held = partition.log
    if timestamp == EARLIEST:
        return _at_offset(partition, held.log_start_offset)
    if timestamp == EARLIEST_LOCAL:
        return _at_offset(partition, held.local_log_start_offset)
    if timestamp == LATEST_TIERED:
        return _at_offset(partition, held.tiered_end - 1) if held.is_tiered and held.tiered_end else _UNKNOWN
    bound = bound_of(partition, isolation)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        pending = _pending_upload(held)
        # Kafka tells followers as little as clients, so that one waits for somebody to produce
        is_told = pending >= 0 and (isolation is None or pending < bound)
        return _at_offset(partition, pending) if is_told else _UNKNOWN
    if timestamp == LATEST:
        if _is_lagging(partition, isolation):
            raise KafkaError(ErrorCode.offset_not_available)
        return -1, bound, partition.leader_epoch
    if timestamp == MAX_TIMESTAMP:
        found = yield from held.finding_max_timestamp()
    else:
        found = yield from held.finding_timestamp(timestamp, bound)
    return answer_of(partition, found, isolation)


def bound_of(partition: Partition, isolation: int | None) -> int:
    """Return where what may be read ends; None is the isolation of a replica, which reads everything."""
    held = partition.log
    if isolation is None:
        return held.log_end_offset
    return held.last_stable_offset if isolation == _READ_COMMITTED else held.high_watermark


def answer_of(
    partition: Partition, found: tuple[int, int, int] | None, isolation: int | None
) -> tuple[int, int, int]:
    """Return what was found, if it may be told."""
    if found is not None and found[1] < bound_of(partition, isolation):
        return found
    if _is_lagging(partition, isolation):
        raise KafkaError(ErrorCode.offset_not_available)
    return _UNKNOWN


def _pending_upload(held: AbstractLog) -> int:
    """Return the first offset that is not in the tier, -1 when that is not known."""
    if not held.is_tiered:
        return -1
    if held.tiered_end:
        return max(held.tiered_end, held.log_start_offset)
    if held.local_log_start_offset == held.log_start_offset:
        return held.log_start_offset
    return -1


def _is_lagging(partition: Partition, isolation: int | None) -> bool:
    """Whether a leader does not know yet how much of what it leads is committed."""
    return isolation is not None and partition.epoch_start > partition.log.high_watermark


def _at_offset(partition: Partition, offset: int) -> tuple[int, int, int]:
    epoch = partition.log.epoch_for_offset(offset)
    return -1, offset, -1 if epoch is None else epoch
