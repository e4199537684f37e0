"""What keeps the bytes of tiered segments: KIP-405's RemoteStorageManager, as an interface with coroutines.

Owns: the `StorageManager` interface, what a copy is made of, what it says about itself. Does not
own: any implementation (object_tier is the default, plugins loads others), which segments are copied, what
the brokers know of them (fold), caches.

Invariant: a segment's id is written once and never again, so whatever is read under it may be kept for ever;
a method returns the bytes that were copied or raises, and what it may raise is `StoreError` (ask again, or
somebody must act), `NoSuchObject` and `BadObject`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol
from uuid import UUID

from protocol.checksum import Buffer
from remote.cold.segments import RemoteSegment, TieredPartition

BLOCK_BYTES: Final = 1 << 20
"""Each block of so many bytes of a segment has a checksum in its header: what is fetched by whole blocks can
be checked before it is served."""

Read = Callable[[int, int], Awaitable[Buffer]]
"""Return the bytes [start, end) of the segment; it may be asked again for the same ones."""
Pace = Callable[[int], Awaitable[None]]
"""Wait until so many more bytes may be sent."""


class IndexKind(IntEnum):
    """Kafka's order of its index types."""

    OFFSET = 0
    TIMESTAMP = 1
    PRODUCER_SNAPSHOT = 2
    TRANSACTION = 3
    LEADER_EPOCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentData:
    """The bytes of one closed segment and all that goes with it."""

    size: int
    read: Read
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producers: bytes
    """The producer snapshot at the segment's end."""
    epochs_until_end: tuple[tuple[int, int], ...]
    """(leader epoch, offset) of the whole log before the segment's end."""
    batch_count: int
    crc32c: int
    """Of all bytes of the segment."""
    block_crcs: tuple[int, ...]
    """CRC-32C of each `block_bytes` in turn; the last block may be shorter."""
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """What a copy says about itself, so that a bucket can be read without the brokers that wrote it."""

    cluster_id: str
    partition: TieredPartition
    topic: str
    """The name at that time."""
    segment_id: UUID
    base_offset: int
    end_offset: int
    """Exclusive."""
    broker_id: int
    leader_epoch: int
    """Of the broker that wrote it, when it did."""
    started_ms: int
    """When it began to copy, by its clock."""
    max_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, offset): those with records in the segment."""
    size_bytes: int
    batch_count: int
    crc32c: int
    block_bytes: int
    block_crcs: tuple[int, ...]


def header_of(
    segment: RemoteSegment, data: SegmentData, *, cluster_id: str, leader_epoch: int
) -> SegmentHeader:
    return SegmentHeader(
        cluster_id=cluster_id,
        partition=segment.partition,
        topic=segment.topic,
        segment_id=segment.id,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        broker_id=segment.broker_id,
        leader_epoch=leader_epoch,
        started_ms=segment.event_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
        epochs=segment.epochs,
        size_bytes=data.size,
        batch_count=data.batch_count,
        crc32c=data.crc32c,
        block_bytes=data.block_bytes,
        block_crcs=data.block_crcs,
    )


class StorageManager(Protocol):
    """A segment that is asked for may end before its copy does (`end_offset`, `epochs`), where a log can use
    no more of it; bytes, indexes and header are those of the whole copy."""

    async def copy_segment(
        self, segment: RemoteSegment, data: SegmentData, *, cluster_id: str, leader_epoch: int, pace: Pace
    ) -> bytes | None:
        """Store the segment and its indexes, durable when this returns. `pace` is awaited before each piece.
        Return what the manager wants to find in `segment.custom` from now on, None for nothing. Raise
        SourceChanged (remote.store.upload) when `data.read` gives fewer bytes than it was asked for.

        After a failure or a cancellation some of it may be there, or get there later, until the segment is
        deleted.
        """
        ...

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the segment; fewer only at its end."""
        ...

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        """Return an index in Kafka's bytes, checked; that of the leader epochs is Kafka's checkpoint."""
        ...

    async def fetch_header(self, segment: RemoteSegment) -> SegmentHeader:
        """Return what the copy says about itself, checked to be of this segment."""
        ...

    async def delete_segment(self, segment: RemoteSegment) -> None:
        """Delete what there is of it; it is gone when this returns. It is no error when there is nothing."""
        ...

    def local_path(self, segment: RemoteSegment) -> str | None:
        """Return the file that holds exactly the segment's bytes, None when there is none on this machine."""
        ...

    async def close(self) -> None:
        """Let go of connections and files; nothing may be asked afterwards."""
        ...


class PieceManager(StorageManager, Protocol):
    """What the brokers themselves read from: their own manager, or another one in its guard."""

    async def fetch_pieces(
        self, segment: RemoteSegment, start: int, end: int, *, piece_bytes: int
    ) -> Sequence[Buffer]:
        """Return the bytes [start, end) of the segment in pieces of `piece_bytes`, the last perhaps shorter,
        each in memory of its own; BadObject if there are fewer."""
        ...
