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


# --- the WAL tier (KIP-1176) ---

SWITCH = "remote.wal.storage.enable"
SYSTEM = "remote.log.wal.storage.system.enable"


@pytest.mark.requirement("1176-01", "1176-02")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("remote.wal.enable", f"; did you mean {SWITCH}, a setting of topics?"),
        (SWITCH, ": it is a setting of topics"),
        ("remote.log.wal.enable", f"; did you mean {SWITCH}, a setting of topics?"),
        ("remote.wal.storage.system.enable", f"; did you mean {SYSTEM}?"),
        ("remote.log.wal.system.enable", f"; did you mean {SYSTEM}?"),
        ("log.wal.storage.system.enable", f"; did you mean {SYSTEM}?"),
        ("remote.wal.sync", "; did you mean remote.wal.local.sync?"),
        ("wal.qqq.zzz", f"; did you mean {SWITCH}, a setting of topics?"),
        *(
            (name, f"; did you mean {meant}?")
            for name, meant in (
                ("remote.wal.storage.manager.class.name", "remote.log.wal.storage.manager.class.name"),
                ("remote.log.wal.manager.class.path", "remote.log.wal.storage.manager.class.path"),
                ("remote.wal.manager.impl.prefix", "remote.log.wal.storage.manager.impl.prefix"),
                ("remote.log.wal.manager.thread.pool.size", "remote.wal.log.manager.thread.pool.size"),
                ("remote.wal.combiner.queue.size", "remote.wal.log.manager.combiner.queue.size"),
                (
                    "remote.log.wal.manager.combiner.thread.pool.size",
                    "remote.wal.log.manager.combiner.thread.pool.size",
                ),
                (
                    "remote.wal.log.manager.combiner.interval.ms",
                    "remote.wal.log.manager.combiner.task.interval.ms",
                ),
                (
                    "remote.wal.log.combiner.upload.bytes",
                    "remote.wal.log.manager.combiner.task.upload.bytes",
                ),
            )
        ),
    ],
)
def test_a_misspelt_setting_of_the_wal_tier_is_refused_with_the_right_name(name: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_properties({name: "1"})
    assert str(caught.value) == f"Unknown configuration {name}{why}"


@pytest.mark.requirement("1176-02", "1176-06", "1176-07", "1176-08", "1176-09", "1176-10")
def test_the_wal_tiers_settings_and_their_defaults() -> None:
    config = from_properties({})
    assert config.remote_log_wal_storage_system_enable
    assert not config.remote_wal_local_sync
    assert config.remote_wal_log_manager_thread_pool_size == 8
    assert config.remote_wal_log_manager_combiner_thread_pool_size == 4
    assert config.remote_wal_log_manager_combiner_queue_size == 16_384
    assert config.remote_wal_log_manager_combiner_task_interval_ms == 20
    assert config.remote_wal_log_manager_combiner_task_upload_bytes == 4 << 20


@pytest.mark.requirement("1176-09")
def test_objects_are_fewer_and_larger_where_a_put_is_slow() -> None:
    name = "remote.wal.log.manager.combiner.task.interval.ms"
    assert from_properties({}, plain_s3=True).remote_wal_log_manager_combiner_task_interval_ms == 100
    given = from_properties({name: "30"}, plain_s3=True)
    assert given.remote_wal_log_manager_combiner_task_interval_ms == 30
    dynamic = from_properties({}, plain_s3=True).with_dynamic(default={name: "40"}, broker={})
    assert dynamic.remote_wal_log_manager_combiner_task_interval_ms == 40


@pytest.mark.requirement("1176-54")
def test_what_the_proposal_saves_is_not_spent_on_puts() -> None:
    """Its example, per broker and month; a thousand puts are 0.005 USD on plain S3."""
    saves = (866 + 1612) - (776 + 648)
    puts_each_s = {ms: 1000 / ms for ms in (10, 100)}
    cost = {ms: each_s * 86_400 * 30 / 1000 * 0.005 for ms, each_s in puts_each_s.items()}
    assert cost[10] > saves, "the proposal's own 100 objects a second"
    interval_ms = from_properties({}, plain_s3=True).remote_wal_log_manager_combiner_task_interval_ms
    assert cost[interval_ms] < saves / 8


@pytest.mark.requirement("1176-06", "1176-07", "1176-08", "1176-09", "1176-10")
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("thread.pool.size", 1, 256),
        ("combiner.thread.pool.size", 1, 16),
        ("combiner.queue.size", 1, 1 << 20),
        ("combiner.task.interval.ms", 1, 1_000),
        ("combiner.task.upload.bytes", 1024, 64 << 20),
    ],
)
def test_the_wal_tiers_numbers_have_bounds(name: str, least: int, most: int) -> None:
    name = f"remote.wal.log.manager.{name}"
    for value in (least, most):
        assert from_properties({name: str(value)}).get(name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=f"Invalid value {value} for configuration {name}: Value must"):
            from_properties({name: str(value)})
