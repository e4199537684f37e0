"""One partition's log, whatever holds its bytes (KIP-1183).

Owns: what may be appended and at which offset, producer state, leader epochs, the watermarks and their
order. Does not own: bytes, files, retention (subclasses), replication, leadership (partition). Invariant:
`log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset`, offsets are contiguous as
appended, and a batch is checked completely before its first byte is staged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

from protocol.compression import Codec, DecompressedTooLarge
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import (
    OVERHEAD,
    STAMP,
    BatchHeader,
    Record,
    iter_batches,
    iter_records,
    iter_section,
    parse_control,
    parse_header,
    records_data,
    repack,
    restamp_append_time,
)
from storage.epochs import EpochCache
from storage.policy import LONG_MAX, LogConfig
from storage.producers import ActiveProducer, CompletedTxn, ProducerTable

Buffer = bytes | bytearray | memoryview
Writable = bytearray | memoryview
Origin = Literal["client", "coordinator"]

NO_TIMESTAMP = -1
PRODUCER_EXPIRATION_MS = 86_400_000
ABORT_MARKER = 0
WALK_RECORDS = 256
"""Records a slice: about 0.5 ms."""
INLINE_BYTES = 32 << 10
"""A batch of this size or less: packing and unpacking costs less than handing it to a thread."""

T = TypeVar("T")

StartDone = Callable[[KafkaError | None], None]
"""Called on the loop once a log start is durable, or with the reason why it will not be. It only wakes or
schedules others, because it may be called from within another change of the log."""

# a named tuple's own constructor costs a tenth of an append
_new_tuple = tuple.__new__

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def ignore_start(_: KafkaError | None) -> None:
    """The `done` of a caller that waits for nothing."""


class ReadableFile(Protocol):
    """The part of a file a reader of a slice needs."""

    path: str

    def fileno(self) -> int: ...

    def pread(self, size: int, offset: int) -> bytes: ...

    def preadv(self, buffer: memoryview, offset: int) -> int: ...


class LogSlice(NamedTuple):
    """Whole batches in one file. Holding the file keeps its bytes readable even if the log deletes it
    meanwhile."""

    file: ReadableFile
    position: int
    size: int
    first_offset: int
    """The first batch's, which may begin before the offset asked for."""
    next_offset: int

    def read(self) -> bytes:
        return self.file.pread(self.size, self.position)


class Appended(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time: (
        int  # -1 under CreateTime; of a duplicate, as in Kafka, the newest timestamp of the original
    )
    log_start_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    segments: int
    size: int
    log_start_offset: int
    local_log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    recovery_point: int
    producers: int
    open_transactions: int
    is_offline: bool


class LogOffline(KafkaError):
    """The log's directory failed: final until restart."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class NoDescriptor(KafkaError):
    """No file could be opened just now: nothing happened to the disk, and there may be room again later."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class RecordsRejected(KafkaError):
    """A batch refused for some of its records: Produce answers their indexes in `record_errors`."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class FlushJob(Protocol):
    """Syncs to run anywhere: it touches nothing but files. Then hand it to `mark_flushed`, on the loop."""

    def run(self) -> None:
        """Sync. Raises OSError: report it with `flush_failed`, and do not try again."""


class Task:
    """Work that touches nothing but its own bytes; its outcome is kept for the caller."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class Prepared(NamedTuple):
    """Batches as `log` stores them, still without offsets; an empty one stands for a duplicate."""

    log: AbstractLog
    batches: list[tuple[bytearray, BatchHeader]]
    now_ms: int
    origin: Origin


Preparing = Generator[Task | None, None, Prepared]


class AbstractLog(ABC):
    __slots__ = (
        "_after_max_ms",
        "_batch_length_max",
        "_before_max_ms",
        "_topic_id",
        "config",
        "epochs",
        "high_watermark",
        "highest_tiered_offset",
        "last_stable_offset",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "needs_walk",
        "offline",
        "partition",
        "producer_expiration_ms",
        "producer_table",
        "recovery_point",
        "topic",
    )

    def __init__(
        self,
        *,
        topic: str,
        topic_id: UUID | None,
        partition: int,
        config: LogConfig,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._topic_id = topic_id
        self.log_start_offset = 0
        self.local_log_start_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.highest_tiered_offset = -1
        self.epochs = EpochCache()
        self.producer_table = ProducerTable()
        self.producer_expiration_ms = producer_expiration_ms
        self.offline: str | None = None
        """Why nothing is read or written here any more. Not as one error for all to raise: it would keep the
        frames of each time."""
        self.set_config(config)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.topic}-{self.partition} "
            f"[{self.log_start_offset}, {self.log_end_offset}) "
            f"hw={self.high_watermark} lso={self.last_stable_offset})"
        )

    @property
    def topic_id(self) -> UUID:
        assert self._topic_id is not None, f"{self.topic}-{self.partition} has no topic id yet"
        return self._topic_id

    @property
    def known_topic_id(self) -> UUID | None:
        """The topic id; None when `partition.metadata` was lost: the owner adopts the log or strays it."""
        return self._topic_id

    def set_config(self, config: LogConfig) -> None:
        self.config = config
        self.needs_walk = config.needs_walk
        self._batch_length_max = min(config.max_message_bytes, config.segment_bytes) - OVERHEAD
        bounded = not config.is_log_append_time
        self._after_max_ms = config.message_timestamp_after_max_ms if bounded else LONG_MAX
        self._before_max_ms = config.message_timestamp_before_max_ms if bounded else LONG_MAX

    # --- append ---

    def append(
        self, buf: Writable, header: BatchHeader, at: int, *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Stage ONE batch of a client whose header and CRC were checked; `buf` must stay unchanged until
        `flush_staged`. Only for logs that do not `needs_walk`."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        if header.length > self._batch_length_max:
            self._check_size(header)
        if header.max_timestamp - now_ms > self._after_max_ms or (
            now_ms - header.base_timestamp > self._before_max_ms and header.base_timestamp != NO_TIMESTAMP
        ):
            raise _bad_timestamp(header, now_ms)
        if header.producer_id >= 0:
            sent = self.producer_table.check(header)
            if sent is not None:
                return Appended(
                    sent.first_offset, sent.last_offset, sent.timestamp, self.log_start_offset, True
                )
        return self._append_checked(buf, header, at, leader_epoch, now_ms, NO_TIMESTAMP)

    def _append_checked(
        self,
        buf: Writable,
        header: BatchHeader,
        at: int,
        leader_epoch: int,
        now_ms: int,
        log_append_time: int,
    ) -> Appended:
        first_offset = self.log_end_offset
        last_offset = first_offset + header.last_offset_delta
        length = header.length
        # the length between base offset and leader epoch is written again: one call is cheaper than two
        STAMP.pack_into(buf, at, first_offset, length, leader_epoch)
        view = (buf if buf.__class__ is memoryview else memoryview(buf))[at : at + length + OVERHEAD]
        self._stage(view, first_offset, last_offset, header.max_timestamp, now_ms)
        self.log_end_offset = last_offset + 1
        if leader_epoch != self.epochs.latest:
            assert leader_epoch > self.epochs.latest, (
                f"{self}: append of epoch {leader_epoch} after {self.epochs}"
            )
            self.epochs.assign(leader_epoch, start_offset=first_offset)
            self._epochs_changed()
        if header.producer_id >= 0:
            self._remember(view, header, first_offset, last_offset)
        return _new_tuple(
            Appended, (first_offset, last_offset, log_append_time, self.log_start_offset, False)
        )

    def append_plain(
        self,
        batch: memoryview,
        last_offset_delta: int,
        base_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """`append` for the batch that nearly every batch is, without a header object: its first offset, or -1
        when `append` must look at it. Positional, because it is called for every batch of a busy producer."""
        return -1

    def append_records(
        self, buf: Buffer, *, leader_epoch: int, now_ms: int, origin: Origin = "client"
    ) -> Appended:
        """The general way in: anything that must look at records or rewrite a batch. Appends and flushes; all
        batches or, on an error, none. A client's record set has one batch."""
        steps = self.prepare(buf, now_ms=now_ms, origin=origin)
        while True:
            try:
                task = next(steps)
            except StopIteration as end:
                prepared: Prepared = end.value
                return self.append_prepared(prepared, leader_epoch=leader_epoch)
            if task is not None:
                task.run()

    def prepare(self, buf: Buffer, *, now_ms: int, origin: Origin = "client") -> Preparing:
        """Everything of `append_records` that takes long, in slices: records are walked and batches rebuilt,
        the log is not changed. A yielded task is to be run, in a thread if that is at hand, before the next
        step; `buf` must stay unchanged meanwhile."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        batches = _checked_batches(buf)
        if origin == "client":
            if len(batches) != 1:
                raise KafkaError(ErrorCode.invalid_record, f"{len(batches)} batches for one partition")
            sent = self.producer_table.check(batches[0][1])
            if sent is not None:
                return Prepared(self, [(bytearray(), batches[0][1])], now_ms, origin)
        ready = []
        for at, header in batches:
            ready.append((yield from self._prepare(buf, at, header, now_ms=now_ms, origin=origin)))
        return Prepared(self, ready, now_ms, origin)

    def append_prepared(self, prepared: Prepared, *, leader_epoch: int) -> Appended:
        """Append what `prepare` made. Sequences are checked now: others may have appended since."""
        assert prepared.log is self, f"{self}: prepared for {prepared.log}"
        if self.offline is not None:
            raise LogOffline(self.offline)
        first = prepared.batches[0][1]
        if prepared.origin == "client":
            sent = self.producer_table.check(first)
            if sent is not None:
                return Appended(
                    sent.first_offset, sent.last_offset, sent.timestamp, self.log_start_offset, True
                )
            if not prepared.batches[0][0]:
                raise KafkaError(ErrorCode.out_of_order_sequence_number, "the original is gone meanwhile")
        now_ms = prepared.now_ms
        append_time = now_ms if first.is_log_append_time else NO_TIMESTAMP
        appended = [
            self._append_checked(batch, header, 0, leader_epoch, now_ms, append_time)
            for batch, header in prepared.batches
        ]
        self.flush_staged()
        return appended[0]._replace(last_offset=appended[-1].last_offset)

    def _prepare(
        self, buf: Buffer, at: int, header: BatchHeader, *, now_ms: int, origin: Origin
    ) -> Generator[Task | None, None, tuple[bytearray, BatchHeader]]:
        """The batch as this log stores it: checked, recompressed and restamped as the configuration asks."""
        self._check_size(header)
        config = self.config
        wanted = header.codec if header.is_control else _CODECS.get(config.compression_type, header.codec)
        is_rebuilt = wanted != header.codec
        section = b""
        if header.is_control:
            self._check_marker(buf, at, header)
        elif origin == "client":
            self._check_timestamps(header, now_ms)
        if is_rebuilt or (origin == "client" and (config.is_compacted or config.record_validation == "full")):
            section = yield from _off_loop(header.size, lambda: records_data(buf, at, header))
            yield from self._walk(section, header, now_ms, origin)
        append_time = now_ms if config.is_log_append_time else None
        if is_rebuilt:
            level = config.compression_level(config.compression_type)
            batch = yield from _off_loop(
                len(section), lambda: repack(buf, at, header, section, Codec(wanted), level)
            )
        else:
            batch = bytearray(memoryview(buf)[at : at + header.size])
            if append_time is None:
                return batch, header
        if append_time is not None:
            restamp_append_time(batch, append_time)
        rebuilt = parse_header(batch)
        self._check_size(rebuilt)
        return batch, rebuilt

    def _walk(
        self, section: bytes, header: BatchHeader, now_ms: int, origin: Origin
    ) -> Generator[None, None, None]:
        """What Kafka asks of each record, wherever they are read anyway. Offsets must add up: a rebuilt batch
        would otherwise take those of its neighbours."""
        needs_key = origin == "client" and self.config.is_compacted
        checks_time = origin == "client"
        expected = header.base_offset
        keyless: list[tuple[int, str]] = []
        outside: list[tuple[int, str]] = []
        records = iter_section(section, header)
        while True:
            part = _read_some(records)
            for offset, timestamp, key, _value, _headers in part:
                if offset != expected or timestamp > LONG_MAX:
                    raise KafkaError(
                        ErrorCode.invalid_record,
                        f"record with offset {offset} in place of {expected}, timestamp {timestamp}",
                    )
                index = expected - header.base_offset
                if needs_key and key is None:
                    keyless.append((index, "Compacted topic cannot accept message without key"))
                if (
                    checks_time
                    and timestamp != NO_TIMESTAMP
                    and not -self._after_max_ms <= now_ms - timestamp <= self._before_max_ms
                ):
                    outside.append((index, f"Timestamp {timestamp} of the record is out of range"))
                expected += 1
            if len(part) < WALK_RECORDS:
                break
            yield None
        if outside:
            raise RecordsRejected(ErrorCode.invalid_timestamp, outside[0][1], tuple(outside))
        if keyless:
            raise RecordsRejected(
                ErrorCode.invalid_record,
                f"a compacted topic takes no record without a key ({self.topic}-{self.partition})",
                tuple(keyless),
            )

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        if header.max_timestamp - now_ms > self._after_max_ms or (
            now_ms - header.base_timestamp > self._before_max_ms and header.base_timestamp != NO_TIMESTAMP
        ):
            raise _bad_timestamp(header, now_ms)

    def append_as_follower(self, buf: Buffer) -> Appended:
        """Append batches as the leader stamped them, offsets and epochs included. CorruptBatch when one is
        bad or does not follow the log's end: then nothing at all was appended. After NoDescriptor what is
        before the log's end was, and may still be staged."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        batches = list(iter_batches(buf))
        expected = self.log_end_offset
        epoch = self.epochs.latest
        for at, header in batches:
            if header.base_offset < expected:
                raise CorruptBatch(at, f"offset {header.base_offset} where the log ends at {expected}")
            if header.leader_epoch < epoch:
                raise CorruptBatch(at, f"leader epoch {header.leader_epoch} after {epoch}")
            expected, epoch = header.next_offset, header.leader_epoch
        if not batches:
            raise CorruptBatch(0, "no batch to append")
        whole = memoryview(buf)
        for at, header in batches:
            view = whole[at : at + header.size]
            self._stage(
                view, header.base_offset, header.last_offset, header.max_timestamp, header.max_timestamp
            )
            self.log_end_offset = header.next_offset
            self._replayed(view, header)
        self.flush_staged()
        return Appended(
            batches[0][1].base_offset, batches[-1][1].last_offset, NO_TIMESTAMP, self.log_start_offset, False
        )

    def _check_size(self, header: BatchHeader) -> None:
        if header.size > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"batch of {header.size} bytes, max.message.bytes is {self.config.max_message_bytes}",
            )
        if header.size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"batch of {header.size} bytes, segment.bytes is {self.config.segment_bytes}",
            )

    # --- bookkeeping of what was appended ---

    def _remember(self, view: Buffer, header: BatchHeader, first_offset: int, last_offset: int) -> None:
        if not header.is_control:
            self.producer_table.appended(header, first_offset, last_offset)
            return
        completed = replay_marker(self.producer_table, view, header, last_offset)
        if completed is not None:
            if completed.is_aborted:
                self._index_aborted(completed, self.producer_table.last_stable_after(completed))
            self.producer_table.complete(completed)

    def _replayed(self, view: Buffer, header: BatchHeader) -> None:
        """Account for a batch that carries its own offsets: a leader's, or one read back from the log."""
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, start_offset=header.base_offset)
            self._epochs_changed()
        if header.producer_id >= 0:
            self._remember(view, header, header.base_offset, header.last_offset)

    def _check_marker(self, buf: Buffer, at: int, header: BatchHeader) -> None:
        marker = _read_marker(memoryview(buf)[at : at + header.size], header)
        if marker is not None and header.producer_id >= 0:
            self.producer_table.check_marker(header, marker[1])

    # --- watermarks ---

    def set_high_watermark(self, high_watermark: int) -> None:
        """Kept within the log. It may go back only where the log was cut."""
        bounded = high_watermark if high_watermark < self.log_end_offset else self.log_end_offset
        if bounded < self.log_start_offset:
            bounded = self.log_start_offset
        self.high_watermark = bounded
        table = self.producer_table
        if table.ongoing or table.unreplicated:
            table.replicated_to(bounded)
            first_unstable = table.first_unstable_offset()
            if 0 <= first_unstable < bounded:
                self.last_stable_offset = max(first_unstable, self.log_start_offset)
                return
        self.last_stable_offset = bounded

    def _started_at(self, log_start_offset: int) -> None:
        """The log now starts at `log_start_offset`: watermarks, epochs and decided transactions follow."""
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = max(self.local_log_start_offset, log_start_offset)
        if self.epochs.truncate_from_start(log_start_offset):
            self._epochs_changed()
        self.producer_table.log_starts_at(log_start_offset)
        self.set_high_watermark(self.high_watermark)

    def expire_producers(self, now_ms: int) -> int:
        return self.producer_table.expire(now_ms - self.producer_expiration_ms)

    def producers(self) -> list[ActiveProducer]:
        return self.producer_table.active()

    # --- epochs ---

    def epoch_start(self, leader_epoch: int) -> None:
        """This replica leads from here on with `leader_epoch`. A higher one in the log is damage: the
        field is not under the CRC, and nobody can have led with it."""
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, start_offset=self.log_end_offset)
            self._epochs_changed()

    def epoch_for_offset(self, offset: int) -> int | None:
        return self.epochs.epoch_for(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, log_end_offset=self.log_end_offset)

    # --- left to subclasses ---

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def _stage(self, view: memoryview, first: int, last: int, max_timestamp: int, now_ms: int) -> None:
        """Take a stamped batch for the next flush."""

    @abstractmethod
    def _index_aborted(self, completed: CompletedTxn, last_stable_offset: int) -> None: ...

    @abstractmethod
    def _epochs_changed(self) -> None: ...

    @abstractmethod
    def flush_staged(self) -> None:
        """Write all staged batches with one call. LogOffline for everyone when the disk refuses."""

    @abstractmethod
    def read(self, offset: int, max_bytes: int, *, bound: int, min_one: bool) -> LogSlice | None:
        """Whole batches of [offset, bound) from one segment, at most `max_bytes` unless `min_one` and the
        first batch is larger; None when there is nothing. KafkaError 1 outside [local log start, log end]."""

    @abstractmethod
    def offset_for_timestamp(self, timestamp: int, bound: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record at or after `timestamp`, below `bound`."""

    @abstractmethod
    def offset_of_max_timestamp(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the record with the highest timestamp."""

    @abstractmethod
    def aborted_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, end)."""

    @abstractmethod
    def advance_log_start(self, offset: int, done: StartDone = ignore_start) -> None:
        """Delete the records below `offset`. The log start moves once that is durable, never before; then
        `done` is called, exactly once and perhaps before this returns. A smaller offset changes nothing.
        OFFSET_OUT_OF_RANGE past the high watermark, LogOffline: then `done` is never called."""

    @abstractmethod
    def truncate_to(self, offset: int) -> None:
        """Drop everything at and past `offset`."""

    @abstractmethod
    def truncate_fully(self, start_at: int) -> None:
        """Drop everything, producers and epochs included, and begin anew at `start_at`. A later log start is
        durable before anything is dropped."""

    @abstractmethod
    def statistics(self) -> LogStats: ...

    @abstractmethod
    def expire(self, now_ms: int) -> int:
        """Apply retention once; the number of segments deleted."""

    @abstractmethod
    def fsync_target(self) -> FlushJob | None:
        """What must reach the disk for everything appended so far; None when it is already there."""

    @abstractmethod
    def mark_flushed(self, job: FlushJob) -> None: ...

    @abstractmethod
    def flush_failed(self, error: OSError) -> KafkaError:
        """A sync failed: the directory is lost, unless only descriptors were short and it may be tried again.
        What to answer."""

    @abstractmethod
    def close(self) -> None: ...

    def fsync(self, upto: int | None = None) -> None:
        """Sync here and now, if `upto` (default: everything) is not yet durable."""
        if upto is not None and upto <= self.recovery_point:
            return
        job = self.fsync_target()
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            raise self.flush_failed(error) from error
        self.mark_flushed(job)


def _checked_batches(buf: Buffer) -> list[tuple[int, BatchHeader]]:
    try:
        batches = list(iter_batches(buf))
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.corrupt_message, error.reason) from error
    if not batches:
        raise KafkaError(ErrorCode.invalid_record, "no record batch")
    return batches


def _read_some(records: Iterator[Record]) -> list[Record]:
    try:
        return list(islice(records, WALK_RECORDS))
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.invalid_record, error.reason) from error


def _off_loop(size: int, work: Callable[[], T]) -> Generator[Task | None, None, T]:
    """The result of native work on `size` bytes, which is worth a thread when they are many."""
    task = Task(work)
    if size > INLINE_BYTES:
        yield task
    else:
        task.run()
    try:
        result: T = task.result()
    except DecompressedTooLarge as error:
        raise KafkaError(ErrorCode.message_too_large, error.reason) from error
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.invalid_record, error.reason) from error
    return result


def replay_marker(
    table: ProducerTable, view: Buffer, header: BatchHeader, last_offset: int
) -> CompletedTxn | None:
    """Apply a control batch; the transaction it decides is not yet completed in the table."""
    marker = _read_marker(view, header)
    if marker is None:
        return None
    return table.ended(header, last_offset, is_aborted=marker[0] == ABORT_MARKER, coordinator_epoch=marker[1])


def _read_marker(view: Buffer, header: BatchHeader) -> tuple[int, int] | None:
    """(type, coordinator epoch) of an end-transaction marker; None for a control batch of another kind or
    one that compaction emptied."""
    for record in iter_records(view, 0, header):
        kind, _, coordinator_epoch = parse_control(record)
        return (kind, coordinator_epoch) if kind in (0, 1) else None
    return None


def _bad_timestamp(header: BatchHeader, now_ms: int) -> KafkaError:
    return RecordsRejected(
        ErrorCode.invalid_timestamp,
        f"timestamps {header.base_timestamp} to {header.max_timestamp} are out of range at {now_ms}",
        ((0, f"Timestamp {header.base_timestamp} of the record is out of range"),),
    )
