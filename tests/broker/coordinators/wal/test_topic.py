"""The metadata topic of the WAL tier of a real broker: made with the first object, closed to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.config.broker import from_properties
from broker.control.internal_topics import (
    INTERNAL_TOPICS,
    REMOTE_WAL_LOG_METADATA,
    internal_defaults,
    may_client_write,
)
from broker.server import Broker
from protocol.errors import ErrorCode
from protocol.records import build_batch
from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.counted import Counted
from remote.wal.journal import Teller, finished_row
from tests.broker.raw_client import RawClient, batch_of
from tests.remote.wal.wal_samples import some_object

MakeBroker = Callable[..., Awaitable[Broker]]


async def store(broker: Broker, seq: int) -> None:
    stream = Stream(broker.config.node_id, broker.components.cluster.broker_epoch, 0)
    metadata, data = some_object(place=Place(stream, seq))
    wal_tier = broker.components.wal
    assert wal_tier is not None
    telling = wal_tier.telling
    if seq == 0:
        telling.stream_changed(stream, True)
    telling.counted(Counted(metadata.place, metadata.rows, data, len(data), 0))


@pytest.mark.requirement("1176-22", "1176-46")
async def test_it_is_made_with_the_first_object_and_not_before(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    image = broker.components.cluster.image
    assert REMOTE_WAL_LOG_METADATA not in image.topics
    await store(broker, 0)
    stats = broker.components.wal_stats
    async with asyncio.timeout(20):
        while stats.events < 2:  # noqa: ASYNC110 - what is waited for is the broker's own state
            await asyncio.sleep(0.01)
    assert len(image.topics[REMOTE_WAL_LOG_METADATA].partitions) == 12
    async with await RawClient.open(broker) as client:
        index = broker.config.node_id % 12
        read = await client.fetch(REMOTE_WAL_LOG_METADATA, 0, index=index)
        assert read.records
        key, value = finished_row(Place(Stream(1, 2, 3), 4), bytes(16), b"", Teller(1, 2))
        for records in (batch_of(b"x"), bytes(build_batch([(key, value, (), 0)]))):
            answer = await client.produce(REMOTE_WAL_LOG_METADATA, records)
            assert answer.error_code is ErrorCode.invalid_topic_exception


async def test_a_broker_stops_while_the_topic_cannot_be_made(make_broker: MakeBroker) -> None:
    name = "rlmm.config.remote.log.metadata.topic.replication.factor"
    broker = await make_broker(**{name: "3"})
    await store(broker, 0)
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await broker.stop()


@pytest.mark.parametrize(
    ("is_standalone", "given", "expected"),
    [
        (True, {}, (12, 1, "1")),
        (False, {"num.partitions": "7"}, (7, 3, "2")),
        (False, {"replication.factor": "1"}, (12, 1, "1")),
    ],
)
def test_its_settings_follow_those_of_the_other_tiers_topic(
    is_standalone: bool, given: dict[str, str], expected: tuple[int, int, str]
) -> None:
    prefix = "rlmm.config.remote.log.metadata.topic."
    config = from_properties(
        {prefix + name: value for name, value in given.items()}, standalone=is_standalone
    )
    defaults = internal_defaults(config, REMOTE_WAL_LOG_METADATA)
    assert defaults is not None
    configs = dict(defaults.configs)
    assert (defaults.partitions, defaults.replication_factor, configs["min.insync.replicas"]) == expected
    assert configs["cleanup.policy"] == "compact"
    assert not may_client_write(REMOTE_WAL_LOG_METADATA)
    assert REMOTE_WAL_LOG_METADATA not in INTERNAL_TOPICS
