"""From a frame to its handler and back: exceptions become answers in one place."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import encode_request
from protocol.work import Work
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields, produce_fields
from tests.broker.replicas.test_replica_manager import connection_to, feed

if TYPE_CHECKING:
    from broker.server import Broker

DESCRIBE_CLUSTER: dict[str, Any] = {
    "include_cluster_authorized_operations": False,
    "include_fenced_brokers": False,
}
HEARTBEAT: dict[str, Any] = {
    "group_id": "g",
    "generation_id": 1,
    "member_id": "m",
    "group_instance_id": None,
}


def misspelt_reply(*_: Any) -> Work[dict[str, int]]:
    yield from ()
    return {"no such field": 1}


def fetch_of(broker: Broker) -> Any:
    dispatcher: Any = broker.components.network.service
    return dispatcher._fetch


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_bug_is_answered_and_its_stack_is_logged_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def fail(ctx: Any, request: Any) -> Any:
        raise ZeroDivisionError("a bug")

    async def fail_later(ctx: Any, request: Any) -> Any:
        raise ZeroDivisionError("a bug")

    dispatcher: Any = broker.components.network.service
    dispatcher._handlers[int(Api.DESCRIBE_CLUSTER)] = fail_later if is_async else fail
    async with await RawClient.open(broker) as client:
        for _ in range(3):
            response = await client.call(Api.DESCRIBE_CLUSTER, 0, **DESCRIBE_CLUSTER)
            assert response.error_code is ErrorCode.unknown_server_error
    traced = [record for record in caplog.records if record.exc_info]
    assert len(traced) == 1
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_that_cannot_be_told_costs_the_connection_alone(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    def fail(ctx: Any, request: Any) -> Any:
        raise KafkaError(ErrorCode.invalid_request)

    async def fail_later(ctx: Any, request: Any) -> Any:
        raise KafkaError(ErrorCode.invalid_request)

    dispatcher: Any = broker.components.network.service
    dispatcher._handlers[int(Api.DESCRIBE_CLUSTER)] = fail_later if is_async else fail
    monkeypatch.setattr("broker.handlers.dispatch.error_reply", misspelt_reply)
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.send(client.encode(Api.DESCRIBE_CLUSTER, 0, DESCRIBE_CLUSTER))
        assert await client.is_closed()
        response = await other.call(Api.LIST_GROUPS, 0)
        assert response.error_code is ErrorCode.none
    assert "the error reply of DescribeCluster" in caplog.text


async def test_a_bug_below_produce_or_fetch_costs_the_connection_alone(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t")

    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(fetch_of(broker), "read", fail)
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        produce = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x")))
        await client.send(produce + client.encode(Api.FETCH, 12, fetch_fields("t", 0)))
        response = await client.receive_as(Api.PRODUCE, 9)
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert await client.is_closed()
        assert (await other.produce("t", batch_of(b"x"))).base_offset == 1
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_bug_in_a_woken_fetch_costs_its_connection_and_not_the_producers(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t")
    waiters = broker.components.replicas.partition("t", 0).data_waiters

    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug")

    async with await RawClient.open(broker) as consumer, await RawClient.open(broker) as producer:
        await consumer.send(consumer.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=60_000)))
        async with asyncio.timeout(5):
            while not waiters:  # noqa: ASYNC110 - the broker's own state
                await asyncio.sleep(0)
        with monkeypatch.context() as broken:
            broken.setattr(fetch_of(broker), "read", fail)
            assert (await producer.produce("t", batch_of(b"x"))).base_offset == 0
        assert await consumer.is_closed()
        assert not waiters
        assert (await producer.produce("t", batch_of(b"x"))).base_offset == 1
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_an_error_that_escapes_a_handler_is_the_answer(broker: Broker) -> None:
    async def refuse(ctx: Any, request: Any) -> Any:
        raise KafkaError(ErrorCode.coordinator_not_available, "not yet")

    dispatcher: Any = broker.components.network.service
    dispatcher._handlers[int(Api.HEARTBEAT)] = refuse
    async with await RawClient.open(broker) as client:
        response = await client.call(Api.HEARTBEAT, 4, **HEARTBEAT)
        assert response.error_code is ErrorCode.coordinator_not_available
    assert broker.components.counters.errors[ErrorCode.coordinator_not_available.value] == 1


async def test_a_request_that_a_stop_meets_before_its_first_step_is_begun(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python warns on stderr of a coroutine that nobody ever awaited."""
    begun = []

    async def wait(ctx: Any, request: Any) -> Any:
        begun.append(request)
        await asyncio.Event().wait()

    dispatcher: Any = broker.components.network.service
    dispatcher._handlers[int(Api.HEARTBEAT)] = wait
    connection, sink = connection_to(broker)
    stop = broker.components.groups.stop

    async def stop_and_be_asked() -> None:
        await stop()
        feed(connection, encode_request(Api.HEARTBEAT, 4, 1, "c", HEARTBEAT))

    monkeypatch.setattr(broker.components.groups, "stop", stop_and_be_asked)
    await broker.stop()
    assert len(begun) == 1
    assert not sink.written


async def test_every_served_api_has_a_handler_and_counts(broker: Broker) -> None:
    before = list(broker.components.counters.requests)
    async with await RawClient.open(broker) as client:
        await client.call(Api.API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    changed = [at for at, count in enumerate(broker.components.counters.requests) if count != before[at]]
    assert changed == [int(Api.API_VERSIONS)]
