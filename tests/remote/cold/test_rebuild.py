"""Index objects that are lost: what is made of the data is what was lost, and data that does not prove itself
makes nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from protocol.records import end_txn_marker
from remote.bad_object import BadObject
from remote.cold.fold import PartitionFold
from remote.cold.index_object import decode_index_object
from remote.cold.object_tier import key_of
from remote.cold.rebuild import Rebuilder, RebuildingManager, copy_before_segment
from remote.cold.segments import RemoteSegment, SegmentStarted, SegmentState
from remote.cold.storage_manager import (
    IndexKind,
)
from remote.keys import SegmentPart
from remote.store.object_store import NoSuchObject
from storage.index import decode_aborted
from storage.policy import LogConfig
from storage.producers import decode_producers
from tests.remote.cold.copies import PARTITION, Lineage, copy_of, update
from tests.remote.cold.read_driver import Tasks
from tests.remote.cold.stage import TIERED, Stage
from tests.storage.support import NOW, append, batch_of

DEFAULT_INTERVAL = replace(
    TIERED, segment_bytes=16_000, index_interval_bytes=LogConfig().index_interval_bytes
)
STATE = (IndexKind.PRODUCER_SNAPSHOT, IndexKind.LEADER_EPOCH)


class FreeQuota:
    def __init__(self) -> None:
        self.noted = 0
        self.is_closed = False
        self.asked = 0

    def is_spent(self) -> bool:
        self.asked += 1
        return self.is_closed

    def note(self, size_bytes: int) -> None:
        self.noted += size_bytes

    def opens_in(self) -> float:
        return 0.0


class Rebuilding:
    """A storage manager over what a stage has copied."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.quota = FreeQuota()
        self.spawn = Tasks()
        self.rebuilder = Rebuilder(
            storage=stage,
            metadata=stage.agreed,
            quota=self.quota,
            cluster_id=lambda: "cluster",
            offload=_inline,
            spawn=self.spawn,
        )
        self.manager = RebuildingManager(stage, self.rebuilder)

    async def all_of(self, segment: RemoteSegment) -> dict[IndexKind, bytes]:
        return {kind: await self.manager.fetch_index(segment, kind) for kind in IndexKind}


async def _inline(call: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)
    return call()


def write(
    stage: Stage, rng: random.Random, batches: int, *, sizes: tuple[int, ...] = (0, 20, 300, 3000)
) -> None:
    """Batches of all kinds: plain, of producers, of transactions that end or do not, of rising epochs."""
    epoch = 0
    sequences: dict[int, int] = {}
    open_: set[int] = set()
    for at in range(batches):
        if rng.random() < 0.05:
            epoch += rng.randint(1, 2)
        now = NOW + at * 10 + rng.randint(-50, 50)
        what = rng.choice(["plain", "idempotent", "transactional", "transactional", "end"])
        size = rng.choice(sizes)
        if what == "end" and open_:
            producer = rng.choice(sorted(open_))
            open_.discard(producer)
            marker = end_txn_marker(
                commit=rng.random() < 0.5,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=at,
                timestamp=now,
            )
            stage.log.append_records(bytearray(marker), leader_epoch=epoch, now_ms=now, origin="coordinator")
        elif what in ("plain", "end"):
            append(stage.log, batch_of(rng.randint(1, 5), timestamp=now, value_bytes=size), epoch=epoch)
        else:
            is_transactional = what == "transactional"
            producer = rng.randint(1, 4) + (0 if is_transactional else 10)
            count = rng.randint(1, 4)
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + count
            if is_transactional:
                open_.add(producer)
            batch = batch_of(
                count,
                timestamp=now,
                value_bytes=size,
                producer=(producer, 0, sequence),
                transactional=is_transactional,
            )
            append(stage.log, batch, epoch=epoch, replicated=False)
        stage.log.set_high_watermark(stage.log.log_end_offset)
    for producer in open_:
        marker = end_txn_marker(
            commit=False, producer_id=producer, producer_epoch=0, coordinator_epoch=batches, timestamp=NOW
        )
        stage.log.append_records(bytearray(marker), leader_epoch=epoch, now_ms=NOW, origin="coordinator")
    stage.log.set_high_watermark(stage.log.log_end_offset)
    stage.log.roll(stage.log.log_end_offset, NOW)


async def copied(path: Path, seed: int, *, batches: int = 120) -> tuple[Stage, list[RemoteSegment]]:
    stage = Stage(path, config=DEFAULT_INTERVAL)
    write(stage, random.Random(seed), batches)
    await stage.copy_all()
    return stage, list(stage.fold.finished())


def index_key(segment: RemoteSegment) -> str:
    return key_of(segment, SegmentPart.INDEX)


def data_key(segment: RemoteSegment) -> str:
    return key_of(segment, SegmentPart.DATA)


def producers_in(snapshot: bytes) -> list[Any]:
    """All but the time of a remembered batch behind which a marker came: a snapshot has the marker's."""
    entries = decode_producers(snapshot)[0].entries
    return [
        (
            each.producer_id,
            each.epoch,
            each.last_timestamp,
            each.coordinator_epoch,
            each.txn_first_offset,
            each.next_sequence,
            [batch[:4] for batch in each.batches],
        )
        for _, each in sorted(entries.items())
    ]


def lose(stage: Stage, segment: RemoteSegment) -> bytes:
    stage.storage._heads.clear()
    return stage.store.objects.pop(index_key(segment))


def spoil(stage: Stage, key: str, at: int) -> None:
    data = bytearray(stage.store.objects[key])
    data[at] ^= 1
    stage.store.objects[key] = bytes(data)
    stage.storage._heads.clear()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_all", [False, True])
async def test_a_lost_index_object_is_made_anew_byte_for_byte(
    tmp_path: Path, seed: int, *, is_all: bool
) -> None:
    stage, segments = await copied(tmp_path, seed)
    assert len(segments) > 2
    random.Random(seed).shuffle(segments)
    whole = dict(stage.store.objects)
    for segment in segments:
        stage.store.objects.clear()
        stage.store.objects.update(whole)
        rebuilding = Rebuilding(stage)
        lost = {each.id: lose(stage, each) for each in (segments if is_all else [segment])}
        head, indexes = decode_index_object(lost[segment.id])
        made = await rebuilding.all_of(segment)
        assert producers_in(made.pop(IndexKind.PRODUCER_SNAPSHOT)) == producers_in(
            indexes.pop(IndexKind.PRODUCER_SNAPSHOT)
        )
        assert made == indexes
        # when the copy began, and the epoch it was led in, stood in the object alone
        header = await rebuilding.manager.fetch_header(segment)
        assert header == replace(
            head.header, leader_epoch=segment.epochs[-1][0], started_ms=segment.event_timestamp_ms
        )


async def test_a_damaged_object_is_read_twice_and_then_made_anew_once_for_all(tmp_path: Path) -> None:
    stage, segments = await copied(tmp_path, 3)
    segment = segments[1]
    spoil(stage, index_key(segment), 30)
    rebuilding = Rebuilding(stage)
    found = await asyncio.gather(
        *(rebuilding.manager.fetch_index(segment, IndexKind.OFFSET) for _ in range(9))
    )
    assert len(set(found)) == 1
    assert (rebuilding.rebuilder.rebuilt, rebuilding.rebuilder.lost) == (1, 9)
    assert rebuilding.quota.noted == rebuilding.rebuilder.read_bytes == segment.size_bytes
    await rebuilding.manager.fetch_header(segment)
    assert rebuilding.rebuilder.rebuilt == 1, "what was made is kept"


async def test_reads_of_clients_go_first(tmp_path: Path) -> None:
    stage, segments = await copied(tmp_path, 3)
    rebuilding = Rebuilding(stage)
    lose(stage, segments[0])
    rebuilding.quota.is_closed = True
    waiting = asyncio.create_task(rebuilding.manager.fetch_header(segments[0]))
    while rebuilding.quota.asked < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert not rebuilding.rebuilder.read_bytes
    rebuilding.quota.is_closed = False
    await waiting


async def test_every_byte_of_the_data_is_proven(tmp_path: Path) -> None:
    """Base offset and leader epoch too, which no CRC covers."""
    stage = Stage(tmp_path, config=replace(DEFAULT_INTERVAL, segment_bytes=1500))
    rng = random.Random(5)
    write(stage, rng, 40, sizes=(0, 20))
    await stage.copy_all()
    segments = list(stage.fold.finished())
    segment = next(each for each in segments if len(each.epochs) > 1 or each.has_aborted)
    lose(stage, segment)
    sound = stage.store.objects[data_key(segment)]
    for at in range(segment.size_bytes):
        spoil(stage, data_key(segment), at)
        with pytest.raises(BadObject):
            await Rebuilding(stage).manager.fetch_header(segment)
        stage.store.objects[data_key(segment)] = sound
    await Rebuilding(stage).manager.fetch_header(segment)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + data[-80:],
        lambda data: b"",
    ],
)
async def test_data_of_another_size_makes_nothing(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    stage, segments = await copied(tmp_path, 4)
    lose(stage, segments[0])
    changed = stage.store.objects[data_key(segments[0])] = change(stage.store.objects[data_key(segments[0])])
    rebuilding = Rebuilding(stage)
    if len(changed) > segments[0].size_bytes:  # what is behind it belongs to nobody
        await rebuilding.manager.fetch_header(segments[0])
        return
    with pytest.raises(BadObject):
        await rebuilding.manager.fetch_header(segments[0])
    assert rebuilding.rebuilder.failed == 1
    read = rebuilding.rebuilder.read_bytes
    with pytest.raises(BadObject):
        await rebuilding.manager.fetch_header(segments[0])
    assert rebuilding.rebuilder.read_bytes == read, "it is not read again at once"


async def test_without_its_data_there_is_nothing(tmp_path: Path) -> None:
    stage, segments = await copied(tmp_path, 4)
    lose(stage, segments[0])
    del stage.store.objects[data_key(segments[0])]
    with pytest.raises(BadObject, match="missing too"):
        await Rebuilding(stage).manager.fetch_header(segments[0])


@pytest.mark.parametrize("what", ["timestamp", "aborted", "epochs"])
async def test_the_metadata_must_agree(tmp_path: Path, what: str) -> None:
    stage, segments = await copied(tmp_path, 6)
    first, segment = segments[:2]
    lose(stage, segment)
    told: dict[str, dict[str, Any]] = {
        "timestamp": {"max_timestamp_ms": NOW + 7_777_777},
        "aborted": {"has_aborted": not segment.has_aborted},
        "epochs": {"epochs": tuple((epoch + 1, start) for epoch, start in segment.epochs)},
    }
    other = replace(segment, **told[what])
    fold = PartitionFold(stage.partition)
    for each in (first, other):
        fold.apply(SegmentStarted(segment=replace(each, state=SegmentState.COPY_STARTED)))
        fold.apply(update(each, SegmentState.COPY_FINISHED))
    stage.agreed.fold = lambda partition: fold  # type: ignore[method-assign]
    with pytest.raises(BadObject):
        await Rebuilding(stage).manager.fetch_header(other)


async def test_a_copy_that_is_on_its_way_out_is_not_read(tmp_path: Path) -> None:
    stage, segments = await copied(tmp_path, 4)
    lose(stage, segments[0])
    await stage.removal.begin(stage.tenure, segments[0])
    rebuilding = Rebuilding(stage)
    with pytest.raises(NoSuchObject):
        await rebuilding.manager.fetch_header(segments[0])
    assert not rebuilding.rebuilder.read_bytes


async def test_of_the_oldest_copy_there_are_transactions_but_no_producers(tmp_path: Path) -> None:
    """What they wrote before it can be read by nobody. Who restores a replica would lack producers."""
    stage, segments = await copied(tmp_path, 1)
    at = next(at for at, each in enumerate(segments) if at and each.has_aborted)
    segment = segments[at]
    for each in segments[:at]:
        stage.time += 1000
        assert await stage.removal.remove(stage.tenure, each) == 0
    original = decode_index_object(lose(stage, segment))[1]
    rebuilding = Rebuilding(stage)
    made = decode_aborted(await rebuilding.manager.fetch_index(segment, IndexKind.TRANSACTION))
    ours = {(txn.producer_id, txn.last_offset) for txn in made}
    for txn in decode_aborted(original[IndexKind.TRANSACTION]):
        # one without a record in the segment has nothing that anybody reads
        assert (txn.producer_id, txn.last_offset) in ours or txn.first_offset < segment.base_offset
        assert all(
            mine.first_offset >= txn.first_offset for mine in made if mine.last_offset == txn.last_offset
        )
    with pytest.raises(BadObject, match="put the object back"):
        await rebuilding.manager.fetch_index(segment, IndexKind.PRODUCER_SNAPSHOT)
    assert await rebuilding.manager.fetch_index(segment, IndexKind.LEADER_EPOCH)


# --- which copy is before it ---

OLD: Lineage = ((0, 0), (1, 10))
NEW: Lineage = ((0, 0), (3, 10))


def fold_of(*copies: RemoteSegment) -> PartitionFold:
    fold = PartitionFold(PARTITION)
    for copy in copies:
        fold.apply(SegmentStarted(segment=copy))
        fold.apply(update(copy, SegmentState.COPY_FINISHED))
    return fold


def id_before(fold: PartitionFold, segment: RemoteSegment) -> UUID | None:
    found = copy_before_segment(fold, segment)
    return None if found is None else found.id


def test_of_two_histories_the_one_of_the_segments_epoch_is_before_it() -> None:
    old, new = copy_of(OLD, 5, 20, number=1), copy_of(NEW, 5, 20, number=2)
    fold = fold_of(old, new)
    assert id_before(fold, copy_of(OLD, 20, 30, number=3)) == old.id
    assert id_before(fold, copy_of(NEW, 20, 30, number=4)) == new.id


def test_where_a_new_epoch_begins_with_the_segment_two_histories_leave_it_open() -> None:
    old, new = copy_of(OLD, 5, 20, number=1), copy_of(NEW, 5, 20, number=2)
    segment = copy_of(((0, 0), (1, 10), (5, 20)), 20, 30, number=3)
    assert id_before(fold_of(old), segment) == old.id
    assert id_before(fold_of(old, new), segment) is None
    fold = fold_of(old, new)
    fold.apply(update(new, SegmentState.DELETE_STARTED))
    assert id_before(fold, segment) is None, "it was there a moment ago"
    # one that goes on in another epoch where the segment begins is of another history
    assert id_before(fold_of(copy_of(OLD, 5, 25, number=5)), segment) is None


async def test_what_readers_need_waits_for_no_producers_of_other_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, segments = await copied(tmp_path, 1)
    first, *slow = segments[0:6:2]
    assert len(slow) == 2
    for segment in (first, *slow):
        lose(stage, segment)
    fetch, gate = stage.fetch_segment, asyncio.Event()

    async def held(segment: RemoteSegment, start: int, end: int) -> bytes:
        if segment.id != first.id:
            await gate.wait()
        return await fetch(segment, start, end)

    monkeypatch.setattr(stage, "fetch_segment", held)
    rebuilding = Rebuilding(stage)
    snapshots = [
        asyncio.ensure_future(rebuilding.manager.fetch_index(segment, IndexKind.PRODUCER_SNAPSHOT))
        for segment in slow
    ]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        assert await rebuilding.manager.fetch_index(first, IndexKind.OFFSET)
    gate.set()
    assert all(await asyncio.gather(*snapshots))
