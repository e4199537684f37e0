"""What a log is after a crash: cut at the first bad byte, everything else rebuilt, and the same the second
time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.records import end_txn_marker, iter_batches
from storage.files import DiskFile, DiskFiles
from storage.log_manager import LogManager
from storage.policy import LogConfig
from storage.producers import decode_producers
from storage.segment import SCAN_BYTES
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    FaultyFiles,
    Intervals,
    append,
    batch_of,
    directory_bytes,
    drain,
    headers_of,
    kill,
    log_on,
    manager_on,
    read_all,
    records_of,
)

SMALL = LogConfig(segment_bytes=700, index_interval_bytes=100)
HEADER_FIELDS = {
    "base offset": (0, 8),
    "length": (8, 4),
    "leader epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last offset delta": (23, 4),
    "base timestamp": (27, 8),
    "max timestamp": (35, 8),
    "producer id": (43, 8),
    "producer epoch": (51, 2),
    "base sequence": (53, 4),
    "count": (57, 4),
}


def written(root: Path, batches: int = 12) -> Path:
    """A log directory as a kill leaves it: several segments, producers, a decided and an open transaction."""
    manager = manager_on(root, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for index in range(batches):
        append(log, batch_of(2, producer=(1, 0, 2 * index)), epoch=index // 5)
    append(log, batch_of(1, producer=(2, 0, 0), transactional=True), epoch=9)
    marker = end_txn_marker(commit=False, producer_id=2, producer_epoch=0, coordinator_epoch=3, timestamp=NOW)
    log.append_records(marker, leader_epoch=9, now_ms=NOW, origin="coordinator")
    append(log, batch_of(1, producer=(3, 0, 0), transactional=True), epoch=9)
    append(log, batch_of(3, producer=(1, 0, 2 * batches)), epoch=9)
    kill(manager)
    return root / "data" / "topic-0"


def reopen(root: Path, config: LogConfig = SMALL) -> tuple[LogManager, UnifiedLog]:
    manager = manager_on(root, config=config)
    log = manager.logs["topic", 0]
    log.set_high_watermark(log.log_end_offset)
    return manager, log


def facts(log: UnifiedLog) -> object:
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.epochs.entries(),
        sorted(log.producers(), key=lambda producer: producer.producer_id),
        log.aborted_in(0, log.log_end_offset),
        read_all(log),
    )


def assert_settled(root: Path, log: UnifiedLog) -> None:
    """Restarting after the recovery changes neither the files nor what the log says."""
    before, files = facts(log), directory_bytes(log.directory)
    manager, again = reopen(root)
    assert facts(again) == before
    assert directory_bytes(again.directory) == files
    kill(manager)


def last_segment(directory: Path) -> Path:
    return sorted(directory.glob("*.log"))[-1]


def each_copy(source: Path, root: Path, name: str) -> Path:
    target = root / name / "data" / "topic-0"
    shutil.copytree(source, target)
    return target


def test_a_kill_keeps_everything_written(tmp_path: Path) -> None:
    written(tmp_path)
    manager, log = reopen(tmp_path)
    assert log.log_end_offset == 12 * 2 + 3 + 3
    assert len(log.segments) > 2
    assert log.epochs.entries() == [(0, 0), (1, 10), (2, 20), (9, 24)]
    assert log.aborted_in(0, 100) == [(2, 24)]
    assert log.last_stable_offset == 26
    assert {producer.producer_id: producer.last_sequence for producer in log.producers()} == {
        1: 26,
        2: 0,
        3: 0,
    }
    for sequence in (16, 18, 20, 22):  # the last five batches of producer 1 are known through the crash
        appended = log.append(*_args(batch_of(2, producer=(1, 0, sequence))), leader_epoch=9, now_ms=NOW)
        assert appended.duplicate and appended.first_offset == sequence
    kill(manager)
    assert_settled(tmp_path, log)


def _args(batch: bytearray) -> tuple[bytearray, object, int]:
    return batch, next(iter_batches(batch))[1], 0


def test_cut_at_every_byte_of_the_last_batch(tmp_path: Path) -> None:
    source = written(tmp_path / "source")
    whole = last_segment(source).read_bytes()
    batches = list(iter_batches(whole))
    last_at, last = batches[-1]
    for size in range(last_at, len(whole)):
        root = tmp_path / str(size)
        directory = each_copy(source, tmp_path, str(size))
        with last_segment(directory).open("r+b") as file:
            file.truncate(size)
        manager, log = reopen(root)
        assert log.log_end_offset == last.base_offset, f"cut to {size} of {len(whole)}"
        assert log.segments[-1].size == last_at
        assert log.dropped_bytes == size - last_at
        kill(manager)
        assert_settled(root, log)


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_flipped_header_field_cuts_there(tmp_path: Path, field: str) -> None:
    source = written(tmp_path / "source")
    whole = last_segment(source).read_bytes()
    at, header = list(iter_batches(whole))[-1]
    start, size = HEADER_FIELDS[field]
    for byte in range(start, start + size):
        root = tmp_path / f"{byte}"
        directory = each_copy(source, tmp_path, str(byte))
        damaged = bytearray(whole)
        damaged[at + byte] ^= 0x80
        last_segment(directory).write_bytes(damaged)
        manager, log = reopen(root)
        if field == "leader epoch" and log.log_end_offset == header.next_offset:
            assert (
                log.epochs.latest > header.leader_epoch
            )  # not covered by the CRC: a later epoch is believable
            log.epoch_start(header.leader_epoch + 1)
            assert log.epochs.entries()[-1] == (header.leader_epoch + 1, header.next_offset)
            append(log, batch_of(), epoch=header.leader_epoch + 1)
            shutil.rmtree(root)
            kill(manager)
            continue
        if field == "base offset" and log.log_end_offset > header.base_offset:
            assert (
                headers_of(log)[-1].base_offset > header.base_offset
            )  # nor is a gap, compaction leaves them
        else:
            assert log.log_end_offset == header.base_offset
        kill(manager)
        assert_settled(root, log)


@pytest.mark.parametrize(
    "tail",
    [bytes(1), bytes(61), bytes(5000), b"\xff" * 200, bytes(range(256)) * 3],
    ids=["one zero", "zero header", "zeros", "ones", "garbage"],
)
def test_a_tail_of_garbage_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    directory = written(tmp_path)
    with last_segment(directory).open("ab") as file:
        file.write(tail)
    manager, log = reopen(tmp_path)
    assert log.log_end_offset == 30
    assert log.dropped_bytes == len(tail)
    kill(manager)
    assert_settled(tmp_path, log)


def test_a_doubled_tail_is_cut_off(tmp_path: Path) -> None:
    path = last_segment(written(tmp_path))
    whole = path.read_bytes()
    path.write_bytes(whole + whole)
    manager, log = reopen(tmp_path)
    assert log.log_end_offset == 30
    assert log.dropped_bytes == len(whole)
    kill(manager)
    assert_settled(tmp_path, log)


@pytest.mark.parametrize("is_foreign", [False, True], ids=["ours", "of another broker"])
def test_damage_in_the_middle_drops_every_later_segment(tmp_path: Path, is_foreign: bool) -> None:
    """Another broker's recovery points do not tell which gaps compaction made."""
    directory = written(tmp_path)
    if is_foreign:
        (tmp_path / "data" / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    logs = sorted(directory.glob("*.log"))
    damaged = bytearray(logs[1].read_bytes())
    damaged[-1] ^= 1
    logs[1].write_bytes(damaged)
    _, header = list(iter_batches(_good(damaged)))[-1]
    manager, log = reopen(tmp_path)
    assert log.log_end_offset == header.next_offset
    assert len(log.segments) == 2
    assert not [
        path for path in directory.iterdir() if path.stem.isdigit() and int(path.stem) > log.log_end_offset
    ]
    kill(manager)
    assert_settled(tmp_path, log)


class Steps(FaultyFiles):
    """What was done to the disk, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str]] = []

    def step(self, operation: str, path: str) -> None:
        self.done.append((operation, Path(path).name))


def test_what_recovery_cuts_off_is_gone_for_good_before_anything_is_appended(tmp_path: Path) -> None:
    """A power cut would bring it back, behind or in the place of what was appended since."""
    directory = written(tmp_path)
    cut, *dropped = (path.name for path in sorted(directory.glob("*.log"))[1:])
    with (directory / cut).open("r+b") as file:
        file.truncate((directory / cut).stat().st_size - 1)
    files = Steps()
    kill(manager_on(tmp_path, config=SMALL, files=files))
    truncated = files.done.index(("truncate", cut))
    assert files.done[truncated + 1] == ("fsync", cut)
    unlinked = [
        at for at, (operation, name) in enumerate(files.done) if operation == "unlink" and name in dropped
    ]
    assert len(unlinked) == len(dropped) > 0
    assert ("fsync_dir", "topic-0") in files.done[unlinked[-1] :]


def test_a_snapshot_of_a_lost_tail_is_gone_for_good_before_anything_is_appended(tmp_path: Path) -> None:
    """It would come back with a power cut, and where batches are alike its mark would fit the new ones."""
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1, producer=(1, 0, 0)))
    log.fsync()
    drain(manager.maintain(NOW))
    drain(manager.maintain(NOW + Intervals().recovery_points_ms))
    size = log.size
    append(log, batch_of(1, producer=(1, 0, 1)))
    log.mark()
    kill(manager)
    directory = tmp_path / "data" / "topic-0"
    with last_segment(directory).open("r+b") as file:
        file.truncate(size)
    files = Steps()
    manager = manager_on(tmp_path, files=files)
    assert manager.logs["topic", 0].log_end_offset == 1
    unlinked = files.done.index(("unlink", f"{2:020d}.snapshot"))
    assert ("fsync_dir", "topic-0") in files.done[unlinked:]
    kill(manager)


def _good(damaged: bytearray) -> bytes:
    """The batches before the last one."""
    at = 0
    while at + 12 + int.from_bytes(damaged[at + 8 : at + 12], "big") < len(damaged):
        at += 12 + int.from_bytes(damaged[at + 8 : at + 12], "big")
    return bytes(damaged[:at])


def swap_contents(directory: Path, kind: str) -> None:
    paths = sorted(directory.glob(f"*{kind}"))
    if len(paths) > 1:
        first = paths[0].read_bytes()
        paths[0].write_bytes(paths[-1].read_bytes())
        paths[-1].write_bytes(first)


def remove(directory: Path, kind: str) -> None:
    for path in directory.glob(f"*{kind}"):
        path.unlink()


def garbage(directory: Path, kind: str) -> None:
    for path in directory.glob(f"*{kind}"):
        path.write_bytes(b"\x55" * (path.stat().st_size or 10))


def cut_short(directory: Path, kind: str) -> None:
    for path in directory.glob(f"*{kind}"):
        path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [remove, garbage, cut_short, swap_contents])
@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint"])
def test_damaged_side_files_are_rebuilt(
    tmp_path: Path, kind: str, damage: Callable[[Path, str], None]
) -> None:
    if kind == ".snapshot" and damage is swap_contents:
        pytest.skip("a whole snapshot of another moment is indistinguishable, in Kafka too")
    directory = written(tmp_path / "good")
    each_copy(directory, tmp_path, "bad")
    manager, good = reopen(tmp_path / "good")
    damage(tmp_path / "bad" / "data" / "topic-0", kind)
    bad_manager, bad = reopen(tmp_path / "bad")
    assert facts(bad) == facts(good)
    for timestamp in (NOW - 1, NOW, NOW + 1):
        assert bad.offset_for_timestamp(timestamp, 100) == good.offset_for_timestamp(timestamp, 100)
    for offset in range(good.log_end_offset):
        found, expected = (log.read(offset, 1, bound=100, min_one=True) for log in (bad, good))
        assert found is not None and expected is not None
        assert found.read() == expected.read()
    kill(manager)
    kill(bad_manager)
    assert_settled(tmp_path / "bad", bad)


def test_recovery_reads_only_past_the_recovery_point(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for index in range(12):
        append(log, batch_of(2, producer=(1, 0, 2 * index)))
    log.fsync()
    assert log.recovery_point == 24
    manager.close(clean=True)
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    first = sorted((tmp_path / "data" / "topic-0").glob("*.log"))[0]
    damaged = bytearray(first.read_bytes())
    damaged[-1] ^= 1
    first.write_bytes(damaged)
    _, again = reopen(tmp_path)
    assert again.log_end_offset == 24  # the damage lies before the point: found when read, not at start


def test_log_start_past_the_end_begins_anew_there(tmp_path: Path) -> None:
    directory = written(tmp_path)
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 500\n")
    manager, log = reopen(tmp_path)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (500, 500, 1)
    assert log.producers() == []
    append(log, batch_of(1), epoch=10)
    assert [record.offset for record in records_of(log)] == [500]
    assert len(list(directory.glob("*.log"))) == 1
    kill(manager)


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_producers_of_a_log_that_a_start_began_anew_do_not_come_back(tmp_path: Path, ends: str) -> None:
    directory = written(tmp_path)
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 500\n")
    assert list(directory.glob("*.snapshot"))
    manager, log = reopen(tmp_path)
    append(log, batch_of(1), epoch=10)
    if ends == "kill":
        kill(manager)
    else:
        manager.close()
    manager, log = reopen(tmp_path)
    assert (log.log_start_offset, log.log_end_offset) == (500, 501)
    assert log.producers() == []
    kill(manager)


def test_orphans_and_temporary_files_go(tmp_path: Path) -> None:
    directory = written(tmp_path)
    for name in (
        "00000000000000099999.index",
        "00000000000000099999.timeindex",
        "00000000000000000000.log.deleted",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000000.log.cleaned",
    ):
        (directory / name).write_bytes(b"\0" * 8)
    manager, log = reopen(tmp_path)
    assert not [
        name for name in directory_bytes(directory) if name.endswith((".deleted", ".tmp", ".cleaned"))
    ]
    assert not list(directory.glob("*99999*"))
    assert log.log_end_offset == 30
    kill(manager)


def test_a_snapshot_survives_in_kafkas_format(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    for sequence in range(7):
        append(log, batch_of(1, producer=(5, 1, sequence)))
    log.close()
    data = (Path(log.directory) / f"{7:020d}.snapshot").read_bytes()
    assert data[:2] == b"\0\1" and data[6:10] == b"\0\0\0\1"
    entry = decode_producers(data)[0].entries[5]
    assert [batch.first_sequence for batch in entry.batches] == [2, 3, 4, 5, 6]
    assert (entry.epoch, entry.next_sequence, entry.last_timestamp) == (1, 7, NOW)


def test_five_batches_are_remembered_through_a_clean_restart(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for sequence in range(7):
        append(log, batch_of(1, producer=(5, 1, sequence)))
    manager.close(clean=True)
    _, again = reopen(tmp_path, LogConfig())
    for sequence in range(2, 7):
        appended = append(again, batch_of(1, producer=(5, 1, sequence)))
        assert (appended.duplicate, appended.first_offset) == (True, sequence)


# --- what lies before the recovery point ---


class Counted(DiskFiles):
    """Counts the bytes read of `.log` files."""

    def __init__(self) -> None:
        self.log_bytes = 0

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create)
        return CountedFile(self, file) if path.endswith(".log") else file


class CountedFile:
    def __init__(self, files: Counted, inner: DiskFile) -> None:
        self._files = files
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pread(self, size: int, offset: int) -> bytes:
        data = self._inner.pread(size, offset)
        self._files.log_bytes += len(data)
        return data


ONE_SEGMENT = LogConfig(index_interval_bytes=500)
LOOKED_AT = 3 * SCAN_BYTES
"""To see that an index leads to the recovery point."""


def grow(log: UnifiedLog, batches: int) -> None:
    """Some of everything that indexes, producers and epochs keep of a log."""
    for _ in range(batches):
        at = log.log_end_offset
        entry = log.producer_table.known(1)
        sequence = entry.next_sequence if entry else 0
        append(
            log, batch_of(2, producer=(1, 0, sequence), timestamp=NOW + at, value_bytes=200), epoch=at // 300
        )
        if at % 25 == 0:
            open_txn = log.producer_table.known(2)
            sequence = open_txn.next_sequence if open_txn else 0
            batch = batch_of(1, producer=(2, 0, sequence), transactional=True, timestamp=NOW - at)
            append(log, batch, epoch=at // 300)
            marker = end_txn_marker(
                commit=False, producer_id=2, producer_epoch=0, coordinator_epoch=3, timestamp=NOW
            )
            log.append_records(marker, leader_epoch=at // 300, now_ms=NOW, origin="coordinator")


def left_by_a_kill(root: Path, *, early: int = 300, late: int = 20) -> int:
    """A clean stop in the middle of a segment, a start, `late` more batches, a kill: how many bytes those
    are."""
    manager = manager_on(root, config=ONE_SEGMENT)
    grow(manager.create("topic", TOPIC_ID, 0, ONE_SEGMENT), early)
    manager.close()
    manager, log = reopen(root, ONE_SEGMENT)
    before = log.size
    grow(log, late)
    kill(manager)
    return log.size - before


def everything(log: UnifiedLog) -> object:
    """`facts`, and all that indexes answer."""
    end = log.log_end_offset
    moments = {NOW + step for step in range(-end, end + 2, 7)} | {0, NOW, NOW + end - 1, NOW + 10 * end}
    return (
        facts(log),
        log.offset_of_max_timestamp(),
        [log.offset_for_timestamp(moment, end) for moment in sorted(moments)],
        [log.read(offset, 1, bound=end, min_one=True).read() for offset in range(0, end, 11)],  # type: ignore[union-attr]
    )


def recovered_whole(source: Path, root: Path) -> object:
    """What a log says that is read from its first byte."""
    target = root / "whole"
    shutil.copytree(source / "data" / "topic-0", target / "data" / "topic-0")
    for path in (target / "data" / "topic-0").glob("*.snapshot"):
        path.unlink()
    manager, log = reopen(target, ONE_SEGMENT)
    found = everything(log)
    kill(manager)
    return found


def test_what_lies_before_the_recovery_point_is_not_read_again(tmp_path: Path) -> None:
    late = left_by_a_kill(tmp_path / "a")
    expected = recovered_whole(tmp_path / "a", tmp_path)
    files = Counted()
    manager = manager_on(tmp_path / "a", config=ONE_SEGMENT, files=files)
    log = manager.logs["topic", 0]
    assert late <= files.log_bytes <= late + LOOKED_AT < log.size / 4
    log.set_high_watermark(log.log_end_offset)
    assert everything(log) == expected
    kill(manager)
    assert_settled(tmp_path / "a", log)


def test_nothing_past_the_recovery_point_means_nothing_is_read_or_synced(tmp_path: Path) -> None:
    left_by_a_kill(tmp_path, late=0)
    files = Counted()
    manager = manager_on(tmp_path, config=ONE_SEGMENT, files=files)
    assert files.log_bytes <= LOOKED_AT
    jobs = list(manager.closing())
    assert len(jobs) == 1  # the log directory itself


def test_small_logs_are_read_whole_and_synced_no_more_than_others(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    append(manager.create("topic", TOPIC_ID, 0, LogConfig()), batch_of(1), epoch=1)
    manager.close()
    kill(manager_on(tmp_path))
    manager = manager_on(tmp_path)
    assert manager.logs["topic", 0].epochs.entries() == [(1, 0)]
    assert len(list(manager.closing())) == 1  # the log directory itself
    kill(manager)


def test_damage_past_the_recovery_point_is_still_found(tmp_path: Path) -> None:
    left_by_a_kill(tmp_path)
    path = last_segment(tmp_path / "data" / "topic-0")
    whole = bytearray(path.read_bytes())
    last_at, last = list(iter_batches(whole))[-1]
    whole[last_at + 70] ^= 1
    path.write_bytes(whole)
    manager, log = reopen(tmp_path, ONE_SEGMENT)
    assert log.log_end_offset == last.base_offset
    kill(manager)
    assert_settled(tmp_path, log)


@pytest.mark.parametrize("damage", [remove, garbage, cut_short, "older"])
@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_side_files_that_are_not_what_was_marked_are_rebuilt(
    tmp_path: Path, kind: str, damage: Callable[[Path, str], None] | str
) -> None:
    """As a power cut may leave them: the recovery point vouches for the log alone."""
    directory = tmp_path / "a" / "data" / "topic-0"
    manager = manager_on(tmp_path / "a", config=ONE_SEGMENT)
    grow(manager.create("topic", TOPIC_ID, 0, ONE_SEGMENT), 50)
    manager.close()
    older = {path.name: path.read_bytes() for path in directory.glob(f"*{kind}")}
    left_by_a_kill(tmp_path / "a")
    expected = recovered_whole(tmp_path / "a", tmp_path)
    if callable(damage):
        damage(directory, kind)
    else:
        remove(directory, kind)
        for name, data in older.items():
            (directory / name).write_bytes(data)
    manager, log = reopen(tmp_path / "a", ONE_SEGMENT)
    assert everything(log) == expected
    kill(manager)
    assert_settled(tmp_path / "a", log)


def test_a_mark_of_another_log_is_not_believed(tmp_path: Path) -> None:
    left_by_a_kill(tmp_path)
    path = last_segment(tmp_path / "data" / "topic-0")
    whole = path.read_bytes()
    positions = [at for at, _ in iter_batches(whole)]
    path.write_bytes(whole[: positions[100]])  # shorter than the mark says
    manager, log = reopen(tmp_path, ONE_SEGMENT)
    assert log.size == positions[100]
    kill(manager)
    assert_settled(tmp_path, log)


def test_syncs_within_a_segment_are_marked_with_the_checkpoint(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=500, flush_messages=1)
    intervals = Intervals(recovery_points_ms=1000)
    clock = [NOW]
    manager = manager_on(tmp_path / "a", config=config, intervals=intervals, clock=lambda: clock[0])
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(5):
        grow(log, 60)
        clock[0] += 1000
        drain(manager.maintain(clock[0]))
    before = log.size
    grow(log, 10)
    kill(manager)
    assert len(list(Path(log.directory).glob("*.snapshot"))) == 2
    expected = recovered_whole(tmp_path / "a", tmp_path)
    files = Counted()
    again = manager_on(tmp_path / "a", config=config, files=files).logs["topic", 0]
    assert files.log_bytes <= log.size - before + LOOKED_AT < log.size / 4
    again.set_high_watermark(again.log_end_offset)
    assert everything(again) == expected


def test_a_mark_outlives_the_roll_of_its_segment(tmp_path: Path) -> None:
    """Until closed segments are synced the recovery point stays where it was."""
    config = LogConfig(index_interval_bytes=500, segment_bytes=135_000)
    manager = manager_on(tmp_path, config=config)
    grow(manager.create("topic", TOPIC_ID, 0, config), 250)
    manager.close()
    manager, log = reopen(tmp_path, config)
    before = log.size
    assert len(log.segments) == 1
    grow(log, 60)
    assert len(log.segments) == 2
    kill(manager)
    files = Counted()
    again = manager_on(tmp_path, config=config, files=files).logs["topic", 0]
    assert again.log_end_offset == log.log_end_offset
    assert files.log_bytes <= log.size - before + LOOKED_AT
