"""Big answers: whole and in order, by sendfile or in chunks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.net import sending
from broker.net.sending import CHUNK, PUMP_MAX, WRITTEN_MAX, BulkSender
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches
from tests.broker.net.live import connections, until
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
)

if TYPE_CHECKING:
    from broker.server import Broker


@pytest.mark.parametrize("size", [70_000, 300_000, 3_000_000, 20_000_000])
async def test_big_fetches_arrive_whole_and_in_order(broker: Broker, size: int) -> None:
    """Joined, and from the file; with small answers before and behind in the same send."""
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        batches = [batch_of(bytes([at]) * 500_000) for at in range(min(size // 500_000, 45) or 1)]
        if size < 500_000:
            batches = [batch_of(b"x" * size)]
        for batch in batches:
            assert (await client.produce("t", batch)).error_code is ErrorCode.none
        limits = {"max_bytes": size + 100_000, "partition_max_bytes": size + 100_000}
        data = client.encode(Api.API_VERSIONS, 0, {})
        for _ in range(3):
            data += client.encode(Api.FETCH, 12, fetch_fields("t", 0, **limits))
            data += client.encode(Api.API_VERSIONS, 0, {})
        await client.send(data)
        await client.receive_as(Api.API_VERSIONS, 0)
        for _ in range(3):
            response = await client.receive_as(Api.FETCH, 12)
            records = response.responses[0].partitions[0].records
            assert sum(header.count for _, header in iter_batches(records)) == len(batches)
            await client.receive_as(Api.API_VERSIONS, 0)


@pytest.mark.parametrize("is_real", [True, False])
async def test_many_big_fetches_that_were_held_keep_their_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_real: bool
) -> None:
    """A response the socket takes at once ends its own stall in the middle of a round of held requests."""
    if not is_real:
        monkeypatch.setattr(BulkSender, "_open_socket", lambda self: False)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 700_000))
        first, count = client.correlation_id + 1, 300
        client.writer.write(
            b"".join(client.encode(Api.FETCH, 12, fetch_fields("t", 0)) for _ in range(count))
        )
        for correlation_id in range(first, first + count):
            await client.receive_as(Api.FETCH, 12)
            assert client.answered == correlation_id


async def test_big_fetches_without_a_real_socket_go_in_chunks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkSender, "_open_socket", lambda self: False)
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for at in range(8):
            await client.produce("t", batch_of(bytes([at]) * 900_000))
        limits = {"max_bytes": 1 << 24, "partition_max_bytes": 1 << 24}
        for _ in range(2):
            fetched = await client.fetch("t", 0, **limits)
            assert [header.base_offset for _, header in iter_batches(fetched.records)] == list(range(8))


@pytest.mark.parametrize("size", [40_000, 900_000])
@pytest.mark.parametrize("is_at_once", [False, True])
async def test_a_client_that_ends_its_side_gets_the_rest_of_a_big_answer(
    broker: Broker, size: int, is_at_once: bool
) -> None:
    """In chunks, and from files."""
    count = 8_000_000 // size
    await create_topic(broker, "t", count)
    async with await RawClient.open(broker) as client:
        for index in range(count):
            await client.produce("t", batch_of(bytes(size)), index=index)
        fields = fetch_fields("t", 0)
        row = fields["topics"][0]["partitions"][0]
        fields["topics"][0]["partitions"] = [row | {"partition": at} for at in range(count)]
        client.writer.write(client.encode(Api.FETCH, 12, fields))
        data = b"" if is_at_once else await client.reader.readexactly(1)
        client.writer.write_eof()
        data += await client.reader.read(-1)
        assert len(data) == 4 + int.from_bytes(data[:4], "big") > count * size
    await until(lambda: not connections(broker))


class Ready:
    """Loop, transport and owner of a sender whose client takes everything at once."""

    def __init__(self) -> None:
        self.next: list[Any] = []
        self.written: list[bytes] = []
        self.is_writable = True
        self.ended = 0
        self.following: list[list[bytes]] = []
        """Answers that are sent when the one before them has left."""
        transport: Any = SimpleNamespace(
            write=self.written.append, get_write_buffer_size=lambda: 0, get_extra_info=lambda name: None
        )
        loop: Any = SimpleNamespace(call_soon=self.call_soon)
        self.sender = BulkSender(loop=loop, transport=transport, owner=self)

    def call_soon(self, call: Any) -> Any:
        self.next.append(call)
        return SimpleNamespace(cancel=lambda: self.next.remove(call))

    def turn(self) -> int:
        """Run what is due in the next turn; return how many bytes left in it."""
        before = sum(map(len, self.written))
        due, self.next = self.next, []
        for call in due:
            call()
        return sum(map(len, self.written)) - before

    def bulk_progressed(self) -> None: ...

    def bulk_ended(self) -> None:
        self.ended += 1
        if self.following:
            self.sender.send(self.following.pop(0))

    def bulk_failed(self, error: OSError) -> None:
        raise error


PIECES = [bytes([at]) * 300_000 for at in range(40)]


def test_a_client_that_takes_all_at_once_gets_a_bounded_part_in_each_turn() -> None:
    ready = Ready()
    ready.sender.send(PIECES)
    sizes = [sum(map(len, ready.written))]
    while not ready.ended:
        ready.sender.resume()  # whatever else goes on meanwhile
        sizes.append(ready.turn())
    assert max(sizes) < WRITTEN_MAX + CHUNK
    assert b"".join(ready.written) == b"".join(PIECES)
    assert (ready.turn(), ready.next, ready.ended) == (0, [], 1)


def test_answers_that_follow_each_other_leave_no_more_in_a_turn_than_one() -> None:
    ready = Ready()
    ready.following = [[bytes([at]) * 300_000] for at in range(40)]
    ready.sender.send([b"first"])
    sizes = [sum(map(len, ready.written))]
    while ready.next:
        sizes.append(ready.turn())
    assert max(sizes) < WRITTEN_MAX + CHUNK
    assert b"".join(ready.written) == b"first" + b"".join(PIECES)
    assert ready.ended == 41


async def test_pipelined_big_fetches_leave_other_connections_their_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From files too, and however fast the client reads."""
    sizes: list[int] = []
    turns: list[int] = []
    send_piece, loop = sending._send_piece, asyncio.get_running_loop()

    def turn() -> None:
        turns.append(sum(sizes))
        sizes.clear()
        if not is_over:
            loop.call_soon(turn)

    def sent(out: Any, pieces: Any) -> int:
        piece = pieces.popleft()  # a socket that takes everything
        size = len(piece) if isinstance(piece, bytes | memoryview) else piece.size
        sizes.append(size)
        return size

    is_over = False
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 900_000))
        fetch = client.encode(Api.FETCH, 12, fetch_fields("t", 0))
        monkeypatch.setattr(sending, "_send_piece", sent)
        loop.call_soon(turn)
        client.writer.write(fetch * 20)
        await until(lambda: sum(turns) > 20 * 900_000)
        is_over = True
        monkeypatch.setattr(sending, "_send_piece", send_piece)
    assert max(turns) < 2 * PUMP_MAX


def test_what_a_client_no_longer_takes_waits_until_it_does() -> None:
    ready = Ready()
    ready.sender.send(PIECES)
    ready.is_writable = False
    assert (ready.turn(), ready.next) == (0, [])
    ready.is_writable = True
    ready.sender.resume()
    while ready.next:
        ready.turn()
    assert b"".join(ready.written) == b"".join(PIECES)


def test_an_answer_that_is_broken_off_goes_on_in_no_later_turn() -> None:
    ready = Ready()
    ready.sender.send(PIECES)
    ready.sender.close()
    assert ready.next == []
