"""Brokers that tell what they store: batched, by nobody awaited, all of it at last, in bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from broker.coordinators.wal.leader import TOPIC
from protocol.records import iter_batches
from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.journal import ObjectState, differences
from tests.broker.coordinators.wal.wal_driver import (
    bound,
    bucket_of,
    create,
    delete,
    is_told,
    journal_of,
    put,
    store,
    stream_of,
    telling_of,
)
from tests.broker.replication_driver import Replicas


def batches(world: Replicas, node_id: int) -> int:
    chunks = world.nodes[node_id].replicas.read_all(TOPIC, 0)
    return sum(1 for chunk in chunks for _ in iter_batches(chunk))


@pytest.mark.requirement("1176-22", "1176-23", "1176-26", "1176-28")
@pytest.mark.parametrize("node_id", [1, 2])
def test_each_object_is_one_record_and_records_come_in_batches(node_id: int) -> None:
    async def main(world: Replicas) -> None:
        create(world)
        stream = stream_of(world, node_id)
        world.nodes[node_id].here(telling_of(world, node_id).stream_changed, stream, True)
        for seq in range(50):
            store(world, node_id, seq)
            await asyncio.sleep(0.02)
        world.nodes[node_id].here(telling_of(world, node_id).stream_changed, stream, False)
        await world.until(lambda: journal_of(world, 1).streams.get(stream) is ObjectState.COPY_FINISHED)
        await world.agree(1, 2, 3, topic=TOPIC)
        assert len(world.nodes[1].values(topic=TOPIC)) == 52
        assert batches(world, 1) <= 12
        journal = journal_of(world, 1)
        assert differences(journal, bucket_of(world), journal) == []
        assert len(journal.objects) == 50
        stats = world.nodes[node_id].components.wal_stats
        assert (stats.events, stats.events_waiting) == (52, 0)

    Replicas(3).run(main)


@pytest.mark.requirement("1176-27", "1176-44")
def test_what_is_deleted_leaves_nothing() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        places = store(world, 2, *range(10))
        await world.until(lambda: is_told(world, 1))
        world.nodes[2].here(telling_of(world, 2).deleted, places[:4], False)
        going = set(places[:4])
        await world.until(lambda: {p for p in going if p in journal_of(world, 1).objects} == going)
        await world.until(
            lambda: [place.seq for place, _ in journal_of(world, 1).finished()] == [4, 5, 6, 7, 8, 9]
        )
        delete(world, 2, places[:4])
        await world.until(lambda: journal_of(world, 1).objects.keys() == set(places[4:]))

    Replicas(3).run(main)


@pytest.mark.requirement("1176-22", "1176-28")
def test_a_topic_that_is_away_for_a_minute_loses_nothing_and_holds_nothing_up() -> None:
    async def main(world: Replicas) -> None:
        create(world, 3)
        store(world, 1, 0)
        await world.until(lambda: is_told(world, 3))
        untold = bound(world, 1, 20_000)
        world.kill(3)
        most = 0
        for seq in range(1, 1201):
            places = store(world, 1, seq)
            if seq % 300 == 0:
                delete(world, 1, [Place(places[0].stream, each) for each in range(seq - 300, seq - 50)])
            await asyncio.sleep(0.05)
            most = max(most, untold.bytes)
        assert 10_000 < most <= 20_000 + 1_100, "one object more is read at a time"
        assert world.nodes[1].components.wal_stats.events_waiting > 200
        await world.start(3)
        world.change(leader=3, isr=(3,), topic=TOPIC)
        await world.until(lambda: is_told(world, 3) and not untold)
        journal = journal_of(world, 3)
        assert differences(journal, bucket_of(world), journal) == []
        assert world.nodes[1].components.wal_stats.events_waiting == 0

    Replicas(3).run(main)


@pytest.mark.requirement("1176-22")
def test_leaders_of_the_topic_come_and_go_while_it_is_written() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        for seq in range(120):
            for node_id in (1, 2, 3):
                store(world, node_id, seq)
            if seq % 30 == 10:
                world.change(leader=seq // 30 % 3 + 1, topic=TOPIC)
            await asyncio.sleep(0.02)
        await world.until(lambda: is_told(world, 1))
        await world.agree(1, 2, 3, topic=TOPIC)

    Replicas(3, seed=3).run(main)


def test_a_store_that_is_away_holds_up_what_was_forgotten_and_no_other_stream() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        bound(world, 2, 0)
        world.store.is_away = True
        stream = stream_of(world, 2)
        store(world, 2, 0, 1)
        telling = telling_of(world, 2)
        world.nodes[2].here(telling.stream_changed, Stream(9, 1, 0), True)
        await world.until(lambda: Stream(9, 1, 0) in journal_of(world, 1).streams)
        assert Place(stream, 0) not in journal_of(world, 1).objects
        world.store.is_away = False
        await world.until(lambda: is_told(world, 1))

    Replicas(3).run(main)


def test_an_object_too_large_for_a_record_is_told_without_its_entries() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3, topic=TOPIC, max_message_bytes="3000")
        stream = stream_of(world, 2)
        small = put(world, stream, 0)
        world.nodes[2].here(telling_of(world, 2).counted, small)
        large = put(world, stream, 1)
        rows = tuple(large.rows) * 20
        world.nodes[2].here(telling_of(world, 2).counted, large._replace(rows=rows))
        await world.until(lambda: is_told(world, 1))
        told = dict(journal_of(world, 1).finished())
        assert [len(row.entries) for row in told.values()] == [2, 0]

    Replicas(3).run(main)


def test_what_a_broker_was_in_an_earlier_life_it_does_not_tell() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        old = Stream(2, stream_of(world, 2).broker_epoch - 1, 0)
        telling = telling_of(world, 2)
        world.nodes[2].here(telling.counted, put(world, old, 0))
        store(world, 2, 0)
        await world.until(lambda: Place(stream_of(world, 2), 0) in journal_of(world, 1).objects)
        await world.until(lambda: not telling._untold)
        assert Place(old, 0) not in journal_of(world, 1).objects

    Replicas(3).run(main)
