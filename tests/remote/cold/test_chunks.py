"""The chunk cache: its bounds, what goes first, what never goes, and reading ahead."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.cold.chunks import ChunkCache, ChunkKey, Missing, PinnedChunks
from remote.store.memory_store import MemoryStore
from remote.store.object_store import StoreError
from tests.remote.cold.read_driver import Tasks, Tier, batch

SIZE = 10


def key(number: int, segment: int = 1) -> ChunkKey:
    return ChunkKey(UUID(int=segment), number)


class Store:
    """Counts what it is asked, and answers at once unless it is held."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.runs: list[tuple[int, int]] = []
        self.damaged: set[int] = set()
        self.running = self.most = 0
        self.held: asyncio.Event = asyncio.Event()
        self.held.set()
        self.fails = False

    async def load(self, first: int, stop: int) -> list[Buffer | Exception]:
        self.asked.extend(range(first, stop))
        self.runs.append((first, stop))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.held.wait()
        finally:
            self.running -= 1
        if self.fails:
            raise StoreError("down")
        return [
            BadObject(str(number)) if number in self.damaged else bytes([number]) * SIZE
            for number in range(first, stop)
        ]


def cache_of(spawn: Tasks, *, chunks: int = 8, parallel: int = 4) -> ChunkCache:
    return ChunkCache(spawn, parallel=lambda: parallel, bytes_max=chunks * SIZE, chunk_bytes=SIZE)


def ahead(cache: ChunkCache, store: Store, first: int, count: int = 1) -> int:
    """Return how many are there or on their way then."""
    end = cache.get_ahead(UUID(int=1), first, first + count, store.load)
    return max(end, cache.first_missing(UUID(int=1), first, first + count)) - first


async def test_what_was_read_is_read_once() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    for _ in range(3):
        assert (await cache.get(key(5), store.load)).data == bytes([5]) * SIZE
    assert store.asked == [5]
    assert (cache.hits, cache.misses) == (2, 1)


async def test_a_hundred_readers_at_one_place_are_one_load() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    store.held.clear()
    readers = [asyncio.ensure_future(cache.get(key(5), store.load)) for _ in range(100)]
    await asyncio.sleep(0.001)
    store.held.set()
    await asyncio.gather(*readers)
    assert store.asked == [5]


async def test_the_least_recently_used_goes_first() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=3, parallel=1)
    for number in (1, 2, 3, 1, 4):
        await cache.get(key(number), store.load)
    assert [number for number in range(5) if key(number) in cache] == [1, 3, 4]
    assert cache.size_bytes <= 3 * SIZE


async def test_what_is_being_served_never_goes() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=4, parallel=1)
    served = PinnedChunks(cache, "1")
    for number in (1, 2):
        served.add(number, await cache.get(key(number), store.load))
    for number in range(3, 30):
        await cache.get(key(number), store.load)
    assert served.pread(2 * SIZE, SIZE) == bytes([1]) * SIZE + bytes([2]) * SIZE
    assert key(1) in cache
    assert cache.size_bytes <= 4 * SIZE
    del served
    gc.collect()
    await asyncio.sleep(0)
    assert cache.pinned_bytes == 0
    for number in range(30, 40):
        await cache.get(key(number), store.load)
    assert key(1) not in cache


async def test_slow_clients_never_keep_the_others_from_reading() -> None:
    """Whatever they hold beyond half of the cache comes on top."""
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=4, parallel=2)
    held = []
    for number in range(12):
        served = PinnedChunks(cache, "1")
        served.add(number, await cache.get(key(number), store.load))
        held.append(served)
    async with asyncio.timeout(5):
        await cache.get(key(50), store.load)
    assert cache.size_bytes <= 4 * SIZE + 12 * SIZE - 2 * SIZE


async def test_no_more_are_loaded_at_a_time_than_may_be() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=100, parallel=3)
    store.held.clear()
    readers = [asyncio.ensure_future(cache.get(key(n), store.load)) for n in range(20)]
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
    readers = [asyncio.ensure_future(cache.get(key(n), store.load)) for n in range(5)]
    await asyncio.sleep(0.001)
    assert store.running == 2
    store.held.set()
    await asyncio.gather(*readers)


async def test_a_read_that_nobody_waits_for_any_more_stays() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    store.held.clear()
    reader = asyncio.ensure_future(cache.get(key(5), store.load))
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
        await cache.get(key(5), store.load)
    store.fails = False
    assert (await cache.get(key(5), store.load)).data
    assert cache.size_bytes == SIZE


async def test_reading_ahead_takes_only_what_is_idle() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=8, parallel=2)
    store.held.clear()
    assert ahead(cache, store, 1)
    assert ahead(cache, store, 1), "it is on its way"
    reader = asyncio.ensure_future(cache.get(key(2), store.load))
    waiting = asyncio.ensure_future(cache.get(key(3), store.load))
    await asyncio.sleep(0.001)
    assert not ahead(cache, store, 4), "somebody waits"
    store.held.set()
    await asyncio.gather(reader, waiting)
    assert sorted(store.asked) == [1, 2, 3]


async def test_what_was_read_ahead_is_no_more_than_half() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=8, parallel=2)
    for number in range(8):
        ahead(cache, store, number)
        await spawn.finish()
    assert sorted(store.asked) == [0, 1, 2, 3]
    await cache.get(key(0), store.load)
    assert ahead(cache, store, 9), "one of them was read"


async def test_a_segment_that_is_gone_is_dropped() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    await cache.get(key(1, 1), store.load)
    await cache.get(key(1, 2), store.load)
    cache.drop(UUID(int=1))
    assert key(1, 1) not in cache
    assert key(1, 2) in cache
    assert cache.size_bytes == SIZE


# --- several in one go ---


async def test_what_lies_in_a_row_is_loaded_in_one_go() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=100)
    await cache.get(key(5), store.load)
    store.runs.clear()
    cache.begin(UUID(int=1), 3, 16, store.load)
    assert [(await cache.get(key(number), store.load)).data[0] for number in range(3, 16)] == [*range(3, 16)]
    assert store.runs == [(3, 5), (6, 14), (14, 16)], "around what is there, and eight at most"


async def test_one_damaged_chunk_of_a_run_is_no_reason_to_do_without_the_others() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=100)
    store.damaged = {2}
    cache.begin(UUID(int=1), 0, 4, store.load)
    for number in (0, 1, 3):
        assert (await cache.get(key(number), store.load)).data == bytes([number]) * SIZE
    with pytest.raises(BadObject):
        await cache.get(key(2), store.load)
    assert cache.size_bytes == 3 * SIZE, "what is not kept does not count"


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["get", "begin", "ahead"]), st.integers(0, 30), st.integers(1, 12))),
)
def test_every_chunk_is_loaded_once_within_the_bounds(
    chunks: int, parallel: int, steps: list[tuple[str, int, int]]
) -> None:
    """With room for all, nothing is fetched twice however runs overlap; without, the bound holds."""

    async def main() -> None:
        spawn, store = Tasks(), Store()
        cache = cache_of(spawn, chunks=chunks, parallel=parallel)
        store.held.clear()
        readers = []
        for kind, first, count in steps:
            if kind == "get":
                readers.append(asyncio.ensure_future(cache.get(key(first), store.load)))
            elif kind == "begin":
                cache.begin(UUID(int=1), first, first + count, store.load)
            else:
                cache.get_ahead(UUID(int=1), first, first + count, store.load)
            await asyncio.sleep(0)
            assert cache.size_bytes <= chunks * SIZE
        store.held.set()
        for reader in readers:
            await reader
        await spawn.finish()
        assert store.most <= parallel
        assert cache.size_bytes <= chunks * SIZE
        assert (cache.loading, cache.waiting) == (0, 0)
        if chunks >= 40 or len(set(store.asked)) <= chunks // 2:
            assert len(store.asked) == len(set(store.asked))

    asyncio.run(main())


async def test_a_store_that_is_slow_is_asked_for_less_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.cold.chunks.RUN_S_MAX", 0.0)
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=1000)
    for _ in range(4):
        first = max(store.asked, default=-1) + 1
        cache.begin(UUID(int=1), first, first + cache.run_chunks, store.load)
        await spawn.finish()
    assert [stop - first for first, stop in store.runs] == [8, 4, 2, 1]
    monkeypatch.setattr("remote.cold.chunks.RUN_S_MAX", 1000.0)
    for _ in range(4):
        first = max(store.asked) + 1
        cache.begin(UUID(int=1), first, first + cache.run_chunks, store.load)
        await spawn.finish()
    assert [stop - first for first, stop in store.runs[4:]] == [1, 2, 4, 8]


async def test_a_hundred_readers_share_what_may_be_read_ahead() -> None:
    """The first gets a long run, but no more than a quarter of the room; nobody who waits is held up."""
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=64, parallel=10)
    store.held.clear()
    given = []
    for segment in range(20):
        end = cache.get_ahead(UUID(int=segment), 0, 8, store.load)
        await asyncio.sleep(0)
        given.append(end)
    assert given[:5] == [8, 6, 4, 3, 2], given
    assert not any(given[5:]), "half of the places are for what is wanted now"
    wanted = asyncio.ensure_future(cache.get(key(0, 50), store.load))
    await asyncio.sleep(0.001)
    assert cache.waiting == 0
    store.held.set()
    await wanted


async def test_what_nobody_waits_for_is_given_up_with_its_segment() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=64)
    store.held.clear()
    cache.get_ahead(UUID(int=1), 0, 4, store.load)
    reader = asyncio.ensure_future(cache.get(key(9), store.load))
    other = asyncio.ensure_future(cache.get(key(0, 2), store.load))
    await asyncio.sleep(0.001)
    assert store.running == 3
    cache.drop(UUID(int=1))
    await asyncio.sleep(0.001)
    assert store.running == 2, "only what was read ahead, and only of that segment"
    store.held.set()
    assert (await reader).data[0] == 9
    assert (await other).data[0] == 0
    await spawn.finish()
    assert (cache.loading, cache.first_missing(UUID(int=1), 0, 4)) == (0, 0)


async def test_what_nobody_takes_is_let_go_of_and_what_is_being_taken_is_not() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    taken, untaken = PinnedChunks(cache, "taken"), PinnedChunks(cache, "untaken")
    for number, file in ((1, taken), (2, untaken)):
        file.add(number, await cache.get(key(number), store.load))
    await asyncio.sleep(0.03)
    assert bytes(taken.view(5, SIZE)) == bytes([1]) * 5
    cache.let_go_of(unused_s=0.02, held_s=60)
    assert (cache.let_go, cache.pinned_bytes) == (1, SIZE)
    assert taken.pread(SIZE, SIZE) == bytes([1]) * SIZE
    for read in (untaken.pread, untaken.view):
        with pytest.raises(OSError):  # which ends the connection that it was for
            read(5, 2 * SIZE)


@given(st.integers(0, 60), st.integers(0, 60), st.sets(st.integers(0, 6)))
def test_a_pinned_file_reads_as_the_whole_or_says_what_is_missing(
    offset: int, size: int, there: set[int]
) -> None:
    whole = bytes(range(65))

    async def main() -> None:
        cache = cache_of(Tasks(), chunks=100)
        file = PinnedChunks(cache, "x")

        async def load(first: int, stop: int) -> list[Buffer | Exception]:
            return [whole[number * SIZE : (number + 1) * SIZE] for number in range(first, stop)]

        for number in there:
            file.add(number, await cache.get(key(number), load))
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


async def test_a_chunk_that_had_to_go_before_its_reader_had_it_counts_again() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=2, parallel=1)
    readers = [PinnedChunks(cache, str(number)) for number in range(6)]

    async def read(number: int) -> None:
        readers[number].add(number, await cache.get(key(number), store.load))

    await asyncio.gather(*(read(number) for number in range(6)))
    assert cache.pinned_bytes == 6 * SIZE
    assert cache.size_bytes == 6 * SIZE
    assert cache._unread_bytes == 0
    readers.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert (cache.pinned_bytes, cache.size_bytes) == (0, 2 * SIZE)


async def test_a_load_that_is_cancelled_just_as_it_might_start_ends_as_one() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=4)
    served = [PinnedChunks(cache, str(number)) for number in (1, 2)]
    for number, reader in enumerate(served, 1):
        reader.add(number, await cache.get(key(number), store.load))
    store.held.clear()
    loading = [asyncio.ensure_future(cache.get(key(number), store.load)) for number in (3, 4, 5)]
    await asyncio.sleep(0.001)
    assert cache.waiting == 1
    max(spawn.tasks, key=lambda task: int(task.get_name().rpartition("-")[2])).cancel()
    served[0].keep(0, 0)
    with pytest.raises(asyncio.CancelledError):
        await loading[2]
    store.held.set()
    await asyncio.gather(*loading[:2])
    assert cache.loading == cache.waiting == 0


async def test_what_is_let_go_of_during_a_read_is_loaded_again_before_it_is_given(tmp_path: Path) -> None:
    store = MemoryStore()
    held = asyncio.Event()
    tier = Tier(store, tmp_path, chunk_bytes=1 << 10)
    await tier.indexes.open()
    segment = await tier.copy([batch() for _ in range(60)])
    source = tier.copies.source(await tier.copies.open(segment))
    await source.load(0, 1)
    load = source._load  # type: ignore[attr-defined]

    async def slow(first: int, stop: int) -> Any:
        await held.wait()
        return await load(first, stop)

    source._load = slow  # type: ignore[attr-defined]
    loading = asyncio.ensure_future(source.load(0, 3))
    await asyncio.sleep(0.001)
    tier.chunks.let_go_of(unused_s=-1, held_s=60)
    held.set()
    await loading
    assert len(source.file.pread(3 << 10, 0)) == 3 << 10
    await tier.spawn.finish()


async def test_what_the_garbage_collector_lets_go_of_in_another_thread_is_let_go_of_on_the_loop() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn, chunks=4)
    served = PinnedChunks(cache, "1")
    for number in (1, 2):
        served.add(number, await cache.get(key(number), store.load))
    store.held.clear()
    loading = [asyncio.ensure_future(cache.get(key(number), store.load)) for number in (3, 4, 5)]
    await asyncio.sleep(0.001)
    assert cache.waiting == 1
    started: list[int] = []
    start_more, here = cache._start_more, threading.get_ident()

    def noted() -> None:
        started.append(threading.get_ident())
        start_more()

    cache._start_more = noted  # type: ignore[method-assign]
    gc.disable()
    try:
        circle: list[Any] = [served]
        circle.append(circle)
        del served, circle
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join()
    finally:
        gc.enable()
    await asyncio.sleep(0.001)
    assert cache.pinned_bytes == 0
    assert set(started) == {here}
    store.held.set()
    await asyncio.gather(*loading)


async def test_who_takes_a_byte_now_and_then_does_not_hold_chunks_for_ever() -> None:
    spawn, store = Tasks(), Store()
    cache = cache_of(spawn)
    slow, quick = PinnedChunks(cache, "1"), PinnedChunks(cache, "2")
    slow.add(1, await cache.get(key(1), store.load))
    for _ in range(5):
        await asyncio.sleep(0.02)
        quick.keep(0, 0)
        quick.add(2, await cache.get(key(2), store.load))
        assert not slow.is_holding or slow.view(1, SIZE)
        cache.let_go_of(unused_s=5, held_s=0.06)
    assert not slow.is_holding
    assert quick.is_holding
