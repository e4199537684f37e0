"""Large requests: in turns, a few at once, within their rows, and nothing of them left behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from broker.handlers.dispatch import LARGE_AT_ONCE
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import encode_request
from protocol.work import Work
from tests.broker.raw_client import DEADLINE_S, RawClient
from tests.broker.replicas.test_replica_manager import connection_to, feed

if TYPE_CHECKING:
    from broker.server import Broker

LARGE_BYTES = 4096
NAMES = [f"group-{n}" for n in range(2000)]
JOIN: dict[str, Any] = {
    "group_id": "g",
    "session_timeout": 6000,
    "rebalance_timeout": 6000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": bytes(LARGE_BYTES)}],
}


def put_handler(broker: Broker, api: Api, handler: Any) -> None:
    dispatcher: Any = broker.components.network.service
    dispatcher._handlers[int(api)] = handler


def places_of(broker: Broker) -> Any:
    dispatcher: Any = broker.components.network.service
    return dispatcher._places


def deleted(names: list[str]) -> dict[str, Any]:
    return {"throttle_time": 0, "results": [{"group_id": name, "error_code": 0} for name in names]}


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0)


class Gate:
    """A handler in turns that goes on when it may."""

    def __init__(self) -> None:
        self.is_open = False
        self.begun = 0
        self.ended = 0
        self.closed = 0

    def __call__(self, ctx: Any, request: Any) -> Work[Any]:
        self.begun += 1
        try:
            while not self.is_open:
                yield
            self.ended += 1
            return deleted(request.groups_names)
        except GeneratorExit:
            self.closed += 1
            raise


async def send_large(client: RawClient) -> None:
    await client.send(client.encode(Api.DELETE_GROUPS, 2, {"groups_names": NAMES}))


async def assert_answered(client: RawClient) -> None:
    response = await client.receive_as(Api.DELETE_GROUPS, 2)
    assert [row.group_id for row in response.results] == NAMES


async def test_others_are_answered_while_a_large_request_is_in_work(broker: Broker) -> None:
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    async with await RawClient.open(broker) as large, await RawClient.open(broker) as other:
        await send_large(large)
        await until(lambda: gate.begun)
        assert (await other.call(Api.LIST_GROUPS, 0)).error_code is ErrorCode.none
        assert not gate.ended
        gate.is_open = True
        await assert_answered(large)
    assert places_of(broker).taken == 0


async def test_a_small_request_with_long_work_leaves_the_loop_to_others(broker: Broker) -> None:
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.send(client.encode(Api.DELETE_GROUPS, 2, {"groups_names": ["g"]}))
        await until(lambda: gate.begun)
        assert (await other.call(Api.LIST_GROUPS, 0)).error_code is ErrorCode.none
        gate.is_open = True
        assert (await client.receive_as(Api.DELETE_GROUPS, 2)).results[0].group_id == "g"


async def test_a_few_are_in_work_at_once_and_who_left_is_not_served(broker: Broker) -> None:
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await RawClient.open(broker)) for _ in range(LARGE_AT_ONCE + 3)
        ]
        for client in clients:
            await send_large(client)
        waiting = places_of(broker).waiting
        await until(lambda: gate.begun == LARGE_AT_ONCE and len(waiting) == 3)
        left = clients.pop()
        left.writer.close()
        await until(lambda: sum(not each.done() for each in waiting) == 2)
        assert gate.begun == LARGE_AT_ONCE
        gate.is_open = True
        for client in clients:
            await assert_answered(client)
    assert gate.begun == gate.ended == LARGE_AT_ONCE + 2
    assert places_of(broker).taken == 0


@pytest.mark.parametrize("has_to_wait", [False, True])
async def test_who_is_to_hear_that_a_client_left_still_does_after_a_large_request(
    broker: Broker, has_to_wait: bool
) -> None:
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    connection, sink = connection_to(broker)
    heard: list[str] = []
    connection.on_lost = lambda: heard.append("lost")
    places = places_of(broker)
    places.taken = places.count if has_to_wait else 0
    feed(connection, encode_request(Api.DELETE_GROUPS, 2, 1, "c", {"groups_names": NAMES}))
    if has_to_wait:
        await until(lambda: places.waiting)
    else:
        gate.is_open = True
        await until(lambda: sink.written)
    connection.connection_lost(None)
    assert heard == ["lost"]
    if has_to_wait:
        assert places.waiting[0].done()
        assert not gate.begun


@pytest.mark.parametrize("size", [LARGE_BYTES, 1 << 18])
async def test_requests_that_wait_for_other_clients_keep_no_place(broker: Broker, size: int) -> None:
    asked = 0
    all_there = asyncio.Event()

    async def join(ctx: Any, request: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == LARGE_AT_ONCE * 2:
            all_there.set()
        await all_there.wait()
        raise KafkaError(ErrorCode.group_max_size_reached)

    put_handler(broker, Api.JOIN_GROUP, join)
    fields = JOIN | {"protocols": [{"name": "range", "metadata": bytes(size)}]}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await RawClient.open(broker)) for _ in range(LARGE_AT_ONCE * 2)
        ]
        for client in clients:
            await client.send(client.encode(Api.JOIN_GROUP, 9, fields))
        for client in clients:
            response = await client.receive_as(Api.JOIN_GROUP, 9)
            assert response.error_code is ErrorCode.group_max_size_reached
    assert places_of(broker).taken == 0


async def test_requests_that_wait_for_the_controller_hold_up_only_their_like(broker: Broker) -> None:
    begun = 0
    is_there = asyncio.Event()

    async def create(ctx: Any, request: Any) -> Any:
        nonlocal begun
        begun += 1
        await is_there.wait()
        raise KafkaError(ErrorCode.request_timed_out)

    put_handler(broker, Api.CREATE_TOPICS, create)
    gate = Gate()
    gate.is_open = True
    put_handler(broker, Api.DELETE_GROUPS, gate)
    configs = [{"name": "x", "value": "x" * 30_000}] * 3
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    fields = {"topics": [topic], "timeout": 2**31 - 1, "validate_only": False}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await RawClient.open(broker)) for _ in range(LARGE_AT_ONCE + 1)
        ]
        for client in clients:
            await client.send(client.encode(Api.CREATE_TOPICS, 5, fields))
        await until(lambda: begun == LARGE_AT_ONCE)
        async with await RawClient.open(broker) as other:
            await send_large(other)
            await assert_answered(other)
        assert begun == LARGE_AT_ONCE
        is_there.set()
        for client in clients:
            (row,) = (await client.receive_as(Api.CREATE_TOPICS, 5)).topics
            assert row.error_code is ErrorCode.request_timed_out


async def test_more_rows_than_may_be_cost_the_connection(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begun = Gate()
    put_handler(broker, Api.DELETE_GROUPS, begun)
    most = broker.components.cluster.broker_config.request_rows_max
    begun.is_open = True
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.send(client.encode(Api.DELETE_GROUPS, 2, {"groups_names": [""] * (most + 1)}))
        assert await client.is_closed()
        response = await other.call(Api.DELETE_GROUPS, 2, groups_names=[""] * most)
        assert len(response.results) == most
    assert begun.begun == 1
    told = [record.getMessage() for record in caplog.records if "request.rows.max" in record.getMessage()]
    assert len(told) == 1
    for word in ("DeleteGroups", str(most + 1), str(most)):
        assert word in told[0]


async def test_the_rows_of_a_request_may_be_set(broker: Broker) -> None:
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        resource = {
            "resource_type": 4,
            "resource_name": str(broker.config.node_id),
            "configs": [{"name": "request.rows.max", "config_operation": 0, "value": "4096"}],
        }
        altered = await client.call(
            Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
        )
        assert altered.responses[0].error_code is ErrorCode.none
        await other.send(other.encode(Api.DELETE_GROUPS, 2, {"groups_names": ["group"] * 4097}))
        assert await other.is_closed()


async def test_garbage_costs_the_connection_alone(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        data = bytearray(client.encode(Api.DELETE_GROUPS, 2, {"groups_names": NAMES}))
        data[-20:] = b"\xff" * 20
        await client.send(bytes(data))
        assert await client.is_closed()
        assert (await other.call(Api.LIST_GROUPS, 0)).error_code is ErrorCode.none
    assert places_of(broker).taken == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("kind", ["at once", "in turns", "later"])
async def test_a_failure_names_every_row_and_holds_nothing(broker: Broker, kind: str) -> None:
    class Kept:
        pass

    refs: list[weakref.ref[Kept]] = []
    errors = []

    def fail() -> None:
        kept = Kept()
        refs.append(weakref.ref(kept))
        errors.append(KafkaError(ErrorCode.coordinator_not_available, "no"))
        raise errors[0]

    def at_once(ctx: Any, request: Any) -> Any:
        fail()

    def in_turns(ctx: Any, request: Any) -> Work[Any]:
        yield
        fail()

    async def later(ctx: Any, request: Any) -> Any:
        fail()

    put_handler(broker, Api.DELETE_GROUPS, {"at once": at_once, "in turns": in_turns, "later": later}[kind])
    async with await RawClient.open(broker) as client:
        gc.disable()
        try:
            for names in (NAMES, NAMES[:3]):
                response = await client.call(Api.DELETE_GROUPS, 2, groups_names=names)
                assert [row.group_id for row in response.results] == names
                assert {row.error_code for row in response.results} == {ErrorCode.coordinator_not_available}
                assert refs.pop()() is None, "an error that is kept does not keep where it was raised"
                errors.clear()
        finally:
            gc.enable()


async def test_a_stop_ends_work_in_turns(broker: Broker) -> None:
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    async with AsyncExitStack() as stack:
        for _ in range(LARGE_AT_ONCE + 1):
            client = await stack.enter_async_context(await RawClient.open(broker))
            await send_large(client)
        await until(lambda: gate.begun == LARGE_AT_ONCE and places_of(broker).waiting)
        async with asyncio.timeout(DEADLINE_S):
            await broker.stop()
    assert gate.closed == LARGE_AT_ONCE
    assert not gate.ended
    assert broker.components.turns.in_work == 0


async def test_what_is_in_work_when_its_client_leaves_is_done_and_gives_its_place_back(
    broker: Broker,
) -> None:
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    async with await RawClient.open(broker) as client:
        await send_large(client)
        await until(lambda: gate.begun)
    await until(lambda: not broker.components.network.connection_count)
    gate.is_open = True
    await until(lambda: not places_of(broker).taken)
    assert gate.ended == 1
    assert broker.components.network.queued_bytes == 0


async def test_a_large_frame_leaves_the_read_buffer_with_it(broker: Broker) -> None:
    """What comes behind it is read elsewhere, and both are answered in order."""
    gate = Gate()
    put_handler(broker, Api.DELETE_GROUPS, gate)
    connection, sink = connection_to(broker)
    names = ["x" * 100 + str(n) for n in range(3000)]
    frame = encode_request(Api.DELETE_GROUPS, 2, 1, "c", {"groups_names": names})
    behind = encode_request(Api.LIST_GROUPS, 0, 2, "c", {})
    feed(connection, frame + behind)
    assert broker.components.network.queued_bytes >= len(frame) - 4
    gate.is_open = True
    await until(lambda: len(sink.written) >= 2)
    sent = b"".join(sink.written)
    assert sent[4:8] == (1).to_bytes(4, "big")
    size = int.from_bytes(sent[:4], "big")
    assert sent[size + 8 : size + 12] == (2).to_bytes(4, "big")
    assert all(name.encode() in sent for name in names[::500])
    assert broker.components.network.queued_bytes == 0
