"""Record batches that lie together in some bytes, and their heads as columns.

Owns where batches begin by their lengths, the columns of their heads, and whether their checksums agree. Does
not own reading (topic_places), what is wrong with a batch (batches), or records (record_table). Invariant: a
stretch has its batches in the order in which they lie in its bytes, each of them whole; offsets of hostile
heads never wrap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tools.verify.core.heads import FRAME, HEAD_SIZE, UNCOVERED, Batch, Buffer, head
from tools.verify.core.tables import CONTROL

Column = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

FIELDS: Final = np.dtype(
    [
        ("base", ">i8"),
        ("length", ">i4"),
        ("epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("delta", ">i4"),
        ("first_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("sequence", ">i4"),
        ("count", ">i4"),
    ]
)
ROW: Final = np.dtype((np.void, HEAD_SIZE))
STRIDE: Final = 32
"""Batches that are followed before those behind them are guessed."""
RECORDS_MAX: Final = 1 << 16
"""Of one stretch, about, by what its heads say."""
_UNSIGNED: Final = struct.Struct(">I")
_LEAST: Final = np.iinfo(np.int64).min
_MOST: Final = np.iinfo(np.int64).max


class RawBatch(NamedTuple):
    """A batch with all of its bytes."""

    data: memoryview
    head: Batch


class Stretch(NamedTuple):
    """Batches, each of which has its head at least."""

    data: memoryview
    position: int
    """Where `data` begins in its file or object."""
    starts: Numbers
    """In `data`."""
    ends: Numbers
    heads: Column
    """Rows of FIELDS."""

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return int((self.ends - self.starts).sum())

    def base_offsets(self) -> Numbers:
        return self.heads["base"].astype(np.int64)

    def last_offsets(self) -> Numbers:
        """Return the last offsets; one that cannot be told in 64 bits is the farthest that can."""
        base, delta = self.base_offsets(), self.heads["delta"].astype(np.int64)
        return base + np.clip(delta, _LEAST - np.minimum(base, 0), _MOST - np.maximum(base, 0))

    def counts(self) -> Numbers:
        """Return how many records they say they have."""
        return self.heads["count"].astype(np.int64)

    def has(self, flags: int) -> npt.NDArray[np.bool_]:
        """Return which of them have one of these attributes."""
        found: npt.NDArray[np.bool_] = (self.heads["attributes"] & flags) != 0
        return found

    def only(self, which: Any) -> Stretch:
        """Return some of the batches, by a mask or a slice."""
        return self._replace(starts=self.starts[which], ends=self.ends[which], heads=self.heads[which])

    def of_data(self) -> Stretch:
        """Return those that are no control batches."""
        is_control = self.has(CONTROL)
        return self.only(~is_control) if is_control.any() else self

    def before(self, end: int) -> Stretch:
        """Return those in front of the first whose offsets begin at `end` or later."""
        over = self.base_offsets() >= end
        return self.only(slice(0, int(over.argmax()))) if over.any() else self

    def rising_from(self, first: int) -> Stretch:
        """Return those that have an offset of `first` or later, and later than all before them."""
        last = self.last_offsets()
        is_later = last >= first
        is_later[1:] &= last[1:] > np.maximum.accumulate(last)[:-1]
        return self if is_later.all() else self.only(is_later)

    def batches(self) -> Iterator[RawBatch]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield RawBatch(self.data[start:end], head(self.data, start, self.position))


def stretch_of(data: memoryview, position: int, starts: Numbers, ends: Numbers) -> Stretch:
    """Return the stretch of batches that begin and end there, of which nothing else is checked."""
    if not len(starts):
        return Stretch(data, position, starts, ends, np.empty(0, FIELDS))
    rows = np.ndarray((len(data) - HEAD_SIZE + 1,), ROW, data, strides=(1,))[starts]
    return Stretch(data, position, starts, ends, rows.view(FIELDS))


def joined(batches: Sequence[Buffer]) -> Stretch:
    """Return batches of HEAD_SIZE bytes at least, that lie anywhere, as a stretch."""
    sizes = np.fromiter(map(len, batches), np.int64, len(batches))
    ends = np.cumsum(sizes)
    return stretch_of(memoryview(b"".join(batches)), 0, ends - sizes, ends)


def count_sound(stretch: Stretch) -> int:
    """Return how many batches there are in front of the first whose magic or checksum is wrong."""
    data = stretch.data
    is_known = stretch.heads["magic"] == 2
    count = len(is_known) if is_known.all() else int(is_known.argmin())
    bounds = zip((stretch.starts[:count] + UNCOVERED).tolist(), stretch.ends[:count].tolist(), strict=True)
    sums = np.array([crc32c(data[start:end]) for start, end in bounds], np.uint32)
    agrees = sums == stretch.heads["crc"][:count]
    return count if agrees.all() else int(agrees.argmin())


def cut(stretch: Stretch) -> Iterator[Stretch]:
    """Yield it in pieces of so many records that their columns are small."""
    counts = np.cumsum(np.maximum(stretch.counts(), 0))
    if not len(counts) or counts[-1] <= RECORDS_MAX:
        yield stretch
        return
    piece = (counts - 1) // RECORDS_MAX
    bounds = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(counts)]
    for start, end in pairwise(bounds):
        yield stretch.only(slice(start, end))


def frames(view: memoryview, start: int, limit: int) -> tuple[Numbers, int]:
    """Where the batches begin that are whole and have a possible length, and where the next one would.

    The lengths are followed first and looked at afterwards, all at once. Where batches are of one size, the
    next ones are guessed, and looked at together.
    """
    read = _UNSIGNED.unpack_from
    parts: list[Numbers] = []
    found: list[int] = []
    at, last = start, len(view) - HEAD_SIZE
    try:
        while at <= last:
            for _ in range(STRIDE):
                found.append(at)
                at += FRAME + read(view, at + 8)[0]
            size = at - found[-1]
            if at <= last and size == found[-1] - found[-2]:
                count = (last - at) // size + 1
                same = np.ndarray((count,), ">u4", view, at + 8, (size,)) == size - FRAME
                many = count if bool(same.all()) else int(same.argmin())
                if many:
                    parts += [np.array(found, np.int64), np.arange(at, at + many * size, size)]
                    found = []
                    at += many * size
    except struct.error:
        pass
    where = np.concatenate((*parts, np.array(found, np.int64)))
    ends = np.append(where[1:], at)
    sizes = ends - where
    fits = (sizes >= HEAD_SIZE) & (sizes <= limit + FRAME) & (ends <= len(view))
    if bool(fits.all()):
        return where, at
    wrong = int(fits.argmin())
    return where[:wrong], int(where[wrong])
