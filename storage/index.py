"""The three indexes of a segment, in memory and in Kafka's file formats.

Owns: offset → position, timestamp → offset, and the aborted transactions, each with encode and decode. Does
not own: the files. Invariant: entries only grow (offsets and positions together; timestamps strictly), so
every look-up is a binary search; what fails that on reading is no index and is rebuilt from the log.

Entries live in arrays, not in objects: 262,144 of them for a 1 GB segment cost 2 MB and nothing to the
collector.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from operator import le, lt
from struct import Struct
from typing import NamedTuple

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12
POSITION_MASK = 0xFFFFFFFF
ENTRIES_LOOKED_AT = 4096

_ABORTED = Struct(">hqqqq")
ABORTED_SIZE = _ABORTED.size


class BadIndex(Exception):
    """An index file that cannot be what its segment needs."""


def _big_endian(values: array[int]) -> bytes:
    if sys.byteorder == "little":
        values = array("q", values)
        values.byteswap()
    return values.tobytes()


def _from_big_endian(data: bytes | bytearray) -> array[int]:
    values = array("q")
    values.frombytes(data)
    if sys.byteorder == "little":
        values.byteswap()
    return values


class OffsetIndex:
    """Kafka's `.index`: (relative offset int32, position int32), here as one int64 each."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, relative_offset: int, position: int) -> None:
        self.entries.append(relative_offset << 32 | position)

    def lookup(self, relative_offset: int) -> int:
        """Return the position to start looking for an offset from: at or before its batch."""
        at = bisect_right(self.entries, relative_offset << 32 | POSITION_MASK)
        return self.entries[at - 1] & POSITION_MASK if at else 0

    def boundary_within(self, position: int) -> int:
        """The largest indexed batch start at or before `position`, 0 if none."""
        at = bisect_right(self.entries, position, key=_position)
        return self.entries[at - 1] & POSITION_MASK if at else 0

    def last_position(self) -> int:
        return self.entries[-1] & POSITION_MASK if self.entries else 0

    def truncate(self, relative_offset: int) -> None:
        """Drop entries at and past an offset."""
        del self.entries[bisect_right(self.entries, (relative_offset << 32) - 1) :]

    def encode(self) -> bytes:
        return _big_endian(self.entries)

    @staticmethod
    def decode(data: bytes, segment_size: int) -> OffsetIndex:
        """Zeros behind the entries are Kafka's preallocation after a crash."""
        if len(data) % OFFSET_ENTRY_SIZE:
            raise BadIndex(f"offset index of {len(data)} bytes")
        index = OffsetIndex()
        entries = index.entries = _from_big_endian(data)
        while len(entries) > 1 and entries[-1] == 0:
            entries.pop()
        if entries and (entries[0] < 0 or not _ascends(entries)):
            raise BadIndex("offset index out of order")
        if entries and index.last_position() >= segment_size:
            raise BadIndex(f"offset index reaches {index.last_position()} of {segment_size} bytes")
        return index


def _ascends(values: array[int], in_order: Callable[[int, int], bool] = lt) -> bool:
    """Look at every n-th entry of a large index: all 262,144 of them would take 20 ms on the loop. What
    is wrong between those shows when it is used: it does not lead to a batch."""
    looked_at = values[:: len(values) // ENTRIES_LOOKED_AT + 1]
    return all(map(in_order, looked_at, islice(looked_at, 1, None)))


def _position(entry: int) -> int:
    return entry & POSITION_MASK


class TimeIndex:
    """Kafka's `.timeindex`: (timestamp int64, relative offset int32): no record before has a later
    timestamp."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.timestamps)

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        timestamps = self.timestamps
        if timestamp > (timestamps[-1] if timestamps else -1):
            timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def last_timestamp(self) -> int:
        return self.timestamps[-1] if self.timestamps else -1

    def last_offset(self) -> int:
        return self.offsets[-1] if self.offsets else 0

    def lookup(self, timestamp: int) -> int:
        """The relative offset from which a record at or after `timestamp` may be."""
        at = bisect_right(self.timestamps, timestamp - 1)
        return self.offsets[at - 1] if at else 0

    def truncate(self, relative_offset: int) -> None:
        keep = bisect_right(self.offsets, relative_offset - 1)
        del self.offsets[keep:], self.timestamps[keep:]

    def encode(self) -> bytes:
        """Build the file by columns: 12-byte entries suit no array, and 262,144 one by one take 50 ms."""
        timestamps = _big_endian(self.timestamps)
        offsets = _big_endian(self.offsets)
        out = bytearray(len(self) * TIME_ENTRY_SIZE)
        for column in range(8):
            out[column::TIME_ENTRY_SIZE] = timestamps[column::8]
        for column in range(4):
            out[8 + column :: TIME_ENTRY_SIZE] = offsets[4 + column :: 8]
        return bytes(out)

    @staticmethod
    def decode(data: bytes) -> TimeIndex:
        count, rest = divmod(len(data), TIME_ENTRY_SIZE)
        if rest:
            raise BadIndex(f"time index of {len(data)} bytes")
        timestamps = bytearray(count * 8)
        offsets = bytearray(count * 8)
        for column in range(8):
            timestamps[column::8] = data[column::TIME_ENTRY_SIZE]
        for column in range(4):
            offsets[4 + column :: 8] = data[8 + column :: TIME_ENTRY_SIZE]
        index = TimeIndex()
        index.timestamps = _from_big_endian(timestamps)
        index.offsets = _from_big_endian(offsets)
        while len(index) > 1 and index.timestamps[-1] == 0:  # Kafka's preallocation after a crash
            index.timestamps.pop()
            index.offsets.pop()
        if not _ascends(index.timestamps) or not _ascends(index.offsets, le):
            raise BadIndex("time index out of order")
        return index


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ABORTED.pack(0, *self)


def decode_aborted(data: bytes) -> list[AbortedTxn]:
    """The entries of a `.txnindex`."""
    if len(data) % ABORTED_SIZE:
        raise BadIndex(f"transaction index of {len(data)} bytes")
    entries = []
    for version, *rest in _ABORTED.iter_unpack(data):
        if version != 0 or rest[0] < 0 or rest[1] > rest[2]:
            raise BadIndex("transaction index entry")
        entries.append(AbortedTxn(*rest))
    return entries
