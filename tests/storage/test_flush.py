"""What a sync vouches for: what was written when it began, and never what came or went since."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from protocol.records import iter_batches
from storage.flush import SegmentFlush
from storage.policy import LogConfig
from storage.unified_log import UnifiedLog
from tests.sim.disk import Disk
from tests.sim.salvage import segments
from tests.storage.support import NOW, TOPIC_ID, append, batch_of, log_on, manager_on

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=-1)


def begun(log: UnifiedLog) -> SegmentFlush:
    job = log.fsync_target()
    assert job is not None
    return job


def test_a_sync_vouches_for_what_was_written_when_it_began(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(3))
    job = begun(log)
    append(log, batch_of(4))
    job.run()
    log.mark_flushed(job)
    assert (log.recovery_point, log.log_end_offset) == (3, 7)
    log.mark_flushed(begun(log))
    assert log.recovery_point == 7


@pytest.mark.parametrize("is_early", [True, False])
def test_a_sync_begun_before_a_cut_vouches_for_nothing_after_a_newer_one_began(
    tmp_path: Path, is_early: bool
) -> None:
    log = log_on(tmp_path)
    for _ in range(6):
        append(log, batch_of(1))
    before = begun(log)
    if is_early:
        before.run()
    log.truncate_to(2)
    for _ in range(6):
        append(log, batch_of(1), epoch=1)
    after = begun(log)
    if not is_early:
        before.run()
    point = log.recovery_point
    log.mark_flushed(before)
    assert log.recovery_point == point < 2
    append(log, batch_of(1), epoch=1)
    after.run()
    log.mark_flushed(after)
    assert (log.recovery_point, log.log_end_offset) == (8, 9)


def certain_upto(disk: Disk, log: UnifiedLog) -> int:
    """How far a power cut, whatever it takes, leaves the log as it is read now."""
    now = [
        batch for _, _, data in segments(disk.snapshot(), ["/data"])["topic", 0] for batch in batches(data)
    ]
    kept = {
        batch
        for _, _, data in segments(disk.durable_snapshot(), ["/data"]).get(("topic", 0), [])
        for batch in batches(data)
    }
    end = log.log_start_offset
    for next_offset, data in now:
        if (next_offset, data) not in kept:
            return end
        end = next_offset
    return max(end, log.log_end_offset)


def batches(data: bytes) -> list[tuple[int, bytes]]:
    return [(header.next_offset, data[at : at + header.size]) for at, header in iter_batches(data)]


@pytest.mark.parametrize("seed", range(60))
def test_overlapping_syncs_vouch_for_no_more_than_the_disk_keeps(seed: int) -> None:
    """They run and end in any order, while the log grows, rolls and is cut."""
    rng = random.Random(seed)
    disk = Disk(random.Random(seed), lambda: NOW)
    manager = manager_on("", files=disk.mount(), dirs=("data",), config=SMALL)  # type: ignore[arg-type]
    log = manager.create("topic", TOPIC_ID, 0, SMALL)
    begun_jobs: list[SegmentFlush] = []
    run_jobs: list[SegmentFlush] = []
    for step in range(150):
        match rng.choice(("append",) * 4 + ("begin", "run", "end", "end", "cut", "anew", "roll")):
            case "append":
                append(log, batch_of(rng.choice((1, 2)), value_bytes=20 + step % 7), epoch=step)
            case "begin":
                job = log.fsync_target(closed_only=rng.random() < 0.3)
                if job is not None:
                    begun_jobs.append(job)
            case "run" if begun_jobs:
                job = begun_jobs.pop(rng.randrange(len(begun_jobs)))
                job.run()
                run_jobs.append(job)
            case "end" if run_jobs:
                log.mark_flushed(run_jobs.pop(rng.randrange(len(run_jobs))))
            case "cut":
                log.truncate_to(rng.randrange(log.log_start_offset, log.log_end_offset + 1))
            case "anew" if rng.random() < 0.2:
                log.truncate_fully(log.log_end_offset + rng.choice((0, 5)))
            case "roll":
                log.roll(log.log_end_offset, NOW)
        assert log.recovery_point <= certain_upto(disk, log), f"step {step}"
