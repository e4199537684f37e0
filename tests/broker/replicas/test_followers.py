"""Replicas over a network in memory: what one leads the others have, and what they have they may lead."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from broker.config.checks import RACK_AWARE_SELECTOR
from broker.config.values import ResourceType
from broker.control.metadata_records import BrokerRegistered, ConfigChanged
from broker.endpoint import Endpoint
from broker.handlers.follower_fetch import GATHER_S, GATHER_WAIT_S, WATERMARK_WAIT_S, FollowerSession
from broker.replicas.fetch_sessions import PartitionRequest
from broker.replicas.partition import Partition
from broker.replicas.read import FollowerReader, PartitionRead
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.fetch import FetchedPartition, FetchItem
from protocol.records import iter_batches
from tests.broker.raw_client import batch_of, fetch_fields, produce_fields
from tests.broker.replication_driver import LISTENER, PORT, Replicas


def log_of(world: Replicas, node_id: int) -> Any:
    return world.nodes[node_id].partition().log


# --- copying ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_what_is_acknowledged_by_all_is_on_every_replica(seed: int) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(20):
            appended = await world.append(1, b"%d" % at)
            assert appended.first_offset == at
            for node_id in world.nodes:
                assert log_of(world, node_id).log_end_offset > at
        await world.agree(1, 2, 3)
        assert world.nodes[3].values() == [b"%d" % at for at in range(20)]
        assert world.isr() == (1, 2, 3)

    Replicas(seed=seed).run(main)


def test_many_partitions_of_many_leaders_are_copied_at_once() -> None:
    async def main(world: Replicas) -> None:
        for topic, replicas in (("a", (1, 2, 3)), ("b", (2, 3, 1)), ("c", (3, 1, 2))):
            world.create(*replicas, topic=topic, partitions=20)
        for topic, leader in (("a", 1), ("b", 2), ("c", 3)):
            await asyncio.gather(*(world.append(leader, b"x", topic=topic) for _ in range(10)))
        for topic in "abc":
            for index in (0, 19):
                await world.agree(1, 2, 3, topic=topic, index=index)
        assert len(world.nodes[1].fetchers._fetchers) == 2

    Replicas().run(main)


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


def test_a_large_answer_and_a_batch_above_every_limit_arrive_whole() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for _ in range(5):
            await world.append(1, bytes(300_000))
        await world.agree(1, 2)

    Replicas(2, replica_fetch_max_bytes="1000", replica_fetch_response_max_bytes="2000").run(main)


def test_a_follower_that_catches_up_with_much_keeps_up_with_the_rest() -> None:
    """What is behind fills every answer, and what is in sync is still in it, in batches of any size."""

    async def main(world: Replicas) -> None:
        for topic in "abc":
            world.create(1, 2, topic=topic)
        world.create(1, 2)
        world.kill(2)
        for topic in "abc":
            for _ in range(200):
                await world.append(1, bytes(900), acks=1, topic=topic)
        await world.start(2)
        await world.until(lambda: world.isr() == (1, 2))
        for size in (10, 5000) * 5:
            await world.append(1, bytes(size))
        assert all(world.isr(topic) == (1,) for topic in "abc")
        for topic in "abc":
            await world.agree(1, 2, topic=topic)

    Replicas(2, replica_fetch_max_bytes="1000", replica_fetch_response_max_bytes="3000").run(main)


def test_a_follower_keeps_producers_as_the_leader_does() -> None:
    """The next leader refuses a duplicate as this one would."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        records = batch_of(b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=0)
        fields = {"transactional_id": None, "acks": -1, "timeout": 10_000}
        topic = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
        first = await world.ask(1, Api.PRODUCE, 9, **fields, topic_data=[topic])
        await world.agree(1, 2)
        assert log_of(world, 2).producer_table.entries.keys() == {7}
        world.kill(1)
        again = await world.ask(2, Api.PRODUCE, 9, **fields, topic_data=[topic])
        for response in (first, again):
            answer = response.responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        assert log_of(world, 2).log_end_offset == 2

    Replicas(2).run(main)


@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_duplicate_is_acknowledged_when_its_original_is_committed(again: int) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        batch = batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=0)
        fields = produce_fields("t", batch, acks=-1, timeout=60_000)
        waiting = [asyncio.ensure_future(world.ask(1, Api.PRODUCE, 9, **fields)) for _ in range(1 + again)]
        await world.until(lambda: world.nodes[1].partition().commit_waits == 1 + again)
        await asyncio.sleep(2)
        assert not any(answer.done() for answer in waiting)
        world.fabric.heal()
        for response in await asyncio.gather(*waiting):
            answer = response.responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 1)
        assert log_of(world, 1).log_end_offset == log_of(world, 2).log_end_offset == 2

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


# --- the ISR ----------------------------------------------------------------------------------------------


def told(world: Replicas, node_id: int) -> dict[str, float]:
    """What a scrape of this node finds, of all that has no labels but the topic's."""
    return {
        sample.name.removeprefix("kafka_"): sample.value
        for family in world.nodes[node_id].components.metrics()
        for sample in family.samples
        if sample.labels in ({}, {"topic": "t"})
    }


def test_replication_is_measured_under_the_names_that_kafka_has() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, min_insync_replicas="2")
        await world.append(1, bytes(1000))
        await world.agree(1, 2)
        found, name = told(world, 1), "server_replicamanager"
        assert found[f"{name}_partitioncount"] == found[f"{name}_leadercount"] == 1
        assert found[f"{name}_atminisrpartitioncount"] == 1
        assert found[f"{name}_underreplicatedpartitions"] == found[f"{name}_underminisrpartitioncount"] == 0
        read = told(world, 2)["server_brokertopicmetrics_replicationbytesin_total"]
        assert found["server_brokertopicmetrics_replicationbytesout_total"] == read > 1000
        world.change(replicas=(1, 2, 3), adding=(3,))
        assert told(world, 1)[f"{name}_underreplicatedpartitions"] == 0, "it still has what it had before"
        await world.until(lambda: 3 in world.isr())
        world.kill(2)
        world.kill(3)
        found = told(world, 1)
        assert found[f"{name}_underreplicatedpartitions"] == found[f"{name}_underminisrpartitioncount"] == 1
        assert found[f"{name}_atminisrpartitioncount"] == 0
        assert found[f"{name}_isrexpands_total"] == 1
        assert found[f"{name}_failedisrupdates_total"] == found[f"{name}_isrshrinks_total"] == 0

    Replicas().run(main)


def test_elections_and_partitions_without_a_leader_are_counted() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        found, name = told(world, 2), "controller_kafkacontroller"
        assert found[f"{name}_offlinepartitionscount"] == found[f"{name}_activecontrollercount"] == 0
        world.kill(1)
        world.kill(2, is_noticed=False)
        await world.start(2)
        world.kill(2)
        assert told(world, 3)[f"{name}_offlinepartitionscount"] == 1
        world.change(replicas=(3, 2), leader=3, isr=(3,), unclean=True)
        found = told(world, 3)
        assert found[f"{name}_offlinepartitionscount"] == 0
        assert found["controller_controllerstats_leaderelections_total"] == 2
        assert found["controller_controllerstats_uncleanleaderelections_total"] == 1

    Replicas().run(main)


def test_a_slow_follower_leaves_the_isr_and_comes_back() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, min_insync_replicas="2")
        await world.append(1, b"a")
        world.fabric.cut("node1", "node3")
        waiting = asyncio.ensure_future(world.append(1, b"b"))
        await asyncio.sleep(3)
        assert not waiting.done()
        await waiting
        assert world.isr() == (1, 2)
        await world.append(1, b"c")
        world.fabric.heal()
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        await world.agree(1, 2, 3)
        assert world.nodes[1].isr.expands == world.nodes[1].isr.shrinks == 1

    Replicas().run(main)


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


def test_below_min_insync_replicas_nothing_is_committed_and_acks_all_is_told() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, min_insync_replicas="2")
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        with pytest.raises(KafkaError) as failed:
            await world.append(1, b"b")
        assert failed.value.code is ErrorCode.not_enough_replicas_after_append
        with pytest.raises(KafkaError) as refused:
            await world.append(1, b"c")
        assert refused.value.code is ErrorCode.not_enough_replicas
        await world.append(1, b"d", acks=1)
        assert log_of(world, 1).high_watermark == 1
        assert (await world.fetch(1, 1)).records == b""
        world.fabric.heal()
        await world.agree(1, 2)
        assert world.nodes[2].values() == [b"a", b"b", b"d"]

    Replicas(2).run(main)


def test_while_the_controller_is_away_the_whole_isr_goes_on() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, min_insync_replicas="2")
        world.controller.is_away = True
        await world.append(1, b"a")
        world.fabric.cut("node1", "node3")
        waiting = asyncio.ensure_future(world.append(1, b"b", acks=-1))
        await asyncio.sleep(25)
        assert not waiting.done(), "a shrink that is not committed counts for nothing"
        world.controller.is_away = False
        await waiting
        assert world.isr() == (1, 2)

    Replicas().run(main)


def test_a_lost_answer_is_no_lost_change() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.fabric.cut("node1", "node2")
        world.controller.loses_answers = True
        await world.until(lambda: world.isr() == (1,))
        await world.append(1, b"a")
        world.fabric.heal()
        await world.until(lambda: world.isr() == (1, 2))
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_a_change_the_controller_refuses_for_now_is_proposed_again() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        refused: list[ErrorCode] = [ErrorCode.ineligible_replica, ErrorCode.unknown_server_error]
        world.controller.answers = lambda _: refused.pop() if refused else ErrorCode.none
        world.change(isr=(1,))
        await world.until(lambda: world.isr() == (1, 2))
        assert refused == []

    Replicas(2).run(main)


@pytest.mark.parametrize("is_known_first", [True, False])
def test_whoever_waits_for_one_that_died_while_it_joined_goes_on_without_it(is_known_first: bool) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        world.controller.is_away = True
        world.change(isr=(1, 2))
        led = world.nodes[1].partition()
        await world.until(lambda: led.maximal_isr == {1, 2, 3})
        world.kill(3, is_noticed=False)
        acknowledged = asyncio.ensure_future(world.append(1, b"x"))
        await world.until(lambda: world.nodes[2].partition().log.log_end_offset == 1)
        if not is_known_first:
            world.hold(1)
        world.fence(3)
        world.controller.is_away = False
        await world.until(lambda: led.maximal_isr == {1, 2})
        world.let_go(1)
        await world.until(acknowledged.done)

    Replicas(replica_lag_time_max_ms="600000").run(main)


def test_a_lower_min_isr_commits_what_waited_for_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, min_insync_replicas="2")
        world.kill(2)
        await world.append(1, b"x", acks=1)
        led = world.nodes[1].partition()
        assert led.log.high_watermark == 0
        world.controller.publish(
            ConfigChanged(
                resource_type=ResourceType.TOPIC,
                resource_name="t",
                name="min.insync.replicas",
                value="1",
            )
        )
        assert led.log.high_watermark == 1

    Replicas(2).run(main)


# --- leaders come and go ----------------------------------------------------------------------------------


def test_the_next_leader_has_everything_acknowledged_and_the_old_one_follows_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(5):
            await world.append(1, b"%d" % at)
        world.kill(1)
        assert world.controller.image.topics["t"].partitions[0].leader == 2
        for at in range(5, 10):
            await world.append(2, b"%d" % at)
        await world.start(1)
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        await world.agree(1, 2, 3)
        assert world.nodes[1].values() == [b"%d" % at for at in range(10)]

    Replicas().run(main)


def test_what_was_never_committed_gives_way_to_the_next_leader() -> None:
    """KIP-101, scenario 2: the returning leader cuts its own tail by epoch, not by high watermark."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        world.fabric.cut("node1", "node2")
        world.fabric.cut("node1", "node3")
        await world.append(1, b"lost", acks=1)
        await world.append(1, b"lost too", acks=1)
        world.kill(1)
        world.fabric.heal()
        await world.append(2, b"b")
        await world.start(1)
        await world.append(2, b"c")
        await world.agree(1, 2, 3)
        assert world.nodes[1].values() == [b"a", b"b", b"c"]

    Replicas().run(main)


def test_a_follower_keeps_its_tail_past_the_high_watermark_through_a_restart() -> None:
    """KIP-101, scenario 1: a restart before the high watermark came must not cut what may be committed."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        await world.append(1, b"b")
        log_of(world, 2).high_watermark = 1
        world.nodes[2].logs.checkpoint_high_watermarks()
        world.kill(2, is_noticed=False)
        world.kill(1, is_noticed=False)
        await world.start(2)
        assert world.nodes[2].values() == [b"a", b"b"]

    Replicas(2).run(main)


def test_short_reigns_leave_no_divergence_behind() -> None:
    """KIP-279: epochs that one replica never saw are found by asking again, from cut to cut."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"common")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        for reign in range(3):
            world.change(leader=1, isr=(1,))
            for _ in range(2):
                await world.append(1, b"by 1 in reign %d" % reign, acks=1)
            world.change(leader=2, isr=(2,))
            for _ in range(3):
                await world.append(2, b"by 2 in reign %d" % reign, acks=1)
        kept = world.nodes[2].values()
        world.fabric.heal()
        await world.agree(1, 2)
        assert world.nodes[1].values() == kept
        assert len(set(world.nodes[1].values())) == 4

    Replicas(2).run(main)


def test_a_reign_without_a_record_is_forgotten() -> None:
    """An epoch that one replica led with nothing in it contradicts the next leader's."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        world.hold(2)
        world.change(leader=1)
        world.let_go(2)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        world.fabric.heal()
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_a_deposed_leader_that_does_not_know_it_commits_nothing() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, min_insync_replicas="2")
        await world.append(1, b"a")
        world.hold(1)
        world.change(leader=2, isr=(2, 3))
        stale = asyncio.ensure_future(world.append(1, b"stale"))
        await world.append(2, b"b")
        await asyncio.sleep(15)
        world.let_go(1)
        with pytest.raises(KafkaError) as failed:
            await stale
        assert failed.value.code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas_after_append,
        )
        await world.until(lambda: set(world.isr()) == {1, 2, 3})
        await world.agree(1, 2, 3)
        assert world.nodes[1].values() == [b"a", b"b"]

    Replicas().run(main)


def test_a_follower_that_knows_of_a_new_epoch_first_waits_for_its_leader() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.hold(1)
        world.change(leader=1)
        await asyncio.sleep(2)
        world.let_go(1)
        await world.append(1, b"a")
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_an_empty_replica_begins_where_the_leaders_log_does() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for at in range(6):
            await world.append(1, b"%d" % at)
        await world.append(1, b"6", b"7", b"8")
        log_of(world, 1).advance_log_start(7)
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: 3 in world.isr())
        assert log_of(world, 3).log_start_offset == 7
        await world.append(1, b"9")
        assert world.nodes[3].values()[-3:] == [b"7", b"8", b"9"]

    Replicas(3).run(main)


def test_an_empty_replica_that_starts_inside_a_batch_of_a_leader_that_starts_before_it_is_filled() -> None:
    """It heard of a delete that the leader of now did not hear of."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.append(1, b"b", b"c", b"d")
        await world.agree(1, 2)
        world.kill(2)
        log_of(world, 1).advance_log_start(1)
        await world.start(2)
        log_of(world, 2).truncate_fully(3)
        await world.until(lambda: 2 in world.isr())
        await world.append(1, b"e")
        assert world.nodes[2].values() == [b"b", b"c", b"d", b"e"]
        assert log_of(world, 2).log_start_offset == 3

    Replicas(2).run(main)


def test_a_replica_whose_end_was_deleted_by_the_leader_begins_anew() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        await world.agree(1, 2, 3)
        world.kill(3)
        for _ in range(10):
            await world.append(1, b"x")
        log_of(world, 1).advance_log_start(8)
        await world.start(3)
        await world.until(lambda: 3 in world.isr())
        assert log_of(world, 3).log_start_offset == 8

    Replicas().run(main)


def test_a_replica_that_parted_from_what_the_leader_has_deleted_since_begins_anew() -> None:
    """The leader's epochs no longer tell that the logs differ: it has nothing left from before its start,
    which lies inside a batch and where the other one ends."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"lost", acks=1)
        await world.append(1, b"lost too", acks=1)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b", b"c", b"d", b"e")
        log_of(world, 2).advance_log_start(3)
        world.fabric.heal()
        await world.agree(1, 2)
        await world.until(lambda: 1 in world.isr())
        assert log_of(world, 1).log_start_offset == 3
        assert world.nodes[1].values() == world.nodes[2].values() == [b"b", b"c", b"d", b"e"]

    Replicas(2).run(main)


def test_a_replica_whose_batches_were_all_deleted_begins_anew_without_their_producers() -> None:
    """The leader's log begins where the other one ends, so that no epoch tells that they parted."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        lost = batch_of(b"lost", producer_id=7, producer_epoch=0, base_sequence=0)
        await append_batch(world, 1, lost)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        log_of(world, 2).advance_log_start(2)
        world.fabric.heal()
        await world.until(lambda: 1 in world.isr())
        log = log_of(world, 1)
        assert (log.log_start_offset, log.log_end_offset) == (2, 2)
        assert [segment.base_offset for segment in log.segments] == [2]
        assert not log.producer_table.entries
        world.change(leader=1)
        await append_batch(world, 1, lost)
        await world.append(1, b"c")
        await world.agree(1, 2)
        assert world.nodes[2].values() == [b"lost", b"c"], "it is no duplicate"

    Replicas(2).run(main)


def test_a_replica_that_agrees_with_its_leader_keeps_its_producers_when_all_is_deleted() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        await append_batch(world, 1, batch)
        await world.agree(1, 2)
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
        await world.ask(1, Api.DELETE_RECORDS, 2, topics=topics, timeout=30_000)
        for log in (log_of(world, 1), log_of(world, 2)):
            assert (log.log_start_offset, log.log_end_offset) == (1, 1)
            assert log.producer_table.entries.keys() == {7}
        world.kill(2)
        await world.start(2)
        await world.until(lambda: 2 in world.isr())
        assert log_of(world, 2).producer_table.entries.keys() == {7}

    Replicas(2).run(main)


async def append_batch(world: Replicas, node_id: int, batch: bytearray) -> None:
    node = world.nodes[node_id]
    await node.run(node.replicas.append("t", 0, batch, timeout_ms=30_000, required_acks=1, origin="client"))


def test_an_unclean_leader_takes_what_was_committed_with_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        for _ in range(3):
            await world.append(1, b"gone")
        assert world.isr() == (1,)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        world.fabric.heal()
        await world.agree(1, 2)
        assert world.nodes[1].values() == [b"a", b"b"]

    Replicas(2).run(main)


def test_a_clean_restart_of_the_only_replica_goes_on() -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        await world.append(1, b"a")
        world.kill(1)
        await world.start(1)
        await world.append(1, b"b")
        assert world.nodes[1].values() == [b"a", b"b"]

    Replicas(1).run(main)


async def while_it_loads(world: Replicas, node_id: int, act: Callable[[], None]) -> None:
    """Starts a node, and acts when it has opened its first partitions and not yet the others."""
    starting = asyncio.ensure_future(world.start(node_id))
    await asyncio.sleep(0)
    replicas = world.nodes[node_id].replicas
    while not any(replicas.partitions()):
        assert not starting.done()
        await asyncio.sleep(0)
    assert not starting.done()
    act()
    await starting


def test_a_topic_made_while_a_broker_loads_is_replicated_too() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, partitions=20)
        world.kill(2)
        await while_it_loads(world, 2, lambda: world.create(1, 2, topic="late"))
        await world.append(1, b"x", topic="late")
        await world.agree(1, 2, topic="late")

    Replicas(2).run(main)


def test_a_leader_elected_while_a_broker_loads_is_followed() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 3, 2, partitions=20)
        world.kill(2)
        await while_it_loads(world, 2, lambda: world.change(leader=3, partition=19))
        await world.until(lambda: set(world.isr(index=19)) == {1, 2, 3})

    Replicas().run(main)


def test_a_change_of_one_partition_leaves_the_others_of_its_topic_alone() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, partitions=20)
        heard: list[Partition] = []
        for node in world.nodes.values():
            node.replicas.on_role.append(heard.append)
        world.change(leader=2, partition=3)
        assert heard == [node.partition(3) for node in world.nodes.values()]

    Replicas(2).run(main)


def test_what_was_asked_in_an_earlier_epoch_is_not_appended_in_the_next() -> None:
    """The same leader again, and the log ends where it did: only the epoch says that another may have led."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="other")
        await world.append(1, b"a")
        await world.agree(1, 2)
        node = world.nodes[2]
        (fetcher,) = node.fetchers._fetchers.values()
        before = node.fetchers._positions[node.partition()]
        asked = before.item(1000)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"stale", acks=1)
        part = log_of(world, 1).read(1, 1000, bound=2, min_one=True)
        world.change(leader=1)
        position = node.fetchers._positions[node.partition()]
        answer = FetchedPartition(*position.key, 0, 2, 0, None, memoryview(part.read()))
        assert (position.key, position.item(1000).offset) == (before.key, asked.offset)
        await node.run(fetcher._take_all({position.key: asked}, [answer]))
        assert (log_of(world, 2).log_end_offset, log_of(world, 2).high_watermark) == (1, 1)
        await node.run(fetcher._take_all({position.key: position.item(1000)}, [answer]))
        assert log_of(world, 2).log_end_offset == 2

    Replicas(2).run(main)


# --- assignment -------------------------------------------------------------------------------------------


def test_a_replica_moves_to_another_broker_and_its_old_log_goes() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: 3 in world.isr())
        world.change(replicas=(1, 3), isr=(1, 3))
        await world.append(1, b"b")
        await world.agree(1, 3)
        assert ("t", 0) not in world.nodes[2].logs.logs
        assert world.nodes[2].fetchers._positions == {}
        assert any("-delete" in name for name in world.nodes[2].logs.files.listdir("/data"))
        assert world.nodes[2].replicas.find("t", 0) is ErrorCode.not_leader_or_follower

    Replicas().run(main)


def test_a_topic_deleted_and_made_again_shares_nothing() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        world.delete()
        assert world.nodes[2].fetchers._positions == {}
        world.create(2, 1)
        await world.append(2, b"b")
        await world.agree(1, 2)
        assert world.nodes[1].values() == [b"b"]

    Replicas(2).run(main)


# --- trouble ----------------------------------------------------------------------------------------------


def test_a_leader_whose_disk_fails_hands_over_and_nothing_acknowledged_is_lost() -> None:
    """Also when it hears only then that it was given the lead again."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"x")
        world.nodes[1].disk.fail("write", 5, path_part="t-0")
        with pytest.raises(KafkaError):
            await world.append(1, b"y")
        await world.until(lambda: world.isr() == (2, 3) and world.nodes[2].partition().is_leader)
        await world.append(2, b"z")
        await world.agree(2, 3)
        assert world.nodes[3].values() == [b"x", b"z"]
        assert not world.nodes[1].partition().is_leader
        world.change(leader=1, isr=(1, 3))
        await world.until(lambda: world.isr() == (3,) and world.nodes[3].partition().is_leader)
        await world.until(lambda: world.isr() == (3, 2))
        await world.agree(2, 3)

    Replicas(log_dirs="/data,/other").run(main)


def test_a_disk_error_of_a_follower_takes_its_directory_and_nobody_elses() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        world.nodes[3].disk.fail("write", 5, path_part="t-0")
        begun = world.loop.now
        await world.append(1, b"b")
        assert world.isr() == (1, 2)
        assert world.loop.now - begun < 1, "it waited until the follower was too far behind"
        assert world.nodes[3].replicas.replica("t", 0) is ErrorCode.kafka_storage_error

    Replicas().run(main)


@pytest.mark.parametrize(("operation", "skip"), [("open", 0), ("open", 1), ("create", 0), ("rename", 0)])
def test_a_follower_without_a_descriptor_goes_on_when_there_is_one_again(operation: str, skip: int) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, segment_bytes=str(1 << 20))
        await world.append(1, b"a")
        await world.agree(1, 2)
        log_of(world, 2).release_files()
        disk = world.nodes[2].disk
        disk.fail(operation, errno.EMFILE, path_part="t-0", skip=skip, times=2)
        for _ in range(4):
            await world.append(1, b"b" * 900_000)
        assert not disk.armed
        await world.agree(1, 2)
        assert world.isr() == (1, 2)

    Replicas(2).run(main)


def test_a_cut_that_finds_no_descriptor_is_made_when_there_is_one_again() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"common")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"lost", acks=1)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"kept", acks=1)
        log_of(world, 1).release_files()
        disk = world.nodes[1].disk
        disk.fail("open", errno.EMFILE, path_part="t-0", times=2)
        world.fabric.heal()
        await world.agree(1, 2)
        assert not disk.armed
        assert world.nodes[1].values() == [b"common", b"kept"]

    Replicas(2).run(main)


def test_a_log_past_the_end_of_its_leaders_is_cut_when_there_is_a_descriptor_again() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for _ in range(3):
            await world.append(1, b"a")
        await world.agree(1, 2)
        fetchers, disk = world.nodes[2].fetchers, world.nodes[2].disk
        (position,), (fetcher,) = fetchers._positions.values(), fetchers._fetchers.values()

        async def two(*_: Any) -> dict[Any, int]:
            return {position.key: 2}

        fetcher._list_offsets = two  # type: ignore[method-assign,assignment]
        log_of(world, 2).release_files()
        disk.fail("open", errno.EMFILE, path_part="t-0", times=2)
        position.needs_reset = True
        await world.until(lambda: not position.needs_reset)
        assert not disk.armed
        await world.append(1, b"b")
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_a_damaged_batch_is_not_appended_and_holds_up_no_other_partition() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, 2, topic="u")
        await world.append(1, b"a")
        await world.agree(1, 2)
        await world.append(1, b"u", topic="u")
        world.fabric.cut("node1", "node2")
        await world.append(1, b"b", acks=1)
        held = log_of(world, 1)
        part = held.read(1, 1000, bound=2, min_one=True)
        whole = part.read()
        part.file.pwrite(b"\xff", part.position + part.size - 1)
        world.fabric.reset_some(1.0)
        world.fabric.heal()
        await world.append(1, b"v", topic="u")
        await asyncio.sleep(3)
        assert log_of(world, 2).log_end_offset == 1
        part.file.pwrite(whole[-1:], part.position + part.size - 1)
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_lost_connections_and_sessions_cost_nothing_but_time() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        for at in range(30):
            await world.append(1, b"%d" % at)
            if at % 7 == 3:
                world.fabric.reset_some(0.7)
        await world.agree(1, 2, 3)
        assert world.nodes[2].values() == [b"%d" % at for at in range(30)]

    Replicas(max_incremental_fetch_session_cache_slots="1").run(main)


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


# --- what clients see -------------------------------------------------------------------------------------


def test_nobody_reads_past_the_high_watermark_wherever_they_ask() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        await world.agree(1, 2, 3)
        world.fabric.cut("node1", "node3")
        await world.append(1, b"b", acks=1)
        await world.until(lambda: log_of(world, 2).log_end_offset == 2)
        for node_id in (1, 2):
            answer = await world.fetch(node_id, 0)
            assert [header.base_offset for _, header in iter_batches(answer.records)] == [0]
            assert (await world.fetch(node_id, 1)).records == b""
        assert (await world.fetch(2, 0, version=10)).error_code is ErrorCode.not_leader_or_follower
        assert (await world.fetch(2, 9)).error_code is ErrorCode.offset_out_of_range

    Replicas().run(main)


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


def test_a_fetch_that_fails_has_no_list_of_aborted_transactions_where_there_is_a_partition() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, topic="elsewhere")
        assert (await world.fetch(2, 0, version=10)).aborted_transactions is None
        assert (await world.fetch(2, 0, topic="elsewhere")).aborted_transactions is None
        assert (await world.fetch(2, 0, current_leader_epoch=9)).aborted_transactions is None
        assert (await world.fetch(2, 0, topic="missing")).aborted_transactions == ()

    Replicas(2).run(main)


def test_a_consumer_that_waits_is_answered_when_the_followers_have_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        waiting = asyncio.ensure_future(world.fetch(1, 0, max_wait=30_000))
        await asyncio.sleep(1)
        before = world.loop.now
        await world.append(1, b"a")
        assert (await waiting).high_watermark == 1
        assert world.loop.now - before < 1

    Replicas().run(main)


def test_a_consumer_is_sent_to_the_follower_of_its_rack() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        await world.agree(1, 2, 3)
        answer = await world.fetch(1, 0, rack_id="west")
        assert (answer.preferred_read_replica, answer.records) == (3, b"")
        for rack in ("", "east", "nowhere"):
            answer = await world.fetch(1, 0, rack_id=rack)
            assert answer.preferred_read_replica == -1
            assert answer.records
        answer = await world.fetch(3, 0, rack_id="west")
        assert answer.preferred_read_replica == -1
        assert answer.records
        answer = await world.fetch(1, 7, rack_id="west")
        assert answer.error_code is ErrorCode.offset_out_of_range
        world.kill(3)
        assert (await world.fetch(1, 0, rack_id="west")).records

    racks = {1: "east", 2: "east", 3: "west"}
    Replicas(racks=racks, replica_selector_class=RACK_AWARE_SELECTOR).run(main)


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


def advertise(world: Replicas, node_id: int, *endpoints: Endpoint) -> None:
    broker = world.controller.image.brokers[node_id]
    world.controller.publish(
        BrokerRegistered(
            broker_id=broker.id,
            incarnation=broker.incarnation,
            directories=broker.directories,
            endpoints=endpoints,
            rack=broker.rack,
            epoch=broker.epoch,
        )
    )


def hint_of(response: Any) -> tuple[Any, ...]:
    """Leader and epoch of the first partition, and the addresses told, of a Produce or a Fetch."""
    topic = response.responses[0]
    (answer,) = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    assert answer.error_code is ErrorCode.not_leader_or_follower
    leader = answer.current_leader
    return (
        (leader.leader_id, leader.leader_epoch),
        *((node.node_id, node.host, node.port) for node in response.node_endpoints),
    )


def test_who_asks_the_wrong_broker_is_told_the_right_one_on_its_own_listener() -> None:
    async def main(world: Replicas) -> None:
        world.create(1)
        node, outside = world.nodes[2], Endpoint(listener="OUTSIDE", host="public", port=443)
        await node.run(node.server.listen("OUTSIDE", "0.0.0.0", 9093))
        inside = Endpoint(listener=LISTENER, host="node1", port=PORT)
        requests: list[tuple[Api, int, dict[str, Any]]] = [
            (Api.PRODUCE, 10, produce_fields("t", batch_of(b"x"), acks=-1)),
            (Api.FETCH, 16, fetch_fields("t", 0, topic_id=Replicas.id_of("t"))),
        ]
        for endpoints, port, told in (
            ((inside,), PORT, [(1, "node1", PORT)]),
            ((outside, inside), PORT, [(1, "node1", PORT)]),
            ((outside, inside), 9093, [(1, "public", 443)]),
        ):
            advertise(world, 1, *endpoints)
            for api, version, fields in requests:
                response = await world.ask(2, api, version, port=port, **fields)
                assert hint_of(response) == ((1, 0), *told)
        advertise(world, 1, inside)
        for api, version, fields in requests:
            response = await world.ask(2, api, version, port=9093, **fields)
            assert hint_of(response) == ((1, 0),), "a leader without this listener"
        world.change(leader=-1)
        for api, version, fields in requests:
            response = await world.ask(2, api, version, **fields)
            assert hint_of(response) == ((-1, 1),), "nobody leads, in an epoch of its own"

    Replicas(2).run(main)


def test_who_waits_when_leadership_moves_is_told_where_it_went() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"x")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        produce = produce_fields("t", batch_of(b"y"), acks=-1)
        fetch = fetch_fields("t", 1, topic_id=Replicas.id_of("t"), min_bytes=1, max_wait=10_000)
        waiting = [
            asyncio.ensure_future(world.ask(1, Api.PRODUCE, 10, **produce)),
            asyncio.ensure_future(world.ask(1, Api.FETCH, 16, **fetch)),
        ]
        await world.until(lambda: world.nodes[1].partition().commit_waits)
        await world.until(lambda: world.nodes[1].partition().data_waiters)
        world.change(leader=2, replicas=(2,), isr=(2,))
        for answer in waiting:
            assert hint_of(await answer) == ((2, 1), (2, "node2", PORT))

    Replicas(2).run(main)


# --- throttles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_throttled_replica_catches_up_at_its_rate_and_never_leaves_the_isr_by_it(role: str) -> None:
    async def main(world: Replicas) -> None:
        throttled = {f"{role}_replication_throttled_replicas": "0:1,0:3"}
        world.create(1, 2, **throttled)
        for _ in range(20):
            await world.append(1, bytes(100_000))
        before = world.loop.now
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: 3 in world.isr(), timeout_s=600)
        assert world.loop.now - before > 5, "2 MB at 100 kB/s, less a window of 1 MB and one answer"
        before = world.loop.now
        for _ in range(20):
            await world.append(1, bytes(100_000))
        assert world.loop.now - before < 5
        assert set(world.isr()) == {1, 2, 3}

    properties = {
        f"{role}_replication_throttled_rate": "100000",
        "replica_fetch_max_bytes": "200000",
        "replica_fetch_response_max_bytes": "200000",
    }
    Replicas(**properties).run(main)  # type: ignore[arg-type]
