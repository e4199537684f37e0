"""Floors: what a leader says of its partitions, and which slices are dead by it."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.bad_object import BadObject
from remote.keys import Stream
from remote.wal.combined_object import Place, Row
from remote.wal.floors import Floor, Floors, decode_floors, encode_floors, is_dead, stored_before
from tests.remote.wal.wal_samples import I32, I64

TOPIC = UUID(int=7)
PLACE = Place(Stream(1, 40, 0), 3)
PLACES = st.builds(Place, st.builds(Stream, I32, I64, st.integers(0, 2**32 - 1)), I64)
FLOORS = st.builds(
    Floors,
    cluster_id=st.text(max_size=30),
    writer=st.tuples(I32, I64),
    metadata_seq=I64,
    written_ms=I64,
    rows=st.lists(
        st.builds(Floor, st.uuids(), I32, I32, I64, I64, st.integers(-1, 2**63 - 1), st.none() | PLACES),
        max_size=5,
    ).map(tuple),
)


@given(FLOORS)
def test_floors_read_back(floors: Floors) -> None:
    assert decode_floors(encode_floors(floors)) == floors


@given(FLOORS, st.data())
def test_damaged_floors_are_refused(floors: Floors, data: st.DataObject) -> None:
    damaged = bytearray(encode_floors(floors))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
    else:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadObject):
        decode_floors(damaged)


# --- which slice is dead ---


class Known:
    """An image and the floors of its leaders."""

    def __init__(self, floor: Floor | None = None, *, seq: int = 50, has_topic: bool = True) -> None:
        self.metadata_seq = seq
        self._floor = floor
        self._has_topic = has_topic

    def has_topic(self, topic_id: UUID) -> bool:
        return self._has_topic

    def floor(self, topic_id: UUID, partition: int, metadata_seq: int) -> Floor | None:
        return self._floor


def row(start: int, end: int, *, epoch: int = 5) -> Row:
    return Row(TOPIC, 0, epoch, 0, epoch, start, end, 0, 0, 16, 0, None)


def at(seq: int, *, generation: int = 0, broker_epoch: int = 40) -> Place:
    return Place(Stream(1, broker_epoch, generation), seq)


def floor(at: int, *, epoch: int = 5, epoch_start: int = 0) -> Floor:
    return Floor(TOPIC, 0, epoch, epoch_start, at, -1)


@pytest.mark.requirement("1176-44")
def test_a_slice_is_dead_once_all_of_it_is_below_the_floor() -> None:
    assert is_dead(row(90, 100), at(3), 40, Known(floor(100)))
    assert not is_dead(row(90, 101), at(3), 40, Known(floor(100)))


@pytest.mark.requirement("1176-44")
def test_what_was_stored_before_its_partition_moved_is_dead() -> None:
    known = Known(floor(0)._replace(moved=at(7, generation=1)))
    assert is_dead(row(90, 100), at(6, generation=1), 40, known)
    assert is_dead(row(90, 100), at(90), 40, known), "in an older generation"
    assert is_dead(row(90, 100, epoch=4), at(90, generation=9, broker_epoch=80), 40, known), (
        "of an older leader"
    )
    assert not is_dead(row(0, 100), at(7, generation=1), 40, known)
    assert not is_dead(row(100, 101), at(0, generation=2), 40, known)
    assert not is_dead(row(90, 100, epoch=6), at(0), 40, known), "of a later leader"
    assert not is_dead(row(90, 100), at(0, broker_epoch=39), 40, known), "not of the writer who says it"


@pytest.mark.requirement("1176-44")
def test_nothing_is_dead_of_a_partition_whose_leader_said_nothing() -> None:
    assert not is_dead(row(0, 1), at(3), 40, Known(None))


def test_a_slice_of_a_newer_epoch_is_not_judged_by_an_older_leader() -> None:
    """The image is old: that leader was replaced, and what it says does not hold for what its successor
    wrote at the same offsets."""
    assert not is_dead(row(95, 98, epoch=6), at(3), 40, Known(floor(100, epoch=5)))


@pytest.mark.requirement("1176-49")
def test_what_an_older_epoch_has_past_its_end_is_void() -> None:
    known = Known(floor(90, epoch=6, epoch_start=95))
    assert is_dead(row(95, 100, epoch=5), at(3), 40, known)
    assert not is_dead(row(94, 100, epoch=5), at(3), 40, known)
    assert is_dead(row(94, 100, epoch=5), at(3), 40, Known(floor(95, epoch=6, epoch_start=95)))
    assert not is_dead(row(95, 100, epoch=6), at(3), 40, known), "this is not void"


@pytest.mark.requirement("X-6")
def test_slices_of_a_topic_that_is_gone_are_dead_for_an_image_that_can_know() -> None:
    assert is_dead(row(0, 1), at(3), 50, Known(seq=50, has_topic=False))
    assert not is_dead(row(0, 1), at(3), 51, Known(seq=50, has_topic=False)), (
        "it may be too new for the image"
    )


@given(
    st.integers(0, 30), st.integers(1, 30), st.integers(0, 3),
    st.integers(0, 30), st.integers(0, 3), st.integers(0, 30),
)  # fmt: skip
def test_an_offset_that_may_be_needed_keeps_its_slice(
    start: int, size: int, epoch: int, at: int, leader_epoch: int, epoch_start: int
) -> None:
    """A slice is dead if, and only if, each of its offsets is below the floor or void."""
    slice_ = row(start, start + size, epoch=epoch)
    known = Known(floor(at, epoch=leader_epoch, epoch_start=epoch_start))
    needed = [
        offset
        for offset in range(start, start + size)
        if offset >= at and not (epoch < leader_epoch and offset >= epoch_start)
    ]
    assert is_dead(slice_, PLACE, 40, known) is (not needed and epoch <= leader_epoch)


# --- where a new leader goes on ---


def said(stored_to: int, *, epoch: int, partition: int = 0) -> Floor:
    return Floor(TOPIC, partition, epoch, 0, 0, stored_to)


def test_what_a_later_leader_has_in_the_place_of_these_records_is_stored_over_its_own() -> None:
    other = said(170, epoch=6)._replace(epoch_start=120)
    epochs = [(3, 0), (5, 100), (7, 200)]
    assert stored_before([said(150, epoch=5), other], TOPIC, 0, epochs) == 120, "6 is not of this log"
    assert stored_before([said(110, epoch=5), other], TOPIC, 0, epochs) == 110
    assert stored_before([said(150, epoch=7), other], TOPIC, 0, epochs) == 150, "stored after it"


def test_a_new_leader_goes_on_where_its_predecessors_ended() -> None:
    epochs = [(3, 0), (5, 100), (7, 200)]
    assert stored_before([said(150, epoch=5)], TOPIC, 0, epochs) == 150
    assert stored_before([said(150, epoch=3)], TOPIC, 0, epochs) == 100, "above is another lineage"
    assert stored_before([said(80, epoch=3), said(90, epoch=5)], TOPIC, 0, epochs) == 90
    assert stored_before([said(150, epoch=4)], TOPIC, 0, epochs) is None, "this log has nothing of it"
    assert stored_before([said(-1, epoch=5), said(9, epoch=5, partition=1)], TOPIC, 0, epochs) is None
    assert stored_before([said(9, epoch=5)], UUID(int=8), 0, epochs) is None
    assert stored_before([said(-1, epoch=5), said(80, epoch=3)], TOPIC, 0, epochs) is None, "collected since"
    assert stored_before([said(-1, epoch=3), said(80, epoch=5)], TOPIC, 0, epochs) == 80
