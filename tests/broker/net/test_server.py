"""All connections together: their limits, pacing, and what becomes of idle ones."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from broker.net import server
from broker.net.answers import AnswerAccount
from broker.net.connection import Connection
from protocol.apis import Api, PeerApi
from protocol.errors import ErrorCode
from protocol.messages import encode_request
from tests.broker.net.live import connections, until
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
    produce_fields,
)

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker


async def test_queued_request_bytes_have_a_limit_for_all_together(make_broker: MakeBroker) -> None:
    """Above it only one connection goes on receiving; when that one is done or gone, the next does."""
    broker = await make_broker(queued_max_request_bytes="1000000", socket_request_max_bytes="1000000")
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
    broker = await make_broker(queued_max_request_bytes="10000000", socket_request_max_bytes="5000000")
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


async def test_who_holds_memory_in_silence_loses_it_to_who_comes_later(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(server, "WATCH_S", 0.01)
    broker = await make_broker(queued_max_request_bytes="8000000", socket_request_max_bytes="4000000")
    network = broker.components.network
    await create_topic(broker, "t", max_message_bytes="4000000")
    silent = [await RawClient.open(broker) for _ in range(6)]
    request = silent[0].encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x" * 3_000_000)))
    for client in silent:
        client.writer.write(request[:-1])
    await until(lambda: network.frames.waiting)
    async with await RawClient.open(broker) as honest:
        small = await honest.produce("t", batch_of(b"x" * 30_000))
        large = await honest.produce("t", batch_of(b"x" * 3_000_000))
        assert small.error_code is large.error_code is ErrorCode.none
    assert 0 < network.frames.closed <= 6
    lines = caplog.text.count("its request made no progress, and others wait for the memory")
    assert lines == network.frames.closed
    assert await silent[0].is_closed()
    for client in silent:
        client.writer.close()
    await until(lambda: network.connection_count == 0)
    assert network.frames.is_idle
    assert network.queued_bytes == 0
    await until(lambda: network._watch_timer is None)


async def test_a_frame_behind_a_wait_is_let_go_soon_after_its_client(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WATCH_S", 0.01)
    broker = await make_broker()
    await create_topic(broker, "t")
    client = await RawClient.open(broker)
    wait = client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=2**31 - 1))
    behind = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x" * 900_000)))
    await client.send(wait + behind)
    network = broker.components.network
    await until(lambda: network.queued_bytes > 900_000)
    client.writer.close()
    await until(lambda: network.connection_count == 0)
    assert network.queued_bytes == 0


async def test_the_connections_of_brokers_are_told_from_those_of_clients(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with (
        await RawClient.open(broker) as client,
        await RawClient.open(broker) as follower,
        await RawClient.open(broker) as asks,
    ):
        await client.fetch("t", 0)
        await follower.fetch("t", 0, version=11, replica_id=2)
        question = {"broker_id": 2, "broker_epoch": 0}
        await asks.send(encode_request(PeerApi.ALLOCATE_PRODUCER_IDS, 0, 1, None, question))
        await until(lambda: sum(each.is_peer for each in connections(broker)) == 2)
        ports = [each.writer.get_extra_info("sockname")[1] for each in (client, follower, asks)]
        is_peer = {each.peer_port: each.is_peer for each in connections(broker)}
        assert [is_peer[port] for port in ports] == [False, True, True]


async def _deaf(broker: Broker, times: int) -> RawClient:
    """A client that asks for long answers and takes none."""
    client = await RawClient.open(broker)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await client.send(b"".join(client.encode(Api.API_VERSIONS, 0, {}) for _ in range(times)))
    return client


async def test_answers_that_nobody_takes_have_a_limit_for_all_together(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker = await make_broker(socket_send_buffer_bytes="8192")
    network = broker.components.network
    network.answers = AnswerAccount(2_000_000, 900_000)
    async with await RawClient.open(broker) as honest:
        deaf = [await _deaf(broker, 1000) for _ in range(12)]
        await until(lambda: network.answers.closed)
        assert network.answers.bytes <= 900_000
        await honest.call(Api.API_VERSIONS, 0)
        for client in deaf:
            client.writer.close()
        await until(lambda: network.connection_count == 1)
        assert network.answers.is_idle
    assert "it does not take its answers" in caplog.text


async def test_who_takes_nothing_of_its_last_answer_is_not_waited_for(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WATCH_S", 0.01)
    broker = await make_broker(socket_send_buffer_bytes="8192")
    network = broker.components.network
    client = await _deaf(broker, 600)
    await until(lambda: network.answers.bytes)
    await client.send(b"\xff\xff\xff\xff")
    await until(lambda: network.connection_count == 0)
    assert network.answers.is_idle
    client.writer.close()


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


class Deaf(asyncio.Transport):
    """Reads on after a pause in `connection_made`, as uvloop's transports do."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.pauses = 0
        self.written = b""

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


async def test_a_request_that_comes_before_the_broker_serves_waits_until_then(broker: Broker) -> None:
    """Else a broker that starts says of every topic that it is not there, which producers take for final."""
    network = broker.components.network
    network._is_open = False
    early, transport = Connection(network, "PLAINTEXT"), Deaf()
    early.connection_made(transport)
    request = encode_request(Api.API_VERSIONS, 0, 1, "early", {})
    early.get_buffer(-1)[: len(request)] = request
    early.buffer_updated(len(request))
    assert transport.pauses == 2, "nothing more is read"
    for _ in range(20):
        await asyncio.sleep(0)
    assert transport.written == b""
    network.open()
    await until(lambda: transport.written)
    early.connection_lost(None)


class Fragile(Deaf):
    """Does not survive the end of reading while it asks for a buffer, as uvloop's transports do not."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asking = False
        self.ends: list[str] = []

    def _end(self, how: str) -> None:
        assert not self.is_asking
        self.ends.append(how)

    def pause_reading(self) -> None:
        self._end("pause")

    def close(self) -> None:
        self._end("close")

    def abort(self) -> None:
        self._end("abort")


@pytest.mark.parametrize("end", ["close", "abort", "pause"])
async def test_reading_does_not_end_while_the_loop_asks_for_a_buffer(broker: Broker, end: str) -> None:
    """The rounds that are finished then may fail, which costs the connection that is asked."""
    network = broker.components.network
    connection, transport = Connection(network, "PLAINTEXT"), Fragile()
    connection.connection_made(transport)

    def ends(*_: object) -> None:
        if end == "close":
            connection.close("its acks=0 failed")
        elif end == "abort":
            connection.abort("its requests could not be written")
        else:
            connection.await_room()

    answer: Any = (ends,)
    network._deferred.append((connection, [answer]))
    connection.has_deferred_round = True
    transport.is_asking = True
    connection.get_buffer(-1)
    transport.is_asking = False
    await until(lambda: transport.ends)
    assert transport.ends == [end]
    connection.connection_lost(None)


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


async def test_a_quiet_connection_gives_its_buffer_back(make_broker: MakeBroker) -> None:
    broker = await make_broker(connections_max_idle_ms="2000")
    await create_topic(broker, "t", max_message_bytes="4000000")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 3_000_000))
        (connection,) = connections(broker)
        assert connection._reader.capacity > 1 << 20
        await until(lambda: connection._reader.capacity <= 1 << 14)


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
