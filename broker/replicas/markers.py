"""End-of-transaction markers on their way into the logs that this broker leads.

Owns: the append of a marker, and one wait for the commit of many. Does not own: which partitions a marker is
for and what is answered (the marker writer), what a log checks of a marker (storage), moving the high
watermark (partition). Invariant: what is staged is written before the loop goes on; a marker without an error
is on every replica in sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from broker.replicas.partition import Partition
from broker.replicas.purgatory import Waiter
from broker.replicas.replica_manager import ReplicaManager
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work, finish
from storage.log import NewMarker

WAITS_PER_STEP: Final = 16

StagedMarker: TypeAlias = tuple[Partition, int, int, ErrorCode]
"""The partition, its leader epoch, the offset that its high watermark must reach, what is answered then."""


class MarkerLogs:
    def __init__(self, *, replicas: ReplicaManager, turns: Turns, now_ms: Callable[[], int]) -> None:
        self._replicas = replicas
        self._turns = turns
        self._now_ms = now_ms

    def stage(self, topic: str, index: int, marker: NewMarker) -> StagedMarker:
        """Append the marker in memory; `write` has to follow before the loop goes on.

        Who asks takes one that is refused as late for one that is there, or of which a newer one is: it waits
        until what is there can be lost no more.
        """
        found = self.check(topic, index, marker)
        found.check_acks_all()
        log = found.log
        try:
            log.append_marker(marker, leader_epoch=found.leader_epoch, now_ms=self._now_ms())
        except KafkaError as error:
            if error.code is not ErrorCode.invalid_producer_epoch:
                raise
            return found, found.leader_epoch, log.log_end_offset, error.code
        self._replicas.touch(found)
        return found, found.leader_epoch, log.log_end_offset, ErrorCode.none

    def check(self, topic: str, index: int, marker: NewMarker) -> Partition:
        """Return the partition; raise KafkaError where it is not led here, and for a marker that is none."""
        found = self._replicas.replica(topic, index)
        if isinstance(found, ErrorCode):
            # Kafka says of every partition that is not here that it is not known
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if not found.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            # what Kafka fails on when it makes the batch
            raise KafkaError(ErrorCode.unknown_server_error, "a marker is of a producer and an epoch")
        return found

    def write(self) -> None:
        """Write what is staged, and wake whoever waits for it."""
        if self._replicas.touched:
            self._replicas.wake(self._replicas.flush())

    async def committed(self, staged: Sequence[StagedMarker], *, timeout_ms: int) -> list[ErrorCode]:
        """Wait until each is on all replicas in sync; return why not, in their order."""
        wait = _CommitOfMany(len(staged), asyncio.get_running_loop())
        work = self._watching(staged, wait)
        if len(staged) < WAITS_PER_STEP:
            finish(work)
        else:
            await self._turns.run(work)
        if wait.is_open:
            self._replicas.purgatory.watch(wait, timeout_ms / 1000)
            try:
                await wait.future
            finally:
                wait.finish()
            await self._turns.run(wait.giving_up())
        return wait.errors

    def _watching(self, staged: Sequence[StagedMarker], wait: _CommitOfMany) -> Work[None]:
        for at, (partition, leader_epoch, needed, code) in enumerate(staged):
            wait.errors[at] = code
            if partition.offline:
                wait.errors[at] = ErrorCode.kafka_storage_error
            elif partition.leader_epoch != leader_epoch or not partition.is_leader:
                # what stands at this offset now may be another leader's
                wait.errors[at] = ErrorCode.not_leader_or_follower
            elif partition.log.high_watermark < needed:
                wait.on(at, partition, needed)
            if at % WAITS_PER_STEP == WAITS_PER_STEP - 1:
                yield
        wait.is_counted = True


class _CommitOfMany(Waiter):
    """The wait of a coroutine for the commit of many appends."""

    __slots__ = ("_open", "errors", "future", "is_counted")

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.errors = [ErrorCode.none] * count
        self.future: asyncio.Future[None] = loop.create_future()
        self.is_counted = False
        """All of them are there."""
        self._open: dict[_OneCommit, None] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def on(self, at: int, partition: Partition, needed: int) -> None:
        commit = _OneCommit(self, at, partition, needed)
        self._open[commit] = None
        partition.wait_committed(commit)

    def ended(self, commit: _OneCommit, error: ErrorCode) -> None:
        if self._open.pop(commit, commit) is commit:
            return
        if error is not ErrorCode.none:
            self.errors[commit.at] = error
        if self.is_counted and not self._open and not self.future.done():
            self.future.set_result(None)

    def expired(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def giving_up(self) -> Work[None]:
        """Wait no longer for what is still open."""
        while self._open:
            commit, _ = self._open.popitem()
            commit.partition.wait_no_more(commit)
            self.errors[commit.at] = ErrorCode.request_timed_out
            if not len(self._open) % WAITS_PER_STEP:
                yield


class _OneCommit:
    __slots__ = ("_owner", "at", "needed", "partition")

    def __init__(self, owner: _CommitOfMany, at: int, partition: Partition, needed: int) -> None:
        self._owner = owner
        self.at = at
        self.partition = partition
        self.needed = needed

    def reached(self) -> None:
        is_enough = self.partition.acks_all_ok
        self._owner.ended(self, ErrorCode.none if is_enough else ErrorCode.not_enough_replicas_after_append)

    def failed(self, code: ErrorCode) -> None:
        self._owner.ended(self, code)
