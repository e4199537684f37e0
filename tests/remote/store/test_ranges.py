"""Ranges over connections of our own: bodies in any portions, refusals, and connections that stay or go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from remote.store import ranges
from remote.store.location import S3Location, parse_store_url
from remote.store.object_store import Fault, NoSuchObject, StoreError
from remote.store.ranges import (
    CannotConnect,
    EndedEarly,
    NotUnderstood,
    RangeAnswer,
    RangeClient,
    Turn,
    _Connection,
    encode_request,
)
from remote.store.s3_store import S3Store

ENVIRON = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
REQUEST = encode_request("/bucket/k", {"host": "store"})
MISSING = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


def partial(body: bytes, *headers: str) -> bytes:
    head = ["HTTP/1.1 206 Partial Content", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def chunked(body: bytes, status: str = "404 Not Found", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", "Transfer-Encoding: chunked", *headers, "", ""])
    chunks = [body[at : at + 7] for at in range(0, len(body), 7)]
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """Takes what is written; says what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = self.is_paused = False

    def write(self, data: object) -> None: ...
    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def fed(
    portions: list[bytes], *, piece_bytes: int, size_max: int, body: bytes | None = None
) -> RangeAnswer:
    """Return what a connection makes of an answer that comes in these portions."""
    loop = asyncio.get_running_loop()
    connection, wire = _Connection(loop, Turn(loop)), Wire()
    connection.connection_made(wire)
    asking = asyncio.ensure_future(
        connection.ask(REQUEST, body, piece_bytes=piece_bytes, size_max=size_max, silence_s=60)
    )
    await asyncio.sleep(0)
    for portion in portions:
        data = portion
        while data and not wire.is_aborted:
            into = connection.get_buffer(-1)
            count = min(len(into), len(data))
            into[:count] = data[:count]
            connection.buffer_updated(count)
            data = data[count:]
    if not asking.done():
        connection.connection_lost(None)
    try:
        return await asking
    finally:
        connection.close()


@given(st.binary(min_size=1, max_size=400), st.integers(1, 90), st.data())
def test_a_body_is_the_same_in_whatever_portions_it_comes(
    body: bytes, piece_bytes: int, draw: st.DataObject
) -> None:
    answer = partial(body, "ETag: x")
    cuts = sorted(draw.draw(st.sets(st.integers(1, len(answer) - 1), max_size=20)))
    portions = [answer[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    found = asyncio.run(fed(portions, piece_bytes=piece_bytes, size_max=len(body)))
    assert b"".join(found.pieces) == body
    assert [len(piece) for piece in found.pieces[:-1]] == [piece_bytes] * (len(found.pieces) - 1)
    assert (found.status, found.headers["etag"]) == (206, "x")


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_body_that_ends_early_is_never_given(body: bytes, draw: st.DataObject) -> None:
    answer = partial(body)
    end = draw.draw(st.integers(0, len(answer) - 1))
    with pytest.raises(ConnectionError):
        asyncio.run(fed([answer[:end]], piece_bytes=64, size_max=len(body)))


@given(st.binary(max_size=100), st.sampled_from(["length", "chunks", "end"]), st.data())
def test_a_refusal_is_read_in_each_of_its_forms(body: bytes, form: str, draw: st.DataObject) -> None:
    answer = {
        "length": b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n" % len(body) + body,
        "chunks": chunked(body),
        "end": b"HTTP/1.1 404 Not Found\r\n\r\n" + body,
    }[form]
    at = draw.draw(st.integers(1, len(answer) - 1))
    found = asyncio.run(fed([answer[:at], answer[at:]], piece_bytes=10, size_max=10))
    assert (found.status, found.body, found.pieces) == (404, body, [])


@pytest.mark.parametrize(
    "answer",
    [
        partial(bytes(11)),
        partial(bytes(10)) + b"more",
        b"HTTP/1.1 206 Partial\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nContent-Length: 1_0\r\n\r\n",
        b"SSH-2.0-other\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nno colon\r\n\r\n",
        b"HTTP/1.1 206 Partial\r\nx: " + bytes(ranges.HEAD_BYTES_MAX),
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 404 None\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
async def test_what_is_no_answer_to_this_closes_the_connection(answer: bytes) -> None:
    with pytest.raises(NotUnderstood):
        await fed([answer], piece_bytes=4, size_max=10)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_interim_answers_are_passed_over(body: bytes, draw: st.DataObject) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 3\r\n\r\n"
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" * draw.draw(st.integers(0, 400)) + hints + partial(body)
    at = draw.draw(st.integers(1, len(answer) - 1))
    found = asyncio.run(fed([answer[:at], answer[at:]], piece_bytes=7, size_max=len(body)))
    assert (found.status, b"".join(found.pieces)) == (206, body)


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb"])
def test_no_header_is_two(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_request("/k", {"x-amz-security-token": value})


async def test_much_at_once_leaves_the_loop_to_others_in_between() -> None:
    loop = asyncio.get_running_loop()
    turn, going = Turn(loop), []
    taken = 0
    while turn.take(ranges.RECEIVE_BYTES):
        taken += ranges.RECEIVE_BYTES
    assert taken < ranges.TURN_BYTES
    turn.wait(lambda: going.append(1))
    assert not going
    await asyncio.sleep(0)
    assert going
    assert turn.take(1), "a new turn"


# --- on real sockets ---


class Server:
    """Gives each request the next answer, and tells of its connections."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.port = self.connections = self.ended = 0
        self.asked: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.closes_after = False
        self.has_ended = asyncio.Event()
        self.has_asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.asked.append(head.split("\r\n")[0])
                self.has_asked.set()
                if not self.answers:
                    await reader.read()
                    break
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.closes_after:
                    break
        writer.close()
        self.ended += 1
        self.has_ended.set()


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Server]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def client_of(port: int, *, silence_s: float = 30, idle_s: float = 30) -> RangeClient:
    return RangeClient(
        "127.0.0.1", port, tls=None, connections_max=4, connect_s=5, silence_s=silence_s, idle_s=idle_s
    )


async def test_a_connection_is_kept_and_used_again() -> None:
    async with serving(
        Server(partial(b"one"), partial(b"two"), partial(b"end", "Connection: close"))
    ) as server:
        client = client_of(server.port)
        for _ in range(3):
            await client.ask(REQUEST, piece_bytes=8, size_max=8)
        assert server.connections == 1
        assert "0 idle" in repr(client), "the last answer said that it is the last"
        await client.close()


@pytest.mark.parametrize(
    ("answer", "status", "is_kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 200, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK", 200, False),
        (chunked(b"done", "200 OK"), 200, False),
        (b"HTTP/1.1 412 Failed\r\nContent-Length: 4\r\n\r\nlate", 412, False),
        (b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n", 503, False),
    ],
)
async def test_a_put_leaves_a_connection_that_is_surely_clean(
    answer: bytes, status: int, is_kept: bool
) -> None:
    async with serving(Server(answer)) as server:
        client = client_of(server.port)
        assert (await client.put(REQUEST, b"body")).status == status
        assert ("1 idle" in repr(client)) is is_kept
        await client.close()


async def test_who_stops_waiting_leaves_no_connection() -> None:
    async with serving(Server()) as server:
        client = client_of(server.port)
        asking = asyncio.ensure_future(client.ask(REQUEST, piece_bytes=8, size_max=8))
        await server.has_asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(5):
            await server.has_ended.wait()
        assert "0 asked, 0 idle" in repr(client)
        await client.close()


async def test_closing_ends_what_is_asked_and_what_is_idle() -> None:
    async with serving(Server(partial(b"one"))) as server:
        client = client_of(server.port)
        await client.ask(REQUEST, piece_bytes=8, size_max=8)
        asking = asyncio.ensure_future(client.ask(REQUEST, piece_bytes=8, size_max=8))
        server.has_asked.clear()
        await server.has_asked.wait()
        await client.close()
        with pytest.raises(ConnectionError):
            await asking
        with pytest.raises(ConnectionError):
            await client.ask(REQUEST, piece_bytes=8, size_max=8)


async def test_an_idle_connection_goes() -> None:
    async with serving(Server(partial(b"one"))) as server:
        client = client_of(server.port, idle_s=0.01)
        await client.ask(REQUEST, piece_bytes=8, size_max=8)
        async with asyncio.timeout(5):
            await server.has_ended.wait()
        await client.close()


async def test_a_connection_that_the_store_closed_is_not_used_again() -> None:
    async with serving(Server(partial(b"one"), partial(b"two"))) as server:
        server.closes_after = True
        client = client_of(server.port)
        await client.ask(REQUEST, piece_bytes=8, size_max=8)
        async with asyncio.timeout(5):
            await server.has_ended.wait()
        for _ in range(1000):
            if not client._idle[0].is_open:
                break
            await asyncio.sleep(0.001)
        assert (await client.ask(REQUEST, piece_bytes=8, size_max=8)).pieces == [b"two"]
        assert server.connections == 2
        await client.close()


async def test_a_store_that_says_nothing_more_is_given_up() -> None:
    async with serving(Server(partial(bytes(100))[:-50])) as server:
        client = client_of(server.port, silence_s=0.02)
        with pytest.raises(TimeoutError, match="said nothing"):
            await client.ask(REQUEST, piece_bytes=100, size_max=100)
        await client.close()


async def test_a_body_cut_short_is_told_from_no_answer() -> None:
    async with serving(Server(partial(bytes(100))[:-50], b"")) as server:
        server.closes_after = True
        client = client_of(server.port)
        with pytest.raises(EndedEarly):
            await client.ask(REQUEST, piece_bytes=100, size_max=100)
        with pytest.raises(ConnectionError, match="closed the connection"):
            await client.ask(REQUEST, piece_bytes=100, size_max=100)
        await client.close()
    with pytest.raises(CannotConnect):
        await client_of(server.port).ask(REQUEST, piece_bytes=1, size_max=1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_large_ranges_come_whole_on_either_loop(run: Callable[[Coroutine[None, None, None]], None]) -> None:
    """A broker runs on uvloop, whose transports are no subclass of asyncio's."""
    body = random.Random(1).randbytes(5_000_001)

    async def main() -> None:
        async with serving(Server(*[partial(body)] * 6)) as server:
            client = client_of(server.port)
            found = await asyncio.gather(
                *(client.ask(REQUEST, piece_bytes=1 << 20, size_max=len(body)) for _ in range(6))
            )
            for each in found:
                assert b"".join(each.pieces) == body
                assert [len(piece) for piece in each.pieces] == [1 << 20] * 4 + [5_000_001 - (4 << 20)]
            assert server.connections <= 4
            await client.close()

    run(main())


@asynccontextmanager
async def store_on(server: Server) -> AsyncIterator[S3Store]:
    async with serving(server):
        location = parse_store_url(f"s3://bucket?endpoint=http://127.0.0.1:{server.port}", ENVIRON)
        assert isinstance(location, S3Location)
        store = S3Store(location, environ=ENVIRON, now_ms=lambda: 1_700_000_000_000, rng=random.Random(1))
        yield store
        await store.close()


async def test_a_range_in_a_form_without_a_length_is_asked_for_the_other_way() -> None:
    answer = chunked(b"0123456789", "206 Partial Content", "Content-Range: bytes 0-9/10")
    async with store_on(Server(answer, answer)) as store:
        assert [bytes(piece) for piece in await store.get_pieces("k", 0, 10, piece_bytes=4)] == [
            b"0123",
            b"4567",
            b"89",
        ]


async def test_only_the_stores_own_word_says_that_an_object_is_gone() -> None:
    async with store_on(Server(chunked(MISSING), chunked(b"<html>"))) as store:
        with pytest.raises(NoSuchObject):
            await store.get_range("k", 0, 10)
        with pytest.raises(StoreError, match="404"):
            await store.get_range("k", 0, 10)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789", "the whole object"),
        (partial(b"0123456789", "Content-Range: bytes 5-14/20"), "was sent 'bytes 5-14/20'"),
        (partial(b"01234", "Content-Range: bytes 0-9/20"), "not as long"),
        (partial(b"01234", "Content-Range: bytes 0-4/20"), "not as long"),
        (partial(bytes(10), "Content-Range: bytes 0-9/20")[:-3], "ended early"),
    ],
)
async def test_other_bytes_than_were_asked_for_are_corrupt(answer: bytes, why: str) -> None:
    server = Server(answer)
    server.closes_after = True
    async with store_on(server) as store:
        with pytest.raises(StoreError, match=why) as caught:
            await store.get_range("k", 0, 10)
    assert caught.value.fault is Fault.CORRUPT


async def test_a_connection_whose_asker_leaves_as_the_answer_comes_is_closed() -> None:
    client = RangeClient("store", 80, tls=None, connections_max=1, connect_s=1, silence_s=60, idle_s=60)
    loop = asyncio.get_running_loop()
    connection, wire = _Connection(loop, Turn(loop)), Wire()
    connection.connection_made(wire)
    client._idle.append(connection)
    asking = asyncio.ensure_future(client.ask(REQUEST, piece_bytes=8, size_max=4))
    await asyncio.sleep(0)
    answer = partial(b"body")
    connection.get_buffer(-1)[: len(answer)] = answer
    connection.buffer_updated(len(answer))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert wire.is_aborted
    await client.close()
