"""What every storage manager must be seen to do: ours over each kind of store, and one of somebody else's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote.bad_object import BadObject
from remote.cold.guard import GuardedManager
from remote.cold.object_tier import ObjectTier
from remote.cold.plugins import load_manager
from remote.cold.storage_manager import (
    IndexKind,
    StorageManager,
    header_of,
)
from remote.store.local_store import LocalStore
from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import NoSuchObject, ObjectStore
from remote.store.stores import harden
from remote.store.upload import SourceChanged
from storage.files import DiskFiles
from tests.compat.peers import unique
from tests.contracts.test_object_store import in_a_thread
from tests.remote.cold.segment_samples import Copy
from tests.remote.store.bare import bare_s3
from tools.versus.minio import MinioServer

LARGE = (20 << 20) + 12_345


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.minio), "plugin"])
async def manager(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StorageManager]:
    if request.param == "plugin":
        made = load_manager("tests.contracts.folder_manager:FolderManager", {"dir": str(tmp_path)})
        guarded = GuardedManager(made)
        yield guarded
        await guarded.close()
        return
    store: ObjectStore
    if request.param == "s3":
        server: MinioServer = request.getfixturevalue("minio_server")
        bucket = request.getfixturevalue("bucket")
        bare = bare_s3(server, server.url(bucket, unique("tier")))
        store = harden(bare, stats=StoreStats(), rng=random.Random(1))
    elif request.param == "local":
        store = LocalStore(str(tmp_path), files=DiskFiles(), offload=in_a_thread)
    else:
        store = MemoryStore()
    made = ObjectTier(store)
    yield made
    await made.close()
    await store.close()


async def at_once(size: int) -> None:
    assert size >= 0


async def copy(manager: StorageManager, what: Copy) -> bytes | None:
    return await manager.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=at_once)


@pytest.mark.requirement("X-7")
async def test_what_was_copied_is_what_is_read(manager: StorageManager) -> None:
    what = Copy()
    custom = await copy(manager, what)
    assert custom is None or isinstance(custom, bytes)
    assert await manager.fetch_segment(what.segment, 0, len(what.bytes)) == what.bytes
    for kind in IndexKind:
        assert await manager.fetch_index(what.segment, kind) == what.indexes[kind]
    header = header_of(what.segment, what.data, cluster_id="c", leader_epoch=3)
    assert await manager.fetch_header(what.segment) == header


async def test_ranges_are_cut_at_the_end_of_the_segment(manager: StorageManager) -> None:
    what = Copy(1000)
    await copy(manager, what)
    for start, end in ((0, 1), (10, 500), (990, 2000), (999, 1000), (1000, 1001), (5000, 6000), (7, 7)):
        assert await manager.fetch_segment(what.segment, start, end) == what.bytes[start:end]


async def test_a_large_segment_is_whole(manager: StorageManager) -> None:
    what = Copy(LARGE)
    await copy(manager, what)
    parts = [
        await manager.fetch_segment(what.segment, start, start + (5 << 20))
        for start in range(0, LARGE, 5 << 20)
    ]
    assert b"".join(parts) == what.bytes


async def test_an_empty_segment_is_a_segment(manager: StorageManager) -> None:
    what = Copy(0)
    await copy(manager, what)
    assert await manager.fetch_segment(what.segment, 0, 100) == b""
    assert (await manager.fetch_header(what.segment)).size_bytes == 0


async def test_what_is_not_there_says_so(manager: StorageManager) -> None:
    segment = Copy().segment
    with pytest.raises(NoSuchObject):
        await manager.fetch_segment(segment, 0, 10)
    with pytest.raises(NoSuchObject):
        await manager.fetch_header(segment)
    for kind in IndexKind:
        with pytest.raises(NoSuchObject):
            await manager.fetch_index(segment, kind)
    await manager.delete_segment(segment)


async def test_deleted_is_gone_and_may_be_deleted_again(manager: StorageManager) -> None:
    what, other = Copy(), Copy(seed=2)
    await copy(manager, what)
    await copy(manager, other)
    await manager.fetch_header(what.segment)
    await manager.delete_segment(what.segment)
    await manager.delete_segment(what.segment)
    with pytest.raises(NoSuchObject):
        await manager.fetch_segment(what.segment, 0, 10)
    with pytest.raises(NoSuchObject):
        await manager.fetch_header(what.segment)
    assert await manager.fetch_segment(other.segment, 0, 5000) == other.bytes


async def test_two_copies_of_the_same_offsets_have_nothing_in_common(manager: StorageManager) -> None:
    first = Copy()
    second = first.again(seed=2)
    await asyncio.gather(copy(manager, first), copy(manager, second))
    await manager.delete_segment(first.segment)
    assert await manager.fetch_segment(second.segment, 0, 5000) == second.bytes
    assert await manager.fetch_index(second.segment, IndexKind.OFFSET) == second.indexes[IndexKind.OFFSET]


async def test_all_bytes_of_the_segment_are_paced(manager: StorageManager) -> None:
    what = Copy(LARGE)
    paced: list[int] = []

    async def pace(size: int) -> None:
        paced.append(size)

    await manager.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=pace)
    assert sum(paced) >= LARGE


async def test_a_copy_that_is_cancelled_at_any_piece_can_be_deleted(manager: StorageManager) -> None:
    """Nothing of it passes for the segment, and after the deletion nothing is there."""
    for pieces in range(100):
        what = Copy(LARGE, seed=pieces)
        if not await is_cancelled_after(pieces, manager, what):
            break
        with pytest.raises((NoSuchObject, BadObject)):
            await manager.fetch_segment(what.segment, 0, LARGE)
        await manager.delete_segment(what.segment)
        with pytest.raises(NoSuchObject):
            await manager.fetch_header(what.segment)
    assert 2 < pieces < 99


async def is_cancelled_after(pieces: int, manager: StorageManager, what: Copy) -> bool:
    """Copy, but be cancelled where the piece after so many would be sent; False if there is none."""

    async def pace(size: int) -> None:
        nonlocal pieces
        pieces -= 1
        if pieces < 0:
            task.cancel()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(
        manager.copy_segment(what.segment, what.data, cluster_id="c", leader_epoch=3, pace=pace)
    )
    await asyncio.wait({task})
    return task.cancelled()


async def test_a_segment_that_is_cut_meanwhile_is_not_copied(manager: StorageManager) -> None:
    what = Copy(LARGE)

    async def read(start: int, end: int) -> bytes:
        return what.bytes[start : min(end, LARGE - 1)]

    cut = replace(what.data, read=read)
    with pytest.raises(SourceChanged):
        await manager.copy_segment(what.segment, cut, cluster_id="c", leader_epoch=3, pace=at_once)
    with pytest.raises((NoSuchObject, BadObject)):
        await manager.fetch_segment(what.segment, 0, LARGE)


async def test_a_local_file_holds_the_segment_and_nothing_else(manager: StorageManager) -> None:
    what = Copy()
    await copy(manager, what)
    path = manager.local_path(what.segment)
    assert path is None or DiskFiles().read(path) == what.bytes
