"""What deleted topics have left goes, whoever was there when they were deleted."""

from __future__ import annotations

import asyncio
import random

from remote.cold.claim import LATE_UPLOAD_S
from remote.cold.object_tier import ObjectTier, key_of
from remote.cold.segments import PartitionState, RemoteSegment, SegmentState, TieredPartition
from remote.keys import SegmentPart
from remote.store.memory_store import MemoryStore
from tests.broker.coordinators.tier.tier_driver import (
    TOPIC,
    USER,
    deletion,
    finished,
    metadata_of,
    segment,
    started,
    states,
    update,
)
from tests.broker.replication_driver import Replicas
from tests.remote.store.faulty_store import FaultProfile, FaultyStore


class Tier:
    """A topic with copies, in a cluster of two that share a store."""

    def __init__(self, world: Replicas) -> None:
        self.world = world
        self.store = MemoryStore()
        self.faults = FaultProfile()
        self.faulty = FaultyStore(self.store, self.faults, random.Random(0))
        self.adopt(*world.nodes)

    def adopt(self, *node_ids: int) -> None:
        for node_id in node_ids:
            metadata_of(self.world, node_id).sweep.storage = ObjectTier(self.faulty)

    async def submit(self, *events: object) -> None:
        metadata = metadata_of(self.world, 1)
        for event in events:
            await self.world.nodes[1].run(metadata.submit(event, leader_epoch=0))  # type: ignore[arg-type]

    async def put(self, *segments: RemoteSegment) -> None:
        for each in segments:
            for part in SegmentPart:
                await self.store.put(key_of(each, part), b"x")

    async def fill(self) -> None:
        self.world.create(1, 2, topic=TOPIC, cleanup_policy="compact")
        self.world.create(1, topic="t")
        await self.submit(started(1), finished(1), started(2, base=10, end=20), started(3, base=20, end=30))
        await self.submit(update(SegmentState.DELETE_STARTED, 3))
        await self.put(segment(1), segment(2, base=10, end=20), segment(3, base=20, end=30))

    async def until(self, *known: TieredPartition, objects: int) -> None:
        """Until the metadata knows of nothing else, and the store has no more objects."""
        async with asyncio.timeout(600):
            while self.known() != [*known] or len(await self.store.list("")) > objects:  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    def known(self) -> list[TieredPartition]:
        """What whoever leads the metadata knows of."""
        for node_id in self.alive():
            for _, machine in metadata_of(self.world, node_id).coordinator.machines():
                return machine.fold.partitions()
        return [USER]

    def alive(self) -> list[int]:
        return [node_id for node_id, node in self.world.nodes.items() if node.process.alive]


def test_a_deleted_topic_leaves_neither_objects_nor_rows() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        world.delete("t")
        await tier.until(objects=0)
        await world.until(lambda: metadata_of(world, 1).sweep.left == 0)

    Replicas(2).run(main)


def test_a_put_that_lands_late_is_deleted_too() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        begun = world.loop.time()
        world.delete("t")
        await tier.until(USER, objects=0)
        assert world.loop.time() - begun < LATE_UPLOAD_S
        await asyncio.sleep(LATE_UPLOAD_S - 10)
        assert metadata_of(world, 1).sweep.left == 1, "it is not forgotten yet"
        await tier.put(segment(2, base=10, end=20))
        await tier.until(objects=0)

    Replicas(2).run(main)


def test_the_leader_dies_amid_it_and_the_next_begins_again() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        world.delete("t")
        await asyncio.sleep(20)
        world.kill(1)
        await tier.put(segment(1))
        await tier.until(objects=0)
        assert tier.alive() == [2]

    Replicas(2).run(main)


def test_a_topic_that_was_deleted_while_everybody_was_down_goes_and_its_namesake_stays() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        world.create(1, topic="u")
        other = TieredPartition(Replicas.id_of("u"), 0)
        await tier.submit(started(9, partition=other), finished(9, partition=other))
        await tier.put(segment(9, partition=other))
        world.kill(1)
        world.kill(2)
        world.delete("t")
        for node_id in (1, 2):
            await world.start(node_id)
        tier.adopt(1, 2)
        await tier.until(other, objects=2)
        assert len(await tier.store.list("")) == 2

    Replicas(2).run(main)


def test_a_deletion_that_was_begun_is_carried_on() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        await tier.submit(deletion(PartitionState.DELETE_MARKED), deletion(PartitionState.DELETE_STARTED))
        world.delete("t")
        await tier.until(objects=0)

    Replicas(2).run(main)


def test_a_store_that_fails_is_asked_again() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        tier.faults.down = True
        world.delete("t")
        await asyncio.sleep(100)
        assert len(await tier.store.list("")) == 6
        tier.faults.down = False
        tier.faults.error_after_chance = 0.3
        await tier.until(objects=0)

    Replicas(2).run(main)


def test_nothing_of_a_living_topic_is_touched() -> None:
    async def main(world: Replicas) -> None:
        tier = Tier(world)
        await tier.fill()
        await asyncio.sleep(300)
        assert len(await tier.store.list("")) == 6
        metadata_of(world, 1).follow(USER)
        assert len(states(world, 1)) == 3

    Replicas(2).run(main)
