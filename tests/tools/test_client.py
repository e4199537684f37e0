"""The raw client against a broker made of the same wire code, joined by in-memory transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from protocol import apis, wire
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from tools.client import Address, BrokerConnection, Client, RequestFailed

FIRST = Address("first", 1)
SECOND = Address("second", 2)
EVERYTHING = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
Answers = Callable[[int, Any], Mapping[str, Any] | None]


class Pipe(asyncio.Transport):
    """One direction of a connection: what is written reaches the other side on the next loop turn."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.peer: Pipe | None = None
        self.protocol: Any = None
        self.is_closed = False

    def write(self, data: Any) -> None:
        if not self.is_closed and self.peer is not None:
            self.loop.call_soon(self.peer.deliver, bytes(data))

    def deliver(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.is_closed:
            room = self.protocol.get_buffer(-1)
            taken = min(len(room), len(view))
            room[:taken] = view[:taken]
            view = view[taken:]
            self.protocol.buffer_updated(taken)

    def close(self) -> None:
        for end in (self, self.peer):
            if end is not None and not end.is_closed:
                end.is_closed = True
                self.loop.call_soon(end.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed


class FakeBroker(asyncio.BufferedProtocol):
    """Answers each request with what `answers` says; None keeps silent."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.wire = wire.Connection("server")
        self.transport: Pipe | None = None
        self.requests: list[tuple[Api, int, Any]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for request in self.wire.received(nbytes):
            assert isinstance(request, wire.Request)
            api = Api(request.head.api_key)
            self.requests.append((api, request.head.api_version, request.body))
            fields = self.answers(api, request.body)
            if fields is not None and self.transport is not None:
                self.transport.write(self.wire.answer(request.head, fields))


class FakeNetwork:
    def __init__(self, brokers: Mapping[Address, FakeBroker]) -> None:
        self.brokers = brokers
        self.connects: list[Address] = []

    async def connect(
        self, host: str, port: int, factory: Callable[[], Any]
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        address = Address(host, port)
        self.connects.append(address)
        if address not in self.brokers:
            raise ConnectionRefusedError(111, "refused")
        ours, theirs = Pipe(), Pipe()
        ours.peer, theirs.peer = theirs, ours
        ours.protocol, theirs.protocol = factory(), self.brokers[address]
        theirs.protocol.connection_made(theirs)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol


def versions(*, produce_max: int = 13) -> Mapping[str, Any]:
    ranges = {int(key): (row.min_version, row.max_version) for key, row in apis.SERVED.items()}
    ranges[Api.PRODUCE] = (0, produce_max)
    return {
        "error_code": ErrorCode.none,
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in ranges.items()
        ],
        "throttle_time": 0,
    }


def metadata(leader: int, *, error: ErrorCode = ErrorCode.none) -> Mapping[str, Any]:
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": 1, "host": FIRST.host, "port": FIRST.port, "rack": None},
            {"node_id": 2, "host": SECOND.host, "port": SECOND.port, "rack": None},
        ],
        "cluster_id": "c",
        "controller_id": 2,
        "topics": [
            {
                "error_code": error,
                "name": "t",
                "topic_id": None,
                "is_internal": False,
                "partitions": []
                if error != ErrorCode.none
                else [
                    {
                        "error_code": ErrorCode.none,
                        "partition_index": 0,
                        "leader_id": leader,
                        "leader_epoch": 3,
                        "replica_nodes": [1, 2],
                        "isr_nodes": [1, 2],
                        "offline_replicas": [],
                    }
                ],
            }
        ],
        "error_code": ErrorCode.none,
    }


def offset_answer(offset: int) -> Mapping[str, Any]:
    row = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "timestamp": -1,
        "offset": offset,
        "leader_epoch": 3,
    }
    return {"throttle_time": 0, "topics": [{"name": "t", "partitions": [row]}]}


def broker(table: Mapping[Api, Mapping[str, Any] | None]) -> FakeBroker:
    full = {Api.API_VERSIONS: versions(), Api.METADATA: metadata(leader=2), **table}
    return FakeBroker(lambda api, body: full[Api(api)])


@pytest.fixture
async def opened() -> AsyncIterator[list[Client]]:
    clients: list[Client] = []
    yield clients
    for client in clients:
        await client.close()


async def test_goes_to_the_leader_and_keeps_its_connections(opened: list[Client]) -> None:
    second = broker({Api.LIST_OFFSETS: offset_answer(42)})
    network = FakeNetwork({FIRST: broker({}), SECOND: second})
    client = Client([FIRST], network=network)
    opened.append(client)
    for _ in range(2):
        assert await client.list_offset("t", 0, -1) == (ErrorCode.none, 42, -1)
    assert network.connects == [FIRST, SECOND]
    assert [api for api, _, _ in second.requests] == [Api.API_VERSIONS, Api.LIST_OFFSETS, Api.LIST_OFFSETS]


async def test_the_next_bootstrap_address_when_one_refuses(opened: list[Client]) -> None:
    network = FakeNetwork({SECOND: broker({})})
    client = Client([FIRST, SECOND], network=network)
    opened.append(client)
    await client.refresh()
    assert network.connects == [FIRST, SECOND]
    assert (client.known.controller_id, client.known.cluster_id) == (2, "c")


async def test_nobody_there_is_one_line() -> None:
    with pytest.raises(RequestFailed, match=r"cannot reach first:1: connection refused"):
        await Client([FIRST], network=FakeNetwork({})).refresh()


async def test_versions_meet_in_the_middle(opened: list[Client]) -> None:
    connection = await BrokerConnection.open(
        FakeNetwork({FIRST: broker({Api.API_VERSIONS: versions(produce_max=9)})}), FIRST
    )
    assert connection.version_for(Api.PRODUCE) == 9
    assert connection.version_for(Api.FETCH) == apis.SERVED[Api.FETCH].max_version
    assert connection.version_for(Api.FETCH, highest=12) == 12
    with pytest.raises(RequestFailed, match="serves no version of FETCH"):
        connection.version_for(Api.FETCH, highest=3)
    await connection.close()


async def test_a_silent_broker_costs_the_deadline_and_the_connection() -> None:
    network = FakeNetwork({FIRST: broker({Api.METADATA: None})})
    client = Client([FIRST], network=network, deadline_s=0.01)
    with pytest.raises(RequestFailed, match=r"did not answer METADATA within 0\.01 s"):
        await client.refresh()
    with pytest.raises(RequestFailed):
        await client.refresh()
    assert network.connects == [FIRST, FIRST], "the connection that was given up is not used again"
    await client.close()


async def test_answers_come_in_the_order_of_pipelined_requests() -> None:
    offsets = iter(range(100))
    table = {Api.API_VERSIONS: versions()}
    network = FakeNetwork(
        {FIRST: FakeBroker(lambda api, body: table.get(Api(api)) or offset_answer(next(offsets)))}
    )
    connection = await BrokerConnection.open(network, FIRST)
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [], "timeout": 0}
    answers = await asyncio.gather(*[connection.send(Api.LIST_OFFSETS, fields) for _ in range(20)])
    assert [answer.topics[0].partitions[0].offset for answer in answers] == list(range(20))
    await connection.close()


async def test_a_connection_cut_by_the_broker_fails_what_waits() -> None:
    silent = broker({Api.METADATA: None})
    connection = await BrokerConnection.open(FakeNetwork({FIRST: silent}), FIRST)
    waiting = connection.send(Api.METADATA, EVERYTHING)
    assert silent.transport is not None
    silent.transport.close()
    with pytest.raises(RequestFailed, match="first:1 closed the connection"):
        await waiting
    with pytest.raises(RequestFailed):
        await connection.request(Api.METADATA, EVERYTHING)
    await connection.wait_closed()


async def test_an_answer_that_cannot_be_read_fails_what_waits() -> None:
    silent = broker({Api.METADATA: None})
    connection = await BrokerConnection.open(FakeNetwork({FIRST: silent}), FIRST)
    waiting = connection.send(Api.METADATA, EVERYTHING)
    assert silent.transport is not None
    silent.transport.write(b"\0\0\0\x04\x7f\xff\xff\xff")
    with pytest.raises(RequestFailed, match="sent what cannot be read"):
        await waiting
    await connection.close()


async def test_an_unknown_topic_is_kafkas_error(opened: list[Client]) -> None:
    unknown = metadata(leader=1, error=ErrorCode.unknown_topic_or_partition)
    client = Client([FIRST], network=FakeNetwork({FIRST: broker({Api.METADATA: unknown})}))
    opened.append(client)
    with pytest.raises(KafkaError) as caught:
        await client.leader("t", 0)
    assert caught.value.code == ErrorCode.unknown_topic_or_partition


async def test_a_partition_without_a_leader_says_so(opened: list[Client]) -> None:
    client = Client([FIRST], network=FakeNetwork({FIRST: broker({Api.METADATA: metadata(leader=-1)})}))
    opened.append(client)
    with pytest.raises(KafkaError) as caught:
        await client.leader("t", 0)
    assert caught.value.code == ErrorCode.leader_not_available
    with pytest.raises(KafkaError) as caught:
        await client.leader("t", 1)
    assert caught.value.code == ErrorCode.unknown_topic_or_partition


async def test_produce_with_acks_0_waits_for_nothing(opened: list[Client]) -> None:
    silent = broker({Api.METADATA: metadata(leader=1), Api.PRODUCE: None})
    client = Client([FIRST], network=FakeNetwork({FIRST: silent}))
    opened.append(client)
    assert await client.produce("t", 0, b"batch", acks=0) is None
    await client.refresh()
    assert [api for api, _, _ in silent.requests][-2:] == [Api.PRODUCE, Api.METADATA]


@pytest.mark.parametrize("text", ["host", "host:", ":9092", "host:0", "host:70000", "host:http"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        Address.parse(text)


def test_addresses() -> None:
    assert Address.parse(" [::1]:9092 ") == Address("::1", 9092)
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert Address.parse("h.example:1") == Address("h.example", 1)
