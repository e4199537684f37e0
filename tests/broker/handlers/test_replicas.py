"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum
and UnregisterBroker: each in every version, through the wire's encoding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from broker.control.cluster import Cluster
from broker.control.metadata_records import (
    BrokerFenced,
    PartitionChanged,
)
from broker.control.topics import NewTopic
from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode
from tests.broker.handlers.known_brokers import NOW_MS, TOPIC, apply, run
from tests.broker.raw_client import RawClient, create_topic
from tests.broker.requests import Client, versions
from tests.conftest import MakeBroker


def rows(answer: Any) -> list[tuple[str, int, ErrorCode]]:
    return [
        (topic.topic, partition.partition_id, partition.error_code)
        for topic in answer.replica_election_results
        for partition in topic.partition_result
    ]


# --- ElectLeaders ---


@pytest.mark.parametrize("version", versions(Api.ELECT_LEADERS))
def test_leaders_are_elected(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        apply(member, PartitionChanged(topic_id=TOPIC, partition=0, leader=2))
        asked = [{"topic": "t", "partitions": [0, 1, 9]}, {"topic": "u", "partitions": [0]}]
        answer = await client.ask(Api.ELECT_LEADERS, version, election_type=0, topic_partitions=asked)
        assert rows(answer) == [
            ("t", 0, ErrorCode.none),
            ("t", 1, ErrorCode.election_not_needed),
            ("t", 9, ErrorCode.unknown_topic_or_partition),
            ("u", 0, ErrorCode.unknown_topic_or_partition),
        ]
        first, second = (topic.partition_result for topic in answer.replica_election_results)
        messages = [row.error_message for row in (*first, *second)]
        assert messages == [
            None,
            "Leader election not needed for topic partition.",
            "No such partition as t-9",
            "No such topic as u",
        ]
        assert member.image.topics["t"].partitions[0].leader == 1

    run(story)


@pytest.mark.parametrize("version", versions(Api.ELECT_LEADERS))
def test_of_all_leaders_those_that_are_amiss_are_elected(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        await member.create_topics([NewTopic(name="fine")])
        apply(member, PartitionChanged(topic_id=TOPIC, partition=1, leader=1))
        answer = await client.ask(Api.ELECT_LEADERS, version, election_type=0, topic_partitions=None)
        assert rows(answer) == [("t", 1, ErrorCode.none)]
        assert [topic.topic for topic in answer.replica_election_results] == ["t", "fine"]

    run(story)


@pytest.mark.parametrize("version", [version for version in versions(Api.ELECT_LEADERS) if version >= 1])
def test_an_unclean_election_is_asked_for_by_its_number(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        apply(
            member,
            PartitionChanged(topic_id=TOPIC, partition=1, isr=(2,)),
            BrokerFenced(broker_id=2, broker_epoch=102, fenced=True),
        )
        asked = [{"topic": "t", "partitions": [1]}, {"topic": "t", "partitions": [0]}]
        for kind, *expected in (
            (0, ErrorCode.preferred_leader_not_available, ErrorCode.election_not_needed),
            (1, ErrorCode.none, ErrorCode.election_not_needed),
            (2, ErrorCode.invalid_request, ErrorCode.invalid_request),
        ):
            answer = await client.ask(Api.ELECT_LEADERS, version, election_type=kind, topic_partitions=asked)
            assert rows(answer) == [("t", 1, expected[0]), ("t", 0, expected[1])]
            assert answer.error_code is (ErrorCode.none if kind < 2 else ErrorCode.invalid_request)
        assert member.image.topics["t"].partitions[1].isr == (1,)

    run(story)


# --- reassignments ---


async def reassign(client: Client, version: int, *replicas: int, index: int = 0, **fields: Any) -> Any:
    partitions = [{"partition_index": index, "replicas": replicas or None}]
    return await client.ask(
        Api.ALTER_PARTITION_REASSIGNMENTS, version, topics=[{"name": "t", "partitions": partitions}], **fields
    )


async def moving(client: Client, topics: Any = None) -> list[tuple[Any, ...]]:
    answer = await client.ask(Api.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics)
    assert answer.error_code is ErrorCode.none
    return [
        (topic.name, row.partition_index, row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in answer.topics
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", versions(Api.ALTER_PARTITION_REASSIGNMENTS))
def test_partitions_are_reassigned_and_given_back(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        answer = await reassign(client, version, 3, index=2)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert [(topic.name, [row.error_code for row in topic.partitions]) for topic in answer.responses] == [
            ("t", [ErrorCode.none])
        ]
        under_way = ("t", 2, (3, 1), (3,), (1,))
        assert await moving(client) == [under_way]
        assert await moving(client, [{"name": "t", "partition_indexes": [0, 2, 7, -1]}]) == [under_way]
        assert await moving(client, [{"name": "u", "partition_indexes": [0]}]) == []
        assert await moving(client, []) == []
        for expected in (ErrorCode.none, ErrorCode.no_reassignment_in_progress):
            answer = await reassign(client, version, index=2)
            assert answer.responses[0].partitions[0].error_code is expected
        assert await moving(client) == []

    run(story)


@pytest.mark.parametrize("version", versions(Api.ALTER_PARTITION_REASSIGNMENTS))
def test_each_reassignment_is_answered_in_its_place(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        topics = [
            {"name": "u", "partitions": [{"partition_index": 0, "replicas": [1]}]},
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "replicas": [1, 1]},
                    {"partition_index": 1, "replicas": [1, 2]},
                    {"partition_index": 2, "replicas": [1, 9]},
                ],
            },
            {"name": "none", "partitions": []},
        ]
        answer = await client.ask(Api.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics)
        assert [[row.error_code for row in topic.partitions] for topic in answer.responses] == [
            [ErrorCode.unknown_topic_or_partition],
            [ErrorCode.invalid_replica_assignment, ErrorCode.none, ErrorCode.invalid_replica_assignment],
            [],
        ]
        assert answer.responses[0].partitions[0].error_message == "Unable to find a topic named u."
        assert member.image.topics["t"].partitions[1].replicas == (1, 2)
        answer = await client.ask(Api.ALTER_PARTITION_REASSIGNMENTS, version, topics=[])
        assert (answer.error_code, answer.error_message, answer.responses) == (ErrorCode.none, "", ())

    run(story)


def test_a_client_may_insist_on_the_replication_factor() -> None:
    async def story(client: Client, member: Cluster) -> None:
        for allow, expected in ((False, ErrorCode.invalid_replication_factor), (True, ErrorCode.none)):
            answer = await reassign(client, 1, 1, 3, index=2, allow_replication_factor_change=allow)
            assert answer.responses[0].partitions[0].error_code is expected
            assert answer.allow_replication_factor_change is allow

    run(story)


# --- AlterReplicaLogDirs ---


@pytest.mark.parametrize("version", versions(Api.ALTER_REPLICA_LOG_DIRS))
async def test_a_replica_stays_where_it_is(make_broker: MakeBroker, tmp_path: Path, version: int) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    broker = await make_broker(log_dirs=",".join(paths))
    await create_topic(broker, "t", partitions=1)
    logs = broker.components.logs
    held = logs.logs["t", 0]
    elsewhere, lost = (path for path in paths if path != held.log_dir)
    logs.offline_dirs[lost] = "gone"

    async def moved(client: RawClient, path: str) -> list[tuple[str, int, ErrorCode]]:
        topics = [{"name": "t", "partitions": [0, 5]}, {"name": "u", "partitions": [0]}]
        answer = await client.call(
            Api.ALTER_REPLICA_LOG_DIRS, version, dirs=[{"path": path, "topics": topics}]
        )
        return [
            (topic.topic_name, row.partition_index, row.error_code)
            for topic in answer.results
            for row in topic.partitions
        ]

    def each(here: ErrorCode, others: ErrorCode) -> list[tuple[str, int, ErrorCode]]:
        return [("t", 0, here), ("t", 5, others), ("u", 0, others)]

    unknown, missing = ErrorCode.unknown_topic_or_partition, ErrorCode.log_dir_not_found
    failed = ErrorCode.kafka_storage_error
    async with await RawClient.open(broker) as client:
        assert await moved(client, held.log_dir) == each(ErrorCode.none, unknown)
        assert await moved(client, elsewhere) == each(missing, unknown)
        assert await moved(client, "/nowhere") == each(missing, missing)
        assert await moved(client, lost) == each(failed, failed)
        del logs.logs["t", 0]
        assert await moved(client, elsewhere) == each(failed, unknown)
        logs.logs["t", 0] = held


# --- DescribeQuorum ---


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_QUORUM))
def test_the_metadata_log_is_told_as_a_quorum(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        apply(member, BrokerFenced(broker_id=3, broker_epoch=103, fenced=True))
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = await client.ask(Api.DESCRIBE_QUORUM, version, topics=topics)
        assert answer.error_code is ErrorCode.none
        (quorum,) = answer.topics[0].partitions
        assert (quorum.error_code, quorum.leader_id, quorum.leader_epoch) == (ErrorCode.none, 1, 1)
        assert quorum.high_watermark == member.image.seq
        assert [(voter.replica_id, voter.log_end_offset) for voter in quorum.current_voters] == [
            (1, member.image.seq),
            (2, -1),
        ], "of the other nothing was heard yet"
        assert quorum.observers == ()
        if version >= 1:
            times = [(v.last_fetch_timestamp, v.last_caught_up_timestamp) for v in quorum.current_voters]
            assert times == [(NOW_MS, NOW_MS), (-1, -1)]
        if version >= 2:
            assert quorum.current_voters[1].replica_directory_id == UUID(int=1002)
            assert [(node.node_id, node.listeners[0].host) for node in answer.nodes] == [
                (1, "this-host"),
                (2, "host-2"),
            ]

    run(story)


def test_a_voter_has_what_its_last_heartbeat_told() -> None:
    async def story(client: Client, member: Cluster) -> None:
        async def followed() -> tuple[int, int, int]:
            topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
            answer = await client.ask(Api.DESCRIBE_QUORUM, 2, topics=topics)
            (quorum,) = answer.topics[0].partitions
            (voter,) = (voter for voter in quorum.current_voters if voter.replica_id == 2)
            times = (voter.last_fetch_timestamp, voter.last_caught_up_timestamp)
            return (voter.log_end_offset, *(-1 if at < 0 else NOW_MS - at for at in times))

        def beat(seq: int) -> asyncio.Task[Any]:
            fields = {"broker_id": 2, "broker_epoch": 102, "want_fence": False, "want_shut_down": False}
            asked = client.ask(PeerApi.BROKER_HEARTBEAT, 1, current_metadata_offset=seq, **fields)
            return asyncio.ensure_future(asked)

        end = member.image.seq
        await beat(end - 1)
        assert await followed() == (end - 1, 0, -1)
        held = beat(end)
        await asyncio.sleep(0.5)
        assert await followed() == (end, 500, 500)
        await member.create_topics([NewTopic(name="new")])
        await held
        assert member.image.seq == end + 1
        told_ms = (await followed())[1]
        # two clocks are read, in whole milliseconds
        behind_ms, later_ms = pytest.approx(told_ms, abs=1), pytest.approx(told_ms + 250, abs=1)
        await beat(end)
        assert await followed() == (end, 0, behind_ms), "it had all there was when it told that"
        await asyncio.sleep(0.25)
        await beat(end)
        assert await followed() == (end, 0, later_ms)
        unknown = {"broker_id": 2, "broker_epoch": 9, "want_fence": False, "want_shut_down": False}
        await client.ask(PeerApi.BROKER_HEARTBEAT, 1, current_metadata_offset=end + 1, **unknown)
        assert await followed() == (end, 0, later_ms), "an earlier life tells nothing"
        member.heartbeats.begin()
        assert await followed() == (-1, -1, -1)

    run(story)


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_QUORUM))
@pytest.mark.parametrize(
    "asked", [[("t", 0)], [("__cluster_metadata", 1)], [("__cluster_metadata", 0), ("t", 0)], []]
)
def test_there_is_one_quorum(version: int, asked: list[tuple[str, int]]) -> None:
    async def story(client: Client, member: Cluster) -> None:
        topics = [{"topic_name": name, "partitions": [{"partition_index": index}]} for name, index in asked]
        answer = await client.ask(Api.DESCRIBE_QUORUM, version, topics=topics)
        assert answer.error_code is ErrorCode.none
        assert [
            (topic.topic_name, row.partition_index, row.error_code)
            for topic in answer.topics
            for row in topic.partitions
        ] == [(name, index, ErrorCode.unknown_topic_or_partition) for name, index in asked]

    run(story)


# --- UnregisterBroker ---


def test_a_broker_is_unregistered() -> None:
    async def story(client: Client, member: Cluster) -> None:
        for broker_id, expected in (
            (2, ErrorCode.none),
            (2, ErrorCode.broker_id_not_registered),
            (1, ErrorCode.invalid_request),
        ):
            answer = await client.ask(Api.UNREGISTER_BROKER, 0, broker_id=broker_id)
            assert answer.error_code is expected
            assert (answer.error_message == "") == (expected is ErrorCode.none)
        assert set(member.image.brokers) == {1, 3}
        assert member.image.topics["t"].partitions[1].leader == 1

    run(story)


# --- the store is down ---


@pytest.mark.parametrize(
    ("api", "fields", "place"),
    [
        (
            Api.ELECT_LEADERS,
            {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [2]}]},
            lambda answer: answer.replica_election_results[0].partition_result[0],
        ),
        (
            Api.ALTER_PARTITION_REASSIGNMENTS,
            {"topics": [{"name": "t", "partitions": [{"partition_index": 2, "replicas": [3]}]}]},
            lambda answer: answer.responses[0].partitions[0],
        ),
    ],
)
def test_what_cannot_be_committed_in_time_is_not_answered_as_done(
    api: Api, fields: dict[str, Any], place: Callable[[Any], Any]
) -> None:
    async def story(client: Client, member: Cluster) -> None:
        apply(member, PartitionChanged(topic_id=TOPIC, partition=2, leader=-1))
        for version in versions(api):
            answer = await client.ask(api, version, **fields, timeout=50)
            assert place(answer).error_code is ErrorCode.request_timed_out

    run(story, down=True)
