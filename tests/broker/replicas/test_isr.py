"""ISR changes on their way to the controller: one request at a time, asked until answered for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from broker.config.values import ResourceType
from broker.control.metadata_records import ConfigChanged
from broker.net.channel import PeerLost
from broker.replicas.isr import BACKOFF_MAX_S, PROPOSALS_MAX, IsrChanges
from broker.replicas.partition import NAMED_MAX, Partition, TopicStats
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import decode_response, encode_response, entity
from tests.broker.replicas.test_partition import FakeLog, FakePeers, lead, view_of
from tests.broker.replication_driver import Replicas, log_of
from tests.sim.loop import SimLoop

TOPIC = UUID(int=9)
NEVER_DONE = (ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted)


class FakeReplicas(FakePeers):
    """The replica manager's part: partitions led by node 1, and who hears of their proposals."""

    node_id = 1

    def __init__(self, count: int) -> None:
        super().__init__()
        self.on_proposal: list[Callable[[Partition], None]] = []
        self.woken: list[Partition] = []
        self.all: list[Partition] = []
        for index in range(count):
            log: Any = FakeLog()
            partition = Partition(
                topic="t", index=index, topic_id=TOPIC, log=log, node_id=1, stats=TopicStats(), peers=self
            )
            lead(partition, view_of((1, 2), (1,)))
            self.all.append(partition)

    def proposed(self, partition: Partition) -> None:
        for listener in self.on_proposal:
            listener(partition)

    def partitions(self) -> Iterator[Partition]:
        yield from self.all

    def wake_committed(self, partition: Partition) -> None:
        self.woken.append(partition)


class FakeController:
    broker_epoch = 70

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.under_way = 0
        self.answer: Callable[[Any], Fields | Exception] = granted

    async def alter_partition(self, fields: Fields, *, timeout_s: float) -> Any:
        assert self.under_way == 0, "one request at a time"
        self.under_way += 1
        request = entity(56, 3, fields)
        self.asked.append(request)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return decode_response(56, 3, encode_response(56, 3, 1, answer)[4:])[1]


def granted(request: Any, code: ErrorCode = ErrorCode.none) -> Fields:
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "topics": [
            {
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": code,
                        "leader_id": 1,
                        "leader_epoch": each.leader_epoch,
                        "isr": [member.broker_id for member in each.new_isr_with_epochs],
                        "partition_epoch": each.partition_epoch + 1,
                    }
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def run(count: int, act: Callable[[FakeReplicas, FakeController, IsrChanges], Any]) -> None:
    loop = SimLoop()

    async def main() -> None:
        replicas, controller = FakeReplicas(count), FakeController()
        manager = IsrChanges(replicas=replicas, controller=controller)
        async with asyncio.TaskGroup() as tasks:
            started = manager.start(tasks)
            await act(replicas, controller, manager)
            for task in started:
                task.cancel()

    loop.run(main())


def test_proposals_that_come_together_share_requests_and_name_every_epoch() -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        for partition in replicas.all:
            partition.follower_at(2, 0, broker_epoch=5)
        await asyncio.sleep(1)
        assert [len(request.topics[0].partitions) for request in controller.asked] == [PROPOSALS_MAX, 3]
        (first, *_) = controller.asked[0].topics[0].partitions
        assert (controller.asked[0].broker_id, controller.asked[0].broker_epoch) == (1, 70)
        assert [(each.broker_id, each.broker_epoch) for each in first.new_isr_with_epochs] == [
            (1, 70),
            (2, 5),
        ]
        assert all(partition.isr == (1, 2) for partition in replicas.all)
        assert (manager.expands, manager.shrinks) == (PROPOSALS_MAX + 3, 0)

    run(PROPOSALS_MAX + 3, act)


def test_however_many_change_together_the_log_has_one_line_for_an_isr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        for partition in replicas.all:
            partition.follower_at(2, 0, broker_epoch=5)
        await asyncio.sleep(1)

    with caplog.at_level(logging.INFO, "broker.replicas.isr"):
        run(NAMED_MAX + 3, act)
    (line,) = caplog.messages
    names = ", ".join(f"t-{index}" for index in range(NAMED_MAX))
    assert line == f"ISR is now [1, 2]: {names} and 3 more"


@pytest.mark.parametrize(
    ("trouble", "is_refused"),
    [
        (lambda _: PeerLost("gone"), False),
        (lambda _: KafkaError(ErrorCode.not_controller), False),
        (lambda request: {**granted(request), "error_code": ErrorCode.stale_broker_epoch}, False),
        (lambda request: granted(request, ErrorCode.unknown_server_error), True),
        (lambda request: granted(request, ErrorCode.not_controller), True),
        (lambda request: {**granted(request), "topics": []}, False),
    ],
    ids=["lost", "no controller", "stale", "unknown", "replaced", "left out"],
)
def test_what_is_not_answered_is_asked_again_and_ever_more_slowly(trouble: Any, is_refused: bool) -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        controller.answer = trouble
        (partition,) = replicas.all
        partition.follower_at(2, 0)
        await asyncio.sleep(10)
        asked = len(controller.asked)
        assert 10 / BACKOFF_MAX_S <= asked <= 20
        assert partition.maximal_isr == {1, 2}
        controller.answer = granted
        await asyncio.sleep(2 * BACKOFF_MAX_S)
        assert partition.isr == (1, 2)
        assert len(controller.asked) == asked + 1
        assert (manager.expands, manager.refusals) == (1, asked if is_refused else 0)

    run(1, act)


@pytest.mark.parametrize(
    ("code", "maximal"),
    [
        (ErrorCode.ineligible_replica, {1}),
        (ErrorCode.operation_not_attempted, {1}),
        (ErrorCode.invalid_update_version, {1, 2}),
        (ErrorCode.fenced_leader_epoch, {1, 2}),
        (ErrorCode.unknown_topic_id, {1, 2}),
        (ErrorCode.new_leader_elected, {1, 2}),
    ],
)
def test_what_is_refused_for_good_is_left_to_the_image(code: ErrorCode, maximal: set[int]) -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        controller.answer = lambda request: granted(request, code)
        (partition,) = replicas.all
        partition.follower_at(2, 0)
        await asyncio.sleep(10)
        assert len(controller.asked) == 1
        assert partition.maximal_isr == maximal
        assert (manager.expands, manager.refusals) == (0, 1)
        lead(partition, view_of((1, 2), (1, 2), partition_epoch=6))
        assert (partition.isr, partition.proposal) == ((1, 2), None)

    run(1, act)


@pytest.mark.parametrize("code", sorted(set(ErrorCode) - {ErrorCode.none, *NEVER_DONE}))
def test_no_other_error_says_that_a_change_was_never_done(code: ErrorCode) -> None:
    """A controller that was replaced answers NOT_CONTROLLER for a partition of which it knows less than its
    leader: the newer one may have committed the change, and count the follower as in sync."""

    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        controller.answer = lambda request: granted(request, code)
        (partition,) = replicas.all
        log: Any = partition.log
        partition.follower_at(2, 0)
        await asyncio.sleep(1)
        log.log_end_offset = 4
        partition.advance()
        assert partition.maximal_isr == {1, 2}
        assert log.high_watermark == 0, "the follower has none of it"

    run(1, act)


def test_a_refusal_of_a_controller_that_was_behind_is_tried_again_after_a_while() -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        controller.answer = lambda request: granted(request, ErrorCode.invalid_update_version)
        (partition,) = replicas.all
        partition.follower_at(2, 0)
        await asyncio.sleep(1)
        controller.answer = granted
        await asyncio.sleep(replicas.lag_s)
        assert partition.isr == (1, 2)

    run(1, act)


def test_who_moved_on_by_itself_is_not_asked_for() -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        (partition,) = replicas.all
        partition.follower_at(2, 0)
        partition.follow(view_of((1, 2), (2,), leader=2, leader_epoch=9))
        await asyncio.sleep(1)
        assert controller.asked == []

    run(1, act)


def test_the_watch_finds_who_fell_behind_and_wakes_who_waited_for_it() -> None:
    async def act(replicas: FakeReplicas, controller: FakeController, manager: IsrChanges) -> None:
        (partition,) = replicas.all
        lead(partition, view_of((1, 2), (1, 2), partition_epoch=6))
        log: Any = partition.log
        log.log_end_offset = 4
        replicas.at += replicas.lag_s + 1
        await asyncio.sleep(replicas.lag_s)
        assert partition.isr == (1,)
        assert log.high_watermark == 4
        assert replicas.woken == [partition]
        assert (manager.expands, manager.shrinks) == (0, 1)

    run(1, act)


# --- between brokers ---


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
