"""Records of the WAL tier's metadata topic there and back, and what is none."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.schema import BadRecord
from protocol.stored.wal_log import (
    ObjectPlace,
    ObjectRow,
    Row,
    SliceEntry,
    SliceRow,
    decode_key,
    decode_row,
    encode_entries,
    encode_key,
    encode_object,
    encode_row,
    key_of,
)

I8, I32 = st.integers(-128, 127), st.integers(-(2**31), 2**31 - 1)
U32, I64 = st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1)
PLACES = st.builds(ObjectPlace, I32, I64, U32, I64)
ENTRIES = st.builds(SliceEntry, st.uuids(), I32, st.uuids(), I64, I64, I32, I64, I64)
CUSTOM = st.none() | st.binary(max_size=200)
OBJECT_ROWS = st.builds(
    ObjectRow,
    st.booleans(),
    st.uuids(),
    PLACES,
    st.lists(ENTRIES, max_size=4).map(tuple),
    I32,
    I64,
    CUSTOM,
    I8,
)
SLICE_ROWS = st.builds(
    SliceRow, st.booleans(), st.text(max_size=20), ENTRIES, st.uuids(), I32, PLACES, I32, I64, CUSTOM, I8
)
ROWS = OBJECT_ROWS | SLICE_ROWS


@pytest.mark.requirement("1176-23", "1176-24", "1176-25")
@given(ROWS)
def test_records_there_and_back(row: Row) -> None:
    assert decode_row(encode_row(row)) == row
    assert decode_key(encode_key(key_of(row))) == key_of(row)


@pytest.mark.requirement("1176-23")
@given(OBJECT_ROWS)
def test_many_entries_are_encoded_alike_the_fast_way(row: ObjectRow) -> None:
    entries = encode_entries((each[0].bytes, each[1], each[2].bytes, *each[3:]) for each in row.entries)
    value = encode_object(
        is_update=row.is_update,
        combined_id=row.combined_id.bytes,
        place=row.place,
        entries=entries,
        broker_id=row.broker_id,
        event_timestamp_ms=row.event_timestamp_ms,
        custom=row.custom,
        state=row.state,
    )
    assert value == encode_row(row)


@given(ROWS, st.data())
def test_what_is_cut_or_goes_on_is_no_record(row: Row, data: st.DataObject) -> None:
    value, key = encode_row(row), encode_key(key_of(row))
    with pytest.raises(BadRecord):
        decode_row(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(BadRecord):
        decode_row(value + b"\0")
    with pytest.raises(BadRecord):
        decode_key(key[: data.draw(st.integers(0, len(key) - 1))])
    with pytest.raises(BadRecord):
        decode_key(key + b"\0")


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_else(garbage: bytes) -> None:
    for read in (decode_row, decode_key):
        try:
            read(garbage)
        except BadRecord:
            continue


@given(ROWS, ROWS)
def test_what_compaction_may_drop_is_about_the_same_thing(one: Row, other: Row) -> None:
    assert (encode_key(key_of(one)) == encode_key(key_of(other))) == (key_of(one) == key_of(other))


def test_a_record_of_a_later_frame_is_refused() -> None:
    place = ObjectPlace(1, 2, 3, 4)
    value = encode_row(ObjectRow(False, UUID(int=1), place, (), 1, 2, None, 0))
    for wrong in (b"\x02" + value[1:], value[:1] + b"\x04" + value[2:], value[:2] + b"\x01" + value[3:]):
        with pytest.raises(BadRecord, match="in frame"):
            decode_row(wrong)
