"""The cache of index files: its bound, damage, restarts, disks that fail."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from remote.cold.index_cache import IndexCache
from remote.store.object_store import StoreError
from storage.files import DiskFiles
from tests.remote.cold.read_driver import Tasks, inline
from tests.storage.support import FaultyFiles

T = TypeVar("T")
ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))


class Remote:
    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self) -> bytes:
        self.asked += 1
        return b"an index of 30 bytes or there."


class Cached:
    def __init__(self, path: Path, *, bytes_max: int = 1000, files: DiskFiles | None = None) -> None:
        self.path = path / "remote-log-index-cache"
        self.spawn = Tasks()
        self.remote = Remote()
        self.limit = bytes_max
        self.cache = IndexCache(
            files=files or DiskFiles(),
            directory=str(self.path),
            bytes_max=lambda: self.limit,
            offload=inline,
            spawn=self.spawn,
        )

    async def get(self, segment_id: UUID = ONE, kind: str = "index") -> bytes:
        data = await self.cache.get(segment_id, kind, self.remote)
        await self.spawn.finish()
        return data

    def names(self) -> list[str]:
        return sorted([] if not self.path.exists() else [each.name for each in self.path.iterdir()])


async def opened(path: Path, **options: int) -> Cached:
    cached = Cached(path, **options)  # type: ignore[arg-type]
    await cached.cache.open()
    return cached


async def test_an_index_is_fetched_once(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    first = await cached.get()
    assert await cached.get() == first
    assert cached.remote.asked == 1
    assert cached.names() == [f"{ONE}.index"]


async def test_all_who_want_it_at_once_share_one_fetch(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    await asyncio.gather(*(cached.cache.get(ONE, "index", cached.remote) for _ in range(50)))
    assert cached.remote.asked == 1


async def test_it_survives_a_restart(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    first = await cached.get()
    again = await opened(tmp_path)
    assert again.cache.size_bytes == cached.cache.size_bytes
    assert await again.get() == first
    assert again.remote.asked == 0


@pytest.mark.parametrize("kind", ["flip", "cut", "empty", "foreign", "gone"])
async def test_a_damaged_file_is_fetched_again(tmp_path: Path, kind: str) -> None:
    cached = await opened(tmp_path)
    first = await cached.get()
    path = cached.path / f"{ONE}.index"
    data = path.read_bytes()
    if kind == "flip":
        path.write_bytes(data[:3] + bytes([data[3] ^ 4]) + data[4:])
    elif kind == "cut":
        path.write_bytes(data[:-1])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "foreign":
        await cached.get(TWO)
        path.write_bytes((cached.path / f"{TWO}.index").read_bytes())
    else:
        path.unlink()
    again = await opened(tmp_path) if kind != "gone" else cached
    again.remote.asked = 0
    assert await again.get() == first
    assert again.remote.asked == 1
    assert again.cache.damaged == 1
    again.remote.asked = 0
    assert await again.get() == first
    assert again.remote.asked == 0, "what was fetched replaced it"


async def test_the_least_recently_used_goes_when_there_is_too_much(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    await cached.get(ONE)
    size = cached.cache.size_bytes
    cached.limit = 2 * size
    await cached.get(TWO)
    await cached.get(ONE)
    await cached.get(THREE)
    assert cached.names() == [f"{ONE}.index", f"{THREE}.index"]
    assert cached.cache.size_bytes == 2 * size


async def test_a_smaller_limit_counts_at_the_next_start(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    for segment_id in (ONE, TWO, THREE):
        await cached.get(segment_id)
    os.utime(cached.path / f"{TWO}.index", (0, 0))
    size = cached.cache.size_bytes // 3
    again = await opened(tmp_path, bytes_max=2 * size)
    assert f"{TWO}.index" not in again.names()
    assert len(again.names()) == 2


async def test_what_would_not_fit_is_not_kept(tmp_path: Path) -> None:
    cached = await opened(tmp_path, bytes_max=10)
    await cached.get()
    assert cached.names() == []


async def test_files_of_a_segment_that_is_gone_go(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    for kind in ("index", "timeindex"):
        await cached.get(ONE, kind)
    await cached.get(TWO)
    await cached.cache.forget(ONE)
    assert cached.names() == [f"{TWO}.index"]


async def test_a_segment_that_goes_while_its_index_is_written_leaves_nothing(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    await cached.cache.get(ONE, "index", cached.remote)
    await cached.cache.forget(ONE)
    await cached.spawn.finish()
    assert cached.names() == []
    assert cached.cache.size_bytes == 0


async def test_what_is_no_file_of_ours_goes_at_the_start(tmp_path: Path) -> None:
    cached = await opened(tmp_path)
    await cached.get()
    for name in ("0000_abc.index", f"{TWO}.index.tmp", "x"):
        (cached.path / name).write_bytes(b"?")
    again = await opened(tmp_path)
    assert again.names() == [f"{ONE}.index"]


async def test_before_it_is_open_indexes_are_fetched(tmp_path: Path) -> None:
    cached = Cached(tmp_path)
    await cached.get()
    assert cached.remote.asked == 1
    assert not cached.path.exists()


async def test_a_failure_of_the_store_is_the_callers(tmp_path: Path) -> None:
    cached = await opened(tmp_path)

    async def fail() -> bytes:
        raise StoreError("down")

    with pytest.raises(StoreError):
        await cached.cache.get(ONE, "index", fail)
    assert await cached.get()


@pytest.mark.parametrize("operation", ["create", "writev", "rename"])
async def test_a_disk_that_fails_costs_the_cache_alone(
    tmp_path: Path, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(error=OSError(errno.ENOSPC, "full"), only=lambda what, _: what == operation)
    cached = Cached(tmp_path, files=files)
    await cached.cache.open()
    files.operations, files.fail_at = 0, 1
    with caplog.at_level(logging.WARNING):
        assert await cached.get()
        assert await cached.get()
    assert cached.remote.asked == 2
    assert len(caplog.records) == 1


class Unreadable(DiskFiles):
    broken = False

    def read(self, path: str) -> bytes:
        if self.broken:
            raise OSError(errno.EIO, "damaged")
        return super().read(path)

    def listdir(self, path: str) -> list[str]:
        if self.broken:
            raise OSError(errno.EIO, "damaged")
        return super().listdir(path)


async def test_a_disk_that_cannot_be_read_costs_the_cache_alone(tmp_path: Path) -> None:
    files = Unreadable()
    cached = Cached(tmp_path, files=files)
    await cached.cache.open()
    await cached.get()
    files.broken = True
    assert await cached.get()
    assert cached.remote.asked == 2
    again = Cached(tmp_path, files=files)
    await again.cache.open()
    assert await again.get()


def test_no_file_is_touched_on_the_loop(tmp_path: Path) -> None:
    """Every call to the disk is made from within `offload`."""
    inside = False

    class Watched(DiskFiles):
        def __getattribute__(self, name: str) -> object:
            if name in ("read", "open", "listdir", "unlink", "rename", "makedirs", "size", "mtime_ms"):
                assert inside, name
            return super().__getattribute__(name)

    async def offload(call: Callable[[], T]) -> T:
        nonlocal inside
        inside = True
        try:
            return call()
        finally:
            inside = False

    async def main() -> None:
        spawn = Tasks()
        cache = IndexCache(
            files=Watched(),
            directory=str(tmp_path / "c"),
            bytes_max=lambda: 100,
            offload=offload,
            spawn=spawn,
        )
        await cache.open()
        for segment_id in (ONE, TWO, THREE, ONE):
            await cache.get(segment_id, "index", Remote())
            await spawn.finish()
        await cache.forget(ONE)

    asyncio.run(main())
