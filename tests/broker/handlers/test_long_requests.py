"""Produce and Fetch of thousands of partitions: answered as any other, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from broker.handlers import fetch_response
from broker.handlers.fetch import LongFetchWait
from broker.handlers.places import Place, Places
from broker.net import sending
from broker.replicas import fetch_sessions
from broker.replicas.purgatory import Waiter
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.fetch import FetchItem, fetch_topic_head, parsing_fetch
from protocol.primitives import BYTES_A_STEP, ROWS_AT_ONCE
from protocol.records import build_batch
from tests.broker.net.live import until
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields, produce_fields

if TYPE_CHECKING:
    from broker.server import Broker

MANY = 3 * ROWS_AT_ONCE


def many(topic: str, *, missing: int = MANY, **changes: Any) -> dict[str, Any]:
    """A Fetch of one partition that is there, behind many that are not."""
    fields = fetch_fields(topic, 0, **changes)
    row = fields["topics"][0]["partitions"][0]
    names = [{"topic": f"no{at}", "partitions": [row]} for at in range(missing // 2)]
    indexes = {"topic": "no", "partitions": [row | {"partition": at} for at in range(missing // 2)]}
    fields["topics"] = [*names, indexes, *fields["topics"]]
    return fields


def fetch_of(broker: Broker) -> Any:
    return broker.components.network.service._fetch  # type: ignore[attr-defined]


def produce_of(broker: Broker) -> Any:
    return broker.components.network.service._produce  # type: ignore[attr-defined]


async def waiters(broker: Broker, topic: str, count: int = 1) -> Any:
    partition = broker.components.replicas.partition(topic, 0)
    async with asyncio.timeout(10):
        while len(partition.data_waiters) != count or any(  # noqa: ASYNC110 - the broker's own state
            not waiter.watched for waiter in cast("list[Waiter]", list(partition.data_waiters))
        ):
            await asyncio.sleep(0)
    return partition


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing ends within the first slice."""
    monkeypatch.setattr("broker.turns.INLINE_S", 0.0)
    yield


async def test_a_long_fetch_is_answered_as_a_short_one(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x" * 1000))
        for version in (4, 11, 12):
            short = (await client.call(Api.FETCH, version, **many("t", missing=2))).responses
            long = (await client.call(Api.FETCH, version, **many("t"))).responses
            assert len(long) == MANY // 2 + 2
            assert [*long[:1], long[-1]] == [*short[:1], short[-1]]
            assert {each.error_code for topic in long[:-1] for each in topic.partitions} == {
                ErrorCode.unknown_topic_or_partition
            }


async def test_a_long_fetch_lets_others_go_first(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as long, await RawClient.open(broker) as other:
        await other.call(Api.API_VERSIONS, 0)
        order: list[str] = []

        async def fetch() -> None:
            await long.call(Api.FETCH, 11, **many("t", missing=20_000))
            order.append("long")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fetch())
            for _ in range(3):
                await other.call(Api.API_VERSIONS, 0)
            order.append("other")
        assert order == ["other", "long"]


async def test_what_polls_waited_for_takes_no_room_once_they_are_gone(broker: Broker) -> None:
    await create_topic(broker, "t", 1)
    partition = broker.components.replicas.partition("t", 0)
    async with AsyncExitStack() as stack:
        for _ in range(30):
            client = await stack.enter_async_context(await RawClient.open(broker))
            await client.send(client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=60_000)))
        await until(lambda: len(partition.data_waiters) == 30)
        assert sys.getsizeof(partition.data_waiters) > sys.getsizeof({})
    await until(lambda: not partition.data_waiters)
    assert sys.getsizeof(partition.data_waiters) == sys.getsizeof({})


async def test_a_long_poll_over_many_partitions_reads_what_moved_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t", 400)
    row = fetch_fields("t", 0)["topics"][0]["partitions"][0]
    batch = batch_of(b"x" * 100)
    fields = fetch_fields("t", 0, max_wait=60_000, min_bytes=3 * len(batch))
    fields["topics"][0]["partitions"] = [row | {"partition": at} for at in range(400)]
    async with await RawClient.open(broker) as consumer, await RawClient.open(broker) as producer:
        waiting = asyncio.create_task(consumer.call(Api.FETCH, 12, **fields))
        await waiters(broker, "t")
        looked: list[int] = []
        reader = fetch_of(broker).reader
        read_some = reader.read_some

        def counted(fetched: Any, some: Any, *rest: Any) -> None:
            looked.append(len(some))
            read_some(fetched, some, *rest)

        monkeypatch.setattr(reader, "read_some", counted)
        for index in (0, 7):
            await producer.produce("t", batch, index=index)
        assert (looked, waiting.done()) == ([1, 1], False)
        await producer.produce("t", batch, index=7)
        answer = await waiting
        assert sum(looked) == 3 + 400
        sizes = {each.partition_index: len(each.records) for each in answer.responses[0].partitions}
        assert {index: size for index, size in sizes.items() if size} == {0: len(batch), 7: 2 * len(batch)}
        assert all(not broker.components.replicas.partition("t", index).data_waiters for index in range(400))


async def test_a_long_poll_ends_with_its_time_or_its_client(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        answer = await client.call(Api.FETCH, 12, **many("t", max_wait=50))
        assert answer.responses[-1].partitions[0].error_code is ErrorCode.none
        await client.send(client.encode(Api.FETCH, 12, many("t", max_wait=60_000)))
        await waiters(broker, "t")
    await waiters(broker, "t", 0)


async def test_more_rows_than_allowed_end_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for handler in (fetch_of(broker), produce_of(broker)):
        monkeypatch.setattr(handler, "_rows_max", lambda: 1000)
    records = [{"index": at, "records": None} for at in range(1001)]
    produced = produce_fields("no", b"") | {"topic_data": [{"name": "no", "partition_data": records}]}
    for api, fields in ((Api.FETCH, many("no", missing=2000)), (Api.PRODUCE, produced)):
        async with await RawClient.open(broker) as client:
            await client.send(client.encode(api, 9, fields))
            assert await client.is_closed()
    assert caplog.text.count("request.rows.max is 1000") == 2


async def test_a_session_goes_with_its_connection_if_it_is_large(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t")
    sessions = broker.components.fetch_sessions
    async with await RawClient.open(broker) as client:
        await client.call(Api.FETCH, 11, **fetch_fields("t", 0, session_epoch=0))
    async with await RawClient.open(broker) as client:
        monkeypatch.setattr(fetch_sessions, "LEFT_BYTES_MAX", 100_000)
        answer = await client.call(Api.FETCH, 11, **many("t", session_epoch=0))
        assert answer.session_id and sessions.partition_count == MANY + 2
        changed = many("t", session_id=answer.session_id, session_epoch=1, missing=2 * MANY)
        assert not (await client.call(Api.FETCH, 11, **changed)).error_code
        assert sessions.partition_count == 2 * MANY + 2
    async with asyncio.timeout(10):
        while sessions.partition_count != 1:  # noqa: ASYNC110 - the broker's own state
            await asyncio.sleep(0)


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_long_produce_is_answered_as_a_short_one(broker: Broker, acks: int) -> None:
    await create_topic(broker, "t", 400)
    batch = batch_of(b"x" * 100)
    given = [{"index": at, "records": batch} for at in range(400)]
    other = {"name": "no", "partition_data": given[:100] + given[:1]}
    fields = produce_fields("t", batch, acks=acks)
    fields["topic_data"] = [{"name": "t", "partition_data": given}, other]
    async with await RawClient.open(broker) as client:
        for offset in (0, 1):
            there, missing = (await client.call(Api.PRODUCE, 9, **fields)).responses
            assert [each.index for each in there.partition_responses] == list(range(400))
            assert {(each.error_code, each.base_offset) for each in there.partition_responses} == {
                (ErrorCode.none, offset)
            }
            assert [each.index for each in missing.partition_responses] == list(range(100))
            assert {each.error_code for each in missing.partition_responses} == {
                ErrorCode.unknown_topic_or_partition
            }


@pytest.mark.parametrize("version", [8, 12])
async def test_long_names_are_answered_in_pieces(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To join 100 MB of them would hold the loop, and take as much memory again."""
    largest: list[int] = []
    bulk = sending.Bulk

    def noted(pieces: list[Any], size: int) -> sending.Bulk:
        largest.append(max(map(len, pieces)))
        return bulk(pieces, size)

    monkeypatch.setattr(sending, "Bulk", noted)
    await create_topic(broker, "t")
    names = [f"{at:03}" + "n" * 30_000 for at in range(MANY)]
    rows = [{"index": 0, "records": batch_of(b"x")}]
    produced = produce_fields("t", b"") | {
        "topic_data": [{"name": name, "partition_data": rows} for name in (*names, "t")]
    }
    fetched = many("t", missing=2)
    fetched["topics"] = [fetched["topics"][0] | {"topic": name} for name in names] + fetched["topics"][-1:]
    async with await RawClient.open(broker) as client:
        answer = await client.call(Api.PRODUCE, version, **produced)
        assert [each.name for each in answer.responses] == [*names, "t"]
        assert [each.partition_responses[0].error_code for each in answer.responses[-2:]] == [3, 0]
        answer = await client.call(Api.FETCH, version, **fetched)
        assert [each.topic for each in answer.responses] == [*names, "t"]
        assert [bool(each.partitions[0].records) for each in answer.responses[-2:]] == [False, True]
    assert len(largest) == 2
    assert max(largest) < BYTES_A_STEP + 31_000


async def test_a_bomb_is_unpacked_elsewhere(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_topic(broker, "t", cleanup_policy="compact")
    appends = produce_of(broker)._appends
    offload, calls = appends._offload, []

    async def counted(call: Any) -> Any:
        calls.append(call)
        return await offload(call)

    monkeypatch.setattr(appends, "_offload", counted)
    async with await RawClient.open(broker) as client:
        await client.produce("t", bytes(build_batch([(b"k", b"v", (), 1)], codec=4)))
        assert not calls
        answer = await client.produce("t", bytes(build_batch([(b"k", bytes(1 << 20), (), 1)], codec=4)))
        assert (answer.error_code, answer.base_offset, len(calls)) == (ErrorCode.none, 1, 1)


async def test_what_is_refused_again_and_again_leaves_nothing(broker: Broker) -> None:
    await create_topic(broker, "t")
    batch = bytes(
        build_batch(
            [(b"k", b"v", (), 1)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
    )
    fields = produce_fields("t", batch) | {"transactional_id": "x"}
    async with await RawClient.open(broker) as client:
        await client.call(Api.PRODUCE, 11, **fields)
        gc.collect()
        before = {id(each) for each in gc.get_objects() if isinstance(each, KafkaError)}
        gc.disable()
        try:
            for _ in range(20):
                answer = await client.call(Api.PRODUCE, 11, **fields)
                assert answer.responses[0].partition_responses[0].error_code
            left = [each for each in gc.get_objects() if isinstance(each, KafkaError)]
            assert not [each for each in left if id(each) not in before]
        finally:
            gc.enable()


def test_a_name_that_is_not_there_is_not_kept() -> None:
    wanted = fetch_sessions.PartitionRequest(FetchItem("x" * 30_000, 0, -1, 0, -1, 1))
    before = fetch_topic_head.cache_info().currsize
    fetch_response._topic_head(11, wanted, 1)
    assert fetch_topic_head.cache_info().currsize == before


async def test_what_comes_while_a_long_fetch_is_read_ends_its_wait(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t", 400)
    row = fetch_fields("t", 0)["topics"][0]["partitions"][0]
    fields = fetch_fields("t", 0, max_wait=60_000)
    fields["topics"][0]["partitions"] = [row | {"partition": at} for at in range(400)]
    partition = broker.components.replicas.partition("t", 0)
    fetch = fetch_of(broker)
    reading = fetch._reading

    def slowly(*arguments: Any) -> Any:
        """Read the first partitions, then have somebody append to them."""
        steps = reading(*arguments)
        if not fetched:
            fetched.append(True)
            next(steps)
            partition.log.append_records(
                batch_of(b"x"), leader_epoch=partition.leader_epoch, now_ms=1_700_000_000_000
            )
            broker.components.replicas.touch(partition)
            broker.components.replicas.wake(broker.components.replicas.flush())
        yield
        return (yield from steps)

    fetched: list[bool] = []
    monkeypatch.setattr(fetch, "_reading", slowly)
    async with await RawClient.open(broker) as client:
        answer = await client.call(Api.FETCH, 12, **fields)
        assert answer.responses[0].partitions[0].records


async def test_a_long_poll_over_many_partitions_holds_no_frame(broker: Broker) -> None:
    await create_topic(broker, "t", 400)
    row = fetch_fields("t", 0)["topics"][0]["partitions"][0]
    fields = fetch_fields("t", 0, max_wait=2**31 - 1)
    fields["topics"][0]["partitions"] = [row | {"partition": at} for at in range(400)]
    async with await RawClient.open(broker) as client:
        await client.send(client.encode(Api.FETCH, 12, fields))
        await waiters(broker, "t")
        assert broker.components.network.queued_bytes == 0


def filled(places: Places) -> Place:
    """Take all places; return the one that is given back last."""
    taken = [Place(places) for _ in range(places.count)]
    for place in taken:
        place._is_taken = True
    places.taken = places.count
    return taken[0]


def all_of(topic: str, count: int, **changes: Any) -> dict[str, Any]:
    """A Fetch of many partitions that are there."""
    fields = fetch_fields(topic, 0, **changes)
    row = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [row | {"partition": at} for at in range(count)]
    return fields


@pytest.mark.parametrize("version", [12, 16])
async def test_a_follower_that_asks_for_many_waits_for_no_client(broker: Broker, version: int) -> None:
    await create_topic(broker, "t")
    filled(fetch_of(broker)._places)
    async with await RawClient.open(broker) as client, await RawClient.open(broker) as follower:
        await client.send(client.encode(Api.FETCH, 12, many("t")))
        await until(lambda: fetch_of(broker)._places.waiting)
        fields = many("t") | {"replica_id": 2, "replica_state": {"replica_id": 2, "replica_epoch": 1}}
        fields["topics"] = [topic | {"topic_id": UUID(int=1)} for topic in fields["topics"]]
        fields["rack_id"] = ""
        answer = await follower.call(Api.FETCH, version, **fields)
        assert answer.error_code is ErrorCode.none
        assert fetch_of(broker)._places.waiting


async def test_a_fetch_that_waits_for_its_turn_goes_with_its_client(broker: Broker) -> None:
    await create_topic(broker, "t")
    filled(fetch_of(broker)._places)
    network = broker.components.network
    async with await RawClient.open(broker) as client:
        await client.send(client.encode(Api.FETCH, 12, many("t")))
        await until(lambda: network.queued_bytes)
    await until(lambda: not network.queued_bytes)
    assert network.frames.is_idle


async def test_long_polls_that_end_together_are_answered_a_few_at_once_and_before_newcomers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t", 400)
    count, fetch = 12, fetch_of(broker)
    reading, in_work = fetch._reading, []
    most = [0]

    def counted(*arguments: Any) -> Any:
        in_work.append(True)
        most[0] = max(most[0], len(in_work))
        fetched = yield from reading(*arguments)
        in_work.pop()
        return fetched

    async with AsyncExitStack() as stack:
        consumers = [await stack.enter_async_context(await RawClient.open(broker)) for _ in range(count)]
        for each in consumers:
            await each.send(each.encode(Api.FETCH, 12, all_of("t", 400, max_wait=60_000)))
        await waiters(broker, "t", count)
        monkeypatch.setattr(fetch, "_reading", counted)
        last = filled(fetch._places)
        late, producer = [await stack.enter_async_context(await RawClient.open(broker)) for _ in range(2)]
        await late.send(late.encode(Api.FETCH, 12, all_of("t", 400)))
        await until(lambda: len(fetch._places.waiting) == 1)
        await producer.produce("t", batch_of(b"x"))
        await until(lambda: len(fetch._places.waiting) == count + 1)
        order: list[str] = []

        async def answered(client: RawClient, name: str) -> None:
            await client.receive_as(Api.FETCH, 12)
            order.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answered(late, "late"))
            for each in consumers:
                tasks.create_task(answered(each, "waited"))
            last.give_back()
        assert order == ["waited"] * count + ["late"]
    assert most == [1], "there was one place"


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.FETCH])
async def test_a_request_that_is_in_work_counts_when_its_client_has_left(
    broker: Broker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise whoever sends and leaves, again and again, takes all memory."""
    await create_topic(broker, "t")
    turn = asyncio.Semaphore(0)
    if api is Api.PRODUCE:
        produce_of(broker)._long = turn
    else:

        def slowly(*arguments: Any) -> Any:
            while turn.locked():
                yield
            return (yield from parsing_fetch(*arguments))

        monkeypatch.setattr("broker.handlers.fetch.parsing_fetch", slowly)
    network = broker.components.network
    async with await RawClient.open(broker) as client:
        fields = many("t")
        if api is Api.PRODUCE:
            fields = produce_fields("t", batch_of(b"x"))
            fields["topic_data"] = [fields["topic_data"][0] | {"name": f"no{at}"} for at in range(MANY)]
        frame = client.encode(api, 9, fields)
        await client.send(frame)
        await until(lambda: network.queued_bytes)
    await until(lambda: not network.connection_count)
    assert network.queued_bytes == len(frame) - 4
    turn.release()
    await until(lambda: not network.queued_bytes)
    assert network.frames.is_idle


async def test_long_polls_without_a_session_hold_what_they_may_and_no_more(broker: Broker) -> None:
    await create_topic(broker, "t", 400)
    polls = fetch_of(broker).polls
    polls.bytes_max = 2 * 400 * fetch_sessions.ALONE_BYTES + 1000
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await RawClient.open(broker)) for _ in range(3)]
        for each in clients[:2]:
            await each.send(each.encode(Api.FETCH, 12, all_of("t", 400, max_wait=2**31 - 1)))
        await waiters(broker, "t", 2)
        answer = await clients[2].call(Api.FETCH, 12, **all_of("t", 400, max_wait=2**31 - 1))
        assert len(answer.responses[0].partitions) == 400
        assert (len(polls), polls.cut_short) == (2, 1)
        partition = broker.components.replicas.partition("t", 0)
        assert len(partition.data_waiters) == 2
        await clients[2].produce("t", batch_of(b"x"))
        for each in clients[:2]:
            assert (await each.receive_as(Api.FETCH, 12)).responses[0].partitions[0].records
        assert polls.bytes == 0


async def test_a_poll_whose_client_leaves_while_it_is_parsed_is_gone_with_its_work(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t", 400)
    turn = asyncio.Semaphore(0)

    def slowly(*arguments: Any) -> Any:
        while turn.locked():
            yield
        return (yield from parsing_fetch(*arguments))

    made: list[Any] = []
    make = LongFetchWait.__init__

    def noted(wait: LongFetchWait, fetch: Any, connection: Any, *rest: Any) -> None:
        make(wait, fetch, connection, *rest)
        made.append(connection)

    monkeypatch.setattr("broker.handlers.fetch.parsing_fetch", slowly)
    monkeypatch.setattr(LongFetchWait, "__init__", noted)
    fetch, network = fetch_of(broker), broker.components.network
    async with await RawClient.open(broker) as client:
        await client.send(client.encode(Api.FETCH, 12, all_of("t", 400, max_wait=60_000)))
        await until(lambda: fetch._places.taken)
    await until(lambda: not network.connection_count)
    turn.release()
    await until(lambda: not fetch._places.taken)
    (connection,) = made
    assert connection.waiter is None, "nobody would take it from there again"


async def test_a_long_poll_that_has_its_bytes_is_read_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(broker, "t", 400)
    fetch, readings = fetch_of(broker), []
    reading = fetch._reading

    def counted(*arguments: Any) -> Any:
        readings.append(True)
        return reading(*arguments)

    monkeypatch.setattr(fetch, "_reading", counted)
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x"))
        answer = await client.call(Api.FETCH, 12, **all_of("t", 400, max_wait=60_000))
        assert answer.responses[0].partitions[0].records
    assert len(readings) == 1
