"""The records of a batch, of every codec.

Owns decompression within bounds and the layout of records in Kafka's format version 2, headers passed over.
Does not own batches (heads, batches) or what a record means. Invariant: any bytes give records or
`BadRecords`; nothing larger than `RECORDS_BYTES_MAX` comes out of a batch, however it is packed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import cramjam

from tools.verify.core.heads import HEAD_SIZE, Batch, Buffer

RECORDS_BYTES_MAX: Final = 128 << 20
"""Of a batch, once it is unpacked."""
LEAST_RECORD: Final = 7
"""Bytes: its size, attributes, two deltas, two sizes and the number of headers."""
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = 16
_FIRST_GUESS: Final = 4
"""Times the packed size."""


class BadRecords(Exception):
    """What a batch holds is not records, or not as many as it says."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def read_records(data: Buffer, batch: Batch) -> Iterator[Record]:
    """Yield the records of a batch out of all of its bytes, whose checksum agrees: none, if one is bad."""
    plain = unpack(batch.codec, memoryview(data)[HEAD_SIZE:])
    if batch.record_count < 0 or batch.record_count * LEAST_RECORD > len(plain):
        raise BadRecords(f"{batch.record_count} records in {len(plain)} bytes")
    try:
        for _ in _records(plain, batch):
            pass
    except IndexError:
        raise BadRecords("a record ends behind its batch") from None
    return _records(plain, batch)


def count_records(data: Buffer, batch: Batch) -> int:
    """Return how many records a batch holds, by their sizes alone."""
    plain = unpack(batch.codec, memoryview(data)[HEAD_SIZE:])
    count = at = 0
    try:
        while at < len(plain):
            size, at = _varint(plain, at)
            at += size
            if size < 0 or at > len(plain):
                raise BadRecords(f"a record of {size} bytes")
            count += 1
    except IndexError:
        raise BadRecords("a record ends behind its batch") from None
    return count


def _records(plain: bytes, batch: Batch) -> Iterator[Record]:
    at = 0
    for _ in range(batch.record_count):
        size, at = _varint(plain, at)
        end = at + size
        if size < 0 or end > len(plain):
            raise BadRecords(f"a record of {size} bytes")
        at += 1  # attributes
        time, at = _varint(plain, at)
        delta, at = _varint(plain, at)
        key, at = _sized(plain, at, end)
        value, at = _sized(plain, at, end)
        count, at = _varint(plain, at)
        if not 0 <= count <= end - at:
            raise BadRecords(f"{count} headers")
        for _ in range(count):
            for _ in range(2):
                _, at = _sized(plain, at, end)
        if at != end:
            raise BadRecords(f"a record of {size} bytes that ends elsewhere")
        offset = batch.base_offset + delta
        if not batch.base_offset <= offset <= batch.last_offset:
            raise BadRecords(f"offset {offset} in {batch.base_offset} to {batch.last_offset}")
        timestamp = batch.max_timestamp if batch.attributes & 8 else batch.first_timestamp + time
        yield Record(offset, timestamp, key, value)
    if at != len(plain):
        raise BadRecords(f"{len(plain) - at} bytes behind the last record")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise BadRecords("a number of more than ten bytes")


def _sized(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise BadRecords(f"{size} bytes, and {end - at} are left")
    return data[at : at + size], at + size


# --- codecs ---


class _Decompress(Protocol):
    def __call__(self, packed: memoryview, plain: bytearray, /) -> int: ...


def unpack(codec: int, packed: memoryview) -> bytes:
    """Return what was packed."""
    match codec:
        case 0:
            return bytes(packed)
        case 1:
            return _gunzip(packed)
        case 2:
            return _unsnap(packed)
        case 3:
            return _within(cramjam.lz4.decompress_into, packed)
        case 4:
            return _within(cramjam.zstd.decompress_into, packed)
    raise BadRecords(f"codec {codec}")


def _within(decompress: _Decompress, packed: memoryview) -> bytes:
    """Decompress into buffers that grow up to the limit: none is written past its end."""
    size = max(1 << 16, len(packed) * _FIRST_GUESS)
    while True:
        plain = bytearray(min(size, RECORDS_BYTES_MAX))
        try:
            written = decompress(packed, plain)
        except cramjam.DecompressionError as error:
            if size >= RECORDS_BYTES_MAX or not _may_be_short(error):
                raise BadRecords(f"cannot be unpacked: {str(error)[:200]}") from None
        else:
            return bytes(memoryview(plain)[:written])
        size *= 8


def _may_be_short(error: Exception) -> bool:
    """Whether a larger buffer may do, so that what is damaged costs one attempt."""
    return "write whole buffer" in str(error)


def _gunzip(packed: memoryview) -> bytes:
    out = bytearray()
    left: bytes | memoryview = packed
    while left:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            out += member.decompress(left, RECORDS_BYTES_MAX + 1 - len(out))
        except zlib.error as error:
            raise BadRecords(f"cannot be unpacked: {error}") from None
        if len(out) > RECORDS_BYTES_MAX:
            raise BadRecords(f"more than {RECORDS_BYTES_MAX} bytes")
        if not member.eof:
            raise BadRecords("cannot be unpacked: it ends too early")
        left = member.unused_data
    return bytes(out)


def _unsnap(packed: memoryview) -> bytes:
    if bytes(packed[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(packed, 0)
    out = bytearray()
    at = _XERIAL_HEAD
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        at += 4
        if size > len(packed) - at:
            raise BadRecords(f"a block of {size} bytes, and {len(packed) - at} are left")
        out += _unsnap_block(packed[at : at + size], len(out))
        at += size
    return bytes(out)


def _unsnap_block(block: memoryview, before: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if before + size > RECORDS_BYTES_MAX or size > 22 * len(block) + 64:
            raise BadRecords(f"a block of {size} bytes in {len(block)}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise BadRecords(f"cannot be unpacked: {str(error)[:200]}") from None
