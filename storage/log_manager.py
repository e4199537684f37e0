"""All logs of this broker over one or several log directories.

Owns: the directory locks, opening and creating and setting aside logs. Does not own: what a log holds, which
broker leads it, what is due when (maintenance), the small files (checkpoints, clean_stop), `meta.properties`.
Invariant: a log is in exactly one directory; a directory whose disk failed is never used again by this
process, and the others go on.

After a failed sync the kernel takes the pages it could not write for written: they are read until the power
goes, and never synced again. A directory whose disk failed gets the mark `.disk_failed` for the next start,
which writes what it recovers there once more. The mark needs no sync: it goes where those pages go.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
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
from storage.maintenance import DELETE_SUFFIX, Intervals, Maintenance
from storage.policy import LogConfig
from storage.segment import LOG
from storage.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

LOCK = ".lock"
DISK_FAILED = ".disk_failed"
STRAY_SUFFIX = "-stray"
NAME_MAX = 255
LOADED_PER_SLICE = 16

T = TypeVar("T")

ConfigOf = Callable[[str], LogConfig]
IdOf = Callable[[str], UUID | None]


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
        self._renamed: set[str] = set()
        """Directories in which logs were set aside since their last sync."""
        self.cleaned_upto: dict[TopicPartition, int] = {}
        self.uncleanable: set[TopicPartition] = set()
        self._is_cutting = False
        self._maintenance = Maintenance(
            files=files,
            intervals=intervals or Intervals(),
            now_ms=now_ms,
            background=self.run_in_background,
            logs=self.logs,
            offline_dirs=self.offline_dirs,
            checkpoints=self._checkpoints,
            on_failure=self._dir_failed,
        )

    def __repr__(self) -> str:
        return f"LogManager({self.dirs}, {len(self.logs)} logs, offline {list(self.offline_dirs)})"

    @property
    def to_be_deleted(self) -> int:
        """Logs taken away whose files wait for `file.delete.delay.ms`."""
        return self._maintenance.to_be_deleted

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
                LOG_STARTS: lambda: {
                    key: log.start_to_save for key, log in logs() if log.start_to_save or log.is_tiered
                },
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
        """Open every log, in slices. `config_of` gives a topic's configuration, by default the defaults, and
        `id_of` the id it has by now. After an unclean stop each log is recovered from its recovery point. A
        caller that gives up between two slices calls `close`."""
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
            self._maintenance.delete_later(join(path, name), self._now_ms())
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
            log_start_offset=points(LOG_STARTS).get(key),
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
            self._maintenance.delete_later(log.directory, self._now_ms() + log.config.file_delete_delay_ms)
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
        return self._maintenance.run_due(now_ms)

    def settle_closed(self, log: UnifiedLog) -> int:
        return self._maintenance.settle_closed(log)

    def checkpoint_high_watermarks(self) -> None:
        self._maintenance.checkpoint(HIGH_WATERMARKS)

    def checkpoint_cleaner(self) -> None:
        self._maintenance.checkpoint(CLEANER_POINTS)

    def _starts_saved(self, path: str) -> None:
        points = self._checkpoints[path].points(LOG_STARTS)
        logs = [(key, log) for key, log in self.logs.items() if log.log_dir == path]
        for key, log in logs:
            log.start_saved(points.get(key))
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
        # not those that may have to be brought up from the tier: the next start would take them for whole
        logs = [
            log
            for log in self.logs.values()
            if log.log_dir == path and not (log.is_tiered and log.may_lack_end)
        ]
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
