"""A topic's settings: which level wins, and what is refused."""

from __future__ import annotations

import pytest

from broker.config.broker import from_properties
from broker.config.describe import (
    describe_topic,
)
from broker.config.tables import CHAIN_OF, TOPIC
from broker.config.topics import LOG_FIELDS, check_topic_configs, log_config
from broker.config.values import ConfigError
from storage.policy import LogConfig
from tests.broker.config.described import made


def test_the_smallest_unit_wins() -> None:
    hours = made(log_retention_hours="2", log_roll_hours="3")
    assert log_config(hours, {}).retention_ms == 2 * 3_600_000
    assert log_config(hours, {}).segment_ms == 3 * 3_600_000
    minutes = made(log_retention_hours="2", log_retention_minutes="5")
    assert log_config(minutes, {}).retention_ms == 5 * 60_000
    ms = made(log_retention_minutes="5", log_retention_ms="7")
    assert log_config(ms, {}).retention_ms == 7
    assert log_config(made(log_retention_hours="-1"), {}).retention_ms == -1


def test_every_field_of_a_log_is_a_topic_setting_with_the_same_default() -> None:
    """A field without a setting would keep its default for ever, in silence."""
    assert LogConfig.__annotations__.keys() == set(LOG_FIELDS.values())
    assert log_config(made(), {}) == LogConfig()


def test_topic_over_broker_over_default_over_static() -> None:
    config = made(log_retention_ms="1", message_max_bytes="1000")
    assert log_config(config, {}).retention_ms == 1
    dynamic = config.with_dynamic(
        default={"log.retention.ms": "2", "message.max.bytes": "2000"}, broker={"log.retention.ms": "3"}
    )
    assert log_config(dynamic, {}).retention_ms == 3
    assert log_config(dynamic, {}).max_message_bytes == 2000
    assert dynamic.message_max_bytes == 2000
    assert log_config(dynamic, {"retention.ms": "4"}).retention_ms == 4


OTHER = {
    "compression.gzip.level": "7",
    "compression.lz4.level": "7",
    "compression.type": "gzip",
    "compression.zstd.level": "7",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleanup.policy": "compact",
    "log.message.timestamp.type": "LogAppendTime",
    "record.validation": "full",
    "unclean.leader.election.enable": "true",
}
OF_BROKERS = [
    (name, field)
    for topic_name, field in LOG_FIELDS.items()
    for synonym in TOPIC[topic_name].synonyms
    for name in CHAIN_OF.get(synonym, (synonym,))
]


@pytest.mark.parametrize(("name", "field"), OF_BROKERS)
def test_a_brokers_value_is_that_of_a_topic_without_one(name: str, field: str) -> None:
    """What a log does with it is shown by the tests of the topic's own setting."""
    config = from_properties({name: OTHER.get(name, "2000000")})
    assert getattr(log_config(config, {}), field) != getattr(LogConfig(), field)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"retention.msec": "1"}, "Unknown topic config name: retention.msec"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"segment.bytes": "1000"}, "at least 1048576"),
        ({"cleanup.policy": "compact,"}, "must not be empty"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "conflict topic config setting"),
        ({"leader.replication.throttled.replicas": "0:1,x"}, "must be the literal"),
        ({"compression.gzip.level": "0"}, "between 1 and 9"),
    ],
)
def test_topic_settings_are_checked(overrides: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_topic_configs(made(), overrides, before={}, is_internal=False)


def test_small_segments_are_there_for_tests() -> None:
    overrides = {"internal.segment.bytes": "200"}
    check_topic_configs(made(), overrides, before={}, is_internal=False)
    assert log_config(made(), overrides).segment_bytes == 200
    assert "internal.segment.bytes" not in {row.name for row in describe_topic(made(), overrides)}


WAL = {"remote.wal.storage.enable": "true"}


@pytest.mark.requirement("1176-01")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("remote.wal.enable", "; did you mean remote.wal.storage.enable?"),
        ("remote.log.wal.storage.enable", "; did you mean remote.wal.storage.enable?"),
        ("remote.log.wal.storage.system.enable", ": it is a setting of brokers"),
        (
            "remote.wal.combiner.task.interval.ms",
            "; did you mean remote.wal.log.manager.combiner.task.interval.ms, a setting of brokers?",
        ),
    ],
)
def test_a_misspelt_setting_of_the_wal_tier_is_refused_with_the_right_name(name: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic_configs(made(), {name: "true"}, before={}, is_internal=False)
    assert str(caught.value) == f"Unknown topic config name: {name}{why}"


@pytest.mark.requirement("1176-01")
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete"},
        {"remote.storage.enable": "true"},
        {"message.timestamp.type": "LogAppendTime"},
        {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"},
    ],
)
def test_a_topic_may_use_the_wal_tier_so(overrides: dict[str, str]) -> None:
    check_topic_configs(made(), WAL | overrides, before={}, is_internal=False)
    assert log_config(made(), WAL | overrides).remote_wal_storage_enable
    assert not log_config(made(), overrides).remote_wal_storage_enable


@pytest.mark.requirement("1176-01", "1176-02")
def test_no_topic_begins_to_use_the_wal_tier_while_the_system_is_off() -> None:
    off = made(remote_log_wal_storage_system_enable="false")
    why = (
        "remote.wal.storage.enable cannot be switched on while "
        "remote.log.wal.storage.system.enable=false in the brokers"
    )
    for before in ({}, {"remote.wal.storage.enable": "false"}):
        with pytest.raises(ConfigError) as caught:
            check_topic_configs(off, WAL, before=before, is_internal=False)
        assert str(caught.value) == why
    check_topic_configs(off, WAL | {"retention.ms": "5"}, before=WAL, is_internal=False)
    check_topic_configs(off, {"remote.wal.storage.enable": "false"}, before=WAL, is_internal=False)


@pytest.mark.requirement("1176-01")
def test_of_internal_topics_the_brokers_decide_which_are_stored() -> None:
    with pytest.raises(
        ConfigError, match=r"^remote\.wal\.storage\.enable cannot be set on internal topics: "
    ):
        check_topic_configs(made(), WAL, before={}, is_internal=True)
    check_topic_configs(made(), {"remote.wal.storage.enable": "false"}, before={}, is_internal=True)
