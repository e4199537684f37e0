"""Records of __consumer_offsets that describe groups the server assigns (KIP-848), in Kafka's own formats.

Owns: the seven kinds of such records, their codec. Does not own: committed offsets and groups of the classic
protocol (offsets.py), what the records mean (the group machine). A record is one key of a group and its
value; None in place of the value deletes the key.
Invariant: what Kafka wrote is read, and what is written is what Kafka 4.3 writes. The list of topics of a
group (kind 4) is what brokers before 4.1 kept: only whether there is one is read, and it is only deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct, pack
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

from protocol.codec import Fields
from protocol.primitives import Buffer, pack_text, write_uvarint
from protocol.stored.schema import (
    VERSION,
    BadRecord,
    Column,
    StoredSchema,
    decode_versioned,
    encode_versioned,
    encoding_versioned,
    version_of,
)
from protocol.work import Work

Target: TypeAlias = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic id, in order."""
Owned: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""By topic id, each partition and the epoch in which its member got it (KIP-1251)."""

NOTHING: Final[Mapping[UUID, Any]] = MappingProxyType({})
_PARTITIONS_PER_STEP: Final = 512
_SHORT_TOPICS: Final = 8
_SHORT_PARTITIONS: Final = 64
_CURRENT: Final = Struct(">hiib")
_TARGET: Final = Struct(">hB")
_VERSION: Final = 0


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions first."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still hold."""
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    epoch: int
    metadata_hash: int = 0
    """Of the topics the group is subscribed to; another one is a reason to assign anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    epoch: int
    timestamp_ms: int = 0
    """When the assignment was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """What is kept of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """In order, each once."""
    regex: str | None = ""
    """Empty for a member that has none; None in records of earlier brokers."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING)
    revoking: Owned = field(default_factory=lambda: NOTHING)

    def has_same(self, other: CurrentAssignment) -> bool:
        """Whether it is known at once that both name the same partitions."""
        return self.assigned is other.assigned and self.revoking is other.revoking


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    topics: tuple[str, ...]
    version: int
    """Of the cluster's metadata, when the topics were looked through."""
    timestamp_ms: int


# --- records ---


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpochRecord:
    KIND: ClassVar[int] = 3
    group_id: str
    value: GroupEpoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsRecord:
    """`value` is whether a list of the group's topics is stored."""

    KIND: ClassVar[int] = 4
    group_id: str
    value: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    KIND: ClassVar[int] = 5
    group_id: str
    member_id: str
    value: MemberMetadata | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpochRecord:
    KIND: ClassVar[int] = 6
    group_id: str
    value: TargetEpoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    KIND: ClassVar[int] = 7
    group_id: str
    member_id: str
    value: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRecord:
    KIND: ClassVar[int] = 8
    group_id: str
    member_id: str
    value: CurrentAssignment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexRecord:
    KIND: ClassVar[int] = 16
    group_id: str
    regex: str
    value: ResolvedRegex | None


ConsumerGroupRecord: TypeAlias = (
    GroupEpochRecord
    | TopicsRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentRecord
    | RegexRecord
)
KINDS: Final = frozenset({3, 4, 5, 6, 7, 8, 16})


# --- encoding ---


def encoding_consumer_group(record: ConsumerGroupRecord) -> Work[tuple[bytes, bytes | None]]:
    """Return key and value as Kafka 4.3 writes them."""
    key: dict[str, Any] = {"group_id": record.group_id}
    if isinstance(record, MemberRecord | TargetRecord | CurrentRecord):
        key["member_id"] = record.member_id
    elif isinstance(record, RegexRecord):
        key["regular_expression"] = record.regex
    encoded = encode_versioned(_KEYS[record.KIND], record.KIND, key)
    if record.value is None:
        return encoded, None
    assert not isinstance(record, TopicsRecord), "a list of topics is only deleted"
    fields = yield from _fields(record)
    return encoded, (yield from encoding_versioned(_VALUES[record.KIND], _VERSION, fields))


def packed_consumer_group(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None] | None:
    """Return what `encoding_consumer_group` makes of what each member gets in a rebalance, where that is
    short, by hand; None for all else."""
    if isinstance(record, CurrentRecord):
        current = record.value
        if current is None or not (_is_short(current.assigned) and _is_short(current.revoking)):
            return None
        out = bytearray(_CURRENT.pack(_VERSION, current.epoch, current.previous_epoch, current.state))
        for owned in (current.assigned, current.revoking):
            out.append(len(owned) + 1)
            for topic_id, epochs in owned.items():
                partitions = sorted(epochs)
                count = len(partitions)
                layout = f">B{count}i"
                out += topic_id.bytes
                out += pack(layout, count + 1, *partitions)
                out += b"\x01\x00"  # one tag: the epochs
                write_uvarint(out, 1 + 4 * count)
                out += pack(layout, count + 1, *map(epochs.__getitem__, partitions))
    elif isinstance(record, TargetRecord):
        target = record.value
        if target is None or not _is_short(target):
            return None
        out = bytearray(_TARGET.pack(_VERSION, len(target) + 1))
        for topic_id, some in target.items():
            out += topic_id.bytes
            out += pack(f">B{len(some)}ix", len(some) + 1, *some)  # and no tags
    else:
        return None
    out.append(0)  # tags
    key = VERSION.pack(record.KIND) + pack_text(record.group_id, False) + pack_text(record.member_id, False)
    return key, bytes(out)


def _is_short(partitions: Mapping[UUID, Collection[int]]) -> bool:
    """Whether each count of it takes a byte, and all of it about as long as a step may."""
    return len(partitions) <= _SHORT_TOPICS and all(
        len(some) <= _SHORT_PARTITIONS for some in partitions.values()
    )


def _fields(
    record: GroupEpochRecord | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord | RegexRecord,
) -> Work[Fields]:
    match record:
        case GroupEpochRecord(value=GroupEpoch() as group):
            return {"epoch": group.epoch, "metadata_hash": group.metadata_hash}
        case TargetEpochRecord(value=TargetEpoch() as target):
            return {"assignment_epoch": target.epoch, "assignment_timestamp": target.timestamp_ms}
        case MemberRecord(value=MemberMetadata() as member):
            return _member_fields(member)
        case CurrentRecord(value=CurrentAssignment() as current):
            return {
                "member_epoch": current.epoch,
                "previous_member_epoch": current.previous_epoch,
                "state": int(current.state),
                "assigned_partitions": (yield from _owned_fields(current.assigned)),
                "partitions_pending_revocation": (yield from _owned_fields(current.revoking)),
            }
        case RegexRecord(value=ResolvedRegex() as resolved):
            return {
                "topics": resolved.topics,
                "version": resolved.version,
                "timestamp": resolved.timestamp_ms,
            }
        case TargetRecord(value=partitions):
            assert partitions is not None
            rows = [{"topic_id": topic_id, "partitions": some} for topic_id, some in partitions.items()]
            return {"topic_partitions": rows}
    raise AssertionError(f"{record!r} has no value")


def _member_fields(member: MemberMetadata) -> Fields:
    classic = member.classic
    return {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "subscribed_topic_regex": member.regex,
        "rebalance_timeout": member.rebalance_timeout_ms,
        "server_assignor": member.assignor,
        "classic_member_metadata": None
        if classic is None
        else {
            "session_timeout": classic.session_timeout_ms,
            "supported_protocols": [
                {"name": name, "metadata": metadata} for name, metadata in classic.protocols
            ],
        },
    }


def _owned_fields(owned: Owned) -> Work[list[Fields]]:
    rows: list[Fields] = []
    count = 0
    for topic_id, epochs in owned.items():
        partitions = sorted(epochs)
        rows.append(
            {
                "topic_id": topic_id,
                "partitions": partitions,
                "assignment_epochs": [epochs[partition] for partition in partitions],
            }
        )
        count += len(partitions) + 1
        if count >= _PARTITIONS_PER_STEP:
            count = 0
            yield
    return rows


# --- decoding ---


def decode_consumer_group(kind: int, key: Buffer, value: Buffer | None) -> ConsumerGroupRecord:
    """Return the record; raise BadRecord for bytes that are none."""
    named = decode_versioned(_KEYS[kind], kind, key)
    group_id = named.group_id
    stored = None
    if value is not None:
        stored = decode_versioned(_VALUES[kind], version_of(value), value)
    match kind:
        case 3:
            return GroupEpochRecord(
                group_id=group_id,
                value=None
                if stored is None
                else GroupEpoch(epoch=stored.epoch, metadata_hash=stored.metadata_hash),
            )
        case 4:
            return TopicsRecord(group_id=group_id, value=None if stored is None else True)
        case 5:
            member = None if stored is None else _member(stored)
            return MemberRecord(group_id=group_id, member_id=named.member_id, value=member)
        case 6:
            return TargetEpochRecord(
                group_id=group_id,
                value=None
                if stored is None
                else TargetEpoch(epoch=stored.assignment_epoch, timestamp_ms=stored.assignment_timestamp),
            )
        case 7:
            return TargetRecord(
                group_id=group_id,
                member_id=named.member_id,
                value=None
                if stored is None
                else {_id(row): tuple(sorted(set(row.partitions))) for row in stored.topic_partitions},
            )
        case 8:
            current = None if stored is None else _current(stored)
            return CurrentRecord(group_id=group_id, member_id=named.member_id, value=current)
        case _:
            resolved = None
            if stored is not None:
                resolved = ResolvedRegex(
                    topics=tuple(sorted(set(stored.topics))),
                    version=stored.version,
                    timestamp_ms=stored.timestamp,
                )
            return RegexRecord(group_id=group_id, regex=named.regular_expression, value=resolved)


def _id(row: Any) -> UUID:
    topic_id: UUID | None = row.topic_id
    return UUID(int=0) if topic_id is None else topic_id


def _member(stored: Any) -> MemberMetadata:
    classic = stored.classic_member_metadata
    return MemberMetadata(
        instance_id=stored.instance_id,
        rack_id=stored.rack_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        topics=tuple(sorted(set(stored.subscribed_topic_names))),
        regex=stored.subscribed_topic_regex,
        rebalance_timeout_ms=stored.rebalance_timeout,
        assignor=stored.server_assignor,
        classic=None
        if classic is None
        else ClassicSide(
            session_timeout_ms=classic.session_timeout,
            protocols=tuple((one.name, bytes(one.metadata)) for one in classic.supported_protocols),
        ),
    )


def _current(stored: Any) -> CurrentAssignment:
    try:
        state = MemberState(stored.state)
    except ValueError:
        state = MemberState.UNKNOWN
    return CurrentAssignment(
        epoch=stored.member_epoch,
        previous_epoch=stored.previous_member_epoch,
        state=state,
        assigned=_owned(stored.assigned_partitions, stored.member_epoch),
        revoking=_owned(stored.partitions_pending_revocation, stored.member_epoch),
    )


def _owned(rows: Any, member_epoch: int) -> Owned:
    """Return partitions with their epochs; before 4.3 none are stored, and the member's stands for them."""
    owned: dict[UUID, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None:
            epochs = (member_epoch,) * len(row.partitions)
        if len(epochs) != len(row.partitions):
            raise BadRecord(f"{len(epochs)} epochs for {len(row.partitions)} partitions")
        owned[_id(row)] = dict(zip(row.partitions, epochs, strict=True))
    return owned


# --- schemas ---

_NEVER: Final = 1 << 15


def _key(name: str, kind: int, *columns: str) -> StoredSchema:
    return StoredSchema(
        name=name,
        versions=range(kind, kind + 1),
        flexible_from=_NEVER,
        columns=tuple(Column(name=column, kafka_type="string") for column in ("group_id", *columns)),
    )


def _value(name: str, *columns: Column) -> StoredSchema:
    return StoredSchema(name=name, versions=range(1), flexible_from=0, columns=columns)


_KEYS: Final = {
    3: _key("ConsumerGroupMetadataKey", 3),
    4: _key("ConsumerGroupPartitionMetadataKey", 4),
    5: _key("ConsumerGroupMemberMetadataKey", 5, "member_id"),
    6: _key("ConsumerGroupTargetAssignmentMetadataKey", 6),
    7: _key("ConsumerGroupTargetAssignmentMemberKey", 7, "member_id"),
    8: _key("ConsumerGroupCurrentMemberAssignmentKey", 8, "member_id"),
    16: _key("ConsumerGroupRegularExpressionKey", 16, "regular_expression"),
}
_TOPIC_ID: Final = Column(name="topic_id", kafka_type="uuid", is_nullable=True)
_PARTITIONS: Final = Column(name="partitions", kafka_type="int32", is_array=True)
_OWNED: Final = _value(
    "OwnedTopicPartitions",
    _TOPIC_ID,
    _PARTITIONS,
    Column(
        name="assignment_epochs", kafka_type="int32", is_array=True, is_nullable=True, tag=0, default=None
    ),
)
_VALUES: Final = {
    3: _value(
        "ConsumerGroupMetadataValue",
        Column(name="epoch", kafka_type="int32"),
        Column(name="metadata_hash", kafka_type="int64", tag=0, default=0),
    ),
    4: _value(
        "ConsumerGroupPartitionMetadataValue",
        Column(
            name="topics",
            kafka_type=None,
            items=_value(
                "TopicMetadata",
                _TOPIC_ID,
                Column(name="topic_name", kafka_type="string"),
                Column(name="num_partitions", kafka_type="int32"),
                Column(
                    name="partition_metadata",
                    kafka_type=None,
                    items=_value(
                        "PartitionMetadata",
                        Column(name="partition", kafka_type="int32"),
                        Column(name="racks", kafka_type="string", is_array=True),
                    ),
                ),
            ),
        ),
    ),
    5: _value(
        "ConsumerGroupMemberMetadataValue",
        Column(name="instance_id", kafka_type="string", is_nullable=True),
        Column(name="rack_id", kafka_type="string", is_nullable=True),
        Column(name="client_id", kafka_type="string"),
        Column(name="client_host", kafka_type="string"),
        Column(name="subscribed_topic_names", kafka_type="string", is_array=True),
        Column(name="subscribed_topic_regex", kafka_type="string", is_nullable=True),
        Column(name="rebalance_timeout", kafka_type="int32"),
        Column(name="server_assignor", kafka_type="string", is_nullable=True),
        Column(
            name="classic_member_metadata",
            kafka_type=None,
            is_array=False,
            is_nullable=True,
            tag=0,
            default=None,
            items=_value(
                "ClassicMemberMetadata",
                Column(name="session_timeout", kafka_type="int32"),
                Column(
                    name="supported_protocols",
                    kafka_type=None,
                    items=_value(
                        "ClassicProtocol",
                        Column(name="name", kafka_type="string"),
                        Column(name="metadata", kafka_type="bytes"),
                    ),
                ),
            ),
        ),
    ),
    6: _value(
        "ConsumerGroupTargetAssignmentMetadataValue",
        Column(name="assignment_epoch", kafka_type="int32"),
        Column(name="assignment_timestamp", kafka_type="int64", tag=0, default=0),
    ),
    7: _value(
        "ConsumerGroupTargetAssignmentMemberValue",
        Column(
            name="topic_partitions", kafka_type=None, items=_value("TopicPartition", _TOPIC_ID, _PARTITIONS)
        ),
    ),
    8: _value(
        "ConsumerGroupCurrentMemberAssignmentValue",
        Column(name="member_epoch", kafka_type="int32"),
        Column(name="previous_member_epoch", kafka_type="int32"),
        Column(name="state", kafka_type="int8"),
        Column(name="assigned_partitions", kafka_type=None, items=_OWNED),
        Column(name="partitions_pending_revocation", kafka_type=None, items=_OWNED),
    ),
    16: _value(
        "ConsumerGroupRegularExpressionValue",
        Column(name="topics", kafka_type="string", is_array=True),
        Column(name="version", kafka_type="int64"),
        Column(name="timestamp", kafka_type="int64"),
    ),
}
