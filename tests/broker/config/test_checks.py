"""The limits of single values."""

from __future__ import annotations

import pytest

from broker.config.broker import from_properties
from broker.config.topics import log_config
from broker.config.values import ConfigError
from tests.broker.config.described import made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.segment.bytes", "1048575"),
        ("num.partitions", "0"),
        ("compression.type", "brotli"),
        ("log.retention.ms", "0"),
        ("log.cleanup.policy", "delete,keep"),
        ("log.cleaner.min.cleanable.ratio", "1.1"),
        ("offsets.topic.replication.factor", "70000"),
        ("auto.create.topics.enable", "on"),
        ("record.validation", "some"),
        ("listener.name.plaintext.max.connections", "many"),
        ("fetch.max.bytes", "1023"),
        ("log.cleaner.io.max.bytes.per.second", "0"),
        ("max.connections.per.ip.overrides", "host:\u00b2"),
        ("max.connections.per.ip.overrides", "host:" + "1" * 5_000),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_properties({name: value})
    assert "\n" not in str(caught.value)


def test_an_empty_cleanup_policy_keeps_for_ever() -> None:
    assert log_config(made(), {"cleanup.policy": ""}).cleanup_policy == ()
