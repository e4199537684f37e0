"""Kafka's settings: the tables, values and their checks, which level wins, what is described."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broker
from broker.config import broker as settings
from broker.config.broker import (
    BROKER,
    GROUP,
    TOPIC,
    BrokerConfig,
    ConfigError,
    ConfigSource,
    ConfigType,
    check_broker_configs,
    check_group_configs,
    check_topic_configs,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
    format_value,
    from_properties,
    log_config,
    parse_properties,
    parse_value,
)
from storage.policy import LogConfig
from tests.server_properties import STOCK_KRAFT

ROOT = Path(broker.__file__).parent.parent
DATA = Path(broker.__file__).parent / "config" / "data"
SOURCES = {
    "default": ConfigSource.DEFAULT,
    "static": ConfigSource.STATIC_BROKER,
    "cluster-dynamic": ConfigSource.DYNAMIC_DEFAULT_BROKER,
}


def table(name: str) -> list[list[str]]:
    lines = (DATA / f"{name}-configs.tsv").read_text().splitlines()[1:]
    return [line.split("\t") for line in lines]


def made(**properties: str) -> BrokerConfig:
    return from_properties({name.replace("_", "."): value for name, value in properties.items()})


def described_server() -> BrokerConfig:
    """The settings of the server whose description the tables are."""
    static = {row[0]: row[2] for row in table("broker") if row[3] == "static"}
    static["listeners"] = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    cluster = {row[0]: row[2] for row in table("broker") if row[3] == "cluster-dynamic"}
    return from_properties(static).with_dynamic(default=cluster, broker={})


# --- the tables ---


@pytest.mark.parametrize("row", table("broker"), ids=lambda row: row[0])
def test_a_broker_is_described_as_kafka_describes_itself(row: list[str]) -> None:
    name, kind, value, source, read_only, sensitive, synonyms = row
    (found,) = [found for found in DESCRIBED if found.name == name]
    assert found.kind is ConfigType[kind.upper()]
    assert found.read_only is (read_only == "true")
    assert found.sensitive is (sensitive == "true")
    assert found.source is SOURCES[source]
    assert [synonym.name for synonym in found.synonyms] == synonyms.split()
    if name not in ("listeners", "broker.heartbeat.interval.ms", "broker.session.timeout.ms"):
        assert (found.value or "") == value


DESCRIBED = describe_broker(described_server())


def test_nothing_is_described_that_kafka_does_not_know_but_our_own() -> None:
    ours = {row.name for row in DESCRIBED} - {row[0] for row in table("broker")}
    assert ours == {"log.flush.single.replica", "record.validation"}


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_throttled_rate_is_described_where_it_was_set(role: str) -> None:
    name = f"{role}.replication.throttled.rate"
    config = described_server().with_dynamic(default={name: "2000"}, broker={name: "1000"})
    (row,) = [row for row in describe_broker(config) if row.name == name]
    assert row.value == "1000"
    assert [(synonym.value, synonym.source) for synonym in row.synonyms] == [
        ("1000", ConfigSource.DYNAMIC_BROKER),
        ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ]


@pytest.mark.parametrize(("name", "describe"), [("topic", describe_topic), ("group", describe_group)])
def test_topics_and_groups_are_described_as_kafka_does(name: str, describe: object) -> None:
    assert callable(describe)
    rows = {row.name: row for row in describe(described_server(), {})}
    for wanted, kind, value, source, _, _, synonyms in table(name):
        row = rows.pop(wanted)
        assert row.kind is ConfigType[kind.upper()], wanted
        assert (row.value or "") == value, wanted
        assert row.source is SOURCES[source], wanted
        assert [synonym.name for synonym in row.synonyms] == synonyms.split(), wanted
        assert not row.read_only
        assert not row.sensitive
    assert set(rows) == ({"record.validation"} if name == "topic" else set())


@pytest.mark.parametrize("definitions", [BROKER, TOPIC, GROUP])
def test_every_default_is_a_value_its_own_checks_allow(definitions: dict[str, settings.Definition]) -> None:
    for definition in definitions.values():
        if definition.default is not None:
            assert format_value(definition.parse(definition.default)) == definition.default


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


# --- values ---


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("BOOLEAN", " True ", True),
        ("INT", "+5", 5),
        ("INT", "-2147483648", -(2**31)),
        ("LONG", "9223372036854775807", 2**63 - 1),
        ("SHORT", "-1", -1),
        ("DOUBLE", "1.7976931348623157E308", 1.7976931348623157e308),
        ("DOUBLE", ".5", 0.5),
        ("LIST", " a , b,c ", ("a", "b", "c")),
        ("LIST", "", ()),
        ("STRING", " x ", "x"),
    ],
)
def test_values_are_read_as_kafka_reads_them(kind: str, text: str, value: object) -> None:
    assert parse_value(ConfigType[kind], "name", text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("BOOLEAN", "yes"),
        ("INT", "2147483648"),
        ("INT", "1_000"),
        ("INT", "1.0"),
        ("INT", ""),
        ("SHORT", "32768"),
        ("LONG", "0x10"),
        ("DOUBLE", "nan"),
        ("DOUBLE", "1e"),
        ("INT", "\u0661"),
        ("LONG", "1" * 5_000),
        ("DOUBLE", "1e999"),
        ("DOUBLE", "1" * 500),
    ],
)
def test_what_is_no_value_is_refused_by_name(kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"Invalid value {text} for configuration some.name: "):
        parse_value(ConfigType[kind], "some.name", text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (1.5e-4, "1.5E-4"),
        (12345678.0, "1.2345678E7"),
        (0.0, "0.0"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("kind", "text"), [("DOUBLE", "1" * 200_000 + "x"), ("LIST", "a" + " " * 200_000 + "b")]
)
def test_a_long_value_takes_no_longer_than_its_length(kind: str, text: str) -> None:
    """A value may be as long as a request; what takes its square would stop the broker for hours."""
    with suppress(ConfigError):
        assert parse_value(ConfigType[kind], "name", text) == (text,)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_survive(value: float) -> None:
    text = format_value(value)
    assert text is not None
    assert float(text) == value


@given(st.text(max_size=30), st.sampled_from(list(ConfigType)))
def test_reading_a_value_gives_a_value_or_says_why_not(text: str, kind: ConfigType) -> None:
    try:
        parse_value(kind, "name", text)
    except ConfigError as error:
        assert "name" in str(error)


# --- properties files ---


def test_properties_files_are_read_as_java_reads_them() -> None:
    text = (
        "# comment\n! comment\n\n  a=1\nb : 2\nc 3\nd=x\\\n    y\ne=\\u0041\\t\\=\n"
        "f\\:g=h\nempty\nlast=has = and : in it  "
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "xy",
        "e": "A\t=",
        "f:g": "h",
        "empty": "",
        "last": "has = and : in it  ",
    }


@given(st.text(alphabet="ab=: \\\n\t#!u0", max_size=40))
def test_any_text_is_some_properties(text: str) -> None:
    parse_properties(text)


def test_a_stock_kraft_file_starts_unchanged() -> None:
    config = from_properties(parse_properties(STOCK_KRAFT))
    assert [(listener.name, listener.host, listener.port) for listener in config.listeners] == [
        ("PLAINTEXT", "", 9092)
    ]
    assert [(listener.name, listener.host, listener.port) for listener in config.advertised] == [
        ("PLAINTEXT", "localhost", 9092)
    ]
    assert config.inter_broker_listener == "PLAINTEXT"
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)
    assert "controller.quorum.bootstrap.servers" in config.ignored
    assert "num.io.threads" in config.ignored
    one_listener = from_properties({"listener.name.plaintext.max.connections": "7"})
    assert one_listener.ignored == ("listener.name.plaintext.max.connections",)
    assert "log.retention.hours" not in config.ignored


# --- settings without effect ---


@pytest.mark.parametrize(
    "name",
    [
        "connection.failed.authentication.delay.ms",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.preallocate",
        "offsets.load.buffer.size",
        "queued.max.requests",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.max.timeout.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transactional.id.expiration.ms",
    ],
)
def test_a_setting_that_nothing_reads_is_listed(name: str) -> None:
    assert from_properties({name: BROKER[name].default or ""}).ignored == (name,)


@pytest.mark.parametrize(
    "name",
    [
        "controlled.shutdown.enable",
        "log.flush.scheduler.interval.ms",
        "log.segment.delete.delay.ms",
        "min.insync.replicas",
        "record.validation",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ],
)
def test_a_setting_that_something_reads_is_not_listed(name: str) -> None:
    assert from_properties({name: BROKER[name].default or ""}).ignored == ()


CODE = [
    path.read_text()
    for package in ("broker", "storage")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.parent != DATA.parent
]


def is_read(field: str) -> bool:
    return any(re.search(rf"\.{field}\b", text) for text in CODE)


LEVELS = {"static", "defaults", "dynamic_default", "dynamic_broker"}
"""Read by `BrokerConfig.raw`."""


@pytest.mark.parametrize("field", sorted(BrokerConfig.__annotations__.keys() - LEVELS))
def test_each_field_of_a_brokers_settings_is_read_somewhere(field: str) -> None:
    assert is_read(field)


@pytest.mark.parametrize("field", sorted(LogConfig.__annotations__))
def test_each_field_of_a_logs_settings_is_read_somewhere(field: str) -> None:
    assert is_read(field)


def test_no_field_of_a_broker_is_mistaken_for_one_of_its_logs() -> None:
    """They would hide from the search above that nothing reads the broker's."""
    shared = BrokerConfig.__annotations__.keys() & LogConfig.__annotations__.keys()
    assert shared == {"unclean_leader_election_enable"}


def test_buffers_are_left_to_the_kernel_unless_they_are_set() -> None:
    assert (made().socket_send_buffer_bytes, made().socket_receive_buffer_bytes) == (-1, -1)
    config = made(socket_send_buffer_bytes="5000", socket_receive_buffer_bytes="102400")
    assert (config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes) == (5000, 102400)


# --- names ---


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


# --- listeners ---


def test_several_listeners_each_with_its_name() -> None:
    config = from_properties(
        {
            "listeners": "INTERNAL://127.0.0.1:9092,external://0.0.0.0:0,V6://[::1]:9094",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,V6:PLAINTEXT",
            "advertised.listeners": "EXTERNAL://broker.example:443,INTERNAL://10.0.0.1:9092",
            "inter.broker.listener.name": "INTERNAL",
        }
    )
    assert [(listener.name, listener.host, listener.port) for listener in config.listeners] == [
        ("INTERNAL", "127.0.0.1", 9092),
        ("EXTERNAL", "0.0.0.0", 0),
        ("V6", "::1", 9094),
    ]
    assert [listener.is_wildcard for listener in config.listeners] == [False, True, False]
    assert [listener.name for listener in config.advertised] == ["EXTERNAL", "INTERNAL"]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "Expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:70000"}, "Expected NAME://HOST:PORT"),
        ({"listeners": ""}, "no listener for clients"),
        ({"listeners": "FOO://h:1"}, "No security protocol defined for listener FOO"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "different name"),
        ({"listeners": "SSL://a:1", "security.inter.broker.protocol": "SSL"}, "serves PLAINTEXT only"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable"),
        (
            {
                "advertised.listeners": "OTHER://h:9092",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            },
            "subset",
        ),
        ({"inter.broker.listener.name": "OTHER"}, "must be a listener name defined in advertised.listeners"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "Expected LISTENER:PROTOCOL"),
        ({"process.roles": "controller"}, "must contain broker"),
        ({"node.id": "1", "broker.id": "2"}, "same value"),
        ({"node.id": "-1"}, "node.id must be greater"),
        ({"log.dirs": "a,,b"}, "log directory"),
        ({"log.dirs": "a,a"}, "twice"),
        ({"max.connections.per.ip.overrides": "host"}, "HOST:COUNT"),
        (
            {
                "listeners": "A://127.0.0.1:9092,B://0.0.0.0:9092",
                "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
                "inter.broker.listener.name": "A",
            },
            "different port",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        from_properties(properties)
    assert "\n" not in str(caught.value)


# --- which level wins ---


def test_the_smallest_unit_wins() -> None:
    hours = made(log_retention_hours="2", log_roll_hours="3")
    assert log_config(hours, {}).retention_ms == 2 * 3_600_000
    assert log_config(hours, {}).segment_ms == 3 * 3_600_000
    minutes = made(log_retention_hours="2", log_retention_minutes="5")
    assert log_config(minutes, {}).retention_ms == 5 * 60_000
    ms = made(log_retention_minutes="5", log_retention_ms="7")
    assert log_config(ms, {}).retention_ms == 7
    assert log_config(made(log_retention_hours="-1"), {}).retention_ms == -1


def test_topic_over_broker_over_default_over_static() -> None:
    config = made(log_retention_ms="1", message_max_bytes="1000")
    assert log_config(config, {}).retention_ms == 1
    dynamic = config.with_dynamic(
        default={"log.retention.ms": "2", "message.max.bytes": "2000"}, broker={"log.retention.ms": "3"}
    )
    assert log_config(dynamic, {}).retention_ms == 3
    assert log_config(dynamic, {}).max_message_bytes == 2000
    assert dynamic.message_max_bytes == 2000
    assert log_config(dynamic, {"retention.ms": "4"}).retention_ms == 4


def test_a_described_topic_names_every_level() -> None:
    config = made(log_retention_ms="1").with_dynamic(
        default={"log.retention.ms": "2"}, broker={"log.retention.ms": "3"}
    )
    (row,) = [row for row in describe_topic(config, {"retention.ms": "4"}) if row.name == "retention.ms"]
    assert (row.value, row.source) == ("4", ConfigSource.TOPIC)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms] == [
        ("retention.ms", "4", ConfigSource.TOPIC),
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "1", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]


def test_the_clusters_default_shows_only_what_was_set() -> None:
    config = made(message_max_bytes="5").with_dynamic(default={"message.max.bytes": "6"}, broker={})
    (row,) = describe_broker_defaults(config)
    assert (row.name, row.value, row.source) == (
        "message.max.bytes",
        "6",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )
    assert [synonym.value for synonym in row.synonyms] == ["6"]


def test_secrets_and_unknown_settings_are_not_shown() -> None:
    config = made().with_dynamic(default={}, broker={"my.own.setting": "hidden"})
    config = from_properties({"ssl.keystore.password": "hidden"}).with_dynamic(
        default={}, broker={"my.own.setting": "hidden"}
    )
    rows = {row.name: row for row in describe_broker(config)}
    for name in ("ssl.keystore.password", "my.own.setting"):
        assert rows[name].sensitive
        assert rows[name].value is None
        assert all(synonym.value is None for synonym in rows[name].synonyms)


# --- changes ---


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"retention.msec": "1"}, "Unknown topic config name: retention.msec"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"segment.bytes": "1000"}, "at least 1048576"),
        ({"cleanup.policy": "compact,"}, "must not be empty"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "conflict topic config setting"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
        ({"leader.replication.throttled.replicas": "0:1,x"}, "must be the literal"),
        ({"compression.gzip.level": "0"}, "between 1 and 9"),
    ],
)
def test_topic_settings_are_checked(overrides: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_topic_configs(made(), overrides)


def test_small_segments_are_there_for_tests() -> None:
    overrides = {"internal.segment.bytes": "200"}
    check_topic_configs(made(), overrides)
    assert log_config(made(), overrides).segment_bytes == 200
    assert "internal.segment.bytes" not in {row.name for row in describe_topic(made(), overrides)}


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
