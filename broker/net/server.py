"""All connections of a broker: its listeners, the bounds that connections share, and the end of their rounds.

Owns: admission, pacing, idle connections, which rounds are written together, and the closing of connections
that hold memory without making progress. Does not own: which those are (frames, answers), one connection's
order (connection), real sockets (tcp), what a request means (dispatch). Invariant: every limit of `Limits`
holds for all connections together at every moment; a round is finished before the read buffer it lies in is
used again.

Connections that are read in one turn of the loop with nothing but Produces share one write: their rounds are
deferred to the end of that turn (`defer_round`, `finish_deferred`). Every other round is finished at once
(`finish_round`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from broker.net.answers import AnswerAccount
from broker.net.connection import Answer, Connection, Service
from broker.net.frames import FrameAccount
from broker.ports import Listening, Network

logger = logging.getLogger(__name__)

_SWEEPS_PER_IDLE: Final = 10
_QUEUED_BYTES: Final = 512 << 20
_LARGE_PART: Final = 8
"""One part in so many of the limit for requests goes to empty buffers of large frames besides."""
WATCH_S: Final = 1.0
"""Between two looks at those that hold memory; the rules of `frames` and `answers` count in it."""
_LOOKS: Final = 256
"""Connections that are looked at each second for peers that left: a system call each."""
_ROUNDS_APART: Final = 64
"""Rounds that are finished at once before one waits for company again."""
_DEFERRED_BYTES_MAX: Final = 256 * 1024
"""Appended and not yet written by deferred rounds: more would leave the processor's cache."""
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may take of a broker; each limit is the setting of Kafka that is named with it."""

    request_bytes: int = 100 * 1024 * 1024
    """socket.request.max.bytes"""
    connections: int = _UNLIMITED
    """max.connections"""
    connections_per_ip: int = _UNLIMITED
    """max.connections.per.ip"""
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides"""
    creation_rate: int = _UNLIMITED
    """max.connection.creation.rate, per second"""
    idle_ms: int = 600_000
    """connections.max.idle.ms; below 0, no connection is ever too idle."""
    queued_bytes: int = -1
    """queued.max.request.bytes; -1 is the broker's own limit."""
    backlog: int = 50
    """socket.listen.backlog.size"""


class NetworkStats:
    """Counters that are read at scrape time."""

    __slots__ = ("accepted", "bytes_in", "closed_idle", "rejected")

    def __init__(self) -> None:
        self.accepted = 0
        self.rejected = 0
        self.closed_idle = 0
        self.bytes_in = 0


class NetworkServer:
    """All listeners and connections of a broker, and the limits they share."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        service: Service[Any],
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
        queued_max = limits.queued_bytes if limits.queued_bytes > 0 else _QUEUED_BYTES
        self.frames: FrameAccount[Connection] = FrameAccount(queued_max)
        self.answers: AnswerAccount[Connection] = AnswerAccount()
        self._large_max = queued_max // _LARGE_PART
        self._large: dict[Connection, int] = {}
        """Bytes of the read buffers that large frames left behind, the longest unused first."""
        self._large_bytes = 0
        self._watch_timer: asyncio.TimerHandle | None = None
        self._to_look_at: list[Connection] = []
        self._next_admission = 0.0
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._is_open = False
        self._deferred: list[tuple[Connection, list[Answer]]] = []
        self._deferred_bytes = 0
        self._rounds_apart = 0

    def __repr__(self) -> str:
        return f"<NetworkServer {len(self._connections)} connections, {self.queued_bytes} bytes queued>"

    @property
    def frame_bytes_max(self) -> int:
        return self.limits.request_bytes

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def queued_bytes(self) -> int:
        return self.frames.bytes

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
        """Serve. Connections made between `listen` and now have waited unread."""
        self._is_open = True
        for connection in list(self._connections):
            connection.unpace()

    def stop_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    async def close(self) -> None:
        """Stop accepting and close every connection; what was answered still leaves."""
        self._closed = True
        self.stop_listening()
        for timer in (self._sweep_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        self._sweep_timer = self._watch_timer = None
        for connection in list(self._connections):
            connection.close()
        for _ in range(3):
            await asyncio.sleep(0)

    # --- rounds ---

    def defer_round(self, connection: Connection, answers: list[Answer], size: int) -> None:
        """Finish a round of nothing but Produces, about `size` bytes, together with those of other
        connections that are read in the same turn of the loop, which costs each of them a quarter less. As
        long as there are none, rounds are finished at once, and now and then one is deferred to see whether
        that is still so.
        """
        if self._rounds_apart:
            self._rounds_apart -= 1
            self.finish_round(connection, answers)
            return
        if not self._deferred:
            self.loop.call_soon(self.finish_deferred)
        self._deferred.append((connection, answers))
        connection.has_deferred_round = True
        self._deferred_bytes += size
        if self._deferred_bytes > _DEFERRED_BYTES_MAX:
            self.finish_deferred()

    def finish_round(self, connection: Connection, answers: list[Answer]) -> None:
        """Write, answer and wake for one connection's round, after the deferred ones."""
        if self._deferred:
            self.finish_deferred()
        written = self.service.write_staged()
        connection.reply(answers)
        self.service.wake(written)

    def finish_deferred(self) -> None:
        """Write, answer and wake for all deferred rounds at once."""
        rounds = self._deferred
        if not rounds:
            return
        self._deferred = []
        self._deferred_bytes = 0
        if len(rounds) == 1:
            self._rounds_apart = _ROUNDS_APART
        for connection, _ in rounds:
            connection.has_deferred_round = False
        try:
            written = self.service.write_staged()
        except Exception:
            for connection, _ in rounds:
                connection.abort("its requests could not be written to the log")
            raise
        for connection, answers in rounds:
            try:
                connection.reply(answers)
            except Exception as error:
                logger.error("an answer failed", exc_info=error)
                connection.abort("its answer failed")
        self.service.wake(written)

    # --- admission ---

    def admit(self, connection: Connection) -> str | None:
        """Take the connection in; return None, or why it is refused."""
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
            refusal = "the file descriptors that are left are kept for log files"
        elif self._is_open and self._queued_for_rate() >= max(limits.backlog, 1):
            queued = "socket.listen.backlog.size connections are already queued"
            refusal = f"over max.connection.creation.rate, and {queued}"
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

    def _queued_for_rate(self) -> int:
        """How many connections wait unread because of max.connection.creation.rate. In Kafka, which stops
        accepting, they would be in the listen queue."""
        if self.limits.creation_rate >= _UNLIMITED:
            return 0
        return max(0, ceil((self._next_admission - self.loop.time()) * max(self.limits.creation_rate, 1)))

    def _pace_creation(self, connection: Connection) -> None:
        """Read later from a connection that comes too early for max.connection.creation.rate."""
        rate = self.limits.creation_rate
        if rate >= _UNLIMITED:
            return
        now = self.loop.time()
        self._next_admission = max(self._next_admission, now - 1.0) + 1.0 / max(rate, 1)
        if self._next_admission > now:
            connection.pace()
            self.loop.call_at(self._next_admission, connection.unpace)

    def forget(self, connection: Connection) -> None:
        if self._connections.pop(connection, 0) is not None:
            return
        host = connection.peer_host
        self._per_ip[host] -= 1
        if self._per_ip[host] <= 0:
            del self._per_ip[host]
        self.forget_large_buffer(connection)
        self.answers.forget(connection)
        if connection.kept_bytes:
            # its request is still worked on, and in memory
            self.frames.hold(connection, connection.kept_bytes, open_frame=0)
        else:
            self.frames.forget(connection)
        self._admit_queued()

    # --- memory ---

    def account(self, connection: Connection, queued: int, *, open_frame: int) -> None:
        """Count the request bytes that wait at a connection; stop reading from it if its frame has to wait
        for room."""
        if not self.frames.hold(connection, queued, open_frame=open_frame):
            connection.await_room()
        elif connection.awaits_room:
            self.loop.call_soon(connection.given_room)
        if self.frames.has_changed:
            self._admit_queued()
        if self._watch_timer is None and not self.frames.is_idle:
            self._schedule_watch()

    def note_unread(self, connection: Connection, size: int) -> None:
        """Count the bytes of answers that a client has not taken."""
        self.answers.note(connection, size)
        if self.answers.is_full:
            self._look_at_answers()
            for loser in self.answers.losers():
                loser.abort("it does not take its answers, and those of all clients are too many")
                self.answers.forget(loser)
        if self._watch_timer is None and not self.answers.is_idle:
            self._schedule_watch()

    def _admit_queued(self) -> None:
        for connection in self.frames.admit():
            # not from within the reading of another
            self.loop.call_soon(connection.given_room)

    def _schedule_watch(self) -> None:
        if not self._closed:
            self._watch_timer = self.loop.call_later(WATCH_S, self._watch)

    def _watch(self) -> None:
        """Look each second at those which hold memory, as long as anybody does."""
        self._watch_timer = None
        frames, answers = self.frames, self.answers
        frames.tick()
        for connection in frames.losers():
            connection.abort("its request made no progress, and others wait for the memory")
        answers.tick()
        self._look_at_answers()
        for connection in answers.quiet():
            connection.abort("it does not take its answers, and those of all clients are many")
        for connection in list(answers.holders()):
            if connection.is_closing and answers.is_quiet(connection):
                connection.abort("it does not take its last answers")
        self._look_for_lost_peers()
        if not frames.is_idle or not answers.is_idle:
            self._schedule_watch()

    def _look_at_answers(self) -> None:
        for connection in list(self.answers.holders()):
            self.answers.note(connection, connection.unread_bytes)

    def _look_for_lost_peers(self) -> None:
        """Some of those whose peer may have left unnoticed, because nothing is read from it."""
        if not self._to_look_at:
            self._to_look_at = list(self.frames.holders())
        some = self._to_look_at[-_LOOKS:]
        del self._to_look_at[-_LOOKS:]
        for connection in some:
            if connection.has_lost_peer:
                connection.abort("the peer left")

    def keep_large_buffer(self, connection: Connection, size: int) -> None:
        """Let the connection keep an empty large buffer for its next large frame, as long as all of them
        together stay below a part of the limit for what waits in memory.
        """
        self.forget_large_buffer(connection)
        self._large[connection] = size
        self._large_bytes += size
        while self._large_bytes > self._large_max and len(self._large) > 1:
            oldest = next(iter(self._large))
            oldest.shrink()
            self.forget_large_buffer(oldest)

    def forget_large_buffer(self, connection: Connection) -> None:
        self._large_bytes -= self._large.pop(connection, 0)

    # --- idle ---

    def _schedule_sweep(self) -> None:
        if self.limits.idle_ms < 0 or self._closed:
            return
        every = max(self.limits.idle_ms / 1000 / _SWEEPS_PER_IDLE, 0.01)
        self._sweep_timer = self.loop.call_later(every, self._sweep)

    def _sweep(self) -> None:
        """Close what was idle for too long. One timer serves all: a connection carries the tick of its last
        read."""
        self.tick += 1
        oldest = self.tick - _SWEEPS_PER_IDLE
        for connection in list(self._connections):
            if connection.has_lost_peer:
                connection.abort("the peer left")
            elif connection.tick >= self.tick - 1 or connection.is_waiting:
                continue
            elif connection.tick < oldest:
                self.stats.closed_idle += 1
                connection.abort("idle")
            else:
                connection.shrink()
        self._schedule_sweep()
