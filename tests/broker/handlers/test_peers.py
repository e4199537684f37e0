"""What brokers ask of the controller, in every version, through the wire's encoding."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from broker.control.cluster import Cluster
from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode
from tests.broker.handlers.known_brokers import GONE, TOPIC, run
from tests.broker.raw_client import RawClient
from tests.broker.requests import Client, versions
from tests.conftest import MakeBroker


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
