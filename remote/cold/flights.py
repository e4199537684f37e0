"""One load for all who want the same thing at the same time.

Owns: the loads under way by key, who waits for each, and how long one may take. Does not own: what is loaded,
where it is kept. Invariant: of one key one load runs at a time; it ends within its deadline, and all who wait
hear how; who stops waiting stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeAlias, TypeVar

from remote.store.object_store import Fault, StoreError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]


class Flights(Generic[K, T]):
    def __init__(self, spawn: Spawn, *, deadline_s: float) -> None:
        self._spawn = spawn
        self._deadline_s = deadline_s
        self._waiting: dict[K, list[asyncio.Future[T]]] = {}

    def __repr__(self) -> str:
        return f"<Flights {len(self._waiting)} loads, {sum(map(len, self._waiting.values()))} wait>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    async def join(self, key: K, load: Callable[[], Awaitable[T]]) -> T:
        """Return what the load under way for `key` gives, or start `load` if there is none."""
        self.start(key, load)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[key].append(future)
        return await future

    def start(self, key: K, load: Callable[[], Awaitable[T]]) -> None:
        """Start `load` unless one is under way for `key`; nobody needs to wait for it."""
        if key not in self._waiting:
            self._waiting[key] = []
            self._spawn(self._fly(key, load))

    async def _fly(self, key: K, load: Callable[[], Awaitable[T]]) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                result = await load()
        except TimeoutError:
            self._fail(key, StoreError(f"no answer within {self._deadline_s:g} s", fault=Fault.TIMEOUT))
        except Exception as error:
            self._fail(key, error)
        except BaseException:
            for future in self._waiting.pop(key):
                future.cancel()
            raise
        else:
            for future in self._waiting.pop(key):
                if not future.done():
                    future.set_result(result)

    def _fail(self, key: K, error: Exception) -> None:
        for future in self._waiting.pop(key):
            if not future.done():
                future.set_exception(error)
