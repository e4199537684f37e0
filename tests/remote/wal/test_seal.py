"""The walk to the end of a stream, beside a writer, other walks and a collector."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.keys import Stream, WalPart, wal_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import ObjectStore, PutResult, StoreError
from remote.wal.combined_object import ObjectKind, Place, Row, decode_head
from remote.wal.seal import STOP_AHEAD, End, Sealer
from tests.remote.wal.slow_store import CLUSTER, SlowStore, object_at, seal_at
from tests.sim.loop import SimLoop

T = TypeVar("T")
STREAM = Stream(1, 40, 0)
ROW = Row(UUID(int=7), 0, 3, 0, 3, 0, 10, 0, 0, 16, 0, None)

pytestmark = pytest.mark.requirement("1176-48")


def run(coro: Coroutine[Any, Any, T]) -> T:
    return SimLoop().run(coro)


def sealer(store: ObjectStore, seed: int = 1, node_id: int = 2) -> Sealer:
    return Sealer(
        store,
        cluster_id=lambda: CLUSTER,
        writer=lambda: (node_id, 50),
        rng=random.Random(seed),
        now_ms=lambda: 0,
    )


def store_with(*seqs: int, boundary: int = -1) -> MemoryStore:
    store = MemoryStore()
    for seq in seqs:
        store._set(wal_key(STREAM, seq), object_at(Place(STREAM, seq), [ROW]))
    if boundary >= 0:
        store._set(wal_key(STREAM, boundary, WalPart.BOUNDARY), b"")
    return store


def seals(store: MemoryStore, stream: Stream = STREAM) -> list[int]:
    found = []
    for seq in range(2_000):
        data = store.objects.get(wal_key(stream, seq))
        if data is not None and decode_head(data).kind is ObjectKind.SEAL:
            found.append(seq)
    return found


def test_the_first_free_slot_is_sealed() -> None:
    store = store_with(0, 1, 2)
    assert run(sealer(store).end(STREAM, asked_by=60)) == End(STREAM, 3, 60)
    assert seals(store) == [3]


def test_a_hole_is_sealed_and_what_lies_above_is_void() -> None:
    store = store_with(0, 1, 3)
    assert run(sealer(store).end(STREAM, asked_by=60)).seq == 2


def test_to_seal_again_changes_nothing() -> None:
    store = store_with(0, 1)
    first = run(sealer(store).end(STREAM, asked_by=60))
    objects = dict(store.objects)
    assert run(sealer(store, 2).end(STREAM, asked_by=70)) == first
    assert store.objects == objects


def test_after_a_collection_the_walk_begins_above_the_boundary() -> None:
    store = store_with(6, 7, boundary=5)
    assert run(sealer(store).end(STREAM, asked_by=60)).seq == 8
    assert seals(store) == [8]


def test_a_sealer_that_sleeps_through_a_collection_does_not_end_the_stream_where_it_was() -> None:
    """Slots that it found free, or taken, are gone and free meanwhile."""

    class Sleeps(MemoryStore):
        slept = False

        async def put_if_absent(self, key: str, data: bytes) -> PutResult:
            if not self.slept:
                self.slept = True
                for seq in range(400):
                    await self.delete(wal_key(STREAM, seq))
                await self.put(wal_key(STREAM, 399, WalPart.BOUNDARY), b"")
                for seq in range(400, 420):
                    await self.put(wal_key(STREAM, seq), object_at(Place(STREAM, seq), [ROW]))
            return await super().put_if_absent(key, data)

    store = Sleeps()
    for seq in range(10):
        run(store.put(wal_key(STREAM, seq), object_at(Place(STREAM, seq), [ROW])))
    assert run(sealer(store).end(STREAM, asked_by=60)).seq == 420
    assert seals(store) == [10, 420], "the one at 10 is void"


def test_a_list_that_is_old_is_not_believed() -> None:
    class ListsLate(MemoryStore):
        async def list(self, prefix: str, **how: Any) -> list[Any]:
            return [info for info in await super().list(prefix, **how) if "0005" not in info.key]

    store = ListsLate()
    store.objects = {}
    for seq in range(9):
        run(store.put(wal_key(STREAM, seq), object_at(Place(STREAM, seq), [ROW])))
    assert run(sealer(store).end(STREAM, asked_by=60)).seq == 9


def test_an_object_that_cannot_be_read_is_no_seal() -> None:
    store = store_with(0, 1)
    store._set(wal_key(STREAM, 2), b"")
    assert run(sealer(store).end(STREAM, asked_by=60)).seq == 3


def test_a_seal_that_is_asked_for_later_ends_the_next_stream_too() -> None:
    """The writer reopens once it knows of the slot that asked for the first seal."""
    store = store_with(0, 1)
    store._set(wal_key(STREAM, 2), seal_at(Place(STREAM, 2), asked_by=50))
    later = STREAM._replace(generation=1)
    assert run(sealer(store).end_epoch(1, 40, asked_by=55)) == End(later, 0, 55)
    assert seals(store, later) == [0]
    # who asks for no more than that is content
    assert run(sealer(store).end_epoch(1, 40, asked_by=54)) == End(later, 0, 55)


def test_the_newest_generation_is_ended() -> None:
    store = store_with(0)
    store._set(wal_key(STREAM, 1), seal_at(Place(STREAM, 1), asked_by=50))
    newest = STREAM._replace(generation=3)
    store._set(wal_key(newest, 0), object_at(Place(newest, 0), [ROW]))
    store._set(wal_key(Stream(1, 41, 0), 0), object_at(Place(Stream(1, 41, 0), 0), [ROW]))
    assert run(sealer(store).end_epoch(1, 40, asked_by=55)) == End(newest, 1, 55)
    assert seals(store, Stream(1, 41, 0)) == []


def test_a_boundary_is_found_behind_any_number_of_others() -> None:
    store = MemoryStore()
    for seq in range(2_500):
        store._set(wal_key(STREAM, seq, WalPart.BOUNDARY), b"")
    assert run(sealer(store).boundary(STREAM)) == 2_499
    assert run(sealer(store).boundary(STREAM, known=2_499)) == 2_499


async def write(
    store: SlowStore, seconds: float, *, pause_s: float, stream: Stream = STREAM, in_flight: int = 4
) -> list[int]:
    """Write like an uploader, four at a time; return what counts: the contiguous prefix before any seal."""
    won: set[int] = set()
    sealed: list[int] = []
    numbers = iter(range(10_000))
    until_s = asyncio.get_running_loop().time() + seconds

    async def put() -> None:
        while not sealed and asyncio.get_running_loop().time() < until_s:
            seq = next(numbers)
            data = object_at(Place(stream, seq), [ROW])
            while True:
                result = await store.put_if_absent(wal_key(stream, seq), data)
                found = store.objects.get(wal_key(stream, seq))
                if result is PutResult.WON or found == data:
                    won.add(seq)
                    break
                if found is not None:
                    assert decode_head(found).kind is ObjectKind.SEAL
                    sealed.append(seq)
                    break
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(put() for _ in range(in_flight)))
    counted = []
    for seq in range(min(sealed, default=10_000)):
        if seq not in won:
            break
        counted.append(seq)
    return counted


def test_a_writer_that_is_faster_is_stopped() -> None:
    async def play() -> None:
        store = SlowStore(random.Random(4))
        writing = asyncio.create_task(write(store, 60.0, pause_s=0.0, in_flight=16))
        await asyncio.sleep(0.5)
        written = len(store.objects)
        began_s = asyncio.get_running_loop().time()
        end = await sealer(store).end(STREAM, asked_by=60)
        assert asyncio.get_running_loop().time() < began_s + 10
        counted = await writing
        assert counted == list(range(end.seq))
        assert end.seq - written < 8 * STOP_AHEAD

    run(play())


@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from((0.0, 0.1, 0.4)),
    st.sampled_from((0.0, 0.005, 0.05)),
)
def test_all_walks_agree_with_the_writer_on_the_end(
    seed: int, walkers: int, unknown: float, pause_s: float
) -> None:
    """Whatever is slow, late or lost: nothing that counts for the writer lies above the end, and the end that
    any walk finds is the lowest seal."""

    async def play() -> None:
        rng = random.Random(seed)
        store = SlowStore(rng, unknown=unknown)
        writing = asyncio.create_task(write(store, 5.0, pause_s=pause_s))

        async def walk(number: int) -> End:
            await asyncio.sleep(rng.uniform(0, 3))
            while True:
                try:
                    return await sealer(store, seed + number, number).end(STREAM, asked_by=60 + number)
                except StoreError:
                    continue

        ends = await asyncio.gather(*(walk(number) for number in range(walkers)))
        counted = await writing
        await asyncio.gather(*store.late)
        assert len(set(ends)) == 1
        assert ends[0].seq == min(seals(store))
        assert counted == list(range(len(counted))) and len(counted) <= ends[0].seq
        again = await sealer(store, 99).end(STREAM, asked_by=99)
        assert again == ends[0]

    run(play())


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 9))))
def test_every_stream_is_listed_once_and_little_is_asked_for(made: list[tuple[int, int, int, int]]) -> None:
    async def main() -> None:
        store = SlowStore(random.Random(1))
        store._set("wal/2/floors", b"x")
        keys: dict[Stream, int] = {}
        for *stream, count in made:
            for seq in range(count):
                store._set(wal_key(Stream(*stream), seq), b"some")
            keys[Stream(*stream)] = max(keys.get(Stream(*stream), 0), count)
        found = [stream async for stream in sealer(store).streams("wal/")]
        assert found == sorted(keys)
        large = sum(count > 3 for count in keys.values())
        assert len(store.requests) <= 1 + large + (1 + 3 * len(keys)) // 3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remote.wal.seal.STREAM_PAGE_KEYS", 4)
        run(main())
