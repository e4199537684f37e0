"""Records of groups that the server assigns: as Kafka 4.3 writes them, and whatever it may have written."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.stored.consumer_groups import (
    ClassicSide,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
    TopicsRecord,
    encoding_consumer_group,
    packed_consumer_group,
)
from protocol.stored.offsets import decode_coordinator_record, encode_coordinator_record
from protocol.stored.schema import BadRecord
from protocol.work import finish

TOPIC = UUID(int=5)

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PARTITIONS = st.integers(0, (1 << 31) - 1)
NAMES = st.sets(TEXT, max_size=3).map(lambda names: tuple(sorted(names)))
OWNED = st.dictionaries(st.uuids(), st.dictionaries(PARTITIONS, INT32, max_size=4), max_size=3)
NAMED = {"group_id": TEXT, "member_id": TEXT}

RECORDS = st.one_of(
    st.builds(
        GroupEpochRecord,
        group_id=TEXT,
        value=st.none() | st.builds(GroupEpoch, epoch=INT32, metadata_hash=INT64),
    ),
    st.builds(TopicsRecord, group_id=TEXT, value=st.none()),
    st.builds(
        MemberRecord,
        **NAMED,
        value=st.none()
        | st.builds(
            MemberMetadata,
            instance_id=st.none() | TEXT,
            rack_id=st.none() | TEXT,
            client_id=TEXT,
            client_host=TEXT,
            topics=NAMES,
            regex=st.none() | TEXT,
            rebalance_timeout_ms=INT32,
            assignor=st.none() | TEXT,
            classic=st.none()
            | st.builds(
                ClassicSide,
                session_timeout_ms=INT32,
                protocols=st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
            ),
        ),
    ),
    st.builds(
        TargetEpochRecord,
        group_id=TEXT,
        value=st.none() | st.builds(TargetEpoch, epoch=INT32, timestamp_ms=INT64),
    ),
    st.builds(
        TargetRecord,
        **NAMED,
        value=st.none()
        | st.dictionaries(
            st.uuids(), st.sets(PARTITIONS, max_size=4).map(lambda some: tuple(sorted(some))), max_size=3
        ),
    ),
    st.builds(
        CurrentRecord,
        **NAMED,
        value=st.none()
        | st.builds(
            CurrentAssignment,
            epoch=INT32,
            previous_epoch=INT32,
            state=st.sampled_from(MemberState),
            assigned=OWNED,
            revoking=OWNED,
        ),
    ),
    st.builds(
        RegexRecord,
        group_id=TEXT,
        regex=TEXT,
        value=st.none() | st.builds(ResolvedRegex, topics=NAMES, version=INT64, timestamp_ms=INT64),
    ),
)


@given(RECORDS)
def test_there_and_back(record: ConsumerGroupRecord) -> None:
    assert decode_coordinator_record(*encode_coordinator_record(record)) == record


LARGE = st.dictionaries(
    st.uuids(), st.dictionaries(PARTITIONS, INT32, min_size=60, max_size=70), min_size=1, max_size=9
)


@given(
    RECORDS
    | st.builds(
        CurrentRecord,
        **NAMED,
        value=st.builds(CurrentAssignment, epoch=INT32, assigned=LARGE, revoking=OWNED),
    )
)
def test_what_is_packed_by_hand_is_what_its_schema_makes(record: ConsumerGroupRecord) -> None:
    packed = packed_consumer_group(record)
    if packed is not None:
        assert packed == finish(encoding_consumer_group(record))
    is_of_a_member = isinstance(record, CurrentRecord | TargetRecord) and record.value is not None
    assert is_of_a_member or packed is None


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            GroupEpochRecord(group_id="g", value=GroupEpoch(epoch=3, metadata_hash=-9)),
            "0003000167",
            "0000 00000003 01 00 08 fffffffffffffff7",
        ),
        (GroupEpochRecord(group_id="g", value=GroupEpoch(epoch=3)), "0003000167", "0000 00000003 00"),
        (
            MemberRecord(
                group_id="g",
                member_id="m",
                value=MemberMetadata(
                    client_id="c",
                    client_host="h",
                    topics=("a",),
                    regex=None,
                    rebalance_timeout_ms=5,
                    classic=ClassicSide(session_timeout_ms=4, protocols=(("range", b"xx"),)),
                ),
            ),
            "000500016700016d",
            "0000 00 00 0263 0268 02 0261 00 00000005 0001 00 11 01 00000004 02 0672616e6765 037878 00 00",
        ),
        (
            TargetEpochRecord(group_id="g", value=TargetEpoch(epoch=3, timestamp_ms=4)),
            "0006000167",
            "0000 00000003 01 00 08 0000000000000004",
        ),
        (
            TargetRecord(group_id="g", member_id="m", value={TOPIC: (1, 2)}),
            "000700016700016d",
            "0000 02 00000000000000000000000000000005 03 00000001 00000002 00 00",
        ),
        (
            CurrentRecord(
                group_id="g",
                member_id="m",
                value=CurrentAssignment(
                    epoch=3,
                    previous_epoch=2,
                    state=MemberState.UNREVOKED_PARTITIONS,
                    assigned={TOPIC: {4: 3, 1: 2}},
                ),
            ),
            "000800016700016d",
            "0000 00000003 00000002 01 02 00000000000000000000000000000005 03 00000001 00000004"
            "01 00 09 03 00000002 00000003 01 00",
        ),
        (
            RegexRecord(
                group_id="g", regex="x.*", value=ResolvedRegex(topics=("a",), version=4, timestamp_ms=5)
            ),
            "00100001670003782e2a",
            "0000 02 0261 0000000000000004 0000000000000005 00",
        ),
        (TopicsRecord(group_id="g", value=None), "0004000167", None),
    ],
)
def test_it_is_written_as_kafka_4_3_does(record: ConsumerGroupRecord, key: str, value: str | None) -> None:
    encoded = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert encode_coordinator_record(record) == encoded
    assert decode_coordinator_record(*encoded) == record


def test_an_assignment_of_an_earlier_kafka_has_the_epoch_of_its_member() -> None:
    value = bytes.fromhex(
        "0000 00000003 00000002 00 02 00000000000000000000000000000005 03 00000001 00000004 00 01 00"
    )
    record = decode_coordinator_record(bytes.fromhex("000800016700016d"), value)
    assert isinstance(record, CurrentRecord)
    assert record.value is not None
    assert record.value.assigned == {TOPIC: {1: 3, 4: 3}}


def test_a_list_of_topics_of_an_earlier_kafka_is_noticed() -> None:
    row = "00000000000000000000000000000005 0274 00000002 02 00000000 02 0272 00 00"
    record = decode_coordinator_record(bytes.fromhex("0004000167"), bytes.fromhex(f"0000 02 {row} 00"))
    assert record == TopicsRecord(group_id="g", value=True)


def test_a_state_of_a_later_kafka_is_unknown() -> None:
    value = bytes.fromhex("0000 00000003 00000002 63 01 01 00")
    record = decode_coordinator_record(bytes.fromhex("000800016700016d"), value)
    assert isinstance(record, CurrentRecord)
    assert record.value is not None
    assert record.value.state is MemberState.UNKNOWN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("0003", None),
        ("0005000167", None),
        ("0003000167", ""),
        ("0003000167", "0001 00000003 00"),
        ("0003000167", "0000 000000"),
        # one epoch for two partitions
        (
            "000800016700016d",
            "0000 00000003 00000002 00 02 00000000000000000000000000000005 03 00000001 00000004"
            "01 00 05 02 00000002 01 00",
        ),
    ],
)
def test_what_is_no_record_is_refused(key: str, value: str | None) -> None:
    with pytest.raises(BadRecord):
        decode_coordinator_record(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


@given(st.sampled_from([3, 4, 5, 6, 7, 8, 16]), st.binary(max_size=20), st.none() | st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_bad_one(kind: int, key: bytes, value: bytes | None) -> None:
    try:
        decode_coordinator_record(kind.to_bytes(2, "big") + key, None if value is None else b"\0\0" + value)
    except BadRecord:
        return
