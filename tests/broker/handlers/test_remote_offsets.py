"""ListOffsets and OffsetForLeaderEpoch on a running broker whose older segments only the tier has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.handlers.offsets import LOOK_UPS_AT_ONCE
from protocol.apis import Api
from protocol.errors import ErrorCode
from remote.store.object_store import StoreError
from tests.broker.handlers.test_remote_fetch import PATIENT, Store, reads_of
from tests.broker.raw_client import RawClient, batch_of, create_topic
from tests.broker.tiered import TIERED, log_of, roll, tier

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

START_MS = 1_700_000_000_000


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    return await make_broker(**PATIENT)


async def fill(broker: Broker, topic: str = "t") -> None:
    """Offsets 0 to 7 in two copies, 8 to 11 local; the time of each is ten times its offset."""
    await create_topic(broker, topic, **TIERED)
    async with await RawClient.open(broker) as client:
        for at in range(12):
            if at in (4, 8):
                roll(broker, topic)
            await client.produce(topic, batch_of(b"x", timestamp=START_MS + 10 * at))
    await tier(broker, topic)
    assert log_of(broker, topic).local_log_start_offset == 8


async def look_up(
    client: RawClient, *timestamps: int, topic: str = "t", version: int = 9, **fields: Any
) -> list[tuple[ErrorCode, int, int]]:
    """(error, timestamp, offset) of each."""
    answers = []
    for timestamp in timestamps:
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        response = await client.call(
            Api.LIST_OFFSETS,
            version,
            **{
                "replica_id": -1,
                "isolation_level": 0,
                "timeout": 0,
                "topics": [{"name": topic, "partitions": [partition]}],
                **fields,
            },
        )
        answer = response.topics[0].partitions[0]
        answers.append((answer.error_code, answer.timestamp, answer.offset))
    return answers


@pytest.mark.parametrize("kind", ["local file", "chunks"])
async def test_times_are_looked_up_over_the_border(broker: Broker, kind: str) -> None:
    await fill(broker)
    if kind == "chunks":
        Store(broker)
    async with await RawClient.open(broker) as client:
        for version in range(1, 12):
            for at in range(-1, 120):
                offset = max(0, -(-at // 10))
                wanted = (ErrorCode.none, START_MS + 10 * offset, offset)
                if offset > 11:
                    wanted = (ErrorCode.none, -1, -1)
                if version in (1, 11) or at % 17 == 0:
                    assert await look_up(client, START_MS + at, version=version) == [wanted]


async def test_a_time_below_the_log_start_is_not_told(broker: Broker) -> None:
    await fill(broker)
    moved: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log_of(broker, "t").advance_log_start(3, moved.set_result)
    await moved
    async with await RawClient.open(broker) as client:
        assert await look_up(client, START_MS) == [(ErrorCode.none, START_MS + 30, 3)]


@pytest.mark.requirement("1023-02", "1023-13", "1023-19")
async def test_what_special_times_stand_for(broker: Broker) -> None:
    await fill(broker)
    async with await RawClient.open(broker) as client:
        found = await look_up(client, -1, -2, -3, -4, -5, -6, version=11)
        assert [(code, offset) for code, _, offset in found] == [
            (ErrorCode.none, 12),
            (ErrorCode.none, 0),
            (ErrorCode.none, 11),
            (ErrorCode.none, 8),
            (ErrorCode.none, 7),
            (ErrorCode.none, 8),
        ]
        for timestamp, known_from in ((-4, 8), (-5, 9), (-6, 11)):
            assert await look_up(client, timestamp, version=known_from - 1) == [
                (ErrorCode.unsupported_version, -1, -1)
            ]


async def test_a_look_up_ends_in_the_time_of_its_request(broker: Broker) -> None:
    await fill(broker)
    await fill(broker, "other")
    store = Store(broker)
    store.gate.clear()
    async with await RawClient.open(broker) as client:
        rows = [
            {"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}
            for topic, timestamp in (("t", START_MS), ("other", START_MS + 85))
        ]
        response = await client.call(
            Api.LIST_OFFSETS, 10, replica_id=-1, isolation_level=0, topics=rows, timeout=50
        )
        late, local = (topic.partitions[0] for topic in response.topics)
        assert (late.error_code, late.offset) == (ErrorCode.request_timed_out, -1)
        assert (local.error_code, local.offset) == (ErrorCode.none, 9), "no byte of the tier is needed"
        store.gate.set()
        assert await look_up(client, START_MS) == [(ErrorCode.none, START_MS, 0)]


async def test_a_look_up_ends_in_the_time_of_the_broker(make_broker: MakeBroker) -> None:
    broker = await make_broker(**{"remote.list.offsets.request.timeout.ms": "50"})
    await fill(broker)
    Store(broker).gate.clear()
    async with await RawClient.open(broker) as client:
        assert await look_up(client, START_MS) == [(ErrorCode.request_timed_out, -1, -1)]


async def test_a_store_that_is_away_is_no_answer(broker: Broker) -> None:
    await fill(broker)
    Store(broker).error = StoreError("503")
    async with await RawClient.open(broker) as client:
        assert await look_up(client, START_MS) == [(ErrorCode.offset_not_available, -1, -1)]
        assert await look_up(client, START_MS, version=4) == [(ErrorCode.leader_not_available, -1, -1)]
        assert await look_up(client, START_MS + 85) == [(ErrorCode.none, START_MS + 90, 9)]


async def test_the_end_of_an_epoch_is_told_over_the_border(broker: Broker) -> None:
    await fill(broker)
    async with await RawClient.open(broker) as client:

        async def end_of(epoch: int) -> tuple[int, int]:
            rows = [
                {
                    "topic": "t",
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}],
                }
            ]
            response = await client.call(Api.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=rows)
            answer = response.topics[0].partitions[0]
            return answer.leader_epoch, answer.end_offset

        assert await end_of(0) == (0, 12)
        assert await end_of(1) == (-1, -1)


async def test_of_many_look_ups_a_few_are_under_way_at_a_time(broker: Broker) -> None:
    """All of thousands at once would hold the loop, which serves everybody."""
    count = LOOK_UPS_AT_ONCE + 8
    await create_topic(broker, "t", count, **TIERED)
    async with await RawClient.open(broker) as client:
        for index in range(count):
            await client.produce("t", batch_of(b"x", timestamp=START_MS), index=index)
            roll(broker, "t", index)
            await client.produce("t", batch_of(b"x", timestamp=START_MS + 10), index=index)
            await tier(broker, "t", index)
        store = Store(broker)
        store.gate.clear()
        reader: Any = reads_of(broker).reader
        find, begun = reader.find_timestamp, 0

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal begun
            begun += 1
            return await find(*args, **options)

        reader.find_timestamp = counted
        rows = [{"partition_index": index, "timestamp": START_MS} for index in range(count)]
        asked = asyncio.create_task(
            client.call(
                Api.LIST_OFFSETS,
                10,
                replica_id=-1,
                isolation_level=0,
                topics=[{"name": "t", "partitions": rows}],
                timeout=60_000,
            )
        )
        async with asyncio.timeout(10):
            while not store.asked:  # noqa: ASYNC110 - the broker's own state
                await asyncio.sleep(0.001)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert begun == LOOK_UPS_AT_ONCE
        store.gate.set()
        answers = (await asked).topics[0].partitions
    assert [(each.error_code, each.offset) for each in answers] == [(ErrorCode.none, 0)] * count
