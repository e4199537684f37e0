"""Objects of any size arrive whole, within the memory that is given, and a failure leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import random
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.store.memory_store import MemoryStore
from remote.store.object_store import Fault, Operation, StoreError
from remote.store.upload import (
    ABORT_S,
    PART_BYTES,
    PARTS_AT_ONCE,
    PARTS_MAX,
    PATIENCE_S,
    ByteBudget,
    Read,
    SourceChanged,
    put_from,
    read_apart,
    remove,
)
from remote.store.wrapper import Call, StoreWrapper
from storage.files import DiskFiles
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.remote.store.listing import listed
from tests.remote.store.scripted import DONE, NEVER_S, NOT_DONE, Scripted, now_s, passing, run
from tests.sim.loop import SimLoop

T = TypeVar("T")

DATA = random.Random(1).randbytes(1000)


def reading(data: bytes) -> Read:
    async def read(start: int, end: int) -> bytes:
        await asyncio.sleep(0.001)
        return data[start:end]

    return read


async def put(
    store: MemoryStore | Scripted | FaultyStore, data: bytes = DATA, *, part_bytes: int = 100
) -> None:
    await put_from(store, "k", len(data), reading(data), part_bytes=part_bytes)


# --- what arrives ---


@given(st.integers(0, 300), st.integers(1, 100))
def test_an_object_of_any_size_is_whole_in_parts_of_any_size(size: int, part_bytes: int) -> None:
    async def main() -> None:
        store = MemoryStore()
        await put(store, DATA[:size], part_bytes=part_bytes)
        assert store.objects == {"k": DATA[:size]}
        assert await store.list_uploads("") == []

    SimLoop().run(main())


def test_what_fits_in_one_part_is_put_at_once() -> None:
    async def main() -> list[Operation]:
        store = Scripted()
        await put(store, part_bytes=len(DATA))
        return store.calls

    assert run(main()) == [Operation.PUT]


def test_no_object_needs_more_parts_than_a_store_takes() -> None:
    async def main() -> None:
        async def read(start: int, end: int) -> bytes:
            sizes.append(end - start)
            raise SourceChanged

        for size in (PART_BYTES + 1, PART_BYTES * PARTS_MAX, PART_BYTES * PARTS_MAX + 1):
            sizes: list[int] = []
            with pytest.raises(SourceChanged):
                await put_from(MemoryStore(), "k", size, read)
            assert max(sizes) * PARTS_MAX >= size
            assert PART_BYTES <= max(sizes) <= PART_BYTES + 1

    run(main())


def test_parts_under_way_and_in_memory_are_bounded() -> None:
    async def main() -> None:
        held = [0]
        most = [0, 0]
        parts = [0]

        class Watched(MemoryStore):
            async def put_part(self, key: str, upload: str, number: int, data: bytes, *, start: int) -> str:
                parts[0] += 1
                most[0] = max(most[0], parts[0])
                await asyncio.sleep(random.Random(number).random())
                parts[0] -= 1
                held[0] -= len(data)
                return await super().put_part(key, upload, number, data, start=start)

        async def read(start: int, end: int) -> bytes:
            held[0] += end - start
            most[1] = max(most[1], held[0])
            await asyncio.sleep(0.01)
            return DATA[start:end]

        store = Watched()
        await put_from(store, "k", 1000, read, part_bytes=100)
        assert most == [PARTS_AT_ONCE, PARTS_AT_ONCE * 100]
        most[:] = [0, 0]
        budget = ByteBudget(250)
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(put_from(store, f"k{number}", 1000, read, budget=budget, part_bytes=100))
        assert most == [2, 200]
        assert budget.free_bytes == 250
        assert set(store.objects.values()) == {DATA}

    run(main())


def test_the_pace_is_asked_before_each_part() -> None:
    async def main() -> None:
        asked: list[int] = []

        async def pace(size: int) -> None:
            asked.append(size)
            await asyncio.sleep(60)

        store = Scripted()
        begun_s = now_s()
        await put_from(store, "k", 250, reading(DATA), pace=pace, part_bytes=100)
        assert sorted(asked) == [50, 100, 100]
        assert now_s() - begun_s >= 60 * 2
        assert store.bucket.objects["k"] == DATA[:250]
        await put_from(store, "l", 50, reading(DATA), pace=pace, part_bytes=100)
        assert asked[3:] == [50]

    run(main())


# --- failures ---


@given(st.integers(0, 1_000_000))
def test_whatever_a_store_does_the_object_is_whole_and_nothing_is_left(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        inner = MemoryStore()
        profile = FaultProfile(
            latency_max_s=0.5, error_before_chance=0.2, error_after_chance=0.2, hang_chance=0.02
        )
        store = FaultyStore(inner, profile, rng)
        try:
            await put(store)
        except StoreError:
            profile.heal()
            await remove(store, "k")
            assert inner.objects == {}
        else:
            assert inner.objects == {"k": DATA}
            profile.heal()
            # The last answers about what was left may have been lost.
            await asyncio.gather(*(store.abort_upload(*left[:2]) for left in await store.list_uploads("k")))
        assert await inner.list_uploads("") == []

    SimLoop().run(main())


def test_an_outage_of_a_minute_is_waited_out() -> None:
    async def main() -> None:
        inner = MemoryStore()
        profile = FaultProfile(latency_max_s=0.5)
        store = FaultyStore(inner, profile, random.Random(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(put(store))
            await asyncio.sleep(1.0)
            profile.down = True
            asyncio.get_running_loop().call_later(60, profile.heal)
        assert inner.objects == {"k": DATA}
        assert await inner.list_uploads("") == []

    run(main())


def test_an_outage_has_an_end_and_what_is_left_of_the_upload_can_be_removed() -> None:
    async def main() -> None:
        inner = MemoryStore()
        profile = FaultProfile()
        store = FaultyStore(inner, profile, random.Random(1))
        begun_s = now_s()
        asyncio.get_running_loop().call_later(0.002, setattr, profile, "down", True)
        with pytest.raises(StoreError, match="down"):
            await put(store)
        assert now_s() - begun_s <= PATIENCE_S + 1
        assert inner.objects == {}
        assert [left.key for left in await inner.list_uploads("")] == ["k"]
        profile.heal()
        await remove(store, "k")
        assert await inner.list_uploads("") == []

    run(main())


@pytest.mark.parametrize("part", range(4))
def test_a_refusal_for_good_ends_the_upload_at_once(part: int) -> None:
    """In the part before which the script has good answers."""

    async def main() -> None:
        store = Scripted()
        refusal = StoreError("AccessDenied", permanent=True, fault=Fault.DENIED)
        for _ in range(part + 1):
            store.will()
        store.will(0.0, refusal, done=NOT_DONE)
        begun_s = now_s()
        with pytest.raises(StoreError, match="AccessDenied"):
            await put_from(store, "k", 400, reading(DATA), part_bytes=100)
        assert now_s() - begun_s < 1
        assert store.bucket.objects == {}
        assert await store.bucket.list_uploads("") == []

    run(main())


def test_an_upload_whose_beginning_was_not_answered_is_not_left() -> None:
    async def main() -> None:
        store = Scripted()
        store.will(0.0, passing(), done=DONE)
        await put(store)
        assert store.bucket.objects == {"k": DATA}
        assert store.calls[:2] == [Operation.BEGIN_UPLOAD] * 2
        assert await store.bucket.list_uploads("") == []

    run(main())


def test_of_a_completion_that_was_not_answered_nothing_is_sent_twice_but_the_question() -> None:
    async def main() -> None:
        store = Scripted()
        for _ in range(4):
            store.will()
        store.will(0.0, passing(), done=DONE)
        await put_from(store, "k", 300, reading(DATA), part_bytes=100)
        assert store.calls[-2:] == [Operation.COMPLETE_UPLOAD] * 2
        assert store.calls.count(Operation.PUT_PART) == 3
        assert store.bucket.objects == {"k": DATA[:300]}

    run(main())


def test_a_part_is_read_again_when_it_is_sent_again() -> None:
    async def main() -> None:
        read: list[int] = []

        async def reads(start: int, end: int) -> bytes:
            read.append(start)
            return DATA[start:end]

        store = Scripted()
        store.will()
        store.will(0.0, passing(), done=NOT_DONE)
        await put_from(store, "k", 300, reads, part_bytes=100)
        assert sorted(read) == [0, 0, 100, 200]

    run(main())


def test_an_upload_that_somebody_aborts_fails_and_leaves_nothing() -> None:
    async def main() -> None:
        store = Scripted()

        async def read(start: int, end: int) -> bytes:
            if start == 200:
                for left in await store.bucket.list_uploads("k"):
                    await store.bucket.abort_upload(left.key, left.upload)
            return DATA[start:end]

        with pytest.raises(StoreError, match="ended from elsewhere") as caught:
            await put_from(store, "k", 400, read, part_bytes=100)
        assert not caught.value.permanent
        assert store.bucket.objects == {}

    run(main())


@pytest.mark.parametrize("size", [90, 1000])
def test_a_source_that_became_shorter_is_not_put(size: int) -> None:
    async def main() -> None:
        store = Scripted()
        with pytest.raises(SourceChanged, match="bytes"):
            await put_from(store, "k", size, reading(DATA[: size - 20]), part_bytes=100)
        assert store.bucket.objects == {}
        assert await store.bucket.list_uploads("") == []

    run(main())


def test_what_reading_raises_is_raised_as_it_is() -> None:
    async def main() -> None:
        async def read(start: int, end: int) -> bytes:
            raise OSError("the disk is gone")

        store = MemoryStore()
        with pytest.raises(OSError, match="the disk is gone"):
            await put_from(store, "k", 1000, read, part_bytes=100)
        assert await store.list_uploads("") == []

    run(main())


def test_what_is_read_from_is_let_go_of_with_the_failure() -> None:
    """A segment that its log deletes keeps its place on the disk while anything refers to its file."""

    async def fail(store: MemoryStore) -> weakref.ref[bytearray]:
        class Source(bytearray):
            pass

        source = Source(1000)

        async def read(start: int, end: int) -> bytes:
            await asyncio.sleep(0.001)
            if start >= 200:
                raise OSError("the disk is gone")
            return bytes(source[start:end])

        with contextlib.suppress(OSError):
            await put_from(store, "k", 1000, read, part_bytes=100)
        return weakref.ref(source)

    async def main() -> None:
        gc.collect()
        gc.disable()
        try:
            assert (await fail(MemoryStore()))() is None
        finally:
            gc.enable()

    asyncio.run(main())


# --- cancellation ---


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.0015, 0.005, 0.009])
@pytest.mark.parametrize("cancels", [1, 3])
def test_a_cancelled_upload_leaves_nothing_and_holds_nothing(after_s: float, cancels: int) -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = FaultyStore(inner, FaultProfile(latency_min_s=0.0003, latency_max_s=0.0006), random.Random(1))
        budget = ByteBudget(200)
        job = asyncio.create_task(put_from(store, "k", 1000, reading(DATA), budget=budget, part_bytes=100))
        await asyncio.sleep(after_s)
        for _ in range(cancels):
            job.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await job
        assert budget.free_bytes == 200
        assert inner.objects == {}
        assert await inner.list_uploads("") == []

    run(main())


class _TakesTurns(StoreWrapper):
    """A request takes some turns of the loop, and no time."""

    async def _ask(self, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(0)
        answer = await ask()
        await asyncio.sleep(0)
        return answer


@pytest.mark.parametrize("cancels", [1, 2])
def test_what_a_cancelled_upload_read_from_is_let_go_of_at_once(cancels: int) -> None:
    async def is_cancelled_after(turns: int) -> bool:
        async def read(start: int, end: int) -> bytes:
            await asyncio.sleep(0)
            return DATA[start:end]

        source = weakref.ref(read)
        job = asyncio.create_task(put_from(_TakesTurns(MemoryStore()), "k", 1000, read, part_bytes=100))
        del read
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancels):
            job.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([job])
        is_cancelled = job.cancelled()
        del job
        await asyncio.sleep(0)
        assert source() is None, f"cancelled in turn {turns}"
        return is_cancelled

    gc.collect()
    gc.disable()
    try:
        in_turn = 0
        while asyncio.run(is_cancelled_after(in_turn)):
            in_turn += 1
        assert in_turn > 10
    finally:
        gc.enable()


def test_nobody_waits_long_for_the_end_of_a_cancelled_upload() -> None:
    async def main() -> None:
        store = Scripted()
        store.will()
        for _ in range(10):
            store.will(NEVER_S)
        begun_s = now_s()
        job = asyncio.create_task(put(store))
        await asyncio.sleep(1.0)
        job.cancel()
        await asyncio.sleep(0.1)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert now_s() - begun_s <= 1.0 + ABORT_S + 0.1
        assert store.calls[-1] is Operation.ABORT_UPLOAD

    run(main())


# --- the budget ---


def test_bytes_are_given_in_turn_and_not_lost_by_who_stops_waiting() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        order: list[int] = []

        async def use(number: int, size: int) -> None:
            async with budget.hold(size):
                order.append(number)
                await asyncio.sleep(1)

        users = [asyncio.create_task(use(number, size)) for number, size in enumerate([10, 6, 6, 100, 1])]
        await asyncio.sleep(0.5)
        users[1].cancel()
        await asyncio.gather(*users, return_exceptions=True)
        assert order == [0, 2, 3, 4]
        assert budget.free_bytes == 10
        assert repr(budget) == "ByteBudget(10 of 10 free, 0 waiting)"

    run(main())


def test_bytes_that_were_given_to_who_is_cancelled_just_then_are_given_back() -> None:
    async def main() -> None:
        budget = ByteBudget(10)

        async def use() -> None:
            async with budget.hold(10):
                raise AssertionError("it was cancelled before")

        async with budget.hold(10):
            waiting = asyncio.create_task(use())
            await asyncio.sleep(0)
        assert budget.free_bytes == 0
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert budget.free_bytes == 10

    run(main())


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 3), st.floats(0, 3), st.booleans()), max_size=12))
def test_no_more_is_given_than_there_is(users: list[tuple[int, float, float, bool]]) -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        in_use = 0

        async def use(size: int, at_s: float, for_s: float) -> None:
            nonlocal in_use
            await asyncio.sleep(at_s)
            async with budget.hold(size):
                in_use += min(size, 10)
                assert in_use <= 10
                try:
                    await asyncio.sleep(for_s)
                finally:
                    in_use -= min(size, 10)

        tasks = [asyncio.create_task(use(size, at_s, for_s)) for size, at_s, for_s, _ in users]
        await asyncio.sleep(1.5)
        for task, (_, _, _, is_cancelled) in zip(tasks, users, strict=True):
            if is_cancelled:
                task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        assert budget.free_bytes == 10

    SimLoop().run(main())


# --- removal ---


def test_removal_ends_the_uploads_of_this_key_alone() -> None:
    async def main() -> None:
        store = MemoryStore()
        await put(store)
        for key in ("k", "k", "k2", "k/l"):
            await store.begin_upload(key)
        await remove(store, "k")
        assert await listed(store) == []
        assert sorted(left.key for left in await store.list_uploads("")) == ["k/l", "k2"]

    run(main())


# --- memory ---


@pytest.mark.parametrize(("start", "end"), [(0, 1000), (10, 500), (990, 2000), (1000, 1010), (5, 5)])
def test_what_is_read_apart_is_what_a_plain_read_gives(tmp_path: Path, start: int, end: int) -> None:
    (tmp_path / "f").write_bytes(DATA)
    file = DiskFiles().open(str(tmp_path / "f"))
    assert read_apart(file, start, end) == DATA[start:end]


def test_what_was_read_apart_is_the_systems_again_when_nobody_has_it(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA)
    data = read_apart(DiskFiles().open(str(tmp_path / "f")), 0, 1000)
    memory = data.obj
    assert isinstance(memory, mmap.mmap)
    data.release()
    memory.close()  # BufferError if any other reference to it were left


def test_an_upload_whose_loop_is_gone_begins_nothing_more(recwarn: pytest.WarningsRecorder) -> None:
    """A broker that is killed in the simulation leaves its uploads to the collector, which closes them."""

    class Hanging(MemoryStore):
        async def put_part(self, *_: object, **__: object) -> str:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    async def main() -> Coroutine[object, object, None]:
        upload = put(Hanging())
        task = asyncio.ensure_future(upload)
        await asyncio.sleep(0.1)
        assert not task.done()
        return upload

    loop = SimLoop()
    upload = loop.run_until_complete(main())
    upload.close()
    del upload
    gc.collect()
    assert not [str(each.message) for each in recwarn if "never awaited" in str(each.message)]
