"""Reads of a follower: bounded in memory, number and time, and a store that is away is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

import pytest

from protocol.checksum import Buffer
from remote.keys import Stream
from remote.store.object_store import NoSuchObject, StoreError
from remote.wal.combined_object import Place
from remote.wal.hydrator import ATTEMPT_S, AWAY_MAX_S, AWAY_S, Hydrator, NotRead
from remote.wal.stats import WalStats
from tests.sim.loop import SimLoop

PLACE = Place(Stream(1, 2, 0), 3)


class Storage:
    """Answers as it is told."""

    def __init__(self, answer: Callable[[], Awaitable[bytes]]) -> None:
        self.answer = answer
        self.asked = 0
        self.at_once = self.at_once_max = 0

    async def fetch(self, place: Place, start: int, end: int) -> Buffer:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            return await self.answer()
        finally:
            self.at_once -= 1


async def whole() -> bytes:
    await asyncio.sleep(0.01)
    return b"abc"


async def gone() -> bytes:
    raise NoSuchObject("k")


async def busy() -> bytes:
    raise StoreError("503")


async def denied() -> bytes:
    raise StoreError("403", permanent=True)


async def never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


def run(play: Callable[[SimLoop, Hydrator, Storage], Awaitable[None]], *, at_once: int = 8) -> None:
    loop = SimLoop()

    async def main() -> None:
        storage = Storage(whole)
        hydrator = Hydrator(
            storage,  # type: ignore[arg-type]
            at_once=at_once,
            stats=WalStats(),
            clock=loop.time,
            bytes_max=10_000,
        )
        await play(loop, hydrator, storage)

    loop.run(main())


def test_at_most_so_many_reads_are_under_way() -> None:
    async def play(loop: SimLoop, hydrator: Hydrator, storage: Storage) -> None:
        found = await asyncio.gather(*(hydrator.read(PLACE, 0, 3) for _ in range(9)))
        assert set(map(bytes, found)) == {b"abc"}
        assert (storage.asked, storage.at_once_max) == (9, 2)
        assert hydrator.stats.get_s.total == 9

    run(play, at_once=2)


@pytest.mark.parametrize(
    ("answer", "attempts", "at_most_s"), [(never, 2, 2 * ATTEMPT_S + 0.1), (busy, 2, 0.1), (denied, 1, 0.01)]
)
def test_a_read_ends_in_time_and_the_store_is_left_alone(
    answer: Callable[[], Awaitable[bytes]], attempts: int, at_most_s: float
) -> None:
    async def play(loop: SimLoop, hydrator: Hydrator, storage: Storage) -> None:
        storage.answer = answer
        told: list[float] = []
        hydrator.on_away.append(lambda: told.append(loop.time()))
        for pause_s in (AWAY_S, 1.0, 2.0, 4.0, AWAY_MAX_S, AWAY_MAX_S):
            begun, storage.asked = loop.time(), 0
            with pytest.raises(NotRead):
                await hydrator.read(PLACE, 0, 3)
            assert storage.asked == attempts
            assert loop.time() - begun <= at_most_s
            assert told.pop() == pytest.approx(loop.time())
            await asyncio.sleep(pause_s - 0.01)
            assert hydrator.objects_allowed() == 0
            await asyncio.sleep(0.02)
            assert hydrator.objects_allowed() == 1
        storage.answer = whole
        probe = asyncio.ensure_future(hydrator.read(PLACE, 0, 3))
        await asyncio.sleep(0)
        assert hydrator.objects_allowed() == 0, "one try at a time"
        await probe
        assert hydrator.objects_allowed() == inf

    run(play)


def test_one_object_that_is_gone_or_slow_says_nothing_of_the_store() -> None:
    async def play(loop: SimLoop, hydrator: Hydrator, storage: Storage) -> None:
        storage.answer = gone
        with pytest.raises(NotRead):
            await hydrator.read(PLACE, 0, 3)
        assert (storage.asked, hydrator.objects_allowed()) == (1, inf)
        storage.answer = never
        slow = asyncio.ensure_future(hydrator.read(PLACE, 0, 3))
        await asyncio.sleep(0.1)
        storage.answer = whole
        await hydrator.read(PLACE, 0, 3)
        storage.answer = never
        with pytest.raises(NotRead):
            await slow
        assert hydrator.objects_allowed() == inf

    run(play)


def test_an_object_that_ends_too_early_is_no_read() -> None:
    async def play(loop: SimLoop, hydrator: Hydrator, storage: Storage) -> None:
        with pytest.raises(NotRead, match="ends at 3"):
            await hydrator.read(PLACE, 0, 4)
        assert hydrator.objects_allowed() == inf

    run(play)


def test_memory_is_reserved_up_to_its_bound_and_room_is_told_at_half() -> None:
    async def play(loop: SimLoop, hydrator: Hydrator, storage: Storage) -> None:
        told: list[int] = []
        hydrator.on_room.append(lambda: told.append(hydrator.bytes_held))
        assert hydrator.reserve(4000)
        assert hydrator.reserve(2000)
        assert not hydrator.reserve(4000)
        assert not hydrator.has_room
        hydrator.release(4000)
        assert hydrator.has_room
        assert told == [hydrator.bytes_held]
        hydrator.release(2000)
        assert (hydrator.bytes_held, len(told)) == (0, 1)

    run(play)
