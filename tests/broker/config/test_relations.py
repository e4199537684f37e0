"""What the settings of one broker must say to each other."""

from __future__ import annotations

import pytest

from broker.config.broker import from_properties
from broker.config.dynamic import check_broker_configs
from broker.config.relations import check_relations
from broker.config.tables import BROKER
from broker.config.values import ConfigError
from tests.broker.config.described import made


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"broker.heartbeat.interval.ms": "6000"}, "broker.heartbeat.interval.ms broker.session.timeout.ms"),
        ({"broker.session.timeout.ms": "1000"}, "broker.heartbeat.interval.ms broker.session.timeout.ms"),
        (
            {"group.max.session.timeout.ms": "5999"},
            "group.min.session.timeout.ms group.max.session.timeout.ms",
        ),
        ({"replica.fetch.wait.max.ms": "30001"}, "replica.fetch.wait.max.ms replica.socket.timeout.ms"),
        ({"replica.lag.time.max.ms": "499"}, "replica.fetch.wait.max.ms replica.lag.time.max.ms"),
        ({"log.cleaner.threads": "128"}, "log.cleaner.dedupe.buffer.size log.cleaner.threads"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "log.cleaner.dedupe.buffer.size"),
        (
            {"connections.max.idle.ms": "100"},
            "connection.failed.authentication.delay.ms connections.max.idle.ms",
        ),
        ({"queued.max.request.bytes": "100"}, "queued.max.request.bytes socket.request.max.bytes"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip max.connections.per.ip.overrides"),
        ({"cordoned.log.dirs": "/b", "log.dirs": "/a"}, "cordoned.log.dirs"),
        ({"log.retention.hours": "0"}, "log.retention.hours"),
        ({"log.retention.minutes": "0", "log.retention.hours": "5"}, "log.retention.minutes"),
        (
            {"group.consumer.heartbeat.interval.ms": "4000"},
            "group.consumer.heartbeat.interval.ms group.consumer.min.heartbeat.interval.ms",
        ),
        (
            {
                "group.streams.heartbeat.interval.ms": "45000",
                "group.streams.max.heartbeat.interval.ms": "50000",
            },
            "group.streams.heartbeat.interval.ms group.streams.session.timeout.ms",
        ),
        ({"group.share.max.size": "500", "group.share.max.share.sessions": "499"}, "group.share.max.size"),
    ],
)
def test_settings_that_break_a_rule_are_refused_by_name(properties: dict[str, str], names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_properties(properties)
    assert "\n" not in str(caught.value)
    for name in names.split():
        assert name in BROKER
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "properties",
    [
        {"broker.heartbeat.interval.ms": "9", "broker.session.timeout.ms": "10"},
        {"connections.max.idle.ms": "-1"},
        {"queued.max.request.bytes": "0"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:5"},
        {"cordoned.log.dirs": "/a", "log.dirs": "/a,/b"},
        {"cordoned.log.dirs": "*"},
        {"log.retention.hours": "0", "log.retention.ms": "5"},
        {"log.retention.hours": "-5"},
    ],
)
def test_settings_that_keep_every_rule_are_taken(properties: dict[str, str]) -> None:
    check_relations(from_properties(properties))


def test_a_change_while_it_runs_keeps_the_rules_too() -> None:
    change = {"log.cleaner.dedupe.buffer.size": "1048577"}
    check_broker_configs(made(), change, per_broker=True)
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        check_broker_configs(made(log_cleaner_threads="2"), change, per_broker=True)
