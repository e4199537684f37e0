"""One load for all who want the same: joining, leaving, failing, and what takes too long."""

from __future__ import annotations

import asyncio

import pytest

from remote.cold.flights import Flights
from remote.store.object_store import StoreError
from tests.remote.cold.read_driver import Tasks


class Loads:
    def __init__(self) -> None:
        self.count = 0
        self.gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> int:
        self.count += 1
        return await asyncio.shield(self.gate)


async def test_all_who_want_the_same_share_one_load() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=5)
    waiting = [asyncio.ensure_future(flights.join("a", load)) for _ in range(100)]
    await asyncio.sleep(0)
    load.gate.set_result(7)
    assert await asyncio.gather(*waiting) == [7] * 100
    assert load.count == 1
    assert "a" not in flights


async def test_who_stops_waiting_stops_nothing() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=5)
    leaves, stays = (asyncio.ensure_future(flights.join("a", load)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    load.gate.set_result(7)
    assert await stays == 7
    assert leaves.cancelled() or await asyncio.wait((leaves,))


async def test_a_failure_reaches_all_and_the_next_one_tries_again() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=5)
    waiting = [asyncio.ensure_future(flights.join("a", load)) for _ in range(3)]
    await asyncio.sleep(0)
    load.gate.set_exception(StoreError("down"))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StoreError] * 3
    again = Loads()
    again.gate.set_result(8)
    assert await flights.join("a", again) == 8


async def test_a_load_that_hangs_ends_as_a_store_that_does_not_answer() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=0.01)
    with pytest.raises(StoreError, match="no answer"):
        await flights.join("a", load)
    assert not flights


async def test_a_load_that_is_ended_with_the_broker_ends_those_who_wait() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=5)
    waiting = asyncio.ensure_future(flights.join("a", load))
    await asyncio.sleep(0.001)
    assert load.count
    for task in spawn.tasks:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_nobody_needs_to_wait() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=5)
    flights.start("a", load)
    flights.start("a", load)
    load.gate.set_exception(StoreError("down"))
    await spawn.finish()
    assert load.count == 1


async def test_a_load_that_is_on_its_way_to_end_is_given_up_again() -> None:
    spawn = Tasks()
    flights: Flights[str, int] = Flights(spawn, deadline_s=5)

    async def load() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(5):  # as a request that is cancelled beneath it takes some turns
                await asyncio.sleep(0)
        return 1

    flights.start("a", load)
    await asyncio.sleep(0)
    for _ in range(4):
        flights.give_up(["a"])
        await asyncio.sleep(0)
    await spawn.finish()
    assert "a" not in flights


async def test_what_only_those_waited_for_who_left_is_given_up() -> None:
    spawn, load = Tasks(), Loads()
    flights: Flights[str, int] = Flights(spawn, deadline_s=60)
    leaves = asyncio.ensure_future(flights.join("a", load))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait((leaves,))
    flights.give_up(["a"])
    async with asyncio.timeout(1):
        await spawn.finish()
    assert "a" not in flights
