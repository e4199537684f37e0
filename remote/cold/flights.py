"""One load for all who want the same thing at the same time.

Owns: the loads under way by key, who waits for each, and how long one may take. Does not own: what is loaded,
where it is kept. Invariant: of one key one load runs at a time, which may be one of several keys; it ends
within its deadline, and all who wait hear how; who stops waiting stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
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
        self._limits: dict[K, asyncio.Timeout] = {}

    def __repr__(self) -> str:
        return f"<Flights {len(self._waiting)} loads, {sum(map(len, self._waiting.values()))} wait>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[K]:
        return iter(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    async def join(self, key: K, load: Callable[[], Awaitable[T]]) -> T:
        """Return what the load under way for `key` gives, or start `load` if there is none."""
        self.start(key, load)
        return await self.wait(key)

    async def wait(self, key: K) -> T:
        """Return what the load under way for `key` gives."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[key].append(future)
        return await future

    def start(self, key: K, load: Callable[[], Awaitable[T]]) -> None:
        """Start `load` unless one is under way for `key`; nobody needs to wait for it."""
        if key not in self._waiting:

            async def load_one() -> Sequence[T | Exception]:
                return (await load(),)

            self.start_all((key,), load_one)

    def start_all(self, keys: Sequence[K], load: Callable[[], Awaitable[Sequence[T | Exception]]]) -> None:
        """Start one load of several, none of which is under way. It returns what each gives, or why that one
        failed."""
        assert not any(key in self._waiting for key in keys), keys
        for key in keys:
            self._waiting[key] = []
        self._spawn(self._fly(keys, load))

    def give_up(self, keys: Iterable[K]) -> None:
        """End the loads of these that nobody waits for."""
        limits = {id(limit): limit for key in keys if (limit := self._limits.get(key)) is not None}
        for limit in limits.values():
            keys_of = [key for key, other in self._limits.items() if other is limit]
            is_awaited = any(not future.done() for key in keys_of for future in self._waiting[key])
            if not is_awaited and not limit.expired():  # one that ends already takes no other time
                limit.reschedule(asyncio.get_running_loop().time())

    async def _fly(self, keys: Sequence[K], load: Callable[[], Awaitable[Sequence[T | Exception]]]) -> None:
        results: Sequence[T | Exception]
        try:
            async with asyncio.timeout(self._deadline_s) as limit:
                self._limits.update(dict.fromkeys(keys, limit))
                results = await load()
        except TimeoutError:
            results = [StoreError(f"no answer within {self._deadline_s:g} s", fault=Fault.TIMEOUT)] * len(
                keys
            )
        except Exception as error:
            results = [error] * len(keys)
        except BaseException:
            for key in keys:
                for future in self._waiting.pop(key):
                    future.cancel()
            raise
        finally:
            for key in keys:
                self._limits.pop(key, None)
        for key, result in zip(keys, results, strict=True):
            self._settle(key, result)

    def _settle(self, key: K, result: T | Exception) -> None:
        for future in self._waiting.pop(key):
            if not future.done():
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
