"""A follower says that it takes pointers, a leader points: what one packs the other reads."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedRequest
from protocol.fetch import (
    REPLICA_FETCH_VERSION,
    FetchedPartition,
    FetchItem,
    FetchShape,
    asks_for_replica,
    encode_replica_fetch,
    fetch_head,
    fetch_partition_head,
    fetch_partition_tail,
    fetch_tail,
    fetch_topic_head,
    fetch_topic_tail,
    parse_fetch,
    parse_replica_fetch,
)
from protocol.pointers import (
    BYTES,
    FROM_OFFSET,
    NOTHING,
    ObjectPlace,
    SlicePointer,
    read_from,
    read_objects,
    read_pointers,
)

I32 = st.integers(0, 2**31 - 1)
I64 = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
PLACES = st.builds(ObjectPlace, I32, I64, U32, I64)
CLIENT = "broker-1-fetcher"
BODY_AT = 8 + 2 + len(CLIENT) + 1


def pointers(objects: int) -> st.SearchStrategy[tuple[SlicePointer, ...]]:
    if not objects:
        return st.just(())
    one = st.builds(SlicePointer, st.integers(0, objects - 1), I64, U32, U32, I64, I64, I32)
    return st.lists(one, max_size=3).map(tuple)


def request_of(items: Sequence[FetchItem], *, takes_pointers: bool) -> bytes:
    return encode_replica_fetch(
        1,
        CLIENT,
        replica_id=2,
        replica_epoch=3,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1000,
        session_id=5,
        session_epoch=6,
        items=items,
        forgotten=[],
        takes_pointers=takes_pointers,
    )


@given(
    st.lists(
        st.builds(
            FetchItem,
            st.sampled_from([UUID(int=1), UUID(int=2)]),
            *(I32, I32, I64, I32, I32, I64),
            pointed=st.sampled_from([FROM_OFFSET, BYTES, NOTHING]) | I64,
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
@pytest.mark.requirement("1176-35")
def test_what_a_follower_asks_is_read_by_its_leader(items: list[FetchItem], takes: bool) -> None:
    frame = memoryview(request_of(items, takes_pointers=takes))
    found = parse_fetch(frame, BODY_AT, REPLICA_FETCH_VERSION)
    assert found.items == items
    assert (found.takes_pointers, found.replica_id, found.replica_epoch) == (takes, 2, 3)
    assert asks_for_replica(frame, BODY_AT, REPLICA_FETCH_VERSION)
    again = FetchShape(frame, BODY_AT, REPLICA_FETCH_VERSION, found)
    moved = [item._replace(offset=item.offset // 2) for item in items]
    read = again.read(memoryview(request_of(moved, takes_pointers=takes)))
    assert read is not None
    assert read[2] == moved or (read[2] is None and moved == items)


def test_a_changed_wish_is_not_taken_for_a_repetition() -> None:
    asked = FetchItem(UUID(int=1), 0, 1, 2, 1, 100, 0, 7)
    frame = memoryview(request_of([asked], takes_pointers=True))
    shape = FetchShape(
        frame, BODY_AT, REPLICA_FETCH_VERSION, parse_fetch(frame, BODY_AT, REPLICA_FETCH_VERSION)
    )
    for other in (8, BYTES, FROM_OFFSET):
        assert (
            shape.read(memoryview(request_of([asked._replace(pointed=other)], takes_pointers=True))) is None
        )
    assert shape.read(memoryview(request_of([asked], takes_pointers=False))) is None


@given(st.lists(PLACES, max_size=3).flatmap(lambda places: st.tuples(st.just(places), pointers(len(places)))))
@pytest.mark.requirement("1176-35")
def test_what_a_leader_points_to_is_read_by_its_follower(
    answer: tuple[list[ObjectPlace], tuple[SlicePointer, ...]],
) -> None:
    places, told = answer
    version, topic = REPLICA_FETCH_VERSION, UUID(int=9)
    frame = memoryview(
        b"".join(
            (
                fetch_head(version, 1, 0, 5, 1),
                fetch_topic_head(version, topic, 1),
                fetch_partition_head(version, 4, 0, 10, 9, 1, None, 3),
                b"abc",
                fetch_partition_tail(version, (2, 8), None, told),
                fetch_topic_tail(version),
                fetch_tail(version, None, places),
            )
        )
    )
    found = parse_replica_fetch(frame)
    assert found.objects == tuple(places)
    (one,) = found.partitions
    assert one == FetchedPartition(topic, 4, 0, 10, 1, (2, 8), one.records, told)


def test_a_pointer_to_an_object_that_is_not_listed_is_malformed() -> None:
    version = REPLICA_FETCH_VERSION
    told = [SlicePointer(1, 0, 1, 0, 0, 1, 0)]
    frame = memoryview(
        b"".join(
            (
                fetch_head(version, 1, 0, 5, 1),
                fetch_topic_head(version, UUID(int=9), 1),
                fetch_partition_head(version, 4, 0, 10, 9, 1, None, 0),
                fetch_partition_tail(version, None, None, told),
                fetch_topic_tail(version),
                fetch_tail(version, None, [ObjectPlace(1, 2, 3, 4)]),
            )
        )
    )
    with pytest.raises(MalformedRequest, match="does not list"):
        parse_replica_fetch(frame)


@given(st.binary(max_size=120))
def test_garbage_in_these_fields_is_malformed_or_read(data: bytes) -> None:
    for read in (read_from, read_pointers, read_objects):
        try:
            read(memoryview(data))
        except MalformedRequest:
            continue
