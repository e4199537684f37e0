"""Framing, headers and correlation, however the bytes are cut."""

from __future__ import annotations

import tracemalloc
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import wire
from protocol.apis import Api
from protocol.errors import FrameTooLarge, MalformedRequest
from protocol.messages import encode_request
from protocol.wire import Answer, Connection, FrameReader, Request, parse_head

STATM = Path("/proc/self/statm")
HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def feed(reader: FrameReader, data: bytes, read_bytes: int = 1 << 30) -> list[bytes]:
    """The frames, copied at once as their life is short, of `data` in reads of at most `read_bytes`."""
    frames = []
    while data:
        room = reader.get_buffer()
        assert len(room) > 0
        part = data[: min(read_bytes, len(room))]
        room[: len(part)] = part
        data = data[len(part) :]
        frames += [bytes(frame) for frame in reader.received(len(part))]
    return frames


# --- frames ---


@given(
    st.lists(st.binary(max_size=40) | st.integers(0, 90_000).map(bytes), max_size=12),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=30),
)
@settings(max_examples=60)
def test_frames_are_the_same_however_they_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    data = framed(*frames)
    assert feed(FrameReader(), data) == frames
    reader, got, at = FrameReader(), [], 0
    for index in range(len(data) + 1):
        size = cuts[index % len(cuts)]
        got += feed(reader, data[at : at + size])
        at += size
        if at >= len(data):
            break
    assert got == frames
    assert reader.pending == 0


@given(
    st.lists(st.integers(0, 40) | st.integers(60_000, 300_000), max_size=8),
    st.lists(st.integers(1, 300_000), min_size=1, max_size=10),
)
@settings(max_examples=40)
def test_kept_frames_stay_as_they_are_however_many_come_after_them(sizes: list[int], cuts: list[int]) -> None:
    frames = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    data = memoryview(framed(*frames))
    reader = FrameReader()
    kept: list[memoryview | bytearray] = []
    turn = 0
    while data:
        room = reader.get_buffer()
        part = data[: min(len(room), cuts[turn % len(cuts)])]
        room[: len(part)] = part
        data, turn = data[len(part) :], turn + 1
        kept += [reader.keep(frame) for frame in reader.received(len(part))]
    assert [bytes(frame) for frame in kept] == frames


def test_a_large_frame_is_kept_without_a_copy() -> None:
    reader = FrameReader()
    data = framed(b"k" * (1 << 20))
    frames: list[memoryview] = []
    while data:
        room = reader.get_buffer()
        room[: len(data)] = data[: len(room)]
        frames += reader.received(min(len(data), len(room)))
        data = data[len(room) :]
    assert reader.keep(frames[0]) is frames[0]
    assert reader.capacity == 16 << 10
    assert feed(reader, framed(b"next")) == [b"next"]
    assert frames[0] == b"k" * (1 << 20)


@given(st.integers(1, 300_000), st.sampled_from([16 << 10, 256 << 10, 1 << 20, 3 << 20]))
@settings(max_examples=40)
def test_a_frame_that_is_kept_holds_no_buffer_that_is_much_larger(size: int, capacity: int) -> None:
    reader = FrameReader()
    reader._allocate(max(capacity, 2 * size + 8))
    data = framed(b"k" * size, b"l" * size)
    reader.get_buffer()[: len(data)] = data
    for frame, byte in zip(reader.received(len(data)), b"kl", strict=True):
        kept = reader.keep(frame)
        assert bytes(kept) == bytes([byte]) * size
        held = memoryview(kept.obj).nbytes if isinstance(kept, memoryview) else len(kept)
        assert held <= 4 * size or size > 256 << 10


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_frames_are_the_same_byte_by_byte(frames: list[bytes]) -> None:
    assert feed(FrameReader(), framed(*frames), read_bytes=1) == frames


def test_an_incomplete_frame_is_pending() -> None:
    reader = FrameReader()
    data = framed(b"whole", b"half of it")
    assert feed(reader, data[:-3]) == [b"whole"]
    assert reader.pending == len(framed(b"half of it")) - 3
    assert feed(reader, data[-3:]) == [b"half of it"]


def test_frames_of_one_read_are_writable_views_on_it() -> None:
    reader = FrameReader()
    room = reader.get_buffer()
    data = framed(b"one", b"two")
    room[: len(data)] = data
    frames = reader.received(len(data))
    frames[0][0:1] = b"O"
    assert [bytes(frame) for frame in frames] == [b"One", b"two"]
    assert bytes(room[4:7]) == b"One"


@pytest.mark.parametrize("size", [-1, -(1 << 31), 101, (1 << 31) - 1])
def test_a_bad_size_raises_before_anything_is_allocated(size: int) -> None:
    reader = FrameReader(frame_bytes_max=100)
    before = reader.capacity
    with pytest.raises(FrameTooLarge):
        feed(reader, size.to_bytes(4, "big", signed=True))
    assert reader.capacity == before
    with pytest.raises(FrameTooLarge):
        reader.get_buffer()


def test_frames_before_a_bad_size_are_returned_first() -> None:
    reader = FrameReader(frame_bytes_max=100)
    assert feed(reader, framed(b"good") + b"\x7f\0\0\0") == [b"good"]
    assert isinstance(reader.error, FrameTooLarge)
    with pytest.raises(FrameTooLarge):
        reader.get_buffer()


def test_a_frame_at_the_limit_passes() -> None:
    reader = FrameReader(frame_bytes_max=100)
    assert feed(reader, framed(bytes(100), b"")) == [bytes(100), b""]


# --- memory ---


def test_a_promised_size_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader()
        feed(reader, (100 << 20).to_bytes(4, "big"))
        reader.get_buffer()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10


@pytest.mark.parametrize("arrived", [5, 10_000, 20_000, 300_000, 1_000_000])
def test_memory_follows_what_arrived(arrived: int) -> None:
    reader = FrameReader()
    feed(reader, (100 << 20).to_bytes(4, "big") + bytes(arrived), read_bytes=1000)
    assert reader.capacity <= max(16 << 10, 4 * (arrived + 4))


@pytest.mark.skipif(not STATM.exists(), reason="nothing tells how much memory this process has")
def test_a_large_frame_takes_the_memory_of_what_arrived() -> None:
    """Its buffer has its size at once, for it would be moved otherwise, and is not touched before its bytes
    come."""
    reader = FrameReader()
    before = int(STATM.read_text().split()[1])
    feed(reader, (100 << 20).to_bytes(4, "big") + bytes(3_000_000), read_bytes=100_000)
    pages = int(STATM.read_text().split()[1]) - before
    assert reader.capacity == (100 << 20) + 4
    assert pages * PAGESIZE < 40_000_000


def test_a_large_frame_makes_a_buffer_of_its_size_that_is_kept() -> None:
    reader = FrameReader()
    frame = bytes(1_000_000)
    assert feed(reader, framed(frame)) == [frame]
    assert reader.capacity == len(frame) + 4
    room = reader.get_buffer()
    assert len(room) == reader.capacity
    assert feed(reader, framed(frame, frame[:-7], frame)) == [frame, frame[:-7], frame]
    assert reader.capacity == len(frame) + 4


def test_busy_connections_read_more_at_once_and_quiet_ones_give_it_back() -> None:
    reader = FrameReader()
    assert reader.capacity == 16 << 10
    data = framed(*[bytes(500)] * 8000)
    assert len(feed(reader, data)) == 8000
    assert reader.capacity == 1 << 20
    feed(reader, framed(b"tail")[:-1])
    reader.shrink()
    assert reader.capacity == 16 << 10
    assert feed(reader, b"l") == [b"tail"]


def test_shrinking_keeps_a_long_incomplete_frame() -> None:
    reader = FrameReader()
    frame = bytes(range(256)) * 400
    feed(reader, framed(frame)[:-1])
    reader.shrink()
    assert feed(reader, frame[-1:]) == [frame]


def test_reads_do_not_become_tiny_at_the_end_of_the_buffer() -> None:
    reader = FrameReader()
    data = framed(*[bytes(200)] * 4000)
    sizes = []
    while data:
        room = reader.get_buffer()
        sizes.append(len(room))
        part = data[: len(room)]
        room[: len(part)] = part
        reader.received(len(part))
        data = data[len(part) :]
    assert min(sizes) >= 4 << 10


# --- headers ---


def test_a_head_is_what_the_client_sent() -> None:
    frame = encode_request(Api.HEARTBEAT, 4, 7, "me", HEARTBEAT)[4:]
    head = parse_head(frame)
    assert head[:4] == (Api.HEARTBEAT, 4, 7, "me")
    assert frame[head.body_at :][:2] == b"\x02g"


def test_tagged_fields_of_a_header_are_skipped() -> None:
    plain = encode_request(Api.HEARTBEAT, 4, 7, "me", HEARTBEAT)[4:]
    at = parse_head(plain).body_at
    tagged = plain[: at - 1] + b"\x02\x00\x01x\x81\x01\x02yy" + plain[at:]
    head = parse_head(tagged)
    assert tagged[head.body_at :] == plain[at:]
    for size in range(at - 1, head.body_at):
        with pytest.raises(MalformedRequest):
            parse_head(tagged[:size])


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_any_version_of_apiversions_has_a_head(version: int) -> None:
    frame = (18).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\0\0\0\7\xff\xff\0tail"
    head = parse_head(frame)
    assert (head.api_key, head.api_version, head.correlation_id, head.client_id) == (18, version, 7, None)


BAD_HEADS = {
    "empty": b"",
    "short": b"\0\x12\0\0\0\0\0",
    "unknown api": b"\x27\x0f\0\0\0\0\0\1\xff\xff",
    "negative api": b"\xff\xff\0\0\0\0\0\1\xff\xff",
    "an api we do not serve": b"\0\x24\0\0\0\0\0\1\xff\xff",
    "version above": b"\0\1\0\x13\0\0\0\1\xff\xff",
    "version below": b"\0\1\0\3\0\0\0\1\xff\xff",
    "produce 0 to 2": b"\0\0\0\2\0\0\0\1\xff\xff",
    "client id beyond the end": b"\0\x12\0\0\0\0\0\1\0\5abc",
    "no room for tagged fields": b"\0\x12\0\3\0\0\0\1\xff\xff",
    "tagged field count beyond the end": b"\0\x12\0\3\0\0\0\1\xff\xff\xff\xff\xff\xff\x07",
    "tagged field beyond the end": b"\0\x12\0\3\0\0\0\1\xff\xff\x01\0\x05ab",
    "varint of 6 bytes": b"\0\x12\0\3\0\0\0\1\xff\xff\x80\x80\x80\x80\x80\x01" + bytes(99),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_bad_heads_are_malformed(name: str) -> None:
    with pytest.raises(MalformedRequest):
        parse_head(memoryview(BAD_HEADS[name]))


def test_any_negative_size_is_a_null_client_id() -> None:
    for size in (-1, -2, -(2**15)):
        assert parse_head(b"\0\x12\0\0\0\0\0\1" + size.to_bytes(2, "big", signed=True)).client_id is None


def test_a_client_id_that_is_no_utf8_is_read_as_java_does() -> None:
    assert parse_head(b"\0\x12\0\0\0\0\0\1\0\2a\xff").client_id == "a�"


# --- connections ---


def pair() -> tuple[Connection, Connection]:
    return Connection("client", client_id="me"), Connection("server")


def requests(connection: Connection, data: bytes) -> list[Request]:
    return [one for one in connection.receive(data) if isinstance(one, Request)]


def answers(connection: Connection, data: bytes) -> list[Answer]:
    return [one for one in connection.receive(data) if isinstance(one, Answer)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 50))
@settings(max_examples=30)
def test_a_client_and_a_server_understand_each_other(versions: list[int], step: int) -> None:
    client, server = pair()
    sent = [client.send(Api.HEARTBEAT, version, HEARTBEAT) for version in versions]
    asked = b"".join(data for _, data in sent)
    got = [one for at in range(0, len(asked), step) for one in requests(server, asked[at : at + step])]
    assert [one.head.api_version for one in got] == versions
    assert all(one.body.member_id == "m" and one.head.client_id == "me" for one in got)
    told = b"".join(server.answer(one.head, {"error_code": index}) for index, one in enumerate(got))
    back = [one for at in range(0, len(told), step) for one in answers(client, told[at : at + step])]
    assert [one.correlation_id for one in back] == [correlation_id for correlation_id, _ in sent]
    assert [int(one.response.error_code) for one in back] == list(range(len(versions)))
    assert client.in_flight == 0


def test_an_answer_out_of_order_is_a_broken_peer() -> None:
    client, server = pair()
    data = client.send(Api.HEARTBEAT, 0, HEARTBEAT)[1] + client.send(Api.HEARTBEAT, 0, HEARTBEAT)[1]
    second = requests(server, data)[1]
    with pytest.raises(MalformedRequest, match="answer 1 where 0 is due"):
        client.receive(server.answer(second.head, {"error_code": 0}))


def test_an_answer_to_nothing_is_a_broken_peer() -> None:
    client, _ = pair()
    with pytest.raises(MalformedRequest, match="nothing"):
        client.receive(framed(b"\0\0\0\0\0\0"))


def test_produce_with_acks_0_expects_no_answer() -> None:
    client, server = pair()
    fields: dict[str, Any] = {"acks": 0, "timeout": 1, "topic_data": []}
    (request,) = requests(server, client.send(Api.PRODUCE, 9, fields)[1])
    assert client.in_flight == 0
    assert not wire.is_answered(Api.PRODUCE, {"acks": request.body.acks})
    client.send(Api.PRODUCE, 9, fields | {"acks": 1})
    assert client.in_flight == 1
    assert repr(client) == "Connection(client, in_flight=1, pending=0)"


def test_records_of_an_answer_outlive_the_buffer() -> None:
    client, server = pair()
    asked = {
        "max_wait": 0,
        "min_bytes": 0,
        "topics": [],
        "forgotten_topics_data": [],
        "replica_id": -1,
    }
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 1,
        "aborted_transactions": [],
        "records": b"kept",
    }
    (request,) = requests(server, client.send(Api.FETCH, 11, asked)[1])
    told = server.answer(
        request.head, {"error_code": 0, "responses": [{"topic": "t", "partitions": [partition]}]}
    )
    room = client.get_buffer()
    room[: len(told)] = told
    (answer,) = client.received(len(told))
    client.get_buffer()[:] = bytes(len(client.get_buffer()))
    assert isinstance(answer, Answer)
    assert bytes(answer.response.responses[0].partitions[0].records) == b"kept"


def test_a_server_closes_on_what_it_does_not_serve() -> None:
    _, server = pair()
    with pytest.raises(MalformedRequest):
        server.receive(framed(b"\0\0\0\2\0\0\0\1\xff\xff"))


def test_a_server_reads_the_head_of_an_apiversions_it_lacks() -> None:
    _, server = pair()
    (request,) = requests(server, framed(b"\0\x12\0\x63\0\0\0\7\xff\xff\0what follows is unknown"))
    assert (request.head.api_version, request.body) == (99, None)
