"""All logs of this broker over one or several log directories.

Owns: the directory locks, opening and creating and deleting logs, when maintenance runs. Does not own: what a
log holds, which broker leads it, the small files (checkpoints, clean_stop), `meta.properties`. Invariant: a
log is in exactly one directory; a directory whose disk failed is never used again by this process, and the
others go on.

After a failed sync the kernel takes the pages it could not write for written: they are read until the power
goes, and never synced again. A directory whose disk failed gets the mark `.disk_failed` for the next start,
which writes what it recovers there once more. The mark needs no sync: it goes where those pages go.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import basename, dirname, join
from typing import TypeVar
from uuid import UUID

from protocol.errors import ErrorCode, KafkaError
from storage.checkpoints import (
    CHECKPOINTS,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    Background,
    Checkpoints,
    Done,
    TopicPartition,
    decode_points,
    encode_recovery_points,
    run_inline,
)
from storage.clean_stop import decode_notes, encode_notes, put_marker, take_marker
from storage.cleaner import CleanerSettings, clean_logs
from storage.files import File, Files, is_scarcity, make_directory, write_whole
from storage.flush import SegmentFlush
from storage.loader import CleanState, read_topic_id
from storage.log import PRODUCER_EXPIRATION_MS
from storage.policy import LogConfig
from storage.segment import LOG
from storage.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

LOCK = ".lock"
DISK_FAILED = ".disk_failed"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_MAX = 255
LOGS_PER_SLICE = 256
LOADED_PER_SLICE = 16

T = TypeVar("T")

ConfigOf = Callable[[str], LogConfig]
IdOf = Callable[[str], UUID | None]


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


class LogDirError(Exception):
    """A log directory that cannot be used: one line for the person who starts the broker."""


class LogDirLocked(LogDirError):
    pass


class LogManager:
    def __init__(
        self,
        *,
        files: Files,
        dirs: Sequence[str],
        now_ms: Callable[[], int],
        random: random.Random,
        defaults: LogConfig,
        on_dir_failure: Callable[[str, OSError], None],
        background: Background = run_inline,
        intervals: Intervals | None = None,
        cleaner: CleanerSettings | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.files = files
        self.dirs = list(dirs)
        self.defaults = defaults
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.offline_dirs: dict[str, str] = {}
        """Why each directory that failed did."""
        self.intervals = intervals or Intervals()
        self.cleaner = cleaner or CleanerSettings()
        self.producer_expiration_ms = producer_expiration_ms
        self._now_ms = now_ms
        self._random = random
        self._on_dir_failure = on_dir_failure
        self._background = background
        self._failure_of = {path: partial(self._dir_failed, path) for path in dirs}
        self._cut_of = {path: partial(self._cut, path) for path in dirs}
        self._start_of = {path: partial(self._save_starts, path) for path in dirs}
        self._locks: list[File] = []
        self._checkpoints: dict[str, Checkpoints] = {}
        """The checkpoints of each directory that was locked and read."""
        self._markers: dict[str, bytes] = {}
        """The markers of directories that a clean stop left, while they are loaded."""
        self._notes: dict[str, dict[str, CleanState]] = {}
        """What these markers say of each log."""
        self._is_loaded = False
        self._closed: dict[TopicPartition, int] = {}
        """The end of each log that `closing` has closed."""
        self._vouched: set[str] = set()
        """Directories whose recovery points are our own."""
        self._doubted: set[str] = set()
        """Directories whose disk failed an earlier process."""
        self._doomed: list[tuple[int, str]] = []
        """When each directory is due, and its path."""
        self._renamed: set[str] = set()
        """Directories in which logs were set aside since their last sync."""
        self._flushing: set[TopicPartition] = set()
        self._due: dict[str, int] = {}
        self.cleaned_upto: dict[TopicPartition, int] = {}
        self.uncleanable: set[TopicPartition] = set()
        self._marking = False
        """The next round writes recovery points again."""
        self._is_cutting = False

    def __repr__(self) -> str:
        return f"LogManager({self.dirs}, {len(self.logs)} logs, offline {list(self.offline_dirs)})"

    @property
    def to_be_deleted(self) -> int:
        """Logs taken away whose files wait for `file.delete.delay.ms`."""
        return len(self._doomed)

    # --- start ---

    def lock_and_open(self) -> None:
        """Take the directories for this process and read their checkpoints. LogDirLocked when another has
        one; LogDirError when none is usable."""
        for path in self.dirs:
            try:
                make_directory(self.files, path)
                self._locks.append(self.files.lock(join(path, LOCK)))
                self._checkpoints[path] = self._checkpoints_of(path)
                if self.files.exists(join(path, DISK_FAILED)):
                    self._doubted.add(path)
                if self._has_own_recovery_points(path):
                    self._vouched.add(path)
            except BlockingIOError:
                self.close(clean=False)
                raise LogDirLocked(
                    f"{path} is in use by another process (its {LOCK} file is locked): "
                    "stop that broker or give this one another data directory"
                ) from None
            except OSError as error:
                self._dir_failed(path, error)
        if len(self.offline_dirs) == len(self.dirs):
            reasons = "; ".join(f"{path}: {why}" for path, why in self.offline_dirs.items())
            raise LogDirError(f"no log directory is usable: {reasons}")

    def _checkpoints_of(self, path: str) -> Checkpoints:
        def logs() -> Iterator[tuple[TopicPartition, UnifiedLog]]:
            return ((key, log) for key, log in self.logs.items() if log.log_dir == path)

        return Checkpoints(
            self.files,
            path,
            collect={
                RECOVERY_POINTS: lambda: {key: log.recovery_point for key, log in logs()},
                LOG_STARTS: lambda: {key: log.start_to_save for key, log in logs() if log.start_to_save},
                HIGH_WATERMARKS: lambda: {key: log.high_watermark for key, log in logs()},
                CLEANER_POINTS: lambda: {
                    key: self.cleaned_upto[key] for key, _ in logs() if key in self.cleaned_upto
                },
            },
            background=self.run_in_background,
            on_failure=self._failure_of[path],
            on_written=lambda name: self._starts_saved(path) if name == LOG_STARTS else None,
        )

    def _take_notes(self, path: str) -> None:
        text = take_marker(self.files, path)
        if text is not None:
            self._markers[path] = text
            self._notes[path] = decode_notes(text)

    def _has_own_recovery_points(self, path: str) -> bool:
        """Whether the recovery points there are ours, neither Kafka's nor lost nor damaged: only beside
        ours a gap between segments tells something. A directory without logs gets its first, so that from
        then on a missing file is a lost one."""
        file = join(path, RECOVERY_POINTS)
        if not self.files.exists(file):
            if any(parse_directory_name(name) for name in self.files.listdir(path)):
                return False
            write_whole(self.files, file, encode_recovery_points({}))
        data = self.files.read(file)
        try:
            return encode_recovery_points(decode_points(data)) == data
        except ValueError:
            return False

    def load(self, config_of: ConfigOf | None = None, id_of: IdOf | None = None) -> None:
        """`loading` in one go."""
        for _ in self.loading(config_of, id_of):
            pass

    def loading(self, config_of: ConfigOf | None = None, id_of: IdOf | None = None) -> Iterator[None]:
        """Open every log, in slices; `config_of` a topic, by default the defaults, and the `id_of` it by now.
        After an unclean stop each log is recovered from its recovery point. Who gives up between two slices
        calls `close`."""
        for path in self.dirs:
            if path in self.offline_dirs:
                continue
            try:
                self._take_notes(path)
                for at, name in enumerate(self.files.listdir(path), 1):
                    yield from self._load_directory(path, name, config_of, id_of)
                    if at % LOADED_PER_SLICE == 0:
                        yield
                if self._lost_vouched(path):
                    self._checkpoints[path].write_now(RECOVERY_POINTS)
                if path in self._doubted and path not in self.offline_dirs:
                    self.files.unlink(join(path, DISK_FAILED))
            except OSError as error:
                self._dir_failed(path, error)
            if path not in self._vouched:
                yield from self._settle_all(path)
        self._markers.clear()
        self._notes.clear()
        self._is_loaded = True

    def _lost_vouched(self, path: str) -> bool:
        """Whether a log ends before its recovery point, which would vouch for what takes its place."""
        points = self._checkpoints[path].points(RECOVERY_POINTS)
        return any(
            log.log_dir == path and log.recovery_point < points.get(key, 0) for key, log in self.logs.items()
        )

    def _settle_all(self, path: str) -> Iterator[None]:
        """Logs whose recovery points were not ours may have been compacted past them: before ours appear,
        which deny that, everything is synced."""
        for log in list(self.logs.values()):
            if log.log_dir == path and log.offline is None:
                try:
                    log.fsync()
                except KafkaError:
                    return  # the directory is offline now
                yield
        self._checkpoints[path].write(RECOVERY_POINTS, run_inline)

    def _load_directory(
        self, path: str, name: str, config_of: ConfigOf | None, id_of: IdOf | None
    ) -> Iterator[None]:
        if name.endswith(DELETE_SUFFIX):
            self._doomed.append((self._now_ms(), join(path, name)))
            return
        key = parse_directory_name(name)
        if key is None:
            return
        twin = self.logs.get(key)
        if twin is not None and self._gives_way(join(path, name), twin, id_of):
            self.files.rename(join(path, name), self._name_aside(path, *key, STRAY_SUFFIX))
            return
        if twin is not None:
            self.stray(*key)
        notes = self._notes.get(path)
        points = self._checkpoints[path].points
        log = yield from UnifiedLog.opening(
            self.files,
            join(path, name),
            config=config_of(key[0]) if config_of else self.defaults,
            topic=key[0],
            partition=key[1],
            now_ms=self._now_ms(),
            jitter=self._random.randrange,
            on_failure=self._failure_of[path],
            on_cut=self._cut_of[path],
            on_start=self._start_of[path],
            is_clean=notes is not None,
            is_doubted=path in self._doubted,
            recovery_point=points(RECOVERY_POINTS).get(key, 0),
            gapless_from=points(RECOVERY_POINTS).get(key, 0) if path in self._vouched else None,
            log_start_offset=points(LOG_STARTS).get(key, 0),
            state=notes.get(name) if notes else None,
            producer_expiration_ms=self.producer_expiration_ms,
        )
        log.flushed_at_ms = self._now_ms()
        log.set_high_watermark(points(HIGH_WATERMARKS).get(key, 0))
        self.logs[key] = log
        if key in points(CLEANER_POINTS):
            self.cleaned_upto[key] = points(CLEANER_POINTS)[key]

    def _gives_way(self, directory: str, twin: UnifiedLog, id_of: IdOf | None) -> bool:
        """Whether this log of a partition gives way to its twin. A disk that fails
        while a log is made leaves a directory, and the log is made on another disk. And a disk that was away
        comes back with the log of a topic that was made anew meanwhile."""
        if self._was_never_used(directory):
            return True
        if not twin.log_end_offset:
            return False
        topic_id = read_topic_id(self.files, directory)
        if id_of is None or topic_id == twin.known_topic_id:
            name, path = basename(directory), dirname(directory)
            raise LogDirError(f"{name} is in both {twin.log_dir} and {path}: remove one of them")
        return topic_id is None or topic_id != id_of(twin.topic)

    def _was_never_used(self, directory: str) -> bool:
        logs = [name for name in self.files.listdir(directory) if name.endswith(LOG)]
        return all(int(name.split(".")[0]) == 0 == self.files.size(join(directory, name)) for name in logs)

    # --- logs ---

    def create(self, topic: str, topic_id: UUID, partition: int, config: LogConfig) -> UnifiedLog:
        """The log of a partition, made if it is not there, in the directory with the fewest logs."""
        key = (topic, partition)
        existing = self.logs.get(key)
        if existing is not None:
            existing.adopt_topic_id(topic_id)
            if existing.config is not config:
                existing.set_config(config)
            return existing
        path = self._emptiest()
        directory = join(path, f"{topic}-{partition}")
        now_ms = self._now_ms()
        self._forget_earlier(path, key)
        self._sync_renames(path)
        try:
            self.files.makedirs(directory)
            opening = UnifiedLog.opening(
                self.files,
                directory,
                config=config,
                topic=topic,
                partition=partition,
                now_ms=now_ms,
                jitter=self._random.randrange,
                on_failure=self._failure_of[path],
                on_cut=self._cut_of[path],
                on_start=self._start_of[path],
                producer_expiration_ms=self.producer_expiration_ms,
            )
            log = _in_one_go(opening)
            log.adopt_topic_id(topic_id)
        except OSError as error:
            if not is_scarcity(error):
                self._dir_failed(path, error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"{path}: {error}") from error
        log.flushed_at_ms = now_ms
        self.logs[key] = log
        return log

    def _forget_earlier(self, path: str, key: TopicPartition) -> None:
        """What the checkpoints say of an earlier log of this name would pass for the new one's: a start past
        its end, or a recovery point that vouches for what is yet to come."""
        for name in CHECKPOINTS:
            if self._checkpoints[path].may_name(name, key):
                try:
                    self._checkpoints[path].must_write(name)
                except OSError as error:
                    raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def _sync_renames(self, path: str) -> None:
        """Sync the names of logs set aside in other directories: a power cut may bring one back beside the
        log of its name that is made in `path`. Within one, changes of names reach the disk in their order."""
        for other in self._renamed - {path, *self.offline_dirs}:
            try:
                self.files.fsync_dir(other)
            except OSError as error:
                if is_scarcity(error):
                    raise KafkaError(ErrorCode.kafka_storage_error, f"{other}: {error}") from error
                self._dir_failed(other, error)
            self._renamed.discard(other)

    def _emptiest(self) -> str:
        usable = [path for path in self.dirs if path not in self.offline_dirs]
        if not usable:
            raise KafkaError(ErrorCode.kafka_storage_error, "every log directory is offline")
        if len(usable) == 1:
            return usable[0]
        counts = Counter(log.log_dir for log in self.logs.values())
        return min(usable, key=lambda path: counts[path])

    def delete(self, topic: str, partition: int) -> None:
        """Take the log away now; its files follow after `file.delete.delay.ms`."""
        log = self._set_aside(topic, partition, DELETE_SUFFIX)
        if log is not None and log.offline is None:
            due = self._now_ms() + log.config.file_delete_delay_ms
            self._doomed.append((due, log.directory))
        if log is not None:
            log.take_offline(f"{topic}-{partition} was deleted")
            log.forget()

    def stray(self, topic: str, partition: int) -> None:
        """Take away a log this broker should not have; its files stay, for a person to look at."""
        log = self._set_aside(topic, partition, STRAY_SUFFIX)
        if log is not None:
            log.take_offline(f"{topic}-{partition} does not belong to this broker")
            log.forget()

    def _set_aside(self, topic: str, partition: int, suffix: str) -> UnifiedLog | None:
        log = self.logs.pop((topic, partition), None)
        self.cleaned_upto.pop((topic, partition), None)
        self.uncleanable.discard((topic, partition))
        if log is None or log.offline is not None:
            return log
        target = self._name_aside(log.log_dir, topic, partition, suffix)
        try:
            log.flush_staged()
            self.files.rename(log.directory, target)
        except OSError as error:
            self._dir_failed(log.log_dir, error)
        except KafkaError:
            return log
        else:
            log.moved_to(target)
            self._renamed.add(log.log_dir)
        return log

    def _name_aside(self, log_dir: str, topic: str, partition: int, suffix: str) -> str:
        unique = UUID(int=self._random.getrandbits(128)).hex
        tail = f"-{partition}.{unique}{suffix}"
        return join(log_dir, topic[: NAME_MAX - len(tail)] + tail)

    # --- maintenance ---

    def maintain(self, now_ms: int) -> Iterator[None]:
        """One round of whatever is due by now, in slices: call it every second or so and step through it."""
        yield from self._flush_due(now_ms)
        yield from self._remove_deleted(now_ms)
        if self._is_due("retention", self.intervals.retention_ms, now_ms, self.intervals.initial_delay_ms):
            for log in list(self.logs.values()):
                try:
                    while log.expire(now_ms):
                        yield
                except KafkaError as error:
                    logger.warning("retention of %s-%d stopped: %s", log.topic, log.partition, error)
                yield
        if self._is_due("producers", self.intervals.producers_ms, now_ms):
            for log in list(self.logs.values()):
                if log.producer_table.entries:
                    log.expire_producers(now_ms)
                    yield
        if self._is_due("idle", self.intervals.idle_ms, now_ms):
            for log in list(self.logs.values()):
                log.release_idle()
                yield
        yield from self._checkpoint_due(now_ms)

    def _is_due(self, what: str, interval_ms: int, now_ms: int, first_after_ms: int | None = None) -> bool:
        due = self._due.setdefault(what, now_ms + (interval_ms if first_after_ms is None else first_after_ms))
        if now_ms < due:
            return False
        self._due[what] = now_ms + interval_ms
        return True

    def _flush_due(self, now_ms: int) -> Iterator[None]:
        for at, (key, log) in enumerate(list(self.logs.items()), 1):
            if at % LOGS_PER_SLICE == 0:
                yield
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

    def _remove_deleted(self, now_ms: int) -> Iterator[None]:
        """Remove due files in the background: a disk takes tens of milliseconds to give up a file of 1 GB."""
        due: dict[str, list[str]] = {}
        for at, log in enumerate(list(self.logs.values()), 1):
            if at % LOGS_PER_SLICE == 0:
                yield
            if log.has_deleted_files and log.offline is None:
                due.setdefault(log.log_dir, []).extend(log.take_due_files(now_ms))
        for when, path in self._doomed:
            if when <= now_ms:
                due.setdefault(dirname(path), []).append(path)
        self._doomed = [(when, path) for when, path in self._doomed if when > now_ms]
        for log_dir, paths in due.items():
            if paths and log_dir not in self.offline_dirs:
                self._background(partial(self._remove, paths), partial(self._removed, log_dir))
                yield

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path.endswith(DELETE_SUFFIX):
                self.files.rmtree(path)
            else:
                self.files.unlink(path)

    def _removed(self, log_dir: str, error: OSError | None) -> None:
        if error is not None and not is_scarcity(error):  # then the next start removes them
            self._dir_failed(log_dir, error)

    def _checkpoint_due(self, now_ms: int) -> Iterator[None]:
        starts_moved = False
        for at, log in enumerate(list(self.logs.values()), 1):
            log.answer_starts()
            starts_moved = starts_moved or log.start_to_save != log.saved_start
            if at % LOGS_PER_SLICE == 0:
                yield
        if self._is_due("recovery points", self.intervals.recovery_points_ms, now_ms):
            for key, log in list(self.logs.items()):
                try:
                    log.save_epochs()
                except KafkaError:
                    continue
                if log.wants_mark and key not in self._flushing:
                    self._flush(key, log, now_ms, closed_only=False, marked=True)
                    self._marking = True
                yield
            self._checkpoint(RECOVERY_POINTS)
            yield
        elif self._marking:
            self._marking = False
            self._checkpoint(RECOVERY_POINTS)
            yield
        if self._is_due("log starts", self.intervals.log_starts_ms, now_ms) or starts_moved:
            self._checkpoint(LOG_STARTS)
            yield
        if self._is_due("high watermarks", self.intervals.high_watermarks_ms, now_ms):
            self.checkpoint_high_watermarks()

    def checkpoint_high_watermarks(self) -> None:
        self._checkpoint(HIGH_WATERMARKS)

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
        """0 while a checkpoint is being written: until that is done nobody knows which one is there."""
        points = self._checkpoints[log.log_dir].on_disk(RECOVERY_POINTS)
        return 0 if points is None else points.get((log.topic, log.partition), 0)

    def checkpoint_cleaner(self) -> None:
        self._checkpoint(CLEANER_POINTS)

    def _checkpoint(self, name: str) -> None:
        for checkpoints in self._checkpoints.values():
            checkpoints.write(name)

    def _starts_saved(self, path: str) -> None:
        points = self._checkpoints[path].points(LOG_STARTS)
        logs = [(key, log) for key, log in self.logs.items() if log.log_dir == path]
        for key, log in logs:
            log.start_saved(points.get(key, 0))
        if not self._is_cutting:
            for _, log in logs:
                log.answer_starts()

    def clean(self, now_ms: int) -> Iterator[int]:
        """One round of compaction in slices; each step yields how many ms to wait before the next (0:
        none)."""
        return clean_logs(self, now_ms)

    def release_files(self) -> None:
        """Descriptors are short: close what can be opened again. May be called in any thread."""
        for log in list(self.logs.values()):
            log.release_files()

    def run_in_background(self, job: Callable[[], None], done: Done) -> None:
        self._background(job, done)

    # --- failure and stop ---

    def _save_starts(self, path: str) -> None:
        """Write the log starts; requests that come during a write share the next one."""
        self._checkpoints[path].write(LOG_STARTS)

    def _cut(self, path: str, is_start: bool) -> None:
        """A recovery point past the end would vouch for bytes that are yet to come, and a start past it would
        drop them. OSError when the disk still says so."""
        self._is_cutting = True  # nobody acts on a log start in the midst of it
        try:
            self._checkpoints[path].must_write(RECOVERY_POINTS)
            if is_start:
                self._checkpoints[path].must_write(LOG_STARTS)
        finally:
            self._is_cutting = False

    def _dir_failed(self, path: str, error: OSError) -> None:
        if path in self.offline_dirs:
            return
        self.offline_dirs[path] = str(error)
        for log in self.logs.values():
            if log.log_dir == path:
                log.take_offline(f"log directory {path} failed: {error}")
        if path in self._checkpoints:
            self._checkpoints[path].give_up(str(error))
            self._leave_doubt(path)
        self._on_dir_failure(path, error)

    def _leave_doubt(self, path: str) -> None:
        try:
            self.files.open(join(path, DISK_FAILED), create=True).close()
        except OSError as error:
            logger.warning("%s: the next start will trust what it reads there: %s", path, error)

    def closing(self) -> Iterator[tuple[Callable[[], None], Done]]:
        """The syncs of a clean stop, a log at a time, for a caller that can run several jobs at once;
        `close` does the rest. Nothing may be appended any more."""
        if not self._is_loaded:
            return
        for path in self._checkpoints:
            if path not in self.offline_dirs:
                yield partial(self.files.fsync_dir, path), partial(self._anchored, path)
        for key, log in list(self.logs.items()):
            try:
                job = log.closing()
            except KafkaError:
                continue  # its directory is offline now
            if job is None:
                self._log_closed(key, log, None, None)
            else:
                yield job.run, partial(self._log_closed, key, log, job)

    def _anchored(self, path: str, error: OSError | None) -> None:
        if error is not None:
            self._dir_failed(path, error)
            return
        for log in self.logs.values():
            if log.log_dir == path:
                log.anchored()

    def _log_closed(
        self, key: TopicPartition, log: UnifiedLog, job: SegmentFlush | None, error: OSError | None
    ) -> None:
        if error is not None:
            if log.offline is None:
                log.flush_failed(error)
        elif log.offline is None:
            log.closed(job)
            self._closed[key] = log.log_end_offset

    def close(self, clean: bool = True, *, broker_epoch: int = -1) -> None:
        """Stop. `clean`: write and sync everything and say so for the next start. Before everything was
        loaded nothing is written, but that the stop before this start was clean is said again."""
        if not self._is_loaded:
            self._put_back_markers()
        elif clean:
            unclean = set()
            for key, log in list(self.logs.items()):
                if log.offline is None and self._closed.get(key) != log.log_end_offset:
                    try:
                        log.close()
                    except KafkaError:
                        unclean.add(log.log_dir)
            for path, checkpoints in self._checkpoints.items():
                for name in CHECKPOINTS:
                    checkpoints.write_now(name)
                    if checkpoints.is_unwritten(name):
                        unclean.add(path)
            for path in self._checkpoints:
                if path not in self.offline_dirs and path not in unclean:
                    self._mark_clean(path, broker_epoch)
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def _put_back_markers(self) -> None:
        for path, marker in self._markers.items():
            if path not in self.offline_dirs:
                try:
                    put_marker(self.files, path, marker)
                except OSError as error:
                    self._dir_failed(path, error)

    def _mark_clean(self, path: str, broker_epoch: int) -> None:
        logs = [log for log in self.logs.values() if log.log_dir == path]
        try:
            notes = {basename(log.directory): log.clean_state() for log in logs}
            put_marker(self.files, path, encode_notes(notes, broker_epoch))
        except OSError as error:
            self._dir_failed(path, error)


def _in_one_go(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition of a directory; None for anything else, set-aside logs included."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isascii() or not partition.isdigit():
        return None
    return topic, int(partition)
