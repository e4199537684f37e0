"""Whatever the schemas allow is answered or refused: no request ends as a bug's stack in the log.

Requests of every API and version, made of names, numbers and nulls that are likely to meet something, go to
one whole broker over its sockets.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any
from uuid import UUID

import pytest

from protocol.apis import SERVED, Api
from protocol.coding.schema import struct_schema
from protocol.messages import encode_request
from tests.broker.raw_client import RawClient, batch_of, create_topic
from tests.conftest import MakeBroker
from tests.protocol.generate import schema_of

ROUNDS = 4
SEED = 1
WAIT_S = 0.2
"""Some requests wait for what does not come; after this long their connection is given up."""
NAMES = (
    *("t", "t", "u", "new", "g", "g", "m", "1", "1", "", "x" * 32_767, "é\0\n/..", "__consumer_offsets"),
    *("consumer", "range", "retention.ms", "cleanup.policy", "compact", "delete", "1000", "-1"),
    *("max.connections.per.ip.overrides", "broker", "consumer.session.timeout.ms", "Stable", "classic"),
)
NUMBERS = (
    -(2**63),
    -(2**31),
    -32768,
    -129,
    -7,
    -6,
    -5,
    -4,
    -3,
    -2,
    -1,
    *(0, 1, 2) * 3,
    3,
    4,
    8,
    16,
    32,
    6000,
)
LARGE = (127, 10_000, 32767, 2**31 - 1, 2**63 - 1)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64}


class Maker:
    """Fields of a message, at random."""

    def __init__(self, topic_id: UUID) -> None:
        self.random = random.Random(SEED)
        self.topic_id = topic_id

    def fields(self, schema: Any) -> dict[str, Any]:
        tagged = (field for field in schema.tagged if self.random.random() < 0.5)
        return {field.name: self.field(field) for field in (*schema.fields, *tagged)}

    def field(self, field: Any) -> Any:
        if field.is_nullable and field.tag is None and self.random.random() < 0.25:
            return None
        if not field.is_array:
            return self.item(field)
        return [self.item(field) for _ in range(self.random.choice((0, 1, 1, 1, 2, 3)))]

    def item(self, field: Any) -> Any:
        if field.struct is not None:
            return self.fields(struct_schema(field.struct))
        if field.name == "isolation_level":
            # of ListOffsets any other is answered with UNKNOWN_SERVER_ERROR, as by Kafka
            return self.random.choice((0, 1))
        match field.kafka_type:
            case "string":
                return self.random.choice(NAMES)
            case "bytes":
                return self.random.choice((b"", b"\0\0", b"y" * 40, self.random.randbytes(20)))
            case "records":
                return self.random.choice((b"", b"r" * 70, batch_of(b"x")))
            case "uuid":
                return self.random.choice((None, self.topic_id, self.topic_id))
            case "bool":
                return self.random.random() < 0.5
            case kind:
                half = 1 << (BITS[kind] - 1)
                numbers = NUMBERS if self.random.random() < 0.9 else LARGE
                return self.random.choice([number for number in numbers if -half <= number < half])


async def test_no_request_finds_a_bug(make_broker: MakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = await make_broker(offsets_topic_num_partitions="2")
    maker = Maker(await create_topic(broker, "t", partitions=2))
    client = await RawClient.open(broker)
    for _ in range(ROUNDS):
        for key, row in SERVED.items():
            for version in range(row.served_from, row.max_version + 1):
                fields = maker.fields(schema_of(key, version, "request"))
                asked = f"{Api(key).name} version {version}: {fields}"
                await client.send(encode_request(key, version, 1, "c", fields))
                try:
                    async with asyncio.timeout(WAIT_S):
                        response = repr(await client.receive_as(Api(key), version))
                except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                    response = ""
                    client.writer.close()
                    client = await RawClient.open(broker)
                assert "unknown_server_error" not in response, asked
                assert [r for r in caplog.records if r.levelno >= logging.ERROR] == [], asked
    client.writer.close()
