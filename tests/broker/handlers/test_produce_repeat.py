"""The short way of Produce on a running broker: what is remembered of a connection, and when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches
from tests.broker.raw_client import (
    RawClient,
    batch_of,
    create_topic,
    fetch_fields,
    produce_fields,
)

if TYPE_CHECKING:
    from broker.server import Broker


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
