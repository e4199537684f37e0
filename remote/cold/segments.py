"""What the brokers say about segments in the cold tier (KIP-405): the copies and the events in their lives.

Owns: `RemoteSegment`, the events, the states and which state may follow which. Does not own: their bytes in
`__remote_log_metadata` (protocol.stored.remote_log), what all events together mean (fold), the objects
themselves (storage_manager). Invariant: a copy has one id, which is never used again; everything but its
state, and when it came to it, is settled with the event that starts it, and what finishes the copy may add
`custom`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID


class SegmentState(IntEnum):
    """Kafka's numbers."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class PartitionState(IntEnum):
    """The steps of a deletion of everything a partition has in the tier; Kafka's numbers."""

    DELETE_MARKED = 0
    DELETE_STARTED = 1
    DELETE_FINISHED = 2


NEXT_STATES: Final[dict[SegmentState | None, frozenset[SegmentState]]] = {
    None: frozenset({SegmentState.COPY_STARTED}),
    SegmentState.COPY_STARTED: frozenset(
        {SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}
    ),
    SegmentState.COPY_FINISHED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED}),
    SegmentState.DELETE_FINISHED: frozenset({SegmentState.DELETE_FINISHED}),
}
"""What may follow a state; None is that of a segment nobody has spoken of. To say a state again changes
nothing."""

NEXT_PARTITION_STATES: Final[dict[PartitionState | None, frozenset[PartitionState]]] = {
    None: frozenset({PartitionState.DELETE_MARKED}),
    PartitionState.DELETE_MARKED: frozenset({PartitionState.DELETE_MARKED, PartitionState.DELETE_STARTED}),
    PartitionState.DELETE_STARTED: frozenset({PartitionState.DELETE_STARTED, PartitionState.DELETE_FINISHED}),
    PartitionState.DELETE_FINISHED: frozenset({PartitionState.DELETE_FINISHED}),
}


class TieredPartition(NamedTuple):
    """A partition by the id of its topic: a topic made anew shares nothing with the one before it."""

    topic_id: UUID
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """One copy of one closed segment, as the event that started it tells."""

    partition: TieredPartition
    topic: str
    """The name at that time; nothing goes by it."""
    id: UUID
    base_offset: int
    end_offset: int
    """The base of the segment after it: past the last offset, gaps that compaction left included. Kafka's
    records name the offset before it."""
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    """When it came to its state."""
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, offset): those with records in the segment; the first starts at `base_offset`."""
    has_aborted: bool
    """Whether its transaction index has entries."""
    state: SegmentState = SegmentState.COPY_STARTED
    custom: bytes | None = None
    """What the storage manager wants to be given again; its length is bounded by a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStarted:
    """Told before the first byte of an object is written: every object has one."""

    segment: RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUpdated:
    partition: TieredPartition
    topic: str
    id: UUID
    state: SegmentState
    broker_id: int
    event_timestamp_ms: int
    custom: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDeletion:
    partition: TieredPartition
    topic: str
    state: PartitionState
    broker_id: int
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartMoved:
    """Told where no copy says it: inside a copy, past the newest one, or when all of them are gone. The
    highest counts."""

    partition: TieredPartition
    topic: str
    log_start: int
    broker_id: int
    event_timestamp_ms: int


TierEvent: TypeAlias = SegmentStarted | SegmentUpdated | PartitionDeletion | LogStartMoved
"""One record of `__remote_log_metadata`."""


def partition_of(event: TierEvent) -> TieredPartition:
    return event.segment.partition if isinstance(event, SegmentStarted) else event.partition
