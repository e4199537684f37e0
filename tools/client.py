"""A small raw client: one protocol connection per broker, versions negotiated, requests sent to the leader.

Owns its connections and what it knows of the cluster. Does not own batching, groups or retries beyond a stale
leader: it is for the command line and for tests, which want to see each answer as the broker gave it.
Invariant: every request ends, with an answer, a `RequestFailed` or a `KafkaError`, within its deadline;
responses are matched by correlation id in the order of the requests.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, cast

from protocol import apis, messages, wire
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from tools.console import is_port

FRAME_BYTES_MAX = 256 << 20
DEADLINE_S = 30.0
API_VERSIONS_VERSION = 3

Fields = Mapping[str, Any]


class ClientNetwork(Protocol):
    """The half of a network that a client needs."""

    async def connect(
        self, host: str, port: int, factory: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...


class SystemNetwork:
    """The running loop's TCP."""

    async def connect(
        self, host: str, port: int, factory: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        transport, protocol = await asyncio.get_running_loop().create_connection(factory, host, port)
        return transport, protocol


class RequestFailed(Exception):
    """No usable answer: unreachable, closed, too late, or no version in common. The request may have been
    done.
    """


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not is_port(port) or int(port) == 0:
            raise ValueError(f"'{text}' is not HOST:PORT")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokerConnection(asyncio.BufferedProtocol):
    """One connection to one broker; requests are pipelined, each with its own deadline.

    `send` and the future it returns are for callers that pipeline; `request` is send-and-wait.
    """

    def __init__(self, address: Address, *, client_id: str, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self._wire = wire.Connection("client", client_id=client_id, frame_bytes_max=frame_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._why_closed: str | None = None

    @classmethod
    async def open(
        cls,
        network: ClientNetwork,
        address: Address,
        *,
        client_id: str = "tidewal",
        deadline_s: float = DEADLINE_S,
        negotiate: bool = True,
    ) -> Self:
        try:
            async with asyncio.timeout(deadline_s):
                _, protocol = await network.connect(
                    address.host, address.port, lambda: cls(address, client_id=client_id)
                )
        except TimeoutError:
            raise RequestFailed(f"{address} did not answer within {deadline_s:g} s") from None
        except OSError as error:
            raise RequestFailed(f"cannot reach {address}: {_os_reason(error)}") from None
        connection = cast(Self, protocol)
        if negotiate:
            try:
                await connection.negotiate(deadline_s=deadline_s)
            except BaseException:
                connection.abort()
                raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._why_closed is None

    async def negotiate(self, *, deadline_s: float = DEADLINE_S) -> None:
        """Ask for the version ranges, in a version that every broker since Kafka 2.4 knows."""
        answer = await self.request(
            Api.API_VERSIONS,
            {"client_software_name": "tidewal", "client_software_version": "0.1.0"},
            version=API_VERSIONS_VERSION,
            deadline_s=deadline_s,
        )
        if answer.error_code != ErrorCode.none:
            raise KafkaError(answer.error_code, f"{self.address} refused ApiVersions")
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def version_for(self, api: Api, *, highest: int | None = None) -> int:
        """Return the highest version both sides know, and not above `highest`."""
        ours = apis.SERVED[api]
        lowest, theirs = self.versions.get(api, (0, -1))
        version = min(ours.max_version, theirs, *(() if highest is None else (highest,)))
        if version < max(lowest, ours.min_version):
            raise RequestFailed(f"{self.address} serves no version of {api.name} that this client knows")
        return version

    def send(
        self, api: Api, fields: Fields, *, version: int | None = None, deadline_s: float = DEADLINE_S
    ) -> asyncio.Future[Any]:
        """Write the request now; the future is its answer, None at once for one that is never answered.

        A request past its deadline takes the connection with it: the answers behind it are late as well.
        """
        if version is None:
            version = self.version_for(api)
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open or self._transport is None:
            future.set_exception(RequestFailed(self._why_closed or f"{self.address} is not connected"))
            return future
        in_flight = self._wire.in_flight
        _, data = self._wire.send(api, version, fields)
        if self._wire.in_flight > in_flight:
            self._waiting.append(
                _Waiting(future, self._loop.call_later(deadline_s, self._expire, api, deadline_s))
            )
        else:
            future.set_result(None)
        self._transport.write(data)
        return future

    async def request(
        self, api: Api, fields: Fields, *, version: int | None = None, deadline_s: float = DEADLINE_S
    ) -> Any:
        return await self.send(api, fields, version=version, deadline_s=deadline_s)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def close(self) -> None:
        if self._transport is not None:
            self._fail(f"connection to {self.address} was closed here")
            self._transport.close()
            await self.wait_closed()

    def abort(self) -> None:
        if self._transport is not None:
            self._fail(f"connection to {self.address} was closed here")
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for answer in cast(list[wire.Answer], self._wire.received(nbytes)):
                waiting = self._waiting.popleft()
                waiting.timer.cancel()
                if not waiting.future.done():
                    waiting.future.set_result(answer.response)
        except MalformedRequest as error:
            self._fail(f"{self.address} sent what cannot be read: {error}")
            if self._transport is not None:
                self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {_os_reason(exc)}" if isinstance(exc, OSError) else ""
        self._fail(f"{self.address} closed the connection{reason}")
        if not self._closed.done():
            self._closed.set_result(None)

    def _expire(self, api: Api, deadline_s: float) -> None:
        self._fail(f"{self.address} did not answer {api.name} within {deadline_s:g} s")
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        if self._why_closed is None:
            self._why_closed = why
        while self._waiting:
            waiting = self._waiting.popleft()
            waiting.timer.cancel()
            if not waiting.future.done():
                waiting.future.set_exception(RequestFailed(self._why_closed))


class _Waiting(NamedTuple):
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class ClusterView:
    """What the last metadata said. `leaders` has no entry for a partition without a leader."""

    controller_id: int = -1
    cluster_id: str | None = None
    nodes: dict[int, Address] = field(default_factory=dict)
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    leader_epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    topic_ids: dict[str, Any] = field(default_factory=dict)
    partitions: dict[str, list[int]] = field(default_factory=dict)


class Client:
    """A cluster by its bootstrap addresses; each request goes to the right broker."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        network: ClientNetwork | None = None,
        client_id: str = "tidewal",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._bootstrap = list(bootstrap)
        self._network = network if network is not None else SystemNetwork()
        self._client_id = client_id
        self._deadline_s = deadline_s
        self._connections: dict[Address, BrokerConnection] = {}
        self.known = ClusterView()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    async def any_connection(self) -> BrokerConnection:
        """Return an open connection to some broker: one in use, a known node, or the bootstrap addresses in
        turn."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        failure: RequestFailed | None = None
        for address in dict.fromkeys([*self._bootstrap, *self.known.nodes.values()]):
            try:
                return await self._connection(address)
            except RequestFailed as error:
                failure = error
        raise failure or RequestFailed("no bootstrap address was given")

    async def request(
        self, api: Api, fields: Fields, *, node: int | None = None, deadline_s: float | None = None
    ) -> Any:
        """Send to broker `node`, or to any."""
        connection = await (self.any_connection() if node is None else self.connection_to(node))
        return await connection.request(api, fields, deadline_s=deadline_s or self._deadline_s)

    async def request_controller(self, api: Api, fields: Fields) -> Any:
        await self.refresh([])
        node = self.known.controller_id if self.known.controller_id in self.known.nodes else None
        return await self.request(api, fields, node=node)

    async def connection_to(self, node: int) -> BrokerConnection:
        if node not in self.known.nodes:
            await self.refresh([])
        address = self.known.nodes.get(node)
        if address is None:
            raise RequestFailed(f"broker {node} is not in the cluster's metadata")
        return await self._connection(address)

    async def refresh(self, topics: Sequence[str] | None = None, *, create: bool = False) -> Any:
        """Ask for the metadata of `topics` (None: all; []: brokers only), remember and return it."""
        names = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
        answer = await self.request(
            Api.METADATA,
            {
                "topics": names,
                "allow_auto_topic_creation": create,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        known = self.known
        known.controller_id, known.cluster_id = answer.controller_id, messages.get(answer, "cluster_id", None)
        known.nodes = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            self._learn(topic)
        return answer

    async def leader(self, topic: str, partition: int) -> int:
        """Return the leader's node id; ask once more when it is not known."""
        if (topic, partition) not in self.known.leaders:
            answer = await self.refresh([topic])
            code = next((row.error_code for row in answer.topics if row.name == topic), ErrorCode.none)
            if code != ErrorCode.none and code != ErrorCode.leader_not_available:
                raise KafkaError(code, f"topic {topic}")
        node = self.known.leaders.get((topic, partition))
        if node is None:
            known = partition in self.known.partitions.get(topic, ())
            code = ErrorCode.leader_not_available if known else ErrorCode.unknown_topic_or_partition
            raise KafkaError(code, f"partition {topic}-{partition}")
        return node

    async def produce(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> Any:
        """Send one record batch; return the partition's answer (`error_code`, `base_offset`, …), or None with
        acks=0."""
        answer = await (await self.begin_produce(topic, partition, batch, acks=acks, timeout_ms=timeout_ms))
        return None if answer is None else answer.responses[0].partition_responses[0]

    async def begin_produce(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> asyncio.Future[Any]:
        """Send one record batch; return once it is written, with what the whole answer will be."""
        connection = await self.connection_to(await self.leader(topic, partition))
        version = connection.version_for(Api.PRODUCE)
        data: dict[str, Any] = {"partition_data": [{"index": partition, "records": batch}]}
        data |= {"topic_id": self.known.topic_ids.get(topic)} if version >= 13 else {"name": topic}
        return connection.send(
            Api.PRODUCE,
            {"transactional_id": None, "acks": acks, "timeout": timeout_ms, "topic_data": [data]},
            version=version,
            deadline_s=self._deadline_s,
        )

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        read_committed: bool = False,
    ) -> Any:
        """Fetch of one partition outside any session; return its answer (`error_code`, `records`, offsets
        …).
        """
        connection = await self.connection_to(await self.leader(topic, partition))
        version = connection.version_for(Api.FETCH)
        row: dict[str, Any] = {
            "partitions": [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}]
        }
        row |= {"topic_id": self.known.topic_ids.get(topic)} if version >= 13 else {"topic": topic}
        answer = await connection.request(
            Api.FETCH,
            {
                "replica_id": -1,
                "max_wait": max_wait_ms,
                "min_bytes": min_bytes,
                "max_bytes": max_bytes,
                "isolation_level": int(read_committed),
                "session_id": 0,
                "session_epoch": -1,
                "topics": [row],
                "forgotten_topics_data": [],
                "rack_id": "",
            },
            version=version,
            deadline_s=self._deadline_s + max_wait_ms / 1000,
        )
        if answer.error_code != ErrorCode.none:
            raise KafkaError(answer.error_code, f"fetch from {topic}-{partition}")
        return answer.responses[0].partitions[0]

    async def list_offset(
        self, topic: str, partition: int, timestamp: int, *, read_committed: bool = False
    ) -> tuple[ErrorCode, int, int]:
        """Return (error, offset, timestamp) for a time or one of Kafka's negative names (-1 latest … -6
        pending upload)."""
        found = await self.listed_offset(topic, partition, timestamp, read_committed=read_committed)
        return found.error_code, found.offset, found.timestamp

    async def listed_offset(
        self, topic: str, partition: int, timestamp: int, *, read_committed: bool = False
    ) -> Any:
        """Return all that the leader answers for a time or a negative name."""
        connection = await self.connection_to(await self.leader(topic, partition))
        row = {
            "name": topic,
            "partitions": [
                {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
            ],
        }
        answer = await connection.request(
            Api.LIST_OFFSETS,
            {
                "replica_id": -1,
                "isolation_level": int(read_committed),
                "topics": [row],
                "timeout": 30_000,
            },
            deadline_s=self._deadline_s,
        )
        return answer.topics[0].partitions[0]

    async def _connection(self, address: Address) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = await BrokerConnection.open(
                self._network, address, client_id=self._client_id, deadline_s=self._deadline_s
            )
            self._connections[address] = connection
        return connection

    def _learn(self, topic: Any) -> None:
        known, name = self.known, topic.name
        for key in [key for key in known.leaders if key[0] == name]:
            del known.leaders[key]
        if topic.error_code != ErrorCode.none:
            return
        topic_id = messages.get(topic, "topic_id", None)
        if topic_id is not None:
            known.topic_ids[name] = topic_id
        known.partitions[name] = sorted(row.partition_index for row in topic.partitions)
        for row in topic.partitions:
            if row.leader_id >= 0:
                known.leaders[name, row.partition_index] = row.leader_id
                known.leader_epochs[name, row.partition_index] = messages.get(row, "leader_epoch", -1)


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError) or error.errno == errno.ECONNREFUSED:
        return "connection refused"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else (error.strerror or str(error))
