"""The admin port: metrics for Prometheus, and whether the broker lives and may be used.

Owns: three read-only pages, and what their visitors may take. Does not own: the numbers (metrics). Invariant:
nothing here is imported unless an admin port is configured, nothing here changes the broker, and no client of
these pages delays its stop.

A connection asks once: what follows its request is not read, and it is closed after the answer. There are
`VISITS_MAX` of them at most; one more costs the address that has most its oldest. All who want metrics while
these are collected get the same text, which is collected a piece for each turn of the loop, and seldom enough
to take a fifth of the loop's time at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from broker.net.frames import address_of

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger(__name__)

VISITS_MAX: Final = 32
HEAD_WITHIN_S: Final = 10.0
ANSWER_WITHIN_S: Final = 30.0
"""From the request to the last byte that the visitor takes."""
_HEAD_BYTES: Final = 8 << 10
_WRITE_BYTES: Final = 64 << 10
_REST: Final = 4
"""A scrape that took the loop for a time is followed by a rest so many times as long, or `_REST_S_MAX`."""
_REST_S_MAX: Final = 2.0
_TEXT: Final = "text/plain; charset=utf-8"


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class AdminHttp:
    """`/metrics`, `/healthz` (the loop turns) and `/readyz` (clients may connect)."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], *, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._scrapes = _Scrapes(collect)
        self._server: asyncio.Server | None = None
        self._visits: dict[_Visit, None] = {}
        self.host = ""
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Visit(self, loop), host, port)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._scrapes.stop()
            for visit in list(self._visits):
                visit.abort()

    def admit(self, visit: _Visit) -> None:
        self._visits[visit] = None
        if len(self._visits) > VISITS_MAX:
            ((most, _),) = Counter(each.address for each in self._visits).most_common(1)
            oldest = next(each for each in self._visits if each.address == most)
            self.forget(oldest)
            oldest.abort()

    def forget(self, visit: _Visit) -> None:
        self._visits.pop(visit, None)
        self._scrapes.forget(visit)

    def answer(self, visit: _Visit, path: str) -> None:
        match path:
            case "/metrics":
                self._scrapes.want(visit)
            case "/healthz":
                visit.answer(HTTPStatus.OK, b"ok\n")
            case "/readyz" if self._is_ready():
                visit.answer(HTTPStatus.OK, b"ready\n")
            case "/readyz":
                visit.answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n")
            case _:
                visit.answer(HTTPStatus.NOT_FOUND, b"/metrics, /healthz and /readyz are here\n")


class _Scrapes:
    """One collection of all metrics at a time, for all who want them."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._wanted: dict[_Visit, None] = {}
        self._pieces: Iterator[Metric] | None = None
        self._next: asyncio.Handle | None = None
        """The next step, or the next collection after a rest."""
        self._text = bytearray()
        self._family = ""
        self._took_s = 0.0
        self._rests_until_s = 0.0

    def want(self, visit: _Visit) -> None:
        self._wanted[visit] = None
        if self._next is None:
            loop = asyncio.get_running_loop()
            # in its place in time even if that has passed
            self._next = loop.call_at(max(self._rests_until_s, loop.time()), self._step)

    def forget(self, visit: _Visit) -> None:
        self._wanted.pop(visit, None)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _step(self) -> None:
        """Collect one piece; with the last one answer all who wait."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        status = HTTPStatus.OK
        try:
            if self._pieces is None:
                self._pieces = iter(self._collect())
            piece = next(self._pieces, None)
            if piece is not None:
                lines = generate_latest(_One(piece))
                # a family is headed once: two lines, its help and its type
                self._text += lines.split(b"\n", 2)[2] if piece.name == self._family else lines
                self._family = piece.name
                self._took_s += loop.time() - began_s
                self._next = loop.call_soon(self._step)
                return
        except Exception:
            logger.exception("metrics could not be collected")
            status, self._text = HTTPStatus.INTERNAL_SERVER_ERROR, bytearray(b"see the log of the broker\n")
        body, wanted = bytes(self._text), self._wanted
        self._rests_until_s = loop.time() + min(self._took_s * _REST, _REST_S_MAX)
        self._text, self._wanted, self._pieces, self._next = bytearray(), {}, None, None
        self._family, self._took_s = "", 0.0
        for visit in wanted:
            visit.answer(status, body, CONTENT_TYPE_LATEST if status is HTTPStatus.OK else _TEXT)


class _Visit(asyncio.Protocol):
    """One connection: a request, its answer, the end."""

    def __init__(self, admin: AdminHttp, loop: asyncio.AbstractEventLoop) -> None:
        self.address = ""
        self._admin = admin
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._is_asked = False
        self._is_answered = False
        self._has_body = True
        self._left = memoryview(b"")
        """What is still to be written."""
        self._is_writable = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        self.address = address_of(str(peer[0])) if peer else ""
        self._deadline = self._loop.call_later(HEAD_WITHIN_S, self.abort)
        self._admin.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        self._left = memoryview(b"")
        self._admin.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._is_asked or self._transport is None:
            return
        self._head += data
        line, end, rest = bytes(self._head[:_HEAD_BYTES]).partition(b"\n")
        request = _request_of(line) if end else None
        if end and request is None:
            self._ask()
            logger.info("%s sent no HTTP request: %.80r", self.address, line)
            self.answer(HTTPStatus.BAD_REQUEST, b"this is no HTTP request\n")
        elif request is not None and (
            rest.startswith((b"\r\n", b"\n")) or b"\n\r\n" in rest or b"\n\n" in rest
        ):
            method, path = request
            self._ask()
            self._has_body = method != "HEAD"
            if method in ("GET", "HEAD"):
                self._admin.answer(self, path)
            else:
                self.answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD are allowed\n")
        elif len(self._head) >= _HEAD_BYTES:
            self._ask()
            self.answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too long\n")

    def eof_received(self) -> bool:
        """Whoever has said all it has to say still gets its answer."""
        return self._is_asked

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._write()

    def answer(self, status: HTTPStatus, body: bytes, kind: str = _TEXT) -> None:
        if self._transport is None:
            return
        allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\n{allow}Connection: close\r\n\r\n"
        )
        self._is_answered = True
        self._transport.write(head.encode())
        self._left = memoryview(body if self._has_body else b"")
        self._write()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _ask(self) -> None:
        """The request is here: read nothing that follows it."""
        assert self._transport is not None
        assert self._deadline is not None
        self._is_asked = True
        self._head.clear()
        self._transport.pause_reading()
        self._deadline.cancel()
        self._deadline = self._loop.call_later(ANSWER_WITHIN_S, self.abort)

    def _write(self) -> None:
        """Write as fast as the visitor takes it: what it does not take is in memory once for all visitors."""
        if self._transport is None or not self._is_answered:
            return
        while self._left and self._is_writable:
            part, self._left = self._left[:_WRITE_BYTES], self._left[_WRITE_BYTES:]
            self._transport.write(part)
        if not self._left:
            self._transport.close()


def _request_of(line: bytes) -> tuple[str, str] | None:
    """Return method and path of a request line, if it is one."""
    words = line.rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[0].isalpha() or not words[2].startswith(b"HTTP/1."):
        return None
    target = words[1].decode("latin-1")
    if not target.startswith("/"):
        return None
    return words[0].decode(), target.partition("?")[0]
