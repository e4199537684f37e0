"""Events as records: each comes back, each copy and each deletion has keys of its own."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.remote_log import CopyFields, SegmentRow, SnapshotRow, UpdateRow, encode_row
from protocol.stored.schema import BadRecord
from remote.cold.events import NO_COPY, Tombstone, decode_event, encode_event, tombstones, updated
from remote.cold.segments import (
    LogStartMoved,
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TieredPartition,
    TierEvent,
)
from tests.remote.cold.copies import PARTITION, copy_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OFFSET = st.integers(0, (1 << 62))
PARTITIONS = st.builds(TieredPartition, st.uuids(), INT32)
CUSTOM = st.none() | st.binary(max_size=20)
SEGMENTS = st.tuples(OFFSET, OFFSET).flatmap(
    lambda offsets: st.builds(
        RemoteSegment,
        partition=PARTITIONS,
        topic=TEXT,
        id=st.uuids(),
        base_offset=st.just(min(offsets)),
        end_offset=st.just(max(offsets) + 1),
        broker_id=INT32,
        max_timestamp_ms=INT64,
        event_timestamp_ms=INT64,
        size_bytes=INT32,
        epochs=st.lists(st.tuples(INT32, INT64), max_size=3).map(tuple),
        has_aborted=st.booleans(),
        state=st.sampled_from(SegmentState),
        custom=CUSTOM,
    )
)
EVENTS: st.SearchStrategy[TierEvent] = (
    st.builds(SegmentStarted, segment=SEGMENTS)
    | st.builds(
        SegmentUpdated,
        partition=PARTITIONS,
        topic=TEXT,
        id=st.uuids(),
        state=st.sampled_from(SegmentState),
        broker_id=INT32,
        event_timestamp_ms=INT64,
        custom=CUSTOM,
    )
    | st.builds(
        PartitionDeletion,
        partition=PARTITIONS,
        topic=TEXT,
        state=st.sampled_from(PartitionState),
        broker_id=INT32,
        event_timestamp_ms=INT64,
    )
    | st.builds(
        LogStartMoved,
        partition=PARTITIONS,
        topic=TEXT,
        log_start=OFFSET,
        broker_id=INT32,
        event_timestamp_ms=INT64,
    )
)


@given(EVENTS)
def test_an_event_comes_back(event: TierEvent) -> None:
    key, value = encode_event(event)
    assert decode_event(key, value) == event
    assert decode_event(None, value) == event, "Kafka writes no keys"


@given(EVENTS, EVENTS)
def test_a_value_under_the_key_of_another_is_bad(event: TierEvent, other: TierEvent) -> None:
    key, value = encode_event(event)
    other_key, _ = encode_event(other)
    if key != other_key:
        with pytest.raises(BadRecord):
            decode_event(other_key, value)


def test_the_tombstones_of_a_copy_are_for_its_start_then_its_updates() -> None:
    segment = copy_of(((0, 0),), 0, 5, number=1)
    start_key, _ = encode_event(SegmentStarted(segment=segment))
    update = updated(segment, SegmentState.DELETE_FINISHED, broker_id=1, now_ms=5)
    update_key, _ = encode_event(update)
    keys = tombstones(PARTITION, segment.id)
    assert keys == [start_key, update_key]
    assert [decode_event(key, None) for key in keys] == [
        Tombstone(PARTITION, segment.id, False),
        Tombstone(PARTITION, segment.id, True),
    ]


def test_the_tombstone_of_a_deletion_is_for_the_partition() -> None:
    event = PartitionDeletion(
        partition=PARTITION,
        topic="logs",
        state=PartitionState.DELETE_FINISHED,
        broker_id=1,
        event_timestamp_ms=5,
    )
    key, _ = encode_event(event)
    assert tombstones(PARTITION, None) == [key]
    assert decode_event(key, None) == Tombstone(PARTITION, None)


def test_the_tombstone_of_a_log_start_comes_before_that_of_the_deletion() -> None:
    event = LogStartMoved(partition=PARTITION, topic="logs", log_start=7, broker_id=1, event_timestamp_ms=5)
    key, _ = encode_event(event)
    assert tombstones(PARTITION, None, has_log_start=True) == [key, *tombstones(PARTITION, None)]
    assert decode_event(key, None) == Tombstone(PARTITION, NO_COPY, True)


def test_an_update_carries_custom_metadata_on() -> None:
    segment = copy_of(((0, 0),), 0, 5, number=1)
    finished = updated(segment, SegmentState.COPY_FINISHED, broker_id=1, now_ms=5, custom=b"there")
    assert finished.custom == b"there"
    kept = replace(segment, state=SegmentState.COPY_FINISHED, custom=b"there")
    assert updated(kept, SegmentState.DELETE_STARTED, broker_id=2, now_ms=6).custom == b"there"


COPY = CopyFields(5, 9, 1, 2, 3, ((0, 5),), 10, None, 0, False)
ROW = SegmentRow("t", UUID(int=1), 0, UUID(int=2), COPY)


@pytest.mark.parametrize(
    "value",
    [
        encode_row(SnapshotRow(ROW.segment_id, COPY)),
        encode_row(ROW._replace(copy=COPY._replace(base_offset=-1))),
        encode_row(ROW._replace(copy=COPY._replace(last_offset=4))),
        encode_row(ROW._replace(copy=COPY._replace(last_offset=(1 << 63) - 1))),
        encode_row(ROW._replace(copy=COPY._replace(state=4))),
        encode_row(UpdateRow("t", UUID(int=1), 0, NO_COPY, 1, 2, None, 1, -1)),
        b"",
    ],
)
def test_records_that_tell_no_event_are_bad(value: bytes) -> None:
    assert decode_event(None, encode_row(ROW))
    with pytest.raises(BadRecord):
        decode_event(None, value)


def test_a_record_of_nothing_is_bad() -> None:
    with pytest.raises(BadRecord):
        decode_event(None, None)
    with pytest.raises(BadRecord):
        decode_event(b"?", None)
