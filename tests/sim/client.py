"""Owns a raw client of a simulation: its lines to the brokers, what it knows of the cluster, and the single
operations; no hidden retries, every operation recorded once with what the client knows.

Does not own what clients do all day (workload.py) nor verdicts, and never looks into a broker: only the node
and the life that answer are taken from the connection, because a client's view is judged against them.

Invariant: an answer is believed only as far as the protocol lets a client believe it (see history.classify).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol import messages, records, wire
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim.history import (
    Batch,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    Fetch,
    History,
    Result,
    TopicPartition,
    classify,
    digest,
    value_of,
)
from tests.sim.loop import Process, SimLoop
from tests.sim.net import Fabric, SimNetwork, SimTransport
from tests.sim.node import node_of

BROKER_PORT = 9092
RETRY_S = 0.1
REQUEST_TIMEOUT_S = 3.0
METADATA_MAX_AGE_S = 10.0

VERSIONS: Mapping[Api, tuple[int, ...]] = {
    Api.PRODUCE: (3, 8, 9, 12),
    Api.FETCH: (11, 12),
    Api.METADATA: (12,),
    Api.LIST_OFFSETS: (7,),
    Api.INIT_PRODUCER_ID: (4,),
    Api.CREATE_TOPICS: (7,),
    Api.DELETE_TOPICS: (6,),
    Api.DELETE_RECORDS: (2,),
    Api.ELECT_LEADERS: (2,),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0,),
    Api.INCREMENTAL_ALTER_CONFIGS: (1,),
    Api.CREATE_PARTITIONS: (3,),
    Api.FIND_COORDINATOR: (3,),
    Api.JOIN_GROUP: (7,),
    Api.SYNC_GROUP: (5,),
    Api.HEARTBEAT: (4,),
    Api.LEAVE_GROUP: (4,),
    Api.OFFSET_COMMIT: (8,),
    Api.OFFSET_FETCH: (7,),
}


class Lost(Exception):
    """No answer: refused, reset, closed or too late. What was asked may have happened."""


Address = tuple[str, int]


@dataclass(slots=True)
class Env:
    """What all clients of one run share. `hosts` are the brokers anyone may begin with; `ends` looks at the
    log end of every living replica, for the record of an ack, not for the client."""

    loop: SimLoop
    fabric: Fabric
    history: History
    hosts: Sequence[str]
    now_ms: Callable[[], int]
    ends: Callable[[TopicPartition], tuple[tuple[int, int], ...]] = lambda _: ()
    patience_s: tuple[float, ...] = (2.0,)
    stopping: bool = False

    @property
    def now(self) -> float:
        return self.loop.now


class Line(asyncio.Protocol):
    """One connection: requests go out at once, answers come back in order."""

    def __init__(self, client_id: str) -> None:
        self._wire = wire.Connection("client", client_id=client_id)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._transport: SimTransport | None = None
        self.is_lost = False
        self.number = 0
        self.node = 0
        self.life = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self._transport = transport
        self.number = transport.connection.number
        self.node = node_of(transport.peer.process.name)
        self.life = transport.peer.process.life

    def data_received(self, data: bytes) -> None:
        for answer in self._wire.receive(data):
            assert isinstance(answer, wire.Answer)
            waiting = self._waiting.pop(answer.correlation_id)
            if not waiting.done():
                waiting.set_result(answer.response)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Lost(str(exc or "closed")))
                waiting.exception()  # whoever does not await it any more need not see it
        self._waiting.clear()

    def ask(self, api: Api, version: int, fields: Mapping[str, Any]) -> asyncio.Future[Any]:
        assert self._transport is not None
        future: asyncio.Future[Any] = self._transport.fabric.loop.create_future()
        if self.is_lost:
            future.set_exception(Lost("closed"))
            future.exception()
            return future
        correlation_id, data = self._wire.send(api, version, fields)
        if wire.is_answered(api, fields):
            self._waiting[correlation_id] = future
        else:
            future.set_result(None)
        self._transport.write(data)
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class SimClient:
    """A client process: one line to each broker it needs, reopened on need; what it knows of the cluster is
    what brokers told it."""

    def __init__(self, env: Env, name: str, rng: random.Random) -> None:
        self.env = env
        self.name = name
        self.rng = rng
        self.process = Process(env.loop, name)
        self.network: SimNetwork = env.fabric.endpoint(name, self.process)
        self.lines: dict[Address, Line] = {}
        self.home: Address = (rng.choice(env.hosts), BROKER_PORT)
        self.addresses: dict[int, Address] = {}
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}  # node and leader epoch
        self.learned: dict[TopicPartition, float] = {}  # when that was
        self.nearer: dict[TopicPartition, int] = {}  # the follower a leader told us to read from
        self.coordinators: dict[str, Address] = {}
        self.rack = ""
        self.versions = {api: rng.choice(versions) for api, versions in VERSIONS.items()}

    @property
    def now(self) -> float:
        return self.env.loop.now

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.process.spawn(work, name=self.name)

    # lines --------------------------------------------------------------------------------------------------

    async def connected(self) -> Line:
        """A line to any broker; keeps trying one after the other until one is there."""
        while True:
            try:
                return await self.line_at(self.home)
            except Lost:
                self.home = (self.rng.choice(self.env.hosts), BROKER_PORT)
                await self.pause(RETRY_S)

    async def line_at(self, address: Address) -> Line:
        """The open line to this address, or a new one; Lost when it cannot be had."""
        line = self.lines.get(address)
        if line is not None and not line.is_lost:
            return line
        line = Line(self.name)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self.network.connect(*address, lambda: line)
        except OSError as error:
            raise Lost(str(error)) from error
        self.lines[address] = line
        return line

    async def line_to(self, tp: TopicPartition) -> Line:
        """A line to the leader as far as it is known; keeps asking until there is one."""
        while True:
            try:
                if self.now > self.learned.get(tp, 0.0) + METADATA_MAX_AGE_S:
                    # A leader that was replaced and cannot know it is found out only by asking others.
                    self.home = (self.rng.choice(self.env.hosts), BROKER_PORT)
                    self.forget(tp)
                if tp not in self.leaders:
                    await self.refresh([tp[0]])
                address = self.address_of_leader(tp)
                if address is not None:
                    return await self.line_at(address)
            except Lost:
                pass
            self.forget(tp)
            await self.pause(RETRY_S)

    def address_of_leader(self, tp: TopicPartition) -> Address | None:
        """None when nobody leads, or a line to the leader was lost since we learned who it is."""
        node, _ = self.leaders.get(tp, (-1, -1))
        address = self.addresses.get(node)
        if address is not None and address in self.lines and self.lines[address].is_lost:
            del self.lines[address]
            return None
        return address

    async def line_to_coordinator(self, group: str) -> Line:
        while True:
            try:
                if group not in self.coordinators:
                    await self.find_coordinator(group)
                if group in self.coordinators:
                    return await self.line_at(self.coordinators[group])
            except Lost:
                self.coordinators.pop(group, None)
            await self.pause(RETRY_S)

    def hang_up(self, line: Line) -> None:
        """Whoever does not answer may not lead or coordinate any more either."""
        line.close()
        line.is_lost = True
        gone = [address for address, known in self.lines.items() if known is line]
        for address in gone:
            del self.lines[address]
            self.leaders = {
                tp: led for tp, led in self.leaders.items() if self.addresses.get(led[0]) != address
            }
            self.coordinators = {
                group: known for group, known in self.coordinators.items() if known != address
            }
        if self.home in gone:
            self.home = (self.rng.choice(self.env.hosts), BROKER_PORT)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * (0.5 + self.rng.random()))

    async def ask(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        line: Line | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Ask over this line, or any."""
        line = line or await self.connected()
        return await self.answer(line, line.ask(api, self.versions[api], fields), timeout_s=timeout_s)

    async def answer(
        self, line: Line, future: asyncio.Future[Any], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        if not future.done():
            await asyncio.wait([future], timeout=timeout_s)
        if not future.done():
            self.hang_up(line)
            raise Lost("timeout")
        return future.result()

    # metadata -----------------------------------------------------------------------------------------------

    async def refresh(self, topics: Sequence[str] | None) -> Any:
        names = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
        answer = await self.ask(
            Api.METADATA,
            {
                "topics": names,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        )
        for broker in answer.brokers:
            self.addresses[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            for row in topic.partitions:
                tp = (topic.name, row.partition_index)
                if row.leader_epoch >= self.leaders.get(tp, (-1, -1))[1]:
                    self.leaders[tp] = (row.leader_id, row.leader_epoch)
                    self.learned[tp] = self.now
        return answer

    def forget(self, tp: TopicPartition) -> None:
        self.leaders.pop(tp, None)
        self.nearer.pop(tp, None)

    def take_hint(self, tp: TopicPartition, answer: Any, row: Any) -> None:
        """An error may come with the new leader; otherwise metadata has to be asked for."""
        self.forget(tp)
        hint = messages.get(row, "current_leader")
        for endpoint in messages.get(answer, "node_endpoints", ()):
            self.addresses[endpoint.node_id] = (endpoint.host, endpoint.port)
        if hint is not None and hint.leader_id >= 0 and hint.leader_id in self.addresses:
            self.leaders[tp] = (hint.leader_id, hint.leader_epoch)

    async def list_offset(self, tp: TopicPartition, timestamp: int) -> int | None:
        row = {"partition_index": tp[1], "current_leader_epoch": -1, "timestamp": timestamp}
        answer = await self.ask(
            Api.LIST_OFFSETS,
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": tp[0], "partitions": [row]}]},
            line=await self.line_to(tp),
        )
        found = answer.topics[0].partitions[0]
        if found.error_code == ErrorCode.none:
            return int(found.offset)
        self.forget(tp)
        return None

    # admin --------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1
    ) -> Result:
        invoked, result = self.now, "unknown"
        try:
            answer = await self.ask(
                Api.CREATE_TOPICS,
                {
                    "topics": [
                        {
                            "name": topic,
                            "num_partitions": partitions,
                            "replication_factor": replicas,
                            "assignments": [],
                            "configs": [{"name": name, "value": value} for name, value in configs.items()],
                        }
                    ],
                    "timeout": 2000,
                    "validate_only": False,
                },
            )
            code = answer.topics[0].error_code
            result = "ok" if code == ErrorCode.topic_already_exists else classify(code)
        except Lost:
            pass
        self.env.history.creates.append(
            CreateTopic(topic=topic, partitions=partitions, invoked=invoked, done=self.now, result=result)
        )
        return result

    async def create_topic_surely(
        self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1
    ) -> None:
        while await self.create_topic(topic, partitions, configs, replicas=replicas) != "ok":
            await self.pause(RETRY_S)

    async def delete_topic(self, topic: str) -> None:
        invoked, result = self.now, "unknown"
        try:
            answer = await self.ask(
                Api.DELETE_TOPICS, {"topics": [{"name": topic, "topic_id": None}], "timeout": 2000}
            )
            result = classify(answer.responses[0].error_code)
        except Lost:
            pass
        self.env.history.topic_deletes.append(
            DeleteTopic(topic=topic, invoked=invoked, done=self.now, result=result)
        )

    async def delete_records(self, tp: TopicPartition, before: int) -> None:
        invoked, result, low = self.now, "unknown", -1
        try:
            row = {"partition_index": tp[1], "offset": before}
            answer = await self.ask(
                Api.DELETE_RECORDS,
                {"topics": [{"name": tp[0], "partitions": [row]}], "timeout": 2000},
                line=await self.line_to(tp),
            )
            found = answer.topics[0].partitions[0]
            if found.error_code in STALE_METADATA:
                self.forget(tp)
            result, low = classify(found.error_code), int(found.low_watermark)
        except Lost:
            pass
        self.env.history.deletes.append(
            DeleteRecords(
                tp=tp, before=before, invoked=invoked, done=self.now, result=result, low_watermark=low
            )
        )

    async def find_coordinator(self, group: str) -> None:
        """Asking is also what creates the offsets topic."""
        self.coordinators.pop(group, None)
        answer = await self.ask(Api.FIND_COORDINATOR, {"key": group, "key_type": 0})
        if answer.error_code == ErrorCode.none:
            self.coordinators[group] = (answer.host, answer.port)

    async def elect_unclean(self, tps: Sequence[TopicPartition]) -> None:
        """What an operator does when every in-sync replica is gone for good."""
        for tp in tps:
            self.env.history.unclean_topics.add(tp[0])
            try:
                row = {"topic": tp[0], "partitions": [tp[1]]}
                await self.ask(
                    Api.ELECT_LEADERS, {"election_type": 1, "topic_partitions": [row], "timeout": 5000}
                )
            except Lost:
                await self.pause(RETRY_S)

    async def elect_preferred(self) -> None:
        await self._command(
            Api.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None, "timeout": 5000}
        )

    async def reassign(self, tp: TopicPartition, replicas: Sequence[int] | None) -> None:
        """To these brokers; None gives up what is under way."""
        row = {"partition_index": tp[1], "replicas": replicas}
        await self._command(
            Api.ALTER_PARTITION_REASSIGNMENTS,
            {"timeout": 5000, "topics": [{"name": tp[0], "partitions": [row]}]},
        )

    async def configure(self, topic: str, name: str, value: str) -> None:
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
        await self._command(Api.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})

    async def grow(self, topic: str, partitions: int) -> None:
        row = {"name": topic, "count": partitions, "assignments": None}
        await self._command(Api.CREATE_PARTITIONS, {"topics": [row], "timeout": 5000, "validate_only": False})

    async def _command(self, api: Api, fields: Mapping[str, Any]) -> None:
        """An operator's wish: what became of it shows in the metadata log."""
        try:
            await self.ask(api, fields)
        except Lost:
            await self.pause(RETRY_S)

    # fetch --------------------------------------------------------------------------------------------------

    async def fetch(
        self, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int, seek: bool
    ) -> Fetch:
        """One fetch of one partition, recorded when it was answered well; Lost when it was not answered."""
        line, epoch = await self._line_for_reading(tp)
        invoked = self.now
        row = {
            "partition": tp[1],
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "partition_max_bytes": max_bytes,
        }
        answer = await self.answer(
            line,
            line.ask(
                Api.FETCH,
                self.versions[Api.FETCH],
                {
                    "replica_id": -1,
                    "max_wait": max_wait_ms,
                    "min_bytes": 1,
                    "max_bytes": 1 << 20,
                    "isolation_level": 0,
                    "session_id": 0,
                    "session_epoch": -1,
                    "topics": [{"topic": tp[0], "partitions": [row]}],
                    "forgotten_topics_data": [],
                    "rack_id": self.rack,
                },
            ),
            timeout_s=REQUEST_TIMEOUT_S + max_wait_ms / 1000,
        )
        code = answer.error_code
        found = answer.responses[0].partitions[0] if answer.responses else None
        if found is not None and code == ErrorCode.none:
            code = found.error_code
        fetch = Fetch(
            client=self.name,
            tp=tp,
            offset=offset,
            invoked=invoked,
            done=self.now,
            result=classify(code),
            error="" if code == ErrorCode.none else code.name,
            seek=seek,
            leader_epoch=epoch,
            batches=tuple(read_batches(found.records)) if found is not None else (),
            high_watermark=found.high_watermark if found is not None else -1,
            last_stable_offset=found.last_stable_offset if found is not None else -1,
            log_start_offset=messages.get(found, "log_start_offset", -1),
            node=line.node,
            life=line.life,
        )
        nearer = messages.get(found, "preferred_read_replica", -1)
        if fetch.result == "ok" and nearer >= 0:
            self.nearer[tp] = nearer
            return replace(fetch, result="unknown", error="read nearer")
        if fetch.result == "ok":
            self.env.history.fetches.append(fetch)
            self.env.loop.trace("fetched", self.name, tp, offset, len(fetch.batches), fetch.high_watermark)
        elif code in STALE_METADATA:
            self.take_hint(tp, answer, found)
        else:
            self.nearer.pop(tp, None)
        return fetch

    async def _line_for_reading(self, tp: TopicPartition) -> tuple[Line, int]:
        """To the leader, or to the follower it named; with the leader epoch we believe in."""
        line = await self.line_to(tp)
        _, epoch = self.leaders[tp]
        address = self.addresses.get(self.nearer.get(tp, -1))
        if address is not None:
            try:
                line = await self.line_at(address)
            except Lost:
                del self.nearer[tp]
        return line, epoch

    async def first_offset(self, tp: TopicPartition) -> int:
        while True:
            try:
                offset = await self.list_offset(tp, -2)
                if offset is not None:
                    return offset
            except Lost:
                pass
            await self.pause(RETRY_S)


STALE_METADATA = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
    }
)


def read_batches(data: Any) -> list[Batch]:
    """Every whole batch of a fetched record set; a cut last one is left for the next fetch."""
    found: list[Batch] = []
    view = memoryview(data) if data is not None else memoryview(b"")
    at = 0
    while at + records.HEADER_SIZE <= len(view):
        header = records.parse_header(view, at)
        if at + header.size > len(view):
            break
        assert records.crc_ok(view, at, header), f"fetched a batch with a wrong CRC at {header.base_offset}"
        found.append(read_batch(view, at, header))
        at += header.size
    return found


def read_batch(view: memoryview, at: int, header: records.BatchHeader) -> Batch:
    return Batch(
        base_offset=header.base_offset,
        next_offset=header.next_offset,
        leader_epoch=header.leader_epoch,
        digest=digest(view[at : at + header.size]),
        values=tuple(value_of(record.value) for record in records.iter_records(view, at, header)),
    )
