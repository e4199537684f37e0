"""Keys there and back, in the order of what they name, and what is no key."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.keys import (
    BOUNDARIES,
    META,
    SNAPSHOTS,
    SegmentPart,
    Stream,
    TierKey,
    WalKey,
    WalPart,
    boundary_key,
    floors_key,
    node_prefix,
    parse_floors_key,
    parse_number,
    parse_tier_key,
    parse_wal_key,
    partition_prefix,
    slot_key,
    snapshot_key,
    stream_prefix,
    tier_key,
    wal_key,
)
from remote.store.object_store import check_prefix, is_key

SEQ = st.integers(0, (1 << 64) - 1)
TIER_KEYS = st.builds(
    TierKey,
    topic_id=st.uuids(),
    partition=st.integers(0, (1 << 31) - 1),
    base_offset=st.integers(0, (1 << 63) - 1),
    segment_id=st.uuids(),
    part=st.sampled_from(SegmentPart),
)

STREAMS = st.builds(
    Stream,
    node_id=st.integers(0, (1 << 31) - 1),
    broker_epoch=st.integers(0, (1 << 63) - 1),
    generation=st.integers(0, (1 << 32) - 1),
)


@given(SEQ)
def test_numbers_of_the_metadata_log_there_and_back(seq: int) -> None:
    keys = {META: slot_key(seq), SNAPSHOTS: snapshot_key(seq), BOUNDARIES: boundary_key(seq)}
    for prefix, key in keys.items():
        assert is_key(key)
        assert {other: parse_number(key, other) for other in keys} == {
            other: seq if other == prefix else None for other in keys
        }


@given(TIER_KEYS)
def test_keys_of_the_tier_there_and_back(named: TierKey) -> None:
    key = tier_key(*named)
    assert is_key(key)
    assert parse_tier_key(key) == named
    prefix = partition_prefix(named.topic_id, named.partition)
    assert key.startswith(check_prefix(prefix))


@given(st.uuids(), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
def test_segments_are_listed_by_their_offsets(ids: UUID, one: int, other: int) -> None:
    keys = [tier_key(ids, 0, base, ids, SegmentPart.DATA) for base in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


@given(SEQ, SEQ)
def test_slots_are_listed_in_their_order(one: int, other: int) -> None:
    assert (slot_key(one) < slot_key(other)) == (one < other)


GOOD = "tier/AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000007-AAAAAAAAAAAAAAAAAAAAAg.log"


@pytest.mark.parametrize(
    "key",
    [
        "",
        GOOD + "x",
        "x" + GOOD,
        GOOD.replace("/0/", "/00/"),
        GOOD.replace("/0/", "/-1/"),
        GOOD.replace("/0/", "/٣/"),
        GOOD.replace(".log", ".txt"),
        GOOD.replace("00000000000000000007", "7"),
        GOOD.replace("AQ/", "AR/"),
        GOOD.replace("Ag.", "Ah."),
        GOOD + "\n",
    ],
)
def test_what_is_no_key_of_the_tier(key: str) -> None:
    assert parse_tier_key(GOOD) is not None
    assert parse_tier_key(key) is None


@pytest.mark.parametrize(
    "key", ["meta/7", "meta/snapshot/00000000000000000007", "meta/0000000000000000000x", "x"]
)
def test_what_is_no_slot(key: str) -> None:
    assert parse_number(key, META) is None


@given(STREAMS, SEQ, st.sampled_from(WalPart))
def test_keys_of_streams_there_and_back(stream: Stream, seq: int, part: WalPart) -> None:
    key = wal_key(stream, seq, part)
    assert is_key(key)
    assert parse_wal_key(key) == WalKey(stream, part, seq)
    assert parse_floors_key(key) is None
    for prefix in (node_prefix(stream.node_id), stream_prefix(stream)):
        assert key.startswith(check_prefix(prefix))


@given(st.integers(0, (1 << 31) - 1))
def test_keys_of_floors_there_and_back(node_id: int) -> None:
    key = floors_key(node_id)
    assert is_key(key)
    assert parse_floors_key(key) == node_id
    assert parse_wal_key(key) is None


@given(STREAMS, STREAMS, SEQ, SEQ)
def test_objects_of_a_broker_are_listed_in_the_order_of_their_streams(
    one: Stream, other: Stream, seq: int, other_seq: int
) -> None:
    other = other._replace(node_id=one.node_id)
    assert (wal_key(one, seq) < wal_key(other, other_seq)) == ((one, seq) < (other, other_seq))


def test_objects_of_a_stream_are_listed_before_what_tells_of_them() -> None:
    stream = Stream(1, 7, 0)
    object_key = wal_key(stream, (1 << 64) - 1)
    assert object_key < wal_key(stream, 0, WalPart.BOUNDARY) < wal_key(stream, 0, WalPart.INDEX)


GOOD_WAL = "wal/1/00000000000000000007-0000000000/00000000000000000003"


@pytest.mark.parametrize(
    "key",
    [
        "",
        GOOD_WAL + "0",
        "x" + GOOD_WAL,
        GOOD_WAL.replace("/1/", "/01/"),
        GOOD_WAL.replace("/1/", "/٣/"),
        GOOD_WAL.replace("-0000000000", "-0"),
        GOOD_WAL.replace("0000000000/", "0000000000/other/"),
        GOOD_WAL + "\n",
    ],
)
def test_what_is_no_key_of_a_stream(key: str) -> None:
    assert parse_wal_key(GOOD_WAL) is not None
    assert parse_wal_key(key) is None
