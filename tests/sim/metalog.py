"""Owns the reading of the metadata log from the bucket's journal: who won each slot, when, and what it did.

Trusts no broker: a slot is the first object that was ever put under its key, whoever deleted it later. Uses
the broker's own record formats and fold, which have tests of their own; what the fold yields is judged by
the rules. Does not own those.

Invariant: the slots are in the order of their numbers, and `state` is the digest of the fold up to each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from uuid import UUID

from broker.config.values import ResourceType
from broker.control.image import Image, TopicImage
from broker.control.metadata_records import (
    ConfigChanged,
    ControllerElected,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from protocol.stored.slots import decode_slot, slot_hash
from tests.sim.history import (
    PLACES,
    SETTING,
    AdminEvent,
    BrokerState,
    ImageSeen,
    MetaSlot,
    PartitionState,
    StoreChange,
)

SLOTS = "meta/"
BOUNDARIES = "meta/boundary/"


def read_slots(journal: Iterable[StoreChange]) -> tuple[MetaSlot, ...]:
    first: dict[int, StoreChange] = {}
    for change in journal:
        name = change.key.removeprefix(SLOTS)
        if change.kind == "put" and name.isdigit():
            first.setdefault(int(name), change)
    reader = Reader()
    return tuple(reader.read(seq, first[seq]) for seq in sorted(first))


class Reader:
    """Folds slot after slot and says what each one changed."""

    def __init__(self) -> None:
        self.image = Image()
        self._names: dict[UUID, str] = {}

    def read(self, seq: int, change: StoreChange) -> MetaSlot:
        slot = decode_slot(change.data)
        records = tuple(map(decode_record, slot.records))
        elects = next((r.controller_epoch for r in records if isinstance(r, ControllerElected)), None)
        is_void = slot.controller_epoch < self.image.controller_epoch
        before = self.image.copy()
        if is_void:
            records = ()
        self.image.apply_slot(seq, records)
        return MetaSlot(
            seq=seq,
            at=change.at,
            node=change.node,
            life=change.life,
            controller_epoch=slot.controller_epoch,
            hash=slot_hash(change.data).hex(),
            previous_hash=slot.previous_hash.hex(),
            elects=elects,
            is_void=is_void,
            partitions=tuple(_states_on_the_way(seq, before, records)),
            brokers=tuple(
                BrokerState(id=broker.id, epoch=broker.epoch, fenced=broker.fenced)
                for broker in self.image.brokers.values()
                if before.brokers.get(broker.id) != broker
            ),
            deleted=tuple(
                topic.name for topic in before.topics.values() if topic.id not in self.image.topic_names
            ),
            events=tuple(self._events(records)),
            facts=dict(_changed_facts(before, self.image)),
            state=digest_of(self.image),
        )

    def _events(self, records: Iterable[Record]) -> Iterator[AdminEvent]:
        names = self._names
        for record in records:
            if isinstance(record, TopicCreated):
                names[record.topic_id] = name = record.name
                topic_id, count = str(record.topic_id), len(record.partitions)
                yield AdminEvent(kind="create", topic=name, topic_id=topic_id, value=count)
            elif isinstance(record, TopicDeleted):
                name = names[record.topic_id]
                yield AdminEvent(kind="delete", topic=name, topic_id=str(record.topic_id))
            elif isinstance(record, PartitionsAdded):
                name, count = names[record.topic_id], record.first + len(record.partitions)
                yield AdminEvent(kind="grow", topic=name, topic_id=str(record.topic_id), value=count)
            elif isinstance(record, ConfigChanged) and record.name == SETTING and record.value is not None:
                name = record.resource_name
                yield AdminEvent(kind="configure", topic=name, topic_id="", value=record.value)


def _changed_facts(before: Image, after: Image) -> Iterator[tuple[tuple[str, str], object]]:
    for name in sorted(before.topics.keys() | after.topics.keys()):
        setting = ResourceType.TOPIC, name
        if before.topics.get(name) is after.topics.get(name) and (
            before.configs.get(setting) is after.configs.get(setting)
        ):
            continue
        old, new = (_facts_of(image, name) for image in (before, after))
        yield from (((name, aspect), new[aspect]) for aspect in new if old[aspect] != new[aspect])


def _facts_of(image: Image, name: str) -> dict[str, object]:
    topic = image.topics.get(name)
    if topic is None:
        return {PLACES: None, SETTING: None}
    return {
        PLACES: places(str(topic.id), ((it.leader_epoch, it.replicas, it.isr) for it in topic.partitions)),
        SETTING: image.config(ResourceType.TOPIC, name).get(SETTING, ""),
    }


def places(topic_id: str, partitions: Iterable[tuple[int, Iterable[int], Iterable[int]]]) -> object:
    """What is told of a topic: its id, and leader epoch, replicas and ISR of each partition."""
    return topic_id, tuple((epoch, tuple(replicas), tuple(isr)) for epoch, replicas, isr in partitions)


def _states_on_the_way(seq: int, before: Image, records: Iterable[Record]) -> Iterator[PartitionState]:
    """Every state that a slot brings, one after the other: who joined an ISR in it may lead by its end."""
    was = before.copy()
    for record in records:
        now = was.copy()
        now.apply(record, seq)
        yield from _changed_partitions(was, now)
        was = now


def _changed_partitions(before: Image, after: Image) -> Iterable[PartitionState]:
    for topic in after.topics.values():
        old = before.topics.get(topic.name)
        if old is topic:
            continue
        same = old is not None and old.id == topic.id
        known = old.partitions if same and old is not None else ()
        for state in _states(topic):
            at = state.tp[1]
            if at >= len(known) or known[at] != topic.partitions[at]:
                yield state


def _states(topic: TopicImage) -> Iterable[PartitionState]:
    for partition in topic.partitions:
        yield PartitionState(
            tp=(topic.name, partition.index),
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            adding=partition.adding,
            topic_id=str(topic.id),
        )


_encoded = lru_cache(maxsize=4096)(encode_record)
"""Most of what an image says it said before."""


def digest_of(image: Image) -> str:
    """One name for all images that say the same, however they came to."""
    records = sorted(map(_encoded, image.snapshot_records()))
    return hashlib.sha256(b"\n".join(records)).hexdigest()[:16]


def seen_by(image: Image, *, node: int, life: int) -> ImageSeen:
    return ImageSeen(node=node, life=life, seq=image.seq, state=digest_of(image))


def collected_early(journal: Iterable[StoreChange]) -> tuple[str, ...]:
    """Slots that were deleted before any boundary said so."""
    boundary = 0
    early = []
    for change in journal:
        name = change.key.removeprefix(SLOTS)
        if change.kind == "put" and change.key.startswith(BOUNDARIES):
            boundary = max(boundary, int(change.key.removeprefix(BOUNDARIES)))
        elif change.kind == "delete" and name.isdigit() and int(name) > boundary:
            early.append(change.key)
    return tuple(early)
