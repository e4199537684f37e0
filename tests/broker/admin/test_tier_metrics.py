"""Metrics of the cold tier: Kafka's under the names that exporters give them, and those that are ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from protocol.errors import ErrorCode, KafkaError
from remote.cold.claim import LATE_UPLOAD_S
from tests.broker.raw_client import RawClient, batch_of, create_topic
from tests.broker.replicas.test_tiering import all_copied, clean, configure, fill, make, run
from tests.broker.replication_driver import Replicas
from tests.broker.tiered import TIERED, log_of, roll, tier
from tests.conftest import MakeBroker

if TYPE_CHECKING:
    from broker.server import Broker

TOPIC: Final = "server_brokertopicmetrics_"
MANAGER: Final = "log_remote_remotelogmanager_"
OF_KAFKA: Final = frozenset(
    {
        *(
            f"{TOPIC}{name}"
            for name in (
                "remotefetchbytes_total",
                "remotefetchrequests_total",
                "remotefetcherrors_total",
                "remotecopybytes_total",
                "remotecopyrequests_total",
                "remotecopyerrors_total",
                "remotecopylagbytes",
                "remotecopylagsegments",
                "remotedeleterequests_total",
                "remotedeleteerrors_total",
                "remotedeletelagbytes",
                "remotedeletelagsegments",
                "buildremotelogauxstaterequests_total",
                "buildremotelogauxstateerrors_total",
                "remotelogsizebytes",
                "remotelogmetadatacount",
            )
        ),
        "log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize",
        "log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent",
        f"{MANAGER}remotelogmanagertasksavgidlepercent",
        f"{MANAGER}remotelogreaderfetchrateandtimems_count",
        f"{MANAGER}remotelogreaderfetchrateandtimems_sum",
        f"{MANAGER}retentionsizeinpercent",
        f"{MANAGER}localretentionsizeinpercent",
        "server_delayedremotefetchmetrics_expires_total",
        "server_delayedremotelistoffsetsmetrics_expires_total",
        "server_remotelogmanager_remote_copy_throttle_time_avg",
        "server_remotelogmanager_remote_copy_throttle_time_max",
        "server_remotelogmanager_remote_fetch_throttle_time_avg",
        "server_remotelogmanager_remote_fetch_throttle_time_max",
        "server_rlmcopy_byte_rate",
        "server_rlmfetch_byte_rate",
    }
)
"""All that Kafka 4.3.1 has, but for RemoteLogSizeComputationTime: nothing is computed."""


def told(world: Replicas, node_id: int) -> dict[str, float]:
    """What a scrape of this node finds of the topic, and of all that has no labels."""
    return _told(world.nodes[node_id].components)


def told_by(broker: Broker) -> dict[str, float]:
    return _told(broker.components)


def _told(components: object) -> dict[str, float]:
    labels: tuple[dict[str, str], ...] = ({}, {"topic": "t"}, {"topic": "t", "partition": "0"})
    return {
        sample.name.removeprefix("kafka_"): sample.value
        for family in components.metrics()  # type: ignore[attr-defined]
        for sample in family.samples
        if sample.labels in labels
    }


@pytest.mark.requirement("X-7", "956-15")
def test_what_is_copied_is_measured_under_the_names_that_kafka_has() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        found = told(world, 1)
        assert found.keys() >= OF_KAFKA
        copied = found[f"{TOPIC}remotecopyrequests_total"]
        assert (
            copied == found["tidewal_tier_copied_segments_total"] == found[f"{TOPIC}remotelogmetadatacount"]
        )
        assert (
            found[f"{TOPIC}remotecopybytes_total"] == found[f"{TOPIC}remotelogsizebytes"] > 100 * copied > 0
        )
        assert found[f"{TOPIC}remotecopyerrors_total"] == found[f"{TOPIC}remotecopylagbytes"] == 0
        assert found["tidewal_tier_waiting_bytes"] == found["tidewal_tier_unreferenced_bytes"] == 0
        assert found["server_rlmcopy_byte_rate"] > 0
        assert found[f"{MANAGER}remotelogmanagertasksavgidlepercent"] == 1
        assert found["tidewal_tier_metadata_topic_absent"] == found["tidewal_tier_sweep_left"] == 0
        assert f"{TOPIC}remotelogsizebytes" not in told(world, 2), "each partition is counted by its leader"

    run(main)


def test_a_store_that_is_away_shows_as_lag_and_errors() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        world.store.is_away = True
        await fill(world, 1)
        await asyncio.sleep(300)
        found = told(world, 1)
        closed = log_bytes(world)
        assert found[f"{TOPIC}remotecopyerrors_total"] > 0
        assert found[f"{TOPIC}remotecopylagbytes"] == found["tidewal_tier_waiting_bytes"] == closed
        assert found[f"{TOPIC}remotecopylagsegments"] == len(world.nodes[1].partition().log.segments) - 1
        assert found["tidewal_tier_unreferenced_bytes"] > 0, "the copy that was begun"
        world.store.is_away = False
        await all_copied(world, 1, 2, 3)
        await world.until(lambda: clean(world, 1), timeout_s=4 * LATE_UPLOAD_S)
        found = told(world, 1)
        assert found["tidewal_tier_unreferenced_bytes"] == found[f"{TOPIC}remotecopylagbytes"] == 0

    run(main)


def log_bytes(world: Replicas) -> int:
    log = world.nodes[1].partition().log
    return sum(segment.size for segment in log.segments[:-1])


def test_segments_that_wait_for_their_time_wait_without_being_late() -> None:
    async def main(world: Replicas) -> None:
        make(world, local_retention_ms="7200000", local_retention_bytes="-1", remote_copy_lag_ms="7200000")
        await asyncio.sleep(30)
        await fill(world, 1)
        await asyncio.sleep(30)
        found = told(world, 1)
        assert found["tidewal_tier_waiting_bytes"] == log_bytes(world) > 0
        assert found[f"{TOPIC}remotecopylagbytes"] == found[f"{TOPIC}remotecopylagsegments"] == 0

    run(main)


def test_deletions_are_counted_and_what_is_to_go_is_lag() -> None:
    async def main(world: Replicas) -> None:
        make(world)
        await fill(world, 1)
        await all_copied(world, 1, 2, 3)
        world.store.is_away = True
        configure(world, retention_bytes="1500")
        await asyncio.sleep(30)
        found = told(world, 1)
        assert found[f"{TOPIC}remotedeleteerrors_total"] > 0
        assert found[f"{TOPIC}remotedeletelagsegments"] > 0
        assert found[f"{TOPIC}remotedeletelagbytes"] == found["tidewal_tier_unreferenced_bytes"] > 0
        world.store.is_away = False
        await world.until(lambda: clean(world, 1), timeout_s=4 * LATE_UPLOAD_S)
        found = told(world, 1)
        assert found[f"{TOPIC}remotedeletelagbytes"] == 0
        assert found[f"{TOPIC}remotedeleterequests_total"] >= found["tidewal_tier_deleted_segments_total"] > 0
        assert 100 <= found[f"{MANAGER}retentionsizeinpercent"] < 200, "whole segments go"
        assert found[f"{MANAGER}localretentionsizeinpercent"] > 100, "of one byte"

    run(main)


def test_a_metadata_topic_that_cannot_be_made_shows() -> None:
    async def main(world: Replicas) -> None:
        async def refuse(name: str) -> None:
            raise KafkaError(ErrorCode.invalid_replication_factor)

        for node in world.nodes.values():
            node.member.ensure_internal = refuse  # type: ignore[method-assign]
        world.create(1, remote_storage_enable="true")
        await asyncio.sleep(1)
        found = told(world, 1)
        assert found["tidewal_tier_metadata_topic_absent"] == 1
        assert found["tidewal_tier_metadata_waiting_partitions"] == 1

    run(main)


async def test_reads_are_counted(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    async with await RawClient.open(broker) as client:
        await create_topic(broker, "t", **TIERED)
        for _ in range(3):
            await client.produce("t", batch_of(bytes(1000)))
        roll(broker, "t")
        await tier(broker, "t")
        before = told_by(broker)
        assert before[f"{TOPIC}remotefetchrequests_total"] == 0
        await client.fetch("t", 0)
        await client.fetch("t", 0)
    found = told_by(broker)
    assert found[f"{TOPIC}remotefetchrequests_total"] == 2
    assert found[f"{MANAGER}remotelogreaderfetchrateandtimems_count"] == 2
    assert found[f"{MANAGER}remotelogreaderfetchrateandtimems_sum"] > 0
    assert found[f"{TOPIC}remotefetchbytes_total"] > 2 * 3000
    assert found["server_rlmfetch_byte_rate"] > 0
    assert found["tidewal_tier_index_cache_misses_total"] > 0
    assert found["tidewal_tier_damaged_reads_total"] == found["tidewal_tier_refused_reads_total"] == 0
    assert log_of(broker, "t").log_start_offset == 0
