"""Records of __remote_log_metadata: what the brokers say about copies in the cold tier (KIP-405).

Owns: Kafka's four record types byte for byte, and the keys, which are ours: Kafka writes none and keeps every
record, we compact. Does not own: the batches around them (records.py), what they mean (remote.cold).
A value is a frame (unsigned varints: frame version 1, record type, record version 0) and the record's fields.
Invariant: a value is what Kafka 4.3's own serializer writes; what is not in the format raises BadRecord,
unknown tagged fields are skipped.

A key is one byte 0 (its version), one byte for the type of its records (0 the copy, 1 its update, 2 the
partition's deletion), the topic's id (16 bytes), the partition (int32, big-endian), and for types 0 and 1 the
copy's id (16 bytes). So the record that starts a copy and the last that was said of it are kept apart by
compaction. Null values end them: the copy's first, then the update's, so that no prefix shows a copy without
the end it came to. An update of the copy with the id 0, which there is not, tells where the log of the
partition starts, in a tagged field of ours.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple, TypeAlias
from uuid import UUID

from protocol.errors import MalformedRequest
from protocol.primitives import (
    INT32,
    NO_TAGS,
    Buffer,
    pack_count,
    pack_text,
    pack_uvarint,
    read_count,
    read_name,
    read_tag,
    read_uuid,
    read_uvarint,
    skip_tags,
    take,
)
from protocol.stored.schema import BadRecord


class CopyFields(NamedTuple):
    """What is told of a copy."""

    base_offset: int
    last_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]
    size_bytes: int
    custom: bytes | None
    state: int
    is_txn_index_empty: bool


class SegmentRow(NamedTuple):
    """RemoteLogSegmentMetadataRecord: a copy begins."""

    topic: str
    topic_id: UUID
    partition: int
    segment_id: UUID
    copy: CopyFields


class UpdateRow(NamedTuple):
    """RemoteLogSegmentMetadataUpdateRecord: a copy comes to another state. With `log_start`, which Kafka
    skips, it is about no copy."""

    topic: str
    topic_id: UUID
    partition: int
    segment_id: UUID
    broker_id: int
    event_timestamp_ms: int
    custom: bytes | None
    state: int
    log_start: int | None = None


class DeletionRow(NamedTuple):
    """RemotePartitionDeleteMetadataRecord: all that a partition has goes."""

    topic: str
    topic_id: UUID
    partition: int
    broker_id: int
    event_timestamp_ms: int
    state: int


class SnapshotRow(NamedTuple):
    """RemoteLogSegmentMetadataSnapshotRecord: a copy in Kafka's snapshot files; no topic holds any."""

    segment_id: UUID
    copy: CopyFields


Row: TypeAlias = SegmentRow | UpdateRow | DeletionRow | SnapshotRow


class RowKey(NamedTuple):
    """Whom records are about; `segment_id` None is the deletion of the partition."""

    topic_id: UUID
    partition: int
    segment_id: UUID | None
    is_update: bool = False


# --- values ---

_SEGMENT, _UPDATE, _DELETION, _SNAPSHOT = range(4)
_FRAMES = [bytes((1, kind, 0)) for kind in range(4)]
_EXTENT = Struct(">qqiqq")
"""Base offset, last offset, broker, newest timestamp, time of the event."""
_EPOCH = Struct(">iq")
_EVENT = Struct(">iq")
_EVENT_STATE = Struct(">iqb")
_STATE = Struct(">b")
_EPOCH_SIZE_MIN = _EPOCH.size + 1
_TXN_INDEX_EMPTY_TAG = 0
_TXN_INDEX_EMPTY = bytes((1, _TXN_INDEX_EMPTY_TAG, 1, 1))
_LOG_START_TAG = 1000
_LOG_START = Struct(">q")
_LOG_START_HEAD = b"\x01" + pack_uvarint(_LOG_START_TAG) + bytes((_LOG_START.size,))


def encode_row(row: Row) -> bytes:
    """The value as Kafka 4.3 writes it."""
    match row:
        case SegmentRow():
            return b"".join((_FRAMES[_SEGMENT], _pack_segment_id(row), _pack_copy(row.copy)))
        case SnapshotRow():
            return b"".join((_FRAMES[_SNAPSHOT], row.segment_id.bytes, _pack_copy(row.copy)))
        case UpdateRow():
            return b"".join(
                (
                    _FRAMES[_UPDATE],
                    _pack_segment_id(row),
                    _EVENT.pack(row.broker_id, row.event_timestamp_ms),
                    pack_custom(row.custom),
                    _STATE.pack(row.state),
                    NO_TAGS if row.log_start is None else _LOG_START_HEAD + _LOG_START.pack(row.log_start),
                )
            )
        case DeletionRow():
            return b"".join(
                (
                    _FRAMES[_DELETION],
                    _pack_partition(row),
                    _EVENT_STATE.pack(row.broker_id, row.event_timestamp_ms, row.state),
                    NO_TAGS,
                )
            )


def decode_row(value: Buffer) -> Row:
    buf = memoryview(value)
    try:
        row, at = _decode(buf)
    except (MalformedRequest, struct.error, IndexError) as error:
        raise BadRecord(f"a record of the cold tier: {error}") from error
    if at != len(buf):
        raise BadRecord(f"{len(buf) - at} bytes after a record of the cold tier")
    return row


def _decode(buf: memoryview) -> tuple[Row, int]:
    frame, at = read_uvarint(buf, 0)
    kind, at = read_uvarint(buf, at)
    version, at = read_uvarint(buf, at)
    if frame != 1 or version != 0:
        raise BadRecord(f"a record of the cold tier in frame {frame}, version {version}")
    if kind == _SEGMENT:
        topic, topic_id, partition, segment_id, at = _read_segment_id(buf, at)
        copy, at = _read_copy(buf, at)
        return SegmentRow(topic, topic_id, partition, segment_id, copy), at
    if kind == _UPDATE:
        topic, topic_id, partition, segment_id, at = _read_segment_id(buf, at)
        broker_id, event_timestamp_ms = _EVENT.unpack_from(buf, at)
        custom, at = read_custom(buf, at + _EVENT.size)
        (state,) = _STATE.unpack_from(buf, at)
        field, at = read_tag(buf, at + 1, _LOG_START_TAG)
        log_start: int | None = None if field is None else _LOG_START.unpack(field)[0]
        event = (broker_id, event_timestamp_ms, custom, state, log_start)
        return UpdateRow(topic, topic_id, partition, segment_id, *event), at
    if kind == _DELETION:
        topic, topic_id, partition, at = _read_partition(buf, at)
        broker_id, event_timestamp_ms, state = _EVENT_STATE.unpack_from(buf, at)
        deletion = DeletionRow(topic, topic_id, partition, broker_id, event_timestamp_ms, state)
        return deletion, skip_tags(buf, at + _EVENT_STATE.size)
    if kind == _SNAPSHOT:
        segment_id, at = read_uuid(buf, at)
        copy, at = _read_copy(buf, at)
        return SnapshotRow(segment_id, copy), at
    raise BadRecord(f"a record of the cold tier of type {kind}")


def _read_copy(buf: memoryview, at: int) -> tuple[CopyFields, int]:
    base, last, broker_id, max_timestamp_ms, event_timestamp_ms = _EXTENT.unpack_from(buf, at)
    count, at = read_count(buf, at + _EXTENT.size, flexible=True, smallest=_EPOCH_SIZE_MIN)
    epochs = []
    for _ in range(count):
        epochs.append(_EPOCH.unpack_from(buf, at))
        at = skip_tags(buf, at + _EPOCH.size)
    (size_bytes,) = INT32.unpack_from(buf, at)
    custom, at = read_custom(buf, at + INT32.size)
    (state,) = _STATE.unpack_from(buf, at)
    flag, at = read_tag(buf, at + 1, _TXN_INDEX_EMPTY_TAG)
    is_txn_index_empty = flag is not None and flag[0] != 0
    copy = CopyFields(
        base,
        last,
        broker_id,
        max_timestamp_ms,
        event_timestamp_ms,
        tuple(epochs),
        size_bytes,
        custom,
        state,
        is_txn_index_empty,
    )
    return copy, at


def _pack_copy(copy: CopyFields) -> bytes:
    return b"".join(
        (
            _EXTENT.pack(*copy[:5]),
            pack_count(len(copy.epochs), flexible=True),
            *(_EPOCH.pack(epoch, start) + NO_TAGS for epoch, start in copy.epochs),
            INT32.pack(copy.size_bytes),
            pack_custom(copy.custom),
            _STATE.pack(copy.state),
            _TXN_INDEX_EMPTY if copy.is_txn_index_empty else NO_TAGS,
        )
    )


def _pack_segment_id(row: SegmentRow | UpdateRow) -> bytes:
    return _pack_partition(row) + row.segment_id.bytes + NO_TAGS


def _read_segment_id(buf: memoryview, at: int) -> tuple[str, UUID, int, UUID, int]:
    topic, topic_id, partition, at = _read_partition(buf, at)
    segment_id, at = read_uuid(buf, at)
    return topic, topic_id, partition, segment_id, skip_tags(buf, at)


def _pack_partition(row: SegmentRow | UpdateRow | DeletionRow) -> bytes:
    return pack_text(row.topic, flexible=True) + row.topic_id.bytes + INT32.pack(row.partition) + NO_TAGS


def _read_partition(buf: memoryview, at: int) -> tuple[str, UUID, int, int]:
    topic, at = read_name(buf, at, flexible=True)
    topic_id, at = read_uuid(buf, at)
    (partition,) = INT32.unpack_from(buf, at)
    return topic, topic_id, partition, skip_tags(buf, at + INT32.size)


def pack_custom(custom: bytes | None) -> bytes:
    return b"\x00" if custom is None else pack_uvarint(len(custom) + 1) + custom


def read_custom(buf: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = read_uvarint(buf, at)
    if size == 0:
        return None, at
    return take(buf, at, size - 1).tobytes(), at + size - 1


# --- keys ---

_KEY_VERSION = 0
_KEY = Struct(">bb16si")
_KEY_OF_SEGMENT = Struct(">bb16si16s")


def encode_key(key: RowKey) -> bytes:
    if key.segment_id is None:
        return _KEY.pack(_KEY_VERSION, _DELETION, key.topic_id.bytes, key.partition)
    kind = _UPDATE if key.is_update else _SEGMENT
    return _KEY_OF_SEGMENT.pack(_KEY_VERSION, kind, key.topic_id.bytes, key.partition, key.segment_id.bytes)


def decode_key(key: Buffer) -> RowKey:
    if len(key) == _KEY.size:
        version, kind, topic_id, partition = _KEY.unpack(key)
        if version == _KEY_VERSION and kind == _DELETION:
            return RowKey(UUID(bytes=topic_id), partition, None)
    elif len(key) == _KEY_OF_SEGMENT.size:
        version, kind, topic_id, partition, segment_id = _KEY_OF_SEGMENT.unpack(key)
        if version == _KEY_VERSION and kind in (_SEGMENT, _UPDATE):
            return RowKey(UUID(bytes=topic_id), partition, UUID(bytes=segment_id), kind == _UPDATE)
    raise BadRecord(f"a key of the cold tier of {len(key)} bytes: {bytes(key[:2]).hex()}")


def key_of(row: SegmentRow | UpdateRow | DeletionRow) -> RowKey:
    if isinstance(row, DeletionRow):
        return RowKey(row.topic_id, row.partition, None)
    return RowKey(row.topic_id, row.partition, row.segment_id, isinstance(row, UpdateRow))
