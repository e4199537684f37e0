"""Metrics of the WAL tier: all that is counted is told, and what would be lost with the leader's disk."""

from __future__ import annotations

from remote.store.object_store import Operation
from remote.wal.stats import Times, WalStats
from tests.broker.handlers.test_pointed_fetch import append, begin, store
from tests.broker.replication_driver import Replicas

TOPIC = {"topic": "t"}
PARTITION = {"topic": "t", "partition": "0"}


def told(world: Replicas, node_id: int) -> dict[str, float]:
    """What a scrape of this node finds under tidewal_wal_, of this topic and without labels."""
    return {
        sample.name.removeprefix("tidewal_wal_"): sample.value
        for family in world.nodes[node_id].components.metrics()
        for sample in family.samples
        if sample.name.startswith("tidewal_wal_") and sample.labels in ({}, TOPIC, PARTITION)
    }


def test_all_that_is_counted_is_told() -> None:
    async def main(world: Replicas) -> None:
        stats = world.nodes[1].components.wal_stats
        counted = {
            name: value for name in WalStats.__slots__ if not isinstance(value := getattr(stats, name), Times)
        }
        for number, name in enumerate(counted, 1):
            setattr(stats, name, number)
        stages = WalStats.__slots__ - counted.keys()  # type: ignore[operator]
        for name in stages:
            getattr(stats, name).note(0.25, count=2)
        found = told(world, 1)
        for number, name in enumerate(counted, 1):
            assert found[name if name in found else f"{name}_total"] == number, name
        for name in stages:
            stage = name.removesuffix("_s")
            assert (found[f"{stage}_seconds_count"], found[f"{stage}_seconds_sum"]) == (2, 0.5), stage

    Replicas(1).run(main)


def test_what_is_not_stored_is_told_by_topic() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        assert "unstored_bytes" not in told(world, 1), "it does not use the tier"
        begin(world)
        found = told(world, 1)
        assert (found["partitions"], found["direct_partitions"]) == (1, 0)
        assert (found["unstored_bytes"], found["unstored_seconds"]) == (0, 0)
        log = world.nodes[1].partition().log
        await append(world, bytes(100))
        first, at = log.size, world.loop.now
        await append(world, bytes(1000))
        await world.until(lambda: world.loop.now > at + 3, timeout_s=10)
        found = told(world, 1)
        assert found["unstored_bytes"] == log.size > first > 100
        assert 3 <= found["unstored_seconds"] < 4
        store(world, 1)
        assert told(world, 1)["unstored_bytes"] == log.size - first
        tail = world.nodes[1].partition().tail
        assert tail is not None
        assert tail.judge(log.log_end_offset, world.loop.now + 10)
        assert told(world, 1)["direct_partitions"] == 1
        assert told(world, 1)["stored_offset"] == 1
        assert "floor" not in told(world, 1), "nothing was said yet"
        tail.floor = 1
        assert told(world, 1)["floor"] == 1
        store(world, 2)
        found = told(world, 1)
        assert (found["unstored_bytes"], found["unstored_seconds"], found["stored_offset"]) == (0, 0, 2)
        assert "partitions" not in told(world, 2), "each partition is counted by its leader"

    Replicas(2).run(main)


def test_bytes_that_are_not_stored_may_lie_in_many_segments() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, internal_segment_bytes="400")
        begin(world)
        partition = world.nodes[1].partition()
        for _ in range(7):
            await append(world, bytes(150))
        log = partition.log
        assert log.statistics().segments > 3
        assert told(world, 1)["unstored_bytes"] == log.size
        store(world, 2)
        assert told(world, 1)["unstored_bytes"] == log.size * 5 // 7

    Replicas(2).run(main)


def test_the_tiers_own_lane_to_the_store_is_counted_apart() -> None:
    async def main(world: Replicas) -> None:
        components = world.nodes[1].components
        components.world.wal_store_stats.requests[Operation.PUT_IF_ABSENT] += 3
        components.world.wal_store_stats.note_answer(Operation.PUT_IF_ABSENT, 0.004)
        found = {
            (sample.name, sample.labels.get("operation"), sample.labels.get("le")): sample.value
            for family in components.metrics()
            for sample in family.samples
        }
        operation = str(Operation.PUT_IF_ABSENT)
        assert found["tidewal_wal_store_requests_total", operation, None] == 3
        assert found["tidewal_wal_store_request_seconds_bucket", operation, "0.005"] == 1
        assert found["tidewal_wal_store_request_seconds_bucket", operation, "0.0025"] == 0
        assert found["tidewal_object_store_requests_total", operation, None] == 0

    Replicas(1).run(main)


def test_with_the_system_switched_off_there_is_nothing_to_tell() -> None:
    async def main(world: Replicas) -> None:
        assert told(world, 1) == {}

    Replicas(1, remote_log_wal_storage_system_enable="false").run(main)
