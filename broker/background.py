"""The tasks of one broker, for as long as it lives.

Owns: starting work in the broker's root TaskGroup and ending all of it at a stop. Does not own: the
TaskGroup, nor what the tasks do. Invariant: nothing runs outside of the TaskGroup, so a task that fails
ends the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from broker.ports import World


class Background:
    """`begin` comes before the first `spawn`."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it until it ends or the broker stops."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def adopt(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """End these too at a stop; a component started them in the same TaskGroup."""
        self._tasks.update(tasks)

    async def cancel(self) -> None:
        for task in list(self._tasks):
            # after its first step: a coroutine cancelled before it would never await what it was given
            asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def run_offloaded(
    world: World, job: Callable[[], None], done: Callable[[OSError | None], None]
) -> None:
    """Run a blocking job of the storage layer in another thread, then report its outcome on the loop."""
    try:
        await world.offload(job)
    except OSError as error:
        done(error)
    else:
        done(None)
