"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: each in every version."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.config.tables import ALIASES
from broker.config.values import ConfigType, ResourceType
from broker.control.cluster import Cluster
from broker.control.topics import NewTopic
from broker.handlers.configs import ConfigHandlers
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.messages import decode_request, encode_response
from protocol.wire import parse_head
from storage import cleaner
from tests.broker.control.cluster_driver import Site
from tests.broker.handlers.cluster_client import Story
from tests.broker.handlers.test_answers_in_turns import Counted
from tests.broker.requests import Client, versions

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def run(story: Story, **properties: str) -> None:
    site = Site()

    async def whole() -> None:
        member = await site.started(ports={"PLAINTEXT": 9092}, **properties)
        await member.create_topics([NewTopic(name="t", configs=(("retention.ms", "5"),))])
        await story(Client(ConfigHandlers(cluster=member).routes()), member)

    site.run(whole())


async def describe(client: Client, kind: int, name: str, version: int = 4, **fields: Any) -> Any:
    keys = fields.pop("keys", None)
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = await client.ask(Api.DESCRIBE_CONFIGS, version, resources=[resource], **fields)
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def incremental(
    client: Client, kind: int, name: str, *ops: tuple[str, int, str | None], validate_only: bool = False
) -> Any:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await client.ask(
        Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only
    )
    (result,) = answer.responses
    return result


# --- DescribeConfigs ---


def test_a_request_describes_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.handlers.configs.DESCRIBED_ROWS_MAX", 500)
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}

    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(Api.DESCRIBE_CONFIGS, 4, resources=[resource] * 1_000)
        codes = [result.error_code for result in answer.results]
        described = codes.count(ErrorCode.none)
        assert 1 < described < 10
        assert codes[described:] == [ErrorCode.policy_violation] * (1_000 - described)

    run(story)


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_CONFIGS))
def test_a_topic_is_described(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        result = await describe(client, TOPIC, "t", version, include_synonyms=True)
        assert result.error_code is ErrorCode.none
        rows = {row.name: row for row in result.configs}
        assert set(_names("topic")) <= set(rows)
        own = rows["retention.ms"]
        assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("5", 1, False, False)
        assert [(s.name, s.value, s.source) for s in own.synonyms] == [("retention.ms", "5", 1)]
        inherited = rows["segment.bytes"]
        assert (inherited.value, inherited.config_source) == ("2000000", 4)
        assert [(s.name, s.value, s.source) for s in inherited.synonyms] == [
            ("log.segment.bytes", "2000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
        if version >= 3:
            assert own.config_type == ConfigType.LONG

    run(story, log_segment_bytes="2000000")


def _names(table: str) -> list[str]:
    text = (Path(broker.__file__).parent / "config" / "data" / f"{table}-configs.tsv").read_text()
    return [line.split("\t")[0] for line in text.splitlines()[1:]]


def test_only_what_is_asked_is_described() -> None:
    async def story(client: Client, member: Cluster) -> None:
        result = await describe(client, TOPIC, "t", keys=["retention.ms", "nonsense"])
        assert [row.name for row in result.configs] == ["retention.ms"]
        assert result.configs[0].synonyms == ()
        assert len((await describe(client, TOPIC, "t", keys=[])).configs) > 30

    run(story)


def test_documentation_comes_when_asked() -> None:
    async def story(client: Client, member: Cluster) -> None:
        for wanted in (True, False):
            result = await describe(
                client, BROKER, "1", keys=["log.flush.single.replica"], include_documentation=wanted
            )
            assert bool(result.configs[0].documentation) is wanted

    run(story)


def test_a_broker_is_described_with_secrets_left_out() -> None:
    async def story(client: Client, member: Cluster) -> None:
        result = await describe(client, BROKER, "1", include_synonyms=True)
        rows = {row.name: row for row in result.configs}
        assert set(_names("broker")) <= set(rows)
        assert (rows["node.id"].value, rows["node.id"].read_only, rows["node.id"].config_source) == (
            "1",
            True,
            4,
        )
        secret = rows["ssl.key.password"]
        assert (secret.value, secret.is_sensitive, secret.config_source) == (None, True, 4)
        assert [synonym.value for synonym in secret.synonyms] == [None]

    run(story, ssl_key_password="hidden")


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (TOPIC, "nowhere", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "no way", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "x", ErrorCode.invalid_request),
        (LOGGER, "", ErrorCode.invalid_request),
        (LOGGER, "2", ErrorCode.invalid_request),
        (METRICS, "", ErrorCode.invalid_request),
        (METRICS, "m", ErrorCode.none),
        (GROUP, "", ErrorCode.invalid_request),
        (99, "x", ErrorCode.invalid_request),
    ],
)
def test_what_cannot_be_described(kind: int, name: str, expected: ErrorCode) -> None:
    async def story(client: Client, member: Cluster) -> None:
        result = await describe(client, kind, name)
        assert result.error_code is expected
        assert result.configs == ()

    run(story)


def test_a_group_is_described() -> None:
    async def story(client: Client, member: Cluster) -> None:
        await incremental(client, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
        result = await describe(client, GROUP, "g", include_synonyms=True)
        rows = {row.name: row for row in result.configs}
        assert set(rows) == set(_names("group"))
        own = rows["consumer.session.timeout.ms"]
        assert (own.value, own.config_source) == ("50000", 8)
        assert [(s.name, s.source) for s in own.synonyms] == [
            ("consumer.session.timeout.ms", 8),
            ("group.consumer.session.timeout.ms", 5),
        ]

    run(story)


def test_the_default_of_all_brokers_is_what_was_set_there() -> None:
    async def story(client: Client, member: Cluster) -> None:
        assert (await describe(client, BROKER, "")).configs == ()
        result = await incremental(client, BROKER, "", ("log.retention.ms", SET, "7"))
        assert result.error_code is ErrorCode.none
        (row,) = (await describe(client, BROKER, "")).configs
        assert (row.name, row.value, row.config_source) == ("log.retention.ms", "7", 3)
        (row,) = (await describe(client, BROKER, "1", keys=["log.retention.ms"])).configs
        assert (row.value, row.config_source) == ("7", 3)

    run(story)


# --- IncrementalAlterConfigs ---


@pytest.mark.parametrize("version", versions(Api.INCREMENTAL_ALTER_CONFIGS))
def test_changes_of_several_resources_are_answered_in_order(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        resources = [
            _resource(TOPIC, "t", ("cleanup.policy", APPEND, "compact")),
            _resource(TOPIC, "nowhere", ("retention.ms", SET, "1")),
            _resource(BROKER, "1", ("message.max.bytes", SET, "9999")),
            _resource(99, "x", ("a", SET, "1")),
        ]
        answer = await client.ask(
            Api.INCREMENTAL_ALTER_CONFIGS, version, resources=resources, validate_only=False
        )
        assert [(r.resource_type, r.resource_name, r.error_code) for r in answer.responses] == [
            (TOPIC, "t", ErrorCode.none),
            (TOPIC, "nowhere", ErrorCode.unknown_topic_or_partition),
            (BROKER, "1", ErrorCode.none),
            (99, "x", ErrorCode.invalid_request),
        ]
        assert member.log_config("t").cleanup_policy == ("delete", "compact")
        assert member.broker_config.message_max_bytes == 9999

    run(story)


def _resource(kind: int, name: str, *ops: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


@pytest.mark.parametrize(
    ("kind", "name", "ops", "expected"),
    [
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.invalid_request),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.invalid_request),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], ErrorCode.invalid_config),
        (TOPIC, "t", [("retention.ms", 7, "1")], ErrorCode.invalid_request),
        (TOPIC, "t", [("nonsense", SET, "1")], ErrorCode.invalid_config),
        (TOPIC, "t", [("retention.ms", SET, "1" * 5_000)], ErrorCode.invalid_config),
        (BROKER, "1", [("message.max.bytes", SET, "1" * 5_000)], ErrorCode.invalid_request),
        (BROKER, "1", [("num.partitions", SET, "1")], ErrorCode.invalid_request),
        (BROKER, "1", [("message.max.bytes", SET, "-1")], ErrorCode.invalid_request),
        (BROKER, "2", [("message.max.bytes", SET, "1")], ErrorCode.invalid_request),
        (BROKER, "x", [("message.max.bytes", SET, "1")], ErrorCode.invalid_request),
        (BROKER, "+1", [("message.max.bytes", SET, "1")], ErrorCode.invalid_request),
        (TOPIC, "t", [(f"a{at}", SET, "1") for at in range(10_001)], ErrorCode.policy_violation),
        (BROKER, "1", [(f"a{at}", SET, "x" * 30_000) for at in range(300)], ErrorCode.policy_violation),
        (BROKER, "1", [("message.max.bytes", APPEND, "1")], ErrorCode.invalid_config),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], ErrorCode.invalid_config),
        (METRICS, "m", [("interval.ms", SET, "1")], ErrorCode.invalid_request),
    ],
)
def test_changes_that_are_refused(
    kind: int, name: str, ops: list[tuple[str, int, str | None]], expected: ErrorCode
) -> None:
    async def story(client: Client, member: Cluster) -> None:
        before = dict(member.image.configs)
        result = await incremental(client, kind, name, *ops)
        assert result.error_code is expected
        assert result.error_message
        assert member.image.configs == before

    run(story)


def test_a_value_grows_to_what_every_response_can_describe() -> None:
    async def story(client: Client, member: Cluster) -> None:
        key = "leader.replication.throttled.replicas"
        first = ",".join(f"{n}:1" for n in range(3_000))
        assert (await incremental(client, TOPIC, "t", (key, SET, first))).error_code is ErrorCode.none
        second = ",".join(f"{n}:2" for n in range(3_000))
        result = await incremental(client, TOPIC, "t", (key, APPEND, second))
        assert result.error_code is ErrorCode.invalid_config
        assert "longer" in result.error_message
        assert member.image.config(ResourceType.TOPIC, "t")[key] == first

    run(story)


def test_a_resource_appears_once_in_a_request() -> None:
    async def story(client: Client, member: Cluster) -> None:
        resource = _resource(TOPIC, "t", ("retention.ms", SET, "1"))
        answer = await client.ask(
            Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource, resource], validate_only=False
        )
        assert [result.error_code for result in answer.responses] == [ErrorCode.invalid_request] * 2
        assert member.image.config(ResourceType.TOPIC, "t") == {"retention.ms": "5"}

    run(story)


def test_changes_can_be_tried() -> None:
    async def story(client: Client, member: Cluster) -> None:
        for kind, name, key in ((TOPIC, "t", "retention.ms"), (BROKER, "1", "message.max.bytes")):
            good = await incremental(client, kind, name, (key, SET, "77"), validate_only=True)
            bad = await incremental(client, kind, name, (key, SET, "x"), validate_only=True)
            assert good.error_code is ErrorCode.none
            assert bad.error_code is not ErrorCode.none
        assert member.image.configs == {(ResourceType.TOPIC, "t"): {"retention.ms": "5"}}

    run(story)


def test_a_removed_setting_is_the_brokers_again() -> None:
    async def story(client: Client, member: Cluster) -> None:
        result = await incremental(client, TOPIC, "t", ("retention.ms", DELETE, None))
        assert result.error_code is ErrorCode.none
        assert member.log_config("t").retention_ms == 604_800_000

    run(story)


# --- AlterConfigs ---


@pytest.mark.parametrize("version", versions(Api.ALTER_CONFIGS))
def test_the_older_request_sets_all_of_a_resource(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        resources = [
            {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value}]}
            for kind, name, key, value in (
                (TOPIC, "t", "segment.ms", "9"),
                (TOPIC, "nowhere", "segment.ms", "9"),
                (BROKER, "1", "message.max.bytes", "9999"),
                (LOGGER, "1", "root", "INFO"),
                (GROUP, "g", "consumer.session.timeout.ms", None),
            )
        ]
        answer = await client.ask(Api.ALTER_CONFIGS, version, resources=resources, validate_only=False)
        assert [result.error_code for result in answer.responses] == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.none,
            ErrorCode.invalid_request,
            ErrorCode.invalid_request,
        ]
        assert member.image.config(ResourceType.TOPIC, "t") == {"segment.ms": "9"}
        assert member.broker_config.message_max_bytes == 9999

    run(story)


def test_what_the_controller_decides_is_passed_on_in_turns() -> None:
    count = 400

    async def story(client: Client, member: Cluster) -> None:
        async def ask(frame: bytes) -> bytes:
            head = parse_head(frame)
            request = decode_request(head.api_key, head.api_version, memoryview(frame)[head.body_at :])
            passed.extend(resource.resource_name for resource in request.resources)
            rows = [
                {
                    "error_code": 3 if at % 2 else 0,
                    "error_message": "it is not there" if at % 2 else None,
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                }
                for at, resource in enumerate(request.resources)
            ]
            response = {"throttle_time": 0, "responses": rows}
            return encode_response(head.api_key, head.api_version, head.correlation_id, response)[4:]

        passed: list[str] = []
        member.forwarding.ask = ask
        member.is_controller = False
        member.turns = counted = Counted()
        configs = [{"name": "segment.ms", "value": "9", "config_operation": SET}]
        names = [f"t{at}" for at in range(count)]
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configs": configs}
            for name in (*names, "?not a broker")
        ]
        resources[-1] = resources[-1] | {"resource_type": BROKER}
        for api, version in ((Api.ALTER_CONFIGS, 2), (Api.INCREMENTAL_ALTER_CONFIGS, 1)):
            passed.clear()
            counted.pieces = 0
            answer = await client.ask(api, version, resources=resources, validate_only=False)
            assert passed == names, "what is refused here is not passed on"
            codes = [row.error_code for row in answer.responses]
            unknown, fine = ErrorCode.unknown_topic_or_partition, ErrorCode.none
            assert codes == [fine, unknown] * (count // 2) + [ErrorCode.invalid_request]
            assert counted.pieces > 2 * count, "it is checked and packed in steps"
        member.is_controller = True

    run(story)


def test_another_name_is_told_once_in_a_request(caplog: pytest.LogCaptureFixture) -> None:
    async def story(client: Client, member: Cluster) -> None:
        alias, known = next(iter(ALIASES.items()))
        row = {"name": alias, "value": "9"}
        resources = [
            {"resource_type": BROKER, "resource_name": name, "configs": [row] * count}
            for name, count in (("", 1), ("1", 100))
        ]
        await client.ask(Api.ALTER_CONFIGS, 2, resources=resources, validate_only=False)
        assert caplog.messages.count(f"{alias} is the name that KIP-956 proposed; use {known}") == 1

    run(story)


# --- loggers ---


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("broker.levels_in_tests")
    yield found
    found.setLevel(logging.NOTSET)


def test_log_levels_are_changed_here_and_now(logger: logging.Logger) -> None:
    async def story(client: Client, member: Cluster) -> None:
        slots = member.image.seq
        result = await incremental(client, LOGGER, "1", (logger.name, SET, "DEBUG"))
        assert result.error_code is ErrorCode.none
        assert logger.level == logging.DEBUG
        rows = {row.name: row for row in (await describe(client, LOGGER, "1")).configs}
        assert (rows[logger.name].value, rows[logger.name].config_source) == ("DEBUG", 6)
        assert "root" in rows
        tried = await incremental(client, LOGGER, "1", (logger.name, SET, "ERROR"), validate_only=True)
        assert (tried.error_code, logger.level) == (ErrorCode.none, logging.DEBUG)
        await incremental(client, LOGGER, "1", (logger.name, DELETE, None))
        assert logger.level == logging.NOTSET
        assert member.image.seq == slots

    run(story)


def test_every_logger_of_ours_is_there_to_be_changed() -> None:
    async def story(client: Client, member: Cluster) -> None:
        known = {row.name for row in (await describe(client, LOGGER, "1")).configs}
        assert {cleaner.logger.name, "broker.control.cluster", "broker.control.metadata_log", "root"} <= known

    run(story)


@pytest.mark.parametrize(
    ("broker_id", "name", "op", "value", "expected"),
    [
        ("1", "broker.levels_in_tests", SET, "LOUD", ErrorCode.invalid_config),
        ("1", "no.such.logger", SET, "INFO", ErrorCode.invalid_config),
        ("1", "root", DELETE, None, ErrorCode.invalid_request),
        ("1", "broker.levels_in_tests", APPEND, "INFO", ErrorCode.invalid_request),
        ("1", "broker.levels_in_tests", 9, "INFO", ErrorCode.invalid_request),
        ("2", "broker.levels_in_tests", SET, "INFO", ErrorCode.invalid_request),
        ("x", "broker.levels_in_tests", SET, "INFO", ErrorCode.invalid_request),
    ],
)
@pytest.mark.usefixtures("logger")
def test_levels_that_cannot_be(
    broker_id: str, name: str, op: int, value: str | None, expected: ErrorCode
) -> None:
    async def story(client: Client, member: Cluster) -> None:
        result = await incremental(client, LOGGER, broker_id, (name, op, value))
        assert result.error_code is expected

    run(story)


# --- ListConfigResources ---


def test_what_has_settings_is_listed() -> None:
    async def story(client: Client, member: Cluster) -> None:
        await incremental(client, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
        answer = await client.ask(Api.LIST_CONFIG_RESOURCES, 1, resource_types=[])
        assert answer.error_code is ErrorCode.none
        assert [(r.resource_type, r.resource_name) for r in answer.config_resources] == [
            (TOPIC, "t"),
            (BROKER, "1"),
            (LOGGER, "1"),
            (GROUP, "g"),
        ]
        groups = await client.ask(Api.LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP])
        assert [r.resource_name for r in groups.config_resources] == ["g"]
        unknown = await client.ask(Api.LIST_CONFIG_RESOURCES, 1, resource_types=[77])
        assert unknown.error_code is ErrorCode.unsupported_version
        metrics = await client.ask(Api.LIST_CONFIG_RESOURCES, 0)
        assert (metrics.error_code, metrics.config_resources) == (ErrorCode.none, ())

    run(story)
