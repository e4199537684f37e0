"""What the records of the metadata topic add up to: in any order, more than once, from any offset on, and
after compaction.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.wal_log import Row as LogRecord
from protocol.stored.wal_log import RowKey, decode_key, decode_row
from remote.keys import Stream
from remote.wal.combined_object import Head, ObjectKind, Place, Row, Table
from remote.wal.journal import (
    Journal,
    LogRow,
    ObjectState,
    Teller,
    deletion_rows,
    differences,
    encode_slices,
    entries_of,
    finished_row,
    fold,
    may_follow,
    stream_rows,
)
from tests.remote.wal.wal_samples import objects

TELLER = Teller(1, 1_700_000_000_000)
STREAM = Stream(1, 5, 0)
STATES = list(ObjectState)


def read(row: LogRow) -> tuple[RowKey, LogRecord | None]:
    return decode_key(row[0]), None if row[1] is None else decode_row(row[1])


def counts(seq: int, *, stream: Stream = STREAM, put_id: bytes = b"p" * 16) -> list[LogRow]:
    return [finished_row(Place(stream, seq), put_id, b"", TELLER)]


def goes(seq: int, *, stream: Stream = STREAM) -> list[LogRow]:
    return deletion_rows(Place(stream, seq), ObjectState.DELETE_STARTED, TELLER)


def is_gone(seq: int, *, stream: Stream = STREAM) -> list[LogRow]:
    return deletion_rows(Place(stream, seq), ObjectState.DELETE_FINISHED, TELLER)


SEQS = st.integers(0, 3)
EVENTS = st.one_of(
    SEQS.map(counts),
    SEQS.map(goes),
    st.sampled_from([ObjectState.COPY_STARTED, ObjectState.COPY_FINISHED]).map(
        lambda state: stream_rows(STREAM, state, TELLER)
    ),
)
LOGS = st.lists(st.one_of(EVENTS, SEQS.map(is_gone)), max_size=20)


def folded(events: list[list[LogRow]]) -> Journal:
    return fold(read(row) for event in events for row in event)


@given(st.lists(EVENTS, max_size=12), st.data())
@pytest.mark.requirement("1176-27", "1176-29")
def test_facts_mean_the_same_in_any_order_and_any_number_of_times(
    events: list[list[LogRow]], data: st.DataObject
) -> None:
    again = data.draw(st.permutations(events + data.draw(st.lists(st.sampled_from(events or [[]])))))
    assert folded(again) == folded(events)


@given(LOGS, st.data())
@pytest.mark.requirement("1176-22")
def test_a_log_that_is_read_again_from_anywhere_means_the_same(
    log: list[list[LogRow]], data: st.DataObject
) -> None:
    assert folded(log + log[data.draw(st.integers(0, len(log))) :]) == folded(log)


@given(LOGS, st.booleans())
@pytest.mark.requirement("1176-22", "1176-46")
def test_what_compaction_leaves_means_the_same(log: list[list[LogRow]], has_tombstones: bool) -> None:
    rows = [row for event in log for row in event]
    last = {key: number for number, (key, _) in enumerate(rows)}
    left = [
        row
        for number, row in enumerate(rows)
        if last[row[0]] == number and (has_tombstones or row[1] is not None)
    ]
    assert fold(map(read, left)) == folded(log)


@pytest.mark.requirement("1176-27")
def test_the_states_are_those_of_the_tier_before() -> None:
    legal = {(one.value, other.value) for one in STATES for other in STATES if may_follow(one, other)}
    assert legal == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)}
    assert [state for state in STATES if may_follow(None, state)] == [ObjectState.COPY_STARTED]


@given(LOGS)
@pytest.mark.requirement("1176-27")
def test_no_object_goes_back_before_it_is_gone(log: list[list[LogRow]]) -> None:
    journal = Journal()
    for event in log:
        before = {place: known.state for place, known in journal.objects.items()}
        for row in event:
            journal.apply(*read(row))
        for place, known in journal.objects.items():
            assert known.state >= before.get(place, known.state)


@pytest.mark.requirement("1176-26")
def test_only_what_is_finished_is_to_be_read() -> None:
    journal = folded([counts(0), counts(1), counts(2), goes(1)])
    assert [place.seq for place, _ in journal.finished()] == [0, 2]


def test_what_is_gone_leaves_nothing() -> None:
    assert folded([counts(0), goes(0), is_gone(0)]).objects == {}
    assert folded([goes(0), is_gone(0)]).objects == {}


def test_a_reader_that_comes_between_the_two_keys_of_what_is_gone_does_not_take_it_for_there() -> None:
    rows = [*counts(0), *goes(0), *is_gone(0)]
    for end in range(2, len(rows) + 1):
        assert list(fold(map(read, rows[:end])).finished()) == []


@given(objects())
@pytest.mark.requirement("1176-23", "1176-28")
def test_one_record_tells_an_object_with_all_its_slices(
    made: tuple[Head, list[Row], list[bytes], bytes],
) -> None:
    head, rows, _, _ = made
    table = Table(head=head, rows=tuple(rows), body_at=rows[0].position)
    entries = b"".join(encode_slices(head.put_id, tuple(rows)))
    journal = folded([[finished_row(head.place, head.put_id, entries, TELLER)]])
    ((place, row),) = journal.finished()
    assert place == head.place
    assert row.entries == entries_of(table)
    for slice_, entry in zip(rows, row.entries, strict=True):
        assert (entry.topic_id, entry.partition, entry.leader_epoch) == (
            slice_.topic_id,
            slice_.partition,
            slice_.leader_epoch,
        )
        assert (entry.start_offset, entry.end_offset) == (slice_.start, slice_.end)
        assert (entry.start_position, entry.end_position) == (
            slice_.position,
            slice_.position + slice_.size - 1,
        )
    assert len({entry.segment_id for entry in row.entries} | {row.combined_id}) == len(rows) + 1
    assert differences(journal, {place: table}, journal) == []
    other = replace(table, head=replace(head, put_id=bytes(b ^ 1 for b in head.put_id)))
    assert [each.what for each in differences(journal, {place: other}, journal)] == ["other"]


def a_table(seq: int) -> Table:
    head = Head(
        kind=ObjectKind.SLICES,
        cluster_id="c",
        place=Place(STREAM, seq),
        put_id=b"p" * 16,
        metadata_seq=1,
        writer=(1, 5),
        written_ms=0,
    )
    return Table(head=head, rows=(), body_at=0)


def test_what_differs_is_named_and_what_comes_or_goes_is_not() -> None:
    bucket = {Place(STREAM, seq): a_table(seq) for seq in (1, 2, 4)}
    before = folded([counts(0), counts(1), counts(5)])
    after = folded([counts(1), counts(2), counts(5)])  # 0 went, 2 came
    found = differences(before, bucket, after)
    assert [(each.what, each.place.seq) for each in found] == [("untold", 4), ("missing", 5)]
