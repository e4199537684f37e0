"""Kafka's configuration: names, types, defaults, levels, and the typed view of one broker's settings.

Owns: the tables of every broker, topic and group setting that Kafka 4.3 knows (`broker/data/*.tsv`, as a live
broker described them), parsing and checking values, which level wins, and what DescribeConfigs says about
each. Does not own: where dynamic values are kept (the image), or what a setting does.

Invariant: a value that is in a `BrokerConfig` or a `LogConfig` has been parsed and checked; a setting nobody
knows is refused with the name that was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from math import isinf
from pathlib import Path
from typing import Any, NamedTuple

from storage.policy import LogConfig

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
# Most topics have the same settings, and one request may name thousands of topics.
ALIKE_MAX = 128
STRING_BYTES_MAX = 2**15 - 1
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::", "[::]"})


class ConfigError(Exception):
    """A setting that cannot be taken; one line for the person who wrote it."""


class ResourceType(IntEnum):
    """Kafka's config resource types, by number."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


# --- values ------------------------------------------------------------------------------------------------

# Every pattern takes time in proportion to its text: a value may be as long as a request. The lengths keep
# out what Python refuses to parse, or parses to infinity after a long while.
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,9})?")
_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


def parse_value(kind: ConfigType, name: str, text: str) -> Any:
    """As Kafka's ConfigDef parses; ConfigError in its words."""
    trimmed = text.strip()
    match kind:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise _invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            limit = 1 << _BITS[kind]
            if _INTEGER.fullmatch(trimmed) is None or not -limit <= int(trimmed) < limit:
                raise _invalid(name, text, f"Not a number of type {kind.name}")
            return int(trimmed)
        case ConfigType.DOUBLE:
            if _DOUBLE.fullmatch(trimmed) is None or isinf(float(trimmed)):
                raise _invalid(name, text, "Not a number of type DOUBLE")
            return float(trimmed)
        case ConfigType.LIST:
            return tuple(item.strip() for item in trimmed.split(",")) if trimmed else ()
        case _:
            return trimmed


def format_value(value: Any) -> str | None:
    """The inverse: a parsed value as Kafka writes it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return _java_double(value)
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _java_double(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    shortest = next(text for digits in range(17) if float(text := f"{value:.{digits}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction or '0'}E{int(exponent)}"


def _invalid(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: {why}")


# --- checks ------------------------------------------------------------------------------------------------

Check = Callable[[str, Any], None]


def _at_least(least: float) -> Check:
    def check(name: str, value: Any) -> None:
        if value < least:
            raise _invalid(name, value, f"Value must be at least {least}")

    return check


def _between(least: float, most: float) -> Check:
    def check(name: str, value: Any) -> None:
        _at_least(least)(name, value)
        if value > most:
            raise _invalid(name, value, f"Value must be no more than {most}")

    return check


def _one_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise _invalid(name, value, f"String must be one of: {', '.join(allowed)}")

    return check


def _each_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        if "" in value:
            raise ConfigError(f"Configuration '{name}' values must not be empty.")
        for item in value:
            if item not in allowed:
                raise _invalid(name, item, f"String must be one of: {', '.join(allowed)}")

    return check


def _gzip_level(name: str, value: Any) -> None:
    if value != -1 and not 1 <= value <= 9:
        raise _invalid(name, value, "Value must be between 1 and 9 or equal to -1")


_THROTTLED = re.compile(r"\*|(?:[0-9]+:[0-9]+)(?:\s*,\s*[0-9]+:[0-9]+)*")


def _throttled(name: str, value: Any) -> None:
    text = ",".join(value)
    if text and _THROTTLED.fullmatch(text) is None:
        raise _invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LEAST_SEGMENT_BYTES = 1024 * 1024

_TOPIC_CHECKS: dict[str, Check] = {
    "cleanup.policy": _each_of("compact", "delete"),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _between(1, 17),
    "compression.type": _one_of(*_CODECS),
    "compression.zstd.level": _between(-131072, 22),
    "delete.retention.ms": _at_least(0),
    "file.delete.delay.ms": _at_least(0),
    "flush.messages": _at_least(1),
    "flush.ms": _at_least(0),
    "follower.replication.throttled.replicas": _throttled,
    "index.interval.bytes": _at_least(0),
    "leader.replication.throttled.replicas": _throttled,
    "local.retention.bytes": _at_least(-2),
    "local.retention.ms": _at_least(-2),
    "max.compaction.lag.ms": _at_least(1),
    "max.message.bytes": _at_least(0),
    "message.timestamp.after.max.ms": _at_least(0),
    "message.timestamp.before.max.ms": _at_least(0),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _between(0, 1),
    "min.compaction.lag.ms": _at_least(0),
    "min.insync.replicas": _at_least(1),
    "record.validation": _one_of("header", "full"),
    "retention.ms": _at_least(-1),
    "segment.bytes": _at_least(_LEAST_SEGMENT_BYTES),
    "segment.index.bytes": _at_least(4),
    "segment.jitter.ms": _at_least(0),
    "segment.ms": _at_least(1),
}


def _names(text: str) -> list[str]:
    return text.split()


_AT_LEAST_1 = _names("""
    log.cleaner.threads
    background.threads controller.quota.window.num controller.quota.window.size.seconds
    group.consumer.heartbeat.interval.ms group.consumer.max.heartbeat.interval.ms
    group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.session.timeout.ms group.coordinator.threads
    group.max.size leader.imbalance.check.interval.seconds log.dir.failure.timeout.ms
    log.flush.interval.messages log.retention.check.interval.ms log.roll.hours
    max.request.partition.size.limit min.insync.replicas num.io.threads num.network.threads num.partitions
    num.recovery.threads.per.data.dir offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.num.partitions
    offsets.topic.replication.factor offsets.topic.segment.bytes producer.id.expiration.ms
    queued.max.requests quota.window.num quota.window.size.seconds replication.quota.window.num
    replication.quota.window.size.seconds socket.listen.backlog.size socket.request.max.bytes
    transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.state.log.num.partitions
    transaction.state.log.replication.factor transaction.state.log.segment.bytes
    transactional.id.expiration.ms log.cleaner.max.compaction.lag.ms log.roll.ms
""")
_AT_LEAST_0 = _names("""
    connection.failed.authentication.delay.ms log.cleaner.backoff.ms log.cleaner.delete.retention.ms
    log.cleaner.io.buffer.size log.cleaner.min.compaction.lag.ms
    log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
    log.index.interval.bytes log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
    log.roll.jitter.hours log.roll.jitter.ms log.segment.delete.delay.ms max.connection.creation.rate
    max.connections max.connections.per.ip max.incremental.fetch.session.cache.slots message.max.bytes
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.response.max.bytes
""")


def _retention_ms(name: str, value: Any) -> None:
    if value < 1 and value != -1:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")


LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_BROKER_CHECKS: dict[str, Check] = {
    "replica.selector.class": _one_of("", LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    **dict.fromkeys(_AT_LEAST_1, _at_least(1)),
    **dict.fromkeys(_AT_LEAST_0, _at_least(0)),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _between(1, 17),
    "compression.type": _one_of(*_CODECS),
    "compression.zstd.level": _between(-131072, 22),
    "fetch.max.bytes": _at_least(1024),
    "log.cleaner.io.max.bytes.per.second": _at_least(1),
    "log.cleaner.min.cleanable.ratio": _between(0, 1),
    "log.cleanup.policy": _each_of("compact", "delete"),
    "log.index.size.max.bytes": _at_least(4),
    "log.local.retention.bytes": _at_least(-2),
    "log.local.retention.ms": _at_least(-2),
    "log.message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "log.retention.ms": _retention_ms,
    "log.segment.bytes": _at_least(_LEAST_SEGMENT_BYTES),
    "process.roles": _each_of("broker", "controller"),
    "record.validation": _one_of("header", "full"),
    "security.inter.broker.protocol": _one_of(*_PROTOCOLS),
}


def _offset_reset(name: str, value: Any) -> None:
    if value not in ("earliest", "latest") and not str(value).startswith("by_duration:P"):
        raise _invalid(
            name,
            value,
            f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', "
            "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )


_GROUP_CHECKS: dict[str, Check] = {
    "share.auto.offset.reset": _offset_reset,
    "share.isolation.level": _one_of("read_committed", "read_uncommitted"),
    "streams.num.standby.replicas": _at_least(0),
}


# --- tables ------------------------------------------------------------------------------------------------


class Definition(NamedTuple):
    """One setting. `synonyms` are the broker settings a topic or group setting takes its default from."""

    name: str
    kind: ConfigType
    default: str | None
    read_only: bool
    synonyms: tuple[str, ...]
    check: Check | None = None
    documentation: str | None = None

    @property
    def is_sensitive(self) -> bool:
        return self.kind is ConfigType.PASSWORD

    def parse(self, text: str) -> Any:
        value = parse_value(self.kind, self.name, text)
        if self.check is not None:
            self.check(self.name, value)
        return value


# The server that was asked for its settings had set these; the defaults are those of Kafka's source.
_REAL_DEFAULTS: dict[str, str | None] = {
    "advertised.listeners": None,
    "broker.id": "-1",
    "controller.listener.names": None,
    "controller.quorum.bootstrap.servers": "",
    "group.initial.rebalance.delay.ms": "3000",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    ),
    "listeners": "PLAINTEXT://:9092",
    "log.dirs": None,
    "min.insync.replicas": "1",
    "node.id": None,
    "offsets.topic.replication.factor": "3",
    "process.roles": None,
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
}

# Without an external store there can be no second broker.
_STANDALONE_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}

# Described without a synonym while the first name of the chain is unset, so the tables do not tell.
_TOPIC_SYNONYMS = {
    "flush.ms": ("log.flush.interval.ms",),
    "retention.ms": ("log.retention.ms",),
    "segment.jitter.ms": ("log.roll.jitter.ms",),
    "segment.ms": ("log.roll.ms",),
}

_CHAINS: tuple[tuple[str, ...], ...] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_CHAIN_OF = {
    **{name: chain for chain in _CHAINS for name in chain},
    "log.flush.scheduler.interval.ms": ("log.flush.scheduler.interval.ms",),
}
_UNIT_MS = {"log.retention.minutes": MINUTE_MS} | dict.fromkeys(
    ("log.roll.hours", "log.roll.jitter.hours", "log.retention.hours"), HOUR_MS
)

_SINGLE_REPLICA_DOC = (
    "Sync the log to disk before an acks=all request is answered, for partitions with one replica: "
    "what was acknowledged then survives a power cut of this one machine."
)
_VALIDATION_DOC = (
    "What of a produced batch is checked: its header and checksum, or every record in it as well."
)
_THROTTLED_RATE_DOC = (
    "Bytes a second that replication may take for the replicas that a topic's "
    "{}.replication.throttled.replicas names, while they are out of sync."
)
_INTERNAL_SEGMENT_DOC = "segment.bytes without its lower bound; for tests."

# Kafka describes these where they were set, and never their default.
_THROTTLED_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})
_OWN_BROKER = (
    Definition("log.flush.single.replica", ConfigType.BOOLEAN, "false", True, (), None, _SINGLE_REPLICA_DOC),
    Definition(
        "record.validation",
        ConfigType.STRING,
        "header",
        False,
        (),
        _BROKER_CHECKS["record.validation"],
        _VALIDATION_DOC,
    ),
    *(
        Definition(
            name,
            ConfigType.LONG,
            str(2**63 - 1),
            False,
            (),
            _at_least(0),
            _THROTTLED_RATE_DOC.format(name.partition(".")[0]),
        )
        for name in sorted(_THROTTLED_RATES)
    ),
)
_OWN_TOPIC = (
    Definition(
        "record.validation",
        ConfigType.STRING,
        "header",
        False,
        ("record.validation",),
        _TOPIC_CHECKS["record.validation"],
        _VALIDATION_DOC,
    ),
)
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
_HIDDEN_TOPIC = {
    INTERNAL_SEGMENT_BYTES: Definition(
        INTERNAL_SEGMENT_BYTES, ConfigType.INT, None, False, (), _at_least(61), _INTERNAL_SEGMENT_DOC
    )
}
_PLUGIN_PREFIXES = (
    "rsm.config.",
    "rlmm.config.",
    "rwsm.config.",
    "config.providers.",
    "metrics.",
    "kafka.metrics.",
)
_LISTENER_NAME = re.compile(r"listener\.name\.[^.]*\.(.*)")


def _load(table: str, checks: Mapping[str, Check], own: Iterable[Definition]) -> dict[str, Definition]:
    text = (Path(__file__).parent / "data" / f"{table}-configs.tsv").read_text(encoding="utf-8")
    found = {}
    for line in text.splitlines()[1:]:
        name, kind, value, _, read_only, _, synonyms = line.split("\t")
        names = _TOPIC_SYNONYMS.get(name, ()) if table == "topic" else ()
        found[name] = Definition(
            name,
            ConfigType[kind.upper()],
            _REAL_DEFAULTS[name] if name in _REAL_DEFAULTS else _default(table, kind, value, synonyms),
            read_only == "true",
            names or tuple(dict.fromkeys(synonyms.split())),
            checks.get(name),
        )
    return found | {definition.name: definition for definition in own}


def _default(table: str, kind: str, value: str, synonyms: str) -> str | None:
    """An empty column is null or an empty value: only what is not null is described with a synonym."""
    if value:
        return value
    return "" if synonyms or (table == "topic" and kind == "list") else None


BROKER = _load("broker", _BROKER_CHECKS, _OWN_BROKER)
TOPIC = _load("topic", _TOPIC_CHECKS, _OWN_TOPIC)
GROUP = _load("group", _GROUP_CHECKS, ())
# A metadata slot takes milliseconds, so a broker that is gone is noticed earlier than Kafka's defaults do.
_OWN_DEFAULTS = {"broker.heartbeat.interval.ms": "1000", "broker.session.timeout.ms": "6000"}
_BROKER_DEFAULTS = {name: definition.default for name, definition in BROKER.items()} | _OWN_DEFAULTS


def nearest(name: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # only ever needed to refuse to start

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.5)), None)


# --- a broker's settings -----------------------------------------------------------------------------------


class Listener(NamedTuple):
    name: str
    protocol: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in WILDCARD_HOSTS


class BrokerConfig:
    """Kafka's broker settings as this broker uses them, dynamic ones included; `get` knows all the others.

    Immutable. A dataclass of so many fields would cost a start-up more than reading the whole table.
    """

    # Given and derived
    static: Mapping[str, str]
    defaults: Mapping[str, str | None]
    dynamic_default: Mapping[str, str]
    dynamic_broker: Mapping[str, str]
    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker_listener: str
    ignored: tuple[str, ...]

    # Kafka's names with underscores
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_rack: str | None
    broker_session_timeout_ms: int
    connections_max_idle_ms: int
    controlled_shutdown_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    follower_replication_throttled_rate: int
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    leader_imbalance_check_interval_seconds: int
    leader_replication_throttled_rate: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_max_bytes_per_second: float
    log_dirs: tuple[str, ...]
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_single_replica: bool
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    message_max_bytes: int
    node_id: int
    num_partitions: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    request_timeout_ms: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    unclean_leader_election_enable: bool

    def __init__(self, **values: Any) -> None:
        missing = BrokerConfig.__annotations__.keys() ^ values.keys()
        assert not missing, missing
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a BrokerConfig does not change")

    def __repr__(self) -> str:
        return f"BrokerConfig(node_id={self.node_id}, {len(self.static)} set)"

    def raw(self, name: str) -> str | None:
        """The text in force for one name, dynamic values before static ones before the default."""
        for level in (self.dynamic_broker, self.dynamic_default, self.static, self.defaults):
            value = level.get(name)
            if value is not None:
                return value
        return None

    def get(self, name: str) -> Any:
        """The parsed value of any setting Kafka knows; None where it has none."""
        text = self.raw(name)
        return None if text is None else BROKER[name].parse(text)

    @property
    def is_rack_aware(self) -> bool:
        """Whether consumers are sent to the nearest replica (KIP-392)."""
        return bool(self.get("replica.selector.class") == RACK_AWARE_SELECTOR)

    def with_dynamic(self, *, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """These settings under the image's cluster-wide and per-broker values."""
        return _build(
            static=self.static,
            defaults=self.defaults,
            dynamic_default=dict(default),
            dynamic_broker=dict(broker),
        )


_DERIVED = frozenset(
    {
        "static",
        "defaults",
        "dynamic_default",
        "dynamic_broker",
        "listeners",
        "advertised",
        "inter_broker_listener",
        "ignored",
        "log_dirs",
        "node_id",
        "broker_rack",
        "max_connections_per_ip_overrides",
        "socket_receive_buffer_bytes",
        "socket_send_buffer_bytes",
    }
)
_FIELDS = {name: name.replace("_", ".") for name in BrokerConfig.__annotations__ if name not in _DERIVED}
_LOG_FIELDS = {
    name: field for name in TOPIC if (field := name.replace(".", "_")) in LogConfig.__annotations__
}
"""Field of a LogConfig by topic setting; the other topic settings are accepted without effect."""
_MEANINGFUL = frozenset(
    {
        *_FIELDS.values(),
        *(name for topic_name in _LOG_FIELDS for name in TOPIC[topic_name].synonyms),
        *(name for chain in _CHAINS for name in chain),
        "advertised.listeners",
        "broker.id",
        "broker.rack",
        "controller.listener.names",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "max.connections.per.ip.overrides",
        "node.id",
        "process.roles",
        "replica.selector.class",
        "security.inter.broker.protocol",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    }
)


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file: comments, continued lines, escapes; `=`, `:` or blanks after the name."""
    found = {}
    for line in _logical_lines(text):
        match = _PROPERTY.fullmatch(line)
        assert match is not None, line
        found[_unescape(match[1])] = _unescape(match[2])
    return found


_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.?))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _logical_lines(text: str) -> Iterator[str]:
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        whole = line.lstrip(" \t\f")
        if not whole or whole[0] in "#!":
            continue
        while (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1] + next(lines, "").lstrip(" \t\f")
        yield whole


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(plain, text) if "\\" in text else text


def from_properties(props: Mapping[str, str], *, standalone: bool = False) -> BrokerConfig:
    """A broker's settings from its properties; `standalone` is a broker without an external store."""
    for name in props:
        _check_known(name)
    static = dict(props)
    node_id = static.get("node.id", static.get("broker.id", "1"))
    if static.setdefault("broker.id", node_id) != static.setdefault("node.id", node_id):
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")
    defaults = {**_BROKER_DEFAULTS, **_STANDALONE_DEFAULTS} if standalone else _BROKER_DEFAULTS
    for name, text in static.items():
        definition = BROKER.get(_base_name(name))
        if definition is not None:
            definition.parse(text)
    return _build(static=static, defaults=defaults, dynamic_default={}, dynamic_broker={})


def _check_known(name: str) -> None:
    if _base_name(name) in BROKER or name.startswith(_PLUGIN_PREFIXES):
        return
    guess = nearest(name, BROKER)
    hint = f"; did you mean {guess}?" if guess else ""
    raise ConfigError(f"Unknown configuration {name}{hint}")


def _base_name(name: str) -> str:
    match = _LISTENER_NAME.fullmatch(name)
    if match is None:
        return name
    base = match[1]
    return next((known for known in (base, base.partition(".")[2]) if known in BROKER), base)


def _build(
    *,
    static: Mapping[str, str],
    defaults: Mapping[str, str | None],
    dynamic_default: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
) -> BrokerConfig:
    raw = {**defaults, **static, **dynamic_default, **dynamic_broker}
    values: dict[str, Any] = {}
    for field_name, name in _FIELDS.items():
        text = raw[name]
        assert text is not None, name
        values[field_name] = BROKER[name].parse(text)
    protocols = _protocol_map(raw)
    controllers = set(_list(raw, "controller.listener.names"))
    _check_roles(raw)
    listeners = _listeners(raw["listeners"] or "", protocols, controllers, "listeners")
    advertised = _advertised(raw, listeners, protocols, controllers)
    config = BrokerConfig(
        **values,
        static=static,
        defaults=defaults,
        dynamic_default=dynamic_default,
        dynamic_broker=dynamic_broker,
        listeners=listeners,
        advertised=advertised,
        inter_broker_listener=_inter_broker_listener(raw, advertised),
        # One listener's own value means nothing yet, even of a name that means something for all.
        ignored=tuple(sorted(name for name in static if name not in _MEANINGFUL)),
        node_id=_node_id(raw),
        broker_rack=raw["broker.rack"] or None,
        log_dirs=_list(raw, "log.dirs") or _list(raw, "log.dir"),
        max_connections_per_ip_overrides=_ip_overrides(raw["max.connections.per.ip.overrides"] or ""),
        socket_receive_buffer_bytes=_buffer_bytes(static, "socket.receive.buffer.bytes"),
        socket_send_buffer_bytes=_buffer_bytes(static, "socket.send.buffer.bytes"),
    )
    if not config.log_dirs or not all(config.log_dirs):
        raise ConfigError("At least one log directory must be defined via log.dirs or log.dir.")
    if len(set(config.log_dirs)) != len(config.log_dirs):
        raise ConfigError("log.dirs names a directory twice")
    log_config(config, {})
    return config


def _node_id(raw: Mapping[str, str | None]) -> int:
    value: int = BROKER["node.id"].parse(raw["node.id"] or "")
    if value < 0:
        raise ConfigError("node.id must be greater than or equal to 0")
    return value


def _buffer_bytes(static: Mapping[str, str], name: str) -> int:
    """Return what was asked for, else -1: Kafka's default of 100 KB would keep the kernel from choosing."""
    value: int = BROKER[name].parse(static.get(name, "-1"))
    return value


def _list(raw: Mapping[str, str | None], name: str) -> tuple[str, ...]:
    return tuple(parse_value(ConfigType.LIST, name, raw[name] or ""))


def _check_roles(raw: Mapping[str, str | None]) -> None:
    roles = _list(raw, "process.roles")
    if roles and "broker" not in roles:
        raise ConfigError("process.roles must contain broker: every node of this cluster is one")


def _protocol_map(raw: Mapping[str, str | None]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in _list(raw, "listener.security.protocol.map"):
        name, colon, protocol = entry.rpartition(":")
        if not colon or not name or protocol.upper() not in _PROTOCOLS:
            raise _invalid("listener.security.protocol.map", entry, "Expected LISTENER:PROTOCOL")
        if name.upper() in found:
            raise _invalid("listener.security.protocol.map", entry, "A listener is named twice")
        found[name.upper()] = protocol.upper()
    return found


_LISTENER = re.compile(r"([A-Za-z0-9_\-]+)://(\[[0-9A-Fa-f:.%]*\]|[^:/\[\]]*):(-?[0-9]+)")


def _listeners(
    text: str, protocols: Mapping[str, str], controllers: set[str], setting: str
) -> tuple[Listener, ...]:
    """The listeners clients may use: those of the controller are not opened, it lives in every broker."""
    found = []
    for entry in parse_value(ConfigType.LIST, setting, text):
        match = _LISTENER.fullmatch(entry)
        if match is None or not 0 <= int(match[3]) <= 65535:
            raise _invalid(setting, entry, "Expected NAME://HOST:PORT")
        name = match[1].upper()
        if name in {controller.upper() for controller in controllers}:
            continue
        if name not in protocols:
            raise ConfigError(
                f"No security protocol defined for listener {name} in listener.security.protocol.map"
            )
        found.append(
            Listener(name=name, protocol=protocols[name], host=match[2].strip("[]"), port=int(match[3]))
        )
    names = [listener.name for listener in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"Each listener must have a different name, {setting}: {text}")
    return tuple(found)


def _check_opened(listeners: tuple[Listener, ...]) -> None:
    if not listeners:
        raise ConfigError(
            "listeners has no listener for clients. "
            "Perhaps all listeners appear in controller.listener.names?"
        )
    for listener in listeners:
        if listener.protocol != "PLAINTEXT":
            raise ConfigError(
                f"listener {listener.name} asks for {listener.protocol}: this release serves PLAINTEXT only"
            )
    taken: dict[int, Listener] = {}
    for listener in listeners:
        other = taken.setdefault(listener.port, listener)
        shared = listener.host == other.host or listener.is_wildcard or other.is_wildcard
        if listener.port and other is not listener and shared:
            raise ConfigError(f"Each listener must have a different port, listeners: {listener.port} twice")


def _advertised(
    raw: Mapping[str, str | None],
    listeners: tuple[Listener, ...],
    protocols: Mapping[str, str],
    controllers: set[str],
) -> tuple[Listener, ...]:
    _check_opened(listeners)
    text = raw["advertised.listeners"]
    if not text:
        return listeners
    advertised = _listeners(text, protocols, controllers, "advertised.listeners")
    known = {listener.name for listener in listeners}
    for listener in advertised:
        if listener.host == "0.0.0.0":
            raise ConfigError(
                "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. "
                "Use a routable IP address."
            )
        if listener.name not in known:
            raise ConfigError(
                "advertised.listeners listener names must be equal to or a subset of the ones defined in "
                f"listeners. Found {listener.name}. The valid options are {','.join(sorted(known))}"
            )
    return advertised


def _inter_broker_listener(raw: Mapping[str, str | None], advertised: tuple[Listener, ...]) -> str:
    name = (raw["inter.broker.listener.name"] or raw["security.inter.broker.protocol"] or "").upper()
    names = [listener.name for listener in advertised]
    if name not in names:
        raise ConfigError(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. "
            f"The valid options based on currently configured listeners are {','.join(names)}"
        )
    return name


_COUNT = re.compile(r"[0-9]{1,10}")


def _ip_overrides(text: str) -> dict[str, int]:
    found = {}
    for entry in parse_value(ConfigType.LIST, "max.connections.per.ip.overrides", text):
        host, _, count = entry.rpartition(":")
        if not host or _COUNT.fullmatch(count) is None:
            raise _invalid("max.connections.per.ip.overrides", entry, "Expected HOST:COUNT")
        found[host] = int(count)
    return found


# --- topics ------------------------------------------------------------------------------------------------


def topic_values(config: BrokerConfig, overrides: Mapping[str, str]) -> Mapping[str, Any]:
    """Every topic setting, parsed: the topic's own value, else what the broker's levels say."""
    return _topic_values(config, tuple(sorted(overrides.items())))


@lru_cache(maxsize=ALIKE_MAX)
def _topic_values(config: BrokerConfig, overrides: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    own = dict(overrides)
    return {
        name: definition.parse(own[name]) if name in own else _broker_value(config, definition)
        for name, definition in TOPIC.items()
    }


def _broker_value(config: BrokerConfig, definition: Definition) -> Any:
    if not definition.synonyms:
        return definition.parse(definition.default or "")
    for name in _CHAIN_OF.get(definition.synonyms[0], definition.synonyms):
        text = config.raw(name)
        if text is not None:
            value = BROKER[name].parse(text)
            return value if value is None or value == -1 else _scaled(name, value)
    return definition.parse(definition.default or "")


def _scaled(name: str, value: Any) -> Any:
    unit = _UNIT_MS.get(name)
    if unit is None:
        return value
    return -1 if value < 0 else value * unit


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """What a log goes by: the settings of `config`, dynamic ones included, under the topic's own."""
    all_values = topic_values(config, overrides)
    values = {field: all_values[name] for name, field in _LOG_FIELDS.items()}
    internal = overrides.get(INTERNAL_SEGMENT_BYTES)
    if internal is not None:
        values["segment_bytes"] = _HIDDEN_TOPIC[INTERNAL_SEGMENT_BYTES].parse(internal)
    return LogConfig(**values)


def _check_lengths(values: Mapping[str, str]) -> None:
    """What is set must fit the responses of every version, which describe it."""
    for name, value in values.items():
        if len(name.encode()) > STRING_BYTES_MAX or len(value.encode()) > STRING_BYTES_MAX:
            raise ConfigError(f"Configuration {name[:100]} is longer than {STRING_BYTES_MAX} bytes")


def check_topic_configs(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """ConfigError unless a topic may have all these settings together."""
    _check_lengths(overrides)
    for name in overrides:
        if name not in TOPIC and name not in _HIDDEN_TOPIC:
            raise ConfigError(f"Unknown topic config name: {name}")
    for name, definition in _HIDDEN_TOPIC.items():
        if name in overrides:
            definition.parse(overrides[name])
    values = topic_values(config, overrides)
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values["remote.storage.enable"] and not config.get("remote.log.storage.system.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


# --- groups ------------------------------------------------------------------------------------------------


def group_values(config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: definition.parse(overrides[name]) if name in overrides else _group_default(config, definition)
        for name, definition in GROUP.items()
    }


def _group_default(config: BrokerConfig, definition: Definition) -> Any:
    name = next((name for name in definition.synonyms if name in BROKER), None)
    return definition.parse(definition.default or "") if name is None else config.get(name)


def check_group_configs(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    _check_lengths(overrides)
    for name in overrides:
        if name not in GROUP:
            raise ConfigError(f"Unknown group config name: {name}")
    values = group_values(config, overrides)
    for name, value in values.items():
        kind, _, what = name.partition(".")
        what = what.removeprefix("num.")
        least, most = f"group.{kind}.min.{what}", f"group.{kind}.max.{what}"
        if least in BROKER and value < config.get(least):
            raise ConfigError(f"{name} must be greater than or equal to {least}")
        if most in BROKER and value > config.get(most):
            raise ConfigError(f"{name} must be less than or equal to {most}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[session] <= values[heartbeat]:
            raise ConfigError(f"{session} must be greater than {heartbeat}")


# --- brokers, while they run -------------------------------------------------------------------------------

_PER_BROKER_PREFIXES = ("ssl.", "sasl.", "listener.name.")
_PER_BROKER = frozenset({"listeners", "listener.security.protocol.map", "principal.builder.class"})
# Kafka rebinds while it runs; here a listener is opened once, at start.
_NOT_WHILE_RUNNING = frozenset({"listeners", "listener.security.protocol.map"})


def check_broker_configs(config: BrokerConfig, dynamic: Mapping[str, str], *, per_broker: bool) -> None:
    """ConfigError unless these may be a broker's (or the cluster's default) dynamic settings."""
    _check_lengths(dynamic)
    fixed = sorted(
        name for name in dynamic if name in _NOT_WHILE_RUNNING or (name in BROKER and BROKER[name].read_only)
    )
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    secret = sorted(name for name in dynamic if name.startswith("ssl.") and not BROKER[name].read_only)
    if secret:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"[{', '.join(secret)}]"
        )
    for name, text in dynamic.items():
        definition = BROKER.get(_base_name(name))
        if definition is not None:
            definition.parse(text)
    own = sorted(name for name in dynamic if name in _PER_BROKER or name.startswith(_PER_BROKER_PREFIXES))
    if own and not per_broker:
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"[{', '.join(own)}]"
        )
    config.with_dynamic(
        default=config.dynamic_default if per_broker else dynamic,
        broker=dynamic if per_broker else config.dynamic_broker,
    )


# --- DescribeConfigs ---------------------------------------------------------------------------------------


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigRow(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource
    kind: ConfigType
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None = None


def describe_broker(config: BrokerConfig) -> list[ConfigRow]:
    """One broker: everything Kafka knows, and whatever else was set."""
    return list(_broker_rows(config))


@lru_cache(maxsize=1)
def _broker_rows(config: BrokerConfig) -> tuple[ConfigRow, ...]:
    given = {*config.static, *config.dynamic_default, *config.dynamic_broker}
    return tuple(_broker_row(config, name) for name in sorted(BROKER.keys() - _THROTTLED_RATES | given))


def describe_broker_defaults(config: BrokerConfig) -> list[ConfigRow]:
    """The cluster-wide default: only what was set there."""
    rows = []
    for name in sorted(config.dynamic_default):
        row = _broker_row(config, name)
        synonyms = tuple(s for s in row.synonyms if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER)
        value = None if row.sensitive else config.dynamic_default[name]
        rows.append(row._replace(value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER, synonyms=synonyms))
    return rows


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigRow]:
    return list(_topic_rows(config, tuple(sorted(overrides.items()))))


@lru_cache(maxsize=ALIKE_MAX)
def _topic_rows(config: BrokerConfig, overrides: tuple[tuple[str, str], ...]) -> tuple[ConfigRow, ...]:
    own = dict(overrides)
    values = topic_values(config, own)
    return tuple(
        _inherited_row(config, TOPIC[name], own, values[name], ConfigSource.TOPIC) for name in sorted(TOPIC)
    )


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigRow]:
    return list(_group_rows(config, tuple(sorted(overrides.items()))))


@lru_cache(maxsize=ALIKE_MAX)
def _group_rows(config: BrokerConfig, overrides: tuple[tuple[str, str], ...]) -> tuple[ConfigRow, ...]:
    own = dict(overrides)
    values = group_values(config, own)
    return tuple(
        _inherited_row(config, GROUP[name], own, values[name], ConfigSource.GROUP) for name in sorted(GROUP)
    )


def _inherited_row(
    config: BrokerConfig,
    definition: Definition,
    overrides: Mapping[str, str],
    value: Any,
    own_source: ConfigSource,
) -> ConfigRow:
    name, text = definition.name, format_value(value)
    synonyms: list[Synonym] = []
    if name in overrides:
        synonyms.append(Synonym(name=name, value=text, source=own_source))
    if definition.synonyms and definition.synonyms[0] in BROKER:
        synonyms += _synonyms(config, definition.synonyms[0], sensitive=False)
    elif definition.synonyms and name not in overrides:
        synonyms.append(Synonym(name=name, value=text, source=ConfigSource.DEFAULT))
    return ConfigRow(
        name=name,
        value=text,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        kind=definition.kind,
        read_only=False,
        sensitive=False,
        synonyms=tuple(synonyms),
        documentation=definition.documentation,
    )


def _broker_row(config: BrokerConfig, name: str) -> ConfigRow:
    definition = BROKER.get(_base_name(name))
    # A setting of unknown type may hold a secret.
    sensitive = definition is None or definition.is_sensitive
    text = config.raw(name)
    value = None
    if not sensitive and definition is not None and text is not None:
        value = format_value(definition.parse(text))
    synonyms = _synonyms(config, name, sensitive=sensitive)
    return ConfigRow(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        kind=ConfigType.UNKNOWN if definition is None else definition.kind,
        read_only=definition is None or definition.read_only,
        sensitive=sensitive,
        synonyms=tuple(synonyms),
        documentation=None if definition is None else definition.documentation,
    )


def _synonyms(config: BrokerConfig, name: str, *, sensitive: bool) -> list[Synonym]:
    """Where a broker setting's value comes from, the strongest first, beginning with the name that was asked
    for.
    """
    base = _base_name(name)
    chain = (name, base) if base != name else _CHAIN_OF.get(name, (name,))
    levels = (
        (config.dynamic_broker, ConfigSource.DYNAMIC_BROKER),
        (config.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (config.static, ConfigSource.STATIC_BROKER),
        ({} if name in _THROTTLED_RATES else config.defaults, ConfigSource.DEFAULT),
    )
    found = [
        Synonym(name=synonym, value=None if sensitive else level.get(synonym), source=source)
        for level, source in levels
        for synonym in chain
        if level.get(synonym) is not None
    ]
    start = next((at for at, synonym in enumerate(found) if synonym.name == name), len(found))
    return found[start:]
