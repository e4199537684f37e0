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

Owns: the long way and the walked one, what is checked before an append, the wait for the high watermark. Does
not own: the short way (produce_repeat), bytes on the wire (protocol.produce), the log's own checks, the write
itself (`ReplicaManager.flush` ends each round). Invariant: all ways append and answer alike; each partition
of a request is answered once, with its offset or with why it was refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.internal_topics import may_client_write
from broker.coordinators.transactions.verification import Verifier
from broker.handlers.leader_hints import leader_hint
from broker.handlers.produce_repeat import ProduceRepeat, Template
from broker.handlers.produce_transactions import Place, ProduceTransactions, TransactionalProduce
from broker.net.connection import AfterWrite, Answer, AnswerSlot, Connection, Disconnect, Frame
from broker.ports import Offload
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.replica_manager import ReplicaManager
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.primitives import ROWS_A_STEP, TopicKey
from protocol.produce import (
    ProduceRequest,
    ProduceResult,
    encode_produce,
    encoding_produce,
    parse_short_produce,
    parsing_produce,
)
from protocol.records import HEADER_SIZE, check_first_batch, check_one_batch, check_produced, parse_header
from protocol.work import Work, finish, let_go
from storage.prepare import WALK_RECORDS, Prepared, RecordsRejected, Task
from storage.producers import Verification

logger = logging.getLogger(__name__)

ACKS: Final = (-1, 0, 1)
Topics: TypeAlias = list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
Answered: TypeAlias = list[tuple[TopicKey, list[ProduceResult]]]
Ready: TypeAlias = "dict[tuple[TopicKey, int], Prepared | KafkaError | None]"
Append: TypeAlias = tuple[Partition, int, ProduceResult, int]
Command: TypeAlias = Callable[[], Coroutine[Any, Any, int]]
BATCH_ENDED: Final = Task(lambda: None)
"""Stands between two batches that were handed to a thread."""
_LONG_MAX: Final = 16
"""How many requests of the walked way are in work at once; the others wait as bytes that are counted."""
_THREADS_MAX: Final = 2
"""How many batches are unpacked in threads, and held unpacked, at once."""
_BATCHES_AT_ONCE: Final = 8
"""How many batches are looked into in one turn of the loop."""
_APPENDS_A_STEP: Final = 8
_HINT_FROM: Final = 10
_NONE: Final = ErrorCode.none.value
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower.value
_START_UNTOLD: Final = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.kafka_storage_error,
        ErrorCode.unsupported_compression_type,
    }
)
"""Kafka gives the log start offset with every refusal but these."""


class Commands(Protocol):
    def accept(
        self, listener: str, topic: str, index: int, records: memoryview | None, *, version: int
    ) -> Command | None:
        """Return what carries out the commands in these records and gives the offset of the last; None for
        records of a client. Raise KafkaError for what cannot be read."""


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
        self._commands = commands
        self._turns = turns
        self._rows_max = rows_max
        self._long = asyncio.Semaphore(_LONG_MAX)
        self._long_asking = asyncio.Semaphore(_LONG_MAX)
        self._threads = asyncio.Semaphore(_THREADS_MAX)
        self._offload = offload
        self._spawn = spawn
        self._replicas = replicas
        self._cluster = cluster
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._transactions = ProduceTransactions(
            replicas=replicas, cluster=cluster, verifier=verifier, now_ms=now_ms, turns=turns
        )
        self._repeat = ProduceRepeat(replicas=replicas, now_ms=now_ms, complete=self._complete_one)
        self.repeat = self._repeat.repeat

    # --- the long way ---

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        request = parse_short_produce(memoryview(frame), body_at, version, self._rows_max())
        if request is None:
            return self._walk_later(connection, frame, version, correlation_id, body_at)
        job = _job(connection, version, correlation_id, request)
        is_transactional, fatal = _refuse_some(request, request.topics)
        topics = self._once_each(job, request)
        if is_transactional and fatal is None:
            fatal = finish(self._beginning(job, request, topics))
            assert job.transaction is not None
            if fatal is None and not self._transactions.settle_now(job.transaction):
                return self._walk_later(connection, frame, version, correlation_id, body_at, job.transaction)
        job.failed = job.failed or fatal is not None
        ready = self._ready(job, topics) if fatal is None else {}
        if ready is None:
            return self._walk_later(connection, frame, version, correlation_id, body_at)
        self._append_ready(job, topics, ready, fatal)
        is_alike = is_transactional or request.transactional_id is None
        if request.single_at >= 0 and is_alike and not job.failed:
            name = self._name(request.topics[0][0])
            assert name is not None
            self._repeat.learn(connection, frame, version, request, name, is_transactional)
        return (self._finish, job)

    def _append_ready(self, job: ProduceJob, topics: Topics, ready: Ready, fatal: ErrorCode | None) -> None:
        """Append a short request, or answer all of it with what refuses it as a whole."""
        for topic, partitions in topics:
            name = self._name(topic)
            results: list[ProduceResult] = []
            for index, records in partitions:
                if fatal is not None:
                    results.append(ProduceResult(index, fatal.value))
                else:
                    prepared = ready.get((topic, index)) if ready else None
                    result = self._append(job, (topic, index), name, records, prepared)
                    results.append(job.refused.get((topic, index), result))
            job.topics.append((topic, results))

    def _beginning(self, job: ProduceJob, request: ProduceRequest, topics: Topics) -> Work[ErrorCode | None]:
        """Find out what the transaction coordinator is to be asked; an error refuses the whole request."""
        assert request.transactional_id is not None
        transactions = self._transactions
        job.transaction = made = transactions.noting(job.version, request.transactional_id)
        done = 0
        for topic, partitions in topics:
            name = self._name(topic)
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

    def _once_each(self, job: ProduceJob, request: ProduceRequest) -> Topics:
        """Every partition once. Of one that is named twice Kafka appends the last record set that could be
        one and answers those that cannot; a topic without partitions is not answered.
        """
        return request.topics if request.single_at >= 0 else finish(self._ordering(job, request))

    def _ordering(self, job: ProduceJob, request: ProduceRequest) -> Work[Topics]:
        """Uses the request's rows up."""
        named: dict[TopicKey, dict[int, memoryview | None]] = {}
        repeated: dict[tuple[TopicKey, int], list[memoryview | None]] = {}
        done = 0
        for topic, partitions in request.topics:
            if not partitions:
                continue
            known = named.setdefault(topic, {})
            partitions.reverse()
            while partitions:
                index, records = partitions.pop()
                if index in known:
                    repeated.setdefault((topic, index), [known[index]]).append(records)
                else:
                    known[index] = records
                done += 1
                if not done % ROWS_A_STEP:
                    yield
        for (topic, index), given in repeated.items():
            named[topic][index] = self._last(job, topic, index, given)
            yield
        topics: Topics = []
        for topic, known in named.items():
            ordered: list[tuple[int, memoryview | None]] = []
            topics.append((topic, ordered))
            while known:
                ordered.append(known.popitem())
                done += 1
                if not done % ROWS_A_STEP:
                    yield
            ordered.reverse()
        return topics

    def _last(
        self, job: ProduceJob, topic: TopicKey, index: int, given: list[memoryview | None]
    ) -> memoryview | None:
        if len(given) == 1:
            return given[0]
        sound, refused = [], []
        for records in given:
            try:
                check_one_batch(records, job.version)
                sound.append(records)
            except KafkaError as error:
                refused.append(error)
        if sound and refused:
            job.failed = True
            job.refused[topic, index] = _error_result(index, refused[-1])
        return sound[-1] if sound else given[-1]

    def _ready(self, job: ProduceJob, topics: Topics) -> Ready | None:
        """Look at the records that the log must see; None if that takes more than a turn of the loop."""
        ready: Ready = {}
        records_left = WALK_RECORDS
        for topic, partitions in topics:
            for index, records in partitions:
                name = self._name(topic)
                partition = self._replicas.find(name or "", index)
                if not isinstance(partition, Partition) or not partition.log.needs_walk:
                    continue
                if records is None or len(records) < HEADER_SIZE:
                    continue
                records_left -= max(parse_header(records).count, WALK_RECORDS // _BATCHES_AT_ONCE)
                if records_left < 0:
                    return None
                try:
                    next(self._preparing(job, (topic, index), name, records))
                    return None
                except StopIteration as end:
                    ready[topic, index] = end.value
                except KafkaError as error:
                    # its traceback would hold this frame, and so the error itself
                    ready[topic, index] = error.with_traceback(None)
        return ready

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
                job = _job(connection, version, correlation_id, request)
                job.transaction = transaction
                await self._settle_and_append(job, self._once_each(job, request), transaction)
                answer = self._complete(connection, job, slot)
            elif request is not None:
                job = _job(connection, version, correlation_id, request)
                topics = await self._turns.run(self._ordered(job, request))
                if job.transaction is not None:
                    await self._transactions.settle(job.transaction)
                async with self._long:
                    await self._append_all(job, topics)
                answer = await self._complete_long(connection, job, slot)
            else:
                job = await self._walk_long(connection, frame, version, correlation_id, body_at)
                answer = await self._complete_long(connection, job, slot)
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
            assert answer is None or isinstance(answer, bytes)
            connection.answer(slot, answer or b"")
        connection.resume()

    async def _complete_long(self, connection: Connection, job: ProduceJob, slot: AnswerSlot) -> Answer:
        answer = await self._turns.run(self._completing(connection, job, slot))
        if isinstance(answer, bytes):
            for _topic, results in job.topics:
                await self._turns.run(let_go(results))
        return answer

    async def _settle_and_append(
        self, job: ProduceJob, topics: Topics, transaction: TransactionalProduce
    ) -> None:
        """Ask the transaction coordinator about a short request; then append it, at once where it may."""
        await self._transactions.settle(transaction)
        ready = self._ready(job, topics)
        if ready is None:
            async with self._long:
                await self._append_all(job, topics)
            return
        self._append_ready(job, topics, ready, None)
        if self._replicas.touched:
            self._replicas.wake(self._replicas.flush())

    async def _walk_long(
        self, connection: Connection, frame: memoryview, version: int, correlation_id: int, body_at: int
    ) -> ProduceJob:
        """Read and append a request of many rows, of which few are held at once. Those that wait for the
        transaction coordinator have places of their own."""
        async with self._long:
            request = await self._turns.run(parsing_produce(frame, body_at, version, self._rows_max()))
            job = _job(connection, version, correlation_id, request)
            if request.transactional_id is None:
                await self._append_all(job, await self._turns.run(self._ordered(job, request)))
                return job
        async with self._long_asking:
            topics = await self._turns.run(self._ordered(job, request))
            if job.transaction is not None:
                await self._transactions.settle(job.transaction)
            await self._append_all(job, topics)
        return job

    def _ordered(self, job: ProduceJob, request: ProduceRequest) -> Work[Topics]:
        """Refuse what is refused as a whole, and return what is left to be appended."""
        fatal = None
        is_settled = False
        for topic, partitions in request.topics:
            for at in range(0, len(partitions), ROWS_A_STEP):
                some = [(topic, partitions[at : at + ROWS_A_STEP])]
                is_settled, fatal = _refuse_some(request, some)
                yield None
                if is_settled:
                    break
            if is_settled:
                break
        topics = yield from self._ordering(job, request)
        if is_settled and fatal is None:
            fatal = yield from self._beginning(job, request, topics)
        job.fatal = fatal
        job.failed = job.failed or fatal is not None
        return topics

    async def _append_all(self, job: ProduceJob, topics: Topics) -> None:
        """Append partition after partition. What is handed to a thread takes memory: few batches are in that
        state at once, and each lets the others go first once it is appended."""
        steps = self._appending(job, topics)
        task = await self._turns.run(_next_task(steps))
        while task is not None:
            async with self._threads:
                while task is not None and task is not BATCH_ENDED:
                    await self._offload(task.run)
                    task = await self._turns.run(_next_task(steps))
            if task is BATCH_ENDED:
                task = await self._turns.run(_next_task(steps))

    def _appending(self, job: ProduceJob, topics: Topics) -> Generator[Task | None, None, None]:
        """Append everything; a task that is yielded is to be run before the next step."""
        fatal = job.fatal
        done = 0
        for topic, named in topics:
            results: list[ProduceResult] = []
            job.topics.append((topic, results))
            named.reverse()
            while named:
                index, records = named.pop()
                done += 1
                if fatal is not None:
                    results.append(ProduceResult(index, fatal.value))
                else:
                    result = yield from self._appending_one(job, topic, index, records)
                    results.append(job.refused.get((topic, index), result))
                    if self._replicas.touched:
                        # nothing stays unwritten while others have their turn
                        self._replicas.wake(self._replicas.flush())
                if not done % _APPENDS_A_STEP:
                    yield None

    def _appending_one(
        self, job: ProduceJob, topic: TopicKey, index: int, records: memoryview | None
    ) -> Generator[Task | None, None, ProduceResult]:
        prepared: Prepared | KafkaError | None
        steps = self._preparing(job, (topic, index), self._name(topic), records)
        has_tasks = False
        while True:
            try:
                task = next(steps)
            except StopIteration as end:
                prepared = end.value
                break
            except KafkaError as error:
                prepared = error.with_traceback(None)
                break
            has_tasks = has_tasks or task is not None
            yield task
        result = self._append(job, (topic, index), self._name(topic), records, prepared)
        prepared = None
        if has_tasks:
            yield BATCH_ENDED
        return result

    def _preparing(
        self, job: ProduceJob, place: Place, topic: str | None, records: memoryview | None
    ) -> Generator[Task | None, None, Prepared | None]:
        """Read the records; None where no walk is needed or where `_append` will find what is wrong."""
        partition = self._replicas.find(topic or "", place[1])
        if (
            not isinstance(partition, Partition)
            or not partition.log.needs_walk
            or not may_client_write(topic or "")
        ):
            return None
        _at, header = check_produced(records, version=job.version)[0]
        assert records is not None
        if job.acks < 0 and not partition.acks_all_ok:
            return None
        if job.transaction is not None and place in job.transaction.refused:
            return None
        return (
            yield from partition.log.prepare(
                records[: header.size], now_ms=self._now_ms(), verified=job.verification(place)
            )
        )

    # --- appending ---

    def _name(self, topic: TopicKey) -> str | None:
        return self._cluster.image.topic_names.get(topic) if isinstance(topic, UUID) else topic

    def _append(
        self,
        job: ProduceJob,
        place: Place,
        topic: str | None,
        records: memoryview | None,
        prepared: Prepared | KafkaError | None = None,
    ) -> ProduceResult:
        partition = None
        index = place[1]
        if job.transaction is not None:
            refused = job.transaction.refused.get(place)
            if refused is not None:
                job.failed = True
                return refused
        try:
            partition = self._target(job, topic, index, records)
            partition.stats.produce += 1
            if isinstance(prepared, KafkaError):
                raise prepared
            return self._append_to(job, place, partition, records, prepared)
        except _NotForClients as internal:
            return self._command(job, internal, index, records)
        except KafkaError as error:
            job.failed = True
            result = _error_result(index, error)
            if partition is not None:
                partition.stats.failed_produce += 1
                if error.code not in _START_UNTOLD and _is_one_batch(records):
                    result.start = partition.log.log_start_offset
            return result

    def _target(
        self, job: ProduceJob, topic: str | None, index: int, records: memoryview | None
    ) -> Partition:
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        if job.acks not in ACKS:
            if self._cluster.image.partition(topic, index) is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            check_one_batch(records, job.version)
            raise KafkaError(ErrorCode.invalid_required_acks)
        if not may_client_write(topic):
            raise _NotForClients(topic)
        return self._replicas.partition(topic, index)

    def _append_to(
        self,
        job: ProduceJob,
        place: Place,
        partition: Partition,
        records: memoryview | None,
        prepared: Prepared | None,
    ) -> ProduceResult:
        _at, header = check_produced(records, version=job.version)[0]
        assert records is not None
        if job.acks < 0:
            partition.check_acks_all()
        now_ms = self._now_ms()
        verified = job.verification(place)
        if prepared is not None and prepared.log is partition.log:  # and not of a topic deleted meanwhile
            partition.check_room()
            appended = partition.log.append_prepared(
                prepared, leader_epoch=partition.leader_epoch, verified=verified
            )
        elif partition.fast_log is not None:
            appended = partition.fast_log.append(
                records, header, 0, leader_epoch=partition.leader_epoch, now_ms=now_ms, verified=verified
            )
        else:
            partition.check_room()
            appended = partition.log.append_records(
                records[: header.size],
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
                origin="client",
                verified=verified,
            )
        self._replicas.touch(partition)
        if not appended.duplicate:
            partition.stats.messages_in += header.count
            partition.stats.bytes_in += header.size
        result = ProduceResult(
            partition.index, _NONE, appended.first_offset, appended.log_append_time, appended.log_start_offset
        )
        job.appended.append((partition, partition.leader_epoch, result, appended.last_offset + 1))
        return result

    def _command(
        self, job: ProduceJob, refused: _NotForClients, index: int, records: memoryview | None
    ) -> ProduceResult:
        """Take what another broker tells; refuse what a client sends."""
        try:
            asked = (
                each.accept(job.listener, refused.topic, index, records, version=job.version)
                for each in self._commands
            )
            command = next((each for each in asked if each is not None), None)
            if command is None:
                raise refused
            if job.acks >= 0:
                raise KafkaError(ErrorCode.invalid_required_acks, "a command is acknowledged by all replicas")
        except KafkaError as error:
            job.failed = True
            return _error_result(index, error)
        result = ProduceResult(index, _NONE)
        job.commands.append((result, command))
        return result

    # --- answering ---

    def _finish(self, connection: Connection, after: AfterWrite) -> Answer:
        return self._complete(connection, after[1])

    def _complete_one(
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
        return self._complete(connection, job)

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
            answer = self._complete(connection, job, slot)
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

    def _complete(self, connection: Connection, job: ProduceJob, slot: AnswerSlot | None = None) -> Answer:
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
        """`_complete` in steps."""
        if job.commands:
            return self._complete(connection, job, slot)
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
    ) -> Work[bytes]:
        """`encode` in steps."""
        if version >= _HINT_FROM:
            for topic, results in topics:
                for at in range(0, len(results), ROWS_A_STEP):
                    self._hint(connection, topic, results[at : at + ROWS_A_STEP])
                    yield
        return (yield from encoding_produce(version, correlation_id, topics))

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


class ProduceJob:
    """A Produce between its appends and its answer."""

    __slots__ = (
        "acks",
        "appended",
        "commands",
        "correlation_id",
        "failed",
        "fatal",
        "listener",
        "refused",
        "timeout_ms",
        "topics",
        "transaction",
        "version",
    )

    def __init__(
        self, version: int, correlation_id: int, *, acks: int, timeout_ms: int, listener: str = ""
    ) -> None:
        self.listener = listener
        self.commands: list[tuple[ProduceResult, Command]] = []
        """What is done after the appends, and where its offset goes."""
        self.version = version
        self.correlation_id = correlation_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics: Answered = []
        self.appended: list[Append] = []
        """Each append's partition, leader epoch and result, and the offset that the high watermark must
        reach."""
        self.refused: dict[tuple[TopicKey, int], ProduceResult] = {}
        """Results that replace those of the append."""
        self.failed = False
        self.fatal: ErrorCode | None = None
        """What every partition of a walked request is answered instead of an append."""
        self.transaction: TransactionalProduce | None = None
        """What is known of its transaction, if it is of one."""

    def verification(self, place: Place) -> Verification | None:
        return None if self.transaction is None else self.transaction.verification(place)


class CommitWait(Waiter):
    """A Produce with acks=all whose partitions are not all committed. The connection handles further requests
    meanwhile.

    Whatever ends the wait, the answer has the offset: the batch is in the log.
    """

    __slots__ = (
        "_correlation_id",
        "_open",
        "_produce",
        "_topics",
        "_version",
        "connection",
        "is_counted",
        "is_long",
        "slot",
    )

    def __init__(
        self,
        produce: Produce,
        connection: Connection,
        version: int,
        correlation_id: int,
        topics: Answered,
        slot: AnswerSlot | None = None,
    ) -> None:
        super().__init__()
        self._produce = produce
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

    def ending(self) -> Work[bytes]:
        """Give up what is still open, then pack the answer."""
        while self._open:
            commit, _ = self._open.popitem()
            commit.timed_out()
            if not len(self._open) % ROWS_A_STEP:
                yield
        return (
            yield from self._produce.encoding(
                self.connection, self._version, self._correlation_id, self._topics
            )
        )

    def _answer(self) -> None:
        self.finish()
        connection = self.connection
        if self.is_long:
            self._produce.end_long(self)
            return
        answer = self._produce.encode(connection, self._version, self._correlation_id, self._topics)
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


class _NotForClients(KafkaError):
    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.invalid_topic_exception, f"{topic} is an internal topic")
        self.topic = topic


def _job(connection: Connection, version: int, correlation_id: int, request: ProduceRequest) -> ProduceJob:
    return ProduceJob(
        version,
        correlation_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        listener=connection.listener,
    )


def _error_result(index: int, error: KafkaError) -> ProduceResult:
    errors = error.record_errors if isinstance(error, RecordsRejected) else ()
    return ProduceResult(index, error.code.value, message=error.message, record_errors=errors)


def _refuse_some(request: ProduceRequest, topics: Topics) -> tuple[bool, ErrorCode | None]:
    """Whether some record set settles if the request is answered with one error for all of its partitions,
    and that error, or None."""
    try:
        for _topic, partitions in topics:
            for _index, records in partitions:
                first = check_first_batch(records)
                if first is not None and first.is_transactional:
                    if request.transactional_id is None:
                        return True, ErrorCode.transactional_id_authorization_failed
                    return True, None
    except KafkaError as error:
        return True, error.code
    return False, None


def _next_task(steps: Generator[Task | None, None, None]) -> Work[Task | None]:
    """Go on until something is to be run in a thread; None at the end."""
    for task in steps:
        if task is not None:
            return task
        yield
    return None


def _is_one_batch(records: memoryview | None) -> bool:
    """Whether Kafka would have taken it to the log at all."""
    try:
        check_one_batch(records, None)
    except KafkaError:
        return False
    return True
