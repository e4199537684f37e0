"""Metadata, DescribeTopicPartitions and DescribeCluster in every version, through the wire's encoding."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.config.values import ResourceType
from broker.control.brokers import ControlledShutdown
from broker.control.cluster import Cluster
from broker.control.metadata_records import BrokerFenced, PartitionChanged
from broker.control.topics import NewTopic
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.handlers import known_brokers
from tests.broker.handlers.cluster_client import (
    CLUSTER_OPERATIONS,
    GONE,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    add_brokers,
    asked,
    run,
)
from tests.broker.requests import Client, versions

# --- Metadata ---


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_metadata_by_name(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t", partitions=3)])
        answer = await client.ask(
            Api.METADATA,
            version,
            topics=asked(version, "t", "nowhere", "no way", "t"),
            allow_auto_topic_creation=False,
        )
        found, nowhere, impossible = answer.topics
        assert (found.error_code, found.name, len(found.partitions)) == (ErrorCode.none, "t", 3)
        assert (nowhere.error_code, nowhere.name) == (ErrorCode.unknown_topic_or_partition, "nowhere")
        assert (impossible.error_code, impossible.name) == (ErrorCode.invalid_topic_exception, "no way")
        assert nowhere.partitions == impossible.partitions == ()
        for at, partition in enumerate(found.partitions):
            assert (partition.error_code, partition.partition_index) == (ErrorCode.none, at)
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))
            if version >= 5:
                assert partition.offline_replicas == ()
            if version >= 7:
                assert partition.leader_epoch == 0
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "this-host", 9092)
        if version >= 1:
            assert answer.controller_id == 1
            assert not found.is_internal
        if version >= 2:
            assert answer.cluster_id == member.image.cluster_id
        if version >= 10:
            assert found.topic_id == member.image.topics["t"].id
            assert nowhere.topic_id is None
        if version >= 8:
            assert found.topic_authorized_operations == NOT_ASKED

    run(story, auto_create_topics_enable="false" if version < 4 else "true")


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_all_topics_and_none(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="a"), NewTopic(name="b")])
        await member.ensure_internal("__consumer_offsets")
        everything = await client.ask(Api.METADATA, version, topics=None if version else [])
        assert [topic.name for topic in everything.topics] == ["a", "b", "__consumer_offsets"]
        if version >= 1:
            assert [topic.is_internal for topic in everything.topics] == [False, False, True]
            nothing = await client.ask(Api.METADATA, version, topics=[])
            assert nothing.topics == ()
            assert len(nothing.brokers) == 1

    run(story)


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_id(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t")])
        topic_id = member.image.topics["t"].id
        answer = await client.ask(
            Api.METADATA,
            version,
            topics=[
                {"name": None, "topic_id": GONE},
                {"name": None, "topic_id": topic_id},
                {"name": "by-name", "topic_id": None},
            ],
        )
        missing, found = answer.topics
        assert (missing.error_code, missing.name, missing.topic_id) == (
            ErrorCode.unknown_topic_id,
            None,
            GONE,
        )
        assert (found.error_code, found.name, found.topic_id) == (ErrorCode.none, "t", topic_id)
        assert "by-name" not in member.image.topics

    run(story)


@pytest.mark.parametrize("topic", [{"name": "t", "topic_id": GONE}, {"name": None, "topic_id": None}])
@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_not_asked_for_before_version_12(version: int, topic: dict[str, Any]) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(Api.METADATA, version, topics=[topic])
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]

    run(story)


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_a_topic_is_made_for_who_asks(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(
            Api.METADATA, version, topics=asked(version, "new", "no way", "__consumer_offsets")
        )
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.none,
            ErrorCode.invalid_topic_exception,
            ErrorCode.none,
        ]
        assert len(member.image.topics["new"].partitions) == 4
        assert len(member.image.topics["__consumer_offsets"].partitions) == 50
        assert member.log_config("__consumer_offsets").is_compacted

    run(story, num_partitions="4")


@pytest.mark.parametrize(("enabled", "allowed"), [("false", True), ("true", False)])
def test_a_topic_is_not_made_when_that_is_off(enabled: str, allowed: bool) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(Api.METADATA, 9, topics=asked(9, "new"), allow_auto_topic_creation=allowed)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.unknown_topic_or_partition]
        assert member.image.topics == {}

    run(story, auto_create_topics_enable=enabled)


def test_a_store_that_does_not_answer_delays_a_new_topic_and_nobody_for_long() -> None:
    async def story(client: Client, member: Cluster) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        answer = await client.ask(Api.METADATA, 9, topics=asked(9, "new"))
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.unknown_topic_or_partition]
        assert loop.time() - before < 2

    run(story, down=True)


def test_two_clients_that_ask_at_once_make_one_topic() -> None:
    async def story(client: Client, member: Cluster) -> None:
        answers = await asyncio.gather(
            *(client.ask(Api.METADATA, 9, topics=asked(9, "new")) for _ in range(5))
        )
        assert [topic.error_code for answer in answers for topic in answer.topics] == [ErrorCode.none] * 5

    run(story)


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_what_is_not_there_is_told_as_each_version_can(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        add_brokers(member)
        answer = await client.ask(Api.METADATA, version, topics=asked(version, "wide"))
        assert [broker.node_id for broker in answer.brokers] == [1, 2]
        if version >= 1:
            assert [broker.rack for broker in answer.brokers] == [None, "rack-2"]
        no_listener = ErrorCode.listener_not_found if version >= 6 else ErrorCode.leader_not_available
        cut = ErrorCode.replica_not_available if version == 0 else ErrorCode.none
        (topic,) = answer.topics
        assert [(p.error_code, p.leader_id) for p in topic.partitions] == [
            (ErrorCode.none, 1),
            (cut, 1),
            (ErrorCode.leader_not_available, -1),
            (no_listener, -1),
            (ErrorCode.none, 1),
        ]
        replicas = [partition.replica_nodes for partition in topic.partitions]
        if version == 0:
            assert replicas == [(1, 2), (1,), (), (1,), (1,)]
        else:
            assert replicas == [(1, 2), (3, 1), (3,), (4, 1), (1,)]
        if version >= 5:
            assert [p.offline_replicas for p in topic.partitions] == [(), (3,), (3,), (4,), ()]

    run(story)


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12, 13])
def test_operations_are_told_when_asked(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t")])
        wanted: dict[str, Any] = {"include_topic_authorized_operations": True}
        if version <= 10:
            wanted["include_cluster_authorized_operations"] = True
        answer = await client.ask(Api.METADATA, version, topics=asked(version, "t"), **wanted)
        assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
        if version <= 10:
            assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
            plain = await client.ask(Api.METADATA, version, topics=[])
            assert plain.cluster_authorized_operations == NOT_ASKED

    run(story)


def test_another_listener_has_other_addresses() -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(Api.METADATA, 9, topics=[])
        (broker,) = answer.brokers
        assert (broker.host, broker.port) == ("public.example", 443)

    run(
        story,
        listener="OUT",
        listeners="PLAINTEXT://:9092,OUT://:9093",
        advertised_listeners="PLAINTEXT://:9092,OUT://public.example:443",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OUT:PLAINTEXT",
    )


# --- DescribeTopicPartitions ---


def test_partitions_page_by_page_are_all_of_them_once() -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics(
            [
                NewTopic(name="b", partitions=3),
                NewTopic(name="a", partitions=2),
                NewTopic(name="c", partitions=4),
            ]
        )
        for limit in range(1, 11):
            seen: list[tuple[str, int]] = []
            cursor = None
            for _ in range(20):
                answer = await client.ask(
                    Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=limit, cursor=cursor
                )
                page = [(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions]
                assert len(page) <= limit
                seen += page
                if answer.next_cursor is None:
                    break
                cursor = {
                    "topic_name": answer.next_cursor.topic_name,
                    "partition_index": answer.next_cursor.partition_index,
                }
            assert seen == [
                (name, at) for name, count in (("a", 2), ("b", 3), ("c", 4)) for at in range(count)
            ]

    run(story)


def test_described_topics_say_what_is_wrong_with_each() -> None:
    async def story(client: Client, member: Cluster) -> None:
        add_brokers(member)
        answer = await client.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in ("wide", "nowhere", "no way")],
            response_partition_limit=2000,
        )
        found = {topic.name: topic for topic in answer.topics}
        assert list(found) == ["no way", "nowhere", "wide"]
        assert found["no way"].error_code is ErrorCode.invalid_topic_exception
        assert found["nowhere"].error_code is ErrorCode.unknown_topic_or_partition
        assert found["wide"].topic_authorized_operations == TOPIC_OPERATIONS
        assert [p.leader_id for p in found["wide"].partitions] == [1, 1, -1, -1, 1]
        assert {p.error_code for p in found["wide"].partitions} == {ErrorCode.none}
        assert [p.offline_replicas for p in found["wide"].partitions] == [(), (3,), (3,), (4,), ()]

    run(story)


@pytest.mark.parametrize(
    "cursor", [{"topic_name": "other", "partition_index": 0}, {"topic_name": "t", "partition_index": -1}]
)
def test_a_cursor_belongs_to_what_is_asked(cursor: dict[str, Any]) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t")])
        answer = await client.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": "t"}],
            response_partition_limit=10,
            cursor=cursor,
        )
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]

    run(story)


@pytest.mark.parametrize("limit", [-5, 0])
def test_a_page_has_at_least_one_partition(limit: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="t", partitions=2)])
        answer = await client.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=limit, cursor=None
        )
        assert len(answer.topics[0].partitions) == 1

    run(story)


# --- DescribeCluster ---


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_CLUSTER))
@pytest.mark.parametrize("wants_operations", [True, False])
def test_the_cluster_is_described(version: int, wants_operations: bool) -> None:
    async def story(client: Client, member: Cluster) -> None:
        add_brokers(member)
        answer = await client.ask(
            Api.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=wants_operations
        )
        assert answer.error_code is ErrorCode.none
        assert (answer.cluster_id, answer.controller_id) == (member.image.cluster_id, 1)
        assert [(b.broker_id, b.host) for b in answer.brokers] == [(1, "this-host"), (2, "host-2")]
        assert answer.cluster_authorized_operations == (CLUSTER_OPERATIONS if wants_operations else NOT_ASKED)
        if version >= 2:
            everyone = await client.ask(
                Api.DESCRIBE_CLUSTER,
                version,
                include_cluster_authorized_operations=False,
                include_fenced_brokers=True,
            )
            assert [(b.broker_id, b.is_fenced) for b in everyone.brokers] == [
                (1, False),
                (2, False),
                (3, True),
            ]

    run(story)


def test_a_fenced_broker_has_settings_as_well() -> None:
    async def story(client: Client, member: Cluster) -> None:
        add_brokers(member)
        for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            answer = await client.ask(Api.LIST_CONFIG_RESOURCES, 1, resource_types=[kind])
            assert [row.resource_name for row in answer.config_resources] == ["1", "2", "3"]

    run(story)


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [(2, ErrorCode.mismatched_endpoint_type), (9, ErrorCode.unsupported_endpoint_type)],
)
def test_controllers_are_not_described_here(endpoint_type: int, expected: ErrorCode) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await client.ask(
            Api.DESCRIBE_CLUSTER,
            1,
            include_cluster_authorized_operations=False,
            endpoint_type=endpoint_type,
        )
        assert answer.error_code is expected
        assert answer.error_message
        assert answer.brokers == ()

    run(story)


# --- several brokers ---


@pytest.mark.parametrize("version", versions(Api.METADATA))
def test_metadata_follows_brokers_that_stop_and_are_fenced(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        async def seen() -> tuple[set[int], list[tuple[ErrorCode, int, tuple[int, ...]]]]:
            answer = await client.ask(
                Api.METADATA,
                version,
                topics=[{"name": "t", "topic_id": None}],
                allow_auto_topic_creation=False,
            )
            (topic,) = answer.topics
            partitions = [(row.error_code, row.leader_id, row.isr_nodes) for row in topic.partitions]
            return {broker.node_id for broker in answer.brokers}, partitions

        known_brokers.apply(member, PartitionChanged(topic_id=known_brokers.TOPIC, partition=1, isr=(2,)))
        stop = ControlledShutdown(broker_id=2, broker_epoch=102)
        assert await member.submit(stop) is True
        brokers, partitions = await seen()
        assert brokers == {1, 2, 3}
        assert partitions[0] == (ErrorCode.none, 1, (1, 3))
        assert partitions[1] == (ErrorCode.none, 2, (2,))
        known_brokers.apply(member, BrokerFenced(broker_id=2, broker_epoch=102, fenced=True))
        brokers, partitions = await seen()
        assert brokers == {1, 3}
        # Version 0 names only those that are there.
        assert partitions[1] == (ErrorCode.leader_not_available, -1, (2,) if version else ())

    known_brokers.run(story)


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_TOPIC_PARTITIONS))
def test_a_described_topic_shows_which_replicas_are_offline(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        known_brokers.apply(member, BrokerFenced(broker_id=2, broker_epoch=102, fenced=True))
        answer = await client.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS,
            version,
            topics=[{"name": "t"}],
            response_partition_limit=10,
            cursor=None,
        )
        assert [
            (row.error_code, row.leader_id, row.replica_nodes, row.isr_nodes, row.offline_replicas)
            for row in answer.topics[0].partitions
        ] == [
            (ErrorCode.none, 1, (1, 2, 3), (1, 3), (2,)),
            (ErrorCode.none, 1, (2, 1), (1,), (2,)),
            (ErrorCode.none, 1, (1,), (1,), ()),
        ]

    known_brokers.run(story)
