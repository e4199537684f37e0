"""Fetch on a running broker: what is read, the long poll, sessions, a Fetch that continues another."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from broker.control.metadata_records import PartitionImage
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.fetch import FETCH_SHAPES_FROM
from protocol.records import iter_batches, iter_records
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
)

if TYPE_CHECKING:
    from broker.server import Broker


def values_in(records: bytes) -> list[bytes | None]:
    return [
        record.value for at, header in iter_batches(records) for record in iter_records(records, at, header)
    ]


async def test_every_fetch_version_reads_the_same(broker: Broker) -> None:
    topic_id = await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for at in range(5):
            await client.produce("t", batch_of(b"%d" % at))
        for version in range(4, 19):
            for isolation in (0, 1):
                answer = await client.fetch(
                    "t", 1, version=version, topic_id=topic_id, isolation_level=isolation
                )
                assert answer.error_code is ErrorCode.none
                assert (answer.high_watermark, answer.last_stable_offset) == (5, 5)
                assert values_in(answer.records) == [b"1", b"2", b"3", b"4"]
                assert answer.aborted_transactions == (None if isolation == 0 else ())


async def test_limits_and_the_first_batch_rule(broker: Broker) -> None:
    await create_topic(broker, "a")
    await create_topic(broker, "b")
    batch = batch_of(b"x" * 1000)
    async with await RawClient.open(broker) as client:
        for topic in ("a", "b"):
            for _ in range(5):
                await client.produce(topic, batch)

        async def sizes(**limits: int) -> list[int]:
            of_partition = limits.pop("partition_max_bytes", 1 << 20)
            fields = fetch_fields("a", 0, **limits)
            fields["topics"] = [
                {
                    "topic": topic,
                    "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": of_partition}],
                }
                for topic in ("a", "b")
            ]
            response = await client.call(Api.FETCH, 11, **fields)
            return [len(topic.partitions[0].records) // len(batch) for topic in response.responses]

        assert await sizes() == [5, 5]
        assert await sizes(max_bytes=1) == [1, 0]
        assert await sizes(max_bytes=3 * len(batch) + 1) == [3, 0]
        assert await sizes(max_bytes=7 * len(batch)) == [5, 2]
        assert await sizes(partition_max_bytes=1) == [1, 0]
        assert await sizes(partition_max_bytes=2 * len(batch) + 5) == [2, 2]


async def test_a_long_poll_ends_with_the_first_byte_or_the_wait(broker: Broker) -> None:
    await create_topic(broker, "t")
    loop = asyncio.get_running_loop()
    async with await RawClient.open(broker) as consumer, await RawClient.open(broker) as producer:
        started = loop.time()
        answer = await consumer.fetch("t", 0, max_wait=150)
        assert answer.records == b""
        assert 0.14 < loop.time() - started < 5
        for at in range(3):
            waiting = asyncio.create_task(consumer.fetch("t", at, max_wait=60_000))
            await _waiter(broker, "t")
            await producer.produce("t", batch_of(b"%d" % at))
            assert values_in((await waiting).records) == [b"%d" % at]


async def _waiter(broker: Broker, topic: str) -> None:
    waiters = broker.components.replicas.partition(topic, 0).data_waiters
    async with asyncio.timeout(5):
        while not waiters:  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0)


async def test_min_bytes_are_counted_over_partitions(broker: Broker) -> None:
    await create_topic(broker, "t", 2)
    batch = batch_of(b"x" * 100)
    fields = fetch_fields("t", 0, max_wait=60_000, min_bytes=3 * len(batch))
    partition = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [partition, partition | {"partition": 1}]
    async with await RawClient.open(broker) as consumer, await RawClient.open(broker) as producer:
        waiting = asyncio.create_task(consumer.call(Api.FETCH, 12, **fields))
        await _waiter(broker, "t")
        for index in (0, 1):
            await producer.produce("t", batch, index=index)
            assert not waiting.done()
        await producer.produce("t", batch)
        response = await waiting
        assert [len(each.records) for each in response.responses[0].partitions] == [
            2 * len(batch),
            len(batch),
        ]


@pytest.mark.parametrize(
    "limits",
    [
        {"min_bytes": 2500, "partition_max_bytes": 2500},
        {"min_bytes": 2500, "max_bytes": 2500},
        {"min_bytes": 1 << 20, "max_bytes": 2000},
    ],
)
async def test_a_reader_that_lags_does_not_wait_for_what_its_limits_leave_out(
    broker: Broker, limits: dict[str, int]
) -> None:
    """Kafka fills a response up with a piece of a batch, so min_bytes are reached; ours are whole ones."""
    await create_topic(broker, "t")
    batch = batch_of(b"x" * 1000)
    async with await RawClient.open(broker) as client:
        for _ in range(5):
            await client.produce("t", batch)
        answer = await client.fetch("t", 0, max_wait=60_000, **limits)
        assert len(answer.records) == limits.get("max_bytes", 2500) // len(batch) * len(batch)


async def test_a_topic_that_is_not_there_leaves_the_wait_for_the_others_alone(broker: Broker) -> None:
    await create_topic(broker, "t")
    batch = batch_of(b"x")
    fields = fetch_fields("t", 0, max_wait=60_000, min_bytes=2 * len(batch))
    fields["topics"].append(fetch_fields("nope", 0)["topics"][0])
    async with await RawClient.open(broker) as consumer, await RawClient.open(broker) as producer:
        waiting = asyncio.create_task(consumer.call(Api.FETCH, 12, **fields))
        await _waiter(broker, "t")
        await producer.produce("t", batch)
        await producer.produce("t", batch)
        response = await waiting
        assert [len(topic.partitions[0].records) for topic in response.responses] == [2 * len(batch), 0]


async def test_a_thousand_waiters_are_all_answered(broker: Broker) -> None:
    await create_topic(broker, "t")
    clients = [await RawClient.open(broker) for _ in range(150)]
    polls = [asyncio.create_task(client.fetch("t", 0, max_wait=60_000)) for client in clients]
    waiters = broker.components.replicas.partition("t", 0).data_waiters
    async with asyncio.timeout(10):
        while len(waiters) < len(clients):  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0)
    async with await RawClient.open(broker) as producer:
        await producer.produce("t", batch_of(b"x"))
    for poll in polls:
        assert values_in((await poll).records) == [b"x"]
    for client in clients:
        client.writer.close()


async def test_a_deleted_topic_ends_the_wait(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as consumer, await RawClient.open(broker) as admin:
        waiting = asyncio.create_task(consumer.fetch("t", 0, max_wait=60_000))
        await _waiter(broker, "t")
        await admin.call(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=5000)
        assert (await waiting).error_code is ErrorCode.unknown_topic_or_partition


async def test_an_incremental_session_tells_only_news(broker: Broker) -> None:
    await create_topic(broker, "t", 3)
    fields = fetch_fields("t", 0, session_epoch=0)
    partition = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [partition | {"partition": at} for at in range(3)]
    async with await RawClient.open(broker) as client:
        response = await client.call(Api.FETCH, 12, **fields)
        assert [each.partition_index for each in response.responses[0].partitions] == [0, 1, 2]
        again: dict[str, Any] = {"session_id": response.session_id, "topics": []}
        response = await client.call(Api.FETCH, 12, **fields | again | {"session_epoch": 1})
        assert response.responses == ()
        await client.produce("t", batch_of(b"x"), index=1)
        response = await client.call(Api.FETCH, 12, **fields | again | {"session_epoch": 2})
        (told,) = response.responses[0].partitions
        assert (told.partition_index, values_in(told.records)) == (1, [b"x"])
        again["topics"] = [{"topic": "t", "partitions": [partition | {"partition": 1, "fetch_offset": 1}]}]
        response = await client.call(Api.FETCH, 12, **fields | again | {"session_epoch": 3})
        assert response.responses == ()
        again["topics"] = []
        forgotten = [{"topic": "t", "partitions": [0, 1]}]
        changes = {"session_epoch": 4, "forgotten_topics_data": forgotten}
        response = await client.call(Api.FETCH, 12, **fields | again | changes)
        for index in range(3):
            await client.produce("t", batch_of(b"y"), index=index)
        response = await client.call(Api.FETCH, 12, **fields | again | {"session_epoch": 5})
        assert [each.partition_index for each in response.responses[0].partitions] == [2]


async def test_diverging_epochs_are_told_without_data(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for _ in range(4):
            await client.produce("t", batch_of(b"x"))
        answer = await client.fetch("t", 2, last_fetched_epoch=0)
        assert len(values_in(answer.records)) == 2
        answer = await client.fetch("t", 2, last_fetched_epoch=7)
        assert answer.error_code is ErrorCode.offset_out_of_range
        partition = broker.components.replicas.partition("t", 0)
        view = PartitionImage(index=0, leader=1, leader_epoch=5, partition_epoch=5, replicas=(1,), isr=(1,))
        partition.lead(view, syncs=False, internal=False)
        await client.produce("t", batch_of(b"x"))
        answer = await client.fetch("t", 5, last_fetched_epoch=0)
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 4)
        answer = await client.fetch("t", 0, current_leader_epoch=0)
        assert answer.error_code is ErrorCode.fenced_leader_epoch


def told(topic: Any) -> list[tuple[Any, ...]]:
    """What a Fetch says of a topic's partitions."""
    return [
        (
            each.partition_index,
            each.error_code,
            each.high_watermark,
            each.last_stable_offset,
            each.log_start_offset,
            each.aborted_transactions,
            bytes(each.records or b""),
        )
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", [8, 9, 11, 12, 13, 16])
@pytest.mark.parametrize("has_session", [False, True])
async def test_a_fetch_that_goes_on_is_answered_as_any_other(
    broker: Broker, version: int, has_session: bool
) -> None:
    """One client repeats itself, of the other nothing is remembered; both have their own topics, alike."""
    topic_ids = {name: await create_topic(broker, name, 3) for name in ("a0", "a1", "b0", "b1")}
    choose = random.Random(version)
    async with await RawClient.open(broker) as one, await RawClient.open(broker) as other:
        for name in topic_ids:
            for index in range(3):
                for _ in range(6):
                    await one.produce(name, batch_of(b"x" * 50), index=index)
        first, second = broker.components.network._connections
        sessions = [0, 0]
        known = 0
        for epoch in range(40):
            asked = choose.choice([[(0, 0)], [(0, 0)], [(0, 0), (0, 2), (1, 1)], []])
            numbers = [
                (choose.choice([-1, 0, 9]), choose.randrange(9), choose.choice([0, 150, 10_000]))
                for _ in asked
            ]
            answers = []
            for at, (client, group) in enumerate(((one, "a"), (other, "b"))):
                second.memo.last_fetch = None
                topics = [
                    {
                        "topic": f"{group}{topic}",
                        "topic_id": topic_ids[f"{group}{topic}"],
                        "partitions": [
                            {
                                "partition": index,
                                "current_leader_epoch": leader_epoch,
                                "fetch_offset": offset,
                                "last_fetched_epoch": -1,
                                "log_start_offset": -1,
                                "partition_max_bytes": size,
                            }
                        ],
                    }
                    for (topic, index), (leader_epoch, offset, size) in zip(asked, numbers, strict=True)
                ]
                fields = fetch_fields("", 0) | {"topics": topics, "max_bytes": 10_000}
                if has_session:
                    fields |= {"session_id": sessions[at], "session_epoch": epoch}
                if at == 0:
                    known += first.memo.last_fetch is not None
                answer = await client.call(Api.FETCH, version, **fields)
                sessions[at] = answer.session_id
                answers.append((answer.error_code, [told(topic) for topic in answer.responses]))
            assert answers[0] == answers[1]
        assert (known > 30) == (version >= FETCH_SHAPES_FROM)
