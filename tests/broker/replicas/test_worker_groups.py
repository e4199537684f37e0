"""Turns: their order, how many at once, what is put off, and that none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.replicas.worker_groups import WorkerGroup
from tests.sim.loop import SimLoop


class Turns:
    """A group whose turns last until they are let go."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.begun: list[str] = []
        self.under_way: dict[str, asyncio.Future[None]] = {}
        self.most = 0
        self.tasks: asyncio.TaskGroup
        self.group: WorkerGroup[str] = WorkerGroup(
            "test", size=lambda: self.size, turn=self._turn, spawn=self._spawn
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.create_task(work)

    async def _turn(self, key: str) -> None:
        assert key not in self.under_way
        self.begun.append(key)
        done = self.under_way[key] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.under_way))
        try:
            await done
        finally:
            del self.under_way[key]

    def end(self, key: str) -> None:
        if not self.under_way[key].done():
            self.under_way[key].set_result(None)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def end_all(self) -> None:
        while self.under_way:
            for key in list(self.under_way):
                self.end(key)
            await self.settle()


@asynccontextmanager
async def turns(size: int = 2) -> AsyncIterator[Turns]:
    made = Turns(size)
    async with asyncio.TaskGroup() as made.tasks:
        yield made
        await made.settle()
        await made.end_all()


async def test_turns_are_given_in_order_and_as_many_at_once_as_there_are_workers() -> None:
    async with turns(2) as made:
        for key in "abcd":
            made.group.add(key)
        await made.settle()
        assert made.begun == ["a", "b"]
        assert made.group.waiting == 2
        made.end("b")
        await made.settle()
        assert made.begun == ["a", "b", "c"]
    assert made.begun == ["a", "b", "c", "d"]
    assert made.most == 2


async def test_what_comes_during_a_turn_gives_one_more_after_those_that_wait() -> None:
    async with turns(1) as made:
        made.group.add("a")
        await made.settle()
        made.group.add("a")
        made.group.add("a")
        made.group.add("b")
        made.end("a")
        await made.settle()
    assert made.begun == ["a", "b", "a"]


async def test_a_partition_that_is_always_busy_keeps_nobody_else_waiting() -> None:
    async with turns(1) as made:
        made.group.add("busy")
        made.group.add("other")
        await made.settle()
        made.group.add("busy")
        made.end("busy")
        await made.settle()
        assert made.begun == ["busy", "other"]


async def test_the_number_of_workers_may_change() -> None:
    async with turns(1) as made:
        for key in "abcdef":
            made.group.add(key)
        await made.settle()
        made.size = 3
        made.group.add("g")
        made.group.add("h")
        await made.settle()
        assert len(made.under_way) == 3
        made.size = 1
        for key in list(made.under_way):
            made.end(key)
        await made.settle()
        assert len(made.under_way) == 1
    assert sorted(made.begun) == list("abcdefgh")


async def test_what_is_discarded_has_no_turn() -> None:
    async with turns(1) as made:
        made.group.add("a")
        await made.settle()
        made.group.add("b")
        made.group.add("a")
        made.group.add_at("c", 0)
        for key in "abc":
            made.group.discard(key)
        assert made.group.due(1) is None
        made.end("a")
        await made.settle()
    assert made.begun == ["a"]


async def test_turns_for_later_are_due_in_the_order_of_their_times() -> None:
    async with turns(3) as made:
        group = made.group
        group.add_at("late", 10)
        group.add_at("soon", 5)
        group.add_at("late", 20)
        group.add_at("soon", 7)
        assert group.due(4) == 5
        assert group.due(6) == 10
        await made.settle()
        assert made.begun == ["soon"]
        group.add("late")
        assert group.due(15) is None
        await made.settle()
        assert made.begun == ["soon", "late"]


async def test_an_earlier_time_replaces_a_later_one() -> None:
    async with turns(1) as made:
        made.group.add_at("a", 10)
        made.group.add_at("a", 3)
        assert made.group.due(0) == 3
        assert made.group.due(3) is None
        await made.settle()
        made.end("a")
        await made.settle()
        assert made.group.due(11) is None
    assert made.begun == ["a"]


async def test_a_turn_that_is_cancelled_ends_its_worker_alone() -> None:
    async with turns(2) as made:
        made.group.add("a")
        await made.settle()
        made.under_way["a"].cancel()
        await made.settle()
        made.group.add("a")
        await made.settle()
        assert made.begun == ["a", "a"]


Step = tuple[str, str]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "later", "discard", "end", "turn"]), st.sampled_from("abcd"))
    ),
    size=st.integers(1, 3),
)
def test_every_wish_is_followed_by_a_turn(steps: list[Step], size: int) -> None:
    async def play() -> None:
        async with turns(size) as made:
            owed: set[str] = set()
            for what, key in steps:
                seen = len(made.begun)
                match what:
                    case "add":
                        made.group.add(key)
                        owed.add(key)
                    case "later":
                        made.group.add_at(key, 1)
                        owed.add(key)
                    case "discard":
                        made.group.discard(key)
                        owed.discard(key)
                    case "end" if key in made.under_way:
                        made.end(key)
                    case _:
                        await made.settle()
                owed -= set(made.begun[seen:])
                assert len(made.under_way) <= size
            seen = len(made.begun)
            made.group.due(2)
            await made.settle()
            await made.end_all()
            assert owed <= set(made.begun[seen:])

    SimLoop().run(play())
