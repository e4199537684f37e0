"""The metadata topic of a real broker: made when it is needed, closed to clients, there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.control.directories import StartupError
from broker.coordinators.tier.metadata import TierMetadata
from broker.server import Broker
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from remote.cold.segments import SegmentState, TieredPartition
from tests.broker.coordinators.tier.tier_driver import TOPIC, finished, started
from tests.broker.raw_client import RawClient, batch_of, create_topic

MakeBroker = Callable[..., Awaitable[Broker]]
FEW: dict[str, str] = {"rlmm.config.remote.log.metadata.topic.num.partitions": "3"}


def metadata_of(broker: Broker) -> TierMetadata:
    found = broker.components.tier_metadata
    assert isinstance(found, TierMetadata)
    return found


async def known(broker: Broker, partition: TieredPartition) -> list[SegmentState]:
    metadata = metadata_of(broker)
    metadata.follow(partition)
    async with asyncio.timeout(20):
        await metadata.wait_caught_up(partition)
    fold = metadata.fold(partition)
    return [] if fold is None else [each.state for each in (*fold.finished(), *fold.unfinished())]


async def test_it_is_made_when_it_is_needed_and_not_before(make_broker: MakeBroker) -> None:
    broker = await make_broker(**FEW)
    user = TieredPartition(await create_topic(broker, "t"), 0)
    image = broker.components.cluster.image
    assert TOPIC not in image.topics
    assert not metadata_of(broker).is_without_topic
    assert await known(broker, user) == []
    assert len(image.topics[TOPIC].partitions) == 3
    await metadata_of(broker).submit(started(partition=user), leader_epoch=0)
    await metadata_of(broker).submit(finished(partition=user), leader_epoch=0)
    await broker.stop()
    again = await make_broker(**FEW)
    assert await known(again, user) == [SegmentState.COPY_FINISHED]


async def test_copies_wait_for_brokers_enough_to_keep_it(make_broker: MakeBroker) -> None:
    broker = await make_broker(
        **{
            "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
            "rlmm.config.remote.log.metadata.consume.wait.ms": "300",
        }
    )
    user = TieredPartition(await create_topic(broker, "t"), 0)
    metadata = metadata_of(broker)
    metadata.follow(user)
    assert metadata.is_without_topic
    with pytest.raises(KafkaError) as caught:
        await metadata.submit(started(partition=user), leader_epoch=0)
    assert caught.value.code is ErrorCode.coordinator_not_available
    assert not metadata.is_caught_up(user)
    assert metadata.fold(user) is None


async def test_clients_read_it_and_change_nothing_about_it(make_broker: MakeBroker) -> None:
    broker = await make_broker(**FEW)
    user = TieredPartition(await create_topic(broker, "t"), 0)
    await metadata_of(broker).submit(started(partition=user), leader_epoch=0)
    async with await RawClient.open(broker) as client:
        assert (await client.produce(TOPIC, batch_of(b"x"))).error_code is ErrorCode.invalid_topic_exception
        topics: list[dict[str, Any]] = [{"name": TOPIC, "topic_id": None}]
        deleted = await client.call(Api.DELETE_TOPICS, 6, topics=topics, timeout=5_000)
        assert deleted.responses[0].error_code is ErrorCode.topic_deletion_disabled
        topics = [{"name": TOPIC, "count": 60, "assignments": None}]
        grown = await client.call(Api.CREATE_PARTITIONS, 3, topics=topics, timeout=5_000, validate_only=False)
        assert grown.results[0].error_code is ErrorCode.invalid_partitions
        change = {"name": "cleanup.policy", "config_operation": 0, "value": "delete"}
        resources = [{"resource_type": 2, "resource_name": TOPIC, "configs": [change]}]
        altered = await client.call(
            Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False
        )
        assert altered.responses[0].error_code is ErrorCode.invalid_config
        read = [await client.fetch(TOPIC, 0, index=index) for index in range(3)]
        assert sum(bool(each.records) for each in read) == 1


@pytest.mark.parametrize("name", ["org.example.JavaManager", "no_such_module:Manager", "nonsense"])
async def test_no_broker_starts_with_a_manager_that_cannot_be_used(
    make_broker: MakeBroker, name: str
) -> None:
    with pytest.raises(StartupError, match=f"remote.log.metadata.manager.class.name={name}: ") as caught:
        await make_broker(**{"remote.log.metadata.manager.class.name": name})
    assert len(str(caught.value).splitlines()) == 1


async def test_without_the_tiers_there_is_none(make_broker: MakeBroker) -> None:
    broker = await make_broker(remote_log_storage_system_enable="false")
    assert broker.components.tier_metadata is None
    async with await RawClient.open(broker) as client:
        answer = await client.produce(TOPIC, batch_of(b"x"))
        assert answer.error_code is ErrorCode.invalid_topic_exception
