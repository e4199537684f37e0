"""The limits of Kafka's own table of settings, each tried at its edges.

`kafka-limits.tsv` holds what the ConfigDefs of Kafka 4.3.1 (of brokers, topics and groups) print as their
validators.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.config.tables import BROKER, GROUP, TOPIC, Definition
from broker.config.values import ConfigError, ConfigType

TABLES = {"broker": BROKER, "topic": TOPIC, "group": GROUP}
ROWS = [
    line.split("\t") for line in (Path(__file__).parent / "kafka-limits.tsv").read_text().splitlines()[1:]
]
NARROWER = {
    # no thread divides the buffer by nothing, which Kafka finds when it has read all settings
    "log.cleaner.threads": 1,
    # a smaller segment makes a topic that cannot be created
    "offsets.topic.segment.bytes": 1 << 20,
    "transaction.state.log.segment.bytes": 1 << 20,
}
"""What is refused here although Kafka's table has it: the least value that is not."""
INTERVAL = re.compile(r"\[(-?[0-9.]+),\.\.\.(?:,([0-9.]+))?\]")
BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}
WHOLE = {ConfigType.SHORT, ConfigType.INT, ConfigType.LONG}


def is_taken(definition: Definition, value: object) -> bool:
    try:
        definition.parse(str(value))
    except ConfigError as error:
        assert "\n" not in str(error)
        assert definition.name in str(error)
        return False
    return True


@pytest.mark.parametrize(
    ("level", "name", "limits"),
    [(level, name, limits) for level, name, _, limits in ROWS if INTERVAL.fullmatch(limits)],
)
def test_a_number_has_the_limits_that_kafka_gives_it(level: str, name: str, limits: str) -> None:
    definition = TABLES[level][name]
    found = INTERVAL.fullmatch(limits)
    assert found is not None
    number = int if definition.kind in WHOLE else float
    step = 1 if definition.kind in WHOLE else 0.001
    least = NARROWER.get(name, number(found[1]))
    assert is_taken(definition, least)
    assert not is_taken(definition, least - step)
    if found[2] is not None:
        assert is_taken(definition, number(found[2]))
        assert not is_taken(definition, number(found[2]) + step)


@pytest.mark.parametrize(
    ("level", "name", "limits"), [(level, name, limits) for level, name, _, limits in ROWS]
)
def test_every_setting_that_kafka_checks_is_checked(level: str, name: str, limits: str) -> None:
    if name == "authorizer.class.name":
        return  # it may not be null, which no file can say
    assert TABLES[level][name].check is not None, limits


@pytest.mark.parametrize(
    "name",
    [
        name
        for level, name, kind, limits in ROWS
        if level == "broker" and kind == "string" and limits.startswith(("[", "(case insensitive)"))
    ],
)
def test_a_choice_is_one_of_those_that_kafka_names(name: str) -> None:
    limits = next(row[3] for row in ROWS if row[:2] == ["broker", name])
    choices = limits[limits.index("[") + 1 : -1].split(", ")
    assert all(is_taken(BROKER[name], choice) for choice in choices)
    assert not is_taken(BROKER[name], "something-else")
    is_any_case = limits.startswith("(")
    assert is_taken(BROKER[name], choices[0].swapcase()) is is_any_case
    assert not is_taken(BROKER[name], "")


@pytest.mark.parametrize(
    ("name", "refused", "taken"),
    [
        ("broker.heartbeat.interval.ms", "0", "1"),
        ("broker.session.timeout.ms", "-1", "1"),
        ("default.replication.factor", "0", "1"),
        ("group.initial.rebalance.delay.ms", "-1", "0"),
        ("group.max.session.timeout.ms", "0", "1"),
        ("group.min.session.timeout.ms", "0", "1"),
        ("log.flush.interval.ms", "-1", "0"),
        ("num.partitions", "10001", "10000"),
        ("offset.metadata.max.bytes", "-1", "0"),
        ("offsets.topic.compression.codec", "5", "4"),
        ("offsets.topic.num.partitions", "1000000", "10000"),
        ("replica.fetch.min.bytes", "-1", "0"),
        ("replica.fetch.wait.max.ms", "-1", "0"),
        ("replica.lag.time.max.ms", "0", "1"),
        ("replica.socket.timeout.ms", "0", "1"),
        ("request.timeout.ms", "0", "1"),
        ("socket.receive.buffer.bytes", "0", "-1"),
        ("socket.send.buffer.bytes", "-2", "1"),
        ("transaction.state.log.num.partitions", "10001", "10000"),
    ],
)
def test_what_kafka_takes_and_could_not_work_is_refused(name: str, refused: str, taken: str) -> None:
    assert is_taken(BROKER[name], taken)
    assert not is_taken(BROKER[name], refused)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("advertised.listeners", ""),
        ("controller.listener.names", ""),
        ("controller.quorum.bootstrap.servers", "host"),
        ("controller.quorum.voters", "host:9093"),
        ("group.coordinator.rebalance.protocols", "consumer"),
        ("log.dir", ""),
        ("log.dirs", "a,"),
        ("metric.reporters", "a,,b"),
        ("process.roles", ""),
    ],
)
def test_a_list_has_the_items_that_kafka_wants(name: str, value: str) -> None:
    assert not is_taken(BROKER[name], value)
