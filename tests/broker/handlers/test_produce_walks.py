"""Batches whose records must be read: many of them hold up their own connection and nobody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from protocol.apis import Api
from protocol.compression import Codec
from protocol.errors import ErrorCode
from protocol.records import build_batch, crc_of, iter_batches, iter_records, parse_header
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields, produce_fields

if TYPE_CHECKING:
    from broker.server import Broker

MANY = 30_000
NOW_MS = 1_700_000_000_000


def batch_of_many(count: int = MANY, *, keyless: int | None = None, codec: Codec = Codec.ZSTD) -> bytes:
    rows = [(None if n == keyless else b"k%d" % n, b"v%d" % n, (), NOW_MS) for n in range(count)]
    return bytes(build_batch(rows, codec=codec))


async def read_back(client: RawClient, topic: str) -> bytes:
    await client.send(client.encode(Api.FETCH, 12, fetch_fields(topic, 0, partition_max_bytes=1 << 26)))
    response = await client.receive_as(Api.FETCH, 12)
    return bytes(response.responses[0].partitions[0].records)


async def test_a_long_walk_holds_up_nobody_else(broker: Broker) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    async with await RawClient.open(broker) as walker, await RawClient.open(broker) as other:
        await other.call(Api.API_VERSIONS, 0)
        order: list[str] = []

        async def walk() -> None:
            answer = await walker.produce("t", batch_of_many())
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
            order.append("walker")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(walk())
            for _ in range(3):
                await other.call(Api.API_VERSIONS, 0)
            order.append("other")
        assert order == ["other", "walker"]


@pytest.mark.parametrize("acks", [1, -1])
async def test_the_order_of_a_connection_is_kept(broker: Broker, acks: int) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    await create_topic(broker, "plain")
    async with await RawClient.open(broker) as client:
        requests = [
            client.encode(Api.PRODUCE, 9, produce_fields(topic, batch_of_many(count), acks=acks))
            for topic, count in (("t", 5000), ("plain", 3), ("t", 2), ("t", 4000), ("plain", 1))
        ]
        await client.send(b"".join([*requests, client.encode(Api.API_VERSIONS, 0, {})]))
        offsets = []
        for expected in range(1, 6):
            response = await client.receive_as(Api.PRODUCE, 9)
            assert client.answered == expected + client.correlation_id - 6
            answer = response.responses[0].partition_responses[0]
            assert answer.error_code is ErrorCode.none
            offsets.append(answer.base_offset)
        assert offsets == [0, 0, 5000, 5002, 3]
        await client.receive_as(Api.API_VERSIONS, 0)


async def test_what_is_wrong_with_one_of_many_records_is_told(broker: Broker) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    async with await RawClient.open(broker) as client:
        answer = await client.produce("t", batch_of_many(2000, keyless=700))
        assert answer.error_code is ErrorCode.invalid_record
        assert [error.batch_index for error in answer.record_errors] == [700]
        garbled = bytearray(batch_of_many(2000))
        header = parse_header(garbled)
        garbled[100:200] = bytes(100)
        garbled[17:21] = crc_of(garbled, 0, header.size).to_bytes(4, "big")
        assert (await client.produce("t", bytes(garbled))).error_code is ErrorCode.invalid_record
        assert (await client.produce("t", batch_of_many(10))).base_offset == 0


async def test_acks_zero_walks_without_an_answer(broker: Broker) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    async with await RawClient.open(broker) as client:
        await client.send(client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of_many(2000), acks=0)))
        assert (await client.produce("t", batch_of_many(1))).base_offset == 2000
        await client.send(
            client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of_many(2000, keyless=5), acks=0))
        )
        assert await client.is_closed()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
async def test_a_rebuilt_batch_holds_the_same_records(broker: Broker, codec: Codec) -> None:
    await create_topic(broker, "t", compression_type="lz4")
    sent = batch_of_many(3000, codec=codec)
    async with await RawClient.open(broker) as client:
        assert (await client.produce("t", sent)).base_offset == 0
        stored = await read_back(client, "t")
    ((at, header),) = iter_batches(stored)
    assert header.codec == Codec.LZ4
    assert list(iter_records(stored, at)) == list(iter_records(sent))


async def test_a_duplicate_is_known_before_and_after_the_walk(broker: Broker) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    rows = [(b"k", b"v", (), NOW_MS)] * 2000
    batch = bytes(build_batch(rows, producer_id=77, producer_epoch=0, base_sequence=0))
    async with await RawClient.open(broker) as first, await RawClient.open(broker) as second:
        for client in (first, second):
            await client.send(client.encode(Api.PRODUCE, 9, produce_fields("t", batch)))
        for client in (first, second):
            answer = (await client.receive_as(Api.PRODUCE, 9)).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        assert (await first.produce("t", batch)).base_offset == 0
        assert (await first.produce("t", batch_of_many(1))).base_offset == 2000


async def test_nothing_stays_unwritten_while_another_partition_is_walked(broker: Broker) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    await create_topic(broker, "plain")
    replicas = broker.components.replicas
    fields = produce_fields("plain", batch_of_many(1))
    fields["topic_data"] += produce_fields("t", batch_of_many())["topic_data"]
    async with await RawClient.open(broker) as client:
        await client.send(client.encode(Api.PRODUCE, 9, fields))
        plain, walked = replicas.partition("plain", 0).log, replicas.partition("t", 0).log
        async with asyncio.timeout(10):
            while plain.log_end_offset == 0:  # noqa: ASYNC110 - the broker's own state
                await asyncio.sleep(0)
        assert walked.log_end_offset == 0
        assert not replicas.touched
        assert plain.high_watermark == 1
        await client.receive_as(Api.PRODUCE, 9)


async def test_a_bad_size_behind_a_walk_lets_nothing_overtake_it(broker: Broker) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    log = broker.components.replicas.partition("t", 0).log
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as other:
        await client.send(client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of_many())))
        await other.call(Api.API_VERSIONS, 0)
        broken = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of_many(1))) + b"\xff\xff\xff\xff"
        await client.send(broken)
        assert await client.is_closed()
        assert log.log_end_offset in (0, MANY)


@pytest.mark.parametrize("is_from_files", [False, True])
@pytest.mark.parametrize("is_bad_size", [False, True])
async def test_a_big_answer_before_a_request_that_ends_the_connection_leaves_whole(
    broker: Broker, is_from_files: bool, is_bad_size: bool
) -> None:
    """Of more than leaves in a turn of the loop, to a client that takes its time."""
    count, size = (10, 900_000) if is_from_files else (100, 40_000)
    await create_topic(broker, "t", count)
    async with await RawClient.open(broker) as client:
        for index in range(count):
            await client.produce("t", batch_of_many(1), index=index)
            await client.produce("t", batch_of(bytes(size)), index=index)
        limits = {"max_bytes": 1 << 26, "min_bytes": 0}
        fields = fetch_fields("t", 0, **limits)
        row = fields["topics"][0]["partitions"][0]
        fields["topics"][0]["partitions"] = [row | {"partition": at} for at in range(count)]
        last = client.encode(Api.PRODUCE, 9, produce_fields("nope", batch_of_many(1), acks=0))
        if is_bad_size:
            last = b"\xff\xff\xff\xff"
        client.writer.write(
            client.encode(Api.API_VERSIONS, 0, {}) + client.encode(Api.FETCH, 12, fields) + last
        )
        await client.receive_as(Api.API_VERSIONS, 0)
        (topic,) = (await client.receive_as(Api.FETCH, 12)).responses
        assert sum(len(each.records) for each in topic.partitions) > count * size
        assert await client.is_closed()


@pytest.mark.parametrize("is_known", [False, True])
async def test_answers_before_a_failing_acks_zero_still_leave(broker: Broker, is_known: bool) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for _ in range(is_known):
            await client.produce("t", batch_of_many(1))
        good = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of_many(1)))
        await client.send(
            good + client.encode(Api.PRODUCE, 9, produce_fields("nope", batch_of_many(1), acks=0))
        )
        response = await client.receive_as(Api.PRODUCE, 9)
        assert response.responses[0].partition_responses[0].base_offset == is_known
        assert await client.is_closed()
