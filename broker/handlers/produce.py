"""Produce: from the records in a frame to the log, and the answer once they are as safe as `acks` asks.

    way      when                                      entry                   where it appends
    short    one partition, and equal to an earlier    `ProduceRepeat.repeat`  `append_plain`
             request up to its batch, which neither
             begins nor ends anything
    long     all others                                `Produce.handle`        `append`; `append_prepared` if
                                                                               the log must see records
    walked   more partitions, or more records to see,  `Produce._walk`         as the long way
             than one turn of the loop has time for;
             or the transaction coordinator has to be
             asked first

Owns: which way a request takes, and the places of the walked ones. Does not own: the short way
(produce_repeat), the appends (produce_append), the answer (produce_answer), what the transaction coordinator
is asked (produce_transactions), bytes on the wire (protocol.produce).
Invariant: all ways append and answer alike.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from broker.control.cluster import Cluster
from broker.coordinators.transactions.verification import Verifier
from broker.handlers.produce_answer import ProduceAnswer
from broker.handlers.produce_append import Commands, ProduceAppend
from broker.handlers.produce_job import ProduceJob, Topics, job_of, once_each, ordering, refuse_some
from broker.handlers.produce_repeat import ProduceRepeat
from broker.handlers.produce_transactions import ProduceTransactions, TransactionalProduce
from broker.net.connection import Answer, AnswerSlot, Connection, Disconnect, Frame
from broker.net.sending import Bulk
from broker.ports import Offload
from broker.replicas.purgatory import Purgatory
from broker.replicas.replica_manager import ReplicaManager
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.primitives import ROWS_A_STEP
from protocol.produce import ProduceRequest, parse_short_produce, parsing_produce
from protocol.work import Work, finish

logger = logging.getLogger(__name__)

_LONG_MAX: Final = 16
"""How many requests of the walked way are in work at once; the others wait as bytes that are counted."""


class Produce:
    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        cluster: Cluster,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        offload: Offload,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        rows_max: Callable[[], int],
        verifier: Verifier,
        commands: Sequence[Commands] = (),
    ) -> None:
        """`commands` take what brokers send each other as records of topics that clients may not write. A
        request of more than `rows_max` topics and partitions is refused."""
        self._turns = turns
        self._rows_max = rows_max
        self._long = asyncio.Semaphore(_LONG_MAX)
        self._long_asking = asyncio.Semaphore(_LONG_MAX)
        self._spawn = spawn
        self._replicas = replicas
        self._transactions = ProduceTransactions(
            replicas=replicas, cluster=cluster, verifier=verifier, now_ms=now_ms, turns=turns
        )
        self._appends = ProduceAppend(
            replicas=replicas,
            cluster=cluster,
            now_ms=now_ms,
            offload=offload,
            turns=turns,
            commands=commands,
        )
        self._answers = ProduceAnswer(cluster=cluster, purgatory=purgatory, spawn=spawn, turns=turns)
        self._repeat = ProduceRepeat(replicas=replicas, now_ms=now_ms, complete=self._answers.complete_one)
        self.repeat = self._repeat.repeat

    # --- the long way ---

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        request = parse_short_produce(memoryview(frame), body_at, version, self._rows_max())
        if request is None:
            return self._walk_later(connection, frame, version, correlation_id, body_at)
        job = job_of(connection, version, correlation_id, request)
        is_transactional, fatal = refuse_some(request, request.topics)
        topics = once_each(job, request)
        if is_transactional and fatal is None:
            fatal = finish(self._beginning(job, request, topics))
            assert job.transaction is not None
            if fatal is None and not self._transactions.settle_now(job.transaction):
                return self._walk_later(connection, frame, version, correlation_id, body_at, job.transaction)
        job.failed = job.failed or fatal is not None
        ready = self._appends.ready(job, topics) if fatal is None else {}
        if ready is None:
            return self._walk_later(connection, frame, version, correlation_id, body_at)
        self._appends.append_ready(job, topics, ready, fatal)
        is_alike = is_transactional or request.transactional_id is None
        if request.single_at >= 0 and is_alike and not job.failed:
            name = self._appends.name_of(request.topics[0][0])
            assert name is not None
            self._repeat.learn(connection, frame, version, request, name, is_transactional)
        return (self._answers.finish, job)

    def _beginning(self, job: ProduceJob, request: ProduceRequest, topics: Topics) -> Work[ErrorCode | None]:
        """Find out what the transaction coordinator is to be asked; an error refuses the whole request."""
        assert request.transactional_id is not None
        transactions = self._transactions
        job.transaction = made = transactions.noting(job.version, request.transactional_id)
        done = 0
        for topic, partitions in topics:
            name = self._appends.name_of(topic)
            for index, records in partitions:
                transactions.note(made, topic, name, index, records)
                done += 1
                if not done % ROWS_A_STEP:
                    yield
        try:
            yield from transactions.beginning(made)
        except KafkaError as error:
            return error.code
        return None

    # --- the walked way ---

    def _walk_later(
        self,
        connection: Connection,
        frame: Frame,
        version: int,
        correlation_id: int,
        body_at: int,
        transaction: TransactionalProduce | None = None,
    ) -> AnswerSlot:
        """Go on in a task. `transaction` has what is to be asked about a short request that is sound."""
        slot = connection.slot()
        kept = memoryview(connection.keep(frame))
        self._spawn(self._walk(connection, slot, kept, version, correlation_id, body_at, transaction))
        return slot

    async def _walk(
        self,
        connection: Connection,
        slot: AnswerSlot,
        frame: memoryview,
        version: int,
        correlation_id: int,
        body_at: int,
        transaction: TransactionalProduce | None,
    ) -> None:
        """Take the long way in turns of the loop: this connection waits, no other does."""
        try:
            request = parse_short_produce(frame, body_at, version, self._rows_max())
            if request is not None and transaction is not None:
                job = job_of(connection, version, correlation_id, request)
                job.transaction = transaction
                await self._settle_and_append(job, once_each(job, request), transaction)
                answer = self._answers.complete(connection, job, slot)
            elif request is not None:
                job = job_of(connection, version, correlation_id, request)
                topics = await self._turns.run(self._ordered(job, request))
                if job.transaction is not None:
                    await self._transactions.settle(job.transaction)
                async with self._long:
                    await self._appends.append_all(job, topics)
                answer = await self._answers.complete_long(connection, job, slot)
            else:
                job = await self._walk_long(connection, frame, version, correlation_id, body_at)
                # what is appended is in the log, and the answer may be as large as the request
                del frame
                connection.let_go()
                answer = await self._answers.complete_long(connection, job, slot)
        except asyncio.CancelledError:
            connection.close()
            raise
        except (Disconnect, MalformedRequest) as gone:
            connection.close(str(gone))
            return
        except Exception as error:
            logger.error("Produce failed", exc_info=error)
            connection.close("its Produce failed")
            return
        finally:
            connection.let_go()
        if not isinstance(answer, AnswerSlot):
            assert answer is None or isinstance(answer, bytes | Bulk)
            connection.answer(slot, answer or b"")
        connection.resume()

    async def _settle_and_append(
        self, job: ProduceJob, topics: Topics, transaction: TransactionalProduce
    ) -> None:
        """Ask the transaction coordinator about a short request; then append it, at once where it may."""
        await self._transactions.settle(transaction)
        ready = self._appends.ready(job, topics)
        if ready is None:
            async with self._long:
                await self._appends.append_all(job, topics)
            return
        self._appends.append_ready(job, topics, ready, None)
        if self._replicas.touched:
            self._replicas.wake(self._replicas.flush())

    async def _walk_long(
        self, connection: Connection, frame: memoryview, version: int, correlation_id: int, body_at: int
    ) -> ProduceJob:
        """Read and append a request of many rows, of which few are held at once. Those that wait for the
        transaction coordinator have places of their own."""
        async with self._long:
            request = await self._turns.run(parsing_produce(frame, body_at, version, self._rows_max()))
            job = job_of(connection, version, correlation_id, request)
            if request.transactional_id is None:
                await self._appends.append_all(job, await self._turns.run(self._ordered(job, request)))
                return job
        async with self._long_asking:
            topics = await self._turns.run(self._ordered(job, request))
            if job.transaction is not None:
                await self._transactions.settle(job.transaction)
            await self._appends.append_all(job, topics)
        return job

    def _ordered(self, job: ProduceJob, request: ProduceRequest) -> Work[Topics]:
        """Refuse what is refused as a whole, and return what is left to be appended."""
        fatal = None
        is_settled = False
        for topic, partitions in request.topics:
            for at in range(0, len(partitions), ROWS_A_STEP):
                some = [(topic, partitions[at : at + ROWS_A_STEP])]
                is_settled, fatal = refuse_some(request, some)
                yield None
                if is_settled:
                    break
            if is_settled:
                break
        topics = yield from ordering(job, request)
        if is_settled and fatal is None:
            fatal = yield from self._beginning(job, request, topics)
        job.fatal = fatal
        job.failed = job.failed or fatal is not None
        return topics
