"""The store that misbehaves: whole operations only, and the same numbers give the same faults."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from remote.store.memory_store import MemoryStore
from remote.store.object_store import PutResult, StoreError
from tests.remote.store.faulty_store import HANG_S_MAX, FaultProfile, FaultyStore
from tests.remote.store.listing import listed
from tests.remote.store.scripted import now_s, run


def faulty(**profile: Any) -> FaultyStore:
    return FaultyStore(MemoryStore(), FaultProfile(**profile), random.Random(1))


def test_an_error_before_leaves_things_as_they_were_and_one_after_does_not() -> None:
    async def main() -> None:
        before, after = faulty(error_before_chance=1.0), faulty(error_after_chance=1.0)
        for store in (before, after):
            with pytest.raises(StoreError):
                await store.put("k", b"x")
            assert await store.put_if_absent("l", b"x") is PutResult.UNKNOWN
            store.profile.heal()
        assert await listed(before) == []
        assert await listed(after) == ["k", "l"]

    run(main())


def test_a_store_that_is_down_or_hangs_does_so_until_healed() -> None:
    async def main() -> None:
        store = faulty(down=True, latency_min_s=0.1, latency_max_s=0.2)
        with pytest.raises(StoreError):
            await store.get("k")
        store.profile.down, store.profile.hang = False, True
        begun_s = now_s()
        assert await store.put_if_absent("k", b"x") is PutResult.UNKNOWN
        assert now_s() - begun_s >= HANG_S_MAX
        asyncio.get_running_loop().call_later(1.0, store.profile.heal)
        begun_s = now_s()
        with pytest.raises(StoreError):
            await store.list("")
        assert now_s() - begun_s < 2
        assert await listed(store) == []

    run(main())


def test_short_bodies_and_lists_that_lag_behind() -> None:
    async def main() -> None:
        store = faulty(short_body_chance=1.0, stale_list_chance=1.0)
        for key in ("a", "b", "c"):
            await store.put(key, b"0123456789")
        body = await store.get("a")
        assert len(body) < 10
        assert b"0123456789".startswith(body)
        names = await listed(store)
        assert len(names) < 3
        assert ["a", "b", "c"][: len(names)] == names

    run(main())


def test_the_same_numbers_give_the_same_faults() -> None:
    async def main() -> list[bool]:
        store = faulty(error_before_chance=0.5)
        return [await store.put_if_absent("k", b"") is PutResult.UNKNOWN for _ in range(50)]

    first = run(main())
    assert run(main()) == first
    assert {True, False} == set(first)
