"""What DescribeConfigs says, beside what a live broker said."""

from __future__ import annotations

import pytest

from broker.config.broker import EFFECTIVE, from_properties
from broker.config.describe import (
    WITHOUT_EFFECT,
    ConfigSource,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from broker.config.values import ConfigType
from tests.broker.config.described import described_server, made, table

SOURCES = {
    "default": ConfigSource.DEFAULT,
    "static": ConfigSource.STATIC_BROKER,
    "cluster-dynamic": ConfigSource.DYNAMIC_DEFAULT_BROKER,
}


OTHER_VALUES = {
    "listeners",
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "remote.log.storage.system.enable",
}


@pytest.mark.parametrize("row", table("broker"), ids=lambda row: row[0])
def test_a_broker_is_described_as_kafka_describes_itself(row: list[str]) -> None:
    name, kind, value, source, read_only, sensitive, synonyms = row
    (found,) = [found for found in DESCRIBED if found.name == name]
    assert found.kind is ConfigType[kind.upper()]
    assert found.read_only is (read_only == "true")
    assert found.sensitive is (sensitive == "true")
    assert found.source is SOURCES[source]
    assert [synonym.name for synonym in found.synonyms] == synonyms.split()
    if name not in OTHER_VALUES:
        assert (found.value or "") == value


DESCRIBED = describe_broker(described_server())


def test_nothing_is_described_that_kafka_does_not_know_but_our_own() -> None:
    ours = {row.name for row in DESCRIBED} - {row[0] for row in table("broker")}
    assert ours == {
        "log.dir.min.free.bytes",
        "log.flush.single.replica",
        "log.remote.copy.lag.bytes",
        "log.remote.copy.lag.ms",
        "record.validation",
        "request.rows.max",
        "remote.log.wal.storage.manager.class.name",
        "remote.log.wal.storage.manager.class.path",
        "remote.log.wal.storage.manager.impl.prefix",
        "remote.log.wal.storage.system.enable",
        "remote.wal.local.sync",
        "remote.wal.log.manager.combiner.queue.size",
        "remote.wal.log.manager.combiner.task.interval.ms",
        "remote.wal.log.manager.combiner.task.upload.bytes",
        "remote.wal.log.manager.combiner.thread.pool.size",
        "remote.wal.log.manager.thread.pool.size",
    }


def test_what_kafka_hides_counts_and_is_not_described() -> None:
    config = from_properties({"log.initial.task.delay.ms": "7"})
    assert config.log_initial_task_delay_ms == 7
    assert "log.initial.task.delay.ms" not in {row.name for row in describe_broker(config)}


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_throttled_rate_is_described_where_it_was_set(role: str) -> None:
    name = f"{role}.replication.throttled.rate"
    config = described_server().with_dynamic(default={name: "2000"}, broker={name: "1000"})
    (row,) = [row for row in describe_broker(config) if row.name == name]
    assert row.value == "1000"
    assert [(synonym.value, synonym.source) for synonym in row.synonyms] == [
        ("1000", ConfigSource.DYNAMIC_BROKER),
        ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ]


@pytest.mark.parametrize(("name", "describe"), [("topic", describe_topic), ("group", describe_group)])
def test_topics_and_groups_are_described_as_kafka_does(name: str, describe: object) -> None:
    assert callable(describe)
    rows = {row.name: row for row in describe(described_server(), {})}
    for wanted, kind, value, source, _, _, synonyms in table(name):
        row = rows.pop(wanted)
        assert row.kind is ConfigType[kind.upper()], wanted
        assert (row.value or "") == value, wanted
        assert row.source is SOURCES[source], wanted
        assert [synonym.name for synonym in row.synonyms] == synonyms.split(), wanted
        assert not row.read_only
        assert not row.sensitive
    assert set(rows) == (OUR_TOPIC_SETTINGS if name == "topic" else set())


OUR_TOPIC_SETTINGS = {
    "record.validation",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.log.pressure.policy",
    "remote.wal.storage.enable",
}


def test_a_described_topic_names_every_level() -> None:
    config = made(log_retention_ms="1").with_dynamic(
        default={"log.retention.ms": "2"}, broker={"log.retention.ms": "3"}
    )
    (row,) = [row for row in describe_topic(config, {"retention.ms": "4"}) if row.name == "retention.ms"]
    assert (row.value, row.source) == ("4", ConfigSource.TOPIC)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms] == [
        ("retention.ms", "4", ConfigSource.TOPIC),
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "1", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]


def test_the_clusters_default_shows_only_what_was_set() -> None:
    config = made(message_max_bytes="5").with_dynamic(default={"message.max.bytes": "6"}, broker={})
    (row,) = describe_broker_defaults(config)
    assert (row.name, row.value, row.source) == (
        "message.max.bytes",
        "6",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )
    assert [synonym.value for synonym in row.synonyms] == ["6"]


def test_secrets_and_unknown_settings_are_not_shown() -> None:
    config = made().with_dynamic(default={}, broker={"my.own.setting": "hidden"})
    config = from_properties({"ssl.keystore.password": "hidden"}).with_dynamic(
        default={}, broker={"my.own.setting": "hidden"}
    )
    rows = {row.name: row for row in describe_broker(config)}
    for name in ("ssl.keystore.password", "my.own.setting"):
        assert rows[name].sensitive
        assert rows[name].value is None
        assert all(synonym.value is None for synonym in rows[name].synonyms)


def test_what_has_no_effect_is_described_so() -> None:
    documentation = {row.name: row.documentation for row in describe_broker(made())}
    in_vain = {name for name, text in documentation.items() if text == WITHOUT_EFFECT}
    assert in_vain == documentation.keys() - EFFECTIVE
    assert {"num.io.threads", "queued.max.requests", "transaction.state.log.load.buffer.size"} <= in_vain
    of_topics = {row.name: row.documentation for row in describe_topic(made(), {})}
    assert {name for name, text in of_topics.items() if text == WITHOUT_EFFECT} == {"preallocate"}
    assert {row.documentation for row in describe_group(made(), {})} == {WITHOUT_EFFECT}
