"""Markers to several brokers: who is told of what, in which request, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.control.image import Image
from broker.control.metadata_records import PartitionChanged, PartitionImage, TopicCreated, TopicDeleted
from broker.coordinators.transactions import marker_sender
from broker.coordinators.transactions.marker_sender import MarkerSender
from broker.coordinators.transactions.marker_writer import Marker
from broker.net.channel import PeerLost
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import (
    decode_request_in_turns,
    decode_response,
    encode_request,
    encode_response,
)
from protocol.wire import parse_head
from protocol.work import finish
from tests.broker.coordinators.fake_log import settle, turns

NONE = ErrorCode.none
TOPIC_ID = UUID(int=7)
ROWS_MAX = 4096
"""The least that request.rows.max may be: a broker closes the connection on a request of more."""
MARKER = Marker(
    producer_id=5,
    producer_epoch=1,
    coordinator_epoch=3,
    committed=True,
    transaction_version=2,
    partitions=(("t", 0), ("t", 1), ("t", 2)),
)


@dataclass
class Peer:
    """Another broker: it answers each request as planned, in bytes as on a wire, when its gate is open."""

    requests: list[list[Marker]] = field(default_factory=list)
    plans: list[ErrorCode | Exception] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def ask(self, api: Api, version: int, fields: Any, *, timeout_s: float) -> Any:
        assert (api, version) == (Api.WRITE_TXN_MARKERS, 2)
        frame = memoryview(encode_request(api, version, 1, "c", fields))[4:]
        body = frame[parse_head(frame).body_at :]
        request = finish(decode_request_in_turns(api, version, body, rows_max=ROWS_MAX, kept=[]))
        self.requests.append(
            [
                Marker(
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    coordinator_epoch=each.coordinator_epoch,
                    committed=each.transaction_result,
                    transaction_version=each.transaction_version,
                    partitions=tuple(
                        (topic.name, index) for topic in each.topics for index in topic.partition_indexes
                    ),
                )
                for each in request.markers
            ]
        )
        await self.gate.wait()
        plan = self.plans.pop(0) if self.plans else NONE
        if isinstance(plan, Exception):
            raise plan
        rows = [
            {
                "producer_id": each.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": plan}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in request.markers
        ]
        data = encode_response(api, version, 1, {"markers": rows})
        return decode_response(api, version, data[4:])[1]


@dataclass
class Local:
    written: list[Marker] = field(default_factory=list)
    plans: list[ErrorCode | Exception] = field(default_factory=list)

    async def write(self, marker: Marker) -> Mapping[tuple[str, int], ErrorCode]:
        self.written.append(marker)
        plan = self.plans.pop(0) if self.plans else NONE
        if isinstance(plan, Exception):
            raise plan
        return dict.fromkeys(marker.partitions, plan)


class World:
    """Three brokers, each of which leads one partition of `t`; this one is the first."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.image = Image()
        self.seq = 0
        rows = tuple(
            PartitionImage(
                index=index, leader=index + 1, leader_epoch=0, partition_epoch=0, replicas=(1, 2, 3), isr=(1,)
            )
            for index in range(3)
        )
        self.apply(TopicCreated(name="t", topic_id=TOPIC_ID, partitions=rows))
        self.peers = {2: Peer(), 3: Peer()}
        self.local = Local()
        self.sender = MarkerSender(
            node_id=1,
            image=lambda: self.image,
            peers=SimpleNamespace(to=self.to),
            local=self.local,
            run=turns().run,
            spawn=tasks.create_task,
            timeout_s=1.0,
        )

    def apply(self, record: Any) -> None:
        self.seq += 1
        self.image.apply_slot(self.seq, [record])

    def to(self, node_id: int, purpose: str) -> Peer:
        assert purpose == "transaction markers"
        return self.peers[node_id]

    def lead(self, index: int, leader: int) -> None:
        self.apply(PartitionChanged(topic_id=TOPIC_ID, partition=index, leader=leader))

    async def tell(self, marker: Marker = MARKER) -> bool:
        async with asyncio.timeout(30):
            return await self.sender.tell(marker, lambda: True)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(marker_sender, "PAUSE_S", 0.001)
    async with asyncio.TaskGroup() as tasks:
        yield World(tasks)


async def test_each_leader_is_told_of_what_it_leads(world: World) -> None:
    assert await world.tell()
    assert world.local.written == [replace(MARKER, partitions=(("t", 0),))]
    for node_id, peer in world.peers.items():
        assert peer.requests == [[replace(MARKER, partitions=(("t", node_id - 1),))]]
    assert world.sender.queued == 0


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.coordinator_load_in_progress,
        PeerLost("gone"),
    ],
)
async def test_what_was_not_told_is_told_again(world: World, failure: ErrorCode | Exception) -> None:
    world.peers[2].plans = [failure, failure]
    assert await world.tell()
    assert len(world.peers[2].requests) == 3
    assert len(world.peers[3].requests) == len(world.local.written) == 1


async def test_a_refusal_here_is_an_attempt(world: World) -> None:
    world.local.plans = [KafkaError(ErrorCode.not_coordinator), ErrorCode.not_enough_replicas]
    assert await world.tell()
    assert len(world.local.written) == 3


async def test_a_marker_that_is_there_already_counts(world: World) -> None:
    world.peers[2].plans = [ErrorCode.invalid_producer_epoch]
    assert await world.tell()
    assert len(world.peers[2].requests) == 1


async def test_another_coordinator_ends_it(world: World) -> None:
    world.peers[2].plans = [ErrorCode.transaction_coordinator_fenced]
    assert not await world.tell()


async def test_nobody_wants_it_any_longer(world: World) -> None:
    world.peers[2].plans = [PeerLost("gone")] * 10
    assert not await world.sender.tell(MARKER, lambda: False)
    assert len(world.peers[2].requests) == 1


async def test_the_new_leader_is_told(world: World) -> None:
    world.peers[2].plans = [ErrorCode.not_leader_or_follower]
    world.peers[2].gate.clear()
    telling = asyncio.ensure_future(world.tell())
    await settle()
    world.lead(1, 3)
    world.peers[2].gate.set()
    assert await telling
    assert [request[0].partitions for request in world.peers[3].requests] == [(("t", 2),), (("t", 1),)]


async def test_a_partition_without_a_leader_is_waited_for(world: World) -> None:
    world.lead(1, -1)
    telling = asyncio.ensure_future(world.tell())
    await settle()
    assert not telling.done()
    assert world.peers[2].requests == []
    world.lead(1, 2)
    assert await telling
    assert len(world.peers[2].requests) == 1


async def test_a_topic_that_is_deleted_meanwhile(world: World) -> None:
    world.peers[2].plans = [ErrorCode.unknown_topic_or_partition] * 2
    world.peers[2].gate.clear()
    telling = asyncio.ensure_future(world.tell())
    await settle()
    world.apply(TopicDeleted(topic_id=TOPIC_ID))
    world.peers[2].gate.set()
    assert await telling
    assert len(world.peers[2].requests) == 1


async def test_many_transactions_share_a_request(world: World) -> None:
    world.peers[2].gate.clear()
    markers = [replace(MARKER, producer_id=number, partitions=(("t", 1),)) for number in range(600)]
    async with asyncio.TaskGroup() as tasks:
        telling = [tasks.create_task(world.tell(marker)) for marker in markers]
        await settle()
        queued = world.sender.queued
        world.peers[2].gate.set()
    assert all(task.result() for task in telling)
    assert [len(request) for request in world.peers[2].requests] == [256, 256, 88]
    assert queued == 600 - 256, "one request at a time is under way"


async def test_a_request_has_one_marker_of_a_producer(world: World) -> None:
    world.peers[2].gate.clear()
    markers = [replace(MARKER, producer_epoch=epoch, partitions=(("t", 1),)) for epoch in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for marker in markers:
            tasks.create_task(world.tell(marker))
        await settle()
        world.peers[2].gate.set()
    assert [[each.producer_epoch for each in request] for request in world.peers[2].requests] == [
        [0],
        [1],
        [2],
    ]


@pytest.mark.parametrize("topics", [1, 1_000, 9_000])
async def test_a_transaction_of_many_partitions(world: World, topics: int) -> None:
    """It is told in as many requests as the other broker takes, and so are those behind it."""
    each = 9_000 // topics
    for number in range(topics):
        rows = tuple(
            PartitionImage(index=index, leader=2, leader_epoch=0, partition_epoch=0, replicas=(2,), isr=(2,))
            for index in range(each)
        )
        world.apply(TopicCreated(name=f"many{number}", topic_id=UUID(int=100 + number), partitions=rows))
    partitions = tuple((f"many{number}", index) for number in range(topics) for index in range(each))
    assert await asyncio.gather(
        world.tell(replace(MARKER, partitions=partitions)),
        world.tell(replace(MARKER, producer_id=6, partitions=partitions[:1_500])),
        world.tell(replace(MARKER, producer_id=7, partitions=partitions[-1_500:])),
    ) == [True, True, True]
    told = [
        (marker.producer_id, *name)
        for request in world.peers[2].requests
        for marker in request
        for name in marker.partitions
    ]
    assert len(told) == len(set(told)) == 12_000
    assert world.sender.retried == 0


async def test_behind_a_broker_that_is_lost_nobody_waits_for_another_attempt(world: World) -> None:
    """Each may take as long as an answer may; the partitions have another leader by then."""
    lost = world.peers[2]
    lost.gate.clear()
    lost.plans = [PeerLost("no answer")]
    markers = [replace(MARKER, producer_epoch=epoch, partitions=(("t", 1),)) for epoch in range(3)]
    async with asyncio.TaskGroup() as tasks:
        telling = [tasks.create_task(world.tell(marker)) for marker in markers]
        await settle()
        world.lead(1, 3)
        lost.gate.set()
    assert all(task.result() for task in telling)
    assert len(lost.requests) == 1
    assert len(world.peers[3].requests) == 3
