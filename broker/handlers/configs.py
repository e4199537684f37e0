"""Requests about settings, in every version: of brokers, of the cluster's default, topics, groups and
loggers.

Owns: the shapes of these responses, what is checked before a change goes to the controller, log levels (they
are this process's own and are committed nowhere). Does not own: names, types and values (config/), rules
(control/config_changes.py). Invariant: each resource of a request is answered by itself, and no answer has a
secret in it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.config.describe import (
    ConfigRow,
    ConfigSource,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from broker.config.dynamic import check_broker_configs
from broker.config.tables import ALIASES
from broker.config.values import ConfigError, ConfigType, ResourceType
from broker.control.cluster import Cluster
from broker.control.commands import RECORDS_MAX_PER_COMMAND, ControllerCommand, too_large
from broker.control.config_changes import (
    AlterConfigs,
    ConfigOp,
    IncrementalAlterConfigs,
    Operation,
    Resource,
    apply_ops,
)
from broker.control.image import Image
from broker.control.topics import check_topic_name
from broker.decisions import Refusal, listed
from broker.handlers.results import ROWS_AT_ONCE, distinct, error_fields, rows
from protocol.apis import Api
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError, error_code
from protocol.messages import decode_response_in_turns, encode_request_in_turns
from protocol.primitives import Buffer, copied
from protocol.work import Work, in_order, let_go

if TYPE_CHECKING:
    from broker.handlers.dispatch import Context, Handler
    from protocol.requests.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
    from protocol.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
    from protocol.requests.incremental_alter_configs import AlterableConfig as IncrementalConfig
    from protocol.requests.incremental_alter_configs import AlterConfigsResource as IncrementalResource
    from protocol.requests.incremental_alter_configs import IncrementalAlterConfigsRequest
    from protocol.requests.list_config_resources import ListConfigResourcesRequest

    AlterRequest: TypeAlias = AlterConfigsRequest | IncrementalAlterConfigsRequest
    AlteredResource: TypeAlias = AlterConfigsResource | IncrementalResource

logger = logging.getLogger(__name__)

Outcomes: TypeAlias = dict[Resource, Refusal | None]

DESCRIBED_ROWS_MAX: Final = 300_000
"""The rows of some 8,000 topics; a request may repeat one broker."""
_TOO_MANY: Final = Refusal(ErrorCode.policy_violation, "Too many configurations in one request.")
RESOURCE_ROWS: Final = 10
"""What looking a resource up counts for, if less of it is described."""
ROWS_ALIKE_MAX: Final = 2_000

_ROOT_LOGGER: Final = "root"
_PACKAGES: Final = ("broker", "protocol", "remote", "storage", "tidewal", "tools")
_LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
_CHANGED_CHARS_MAX: Final = 8 << 20
"""Of the names and values in one request: Kafka's controller writes what one changes as one batch, which has
at most 8 MiB."""
_LEVEL_NAMES: Final = {number: name for name, number in _LEVELS.items()}
_LISTED: Final = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


class ConfigHandlers:
    def __init__(self, *, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> Mapping[int, Handler]:
        return {
            Api.DESCRIBE_CONFIGS: self.describe_configs,
            Api.ALTER_CONFIGS: self.alter_configs,
            Api.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            Api.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    def describe_configs(self, ctx: Context, request: DescribeConfigsRequest) -> Work[Fields]:
        """Kafka answers each repetition of a resource; here they share their rows."""
        known: dict[Resource, list[Fields]] = {}
        results = []
        room = DESCRIBED_ROWS_MAX
        for resource in request.resources:
            wanted = yield from distinct(resource.configuration_keys or ())
            result = _described(self._cluster, request, resource, wanted, known, has_room=room > 0)
            room -= max(RESOURCE_ROWS, len(result["configs"]))
            results.append(result)
            yield
        return {"throttle_time": 0, "results": results}

    async def incremental_alter_configs(
        self, ctx: Context, request: IncrementalAlterConfigsRequest
    ) -> Fields:
        outcomes: Outcomes = {}
        changes = await self._cluster.turns.run(self._checked_ops(ctx, request, outcomes))
        command = IncrementalAlterConfigs(changes=changes, validate_only=request.validate_only)
        return await self._altered(ctx, request, command if changes else None, outcomes)

    def _checked_ops(
        self, ctx: Context, request: IncrementalAlterConfigsRequest, outcomes: Outcomes
    ) -> Work[tuple[tuple[Resource, tuple[ConfigOp, ...]], ...]]:
        """Return what the controller is to decide; what is decided here goes into `outcomes`."""
        cluster = self._cluster
        _check_size(request.resources)
        changes: list[tuple[Resource, tuple[ConfigOp, ...]]] = []
        repeated = _repeated(request.resources)
        told: set[str] = set()
        for resource in request.resources:
            yield
            key = (resource.resource_type, resource.resource_name)
            ops = tuple((yield from rows(partial(_op, key, told), resource.configs)))
            try:
                _check_change(
                    key, repeated, [(op.name, op.value) for op in ops if op.operation != Operation.DELETE]
                )
                if len({op.name for op in ops}) != len(ops):
                    raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
                if key[0] == ResourceType.BROKER_LOGGER:
                    _alter_loggers(cluster, key[1], ops, validate_only=request.validate_only)
                    outcomes[key] = None
                    continue
                if key[0] == ResourceType.BROKER and not ctx.is_passed_on:
                    _check_broker_id(cluster, key[1])
                    current = cluster.image.config(ResourceType.BROKER, key[1])
                    _check_broker_change(cluster, key[1], apply_ops(key[0], current, ops))
            except KafkaError as error:
                outcomes[key] = Refusal.of(error)
                continue
            changes.append((key, ops))
        return tuple(changes)

    async def alter_configs(self, ctx: Context, request: AlterConfigsRequest) -> Fields:
        outcomes: Outcomes = {}
        resources = await self._cluster.turns.run(self._checked_values(ctx, request, outcomes))
        command = AlterConfigs(resources=resources, validate_only=request.validate_only)
        return await self._altered(ctx, request, command if resources else None, outcomes)

    def _checked_values(
        self, ctx: Context, request: AlterConfigsRequest, outcomes: Outcomes
    ) -> Work[tuple[tuple[Resource, tuple[tuple[str, str], ...]], ...]]:
        cluster = self._cluster
        _check_size(request.resources)
        resources: list[tuple[Resource, tuple[tuple[str, str], ...]]] = []
        repeated = _repeated(request.resources)
        told: set[str] = set()
        for resource in request.resources:
            yield
            key = (resource.resource_type, resource.resource_name)
            asked = yield from rows(partial(_named, key, told), resource.configs)
            values = tuple((name, value) for name, value in asked if value is not None)
            try:
                _check_change(key, repeated, asked)
                if len(dict(values)) != len(values):
                    raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
                if key[0] == ResourceType.BROKER_LOGGER:
                    raise KafkaError(ErrorCode.invalid_request, f"Unknown resource type {key[0]}")
                if key[0] == ResourceType.BROKER and not ctx.is_passed_on:
                    _check_broker_id(cluster, key[1])
                    _check_broker_change(cluster, key[1], dict(values))
            except KafkaError as error:
                outcomes[key] = Refusal.of(error)
                continue
            resources.append((key, values))
        return tuple(resources)

    async def _altered(
        self,
        ctx: Context,
        request: AlterRequest,
        command: ControllerCommand[Outcomes] | None,
        outcomes: Outcomes,
    ) -> Fields:
        """`outcomes` are those decided here; the controller decides the others."""
        cluster = self._cluster
        if command is None:
            decided: Outcomes = {}
        elif cluster.is_controller or ctx.is_passed_on:
            decided = await cluster.submit(command, timeout_ms=cluster.broker_config.request_timeout_ms)
        else:
            decided = await self._decided_elsewhere(ctx, request, outcomes)
        outcomes.update(decided)

        return {"throttle_time": 0, "responses": await cluster.turns.run(_responses(request, outcomes))}

    async def _decided_elsewhere(self, ctx: Context, request: AlterRequest, outcomes: Outcomes) -> Outcomes:
        """Ask the controller to decide what was not decided here."""
        kept: list[Any] = []
        frame = await self._cluster.turns.run(_passed_on(ctx, request, outcomes, kept))
        answer = await self._cluster.forwarding.ask(frame)
        return await self._cluster.turns.run(_decided(ctx, answer, kept))

    def list_config_resources(self, ctx: Context, request: ListConfigResourcesRequest) -> Work[Fields]:
        # version 0 was ListClientMetricsResources
        asked = (request.resource_types or _LISTED) if ctx.api_version else (ResourceType.CLIENT_METRICS,)
        unknown = [kind for kind in asked if kind not in _LISTED]
        if unknown:
            return {"throttle_time": 0, "error_code": ErrorCode.unsupported_version, "config_resources": []}
        image = self._cluster.image.kept()
        resources: list[Fields] = []
        for kind in dict.fromkeys(map(int, asked)):
            names = yield from _names(image, ctx.connection.listener, kind)
            resources += yield from rows(
                lambda name, kind=kind: {"resource_name": name, "resource_type": kind},  # type: ignore[misc]
                names,
            )
        return {"throttle_time": 0, "error_code": ErrorCode.none, "config_resources": resources}


def _passed_on(ctx: Context, request: AlterRequest, decided: Outcomes, kept: list[Any]) -> Work[bytes]:
    """Return the request, without its size, of what is not decided yet."""
    resources: list[Fields] = []
    for resource in request.resources:
        yield
        if (resource.resource_type, resource.resource_name) not in decided:
            resources.append(
                {
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                    "configs": [_config_fields(config) for config in resource.configs],
                }
            )
    fields: Fields = {"validate_only": request.validate_only, "resources": resources}
    pieces = yield from encode_request_in_turns(
        ctx.api_key, ctx.api_version, ctx.correlation_id, ctx.client_id, fields, kept
    )
    return (yield from copied(pieces))


def _decided(ctx: Context, answer: Buffer, kept: list[Any]) -> Work[Outcomes]:
    """Return the outcomes in the controller's answer, and let go of all that was packed or read."""
    _, response = yield from decode_response_in_turns(ctx.api_key, ctx.api_version, answer, kept)
    outcomes: Outcomes = {}
    for at, row in enumerate(response.responses, 1):
        outcomes[row.resource_type, row.resource_name] = (
            None
            if row.error_code == ErrorCode.none
            else Refusal(error_code(row.error_code), row.error_message)
        )
        if at % ROWS_AT_ONCE == 0:
            yield
    yield from let_go(kept)
    return outcomes


# --- DescribeConfigs ---


def _described(
    cluster: Cluster,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    wanted: Collection[str],
    known: dict[Resource, list[Fields]],
    *,
    has_room: bool,
) -> Fields:
    key = (resource.resource_type, resource.resource_name)
    named = {"resource_type": key[0], "resource_name": key[1]}
    if not has_room:
        return {**named, **error_fields(_TOO_MANY), "configs": ()}
    configs = known.get(key)
    if configs is None:
        try:
            found = _rows(cluster, *key)
        except KafkaError as error:
            return {**named, **error_fields(Refusal.of(error)), "configs": ()}
        synonyms, documented = request.include_synonyms, request.include_documentation
        configs = known[key] = [_row(row, synonyms, documented) for row in found]
    if wanted:
        configs = [row for row in configs if row["name"] in wanted]
    return {**named, "error_code": ErrorCode.none, "error_message": "", "configs": configs}


@lru_cache(maxsize=ROWS_ALIKE_MAX)
def _row(row: ConfigRow, synonyms: bool, documented: bool) -> Fields:
    return {
        "name": row.name,
        "value": row.value,
        "read_only": row.read_only,
        "config_source": row.source,
        "is_sensitive": row.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
            for synonym in (row.synonyms if synonyms else ())
        ],
        "config_type": row.kind,
        "documentation": row.documentation if documented else None,
    }


def _rows(cluster: Cluster, resource_type: int, name: str) -> list[ConfigRow]:
    image, config = cluster.image, cluster.broker_config
    match resource_type:
        case ResourceType.TOPIC:
            check_topic_name(name)
            if name not in image.topics:
                raise KafkaError(ErrorCode.unknown_topic_or_partition, "")
            return describe_topic(config, image.config(ResourceType.TOPIC, name))
        case ResourceType.BROKER:
            if not name:
                return describe_broker_defaults(config)
            _check_node(name, cluster.node_id, "expected {} or empty string, but received {}")
            return describe_broker(config)
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.invalid_request, "Broker id must not be empty")
            _check_node(name, cluster.node_id, "expected {} but received {}")
            return [_logger_row(logger) for logger in _loggers()]
        case ResourceType.CLIENT_METRICS:
            if not name:
                raise KafkaError(
                    ErrorCode.invalid_request, "Client metrics subscription name must not be empty"
                )
            return []
        case ResourceType.GROUP:
            if not name:
                raise KafkaError(ErrorCode.invalid_request, "Group name must not be empty")
            return describe_group(config, image.config(ResourceType.GROUP, name))
        case _:
            raise KafkaError(
                ErrorCode.invalid_request, f"Unexpected resource type {resource_type} for resource {name}"
            )


def _check_node(name: str, node_id: int, wording: str) -> None:
    try:
        int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}"
        ) from None
    if name != str(node_id):
        raise KafkaError(ErrorCode.invalid_request, f"Unexpected broker id, {wording.format(node_id, name)}")


# --- AlterConfigs ---


def _responses(request: AlterRequest, outcomes: Outcomes) -> Work[list[Fields]]:
    responses: list[Fields] = []
    resources: Iterable[AlteredResource] = request.resources
    for at, resource in enumerate(resources, 1):
        key = (resource.resource_type, resource.resource_name)
        responses.append({**error_fields(outcomes[key]), "resource_type": key[0], "resource_name": key[1]})
        if at % ROWS_AT_ONCE == 0:
            yield
    return responses


def _check_size(resources: Iterable[AlteredResource]) -> None:
    changes = chars = 0
    for resource in resources:
        changes += max(1, len(resource.configs))
        if changes > RECORDS_MAX_PER_COMMAND:
            raise too_large()
        configs: Iterable[AlterableConfig | IncrementalConfig] = resource.configs
        for config in configs:
            chars += len(config.name) + len(config.value or "")
        if chars > _CHANGED_CHARS_MAX:
            raise too_large()


def _repeated(resources: Iterable[AlteredResource]) -> set[Resource]:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return {key for key, count in counts.items() if count > 1}


def _check_change(key: Resource, repeated: set[Resource], values: Iterable[tuple[str, str | None]]) -> None:
    if key in repeated:
        raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
    if key[0] not in (
        ResourceType.TOPIC,
        ResourceType.BROKER,
        ResourceType.BROKER_LOGGER,
        ResourceType.GROUP,
    ):
        raise KafkaError(ErrorCode.invalid_request, f"Unknown resource type {key[0]}")
    missing = [name for name, value in values if value is None]
    if missing:
        raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {listed(missing, ', ')}")


def _check_broker_id(cluster: Cluster, name: str) -> None:
    """The empty name is every broker's."""
    if name:
        try:
            int(name)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}"
            ) from None
        # Under "+1" or "01" it would be kept and never found.
        if name != str(cluster.node_id):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Unexpected broker id, expected {cluster.node_id}, but received {name}",
            )


def _op(key: Resource, told: set[str], config: IncrementalConfig) -> ConfigOp:
    name = _known_name(key, config.name, told)
    return ConfigOp(name=name, operation=config.config_operation, value=config.value)


def _named(key: Resource, told: set[str], config: AlterableConfig) -> tuple[str, str | None]:
    return _known_name(key, config.name, told), config.value


def _known_name(key: Resource, name: str, told: set[str]) -> str:
    """Return the name under which a setting is kept, and tell who used another, unless it is in `told`."""
    known = ALIASES.get(name) if key[0] == ResourceType.BROKER else None
    if known is None:
        return name
    if name not in told:
        told.add(name)
        logger.warning("%s is the name that KIP-956 proposed; use %s", name, known)
    return known


def _check_broker_change(cluster: Cluster, name: str, wanted: Mapping[str, str]) -> None:
    """This broker says whether it could take the values: the controller knows only its own settings."""
    try:
        check_broker_configs(cluster.broker_config, wanted, per_broker=bool(name))
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from None


def _config_fields(config: AlterableConfig | IncrementalConfig) -> Fields:
    fields = {"name": config.name, "value": config.value}
    operation = getattr(config, "config_operation", None)
    return fields if operation is None else {**fields, "config_operation": operation}


# --- loggers ---


def _loggers() -> list[str]:
    known = logging.Logger.manager.loggerDict
    ours = [
        name
        for name, logger in known.items()
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in _PACKAGES
    ]
    return [_ROOT_LOGGER, *sorted(ours)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == _ROOT_LOGGER else logging.getLogger(name)


def _logger_row(name: str) -> ConfigRow:
    level = _logger(name).getEffectiveLevel()
    return ConfigRow(
        name=name,
        value=_LEVEL_NAMES.get(level, logging.getLevelName(level)),
        source=ConfigSource.DYNAMIC_BROKER_LOGGER,
        kind=ConfigType.UNKNOWN,
        read_only=False,
        sensitive=False,
        synonyms=(),
    )


def _alter_loggers(cluster: Cluster, name: str, ops: tuple[ConfigOp, ...], *, validate_only: bool) -> None:
    try:
        int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}"
        ) from None
    if name != str(cluster.node_id):
        raise KafkaError(
            ErrorCode.invalid_request, f"Unexpected node id. Expected {cluster.node_id}, but received {name}"
        )
    known = _loggers()
    for op in ops:
        _check_logger(op, known)
    if validate_only:
        return
    for op in ops:
        deleted = op.operation == Operation.DELETE
        _logger(op.name).setLevel(logging.NOTSET if deleted else _LEVELS[op.value or ""])


def _check_logger(op: ConfigOp, known: Iterable[str]) -> None:
    if op.operation not in (Operation.SET, Operation.DELETE):
        try:
            what = f"{Operation(op.operation).name} operation"
        except ValueError:
            what = f"Unknown operation type {op.operation}"
        raise KafkaError(ErrorCode.invalid_request, f"{what} is not allowed for the BROKER_LOGGER resource")
    if op.name not in known:
        raise KafkaError(ErrorCode.invalid_config, f"Logger {op.name} does not exist!")
    if op.operation == Operation.DELETE:
        if op.name == _ROOT_LOGGER:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Removing the log level of the {_ROOT_LOGGER} logger is not allowed",
            )
    elif op.value not in _LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {op.name} to {op.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(_LEVELS))}",
        )


# --- ListConfigResources ---


def _names(image: Image, listener: str, kind: int) -> Work[Iterable[str]]:
    match kind:
        case ResourceType.TOPIC:
            return (yield from in_order(image.topics))
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return [str(id_) for id_, broker in sorted(image.brokers.items()) if broker.endpoint(listener)]
        case ResourceType.GROUP:
            groups = yield from rows(
                lambda key: key[1] if key[0] is ResourceType.GROUP else None, image.configs
            )
            return (yield from in_order(name for name in groups if name is not None))
        case _:
            return ()
