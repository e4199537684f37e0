"""The short way of Produce: a request like one that was seen before, for one partition.

Owns: what is remembered of a connection's requests, and appending and answering runs of requests that are
equal to one of them up to their records. Does not own: the long way (produce), which takes whatever is out of
the ordinary, bytes on the wire (protocol.produce), the write itself (`ReplicaManager.flush` ends each round).
Invariant: the short way appends and answers exactly what the long way would; a frame that it does not take is
left as it was.

Nearly every request of a busy producer has the head of the one before it: the bytes from its client id to the
length of its records. What those bytes decide is decided once, in a `Template`; what is left for each request
is one unpack, the checks of `check_produced`, the CRC and `append_plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.net.connection import AfterWrite, Answer, Connection, Disconnect, Frame
from broker.replicas.partition import Partition
from broker.replicas.replica_manager import ReplicaManager
from protocol.checksum import crc32c
from protocol.compression import Codec, reach
from protocol.errors import ErrorCode
from protocol.primitives import TopicKey
from protocol.produce import PRODUCE_FLEXIBLE, ProduceAnswer, ProduceRequest, ProduceResult, ProduceShape
from protocol.records import CRC_FROM, HEADER_SIZE, MAGIC, RECORD_BYTES_MIN, TRANSACTIONAL

TEMPLATES_MAX: Final = 65_536
"""How many all connections keep together, each under 1 KB and a head: one producer may spread over all
partitions of a large topic, a thousand may not each."""
TEMPLATES_MIN: Final = 64
"""How many each connection may keep, however many connections there are."""
TEMPLATE_BYTES_MAX: Final = 1024
"""The longest head that is kept: a client id alone may have 32 KB."""
ENDS_MAX: Final = 8
"""Lengths of heads that are tried."""
_ZSTD_FROM: Final = 7
_NONE: Final = ErrorCode.none.value
_CLIENT_ID_AT: Final = 8


class ProduceMemo:
    """The templates of one connection, by the bytes of their heads, all of one version of Produce."""

    __slots__ = ("ends", "templates", "version")

    def __init__(self) -> None:
        self.version = -1
        self.ends: list[int] = []
        """Where in a frame the known heads end, the newest first."""
        self.templates: dict[bytes, Template] = {}


class Template:
    """A request for one partition that was seen before: one that is equal up to its records is decided."""

    __slots__ = (
        "acks",
        "answer",
        "attributes_max",
        "attributes_min",
        "partition",
        "shape",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(
        self,
        *,
        version: int,
        head: bytes,
        request: ProduceRequest,
        topic: TopicKey,
        partition: Partition,
        is_transactional: bool,
    ) -> None:
        self.version = version
        self.shape = ProduceShape(head, version >= PRODUCE_FLEXIBLE)
        self.attributes_min = TRANSACTIONAL if is_transactional else 0
        """Those of a batch without compression."""
        self.attributes_max = self.attributes_min + int(Codec.ZSTD if version >= _ZSTD_FROM else Codec.LZ4)
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.topic = topic
        self.partition = partition
        self.answer = ProduceAnswer(version, topic, partition.index)


class ProduceRepeat:
    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        now_ms: Callable[[], int],
        complete: Callable[[Connection, Template, int, ProduceResult, int], Answer],
    ) -> None:
        """`complete(connection, template, correlation_id, result, needed)` answers one request whose batch
        waits for the in-sync replicas to reach offset `needed`, or whose partition failed."""
        self._replicas = replicas
        self._now_ms = now_ms
        self._complete = complete
        self._after_run = self._finish_run

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Answer]) -> int:
        """Handle frames from `at` on for as long as each is a batch as expected behind a known head; return
        where that ends."""
        if frames[at].__class__ is bytearray:
            frames = [memoryview(frame) for frame in frames]
        now_ms = self._now_ms()
        memo: ProduceMemo = connection.memo
        ends, known = memo.ends, memo.templates
        while at < len(frames):
            frame = frames[at]
            for end in ends:
                template = known.get(bytes(frame[_CLIENT_ID_AT:end]))
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
        self, template: Template, frames: Sequence[Any], at: int, now_ms: int, answers: list[Answer]
    ) -> int:
        """Append the frames from `at` on that are as `template` says, up to the first that breaks a rule of
        `check_produced` or that the log must look at: that one goes the long way. Return how many they were.

        Written out rather than called, because it is run for every request: each call here is 3 % of it.
        """
        partition = template.partition
        target = partition.fast_log
        if target is None or (template.acks < 0 and not partition.acks_all_ok):
            return 0
        append, leader_epoch = target.append_plain, partition.leader_epoch
        shape, version = template.shape, template.version
        uncompressed, attributes_max = template.attributes_min, template.attributes_max
        in_transaction = uncompressed != 0
        length, unpack, prefix, start, stop = (
            shape.length,
            shape.unpack,
            shape.prefix,
            shape.start,
            shape.stop,
        )
        tail, lone = shape.tail, shape.lone
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
                    start, stop, lone = shape.start, shape.stop, shape.lone
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
                    first,
                ) = unpack(frame)
                if (
                    begins != prefix
                    or kind != version
                    or magic != MAGIC
                    or not uncompressed <= attributes <= attributes_max
                    or not 0 < count == last_delta + 1
                    or (attributes == uncompressed and (first == lone) != (count == 1))
                    or (
                        count * RECORD_BYTES_MIN > stop - start - HEADER_SIZE
                        and count * RECORD_BYTES_MIN
                        > reach(attributes - uncompressed, stop - start - HEADER_SIZE)
                    )
                    or (
                        (producer_epoch < 0 or base_sequence < 0)
                        if producer_id >= 0
                        else not producer_id == producer_epoch == base_sequence == -1
                    )
                    or frame[stop:] != tail
                ):
                    break
                batch = frame[start:stop]
                if crc32c(batch[CRC_FROM:]) != crc:
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
                    in_transaction,
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

    def _finish_run(self, connection: Connection, run: AfterWrite) -> Answer | list[Answer]:
        """Answer a run after the write, or wait for the in-sync replicas."""
        template: Template
        asked: list[int]
        offsets: list[int]
        _, template, asked, offsets, end, log_start = run
        partition = template.partition
        if template.acks == 0:
            if partition.offline:
                raise Disconnect("a Produce with acks=0 failed: the log directory failed")
            return None
        if not partition.offline and (template.acks > 0 or partition.log.high_watermark >= end):
            return template.answer.encode_run(asked, offsets, log_start)
        answers: list[Answer] = []
        for correlation_id, offset, needed in zip(asked, offsets, [*offsets[1:], end], strict=True):
            result = ProduceResult(partition.index, _NONE, offset, -1, log_start)
            answers.append(self._complete(connection, template, correlation_id, result, needed))
        return answers

    def learn(
        self,
        connection: Connection,
        frame: Frame,
        version: int,
        request: ProduceRequest,
        topic: str,
        is_transactional: bool,
    ) -> None:
        """Remember a request for one partition of `topic` that went the long way without an error."""
        key, partitions = request.topics[0]
        partition = self._replicas.find(topic, partitions[0][0])
        if not isinstance(partition, Partition) or partition.fast_log is None:
            return
        memo: ProduceMemo = connection.memo
        templates, end = memo.templates, request.single_at
        if end > TEMPLATE_BYTES_MAX:
            return
        most = max(TEMPLATES_MAX // connection.connection_count, TEMPLATES_MIN)
        if memo.version != version or len(templates) >= most:
            templates.clear()
            memo.ends.clear()
            memo.version = version
        if end not in memo.ends:
            memo.ends.insert(0, end)
            del memo.ends[ENDS_MAX:]
        head = bytes(frame[_CLIENT_ID_AT:end])
        templates[head] = Template(
            version=version,
            head=head,
            request=request,
            topic=key,
            partition=partition,
            is_transactional=is_transactional,
        )
