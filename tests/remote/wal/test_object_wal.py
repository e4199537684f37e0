"""Combined objects on their way over bad lines, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.keys import wal_key
from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import Fault, NoSuchObject, Operation, StoreError
from remote.store.resilient import HEDGE_FIRST_S, HEDGE_SAMPLES_MIN
from remote.store.stores import LANE_DEADLINE_S, limit_attempts
from remote.wal.combined_object import ObjectKind
from remote.wal.object_wal import GIVE_UP_S, SECOND_PUT_MIN_S, UNREADABLE_MAX, ObjectWal
from remote.wal.storage_manager import SlotTaken
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.remote.store.scripted import NEVER_S, NOT_DONE, Scripted, now_s, passing, run
from tests.remote.wal.wal_samples import SOME_PLACE, some_object

PUT, GET = Operation.PUT_IF_ABSENT, Operation.GET_RANGE
KEY = wal_key(*SOME_PLACE)


def make(inner: Scripted, stats: StoreStats | None = None) -> ObjectWal:
    stats = stats or StoreStats()
    return ObjectWal(limit_attempts(inner, StoreStats()), rng=random.Random(1), stats=stats)


def copied(inner: Scripted, *, stats: StoreStats | None = None) -> float:
    """Copy one object; return how long it took, once its bytes are in the bucket."""

    async def main() -> float:
        metadata, data = some_object()
        begun_s = now_s()
        done = await make(inner, stats).copy(metadata, data)
        assert (done.place, done.size) == (SOME_PLACE, len(data))
        assert inner.bucket.objects[KEY] == data
        return now_s() - begun_s

    return run(main())


def test_a_put_that_is_answered_is_all_there_is() -> None:
    inner = Scripted()
    assert copied(inner) < 1e-3
    assert inner.calls == [PUT]


def test_a_lost_reply_is_settled_by_the_head() -> None:
    inner = Scripted()
    inner.will(0.001, passing(Fault.CONNECTION))
    copied(inner)
    assert inner.calls == [PUT, GET]


def test_what_never_arrived_is_sent_again() -> None:
    inner, stats = Scripted(), StoreStats()
    inner.will(0.001, passing(), done=NOT_DONE)
    copied(inner, stats=stats)
    assert inner.calls == [PUT, GET, PUT]
    assert stats.retries == 1


def test_a_slow_put_is_sent_twice_and_the_loser_is_cancelled() -> None:
    inner, stats = Scripted(), StoreStats()
    inner.will(NEVER_S, done=NOT_DONE)
    assert copied(inner, stats=stats) == pytest.approx(HEDGE_FIRST_S, abs=1e-3)
    assert inner.calls == [PUT, PUT]
    assert inner.cancelled == 1
    assert (stats.hedges, stats.hedges_won) == (1, 1)


def test_what_a_twin_has_stored_is_no_rival() -> None:
    """The first put took effect and its answer is slow; the second one is told that the place is taken."""
    inner = Scripted()
    inner.will(NEVER_S)
    assert copied(inner) == pytest.approx(HEDGE_FIRST_S, abs=1e-3)
    assert inner.calls == [PUT, PUT, GET]


def test_the_second_put_leaves_when_most_are_answered() -> None:
    async def main() -> None:
        inner = Scripted()
        wal = make(inner)
        for seq in range(HEDGE_SAMPLES_MIN):
            inner.will(0.002)
            await wal.copy(*some_object(seq=seq))
        inner.will(NEVER_S, done=NOT_DONE)
        begun_s = now_s()
        await wal.copy(*some_object(seq=100))
        assert now_s() - begun_s == pytest.approx(SECOND_PUT_MIN_S, abs=1e-3)

    run(main())


def test_two_puts_at_most_are_under_way() -> None:
    async def main() -> None:
        inner = Scripted()
        metadata, data = some_object()
        inner.will(NEVER_S, done=NOT_DONE)
        inner.will(NEVER_S, done=NOT_DONE)
        copy = asyncio.create_task(make(inner).copy(metadata, data))
        await asyncio.sleep(LANE_DEADLINE_S)
        assert inner.calls == [PUT, PUT]
        await copy
        assert inner.calls[:4] == [PUT, PUT, GET, PUT]

    run(main())


@pytest.mark.parametrize("kind", [ObjectKind.SLICES, ObjectKind.SEAL])
def test_another_object_at_the_place_is_told(kind: ObjectKind) -> None:
    async def main() -> None:
        inner = Scripted()
        metadata, data = some_object()
        rival, other = some_object(put_id=b"r" * 16, kind=kind)
        await inner.bucket.put(KEY, other)
        with pytest.raises(SlotTaken) as caught:
            await make(inner).copy(metadata, data)
        assert caught.value.head == rival.head
        assert inner.bucket.objects[KEY] == other

    run(main())


class CutShort(Scripted):
    """The first answers end too early."""

    def __init__(self, short: int) -> None:
        super().__init__()
        self.short = short

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        self.short -= 1
        return data[:20] if self.short >= 0 else data


def test_what_stays_unreadable_at_the_place_is_told_and_what_was_badly_received_is_not() -> None:
    async def main(short: int) -> list[Operation]:
        inner = CutShort(short)
        metadata, data = some_object()
        inner.will(0.0, passing())
        begun_s = now_s()
        try:
            await make(inner).copy(metadata, data)
        except SlotTaken as taken:
            assert taken.head is None
            assert now_s() - begun_s < GIVE_UP_S / 2
        else:
            assert short < UNREADABLE_MAX
        return inner.calls

    assert run(main(UNREADABLE_MAX - 1)) == [PUT] + [GET] * UNREADABLE_MAX
    assert run(main(UNREADABLE_MAX)) == [PUT] + [GET] * UNREADABLE_MAX
    assert run(main(100)) == [PUT] + [GET] * UNREADABLE_MAX


def test_a_store_that_says_nothing_is_given_up_and_may_be_asked_again() -> None:
    async def main() -> None:
        inner = Scripted()
        wal, (metadata, data) = make(inner), some_object()
        for _ in range(100):
            inner.will(NEVER_S, done=NOT_DONE)
        begun_s = now_s()
        with pytest.raises(StoreError) as caught:
            await wal.copy(metadata, data)
        assert caught.value.fault is Fault.TIMEOUT
        assert not caught.value.permanent
        assert now_s() - begun_s == pytest.approx(GIVE_UP_S, abs=1e-3)
        inner.script.clear()
        await wal.copy(metadata, data)
        assert inner.bucket.objects[KEY] == data

    run(main())


def test_a_permanent_refusal_is_told_at_once() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(0.0, StoreError("denied", permanent=True, fault=Fault.DENIED), done=NOT_DONE)
        with pytest.raises(StoreError, match="denied"):
            await make(inner).copy(*some_object())
        assert inner.calls == [PUT]

    run(main())


@given(at_ms=st.integers(0, 1200))
def test_a_copy_that_is_cancelled_leaves_nothing_running(at_ms: int) -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(0.5, done=NOT_DONE)
        inner.will(0.4, passing(), done=NOT_DONE)
        inner.will(0.2, passing())
        task = asyncio.create_task(make(inner).copy(*some_object()))
        await asyncio.sleep(at_ms / 1000)
        task.cancel()
        await asyncio.wait({task})
        asked = len(inner.calls)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(GIVE_UP_S)
        assert len(inner.calls) == asked

    run(main())


@given(seed=st.integers(0, 2**32))
def test_over_a_bad_line_the_truth_is_told(seed: int) -> None:
    """Two processes that take themselves for one and a broker that seals: one of them has the place, and
    knows it; the others are told whose it is, or that nobody knows."""

    async def main() -> None:
        bucket, rng = MemoryStore(), random.Random(seed)
        profile = FaultProfile(
            latency_max_s=0.5, error_before_chance=0.2, error_after_chance=0.2, hang_chance=0.05
        )

        def over_a_bad_line() -> ObjectWal:
            return ObjectWal(limit_attempts(FaultyStore(bucket, profile, rng), StoreStats()), rng=rng)

        wals = [over_a_bad_line() for _ in range(3)]

        async def claim(number: int, seq: int) -> None:
            kind = ObjectKind.SEAL if number == 2 else ObjectKind.SLICES
            metadata, data = some_object(seq=seq, put_id=b"%016d" % number, kind=kind)
            try:
                await wals[number].copy(metadata, data)
            except SlotTaken as error:
                assert bucket.objects[wal_key(*metadata.place)] != data
                assert error.head.put_id != metadata.head.put_id
            except StoreError:
                return
            else:
                assert bucket.objects[wal_key(*metadata.place)] == data

        await asyncio.gather(*(claim(number, seq) for seq in range(4) for number in range(3)))

    run(main())


def test_a_range_is_read_as_it_came() -> None:
    async def main() -> None:
        inner = Scripted()
        wal, (metadata, data) = make(inner), some_object()
        with pytest.raises(NoSuchObject):
            await wal.fetch(SOME_PLACE, 0, 10)
        await wal.copy(metadata, data)
        inner.calls.clear()
        assert await wal.fetch(SOME_PLACE, 3, 30) == data[3:30]
        assert inner.calls == [GET]

    run(main())
