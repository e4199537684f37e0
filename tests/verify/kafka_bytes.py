"""Kafka's own formats on the disk: record batches with every codec, markers, indexes, checkpoints.

Owns: the bytes of a batch and of the files beside a segment, after Kafka's documentation of them. Does not
own what is in them (histories). Invariant: nothing of the project is used, so a mistake of its writers is
not repeated here.
"""

from __future__ import annotations

import base64
import gzip
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import cramjam
from crc32c import crc32c

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
COMMIT, ABORT = 1, 0
HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_SIZE = HEAD.size
assert HEAD_SIZE == 61
CRC_FROM = 21
SNAPPY_HEAD = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"

TRANSACTIONAL, CONTROL, HAS_HORIZON, LOG_APPEND_TIME = 0x10, 0x20, 0x40, 0x08


class Rec(NamedTuple):
    """One record: its place and time are relative to the batch."""

    delta: int
    time_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch says; `data` is its bytes."""

    base: int
    last: int
    epoch: int
    records: tuple[Rec, ...]
    base_time: int
    max_time: int
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    codec: int = NONE
    attributes: int = 0
    marker: int | None = None
    coordinator_epoch: int = 0
    data: bytes = b""

    @property
    def end(self) -> int:
        return self.last + 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.last - self.base) & 0x7FFFFFFF


def zigzag(value: int) -> bytes:
    value = value << 1 ^ value >> 63 if value < 0 else value << 1
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def encode_record(record: Rec) -> bytes:
    body = b"\0" + zigzag(record.time_delta) + zigzag(record.delta) + sized(record.key) + sized(record.value)
    body += zigzag(len(record.headers))
    for name, value in record.headers:
        body += sized(name.encode()) + sized(value)
    return zigzag(len(body)) + body


def compress(codec: int, data: bytes, *, is_framed: bool = True) -> bytes:
    match codec:
        case 1:
            return gzip.compress(data, 1, mtime=0)
        case 2:
            raw = bytes(cramjam.snappy.compress_raw(data))
            return SNAPPY_HEAD + len(raw).to_bytes(4, "big") + raw if is_framed else raw
        case 3:
            return bytes(cramjam.lz4.compress(data))
        case 4:
            return bytes(cramjam.zstd.compress(data))
    return data


def encode_batch(batch: Batch, *, count: int | None = None, records: bytes | None = None) -> bytes:
    """The bytes of a batch. `count` and `records` stand in for what it holds, to write what is wrong."""
    if records is None:
        records = compress(
            batch.codec, b"".join(map(encode_record, batch.records)), is_framed=batch.base % 2 == 0
        )
    checked = struct.pack(
        ">hiqqqhii",
        batch.codec | batch.attributes,
        batch.last - batch.base,
        batch.base_time,
        batch.max_time,
        batch.producer_id,
        batch.producer_epoch,
        batch.sequence,
        len(batch.records) if count is None else count,
    )
    checked += records
    size = HEAD_SIZE - 12 - (HEAD_SIZE - CRC_FROM) + len(checked)
    return struct.pack(">qiibI", batch.base, size, batch.epoch, 2, crc32c(checked)) + checked


def marker_record(kind: int, coordinator_epoch: int) -> Rec:
    return Rec(0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch))


def recheck(data: bytearray, position: int = 0) -> None:
    """Give the batch at `position` the checksum of the bytes it has."""
    size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
    crc = crc32c(bytes(data[position + CRC_FROM : position + size]))
    data[position + 17 : position + CRC_FROM] = crc.to_bytes(4, "big")


# --- beside a segment ---


def offset_index(entries: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def time_index(entries: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


class Aborted(NamedTuple):
    producer_id: int
    first: int
    last: int
    last_stable: int


def transaction_index(entries: Sequence[Aborted]) -> bytes:
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


class Producer(NamedTuple):
    """The state of a producer after some batch, as a snapshot tells it."""

    producer_id: int
    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1


def producer_snapshot(producers: Sequence[Producer], more: bytes = b"") -> bytes:
    rows = len(producers).to_bytes(4, "big") + b"".join(struct.pack(">qhiqiqiq", *row) for row in producers)
    rows += more
    return struct.pack(">hI", 1, crc32c(rows)) + rows


def epochs_file(epochs: Sequence[tuple[int, int]]) -> bytes:
    return "".join(
        f"{line}\n" for line in ("0", len(epochs), *(f"{epoch} {start}" for epoch, start in epochs))
    ).encode()


def points_file(points: Mapping[tuple[str, int], int]) -> bytes:
    lines = ["0", str(len(points)), *(f"{name} {number} {at}" for (name, number), at in points.items())]
    return ("\n".join(lines) + "\n").encode()


def short_id(value: UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


# --- what a group has committed ---


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def group_offset(group: str, topic: str, partition: int, offset: int, *, time: int) -> tuple[bytes, bytes]:
    """Key and value of a record in __consumer_offsets."""
    key = struct.pack(">h", 1) + _string(group) + _string(topic) + struct.pack(">i", partition)
    return key, struct.pack(">hqi", 3, offset, -1) + _string("") + struct.pack(">q", time)


def murmur2(data: bytes) -> int:
    """Of Kafka's default partitioner."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    found = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) & ~3, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        found = (found * m & mask) ^ k
    if rest := data[len(data) & ~3 :]:
        found = (found ^ int.from_bytes(rest, "little")) * m & mask
    found = (found ^ found >> 13) * m & mask
    return found ^ found >> 15


def tier_partition(topic_id: UUID, partition: int, count: int) -> int:
    """In which partition of __remote_log_metadata the records about a partition are."""
    halves = topic_id.int & (1 << 64) - 1, topic_id.int >> 64
    hashed = 31 + ((halves[0] ^ halves[0] >> 32) & 0xFFFFFFFF)
    hashed = hashed * 31 + ((halves[1] ^ halves[1] >> 32) & 0xFFFFFFFF)
    hashed = (hashed * 31 + partition) & 0xFFFFFFFF
    return (murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % count
