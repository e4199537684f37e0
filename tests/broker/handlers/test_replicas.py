"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum,
UnregisterBroker, and what brokers ask of the controller: each in every version, through the wire's encoding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from os.path import abspath
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from broker.control.brokers import ControlledShutdown
from broker.control.cluster import Cluster
from broker.control.metadata_records import (
    BrokerFenced,
    BrokerRegistered,
    PartitionChanged,
    TopicCreated,
    new_partition,
)
from broker.control.topics import NewTopic
from broker.endpoint import Endpoint
from broker.handlers.dispatch import Handler
from broker.handlers.metadata import MetadataHandlers
from broker.handlers.peers import PeerHandlers
from broker.handlers.replicas import ReplicaHandlers
from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode
from tests.broker.control.cluster_driver import Site
from tests.broker.raw_client import RawClient, create_topic
from tests.broker.requests import Client, versions
from tests.conftest import MakeBroker

NOW_MS = 1_234_567
TOPIC = UUID(int=9)
GONE = UUID(int=77)

Story = Callable[[Client, Cluster], Awaitable[None]]


def run(story: Story, *, brokers: int = 3, down: bool = False, listener: str = "PLAINTEXT") -> None:
    """A member that is the controller, the others only known to it, and a topic across all of them."""
    site = Site()

    async def whole() -> None:
        member = await site.started(ports={"PLAINTEXT": 9092})
        for broker_id in range(2, brokers + 1):
            add_broker(member, broker_id)
        assignments = [(1, 2, 3), (2, 1), (1,)]
        partitions = tuple(new_partition(at, each, each) for at, each in enumerate(assignments))
        if brokers >= 3:
            apply(member, TopicCreated(name="t", topic_id=TOPIC, partitions=partitions))
        site.profile.down = down
        await story(Client(handlers(member), listener=listener), member)
        site.profile.heal()

    site.run(whole())


def handlers(member: Cluster) -> dict[int, Handler]:
    operators = ReplicaHandlers(
        cluster=member, logs=cast(Any, None), now_ms=lambda: NOW_MS, absolute_path=abspath
    )
    return {
        **operators.routes(),
        **PeerHandlers(cluster=member).routes(),
        **MetadataHandlers(cluster=member).routes(),
    }


def add_broker(member: Cluster, broker_id: int, *, listener: str = "PLAINTEXT") -> None:
    endpoint = Endpoint(listener=listener, host=f"host-{broker_id}", port=9000 + broker_id)
    record = BrokerRegistered(
        broker_id=broker_id,
        incarnation=UUID(int=broker_id),
        directories=(UUID(int=1000 + broker_id),),
        endpoints=(endpoint,),
        rack=f"rack-{broker_id}",
        epoch=100 + broker_id,
    )
    apply(member, record)


def apply(member: Cluster, *records: Any) -> None:
    """Into the image alone: what another controller may have committed."""
    for record in records:
        member.image.apply(record, member.image.seq)


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


# --- what brokers ask of the controller ---


def isr_request(member: Cluster, *isr: int, topic_id: UUID = TOPIC, index: int = 0) -> dict[str, Any]:
    partition = member.image.topics["t"].partitions[index]
    return {
        "topic_id": topic_id,
        "partitions": [
            {
                "partition_index": index,
                "leader_epoch": partition.leader_epoch,
                "partition_epoch": partition.partition_epoch,
                "new_isr_with_epochs": [{"broker_id": id_, "broker_epoch": -1} for id_ in isr],
            }
        ],
    }


@pytest.mark.parametrize("version", versions(PeerApi.ALTER_PARTITION))
def test_a_leader_alters_its_isr(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        topics = [
            isr_request(member, 1, 2),
            isr_request(member, 1, topic_id=GONE),
            isr_request(member, 2, 1, index=1),
        ]
        answer = await client.ask(
            PeerApi.ALTER_PARTITION, version, broker_id=1, broker_epoch=member.broker_epoch, topics=topics
        )
        assert answer.error_code is ErrorCode.none
        assert [topic.topic_id for topic in answer.topics] == [TOPIC, GONE, TOPIC]
        made, gone, others = (topic.partitions[0] for topic in answer.topics)
        assert (made.error_code, made.leader_id, made.leader_epoch) == (ErrorCode.none, 1, 0)
        assert (made.isr, made.partition_epoch, made.leader_recovery_state) == ((1, 2), 1, 0)
        assert (gone.error_code, others.error_code) == (ErrorCode.unknown_topic_id, ErrorCode.invalid_request)
        assert member.image.topics["t"].partitions[0].isr == (1, 2)
        answer = await client.ask(
            PeerApi.ALTER_PARTITION, version, broker_id=1, broker_epoch=99, topics=[isr_request(member, 1)]
        )
        assert (answer.error_code, answer.topics) == (ErrorCode.stale_broker_epoch, ())

    run(story)


@pytest.mark.parametrize("version", versions(PeerApi.ALLOCATE_PRODUCER_IDS))
def test_a_broker_is_given_producer_ids(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        for first in (0, 1000):
            answer = await client.ask(PeerApi.ALLOCATE_PRODUCER_IDS, version, broker_id=2, broker_epoch=102)
            assert answer.error_code is ErrorCode.none
            assert (answer.producer_id_start, answer.producer_id_len) == (first, 1000)
        answer = await client.ask(PeerApi.ALLOCATE_PRODUCER_IDS, version, broker_id=2, broker_epoch=1)
        assert (answer.error_code, answer.producer_id_len) == (ErrorCode.stale_broker_epoch, 0)

    run(story)


def test_another_broker_says_that_it_is_not_the_controller() -> None:
    async def story(client: Client, member: Cluster) -> None:
        member._step_down()
        answer = await client.ask(
            PeerApi.ALTER_PARTITION, 3, broker_id=1, broker_epoch=member.broker_epoch, topics=[]
        )
        assert answer.error_code is ErrorCode.not_controller
        answer = await client.ask(PeerApi.ALLOCATE_PRODUCER_IDS, 0, broker_id=2, broker_epoch=102)
        assert answer.error_code is ErrorCode.not_controller
        answer = await client.ask(Api.UNREGISTER_BROKER, 0, broker_id=2)
        assert answer.error_code is ErrorCode.not_controller

    run(story)


async def test_brokers_are_answered_on_their_own_listener_alone(make_broker: MakeBroker) -> None:
    broker = await make_broker(
        listeners="PLAINTEXT://127.0.0.1:0,PEERS://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
        inter_broker_listener_name="PEERS",
    )
    me = {"broker_id": 1, "broker_epoch": broker.components.cluster.broker_epoch}
    async with await RawClient.open(broker, "PEERS") as peer:
        answer = await peer.call(PeerApi.ALLOCATE_PRODUCER_IDS, 0, **me)
        assert (answer.error_code, answer.producer_id_len) == (ErrorCode.none, 1000)
        answer = await peer.call(PeerApi.ALTER_PARTITION, 3, **me, topics=[])
        assert (answer.error_code, answer.topics) == (ErrorCode.none, ())
    async with await RawClient.open(broker, "PLAINTEXT") as client:
        await client.send(client.encode(PeerApi.ALLOCATE_PRODUCER_IDS, 0, me))
        assert await client.is_closed()


# --- several brokers, as clients see them ---


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

        apply(member, PartitionChanged(topic_id=TOPIC, partition=1, isr=(2,)))
        stop = ControlledShutdown(broker_id=2, broker_epoch=102)
        assert await member.submit(stop) is True
        brokers, partitions = await seen()
        assert brokers == {1, 2, 3}
        assert partitions[0] == (ErrorCode.none, 1, (1, 3))
        assert partitions[1] == (ErrorCode.none, 2, (2,))
        apply(member, BrokerFenced(broker_id=2, broker_epoch=102, fenced=True))
        brokers, partitions = await seen()
        assert brokers == {1, 3}
        # Version 0 names only those that are there.
        assert partitions[1] == (ErrorCode.leader_not_available, -1, (2,) if version else ())

    run(story)


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_TOPIC_PARTITIONS))
def test_a_described_topic_shows_who_is_offline(version: int) -> None:
    async def story(client: Client, member: Cluster) -> None:
        apply(member, BrokerFenced(broker_id=2, broker_epoch=102, fenced=True))
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

    run(story)


def test_handlers_of_brokers_wait_in_order() -> None:
    """Changes that two leaders ask for at once share a slot, each seeing what the other did."""

    async def story(client: Client, member: Cluster) -> None:
        first, second = await asyncio.gather(
            client.ask(
                PeerApi.ALTER_PARTITION,
                3,
                broker_id=1,
                broker_epoch=member.broker_epoch,
                topics=[isr_request(member, 1)],
            ),
            client.ask(
                PeerApi.ALTER_PARTITION,
                3,
                broker_id=1,
                broker_epoch=member.broker_epoch,
                topics=[isr_request(member, 1, 3)],
            ),
        )
        assert first.topics[0].partitions[0].error_code is ErrorCode.none
        assert second.topics[0].partitions[0].error_code is ErrorCode.invalid_update_version

    run(story)
