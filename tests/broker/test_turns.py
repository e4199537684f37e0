"""Work in turns: fair, one slice per turn of the loop, and nothing of it left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from broker.turns import INLINE_S, SLICE_S, Turns
from protocol.work import Work, finish

STEP_S = 0.0001


class Clock:
    """Goes on with the work that is done, and counts the turns of the loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns_of_loop = 0
        self.worked: list[tuple[int, str]] = []
        """(turn of the loop, whose step) of every step."""

    def __call__(self) -> float:
        return self.now_s

    def work(self, name: str, steps: int) -> Work[str]:
        for _ in range(steps):
            self.now_s += STEP_S
            self.worked.append((self.turns_of_loop, name))
            yield
        return name

    async def count_turns(self) -> None:
        while True:
            self.turns_of_loop += 1
            await asyncio.sleep(0)


class Error(Exception):
    pass


def turns_of(clock: Clock, steps: int = 1024) -> Turns:
    return Turns(loop=asyncio.get_running_loop(), elapsed_s=clock, steps=lambda: steps)


def run_to_first_wait(turns: Turns, work: Work[str]) -> str | None:
    """Return the result if the caller was not suspended for it."""
    waiting = turns.run(work)
    try:
        waiting.send(None)
    except StopIteration as end:
        result: str = end.value
        return result
    waiting.close()
    return None


async def test_short_work_ends_without_suspending_its_caller() -> None:
    turns = turns_of(Clock())
    assert run_to_first_wait(turns, Clock().work("short", 3)) == "short"
    assert turns.in_work == 0


async def test_what_begins_in_one_turn_shares_one_inline_slice() -> None:
    clock = Clock()
    turns = turns_of(clock)
    answered = [run_to_first_wait(turns, clock.work("short", 2)) for _ in range(5)]
    assert answered == ["short", "short", None, None, None]
    assert clock.now_s <= INLINE_S + STEP_S
    await asyncio.sleep(0)
    assert run_to_first_wait(turns, clock.work("short", 2)) == "short", "the next turn has a slice of its own"


async def test_all_work_together_takes_one_slice_per_turn() -> None:
    clock = Clock()
    turns = turns_of(clock)
    counting = asyncio.create_task(clock.count_turns())
    names = [f"work-{n}" for n in range(7)]
    ended = await asyncio.gather(*(turns.run(clock.work(name, 50)) for name in names))
    counting.cancel()
    assert ended == names
    per_turn = [turn for turn, _ in clock.worked]
    most = max(per_turn.count(turn) for turn in set(per_turn))
    assert most <= (SLICE_S + INLINE_S) / STEP_S + 2


async def test_work_takes_turns() -> None:
    clock = Clock()
    turns = turns_of(clock)
    long = asyncio.create_task(turns.run(clock.work("long", 1000)))
    await asyncio.sleep(0)
    for name in ("first", "second"):
        assert await turns.run(clock.work(name, 25)) == name
    assert not long.done()
    done_of_long = [name for _, name in clock.worked].count("long")
    assert done_of_long <= 100, "the long work had its turns and no more"
    assert await long == "long"


async def test_every_other_slice_is_the_brokers_own_while_it_has_work() -> None:
    clock = Clock()
    turns = turns_of(clock)
    clients = [asyncio.create_task(turns.run(clock.work(f"client-{n}", 1000))) for n in range(20)]
    await asyncio.sleep(0)
    assert await turns.own.run(clock.work("own", 95)) == "own"
    names = [name for _, name in clock.worked]
    of_clients = len(names) - names.count("own")
    assert 80 <= of_clients <= 150, "it shared with them"
    assert repr(turns) == "<Turns 20 in work, 0 of the broker's own>"
    own = [asyncio.create_task(turns.own.run(clock.work("own", 1000))) for _ in range(20)]
    clock.worked.clear()
    assert await turns.run(clock.work("late", 5)) == "late"
    names = [name for _, name in clock.worked]
    assert names.count("own") <= len(names) / 2 + 20, "nor does it keep clients from their turns"
    for task in (*clients, *own):
        task.cancel()
    await asyncio.gather(*clients, *own, return_exceptions=True)
    await asyncio.sleep(0)
    assert turns.in_work == turns.own.in_work == 0


async def test_steps_bound_a_slice_where_the_clock_stands_still() -> None:
    clock = Clock()
    turns = Turns(loop=asyncio.get_running_loop(), elapsed_s=lambda: 0.0, steps=lambda: 10)
    counting = asyncio.create_task(clock.count_turns())
    assert await turns.run(clock.work("w", 200)) == "w"
    counting.cancel()
    per_turn = [turn for turn, _ in clock.worked]
    assert max(per_turn.count(turn) for turn in set(per_turn)) <= 20
    assert len(set(per_turn)) >= 10


@pytest.mark.parametrize("steps", [1, 100])
async def test_an_error_reaches_the_caller_and_holds_nothing(steps: int) -> None:
    class Kept:
        pass

    def failing() -> Work[str]:
        kept = Kept()
        refs.append(weakref.ref(kept))
        yield from clock.work("w", steps)
        raise Error("no")

    async def ask() -> None:
        with pytest.raises(Error, match="no"):
            await turns.run(failing())

    clock = Clock()
    turns = turns_of(clock)
    refs: list[weakref.ref[Kept]] = []
    gc.collect()
    gc.disable()
    try:
        await ask()
        await asyncio.sleep(0)
        assert refs[0]() is None, "the error's traceback outlives the one who waited"
    finally:
        gc.enable()


async def test_cancelling_the_caller_closes_the_work() -> None:
    def endless() -> Work[None]:
        try:
            while True:
                clock.now_s += STEP_S
                yield
        finally:
            closed_at.append(clock.now_s)

    clock = Clock()
    turns = turns_of(clock)
    closed_at: list[float] = []
    task = asyncio.create_task(turns.run(endless()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled_at = clock.now_s
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert closed_at == [cancelled_at], "nothing ran after the cancellation"
    assert turns.in_work == 0


async def test_an_idle_broker_is_called_no_more() -> None:
    clock = Clock()
    turns = turns_of(clock)
    await turns.run(clock.work("w", 100))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asyncio.get_running_loop()._ready  # type: ignore[attr-defined]


def test_finish_runs_to_the_end() -> None:
    assert finish(Clock().work("w", 1000)) == "w"
