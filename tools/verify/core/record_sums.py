"""The records of batches as hashes, and their sums by bucket, to compare a log with a manifest.

Owns the way from a sound batch to the hashes of its keys and values. Does not own the hash or its sums
(manifest_digests), decompression (records) or which batches are sound (batches). Invariant: of a batch either
all records are hashed or it is among the bad ones; memory is bounded by one batch and one piece of hashes.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from tools.verify.core.batches import FAULTS_LIMIT
from tools.verify.core.facts import Fault, RecordDigest
from tools.verify.core.heads import CODEC_MASK, HEAD_SIZE, Batch, Buffer, head
from tools.verify.core.manifest_digests import NULL_HASH, hash_of, record_digests
from tools.verify.core.record_table import read_stretch
from tools.verify.core.records import BadRecords, read_records, unpack
from tools.verify.core.stretches import Stretch

Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

PIECE: Final = 1 << 16
"""Records that are hashed before they are summed."""
ALIKE_MIN: Final = 8
"""Pieces of one size that are cut out together: fewer are cut quicker one by one."""
ALIKE_MAX: Final = 1024
CUT_BYTES: Final = 1 << 18
"""What is cut out at once stays where memory is quick."""
_ATTRIBUTES: Final = 22
"""The low byte of a batch's attributes."""


class Hashes(NamedTuple):
    """Records as columns."""

    offsets: Offsets
    keys: Words
    values: Words


Rows = tuple["array[int]", "array[int]", "array[int]"]
"""Offsets, hashes of keys, hashes of values."""


def new_rows() -> Rows:
    return array("q"), array("Q"), array("Q")


def columns(rows: Rows) -> Hashes:
    """The rows as columns that share their memory."""
    offsets, keys, values = rows
    return Hashes(
        np.frombuffer(offsets, np.int64), np.frombuffer(keys, np.uint64), np.frombuffer(values, np.uint64)
    )


def hash_records(data: Buffer, batch: Batch, rows: Rows) -> None:
    """Append the records of a batch that is no control batch. Raise BadRecords, with nothing appended."""
    count = len(rows[0])
    if not _hash_fast(data, batch, rows):
        for column in rows:
            del column[count:]
        try:
            _hash_surely(data, batch, rows)
        except BadRecords:
            for column in rows:
                del column[count:]
            raise


def hash_all(stretch: Stretch, rows: Rows) -> None:
    """Append the records of batches, none of which is a control batch; those of a bad one are left out."""
    table = read_stretch(stretch)
    if table is not None:
        rows[0].frombytes(table.offsets.tobytes())
        _hash_column(rows[1], table.plain, table.key_starts, table.key_ends)
        _hash_column(rows[2], table.plain, table.value_starts, table.value_ends)
        return
    for each in stretch.batches():
        with suppress(BadRecords):
            hash_records(each.data, each.head, rows)


def _hash_column(column: array[int], plain: memoryview, starts: Offsets, ends: Offsets) -> None:
    words = np.full(len(starts), NULL_HASH, np.uint64)
    is_there = starts >= 0
    if is_there.all():
        words = _hashed(plain, starts, ends)
    elif is_there.any():
        words[is_there] = _hashed(plain, starts[is_there], ends[is_there])
    column.frombytes(words.tobytes())


def _hashed(plain: memoryview, starts: Offsets, ends: Offsets) -> Words:
    """Return the hashes of these pieces. Those of one size are cut out together, which is half the work."""
    sizes = ends - starts
    if sizes.min() == sizes.max():
        return _hashed_alike(plain, starts, int(sizes[0]))
    order = np.argsort(sizes, kind="stable")
    bounds = np.flatnonzero(np.diff(sizes[order], prepend=-1, append=-1))
    found = np.empty(len(starts), np.uint64)
    for begin, end in pairwise(bounds.tolist()):
        which = order[begin:end]
        found[which] = _hashed_alike(plain, starts[which], int(sizes[which[0]]))
    return found


def _hashed_alike(plain: memoryview, starts: Offsets, size: int) -> Words:
    digest = xxhash.xxh3_64_intdigest
    found = np.empty(len(starts), np.uint64)
    if not size or len(starts) < ALIKE_MIN:
        found[:] = [digest(plain[start : start + size]) for start in starts.tolist()]
    else:
        pieces = np.ndarray((len(plain) - size + 1,), np.dtype((np.void, size)), plain, strides=(1,))
        step = min(ALIKE_MAX, CUT_BYTES // size + 1)
        for at in range(0, len(starts), step):
            cut = pieces[starts[at : at + step]].tolist()
            found[at : at + step] = np.fromiter(map(digest, cut), np.uint64, len(cut))
    return np.maximum(found, 1)


def _hash_fast(data: Buffer, batch: Batch, rows: Rows) -> bool:
    """By the parser in C, which reads past what it does not expect; False if anything is odd."""
    plain: Buffer = data
    if batch.codec:
        plain = bytearray(data[:HEAD_SIZE]) + unpack(batch.codec, memoryview(data)[HEAD_SIZE:])
        plain[_ATTRIBUTES] &= ~CODEC_MASK & 0xFF
    digest = xxhash.xxh3_64_intdigest
    add_offset, add_key, add_value = (column.append for column in rows)
    count = len(rows[0])
    try:
        for each in _parser()(plain):
            key, value = each.key, each.value
            add_offset(each.offset)
            add_key(NULL_HASH if key is None else digest(key) or 1)
            add_value(NULL_HASH if value is None else digest(value) or 1)
    except Exception:
        return False
    offsets = rows[0][count:]
    return len(offsets) == batch.record_count and (
        not offsets or batch.base_offset <= min(offsets) <= max(offsets) <= batch.last_offset
    )


@cache
def _parser() -> Any:
    """The parser in C. All of a client comes with it: whoever compares no records does without."""
    from aiokafka.record.default_records import DefaultRecordBatch

    return DefaultRecordBatch


def _hash_surely(data: Buffer, batch: Batch, rows: Rows) -> None:
    for record in read_records(data, batch):
        rows[0].append(record.offset)
        rows[1].append(hash_of(record.key))
        rows[2].append(hash_of(record.value))


class _Columns:
    """Rows of many batches."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.faults: list[Fault] = []
        self._rows = new_rows()

    def add(self, data: Buffer, position: int) -> None:
        """Take a sound batch."""
        batch = head(data, 0, position)
        if batch.is_control:
            return
        try:
            hash_records(data, batch, self._rows)
        except BadRecords as error:
            if len(self.faults) < FAULTS_LIMIT:
                about = position, batch.base_offset, batch.last_offset + 1
                self.faults.append(Fault("count-mismatch", self.place, *about, "", str(error)))

    def __len__(self) -> int:
        return len(self._rows[0])

    def take(self) -> Hashes:
        rows, self._rows = self._rows, new_rows()
        return columns(rows)


class RecordSums:
    """Takes the sound batches of one place, in any order: a RunScanner's `on_data`."""

    def __init__(self, place: str) -> None:
        self._columns = _Columns(place)
        self._digests: dict[int, RecordDigest] = {}

    @property
    def faults(self) -> list[Fault]:
        return self._columns.faults

    def add(self, data: Buffer, position: int) -> None:
        self._columns.add(data, position)
        if len(self._columns) >= PIECE:
            self._sum()

    def finish(self) -> list[RecordDigest]:
        self._sum()
        return [self._digests[bucket] for bucket in sorted(self._digests)]

    def _sum(self) -> None:
        for one in record_digests(self._columns.place, *self._columns.take()):
            old = self._digests.get(one.bucket)
            self._digests[one.bucket] = one if old is None else _both(old, one)


def _both(one: RecordDigest, other: RecordDigest) -> RecordDigest:
    return one._replace(
        first=min(one.first, other.first),
        end=max(one.end, other.end),
        records=one.records + other.records,
        low=one.low + other.low,
        high=one.high + other.high,
    )
