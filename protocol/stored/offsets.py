"""Records of __consumer_offsets: committed offsets and groups, in Kafka's own formats.

Owns: both records, their versions, and which type of record a key begins. Does not own: the records of groups
that the server assigns (consumer_groups.py), the batches around them (records.py), what they mean (the group
machine). A record has a version before its key, which is the record's type, and one before its value. Types
we have no use for (those of share and streams groups) decode to None.
Invariant: what Kafka wrote is read whatever its version, and what is written is what Kafka 4.3 writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from protocol.primitives import INT16, INT32, NO_TAGS, Buffer, pack_text
from protocol.stored.consumer_groups import (
    KINDS,
    ConsumerGroupRecord,
    decode_consumer_group,
    encoding_consumer_group,
)
from protocol.stored.schema import (
    VERSION,
    Column,
    StoredSchema,
    decode_versioned,
    encode_versioned,
    version_of,
)
from protocol.work import Work, finish

_new_tuple = tuple.__new__
"""A named tuple of all its fields, in half the time."""


class CommittedOffset(NamedTuple):
    """`record_offset` is where the record lies in its partition; it is not part of it."""

    offset: int
    commit_timestamp_ms: int
    leader_epoch: int = -1
    metadata: str = ""
    expire_timestamp_ms: int = -1  # of commits that carried a retention time
    topic_id: UUID | None = None
    record_offset: int = -1

    def at(self, record_offset: int) -> CommittedOffset:
        return _new_tuple(CommittedOffset, (*self[:-1], record_offset))


class OffsetRecord(NamedTuple):
    """`committed` None deletes the offset."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """`metadata` None deletes the group."""

    group_id: str
    metadata: GroupMetadata | None


CoordinatorRecord: TypeAlias = OffsetRecord | GroupRecord | ConsumerGroupRecord


def encode_coordinator_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """(key, value) as Kafka 4.3 writes them."""
    if isinstance(record, OffsetRecord):
        return encode_offset_record(record)
    return finish(encode_in_steps(record))


def encode_offset_record(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    """`encode_coordinator_record` by hand: a commit is little else than its record."""
    group, topic = record.group_id.encode(), record.topic.encode()
    sizes = _KEY_HEAD.pack(1, len(group)), INT16.pack(len(topic))
    key = b"".join((sizes[0], group, sizes[1], topic, INT32.pack(record.partition)))
    return key, None if record.committed is None else _encode_committed(record.committed)


def encode_in_steps(
    record: GroupRecord | ConsumerGroupRecord,
) -> Work[tuple[bytes, bytes | None]]:
    """`encode_coordinator_record`, for the loop: a group may have thousands of members."""
    if not isinstance(record, GroupRecord):
        return (yield from encoding_consumer_group(record))
    key = encode_versioned(_GROUP_KEY, 2, {"group": record.group_id})
    return key, None if record.metadata is None else (yield from _encode_group(record.metadata))


def decode_coordinator_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    """The record, or None for a type we do not keep. Raises BadRecord for bytes that are none."""
    kind = version_of(key)
    if kind in (0, 1):
        named = decode_versioned(_OFFSET_KEY, kind, key)
        committed = None if value is None else _decode_committed(value)
        return OffsetRecord(
            group_id=named.group, topic=named.topic, partition=named.partition, committed=committed
        )
    if kind == 2:
        group_id = decode_versioned(_GROUP_KEY, kind, key).group
        return GroupRecord(group_id=group_id, metadata=None if value is None else _decode_group(value))
    return decode_consumer_group(kind, key, value) if kind in KINDS else None


def _encode_committed(committed: CommittedOffset) -> bytes:
    offset, commit_ms, leader_epoch, metadata, expire_ms, topic_id, _ = committed
    # Version 1 is the only one with an expiry; 4 is flexible and carries the topic id (KAFKA-19141).
    if expire_ms >= 0:
        return _VALUE_1_HEAD.pack(1, offset) + pack_text(metadata, False) + _TIMES.pack(commit_ms, expire_ms)
    tags = NO_TAGS if topic_id is None else _TOPIC_ID_TAG + topic_id.bytes
    text = pack_text(metadata, True) if metadata else _NO_TEXT
    return _VALUE_4_HEAD.pack(4, offset, leader_epoch) + text + _TIME.pack(commit_ms) + tags


def _decode_committed(value: Buffer) -> CommittedOffset:
    stored = decode_versioned(_OFFSET_VALUE, version_of(value), value)
    return CommittedOffset(
        offset=stored.offset,
        leader_epoch=getattr(stored, "leader_epoch", -1),
        metadata=stored.metadata,
        commit_timestamp_ms=stored.commit_timestamp,
        expire_timestamp_ms=getattr(stored, "expire_timestamp", -1),
        topic_id=getattr(stored, "topic_id", None),
    )


def _encode_group(group: GroupMetadata) -> Work[bytes]:
    head = encode_versioned(
        _GROUP_VALUE,
        _GROUP_VERSION,
        {
            "protocol_type": group.protocol_type,
            "generation": group.generation,
            "protocol": group.protocol,
            "leader": group.leader,
            "current_state_timestamp": group.state_timestamp_ms,
            "members": (),
        },
    )
    # the members come last, after how many there are
    out = bytearray(head[: -_COUNT.size] + _COUNT.pack(len(group.members)))
    for at, member in enumerate(group.members, 1):
        values = {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "rebalance_timeout": member.rebalance_timeout_ms,
            "session_timeout": member.session_timeout_ms,
            "subscription": member.subscription,
            "assignment": member.assignment,
        }
        out += encode_versioned(_MEMBER, _GROUP_VERSION, values)[VERSION.size :]
        if at % _MEMBERS_PER_STEP == 0:
            yield
    return bytes(out)


def _decode_group(value: Buffer) -> GroupMetadata:
    stored = decode_versioned(_GROUP_VALUE, version_of(value), value)
    return GroupMetadata(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol,
        leader=stored.leader,
        state_timestamp_ms=getattr(stored, "current_state_timestamp", -1),
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=getattr(member, "group_instance_id", None),
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=getattr(member, "rebalance_timeout", -1),
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in stored.members
        ),
    )


# --- schemas ---

_KEY_HEAD: Final = Struct(">hh")
_VALUE_1_HEAD: Final = Struct(">hq")
_VALUE_4_HEAD: Final = Struct(">hqi")
_TIME: Final = Struct(">q")
_TIMES: Final = Struct(">qq")
_NO_TEXT: Final = b"\x01"
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
"""One tagged field: the first, of 16 bytes."""
_GROUP_VERSION = 3
_COUNT = Struct(">i")
_MEMBERS_PER_STEP = 16

_OFFSET_KEY = StoredSchema(
    name="OffsetCommitKey",
    versions=range(2),
    flexible_from=1 << 15,
    columns=(
        Column(name="group", kafka_type="string"),
        Column(name="topic", kafka_type="string"),
        Column(name="partition", kafka_type="int32"),
    ),
)
_OFFSET_VALUE = StoredSchema(
    name="OffsetCommitValue",
    versions=range(5),
    flexible_from=4,
    columns=(
        Column(name="offset", kafka_type="int64"),
        Column(name="leader_epoch", kafka_type="int32", since=3, default=-1),
        Column(name="metadata", kafka_type="string"),
        Column(name="commit_timestamp", kafka_type="int64"),
        Column(name="expire_timestamp", kafka_type="int64", since=1, until=1, default=-1),
        Column(name="topic_id", kafka_type="uuid", since=4, tag=0, default=None),
    ),
)
_GROUP_KEY = StoredSchema(
    name="GroupMetadataKey",
    versions=range(2, 3),
    flexible_from=1 << 15,
    columns=(Column(name="group", kafka_type="string"),),
)
_MEMBER = StoredSchema(
    name="MemberMetadata",
    versions=range(5),
    flexible_from=4,
    columns=(
        Column(name="member_id", kafka_type="string"),
        Column(name="group_instance_id", kafka_type="string", since=3, is_nullable=True, default=None),
        Column(name="client_id", kafka_type="string"),
        Column(name="client_host", kafka_type="string"),
        Column(name="rebalance_timeout", kafka_type="int32", since=1, default=-1),
        Column(name="session_timeout", kafka_type="int32"),
        Column(name="subscription", kafka_type="bytes"),
        Column(name="assignment", kafka_type="bytes"),
    ),
)
_GROUP_VALUE = StoredSchema(
    name="GroupMetadataValue",
    versions=range(5),
    flexible_from=4,
    columns=(
        Column(name="protocol_type", kafka_type="string"),
        Column(name="generation", kafka_type="int32"),
        Column(name="protocol", kafka_type="string", is_nullable=True),
        Column(name="leader", kafka_type="string", is_nullable=True),
        Column(name="current_state_timestamp", kafka_type="int64", since=2, default=-1),
        Column(name="members", kafka_type=None, items=_MEMBER),
    ),
)
