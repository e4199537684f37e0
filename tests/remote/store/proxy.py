"""An HTTP proxy in front of one store, which does to requests and answers what networks and stores do.

Owns: forwarding, one fault per request in the order they were asked for, and the list of what came by. Does
not own which faults a test wants. Invariant: a request is forwarded whole or not at all, and at most once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto

HEAD_END = b"\r\n\r\n"


class Line(Enum):
    """What happens to one request."""

    GOOD = auto()
    REQUEST_LOST = auto()
    REPLY_LOST = auto()
    REPLY_NEVER = auto()
    LATE = auto()
    BODY_CUT = auto()
    BYTE_FLIPPED = auto()
    RANGE_IGNORED = auto()
    RANGE_WRONG = auto()
    RANGE_SHORT = auto()
    SLOW = auto()
    TRICKLE = auto()
    """Few bytes a second, there and back."""
    CLOSED = auto()
    """After the answer, as a server does with a connection that was idle for too long."""


@dataclass(frozen=True)
class Say:
    """Answer this instead of asking the store; or, once it was asked, instead of what it said."""

    status: int
    code: str = ""
    after: bool = False
    headers: str = ""

    def encode(self) -> bytes:
        body = f"<Error><Code>{self.code}</Code></Error>".encode() if self.code else b"<html>no</html>"
        head = f"HTTP/1.1 {self.status} Said\r\nContent-Length: {len(body)}\r\n{self.headers}\r\n"
        return head.encode() + body


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    forwarded: bool


class Proxy:
    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.seen: list[Seen] = []
        self.plan: deque[Line | Say] = deque()
        """What happens to the next requests; good ones follow."""
        self.weather: Callable[[str, str], Line | Say] | None = None
        """What happens to the others, by method and path."""
        self.delay_s = 5.0
        """How much later a slow line forwards."""
        self.bytes_per_s = 10_000.0
        """What trickles."""
        self.hit = 0
        """How many requests something bad happened to."""
        self.holding = asyncio.Event()
        """A reply was held back."""
        self.delivers = asyncio.Event()
        """What is late arrives now."""
        self.late: list[asyncio.Task[bytes]] = []
        """The answers nobody waits for any more."""
        self._target_port = target_port
        self._held: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def will(self, *lines: Line | Say) -> None:
        self.plan.extend(lines)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False when the connection ends with this request."""
        head = await reader.readuntil(HEAD_END)
        body = await reader.readexactly(int(header(head, b"content-length") or 0))
        method, path, _ = head.decode().split(" ", 2)
        line = self._line(method, path)
        self.hit += line is not Line.GOOD
        if line is Line.SLOW:
            await asyncio.sleep(self.delay_s)
        if line is Line.TRICKLE:
            await asyncio.sleep(len(body) / self.bytes_per_s)
        forwarded = line not in (Line.REQUEST_LOST, Line.LATE) and not (
            isinstance(line, Say) and not line.after
        )
        self.seen.append(Seen(method, path, forwarded))
        answer = await self._forward(head, body) if forwarded else b""
        if line is Line.LATE:
            self.late.append(asyncio.create_task(self._deliver_late(head, body)))
            return False
        if line in (Line.REQUEST_LOST, Line.REPLY_LOST):
            return False
        if line is Line.REPLY_NEVER:
            self.holding.set()
            self._held.add(writer)
            await reader.read()
            self._held.discard(writer)
            return False
        if isinstance(line, Say):
            writer.write(line.encode())
        elif line is Line.TRICKLE:
            await self._trickle(answer, writer)
        else:
            writer.write(SPOIL.get(line, bytes)(answer))
        await writer.drain()
        return line is not Line.BODY_CUT and line is not Line.CLOSED

    def _line(self, method: str, path: str) -> Line | Say:
        if self.plan:
            return self.plan.popleft()
        return Line.GOOD if self.weather is None else self.weather(method, path)

    async def _trickle(self, answer: bytes, writer: asyncio.StreamWriter) -> None:
        """A tenth of a second's worth at a time, as long as the line is like that."""
        piece = max(1, int(self.bytes_per_s / 10))
        for at in range(0, len(answer), piece):
            writer.write(answer[at : at + piece])
            await writer.drain()
            if self.weather is not None:
                await asyncio.sleep(0.1)

    def clear_up(self) -> None:
        """End the weather, and every connection that was left without a reply."""
        self.weather = None
        for writer in self._held:
            writer.transport.abort()

    async def _deliver_late(self, head: bytes, body: bytes) -> bytes:
        await self.delivers.wait()
        return await self._forward(head, body)

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        """The whole answer, which ends with the connection because it is told to close."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            writer.write(head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n" + body)
            return (await reader.read()).replace(b"Connection: close\r\n", b"", 1)
        finally:
            writer.close()

    async def close(self) -> None:
        tasks = [*self._tasks, *self.late]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def cut(answer: bytes) -> bytes:
    head, body = answer.split(HEAD_END, 1)
    return head + HEAD_END + body[: len(body) // 2]


def flip(answer: bytes) -> bytes:
    head, body = answer.split(HEAD_END, 1)
    return head + HEAD_END + bytes([body[0] ^ 1]) + body[1:]


def ignore_range(answer: bytes) -> bytes:
    return answer.replace(b"206 Partial Content", b"200 OK", 1)


def shift_range(answer: bytes) -> bytes:
    return answer.replace(b"Content-Range: bytes 2-", b"Content-Range: bytes 3-", 1)


def shorten_range(answer: bytes) -> bytes:
    """Half of what was asked for, in an answer that fits together."""
    head, body = answer.split(HEAD_END, 1)
    half = len(body) // 2
    head = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % half, head)
    head = re.sub(
        rb"bytes (\d+)-\d+", lambda range_: b"bytes %s-%d" % (range_[1], int(range_[1]) + half - 1), head
    )
    return head + HEAD_END + body[:half]


SPOIL: dict[Line, Callable[[bytes], bytes]] = {
    Line.BODY_CUT: cut,
    Line.BYTE_FLIPPED: flip,
    Line.RANGE_IGNORED: ignore_range,
    Line.RANGE_WRONG: shift_range,
    Line.RANGE_SHORT: shorten_range,
}


@asynccontextmanager
async def proxy_to(port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
