"""A tier for the brokers of `Replicas`: real copies in a store in memory, and one fold that all of them see.

Owns: copying closed segments, deleting them locally, what the fold's readers wait for, and an object store
that can be away. Does not own: the copier, the expirer or the metadata topic; the tests say when something is
copied. Invariant: a copy is in the fold once both of its objects are in the store.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from broker.replicas.restore import Restores, TierView
from protocol.checksum import crc32c
from remote.cold.fold import PartitionFold, TierFold
from remote.cold.object_tier import ObjectTier
from remote.cold.segments import RemoteSegment, SegmentStarted, SegmentState, SegmentUpdated, TieredPartition
from remote.cold.storage_manager import IndexKind, SegmentData
from remote.store.memory_store import MemoryStore
from remote.store.object_store import StoreError
from storage.unified_log import UnifiedLog
from tests.broker.replication_driver import Node, Replicas

BLOCK_BYTES = 64


class Storage(ObjectTier):
    """The storage manager, which may be away or hang, and tells what was read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.is_away = False
        self.hangs = False
        self.read: list[tuple[int, IndexKind]] = []

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        self.read.append((segment.base_offset, kind))
        while self.hangs:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.05)
        if self.is_away:
            raise StoreError("503")
        return await super().fetch_index(segment, kind)


class Metadata:
    """What one broker knows of the tier."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.known: TierFold | None = None
        """What it knows while it is behind; None: everything."""
        self.waits = 0

    def fold(self, partition: TieredPartition) -> PartitionFold | None:
        return (self._tier.fold if self.known is None else self.known).get(partition)

    def renew(self, partition: TieredPartition) -> None:
        self.waits += 1

    async def wait_caught_up(self, partition: TieredPartition) -> None:
        while self._tier.is_metadata_away:  # noqa: ASYNC110 - a broker waits for this, in virtual time
            await asyncio.sleep(0.05)
        self.known = None


class Tier:
    def __init__(self, world: Replicas) -> None:
        self.world = world
        self.fold = TierFold()
        self.storage = Storage()
        self.is_metadata_away = False
        self.metadata: dict[int, Metadata] = {}
        self.restores: dict[int, Restores] = {}
        self._number = 0
        world.on_build.append(self.attach)

    def attach(self, node: Node) -> None:
        metadata = self.metadata[node.id] = Metadata(self)
        view: TierView = metadata
        restores = self.restores[node.id] = Restores(
            node_id=node.id,
            metadata=view,
            storage=self.storage,
            config=lambda: node.member.broker_config,
            spawn=node.components.background.spawn,
            is_tier_there=lambda: True,
        )
        node.fetchers.restores = restores
        node.replicas.restorer = restores
        node.replicas.on_role.append(restores.role_changed)
        restores.start()

    # --- copies ---

    async def copy(self, node_id: int, *, topic: str = "t", end: int | None = None) -> list[RemoteSegment]:
        """Copy what this node has closed, up to `end`, and let it know."""
        held = self.log(node_id, topic)
        copies = [
            await self._copy(node_id, topic, closed.base_offset)
            for closed in held.closed_segments(held.tiered_end, held.log_end_offset if end is None else end)
        ]
        self.tell(node_id, topic)
        return copies

    async def _copy(self, node_id: int, topic: str, base: int) -> RemoteSegment:
        partition = self.world.nodes[node_id].partition(topic=topic)
        held = self.log(node_id, topic)
        steps = held.producers_until(next(s.end_offset for s in held.closed_segments(base, 1 << 60)))
        while True:
            try:
                next(steps)
            except StopIteration as found:
                producers: bytes = found.value
                break
        with held.open_segment(base) as open_:
            data = open_.file.pread(open_.size, 0)

            async def read(start: int, end: int) -> bytes:
                return data[start:end]

            self._number += 1
            segment = RemoteSegment(
                partition=TieredPartition(partition.topic_id, 0),
                topic=topic,
                id=UUID(int=self._number),
                base_offset=base,
                end_offset=open_.segment.end_offset,
                broker_id=node_id,
                max_timestamp_ms=open_.segment.max_timestamp,
                event_timestamp_ms=self.world.now_ms(),
                size_bytes=open_.size,
                epochs=tuple(open_.epochs),
                has_aborted=open_.segment.has_aborted,
            )
            blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
            segment_data = SegmentData(
                size=open_.size,
                read=read,
                offset_index=open_.offset_index,
                time_index=open_.time_index,
                txn_index=open_.txn_index,
                producers=producers,
                epochs_until_end=tuple(open_.epochs_until_end),
                batch_count=0,
                crc32c=crc32c(data),
                block_crcs=tuple(crc32c(block) for block in blocks),
                block_bytes=BLOCK_BYTES,
            )
            await self.storage.copy_segment(
                segment, segment_data, cluster_id="c", leader_epoch=0, pace=_at_once
            )
        self.fold.apply(SegmentStarted(segment=segment))
        self.fold.apply(updated(segment, SegmentState.COPY_FINISHED))
        return replace(segment, state=SegmentState.COPY_FINISHED)

    def tell(self, node_id: int, topic: str = "t") -> None:
        """Let a node see what of its log is in the tier."""
        held = self.log(node_id, topic)
        partition = self.world.nodes[node_id].partition(topic=topic)
        fold = self.fold.get(TieredPartition(partition.topic_id, 0))
        if fold is not None:
            local_start = held.local_log_start_offset
            end = fold.chain_end(held.epochs, log_start=held.log_start_offset, local_start=local_start)
            held.tiered_end = min(end, held.log_end_offset)

    async def free(self, node_id: int, topic: str = "t") -> None:
        """Delete locally all that is in the tier, once the log start is on the disk."""
        node, held = self.world.nodes[node_id], self.log(node_id, topic)
        is_done = False
        while not is_done:
            is_done = not node.here(held.free_tiered, self.world.now_ms()) and held.is_start_named
            await asyncio.sleep(0.01)

    def roll(self, node_id: int, topic: str = "t") -> None:
        held = self.log(node_id, topic)
        self.world.nodes[node_id].here(held.roll, held.log_end_offset, self.world.now_ms())

    def log(self, node_id: int, topic: str = "t") -> UnifiedLog:
        held = self.world.nodes[node_id].partition(topic=topic).log
        assert isinstance(held, UnifiedLog)
        return held


def updated(segment: RemoteSegment, state: SegmentState) -> SegmentUpdated:
    return SegmentUpdated(
        partition=segment.partition,
        topic=segment.topic,
        id=segment.id,
        state=state,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
    )


async def _at_once(_: int) -> None:
    return
