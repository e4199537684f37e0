"""Uploads beside clients, in virtual time: turns, rests, and none of either without clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.store.local_store import LocalStore
from remote.store.tempo import BUSY_PER_S, LOOK_EVERY_S, REST_S_MAX, RESTS, SLICE_BYTES, TURN_S_MAX, Tempo
from remote.store.upload import put_from
from storage.files import Buffer, DiskFile, DiskFiles
from tests.sim.loop import SimLoop

T = TypeVar("T")

LARGE = 8 << 20


def run(main: Coroutine[Any, Any, T]) -> T:
    return SimLoop().run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


class Clients:
    """Requests that are served evenly, so many a second."""

    def __init__(self, per_s: float = 200.0) -> None:
        self.per_s = per_s

    def __call__(self) -> int:
        return int(now() * self.per_s)


async def tempo_beside(clients: Clients, floor: float = 0.0) -> Tempo:
    tempo = Tempo()
    tempo.give_way(served=clients, floor=lambda: floor)
    tempo.is_busy()
    await asyncio.sleep(LOOK_EVERY_S)
    return tempo


async def rested(tempo: Tempo, size: int, took_s: float) -> float:
    begun = now()
    await tempo.rest(size, took_s)
    return now() - begun


@pytest.mark.parametrize("per_s", [0.0, BUSY_PER_S / 2])
def test_alone_nobody_rests_or_waits(per_s: float) -> None:
    async def main() -> None:
        tempo = await tempo_beside(Clients(per_s))
        async with tempo.turn(LARGE), tempo.turn(LARGE), asyncio.timeout(0.001):
            assert await rested(tempo, 1000, 5.0) < 0.001

    run(main())


def test_beside_clients_a_slice_is_followed_by_a_rest_of_some_times_its_length() -> None:
    async def main() -> None:
        tempo = await tempo_beside(Clients())
        assert await rested(tempo, 1000, 0.01) == pytest.approx(0.01 * RESTS, rel=0.1)
        assert await rested(tempo, 1000, 9.0) == pytest.approx(REST_S_MAX, rel=0.1)

    run(main())


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.01, 0.01), (0.004, 0.012), (0.02, 0.0), (0.5, 0.0)])
def test_a_rest_leaves_twice_the_speed_that_is_needed(took_s: float, rest_s: float) -> None:
    """A slice of 20,000 bytes has 20 ms where 500,000 a second are needed."""

    async def main() -> None:
        tempo = await tempo_beside(Clients(), floor=500_000.0)
        assert await rested(tempo, 20_000, took_s) == pytest.approx(rest_s, abs=0.002)

    run(main())


def test_rests_end_soon_after_the_last_client() -> None:
    async def main() -> None:
        clients = Clients()
        tempo = await tempo_beside(clients)
        assert tempo.is_busy()
        clients.per_s = 0.0
        await asyncio.sleep(LOOK_EVERY_S)
        assert not tempo.is_busy()
        clients.per_s = 200.0
        tempo.give_way(served=clients, floor=lambda: 0.0)
        await asyncio.sleep(LOOK_EVERY_S)
        assert tempo.is_busy()

    run(main())


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 3), st.floats(0.1, 8)), min_size=1, max_size=12))
def test_there_is_one_turn_at_a_time_whoever_is_cancelled(works: list[tuple[float, float, float]]) -> None:
    """(when it comes, how long it works, when it is cancelled) of each; the sum is below the longest wait."""

    async def main() -> None:
        tempo = await tempo_beside(Clients())
        at_work = 0

        async def one(comes_s: float, works_s: float) -> None:
            nonlocal at_work
            await asyncio.sleep(comes_s)
            async with tempo.turn(LARGE):
                at_work += 1
                try:
                    assert at_work == 1
                    await asyncio.sleep(works_s / 4)
                finally:
                    at_work -= 1

        tasks = [asyncio.create_task(one(comes_s, works_s)) for comes_s, works_s, _ in works]
        for task, (_, _, ends_s) in zip(tasks, works, strict=True):
            asyncio.get_running_loop().call_later(ends_s, task.cancel)
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert found is None or isinstance(found, asyncio.CancelledError)
        begun = now()
        async with tempo.turn(LARGE):
            assert now() - begun < 0.01

    run(main())


def test_a_turn_that_does_not_end_holds_nobody_for_ever() -> None:
    async def main() -> None:
        tempo = await tempo_beside(Clients())
        async with tempo.turn(LARGE):
            begun = now()
            async with tempo.turn(LARGE):
                assert now() - begun == pytest.approx(TURN_S_MAX, rel=0.1)
            waits = asyncio.create_task(_have(tempo))
            await asyncio.sleep(1.0)
            assert not waits.done()
        await waits

    run(main())


def test_a_small_part_takes_no_turn_and_a_large_one_does_not_wait_longer_than_it_may() -> None:
    async def main() -> None:
        tempo = await tempo_beside(Clients(), floor=LARGE / 2)
        async with tempo.turn(LARGE):
            begun = now()
            async with tempo.turn(SLICE_BYTES):
                assert now() - begun < 0.01
            async with tempo.turn(LARGE):
                assert now() - begun == pytest.approx(1.0, rel=0.1)

    run(main())


async def _have(tempo: Tempo) -> None:
    async with tempo.turn(LARGE):
        pass


class Busy(Tempo):
    """Clients are always served."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[int] = []

    def is_busy(self) -> bool:
        return True

    async def rest(self, size: int, took_s: float) -> None:
        self.rests.append(size)
        await asyncio.sleep(0)


class Recorded(DiskFile):
    calls: list[str]

    def pwrite(self, data: Buffer, offset: int) -> int:
        self.calls.append(f"write {len(data)} at {offset}")
        return super().pwrite(data, offset)

    def fsync(self) -> None:
        self.calls.append("sync")
        super().fsync()


class Recording(DiskFiles):
    """Tells what is written and synced."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        plain = super().open(path, create=create)
        file = Recorded(path, os.dup(plain.fileno()))
        plain.close()
        file.calls = self.calls
        return file


async def _here(call: Any) -> Any:
    return call()


MIB = 1 << 20


@pytest.mark.parametrize(("size", "pieces"), [(3 * MIB, [MIB] * 3), (2 * MIB + 1, [MIB, MIB, 1]), (5, [5])])
async def test_a_part_is_written_in_slices_and_synced_once(
    tmp_path: Path, size: int, pieces: list[int]
) -> None:
    files, tempo = Recording(), Busy()
    store = LocalStore(str(tmp_path / "store"), files=files, offload=_here, tempo=tempo)
    upload = await store.begin_upload("k")
    files.calls.clear()
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    tag = await store.put_part("k", upload, 1, data, start=0)
    assert [call for call in files.calls if call != "sync"] == [
        f"write {piece} at {sum(pieces[:at])}" for at, piece in enumerate(pieces)
    ]
    assert files.calls.count("sync") == 1 and files.calls[-1] == "sync"
    assert tempo.rests == pieces[:-1]
    await store.complete_upload("k", upload, [(1, tag)], size)
    assert await store.get("k") == data


async def test_beside_clients_one_part_is_under_way_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.store.tempo.SLICE_BYTES", 9)

    class Turns(Busy):
        at_work = most = 0

    tempo = Turns()
    store = LocalStore(str(tmp_path / "store"), files=DiskFiles(), offload=_here)

    async def read(start: int, end: int) -> bytes:
        tempo.at_work += 1
        tempo.most = max(tempo.most, tempo.at_work)
        await asyncio.sleep(0.001)
        tempo.at_work -= 1
        return b"x" * (end - start)

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(put_from(store, f"k{number}", 50, read, tempo=tempo, part_bytes=10))
    assert tempo.most == 1
    assert await store.get("k2") == b"x" * 50
