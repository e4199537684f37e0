"""The cluster as its metadata log tells it: the record types, their encoding, and the fold.

Owns: every record a metadata slot may hold, how it is written (for ever), and what each one does to the
image. Does not own: which records a command leads to (controller.py), or how slots are won (cluster.py).

Invariant: an image is a function of the records applied, in order. Only `apply` changes one, no record is
ever refused (the commit point lies behind us), and `snapshot_records` of an image folds to an equal image.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from broker.config.broker import ResourceType
from broker.ports import Endpoint

NO_LEADER = -1
FIRST_PRODUCER_ID = 0
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    id: int
    epoch: int
    incarnation: UUID
    directories: tuple[UUID, ...]
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    stopping: bool = False
    """In a controlled stop: it is given nothing more to lead, hold or join."""

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


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
    """As it is born: led by the first of its in-sync replicas, epochs at zero."""
    leader = isr[0] if isr else NO_LEADER
    return PartitionImage(
        index=index, leader=leader, leader_epoch=0, partition_epoch=0, replicas=replicas, isr=isr
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    name: str
    id: UUID
    partitions: tuple[PartitionImage, ...]

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


# --- records -----------------------------------------------------------------------------------------------
# A record is encoded as JSON [name, version, {field: value}], fields at their default left out. Names, fields
# and the meaning of a version never change; a new field comes with a default, a new meaning with a new
# version.


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
    """What is None stays. `unclean` tells a reader of the log that the leader was not in sync, so that
    records may be lost; it changes nothing.
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


# --- the fold ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Delta:
    """What some slots changed: names into the image for what is there, old values for what is gone."""

    seq: int = 0
    topics_created: dict[str, TopicImage] = field(default_factory=dict)
    topics_deleted: list[TopicImage] = field(default_factory=list)
    topics_changed: dict[str, TopicImage] = field(default_factory=dict)
    configs_changed: set[tuple[ResourceType, str]] = field(default_factory=set)
    brokers_changed: set[int] = field(default_factory=set)
    elections: int = 0
    """How often a partition got another leader, and how often one that was not in sync."""
    unclean_elections: int = 0

    def partition_changed(self, before: PartitionImage, after: PartitionImage) -> None:
        self.elections += after.leader not in (before.leader, NO_LEADER)

    def __bool__(self) -> bool:
        return bool(
            self.topics_created
            or self.topics_deleted
            or self.topics_changed
            or self.configs_changed
            or self.brokers_changed
        )


class Image:
    """Read by everyone, changed by `apply` alone. The values inside are immutable: a copy is four small
    dicts.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.cluster_id = ""
        self.controller_id = -1
        self.controller_epoch = 0
        self.brokers: dict[int, BrokerImage] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topic_names: dict[UUID, str] = {}
        self.configs: dict[tuple[ResourceType, str], dict[str, str]] = {}
        self.next_producer_id = FIRST_PRODUCER_ID

    def __repr__(self) -> str:
        return (
            f"Image(seq={self.seq}, controller={self.controller_id}/{self.controller_epoch}, "
            f"{len(self.brokers)} brokers, {len(self.topics)} topics)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Image:
        twin = Image()
        twin.__dict__.update(self.__dict__)
        for name in ("brokers", "topics", "topic_names", "configs"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    def become(self, other: Image) -> None:
        """Take over another's state; whoever holds this image goes on with it."""
        self.__dict__.update(other.copy().__dict__)

    def config(self, resource: ResourceType, name: str) -> Mapping[str, str]:
        return self.configs.get((resource, name), {})

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def live_brokers(self) -> list[BrokerImage]:
        return [self.brokers[id_] for id_ in sorted(self.brokers) if not self.brokers[id_].fenced]

    def is_live(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def is_active(self, broker_id: int) -> bool:
        """Live and here to stay: it may come to lead, and join an ISR."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.stopping

    def apply(self, record: Record, seq: int, delta: Delta | None = None) -> None:
        """Fold in one record of slot `seq`."""
        self.seq = seq
        _APPLY[type(record)](self, record, Delta() if delta is None else delta)

    def apply_slot(self, seq: int, records: Iterable[Record]) -> Delta:
        delta = Delta(seq=seq)
        self.seq = seq
        for topic_id, run in groupby(records, _changed_topic):
            if topic_id is None:
                for record in run:
                    self.apply(record, seq, delta)
            else:
                self._partitions_changed(topic_id, run, delta)
        return delta

    def snapshot_records(self) -> Iterator[Record]:
        """The shortest log that folds to this image; epochs and numbers are spelled out."""
        if self.cluster_id:
            yield ClusterBorn(cluster_id=self.cluster_id)
        if self.controller_epoch:
            yield ControllerElected(controller_id=self.controller_id, controller_epoch=self.controller_epoch)
        for broker in self.brokers.values():
            yield BrokerRegistered(
                broker_id=broker.id,
                incarnation=broker.incarnation,
                directories=broker.directories,
                endpoints=broker.endpoints,
                rack=broker.rack,
                fenced=broker.fenced,
                epoch=broker.epoch,
                stopping=broker.stopping,
            )
        for topic in self.topics.values():
            yield TopicCreated(name=topic.name, topic_id=topic.id, partitions=topic.partitions)
        for (resource_type, resource_name), values in self.configs.items():
            for name, value in values.items():
                yield ConfigChanged(
                    resource_type=resource_type, resource_name=resource_name, name=name, value=value
                )
        if self.next_producer_id != FIRST_PRODUCER_ID:
            yield ProducerIdsAllocated(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)

    def _replace_topic(self, old: TopicImage, partitions: tuple[PartitionImage, ...], delta: Delta) -> None:
        topic = TopicImage(name=old.name, id=old.id, partitions=partitions)
        self.topics[old.name] = topic
        if old.name in delta.topics_created:
            delta.topics_created[old.name] = topic
        else:
            delta.topics_changed.setdefault(old.name, old)

    def _set_config(self, key: tuple[ResourceType, str], values: dict[str, str], delta: Delta) -> None:
        if values:
            self.configs[key] = values
        else:
            self.configs.pop(key, None)
        delta.configs_changed.add(key)

    def _cluster_born(self, record: ClusterBorn, delta: Delta) -> None:
        self.cluster_id = record.cluster_id

    def _controller_elected(self, record: ControllerElected, delta: Delta) -> None:
        self.controller_id = record.controller_id
        self.controller_epoch = record.controller_epoch

    def _broker_registered(self, record: BrokerRegistered, delta: Delta) -> None:
        before = self.brokers.get(record.broker_id)
        self.brokers[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=self.seq if record.epoch < 0 else record.epoch,
            incarnation=record.incarnation,
            directories=record.directories,
            endpoints=record.endpoints,
            rack=record.rack,
            fenced=record.fenced,
            stopping=record.stopping,
        )
        delta.brokers_changed.add(record.broker_id)
        if record.epoch >= 0:
            return
        same_disk = before is not None and not set(before.directories).isdisjoint(record.directories)
        clean = same_disk and before is not None and record.clean_epoch == before.epoch
        self._reincarnate(record.broker_id, same_disk=same_disk, clean=clean, delta=delta)
        if record.fenced:
            self._leave_isrs(record.broker_id, delta)

    def _broker_fenced(self, record: BrokerFenced, delta: Delta) -> None:
        broker = self.brokers.get(record.broker_id)
        if broker is None or broker.epoch != record.broker_epoch:
            return
        self.brokers[broker.id] = replace(broker, fenced=record.fenced)
        delta.brokers_changed.add(broker.id)
        if record.fenced:
            self._leave_isrs(broker.id, delta)
        elif self.is_active(broker.id):
            self._lead_again(broker.id, delta)

    def _broker_stopping(self, record: BrokerStopping, delta: Delta) -> None:
        broker = self.brokers.get(record.broker_id)
        if broker is None or broker.epoch != record.broker_epoch:
            return
        self.brokers[broker.id] = replace(broker, stopping=True)
        delta.brokers_changed.add(broker.id)
        self._leave_isrs(broker.id, delta, leads_alone=True)

    def _broker_unregistered(self, record: BrokerUnregistered, delta: Delta) -> None:
        broker = self.brokers.get(record.broker_id)
        if broker is not None and broker.epoch == record.broker_epoch:
            self._leave_isrs(broker.id, delta)
            del self.brokers[broker.id]
            delta.brokers_changed.add(broker.id)

    def _reincarnate(self, broker_id: int, *, same_disk: bool, clean: bool, delta: Delta) -> None:
        """What a new incarnation means for the partitions of its node.

        After an unclean stop it leaves every ISR that has another member. As the only member it leads on in a
        new leader epoch, but only with the disk that was committed: with another one, or after it was
        unregistered and nobody knows which disk it had, the ISR is left empty, so that nothing but a refill
        or an unclean election brings the partition back. Which of several disks is another one only the node
        can tell: what it lost with it, it gives up before it serves.
        """

        def change(partition: PartitionImage) -> PartitionImage:
            isr = partition.isr
            if broker_id not in isr:
                return partition
            if clean:
                return self._elect(partition, isr) if partition.leader == NO_LEADER else partition
            if len(isr) > 1:
                return self._without(partition, broker_id)
            if not same_disk:
                return partition.changed(leader=NO_LEADER, isr=())
            return self._elect(partition, isr)

        self._change_partitions(change, delta)

    def _leave_isrs(self, broker_id: int, delta: Delta, *, leads_alone: bool = False) -> None:
        """The broker leaves every ISR that has another member, and leads nothing but, where it may, what it
        alone is in sync with; a sole member stays in the ISR.
        """

        def change(partition: PartitionImage) -> PartitionImage:
            isr = partition.isr
            if broker_id not in isr:
                return partition
            if len(isr) > 1:
                return self._without(partition, broker_id)
            leads = partition.leader == broker_id
            return partition.changed(leader=NO_LEADER) if leads and not leads_alone else partition

        self._change_partitions(change, delta)

    def _lead_again(self, broker_id: int, delta: Delta) -> None:
        def change(partition: PartitionImage) -> PartitionImage:
            if partition.leader != NO_LEADER or broker_id not in partition.isr:
                return partition
            return self._elect(partition, partition.isr)

        self._change_partitions(change, delta)

    def _without(self, partition: PartitionImage, broker_id: int) -> PartitionImage:
        rest = tuple(member for member in partition.isr if member != broker_id)
        if partition.leader != broker_id:
            return partition.changed(isr=rest)
        return self._elect(partition, rest)

    def _elect(self, partition: PartitionImage, isr: tuple[int, ...]) -> PartitionImage:
        """The first replica, in the order of preference, that is in sync and there to lead."""
        candidates = (replica for replica in partition.replicas if replica in isr)
        leader = next(filter(self.is_active, candidates), NO_LEADER)
        return partition.changed(leader=leader, isr=isr)

    def _change_partitions(self, change: Callable[[PartitionImage], PartitionImage], delta: Delta) -> None:
        for topic in list(self.topics.values()):
            partitions = tuple(map(change, topic.partitions))
            if partitions != topic.partitions:
                for before, after in zip(topic.partitions, partitions, strict=True):
                    delta.partition_changed(before, after)
                self._replace_topic(topic, partitions, delta)

    def _topic_created(self, record: TopicCreated, delta: Delta) -> None:
        topic = TopicImage(name=record.name, id=record.topic_id, partitions=record.partitions)
        self.topics[topic.name] = topic
        self.topic_names[topic.id] = topic.name
        delta.topics_created[topic.name] = topic

    def _partitions_added(self, record: PartitionsAdded, delta: Delta) -> None:
        topic = self.topic_by_id(record.topic_id)
        if topic is not None and len(topic.partitions) == record.first:
            self._replace_topic(topic, topic.partitions + record.partitions, delta)

    def _partition_changed(self, record: PartitionChanged, delta: Delta) -> None:
        self._partitions_changed(record.topic_id, (record,), delta)

    def _partitions_changed(self, topic_id: UUID, records: Iterable[Any], delta: Delta) -> None:
        """All changes of a topic at once: one by one, each would copy the topic."""
        topic = self.topic_by_id(topic_id)
        if topic is None:
            return
        partitions = list(topic.partitions)
        for record in records:
            if 0 <= record.partition < len(partitions):
                before = partitions[record.partition]
                after = partitions[record.partition] = record.of(before)
                delta.partition_changed(before, after)
                delta.unclean_elections += record.unclean
        if (changed := tuple(partitions)) != topic.partitions:
            self._replace_topic(topic, changed, delta)

    def _topic_deleted(self, record: TopicDeleted, delta: Delta) -> None:
        topic = self.topic_by_id(record.topic_id)
        if topic is None:
            return
        del self.topics[topic.name]
        del self.topic_names[topic.id]
        before = delta.topics_changed.pop(topic.name, topic)
        if delta.topics_created.pop(topic.name, None) is None:
            delta.topics_deleted.append(before)
        if (key := (ResourceType.TOPIC, topic.name)) in self.configs:
            self._set_config(key, {}, delta)

    def _config_changed(self, record: ConfigChanged, delta: Delta) -> None:
        key = (ResourceType(record.resource_type), record.resource_name)
        values = dict(self.configs.get(key, {}))
        values.pop(record.name, None)
        if record.value is not None:
            values[record.name] = record.value
        self._set_config(key, values, delta)

    def _producer_ids_allocated(self, record: ProducerIdsAllocated, delta: Delta) -> None:
        self.next_producer_id = max(self.next_producer_id, record.next_producer_id)


_APPLY: Mapping[type[Record], Callable[[Image, Any, Delta], None]] = {
    ClusterBorn: Image._cluster_born,
    ControllerElected: Image._controller_elected,
    BrokerRegistered: Image._broker_registered,
    BrokerFenced: Image._broker_fenced,
    BrokerStopping: Image._broker_stopping,
    BrokerUnregistered: Image._broker_unregistered,
    TopicCreated: Image._topic_created,
    PartitionsAdded: Image._partitions_added,
    PartitionChanged: Image._partition_changed,
    TopicDeleted: Image._topic_deleted,
    ConfigChanged: Image._config_changed,
    ProducerIdsAllocated: Image._producer_ids_allocated,
    SnapshotTaken: lambda image, record, delta: None,
}


def _changed_topic(record: Record) -> UUID | None:
    return record.topic_id if isinstance(record, PartitionChanged) else None


def fold(slots: Iterable[tuple[int, Iterable[Record]]], image: Image | None = None) -> Image:
    image = Image() if image is None else image
    for seq, records in slots:
        image.apply_slot(seq, records)
    return image


def difference(old: Image, new: Image) -> Delta:
    """What led from one image to another, for who could not follow the slots between them."""
    delta = Delta(seq=new.seq)
    for name, topic in old.topics.items():
        now = new.topics.get(name)
        if now is None or now.id != topic.id:
            delta.topics_deleted.append(topic)
        elif now != topic:
            delta.topics_changed[name] = topic
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is None or before.id != topic.id:
            delta.topics_created[name] = topic
    keys = {*old.configs, *new.configs}
    delta.configs_changed |= {key for key in keys if old.configs.get(key) != new.configs.get(key)}
    ids = {*old.brokers, *new.brokers}
    delta.brokers_changed |= {id_ for id_ in ids if old.brokers.get(id_) != new.brokers.get(id_)}
    return delta
