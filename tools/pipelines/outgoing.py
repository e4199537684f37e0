"""A stored batch as a producer would send it: for another log, under another producer, with the same records.

Owns: which bytes change. Does not own where batches come from (source) or how they are sent (replay). Pure.
Invariant: keys, values, headers, timestamps and their order stay; records outside the offsets and times that
are asked for are left out; the same batch and the same question give the same bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from protocol.compression import Codec
from protocol.records import (
    CODEC_MASK,
    CRC,
    CRC_AT,
    HEADER,
    PRODUCER_ID_AT,
    BatchHeader,
    Record,
    build_batch,
    crc_of,
    iter_records,
)

TIME_MIN: Final = -(1 << 63)
TIME_MAX: Final = (1 << 63) - 1
_PRODUCER: Final = Struct(">qhi")
"""Id, epoch and first sequence, which follow each other."""


class Times(NamedTuple):
    """Records with a timestamp of [since, until)."""

    since_ms: int = TIME_MIN
    until_ms: int = TIME_MAX

    def holds(self, timestamp_ms: int) -> bool:
        return self.since_ms <= timestamp_ms < self.until_ms


ALWAYS: Final = Times()


class Outgoing(NamedTuple):
    data: bytearray
    """Base offset 0, no producer yet."""
    records: int


def outgoing(
    batch: memoryview, header: BatchHeader, first: int, end: int, times: Times = ALWAYS
) -> Outgoing | None:
    """Return the batch with its records of [first, end) and of those times; None if there are none."""
    if (
        first <= header.base_offset
        and header.next_offset <= end
        and header.count == header.last_offset_delta + 1
        and not header.is_log_append_time
        and header.delete_horizon_ms is None
        and times == ALWAYS
    ):
        return Outgoing(_readdressed(batch, header), header.count)
    rows = [
        record
        for record in iter_records(batch, 0, header)
        if first <= record.offset < end and times.holds(record.timestamp)
    ]
    if not rows:
        return None
    numbered = [Record(number, *record[1:]) for number, record in enumerate(rows)]
    return Outgoing(build_batch(numbered, codec=Codec(header.codec)), len(rows))


def _readdressed(batch: memoryview, header: BatchHeader) -> bytearray:
    """Return the same records, compressed as they are, under a header of a new batch."""
    data = bytearray(batch)
    HEADER.pack_into(
        data,
        0,
        0,
        header.length,
        -1,
        header.magic,
        0,
        header.attributes & CODEC_MASK,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        -1,
        -1,
        -1,
        header.count,
    )
    CRC.pack_into(data, CRC_AT, crc_of(data, 0, len(data)))
    return data


def signed(data: bytearray, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
    """Give the batch to a producer, under a sequence; return it."""
    _PRODUCER.pack_into(data, PRODUCER_ID_AT, producer_id, producer_epoch, sequence)
    CRC.pack_into(data, CRC_AT, crc_of(data, 0, len(data)))
    return data
