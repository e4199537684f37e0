"""Builds record batches for the tests of the verification, by Kafka's format alone.

Owns bytes of batches with any head. Does not own what is found in them.
Invariant: what it builds without an odd argument is sound.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

HEAD = struct.Struct(">qiibI")
REST = struct.Struct(">hiqqqhii")


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(
    offset_delta: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    timestamp_delta: int = 0,
) -> bytes:
    def sized(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value)
    body += varint(len(headers))
    for name, content in headers:
        body += sized(name.encode()) + sized(content)
    return varint(len(body)) + body


def batch(
    base: int,
    values: Sequence[bytes | None] = (b"x",),
    *,
    epoch: int = 0,
    body: bytes | None = None,
    delta: int | None = None,
    count: int | None = None,
    attributes: int = 0,
    timestamp: int = 1_700_000_000_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    magic: int = 2,
    key: bytes | None = None,
) -> bytes:
    """A batch; `producer` is id, epoch and base sequence."""
    if body is None:
        body = b"".join(record(at, value, key) for at, value in enumerate(values))
    covered = REST.pack(
        attributes,
        len(values) - 1 if delta is None else delta,
        timestamp,
        timestamp,
        *producer,
        len(values) if count is None else count,
    )
    covered += body
    return HEAD.pack(base, 9 + len(covered), epoch, magic, crc32c(covered)) + covered


def marker(
    offset: int,
    producer_id: int,
    producer_epoch: int = 0,
    *,
    is_commit: bool,
    coordinator_epoch: int = 0,
    epoch: int = 0,
    timestamp: int = 1_700_000_000_000,
) -> bytes:
    value = struct.pack(">hi", 0, coordinator_epoch)
    return batch(
        offset,
        [value],
        key=struct.pack(">hh", 0, 1 if is_commit else 0),
        attributes=0x30,
        producer=(producer_id, producer_epoch, -1),
        epoch=epoch,
        timestamp=timestamp,
    )
