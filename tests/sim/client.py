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
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from protocol import messages, records, wire
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim import metalog
from tests.sim.history import (
    PLACES,
    SETTING,
    AdminKind,
    AdminOp,
    Batch,
    ClusterRead,
    DeleteRecords,
    Facts,
    Fetch,
    History,
    Mark,
    Marker,
    Result,
    TopicPartition,
    classify,
    digest,
    payload,
    value_of,
)
from tests.sim.loop import Process, SimLoop
from tests.sim.net import Fabric, SimNetwork, SimTransport
from tests.sim.node import node_of

BROKER_PORT = 9092
RETRY_S = 0.1
REQUEST_TIMEOUT_S = 3.0
METADATA_MAX_AGE_S = 10.0
BATCHES_KEPT = 2048
"""The same batches are fetched, sampled and looked at on every replica's disk."""
BY_TOPIC_ID = 13  # the first version of Produce that names topics by id
PREFERRED, UNCLEAN = 0, 1
OF_GROUPS, OF_TRANSACTIONS = 0, 1
"""What a coordinator is asked for: the kinds of keys."""
TOPIC, SET, OF_THE_TOPIC = 2, 0, 1  # as a resource, an operation, a source of a setting

VERSIONS: Mapping[Api, tuple[int, ...]] = {
    Api.PRODUCE: (3, 8, 9, 12),
    Api.FETCH: (11, 12),
    Api.METADATA: (12,),
    Api.LIST_OFFSETS: (7,),
    Api.INIT_PRODUCER_ID: (4,),
    Api.CREATE_TOPICS: (7,),
    Api.DELETE_TOPICS: (6,),
    Api.DELETE_RECORDS: (2,),
    Api.CREATE_PARTITIONS: (3,),
    Api.INCREMENTAL_ALTER_CONFIGS: (1,),
    Api.DESCRIBE_CONFIGS: (4,),
    Api.ALTER_PARTITION_REASSIGNMENTS: (1,),
    Api.ELECT_LEADERS: (2,),
    Api.FIND_COORDINATOR: (3,),
    Api.JOIN_GROUP: (7,),
    Api.SYNC_GROUP: (5,),
    Api.HEARTBEAT: (4,),
    Api.LEAVE_GROUP: (4,),
    Api.OFFSET_COMMIT: (8,),
    Api.OFFSET_FETCH: (7,),
    Api.LIST_TRANSACTIONS: (1,),
    Api.CONSUMER_GROUP_HEARTBEAT: (1,),
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
    is_quiet: bool = False
    """Nobody produces for now."""

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
        self.coordinators: dict[tuple[int, str], Address] = {}  # by kind of key and key
        self.topic_names: dict[UUID, str] = {}
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

    async def line_to_coordinator(self, key: str, kind: int = OF_GROUPS) -> Line:
        while True:
            try:
                if (kind, key) not in self.coordinators:
                    await self.find_coordinator(key, kind)
                if (kind, key) in self.coordinators:
                    return await self.line_at(self.coordinators[kind, key])
            except Lost:
                self.coordinators.pop((kind, key), None)
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
            self.coordinators = {key: known for key, known in self.coordinators.items() if known != address}
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

    async def refresh(self, topics: Sequence[str] | None, *, is_final: bool = False) -> Any:
        names = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
        line = await self.connected()
        invoked = self.now
        answer = await self.ask(
            Api.METADATA,
            {
                "topics": names,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
            line=line,
        )
        self._saw(line, invoked, _places_in(answer), is_all=topics is None, is_final=is_final)
        for broker in answer.brokers:
            self.addresses[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            self.topic_names[topic.topic_id] = topic.name
            for row in topic.partitions:
                tp = (topic.name, row.partition_index)
                if row.leader_epoch >= self.leaders.get(tp, (-1, -1))[1]:
                    self.leaders[tp] = (row.leader_id, row.leader_epoch)
                    self.learned[tp] = self.now
        return answer

    def _saw(
        self, line: Line, invoked: float, facts: Facts, *, is_all: bool = False, is_final: bool = False
    ) -> None:
        self.env.history.reads.append(
            ClusterRead(
                node=line.node,
                life=line.life,
                invoked=invoked,
                done=self.now,
                facts=facts,
                is_all=is_all,
                is_final=is_final,
            )
        )

    async def describe_setting(self, topic: str) -> None:
        """The topic's own value of the setting that operators change."""
        line = await self.connected()
        invoked = self.now
        resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [SETTING]}
        fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
        answer = await self.ask(Api.DESCRIBE_CONFIGS, fields, line=line)
        found = answer.results[0]
        value = None
        if found.error_code == ErrorCode.none:
            row = found.configs[0]
            value = row.value if row.config_source == OF_THE_TOPIC else ""
        elif found.error_code != ErrorCode.unknown_topic_or_partition:
            return
        self._saw(line, invoked, {(topic, SETTING): value})

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

    async def _order(
        self,
        kind: AdminKind,
        topic: str,
        api: Api,
        fields: Mapping[str, Any],
        verdict_in: Callable[[Any], Any],
        *,
        asked: object = None,
        index: int = 0,
    ) -> AdminOp:
        """One order of an operator, and what came of it as far as it is told."""
        line = await self.connected()
        invoked, result, error, topic_id = self.now, cast(Result, "unknown"), "", ""
        try:
            found = verdict_in(await self.ask(api, fields, line=line))
            result = classify(found.error_code)
            error = "" if result == "ok" else found.error_code.name
            topic_id = str(messages.get(found, "topic_id") or "")
        except Lost as lost:
            error = str(lost)
        op = AdminOp(
            kind=kind,
            topic=topic,
            asked=asked,
            index=index,
            invoked=invoked,
            done=self.now,
            result=result,
            error=error,
            topic_id=topic_id,
            node=line.node,
            life=line.life,
        )
        self.env.history.admin.append(op)
        self.env.loop.trace(kind, self.name, topic, asked, result, error)
        return op

    async def create_topic(
        self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1
    ) -> AdminOp:
        row = {
            "name": topic,
            "num_partitions": partitions,
            "replication_factor": replicas,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        fields = {"topics": [row], "timeout": 2000, "validate_only": False}
        return await self._order(
            "create", topic, Api.CREATE_TOPICS, fields, lambda answer: answer.topics[0], asked=partitions
        )

    async def create_topic_surely(
        self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1
    ) -> None:
        while True:
            op = await self.create_topic(topic, partitions, configs, replicas=replicas)
            if op.result == "ok" or op.error == ErrorCode.topic_already_exists.name:
                return
            await self.pause(RETRY_S)

    async def delete_topic(self, topic: str) -> None:
        fields = {"topics": [{"name": topic, "topic_id": None}], "timeout": 2000}
        await self._order("delete", topic, Api.DELETE_TOPICS, fields, lambda answer: answer.responses[0])

    async def grow_topic(self, topic: str, count: int) -> AdminOp:
        row = {"name": topic, "count": count, "assignments": None}
        fields = {"topics": [row], "timeout": 2000, "validate_only": False}
        return await self._order(
            "grow", topic, Api.CREATE_PARTITIONS, fields, lambda answer: answer.results[0], asked=count
        )

    async def configure_topic(self, topic: str, value: str, others: Mapping[str, str]) -> AdminOp:
        configs = [
            {"name": name, "config_operation": SET, "value": given}
            for name, given in {SETTING: value, **others}.items()
        ]
        row = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        return await self._order(
            "configure",
            topic,
            Api.INCREMENTAL_ALTER_CONFIGS,
            {"resources": [row], "validate_only": False},
            lambda answer: answer.responses[0],
            asked=value,
        )

    async def set_tiering(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change how a topic is tiered; whether it was done shows in the metadata log."""
        configs = [
            {"name": name, "config_operation": SET, "value": given} for name, given in settings.items()
        ]
        row = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        await self.ask(Api.INCREMENTAL_ALTER_CONFIGS, {"resources": [row], "validate_only": False})

    async def reassign(self, tp: TopicPartition, replicas: Sequence[int]) -> None:
        row = {"partition_index": tp[1], "replicas": list(replicas)}
        topics = [{"name": tp[0], "partitions": [row]}]
        await self._order(
            "reassign",
            tp[0],
            Api.ALTER_PARTITION_REASSIGNMENTS,
            {"timeout": 2000, "allow_replication_factor_change": True, "topics": topics},
            lambda answer: answer.responses[0].partitions[0] if answer.responses else answer,
            asked=tuple(replicas),
            index=tp[1],
        )

    async def elect_preferred(self, tp: TopicPartition) -> None:
        row = {"topic": tp[0], "partitions": [tp[1]]}
        fields = {"election_type": PREFERRED, "topic_partitions": [row], "timeout": 2000}
        await self._order(
            "elect",
            tp[0],
            Api.ELECT_LEADERS,
            fields,
            lambda answer: answer.replica_election_results[0].partition_result[0],
            index=tp[1],
        )

    async def write_mark(self, topic: str, value: int) -> None:
        """One value into partition 0 of the incarnation that some broker tells of, and of no other."""
        answer = await self.refresh([topic])
        found = answer.topics[0]
        if found.error_code != ErrorCode.none or found.partitions[0].leader_id not in self.addresses:
            return
        data = records.build_batch([(None, payload(value), (), self.env.now_ms())])
        part = {"index": 0, "records": bytes(data)}
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 2000,
            "topic_data": [{"topic_id": found.topic_id, "partition_data": [part]}],
        }
        result: Result = "unknown"
        try:
            line = await self.line_at(self.addresses[found.partitions[0].leader_id])
            told = await self.answer(line, line.ask(Api.PRODUCE, BY_TOPIC_ID, fields))
            result = classify(told.responses[0].partition_responses[0].error_code)
        except Lost:
            pass
        self.env.history.marks.append(
            Mark(topic=topic, topic_id=str(found.topic_id), value=value, result=result, done=self.now)
        )

    async def delete_records(self, tp: TopicPartition, before: int, *, timeout_ms: int = 2000) -> None:
        invoked, result, low, error = self.now, "unknown", -1, "lost"
        try:
            row = {"partition_index": tp[1], "offset": before}
            answer = await self.ask(
                Api.DELETE_RECORDS,
                {"topics": [{"name": tp[0], "partitions": [row]}], "timeout": timeout_ms},
                line=await self.line_to(tp),
                timeout_s=timeout_ms / 1000 + 1.0,
            )
            found = answer.topics[0].partitions[0]
            if found.error_code in STALE_METADATA:
                self.forget(tp)
            result, low = classify(found.error_code), int(found.low_watermark)
            error = "" if result == "ok" else found.error_code.name
        except Lost:
            pass
        self.env.history.deletes.append(
            DeleteRecords(
                tp=tp,
                before=before,
                invoked=invoked,
                done=self.now,
                result=result,
                low_watermark=low,
                error=error,
            )
        )

    async def find_coordinator(self, key: str, kind: int = OF_GROUPS) -> None:
        """Asking is also what creates the topic that coordinators keep their state in."""
        self.coordinators.pop((kind, key), None)
        answer = await self.ask(Api.FIND_COORDINATOR, {"key": key, "key_type": kind})
        if answer.error_code == ErrorCode.none:
            self.coordinators[kind, key] = (answer.host, answer.port)

    async def elect_unclean(self, tps: Sequence[TopicPartition]) -> None:
        """What an operator does when every in-sync replica is gone for good."""
        for tp in tps:
            self.env.history.unclean_topics.add(tp[0])
            try:
                row = {"topic": tp[0], "partitions": [tp[1]]}
                await self.ask(
                    Api.ELECT_LEADERS, {"election_type": UNCLEAN, "topic_partitions": [row], "timeout": 5000}
                )
            except Lost:
                await self.pause(RETRY_S)

    # fetch --------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int,
        seek: bool,
        is_committed: bool = False,
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
                    "isolation_level": int(is_committed),
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
            is_committed=is_committed,
            aborted=tuple(
                (each.producer_id, each.first_offset)
                for each in messages.get(found, "aborted_transactions", ()) or ()
            ),
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


def _places_in(answer: Any) -> Facts:
    facts: dict[tuple[str, str], object] = {}
    for topic in answer.topics:
        if topic.error_code == ErrorCode.unknown_topic_or_partition:
            facts[topic.name, PLACES] = None
        elif topic.error_code == ErrorCode.none:
            partitions = ((row.leader_epoch, row.replica_nodes, row.isr_nodes) for row in topic.partitions)
            facts[topic.name, PLACES] = metalog.places(str(topic.topic_id), partitions)
    return facts


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
    return _read_batch(bytes(view[at : at + header.size]))


@lru_cache(maxsize=BATCHES_KEPT)
def _read_batch(data: bytes) -> Batch:
    view, header = memoryview(data), records.parse_header(data, 0)
    rows = records.iter_records(view, 0, header)
    marker: Marker = ""
    values: tuple[int, ...] = ()
    if header.is_control:
        for record in rows:
            kind, _, _ = records.parse_control(record)
            marker = "commit" if kind == records.ControlType.COMMIT else "abort"
    else:
        values = tuple(value_of(record.value) for record in rows)
    return Batch(
        base_offset=header.base_offset,
        next_offset=header.next_offset,
        leader_epoch=header.leader_epoch,
        digest=digest(data),
        values=values,
        producer=(header.producer_id, header.producer_epoch),
        is_transactional=header.is_transactional,
        marker=marker,
    )
