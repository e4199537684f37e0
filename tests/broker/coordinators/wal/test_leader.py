"""Who is believed by the leader of the topic, and what it tells for those that cannot any more."""

from __future__ import annotations

import asyncio

import pytest

from broker.coordinators.wal.leader import TOPIC
from broker.coordinators.wal.told import Sender, make_told, parse_told
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.records import build_batch
from remote.keys import Stream, WalPart, wal_key
from remote.wal.combined_object import ObjectKind, Place
from remote.wal.journal import LogRow, ObjectState, Teller, deletion_rows, finished_row, stream_rows
from tests.broker.coordinators.wal.wal_driver import (
    bucket_of,
    create,
    delete,
    in_bucket,
    is_told,
    journal_of,
    put,
    store,
    stream_of,
    telling_of,
)
from tests.broker.raw_client import produce_fields
from tests.broker.replication_driver import START_MS, Replicas

TELLER = Teller(2, START_MS)


def sender(world: Replicas, node_id: int, *, number: int = 1) -> Sender:
    """A broker as it is now."""
    member = world.nodes[node_id].member
    return Sender(node_id, member.broker_epoch, member.image.seq, number)


def counts(stream: Stream, seq: int) -> LogRow:
    return finished_row(Place(stream, seq), seq.to_bytes(16), b"", TELLER)


async def tell(world: Replicas, rows: list[LogRow], who: Sender) -> int:
    """By a request to the first broker, as its frame brings it."""
    told = make_told(rows, who, now_ms=START_MS)
    fields = produce_fields(TOPIC, bytes(told.batch), acks=-1)
    answer = await world.ask(1, Api.PRODUCE, 9, **fields)
    found = answer.responses[0].partition_responses[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), found.error_message)
    offset: int = found.base_offset
    return offset


async def replace(world: Replicas, node_id: int) -> None:
    """A broker dies and another life of it begins: its streams are nobody's then."""
    world.kill(node_id)
    await world.start(node_id)


async def refused(world: Replicas, rows: list[LogRow], who: Sender) -> ErrorCode:
    end = world.nodes[1].partition(topic=TOPIC).log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        await tell(world, rows, who)
    assert world.nodes[1].partition(topic=TOPIC).log.log_end_offset == end
    return caught.value.code


@pytest.mark.requirement("1176-29")
def test_a_deposed_broker_is_refused() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        before, stream = sender(world, 2), stream_of(world, 2)
        assert await tell(world, [counts(stream, 0)], before) == 0
        world.kill(2)
        await world.start(2)
        assert await refused(world, [counts(stream, 1)], before) is ErrorCode.stale_broker_epoch
        assert await refused(world, [counts(stream, 1)], sender(world, 2)) is ErrorCode.invalid_request
        unknown = sender(world, 2)._replace(node_id=9)
        assert await refused(world, stream_rows(stream, ObjectState.COPY_STARTED, TELLER), unknown) is (
            ErrorCode.stale_broker_epoch
        )

    Replicas(3).run(main)


@pytest.mark.requirement("1176-29")
def test_a_leader_with_an_older_image_waits_for_the_one_its_sender_had() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        dead, stream = sender(world, 2), stream_of(world, 2)
        await tell(world, [counts(stream, 0)], dead)
        world.hold(1)
        world.kill(2)
        await world.start(2)
        gone = deletion_rows(Place(stream, 0), ObjectState.DELETE_FINISHED, TELLER)
        collector = sender(world, 3, number=7)
        assert await refused(world, gone, collector) is ErrorCode.coordinator_load_in_progress
        world.let_go(1)
        await tell(world, gone, collector)
        assert await refused(world, [counts(stream, 0)], dead) is ErrorCode.stale_broker_epoch
        assert journal_of(world, 1).objects == {}

    Replicas(3).run(main)


def test_what_comes_after_something_later_of_its_sender_is_refused() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        stream = stream_of(world, 2)
        await tell(world, [counts(stream, 0)], sender(world, 2, number=1))
        await tell(world, [counts(stream, 0)], sender(world, 2, number=1))  # its answer was lost
        gone = deletion_rows(Place(stream, 0), ObjectState.DELETE_FINISHED, TELLER)
        await tell(world, gone, sender(world, 2, number=2))
        late = sender(world, 2, number=1)
        assert await refused(world, [counts(stream, 0)], late) is ErrorCode.out_of_order_sequence_number
        for leader in (2, 1):
            world.change(leader=leader, topic=TOPIC)
        assert await refused(world, [counts(stream, 0)], late) is ErrorCode.out_of_order_sequence_number

    Replicas(3).run(main)


def test_who_did_not_write_a_stream_tells_deletions_in_it_alone() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        stream = stream_of(world, 2)
        other = sender(world, 3)
        assert await refused(world, [counts(stream, 0)], other) is ErrorCode.invalid_request
        ended = stream_rows(stream, ObjectState.COPY_FINISHED, TELLER)
        assert await refused(world, ended, other) is ErrorCode.invalid_request
        await tell(world, stream_rows(stream, ObjectState.COPY_STARTED, TELLER), other)
        await tell(world, deletion_rows(Place(stream, 0), ObjectState.DELETE_STARTED, TELLER), other)

    Replicas(3).run(main)


def test_what_is_no_brokers_batch_is_a_clients() -> None:
    who = Sender(1, 2, 3, 4)
    stream = Stream(2, 5, 0)
    told = make_told([counts(stream, 0), counts(stream, 1)], who, now_ms=START_MS)
    read = parse_told(told.batch, version=9)
    assert read == told
    key, value = counts(stream, 0)
    for rows in ([(b"k", b"v", (), 0)], [(key, value, (("sender", b"?"),), 0)], [(key, value, (), 0)]):
        assert parse_told(build_batch(rows), version=9) is None
    header = (("sender", bytes(28)),)
    with pytest.raises(KafkaError) as caught:
        parse_told(build_batch([(b"k", b"v", header, 0)]), version=9)
    assert caught.value.code is ErrorCode.invalid_record


@pytest.mark.requirement("1176-27")
def test_a_dead_writers_objects_are_told_once_its_stream_has_an_end() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        stream = stream_of(world, 3)
        world.nodes[3].here(telling_of(world, 3).stream_changed, stream, True)
        store(world, 3, 0, 1)
        await world.until(lambda: is_told(world, 1))
        for seq in (2, 3):
            put(world, stream, seq)  # and dies before it tells
        await replace(world, 3)
        await asyncio.sleep(40)
        assert journal_of(world, 1).streams[stream] is ObjectState.COPY_STARTED
        put(world, stream, 4, kind=ObjectKind.SEAL)
        put(world, stream, 5)  # arrives above the seal and counts for nothing
        await world.until(lambda: journal_of(world, 1).streams[stream] is ObjectState.COPY_FINISHED)
        assert [place.seq for place, _ in journal_of(world, 1).finished()] == [0, 1, 2, 3]
        await world.agree(1, 2, 3, topic=TOPIC)
        world.change(leader=2, topic=TOPIC)
        end = world.nodes[2].partition(topic=TOPIC).log.log_end_offset
        await asyncio.sleep(40)
        assert world.nodes[2].partition(topic=TOPIC).log.log_end_offset == end

    Replicas(3).run(main)


def test_a_stream_that_nobody_has_told_of_is_told_by_who_finds_it() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        stream = stream_of(world, 3)
        await replace(world, 3)
        for seq in range(5, 8):
            put(world, stream, seq)
        in_bucket(world, wal_key(stream, 4, WalPart.BOUNDARY))
        put(world, stream, 8, kind=ObjectKind.SEAL)
        world.nodes[2].here(telling_of(world, 2).stream_changed, stream, False)
        await world.until(lambda: is_told(world, 1))
        await world.until(lambda: journal_of(world, 1).streams[stream] is ObjectState.COPY_FINISHED)

    Replicas(3).run(main)


def test_what_is_deleted_while_a_dead_writers_objects_are_read_is_not_told_to_be_there() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        stream = stream_of(world, 3)
        store(world, 3, 0)
        await world.until(lambda: is_told(world, 1))
        one = put(world, stream, 1)
        put(world, stream, 2, kind=ObjectKind.SEAL)
        reads: list[str] = []
        answer = world.store._answer

        async def slow(key: str) -> None:
            reads.append(key)
            await answer(key)
            if key == wal_key(stream, 1):
                data = world.store.objects[key]
                delete(world, 2, [one.place])
                await asyncio.sleep(2)
                in_bucket(world, key, data)  # what the read had found

        world.store._answer = slow  # type: ignore[method-assign]
        await replace(world, 3)
        await world.until(lambda: journal_of(world, 1).streams.get(stream) is ObjectState.COPY_FINISHED)
        assert wal_key(stream, 1) in reads
        assert one.place not in journal_of(world, 1).objects

    Replicas(3).run(main)


def test_nothing_is_told_twice_by_a_leader_that_has_read_its_log() -> None:
    async def main(world: Replicas) -> None:
        create(world)
        places = store(world, 3, *range(20))
        await world.until(lambda: is_told(world, 1))
        await world.agree(1, 2, 3, topic=TOPIC)
        await replace(world, 3)
        put(world, places[0].stream, 20, kind=ObjectKind.SEAL)
        world.change(leader=2, topic=TOPIC)
        await world.until(lambda: places[0].stream in journal_of(world, 2).streams)
        assert bucket_of(world).keys() == set(places)
        assert len(world.nodes[2].values(topic=TOPIC)) == 21

    Replicas(3).run(main)
