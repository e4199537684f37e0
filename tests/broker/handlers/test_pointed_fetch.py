"""What a leader answers a follower that reads from the store: pointers, records, or nothing yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

import pytest

from broker.handlers.follower_fetch import GATHER_S, POINTED_WATERMARK_WAIT_S
from broker.replicas.read import POINTERS_MAX
from protocol.fetch import FetchedByReplica, FetchItem, encode_replica_fetch, parse_replica_fetch
from protocol.pointers import BYTES, FROM_OFFSET, ObjectPlace
from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.extents import Extent
from remote.wal.tail import POINTED_AT_ONCE, EndTimes, Tail, TailKey
from tests.broker.replication_driver import Replicas

LEADER, FOLLOWER = 1, 2
STREAM = Stream(LEADER, 7, 0)


@dataclass
class AskingFollower:
    """A follower by hand, of a partition whose own broker is not running."""

    world: Replicas
    takes_pointers: bool = True
    session_id: int = 0
    session_epoch: int = 0

    async def ask(
        self, offset: int, *, pointed: int = FROM_OFFSET, wait_ms: int = 0, max_bytes: int = 1 << 20
    ) -> FetchedByReplica:
        leader = self.world.nodes[LEADER].partition()
        epoch = leader.leader_epoch
        item = FetchItem(leader.topic_id, 0, epoch, offset, epoch if offset else -1, max_bytes, 0, pointed)
        return await self.ask_items([item], wait_ms=wait_ms)

    async def ask_items(self, items: list[FetchItem], *, wait_ms: int = 0) -> FetchedByReplica:
        frame = encode_replica_fetch(
            1,
            "follower",
            replica_id=FOLLOWER,
            replica_epoch=self.world.controller.image.brokers[FOLLOWER].epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=10 << 20,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            items=items,
            forgotten=[],
            takes_pointers=self.takes_pointers,
        )
        answer = parse_replica_fetch(await self.world.client(LEADER).ask_frame(frame, timeout_s=30))
        assert not answer.error
        self.session_id = answer.session_id
        self.session_epoch += 1
        return answer


def begin(world: Replicas, topic: str = "t") -> Tail:
    """Have the leader's partition use the tier, from the beginning of its log."""
    partition = world.nodes[LEADER].partition(topic=topic)
    tail = Tail(
        TailKey(partition.topic_id, 0),
        leader_epoch=partition.leader_epoch,
        epoch_start=partition.epoch_start,
        stored_to=partition.log.log_end_offset,
        end_times=EndTimes(partition.log.log_end_offset, spacing_s=0.1),
    )
    partition.tail = tail
    return tail


def store(world: Replicas, end: int, *, size: int = 100, topic: str = "t", seq: int | None = None) -> None:
    """Count everything up to `end` as stored in one more object, as an uploader does."""
    partition = world.nodes[LEADER].partition(topic=topic)
    tail = partition.tail
    assert tail is not None
    seq = len(tail.extents) if seq is None else seq
    extent = Extent(tail.stored_to, end, 0, Place(STREAM, seq), 500, size, 9)
    tail.stored(extent, world.loop.now)
    world.nodes[LEADER].here(world.nodes[LEADER].replicas.purgatory.wake_followers, partition)


async def append(world: Replicas, *values: bytes, topic: str = "t") -> None:
    await world.append(LEADER, *values, acks=1, topic=topic)
    partition = world.nodes[LEADER].partition(topic=topic)
    assert partition.tail is not None
    partition.tail.end_times.note(partition.log.log_end_offset, world.loop.now)


def alone(world: Replicas) -> AskingFollower:
    world.create(LEADER, FOLLOWER)
    world.nodes[FOLLOWER].process.die()
    begin(world)
    return AskingFollower(world)


@pytest.mark.requirement("1176-35")
def test_what_is_stored_is_pointed_to_and_what_is_not_is_waited_for() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await append(world, b"a")
        (quiet,) = (await follower.ask(0)).partitions
        assert (quiet.pointers, len(quiet.records)) == ((), 0)
        store(world, 1)
        answer = await follower.ask(0)
        (told,) = answer.partitions
        (pointer,) = told.pointers
        assert answer.objects == (ObjectPlace(*STREAM, 0),)
        assert (pointer.start, pointer.end, pointer.position, pointer.size) == (0, 1, 500, 100)
        assert not len(told.records)
        assert not (await follower.ask(1)).partitions[0].pointers

    Replicas(2).run(main)


@pytest.mark.requirement("1176-35")
def test_a_wait_is_not_ended_by_an_append_but_by_its_object() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await asyncio.sleep(GATHER_S)
        await follower.ask(0)
        asking = asyncio.ensure_future(follower.ask(0, wait_ms=5000))
        await append(world, b"a")
        await asyncio.sleep(1)
        assert not asking.done()
        store(world, 1)
        async with asyncio.timeout(0.5):
            assert (await asking).partitions[0].pointers

    Replicas(2).run(main)


@pytest.mark.requirement("1176-42")
def test_records_are_sent_to_a_follower_that_asks_for_them_or_stands_below_what_is_stored() -> None:
    async def main(world: Replicas) -> None:
        world.create(LEADER, FOLLOWER)
        world.nodes[FOLLOWER].process.die()
        await world.append(LEADER, b"old", acks=1)
        begin(world)
        follower = AskingFollower(world)
        assert len((await follower.ask(0)).partitions[0].records)
        await append(world, b"new")
        store(world, 2)
        assert len((await follower.ask(0)).partitions[0].records)
        assert (await follower.ask(1)).partitions[0].pointers
        assert len((await follower.ask(1, pointed=BYTES)).partitions[0].records)
        stats, log = world.nodes[LEADER].fetch_followers._wal_stats, world.nodes[LEADER].partition().log
        assert not stats.direct_bytes_out, "a topic of the brokers is stored, and not read from there"
        log.config = replace(log.config, remote_wal_storage_enable=True)
        assert len((await follower.ask(1, pointed=BYTES)).partitions[0].records)
        assert stats.direct_bytes_out > 0

    Replicas(2).run(main)


@pytest.mark.requirement("1176-42")
def test_what_waits_for_the_store_for_too_long_is_sent_and_ends_a_wait() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await asyncio.sleep(GATHER_S)
        await append(world, b"a")
        await follower.ask(0)
        asking = asyncio.ensure_future(follower.ask(0, wait_ms=5000))
        await asyncio.sleep(0.2)
        leader = world.nodes[LEADER]
        tail = leader.partition().tail
        assert tail is not None
        tail.is_direct = True
        leader.here(leader.replicas.wake_committed, leader.partition())
        async with asyncio.timeout(0.5):
            assert len((await asking).partitions[0].records)

    Replicas(2).run(main)


def test_one_answer_points_to_so_many_slices_and_the_other_partitions_come_next() -> None:
    """A follower that was away for a while is behind in each of a thousand partitions."""

    async def main(world: Replicas) -> None:
        topics = [f"t{at}" for at in range(POINTERS_MAX // POINTED_AT_ONCE + 5)]
        items = []
        for at, topic in enumerate(topics):
            world.create(LEADER, FOLLOWER, topic=topic)
            begin(world, topic)
            await append(world, *[b"x"] * POINTED_AT_ONCE, topic=topic)
            for end in range(1, POINTED_AT_ONCE + 1):
                store(world, end, topic=topic, seq=at * POINTED_AT_ONCE + end)
            partition = world.nodes[LEADER].partition(topic=topic)
            items.append(FetchItem(partition.topic_id, 0, partition.leader_epoch, 0, -1, 1 << 20, 0))
        world.nodes[FOLLOWER].process.die()
        follower = AskingFollower(world)
        first = await follower.ask_items(items)
        pointed = [each for each in first.partitions if each.pointers]
        assert sum(len(each.pointers) for each in pointed) == POINTERS_MAX
        # what was pointed to is on its way; the rest is asked for as before
        ends = {each.topic_id: each.pointers[-1].end for each in pointed}
        second = await follower.ask_items(
            [item._replace(pointed=ends[item.topic]) for item in items if item.topic in ends]
        )
        found = sum(len(each.pointers) for answer in (first, second) for each in answer.partitions)
        assert found == len(topics) * POINTED_AT_ONCE

    Replicas(2).run(main)


def test_pointers_go_on_behind_what_is_still_being_read_and_records_do_not() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        for value in (b"a", b"b", b"c"):
            await append(world, value)
        store(world, 1)
        store(world, 2)
        answer = await follower.ask(0, pointed=1)
        assert [(each.start, each.end) for each in answer.partitions[0].pointers] == [(1, 2)]
        tail = world.nodes[LEADER].partition().tail
        assert tail is not None
        tail.is_direct = True
        quiet = (await follower.ask(0, pointed=2)).partitions
        assert all(not each.pointers and not len(each.records) for each in quiet)
        assert len((await follower.ask(2)).partitions[0].records)

    Replicas(2).run(main)


def test_a_follower_that_takes_no_pointers_gets_records() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        follower.takes_pointers = False
        await append(world, b"a")
        store(world, 1)
        (told,) = (await follower.ask(0)).partitions
        assert len(told.records) and not told.pointers

    Replicas(2).run(main)


def test_its_two_sessions_do_not_end_each_other() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await append(world, b"a")
        other = AskingFollower(world, takes_pointers=False)
        for _ in range(2):
            await follower.ask(0)
            await other.ask(1)
        sessions = world.nodes[LEADER].fetch_followers._sessions
        assert set(sessions) == {(FOLLOWER, True), (FOLLOWER, False)}
        assert not any(session.is_over for session in sessions.values())

    Replicas(2).run(main)


@pytest.mark.requirement("1176-34")
def test_a_watermark_is_told_within_a_millisecond() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await append(world, b"a")
        store(world, 1)
        await follower.ask(0)
        leader = world.nodes[LEADER]
        assert leader.partition().log.high_watermark == 0
        since = world.loop.now
        (told,) = (await follower.ask(1, wait_ms=5000)).partitions
        assert told.high_watermark == 1
        assert world.loop.now - since < POINTED_WATERMARK_WAIT_S + 0.06  # with the way there and back
        assert leader.fetch_followers._wal_stats.report_s.total == 1

    Replicas(2).run(main)


@pytest.mark.requirement("1176-42")
def test_a_follower_that_is_always_a_little_behind_stays_in_sync() -> None:
    """It reports an offset later than the next Fetch, and never has all there was at the last one."""

    async def main(world: Replicas) -> None:
        follower = alone(world)
        await append(world, b"0")
        store(world, 1)
        for at in range(1, 60):
            await append(world, b"x")
            store(world, at + 1)
            await follower.ask(max(at - 2, 0))
            await asyncio.sleep(0.1)
            leader = world.nodes[LEADER]
            leader.here(leader.isr._look_at, leader.partition())
        assert world.isr() == (LEADER, FOLLOWER)
        assert world.nodes[LEADER].partition().log.high_watermark > 50
        await append(world, b"y")
        await asyncio.sleep(3.5)
        leader.here(leader.isr._look_at, leader.partition())
        await world.until(lambda: world.isr() == (LEADER,))

    Replicas(2, replica_lag_time_max_ms="3000").run(main)


@pytest.mark.requirement("1176-42")
def test_a_follower_joins_that_is_as_far_behind_as_a_slow_store_holds_it() -> None:
    """Records may wait two seconds for the store before they are sent. Where it has all at once, nobody
    waits for one that is as far behind."""

    async def join(world: Replicas, lag_of_store: int) -> None:
        follower = alone(world)
        await append(world, b"0")
        store(world, 1)
        world.change(isr=(LEADER,))
        for at in range(1, 100):
            await append(world, b"x")
            store(world, max(at - lag_of_store, 1))
            await follower.ask(max(at - 25, 0))
            await asyncio.sleep(0.1)
        is_waited_for = world.nodes[LEADER].partition().log.high_watermark < 90
        assert (world.isr() == (LEADER, FOLLOWER)) is is_waited_for is (lag_of_store > 0)

    for lag_of_store in (18, 0):
        Replicas(2).run(partial(join, lag_of_store=lag_of_store))


def test_a_new_epoch_points_to_nothing_of_the_one_before() -> None:
    async def main(world: Replicas) -> None:
        follower = alone(world)
        await append(world, b"a")
        store(world, 1)
        world.change(leader=LEADER)
        partition = world.nodes[LEADER].partition()
        assert partition.tail is None
        begin(world)
        await append(world, b"b")
        (told,) = (await follower.ask(0)).partitions
        assert len(told.records) and not told.pointers

    Replicas(2).run(main)
