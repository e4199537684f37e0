"""Brokers that tell each other about copies: commands, readers, the barrier, and leaders that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordinators.tier.commands import encode_commands
from broker.coordinators.tier.machine import TierCommand
from protocol.apis import Api
from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.records import build_batch
from remote.cold.events import encode_event
from remote.cold.segments import SegmentState, TieredPartition, TierEvent
from tests.broker.coordinators.tier.tier_driver import (
    TOPIC,
    USER,
    finished,
    metadata_of,
    started,
    states,
    update,
)
from tests.broker.raw_client import produce_fields
from tests.broker.replication_driver import Replicas

COPIED = {1: SegmentState.COPY_FINISHED}


def create(world: Replicas, *, leader: int = 1, user_leader: int = 1, partitions: int = 1) -> None:
    replicas = sorted(world.nodes, key=lambda node_id: node_id != leader)
    world.create(
        *replicas,
        topic=TOPIC,
        partitions=partitions,
        cleanup_policy="compact",
        min_insync_replicas=str(min(2, len(replicas))),
    )
    world.create(user_leader, topic="t")


def follow(world: Replicas, *node_ids: int) -> None:
    for node_id in node_ids:
        world.nodes[node_id].here(metadata_of(world, node_id).follow, USER)


async def submit(
    world: Replicas,
    node_id: int,
    event: TierEvent,
    *,
    leader_epoch: int = 0,
    expects: SegmentState | None = None,
) -> None:
    metadata = metadata_of(world, node_id)
    await world.nodes[node_id].run(metadata.submit(event, leader_epoch=leader_epoch, expects=expects))


async def refused(world: Replicas, node_id: int, event: TierEvent, *, leader_epoch: int = 0) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await submit(world, node_id, event, leader_epoch=leader_epoch)
    return caught.value.code


async def until_caught_up(world: Replicas, *node_ids: int) -> None:
    await world.until(lambda: all(metadata_of(world, each).is_caught_up(USER) for each in node_ids))


def test_an_event_is_committed_and_in_the_own_fold_wherever_it_is_told() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 1, 2, 3)
        await submit(world, 2, started())
        assert states(world, 2) == {1: SegmentState.COPY_STARTED}
        assert states(world, 1) == {1: SegmentState.COPY_STARTED}
        await submit(world, 1, finished())
        assert states(world, 1) == COPIED
        await world.until(lambda: states(world, 2) == states(world, 3) == COPIED)
        await world.agree(1, 2, 3, topic=TOPIC)

    Replicas(3).run(main)


@pytest.mark.parametrize("node_id", [1, 2])
def test_the_state_out_of_which_an_event_was_decided_travels_with_it(node_id: int) -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, node_id)
        await submit(world, node_id, started())
        await submit(world, node_id, finished(), expects=SegmentState.COPY_STARTED)
        going = update(SegmentState.DELETE_STARTED)
        with pytest.raises(KafkaError) as refused:
            await submit(world, node_id, going, expects=SegmentState.COPY_STARTED)
        assert refused.value.code is ErrorCode.invalid_record
        assert states(world, node_id) == COPIED
        await submit(world, node_id, going, expects=SegmentState.COPY_FINISHED)

    Replicas(2).run(main)


def test_it_is_told_without_being_followed() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        await submit(world, 2, started())
        assert not metadata_of(world, 2)._sources

    Replicas(2).run(main)


def test_refusals_reach_who_told_it_and_leave_nothing() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 1, 2)
        await submit(world, 2, started())
        before = world.nodes[1].values(topic=TOPIC)
        for node_id in (1, 2):
            assert await refused(world, node_id, finished(2)) is ErrorCode.invalid_record
            assert await refused(world, node_id, started(), leader_epoch=-1) is ErrorCode.fenced_leader_epoch
            stranger = started(partition=TieredPartition(Replicas.id_of("other"), 0))
            assert await refused(world, node_id, stranger) is ErrorCode.unknown_topic_id
        assert world.nodes[1].values(topic=TOPIC) == before
        assert await refused(world, 2, started(), leader_epoch=1) is ErrorCode.request_timed_out

    Replicas(2, **{"rlmm.config.remote.log.metadata.consume.wait.ms": "2000"}).run(main)


def test_a_newer_epoch_waits_for_the_image_of_the_leader() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        world.create(1, 2, topic="u")
        user = TieredPartition(Replicas.id_of("u"), 0)
        world.hold(1)
        world.change(leader=2, topic="u")
        telling = asyncio.ensure_future(submit(world, 2, started(partition=user), leader_epoch=1))
        await asyncio.sleep(1)
        assert not telling.done()
        world.let_go(1)
        await telling

    Replicas(2).run(main)


def test_the_machine_moves_with_the_leader_and_forgets_nothing() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 1, 2, 3)
        await submit(world, 3, started())
        world.change(leader=2, topic=TOPIC)
        await submit(world, 3, finished())
        await submit(world, 1, update(SegmentState.DELETE_STARTED))
        await world.until(lambda: all(each == {1: SegmentState.DELETE_STARTED} for each in folds(world)))
        world.change(leader=1, topic=TOPIC)
        await submit(world, 2, update(SegmentState.DELETE_FINISHED))
        await world.until(lambda: not any(folds(world)))

    Replicas(3).run(main)


def folds(world: Replicas) -> list[dict[int, SegmentState]]:
    return [states(world, node_id) for node_id in world.nodes]


def test_the_leader_dies_with_an_event_in_doubt() -> None:
    async def main(world: Replicas) -> None:
        create(world, user_leader=3)
        follow(world, 2, 3)
        await submit(world, 3, started())
        telling = asyncio.ensure_future(submit(world, 3, finished()))
        await asyncio.sleep(0.003)
        world.kill(1)
        await telling
        assert states(world, 3) == COPIED
        await world.until(lambda: states(world, 2) == COPIED)

    for seed in range(5):
        Replicas(3, seed=seed).run(main)


def test_a_lost_quorum_is_waited_for_and_given_up_in_time() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 1)
        await submit(world, 1, started())
        world.kill(2)
        world.change(isr=(1,), topic=TOPIC)
        begun = world.loop.time()
        assert await refused(world, 1, finished()) is ErrorCode.request_timed_out
        assert world.loop.time() - begun < 31
        assert states(world, 1) == {1: SegmentState.COPY_STARTED}
        await world.start(2)
        await submit(world, 1, finished())

    Replicas(2, **{"rlmm.config.remote.log.metadata.consume.wait.ms": "30000"}).run(main)


def test_the_barrier_is_passed_only_by_a_question_that_came_after_it() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 1, 2)
        await until_caught_up(world, 1, 2)
        metadata = metadata_of(world, 2)
        heard: list[TieredPartition] = []
        metadata.on_change.append(heard.append)
        world.nodes[2].here(metadata.renew, USER)
        assert not metadata.is_caught_up(USER)
        await world.nodes[2].run(metadata.wait_caught_up(USER))
        assert metadata.is_caught_up(USER)
        assert heard == [USER]
        world.nodes[1].here(metadata_of(world, 1).renew, USER)
        assert metadata_of(world, 1).is_caught_up(USER), "this broker is the one to ask"

    Replicas(2).run(main)


def test_a_broker_that_cannot_reach_the_leader_is_not_caught_up() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        world.fabric.cut("node1", "node2")
        follow(world, 2)
        await asyncio.sleep(30)
        assert not metadata_of(world, 2).is_caught_up(USER)
        world.fabric.heal()
        await until_caught_up(world, 2)

    Replicas(2).run(main)


def test_after_a_restart_all_is_read_again() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        for number in range(1, 30):
            await submit(world, 1, started(number))
        world.kill(1)
        await world.start(1)
        follow(world, 1, 2)
        await until_caught_up(world, 1, 2)
        assert states(world, 1) == states(world, 2) == dict.fromkeys(range(1, 30), SegmentState.COPY_STARTED)

    Replicas(2).run(main)


@pytest.mark.parametrize("more", [0, 3])
def test_what_an_unclean_leader_does_not_have_is_forgotten(more: int) -> None:
    """It may have written others in their place since."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, topic=TOPIC, cleanup_policy="compact")
        world.create(1, 2, topic="t")
        follow(world, 1, 2, 3)
        await submit(world, 1, started(1))
        world.kill(2)
        world.change(isr=(1, 3), topic=TOPIC)
        await submit(world, 1, started(2))
        await world.until(lambda: len(states(world, 3)) == 2)
        world.kill(1)
        world.change(isr=(3,), topic=TOPIC)
        await world.start(2)
        world.hold(3)
        world.change(leader=2, isr=(2,), topic=TOPIC, unclean=True)
        user = world.controller.image.partition("t", 0)
        assert user is not None
        for number in range(3, 3 + more):
            await submit(world, 2, started(number), leader_epoch=user.leader_epoch)
        world.let_go(3)
        await world.until(lambda: set(states(world, 3)) == {1, *range(3, 3 + more)})
        await until_caught_up(world, 3)

    Replicas(3, replica_lag_time_max_ms="600000").run(main)


def test_cancelled_while_it_waits_it_leaves_nothing_behind() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        world.fabric.cut("node1", "node2")
        metadata = metadata_of(world, 2)
        for delay_s in (0.0, 0.01, 1.0, 15.0):
            telling = asyncio.ensure_future(submit(world, 2, started()))
            await asyncio.sleep(delay_s)
            telling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await telling
        world.fabric.heal()
        await world.until(lambda: not metadata._sources)
        await submit(world, 2, started())

    Replicas(2).run(main)


def test_many_at_once_share_a_few_appends() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 2)
        await asyncio.gather(*(submit(world, 2, started(number)) for number in range(1, 301)))
        assert len(states(world, 2)) == 300

    Replicas(2).run(main)


def test_partitions_of_the_topic_are_read_from_their_leaders() -> None:
    async def main(world: Replicas) -> None:
        create(world, partitions=4)
        world.create(1, topic="many", partitions=12)
        users = [TieredPartition(Replicas.id_of("many"), number) for number in range(12)]
        for index in range(1, 4):
            world.change(leader=1 + index % 3, topic=TOPIC, partition=index)
        for user in users:
            world.nodes[3].here(metadata_of(world, 3).follow, user)
            await submit(world, 2, started(partition=user))
        await world.until(lambda: all(states(world, 3, user) for user in users))
        await world.until(lambda: all(metadata_of(world, 3).is_caught_up(user) for user in users))
        for user in users:
            world.nodes[3].here(metadata_of(world, 3).unfollow, user)
        assert not metadata_of(world, 3)._sources

    Replicas(3).run(main)


# --- what clients may ---


def test_a_client_does_not_write_to_it() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        for count in (1, 3):
            answer = await world.produce(1, *[b"x"] * count, topic=TOPIC)
            assert answer.error_code is ErrorCode.invalid_topic_exception
        assert world.nodes[1].values(topic=TOPIC) == []

    Replicas(1).run(main)


@pytest.mark.parametrize("node_id", [1, 2])
def test_a_command_that_is_none_is_refused_as_a_whole(node_id: int) -> None:
    good = encode_commands([TierCommand(event=started(), leader_epoch=0)], now_ms=1)
    key, value = encode_event(started())
    header = (("leader-epoch", b"\0\0\0\0"),)

    async def main(world: Replicas) -> None:
        create(world)
        expected: dict[bytes, ErrorCode] = {
            bytes(build_batch([(key, value, (), 1)])): ErrorCode.invalid_topic_exception,
            bytes(build_batch([(None, value, header, 1)])): ErrorCode.invalid_topic_exception,
            bytes(
                build_batch([(key, value, header, 1)] * 9, codec=Codec.ZSTD)
            ): ErrorCode.invalid_topic_exception,
            bytes(build_batch([(key, b"garbage", header, 1)])): ErrorCode.invalid_record,
            bytes(build_batch([(key, None, header, 1)])): ErrorCode.invalid_record,
            bytes(
                build_batch([(key, value, (*header, ("from-state", b"\x09")), 1)])
            ): ErrorCode.invalid_record,
            bytes(build_batch([(key, value, (*header, ("from-state", b"")), 1)])): ErrorCode.invalid_record,
            bytes(good[:-1] + b"x"): ErrorCode.corrupt_message,
        }
        for records, code in expected.items():
            answer = await send(world, node_id, records)
            assert answer.error_code is code
        answer = await send(world, node_id, bytes(good), acks=1)
        assert answer.error_code is ErrorCode.invalid_required_acks
        answer = await send(world, node_id, bytes(good))
        expects = ErrorCode.none if node_id == 1 else ErrorCode.not_leader_or_follower
        assert answer.error_code is expects
        assert len(world.nodes[1].values(topic=TOPIC)) == (node_id == 1)

    Replicas(2).run(main)


async def send(world: Replicas, node_id: int, records: bytes, *, acks: int = -1) -> Any:
    channel = world.client(node_id)
    response = await channel.ask(Api.PRODUCE, 10, produce_fields(TOPIC, records, acks=acks), timeout_s=60)
    channel.close()
    return response.responses[0].partition_responses[0]


def test_several_commands_in_one_batch_are_answered_by_the_first_refusal() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        follow(world, 1)
        commands = [
            TierCommand(event=event, leader_epoch=0) for event in (started(1), finished(9), started(2))
        ]
        answer = await send(world, 1, bytes(encode_commands(commands, now_ms=1)))
        assert answer.error_code is ErrorCode.invalid_record
        assert set(states(world, 1)) == {1, 2}

    Replicas(1).run(main)
