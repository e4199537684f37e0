"""The records of the metadata log, and how they are encoded, for ever.

Owns: every record a metadata slot may hold and its encoding, the state of one partition as records carry it.
Does not own: what a record does to the image (image.py), which records a command leads to.

A record is encoded as JSON [name, version, {field: value}], fields at their default left out. Invariant:
names, fields and the meaning of a version never change; a new field comes with a default, a new meaning with
a new version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from broker.endpoint import Endpoint
from protocol.work import Work

NO_LEADER = -1
PARTITIONS_PER_RECORD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """`adding` and `removing` are the replicas that a reassignment under way brings and takes; until it is
    done, all of them are among `replicas`.
    """

    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    def packed(self) -> list[Any]:
        row = [self.leader, self.leader_epoch, self.partition_epoch, list(self.replicas), list(self.isr)]
        return [*row, list(self.adding), list(self.removing)] if self.is_reassigned else row

    def changed(
        self,
        *,
        leader: int | None = None,
        isr: tuple[int, ...] | None = None,
        replicas: tuple[int, ...] | None = None,
        adding: tuple[int, ...] | None = None,
        removing: tuple[int, ...] | None = None,
    ) -> PartitionImage:
        """A named leader, even the same one, starts a new leader epoch; every change is a new partition
        epoch.
        """
        return PartitionImage(
            index=self.index,
            leader=self.leader if leader is None else leader,
            leader_epoch=self.leader_epoch + (leader is not None),
            partition_epoch=self.partition_epoch + 1,
            replicas=self.replicas if replicas is None else replicas,
            isr=self.isr if isr is None else isr,
            adding=self.adding if adding is None else adding,
            removing=self.removing if removing is None else removing,
        )


def _unpack_partitions(rows: list[list[Any]], *, first: int = 0) -> tuple[PartitionImage, ...]:
    return tuple(
        PartitionImage(
            index=first + at,
            leader=row[0],
            leader_epoch=row[1],
            partition_epoch=row[2],
            replicas=tuple(row[3]),
            isr=tuple(row[4]),
            adding=tuple(row[5]) if len(row) > 5 else (),
            removing=tuple(row[6]) if len(row) > 6 else (),
        )
        for at, row in enumerate(rows)
    )


def new_partition(index: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionImage:
    """A partition at its creation: led by the first of its in-sync replicas, epochs at zero."""
    leader = isr[0] if isr else NO_LEADER
    return PartitionImage(
        index=index, leader=leader, leader_epoch=0, partition_epoch=0, replicas=replicas, isr=isr
    )


def _uuids(values: list[str]) -> tuple[UUID, ...]:
    return tuple(UUID(value) for value in values)


def _endpoints(rows: list[list[Any]]) -> tuple[Endpoint, ...]:
    return tuple(map(Endpoint.unpacked, rows))


def _ints(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBorn:
    VERSION: ClassVar[int] = 0
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerElected:
    """The epoch bump: from its slot on, slots of an older controller epoch are void."""

    VERSION: ClassVar[int] = 0
    controller_id: int
    controller_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """A new incarnation. Its epoch is the number of the slot that commits it; a snapshot says which that was.

    `clean_epoch` is the broker epoch of the node's last clean stop: equal to the epoch it replaces, nothing
    it led was written after it was last told of; otherwise offsets may be written a second time, so every
    partition it led gets a new leader epoch, in this one record.
    """

    VERSION: ClassVar[int] = 0
    broker_id: int
    incarnation: UUID = field(metadata={"parse": UUID})
    directories: tuple[UUID, ...] = field(metadata={"parse": _uuids})
    endpoints: tuple[Endpoint, ...] = field(metadata={"parse": _endpoints})
    rack: str | None = None
    clean_epoch: int = -1
    fenced: bool = False
    epoch: int = -1
    stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFenced:
    """Fenced, a broker leaves every ISR that has another member and leads nothing; no longer fenced, it
    leads what has no leader and counts it in sync.
    """

    VERSION: ClassVar[int] = 0
    broker_id: int
    broker_epoch: int
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStopping:
    """A controlled stop: the broker leaves every ISR that has another member, and what it led goes to one of
    them. Where it is the only member it stays, and leads until it is fenced: a broker that is alone comes
    back to partitions that never changed.
    """

    VERSION: ClassVar[int] = 0
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregistered:
    VERSION: ClassVar[int] = 0
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    VERSION: ClassVar[int] = 0
    name: str
    topic_id: UUID = field(metadata={"parse": UUID})
    partitions: tuple[PartitionImage, ...] = field(metadata={"parse": _unpack_partitions})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """`first` is the index of the first new partition."""

    VERSION: ClassVar[int] = 0
    topic_id: UUID = field(metadata={"parse": UUID})
    first: int
    partitions: tuple[PartitionImage, ...] = field(metadata={"parse": _unpack_partitions})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """A change of one partition; what is None stays. `unclean` tells a reader of the log that the leader was
    not in sync, so that records may be lost; it changes nothing.
    """

    VERSION: ClassVar[int] = 0
    topic_id: UUID = field(metadata={"parse": UUID})
    partition: int
    leader: int | None = None
    isr: tuple[int, ...] | None = field(default=None, metadata={"parse": _ints})
    replicas: tuple[int, ...] | None = field(default=None, metadata={"parse": _ints})
    adding: tuple[int, ...] | None = field(default=None, metadata={"parse": _ints})
    removing: tuple[int, ...] | None = field(default=None, metadata={"parse": _ints})
    unclean: bool = False

    def of(self, partition: PartitionImage) -> PartitionImage:
        """The partition as this change leaves it."""
        return partition.changed(
            leader=self.leader,
            isr=self.isr,
            replicas=self.replicas,
            adding=self.adding,
            removing=self.removing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    VERSION: ClassVar[int] = 0
    topic_id: UUID = field(metadata={"parse": UUID})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    VERSION: ClassVar[int] = 0
    resource_type: int
    resource_name: str
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated:
    """Ids below `next_producer_id` are taken."""

    VERSION: ClassVar[int] = 0
    broker_id: int
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureChanged:
    """A feature of the cluster, by Kafka's name, is at this level from now on."""

    VERSION: ClassVar[int] = 0
    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """Heads a snapshot: when it was written, by its writer's clock. It changes nothing."""

    VERSION: ClassVar[int] = 0
    at_ms: int


Record: TypeAlias = (
    ClusterBorn
    | ControllerElected
    | BrokerRegistered
    | BrokerFenced
    | BrokerStopping
    | BrokerUnregistered
    | TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsAllocated
    | FeatureChanged
    | SnapshotTaken
)

RECORD_TYPES: Mapping[str, type[Record]] = {
    record.__name__: record
    for record in (
        ClusterBorn,
        ControllerElected,
        BrokerRegistered,
        BrokerFenced,
        BrokerStopping,
        BrokerUnregistered,
        TopicCreated,
        PartitionsAdded,
        PartitionChanged,
        TopicDeleted,
        ConfigChanged,
        ProducerIdsAllocated,
        FeatureChanged,
        SnapshotTaken,
    )
}
_FIELDS = {
    record: tuple((f.name, f.default, f.metadata.get("parse")) for f in fields(record))
    for record in RECORD_TYPES.values()
}


class UnknownRecord(ValueError):
    """Written by a newer release: this one must not guess what it does."""


def encode_record(record: Record) -> bytes:
    body = {}
    for name, default, _ in _FIELDS[type(record)]:
        value = getattr(record, name)
        if value != default:
            body[name] = value
    row = [type(record).__name__, record.VERSION, body]
    return json.dumps(row, separators=(",", ":"), default=_plain).encode()


def encoding_records(records: Iterable[Record]) -> Work[list[bytes]]:
    """Encode them in turns."""
    encoded = []
    for record in records:
        encoded.append(encode_record(record))
        yield
    return encoded


def topic_records(name: str, topic_id: UUID, partitions: tuple[PartitionImage, ...]) -> Iterator[Record]:
    """What makes a topic. A large one takes several records: none is long to encode, read or apply."""
    yield TopicCreated(name=name, topic_id=topic_id, partitions=partitions[:PARTITIONS_PER_RECORD])
    yield from partition_records(topic_id, PARTITIONS_PER_RECORD, partitions[PARTITIONS_PER_RECORD:])


def partition_records(
    topic_id: UUID, first: int, partitions: tuple[PartitionImage, ...]
) -> Iterator[PartitionsAdded]:
    """What makes partitions of a topic, from the index `first` on."""
    for at in range(0, len(partitions), PARTITIONS_PER_RECORD):
        added = partitions[at : at + PARTITIONS_PER_RECORD]
        yield PartitionsAdded(topic_id=topic_id, first=first + at, partitions=added)


def decode_record(data: bytes) -> Record:
    name, version, body = json.loads(data)
    kind = RECORD_TYPES.get(name)
    if kind is None or version > kind.VERSION:
        raise UnknownRecord(f"metadata record {name} version {version} is of a newer release")
    known = {
        field_name: body[field_name] if parse is None else parse(body[field_name])
        for field_name, _, parse in _FIELDS[kind]
        if field_name in body
    }
    record = kind(**known)
    if isinstance(record, PartitionsAdded):
        shifted = _unpack_partitions(body["partitions"], first=record.first)
        return PartitionsAdded(topic_id=record.topic_id, first=record.first, partitions=shifted)
    return record


def _plain(value: object) -> object:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, Endpoint | PartitionImage):
        return value.packed()
    raise TypeError(f"no encoding for {value!r}")
