"""What clients may read of replicas, wherever they ask."""

from __future__ import annotations

import asyncio

from broker.config.checks import RACK_AWARE_SELECTOR
from protocol.errors import ErrorCode
from protocol.records import iter_batches
from tests.broker.replication_driver import Replicas, log_of


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
