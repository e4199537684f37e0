"""The log on local disk: segments under one directory in Kafka's formats.

Owns: staging and writing, roll, retention, truncation, swapping in compacted segments, the recovery point.
Does not own: what may be appended (AbstractLog), reading, copies and failures (SegmentedLog), opening a
directory (loader), what a sync settles (flush), when maintenance runs (log_manager). Invariant: batches reach
the file in the order of their offsets with one write per flush. A lack of descriptors is met before anything
is staged or changed, and the caller may try again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from os.path import basename, join
from typing import NamedTuple
from uuid import UUID

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import OVERHEAD, STAMP
from storage.epochs import EpochCache
from storage.files import Files, write_replacing, write_whole
from storage.flush import SegmentFlush, Unsynced
from storage.index import AbortedTxn
from storage.loader import (
    EPOCHS,
    METADATA,
    CleanState,
    Loaded,
    encode_metadata,
    load,
    producers_at,
    snapshot_offsets,
    snapshot_path,
)
from storage.log import (
    PRODUCER_EXPIRATION_MS,
    FlushJob,
    LogOffline,
    StartDone,
    ignore_start,
)
from storage.policy import INT32_MAX, LONG_MAX, LogConfig, SegmentFacts, plan_deletion
from storage.producers import CompletedTxn, ProducerTable, decode_producers
from storage.segment import (
    DELETED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    SegmentMark,
)
from storage.segmented_log import SegmentedLog

Jitter = Callable[[int], int]  # a number in [0, bound)

EXPIRED_AT_ONCE = 32
"""Each costs up to 8 calls to the file system."""
MARKS_KEPT = 2
"""The recovery point on disk may still be that of the one before."""
UNKNOWN = -LONG_MAX - 2
"""Below every timestamp, so that the next append looks."""

PRODUCERS_AT_ONCE = 256
"""In a snapshot that is written where it is due; a larger one is made in steps."""
FROZEN_MAX = 2
"""Snapshots that wait to be written; of more the oldest goes, and whoever needs it reads the log."""

_stamp = STAMP.pack_into


class FrozenProducers(NamedTuple):
    """A snapshot to be written: the producers of `table` at an offset, packed."""

    offset: int
    table: ProducerTable
    rows: list[bytes]
    note: bytes


def _ignore_cut(is_start: bool) -> None:
    pass


class UnifiedLog(SegmentedLog):
    # thousands of logs: with so many attributes each would have a dict of 1.5 KB
    __slots__ = (
        "_active",
        "_doomed",
        "_epochs_dirty",
        "_epochs_written",
        "_flush_messages",
        "_frozen",
        "_index_interval",
        "_jitter",
        "_marked_upto",
        "_marks",
        "_on_cut",
        "_on_start",
        "_plain_size_max",
        "_roll_at",
        "_roll_by_clock",
        "_segment_bytes",
        "_snapshot_at",
        "_start_asked",
        "_start_waits",
        "_unsynced",
        "flushed_at_ms",
        "is_start_named",
        "saved_start",
    )

    def __init__(
        self,
        *,
        files: Files,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        loaded: Loaded,
        jitter: Jitter,
        on_failure: Callable[[OSError], None],
        on_cut: Callable[[bool], None] = _ignore_cut,
        on_start: Callable[[], None] | None = None,
        saved_start: int | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self._jitter = jitter
        self._on_cut = on_cut
        self._on_start = on_start
        self._doomed: list[tuple[int, str]] = []
        """When each is due, and its path; ascending."""
        self._frozen: list[FrozenProducers] = []
        """Snapshots that are still to be written, the oldest first."""
        self._unsynced = Unsynced(loaded.rewritten)
        self._snapshot_at = loaded.log_end_offset if loaded.has_snapshot else UNKNOWN
        self._marks: list[int] = []
        self._marked_upto = loaded.recovery_point
        self.saved_start = saved_start or 0
        """The log start that a crash would leave, as far as is known."""
        self.is_start_named = saved_start is not None
        """Whether the checkpoint names this log: a tiered one that it does not begins with its segments."""
        self._start_asked = 0
        self._start_waits: tuple[tuple[int, StartDone], ...] = ()
        self.flushed_at_ms = 0
        self._active = loaded.segments[-1]
        self._roll_at = UNKNOWN
        self._roll_by_clock = False
        super().__init__(
            files=files,
            directory=directory,
            topic=topic,
            partition=partition,
            config=config,
            loaded=loaded,
            on_failure=on_failure,
            producer_expiration_ms=producer_expiration_ms,
        )
        self._epochs_dirty = bool(loaded.rewritten)
        written = None if loaded.rewritten else loaded.epochs.entries()
        self._epochs_written: list[tuple[int, int]] | None = written

    @staticmethod
    def opening(
        files: Files,
        directory: str,
        *,
        config: LogConfig,
        topic: str,
        partition: int,
        now_ms: int,
        jitter: Jitter,
        on_failure: Callable[[OSError], None],
        on_cut: Callable[[bool], None] = _ignore_cut,
        on_start: Callable[[], None] | None = None,
        is_clean: bool = False,
        is_doubted: bool = False,
        recovery_point: int = 0,
        gapless_from: int | None = None,
        log_start_offset: int | None = None,
        state: CleanState | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> Generator[None, None, UnifiedLog]:
        """Open in slices, as `load`; a new or cleanly closed log needs but one."""
        loaded = yield from load(
            files,
            directory,
            config=config,
            is_clean=is_clean,
            is_doubted=is_doubted,
            recovery_point=recovery_point,
            gapless_from=gapless_from,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
            state=state,
        )
        for segment in loaded.segments:
            segment.close()  # most partitions are idle after a start, and descriptors are few
        return UnifiedLog(
            files=files,
            directory=directory,
            topic=topic,
            partition=partition,
            config=config,
            loaded=loaded,
            jitter=jitter,
            on_failure=on_failure,
            on_cut=on_cut,
            on_start=on_start,
            saved_start=log_start_offset,
            producer_expiration_ms=producer_expiration_ms,
        )

    def set_config(self, config: LogConfig) -> None:
        super().set_config(config)
        self._segment_bytes = config.segment_bytes
        self._flush_messages = config.flush_messages
        self._roll_at = UNKNOWN
        self._active.index_bytes_max = config.segment_index_bytes
        self._index_interval = config.index_interval_bytes
        self._plain_size_max = self._batch_length_max + OVERHEAD

    def adopt_topic_id(self, topic_id: UUID) -> None:
        """Give its id to a new log, or to one whose `partition.metadata` a power cut took."""
        assert self._topic_id is None or self._topic_id == topic_id, f"{self} belongs to {self._topic_id}"
        if self._topic_id is None:
            with self._disk():
                self._write_small(METADATA, encode_metadata(topic_id))
            self._topic_id = topic_id

    # --- append ---

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
        size = len(batch)
        active = self._active
        first_offset = self.log_end_offset
        last_offset = first_offset + last_offset_delta
        if (
            size > self._plain_size_max
            or active.size + size > self._segment_bytes
            or max_timestamp > self._roll_at
            or max_timestamp - now_ms > self._after_max_ms
            or now_ms - base_timestamp > self._before_max_ms
            or leader_epoch != self.epochs.latest
            or last_offset - active.base_offset > INT32_MAX
            or active.is_index_full
            or self._roll_by_clock
            or self.offline is not None
        ):
            return -1
        if producer_id >= 0 and not self.producer_table.follow(
            producer_id,
            producer_epoch,
            base_sequence,
            first_offset,
            last_offset,
            max_timestamp,
            in_transaction,
        ):
            return -1
        # the length between base offset and leader epoch is written again: one call is cheaper than two
        _stamp(batch, 0, first_offset, size - OVERHEAD, leader_epoch)
        active.appended(size, last_offset, max_timestamp, self._index_interval)
        self._staged.append(batch)
        self.log_end_offset = last_offset + 1
        return first_offset

    def _stage(self, view: memoryview, first: int, last: int, max_timestamp: int, now_ms: int) -> None:
        active = self._active
        size = len(view)
        if (
            active.size + size > self._segment_bytes
            or (now_ms if self._roll_by_clock else max_timestamp) > self._roll_at
            or last - active.base_offset > INT32_MAX
            or active.is_index_full
        ):
            active = self._make_room(size, first, last, max_timestamp, now_ms)
        active.appended(size, last, max_timestamp, self._index_interval)
        self._staged.append(view)

    def _make_room(self, size: int, first: int, last: int, max_timestamp: int, now_ms: int) -> Segment:
        self._look_up_active()
        active = self._active
        if active.size and (
            active.size + size > self._segment_bytes
            or active.is_index_full
            or last - active.base_offset > INT32_MAX
            or self._is_old(active, max_timestamp, now_ms)
        ):
            # Offsets that compaction took before a follower got them are no hole between its segments.
            self.roll(self.log_end_offset if last - self.log_end_offset <= INT32_MAX else first, now_ms)
        elif not active.size and last - active.base_offset > INT32_MAX:
            self._replace_empty_active(first, now_ms)
        if not self._active.size:
            self._set_roll_time(max_timestamp, now_ms)
        return self._active

    def _look_up_active(self) -> None:
        """The first append after a start needs its indexes and its first batch from the disk."""
        active = self._active
        try:
            with self._disk():
                _ = active.offsets, active.first_batch_timestamp(), active.file
        except CorruptBatch as error:
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{basename(self.directory)} is damaged: {error}"
            ) from error

    def _is_old(self, active: Segment, max_timestamp: int, now_ms: int) -> bool:
        if self._roll_at == UNKNOWN:
            first = active.first_batch_timestamp()
            self._set_roll_time(-1 if first is None else first, active.created_ms)
        return (now_ms if self._roll_by_clock else max_timestamp) > self._roll_at

    def _set_roll_time(self, first_timestamp: int, created_ms: int) -> None:
        """A segment lasts `segment.ms` by its records' own time, or by the clock when they have none."""
        config = self.config
        after = config.roll_after_ms
        after -= self._jitter(min(config.segment_jitter_ms, after)) if config.segment_jitter_ms > 0 else 0
        self._roll_by_clock = first_timestamp < 0
        self._roll_at = min((created_ms if first_timestamp < 0 else first_timestamp) + after, LONG_MAX)

    def flush_staged(self) -> None:
        staged = self._staged
        if not staged:
            return
        try:
            self._active.file.writev(staged)
        except OSError as error:
            raise self._fail(error) from error
        self._staged = []
        # the next flush begins here, and a reader at the end goes on where a flush ended
        self._active.remember(self.log_end_offset, self._active.size)
        if (
            self._flush_messages < LONG_MAX
            and self.log_end_offset - self.recovery_point >= self._flush_messages
        ):
            self.fsync()

    def roll(self, base: int, now_ms: int) -> None:
        """Close the active segment and go on in a new one that starts at `base`."""
        self.flush_staged()
        active = self._active
        if active.size == 0 and active.base_offset == base:
            return
        with self._disk():
            active.seal()
            self._unsynced.add(active.path(kind) for kind in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX))
            self._save_snapshot(base)
            self._write_epochs()
            segment = self._create_segment(base, now_ms)
        self._segments.append(segment)
        self._bases.append(base)
        self._active = segment
        if self.on_roll is not None:
            self.on_roll()

    def _replace_empty_active(self, base: int, now_ms: int) -> None:
        with self._disk():
            segment = self._create_segment(base, now_ms)
        with self._disk():
            self._remove_now(self._active)
        self._segments[-1] = self._active = segment
        self._bases[-1] = base

    def _create_segment(self, base: int, now_ms: int) -> Segment:
        segment = Segment.create(self.files, self.directory, base, now_ms=now_ms)
        segment.index_bytes_max = self.config.segment_index_bytes
        self._unsynced.add()
        self._roll_at = UNKNOWN
        return segment

    def _index_aborted(self, completed: CompletedTxn, last_stable_offset: int) -> None:
        txn = AbortedTxn(
            completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
        )
        with self._changing():  # its marker is in the log already
            self._active.add_aborted(txn)
        self._unsynced.add([self._active.path(TXN_INDEX)])

    # --- shortening ---

    def advance_log_start(self, offset: int, done: StartDone = ignore_start) -> None:
        if self.offline is not None:
            raise LogOffline(self.offline)
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is past the high watermark {self.high_watermark}",
            )
        if offset <= min(self.log_start_offset, self.saved_start):
            done(None)
            return
        if done is not ignore_start:
            self._start_waits = (*self._start_waits, (offset, done))
        if offset > self.start_to_save:
            self._start_asked = offset
        self._ask_for_start()

    def _ask_for_start(self) -> None:
        if self._on_start is None:
            self.start_saved(self.start_to_save)
            self.answer_starts()
        else:
            self._on_start()

    @property
    def start_to_save(self) -> int:
        """The log start that the disk is to know: ours, or one that counts once it is there."""
        return max(self._start_asked, self.log_start_offset)

    def start_saved(self, offset: int | None) -> None:
        """The disk has `offset` as the log start, or none. `answer_starts` is to follow."""
        self.is_start_named = offset is not None
        self.saved_start = offset = offset or 0
        if self.log_start_offset < offset <= min(self._start_asked, self.log_end_offset):
            self._started_at(offset)

    def answer_starts(self) -> None:
        """Tell those whose log start is durable."""
        if not self._start_waits:
            return
        durable = min(self.log_start_offset, self.saved_start)
        waits = self._start_waits
        self._start_waits = tuple(wait for wait in waits if wait[0] > durable)
        for offset, done in waits:
            if offset <= durable:
                done(None)

    def _refuse_starts_past(self, offset: int, error: KafkaError) -> None:
        waits = self._start_waits
        self._start_waits = tuple(wait for wait in waits if wait[0] <= offset)
        self._start_asked = max((wanted for wanted, _ in self._start_waits), default=0)
        for wanted, done in waits:
            if wanted > offset:
                done(error)

    def expire(self, now_ms: int) -> int:
        """Delete what retention no longer keeps, a few segments at a time; how many went."""
        if self.offline is not None:
            return 0
        self.flush_staged()
        with self._reading():
            facts = [
                SegmentFacts(
                    size=segment.size,
                    end_offset=self._bases[at + 1] if at + 1 < len(self._bases) else self.log_end_offset,
                    timestamp=self._retention_timestamp(segment),
                )
                for at, segment in enumerate(self._segments)
            ]
        plan = plan_deletion(
            self.config,
            facts,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            tiered_end=self.tiered_end,
        )
        if plan.roll_active:
            self.roll(self.log_end_offset, now_ms)
        count = min(plan.count, EXPIRED_AT_ONCE)
        if self.is_tiered:
            count = self._durably(count, facts, is_local=plan.is_local)
        if count == 0:
            return 0
        if count == len(self._segments):
            self.roll(self.log_end_offset, now_ms)
        self._delete_segments(self._segments[:count], now_ms + self.config.file_delete_delay_ms)
        if self._bases[0] > self.local_log_start_offset:
            self._local_starts_at(self._bases[0], is_local=plan.is_local)
        return count

    def _durably(self, count: int, facts: Sequence[SegmentFacts], *, is_local: bool) -> int:
        """How many of the oldest segments of a tiered log may go now. Where it starts, and the epochs and
        producers of what is in the tier, no local segment tells: they must be on the disk before those go."""
        if count == 0:
            return 0
        if not is_local:
            self.advance_log_start(facts[count - 1].end_offset)
        elif not self.is_start_named or self.saved_start < self.log_start_offset:
            self._ask_for_start()
        durable = min(self.saved_start, self.log_start_offset) if self.is_start_named else 0
        if not is_local or not self.is_start_named or durable < self.log_start_offset:
            count = sum(each.end_offset <= durable for each in facts[:count])
        if count and is_local:
            with self._reading():
                self._settle_until(facts[count - 1].end_offset)
        return count

    def _settle_until(self, end: int) -> None:
        """Have the epochs, and the producers at the base `end` of a segment, on the disk; those at each base
        before it too, because a power cut may bring back some of what goes. The sync that follows each roll
        has usually taken them there; the recovery point does not tell, it may have been there before the
        roll."""
        path = snapshot_path(self.directory, end)
        if not self.files.exists(path):
            table = producers_at(self.files, self.directory, self._segments, end)
            write_whole(self.files, path, table.encode())
        paths = [snapshot_path(self.directory, base) for base in self._bases if base <= end]
        unsynced = [path for path in paths if path in self._unsynced.paths and self.files.exists(path)]
        for path in unsynced:
            file = self.files.open(path)
            file.fsync()
            file.close()
        if unsynced:
            self.files.fsync_dir(self.directory)
        self._anchor()
        if self._epochs_dirty or join(self.directory, EPOCHS) in self._unsynced.paths:
            self._write_epochs(force=True, is_durable=True)

    def _local_starts_at(self, offset: int, *, is_local: bool) -> None:
        if is_local:
            self.local_log_start_offset = offset
        else:
            self._started_at(offset)

    def free_tiered(self, now_ms: int) -> int:
        if self.offline is not None or not self.is_tiered:
            return 0
        limit = max(min(self.tiered_end, self.high_watermark), self.log_start_offset)
        facts = [
            SegmentFacts(size=segment.size, end_offset=end, timestamp=0)
            for segment, end in zip(self._segments, self._bases[1 : EXPIRED_AT_ONCE + 1], strict=False)
            if end <= limit
        ]
        count = self._durably(len(facts), facts, is_local=True)
        if count == 0:
            return 0
        self._delete_segments(self._segments[:count], now_ms)
        self.local_log_start_offset = max(self.local_log_start_offset, self._bases[0])
        return sum(each.size for each in facts[:count])

    def _retention_timestamp(self, segment: Segment) -> int:
        """The clock of its file speaks for a segment without timestamps, or one that is damaged."""
        config = self.config
        if not config.is_deleted or (config.retention_ms < 0 and not config.remote_storage_enable):
            return LONG_MAX
        try:
            timestamp = segment.largest_timestamp
        except CorruptBatch:
            timestamp = -1
        return timestamp if timestamp >= 0 else self.files.mtime_ms(segment.path(LOG))

    def is_restless(self, now_ms: int) -> bool:
        """Whether there is something to sync, to remove, to make known or to answer. Asked of every log every
        second, most of which have nothing: one look at each fact, and no call."""
        asked, start, point = self._start_asked, self.log_start_offset, self.recovery_point
        return bool(
            self._doomed
            or self._frozen
            or self._start_waits
            or (asked if asked > start else start) != self.saved_start
            or point < self._segments[-1].base_offset
            or (point < self.log_end_offset and now_ms - self.flushed_at_ms >= self.config.flush_ms)
        )

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._doomed)

    def take_due_files(self, now_ms: int) -> list[str]:
        """The files whose `file.delete.delay.ms` is over, for the caller to remove."""
        due = [path for due, path in self._doomed if due <= now_ms]
        del self._doomed[: len(due)]
        return due

    def truncate_to(self, offset: int) -> None:
        if self.offline is not None:
            raise LogOffline(self.offline)
        self.flush_staged()
        if offset >= self.log_end_offset:
            # an epoch this replica led without a record in it still contradicts the leader's
            if self.epochs.truncate_from_end(self.log_end_offset):
                with self._disk():
                    self._write_epochs(force=True)
            return
        if offset < self._bases[0]:
            kept = EpochCache(self.epochs.entries_until(offset)) if self.is_tiered else EpochCache()
            start = min(self.log_start_offset, offset) if self.is_tiered else offset
            self._begin(offset, log_start=start, epochs=kept)
            return
        keep = bisect_right(self._bases, offset)
        base = self._bases[keep - 1]
        with self._reading():  # what needs a descriptor asks for it while nothing has changed yet
            self._segments[keep - 1].open_to_cut(offset)
            snapshots = snapshot_offsets(self.files, self.directory)
        with self._disk():
            self._vouch_to(max(base, offset - 1))
        with self._reading(), self._changing():
            for segment in reversed(self._segments[keep:]):
                self._remove_now(segment)
            del self._segments[keep:], self._bases[keep:]
            self._active = self._segments[-1]
            size = self._active.size
            self._active.truncate(offset)
            self._cut_back_to(self._active.end_offset())
            if self._active.size < size:
                # Until it is synced a power cut may bring back what was cut off, before a newer segment.
                self._vouch_to(max(base, self.log_end_offset - 1))
                self._unsynced.add([self._active.path(LOG)])
            for at in snapshots:
                if at > self.log_end_offset:
                    self.files.unlink(snapshot_path(self.directory, at))
            self.producer_table = producers_at(
                self.files, self.directory, self._segments, self.log_end_offset
            )
            self.epochs.truncate_from_end(self.log_end_offset)
            self._write_epochs(force=True)
        if self.log_end_offset < max(self.start_to_save, self.saved_start):
            # The log started inside the batch that went, or was about to. On the disk it must not do so.
            self.local_log_start_offset = min(self.local_log_start_offset, self.log_end_offset)
            self._start_earlier(min(self.log_start_offset, self.log_end_offset))
        self.set_high_watermark(self.high_watermark)

    def truncate_fully(self, start_at: int) -> None:
        self._begin(start_at, log_start=start_at, epochs=EpochCache())

    def begin_at(
        self,
        start: int,
        *,
        log_start: int,
        epochs: Sequence[tuple[int, int]],
        producers: bytes | None,
        done: StartDone = ignore_start,
    ) -> None:
        assert log_start <= start, f"{self}: begin at {start} below the log start {log_start}"
        table = decode_producers(producers)[0] if producers is not None else ProducerTable()
        cache = EpochCache(epochs)
        cache.truncate_from_end(start)
        cache.truncate_from_start(log_start)
        self._begin(start, log_start=log_start, epochs=cache, producers=table)
        done(None)

    def _begin(
        self, start: int, *, log_start: int, epochs: EpochCache, producers: ProducerTable | None = None
    ) -> None:
        """Put an empty segment at `start` in the place of all there is. It appears last: without one the next
        start makes an empty log, which holds nothing of what the other files tell."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        with self._disk():
            snapshots = snapshot_offsets(self.files, self.directory)
            self._vouch_to(0, start_at=log_start)
        self._staged = []
        told = max(self.start_to_save, self.saved_start)
        created_ms = self._segments[-1].created_ms
        is_bare = producers is None and log_start == start
        with self._changing():
            for segment in reversed(self._segments):
                self._remove_now(segment)
            for at in snapshots:  # one that is left would bring its producers into the new log
                self.files.unlink(snapshot_path(self.directory, at))
            self._cut_back_to(start)
            self._refuse_starts_past(log_start, self._was_cut())
            self.log_start_offset, self.local_log_start_offset = log_start, start
            self.tiered_end = min(self.tiered_end, log_start) if is_bare else start
            self.epochs = epochs
            self.producer_table = ProducerTable() if producers is None else producers
            is_saved = self.is_start_named and log_start == self.saved_start
            if log_start < told or not (is_bare or is_saved):
                self._on_cut(True)
            if is_bare:
                self._write_epochs(force=True)
            else:
                self._save_beginning(start)
            self._active = self._create_segment(start, created_ms)
            if not is_bare:
                self.files.fsync_dir(self.directory)
            self._segments[:] = [self._active]
            self._bases[:] = [start]
        self.set_high_watermark(start)
        self.answer_starts()

    def _save_beginning(self, start: int) -> None:
        """Save what an empty segment at `start` does not tell of the log before it."""
        self._anchor()
        self._write_epochs(force=True, is_durable=True)
        write_whole(self.files, snapshot_path(self.directory, start), self.producer_table.encode())

    def restore_epochs(self, entries: Sequence[tuple[int, int]]) -> None:
        if self.offline is not None:
            raise LogOffline(self.offline)
        own = self.epochs.entries()
        known_from = own[0][1] if own else self.log_end_offset
        restored = EpochCache(entry for entry in entries if entry[1] < known_from)
        for epoch, start in own:
            restored.assign(epoch, start_offset=start)
        restored.truncate_from_start(self.log_start_offset)
        self.epochs = restored
        with self._disk():
            self._write_epochs(force=True, is_durable=True)

    def _start_earlier(self, offset: int) -> None:
        """The later start must be off the disk before anything is appended: the broker's next start would
        drop all that is below it."""
        self.log_start_offset = offset
        self._refuse_starts_past(self.log_end_offset, self._was_cut())
        with self._changing():
            self._on_cut(True)

    def _was_cut(self) -> KafkaError:
        return KafkaError(ErrorCode.offset_out_of_range, f"the log was cut to {self.log_end_offset}")

    def _cut_back_to(self, log_end_offset: int) -> None:
        self.log_end_offset = log_end_offset
        self._snapshot_at = UNKNOWN
        self._marks = [at for at in self._marks if at <= log_end_offset]
        self._marked_upto = min(self._marked_upto, log_end_offset)
        self._vouch_to(log_end_offset)
        self._roll_at = UNKNOWN
        self.tiered_end = min(self.tiered_end, log_end_offset)
        self.generation += 1

    def _vouch_to(self, offset: int, *, start_at: int = 0) -> None:
        """What comes after `offset` is to be synced anew, whatever flush is under way, and the log is about
        to start at `start_at` if that is later than now. The disk is told first: a power cut amid the change
        must find that all of it is to be read again. OSError when it cannot be told."""
        self._unsynced.cuts += 1
        before = self.recovery_point, self._start_asked
        is_start = start_at > max(self.log_start_offset, self.saved_start)
        if is_start:
            self._start_asked = start_at
        if self.recovery_point > offset or is_start:
            self.recovery_point = min(self.recovery_point, offset)
            try:
                self._on_cut(is_start)
            except OSError:
                self.recovery_point, self._start_asked = before
                raise

    def _remove_now(self, segment: Segment) -> None:
        """The log first: indexes without a log are orphans, a log without its indexes is still a log."""
        for kind in (LOG, *SEGMENT_SUFFIXES):
            self.files.unlink(segment.path(kind))

    def _delete_segments(self, segments: Sequence[Segment], due_ms: int) -> None:
        """Take segments out of the log, oldest first; their files follow once they are due."""
        count = len(segments)
        gone = list(segments)
        with self._disk():
            snapshots = snapshot_offsets(self.files, self.directory)
        with self._disk():
            for segment in gone:
                self._mark_deleted(segment, due_ms)
            first_kept = self._bases[count]
            for at in snapshots:
                if at < first_kept:
                    self.files.unlink(snapshot_path(self.directory, at))
        del self._segments[:count], self._bases[:count]
        self.deletions += 1

    def _mark_deleted(self, segment: Segment, due_ms: int) -> None:
        for kind in SEGMENT_SUFFIXES:
            path = segment.path(kind)
            if self.files.exists(path):
                self.files.rename(path, path + DELETED)
                self._doomed.append((due_ms, path + DELETED))
        self._doomed.sort()

    # --- compaction ---

    def swap_in(self, cleaned: Segment, replaced: Sequence[Segment], now_ms: int) -> None:
        """Put a synced segment with suffix `.cleaned` in the place of `replaced`. Until the last of its
        files is a `.swap` file a crash undoes the swap; from then on a crash finishes it."""
        at = bisect_right(self._bases, cleaned.base_offset) - 1
        assert self._segments[at : at + len(replaced)] == list(replaced)
        with self._changing():
            cleaned.rename_to(SWAP)
            self.files.fsync_dir(self.directory)
            for segment in replaced[1:]:
                self._mark_deleted(segment, now_ms + self.config.file_delete_delay_ms)
            cleaned.rename_to("")
            self.files.fsync_dir(self.directory)
            for segment in replaced[1:]:
                self.files.unlink(snapshot_path(self.directory, segment.base_offset))
        self._segments[at : at + len(replaced)] = [cleaned]
        self._bases[at : at + len(replaced)] = [cleaned.base_offset]
        self.generation += 1

    # --- durability ---

    def fsync_target(self, *, closed_only: bool = False) -> SegmentFlush | None:
        """`closed_only` leaves the active segment alone: syncing that one stalls appends to it."""
        if self.offline is not None:
            raise LogOffline(self.offline)
        self.flush_staged()
        upto = self._active.base_offset if closed_only else self.log_end_offset
        if self.recovery_point >= upto and not self._unsynced:
            return None
        with self._disk():
            self._write_epochs()
        return self._flush_of(upto, list(self._unsynced.paths))

    def _flush_of(self, upto: int, paths: Sequence[str]) -> SegmentFlush:
        """The segments with bytes between the recovery point and `upto`, the small files, and the
        directory."""
        first = max(0, bisect_right(self._bases, self.recovery_point) - 1)
        behind = [
            segment
            for segment in self._segments[first:]
            if segment.base_offset < upto and self.recovery_point < upto
        ]
        open_files = [segment.file for segment in behind if segment.is_open]
        directory = self.directory if paths or self._unsynced.has_names else None
        paths = [*paths, *(segment.path(LOG) for segment in behind if not segment.is_open)]
        parent = None if self._unsynced.is_anchored else self.log_dir
        return SegmentFlush(
            self.files,
            upto=upto,
            ends_inside=upto > self._active.base_offset,
            cuts=self._unsynced.cuts,
            changes=self._unsynced.changes,
            open_files=open_files,
            paths=paths,
            directory=directory,
            parent=parent,
        )

    def mark_flushed(self, job: FlushJob) -> None:
        assert isinstance(job, SegmentFlush)
        if not self._unsynced.settle(job):
            return
        upto = job.upto
        if job.ends_inside and self._bases[bisect_right(self._bases, upto) - 1] == upto:
            upto -= 1  # the segment was closed there meanwhile, and recovery must look at its indexes
        self.recovery_point = max(self.recovery_point, upto)

    def flush_failed(self, error: OSError) -> KafkaError:
        return self._fail(error)

    def fsync(self) -> None:
        """Sync here and now, if anything is not yet durable."""
        job = self.fsync_target()
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            raise self.flush_failed(error) from error
        self.mark_flushed(job)

    def _epochs_changed(self) -> None:
        self._epochs_dirty = True

    def save_epochs(self) -> None:
        """Epochs with data are in the batches as well, so their file may lag; the owner calls this now and
        then."""
        if self._epochs_dirty and self.offline is None:
            with self._disk():
                self._write_epochs()

    def _write_epochs(self, *, force: bool = False, is_durable: bool = False) -> None:
        """An epoch without records is not kept: the next start drops it, and each start begins one."""
        if self._epochs_dirty or force:
            kept = [entry for entry in self.epochs.entries() if entry[1] < self.log_end_offset]
            if force or kept != self._epochs_written:
                data = EpochCache(kept).encode()
                if is_durable:
                    write_whole(self.files, join(self.directory, EPOCHS), data)
                else:
                    self._write_small(EPOCHS, data)
                self._epochs_written = kept
            self._epochs_dirty = len(kept) < len(self.epochs.entries())

    def _write_small(self, name: str, data: bytes) -> None:
        path = join(self.directory, name)
        write_replacing(self.files, path, data)
        self._unsynced.add([path])

    def _save_snapshot(self, offset: int, mark: SegmentMark | None = None) -> None:
        """Write a snapshot of the producers at the end of the log, or soon if there are many."""
        note = b"" if mark is None else mark.encode()
        table = self.producer_table
        if table.count <= PRODUCERS_AT_ONCE:
            self._write_snapshot(offset, table.encode(note))
        else:
            self._frozen = [
                *self._frozen[1 - FROZEN_MAX :],
                FrozenProducers(offset, table, table.freeze(), note),
            ]

    def _write_snapshot(self, offset: int, data: bytes) -> None:
        write_replacing(self.files, snapshot_path(self.directory, offset), data)
        self._snapshot_at = offset
        self._unsynced.add([snapshot_path(self.directory, offset)])

    @property
    def frozen(self) -> FrozenProducers | None:
        """The oldest snapshot that is still to be written."""
        return self._frozen[0] if self._frozen else None

    def write_frozen(self, frozen: FrozenProducers, data: bytes) -> None:
        """Write a snapshot, unless the log was cut since. A recovery before that begins with an older one."""
        if frozen not in self._frozen or self.offline is not None:
            return
        self._frozen.remove(frozen)
        if frozen.table is self.producer_table:
            with self._disk():
                self._write_snapshot(frozen.offset, data)

    @property
    def wants_mark(self) -> bool:
        """Whether syncs have reached into the active segment since the last mark: a recovery would read
        again what they vouch for."""
        return self.offline is None and self.recovery_point > max(self._active.base_offset, self._marked_upto)

    def mark(self) -> None:
        """Note the indexes and producers as of the log's end: once the recovery point is there, a recovery
        begins there."""
        self.flush_staged()
        with self._disk():
            self._active.settle()
            self._save_snapshot(self.log_end_offset, self._active.mark())
            self._unsynced.add(self._active.path(kind) for kind in (OFFSET_INDEX, TIME_INDEX))
            for at in self._marks[: 1 - MARKS_KEPT]:
                if at not in self._bases:
                    self.files.unlink(snapshot_path(self.directory, at))
        self._marks = [*self._marks[1 - MARKS_KEPT :], self.log_end_offset]
        self._marked_upto = self.log_end_offset

    def closing(self) -> SegmentFlush | None:
        """A clean stop up to its syncs: everything is written, and the job syncs what the next start could
        not tell to be damaged and rebuild (snapshots and the indexes of the active segment it can, if their
        names are not those of older ones): a file and a directory for a log that did nothing but grow. Then
        `closed`. A log that is offline is left as it is."""
        if self.offline is not None:
            return None
        self.flush_staged()
        self._frozen.clear()
        with self._disk():
            for segment in self._segments[:-1]:
                segment.seal()
            self._active.settle()
            self._write_epochs()
            if self._snapshot_at != self.log_end_offset and self._needs_snapshot():
                note = self._active.mark().encode() if self._active.size else b""
                self._write_snapshot(self.log_end_offset, self.producer_table.encode(note))
        was_cut = self._active.path(LOG) in self._unsynced.paths
        if self.recovery_point == self.log_end_offset and not self._unsynced.has_names and not was_cut:
            return None
        lasting = [path for path in self._unsynced.paths if not path.endswith(SNAPSHOT)]
        return self._flush_of(self.log_end_offset, lasting)

    def _needs_snapshot(self) -> bool:
        """Return whether a snapshot saves the next start anything: a small segment without producers is read
        whole after a kill."""
        if self.producer_table.count:
            return self.log_end_offset > self._bases[0]
        return not self._active.is_small

    def closed(self, job: SegmentFlush | None) -> None:
        """Finish what `closing` and its job began."""
        if job is not None:
            self.mark_flushed(job)
        for segment in self._segments:
            segment.close()

    def close(self) -> None:
        """A clean stop here and now."""
        job = self.closing()
        if job is not None:
            with self._disk():
                job.run()
        self.closed(job)

    def _anchor(self) -> None:
        """Have the name of this log's directory on the disk."""
        if not self._unsynced.is_anchored:
            self.files.fsync_dir(self.log_dir)
            self.anchored()

    def anchored(self) -> None:
        """The owner synced the name of this log's directory."""
        self._unsynced.is_anchored = True

    def clean_state(self) -> CleanState:
        """What the next start may take as read, after `close`."""
        return CleanState(
            topic_id=self._topic_id,
            segments=[(segment.base_offset, segment.size) for segment in self._segments],
            log_end_offset=self.log_end_offset,
            mtime_ms=self.files.mtime_ms(self._active.path(LOG)),
            newest_timestamp=self._active.largest_timestamp,
            epochs=self.epochs.entries(),
            has_producers=bool(self.producer_table.count),
        )

    def release_idle(self) -> None:
        """Close files and drop indexes of segments nobody read since the last call."""
        for segment in self._segments:
            if segment is not self._active or not self._staged:
                segment.release()
        self._append_may_open()

    def release_files(self) -> None:
        """Close every file that nobody is at work with."""
        for segment in self._segments:
            if segment is not self._active or not self._staged:
                segment.close()
        self._append_may_open()

    def _append_may_open(self) -> None:
        """What is staged must find its file open: the next append goes the long way, which opens it."""
        if not self._active.is_open:
            self._roll_at = UNKNOWN

    def take_offline(self, reason: str) -> None:
        if self.offline is None:
            super().take_offline(reason)
            self._refuse_starts_past(-1, LogOffline(reason))
