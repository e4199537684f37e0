"""The admin pages: what a scrape holds, and that it leaves the loop to others in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.admin import pieces
from broker.admin.http import AdminHttp
from protocol.apis import Api
from tests.broker.raw_client import RawClient, batch_of, create_topic

if TYPE_CHECKING:
    from broker.server import Broker

HAS_PROC = Path("/proc/self/stat").exists()


async def test_a_scrape_of_many_partitions_comes_in_pieces_and_reads_as_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 10)
    count = 2 * pieces.PIECE + 1
    await create_topic(broker, "t", count)
    told = list(broker.components.metrics())
    sizes = [len(piece.samples) for piece in told if piece.name == "kafka_log_log_size"]
    assert sizes == [10, 10, 1]
    admin = AdminHttp(broker.components.metrics, is_ready=lambda: True)
    await admin.start("127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{admin.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
    finally:
        await admin.stop()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) == len({piece.name for piece in told})
    assert text.count("# TYPE ") == text.count("# HELP ") == len(names)
    (of_logs,) = (family for family in families if family.name == "kafka_log_log_size")
    assert sorted(int(sample.labels["partition"]) for sample in of_logs.samples) == list(range(count))
    assert all(family.documentation for family in families)


async def test_groups_producers_and_the_process_are_told_of(broker: Broker) -> None:
    await create_topic(broker, "t")
    await broker.components.cluster.ensure_internal("__consumer_offsets")
    async with await RawClient.open(broker) as client:
        batch = batch_of(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await client.produce("t", batch)).error_code == 0
        join = {
            "group_id": "g",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        assert (await client.call(Api.JOIN_GROUP, 3, **join)).error_code == 0
        found = {
            sample.name: sample.value
            for family in broker.components.metrics()
            for sample in family.samples
            if not sample.labels
        }
    name = "kafka_coordinator_group_groupmetadatamanager"
    assert found[f"{name}_numgroups"] == found[f"{name}_nummembers"] == 1
    assert found[f"{name}_numgroupscompletingrebalance"] == 1
    assert found["kafka_server_replicamanager_produceridcount"] == 1
    assert found["kafka_server_delayedoperationpurgatory_purgatorysize"] == 0
    assert found["asyncio_tasks"] >= 1
    assert found["process_threads"] >= 1
    assert found["python_allocated_blocks"] > 0
    if HAS_PROC:
        assert found["process_open_fds"] > 0
        assert found["process_resident_memory_bytes"] > 0
