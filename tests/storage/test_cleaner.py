"""Compaction against a model, and a crash after each of its file operations."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.compression import Codec
from protocol.records import end_txn_marker, iter_batches, parse_header, records_data
from storage.checkpoints import CheckpointWrite
from storage.cleaner import CleanerSettings, CompactedLogs, KeyMap, _unpacked, plan_cleaning, walk
from storage.flush import SegmentFlush
from storage.log_manager import LogManager
from storage.policy import LogConfig, SegmentExtent, plan_groups
from storage.unified_log import UnifiedLog
from tests.sim.disk import Disk
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    FaultyFiles,
    HeldJobs,
    PowerCut,
    append,
    batch_of,
    directory_bytes,
    drain,
    headers_of,
    kill,
    manager_on,
    read_all,
    records_of,
)

COMPACT = LogConfig(
    cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, segment_bytes=600, index_interval_bytes=100
)
DAY = 86_400_000


def new_log(root: Path, config: LogConfig = COMPACT, **options: object) -> tuple[LogManager, UnifiedLog]:
    manager = manager_on(root, config=config, **options)
    return manager, manager.create("topic", TOPIC_ID, 0, config)


def put(log: UnifiedLog, key: int, value: int | None, **options: object) -> None:
    row = (b"key-%d" % key, None if value is None else b"value-%d" % value)
    append(log, batch_of([row], **options))


def state_of(log: UnifiedLog) -> dict[bytes | None, bytes | None]:
    """What a reader of the whole log knows in the end."""
    state: dict[bytes | None, bytes | None] = {}
    for record in records_of(log):
        state[record.key] = record.value
    return {key: value for key, value in state.items() if value is not None}


def clean(manager: LogManager, now_ms: int = NOW) -> None:
    drain(manager.clean(now_ms))


def test_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    for value in range(60):
        put(log, value % 4, value)
    before = state_of(log)
    size = log.size
    clean(manager)
    assert state_of(log) == before
    assert log.size < size / 3
    closed = [record for record in records_of(log) if record.offset < manager.cleaned_upto["topic", 0]]
    assert len({record.key for record in closed}) == len(closed) == 4
    assert all(record.offset == int(record.value.split(b"-")[1]) for record in records_of(log))  # type: ignore[union-attr]


def test_a_second_round_changes_nothing(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    for value in range(60):
        put(log, value % 4, value)
    clean(manager)
    before = read_all(log)
    clean(manager)
    assert read_all(log) == before


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 99)),
            st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("clean"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("restart"), st.booleans(), st.just(0)),
        ),
        max_size=60,
    ),
    st.sampled_from(list(Codec)),
)
def test_any_sequence_keeps_what_a_reader_would_know(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], codec: Codec
) -> None:
    root = tmp_path_factory.mktemp("log")
    manager, log = new_log(root)
    model: dict[bytes, bytes] = {}
    now = NOW
    for what, key, value in steps:
        name = b"key-%d" % key
        if what == "put":
            append(log, batch_of([(name, b"value-%d" % value), (b"other", b"%d" % value)], codec=codec))
            model[name], model[b"other"] = b"value-%d" % value, b"%d" % value
        elif what == "delete":
            append(log, batch_of([(name, None)], codec=codec))
            model.pop(name, None)
        elif what == "clean":
            now += key * DAY
            clean(manager, now)
        else:
            manager.close(clean=bool(key))
            manager = manager_on(root, config=COMPACT)
            log = manager.logs["topic", 0]
            log.set_high_watermark(log.log_end_offset)
        assert state_of(log) == model
    shutil.rmtree(root)


def test_tombstones_stay_for_delete_retention_then_go(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path, replace(COMPACT, delete_retention_ms=2 * DAY))
    put(log, 1, 1)
    put(log, 1, None)
    for value in range(40):
        put(log, 2, value)
    clean(manager)
    tombstones = [header for header in headers_of(log) if header.delete_horizon_ms is not None]
    assert [header.delete_horizon_ms for header in tombstones] == [NOW + 2 * DAY]
    assert [record.timestamp for record in records_of(log) if record.value is None] == [NOW]
    for later, expected in ((2 * DAY - 1, 1), (2 * DAY + 1, 0)):
        for value in range(40):
            put(log, 2, value)
        clean(manager, NOW + later)
        assert sum(record.value is None for record in records_of(log)) == expected


def test_min_compaction_lag_protects_young_segments(tmp_path: Path) -> None:
    config = LogConfig(
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=0.01,
        segment_bytes=600,
        min_compaction_lag_ms=1000,
    )
    _, log = new_log(tmp_path, config)
    for value in range(30):
        put(log, 1, value, timestamp=NOW)
    assert not plan_cleaning(log, 0, NOW + 500).is_due
    assert plan_cleaning(log, 0, NOW + 1001).is_due


def test_max_compaction_lag_overrules_the_dirty_ratio(tmp_path: Path) -> None:
    config = LogConfig(
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=1.0,
        segment_bytes=600,
        max_compaction_lag_ms=60_000,
    )
    _, log = new_log(tmp_path, config)
    for value in range(30):
        put(log, 1, value, timestamp=NOW)
    assert not plan_cleaning(log, 0, NOW + 60_000).is_due
    assert plan_cleaning(log, 0, NOW + 60_001).is_due


def test_the_last_batch_of_a_live_producer_stays_as_an_empty_one(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    put(log, 1, 1, producer=(9, 0, 0))
    for value in range(40):
        put(log, 1, value)
    clean(manager)
    header = headers_of(log)[0]
    assert (header.producer_id, header.base_sequence, header.count, header.base_offset) == (9, 0, 0, 0)
    kill(manager)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for snapshot in (tmp_path / "data" / "topic-0").glob("*.snapshot"):
        snapshot.unlink()
    again = manager_on(tmp_path, config=COMPACT).logs["topic", 0]
    assert [(p.producer_id, p.last_sequence) for p in again.producers()] == [(9, 0)]
    duplicate = append(again, batch_of([(b"key-1", b"value-1")], producer=(9, 0, 0)), replicated=False)
    assert duplicate.duplicate and duplicate.first_offset == 0


def test_aborted_data_goes_and_committed_data_stays(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    for producer, commit in ((1, True), (2, False)):
        put(log, producer, producer, producer=(producer, 0, 0), transactional=True)
        marker = end_txn_marker(
            commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW
        )
        log.append_records(marker, leader_epoch=0, now_ms=NOW, origin="coordinator")
        log.set_high_watermark(log.log_end_offset)
    assert log.aborted_in(0, log.log_end_offset) == [(2, 2)]
    for value in range(40):
        put(log, 5, value)
    clean(manager)
    data = [(header.producer_id, header.is_control, header.count) for header in headers_of(log)][:4]
    # the aborted batch is its producer's last, so its header stays; both markers still stand
    assert data == [(1, False, 1), (1, True, 1), (2, False, 0), (2, True, 1)]
    assert log.aborted_in(0, log.log_end_offset) == [(2, 2)]
    assert {record.key for record in records_of(log)} >= {b"key-1", b"key-5"}


def test_nothing_past_the_last_stable_offset_is_touched(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    for value in range(30):
        put(log, 1, value)
    put(log, 9, 9, producer=(3, 0, 0), transactional=True)
    open_at = log.log_end_offset - 1
    for value in range(40):
        put(log, 1, value)
    clean(manager)
    assert [r.offset for r in records_of(log) if r.offset >= open_at] == list(
        range(open_at, log.log_end_offset)
    )
    assert len([r for r in records_of(log) if r.offset < open_at]) < 10


def test_a_full_key_map_cleans_as_far_as_it_reaches(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path, cleaner=CleanerSettings(dedupe_bytes=1200))
    for value in range(80):
        put(log, value % 20, value)
    before = state_of(log)
    clean(manager)
    assert state_of(log) == before
    assert 0 < manager.cleaned_upto["topic", 0] < log.segments[-1].base_offset


def test_long_keys_are_told_apart_by_digest() -> None:
    keys = KeyMap(1 << 20)
    for index in range(50):
        assert keys.put(b"x" * 100 + b"%d" % index, index)
    assert [keys.last_offset(b"x" * 100 + b"%d" % index) for index in range(50)] == list(range(50))
    assert max(map(len, keys.offsets)) == 65


def test_pace_follows_the_byte_rate(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path, cleaner=CleanerSettings(io_max_bytes_per_second=10_000))
    for value in range(60):
        put(log, value % 4, value)
    size = sum(segment.size for segment in log.segments[:-1])
    waited = sum(step for step in manager.clean(NOW) if isinstance(step, int))
    assert waited == pytest.approx(2 * size / 10, rel=0.2)  # read once for the map, once to rewrite


def test_a_delete_during_compaction_stops_it(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    for value in range(60):
        put(log, value % 4, value)
    for at, _ in enumerate(manager.clean(NOW)):
        if at == 5:
            manager.delete("topic", 0)
    assert not manager.offline_dirs
    assert manager.logs == {}


def test_a_truncation_during_compaction_stops_it(tmp_path: Path) -> None:
    manager, log = new_log(tmp_path)
    for value in range(60):
        put(log, value % 4, value)
    for at, _ in enumerate(manager.clean(NOW)):
        if at == 20:
            log.truncate_to(10)
    assert [record.offset for record in records_of(log)] == list(range(10))
    assert not manager.uncleanable


def test_a_truncation_while_the_cleaned_segment_is_synced_stops_it(tmp_path: Path) -> None:
    held = HeldJobs(
        lambda job: not isinstance(getattr(job, "__self__", None), (CheckpointWrite, SegmentFlush))
    )
    manager, log = new_log(tmp_path, background=held)
    for value in range(60):
        put(log, value % 4, value)
    rounds = manager.clean(NOW)
    while not held.jobs:
        next(rounds)
    cut = log.segments[1].base_offset + 1
    log.truncate_to(cut)
    append(log, batch_of([(b"key-9", b"value-9")]), epoch=1)
    held.let_all_go()
    drain(rounds)
    assert [record.offset for record in records_of(log)] == list(range(cut + 1))
    assert not [name for name in directory_bytes(log.directory) if name.endswith((".cleaned", ".swap"))]
    assert not manager.uncleanable and log.offline is None


@pytest.mark.parametrize("mode", ["nothing", "prefix", "subset", "all"])
def test_compaction_waits_for_the_recovery_point_on_the_disk(mode: str) -> None:
    """Past the one there, a gap that compaction leaves would pass for a tail that was lost."""
    disk = Disk(random.Random(mode), lambda: NOW)
    held = HeldJobs(lambda job: isinstance(getattr(job, "__self__", None), CheckpointWrite))
    manager = manager_on("", files=disk.mount(), dirs=("data",), config=COMPACT, background=held)  # type: ignore[arg-type]
    log = manager.create("topic", TOPIC_ID, 0, COMPACT)
    for value in range(60):
        put(log, value % 4, value)
    log.fsync()
    before, end = state_of(log), log.log_end_offset
    size = log.size
    clean(manager)
    assert held.jobs and log.size == size
    clean(manager)
    copy = disk.clone()  # the checkpoint never gets there
    copy.power_cut(mode)
    again = manager_on("", files=copy.mount(), dirs=("data",), config=COMPACT).logs["topic", 0]  # type: ignore[arg-type]
    again.set_high_watermark(again.log_end_offset)
    assert (state_of(again), again.log_end_offset) == (before, end)
    held.let_go()
    clean(manager)
    assert log.size < size and state_of(log) == before


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=300)), min_size=1, max_size=20)
)
def test_walk_sees_what_the_record_reader_sees(rows: list[tuple[bytes, bytes | None]]) -> None:
    batch = bytes(batch_of(rows, base_offset=5))
    walked = list(walk(records_data(batch, 0, parse_header(batch)), parse_header(batch)))
    assert [(record.key, record.is_tombstone) for record in walked] == [(k, v is None) for k, v in rows]
    assert [record.offset for record in walked] == list(range(5, 5 + len(rows)))


def test_groups_respect_size_index_and_relative_offsets() -> None:
    bases = [0, 10, 20, 1 << 31, (1 << 31) + 100]
    extents = [
        SegmentExtent(base_offset=base, end_offset=end, size=40, index_bytes=8)
        for base, end in pairwise(bases)
    ]
    assert plan_groups(extents, segment_bytes=100, index_bytes=100) == [(0, 2), (2, 3), (3, 4)]
    assert plan_groups(extents, segment_bytes=1000, index_bytes=16) == [(0, 2), (2, 3), (3, 4)]
    assert plan_groups(extents, segment_bytes=1000, index_bytes=100) == [(0, 3), (3, 4)]
    assert plan_groups([], segment_bytes=1, index_bytes=1) == []


def count_operations(root: Path) -> int:
    files = FaultyFiles()
    manager, _ = fill(root, files)
    files.operations = 0
    clean(manager)
    return files.operations


def fill(root: Path, files: FaultyFiles) -> tuple[LogManager, UnifiedLog]:
    config = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01, segment_bytes=300)
    manager, log = new_log(root, config, files=files)
    for value in range(14):
        put(log, value % 3, value if value % 5 else None)
    return manager, log


def test_a_crash_after_any_file_operation_loses_nothing(tmp_path: Path) -> None:
    total = count_operations(tmp_path / "count")
    assert total > 15
    for at in range(1, total + 1):
        root = tmp_path / str(at)
        files = FaultyFiles()
        manager, log = fill(root, files)
        before = state_of(log)
        offset = log.log_end_offset
        files.operations, files.fail_at = 0, at
        with pytest.raises(PowerCut):
            clean(manager)
        files.fail_at = -1
        kill(manager)
        manager = manager_on(root)
        log = manager.logs["topic", 0]
        log.set_high_watermark(log.log_end_offset)
        assert (state_of(log), log.log_end_offset) == (before, offset), f"crash at operation {at}"
        left = directory_bytes(log.directory)
        assert not [name for name in left if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
        kill(manager)
        assert directory_bytes(manager_on(root).logs["topic", 0].directory) == left
        for _, header in iter_batches(read_all(log)):
            assert header.magic == 2


@pytest.mark.parametrize("value_bytes, is_beside", [(1_000, False), (1 << 20, True)])
def test_a_small_batch_that_becomes_large_is_unpacked_beside_the_loop(
    value_bytes: int, is_beside: bool
) -> None:
    batch = bytes(batch_of([(b"k", bytes(value_bytes))], codec=Codec.ZSTD))
    jobs: list[object] = []

    class Owner:
        def run_in_background(self, job: Callable[[], None], done: Callable[[None], None]) -> None:
            jobs.append(job)
            job()
            done(None)

    steps = _unpacked(cast(CompactedLogs, Owner()), batch, parse_header(batch))
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert len(end.value.value) > value_bytes
    assert bool(jobs) is is_beside
