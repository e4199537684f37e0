"""Records of __remote_log_metadata: there and back, Kafka's own bytes, and any bytes at all."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.remote_log import (
    DeletionRow,
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

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT8 = st.integers(-128, 127)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
CUSTOM = st.none() | st.binary(max_size=200)
PARTITION = (TEXT, st.uuids(), INT32)
EPOCHS = st.lists(st.tuples(INT32, INT64), max_size=200).map(tuple)
COPY = (INT64, INT64, INT32, INT64, INT64, EPOCHS, INT32, CUSTOM, INT8, st.booleans())
SEGMENTS = st.builds(SegmentRow, *PARTITION, st.uuids(), *COPY)
UPDATES = st.builds(UpdateRow, *PARTITION, st.uuids(), INT32, INT64, CUSTOM, INT8)
DELETIONS = st.builds(DeletionRow, *PARTITION, INT32, INT64, INT8)
SNAPSHOTS = st.builds(SnapshotRow, st.uuids(), *COPY)
KEYS = st.builds(RowKey, st.uuids(), INT32, st.none(), st.just(False)) | st.builds(
    RowKey, st.uuids(), INT32, st.uuids(), st.booleans()
)


@given(SEGMENTS | UPDATES | DELETIONS | SNAPSHOTS)
def test_a_row_reads_back(row: SegmentRow | UpdateRow | DeletionRow | SnapshotRow) -> None:
    value = encode_row(row)
    assert decode_row(value) == row
    assert type(decode_row(memoryview(value))) is type(row)


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


@given(SEGMENTS, st.binary(max_size=20))
def test_tagged_fields_of_a_later_kafka_are_skipped(row: SegmentRow, data: bytes) -> None:
    known = b"\x00\x01\x01" if row.is_txn_index_empty else b""
    tags = bytes((1 + bool(known),)) + known + bytes((9, len(data))) + data
    value = encode_row(row)
    value = value[: -4 if row.is_txn_index_empty else -1]
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
