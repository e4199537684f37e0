"""The segments of one log on local disk, as they are read and copied to the tier.

Owns: the list of segments, reading, look-ups, what a closed segment is to the tier (its bytes, indexes,
epochs and producers), the end of a log whose disk failed. Does not own: everything that changes the log
(UnifiedLog), the copies (remote/cold). Invariant: nothing here changes what the log holds, and `generation`
or `shape` tells whoever works in slices that another did. The first OSError ends the log for good
(`offline`), because what the disk then holds is unknown; only a lack of descriptors does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from os.path import basename, dirname

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import parse_header
from storage.files import Files, is_scarcity
from storage.loader import Loaded, replaying_producers
from storage.log import (
    PRODUCER_EXPIRATION_MS,
    AbstractLog,
    ClosedSegment,
    HeldFile,
    HeldSegment,
    LogOffline,
    LogSlice,
    LogStats,
    NoDescriptor,
    ReadCursor,
    TieredOffset,
)
from storage.policy import LogConfig
from storage.producers import ProducerTable
from storage.segment import Segment
from storage.times import Finding, record_at_time


class SegmentedLog(AbstractLog):
    __slots__ = (
        "_bases",
        "_on_failure",
        "_segments",
        "_staged",
        "deletions",
        "directory",
        "dropped_bytes",
        "files",
        "log_dir",
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
        on_failure: Callable[[OSError], None],
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.files = files
        self.directory = directory
        self.log_dir = dirname(directory)
        self._on_failure = on_failure
        self._staged: list[memoryview] = []
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self.deletions = 0
        """How often closed segments were deleted from the front."""
        super().__init__(
            topic=topic,
            topic_id=loaded.topic_id,
            partition=partition,
            config=config,
            producer_expiration_ms=producer_expiration_ms,
        )
        self.epochs = loaded.epochs
        self.producer_table = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.local_log_start_offset = loaded.local_log_start_offset
        self.high_watermark = self.last_stable_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.dropped_bytes = loaded.dropped_bytes
        self.may_lack_end = not loaded.is_noted

    # --- read ---

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    def read(
        self, offset: int, max_bytes: int, *, bound: int, min_one: bool, position: int | None = None
    ) -> LogSlice | None:
        if self.offline is not None:
            raise LogOffline(self.offline)
        if not self.local_log_start_offset <= offset <= self.log_end_offset:
            raise self._outside(offset)
        if self._staged:
            self.flush_staged()
        bases = self._bases
        at = max(0, bisect_right(bases, offset) - 1)
        while offset < bound and at < len(bases):
            end = bases[at + 1] if at + 1 < len(bases) else self.log_end_offset
            try:
                found = self._segments[at].read(
                    offset, max_bytes, bound=bound, end_offset=end, min_one=min_one, at=position
                )
            except (OSError, CorruptBatch) as error:
                raise self._unreadable(error) from error
            if found is None or found.size > 0:
                return found
            at += 1
            offset = max(offset, end)
            position = None
        return None

    def read_on(
        self, offset: int, max_bytes: int, *, bound: int, cursor: ReadCursor | None
    ) -> tuple[LogSlice | None, ReadCursor | None]:
        position: int | None = None
        if cursor is not None and cursor.offset == offset and cursor.generation == self.generation:
            at = bisect_right(self._bases, offset) - 1
            if at >= 0 and self._bases[at] == cursor.base_offset:
                position = cursor.position
        found = self.read(offset, max_bytes, bound=bound, min_one=True, position=position)
        if found is None:
            return None, cursor
        stop = found.next_offset
        base_offset = self._bases[max(0, bisect_right(self._bases, stop) - 1)]
        position = 0 if base_offset == stop else found.position + found.size
        return found, ReadCursor(stop, self.generation, base_offset, position)

    def _outside(self, offset: int) -> KafkaError:
        if self.log_start_offset <= offset < self.local_log_start_offset:
            return TieredOffset(f"offset {offset} is below the local start {self.local_log_start_offset}")
        return KafkaError(
            ErrorCode.offset_out_of_range,
            f"offset {offset} is outside [{self.log_start_offset}, {self.log_end_offset}]",
        )

    def finding_timestamp(self, timestamp: int, bound: int) -> Finding:
        start = self.local_log_start_offset
        while (batch := self._batch_at_time(timestamp, start, bound)) is not None:
            found = yield from record_at_time(batch, timestamp, start)
            if found is not None:
                return found if found[1] < bound else None
            start = parse_header(batch).next_offset
        return None

    def _batch_at_time(self, timestamp: int, start: int, bound: int) -> bytes | None:
        self.flush_staged()
        with self._reading():
            for segment in self._local_segments():
                if segment.base_offset >= bound:
                    break
                batch = segment.batch_at_time(timestamp, start)
                if batch is not None:
                    return batch
        return None

    def finding_max_timestamp(self) -> Finding:
        self.flush_staged()
        with self._reading():
            segments = [segment for segment in self._local_segments() if segment.size]
            if not segments:
                return None
            batch = max(segments, key=lambda segment: segment.largest_timestamp).newest_batch()
        if batch is None:
            return None
        header = parse_header(batch)
        return (yield from record_at_time(batch, header.max_timestamp, header.base_offset))

    def aborted_in(self, start: int, end: int) -> list[tuple[int, int]]:
        found = []
        first = max(0, bisect_right(self._bases, start) - 1)
        with self._reading():
            for segment in self._segments[first:]:
                for txn in segment.aborted:
                    if txn.last_offset >= start and txn.first_offset < end:
                        found.append((txn.producer_id, txn.first_offset))
                    if txn.last_stable_offset >= end:
                        return found
        return found

    def end_of(self, segment: Segment) -> int:
        """Return the offset at which the next segment begins."""
        at = bisect_right(self._bases, segment.base_offset)
        return self._bases[at] if at < len(self._bases) else self.log_end_offset

    def _local_segments(self) -> list[Segment]:
        return self._segments[max(0, bisect_right(self._bases, self.local_log_start_offset) - 1) :]

    @property
    def shape(self) -> tuple[int, int]:
        """Changes with every change of closed segments, and of the end other than by appends: for callers
        that work in slices."""
        return self.generation, self.deletions

    # --- copies of closed segments ---

    def closed_segments(self, start: int, end: int) -> list[ClosedSegment]:
        first = max(0, bisect_right(self._bases, start) - 1)
        last = min(bisect_right(self._bases, end), len(self._bases)) - 1
        with self._reading():
            return [self._described(at) for at in range(first, last)]

    def _described(self, at: int) -> ClosedSegment:
        segment = self._segments[at]
        return ClosedSegment(
            base_offset=segment.base_offset,
            end_offset=self._bases[at + 1],
            size=segment.size,
            max_timestamp=segment.largest_timestamp,
            has_aborted=bool(segment.aborted),
        )

    @contextmanager
    def open_segment(self, base_offset: int) -> Iterator[HeldSegment]:
        if self.offline is not None:
            raise LogOffline(self.offline)
        at = bisect_right(self._bases, base_offset) - 1
        if at < 0 or at + 1 >= len(self._bases) or self._bases[at] != base_offset:
            raise KafkaError(ErrorCode.offset_out_of_range, f"{self} has no closed segment at {base_offset}")
        segment = self._segments[at]
        with self._reading():
            segment.seal()  # one whose indexes were rebuilt is not
            described = self._described(at)
            held = HeldSegment(
                segment=described,
                file=HeldFile(segment.file),
                offset_index=segment.offsets.encode(),
                time_index=segment.times.encode(),
                txn_index=b"".join(txn.encode() for txn in segment.aborted),
                epochs=self.epochs.entries_within(base_offset, described.end_offset),
                epochs_until_end=self.epochs.entries_until(described.end_offset),
            )
        try:
            yield held
        finally:
            held.file.let_go()

    def producers_until(self, end: int) -> Generator[None, None, bytes]:
        if self.offline is not None:
            raise LogOffline(self.offline)
        if end not in self._bases:
            raise KafkaError(ErrorCode.offset_out_of_range, f"{self} has no segment at {end}")
        shape = self.shape
        with self._reading():
            steps = replaying_producers(self.files, self.directory, self._segments, end)
        while True:
            with self._reading():
                try:
                    next(steps)
                except StopIteration as found:
                    table: ProducerTable = found.value
                    return table.encode()
            yield
            if self.offline is not None:
                raise LogOffline(self.offline)
            if self.shape != shape:
                raise KafkaError(ErrorCode.offset_out_of_range, f"{self} changed while it was read")

    def size_from(self, offset: int) -> int:
        if offset >= self.log_end_offset:
            return 0
        first = max(0, bisect_right(self._bases, offset) - 1)
        return sum(segment.size for segment in self._segments[first:])

    def statistics(self) -> LogStats:
        return LogStats(
            segments=len(self._segments),
            size=self.size,
            log_start_offset=self.log_start_offset,
            local_log_start_offset=self.local_log_start_offset,
            last_stable_offset=self.last_stable_offset,
            high_watermark=self.high_watermark,
            log_end_offset=self.log_end_offset,
            recovery_point=self.recovery_point,
            producers=self.producer_table.count,
            open_transactions=len(self.producer_table.ongoing),
            is_offline=self.offline is not None,
        )

    def moved_to(self, directory: str) -> None:
        """The directory was renamed (a deleted topic): open files stay readable."""
        self.directory = directory
        self.generation += 1
        for segment in self._segments:
            segment.directory = directory

    # --- failure ---

    def take_offline(self, reason: str) -> None:
        """Nothing more is read from or written to this log."""
        if self.offline is None:
            self.offline = reason
            self._staged = []
            self.generation += 1

    def forget(self) -> None:
        """Let go of all that this log holds: it was taken away, and a producer's connection may keep it for
        weeks, and shall not keep its files and what it remembered. Slices being sent keep their file."""
        assert self.offline is not None, f"{self} is in use"
        for segment in self._segments:
            segment.forget()
        self.producer_table = ProducerTable()

    def _fail(self, error: OSError, *, is_halfway: bool = False) -> KafkaError:
        if self.offline is not None:  # a deleted log, or a directory already given up
            return LogOffline(self.offline)
        reason = f"{basename(self.directory)}: {error}"
        if is_scarcity(error) and not is_halfway:
            return NoDescriptor(reason)
        self.take_offline(reason)
        self._on_failure(error)
        return LogOffline(reason)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail(error) from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is done by half is neither the old log nor the new one, until the next start finds out which:
        a lack of descriptors ends the log here too."""
        try:
            yield
        except OSError as error:
            raise self._fail(error, is_halfway=True) from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, CorruptBatch) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError | CorruptBatch) -> KafkaError:
        if isinstance(error, OSError):
            return self._fail(error)
        return KafkaError(ErrorCode.corrupt_message, f"{self.topic}-{self.partition}: {error}")
