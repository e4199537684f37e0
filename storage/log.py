"""One partition's log, whatever holds its bytes (KIP-1183).

Owns: what may be appended and at which offset, producer state, leader epochs, the watermarks and their
order. Does not own: looking at records (prepare), bytes, files, retention (subclasses), replication,
leadership (partition). Invariant: `log_start_offset <= last_stable_offset <= high_watermark <=
log_end_offset`, offsets are contiguous as appended, and a batch is checked completely before its first byte
is staged. The bytes of [log_start_offset, local_log_start_offset) are in the tier alone: for a log that is
not tiered both are one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import (
    NO_TIMESTAMP,
    OVERHEAD,
    STAMP,
    BatchHeader,
    end_txn_marker,
    iter_batches,
    parse_header,
    restamp_append_time,
)
from protocol.work import Work
from storage.epochs import EpochCache
from storage.policy import LogConfig
from storage.prepare import (
    Buffer,
    Origin,
    Prepared,
    Preparing,
    bad_timestamp,
    check_size,
    prepare,
    stores_as_built,
)
from storage.producers import ActiveProducer, CompletedTxn, ProducerTable, Verification, replay_marker
from storage.times import Finding, Found, run_here

Writable = bytearray | memoryview

PRODUCER_EXPIRATION_MS = 86_400_000

StartDone = Callable[[KafkaError | None], None]
"""Called on the loop once a log start is durable, or with the reason why it will not be. It only wakes or
schedules others, because it may be called from within another change of the log."""

# a named tuple's own constructor costs a tenth of an append
_new_tuple = tuple.__new__


def ignore_start(_: KafkaError | None) -> None:
    """The `done` of a caller that waits for nothing."""


class FileBytes(Protocol):
    """The part of a file that gives its bytes."""

    path: str

    def pread(self, size: int, offset: int) -> bytes: ...

    def preadv(self, buffer: memoryview, offset: int) -> int: ...


class NewMarker(NamedTuple):
    """The end of a producer's transaction, as a log is told of it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class CoordinatorBatch(NamedTuple):
    """Records of a coordinator: plain ones, or those of a transaction with what the log needs for them."""

    data: bytearray
    is_transactional: bool = False
    verified: Verification | None = None


class ReadableFile(FileBytes, Protocol):
    """The part of a file a reader of a slice needs."""

    def fileno(self) -> int: ...


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


class ReadCursor(NamedTuple):
    """Where one who reads a log from front to back stands."""

    offset: int
    generation: int
    """Of the log, when it was found."""
    base_offset: int
    """Of the segment that holds `offset`, or will."""
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """What may be copied to the tier: a segment that nothing is appended to any more."""

    base_offset: int
    end_offset: int
    """Where the next segment begins."""
    size: int
    max_timestamp: int
    """-1 when no record has one."""
    has_aborted: bool
    """Whether a transaction was aborted in it."""


class HeldFile:
    """A file until it is let go. A read that is under way in a thread keeps it open to its end."""

    __slots__ = ("_file", "path")

    def __init__(self, file: ReadableFile) -> None:
        self.path = file.path
        self._file: ReadableFile | None = file

    def __repr__(self) -> str:
        return f"<HeldFile {self.path}>"

    def pread(self, size: int, offset: int) -> bytes:
        return self._held().pread(size, offset)

    def preadv(self, buffer: memoryview, offset: int) -> int:
        return self._held().preadv(buffer, offset)

    def _held(self) -> ReadableFile:
        if self._file is None:
            raise ValueError(f"{self.path} was let go")
        return self._file

    def let_go(self) -> None:
        """Keep it open no longer. What still refers to this, such as the traceback of a cancelled copy in a
        circle with itself, would keep a deleted segment on the disk until the garbage collector comes."""
        self._file = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSegment:
    """A closed segment while it is copied. Its file stays readable whatever the log does to its name; a
    truncation may shorten it, which the log's `generation` tells."""

    segment: ClosedSegment
    file: HeldFile
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    epochs: list[tuple[int, int]]
    """Those with records in it; the first starts at its base."""
    epochs_until_end: list[tuple[int, int]]
    """All since the log start, up to its end."""

    @property
    def size(self) -> int:
        return self.segment.size


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


class TieredOffset(KafkaError):
    """An offset of this log whose bytes are in the tier alone."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.offset_moved_to_tiered_storage, message)


class LogOffline(KafkaError):
    """The log's directory failed: final until restart."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class NoDescriptor(KafkaError):
    """No file could be opened just now: nothing happened to the disk, and there may be room again later."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class FlushJob(Protocol):
    """What makes a log durable up to some point. It may run in any thread; then hand it to `mark_flushed`, on
    the loop."""

    def run(self) -> None:
        """Raises OSError: report it with `flush_failed`, and do not try again."""


class AbstractLog(ABC):
    __slots__ = (
        "_after_max_ms",
        "_batch_length_max",
        "_before_max_ms",
        "_topic_id",
        "config",
        "epochs",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "may_lack_end",
        "needs_walk",
        "offline",
        "on_roll",
        "partition",
        "producer_expiration_ms",
        "producer_table",
        "recovery_point",
        "tiered_end",
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
        self.tiered_end = 0
        """Where what is safely in the tier ends; 0 while nothing is known of it. The tier sets it, every cut
        lowers it."""
        self.may_lack_end = True
        """Whether more may have been committed here than there is: the log was not found as a clean stop left
        it, and has neither led nor been in sync since."""
        self.generation = 0
        """Rises with every cut and every change of closed segments but deletion from the front: what was
        read of them before may be another log's."""
        self.on_roll: Callable[[], None] | None = None
        """Called when a segment was closed and the next one is in its place."""
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

    @property
    def is_tiered(self) -> bool:
        return self.config.remote_storage_enable

    @property
    def epochs_incomplete(self) -> bool:
        """Whether the epochs of what is in the tier alone were lost with their file: see `restore_epochs`."""
        if self.local_log_start_offset == self.log_start_offset:
            return False
        known_from = self.epochs.known_from
        return known_from is None or known_from > self.log_start_offset

    def set_config(self, config: LogConfig) -> None:
        self.config = config
        self.needs_walk = config.needs_walk
        self._batch_length_max = min(config.max_message_bytes, config.segment_bytes) - OVERHEAD
        self._after_max_ms = config.timestamp_after_max_ms
        self._before_max_ms = config.timestamp_before_max_ms

    # --- append ---

    def append(
        self,
        buf: Writable,
        header: BatchHeader,
        at: int,
        *,
        leader_epoch: int,
        now_ms: int,
        verified: Verification | None = None,
    ) -> Appended:
        """Stage ONE batch of a client whose header and CRC were checked; `buf` must stay unchanged until
        `flush_staged`. Only for logs that do not `needs_walk`. One that begins a transaction has to be
        `verified`."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        if header.length > self._batch_length_max:
            check_size(self.config, header)
        if header.max_timestamp - now_ms > self._after_max_ms or (
            now_ms - header.base_timestamp > self._before_max_ms and header.base_timestamp != NO_TIMESTAMP
        ):
            raise bad_timestamp(header, now_ms)
        if header.producer_id >= 0:
            sent = self.producer_table.check(header, verified)
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
        in_transaction: bool = False,
    ) -> int:
        """`append` for the batch that nearly every batch is, without a header object: its first offset, or -1
        when `append` must look at it. Positional, because it is called for every batch of a busy producer."""
        return -1

    def append_records(
        self,
        buf: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = "client",
        verified: Verification | None = None,
    ) -> Appended:
        """The general way in: anything that must look at records or rewrite a batch. Appends and flushes; all
        batches or, on an error, none. A client's record set has one batch."""
        steps = self.prepare(buf, now_ms=now_ms, origin=origin, verified=verified)
        while True:
            try:
                task = next(steps)
            except StopIteration as end:
                prepared: Prepared = end.value
                return self.append_prepared(prepared, leader_epoch=leader_epoch, verified=verified)
            if task is not None:
                task.run()

    def append_own(self, batch: bytearray, *, leader_epoch: int, now_ms: int) -> Appended:
        """`append_records` for one plain batch that this broker has just built, of which nothing needs to be
        checked again; `batch` is the log's from now on."""
        header = parse_header(batch)
        if not stores_as_built(self.config, header):
            return self.append_records(batch, leader_epoch=leader_epoch, now_ms=now_ms, origin="coordinator")
        delta, timestamp = header.last_offset_delta, header.base_timestamp
        first = self.append_plain(
            memoryview(batch),
            delta,
            timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            leader_epoch,
            now_ms,
        )
        if first >= 0:
            appended = Appended(first, first + delta, NO_TIMESTAMP, self.log_start_offset, False)
        else:
            if self.offline is not None:
                raise LogOffline(self.offline)
            check_size(self.config, header)
            appended = self._append_checked(batch, header, 0, leader_epoch, now_ms, NO_TIMESTAMP)
        self.flush_staged()
        return appended

    def prepare(
        self,
        buf: Buffer,
        *,
        now_ms: int,
        origin: Origin = "client",
        verified: Verification | None = None,
    ) -> Preparing:
        """Do everything of `append_records` that takes long, in slices and without changing the log. A
        yielded task is to be run, in a thread if that is at hand, before the next step; `buf` must stay
        unchanged meanwhile."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        return prepare(self, buf, now_ms=now_ms, origin=origin, verified=verified)

    def append_prepared(
        self, prepared: Prepared, *, leader_epoch: int, verified: Verification | None = None
    ) -> Appended:
        """Append what `prepare` made. Sequences and transactions are checked now: others may have appended
        since."""
        assert prepared.log is self, f"{self}: prepared for {prepared.log}"
        if self.offline is not None:
            raise LogOffline(self.offline)
        first = prepared.batches[0][1]
        if prepared.origin == "client":
            sent = self.producer_table.check(first, verified)
            if sent is not None:
                return Appended(
                    sent.first_offset, sent.last_offset, sent.timestamp, self.log_start_offset, True
                )
            if not prepared.batches[0][0]:
                raise KafkaError(ErrorCode.out_of_order_sequence_number, "the original is gone meanwhile")
        elif first.producer_id >= 0 and not first.is_control:
            assert all(each.producer_id == first.producer_id for _batch, each in prepared.batches)
            self.producer_table.check_coordinated(first, verified)
        now_ms = prepared.now_ms
        append_time = now_ms if first.is_log_append_time else NO_TIMESTAMP
        appended = [
            self._append_checked(batch, header, 0, leader_epoch, now_ms, append_time)
            for batch, header in prepared.batches
        ]
        self.flush_staged()
        return appended[0]._replace(last_offset=appended[-1].last_offset)

    def append_marker(self, marker: NewMarker, *, leader_epoch: int, now_ms: int) -> Appended:
        """Stage the marker that ends a producer's transaction, for the next `flush_staged`."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        self.producer_table.check_marker(
            marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_version
        )
        batch = end_txn_marker(
            commit=marker.committed,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now_ms,
        )
        append_time = NO_TIMESTAMP
        if self.config.is_log_append_time:
            append_time = now_ms
            restamp_append_time(batch, now_ms)
        return self._append_checked(batch, parse_header(batch), 0, leader_epoch, now_ms, append_time)

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

    # --- watermarks ---

    def set_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark, within the bounds of the log. It may go back only where the log was cut."""
        bounded = high_watermark if high_watermark < self.log_end_offset else self.log_end_offset
        if bounded < self.local_log_start_offset:  # what is in the tier was committed
            bounded = self.local_log_start_offset
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

    def expire_producers(self, now_ms: int) -> Work[int]:
        """Forget, in steps, producers that are silent for too long; return how many."""
        return self.producer_table.expire(now_ms - self.producer_expiration_ms)

    def producers(self) -> list[ActiveProducer]:
        return list(self.producer_table.active())

    # --- epochs ---

    def epoch_start(self, leader_epoch: int) -> None:
        """This replica leads from here on with `leader_epoch`. A higher one in the log is damage: the
        field is not under the CRC, and nobody can have led with it."""
        self.may_lack_end = False
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
        first batch is larger; None when there is nothing. TieredOffset below the local start, KafkaError 1
        outside [log start, log end]."""

    @abstractmethod
    def read_on(
        self, offset: int, max_bytes: int, *, bound: int, cursor: ReadCursor | None
    ) -> tuple[LogSlice | None, ReadCursor | None]:
        """`read` with `min_one`, for one who goes on where the last call ended: `cursor` is what that one
        returned, and saves looking for `offset`. One that does not fit any more, or None, costs the look."""

    @abstractmethod
    def finding_timestamp(self, timestamp: int, bound: int) -> Finding:
        """Find, in steps, the first local record at or after `timestamp`, below `bound`. The log may change
        between them."""

    @abstractmethod
    def finding_max_timestamp(self) -> Finding:
        """Find, in steps, the local record with the highest timestamp."""

    def offset_for_timestamp(self, timestamp: int, bound: int) -> Found | None:
        """`finding_timestamp` at once."""
        return run_here(self.finding_timestamp(timestamp, bound))

    def offset_of_max_timestamp(self) -> Found | None:
        """`finding_max_timestamp` at once."""
        return run_here(self.finding_max_timestamp())

    @abstractmethod
    def aborted_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, end), as far as the
        local part of the log tells."""

    @abstractmethod
    def advance_log_start(self, offset: int, done: StartDone = ignore_start) -> None:
        """Delete the records below `offset`. The log start moves once that is durable, never before; then
        `done` is called, exactly once and perhaps before this returns. A smaller offset changes nothing.
        OFFSET_OUT_OF_RANGE past the high watermark, LogOffline: then `done` is never called."""

    @abstractmethod
    def truncate_to(self, offset: int) -> None:
        """Drop everything at and past `offset`. Where that is below the local start of a tiered log, its log
        start stays, and the epochs of what is left."""

    @abstractmethod
    def truncate_fully(self, start_at: int) -> None:
        """Drop everything, producers and epochs included, and begin anew at `start_at`. A later log start is
        durable before anything is dropped."""

    @abstractmethod
    def begin_at(
        self,
        start: int,
        *,
        log_start: int,
        epochs: Sequence[tuple[int, int]],
        producers: bytes | None,
        done: StartDone = ignore_start,
    ) -> None:
        """Drop everything and begin anew at `start`, as the replica of a log that starts at `log_start` and
        whose records below `start` are in the tier: with their epochs, and the producer snapshot at `start`
        (CorruptSnapshot before anything is dropped). `done` is called once all of it is durable. A crash
        before that leaves the old log, or one that holds nothing and is to begin again."""

    @abstractmethod
    def restore_epochs(self, entries: Sequence[tuple[int, int]]) -> None:
        """Put back the epochs of what is in the tier alone, as the tier tells them. What this log knows of
        its own counts."""

    # --- for copies ---

    @abstractmethod
    def closed_segments(self, start: int, end: int) -> list[ClosedSegment]:
        """The closed segments from the one that holds `start` on, as far as they end at or before `end`;
        oldest first."""

    @abstractmethod
    def open_segment(self, base_offset: int) -> AbstractContextManager[HeldSegment]:
        """Hold the closed segment with this base. KafkaError 1 when there is none (any more)."""

    @abstractmethod
    def producers_until(self, end: int) -> Generator[None, None, bytes]:
        """The producer snapshot at the base of a segment, as Kafka reads it; in slices, because it is made
        anew where its file is lost. KafkaError when the log changed meanwhile."""

    @abstractmethod
    def size_from(self, offset: int) -> int:
        """Local bytes of the segments that end above `offset`."""

    @abstractmethod
    def free_tiered(self, now_ms: int) -> int:
        """Delete closed segments that are in the tier, whatever local retention says, a few at a time; the
        bytes that this frees at once."""

    @abstractmethod
    def statistics(self) -> LogStats: ...

    @abstractmethod
    def expire(self, now_ms: int) -> int:
        """Apply retention once; the number of segments deleted. A log start that this moves counts for a
        tiered log once it is durable: then the next call deletes."""

    @abstractmethod
    def fsync_target(self) -> FlushJob | None:
        """Return what makes everything appended so far durable; None when it already is."""

    @abstractmethod
    def mark_flushed(self, job: FlushJob) -> None: ...

    @abstractmethod
    def flush_failed(self, error: OSError) -> KafkaError:
        """A sync failed: the directory is lost, unless only descriptors were short and it may be tried again.
        What to answer."""

    @abstractmethod
    def close(self) -> None: ...
