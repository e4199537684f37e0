"""The cluster as its metadata log describes it: brokers, topics, configurations, and the fold of the records.

Owns: the image, and what each record does to it. Does not own: the records and their encoding
(metadata_records.py), which records a command leads to (commands.py), how slots are won (metadata_log.py).

Invariants: an image is a function of the records applied, in order. Only `apply` changes one, no record is
ever refused (the commit point lies behind us), and `snapshot_records` of an image folds to an equal image.
What a node knows changes by `become` alone, slot by slot, so that whoever reads in turns can keep one image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any
from uuid import UUID

from broker.config.values import ResourceType
from broker.control.feature_levels import FIRST_LEVELS
from broker.control.internal_topics import INTERNAL_TOPICS
from broker.control.metadata_records import (
    NO_LEADER,
    BrokerFenced,
    BrokerRegistered,
    BrokerStopping,
    BrokerUnregistered,
    ClusterBorn,
    ConfigChanged,
    ControllerElected,
    FeatureChanged,
    PartitionChanged,
    PartitionImage,
    PartitionsAdded,
    ProducerIdsAllocated,
    Record,
    SnapshotTaken,
    TopicCreated,
    TopicDeleted,
    topic_records,
)
from broker.endpoint import Endpoint
from protocol.work import Work, finish

FIRST_PRODUCER_ID = 0
LOOKED_AT_ONCE = 64
"""Partitions that are looked at, or changed, between two turns."""


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
    """Whether it is in a controlled stop: it is given nothing more to lead, hold or join."""

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    name: str
    id: UUID
    partitions: tuple[PartitionImage, ...]

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


# --- the fold ---


@dataclass(slots=True, kw_only=True)
class Delta:
    """What some slots changed: names into the image for what is there, old values for what is gone."""

    seq: int = 0
    topics_created: dict[str, TopicImage] = field(default_factory=dict)
    topics_deleted: list[TopicImage] = field(default_factory=list)
    topics_changed: dict[str, TopicImage] = field(default_factory=dict)
    configs_changed: set[tuple[ResourceType, str]] = field(default_factory=set)
    brokers_changed: set[int] = field(default_factory=set)
    features_changed: set[str] = field(default_factory=set)
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
            or self.features_changed
        )


class Image:
    """Read by everyone, changed by `apply` alone. The values inside are immutable: a copy is a few dicts."""

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
        self.features: dict[str, int] = dict(FIRST_LEVELS)
        """The level of each feature, by its name in feature_levels.py."""

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
        for name in ("brokers", "topics", "topic_names", "configs", "features"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    def kept(self) -> Image:
        """This image as it is now, for one that reads it in turns: it costs nothing, and what the node's
        image becomes meanwhile does not show in it. It may not be changed."""
        twin = Image()
        twin.__dict__.update(self.__dict__)
        return twin

    def become(self, other: Image) -> None:
        """Take over another's state; all that hold this image go on with it. The other one may be changed no
        more."""
        self.__dict__.update(other.__dict__)

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
        finish(self._apply(record, Delta() if delta is None else delta))

    def apply_slot(self, seq: int, records: Iterable[Record]) -> Delta:
        return finish(self.folding(seq, records))

    def folding(self, seq: int, records: Iterable[Record]) -> Work[Delta]:
        """Fold in a slot in turns. Until it is done the image is half changed: nobody else may read it."""
        delta = Delta(seq=seq)
        self.seq = seq
        for topic_id, run in groupby(records, _changed_topic):
            if topic_id is None:
                for record in run:
                    yield from self._apply(record, delta)
                    yield
            else:
                yield from self._partitions_changed(topic_id, run, delta)
        return delta

    def _apply(self, record: Record, delta: Delta) -> Work[None]:
        rest = _APPLY[type(record)](self, record, delta)
        if rest is not None:
            yield from rest

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
            yield from topic_records(topic.name, topic.id, topic.partitions)
        for (resource_type, resource_name), values in self.configs.items():
            for name, value in values.items():
                yield ConfigChanged(
                    resource_type=resource_type, resource_name=resource_name, name=name, value=value
                )
        if self.next_producer_id != FIRST_PRODUCER_ID:
            yield ProducerIdsAllocated(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)
        for name, level in self.features.items():
            if level != FIRST_LEVELS.get(name):
                yield FeatureChanged(name=name, level=level)

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

    def _broker_registered(self, record: BrokerRegistered, delta: Delta) -> Work[None]:
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
        yield from self._reincarnate(record.broker_id, same_disk=same_disk, clean=clean, delta=delta)
        if record.fenced:
            yield from self._leave_isrs(record.broker_id, delta)

    def _broker_fenced(self, record: BrokerFenced, delta: Delta) -> Work[None]:
        broker = self.brokers.get(record.broker_id)
        if broker is None or broker.epoch != record.broker_epoch:
            return
        self.brokers[broker.id] = replace(broker, fenced=record.fenced)
        delta.brokers_changed.add(broker.id)
        if record.fenced:
            yield from self._leave_isrs(broker.id, delta)
        elif self.is_active(broker.id):
            yield from self._lead_again(broker.id, delta)

    def _broker_stopping(self, record: BrokerStopping, delta: Delta) -> Work[None]:
        broker = self.brokers.get(record.broker_id)
        if broker is None or broker.epoch != record.broker_epoch:
            return
        self.brokers[broker.id] = replace(broker, stopping=True)
        delta.brokers_changed.add(broker.id)
        yield from self._leave_isrs(broker.id, delta, leads_alone=True)

    def _broker_unregistered(self, record: BrokerUnregistered, delta: Delta) -> Work[None]:
        broker = self.brokers.get(record.broker_id)
        if broker is not None and broker.epoch == record.broker_epoch:
            yield from self._leave_isrs(broker.id, delta)
            del self.brokers[broker.id]
            delta.brokers_changed.add(broker.id)

    def _reincarnate(self, broker_id: int, *, same_disk: bool, clean: bool, delta: Delta) -> Work[None]:
        """What a new incarnation means for the partitions of its node.

        After an unclean stop it leaves every ISR that has another member. As the only member it leads on in a
        new leader epoch, but only with the disk that was committed: with another one, or after it was
        unregistered and its disk is not known any more, the ISR is left empty, so that nothing but a refill
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

        return self._change_partitions(change, delta)

    def _leave_isrs(self, broker_id: int, delta: Delta, *, leads_alone: bool = False) -> Work[None]:
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

        return self._change_partitions(change, delta)

    def _lead_again(self, broker_id: int, delta: Delta) -> Work[None]:
        def change(partition: PartitionImage) -> PartitionImage:
            if partition.leader != NO_LEADER or broker_id not in partition.isr:
                return partition
            return self._elect(partition, partition.isr)

        return self._change_partitions(change, delta)

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

    def _change_partitions(
        self, change: Callable[[PartitionImage], PartitionImage], delta: Delta
    ) -> Work[None]:
        looked_at = 0
        for topic in list(self.topics.values()):
            partitions: list[PartitionImage] = []
            is_changed = False
            for before in topic.partitions:
                after = change(before)
                partitions.append(after)
                if after is not before:
                    is_changed = True
                    delta.partition_changed(before, after)
                looked_at += 1
                if looked_at % LOOKED_AT_ONCE == 0:
                    yield
            if is_changed:
                self._replace_topic(topic, tuple(partitions), delta)

    def _topic_created(self, record: TopicCreated, delta: Delta) -> None:
        topic = TopicImage(name=record.name, id=record.topic_id, partitions=record.partitions)
        self.topics[topic.name] = topic
        self.topic_names[topic.id] = topic.name
        delta.topics_created[topic.name] = topic

    def _partitions_added(self, record: PartitionsAdded, delta: Delta) -> None:
        topic = self.topic_by_id(record.topic_id)
        if topic is not None and len(topic.partitions) == record.first:
            self._replace_topic(topic, topic.partitions + record.partitions, delta)

    def _partition_changed(self, record: PartitionChanged, delta: Delta) -> Work[None]:
        return self._partitions_changed(record.topic_id, (record,), delta)

    def _partitions_changed(self, topic_id: UUID, records: Iterable[Any], delta: Delta) -> Work[None]:
        """All changes of a topic at once: one by one, each would copy the topic."""
        topic = self.topic_by_id(topic_id)
        if topic is None:
            return
        partitions = list(topic.partitions)
        for at, record in enumerate(records, 1):
            if at % LOOKED_AT_ONCE == 0:
                yield
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

    def _feature_changed(self, record: FeatureChanged, delta: Delta) -> None:
        if self.features.get(record.name) != record.level:
            self.features[record.name] = record.level
            delta.features_changed.add(record.name)


_APPLY: Mapping[type[Record], Callable[[Image, Any, Delta], Work[None] | None]] = {
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
    FeatureChanged: Image._feature_changed,
    SnapshotTaken: lambda image, record, delta: None,
}


def _changed_topic(record: Record) -> UUID | None:
    return record.topic_id if isinstance(record, PartitionChanged) else None


def fold(slots: Iterable[tuple[int, Iterable[Record]]], image: Image | None = None) -> Image:
    image = Image() if image is None else image
    for seq, records in slots:
        image.apply_slot(seq, records)
    return image


def difference(old: Image, new: Image) -> Work[Delta]:
    """The difference between two images, for a node that missed the slots in between."""
    delta = Delta(seq=new.seq)
    for name, topic in old.topics.items():
        yield
        now = new.topics.get(name)
        if now is None or now.id != topic.id:
            delta.topics_deleted.append(topic)
        elif now != topic:
            delta.topics_changed[name] = topic
    for name, topic in new.topics.items():
        yield
        before = old.topics.get(name)
        if before is None or before.id != topic.id:
            delta.topics_created[name] = topic
    keys = {*old.configs, *new.configs}
    delta.configs_changed |= {key for key in keys if old.configs.get(key) != new.configs.get(key)}
    names = {*old.features, *new.features}
    delta.features_changed |= {name for name in names if old.features.get(name) != new.features.get(name)}
    ids = {*old.brokers, *new.brokers}
    delta.brokers_changed |= {id_ for id_ in ids if old.brokers.get(id_) != new.brokers.get(id_)}
    return delta
