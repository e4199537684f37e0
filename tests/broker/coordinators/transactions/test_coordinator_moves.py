"""Transactions on several brokers: markers over the network, and coordinators that go while one ends."""

from __future__ import annotations

import asyncio
from typing import Any

from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import batch_of, produce_fields
from tests.broker.replication_driver import Replicas

NONE = ErrorCode.none
STATE = "__transaction_state"
ID = "x"
PASSING = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas,
    ErrorCode.concurrent_transactions,
)


class Producer:
    """A producer of transaction version 2, whose coordinator is asked wherever it is said to be."""

    def __init__(self, world: Replicas, coordinator: int, leader: int) -> None:
        self.world = world
        self.coordinator = coordinator
        self.leader = leader
        self.producer_id = self.epoch = -1

    async def patiently(self, node_id: int, api: Api, version: int, **fields: Any) -> Any:
        async with asyncio.timeout(60):
            while True:
                reply = await self.world.ask(node_id, api, version, **fields)
                if reply.error_code not in PASSING:
                    return reply
                await asyncio.sleep(0.05)

    async def begin(self, timeout_ms: int = 60_000) -> None:
        reply = await self.patiently(
            self.coordinator,
            Api.INIT_PRODUCER_ID,
            5,
            transactional_id=ID,
            transaction_timeout=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert reply.error_code is NONE
        self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch

    async def produce(self, value: bytes, *, sequence: int = 0) -> None:
        batch = batch_of(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        fields = produce_fields("t", batch, transactional_id=ID, acks=-1)
        async with asyncio.timeout(60):
            while True:
                reply = await self.world.ask(self.leader, Api.PRODUCE, 12, **fields)
                code = reply.responses[0].partition_responses[0].error_code
                if code not in PASSING:
                    break
                await asyncio.sleep(0.05)
        assert code is NONE

    async def end(self, *, commits: bool = True) -> None:
        reply = await self.patiently(
            self.coordinator,
            Api.END_TXN,
            5,
            transactional_id=ID,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commits,
        )
        assert reply.error_code is NONE
        self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch

    async def state(self) -> str:
        reply = await self.world.ask(self.coordinator, Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[ID])
        found: str = reply.transaction_states[0].transaction_state
        return found

    async def until(self, state: str) -> None:
        async with asyncio.timeout(60):
            while await self.state() != state:  # noqa: ASYNC110 - it happens in the brokers
                await asyncio.sleep(0.05)


def stable(world: Replicas, node_id: int) -> tuple[int, int]:
    log = world.nodes[node_id].partition().log
    return log.last_stable_offset, log.log_end_offset


async def begun(world: Replicas, *, coordinator: int, leader: int) -> Producer:
    others = {1, 2, 3}
    world.create(leader, *sorted(others - {leader}))
    world.create(coordinator, *sorted(others - {coordinator}), topic=STATE)
    producer = Producer(world, coordinator, leader)
    await producer.begin()
    await producer.produce(b"a")
    return producer


def test_markers_reach_another_broker() -> None:
    async def main(world: Replicas) -> None:
        producer = await begun(world, coordinator=1, leader=2)
        assert stable(world, 2) == (0, 1)
        await producer.end()
        await producer.until("CompleteCommit")
        await world.until(lambda: stable(world, 2) == (2, 2))
        await world.until(lambda: stable(world, 3) == (2, 2))
        await producer.produce(b"b")
        await producer.end(commits=False)
        await producer.until("CompleteAbort")
        await world.until(lambda: stable(world, 2) == (4, 4))

    Replicas().run(main)


def test_the_coordinator_is_killed_before_its_markers_arrive() -> None:
    async def main(world: Replicas) -> None:
        producer = await begun(world, coordinator=1, leader=2)
        await world.agree(1, 2, 3)
        # Both partitions keep their replicas in sync by node 3, which everybody reaches.
        world.change(isr=(2, 3))
        world.change(isr=(1, 3), topic=STATE)
        world.fabric.cut("node1", "node2")
        await producer.end()
        assert await producer.state() == "PrepareCommit"
        assert stable(world, 2) == (0, 1)
        world.kill(1)
        world.change(leader=3, topic=STATE)
        producer.coordinator = 3
        await producer.until("CompleteCommit")
        await world.until(lambda: stable(world, 2) == (2, 2))
        (known,) = world.nodes[2].partition().log.producer_table.active()
        now_led = world.controller.image.partition(STATE, 0)
        assert now_led is not None
        assert known.coordinator_epoch == now_led.leader_epoch > 0
        await producer.produce(b"b")
        await producer.end()
        await producer.until("CompleteCommit")

    Replicas().run(main)


def test_the_leader_of_a_partition_goes_while_it_is_told() -> None:
    async def main(world: Replicas) -> None:
        producer = await begun(world, coordinator=1, leader=2)
        await world.agree(1, 2, 3)
        world.kill(2, is_noticed=False)
        world.change(isr=(1, 3), topic=STATE)
        await producer.end()
        assert await producer.state() == "PrepareCommit"
        world.fence(2)
        world.change(leader=3, isr=(3, 1))
        await producer.until("CompleteCommit")
        await world.until(lambda: stable(world, 3) == (2, 2))

    Replicas().run(main)


def test_a_transaction_that_is_left_is_aborted_by_the_next_coordinator_too() -> None:
    async def main(world: Replicas) -> None:
        world.create(2, 1, 3)
        world.create(1, 2, 3, topic=STATE)
        producer = Producer(world, 1, 2)
        await producer.begin(timeout_ms=5_000)
        await producer.produce(b"a")
        await world.agree(1, 2, 3)
        world.kill(1)
        world.change(leader=3, isr=(3, 2), topic=STATE)
        world.change(isr=(2, 3))
        producer.coordinator = 3
        async with asyncio.timeout(6):
            await producer.until("CompleteAbort")
        await world.until(lambda: stable(world, 2) == (2, 2))

    Replicas().run(main)
