"""The commands by which topics come, grow and go, as Kafka decides them.

Owns: CreateTopics, CreatePartitions and DeleteTopics with the order and the errors of their checks, and which
names a topic may have. Does not own: where replicas go (placement.py), settings (config_changes.py), which
broker leads a partition later (leaders.py).

Invariants: a topic that is refused leaves no record, and refuses no other topic of the same request. No
record is large: a topic of many partitions takes several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.config.checks import PARTITIONS_MAX
from broker.config.topics import check_topic_configs
from broker.config.values import ConfigError, ResourceType, invalid
from broker.control.commands import RECORDS_MAX_PER_COMMAND, Rules, too_large
from broker.control.image import LOOKED_AT_ONCE, Image, TopicImage
from broker.control.internal_topics import (
    BROKER_TOPICS,
    METADATA_TOPIC,
    REMOTE_PREFIX,
    internal_defaults,
    is_of_the_brokers,
    is_of_the_tiers,
)
from broker.control.metadata_records import (
    ConfigChanged,
    PartitionImage,
    Record,
    TopicDeleted,
    partition_records,
    topic_records,
)
from broker.control.placement import assigned_partition, check_assignment, place_new
from broker.decisions import Decision, Refusal, listed
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

TOPIC_NAME_MAX_CHARS = 249
_DUPLICATE_NAME = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")

# --- names ---

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def invalid_topic_name(name: str) -> str | None:
    """Why a topic cannot be called this; None if it can."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > TOPIC_NAME_MAX_CHARS:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{TOPIC_NAME_MAX_CHARS}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def check_topic_name(name: str) -> None:
    reason = invalid_topic_name(name)
    if reason is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, reason)


# --- creating ---


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """-1 asks for the default; `assignments` are (partition, replicas)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


def internal_topic(config: BrokerConfig, name: str) -> NewTopic | None:
    """The topic as the broker creates it for itself; None if it does not."""
    defaults = internal_defaults(config, name)
    if defaults is None:
        return None
    return NewTopic(
        name=name,
        partitions=defaults.partitions,
        replication_factor=defaults.replication_factor,
        configs=defaults.configs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    error: Refusal | None = None
    topic: TopicImage | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    topics: tuple[NewTopic, ...]
    validate_only: bool = False

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, list[TopicResult]]]:
        results: list[TopicResult] = []
        records: list[Record] = []
        # Each has one partition at least; what is refused costs time as well.
        _check_size(len(self.topics))
        counts = Counter(topic.name for topic in self.topics)
        normalized = yield from _normalized(image, self.topics)
        _check_size(sum(_asked_for(rules, topic) for topic in self.topics if counts[topic.name] == 1))
        for topic in self.topics:
            yield
            if counts[topic.name] > 1:
                continue
            try:
                made, changes = yield from _create(image, rules, topic, normalized)
            except KafkaError as error:
                results.append(TopicResult(name=topic.name, error=Refusal.of(error)))
                continue
            records += [*topic_records(made.name, made.id, made.partitions), *changes]
            if len(records) > RECORDS_MAX_PER_COMMAND:
                raise too_large()
            values = {change.name: change.value for change in changes if change.value is not None}
            results.append(TopicResult(name=topic.name, topic=made, configs=values))
        repeated = (name for name, count in counts.items() if count > 1)
        results += [TopicResult(name=name, error=_DUPLICATE_NAME) for name in repeated]
        return Decision(response=results, records=() if self.validate_only else tuple(records))


def _normalized(image: Image, topics: Iterable[NewTopic]) -> Work[dict[str, str]]:
    """Topics by what metrics call them; empty where none of the new ones can share that with another."""
    normalized: dict[str, str] = {}
    # a longer name is refused whatever is in it
    names = (topic.name for topic in topics if len(topic.name) <= TOPIC_NAME_MAX_CHARS)
    if any("." in name or "_" in name for name in names):
        for at, name in enumerate(image.topics):
            normalized[name.replace(".", "_")] = name
            if at % LOOKED_AT_ONCE == 0:
                yield
    return normalized


def _asked_for(rules: Rules, topic: NewTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return rules.config.num_partitions if topic.partitions == -1 else max(0, topic.partitions)


def _check_size(partitions: int) -> None:
    if partitions > PARTITIONS_MAX:
        raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")


def _create(
    image: Image, rules: Rules, topic: NewTopic, normalized: Mapping[str, str]
) -> Work[tuple[TopicImage, list[ConfigChanged]]]:
    if topic.name == METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.invalid_request, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        )
    check_topic_name(topic.name)
    if topic.name in image.topics:
        raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists.")
    collides = normalized.get(topic.name.replace(".", "_"))
    if collides is not None:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"Topic '{topic.name}' collides with existing topic: {collides}",
        )
    if is_of_the_tiers(topic.name) and topic.name not in BROKER_TOPICS:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"Topic '{topic.name}' cannot be created: {REMOTE_PREFIX}* is for topics of the brokers.",
        )
    changes = yield from _first_configs(rules, topic)
    if topic.assignments:
        partitions = yield from _assigned(image, topic)
    else:
        partitions = yield from _placed(image, rules, topic)
    return TopicImage(name=topic.name, id=rules.new_id(), partitions=partitions), changes


def _first_configs(rules: Rules, topic: NewTopic) -> Work[list[ConfigChanged]]:
    values: dict[str, str] = {}
    missing: list[str] = []
    for at, (name, value) in enumerate(topic.configs, 1):
        if value is None:
            missing.append(name)
        else:
            values[name] = value
        if at % LOOKED_AT_ONCE == 0:
            yield
    if missing:
        raise KafkaError(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {listed(missing, ',')}"
        )
    try:
        is_internal = is_of_the_brokers(topic.name)
        check_topic_configs(rules.config, values, before={}, is_internal=is_internal)
        check_cleanup(rules.config, topic.name, values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None
    return [
        ConfigChanged(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in values.items()
    ]


def _assigned(image: Image, topic: NewTopic) -> Work[tuple[PartitionImage, ...]]:
    for what, value in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.partitions),
    ):
        if value != -1:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    partitions: dict[int, PartitionImage] = {}
    replication_factor: int | None = None
    for index, replicas in topic.assignments:
        yield
        if index in partitions:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_assignment(image, replicas, replication_factor)
        replication_factor = len(replicas)
        partitions[index] = assigned_partition(image, index, replicas)
    if sorted(partitions) != list(range(len(partitions))):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return tuple(partitions[index] for index in sorted(partitions))


def _placed(image: Image, rules: Rules, topic: NewTopic) -> Work[tuple[PartitionImage, ...]]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < -1 or topic.partitions == 0:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        )
    count = rules.config.num_partitions if topic.partitions == -1 else topic.partitions
    factor = topic.replication_factor
    if factor == -1:
        factor = rules.config.default_replication_factor
    _check_size(count)
    try:
        return (yield from place_new(image, rules, first=0, count=count, replication_factor=factor))
    except KafkaError as error:
        raise KafkaError(
            error.code, f"Unable to replicate the partition {factor} time(s): {error.message}"
        ) from None


def check_cleanup(config: BrokerConfig, name: str, values: Mapping[str, str]) -> None:
    """ConfigError unless a topic of the tiers is cleaned up as the broker that reads it must rely on."""
    defaults = internal_defaults(config, name) if is_of_the_tiers(name) else None
    if defaults is None:
        return
    needed, given = dict(defaults.configs)["cleanup.policy"], values.get("cleanup.policy")
    if given != needed:
        raise invalid("cleanup.policy", given, f"{name} belongs to the brokers, which need {needed}")


# --- deleting ---


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRef:
    """A topic by name or by id: exactly one of them."""

    name: str | None = None
    id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    name: str | None
    id: UUID | None
    error: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    topics: tuple[TopicRef, ...]

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, list[DeleteResult]]]:
        results: list[DeleteResult] = []
        records: list[Record] = []
        gone: set[UUID] = set()
        counts: dict[TopicRef, int] = {}
        for at, ref in enumerate(self.topics, 1):
            counts[ref] = counts.get(ref, 0) + 1
            if at % LOOKED_AT_ONCE == 0:
                yield
        for at, (ref, count) in enumerate(counts.items(), 1):
            if at % LOOKED_AT_ONCE == 0:
                yield
            try:
                topic = _referred(image, ref, count)
                if is_of_the_tiers(topic.name):
                    raise KafkaError(
                        ErrorCode.topic_deletion_disabled,
                        f"Topic '{topic.name}' belongs to the brokers and is not deleted.",
                    )
                if topic.id in gone:
                    raise KafkaError(
                        ErrorCode.invalid_request,
                        "The provided topic name maps to an ID that was already supplied.",
                    )
                if len(records) == RECORDS_MAX_PER_COMMAND:
                    raise too_large()
            except KafkaError as error:
                results.append(DeleteResult(name=ref.name, id=ref.id, error=Refusal.of(error)))
                continue
            gone.add(topic.id)
            records.append(TopicDeleted(topic_id=topic.id))
            results.append(DeleteResult(name=topic.name, id=topic.id))
        return Decision(response=results, records=tuple(records))


def _referred(image: Image, ref: TopicRef, count: int) -> TopicImage:
    match ref.name, ref.id:
        case None, None:
            raise KafkaError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
        case str(), UUID():
            raise KafkaError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
        case str(name), None:
            if count > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            topic = image.topics.get(name)
            if topic is None:
                raise KafkaError(
                    ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
                )
            return topic
        case _:
            assert ref.id is not None
            if count > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic id.")
            topic = image.topic_by_id(ref.id)
            if topic is None:
                raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
            return topic


# --- growing ---


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """`count` is the new total; `assignments`, if given, the replicas of each added partition."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    topics: tuple[MorePartitions, ...]
    validate_only: bool = False

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, list[tuple[str, Refusal | None]]]]:
        results: list[tuple[str, Refusal | None]] = []
        records: list[Record] = []
        _check_size(len(self.topics))
        counts = Counter(topic.name for topic in self.topics)
        partitions = 0
        for topic in self.topics:
            yield
            if counts[topic.name] > 1:
                continue
            try:
                grown, added = yield from _added(image, rules, topic)
            except KafkaError as error:
                results.append((topic.name, Refusal.of(error)))
                continue
            partitions += len(added)
            _check_size(partitions)
            records += partition_records(grown.id, len(grown.partitions), added)
            results.append((topic.name, None))
        results += [(name, _DUPLICATE_NAME) for name, count in counts.items() if count > 1]
        return Decision(response=results, records=() if self.validate_only else tuple(records))


def _added(
    image: Image, rules: Rules, more: MorePartitions
) -> Work[tuple[TopicImage, tuple[PartitionImage, ...]]]:
    topic = image.topics.get(more.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if is_of_the_tiers(topic.name):
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"Topic '{topic.name}' belongs to the brokers; more partitions would hide what it says.",
        )
    first = len(topic.partitions)
    if more.count == first:
        raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {first} partition(s).")
    if more.count < first:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"The topic {topic.name} currently has {first} partition(s); "
            f"{more.count} would not be an increase.",
        )
    factor = len(topic.partitions[0].replicas)
    added = more.count - first
    _check_size(added)
    if more.assignments is None:
        placed = place_new(image, rules, first=first, count=added, replication_factor=factor)
    else:
        placed = _assigned_more(image, more.assignments, first=first, count=added, factor=factor)
    return topic, (yield from placed)


def _assigned_more(
    image: Image, assignments: tuple[tuple[int, ...], ...], *, first: int, count: int, factor: int
) -> Work[tuple[PartitionImage, ...]]:
    if len(assignments) != count:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {count} additional partition(s), but only {len(assignments)} assignment(s) "
            "were specified.",
        )
    for replicas in assignments:
        check_assignment(image, replicas, factor)
        yield
    partitions: list[PartitionImage] = []
    for at, replicas in enumerate(assignments):
        partitions.append(assigned_partition(image, first + at, replicas))
        yield
    return tuple(partitions)
