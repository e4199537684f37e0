"""The admin pages: what a scrape holds, and that it leaves the loop to others in between."""

from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker import metrics
from broker.admin_http import AdminHttp
from tests.broker.raw_client import create_topic

if TYPE_CHECKING:
    from broker.server import Broker


async def test_a_scrape_of_many_partitions_comes_in_pieces_and_reads_as_one(
    broker: "Broker", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PIECE", 10)
    count = 2 * metrics.PIECE + 1
    await create_topic(broker, "t", count)
    pieces = list(metrics.collect(broker.components))
    sizes = [len(piece.samples) for piece in pieces if piece.name == "kafka_log_log_size"]
    assert sizes == [10, 10, 1]
    admin = AdminHttp(broker.components, is_ready=lambda: True)
    await admin.start("127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{admin.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
    finally:
        await admin.stop()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) == len({piece.name for piece in pieces})
    assert text.count("# TYPE ") == text.count("# HELP ") == len(names)
    (of_logs,) = (family for family in families if family.name == "kafka_log_log_size")
    assert sorted(int(sample.labels["partition"]) for sample in of_logs.samples) == list(range(count))
    assert all(family.documentation for family in families)
