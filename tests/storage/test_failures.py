"""What must stay small: a damaged or lying batch, a failing disk or a lost file costs what it touches and no
more."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.records import build_batch, end_txn_marker, parse_header
from storage.checkpoints import RECOVERY_POINTS, decode_points, run_inline
from storage.files import DiskFiles, File
from storage.log import LogOffline, NoDescriptor
from storage.maintenance import Intervals
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    FaultyFiles,
    append,
    append_short,
    batch_of,
    drain,
    kill,
    log_on,
    manager_on,
    read_all,
    records_of,
    renew_crc,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
EXPIRING = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=1)
AT_ONCE = Intervals(retention_ms=0, initial_delay_ms=0)
IO_ERROR = OSError(errno.EIO, "input/output error")


def fill(log: UnifiedLog, batches: int = 12) -> UnifiedLog:
    for _ in range(batches):
        append(log, batch_of(2))
    return log


# --- records that are not what their header says ---


def lying(max_timestamp: int, **options: object) -> bytearray:
    batch = batch_of(2, **options)  # type: ignore[arg-type]
    struct.pack_into(">q", batch, 35, max_timestamp)
    renew_crc(batch)
    return batch


def test_a_header_that_promises_a_timestamp_is_taken_at_its_word(tmp_path: Path) -> None:
    """Looking for the record it does not have would read the rest of the segment at every question."""
    log = log_on(tmp_path)
    append(log, batch_of(2))
    append(log, lying(NOW + 1000))
    for _ in range(5):
        append(log, lying(NOW + 1000))
    assert log.offset_for_timestamp(NOW + 500, log.log_end_offset) == (NOW + 1000, 2, 0)
    assert log.offset_of_max_timestamp() == (NOW + 1000, 2, 0)


def test_a_batch_that_cannot_be_unpacked_does_not_end_a_question_of_time(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(2))
    broken = batch_of(2, timestamp=NOW + 10, codec=Codec.ZSTD)
    broken[61:] = bytes(len(broken) - 61)
    renew_crc(broken)
    append(log, broken)
    assert log.offset_for_timestamp(NOW + 5, log.log_end_offset) == (NOW + 10, 2, 0)
    assert log.offset_of_max_timestamp() == (NOW + 10, 2, 0)


def test_compaction_leaves_a_timestamp_past_all_time_alone(tmp_path: Path) -> None:
    config = LogConfig(
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=0.01,
        segment_bytes=300,
        message_timestamp_after_max_ms=(1 << 63) - 1,
    )
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    batch = build_batch([(b"a", b"1", (), 1 << 62), (b"b", b"1", (), (1 << 62) + 100)])
    struct.pack_into(">q", batch, 27, (1 << 62) + (1 << 61) * 2 - 50)  # base and delta pass the last int64
    renew_crc(batch)
    append(log, batch)
    for value in range(20):
        append(log, batch_of([(b"a", b"%d" % value)]))
    drain(manager.clean(NOW))
    assert log.offline is None


# --- maintenance ---


def test_maintenance_outlives_a_disk_that_fails_in_it(tmp_path: Path) -> None:
    """The broker has other directories; this generator runs in its root task group."""
    files = FaultyFiles(
        error=IO_ERROR, only=lambda operation, path: (operation, "/one/" in path) == ("rename", 1)
    )
    manager = manager_on(tmp_path, files=files, dirs=("one", "two"), config=EXPIRING, intervals=AT_ONCE)
    logs = [fill(manager.create("topic", TOPIC_ID, index, EXPIRING)) for index in range(4)]
    files.fail_at = files.operations + 1
    drain(manager.maintain(NOW + 100))
    assert list(manager.offline_dirs) == [str(tmp_path / "one")]
    alive = [log for log in logs if log.offline is None]
    assert len(alive) == 2
    assert all(log.log_start_offset == log.log_end_offset for log in alive)


def test_maintenance_outlives_a_damaged_segment(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, config=EXPIRING)
    log = fill(manager.create("topic", TOPIC_ID, 0, EXPIRING))
    fill(manager.create("other", TOPIC_ID, 0, EXPIRING))
    manager.close()
    Path(log.segments[0].path(".timeindex")).unlink()
    Path(log.segments[0].path(".log")).write_bytes(b"\xff" * log.segments[0].size)
    manager = manager_on(tmp_path, config=EXPIRING, intervals=AT_ONCE)
    for each in manager.logs.values():
        each.set_high_watermark(each.log_end_offset)
    drain(manager.maintain(NOW + 100))
    assert manager.logs["other", 0].log_start_offset > 0
    assert manager.logs["topic", 0].offline is None


def test_files_whose_time_is_over_are_removed_beside_the_loop(tmp_path: Path) -> None:
    """A file of 1 GB takes the disk tens of milliseconds to give up."""
    waiting: list[object] = []
    manager = manager_on(
        tmp_path, config=EXPIRING, intervals=AT_ONCE, background=lambda job, done: waiting.append((job, done))
    )
    log = fill(manager.create("topic", TOPIC_ID, 0, EXPIRING))
    fill(manager.create("gone", TOPIC_ID, 0, EXPIRING))
    drain(manager.maintain(NOW + 100))
    manager.delete("gone", 0)
    later = NOW + 200_000
    drain(manager.maintain(later))
    drain(manager.maintain(later))

    def left() -> list[Path]:
        data = tmp_path / "data"
        return [*data.rglob("*.deleted"), *data.glob("*-delete")]

    assert left()
    for job, done in waiting:  # type: ignore[misc]
        run_inline(job, done)  # type: ignore[arg-type]
    assert not left()
    assert not log.has_deleted_files


def test_compaction_leaves_a_directory_that_failed_meanwhile(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, segment_bytes=400)
    files = FaultyFiles()
    manager = manager_on(tmp_path, files=files, config=config)
    log = fill(manager.create("topic", TOPIC_ID, 0, config))
    steps = manager.clean(NOW)
    for _ in range(10):
        next(steps)
    log.flush_failed(IO_ERROR)
    before = files.operations
    drain(steps)
    assert [path for path in Path(log.directory).iterdir() if path.suffix == ".swap"] == []
    assert files.operations <= before + 1  # what it wrote aside is dropped


# --- the way to the disk ---


class Unreadable(DiskFiles):
    refused = ""

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        if self.refused and path.endswith(self.refused):
            raise OSError(errno.EIO, "input/output error", path)
        return super().open(path, create=create)

    def read(self, path: str) -> bytes:
        if self.refused and path.endswith(self.refused):
            raise OSError(errno.EIO, "input/output error", path)
        return super().read(path)


@pytest.mark.parametrize("refused", [".log", "index"])
def test_a_first_append_after_a_start_meets_a_failing_disk(tmp_path: Path, refused: str) -> None:
    manager = manager_on(tmp_path, config=SMALL)
    fill(manager.create("topic", TOPIC_ID, 0, SMALL), 1)
    manager.close()
    files = Unreadable()
    failures: list[tuple[str, OSError]] = []
    manager = manager_on(tmp_path, files=files, config=SMALL, failures=failures)
    files.refused = refused
    with pytest.raises(KafkaError) as refusal:
        append(manager.logs["topic", 0], batch_of())
    assert refusal.value.code is ErrorCode.kafka_storage_error
    assert failures


def test_a_damaged_transaction_index_is_an_error_of_its_reader(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, config=SMALL)
    log = fill(manager.create("topic", TOPIC_ID, 0, SMALL))
    manager.close()
    Path(log.segments[0].path(".txnindex")).write_bytes(b"\xff" * 7)
    log = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    with pytest.raises(KafkaError) as refusal:
        log.aborted_in(0, 5)
    assert refusal.value.code is ErrorCode.corrupt_message
    assert log.offline is None


# --- start ---


def test_damage_below_the_recovery_point_does_not_keep_the_broker_down(tmp_path: Path) -> None:
    """Nothing is cut there: whoever reads those offsets is told, everyone else is served."""
    manager = manager_on(tmp_path, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for sequence in range(12):
        append(log, batch_of(1, producer=(1, 0, sequence), value_bytes=60))
    log.fsync()
    drain(manager.maintain(NOW))
    manager.close()
    directory = Path(log.directory)
    for path in directory.glob("*.snapshot"):
        path.unlink()
    (directory.parent / ".kafka_cleanshutdown").unlink()
    first = sorted(directory.glob("*.log"))[0]
    first.write_bytes(b"\xff" * first.stat().st_size)
    for path in directory.glob("*index"):
        path.unlink()
    again = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    assert again.log_end_offset == 12
    assert append(again, batch_of(1, producer=(1, 0, 12))).first_offset == 12


def test_an_epoch_damaged_upwards_does_not_cost_what_follows_it(tmp_path: Path) -> None:
    """The field is not under the CRC. The leader goes on in its own epoch; a later kill must keep that."""
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(2), epoch=3)
    append(log, batch_of(2), epoch=3)
    kill(manager)
    path = Path(log.segments[-1].path(".log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 12] = 0x40
    path.write_bytes(data)
    manager = manager_on(tmp_path)
    log = manager.logs["topic", 0]
    log.epoch_start(4)
    append(log, batch_of(2), epoch=4)
    append(log, batch_of(2), epoch=5)
    end, held = log.log_end_offset, read_all(log)
    kill(manager)
    again = manager_on(tmp_path).logs["topic", 0]
    again.set_high_watermark(again.log_end_offset)
    assert again.log_end_offset == end
    assert read_all(again) == held
    assert len(records_of(again)) == end


# --- a clean stop ---


class Synced(DiskFiles):
    """Remembers what was synced."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        return SyncedFile(self, super().open(path, create=create))


class SyncedFile:
    def __init__(self, files: Synced, inner: File) -> None:
        self._files = files
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fsync(self) -> None:
        self._files.paths.append(self._inner.path)
        self._inner.fsync()


def test_a_clean_stop_leaves_no_old_index_of_a_closed_segment_to_a_power_cut(tmp_path: Path) -> None:
    """One from the stop before would fit the segment but for its end, and nothing would tell."""
    manager = manager_on(tmp_path, config=SMALL)
    fill(manager.create("topic", TOPIC_ID, 0, SMALL), 1)
    manager.close()
    files = Synced()
    manager = manager_on(tmp_path, files=files, config=SMALL)
    log = fill(manager.logs["topic", 0], 4)
    assert len(log.segments) > 1
    first = log.segments[0]
    manager.close()
    assert {first.path(".log"), first.path(".index"), first.path(".timeindex")} <= set(files.paths)


# --- damage that is found while reading ---


def test_a_damaged_segment_without_its_index_is_never_skipped(tmp_path: Path) -> None:
    """A reader is told each time; going on behind the damage would lose records without a word."""
    manager = manager_on(tmp_path, config=SMALL)
    log = fill(manager.create("topic", TOPIC_ID, 0, SMALL))
    manager.close()
    first = log.segments[0]
    path = Path(first.path(".log"))
    data = bytearray(path.read_bytes())
    middle = parse_header(data).size
    data[middle + 8 : middle + 12] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    Path(first.path(".index")).unlink()
    again = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    again.set_high_watermark(again.log_end_offset)
    size = again.size
    for _ in range(3):
        with pytest.raises(KafkaError) as refusal:
            again.read(2, 1 << 20, bound=again.log_end_offset, min_one=True)
        assert refusal.value.code is ErrorCode.corrupt_message
        again.release_idle()
    assert again.size == size
    assert again.read(log.segments[1].base_offset, 1 << 20, bound=again.log_end_offset, min_one=True)


# --- no descriptor left ---


class Scarce(DiskFiles):
    """A process that may open no further file while `is_short`."""

    def __init__(self) -> None:
        self.is_short = False

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        if self.is_short:
            raise OSError(errno.EMFILE, "too many open files", path)
        return super().open(path, create=create)


def test_a_roll_without_descriptors_may_be_tried_again(tmp_path: Path) -> None:
    files, failures = Scarce(), []  # type: ignore[var-annotated]
    manager = manager_on(tmp_path, config=SMALL, files=files, failures=failures)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    files.is_short = True
    refused = 0
    for sequence in range(40):
        for _ in range(2):
            try:
                append(log, batch_of(2, producer=(1, 0, 2 * sequence)))
                break
            except KafkaError as error:
                assert error.code is ErrorCode.kafka_storage_error
                refused += 1
                files.is_short = False
        files.is_short = True
    assert refused == len(log.segments) > 5  # the first append opens the file, each roll makes one
    assert not failures and log.offline is None
    assert [record.offset for record in records_of(log)] == list(range(80))
    kill(manager)
    again = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    assert again.log_end_offset == 80


@pytest.mark.parametrize("close_files", [UnifiedLog.release_files, lambda log: log.release_idle()])
def test_an_append_finds_its_file_open_or_is_refused_before_anything_is_staged(
    tmp_path: Path, close_files: Any
) -> None:
    files, failures = Scarce(), []  # type: ignore[var-annotated]
    log = manager_on(tmp_path, files=files, failures=failures).create("topic", TOPIC_ID, 0, LogConfig())
    append_short(log, batch_of(1))
    log.release_files()
    log.flush_staged()  # what was staged keeps its file
    for _ in range(2):
        close_files(log)
    files.is_short = True
    for _ in range(2):
        with pytest.raises(KafkaError):
            append_short(log, batch_of(1))
    assert not failures and log.log_end_offset == 1
    files.is_short = False
    append_short(log, batch_of(1))
    log.flush_staged()
    assert [record.offset for record in records_of(log)] == [0, 1]


@pytest.mark.parametrize("close_files", [UnifiedLog.release_files, UnifiedLog.release_idle])
def test_what_is_staged_keeps_its_file(tmp_path: Path, close_files: Any) -> None:
    """It lies in the buffers of connections, which are used again: it can be written now, or never."""
    files, failures = Scarce(), []  # type: ignore[var-annotated]
    log = manager_on(tmp_path, files=files, failures=failures).create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1))
    log.release_idle()
    append_short(log, batch_of(1))
    close_files(log)
    files.is_short = True
    log.flush_staged()
    assert not failures
    assert [record.offset for record in records_of(log)] == [0, 1]


def test_a_checkpoint_and_a_sync_without_descriptors_are_made_up_for(tmp_path: Path) -> None:
    files, failures = Scarce(), []  # type: ignore[var-annotated]
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, flush_ms=0)
    intervals = Intervals(recovery_points_ms=0)
    manager = manager_on(tmp_path, config=config, files=files, failures=failures, intervals=intervals)
    log = fill(manager.create("topic", TOPIC_ID, 0, config))
    log.release_files()
    files.is_short = True
    drain(manager.maintain(NOW + 1))
    manager.checkpoint_high_watermarks()
    assert not failures and log.offline is None
    assert log.recovery_point == 0
    files.is_short = False
    drain(manager.maintain(NOW + 2))
    manager.checkpoint_high_watermarks()
    assert log.recovery_point == log.log_end_offset
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert (tmp_path / "data" / name).read_text().endswith("topic 0 24\n")


class ScarceFor(Scarce):
    """One that was short of descriptors just then."""

    def __init__(self, path_part: str) -> None:
        super().__init__()
        self.path_part = path_part

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        if self.path_part not in path:
            return DiskFiles.open(self, path, create=create)
        return super().open(path, create=create)


@pytest.mark.parametrize("path_part", [".log", "log-start-offset-checkpoint"])
def test_a_stop_that_could_not_write_everything_is_not_clean(tmp_path: Path, path_part: str) -> None:
    files = ScarceFor(path_part)
    manager = manager_on(tmp_path, files=files)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1))
    append(log, batch_of(1))
    log.release_files()
    files.is_short = True
    log.advance_log_start(1)
    manager.close()
    assert not manager.offline_dirs
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("path_part", [".log", "leader-epoch-checkpoint"])
def test_a_cut_without_descriptors_is_whole_or_the_end_of_the_log(tmp_path: Path, path_part: str) -> None:
    files = ScarceFor(path_part)
    log = fill(manager_on(tmp_path, config=SMALL, files=files).create("topic", TOPIC_ID, 0, SMALL))
    assert len(log.segments) > 3
    log.release_files()
    files.is_short = True
    with pytest.raises(KafkaError):
        log.truncate_to(3)
    files.is_short = False
    if log.offline is None:
        append(log, batch_of(1), epoch=9)
        assert [record.offset for record in records_of(log)] == list(range(log.log_end_offset))


class Unlistable(DiskFiles):
    """A directory takes a descriptor to be read, and there is none, though the logs are open."""

    is_short = False

    def listdir(self, path: str) -> list[str]:
        if self.is_short:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().listdir(path)


@pytest.mark.parametrize("cut", [lambda log: log.truncate_to(22), lambda log: log.truncate_fully(40)])
def test_a_cut_of_an_open_log_without_descriptors_may_be_tried_again(
    tmp_path: Path, cut: Callable[[UnifiedLog], None]
) -> None:
    files = Unlistable()
    manager = manager_on(tmp_path, config=SMALL, files=files)
    log = fill(manager.create("topic", TOPIC_ID, 0, SMALL))
    before = records_of(log)
    files.is_short = True
    with pytest.raises(NoDescriptor):
        cut(log)
    assert not manager.offline_dirs
    assert records_of(log) == before
    files.is_short = False
    cut(log)
    assert log.log_end_offset in (22, 40)


@pytest.mark.parametrize("fail_at", range(1, 3))
def test_a_swap_without_descriptors_ends_the_log(tmp_path: Path, fail_at: int) -> None:
    short = OSError(errno.EMFILE, "too many open files")
    files = FaultyFiles(error=short, only=lambda operation, path: operation == "fsync_dir")
    config = replace(SMALL, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    manager = manager_on(tmp_path, config=config, files=files)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(24):
        log.append_records(batch_of(1), leader_epoch=0, now_ms=NOW)
    log.set_high_watermark(log.log_end_offset)
    log.fsync()
    manager.settle_closed(log)
    files.operations, files.fail_at = 0, fail_at
    drain(manager.clean(NOW))
    assert files.operations >= fail_at
    assert log.offline is not None
    kill(manager)
    again = manager_on(tmp_path, config=config).logs["topic", 0]
    assert again.log_end_offset == 24
    assert records_of(again)[-1].offset == 23


def test_a_cut_that_the_recovery_points_cannot_be_told_of_does_not_happen(tmp_path: Path) -> None:
    files = ScarceFor(RECOVERY_POINTS)
    manager = manager_on(tmp_path, config=SMALL, files=files)
    log = fill(manager.create("topic", TOPIC_ID, 0, SMALL))
    log.fsync()
    manager._checkpoints[log.log_dir].write(RECOVERY_POINTS, run_inline)
    for cut in (partial(log.truncate_to, 4), partial(log.truncate_fully, 30)):
        files.is_short = True
        with pytest.raises(NoDescriptor):
            cut()
        files.is_short = False
        assert (log.log_end_offset, log.recovery_point) == (24, 24)
        append(log, batch_of(1))
        log.truncate_to(24)
        log.fsync()
        manager._checkpoints[log.log_dir].write(RECOVERY_POINTS, run_inline)
    log.truncate_to(4)
    assert decode_points((tmp_path / "data" / RECOVERY_POINTS).read_bytes()) == {("topic", 0): 3}


def test_a_log_is_not_made_beside_a_checkpoint_that_nobody_knows(tmp_path: Path) -> None:
    files = ScarceFor(RECOVERY_POINTS)
    manager = manager_on(tmp_path, files=files)
    first, other = (manager.create(name, TOPIC_ID, 0, LogConfig()) for name in ("topic", "other"))
    for log in (first, other):
        fill(log).fsync()
    manager._checkpoints[first.log_dir].write(RECOVERY_POINTS, run_inline)
    manager.delete("topic", 0)
    manager._checkpoints[first.log_dir].write(RECOVERY_POINTS, lambda job, done: None)
    files.is_short = True
    with pytest.raises(KafkaError):
        other.truncate_to(2)
    with pytest.raises(KafkaError):
        manager.create("topic", UUID(int=5), 0, LogConfig())
    files.is_short = False
    manager.create("topic", UUID(int=5), 0, LogConfig())
    points = decode_points((tmp_path / "data" / RECOVERY_POINTS).read_bytes())
    assert ("topic", 0) not in points


def test_an_abort_that_cannot_be_indexed_ends_the_log(tmp_path: Path) -> None:
    files = ScarceFor(".txnindex")
    manager = manager_on(tmp_path, files=files)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(2, producer=(1, 0, 0), transactional=True))
    marker = end_txn_marker(commit=False, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)
    files.is_short = True
    with pytest.raises(LogOffline):
        log.append_records(bytes(marker), leader_epoch=0, now_ms=NOW, origin="coordinator")
    files.is_short = False
    kill(manager)
    log = manager_on(tmp_path).logs["topic", 0]
    log.append_records(marker, leader_epoch=0, now_ms=NOW, origin="coordinator")
    log.set_high_watermark(log.log_end_offset)
    assert (log.last_stable_offset, log.aborted_in(0, 2)) == (log.log_end_offset, [(1, 0)])


def test_files_make_room_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.open, [0]

    def bounded(*arguments: Any, **options: Any) -> int:
        if not left[0]:
            raise OSError(errno.EMFILE, "too many open files")
        return real(*arguments, **options)

    files = DiskFiles()
    monkeypatch.setattr(os, "open", bounded)
    with pytest.raises(OSError, match="too many open files"):
        files.open(f"{tmp_path}/a", create=True)
    files.make_room = lambda: left.append(left.pop() + 1)
    files.open(f"{tmp_path}/a", create=True).writev([b"x"])
    assert (tmp_path / "a").read_bytes() == b"x"


def test_errors_of_an_offline_log_keep_nothing_of_those_before(tmp_path: Path) -> None:
    """One error raised again and again would carry the frames, and so the buffers, of every time."""
    log = log_on(tmp_path)
    append(log, batch_of(1))
    log.take_offline("the disk is gone")
    depths = []
    for _ in range(3):
        with pytest.raises(KafkaError, match="the disk is gone") as caught:
            log.read(0, 1000, bound=1, min_one=True)
        assert caught.value.code is ErrorCode.kafka_storage_error
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
