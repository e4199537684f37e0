"""An S3 that has bad days: a proxy before a real one, in a thread of its own, which treats all alike.

Owns: when bad weather begins and ends, what it does to the requests it is meant for, how many it hit. Does
not own the proxy's faults (tests.remote.store.proxy). Invariant: outside bad weather all is forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Self
from urllib.parse import unquote

from tests.compat.peers import until
from tests.remote.store.proxy import Line, Proxy, Say, proxy_to

Weather = Callable[[str, str], Line | Say]
"""What becomes of a request, by its method and path."""


def refuses(method: str, path: str) -> Line | Say:
    return Say(503, "SlowDown")


def hangs(method: str, path: str) -> Line | Say:
    return Line.REPLY_NEVER


def is_slow(method: str, path: str) -> Line | Say:
    return Line.SLOW


def trickles(method: str, path: str) -> Line | Say:
    return Line.TRICKLE


def loses_replies(method: str, path: str) -> Line | Say:
    return Line.REPLY_LOST


def cuts_bodies(method: str, path: str) -> Line | Say:
    return Line.BODY_CUT if method == "GET" else Line.GOOD


class InTurn:
    """Each weather until it has hit so many requests, then the next; the last goes on."""

    def __init__(self, *turns: tuple[Weather, int]) -> None:
        self.hits = sum(hits for _, hits in turns)
        """How many they hit together before the last has done its part."""
        self._turns = [kind for kind, hits in turns for _ in range(hits)]

    @property
    def is_last(self) -> bool:
        return len(self._turns) == 1

    def __call__(self, method: str, path: str) -> Line | Say:
        line = self._turns[0](method, path)
        if line is not Line.GOOD and len(self._turns) > 1:
            del self._turns[0]
        return line


class StormyStore:
    def __init__(self, port: int, *, delay_s: float) -> None:
        self.port = 0
        self._target = port
        self._delay_s = delay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proxy: Proxy | None = None
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="stormy store")

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._proxy is not None, "the proxy")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with proxy_to(self._target) as proxy:
            proxy.delay_s = self._delay_s
            self.port = proxy.port
            self._proxy = proxy
            await self._end.wait()

    @property
    def hit(self) -> int:
        """How many requests were not treated as they should be."""
        assert self._proxy is not None
        return self._proxy.hit

    @property
    def begun(self) -> set[str]:
        """The keys of the tier that uploads in parts were asked for, as far as the store heard of it."""
        assert self._proxy is not None
        begins = (seen.path for seen in self._proxy.seen if seen.forwarded and "?uploads" in seen.path)
        paths = (unquote(path.partition("?")[0]) for path in begins)
        return {path[path.index("/tier/") + 1 :] for path in paths if "/tier/" in path}

    @contextlib.contextmanager
    def weather(self, kind: Weather, *, only: str = "") -> Iterator[None]:
        """Bad weather for the keys with that in their path. Whoever hangs at its end is disconnected."""
        proxy, loop = self._proxy, self._loop
        assert proxy is not None
        assert loop is not None

        def choose(method: str, path: str) -> Line | Say:
            return kind(method, path) if only in path else Line.GOOD

        proxy.weather = choose
        try:
            yield
        finally:
            loop.call_soon_threadsafe(proxy.clear_up)
            until(lambda: proxy.weather is None, "good weather")
