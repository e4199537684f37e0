"""Sums over records by which a manifest and a log are compared, one for each 16,384 offsets.

Owns the hash of a key or a value, the mix of a record and its sums, as FORMAT.md tells them. Does not own
the files of a manifest (manifest_files) or what a difference means (manifest_rules). Invariant: equal records
give equal sums in whatever order and pieces they come; no sum overflows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from tools.verify.core.facts import BUCKET_BITS, RecordDigest

Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

NULL_HASH: Final = 0
"""Of a key or a value that is null. A hash that comes out as this one becomes 1."""
PIECE: Final = 1 << 15
"""Records that are mixed at once: their columns stay in the cache."""
OFFSET_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR: Final = np.uint64(0xFF51AFD7ED558CCD)
SECOND_FACTOR: Final = np.uint64(0xC4CEB9FE1A85EC53)
SHIFT: Final = np.uint64(33)
LOW_BITS: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)


def hash_of(data: bytes | bytearray | memoryview | None) -> int:
    if data is None:
        return NULL_HASH
    return int(xxhash.xxh3_64_intdigest(data)) or 1


def mixed(offsets: Offsets, key_hashes: Words, value_hashes: Words) -> Words:
    """A word for each record that changes with each of the three."""
    found = np.empty(len(offsets), np.uint64)
    for start in range(0, len(offsets), PIECE):
        piece = slice(start, start + PIECE)
        word = offsets[piece].astype(np.uint64)
        word *= OFFSET_FACTOR
        word += key_hashes[piece]
        _finish(word)
        word += value_hashes[piece]
        _finish(word)
        found[piece] = word
    return found


def _finish(word: Words) -> None:
    """Spread each bit over all, in place: the end of murmur3 for 64 bits."""
    for factor in (FIRST_FACTOR, SECOND_FACTOR):
        word ^= word >> SHIFT
        word *= factor
    word ^= word >> SHIFT


def record_digests(
    place: str, offsets: Offsets, key_hashes: Words, value_hashes: Words
) -> list[RecordDigest]:
    """Sum the records of one place by bucket; the arrays are of one length, in any order."""
    if not len(offsets):
        return []
    words = mixed(offsets, key_hashes, value_hashes)
    low, high = words & LOW_BITS, words >> HALF
    buckets = offsets >> BUCKET_BITS
    if (buckets[1:] < buckets[:-1]).any():
        order = np.argsort(buckets, kind="stable")
        buckets, offsets, low, high = buckets[order], offsets[order], low[order], high[order]
    starts = np.flatnonzero(np.concatenate(([True], buckets[1:] != buckets[:-1])))
    counts = np.diff(np.append(starts, len(buckets)))
    columns = (
        buckets[starts],
        np.minimum.reduceat(offsets, starts),
        np.maximum.reduceat(offsets, starts) + 1,
        counts,
        np.add.reduceat(low, starts),
        np.add.reduceat(high, starts),
    )
    return [RecordDigest(place, *row) for row in zip(*(each.tolist() for each in columns), strict=True)]
