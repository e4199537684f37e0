"""A log start counts once the disk knows it, whatever happens on the way there."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.checkpoints import decode_points
from storage.files import DiskFiles
from storage.log_manager import LogManager
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.sim.disk import Disk, SimFiles
from tests.sim.loop import Killed, Process, SimLoop
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    HeldJobs,
    Intervals,
    append,
    batch_of,
    drain,
    kill,
    manager_on,
)

SMALL = LogConfig(segment_bytes=200, retention_ms=-1)


def filled(manager: LogManager, partition: int = 0, batches: int = 8) -> UnifiedLog:
    log = manager.create("topic", TOPIC_ID, partition, SMALL)
    for _ in range(batches):
        append(log, batch_of(1))
    return log


def saved(root: Path) -> dict[tuple[str, int], int]:
    return decode_points((root / "data" / "log-start-offset-checkpoint").read_bytes())


def start_after(root: Path, manager: LogManager) -> int:
    kill(manager)
    manager = manager_on(root)
    start = manager.logs["topic", 0].log_start_offset
    kill(manager)
    return start


def test_a_log_start_counts_once_it_is_on_the_disk(tmp_path: Path) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    log = filled(manager)
    answers: list[KafkaError | None] = []
    log.advance_log_start(5, answers.append)
    assert (log.log_start_offset, answers) == (0, [])
    assert log.read(0, 1, bound=8, min_one=True) is not None
    held.let_go()
    assert (log.log_start_offset, answers) == (5, [None])
    assert start_after(tmp_path, manager) == 5


def test_a_kill_before_that_leaves_the_start_where_it_was(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, background=HeldJobs())
    filled(manager).advance_log_start(5)
    assert start_after(tmp_path, manager) == 0


def test_a_start_that_is_there_is_answered_at_once(tmp_path: Path) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path)
    log = filled(manager)
    log.advance_log_start(5)
    manager._background = held
    answers: list[KafkaError | None] = []
    for offset in (3, 5):
        log.advance_log_start(offset, answers.append)
    assert answers == [None, None] and not held.jobs
    kill(manager)


def test_who_asks_during_a_write_shares_the_next(tmp_path: Path) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    logs = [filled(manager, partition) for partition in range(5)]
    answers: list[KafkaError | None] = []
    for log in logs:
        for offset in (2, 4):
            log.advance_log_start(offset, answers.append)
    assert len(held.jobs) == 1
    held.let_go()
    assert len(held.jobs) == 1 and answers == [None]
    held.let_go()
    assert not held.jobs and answers == [None] * 10
    assert [log.log_start_offset for log in logs] == [4] * 5
    kill(manager)


def test_a_round_while_a_write_is_on_its_way_does_not_write_the_same_again(tmp_path: Path) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    filled(manager).advance_log_start(5)
    drain(manager.maintain(NOW))
    waiting = len(held.jobs)
    held.let_go()
    assert len(held.jobs) == waiting - 1
    kill(manager)


@pytest.mark.parametrize("ends", ["deleted", "strayed", "disk"])
def test_who_waits_for_a_log_that_goes_is_told(tmp_path: Path, ends: str) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    log = filled(manager)
    answers: list[KafkaError | None] = []
    log.advance_log_start(5, answers.append)
    if ends == "disk":
        held.jobs[0][1](OSError(errno.EIO, "input/output error"))
    elif ends == "deleted":
        manager.delete("topic", 0)
    else:
        manager.stray("topic", 0)
    (answer,) = answers
    assert answer is not None and answer.code is ErrorCode.kafka_storage_error
    with pytest.raises(KafkaError):
        log.advance_log_start(6, answers.append)
    assert len(answers) == 1
    kill(manager)


class Scarce(DiskFiles):
    is_short = False

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        if self.is_short and "log-start" in path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path, create=create)


def test_a_lack_of_descriptors_puts_it_off(tmp_path: Path) -> None:
    files = Scarce()
    manager = manager_on(tmp_path, files=files)
    log = filled(manager)
    files.is_short = True
    answers: list[KafkaError | None] = []
    log.advance_log_start(5, answers.append)
    drain(manager.maintain(NOW + 1))
    assert (log.log_start_offset, answers) == (0, []) and not manager.offline_dirs
    files.is_short = False
    drain(manager.maintain(NOW + 2))
    assert (log.log_start_offset, answers) == (5, [None])
    kill(manager)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_cut_below_a_start_that_is_on_its_way_takes_it_back(tmp_path: Path, is_written: bool) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    log = filled(manager)
    answers: dict[int, list[KafkaError | None]] = {2: [], 6: []}
    for offset, answer in answers.items():
        log.advance_log_start(offset, answer.append)
    late = held.jobs.copy()
    if is_written:
        for job, _ in late:
            job()
    log.truncate_to(4)
    (refusal,) = answers[6]
    assert refusal is not None and refusal.code is ErrorCode.offset_out_of_range
    append(log, batch_of(1), epoch=1)
    for job, done in late:
        job()
        done(None)
    drain(manager.maintain(NOW))
    assert (answers[2], log.log_start_offset, log.log_end_offset) == ([None], 2, 5)
    assert saved(tmp_path) == {("topic", 0): 2}
    assert start_after(tmp_path, manager) == 2


def test_a_log_made_again_does_not_start_where_the_one_before_was_to(tmp_path: Path) -> None:
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    filled(manager).advance_log_start(6)
    manager.delete("topic", 0)
    log = filled(manager)
    for job, done in held.jobs.copy():
        job()
        done(None)
    assert (log.log_start_offset, log.saved_start) == (0, 0)
    assert not saved(tmp_path)
    kill(manager)


def test_a_clean_stop_takes_along_what_is_on_its_way(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, background=HeldJobs())
    filled(manager).advance_log_start(5)
    manager.close(clean=True)
    assert manager_on(tmp_path).logs["topic", 0].log_start_offset == 5


def test_a_log_begun_anew_further_on_has_its_start_on_the_disk(tmp_path: Path) -> None:
    """Its own first segment would say so as well, were its name not lost with the power."""
    held = HeldJobs()
    manager = manager_on(tmp_path, background=held)
    log = filled(manager)
    answers: list[KafkaError | None] = []
    log.advance_log_start(5, answers.append)
    log.truncate_fully(500)
    assert saved(tmp_path) == {("topic", 0): 500}
    assert answers == [None]
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (500, 500, 500)
    kill(manager)


def test_a_log_begun_anew_without_descriptors_is_as_it_was(tmp_path: Path) -> None:
    files = Scarce()
    manager = manager_on(tmp_path, files=files)
    log = filled(manager)
    files.is_short = True
    with pytest.raises(KafkaError):
        log.truncate_fully(500)
    files.is_short = False
    assert (log.log_start_offset, log.log_end_offset, log.offline) == (0, 8, None)
    append(log, batch_of(1))
    drain(manager.maintain(NOW))
    assert start_after(tmp_path, manager) == 0


# --- power cuts ---


class Site:
    """One log on a disk in memory, and the highest log start that somebody was told."""

    def __init__(self, seed: str) -> None:
        self.disk = Disk(random.Random(seed), lambda: NOW)
        founder = self.disk.mount()
        founder.makedirs("/data")
        founder.fsync_dir("/")
        self.process = Process(SimLoop(), "p")
        self.files = self.disk.mount(self.process)
        self.manager = self._opened(self.files)
        self.log = self.manager.create("topic", TOPIC_ID, 0, SMALL)
        for index in range(8):
            append(self.log, batch_of(1, producer=(1, 0, index)))
        self.log.fsync()
        self.told = 0

    def _opened(self, files: SimFiles) -> LogManager:
        never = Intervals(recovery_points_ms=1 << 60)  # they would sync the names in the log's directory
        return manager_on("", files=files, dirs=("data",), config=SMALL, intervals=never)  # type: ignore[arg-type]

    def tell(self) -> None:
        self.told = self.log.log_start_offset

    def delete_records(self, offset: int) -> None:
        self.log.advance_log_start(offset, lambda error: self.tell())

    def after_power_cuts(self, mode: str) -> UnifiedLog:
        """The next start ends early as well, sometimes."""
        self.process.die(power=True)
        self.disk.power_cut(mode)
        self.process = Process(SimLoop(), "q")
        files = self.disk.mount(self.process)
        files.die_in_changes(self.disk.rng.randrange(1, 25), power=True)
        try:
            self._opened(files)
        except Killed:
            pass
        self.process.die(power=True)
        self.disk.power_cut(mode)
        return self._opened(self.disk.mount()).logs["topic", 0]


def deletes_records(site: Site) -> None:
    site.delete_records(3)
    site.delete_records(6)


def deletes_segments_too(site: Site) -> None:
    """The files of deleted segments may come back, and their offsets must not."""
    site.delete_records(6)
    site.log.expire(NOW)
    drain(site.manager.maintain(NOW))
    drain(site.manager.maintain(NOW + 120_000))


def begins_anew(site: Site) -> None:
    site.log.truncate_fully(500)
    site.tell()
    append(site.log, batch_of(1), epoch=1)
    drain(site.manager.maintain(NOW))


def is_cut_below_its_start(site: Site) -> None:
    site.delete_records(6)
    site.told = 0  # what was committed is lost, and its deletion with it
    site.log.truncate_to(3)
    append(site.log, batch_of(1), epoch=1)
    site.log.fsync()


@pytest.mark.parametrize("mode", ["nothing", "prefix", "subset", "all"])
@pytest.mark.parametrize("acts", [deletes_records, deletes_segments_too, begins_anew, is_cut_below_its_start])
def test_no_power_cut_takes_back_a_log_start_that_was_told(acts: Callable[[Site], None], mode: str) -> None:
    at = 0
    is_done = False
    while not is_done:
        at += 1
        site = Site(f"{acts.__name__} {mode} {at}")
        site.files.die_in_changes(at, power=True)
        try:
            acts(site)
            is_done = True
        except Killed:
            pass
        log = site.after_power_cuts(mode)
        assert site.told <= log.log_start_offset <= log.log_end_offset, f"power cut at operation {at}"
        if log.log_start_offset >= 500:
            assert not log.producer_table.entries
            assert all(epoch > 0 for epoch, _ in log.epochs.entries())
    assert at > 5
