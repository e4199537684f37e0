"""ListOffsets by a special timestamp of ours: up to where the WAL tier has a partition, and which followers
read from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.list_offsets.v11.response import ListOffsetsResponse

from broker.handlers.follower_fetch import FETCHED_LATELY_S
from protocol.apis import Api
from protocol.codec import EntityCodec
from protocol.errors import ErrorCode
from protocol.messages import codec
from protocol.peers import STORED_END, STORED_END_FROM
from protocol.pointers import BYTES
from tests.broker.handlers.test_pointed_fetch import FOLLOWER, LEADER, AskingFollower, alone, append, store
from tests.broker.replication_driver import Replicas


async def stored(world: Replicas, *, version: int = STORED_END_FROM, node: int = LEADER) -> Any:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": STORED_END}]}]
    asked = {"replica_id": -1, "isolation_level": 0, "timeout": 1000, "topics": topics}
    return (await world.ask(node, Api.LIST_OFFSETS, version, **asked)).topics[0].partitions[0]


async def begin_to_ask(follower: AskingFollower, offset: int) -> None:
    """Ask twice: only from the second time on does the leader know what the follower goes on with."""
    await follower.ask(offset)
    await follower.ask(offset)


def told(row: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    assert row.error_code is ErrorCode.none
    return row.offset, row.pointed_followers, row.direct_followers


def test_the_stored_end_and_what_each_follower_reads_from() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        assert told(await stored(world)) == (0, (), ()), "nobody has asked yet"
        await append(world, b"a")
        await append(world, b"b")
        await begin_to_ask(follower, 0)
        assert told(await stored(world)) == (0, (FOLLOWER,), ())
        store(world, 1)
        assert told(await stored(world)) == (1, (FOLLOWER,), ())
        tail = world.nodes[LEADER].partition().tail
        assert tail is not None
        tail.judge(2, world.loop.now + 10)
        assert told(await stored(world)) == (1, (FOLLOWER,), ()), "what it lacks first is stored"
        await follower.ask(1)
        assert told(await stored(world)) == (1, (), (FOLLOWER,)), "what is not stored is sent"
        tail.judge(2, world.loop.now)
        assert told(await stored(world)) == (1, (FOLLOWER,), ())
        await follower.ask(1, pointed=BYTES)
        assert told(await stored(world)) == (1, (), (FOLLOWER,)), "it has asked for records"
        await asyncio.sleep(FETCHED_LATELY_S + 1)
        assert told(await stored(world)) == (1, (), ()), "it is away"

    Replicas(2).run(main)


def test_a_follower_at_the_end_goes_on_as_it_will_be_served() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await append(world, b"a")
        store(world, 1)
        await begin_to_ask(follower, 1)
        assert told(await stored(world)) == (1, (FOLLOWER,), ())
        tail = world.nodes[LEADER].partition().tail
        assert tail is not None
        tail.is_direct = True
        assert told(await stored(world)) == (1, (), (FOLLOWER,))

    Replicas(2).run(main)


def test_a_follower_that_takes_no_pointers_is_sent_records() -> None:
    async def main(world: Replicas) -> None:
        alone(world)
        await append(world, b"a")
        await begin_to_ask(AskingFollower(world, takes_pointers=False), 0)
        assert told(await stored(world)) == (0, (), (FOLLOWER,))

    Replicas(2).run(main)


def test_of_a_partition_that_does_not_use_the_tier_nothing_is_known() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        assert told(await stored(world)) == (-1, (), ())
        assert (await stored(world, node=2)).error_code is ErrorCode.not_leader_or_follower

    Replicas(2).run(main)


@pytest.mark.parametrize("version", [1, 7, 10])
def test_an_older_version_does_not_know_the_timestamp(version: int) -> None:
    async def main(world: Replicas) -> None:
        alone(world)
        assert (await stored(world, version=version)).error_code is ErrorCode.unsupported_version

    Replicas(2).run(main)


def test_all_other_answers_are_kafkas_byte_for_byte() -> None:
    row = {"partition_index": 1, "error_code": 0, "timestamp": 5, "offset": 6, "leader_epoch": 7}
    fields = {"throttle_time": 0, "topics": [{"name": "t", "partitions": [row]}]}
    ours = codec(Api.LIST_OFFSETS, STORED_END_FROM, "response")
    kafkas = EntityCodec(ListOffsetsResponse, 100)
    assert ours.encode(fields) == kafkas.encode(fields)
    row["direct_followers"] = (2, 3)
    more = ours.encode(fields)
    assert ours.decode(more).topics[0].partitions[0].direct_followers == (2, 3)
    assert kafkas.decode(more).topics[0].partitions[0].offset == 6, "a stock client reads over it"
