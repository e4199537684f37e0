"""What a leader answers its followers, and what it learns from being asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.handlers import follower_fetch
from broker.handlers.follower_fetch import GATHER_S, GATHER_WAIT_S, WATERMARK_WAIT_S, FollowerSession
from broker.replicas.fetch_sessions import PartitionRequest
from broker.replicas.read import FollowerReader, PartitionRead
from protocol.errors import ErrorCode
from protocol.fetch import FetchItem
from protocol.primitives import ROWS_A_STEP
from tests.broker.raw_client import batch_of
from tests.broker.replication_driver import Replicas, log_of


def test_an_idle_follower_learns_the_high_watermark_within_moments() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"x")
        await asyncio.sleep(WATERMARK_WAIT_S + 0.02)
        assert log_of(world, 2).high_watermark == 1

    Replicas(2).run(main)


def test_a_new_partition_does_not_wait_until_its_followers_have_waited_for_another() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, topic="quiet")
        await world.append(1, b"x", topic="quiet")
        await asyncio.sleep(2.2)
        since = world.loop.now
        world.create(1, 2, 3)
        await world.append(1, b"x")
        assert world.loop.now - since < 5 * GATHER_WAIT_S
        await asyncio.sleep(2 * GATHER_S)
        standing = next(iter(world.nodes[1].fetch_followers._sessions.values()))
        asked_at = set()
        for _ in range(200):
            asked_at.add(standing.fetch_time.at)
            await asyncio.sleep(0.01)
        assert len(asked_at) < 8, "it goes on hurrying"

    Replicas().run(main)


def test_what_comes_while_many_are_read_for_a_follower_ends_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_fetch, "ROWS_AT_ONCE", 0)

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"x")
        await asyncio.sleep(2 * GATHER_S)
        leader = world.nodes[1]
        reading = leader.fetch_followers._reading
        appended_at: list[float] = []

        def slowly(*arguments: Any) -> Any:
            fetched = yield from reading(*arguments)
            if not appended_at and not fetched.available:
                appended_at.append(world.loop.now)
                partition = leader.partition()
                partition.log.append_records(batch_of(b"y"), leader_epoch=0, now_ms=world.now_ms())
                leader.replicas.touch(partition)
                leader.replicas.wake(leader.replicas.flush())
            yield
            return fetched

        monkeypatch.setattr(leader.fetch_followers, "_reading", slowly)
        await world.until(lambda: leader.partition().log.high_watermark == 2)
        assert world.loop.now - appended_at[0] < 0.1

    Replicas(2).run(main)


def test_many_that_are_committed_at_once_are_not_all_looked_at_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, reads = 100, 0
    read_for = FollowerReader._read_one

    def counted(*args: Any, **named: Any) -> PartitionRead:
        nonlocal reads
        reads += 1
        return read_for(*args, **named)

    async def main(world: Replicas) -> None:
        nonlocal reads
        world.create(1, 2, 3, partitions=count)
        led = [world.nodes[1].partition(index) for index in range(count)]
        await world.until(lambda: all(len(partition.replica_waiters) == 2 for partition in led))
        await asyncio.sleep(1)

        def append_to_all() -> None:
            replicas = world.nodes[1].replicas
            for partition in led:
                partition.log.append_records(batch_of(b"x"), leader_epoch=0, now_ms=world.now_ms())
                replicas.touch(partition)
            replicas.wake(replicas.flush())

        reads = 0
        world.nodes[1].here(append_to_all)
        await world.until(lambda: all(partition.log.high_watermark == 1 for partition in led))
        assert reads < 10 * count

    monkeypatch.setattr(FollowerReader, "_read_one", counted)
    Replicas().run(main)


@pytest.mark.parametrize("is_over", [False, True])
def test_many_that_changed_while_a_follower_waits_are_looked_at_in_turns(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    count = 3 * ROWS_A_STEP
    at_once: list[int] = []
    read_some = FollowerReader.read_some

    def counted(reader: FollowerReader, fetched: Any, asked: Any, request: Any) -> None:
        at_once.append(len(asked))
        read_some(reader, fetched, asked, request)

    async def main(world: Replicas) -> None:
        world.create(1, 2, partitions=count)
        leader = world.nodes[1]
        led = [leader.partition(index) for index in range(count)]
        await world.until(lambda: all(len(partition.replica_waiters) == 1 for partition in led))
        await asyncio.sleep(2 * GATHER_S)
        session = leader.fetch_followers._sessions[2, False]
        await world.until(lambda: session.wait is not None and not session.wait.done)
        wait, held = session.wait, session.wait._turn.wanted
        at_once.clear()
        begun = world.loop.now

        def change() -> None:
            session.changed.update(dict.fromkeys(held))
            if is_over:
                wait.expired()
                return
            led[0].log.append_records(batch_of(b"x"), leader_epoch=0, now_ms=world.now_ms())
            leader.replicas.touch(led[0])
            leader.replicas.wake(leader.replicas.flush())

        leader.here(change)
        await world.until(lambda: wait.slot.answer is not None)
        assert at_once[:3] == [ROWS_A_STEP] * 3
        assert world.loop.now - begun < 0.1
        if not is_over:
            await world.until(lambda: led[0].log.high_watermark == 1)

    monkeypatch.setattr(follower_fetch, "ROWS_AT_ONCE", ROWS_A_STEP)
    monkeypatch.setattr(FollowerReader, "read_some", counted)
    Replicas(2).run(main)


def test_a_follower_that_finds_nothing_in_much_that_changed_waits_on() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        leader = world.nodes[1]
        await world.until(lambda: len(leader.partition().replica_waiters) == 1)
        await asyncio.sleep(2 * GATHER_S)
        session = leader.fetch_followers._sessions[2, False]
        await world.until(lambda: session.wait is not None and not session.wait.done)
        wait = session.wait
        leader.here(lambda: (wait.finish(), leader.fetch_followers.look_again(wait, is_over=False)))
        await world.until(lambda: session.wait is not wait)
        again = session.wait
        assert (again.slot, again.until, again.done) == (wait.slot, wait.until, False)
        await world.append(1, b"x")
        await world.until(lambda: again.slot.answer is not None)
        await world.until(lambda: leader.partition().log.high_watermark == 1)

    Replicas(2).run(main)


def test_a_quiet_partition_costs_no_look_and_its_follower_stays_in_sync() -> None:
    """Beside a busy one, which keeps its followers asking."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="busy")
        await world.append(1, b"a")
        leader = world.nodes[1]
        (follower,) = leader.partition().followers()
        lag_s = leader.replicas.lag_s
        async with asyncio.timeout(60):
            while world.loop.now - follower.fetched_at < lag_s + 0.5:
                await world.append(1, b"x", topic="busy")
                await asyncio.sleep(0.1)
        (standing,) = leader.fetch_followers._sessions.values()
        assert {wanted.partition.topic for wanted in standing.changed} <= {"busy"}
        world.fabric.cut("node1", "node2")
        await world.append(1, b"b", acks=1)
        leader.isr._look_at(leader.partition())
        assert leader.partition().proposal is None
        await world.until(lambda: world.isr() == (1,))

    Replicas(2, replica_lag_time_max_ms="3000").run(main)


def test_a_follower_that_drops_a_partition_from_its_session_leaves_the_isr() -> None:
    """However often it asks for the others."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="busy")
        await world.append(1, b"a")
        await world.append(1, b"a", topic="busy")
        fetchers = world.nodes[2].fetchers
        (fetcher,) = fetchers._fetchers.values()
        fetcher.remove(fetchers._positions[world.nodes[2].partition()])
        async with asyncio.timeout(10):
            while world.isr() == (1, 2):
                await world.append(1, b"x", acks=1)
                await world.append(1, b"x", topic="busy")
                await asyncio.sleep(0.1)
        assert world.isr("busy") == (1, 2)

    Replicas(2, replica_lag_time_max_ms="3000").run(main)


def test_a_partition_forgotten_before_it_was_here_is_not_read_beside_its_successor() -> None:
    """A leader may hear of a topic after its follower has asked for it, been refused and asked again."""
    standing = FollowerSession(2)
    gone, kept = (PartitionRequest(FetchItem("t", index, 0, 0, -1, 1000)) for index in range(2))
    standing.changed.update({gone: None, kept: None})
    standing.forget_all_but({kept: None}.keys())
    assert list(standing.changed) == [kept]


def test_an_earlier_incarnation_of_a_follower_counts_for_nothing() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        partition = world.nodes[1].partition()
        await world.append(1, b"a")
        epoch = world.controller.image.brokers[2].epoch
        for claimed, code in ((epoch - 1, ErrorCode.not_leader_or_follower), (epoch, ErrorCode.none)):
            answer = await world.fetch(
                1,
                1,
                version=17,
                topic_id=world.id_of("t"),
                replica_state={"replica_id": 2, "replica_epoch": claimed},
                current_leader_epoch=partition.leader_epoch,
            )
            assert answer.error_code is code

    Replicas(2).run(main)


def test_followers_are_told_from_strangers() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for leader_epoch, code in (
            (0, ErrorCode.unknown_leader_epoch),
            (-1, ErrorCode.not_leader_or_follower),
            (3, ErrorCode.unknown_leader_epoch),
        ):
            answer = await world.fetch(1, 0, version=12, replica_id=3, current_leader_epoch=leader_epoch)
            assert answer.error_code is code
        answer = await world.fetch(1, 0, version=11, replica_id=2)
        assert answer.error_code is ErrorCode.none
        answer = await world.fetch(1, 5, version=11, replica_id=2)
        assert answer.error_code is ErrorCode.offset_out_of_range

    Replicas(3).run(main)


def test_a_leader_refuses_a_follower_that_believes_in_another_epoch() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.change(leader=1)
        await world.append(1, b"a")
        await world.agree(1, 2)
        for believed, code in ((0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)):
            answer = await world.fetch(1, 1, replica_id=2, current_leader_epoch=believed)
            assert answer.error_code is code

    Replicas(2).run(main)
