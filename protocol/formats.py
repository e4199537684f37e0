"""What we persist in formats that others read too, and the frame of a slot of the cluster's metadata log.

Owns: records of __consumer_offsets in Kafka's own formats, what consumers put into group metadata
(ConsumerProtocol), the slot frame. Does not own: record batches around them (records.py), what the records
of a slot mean (broker/controller.py), checkpoints and snapshots (storage).
Invariant: what Kafka wrote is read whatever its version, and what is written is what Kafka 4.3 writes.

A record of __consumer_offsets has a version before its key, which is the record's type, and one before its
value. Types we have no use for (those of the new group protocols) decode to None.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from struct import Struct
from typing import Any, TypeAlias, cast
from uuid import UUID

from protocol.checksum import crc32c
from protocol.codec import EntityCodec, Fields
from protocol.errors import MalformedRequest
from protocol.messages import get

__all__ = [
    "Assignment",
    "BadRecord",
    "CommittedOffset",
    "CoordinatorRecord",
    "GroupMember",
    "GroupMetadata",
    "GroupRecord",
    "OffsetRecord",
    "Slot",
    "Subscription",
    "decode_assignment",
    "decode_coordinator_record",
    "decode_slot",
    "decode_subscription",
    "encode_assignment",
    "encode_coordinator_record",
    "encode_slot",
    "encode_subscription",
    "slot_hash",
    "subscribed_topics",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

_VERSION = Struct(">h")


class BadRecord(Exception):
    """Stored bytes that are not in the format they claim."""


# ---- __consumer_offsets ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """`record_offset` is where the record lies in its partition; it is not part of it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1  # of commits that carried a retention time
    topic_id: UUID | None = None
    record_offset: int = -1

    def at(self, record_offset: int) -> CommittedOffset:
        return replace(self, record_offset=record_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
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


CoordinatorRecord: TypeAlias = OffsetRecord | GroupRecord


def encode_coordinator_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """(key, value) as Kafka 4.3 writes them."""
    if isinstance(record, OffsetRecord):
        key = _prefixed(
            _OFFSET_KEY, 1, {"group": record.group_id, "topic": record.topic, "partition": record.partition}
        )
        return key, None if record.committed is None else _encode_committed(record.committed)
    key = _prefixed(_GROUP_KEY, 2, {"group": record.group_id})
    return key, None if record.metadata is None else _encode_group(record.metadata)


def decode_coordinator_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    """The record, or None for a type we do not keep. Raises BadRecord for bytes that are none."""
    kind = _version(key)
    if kind in (0, 1):
        named = _decode(_OFFSET_KEY, kind, key)
        committed = None if value is None else _decode_committed(value)
        return OffsetRecord(
            group_id=named.group, topic=named.topic, partition=named.partition, committed=committed
        )
    if kind == 2:
        group_id = _decode(_GROUP_KEY, kind, key).group
        return GroupRecord(group_id=group_id, metadata=None if value is None else _decode_group(value))
    return None


def _encode_committed(committed: CommittedOffset) -> bytes:
    # Version 1 is the only one with an expiry; 4 is flexible and carries the topic id (KAFKA-19141).
    version = 4 if committed.expire_timestamp_ms < 0 else 1
    return _prefixed(
        _OFFSET_VALUE,
        version,
        {
            "offset": committed.offset,
            "leader_epoch": committed.leader_epoch,
            "metadata": committed.metadata,
            "commit_timestamp": committed.commit_timestamp_ms,
            "expire_timestamp": committed.expire_timestamp_ms,
            "topic_id": committed.topic_id,
        },
    )


def _decode_committed(value: Buffer) -> CommittedOffset:
    stored = _decode(_OFFSET_VALUE, _version(value), value)
    return CommittedOffset(
        offset=stored.offset,
        leader_epoch=get(stored, "leader_epoch", -1),
        metadata=stored.metadata,
        commit_timestamp_ms=stored.commit_timestamp,
        expire_timestamp_ms=get(stored, "expire_timestamp", -1),
        topic_id=get(stored, "topic_id"),
    )


def _encode_group(group: GroupMetadata) -> bytes:
    return _prefixed(
        _GROUP_VALUE,
        3,
        {
            "protocol_type": group.protocol_type,
            "generation": group.generation,
            "protocol": group.protocol,
            "leader": group.leader,
            "current_state_timestamp": group.state_timestamp_ms,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "rebalance_timeout": member.rebalance_timeout_ms,
                    "session_timeout": member.session_timeout_ms,
                    "subscription": member.subscription,
                    "assignment": member.assignment,
                }
                for member in group.members
            ],
        },
    )


def _decode_group(value: Buffer) -> GroupMetadata:
    stored = _decode(_GROUP_VALUE, _version(value), value)
    return GroupMetadata(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol,
        leader=stored.leader,
        state_timestamp_ms=get(stored, "current_state_timestamp", -1),
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=get(member, "group_instance_id"),
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=get(member, "rebalance_timeout", -1),
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in stored.members
        ),
    )


# --- schemas ---

_REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A field and the versions that have it; `kafka_type` None stands for an array of the nested schema."""

    name: str
    kafka_type: str | None
    since: int = 0
    until: int = 1 << 15
    is_nullable: bool = False
    tag: int | None = None
    default: Any = _REQUIRED
    items: _Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schema:
    name: str
    versions: range
    flexible_from: int
    columns: tuple[_Column, ...]


_OFFSET_KEY = _Schema(
    name="OffsetCommitKey",
    versions=range(2),
    flexible_from=1 << 15,
    columns=(
        _Column(name="group", kafka_type="string"),
        _Column(name="topic", kafka_type="string"),
        _Column(name="partition", kafka_type="int32"),
    ),
)
_OFFSET_VALUE = _Schema(
    name="OffsetCommitValue",
    versions=range(5),
    flexible_from=4,
    columns=(
        _Column(name="offset", kafka_type="int64"),
        _Column(name="leader_epoch", kafka_type="int32", since=3, default=-1),
        _Column(name="metadata", kafka_type="string"),
        _Column(name="commit_timestamp", kafka_type="int64"),
        _Column(name="expire_timestamp", kafka_type="int64", since=1, until=1, default=-1),
        _Column(name="topic_id", kafka_type="uuid", since=4, tag=0, default=None),
    ),
)
_GROUP_KEY = _Schema(
    name="GroupMetadataKey",
    versions=range(2, 3),
    flexible_from=1 << 15,
    columns=(_Column(name="group", kafka_type="string"),),
)
_MEMBER = _Schema(
    name="MemberMetadata",
    versions=range(5),
    flexible_from=4,
    columns=(
        _Column(name="member_id", kafka_type="string"),
        _Column(name="group_instance_id", kafka_type="string", since=3, is_nullable=True, default=None),
        _Column(name="client_id", kafka_type="string"),
        _Column(name="client_host", kafka_type="string"),
        _Column(name="rebalance_timeout", kafka_type="int32", since=1, default=-1),
        _Column(name="session_timeout", kafka_type="int32"),
        _Column(name="subscription", kafka_type="bytes"),
        _Column(name="assignment", kafka_type="bytes"),
    ),
)
_GROUP_VALUE = _Schema(
    name="GroupMetadataValue",
    versions=range(5),
    flexible_from=4,
    columns=(
        _Column(name="protocol_type", kafka_type="string"),
        _Column(name="generation", kafka_type="int32"),
        _Column(name="protocol", kafka_type="string", is_nullable=True),
        _Column(name="leader", kafka_type="string", is_nullable=True),
        _Column(name="current_state_timestamp", kafka_type="int64", since=2, default=-1),
        _Column(name="members", kafka_type=None, items=_MEMBER),
    ),
)

_PYTHON_TYPES: dict[str, type] = {"string": str, "bytes": bytes, "int32": int, "int64": int, "uuid": UUID}


@cache
def _class(schema: _Schema, version: int) -> type[Any]:
    """A dataclass like those kio generates from Kafka's schemas, which has none for these."""
    columns: list[tuple[str, Any, Any]] = []
    for column in schema.columns:
        if not column.since <= version <= column.until:
            continue
        metadata: dict[str, Any] = {}
        python_type: Any
        if column.items is not None:
            python_type = tuple[_class(column.items, version), ...]  # type: ignore[misc]
        else:
            assert column.kafka_type is not None
            metadata["kafka_type"] = column.kafka_type
            python_type = _PYTHON_TYPES[column.kafka_type]
        if column.is_nullable:
            python_type |= None
        if column.tag is not None:
            metadata["tag"] = column.tag
        if column.default is _REQUIRED:
            columns.append((column.name, python_type, field(metadata=metadata)))
        else:
            columns.append((column.name, python_type, field(metadata=metadata, default=column.default)))
    return make_dataclass(
        schema.name,
        columns,
        frozen=True,
        slots=True,
        kw_only=True,
        namespace={"__flexible__": version >= schema.flexible_from, "__version__": version},
    )


@cache
def _codec(schema: _Schema, version: int) -> EntityCodec:
    if version not in schema.versions:
        raise BadRecord(f"{schema.name} version {version}")
    return EntityCodec(_class(schema, version))


def _prefixed(schema: _Schema, version: int, values: Fields) -> bytes:
    return _VERSION.pack(version) + _codec(schema, version).encode(values)


def _version(data: Buffer) -> int:
    if len(data) < 2:
        raise BadRecord(f"{len(data)} bytes have no version")
    return cast(int, _VERSION.unpack_from(data)[0])


def _decode(schema: _Schema, version: int, data: Buffer) -> Any:
    try:
        return _codec(schema, version).decode(memoryview(data)[2:])
    except MalformedRequest as error:
        raise BadRecord(f"{schema.name} version {version}: {error}") from error


# ---- what consumers put into JoinGroup and SyncGroup ----

_CONSUMER_PROTOCOL_VERSION_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    generation_id: int = -1
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    user_data: bytes | None = None


def subscribed_topics(metadata: Buffer) -> tuple[str, ...] | None:
    """The topics of a consumer's subscription; None if it cannot be read, as with protocols that are not
    consumers'.

    Read as version 0, which every later one begins with, so that user data of any kind does not matter.
    """
    try:
        if _version(metadata) < 0:
            return None
        return tuple(_consumer_codec("subscription", 0).decode(memoryview(metadata)[2:]).topics)
    except (BadRecord, MalformedRequest):
        return None


def decode_subscription(metadata: Buffer) -> Subscription:
    stored = _decode_consumer("subscription", metadata)
    return Subscription(
        topics=tuple(stored.topics),
        user_data=stored.user_data,
        owned_partitions=_partitions(get(stored, "owned_partitions", ())),
        generation_id=get(stored, "generation_id", -1),
        rack_id=get(stored, "rack_id"),
    )


def decode_assignment(assignment: Buffer) -> Assignment:
    stored = _decode_consumer("assignment", assignment)
    return Assignment(partitions=_partitions(stored.assigned_partitions), user_data=stored.user_data)


def encode_subscription(subscription: Subscription, version: int = 3) -> bytes:
    values = {one.name: getattr(subscription, one.name) for one in fields(subscription)}
    values["owned_partitions"] = _partition_fields(subscription.owned_partitions)
    return _VERSION.pack(version) + _consumer_codec("subscription", version).encode(values)


def encode_assignment(assignment: Assignment, version: int = 3) -> bytes:
    values = {
        "assigned_partitions": _partition_fields(assignment.partitions),
        "user_data": assignment.user_data,
    }
    return _VERSION.pack(version) + _consumer_codec("assignment", version).encode(values)


def _decode_consumer(kind: str, data: Buffer) -> Any:
    version = _version(data)
    if version < 0:
        raise BadRecord(f"consumer {kind} version {version}")
    # A newer version begins with what the newest known one has; Kafka reads it so.
    codec = _consumer_codec(kind, min(version, _CONSUMER_PROTOCOL_VERSION_MAX))
    try:
        return codec.decode(memoryview(data)[2:])
    except MalformedRequest as error:
        raise BadRecord(f"consumer {kind}: {error}") from error


@cache
def _consumer_codec(kind: str, version: int) -> EntityCodec:
    module = import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    return EntityCodec(getattr(module, f"ConsumerProtocol{kind.title()}"))


def _partitions(topics: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((topic.topic, tuple(topic.partitions)) for topic in topics)


def _partition_fields(topics: tuple[tuple[str, tuple[int, ...]], ...]) -> list[Fields]:
    return [{"topic": topic, "partitions": partitions} for topic, partitions in topics]


# ---- slots of the cluster's metadata log ----

_SLOT_MAGIC = b"TWM1"
_SLOT_CRC = Struct(">4sI")
_SLOT_HEAD = Struct(">QI16s32sI")
_SLOT_RECORD = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One object `meta/<seq>`: a batch of records, who wrote it, and what came before."""

    seq: int
    controller_epoch: int
    put_id: bytes  # 16, tells our own write from another's when the answer was lost
    previous_hash: bytes  # 32, `slot_hash` of the slot before
    records: tuple[bytes, ...] = ()


def encode_slot(slot: Slot) -> bytes:
    assert len(slot.put_id) == 16, slot.put_id
    assert len(slot.previous_hash) == 32, slot.previous_hash
    body = bytearray(
        _SLOT_HEAD.pack(slot.seq, slot.controller_epoch, slot.put_id, slot.previous_hash, len(slot.records))
    )
    for record in slot.records:
        body += _SLOT_RECORD.pack(len(record))
        body += record
    return _SLOT_CRC.pack(_SLOT_MAGIC, crc32c(body)) + body


def decode_slot(data: Buffer) -> Slot:
    """The slot; BadRecord for anything but exactly what `encode_slot` makes."""
    body_at = _SLOT_CRC.size
    at = body_at + _SLOT_HEAD.size
    if len(data) < at:
        raise BadRecord(f"slot of {len(data)} bytes")
    magic, crc = _SLOT_CRC.unpack_from(data)
    if magic != _SLOT_MAGIC:
        raise BadRecord(f"slot starts with {magic!r}")
    if crc32c(memoryview(data)[body_at:]) != crc:
        raise BadRecord("slot fails its CRC")
    seq, controller_epoch, put_id, previous_hash, count = _SLOT_HEAD.unpack_from(data, body_at)
    records = []
    for _ in range(count):
        if len(data) - at < _SLOT_RECORD.size:
            raise BadRecord("slot is cut inside its records")
        (size,) = _SLOT_RECORD.unpack_from(data, at)
        at += _SLOT_RECORD.size
        if len(data) - at < size:
            raise BadRecord("slot is cut inside a record")
        records.append(bytes(data[at : at + size]))
        at += size
    if at != len(data):
        raise BadRecord(f"{len(data) - at} bytes after the last record of a slot")
    return Slot(
        seq=seq,
        controller_epoch=controller_epoch,
        put_id=put_id,
        previous_hash=previous_hash,
        records=tuple(records),
    )


def slot_hash(data: Buffer) -> bytes:
    """What the next slot names as `previous_hash`; 32 zero bytes before the first."""
    return sha256(data).digest()
