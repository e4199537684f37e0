"""Produce on a running broker: what it answers when all is well, and what acks=all waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from protocol.apis import Api
from protocol.compression import Codec
from protocol.errors import ErrorCode
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    produce_fields,
    with_replicas,
)

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker


async def test_what_was_sent_is_stored_but_for_the_stamp(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for codec in Codec:
            batch = batch_of(b"x" * 100, b"y" * 200, codec=codec)
            offset = (await client.produce("t", batch)).base_offset
            stored = (await client.fetch("t", offset)).records
            assert bytes(stored[16:]) == batch[16:]
            assert bytes(stored[8:12]) == batch[8:12]


async def test_several_topics_and_partitions_in_one_request(broker: Broker) -> None:
    await create_topic(broker, "a", 2)
    await create_topic(broker, "b", 1)
    batch = batch_of(b"x")
    fields = produce_fields("a", batch)
    fields["topic_data"] = [
        {"name": "a", "partition_data": [{"index": at, "records": batch} for at in (1, 0, 7)]},
        {"name": "nope", "partition_data": [{"index": 0, "records": batch}]},
        {"name": "b", "partition_data": [{"index": 0, "records": None}]},
    ]
    async with await RawClient.open(broker) as client:
        for acks in (1, -1):
            response = await client.call(Api.PRODUCE, 9, **fields | {"acks": acks})
            codes = [
                (topic.name, each.index, int(each.error_code.value))
                for topic in response.responses
                for each in topic.partition_responses
            ]
            assert codes == [("a", 1, 0), ("a", 0, 0), ("a", 7, 3), ("nope", 0, 3), ("b", 0, 87)]


async def test_acks_all_waits_for_the_followers_and_times_out(broker: Broker) -> None:
    await create_topic(broker, "t")
    partition = broker.components.replicas.partition("t", 0)
    with_replicas(partition, 1, 2)
    async with await RawClient.open(broker) as client:
        for offset in range(2):
            answer = await client.produce("t", batch_of(b"x"), acks=-1, timeout=50)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.request_timed_out, offset)
        assert partition.commit_waits == 0
        assert (await client.fetch("t", 0)).records == b""
        assert (await client.produce("t", batch_of(b"x"), acks=1)).error_code is ErrorCode.none
        partition.follower_at(2, 3)
        answer = await client.fetch("t", 0)
        assert answer.high_watermark == 3


async def test_too_few_replicas_refuse_acks_all_before_and_after(broker: Broker) -> None:
    await create_topic(broker, "t", min_insync_replicas="2")
    partition = broker.components.replicas.partition("t", 0)
    with_replicas(partition, 1, 2)
    async with await RawClient.open(broker) as client:
        data = client.encode(Api.PRODUCE, 9, produce_fields("t", batch_of(b"x"), acks=-1))
        await client.send(data)
        async with asyncio.timeout(5):
            while not partition.commit_waits:  # noqa: ASYNC110 - the broker's own state
                await asyncio.sleep(0)
        with_replicas(partition, 1, 2, isr=(1,))
        response = await client.receive_as(Api.PRODUCE, 9)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code is ErrorCode.not_enough_replicas_after_append
        answer = await client.produce("t", batch_of(b"x"), acks=-1)
        assert answer.error_code is ErrorCode.not_enough_replicas
        assert (await client.produce("t", batch_of(b"x"), acks=1)).error_code is ErrorCode.none


async def test_a_single_replica_that_flushes_answers_after_the_sync(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await make_broker(log_flush_single_replica="true")
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for at in range(20):
            answer = await client.produce("t", batch_of(b"x"), acks=-1)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, at)
            assert broker.components.replicas.partition("t", 0).log.recovery_point > at
