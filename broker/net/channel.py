"""The asking side of a connection between brokers.

Owns: one TCP connection to one peer, opened when it is first needed and again after a loss, the requests
under way on it and their deadlines. Does not own: what is asked (replication, control), whether to ask again,
or where a peer listens (the image). Invariant: answers are matched in the order of the requests; every
question ends with an answer or with PeerLost by its deadline; at most `IN_FLIGHT_MAX` are under way.

A peer answers in order, so after an answer that does not come none will: a deadline that passes ends the
connection and whatever else was asked on it. The bytes of a small answer are copied once, out of the receive
buffer into a frame of their own; a large one takes the buffer along, and what comes is read into another. A
request is written from where it was encoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, cast

from broker.endpoint import Endpoint
from broker.ports import Network
from protocol.apis import Api, PeerApi
from protocol.codec import Fields
from protocol.errors import FrameTooLarge, MalformedRequest
from protocol.messages import decode_response, request_frame
from protocol.wire import FRAME_BYTES_MAX, FrameReader

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 64
_TAKEN_BYTES: Final = 4 << 20
"""An answer of so many bytes takes the buffer along: to read the next into one that grows costs less."""
_SIZE: Final = Struct(">i")
_CORRELATION: Final = Struct(">i")
_CORRELATION_AT: Final = 4
_CORRELATION_MASK: Final = 0x7FFFFFFF


class PeerLost(Exception):
    """Refused, reset, closed, or no answer in time: what was asked may have happened all the same."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """Whether nothing listens at that address."""


class Channel:
    def __init__(
        self,
        network: Network,
        host: str,
        port: int,
        *,
        client_id: str,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.host = host
        self.port = port
        self.on_open: Callable[[], None] | None = None
        self.on_closed_there: Callable[[], None] | None = None
        """Called when the peer, or its end, closed a connection that was open."""
        self._network = network
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._wire: _Wire | None = None
        self._connecting: _Wire | None = None
        self._opening = asyncio.Lock()
        self._correlation_id = 0
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "idle" if self._wire is None else repr(self._wire)
        return f"<Channel {self._client_id} to {self.host}:{self.port} {state}>"

    @property
    def in_flight(self) -> int:
        return 0 if self._wire is None else len(self._wire.asked)

    async def ask(self, api: Api | PeerApi, version: int, fields: Fields, *, timeout_s: float) -> Any:
        """Ask, and return the decoded response; record sets in it are views on its frame."""
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        request = request_frame(api, version, self._correlation_id, self._client_id, fields)
        frame = await self._exchange(request, timeout_s)
        try:
            return decode_response(api, version, frame)[1]
        except MalformedRequest as error:
            if self._wire is not None:
                self._wire.lose(f"an answer cannot be read: {error}")
            raise PeerLost(f"{self.host}:{self.port}: {error}") from error

    async def ask_frame(self, frame: bytes, *, timeout_s: float) -> memoryview:
        """Ask with a request frame as it is, without its size; return the response frame without its size."""
        return await self._exchange(_SIZE.pack(len(frame)) + frame, timeout_s)

    def close(self) -> None:
        """Close for good: what waits here fails, and so does every later question."""
        self._is_closed = True
        for wire in (self._wire, self._connecting):
            if wire is not None:
                wire.lose("closed")

    async def _exchange(self, request: bytes | bytearray, timeout_s: float) -> memoryview:
        wire: _Wire | None = None
        answer: asyncio.Future[memoryview] | None = None
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                opened = self._wire
                if opened is None or self._is_closed:
                    opened = await self._open()
                if not opened.has_room:
                    await opened.wait_room()
                wire = opened
                answer = wire.ask(request)
                return await answer
        except asyncio.CancelledError:
            if wire is not None and answer is not None:
                wire.give_until(deadline, answer)
            raise
        except TimeoutError as error:
            reason = f"{self.host}:{self.port}: no answer in {timeout_s} s"
            if wire is not None:
                wire.lose(reason)
            raise PeerLost(reason) from error

    async def _open(self) -> _Wire:
        async with self._opening:
            if self._is_closed:
                raise PeerLost(f"the channel to {self.host}:{self.port} is closed")
            if self._wire is not None:
                return self._wire
            wire = self._connecting = _Wire(self._frame_bytes_max, self._forget)
            try:
                await self._network.connect(self.host, self.port, lambda: wire)
            except ConnectionRefusedError as error:
                raise PeerLost(f"{self.host}:{self.port} refuses: {error}", refused=True) from error
            except OSError as error:
                raise PeerLost(f"{self.host}:{self.port}: {error}") from error
            except asyncio.CancelledError:
                wire.lose("given up while connecting")
                raise
            finally:
                self._connecting = None
            if wire.lost is not None:
                raise PeerLost(wire.lost)
            self._wire = wire
            if self.on_open is not None:
                self.on_open()
            return wire

    def _forget(self, wire: _Wire) -> None:
        if self._wire is wire:
            self._wire = None
            if wire.is_closed_there and self.on_closed_there is not None:
                self.on_closed_there()


class _Wire(asyncio.BufferedProtocol):
    """One connection from its opening to its loss."""

    def __init__(self, frame_bytes_max: int, on_lost: Callable[[_Wire], None]) -> None:
        self.asked: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
        self.lost: str | None = None
        self.is_closed_there = False
        self._reader = FrameReader(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._on_lost = on_lost
        self._has_moved = asyncio.Event()
        """Set when a place is free again, or the connection is lost."""

    def __repr__(self) -> str:
        return f"{self.lost or 'open'}, {len(self.asked)} in flight"

    @property
    def has_room(self) -> bool:
        """Whether one more may be asked, or fail at once."""
        return len(self.asked) < IN_FLIGHT_MAX or self.lost is not None

    async def wait_room(self) -> None:
        while not self.has_room:
            self._has_moved.clear()
            await self._has_moved.wait()

    def ask(self, request: bytes | bytearray) -> asyncio.Future[memoryview]:
        if self.lost is not None or self._transport is None:
            raise PeerLost(self.lost or "not open")
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        correlation_id = _CORRELATION.unpack_from(request, _SIZE.size + _CORRELATION_AT)[0]
        self.asked.append((correlation_id, answer))
        self._transport.write(request)
        return answer

    def give_until(self, deadline: float, answer: asyncio.Future[memoryview]) -> None:
        """Give an answer that is no longer waited for until its deadline: the next question must not wait
        behind it for ever."""

        def overdue() -> None:
            if any(each is answer for _, each in self.asked):
                self.lose("no answer in time")

        asyncio.get_running_loop().call_at(deadline, overdue)

    def lose(self, reason: str) -> None:
        """End the connection, and with PeerLost whatever was asked on it."""
        if self.lost is not None:
            return
        self.lost = reason
        if self._transport is not None:
            self._transport.abort()
        asked, self.asked = self.asked, deque()
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(PeerLost(reason))
        self._has_moved.set()
        self._on_lost(self)

    # --- transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self.lost is not None:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_closed_there = self.lost is None
        self.lose(f"the peer is gone: {exc}" if exc is not None else "the peer closed the connection")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost is not None:
            return
        try:
            frames = self._reader.received(nbytes)
        except FrameTooLarge as error:
            self.lose(str(error))
            return
        for frame in frames:
            if not self._answered(frame):
                return
        if self._reader.error is not None:
            self.lose(str(self._reader.error))

    def eof_received(self) -> bool:
        return False

    def _answered(self, frame: memoryview) -> bool:
        found = _CORRELATION.unpack_from(frame)[0] if len(frame) >= _CORRELATION.size else None
        if not self.asked or found != self.asked[0][0]:
            due = self.asked[0][0] if self.asked else "nothing"
            logger.error("a broker answered request %s out of order: request %s was due", found, due)
            self.lose(f"the peer answered request {found} where {due} was due")
            return False
        _, answer = self.asked.popleft()
        self._has_moved.set()
        if not answer.done():
            kept = self._reader.keep(frame) if len(frame) >= _TAKEN_BYTES else bytearray(frame)
            answer.set_result(memoryview(kept))
        return True


class Channels:
    """One broker's channels: one to each peer for each purpose, at the address that the image has for it."""

    def __init__(
        self,
        network: Network,
        node_id: int,
        endpoint_of: Callable[[int], Endpoint | None],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._network = network
        self._node_id = node_id
        self._endpoint_of = endpoint_of
        self._frame_bytes_max = frame_bytes_max
        self._channels: dict[tuple[int, str], Channel] = {}
        self._closed_s: dict[int, float] = {}
        """When each peer last closed a connection, unless another was opened since."""

    def __repr__(self) -> str:
        return f"<Channels of {self._node_id}: {list(self._channels.values())}>"

    def to(self, node_id: int, purpose: str) -> Channel:
        endpoint = self._endpoint_of(node_id)
        if endpoint is None:
            raise PeerLost(f"no broker {node_id} is registered")
        key = (node_id, purpose)
        known = self._channels.get(key)
        if known is not None:
            if (known.host, known.port) == (endpoint.host, endpoint.port):
                return known
            known.close()
        client_id = f"broker-{self._node_id}-{purpose}"
        channel = self._channels[key] = Channel(
            self._network,
            endpoint.host,
            endpoint.port,
            client_id=client_id,
            frame_bytes_max=self._frame_bytes_max,
        )
        channel.on_open = lambda: self._opened(node_id)
        channel.on_closed_there = lambda: self._closed(node_id)
        return channel

    def _opened(self, node_id: int) -> None:
        self._closed_s.pop(node_id, None)

    def _closed(self, node_id: int) -> None:
        self._closed_s[node_id] = asyncio.get_running_loop().time()

    def closed_since(self, since_s: float) -> list[int]:
        """The peers that have closed a connection since then, and to which none was opened after it."""
        return [node_id for node_id, at_s in self._closed_s.items() if at_s >= since_s]

    def forget(self, node_id: int) -> None:
        """Drop the channels to a broker that is no longer a member."""
        self._closed_s.pop(node_id, None)
        for key in [key for key in self._channels if key[0] == node_id]:
            self._channels.pop(key).close()

    def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
