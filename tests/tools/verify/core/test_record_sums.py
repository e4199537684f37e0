"""Records of a log as hashes and sums: of every codec, from real brokers, and whatever the bytes are."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.verify.core.logs import batch, marker, record
from tests.verify import kafka_bytes
from tools.verify.core.batches import RunScanner, batches
from tools.verify.core.directory import list_directory
from tools.verify.core.facts import Fault, RecordDigest
from tools.verify.core.heads import head
from tools.verify.core.log_reading import check_log
from tools.verify.core.manifest_digests import hash_of, record_digests
from tools.verify.core.record_sums import RecordSums, hash_records, new_rows
from tools.verify.core.records import BadRecords, read_records
from tools.verify.core.stores import open_source

Told = list[tuple[int, bytes | None, bytes | None]]


def sums_of(data: bytes, pieces: int = 1 << 30) -> tuple[list[RecordDigest], list[Fault]]:
    sums = RecordSums("p")
    scanner = RunScanner("p", on_data=sums.add)
    for start in range(0, len(data), pieces):
        scanner.feed(data[start : start + pieces])
    scanner.finish()
    return sums.finish(), sums.faults


def expected(told: Told, place: str = "p") -> list[RecordDigest]:
    columns = (
        np.array([each[0] for each in told], np.int64),
        np.array([hash_of(each[1]) for each in told], np.uint64),
        np.array([hash_of(each[2]) for each in told], np.uint64),
    )
    return record_digests(place, *columns)


MAYBE = st.none() | st.binary(max_size=30)


@given(
    st.lists(st.lists(st.tuples(MAYBE, MAYBE), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
    st.sampled_from([1, 50, 300, 1 << 20]),
)
def test_every_record_is_summed_however_it_is_packed(
    contents: list[list[tuple[bytes | None, bytes | None]]], codecs: list[int], pieces: int
) -> None:
    data, told, offset = b"", [], 16_380
    for rows, codec in zip(contents, codecs, strict=False):
        body = b"".join(record(at, value, key, [("h", None)]) for at, (key, value) in enumerate(rows))
        packed = kafka_bytes.compress(codec, body)
        data += batch(offset, [b""] * len(rows), body=packed, attributes=codec)
        told += [(offset + at, key, value) for at, (key, value) in enumerate(rows)]
        data += marker(offset + len(rows), 7, is_commit=True)
        offset += len(rows) + 1
    assert sums_of(data, pieces) == (expected(told), [])


def test_null_is_not_empty() -> None:
    found = {
        tuple(sums_of(batch(0, [value], key=key))[0])
        for key in (None, b"", b"x")
        for value in (None, b"", b"x")
    }
    assert len(found) == 9


@pytest.mark.requirement("1176-16")
def test_the_records_of_real_logs(made: Path) -> None:
    source = open_source(str(made))
    total = 0
    for log in list_directory(source, 0).logs:
        found = check_log(source, 0, log, has_records=True)
        assert found.faults == []
        for base in log.bases:
            key, place = f"{log.name}/{base:020d}.log", f"0:{log.name}/{base:020d}.log"
            data = (made / key).read_bytes()
            told = [
                (each.offset, each.key, each.value)
                for one in batches(data)
                if not one.is_control
                for each in read_records(data[one.position : one.position + one.size], one)
            ]
            assert [each for each in found.records if each.place == place] == expected(told, place)
            total += len(told)
    assert total > 1000


@pytest.mark.parametrize(
    "body",
    [
        record(0, b"x") + b"rest",
        record(0, b"x")[:-1],
        record(5, b"x"),
        b"\xff" * 12,
        b"",
        record(0, b"x").replace(b"\x02x", b"\x7ex"),
    ],
)
def test_records_that_cannot_be_read_are_named_and_not_summed(body: bytes) -> None:
    data = batch(0, [b"fine"]) + batch(1, [b"x"], body=body) + batch(2, [b"fine too"])
    found, faults = sums_of(data)
    assert [(fault.code, fault.position, fault.first, fault.end) for fault in faults] == [
        ("count-mismatch", len(batch(0, [b"fine"])), 1, 2)
    ]
    assert found == expected([(0, None, b"fine"), (2, None, b"fine too")])


@given(st.binary(max_size=80), st.integers(0, 7), st.integers(-1, 1 << 31), st.integers(0, 1 << 20))
def test_hostile_records_are_refused_or_read_by_both_parsers_alike(
    body: bytes, codec: int, count: int, at: int
) -> None:
    good = b"".join(record(n, b"value", b"key") for n in range(3))
    mixed = bytearray(good)
    mixed[at % len(good) : at % len(good) + len(body) // 20] = body[: len(body) // 20]
    for each in (body, bytes(mixed)):
        data = bytearray(batch(0, [b""] * 3, body=each, attributes=codec))
        struct.pack_into(">i", data, 57, min(count, (1 << 31) - 1) if body else 3)
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        told = head(data, 0)
        try:
            surely: object = [
                [each.offset for each in read_records(data, told)],
                [hash_of(each.key) for each in read_records(data, told)],
                [hash_of(each.value) for each in read_records(data, told)],
            ]
        except BadRecords:
            surely = None
        try:
            rows = new_rows()
            hash_records(data, told, rows)
            found: object = [list(column) for column in rows]
        except BadRecords:
            found = None
            assert [len(column) for column in rows] == [0, 0, 0]
        if surely is not None:
            assert found == surely
