"""Group coordinators move with the leader of their partition."""

from __future__ import annotations

import asyncio
from typing import Any

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.replication_driver import Replicas

OFFSETS = "__consumer_offsets"


async def commit(world: Replicas, node_id: int, offset: int, group: str = "g") -> ErrorCode:
    topics = [
        {
            "name": "t",
            "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}],
        }
    ]
    response = await world.ask(
        node_id,
        Api.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=topics,
    )
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


async def committed(world: Replicas, node_id: int, group: str = "g") -> tuple[ErrorCode, int]:
    response = await world.ask(
        node_id,
        Api.OFFSET_FETCH,
        7,
        group_id=group,
        topics=[{"name": "t", "partition_indexes": [0]}],
        require_stable=False,
    )
    if response.error_code:
        return response.error_code, -1
    return ErrorCode.none, response.topics[0].partitions[0].committed_offset


async def until_committed(world: Replicas, node_id: int, offset: int) -> None:
    async with asyncio.timeout(30):
        while await commit(world, node_id, offset) is not ErrorCode.none:  # noqa: ASYNC110 - a client retries
            await asyncio.sleep(0.1)


async def until_known(world: Replicas, node_id: int, offset: int) -> None:
    async with asyncio.timeout(30):
        while await committed(world, node_id) != (ErrorCode.none, offset):  # noqa: ASYNC110 - a client retries
            await asyncio.sleep(0.1)


def test_offsets_committed_at_one_coordinator_are_known_to_the_next() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        world.create(1, 2, 3, topic=OFFSETS)
        await until_committed(world, 1, 41)
        assert await commit(world, 2, 1) is ErrorCode.not_coordinator
        assert await committed(world, 2) == (ErrorCode.not_coordinator, -1)
        assert await commit(world, 1, 42) is ErrorCode.none
        world.kill(1)
        await until_committed(world, 2, 43)
        assert await committed(world, 2) == (ErrorCode.none, 43)
        world.change(leader=3, topic=OFFSETS)
        assert await commit(world, 2, 44) is ErrorCode.not_coordinator
        async with asyncio.timeout(30):
            while await committed(world, 3) != (ErrorCode.none, 43):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    Replicas().run(main)


def test_a_commit_that_followers_never_got_is_not_answered_as_done() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic=OFFSETS, min_insync_replicas="2")
        await until_committed(world, 1, 1)
        world.fabric.cut("node1", "node2")
        assert await commit(world, 1, 2) is ErrorCode.coordinator_not_available
        world.change(leader=2, isr=(2,), topic=OFFSETS)
        assert await commit(world, 1, 3) is ErrorCode.not_coordinator
        world.fabric.heal()
        await until_committed(world, 2, 4)
        assert await committed(world, 2) == (ErrorCode.none, 4)

    Replicas(2).run(main)


def test_leadership_that_comes_and_goes_while_loading_leaves_one_coordinator() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic=OFFSETS)
        await until_committed(world, 1, 7)
        for _ in range(10):
            world.change(leader=2, topic=OFFSETS)
            world.change(leader=1, topic=OFFSETS)
        answers: list[Any] = [await commit(world, 1, 8)]
        assert answers[0] in (ErrorCode.coordinator_load_in_progress, ErrorCode.none)
        await until_committed(world, 1, 9)
        assert await committed(world, 1) == (ErrorCode.none, 9)
        assert world.nodes[1].groups.statistics().partitions == 1
        assert world.nodes[2].groups.statistics().partitions == 0

    Replicas(2).run(main)


def test_a_commit_that_may_still_be_lost_is_told_to_nobody() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        world.create(1, 2, 3, topic=OFFSETS)
        await until_committed(world, 1, 1)
        await world.agree(1, 2, 3, topic=OFFSETS)
        world.fabric.cut("node1", "node3")
        world.fabric.cut("node2", "node3")
        unanswered = asyncio.ensure_future(commit(world, 1, 2))
        logs = [world.nodes[node_id].partition(topic=OFFSETS).log for node_id in (1, 2)]
        await world.until(lambda: logs[1].log_end_offset == logs[0].log_end_offset > logs[0].high_watermark)
        world.change(leader=2, topic=OFFSETS)
        assert await unanswered is ErrorCode.not_coordinator
        assert await committed(world, 2) == (ErrorCode.coordinator_load_in_progress, -1)
        world.change(leader=3, topic=OFFSETS)
        world.fabric.heal()
        await until_known(world, 3, 1)
        world.change(leader=2, topic=OFFSETS)
        await until_known(world, 2, 1)

    Replicas().run(main)
