"""What a batch's records are compressed with: gzip, snappy, lz4 and zstd as Kafka frames them.

Owns: the codecs, the bounds on what compressed bytes may become. Does not own: batches and their records
(records.py).
Invariant: whatever the bytes, decompressing gives at most the limit or raises, and never allocates more than
four times the result.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from mmap import mmap
from typing import Any, TypeAlias

import cramjam

from protocol.errors import CorruptBatch

Buffer: TypeAlias = bytes | bytearray | memoryview

# What a batch may grow to when decompressed: constant test payloads compress 10,000 : 1 with zstd, so the
# ratio only counts for large outputs; no honest producer needs more than the absolute cap.
DECOMPRESSED_BYTES_FREE = 16 << 20
DECOMPRESSED_BYTES_MAX = 256 << 20
DECOMPRESSED_RATIO_MAX = 256


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_RATIO_MAX: dict[int, int] = {Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255, Codec.ZSTD: 32_768}
"""What each codec can make of a byte at most: a DEFLATE match of 258 bytes takes 2 bits, a snappy copy of 64
takes 3 bytes, LZ4 adds 255 to a length with a byte, and a zstd block of 128 KiB takes 4 bytes."""


class DecompressedTooLarge(CorruptBatch):
    """A compressed batch whose records exceed the cap on bytes or ratio."""


_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_SNAPPY_HEADER = _SNAPPY_MAGIC + bytes([0, 0, 0, 1, 0, 0, 0, 1])  # version and lowest compatible version
_SNAPPY_BLOCK_BYTES = 32 << 10
# Java's reader takes independent blocks only, which cramjam's frame writer does not make; so the frame is
# written here: magic, version 1 with independent blocks, blocks of 64 KiB at most, and the checksum of
# those two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 0x80000000
_LZ4_END = bytes(4)
_FIRST_GUESS_BYTES = 16 << 10


def output_limit(size: int) -> int:
    """Return how many bytes `size` compressed bytes may become."""
    return min(DECOMPRESSED_BYTES_MAX, max(DECOMPRESSED_BYTES_FREE, size * DECOMPRESSED_RATIO_MAX))


def reach(codec: int, size: int) -> int:
    """Return how many bytes `size` bytes of a codec can become at most, as far as `decompress` takes them."""
    ratio = _RATIO_MAX.get(codec)
    return size if ratio is None else min(size * ratio, output_limit(size))


def decompress(codec: int, data: Buffer, limit: int | None = None) -> bytes:
    """Return the decompressed bytes, allocating at most 4 times the result, and little more than `limit`."""
    if limit is None:
        limit = output_limit(len(data))
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _snappy_decompress(data, limit)
    into = _DECOMPRESS_INTO.get(codec)
    if into is None:
        raise CorruptBatch(0, f"codec {codec}")
    return _decompress_growing(into, data, limit)


def decompress_apart(codec: int, data: Buffer, limit: int) -> Buffer:
    """`decompress` for many bytes in a thread of their own: what they become is written once, into memory
    that the system hands out as it is written, so that other threads go on meanwhile.
    """
    into = _DECOMPRESS_INTO.get(codec)
    if into is None:
        return decompress(codec, data, limit)
    room = mmap(-1, limit)
    try:
        return memoryview(room)[: into(data, room)]
    except cramjam.DecompressionError as error:
        if _OUTPUT_FULL not in str(error):
            raise CorruptBatch(0, f"compressed records: {error}") from error
        raise DecompressedTooLarge(0, f"{len(data)} bytes decompress to more than {limit}") from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level if level is not None and level >= 0 else None))
        case Codec.SNAPPY:
            return _snappy_compress(data)
        case Codec.LZ4:
            return _lz4_compress(data, level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level))
        case _:
            raise ValueError(f"codec {codec}")


_DECOMPRESS_INTO: dict[int, Callable[[Buffer, bytearray | mmap], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_growing(into: Callable[[Buffer, bytearray | mmap], int], data: Buffer, limit: int) -> bytes:
    # cramjam has no streaming reader with a bound, but it never writes past a given buffer: growing that by
    # 4 costs a third more than knowing the size, and a bomb costs what the cap allows.
    room = min(limit, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        out = bytearray(room)
        try:
            size = into(data, out)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise CorruptBatch(0, f"compressed records: {error}") from error
            if room >= limit:
                raise DecompressedTooLarge(0, f"{len(data)} bytes decompress to more than {limit}") from None
            room = min(limit, room * 4)
            continue
        return bytes(memoryview(out)[:size])


_OUTPUT_FULL = "failed to write whole buffer"


def _snappy_decompress(data: Buffer, limit: int) -> bytes:
    """Kafka's framing (snappy-java's: header, then length and block), or one raw block as librdkafka once
    sent.
    """
    if bytes(data[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        return _snappy_block(data, limit)
    view = memoryview(data)
    out = bytearray()
    at = len(_SNAPPY_HEADER)
    if len(view) < at:
        raise CorruptBatch(0, "snappy header is cut")
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        at += 4
        if size > len(view) - at:
            raise CorruptBatch(0, f"snappy block of {size} bytes, {len(view) - at} are left")
        out += _snappy_block(view[at : at + size], limit - len(out))
        at += size
    return bytes(out)


def _snappy_block(block: Buffer, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > limit:
            raise DecompressedTooLarge(0, f"snappy block of {size} bytes, {limit} are allowed")
        out = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(0, f"compressed records: {error}") from error
    if written != size:
        raise CorruptBatch(0, f"snappy block gave {written} bytes and not {size}")
    return bytes(out)


def _snappy_compress(data: Buffer) -> bytes:
    view = memoryview(data)
    out = bytearray(_SNAPPY_HEADER)
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    out = bytearray(_LZ4_HEADER)
    mode: dict[str, Any] = {}
    if level is not None and level > 0:
        mode = {"mode": "high_compression", "compression": level}
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False, **mode))
        if len(block) >= len(plain):
            out += (len(plain) | _LZ4_STORED).to_bytes(4, "little")
            out += plain
        else:
            out += len(block).to_bytes(4, "little")
            out += block
    return bytes(out + _LZ4_END)
