"""Whatever the schemas allow is answered or refused: no request ends as a bug's stack in the log.

Requests of every API and version, with names, numbers and nulls that are likely to meet something, go to one
whole broker over its sockets.
"""

import asyncio
import logging
import os
import random
from typing import Any

import pytest

from protocol.apis import SERVED, Api
from protocol.messages import _schema, encode_request
from tests.broker.raw_client import RawClient, batch_of, create_topic
from tests.conftest import MakeBroker
from tests.protocol.generate import schema_of

ROUNDS = int(os.environ.get("TIDEWAL_REQUEST_ROUNDS", "3"))
NAMES = (
    *("t", "t", "u", "new", "g", "g", "m", "1", "1", "", "x" * 300, "é\0\n/..", "__consumer_offsets"),
    *("consumer", "range", "retention.ms", "cleanup.policy", "compact", "delete", "1000", "-1", "INFO", "root"),
    *("max.connections", "broker", "consumer.session.timeout.ms", "/nowhere", "Stable", "classic"),
)
NUMBERS = (-(2**63), -(2**31), -32768, -129, -7, -6, -5, -4, -3, -2, -1, *(0, 1, 2) * 3, 3, 4, 8, 16, 32, 6000)
LARGE = (127, 10_000, 32767, 2**31 - 1, 2**63 - 1)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64}


class Maker:
    def __init__(self, rng: random.Random, topic_id: Any) -> None:
        self.rng = rng
        self.topic_id = topic_id

    def fields(self, schema: Any) -> dict[str, Any]:
        made = {field.name: self.field(field) for field in schema.fields}
        return made | {f.name: self.field(f) for f in schema.tagged if self.rng.random() < 0.5}

    def field(self, field: Any) -> Any:
        if field.is_nullable and field.tag is None and self.rng.random() < 0.25:
            return None
        if not field.is_array:
            return self.item(field)
        return [self.item(field) for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3)))]

    def item(self, field: Any) -> Any:
        if field.struct is not None:
            return self.fields(_schema(field.struct))
        match field.kafka_type:
            case "bool":
                return self.rng.random() < 0.5
            case "string":
                return self.rng.choice(NAMES)
            case "bytes":
                return self.rng.choice((b"", b"\0\0", b"y" * 40, self.rng.randbytes(20)))
            case "records":
                return self.rng.choice((b"", b"r" * 70, batch_of(b"x")))
            case "uuid":
                return self.rng.choice((None, self.topic_id, self.topic_id))
            case "error_code":
                return 0
            case "float64":
                return self.rng.choice((0.0, -1.0, 1e300))
            case "uint16":
                return self.rng.choice((0, 1, 9092, 65535))
            case "datetime_i64":
                return self.rng.choice((0, 1_700_000_000_000))
            case kind:
                half = 1 << (BITS[kind] - 1)
                pool = NUMBERS if self.rng.random() < 0.9 else LARGE
                return self.rng.choice([n for n in pool if -half <= n < half])


async def test_no_request_finds_a_bug(make_broker: MakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = await make_broker(offsets_topic_num_partitions="2", delete_topic_enable="true")
    topic_id = await create_topic(broker, "t", partitions=2)
    rng = random.Random(int(os.environ.get("TIDEWAL_REQUEST_SEED", "1")))
    made = Maker(rng, topic_id)
    failures = []
    client = await RawClient.open(broker)
    for _ in range(ROUNDS):
        for key, row in SERVED.items():
            for version in range(row.served_from, row.max_version + 1):
                fields = made.fields(schema_of(key, version, "request"))
                try:
                    data = encode_request(key, version, 1, rng.choice(("c", None)), fields)
                except Exception as error:
                    print("ENC", Api(key).name, version, repr(error)[:200])
                    continue
                caplog.clear()
                await client.send(data)
                try:
                    async with asyncio.timeout(0.3):
                        response = await client.receive_as(Api(key), version)
                except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as e:
                    closed = type(e).__name__
                    response = None
                    client.writer.close()
                    client = await RawClient.open(broker)
                else:
                    closed = ""
                bad = [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]
                if bad or "unknown_server_error" in repr(response):
                    failures.append((Api(key).name, version, fields))
                    print("FAIL", Api(key).name, version, fields, repr(response)[:600], [r.getMessage() for r in bad])
                    for r in bad:
                        if r.exc_info:
                            import traceback
                            print("".join(traceback.format_exception(r.exc_info[1])[-4:]))
                elif closed and key not in (0,):
                    print(closed, Api(key).name, version, str(fields)[:300], [r.getMessage()[:200] for r in caplog.records])
    client.writer.close()
    assert not failures
