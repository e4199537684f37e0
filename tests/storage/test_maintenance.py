"""What is done now and then, and when: syncs in the background, retention, the deletion of files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.maintenance import Intervals
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    NOW,
    TOPIC_ID,
    FaultyFiles,
    append,
    batch_of,
    directory_bytes,
    drain,
    kill,
    manager_on,
    read_all,
    records_of,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def test_flush_messages_syncs_inline_and_flush_ms_in_maintenance(tmp_path: Path) -> None:
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig(flush_messages=3))
    append(log, batch_of(2))
    assert log.recovery_point == 0
    append(log, batch_of(1))
    assert log.recovery_point == 3
    log.set_config(LogConfig(flush_ms=1000))
    append(log, batch_of(1))
    drain(manager.maintain(NOW + 999))
    assert log.recovery_point == 3
    drain(manager.maintain(NOW + 1000))
    assert log.recovery_point == 4


def test_closed_segments_are_synced_in_the_background(tmp_path: Path) -> None:
    jobs: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
    manager = manager_on(tmp_path, background=lambda job, done: jobs.append((job, done)))
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for _ in range(10):
        append(log, batch_of(1))
    drain(manager.maintain(NOW))
    assert log.recovery_point == 0 and len(jobs) == 1
    job, done = jobs.pop()
    job()
    done(None)
    assert log.recovery_point == log.segments[-1].base_offset > 0
    drain(manager.maintain(NOW + 1))
    assert not jobs


def test_a_failed_background_sync_takes_the_directory_down(tmp_path: Path) -> None:
    failures: list[tuple[str, OSError]] = []
    files = FaultyFiles(error=OSError(errno.EIO, "input/output error"))
    files.only = lambda what, path: what == "fsync" and path.endswith(".log")
    files.fail_at = 1
    manager = manager_on(tmp_path, files=files, failures=failures)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for _ in range(10):
        append(log, batch_of(1))
    drain(manager.maintain(NOW))
    assert len(failures) == 1 and log.offline is not None


# --- retention ---


def filled(root: Path, config: LogConfig, batches: int = 12) -> UnifiedLog:
    manager = manager_on(root, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for index in range(batches):
        append(log, batch_of(1, timestamp=NOW + 1000 * index), now_ms=NOW + 1000 * index)
    return log


def test_retention_by_size_keeps_at_least_that_much(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=200, retention_bytes=500))
    size = log.size
    deleted = log.expire(NOW)
    assert deleted > 0
    assert 500 <= log.size < 500 + 200
    assert log.size < size
    assert log.log_start_offset == log.segments[0].base_offset


def test_retention_by_time_empties_the_log_at_last(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=200, retention_ms=5000))
    log.expire(NOW + 11_000)
    kept = records_of(log)
    assert kept and all(record.timestamp >= NOW + 5000 for record in kept)
    log.expire(NOW + 60_000)
    assert records_of(log) == []
    assert log.log_start_offset == log.log_end_offset == 12
    assert len(log.segments) == 1
    assert log.expire(NOW + 120_000) == 0


def test_retention_never_passes_the_high_watermark(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_ms=1)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(12):
        append(log, batch_of(1), replicated=False)
    log.set_high_watermark(5)
    log.expire(NOW + 10_000)
    assert 0 < log.log_start_offset <= 5


def test_delete_records_frees_segments_and_survives_a_restart(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_ms=-1)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(12):
        append(log, batch_of(1))
    log.advance_log_start(7)
    with pytest.raises(KafkaError) as caught:
        log.advance_log_start(13)
    assert caught.value.code is ErrorCode.offset_out_of_range
    log.advance_log_start(3)
    assert log.log_start_offset == 7
    with pytest.raises(KafkaError):
        log.read(6, 100, bound=12, min_one=True)
    before = len(log.segments)
    log.expire(NOW)
    assert len(log.segments) < before
    drain(manager.maintain(NOW))
    kill(manager)
    again = manager_on(tmp_path, config=config).logs["topic", 0]
    assert again.log_start_offset == 7


def test_deleted_segment_files_wait_for_their_delay(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_bytes=0, file_delete_delay_ms=5000)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(6):
        append(log, batch_of(1))
    log.expire(NOW)
    assert any(name.endswith(".deleted") for name in directory_bytes(log.directory))
    drain(manager.maintain(NOW + 4999))
    assert any(name.endswith(".deleted") for name in directory_bytes(log.directory))
    drain(manager.maintain(NOW + 5000))
    assert not any(name.endswith(".deleted") for name in directory_bytes(log.directory))


def test_records_of_the_far_future_only_keep_their_segment(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_ms=1000, message_timestamp_after_max_ms=1 << 62)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    append(log, batch_of(1, timestamp=NOW * 4))
    append(log, batch_of(1, timestamp=0))
    append(log, batch_of(1, timestamp=NOW))
    assert log.expire(NOW + 10_000) == 0
    assert len(records_of(log)) == 3


def test_tiered_segments_move_only_the_local_start(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, remote_storage_enable=True, local_retention_ms=0, retention_ms=-1)
    manager = manager_on(tmp_path, config=config)
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(12):
        append(log, batch_of(1))
    assert log.expire(NOW + 1000) == 0
    log.tiered_end = 6
    log.expire(NOW + 1000)
    assert log.log_start_offset == 0
    assert 0 < log.local_log_start_offset <= 6


def test_maintenance_runs_each_kind_when_it_is_due(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=200, retention_bytes=0)
    manager = manager_on(
        tmp_path, config=config, intervals=Intervals(initial_delay_ms=100, retention_ms=1000)
    )
    log = manager.create("topic", TOPIC_ID, 0, config)
    for _ in range(6):
        append(log, batch_of(1))
    drain(manager.maintain(NOW))
    drain(manager.maintain(NOW + 99))
    assert len(log.segments) > 1
    drain(manager.maintain(NOW + 100))
    assert log.log_start_offset > 0


def test_idle_segments_give_their_files_and_indexes_back(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, config=SMALL)
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    for _ in range(12):
        append(log, batch_of(1))
    expected = read_all(log)
    for _ in range(3):
        log.release_idle()
    assert read_all(log) == expected
    append(log, batch_of(1))
    assert len(records_of(log)) == 13


def test_a_log_at_rest_is_left_alone(tmp_path: Path) -> None:
    """What a round has to do with a log it sees at a look; whether it then does it the tests above say."""
    manager = manager_on(tmp_path)
    log = manager.create("topic", TOPIC_ID, 0, LogConfig(segment_bytes=400, file_delete_delay_ms=1000))
    assert not log.is_restless(NOW)
    append(log, batch_of(1))
    assert not log.is_restless(NOW + 1_000_000), "nothing asks for a sync of the active segment"
    log.set_config(LogConfig(segment_bytes=400, file_delete_delay_ms=1000, flush_ms=1000))
    assert [log.is_restless(log.flushed_at_ms + at_ms) for at_ms in (999, 1000)] == [False, True]
    log.set_config(LogConfig(segment_bytes=400, file_delete_delay_ms=1000))
    for _ in range(12):
        append(log, batch_of(1))
    assert log.is_restless(NOW), "a closed segment is to be synced"
    drain(manager.maintain(NOW))
    assert not log.is_restless(NOW)
    log.set_config(LogConfig(segment_bytes=400, file_delete_delay_ms=1000, retention_bytes=0))
    log.expire(NOW)
    assert log.is_restless(NOW), "files wait for their removal"
    drain(manager.maintain(NOW + 1_000_000))
    assert not log.is_restless(NOW)
