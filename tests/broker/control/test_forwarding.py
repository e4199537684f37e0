"""Requests for the controller that reach another broker: brokers over sockets, one store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker import from_properties
from broker.control.brokers import UnregisterBroker
from broker.process import real_world
from broker.server import Broker
from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode
from protocol.messages import decode_response, encode_request
from remote.store.object_store import ObjectStore, PutResult
from tests.broker.raw_client import RawClient


class SlowStore:
    """Each slot waits until it is let go."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.goes = asyncio.Event()
        self.goes.set()
        self.puts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        await self.goes.wait()
        self.puts += 1
        return await self._store.put_if_absent(key, data)


async def until(what: Callable[[], object]) -> None:
    for _ in range(400):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never came true")


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[list[Broker]]:
    """The first of them is the controller."""
    brokers: list[Broker] = []
    for node_id in (1, 2, 3):
        properties = {
            "node.id": str(node_id),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / str(node_id)),
        }
        config = from_properties(properties)
        world = real_world(config, f"file://{tmp_path}/store")
        broker = Broker(config, replace(world, store=SlowStore(world.store)))
        await broker.start()
        brokers.append(broker)
    yield brokers
    for broker in reversed(brokers):
        await broker.stop()


def creation(*names: str, timeout: int = 10_000) -> dict[str, Any]:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": topics, "timeout": timeout, "validate_only": False}


def naming(name: str) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


async def test_what_any_broker_got_made_it_knows_when_it_answers(trio: list[Broker]) -> None:
    async with await RawClient.open(trio[1]) as client:
        for at in range(40):
            made = await client.call(Api.CREATE_TOPICS, 7, **creation(f"t{at}"))
            assert made.topics[0].error_code is ErrorCode.none
            seen = await client.call(Api.METADATA, 12, **naming(f"t{at}"))
            assert seen.topics[0].error_code is ErrorCode.none


async def test_pipelined_requests_are_answered_in_order(trio: list[Broker]) -> None:
    async with await RawClient.open(trio[2]) as client:
        frames = client.encode(Api.CREATE_TOPICS, 7, creation("t"))
        frames += client.encode(Api.METADATA, 12, naming("t"))
        frames += client.encode(Api.CREATE_TOPICS, 5, creation("t"))
        await client.send(frames)
        assert (await client.receive_as(Api.CREATE_TOPICS, 7)).topics[0].error_code is ErrorCode.none
        assert client.answered == 1
        assert (await client.receive_as(Api.METADATA, 12)).topics[0].error_code is ErrorCode.none
        again = await client.receive_as(Api.CREATE_TOPICS, 5)
        assert (client.answered, again.topics[0].error_code) == (3, ErrorCode.topic_already_exists)


async def test_what_waits_for_one_slot_shares_the_next_though_it_was_passed_on(trio: list[Broker]) -> None:
    store: Any = trio[0].world.store
    cluster = trio[0].components.cluster
    clients = [await RawClient.open(trio[1]) for _ in range(12)]
    store.goes.clear()
    before = cluster.image.seq
    asked: list[asyncio.Future[Any]] = []
    for at, client in enumerate(clients):
        asked.append(asyncio.ensure_future(client.call(Api.CREATE_TOPICS, 7, **creation(f"t{at}"))))
        if not at:
            await until(lambda: cluster.ledger.unresolved_s)
    await until(lambda: len(cluster.queue) == len(asked) - 1)
    store.goes.set()
    for answer in await asyncio.gather(*asked):
        assert answer.topics[0].error_code is ErrorCode.none
    assert cluster.image.seq == before + 2
    for client in clients:
        await client.__aexit__()


async def test_the_successor_answers_when_the_controller_is_gone(trio: list[Broker]) -> None:
    async with await RawClient.open(trio[1]) as client, await RawClient.open(trio[2]) as other:
        await trio[0].stop()
        for asked, name in ((client, "a"), (other, "b")):
            made = await asked.call(Api.CREATE_TOPICS, 7, **creation(name))
            assert made.topics[0].error_code is ErrorCode.none


async def test_a_client_that_goes_away_meanwhile_leaves_nothing_behind(
    trio: list[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = trio[0].world.store
    store.goes.clear()
    async with await RawClient.open(trio[1]) as client:
        await client.send(client.encode(Api.CREATE_TOPICS, 7, creation("t")))
        await until(lambda: trio[0].components.cluster.ledger.unresolved_s)
    store.goes.set()
    async with await RawClient.open(trio[1]) as client:
        made = await client.call(Api.CREATE_TOPICS, 7, **creation("t"))
        assert made.topics[0].error_code is ErrorCode.topic_already_exists
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_only_the_controller_opens_an_envelope_and_only_what_belongs_in_one(
    trio: list[Broker],
) -> None:
    def envelope(frame: bytes) -> dict[str, Any]:
        return {"request_data": frame, "request_principal": b"", "client_host_address": b""}

    create = encode_request(Api.CREATE_TOPICS, 7, 77, "c", creation("t"))[4:]
    async with await RawClient.open(trio[1]) as client:
        refused = await client.call(PeerApi.ENVELOPE, 0, **envelope(create))
        assert (refused.error_code, refused.response_data) == (ErrorCode.not_controller, None)
    async with await RawClient.open(trio[0]) as client:
        opened = await client.call(PeerApi.ENVELOPE, 0, **envelope(create))
        correlation_id, made = decode_response(Api.CREATE_TOPICS, 7, memoryview(opened.response_data))
        assert (correlation_id, made.topics[0].error_code) == (77, ErrorCode.none)
        metadata = encode_request(Api.METADATA, 12, 1, "c", naming("t"))[4:]
        odd = await client.call(PeerApi.ENVELOPE, 0, **envelope(metadata))
        assert odd.error_code is ErrorCode.invalid_request
        for broken in (create[:20], b"\x00\x13"):
            answer = await client.call(PeerApi.ENVELOPE, 0, **envelope(broken))
            assert answer.error_code is ErrorCode.invalid_request


async def test_who_is_no_member_any_more_has_no_channels(trio: list[Broker]) -> None:
    cluster = trio[1].components.cluster
    await cluster.is_listening(3)
    assert any(node_id == 3 for node_id, _purpose in cluster.channels._channels)
    await trio[2].stop()
    await trio[0].components.cluster.submit(UnregisterBroker(broker_id=3))
    await until(lambda: 3 not in cluster.image.brokers)
    await until(lambda: all(node_id != 3 for node_id, _purpose in cluster.channels._channels))
