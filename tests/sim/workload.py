"""Owns what the clients of a simulation do all day: producers, assigned consumers, group members.

Producers send each value once, or retry it idempotently; consumers read on from where they are; members join,
own, commit, leave and crash. Does not own single operations (client.py) nor verdicts.

Invariant: an answer is believed only as far as the protocol lets a client believe it (see history.classify);
whoever dies with an operation under way leaves it in the history as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any

from protocol import records
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim.client import REQUEST_TIMEOUT_S, RETRY_S, STALE_METADATA, Line, Lost, SimClient
from tests.sim.history import (
    Commit,
    CommitRead,
    Heartbeat,
    Result,
    Send,
    Sync,
    TopicPartition,
    classify,
    payload,
)

QUIET_LOOK_S = 0.2
"""How often a producer looks whether it may go on."""

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
    asked: float = 0.0
    line: Line | None = None
    future: asyncio.Future[Any] | None = None
    result: Result = "unknown"
    error: str = ""
    base_offset: int = -1
    ends: tuple[tuple[int, int], ...] = ()


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
            if self.client.env.is_quiet:
                await self.client.pause(QUIET_LOOK_S)
                continue
            if self.is_idempotent and self.producer is None:
                await self._init_producer()
            tp = self.client.rng.choice(self.partitions)
            line = await self.client.line_to(tp)
            pending = self._next_batch(tp)
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

    def _next_batch(self, tp: TopicPartition) -> Pending:
        count = self.client.rng.choice((1, 1, 2, 3))
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
        pending.asked = self.client.now
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
        assert pending.future is not None and pending.line is not None
        client = self.client
        try:
            answer = await client.answer(pending.line, pending.future)
        except Lost as lost:
            pending.result, pending.error = "unknown", str(lost)
            client.forget(pending.tp)
        else:
            if answer is None:  # acks=0: nobody will ever say
                pending.result = "unknown"
                return
            found = answer.responses[0].partition_responses[0]
            pending.result = classify(found.error_code)
            pending.error = "" if pending.result == "ok" else found.error_code.name
            pending.base_offset = int(found.base_offset) if pending.result == "ok" else -1
            if pending.result == "ok" and self.acks == -1:
                pending.ends = client.env.ends(pending.tp)
            if found.error_code in STALE_METADATA:
                client.take_hint(pending.tp, answer, found)
        pending.was_unknown |= pending.result == "unknown"

    async def _retry(self, failed: list[Pending]) -> None:
        """In order, one at a time; when one is hopeless, give up all that follow it and begin anew."""
        give_up = self.client.now + self.client.rng.choice(self.client.env.patience_s)
        while failed:
            first = failed[0]
            await self.client.pause(RETRY_S)
            self._put(first, await self.client.line_to(first.tp))
            await self._learn(first)
            if first.result == "ok":
                self._record(failed.pop(0))
            elif self.client.now > give_up or (first.result == "fail" and first.error not in RETRIABLE):
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
                node=pending.line.node,
                life=pending.line.life,
                asked=pending.asked,
                producer=self.producer,
                sequence=pending.sequence,
                attempts=pending.attempts,
                ends=pending.ends,
            )
        )


RETRIABLE = frozenset({ErrorCode.not_enough_replicas.name})


# consumers --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Consumer:
    """Reads its partitions in turn until told to stop; now and then it seeks back."""

    client: SimClient
    partitions: Sequence[TopicPartition]
    pause_s: float
    seek_chance: float = 0.05
    rewind_chance: float = 0.0
    """Of going back to anywhere, which may be in the tier."""
    is_committed: bool = False
    """Whether it asks for nothing but what is committed."""
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
        elif self.rewind_chance and client.rng.random() < self.rewind_chance:
            self.positions[tp] = client.rng.randrange(self.positions[tp] + 1)
            self.seeks.add(tp)
        try:
            fetch = await client.fetch(
                tp,
                self.positions[tp],
                max_bytes=client.rng.choice((1, 200, 1 << 20)),
                max_wait_ms=client.rng.choice((0, 100, 400)),
                seek=tp in self.seeks,
                is_committed=self.is_committed,
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


@dataclass(slots=True)
class Committer:
    """Commits offsets one by one, each under a tag of its own; who dies meanwhile leaves it as unknown."""

    client: SimClient
    group: str
    version: int
    commits: int = 0
    unsettled: Commit | None = None

    def __post_init__(self) -> None:
        self.client.process.on_death.append(self._died)

    def _died(self, power: bool) -> None:
        """Nobody will learn what became of this commit."""
        if self.unsettled is not None:
            self.client.env.history.commits.append(self.unsettled)

    async def commit(self, tp: TopicPartition, offset: int, *, member: str, generation: int) -> ErrorCode:
        client = self.client
        line = await client.line_to_coordinator(self.group)
        self.commits += 1
        commit = self.unsettled = Commit(
            group=self.group,
            member=member,
            generation=generation,
            tp=tp,
            offset=offset,
            tag=f"{client.name}-{self.commits}",
            invoked=client.now,
            done=float("inf"),
            result="unknown",
        )
        code = ErrorCode.network_exception
        try:
            code = await self._ask(line, commit)
        finally:
            self.unsettled = None
            result = classify_commit(code)
            client.env.loop.trace("committed", self.group, tp, offset, result)
            client.env.history.commits.append(
                replace(commit, done=client.now, result=result, error=code.name)
            )
        return code

    async def _ask(self, line: Line, commit: Commit) -> ErrorCode:
        row = {
            "partition_index": commit.tp[1],
            "committed_offset": commit.offset,
            "committed_leader_epoch": -1,
            "committed_metadata": commit.tag,
        }
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": commit.generation,
            "member_id": commit.member,
            "group_instance_id": None,
            "topics": [{"name": commit.tp[0], "partitions": [row]}],
        }
        answer = await self.client.answer(line, line.ask(Api.OFFSET_COMMIT, self.version, fields))
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code


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
    owned: tuple[TopicPartition, ...] = ()
    committer: Committer = field(init=False)

    def __post_init__(self) -> None:
        version = self.client.versions[Api.OFFSET_COMMIT]
        self.committer = Committer(client=self.client, group=self.group, version=version)

    async def run(self) -> None:
        for _ in range(self.rounds):
            if self.client.env.stopping:
                break
            try:
                owned = await self.join()
                if owned is not None:
                    await self._work(owned)
            except Lost:
                await self.client.pause(RETRY_S)

    async def join(self) -> tuple[TopicPartition, ...] | None:
        """What it owns in the generation that it has joined; None when there is none for it."""
        client, self.owned = self.client, ()
        topics = sorted({topic for topic, _ in self.partitions})
        answer = await client.ask(
            Api.JOIN_GROUP,
            {
                "group_id": self.group,
                "session_timeout": SESSION_TIMEOUT_MS,
                "rebalance_timeout": REBALANCE_TIMEOUT_MS,
                "member_id": self.member_id,
                "group_instance_id": None,
                "protocol_type": PROTOCOL_TYPE,
                "protocols": [{"name": PROTOCOL_NAME, "metadata": encode_subscription(topics, ())}],
                "reason": None,
            },
            line=await client.line_to_coordinator(self.group),
            timeout_s=REQUEST_TIMEOUT_S + REBALANCE_TIMEOUT_MS / 1000,
        )
        if answer.error_code == ErrorCode.member_id_required:
            self.member_id = answer.member_id
            return await self.join()
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
            line=await client.line_to_coordinator(self.group),
            timeout_s=REQUEST_TIMEOUT_S + REBALANCE_TIMEOUT_MS / 1000,
        )
        if answer.error_code != ErrorCode.none:
            await self._refused(answer.error_code)
            return None
        owned = self.owned = decode_owned(bytes(answer.assignment))
        client.env.loop.trace("owns", self.group, self.generation, len(owned))
        client.env.history.syncs.append(
            Sync(
                group=self.group,
                member=self.member_id,
                generation=self.generation,
                assignment=owned,
                invoked=invoked,
                done=client.now,
            )
        )
        return owned

    async def _work(self, owned: tuple[TopicPartition, ...]) -> None:
        client = self.client
        for _ in range(client.rng.randrange(1, 5)):
            if client.env.stopping or not await self.heartbeat():
                return
            for tp in owned:
                at = await self._committed(tp)
                if at is None or not await self._commit(tp, at + client.rng.randrange(1, 4)):
                    return
            await client.pause(0.3)
        if client.rng.random() < self.leave_chance:
            await self._leave()
        elif client.rng.random() < self.vanish_chance:
            client.hang_up(await client.line_to_coordinator(self.group))
            self.member_id = ""

    async def heartbeat(self) -> bool:
        client, invoked = self.client, self.client.now
        answer = await client.ask(
            Api.HEARTBEAT,
            {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": None,
            },
            line=await client.line_to_coordinator(self.group),
        )
        client.env.history.heartbeats.append(
            Heartbeat(
                group=self.group,
                member=self.member_id,
                generation=self.generation,
                invoked=invoked,
                done=client.now,
                result=classify(answer.error_code),
            )
        )
        if answer.error_code != ErrorCode.none:
            await self._refused(answer.error_code)
        return bool(answer.error_code == ErrorCode.none)

    async def _committed(self, tp: TopicPartition) -> int | None:
        read = await read_commit(self.client, self.group, tp)
        return None if read is None else max(0, read.offset)

    async def _commit(self, tp: TopicPartition, offset: int) -> bool:
        code = await self.committer.commit(tp, offset, member=self.member_id, generation=self.generation)
        if classify_commit(code) != "ok":
            await self._refused(code)
        return code == ErrorCode.none

    async def _leave(self) -> None:
        await self.client.ask(
            Api.LEAVE_GROUP,
            {
                "group_id": self.group,
                "members": [{"member_id": self.member_id, "group_instance_id": None, "reason": None}],
            },
            line=await self.client.line_to_coordinator(self.group),
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
LOADING = NO_COORDINATOR | {ErrorCode.coordinator_load_in_progress}


def classify_commit(code: ErrorCode) -> Result:
    return "unknown" if code in NO_COORDINATOR else classify(code)


async def read_commit(
    client: SimClient, group: str, tp: TopicPartition, *, is_stable: bool = True
) -> CommitRead | None:
    """What the coordinator says is committed; None when it cannot say now, as while a transaction may change
    it, unless what is not `is_stable` will do."""
    line = await client.line_to_coordinator(group)
    invoked = client.now
    answer = await client.ask(
        Api.OFFSET_FETCH,
        {
            "group_id": group,
            "topics": [{"name": tp[0], "partition_indexes": [tp[1]]}],
            "require_stable": is_stable,
        },
        line=line,
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
    )
    client.env.loop.trace("committed-is", group, tp, read.offset, read.tag)
    client.env.history.commit_reads.append(read)
    return read


# Kafka's own format of what members tell each other through their coordinator, which reads it when members of
# both protocols are in one group.


def encode_subscription(topics: Sequence[str], owned: Sequence[TopicPartition]) -> bytes:
    """Version 1: topics, no user data, what is owned."""
    rows = b"".join(_string(topic) for topic in topics)
    return b"".join((b"\0\1", _INT.pack(len(topics)), rows, _INT.pack(-1), _by_topic(owned)))


def encode_owned(partitions: Sequence[TopicPartition]) -> bytes:
    """Version 1: partitions by topic, no user data."""
    return b"".join((b"\0\1", _by_topic(partitions), _INT.pack(-1)))


def _by_topic(partitions: Sequence[TopicPartition]) -> bytes:
    topics = sorted({topic for topic, _ in partitions})
    parts = [_INT.pack(len(topics))]
    for name in topics:
        indexes = [index for topic, index in partitions if topic == name]
        parts += [_string(name), _INT.pack(len(indexes)), *(_INT.pack(index) for index in indexes)]
    return b"".join(parts)


def _string(text: str) -> bytes:
    return _SHORT.pack(len(text)) + text.encode()


def decode_owned(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; of no bytes at all none."""
    if not data:
        return ()
    found: list[TopicPartition] = []
    (topics,), at = _INT.unpack_from(data, 2), 6
    for _ in range(topics):
        (size,) = _SHORT.unpack_from(data, at)
        topic = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (count,) = _INT.unpack_from(data, at)
        found += [(topic, index) for (index,) in _INT.iter_unpack(data[at + 4 : at + 4 + 4 * count])]
        at += 4 + 4 * count
    return tuple(found)


_INT, _SHORT = Struct(">i"), Struct(">h")
