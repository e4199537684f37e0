"""The probe passes every store that keeps its promises and finds each that breaks one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import Buffer
from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import (
    NoSuchObject,
    NoSuchUpload,
    ObjectInfo,
    ObjectStore,
    PutResult,
    StoreError,
    Upload,
)
from remote.store.probe import RACE_KEYS, judge_race, probe, probe_conditions
from remote.store.stores import harden
from tests.compat.peers import unique
from tests.remote.store.bare import bare_s3
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.remote.store.listing import listed
from tests.sim.loop import SimLoop
from tools.versus.minio import MinioServer

WON, LOST, UNKNOWN = PutResult


def rng() -> random.Random:
    return random.Random(1)


# --- stores that cheat ---


class IgnoresConditions(MemoryStore):
    """What an S3-compatible store does that does not know the header."""

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        await self.put(key, data)
        return PutResult.WON


class ChecksThenActs(MemoryStore):
    """What a store does that looks first and then writes, with no lock around both."""

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if key in self.objects:
            return PutResult.LOST
        await asyncio.sleep(0.01)
        await self.put(key, data)
        return PutResult.WON


class WinsForAll(MemoryStore):
    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        await super().put_if_absent(key, data)
        return PutResult.WON


class RefusesAll(MemoryStore):
    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        await super().put_if_absent(key, data)
        return PutResult.LOST


class Forgets(MemoryStore):
    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        return PutResult.WON if data.startswith(b"a") else PutResult.LOST


class ReadsOld(MemoryStore):
    """A cache before the store."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes:
        return self.cache.setdefault(key, await super().get(key))


class ListsLate(MemoryStore):
    async def list(self, prefix: str, *, after: str = "") -> list[ObjectInfo]:
        return (await super().list(prefix, after=after))[:-1]


class ListsFromAnywhere(MemoryStore):
    async def list(self, prefix: str, *, after: str = "") -> list[ObjectInfo]:
        return await super().list(prefix)


class IgnoresRanges(MemoryStore):
    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self.get(key)


class KeepsTheDeleted(MemoryStore):
    async def delete(self, key: str) -> None:
        if key not in self.objects:
            raise NoSuchObject(key)


class CutsLarge(MemoryStore):
    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data[: 5 << 20])

    async def put_if_absent(self, key: str, data: bytes) -> PutResult:
        return await super().put_if_absent(key, data[: 5 << 20])


class ShowsParts(MemoryStore):
    """What a store does that keeps the parts where the object will be."""

    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        await self.put(key, data)
        return await super().put_part(key, upload, number, data, start=start)


class LosesParts(MemoryStore):
    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[int, str]], size: int
    ) -> None:
        await super().complete_upload(key, upload, parts, size)
        self.objects[key] = bytes(size)


class ForgetsUploads(MemoryStore):
    async def put_part(self, key: str, upload: str, number: int, data: Buffer, *, start: int) -> str:
        raise NoSuchUpload(key)


class HidesUploads(MemoryStore):
    async def list_uploads(self, prefix: str) -> Sequence[Upload]:
        return []


class AbortsNothing(MemoryStore):
    async def abort_upload(self, key: str, upload: str) -> None:
        pass


class KnowsNoParts(MemoryStore):
    async def begin_upload(self, key: str) -> str:
        raise StoreError("begin_upload was answered 501: NotImplemented", permanent=True)


class FoldsCase(MemoryStore):
    async def put(self, key: str, data: bytes) -> None:
        await super().put(key.lower(), data)


CHEATS: list[tuple[Callable[[], MemoryStore], str]] = [
    (IgnoresConditions, "one winner for each key"),
    (ChecksThenActs, "one winner for each key"),
    (WinsForAll, "one winner for each key"),
    (RefusesAll, "one winner for each key"),
    (Forgets, "one winner for each key"),
    (IgnoresConditions, "a conditional put keeps the first"),
    (ReadsOld, "read after overwrite"),
    (ListsLate, "list after write"),
    (ListsFromAnywhere, "list after write"),
    (IgnoresRanges, "ranged reads"),
    (KeepsTheDeleted, "delete"),
    (CutsLarge, "an object of 8 MiB"),
    (ShowsParts, "an object put in parts"),
    (LosesParts, "an object put in parts"),
    (ForgetsUploads, "an object put in parts"),
    (HidesUploads, "an object put in parts"),
    (KnowsNoParts, "an object put in parts: no answer"),
    (AbortsNothing, "of an aborted upload nothing is left"),
    (FoldsCase, "every legal key"),
]


@pytest.mark.parametrize(("cheat", "check"), CHEATS, ids=lambda value: getattr(value, "__name__", None))
def test_a_store_that_cheats_is_found_out(cheat: Callable[[], MemoryStore], check: str) -> None:
    store = cheat()
    report = SimLoop().run(probe(store, store, rng()))
    assert not report.is_fit
    assert any(complaint.startswith(check) for complaint in report.complaints), report.complaints


@pytest.mark.parametrize("cheat", [IgnoresConditions, ChecksThenActs, WinsForAll, RefusesAll, Forgets])
def test_the_race_alone_finds_a_store_that_ignores_conditions(cheat: Callable[[], MemoryStore]) -> None:
    store = cheat()
    conditions = SimLoop().run(probe_conditions(store, store, rng()))
    assert not conditions.is_sound
    assert len(conditions.complaints) == RACE_KEYS


def test_two_stores_that_are_not_one_are_found_out() -> None:
    """Two brokers that were given the same URL and do not reach the same objects."""
    conditions = SimLoop().run(probe_conditions(MemoryStore(), MemoryStore(), rng()))
    assert not conditions.is_sound


# --- stores that do not ---


def test_a_store_that_keeps_its_promises_passes_and_is_left_as_it_was() -> None:
    store = MemoryStore()

    async def main() -> None:
        await store.put("mine", b"x")
        assert (await probe_conditions(store, store, rng())).is_sound
        assert store.objects == {"mine": b"x"}
        report = await probe(store, store, rng())
        assert report.is_fit
        assert report.complaints == ()
        assert {latency.samples for latency in report.latencies} == {1, 50}

    SimLoop().run(main())
    assert store.objects == {"mine": b"x"}
    assert SimLoop().run(store.list_uploads("")) == []


@given(seed=st.integers(0, 2**32))
def test_a_bad_line_is_not_mistaken_for_a_cheat(seed: int) -> None:
    numbers, bucket = random.Random(seed), MemoryStore()
    profile = FaultProfile(latency_max_s=0.3, error_before_chance=0.1, error_after_chance=0.1)

    def connection() -> ObjectStore:
        return harden(FaultyStore(bucket, profile, numbers), stats=StoreStats(), rng=numbers)

    async def main() -> None:
        try:
            conditions = await probe_conditions(connection(), connection(), numbers)
        except StoreError:
            return
        assert conditions.is_sound, conditions.complaints

    SimLoop().run(main())


def test_a_store_that_does_not_answer_is_no_verdict() -> None:
    async def main() -> None:
        down = FaultyStore(MemoryStore(), FaultProfile(down=True), rng())
        with pytest.raises(StoreError):
            await probe_conditions(down, down, rng())
        with pytest.raises(StoreError):
            await probe(down, down, rng())

    SimLoop().run(main())


def test_puts_whose_replies_are_all_lost_end_the_race() -> None:
    async def main() -> None:
        lost = FaultyStore(MemoryStore(), FaultProfile(), rng())

        async def unknown(key: str, data: bytes) -> PutResult:
            return PutResult.UNKNOWN

        lost.put_if_absent = unknown  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="did not say"):
            await probe_conditions(lost, lost, rng())

    SimLoop().run(main())


@pytest.mark.minio
async def test_a_real_minio_is_fit(minio_server: MinioServer, bucket: str) -> None:
    url = minio_server.url(bucket, unique("probe"))
    store_a, store_b = bare_s3(minio_server, url), bare_s3(minio_server, url)
    try:
        assert (await probe_conditions(store_a, store_b, rng())).is_sound
        report = await probe(store_a, store_b, rng())
        assert report.complaints == ()
        assert await listed(store_a) == []
    finally:
        await store_a.close()
        await store_b.close()


# --- the verdict on one key ---


def test_a_verdict_accuses_nobody_who_may_be_honest() -> None:
    """Of all that two rivals can hear and read, complained of is what no order of two puts explains."""
    bodies = (b"a", b"b")
    for results in product(PutResult, repeat=2):
        for there in (None, *bodies):
            complaint = judge_race(results, bodies, (there, there))
            explained = there is not None and all(
                result is UNKNOWN or (result is WON) == (body == there)
                for result, body in zip(results, bodies, strict=True)
            )
            assert (complaint is None) is explained, (results, there, complaint)


def test_a_late_put_of_an_earlier_try_may_win() -> None:
    assert judge_race((LOST, LOST), (b"a1", b"b1"), (b"a0", b"a0"), earlier=(b"a0", b"b0")) is None
    assert judge_race((LOST, UNKNOWN), (b"a1", b"b1"), (b"a0", b"a0"), earlier=(b"a0", b"b0")) is None
    assert judge_race((WON, LOST), (b"a1", b"b1"), (b"a0", b"a0"), earlier=(b"a0", b"b0")) is not None
    assert judge_race((LOST, LOST), (b"a1", b"b1"), (b"a0", b"b0"), earlier=(b"a0", b"b0")) is not None
