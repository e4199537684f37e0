"""Records of __remote_log_metadata: there and back, Kafka's own bytes, and any bytes at all."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.remote_log import (
    CopyFields,
    DeletionRow,
    Row,
    RowKey,
    SegmentRow,
    SnapshotRow,
    UpdateRow,
    decode_key,
    decode_row,
    encode_key,
    encode_row,
    key_of,
)
from protocol.stored.schema import BadRecord

HERE = Path(__file__).parent
TOPIC_ID = UUID("f18cb3a1-6b53-4ac4-8e1f-1e037c0edd5d")
LEAST, MOST = UUID(int=5), UUID(int=(1 << 128) - 1)
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
BY_KAFKA: list[Row] = [
    SegmentRow(
        "logs",
        TOPIC_ID,
        7,
        UUID("11223344-5566-7788-99aa-bbccddeeff00"),
        CopyFields(
            100,
            199,
            1,
            1_700_000_000_000,
            1_700_000_000_123,
            ((0, 100), (3, 150)),
            1 << 20,
            None,
            0,
            False,
        ),
    ),
    SegmentRow("logs", TOPIC_ID, 7, LEAST, CopyFields(0, 0, 2, -1, 5, ((0, 0),), 69, b"", 0, True)),
    SegmentRow(
        "t\xe4g",
        UUID(int=1 << 127),
        INT32_MAX,
        MOST,
        CopyFields(
            1 << 62,
            INT64_MAX - 1,
            INT32_MAX,
            INT64_MAX,
            INT64_MAX,
            ((INT32_MAX, 1 << 62),),
            INT32_MAX,
            bytes(range(256)),
            0,
            True,
        ),
    ),
    UpdateRow("logs", TOPIC_ID, 7, LEAST, 1, 1_700_000_000_456, None, 1),
    UpdateRow("logs", TOPIC_ID, 7, LEAST, 1, 1_700_000_000_456, b"where", 2),
    UpdateRow("logs", TOPIC_ID, 7, LEAST, 1, 1_700_000_000_456, b"", 3),
    DeletionRow("logs", TOPIC_ID, 7, 1, 1_700_000_000_789, 0),
    DeletionRow("logs", TOPIC_ID, 7, 1, 1_700_000_000_789, 1),
    DeletionRow("x" * 249, TOPIC_ID, 0, 0, 0, 2),
    SnapshotRow(
        LEAST,
        CopyFields(
            100,
            199,
            1,
            1_700_000_000_000,
            1_700_000_000_123,
            ((0, 100), (3, 150)),
            1 << 20,
            None,
            1,
            False,
        ),
    ),
    SnapshotRow(
        UUID(int=6),
        CopyFields(100, 199, 1, 1_700_000_000_000, 1_700_000_000_123, ((0, 100),), 0, b"abc", 2, True),
    ),
]
"""What the lines of kafka-remote-log-records.tsv say: Kafka's bytes in hex, a tab, Kafka's own words."""

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT8 = st.integers(-128, 127)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
CUSTOM = st.none() | st.binary(max_size=200)
PARTITION = (TEXT, st.uuids(), INT32)
EPOCHS = st.lists(st.tuples(INT32, INT64), max_size=200).map(tuple)
COPY = st.builds(CopyFields, INT64, INT64, INT32, INT64, INT64, EPOCHS, INT32, CUSTOM, INT8, st.booleans())
SEGMENTS = st.builds(SegmentRow, *PARTITION, st.uuids(), COPY)
UPDATES = st.builds(UpdateRow, *PARTITION, st.uuids(), INT32, INT64, CUSTOM, INT8, st.none() | INT64)
DELETIONS = st.builds(DeletionRow, *PARTITION, INT32, INT64, INT8)
SNAPSHOTS = st.builds(SnapshotRow, st.uuids(), COPY)
KEYS = st.builds(RowKey, st.uuids(), INT32, st.none(), st.just(False)) | st.builds(
    RowKey, st.uuids(), INT32, st.uuids(), st.booleans()
)


@given(SEGMENTS | UPDATES | DELETIONS | SNAPSHOTS)
def test_a_row_reads_back(row: SegmentRow | UpdateRow | DeletionRow | SnapshotRow) -> None:
    value = encode_row(row)
    assert decode_row(value) == row
    assert type(decode_row(memoryview(value))) is type(row)


@pytest.mark.requirement("X-7")
def test_rows_are_kafkas_byte_for_byte() -> None:
    lines = (HERE / "kafka-remote-log-records.tsv").read_text().splitlines()
    for row, line in zip(BY_KAFKA, lines, strict=True):
        value = bytes.fromhex(line.partition("\t")[0])
        assert encode_row(row) == value
        assert decode_row(value) == row


@pytest.mark.kafka
@pytest.mark.requirement("X-7")
def test_kafka_reads_rows_and_writes_the_same_bytes(kafka_home: Path) -> None:
    """It skips what is ours alone."""
    rng = random.Random(405)
    rows = BY_KAFKA + [any_row(rng) for _ in range(1000)]
    values = [encode_row(row).hex() for row in rows]
    read = [encode_row(row._replace(log_start=None) if isinstance(row, UpdateRow) else row) for row in rows]
    done = subprocess.run(
        ["java", "-cp", f"{kafka_home}/config:{kafka_home}/libs/*", str(HERE / "RemoteLogRows.java")],
        input="\n".join(values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [value.hex() for value in read]


def any_row(rng: random.Random) -> Row:
    """A row that Kafka's classes take."""

    def custom() -> bytes | None:
        return rng.choice([None, rng.randbytes(rng.choice([0, 1, 127, 128, 5000]))])

    topic = "t" * rng.choice([1, 62, 126, 127, 249])
    partition = (topic, UUID(int=rng.getrandbits(128)), rng.getrandbits(31))
    segment_id = UUID(int=rng.getrandbits(128))
    event = (rng.getrandbits(31), rng.getrandbits(rng.choice([10, 40, 63])))
    kind = rng.randrange(4)
    if kind == 1:
        log_start = rng.choice([None, rng.getrandbits(62)])
        return UpdateRow(*partition, segment_id, *event, custom(), rng.randrange(4), log_start)
    if kind == 2:
        return DeletionRow(*partition, *event, rng.randrange(3))
    base, last = sorted(rng.getrandbits(rng.choice([10, 40, 62])) for _ in range(2))
    epochs = sorted(rng.sample(range(INT32_MAX), rng.choice([1, 2, 126, 127, 200])))
    copy = (
        base,
        last,
        event[0],
        rng.getrandbits(40),
        event[1],
        tuple((epoch, base + at) for at, epoch in enumerate(epochs)),
        rng.getrandbits(31),
        custom(),
    )
    has_empty_index = rng.random() < 0.5
    if kind == 3:
        return SnapshotRow(segment_id, CopyFields(*copy, rng.randrange(4), has_empty_index))
    return SegmentRow(*partition, segment_id, CopyFields(*copy, 0, has_empty_index))


@given(KEYS)
def test_a_key_reads_back(key: RowKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(SEGMENTS | UPDATES | DELETIONS)
def test_a_key_names_whom_its_row_is_about(row: SegmentRow | UpdateRow | DeletionRow) -> None:
    key = key_of(row)
    assert (key.topic_id, key.partition) == (row.topic_id, row.partition)
    assert key.segment_id == getattr(row, "segment_id", None)
    assert key.is_update == isinstance(row, UpdateRow)


@given(SEGMENTS | UPDATES | DELETIONS | SNAPSHOTS, st.data())
def test_a_row_that_is_cut_or_longer_is_bad(
    row: SegmentRow | UpdateRow | DeletionRow | SnapshotRow, data: st.DataObject
) -> None:
    value = encode_row(row)
    with pytest.raises(BadRecord):
        decode_row(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(BadRecord):
        decode_row(value + b"\x00")


@given(st.binary(max_size=120))
def test_any_bytes_are_a_row_or_bad(data: bytes) -> None:
    for kind in (b"", b"\x01\x00\x00", b"\x01\x01\x00", b"\x01\x02\x00", b"\x01\x03\x00"):
        try:
            decode_row(kind + data)
        except BadRecord:
            continue
    try:
        assert encode_key(decode_key(data)) == data
    except BadRecord:
        pass


def test_a_log_start_of_another_length_is_bad() -> None:
    row = UpdateRow("t", UUID(int=1), 0, UUID(int=0), 1, 2, None, 1, 5)
    value = encode_row(row)
    assert decode_row(value) == row
    with pytest.raises(BadRecord):
        decode_row(value[:-9] + bytes((7,)) + value[-7:])


@given(SEGMENTS, st.binary(max_size=20))
def test_tagged_fields_of_a_later_kafka_are_skipped(row: SegmentRow, data: bytes) -> None:
    known = b"\x00\x01\x01" if row.copy.is_txn_index_empty else b""
    tags = bytes((1 + bool(known),)) + known + bytes((9, len(data))) + data
    value = encode_row(row)
    value = value[: -4 if row.copy.is_txn_index_empty else -1]
    assert decode_row(value + tags) == row


@pytest.mark.parametrize("head", [b"\x00\x00\x00", b"\x02\x00\x00", b"\x01\x04\x00", b"\x01\x00\x01", b""])
def test_other_frames_types_and_versions_are_bad(head: bytes) -> None:
    row = UpdateRow("t", UUID(int=1), 0, UUID(int=2), 1, 2, None, 1)
    with pytest.raises(BadRecord):
        decode_row(head + encode_row(row)[3:])


@pytest.mark.parametrize("at", [0, 1])
def test_keys_of_other_versions_and_types_are_bad(at: int) -> None:
    for key in (RowKey(UUID(int=1), 2, None), RowKey(UUID(int=1), 2, UUID(int=3))):
        data = bytearray(encode_key(key))
        data[at] = 7
        with pytest.raises(BadRecord):
            decode_key(data)
