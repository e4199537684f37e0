"""The template way of Produce appends and answers exactly as the long way, whatever the batch is like, and
connections that are read in one turn of the loop exactly as one after the other."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any, cast

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker import process, server
from broker.config.broker import from_properties
from broker.control.image import Delta
from broker.net.connection import Connection
from broker.net.tcp import TcpNetwork
from broker.ports import World
from protocol.apis import Api
from protocol.compression import Codec
from protocol.errors import ErrorCode
from protocol.messages import decode_response, encode_request
from remote.store.memory_store import MemoryStore
from storage.files import DiskFile, DiskFiles
from tests.broker.raw_client import batch_of, create_topic, produce_fields

NOW_MS = 1_700_000_000_000

# a header field of a batch: where it is, and how it is packed
FIELDS = {
    "base offset": (0, ">q"),
    "length": (8, ">i"),
    "leader epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last offset delta": (23, ">i"),
    "base timestamp": (27, ">q"),
    "max timestamp": (35, ">q"),
    "producer id": (43, ">q"),
    "producer epoch": (51, ">h"),
    "base sequence": (53, ">i"),
    "count": (57, ">i"),
}
ALONE, COUNTED = "one record", "a count and a last offset delta that agree"
changes = st.dictionaries(
    st.sampled_from([*sorted(FIELDS), ALONE, COUNTED, COUNTED]),
    st.integers(-2, 10) | st.sampled_from([16, 32, 64, 126, 127]),
    max_size=2,
)
sent = st.tuples(
    changes,
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(list(Codec)),
    st.sampled_from([None, (1, 0, 0), (1, 0, 2), (1, 1, 0), (2, 0, 0)]),
    st.sampled_from([1, -1]),
)


def mutated(
    change: dict[str, int], fixes_crc: bool, tail: int, codec: Codec, producer: tuple[int, int, int] | None
) -> bytes:
    fields: dict[str, Any] = {"codec": codec}
    if producer is not None:
        fields |= dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    values = (b"a" * 50,) if ALONE in change else (b"a" * 50, b"b" * 50)
    batch = bytearray(batch_of(*values, timestamp=NOW_MS, **fields))
    for name, value in change.items():
        if name == COUNTED:
            batch[23:27], batch[57:61] = pack(">i", value - 1), pack(">i", value)
        elif name != ALONE:
            at, form = FIELDS[name]
            data = pack(form, value)
            batch[at : at + len(data)] = data
    if fixes_crc:
        batch[17:21] = pack(">I", crc32c(bytes(batch[21:])))
    return bytes(batch) + bytes(tail) if tail >= 0 else bytes(batch[:tail])


class Sink(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Client:
    def __init__(self, broker: server.Broker, topic: str) -> None:
        self.sink = Sink()
        self.topic = topic
        self.connection = Connection(broker.components.network, "PLAINTEXT")
        self.connection.connection_made(self.sink)
        self.correlation_id = 0

    async def produce(self, requests: list[tuple[bytes, int]], version: int) -> list[Any]:
        """Sends them all at once."""
        self.send(requests, version)
        await asyncio.sleep(0)  # the turn of the loop in which they were read ends
        return self.received(version)

    def send(self, requests: list[tuple[bytes, int]], version: int) -> None:
        data = b""
        for records, acks in requests:
            self.correlation_id += 1
            fields = cast(Any, produce_fields(self.topic, records, acks=acks))
            data += encode_request(Api.PRODUCE, version, self.correlation_id, "c", fields)
        while data:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self.connection.buffer_updated(size)

    def received(self, version: int) -> list[Any]:
        answered = memoryview(b"".join(self.sink.written))
        self.sink.written.clear()
        answers: list[Any] = []
        while answered:
            end = 4 + int.from_bytes(answered[:4], "big")
            correlation_id, answer = decode_response(Api.PRODUCE, version, answered[4:end])
            answers.append((correlation_id, answer.responses[0].partition_responses[0]))
            answered = answered[end:]
        return answers

    async def produce_anew(self, requests: list[tuple[bytes, int]], version: int) -> list[Any]:
        """Sends one by one, and none of them is known."""
        answers = []
        for each in requests:
            answers += await self.produce([each], version)
            self.connection.memo.templates.clear()
        return answers


@asynccontextmanager
async def running(data: str, **properties: str) -> AsyncIterator[server.Broker]:
    given = {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data, **properties}
    config = from_properties(given, standalone=True)
    world = World(
        files=DiskFiles(),
        network=TcpNetwork(),
        store=MemoryStore(),
        now_ms=lambda: NOW_MS,
        random=random.Random(1),
        offload=process.offload,
    )
    broker = server.Broker(config, world)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def assert_same(broker: server.Broker, one: str, other: str) -> None:
    """What the two topics hold and what was counted of them."""
    logs = [broker.components.replicas.partition(topic, 0).log for topic in (one, other)]
    stored = []
    for held in logs:
        part = held.read(0, 1 << 20, bound=held.log_end_offset, min_one=True)
        stored.append(None if part is None else part.read())
    assert stored[0] == stored[1]
    assert logs[0].producers() == logs[1].producers()
    assert logs[0].producer_table.encode() == logs[1].producer_table.encode()
    assert logs[0].high_watermark == logs[1].high_watermark
    stats = [broker.components.replicas.topic_stats[topic] for topic in (one, other)]
    for name in stats[0].__slots__:
        assert getattr(stats[0], name) == getattr(stats[1], name), name


async def compare(runs: list[list[Any]], version: int, data: str) -> None:
    async with running(data) as broker:
        for topic in ("short", "long_"):
            await create_topic(broker, topic)
        clients = Client(broker, "short"), Client(broker, "long_")
        plain = batch_of(b"warm", timestamp=NOW_MS)
        for run in runs:
            pairs = [[(plain, acks), (mutated(*shape), acks)] for *shape, acks in run]
            mixed = [each for pair in pairs for each in pair]
            short = await clients[0].produce(mixed, version)
            assert short == await clients[1].produce_anew(mixed, version)
        assert clients[0].connection.memo.templates
        assert not clients[1].connection.memo.templates
        assert_same(broker, "short", "long_")


def one_too_many(codec: Codec) -> Any:
    return {ALONE: 0, COUNTED: 2}, True, 0, codec, None, 1


MISCOUNTED = [[one_too_many(codec) for codec in Codec], [({COUNTED: 1}, True, 0, Codec.NONE, None, 1)]]


@settings(max_examples=40)
@example(MISCOUNTED, 9)
@given(
    st.lists(st.lists(sent, min_size=1, max_size=8), min_size=1, max_size=6),
    st.sampled_from([3, 5, 6, 7, 8, 9, 12]),
)
def test_both_ways_are_the_same(runs: list[list[Any]], version: int) -> None:
    with tempfile.TemporaryDirectory() as data:
        asyncio.run(compare(runs, version, data))


turns = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.lists(sent, min_size=1, max_size=4)), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


async def compare_turns(turns: list[list[tuple[int, list[Any]]]], data: str) -> None:
    """The same requests in the same order: those of a turn at once, or with a turn of the loop for each."""
    async with running(data) as broker:
        for topic in ("at-once", "in-turn"):
            await create_topic(broker, topic)
        groups = [[Client(broker, topic) for _ in range(3)] for topic in ("at-once", "in-turn")]
        plain = (batch_of(b"warm", timestamp=NOW_MS), 1)
        for group in groups:
            for client in group:
                await client.produce([plain, plain], 9)
        for turn in turns:
            broker.components.network._rounds_apart = 0
            for at, run in turn:
                pairs = [(mutated(*shape), acks) for *shape, acks in run]
                groups[0][at].send([plain, *pairs], 9)
            await asyncio.sleep(0)
            for at, run in turn:
                pairs = [(mutated(*shape), acks) for *shape, acks in run]
                groups[1][at].send([plain, *pairs], 9)
                await asyncio.sleep(0)
            for one, other in zip(*groups, strict=True):
                assert one.received(9) == other.received(9)
        assert_same(broker, "at-once", "in-turn")


@settings(max_examples=40)
@given(turns)
def test_connections_read_in_one_turn_are_answered_as_one_by_one(turns: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as data:
        asyncio.run(compare_turns(turns, data))


async def test_connections_read_in_one_turn_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(str(tmp_path)) as broker:
        await create_topic(broker, "t")
        clients = [Client(broker, "t") for _ in range(5)]
        plain = (batch_of(b"x", timestamp=NOW_MS), 1)
        for client in clients:
            await client.produce([plain], 9)
        writes = []
        write = DiskFile.writev

        def counted(file: DiskFile, buffers: Sequence[Any]) -> int:
            writes.append(len(buffers))
            return write(file, buffers)

        monkeypatch.setattr(DiskFile, "writev", counted)
        broker.components.network._rounds_apart = 0
        for client in clients:
            client.send([plain], 9)
        assert not writes
        clients[4].connection.close()
        assert writes == [5], "who closes is answered before, and with it all others"
        assert [len(client.received(9)) for client in clients] == [1] * 5
        await clients[0].produce([plain], 9)
        for client in clients[:4]:
            client.send([plain], 9)
        assert writes[2:] == [1] * 4, "nobody waits for company that did not come the last time"


async def test_a_turn_that_cannot_be_written_is_refused_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(str(tmp_path)) as broker:
        await create_topic(broker, "t")
        clients = [Client(broker, "t") for _ in range(3)]
        plain = (batch_of(b"x", timestamp=NOW_MS), 1)
        for client in clients:
            await client.produce([plain], 9)

        def full(file: DiskFile, buffers: Sequence[Any]) -> int:
            raise OSError(28, "no space left on device")

        broker.components.network._rounds_apart = 0
        with monkeypatch.context() as patch:
            patch.setattr(DiskFile, "writev", full)
            for client in clients:
                client.send([plain], 9)
            await asyncio.sleep(0)
        codes = [client.received(9)[0][1].error_code for client in clients]
        assert codes == [ErrorCode.kafka_storage_error] * 3


async def test_who_led_when_a_round_was_opened_and_leads_no_more_answers_at_once(tmp_path: Path) -> None:
    """Nobody would tell the waits that begin with the end of the round."""
    async with running(str(tmp_path), **{"log.flush.single.replica": "true"}) as broker:
        await create_topic(broker, "t")
        client = Client(broker, "t")
        warm = (batch_of(b"x", timestamp=NOW_MS), 1)
        await client.produce([warm], 9)
        awaiting = (batch_of(b"y", timestamp=NOW_MS), -1)
        await client.produce([awaiting], 9)
        assert not client.received(9)
        broker.components.network._rounds_apart = 0
        client.send([awaiting], 9)
        topic = broker.components.cluster.image.topics["t"]
        for _ in broker.components.replicas.apply(Delta(topics_deleted=[topic])):
            pass
        broker.components.network.finish_deferred()
        codes = [answer.error_code for _, answer in client.received(9)]
        assert codes == [ErrorCode.not_leader_or_follower] * 2
