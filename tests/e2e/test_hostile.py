"""Clients that mean harm, over real sockets: each costs bounded memory and nobody else's time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from protocol import messages
from protocol.apis import Api
from tests.clients.blocking import FETCH_BYTES_MAX, BlockingClient
from tests.compat.peers import unique, until
from tests.e2e.load import batch_of
from tests.processes import BrokerProcess

PATIENCE_S = 2.0
MEMORY_BYTES_MAX = 96 << 20
CLOSES_S = 10.0


@pytest.fixture
def honest(broker_process: BrokerProcess) -> Iterator[BlockingClient]:
    """Somebody else's connection, with a topic of its own to produce to."""
    with BlockingClient(broker_process.bootstrap) as client:
        yield client


@pytest.fixture
def topic(honest: BlockingClient) -> str:
    name = unique("topic")
    honest.call(
        Api.METADATA,
        12,
        topics=[{"topic_id": None, "name": name}],
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    until(lambda: honest.produce(name, 0, bytes(batch_of(b"first"))).error_code == 0, "the topic")
    return name


def memory_bytes(broker: BrokerProcess) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def serves(honest: BlockingClient, topic: str) -> None:
    """Twenty requests of somebody else, each answered in good time."""
    for _ in range(20):
        began = time.monotonic()
        assert honest.produce(topic, 0, bytes(batch_of(b"mine"))).error_code == 0
        assert time.monotonic() - began < PATIENCE_S


def dial(broker: BrokerProcess) -> closing[socket.socket]:
    return closing(socket.create_connection((broker.host, broker.port), timeout=CLOSES_S))


def is_closed(connection: socket.socket) -> bool:
    """The broker hung up; what it may have said before does not matter here."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True


def test_a_client_that_never_reads(broker_process: BrokerProcess, honest: BlockingClient, topic: str) -> None:
    large = bytes(batch_of(b"x" * 900_000))
    for _ in range(8):
        assert honest.produce(topic, 0, large).error_code == 0
    before = memory_bytes(broker_process)
    with ExitStack() as stack:
        bootstrap = broker_process.bootstrap
        deaf = [stack.enter_context(BlockingClient(bootstrap, timeout_s=0.2)) for _ in range(10)]
        for client in deaf:
            ask_without_reading(client, topic, times=200)
        serves(honest, topic)
        assert memory_bytes(broker_process) - before < MEMORY_BYTES_MAX
    serves(honest, topic)


def ask_without_reading(client: BlockingClient, topic: str, *, times: int) -> None:
    """Two hundred megabytes of answers asked for; the socket takes what it takes."""
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": FETCH_BYTES_MAX,
    }
    fields = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": FETCH_BYTES_MAX,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    try:
        for number in range(times):
            client.socket.sendall(messages.encode_request(Api.FETCH, 12, number, "deaf", fields))
    except (TimeoutError, ConnectionError):
        return


def test_clients_that_trickle(broker_process: BrokerProcess, honest: BlockingClient, topic: str) -> None:
    request = messages.encode_request(
        Api.API_VERSIONS, 3, 1, "slow", {"client_software_name": "s", "client_software_version": "1"}
    )
    before = memory_bytes(broker_process)
    with ExitStack() as stack:
        slow = [stack.enter_context(dial(broker_process)) for _ in range(100)]
        for byte in range(len(request) - 1):
            for connection in slow:
                connection.sendall(request[byte : byte + 1])
            if byte % 10 == 0:
                serves(honest, topic)
        assert memory_bytes(broker_process) - before < MEMORY_BYTES_MAX
        for connection in slow:
            connection.sendall(request[-1:])
            assert len(connection.recv(4)) == 4, "a slow request is still a request"


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 100 << 20], ids=["-1", "min", "max", "100 MiB"])
def test_a_frame_of_an_impossible_size_closes_its_connection(
    broker_process: BrokerProcess, honest: BlockingClient, topic: str, size: int
) -> None:
    before = memory_bytes(broker_process)
    with dial(broker_process) as connection:
        connection.sendall(
            (size + (1 if size == 100 << 20 else 0)).to_bytes(4, "big", signed=True) + bytes(64)
        )
        assert is_closed(connection)
    assert memory_bytes(broker_process) - before < MEMORY_BYTES_MAX
    serves(honest, topic)


def test_a_promised_frame_that_never_comes_reserves_nothing(
    broker_process: BrokerProcess, honest: BlockingClient, topic: str
) -> None:
    before = memory_bytes(broker_process)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(dial(broker_process))
            connection.sendall((90 << 20).to_bytes(4, "big") + bytes(1000))
        serves(honest, topic)
        assert memory_bytes(broker_process) - before < MEMORY_BYTES_MAX


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        bytes.fromhex("16030100c8010000c4030300000000"),
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x05hello",
        b"\x00\x00\x00\x0e\x03\xe7\x00\x00\x00\x00\x00\x01\x00\x04nope",
        b"\x00\x00\x00\x0e\x00\x03\x7f\xff\x00\x00\x00\x01\x00\x04nope",
    ],
    ids=["http", "tls", "empty", "short", "unknown-api", "unknown-version"],
)
def test_what_is_no_request_closes_its_connection(
    broker_process: BrokerProcess, honest: BlockingClient, topic: str, greeting: bytes
) -> None:
    with dial(broker_process) as connection:
        connection.sendall(greeting)
        assert is_closed(connection)
    serves(honest, topic)
    assert "Traceback" not in broker_process.stderr


def test_many_connections_that_come_and_go(
    broker_process: BrokerProcess, honest: BlockingClient, topic: str
) -> None:
    before = memory_bytes(broker_process)
    open_before = len(list(Path(f"/proc/{broker_process.pid}/fd").iterdir()))
    for _ in range(500):
        with dial(broker_process) as connection:
            connection.sendall(b"\x00\x00")
    serves(honest, topic)
    until(
        lambda: len(list(Path(f"/proc/{broker_process.pid}/fd").iterdir())) <= open_before + 5,
        "the broker to close what its clients closed",
    )
    assert memory_bytes(broker_process) - before < MEMORY_BYTES_MAX
