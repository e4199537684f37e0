"""Directories, checkpoints, clean and unclean stops, and failing disks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from uuid import UUID

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.records import iter_batches
from storage import maintenance
from storage.checkpoints import decode_points, encode_points, run_inline
from storage.files import DiskFile, DiskFiles
from storage.flush import SegmentFlush
from storage.log_manager import LogDirError, LogDirLocked, LogManager, parse_directory_name
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    FaultyFiles,
    append,
    batch_of,
    drain,
    headers_of,
    kill,
    manager_on,
    read_all,
    records_of,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
DEADLINE_S = 10  # of waits that end at once unless something hangs
DISK_FULL = OSError(errno.ENOSPC, "no space left on device")


class Counting(DiskFiles):
    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False) -> object:  # type: ignore[override]
        self.opened.append(path)
        return super().open(path, create=create)

    def read(self, path: str) -> bytes:
        self.opened.append(path)
        return super().read(path)


def test_a_second_process_is_refused_with_one_line(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    code = (
        "import random\n"
        "from storage.files import DiskFiles\n"
        "from storage.log_manager import LogDirLocked, LogManager\n"
        "from storage.policy import LogConfig\n"
        f"manager = LogManager(files=DiskFiles(), dirs=[{str(tmp_path / 'data')!r}], now_ms=lambda: 0,\n"
        "    random=random.Random(0), defaults=LogConfig(), on_dir_failure=print)\n"
        "try:\n    manager.lock_and_open()\nexcept LogDirLocked as error:\n    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.count("\n") == 1
    assert "in use by another process" in result.stdout
    manager.close()
    with_lock_free = manager_on(tmp_path)
    kill(with_lock_free)


def test_the_same_process_cannot_open_a_directory_twice(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    with pytest.raises(LogDirLocked):
        manager_on(tmp_path)
    kill(manager)


def test_a_start_that_finds_a_directory_taken_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    manager_on(tmp_path, dirs=("one",)).close()
    marker = (tmp_path / "one" / ".kafka_cleanshutdown").read_bytes()
    other = manager_on(tmp_path, dirs=("two",))
    with pytest.raises(LogDirLocked):
        manager_on(tmp_path, dirs=("one", "two"))
    assert (tmp_path / "one" / ".kafka_cleanshutdown").read_bytes() == marker
    kill(other)
    kill(manager_on(tmp_path, dirs=("one", "two")))


def test_a_clean_stop_is_marked_and_the_next_start_reads_no_log(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    for partition in range(20):
        log = manager.create("topic", TOPIC_ID, partition, SMALL)
        for index in range(partition):
            append(log, batch_of(2), epoch=index)
    expected = {
        key: (log.log_end_offset, log.epochs.entries(), log.size) for key, log in manager.logs.items()
    }
    manager.close(clean=True, broker_epoch=17)
    marker = tmp_path / "data" / ".kafka_cleanshutdown"
    assert json.loads(marker.read_text())["brokerEpoch"] == 17
    files = Counting()
    manager = manager_on(tmp_path, files=files, config=SMALL)
    assert {
        key: (log.log_end_offset, log.epochs.entries(), log.size) for key, log in manager.logs.items()
    } == expected
    assert not marker.exists()
    assert not [path for path in files.opened if "topic-" in path]
    for log in manager.logs.values():
        log.set_high_watermark(log.log_end_offset)
        assert len(records_of(log)) == log.log_end_offset
        append(log, batch_of(1), epoch=50)
    kill(manager)


def test_notes_are_not_believed_after_a_foreign_change(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(2))
    manager.close(clean=True)
    path = Path(log.directory) / f"{0:020d}.log"
    extra = batch_of(3, base_offset=2, leader_epoch=0)
    path.write_bytes(path.read_bytes() + extra)
    again = manager_on(tmp_path).logs["topic", 0]
    assert again.log_end_offset == 5


def test_a_marker_kafka_wrote_means_clean_without_notes(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for index in range(8):
        append(log, batch_of(2, producer=(1, 0, 2 * index)), epoch=index)
    before = (log.log_end_offset, log.epochs.entries(), log.producers(), read_all(log))
    manager.close(clean=True)
    (tmp_path / "data" / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":3}')
    again = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    again.set_high_watermark(100)
    assert (again.log_end_offset, again.epochs.entries(), again.producers(), read_all(again)) == before
    assert again.topic_id == TOPIC_ID
    assert again.recovery_point == again.log_end_offset


def test_clean_without_an_epoch_file_takes_epochs_from_the_batches(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for index in range(8):
        append(log, batch_of(2), epoch=index)
    entries = log.epochs.entries()
    manager.close(clean=True)
    (tmp_path / "data" / ".kafka_cleanshutdown").write_text("")
    (Path(log.directory) / "leader-epoch-checkpoint").unlink()
    assert manager_on(tmp_path, config=SMALL).logs["topic", 0].epochs.entries() == entries


def test_a_clean_marker_over_a_torn_log_recovers_anyway(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(2))
    append(log, batch_of(2))
    manager.close(clean=True)
    path = Path(log.directory) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-5])
    again = manager_on(tmp_path).logs["topic", 0]
    assert again.log_end_offset == 2
    assert path.stat().st_size == again.size


def test_partition_metadata_and_checkpoints_have_kafkas_format(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 3, LogConfig())
    append(log, batch_of(4), epoch=6)
    log.advance_log_start(2)
    manager.close(clean=True)
    data = tmp_path / "data"
    assert (
        data / "topic-3" / "partition.metadata"
    ).read_text() == "version: 0\ntopic_id: EjRWeJq83vASNFZ4mrze8A"
    assert (data / "topic-3" / "leader-epoch-checkpoint").read_text() == "0\n1\n6 2\n"
    assert (data / "recovery-point-offset-checkpoint").read_text() == "0\n01\ntopic 3 4\n"
    assert (data / "log-start-offset-checkpoint").read_text() == "0\n1\ntopic 3 2\n"
    assert (data / "replication-offset-checkpoint").read_text() == "0\n1\ntopic 3 4\n"


def test_checkpoint_files_reject_what_they_are_not() -> None:
    assert decode_points(encode_points({("a", 0): 1, ("b", 12): 3})) == {("a", 0): 1, ("b", 12): 3}
    for bad in (b"", b"1\n0\n", b"0\n2\na 0 1\n", b"0\nx\n", b"0\n1\na 0\n", b"\xff"):
        with pytest.raises(ValueError):
            decode_points(bad)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("topic-0", ("topic", 0)),
        ("a-b-12", ("a-b", 12)),
        ("topic", None),
        ("topic-", None),
        ("-3", None),
        ("topic-0.0123456789abcdef0123456789abcdef-delete", None),
        ("topic-x", None),
        ("topic-\u0663", None),
    ],
)
def test_directory_names(name: str, expected: object) -> None:
    assert parse_directory_name(name) == expected


def test_delete_sets_aside_and_removes_later(tmp_path: Path) -> None:
    clock = [NOW]
    manager = manager_on(tmp_path, clock=lambda: clock[0])
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(3))
    found = log.read(0, 1000, bound=3, min_one=True)
    manager.delete("topic", 0)
    names = [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert len(names) == 1 and names[0].startswith("topic-0.") and names[0].endswith("-delete")
    drain(manager.maintain(clock[0] + 59_999))
    assert list((tmp_path / "data").glob("*-delete"))
    drain(manager.maintain(clock[0] + 60_000))
    assert not list((tmp_path / "data").glob("*-delete"))
    assert found is not None and len(found.read()) == found.size  # a reader in flight is not disturbed
    with pytest.raises(KafkaError) as caught:
        append(log, batch_of(1))
    assert caught.value.code is ErrorCode.kafka_storage_error
    fresh = manager.create("topic", UUID(int=5), 0, LogConfig())
    assert fresh.log_end_offset == 0
    assert not manager.offline_dirs


def test_who_still_holds_a_deleted_log_holds_no_file(tmp_path: Path) -> None:
    """A connection that produced to it does, for as long as it is open."""
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(3, producer_id=7, producer_epoch=0, base_sequence=0))
    assert log.segments[-1].is_open
    assert log.producer_table.entries
    manager.delete("topic", 0)
    assert not any(segment.is_open for segment in log.segments)
    assert not log.producer_table.entries


def test_all_logs_together_remember_so_many_producers_and_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log with the most forgets those that are silent for longest."""
    monkeypatch.setattr(maintenance, "ALL_PRODUCERS_MAX", 12)
    monkeypatch.setattr(maintenance, "ALL_VERIFICATIONS_MAX", 9)
    monkeypatch.setattr(maintenance, "FORGOTTEN_PER_SLICE", 2)
    manager = manager_on(tmp_path)
    tables = []
    for partition, count in ((0, 20), (1, 4)):
        log = manager.create("topic", TOPIC_ID, partition, LogConfig())
        tables.append(log.producer_table)
        for at in range(count):
            append(log, batch_of(1, producer_id=at, producer_epoch=0, base_sequence=0))
            log.producer_table.begin_verification(100 + at, 0, 0, adds=False, now_ms=NOW)
    drain(manager.maintain(NOW))
    drain(manager.maintain(NOW + 5_000))
    assert [sorted(table.entries) for table in tables] == [[*range(12, 20)], [*range(4)]]
    assert [list(table.verifications) for table in tables] == [[*range(115, 120)], [*range(100, 104)]]


def test_set_aside_logs_are_removed_or_left_at_the_next_start(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    for topic in ("gone", "stray"):
        manager.create(topic, TOPIC_ID, 0, LogConfig())
    manager.delete("gone", 0)
    manager.stray("stray", 0)
    kill(manager)
    manager = manager_on(tmp_path)
    assert manager.logs == {}
    drain(manager.maintain(NOW))
    assert [path.name.rpartition("-")[2] for path in (tmp_path / "data").iterdir() if path.is_dir()] == [
        "stray"
    ]


def test_long_topic_names_still_fit_a_directory_name(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    manager.create("t" * 249, TOPIC_ID, 0, LogConfig())
    manager.delete("t" * 249, 0)
    assert max(len(path.name) for path in (tmp_path / "data").iterdir()) == 255


def test_new_logs_go_where_there_are_fewest(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, dirs=("one", "two"))
    for partition in range(6):
        manager.create("topic", TOPIC_ID, partition, LogConfig())
    counts = [len(list((tmp_path / name).glob("topic-*"))) for name in ("one", "two")]
    assert counts == [3, 3]
    manager.close()
    assert len(manager_on(tmp_path, dirs=("one", "two")).logs) == 6


def test_a_log_in_two_directories_is_an_error(tmp_path: Path) -> None:
    for name in ("one", "two"):
        manager = manager_on(tmp_path, dirs=(name,))
        append(manager.create("topic", TOPIC_ID, 0, LogConfig()), batch_of(1))
        manager.close()
    with pytest.raises(LogDirError, match="topic-0 is in both"):
        manager_on(tmp_path, dirs=("one", "two"))


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("earlier", ["one", "two"])
def test_a_disk_that_was_away_while_a_topic_was_made_anew_does_not_keep_the_broker_down(
    tmp_path: Path, earlier: str, is_there: bool
) -> None:
    new_id = UUID(int=77)
    for name in ("one", "two"):
        manager = manager_on(tmp_path, dirs=(name,))
        topic_id = TOPIC_ID if name == earlier else new_id
        append(manager.create("topic", topic_id, 0, LogConfig()), batch_of(1))
        manager.close()
    manager = manager_on(tmp_path, dirs=("one", "two"), id_of=lambda _: new_id if is_there else None)
    kept = manager.logs["topic", 0]
    if is_there:
        assert (kept.known_topic_id, kept.log_end_offset) == (new_id, 1)
    (aside,) = tmp_path.glob("*/topic-0*-stray")
    assert aside.parent != Path(kept.log_dir)


@pytest.mark.parametrize("used", ["one", "two"])
@pytest.mark.parametrize("is_begun", [False, True])
def test_what_a_failing_disk_left_of_a_log_made_elsewhere_is_set_aside(
    tmp_path: Path, used: str, is_begun: bool
) -> None:
    unused = "two" if used == "one" else "one"
    manager = manager_on(tmp_path, dirs=(used,))
    append(manager.create("topic", TOPIC_ID, 0, LogConfig()), batch_of(1))
    manager.close()
    if is_begun:
        manager = manager_on(tmp_path, dirs=(unused,))
        manager.create("topic", TOPIC_ID, 0, LogConfig())
        manager.close()
    else:
        (tmp_path / unused / "topic-0").mkdir(parents=True)
    manager = manager_on(tmp_path, dirs=("one", "two"))
    log = manager.logs["topic", 0]
    assert (log.log_end_offset, Path(log.directory)) == (1, tmp_path / used / "topic-0")
    (left,) = (tmp_path / unused).glob("topic-0*")
    assert left.name.endswith("-stray")


# --- failing disks ---


@pytest.mark.parametrize("operation", ["writev", "fsync", "rename", "create"])
def test_a_failed_directory_answers_56_and_leaves_the_others_alive(tmp_path: Path, operation: str) -> None:
    failures: list[tuple[str, OSError]] = []
    files = FaultyFiles(error=DISK_FULL)
    files.only = lambda what, path: what == operation and "/one/" in path
    manager = manager_on(tmp_path, dirs=("one", "two"), files=files, failures=failures, config=SMALL)
    logs = [manager.create("topic", TOPIC_ID, partition, SMALL) for partition in range(4)]
    bad = [log for log in logs if "/one/" in log.directory]
    good = [log for log in logs if "/two/" in log.directory]
    for log in logs:
        append(log, batch_of(2))
    files.fail_at = files.operations + 1
    with pytest.raises(KafkaError) as caught:
        for _ in range(9):  # rolls on the way
            append(bad[0], batch_of(2))
        bad[0].fsync()
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert failures == [(str(tmp_path / "one"), DISK_FULL)]
    actions: list[Callable[[], object]] = [
        lambda: append(bad[1], batch_of(1)),
        lambda: bad[1].read(0, 100, bound=1, min_one=True),
        lambda: bad[1].fsync(),
        lambda: bad[1].truncate_to(0),
        lambda: bad[1].advance_log_start(1),
    ]
    for action in actions:
        with pytest.raises(KafkaError) as refusal:
            action()
        assert refusal.value.code is ErrorCode.kafka_storage_error
    for log in good:
        append(log, batch_of(2))
        log.fsync()
    assert manager.create("topic", TOPIC_ID, 9, SMALL).log_dir == str(tmp_path / "two")
    drain(manager.maintain(NOW + 600_000))
    manager.close(clean=True)
    assert (tmp_path / "two" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "one" / ".kafka_cleanshutdown").exists()
    assert len(failures) == 1


def test_no_usable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, not a directory")
    with pytest.raises(LogDirError, match="no log directory is usable"):
        manager_on(tmp_path, failures=[])


def test_a_short_batch_after_a_failed_write_is_cut_at_the_next_start(tmp_path: Path) -> None:
    class Tearing(FaultyFiles):
        def step(self, operation: str, path: str) -> None:
            if operation == "writev" and path.endswith(".log") and self.fail_at == 0:
                with open(path, "ab") as file:
                    file.write(b"\0\0\0")
                raise DISK_FULL

    files = Tearing()
    manager = manager_on(tmp_path, files=files, failures=[])
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(2))
    files.fail_at = 0
    with pytest.raises(KafkaError):
        append(log, batch_of(2))
    kill(manager)
    again = manager_on(tmp_path).logs["topic", 0]
    assert (again.log_end_offset, again.dropped_bytes) == (2, 3)


# --- durability ---


def test_a_flush_can_run_elsewhere(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = manager_on(tmp_path, files=files)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(2))
    job = log.fsync_target()
    assert job is not None and job.upto == 2
    append(log, batch_of(1))
    assert log.recovery_point == 0
    job.run()
    log.mark_flushed(job)
    assert log.recovery_point == 2
    log.fsync()
    assert log.recovery_point == 3
    assert log.fsync_target() is None


def overtaken_by_a_cut(tmp_path: Path) -> tuple[UnifiedLog, SegmentFlush]:
    """A log that was cut and appended to while a flush was under way, and that flush, which has run."""
    log = manager_on(tmp_path).create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(4):
        append(log, batch_of(1))
    job = log.fsync_target()
    assert job is not None
    job.run()
    log.truncate_to(1)
    for _ in range(5):
        append(log, batch_of(1))
    return log, job


def test_a_flush_that_a_truncation_overtook_vouches_for_nothing_new(tmp_path: Path) -> None:
    log, job = overtaken_by_a_cut(tmp_path)
    log.mark_flushed(job)
    assert log.recovery_point == 0, "the cut itself is to be synced"


def test_a_flush_from_before_a_cut_does_not_vouch_for_one_begun_after_it(tmp_path: Path) -> None:
    log, early = overtaken_by_a_cut(tmp_path)
    late = log.fsync_target()
    assert late is not None
    log.mark_flushed(early)
    assert log.recovery_point == 0, "the later one has not run yet"
    late.run()
    log.mark_flushed(late)
    assert log.recovery_point == 6


def test_a_flush_does_not_vouch_for_the_indexes_of_a_segment_that_was_closed_meanwhile(
    tmp_path: Path,
) -> None:
    log = manager_on(tmp_path, config=SMALL).create("topic", TOPIC_ID, 0, SMALL)
    append(log, batch_of(3))
    while True:
        flush = log.fsync_target()
        assert flush is not None
        append(log, batch_of(3))
        if len(log.segments) > 1:
            break
    assert log.segments[-1].base_offset == flush.upto
    flush.run()
    log.mark_flushed(flush)
    assert log.recovery_point == flush.upto - 1, "a start would not read that segment"
    closed = log.fsync_target(closed_only=True)
    assert closed is not None
    closed.run()
    log.mark_flushed(closed)
    assert log.recovery_point == flush.upto


def test_a_log_that_was_marked_and_then_left_alone_is_synced_once(tmp_path: Path) -> None:
    log = manager_on(tmp_path).create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1))
    log.mark()
    log.fsync()
    assert log.fsync_target() is None and log.closing() is None


def test_what_a_flush_under_way_is_to_sync_a_stop_syncs_too(tmp_path: Path) -> None:
    log = manager_on(tmp_path).create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1))
    append(log, batch_of(1))
    log.fsync()
    log.truncate_to(0)
    assert log.fsync_target() is not None
    late = log.closing()
    assert late is not None
    assert log.segments[-1].path(".log") in late._paths, "a power cut would bring back what was cut off"


def test_truncation_takes_the_recovery_point_on_disk_along(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(4):
        append(log, batch_of(1))
    log.fsync()
    drain(manager.maintain(NOW))
    drain(manager.maintain(NOW + 60_000))
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    assert path.read_text().endswith("topic 0 4\n")
    log.truncate_to(2)
    assert path.read_text().endswith("topic 0 1\n"), "the cut itself is to be synced"


def test_a_cut_at_the_end_forgets_an_epoch_that_was_led_without_a_record(tmp_path: Path) -> None:
    """Otherwise the replica that led it would be told for ever where its epochs part from the leader's."""
    log = manager_on(tmp_path).create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1), epoch=3)
    log.epoch_start(4)
    log.save_epochs()
    log.truncate_to(1)
    assert (log.log_end_offset, log.epochs.entries()) == (1, [(3, 0)])
    path = tmp_path / "data" / "topic-0" / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n1\n3 0\n"


@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot"])
@pytest.mark.parametrize("older", [True, False])
def test_what_a_clean_stop_does_not_sync_may_be_lost_or_old(tmp_path: Path, kind: str, older: bool) -> None:
    config = LogConfig(index_interval_bytes=100)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for index in range(8):
        append(log, batch_of(2, producer=(1, 0, 2 * index), timestamp=NOW + index), epoch=index)
    manager.close(clean=True)
    directory = Path(log.directory)
    before = {path.name: path.read_bytes() for path in directory.glob(f"*.{kind}")}
    manager = manager_on(tmp_path, config=config)
    log = manager.logs["topic", 0]
    for index in range(8, 16):
        append(log, batch_of(2, producer=(1, 0, 2 * index), timestamp=NOW + index), epoch=index)
    expected = (log.producers(), log.epochs.entries(), log.offset_of_max_timestamp(), read_all(log))
    manager.close(clean=True)
    for path in directory.glob(f"*.{kind}"):
        path.unlink()
    if older:
        for name, data in before.items():
            (directory / name).write_bytes(data)
    manager = manager_on(tmp_path, config=config)
    again = manager.logs["topic", 0]
    again.set_high_watermark(32)
    assert (
        again.producers(),
        again.epochs.entries(),
        again.offset_of_max_timestamp(),
        read_all(again),
    ) == expected
    assert again.offset_for_timestamp(NOW + 12, 99) == (NOW + 12, 24, 12)


def test_a_stop_does_not_wait_for_a_checkpoint_in_the_background(tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    manager = manager_on(tmp_path, background=lambda job, done: jobs.append(job))
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(4))
    log.advance_log_start(1)
    drain(manager.maintain(NOW))
    assert jobs
    log.advance_log_start(3)
    drain(manager.maintain(NOW))
    manager.close(clean=True)
    for late in jobs:
        late()
    assert manager_on(tmp_path).logs["topic", 0].log_start_offset == 3


@pytest.mark.parametrize("points", ["0\n1\ntopic 0 0\n", "garbage", None])
def test_gaps_that_compaction_left_are_no_lost_tails(tmp_path: Path, points: str | None) -> None:
    """A directory Kafka compacted past its checkpoint, or one whose checkpoint is lost, keeps what is
    there."""
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, segment_bytes=400)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for index in range(40):
        append(log, batch_of([(b"key-%d" % (index % 2 if index else 9), b"value")]))
    drain(manager.clean(NOW))
    expected = read_all(log)
    assert any(a.next_offset < b.base_offset for a, b in pairwise(headers_of(log)))
    kill(manager)
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    path.unlink()
    if points is not None:
        path.write_text(points)
    for _ in range(3):
        manager = manager_on(tmp_path, config=config)
        log = manager.logs["topic", 0]
        log.set_high_watermark(40)
        assert read_all(log) == expected
        kill(manager)


def test_a_segment_that_lost_its_tail_with_the_power_ends_the_log(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for _ in range(12):
        append(log, batch_of(1))
    kill(manager)
    first = Path(log.directory) / f"{0:020d}.log"
    batches = list(iter_batches(first.read_bytes()))
    first.write_bytes(first.read_bytes()[: batches[-1][0]])
    again = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    assert again.log_end_offset == batches[-1][1].base_offset
    assert len(again.segments) == 1


def checkpoint_everything(manager: LogManager) -> None:
    drain(manager.maintain(NOW))
    drain(manager.maintain(NOW + 60_000))


def test_a_log_made_again_by_its_name_takes_nothing_over_from_the_one_before(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    first = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(8):
        append(first, batch_of(1))
    first.fsync()
    first.advance_log_start(6)
    checkpoint_everything(manager)
    manager.delete("topic", 0)
    second = manager.create("topic", UUID(int=5), 0, LogConfig())
    append(second, batch_of(3), replicated=False)
    second.fsync()
    kill(manager)
    again = manager_on(tmp_path).logs["topic", 0]
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (0, 3, 0)


def test_a_cut_is_on_the_disk_before_it_happens_whatever_checkpoint_is_on_its_way(tmp_path: Path) -> None:
    jobs: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(8):
        append(log, batch_of(1))
    log.fsync()
    log.advance_log_start(7)
    manager._background = lambda job, done: jobs.append((job, done))
    checkpoint_everything(manager)
    assert jobs
    log.truncate_to(2)
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    assert path.read_text().endswith("topic 0 1\n")
    append(log, batch_of(1))
    log.fsync()
    for job, done in jobs:
        job()
        done(None)
    assert path.read_text().endswith("topic 0 1\n")
    kill(manager)
    again = manager_on(tmp_path).logs["topic", 0]
    assert (again.log_start_offset, again.log_end_offset) == (2, 3)


class SlowOnce(DiskFiles):
    """The first sync of a checkpoint lasts until `go_on`."""

    def __init__(self) -> None:
        self.is_slow = False
        self.reached, self.go_on = Event(), Event()

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        if not self.is_slow or not path.endswith(".next"):
            return file
        self.is_slow = False
        slow = SlowFile(path, os.dup(file.fileno()))
        slow.disk = self
        return slow


class SlowFile(DiskFile):
    disk: SlowOnce

    def fsync(self) -> None:
        self.disk.reached.set()
        assert self.disk.go_on.wait(DEADLINE_S)
        super().fsync()


def test_a_cut_does_not_wait_for_the_sync_of_a_checkpoint_elsewhere(tmp_path: Path) -> None:
    files = SlowOnce()
    manager = manager_on(tmp_path, files=files)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(8):
        append(log, batch_of(1))
    log.fsync()
    files.is_slow = True
    threads: list[Thread] = []

    def elsewhere(job: Callable[[], None], done: object) -> None:
        threads.append(Thread(target=job))
        threads[-1].start()

    manager._checkpoints[log.log_dir].write("recovery-point-offset-checkpoint", elsewhere)
    assert files.reached.wait(DEADLINE_S)
    cut = Thread(target=log.truncate_to, args=(2,))
    cut.start()
    cut.join(DEADLINE_S)
    has_waited = cut.is_alive()
    files.go_on.set()
    for thread in (cut, *threads):
        thread.join()
    assert not has_waited
    assert (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text().endswith("topic 0 1\n")


def test_a_log_made_again_waits_for_no_checkpoint_that_is_on_its_way(tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    manager = manager_on(tmp_path)
    first = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(first, batch_of(8))
    first.advance_log_start(6)
    checkpoint_everything(manager)
    manager.delete("topic", 0)
    manager._background = lambda job, done: jobs.append(job)
    drain(manager.maintain(NOW + 120_000))
    append(manager.create("topic", UUID(int=5), 0, LogConfig()), batch_of(3))
    kill(manager)
    again = manager_on(tmp_path)
    assert jobs and again.logs["topic", 0].log_start_offset == 0
    for late in jobs:
        late()
    assert not decode_points((tmp_path / "data" / "log-start-offset-checkpoint").read_bytes())


def test_a_log_begun_anew_further_back_starts_there_after_a_kill(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    log.truncate_fully(10)
    append(log, batch_of(6))
    log.advance_log_start(15)
    checkpoint_everything(manager)
    log.truncate_to(4)
    append(log, batch_of(2))
    kill(manager)
    again = manager_on(tmp_path, config=SMALL).logs["topic", 0]
    assert (again.log_start_offset, again.log_end_offset) == (4, 6)


def test_a_recovery_point_past_the_end_is_taken_back_at_the_start(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(8):
        append(log, batch_of(1))
    log.fsync()
    manager._checkpoints[log.log_dir].write("recovery-point-offset-checkpoint", run_inline)
    kill(manager)
    file = tmp_path / "data" / "topic-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[len(data) // 2 + 30] ^= 1
    file.write_bytes(data)
    assert manager_on(tmp_path).logs["topic", 0].log_end_offset == 4
    points = decode_points((tmp_path / "data" / "recovery-point-offset-checkpoint").read_bytes())
    assert points == {("topic", 0): 4}


def test_epochs_that_were_found_again_are_written_again(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(4):
        append(log, batch_of(1), epoch=3)
    log.advance_log_start(2)
    log.fsync()
    manager._checkpoints[log.log_dir].write("recovery-point-offset-checkpoint", run_inline)
    kill(manager)
    (tmp_path / "data" / "log-start-offset-checkpoint").unlink()
    manager = manager_on(tmp_path)
    assert manager.logs["topic", 0].epochs.entries() == [(3, 0)]
    manager.close()
    os.utime(tmp_path / "data" / "topic-0" / f"{0:020}.log", (1, 1))  # the notes are not believed
    assert manager_on(tmp_path).logs["topic", 0].epochs.entries() == [(3, 0)]
