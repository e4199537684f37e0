"""Records of __remote_wal_log_metadata: what the brokers say about objects of the WAL tier (KIP-1176).

Owns: the bytes of KIP-1176's four records and of their keys. The KIP names types and fields and no format:
this one is as that of `remote_log`, a frame (unsigned varints: frame version 1, record type, record version
0) and the fields in Kafka's flexible encoding, its own additions behind those of the KIP. Does not own: the
batches around them (records.py), what they mean (remote.wal). Invariant: what is written reads back, what is
not in the format raises BadRecord, unknown tagged fields are skipped.

A record may speak of a whole stream: its object has the number STREAM_SEQ, which no object ever gets, and no
entries.

A key is one byte 0 (its version), one byte for the type of its records (0 the object, 1 its update, 2 and 3
the same of one slice), then the object's place (node int32, broker epoch int64, generation int32, number
int64), and for types 2 and 3 the topic's id, the partition (int32) and the slice's id. Null values end them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from protocol.errors import MalformedRequest
from protocol.pointers import ObjectPlace
from protocol.primitives import (
    NO_TAGS,
    Buffer,
    pack_count,
    pack_text,
    pack_uvarint,
    read_count,
    read_name,
    read_uuid,
    read_uvarint,
    skip_tags,
)
from protocol.stored.remote_log import pack_custom, read_custom
from protocol.stored.schema import BadRecord

STREAM_SEQ: Final = -1
"""In the place of an object's number: the record is about its stream."""


class SliceEntry(NamedTuple):
    """One slice in an object. The KIP has the id and the two positions."""

    topic_id: UUID
    partition: int
    segment_id: UUID
    start_position: int
    end_position: int
    """Of its last byte, as the KIP counts; −1 for both before it is stored."""
    leader_epoch: int
    start_offset: int
    end_offset: int
    """Exclusive."""


class ObjectRow(NamedTuple):
    """RemoteWalCombinedLogSegmentMetadata, or with `is_update` its Update, which has the same fields."""

    is_update: bool
    combined_id: UUID
    place: ObjectPlace
    entries: tuple[SliceEntry, ...]
    broker_id: int
    event_timestamp_ms: int
    custom: bytes | None
    state: int


class SliceRow(NamedTuple):
    """RemoteWalLogSegmentMetadata, or with `is_update` its Update."""

    is_update: bool
    topic: str
    entry: SliceEntry
    combined_id: UUID
    combined_partition: int
    """Of this topic, which holds what is said of the object."""
    place: ObjectPlace
    broker_id: int
    event_timestamp_ms: int
    custom: bytes | None
    state: int


Row: TypeAlias = ObjectRow | SliceRow


class RowKey(NamedTuple):
    is_update: bool
    place: ObjectPlace
    slice: tuple[UUID, int, UUID] | None
    """Topic id, partition, id of the slice."""


_OBJECT, _SLICE = 0, 2
_PLACE = Struct(">iqIq")
_ENTRY = Struct(">16si16sqqiqq")
_TAGGED_ENTRY = Struct(">16si16sqqiqqB")
"""With its empty section of tagged fields, as `PackedEntry` gives it."""
_EVENT = Struct(">iqb")
_COMBINED = Struct(">16si")
_KEY = Struct(">bb")
_KEY_SLICE = Struct(">16si16s")


def encode_row(row: Row) -> bytes:
    frame = pack_uvarint(1) + pack_uvarint(_kind(row)) + pack_uvarint(0)
    event = _EVENT.pack(row.broker_id, row.event_timestamp_ms, row.state)
    tail = event + pack_custom(row.custom) + NO_TAGS
    match row:
        case ObjectRow():
            entries = b"".join(_pack_entry(entry) + NO_TAGS for entry in row.entries)
            count = pack_count(len(row.entries), flexible=True)
            return frame + row.combined_id.bytes + _PLACE.pack(*row.place) + count + entries + tail
        case SliceRow():
            topic = pack_text(row.topic, flexible=True)
            combined = _COMBINED.pack(row.combined_id.bytes, row.combined_partition)
            return frame + topic + _pack_entry(row.entry) + combined + _PLACE.pack(*row.place) + tail


PackedEntry: TypeAlias = tuple[bytes, int, bytes, int, int, int, int, int]
"""The fields of a SliceEntry, its two ids as bytes."""


def encode_entries(entries: Iterable[PackedEntry]) -> bytes:
    """Encode what may be thousands of entries, ten times as fast as by way of SliceEntry."""
    return b"".join([_TAGGED_ENTRY.pack(*entry, 0) for entry in entries])


def encode_object(
    *,
    is_update: bool,
    combined_id: bytes,
    place: ObjectPlace,
    entries: bytes = b"",
    broker_id: int,
    event_timestamp_ms: int,
    custom: bytes | None = None,
    state: int,
) -> bytes:
    """Encode an ObjectRow whose entries are encoded."""
    return b"".join(
        (
            pack_uvarint(1),
            pack_uvarint(_OBJECT + is_update),
            pack_uvarint(0),
            combined_id,
            _PLACE.pack(*place),
            pack_count(len(entries) // _TAGGED_ENTRY.size, flexible=True),
            entries,
            _EVENT.pack(broker_id, event_timestamp_ms, state),
            pack_custom(custom),
            NO_TAGS,
        )
    )


def decode_row(value: Buffer) -> Row:
    buf = memoryview(value)
    try:
        row, at = _decode(buf)
    except (MalformedRequest, struct.error, IndexError) as error:
        raise BadRecord(f"a record of the WAL tier: {error}") from error
    if at != len(buf):
        raise BadRecord(f"{len(buf) - at} bytes after a record of the WAL tier")
    return row


def _kind(row: Row) -> int:
    return (_OBJECT if isinstance(row, ObjectRow) else _SLICE) + row.is_update


def _decode(buf: memoryview) -> tuple[Row, int]:
    frame, at = read_uvarint(buf, 0)
    kind, at = read_uvarint(buf, at)
    version, at = read_uvarint(buf, at)
    if frame != 1 or version != 0 or kind > _SLICE + 1:
        raise BadRecord(f"a record of the WAL tier in frame {frame}, of type {kind}, version {version}")
    is_update = bool(kind & 1)
    if kind < _SLICE:
        combined_id, at = read_uuid(buf, at)
        place, at = _read_place(buf, at)
        count, at = read_count(buf, at, flexible=True, smallest=_ENTRY.size + 1)
        entries = []
        for _ in range(count):
            entry, at = _read_entry(buf, at)
            entries.append(entry)
            at = skip_tags(buf, at)
        event, at = _read_event(buf, at)
        return ObjectRow(is_update, combined_id, place, tuple(entries), *event), at
    topic, at = read_name(buf, at, flexible=True)
    entry, at = _read_entry(buf, at)
    combined, combined_partition = _COMBINED.unpack_from(buf, at)
    place, at = _read_place(buf, at + _COMBINED.size)
    event, at = _read_event(buf, at)
    return SliceRow(is_update, topic, entry, UUID(bytes=combined), combined_partition, place, *event), at


def _read_place(buf: memoryview, at: int) -> tuple[ObjectPlace, int]:
    return ObjectPlace._make(_PLACE.unpack_from(buf, at)), at + _PLACE.size


def _pack_entry(entry: SliceEntry) -> bytes:
    return _ENTRY.pack(entry.topic_id.bytes, entry.partition, entry.segment_id.bytes, *entry[3:])


def _read_entry(buf: memoryview, at: int) -> tuple[SliceEntry, int]:
    topic_id, partition, segment_id, *numbers = _ENTRY.unpack_from(buf, at)
    entry = SliceEntry._make((UUID(bytes=topic_id), partition, UUID(bytes=segment_id), *numbers))
    return entry, at + _ENTRY.size


def _read_event(buf: memoryview, at: int) -> tuple[tuple[int, int, bytes | None, int], int]:
    broker_id, event_timestamp_ms, state = _EVENT.unpack_from(buf, at)
    custom, at = read_custom(buf, at + _EVENT.size)
    return (broker_id, event_timestamp_ms, custom, state), skip_tags(buf, at)


# --- keys ---


def key_of(row: Row) -> RowKey:
    if isinstance(row, ObjectRow):
        return RowKey(row.is_update, row.place, None)
    entry = row.entry
    return RowKey(row.is_update, row.place, (entry.topic_id, entry.partition, entry.segment_id))


def encode_key(key: RowKey) -> bytes:
    kind = (_OBJECT if key.slice is None else _SLICE) + key.is_update
    out = _KEY.pack(0, kind) + _PLACE.pack(*key.place)
    if key.slice is not None:
        topic_id, partition, segment_id = key.slice
        out += _KEY_SLICE.pack(topic_id.bytes, partition, segment_id.bytes)
    return out


def decode_key(key: Buffer) -> RowKey:
    sizes = {_KEY.size + _PLACE.size: _OBJECT, _KEY.size + _PLACE.size + _KEY_SLICE.size: _SLICE}
    expected = sizes.get(len(key))
    if expected is not None:
        version, kind = _KEY.unpack_from(key)
        if version == 0 and kind in (expected, expected + 1):
            place, at = _read_place(memoryview(key), _KEY.size)
            if expected == _OBJECT:
                return RowKey(kind == _OBJECT + 1, place, None)
            topic_id, partition, segment_id = _KEY_SLICE.unpack_from(key, at)
            return RowKey(
                kind == _SLICE + 1, place, (UUID(bytes=topic_id), partition, UUID(bytes=segment_id))
            )
    raise BadRecord(f"a key of the WAL tier of {len(key)} bytes: {bytes(key[:2]).hex()}")
