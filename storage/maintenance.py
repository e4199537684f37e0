"""What all logs of a broker need done now and then: syncs, retention, deletion of files, checkpoints.

Owns: what is due when, the directories and files that wait for their deletion, which logs are being synced.
Does not own: the logs and their directories (log_manager), what a log deletes or syncs (UnifiedLog), how a
checkpoint is written (checkpoints), compaction (cleaner). Invariant: at most one sync of a log is under way
from here, and nothing that takes the disk long runs on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import dirname

from protocol.errors import KafkaError
from storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    Background,
    Checkpoints,
    TopicPartition,
)
from storage.files import Files, is_scarcity
from storage.flush import SegmentFlush
from storage.producers import encode_producers
from storage.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
"""Ends the name of a log's directory that is to be removed."""
ALL_PRODUCERS_MAX = 500_000
"""Producer ids that all logs together remember, at most 140 MB but for those that are heard of now."""
ALL_VERIFICATIONS_MAX = 50_000
"""Questions about transactions that all logs together remember, about 12 MB."""
BOUND_PRODUCERS_MS = 5_000
FORGOTTEN_PER_SLICE = 256
LOGS_PER_SLICE = 512
"""A look at one that rests takes a fraction of a microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often each kind of maintenance is due; Kafka's defaults."""

    retention_ms: int = 300_000
    """`log.retention.check.interval.ms`"""
    recovery_points_ms: int = 60_000
    """`log.flush.offset.checkpoint.interval.ms`"""
    log_starts_ms: int = 60_000
    """`log.flush.start.offset.checkpoint.interval.ms`"""
    high_watermarks_ms: int = 5_000
    """`replica.high.watermark.checkpoint.interval.ms`"""
    producers_ms: int = 600_000
    """`producer.id.expiration.check.interval.ms`"""
    initial_delay_ms: int = 30_000
    """`log.initial.task.delay.ms`"""
    idle_ms: int = 60_000


class Maintenance:
    """The rounds of maintenance. `logs`, `offline_dirs` and `checkpoints` are the owner's, which changes
    them."""

    def __init__(
        self,
        *,
        files: Files,
        intervals: Intervals,
        now_ms: Callable[[], int],
        background: Background,
        logs: Mapping[TopicPartition, UnifiedLog],
        offline_dirs: Mapping[str, str],
        checkpoints: Mapping[str, Checkpoints],
        on_failure: Callable[[str, OSError], None],
    ) -> None:
        self._files = files
        self._intervals = intervals
        self._now_ms = now_ms
        self._background = background
        self._logs = logs
        self._offline_dirs = offline_dirs
        self._checkpoints = checkpoints
        self._on_failure = on_failure
        self._doomed: list[tuple[int, str]] = []
        """When each directory is due, and its path."""
        self._flushing: set[TopicPartition] = set()
        self._due: dict[str, int] = {}
        self._marking = False
        """The next round writes recovery points again."""

    def __repr__(self) -> str:
        return f"Maintenance({len(self._doomed)} to be deleted, {len(self._flushing)} being synced)"

    @property
    def to_be_deleted(self) -> int:
        """The number of directories that wait for their deletion."""
        return len(self._doomed)

    def delete_later(self, directory: str, due_ms: int) -> None:
        """Remove a directory that was renamed to end in `DELETE_SUFFIX`, once it is due."""
        self._doomed.append((due_ms, directory))

    def run_due(self, now_ms: int) -> Iterator[None]:
        """Do, in slices, whatever is due by now."""
        restless: list[tuple[TopicPartition, UnifiedLog]] = []
        yield from self._find_restless(now_ms, restless)
        yield from self._write_snapshots(restless)
        yield from self._flush_due(now_ms, restless)
        yield from self._remove_deleted(now_ms, restless)
        if self._is_due("retention", self._intervals.retention_ms, now_ms, self._intervals.initial_delay_ms):
            for log in list(self._logs.values()):
                try:
                    while log.expire(now_ms):
                        yield
                except KafkaError as error:
                    logger.warning("retention of %s-%d stopped: %s", log.topic, log.partition, error)
                yield
        if self._is_due("producers", self._intervals.producers_ms, now_ms):
            for log in list(self._logs.values()):
                if log.producer_table.count:
                    yield from log.expire_producers(now_ms)
                    yield
        if self._is_due("idle", self._intervals.idle_ms, now_ms):
            for log in list(self._logs.values()):
                log.release_idle()
                yield
        yield from self._checkpoint_due(now_ms)

    def _find_restless(self, now_ms: int, found: list[tuple[TopicPartition, UnifiedLog]]) -> Iterator[None]:
        """Add the logs of which a round has to take care: the others cost it one look."""
        for at, (key, log) in enumerate(list(self._logs.items()), 1):
            if log.is_restless(now_ms):
                found.append((key, log))
            if at % LOGS_PER_SLICE == 0:
                yield

    def _is_due(self, what: str, interval_ms: int, now_ms: int, first_after_ms: int | None = None) -> bool:
        due = self._due.setdefault(what, now_ms + (interval_ms if first_after_ms is None else first_after_ms))
        if now_ms < due:
            return False
        self._due[what] = now_ms + interval_ms
        return True

    def _write_snapshots(self, restless: Sequence[tuple[TopicPartition, UnifiedLog]]) -> Iterator[None]:
        for key, log in restless:
            while (frozen := log.frozen) is not None and log.offline is None:
                data = yield from encode_producers(frozen.rows, frozen.note)
                if self._logs.get(key) is not log:
                    break
                try:
                    log.write_frozen(frozen, data)
                except KafkaError:
                    break
                yield

    def _bound_producers(self) -> Iterator[None]:
        """Have producers packed that are silent; and the logs with the most of them, or of questions, forget
        some while all logs together know too many."""
        tables = []
        for at, log in enumerate(list(self._logs.values()), 1):
            if log.producer_table.count or log.producer_table.verifications:
                tables.append(log.producer_table)
                yield from log.producer_table.pack_silent()
            if at % LOGS_PER_SLICE == 0:
                yield
        excess = sum(table.count for table in tables) - ALL_PRODUCERS_MAX
        while excess > 0:
            largest = max(tables, key=lambda table: table.count)
            largest.forget_silent(min(excess, FORGOTTEN_PER_SLICE))
            excess -= FORGOTTEN_PER_SLICE
            yield
        excess = sum(len(table.verifications) for table in tables) - ALL_VERIFICATIONS_MAX
        while excess > 0:
            largest = max(tables, key=lambda table: len(table.verifications))
            largest.forget_questions(min(excess, FORGOTTEN_PER_SLICE))
            excess -= FORGOTTEN_PER_SLICE
            yield

    def _flush_due(
        self, now_ms: int, restless: Sequence[tuple[TopicPartition, UnifiedLog]]
    ) -> Iterator[None]:
        for key, log in restless:
            if log.offline is not None or key in self._flushing:
                continue
            is_late = (
                log.recovery_point < log.log_end_offset and now_ms - log.flushed_at_ms >= log.config.flush_ms
            )
            if is_late or log.recovery_point < log.segments[-1].base_offset:
                self._flush(key, log, now_ms, closed_only=not is_late)
                yield

    def _flush(
        self, key: TopicPartition, log: UnifiedLog, now_ms: int, *, closed_only: bool, marked: bool = False
    ) -> None:
        log.flushed_at_ms = now_ms
        try:
            if marked:
                log.mark()
            job = log.fsync_target(closed_only=closed_only)
        except KafkaError:
            return
        if job is None:
            return
        self._flushing.add(key)
        self._background(job.run, lambda error: self._flushed(key, log, job, error))

    def _flushed(
        self, key: TopicPartition, log: UnifiedLog, job: SegmentFlush, error: OSError | None
    ) -> None:
        self._flushing.discard(key)
        if error is None:
            log.mark_flushed(job)
        elif log.offline is None:
            log.flush_failed(error)

    def _remove_deleted(
        self, now_ms: int, restless: Sequence[tuple[TopicPartition, UnifiedLog]]
    ) -> Iterator[None]:
        """Remove due files in the background: a disk takes tens of milliseconds to give up a file of 1 GB."""
        due: dict[str, list[str]] = {}
        for _, log in restless:
            if log.has_deleted_files and log.offline is None:
                due.setdefault(log.log_dir, []).extend(log.take_due_files(now_ms))
        for when, path in self._doomed:
            if when <= now_ms:
                due.setdefault(dirname(path), []).append(path)
        self._doomed = [(when, path) for when, path in self._doomed if when > now_ms]
        for log_dir, paths in due.items():
            if paths and log_dir not in self._offline_dirs:
                self._background(partial(self._remove, paths), partial(self._removed, log_dir))
                yield

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path.endswith(DELETE_SUFFIX):
                self._files.rmtree(path)
            else:
                self._files.unlink(path)

    def _removed(self, log_dir: str, error: OSError | None) -> None:
        if error is not None and not is_scarcity(error):  # then the next start removes them
            self._on_failure(log_dir, error)

    def _checkpoint_due(self, now_ms: int) -> Iterator[None]:
        restless: list[tuple[TopicPartition, UnifiedLog]] = []
        yield from self._find_restless(now_ms, restless)  # retention has moved starts since the last look
        starts_moved = False
        for _, log in restless:
            log.answer_starts()
            starts_moved = starts_moved or log.start_to_save != log.saved_start
        if self._is_due("recovery points", self._intervals.recovery_points_ms, now_ms):
            for key, log in list(self._logs.items()):
                try:
                    log.save_epochs()
                except KafkaError:
                    continue
                if log.wants_mark and key not in self._flushing:
                    self._flush(key, log, now_ms, closed_only=False, marked=True)
                    self._marking = True
                yield
            self.checkpoint(RECOVERY_POINTS)
            yield
        elif self._marking:
            self._marking = False
            self.checkpoint(RECOVERY_POINTS)
            yield
        if self._is_due("log starts", self._intervals.log_starts_ms, now_ms) or starts_moved:
            self.checkpoint(LOG_STARTS)
            yield
        if self._is_due("bound of producers", BOUND_PRODUCERS_MS, now_ms):
            yield from self._bound_producers()
        if self._is_due("high watermarks", self._intervals.high_watermarks_ms, now_ms):
            self.checkpoint(HIGH_WATERMARKS)

    def settle_closed(self, log: UnifiedLog) -> int:
        """Sync closed segments before compaction makes gaps in them, and have the recovery point on disk say
        so: past that point recovery takes a gap between segments for a tail that was lost with the power.
        Return the segment boundary up to which that holds by now; the rest is set on its way, so that the
        next round finds more even if segments close faster than rounds come."""
        key, end = (log.topic, log.partition), log.segments[-1].base_offset
        settled = self._recovery_point_on_disk(log)
        if log.recovery_point < end and key not in self._flushing:
            self._flush(key, log, self._now_ms(), closed_only=True)
        if settled < min(end, log.recovery_point):
            self._checkpoints[log.log_dir].write(RECOVERY_POINTS)
        settled = max(settled, self._recovery_point_on_disk(log))
        if log.offline is not None:
            return 0
        return max(
            (segment.base_offset for segment in log.segments if segment.base_offset <= settled), default=0
        )

    def _recovery_point_on_disk(self, log: UnifiedLog) -> int:
        """Return 0 while a checkpoint is being written: it is unknown then which one is there."""
        points = self._checkpoints[log.log_dir].on_disk(RECOVERY_POINTS)
        return 0 if points is None else points.get((log.topic, log.partition), 0)

    def checkpoint(self, name: str) -> None:
        """Write a checkpoint of every directory in which it changed."""
        for checkpoints in self._checkpoints.values():
            checkpoints.write(name)
