"""What a broker is started with reaches what acts on it.

Only settings are here that no test of a behaviour changes; `tests/broker/config/effects.tsv` names the test
of every one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

from broker import build, process
from broker.components import Components
from broker.config.broker import from_properties
from protocol.apis import Api
from remote.store.location import FileLocation
from remote.store.metered import StoreStats
from tests.broker.raw_client import RawClient, create_topic
from tests.conftest import MakeBroker


def _tier(components: Components) -> Any:
    assert components.tiering is not None
    return components.tiering


def _reads(components: Components) -> Any:
    assert components.tier_reads is not None
    return components.tier_reads


def _wal(components: Components) -> Any:
    assert components.wal is not None
    return components.wal


def _window(pacer: Any) -> tuple[int, float]:
    samples = pacer._quota._bytes
    return samples._samples, samples._sample_s


IN_FORCE: Mapping[str, tuple[str, Any, Callable[[Any], Any]]] = {
    "broker.heartbeat.interval.ms": ("700", 0.7, lambda c: c.cluster.heartbeats._hold_s),
    "broker.session.timeout.ms": ("7000", 7.0, lambda c: c.cluster.heartbeats._sessions._timeout_s),
    "fetch.max.bytes": ("5000", 5000, lambda c: c.follower_fetch._reader._max_bytes),
    "follower.replication.throttled.rate": ("77", 77, lambda c: c.fetchers.throttle._rate()),
    "group.initial.rebalance.delay.ms": (
        "5",
        5,
        lambda c: c.groups._group_config.initial_rebalance_delay_ms,
    ),
    "group.max.session.timeout.ms": (
        "90000",
        90_000,
        lambda c: c.groups._group_config.max_session_timeout_ms,
    ),
    "leader.replication.throttled.rate": ("78", 78, lambda c: c.follower_fetch._throttle._rate()),
    "log.cleaner.enable": ("false", False, lambda c: c.logs.cleaner.enabled),
    "log.dir.min.free.bytes": ("4096", 4096, lambda c: _tier(c).pressure._min_free_bytes()),
    "log.flush.offset.checkpoint.interval.ms": (
        "54321",
        54_321,
        lambda c: c.logs._maintenance._intervals.recovery_points_ms,
    ),
    "log.flush.start.offset.checkpoint.interval.ms": (
        "54321",
        54_321,
        lambda c: c.logs._maintenance._intervals.log_starts_ms,
    ),
    "log.flush.single.replica": ("true", True, lambda c: c.replicas._flush_single),
    "log.initial.task.delay.ms": (
        "54321",
        54_321,
        lambda c: c.logs._maintenance._intervals.initial_delay_ms,
    ),
    "log.retention.check.interval.ms": (
        "54321",
        54_321,
        lambda c: c.logs._maintenance._intervals.retention_ms,
    ),
    "offsets.commit.timeout.ms": ("4000", 4000, lambda c: c.groups._state_config.append_timeout_ms),
    "remote.log.index.file.cache.total.size.bytes": (
        "1000000",
        1_000_000,
        lambda c: _reads(c).reader.copies.indexes._bytes_max(),
    ),
    "remote.log.manager.copy.quota.window.num": ("3", 3, lambda c: _window(_tier(c).copier.quota)[0]),
    "remote.log.manager.copy.quota.window.size.seconds": (
        "2",
        2,
        lambda c: _window(_tier(c).copier.quota)[1],
    ),
    "remote.log.manager.expiration.thread.pool.size": ("3", 3, lambda c: _tier(c)._expiring._size()),
    "remote.log.manager.fetch.quota.window.num": ("4", 4, lambda c: _window(_reads(c).reader.quota)[0]),
    "remote.log.manager.fetch.quota.window.size.seconds": (
        "3",
        3,
        lambda c: _window(_reads(c).reader.quota)[1],
    ),
    "remote.log.manager.follower.thread.pool.size": ("5", 5, lambda c: _tier(c)._following._size()),
    "remote.log.metadata.custom.metadata.max.bytes": ("64", 64, lambda c: _tier(c).copier._custom_bytes_max),
    "remote.log.reader.max.pending.tasks": ("7", 7, lambda c: _reads(c)._pending_max),
    "remote.log.reader.threads": ("3", 3, lambda c: _reads(c).reader.copies.chunks.parallel),
    "remote.wal.log.manager.combiner.queue.size": ("99", 99, lambda c: _wal(c).uploader._settings().slices),
    "remote.wal.log.manager.combiner.task.upload.bytes": (
        "99999",
        99_999,
        lambda c: _wal(c).uploader._settings().object_bytes,
    ),
    "remote.wal.log.manager.thread.pool.size": ("3", 3, lambda c: _wal(c).hydrator._slots._value),
    "replica.high.watermark.checkpoint.interval.ms": (
        "54321",
        54_321,
        lambda c: c.logs._maintenance._intervals.high_watermarks_ms,
    ),
    "replication.quota.window.num": ("3", 3, lambda c: c.fetchers.throttle._samples),
    "replication.quota.window.size.seconds": ("2", 2, lambda c: c.follower_fetch._throttle._sample_s),
    "max.connections.per.ip": ("8", 8, lambda c: c.network.limits.connections_per_ip),
    "max.incremental.fetch.session.cache.slots": ("9", 9, lambda c: c.fetch_sessions._max_sessions),
    "offset.metadata.max.bytes": ("99", 99, lambda c: c.groups._group_config.offset_metadata_max_bytes),
    "offsets.retention.minutes": ("5", 300_000, lambda c: c.groups._group_config.offsets_retention_ms),
    "offsets.topic.compression.codec": ("2", 2, lambda c: c.groups._state_config.codec),
    "remote.wal.log.manager.combiner.thread.pool.size": (
        "3",
        3,
        lambda c: _wal(c).uploader._settings().in_flight,
    ),
    "request.timeout.ms": ("4000", 4.0, lambda c: c.cluster.producer_ids._timeout_s),
    "queued.max.request.bytes": ("200000000", 200_000_000, lambda c: c.network.limits.queued_bytes),
    "remote.fetch.max.wait.ms": ("300", 0.3, lambda c: _reads(c).fetch_wait_s()),
    "remote.log.manager.copier.thread.pool.size": ("3", 3, lambda c: _tier(c)._copying._size()),
    "remote.wal.log.manager.combiner.task.interval.ms": (
        "30",
        0.03,
        lambda c: _wal(c).uploader._settings().interval_s,
    ),
    "replica.lag.time.max.ms": ("20000", 20.0, lambda c: c.replicas.lag_s),
    "request.rows.max": ("5000", 5000, lambda c: c.network.service._rows_max()),
    "socket.request.max.bytes": ("100000000", 100_000_000, lambda c: c.network.limits.request_bytes),
}
"""Setting: its value, what that is where it is acted on, and where that is."""


async def test_what_is_set_at_the_start_is_in_force(make_broker: MakeBroker) -> None:
    texts = {name.replace(".", "_"): text for name, (text, _, _) in IN_FORCE.items()}
    components = (await make_broker(**texts)).components
    found = {name: look(components) for name, (_, _, look) in IN_FORCE.items()}
    assert found == {name: value for name, (_, value, _) in IN_FORCE.items()}


async def test_each_of_these_is_another_value_than_without_it(make_broker: MakeBroker) -> None:
    components = (await make_broker()).components
    same = [name for name, (_, value, look) in IN_FORCE.items() if look(components) == value]
    assert not same


async def test_an_answer_describes_no_more_partitions_than_it_may(make_broker: MakeBroker) -> None:
    broker = await make_broker(max_request_partition_size_limit="2")
    await create_topic(broker, "t", partitions=3)
    async with await RawClient.open(broker) as client:
        answer = await client.call(
            Api.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": "t"}],
            response_partition_limit=1000,
            cursor=None,
        )
    assert [len(topic.partitions) for topic in answer.topics] == [2]
    assert answer.next_cursor.partition_index == 2


async def test_a_broker_says_where_it_stands(make_broker: MakeBroker) -> None:
    broker = await make_broker(broker_rack="here")
    assert broker.components.cluster.image.brokers[1].rack == "here"


async def test_the_cleaner_rests_as_long_as_it_should(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await make_broker(log_cleaner_backoff_ms="20000")
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)
        raise asyncio.CancelledError

    with monkeypatch.context() as patched, suppress(asyncio.CancelledError):
        patched.setattr(asyncio, "sleep", rest)
        await broker._clean()
    assert rested == [20.0]


def test_a_plugin_is_looked_for_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[str | None] = []

    def load(name: str, configs: object, *, class_path: str | None) -> Any:
        where.append(class_path)

    for loader in ("load_manager", "load_metadata_manager"):
        monkeypatch.setattr(build, loader, load)
    config = from_properties(
        {
            f"remote.log.{kind}.manager.class.{end}": text
            for kind in ("storage", "metadata")
            for end, text in (("name", "a.module:Name"), ("path", f"/of/{kind}"))
        }
    )
    nobody = cast("Any", None)
    build._storage_manager(config, nobody)
    build._metadata_manager(config, nobody, nobody, nobody, nobody, nobody)
    assert where == ["/of/storage", "/of/metadata"]


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_lane_to_this_machine_is_synced_where_that_is_said(
    monkeypatch: pytest.MonkeyPatch, is_synced: bool
) -> None:
    made: list[bool] = []
    monkeypatch.setattr(process, "open_lane", lambda location, *, syncs, **rest: made.append(syncs))
    config = from_properties({"remote.wal.local.sync": str(is_synced).lower()})
    process._lane(config, FileLocation("/nowhere"), StoreStats())
    assert made == [is_synced]


async def test_the_tier_is_looked_at_as_often_as_it_should(make_broker: MakeBroker) -> None:
    tiering = _tier((await make_broker(remote_log_manager_task_interval_ms="3000000")).components)
    for _ in range(100):
        if tiering._wakes_at:
            break
        await asyncio.sleep(0)
    wait_s = tiering._wakes_at - asyncio.get_running_loop().time()
    assert 2_000 < wait_s <= 3_000
