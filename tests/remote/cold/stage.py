"""One tiered log with all that copies it and clears it, over parts in memory: the fold and the object tier
are the real ones, the log lies on a disk.

Owns: a stand-in for what brokers agree on, which refuses what the fold does, and a clock. Does not own: turns
and roles (broker). Invariant: an event that was refused changed nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.errors import ErrorCode, KafkaError
from protocol.records import end_txn_marker
from remote.cold.copier import Copier
from remote.cold.expirer import Expirer
from remote.cold.fold import PartitionFold, TierFold
from remote.cold.object_tier import ObjectTier
from remote.cold.removal import Removal
from remote.cold.segments import (
    LogStartMoved,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
    TierEvent,
    partition_of,
)
from remote.cold.storage_manager import BLOCK_BYTES
from remote.cold.tenure import Tenure
from remote.store.memory_store import MemoryStore
from remote.store.tempo import Tempo
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.storage.support import NOW, TOPIC_ID, append, batch_of, log_on

BROKER = 1
TIERED = LogConfig(
    remote_storage_enable=True,
    segment_bytes=400,
    index_interval_bytes=100,
    retention_ms=-1,
    local_retention_ms=-1,
    file_delete_delay_ms=0,
)


class Told:
    """The counters of a topic."""

    def __init__(self) -> None:
        self.remote_copy = self.remote_copy_bytes = self.failed_remote_copy = 0
        self.remote_delete = self.failed_remote_delete = 0


class Agreed:
    """What brokers agree on: every event that is legal, at once."""

    def __init__(self) -> None:
        self.known = TierFold()
        self.events: list[TierEvent] = []
        self.leader_epoch = 0
        """Of the partition's leader: an older one is refused."""
        self.before: Callable[[TierEvent], Any] = lambda event: None
        """Called, and awaited if it can be, before each event."""
        self.loses_answers = False

    def fold(self, partition: TieredPartition) -> PartitionFold | None:
        return self.known.get(partition)

    async def submit(
        self, event: TierEvent, *, leader_epoch: int, expects: SegmentState | None = None
    ) -> None:
        await asyncio.sleep(0)
        waited = self.before(event)
        if waited is not None:
            await waited
        if leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        why = self._other_state(event, expects) or self.known.refusal(event)
        if why is not None:
            raise KafkaError(ErrorCode.invalid_record, why)
        self.known.apply(event)
        self.events.append(event)
        if self.loses_answers:
            raise KafkaError(ErrorCode.request_timed_out)

    def _other_state(self, event: TierEvent, expects: SegmentState | None) -> str | None:
        fold = self.known.get(partition_of(event))
        if isinstance(event, SegmentStarted):
            is_begun = fold is not None and fold.segment(event.segment.id) is not None
            return "the copy is not begun" if expects is not None and not is_begun else None
        if fold is None or expects is None or not isinstance(event, SegmentUpdated):
            return None
        known = fold.segment(event.id)
        is_other = known is not None and known.state not in (expects, event.state)
        return f"the copy is no longer {expects.name}" if is_other else None

    def states(self) -> list[SegmentState]:
        """Of the events, in their order."""
        return [
            event.state if isinstance(event, SegmentUpdated) else SegmentState.COPY_STARTED
            for event in self.events
            if not isinstance(event, LogStartMoved)
        ]


class Unlimited:
    async def take(self, size: int) -> None:
        await asyncio.sleep(0)


class Stage:
    def __init__(self, path: Path, *, config: LogConfig = TIERED, seed: int = 1, **options: Any) -> None:
        self.log: UnifiedLog = log_on(path, config=config, **options)
        self.partition = TieredPartition(TOPIC_ID, 0)
        self.agreed = Agreed()
        self.store = MemoryStore()
        self.storage: Any = ObjectTier(self.store)
        self.tempo = Tempo()
        self.block_bytes = BLOCK_BYTES
        self.now_ms = NOW
        self.time = 1_000.0
        self.quota: Any = Unlimited()
        self.counts = Told()
        self.moved: list[int] = []
        """The log starts that were told."""
        self.live(seed)
        self.tenure = self.lead(0)

    def live(self, seed: int = 2) -> None:
        """A broker's life: what is in memory begins anew."""
        self.removal = Removal(
            broker_id=BROKER, storage=self, metadata=self.agreed, now_ms=self.now, clock=lambda: self.time
        )
        self.copier = Copier(
            broker_id=BROKER,
            cluster_id=lambda: "cluster",
            storage=self,
            metadata=self.agreed,
            removal=self.removal,
            quota=self,
            custom_bytes_max=128,
            now_ms=self.now,
            random=random.Random(seed),
            offload=_offload,
            tempo=self.tempo,
            block_bytes=self.block_bytes,
        )
        self.expirer = Expirer(
            broker_id=BROKER,
            metadata=self.agreed,
            copier=self.copier,
            removal=self.removal,
            now_ms=self.now,
        )

    def lead(self, leader_epoch: int) -> Tenure:
        self.agreed.leader_epoch = leader_epoch
        self.tenure = Tenure(
            partition=self.partition,
            topic="topic",
            log=self.log,
            leader_epoch=leader_epoch,
            began_at=self.time,
            counts=self.counts,
            on_start_moved=lambda: self.moved.append(self.log.log_start_offset),
        )
        return self.tenure

    def now(self) -> int:
        return self.now_ms

    # --- the storage manager and the quota, which a test may replace ---

    async def take(self, size: int) -> None:
        await self.quota.take(size)

    async def copy_segment(self, *args: Any, **options: Any) -> bytes | None:
        custom: bytes | None = await self.storage.copy_segment(*args, **options)
        return custom

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        data: bytes = await self.storage.fetch_segment(segment, start, end)
        return data

    async def fetch_index(self, segment: RemoteSegment, kind: Any) -> bytes:
        data: bytes = await self.storage.fetch_index(segment, kind)
        return data

    async def fetch_header(self, segment: RemoteSegment) -> Any:
        return await self.storage.fetch_header(segment)

    async def delete_segment(self, segment: RemoteSegment) -> None:
        await self.storage.delete_segment(segment)

    def local_path(self, segment: RemoteSegment) -> str | None:
        return None

    async def close(self) -> None:
        pass

    # --- the log ---

    def configure(self, **changes: Any) -> None:
        self.log.set_config(replace(self.log.config, **changes))

    def fill(self, segments: int, *, epoch: int = 0, timestamp: int = NOW) -> None:
        """Append until so many more segments are closed."""
        wanted = self.log.statistics().segments + segments
        while self.log.statistics().segments < wanted:
            append(self.log, batch_of(1, timestamp=timestamp, value_bytes=100), epoch=epoch, now_ms=timestamp)

    def abort(self, producer_id: int = 5) -> None:
        """A transaction that was aborted, in the active segment."""
        append(self.log, batch_of(1, producer=(producer_id, 0, 0), transactional=True), replicated=False)
        marker = end_txn_marker(
            commit=False, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=NOW
        )
        self.log.append_records(bytearray(marker), leader_epoch=0, now_ms=NOW, origin="coordinator")
        self.log.set_high_watermark(self.log.log_end_offset)

    @property
    def fold(self) -> PartitionFold:
        found = self.agreed.fold(self.partition)
        assert found is not None
        return found

    def settle(self) -> None:
        """The end of the tier, as the glue tells the log."""
        log = self.log
        fold = self.agreed.fold(self.partition)
        log.tiered_end = (
            0
            if fold is None
            else fold.chain_end(
                log.epochs, log_start=log.log_start_offset, local_start=log.local_log_start_offset
            )
        )

    async def copy_all(self) -> int:
        """Turns of the copier until nothing is due; the number of segments."""
        before = self.copier.copied
        while True:
            self.settle()
            is_more = await self.copier.copy_next(self.tenure)
            self.settle()
            if not is_more:
                return self.copier.copied - before

    async def expire_all(self) -> None:
        """Turns of the expirer until nothing is left, with the waits between them."""
        for _ in range(100):
            wait_s = await self.expirer.expire(self.tenure)
            self.settle()
            if wait_s is None:
                return
            self.time += wait_s
        raise AssertionError("it never ends")

    async def bytes_in_tier(self) -> bytes:
        """What a reader gets, copy after copy."""
        chain = list(self.fold.chain(self.log.epochs, self.log.log_start_offset))
        return b"".join([await self.storage.fetch_segment(each, 0, each.size_bytes) for each in chain])

    def objects(self) -> list[str]:
        return sorted(self.store.objects)


async def _offload(call: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)
    return call()
