"""Events in the lives of copies as records of `__remote_log_metadata`: keys and values.

Owns: which record tells which event, and what ends the records of a copy. Does not own: their bytes
(protocol.stored.remote_log), what they mean together (fold). Invariant: an event decodes to itself, and the
records of one copy, or of one partition's deletion, have keys that nothing else has.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from protocol.primitives import Buffer
from protocol.stored.remote_log import (
    CopyFields,
    DeletionRow,
    RowKey,
    SegmentRow,
    SnapshotRow,
    UpdateRow,
    decode_key,
    decode_row,
    encode_key,
    encode_row,
    key_of,
)
from protocol.stored.schema import BadRecord
from remote.cold.segments import (
    LogStartMoved,
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
    TierEvent,
)

NO_COPY: Final = UUID(int=0)
"""What is told under this id is told of the partition."""
_OFFSET_MAX = (1 << 63) - 1


class Tombstone(NamedTuple):
    """A key with a null value: what its records said is over. `segment_id` None ends the partition's
    deletion."""

    partition: TieredPartition
    segment_id: UUID | None
    is_update: bool = False


def encode_event(event: TierEvent) -> tuple[bytes, bytes]:
    """(key, value)"""
    row = _row(event)
    return encode_key(key_of(row)), encode_row(row)


def decode_event(key: Buffer | None, value: Buffer | None) -> TierEvent | Tombstone:
    """What a record says; BadRecord for one that says nothing. Kafka's records have no key."""
    if value is None:
        if key is None:
            raise BadRecord("a record of the cold tier without key and value")
        named = decode_key(key)
        partition = TieredPartition(named.topic_id, named.partition)
        return Tombstone(partition, named.segment_id, named.is_update)
    row = decode_row(value)
    if isinstance(row, SnapshotRow):
        raise BadRecord("a record of Kafka's snapshot files in a topic")
    if key is not None and bytes(key) != encode_key(key_of(row)):
        raise BadRecord("a record of the cold tier under the key of another")
    return _event(row)


def tombstones(
    partition: TieredPartition, segment_id: UUID | None, *, has_log_start: bool = False
) -> list[bytes]:
    """The keys to write with null values, in this order, once a copy's deletion is finished; `segment_id`
    None: the partition's."""
    if segment_id is None:
        ids = (NO_COPY, None) if has_log_start else (None,)
        return [encode_key(RowKey(partition.topic_id, partition.number, id_, id_ is NO_COPY)) for id_ in ids]
    return [
        encode_key(RowKey(partition.topic_id, partition.number, segment_id, is_update))
        for is_update in (False, True)
    ]


def updated(
    segment: RemoteSegment,
    state: SegmentState,
    *,
    broker_id: int,
    now_ms: int,
    custom: bytes | None = None,
) -> SegmentUpdated:
    """The event that brings a copy to `state`. `custom` is what the storage manager gave when the copy was
    finished; later events carry it on, as compaction leaves the last one only."""
    return SegmentUpdated(
        partition=segment.partition,
        topic=segment.topic,
        id=segment.id,
        state=state,
        broker_id=broker_id,
        event_timestamp_ms=now_ms,
        custom=segment.custom if custom is None else custom,
    )


def _row(event: TierEvent) -> SegmentRow | UpdateRow | DeletionRow:
    match event:
        case SegmentStarted(segment=segment):
            copy = CopyFields(
                segment.base_offset,
                segment.end_offset - 1,
                segment.broker_id,
                segment.max_timestamp_ms,
                segment.event_timestamp_ms,
                segment.epochs,
                segment.size_bytes,
                segment.custom,
                segment.state,
                not segment.has_aborted,
            )
            return SegmentRow(segment.topic, *segment.partition, segment.id, copy)
        case SegmentUpdated():
            return UpdateRow(
                event.topic,
                *event.partition,
                event.id,
                event.broker_id,
                event.event_timestamp_ms,
                event.custom,
                event.state,
            )
        case PartitionDeletion():
            return DeletionRow(
                event.topic, *event.partition, event.broker_id, event.event_timestamp_ms, event.state
            )
        case LogStartMoved():
            return UpdateRow(
                event.topic,
                *event.partition,
                NO_COPY,
                event.broker_id,
                event.event_timestamp_ms,
                None,
                SegmentState.COPY_FINISHED,
                event.log_start,
            )


def _event(row: SegmentRow | UpdateRow | DeletionRow) -> TierEvent:
    partition = TieredPartition(row.topic_id, row.partition)
    try:
        match row:
            case SegmentRow(copy=copy):
                if not 0 <= copy.base_offset <= copy.last_offset < _OFFSET_MAX:
                    raise ValueError(f"a copy of offsets {copy.base_offset} to {copy.last_offset}")
                return SegmentStarted(
                    segment=RemoteSegment(
                        partition=partition,
                        topic=row.topic,
                        id=row.segment_id,
                        base_offset=copy.base_offset,
                        end_offset=copy.last_offset + 1,
                        broker_id=copy.broker_id,
                        max_timestamp_ms=copy.max_timestamp_ms,
                        event_timestamp_ms=copy.event_timestamp_ms,
                        size_bytes=copy.size_bytes,
                        epochs=copy.epochs,
                        has_aborted=not copy.is_txn_index_empty,
                        state=SegmentState(copy.state),
                        custom=copy.custom,
                    )
                )
            case UpdateRow(segment_id=id_, log_start=int() as log_start) if id_ == NO_COPY:
                if log_start < 0:
                    raise ValueError(f"a log start at {log_start}")
                return LogStartMoved(
                    partition=partition,
                    topic=row.topic,
                    log_start=log_start,
                    broker_id=row.broker_id,
                    event_timestamp_ms=row.event_timestamp_ms,
                )
            case UpdateRow():
                return SegmentUpdated(
                    partition=partition,
                    topic=row.topic,
                    id=row.segment_id,
                    state=SegmentState(row.state),
                    broker_id=row.broker_id,
                    event_timestamp_ms=row.event_timestamp_ms,
                    custom=row.custom,
                )
            case DeletionRow():
                return PartitionDeletion(
                    partition=partition,
                    topic=row.topic,
                    state=PartitionState(row.state),
                    broker_id=row.broker_id,
                    event_timestamp_ms=row.event_timestamp_ms,
                )
    except ValueError as error:
        raise BadRecord(f"a record of the cold tier: {error}") from error
