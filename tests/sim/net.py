"""Owns the network in memory: hosts, listeners, connections, and every way in which they disappoint.

Per connection bytes keep their order; between connections nothing is promised. Bytes are cut and joined at
random places, windows are finite (a reader that stops fills its sender's buffer), links can be cut in one or
both directions (bytes wait, as TCP would make them), and a host that lost power answers nothing until it is
back, when it answers with resets. Does not own what the bytes mean.

Invariant: a byte is delivered at most once, in order, and never to a process other than the one that
accepted the connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.loop import Killed, Process, SimLoop

CONNECT_TIMEOUT_S = 30.0
EPHEMERAL_FROM = 40_000
LOCAL_NAMES = frozenset({"", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"})

_kernel = contextvars.Context()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """How a healthy network behaves in this run."""

    latency_min_s: float = 0.0001
    latency_max_s: float = 0.002
    spike_chance: float = 0.0
    spike_max_s: float = 0.2
    split_chance: float = 0.1
    window_bytes: int = 256 * 1024
    high_water_bytes: int = 64 * 1024


class Host:
    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.listeners: dict[int, SimListening] = {}
        self.next_port = EPHEMERAL_FROM

    def take_port(self) -> int:
        self.next_port += 1
        return self.next_port


Cut = tuple[tuple[str, str], ...]


class Fabric:
    """All hosts and the links between them. Cuts of one link add up: it works when the last is mended."""

    def __init__(self, loop: SimLoop, rng: random.Random, profile: NetworkProfile | None = None) -> None:
        self.loop = loop
        self.rng = rng
        self.profile = profile or NetworkProfile()
        self.hosts: dict[str, Host] = {}
        self.connections: list[Connection] = []
        self._cuts: dict[tuple[str, str], int] = {}
        self._healed: list[asyncio.Future[None]] = []
        self._next_connection = 0

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(name)
        return self.hosts[name]

    def endpoint(self, host: str, process: Process) -> SimNetwork:
        self.host(host).up = True
        return SimNetwork(self, host, process)

    # faults -------------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str, *, both: bool = True) -> Cut:
        """From a to b, or both ways; what comes back is for `mend`."""
        self.loop.trace("cut", a, b, both)
        made: Cut = ((a, b), (b, a)) if both else ((a, b),)
        for link in made:
            self._cuts[link] = self._cuts.get(link, 0) + 1
        return made

    def mend(self, cut: Cut) -> None:
        """Take one cut back; nothing happens when `heal` has done so already."""
        self.loop.trace("mend", *cut)
        for link in cut:
            left = self._cuts.get(link, 0) - 1
            if left > 0:
                self._cuts[link] = left
            else:
                self._cuts.pop(link, None)
        self._wake()

    def heal(self) -> None:
        self.loop.trace("heal")
        self._cuts.clear()
        self._wake()

    def _wake(self) -> None:
        for connection in list(self.connections):
            connection.release_held()
        waiters, self._healed = self._healed, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def is_cut(self, src: str, dst: str) -> bool:
        return bool(self._cuts) and (src, dst) in self._cuts

    @property
    def has_frozen(self) -> bool:
        """Whether anybody may still wait for an answer on a connection that is frozen: healing ends none."""
        return any(each.frozen and not each.client.is_lost for each in self.connections)

    def reset_some(self, chance: float, *, host: str | None = None) -> int:
        count = 0
        for connection in list(self.connections):
            if host is not None and host not in (connection.client.local[0], connection.server.local[0]):
                continue
            if self.rng.random() < chance:
                connection.reset()
                count += 1
        return count

    def power_off(self, host: str) -> None:
        """Silence: listeners and connections are gone, and nobody is told."""
        self.host(host).up = False

    # plumbing -----------------------------------------------------------------------------------------------

    def latency(self) -> float:
        profile, rng = self.profile, self.rng
        base = profile.latency_min_s + rng.random() * (profile.latency_max_s - profile.latency_min_s)
        if profile.spike_chance and rng.random() < profile.spike_chance:
            base += rng.random() * profile.spike_max_s
        return base

    def at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Run as the kernel: in no process, so that no kill stops it."""
        self.loop.push_timer(when, callback, args, _kernel)

    def next_connection(self) -> int:
        self._next_connection += 1
        return self._next_connection

    async def wait_healed(self, timeout_s: float) -> bool:
        waiter = self.loop.create_future()
        self._healed.append(waiter)
        done, _ = await asyncio.wait([waiter], timeout=timeout_s)
        return bool(done)


class SimListening:
    def __init__(
        self, fabric: Fabric, host: str, port: int, process: Process, factory: Callable[[], Any]
    ) -> None:
        self.host = host
        self.port = port
        self.process = process
        self.factory = factory
        self._fabric = fabric
        self._node = ""

    def bind(self, node: str) -> None:
        listeners = self._fabric.host(node).listeners
        holder = listeners.get(self.port)
        if holder is not None and holder.process.alive:
            raise OSError(errno.EADDRINUSE, f"port {self.port} is taken")
        listeners[self.port] = self
        self._node = node

    def close(self) -> None:
        listeners = self._fabric.host(self._node).listeners
        if listeners.get(self.port) is self:
            del listeners[self.port]


class SimNetwork:
    """The Network seam of one process on one host."""

    def __init__(self, fabric: Fabric, host: str, process: Process) -> None:
        self._fabric = fabric
        self._host = host
        self._process = process

    async def listen(self, host: str, port: int, factory: Callable[[], Any], *, backlog: int) -> SimListening:
        self._process.check_alive()
        node = self._fabric.host(self._host)
        listening = SimListening(self._fabric, host, port or node.take_port(), self._process, factory)
        listening.bind(self._host)
        return listening

    async def connect(
        self, host: str, port: int, factory: Callable[[], Any], **_: object
    ) -> tuple[asyncio.Transport, Any]:
        self._process.check_alive()
        fabric = self._fabric
        target = self._host if host in LOCAL_NAMES else host
        deadline = fabric.loop.now + CONNECT_TIMEOUT_S
        await asyncio.sleep(fabric.latency())
        while fabric.is_cut(self._host, target) or fabric.is_cut(target, self._host):
            if not await fabric.wait_healed(max(0.0, deadline - fabric.loop.now)):
                raise TimeoutError(errno.ETIMEDOUT, f"connect {target}:{port}: the network is cut")
        node = fabric.hosts.get(target)
        if node is None:
            raise OSError(errno.EHOSTUNREACH, f"no such host {host}")
        if not node.up:
            await asyncio.sleep(max(0.0, deadline - fabric.loop.now))
            raise TimeoutError(errno.ETIMEDOUT, f"connect {target}:{port}: host is down")
        listening = node.listeners.get(port)
        if listening is None or not listening.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connect {target}:{port} refused")
        connection = Connection(fabric, self._process, self._host, listening, target)
        protocol = connection.client.attach(factory())
        await asyncio.sleep(0)
        return connection.client, protocol


class Connection:
    """Two transports and the fate they share."""

    def __init__(
        self, fabric: Fabric, process: Process, host: str, listening: SimListening, target: str
    ) -> None:
        self.fabric = fabric
        self.number = fabric.next_connection()
        local = (host, fabric.host(host).take_port())
        remote = (target, listening.port)
        self.client = SimTransport(self, process, local, remote)
        self.server = SimTransport(self, listening.process, remote, local)
        self.client.peer, self.server.peer = self.server, self.client
        self.frozen = False
        self.is_half_open = False  # one end is gone, and the other was not told
        fabric.connections.append(self)
        fabric.loop.trace("connect", self.number, host, target, listening.port)
        self.server.soon(self.server.accept, listening.factory)

    def reset(self) -> None:
        """Both ends learn it; what was under way is gone."""
        self.fabric.loop.trace("reset", self.number)
        for side in (self.client, self.server):
            side.arrived.clear()
            side.lose(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def freeze(self) -> None:
        """Half-open for ever: bytes vanish, and nobody is told."""
        self.frozen = self.is_half_open = True

    def release_held(self) -> None:
        for side in (self.client, self.server):
            if not self.fabric.is_cut(side.remote[0], side.local[0]):
                side.release_held()

    def forget(self) -> None:
        if self.client.is_lost and self.server.is_lost and self in self.fabric.connections:
            self.fabric.connections.remove(self)


_EOF = b""


class SimTransport(asyncio.Transport):
    """One end of a connection, as asyncio's selector transport behaves towards a Protocol or
    BufferedProtocol."""

    peer: SimTransport

    def __init__(
        self, connection: Connection, process: Process, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__()
        self.connection = connection
        self.fabric = connection.fabric
        self.process = process
        self.local = local
        self.remote = remote
        self.protocol: Any = None
        self._context = process.context.copy()
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._unread_bytes = 0  # sent and not yet read by the peer: what its window is charged with
        self._last_arrival = 0.0
        self._high = self.fabric.profile.high_water_bytes
        self._low = self._high // 4
        self._paused_writing = False
        self._eof_written = False
        self._eof_sent = False
        self.arrived = bytearray()
        self._arrived_eof = False
        self._held: deque[bytes] = deque()
        self._reading = True
        self._read_scheduled = False
        self._closing = False
        self.is_lost = False
        self._announced = False
        process.on_death.append(self._on_process_death)

    # asyncio.Transport --------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self.process.alive:
            raise Killed(self.process.name)
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.is_lost or self._closing or not len(data):
            return
        copied = bytes(data)
        if not isinstance(data, bytes):
            self._audit(data, copied)
        self._outgoing.append(copied)
        self._outgoing_bytes += len(copied)
        self._pump()
        if self._outgoing_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _audit(self, data: Any, copied: bytes) -> None:
        """Fast loops send a buffer they were lent at the end of the iteration: it must not have changed by
        then."""

        def check() -> None:
            try:
                changed = bytes(data) != copied
            except ValueError:  # a released memoryview cannot be sent either, but the copy was taken in time
                changed = False
            assert not changed, f"connection {self.connection.number}: buffer changed after write()"

        self.fabric.loop.call_soon(check, context=_kernel)

    def write_eof(self) -> None:
        self._eof_written = True
        self._pump()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self._closing or not self.process.alive:
            return
        self._closing = True
        self._reading = False
        if not self._outgoing:
            self._finish()

    def abort(self) -> None:
        if not self.process.alive:
            return
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self.arrived += b"\0"  # an unread byte makes the kernel answer with a reset
        self._closing = True
        self._finish()

    def is_closing(self) -> bool:
        return self._closing or self.is_lost

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._schedule_read()

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 64 * 1024
        self._low = low if low is not None else self._high // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.remote
        if name == "sockname":
            return self.local
        return default

    # life ---------------------------------------------------------------------------------------------------

    def soon(self, callback: Callable[..., object], *args: object) -> None:
        self.fabric.loop.call_soon(callback, *args, context=self._context)

    def accept(self, factory: Callable[[], Any]) -> None:
        self.attach(factory())

    def attach(self, protocol: Any) -> Any:
        self.protocol = protocol
        if not self.is_lost:
            self._announced = True
            protocol.connection_made(self)
            self._schedule_read()
        return protocol

    def lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._reading = False
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._announced:
            self.soon(self.protocol.connection_lost, error)
        if self._on_process_death in self.process.on_death:
            self.process.on_death.remove(self._on_process_death)
        self.connection.forget()

    def _finish(self) -> None:
        """Nothing left to send: leave with a FIN, or with a reset when there is something left unread."""
        if self.is_lost:
            return
        if self.arrived:
            self._send_reset()
        elif not self._eof_sent:
            self._eof_sent = True
            self._send(_EOF)
        self.lose(None)

    def _on_process_death(self, power: bool) -> None:
        self.is_lost = True
        self._reading = False
        if power:
            self.connection.is_half_open = True
        else:
            if self.arrived or self.fabric.rng.random() < 0.3:
                self._send_reset()
            else:
                self._send(_EOF)
        self.connection.forget()

    def _send_reset(self) -> None:
        fabric = self.fabric
        if self.connection.frozen or fabric.is_cut(self.local[0], self.remote[0]):
            self.connection.is_half_open = True
            return
        fabric.at(fabric.loop.now + fabric.latency(), self.peer._reset_arrived)

    def _reset_arrived(self) -> None:
        self.arrived.clear()
        if self.process.alive:
            self.lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    # sending ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        outgoing, fabric = self._outgoing, self.fabric
        profile, rng = fabric.profile, fabric.rng
        window = profile.window_bytes
        while outgoing and self._unread_bytes < window:
            head = outgoing.popleft()
            size = min(len(head), window - self._unread_bytes)
            if size > 1 and rng.random() < profile.split_chance:
                size = rng.randrange(1, size + 1)
            if size < len(head):
                outgoing.appendleft(head[size:])
                head = head[:size]
            self._outgoing_bytes -= size
            self._unread_bytes += size
            self._send(head)
        if self._eof_written and not outgoing and not self._eof_sent:
            self._eof_sent = True
            self._send(_EOF)

    def _send(self, piece: bytes) -> None:
        fabric = self.fabric
        loop = fabric.loop
        when = max(self._last_arrival + 1e-9, loop._virtual_now + fabric.latency())
        self._last_arrival = when
        loop.push_timer(when, self.peer._piece_arrives, (piece,), _kernel)

    def _window_opened(self) -> None:
        self._pump()
        if self._paused_writing and self._outgoing_bytes <= self._low and not self.is_lost:
            self._paused_writing = False
            self.protocol.resume_writing()
        if self._closing and not self._outgoing:
            self._finish()

    # receiving ----------------------------------------------------------------------------------------------

    def _piece_arrives(self, piece: bytes) -> None:
        if self.connection.frozen:
            return
        if self._held or self.fabric.is_cut(self.remote[0], self.local[0]):
            self._held.append(piece)
            return
        self._receive(piece)

    def release_held(self) -> None:
        while self._held:
            self._receive(self._held.popleft())

    def _receive(self, piece: bytes) -> None:
        if self.is_lost:
            # Nobody holds this port any more: a living host answers with a reset, a dead one not at all.
            if piece and self.fabric.host(self.local[0]).up:
                self._send_reset()
            return
        if piece:
            self.arrived += piece
        else:
            self._arrived_eof = True
        self._schedule_read()

    def _schedule_read(self) -> None:
        if (
            (self.arrived or self._arrived_eof)
            and self._reading
            and not self._read_scheduled
            and self._announced
        ):
            self._read_scheduled = True
            self.soon(self._read)

    def _read(self) -> None:
        self._read_scheduled = False
        if not self._reading or self.is_lost:
            return
        if self.arrived:
            self._feed()
            self._schedule_read()
        elif self._arrived_eof:
            self._arrived_eof = False
            keep_open = self.protocol.eof_received()
            if not keep_open:
                self.close()

    def _feed(self) -> None:
        fabric, protocol, arrived = self.fabric, self.protocol, self.arrived
        size = len(arrived)
        if size > 1 and fabric.rng.random() < fabric.profile.split_chance:
            size = fabric.rng.randrange(1, size + 1)
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = protocol.get_buffer(-1)
            size = min(size, len(buffer))
            assert size > 0, "get_buffer() returned an empty buffer"
            memoryview(buffer)[:size] = arrived if size == len(arrived) else arrived[:size]
            del arrived[:size]
            self._credit_sender(size)
            protocol.buffer_updated(size)
        else:
            size = min(size, 256 * 1024)
            data = bytes(arrived if size == len(arrived) else arrived[:size])
            del arrived[:size]
            self._credit_sender(size)
            protocol.data_received(data)

    def _credit_sender(self, size: int) -> None:
        peer = self.peer
        peer._unread_bytes -= size
        if not peer.is_lost and (peer._outgoing or peer._paused_writing or peer._closing):
            peer.soon(peer._window_opened)
