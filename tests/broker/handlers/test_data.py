"""Produce, Fetch and the small data requests on a running broker: what they answer when all is well."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from broker.control.metadata_records import PartitionImage
from protocol.apis import Api
from protocol.compression import Codec
from protocol.errors import ErrorCode
from protocol.fetch import FETCH_SHAPES_FROM
from protocol.records import iter_batches, iter_records
from tests.broker.handlers.test_bad_input import list_offset
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
    produce_fields,
    with_replicas,
)

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker


def values_in(records: bytes) -> list[bytes | None]:
    return [
        record.value for at, header in iter_batches(records) for record in iter_records(records, at, header)
    ]


# --- Produce ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
async def test_every_version_appends_and_answers_alike_on_both_ways(broker: Broker, acks: int) -> None:
    """The same request three times: the first by the long way, the others by the template it left."""
    topic_id = await create_topic(broker, "t")
    batch = batch_of(b"a", b"b", b"c")
    expected = 0
    async with await RawClient.open(broker) as client:
        for version in range(3, 14):
            answers = []
            for _ in range(3):
                answer = await client.produce("t", batch, version=version, topic_id=topic_id, acks=acks)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.none, expected)
                expected += 3
                answers.append(repr(answer).replace(f"base_offset={answer.base_offset}", ""))
            assert len(set(answers)) == 1
        (connection,) = broker.components.network._connections
        assert connection.memo.version == 13
        assert len(connection.memo.templates) == 1
        fetched = await client.fetch("t", 0)
        for at, (_, header) in enumerate(iter_batches(fetched.records)):
            assert header.base_offset == 3 * at
            assert header.leader_epoch == 0
        stats = broker.components.replicas.topic_stats["t"]
        assert (stats.messages_in, stats.bytes_in) == (expected, expected // 3 * len(batch))
        assert stats.produce == expected // 3


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


async def test_many_partitions_take_turns_on_one_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topic names of several lengths, then more partitions than a connection keeps templates for."""
    for name, count in (("t", 40), ("topic", 40), ("a-long-topic-name", 40)):
        await create_topic(broker, name, count)
    async with await RawClient.open(broker) as client:
        for turn in range(3):
            for name in ("t", "topic", "a-long-topic-name"):
                for index in range(40):
                    answer = await client.produce(name, batch_of(b"x"), index=index)
                    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, turn)
        (connection,) = broker.components.network._connections
        assert len(connection.memo.templates) == 120
        assert len(connection.memo.ends) == 3
        monkeypatch.setattr("broker.handlers.produce_repeat.TEMPLATES_MAX", 120)
        monkeypatch.setattr("broker.handlers.produce_repeat.TEMPLATES_MIN", 7)
        kept = []
        async with await RawClient.open(broker) as other:
            await other.produce("t", batch_of(b"x"))
            for timeout_ms in range(130):
                answer = await client.produce("t", batch_of(b"x"), timeout=timeout_ms)
                assert answer.error_code is ErrorCode.none
                kept.append(len(connection.memo.templates))
        assert max(kept) == 60, "two connections share what there is"


async def test_what_a_connection_remembers_of_requests_is_small(broker: Broker) -> None:
    await create_topic(broker, "t")
    batch = batch_of(b"x")
    async with await RawClient.open(broker) as client:
        for at in range(3):
            fields = produce_fields("t", batch, timeout=10_000 + at)
            await client.send(client.encode(Api.PRODUCE, 9, fields, client_id="c" * 30_000))
            await client.receive_as(Api.PRODUCE, 9)
        (connection,) = broker.components.network._connections
        assert sum(map(len, connection.memo.templates)) < 10_000
        fields = fetch_fields("t", 0)
        fields["topics"][0]["partitions"] *= 5000
        await client.call(Api.FETCH, 12, **fields)
        assert connection.memo.last_fetch is None


async def test_a_template_does_not_outlive_its_topic(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        for _ in range(3):
            await client.produce("t", batch_of(b"x"))
        response = await client.call(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=5000)
        assert response.responses[0].error_code is ErrorCode.none
        answer = await client.produce("t", batch_of(b"x"))
        assert answer.error_code is ErrorCode.unknown_topic_or_partition
        await create_topic(broker, "t")
        for offset in range(3):
            assert (await client.produce("t", batch_of(b"x"))).base_offset == offset


async def test_tagged_fields_in_the_header_are_no_hindrance_on_either_way(broker: Broker) -> None:
    await create_topic(broker, "t")
    batch = batch_of(b"x")
    async with await RawClient.open(broker) as client:
        for records, code in (
            (batch, ErrorCode.none),
            (batch, ErrorCode.none),
            (batch[:-1] + b"?", ErrorCode.corrupt_message),
        ):
            frame = client.encode(Api.PRODUCE, 9, produce_fields("t", records))[4:]
            tags_at = 10 + len("raw")
            await client.send_frame(frame[:tags_at] + b"\x01\x63\x02ab" + frame[tags_at + 1 :])
            response = await client.receive_as(Api.PRODUCE, 9)
            assert response.responses[0].partition_responses[0].error_code is code
        (connection,) = broker.components.network._connections
        assert connection.memo.templates


async def test_a_config_that_needs_a_walk_closes_the_short_way_at_once(broker: Broker) -> None:
    await create_topic(broker, "t")
    config = {"name": "message.timestamp.type", "config_operation": 0, "value": "LogAppendTime"}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
    async with await RawClient.open(broker) as client:
        assert (await client.produce("t", batch_of(b"x"))).log_append_time is None
        await client.call(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        answer = await client.produce("t", batch_of(b"x"))
        assert answer.log_append_time is not None
        # the clock is years past the first batch, so the second one is in a segment of its own
        ((_, first),) = iter_batches((await client.fetch("t", 0)).records)
        ((_, second),) = iter_batches((await client.fetch("t", 1)).records)
        assert not first.is_log_append_time
        assert second.is_log_append_time


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


# --- Fetch --------------------------------------------------------------------------------------------------


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


# --- offsets ------------------------------------------------------------------------------------------------


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
