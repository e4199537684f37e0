"""Whatever happens to three replicas, what was acknowledged by all of them is there in the end, once and in
order, and nobody ever read anything else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from broker.net.channel import PeerLost
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.records import iter_batches, iter_records
from tests.broker import replication_driver
from tests.broker.handlers.test_produce_walks import batch_of_many
from tests.broker.raw_client import batch_of, produce_fields
from tests.broker.replication_driver import Replicas, log_of

STEPS = 40


class Ordeal:
    """One seed's run: a producer, a reader and faults, each step of which the seed chooses."""

    def __init__(self, world: Replicas, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.written = 0
        self.acknowledged: dict[int, bytes] = {}
        self.seen: dict[int, bytes | None] = {}
        self.work: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        acts: list[Callable[[], object]] = [
            *[self.produce] * 12,
            *[self.read] * 6,
            self.cut,
            self.cut_one_way,
            self.heal,
            self.heal,
            self.kill,
            self.reset,
            self.elect,
            self.elect,
            self.hold,
            self.let_go,
            self.controller_goes,
            self.controller_comes,
        ]
        for _ in range(STEPS):
            act = self.rng.choice(acts)
            for _ in range(self.rng.randint(1, 4) if act == self.produce else 1):
                outcome = act()
                if asyncio.iscoroutine(outcome):
                    task = asyncio.ensure_future(outcome)
                    self.work.add(task)
                    task.add_done_callback(self.work.discard)
            await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.1, 1.0, 5.0)))
        await self.settle()

    @property
    def leader(self) -> int:
        known = self.world.controller.image.partition("t", 0)
        assert known is not None
        return known.leader

    async def produce(self) -> None:
        node_id = self.rng.choice((1, 2, 3, self.leader, self.leader))
        value = b"%d" % self.written
        self.written += 1
        if node_id < 0 or not self.world.nodes[node_id].process.alive:
            return
        acks = self.rng.choice((1, -1, -1, -1))
        try:
            answer = await self.world.produce(node_id, value, acks=acks)
        except PeerLost:
            return
        if acks < 0 and answer.error_code is ErrorCode.none:
            assert answer.base_offset not in self.acknowledged, "two values were given one offset"
            self.acknowledged[answer.base_offset] = value

    async def read(self) -> None:
        """From any replica: followers serve what they know to be committed."""
        node_id = self.rng.choice((1, 2, 3))
        if not self.world.nodes[node_id].process.alive:
            return
        try:
            answer = await self.world.fetch(node_id, 0)
        except PeerLost:
            return
        if answer.error_code is not ErrorCode.none:
            return
        data = answer.records or b""
        for at, header in iter_batches(data):
            for row in iter_records(data, at, header):
                assert self.seen.setdefault(row.offset, row.value) == row.value, (
                    f"offset {row.offset} changed"
                )

    # faults ---------------------------------------------------------------------------------------------

    def pair(self) -> tuple[str, str]:
        a, b = self.rng.sample((1, 2, 3), 2)
        return f"node{a}", f"node{b}"

    def cut(self) -> None:
        self.world.fabric.cut(*self.pair())

    def cut_one_way(self) -> None:
        self.world.fabric.cut(*self.pair(), both=False)

    def heal(self) -> None:
        self.world.fabric.heal()

    def reset(self) -> None:
        self.world.fabric.reset_some(0.5)

    def kill(self) -> None:
        node_id = self.rng.choice((1, 2, 3))
        if self.world.nodes[node_id].process.alive:
            self.world.nodes[node_id].logs.checkpoint_high_watermarks()
            self.world.let_go(node_id)
            self.world.kill(node_id)
            asyncio.ensure_future(self.revive(node_id, self.rng.uniform(0, 15)))  # noqa: RUF006

    async def revive(self, node_id: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not self.world.nodes[node_id].process.alive:
            await self.world.start(node_id)

    def elect(self) -> None:
        """Another member of the ISR leads: what a controller may do at any time."""
        live = [each for each in self.world.isr() if self.world.controller.image.is_live(each)]
        if live:
            self.world.change(leader=self.rng.choice(live))

    def hold(self) -> None:
        node_id = self.rng.choice((1, 2, 3))
        if self.world.nodes[node_id].process.alive:
            self.world.hold(node_id)

    def let_go(self) -> None:
        for node_id in self.world.nodes:
            if self.world.nodes[node_id].process.alive:
                self.world.let_go(node_id)

    def controller_goes(self) -> None:
        self.world.controller.is_away = True

    def controller_comes(self) -> None:
        self.world.controller.is_away = False

    # the verdict ----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        world = self.world
        self.controller_comes()
        self.heal()
        self.let_go()
        await asyncio.sleep(20)
        for node_id in world.nodes:
            await self.revive(node_id, 0)
        if self.leader < 0:
            world.change(leader=world.isr()[0])
        while self.work:
            await asyncio.wait(self.work)
        await world.until(lambda: set(world.isr()) == {1, 2, 3}, timeout_s=120)
        try:
            await world.append(self.leader, b"the end")
        except KafkaError as error:
            raise AssertionError(f"a whole cluster refuses: {error}") from error
        await world.agree(1, 2, 3)
        values = world.nodes[1].values()
        for offset, value in self.acknowledged.items():
            assert offset < len(values), f"{value!r} was acknowledged at {offset} and is lost"
            assert values[offset] == value, (
                f"{value!r} was acknowledged at {offset}, there is {values[offset]!r}"
            )
        for offset, seen in self.seen.items():
            assert values[offset] == seen, f"{seen!r} was read at {offset}, there is {values[offset]!r}"


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_stays(seed: int, least: int) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, min_insync_replicas=str(least))
        await Ordeal(world, seed).run()

    Replicas(seed=seed).run(main)


@pytest.mark.parametrize("leads_again", [False, True])
def test_what_was_cut_off_while_another_partition_was_walked_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch, leads_again: bool
) -> None:
    moves: list[Callable[[], Any]] = []

    async def offload(call: Callable[[], Any]) -> Any:
        if moves:
            await moves.pop()()
        return call()

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        world.create(1, topic="walked", cleanup_policy="compact")
        for other in ("node2", "node3"):
            world.fabric.cut("node1", other)

        async def another_leads() -> None:
            world.change(leader=2, isr=(2, 3))
            world.fabric.heal()
            await world.append(2, b"another")
            await world.until(lambda: world.nodes[1].partition().log.high_watermark == 1)
            if leads_again:
                world.change(leader=1, isr=(1, 2, 3))

        moves.append(another_leads)
        fields = produce_fields("t", batch_of(b"cut off"), acks=-1)
        fields["topic_data"] += produce_fields("walked", batch_of_many())["topic_data"]
        response = await world.ask(1, Api.PRODUCE, 10, **fields)
        codes = [topic.partition_responses[0].error_code for topic in response.responses]
        assert world.nodes[1].values() == [b"another"]
        assert codes == [ErrorCode.not_leader_or_follower, ErrorCode.none]

    monkeypatch.setattr(replication_driver, "_offload", offload)
    Replicas().run(main)


def test_a_topic_that_is_deleted_while_another_partition_is_walked_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves: list[Callable[[], Any]] = []

    async def offload(call: Callable[[], Any]) -> Any:
        if moves:
            moves.pop()()
        return call()

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        world.create(1, topic="walked", cleanup_policy="compact")
        world.fabric.cut("node1", "node2")
        moves.append(world.delete)
        fields = produce_fields("t", batch_of(b"gone"), acks=-1, timeout=30_000)
        fields["topic_data"] += produce_fields("walked", batch_of_many())["topic_data"]
        since = world.loop.now
        response = await world.ask(1, Api.PRODUCE, 10, **fields)
        codes = [topic.partition_responses[0].error_code for topic in response.responses]
        assert codes == [ErrorCode.not_leader_or_follower, ErrorCode.none]
        assert world.loop.now - since < 1

    monkeypatch.setattr(replication_driver, "_offload", offload)
    Replicas(2).run(main)


# --- between brokers ---


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
