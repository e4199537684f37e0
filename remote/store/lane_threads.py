"""Threads of one lane's own, for calls that a disk or a network file system may hold for ever.

Owns: how many calls are in threads, and where the others wait. Does not own: what is called, how long it is
waited for (resilient). Invariant: no call waits behind one that hangs in a thread: it waits for a place, and
who gives up waiting takes the call and its bytes along. A thread that hangs cannot be ended; it keeps its
place until it comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

LANE_THREADS: Final = 12
"""Puts and reads of the WAL tier that a local store has under way at once."""


class LaneThreads:
    """Does one call after the other in each thread, if called with it, and returns what it returns."""

    def __init__(self, count: int = LANE_THREADS) -> None:
        self._places = asyncio.Semaphore(count)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lane")

    def __repr__(self) -> str:
        return f"<LaneThreads {'full' if self._places.locked() else 'with room'}>"

    async def __call__(self, call: Callable[[], T]) -> T:
        await self._places.acquire()
        try:
            doing = self._threads.submit(call)
        except BaseException:
            self._places.release()
            raise
        try:
            return await asyncio.wrap_future(doing)
        finally:
            if doing.done():
                self._places.release()
            else:
                loop = asyncio.get_running_loop()
                doing.add_done_callback(lambda done: self._came_back(loop, done))

    def close(self) -> None:
        """Take no more calls; those in threads go on."""
        self._threads.shutdown(wait=False)

    def _came_back(self, loop: asyncio.AbstractEventLoop, done: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop may be closed by then
            loop.call_soon_threadsafe(self._places.release)
