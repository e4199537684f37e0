"""What a leader stores of its partitions, through changes of roles and configurations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from broker.config.values import ResourceType
from broker.control.metadata_records import BrokerFenced, ConfigChanged
from broker.replicas.wal.leading import JUDGED_EVERY_S, SPACING_MAX_S, ClusterWriter, Led, WalLeading
from protocol.errors import ErrorCode, KafkaError
from protocol.records import iter_batches, iter_records
from remote.keys import WAL, WalPart, parse_wal_key, wal_key
from remote.store.object_store import PutResult, StoreError
from remote.wal.combined_object import (
    Head,
    ObjectKind,
    Place,
    Row,
    check_slice,
    decode_table,
    encode_table,
)
from remote.wal.extents import FORGET_AT
from remote.wal.tail import DIRECT_AFTER_S
from tests.broker.replication_driver import Node, Replicas

ENABLE = {"remote_wal_storage_enable": "true"}


def run(main: Callable[[Replicas], Awaitable[None]], count: int = 3, **properties: str) -> None:
    Replicas(count, **properties).run(main)


def configure(world: Replicas, name: str, value: str | None, topic: str = "t") -> None:
    world.controller.publish(
        ConfigChanged(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)
    )


def slices(world: Replicas, node_id: int, topic: str = "t") -> Iterator[tuple[Row, bytes]]:
    """Every slice of the topic in the streams of a broker, in the order of their places."""
    for key, data in sorted(world.store.objects.items()):
        name = parse_wal_key(key) if key.startswith(WAL) else None
        if name is None or name.part is not WalPart.OBJECT or name.stream.node_id != node_id:
            continue
        table = decode_table(data)
        assert table.head.place == (name.stream, name.seq)
        for row in table.rows:
            if row.topic_id == world.id_of(topic):
                body = data[row.position : row.position + row.size]
                check_slice(row, body)
                yield row, body


def stored(world: Replicas, node_id: int, topic: str = "t") -> list[bytes | None]:
    """The values that the store has of the topic, each slice beginning where the one before it ends."""
    values: list[bytes | None] = []
    end = -1
    for row, body in slices(world, node_id, topic):
        assert end in (-1, row.start), (end, row)
        end = row.end
        values += [each.value for at, header in iter_batches(body) for each in iter_records(body, at, header)]
    return values


async def until_stored(world: Replicas, node_id: int, topic: str = "t") -> None:
    partition = world.nodes[node_id].partition(topic=topic)
    await world.until(
        lambda: partition.tail is not None and partition.tail.stored_to == partition.log.log_end_offset
    )


def refuse_puts(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the store take no object, until the patch is undone."""

    async def refused(key: str, data: bytes) -> PutResult:
        raise StoreError("503")

    monkeypatch.setattr(world.store, "put_if_absent", refused)


def has_tail(world: Replicas, node_id: int, topic: str = "t") -> bool:
    return world.nodes[node_id].partition(topic=topic).tail is not None


@pytest.mark.requirement("1176-16", "1176-19", "1176-43")
def test_what_is_appended_is_stored_within_the_interval_and_followers_are_pointed_to_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a", b"b", acks=1)
        await until_stored(world, 1)
        await world.append(1, b"c", acks=1)
        await until_stored(world, 1)
        assert stored(world, 1) == [b"a", b"b", b"c"]
        tail = world.nodes[1].partition().tail
        assert tail is not None
        assert [(each.start, each.end) for each in tail.extents] == [(0, 2), (2, 3)]
        assert world.nodes[1].partition().stored_to == 3

    run(main, 2)


def test_a_leader_remembers_no_more_slices_than_its_followers_may_still_read() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        for _ in range(2 * FORGET_AT):
            await world.append(1, b"x")
        await until_stored(world, 1)
        tail = world.nodes[1].partition().tail
        assert tail is not None
        assert len(tail.extents) <= FORGET_AT + 1
        world.fabric.cut("node1", "node2")
        for _ in range(FORGET_AT + 10):
            await world.append(1, b"x", acks=1)
            await until_stored(world, 1)
        assert len(tail.extents) >= FORGET_AT + 10, "the follower lacks them"
        world.fabric.heal()
        await world.agree(1, 2)

    run(main, 2)


@pytest.mark.requirement("1176-18")
def test_a_new_leader_goes_on_where_its_own_hydration_ended_and_the_old_one_stops() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a", b"b")
        await world.append(1, b"c")
        await world.agree(1, 2)
        await world.until(lambda: world.nodes[2].partition().stored_to == 3)
        world.change(leader=2)
        await world.append(2, b"d")
        await until_stored(world, 2)
        assert not has_tail(world, 1)
        assert (stored(world, 1), stored(world, 2)) == ([b"a", b"b", b"c"], [b"d"])
        (row, _body), *_ = slices(world, 2)
        assert (row.start, row.leader_epoch, row.epoch_start, row.batch_epoch) == (3, 1, 3, 1)

    run(main, 2)


@pytest.mark.requirement("1176-18")
def test_a_new_leader_stores_what_the_old_one_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a")
        await world.until(lambda: world.nodes[2].partition().stored_to == 1)
        with monkeypatch.context() as away:
            refuse_puts(world, away)
            await world.append(1, b"b")  # the follower is sent it in the end
            await world.append(1, b"c")
            world.change(leader=2)
            await world.append(2, b"d", acks=1)
        await until_stored(world, 2)
        assert stored(world, 2) == [b"b", b"c", b"d"]
        assert [(row.batch_epoch, row.epoch_start) for row, _ in slices(world, 2)] == [(0, 3), (1, 3)]

    run(main, 2)


@pytest.mark.requirement("1176-18")
def test_a_leader_stores_again_what_one_of_whom_it_has_nothing_may_have_stored_otherwise() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a", b"b")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"c", acks=1)
        await until_stored(world, 1)
        world.change(leader=2)
        await world.append(2, b"x", acks=1)
        await until_stored(world, 2)
        world.change(leader=1)
        await until_stored(world, 1)
        newest = {row.start: row for node in (2, 1) for row, _ in slices(world, node) if row.end == 3}
        assert (newest[2].leader_epoch, newest[2].batch_epoch) == (2, 0), "x is not of the log"
        assert stored(world, 2) == [b"x"]
        assert world.nodes[1].values() == [b"a", b"b", b"c"]
        assert [row.start for row, _ in slices(world, 1) if row.leader_epoch == 2] == [2], "no more than that"

    run(main, 2)


@pytest.mark.requirement("1176-30", "1176-31", "1176-59")
def test_acks_1_waits_for_no_store_and_followers_are_sent_what_waits_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        stats = world.nodes[1].components.wal_stats
        with monkeypatch.context() as away:
            refuse_puts(world, away)
            at = world.loop.now
            await world.append(1, b"a", acks=1)
            assert world.loop.now - at < 0.001
            tail = world.nodes[1].partition().tail
            assert tail is not None
            await asyncio.sleep(DIRECT_AFTER_S - 0.1)
            assert not tail.is_direct
            assert world.nodes[2].partition().log.log_end_offset == 0
            await world.agree(1, 2)
            assert world.loop.now - at < DIRECT_AFTER_S + 2 * JUDGED_EVERY_S + 0.5
            assert (tail.is_direct, stats.mode_changes) == (True, 1)
        await until_stored(world, 1)
        await world.until(lambda: not tail.is_direct)
        assert stats.mode_changes == 2
        assert stored(world, 1) == [b"a"]

    run(main, 2)


@pytest.mark.requirement("1176-31")
def test_what_is_appended_until_a_cut_costs_no_note_and_is_told_to_be_no_younger_than_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        partition = world.nodes[1].partition()
        with monkeypatch.context() as away:
            refuse_puts(world, away)
            appended = []
            for _ in range(40):
                await world.append(1, b"a", acks=1)
                appended.append(world.loop.now)
                await asyncio.sleep(0.037)
            assert not any(isinstance(each, Led) for each in partition.replica_waiters)
            await asyncio.sleep(2 * JUDGED_EVERY_S)
            tail = partition.tail
            assert tail is not None
            for offset, at in enumerate(appended):
                told = tail.end_times.appended_at(offset)
                assert told is not None
                assert at - SPACING_MAX_S - 2 * JUDGED_EVERY_S <= told <= at
        await until_stored(world, 1)
        assert any(isinstance(each, Led) for each in partition.replica_waiters)
        assert stored(world, 1) == [b"a"] * 40

    run(main, 2)


@pytest.mark.requirement("1176-32")
def test_a_producer_that_waits_for_followers_hurries_what_was_noted_before() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a", acks=1)
        await until_stored(world, 1)
        at = world.loop.now
        await world.append(1, b"b", acks=1)
        await asyncio.sleep(0.01)
        await world.append(1, b"c", acks=-1)
        assert world.loop.now - at < 0.3

    run(main, 2, remote_wal_log_manager_combiner_task_interval_ms="400")


def test_a_topic_may_begin_end_and_begin_again_to_use_the_tier_while_it_is_written() -> None:
    async def main(world: Replicas) -> None:
        name = "remote.wal.storage.enable"
        world.create(1, 2)
        await world.append(1, b"a", acks=1)
        assert not has_tail(world, 1)
        for value, begin in (("true", 0), ("false", 1), ("true", 2), (None, 3), ("true", 4)):
            await world.agree(1, 2)
            configure(world, name, value)
            await world.append(1, b"%d" % begin, acks=1)
            assert has_tail(world, 1) is (value == "true")
            if value == "true":
                await until_stored(world, 1)
        ends: list[int] = []
        for row, _body in slices(world, 1):
            if row.start == 0:
                ends.append(0)  # what it had stored before may have been collected
            assert row.start == ends[-1]
            ends[-1] = row.end
        assert ends == [2, 4, 6]
        await world.agree(1, 2)

    run(main, 2)


def test_offsets_of_groups_are_stored_while_a_topic_uses_the_tier_and_its_own_metadata_never() -> None:
    async def main(world: Replicas) -> None:
        offsets, metadata = "__consumer_offsets", "__remote_wal_log_metadata"
        world.create(1, topic=offsets)
        world.create(1, topic=metadata, **ENABLE)
        assert not has_tail(world, 1, offsets)
        world.create(1, 2, **ENABLE)
        assert has_tail(world, 1, offsets)
        assert not has_tail(world, 1, metadata)
        parts = world.nodes[1].components.wal_parts
        held = [world.nodes[1].partition(topic=each) for each in ("t", offsets, metadata)]
        assert [parts.hydrates(each) for each in held] == [True, False, False]
        world.delete()
        assert not has_tail(world, 1, offsets)

    run(main, 2)


def test_a_deleted_topic_leaves_nothing_to_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: Replicas) -> None:
        world.create(1, **ENABLE)
        partition = world.nodes[1].partition()
        with monkeypatch.context() as away:
            refuse_puts(world, away)
            await world.append(1, b"a", acks=1)
            world.delete()
        wal_tier = world.nodes[1].components.wal
        assert wal_tier is not None
        leading = wal_tier.leading
        assert partition.tail is None and not list(leading.tails()) and not partition.replica_waiters
        await asyncio.sleep(1.0)

    run(main, 1)


def test_who_starts_anew_goes_on_where_the_store_is_known_to_have_everything() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, **ENABLE)
        await world.append(1, b"a")
        await world.append(1, b"b")
        await until_stored(world, 1)

        def know(node: Node) -> None:
            assert node.components.wal is not None
            node.components.wal.leading.known_stored = lambda topic_id, index, epochs: 1

        world.on_build.append(know)
        world.kill(1)
        await world.start(1)
        world.change(leader=1)
        await world.append(1, b"c")
        await until_stored(world, 1)
        begun = [row.start for row, _ in slices(world, 1) if row.leader_epoch > 0]
        assert begun[0] == 1

    run(main, 1)


def test_a_leader_that_starts_anew_in_its_epoch_says_where_that_began() -> None:
    """What an older epoch has from there on is void, and it may have come in between."""

    async def main(world: Replicas) -> None:
        world.create(1, **ENABLE)
        world.change(leader=1)
        await world.append(1, b"a")
        await world.append(1, b"b")
        world.change(leader=1)
        await world.append(1, b"c")
        await until_stored(world, 1)
        epoch = world.nodes[1].partition().leader_epoch
        world.kill(1, is_noticed=False)
        await world.start(1, is_clean=True)
        await world.append(1, b"d")
        await until_stored(world, 1)
        partition = world.nodes[1].partition()
        assert partition.leader_epoch == epoch
        rows = [row for row, _ in slices(world, 1) if row.leader_epoch == epoch]
        assert rows[-1].end == 4
        assert {row.epoch_start for row in rows} == {dict(partition.log.epochs.entries())[epoch]}

    run(main, 1)


def test_a_sealed_broker_goes_on_when_its_image_has_come_to_who_asked_for_the_seal() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, **ENABLE)
        await world.append(1, b"a")
        await until_stored(world, 1)
        wal = world.nodes[1].components.wal
        assert wal is not None and wal.uploader.stream is not None
        place = Place(wal.uploader.stream, 1)
        head = Head(
            kind=ObjectKind.SEAL,
            cluster_id="",
            place=place,
            put_id=bytes(16),
            metadata_seq=len(world.controller.log) + 1,
            writer=(2, 1),
            written_ms=0,
        )
        world.store.objects[wal_key(*place)] = encode_table(head, ())
        await world.append(1, b"b")
        await asyncio.sleep(5.0)
        assert stored(world, 1) == [b"a"]
        configure(world, "retention.ms", "1000000", topic="other")
        await until_stored(world, 1)
        assert stored(world, 1) == [b"a", b"b"]
        assert [row.previous for row, _ in slices(world, 1)] == [None, Place(place.stream, 0)]

    run(main, 1)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_fenced_broker_opens_no_stream(fenced: bool) -> None:
    async def main(world: Replicas) -> None:
        image = world.nodes[1].member.image
        epoch = image.brokers[1].epoch
        world.controller.publish(BrokerFenced(broker_id=1, broker_epoch=epoch, fenced=fenced))
        cluster: Any = world.nodes[1].member
        writer = ClusterWriter(cluster)
        assert writer.may_reopen(image.seq) is not fenced
        assert not writer.may_reopen(image.seq + 1)

    run(main, 1)


@pytest.mark.requirement("1176-30")
def test_many_partitions_are_judged_in_portions_and_each_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: dict[float, int] = {}
    judge = WalLeading._judge

    def counted(leading: WalLeading, led: Led, now: float) -> None:
        judged[now] = judged.get(now, 0) + 1
        judge(leading, led, now)

    async def main(world: Replicas) -> None:
        topics = [f"t{number}" for number in range(7)]
        refuse_puts(world, monkeypatch)
        for topic in topics:
            world.create(1, 2, topic=topic, **ENABLE)
            await world.append(1, b"a", acks=1, topic=topic)
        began = world.loop.now
        monkeypatch.setattr(WalLeading, "_judge", counted)
        partitions = [world.nodes[1].partition(topic=topic) for topic in topics]
        await world.until(lambda: all(each.tail is not None and each.tail.is_direct for each in partitions))
        assert world.loop.now - began < DIRECT_AFTER_S + 3 * JUDGED_EVERY_S
        assert max(judged.values()) <= 2
        assert sum(judged.values()) < 7 * (DIRECT_AFTER_S / JUDGED_EVERY_S + 4)

    monkeypatch.setattr("broker.replicas.wal.leading.JUDGED_AT_ONCE", 2)
    run(main, 2)


def test_a_log_that_fails_in_a_thread_after_its_role_has_ended_is_no_trouble_any_more() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, **ENABLE)
        await world.append(1, b"a", acks=1)
        await until_stored(world, 1)
        wal_tier = world.nodes[1].components.wal
        assert wal_tier is not None
        leading = wal_tier.leading
        (led,) = leading._led.values()
        error = KafkaError(ErrorCode.kafka_storage_error)
        leading.unreadable(led, error)
        assert len(leading._trouble) == 1
        world.change(leader=2)
        leading.unreadable(led, error)
        assert len(leading._trouble) == 0

    run(main, 2)
