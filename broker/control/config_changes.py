"""The commands by which configurations change, as Kafka decides them.

Owns: IncrementalAlterConfigs and AlterConfigs for topics, brokers and groups. Does not own: names, types and
values of settings (config/), what a broker checks of its own before (handlers/configs.py).

Invariant: a resource that is refused leaves no record, and refuses no other resource of the same request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from broker.config.groups import check_group_configs
from broker.config.tables import BROKER, GROUP, TOPIC, Definition
from broker.config.topics import check_topic_configs
from broker.config.values import ConfigError, ConfigType, ResourceType
from broker.control.commands import Rules
from broker.control.image import Image
from broker.control.internal_topics import is_of_the_brokers
from broker.control.metadata_records import ConfigChanged, Record
from broker.control.topics import check_cleanup, check_topic_name
from broker.decisions import Decision, Refusal
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

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


_TABLES: Mapping[int, Mapping[str, Definition]] = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.BROKER: BROKER,
    ResourceType.GROUP: GROUP,
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


def _not_a_list(resource_type: int, op: ConfigOp, definition: Definition | None) -> str:
    """Return the refusal in Kafka's words, which differ between its broker and its controller."""
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

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, dict[Resource, Refusal | None]]]:
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

    def decide(self, image: Image, rules: Rules) -> Work[Decision[Record, dict[Resource, Refusal | None]]]:
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
) -> Work[Decision[Record, dict[Resource, Refusal | None]]]:
    results: dict[Resource, Refusal | None] = {}
    records: list[Record] = []
    for resource, change in changes:
        yield
        resource_type, name = resource
        try:
            current = image.config(_resource_type(resource_type), name)
            wanted = target(resource, current, change)
            _check_resource(image, rules, resource, current, wanted)
        except KafkaError as error:
            results[resource] = Refusal.of(error)
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


def _check_resource(
    image: Image,
    rules: Rules,
    resource: Resource,
    current: Mapping[str, str],
    wanted: Mapping[str, str],
) -> None:
    resource_type, name = resource
    try:
        match resource_type:
            case ResourceType.TOPIC:
                if not name:
                    raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
                check_topic_name(name)
                is_internal = is_of_the_brokers(name)
                check_topic_configs(rules.config, wanted, before=current, is_internal=is_internal)
                check_cleanup(rules.config, name, wanted)
                if name not in image.topics:
                    raise KafkaError(
                        ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
                    )
            case ResourceType.BROKER:
                _check_broker(image, name)
            case ResourceType.GROUP:
                if not name:
                    raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
                check_group_configs(rules.config, wanted)
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
