"""The store's bad line: lost replies are done but UNKNOWN, a death does not undo a request that had left,
healing heals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from remote.store.object_store import NoSuchObject, NoSuchUpload, PutResult, StoreError
from tests.remote.store.listing import listed
from tests.sim.loop import Killed, Process, SimLoop
from tests.sim.store import Bucket, SimStore, StoreProfile


class Bench:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.bucket = Bucket()
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
        assert await listed(store, "a/", after="a/1") == ["a/2"]
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


def test_a_late_change_takes_effect_after_its_caller_gave_up() -> None:
    bench = Bench()

    async def main() -> None:
        bench.profile.late_chance, bench.profile.late_max_s = 1.0, 1000.0
        late = [await bench.store.put_if_absent(f"meta/{n}", b"x") for n in range(8)]
        assert PutResult.UNKNOWN in late
        assert len(bench.bucket.objects) < 8
        bench.profile.heal()
        await asyncio.sleep(1000)
        assert len(bench.bucket.objects) == 8

    bench.run(main())


def test_held_changes_wait_until_they_are_let_go() -> None:
    bench = Bench()

    async def main() -> None:
        bench.profile.holds = True
        assert await bench.store.put_if_absent("meta/1", b"x") is PutResult.UNKNOWN
        bench.profile.heal()
        assert await bench.store.put_if_absent("meta/1", b"y") is PutResult.WON
        await bench.store.delete("meta/1")
        assert bench.profile.let_go() == 1
        assert bench.bucket.objects == {"meta/1": b"x"}

    bench.run(main())


def test_the_journal_knows_who_changed_what_and_when() -> None:
    bench = Bench()

    async def main() -> None:
        await bench.store.put_if_absent("meta/1", b"x")
        await bench.store.put_if_absent("meta/1", b"y")
        await bench.store.put("other", b"z")
        await bench.store.delete("meta/1")
        kinds = [(change.kind, change.key, change.data, change.node) for change in bench.bucket.journal]
        assert kinds == [("put", "meta/1", b"x", 1), ("delete", "meta/1", b"", 1)]

    bench.run(main())


def test_a_node_can_be_cut_from_the_store_alone() -> None:
    bench = Bench()
    own, common = StoreProfile(), StoreProfile()
    one, other = (
        SimStore(bench.loop, bench.bucket, line, random.Random(2), bench.process, common=common, node=node)
        for node, line in ((1, own), (2, StoreProfile()))
    )

    async def main() -> None:
        own.down = True
        with pytest.raises(StoreError):
            await one.list("")
        assert await listed(other) == []
        own.heal()
        common.down = True
        for store in (one, other):
            with pytest.raises(StoreError):
                await store.list("")

    bench.run(main())


def test_parts_and_late_parts_are_no_objects() -> None:
    bench = Bench()

    async def main() -> None:
        upload = await bench.store.begin_upload("tier/k")
        tags = [(n, await bench.store.put_part("tier/k", upload, n, b"xy", start=2 * n - 2)) for n in (1, 2)]
        bench.profile.error_after_chance = 1.0
        with pytest.raises(StoreError, match="reply was lost"):
            await bench.store.complete_upload("tier/k", upload, tags, 4)
        bench.profile.heal()
        await bench.store.complete_upload("tier/k", upload, tags, 4)
        assert bench.bucket.objects == {"tier/k": b"xyxy"}
        gone = await bench.store.begin_upload("tier/l")
        bench.profile.holds = True
        with pytest.raises(StoreError):
            await bench.store.put_part("tier/l", gone, 1, b"x", start=0)
        with pytest.raises(StoreError):
            await bench.store.begin_upload("tier/l")
        bench.profile.heal()
        await bench.store.abort_upload("tier/l", gone)
        assert bench.profile.let_go() == 2
        with pytest.raises(NoSuchUpload):
            await bench.store.put_part("tier/l", gone, 1, b"x", start=0)
        assert [left.key for left in await bench.store.list_uploads("tier/")] == ["tier/l"]
        assert [(change.kind, change.key, change.size) for change in bench.bucket.tier_journal] == [
            ("begin", "tier/k", 0),
            ("part", "tier/k", 2),
            ("part", "tier/k", 2),
            ("complete", "tier/k", 4),
            ("complete", "tier/k", 4),
            ("begin", "tier/l", 0),
            ("abort", "tier/l", 0),
            ("begin", "tier/l", 0),
        ]

    bench.run(main())


def test_a_range_may_come_short() -> None:
    bench = Bench()

    async def main() -> None:
        await bench.store.put("k", b"0123456789")
        bench.profile.short_chance = 1.0
        found = {await bench.store.get_range("k", 2, 8) for _ in range(50)}
        assert found == {b"234567"[:size] for size in range(7)}
        bench.profile.heal()
        assert await bench.store.get_range("k", 2, 8) == b"234567"

    bench.run(main())
