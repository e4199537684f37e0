"""Several logs in two directories, as a broker keeps them: topics come and go by the same names, segments are
compacted and expire, background jobs end late and in any order, and disks fail in any call.

`test_crashes` looks closer at one log; here the oracle is what was ever appended at an offset, and what of it
was acknowledged, synced, or taken back.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import pytest

from broker.config.broker import from_properties
from protocol import records
from protocol.errors import KafkaError
from storage.checkpoints import Done
from storage.cleaner import CleanerSettings
from storage.log import FlushJob
from storage.log_manager import LogDirError, LogManager
from storage.maintenance import Intervals
from storage.policy import LONG_MAX, LogConfig
from storage.segment import LOG
from storage.unified_log import UnifiedLog
from tests.sim.disk import Disk
from tests.sim.history import TopicPartition, payload, value_of
from tests.sim.inspection import batches_of, inspect
from tests.sim.loop import Killed, Process, SimLoop

DIRS = ("/one", "/two")
ROUNDS = 5
SEEDS_PER_TEST = 20
KEYS = 4
MARKED_WITHIN = 20  # calls that change something
INTERVALS = Intervals(
    retention_ms=2_000,
    recovery_points_ms=3_000,
    log_starts_ms=5_000,
    high_watermarks_ms=2_000,
    initial_delay_ms=1_000,
    idle_ms=4_000,
)
ERRORS = (
    ("fsync", errno.EIO),
    ("fsync", errno.ENOSPC),
    ("fsync_dir", errno.EIO),
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("create", errno.ENOSPC),
    ("rename", errno.EIO),
    ("unlink", errno.EIO),
    ("truncate", errno.EIO),
    ("makedirs", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("fsync_dir", errno.EMFILE),
    ("read", errno.EMFILE),
    ("read", errno.EIO),
)


@dataclass
class Known:
    """What is known of one partition. `ever`: each value that was appended at an offset, under any topic of
    this name; `acked`: what must be there; `unclear`: what may."""

    topic_id: UUID
    ever: dict[int, set[int]] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    unclear: set[int] = field(default_factory=set)
    synced: int = 0
    started: int = 0  # the highest log start it was ever to have

    def no_more_than(self, end: int) -> None:
        self.synced = min(self.synced, max(end, 0))
        self.unclear |= {value for offset, value in self.acked.items() if offset >= end}
        self.acked = {offset: value for offset, value in self.acked.items() if offset < end}


class Rack:
    def __init__(self, seed: int, ends: str) -> None:
        self.rng = random.Random(seed)
        self.ends = ends
        self.clock_ms = 1_700_000_000_000
        self.disk = Disk(random.Random(f"{seed}/disk"), lambda: self.clock_ms, self._traced)
        self.dirs = DIRS[: self.rng.choice((1, 2))]
        for path in self.dirs:
            self.disk.make_volume(path)
        properties = {
            "node.id": "1",
            "log.dirs": ",".join(self.dirs),
            "listeners": "PLAINTEXT://:9092",
        }
        self.config = from_properties(properties)
        segment_bytes = self.rng.choice((300, 700, 100_000))
        plain = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=self.rng.choice((0, 150)),
            file_delete_delay_ms=self.rng.choice((0, 3_000)),
            flush_ms=self.rng.choice((1_000, LONG_MAX)),
        )
        self.configs = {
            "plain": plain,
            "brief": LogConfig(
                segment_bytes=segment_bytes, retention_ms=6_000, retention_bytes=2_000, file_delete_delay_ms=0
            ),
            "keyed": LogConfig(
                segment_bytes=segment_bytes,
                cleanup_policy=("compact",),
                min_cleanable_dirty_ratio=0.01,
                file_delete_delay_ms=0,
            ),
        }
        self.next_id = 1
        self.next_value = 1
        self.epoch = 1
        self.known: dict[TopicPartition, Known] = {}
        for topic in self.configs:
            for index in range(1 if topic == "keyed" else 2):
                self.known[topic, index] = Known(self._new_id())
        for tp in self.rng.sample(list(self.known), self.rng.choice((0, 1, 3, 4))):
            del self.known[tp]
        self.jobs: list[tuple[Callable[[], None], Done]] = []
        self.late: list[Done] = []

    def _traced(self, kind: str, *_: object) -> None:
        """A kill right behind a failed sync, before the mark is made for the next start, is beyond help."""
        if kind == "disk-error" and self.files.die_at_change is not None:
            self.files.die_at_change += MARKED_WITHIN

    def _new_id(self) -> UUID:
        self.next_id += 1
        return UUID(int=self.next_id)

    # ---- one life --------------------------------------------------------------------------------------

    def live(self) -> None:
        process = Process(SimLoop(), "p")
        files = self.files = self.disk.mount(process)
        self.jobs.clear()
        self.late.clear()
        fails = self.ends == "errors" and self.rng.random() < 0.6
        power = self.ends != "kill" and self.rng.random() < 0.6
        if fails:
            operation, error = self.rng.choice(ERRORS)
            self.disk.fail(
                operation,
                error,
                skip=self.rng.randrange(40),
                times=self.rng.choice((1, 1, 3)),
                path_part=self.rng.choice(("", ".log", self.dirs[0])),
            )
        files.die_in_changes(self.rng.randrange(1, 300), power=power)
        self.failed: set[str] = set()
        try:
            logs = self._manager(files)
            logs.lock_and_open()
            steps = logs.loading(lambda topic: self.configs[topic])
            if self.rng.random() < 0.1 and next(steps, steps) is None:
                logs.close()
                raise Killed("p")
            for _ in steps:
                pass
            self._open_all(logs)
            for _ in range(self.rng.randrange(5, 60)):
                self._act(logs)
                if len(self.failed) == len(self.dirs):
                    break
            else:
                if self.rng.random() < 0.4:
                    self._stop(logs)
        except Killed:
            pass
        except LogDirError:
            assert len(self.failed) == len(self.dirs)
        self.disk.disarm()
        process.die(power=power)
        if power:
            self.disk.power_cut()
            for known in self.known.values():
                known.no_more_than(known.synced)
        self.check(after_power=power)

    def _manager(self, files: object) -> LogManager:
        return LogManager(
            files=files,  # type: ignore[arg-type]
            dirs=self.dirs,
            now_ms=lambda: self.clock_ms,
            random=random.Random(self.rng.random()),
            defaults=LogConfig(),
            on_dir_failure=lambda path, error: self._failed(path, error),
            background=lambda job, done: self.jobs.append((job, done)),
            intervals=INTERVALS,
            cleaner=CleanerSettings(dedupe_bytes=10_000),
        )

    def _failed(self, path: str, error: OSError) -> None:
        assert self.ends == "errors", f"{path}: {error}"
        self.failed.add(path)

    def _open_all(self, logs: LogManager) -> None:
        for tp, known in self.known.items():
            held = logs.logs.get(tp)
            if held is None and self.failed:
                continue
            if held is not None and held.known_topic_id not in (None, known.topic_id):
                logs.stray(*tp)
            elif held is not None and held.known_topic_id is None:
                known.started = max(known.started, held.log_start_offset)  # may be of an earlier topic
            try:
                log = logs.create(*(tp[0], known.topic_id, tp[1]), self.configs[tp[0]])
            except KafkaError:
                assert self.ends == "errors"
                continue
            log.set_high_watermark(log.log_end_offset)

    def _stop(self, logs: LogManager) -> None:
        ends = {tp: log.log_end_offset for tp, log in logs.logs.items() if log.offline is None}
        if self.rng.random() < 0.5:
            for job, done in logs.closing():
                self._run(job, done)
        logs.close(clean=True)
        for tp, end in ends.items():
            if logs.logs[tp].offline is None and logs.logs[tp].recovery_point == end and not self.disk.errors:
                self._synced(tp, end)

    def _run(self, job: Callable[[], None], done: Done) -> None:
        error = None
        try:
            job()
        except OSError as met:
            error = met
        if error is None and self.rng.random() < 0.3:
            self.late.append(done)
        else:
            done(error)

    def _work(self) -> None:
        while self.late and self.rng.random() < 0.6:
            self.late.pop(self.rng.randrange(len(self.late)))(None)
        for _ in range(self.rng.randrange(5)):
            if self.jobs:
                self._run(*self.jobs.pop(self.rng.randrange(len(self.jobs))))

    # ---- acts ------------------------------------------------------------------------------------------

    def _act(self, logs: LogManager) -> None:
        self.clock_ms += self.rng.choice((0, 1, 50, 700, 5_000))
        tp = self.rng.choice(list(self.known))
        what = self.rng.choice(
            ("append",) * 14
            + ("fsync", "flush", "flush", "maintain", "maintain", "work", "work", "clean")
            + ("delete records", "truncate", "truncate", "begin anew", "make anew")
        )
        log = logs.logs.get(tp)
        if log is None or log.offline is not None:
            return
        try:
            self._do(what, tp, log, logs)
        except KafkaError:
            assert self.ends == "errors"
        finally:
            for tp, log in logs.logs.items():
                self.known[tp].started = max(self.known[tp].started, log.log_start_offset)

    def _do(self, what: str, tp: TopicPartition, log: UnifiedLog, logs: LogManager) -> None:
        known = self.known[tp]
        match what:
            case "append":
                self._append(known, log)
            case "fsync":
                end = log.log_end_offset
                log.fsync()
                self._synced(tp, end)
            case "flush":
                flush = log.fsync_target()
                if flush is not None:
                    self.jobs.append((flush.run, partial(self._flushed, tp, log, flush)))
            case "maintain":
                for _ in logs.maintain(self.clock_ms):
                    if self.rng.random() < 0.2:
                        self._work()
            case "work":
                self._work()
            case "clean":
                for steps, _ in enumerate(logs.clean(self.clock_ms)):
                    if steps > 200:
                        break
                    if self.jobs and self.rng.random() < 0.7:
                        self._work()
            case "truncate":
                at = self.rng.randrange(log.log_start_offset, log.log_end_offset + 1)
                at = max(at, log.log_end_offset - self.rng.choice((1, 5, 1000)))
                for batch_start, batch_end in self._batches(log):
                    if batch_start <= at < batch_end:
                        at = batch_start
                if at == log.log_end_offset:
                    return
                known.no_more_than(at)
                self.epoch += 1
                if tp[0] == "keyed":  # what compaction took for a newer record that now goes
                    stored = _pairs(self._parts(log))
                    known.acked = {offset: value for offset, value in known.acked.items() if offset in stored}
                log.truncate_to(at)
                known.synced = min(known.synced, log.log_end_offset)  # below it all was compacted away
            case "begin anew":
                if self.rng.random() < 0.7:
                    return
                known.no_more_than(0)
                self.epoch += 1
                known.started = log.log_end_offset + self.rng.choice((0, 0, 7))
                log.truncate_fully(known.started)
            case "delete records":
                start = self.rng.randrange(log.log_start_offset, log.high_watermark + 1)
                known.started = max(known.started, start)  # a crash may come when the disk knows it already
                log.advance_log_start(start)
            case "make anew":
                known.no_more_than(0)
                known.synced = known.started = 0
                known.topic_id = self._new_id()
                logs.delete(*tp)
                if self.rng.random() < 0.3:
                    self._work()
                logs.create(tp[0], known.topic_id, tp[1], self.configs[tp[0]])

    def _flushed(self, tp: TopicPartition, log: UnifiedLog, flush: FlushJob, error: OSError | None) -> None:
        if error is not None:
            if log.offline is None:
                log.flush_failed(error)
            return
        log.mark_flushed(flush)
        if log.offline is None:
            self._synced(tp, log.recovery_point)

    def _parts(self, log: UnifiedLog) -> list[tuple[str, int, bytes]]:
        files = self.disk.snapshot(log.directory)
        return [("", segment.base_offset, files[segment.path(LOG)]) for segment in log.segments]

    def _batches(self, log: UnifiedLog) -> Iterator[tuple[int, int]]:
        for _, _, data in self._parts(log):
            for _, header in records.iter_batches(data):
                yield header.base_offset, header.next_offset

    def _append(self, known: Known, log: UnifiedLog) -> None:
        values = list(range(self.next_value, self.next_value + self.rng.choice((1, 1, 3))))
        self.next_value += len(values)
        batch = records.build_batch(
            [(b"%d" % (value % KEYS), payload(value), (), self.clock_ms) for value in values]
        )
        for offset, value in enumerate(values, log.log_end_offset):
            known.ever.setdefault(offset, set()).add(value)
            known.unclear.add(value)
        appended = log.append_records(batch, leader_epoch=self.epoch, now_ms=self.clock_ms)
        log.set_high_watermark(log.log_end_offset)
        for offset, value in enumerate(values, appended.first_offset):
            known.acked[offset] = value
            known.unclear.discard(value)

    def _synced(self, tp: TopicPartition, end: int) -> None:
        self.known[tp].synced = max(self.known[tp].synced, end)

    # ---- what is there ---------------------------------------------------------------------------------

    def check(self, *, after_power: bool) -> None:
        disk = self.disk.clone()
        self.failed = set()
        _, recovery = inspect(disk, self.config, list(self.known), latest_ms=self.clock_ms)
        assert not recovery.differences, recovery.differences
        self.ends, ends = "check", self.ends
        logs = self._manager(disk.mount())
        logs.lock_and_open()
        logs.load(lambda topic: self.configs[topic])
        self._open_all(logs)
        self.ends = ends
        assert not self.failed
        for tp, known in self.known.items():
            self._check_log(f"{tp[0]}-{tp[1]}", known, logs.logs[tp], after_power, tp[0] == "keyed")
        logs.close(clean=False)

    def _check_log(
        self, name: str, known: Known, log: UnifiedLog, after_power: bool, is_compacted: bool
    ) -> None:
        parts = [("", segment.base_offset, segment.file.pread(segment.size, 0)) for segment in log.segments]
        batches = batches_of(parts)
        if not is_compacted:
            ends = [batch.next_offset for batch in batches[:-1]]
            assert ends == [batch.base_offset for batch in batches[1:]], f"{name}: a hole in the middle"
        stored = _pairs(parts)
        start = log.log_start_offset
        end = log.log_end_offset
        for offset, value in stored.items():
            assert value in known.ever.get(offset, ()), f"{name}: {value} at {offset} was never there"
        assert len(set(stored.values())) == len(stored), f"{name}: a value twice"
        newest = {value % KEYS: offset for offset, value in sorted(stored.items())}
        for offset, value in known.acked.items():
            if offset < start and not is_compacted and offset not in stored:
                continue
            if is_compacted and offset not in stored and newest.get(value % KEYS, -1) > offset:
                continue
            if is_compacted and offset < start:
                continue
            assert stored.get(offset) == value, (
                f"{name}: {value} acked at {offset}, there is {stored.get(offset)} in [{start}, {end})"
            )
        assert start <= known.started or name.startswith("brief"), (
            f"{name}: starts at {start}, past {known.started}"
        )
        if not after_power:
            extra = {
                offset: value
                for offset, value in stored.items()
                if known.acked.get(offset) != value and value not in known.unclear and offset >= start
            }
            assert not extra, f"{name}: {extra} came back"
        known.acked = {offset: value for offset, value in stored.items() if offset >= start}
        if self.ends == "kill":  # nothing else can bring back what is not there now
            known.ever = {offset: {value} for offset, value in stored.items()}
        known.unclear = {value for values in known.ever.values() for value in values} - set(
            known.acked.values()
        )


def _pairs(parts: list[tuple[str, int, bytes]]) -> dict[int, int]:
    return {
        record.offset: value_of(record.value)
        for _, _, data in parts
        for at, header in records.iter_batches(data)
        for record in records.iter_records(data, at, header)
    }


@pytest.mark.parametrize("ends", ["kill", "power", "errors"])
@pytest.mark.parametrize("first", range(0, 60, SEEDS_PER_TEST))
def test_logs_survive_what_happens_to_their_disks(first: int, ends: str) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        rack = Rack(seed, ends)
        for life in range(ROUNDS):
            try:
                rack.live()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, life {life}: {error}") from error


@pytest.mark.parametrize("mode", ["nothing", "prefix", "subset", "all"])
def test_a_log_made_anew_on_another_disk_has_no_twin_after_a_power_cut(mode: str) -> None:
    disk = Disk(random.Random(0), lambda: 1_700_000_000_000)
    for path in DIRS:
        disk.make_volume(path)

    def started() -> LogManager:
        logs = LogManager(
            files=disk.mount(),
            dirs=DIRS,
            now_ms=disk.now_ms,
            random=random.Random(0),
            defaults=LogConfig(),
            on_dir_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
        )
        logs.lock_and_open()
        logs.load()
        return logs

    def filled(logs: LogManager, topic_id: UUID, index: int) -> UnifiedLog:
        log = logs.create("t", topic_id, index, LogConfig())
        batch = records.build_batch([(None, payload(1), (), disk.now_ms())])
        log.append_records(batch, leader_epoch=0, now_ms=disk.now_ms())
        log.fsync()
        return log

    logs = started()
    first = filled(logs, UUID(int=1), 0)
    filled(logs, UUID(int=1), 1)
    logs.delete("t", 0)
    logs.delete("t", 1)
    logs.create("t", UUID(int=2), 1, LogConfig())
    second = filled(logs, UUID(int=2), 0)
    assert second.log_dir != first.log_dir
    disk.power_cut(mode)
    log = started().logs["t", 0]
    assert (log.topic_id, log.log_end_offset) == (UUID(int=2), 1)
