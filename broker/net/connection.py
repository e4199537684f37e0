"""One client's connection: its requests in order, and their answers in the same order.

Owns: reading frames, holding back what may not run yet, ordered slots, handing answers to the transport. Does
not own: what a request means (the service), the limits that connections share (server, frames, answers), how
a big answer leaves (sending). Invariant: the responses of one connection leave in the order of its requests;
what one connection can make the broker keep is bounded: one read buffer, one frame, one read's worth of held
frames, `PIPELINED_MAX` unanswered Produce requests, one round's answers behind them, and the transport's high
water mark plus one chunk.

A round is all complete frames of one read. Its phases: every frame is handled, which appends in memory and
gives an answer or an `AfterWrite`; the service writes what was appended (one write per partition); every
`AfterWrite` gives its answer; one send leaves with all of them; the service wakes those waiting for what was
written. Unbatched responses cost twice the CPU. A request that must wait stalls its connection, as Kafka's
mute does, except Produce: the next Produce only appends behind it.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from broker.net.frames import FREE_BYTES, address_of
from broker.net.sending import Bulk, BulkSender
from protocol.errors import FrameTooLarge
from protocol.wire import FrameReader

logger = logging.getLogger(__name__)

PIPELINED_MAX: Final = 1000
"""Produce requests of one connection that may wait for their commit before the next request is held back."""
_HELD_ROUND: Final = 64
_UNSENT_MAX: Final = 256 * 1024
_LARGE_BUFFER: Final = 1 << 20
"""What a read buffer grows to by itself; a larger one is there for a large frame."""

# Why a connection handles no further request just now; any bit set stalls it.
WAIT, BULK, WRITE, PIPELINE, CLOSED, PACED, ROOM, ENDING = 1, 2, 4, 8, 16, 32, 64, 128
_OVER: Final = CLOSED | ENDING

Frame: TypeAlias = "memoryview | bytearray"


class Disconnect(Exception):
    """The peer broke the protocol: close without an answer to this request."""


class AnswerSlot:
    """The place of an answer that is not there yet."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: bytes | Bulk | None = None


def _memory_of(answer: Any) -> int:
    """Return the bytes that one of the answers in order keeps in memory."""
    found = answer.answer if answer.__class__ is AnswerSlot else answer
    if found.__class__ is bytes:
        return len(found)
    return found.memory if found.__class__ is Bulk else 0


Finish: TypeAlias = "Callable[[Connection, Any], Answer | list[Answer]]"
AfterWrite: TypeAlias = tuple[Finish, *tuple[Any, ...]]
"""The answer to one or more frames as far as it is known before the write: a callable, then whatever it wants
to find. Once what was handled is written it is called with the connection and this tuple. It may give a list:
the answers to several frames. A plain tuple, because one is made for each run of requests and a class of its
own costs 0.1 µs more."""
Answer: TypeAlias = "bytes | AnswerSlot | Bulk | AfterWrite | None"
"""What handling a frame gives; None is no response at all."""

WrittenT = TypeVar("WrittenT")


class Service(Protocol[WrittenT]):
    """What runs behind the connections. `WrittenT` is what one write changed, which decides what is woken."""

    def new_memo(self) -> Any:
        """What the service remembers of one connection's requests, as `Connection.memo`. Its `templates` are
        falsy as long as `repeat` has nothing to go by."""

    def repeat(self, connection: Connection, frames: Sequence[Frame], at: int, answers: list[Answer]) -> int:
        """Handle frames from `at` on by the short way for as long as it may; return where it stopped."""

    def handle(self, connection: Connection, frame: Frame) -> Answer: ...

    def write_staged(self) -> WrittenT:
        """Write what was handled so far; the result goes to `wake` once the answers are out."""

    def wake(self, written: WrittenT) -> None:
        """Wake the requests that wait for what was written."""


class Waiter(Protocol):
    """A wait whose end answers the slot that a connection stalls for."""

    @property
    def done(self) -> bool: ...
    def abandoned(self) -> None:
        """End the wait because the client went away."""


class Host(Protocol):
    """What a connection needs of the server that it belongs to."""

    tick: int

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def service(self) -> Service[Any]: ...
    @property
    def frame_bytes_max(self) -> int: ...
    @property
    def connection_count(self) -> int: ...

    def admit(self, connection: Connection) -> str | None: ...
    def forget(self, connection: Connection) -> None: ...
    def account(self, connection: Connection, queued: int, *, open_frame: int) -> None: ...
    def note_unread(self, connection: Connection, size: int) -> None: ...
    def keep_large_buffer(self, connection: Connection, size: int) -> None: ...
    def forget_large_buffer(self, connection: Connection) -> None: ...
    def defer_round(self, connection: Connection, answers: list[Answer], size: int) -> None: ...
    def finish_round(self, connection: Connection, answers: list[Answer]) -> None: ...
    def finish_deferred(self) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """One client. The service may use: `memo`, `slot`, `keep`, `let_go`, `answer`, `resume`, `waiter`,
    `on_lost`, `unsent`, `connection_count` and `close`."""

    def __init__(self, host: Host, listener: str) -> None:
        self.listener = listener
        self.peer_host = ""
        self.peer_port = 0
        self.address = ""
        """What the client's bytes are counted under, together with those of others on its host."""
        self.is_peer = False
        """Whether a broker asks here, which never waits for clients to make room."""
        self.waiter: Waiter | None = None
        """The wait that answers the slot this connection stalls for; it ends when the client goes away."""
        self.on_lost: Callable[[], None] | None = None
        """Called when the client went away, whether or not it waited for anything then."""
        self.memo = host.service.new_memo()
        """What the service remembers of this connection's requests; only the service looks into it."""
        self.tick = host.tick
        self.unsent = 0
        """Bytes answered and not yet sent: a round ends early when they are many, and no other begins while
        they stand behind an answer that is not there yet."""
        self.has_deferred_round = False
        """Its last round was handled and is neither written nor answered yet: `Host.finish_deferred`."""
        self._host = host
        self._service = host.service
        self._reader = FrameReader(host.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._stalled = 0
        self._paused = False
        self._is_asked = False
        """Whether the loop asks for a buffer: it must go on reading until it has one."""
        self._held: deque[Frame] = deque()
        self._kept_bytes = 0
        """Of the frame whose request is in work."""
        self._slots: deque[Answer] = deque()
        self._sender: BulkSender | None = None
        """Made with the first big answer."""
        self._bulk: BulkSender | None = None
        """The sender while a big answer leaves."""
        self._is_running = False
        self._queued = 0
        self._why_ending: str | None = None
        """Why it is closed when a big answer has left, if its client did not end it."""

    def __repr__(self) -> str:
        return f"<Connection {self.peer_host}:{self.peer_port} {self.listener} stalled={self._stalled:#x}>"

    # --- transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = self._transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
            self.address = address_of(self.peer_host)
        refusal = self._host.admit(self)
        if refusal is not None:
            logger.info("refused a connection from %s: %s", self.peer_host, refusal)
            self._stalled |= CLOSED
            self._stop(self._transport.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stalled |= CLOSED
        self._drop_sender()
        self._host.forget(self)
        self._queued = 0
        self._held.clear()
        self._slots.clear()
        self._bulk = None
        self.memo = self._service.new_memo()
        self._reader.discard()
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done:
            waiter.abandoned()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.has_deferred_round:
            # what was appended still lies in the buffer
            self._is_asked = True
            try:
                self._host.finish_deferred()
            finally:
                self._is_asked = False
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._stalled & _OVER:
            return
        self.tick = self._host.tick
        try:
            frames = self._reader.received(nbytes)
        except FrameTooLarge as error:
            self._end(str(error))
            return
        if self._reader.error is not None:
            # the frames before the bad size are good; handled unless they must wait, and then the connection
            # goes
            if not self._stalled and not self._held:
                self._run(frames)
            self._end(str(self._reader.error))
            return
        if not frames:
            self._account()
            return
        if self._stalled or self._held:
            self._hold(frames)
        else:
            self._run(frames)
            if self._queued:
                self._account()

    def eof_received(self) -> bool:
        if self.has_deferred_round:
            self._host.finish_deferred()
        if self._bulk is None or self._stalled & CLOSED:
            return False
        # it may read on, and gets what is on its way
        self._stalled |= ENDING
        return True

    def pause_writing(self) -> None:
        self._stalled |= WRITE
        self._note_unread()

    def resume_writing(self) -> None:
        self._stalled &= ~WRITE
        self.tick = self._host.tick
        if self._bulk is not None:
            self._bulk.resume()
        self._continue()
        self._note_unread()

    # --- requests ---

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
        """Handle frames until one stalls the connection; return what is left."""
        answers: list[Answer] = []
        at = 0
        broken: str | None = None
        try:
            if self.memo.templates:
                at = self._service.repeat(self, frames, 0, answers)
                if at == len(frames):
                    self._host.defer_round(self, answers, len(frames) * len(frames[0]))
                    return ()
            at = self._handle(frames, at, answers)
        except Disconnect as error:
            broken, at = str(error), len(frames)
        self._host.finish_round(self, answers)
        if broken is not None:
            self._end(broken)
        return frames[at:]

    def _handle(self, frames: Sequence[Frame], at: int, answers: list[Answer]) -> int:
        """Handle them one by one, those that follow by the short way where it takes them, until one stalls
        the connection; return where that is."""
        handle, repeat = self._service.handle, self._service.repeat
        while at < len(frames):
            answer = handle(self, frames[at])
            at += 1
            if answer is not None:
                answers.append(answer)
            if self._stalled or self.unsent > _UNSENT_MAX:
                break
            if self.memo.templates and at < len(frames):
                at = repeat(self, frames, at, answers)
        return at

    def reply(self, answers: list[Answer]) -> None:
        """Answer a round once it is written."""
        slots = self._slots
        ready: list[bytes] = []
        broken: str | None = None
        answer: Any
        for answer in answers:
            if answer.__class__ is tuple:  # AfterWrite
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
            self._end(broken)

    def _hold(self, frames: Sequence[Frame]) -> None:
        """Keep frames until the connection may continue."""
        self._held.extend(map(self._kept, frames))
        self._account()
        self._pause()

    def _pause(self) -> None:
        """Stop reading, even if that was said before: uvloop reads on after a pause in `connection_made`."""
        if self._transport is not None:
            self._paused = True
            self._stop(self._pause_transport)

    def _pause_transport(self) -> None:
        if self._paused and self._transport is not None:
            self._transport.pause_reading()

    def _stop(self, stop: Callable[[], object]) -> None:
        """End reading, for now or for good: at once, unless the loop asks for a buffer. uvloop does not
        survive it then, because libuv goes on with a reader that is gone.
        """
        if self._is_asked:
            self._host.loop.call_soon(stop)
        else:
            stop()

    def _continue(self) -> None:
        """Handle what was held, and read on when nothing is.

        A round may end the stall it began, as a big response does that the socket takes at once: the caller
        of `_round` then handles what is left of that round before anything that is held.
        """
        if self._is_running:
            return
        held = self._held
        self._is_running = True
        try:
            while held and not self._stalled:
                rest = self._round([held.popleft() for _ in range(min(len(held), _HELD_ROUND))])
                if rest:
                    held.extendleft(reversed(rest))
        finally:
            self._is_running = False
        if self._stalled:
            return
        if self._queued:
            self._account()
        if self._paused and not self._stalled and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # --- answers ---

    def slot(self) -> AnswerSlot:
        """Make a place for the answer to the request in hand, and stall until `resume`."""
        self._stalled |= WAIT
        return AnswerSlot()

    def keep(self, frame: Frame) -> Frame:
        """Return the frame in hand, to be worked on until `let_go` or `resume`.

        Until then it counts as waiting in memory, even when the client went away.
        """
        kept = self._kept(frame)
        self._kept_bytes = len(kept)
        self._account()
        return kept

    def let_go(self) -> None:
        """Count the frame in work no longer, because nothing holds it any more."""
        if not self._kept_bytes:
            return
        self._kept_bytes = 0
        if self._stalled & CLOSED:
            self._host.account(self, 0, open_frame=0)
        else:
            self._account()

    def _kept(self, frame: Frame) -> Frame:
        return frame if isinstance(frame, bytearray) else self._reader.keep(frame)

    def answer(self, slot: AnswerSlot, answer: bytes | Bulk) -> None:
        slot.answer = answer
        if not self._stalled & CLOSED:
            self._release([])

    def resume(self) -> None:
        self.waiter = None
        self._stalled &= ~WAIT
        self.let_go()
        self._continue()

    def _release(self, ready: list[bytes]) -> None:
        """Send every answer that has nothing unanswered before it."""
        slots = self._slots
        while slots and self._bulk is None:
            first: Any = slots[0]
            if first.__class__ is AnswerSlot:
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
            if self.unsent > _UNSENT_MAX:
                self._note_unread()
        elif self._stalled & PIPELINE and len(slots) < PIPELINED_MAX // 2:
            self._stalled &= ~PIPELINE
            self._note_unread()
            self._continue()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._stalled & CLOSED:
            self._transport.write(data)
            if self._stalled & WRITE:
                self._note_unread()

    def _end(self, reason: str) -> None:
        """Close because of what the peer has sent: after the answers to what came before that, as far as they
        are there."""
        if self._bulk is None or self._stalled & CLOSED:
            self.close(reason)
            return
        self._stalled |= ENDING
        self._why_ending = reason
        self._pause()

    def close(self, reason: str | None = None) -> None:
        """Close after what was answered has left, but for the rest of a big answer."""
        if self.has_deferred_round:
            self._host.finish_deferred()
        if reason is not None and not self._stalled & CLOSED:
            logger.info("closed the connection of %s:%d: %s", self.peer_host, self.peer_port, reason)
        if self._transport is not None:
            self._stalled |= CLOSED
            self._stop(self._transport.close if self._bulk is None else self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close at once, for a peer that does not take what is queued for it either."""
        logger.info("closed the connection of %s:%d: %s", self.peer_host, self.peer_port, reason)
        if self._transport is not None:
            self._stalled |= CLOSED
            self._stop(self._transport.abort)

    # --- big answers ---

    def _start_bulk(self, ready: list[bytes], bulk: Bulk) -> None:
        """Send a big answer, `ready` before it."""
        if self._transport is None or self._stalled & CLOSED:
            return
        if self._sender is None:
            self._sender = BulkSender(loop=self._host.loop, transport=self._transport, owner=self)
        self._bulk = self._sender
        self._stalled |= BULK
        self._bulk.send([*ready, *bulk.pieces])
        if self._bulk is not None:
            self._note_unread()

    @property
    def is_writable(self) -> bool:
        return self._transport is not None and not self._stalled & (WRITE | CLOSED)

    def bulk_progressed(self) -> None:
        self.tick = self._host.tick

    def bulk_ended(self) -> None:
        self._bulk = None
        self.tick = self._host.tick
        self._stalled &= ~BULK
        self._note_unread()
        if self._slots:
            self._release([])
        if self._stalled & ENDING and self._bulk is None:
            self.close(self._why_ending)
            return
        self._continue()

    def bulk_failed(self, error: OSError) -> None:
        logger.info("a response to %s:%d broke off: %s", self.peer_host, self.peer_port, error)
        self._drop_sender()
        if self._transport is not None:
            self._stalled |= CLOSED
            self._stop(self._transport.abort)

    def _drop_sender(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    # --- bounds ---

    def _account(self) -> None:
        """Tell the server how many request bytes wait here, an incomplete frame, held ones and one in work,
        and how large the frame will be that is read on."""
        reader = self._reader
        pending = reader.pending
        queued = pending + self._kept_bytes
        open_frame = 0
        if self._held:
            queued += sum(map(len, self._held))
        elif pending and queued >= FREE_BYTES:
            open_frame = reader.open_frame + self._kept_bytes
        self._queued = queued
        self._host.account(self, queued, open_frame=open_frame)
        if not queued and reader.capacity > _LARGE_BUFFER:
            self._host.keep_large_buffer(self, reader.capacity)

    def _note_unread(self) -> None:
        self._host.note_unread(self, self.unread_bytes)

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that are in memory because the client has not taken them, or because one before
        them is not there yet."""
        if self._transport is None:
            return 0
        count: int = self._transport.get_write_buffer_size()
        if self._bulk is not None:
            count += self._bulk.memory
        if self._stalled & PIPELINE:
            count += sum(map(_memory_of, self._slots))
        return count

    @property
    def connection_count(self) -> int:
        """How many connections share what the broker keeps for all of them; at least this one."""
        return max(self._host.connection_count, 1)

    @property
    def kept_bytes(self) -> int:
        """Of the frame that the broker works on."""
        return self._kept_bytes

    @property
    def is_at_work(self) -> bool:
        return self._kept_bytes > 0

    @property
    def is_closing(self) -> bool:
        return bool(self._stalled & CLOSED)

    @property
    def awaits_room(self) -> bool:
        return bool(self._stalled & ROOM)

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for the broker, and not the broker for it."""
        return bool(self._stalled & WAIT) or bool(
            self._slots and not self._stalled & WRITE and self._bulk is None
        )

    @property
    def has_lost_peer(self) -> bool:
        """Whether the peer closed while nothing is read here: the loop does not notice then, and what the
        peer waited for may be weeks away.
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
        """The socket's, or -1 where there is none (simulation)."""
        assert self._transport is not None
        real = self._transport.get_extra_info("socket")
        return -1 if real is None else int(real.fileno())

    def pace(self) -> None:
        """Read nothing until `unpace`: it comes before it is to be served."""
        self._stall(PACED)

    def await_room(self) -> None:
        """Read nothing until `given_room`: there is no memory for its request."""
        self._stall(ROOM)

    def _stall(self, reason: int) -> None:
        self._stalled |= reason
        self._pause()

    def unpace(self) -> None:
        self._go_on(PACED)

    def given_room(self) -> None:
        self._go_on(ROOM)

    def _go_on(self, reason: int) -> None:
        if self._stalled & reason:
            self._stalled &= ~reason
            self._continue()

    def shrink(self) -> None:
        """Give big buffers back, because the connection is quiet."""
        if not self._queued:
            self._reader.shrink()
            self._host.forget_large_buffer(self)
