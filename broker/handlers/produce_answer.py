"""The answer of a Produce: at once, or when its records are as safe as `acks` asks.

Owns: the wait for the high watermark of each partition, what its outcome makes of a result, commands that are
carried out before the answer, hints for partitions that others lead. Does not own: the appends
(produce_append), bytes on the wire (protocol.produce), who watches the time (`Purgatory`).
Invariant: with acks=all a partition is answered when its append is committed, or with why it may not be; each
is answered once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from broker.control.cluster import Cluster
from broker.handlers.leader_hints import leader_hint
from broker.handlers.produce_job import Answered, Append, ProduceJob
from broker.handlers.produce_repeat import Template
from broker.net.connection import AfterWrite, Answer, AnswerSlot, Connection, Disconnect
from broker.net.sending import Bulk, answer_of
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import ROWS_A_STEP, TopicKey
from protocol.produce import ProduceResult, encode_produce, encoding_produce
from protocol.work import Work

logger = logging.getLogger(__name__)

_HINT_FROM: Final = 10
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower.value


class ProduceAnswer:
    def __init__(
        self,
        *,
        cluster: Cluster,
        purgatory: Purgatory,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._spawn = spawn
        self._cluster = cluster
        self._purgatory = purgatory

    def finish(self, connection: Connection, after: AfterWrite) -> Answer:
        return self.complete(connection, after[1])

    def complete_one(
        self,
        connection: Connection,
        template: Template,
        correlation_id: int,
        result: ProduceResult,
        needed: int,
    ) -> Answer:
        """Answer what came by the short way and must wait, or failed."""
        partition = template.partition
        job = ProduceJob(template.version, correlation_id, acks=template.acks, timeout_ms=template.timeout_ms)
        job.topics.append((template.topic, [result]))
        job.appended.append((partition, partition.leader_epoch, result, needed))
        return self.complete(connection, job)

    async def complete_long(self, connection: Connection, job: ProduceJob, slot: AnswerSlot) -> Answer:
        return await self._turns.run(self._completing(connection, job, slot))

    def complete(self, connection: Connection, job: ProduceJob, slot: AnswerSlot | None = None) -> Answer:
        """Answer a request after its write, or wait for the in-sync replicas."""
        if job.commands:
            slot = AnswerSlot() if slot is None else slot
            self._spawn(self._carry_out(connection, job, slot))
            return slot
        waiting = self._settle(job, job.appended)
        if job.acks == 0:
            if job.failed:
                raise Disconnect("a Produce with acks=0 failed")
            return None
        if not waiting:
            return self.encode(connection, job.version, job.correlation_id, job.topics)
        wait = CommitWait(self, connection, job.version, job.correlation_id, job.topics, slot)
        for partition, result, needed in waiting:
            wait.on(partition, result, needed)
        self._purgatory.watch(wait, max(job.timeout_ms, 0) / 1000)
        return wait.slot

    def _completing(self, connection: Connection, job: ProduceJob, slot: AnswerSlot) -> Work[Answer]:
        """`complete` in steps."""
        if job.commands:
            return self.complete(connection, job, slot)
        wait = CommitWait(self, connection, job.version, job.correlation_id, job.topics, slot)
        wait.is_long = True
        appended = job.appended
        for at in range(0, len(appended), ROWS_A_STEP):
            for partition, result, needed in self._settle(job, appended[at : at + ROWS_A_STEP]):
                wait.on(partition, result, needed)
            yield
        if job.acks == 0:
            if job.failed:
                raise Disconnect("a Produce with acks=0 failed")
            return None
        if not wait.is_open:
            wait.done = True
            return (yield from self.encoding(connection, job.version, job.correlation_id, job.topics))
        wait.is_counted = True
        self._purgatory.watch(wait, max(job.timeout_ms, 0) / 1000)
        return slot

    async def _carry_out(self, connection: Connection, job: ProduceJob, slot: AnswerSlot) -> None:
        """Carry out the commands of a request, then answer it."""
        commands, job.commands = job.commands, []
        try:
            for result, command in commands:
                try:
                    async with asyncio.timeout(max(job.timeout_ms, 0) / 1000):
                        result.base_offset = await command()
                except TimeoutError:
                    result.error = ErrorCode.request_timed_out.value
                except KafkaError as error:
                    result.error, result.message = error.code.value, error.message
            answer = self.complete(connection, job, slot)
        except asyncio.CancelledError:
            connection.close()
            raise
        except Exception as error:
            logger.error("a broker's Produce failed", exc_info=error)
            connection.close("its Produce failed")
            return
        if not isinstance(answer, AnswerSlot):
            assert isinstance(answer, bytes)
            connection.answer(slot, answer)

    def _settle(
        self, job: ProduceJob, appended: Sequence[Append]
    ) -> list[tuple[Partition, ProduceResult, int]]:
        """Decide what some appends are answered; return those that must wait for a commit."""
        acks = job.acks
        waiting = []
        for partition, leader_epoch, result, needed in appended:
            if partition.offline:
                result.error, result.base_offset = ErrorCode.kafka_storage_error.value, -1
                job.failed = True
            elif acks < 0 and partition.leader_epoch != leader_epoch:
                # while another partition was walked: what stands at these offsets now may be another leader's
                result.error = _NOT_LEADER
            elif acks < 0 and partition.log.high_watermark < needed:
                if partition.is_leader:
                    waiting.append((partition, result, needed))
                else:  # it resigned since the append: nothing would end the wait
                    result.error = _NOT_LEADER
        return waiting

    def encode(self, connection: Connection, version: int, correlation_id: int, topics: Answered) -> bytes:
        """Pack an answer, with a hint for each partition that this broker does not lead."""
        if version >= _HINT_FROM:
            for topic, results in topics:
                self._hint(connection, topic, results)
        return encode_produce(version, correlation_id, topics)

    def encoding(
        self, connection: Connection, version: int, correlation_id: int, topics: Answered
    ) -> Work[bytes | Bulk]:
        """`encode` in steps. Uses the topics up."""
        if version >= _HINT_FROM:
            for topic, results in topics:
                for at in range(0, len(results), ROWS_A_STEP):
                    self._hint(connection, topic, results[at : at + ROWS_A_STEP])
                    yield
        return answer_of((yield from encoding_produce(version, correlation_id, topics)))

    def _hint(self, connection: Connection, topic: TopicKey, results: Sequence[ProduceResult]) -> None:
        for result in results:
            if result.error == _NOT_LEADER:
                result.hint = leader_hint(self._cluster.image, topic, result.index, connection.listener)

    def end_long(self, wait: CommitWait) -> None:
        """Answer a wait of many partitions that is over."""
        self._spawn(self._end_long(wait))

    async def _end_long(self, wait: CommitWait) -> None:
        try:
            answer = await self._turns.run(wait.ending())
        except asyncio.CancelledError:
            wait.connection.close()
            raise
        wait.connection.answer(wait.slot, answer)


class CommitWait(Waiter):
    """A Produce with acks=all whose partitions are not all committed. The connection handles further requests
    meanwhile.

    Whatever ends the wait, the answer has the offset: the batch is in the log.
    """

    __slots__ = (
        "_answers",
        "_correlation_id",
        "_open",
        "_topics",
        "_version",
        "connection",
        "is_counted",
        "is_long",
        "slot",
    )

    def __init__(
        self,
        answers: ProduceAnswer,
        connection: Connection,
        version: int,
        correlation_id: int,
        topics: Answered,
        slot: AnswerSlot | None = None,
    ) -> None:
        super().__init__()
        self._answers = answers
        self.slot = AnswerSlot() if slot is None else slot
        self.connection = connection
        self.is_long = False
        """It has so many partitions that it is counted and answered in turns of the loop."""
        self.is_counted = False
        """All partitions of a long one are there."""
        self._version = version
        self._correlation_id = correlation_id
        self._topics = topics
        self._open: dict[_PartitionCommit, None] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def on(self, partition: Partition, result: ProduceResult, needed: int) -> None:
        commit = _PartitionCommit(self, partition, result, needed)
        self._open[commit] = None
        partition.wait_committed(commit)

    def ended(self, commit: _PartitionCommit) -> None:
        self._open.pop(commit, None)
        if not self._open and not self.done and (self.is_counted or not self.is_long):
            self._answer()

    def expired(self) -> None:
        if self.is_long:
            self._answer()
            return
        for commit in self._open:
            commit.timed_out()
        self._open.clear()
        self._answer()

    def ending(self) -> Work[bytes | Bulk]:
        """Give up what is still open, then pack the answer."""
        while self._open:
            commit, _ = self._open.popitem()
            commit.timed_out()
            if not len(self._open) % ROWS_A_STEP:
                yield
        return (
            yield from self._answers.encoding(
                self.connection, self._version, self._correlation_id, self._topics
            )
        )

    def _answer(self) -> None:
        self.finish()
        connection = self.connection
        if self.is_long:
            self._answers.end_long(self)
            return
        answer = self._answers.encode(connection, self._version, self._correlation_id, self._topics)
        connection.answer(self.slot, answer)


class _PartitionCommit:
    __slots__ = ("_owner", "_partition", "needed", "result")

    def __init__(self, owner: CommitWait, partition: Partition, result: ProduceResult, needed: int) -> None:
        self.needed = needed
        self.result = result
        self._owner = owner
        self._partition = partition

    def timed_out(self) -> None:
        self.result.error = ErrorCode.request_timed_out.value
        self._partition.wait_no_more(self)

    def reached(self) -> None:
        if self._owner.done:
            return
        if not self._partition.acks_all_ok:
            self.result.error = ErrorCode.not_enough_replicas_after_append.value
        self._owner.ended(self)

    def failed(self, code: ErrorCode) -> None:
        if self._owner.done:
            return
        self.result.error = code.value
        self._owner.ended(self)
