"""The records of many batches at once, as columns that say where their keys and values lie.

Owns the layout of records for numpy: the first records of all batches are read in one go, then the second
ones, and so on. Does not own decompression (records), or what becomes of keys and values.
Invariant: every record of every batch has been followed field by field, ends where its fields do, and the
last one where its batch does; of whatever else there may be, headers among it, there is no table, and the
caller reads batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tools.verify.core.heads import CODEC_MASK, HEAD_SIZE, LOG_APPEND_TIME, Buffer
from tools.verify.core.records import LEAST_RECORD, BadRecords, unpack
from tools.verify.core.stretches import Numbers, Stretch, joined

Bytes = npt.NDArray[np.uint8]

GROUP_RECORDS: Final = 1 << 13
GROUP_BYTES: Final = 8 << 20
"""What a caller puts together before it asks for a table, about."""
UNPACKED_MAX: Final = 64 << 20
WIDTH_MIN: Final = 48
"""Batches of one size that are read at once: fewer are read quicker one by one."""
_PAD: Final = bytes(32)
"""Behind the last batch, for numbers that do not end."""
_SIZE_BITS: Final = 28
_TIME_BITS: Final = 56
"""Where the last byte of a number begins."""


class RecordTable(NamedTuple):
    """Records in their order. A start of -1: null."""

    plain: bytes
    """What positions are in."""
    offsets: Numbers
    timestamps: Numbers
    is_appended: npt.NDArray[np.bool_]
    """Whether the time is that of the append."""
    key_starts: Numbers
    key_ends: Numbers
    value_starts: Numbers
    value_ends: Numbers


def read_table(batches: Sequence[Buffer]) -> RecordTable | None:
    """Return the records of batches of data whose checksums agree, None: read them one by one."""
    if len(batches) < WIDTH_MIN or min(map(len, batches)) < HEAD_SIZE:
        return None
    return read_stretch(joined(batches))


def read_stretch(stretch: Stretch) -> RecordTable | None:
    """Return the records of batches of data, None: read them one by one."""
    heads, counts = stretch.heads, stretch.counts()
    if len(counts) < WIDTH_MIN or counts.min() < 0 or counts.sum() < WIDTH_MIN * counts.max():
        return None
    if stretch.has(CODEC_MASK).any():
        unpacked = _unpacked(stretch)
        if unpacked is None:
            return None
        plain = b"".join([*unpacked, _PAD])
        sizes = np.fromiter(map(len, unpacked), np.int64, len(unpacked))
        ends = np.cumsum(sizes)
        starts = ends - sizes
    else:
        begin = int(stretch.starts[0])
        plain = b"".join([stretch.data[begin : int(stretch.ends[-1])], _PAD])
        starts, ends = stretch.starts + (HEAD_SIZE - begin), stretch.ends - begin
    if (ends - starts < counts * LEAST_RECORD).any():
        return None
    fields = _read(plain, starts, ends, counts, heads["delta"].astype(np.int64))
    if fields is None:
        return None
    deltas, times = fields[:2]
    is_appended = stretch.has(LOG_APPEND_TIME)
    stamps = np.where(is_appended, heads["max_timestamp"], heads["first_timestamp"]).astype(np.int64)
    if is_appended.any():
        times *= np.repeat(~is_appended, counts)
    times += np.repeat(stamps, counts)
    deltas += np.repeat(stretch.base_offsets(), counts)
    return RecordTable(plain, deltas, times, np.repeat(is_appended, counts), *fields[2:])


def _unpacked(stretch: Stretch) -> list[bytes] | None:
    """Return their records without a codec, None if that is too much at once."""
    found: list[bytes] = []
    left = UNPACKED_MAX
    codecs = (stretch.heads["attributes"] & CODEC_MASK).tolist()
    bounds = zip((stretch.starts + HEAD_SIZE).tolist(), stretch.ends.tolist(), strict=True)
    for (start, end), codec in zip(bounds, codecs, strict=True):
        try:
            found.append(unpack(codec, stretch.data[start:end]))
        except BadRecords:
            return None
        left -= len(found[-1])
        if left < 0:
            return None
    return found


def _read(
    plain: bytes, starts: Numbers, ends: Numbers, counts: Numbers, last_deltas: Numbers
) -> Numbers | None:
    """Return the columns of all records, None: not all of them are what they are to be."""
    data = np.frombuffer(plain, np.uint8)
    rows = np.cumsum(counts) - counts
    found = np.empty((6, int(counts.sum())), np.int64)
    lanes = np.arange(len(counts))
    at = starts
    for number in range(int(counts.max())):
        going = counts[lanes] > number
        if not going.all():
            if (at != ends[lanes])[~going].any():
                return None
            lanes, at = lanes[going], at[going]
        record = _read_one_of_each(data, at, ends[lanes], last_deltas[lanes])
        if record is None:
            return None
        fields, at = record
        found[:, rows[lanes] + number] = fields
    if (at != ends[lanes]).any():
        return None
    return found


def _read_one_of_each(
    data: Bytes, at: Numbers, stop: Numbers, last_deltas: Numbers
) -> tuple[tuple[Numbers, ...], Numbers] | None:
    """Return the fields of a record of each batch, and where these records end."""
    try:
        size, at = _numbers(data, at, _SIZE_BITS)
        end = at + size
        if ((size < LEAST_RECORD - 1) | (end > stop)).any():
            return None
        time, at = _numbers(data, at + 1, _TIME_BITS)
        delta, at = _numbers(data, at, _SIZE_BITS)
        key_size, key = _numbers(data, at, _SIZE_BITS)
        key_end = key + np.maximum(key_size, 0)
        if ((key_size < -1) | (key_end > end) | (delta < 0) | (delta > last_deltas)).any():
            return None
        value_size, value = _numbers(data, key_end, _SIZE_BITS)
        value_end = value + np.maximum(value_size, 0)
        if ((value_size < -1) | (value_end + 1 != end)).any() or data[value_end].any():
            return None
    except _NoEnd:
        return None
    key[key_size < 0] = value[value_size < 0] = -1
    return (delta, time, key, key_end, value, value_end), end


class _NoEnd(Exception):
    """A number is longer than any that is written there."""


def _numbers(data: Bytes, at: Numbers, bits_max: int) -> tuple[Numbers, Numbers]:
    """Return the numbers that begin there, and where they end."""
    byte = data[at]
    value = (byte & 127).astype(np.int64)
    at = at + 1
    more = byte > 127
    bits = 7
    while more.any():
        if bits > bits_max:
            raise _NoEnd
        byte = data[at]
        value |= ((byte & 127).astype(np.int64) << bits) * more
        at += more
        more &= byte > 127
        bits += 7
    return (value >> 1) ^ -(value & 1), at
