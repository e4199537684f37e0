"""Records of __consumer_offsets in every version, and any bytes at all."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.offsets import (
    CommittedOffset,
    CoordinatorRecord,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    OffsetRecord,
    decode_coordinator_record,
    encode_coordinator_record,
)
from protocol.stored.schema import BadRecord

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

OFFSETS = st.builds(
    OffsetRecord,
    group_id=TEXT,
    topic=TEXT,
    partition=INT32,
    committed=st.none()
    | st.builds(
        CommittedOffset,
        offset=INT64,
        leader_epoch=INT32,
        metadata=TEXT,
        commit_timestamp_ms=INT64,
        expire_timestamp_ms=st.just(-1),
        topic_id=st.none() | st.uuids(),
        record_offset=st.just(-1),
    )
    | st.builds(
        CommittedOffset,
        offset=INT64,
        leader_epoch=st.just(-1),
        metadata=TEXT,
        commit_timestamp_ms=INT64,
        expire_timestamp_ms=st.integers(0, (1 << 63) - 1),
        topic_id=st.none(),
        record_offset=st.just(-1),
    ),
)
GROUPS = st.builds(
    GroupRecord,
    group_id=TEXT,
    metadata=st.none()
    | st.builds(
        GroupMetadata,
        protocol_type=TEXT,
        generation=INT32,
        protocol=st.none() | TEXT,
        leader=st.none() | TEXT,
        state_timestamp_ms=INT64,
        members=st.lists(
            st.builds(
                GroupMember,
                member_id=TEXT,
                instance_id=st.none() | TEXT,
                client_id=TEXT,
                client_host=TEXT,
                rebalance_timeout_ms=INT32,
                session_timeout_ms=INT32,
                subscription=st.binary(max_size=9),
                assignment=st.binary(max_size=9),
            ),
            max_size=3,
        ).map(tuple),
    ),
)

OFFSET = OffsetRecord(
    group_id="g",
    topic="t",
    partition=3,
    committed=CommittedOffset(offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=9),
)
OFFSET_KEY = b"\0\1\0\1g\0\1t\0\0\0\3"
GROUP_KEY = b"\0\2\0\1g"


@given(OFFSETS | GROUPS)
def test_coordinator_records_there_and_back(record: CoordinatorRecord) -> None:
    assert decode_coordinator_record(*encode_coordinator_record(record)) == record


def test_an_offset_is_written_as_kafka_4_does() -> None:
    key, value = encode_coordinator_record(OFFSET)
    assert key == OFFSET_KEY
    assert value == b"\0\4" + bytes(7) + b"\5\0\0\0\2\2m" + bytes(7) + b"\t\0"
    assert OFFSET.committed is not None
    with_id = OFFSET._replace(committed=OFFSET.committed._replace(topic_id=UUID(int=7)))
    assert encode_coordinator_record(with_id)[1] == value[:-1] + b"\1\0\x10" + UUID(int=7).bytes


def test_an_offset_with_an_expiry_is_version_1() -> None:
    assert OFFSET.committed is not None
    committed = OFFSET.committed._replace(expire_timestamp_ms=11, leader_epoch=-1, topic_id=None)
    record = OFFSET._replace(committed=committed)
    key, value = encode_coordinator_record(record)
    assert value == b"\0\1" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\t" + bytes(7) + b"\x0b"
    assert decode_coordinator_record(key, value) == record


@pytest.mark.parametrize(
    ("value", "leader_epoch", "expiry"),
    [
        (b"\0\0" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\t", -1, -1),
        (b"\0\1" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\t" + b"\xff" * 8, -1, -1),
        (b"\0\2" + bytes(7) + b"\5\0\1m" + bytes(7) + b"\t", -1, -1),
        (b"\0\3" + bytes(7) + b"\5\0\0\0\2\0\1m" + bytes(7) + b"\t", 2, -1),
        (b"\0\4" + bytes(7) + b"\5\0\0\0\2\2m" + bytes(7) + b"\t\1\x63\1x", 2, -1),
    ],
)
def test_offsets_of_every_version_are_read(value: bytes, leader_epoch: int, expiry: int) -> None:
    for version in (b"\0\0", b"\0\1"):
        record = decode_coordinator_record(version + OFFSET_KEY[2:], value)
        assert isinstance(record, OffsetRecord)
        assert record.committed == CommittedOffset(
            offset=5,
            leader_epoch=leader_epoch,
            metadata="m",
            commit_timestamp_ms=9,
            expire_timestamp_ms=expiry,
        )


MEMBER = GroupMember(
    member_id="m", client_id="c", client_host="h", session_timeout_ms=6, subscription=b"s", assignment=b"a"
)
HEAD = b"\0\1p\0\0\0\4\0\1r\xff\xff"  # protocol type, generation, protocol, leader
TAIL = b"\0\0\0\6\0\0\0\1s\0\0\0\1a"


@pytest.mark.parametrize(
    ("value", "member", "timestamp"),
    [
        (b"\0\0" + HEAD + b"\0\0\0\1\0\1m\0\1c\0\1h" + TAIL, MEMBER, -1),
        (
            b"\0\1" + HEAD + b"\0\0\0\1\0\1m\0\1c\0\1h\0\0\0\5" + TAIL,
            replace(MEMBER, rebalance_timeout_ms=5),
            -1,
        ),
        (
            b"\0\2" + HEAD + bytes(7) + b"\x08\0\0\0\1\0\1m\0\1c\0\1h\0\0\0\5" + TAIL,
            replace(MEMBER, rebalance_timeout_ms=5),
            8,
        ),
        (
            b"\0\3" + HEAD + bytes(7) + b"\x08\0\0\0\1\0\1m\0\1i\0\1c\0\1h\0\0\0\5" + TAIL,
            replace(MEMBER, rebalance_timeout_ms=5, instance_id="i"),
            8,
        ),
        (
            b"\0\4\2p\0\0\0\4\2r\0" + bytes(7) + b"\x08\2\2m\2i\2c\2h\0\0\0\5\0\0\0\6\2s\2a\0\0",
            replace(MEMBER, rebalance_timeout_ms=5, instance_id="i"),
            8,
        ),
    ],
)
def test_groups_of_every_version_are_read(value: bytes, member: GroupMember, timestamp: int) -> None:
    assert decode_coordinator_record(GROUP_KEY, value) == GroupRecord(
        group_id="g",
        metadata=GroupMetadata(
            protocol_type="p",
            generation=4,
            protocol="r",
            leader=None,
            state_timestamp_ms=timestamp,
            members=(member,),
        ),
    )


def test_groups_are_written_as_version_3() -> None:
    metadata = GroupMetadata(protocol_type="p", generation=4, protocol="r", leader=None, state_timestamp_ms=8)
    assert encode_coordinator_record(GroupRecord(group_id="g", metadata=metadata)) == (
        GROUP_KEY,
        b"\0\3" + HEAD + bytes(7) + b"\x08\0\0\0\0",
    )


def test_tombstones() -> None:
    assert encode_coordinator_record(OFFSET._replace(committed=None)) == (OFFSET_KEY, None)
    assert decode_coordinator_record(GROUP_KEY, None) == GroupRecord(group_id="g", metadata=None)


def test_types_of_other_group_protocols_are_none_of_ours() -> None:
    for kind in (9, 15, 17, 99):
        assert decode_coordinator_record(kind.to_bytes(2, "big") + b"\0\1g", b"\0\0whatever") is None


def test_a_committed_offset_knows_where_its_record_lies() -> None:
    assert OFFSET.committed is not None
    assert OFFSET.committed.record_offset == -1
    assert OFFSET.committed.at(40).record_offset == 40


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0", None),
        (OFFSET_KEY[:-1], None),
        (GROUP_KEY[:-1], None),
        (OFFSET_KEY, b""),
        (OFFSET_KEY, b"\0\5" + bytes(40)),
        (OFFSET_KEY, b"\xff\xff" + bytes(40)),
        (OFFSET_KEY, b"\0\3" + bytes(5)),
        (GROUP_KEY, b"\0\3" + HEAD + bytes(8) + b"\x7f\xff\xff\xff"),
    ],
)
def test_bad_coordinator_records(key: bytes, value: bytes | None) -> None:
    with pytest.raises(BadRecord):
        decode_coordinator_record(key, value)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_any_bytes_give_a_coordinator_record_or_bad(key: bytes, value: bytes | None) -> None:
    try:
        decode_coordinator_record(key, value)
    except BadRecord:
        pass
