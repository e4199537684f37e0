"""What the controller decides: commands in, records and a response out.

Owns: the shape of a decision, and the rules by which topics, their number of partitions and configurations
change, as Kafka has them. Does not own: who leads and replicates a partition (replication.py), which brokers
there are (brokers.py), the fold (image.py), winning the slot that makes a decision true, or who may ask
(dispatch).

Invariant: deciding changes nothing. A command reads one image and returns the records that would carry it
out; it refuses as a whole by raising KafkaError, and item by item in its response.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from broker.config import broker as settings
from broker.config.broker import BrokerConfig, ConfigError, ConfigType, ResourceType
from broker.control.image import (
    BrokerImage,
    ConfigChanged,
    Image,
    PartitionImage,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
    TopicImage,
    new_partition,
)
from protocol.errors import ErrorCode, KafkaError

PARTITIONS_MAX_PER_COMMAND = 10_000
TOPIC_NAME_MAX_CHARS = 249
METADATA_TOPIC = "__cluster_metadata"

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a decision may look at besides the image."""

    config: BrokerConfig
    new_id: Callable[[], UUID]
    pick: Callable[[int], int]
    """A number below its argument; where placement begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[R]):
    response: R
    records: tuple[Record, ...] = ()


class Command(Protocol[R]):
    def decide(self, image: Image, rules: Rules) -> Decision[R]: ...


# --- topic names -------------------------------------------------------------------------------------------

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


# --- placement ---------------------------------------------------------------------------------------------


def place(
    brokers: Sequence[BrokerImage], *, partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Replicas for each partition, leader first.

    Leaders are live and follow each other in turn, one rack after the other. Each further replica goes to a
    rack that has fewest of them, there to a live broker while there is one.
    """
    live = _striped([broker for broker in brokers if not broker.fenced])
    if not live:
        raise KafkaError(ErrorCode.invalid_replication_factor, "All brokers are currently fenced.")
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered or some brokers have all their log directories "
            "cordoned.",
        )
    fenced = _striped([broker for broker in brokers if broker.fenced])
    return [
        _replicas(live, fenced, leader=start + at, shift=(start + at) // len(live), count=replication_factor)
        for at in range(partitions)
    ]


def _striped(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """One broker of each rack in turn."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack or "", []).append(broker)
    columns = [racks[rack] for rack in sorted(racks)]
    depth = max(map(len, columns), default=0)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def _replicas(
    live: list[BrokerImage], fenced: list[BrokerImage], *, leader: int, shift: int, count: int
) -> tuple[int, ...]:
    at = leader % len(live)
    others = live[at + 1 :] + live[:at]
    turn = shift % len(others) if others else 0
    candidates = others[turn:] + others[:turn] + fenced
    chosen = [live[at].id]
    in_rack = Counter([live[at].rack])
    while len(chosen) < count:
        broker = min(candidates, key=lambda broker: (in_rack[broker.rack], broker.fenced))
        candidates.remove(broker)
        chosen.append(broker.id)
        in_rack[broker.rack] += 1
    return tuple(chosen)


# --- topics ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """-1 asks for the default; `assignments` are (partition, replicas)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    error: KafkaError | None = None
    topic: TopicImage | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    topics: tuple[NewTopic, ...]
    validate_only: bool = False

    def decide(self, image: Image, rules: Rules) -> Decision[list[TopicResult]]:
        results: list[TopicResult] = []
        records: list[Record] = []
        # Each has one partition at least; what is refused costs time as well.
        _check_size(len(self.topics))
        counts = Counter(topic.name for topic in self.topics)
        normalized = _normalized(image, self.topics)
        _check_size(sum(_asked_for(rules, topic) for topic in self.topics if counts[topic.name] == 1))
        for topic in self.topics:
            if counts[topic.name] > 1:
                continue
            try:
                made, changes = _create(image, rules, topic, normalized)
            except KafkaError as error:
                results.append(TopicResult(name=topic.name, error=error))
                continue
            records += [TopicCreated(name=made.name, topic_id=made.id, partitions=made.partitions), *changes]
            values = {change.name: change.value for change in changes if change.value is not None}
            results.append(TopicResult(name=topic.name, topic=made, configs=values))
        for name, count in counts.items():
            if count > 1:
                duplicate = KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
                results.append(TopicResult(name=name, error=duplicate))
        return Decision(response=results, records=() if self.validate_only else tuple(records))


def _normalized(image: Image, topics: Iterable[NewTopic]) -> dict[str, str]:
    """Topics by what metrics call them; empty where none of the new ones can share that with another."""
    if not any("." in topic.name or "_" in topic.name for topic in topics):
        return {}
    return {name.replace(".", "_"): name for name in image.topics}


def _asked_for(rules: Rules, topic: NewTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return rules.config.num_partitions if topic.partitions == -1 else max(0, topic.partitions)


def _check_size(partitions: int) -> None:
    if partitions > PARTITIONS_MAX_PER_COMMAND:
        raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")


def _create(
    image: Image, rules: Rules, topic: NewTopic, normalized: Mapping[str, str]
) -> tuple[TopicImage, list[ConfigChanged]]:
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
    changes = _first_configs(rules, topic)
    if topic.assignments:
        partitions = _assigned(image, topic)
    else:
        partitions = _placed(image, rules, topic)
    return TopicImage(name=topic.name, id=rules.new_id(), partitions=partitions), changes


def _first_configs(rules: Rules, topic: NewTopic) -> list[ConfigChanged]:
    missing = [name for name, value in topic.configs if value is None]
    if missing:
        raise KafkaError(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(missing)}"
        )
    values = {name: value for name, value in topic.configs if value is not None}
    try:
        settings.check_topic_configs(rules.config, values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None
    return [
        ConfigChanged(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in values.items()
    ]


def _assigned(image: Image, topic: NewTopic) -> tuple[PartitionImage, ...]:
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
        if index in partitions:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_assignment(image, replicas, replication_factor)
        replication_factor = len(replicas)
        partitions[index] = _manual(image, index, replicas)
    if sorted(partitions) != list(range(len(partitions))):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return tuple(partitions[index] for index in sorted(partitions))


def check_assignment(image: Image, replicas: tuple[int, ...], replication_factor: int | None) -> None:
    def refuse(why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {why}"
        )

    if not replicas:
        raise refuse("an empty replica list.")
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise refuse(f"broker {broker_id}, but no such broker is registered.")
        if replicas.count(broker_id) > 1:
            raise refuse(f"the broker {broker_id} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise refuse(
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s)."
        )


def _manual(image: Image, index: int, replicas: tuple[int, ...]) -> PartitionImage:
    isr = tuple(filter(image.is_active, replicas))
    if not isr:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced "
            "or in controlled shutdown.",
        )
    return new_partition(index, replicas, isr)


def _placed(image: Image, rules: Rules, topic: NewTopic) -> tuple[PartitionImage, ...]:
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
        return _place_new(image, rules, first=0, count=count, replication_factor=factor)
    except KafkaError as error:
        raise KafkaError(
            error.code, f"Unable to replicate the partition {factor} time(s): {error.message}"
        ) from None


def _place_new(
    image: Image, rules: Rules, *, first: int, count: int, replication_factor: int
) -> tuple[PartitionImage, ...]:
    start = rules.pick(max(1, len(image.brokers)))
    staying = [broker for broker in image.brokers.values() if not broker.stopping]
    placed = place(staying, partitions=count, replication_factor=replication_factor, start=start)
    return tuple(
        new_partition(first + at, replicas, tuple(filter(image.is_active, replicas)))
        for at, replicas in enumerate(placed)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRef:
    """A topic by name or by id: exactly one of them."""

    name: str | None = None
    id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    name: str | None
    id: UUID | None
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    topics: tuple[TopicRef, ...]

    def decide(self, image: Image, rules: Rules) -> Decision[list[DeleteResult]]:
        results: list[DeleteResult] = []
        records: list[Record] = []
        gone: set[UUID] = set()
        for ref, count in Counter(self.topics).items():
            try:
                topic = _referred(image, ref, count)
                if topic.id in gone:
                    raise KafkaError(
                        ErrorCode.invalid_request,
                        "The provided topic name maps to an ID that was already supplied.",
                    )
            except KafkaError as error:
                results.append(DeleteResult(name=ref.name, id=ref.id, error=error))
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

    def decide(self, image: Image, rules: Rules) -> Decision[list[tuple[str, KafkaError | None]]]:
        results: list[tuple[str, KafkaError | None]] = []
        records: list[Record] = []
        _check_size(len(self.topics))
        counts = Counter(topic.name for topic in self.topics)
        partitions = 0
        for topic in self.topics:
            if counts[topic.name] > 1:
                continue
            try:
                added = _add_partitions(image, rules, topic)
            except KafkaError as error:
                results.append((topic.name, error))
                continue
            partitions += len(added.partitions)
            _check_size(partitions)
            records.append(added)
            results.append((topic.name, None))
        for name, count in counts.items():
            if count > 1:
                results.append((name, KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")))
        return Decision(response=results, records=() if self.validate_only else tuple(records))


def _add_partitions(image: Image, rules: Rules, more: MorePartitions) -> PartitionsAdded:
    topic = image.topics.get(more.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
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
        partitions = _place_new(image, rules, first=first, count=added, replication_factor=factor)
    else:
        partitions = _assigned_more(image, more.assignments, first=first, count=added, factor=factor)
    return PartitionsAdded(topic_id=topic.id, first=first, partitions=partitions)


def _assigned_more(
    image: Image, assignments: tuple[tuple[int, ...], ...], *, first: int, count: int, factor: int
) -> tuple[PartitionImage, ...]:
    if len(assignments) != count:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {count} additional partition(s), but only {len(assignments)} assignment(s) "
            "were specified.",
        )
    for replicas in assignments:
        check_assignment(image, replicas, factor)
    return tuple(_manual(image, first + at, replicas) for at, replicas in enumerate(assignments))


# --- configurations ----------------------------------------------------------------------------------------

Resource = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOp:
    """One change of an incremental request, by Kafka's operation number."""

    name: str
    operation: int
    value: str | None


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_TABLES: Mapping[int, Mapping[str, settings.Definition]] = {
    ResourceType.TOPIC: settings.TOPIC,
    ResourceType.BROKER: settings.BROKER,
    ResourceType.GROUP: settings.GROUP,
}


def apply_ops(resource_type: int, current: Mapping[str, str], ops: Iterable[ConfigOp]) -> dict[str, str]:
    """The values of a resource after an incremental change."""
    values = dict(current)
    for op in ops:
        match op.operation:
            case Operation.SET:
                assert op.value is not None
                values[op.name] = op.value
            case Operation.DELETE:
                values.pop(op.name, None)
            case Operation.APPEND | Operation.SUBTRACT:
                values[op.name] = _spliced(resource_type, values, op)
            case _:
                raise KafkaError(ErrorCode.invalid_request, f"Unknown operations type {op.operation}")
    return values


def _spliced(resource_type: int, values: Mapping[str, str], op: ConfigOp) -> str:
    definition = _TABLES.get(resource_type, {}).get(op.name)
    if definition is None or definition.kind is not ConfigType.LIST:
        raise KafkaError(ErrorCode.invalid_config, _not_a_list(resource_type, op, definition))
    before = values.get(op.name, definition.default or "")
    parts = [part for part in before.split(",") if part]
    items = (op.value or "").split(",")
    if op.operation == Operation.APPEND:
        return ",".join(dict.fromkeys([*parts, *items]))
    gone = set(items)
    return ",".join(part for part in parts if part not in gone)


def _not_a_list(resource_type: int, op: ConfigOp, definition: settings.Definition | None) -> str:
    """In Kafka's words, which differ between its broker and its controller."""
    what = Operation(op.operation).name
    if resource_type != ResourceType.BROKER:
        return f"Can't {what} to key {op.name} because its type is not LIST."
    if definition is None:
        return f"Unknown config name: {op.name}"
    return f"Config value {what.lower()} is not allowed for config key: {op.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigs:
    changes: tuple[tuple[Resource, tuple[ConfigOp, ...]], ...]
    validate_only: bool = False

    def decide(self, image: Image, rules: Rules) -> Decision[dict[Resource, KafkaError | None]]:
        def target(
            resource: Resource, current: Mapping[str, str], ops: tuple[ConfigOp, ...]
        ) -> dict[str, str]:
            return apply_ops(resource[0], current, ops)

        return _alter(image, rules, self.changes, target, validate_only=self.validate_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """The older request: the given values are all a resource shall have."""

    resources: tuple[tuple[Resource, tuple[tuple[str, str], ...]], ...]
    validate_only: bool = False

    def decide(self, image: Image, rules: Rules) -> Decision[dict[Resource, KafkaError | None]]:
        def target(
            resource: Resource, current: Mapping[str, str], values: tuple[tuple[str, str], ...]
        ) -> dict[str, str]:
            return dict(values)

        return _alter(image, rules, self.resources, target, validate_only=self.validate_only)


def _alter(
    image: Image,
    rules: Rules,
    changes: Iterable[tuple[Resource, Any]],
    target: Callable[[Resource, Mapping[str, str], Any], dict[str, str]],
    *,
    validate_only: bool,
) -> Decision[dict[Resource, KafkaError | None]]:
    results: dict[Resource, KafkaError | None] = {}
    records: list[Record] = []
    for resource, change in changes:
        resource_type, name = resource
        try:
            current = image.config(_resource_type(resource_type), name)
            wanted = target(resource, current, change)
            _check_resource(image, rules, resource, wanted)
        except KafkaError as error:
            results[resource] = error
            continue
        results[resource] = None
        records += _config_records(resource, current, wanted)
    return Decision(response=results, records=() if validate_only else tuple(records))


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown resource type {number}") from None


def _config_records(
    resource: Resource, current: Mapping[str, str], wanted: Mapping[str, str]
) -> list[ConfigChanged]:
    return [
        ConfigChanged(resource_type=resource[0], resource_name=resource[1], name=name, value=wanted.get(name))
        for name in sorted({*current, *wanted})
        if current.get(name) != wanted.get(name)
    ]


def _check_resource(image: Image, rules: Rules, resource: Resource, wanted: Mapping[str, str]) -> None:
    resource_type, name = resource
    try:
        match resource_type:
            case ResourceType.TOPIC:
                if not name:
                    raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
                check_topic_name(name)
                settings.check_topic_configs(rules.config, wanted)
                if name not in image.topics:
                    raise KafkaError(
                        ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
                    )
            case ResourceType.BROKER:
                _check_broker(image, name)
            case ResourceType.GROUP:
                if not name:
                    raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
                settings.check_group_configs(rules.config, wanted)
            case _:
                raise KafkaError(ErrorCode.invalid_request, f"Unknown resource type {resource_type}")
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None


def _check_broker(image: Image, name: str) -> None:
    if not name:
        return
    try:
        broker_id = int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.invalid_request, "Unable to parse broker name as a base 10 number."
        ) from None
    if broker_id < 0:
        raise KafkaError(ErrorCode.invalid_request, "Invalid negative broker ID.")
    if broker_id not in image.brokers:
        raise KafkaError(ErrorCode.broker_id_not_registered, f"No node with id {broker_id} found.")
