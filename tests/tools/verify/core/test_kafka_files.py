"""Kafka's files beside a log: what is written is read, and whatever the bytes are, only BadFile is raised."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.verify import kafka_bytes
from tools.verify.core.kafka_files import (
    Aborted,
    BadFile,
    Producer,
    Sent,
    aborted_transactions,
    directory_properties,
    leader_epochs,
    offset_entries,
    offset_points,
    partition_topic_id,
    producer_snapshot,
    time_entries,
)

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I16 = st.integers(-(1 << 15), (1 << 15) - 1)
SENT = st.builds(Sent, I32, I64, I32, I64)
PRODUCERS = st.lists(
    st.builds(Producer, I64, I16, SENT, I32, I64, st.lists(SENT, max_size=4).map(tuple)),
    unique_by=lambda producer: producer.producer_id,
    max_size=6,
)
READERS: list[Callable[[bytes], Any]] = [
    offset_entries,
    time_entries,
    aborted_transactions,
    producer_snapshot,
    leader_epochs,
    offset_points,
    partition_topic_id,
    directory_properties,
]


def snapshot_bytes(producers: list[Producer], *, note: bytes | None = None) -> bytes:
    rows = [
        kafka_bytes.Producer(
            one.producer_id, one.epoch, *one.last, one.coordinator_epoch, one.transaction_start
        )
        for one in producers
    ]
    more = b"" if note is None else b"NOTE" + struct.pack(">H", len(note)) + note
    older = b"".join(
        struct.pack(">qB", each.producer_id, len(each.older))
        + b"".join(struct.pack(">iqiq", *sent) for sent in each.older)
        for each in producers
        if each.older
    )
    return kafka_bytes.producer_snapshot(rows, more + (b"OLD1" + older if older else b""))


@given(PRODUCERS, st.none() | st.binary(max_size=40))
def test_a_snapshot_is_read_with_the_older_batches_behind_it(
    producers: list[Producer], note: bytes | None
) -> None:
    assert list(producer_snapshot(snapshot_bytes(producers, note=note)).values()) == producers


@given(st.lists(st.tuples(I32, I32), max_size=9), st.integers(0, 7), st.booleans())
def test_an_offset_index_is_read_without_what_was_allocated_behind_it(
    rows: list[tuple[int, int]], rest: int, is_allocated: bool
) -> None:
    used = [row for row in rows if row != (0, 0)]
    data = kafka_bytes.offset_index(used) + (bytes(80) if is_allocated else b"") + bytes(rest)
    found = offset_entries(data)
    assert list(zip(found.first.tolist(), found.second.tolist(), strict=True)) == used
    assert found.rest == rest


@given(st.lists(st.tuples(I64, I32), max_size=9))
def test_a_time_index_is_read(rows: list[tuple[int, int]]) -> None:
    used = [row for row in rows if row != (0, 0)]
    found = time_entries(kafka_bytes.time_index(used))
    assert list(zip(found.first.tolist(), found.second.tolist(), strict=True)) == used


@given(st.lists(st.tuples(I64, I64, I64, I64), max_size=5), st.integers(0, 33))
def test_a_transaction_index_is_read_and_a_piece_of_an_entry_refused(
    rows: list[tuple[int, int, int, int]], rest: int
) -> None:
    data = kafka_bytes.transaction_index([kafka_bytes.Aborted(*row) for row in rows])
    if rest:
        with pytest.raises(BadFile) as refused:
            aborted_transactions(data + bytes(rest))
        assert refused.value.position == len(data)
    else:
        assert aborted_transactions(data) == [Aborted(*row) for row in rows]


@given(st.dictionaries(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1), max_size=6))
def test_leader_epochs_are_read_in_order(found: dict[int, int]) -> None:
    rows = list(zip(sorted(found), sorted(found.values()), strict=True))
    assert leader_epochs(kafka_bytes.epochs_file(rows)) == rows
    if len(rows) > 1:
        with pytest.raises(BadFile, match="out of order"):
            leader_epochs(kafka_bytes.epochs_file(rows[::-1]))


@given(
    st.dictionaries(
        st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 99)),
        st.integers(-1, (1 << 63) - 1),
        max_size=6,
    )
)
def test_checkpoints_are_read(points: dict[tuple[str, int], int]) -> None:
    assert offset_points(kafka_bytes.points_file(points)) == points


@pytest.mark.parametrize(
    ("data", "position", "why"),
    [
        (b"1\n0\n", 0, "version"),
        (b"0\n1\na 0 5", 9, "no end"),
        (b"0\n2\na 0 5\n", 2, "2 lines are told, 1 are there"),
        (b"0\n1\na 0\n", 4, "not a topic"),
        (b"0\n2\na 0 5\na 0 6\n", 10, "twice"),
        (b"0\n1\na 0 9223372036854775808\n", 4, "not a number of 64 bits"),
        (b"0\n\xff\n", 2, "not text"),
        (b"", 0, "version"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused_at_its_byte(data: bytes, position: int, why: str) -> None:
    with pytest.raises(BadFile, match=why) as refused:
        offset_points(data)
    assert refused.value.position == position


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:9], "9 bytes"),
        (lambda data: b"\0\2" + data[2:], "version 2"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        (lambda data: checked(b"\0\0\0\2" + data[10:]), "2 producers"),
        (lambda data: checked(b"\x7f\xff\xff\xff" + data[10:]), "2147483647 producers"),
        (lambda data: checked(b"\0\0\0\2" + data[10:60] * 2), "producer 7 twice"),
        (lambda data: checked(data[6:] + b"OLD1" + struct.pack(">qB", 8, 1) + bytes(24)), "older batches of"),
        (lambda data: checked(data[6:] + b"OLD1" + struct.pack(">qB", 7, 2) + bytes(24)), "not whole"),
        (lambda data: checked(data[6:] + b"NOTE\0"), "not whole"),
    ],
)
def test_a_snapshot_that_is_none_is_refused(change: Callable[[bytes], bytes], why: str) -> None:
    data = snapshot_bytes([Producer(7, 0, Sent(1, 2, 0, 3), -1, -1)])
    producer_snapshot(data)
    with pytest.raises(BadFile, match=why):
        producer_snapshot(change(data))


def checked(body: bytes) -> bytes:
    return struct.pack(">hI", 1, crc32c(body)) + body


@given(st.binary(max_size=300))
def test_whatever_the_bytes_are_they_are_read_or_refused(data: bytes) -> None:
    for reader in READERS:
        for each in (data, b"0\n1\n" + data, checked(data), b"\0\0" + data):
            try:
                reader(each)
            except BadFile as refused:
                assert 0 <= refused.position <= len(each)


def test_the_topic_id_and_the_properties_of_a_directory() -> None:
    assert partition_topic_id(b"version: 0\ntopic_id: 0bWkZ1DLS9mFlNbIkEXpbg\n") == "0bWkZ1DLS9mFlNbIkEXpbg"
    for bad in (b"", b"version: 1\ntopic_id: 0bWkZ1DLS9mFlNbIkEXpbg\n", b"version: 0\ntopic_id: x\n"):
        with pytest.raises(BadFile):
            partition_topic_id(bad)
    text = b"#\n#Mon Nov 23 2026\nnode.id=3\ncluster.id=a\\=b\n"
    assert directory_properties(text) == {"node.id": "3", "cluster.id": "a=b"}
