"""The tables: their defaults, and names that are in none."""

from __future__ import annotations

import pytest

from broker.config.broker import from_properties
from broker.config.checks import BROKER_CHECKS, GROUP_CHECKS, TOPIC_CHECKS, Check
from broker.config.tables import BROKER, GROUP, TOPIC, Definition
from broker.config.values import ConfigError, format_value


@pytest.mark.parametrize("definitions", [BROKER, TOPIC, GROUP])
def test_every_default_is_a_value_its_own_checks_allow(definitions: dict[str, Definition]) -> None:
    for definition in definitions.values():
        if definition.default is not None:
            assert format_value(definition.parse(definition.default)) == definition.default


@pytest.mark.parametrize(
    ("checks", "definitions"), [(BROKER_CHECKS, BROKER), (TOPIC_CHECKS, TOPIC), (GROUP_CHECKS, GROUP)]
)
def test_every_check_is_of_a_setting_that_is_there(
    checks: dict[str, Check], definitions: dict[str, Definition]
) -> None:
    assert checks.keys() - definitions.keys() == set()


def test_defaults_without_a_store_are_those_of_a_broker_alone() -> None:
    alone, one_of_many = from_properties({}, standalone=True), from_properties({})
    names = (
        "offsets_topic_replication_factor",
        "transaction_state_log_replication_factor",
        "transaction_state_log_min_isr",
        "group_initial_rebalance_delay_ms",
    )
    assert [getattr(alone, name) for name in names] == [1, 1, 1, 0]
    assert [getattr(one_of_many, name) for name in names] == [3, 3, 2, 3000]


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("log.retention.hour", "log.retention.hours"),
        ("autocreate.topics.enable", "auto.create.topics.enable"),
        ("offset.topic.replication.factor", "offsets.topic.replication.factor"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, guess: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown configuration {name}; did you mean {guess}\\?"):
        from_properties({name: "1"})


def test_nonsense_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"^Unknown configuration qqq$"):
        from_properties({"qqq": "1"})


def test_names_for_one_listener_and_for_plugins_are_known() -> None:
    properties = {
        "listener.name.plaintext.max.connections": "7",
        "rsm.config.dir": "/x",
        "listener.name.plaintext.plain.sasl.jaas.config": "secret",
    }
    assert from_properties(properties).ignored == tuple(sorted(properties))
