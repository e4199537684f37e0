"""Putting back index objects that were lost: by the leader alone, and never behind a deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from remote.cold.claim import LATE_UPLOAD_S
from remote.cold.index_object import decode_index_object
from remote.cold.index_repair import IndexRepair
from remote.cold.object_tier import key_of
from remote.cold.segments import RemoteSegment, SegmentState
from remote.cold.storage_manager import IndexKind, SegmentHeader
from remote.cold.tenure import Tenure
from remote.keys import SegmentPart
from remote.store.object_store import StoreError
from tests.remote.cold.stage import BROKER, Stage
from tests.remote.cold.test_rebuild import Rebuilding, copied, index_key, lose, spoil


class Repairing:
    """Whoever leads a stage's partition, and puts back what is made anew."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.gate = asyncio.Event()
        self.gate.set()
        self.puts = 0
        self.error: Exception | None = None
        self.leads = True
        self.rebuilding = Rebuilding(stage)
        self.repair = IndexRepair(
            broker_id=BROKER,
            objects=self,
            metadata=stage.agreed,
            removal=stage.removal,
            tenure_of=lambda _: self.tenure,
            spawn=self.rebuilding.spawn,
        )
        self.rebuilding.rebuilder.on_rebuilt.append(self.repair.begin)

    @property
    def tenure(self) -> Tenure | None:
        return self.stage.tenure if self.leads else None

    async def check_index(self, segment: RemoteSegment) -> None:
        await self.stage.storage.check_index(segment)

    async def put_index(
        self, segment: RemoteSegment, header: SegmentHeader, indexes: Mapping[IndexKind, bytes]
    ) -> None:
        self.puts += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        await self.stage.storage.put_index(segment, header, indexes)

    async def read(self, segment: RemoteSegment) -> None:
        await self.rebuilding.manager.fetch_header(segment)

    async def putting(self) -> None:
        async with asyncio.timeout(5):
            while not self.puts:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
async def lost(tmp_path: Path) -> tuple[Repairing, RemoteSegment, bytes]:
    stage, segments = await copied(tmp_path, 3)
    stage.time += 2 * LATE_UPLOAD_S
    return Repairing(stage), segments[1], lose(stage, segments[1])


@pytest.mark.parametrize("is_missing", [True, False])
async def test_the_leader_puts_back_what_was_lost(tmp_path: Path, *, is_missing: bool) -> None:
    stage, segments = await copied(tmp_path, 3)
    segment = segments[1]
    original = stage.store.objects[index_key(segment)]
    if is_missing:
        lose(stage, segment)
    else:
        spoil(stage, index_key(segment), 40)
    repairing = Repairing(stage)
    await repairing.read(segment)
    await repairing.rebuilding.spawn.finish()
    assert repairing.repair.repaired == 1
    head, indexes = decode_index_object(stage.store.objects[index_key(segment)])
    _, before = decode_index_object(original)
    assert {**indexes, IndexKind.PRODUCER_SNAPSHOT: b""} == {**before, IndexKind.PRODUCER_SNAPSHOT: b""}
    assert head.header.segment_id == segment.id
    assert stage.fold.segment(segment.id) == segment, "nothing else is said of it than before"
    assert await stage.storage.fetch_header(segment) == head.header


async def test_who_does_not_lead_puts_nothing(
    lost: tuple[Repairing, RemoteSegment, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.index_repair.PAUSE_S", 0.001)
    repairing, segment, _ = lost
    repairing.leads = False
    await repairing.read(segment)
    await repairing.rebuilding.spawn.finish()
    assert not repairing.puts


async def test_a_leader_of_an_older_epoch_puts_nothing(
    lost: tuple[Repairing, RemoteSegment, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.index_repair.PAUSE_S", 0.001)
    repairing, segment, _ = lost
    repairing.stage.agreed.leader_epoch = 1
    await repairing.read(segment)
    await repairing.rebuilding.spawn.finish()
    assert not repairing.puts


async def test_a_store_that_fails_is_asked_again(
    lost: tuple[Repairing, RemoteSegment, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.index_repair.PAUSE_S", 0.001)
    repairing, segment, _ = lost
    repairing.error = StoreError("503")
    await repairing.read(segment)
    await repairing.rebuilding.spawn.finish()
    assert repairing.puts > 1
    assert not repairing.repair.repaired


async def test_of_a_copy_that_goes_nothing_is_put(
    lost: tuple[Repairing, RemoteSegment, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.cold.index_repair.PAUSE_S", 0.001)
    repairing, segment, _ = lost
    stage = repairing.stage
    repairing.leads = False
    await repairing.read(segment)
    await stage.removal.begin(stage.tenure, segment)
    repairing.leads = True
    await repairing.rebuilding.spawn.finish()
    assert not repairing.puts


@pytest.mark.parametrize("is_told_first", [True, False])
async def test_a_deletion_beside_a_put_leaves_no_object(
    lost: tuple[Repairing, RemoteSegment, bytes], *, is_told_first: bool
) -> None:
    """The put is under way while the objects are deleted, and arrives afterwards. Where the deletion was
    begun first, its word comes after that of the repair."""
    repairing, segment, _ = lost
    stage = repairing.stage
    repairing.gate.clear()
    if is_told_first:
        put_begins = asyncio.Event()

        async def before(event: object) -> None:
            if getattr(event, "state", None) is SegmentState.DELETE_STARTED:
                await put_begins.wait()

        stage.agreed.before = before
        removing = asyncio.create_task(stage.removal.remove(stage.tenure, segment))
        await asyncio.sleep(0)
        await repairing.read(segment)
        await repairing.putting()
        put_begins.set()
        wait_s = await removing
    else:
        await repairing.read(segment)
        await repairing.putting()
        wait_s = await stage.removal.remove(stage.tenure, segment)
    repairing.gate.set()
    await repairing.rebuilding.spawn.finish()
    assert index_key(segment) in stage.store.objects, "it came late"
    assert wait_s == LATE_UPLOAD_S
    stage.time += wait_s
    assert await stage.removal.remove(stage.tenure, segment) == 0
    assert key_of(segment, SegmentPart.INDEX) not in stage.store.objects
    assert stage.fold.segment(segment.id) is None
