"""A broker asks another: answers in order, one deadline for each question, and a connection opened again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest
import uvloop

from broker.endpoint import Endpoint
from broker.net.channel import IN_FLIGHT_MAX, Channel, Channels, PeerLost
from broker.net.tcp import TcpNetwork
from broker.ports import Network
from protocol.apis import Api
from protocol.messages import encode_response
from protocol.wire import FrameReader, parse_head
from tests.sim.loop import Process, SimLoop
from tests.sim.net import Fabric, NetworkProfile

_SIZE = Struct(">i")


class Peer(asyncio.BufferedProtocol):
    """Answers ListOffsets v7 with the timestamp that was asked for; holds or spoils answers when told to."""

    def __init__(self, world: Peers) -> None:
        self.world = world
        self.reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.world.accepted.append(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self.reader.received(nbytes):
            self.world.asked.append(bytes(frame))
            if not self.world.is_silent:
                self.transport.write(self.world.answer(bytes(frame)))


class Peers:
    def __init__(self) -> None:
        self.accepted: list[Peer] = []
        self.asked: list[bytes] = []
        self.is_silent = False
        self.answer: Callable[[bytes], bytes] = answer


def answer(frame: bytes, *, id_off_by: int = 0) -> bytes:
    head = parse_head(frame)
    return encode_response(head.api_key, head.api_version, head.correlation_id + id_off_by, {"topics": ()})


async def ask(channel: Channel, *, timeout_s: float = 10) -> Any:
    fields = {"replica_id": -1, "isolation_level": 0, "topics": ()}
    return await channel.ask(Api.LIST_OFFSETS, 7, fields, timeout_s=timeout_s)


class Two:
    """A client process on host a, a peer on host b."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop()
        self.fabric = Fabric(self.loop, random.Random(seed), NetworkProfile(split_chance=0.5))
        self.a, self.b = Process(self.loop, "a"), Process(self.loop, "b")
        self.at_a, self.at_b = self.fabric.endpoint("a", self.a), self.fabric.endpoint("b", self.b)
        self.peers = Peers()

    async def listen(self, port: int = 9092) -> None:
        await self.at_b.listen("b", port, lambda: Peer(self.peers), backlog=1)

    def channel(self, **changes: Any) -> Channel:
        return Channel(self.at_a, "b", 9092, client_id="test", **changes)

    def run(self, main: Any) -> None:
        self.loop.run(main)


@pytest.mark.parametrize("seed", range(5))
def test_questions_share_one_connection_and_get_their_own_answers(seed: int) -> None:
    two = Two(seed)

    async def main() -> None:
        await two.listen()
        channel = two.channel()
        answers = await asyncio.gather(*(ask(channel) for _ in range(3 * IN_FLIGHT_MAX)))
        assert len(answers) == len(two.peers.asked) == 3 * IN_FLIGHT_MAX
        assert len(two.peers.accepted) == 1
        frames = [frame[4:8] for frame in two.peers.asked]
        assert len(set(frames)) == len(frames)
        channel.close()

    two.run(main())


def test_no_more_than_its_bound_is_in_flight_and_the_rest_waits_with_its_deadline() -> None:
    two = Two()

    async def main() -> None:
        two.peers.is_silent = True
        await two.listen()
        channel = two.channel()
        first = [asyncio.ensure_future(ask(channel, timeout_s=60)) for _ in range(IN_FLIGHT_MAX)]
        await asyncio.sleep(1)
        with pytest.raises(PeerLost):
            await ask(channel, timeout_s=5)
        assert len(two.peers.asked) == channel.in_flight == IN_FLIGHT_MAX
        assert not any(each.done() for each in first), "who waited for room took nothing from the others"
        channel.close()
        assert all(
            isinstance(each, PeerLost) for each in await asyncio.gather(*first, return_exceptions=True)
        )

    two.run(main())


def test_an_answer_that_does_not_come_ends_the_connection_and_the_next_question_opens_another() -> None:
    two = Two()

    async def main() -> None:
        two.peers.is_silent = True
        await two.listen()
        channel = two.channel()
        patient = asyncio.ensure_future(ask(channel, timeout_s=60))
        with pytest.raises(PeerLost) as lost:
            await ask(channel, timeout_s=1)
        assert not lost.value.refused
        with pytest.raises(PeerLost):
            await patient
        two.peers.is_silent = False
        assert (await ask(channel)).topics == ()
        assert len(two.peers.accepted) == 2
        channel.close()

    two.run(main())


def test_a_peer_that_is_not_there_is_told_from_one_that_does_not_answer() -> None:
    two = Two()

    async def main() -> None:
        channel = two.channel()
        with pytest.raises(PeerLost) as refused:
            await ask(channel)
        assert refused.value.refused
        two.fabric.cut("a", "b")
        with pytest.raises(PeerLost) as silent:
            await ask(channel, timeout_s=3)
        assert not silent.value.refused
        two.fabric.heal()
        await two.listen()
        await ask(channel)
        channel.close()

    two.run(main())


def test_a_connection_lost_while_waiting_loses_what_was_asked() -> None:
    two = Two()

    async def main() -> None:
        two.peers.is_silent = True
        await two.listen()
        channel = two.channel()
        waiting = asyncio.ensure_future(ask(channel))
        await asyncio.sleep(1)
        two.fabric.reset_some(1.0)
        with pytest.raises(PeerLost):
            await waiting
        channel.close()

    two.run(main())


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda frame: answer(frame, id_off_by=1),
        lambda frame: answer(frame) + answer(frame),
        lambda frame: _SIZE.pack(2) + b"ab",
        lambda frame: _SIZE.pack(-5),
        lambda frame: _SIZE.pack(1 << 20) + bytes(100),
        lambda frame: _SIZE.pack(5) + frame[4:8] + b"\x07",
    ],
    ids=["another answer", "an answer too many", "no header", "negative", "too large", "unreadable"],
)
def test_a_peer_that_breaks_the_protocol_is_let_go(spoilt: Callable[[bytes], bytes]) -> None:
    two = Two()

    async def main() -> None:
        two.peers.answer = spoilt
        await two.listen()
        channel = two.channel(frame_bytes_max=1000)
        await asyncio.gather(ask(channel), ask(channel), return_exceptions=True)
        await asyncio.sleep(1)
        assert channel.in_flight == 0
        two.peers.answer = answer
        await ask(channel)
        assert len(two.peers.accepted) == 2
        channel.close()

    two.run(main())


def test_a_question_given_up_leaves_the_others_alone() -> None:
    two = Two()

    async def main() -> None:
        two.peers.is_silent = True
        await two.listen()
        channel = two.channel()
        given_up = asyncio.ensure_future(ask(channel))
        kept = asyncio.ensure_future(ask(channel))
        await asyncio.sleep(1)
        given_up.cancel()
        for frame in two.peers.asked:
            two.peers.accepted[0].transport.write(answer(frame))
        assert (await kept).topics == ()
        assert given_up.cancelled()
        channel.close()

    two.run(main())


def test_a_closed_channel_stays_closed() -> None:
    two = Two()

    async def main() -> None:
        await two.listen()
        channel = two.channel()
        channel.close()
        with pytest.raises(PeerLost):
            await ask(channel)
        assert two.peers.accepted == []

    two.run(main())


def test_channels_follow_the_image_to_where_a_peer_listens_now() -> None:
    two = Two()

    async def main() -> None:
        await two.listen()
        await two.listen(9093)
        at: dict[int, Endpoint] = {}
        channels = Channels(two.at_a, 1, at.get)
        with pytest.raises(PeerLost):
            channels.to(2, "fetch")
        at[2] = Endpoint(listener="PLAINTEXT", host="b", port=9092)
        before = channels.to(2, "fetch")
        await ask(before)
        assert channels.to(2, "fetch") is before
        assert channels.to(2, "control") is not before
        at[2] = Endpoint(listener="PLAINTEXT", host="b", port=9093)
        after = channels.to(2, "fetch")
        await ask(after)
        assert after is not before
        with pytest.raises(PeerLost):
            await ask(before)
        channels.close()
        with pytest.raises(PeerLost):
            await ask(after)

    two.run(main())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_over_a_real_socket_frames_go_as_they_are(loop_factory: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_over_a_real_socket())


async def _over_a_real_socket() -> None:
    network: Network = TcpNetwork()
    peers = Peers()
    listening = await network.listen("127.0.0.1", 0, lambda: Peer(peers), backlog=1)
    try:
        channel = Channel(network, "127.0.0.1", listening.port, client_id="test")
        await ask(channel)
        frame = peers.asked[0]
        assert bytes(await channel.ask_frame(frame, timeout_s=10)) == answer(frame)[4:]
        channel.close()
    finally:
        listening.close()
        for peer in peers.accepted:
            peer.transport.abort()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_large_answer_stays_as_it_came_while_others_follow(loop_factory: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_large_answers())


async def _large_answers() -> None:
    network: Network = TcpNetwork()
    peers = Peers()

    def sized(frame: bytes) -> bytes:
        """As many bytes as the correlation id says, each its last digits."""
        (correlation_id,) = _SIZE.unpack_from(frame, 4)
        body = _SIZE.pack(correlation_id) + bytes((correlation_id % 251,)) * correlation_id
        return _SIZE.pack(len(body)) + body

    peers.answer = sized
    listening = await network.listen("127.0.0.1", 0, lambda: Peer(peers), backlog=1)
    sizes = (10, 5 << 20, 300_000, (5 << 20) + 1, 20, 70_000)
    try:
        channel = Channel(network, "127.0.0.1", listening.port, client_id="test")
        await channel.ask_frame(_frame(7), timeout_s=10)
        asked = [channel.ask_frame(_frame(size), timeout_s=10) for size in sizes]
        answers = await asyncio.gather(*asked)
        await channel.ask_frame(_frame(6 << 20), timeout_s=10)
        for size, told in zip(sizes, answers, strict=True):
            assert told[4:] == bytes((size % 251,)) * size
        channel.close()
    finally:
        listening.close()
        for peer in peers.accepted:
            peer.transport.abort()


def _frame(correlation_id: int) -> bytes:
    return _SIZE.pack(0) + _SIZE.pack(correlation_id)


def test_it_is_known_who_closed_a_connection_and_has_none_since() -> None:
    two = Two()

    async def main() -> None:
        await two.listen()
        channels = Channels(two.at_a, 1, lambda _: Endpoint(listener="PLAINTEXT", host="b", port=9092))
        await ask(channels.to(2, "fetch"))
        assert channels.closed_since(0) == []
        two.fabric.reset_some(1.0)
        await asyncio.sleep(1)
        assert channels.closed_since(0) == [2]
        assert channels.closed_since(two.loop.time()) == []
        await ask(channels.to(2, "control"))
        assert channels.closed_since(0) == []
        two.peers.is_silent = True
        with pytest.raises(PeerLost):
            await ask(channels.to(2, "fetch"), timeout_s=1)
        assert channels.closed_since(0) == [], "given up from this side"
        channels.close()

    two.run(main())


def test_whoever_gives_up_waiting_leaves_no_connection_that_never_answers() -> None:
    two = Two()

    async def main() -> None:
        two.peers.is_silent = True
        await two.listen()
        channel = two.channel()
        patient = asyncio.ensure_future(ask(channel, timeout_s=5))
        await asyncio.sleep(1)
        patient.cancel()
        await asyncio.sleep(3)
        assert channel.in_flight == 1
        await asyncio.sleep(2)
        assert channel.in_flight == 0
        two.peers.is_silent = False
        assert (await ask(channel)).topics == ()
        assert len(two.peers.accepted) == 2
        channel.close()

    two.run(main())
