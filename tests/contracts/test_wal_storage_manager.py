"""What every manager of combined objects must be seen to do: ours over each kind of store and a bad line, and
those that are found by name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from remote.cold.plugins import load_manager
from remote.keys import wal_key
from remote.store.location import FileLocation, StoreLocation, parse_store_url
from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import NoSuchObject, ObjectStore, StoreError
from remote.store.stores import limit_attempts, open_lane
from remote.wal.combined_object import ObjectKind, check_slice, decode_table
from remote.wal.object_wal import ObjectWal
from remote.wal.plugins import load_wal_manager
from remote.wal.storage_manager import CombinedMetadata, CopiedObject, SlotTaken, WalStorageManager
from storage.files import DiskFiles
from tests.compat.peers import unique
from tests.contracts.test_object_store import in_a_thread
from tests.remote.cold.segment_samples import Copy
from tests.remote.store.bare import wall_ms
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.remote.wal.wal_samples import SOME_PLACE, some_object
from tools.versus.minio import MinioServer

T = TypeVar("T")

Make = Callable[[], WalStorageManager]
"""Makes one more manager of the same objects, as another broker or a later life of this one has."""
PLUGIN = "remote.wal.managers:{}WalStorageManager"
KINDS = [
    "memory",
    "file",
    "synced file",
    "faulty",
    pytest.param("minio", marks=pytest.mark.minio),
    "plugin local",
    "plugin url",
    pytest.param("plugin minio", marks=pytest.mark.minio),
]


def lane(location: StoreLocation, environ: dict[str, str], *, syncs: bool = False) -> ObjectStore:
    return open_lane(
        location,
        files=DiskFiles(),
        offload=in_a_thread,
        now_ms=wall_ms,
        rng=random.Random(1),
        environ=environ,
        syncs=syncs,
    )


@pytest.fixture(params=KINDS)
async def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Make]:
    made: list[WalStorageManager] = []
    stores: list[ObjectStore] = []
    bucket, rng = MemoryStore(), random.Random(1)
    bad_line = FaultProfile(latency_max_s=0.002, error_before_chance=0.2, error_after_chance=0.2)
    directory, url, environ = str(tmp_path / "objects"), "", {}
    if request.param.endswith("minio"):
        server: MinioServer = request.getfixturevalue("minio_server")
        url, environ = server.url(request.getfixturevalue("bucket"), unique("wal")), server.environ

    def open_store() -> ObjectStore:
        match request.param:
            case "memory":
                return limit_attempts(bucket, StoreStats())
            case "faulty":
                return limit_attempts(FaultyStore(bucket, bad_line, rng), StoreStats())
            case "minio":
                return lane(parse_store_url(url, environ), environ)
            case kind:
                return lane(FileLocation(directory), {}, syncs=kind == "synced file")

    def make_one() -> WalStorageManager:
        match request.param:
            case "plugin local":
                made.append(load_wal_manager(PLUGIN.format("Local"), {"dir": directory}))
            case "plugin url":
                config = {"url": f"file://{directory}", "sync": "true"}
                made.append(load_wal_manager(PLUGIN.format("Remote"), config))
            case "plugin minio":
                for name, text in environ.items():
                    monkeypatch.setenv(name, text)
                made.append(load_wal_manager(PLUGIN.format("Remote"), {"url": url}))
            case _:
                stores.append(open_store())
                made.append(ObjectWal(stores[-1], rng=rng))
        return made[-1]

    yield make_one
    for each in (*made, *stores):
        await each.close()


@pytest.fixture
def manager(make: Make) -> WalStorageManager:
    return make()


async def insisting(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer: a manager promises no more than an error over a bad line."""
    while True:
        try:
            return await ask()
        except StoreError as error:
            assert not error.permanent


async def copied(manager: WalStorageManager, metadata: CombinedMetadata, data: bytes) -> CopiedObject:
    return await insisting(lambda: manager.copy(metadata, data))


async def fetched(manager: WalStorageManager, start: int, end: int) -> bytes:
    return bytes(await insisting(lambda: manager.fetch(SOME_PLACE, start, end)))


@pytest.mark.requirement("1176-11", "1176-15")
async def test_what_was_copied_is_what_is_read(manager: WalStorageManager) -> None:
    metadata, data = some_object()
    copy = await copied(manager, metadata, data)
    assert (copy.place, copy.size) == (SOME_PLACE, len(data))
    assert copy.custom is None or isinstance(copy.custom, bytes)
    assert await fetched(manager, 0, len(data)) == data


@pytest.mark.requirement("1176-12", "1176-13")
async def test_a_range_is_the_bytes_of_its_slice_and_is_cut_at_the_end(manager: WalStorageManager) -> None:
    metadata, data = some_object()
    await copied(manager, metadata, data)
    for row in metadata.rows:
        check_slice(row, await fetched(manager, row.position, row.position + row.size))
    size = len(data)
    for start, end in ((0, 1), (5, size), (size - 3, 2 * size), (size, size + 1), (7, 7)):
        assert await fetched(manager, start, end) == data[start:end]


@pytest.mark.requirement("1176-12")
async def test_what_is_not_there_has_its_own_error(manager: WalStorageManager) -> None:
    with pytest.raises(NoSuchObject):
        await fetched(manager, 0, 10)


@pytest.mark.requirement("1176-11")
async def test_to_copy_the_same_object_again_is_no_failure(make: Make) -> None:
    metadata, data = some_object()
    first, later = make(), make()
    for manager in (first, first, later):
        assert (await copied(manager, metadata, data)).size == len(data)
    await asyncio.gather(*(copied(manager, metadata, data) for manager in (first, later, first)))
    assert await fetched(later, 0, len(data)) == data


@pytest.mark.requirement("1176-11")
@pytest.mark.parametrize("kind", [ObjectKind.SLICES, ObjectKind.SEAL])
async def test_other_bytes_never_overwrite(make: Make, kind: ObjectKind) -> None:
    metadata, data = some_object(kind=kind)
    await copied(make(), metadata, data)
    other, other_data = some_object(put_id=b"o" * 16, slices=(b"other",))
    with pytest.raises(SlotTaken) as caught:
        await copied(make(), other, other_data)
    assert caught.value.head == metadata.head
    assert await fetched(make(), 0, len(data)) == data


@pytest.mark.requirement("1176-11")
async def test_what_cannot_be_read_at_the_place_is_told_and_stays(manager: WalStorageManager) -> None:
    metadata, data = some_object()
    await insisting(lambda: manager.store.put(wal_key(*metadata.place), data[:20]))
    with pytest.raises(SlotTaken) as caught:
        await copied(manager, metadata, data)
    assert caught.value.head is None
    assert await fetched(manager, 0, 100) == data[:20]


async def test_of_rivals_at_once_one_wins_and_all_know(make: Make) -> None:
    rivals = [some_object(put_id=b"%016d" % n, slices=(b"%d" % n,)) for n in range(5)]
    told = await asyncio.gather(
        *(copied(make(), metadata, data) for metadata, data in rivals), return_exceptions=True
    )
    winners = [data for (_, data), each in zip(rivals, told, strict=True) if isinstance(each, CopiedObject)]
    assert [await fetched(make(), 0, 1000)] == winners
    taken = [each for each in told if isinstance(each, SlotTaken)]
    assert len(taken) == len(rivals) - 1
    assert {each.head for each in taken} == {decode_table(winners[0]).head}


async def test_a_large_object_is_whole(manager: WalStorageManager) -> None:
    metadata, data = some_object(slices=(random.Random(1).randbytes(5 << 20), b"behind"))
    await copied(manager, metadata, data)
    assert await fetched(manager, 0, len(data)) == data
    row = metadata.rows[1]
    assert await fetched(manager, row.position, row.position + row.size) == b"behind"


async def test_objects_lie_in_the_store_under_their_keys(manager: WalStorageManager) -> None:
    """So whoever seals, lists or collects streams needs no more than the store."""
    metadata, data = some_object()
    await copied(manager, metadata, data)
    key = wal_key(*SOME_PLACE)
    assert await insisting(lambda: manager.store.get_range(key, 0, 2 * len(data))) == data
    await insisting(lambda: manager.store.delete(key))
    with pytest.raises(NoSuchObject):
        await fetched(manager, 0, 10)


@pytest.mark.parametrize("turns", [*range(8), 20, 50])
async def test_a_copy_that_is_cancelled_may_be_asked_again(make: Make, turns: int) -> None:
    """Cancelled after so many turns of the loop, it may have taken effect, or take effect later."""
    metadata, data = some_object()
    manager = make()
    copying = asyncio.create_task(manager.copy(metadata, data))
    for _ in range(turns):
        await asyncio.sleep(0)
    copying.cancel()
    await asyncio.wait({copying})
    await copied(manager, metadata, data)
    assert await fetched(make(), 0, len(data)) == data


@pytest.mark.requirement("1176-14")
async def test_one_class_may_serve_both_tiers(tmp_path: Path) -> None:
    name, config = "tests.contracts.both_tiers:BothTiers", {"dir": str(tmp_path)}
    wal, cold = load_wal_manager(name, config), load_manager(name, config)
    metadata, data = some_object()
    await wal.copy(metadata, data)
    assert await wal.fetch(SOME_PLACE, 0, len(data)) == data
    what = Copy()

    async def at_once(size: int) -> None:
        assert size >= 0

    await cold.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=at_once)
    assert await cold.fetch_segment(what.segment, 0, len(what.bytes)) == what.bytes
    await wal.close()
    await cold.close()
