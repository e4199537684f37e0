"""CreateTopics, DeleteTopics and CreatePartitions in every version, through the wire's encoding."""

from __future__ import annotations

from typing import Any

import pytest

from broker.control.cluster import Cluster
from broker.control.topics import NewTopic
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.handlers.cluster_client import (
    GONE,
    asked,
    run,
)
from tests.broker.requests import Client, versions


def new(name: str, **fields: Any) -> dict[str, Any]:
    plain = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    return {"name": name, **plain, **fields}


@pytest.mark.parametrize("version", versions(Api.CREATE_TOPICS))
def test_topics_are_created(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(
            Api.CREATE_TOPICS,
            version,
            topics=[
                new(
                    "t",
                    num_partitions=2,
                    replication_factor=1,
                    configs=[{"name": "retention.ms", "value": "5"}],
                ),
                new("no way"),
                new("assigned", assignments=[{"partition_index": 0, "broker_ids": [1]}]),
                new("factor", replication_factor=2),
            ],
            timeout=5000,
            validate_only=False,
        )
        made, refused, assigned, factor = answer.topics
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.none,
            ErrorCode.invalid_topic_exception,
            ErrorCode.none,
            ErrorCode.invalid_replication_factor,
        ]
        assert made.error_message is None
        assert refused.error_message
        assert set(member.image.topics) == {"t", "assigned"}
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (2, 1)
            assert (refused.num_partitions, refused.replication_factor, refused.configs) == (-1, -1, ())
            described = {config.name: config for config in made.configs}
            assert (described["retention.ms"].value, described["retention.ms"].config_source) == ("5", 1)
            assert (described["segment.bytes"].value, described["segment.bytes"].config_source) == (
                "1073741824",
                5,
            )
            assert made.topic_config_error_code == 0
        if version >= 7:
            assert made.topic_id == member.image.topics["t"].id
            assert refused.topic_id is None
        assert assigned.name == "assigned"
        assert factor.name == "factor"

    run(story)


@pytest.mark.parametrize("version", versions(Api.CREATE_TOPICS))
def test_a_creation_can_be_tried(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(
            Api.CREATE_TOPICS,
            version,
            topics=[new("t", num_partitions=3, replication_factor=1)],
            timeout=1,
            validate_only=True,
        )
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.none]
        assert member.image.topics == {}

    run(story)


@pytest.mark.parametrize("version", versions(Api.CREATE_TOPICS))
def test_an_error_that_quotes_a_long_name_fits_its_response(version: int) -> None:
    name = "x" * 32_767

    async def story(client: Client, member: Cluster) -> None:
        configs = [{"name": "retention.ms", "value": name}]
        topics = [
            new(name, num_partitions=1, replication_factor=1),
            new("t", num_partitions=1, replication_factor=1, configs=configs),
        ]
        answer = await client.ask(
            Api.CREATE_TOPICS, version, topics=topics, timeout=5000, validate_only=False
        )
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            name: ErrorCode.invalid_topic_exception,
            "t": ErrorCode.invalid_config,
        }

    run(story)


@pytest.mark.parametrize("timeout_ms", [300, 0, -1])
@pytest.mark.parametrize("version", versions(Api.CREATE_TOPICS))
def test_a_creation_that_takes_too_long_says_so(version: int, timeout_ms: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(
            Api.CREATE_TOPICS,
            version,
            topics=[new("t", num_partitions=1, replication_factor=1)],
            timeout=timeout_ms,
            validate_only=False,
        )
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.request_timed_out]

    run(story, down=True)


@pytest.mark.parametrize("version", versions(Api.DELETE_TOPICS))
def test_topics_are_deleted_by_name(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t"), NewTopic(name="u")])
        names = ["t", "nowhere"]
        fields = {"topic_names": names} if version < 6 else {"topics": asked(version, *names)}
        answer = await client.ask(Api.DELETE_TOPICS, version, timeout=5000, **fields)
        assert [(result.name, result.error_code) for result in answer.responses] == [
            ("t", ErrorCode.none),
            ("nowhere", ErrorCode.unknown_topic_or_partition),
        ]
        assert set(member.image.topics) == {"u"}

    run(story)


def test_topics_are_deleted_by_id() -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t")])
        topic_id = member.image.topics["t"].id
        answer = await client.ask(
            Api.DELETE_TOPICS,
            6,
            timeout=5000,
            topics=[
                {"name": None, "topic_id": topic_id},
                {"name": None, "topic_id": GONE},
                {"name": "t", "topic_id": topic_id},
                {"name": None, "topic_id": None},
            ],
        )
        assert [(r.name, r.topic_id, r.error_code) for r in answer.responses] == [
            ("t", topic_id, ErrorCode.none),
            (None, GONE, ErrorCode.unknown_topic_id),
            ("t", topic_id, ErrorCode.invalid_request),
            (None, None, ErrorCode.invalid_request),
        ]
        assert member.image.topics == {}

    run(story)


@pytest.mark.parametrize("version", versions(Api.DELETE_TOPICS))
def test_deletion_can_be_switched_off(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t")])
        fields = {"topic_names": ["t"]} if version < 6 else {"topics": asked(version, "t")}
        answer = await client.ask(Api.DELETE_TOPICS, version, timeout=5000, **fields)
        expected = ErrorCode.invalid_request if version < 3 else ErrorCode.topic_deletion_disabled
        assert [result.error_code for result in answer.responses] == [expected]
        assert set(member.image.topics) == {"t"}

    run(story, delete_topic_enable="false")


@pytest.mark.parametrize("version", versions(Api.CREATE_PARTITIONS))
@pytest.mark.parametrize("validate_only", [True, False])
def test_partitions_are_created(version: int, validate_only: bool) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t"), NewTopic(name="u")])
        answer = await client.ask(
            Api.CREATE_PARTITIONS,
            version,
            topics=[
                {"name": "t", "count": 3, "assignments": None},
                {"name": "u", "count": 2, "assignments": [{"broker_ids": [1]}]},
                {"name": "nowhere", "count": 2, "assignments": None},
            ],
            timeout=5000,
            validate_only=validate_only,
        )
        assert [(result.name, result.error_code) for result in answer.results] == [
            ("t", ErrorCode.none),
            ("u", ErrorCode.none),
            ("nowhere", ErrorCode.unknown_topic_or_partition),
        ]
        counts = [len(member.image.topics[name].partitions) for name in ("t", "u")]
        assert counts == ([1, 1] if validate_only else [3, 2])

    run(story)
