"""What the settings of the tiers may say together, and what their managers are told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.config.broker import from_properties
from broker.config.dynamic import check_broker_configs
from broker.config.tables import ALIASES, BROKER
from broker.config.tiering import MetadataTopic, copy_lag_warning
from broker.config.topics import check_topic_configs, log_config
from broker.config.values import ConfigError
from tests.broker.config.described import made

TIERED = {"remote.storage.enable": "true"}
DAY_MS = 86_400_000


def check(
    overrides: Mapping[str, str],
    *,
    before: Mapping[str, str] | None = None,
    is_internal: bool = False,
    **properties: str,
) -> None:
    check_topic_configs(made(**properties), overrides, before=before or {}, is_internal=is_internal)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"cleanup.policy": "compact"}, "only supports topics with cleanup.policy=delete or cleanup.policy"),
        ({"cleanup.policy": "delete,compact"}, "only supports topics with cleanup.policy=delete"),
        (
            {"local.retention.ms": "999999999999"},
            "Invalid value 999999999999 for configuration local.retention.ms: "
            "Value must not be more than retention.ms property value: 604800000",
        ),
        (
            {"local.retention.ms": "-1"},
            "for configuration local.retention.ms: Value must not be -1 as retention.ms value is set as 6048",
        ),
        (
            {"local.retention.bytes": "11", "retention.bytes": "10"},
            "for configuration local.retention.bytes: "
            "Value must not be more than retention.bytes property value: 10",
        ),
        (
            {"local.retention.bytes": "-1", "retention.bytes": "0"},
            "Value must not be -1 as retention.bytes value is set as 0.",
        ),
        (
            {"remote.log.copy.disable": "true", "local.retention.ms": "1"},
            "When `remote.log.copy.disable` is set to true, the `local.retention.ms` and `retention.ms` must",
        ),
        (
            {"remote.log.copy.disable": "true", "local.retention.bytes": "1"},
            "When `remote.log.copy.disable` is set to true, the `local.retention.bytes` and `retention.byt",
        ),
    ],
)
def test_a_topic_cannot_be_tiered_so(overrides: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(TIERED | overrides)
    assert why in str(caught.value)
    check(overrides)  # none of it counts for a topic that is not tiered


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"cleanup.policy": ""},
        {"local.retention.ms": "604800000", "local.retention.bytes": "-1"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"remote.log.copy.disable": "true", "local.retention.ms": "604800000"},
        {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"},
    ],
)
def test_a_topic_can_be_tiered_so(overrides: dict[str, str]) -> None:
    check(TIERED | overrides)


def test_no_topic_is_tiered_while_the_system_is_off() -> None:
    with pytest.raises(ConfigError, match="Tiered Storage functionality is disabled in the broker"):
        check(TIERED, remote_log_storage_system_enable="false")


def test_the_system_is_on_unless_it_is_switched_off() -> None:
    assert made().remote_log_storage_system_enable
    assert not made(remote_log_storage_system_enable="false").remote_log_storage_system_enable


def test_no_internal_topic_is_tiered() -> None:
    with pytest.raises(ConfigError, match=r"does not support internal topics: remote\.storage\.enable"):
        check(TIERED, is_internal=True)
    check({}, is_internal=True)


@pytest.mark.parametrize("off", [{}, {"remote.storage.enable": "false"}])
def test_tiering_ends_only_with_what_is_in_the_tier(off: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="invalid to disable remote storage without deleting remote data"):
        check(off, before=TIERED)
    check(off | {"remote.log.delete.on.disable": "true"}, before=TIERED)
    check(off, before={"remote.storage.enable": "false"})


def test_the_brokers_retention_counts_for_a_topic_without_its_own() -> None:
    with pytest.raises(ConfigError, match=r"must not be more than retention\.ms property value: 1000"):
        check(TIERED | {"local.retention.ms": "2000"}, log_retention_ms="1000")


# --- copy lag (KIP-1241) ---


@pytest.mark.requirement("1241-01", "1241-02", "1241-03", "1241-04", "1241-05", "1241-12")
def test_copy_lags_and_their_defaults() -> None:
    assert (log_config(made(), {}).remote_copy_lag_ms, log_config(made(), {}).remote_copy_lag_bytes) == (
        0,
        -1,
    )
    config = made(log_remote_copy_lag_ms="7", log_remote_copy_lag_bytes="8")
    assert (log_config(config, {}).remote_copy_lag_ms, log_config(config, {}).remote_copy_lag_bytes) == (7, 8)
    own = log_config(config, {"remote.copy.lag.ms": "0", "remote.copy.lag.bytes": "-1"})
    assert (own.remote_copy_lag_ms, own.remote_copy_lag_bytes) == (0, -1)
    dynamic = config.with_dynamic(default={"log.remote.copy.lag.ms": "9"}, broker={})
    assert log_config(dynamic, {}).remote_copy_lag_ms == 9


@pytest.mark.requirement("1241-01", "1241-02", "1241-03", "1241-04")
@pytest.mark.parametrize("value", ["-2", "soon", ""])
@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_a_lag_is_a_number_from_minus_one_on(unit: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"remote.copy.lag.{unit}"):
        check({f"remote.copy.lag.{unit}": value})
    with pytest.raises(ConfigError, match=f"log.remote.copy.lag.{unit}"):
        from_properties({f"log.remote.copy.lag.{unit}": value})


@pytest.mark.requirement("1241-09")
@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            {"remote.copy.lag.ms": "604800001"},
            "Invalid value 604800001 for configuration remote.copy.lag.ms: "
            "Value must not exceed local.retention.ms (effective value: 604800000)",
        ),
        (
            {"remote.copy.lag.ms": "11", "local.retention.ms": "10"},
            "remote.copy.lag.ms: Value must not exceed local.retention.ms (effective value: 10)",
        ),
        (
            {"remote.copy.lag.bytes": "11", "retention.bytes": "10"},
            "remote.copy.lag.bytes: Value must not exceed local.retention.bytes (effective value: 10)",
        ),
        (
            {"remote.copy.lag.bytes": "11", "local.retention.bytes": "10"},
            "remote.copy.lag.bytes: Value must not exceed local.retention.bytes (effective value: 10)",
        ),
    ],
)
def test_a_lag_above_local_retention_is_refused(overrides: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(TIERED | overrides)
    assert why in str(caught.value)
    check(overrides)


@pytest.mark.requirement("1241-09")
@pytest.mark.parametrize(
    "overrides",
    [
        {"remote.copy.lag.ms": "-1", "remote.copy.lag.bytes": "-1", "local.retention.bytes": "10"},
        {"remote.copy.lag.ms": "0", "local.retention.ms": "0"},
        {"remote.copy.lag.ms": str(9 * DAY_MS), "retention.ms": "-1"},
        {"remote.copy.lag.bytes": "1000"},
        {"remote.copy.lag.ms": "10", "local.retention.ms": "10"},
    ],
)
def test_a_lag_within_local_retention_is_taken(overrides: dict[str, str]) -> None:
    check(TIERED | overrides)


@pytest.mark.requirement("1241-09")
@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(
    ("dynamic", "why"),
    [
        ({"log.remote.copy.lag.ms": "604800001"}, "log.remote.copy.lag.ms: Value must not exceed log.local."),
        (
            {"log.remote.copy.lag.bytes": "11", "log.local.retention.bytes": "10"},
            "log.remote.copy.lag.bytes: Value must not exceed log.local.retention.bytes (effective value: 1",
        ),
        (
            {"log.local.retention.ms": "11", "log.retention.ms": "10"},
            "log.local.retention.ms: Value must not be more than log.retention.ms property value: 10",
        ),
        (
            {"log.local.retention.bytes": "-1", "log.retention.bytes": "10"},
            "log.local.retention.bytes: Value must not be -1 as log.retention.bytes value is set as 10.",
        ),
    ],
)
def test_the_brokers_defaults_obey_the_same_rules(
    dynamic: dict[str, str], why: str, *, per_broker: bool
) -> None:
    for config in (made(), made(remote_log_storage_system_enable="false")):
        with pytest.raises(ConfigError) as caught:
            check_broker_configs(config, dynamic, per_broker=per_broker)
        assert why in str(caught.value)
    with pytest.raises(ConfigError):
        from_properties(dynamic)
    from_properties({**dynamic, "remote.log.storage.system.enable": "false"})


@pytest.mark.requirement("1241-18")
@pytest.mark.parametrize(
    ("overrides", "vain"),
    [
        ({}, None),
        (
            {"remote.copy.lag.bytes": "5"},
            "remote.copy.lag.bytes=5 has no effect while remote.copy.lag.ms is 0",
        ),
        ({"remote.copy.lag.bytes": "5", "remote.copy.lag.ms": "-1"}, None),
        ({"remote.copy.lag.ms": "5"}, None),
        (
            {"remote.copy.lag.ms": "5", "remote.copy.lag.bytes": "0"},
            "remote.copy.lag.ms=5 has no effect while remote.copy.lag.bytes is 0",
        ),
    ],
)
def test_a_lag_that_is_set_in_vain_is_told(overrides: dict[str, str], vain: str | None) -> None:
    warning = copy_lag_warning(log_config(made(), overrides), "")
    assert warning is None if vain is None else warning is not None and warning.startswith(vain)


@pytest.mark.requirement("1241-18")
def test_the_brokers_lag_in_vain_is_among_its_warnings() -> None:
    (warning,) = made(log_remote_copy_lag_bytes="5").warnings
    assert warning.startswith("log.remote.copy.lag.bytes=5 has no effect while log.remote.copy.lag.ms is 0")
    assert made().warnings == ()


# --- other names (KIP-956) ---


@pytest.mark.requirement("956-01", "956-02", "956-03", "956-04", "956-05", "956-06")
def test_the_names_that_kip_956_proposed_are_taken_with_a_warning() -> None:
    given = {
        "remote.log.manager.write.quota.default": "100",
        "remote.log.manager.write.quota.window.num": "61",
        "remote.log.manager.write.quota.window.size.seconds": "2",
        "remote.log.manager.read.quota.default": "200",
        "remote.log.manager.read.quota.window.num": "12",
        "remote.log.manager.read.quota.window.size.seconds": "3",
    }
    assert given.keys() == ALIASES.keys()
    assert set(ALIASES.values()) <= BROKER.keys()
    config = from_properties(given)
    assert config.remote_log_manager_copy_max_bytes_per_second == 100
    assert config.remote_log_manager_copy_quota_window_num == 61
    assert config.remote_log_manager_copy_quota_window_size_seconds == 2
    assert config.remote_log_manager_fetch_max_bytes_per_second == 200
    assert config.remote_log_manager_fetch_quota_window_num == 12
    assert config.remote_log_manager_fetch_quota_window_size_seconds == 3
    assert config.ignored == ()
    for name in given:
        assert f"{name} is the name that KIP-956 proposed; use {ALIASES[name]}" in config.warnings
    assert config.with_dynamic(default={}, broker={}).warnings == config.warnings


@pytest.mark.requirement("956-01", "956-02", "956-03", "956-04", "956-05", "956-06")
def test_quotas_have_the_defaults_that_kafka_has() -> None:
    config = made()
    assert config.remote_log_manager_copy_max_bytes_per_second == 2**63 - 1
    assert config.remote_log_manager_fetch_max_bytes_per_second == 2**63 - 1
    windows = (
        config.remote_log_manager_copy_quota_window_num,
        config.remote_log_manager_copy_quota_window_size_seconds,
        config.remote_log_manager_fetch_quota_window_num,
        config.remote_log_manager_fetch_quota_window_size_seconds,
    )
    assert windows == (11, 1, 11, 1)
    with pytest.raises(ConfigError, match="at least 1"):
        made(remote_log_manager_copy_max_bytes_per_second="0")


def test_two_names_of_one_setting_must_agree() -> None:
    both = {
        "remote.log.manager.read.quota.default": "5",
        "remote.log.manager.fetch.max.bytes.per.second": "5",
    }
    assert from_properties(both).remote_log_manager_fetch_max_bytes_per_second == 5
    both["remote.log.manager.read.quota.default"] = "6"
    with pytest.raises(ConfigError, match=r"^remote\.log\.manager\.read\.quota\.default is another name of"):
        from_properties(both)


# --- the managers ---


def test_what_follows_the_prefix_is_handed_to_the_storage_manager() -> None:
    named = {"remote.log.storage.manager.class.name": "package.module:Class", "rsm.config.bucket.name": "b"}
    config = from_properties(named)
    assert config.remote_storage_manager_configs == {"bucket.name": "b"}
    assert config.ignored == ()
    other = from_properties({"remote.log.storage.manager.impl.prefix": "mine.", "mine.bucket.name": "b"})
    assert other.remote_storage_manager_configs == {"bucket.name": "b"}
    with pytest.raises(ConfigError, match=r"Unknown configuration rsm\.config\.bucket\.name"):
        from_properties({"remote.log.storage.manager.impl.prefix": "mine.", "rsm.config.bucket.name": "b"})
    with pytest.raises(ConfigError, match="String must be non-empty"):
        from_properties({"remote.log.storage.manager.impl.prefix": ""})


def test_without_a_storage_manager_of_ones_own_nobody_listens() -> None:
    config = from_properties({"rsm.config.dir": "/x"})
    assert (config.remote_log_storage_manager_class_name, config.ignored) == (None, ("rsm.config.dir",))


@pytest.mark.requirement("1176-03", "1176-04", "1176-05")
def test_what_follows_its_prefix_is_handed_to_the_manager_of_combined_objects() -> None:
    named = {
        "remote.log.wal.storage.manager.class.name": "package.module:Class",
        "remote.log.wal.storage.manager.class.path": "/opt/plugins",
        "rwsm.config.bucket.name": "b",
    }
    config = from_properties(named)
    assert config.remote_log_wal_storage_manager_class_name == "package.module:Class"
    assert config.remote_log_wal_storage_manager_class_path == "/opt/plugins"
    assert config.remote_wal_storage_manager_configs == {"bucket.name": "b"}
    assert config.ignored == ()
    assert config.with_dynamic(default={}, broker={}).remote_wal_storage_manager_configs == {
        "bucket.name": "b"
    }
    other = from_properties({"remote.log.wal.storage.manager.impl.prefix": "mine.", "mine.bucket.name": "b"})
    assert other.remote_wal_storage_manager_configs == {"bucket.name": "b"}
    with pytest.raises(ConfigError, match=r"Unknown configuration rwsm\.config\.bucket\.name"):
        from_properties(
            {"remote.log.wal.storage.manager.impl.prefix": "mine.", "rwsm.config.bucket.name": "b"}
        )
    with pytest.raises(ConfigError, match="String must be non-empty"):
        from_properties({"remote.log.wal.storage.manager.impl.prefix": ""})


@pytest.mark.requirement("1176-05", "1176-14")
def test_one_class_may_be_told_the_same_for_both_tiers() -> None:
    named = {
        "remote.log.wal.storage.manager.class.name": "package.module:Class",
        "remote.log.wal.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.bucket.name": "b",
    }
    config = from_properties(named)
    assert config.remote_wal_storage_manager_configs == config.remote_storage_manager_configs
    assert config.ignored == ()


@pytest.mark.requirement("1176-03")
def test_without_a_manager_of_combined_objects_of_ones_own_nobody_listens() -> None:
    config = from_properties({"rwsm.config.dir": "/x"})
    assert (config.remote_log_wal_storage_manager_class_name, config.ignored) == (None, ("rwsm.config.dir",))


@pytest.mark.requirement("X-7")
def test_the_metadata_topic_is_made_as_it_is_told() -> None:
    prefix = "rlmm.config.remote.log.metadata."
    assert made().remote_metadata_topic == MetadataTopic(
        partitions=50, replication_factor=3, min_isr=2, retention_ms=-1, consume_wait_ms=120_000
    )
    alone = from_properties({}, standalone=True).remote_metadata_topic
    assert (alone.replication_factor, alone.min_isr) == (1, 1)
    config = from_properties(
        {
            f"{prefix}topic.num.partitions": "7",
            f"{prefix}topic.replication.factor": "1",
            f"{prefix}topic.retention.ms": "5",
            f"{prefix}consume.wait.ms": "6",
        },
    )
    assert config.remote_metadata_topic == MetadataTopic(
        partitions=7, replication_factor=1, min_isr=1, retention_ms=5, consume_wait_ms=6
    )
    assert config.ignored == ()


def test_settings_that_kafkas_metadata_manager_alone_needs_have_no_effect() -> None:
    prefix = "rlmm.config.remote.log.metadata."
    given = {
        f"{prefix}initialization.retry.interval.ms": "1",
        f"{prefix}producer.linger.ms": "1",
        f"{prefix}common.client.retries": "1",
    }
    assert from_properties(given).ignored == tuple(sorted(given))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("topic.num.partition", "1", "Unknown configuration rlmm.config.remote.log.metadata.topic.num.part"),
        ("topic.num.partitions", "0", "at least 1"),
        ("topic.replication.factor", "x", "Not a number"),
    ],
)
def test_what_the_metadata_manager_cannot_be_told(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        from_properties({f"rlmm.config.remote.log.metadata.{name}": value})


def test_a_metadata_manager_of_ones_own_has_its_own_names() -> None:
    config = from_properties(
        {"remote.log.metadata.manager.class.name": "package.module:Class", "rlmm.config.any": "1"}
    )
    assert (config.remote_metadata_manager_configs, config.ignored) == ({"any": "1"}, ())


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, 2),
        ({"remote.log.manager.thread.pool.size": "5"}, 5),
        (
            {"remote.log.manager.thread.pool.size": "5", "remote.log.manager.follower.thread.pool.size": "3"},
            3,
        ),
    ],
)
def test_the_older_name_of_the_followers_threads(given: dict[str, str], threads: int) -> None:
    assert from_properties(given).remote_log_manager_follower_thread_pool_size == threads


@pytest.mark.requirement("1023-01", "1023-19")
def test_starting_at_the_tier_is_off_and_may_be_switched_on_for_all() -> None:
    config = made()
    assert not config.follower_fetch_last_tiered_offset_enable
    on = {"follower.fetch.last.tiered.offset.enable": "true"}
    check_broker_configs(config, on, per_broker=False)
    assert config.with_dynamic(default=on, broker={}).follower_fetch_last_tiered_offset_enable


def test_the_settings_that_may_change_while_a_broker_runs() -> None:
    for name in (
        "log.dir.min.free.bytes",
        "log.remote.copy.lag.bytes",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
    ):
        check_broker_configs(made(), {name: "4"}, per_broker=True)
    for name in ("remote.log.manager.task.interval.ms", "remote.log.manager.copy.quota.window.num"):
        with pytest.raises(ConfigError, match="Cannot update these configs dynamically"):
            check_broker_configs(made(), {name: "4"}, per_broker=True)


def test_what_the_metadata_manager_is_told_may_have_another_prefix() -> None:
    config = from_properties(
        {
            "remote.log.metadata.manager.impl.prefix": "mine.",
            "mine.remote.log.metadata.topic.num.partitions": "7",
        }
    )
    assert config.remote_metadata_topic.partitions == 7
