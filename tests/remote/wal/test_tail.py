"""The tail of one partition: what its leader points to, sends, and cuts again."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replicas.wal.leading import COARSE_SHARE, SPACING_MAX_S
from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.extents import FORGET_AT, Extent
from remote.wal.tail import DIRECT_AFTER_S, EndTimes, Offer, Tail, TailKey

KEY = TailKey(UUID(int=7), 0)


def tail(*, stored_to: int = 0) -> Tail:
    return Tail(
        KEY, leader_epoch=1, epoch_start=0, stored_to=stored_to, end_times=EndTimes(stored_to, spacing_s=0.1)
    )


def extent(start: int, end: int, seq: int = 0) -> Extent:
    return Extent(start, end, 1, Place(Stream(1, 2, 0), seq), 64, 100, 5)


@given(st.lists(st.tuples(st.floats(0.001, 3), st.integers(1, 5)), min_size=1, max_size=400), st.data())
def test_a_record_is_told_to_be_older_than_it_is_by_less_than_the_spacing(
    steps: list[tuple[float, int]], data: st.DataObject
) -> None:
    times = EndTimes(0, spacing_s=0.5, coarse_s=4.0)
    appended: list[tuple[int, float]] = []
    end, now = 0, 0.0
    for wait_s, count in steps:
        now += wait_s
        end += count
        appended.append((end, now))
        times.note(end, now)
        assert len(times._appends) <= 128 and len(times._older) <= 64
    offset = data.draw(st.integers(0, end - 1))
    written = next(at for upto, at in appended if upto > offset)
    told = times.appended_at(offset)
    if told is None:
        assert now - written > 0.5 * 128 + 4.0 * 63
    else:
        spacing_s = 0.5 if offset >= max((end for _, end in times._older), default=0) else 4.5
        assert written - spacing_s < told <= written
    assert times.appended_at(end) is None


@pytest.mark.parametrize("lag_s", [10, 30, 60, 600])
def test_the_age_of_a_record_is_known_for_longer_than_a_replica_in_sync_may_lag(lag_s: int) -> None:
    spacing_s, coarse_s = min(SPACING_MAX_S, lag_s / 100), lag_s * COARSE_SHARE
    times = EndTimes(0, spacing_s=spacing_s, coarse_s=coarse_s)
    for at in range(100 * lag_s):
        times.note(at + 1, at * 0.05)
    now = 100 * lag_s * 0.05
    for back_s in (0.0, 0.4, 0.9, 1.4):
        written = now - back_s * lag_s
        told = times.appended_at(min(int(written / 0.05), 100 * lag_s - 1))
        assert told is not None
        assert written - coarse_s - spacing_s - 0.1 <= told <= written


def test_what_no_follower_lacks_is_forgotten_but_a_few() -> None:
    it = tail()
    count = 3 * FORGET_AT
    for at in range(count):
        it.stored(extent(10 * at, 10 * at + 10), 0.0)
    it.forget_read([10 * count, 105, -1])
    assert (it.extents.start, it.offer(105, 10 * count)) == (100, Offer.POINTERS)
    it.forget_read([10 * count, 99, -1])
    assert (len(it.extents), it.extents.end) == (FORGET_AT, 10 * count)
    assert it.offer(99, 10 * count) is Offer.BYTES, "what it lacks was forgotten before"
    it.forget_read([])
    assert len(it.extents) == FORGET_AT


@pytest.mark.requirement("1176-42")
def test_a_follower_is_pointed_sent_or_told_nothing() -> None:
    it = tail(stored_to=10)
    assert it.offer(20, 20) is Offer.NOTHING
    assert it.offer(5, 20) is Offer.BYTES
    assert it.offer(10, 20) is Offer.NOTHING
    it.stored(extent(10, 15), 0.0)
    assert it.offer(10, 20) is Offer.POINTERS
    assert it.offer(14, 20) is Offer.POINTERS
    assert it.offer(15, 20) is Offer.NOTHING
    it.is_direct = True
    assert it.offer(15, 20) is Offer.BYTES
    assert it.offer(14, 20) is Offer.POINTERS
    assert it.offer(9, 20) is Offer.BYTES


def test_what_waits_for_the_store_for_too_long_is_sent_until_the_store_has_caught_up() -> None:
    it = tail()
    it.end_times.note(5, 0.0)
    assert not it.judge(5, DIRECT_AFTER_S)
    assert it.judge(5, DIRECT_AFTER_S + 0.1)
    assert it.is_direct
    it.end_times.note(9, 3.0)
    it.stored(extent(0, 5), 0.0)
    assert it.judge(9, 3.1)
    assert not it.is_direct
    it.stored(extent(5, 9), 0.0)
    assert it.unstored_s(9, 100.0) == 0.0


def test_what_was_voided_is_cut_again_and_what_was_deleted_is_not() -> None:
    it = tail(stored_to=10)
    it.stored(extent(10, 12), 0.0)
    it.cut_to = 30
    it.rewind()
    assert (it.cut_to, it.stored_to) == (12, 12)
    it.skip_to(20)
    assert (it.cut_to, it.stored_to) == (20, 20)
    it.cut_to = 40
    it.skip_to(25)
    assert (it.cut_to, it.stored_to) == (40, 25)


def test_a_cut_that_is_given_up_does_not_undo_a_move_that_began_meanwhile() -> None:
    it = tail()
    it.stored(extent(0, 10), 0.0)
    it.cut_to = 20
    it.move(0, 20)
    it.cut_again(10)
    assert it.cut_to == 0
    it.cut_to = 20
    it.cut_again(10)
    assert it.cut_to == 10


def test_a_move_ends_with_all_that_was_there_when_it_was_read() -> None:
    """A record of it may have been taken by compaction for the sake of one that came meanwhile."""
    it = tail()
    it.cut(20, 20)
    it.stored(extent(0, 20, seq=1), 0.0)
    it.move(0, 20)
    it.cut(20, 35)
    it.cut(30, 35)
    it.stored(extent(0, 20, seq=2), 0.0)
    it.stored(extent(20, 30, seq=3), 0.0)
    assert it.moving is not None and it.moved is None
    it.cut(40, 50)
    it.stored(extent(30, 40, seq=4), 0.0)
    assert it.moving is None and it.moved == extent(0, 20, seq=2).place


@pytest.mark.parametrize("log_start", [15, 20, 30])
def test_a_move_goes_on_where_the_log_starts_by_now(log_start: int) -> None:
    it = tail()
    it.cut(20, 20)
    it.stored(extent(0, 20, seq=1), 0.0)
    it.move(10, 20)
    it.skip_to(log_start)
    it.cut(40, 40)
    it.stored(extent(log_start, 40, seq=2), 0.0)
    assert it.moving is None and it.moved == extent(0, 0, seq=2).place


def test_what_is_under_way_as_a_move_begins_is_no_part_of_it() -> None:
    it = tail()
    it.cut(20, 40)
    it.stored(extent(0, 20, seq=1), 0.0)
    it.cut(40, 40)
    it.move(10, 40)
    it.cut(40, 40)
    it.stored(extent(20, 40, seq=2), 0.0)
    assert it.moving is not None
    it.stored(extent(10, 40, seq=3), 0.0)
    assert it.moved == extent(0, 0, seq=3).place
