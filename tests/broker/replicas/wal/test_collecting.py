"""Floors and turns: objects of the WAL tier go again, whoever wrote them and whoever leads now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.config.values import ResourceType
from broker.control.internal_topics import REMOTE_WAL_LOG_METADATA
from broker.control.metadata_records import ConfigChanged, ControllerElected
from broker.replicas.wal.collecting import (
    LEARN_S,
    PAGES_A_ROUND,
    STOP_S,
    CurrentFloors,
    Said,
    WalCollecting,
)
from remote.keys import WAL, Stream, WalPart, floors_key, parse_wal_key, wal_key
from remote.store.object_store import StoreError
from remote.wal.combined_object import ObjectKind, Place, Row, decode_table
from remote.wal.floors import Floor, decode_floors
from remote.wal.seal import StreamPage
from storage.epochs import EpochCache
from tests.broker.replication_driver import Replicas
from tests.remote.wal.slow_store import seal_at

ENABLE = {"remote_wal_storage_enable": "true"}


def run(main: Callable[[Replicas], Awaitable[None]], count: int = 2) -> None:
    async def whole(world: Replicas) -> None:
        world.create(1, topic=REMOTE_WAL_LOG_METADATA)
        await main(world)

    Replicas(count).run(whole)


def collecting(world: Replicas, node_id: int) -> WalCollecting:
    wal = world.nodes[node_id].components.wal
    assert wal is not None
    return wal.collecting


async def rounds(world: Replicas, *node_ids: int, count: int = 1) -> None:
    for _ in range(count):
        for node_id in node_ids:
            await world.nodes[node_id].run(collecting(world, node_id).take_round())
        await asyncio.sleep(30)


async def store_some(world: Replicas, node_id: int, count: int, topic: str = "t") -> None:
    """Append so that each append has an object of its own."""
    for number in range(count):
        await world.append(node_id, b"%d" % number, acks=1, topic=topic)
        partition = world.nodes[node_id].partition(topic=topic)
        await world.until(
            lambda partition=partition: (
                partition.tail is not None and partition.tail.stored_to == partition.log.log_end_offset
            )
        )


def streams(world: Replicas) -> dict[Stream, list[int]]:
    """The numbers of the objects with slices, by stream."""
    found: dict[Stream, list[int]] = {}
    for key, data in sorted(world.store.objects.items()):
        named = parse_wal_key(key) if key.startswith(WAL) else None
        if named and named.part is WalPart.OBJECT and decode_table(data).head.kind is ObjectKind.SLICES:
            found.setdefault(named.stream, []).append(named.seq)
    return found


def all_rows(world: Replicas) -> list[Row]:
    """In the order of their places."""
    return [
        row
        for stream, numbers in streams(world).items()
        for seq in numbers
        for row in decode_table(world.store.objects[wal_key(stream, seq)]).rows
    ]


def objects(world: Replicas) -> int:
    return sum(map(len, streams(world).values()))


def floors(world: Replicas, node_id: int) -> list[tuple[int, int, int]]:
    said = decode_floors(world.store.objects[floors_key(node_id)])
    return [(row.leader_epoch, row.floor, row.stored_to) for row in said.rows]


async def start_over(world: Replicas, node_id: int, at: int) -> None:
    """As DeleteRecords does on the leader."""
    log = world.nodes[node_id].partition().log
    await world.until(lambda: log.high_watermark >= at)
    log.advance_log_start(at)


@pytest.mark.requirement("X-6", "1176-44", "1176-45")
def test_what_is_below_the_log_start_goes() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 5)
        await rounds(world, 1, 2, count=5)
        assert objects(world) == 5, "without a cold tier what the log has is kept"
        assert floors(world, 1) == [(0, 0, 5)]
        await start_over(world, 1, 3)
        await rounds(world, 1, count=8)
        assert floors(world, 1) == [(0, 3, 5)]
        tail = world.nodes[1].partition().tail
        assert tail is not None and tail.floor == 3
        assert world.nodes[1].components.wal_stats.held_back_objects == 2
        assert list(streams(world).values()) == [[3, 4]]
        assert world.nodes[1].components.wal_stats.unreferenced_bytes == 0

    run(main)


@pytest.mark.requirement("1176-44", "1176-45")
def test_a_partition_of_which_little_is_needed_holds_back_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.wal.moves.OBJECTS_MIN", 5)

    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        world.create(1, 2, topic="idle", **ENABLE)
        await store_some(world, 1, 2, topic="idle")
        await store_some(world, 1, 5)
        await start_over(world, 1, 5)
        await rounds(world, 1, count=10)
        ((stream, numbers),) = streams(world).items()
        assert numbers == [7], "one object has all of it"
        rows = all_rows(world)
        assert [(row.topic_id, row.start, row.end) for row in rows] == [(world.id_of("idle"), 0, 2)]
        tail = world.nodes[1].partition(topic="idle").tail
        assert tail is not None and tail.moved == Place(stream, 7)
        assert world.nodes[1].components.wal_stats.moves == 1, "nothing came after it"

    run(main)


@pytest.mark.requirement("1176-44", "1176-48")
def test_a_partition_of_which_little_is_needed_keeps_no_stream_of_a_gone_writer() -> None:
    async def main(world: Replicas) -> None:
        world.controller.publish(ControllerElected(controller_id=2, controller_epoch=1))
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 4)
        (gone,) = streams(world)
        await world.until(
            lambda: all(each.end_offset == 4 for each in world.nodes[1].partition().followers())
        )
        world.kill(1)
        world.change(leader=2, isr=(2,))
        await world.start(1)
        await rounds(world, 2, count=10)
        ((stream, numbers),) = streams(world).items()
        assert stream.node_id == 2 and gone not in streams(world)
        assert [(row.start, row.end) for row in all_rows(world)] == [(0, 4)] and len(numbers) == 1

    run(main)


@pytest.mark.requirement("1176-44", "1176-47", "X-2")
def test_with_a_cold_tier_what_it_has_goes_once_the_replicas_have_it_too() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 5)
        partition = world.nodes[1].partition()
        await world.until(lambda: all(each.end_offset == 5 for each in partition.followers()))
        partition.log.tiered_end = 4
        await rounds(world, 1)
        assert floors(world, 1) == [(0, 4, 5)]
        world.kill(2, is_noticed=False)
        await store_some(world, 1, 5)
        partition.log.tiered_end = 9
        await rounds(world, 1)
        assert floors(world, 1) == [(0, 5, 10)], "the other has no more than that"
        await rounds(world, 1, count=21)
        assert floors(world, 1) == [(0, 9, 10)], "it was not heard from for ten minutes"

    run(main)


@pytest.mark.requirement("X-6")
def test_objects_of_a_deleted_topic_go() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        world.create(1, 2, topic="other", **ENABLE)
        await store_some(world, 1, 3)
        world.delete()
        await rounds(world, 1, count=6)
        assert objects(world) == 0

    run(main)


def test_objects_of_a_topic_that_left_the_tier_go() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 3)
        world.controller.publish(
            ConfigChanged(
                resource_type=ResourceType.TOPIC,
                resource_name="t",
                name="remote.wal.storage.enable",
                value="false",
            )
        )
        # nobody uses the tier any more: it takes a while until somebody looks whether something is there
        await rounds(world, 1, count=20)
        assert objects(world) == 0

    run(main)


@pytest.mark.requirement("1176-48")
def test_the_controller_ends_and_collects_what_a_gone_writer_left() -> None:
    async def main(world: Replicas) -> None:
        world.controller.publish(ControllerElected(controller_id=2, controller_epoch=1))
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 4)
        (stream,) = streams(world)
        told: list[tuple[Stream, bool]] = []
        collecting(world, 2).on_gone.append(lambda *each: told.append(each))
        await rounds(world, 2)
        assert told == [], "it is there"
        world.kill(1)
        world.change(leader=2, isr=(2,))
        await rounds(world, 2, count=6)
        assert told == [], "fenced is not gone: it may come back in the same epoch"
        await world.start(1)
        await rounds(world, 2, count=2)
        assert told == [(stream, False)]
        seals = [
            parse_wal_key(key)
            for key, data in world.store.objects.items()
            if (named := parse_wal_key(key))
            and named.part is WalPart.OBJECT
            and decode_table(data).head.kind is ObjectKind.SEAL
        ]
        assert seals == [(stream, WalPart.OBJECT, 4)]
        assert streams(world).get(stream) == [0, 1, 2, 3], "the new leader needs them"
        await start_over(world, 2, 4)
        await rounds(world, 2, count=8)
        assert stream not in streams(world)

    run(main)


def test_what_a_deposed_leader_said_does_not_count() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        said = Floor(world.id_of("t"), 0, 0, 0, 100, 100)
        view = CurrentFloors(lambda: world.controller.image)
        view.said = {1: Said(3, {(said.topic_id, 0): said})}
        assert view.floor(said.topic_id, 0, 3) == said
        assert view.floor(said.topic_id, 0, 4) is None, "what is newer may be stored anew"
        world.change(leader=2)
        assert view.floor(said.topic_id, 0) is None, "another leads"
        world.change(leader=1)
        assert view.floor(said.topic_id, 0) is None, "it leads in another epoch"
        assert view.floor(said.topic_id, 1) is None
        assert view.has_topic(said.topic_id) and view.metadata_seq == world.controller.image.seq
        world.delete()
        assert not view.has_topic(said.topic_id)

    run(main)


def test_a_collector_with_an_old_image_takes_nothing_of_what_is_new() -> None:
    """Its leader may store for topics, and in epochs, that it does not know of."""

    async def main(world: Replicas) -> None:
        world.hold(2)
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 3)
        (stream,) = streams(world)
        collector = collecting(world, 2).collector
        for _ in range(5):
            await world.nodes[2].run(collector.collect(stream, 3, is_sealed=False))
            await asyncio.sleep(30)
        assert objects(world) == 3
        assert collector.unreferenced_bytes == 0
        world.let_go(2)

    run(main)


@pytest.mark.requirement("1176-18")
def test_a_new_leader_learns_how_far_its_predecessor_had_stored() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 4)
        await rounds(world, 1, 2)
        epochs = EpochCache([(0, 0), (1, 3)])
        known = collecting(world, 2).known_stored
        assert known(world.id_of("t"), 0, epochs) == 3
        assert known(world.id_of("t"), 0, EpochCache([(0, 0)])) == 4
        assert known(world.id_of("t"), 1, epochs) is None

    run(main)


@pytest.mark.requirement("1176-18")
@pytest.mark.parametrize("is_away", [False, True])
def test_a_broker_that_leads_at_once_after_its_start_goes_on_where_it_had_stored(
    is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(key: str) -> bytes:
        raise StoreError("503")

    async def main(world: Replicas) -> None:
        world.create(1, **ENABLE)
        await store_some(world, 1, 4)
        await rounds(world, 1)
        world.kill(1)
        began = world.loop.now
        with monkeypatch.context() as away:
            if is_away:
                away.setattr(world.store, "get", refused)
            await world.start(1)
        assert (world.loop.now - began >= LEARN_S) is is_away
        assert world.loop.now - began < LEARN_S + 1.0
        await store_some(world, 1, 1)
        starts = [row.start for row in all_rows(world) if row.topic_id == world.id_of("t")]
        assert starts[:4] == [0, 1, 2, 3]
        assert starts[4] == (0 if is_away else 4)

    run(main)


def test_at_a_stop_it_is_said_how_far_all_is_stored_and_what_was_said_before_others_led() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        world.create(1, 2, topic="moves", **ENABLE)
        await store_some(world, 1, 2, topic="moves")
        await store_some(world, 1, 2)
        await rounds(world, 1)
        await store_some(world, 1, 3)
        world.change(leader=2, topic="moves")
        await world.until(lambda: not world.nodes[1].partition(topic="moves").is_leader)
        node = world.nodes[1]
        await node.run(collecting(world, 1).stop())
        said = decode_floors(world.store.objects[floors_key(1)])
        ends = {(row.topic_id, row.leader_epoch): row.stored_to for row in said.rows}
        assert ends == {(world.id_of("t"), 0): 5, (world.id_of("moves"), 0): 2}
        await store_some(world, 1, 1)
        await rounds(world, 1)
        assert decode_floors(world.store.objects[floors_key(1)]) == said, "there are no rounds any more"

    run(main)


@pytest.mark.parametrize("round_hangs", [False, True])
def test_a_stop_waits_for_a_slow_store_no_longer_than_it_may(round_hangs: bool) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, **ENABLE)
        await store_some(world, 1, 2)
        await rounds(world, 1)
        await store_some(world, 1, 1)
        node = world.nodes[1]
        world.store.hangs_at = "floors"
        if round_hangs:
            node.process.spawn(collecting(world, 1)._put_floors())
            await asyncio.sleep(1.0)
        began = world.loop.now
        await node.run(collecting(world, 1).stop())
        assert world.loop.now - began == pytest.approx(STOP_S, abs=0.01)

    run(main)


def test_a_store_that_is_away_costs_turns_alone() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 3)
        await start_over(world, 1, 3)
        world.store.is_away = True
        await rounds(world, 1, 2, count=5)
        assert objects(world) == 3
        world.store.is_away = False
        await rounds(world, 1, 2, count=6)
        assert objects(world) == 0

    run(main)


def test_a_stream_with_a_hole_keeps_no_other_from_its_turn() -> None:
    async def main(world: Replicas) -> None:
        world.controller.publish(ControllerElected(controller_id=2, controller_epoch=1))
        world.create(1, 2, **ENABLE)
        world.create(2, 1, topic="other", **ENABLE)
        await store_some(world, 1, 3)
        await store_some(world, 2, 3, topic="other")
        (theirs,) = [stream for stream in streams(world) if stream.node_id == 1]
        (ours,) = [stream for stream in streams(world) if stream.node_id == 2]
        await world.store.delete(wal_key(ours, 0))
        world.kill(1)
        world.change(leader=2, isr=(2,))
        await world.start(1)
        await start_over(world, 2, 3)
        await rounds(world, 2, count=10)
        assert theirs not in streams(world)
        assert streams(world)[ours] == [1, 2]

    run(main)


def test_a_look_at_many_streams_takes_several_rounds_and_comes_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remote.wal.seal.STREAM_PAGE_KEYS", 8)
    count = 8 * PAGES_A_ROUND * 2 + 5

    async def main(world: Replicas) -> None:
        world.controller.publish(ControllerElected(controller_id=1, controller_epoch=1))
        world.create(1, 2, **ENABLE)
        for epoch in range(count):
            place = Place(Stream(9, 1, epoch), 0)
            await world.store.put(wal_key(*place), seal_at(place))
        part = collecting(world, 1)
        page, pages = part.sealer.stream_page, 0

        async def counted(prefix: str, after: str) -> StreamPage:
            nonlocal pages
            pages += prefix == WAL
            return await page(prefix, after)

        monkeypatch.setattr(part.sealer, "stream_page", counted)
        for seen in (1, 2):
            await rounds(world, 1)
            assert pages == seen * PAGES_A_ROUND
            assert len(part._gone) < count
        await rounds(world, 1)
        assert {stream.generation for stream in part._gone} >= set(range(count))
        pages = 0
        await rounds(world, 1)
        assert pages == 0, "another look is for later"

    run(main)


def test_many_generations_of_a_gone_writer_are_ended_with_a_few_requests_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: Replicas) -> None:
        world.controller.publish(ControllerElected(controller_id=1, controller_epoch=1))
        world.create(1, 2, **ENABLE)
        for generation in range(30):
            place = Place(Stream(9, 1, generation), 0)
            await world.store.put(wal_key(*place), seal_at(place))
        asked = 0
        really = world.store.list

        async def counting(*args: Any, **how: Any) -> Any:
            nonlocal asked
            asked += 1
            return await really(*args, **how)

        monkeypatch.setattr(world.store, "list", counting)
        await rounds(world, 1)
        assert 30 <= asked < 30 * 12

    run(main)


def test_a_bucket_without_the_tier_is_left_alone() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await rounds(world, 1, 2, count=15)
        assert not world.store.objects

    run(main)


def configure(world: Replicas, name: str, value: str) -> None:
    world.controller.publish(
        ConfigChanged(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value)
    )


def offsets(world: Replicas) -> set[int]:
    """The offsets that the store has."""
    tables = [
        decode_table(world.store.objects[wal_key(stream, seq)])
        for stream, seqs in streams(world).items()
        for seq in seqs
    ]
    return {offset for table in tables for row in table.rows for offset in range(row.start, row.end)}


@pytest.mark.requirement("1176-44", "1176-18")
@pytest.mark.parametrize("leader", [1, 2])
def test_a_topic_that_comes_back_to_the_tier_is_stored_from_its_start_on(leader: int) -> None:
    """What was stored before it left is collected."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 3)
        await world.agree(1, 2)
        await rounds(world, 1, 2)
        configure(world, "remote.wal.storage.enable", "false")
        await rounds(world, 1, 2, count=20)
        assert objects(world) == 0
        configure(world, "remote.wal.storage.enable", "true")
        if leader == 2:
            world.change(leader=2)
        await store_some(world, leader, 2)
        assert offsets(world) == {0, 1, 2, 3, 4}, "before a round that would store once more what is needed"
        await rounds(world, 1, 2, count=8)
        assert offsets(world) == {0, 1, 2, 3, 4}

    run(main)


@pytest.mark.requirement("1176-44")
def test_what_is_stored_again_is_not_judged_by_what_was_said_before() -> None:
    """One that collects for others may have read the floors long ago."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 3)
        configure(world, "remote.wal.storage.enable", "false")
        await rounds(world, 1, 2, count=20)
        configure(world, "remote.wal.storage.enable", "true")
        await store_some(world, 1, 1)
        (stream,) = streams(world)
        late = collecting(world, 2)
        said = late.floors.floor(world.id_of("t"), 0)
        assert said is not None and said.floor == 3, "from when the topic was not stored"
        for _ in range(10):
            await world.nodes[2].run(late.collector.collect(stream, 4, is_sealed=False))
            await asyncio.sleep(30)
        assert offsets(world) == {0, 1, 2, 3}

    run(main)


@pytest.mark.requirement("1176-44", "X-2")
def test_a_log_that_left_the_cold_tier_is_stored_again() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await store_some(world, 1, 4)
        partition = world.nodes[1].partition()
        await world.until(lambda: all(each.end_offset == 4 for each in partition.followers()))
        partition.log.tiered_end = 3
        await rounds(world, 1, count=8)
        assert offsets(world) == {3}
        partition.log.tiered_end = 0
        configure(world, "remote.storage.enable", "false")
        await rounds(world, 1, count=8)
        assert offsets(world) == {0, 1, 2, 3}

    run(main)
