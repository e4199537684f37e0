"""Frames: the byte stream of a connection cut into requests and responses, without any I/O.

Owns: the receive buffer, the size bound, request headers, correlation. Does not own: sockets, message
bodies (messages.py), what a request means.
Invariant: however the bytes are split into reads, the same frames come out; memory follows the bytes that
arrived and never the bytes a size field promises.

`FrameReader` serves asyncio.BufferedProtocol: `get_buffer` and `received` are its two callbacks.
`Connection` is the protocol of one connection for either role, after h11's example: clients and tests use
it, and a test connects one of each in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Any, Literal, NamedTuple, TypeAlias

from protocol.apis import KNOWN, Api, is_supported
from protocol.codec import Fields
from protocol.errors import FrameTooLarge, MalformedRequest
from protocol.messages import decode_request, decode_response, encode_request, encode_response
from protocol.primitives import Buffer, skip_tags

__all__ = [
    "Answer",
    "Connection",
    "FrameReader",
    "FrameTooLarge",
    "MalformedRequest",
    "Request",
    "RequestHead",
    "parse_head",
]

Role: TypeAlias = Literal["client", "server"]

FRAME_BYTES_MAX = 100 << 20
"""Kafka's socket.request.max.bytes."""

# 16 KB while idle (10,000 idle connections are 160 MB); 256 KB is where CPU per byte stops falling for 16
# KB requests and 1 MB for 100 KB ones.
_IDLE_BYTES = 16 << 10
_BUSY_BYTES = 256 << 10
_BULK_BYTES = 1 << 20
_GROWTH = 4
_BULK_AFTER_FULL_READS = 4
_CHEAP_MOVE_BYTES = 4 << 10
_KEPT_BYTES = 64 << 10
_COPIED_BYTES = 256 << 10

_SIZE = Struct(">i")
_HEAD = Struct(">hhih")


class RequestHead(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def parse_head(frame: Buffer) -> RequestHead:
    """Return the header of a request. Raises MalformedRequest for what Kafka closes the connection for
    without an answer: nonsense, an API we do not serve, a version we do not serve. Only ApiVersions passes in
    any version, because an unknown one is answered in version 0.
    """
    size = len(frame)
    if size < _HEAD.size:
        raise MalformedRequest(f"request of {size} bytes has no header")
    api_key, version, correlation_id, client_id_size = _HEAD.unpack_from(frame)
    row = KNOWN.get(api_key)
    if row is None:
        raise MalformedRequest(f"API {api_key} is not served")
    if api_key != Api.API_VERSIONS and not row.served_from <= version <= row.max_version:
        raise MalformedRequest(f"{row.name} version {version} is not served")
    at = _HEAD.size
    client_id = None
    if client_id_size >= 0:
        if client_id_size > size - at:
            raise MalformedRequest(f"client id of {client_id_size} bytes, {size - at} are left")
        client_id = str(memoryview(frame)[at : at + client_id_size], "utf-8", "replace")
        at += client_id_size
    if version >= row.flexible_from:
        at = skip_tags(frame, at)
    return RequestHead(api_key, version, correlation_id, client_id, at)


class FrameReader:
    """The receive buffer of one connection.

    The frames `received` returns are writable views on it, valid until the next `get_buffer`; a caller that
    keeps one longer asks for that (`keep`). Frames stay where they were read: only the beginning of an
    incomplete last frame is moved, and only when the rest of the buffer cannot hold it.
    """

    __slots__ = ("_buffer", "_end", "_full_reads", "_start", "_view", "error", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.error: FrameTooLarge | None = None
        self._start = 0
        """Start of the bytes that are in no returned frame."""
        self._end = 0
        self._full_reads = 0
        self._allocate(_IDLE_BYTES)

    def __repr__(self) -> str:
        return f"FrameReader(pending={self.pending}, capacity={self.capacity})"

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame, its size field included."""
        return self._end - self._start

    @property
    def open_frame(self) -> int:
        """Bytes that the incomplete frame has when it is whole, as far as it is known; 0 if there is none."""
        return self._frame_bytes() if self._end > self._start else 0

    @property
    def capacity(self) -> int:
        """Bytes this connection holds."""
        return len(self._view)

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Return where to read into; never empty. Ends the life of the frames returned before."""
        if self.error is not None:
            raise self._error()
        if self._full_reads:
            self._grow_busy()
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            return self._view
        capacity = len(self._view)
        if start + self._frame_bytes() > capacity:
            self._make_room()
        elif capacity - end < capacity // _GROWTH and end - start <= _CHEAP_MOVE_BYTES < start:
            self._move(capacity)
        return self._view[self._end :]

    def received(self, size: int) -> list[memoryview]:
        """Return the frames, without their size field, that `size` more bytes complete.

        A size field that is negative or above the limit raises, unless frames came before it in the same
        read: then they are returned, `error` is set, and the next call raises.
        """
        if self.error is not None:
            raise self._error()
        view = self._view
        end = self._end + size
        self._end = end
        at = self._start
        frames: list[memoryview] = []
        while end - at >= 4:
            (frame_size,) = _SIZE.unpack_from(view, at)
            if not 0 <= frame_size <= self.frame_bytes_max:
                self.error = FrameTooLarge(
                    f"frame of {frame_size} bytes, the limit is {self.frame_bytes_max}"
                )
                break
            stop = at + 4 + frame_size
            if stop > end:
                break
            frames.append(view[at + 4 : stop])
            at = stop
        self._start = at
        if end == len(view) and frames:
            self._full_reads += 1
        if self.error is not None and not frames:
            raise self._error()
        return frames

    def keep(self, frame: memoryview) -> memoryview | bytearray:
        """Return a frame that `received` returned, to be kept as long as it is needed: a copy of a small one,
        while a large one keeps the buffer, and what comes is read into another. What is copied at once is
        bounded; up to there no frame keeps a buffer of more than `_GROWTH` times its size.
        """
        size = len(frame)
        if size < _KEPT_BYTES or (size <= _COPIED_BYTES and size * _GROWTH < memoryview(frame.obj).nbytes):
            return bytearray(frame)
        if frame.obj is self._buffer:
            self._move(max(_IDLE_BYTES, self.pending), is_new=True)
            self._full_reads = 0
        return frame

    def shrink(self) -> None:
        """Give memory back; for connections that have been quiet. Ends the life of the frames returned
        before.
        """
        pending = self.pending
        if pending < _IDLE_BYTES < len(self._view):
            self._move(_IDLE_BYTES)
        self._full_reads = 0

    def discard(self) -> None:
        """Let go of the buffer: the connection is gone, and what still refers to this holds no memory."""
        self._start = self._end = 0
        self._allocate(0)

    def _error(self) -> FrameTooLarge:
        """Return a new error each time: one that is kept and raised would keep the buffer of its frames."""
        return FrameTooLarge(str(self.error))

    def _frame_bytes(self) -> int:
        """Return the size of the incomplete frame, as far as it is known."""
        if self._end - self._start < 4:
            return 4
        size: int = _SIZE.unpack_from(self._view, self._start)[0]
        return size + 4

    def _make_room(self) -> None:
        """The incomplete frame does not fit behind its start: move it to the front, or, when it fills the
        buffer, to a larger one. Growing only then keeps memory within 4 times what arrived; a buffer above
        `_BULK_BYTES` is a mapping, of which what was not yet written takes none.
        """
        wanted = self._frame_bytes()
        capacity = len(self._view)
        if self.pending >= capacity:
            # exactly the frame's size: a read then ends where the frame does, and nothing of the next is
            # moved; at once where only touched pages take memory, since each move would hold the loop up
            capacity = wanted if capacity >= _BULK_BYTES else min(wanted, capacity * _GROWTH)
        self._move(capacity)

    def _grow_busy(self) -> None:
        """Requests fill the buffer: larger reads are cheaper. Bytes of no whole request never get here."""
        capacity = len(self._view)
        if capacity < _BUSY_BYTES:
            capacity = _BUSY_BYTES
        elif capacity < _BULK_BYTES and self._full_reads >= _BULK_AFTER_FULL_READS:
            capacity = _BULK_BYTES
        else:
            return
        self._full_reads = 0
        self._move(capacity)

    def _move(self, capacity: int, *, is_new: bool = False) -> None:
        pending = self._view[self._start : self._end]
        if is_new or capacity != len(self._view):
            self._allocate(capacity)
        self._view[: len(pending)] = pending
        self._start, self._end = 0, len(pending)

    def _allocate(self, capacity: int) -> None:
        # new memory rather than a resized one: views on the old one may still be alive
        self._buffer = (
            bytearray(capacity)
            if capacity <= _BULK_BYTES
            else mmap(-1, capacity, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        )
        self._view = memoryview(self._buffer)


class Request(NamedTuple):
    head: RequestHead
    body: Any
    """None for ApiVersions in a version we lack: it is answered in version 0, unread."""


class Answer(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    response: Any


class _Sent(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int


class Connection:
    """One end of Kafka's protocol, client or server, without I/O.

    A client's `send` gives the bytes of a request and remembers what the answer will be; a server's
    `answer` gives the bytes of a response. `receive` takes what the socket gave and returns what it
    completes: answers for a client, requests for a server. Kafka answers in order, so an answer that is not
    the oldest outstanding one is a broken peer.
    """

    def __init__(
        self, role: Role, *, client_id: str | None = None, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        self.role = role
        self.client_id = client_id
        self._reader = FrameReader(frame_bytes_max)
        self._next_correlation_id = 0
        self._sent: deque[_Sent] = deque()

    def __repr__(self) -> str:
        return f"Connection({self.role}, in_flight={self.in_flight}, pending={self._reader.pending})"

    @property
    def in_flight(self) -> int:
        """Requests whose answer has not come."""
        return len(self._sent)

    def send(self, api_key: int, api_version: int, fields: Fields) -> tuple[int, bytes]:
        """(correlation id, bytes). Produce with acks=0 is never answered, so nothing is remembered for it."""
        assert self.role == "client"
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        data = encode_request(api_key, api_version, correlation_id, self.client_id, fields)
        if is_answered(api_key, fields):
            self._sent.append(_Sent(api_key, api_version, correlation_id))
        return correlation_id, data

    def answer(self, head: RequestHead, fields: Fields) -> bytes:
        assert self.role == "server"
        return encode_response(head.api_key, head.api_version, head.correlation_id, fields)

    def receive(self, data: Buffer) -> list[Answer] | list[Request]:
        """Return what `data` completes. Record sets in it are views on copies and stay valid."""
        frames = self._frames(data)
        if self.role == "client":
            return [self._match(frame) for frame in frames]
        return [_request(frame) for frame in frames]

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        return self._reader.get_buffer(size_hint)

    def received(self, size: int) -> list[Answer] | list[Request]:
        """Return what `receive` does, for bytes that were read into `get_buffer()`."""
        frames = [memoryview(bytes(frame)) for frame in self._reader.received(size)]
        if self.role == "client":
            return [self._match(frame) for frame in frames]
        return [_request(frame) for frame in frames]

    def _frames(self, data: Buffer) -> Iterator[memoryview]:
        view = memoryview(data)
        while view:
            room = self._reader.get_buffer()
            part = view[: len(room)]
            room[: len(part)] = part
            view = view[len(part) :]
            for frame in self._reader.received(len(part)):
                yield memoryview(bytearray(frame))

    def _match(self, frame: memoryview) -> Answer:
        if not self._sent:
            raise MalformedRequest("an answer to nothing")
        sent = self._sent.popleft()
        correlation_id, response = decode_response(sent.api_key, sent.api_version, frame)
        if correlation_id != sent.correlation_id:
            raise MalformedRequest(f"answer {correlation_id} where {sent.correlation_id} is due")
        return Answer(sent.api_key, sent.api_version, correlation_id, response)


def is_answered(api_key: int, fields: Fields) -> bool:
    """Return whether a request gets an answer: all but Produce with acks=0."""
    return api_key != Api.PRODUCE or bool(fields.get("acks") != 0)


def _request(frame: memoryview) -> Request:
    head = parse_head(frame)
    if not is_supported(head.api_key, head.api_version):
        return Request(head, None)
    return Request(head, decode_request(head.api_key, head.api_version, frame[head.body_at :]))
