"""Apache Kafka's own tool reads what we build: every codec, markers, records of __consumer_offsets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from protocol.compression import Codec
from protocol.records import build_batch, end_txn_marker, parse_header
from protocol.stored.consumer import Assignment as ConsumerAssignment
from protocol.stored.consumer import Subscription, encode_assignment, encode_subscription
from protocol.stored.consumer_groups import (
    ClassicSide,
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
)
from protocol.stored.offsets import (
    CommittedOffset,
    CoordinatorRecord,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    OffsetRecord,
    encode_coordinator_record,
)

pytestmark = pytest.mark.kafka


def dump(kafka_home: Path, directory: Path, log: bytes, *options: str) -> str:
    directory.mkdir()
    segment = directory / "00000000000000000000.log"
    segment.write_bytes(log)
    command = [
        "java",
        "-cp",
        f"{kafka_home}/config:{kafka_home}/libs/*",
        "org.apache.kafka.tools.DumpLogSegments",
    ]
    done = subprocess.run(
        [*command, "--files", str(segment), "--deep-iteration", "--print-data-log", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_batches_of_every_codec_and_markers(kafka_home: Path, tmp_path: Path) -> None:
    log = bytearray()
    offset = 0
    for codec in Codec:
        records = [(b"k%d" % i, b"v" * 2000, [("h", b"x"), ("n", None)], 1000 + i) for i in range(100)]
        log += build_batch(records, base_offset=offset, leader_epoch=3, codec=codec, producer_id=9)
        offset += len(records)
    log += end_txn_marker(
        commit=True, producer_id=9, producer_epoch=0, coordinator_epoch=4, timestamp=7, base_offset=offset
    )
    out = dump(kafka_home, tmp_path / "t-0", bytes(log))
    for codec in Codec:
        assert f"compresscodec: {codec.name.lower()}" in out
    assert len(re.findall(r"payload: v{2000}$", out, re.MULTILINE)) == 500
    assert len(re.findall(r"headerKeys: \[h,n\]", out)) == 500
    assert "endTxnMarker: COMMIT coordinatorEpoch: 4" in out
    assert "isvalid: false" not in out
    assert out.count("isvalid: true") == 6


def test_records_of_consumer_offsets(kafka_home: Path, tmp_path: Path) -> None:
    committed = CommittedOffset(
        offset=41, leader_epoch=2, metadata="said", commit_timestamp_ms=1_700_000_000_000
    )
    expiring = CommittedOffset(offset=42, commit_timestamp_ms=1, expire_timestamp_ms=1_800_000_000_000)
    with_id = CommittedOffset(offset=43, commit_timestamp_ms=1, topic_id=UUID(int=7))
    member = GroupMember(
        member_id="member-1",
        instance_id="static-1",
        client_id="client",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=300_000,
        session_timeout_ms=45_000,
        subscription=encode_subscription(Subscription(topics=("t",))),
        assignment=encode_assignment(ConsumerAssignment(partitions=(("t", (0, 1)),))),
    )
    group = GroupMetadata(
        protocol_type="consumer", generation=5, protocol="range", leader="member-1", members=(member,)
    )
    rows = [
        OffsetRecord(group_id="g", topic="t", partition=index, committed=one)
        for index, one in enumerate((committed, expiring, with_id, None))
    ]
    encoded = [
        encode_coordinator_record(row)
        for row in (
            *rows,
            GroupRecord(group_id="g", metadata=group),
            GroupRecord(group_id="g", metadata=None),
        )
    ]
    batch = build_batch([(key, value, [], 0) for key, value in encoded])
    assert parse_header(batch).count == 6
    out = dump(kafka_home, tmp_path / "__consumer_offsets-0", bytes(batch), "--offsets-decoder")
    flat = re.sub(r"[\s\"]", "", out)
    assert "offset:41,leaderEpoch:2,metadata:said,commitTimestamp:1700000000000" in flat
    assert "expireTimestamp:1800000000000" in flat
    assert "topicId:AAAAAAAAAAAAAAAAAAAABw" in flat
    assert "groupInstanceId:static-1" in flat
    assert "rebalanceTimeout:300000" in flat
    assert "Couldnotdecode" not in flat


def test_records_of_groups_that_the_server_assigns(kafka_home: Path, tmp_path: Path) -> None:
    topic_id = UUID(int=7)
    member = MemberMetadata(
        instance_id="static-1",
        client_id="client",
        client_host="/127.0.0.1",
        topics=("t", "u"),
        regex="t.*",
        rebalance_timeout_ms=300_000,
        assignor="range",
        classic=ClassicSide(session_timeout_ms=45_000, protocols=(("sticky", b"bytes"),)),
    )
    current = CurrentAssignment(
        epoch=5,
        previous_epoch=4,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={topic_id: {1: 3}},
        revoking={topic_id: {2: 4}},
    )
    named = {"group_id": "g", "member_id": "m"}
    resolved = ResolvedRegex(topics=("t", "tea"), version=77, timestamp_ms=1_700_000_000_001)
    records: list[CoordinatorRecord] = [
        GroupEpochRecord(group_id="g", value=GroupEpoch(epoch=5, metadata_hash=-123_456)),
        MemberRecord(**named, value=member),
        TargetEpochRecord(group_id="g", value=TargetEpoch(epoch=5, timestamp_ms=1_700_000_000_000)),
        TargetRecord(**named, value={topic_id: (1, 9)}),
        CurrentRecord(**named, value=current),
        RegexRecord(group_id="g", regex="t.*", value=resolved),
        TopicsRecord(group_id="g", value=None),
        CurrentRecord(**named, value=None),
        TargetRecord(**named, value=None),
        MemberRecord(**named, value=None),
        RegexRecord(group_id="g", regex="t.*", value=None),
        TargetEpochRecord(group_id="g", value=None),
        GroupEpochRecord(group_id="g", value=None),
    ]
    batch = build_batch([(*encode_coordinator_record(record), [], 0) for record in records])
    out = dump(kafka_home, tmp_path / "__consumer_offsets-0", bytes(batch), "--offsets-decoder")
    flat = re.sub(r"[\s\"]", "", out)
    assert "epoch:5,metadataHash:-123456" in flat
    assert "instanceId:static-1" in flat
    assert "subscribedTopicNames:[t,u],subscribedTopicRegex:t.*" in flat
    assert "serverAssignor:range" in flat
    assert "classicMemberMetadata:{sessionTimeoutMs:45000,supportedProtocols:[{name:sticky" in flat
    assert "assignmentEpoch:5,assignmentTimestamp:1700000000000" in flat
    assert "topicId:AAAAAAAAAAAAAAAAAAAABw,partitions:[1,9]" in flat
    assert "memberEpoch:5,previousMemberEpoch:4,state:1" in flat
    assert "partitions:[1],assignmentEpochs:[3]" in flat
    assert "partitions:[2],assignmentEpochs:[4]" in flat
    assert "topics:[t,tea],version:77,timestamp:1700000000001" in flat
    assert flat.count("payload:<DELETE>") == 7
    assert "Couldnotdecode" not in flat
