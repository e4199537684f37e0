"""A log whose closed segments are copied to a tier: its two starts, through retention, cuts and restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.checkpoints import Done
from storage.log import TieredOffset
from storage.log_manager import LogManager
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.storage.support import NOW, TOPIC_ID, append, batch_of, drain, manager_on

FAR = 1 << 40
TIERED = LogConfig(
    segment_bytes=300,
    index_interval_bytes=100,
    remote_storage_enable=True,
    local_retention_ms=1000,
    retention_ms=FAR,
    file_delete_delay_ms=0,
)
LATER = NOW + 5000
"""Local retention is over, total retention is not."""


def tiered(root: Path, config: LogConfig = TIERED) -> UnifiedLog:
    return manager_on(root, config=config).create("topic", TOPIC_ID, 0, config)


def fill(log: UnifiedLog, upto: int, *, each: int = 5, epoch: int = 0) -> None:
    """Append batches of `each` records up to an offset: two of them are more than a segment takes."""
    while log.log_end_offset < upto:
        append(log, batch_of(each), epoch=epoch)


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def expire(log: UnifiedLog, now_ms: int = LATER) -> int:
    count = 0
    while gone := log.expire(now_ms):
        count += gone
    return count


def restarted(root: Path, manager: LogManager, config: LogConfig = TIERED, *, clean: bool) -> UnifiedLog:
    manager.close(clean=clean)
    return manager_on(root, config=config).logs["topic", 0]


# --- what local retention takes ---


@pytest.mark.parametrize("tiered_end", [0, 10])
def test_without_copying_retention_is_that_of_the_whole_log(tmp_path: Path, tiered_end: int) -> None:
    config = LogConfig(
        segment_bytes=300,
        remote_storage_enable=True,
        remote_log_copy_disable=True,
        local_retention_ms=1000,
        retention_ms=100_000,
    )
    log = tiered(tmp_path, config)
    fill(log, 50)
    log.tiered_end = tiered_end
    assert expire(log) == 0
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 0)
    assert expire(log, NOW + 200_000) > 0
    assert (log.log_start_offset, log.local_log_start_offset) == (50, 50)


def test_records_deleted_past_the_tier_go_from_the_disk(tmp_path: Path) -> None:
    log = tiered(tmp_path)
    fill(log, 50)
    assert bases(log)[:4] == [0, 5, 10, 15]
    log.tiered_end = 10
    log.advance_log_start(30)
    assert expire(log, NOW) == 6
    assert (log.log_start_offset, log.local_log_start_offset, bases(log)[0]) == (30, 30, 30)


def test_a_log_that_is_filled_again_is_not_taken_for_tiered(tmp_path: Path) -> None:
    log = tiered(tmp_path)
    fill(log, 50)
    log.tiered_end = 50
    log.truncate_to(20)
    assert log.tiered_end == 20
    fill(log, 50, epoch=1)
    assert expire(log) == 4
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 20)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_the_log_start_and_every_epoch_since(tmp_path: Path, clean: bool) -> None:
    manager = manager_on(tmp_path, config=TIERED)
    log = manager.create("topic", TOPIC_ID, 0, TIERED)
    for epoch in range(5):
        fill(log, 10 * (epoch + 1), epoch=epoch)
    log.tiered_end = 45
    drain(manager.maintain(NOW))
    expire(log)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 45)
    again = restarted(tmp_path, manager, clean=clean)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (0, 45, 50)
    assert again.epochs.entries() == [(epoch, 10 * epoch) for epoch in range(5)]
    assert not again.epochs_incomplete
    assert again.tiered_end == 0


def test_what_is_in_the_tier_alone_is_not_out_of_range(tmp_path: Path) -> None:
    log = tiered(tmp_path)
    fill(log, 50)
    log.advance_log_start(7)
    log.tiered_end = 30
    expire(log)
    for offset in (7, 29):
        with pytest.raises(TieredOffset) as tiered_offset:
            log.read(offset, 1000, bound=50, min_one=True)
        assert tiered_offset.value.code is ErrorCode.offset_moved_to_tiered_storage
    for offset in (6, 51):
        with pytest.raises(KafkaError) as refused:
            log.read(offset, 1000, bound=50, min_one=True)
        assert refused.value.code is ErrorCode.offset_out_of_range
    assert log.read(30, 1000, bound=50, min_one=True) is not None


@pytest.mark.parametrize("takes", ["retention", "pressure"])
def test_no_segment_goes_before_the_checkpoint_names_the_log(tmp_path: Path, takes: str) -> None:
    """Without that the epochs alone tell where it starts, and their file may be damaged."""
    jobs: list[tuple[Callable[[], None], Done]] = []
    manager = manager_on(tmp_path, config=TIERED, background=lambda job, done: jobs.append((job, done)))
    log = manager.create("topic", TOPIC_ID, 0, TIERED)
    fill(log, 50)
    log.tiered_end = 40

    def go() -> int:
        return expire(log) if takes == "retention" else log.free_tiered(LATER)

    assert go() == 0
    assert bases(log)[0] == 0
    for _ in manager.maintain(LATER):
        pass
    while jobs:
        job, done = jobs.pop(0)
        job()
        done(None)
        for _ in manager.maintain(LATER):
            pass
    assert go() > 0
    assert bases(log)[0] == 40
    manager.close(clean=False)
    (Path(log.directory) / "leader-epoch-checkpoint").write_bytes(b"no epochs")
    again = manager_on(tmp_path, config=TIERED).logs["topic", 0]
    assert (again.log_start_offset, again.local_log_start_offset) == (0, 40)
