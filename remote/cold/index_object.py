"""The `.idx` object of a tiered segment: what the segment is, its checksums, its indexes in Kafka's bytes.

Owns: the layout, one version of it, and every check that needs no other object. Does not own: the key
(remote.keys), the bytes of the indexes, fetching. FORMAT.md tells others the same: both change with the
version alone.

Invariant: whatever the bytes, reading gives what was written or BadObject. The head has a checksum of its
own and comes first, so one ranged read tells everything but the indexes, and where each of them lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from protocol.checksum import Buffer, crc32c
from remote.bad_object import BadObject
from remote.cold.segments import RemoteSegment, TieredPartition
from remote.cold.storage_manager import (
    IndexKind,
    SegmentHeader,
)

MAGIC: Final = b"TWIX"
VERSION: Final = 1
HEAD_READ_BYTES: Final = 64 << 10
"""Asked for first. A head with one epoch and 2 GiB in blocks of 1 MiB takes 8.5 KiB."""
HEAD_BYTES_MAX: Final = 4 << 20
"""Room for 300,000 leader epochs in one segment."""

_START = Struct(">4sHI")
_TEXT = Struct(">H")
_PARTITION = Struct(">16si")
_SEGMENT = Struct(">16sqqiiqqQIIII")
_EPOCH = Struct(">iq")
_CRC = Struct(">I")
_COUNT = Struct(">H")
_ROW = Struct(">BQQI")

_ORDER: Final = (
    IndexKind.LEADER_EPOCH,
    IndexKind.PRODUCER_SNAPSHOT,
    IndexKind.TRANSACTION,
    IndexKind.TIMESTAMP,
    IndexKind.OFFSET,
)
"""What restores a replica comes first: it is often there with the head."""


class Section(NamedTuple):
    """Where an index lies in the object."""

    start: int
    size: int
    crc32c: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    header: SegmentHeader
    sections: Mapping[IndexKind, Section]
    size_bytes: int
    """Of the head alone."""

    @property
    def object_bytes(self) -> int:
        return max(section.end for section in self.sections.values())


def encode_index_object(header: SegmentHeader, indexes: Mapping[IndexKind, bytes]) -> bytes:
    facts = _encode_facts(header)
    size = _START.size + len(facts) + _COUNT.size + len(_ORDER) * _ROW.size + _CRC.size
    assert size <= HEAD_BYTES_MAX, f"{len(header.epochs)} epochs in one segment"
    out = bytearray(_START.pack(MAGIC, VERSION, size))
    out += facts
    out += _COUNT.pack(len(_ORDER))
    start = size
    for kind in _ORDER:
        data = indexes[kind]
        out += _ROW.pack(kind, start, len(data), crc32c(data))
        start += len(data)
    out += _CRC.pack(crc32c(out))
    assert len(out) == size
    for kind in _ORDER:
        out += indexes[kind]
    return bytes(out)


def encode_header(header: SegmentHeader) -> bytes:
    """Return an object with empty indexes: the form in which a header is kept apart from them. `decode_head`
    reads it."""
    return encode_index_object(header, dict.fromkeys(IndexKind, b""))


def _encode_facts(header: SegmentHeader) -> bytes:
    out = bytearray()
    for text in (header.cluster_id, header.topic):
        data = text.encode()
        out += _TEXT.pack(len(data))
        out += data
    out += _PARTITION.pack(header.partition.topic_id.bytes, header.partition.number)
    out += _SEGMENT.pack(
        header.segment_id.bytes,
        header.base_offset,
        header.end_offset,
        header.broker_id,
        header.leader_epoch,
        header.started_ms,
        header.max_timestamp_ms,
        header.size_bytes,
        header.batch_count,
        header.crc32c,
        header.block_bytes,
        len(header.block_crcs),
    )
    for crc in header.block_crcs:
        out += _CRC.pack(crc)
    out += _CRC.pack(len(header.epochs))
    for epoch in header.epochs:
        out += _EPOCH.pack(*epoch)
    return bytes(out)


def head_size(data: Buffer) -> int:
    """Return how many bytes the head has, by the first of them; BadObject when this is no such object."""
    if len(data) < _START.size:
        raise BadObject(f"an index object of {len(data)} bytes")
    magic, version, size = _START.unpack_from(data)
    if magic != MAGIC:
        raise BadObject(f"no index object: it starts with {bytes(magic)!r}")
    if version != VERSION:
        raise BadObject(f"an index object of version {version}, this release reads {VERSION}")
    if not _START.size < size <= HEAD_BYTES_MAX:
        raise BadObject(f"an index object with a head of {size} bytes")
    return int(size)


def decode_head(data: Buffer) -> Head:
    """Read the head; `data` may go on after it, or to the end of the object."""
    size = head_size(data)
    if len(data) < size:
        raise BadObject(f"an index object is cut: {len(data)} bytes of a head of {size}")
    view = memoryview(data)[:size]
    (crc,) = _CRC.unpack_from(view, size - _CRC.size)
    if crc32c(view[: size - _CRC.size]) != crc:
        raise BadObject("the head of an index object fails its CRC")
    cursor = _Cursor(view, _START.size, size - _CRC.size)
    header = _decode_facts(cursor)
    sections = _decode_table(cursor, size)
    if cursor.at != cursor.end:
        raise BadObject(f"{cursor.end - cursor.at} bytes after the table of an index object")
    return Head(header=header, sections=sections, size_bytes=size)


def section_of(data: Buffer, head: Head, kind: IndexKind, *, at: int = 0) -> bytes:
    """Return one index out of bytes of the object that begin at position `at` of it."""
    section = head.sections[kind]
    found = bytes(memoryview(data)[section.start - at : section.end - at])
    if len(found) != section.size:
        raise BadObject(f"an index object is cut inside its {kind.name} index")
    if crc32c(found) != section.crc32c:
        raise BadObject(f"the {kind.name} index of an index object fails its CRC")
    return found


def decode_index_object(data: Buffer) -> tuple[Head, dict[IndexKind, bytes]]:
    """Read and check a whole object."""
    head = decode_head(data)
    if len(data) != head.object_bytes:
        raise BadObject(f"an index object of {len(data)} bytes, its table ends at {head.object_bytes}")
    return head, {kind: section_of(data, head, kind) for kind in head.sections}


def check_header(header: SegmentHeader, segment: RemoteSegment) -> None:
    """BadObject unless the header is that of this copy, or of the copy of which this is the readable part:
    a log may use the offsets below some end alone."""
    told = (header.segment_id, header.partition, header.base_offset, header.size_bytes)
    asked = (segment.id, segment.partition, segment.base_offset, segment.size_bytes)
    if told != asked or header.end_offset < segment.end_offset:
        raise BadObject(
            f"an index object is of another segment: {header.topic}-{header.partition.number}, offsets "
            f"[{header.base_offset}, {header.end_offset}), {header.size_bytes} bytes, id {header.segment_id}"
        )


class _Cursor:
    __slots__ = ("at", "end", "view")

    def __init__(self, view: memoryview, at: int, end: int) -> None:
        self.view = view
        self.at = at
        self.end = end

    def take(self, size: int) -> memoryview:
        start, self.at = self.at, self.at + size
        if self.at > self.end:
            raise BadObject("the head of an index object does not add up")
        return self.view[start : self.at]

    def unpack(self, form: Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def text(self) -> str:
        (size,) = self.unpack(_TEXT)
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise BadObject("a text in the head of an index object is not UTF-8") from None


def _decode_facts(cursor: _Cursor) -> SegmentHeader:
    cluster_id, topic = cursor.text(), cursor.text()
    topic_id, number = _PARTITION.unpack(cursor.take(_PARTITION.size))
    (
        segment_id,
        base_offset,
        end_offset,
        broker_id,
        leader_epoch,
        started_ms,
        max_timestamp_ms,
        size_bytes,
        batch_count,
        crc,
        block_bytes,
        block_count,
    ) = _SEGMENT.unpack(cursor.take(_SEGMENT.size))
    if block_bytes == 0 or block_count != -(-size_bytes // block_bytes):
        raise BadObject(f"an index object has {block_count} checksums for {size_bytes} bytes")
    blocks = cursor.take(block_count * _CRC.size)
    (epoch_count,) = cursor.unpack(_CRC)
    epochs = cursor.take(epoch_count * _EPOCH.size)
    return SegmentHeader(
        cluster_id=cluster_id,
        partition=TieredPartition(UUID(bytes=topic_id), number),
        topic=topic,
        segment_id=UUID(bytes=segment_id),
        base_offset=base_offset,
        end_offset=end_offset,
        broker_id=broker_id,
        leader_epoch=leader_epoch,
        started_ms=started_ms,
        max_timestamp_ms=max_timestamp_ms,
        epochs=tuple((epoch, start) for epoch, start in _EPOCH.iter_unpack(epochs)),
        size_bytes=size_bytes,
        batch_count=batch_count,
        crc32c=crc,
        block_bytes=block_bytes,
        block_crcs=tuple(block for (block,) in _CRC.iter_unpack(blocks)),
    )


def _decode_table(cursor: _Cursor, start: int) -> dict[IndexKind, Section]:
    """The sections follow the head in the order of the table, without gaps, and each kind once."""
    (count,) = cursor.unpack(_COUNT)
    sections: dict[IndexKind, Section] = {}
    for _ in range(count):
        number, at, size, crc = cursor.unpack(_ROW)
        try:
            kind = IndexKind(number)
        except ValueError:
            raise BadObject(f"an index object names an index of kind {number}") from None
        if kind in sections or at != start:
            raise BadObject(f"the table of an index object does not add up at its {kind.name} index")
        sections[kind] = Section(at, size, crc)
        start = at + size
    if len(sections) != len(IndexKind):
        raise BadObject(f"an index object has {len(sections)} of {len(IndexKind)} indexes")
    return sections
