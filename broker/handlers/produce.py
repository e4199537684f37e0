"""Produce: from the records in a frame to the log, and the answer once they are as safe as `acks` asks.

Owns: both ways in (any Produce; and the template of one that was seen before), what is checked before an
append, the wait for the high watermark. Does not own: bytes on the wire (protocol.hot), the log's own checks,
the write itself (`ReplicaManager.flush` ends each round). Invariant: the template way appends and answers
exactly what the long way would; whatever is out of the ordinary takes the long way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.image import Image
from broker.control.internal_topics import may_client_write
from broker.net.server import Answer, Connection, Disconnect, Frame, Slot
from broker.ports import Offload
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.replica_manager import ReplicaManager
from protocol.checksum import crc32c
from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.hot import (
    PRODUCE_FLEXIBLE,
    Address,
    Hint,
    ProduceAnswer,
    ProduceRequest,
    ProduceResult,
    ProduceShape,
    TopicKey,
    encode_produce,
    parse_produce,
)
from protocol.records import (
    HEADER_SIZE,
    MAGIC,
    check_first_batch,
    check_one_batch,
    check_produced,
    parse_header,
)
from storage.log import INLINE_BYTES, WALK_RECORDS, Prepared, RecordsRejected

logger = logging.getLogger(__name__)

TEMPLATES_MAX: Final = 65_536
"""Of all connections together, each under 1 KB and a head: one producer may spread over all partitions of a
large topic, a thousand may not each."""
TEMPLATES_MIN: Final = 64
"""Of one connection, however many there are."""
TEMPLATE_BYTES_MAX: Final = 1024
"""Of a head that is kept: a client id alone may have 32 KB."""
ENDS_MAX: Final = 8
ACKS: Final = (-1, 0, 1)
Topics: TypeAlias = list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
Answered: TypeAlias = list[tuple[TopicKey, list[ProduceResult]]]
_ZSTD_FROM: Final = 7
_HINT_FROM: Final = 10
_TRANSACTION_ABORTABLE_FROM: Final = 11
_NONE: Final = ErrorCode.none.value
_NOT_LEADER: Final = ErrorCode.not_leader_or_follower.value
# Kafka tells the log start offset with every refusal but these.
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
_CRC_FROM: Final = 21
_CLIENT_ID_AT: Final = 8


class Template:
    """A single-partition Produce seen before: everything up to the records is equal, so everything is
    decided.
    """

    __slots__ = ("acks", "answer", "codec_max", "partition", "shape", "timeout_ms", "topic", "version")

    def __init__(
        self, *, version: int, head: bytes, request: ProduceRequest, topic: TopicKey, partition: Partition
    ) -> None:
        self.version = version
        self.shape = ProduceShape(head, version >= PRODUCE_FLEXIBLE)
        self.codec_max = int(Codec.ZSTD if version >= _ZSTD_FROM else Codec.LZ4)
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.topic = topic
        self.partition = partition
        self.answer = ProduceAnswer(version, topic, partition.index)


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
    ) -> None:
        self._offload = offload
        self._spawn = spawn
        self._replicas = replicas
        self._cluster = cluster
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._after_run = self._run_written

    # ---------------------------------------------------------------------------------------- the short way

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Any]) -> int:
        """Handles frames from `at` on for as long as each is a plain batch behind a known head; where it
        stopped."""
        if frames[at].__class__ is bytearray:
            frames = [memoryview(frame) for frame in frames]
        now_ms = self._now_ms()
        ends, known = connection.produce_ends, connection.produce_templates
        while at < len(frames):
            frame = frames[at]
            for end in ends:
                template: Template | None = known.get(bytes(frame[_CLIENT_ID_AT:end]))
                if template is not None:
                    break
            else:
                break
            done = self._run(template, frames, at, now_ms, answers)
            if not done:
                break
            at += done
        return at

    def _run(
        self, template: Template, frames: Sequence[Any], at: int, now_ms: int, answers: list[Any]
    ) -> int:
        """Appends the frames from `at` on that are as `template` says, up to the first that breaks a rule of
        `check_produced` or that the log must look at: that one goes the long way. How many they were.

        Written out rather than called, because it is run for every request: each call here is 3 % of it.
        """
        partition = template.partition
        target = partition.fast_log
        if target is None or (template.acks < 0 and not partition.acks_all_ok):
            return 0
        append, leader_epoch = target.append_plain, partition.leader_epoch
        shape, version, codec_max = template.shape, template.version, template.codec_max
        length, unpack, prefix, start, stop = (
            shape.length,
            shape.unpack,
            shape.prefix,
            shape.start,
            shape.stop,
        )
        tail = shape.tail
        records = size = 0
        asked: list[int] = []
        offsets: list[int] = []
        try:
            for following in range(at, len(frames)):
                frame = frames[following]
                if len(frame) != length:
                    if not shape.fit(frame):
                        break
                    length, unpack, prefix = shape.length, shape.unpack, shape.prefix
                    start, stop = shape.start, shape.stop
                (
                    kind,
                    correlation_id,
                    begins,
                    magic,
                    crc,
                    attributes,
                    last_delta,
                    base_timestamp,
                    max_timestamp,
                    producer_id,
                    producer_epoch,
                    base_sequence,
                    count,
                ) = unpack(frame)
                if (
                    begins != prefix
                    or kind != version
                    or magic != MAGIC
                    or not 0 <= attributes <= codec_max
                    or not 0 < count == last_delta + 1
                    or (
                        (producer_epoch < 0 or base_sequence < 0)
                        if producer_id >= 0
                        else not producer_id == producer_epoch == base_sequence == -1
                    )
                    or frame[stop:] != tail
                ):
                    break
                batch = frame[start:stop]
                if crc32c(batch[_CRC_FROM:]) != crc:
                    break
                offset = append(
                    batch,
                    last_delta,
                    base_timestamp,
                    max_timestamp,
                    producer_id,
                    producer_epoch,
                    base_sequence,
                    leader_epoch,
                    now_ms,
                )
                if offset < 0:
                    break
                asked.append(correlation_id)
                offsets.append(offset)
                records += count
                size += stop - start
        finally:
            if offsets:
                if not partition.dirty:
                    self._replicas.touch(partition)
                stats = partition.stats
                stats.produce += len(offsets)
                stats.messages_in += records
                stats.bytes_in += size
        if offsets:
            answers.append(
                (self._after_run, template, asked, offsets, offsets[0] + records, target.log_start_offset)
            )
        return len(offsets)

    def _run_written(
        self, connection: Connection, ticket: tuple[Any, Template, list[int], list[int], int, int]
    ) -> Answer | list[Answer]:
        """After the write: the answers, or waits for the in-sync replicas."""
        _, template, asked, offsets, end, log_start = ticket
        partition = template.partition
        if template.acks == 0:
            if partition.offline:
                raise Disconnect("a Produce with acks=0 failed: the log directory failed")
            return None
        if not partition.offline and (template.acks > 0 or partition.log.high_watermark >= end):
            return template.answer.encode_run(asked, offsets, log_start)
        answers: list[Answer] = []
        for correlation_id, offset, needed in zip(asked, offsets, [*offsets[1:], end], strict=True):
            job = _Job(template.version, correlation_id, template)
            result = ProduceResult(partition.index, _NONE, offset, -1, log_start)
            job.topics.append((template.topic, [result]))
            job.appended.append((partition, partition.leader_epoch, result, needed))
            answers.append(self._completed(connection, (None, job)))
        return answers

    # ----------------------------------------------------------------------------------------- the long way

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        request = parse_produce(memoryview(frame), body_at, version)
        fatal = _refuse_all(request)
        if fatal is None and self._must_walk(request):
            # the read buffer is used again before the walk ends
            request = parse_produce(memoryview(bytearray(frame)), body_at, version)
            slot = connection.slot()
            job = _Job(version, correlation_id, request)
            self._spawn(self._walk(connection, slot, job, self._once_each(job)))
            return slot
        job = _Job(version, correlation_id, request)
        job.failed = fatal is not None
        for topic, partitions in self._once_each(job):
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
            self._learn(connection, frame, version, request)
        return (self._completed, job)

    def _once_each(self, job: _Job) -> Topics:
        """Every partition once. Of one that is named twice Kafka appends the last record set that could be
        one and answers those that cannot; a topic without partitions is not answered.
        """
        request = job.request
        assert isinstance(request, ProduceRequest)
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
        self, job: _Job, topic: TopicKey, index: int, given: list[memoryview | None]
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
        """Whether records must be read that are too many for one turn of the loop."""
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

    async def _walk(
        self,
        connection: Connection,
        slot: Slot,
        job: _Job,
        topics: Topics,
    ) -> None:
        """The long way in turns: the connection waits, nobody else does."""
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
            answer = self._completed(connection, (None, job), slot)
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
        if not isinstance(answer, Slot):
            assert answer is None or isinstance(answer, bytes)
            connection.answer(slot, answer or b"")
        connection.resume()

    async def _prepared(
        self, job: _Job, topic: str | None, index: int, records: memoryview | None
    ) -> Prepared | None:
        """None where no walk is needed or where `_append` will tell what is wrong."""
        partition = self._replicas.find(topic or "", index)
        if (
            not isinstance(partition, Partition)
            or not partition.log.needs_walk
            or not may_client_write(topic or "")
        ):
            return None
        _at, header = check_produced(records, version=job.version)[0]
        assert records is not None
        if header.is_transactional or (job.request.acks < 0 and not partition.acks_all_ok):
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

    def _name(self, topic: TopicKey) -> str | None:
        return self._cluster.image.topic_names.get(topic) if isinstance(topic, UUID) else topic

    def _append(
        self,
        job: _Job,
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
        except KafkaError as error:
            job.failed = True
            result = _error_result(index, error)
            if partition is not None:
                partition.stats.failed_produce += 1
                if error.code not in _START_UNTOLD and _is_one_batch(records):
                    result.start = partition.log.log_start_offset
            return result

    def _target(self, job: _Job, topic: str | None, index: int, records: memoryview | None) -> Partition:
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        if job.request.acks not in ACKS:
            if self._cluster.image.partition(topic, index) is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            check_one_batch(records, job.version)
            raise KafkaError(ErrorCode.invalid_required_acks)
        if not may_client_write(topic):
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic} is an internal topic")
        return self._replicas.partition(topic, index)

    def _append_to(
        self, job: _Job, partition: Partition, records: memoryview | None, prepared: Prepared | None
    ) -> ProduceResult:
        _at, header = check_produced(records, version=job.version)[0]
        assert records is not None
        if header.is_transactional:
            self._check_transaction(job)
        if job.request.acks < 0:
            partition.check_acks_all()
        now_ms = self._now_ms()
        if prepared is not None and prepared.log is partition.log:  # and not of a topic deleted meanwhile
            appended = partition.log.append_prepared(prepared, leader_epoch=partition.leader_epoch)
        elif partition.fast_log is not None:
            appended = partition.fast_log.append(
                records, header, 0, leader_epoch=partition.leader_epoch, now_ms=now_ms
            )
        else:
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

    def _check_transaction(self, job: _Job) -> None:
        """No transaction was ever begun here, so none includes this partition."""
        code = ErrorCode.invalid_txn_state
        if job.version >= _TRANSACTION_ABORTABLE_FROM:
            code = ErrorCode.transaction_abortable
        raise KafkaError(code, "the partition is not part of the transaction")

    def _learn(self, connection: Connection, frame: Frame, version: int, request: ProduceRequest) -> None:
        topic, partitions = request.topics[0]
        name = self._name(topic)
        assert name is not None
        partition = self._replicas.find(name, partitions[0][0])
        if not isinstance(partition, Partition) or partition.fast_log is None:
            return
        templates, end = connection.produce_templates, request.single_at
        if end > TEMPLATE_BYTES_MAX:
            return
        most = max(TEMPLATES_MAX // connection.company, TEMPLATES_MIN)
        if connection.produce_kind != version or len(templates) >= most:
            templates.clear()
            connection.produce_ends.clear()
            connection.produce_kind = version
        if end not in connection.produce_ends:
            connection.produce_ends.insert(0, end)
            del connection.produce_ends[ENDS_MAX:]
        head = bytes(frame[_CLIENT_ID_AT:end])
        templates[head] = Template(
            version=version, head=head, request=request, topic=topic, partition=partition
        )

    def _completed(
        self, connection: Connection, ticket: tuple[Any, _Job], slot: Slot | None = None
    ) -> Answer:
        """After the write, for the long way."""
        job = ticket[1]
        acks = job.request.acks
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
                else:  # it resigned since the append: nobody would end the wait
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
        self._purgatory.watch(wait, max(job.request.timeout_ms, 0) / 1000)
        return wait.slot

    def encode(self, connection: Connection, version: int, correlation_id: int, topics: Answered) -> bytes:
        """With a hint for everyone who asked the wrong broker, or one that resigned meanwhile."""
        if version >= _HINT_FROM:
            for topic, results in topics:
                for result in results:
                    if result.error == _NOT_LEADER:
                        result.hint = leader_hint(
                            self._cluster.image, topic, result.index, connection.listener
                        )
        return encode_produce(version, correlation_id, topics)


class _Job:
    """A Produce between its appends and its answer."""

    __slots__ = ("appended", "correlation_id", "failed", "refused", "request", "topics", "version")

    def __init__(self, version: int, correlation_id: int, request: ProduceRequest | Template) -> None:
        self.version = version
        self.correlation_id = correlation_id
        self.request = request
        self.topics: Answered = []
        self.appended: list[tuple[Partition, int, ProduceResult, int]] = []
        """Where, in which leader epoch, what is answered, and what the high watermark has to pass."""
        self.refused: dict[tuple[TopicKey, int], ProduceResult] = {}
        """What is answered whatever became of the append."""
        self.failed = False


class CommitWait(Waiter):
    """A Produce with acks=all whose partitions are not all committed. The connection goes on meanwhile.

    Whatever ends the wait, the offset is told: the batch has one.
    """

    __slots__ = ("_connection", "_correlation_id", "_open", "_produce", "_topics", "_version", "slot")

    def __init__(
        self,
        produce: Produce,
        connection: Connection,
        version: int,
        correlation_id: int,
        topics: Answered,
        slot: Slot | None = None,
    ) -> None:
        super().__init__()
        self._produce = produce
        self.slot = Slot() if slot is None else slot
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._topics = topics
        self._open: dict[_PartitionCommit, None] = {}

    def on(self, partition: Partition, result: ProduceResult, needed: int) -> None:
        commit = _PartitionCommit(self, partition, result, needed)
        self._open[commit] = None
        partition.wait_committed(commit)

    def settled(self, commit: _PartitionCommit) -> None:
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
        self._owner.settled(self)

    def failed(self, code: ErrorCode) -> None:
        if self._owner.done:
            return
        self.result.error = code.value
        self._owner.settled(self)


def leader_hint(image: Image, topic: TopicKey, index: int, listener: str) -> Hint | None:
    """Where a client should go instead: the leader, and its address on the listener that the client came
    by.
    """
    name = image.topic_names.get(topic) if isinstance(topic, UUID) else topic
    found = None if name is None else image.partition(name, index)
    if found is None:
        return None
    leader = image.brokers.get(found.leader)
    endpoint = None if leader is None or leader.fenced else leader.endpoint(listener)
    address = None
    if leader is not None and endpoint is not None:
        address = Address(endpoint.host, endpoint.port, leader.rack)
    return Hint(found.leader, found.leader_epoch, address)


def _error_result(index: int, error: KafkaError) -> ProduceResult:
    errors = error.record_errors if isinstance(error, RecordsRejected) else ()
    return ProduceResult(index, error.code.value, message=error.message, record_errors=errors)


def _refuse_all(request: ProduceRequest) -> ErrorCode | None:
    """What is wrong with one record set and answered for every partition of the request."""
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
