"""A client that sends exactly the bytes it is told to, and what else every test of the data path needs."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from broker.control.metadata_records import PartitionImage
from broker.control.topics import NewTopic
from protocol.apis import Api, PeerApi
from protocol.messages import decode_response, encode_request
from protocol.records import build_batch

if TYPE_CHECKING:
    from broker.replicas.partition import Partition
    from broker.server import Broker

_SIZE = Struct(">i")
DEADLINE_S = 10.0


class RawClient:
    """One connection. Requests are never retried, and nothing is hidden."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 0

    @classmethod
    async def open(cls, broker: Broker, listener: str | None = None) -> Self:
        listening = next(iter(broker.listeners.values())) if listener is None else broker.listeners[listener]
        reader, writer = await asyncio.open_connection(listening.host, listening.port, limit=1 << 26)
        return cls(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def encode(
        self, api: Api | PeerApi, version: int, fields: dict[str, Any], client_id: str | None = "raw"
    ) -> bytes:
        self.correlation_id += 1
        return encode_request(api, version, self.correlation_id, client_id, fields)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_frame(self, frame: bytes) -> None:
        await self.send(_SIZE.pack(len(frame)) + frame)

    async def receive(self) -> bytes:
        """The next response without its size."""
        async with asyncio.timeout(DEADLINE_S):
            (size,) = _SIZE.unpack(await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def receive_as(self, api: Api | PeerApi, version: int) -> Any:
        correlation_id, response = decode_response(api, version, memoryview(await self.receive()))
        self.answered = correlation_id
        return response

    async def call(self, api: Api | PeerApi, version: int, **fields: Any) -> Any:
        await self.send(self.encode(api, version, fields))
        response = await self.receive_as(api, version)
        assert self.answered == self.correlation_id
        return response

    async def produce(self, topic: str, records: bytes | None, *, index: int = 0, **changes: Any) -> Any:
        """What the one partition is answered."""
        version = changes.pop("version", 9)
        response = await self.call(
            Api.PRODUCE, version, **produce_fields(topic, records, index=index, **changes)
        )
        return response.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int, **changes: Any) -> Any:
        version = changes.pop("version", 12)
        response = await self.call(Api.FETCH, version, **fetch_fields(topic, offset, **changes))
        return response.responses[0].partitions[0]

    async def is_closed(self) -> bool:
        """Waits for the broker to close; False when it answers instead."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


def produce_fields(
    topic: str,
    records: bytes | None,
    *,
    index: int = 0,
    acks: int = 1,
    topic_id: UUID | None = None,
    **changes: Any,
) -> dict[str, Any]:
    partition = {"index": index, "records": records}
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": [partition]}],
        **changes,
    }


def fetch_fields(
    topic: str, offset: int, *, index: int = 0, topic_id: UUID | None = None, **changes: Any
) -> dict[str, Any]:
    partition = {
        "partition": index,
        "fetch_offset": offset,
        "partition_max_bytes": changes.pop("partition_max_bytes", 1 << 20),
        "current_leader_epoch": changes.pop("current_leader_epoch", -1),
        "last_fetched_epoch": changes.pop("last_fetched_epoch", -1),
        "log_start_offset": -1,
    }
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 24,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
        **changes,
    }


def batch_of(
    *values: bytes, timestamp: int = 1_700_000_000_000, key: bytes | None = b"k", **fields: Any
) -> bytes:
    return bytes(build_batch([(key, value, (), timestamp) for value in values], **fields))


async def create_topic(broker: Broker, name: str, partitions: int = 1, **configs: str) -> UUID:
    """Kafka's configuration names, with `_` for `.`."""
    topic = NewTopic(
        name=name,
        partitions=partitions,
        replication_factor=1,
        configs=tuple((config.replace("_", "."), value) for config, value in configs.items()),
    )
    (result,) = await broker.components.cluster.create_topics([topic])
    assert result.error is None, result.error
    assert result.topic is not None
    return result.topic.id


def with_replicas(partition: Partition, *replicas: int, isr: tuple[int, ...] | None = None) -> None:
    """Makes a partition that is led here have these replicas, as the image would."""
    view = PartitionImage(
        index=partition.index,
        leader=partition.node_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch + 1,
        replicas=replicas,
        isr=replicas if isr is None else isr,
    )
    partition.lead(view, syncs=False, internal=partition.internal)
