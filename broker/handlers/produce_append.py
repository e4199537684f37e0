"""The appends of a Produce: each partition's records checked, stamped and staged, at once or in turns.

Owns: what is checked before an append, the records that the log must see first (in turns, and in threads
where they are to be unpacked), commands that brokers send as records. Does not own: which way a request takes
(produce), the log's own checks, the write itself (`ReplicaManager.flush` ends each round), nor the answer
(produce_answer).
Invariant: each partition of a request gets one result, with its offset or with why it was refused; few
batches are in a thread, or unpacked, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.internal_topics import may_client_write
from broker.handlers.produce_job import Command, ProduceJob, Ready, Topics, error_result
from broker.handlers.produce_transactions import Place
from broker.ports import Offload
from broker.replicas.partition import Partition
from broker.replicas.replica_manager import ReplicaManager
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import TopicKey
from protocol.produce import ProduceResult
from protocol.records import HEADER_SIZE, check_one_batch, check_produced, parse_header
from protocol.work import Work
from storage.prepare import WALK_RECORDS, Prepared, Task

ACKS: Final = (-1, 0, 1)
BATCH_ENDED: Final = Task(lambda: None)
"""Stands between two batches that were handed to a thread."""
_THREADS_MAX: Final = 2
"""How many batches are unpacked in threads, and held unpacked, at once."""
_BATCHES_AT_ONCE: Final = 8
"""How many batches are looked into in one turn of the loop."""
_APPENDS_A_STEP: Final = 8
_NONE: Final = ErrorCode.none.value
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


class ProduceAppend:
    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        cluster: Cluster,
        now_ms: Callable[[], int],
        offload: Offload,
        turns: Turns,
        commands: Sequence[Commands],
    ) -> None:
        self._commands = commands
        self._turns = turns
        self._threads = asyncio.Semaphore(_THREADS_MAX)
        self._offload = offload
        self._replicas = replicas
        self._cluster = cluster
        self._now_ms = now_ms

    def name_of(self, topic: TopicKey) -> str | None:
        """The name of a topic that is named by its id, if there is one."""
        return self._cluster.image.topic_names.get(topic) if isinstance(topic, UUID) else topic

    # --- a short request ---

    def ready(self, job: ProduceJob, topics: Topics) -> Ready | None:
        """Look at the records that the log must see; None if that takes more than a turn of the loop."""
        ready: Ready = {}
        records_left = WALK_RECORDS
        for topic, partitions in topics:
            for index, records in partitions:
                name = self.name_of(topic)
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

    def append_ready(self, job: ProduceJob, topics: Topics, ready: Ready, fatal: ErrorCode | None) -> None:
        """Append a short request, or answer all of it with what refuses it as a whole."""
        for topic, partitions in topics:
            name = self.name_of(topic)
            results: list[ProduceResult] = []
            for index, records in partitions:
                if fatal is not None:
                    results.append(ProduceResult(index, fatal.value))
                else:
                    prepared = ready.get((topic, index)) if ready else None
                    result = self._append(job, (topic, index), name, records, prepared)
                    results.append(job.refused.get((topic, index), result))
            job.topics.append((topic, results))

    # --- in turns ---

    async def append_all(self, job: ProduceJob, topics: Topics) -> None:
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
        steps = self._preparing(job, (topic, index), self.name_of(topic), records)
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
        result = self._append(job, (topic, index), self.name_of(topic), records, prepared)
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

    # --- one partition ---

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
            result = error_result(index, error)
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
            return error_result(index, error)
        result = ProduceResult(index, _NONE)
        job.commands.append((result, command))
        return result


class _NotForClients(KafkaError):
    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.invalid_topic_exception, f"{topic} is an internal topic")
        self.topic = topic


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
