"""DeleteRecords on replicas: what is deleted stays deleted whoever loses power, and who waits is told."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from protocol.apis import Api
from protocol.errors import ErrorCode
from storage.checkpoints import run_inline
from tests.broker.raw_client import batch_of
from tests.broker.replication_driver import Node, Replicas, log_of


class HeldWrites:
    """A node's background writes, which wait until they are let go."""

    def __init__(self, node: Node) -> None:
        self._jobs: list[tuple[Callable[[], None], Any]] = []
        self._node = node
        node.logs._background = self._hold

    def __len__(self) -> int:
        return len(self._jobs)

    def _hold(self, job: Callable[[], None], done: Any) -> None:
        self._jobs.append((job, done))

    def let_go(self) -> None:
        self._node.logs._background = run_inline
        for job, done in self._jobs:
            self._node.here(run_inline, job, done)
        self._jobs.clear()


def start_delete(
    world: Replicas, node_id: int, offset: int, *topics: str, timeout: int = 30_000
) -> asyncio.Task[list[tuple[ErrorCode, int]]]:
    """Ask for it; the result has (error, low watermark) of each topic."""

    async def ask() -> list[tuple[ErrorCode, int]]:
        partitions = [{"partition_index": 0, "offset": offset}]
        rows = [{"name": name, "partitions": partitions} for name in topics or ("t",)]
        response = await world.ask(node_id, Api.DELETE_RECORDS, 2, topics=rows, timeout=timeout)
        answers = [topic.partitions[0] for topic in response.topics]
        return [(answer.error_code, answer.low_watermark) for answer in answers]

    return asyncio.ensure_future(ask())


async def fill(world: Replicas, *node_ids: int, topic: str = "t") -> None:
    for at in range(10):
        await world.append(node_ids[0], b"%d" % at, topic=topic)
    await world.agree(*node_ids, topic=topic)


def test_a_delete_reaches_followers_that_have_agreed_long_ago() -> None:
    """Nobody produces: only the log start is news to their sessions."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await fill(world, 1, 2, 3)
        await asyncio.sleep(12)
        assert await start_delete(world, 1, 6, timeout=5_000) == [(ErrorCode.none, 6)]
        assert [log_of(world, each).log_start_offset for each in (2, 3)] == [6, 6]

    Replicas().run(main)


@pytest.mark.parametrize("power", [False, True])
def test_what_was_deleted_stays_deleted_whichever_replica_is_killed(power: bool) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        assert await start_delete(world, 1, 6) == [(ErrorCode.none, 6)]
        for node_id in (1, 2):
            world.kill(node_id, is_noticed=False)
            if power:
                world.nodes[node_id].disk.power_cut("nothing")
        world.fabric.cut("node1", "node2")
        for node_id in (1, 2):
            await world.start(node_id)
            assert log_of(world, node_id).log_start_offset == 6

    Replicas(2).run(main)


def test_a_delete_is_answered_when_the_leaders_disk_has_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = HeldWrites(world.nodes[1])
        answer = start_delete(world, 1, 6)
        await world.until(lambda: len(writes))
        await asyncio.sleep(2)
        assert not answer.done()
        assert [log_of(world, each).log_start_offset for each in (1, 2)] == [0, 0]
        writes.let_go()
        assert await answer == [(ErrorCode.none, 6)]

    Replicas(2).run(main)


def test_a_delete_is_answered_when_the_followers_disk_has_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = HeldWrites(world.nodes[2])
        answer = start_delete(world, 1, 6)
        await world.until(lambda: len(writes))
        await asyncio.sleep(2)
        assert not answer.done()
        (follower,) = world.nodes[1].partition().followers()
        assert (log_of(world, 2).log_start_offset, follower.log_start) == (0, 0)
        assert len(writes) == 1, "it asks for the same once"
        since = world.loop.now
        writes.let_go()
        assert await answer == [(ErrorCode.none, 6)]
        assert world.loop.now - since < 1, "it is told with the next request"

    Replicas(2).run(main)


def test_a_quiet_follower_tells_its_log_start_without_being_held_by_its_leader_before() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = HeldWrites(world.nodes[2])
        answer = start_delete(world, 1, 6)
        await world.until(lambda: len(writes))
        await asyncio.sleep(0.02)
        since = world.loop.now
        writes.let_go()
        await answer
        assert world.loop.now - since < 0.1

    Replicas(2).run(main)


def test_nobody_waits_for_the_followers_disk_to_go_on_producing() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = HeldWrites(world.nodes[2])
        answer = start_delete(world, 1, 6)
        await world.until(lambda: len(writes))
        since = world.loop.now
        for _ in range(20):
            await world.append(1, b"x")
        assert world.loop.now - since < 1
        writes.let_go()
        assert await answer == [(ErrorCode.none, 6)]

    Replicas(2).run(main)


def test_a_producer_that_pauses_is_held_up_once_by_a_followers_busy_disk() -> None:
    """Between two of its requests the follower has nothing to fetch but news of the high watermark."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = HeldWrites(world.nodes[2])
        answer = start_delete(world, 1, 6)
        await world.until(lambda: len(writes))
        took = 0.0
        for _ in range(40):
            since = world.loop.now
            await world.append(1, b"x")
            took += world.loop.now - since
            await asyncio.sleep(0.015)
        assert took < 0.2
        writes.let_go()
        assert await answer == [(ErrorCode.none, 6)]

    Replicas(2).run(main)


def test_without_time_for_the_followers_it_is_the_own_disk_that_is_waited_for() -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        world.create(1, 2, topic="copied")
        await fill(world, 1)
        await fill(world, 1, 2, topic="copied")
        world.fabric.cut("node1", "node2")
        writes = HeldWrites(world.nodes[1])
        answer = start_delete(world, 1, 6, "t", "copied", timeout=0)
        await world.until(lambda: len(writes))
        await asyncio.sleep(1)
        assert not answer.done()
        writes.let_go()
        assert await answer == [(ErrorCode.none, 6), (ErrorCode.request_timed_out, 0)]
        writes = HeldWrites(world.nodes[1])
        since = world.loop.now
        assert await start_delete(world, 1, 7, timeout=0) == [(ErrorCode.request_timed_out, 6)]
        assert world.loop.now - since < 10, "that is bounded as well"
        writes.let_go()
        assert log_of(world, 1).log_start_offset == 7

    Replicas(2).run(main)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_role_that_changes_while_the_log_start_is_written_ends_the_wait(is_deleted: bool) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = HeldWrites(world.nodes[1])
        answer = start_delete(world, 1, 6)
        await world.until(lambda: len(writes))
        if is_deleted:
            world.delete()
        else:
            world.change(leader=2)
        ((code, _),) = await asyncio.wait_for(answer, 1)
        assert code is ErrorCode.not_leader_or_follower
        writes.let_go()
        if not is_deleted:
            await world.append(2, b"x")
            assert log_of(world, 1).log_end_offset == 11
            assert log_of(world, 1).log_start_offset == 6, "what was begun is done: all of it was committed"

    Replicas(2).run(main)


def test_a_role_that_changes_while_another_partition_is_waited_for_is_told() -> None:
    """Also when this broker has deleted it already."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="u")
        await fill(world, 1, 2)
        await fill(world, 1, 2, topic="u")
        world.fabric.cut("node1", "node2")
        answer = start_delete(world, 1, 6, "t", "u")
        await world.until(lambda: log_of(world, 1, "u").log_start_offset == 6)
        world.change(leader=2, topic="u")
        await asyncio.sleep(1)
        assert not answer.done()
        world.fabric.heal()
        codes = [code for code, _ in await answer]
        assert codes == [ErrorCode.none, ErrorCode.not_leader_or_follower]
        for node in world.nodes.values():
            assert not node.partition(topic="u")._low_waiters

    Replicas(2).run(main)


def test_a_replica_that_is_taken_away_is_not_waited_for_any_more() -> None:
    """It is live, and nobody is left whose Fetch would have the leader look again."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        world.fabric.cut("node1", "node2")
        answer = start_delete(world, 1, 6)
        await asyncio.sleep(1)
        assert not answer.done()
        world.change(replicas=(1,), isr=(1,))
        assert await asyncio.wait_for(answer, 1) == [(ErrorCode.none, 6)]

    Replicas(2).run(main)


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_disk_that_fails_while_the_log_start_is_written_ends_the_wait(is_inline: bool) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        writes = None if is_inline else HeldWrites(world.nodes[1])
        world.nodes[1].disk.fail("fsync", errno.EIO, path_part="log-start-offset-checkpoint")
        answer = start_delete(world, 1, 6)
        if writes is not None:
            await world.until(lambda: len(writes))
            writes.let_go()
        assert await asyncio.wait_for(answer, 1) == [(ErrorCode.kafka_storage_error, 0)]
        assert log_of(world, 1).log_start_offset == 0
        await world.until(lambda: world.nodes[2].partition().is_leader)
        assert len(world.nodes[2].values()) == 10

    Replicas(2).run(main)


def test_a_follower_that_leads_before_its_disk_has_the_log_start_brings_nothing_back() -> None:
    """It came back after the delete was answered: until it has the log start it is not in sync."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await fill(world, 1, 2)
        world.kill(2)
        assert await start_delete(world, 1, 6) == [(ErrorCode.none, 6)]
        await world.start(2)
        writes = HeldWrites(world.nodes[2])
        await world.append(1, b"x")
        await world.until(lambda: log_of(world, 2).log_end_offset == 11)
        await asyncio.sleep(2)
        assert world.isr() == (1,)
        writes.let_go()
        await world.until(lambda: world.isr() == (1, 2))
        world.kill(1)
        world.nodes[2].process.die()
        world.nodes[2].disk.power_cut("nothing")
        await world.start(2)
        assert log_of(world, 2).log_start_offset == 6

    Replicas(2).run(main)


@pytest.mark.parametrize("power", [False, True])
def test_batches_that_were_never_committed_do_not_come_back_below_a_log_start(power: bool) -> None:
    """The leader has deleted past them, and its log begins where they end."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        lost = batch_of(b"lost", producer_id=7, producer_epoch=0, base_sequence=0)
        node = world.nodes[1]
        await node.run(
            node.replicas.append("t", 0, lost, timeout_ms=30_000, required_acks=1, origin="client")
        )
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        assert await start_delete(world, 2, 2, timeout=0) == [(ErrorCode.request_timed_out, -1)]
        assert log_of(world, 2).log_start_offset == 2
        world.fabric.heal()
        await world.until(lambda: 1 in world.isr())
        world.change(leader=1)
        world.kill(1, is_noticed=False)
        if power:
            world.nodes[1].disk.power_cut("nothing")
        await world.start(1)
        assert (log_of(world, 1).log_start_offset, log_of(world, 1).log_end_offset) == (2, 2)
        assert not log_of(world, 1).producer_table.entries

    Replicas(2).run(main)


def test_a_cut_while_the_log_start_is_written_takes_it_back() -> None:
    """A follower asked for the leader's log start, and is cut below it by the next leader."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await fill(world, 1, 2, 3)
        writes = HeldWrites(world.nodes[3])
        answer = start_delete(world, 1, 10)
        await world.until(lambda: len(writes))
        world.fabric.cut("node1", "node3")
        world.fabric.cut("node2", "node3")
        log_of(world, 2).truncate_to(8)
        log_of(world, 2).high_watermark = 8
        world.change(leader=2, isr=(2,), unclean=True)
        await answer
        await world.append(2, b"by 2")
        world.fabric.heal()
        await world.agree(1, 2, 3)
        writes.let_go()
        for _ in range(5):
            await world.append(2, b"x")
        await world.agree(1, 2, 3)
        assert world.nodes[3].values() == world.nodes[2].values()
        world.kill(3)
        world.nodes[3].disk.power_cut("nothing")
        await world.start(3)
        await world.until(lambda: 3 in world.isr())
        await world.agree(1, 2, 3)

    Replicas(3).run(main)


# --- what replicas tell ---


def test_log_start_follows_and_a_delete_waits_for_the_followers() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for _ in range(10):
            await world.append(1, b"x")
        partitions = [{"partition_index": 0, "offset": 6}]
        response = await world.ask(
            1, Api.DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": partitions}], timeout=30_000
        )
        answer = response.topics[0].partitions[0]
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 6)
        assert [log_of(world, each).log_start_offset for each in (1, 2, 3)] == [6, 6, 6]

    Replicas().run(main)


def test_a_delete_that_a_live_follower_does_not_follow_times_out() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"x")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
        response = await world.ask(1, Api.DELETE_RECORDS, 2, topics=topics, timeout=2_000)
        assert response.topics[0].partitions[0].error_code is ErrorCode.request_timed_out
        world.fence(2)
        response = await world.ask(1, Api.DELETE_RECORDS, 2, topics=topics, timeout=2_000)
        assert response.topics[0].partitions[0].error_code is ErrorCode.none

    Replicas(2).run(main)


def test_deleting_waits_no_longer_for_a_replica_that_is_gone() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a", b"b")
        await world.agree(1, 2)
        world.kill(2, is_noticed=False)
        answer = asyncio.ensure_future(
            world.ask(
                1,
                Api.DELETE_RECORDS,
                2,
                timeout=50_000,
                topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}],
            )
        )
        await world.until(lambda: world.nodes[1].partition().log.log_start_offset == 1)
        await asyncio.sleep(1)
        assert not answer.done()
        world.fence(2)
        deleted = (await answer).topics[0].partitions[0]
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 1)

    Replicas(2).run(main)


def test_a_follower_tells_of_another_epoch_before_it_tells_that_it_does_not_lead() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.change(leader=1)
        await world.append(1, b"a")
        await world.agree(1, 2)
        for believed, code in (
            (-1, ErrorCode.not_leader_or_follower),
            (0, ErrorCode.fenced_leader_epoch),
            (1, ErrorCode.not_leader_or_follower),
            (2, ErrorCode.unknown_leader_epoch),
        ):
            asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": believed}
            assert (await list_offset(world, 2, replica_id=-1, **asked)).error_code is code
            row = {"partition": 0, "current_leader_epoch": believed, "leader_epoch": 0}
            topics = [{"topic": "t", "partitions": [row]}]
            response = await world.ask(2, Api.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
            assert response.topics[0].partitions[0].error_code is code
            answer = await world.fetch(2, 0, version=10, current_leader_epoch=believed)
            assert answer.error_code is code

    Replicas(2).run(main)


async def list_offset(world: Replicas, node_id: int, *, replica_id: int, **asked: Any) -> Any:
    topics = [{"name": "t", "partitions": [asked]}]
    response = await world.ask(
        node_id,
        Api.LIST_OFFSETS,
        9,
        replica_id=replica_id,
        isolation_level=0,
        timeout=1000,
        topics=topics,
    )
    return response.topics[0].partitions[0]


def test_a_follower_tells_of_its_own_log_where_that_is_asked_for() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        for node_id in (1, 2):
            asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
            answer = await list_offset(world, node_id, replica_id=-2, **asked)
            assert (answer.error_code, answer.offset) == (ErrorCode.none, 1)
            topics = [{"name": "t", "partition_indexes": [0]}]
            response = await world.ask(node_id, Api.DESCRIBE_PRODUCERS, 0, topics=topics)
            assert response.topics[0].partitions[0].error_code is ErrorCode.none
        asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": 1}
        answer = await list_offset(world, 2, replica_id=-2, **asked)
        assert answer.error_code is ErrorCode.unknown_leader_epoch

    Replicas(2).run(main)


def test_a_new_leader_tells_no_offsets_before_its_watermark_reaches_its_epoch() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"b", acks=1)
        world.change(leader=1)
        asked = {"replica_id": -1, "isolation_level": 0, "timeout": 1000}
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        response = await world.ask(1, Api.LIST_OFFSETS, 9, **asked, topics=topics)
        assert response.topics[0].partitions[0].error_code is ErrorCode.offset_not_available
        world.fabric.heal()
        await world.agree(1, 2)
        response = await world.ask(1, Api.LIST_OFFSETS, 9, **asked, topics=topics)
        assert response.topics[0].partitions[0].offset == 2

    Replicas(2).run(main)
