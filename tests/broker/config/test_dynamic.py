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
        (
            {"remote.wal.enable": "true"},
            False,
            "did you mean remote.wal.storage.enable, a setting",
        ),
        ({"remote.wal.storage.enable": "true"}, True, "it is a setting of topics"),
    ],
)
def test_dynamic_broker_settings_are_checked(dynamic: dict[str, str], per_broker: bool, why: str) -> None:
    check_broker_configs(
        made(), {"log.retention.ms": "5", "my.own": "x", "ssl.own": "x"}, per_broker=per_broker
    )
    with pytest.raises(ConfigError, match=why):
        check_broker_configs(made(), dynamic, per_broker=per_broker)


@pytest.mark.requirement("1176-09", "1176-10")
@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(("end", "value"), [("interval.ms", 500), ("upload.bytes", 2048)])
def test_when_objects_leave_and_how_large_may_change_while_a_broker_runs(
    end: str, value: int, per_broker: bool
) -> None:
    name = f"remote.wal.log.manager.combiner.task.{end}"
    check_broker_configs(made(), {name: str(value)}, per_broker=per_broker)
    assert made().with_dynamic(default={name: str(value)}, broker={}).get(name) == value
    field = name.replace(".", "_")
    assert getattr(made().with_dynamic(default={name: "9"}, broker={name: str(value)}), field) == value
    with pytest.raises(ConfigError, match="must be at least"):
        check_broker_configs(made(), {name: "0"}, per_broker=per_broker)


@pytest.mark.requirement("1176-02", "1176-03", "1176-06")
@pytest.mark.parametrize(
    "name",
    [
        "remote.log.wal.storage.system.enable",
        "remote.log.wal.storage.manager.class.name",
        "remote.wal.local.sync",
        "remote.wal.log.manager.thread.pool.size",
    ],
)
def test_what_a_broker_is_built_from_does_not_change_while_it_runs(name: str) -> None:
    with pytest.raises(ConfigError, match="Cannot update these configs dynamically"):
        check_broker_configs(made(), {name: "true"}, per_broker=True)


def test_what_a_plugin_is_told_may_have_any_name() -> None:
    check_broker_configs(made(), {"rwsm.config.my.wal.path": "x"}, per_broker=True)
    with pytest.raises(ConfigError, match=r"Unknown configuration my\.wal\.path"):
        check_broker_configs(made(), {"my.wal.path": "x"}, per_broker=True)
