"""The sums of records are those that FORMAT.md defines, in whatever pieces and order the records come."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import xxhash

from tools.verify.core.manifest_digests import PIECE, hash_of, mixed, record_digests

WORD = 2**64 - 1
Row = tuple[int, int, int]


def finished(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = (word ^ word >> 33) * factor & WORD
    return word ^ word >> 33


def mix(offset: int, key_hash: int, value_hash: int) -> int:
    word = finished((offset * 0x9E3779B97F4A7C15 + key_hash) & WORD)
    return finished((word + value_hash) & WORD)


def rows_of(seed: int, count: int, offset_max: int) -> list[Row]:
    rng = random.Random(seed)
    return [
        (offset, rng.choice([0, rng.getrandbits(64)]), rng.getrandbits(64))
        for offset in sorted(rng.sample(range(offset_max), count))
    ]


def columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets, keys, values = zip(*rows, strict=True)
    return np.array(offsets, np.int64), np.array(keys, np.uint64), np.array(values, np.uint64)


def test_a_mix_is_that_of_plain_numbers_over_any_number_of_pieces() -> None:
    rows = rows_of(1, PIECE * 2 + 3, 2**40)
    assert mixed(*columns(rows)).tolist() == [mix(*row) for row in rows]


def test_sums_are_by_bucket_with_first_offset_end_and_count() -> None:
    rows = rows_of(2, 5000, 5 << 14)
    by_bucket: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_bucket[row[0] >> 14].append(row)
    found = record_digests("place", *columns(rows))
    assert [each[1:] for each in found] == [
        (
            bucket,
            own[0][0],
            own[-1][0] + 1,
            len(own),
            sum(mix(*row) & 0xFFFFFFFF for row in own),
            sum(mix(*row) >> 32 for row in own),
        )
        for bucket, own in sorted(by_bucket.items())
    ]
    assert {each.place for each in found} == {"place"}


def test_the_order_of_records_does_not_matter() -> None:
    rows = rows_of(3, 2000, 3 << 14)
    shuffled = random.Random(4).sample(rows, len(rows))
    assert record_digests("", *columns(rows)) == record_digests("", *columns(shuffled))


def test_each_column_of_each_record_counts() -> None:
    rows = rows_of(5, 100, 1 << 14)
    whole = record_digests("", *columns(rows))
    for column in range(1, 3):
        changed = list(rows)
        changed[50] = (*rows[50][:column], rows[50][column] ^ 1, *rows[50][column + 1 :])
        assert record_digests("", *columns(changed))[0][-2:] != whole[0][-2:]
    swapped = list(rows)
    swapped[50] = rows[50][0], rows[51][1], rows[51][2]
    swapped[51] = rows[51][0], rows[50][1], rows[50][2]
    assert record_digests("", *columns(swapped))[0][-2:] != whole[0][-2:]


def test_no_records_have_no_sums() -> None:
    none = np.empty(0, np.uint64)
    assert record_digests("", none.astype(np.int64), none, none) == []


def test_null_is_not_empty() -> None:
    assert hash_of(None) == 0
    assert hash_of(b"") == xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    assert hash_of(memoryview(b"abc")) == xxhash.xxh3_64_intdigest(b"abc")


def test_a_hash_is_never_that_of_null(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda data: 0)
    assert hash_of(b"x") == 1
