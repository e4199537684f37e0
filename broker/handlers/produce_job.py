"""A Produce on its way: what it asks for, what its appends gave, and which partitions it names.

Owns: the values that the phases of a Produce hand on, each partition once where a request names it twice, and
which error refuses a request as a whole. Does not own: the appends (produce_append), the answer
(produce_answer), nor the request on the wire (protocol.produce).
Invariant: a partition is in the job's topics once, in the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from broker.handlers.produce_transactions import Place, TransactionalProduce
from broker.net.connection import Connection
from broker.replicas.partition import Partition
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import ROWS_A_STEP, TopicKey
from protocol.produce import ProduceRequest, ProduceResult
from protocol.records import check_first_batch, check_one_batch
from protocol.work import Work, finish
from storage.prepare import Prepared, RecordsRejected
from storage.producers import Verification

Topics: TypeAlias = list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
Answered: TypeAlias = list[tuple[TopicKey, list[ProduceResult]]]
Ready: TypeAlias = "dict[tuple[TopicKey, int], Prepared | KafkaError | None]"
Append: TypeAlias = tuple[Partition, int, ProduceResult, int]
Command: TypeAlias = Callable[[], Coroutine[Any, Any, int]]


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


def job_of(connection: Connection, version: int, correlation_id: int, request: ProduceRequest) -> ProduceJob:
    return ProduceJob(
        version,
        correlation_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        listener=connection.listener,
    )


def error_result(index: int, error: KafkaError) -> ProduceResult:
    errors = error.record_errors if isinstance(error, RecordsRejected) else ()
    return ProduceResult(index, error.code.value, message=error.message, record_errors=errors)


def refuse_some(request: ProduceRequest, topics: Topics) -> tuple[bool, ErrorCode | None]:
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


def once_each(job: ProduceJob, request: ProduceRequest) -> Topics:
    """Every partition once. Of one that is named twice Kafka appends the last record set that could be
    one and answers those that cannot; a topic without partitions is not answered.
    """
    return request.topics if request.single_at >= 0 else finish(ordering(job, request))


def ordering(job: ProduceJob, request: ProduceRequest) -> Work[Topics]:
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
    while repeated:
        (topic, index), given = repeated.popitem()
        named[topic][index] = yield from _last(job, topic, index, given)
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
    job: ProduceJob, topic: TopicKey, index: int, given: list[memoryview | None]
) -> Work[memoryview | None]:
    """Return the one of a partition's record sets that is appended. Uses them up."""
    last, sound, refused = given[-1], None, None
    given.reverse()
    while given:
        records = given.pop()
        try:
            check_one_batch(records, job.version)
            sound = records
        except KafkaError as error:
            refused = error.with_traceback(None)
        if not len(given) % ROWS_A_STEP:
            yield
    if sound is None:
        return last
    if refused is not None:
        job.failed = True
        job.refused[topic, index] = error_result(index, refused)
    return sound
