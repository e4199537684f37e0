"""The steps of a copy, and what ends one between any two of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from remote.cold import claim
from remote.cold.bootstrap import fetch_epochs
from remote.cold.copier import CopyFailed
from remote.cold.events import updated
from remote.cold.scan import SegmentChanged
from remote.cold.segments import SegmentStarted, SegmentState, SegmentUpdated, TierEvent
from remote.cold.storage_manager import IndexKind
from remote.cold.tenure import TenureOver
from remote.store.object_store import StoreError
from remote.store.tempo import Tempo
from storage.epochs import decode_epochs
from tests.remote.cold.stage import Stage
from tests.storage.support import NOW, append, batch_of, read_all

STARTED, FINISHED = SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED
DELETING, DELETED = SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_every_closed_segment_is_copied_with_its_indexes(stage: Stage) -> None:
    stage.fill(2)
    stage.fill(1, epoch=3)
    assert await stage.copy_all() == 3
    assert await stage.bytes_in_tier() == read_all(stage.log, bound=stage.log.tiered_end)
    assert stage.log.tiered_end == stage.log.segments[-1].base_offset
    for segment, local in zip(stage.fold.finished(), stage.log.segments, strict=False):
        header = await stage.fetch_header(segment)
        assert (header.base_offset, header.size_bytes) == (local.base_offset, local.size)
        assert await stage.fetch_index(segment, IndexKind.OFFSET) == local.offsets.encode()
        assert await stage.fetch_index(segment, IndexKind.TIMESTAMP) == local.times.encode()
        epochs = decode_epochs(await stage.fetch_index(segment, IndexKind.LEADER_EPOCH))
        assert epochs == stage.log.epochs.entries_until(segment.end_offset)


class Beside(Tempo):
    """Clients are always served."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[int] = []

    def is_busy(self) -> bool:
        return True

    async def rest(self, size: int, took_s: float) -> None:
        self.rests.append(size)


async def test_beside_clients_a_segment_is_read_in_slices(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.copier.BLOCK_BYTES", 64)
    tempo = stage.tempo = Beside()
    stage.block_bytes = 64
    stage.live()
    stage.fill(1)
    await stage.copy_all()
    assert await stage.bytes_in_tier() == read_all(stage.log, bound=stage.log.tiered_end)
    size = stage.log.segments[0].size
    assert len(tempo.rests) == 2 * -(-size // 64)
    assert max(tempo.rests) == 64


async def test_each_copy_is_started_before_its_first_byte_and_finished_after_its_last(stage: Stage) -> None:
    seen: list[tuple[Any, int]] = []

    def before(event: TierEvent) -> None:
        seen.append((type(event).__name__, len(stage.objects())))

    stage.agreed.before = before
    stage.fill(2)
    await stage.copy_all()
    assert seen == [
        ("SegmentStarted", 0),
        ("SegmentUpdated", 2),
        ("SegmentStarted", 2),
        ("SegmentUpdated", 4),
    ]


async def test_the_active_segment_and_what_is_not_stable_stay(stage: Stage) -> None:
    stage.fill(1)
    append(stage.log, batch_of(1, producer=(9, 0, 0), transactional=True))
    stage.fill(2)
    assert stage.log.last_stable_offset < stage.log.high_watermark
    assert await stage.copy_all() == 1
    assert stage.log.tiered_end <= stage.log.last_stable_offset


async def test_a_segment_with_an_aborted_transaction_says_so(stage: Stage) -> None:
    stage.fill(1)
    stage.abort()
    stage.fill(2)
    await stage.copy_all()
    flags = [segment.has_aborted for segment in stage.fold.finished()]
    assert flags == [False, True, False] or flags.count(True) == 1
    aborted = next(segment for segment in stage.fold.finished() if segment.has_aborted)
    assert await stage.fetch_index(aborted, IndexKind.TRANSACTION)


async def test_nothing_is_copied_where_copies_are_off(stage: Stage) -> None:
    stage.fill(2)
    stage.configure(remote_log_copy_disable=True)
    assert await stage.copy_all() == 0
    assert stage.agreed.events == []


async def test_one_turn_copies_one_segment(stage: Stage) -> None:
    stage.fill(3)
    assert await stage.copier.copy_next(stage.tenure)
    assert stage.copier.copied == 1


async def test_a_failed_copy_is_given_up_before_the_next_attempt_which_has_another_id(stage: Stage) -> None:
    stage.fill(1)

    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("503")

    kept, stage.storage = stage.storage, _With(stage.storage, copy_segment=refuse)
    with pytest.raises(StoreError):
        await stage.copy_all()
    assert stage.agreed.states() == [STARTED]
    stage.storage = kept
    assert await stage.copy_all() == 1
    assert stage.agreed.states() == [STARTED, DELETING, STARTED, FINISHED]
    ids = [event.segment.id for event in stage.agreed.events if isinstance(event, SegmentStarted)]
    assert len(set(ids)) == 2
    await stage.expire_all()
    assert stage.agreed.states()[-1] is DELETED
    assert len(stage.objects()) == 2


async def test_what_a_plugin_raises_is_a_failure_of_the_store(stage: Stage) -> None:
    stage.fill(1)

    async def break_down(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    stage.storage = _With(stage.storage, copy_segment=break_down)
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        await stage.copy_all()


async def test_a_leader_that_is_none_any_more_puts_nothing_after_the_deletion_of_its_copy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know: its image is old."""
    stage.fill(1)

    async def others_lead(size: int) -> None:
        if stage.agreed.leader_epoch == 0 and stage.objects():
            begun = next(stage.fold.unfinished())
            stage.agreed.leader_epoch = 1
            stage.agreed.known.apply(updated(begun, DELETING, broker_id=2, now_ms=NOW))
            await stage.delete_segment(begun)
            monkeypatch.setattr(claim, "CONFIRMED_S", 0.0)

    stage.quota = _With(stage.quota, take=others_lead)
    with pytest.raises(KafkaError) as caught:
        await stage.copy_all()
    assert caught.value.code is ErrorCode.fenced_leader_epoch
    assert stage.objects() == []


async def test_a_copy_is_not_finished_once_the_role_is_over(stage: Stage) -> None:
    stage.fill(1)
    real = stage.storage

    async def copy(*args: Any, **options: Any) -> None:
        await real.copy_segment(*args, **options)
        stage.tenure.is_over = True

    stage.storage = _With(real, copy_segment=copy)
    with pytest.raises(TenureOver):
        await stage.copy_all()
    assert stage.agreed.states() == [STARTED]


async def test_an_upload_ends_at_its_next_part_when_the_role_is_over(stage: Stage) -> None:
    stage.fill(1)

    async def take(size: int) -> None:
        stage.tenure.is_over = True

    stage.take = take  # type: ignore[method-assign]
    with pytest.raises(TenureOver):
        await stage.copy_all()
    assert not [key for key in stage.objects() if key.endswith(".log")]


@pytest.mark.parametrize("where", ["store", "quota"])
async def test_an_upload_that_waits_is_given_up_when_the_role_is_over(stage: Stage, where: str) -> None:
    """A part that is tried on for minutes could arrive after the next leader has deleted the copy twice."""
    stage.fill(1)
    waits, gone = asyncio.Event(), asyncio.Event()

    async def hang(*rest: Any, **named: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    if where == "store":
        stage.storage = _With(stage.storage, copy_segment=hang)
    else:
        stage.take = hang  # type: ignore[method-assign]
    copying = asyncio.ensure_future(stage.copy_all())
    await waits.wait()
    stage.tenure.end()
    async with asyncio.timeout(5):
        with pytest.raises(TenureOver):
            await copying
    assert gone.is_set()
    assert stage.agreed.states() == [STARTED]
    assert not stage.copier.under_way


async def test_a_deposed_leader_is_refused(stage: Stage) -> None:
    stage.fill(1)
    stage.agreed.leader_epoch = 1
    with pytest.raises(KafkaError) as refused:
        await stage.copy_all()
    assert refused.value.code is ErrorCode.fenced_leader_epoch
    assert stage.objects() == []


async def test_a_log_that_was_cut_meanwhile_has_its_copy_unfinished(stage: Stage) -> None:
    stage.fill(2)
    real = stage.storage

    async def copy(*args: Any, **options: Any) -> None:
        await real.copy_segment(*args, **options)
        stage.log.truncate_to(stage.log.segments[1].base_offset)
        stage.fill(1, epoch=1)

    stage.storage = _With(real, copy_segment=copy)
    with pytest.raises(SegmentChanged):
        await stage.copy_all()
    assert stage.agreed.states() == [STARTED]


async def test_bytes_that_change_during_an_upload_are_not_sent(stage: Stage) -> None:
    stage.fill(1)

    async def take(size: int) -> None:
        path = stage.log.segments[0].path(".log")
        with open(path, "r+b") as file:  # noqa: ASYNC230
            file.seek(100)
            file.write(b"other")

    stage.take = take  # type: ignore[method-assign]
    with pytest.raises(SegmentChanged, match="other bytes"):
        await stage.copy_all()


async def test_a_segment_that_the_log_deletes_meanwhile_is_copied_to_its_end(stage: Stage) -> None:
    stage.fill(2)
    real = stage.storage

    async def copy(*args: Any, **options: Any) -> None:
        stage.log.advance_log_start(stage.log.segments[1].base_offset)
        stage.log.expire(stage.now_ms)
        for path in stage.log.take_due_files(stage.now_ms + 1):
            stage.log.files.unlink(path)
        stage.storage = real
        await real.copy_segment(*args, **options)

    stage.storage = _With(real, copy_segment=copy)
    assert await stage.copier.copy_next(stage.tenure)
    assert stage.agreed.states() == [STARTED, FINISHED]


async def test_a_start_whose_answer_is_lost_is_given_up(stage: Stage) -> None:
    stage.fill(1)
    stage.agreed.loses_answers = True
    with pytest.raises(KafkaError):
        await stage.copy_all()
    stage.agreed.loses_answers = False
    assert await stage.copy_all() == 1
    await stage.expire_all()
    assert [event.state for event in stage.fold.finished()] == [FINISHED]
    assert len(stage.objects()) == 2


@pytest.mark.parametrize("is_heard", ["at once", "amid the next turn", "never"])
async def test_an_end_whose_answer_is_lost_is_given_up_only_if_it_was_not_heard(
    stage: Stage, is_heard: str
) -> None:
    stage.fill(1)
    late: list[TierEvent] = []

    def lose(event: TierEvent) -> None:
        if isinstance(event, SegmentUpdated) and event.state is FINISHED:
            late.append(event)
            if is_heard == "at once":
                stage.agreed.known.apply(event)
            raise KafkaError(ErrorCode.request_timed_out)

    def hear(event: TierEvent) -> None:
        while late and is_heard == "amid the next turn":
            stage.agreed.known.apply(late.pop())

    stage.agreed.before = lose
    with pytest.raises(KafkaError):
        await stage.copy_all()
    stage.agreed.before = hear
    if is_heard == "amid the next turn":
        with pytest.raises(KafkaError) as refused:
            await stage.copy_all()
        assert refused.value.code is ErrorCode.invalid_record
    assert await stage.copy_all() == (is_heard == "never")
    assert (DELETING in stage.agreed.states()) == (is_heard == "never")
    assert stage.log.tiered_end > 0


async def test_custom_metadata_is_kept_and_has_a_bound(stage: Stage) -> None:
    real = stage.storage
    size = 128

    async def copy(*args: Any, **options: Any) -> bytes:
        await real.copy_segment(*args, **options)
        return bytes(size)

    stage.storage = _With(real, copy_segment=copy)
    stage.fill(2)
    assert await stage.copier.copy_next(stage.tenure)
    stage.settle()
    assert [segment.custom for segment in stage.fold.finished()] == [bytes(128)]
    size = 129
    with pytest.raises(CopyFailed, match=r"custom\.metadata\.max\.bytes"):
        await stage.copier.copy_next(stage.tenure)


async def test_the_producer_snapshot_is_made_anew_where_its_file_is_lost(stage: Stage) -> None:
    append(stage.log, batch_of(1, producer=(7, 0, 0)))
    stage.fill(1)
    end = stage.log.segments[1].base_offset
    name = Path(stage.log.directory) / f"{end:020d}.snapshot"
    expected = name.read_bytes()
    name.unlink()
    await stage.copy_all()
    (segment,) = stage.fold.finished()
    assert await stage.fetch_index(segment, IndexKind.PRODUCER_SNAPSHOT) == expected


async def test_a_copy_begins_with_the_segment_that_holds_the_end_of_the_tier(stage: Stage) -> None:
    stage.fill(2)
    await stage.copy_all()
    first, _second = stage.fold.finished()
    stage.log.tiered_end = first.end_offset - 1  # as another leader's segments may end
    due = stage.copier.due(stage.tenure)
    assert due[0].base_offset == first.base_offset


async def test_a_copy_that_is_cancelled_is_nobodys(stage: Stage) -> None:
    stage.fill(1)

    hangs = asyncio.Event()

    async def hang(size: int) -> None:
        hangs.set()
        await asyncio.Event().wait()

    stage.take = hang  # type: ignore[method-assign]
    task = asyncio.ensure_future(stage.copy_all())
    await hangs.wait()
    assert stage.copier.under_way
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not stage.copier.under_way
    del stage.take  # type: ignore[method-assign]
    assert await stage.copy_all() == 1
    await stage.expire_all()
    assert len(stage.objects()) == 2


class _With:
    """A storage manager with some methods replaced."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self.__dict__.update(methods)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("below", [1, 2])
async def test_a_log_that_begins_inside_a_segment_is_copied_from_its_base(stage: Stage, below: int) -> None:
    """With the epochs of the batches below its start, which it has forgotten."""
    for epoch in (3, 4, 7):
        append(stage.log, batch_of(1, value_bytes=20), epoch=epoch)
    stage.fill(2, epoch=7)
    first = stage.log.segments[0]
    whole = stage.log.epochs.entries_within(first.base_offset, stage.log.segments[1].base_offset)
    assert whole == [(3, 0), (4, 1), (7, 2)]
    stage.log.advance_log_start(first.base_offset + below)
    await stage.copy_all()
    assert stage.log.tiered_end == stage.log.segments[-1].base_offset
    copies = sorted(stage.fold.finished(), key=lambda copy: copy.base_offset)
    assert list(copies[0].epochs) == whole
    assert list(await fetch_epochs(stage.storage, copies[0])) == whole
    readable = read_all(stage.log, bound=stage.log.tiered_end)
    tiered = await stage.bytes_in_tier()
    assert tiered.endswith(readable)
    assert len(tiered) > len(readable)
