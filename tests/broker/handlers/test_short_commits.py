"""OffsetCommits of few partitions: answered as long ones are, whatever is wrong with them."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from broker.server import Broker
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import DEADLINE_S, RawClient, create_topic
from tests.clients.group_requests import commit_fields, coordinator_is_there, offset_row, topic_row

VERSIONS = range(2, 11)
NO_SUCH_ID = UUID(int=7)
PADDING = bytes(17 << 10)
"""What follows a request is ignored, and a frame so long is no short one."""


async def ready(client: RawClient, broker: Broker) -> UUID:
    """Make the topic and have the group's coordinator be there; return the topic's id."""
    await create_topic(broker, "t", 3)
    await coordinator_is_there(client, "g")
    return broker.components.cluster.image.topics["t"].id


async def offsets(client: RawClient) -> dict[int, int]:
    answer = await client.call(
        Api.OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}], require_stable=False
    )
    return {
        one.partition_index: one.committed_offset
        for topic in answer.groups[0].topics
        for one in topic.partitions
    }


async def both_ways(client: RawClient, version: int, fields: dict[str, Any]) -> Any:
    """Return the response, after a look that the long way gives the same."""
    frame = client.encode(Api.OFFSET_COMMIT, version, fields)[4:]
    await client.send_frame(frame)
    short = await client.receive()
    await client.send_frame(frame + PADDING)
    assert await client.receive() == short
    await client.send_frame(frame)
    return await client.receive_as(Api.OFFSET_COMMIT, version)


def codes(answer: Any) -> list[ErrorCode]:
    return [one.error_code for topic in answer.topics for one in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_short_way_answers_what_the_long_one_does(broker: Broker, version: int) -> None:
    none, missing = ErrorCode.none, ErrorCode.unknown_topic_or_partition
    missing_topic = missing if version < 10 else ErrorCode.unknown_topic_id
    async with await RawClient.open(broker) as client:
        topic_id = await ready(client, broker)
        known = topic_row("t", topic_id, [offset_row(0, 5), offset_row(9, 5), offset_row(2, 6)])
        unknown = topic_row("u", NO_SUCH_ID, [offset_row(0, 5)])
        answer = await both_ways(client, version, commit_fields("g", [unknown, known]))
        assert codes(answer) == [missing_topic, none, missing, none]
        assert await offsets(client) == {0: 5, 2: 6}
        answer = await both_ways(client, version, commit_fields("g", [unknown]))
        assert codes(answer) == [missing_topic]
        long_text = topic_row("t", topic_id, [offset_row(0, 7, "x" * 5_000), offset_row(1, 8)])
        answer = await both_ways(client, version, commit_fields("g", [long_text]))
        assert codes(answer) == [ErrorCode.offset_metadata_too_large, none]
        assert await offsets(client) == {0: 5, 1: 8, 2: 6}
        one = [topic_row("t", topic_id, [offset_row(0, 9), offset_row(9, 9)])]
        fields = commit_fields("g", one, generation_id_or_member_epoch=3, member_id="m")
        assert codes(await both_ways(client, version, fields)) == [ErrorCode.unknown_member_id, missing]
        fields = {**fields, "group_id": "of nobody"}
        refused = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
        answer = await both_ways(client, version, fields)
        assert codes(answer) in ([refused, missing], [ErrorCode.not_coordinator, missing])
        assert await offsets(client) == {0: 5, 1: 8, 2: 6}


async def test_answers_keep_the_order_of_requests(broker: Broker) -> None:
    async with await RawClient.open(broker) as client:
        topic_id = await ready(client, broker)
        frames = [
            client.encode(
                Api.OFFSET_COMMIT, 8, commit_fields("g", [topic_row("t", topic_id, [offset_row(0, offset)])])
            )
            for offset in range(200)
        ]
        first = client.correlation_id - len(frames) + 1
        await client.send(b"".join(frames))
        for number in range(len(frames)):
            answer = await client.receive_as(Api.OFFSET_COMMIT, 8)
            assert (client.answered, codes(answer)) == (first + number, [ErrorCode.none])
        assert await offsets(client) == {0: 199}


async def test_a_client_that_leaves_does_not_take_its_commit_back(broker: Broker) -> None:
    async with await RawClient.open(broker) as client:
        topic_id = await ready(client, broker)
        async with await RawClient.open(broker) as leaving:
            fields = commit_fields("g", [topic_row("t", topic_id, [offset_row(1, 42)])])
            await leaving.send(leaving.encode(Api.OFFSET_COMMIT, 8, fields))
        async with asyncio.timeout(DEADLINE_S):
            while await offsets(client) != {1: 42}:
                pass
