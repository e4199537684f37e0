"""Pacers in virtual time: order, rate, cancellation, a changed quota."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.pacing import Pacer
from tests.sim.loop import SimLoop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return SimLoop().run(main)


def pacer_of(rate: int | list[int]) -> Pacer:
    """A list's only item may be changed meanwhile."""
    return Pacer(rate=lambda: rate if isinstance(rate, int) else rate[0], samples=11, sample_s=1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.requirement("956-09", "956-10", "956-11", "956-16")
@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=40), st.integers(100, 1_000))
def test_all_pass_in_the_order_in_which_they_came_at_the_rate(sizes: list[int], rate: int) -> None:
    async def main() -> None:
        pacer = pacer_of(rate)
        passed: list[tuple[float, int]] = []

        async def one(number: int, size: int) -> None:
            await pacer.take(size)
            passed.append((now(), number))

        begun = now()
        async with asyncio.TaskGroup() as group:
            for number, size in enumerate(sizes):
                group.create_task(one(number, size))
        assert [number for _, number in passed] == list(range(len(sizes)))
        owed = 0
        for (at, _), size in zip(passed, sizes, strict=True):
            assert at - begun == pytest.approx(owed / rate, abs=0.15)
            owed += size

    run(main())


@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.floats(0, 30)), max_size=8),
)
def test_whoever_is_cancelled_gives_up_the_place(sizes: list[int], cancels: list[tuple[int, float]]) -> None:
    """Those who stay pass in order, as late as the bytes of those who passed before them ask for."""

    async def main() -> None:
        rate = 500
        pacer = pacer_of(rate)
        passed: list[tuple[float, int]] = []

        async def one(number: int, size: int) -> None:
            await pacer.take(size)
            passed.append((now(), number))

        async def cancel(task: asyncio.Task[None], after: float) -> None:
            await asyncio.sleep(after)
            task.cancel()

        begun = now()
        tasks = [asyncio.create_task(one(number, size)) for number, size in enumerate(sizes)]
        killers = [
            asyncio.create_task(cancel(tasks[number], after))
            for number, after in cancels
            if number < len(tasks)
        ]
        await asyncio.gather(*tasks, *killers, return_exceptions=True)
        numbers = [number for _, number in passed]
        assert numbers == sorted(numbers)
        assert all(task.cancelled() != (at in numbers) for at, task in enumerate(tasks))
        owed = 0.0
        for at, number in passed:
            assert at - begun <= owed / rate + max((after for _, after in cancels), default=0) + 0.2
            assert at - begun >= owed / rate - 0.15
            owed += sizes[number]
        assert pacer.statistics().waiting == 0

    run(main())


def test_bytes_granted_to_whoever_is_cancelled_are_given_back() -> None:
    """The cancellation comes between the grant and the turn of the task."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        begun = now()

        def rate() -> int:
            if tasks and now() > begun + 0.9:
                loop.call_soon(tasks[0].cancel)
            return 100

        pacer = Pacer(rate=rate, samples=11, sample_s=1.0)
        await pacer.take(100)
        tasks.append(asyncio.create_task(pacer.take(1_000_000)))
        behind = asyncio.create_task(pacer.take(1))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await behind
        assert now() - begun < 1.2
        assert pacer.opens_in() < 0.1

    run(main())


@pytest.mark.requirement("956-01", "956-04", "956-15")
def test_those_who_wait_feel_a_changed_quota_within_a_second() -> None:
    async def main() -> None:
        rate = [1]
        pacer = pacer_of(rate)
        await pacer.take(1_000)
        waits = asyncio.create_task(pacer.take(1))
        await asyncio.sleep(10)
        assert not waits.done()
        rate[0] = 1_000_000
        begun = now()
        await waits
        assert now() - begun <= 1.1

    run(main())


BURSTS = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.lists(st.tuples(st.integers(500, 3_000), st.floats(0.01, 60)), min_size=1, max_size=15),
    ),
    max_size=5,
)
"""(seconds after the one before, (bytes, when it gives up) of each) of those who come at once."""


@pytest.mark.requirement("956-16", "956-17")
@given(BURSTS, st.lists(st.tuples(st.floats(0, 40), st.integers(200, 2_000)), max_size=4))
def test_no_window_has_more_than_its_rates_allow_whoever_comes_goes_and_changes_them(
    bursts: list[tuple[float, list[tuple[int, float]]]], changes: list[tuple[float, int]]
) -> None:
    """Idle times lie between, so that what they save would show; those who wait feel a lower rate in time."""

    async def main() -> None:
        rates = [500]
        pacer = pacer_of(rates)
        passed: list[tuple[float, int]] = []
        begun = now()

        async def one(size: int) -> None:
            await pacer.take(size)
            passed.append((now(), size))

        def change(rate: int) -> None:
            rates[0] = rate
            pacer.opens_in()

        steps = [(begun, rates[0]), *sorted((begun + after, rate) for after, rate in changes)]
        for at, rate in steps[1:]:
            asyncio.get_running_loop().call_at(at, change, rate)
        tasks = []
        for pause, burst in bursts:
            await asyncio.sleep(pause)
            for size, ends_s in burst:
                tasks.append(asyncio.create_task(one(size)))
                asyncio.get_running_loop().call_later(ends_s, tasks[-1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)

        def allowed(start: float, end: float) -> float:
            ends = [at for at, _ in steps[1:]] + [end]
            return sum(
                rate * max(0.0, min(end, until) - max(start, at))
                for (at, rate), until in zip(steps, ends, strict=True)
            )

        greatest = max((size for _, size in passed), default=0)
        saved = 0.01 * 11 * max(rate for _, rate in steps)
        for start, _ in passed:
            sent = sum(size for at, size in passed if start <= at <= start + 11)
            assert sent <= allowed(start, start + 11) + greatest + saved + 1
        assert pacer.statistics().waiting == 0

    run(main())


@pytest.mark.requirement("956-13")
def test_reads_are_noted_afterwards_and_find_it_spent_until_they_are_paid() -> None:
    async def main() -> None:
        pacer = pacer_of(100)
        assert not pacer.is_spent()
        assert pacer.opens_in() == 0
        pacer.note(250)
        assert pacer.is_spent()
        pacer.note_throttled()
        assert pacer.opens_in() == pytest.approx(2.5, abs=0.15)
        await asyncio.sleep(pacer.opens_in())
        assert not pacer.is_spent()
        assert pacer.statistics().throttled_ms_max == pytest.approx(2500, abs=150)

    run(main())


def test_a_line_is_spent_though_nothing_is_owed_yet() -> None:
    async def main() -> None:
        pacer = pacer_of(100)
        await pacer.take(100)
        waits = asyncio.create_task(pacer.take(1))
        await asyncio.sleep(0)
        assert pacer.is_spent()
        assert pacer.statistics().waiting == 1
        await waits
        waits = asyncio.create_task(pacer.take(1))
        await waits
        assert not pacer.statistics().waiting

    run(main())


@pytest.mark.requirement("956-15")
def test_statistics_tell_the_rate_and_how_long_was_waited() -> None:
    async def main() -> None:
        pacer = pacer_of(1_000)
        for _ in range(5):
            await pacer.take(1_000)
        told = pacer.statistics()
        assert told.byte_rate == pytest.approx(500, rel=0.1)
        assert told.throttled_ms_max == pytest.approx(1_000, rel=0.15)
        assert told.throttled_ms_average == pytest.approx(1_000, rel=0.15)
        await asyncio.sleep(12)
        assert pacer.statistics().byte_rate == pacer.statistics().throttled_ms_max == 0

    run(main())


def test_a_pacer_leaves_no_timer_when_nobody_waits() -> None:
    async def main() -> None:
        pacer = pacer_of(1)
        await pacer.take(1_000)
        waits = asyncio.create_task(pacer.take(1))
        await asyncio.sleep(1)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert pacer._timer is None

    run(main())
