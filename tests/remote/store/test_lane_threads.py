"""Calls in threads of their own: those that hang, and those that wait for a place."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from remote.store.lane_threads import LaneThreads


class Bytes:
    """What a call holds."""


async def test_a_call_returns_what_it_returns() -> None:
    threads = LaneThreads(2)
    assert await asyncio.gather(*(threads(lambda n=n: n) for n in range(9))) == list(range(9))  # type: ignore[misc]

    def fail() -> None:
        raise OSError("no")

    for _ in range(5):
        with pytest.raises(OSError, match="no"):
            await threads(fail)
    assert "with room" in repr(threads)
    threads.close()
    with pytest.raises(RuntimeError):
        await threads(lambda: 1)


async def test_who_gives_up_behind_calls_that_hang_leaves_nothing_behind() -> None:
    threads, comes_back = LaneThreads(2), threading.Event()
    try:
        hanging = [asyncio.create_task(threads(comes_back.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        held = [await gives_up(threads) for _ in range(20)]
        gc.collect()
        assert [each() for each in held] == [None] * 20
        for each in hanging:
            each.cancel()
        await asyncio.wait(hanging)
        assert "full" in repr(threads), "the threads still hang, whoever waits for them"
    finally:
        comes_back.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*(threads(lambda: 7) for _ in range(9))) == [7] * 9
    threads.close()


async def gives_up(threads: LaneThreads) -> weakref.ref[Bytes]:
    """Wait in vain for a place; return what tells whether the call is still held."""
    data = Bytes()
    call = asyncio.ensure_future(threads(lambda: data))
    await asyncio.wait({call}, timeout=0.001)
    assert not call.done()
    call.cancel()
    await asyncio.wait({call})
    return weakref.ref(data)
