"""What may be changed while a broker runs."""

from __future__ import annotations

import pytest

from broker.config.dynamic import check_broker_configs
from broker.config.values import ConfigError
from tests.broker.config.described import made


@pytest.mark.parametrize(
    ("dynamic", "per_broker", "why"),
    [
        ({"num.partitions": "3"}, True, r"Cannot update these configs dynamically: \[num.partitions\]"),
        ({"log.flush.single.replica": "true"}, True, "Cannot update these configs dynamically"),
        ({"listeners": "PLAINTEXT://:1"}, True, "Cannot update these configs dynamically"),
        ({"ssl.keystore.type": "PEM"}, True, "listener prefix"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, False, "broker id must be specified"),
        ({"log.retention.ms": "x"}, False, "Not a number"),
        ({"log.retention.ms": "0"}, False, "unlimited"),
    ],
)
def test_dynamic_broker_settings_are_checked(dynamic: dict[str, str], per_broker: bool, why: str) -> None:
    check_broker_configs(made(), {"log.retention.ms": "5", "my.own": "x"}, per_broker=per_broker)
    with pytest.raises(ConfigError, match=why):
        check_broker_configs(made(), dynamic, per_broker=per_broker)
