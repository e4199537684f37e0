"""Topics that ask for what the cold tier cannot do, through each request that sets configurations."""

from __future__ import annotations

import logging

import pytest

from broker.config.values import ResourceType
from broker.control.cluster import Cluster
from broker.control.topics import NewTopic
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.handlers.cluster_client import run
from tests.broker.requests import Client

SET, DELETE = 0, 1
TOPIC, BROKER = 2, 4
ON = {"remote.storage.enable": "true"}
Values = dict[str, str]
Answer = tuple[ErrorCode, str | None]


async def create(client: Client, name: str, values: Values) -> Answer:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in values.items()],
    }
    answer = await client.ask(Api.CREATE_TOPICS, 7, topics=[topic], timeout=5000, validate_only=False)
    return answer.topics[0].error_code, answer.topics[0].error_message


async def alter(client: Client, name: str, values: Values) -> Answer:
    """All that the topic shall have."""
    configs = [{"name": key, "value": value} for key, value in values.items()]
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
    answer = await client.ask(Api.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def change(client: Client, name: str, values: dict[str, str | None], kind: int = TOPIC) -> Answer:
    configs = [
        {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    return answer.responses[0].error_code, answer.responses[0].error_message


IMPOSSIBLE = [
    ({"cleanup.policy": "compact"}, "Remote log storage only supports topics with cleanup.policy=delete"),
    ({"local.retention.ms": "999999999999"}, "local.retention.ms: Value must not be more than retention.ms"),
    ({"local.retention.bytes": "-1", "retention.bytes": "9"}, "local.retention.bytes: Value must not be -1"),
    ({"remote.log.copy.disable": "true", "local.retention.ms": "1"}, "When `remote.log.copy.disable` is set"),
    ({"remote.copy.lag.ms": "604800001"}, "remote.copy.lag.ms: Value must not exceed local.retention.ms"),
    ({"remote.copy.lag.bytes": "9", "local.retention.bytes": "8"}, "remote.copy.lag.bytes: Value must not"),
    ({"remote.log.pressure.policy": "panic"}, "remote.log.pressure.policy: String must be one of: keep"),
]


@pytest.mark.requirement("1241-09", "X-5")
@pytest.mark.parametrize(("values", "why"), IMPOSSIBLE)
def test_what_no_tiered_topic_may_have(values: Values, why: str) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t", configs=tuple(ON.items()))])
        before = dict(member.image.config(ResourceType.TOPIC, "t"))
        for code, message in (
            await create(client, "u", ON | values),
            await alter(client, "t", ON | values),
            await change(client, "t", dict(values)),
        ):
            assert code is ErrorCode.invalid_config
            assert message is not None
            assert why in message
        assert "u" not in member.image.topics
        assert member.image.config(ResourceType.TOPIC, "t") == before

    run(story)


def test_tiering_is_for_topics_that_are_not_internal() -> None:
    async def story(client: Client, member: Cluster) -> None:
        name = "__transaction_state"
        assert (await create(client, name, ON))[0] is ErrorCode.invalid_config
        assert await create(client, name, {}) == (ErrorCode.none, None)
        assert (await alter(client, name, ON))[0] is ErrorCode.invalid_config
        assert (await change(client, name, dict(ON)))[0] is ErrorCode.invalid_config
        assert member.image.config(ResourceType.TOPIC, name) == {}

    run(story)


def test_tiering_needs_the_system_to_be_on() -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t")])
        for code, message in (
            await create(client, "u", ON),
            await alter(client, "t", ON),
            await change(client, "t", dict(ON)),
        ):
            assert (code, message) == (
                ErrorCode.invalid_config,
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage.",
            )

    run(story, remote_log_storage_system_enable="false")


def test_tiering_ends_only_together_with_what_was_tiered() -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t", configs=tuple(ON.items()))])
        for code, message in (
            await alter(client, "t", {"retention.ms": "1"}),
            await alter(client, "t", {"remote.storage.enable": "false"}),
            await change(client, "t", {"remote.storage.enable": None}),
            await change(client, "t", {"remote.storage.enable": "false"}),
        ):
            assert code is ErrorCode.invalid_config
            assert message is not None
            assert message.startswith("It is invalid to disable remote storage without deleting remote data.")
        ended = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        assert await change(client, "t", dict(ended)) == (ErrorCode.none, None)
        assert not member.log_config("t").remote_storage_enable
        assert await change(client, "t", {"remote.log.delete.on.disable": None}) == (ErrorCode.none, None)

    run(story)


@pytest.mark.requirement("1241-18")
def test_a_lag_in_vain_is_told_when_it_is_set(caplog: pytest.LogCaptureFixture) -> None:
    async def story(client: Client, member: Cluster) -> None:
        assert (await create(client, "plain", {"remote.copy.lag.bytes": "5"}))[0] is ErrorCode.none
        assert "no effect" not in caplog.text
        assert (await create(client, "t", ON | {"remote.copy.lag.bytes": "5"}))[0] is ErrorCode.none
        assert "topic t: remote.copy.lag.bytes=5 has no effect while remote.copy.lag.ms is 0" in caplog.text
        caplog.clear()
        assert (await change(client, "t", {"remote.copy.lag.ms": "-1"}))[0] is ErrorCode.none
        assert "no effect" not in caplog.text
        assert (await change(client, "", {"log.remote.copy.lag.bytes": "6"}, BROKER))[0] is ErrorCode.none
        assert "log.remote.copy.lag.bytes=6 has no effect" in caplog.text
        caplog.clear()
        assert (await change(client, "", {"log.retention.ms": "6"}, BROKER))[0] is ErrorCode.none
        assert "no effect" not in caplog.text

    caplog.set_level(logging.WARNING)
    run(story)


@pytest.mark.requirement("956-01", "956-04", "956-06")
def test_quotas_are_changed_by_the_names_of_the_proposal_too(caplog: pytest.LogCaptureFixture) -> None:
    async def story(client: Client, member: Cluster) -> None:
        given: dict[str, str | None] = {
            "remote.log.manager.write.quota.default": "100",
            "remote.log.manager.read.quota.default": "200",
        }
        assert await change(client, "", given, BROKER) == (ErrorCode.none, None)
        assert member.broker_config.remote_log_manager_copy_max_bytes_per_second == 100
        assert member.broker_config.remote_log_manager_fetch_max_bytes_per_second == 200
        assert member.image.config(ResourceType.BROKER, "").keys() == {
            "remote.log.manager.copy.max.bytes.per.second",
            "remote.log.manager.fetch.max.bytes.per.second",
        }
        assert "use remote.log.manager.copy.max.bytes.per.second" in caplog.text
        gone = await change(client, "", {"remote.log.manager.write.quota.default": None}, BROKER)
        assert gone == (ErrorCode.none, None)
        assert member.broker_config.remote_log_manager_copy_max_bytes_per_second == 2**63 - 1
        fixed = await change(client, "", {"remote.log.manager.write.quota.window.num": "5"}, BROKER)
        assert fixed[0] is ErrorCode.invalid_request
        both = {**given, "remote.log.manager.copy.max.bytes.per.second": "7"}
        assert (await change(client, "", both, BROKER))[0] is ErrorCode.invalid_request

    caplog.set_level(logging.WARNING)
    run(story)
