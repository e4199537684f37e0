"""The store's bad line: lost replies are done but UNKNOWN, a death does not undo a request that had left,
healing heals."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from remote.object_store import MemoryStore, NoSuchObject, PutResult, StoreError
from tests.sim.loop import Killed, Process, SimLoop
from tests.sim.store import SimStore, StoreProfile


class Bench:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.bucket = MemoryStore()
        self.profile = StoreProfile()
        self.process = Process(self.loop, "p")
        self.store = SimStore(self.loop, self.bucket, self.profile, random.Random(1), self.process)

    def run(self, coro: Coroutine[Any, Any, None]) -> None:
        self.loop.run(coro)


def test_it_is_a_store() -> None:
    bench = Bench()

    async def main() -> None:
        store = bench.store
        assert await store.put_if_absent("a/1", b"one") is PutResult.WON
        assert await store.put_if_absent("a/1", b"two") is PutResult.LOST
        await store.put("a/2", b"two")
        assert await store.get("a/1") == b"one"
        assert await store.get_range("a/1", 1, 9) == b"ne"
        assert await store.list("a/", after="a/1") == ["a/2"]
        await store.delete("a/1")
        with pytest.raises(NoSuchObject):
            await store.get("a/1")

    bench.run(main())


def test_of_many_racing_puts_one_wins() -> None:
    bench = Bench()

    async def main() -> None:
        results = await asyncio.gather(*(bench.store.put_if_absent("k", b"%d" % n) for n in range(8)))
        assert results.count(PutResult.WON) == 1
        assert results.count(PutResult.LOST) == 7

    bench.run(main())


def test_a_lost_reply_is_unknown_and_done() -> None:
    bench = Bench()

    async def main() -> None:
        bench.profile.error_after_chance = 1.0
        assert await bench.store.put_if_absent("k", b"x") is PutResult.UNKNOWN
        assert bench.bucket.objects["k"] == b"x"
        with pytest.raises(StoreError):
            await bench.store.put("l", b"y")
        bench.profile.heal()
        assert await bench.store.get("l") == b"y"

    bench.run(main())


def test_a_refused_request_is_unknown_and_not_done() -> None:
    bench = Bench()

    async def main() -> None:
        bench.profile.error_before_chance = 1.0
        assert await bench.store.put_if_absent("k", b"x") is PutResult.UNKNOWN
        assert not bench.bucket.objects
        with pytest.raises(StoreError):
            await bench.store.get("k")

    bench.run(main())


def test_down_and_hanging_end_with_healing_or_the_deadline() -> None:
    bench = Bench()

    async def main() -> None:
        bench.profile.down = True
        with pytest.raises(StoreError):
            await bench.store.list("")
        assert await bench.store.put_if_absent("k", b"x") is PutResult.UNKNOWN
        bench.profile.down, bench.profile.hang = False, True
        begun = bench.loop.now
        with pytest.raises(StoreError):
            await bench.store.get("k")
        assert bench.loop.now - begun > 5
        bench.loop.call_later(1, bench.profile.heal)
        begun = bench.loop.now
        with pytest.raises(StoreError):
            await bench.store.get("k")
        assert bench.loop.now - begun < 2

    bench.run(main())


def test_a_request_that_had_left_takes_effect_after_its_sender_died() -> None:
    bench = Bench()

    async def main() -> None:
        bench.process.spawn(bench.store.put("k", b"x"))
        await asyncio.sleep(0)
        bench.process.die()
        await asyncio.sleep(1)
        assert bench.bucket.objects == {"k": b"x"}
        with pytest.raises(Killed):
            await bench.store.get("k")

    bench.run(main())
