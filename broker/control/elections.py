"""How a partition's leader, ISR and replicas may change: one partition, one image, one record.

Owns: which broker can lead a partition, which kind of election finds which replica, when a reassignment is
complete, and when a change needs a new leader epoch. Does not own: what asks for a change and whether it is
valid (leaders.py), what happens to the partitions of a broker that comes or goes (the fold, image.py).

Invariants: the leader of a changed partition is in its ISR, and the ISR among its replicas. A leader from
outside the ISR is only found by an unclean election, and the record says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.values import ResourceType
from broker.control.image import LOOKED_AT_ONCE, Image, TopicImage
from broker.control.metadata_records import NO_LEADER, PartitionChanged, PartitionImage
from protocol.work import Work

UNCLEAN_ELECTION = "unclean.leader.election.enable"

Replicas = tuple[int, ...]


class Election(Enum):
    """Which leader to look for when a partition changes. A leader that can stay is replaced only by
    PREFERRED."""

    PREFERRED = "the first replica, if it is in sync"
    ONLINE = "any replica that is in sync"
    UNCLEAN = "any replica, if none is in sync"


def can_lead(image: Image, partition: PartitionImage, broker_id: int) -> bool:
    """A broker in a controlled stop goes on leading what it alone is in sync with, and nothing else."""
    if image.is_active(broker_id):
        return True
    return broker_id == partition.leader and partition.isr == (broker_id,) and image.is_live(broker_id)


def allows_unclean(image: Image, config: BrokerConfig, topic: str) -> bool:
    own = image.config(ResourceType.TOPIC, topic).get(UNCLEAN_ELECTION)
    return config.unclean_leader_election_enable if own is None else own.strip().lower() == "true"


def allows_unclean_anywhere(image: Image, config: BrokerConfig) -> Work[bool]:
    if config.unclean_leader_election_enable:
        return True
    for at, (resource, name) in enumerate(image.configs):
        if resource is ResourceType.TOPIC and allows_unclean(image, config, name):
            return True
        if at % LOOKED_AT_ONCE == 0:
            yield
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a partition shall become; None where it stays as it is."""

    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    election: Election = Election.ONLINE
    without: int = NO_LEADER
    """A broker that must not be elected."""
    is_unclean: bool = False
    """The ISR asked for holds a replica that was not in sync."""


def change(
    image: Image, topic_id: UUID, partition: PartitionImage, target: Target
) -> PartitionChanged | None:
    """The record that brings the partition to its target and finds it a leader; None if nothing changes."""
    isr = _or(target.isr, partition.isr)
    replicas = _or(target.replicas, partition.replicas)
    adding = _or(target.adding, partition.adding)
    removing = _or(target.removing, partition.removing)
    if _is_complete(isr, replicas, adding, removing):
        isr, replicas = _less(isr, removing), _less(replicas, removing)
        adding = removing = ()
    leader, is_unclean = _elect(image, partition, isr, replicas, target)
    if is_unclean:
        isr = (leader,)
    # A replica that goes may still fetch: with a new leader epoch it is told to stop.
    moves = leader != partition.leader or not set(partition.replicas) <= set(replicas)
    nothing = PartitionChanged(topic_id=topic_id, partition=partition.index)
    record = replace(
        nothing,
        leader=leader if moves else None,
        isr=_if_new(isr, partition.isr),
        replicas=_if_new(replicas, partition.replicas),
        adding=_if_new(adding, partition.adding),
        removing=_if_new(removing, partition.removing),
    )
    if record == nothing:
        return None
    return replace(record, unclean=True) if is_unclean or target.is_unclean else record


def elect_unclean(
    image: Image, config: BrokerConfig, *, without: int = NO_LEADER, most: int
) -> Work[list[PartitionChanged]]:
    """Elect leaders for partitions without one, of topics whose owner would rather lose records than wait."""
    records: list[PartitionChanged] = []
    target = Target(election=Election.UNCLEAN, without=without)
    for topic, partition in (yield from partitions_of(image, lambda each: each.leader == NO_LEADER)):
        if len(records) >= most:
            break
        if allows_unclean(image, config, topic.name):
            record = change(image, topic.id, partition, target)
            if record is not None:
                records.append(record)
        yield
    return records


def partitions_of(
    image: Image, wanted: Callable[[PartitionImage], bool]
) -> Work[list[tuple[TopicImage, PartitionImage]]]:
    """Return the partitions of all topics of which `wanted` is true."""
    found: list[tuple[TopicImage, PartitionImage]] = []
    looked_at = 0
    for topic in image.topics.values():
        for partition in topic.partitions:
            if wanted(partition):
                found.append((topic, partition))
            looked_at += 1
            if looked_at % LOOKED_AT_ONCE == 0:
                yield
    return found


def _or(wanted: Replicas | None, current: Replicas) -> Replicas:
    return current if wanted is None else wanted


def _if_new(wanted: Replicas, current: Replicas) -> Replicas | None:
    return None if wanted == current else wanted


def _less(replicas: Sequence[int], gone: Collection[int]) -> Replicas:
    return tuple(replica for replica in replicas if replica not in gone)


def _is_complete(isr: Replicas, replicas: Replicas, adding: Replicas, removing: Replicas) -> bool:
    """A reassignment is done when all that it adds are in sync. One that takes more than it adds waits for
    all that stay: they are what is left of the promise the topic's owner counts on.
    """
    if not adding and not removing:
        return False
    stay, in_sync = _less(replicas, removing), _less(isr, removing)
    if not stay or not in_sync:
        return False
    needed = stay if len(adding) < len(removing) else adding
    return set(needed) <= set(in_sync)


def _elect(
    image: Image, partition: PartitionImage, isr: Replicas, replicas: Replicas, target: Target
) -> tuple[int, bool]:
    """(leader, whether it was not in sync)."""

    def is_there(broker_id: int) -> bool:
        return broker_id != target.without and can_lead(image, partition, broker_id)

    in_sync = [replica for replica in replicas if replica in isr and is_there(replica)]
    if target.election is Election.PREFERRED and replicas[0] in in_sync:
        return replicas[0], False
    if partition.leader in in_sync:
        return partition.leader, False
    if in_sync:
        return in_sync[0], False
    if target.election is Election.UNCLEAN:
        leader = next(filter(is_there, replicas), NO_LEADER)
        return leader, leader != NO_LEADER
    return NO_LEADER, False
