"""Owns producers with transactions: the state machine of a stock client, and what a user does with it all
day.

Both versions of the protocol are spoken: the first adds each partition before it writes to it, the second
(KIP-890) writes at once and gets a new epoch with every end. A producer retries what a stock client retries,
aborts where it aborts, and ends where it is fenced; users begin, write to several partitions, commit, abort,
wait for longer than they may, or stop in the middle. Does not own single operations (client.py) nor verdicts.

Invariant: each transaction and each send in it is in the history once, with what its producer could know; who
dies in the middle leaves a commit that was asked for as unknown, and all else as aborted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protocol import records
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.sim.client import OF_GROUPS, OF_TRANSACTIONS, RETRY_S, STALE_METADATA, Lost, SimClient
from tests.sim.history import Commit, Fate, Origin, Send, TopicPartition, Transaction, classify, payload
from tests.sim.workload import LOADING, QUIET_LOOK_S

FIRST, SECOND = 1, 2
"""The versions of the protocol of transactions."""
VERSIONS: Mapping[int, Mapping[Api, tuple[int, ...]]] = {
    FIRST: {
        Api.INIT_PRODUCER_ID: (3, 4),
        Api.ADD_PARTITIONS_TO_TXN: (1, 3),
        Api.ADD_OFFSETS_TO_TXN: (1, 3),
        Api.PRODUCE: (3, 9, 11),
        Api.TXN_OFFSET_COMMIT: (3, 4),
        Api.END_TXN: (1, 3, 4),
    },
    SECOND: {
        Api.INIT_PRODUCER_ID: (5,),
        Api.PRODUCE: (12,),
        Api.TXN_OFFSET_COMMIT: (5,),
        Api.END_TXN: (5,),
    },
}
FENCED = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_authorization_failed,
    }
)
TRIED_AGAIN = (
    LOADING
    | STALE_METADATA
    | {
        ErrorCode.concurrent_transactions,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    }
)
"""What a producer asks again for, with the same sequence."""


class Fenced(Exception):
    """Nothing more can be done with this producer: it is a zombie, or its coordinator does not know it."""


class MustAbort(Exception):
    """What was under way cannot be committed."""


@dataclass(slots=True)
class Open:
    """A transaction under way."""

    key: str
    producer: tuple[int, int]
    begun: float
    asked: float | None = None
    sends: list[Send] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    added: set[TopicPartition] = field(default_factory=set)
    has_begun: bool = False
    """Whether its coordinator may have heard of it."""


@dataclass(slots=True)
class TransactionalProducer:
    """What a stock client keeps: a producer id with its epoch, sequences, and at most one transaction."""

    client: SimClient
    number: int
    transactional_id: str
    timeout_ms: int
    version: int
    on_end: Callable[[str], None] = lambda _: None
    """Told when the end of a transaction is asked for, and of which host."""
    producer: tuple[int, int] = (-1, -1)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    open: Open | None = None
    next_value: int = 0
    transactions: int = 0
    versions: dict[Api, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.client.rng
        self.versions = {api: rng.choice(each) for api, each in VERSIONS[self.version].items()}
        self.client.process.on_death.append(self._died)

    def _died(self, power: bool) -> None:
        """Nobody will learn what became of a commit; what is not asked for never comes."""
        if self.open is not None:
            self._close("aborted" if self.open.asked is None else "unknown")

    # the coordinator ----------------------------------------------------------------------------------------

    async def _ask(
        self,
        key: str,
        kind: int,
        api: Api,
        fields: Mapping[str, Any],
        code_in: Callable[[Any], ErrorCode],
        again: Collection[ErrorCode] = (),
    ) -> tuple[ErrorCode, Any, bool]:
        """Ask the coordinator of this key until it says something final: the code, the answer, and whether an
        earlier attempt may have taken effect."""
        client, is_open = self.client, False
        while True:
            try:
                line = await client.line_to_coordinator(key, kind)
                answer = await client.answer(line, line.ask(api, self.versions[api], fields))
            except Lost:
                is_open = True
                client.coordinators.pop((kind, key), None)
            else:
                code = code_in(answer)
                if code in LOADING:
                    is_open = True
                    client.coordinators.pop((kind, key), None)
                elif code != ErrorCode.concurrent_transactions and code not in again:
                    return code, answer, is_open
            await client.pause(RETRY_S)

    async def begin_anew(self, *, keeps: bool = False) -> None:
        """Get a producer id and an epoch, which ends whatever an earlier one left open; `keeps` when it is
        the next epoch of this very producer (KIP-360)."""
        producer_id, epoch = self.producer if keeps else (-1, -1)
        code, answer, _ = await self._ask(
            self.transactional_id,
            OF_TRANSACTIONS,
            Api.INIT_PRODUCER_ID,
            {
                "transactional_id": self.transactional_id,
                "transaction_timeout": self.timeout_ms,
                "producer_id": producer_id,
                "producer_epoch": epoch,
            },
            lambda answer: answer.error_code,
        )
        if code != ErrorCode.none:
            raise Fenced(code.name)
        self.producer = int(answer.producer_id), int(answer.producer_epoch)
        self.sequences.clear()
        self.client.env.loop.trace("producer", self.transactional_id, *self.producer)

    # one transaction ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        assert self.open is None
        self.transactions += 1
        key = f"{self.client.name}/{self.transactions}"
        self.open = Open(key=key, producer=self.producer, begun=self.client.now)

    @property
    def _under_way(self) -> Open:
        assert self.open is not None
        return self.open

    async def send(
        self, rows: Sequence[tuple[TopicPartition, int]], origins: Sequence[Sequence[Origin]] = ()
    ) -> None:
        """Write so many values to each partition; MustAbort when one of them is refused."""
        under_way = self._under_way
        if self.version == FIRST:
            await self._add([tp for tp, _ in rows if tp not in under_way.added])
        failed = ""
        for place, (tp, count) in enumerate(rows):
            error = await self._send(tp, count, tuple(origins[place]) if origins else ())
            failed = failed or error
        if failed:
            raise MustAbort(failed)

    async def _add(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        under_way = self._under_way
        under_way.has_begun = True
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        code, _, _ = await self._ask(
            self.transactional_id,
            OF_TRANSACTIONS,
            Api.ADD_PARTITIONS_TO_TXN,
            {
                "v3_and_below_transactional_id": self.transactional_id,
                "v3_and_below_producer_id": self.producer[0],
                "v3_and_below_producer_epoch": self.producer[1],
                "v3_and_below_topics": [
                    {"name": topic, "partitions": indexes} for topic, indexes in topics.items()
                ],
            },
            worst_of_partitions,
            again=STALE_METADATA,
        )
        self._expect(code)
        under_way.added.update(partitions)

    def _expect(self, code: ErrorCode) -> None:
        if code == ErrorCode.producer_fenced:
            raise Fenced(code.name)
        if code != ErrorCode.none:
            raise MustAbort(code.name)

    async def _send(self, tp: TopicPartition, count: int, origins: tuple[Origin, ...]) -> str:
        """Write one batch, with retries; the error that ends them."""
        under_way, client = self._under_way, self.client
        under_way.has_begun = True
        values = tuple((self.number << 40) | (self.next_value + index) for index in range(count))
        self.next_value += count
        sequence = self.sequences.get(tp, 0)
        self.sequences[tp] = sequence + count
        now_ms = client.env.now_ms()
        data = records.build_batch(
            [(None, payload(value), (), now_ms) for value in values],
            codec=client.rng.choice((0, 0, 1)),
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        place = len(under_way.sends)
        under_way.sends.append(
            Send(
                client=client.name,
                connection=0,
                tp=tp,
                values=values,
                acks=-1,
                invoked=client.now,
                done=client.now,
                result="unknown",
                producer=self.producer,
                sequence=sequence,
                attempts=0,
                transaction=under_way.key,
                origins=origins,
            )
        )
        was_unknown = False
        while True:
            send = await self._put(tp, bytes(data), under_way.sends[place])
            under_way.sends[place] = send
            if send.result == "ok":
                return ""
            was_unknown |= send.result == "unknown"
            if send.error not in AGAIN:
                if was_unknown:
                    under_way.sends[place] = replace(send, result="unknown")
                return send.error
            under_way.sends[place] = replace(send, result="unknown")
            await client.pause(RETRY_S)

    async def _put(self, tp: TopicPartition, data: bytes, send: Send) -> Send:
        """One attempt, and what came of it."""
        client = self.client
        line = await client.line_to(tp)
        row = {"index": tp[1], "records": data}
        fields = {"transactional_id": self.transactional_id, "acks": -1, "timeout": 2000}
        topic = {"name": tp[0], "partition_data": [row]}
        asked = client.now
        sent = replace(
            send,
            connection=line.number,
            node=line.node,
            life=line.life,
            asked=asked,
            attempts=send.attempts + 1,
        )
        try:
            future = line.ask(Api.PRODUCE, self.versions[Api.PRODUCE], {**fields, "topic_data": [topic]})
            answer = await client.answer(line, future)
        except Lost:
            client.forget(tp)
            error = ErrorCode.network_exception.name
            return replace(sent, result="unknown", error=error, done=client.now)
        found = answer.responses[0].partition_responses[0]
        if found.error_code in STALE_METADATA:
            client.take_hint(tp, answer, found)
        result = classify(found.error_code)
        client.env.loop.trace("sent", client.name, tp, send.values, found.error_code.name, found.base_offset)
        return replace(
            sent,
            result=result,
            error="" if result == "ok" else found.error_code.name,
            base_offset=int(found.base_offset) if result == "ok" else -1,
            ends=client.env.ends(tp) if result == "ok" else (),
            done=client.now,
        )

    async def send_offsets(
        self,
        group: str,
        member: str,
        generation: int,
        offsets: Mapping[TopicPartition, int],
        *,
        instance: str | None = None,
    ) -> None:
        """Commit what was read within the transaction; MustAbort when the group does not take it."""
        under_way, client = self._under_way, self.client
        under_way.has_begun = True
        if self.version == FIRST:
            code, _, _ = await self._ask(
                self.transactional_id,
                OF_TRANSACTIONS,
                Api.ADD_OFFSETS_TO_TXN,
                {
                    "transactional_id": self.transactional_id,
                    "producer_id": self.producer[0],
                    "producer_epoch": self.producer[1],
                    "group_id": group,
                },
                lambda answer: answer.error_code,
            )
            self._expect(code)
        invoked = client.now
        commits = [
            Commit(
                group=group,
                member=member,
                generation=generation,
                tp=tp,
                offset=offset,
                tag=f"{under_way.key}:{tp[0]}-{tp[1]}",
                invoked=invoked,
                done=invoked,
                result="unknown",
                transaction=under_way.key,
            )
            for tp, offset in offsets.items()
        ]
        under_way.commits += commits
        topics: dict[str, list[dict[str, Any]]] = {}
        for commit in commits:
            row = {
                "partition_index": commit.tp[1],
                "committed_offset": commit.offset,
                "committed_leader_epoch": -1,
                "committed_metadata": commit.tag,
            }
            topics.setdefault(commit.tp[0], []).append(row)
        code, _, _ = await self._ask(
            group,
            OF_GROUPS,
            Api.TXN_OFFSET_COMMIT,
            {
                "transactional_id": self.transactional_id,
                "group_id": group,
                "producer_id": self.producer[0],
                "producer_epoch": self.producer[1],
                "generation_id": generation,
                "member_id": member,
                "group_instance_id": instance,
                "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
            },
            lambda answer: first_error(row.error_code for topic in answer.topics for row in topic.partitions),
            again=TRIED_AGAIN,
        )
        self._expect(code)

    async def commit(self) -> None:
        """Commit; MustAbort when the coordinator asks for that, Fenced when it does not know this one."""
        under_way = self._under_way
        if not under_way.has_begun:
            self._close("aborted")
            return
        under_way.asked = self.client.now
        self.client.env.loop.trace("commits", under_way.key)
        code, is_open = await self._end(committed=True)
        if code == ErrorCode.none:
            self._close("committed")
        elif code == ErrorCode.transaction_abortable and not is_open:
            under_way.asked = None
            raise MustAbort(code.name)
        else:
            self._close("unknown" if is_open else "aborted", error=code.name)
            raise Fenced(code.name)

    async def abort(self, *, bumps: bool = False) -> None:
        """Abort; `bumps` when a new epoch has to follow, because a batch may be missing in a row."""
        under_way = self._under_way
        if under_way.has_begun:
            code, _ = await self._end(committed=False)
            if code != ErrorCode.none:
                self._close("aborted", error=code.name)
                raise Fenced(code.name)
        self._close("aborted")
        if bumps and self.version == FIRST:
            await self.begin_anew(keeps=True)

    async def _end(self, *, committed: bool) -> tuple[ErrorCode, bool]:
        host, _ = self.client.coordinators.get((OF_TRANSACTIONS, self.transactional_id), ("", 0))
        self.on_end(host)
        code, answer, is_open = await self._ask(
            self.transactional_id,
            OF_TRANSACTIONS,
            Api.END_TXN,
            {
                "transactional_id": self.transactional_id,
                "producer_id": self.producer[0],
                "producer_epoch": self.producer[1],
                "committed": committed,
            },
            lambda answer: answer.error_code,
        )
        if code == ErrorCode.none and self.version == SECOND:
            self.producer = int(answer.producer_id), int(answer.producer_epoch)
            self.sequences.clear()
        return code, is_open

    def walk_away(self) -> None:
        """Never end it: its coordinator has to."""
        if self.open is not None:
            self._close("aborted")

    def _close(self, fate: Fate, *, error: str = "") -> None:
        """Note what is known of the transaction."""
        under_way, env = self._under_way, self.client.env
        self.open = None
        env.loop.trace("transaction", under_way.key, fate, error)
        env.history.sends += under_way.sends
        result = {"committed": "ok", "aborted": "fail", "unknown": "unknown"}
        env.history.commits += [
            replace(commit, done=self.client.now, result=result[fate], error=error)  # type: ignore[arg-type]
            for commit in under_way.commits
        ]
        env.history.transactions.append(
            Transaction(
                key=under_way.key,
                client=self.client.name,
                transactional_id=self.transactional_id,
                producer=under_way.producer,
                version=self.version,
                begun=under_way.begun,
                done=self.client.now,
                fate=fate,
                asked=under_way.asked,
                error=error,
            )
        )

    async def ended(self, work: Callable[[], Awaitable[None]], *, commits: bool = True) -> bool:
        """Do this in a transaction and end it; whether it was committed. What can be aborted is."""
        self.begin()
        try:
            await work()
            if commits:
                await self.commit()
            else:
                await self.abort()
        except MustAbort as problem:
            self.client.env.loop.trace("must abort", self.client.name, str(problem))
            await self.abort(bumps=True)
            return False
        return commits


AGAIN = frozenset(code.name for code in TRIED_AGAIN)


def first_error(codes: Any) -> ErrorCode:
    """The first that is one."""
    return next((code for code in codes if code != ErrorCode.none), ErrorCode.none)


def worst_of_partitions(answer: Any) -> ErrorCode:
    """The error of an answer about partitions: one that is not for the partition that has it comes first."""
    codes = [
        row.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]
    said = first_error(code for code in codes if code != ErrorCode.operation_not_attempted)
    return first_error(codes) if said == ErrorCode.none else said


# users ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Transactor:
    """Runs some transactions over several partitions, and ends them as its dice say."""

    producer: TransactionalProducer
    partitions: Sequence[TopicPartition]
    count: int
    pause_s: float
    abort_share: float = 0.2
    late_share: float = 0.07
    """Of transactions that are ended when their time is over."""
    leave_share: float = 0.07
    """Of those that are never ended; the next one begins with a new epoch."""

    async def run(self) -> None:
        client = self.producer.client
        is_known = False
        for _ in range(self.count):
            while client.env.is_quiet:
                await client.pause(QUIET_LOOK_S)
            try:
                if not is_known:
                    await self.producer.begin_anew()
                    is_known = True
                await self._one()
            except Fenced as problem:
                client.env.loop.trace("fenced", client.name, str(problem))
                self.producer.walk_away()
                is_known = False
                await client.pause(RETRY_S * 10)
            if self.pause_s:
                await client.pause(self.pause_s)

    async def _one(self) -> None:
        client, producer = self.producer.client, self.producer
        roll = client.rng.random()
        ends_late = roll < self.late_share
        leaves = not ends_late and roll < self.late_share + self.leave_share

        async def work() -> None:
            await self._write()
            if ends_late:
                await client.pause(producer.timeout_ms / 1000)
            if leaves:
                raise Fenced("left it open")

        await producer.ended(work, commits=client.rng.random() >= self.abort_share)

    async def _write(self) -> None:
        rng = self.producer.client.rng
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            count = rng.randrange(1, min(3, len(self.partitions)) + 1)
            chosen = rng.sample(list(self.partitions), count)
            await self.producer.send([(tp, rng.choice((1, 1, 2))) for tp in chosen])
            if rng.random() < 0.5:
                await self.producer.client.pause(0.2)
