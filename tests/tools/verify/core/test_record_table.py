"""The records of many batches at once are those that they have one by one, or there is no table of them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify import kafka_bytes as kafka
from tools.verify.core import record_table
from tools.verify.core.heads import HEAD_SIZE, head
from tools.verify.core.record_sums import hash_all, hash_records, new_rows
from tools.verify.core.record_table import WIDTH_MIN, RecordTable, read_table
from tools.verify.core.records import BadRecords, read_records
from tools.verify.core.stretches import joined

Row = tuple[int, int, bytes | None, bytes | None]

BYTES = st.none() | st.binary(max_size=12) | st.sampled_from([bytes(63), bytes(64), bytes(9000)])
TIMES = st.integers(-5, 5000) | st.sampled_from([-(1 << 40), (1 << 61)])
SHAPES = st.lists(st.tuples(TIMES, BYTES, BYTES, st.integers(0, 70)), min_size=1, max_size=4)


def made(shapes: list[list[tuple[int, bytes | None, bytes | None, int]]], codecs: list[int]) -> list[bytes]:
    """Batches, as many as make a table, of records as the shapes say."""
    found, base = [], 0
    for number in range(4 * WIDTH_MIN):
        rows, delta = [], 0
        for time, key, value, gap in shapes[number % len(shapes)]:
            rows.append(kafka.Rec(delta, time, key, value))
            delta += 1 + gap
        attributes = kafka.LOG_APPEND_TIME if number % 5 == 4 else 0
        batch = kafka.Batch(
            base, base + delta, 3, tuple(rows), 1000, 9000, codec=codecs[number % len(codecs)],
            attributes=attributes,
        )  # fmt: skip
        found.append(kafka.encode_batch(batch))
        base += delta + 1
    return found


def one_by_one(batches: list[bytes]) -> list[Row]:
    return [tuple(each) for data in batches for each in read_records(data, head(data, 0))]  # type: ignore[misc]


def rows_of(table: RecordTable) -> list[Row]:
    def pieces(starts: list[int], ends: list[int]) -> list[bytes | None]:
        bounds = zip(starts, ends, strict=True)
        return [None if start < 0 else bytes(table.plain[start:end]) for start, end in bounds]

    keys = pieces(table.key_starts.tolist(), table.key_ends.tolist())
    values = pieces(table.value_starts.tolist(), table.value_ends.tolist())
    return [*zip(table.offsets.tolist(), table.timestamps.tolist(), keys, values, strict=True)]


@settings(max_examples=30)
@given(st.lists(SHAPES, min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_the_table_has_what_batches_have_one_by_one(
    shapes: list[list[tuple[int, bytes | None, bytes | None, int]]], codecs: list[int]
) -> None:
    batches = made(shapes, codecs)
    table = read_table(batches)
    assert table is not None
    assert rows_of(table) == one_by_one(batches)
    appended = [bool(head(data, 0).attributes & kafka.LOG_APPEND_TIME) for data in batches]
    counts = [head(data, 0).record_count for data in batches]
    assert table.is_appended.tolist() == [
        kind for kind, count in zip(appended, counts, strict=True) for _ in range(count)
    ]


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(1, 3))
def test_whatever_the_bytes_are_the_table_is_right_or_there_is_none(seed: int, flips: int) -> None:
    rng = Random(seed)
    batches = made([[(5, b"key", bytes(70), 1), (200, None, b"value", 0), (6, b"", None, 0)]], [0])
    which = rng.randrange(len(batches))
    damaged = bytearray(batches[which])
    for _ in range(flips):
        damaged[rng.randrange(23, len(damaged))] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
    batches[which] = bytes(damaged)
    table = read_table(batches)
    if table is not None:
        assert rows_of(table) == one_by_one(batches)


def test_what_is_not_plain_has_no_table() -> None:
    plain = made([[(0, b"k", b"v", 0)]], [0])
    assert read_table(plain) is not None
    assert read_table(plain[: WIDTH_MIN - 1]) is None
    with_headers = kafka.Batch(0, 0, 3, (kafka.Rec(0, 0, b"k", b"v", (("h", b"v"),)),), 0, 0)
    assert read_table([*plain, kafka.encode_batch(with_headers)]) is None
    long = kafka.Batch(0, 999, 3, tuple(kafka.Rec(n, 0, b"k", b"v") for n in range(1000)), 0, 0)
    assert read_table([*plain, kafka.encode_batch(long)]) is None
    behind = kafka.encode_batch(kafka.Batch(0, 0, 3, (kafka.Rec(5, 0, b"k", b"v"),), 0, 0))
    assert read_table([*plain, behind]) is None
    cut = bytearray(plain[0])
    cut[57:61] = (2).to_bytes(4, "big")
    assert read_table([*plain, bytes(cut)]) is None
    assert read_table([*plain, plain[0] + b"\0"]) is None


def test_what_unpacks_to_too_much_has_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = made([[(0, b"k", bytes(9000), 0)]], [4])
    assert read_table(batches) is not None
    monkeypatch.setattr(record_table, "UNPACKED_MAX", 100_000)
    assert read_table(batches) is None


def test_hashes_are_those_of_each_batch_and_a_bad_one_has_none() -> None:
    batches = made([[(0, None, b"v", 0), (1, b"", None, 0), (2, b"k", b"", 0)]], [0, 3])
    bad = bytearray(batches[7])
    bad[HEAD_SIZE] ^= 2
    for group in (batches, [*batches[:7], bytes(bad), *batches[8:]]):
        wanted, found = new_rows(), new_rows()
        for data in group:
            try:
                hash_records(data, head(data, 0), wanted)
            except BadRecords:
                assert data == bytes(bad)
        hash_all(joined(group), found)
        assert found == wanted and len(found[0]) in (3 * len(batches), 3 * (len(batches) - 1))
