"""A cluster's metadata log: what happened, and the slots, snapshots and boundaries that tell of it.

Owns: random but legal events of brokers, elections, topics; the fold of section 3.2 of FORMAT.md, which they
need; the objects below `meta/`. Does not own what the partitions hold (histories). Invariant: the newest
slots, from `quiet_from` on, change nothing that any log hangs on, so one of them may be damaged without a
second meaning.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

from tests.verify.kafka_bytes import short_id
from tests.verify.page import FORMAT, encode

NOBODY = -1
VOID_CHANCE = 0.15


def random_uuid(rng: Random) -> UUID:
    return UUID(int=rng.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | 0x4 << 76 | 0x2 << 62)


@dataclass
class Broker:
    node: int
    incarnation: UUID
    directories: list[UUID]
    epoch: int
    is_fenced: bool = False
    is_stopping: bool = False


@dataclass
class Partition:
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: list[int]
    isr: list[int]

    def to_json(self) -> list[Any]:
        return [self.leader, self.leader_epoch, self.partition_epoch, self.replicas, self.isr]


@dataclass(frozen=True)
class Election:
    """Who led a partition in an epoch, from which slot on."""

    leader_epoch: int
    leader: int
    broker_epoch: int
    seq: int


@dataclass
class Topic:
    name: str
    id: UUID
    configs: dict[str, str]
    partitions: list[Partition] = field(default_factory=list)
    elections: list[list[Election]] = field(default_factory=list)

    @property
    def short_id(self) -> str:
        return short_id(self.id)

    def has(self, config: str, value: str = "true") -> bool:
        return self.configs.get(config) == value


@dataclass
class Slot:
    seq: int
    controller_epoch: int
    records: list[list[Any]]
    put_id: bytes

    def encode(self, previous_hash: bytes) -> bytes:
        return encode("slot", {**vars(self), "previous_hash": previous_hash})


def record(kind: str, /, **fields: Any) -> list[Any]:
    """A record, without the fields that have their defaults."""
    defaults = FORMAT.records[kind]
    assert fields.keys() <= defaults.keys(), (kind, fields)
    kept = {key: value for key, value in fields.items() if defaults[key] is ... or value != defaults[key]}
    assert all(key in fields for key, value in defaults.items() if value is ...), (kind, fields)
    return [kind, 0, kept]


class Cluster:
    def __init__(self, rng: Random, now_ms: int) -> None:
        self.rng = rng
        self.now_ms = now_ms
        self.id = short_id(random_uuid(rng))
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.gone: list[Topic] = []
        """Deleted topics, of which directories and objects may be left."""
        self.slots: list[Slot] = []
        self.states: dict[int, list[list[Any]]] = {}
        """The records of a snapshot at a slot."""
        self.client_configs: dict[tuple[int, str, str], str] = {}
        self.controller_epoch = 0
        self.controller = 0
        self.next_producer_id = 0
        self.features: dict[str, int] = {}
        """The levels that were changed."""
        self.quiet_from = 0

    # --- slots ---

    @property
    def next_seq(self) -> int:
        return len(self.slots) + 1

    def commit(self, *records: list[Any]) -> None:
        for each in records:
            self._apply(each)
        put_id = self.rng.randbytes(16)
        self.slots.append(Slot(self.next_seq, self.controller_epoch, list(records), put_id))
        self.states[self.slots[-1].seq] = self.snapshot_records()
        if self.controller_epoch > 1 and self.rng.random() < VOID_CHANCE:
            self._void_slot()

    def _void_slot(self) -> None:
        """A slot that a deposed controller won: its records count for nothing, whatever they say."""
        lost = record("TopicCreated", name="void", topic_id=random_uuid(self.rng).hex, partitions=[])
        epoch = self.rng.randint(1, self.controller_epoch - 1)
        self.slots.append(Slot(self.next_seq, epoch, [lost], self.rng.randbytes(16)))
        self.states[self.slots[-1].seq] = self.snapshot_records()

    # --- the fold ---

    def _apply(self, each: list[Any]) -> None:
        name, _, fields = each
        match name:
            case "ControllerElected":
                self.controller, self.controller_epoch = fields["controller_id"], fields["controller_epoch"]
            case "BrokerRegistered":
                self._registered(fields)
            case "BrokerFenced":
                broker = self.brokers[fields["broker_id"]]
                broker.is_fenced = fields["fenced"]
                if broker.is_fenced:
                    self._out_of_service(broker.node)
                else:
                    self._back_in_service(broker.node)
            case "TopicCreated":
                topic = Topic(fields["name"], UUID(fields["topic_id"]), {})
                self.topics[topic.name] = topic
                self._add(topic, fields["partitions"])
            case "PartitionsAdded":
                self._add(self.topic_of(fields["topic_id"]), fields["partitions"])
            case "PartitionChanged":
                self._changed(self.topic_of(fields["topic_id"]), fields)
            case "TopicDeleted":
                topic = self.topic_of(fields["topic_id"])
                self.gone.append(self.topics.pop(topic.name))
            case "ConfigChanged":
                self._configured(fields)
            case "ProducerIdsAllocated":
                self.next_producer_id = max(self.next_producer_id, fields["next_producer_id"])
            case "FeatureChanged":
                self.features[fields["name"]] = fields["level"]

    def topic_of(self, hexadecimal: str) -> Topic:
        (found,) = (topic for topic in self.topics.values() if topic.id.hex == hexadecimal)
        return found

    def _configured(self, fields: dict[str, Any]) -> None:
        key = fields["resource_type"], fields["resource_name"], fields["name"]
        configs = self.topics[key[1]].configs if key[0] == 2 else self.client_configs
        name: Any = key[2] if key[0] == 2 else key
        if (value := fields.get("value")) is None:
            configs.pop(name, None)
        else:
            configs[name] = value

    def _registered(self, fields: dict[str, Any]) -> None:
        node = fields["broker_id"]
        old = self.brokers.get(node)
        directories = [UUID(each) for each in fields["directories"]]
        self.brokers[node] = Broker(node, UUID(fields["incarnation"]), directories, self.next_seq)
        if old is None:
            return
        has_disk = bool(set(old.directories) & set(directories))
        is_clean = has_disk and fields.get("clean_epoch", -1) == old.epoch
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                if node not in partition.isr:
                    continue
                if is_clean:
                    if partition.leader == NOBODY:
                        self._elect(topic, number)
                elif len(partition.isr) > 1:
                    self._leave(topic, number, node)
                elif has_disk:
                    self._elect(topic, number)

    def _out_of_service(self, node: int) -> None:
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                if node in partition.isr and len(partition.isr) > 1:
                    self._leave(topic, number, node)
                elif partition.leader == node:
                    self._elect(topic, number)

    def _back_in_service(self, node: int) -> None:
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader == NOBODY and node in partition.isr:
                    self._elect(topic, number)

    def _leave(self, topic: Topic, number: int, node: int) -> None:
        partition = topic.partitions[number]
        partition.isr = [each for each in partition.isr if each != node]
        if partition.leader == node:
            self._elect(topic, number)
        else:
            partition.partition_epoch += 1

    def _elect(self, topic: Topic, number: int) -> None:
        partition = topic.partitions[number]
        live = [
            node
            for node in partition.replicas
            if node in partition.isr and node in self.brokers and not self.brokers[node].is_fenced
        ]
        partition.partition_epoch += 1
        self._led(topic, number, live[0] if live else NOBODY)

    def _led(self, topic: Topic, number: int, leader: int) -> None:
        partition = topic.partitions[number]
        partition.leader = leader
        partition.leader_epoch += 1
        self._note(topic, number)

    def _note(self, topic: Topic, number: int) -> None:
        partition = topic.partitions[number]
        if partition.leader != NOBODY:
            broker_epoch = self.brokers[partition.leader].epoch
            topic.elections[number].append(
                Election(partition.leader_epoch, partition.leader, broker_epoch, self.next_seq)
            )

    def _add(self, topic: Topic, partitions: list[list[Any]]) -> None:
        for leader, leader_epoch, partition_epoch, replicas, isr in partitions:
            topic.partitions.append(
                Partition(leader, leader_epoch, partition_epoch, list(replicas), list(isr))
            )
            topic.elections.append([])
            self._note(topic, len(topic.partitions) - 1)

    def _changed(self, topic: Topic, fields: dict[str, Any]) -> None:
        partition = topic.partitions[fields["partition"]]
        if (isr := fields.get("isr")) is not None:
            partition.isr = list(isr)
        partition.partition_epoch += 1
        if (leader := fields.get("leader")) is not None:
            self._led(topic, fields["partition"], leader)

    # --- what happens ---

    def be_born(self, brokers: int) -> None:
        rng = self.rng
        self.controller_epoch = 1
        self.commit(
            record("ClusterBorn", cluster_id=self.id),
            record("ControllerElected", controller_id=1, controller_epoch=1),
            self._registration(1, [random_uuid(rng)]),
        )
        for node in range(2, brokers + 1):
            self.commit(self._registration(node, [random_uuid(rng) for _ in range(rng.choice([1, 1, 1, 2]))]))

    def _registration(self, node: int, directories: list[UUID], clean_epoch: int = -1) -> list[Any]:
        return record(
            "BrokerRegistered",
            broker_id=node,
            incarnation=random_uuid(self.rng).hex,
            directories=[each.hex for each in directories],
            endpoints=[["PLAINTEXT", f"b{node}.example", 9092, "PLAINTEXT"]],
            rack=self.rng.choice([None, "östlich"]),
            clean_epoch=clean_epoch,
        )

    def create(self, name: str, partitions: int, replicas: int, **configs: str) -> Topic:
        rng = self.rng
        rows = []
        for _ in range(partitions):
            nodes = rng.sample(sorted(self.brokers), min(replicas, len(self.brokers)))
            rows.append([nodes[0], 0, 0, nodes, nodes])
        late = rows.pop() if partitions > 1 and rng.random() < 0.3 else None
        topic_id = random_uuid(rng).hex
        self.commit(
            record("TopicCreated", name=name, topic_id=topic_id, partitions=rows),
            *(
                record("ConfigChanged", resource_type=2, resource_name=name, name=key, value=value)
                for key, value in configs.items()
            ),
        )
        if late is not None:
            self.commit(record("PartitionsAdded", topic_id=topic_id, first=len(rows), partitions=[late]))
        return self.topics[name]

    def happen(self, events: int) -> None:
        """Elections, brokers that come and go, controllers that change, a topic that is deleted."""
        rng = self.rng
        for _ in range(events):
            match rng.choice(["elect", "elect", "elect", "fence", "restart", "controller", "topic", "empty"]):
                case "elect":
                    topic = rng.choice(list(self.topics.values()))
                    number = rng.randrange(len(topic.partitions))
                    live = [node for node in topic.partitions[number].isr if not self.brokers[node].is_fenced]
                    if live:
                        leader = rng.choice(live)
                        self.commit(
                            record("PartitionChanged", topic_id=topic.id.hex, partition=number, leader=leader)
                        )
                case "fence" if len(self.brokers) > 1:
                    broker = self.brokers[rng.choice(sorted(self.brokers))]
                    for fenced in (True, False):
                        self._say_fenced(broker, fenced)
                case "restart":
                    broker = self.brokers[rng.choice(sorted(self.brokers))]
                    clean = broker.epoch if rng.random() < 0.5 else -1
                    self.commit(self._registration(broker.node, broker.directories, clean))
                case "controller":
                    self.controller = rng.choice(sorted(self.brokers))
                    epoch = self.controller_epoch + rng.randint(1, 2)
                    self.controller_epoch = epoch
                    self.commit(
                        record("ControllerElected", controller_id=self.controller, controller_epoch=epoch)
                    )
                case "topic":
                    topic = self.create(f"gone-{self.next_seq}", 1, 2)
                    self.commit(record("TopicDeleted", topic_id=topic.id.hex))
                case _:
                    self.commit()
        self._all_well()

    def _say_fenced(self, broker: Broker, fenced: bool) -> None:
        self.commit(record("BrokerFenced", broker_id=broker.node, broker_epoch=broker.epoch, fenced=fenced))

    def _all_well(self) -> None:
        """Every partition has a leader, and some or all of its replicas are in sync."""
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                isr = [partition.leader] if partition.leader != NOBODY else partition.replicas[:1]
                isr += [node for node in partition.replicas if node not in isr and self.rng.random() < 0.7]
                leader = isr[0] if partition.leader == NOBODY else None
                if leader is not None or sorted(isr) != sorted(partition.isr):
                    self.commit(
                        record(
                            "PartitionChanged",
                            topic_id=topic.id.hex,
                            partition=number,
                            leader=leader,
                            isr=isr,
                        )
                    )

    def be_quiet(self, slots: int) -> None:
        """Slots on which no log hangs."""
        self.quiet_from = self.next_seq
        for _ in range(slots):
            if self.rng.random() < 0.5:
                broker = self.rng.choice(list(self.brokers.values()))
                self.commit(
                    record(
                        "ProducerIdsAllocated",
                        broker_id=broker.node,
                        broker_epoch=broker.epoch,
                        next_producer_id=self.next_producer_id + 1000,
                    )
                )
            elif self.rng.random() < 0.2:
                name = self.rng.choice(["transaction.version", "group.version"])
                self.commit(record("FeatureChanged", name=name, level=self.rng.randint(0, 1)))
            else:
                self.commit(
                    record(
                        "ConfigChanged",
                        resource_type=32,
                        resource_name="a group",
                        name="consumer.session.timeout.ms",
                        value=str(self.rng.randint(45_000, 60_000)),
                    )
                )

    # --- objects ---

    def snapshot_records(self) -> list[list[Any]]:
        found = [
            record("SnapshotTaken", at_ms=self.now_ms),
            record("ClusterBorn", cluster_id=self.id),
            record(
                "ControllerElected",
                controller_id=self.controller or 1,
                controller_epoch=self.controller_epoch,
            ),
        ]
        for broker in self.brokers.values():
            told = self._told_of(broker)
            told[2] |= {"epoch": broker.epoch, "directories": [each.hex for each in broker.directories]}
            found.append(told)
        for topic in self.topics.values():
            rows = [partition.to_json() for partition in topic.partitions]
            found.append(record("TopicCreated", name=topic.name, topic_id=topic.id.hex, partitions=rows))
            for name, value in topic.configs.items():
                found.append(
                    record("ConfigChanged", resource_type=2, resource_name=topic.name, name=name, value=value)
                )
        for (kind, resource, name), value in self.client_configs.items():
            found.append(
                record("ConfigChanged", resource_type=kind, resource_name=resource, name=name, value=value)
            )
        if self.next_producer_id:
            found.append(
                record(
                    "ProducerIdsAllocated",
                    broker_id=next(iter(self.brokers)),
                    broker_epoch=next(iter(self.brokers.values())).epoch,
                    next_producer_id=self.next_producer_id,
                )
            )
        found += [record("FeatureChanged", name=name, level=level) for name, level in self.features.items()]
        return found

    def _told_of(self, broker: Broker) -> list[Any]:
        """The newest registration of this incarnation, as it was told."""
        for slot in reversed([*self.slots, Slot(0, 0, [], b"")]):
            for each in slot.records:
                if each[0] == "BrokerRegistered" and each[2]["incarnation"] == broker.incarnation.hex:
                    return [each[0], each[1], each[2] | ({"fenced": True} if broker.is_fenced else {})]
        return record(
            "BrokerRegistered",
            broker_id=broker.node,
            incarnation=broker.incarnation.hex,
            directories=[],
            endpoints=[],
            fenced=broker.is_fenced,
        )

    def objects(self) -> dict[str, bytes]:
        """Slots, snapshots and boundaries, with the oldest collected or not, or half way."""
        rng = self.rng
        found: dict[str, bytes] = {}
        hashes = [bytes(32)]
        for slot in self.slots:
            data = slot.encode(hashes[-1])
            hashes.append(hashlib.sha256(data).digest())
            found[f"meta/{slot.seq:020d}"] = data
        self.snapshots = sorted(
            rng.sample(range(1, self.quiet_from), min(rng.randrange(3), self.quiet_from - 1))
        )
        for at in self.snapshots:
            found[f"meta/snapshot/{at:020d}"] = self.snapshot(at, hashes[at])
        self.boundary = 0
        if self.snapshots and rng.random() < 0.7:
            self.boundary = self.snapshots[-1]
            for at in {self.boundary, rng.choice(self.snapshots)}:
                found[f"meta/boundary/{at:020d}"] = b""
            left = rng.choice([0, 0, self.boundary, rng.randint(0, self.boundary)])
            for seq in range(1, self.boundary + 1 - left):
                del found[f"meta/{seq:020d}"]
            for at in self.snapshots[:-1]:
                if rng.random() < 0.5:
                    del found[f"meta/snapshot/{at:020d}"]
        return found

    def snapshot(self, at: int, previous_hash: bytes, records: list[list[Any]] | None = None) -> bytes:
        newest = max(slot.controller_epoch for slot in self.slots[:at])
        slot = Slot(at, newest, self.states[at] if records is None else records, bytes(range(16)))
        return slot.encode(previous_hash)

    def rechain(self, found: dict[str, bytes], first: int, slot: Slot) -> None:
        """Replace a slot, and give those after it the hashes that follow from it."""
        before = found.get(f"meta/{first - 1:020d}")
        previous = hashlib.sha256(before).digest() if before is not None else None
        if previous is None:
            old = found[f"meta/{first:020d}"]
            previous = old[36:68]
        for each in [slot, *self.slots[first:]]:
            data = replace(each).encode(previous)
            found[f"meta/{each.seq:020d}"] = data
            previous = hashlib.sha256(data).digest()
