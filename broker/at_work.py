"""What the loop is at: whose request the code works on that runs now.

Owns: that note, and who may read it. Does not own: taking it (dispatch, turns), what is told of it
(loop_monitor). Invariant: the loop's thread alone takes notes, of numbers and text; another thread reads
them and nothing else of a request, so that it never looks at, keeps or frees what the loop works with.

A handler that waits goes on as a task, and may be resumed between any others: what a task works on is noted
with the task.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

from protocol.apis import KNOWN

Request: TypeAlias = tuple[int, str, int]
"""The API, and the host and port of the client."""

_current_task: Final = asyncio.current_task


class AtWork:
    __slots__ = ("_loop", "_tasks", "request")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """`loop` is what other threads ask about."""
        self.request: Request | None = None
        """What the code works on that runs now and is no task's."""
        self._loop = loop
        self._tasks: dict[asyncio.Task[object], Request] = {}

    def __repr__(self) -> str:
        return f"<AtWork {self.name()}>"

    def begin_task(self, request: Request) -> None:
        """Note what the running task works on, until `end_task`."""
        task = _current_task(self._loop)
        if task is not None:
            self._tasks[task] = request

    def end_task(self) -> None:
        task = _current_task(self._loop)
        if task is not None:
            self._tasks.pop(task, None)

    def in_hand(self) -> Request | None:
        """Return the request that is worked on now."""
        task = _current_task(self._loop)
        return self.request if task is None else self._tasks.get(task)

    def name(self) -> str | None:
        """Name the request that is worked on now, if there is one; for any thread."""
        request = self.in_hand()
        if request is None:
            return None
        api_key, host, port = request
        row = KNOWN.get(api_key)
        return f"{f'API {api_key}' if row is None else row.name} of {host}:{port}"
