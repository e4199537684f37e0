"""Produce: from the records in a frame to the log, and the answer once they are as safe as `acks` asks.

    way      when                                      entry                   where it appends
    short    one partition, and equal to an earlier    `ProduceRepeat.repeat`  `append_plain`
             request up to its plain batch
    long     all others                                `Produce.handle`        `append`; `append_records` if
                                                                               the log must see records
    walked   the log must see more records than one    `Produce._walk`         `append_prepared`
             turn of the loop has time for

Owns: the long way and the walked one, what is checked before an append, the wait for the high watermark. Does
not own: the short way (produce_repeat), bytes on the wire (protocol.produce), the log's own checks, the write
itself (`ReplicaManager.flush` ends each round). Invariant: all ways append and answer alike; each partition
of a request is answered once, with its offset or with why it was refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.internal_topics import may_client_write
from broker.handlers.leader_hints import leader_hint
from broker.handlers.produce_repeat import ProduceRepeat, Template
from broker.net.connection import AfterWrite, Answer, AnswerSlot, Connection, Disconnect, Frame
from broker.ports import Offload
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.replica_manager import ReplicaManager
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import TopicKey
from protocol.produce import ProduceRequest, ProduceResult, encode_produce, parse_produce
from protocol.records import HEADER_SIZE, check_first_batch, check_one_batch, check_produced, parse_header
from storage.prepare import INLINE_BYTES, WALK_RECORDS, Prepared, RecordsRejected

logger = logging.getLogger(__name__)

ACKS: Final = (-1, 0, 1)
Topics: TypeAlias = list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
Answered: TypeAlias = list[tuple[TopicKey, list[ProduceResult]]]
Command: TypeAlias = Callable[[], Coroutine[Any, Any, int]]
_HINT_FROM: Final = 10
_TRANSACTION_ABORTABLE_FROM: Final = 11
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
        commands: Sequence[Commands] = (),
    ) -> None:
        """`commands` take what brokers send each other as records of topics that clients may not write."""
        self._commands = commands
        self._offload = offload
        self._spawn = spawn
        self._replicas = replicas
        self._cluster = cluster
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._repeat = ProduceRepeat(replicas=replicas, now_ms=now_ms, complete=self._complete_one)
        self.repeat = self._repeat.repeat

    # --- the long way ---

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        request = parse_produce(memoryview(frame), body_at, version)
        fatal = _refuse_all(request)
        if fatal is None and self._must_walk(request):
            # the read buffer is used again before the walk ends
            request = parse_produce(memoryview(bytearray(frame)), body_at, version)
            slot = connection.slot()
            job = _job(connection, version, correlation_id, request)
            self._spawn(self._walk(connection, slot, job, self._once_each(job, request)))
            return slot
        job = _job(connection, version, correlation_id, request)
        job.failed = fatal is not None
        for topic, partitions in self._once_each(job, request):
            name = self._name(topic)
            results: list[ProduceResult] = []
            for index, records in partitions:
                if fatal is not None:
                    results.append(ProduceResult(index, fatal.value))
                else:
                    result = self._append(job, name, index, records)
                    results.append(job.refused.get((topic, index), result))
            job.topics.append((topic, results))
        if request.single_at >= 0 and request.transactional_id is None and not job.failed:
            name = self._name(request.topics[0][0])
            assert name is not None
            self._repeat.learn(connection, frame, version, request, name)
        return (self._finish, job)

    def _once_each(self, job: ProduceJob, request: ProduceRequest) -> Topics:
        """Every partition once. Of one that is named twice Kafka appends the last record set that could be
        one and answers those that cannot; a topic without partitions is not answered.
        """
        if request.single_at >= 0:
            return request.topics
        named: dict[TopicKey, dict[int, list[memoryview | None]]] = {}
        for topic, partitions in request.topics:
            for index, records in partitions:
                named.setdefault(topic, {}).setdefault(index, []).append(records)
        return [
            (topic, [(index, self._last(job, topic, index, given)) for index, given in partitions.items()])
            for topic, partitions in named.items()
        ]

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

    def _must_walk(self, request: ProduceRequest) -> bool:
        """Whether the log must see more records than one turn of the loop has time for."""
        for topic, partitions in request.topics:
            for index, records in partitions:
                if records is None or len(records) < HEADER_SIZE:
                    continue
                partition = self._replicas.find(self._name(topic) or "", index)
                if (
                    isinstance(partition, Partition)
                    and partition.log.needs_walk
                    and (len(records) > INLINE_BYTES or parse_header(records).count > WALK_RECORDS)
                ):
                    return True
        return False

    # --- the walked way ---

    async def _walk(self, connection: Connection, slot: AnswerSlot, job: ProduceJob, topics: Topics) -> None:
        """Take the long way in turns of the loop: this connection waits, no other does."""
        try:
            for topic, partitions in topics:
                name = self._name(topic)
                results: list[ProduceResult] = []
                for index, records in partitions:
                    prepared: Prepared | KafkaError | None
                    try:
                        prepared = await self._prepared(job, name, index, records)
                    except KafkaError as error:
                        prepared = error
                    result = self._append(job, name, index, records, prepared)
                    results.append(job.refused.get((topic, index), result))
                    # nothing stays unwritten over the walk of the next one
                    self._replicas.wake(self._replicas.flush())
                job.topics.append((topic, results))
            answer = self._complete(connection, job, slot)
        except asyncio.CancelledError:
            connection.close()
            raise
        except Disconnect as gone:
            connection.close(str(gone))
            return
        except Exception as error:
            logger.error("Produce failed", exc_info=error)
            connection.close("its Produce failed")
            return
        if not isinstance(answer, AnswerSlot):
            assert answer is None or isinstance(answer, bytes)
            connection.answer(slot, answer or b"")
        connection.resume()

    async def _prepared(
        self, job: ProduceJob, topic: str | None, index: int, records: memoryview | None
    ) -> Prepared | None:
        """Read the records; None where no walk is needed or where `_append` will find what is wrong."""
        partition = self._replicas.find(topic or "", index)
        if (
            not isinstance(partition, Partition)
            or not partition.log.needs_walk
            or not may_client_write(topic or "")
        ):
            return None
        _at, header = check_produced(records, version=job.version)[0]
        assert records is not None
        if header.is_transactional or (job.acks < 0 and not partition.acks_all_ok):
            return None
        steps = partition.log.prepare(records[: header.size], now_ms=self._now_ms())
        while True:
            try:
                task = next(steps)
            except StopIteration as end:
                prepared: Prepared = end.value
                return prepared
            if task is None:
                await asyncio.sleep(0)
            else:
                await self._offload(task.run)

    # --- appending ---

    def _name(self, topic: TopicKey) -> str | None:
        return self._cluster.image.topic_names.get(topic) if isinstance(topic, UUID) else topic

    def _append(
        self,
        job: ProduceJob,
        topic: str | None,
        index: int,
        records: memoryview | None,
        prepared: Prepared | KafkaError | None = None,
    ) -> ProduceResult:
        partition = None
        try:
            partition = self._target(job, topic, index, records)
            partition.stats.produce += 1
            if isinstance(prepared, KafkaError):
                raise prepared
            return self._append_to(job, partition, records, prepared)
        except _NotForClients as refused:
            return self._command(job, refused, index, records)
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
        self, job: ProduceJob, partition: Partition, records: memoryview | None, prepared: Prepared | None
    ) -> ProduceResult:
        _at, header = check_produced(records, version=job.version)[0]
        assert records is not None
        if header.is_transactional:
            self._check_transaction(job)
        if job.acks < 0:
            partition.check_acks_all()
        now_ms = self._now_ms()
        if prepared is not None and prepared.log is partition.log:  # and not of a topic deleted meanwhile
            partition.check_room()
            appended = partition.log.append_prepared(prepared, leader_epoch=partition.leader_epoch)
        elif partition.fast_log is not None:
            appended = partition.fast_log.append(
                records, header, 0, leader_epoch=partition.leader_epoch, now_ms=now_ms
            )
        else:
            partition.check_room()
            appended = partition.log.append_records(
                records[: header.size], leader_epoch=partition.leader_epoch, now_ms=now_ms, origin="client"
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

    def _check_transaction(self, job: ProduceJob) -> None:
        """Refuse: no transaction was ever begun here, so none includes this partition."""
        code = ErrorCode.invalid_txn_state
        if job.version >= _TRANSACTION_ABORTABLE_FROM:
            code = ErrorCode.transaction_abortable
        raise KafkaError(code, "the partition is not part of the transaction")

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
        acks = job.acks
        waiting = []
        for partition, leader_epoch, result, needed in job.appended:
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
        if acks == 0:
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

    def encode(self, connection: Connection, version: int, correlation_id: int, topics: Answered) -> bytes:
        """Pack an answer, with a hint for each partition that this broker does not lead."""
        if version >= _HINT_FROM:
            for topic, results in topics:
                for result in results:
                    if result.error == _NOT_LEADER:
                        result.hint = leader_hint(
                            self._cluster.image, topic, result.index, connection.listener
                        )
        return encode_produce(version, correlation_id, topics)


class ProduceJob:
    """A Produce between its appends and its answer."""

    __slots__ = (
        "acks",
        "appended",
        "commands",
        "correlation_id",
        "failed",
        "listener",
        "refused",
        "timeout_ms",
        "topics",
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
        self.appended: list[tuple[Partition, int, ProduceResult, int]] = []
        """Each append's partition, leader epoch and result, and the offset that the high watermark must
        reach."""
        self.refused: dict[tuple[TopicKey, int], ProduceResult] = {}
        """Results that replace those of the append."""
        self.failed = False


class CommitWait(Waiter):
    """A Produce with acks=all whose partitions are not all committed. The connection handles further requests
    meanwhile.

    Whatever ends the wait, the answer has the offset: the batch is in the log.
    """

    __slots__ = ("_connection", "_correlation_id", "_open", "_produce", "_topics", "_version", "slot")

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
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._topics = topics
        self._open: dict[_PartitionCommit, None] = {}

    def on(self, partition: Partition, result: ProduceResult, needed: int) -> None:
        commit = _PartitionCommit(self, partition, result, needed)
        self._open[commit] = None
        partition.wait_committed(commit)

    def ended(self, commit: _PartitionCommit) -> None:
        self._open.pop(commit, None)
        if not self._open and not self.done:
            self._answer()

    def expired(self) -> None:
        for commit in self._open:
            commit.timed_out()
        self._open.clear()
        self._answer()

    def _answer(self) -> None:
        self.finish()
        connection = self._connection
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


def _refuse_all(request: ProduceRequest) -> ErrorCode | None:
    """The error of one record set that all partitions of the request are answered with, or None."""
    try:
        for _topic, partitions in request.topics:
            for _index, records in partitions:
                first = check_first_batch(records)
                if first is not None and first.is_transactional:
                    if request.transactional_id is None:
                        return ErrorCode.transactional_id_authorization_failed
                    return None
    except KafkaError as error:
        return error.code
    return None


def _is_one_batch(records: memoryview | None) -> bool:
    """Whether Kafka would have taken it to the log at all."""
    try:
        check_one_batch(records, None)
    except KafkaError:
        return False
    return True
