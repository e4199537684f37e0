"""Deadlines, retries and hedges, each around a scripted store, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import Fault, NoSuchObject, ObjectStore, Operation, PutResult, StoreError
from remote.store.resilient import (
    BYTES_PER_S_MIN,
    DEADLINE_S,
    HEDGE_FIRST_S,
    HEDGE_SAMPLES_MIN,
    HEDGE_SHARE,
    HEDGES_SAVED_MAX,
    LONG_DEADLINE_S,
    RETRIES_END_S,
    RETRIES_MAX,
    RETRY_FIRST_S,
    DeadlineStore,
    HedgedStore,
    HedgePolicy,
    RetryStore,
)
from remote.store.stores import harden
from tests.remote.store.listing import listed
from tests.remote.store.scripted import DONE, NEVER_S, NOT_DONE, Scripted, now_s, passing, run

# --- deadlines ---


def test_a_call_that_hangs_ends_and_says_so() -> None:
    async def main() -> None:
        inner = Scripted()
        store = DeadlineStore(inner)
        inner.will(NEVER_S)
        begun_s = now_s()
        with pytest.raises(StoreError, match="delete meta/1: no answer") as caught:
            await store.delete("meta/1")
        assert caught.value.fault is Fault.TIMEOUT
        assert not caught.value.permanent
        assert DEADLINE_S <= now_s() - begun_s < DEADLINE_S + 1
        assert inner.cancelled == 1

    run(main())


def test_a_conditional_put_that_hangs_is_unknown_and_may_be_done() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(NEVER_S)
        store = DeadlineStore(inner)
        assert await store.put_if_absent("k", b"mine") is PutResult.UNKNOWN
        assert await store.get("k") == b"mine"

    run(main())


def test_large_objects_have_longer() -> None:
    async def main() -> None:
        inner = Scripted()
        store = DeadlineStore(inner)
        inner.will(DEADLINE_S + 5)
        await store.put("k", bytes(10 * BYTES_PER_S_MIN))
        inner.will(DEADLINE_S + 5)
        assert len(await store.get_range("k", 0, 10 * BYTES_PER_S_MIN)) == 10 * BYTES_PER_S_MIN
        inner.will(DEADLINE_S + 5)
        with pytest.raises(StoreError):
            await store.get_range("k", 0, 100)

    run(main())


def test_a_list_has_the_time_for_many_pages() -> None:
    async def main() -> None:
        inner = Scripted()
        store = DeadlineStore(inner)
        inner.will(LONG_DEADLINE_S - 1)
        assert await listed(store, "wal/") == []
        inner.will(NEVER_S)
        with pytest.raises(StoreError):
            await store.list("wal/")

    run(main())


# --- retries ---

RETRIED: list[Callable[[ObjectStore], Awaitable[object]]] = [
    lambda store: store.get("there"),
    lambda store: store.get_range("there", 0, 1),
    lambda store: store.put("k", b"x"),
    lambda store: store.list(""),
    lambda store: store.delete("k"),
]


def retrying(inner: ObjectStore, stats: StoreStats | None = None) -> RetryStore:
    return RetryStore(inner, rng=random.Random(1), stats=stats or StoreStats())


@pytest.mark.parametrize("call", RETRIED)
@pytest.mark.parametrize("done", [DONE, NOT_DONE])
def test_what_may_be_asked_twice_is_tried_again(
    call: Callable[[ObjectStore], Awaitable[object]], done: bool
) -> None:
    async def main() -> None:
        inner, stats = Scripted(), StoreStats()
        await inner.bucket.put("there", b"x")
        for _ in range(RETRIES_MAX):
            inner.will(0.01, passing(), done=done)
        await call(retrying(inner, stats))
        assert len(inner.calls) == RETRIES_MAX + 1
        assert stats.retries == RETRIES_MAX

    run(main())


def test_retries_are_bounded_and_their_pauses_jitter() -> None:
    async def main() -> list[float]:
        inner = Scripted()
        store = retrying(inner)
        waits = []
        for _ in range(20):
            for _ in range(RETRIES_MAX + 1):
                inner.will(0.0, passing())
            begun_s, calls = now_s(), len(inner.calls)
            with pytest.raises(StoreError):
                await store.get("there")
            assert len(inner.calls) == calls + RETRIES_MAX + 1
            waits.append(now_s() - begun_s)
        return waits

    waits = run(main())
    assert max(waits) < RETRY_FIRST_S * 2**RETRIES_MAX
    assert len(set(waits)) == len(waits)


def test_a_slow_outage_is_not_made_slower() -> None:
    async def main() -> None:
        inner = Scripted()
        for _ in range(RETRIES_MAX + 1):
            inner.will(RETRIES_END_S * 0.7, passing(Fault.TIMEOUT))
        with pytest.raises(StoreError):
            await retrying(inner).get("k")
        assert len(inner.calls) == 2

    run(main())


@pytest.mark.parametrize(
    "error", [StoreError("denied", permanent=True), NoSuchObject("k"), ValueError("key")]
)
def test_what_asking_again_cannot_change_is_asked_once(error: Exception) -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(0.0, error)  # type: ignore[arg-type]
        with pytest.raises(type(error)):
            await retrying(inner).get("k")
        assert len(inner.calls) == 1

    run(main())


@pytest.mark.parametrize("done", [DONE, NOT_DONE])
def test_a_conditional_put_is_sent_once_whatever_happens(done: bool) -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(0.0, passing(), done=done)
        assert await retrying(inner).put_if_absent("k", b"mine") is PutResult.UNKNOWN
        assert inner.calls == [Operation.PUT_IF_ABSENT]

    run(main())


def test_a_conditional_put_is_not_sent_again_for_a_store_that_raises() -> None:
    class Raising(MemoryStore):
        calls = 0

        async def put_if_absent(self, key: str, data: bytes) -> PutResult:
            self.calls += 1
            raise passing()

    async def main() -> None:
        inner = Raising()
        assert await retrying(inner).put_if_absent("k", b"mine") is PutResult.UNKNOWN
        assert inner.calls == 1

    run(main())


def test_a_conditional_put_that_is_refused_for_good_says_so() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(0.0, StoreError("no such bucket", permanent=True))
        with pytest.raises(StoreError, match="no such bucket"):
            await harden(inner, stats=StoreStats(), rng=random.Random(1)).put_if_absent("k", b"")

    run(main())


# --- hedges ---


def hedging(inner: ObjectStore, stats: StoreStats | None = None) -> HedgedStore:
    return HedgedStore(inner, stats=stats or StoreStats())


def test_a_slow_read_is_asked_twice_and_the_first_answer_counts() -> None:
    async def main() -> None:
        inner, stats = Scripted(), StoreStats()
        await inner.bucket.put("k", b"x")
        inner.will(NEVER_S)
        inner.will(0.01)
        begun_s = now_s()
        assert await hedging(inner, stats).get("k") == b"x"
        assert now_s() - begun_s == pytest.approx(HEDGE_FIRST_S + 0.01, abs=0.01)
        assert (stats.hedges, stats.hedges_won, inner.cancelled) == (1, 1, 1)

    run(main())


def test_the_first_may_still_win() -> None:
    async def main() -> None:
        inner, stats = Scripted(), StoreStats()
        await inner.bucket.put("k", b"x")
        inner.will(HEDGE_FIRST_S + 0.01)
        inner.will(NEVER_S)
        assert await hedging(inner, stats).get_range("k", 0, 1) == b"x"
        assert (stats.hedges, stats.hedges_won, inner.cancelled) == (1, 0, 1)

    run(main())


def test_a_hedge_that_fails_leaves_the_first_its_time() -> None:
    async def main() -> None:
        inner = Scripted()
        await inner.bucket.put("k", b"x")
        inner.will(HEDGE_FIRST_S + 1)
        inner.will(0.1, passing())
        assert await hedging(inner).get("k") == b"x"

    run(main())


def test_when_both_fail_the_read_fails() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(HEDGE_FIRST_S + 1, passing())
        inner.will(0.1, passing())
        with pytest.raises(StoreError):
            await hedging(inner).get("k")

    run(main())


def test_that_there_is_no_object_is_an_answer() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(NEVER_S)
        with pytest.raises(NoSuchObject):
            await hedging(inner).get("k")
        assert inner.calls == [Operation.GET] * 2

    run(main())


def test_a_failure_before_the_hedge_is_left_to_retries() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(0.01, passing())
        with pytest.raises(StoreError):
            await hedging(inner).get("k")
        assert inner.calls == [Operation.GET]

    run(main())


def test_only_reads_are_hedged() -> None:
    async def main() -> None:
        inner, stats = Scripted(), StoreStats()
        store = hedging(inner, stats)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.put("k", b""),
            lambda: store.put_if_absent("k", b""),
            lambda: store.list(""),
            lambda: store.delete("k"),
        ]
        for call in calls:
            inner.will(HEDGE_FIRST_S * 10)
            await call()
        assert (len(inner.calls), stats.hedges) == (4, 0)

    run(main())


def test_a_reader_that_goes_away_takes_both_with_it() -> None:
    async def main() -> None:
        inner = Scripted()
        inner.will(NEVER_S)
        inner.will(NEVER_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HEDGE_FIRST_S * 2):
                await hedging(inner).get("k")
        assert inner.cancelled == 2

    run(main())


def test_the_delay_is_what_most_reads_took() -> None:
    policy = HedgePolicy()
    assert policy.delay_s(Operation.GET) == HEDGE_FIRST_S
    for number in range(HEDGE_SAMPLES_MIN * 5):
        policy.note_answer(Operation.GET, 1.0 if number % 100 == 99 else 0.1)
    assert policy.delay_s(Operation.GET) == 0.1
    assert policy.delay_s(Operation.GET_RANGE) == HEDGE_FIRST_S
    for _ in range(HEDGE_SAMPLES_MIN * 20):
        policy.note_answer(Operation.GET, 0.4)
    assert policy.delay_s(Operation.GET) == 0.4


@given(reads=st.integers(1, 2000), asks=st.integers(1, 5))
def test_hedges_are_a_bounded_share_of_reads(reads: int, asks: int) -> None:
    policy = HedgePolicy()
    hedges = 0
    for _ in range(reads):
        policy.note_asked()
        hedges += sum(policy.may_hedge() for _ in range(asks))
    assert hedges <= 1 + reads * HEDGE_SHARE
    for _ in range(10_000):
        policy.note_asked()
    assert sum(policy.may_hedge() for _ in range(1000)) <= HEDGES_SAVED_MAX


def test_a_store_that_is_slow_for_all_is_not_asked_twice_for_all() -> None:
    async def main() -> StoreStats:
        inner, stats = Scripted(), StoreStats()
        await inner.bucket.put("k", b"x")
        store = hedging(inner, stats)
        for _ in range(200):
            inner.will(HEDGE_FIRST_S * 4)
            inner.will(HEDGE_FIRST_S * 4)
            await store.get("k")
            inner.script.clear()
        return stats

    assert run(main()).hedges <= 1 + 200 * HEDGE_SHARE
