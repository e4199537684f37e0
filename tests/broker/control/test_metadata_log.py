"""Slots: one winner each, through lost replies, late requests and collected names."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.image import Image
from broker.control.metadata_log import (
    GENESIS_HASH,
    SLOTS_KEPT_MS,
    BrokenLog,
    MetadataLog,
)
from broker.control.metadata_records import ClusterBorn, ControllerElected, SnapshotTaken, encode_record
from protocol.stored.slots import decode_slot, slot_hash
from remote.keys import boundary_key, slot_key, snapshot_key
from remote.store.memory_store import MemoryStore
from remote.store.object_store import ObjectStore, PutResult, StoreError
from tests.broker.at_once import AtOnce
from tests.remote.store.listing import listed
from tests.sim.loop import Process, SimLoop
from tests.sim.store import Bucket, SimStore, StoreProfile

RECORDS = [encode_record(ClusterBorn(cluster_id="c"))]


def log_on(store: ObjectStore, seed: int = 0) -> MetadataLog:
    return MetadataLog(store, random.Random(seed), AtOnce())


async def win(log: MetadataLog, seq: int, previous: bytes = GENESIS_HASH, epoch: int = 1) -> bytes | None:
    return await log.win(seq, controller_epoch=epoch, previous_hash=previous, records=RECORDS)


async def fill(log: MetadataLog, through: int) -> list[bytes]:
    hashes = [GENESIS_HASH]
    for seq in range(1, through + 1):
        won = await win(log, seq, hashes[-1])
        assert won is not None
        hashes.append(slot_hash(won))
    return hashes


class Scripted(MemoryStore):
    """Answers conditional puts as told: 'unknown' did nothing, 'lost-reply' did it, 'late' does it later."""

    def __init__(self, script: list[str]) -> None:
        super().__init__()
        self.script = script
        self.late: list[tuple[str, bytes]] = []
        self.puts: list[bytes] = []

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if not key.startswith("meta/0"):
            return await super().put_if_absent(key, data)
        self.puts.append(data)
        step = self.script.pop(0) if self.script else "answer"
        match step:
            case "unknown":
                return PutResult.UNKNOWN
            case "raise":
                raise StoreError("503")
            case "lost-reply":
                await super().put_if_absent(key, data)
                return PutResult.UNKNOWN
            case "late":
                self.late.append((key, data))
                return PutResult.UNKNOWN
            case _:
                for late in self.late:
                    await super().put_if_absent(*late)
                return await super().put_if_absent(key, data)


@pytest.mark.parametrize(
    "script",
    [
        ["answer"],
        ["unknown"],
        ["raise"],
        ["lost-reply"],
        ["unknown", "unknown", "lost-reply"],
        ["late"],
        ["late", "unknown"],
        ["late", "late"],
    ],
)
def test_a_lost_reply_is_the_normal_case(script: list[str]) -> None:
    store = Scripted(script)

    async def story() -> None:
        log = log_on(store)
        assert await win(log, 1) is not None
        assert len(set(store.puts)) == 1, "the same bytes go to the same slot"
        found = await log.read(1)
        assert found is not None
        assert found.records == (ClusterBorn(cluster_id="c"),)

    SimLoop().run(story())


@pytest.mark.parametrize("script", [["answer"], ["unknown"], ["raise"]])
def test_a_slot_that_is_taken_is_lost(script: list[str]) -> None:
    store = Scripted([])

    async def story() -> None:
        assert await win(log_on(store, 1), 1) is not None
        store.script = script
        assert await win(log_on(store, 2), 1) is None

    SimLoop().run(story())


def test_equal_records_of_a_rival_are_not_mine() -> None:
    """The put-id tells two writers of the same content apart."""
    store = MemoryStore()

    async def story() -> list[bool]:
        rivals = [log_on(store, seed) for seed in range(8)]
        return [result is not None for result in await asyncio.gather(*(win(rival, 1) for rival in rivals))]

    assert sum(SimLoop().run(story())) == 1


@given(st.integers(0, 10**6), st.floats(0, 0.6), st.floats(0, 0.6))
def test_on_a_bad_line_every_slot_has_one_winner_who_knows(seed: int, before: float, after: float) -> None:
    loop = SimLoop()
    bucket = Bucket()
    profile = StoreProfile(error_before_chance=before, error_after_chance=after)

    async def rival(number: int) -> set[int]:
        process = Process(loop, f"rival-{number}")
        store = SimStore(loop, bucket, profile, random.Random(f"{seed}/{number}"), process)
        log = log_on(store, number)
        won = set()
        for seq in range(1, 6):
            if await win(log, seq) is not None:
                won.add(seq)
        return won

    async def story() -> list[set[int]]:
        return await asyncio.gather(*(rival(number) for number in range(3)))

    won = loop.run(story())
    assert sorted(seq for mine in won for seq in mine) == [1, 2, 3, 4, 5]


def test_reading_on_stops_at_the_tail() -> None:
    async def story() -> None:
        log = log_on(MemoryStore())
        hashes = await fill(log, 70)
        slots = await log.read_on(0)
        assert [slot.seq for slot in slots] == list(range(1, 71))
        assert [slot.hash for slot in slots] == hashes[1:]
        assert [slot.previous_hash for slot in slots] == hashes[:-1]
        assert [slot.seq for slot in await log.read_on(68)] == [69, 70]
        assert await log.read_on(70) == []

    asyncio.run(story())


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_slot_is_not_read_over(damage: bytes | None) -> None:
    store = MemoryStore()

    async def story() -> None:
        log = log_on(store)
        await fill(log, 2)
        data = store.objects[slot_key(2)]
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        await store.put(slot_key(2), flipped if damage is None else damage)
        with pytest.raises(BrokenLog, match="metadata slot 2"):
            await log.read_on(0)

    asyncio.run(story())


@pytest.mark.parametrize("cut", [slice(0, 0), slice(0, -1), slice(1, None)])
def test_a_body_that_was_damaged_on_its_way_is_asked_for_again(cut: slice) -> None:
    """A store that tells no checksum, a proxy between: one such answer is no reason to end."""

    class Noisy(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked: set[str] = set()

        async def get(self, key: str) -> bytes:
            data = await super().get(key)
            is_first = key not in self.asked
            self.asked.add(key)
            return data[cut] if is_first else data

    store = Noisy()

    async def story() -> None:
        log = log_on(store)
        hashes = await fill(log, 3)
        await log.write_snapshot(image_at(3), last_hash=hashes[3], at_ms=0)
        assert [slot.hash for slot in await log.read_on(0)] == hashes[1:]
        snapshot = await log.snapshot(3)
        assert snapshot is not None
        assert snapshot.hash == hashes[3]

    asyncio.run(story())


def test_a_slot_under_another_name_is_not_read() -> None:
    store = MemoryStore()

    async def story() -> None:
        log = log_on(store)
        await fill(log, 1)
        await store.put(slot_key(2), store.objects[slot_key(1)])
        with pytest.raises(BrokenLog, match="says it is slot 1"):
            await log.read(2)

    asyncio.run(story())


# --- snapshots and trimming ---


def image_at(seq: int) -> Image:
    image = Image()
    image.apply_slot(1, [ClusterBorn(cluster_id="c"), ControllerElected(controller_id=1, controller_epoch=1)])
    image.seq = seq
    return image


async def trimmed(store: MemoryStore) -> MetadataLog:
    """Ten slots; snapshots of 3 (long ago), 6 (a day ago) and 9 (now)."""
    log = log_on(store)
    hashes = await fill(log, 10)
    for seq, at_ms in ((3, 0), (6, 1000), (9, SLOTS_KEPT_MS)):
        await log.write_snapshot(image_at(seq), last_hash=hashes[seq], at_ms=at_ms)
    assert await log.trim(SLOTS_KEPT_MS + 1000) == 7
    return log


def test_what_is_older_than_a_day_goes_and_a_snapshot_stays_in_its_place() -> None:
    store = MemoryStore()

    async def story() -> None:
        log = await trimmed(store)
        assert await listed(store, "meta/") == [
            *map(slot_key, range(7, 11)),
            boundary_key(6),
            snapshot_key(6),
            snapshot_key(9),
        ]
        survey = await log.survey()
        assert (survey.slots, survey.snapshots, survey.boundary) == ((7, 8, 9, 10), (6, 9), 6)
        snapshot = await log.snapshot(6)
        slot = await log.read(7)
        assert snapshot is not None
        assert slot is not None
        assert slot.previous_hash == snapshot.hash
        assert snapshot.records[0] == SnapshotTaken(at_ms=1000)
        assert await log.trim(SLOTS_KEPT_MS + 1000) == 0

    asyncio.run(story())


@pytest.mark.parametrize("wrong_ms", [1 << 50, 3 * SLOTS_KEPT_MS])
def test_a_snapshot_of_a_clock_that_was_ahead_does_not_keep_the_log_for_ever(wrong_ms: int) -> None:
    store = MemoryStore()

    async def story() -> None:
        log = log_on(store)
        hashes = await fill(log, 10)
        for seq, at_ms in ((3, wrong_ms), (6, 1000), (9, 2 * SLOTS_KEPT_MS)):
            await log.write_snapshot(image_at(seq), last_hash=hashes[seq], at_ms=at_ms)
        await log.trim(2 * SLOTS_KEPT_MS)
        survey = await log.survey()
        assert (survey.slots, survey.snapshots, survey.boundary) == ((7, 8, 9, 10), (6, 9), 6)

    asyncio.run(story())


def test_a_writer_that_slept_through_a_deletion_does_not_win() -> None:
    store = MemoryStore()

    async def story() -> None:
        await trimmed(store)
        sleeper = log_on(store, 9)
        assert await win(sleeper, 5) is None
        assert decode_slot(store.objects[slot_key(5)]).seq == 5, "it did get the name"
        assert await win(sleeper, 11) is not None

    asyncio.run(story())


def test_nothing_is_deleted_before_the_boundary_says_so() -> None:
    class Watched(MemoryStore):
        async def delete(self, key: str) -> None:
            assert boundary_key(6) in self.objects
            await super().delete(key)

    asyncio.run(_trim(Watched()))


async def _trim(store: MemoryStore) -> None:
    await trimmed(store)


def test_a_store_that_takes_nothing_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk answers every question and takes nothing: without a line nobody would know."""
    log = log_on(Scripted(["unknown"] * 4))

    assert asyncio.run(win(log, 1)) is not None
    assert [record.message for record in caplog.records] == [
        f"the object store does not take {slot_key(1)}, trying until it does"
    ]


def test_a_store_that_will_not_get_better_is_not_asked_for_ever() -> None:
    class Forbidden(MemoryStore):
        async def list(self, prefix: str, *, after: str = "") -> list[str]:
            raise StoreError("Permission denied", permanent=True)

    with pytest.raises(StoreError, match="Permission denied"):
        asyncio.run(log_on(Forbidden()).survey())
