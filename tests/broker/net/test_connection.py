"""One connection: order, stalls, and every bound on what a client can make the broker keep."""

from __future__ import annotations

import asyncio
import socket
from struct import pack
from typing import TYPE_CHECKING

from broker.net.connection import PIPELINED_MAX
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches
from tests.broker.net.live import connections, until
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
    produce_fields,
    with_replicas,
)

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker


def _port(client: RawClient) -> int:
    port: int = client.writer.get_extra_info("sockname")[1]
    return port


async def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    """Requests that answer at once, after a task, after a wait and never, mixed in one send."""
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        data, expected = b"", []
        for _ in range(30):
            for api, version, fields in (
                (Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"))),
                (Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"), acks=0)),
                (Api.FETCH, 12, fetch_fields("t", 0)),
                (Api.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 1}),
                (Api.API_VERSIONS, 0, {}),
                (Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"), acks=-1)),
            ):
                data += client.encode(api, version, fields)
                if fields.get("acks") != 0:
                    expected.append((client.correlation_id, api, version))
        await client.send(data)
        for correlation_id, api, version in expected:
            await client.receive_as(api, version)
            assert client.answered == correlation_id
        assert broker.components.replicas.partition("t", 0).log.high_watermark == 90


async def test_a_fetch_sees_the_produce_before_it_in_the_same_read(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        produce = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x", b"y")))
        await client.send(produce + client.encode(Api.FETCH, 12, fetch_fields("t", 0)))
        await client.receive_as(Api.PRODUCE, 9)
        response = await client.receive_as(Api.FETCH, 12)
        partition = response.responses[0].partitions[0]
        assert partition.high_watermark == 2
        assert [header.count for _, header in iter_batches(partition.records)] == [2]


async def test_bytes_may_arrive_one_by_one(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"))):
            await client.send(bytes((byte,)))
            await asyncio.sleep(0)
        response = await client.receive_as(Api.PRODUCE, 9)
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none


async def test_a_waiting_fetch_holds_the_requests_behind_it(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        wait = client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=60_000))
        behind = b"".join(client.encode(Api.API_VERSIONS, 0, {}) for _ in range(5))
        await client.send(wait + behind)
        await until(lambda: broker.components.replicas.partition("t", 0).data_waiters)
        await other.produce("t", batch_of(b"x"))
        response = await client.receive_as(Api.FETCH, 12)
        assert client.answered == 1
        assert len(response.responses[0].partitions[0].records) == len(batch_of(b"x"))
        for correlation_id in range(2, 7):
            await client.receive_as(Api.API_VERSIONS, 0)
            assert client.answered == correlation_id


async def test_a_client_that_never_reads_costs_bounded_memory(broker: Broker) -> None:
    """A thousand 1 MB fetches asked for and none taken: one response is under way, no more."""
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.produce("t", batch_of(b"x" * 1_000_000))
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        request = client.encode(Api.FETCH, 12, fetch_fields("t", 0))
        client.writer.write(request * 1000)
        (greedy,) = [each for each in connections(broker) if each.peer_port == _port(client)]
        await until(lambda: greedy._stalled)
        for _ in range(20):
            await other.call(Api.API_VERSIONS, 0)
        assert greedy._transport is not None
        assert greedy._transport.get_write_buffer_size() < 1 << 20
        assert sum(map(len, greedy._held)) <= 1000 * len(request)
        assert len(greedy._slots) < 5


async def test_small_answers_nobody_takes_stop_the_reading(broker: Broker) -> None:
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.call(Api.API_VERSIONS, 0)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        request = client.encode(Api.API_VERSIONS, 0, {})
        client.writer.write(request * 300_000)
        (greedy,) = [each for each in connections(broker) if each.peer_port == _port(client)]
        await until(lambda: greedy._paused)
        for _ in range(20):
            await other.call(Api.API_VERSIONS, 0)
        assert greedy._transport is not None
        assert greedy._transport.get_write_buffer_size() < 1 << 20
        assert broker.components.network.queued_bytes < 4 << 20


async def test_a_frame_that_is_only_announced_costs_nothing(broker: Broker) -> None:
    """The size field promises 90 MB; memory follows the bytes that came."""
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.send(pack(">i", 90 << 20) + bytes(1000))
        await until(lambda: broker.components.network.queued_bytes >= 1000)
        (slow,) = [each for each in connections(broker) if each.peer_port == _port(client)]
        assert slow._reader.capacity <= 1 << 16
        await other.call(Api.API_VERSIONS, 0)
    await until(lambda: broker.components.network.queued_bytes == 0)


async def test_a_connection_that_is_gone_holds_no_buffer(broker: Broker) -> None:
    """Whoever still holds it, a wait for a commit for one, holds little."""
    async with await RawClient.open(broker) as client:
        await client.call(Api.API_VERSIONS, 0)
        (connection,) = connections(broker)
        await client.send(pack(">i", 4 << 20) + bytes(1 << 20))
        await until(lambda: connection._reader.capacity >= 1 << 20)
    await until(lambda: not connections(broker))
    assert connection._reader.capacity == 0
    assert broker.components.network.queued_bytes == 0


async def test_a_client_that_leaves_takes_its_waiters_along(broker: Broker) -> None:
    await create_topic(broker, "t")
    waiters = broker.components.replicas.partition("t", 0).data_waiters
    client = await RawClient.open(broker)
    await client.send(client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=60_000)))
    await until(lambda: waiters)
    client.writer.close()
    await until(lambda: not waiters)
    await until(lambda: broker.components.network.connection_count == 0)


async def test_unanswered_produce_requests_of_a_connection_are_bounded(make_broker: MakeBroker) -> None:
    """Commits that do not come stall the connection at the bound; later all are answered in order."""
    broker = await make_broker()
    await create_topic(broker, "t")
    partition = broker.components.replicas.partition("t", 0)
    with_replicas(partition, 1, 2)
    async with await RawClient.open(broker) as client:
        count = PIPELINED_MAX + 300
        requests = [
            client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"), acks=-1)) for _ in range(count)
        ]
        client.writer.write(b"".join(requests))
        (connection,) = connections(broker)
        await until(lambda: len(connection._slots) >= PIPELINED_MAX)
        assert partition.log.high_watermark == 0
        while client.correlation_id and partition.log.high_watermark < count:
            partition.follower_at(2, partition.log.log_end_offset)
            await asyncio.sleep(0)
        for correlation_id in range(1, count + 1):
            response = await client.receive_as(Api.PRODUCE, 9)
            answer = response.responses[0].partition_responses[0]
            assert (client.answered, answer.base_offset) == (correlation_id, correlation_id - 1)
            assert answer.error_code is ErrorCode.none


async def test_answers_behind_an_unanswered_produce_are_bounded(broker: Broker) -> None:
    await create_topic(broker, "t")
    await create_topic(broker, "big")
    partition = broker.components.replicas.partition("t", 0)
    with_replicas(partition, 1, 2)
    async with await RawClient.open(broker) as client:
        await client.produce("big", batch_of(b"x" * 200_000))
        data = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"), acks=-1))
        first, count = client.correlation_id, 200
        data += b"".join(client.encode(Api.FETCH, 12, fetch_fields("big", 0)) for _ in range(count))
        await client.send(data)
        (connection,) = connections(broker)
        await until(lambda: connection._paused)
        assert sum(len(answer) for answer in connection._slots if isinstance(answer, bytes)) < 1 << 20
        partition.follower_at(2, 1)
        await client.receive_as(Api.PRODUCE, 9)
        for correlation_id in range(first + 1, first + 1 + count):
            await client.receive_as(Api.FETCH, 12)
            assert client.answered == correlation_id
