"""A group's settings: what is refused."""

from __future__ import annotations

import pytest

from broker.config.groups import check_group_configs
from broker.config.values import ConfigError
from tests.broker.config.described import made


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"consumer.session.timeout": "1"}, "Unknown group config name"),
        ({"consumer.session.timeout.ms": "1000"}, "greater than or equal to group.consumer.min.session"),
        ({"consumer.heartbeat.interval.ms": "16000"}, "less than or equal to group.consumer.max.heartbeat"),
        ({"share.delivery.count.limit": "11"}, "less than or equal to group.share.max.delivery.count.limit"),
        ({"streams.num.standby.replicas": "3"}, "less than or equal to group.streams.max.standby.replicas"),
        ({"share.isolation.level": "none"}, "one of: read_committed, read_uncommitted"),
        ({"share.auto.offset.reset": "none"}, "must be either"),
    ],
)
def test_group_settings_are_checked(overrides: dict[str, str], why: str) -> None:
    check_group_configs(made(), {"consumer.session.timeout.ms": "50000"})
    with pytest.raises(ConfigError, match=why):
        check_group_configs(made(), overrides)


@pytest.mark.parametrize(
    ("what", "limits", "inside", "below", "above"),
    [
        ("session.timeout.ms", ("46000", "50000"), "48000", "45500", "55000"),
        ("heartbeat.interval.ms", ("5100", "6000"), "5500", "5050", "7000"),
        ("assignment.interval.ms", ("200", "3000"), "1500", "100", "4000"),
    ],
)
def test_a_brokers_limits_hold_for_its_groups(
    what: str, limits: tuple[str, str], inside: str, below: str, above: str
) -> None:
    least, most = (f"group.consumer.{limit}.{what}" for limit in ("min", "max"))
    broker = made(**{least: limits[0], most: limits[1], f"group.consumer.{what}": inside})
    name = f"consumer.{what}"
    check_group_configs(broker, {name: inside})
    with pytest.raises(ConfigError, match=f"{name} must be greater than or equal to {least}"):
        check_group_configs(broker, {name: below})
    with pytest.raises(ConfigError, match=f"{name} must be less than or equal to {most}"):
        check_group_configs(broker, {name: above})


def test_a_limit_of_groups_is_not_called_one_without_effect() -> None:
    limits = {"group.consumer.max.session.timeout.ms": "70000", "group.share.max.session.timeout.ms": "70000"}
    assert made(**limits).ignored == ("group.share.max.session.timeout.ms",)


@pytest.mark.parametrize(
    "assignors", ["", "uniform,,range", "uniform,org.example.MyAssignor", "Uniform", "simple"]
)
def test_only_assignors_that_are_here_can_be_set(assignors: str) -> None:
    made(**{"group.consumer.assignors": "range"})
    with pytest.raises(ConfigError, match=r"group\.consumer\.assignors"):
        made(**{"group.consumer.assignors": assignors})
