"""The records of the metadata log and what each does to the state, by section 3.2 of FORMAT.md.

Owns the state of a cluster and its fold. Does not own slots, snapshots and boundaries (meta).
Invariant: a record changes the state wholly or, with `BadRecord`, not at all; the state is a function of the
records in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tools.verify.core.keys import topic_text
from tools.verify.core.layouts import MetaRecord

NO_LEADER: Final = -1
TOPIC_CONFIG: Final = 2
_FIRST_LEVELS: Final = {"group.version": 1, "metadata.version": 30, "transaction.version": 2}
"""Of the features, before a record changes one."""
_LIMIT: Final = 1 << 63
_HEX_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class BadRecord(Exception):
    """A record that is not as the page says."""


class UnknownRecord(Exception):
    """A record of a newer release."""


class Partition(NamedTuple):
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class Topic(NamedTuple):
    topic_id: str
    """As Kafka shows it, 22 characters."""
    name: str
    partitions: tuple[Partition, ...]


class Broker(NamedTuple):
    id: int
    epoch: int
    """The slot of its registration."""
    incarnation: str
    directories: tuple[str, ...]
    """Their ids as Kafka shows them."""
    endpoints: tuple[tuple[str, str, int, str], ...]
    """Listener, host, port, security protocol."""
    rack: str | None
    fenced: bool
    stopping: bool


class Deleted(NamedTuple):
    name: str
    seq: int
    """The slot that says so."""
    partitions: int


@dataclass(slots=True)
class State:
    """A cluster after the slot `seq`."""

    seq: int = 0
    cluster_id: str = ""
    controller_id: int = -1
    controller_epoch: int = 0
    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    """By id."""
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    """By type and name of the resource."""
    next_producer_id: int = 0
    features: dict[str, int] = field(default_factory=lambda: dict(_FIRST_LEVELS))
    deleted: dict[str, Deleted] = field(default_factory=dict, compare=False)
    """Topics whose deletion was seen: a snapshot does not tell of those before it."""

    def named(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.name == name), None)

    def topic_config(self, name: str) -> Mapping[str, str]:
        return self.configs.get((TOPIC_CONFIG, name), {})

    def apply(self, record: MetaRecord, seq: int) -> None:
        """Fold in one record of slot `seq`."""
        reader = _RECORDS.get(record.name)
        if reader is None or record.version > 0:
            raise UnknownRecord(f"{record.name}, version {record.version}")
        if record.version < 0:
            raise BadRecord(f"{record.name}: version {record.version}")
        fields, act = reader
        values = {name: _checked(record, name, check, default) for name, (check, default) in fields.items()}
        self.seq = seq
        act(self, values)

    # --- the cluster ---

    def _cluster_born(self, values: Mapping[str, Any]) -> None:
        self.cluster_id = values["cluster_id"]

    def _controller_elected(self, values: Mapping[str, Any]) -> None:
        self.controller_id = values["controller_id"]
        self.controller_epoch = values["controller_epoch"]

    def _producer_ids_allocated(self, values: Mapping[str, Any]) -> None:
        self.next_producer_id = max(self.next_producer_id, values["next_producer_id"])

    def _feature_changed(self, values: Mapping[str, Any]) -> None:
        self.features[values["name"]] = values["level"]

    def _snapshot_taken(self, values: Mapping[str, Any]) -> None:
        pass

    def _config_changed(self, values: Mapping[str, Any]) -> None:
        key = values["resource_type"], values["resource_name"]
        kept = {name: value for name, value in self.configs.get(key, {}).items() if name != values["name"]}
        if values["value"] is not None:
            kept[values["name"]] = values["value"]
        if kept:
            self.configs[key] = kept
        else:
            self.configs.pop(key, None)

    # --- brokers ---

    def _broker_registered(self, values: Mapping[str, Any]) -> None:
        number = values["broker_id"]
        before = self.brokers.get(number)
        is_from_snapshot = values["epoch"] != -1
        self.brokers[number] = Broker(
            number,
            values["epoch"] if is_from_snapshot else self.seq,
            values["incarnation"],
            values["directories"],
            values["endpoints"],
            values["rack"],
            values["fenced"],
            values["stopping"],
        )
        if is_from_snapshot:
            return
        has_disk = before is not None and bool(set(before.directories) & set(values["directories"]))
        is_clean = has_disk and before is not None and values["clean_epoch"] == before.epoch

        def change(partition: Partition) -> Partition:
            if number not in partition.isr:
                return partition
            if is_clean:
                return self._elect(partition) if partition.leader == NO_LEADER else partition
            if len(partition.isr) > 1:
                return self._leave(partition, number)
            return self._elect(partition) if has_disk else _changed(partition, leader=NO_LEADER, isr=())

        self._change_partitions(change)
        if values["fenced"]:
            self._leave_all(number)

    def _told_of(self, values: Mapping[str, Any]) -> Broker | None:
        broker = self.brokers.get(values["broker_id"])
        return broker if broker is not None and broker.epoch == values["broker_epoch"] else None

    def _broker_fenced(self, values: Mapping[str, Any]) -> None:
        broker = self._told_of(values)
        if broker is None:
            return
        self.brokers[broker.id] = broker._replace(fenced=values["fenced"])
        if values["fenced"]:
            self._leave_all(broker.id)
        elif not broker.stopping:
            self._change_partitions(
                lambda one: self._elect(one) if one.leader == NO_LEADER and broker.id in one.isr else one
            )

    def _broker_stopping(self, values: Mapping[str, Any]) -> None:
        broker = self._told_of(values)
        if broker is not None:
            self.brokers[broker.id] = broker._replace(stopping=True)
            self._leave_all(broker.id, leads_alone=True)

    def _broker_unregistered(self, values: Mapping[str, Any]) -> None:
        broker = self._told_of(values)
        if broker is not None:
            self._leave_all(broker.id)
            del self.brokers[broker.id]

    def _leave_all(self, number: int, *, leads_alone: bool = False) -> None:
        def change(partition: Partition) -> Partition:
            if number not in partition.isr:
                return partition
            if len(partition.isr) > 1:
                return self._leave(partition, number)
            if partition.leader == number and not leads_alone:
                return _changed(partition, leader=NO_LEADER)
            return partition

        self._change_partitions(change)

    def _leave(self, partition: Partition, number: int) -> Partition:
        rest = tuple(member for member in partition.isr if member != number)
        if partition.leader == number:
            return self._elect(partition, rest)
        return _changed(partition, isr=rest)

    def _elect(self, partition: Partition, isr: tuple[int, ...] | None = None) -> Partition:
        members = partition.isr if isr is None else isr
        candidates = (number for number in partition.replicas if number in members)
        return _changed(partition, leader=next(filter(self._may_lead, candidates), NO_LEADER), isr=members)

    def _may_lead(self, number: int) -> bool:
        broker = self.brokers.get(number)
        return broker is not None and not broker.fenced and not broker.stopping

    def _change_partitions(self, change: Callable[[Partition], Partition]) -> None:
        for topic_id, topic in self.topics.items():
            partitions = tuple(map(change, topic.partitions))
            if partitions != topic.partitions:
                self.topics[topic_id] = topic._replace(partitions=partitions)

    # --- topics ---

    def _topic_created(self, values: Mapping[str, Any]) -> None:
        self.topics[values["topic_id"]] = Topic(values["topic_id"], values["name"], values["partitions"])

    def _partitions_added(self, values: Mapping[str, Any]) -> None:
        topic = self.topics.get(values["topic_id"])
        if topic is not None and len(topic.partitions) == values["first"]:
            more = topic.partitions + values["partitions"]
            self.topics[topic.topic_id] = topic._replace(partitions=more)

    def _partition_changed(self, values: Mapping[str, Any]) -> None:
        topic = self.topics.get(values["topic_id"])
        if topic is None or not 0 <= values["partition"] < len(topic.partitions):
            return
        partitions = list(topic.partitions)
        partitions[values["partition"]] = _changed(
            partitions[values["partition"]],
            **{name: values[name] for name in ("leader", "isr", "replicas", "adding", "removing")},
        )
        self.topics[topic.topic_id] = topic._replace(partitions=tuple(partitions))

    def _topic_deleted(self, values: Mapping[str, Any]) -> None:
        topic = self.topics.pop(values["topic_id"], None)
        if topic is not None:
            self.configs.pop((TOPIC_CONFIG, topic.name), None)
            self.deleted[topic.topic_id] = Deleted(topic.name, self.seq, len(topic.partitions))


def _changed(partition: Partition, **values: Any) -> Partition:
    """A change is a new partition epoch, and with a leader, even the same, a new leader epoch."""
    named = {name: value for name, value in values.items() if value is not None}
    return partition._replace(
        **named,
        leader_epoch=partition.leader_epoch + ("leader" in named),
        partition_epoch=partition.partition_epoch + 1,
    )


# --- fields ---

_REQUIRED: Final = object()
Check = Callable[[Any], Any]
Fields = dict[str, tuple[Check, Any]]


def _checked(record: MetaRecord, name: str, check: Check, default: Any) -> Any:
    if name not in record.fields:
        if default is _REQUIRED:
            raise BadRecord(f"{record.name}: no {name}")
        return default
    try:
        return check(record.fields[name])
    except ValueError:
        told = repr(record.fields[name])
        raise BadRecord(f"{record.name}: {name} is {told[:60]}") from None


def _number(value: Any) -> int:
    if type(value) is not int or not -_LIMIT <= value < _LIMIT:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _id(value: Any) -> str:
    if _HEX_ID.fullmatch(_text(value)) is None:
        raise ValueError
    return topic_text(bytes.fromhex(value))


def _or_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _array(check: Check) -> Callable[[Any], tuple[Any, ...]]:
    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError
        return tuple(map(check, value))

    return checked


def _endpoint(value: Any) -> tuple[str, str, int, str]:
    if type(value) is not list or len(value) < 4:
        raise ValueError
    return _text(value[0]), _text(value[1]), _number(value[2]), _text(value[3])


def _partition(value: Any) -> Partition:
    if type(value) is not list or len(value) not in (5, 7):
        raise ValueError
    leader, leader_epoch, partition_epoch = map(_number, value[:3])
    return Partition(leader, leader_epoch, partition_epoch, *map(_array(_number), value[3:]))


_BROKER: Final[Fields] = {
    "broker_id": (_number, _REQUIRED),
    "broker_epoch": (_number, _REQUIRED),
}
_TOPIC: Final[Fields] = {"topic_id": (_id, _REQUIRED)}
_PARTITIONS: Final[Fields] = {"partitions": (_array(_partition), _REQUIRED)}
_NUMBERS: Final = (_or_null(_array(_number)), None)
_RECORDS: Final[
    dict[str, tuple[dict[str, tuple[Check, Any]], Callable[[State, Mapping[str, Any]], None]]]
] = {
    "ClusterBorn": ({"cluster_id": (_text, _REQUIRED)}, State._cluster_born),
    "ControllerElected": (
        {"controller_id": (_number, _REQUIRED), "controller_epoch": (_number, _REQUIRED)},
        State._controller_elected,
    ),
    "BrokerRegistered": (
        {
            "broker_id": (_number, _REQUIRED),
            "incarnation": (_id, _REQUIRED),
            "directories": (_array(_id), _REQUIRED),
            "endpoints": (_array(_endpoint), _REQUIRED),
            "rack": (_or_null(_text), None),
            "clean_epoch": (_number, -1),
            "fenced": (_flag, False),
            "epoch": (_number, -1),
            "stopping": (_flag, False),
        },
        State._broker_registered,
    ),
    "BrokerFenced": ({**_BROKER, "fenced": (_flag, _REQUIRED)}, State._broker_fenced),
    "BrokerStopping": (_BROKER, State._broker_stopping),
    "BrokerUnregistered": (_BROKER, State._broker_unregistered),
    "TopicCreated": ({"name": (_text, _REQUIRED), **_TOPIC, **_PARTITIONS}, State._topic_created),
    "PartitionsAdded": ({**_TOPIC, "first": (_number, _REQUIRED), **_PARTITIONS}, State._partitions_added),
    "PartitionChanged": (
        {
            **_TOPIC,
            "partition": (_number, _REQUIRED),
            "leader": (_or_null(_number), None),
            "isr": _NUMBERS,
            "replicas": _NUMBERS,
            "adding": _NUMBERS,
            "removing": _NUMBERS,
            "unclean": (_flag, False),
        },
        State._partition_changed,
    ),
    "TopicDeleted": (_TOPIC, State._topic_deleted),
    "ConfigChanged": (
        {
            "resource_type": (_number, _REQUIRED),
            "resource_name": (_text, _REQUIRED),
            "name": (_text, _REQUIRED),
            "value": (_or_null(_text), None),
        },
        State._config_changed,
    ),
    "ProducerIdsAllocated": (
        {**_BROKER, "next_producer_id": (_number, _REQUIRED)},
        State._producer_ids_allocated,
    ),
    "FeatureChanged": ({"name": (_text, _REQUIRED), "level": (_number, _REQUIRED)}, State._feature_changed),
    "SnapshotTaken": ({"at_ms": (_number, _REQUIRED)}, State._snapshot_taken),
}
"""The fields of each record with their defaults, and what it does."""
