"""The admin port: metrics for Prometheus, and whether the broker lives and may be used.

Owns: three read-only pages. Does not own: the numbers (metrics). Invariant: nothing here is imported unless
an admin port is configured, nothing here changes the broker, and no client of these pages delays its stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import Metric

STOP_WITHIN_S = 1.0


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class AdminHttp:
    """`/metrics`, `/healthz` (the loop turns) and `/readyz` (clients may connect)."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], *, is_ready: Callable[[], bool]) -> None:
        self._collect = collect
        self._is_ready = is_ready
        self._runner: web.AppRunner | None = None
        self.host = ""
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=STOP_WITHIN_S
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.host, self.port = self._runner.addresses[0][:2]

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        text = bytearray()
        family = ""
        for piece in self._collect():
            lines = generate_latest(_One(piece))
            # a family is headed once: two lines, its help and its type
            text += lines.split(b"\n", 2)[2] if piece.name == family else lines
            family = piece.name
            await asyncio.sleep(0)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")
