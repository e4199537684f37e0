"""A broker's uploads give way to its clients, and keep up with what is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from remote.store.tempo import LOOK_EVERY_S
from tests.broker.raw_client import RawClient, batch_of, create_topic
from tests.broker.tiered import TIERED, roll

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

QUOTA = "remote.log.manager.copy.max.bytes.per.second"


async def test_uploads_give_way_while_records_are_written_and_read(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    tempo = broker.components.world.tempo
    await create_topic(broker, "t", **TIERED)
    assert not tempo.is_busy()
    async with await RawClient.open(broker) as client:
        for ask in (client.produce("t", batch_of(b"x")) for _ in range(50)):
            await ask
        await asyncio.sleep(LOOK_EVERY_S)
        assert tempo.is_busy()
        await asyncio.sleep(2 * LOOK_EVERY_S)
        assert not tempo.is_busy()
        for _ in range(50):
            await client.fetch("t", 0)
        await asyncio.sleep(LOOK_EVERY_S)
        assert tempo.is_busy()


@pytest.mark.parametrize(("quota", "floor"), [({}, 0), ({QUOTA: "20000000"}, 20_000_000)])
async def test_uploads_reach_their_quota_and_what_is_closed(
    make_broker: MakeBroker, quota: dict[str, str], floor: int
) -> None:
    broker = await make_broker(**quota)
    tiering, tempo = broker.components.tiering, broker.components.world.tempo
    assert tiering is not None
    await create_topic(broker, "t", **TIERED)
    assert tempo._floor() == floor
    async with await RawClient.open(broker) as client:
        for _ in range(3):
            for _ in range(5):
                await client.produce("t", batch_of(b"x" * 10_000))
            roll(broker, "t")
    assert 150_000 / 60 < tiering.closed_per_s() < 155_000 / 50 + 1
    assert tempo._floor() == pytest.approx(max(floor, tiering.closed_per_s()), rel=0.01)


async def test_what_is_closed_is_counted_once_whatever_the_topic_has_beside_it(
    make_broker: MakeBroker,
) -> None:
    broker = await make_broker()
    tiering = broker.components.tiering
    assert tiering is not None
    await create_topic(broker, "t", partitions=4, **TIERED)
    async with await RawClient.open(broker) as client:
        for index in range(4):
            await client.produce("t", batch_of(b"x" * 50_000), index=index)
    for index in range(4):
        roll(broker, "t", index)
    assert 200_000 / 60 < tiering.closed_per_s() < 205_000 / 50 + 1
