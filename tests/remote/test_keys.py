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
    TierKey,
    boundary_key,
    parse_number,
    parse_tier_key,
    partition_prefix,
    slot_key,
    snapshot_key,
    tier_key,
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
