"""Collecting streams: what goes, in which order, and what stays whatever happens on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.keys import Stream, WalPart, parse_wal_key, wal_key
from remote.store.object_store import PutResult, StoreError
from remote.wal.collector import GRACE_S, LATE_S, Collector, MissingObject
from remote.wal.combined_object import (
    INDEXED_OBJECTS,
    Head,
    ObjectKind,
    Place,
    Row,
    decode_table,
    encode_index,
    table_end,
)
from remote.wal.floors import Floor, is_dead
from remote.wal.seal import Sealer
from tests.remote.wal.slow_store import CLUSTER, SlowStore, boundary_keys, object_at, seal_at
from tests.sim.loop import SimLoop

T = TypeVar("T")
STREAM = Stream(1, 40, 0)
TOPIC = UUID(int=7)
SIZE = 16


def run(coro: Coroutine[Any, Any, T]) -> T:
    return SimLoop(max_steps=4_000_000).run(coro)


class Said:
    """Floors by partition; all led in epoch 3, topics of which nothing is said are there."""

    def __init__(self) -> None:
        self.metadata_seq = 50
        self.floors: dict[int, int] = {}
        self.deleted: set[UUID] = set()

    def has_topic(self, topic_id: UUID) -> bool:
        return topic_id not in self.deleted

    def floor(self, topic_id: UUID, partition: int, metadata_seq: int) -> Floor | None:
        at = self.floors.get(partition)
        return None if at is None else Floor(topic_id, partition, 3, 0, at, -1)


def row(start: int, end: int, partition: int = 0) -> Row:
    return Row(TOPIC, partition, 3, 0, 3, start, end, 0, 0, SIZE, 0, None)


class Bench:
    """A stream of objects with ten offsets each of partition 0, and who collects it."""

    def __init__(self, objects: int = 0, *, seed: int = 1, unknown: float = 0.0, fails: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.store = SlowStore(self.rng, unknown=unknown, fails=fails)
        self.said = Said()
        self.told: list[tuple[list[int], bool]] = []
        for seq in range(objects):
            self.write(seq, [row(seq * 10, seq * 10 + 10)])
        self.collector = self.another()
        self.collector.on_deleted.append(self._deleted)

    def another(self) -> Collector:
        return Collector(self.store, self.sealer(), cluster_id=lambda: CLUSTER, view=self.said)

    def sealer(self) -> Sealer:
        return Sealer(
            self.store, cluster_id=lambda: CLUSTER, writer=lambda: (2, 50), rng=self.rng, now_ms=lambda: 0
        )

    def _deleted(self, places: Sequence[Place], is_gone: bool) -> None:
        self.told.append(([place.seq for place in places], is_gone))

    def write(self, seq: int, rows: list[Row]) -> None:
        self.store._set(wal_key(STREAM, seq), object_at(Place(STREAM, seq), rows))

    def seal(self, seq: int) -> None:
        self.store._set(wal_key(STREAM, seq), seal_at(Place(STREAM, seq)))

    def index(self, block: int) -> None:
        head = Head(
            kind=ObjectKind.INDEX,
            cluster_id=CLUSTER,
            place=Place(STREAM, block),
            put_id=bytes(16),
            metadata_seq=10,
            writer=(1, 40),
            written_ms=0,
        )
        objects = [self.store.objects[wal_key(STREAM, block + at)] for at in range(INDEXED_OBJECTS)]
        tables = [data[: table_end(data)] for data in objects]
        self.store._set(wal_key(STREAM, block, WalPart.INDEX), encode_index(head, tables))

    def left(self) -> list[int]:
        keys = (parse_wal_key(key) for key in self.store.objects)
        return sorted(key.seq for key in keys if key and key.part is WalPart.OBJECT)

    async def collect(self, end: int, *, is_sealed: bool = False, rounds: int = 1) -> bool:
        done = False
        for _ in range(rounds):
            done = await self.collector.collect(STREAM, end, is_sealed=is_sealed)
            await asyncio.sleep(30)
        return done


@pytest.mark.requirement("1176-44", "1176-47")
def test_what_is_dead_goes_after_a_boundary_and_a_grace() -> None:
    async def play() -> None:
        bench = Bench(6)
        bench.said.floors[0] = 35
        await bench.collect(6)
        assert boundary_keys(bench.store, STREAM) == [2]
        assert bench.left() == [0, 1, 2, 3, 4, 5]
        assert bench.told == [([0, 1, 2], False)]
        assert bench.collector.unreferenced_bytes == 3 * len(bench.store.objects[wal_key(STREAM, 0)])
        await bench.collect(6)
        assert bench.left() == [0, 1, 2, 3, 4, 5], "the grace is longer than a round"
        await bench.collect(6)
        assert bench.left() == [3, 4, 5]
        assert bench.told[1:] == [([0, 1, 2], True)]
        assert bench.collector.unreferenced_bytes == 0

    run(play())


@pytest.mark.requirement("1176-44")
def test_one_slice_that_is_needed_keeps_its_object_and_all_that_follow() -> None:
    async def play() -> None:
        bench = Bench(6)
        bench.write(2, [row(20, 30), row(0, 5, partition=1)])
        bench.said.floors.update({0: 60, 1: 4})
        await bench.collect(6, rounds=5)
        assert bench.left() == [2, 3, 4, 5]
        assert bench.collector.held_back(STREAM, 6) == 4
        bench.said.floors[1] = 5
        await bench.collect(6, rounds=8)
        assert bench.left() == []

    run(play())


def test_an_object_that_does_not_count_yet_is_not_touched() -> None:
    """Its writer may still take it for missing, and put it again."""

    async def play() -> None:
        bench = Bench(6)
        bench.said.floors[0] = 60
        await bench.collect(4, rounds=5)
        assert bench.left() == [4, 5]

    run(play())


@pytest.mark.requirement("X-6")
def test_objects_of_a_deleted_topic_go() -> None:
    async def play() -> None:
        bench = Bench(3)
        bench.said.deleted.add(TOPIC)
        bench.store._set(wal_key(STREAM, 2), object_at(Place(STREAM, 2), [row(20, 30)], metadata_seq=51))
        await bench.collect(3, rounds=4)
        assert bench.left() == [2], "the image is older than this one"

    run(play())


def test_of_a_sealed_stream_nothing_stays_but_seals_and_boundaries() -> None:
    async def play() -> None:
        bench = Bench(4)
        bench.seal(4)
        bench.write(5, [row(50, 60)])
        bench.seal(6)
        bench.write(7, [row(70, 80)])
        bench.said.floors[0] = 40
        assert not await bench.collect(4, is_sealed=True)
        assert await bench.collect(4, is_sealed=True, rounds=int(LATE_S / 30) + 1)
        assert bench.left() == [4, 6]
        assert boundary_keys(bench.store, STREAM) == [3]
        assert await bench.sealer().end(STREAM, asked_by=99) == (STREAM, 4, 20)

    run(play())


def test_what_arrives_late_below_the_boundary_goes_after_its_grace() -> None:
    async def play() -> None:
        bench = Bench(4)
        bench.said.floors[0] = 20
        await bench.collect(4, rounds=4)
        assert bench.left() == [2, 3]
        bench.write(1, [row(10, 20)])
        await bench.collect(4)
        assert bench.left() == [1, 2, 3]
        await bench.collect(4, rounds=3)
        assert bench.left() == [2, 3]
        assert bench.told[-2:] == [([1], False), ([1], True)]

    run(play())


def test_a_collector_that_comes_after_a_boundary_ends_the_work() -> None:
    async def play() -> None:
        bench = Bench(6)
        bench.said.floors[0] = 35
        await bench.collect(6)
        bench.collector = bench.another()
        await bench.collect(6, rounds=4)
        assert bench.left() == [3, 4, 5]
        assert bench.collector.unreferenced_bytes == 0

    run(play())


def test_nothing_goes_before_the_boundary_is_known_to_be_there() -> None:
    async def play() -> None:
        bench = Bench(3)
        bench.said.floors[0] = 30
        bench.store.unknown = 1.0
        await bench.collect(3, rounds=6)
        assert bench.left() == [0, 1, 2]
        bench.store.unknown = 0.0
        await bench.collect(3, rounds=4)
        assert bench.left() == []

    run(play())


def test_an_index_object_spares_a_request_for_each_of_its_objects() -> None:
    async def play() -> None:
        bench = Bench(2 * INDEXED_OBJECTS)
        bench.index(0)
        bench.said.floors[0] = 10 * (INDEXED_OBJECTS + 3)
        before = len(bench.store.requests)
        await bench.collect(2 * INDEXED_OBJECTS)
        asked = bench.store.requests[before:]
        assert len(asked) < 20, asked
        await bench.collect(2 * INDEXED_OBJECTS, rounds=3)
        assert bench.left() == list(range(INDEXED_OBJECTS + 3, 2 * INDEXED_OBJECTS))
        assert wal_key(STREAM, 0, WalPart.INDEX) not in bench.store.objects

    run(play())


def test_a_round_that_finds_nothing_to_do_asks_little() -> None:
    async def play() -> None:
        bench = Bench(200)
        bench.said.floors[0] = 5
        await bench.collect(200)
        before = len(bench.store.requests)
        await bench.collect(200)
        assert len(bench.store.requests) - before <= 2

    run(play())


def test_a_hole_is_told_and_nothing_past_it_goes() -> None:
    async def play() -> None:
        bench = Bench(20)
        await bench.store.delete(wal_key(STREAM, 3))
        bench.said.floors[0] = 200
        with pytest.raises(MissingObject):
            await bench.collect(20, is_sealed=True)
        assert boundary_keys(bench.store, STREAM) == []

    run(play())


def test_an_object_that_nobody_can_read_goes_with_the_others_of_a_sealed_stream() -> None:
    async def play() -> None:
        bench = Bench(4)
        bench.store._set(wal_key(STREAM, 1), bench.store.objects[wal_key(STREAM, 1)][:80])
        bench.seal(4)
        bench.said.floors[0] = 40
        await bench.collect(4, is_sealed=True, rounds=4)
        assert bench.left() == [4]

    run(play())


def test_an_object_of_a_later_release_stays() -> None:
    async def play() -> None:
        bench = Bench(4)
        data = bytearray(bench.store.objects[wal_key(STREAM, 1)])
        data[5] = 2
        bench.store._set(wal_key(STREAM, 1), bytes(data))
        bench.seal(4)
        bench.said.floors[0] = 40
        await bench.collect(4, is_sealed=True, rounds=4)
        assert bench.left() == [1, 2, 3, 4]

    run(play())


class Watched(SlowStore):
    """Checks each deletion as it happens."""

    def __init__(self, bench: Chaos, **how: Any) -> None:
        super().__init__(bench.rng, **how)
        self._bench = bench
        self.bounded: dict[int, float] = {}
        """When each boundary was put."""

    def _set(self, key: str, data: bytes) -> None:
        super()._set(key, data)
        named = parse_wal_key(key)
        if named and named.part is WalPart.BOUNDARY:
            self.bounded[named.seq] = asyncio.get_running_loop().time()

    async def delete(self, key: str) -> None:
        await self._ask("delete", key)
        named = parse_wal_key(key)
        assert named is not None and named.part is not WalPart.BOUNDARY
        if named.part is WalPart.OBJECT and key in self.objects:
            self._bench.check_deletion(Place(named.stream, named.seq), decode_table(self.objects[key]).rows)
        await super(SlowStore, self).delete(key)


class Chaos:
    """A writer, floors that rise, a sealer, and collectors with images that are old, some of them stalled."""

    def __init__(self, seed: int, *, unknown: float, fails: float) -> None:
        self.rng = random.Random(seed)
        self.truth = Said()
        self.store = Watched(self, unknown=unknown, fails=fails)
        self.end: int | None = None
        self.counted = 0
        self.ends: dict[int, int] = {}

    def sealer(self) -> Sealer:
        return Sealer(
            self.store, cluster_id=lambda: CLUSTER, writer=lambda: (2, 50), rng=self.rng, now_ms=lambda: 0
        )

    def check_deletion(self, place: Place, rows: Sequence[Row]) -> None:
        now, seq = asyncio.get_running_loop().time(), place.seq
        if self.end is not None and seq > self.end:
            return
        assert self.end is None or seq < self.end, "the seal that counts"
        assert all(is_dead(row, place, 10, self.truth) for row in rows), f"{seq} is needed"
        bounded = [at for boundary, at in self.store.bounded.items() if boundary >= seq]
        assert bounded and now >= min(bounded) + GRACE_S - 0.001, f"{seq} went without a boundary or a grace"

    async def write(self) -> None:
        for seq in range(self.rng.randint(1, 60)):
            rows = []
            for partition in self.rng.sample(range(4), self.rng.randint(1, 3)):
                start = self.ends.get(partition, 0)
                self.ends[partition] = end = start + self.rng.randint(1, 9)
                rows.append(row(start, end, partition))
            data = object_at(Place(STREAM, seq), rows)
            while True:
                result = await self.store.put_if_absent(wal_key(STREAM, seq), data)
                found = self.store.objects.get(wal_key(STREAM, seq))
                if found == data or result is PutResult.WON:
                    break
                if found is not None:
                    return  # sealed
            self.counted = seq + 1
            await asyncio.sleep(self.rng.uniform(0, 10))

    async def lead(self) -> None:
        for _ in range(40):
            await asyncio.sleep(self.rng.uniform(0, 10))
            for partition, end in self.ends.items():
                if self.rng.random() < 0.5:
                    at = self.truth.floors.get(partition, 0)
                    self.truth.floors[partition] = self.rng.randint(at, end)

    async def collect(self, *, lag: float) -> None:
        """Judge by floors as they were some time ago, and sleep at any moment."""
        said = Said()
        collector = Collector(self.store, self.sealer(), cluster_id=lambda: CLUSTER, view=said)
        for _ in range(20):
            said.floors = dict(self.truth.floors)
            await asyncio.sleep(self.rng.uniform(0, lag))
            end, is_sealed = (self.counted, False) if self.end is None else (self.end, True)
            try:
                await collector.collect(STREAM, end, is_sealed=is_sealed)
            except (StoreError, MissingObject):
                collector.forget(STREAM) if self.rng.random() < 0.2 else None
            await asyncio.sleep(self.rng.uniform(0, 40))

    async def seal(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 300))
        while self.end is None:
            try:
                self.end = (await self.sealer().end(STREAM, asked_by=60)).seq
            except StoreError:
                continue

    async def play(self, collectors: int) -> None:
        await asyncio.gather(
            self.write(),
            self.lead(),
            self.seal(),
            *(self.collect(lag=self.rng.choice((0.1, 60.0, 3600.0))) for _ in range(collectors)),
        )
        await asyncio.gather(*self.store.late)
        assert self.counted <= (self.end or 0), "what counted is below the end"
        self.store.fails = self.store.unknown = 0.0
        self.truth.floors.update(self.ends)
        last = Collector(self.store, self.sealer(), cluster_id=lambda: CLUSTER, view=self.truth)
        for _ in range(12):
            assert self.end is not None
            is_done = await last.collect(STREAM, self.end, is_sealed=True)
            await asyncio.sleep(30)
        assert is_done and last.unreferenced_bytes == 0
        keys = [parse_wal_key(key) for key in self.store.objects]
        left = [self.store.objects[wal_key(*key[::2])] for key in keys if key and key.part is WalPart.OBJECT]
        assert all(decode_table(data).head.kind is ObjectKind.SEAL for data in left)
        assert (await self.sealer().end(STREAM, asked_by=99)).seq == self.end


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from((0.0, 0.2)), st.sampled_from((0.0, 0.1)))
def test_whatever_is_late_lost_or_stalled_nothing_goes_that_is_needed(
    seed: int, collectors: int, unknown: float, fails: float
) -> None:
    async def play() -> None:
        await Chaos(seed, unknown=unknown, fails=fails).play(collectors)

    run(play())
