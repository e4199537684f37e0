"""What leaves the tier and in which order, and what stays although it might seem to be nobody's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from remote.cold.claim import LATE_UPLOAD_S
from remote.cold.expirer import REMOVED_AT_ONCE, may_expire
from remote.cold.packed import unpack_copy
from remote.cold.removal import LOOK_AGAIN_S
from remote.cold.segments import LogStartMoved, RemoteSegment, SegmentState, SegmentUpdated, TierEvent
from remote.cold.tenure import TenureOver
from remote.store.object_store import StoreError
from tests.remote.cold.stage import Stage
from tests.storage.support import NOW, HeldJobs, read_all

DAY_MS = 86_400_000


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def tiered(stage: Stage, segments: int = 4) -> Stage:
    """All closed segments are copied, and gone from the disk but for the last."""
    stage.fill(segments)
    await stage.copy_all()
    stage.configure(local_retention_bytes=1, local_retention_ms=-1)
    while stage.log.expire(NOW):
        pass
    assert stage.log.local_log_start_offset > stage.log.log_start_offset == 0
    return stage


def old(stage: Stage) -> None:
    """A minute passes: no upload can be under way any more."""
    stage.time += LATE_UPLOAD_S


def told_starts(stage: Stage) -> list[int]:
    return [event.log_start for event in stage.agreed.events if isinstance(event, LogStartMoved)]


async def delete_records(stage: Stage, offset: int) -> None:
    await stage.tenure.start_log_at(offset)
    stage.settle()
    await stage.expirer.expire(stage.tenure)


async def test_a_log_start_that_no_copy_tells_is_told_once(stage: Stage) -> None:
    await tiered(stage)
    await stage.expire_all()
    assert told_starts(stage) == []
    old(stage)
    first, second = list(stage.fold.finished())[:2]
    await delete_records(stage, first.base_offset + 1)
    assert told_starts(stage) == [first.base_offset + 1]
    await delete_records(stage, second.base_offset + 1)
    await stage.expirer.expire(stage.tenure)
    assert told_starts(stage) == [first.base_offset + 1, second.base_offset + 1]
    assert stage.fold.implied_start == stage.log.log_start_offset


async def test_a_log_start_past_every_copy_is_told_before_they_go(stage: Stage) -> None:
    await tiered(stage)
    old(stage)
    stage.fill(1)
    end = stage.log.high_watermark
    assert end > stage.log.tiered_end
    await delete_records(stage, end)
    assert told_starts(stage) == [end]
    kinds = [type(event) for event in stage.agreed.events[-9:]]
    assert kinds == [LogStartMoved, *[SegmentUpdated] * 8], "before the first deletion of four"
    await stage.expire_all()
    assert stage.objects() == []
    assert stage.fold.implied_start == end


async def test_what_retention_takes_away_tells_where_the_log_starts(stage: Stage) -> None:
    await tiered(stage)
    old(stage)
    stage.configure(retention_bytes=1)
    await stage.expire_all()
    assert stage.log.log_start_offset == stage.log.local_log_start_offset > 0
    await stage.expire_all()
    assert stage.fold.implied_start == stage.log.log_start_offset
    assert len(told_starts(stage)) <= 1


async def test_a_turn_looks_at_no_more_copies_than_it_can_remove(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tiered(stage, 120)
    old(stage)
    await stage.tenure.start_log_at(stage.log.local_log_start_offset)
    stage.settle()
    unpacked = 0

    def unpack(packed: bytes, **named: Any) -> RemoteSegment:
        nonlocal unpacked
        unpacked += 1
        return unpack_copy(packed, **named)

    monkeypatch.setattr("remote.cold.fold.unpack_copy", unpack)
    assert await stage.expirer.expire(stage.tenure) == 0.0
    assert stage.removal.deleted == REMOVED_AT_ONCE
    assert unpacked <= 6 * REMOVED_AT_ONCE
    monkeypatch.undo()
    await stage.expire_all()
    assert stage.objects() == []


async def test_nothing_goes_that_retention_keeps(stage: Stage) -> None:
    await tiered(stage)
    objects = stage.objects()
    await stage.expire_all()
    assert stage.objects() == objects
    assert stage.log.log_start_offset == 0


async def test_retention_by_time_moves_the_log_start_first_and_deletes_after(stage: Stage) -> None:
    await tiered(stage, 3)
    old(stage)
    stage.fill(1, timestamp=NOW + DAY_MS)
    await stage.copy_all()
    stage.configure(retention_ms=DAY_MS // 2)
    stage.now_ms = NOW + DAY_MS
    starts: list[int] = []

    def before(event: TierEvent) -> None:
        starts.append(stage.log.log_start_offset)

    stage.agreed.before = before
    await stage.expire_all()
    kept = list(stage.fold.finished())
    assert [segment.max_timestamp_ms for segment in kept] == [NOW + DAY_MS]
    assert stage.log.log_start_offset == kept[0].base_offset
    assert starts[0] == 0 and set(starts[1:]) == {kept[0].base_offset}
    assert stage.moved == [kept[0].base_offset]
    assert len(stage.objects()) == 2


@pytest.mark.parametrize("is_written", [True, False])
async def test_no_deletion_begins_before_the_log_start_is_durable(tmp_path: Path, is_written: bool) -> None:
    is_busy = False
    disk = HeldJobs(lambda job: is_busy)
    stage = await tiered(Stage(tmp_path, background=disk))
    stage.configure(retention_bytes=1)
    is_busy = True
    task = asyncio.ensure_future(stage.expirer.expire(stage.tenure))
    for _ in range(5):
        await asyncio.sleep(0)
    assert disk.jobs
    assert SegmentState.DELETE_STARTED not in stage.agreed.states()
    if is_written:
        disk.let_all_go()
        await task
        assert SegmentState.DELETE_STARTED in stage.agreed.states()
    else:
        stage.log.take_offline("the disk failed")
        with pytest.raises(KafkaError):
            await task
        assert SegmentState.DELETE_STARTED not in stage.agreed.states()


async def test_retention_by_size_counts_the_tier_and_what_is_here_alone(stage: Stage) -> None:
    await tiered(stage)
    sizes = [segment.size_bytes for segment in stage.fold.finished()]
    local = stage.log.size_from(stage.log.tiered_end)
    stage.configure(retention_bytes=sum(sizes[2:]) + local)
    await stage.expire_all()
    assert len(list(stage.fold.finished())) == 2
    assert stage.log.log_start_offset == next(iter(stage.fold.finished())).base_offset


async def test_what_is_below_the_log_start_goes(stage: Stage) -> None:
    await tiered(stage)
    second = list(stage.fold.finished())[1]
    stage.log.advance_log_start(second.base_offset + 1)
    await stage.expire_all()
    assert next(stage.fold.finished()).id == second.id
    assert read_all(stage.log, stage.log.local_log_start_offset)


async def test_a_copy_that_the_fold_lost_takes_the_log_start_with_it(stage: Stage) -> None:
    await tiered(stage)
    first, second, *_ = stage.fold.finished()
    for state in (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED):
        stage.agreed.known.apply(
            SegmentUpdated(
                partition=stage.partition,
                topic="topic",
                id=first.id,
                state=state,
                broker_id=2,
                event_timestamp_ms=NOW,
            )
        )
    await stage.expire_all()
    assert stage.log.log_start_offset == second.base_offset


async def test_copies_of_another_lineage_go(stage: Stage) -> None:
    stage.fill(3)
    await stage.copy_all()
    kept, *others = stage.fold.finished()
    stage.log.truncate_to(kept.end_offset)
    stage.lead(1)
    stage.log.epoch_start(1)
    stage.fill(3, epoch=1)
    stage.settle()
    await stage.copy_all()
    await stage.expire_all()
    left = [segment.id for segment in stage.fold.finished()]
    assert kept.id in left
    assert not {other.id for other in others} & set(left)
    assert await stage.bytes_in_tier() == read_all(stage.log, bound=stage.log.tiered_end)


async def test_of_two_copies_of_the_same_offsets_one_stays(stage: Stage) -> None:
    stage.fill(2)
    await stage.copy_all()
    stage.log.tiered_end = 0
    assert len(stage.copier.due(stage.tenure)) == 2
    await stage.copier.copy_next(stage.tenure)
    assert len(list(stage.fold.finished())) == 3
    await stage.expire_all()
    assert len(list(stage.fold.finished())) == 2
    assert await stage.bytes_in_tier() == read_all(stage.log, bound=stage.log.tiered_end)
    assert len(stage.objects()) == 4


async def test_an_upload_that_ended_a_moment_ago_is_deleted_twice(stage: Stage) -> None:
    stage.fill(2)
    await stage.copy_all()
    stage.configure(retention_bytes=1)
    late = stage.objects()[0], stage.store.objects[stage.objects()[0]]
    assert await stage.expirer.expire(stage.tenure) == LATE_UPLOAD_S
    assert SegmentState.DELETE_FINISHED not in stage.agreed.states()
    await stage.store.put(*late)
    assert await stage.expirer.expire(stage.tenure) == LATE_UPLOAD_S
    stage.time += LATE_UPLOAD_S
    assert await stage.expirer.expire(stage.tenure) is None
    assert stage.objects() == []
    assert stage.agreed.states().count(SegmentState.DELETE_FINISHED) == 2


async def test_an_upload_of_long_ago_is_deleted_once(stage: Stage) -> None:
    await tiered(stage)
    old(stage)
    stage.configure(retention_bytes=1)
    assert await stage.expirer.expire(stage.tenure) is None
    assert stage.agreed.states().count(SegmentState.DELETE_FINISHED) == 4


async def test_a_new_life_begins_the_wait_for_a_late_upload_anew(stage: Stage) -> None:
    await tiered(stage)
    stage.configure(retention_bytes=1)
    assert await stage.expirer.expire(stage.tenure) == LATE_UPLOAD_S
    stage.time += LATE_UPLOAD_S
    stage.live()
    stage.lead(1)
    assert await stage.expirer.expire(stage.tenure) == LATE_UPLOAD_S
    stage.time += LATE_UPLOAD_S
    assert await stage.expirer.expire(stage.tenure) is None
    assert stage.objects() == []


async def test_an_unfinished_copy_of_another_life_goes_and_one_under_way_stays(stage: Stage) -> None:
    stage.fill(1)
    real = stage.storage
    states: list[SegmentState] = []

    class Peeks:
        async def copy_segment(self, *args: Any, **options: Any) -> None:
            await stage.expirer.expire(stage.tenure)
            states.extend(stage.agreed.states())
            raise StoreError("503")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    stage.storage = Peeks()
    with pytest.raises(StoreError):
        await stage.copy_all()
    assert states == [SegmentState.COPY_STARTED]
    stage.storage = real
    stage.live()
    stage.lead(1)
    await stage.expire_all()
    assert stage.fold.unfinished_count == stage.fold.deleting_count == 0
    assert stage.agreed.states()[-1] is SegmentState.DELETE_FINISHED


async def test_a_copy_that_is_finished_amid_the_turn_that_would_clear_it_stays(stage: Stage) -> None:
    stage.fill(1)
    late: list[TierEvent] = []

    def lose(event: TierEvent) -> None:
        if has_state(event, SegmentState.COPY_FINISHED):
            late.append(event)
            raise KafkaError(ErrorCode.request_timed_out)

    def hear(event: TierEvent) -> None:
        while late:
            stage.agreed.known.apply(late.pop())

    stage.agreed.before = lose
    with pytest.raises(KafkaError):
        await stage.copy_all()
    stage.agreed.before = hear
    stage.lead(1)
    assert await stage.expirer.expire(stage.tenure) == LOOK_AGAIN_S
    stage.settle()
    assert await stage.expirer.expire(stage.tenure) is None
    assert SegmentState.DELETE_STARTED not in stage.agreed.states()
    assert len(stage.objects()) == 2


async def test_a_copy_that_was_finished_since_it_was_chosen_is_not_touched(stage: Stage) -> None:
    stage.fill(1)
    await stage.copy_all()
    (finished,) = stage.fold.finished()
    seen = replace(finished, state=SegmentState.COPY_STARTED)
    assert await stage.removal.remove(stage.tenure, seen) == LOOK_AGAIN_S
    with pytest.raises(KafkaError) as refused:
        await stage.removal.begin(stage.tenure, seen)
    assert refused.value.code is ErrorCode.invalid_record
    assert len(stage.objects()) == 2


def has_state(event: TierEvent, state: SegmentState) -> bool:
    return isinstance(event, SegmentUpdated) and event.state is state


async def test_a_tenure_that_ends_stops_at_the_next_object(stage: Stage) -> None:
    await tiered(stage)
    old(stage)
    stage.configure(retention_bytes=1)
    real = stage.storage
    deleted: list[Any] = []

    class Ends:
        async def delete_segment(self, segment: Any) -> None:
            deleted.append(segment)
            await real.delete_segment(segment)
            stage.tenure.is_over = True

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    stage.storage = Ends()
    with pytest.raises(TenureOver):
        await stage.expirer.expire(stage.tenure)
    assert len(deleted) == 1


async def test_a_deposed_leader_deletes_nothing(stage: Stage) -> None:
    await tiered(stage)
    objects = stage.objects()
    stage.agreed.leader_epoch = 1
    stage.configure(retention_bytes=1)
    with pytest.raises(KafkaError) as refused:
        await stage.expirer.expire(stage.tenure)
    assert refused.value.code is ErrorCode.fenced_leader_epoch
    assert stage.objects() == objects


async def test_a_store_that_is_away_is_asked_again(stage: Stage) -> None:
    await tiered(stage)
    old(stage)
    stage.configure(retention_bytes=1)
    real = stage.storage

    class Away:
        async def delete_segment(self, segment: Any) -> None:
            raise StoreError("503")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    stage.storage = Away()
    with pytest.raises(StoreError):
        await stage.expirer.expire(stage.tenure)
    stage.storage = real
    await stage.expire_all()
    assert stage.objects() == []


async def test_a_topic_that_is_tiered_no_more_keeps_what_is_here_and_nothing_there(stage: Stage) -> None:
    await tiered(stage)
    stage.configure(remote_storage_enable=False, remote_log_delete_on_disable=True)
    await stage.expire_all()
    assert stage.objects() == []
    assert stage.log.log_start_offset == stage.log.local_log_start_offset > 0
    assert list(stage.fold.finished()) == []


async def test_without_delete_on_disable_nothing_goes(stage: Stage) -> None:
    await tiered(stage)
    objects = stage.objects()
    stage.configure(remote_storage_enable=False)
    assert not may_expire(stage.log)
    await stage.expire_all()
    assert stage.objects() == objects
    assert stage.log.log_start_offset == 0


async def test_a_log_that_lost_its_epochs_or_everything_deletes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "one")
    await tiered(stage)
    stage.log.epochs.truncate_from_start(stage.log.local_log_start_offset)
    objects = stage.objects()
    await stage.expire_all()
    assert stage.objects() == objects
    empty = Stage(tmp_path / "two")
    empty.agreed, empty.store, empty.storage = stage.agreed, stage.store, stage.storage
    empty.live()
    empty.lead(7)
    empty.log.epoch_start(7)
    await empty.expire_all()
    assert stage.objects() == objects
    assert told_starts(empty) == []


@pytest.mark.parametrize("begun", ["deletion", "copy"])
async def test_what_nobody_finishes_goes_though_the_log_is_empty(tmp_path: Path, begun: str) -> None:
    before = Stage(tmp_path / "one")
    before.fill(1)
    real = before.storage
    before.storage = _StoresAndFails(real)
    with pytest.raises(StoreError):
        await before.copy_all()
    if begun == "deletion":
        (copy,) = before.fold.unfinished()
        await before.removal.begin(before.tenure, copy)
    assert before.objects()
    empty = Stage(tmp_path / "two")
    empty.agreed, empty.store, empty.storage = before.agreed, before.store, real
    empty.live()
    empty.lead(7)
    assert empty.log.log_end_offset == 0
    await empty.expire_all()
    assert empty.objects() == []
    assert empty.fold.unfinished_count == empty.fold.deleting_count == 0
    assert told_starts(empty) == []


class _StoresAndFails:
    """The objects are there, and its answer is lost."""

    def __init__(self, real: Any) -> None:
        self._real = real

    async def copy_segment(self, *args: Any, **options: Any) -> None:
        await self._real.copy_segment(*args, **options)
        raise StoreError("503")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_a_few_are_removed_in_one_turn(stage: Stage) -> None:
    await tiered(stage, 20)
    old(stage)
    stage.configure(retention_bytes=1)
    assert await stage.expirer.expire(stage.tenure) == 0.0
    assert 0 < len(list(stage.fold.finished())) < 20
    await stage.expire_all()
    assert list(stage.fold.finished()) == []


async def test_while_many_wait_for_their_second_deletion_nothing_is_due(stage: Stage) -> None:
    stage.fill(21)
    await stage.copy_all()
    stage.configure(retention_bytes=1)
    while (wait_s := await stage.expirer.expire(stage.tenure)) == 0.0:
        pass
    assert wait_s == LATE_UPLOAD_S
    stage.time += LATE_UPLOAD_S / 2
    assert await stage.expirer.expire(stage.tenure) == LATE_UPLOAD_S / 2
    stage.time += LATE_UPLOAD_S / 2
    while await stage.expirer.expire(stage.tenure) == 0.0:
        pass
    assert stage.objects() == []
