"""The template way of Produce appends and answers exactly as the long way, whatever the batch is like."""

import asyncio
import random
import tempfile
from struct import pack
from typing import Any, cast

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import server
from broker.config import from_properties
from broker.network import Connection, TcpNetwork
from broker.ports import World
from protocol.apis import Api
from protocol.messages import decode_response, encode_request
from protocol.records import Codec
from remote.object_store import MemoryStore
from storage.files import DiskFiles
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
changes = st.dictionaries(
    st.sampled_from(sorted(FIELDS)), st.integers(-2, 10) | st.sampled_from([16, 32, 64, 126, 127]), max_size=2
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
    batch = bytearray(batch_of(b"a" * 50, b"b" * 50, timestamp=NOW_MS, **fields))
    for name, value in change.items():
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

    def produce(self, requests: list[tuple[bytes, int]], version: int) -> list[Any]:
        """Sends them all at once."""
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
        answered = memoryview(b"".join(self.sink.written))
        self.sink.written.clear()
        answers: list[Any] = []
        while answered:
            end = 4 + int.from_bytes(answered[:4], "big")
            correlation_id, answer = decode_response(Api.PRODUCE, version, answered[4:end])
            answers.append((correlation_id, answer.responses[0].partition_responses[0]))
            answered = answered[end:]
        return answers

    def produce_anew(self, requests: list[tuple[bytes, int]], version: int) -> list[Any]:
        """Sends one by one, and none of them is known."""
        answers = []
        for each in requests:
            answers += self.produce([each], version)
            self.connection.produce_templates.clear()
        return answers


async def compare(runs: list[list[Any]], version: int, data: str) -> None:
    config = from_properties(
        {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data}, standalone=True
    )
    world = World(
        files=DiskFiles(),
        network=TcpNetwork(),
        store=MemoryStore(),
        now_ms=lambda: NOW_MS,
        random=random.Random(1),
        offload=server.offload,
    )
    broker = server.Broker(config, world)
    await broker.start()
    try:
        for topic in ("short", "long_"):
            await create_topic(broker, topic)
        clients = Client(broker, "short"), Client(broker, "long_")
        plain = batch_of(b"warm", timestamp=NOW_MS)
        for run in runs:
            pairs = [[(plain, acks), (mutated(*shape), acks)] for *shape, acks in run]
            mixed = [each for pair in pairs for each in pair]
            assert clients[0].produce(mixed, version) == clients[1].produce_anew(mixed, version)
        assert clients[0].connection.produce_templates
        assert not clients[1].connection.produce_templates
        logs = [broker.components.replicas.partition(client.topic, 0).log for client in clients]
        stored = []
        for held in logs:
            part = held.read(0, 1 << 20, bound=held.log_end_offset, min_one=True)
            stored.append(None if part is None else part.read())
        assert stored[0] == stored[1]
        assert logs[0].producers() == logs[1].producers()
        first_stats, second_stats = (
            broker.components.replicas.topic_stats[client.topic] for client in clients
        )
        for name in first_stats.__slots__:
            assert getattr(first_stats, name) == getattr(second_stats, name), name
    finally:
        await broker.stop()


@settings(max_examples=40)
@given(
    st.lists(st.lists(sent, min_size=1, max_size=8), min_size=1, max_size=6),
    st.sampled_from([3, 5, 6, 7, 8, 9, 12]),
)
def test_both_ways_are_the_same(runs: list[list[Any]], version: int) -> None:
    with tempfile.TemporaryDirectory() as data:
        asyncio.run(compare(runs, version, data))
