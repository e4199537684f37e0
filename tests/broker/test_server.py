"""A broker's life: start, restart, refusal, and an end that is never silent."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from broker import process, server
from broker.config.broker import BrokerConfig, from_properties
from broker.config.values import ConfigError
from broker.control.directories import StartupError
from broker.net.descriptors import raise_descriptor_limit
from broker.replicas.partition import NAMED_MAX
from protocol.apis import Api
from protocol.errors import ErrorCode
from protocol.records import iter_batches
from remote.store.memory_store import MemoryStore
from storage.log_manager import ConfigOf, IdOf, LogDirLocked, LogManager
from tests.broker.raw_client import RawClient, batch_of, create_topic, fetch_fields, produce_fields
from tests.remote.store.faulty_store import FaultProfile, FaultyStore

if TYPE_CHECKING:
    from tests.conftest import MakeBroker


async def test_a_restart_keeps_topics_records_and_producers(make_broker: MakeBroker, tmp_path: Path) -> None:
    first = await make_broker()
    topic_id = await create_topic(first, "t", 2)
    batch = batch_of(b"x", producer_id=3, producer_epoch=0, base_sequence=0)
    async with await RawClient.open(first) as client:
        await client.produce("t", batch)
    await first.stop()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    second = await make_broker()
    assert second.components.cluster.image.topics["t"].id == topic_id
    async with await RawClient.open(second) as client:
        answer = await client.produce("t", batch)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
        fetched = await client.fetch("t", 0)
        assert fetched.high_watermark == 1
        assert [header.base_offset for _, header in iter_batches(fetched.records)] == [0]


async def test_after_a_clean_stop_nothing_of_a_partition_is_new(make_broker: MakeBroker) -> None:
    first = await make_broker()
    await create_topic(first, "t", 2)
    partitions = first.components.cluster.image.topics["t"].partitions
    await first.stop()
    second = await make_broker()
    assert second.components.cluster.image.topics["t"].partitions == partitions


async def test_a_stop_before_it_joined_does_not_make_good_for_a_crash(
    make_broker: MakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await make_broker()
    await create_topic(first, "t")
    await first.stop()
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    second = server.Broker(first.config, process.real_world(first.config, None))

    async def never_joins(cluster: Any, **_: Any) -> None:
        second.request_stop()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(server.Cluster, "join", never_joins)
        assert await second.start() is False
    third = await make_broker()
    assert third.components.cluster.image.topics["t"].partitions[0].leader_epoch == 1


async def test_a_second_broker_on_the_same_data_is_refused(make_broker: MakeBroker) -> None:
    await make_broker()
    with pytest.raises(LogDirLocked) as error:
        await make_broker()
    assert "in use by another process" in str(error.value)
    assert "\n" not in str(error.value)


async def test_a_port_in_use_is_one_clear_line(make_broker: MakeBroker, tmp_path: Path) -> None:
    first = await make_broker()
    port = first.listeners["PLAINTEXT"].port
    with pytest.raises(StartupError) as error:
        await make_broker(listeners=f"PLAINTEXT://127.0.0.1:{port}", log_dirs=str(tmp_path / "other"))
    assert f"cannot listen on 127.0.0.1:{port}" in str(error.value)
    # and its data directory is free again
    second = await make_broker(log_dirs=str(tmp_path / "other"))
    assert second.is_ready


async def test_who_connects_before_ready_waits(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    join = server.Cluster.join

    async def slow_join(self: Any, **given: Any) -> None:
        (port,) = given["ports"].values()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = RawClient(reader, writer)
        await client.send(client.encode(Api.API_VERSIONS, 0, {}))
        started.append(client)
        await join(self, **given)

    monkeypatch.setattr(server.Cluster, "join", slow_join)
    await make_broker()
    (client,) = started
    assert (await client.receive_as(Api.API_VERSIONS, 0)).error_code is ErrorCode.none
    client.writer.close()


async def test_stopping_answers_waiters_or_closes_and_refuses_new_ones(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    client = await RawClient.open(broker)
    await client.send(client.encode(Api.FETCH, 12, fetch_fields("t", 0, max_wait=60_000)))
    other = await RawClient.open(broker)
    await other.call(Api.API_VERSIONS, 0)
    async with asyncio.timeout(5):
        await broker.stop()
        await broker.run_until_stopped()
    assert await client.is_closed()
    assert await other.is_closed()
    with pytest.raises(ConnectionError):
        await RawClient.open(broker)
    for each in (client, other):
        each.writer.close()


async def test_a_background_task_that_dies_takes_the_broker_down(make_broker: MakeBroker) -> None:
    broker = await make_broker()

    async def die() -> None:
        raise RuntimeError("a bug")

    broker.components.background.spawn(die())
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="a bug"):
            await broker.run_until_stopped()
    broker._root = None


async def test_being_fenced_stops_the_broker_and_says_why(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    broker.fail("another process took over node 1")
    async with asyncio.timeout(5):
        with pytest.raises(StartupError, match="took over node 1"):
            await broker.run_until_stopped()


async def test_logs_of_no_topic_are_set_aside_and_told_of_in_one_line(
    make_broker: MakeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await make_broker()
    await create_topic(first, "t")
    await first.stop()
    for index in range(NAMED_MAX + 2):
        (tmp_path / "data" / f"ghost-{index}").mkdir()
        (tmp_path / "data" / f"ghost-{index}" / f"{0:020d}.log").write_bytes(b"")
    await make_broker()
    (line,) = (message for message in caplog.messages if "set aside" in message)
    assert "ghost-0, ghost-1, " in line
    assert line.endswith(" and 2 more")
    names = [path.name for path in (tmp_path / "data").iterdir()]
    assert "ghost-0" not in names
    assert [name for name in names if name.startswith("ghost-0.") and name.endswith("-stray")]
    assert "t-0" in names


async def test_the_admin_port_tells_health_and_metrics(tmp_path: Path) -> None:
    parsed = from_properties(
        {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")},
        standalone=True,
    )
    broker = server.Broker(parsed, process.real_world(parsed, None), admin=("127.0.0.1", 0))
    await broker.start()
    try:
        await create_topic(broker, "t", 2)
        async with await RawClient.open(broker) as client:
            batch = batch_of(b"a", b"b")
            for acks in (1, -1, 5):
                await client.call(Api.PRODUCE, 9, **produce_fields("t", batch, acks=acks))
            await client.fetch("t", 0)
        assert broker.admin is not None
        base = f"http://127.0.0.1:{broker.admin.port}"
        async with aiohttp.ClientSession() as session:
            for page in ("healthz", "readyz"):
                async with session.get(f"{base}/{page}") as response:
                    assert response.status == 200
            async with session.get(f"{base}/metrics") as response:
                text = await response.text()
            broker.is_ready = False
            async with session.get(f"{base}/readyz") as response:
                assert response.status == 503
    finally:
        await broker.stop()
    lines = set(text.splitlines())
    for line in (
        'kafka_server_brokertopicmetrics_messagesin_total{topic="t"} 4.0',
        f'kafka_server_brokertopicmetrics_bytesin_total{{topic="t"}} {2.0 * len(batch)}',
        f'kafka_server_brokertopicmetrics_bytesout_total{{topic="t"}} {2.0 * len(batch)}',
        'kafka_network_requestmetrics_requests_total{request="Produce"} 3.0',
        'kafka_network_requestmetrics_requests_total{request="Fetch"} 1.0',
        'kafka_log_log_logendoffset{partition="0",topic="t"} 4.0',
        f'kafka_log_log_size{{partition="0",topic="t"}} {2.0 * len(batch)}',
        "kafka_server_replicamanager_partitioncount 2.0",
        "kafka_server_replicamanager_leadercount 2.0",
        "kafka_server_replicamanager_underreplicatedpartitions 0.0",
        "kafka_controller_kafkacontroller_activecontrollercount 1.0",
        'tidewal_object_store_requests_total{operation="put_if_absent"} 2.0',
        'tidewal_object_store_request_seconds_count{operation="put_if_absent"} 2.0',
        'tidewal_object_store_request_seconds_bucket{le="+Inf",operation="put_if_absent"} 2.0',
        "tidewal_object_store_hedges_total 0.0",
    ):
        assert line in lines
    written = next(line for line in lines if line.startswith("tidewal_object_store_bytes_written_total "))
    assert float(written.split()[1]) > 0


@pytest.mark.parametrize("url", ["s3://b", "file://host/dir", "nonsense", "file:"])
def test_store_urls_that_cannot_be(url: str, tmp_path: Path) -> None:
    parsed = from_properties({"node.id": "1", "log.dirs": str(tmp_path)}, standalone=True)
    with pytest.raises(ConfigError, match="--store"):
        process.real_world(parsed, url)


async def test_a_stop_does_not_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    parsed = from_properties(
        {"node.id": "1", "log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"},
        standalone=True,
    )
    profile = FaultProfile(down=True)
    store = FaultyStore(MemoryStore(), profile, random.Random(1))
    broker = server.Broker(parsed, dataclasses.replace(process.real_world(parsed, None), store=store))
    starting = asyncio.create_task(broker.start())
    async with asyncio.timeout(10):
        while not broker.listeners:  # noqa: ASYNC110 - the last thing before the store is asked
            await asyncio.sleep(0.01)
    await broker.stop()
    assert not await starting
    profile.heal()
    again = server.Broker(parsed, dataclasses.replace(process.real_world(parsed, None), store=store))
    await again.start()
    await again.stop()


@pytest.mark.parametrize("address", ["nope", "host:", "host:99999", ":x"])
def test_admin_addresses_that_cannot_be(address: str) -> None:
    with pytest.raises(ConfigError, match="--admin"):
        process._address(address)


async def test_several_log_dirs_and_one_of_them_fails(make_broker: MakeBroker, tmp_path: Path) -> None:
    """The failed one answers 56, the other lives on."""
    broker = await make_broker(log_dirs=f"{tmp_path}/one,{tmp_path}/two")
    await create_topic(broker, "t", 4)
    logs = broker.components.logs
    async with await RawClient.open(broker) as client:
        for index in range(4):
            await client.produce("t", batch_of(b"x"), index=index)
        logs._dir_failed(f"{tmp_path}/one", OSError(5, "Input/output error"))
        codes = set()
        for index in range(4):
            held = broker.components.logs.logs["t", index]
            answer = await client.produce("t", batch_of(b"x"), index=index)
            expected = ErrorCode.kafka_storage_error if held.log_dir.endswith("one") else ErrorCode.none
            assert answer.error_code is expected
            assert (await client.fetch("t", 0, index=index)).error_code is expected
            codes.add(expected)
        assert len(codes) == 2
        await create_topic(broker, "u", 2)
        for index in range(2):
            answer = await client.produce("u", batch_of(b"x"), index=index)
            assert answer.error_code is ErrorCode.none
        response = await client.call(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
        assert {each.log_dir: each.error_code for each in response.results} == {
            f"{tmp_path}/one": ErrorCode.kafka_storage_error,
            f"{tmp_path}/two": ErrorCode.none,
        }


async def test_a_broker_without_a_log_directory_ends(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = await make_broker(log_dirs=f"{tmp_path}/one,{tmp_path}/two")
    for name in ("one", "two"):
        assert broker.is_ready
        broker.components.logs._dir_failed(f"{tmp_path}/{name}", OSError(5, "Input/output error"))
    with pytest.raises(StartupError, match="every log directory has failed"):
        await broker.run_until_stopped()
    assert not (tmp_path / "one" / ".kafka_cleanshutdown").exists()


async def test_dynamic_settings_reach_what_they_are_about_and_last(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    wanted = {
        "log.cleaner.dedupe.buffer.size": "2000000",
        "log.cleaner.io.max.bytes.per.second": "5000.0",
        "log.retention.ms": "77000",
        "log.segment.bytes": "2000000",
        "max.connections": "7",
        "max.connections.per.ip": "5",
        "message.max.bytes": "30000",
        "producer.id.expiration.ms": "4000",
    }
    configs = [{"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()]
    resource = {"resource_type": 4, "resource_name": "", "configs": configs}
    async with await RawClient.open(broker) as client:
        answer = await client.call(
            Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
        )
        assert answer.responses[0].error_code is ErrorCode.none
    _check_in_force(broker)
    await broker.stop()
    _check_in_force(await make_broker())


def _check_in_force(broker: server.Broker) -> None:
    components = broker.components
    held = components.logs.logs["t", 0]
    assert held.producer_expiration_ms == components.logs.producer_expiration_ms == 4_000
    assert (held.config.retention_ms, held.config.segment_bytes) == (77_000, 2_000_000)
    assert held.config.max_message_bytes == 30_000
    limits = components.network.limits
    assert (limits.connections, limits.connections_per_ip) == (7, 5)
    cleaner = components.logs.cleaner
    assert (cleaner.dedupe_bytes, cleaner.io_max_bytes_per_second) == (2_000_000, 5_000.0)


def test_the_descriptor_limit_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_many_partitions_are_made_and_dropped_in_slices(make_broker: MakeBroker) -> None:
    """Whoever asks meanwhile is served meanwhile."""
    broker = await make_broker()
    replicas = broker.components.replicas
    seen = [0]

    async def watch() -> None:
        while True:
            seen.append(sum(1 for _ in replicas.partitions()))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await create_topic(broker, "wide", 200)
    async with await RawClient.open(broker) as client:
        assert (await client.produce("wide", batch_of(b"x"), index=199)).error_code is ErrorCode.none
        deleted = await client.call(Api.DELETE_TOPICS, 5, topic_names=["wide"], timeout=5000)
        assert deleted.responses[0].error_code is ErrorCode.none
    watching.cancel()
    assert max(seen) == 200 and seen[-1] == 0
    assert max(abs(after - before) for before, after in itertools.pairwise(seen)) <= 8


def clean_notes(data: Path) -> Any:
    return json.loads((data / ".kafka_cleanshutdown").read_text())["logs"]


async def stopped_while_loading(config: BrokerConfig, monkeypatch: pytest.MonkeyPatch) -> server.Broker:
    """A broker that is asked to stop after the first slice of opening its logs."""
    broker = server.Broker(config, process.real_world(config, None))
    loading = LogManager.loading

    def asked_to_stop(logs: LogManager, config_of: ConfigOf, id_of: IdOf) -> Iterator[None]:
        for step in loading(logs, config_of, id_of):
            broker.request_stop()
            yield step

    with monkeypatch.context() as patch:
        patch.setattr(LogManager, "loading", asked_to_stop)
        assert await broker.start() is False
    assert not broker.is_ready
    return broker


async def test_a_stop_is_heard_while_logs_are_opened(
    make_broker: MakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await make_broker()
    await create_topic(first, "t", 200)
    async with await RawClient.open(first) as client:
        await client.produce("t", batch_of(b"x"), index=99)
    await first.stop()
    notes = clean_notes(tmp_path / "data")
    second = await stopped_while_loading(first.config, monkeypatch)
    assert 0 < len(second.components.logs.logs) < 200
    assert clean_notes(tmp_path / "data") == notes
    third = await make_broker()
    async with await RawClient.open(third) as client:
        assert (await client.fetch("t", 0, index=99)).high_watermark == 1
        assert (await client.produce("t", batch_of(b"y"), index=99)).base_offset == 1


async def test_a_stop_during_recovery_leaves_a_log_that_recovers(
    make_broker: MakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await make_broker()
    await create_topic(first, "t")
    async with await RawClient.open(first) as client:
        for _ in range(30):
            await client.produce("t", batch_of(b"x" * 500_000))
    await first.stop()
    data = tmp_path / "data"
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n00\n")
    second = await stopped_while_loading(first.config, monkeypatch)
    assert not second.components.logs.logs
    assert not (data / ".kafka_cleanshutdown").exists()
    assert (data / "recovery-point-offset-checkpoint").read_text() == "0\n00\n"
    third = await make_broker()
    async with await RawClient.open(third) as client:
        assert (await client.fetch("t", 0)).high_watermark == 30


async def test_a_start_that_fails_does_not_forget_the_clean_stop(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    first = await make_broker()
    await create_topic(first, "t")
    await first.stop()
    notes = clean_notes(tmp_path / "data")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(StartupError):
            await make_broker(listeners=f"PLAINTEXT://127.0.0.1:{holder.getsockname()[1]}")
    assert clean_notes(tmp_path / "data") == notes


async def test_a_clean_stop_syncs_logs_side_by_side(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await make_broker()
    await create_topic(broker, "t", 50)
    async with await RawClient.open(broker) as client:
        for index in range(50):
            await client.produce("t", batch_of(b"x"), index=index)
    at_once, most = [0], [0]
    offload = broker.world.offload

    async def counted(job: Callable[[], Any]) -> Any:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        try:
            return await offload(job)
        finally:
            at_once[0] -= 1

    broker.world = replace(broker.world, offload=counted)
    await broker.stop()
    assert most[0] == server.SYNCS_AT_ONCE


async def test_connections_leave_descriptors_for_files(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await make_broker()
    await create_topic(broker, "t")
    async with await RawClient.open(broker) as client:
        await client.produce("t", batch_of(b"x"))
        (segment,) = broker.components.logs.logs["t", 0].segments
        assert segment.is_open
        monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
        other = await RawClient.open(broker)
        assert await other.is_closed()
        other.writer.close()
        assert not segment.is_open  # tried first
        assert (await client.produce("t", batch_of(b"y"))).base_offset == 1
    assert broker.components.network.stats.rejected == 1
