"""Which brokers lead and replicate a partition: what leaders and operators ask, as Kafka decides it.

Owns: the order and the errors of the checks behind AlterPartition, ElectLeaders and
AlterPartitionReassignments, and the elections that are not asked for. Does not own: how a partition changes
once a change is allowed (elections.py), what becomes of partitions when a broker comes or goes (image.py).

Invariant: a command that names a partition more than once decides each time upon what it decided before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from broker.control.brokers import check_broker_epoch
from broker.control.commands import RECORDS_MAX_PER_COMMAND, Rules, too_large
from broker.control.elections import (
    Election,
    Replicas,
    Target,
    allows_unclean,
    change,
    elect_unclean,
    partitions_of,
)
from broker.control.image import LOOKED_AT_ONCE, Image, TopicImage
from broker.control.metadata_records import NO_LEADER, PartitionChanged, PartitionImage, Record
from broker.control.placement import check_assignment
from broker.decisions import Decision, Refusal
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

ELECTIONS_MAX_PER_ROUND = 1_000
"""The most elections of one command that were not asked for; the next command has the rest."""
ANY_EPOCH = -1
_NOT_PREFERRED = Refusal(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
_NOT_ELIGIBLE = Refusal(
    ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."
)
_NOT_NEEDED = Refusal(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
_RECOVERED = 0

PartitionRef = tuple[str, int]


@dataclass(slots=True)
class _Changes:
    """The records of one command, and the partitions as they leave them."""

    image: Image
    records: list[PartitionChanged] = field(default_factory=list)
    _ahead: dict[tuple[UUID, int], PartitionImage] = field(default_factory=dict)

    def partition(self, topic: TopicImage, index: int) -> PartitionImage | None:
        if not 0 <= index < len(topic.partitions):
            return None
        return self._ahead.get((topic.id, index), topic.partitions[index])

    def make(self, topic: TopicImage, partition: PartitionImage, target: Target) -> PartitionChanged | None:
        record = change(self.image, topic.id, partition, target)
        if record is not None:
            _check_size(len(self.records) + 1)
            self.records.append(record)
            self._ahead[topic.id, partition.index] = record.of(partition)
        return record


def _check_size(changes: int) -> None:
    if changes > RECORDS_MAX_PER_COMMAND:
        raise too_large()


# --- AlterPartition ---


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """What a leader wants to be the ISR: (broker id, broker epoch), -1 for an epoch that it does not know."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrResult:
    topic_id: UUID
    partition: int
    image: PartitionImage | None = None
    error: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    broker_id: int
    broker_epoch: int
    changes: tuple[IsrChange, ...]

    def request_fields(self) -> Fields:
        """The request to the controller, version 3."""
        topics: dict[UUID, list[Fields]] = {}
        for asked in self.changes:
            topics.setdefault(asked.topic_id, []).append(
                {
                    "partition_index": asked.partition,
                    "leader_epoch": asked.leader_epoch,
                    "partition_epoch": asked.partition_epoch,
                    "leader_recovery_state": _RECOVERED,
                    "new_isr_with_epochs": [
                        {"broker_id": member, "broker_epoch": epoch} for member, epoch in asked.isr
                    ],
                }
            )
        return {
            "broker_id": self.broker_id,
            "broker_epoch": self.broker_epoch,
            "topics": [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()],
        }

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, list[IsrResult]]]:
        check_broker_epoch(image, self.broker_id, self.broker_epoch)
        _check_size(len(self.changes))
        changes = _Changes(image)
        results: list[IsrResult] = []
        for asked in self.changes:
            yield
            changed: PartitionImage | None = None
            error: Refusal | None = None
            try:
                changed = self._alter(changes, rules, asked)
            except KafkaError as refused:
                error = Refusal.of(refused)
            results.append(
                IsrResult(topic_id=asked.topic_id, partition=asked.partition, image=changed, error=error)
            )
        return Decision(response=results, records=tuple(changes.records))

    def _alter(self, changes: _Changes, rules: Rules, asked: IsrChange) -> PartitionImage:
        topic = changes.image.topic_by_id(asked.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        partition = changes.partition(topic, asked.partition)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        self._check(changes.image, partition, asked)
        isr = tuple(broker_id for broker_id, _ in asked.isr)
        may_lose = not isr and allows_unclean(changes.image, rules.config, topic.name)
        election = Election.UNCLEAN if may_lose else Election.ONLINE
        # The last one in sync that leaves has nothing: any other replica is better.
        without = NO_LEADER if isr else self.broker_id
        record = changes.make(topic, partition, Target(isr=isr, election=election, without=without))
        if record is None:
            return partition
        if record.leader is not None and record.leader != self.broker_id:
            # The leader hands over, or the ISR completed a reassignment that takes it away: it must read what
            # is new.
            raise KafkaError(ErrorCode.new_leader_elected)
        return record.of(partition)

    def _check(self, image: Image, partition: PartitionImage, asked: IsrChange) -> None:
        if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
            # It knows more than this controller does: there is a newer one.
            raise KafkaError(ErrorCode.not_controller)
        if asked.leader_epoch < partition.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        isr = [broker_id for broker_id, _ in asked.isr]
        # A broker that lost its log leaves: a leader hands over to the others in sync; alone it leaves
        # an empty ISR.
        leaves = self.broker_id in partition.isr and set(isr) == set(partition.isr) - {self.broker_id}
        if self.broker_id != partition.leader and not leaves:
            raise KafkaError(ErrorCode.invalid_request)
        if asked.partition_epoch < partition.partition_epoch:
            raise KafkaError(ErrorCode.invalid_update_version)
        if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
            raise KafkaError(ErrorCode.invalid_request)
        if self.broker_id not in isr and not leaves:
            raise KafkaError(ErrorCode.invalid_request)
        for broker_id, broker_epoch in asked.isr:
            is_current = broker_epoch == ANY_EPOCH or broker_epoch == _epoch(image, broker_id)
            if not image.is_active(broker_id) or not is_current:
                raise KafkaError(ErrorCode.ineligible_replica)


def _epoch(image: Image, broker_id: int) -> int | None:
    broker = image.brokers.get(broker_id)
    return None if broker is None else broker.epoch


# --- elections ---


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    topic: str
    partition: int
    error: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """`partitions` None means all of them, and answers those alone that were in need of an election."""

    election_type: int
    partitions: tuple[PartitionRef, ...] | None

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, list[ElectionResult]]]:
        try:
            kind = ElectionType(self.election_type)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request, f"Unknown election type {self.election_type}"
            ) from None
        if self.partitions is not None:
            _check_size(len(self.partitions))
        changes = _Changes(image)
        results: list[ElectionResult] = []
        every = _all_partitions(image) if self.partitions is None else self.partitions
        for at, (name, index) in enumerate(every, 1):
            if at % LOOKED_AT_ONCE == 0:
                yield
            error = _elected(changes, kind, name, index)
            is_needless = error is not None and error.code is ErrorCode.election_not_needed
            if self.partitions is not None or not is_needless:
                results.append(ElectionResult(topic=name, partition=index, error=error))
        return Decision(response=results, records=tuple(changes.records))


def _all_partitions(image: Image) -> Iterator[PartitionRef]:
    return ((topic.name, each.index) for topic in image.topics.values() for each in topic.partitions)


def _elected(changes: _Changes, kind: ElectionType, name: str, index: int) -> Refusal | None:
    topic = changes.image.topics.get(name)
    if topic is None:
        return Refusal(ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
    partition = changes.partition(topic, index)
    if partition is None:
        return Refusal(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
    if kind is ElectionType.PREFERRED:
        is_led = partition.leader == partition.replicas[0]
        election, failure = Election.PREFERRED, _NOT_PREFERRED
    else:
        is_led = partition.leader >= 0
        election, failure = Election.UNCLEAN, _NOT_ELIGIBLE
    if is_led:
        return _NOT_NEEDED
    return failure if changes.make(topic, partition, Target(election=election)) is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceLeaders:
    """Make first replicas lead again where they can. True if there is more than one slot should hold."""

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, bool]]:
        changes = _Changes(image)
        if not rules.config.auto_leader_rebalance_enable:
            return Decision(response=False)
        misplaced = yield from partitions_of(image, lambda each: each.leader != each.replicas[0])
        for topic, partition in misplaced:
            changes.make(topic, partition, Target(election=Election.PREFERRED))
            if len(changes.records) == ELECTIONS_MAX_PER_ROUND:
                return Decision(response=True, records=tuple(changes.records))
            yield
        return Decision(response=False, records=tuple(changes.records))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUncleanLeaders:
    """Elect unclean leaders where that is allowed: for topics that came to allow it when they had no leader
    already, and of brokers that came back when nobody in sync did. True if there is more to do."""

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, bool]]:
        records = yield from elect_unclean(image, rules.config, most=ELECTIONS_MAX_PER_ROUND)
        return Decision(response=len(records) == ELECTIONS_MAX_PER_ROUND, records=tuple(records))


# --- reassignments ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """`replicas` None gives up the reassignment that is under way."""

    topic: str
    partition: int
    replicas: Replicas | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentResult:
    topic: str
    partition: int
    error: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignments:
    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, list[ReassignmentResult]]]:
        _check_size(len(self.reassignments))
        changes = _Changes(image)
        results: list[ReassignmentResult] = []
        for asked in self.reassignments:
            yield
            error: Refusal | None = None
            try:
                self._reassign(changes, rules, asked)
            except KafkaError as refused:
                error = Refusal.of(refused)
            results.append(ReassignmentResult(topic=asked.topic, partition=asked.partition, error=error))
        return Decision(response=results, records=tuple(changes.records))

    def _reassign(self, changes: _Changes, rules: Rules, asked: Reassignment) -> None:
        topic = changes.image.topics.get(asked.topic)
        if topic is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {asked.topic}."
            )
        partition = changes.partition(topic, asked.partition)
        if partition is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"Unable to find partition {asked.topic}:{asked.partition}.",
            )
        if asked.replicas is None:
            target = _cancelled(changes.image, rules, topic, partition)
        else:
            check_assignment(changes.image, asked.replicas, None)
            if not self.allow_replication_factor_change:
                _check_factor(partition, asked.replicas)
            target = _reassigned(partition, asked.replicas)
        changes.make(topic, partition, target)


def _check_factor(partition: PartitionImage, replicas: Replicas) -> None:
    staying = set(partition.replicas) - set(partition.removing)
    if len(staying) != len(replicas):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(staying)} to {len(replicas)}",
        )


def _reassigned(partition: PartitionImage, replicas: Replicas) -> Target:
    """What is new against the replicas before any reassignment is added, also where an earlier one, that
    this one replaces, began to add it: it need not be in sync yet.
    """
    before = set(partition.replicas) - set(partition.adding)
    removing = tuple(sorted(set(partition.replicas) - set(replicas)))
    return Target(
        replicas=(*replicas, *removing),
        adding=tuple(sorted(set(replicas) - before)),
        removing=removing,
    )


def _cancelled(image: Image, rules: Rules, topic: TopicImage, partition: PartitionImage) -> Target:
    if not partition.is_reassigned:
        raise KafkaError(ErrorCode.no_reassignment_in_progress)
    replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    isr = tuple(member for member in partition.isr if member not in partition.adding)
    may_lose = allows_unclean(image, rules.config, topic.name)
    if not isr and not may_lose:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Unable to revert partition assignment for {topic.name}:{partition.index} because it would "
            "require an unclean leader election.",
        )
    return Target(
        isr=isr or replicas[:1],
        replicas=replicas,
        adding=(),
        removing=(),
        election=Election.UNCLEAN if may_lose else Election.ONLINE,
        is_unclean=not isr,
    )
