"""The listening side: connections, their bounds, and answers in the order of the requests.

Owns: reading frames, holding back what may not run yet, ordered slots, sending (joined, in chunks, or
straight from the file), and every limit on connections, bytes and idle time. Does not own: what a request
means (dispatch). Invariant: the responses of one connection leave in the order of its requests; what one
connection can make the broker keep is bounded: one read buffer, one frame, one read's worth of held frames,
`PIPELINED_MAX` unanswered Produce requests, one round's answers behind them, and the transport's high water
mark plus one chunk.

All complete frames of one read are handled, then the service settles (one write per partition), then one send
leaves with all answers: unbatched responses cost twice the CPU. Connections that are read in one turn of the
loop with nothing but Produces settle once for all. A request that must wait stalls its connection, as Kafka's
mute does, except Produce: the next Produce only appends behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Protocol, TypeAlias, cast

from broker.ports import Listening, Network
from broker.replicas.purgatory import Waiter
from protocol.wire import FrameReader, FrameTooLarge
from storage.log import LogSlice

logger = logging.getLogger(__name__)

PIPELINED_MAX: Final = 1000
"""Produce requests of one connection that may wait for their commit before the next request is held back."""
SENDFILE_MIN: Final = 256 * 1024
"""Below this a response is read and joined; one syscall is cheaper than three."""
SLICE_SENDFILE_MIN: Final = 64 * 1024
CHUNK: Final = 256 * 1024
PUMP_MAX: Final = 2 << 20
"""Bytes one connection may send from files before the loop gets another turn."""
_HELD_ROUND: Final = 64
_UNSENT_MAX: Final = 256 * 1024
_LARGE_BUFFER: Final = 1 << 20
"""What a read buffer grows to by itself; a larger one is there for a large frame."""
_SWEEPS_PER_IDLE: Final = 10
_QUEUED_BYTES: Final = 512 << 20
_ROUNDS_APART: Final = 64
"""Rounds that end at once before one waits for company again."""
_OPEN_BYTES_MAX: Final = 256 * 1024
"""Appended and not yet written by rounds that wait for each other: more would leave the processor's cache."""
_UNLIMITED: Final = 2**31 - 1

# Why a connection handles no further request just now; any bit set stalls it.
WAIT, BULK, WRITE, PIPELINE, CLOSED, PACED = 1, 2, 4, 8, 16, 32

Frame: TypeAlias = "memoryview | bytearray"


class Disconnect(Exception):
    """The peer broke the protocol: close without an answer to this request."""


class Slot:
    """The place of an answer that is not there yet."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: bytes | Bulk | None = None


class Bulk:
    """A response too big to build in memory: bytes and log slices in order."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[bytes | LogSlice], size: int) -> None:
        self.pieces = pieces
        self.size = size


Answer: TypeAlias = "bytes | Slot | Bulk | tuple[Any, ...] | None"
"""What handling a frame gives. A tuple is a call `answer[0](connection, answer)` for after the service has
settled, which may also give a list: the answers to several frames; None is no response at all."""


class Service(Protocol):
    """What runs behind the connections."""

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Any]) -> int:
        """Handles frames from `at` on by the short way for as long as it may; where it stopped."""

    def handle(self, connection: Connection, frame: Frame) -> Answer: ...

    def settle(self) -> Any:
        """Writes what was handled so far; the result goes to `settled` once the answers are out."""

    def settled(self, settlement: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    request_bytes: int = 100 * 1024 * 1024
    connections: int = _UNLIMITED
    connections_per_ip: int = _UNLIMITED
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    creation_rate: int = _UNLIMITED
    idle_ms: int = 600_000
    queued_bytes: int = -1
    backlog: int = 50


class NetworkStats:
    """Counters read at scrape time."""

    __slots__ = ("accepted", "bytes_in", "closed_idle", "rejected")

    def __init__(self) -> None:
        self.accepted = 0
        self.rejected = 0
        self.closed_idle = 0
        self.bytes_in = 0


class Connection(asyncio.BufferedProtocol):
    """One client. `service` handlers may use: `slot`, `answer`, `stall`, `resume`, `waiter`, `on_lost`,
    `close` and the Produce template fields."""

    def __init__(self, server: NetworkServer, listener: str) -> None:
        self.listener = listener
        self.peer_host = ""
        self.peer_port = 0
        self.waiter: Waiter | None = None
        """Who answers the slot this connection stalls for; told when the client goes away."""
        self.on_lost: Callable[[], None] | None = None
        """Called when the client went away, whether or not it waited for anything then."""
        self.produce_kind = -1
        self.produce_ends: list[int] = []
        self.produce_templates: dict[bytes, Any] = {}
        self.fetch_seen: Any = None
        self.tick = server.tick
        self.unsent = 0
        """Bytes answered and not yet sent: a round ends early when they are many, and no other begins while
        they stand behind an answer that is not there yet."""
        self.has_open_round = False
        """Its last round was handled and is neither written nor answered yet: `NetworkServer.end_rounds`."""
        self._server = server
        self._service = server.service
        self._loop = server.loop
        self._reader = FrameReader(server.limits.request_bytes)
        self._transport: asyncio.Transport | None = None
        self._stalled = 0
        self._paused = False
        self._held: deque[bytearray] = deque()
        self._slots: deque[bytes | Slot | Bulk] = deque()
        self._bulk: deque[bytes | memoryview | LogSlice] | None = None
        self._socket: socket.socket | None = None
        self._can_sendfile = True
        self._is_pumping = False
        self._is_running = False
        self._queued = 0

    def __repr__(self) -> str:
        return f"<Connection {self.peer_host}:{self.peer_port} {self.listener} stalled={self._stalled:#x}>"

    # ------------------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        refusal = self._server.admit(self)
        if refusal is not None:
            logger.info("refused a connection from %s: %s", self.peer_host, refusal)
            self._stalled |= CLOSED
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stalled |= CLOSED
        self._drop_socket()
        self._server.forget(self, queued=self._queued)
        self._queued = 0
        self._held.clear()
        self._slots.clear()
        self._bulk = None
        self.produce_templates.clear()
        self.fetch_seen = None
        self._reader.discard()
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done:
            waiter.abandoned()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.has_open_round:
            # what was appended still lies in the buffer
            self._server.end_rounds()
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._stalled & CLOSED:
            return
        self.tick = self._server.tick
        try:
            frames = self._reader.received(nbytes)
        except FrameTooLarge as error:
            self.close(str(error))
            return
        if self._reader.error is not None:
            # the frames before the bad size are good; handled unless they must wait, and then the connection
            # goes
            if not self._stalled and not self._held:
                self._run(frames)
            self.close(str(self._reader.error))
            return
        if not frames:
            self._account()
            return
        if self._queued:
            self._account()
        if self._stalled or self._held:
            self._hold(frames)
        else:
            self._run(frames)

    def eof_received(self) -> bool:
        if self.has_open_round:
            self._server.end_rounds()
        return False

    def pause_writing(self) -> None:
        self._stalled |= WRITE

    def resume_writing(self) -> None:
        self._stalled &= ~WRITE
        self.tick = self._server.tick
        if self._bulk is not None and self._socket is None:
            self._pump_chunks()
        self._go_on()

    # ------------------------------------------------------------------------------------------- requests

    def _run(self, frames: Sequence[Frame]) -> None:
        self._is_running = True
        try:
            while frames:
                frames = self._round(frames)
                if self._stalled:
                    if frames:
                        self._hold(frames)
                    return
        finally:
            self._is_running = False

    def _round(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """Handles frames until one stalls the connection; returns what is left."""
        answers: list[Any] = []
        at = 0
        broken: str | None = None
        try:
            if self.produce_templates:
                at = self._service.repeat(self, frames, 0, answers)
                if at == len(frames):
                    self._server.end_round(self, answers, len(frames) * len(frames[0]))
                    return ()
            at = self._handle(frames, at, answers)
        except Disconnect as error:
            broken, at = str(error), len(frames)
        self._server.end_round_now(self, answers)
        if broken is not None:
            self.close(broken)
        return frames[at:]

    def _handle(self, frames: Sequence[Frame], at: int, answers: list[Any]) -> int:
        """One by one, with short ways between, until one stalls the connection; where it stopped."""
        handle, repeat = self._service.handle, self._service.repeat
        while at < len(frames):
            answer = handle(self, frames[at])
            at += 1
            if answer is not None:
                answers.append(answer)
            if self._stalled or self.unsent > _UNSENT_MAX:
                break
            if self.produce_templates and at < len(frames):
                at = repeat(self, frames, at, answers)
        return at

    def reply(self, answers: list[Any]) -> None:
        """To a round, after the service has settled."""
        slots = self._slots
        ready: list[bytes] = []
        broken: str | None = None
        for answer in answers:
            if answer.__class__ is tuple:
                try:
                    answer = answer[0](self, answer)
                except Disconnect as error:
                    broken = str(error)
                    break
                if answer is None:
                    continue
                if answer.__class__ is list:
                    slots.extend(answer)
                    continue
            if answer.__class__ is bytes and not slots and self._bulk is None:
                ready.append(answer)
            else:
                slots.append(answer)
        if slots:
            self._release(ready)
        else:
            self.unsent = 0
            if ready:
                self._write(ready[0] if len(ready) == 1 else b"".join(ready))
        if broken is not None:
            self.close(broken)

    def _hold(self, frames: Sequence[Frame]) -> None:
        """Keeps frames until the connection may go on. Their buffer is about to be reused, so they are
        copied.
        """
        held = [bytearray(frame) for frame in frames]
        self._held.extend(held)
        self._account()
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Handles what was held, and reads on when nothing is.

        A round may end the stall it began, as a big response does that the socket takes at once: whoever runs
        the round then goes on with its own rest before anything that is held.
        """
        if self._is_running:
            return
        held = self._held
        self._is_running = True
        try:
            while held and not self._stalled:
                rest = self._round([held.popleft() for _ in range(min(len(held), _HELD_ROUND))])
                if rest:
                    held.extendleft(reversed(rest))  # type: ignore[arg-type]
        finally:
            self._is_running = False
        if self._stalled:
            return
        if self._queued:
            self._account()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # -------------------------------------------------------------------------------------------- answers

    def slot(self) -> Slot:
        """A place for the answer to the request in hand, and no further request until `resume`."""
        self._stalled |= WAIT
        return Slot()

    def answer(self, slot: Slot, answer: bytes | Bulk) -> None:
        slot.answer = answer
        if not self._stalled & CLOSED:
            self._release([])

    def resume(self) -> None:
        self.waiter = None
        self._stalled &= ~WAIT
        self._go_on()

    def _release(self, ready: list[bytes]) -> None:
        """Sends every answer that has nothing unanswered before it."""
        slots = self._slots
        while slots and self._bulk is None:
            first: Any = slots[0]
            if first.__class__ is Slot:
                answered = first.answer
                if answered is None:
                    break
                first = answered
            slots.popleft()
            if first.__class__ is bytes:
                ready.append(first)
            else:
                self._start_bulk(ready, first)
                ready = []
        if ready:
            self._write(ready[0] if len(ready) == 1 else b"".join(ready))
        if not slots:
            self.unsent = 0
        if len(slots) >= PIPELINED_MAX or self.unsent > _UNSENT_MAX:
            self._stalled |= PIPELINE
        elif self._stalled & PIPELINE and len(slots) < PIPELINED_MAX // 2:
            self._stalled &= ~PIPELINE
            self._go_on()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._stalled & CLOSED:
            self._transport.write(data)

    def close(self, reason: str | None = None) -> None:
        """Closes after what was answered has left."""
        if self.has_open_round:
            self._server.end_rounds()
        if reason is not None and not self._stalled & CLOSED:
            logger.info("closed the connection of %s:%d: %s", self.peer_host, self.peer_port, reason)
        if self._transport is not None:
            self._stalled |= CLOSED
            if self._bulk is None:
                self._transport.close()
            else:
                self._transport.abort()

    def abort(self, reason: str) -> None:
        """For a peer that does not take what is queued for it either."""
        logger.info("closed the connection of %s:%d: %s", self.peer_host, self.peer_port, reason)
        if self._transport is not None:
            self._stalled |= CLOSED
            self._transport.abort()

    # ------------------------------------------------------------------------------------- big responses

    def _start_bulk(self, ready: list[bytes], bulk: Bulk) -> None:
        """`ready` goes first. From the file when the socket is real and nothing is queued before it."""
        if self._transport is None or self._stalled & CLOSED:
            return
        pieces: deque[bytes | memoryview | LogSlice] = deque(ready)
        pieces.extend(bulk.pieces)
        self._bulk = pieces
        self._stalled |= BULK
        if (
            self._can_sendfile
            and self._transport.get_write_buffer_size() == 0
            and any(map(_is_for_sendfile, pieces))
            and self._open_socket()
        ):
            self._pump_file()
        else:
            self._drop_socket()
            self._pump_chunks()

    def _pump_chunks(self) -> None:
        """A chunk at a time, as fast as the transport takes them."""
        pieces = self._bulk
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while pieces and self._transport is not None and not self._stalled & (WRITE | CLOSED):
                self._transport.write(_next_chunk(pieces))
        except OSError as error:
            self._fail_bulk(error)
            return
        finally:
            self._is_pumping = False
        if not pieces:
            self._end_bulk()

    def _pump_file(self) -> None:
        pieces, out = self._bulk, self._socket
        if pieces is None or out is None:
            return
        sent = 0
        try:
            while pieces and sent < PUMP_MAX:
                sent += _send_piece(out, pieces)
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail_bulk(error)
            return
        if sent:
            self.tick = self._server.tick
        if pieces:
            self._loop.add_writer(out.fileno(), self._pump_file)
            return
        self._loop.remove_writer(out.fileno())
        self._end_bulk()

    def _end_bulk(self) -> None:
        self._bulk = None
        self.tick = self._server.tick
        self._stalled &= ~BULK
        if self._slots:
            self._release([])
        self._go_on()

    def _fail_bulk(self, error: OSError) -> None:
        logger.info("a response to %s:%d broke off: %s", self.peer_host, self.peer_port, error)
        self._drop_socket()
        if self._transport is not None:
            self._stalled |= CLOSED
            self._transport.abort()

    def _open_socket(self) -> bool:
        """Our own descriptor of the transport's socket: the loop refuses writers on one it has a transport
        for.
        """
        if self._socket is not None:
            return True
        assert self._transport is not None
        real = self._transport.get_extra_info("socket")
        encrypted = self._transport.get_extra_info("sslcontext") is not None
        if real is None or encrypted:
            self._can_sendfile = False
            return False
        self._socket = socket.socket(fileno=os.dup(real.fileno()))
        self._socket.setblocking(False)
        return True

    def _drop_socket(self) -> None:
        out, self._socket = self._socket, None
        if out is not None:
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_writer(out.fileno())
            out.close()

    # -------------------------------------------------------------------------------------------- bounds

    def _account(self) -> None:
        """Tells the server how many request bytes wait here: an incomplete frame and held ones."""
        queued = self._reader.pending + sum(map(len, self._held))
        self._server.queued(self, queued - self._queued)
        self._queued = queued
        if not queued and self._reader.capacity > _LARGE_BUFFER:
            self._server.keeps(self, self._reader.capacity)

    @property
    def company(self) -> int:
        """How many connections share what there is; at least this one."""
        return max(self._server.connection_count, 1)

    @property
    def has_open_frame(self) -> bool:
        return self._reader.pending > 0

    @property
    def is_waiting(self) -> bool:
        """Our turn: the client waits for us, not we for it."""
        return bool(self._stalled & WAIT) or bool(
            self._slots and not self._stalled & WRITE and self._bulk is None
        )

    @property
    def has_left(self) -> bool:
        """Whether the peer closed while we read nothing: the loop does not hear of it then, and what it
        waited for may be weeks away.
        """
        if not self._paused or self._transport is None:
            return False
        real = self._transport.get_extra_info("socket")
        if real is None:
            return False
        state = select.poll()
        state.register(real.fileno(), getattr(select, "POLLRDHUP", 0))
        return bool(state.poll(0))

    @property
    def descriptor(self) -> int:
        """-1 where there is none (simulation)."""
        assert self._transport is not None
        real = self._transport.get_extra_info("socket")
        return -1 if real is None else int(real.fileno())

    def pace(self) -> None:
        """Reads nothing until `unpace`."""
        self._stalled |= PACED
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def unpace(self) -> None:
        if self._stalled & PACED:
            self._stalled &= ~PACED
            self._go_on()

    def rest(self) -> None:
        """A quiet connection gives its big buffers back."""
        if not self._queued:
            self._reader.shrink()
            self._server.gave_back(self)


def _is_for_sendfile(piece: bytes | memoryview | LogSlice) -> bool:
    return isinstance(piece, LogSlice) and piece.size >= SLICE_SENDFILE_MIN and piece.file.fileno() >= 0


def _next_chunk(pieces: deque[bytes | memoryview | LogSlice]) -> bytes:
    """Up to `CHUNK` bytes from the left, joined."""
    out: list[bytes | memoryview] = []
    room = CHUNK
    while pieces and room > 0:
        piece = pieces.popleft()
        if isinstance(piece, LogSlice):
            take = min(piece.size, room)
            data: bytes | memoryview = piece.file.pread(take, piece.position)
            if len(data) != take:
                raise OSError(f"{piece.file.path} ended early")
            if take < piece.size:
                pieces.appendleft(piece._replace(position=piece.position + take, size=piece.size - take))
        else:
            data = piece[:room]
            if len(piece) > room:
                pieces.appendleft(memoryview(piece)[room:])
        room -= len(data)
        out.append(data)
    return bytes(out[0]) if len(out) == 1 else b"".join(out)


def _send_piece(out: socket.socket, pieces: deque[bytes | memoryview | LogSlice]) -> int:
    """Sends of the first piece what the socket takes."""
    piece = pieces[0]
    if isinstance(piece, LogSlice) and piece.size < SLICE_SENDFILE_MIN:
        piece = pieces[0] = piece.read()
    if isinstance(piece, LogSlice):
        sent = os.sendfile(out.fileno(), piece.file.fileno(), piece.position, piece.size)
        if sent == 0:
            raise OSError(f"{piece.file.path} ended early")
        if sent < piece.size:
            pieces[0] = piece._replace(position=piece.position + sent, size=piece.size - sent)
            return sent
    else:
        sent = out.send(piece, socket.MSG_MORE if len(pieces) > 1 else 0)
        if sent < len(piece):
            pieces[0] = memoryview(piece)[sent:]
            return sent
    pieces.popleft()
    return sent


class NetworkServer:
    """All listeners and connections of a broker, and the limits they share."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        service: Service,
        limits: Limits,
        has_room: Callable[[int], bool] = lambda descriptor: True,
    ) -> None:
        self.loop = loop
        self.service = service
        self.limits = limits
        self.tick = 0
        self.stats = NetworkStats()
        self._network = network
        self._has_room = has_room
        self._listening: list[Listening] = []
        self._connections: dict[Connection, None] = {}
        self._per_ip: Counter[str] = Counter()
        self._queued_bytes = 0
        self._queued_max = limits.queued_bytes if limits.queued_bytes > 0 else _QUEUED_BYTES
        self._large: dict[Connection, int] = {}
        """Bytes of the read buffers that large frames left behind, the longest unused first."""
        self._large_bytes = 0
        self._throttled: dict[Connection, None] = {}
        """Who reads nothing while too many bytes wait, the longest first."""
        self._next_admission = 0.0
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._is_open = False
        self._rounds: list[tuple[Connection, list[Any]]] = []
        self._open_bytes = 0
        self._rounds_apart = 0

    def __repr__(self) -> str:
        return f"<NetworkServer {len(self._connections)} connections, {self._queued_bytes} bytes queued>"

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def connections_by_listener(self) -> Counter[str]:
        return Counter(connection.listener for connection in self._connections)

    async def listen(self, listener: str, host: str, port: int) -> Listening:
        def accept() -> Connection:
            return Connection(self, listener)

        listening = await self._network.listen(host, port, accept, backlog=self.limits.backlog)
        self._listening.append(listening)
        if self._sweep_timer is None:
            self._schedule_sweep()
        return listening

    def open(self) -> None:
        """Serve. Who connected between `listen` and now has waited unread."""
        self._is_open = True
        for connection in list(self._connections):
            connection.unpace()

    def stop_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    async def close(self) -> None:
        """Stops accepting and closes every connection; what was answered still leaves."""
        self._closed = True
        self.stop_listening()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in list(self._connections):
            connection.close()
        for _ in range(3):
            await asyncio.sleep(0)

    # -------------------------------------------------------------------------------------------- rounds

    def end_round(self, connection: Connection, answers: list[Any], size: int) -> None:
        """Writes and answers a round of nothing but Produces, about `size` bytes: together with those of
        other connections that are read in the same turn of the loop, which costs each of them a quarter less.
        As long as there are none, rounds end at once, and now and then one looks whether that is still so.
        """
        if self._rounds_apart:
            self._rounds_apart -= 1
            self.end_round_now(connection, answers)
            return
        if not self._rounds:
            self.loop.call_soon(self.end_rounds)
        self._rounds.append((connection, answers))
        connection.has_open_round = True
        self._open_bytes += size
        if self._open_bytes > _OPEN_BYTES_MAX:
            self.end_rounds()

    def end_round_now(self, connection: Connection, answers: list[Any]) -> None:
        if self._rounds:
            self.end_rounds()
        settlement = self.service.settle()
        connection.reply(answers)
        self.service.settled(settlement)

    def end_rounds(self) -> None:
        rounds = self._rounds
        if not rounds:
            return
        self._rounds = []
        self._open_bytes = 0
        if len(rounds) == 1:
            self._rounds_apart = _ROUNDS_APART
        for connection, _ in rounds:
            connection.has_open_round = False
        try:
            settlement = self.service.settle()
        except Exception:
            for connection, _ in rounds:
                connection.abort("what it sent could not be written")
            raise
        for connection, answers in rounds:
            try:
                connection.reply(answers)
            except Exception as error:
                logger.error("an answer failed", exc_info=error)
                connection.abort("its answer failed")
        self.service.settled(settlement)

    # ----------------------------------------------------------------------------------------- admission

    def admit(self, connection: Connection) -> str | None:
        """None, or why this connection may not be."""
        limits = self.limits
        host = connection.peer_host
        refusal: str | None = None
        descriptor = connection.descriptor
        if self._closed:
            refusal = "the broker is stopping"
        elif len(self._connections) >= limits.connections:
            refusal = f"max.connections is {limits.connections}"
        elif self._per_ip[host] >= limits.connections_per_ip_overrides.get(host, limits.connections_per_ip):
            refusal = "max.connections.per.ip is reached"
        elif not self._has_room(descriptor):
            refusal = "the descriptors that are left are for files"
        elif self._is_open and self._early_comers() >= max(limits.backlog, 1):
            refusal = "max.connection.creation.rate is passed, and socket.listen.backlog.size wait already"
        if refusal is not None:
            self.stats.rejected += 1
            return refusal
        self.stats.accepted += 1
        self._connections[connection] = None
        self._per_ip[host] += 1
        if self._is_open:
            self._pace_creation(connection)
        else:
            connection.pace()
        return None

    def _early_comers(self) -> int:
        """How many wait for their turn under max.connection.creation.rate. In Kafka, which stops accepting,
        they would be in the listen queue."""
        if self.limits.creation_rate >= _UNLIMITED:
            return 0
        return max(0, ceil((self._next_admission - self.loop.time()) * max(self.limits.creation_rate, 1)))

    def _pace_creation(self, connection: Connection) -> None:
        """max.connection.creation.rate: whoever comes too early is read from later."""
        rate = self.limits.creation_rate
        if rate >= _UNLIMITED:
            return
        now = self.loop.time()
        self._next_admission = max(self._next_admission, now - 1.0) + 1.0 / max(rate, 1)
        if self._next_admission > now:
            connection.pace()
            self.loop.call_at(self._next_admission, connection.unpace)

    def forget(self, connection: Connection, *, queued: int) -> None:
        if self._connections.pop(connection, 0) is not None:
            return
        host = connection.peer_host
        self._per_ip[host] -= 1
        if self._per_ip[host] <= 0:
            del self._per_ip[host]
        self._queued_bytes -= queued
        self.gave_back(connection)
        self._throttled.pop(connection, None)
        self._admit_queued()

    def queued(self, connection: Connection, change: int) -> None:
        """Request bytes that wait in memory changed by `change`.

        Above the limit whoever adds more stops reading, all but one, so that somebody always gets done.
        """
        self._queued_bytes += change
        if change > 0 and self._queued_bytes > self._queued_max:
            growing = sum(c.has_open_frame and not c._stalled & PACED for c in self._connections)
            if growing > 1:
                connection.pace()
                self._throttled[connection] = None
        elif change < 0:
            self._admit_queued()

    def keeps(self, connection: Connection, size: int) -> None:
        """An empty large buffer is kept for the next large frame, as long as all of them together stay below
        the limit for what waits in memory.
        """
        self.gave_back(connection)
        self._large[connection] = size
        self._large_bytes += size
        while self._large_bytes > self._queued_max and len(self._large) > 1:
            oldest = next(iter(self._large))
            oldest.rest()
            self.gave_back(oldest)

    def gave_back(self, connection: Connection) -> None:
        self._large_bytes -= self._large.pop(connection, 0)

    def _admit_queued(self) -> None:
        while self._throttled and self._queued_bytes <= self._queued_max:
            self._unthrottle_one()
        if self._throttled and not any(
            c.has_open_frame and not c._stalled & PACED for c in self._connections
        ):
            self._unthrottle_one()

    def _unthrottle_one(self) -> None:
        connection = next(iter(self._throttled))
        del self._throttled[connection]
        self.loop.call_soon(connection.unpace)

    # --------------------------------------------------------------------------------------------- idle

    def _schedule_sweep(self) -> None:
        if self.limits.idle_ms < 0 or self._closed:
            return
        every = max(self.limits.idle_ms / 1000 / _SWEEPS_PER_IDLE, 0.01)
        self._sweep_timer = self.loop.call_later(every, self._sweep)

    def _sweep(self) -> None:
        """One timer for all: a connection carries the tick of its last read."""
        self.tick += 1
        oldest = self.tick - _SWEEPS_PER_IDLE
        for connection in list(self._connections):
            if connection.has_left:
                connection.abort("the peer left")
            elif connection.tick >= self.tick - 1 or connection.is_waiting:
                continue
            elif connection.tick < oldest:
                self.stats.closed_idle += 1
                connection.abort("idle")
            else:
                connection.rest()
        self._schedule_sweep()


class TcpNetwork:
    """The real network: the running loop's sockets. A buffer of -1 bytes is left to the kernel."""

    def __init__(self, *, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> None:
        asked = {socket.SO_SNDBUF: send_buffer_bytes, socket.SO_RCVBUF: receive_buffer_bytes}
        self._buffers = {option: count for option, count in asked.items() if count != -1}

    async def listen(self, host: str, port: int, factory: Any, *, backlog: int) -> TcpListening:
        loop = asyncio.get_running_loop()
        address: str | None = host or None
        if port == 0:
            # one address only: each address would get a port of its own
            found = await loop.getaddrinfo(host or "0.0.0.0", 0, type=socket.SOCK_STREAM)
            chosen = next((info for info in found if info[0] == socket.AF_INET), found[0])
            address = str(chosen[4][0])
        server = await loop.create_server(factory, address, port, backlog=backlog, start_serving=False)
        for listener in server.sockets:
            for option, count in self._buffers.items():
                # an accepted socket inherits both, and the size of its window must be known before it opens
                listener.setsockopt(socket.SOL_SOCKET, option, count)
        await server.start_serving()
        return TcpListening(server, host)

    async def connect(self, host: str, port: int, factory: Any) -> tuple[asyncio.Transport, Any]:
        return await asyncio.get_running_loop().create_connection(factory, host, port)


class TcpListening:
    def __init__(self, server: asyncio.Server, host: str) -> None:
        self.host = host
        self.port: int = server.sockets[0].getsockname()[1]
        self._server = server

    def close(self) -> None:
        self._server.close()
