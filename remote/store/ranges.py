"""Ranges of objects over HTTP/1.1, received into the memory in which they stay, and puts in one piece.

Owns: kept connections for GET requests of ranges and for puts, the heads and bodies of their answers, how
much is received in one turn of the loop, how long a silent store is waited for. Does not own what is asked
and what an answer means (s3_store), nor any other request, which goes by aiohttp. From MinIO on the same
machine a GB read this way in ranges of 1 to 8 MiB costs 0.25 s of CPU; by aiohttp, which hands on what it
received in small pieces that are joined in the end, it costs 0.5 s. A put of 300 KB costs 0.55 ms here and
1.1 by aiohttp, one of 2 MB 0.95 and 1.9.

Invariant: a connection carries one request at a time, and is kept only after the whole of a 206 that said
its length, or after a 200 that says so of a put; an asker that stops waiting, and whatever is not understood,
closes it. A body is given whole or not at all; no request is ever sent a second time.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

from protocol.checksum import Buffer

HEAD_BYTES_MAX: Final = 16 * 1024
REFUSAL_BYTES_MAX: Final = 64 * 1024
"""What is read of an answer that brings no range."""
RECEIVE_BYTES: Final = 256 * 1024
TURN_BYTES: Final = 1 << 20
"""What all connections together receive in one turn of the loop, and one `RECEIVE_BYTES` more each: about
half a millisecond."""

_STATUS: Final = re.compile(r"HTTP/1\.[01] (\d{3})(?: |$)", re.ASCII)
_SWITCHING: Final = 101
_OK: Final = 200
_PARTIAL: Final = 206


class CannotConnect(ConnectionError):
    """There is no connection to be had; the message says why."""


class EndedEarly(ConnectionError):
    """The connection was closed in the middle of a body."""


class NotUnderstood(ConnectionError):
    """What came is no answer in HTTP/1.1."""


class RangeAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    pieces: list[bytearray]
    """The body of a 206."""
    body: bytes
    """The body of anything else, as far as it was read."""


class Turn:
    """What all connections may receive before the loop does other things."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received = 0
        self._is_counting = False
        self._paused: list[Callable[[], None]] = []

    def take(self, size: int) -> bool:
        """Count what was received; return whether more may be in this turn."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._next)
        self._received += size
        return self._received < TURN_BYTES

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in the next turn."""
        self._paused.append(go_on)

    def _next(self) -> None:
        self._is_counting, self._received = False, 0
        paused, self._paused = self._paused, []
        for go_on in paused:
            go_on()


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Turn) -> None:
        self._loop = loop
        self._turn = turn
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_BYTES_MAX)
        self._filled = 0
        """Bytes of the head, and what came behind it."""
        self._answer: asyncio.Future[RangeAnswer] | None = None
        self._piece_bytes = self._size_max = 0
        self._is_put = False
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytearray] = []
        self._into: memoryview | None = None
        """The piece that is being filled."""
        self._at = 0
        self._left = 0
        """Bytes of the body behind the piece that is being filled."""
        self._rest: bytearray | None = None
        """The body of an answer without a range, so far."""
        self._heard_s = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.is_open = True

    def __repr__(self) -> str:
        state = "idle" if self._answer is None else "asked"
        return f"<range connection {state if self.is_open else 'closed'}>"

    # --- asking ---

    async def ask(
        self, request: bytes, body: Buffer | None, *, piece_bytes: int, size_max: int, silence_s: float
    ) -> RangeAnswer:
        """Send one request, which is a put if it has a body, and return its answer; the connection is closed
        if it cannot be used again."""
        assert self._answer is None and self._transport is not None, self
        if not self.is_open:
            raise ConnectionError("the connection is closed")
        self._piece_bytes, self._size_max, self._is_put = piece_bytes, size_max, body is not None
        self._filled, self._rest, self._pieces = 0, None, []
        self._heard_s = self._loop.time()
        self._watch = self._loop.call_later(silence_s, self._look, silence_s)
        answer: asyncio.Future[RangeAnswer] = self._loop.create_future()
        self._answer = answer
        try:
            self._transport.write(request)
            if body:
                self._transport.write(body)
            return await answer
        finally:
            self._watch.cancel()
            self._answer, self._into, self._pieces = None, None, []
            if not answer.done() or answer.cancelled() or answer.exception() is not None:
                self.close()

    def keep(self, idle_s: float) -> None:
        """Close it when nothing is asked for so long."""
        self._idle = self._loop.call_later(idle_s, self.close)

    def take(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def close(self) -> None:
        self.take()
        if self.is_open:
            self.is_open = False
            if self._transport is not None:
                self._transport.abort()

    def _look(self, silence_s: float) -> None:
        quiet_s = self._loop.time() - self._heard_s
        if quiet_s >= silence_s:
            self._fail(TimeoutError(f"the store said nothing for {silence_s:g} s"))
        else:
            self._watch = self._loop.call_later(silence_s - quiet_s, self._look, silence_s)

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.take()
        is_awaited = self._answer is not None and not self._answer.done()
        if is_awaited and self._rest is not None and error is None:
            self._finish_refusal()  # a body without a length ends with its connection
        is_in_body = self._into is not None or self._rest is not None
        ended = EndedEarly() if is_in_body else ConnectionError("the store closed the connection")
        self._fail(error or ended)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._into is not None:
            return self._into[self._at : self._at + RECEIVE_BYTES]
        return memoryview(self._head)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nothing was asked, or nobody waits any more
            return
        self._heard_s = self._loop.time()
        try:
            if self._into is not None:
                self._received(count)
            elif self._rest is not None:
                self._refused(bytes(self._head[:count]))
            else:
                self._filled += count
                self._read_head()
        except ValueError as error:
            self._fail(NotUnderstood(str(error)))

    # --- the answer ---

    def _read_head(self) -> None:
        while True:
            end = self._head.find(b"\r\n\r\n", 0, self._filled)
            if end < 0:
                if self._filled == len(self._head):
                    raise ValueError("the head of the answer is too long")
                return
            status, headers = _decode_head(bytes(self._head[:end]))
            behind = bytes(self._head[end + 4 : self._filled])
            if not 100 <= status < 200:
                break
            if status == _SWITCHING:
                raise ValueError(f"an answer {status} nobody asked for")
            # an interim answer, as proxies send: the one that counts comes behind it
            self._head[: len(behind)] = behind
            self._filled = len(behind)
        self._status, self._headers, self._filled = status, headers, 0
        if status != _PARTIAL or "transfer-encoding" in headers or "content-length" not in headers:
            self._rest = bytearray()
            self._refused(behind)
            return
        size = _length(headers)
        if size > self._size_max or len(behind) > size:
            raise ValueError(f"{max(size, len(behind))} bytes where at most {self._size_max} were asked for")
        self._left = size
        if not size:
            self._finish([], b"")
            return
        self._next_piece()
        while behind:
            assert self._into is not None, self
            count = min(len(behind), len(self._into) - self._at)
            self._into[self._at : self._at + count] = behind[:count]
            behind = behind[count:]
            self._filled_more(count)

    def _next_piece(self) -> None:
        size = min(self._piece_bytes, self._left)
        piece = bytearray(size)
        self._pieces.append(piece)
        self._into, self._at = memoryview(piece), 0
        self._left -= size

    def _received(self, count: int) -> None:
        self._filled_more(count)
        if not self._turn.take(count) and self._into is not None and self._transport is not None:
            self._transport.pause_reading()
            self._turn.wait(self._go_on)

    def _filled_more(self, count: int) -> None:
        assert self._into is not None, self
        self._at += count
        if self._at == len(self._into):
            if self._left:
                self._next_piece()
            else:
                self._into = None
                self._finish(self._pieces, b"")

    def _go_on(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def _refused(self, data: bytes) -> None:
        """Read an answer that brings no range; its connection is kept after a put that was done."""
        assert self._rest is not None, self
        self._rest += data
        is_chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
        is_object = self._status in (_OK, _PARTIAL) and not self._is_put
        if is_object or len(self._rest) >= REFUSAL_BYTES_MAX:
            is_whole = True  # the whole object may be of any size
        elif is_chunked:
            is_whole = _unchunked(self._rest) is not None
        else:
            is_whole = len(self._rest) >= _length(self._headers, REFUSAL_BYTES_MAX)
        if is_whole:
            self._finish_refusal()

    def _finish_refusal(self) -> None:
        rest, self._rest = self._rest, None
        assert rest is not None, self
        is_chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
        body = (_unchunked(rest) or b"") if is_chunked else bytes(rest)
        # A refusal may have come before the whole put had been sent: its rest would pass for a request.
        is_over = self._is_put and self._status == _OK and len(rest) == _length(self._headers, -1)
        self._finish([], body)
        if not is_over:
            self.close()

    def _finish(self, pieces: list[bytearray], body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(RangeAnswer(self._status, self._headers, pieces, body))
        if "close" in self._headers.get("connection", "").lower():
            self.close()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()


class RangeClient:
    """Kept connections to one host."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        connections_max: int,
        connect_s: float,
        silence_s: float,
        idle_s: float,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._idle_s = idle_s
        self._places = asyncio.Semaphore(connections_max)
        self._turn = Turn(asyncio.get_running_loop())
        self._idle: list[_Connection] = []
        self._asked: set[_Connection] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RangeClient {self._host}:{self._port} {len(self._asked)} asked, {len(self._idle)} idle>"

    async def ask(self, request: bytes, *, piece_bytes: int, size_max: int) -> RangeAnswer:
        """Send a GET of a range and return its answer; OSError."""
        return await self._ask(request, None, piece_bytes, size_max)

    async def put(self, request: bytes, body: Buffer) -> RangeAnswer:
        """Send a put, its body at once, and return its answer; OSError."""
        return await self._ask(request, body, 0, 0)

    async def _ask(self, request: bytes, body: Buffer | None, piece_bytes: int, size_max: int) -> RangeAnswer:
        async with self._places:
            connection = self._kept() or await self._connect()
            self._asked.add(connection)
            if self._is_closed:
                connection.close()
            try:
                answer = await connection.ask(
                    request, body, piece_bytes=piece_bytes, size_max=size_max, silence_s=self._silence_s
                )
            except BaseException:
                connection.close()  # the answer may have come just as its asker was cancelled
                raise
            finally:
                self._asked.discard(connection)
            if connection.is_open and not self._is_closed:
                connection.keep(self._idle_s)
                self._idle.append(connection)
            return answer

    async def close(self) -> None:
        """End all connections, those that wait for an answer too."""
        self._is_closed = True
        for connection in [*self._idle, *self._asked]:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                connection.take()
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._turn), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {self._connect_s:g} s") from error
        except ssl.SSLError:
            raise
        except OSError as error:
            raise CannotConnect(error.strerror or str(error)) from error
        return connection


def encode_request(target: str, headers: Mapping[str, str], method: str = "GET") -> bytes:
    """Return the head of a request; ValueError if a header would be several lines."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join((f"{method} {target} HTTP/1.1", *lines, "", ""))
    if head.count("\n") != len(lines) + 2 or head.count("\r") != len(lines) + 2:
        raise ValueError("a header with a line break")
    return head.encode()


def _decode_head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    found = _STATUS.match(first)
    if found is None:
        raise ValueError(f"{first[:40]!r} is no status line")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{line[:40]!r} is no header")
        headers[name.lower()] = value.strip()
    if first.startswith("HTTP/1.0"):
        headers.setdefault("connection", "close")
    return int(found[1]), headers


def _length(headers: Mapping[str, str], otherwise: int = 0) -> int:
    text = headers.get("content-length")
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"a length of {text[:40]!r}")
    return int(text)


def _unchunked(data: bytes | bytearray) -> bytes | None:
    """Return a body that came in chunks; None if there is more of it to come."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(bytes(data[at:end]).partition(b";")[0], 16)
        if size < 0:
            raise ValueError(f"a chunk of {size} bytes")
        if not size:
            return b"".join(parts)
        at = end + 2
        if len(data) < at + size + 2:
            return None
        parts.append(bytes(data[at : at + size]))
        at += size + 2
