"""The WAL tier beside the others: who begins where the cold tier ends, what the quotas of that one count, and
who goes on after a leader that had stored more than anybody else has."""

from __future__ import annotations

import asyncio

import pytest

from remote.keys import wal_key
from remote.wal.combined_object import decode_table
from remote.wal.floors import is_dead
from tests.broker.replicas.test_restore import agree, batches, bounds, create, fill, join, tiered
from tests.broker.replicas.wal.test_collecting import (
    ENABLE,
    all_rows,
    collecting,
    rounds,
    run,
    store_some,
    streams,
)
from tests.broker.replicas.wal_driver import stats_of
from tests.broker.replication_driver import Replicas, log_of

ON = {"follower_fetch_last_tiered_offset_enable": "true"}


@pytest.mark.requirement("X-3")
def test_who_begins_where_the_cold_tier_ends_finds_the_rest_in_the_store() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, **ENABLE)
        await fill(world, tier, 1, 4)
        await tier.copy(1)
        await tier.free(1)
        await store_some(world, 1, 5)
        await rounds(world, 1, count=8)
        assert bounds(world, 1) == (0, 12, 17)
        kept = {offset for row in all_rows(world) for offset in range(row.start, row.end)}
        assert kept >= set(range(12, 17))
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert bounds(world, 2) == (0, 12, 17)
        stats = stats_of(world.nodes[2])
        assert (stats.hydrated_slices, stats.direct_bytes_in) == (5, 0)

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("1023-18")
def test_who_begins_where_the_tier_ends_is_sent_little() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1)
        await fill(world, tier, 1, 40)
        await world.append(1, b"last")
        whole = log_of(world, 1).size_from(0)
        await tier.copy(1)
        await tier.free(1)
        join(world, 1, 2)
        await agree(world, 1, 2)
        assert 0 < world.nodes[2].partition().stats.replication_bytes_in <= whole / 10

    world, tier = tiered(**ON)
    world.run(main)


@pytest.mark.requirement("X-4")
def test_quotas_of_the_cold_tier_hold_up_nothing_of_the_active_segments() -> None:
    async def main(world: Replicas) -> None:
        create(world, 1, 2, **ENABLE)
        began = world.loop.now
        for _ in range(20):
            await world.append(1, bytes(10_000), acks=1)
        await world.until(lambda: log_of(world, 2).high_watermark == 20)
        assert world.loop.now - began < 2.0
        assert stats_of(world.nodes[1]).stored_bytes > 200_000
        stats = stats_of(world.nodes[2])
        assert (stats.hydrated_bytes > 200_000, stats.direct_bytes_in) == (True, 0)

    world, _ = tiered(
        **{f"remote_log_manager_{each}_max_bytes_per_second": "100" for each in ("copy", "fetch")}
    )
    world.run(main)


@pytest.mark.requirement("1176-49", "1176-50")
@pytest.mark.parametrize(("elected", "end"), [(2, 5), (3, 7)])
def test_the_example_of_the_proposal(elected: int, end: int) -> None:
    """The leader has 10 records and has stored them, the others have 5 and 7. Whoever is elected keeps what
    it has, as in Kafka; the others follow it, and what was stored above that counts no more."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, **ENABLE)
        await store_some(world, 1, 5)
        await world.until(lambda: log_of(world, 2).log_end_offset == 5)
        world.fabric.cut("node1", "node2")
        await store_some(world, 1, 2)
        await world.until(lambda: log_of(world, 3).log_end_offset == 7)
        world.fabric.cut("node1", "node3")
        await store_some(world, 1, 3)
        assert [log_of(world, node_id).log_end_offset for node_id in (1, 2, 3)] == [10, 5, 7]
        (stream,) = streams(world)
        world.kill(1)
        world.fabric.heal()
        world.change(leader=elected, isr=(2, 3))
        other = 5 - elected
        await world.until(lambda: log_of(world, other).log_end_offset == end)
        assert log_of(world, elected).log_end_offset == end
        await store_some(world, elected, 1)
        await rounds(world, elected)
        view = collecting(world, elected).floors
        for seq in streams(world)[stream]:
            table = decode_table(world.store.objects[wal_key(stream, seq)])
            for row in table.rows:
                if row.topic_id == world.id_of("t"):
                    is_void = is_dead(row, table.head.place, table.head.metadata_seq, view)
                    assert is_void is (row.start >= end), row
        await world.start(1)
        await world.agree(1, 2, 3)
        assert log_of(world, 1).log_end_offset == end + 1

    run(main, 3)


@pytest.mark.requirement("1176-53", "1176-48")
@pytest.mark.parametrize("elected", [2, 3])
def test_a_zone_takes_the_leader_and_the_bucket_with_it_and_each_follower_has_all(elected: int) -> None:
    """Each follower is a whole copy beside the leader's and those of the store, and replaces both."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, **ENABLE)
        for at in range(20):
            await world.append(1, b"%d" % at)
        await world.agree(1, 2, 3)
        before = batches(log_of(world, 1), 0)
        for node_id in (2, 3):
            stats = stats_of(world.nodes[node_id])
            assert (stats.hydrated_bytes > 0, stats.direct_bytes_in) == (True, 0)
        world.kill(1)
        world.store.is_away = True
        world.change(leader=elected, isr=(2, 3))
        await world.until(lambda: world.nodes[elected].partition().is_leader)
        assert batches(log_of(world, elected), 0) == before
        await world.append(elected, b"after")
        await world.agree(2, 3)
        assert log_of(world, elected).high_watermark == 21

    run(main, 3)


@pytest.mark.requirement("1176-52", "1176-31")
def test_with_its_leader_goes_what_was_written_last() -> None:
    every_s = 0.005

    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        log = log_of(world, 1)
        began = world.loop.now
        for at in range(200):
            await asyncio.sleep(max(began + at * every_s - world.loop.now, 0))
            await world.append(1, b"%d" % at, acks=1)
        written = log.log_end_offset
        world.kill(1)
        world.change(leader=2, isr=(2,))
        await world.until(lambda: world.nodes[2].partition().is_leader)
        lost = written - log_of(world, 2).log_end_offset
        assert 0 < lost * every_s <= 0.06, "the interval, a put, a pointer and a get"

    run(main)
