"""The network: bytes in order however they are cut, finite windows, and every way to lose a peer."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.loop import Process, SimLoop
from tests.sim.net import Fabric, NetworkProfile


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.transport: asyncio.Transport | None = None
        self.lost: list[Exception | None] = []
        self.paused = 0
        self.resumed = 0
        self.eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.eof = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1


class Buffered(asyncio.BufferedProtocol):
    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self.received = bytearray()
        self.pieces = 0
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.pieces += 1
        self.received += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Pair:
    """A client process on host a, a server process on host b, one connection."""

    def __init__(self, seed: int = 0, **profile: float) -> None:
        self.loop = SimLoop()
        self.fabric = Fabric(self.loop, random.Random(seed), NetworkProfile(**profile))  # type: ignore[arg-type]
        self.a, self.b = Process(self.loop, "a"), Process(self.loop, "b")
        self.at_a, self.at_b = self.fabric.endpoint("a", self.a), self.fabric.endpoint("b", self.b)

    async def connect(self, client: asyncio.BaseProtocol, server: asyncio.BaseProtocol) -> asyncio.Transport:
        await self.at_b.listen("0.0.0.0", 9092, lambda: server, backlog=1)
        transport, _ = await self.at_a.connect("b", 9092, lambda: client)
        await asyncio.sleep(1)
        return transport


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("split_chance", [0.0, 0.9])
@pytest.mark.parametrize("window", [7, 1 << 20])
def test_bytes_arrive_once_and_in_order_however_they_are_cut(
    seed: int, split_chance: float, window: int
) -> None:
    pair = Pair(seed, split_chance=split_chance, window_bytes=window)
    data = random.Random(seed).randbytes(3000)

    async def main() -> None:
        server = Buffered(64)
        transport = await pair.connect(Recorder(), server)
        for at in range(0, len(data), 250):
            transport.write(data[at : at + 250])
            await asyncio.sleep(0)
        await asyncio.sleep(60)
        assert server.received == data

    pair.loop.run(main())


def test_a_reader_that_stops_fills_the_writer_until_it_reads_on() -> None:
    pair = Pair(window_bytes=1000, high_water_bytes=500)

    async def main() -> None:
        client, server = Recorder(), Recorder()
        transport = await pair.connect(client, server)
        assert server.transport is not None
        server.transport.pause_reading()
        transport.write(bytes(5000))
        await asyncio.sleep(5)
        assert client.paused == 1
        assert not server.received
        assert transport.get_write_buffer_size() == 4000
        server.transport.resume_reading()
        await asyncio.sleep(5)
        assert client.resumed == 1
        assert len(server.received) == 5000

    pair.loop.run(main())


def test_close_sends_what_is_buffered_then_eof() -> None:
    pair = Pair(window_bytes=100)

    async def main() -> None:
        client, server = Recorder(), Recorder()
        transport = await pair.connect(client, server)
        transport.write(bytes(5000))
        transport.close()
        assert transport.is_closing()
        await asyncio.sleep(60)
        assert len(server.received) == 5000
        assert server.eof
        assert client.lost == [None]
        assert server.lost == [None]
        assert not pair.fabric.connections

    pair.loop.run(main())


def test_one_way_cut_holds_bytes_until_it_heals() -> None:
    pair = Pair()

    async def main() -> None:
        client, server = Recorder(), Recorder()
        transport = await pair.connect(client, server)
        pair.fabric.cut("a", "b", both=False)
        transport.write(b"question")
        assert server.transport is not None
        server.transport.write(b"news")
        await asyncio.sleep(60)
        assert (bytes(server.received), bytes(client.received)) == (b"", b"news")
        pair.fabric.heal()
        transport.write(b"!")
        await asyncio.sleep(1)
        assert server.received == b"question!"

    pair.loop.run(main())


def test_refused_unreachable_and_cut_connects() -> None:
    pair = Pair()

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.at_a.connect("b", 1, Recorder)
        with pytest.raises(OSError, match="no such host"):
            await pair.at_a.connect("nowhere", 1, Recorder)
        await pair.at_b.listen("", 9092, Recorder, backlog=1)
        pair.fabric.cut("a", "b")
        with pytest.raises(TimeoutError):
            await pair.at_a.connect("b", 9092, Recorder)
        pair.loop.call_later(5, pair.fabric.heal)
        await pair.at_a.connect("b", 9092, Recorder)
        with pytest.raises(OSError, match="taken"):
            await pair.at_b.listen("", 9092, Recorder, backlog=1)

    pair.loop.run(main())


def test_hosts_have_ports_and_loopback_of_their_own() -> None:
    pair = Pair()

    async def main() -> None:
        here, there = Recorder(), Recorder()
        first = await pair.at_a.listen("127.0.0.1", 0, lambda: here, backlog=1)
        second = await pair.at_b.listen("127.0.0.1", 0, lambda: there, backlog=1)
        assert first.port == second.port
        await pair.at_b.connect("localhost", second.port, Recorder)
        await asyncio.sleep(1)
        assert there.transport is not None
        assert here.transport is None

    pair.loop.run(main())


@pytest.mark.parametrize("power", [False, True])
def test_the_peer_hears_of_a_kill_and_not_of_a_power_cut(power: bool) -> None:
    pair = Pair()

    async def main() -> None:
        client, server = Recorder(), Recorder()
        transport = await pair.connect(client, server)
        pair.b.die(power=power)
        if power:
            pair.fabric.power_off("b")
        await asyncio.sleep(60)
        assert len(client.lost) == (0 if power else 1)
        assert not server.lost
        if power:
            transport.write(b"anyone?")
            await asyncio.sleep(60)
            assert not client.lost
            pair.fabric.endpoint("b", Process(pair.loop, "b2"))
            transport.write(b"anyone?")
            await asyncio.sleep(60)
            assert isinstance(client.lost[0], ConnectionResetError)

    pair.loop.run(main())


def test_reset_tells_both_and_drops_what_was_under_way() -> None:
    pair = Pair()

    async def main() -> None:
        client, server = Recorder(), Recorder()
        transport = await pair.connect(client, server)
        transport.write(b"lost")
        assert pair.fabric.reset_some(1.0) == 1
        await asyncio.sleep(1)
        assert isinstance(client.lost[0], ConnectionResetError)
        assert isinstance(server.lost[0], ConnectionResetError)
        assert not server.received

    pair.loop.run(main())


def test_a_buffer_that_changes_after_write_is_noticed() -> None:
    pair = Pair()

    async def main() -> None:
        transport = await pair.connect(Recorder(), Recorder())
        buffer = bytearray(b"abc")
        transport.write(memoryview(buffer))
        buffer[0] = 0
        await asyncio.sleep(1)

    with pytest.raises(Exception, match="buffer changed after write"):
        pair.loop.run(main())


def test_a_link_cut_twice_works_when_both_cuts_are_mended() -> None:
    pair = Pair()

    async def main() -> None:
        client, server = Recorder(), Recorder()
        transport = await pair.connect(client, server)
        whole = pair.fabric.cut("a", "b")
        half = pair.fabric.cut("a", "b", both=False)
        transport.write(b"question")
        pair.fabric.mend(whole)
        await asyncio.sleep(1)
        assert not server.received
        pair.fabric.mend(half)
        await asyncio.sleep(1)
        assert server.received == b"question"

    pair.loop.run(main())


def test_a_paused_peer_takes_connections_and_bytes_and_reads_them_later() -> None:
    pair = Pair()

    async def main() -> None:
        server = Recorder()
        await pair.at_b.listen("0.0.0.0", 9092, lambda: server, backlog=1)
        pair.b.pause()
        transport, _ = await pair.at_a.connect("b", 9092, Recorder)
        transport.write(b"hello")
        await asyncio.sleep(10)
        assert server.transport is None
        pair.b.resume()
        await asyncio.sleep(1)
        assert server.received == b"hello"

    pair.loop.run(main())
