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
Windows = npt.NDArray[np.void]
"""The bytes from each place on."""

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
_BEFORE_KEY: Final = ((0, _SIZE_BITS), (1, _TIME_BITS), (0, _SIZE_BITS), (0, _SIZE_BITS))
"""The record's size, its attributes and time, its offset, the size of its key."""
_BEFORE_VALUE: Final = ((0, _SIZE_BITS),)
WINDOW: Final = 16
"""Bytes in which the numbers in front of a key lie as a rule."""
_WINDOW: Final = np.dtype((np.void, WINDOW))


class RecordTable(NamedTuple):
    """Records in their order. A start of -1: null."""

    plain: memoryview
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
        plain = memoryview(b"".join([*unpacked, _PAD]))
        sizes = np.fromiter(map(len, unpacked), np.int64, len(unpacked))
        ends = np.cumsum(sizes)
        starts = ends - sizes
    else:
        plain, starts, ends = stretch.data, stretch.starts + HEAD_SIZE, stretch.ends
        if len(plain) - int(ends[-1]) < len(_PAD):
            plain = memoryview(b"".join([plain, _PAD]))
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
    plain: memoryview, starts: Numbers, ends: Numbers, counts: Numbers, last_deltas: Numbers
) -> Numbers | None:
    """Return the columns of all records, None: not all of them are what they are to be."""
    data = np.frombuffer(plain, np.uint8)
    windows: Windows = np.ndarray(
        (len(plain) - WINDOW + 1,), np.dtype((np.void, WINDOW)), plain, strides=(1,)
    )
    rows = np.cumsum(counts) - counts
    found = np.empty((6, int(counts.sum())), np.int64)
    lanes = np.arange(len(counts))
    at = starts
    for number in range(int(counts.max())):
        going = counts[lanes] > number
        if not going.all():
            if (at != ends[lanes])[~going].any():
                return None
            lanes, at, rows = lanes[going], at[going], rows[going]
        stop, last = (ends, last_deltas) if len(lanes) == len(counts) else (ends[lanes], last_deltas[lanes])
        record = _read_one_of_each(data, windows, at, stop, last)
        if record is None:
            return None
        fields, at = record
        places = rows + number
        for column, values in zip(found, fields, strict=True):
            column[places] = values
    if (at != ends[lanes]).any():
        return None
    return found


def _read_one_of_each(
    data: Bytes, windows: Windows, at: Numbers, stop: Numbers, last_deltas: Numbers
) -> tuple[tuple[Numbers, ...], Numbers] | None:
    """Return the fields of a record of each batch, and where these records end."""
    try:
        (size, time, delta, key_size), (first, key) = _some_numbers(data, windows, at, _BEFORE_KEY)
        end = first + size
        if ((size < LEAST_RECORD - 1) | (end > stop)).any():
            return None
        key_end = key + np.maximum(key_size, 0)
        if ((key_size < -1) | (key_end > end) | (delta < 0) | (delta > last_deltas)).any():
            return None
        (value_size,), (value, _) = _some_numbers(data, windows, key_end, _BEFORE_VALUE)
        value_end = value + np.maximum(value_size, 0)
        if ((value_size < -1) | (value_end + 1 != end)).any() or data[value_end].any():
            return None
    except _NoEnd:
        return None
    key[key_size < 0] = value[value_size < 0] = -1
    return (delta, time, key, key_end, value, value_end), end


def _some_numbers(
    data: Bytes, windows: Windows, at: Numbers, wanted: Sequence[tuple[int, int]]
) -> tuple[list[Numbers], tuple[Numbers, Numbers]]:
    """Return numbers that follow each other, and where the first and the last of them end.

    `wanted`: the bytes in front of each, and where its last byte may begin. Where they have as many bytes
    everywhere as they have in the first place, as is usual, all are taken out of one copy.
    """
    rows = windows[at]
    widths = _widths(rows[0].tobytes(), wanted)
    if widths is not None and _is_alike(rows, widths):
        byte = rows.view(np.uint8).reshape(-1, WINDOW)
        numbers = [_number(byte, start, end) for start, end in widths]
        return numbers, (at + widths[0][1], at + widths[-1][1])
    numbers, ends = [], []
    for before, bits_max in wanted:
        number, at = _numbers(data, at + before, bits_max)
        numbers.append(number)
        ends.append(at)
    return numbers, (ends[0], ends[-1])


def _widths(row: bytes, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Return where numbers begin and end in these bytes, None: they are longer."""
    found, at = [], 0
    for before, bits_max in wanted:
        start = at = at + before
        while at < WINDOW and row[at] > 127:
            at += 1
        at += 1
        if at > WINDOW or 7 * (at - start - 1) > bits_max:
            return None
        found.append((start, at))
    return found


def _is_alike(rows: Windows, widths: Sequence[tuple[int, int]]) -> bool:
    """Whether numbers end everywhere where they do in the first row."""
    mask = bytearray(WINDOW)
    for start, end in widths:
        mask[start:end] = b"\x80" * (end - start)
    words = rows.view(np.uint64).reshape(-1, WINDOW // 8)
    for column, bits in enumerate(np.frombuffer(mask, np.uint64)):
        if bits:
            word = words[:, column]
            is_other = word ^ word[0]
            is_other &= bits
            if is_other.any():
                return False
    return True


def _number(byte: Bytes, start: int, end: int) -> Numbers:
    """Return the number that lies in these columns."""
    value = byte[:, end - 1].astype(np.int64)
    for column in range(end - 2, start - 1, -1):
        value <<= 7
        value |= byte[:, column] & 127
    sign = value & 1
    value >>= 1
    value ^= np.negative(sign, out=sign)
    return value


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
