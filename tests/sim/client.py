"""Owns the raw clients of a simulation: no hidden retries, every operation recorded once with what the
client knows.

Producers send each value once, or retry it idempotently; consumers are assigned; group members join, own,
commit, leave and crash. Does not own verdicts, and never looks into the broker: only the broker's life
number is taken from the connection, because a client's view is judged against the life that answered.

Invariant: an answer is believed only as far as the protocol lets a client believe it (see history.classify).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protocol import messages, records, wire
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim.history import (
    Batch,
    Commit,
    CommitRead,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    Fetch,
    Heartbeat,
    History,
    Result,
    Send,
    Sync,
    TopicPartition,
    classify,
    digest,
    payload,
    value_of,
)
from tests.sim.loop import Process, SimLoop
from tests.sim.net import Fabric, SimNetwork, SimTransport

BROKER_PORT = 9092
RETRY_S = 0.1
REQUEST_TIMEOUT_S = 3.0

VERSIONS: Mapping[Api, tuple[int, ...]] = {
    Api.PRODUCE: (3, 8, 9, 12),
    Api.FETCH: (11, 12),
    Api.METADATA: (12,),
    Api.LIST_OFFSETS: (7,),
    Api.INIT_PRODUCER_ID: (4,),
    Api.CREATE_TOPICS: (7,),
    Api.DELETE_TOPICS: (6,),
    Api.DELETE_RECORDS: (2,),
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


@dataclass(slots=True)
class Env:
    """What all clients of one run share."""

    loop: SimLoop
    fabric: Fabric
    history: History
    broker_host: str
    now_ms: Any
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
        self.life = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self._transport = transport
        self.number = transport.connection.number
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
    """A client process: one line at a time, reopened on need."""

    def __init__(self, env: Env, name: str, rng: random.Random) -> None:
        self.env = env
        self.name = name
        self.rng = rng
        self.process = Process(env.loop, name)
        self.network: SimNetwork = env.fabric.endpoint(name, self.process)
        self.line: Line | None = None
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.versions = {api: rng.choice(versions) for api, versions in VERSIONS.items()}

    @property
    def now(self) -> float:
        return self.env.loop.now

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.process.spawn(work, name=self.name)

    async def connected(self) -> Line:
        """The open line, or a new one; keeps trying until the broker is there."""
        while self.line is None or self.line.is_lost:
            line = Line(self.name)
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await self.network.connect(self.env.broker_host, BROKER_PORT, lambda line=line: line)
                self.line = line
            except OSError:
                await self.pause(RETRY_S)
        return self.line

    def hang_up(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * (0.5 + self.rng.random()))

    async def ask(self, api: Api, fields: Mapping[str, Any], *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        line = await self.connected()
        return await self.answer(line.ask(api, self.versions[api], fields), timeout_s=timeout_s)

    async def answer(self, future: asyncio.Future[Any], *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        if not future.done():
            await asyncio.wait([future], timeout=timeout_s)
        if not future.done():
            self.hang_up()
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
        for topic in answer.topics:
            for row in topic.partitions:
                self.leader_epochs[topic.name, row.partition_index] = row.leader_epoch
        return answer

    async def list_offset(self, tp: TopicPartition, timestamp: int) -> int | None:
        row = {"partition_index": tp[1], "current_leader_epoch": -1, "timestamp": timestamp}
        answer = await self.ask(
            Api.LIST_OFFSETS,
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": tp[0], "partitions": [row]}]},
        )
        found = answer.topics[0].partitions[0]
        return int(found.offset) if found.error_code == ErrorCode.none else None

    # admin --------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> Result:
        invoked, result = self.now, "unknown"
        try:
            answer = await self.ask(
                Api.CREATE_TOPICS,
                {
                    "topics": [
                        {
                            "name": topic,
                            "num_partitions": partitions,
                            "replication_factor": 1,
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

    async def create_topic_surely(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        while await self.create_topic(topic, partitions, configs) != "ok":
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
                Api.DELETE_RECORDS, {"topics": [{"name": tp[0], "partitions": [row]}], "timeout": 2000}
            )
            found = answer.topics[0].partitions[0]
            result, low = classify(found.error_code), int(found.low_watermark)
        except Lost:
            pass
        self.env.history.deletes.append(
            DeleteRecords(
                tp=tp, before=before, invoked=invoked, done=self.now, result=result, low_watermark=low
            )
        )

    async def find_coordinator(self, group: str) -> None:
        """Asking is what creates the offsets topic; with one broker the answer is known."""
        await self.ask(Api.FIND_COORDINATOR, {"key": group, "key_type": 0})

    # fetch --------------------------------------------------------------------------------------------------

    async def fetch(
        self, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int, seek: bool
    ) -> Fetch:
        """One fetch of one partition, recorded when it was answered well; Lost when it was not answered."""
        if tp not in self.leader_epochs:
            await self.refresh([tp[0]])
        epoch = self.leader_epochs.get(tp, -1)
        line = await self.connected()
        invoked = self.now
        row = {
            "partition": tp[1],
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "partition_max_bytes": max_bytes,
        }
        answer = await self.answer(
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
                    "rack_id": "",
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
            life=line.life,
        )
        if fetch.result == "ok":
            self.env.history.fetches.append(fetch)
            self.env.loop.trace("fetched", self.name, tp, offset, len(fetch.batches), fetch.high_watermark)
        elif code in STALE_METADATA:
            self.leader_epochs.pop(tp, None)
        return fetch

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


# producers --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pending:
    """One batch on its way."""

    tp: TopicPartition
    values: tuple[int, ...]
    data: bytes
    invoked: float
    sequence: int = -1
    attempts: int = 0
    was_unknown: bool = False
    line: Line | None = None
    future: asyncio.Future[Any] | None = None
    result: Result = "unknown"
    error: str = ""
    base_offset: int = -1


@dataclass(slots=True)
class Producer:
    """Sends some batches with up to `window` in flight: each value once, or idempotently, with retries."""

    client: SimClient
    number: int
    partitions: Sequence[TopicPartition]
    batches: int
    acks: int
    window: int
    is_idempotent: bool
    pause_s: float
    codec: int = 0
    next_value: int = 0
    producer: tuple[int, int] | None = None
    next_sequence: dict[TopicPartition, int] = field(default_factory=dict)
    in_flight: list[Pending] = field(default_factory=list)
    unsettled: list[Pending] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        self.client.process.on_death.append(self._died)

    def _died(self, power: bool) -> None:
        """Nobody will learn what became of these."""
        for pending in list(self.unsettled):
            pending.result = "unknown"
            self._record(pending)

    async def run(self) -> None:
        while self.sent < self.batches:
            if self.is_idempotent and self.producer is None:
                await self._init_producer()
            line = await self.client.connected()
            pending = self._next_batch()
            self.unsettled.append(pending)
            self._put(pending, line)
            self.in_flight.append(pending)
            self.sent += 1
            if len(self.in_flight) >= self.window:
                await self._settle_some()
            if self.pause_s:
                await self.client.pause(self.pause_s)
        while self.in_flight:
            await self._settle_some()

    def _next_batch(self) -> Pending:
        rng = self.client.rng
        tp = rng.choice(self.partitions)
        count = rng.choice((1, 1, 2, 3))
        values = tuple((self.number << 40) | (self.next_value + index) for index in range(count))
        self.next_value += count
        sequence = -1
        if self.producer is not None:
            sequence = self.next_sequence.get(tp, 0)
            self.next_sequence[tp] = sequence + count
        now_ms = self.client.env.now_ms()
        data = records.build_batch(
            [(None, payload(value), (), now_ms) for value in values],
            codec=self.codec,
            producer_id=self.producer[0] if self.producer is not None else -1,
            producer_epoch=self.producer[1] if self.producer is not None else -1,
            base_sequence=sequence,
        )
        return Pending(tp=tp, values=values, data=bytes(data), invoked=self.client.now, sequence=sequence)

    def _put(self, pending: Pending, line: Line) -> None:
        pending.attempts += 1
        pending.line = line
        pending.future = line.ask(
            Api.PRODUCE,
            self.client.versions[Api.PRODUCE],
            {
                "transactional_id": None,
                "acks": self.acks,
                "timeout": 2000,
                "topic_data": [
                    {
                        "name": pending.tp[0],
                        "partition_data": [{"index": pending.tp[1], "records": pending.data}],
                    }
                ],
            },
        )

    async def _settle_some(self) -> None:
        """Learn the fate of the oldest batch; a retrying producer that met a problem settles all it has
        under way."""
        oldest = self.in_flight.pop(0)
        await self._learn(oldest)
        if oldest.result == "ok" or not self.is_idempotent:
            self._record(oldest)
            return
        failed = [oldest]
        while self.in_flight:
            pending = self.in_flight.pop(0)
            await self._learn(pending)
            if pending.result == "ok":
                self._record(pending)
            else:
                failed.append(pending)
        await self._retry(failed)

    async def _learn(self, pending: Pending) -> None:
        assert pending.future is not None
        try:
            answer = await self.client.answer(pending.future)
        except Lost as lost:
            pending.result, pending.error = "unknown", str(lost)
        else:
            if answer is None:  # acks=0: nobody will ever say
                pending.result = "unknown"
                return
            found = answer.responses[0].partition_responses[0]
            pending.result = classify(found.error_code)
            pending.error = "" if pending.result == "ok" else found.error_code.name
            pending.base_offset = int(found.base_offset) if pending.result == "ok" else -1
        pending.was_unknown |= pending.result == "unknown"

    async def _retry(self, failed: list[Pending]) -> None:
        """In order, one at a time; when one is hopeless, give up all that follow it and begin anew."""
        while failed:
            first = failed[0]
            await self.client.pause(RETRY_S)
            self._put(first, await self.client.connected())
            await self._learn(first)
            if first.result == "ok":
                self._record(failed.pop(0))
            elif first.attempts >= 12 or first.result == "fail":
                break
        for pending in failed:
            if pending.was_unknown:
                pending.result = "unknown"
            self._record(pending)
        if failed:
            self.producer = None
            self.next_sequence.clear()

    async def _init_producer(self) -> None:
        while self.producer is None:
            try:
                answer = await self.client.ask(
                    Api.INIT_PRODUCER_ID,
                    {
                        "transactional_id": None,
                        "transaction_timeout": 60_000,
                        "producer_id": -1,
                        "producer_epoch": -1,
                    },
                )
                if answer.error_code == ErrorCode.none:
                    self.producer = (int(answer.producer_id), int(answer.producer_epoch))
                    return
            except Lost:
                pass
            await self.client.pause(RETRY_S)

    def _record(self, pending: Pending) -> None:
        assert pending.line is not None
        self.unsettled.remove(pending)
        env = self.client.env
        env.loop.trace(
            "sent", self.client.name, pending.tp, pending.values, pending.result, pending.base_offset
        )
        env.history.sends.append(
            Send(
                client=self.client.name,
                connection=pending.line.number,
                tp=pending.tp,
                values=pending.values,
                acks=self.acks,
                invoked=pending.invoked,
                done=self.client.now,
                result=pending.result,
                error=pending.error,
                base_offset=pending.base_offset,
                life=pending.line.life,
                producer=self.producer,
                sequence=pending.sequence,
                attempts=pending.attempts,
            )
        )


# consumers --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Consumer:
    """Reads its partitions in turn until told to stop; now and then it seeks back."""

    client: SimClient
    partitions: Sequence[TopicPartition]
    pause_s: float
    seek_chance: float = 0.05
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    seeks: set[TopicPartition] = field(default_factory=set)

    async def run(self) -> None:
        while not self.client.env.stopping:
            for tp in self.partitions:
                await self._poll(tp)
            await self.client.pause(self.pause_s)

    async def _poll(self, tp: TopicPartition) -> None:
        client = self.client
        if tp not in self.positions:
            self.positions[tp] = await client.first_offset(tp)
            self.seeks.add(tp)
        elif client.rng.random() < self.seek_chance:
            self.positions[tp] = max(0, self.positions[tp] - client.rng.randrange(4))
            self.seeks.add(tp)
        try:
            fetch = await client.fetch(
                tp,
                self.positions[tp],
                max_bytes=client.rng.choice((1, 200, 1 << 20)),
                max_wait_ms=client.rng.choice((0, 100, 400)),
                seek=tp in self.seeks,
            )
        except Lost:
            await client.pause(RETRY_S)
            return
        if fetch.result == "ok":
            self.seeks.discard(tp)
            if fetch.batches:
                self.positions[tp] = fetch.batches[-1].next_offset
        elif fetch.error == ErrorCode.offset_out_of_range.name:
            del self.positions[tp]
        else:
            await client.pause(RETRY_S)


# group members ----------------------------------------------------------------------------------------------

SESSION_TIMEOUT_MS = 6000
REBALANCE_TIMEOUT_MS = 3000
PROTOCOL_TYPE = "consumer"
PROTOCOL_NAME = "range"


@dataclass(slots=True)
class Member:
    """One member of a group: joins, owns, moves offsets on, and leaves or vanishes."""

    client: SimClient
    group: str
    partitions: Sequence[TopicPartition]
    rounds: int
    leave_chance: float = 0.2
    vanish_chance: float = 0.1
    member_id: str = ""
    generation: int = -1
    commits: int = 0
    unsettled: Commit | None = None

    def __post_init__(self) -> None:
        self.client.process.on_death.append(self._died)

    def _died(self, power: bool) -> None:
        """Nobody will learn what became of this commit."""
        if self.unsettled is not None:
            self.client.env.history.commits.append(self.unsettled)

    async def run(self) -> None:
        for _ in range(self.rounds):
            if self.client.env.stopping:
                break
            try:
                owned = await self._join()
                if owned is not None:
                    await self._work(owned)
            except Lost:
                await self.client.pause(RETRY_S)

    async def _join(self) -> tuple[TopicPartition, ...] | None:
        client = self.client
        answer = await client.ask(
            Api.JOIN_GROUP,
            {
                "group_id": self.group,
                "session_timeout": SESSION_TIMEOUT_MS,
                "rebalance_timeout": REBALANCE_TIMEOUT_MS,
                "member_id": self.member_id,
                "group_instance_id": None,
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": PROTOCOL_NAME, "metadata": b"\0\1\0\0\0\0\xff\xff\xff\xff"}],
                "reason": None,
            },
            timeout_s=REQUEST_TIMEOUT_S + REBALANCE_TIMEOUT_MS / 1000,
        )
        if answer.error_code == ErrorCode.member_id_required:
            self.member_id = answer.member_id
            return await self._join()
        if answer.error_code != ErrorCode.none:
            await self._refused(answer.error_code)
            return None
        self.member_id, self.generation = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self.member_id:
            members = sorted(member.member_id for member in answer.members)
            assignments = [
                {"member_id": member, "assignment": encode_owned(self.partitions[index :: len(members)])}
                for index, member in enumerate(members)
            ]
        return await self._sync(assignments)

    async def _sync(self, assignments: list[dict[str, Any]]) -> tuple[TopicPartition, ...] | None:
        client, invoked = self.client, self.client.now
        line = await client.connected()
        answer = await client.ask(
            Api.SYNC_GROUP,
            {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": None,
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": PROTOCOL_NAME,
                "assignments": assignments,
            },
            timeout_s=REQUEST_TIMEOUT_S + REBALANCE_TIMEOUT_MS / 1000,
        )
        if answer.error_code != ErrorCode.none:
            await self._refused(answer.error_code)
            return None
        owned = decode_owned(bytes(answer.assignment))
        client.env.loop.trace("owns", self.group, self.generation, len(owned))
        client.env.history.syncs.append(
            Sync(
                group=self.group,
                member=self.member_id,
                generation=self.generation,
                assignment=owned,
                invoked=invoked,
                done=client.now,
                life=line.life,
            )
        )
        return owned

    async def _work(self, owned: tuple[TopicPartition, ...]) -> None:
        client = self.client
        for _ in range(client.rng.randrange(1, 5)):
            if client.env.stopping or not await self._heartbeat():
                return
            for tp in owned:
                at = await self._committed(tp)
                if at is None or not await self._commit(tp, at + client.rng.randrange(1, 4)):
                    return
            await client.pause(0.3)
        if client.rng.random() < self.leave_chance:
            await self._leave()
        elif client.rng.random() < self.vanish_chance:
            client.hang_up()
            self.member_id = ""

    async def _heartbeat(self) -> bool:
        client, invoked = self.client, self.client.now
        line = await client.connected()
        answer = await client.ask(
            Api.HEARTBEAT,
            {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": None,
            },
        )
        client.env.history.heartbeats.append(
            Heartbeat(
                group=self.group,
                member=self.member_id,
                generation=self.generation,
                invoked=invoked,
                done=client.now,
                result=classify(answer.error_code),
                life=line.life,
            )
        )
        if answer.error_code != ErrorCode.none:
            await self._refused(answer.error_code)
        return bool(answer.error_code == ErrorCode.none)

    async def _committed(self, tp: TopicPartition) -> int | None:
        read = await read_commit(self.client, self.group, tp)
        return None if read is None else max(0, read.offset)

    async def _commit(self, tp: TopicPartition, offset: int) -> bool:
        client = self.client
        line = await client.connected()
        self.commits += 1
        commit = self.unsettled = Commit(
            group=self.group,
            member=self.member_id,
            generation=self.generation,
            tp=tp,
            offset=offset,
            tag=f"{client.name}-{self.commits}",
            invoked=client.now,
            done=float("inf"),
            result="unknown",
            life=line.life,
        )
        code = ErrorCode.network_exception
        try:
            code = await self._ask_commit(line, commit)
        finally:
            self.unsettled = None
            result = classify_commit(code)
            client.env.loop.trace("committed", self.group, tp, offset, result)
            client.env.history.commits.append(
                replace(commit, done=client.now, result=result, error=code.name)
            )
        if result != "ok":
            await self._refused(code)
        return result == "ok"

    async def _ask_commit(self, line: Line, commit: Commit) -> ErrorCode:
        row = {
            "partition_index": commit.tp[1],
            "committed_offset": commit.offset,
            "committed_leader_epoch": -1,
            "committed_metadata": commit.tag,
        }
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": [{"name": commit.tp[0], "partitions": [row]}],
        }
        version = self.client.versions[Api.OFFSET_COMMIT]
        answer = await self.client.answer(line.ask(Api.OFFSET_COMMIT, version, fields))
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code

    async def _leave(self) -> None:
        await self.client.ask(
            Api.LEAVE_GROUP,
            {
                "group_id": self.group,
                "members": [{"member_id": self.member_id, "group_instance_id": None, "reason": None}],
            },
        )
        self.member_id = ""

    async def _refused(self, code: ErrorCode) -> None:
        if code in NO_COORDINATOR:
            await self.client.find_coordinator(self.group)
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            self.member_id = ""
        await self.client.pause(RETRY_S)


# A coordinator that is not available may also have been lost between the append and the answer.
NO_COORDINATOR = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})


def classify_commit(code: ErrorCode) -> Result:
    return "unknown" if code in NO_COORDINATOR else classify(code)


async def read_commit(client: SimClient, group: str, tp: TopicPartition) -> CommitRead | None:
    """What the coordinator says is committed; None when it cannot say now."""
    line = await client.connected()
    invoked = client.now
    answer = await client.ask(
        Api.OFFSET_FETCH,
        {
            "group_id": group,
            "topics": [{"name": tp[0], "partition_indexes": [tp[1]]}],
            "require_stable": True,
        },
    )
    if answer.error_code != ErrorCode.none:
        if answer.error_code in NO_COORDINATOR:
            await client.find_coordinator(group)
        await client.pause(RETRY_S)
        return None
    row = answer.topics[0].partitions[0]
    if row.error_code != ErrorCode.none:
        await client.pause(RETRY_S)
        return None
    read = CommitRead(
        group=group,
        tp=tp,
        offset=int(row.committed_offset),
        tag=row.metadata or "",
        invoked=invoked,
        done=client.now,
        life=line.life,
    )
    client.env.loop.trace("committed-is", group, tp, read.offset, read.tag)
    client.env.history.commit_reads.append(read)
    return read


def encode_owned(partitions: Sequence[TopicPartition]) -> bytes:
    return ";".join(f"{topic}:{index}" for topic, index in partitions).encode()


def decode_owned(data: bytes) -> tuple[TopicPartition, ...]:
    rows = [row.rsplit(":", 1) for row in data.decode().split(";") if row]
    return tuple((topic, int(index)) for topic, index in rows)
