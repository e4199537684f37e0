"""The small data requests on a running broker: what they answer when all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches, iter_records
from tests.broker.handlers.test_bad_input import list_offset
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
)

if TYPE_CHECKING:
    from broker.server import Broker


def values_in(records: bytes) -> list[bytes | None]:
    return [
        record.value for at, header in iter_batches(records) for record in iter_records(records, at, header)
    ]


@pytest.mark.requirement("1023-02")
async def test_list_offsets(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        answer = await list_offset(client, -3)
        assert (answer.timestamp, answer.offset, answer.error_code) == (-1, -1, ErrorCode.none)
        for at in range(5):
            await client.produce("t", batch_of(b"x", timestamp=1000 + 10 * at))
        for timestamp, expected in (
            (-1, (-1, 5)),
            (-2, (-1, 0)),
            (-3, (1040, 4)),
            (-4, (-1, 0)),
            (-5, (-1, -1)),
            (-6, (-1, -1)),
            (0, (1000, 0)),
            (1015, (1020, 2)),
            (1040, (1040, 4)),
            (1041, (-1, -1)),
        ):
            answer = await list_offset(client, timestamp)
            assert answer.error_code is ErrorCode.none
            assert (answer.timestamp, answer.offset) == expected
        response = await client.call(
            Api.DELETE_RECORDS,
            2,
            topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}],
            timeout=1000,
        )
        assert response.topics[0].partitions[0].low_watermark == 2
        assert (await list_offset(client, -2)).offset == 2
        for version in range(1, 12):
            assert (await list_offset(client, -1, version=version)).offset == 5


async def test_delete_records(broker: Broker) -> None:
    await create_topic(broker, "t")
    await create_topic(broker, "c", cleanup_policy="compact")
    async with await RawClient.open(broker) as client:
        for _ in range(5):
            await client.produce("t", batch_of(b"x"))

        async def delete(offset: int, topic: str = "t") -> tuple[int, int]:
            topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
            response = await client.call(Api.DELETE_RECORDS, 2, topics=topics, timeout=1000)
            answer = response.topics[0].partitions[0]
            return answer.low_watermark, answer.error_code.value

        assert await delete(2) == (2, 0)
        assert await delete(1) == (2, 0)
        assert await delete(6) == (-1, 1)
        assert await delete(-2) == (-1, 1)
        assert await delete(0, "missing") == (-1, 3)
        assert await delete(0, "c") == (-1, 44)
        assert await delete(-1) == (5, 0)
        answer = await client.fetch("t", 3)
        assert answer.error_code is ErrorCode.offset_out_of_range


async def test_offset_for_leader_epoch(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for _ in range(3):
            await client.produce("t", batch_of(b"x"))

        async def ask(epoch: int, current: int = -1, topic: str = "t") -> tuple[int, int, int]:
            partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            response = await client.call(
                Api.OFFSET_FOR_LEADER_EPOCH,
                4,
                replica_id=-1,
                topics=[{"topic": topic, "partitions": [partition]}],
            )
            answer = response.topics[0].partitions[0]
            return answer.error_code.value, answer.leader_epoch, answer.end_offset

        assert await ask(0) == (0, 0, 3)
        assert await ask(0, 0) == (0, 0, 3)
        assert await ask(5) == (0, -1, -1)
        assert await ask(0, 9) == (75, -1, -1)
        assert await ask(0, topic="missing") == (3, -1, -1)


async def test_a_partition_that_is_named_again_is_refused_once_there_are_many_producers(
    broker: Broker,
) -> None:
    await create_topic(broker, "t", 2)
    object.__setattr__(broker.components.cluster.broker_config, "request_rows_max", 2)
    async with await RawClient.open(broker) as client:
        for producer_id in (7, 9):
            batch = batch_of(b"x", producer_id=producer_id, producer_epoch=1, base_sequence=0)
            assert (await client.produce("t", batch)).error_code is ErrorCode.none
        topics = [{"name": "t", "partition_indexes": [0, 0, 1, 1]}]
        response = await client.call(Api.DESCRIBE_PRODUCERS, 0, topics=topics)
        rows = [(row.error_code, len(row.active_producers)) for row in response.topics[0].partitions]
        refused, fine = ErrorCode.invalid_request, ErrorCode.none
        assert rows == [(fine, 2), (refused, 0), (fine, 0), (refused, 0)]


async def test_producers_and_log_dirs_are_described(broker: Broker) -> None:
    await create_topic(broker, "t", 2)
    batch = batch_of(b"x", producer_id=9, producer_epoch=1, base_sequence=0)
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch)
        response = await client.call(
            Api.DESCRIBE_PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0, 1, 5]}]
        )
        first, second, missing = response.topics[0].partitions
        (producer,) = first.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (9, 1, 0)
        assert second.active_producers == ()
        assert missing.error_code is ErrorCode.unknown_topic_or_partition
        response = await client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
        (directory,) = response.results
        (topic,) = [topic for topic in directory.topics if topic.name == "t"]
        assert [(each.partition_index, each.partition_size) for each in topic.partitions] == [
            (0, len(batch)),
            (1, 0),
        ]
        assert directory.total_bytes > directory.usable_bytes > 0
        only = [{"topic": "t", "partitions": [1]}]
        response = await client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=only)
        assert [each.partition_index for each in response.results[0].topics[0].partitions] == [1]
