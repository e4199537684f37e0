"""The chunk cache: its bounds, what goes first, what never goes, and reading ahead."""

from __future__ import annotations

import asyncio
import gc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.chunks import ChunkCache, ChunkKey, Missing, PinnedChunks
from remote.store.object_store import StoreError
from tests.remote.cold.read_driver import Tasks

SIZE = 10


def key(number: int, segment: int = 1) -> ChunkKey:
    return ChunkKey(UUID(int=segment), number)


class Store:
    """Counts what it is asked, and answers at once unless it is held."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.running = self.most = 0
        self.held: asyncio.Event = asyncio.Event()
        self.held.set()
        self.fails = False

    def of(self, number: int) -> Store.Load:
        return Store.Load(self, number)

    class Load:
        def __init__(self, store: Store, number: int) -> None:
            self.store, self.number = store, number

        async def __call__(self) -> bytes:
            store = self.store
            store.asked.append(self.number)
            store.running += 1
            store.most = max(store.most, store.running)
            try:
                await store.held.wait()
            finally:
                store.running -= 1
            if store.fails:
                raise StoreError("down")
            return bytes([self.number]) * SIZE


def cache_of(spawn: Tasks, *, chunks: int = 8, parallel: int = 4) -> ChunkCache:
    return ChunkCache(spawn, parallel=lambda: parallel, bytes_max=chunks * SIZE, chunk_bytes=SIZE)


async def test_what_was_read_is_read_once() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    for _ in range(3):
        assert (await cache.get(key(5), store.of(5))).data == bytes([5]) * SIZE
    assert store.asked == [5]
    assert (cache.hits, cache.misses) == (2, 1)


async def test_a_hundred_readers_at_one_place_are_one_load() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    store.held.clear()
    readers = [asyncio.ensure_future(cache.get(key(5), store.of(5))) for _ in range(100)]
    await asyncio.sleep(0.001)
    store.held.set()
    await asyncio.gather(*readers)
    assert store.asked == [5]


async def test_the_least_recently_used_goes_first() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=3, parallel=1)
    for number in (1, 2, 3, 1, 4):
        await cache.get(key(number), store.of(number))
    assert [number for number in range(5) if key(number) in cache] == [1, 3, 4]
    assert cache.size_bytes <= 3 * SIZE


async def test_what_is_being_served_never_goes() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=4, parallel=1)
    served = PinnedChunks(cache, "1")
    for number in (1, 2):
        served.add(number, await cache.get(key(number), store.of(number)))
    for number in range(3, 30):
        await cache.get(key(number), store.of(number))
    assert served.pread(2 * SIZE, SIZE) == bytes([1]) * SIZE + bytes([2]) * SIZE
    assert key(1) in cache
    assert cache.size_bytes <= 4 * SIZE
    del served
    gc.collect()
    assert cache.pinned_bytes == 0
    for number in range(30, 40):
        await cache.get(key(number), store.of(number))
    assert key(1) not in cache


async def test_slow_clients_never_keep_the_others_from_reading() -> None:
    """Whatever they hold beyond half of the cache comes on top."""
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=4, parallel=2)
    held = []
    for number in range(12):
        served = PinnedChunks(cache, "1")
        served.add(number, await cache.get(key(number), store.of(number)))
        held.append(served)
    async with asyncio.timeout(5):
        await cache.get(key(50), store.of(50))
    assert cache.size_bytes <= 4 * SIZE + 12 * SIZE - 2 * SIZE


async def test_no_more_are_loaded_at_a_time_than_may_be() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=100, parallel=3)
    store.held.clear()
    readers = [asyncio.ensure_future(cache.get(key(n), store.of(n))) for n in range(20)]
    await asyncio.sleep(0.001)
    assert (store.running, cache.waiting) == (3, 17)
    store.held.set()
    await asyncio.gather(*readers)
    assert store.most == 3
    assert store.asked == list(range(20)), "in the order in which they were asked for"


async def test_what_is_being_loaded_counts() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=2, parallel=10)
    store.held.clear()
    readers = [asyncio.ensure_future(cache.get(key(n), store.of(n))) for n in range(5)]
    await asyncio.sleep(0.001)
    assert store.running == 2
    store.held.set()
    await asyncio.gather(*readers)


async def test_a_read_that_nobody_waits_for_any_more_stays() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    store.held.clear()
    reader = asyncio.ensure_future(cache.get(key(5), store.of(5)))
    await asyncio.sleep(0.001)
    reader.cancel()
    await asyncio.wait((reader,))
    store.held.set()
    await spawn.finish()
    assert key(5) in cache


async def test_a_failed_load_frees_its_place() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, parallel=1)
    store.fails = True
    with pytest.raises(StoreError):
        await cache.get(key(5), store.of(5))
    store.fails = False
    assert (await cache.get(key(5), store.of(5))).data
    assert cache.size_bytes == SIZE


async def test_reading_ahead_takes_only_what_is_idle() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=8, parallel=2)
    store.held.clear()
    assert cache.get_ahead(key(1), store.of(1))
    assert cache.get_ahead(key(1), store.of(1)), "it is on its way"
    reader = asyncio.ensure_future(cache.get(key(2), store.of(2)))
    waiting = asyncio.ensure_future(cache.get(key(3), store.of(3)))
    await asyncio.sleep(0.001)
    assert not cache.get_ahead(key(4), store.of(4)), "somebody waits"
    store.held.set()
    await asyncio.gather(reader, waiting)
    assert sorted(store.asked) == [1, 2, 3]


async def test_what_was_read_ahead_is_no_more_than_half() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=8, parallel=2)
    for number in range(8):
        cache.get_ahead(key(number), store.of(number))
        await spawn.finish()
    assert sorted(store.asked) == [0, 1, 2, 3]
    await cache.get(key(0), store.of(0))
    assert cache.get_ahead(key(9), store.of(9)), "one of them was read"


async def test_a_segment_that_is_gone_is_dropped() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    await cache.get(key(1, 1), store.of(1))
    await cache.get(key(1, 2), store.of(1))
    cache.drop(UUID(int=1))
    assert key(1, 1) not in cache
    assert key(1, 2) in cache
    assert cache.size_bytes == SIZE


@given(st.integers(0, 60), st.integers(0, 60), st.sets(st.integers(0, 6)))
def test_a_pinned_file_reads_as_the_whole_or_says_what_is_missing(
    offset: int, size: int, there: set[int]
) -> None:
    whole = bytes(range(65))

    async def main() -> None:
        cache = cache_of(Tasks(), chunks=100)
        file = PinnedChunks(cache, "x")

        async def load(number: int) -> bytes:
            return whole[number * SIZE : (number + 1) * SIZE]

        for number in there:
            file.add(number, await cache.get(key(number), lambda number=number: load(number)))  # type: ignore[misc]
        wanted = min(size, len(whole) - offset)
        needed = set(range(offset // SIZE, -(-(offset + wanted) // SIZE)))
        try:
            data = file.pread(wanted, offset)
        except Missing as missing:
            assert needed - there <= set(range(missing.first, missing.stop)) <= needed
        else:
            assert data == whole[offset : offset + wanted]
            assert needed <= there

    asyncio.run(main())
