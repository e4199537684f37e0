"""The admin pages: what a scrape holds, that it leaves the loop to others, and what visitors cost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from broker.admin import http, pieces
from broker.admin.http import AdminHttp
from protocol.apis import Api
from tests.broker.net.live import until
from tests.broker.raw_client import RawClient, batch_of, create_topic

if TYPE_CHECKING:
    from prometheus_client import Metric

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
        beat = {
            "group_id": "h",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 30_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        }
        assert (await client.call(Api.CONSUMER_GROUP_HEARTBEAT, 0, **beat)).error_code == 0
        samples = [sample for family in broker.components.metrics() for sample in family.samples]
        found = {sample.name: sample.value for sample in samples if not sample.labels}
        labelled = {(one.name, *one.labels.values()): one.value for one in samples}
    name = "kafka_coordinator_group_groupmetadatamanager"
    assert found[f"{name}_numgroups"] == 1
    assert found[f"{name}_nummembers"] == 2
    kinds = "kafka_server_group_coordinator_metrics"
    assert labelled[f"{kinds}_group_count", "classic"] == 1
    assert labelled[f"{kinds}_group_count", "consumer"] == 1
    assert labelled[f"{kinds}_consumer_group_count", "stable"] == 1
    assert labelled[f"{kinds}_consumer_group_count", "empty"] == 0
    assert found[f"{kinds}_consumer_group_rebalance_count_total"] == 1
    assert found[f"{name}_numgroupscompletingrebalance"] == 1
    assert found["kafka_server_replicamanager_produceridcount"] == 1
    assert found["kafka_server_delayedoperationpurgatory_purgatorysize"] == 0
    assert found["asyncio_tasks"] >= 1
    assert found["process_threads"] >= 1
    assert found["python_allocated_blocks"] > 0
    if HAS_PROC:
        assert found["process_open_fds"] > 0
        assert found["process_resident_memory_bytes"] > 0


class Numbers:
    """Metrics that count how often they are collected."""

    def __init__(self, *, pieces: int = 3, documentation: str = "of a test") -> None:
        self.pieces = pieces
        self.documentation = documentation
        self.collected = 0

    def __call__(self) -> Iterator[Metric]:
        self.collected += 1
        for number in range(self.pieces):
            yield GaugeMetricFamily(f"number_{number}", self.documentation, value=self.collected)


@contextlib.asynccontextmanager
async def serving(numbers: Numbers) -> AsyncIterator[AdminHttp]:
    admin = AdminHttp(numbers, is_ready=lambda: False)
    await admin.start("127.0.0.1", 0)
    try:
        yield admin
    finally:
        await admin.stop()


async def ask(admin: AdminHttp, request: bytes) -> bytes:
    """All that is answered until the end of the connection."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(admin.host, admin.port)
        try:
            writer.write(request)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_all_who_come_while_metrics_are_collected_get_the_same_text() -> None:
    numbers = Numbers(pieces=200)
    async with serving(numbers) as admin:
        answers = await asyncio.gather(*(ask(admin, GET) for _ in range(20)))
        assert numbers.collected < 10
        assert all(b"number_199" in answer and b" 200 OK" in answer for answer in answers)
        assert b"number_0 1.0" in answers[0]
        assert not admin._visits


async def test_a_scrape_is_followed_by_a_rest() -> None:
    numbers = Numbers()
    async with serving(numbers) as admin:
        await ask(admin, GET)
        scrapes, loop = admin._scrapes, asyncio.get_running_loop()
        assert scrapes._rests_until_s > 0
        scrapes._rests_until_s = loop.time() + 0.2
        second = asyncio.create_task(ask(admin, GET))
        await until(lambda: scrapes._next)
        assert isinstance(scrapes._next, asyncio.TimerHandle)
        assert scrapes._next.when() >= scrapes._rests_until_s
        assert b"number_0 2.0" in await second, "what it is told is no older than its request"


async def test_a_connection_asks_once() -> None:
    numbers = Numbers()
    async with serving(numbers) as admin:
        answer = await ask(admin, b"GET /healthz HTTP/1.1\r\n\r\n" + GET * 50)
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert numbers.collected == 0


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /readyz HTTP/1.0\r\n\r\n", 503),
        (b"GET /healthz?x=1 HTTP/1.1\nHost: x\n\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"nonsense\r\n", 400),
        (b"GET /metrics\r\n", 400),
        (b"GET http://x/metrics HTTP/1.1\r\n", 400),
        (b"\x16\x03\x01\x00\xc8\x01\x00\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 9000, 431),
    ],
)
async def test_every_request_gets_its_status_and_no_stack_trace(
    request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(Numbers()) as admin:
        answer = await ask(admin, request_)
    assert answer.split(b" ", 2)[:2] == [b"HTTP/1.1", str(status).encode()]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert bool(body) is not request_.startswith(b"HEAD")
    assert b"Connection: close" in head
    assert (b"Allow: GET, HEAD" in head) is (status == 405)
    assert len(caplog.records) == (1 if status == 400 else 0)
    assert not any(line.exc_info for line in caplog.records)


async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving(Numbers()) as admin:
        reader, writer = await asyncio.open_connection(admin.host, admin.port)
        for byte in GET:
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert b"number_2 1.0" in await reader.read()
        writer.close()


async def test_metrics_that_fail_are_said_to_fail(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterator[Metric]:
        yield GaugeMetricFamily("number", "of a test", value=1)
        raise ValueError("no number")

    numbers = Numbers()
    async with serving(numbers) as admin:
        admin._scrapes._collect = broken
        assert b" 500 " in await ask(admin, GET)
        assert caplog.text.count("metrics could not be collected") == 1
        admin._scrapes._collect = numbers
        answer = await ask(admin, GET)
        assert b" 200 OK" in answer
        assert b"\nnumber " not in answer


async def test_one_visit_too_many_costs_the_address_that_has_most_its_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "VISITS_MAX", 3)
    async with serving(Numbers()) as admin:
        silent = [await asyncio.open_connection("127.0.0.1", admin.port) for _ in range(3)]
        await until(lambda: len(admin._visits) == 3)
        assert b" 200 OK" in await ask(admin, GET)
        with contextlib.suppress(ConnectionError):
            assert await silent[0][0].read() == b""
        assert len(admin._visits) == 2
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("limit", ["HEAD_WITHIN_S", "ANSWER_WITHIN_S"])
async def test_visits_have_an_end(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never finishes its request, or does not take its answer, of which little lies in the transport."""
    monkeypatch.setattr(http, limit, 0.1)
    numbers = Numbers(documentation="x" * 2_000_000)
    async with serving(numbers) as admin:
        client = socket.create_connection((admin.host, admin.port))
        client.sendall(GET if limit == "ANSWER_WITHIN_S" else GET[:-1])
        await until(lambda: admin._visits)
        unsent = 0
        while admin._visits:
            for visit in admin._visits:
                assert visit._transport is not None
                unsent = max(unsent, visit._transport.get_write_buffer_size())
            await asyncio.sleep(0.001)
        assert unsent < 1 << 18
        client.close()


async def test_nobody_delays_the_stop() -> None:
    numbers = Numbers(documentation="x" * 2_000_000)
    async with serving(numbers) as admin:
        client = socket.create_connection((admin.host, admin.port))
        client.sendall(GET)
        await until(lambda: numbers.collected)
        await admin.stop()
        await until(lambda: not admin._visits)
        client.close()


async def test_what_clients_make_the_broker_keep_is_told(broker: Broker) -> None:
    async with await RawClient.open(broker) as client:
        await client.send((1 << 20).to_bytes(4, "big") + bytes(50_000))
        await until(lambda: broker.components.network.queued_bytes >= 50_000)
        found = {
            (sample.name, sample.labels.get("account")): sample.value
            for family in broker.components.metrics()
            for sample in family.samples
            if sample.name.startswith("tidewal_memory")
        }
    assert found["tidewal_memory_bytes", "frames"] == 50_004
    assert found["tidewal_memory_bytes", "answers"] == 0
    assert found["tidewal_memory_closed_total", "frames"] == 0
    assert found["tidewal_memory_closed_total", "answers"] == 0
    assert found["tidewal_memory_waiting", None] == 0
