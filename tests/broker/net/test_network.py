"""Connections: order, stalls, and every bound on what a client can make the broker keep."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import pack
from typing import TYPE_CHECKING, Any

import pytest

from broker.net.connection import PIPELINED_MAX, Connection
from broker.net.sending import BulkSender
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches
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


def connections(broker: Broker) -> list[Connection]:
    return list(broker.components.network._connections)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is the broker's own state
            await asyncio.sleep(0.001)


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


@pytest.mark.parametrize("size", [70_000, 300_000, 3_000_000, 20_000_000])
async def test_big_fetches_arrive_whole_and_in_order(broker: Broker, size: int) -> None:
    """Joined, and from the file; with small answers before and behind in the same send."""
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        batches = [batch_of(bytes([at]) * 500_000) for at in range(min(size // 500_000, 45) or 1)]
        if size < 500_000:
            batches = [batch_of(b"x" * size)]
        for batch in batches:
            assert (await client.produce("t", batch)).error_code is ErrorCode.none
        limits = {"max_bytes": size + 100_000, "partition_max_bytes": size + 100_000}
        data = client.encode(Api.API_VERSIONS, 0, {})
        for _ in range(3):
            data += client.encode(Api.FETCH, 12, fetch_fields("t", 0, **limits))
            data += client.encode(Api.API_VERSIONS, 0, {})
        await client.send(data)
        await client.receive_as(Api.API_VERSIONS, 0)
        for _ in range(3):
            response = await client.receive_as(Api.FETCH, 12)
            records = response.responses[0].partitions[0].records
            assert sum(header.count for _, header in iter_batches(records)) == len(batches)
            await client.receive_as(Api.API_VERSIONS, 0)


@pytest.mark.parametrize("is_real", [True, False])
async def test_many_big_fetches_that_were_held_keep_their_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_real: bool
) -> None:
    """A response the socket takes at once ends its own stall in the middle of a round of held requests."""
    if not is_real:
        monkeypatch.setattr(BulkSender, "_open_socket", lambda self: False)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 700_000))
        first, count = client.correlation_id + 1, 300
        client.writer.write(
            b"".join(client.encode(Api.FETCH, 12, fetch_fields("t", 0)) for _ in range(count))
        )
        for correlation_id in range(first, first + count):
            await client.receive_as(Api.FETCH, 12)
            assert client.answered == correlation_id


async def test_big_fetches_without_a_real_socket_go_in_chunks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkSender, "_open_socket", lambda self: False)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for at in range(8):
            await client.produce("t", batch_of(bytes([at]) * 900_000))
        limits = {"max_bytes": 1 << 24, "partition_max_bytes": 1 << 24}
        for _ in range(2):
            fetched = await client.fetch("t", 0, **limits)
            assert [header.base_offset for _, header in iter_batches(fetched.records)] == list(range(8))


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


def _port(client: RawClient) -> int:
    port: int = client.writer.get_extra_info("sockname")[1]
    return port


async def test_a_frame_that_is_only_announced_costs_nothing(broker: Broker) -> None:
    """The size field promises 90 MB; memory follows the bytes that came."""
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.send(pack(">i", 90 << 20) + bytes(1000))
        await until(lambda: broker.components.network.queued_bytes >= 1000)
        (slow,) = [each for each in connections(broker) if each.peer_port == _port(client)]
        assert slow._reader.capacity <= 1 << 16
        await other.call(Api.API_VERSIONS, 0)
    await until(lambda: broker.components.network.queued_bytes == 0)


async def test_queued_request_bytes_have_a_limit_for_all_together(make_broker: MakeBroker) -> None:
    """Above it only one connection goes on receiving; when that one is done or gone, the next does."""
    broker = await make_broker(queued_max_request_bytes="200000")
    await create_topic(broker, "t", max_message_bytes="2000000")
    clients = [await RawClient.open(broker) for _ in range(6)]
    network = broker.components.network
    requests = [
        client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x" * 900_000))) for client in clients
    ]
    for client, request in zip(clients, requests, strict=True):
        client.writer.write(request[:500_000])
    await until(lambda: network.queued_bytes > 200_000)
    for client, request in zip(clients, requests, strict=True):
        client.writer.write(request[500_000:])
    for client in clients:
        response = await client.receive_as(Api.PRODUCE, 9)
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
        client.writer.close()
    await until(lambda: network.queued_bytes == 0)


async def test_buffers_that_large_frames_left_have_a_limit_for_all_together(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker(queued_max_request_bytes="10000000")
    await create_topic(broker, "t", max_message_bytes="5000000")
    clients = [await RawClient.open(broker) for _ in range(6)]
    for client in clients:
        for _ in range(2):
            answer = await client.produce("t", batch_of(b"x" * 4_000_000))
            assert answer.error_code is ErrorCode.none
        assert sum(each._reader.capacity for each in connections(broker)) < 11_000_000
    network = broker.components.network
    for client in clients:
        client.writer.close()
    await until(lambda: network.connection_count == 0)
    assert (network._large_bytes, network.queued_bytes) == (0, 0)


async def test_connections_have_limits(make_broker: MakeBroker) -> None:
    broker = await make_broker(max_connections="3")
    clients = [await RawClient.open(broker) for _ in range(3)]
    for client in clients:
        await client.call(Api.API_VERSIONS, 0)
    async with await RawClient.open(broker) as refused:
        assert await refused.is_closed()
    clients[0].writer.close()
    await until(lambda: broker.components.network.connection_count == 2)
    async with await RawClient.open(broker) as accepted:
        await accepted.call(Api.API_VERSIONS, 0)
    assert broker.components.network.stats.rejected == 1
    for client in clients:
        client.writer.close()


async def test_connections_per_ip_have_limits_with_overrides(make_broker: MakeBroker) -> None:
    broker = await make_broker(max_connections_per_ip="1", max_connections_per_ip_overrides="127.0.0.1:2")
    async with await RawClient.open(broker) as first, await RawClient.open(broker) as second:
        await first.call(Api.API_VERSIONS, 0)
        await second.call(Api.API_VERSIONS, 0)
        async with await RawClient.open(broker) as third:
            assert await third.is_closed()


async def test_connections_come_at_a_limited_rate(make_broker: MakeBroker) -> None:
    """Who comes too early is served later, not refused."""
    broker = await make_broker(max_connection_creation_rate="20")
    loop = asyncio.get_running_loop()
    started = loop.time()
    clients = [await RawClient.open(broker) for _ in range(30)]
    await asyncio.gather(*(client.call(Api.API_VERSIONS, 0) for client in clients))
    assert loop.time() - started > 0.4
    for client in clients:
        client.writer.close()


async def test_only_so_many_wait_for_their_turn(make_broker: MakeBroker) -> None:
    """Those whom Kafka would leave in the listen queue, which has a length; the next is refused."""
    broker = await make_broker(max_connection_creation_rate="1", socket_listen_backlog_size="3")
    async with (
        await RawClient.open(broker) as at_once,
        await RawClient.open(broker) as second,
        await RawClient.open(broker) as third,
        await RawClient.open(broker) as fourth,
        await RawClient.open(broker) as refused,
    ):
        await at_once.call(Api.API_VERSIONS, 0)
        assert await refused.is_closed()
        network = broker.components.network
        assert (network.stats.accepted, network.stats.rejected) == (4, 1)
        for waiting in (second, third, fourth):
            assert not waiting.reader.at_eof()


async def test_idle_connections_are_closed_and_waiting_ones_are_not(make_broker: MakeBroker) -> None:
    broker = await make_broker(connections_max_idle_ms="300")
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as idle, await RawClient.open(broker) as waiting:
        await idle.call(Api.API_VERSIONS, 0)
        wait = waiting.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=1500))
        await waiting.send(wait)
        assert await idle.is_closed()
        await waiting.receive_as(Api.FETCH, 12)
    assert broker.components.network.stats.closed_idle >= 1


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


async def test_a_quiet_connection_gives_its_buffer_back(make_broker: MakeBroker) -> None:
    broker = await make_broker(connections_max_idle_ms="2000")
    await create_topic(broker, "t", max_message_bytes="4000000")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 3_000_000))
        (connection,) = connections(broker)
        assert connection._reader.capacity > 1 << 20
        await until(lambda: connection._reader.capacity <= 1 << 14)


async def test_a_client_that_leaves_takes_its_waiters_along(broker: Broker) -> None:
    await create_topic(broker, "t")
    waiters = broker.components.replicas.partition("t", 0).data_waiters
    client = await RawClient.open(broker)
    await client.send(client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=60_000)))
    await until(lambda: waiters)
    client.writer.close()
    await until(lambda: not waiters)
    await until(lambda: broker.components.network.connection_count == 0)


async def test_a_client_that_leaves_requests_behind_a_wait_is_missed(make_broker: MakeBroker) -> None:
    """Nothing is read while a wait holds requests back, so the loop does not see the peer go."""
    broker = await make_broker(connections_max_idle_ms="300")
    await create_topic(broker, "t")
    waiters = broker.components.replicas.partition("t", 0).data_waiters
    client = await RawClient.open(broker)
    wait = client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=2**31 - 1))
    await client.send(wait * 3)
    await until(lambda: waiters)
    (connection,) = connections(broker)
    assert connection._paused
    client.writer.close()
    await until(lambda: broker.components.network.connection_count == 0)
    assert not waiters


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


async def test_buffers_of_accepted_connections_are_as_set_or_the_kernels(make_broker: MakeBroker) -> None:
    async def buffers(**settings: str) -> tuple[int, int]:
        broker = await make_broker(**settings)
        async with await RawClient.open(broker) as client:
            await client.call(Api.API_VERSIONS, 0)
            (connection,) = connections(broker)
            accepted = connection._transport.get_extra_info("socket")
            found = tuple(accepted.getsockopt(socket.SOL_SOCKET, option) for option in options)
        await broker.stop()
        return found[0], found[1]

    options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        plain, _ = server.accept()
        with plain:
            left_alone = plain.getsockopt(socket.SOL_SOCKET, options[0])
            received = plain.getsockopt(socket.SOL_SOCKET, options[1])
    assert await buffers() == (left_alone, received)
    asked = await buffers(socket_send_buffer_bytes="20000", socket_receive_buffer_bytes="30000")
    doubled = (40_000, 60_000)  # by Linux, for what it keeps beside the bytes
    assert asked in (doubled, (20_000, 30_000))
