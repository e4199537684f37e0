"""What an operation may cost: files opened and kept open, files read, work in one slice."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from protocol.compression import Codec
from protocol.records import iter_batches, parse_header
from storage import cleaner
from storage.checkpoints import Done, run_inline
from storage.cleaner import CleanerSettings, _groups
from storage.files import DiskFiles
from storage.index import OffsetIndex, TimeIndex
from storage.log_manager import LogManager
from storage.maintenance import Intervals
from storage.policy import LogConfig
from storage.segment import HINTS_MAX, Segment
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    append,
    batch_of,
    drain,
    kill,
    manager_on,
    read_all,
    records_of,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)
AT_ONCE = Intervals(retention_ms=0, initial_delay_ms=0)


class Watched(DiskFiles):
    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        self.opened.append(path)
        return super().open(path, create=create)

    def read(self, path: str) -> bytes:
        self.opened.append(path)
        return super().read(path)


def filled(
    root: Path, *, partitions: int = 5, config: LogConfig = SMALL, idempotent: bool = False
) -> LogManager:
    manager = manager_on(root, config=config)
    for index in range(partitions):
        log = manager.create("topic", TOPIC_ID, index, config)
        for at in range(20):
            append(log, batch_of(1, producer=(1, 0, at)) if idempotent else batch_of(1))
        assert len(log.segments) > 4
    return manager


def open_files(root: Path) -> int:
    gc.collect()  # a killed manager's files go with it
    return sum(
        os.path.realpath(link).startswith(f"{root}/data/t") for link in Path("/proc/self/fd").iterdir()
    )


def settle(manager: LogManager) -> None:
    for log in manager.logs.values():
        log.set_high_watermark(log.log_end_offset)


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_and_its_first_retention_keep_no_file_open(tmp_path: Path, clean: bool) -> None:
    """5,000 partitions of 10 segments would otherwise need 50,000 descriptors half a minute later."""
    filled(tmp_path).close(clean=clean)
    manager = manager_on(tmp_path, config=SMALL, intervals=AT_ONCE)
    assert open_files(tmp_path) == 0
    settle(manager)
    drain(manager.maintain(NOW))
    assert open_files(tmp_path) == 0
    assert all(log.log_start_offset == 0 for log in manager.logs.values())


def test_the_first_retention_reads_no_whole_index(tmp_path: Path) -> None:
    """An index of a full segment takes 80 ms to read; the newest timestamp is its last entry."""
    filled(tmp_path).close()
    files = Watched()
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=1000)
    manager = manager_on(tmp_path, files=files, config=config, intervals=AT_ONCE)
    settle(manager)
    files.opened.clear()
    drain(manager.maintain(NOW + 1000))
    assert not [path for path in files.opened if path.endswith((".index", ".log"))]
    assert all(log.log_start_offset == 0 for log in manager.logs.values())
    drain(manager.maintain(NOW + 1001))
    assert all(log.log_start_offset == 20 for log in manager.logs.values())


def test_segments_that_need_no_time_are_not_asked_for_it(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy=("compact",))
    filled(tmp_path, config=config).close()
    files = Watched()
    manager = manager_on(
        tmp_path, files=files, config=config, intervals=AT_ONCE, cleaner=CleanerSettings(enabled=True)
    )
    settle(manager)
    files.opened.clear()
    drain(manager.maintain(NOW + 10**12))
    assert not files.opened


def test_files_of_idle_partitions_are_closed(tmp_path: Path) -> None:
    manager = filled(tmp_path)
    assert open_files(tmp_path)
    for log in manager.logs.values():
        log.release_idle()
        log.release_idle()
    assert open_files(tmp_path) == 0
    for log in manager.logs.values():
        assert append(log, batch_of(1)).first_offset == 20
    kill(manager)
    again = manager_on(tmp_path, config=SMALL)
    assert {log.log_end_offset for log in again.logs.values()} == {21}


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_known_from_the_snapshot_alone(tmp_path: Path, clean: bool) -> None:
    """Segments that end below it hold nothing new."""
    filled(tmp_path, idempotent=True).close(clean=clean)
    files = Watched()
    manager = manager_on(tmp_path, files=files, config=SMALL)
    log = manager.logs["topic", 0]
    closed = {segment.base_offset for segment in list(log.segments)[:-1]}
    if not clean:
        closed = set()  # nothing was synced: all of it is recovered
    touched = {int(os.path.basename(path)[:20]) for path in files.opened if path.endswith((".index", ".log"))}
    assert not touched & closed
    assert log.producer_table.entries[1].last_sequence == 19


def test_a_recovery_reads_from_the_recovery_point_on(tmp_path: Path) -> None:
    manager = filled(tmp_path, idempotent=True, partitions=1)
    manager.logs["topic", 0].fsync()
    manager._maintenance.checkpoint("recovery-point-offset-checkpoint")
    kill(manager)
    files = Watched()
    log = manager_on(tmp_path, files=files, config=SMALL).logs["topic", 0]
    closed = {segment.base_offset for segment in list(log.segments)[:-1]}
    touched = {int(os.path.basename(path)[:20]) for path in files.opened if path.endswith((".index", ".log"))}
    assert not touched & closed
    assert log.producer_table.entries[1].last_sequence == 19


def test_a_clean_stop_makes_one_file_for_a_small_log_and_none_for_one_that_is_as_it_was(
    tmp_path: Path,
) -> None:
    """To make a file takes a disk longer than to read a small log."""
    files = Making()
    manager = manager_on(tmp_path, files=files)
    for index in range(5):
        log = manager.create("topic", TOPIC_ID, index, LogConfig())
        log.epoch_start(1)
        append(log, batch_of(1), epoch=1)
    files.made.clear()
    manager.close()
    assert Counter(name for name in files.made if "/topic-" in name) == {
        f"{tmp_path}/data/topic-{index}/leader-epoch-checkpoint.tmp": 1 for index in range(5)
    }
    files = Making()
    manager = manager_on(tmp_path, files=files)
    for log in manager.logs.values():
        log.epoch_start(2)  # as each start of a broker does
    files.made.clear()
    assert len(list(manager.closing())) == 1  # the log directory
    manager.close()
    assert not [name for name in files.made if "/topic-" in name]
    log = manager_on(tmp_path).logs["topic", 0]
    assert (log.log_end_offset, log.epochs.entries()) == (1, [(1, 0)])


class Making(DiskFiles):
    def __init__(self) -> None:
        self.made: list[str] = []

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        if create:
            self.made.append(path)
        return super().open(path, create=create)


def test_snapshots_do_not_pile_up(tmp_path: Path) -> None:
    """One for each segment and one for the end; a compacted topic is never rid of its oldest segment."""
    config = LogConfig(
        cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, segment_bytes=400, index_interval_bytes=9
    )
    for turn in range(5):
        manager = manager_on(tmp_path, config=config)
        log = manager.create("topic", TOPIC_ID, 0, config)
        for at in range(20):
            append(log, batch_of(1, producer=(1, 0, 20 * turn + at)))
        drain(manager.clean(NOW))
        manager.close()
    manager = manager_on(tmp_path, config=config)
    log = manager.logs["topic", 0]
    snapshots = list(Path(log.directory).glob("*.snapshot"))
    assert len(snapshots) <= len(log.segments) + 1
    assert log.producer_table.entries[1].last_sequence == 99


def test_a_topic_made_anew_is_compacted_again(tmp_path: Path) -> None:
    manager = filled(tmp_path, partitions=1)
    manager.uncleanable.add(("topic", 0))
    manager.delete("topic", 0)
    assert not manager.uncleanable


def test_a_reader_that_keeps_up_reads_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on where a flush ended, which the segment remembers."""
    log = manager_on(tmp_path).create("topic", TOPIC_ID, 0, LogConfig())
    append(log, batch_of(1))
    monkeypatch.setattr(Segment, "scan", None)
    for _ in range(3 * HINTS_MAX):
        offset = log.log_end_offset
        for _ in range(3):
            batch = batch_of(2)
            log.append(batch, parse_header(batch), 0, leader_epoch=0, now_ms=NOW)
        log.flush_staged()
        found = log.read(offset, 1 << 20, bound=log.log_end_offset, min_one=True)
        assert found is not None
        assert (found.first_offset, found.next_offset) == (offset, log.log_end_offset)
        assert [header.base_offset for _, header in iter_batches(found.read())] == [
            offset,
            offset + 2,
            offset + 4,
        ]


def test_many_partitions_are_looked_after_in_slices(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    for index in range(600):
        manager.create("topic", TOPIC_ID, index, LogConfig())
    assert drain(manager.maintain(NOW)) >= 2


def test_an_index_of_a_full_segment_is_read_within_milliseconds() -> None:
    """Not by looking at each of its entries; damage between those looked at shows when it is used."""
    offsets, times = OffsetIndex(), TimeIndex()
    for at in range(100_000):
        offsets.append(at * 10, at * 4096)
        times.maybe_append(NOW + at, at * 10)
    assert OffsetIndex.decode(offsets.encode(), 1 << 30).entries == offsets.entries
    again = TimeIndex.decode(times.encode())
    assert (again.timestamps, again.offsets) == (times.timestamps, times.offsets)


def test_a_checkpoint_that_waited_for_another_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    jobs: list[tuple[Callable[[], None], Done]] = []
    manager = manager_on(tmp_path, background=lambda job, done: jobs.append((job, done)))
    log = manager.create("topic", TOPIC_ID, 0, LogConfig())
    for _ in range(2):
        append(log, batch_of(1))
        manager.checkpoint_high_watermarks()
    assert len(jobs) == 1
    run_inline(*jobs[0])
    assert len(jobs) == 2
    run_inline(*jobs[1])
    text = (tmp_path / "data" / "replication-offset-checkpoint").read_text()
    assert text.endswith("topic 0 2\n")


def test_segments_without_timestamps_keep_their_indexes(tmp_path: Path) -> None:
    """An empty time index beside them is as it should be, and no reason to read the segment again."""
    manager = manager_on(tmp_path, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for _ in range(20):
        append(log, batch_of(1, timestamp=-1))
    manager.close()
    files = Watched()
    log = manager_on(tmp_path, files=files, config=SMALL).logs["topic", 0]
    log.set_high_watermark(log.log_end_offset)
    assert len(read_all(log, 0)) == log.size
    assert not [path for path in files.opened if path.endswith(".tmp")]


def compacted(root: Path, **options: Any) -> tuple[LogManager, UnifiedLog]:
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.5, segment_bytes=200_000)
    manager = manager_on(root, config=config, **options)
    return manager, manager.create("topic", TOPIC_ID, 0, config)


def test_planning_a_compaction_opens_no_segment(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=1.0, segment_bytes=400)
    filled(tmp_path, config=config).close()
    files = Watched()
    manager = manager_on(tmp_path, files=files, config=config)
    settle(manager)
    files.opened.clear()
    drain(manager.clean(NOW))
    assert not files.opened


def test_grouping_segments_reads_none_of_their_indexes(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, segment_bytes=400)
    filled(tmp_path, config=config, partitions=1).close()
    files = Watched()
    log = manager_on(tmp_path, files=files, config=config).logs["topic", 0]
    files.opened.clear()
    assert _groups(log, list(log.segments)[:-1])
    assert not files.opened


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_large_batches_are_unpacked_and_packed_beside_the_loop(tmp_path: Path, codec: Codec) -> None:
    beside: list[str] = []

    def background(job: Callable[[], None], done: Done) -> None:
        beside.append("start")
        run_inline(job, done)
        beside.append("end")

    manager, log = compacted(tmp_path, background=background)
    noise = Random(3).randbytes(70_000)
    for value in range(8):
        rows = [(b"a", noise), (b"b-%d" % value, b"x")]
        append(log, batch_of(rows, codec=codec))
    at_work = []
    original = cleaner.compress, cleaner.records_data

    def watch(call: Callable[..., bytes]) -> Callable[..., bytes]:
        def watched(*args: Any) -> bytes:
            if any(len(arg) > cleaner.BYTES_INLINE for arg in args if isinstance(arg, bytes | bytearray)):
                at_work.append(beside[-1] if beside else "")
            return call(*args)

        return watched

    cleaner.compress, cleaner.records_data = watch(original[0]), watch(original[1])
    try:
        drain(manager.clean(NOW))
    finally:
        cleaner.compress, cleaner.records_data = original
    assert at_work and set(at_work) == {"start"}
    assert {record.key for record in records_of(log)} == {b"a", *(b"b-%d" % value for value in range(8))}


def test_a_thousand_expired_segments_go_in_slices(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=100, retention_ms=1)
    manager = manager_on(tmp_path, config=config, intervals=AT_ONCE)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(100):
        append(log, batch_of(1))
    assert drain(manager.maintain(NOW + 100)) >= 4
    assert log.log_start_offset == 100
    assert len(log.segments) == 1
