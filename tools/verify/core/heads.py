"""The head of a record batch, and what a control batch says.

Owns the layout of Kafka's format version 2, as far as it is not records. Does not own columns of heads
(tables) or what is wrong with one (batches). Invariant: a head is read as it is; nothing of it is believed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tools.verify.core.tables import ABORT, COMMIT, CONTROL, TRANSACTIONAL

Buffer = bytes | bytearray | memoryview

HEAD_SIZE: Final = 61
FRAME: Final = 12
"""Base offset and length, which the length does not count."""
UNCOVERED: Final = 21
"""The bytes in front of those that the CRC covers."""
CODEC_MASK: Final = 7
LOG_APPEND_TIME: Final = 8

HEAD: Final = struct.Struct(">qiibIhiqqqhii")
LENGTH: Final = struct.Struct(">i")


class Batch(NamedTuple):
    """The head of a batch and where it lies; nothing of it is checked."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def head(data: Buffer, at: int, position: int = 0) -> Batch:
    """The head at `at`; there must be HEAD_SIZE bytes."""
    base, length, epoch, magic, crc, attributes, delta, first, last, producer, producer_epoch, sequence, n = (
        HEAD.unpack_from(data, at)
    )
    return Batch(
        position + at,
        FRAME + length,
        base,
        base + delta,
        epoch,
        magic,
        crc,
        attributes,
        first,
        last,
        producer,
        producer_epoch,
        sequence,
        n,
    )


def is_sound(data: Buffer, at: int, end: int) -> bool:
    """Whether magic and checksum of the batch in [at, end) are right."""
    (crc,) = struct.unpack_from(">I", data, at + 17)
    return bool(data[at + 16] == 2 and crc == crc32c(memoryview(data)[at + UNCOVERED : end]))


def read_marker(records: bytes, batch: Batch) -> tuple[int, int] | None:
    """What a control batch says, as in Markers; None if it cannot be read."""
    if batch.codec or batch.record_count != 1:
        return None
    try:
        at = _skip_varint(records, 0) + 1
        at = _skip_varint(records, _skip_varint(records, at))
        size, at = _varint(records, at)
        version, kind = struct.unpack_from(">hh", records, at)
        if size < 4 or version < 0:
            return None
        size, at = _varint(records, at + size)
        epoch = struct.unpack_from(">i", records, at + 2)[0] if size >= 6 else -1
    except (struct.error, IndexError):
        return None
    return (ABORT if kind == 0 else COMMIT if kind == 1 else -kind), int(epoch)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = moved = 0
    for _ in range(5):
        byte = data[at]
        at += 1
        value |= (byte & 127) << moved
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        moved += 7
    raise IndexError("a number of more than five bytes")


def _skip_varint(data: bytes, at: int) -> int:
    for _ in range(10):
        at += 1
        if data[at - 1] < 128:
            return at
    raise IndexError("a number of more than ten bytes")
