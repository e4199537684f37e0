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
