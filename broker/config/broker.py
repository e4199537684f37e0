"""The typed view of one broker's settings.

Owns: `BrokerConfig`, building one from properties, and which of those that were set mean nothing here. Does
not own: the tables (tables), which level wins (levels), or what several may say together (relations).
Invariant: a value in a BrokerConfig was parsed and checked; each of its fields is read somewhere, and what
was set and is read nowhere is in `ignored`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from broker.config.checks import RACK_AWARE_SELECTOR
from broker.config.groups import GROUP_LIMITS
from broker.config.levels import Levels
from broker.config.listeners import (
    Listener,
    advertised_listeners,
    inter_broker_listener,
    parse_listeners,
    protocol_map,
)
from broker.config.relations import check_relations
from broker.config.tables import (
    ALIASES,
    BROKER,
    BROKER_DEFAULTS,
    CHAINS,
    METADATA_CLIENTS,
    PLAIN_S3_DEFAULTS,
    STANDALONE_DEFAULTS,
    TOPIC,
    base_name,
    check_known,
)
from broker.config.tiering import (
    TOPIC_METADATA_MANAGER,
    WITHOUT_EFFECT,
    MetadataTopic,
    check_metadata_manager,
    check_retention,
    copy_lag_warning,
    manager_configs,
    metadata_topic,
)
from broker.config.topics import LOG_FIELDS, log_config
from broker.config.values import ConfigError, ConfigType, check_text, invalid, parse_list, parse_value


class BrokerConfig(Levels):
    """Kafka's broker settings as this broker uses them, dynamic ones included; `get` knows all the others.

    A field is named after its setting, with underscores. Immutable. A dataclass of so many fields would cost
    a start-up more than reading the whole table.
    """

    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker_listener: str
    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    ignored: tuple[str, ...]
    """Settings that were given and mean nothing here."""
    remote_storage_manager_configs: Mapping[str, str]
    """What the storage manager of the cold tier is told, without its prefix."""
    remote_metadata_manager_configs: Mapping[str, str]
    """What the metadata manager is told, likewise."""
    remote_metadata_topic: MetadataTopic
    remote_wal_storage_manager_configs: Mapping[str, str]
    """What the manager of combined objects is told, without its prefix."""

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
    follower_fetch_last_tiered_offset_enable: bool
    follower_replication_throttled_rate: int
    group_consumer_assignment_interval_ms: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_session_timeout_ms: int
    group_coordinator_rebalance_protocols: tuple[str, ...]
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
    log_dir_min_free_bytes: int
    request_rows_max: int
    log_dirs: tuple[str, ...]
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_single_replica: bool
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
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
    remote_fetch_max_wait_ms: int
    remote_list_offsets_request_timeout_ms: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_expiration_thread_pool_size: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_manager_follower_thread_pool_size: int
    remote_log_manager_task_interval_ms: int
    remote_log_metadata_custom_metadata_max_bytes: int
    remote_log_metadata_manager_class_name: str
    remote_log_metadata_manager_class_path: str | None
    remote_log_reader_max_pending_tasks: int
    remote_log_reader_threads: int
    remote_log_storage_manager_class_name: str | None
    remote_log_storage_manager_class_path: str | None
    remote_log_storage_system_enable: bool
    remote_log_wal_storage_manager_class_name: str | None
    remote_log_wal_storage_manager_class_path: str | None
    remote_log_wal_storage_system_enable: bool
    remote_wal_local_sync: bool
    remote_wal_log_manager_combiner_queue_size: int
    remote_wal_log_manager_combiner_task_interval_ms: int
    remote_wal_log_manager_combiner_task_upload_bytes: int
    remote_wal_log_manager_combiner_thread_pool_size: int
    remote_wal_log_manager_thread_pool_size: int
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
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int
    unclean_leader_election_enable: bool

    def __init__(self, **values: Any) -> None:
        missing = (BrokerConfig.__annotations__.keys() | Levels.__annotations__.keys()) ^ values.keys()
        assert not missing, missing
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a BrokerConfig does not change")

    def __repr__(self) -> str:
        return f"BrokerConfig(node_id={self.node_id}, {len(self.static)} set)"

    @property
    def is_rack_aware(self) -> bool:
        """Whether consumers are sent to the nearest replica (KIP-392)."""
        return bool(self.get("replica.selector.class") == RACK_AWARE_SELECTOR)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should change, a line each."""
        lines = [f"{name} is the name that KIP-956 proposed; use {ALIASES[name]}" for name in self.aliased]
        lines += [
            f"{name} is set, and nothing here asks it: whatever it would refuse is allowed"
            for name in _GUARDS
            if name in self.ignored
        ]
        lag = copy_lag_warning(log_config(self, {}), "log.")
        return (*lines, lag) if lag is not None else tuple(lines)

    def with_dynamic(self, *, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """Build these settings anew, under the image's cluster-wide and per-broker values; the same ones are
        not built twice."""
        if default == self.dynamic_default and broker == self.dynamic_broker:
            return self
        return _build(
            static=self.static,
            aliased=self.aliased,
            defaults=self.defaults,
            dynamic_default=dict(default),
            dynamic_broker=dict(broker),
        )


_GUARDS = (
    "alter.config.policy.class.name",
    "authorizer.class.name",
    "client.quota.callback.class",
    "create.topic.policy.class.name",
)
"""Who sets one of these relies on it, so a place in the list of what has no effect is not enough."""
_DERIVED = frozenset(
    {
        "listeners",
        "advertised",
        "inter_broker_listener",
        "ignored",
        "log_dirs",
        "node_id",
        "broker_rack",
        "max_connections_per_ip_overrides",
        "remote_log_manager_follower_thread_pool_size",
        "remote_log_metadata_manager_class_path",
        "remote_log_storage_manager_class_name",
        "remote_log_storage_manager_class_path",
        "remote_log_wal_storage_manager_class_name",
        "remote_log_wal_storage_manager_class_path",
        "remote_metadata_manager_configs",
        "remote_metadata_topic",
        "remote_storage_manager_configs",
        "remote_wal_storage_manager_configs",
        "socket_receive_buffer_bytes",
        "socket_send_buffer_bytes",
    }
)
"""Fields which are more than the parsed value of the setting they are named after."""
_FIELDS = {name: name.replace("_", ".") for name in BrokerConfig.__annotations__ if name not in _DERIVED}
EFFECTIVE = frozenset(
    {
        *_FIELDS.values(),
        *(name for topic_name in LOG_FIELDS for name in TOPIC[topic_name].synonyms),
        *(name for chain in CHAINS for name in chain),
        "advertised.listeners",
        "broker.id",
        "broker.rack",
        "controller.listener.names",
        *GROUP_LIMITS,
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "max.connections.per.ip.overrides",
        "node.id",
        "process.roles",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
        "remote.log.wal.storage.manager.class.name",
        "remote.log.wal.storage.manager.class.path",
        "remote.log.wal.storage.manager.impl.prefix",
        "replica.selector.class",
        "security.inter.broker.protocol",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    }
)
"""Settings of a broker that something acts on; the others are accepted and mean nothing here."""


def from_properties(
    props: Mapping[str, str], *, standalone: bool = False, plain_s3: bool = False
) -> BrokerConfig:
    """Build a broker's settings from its properties; `standalone` is a broker without an external store,
    `plain_s3` one whose store is S3 itself."""
    static, aliased = _by_known_names(props)
    plugins = tuple(static.get(name) or BROKER_DEFAULTS[name] or "" for name in _MANAGER_PREFIXES)
    for name, text in static.items():
        check_text(name, text)
        check_known(name, plugins)
    node_id = static.get("node.id", static.get("broker.id", "1"))
    if static.setdefault("broker.id", node_id) != static.setdefault("node.id", node_id):
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")
    defaults = {**BROKER_DEFAULTS, **STANDALONE_DEFAULTS} if standalone else BROKER_DEFAULTS
    if plain_s3:
        defaults = {**defaults, **PLAIN_S3_DEFAULTS}
    for name, text in static.items():
        definition = BROKER.get(base_name(name))
        if definition is not None:
            definition.parse(text)
    return _build(static=static, aliased=aliased, defaults=defaults, dynamic_default={}, dynamic_broker={})


_MANAGER_PREFIXES = (
    "remote.log.storage.manager.impl.prefix",
    "remote.log.metadata.manager.impl.prefix",
    "remote.log.wal.storage.manager.impl.prefix",
)


def _by_known_names(props: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the properties under the names that the tables have, and which had another."""
    static = dict(props)
    aliased = tuple(sorted(props.keys() & ALIASES.keys()))
    for name in aliased:
        text, known = static.pop(name), ALIASES[name]
        if static.setdefault(known, text) != text:
            raise ConfigError(f"{name} is another name of {known}, and the two differ: set {known} alone")
    return static, aliased


def _build(
    *,
    static: Mapping[str, str],
    aliased: tuple[str, ...],
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
    protocols = protocol_map(raw)
    controllers = set(parse_list(raw, "controller.listener.names"))
    _check_roles(raw)
    listeners = parse_listeners(raw["listeners"] or "", protocols, controllers, "listeners")
    advertised = advertised_listeners(raw, listeners, protocols, controllers)
    storage_prefix, metadata_prefix, wal_prefix = (raw[name] or "" for name in _MANAGER_PREFIXES)
    storage_manager = manager_configs(static, storage_prefix)
    metadata_manager = manager_configs(static, metadata_prefix)
    wal_manager = manager_configs(static, wal_prefix)
    if values["remote_log_metadata_manager_class_name"] == TOPIC_METADATA_MANAGER:
        check_metadata_manager(metadata_manager, metadata_prefix)
    config = BrokerConfig(
        **values,
        static=static,
        defaults=defaults,
        dynamic_default=dynamic_default,
        dynamic_broker=dynamic_broker,
        listeners=listeners,
        advertised=advertised,
        inter_broker_listener=inter_broker_listener(raw, advertised),
        ignored=tuple(
            sorted(
                {*static, *dynamic_default, *dynamic_broker}
                - EFFECTIVE
                - _heard(raw, storage_manager, metadata_manager, wal_manager)
            )
        ),
        aliased=aliased,
        node_id=BROKER["node.id"].parse(raw["node.id"] or ""),
        broker_rack=raw["broker.rack"] or None,
        log_dirs=parse_list(raw, "log.dirs") or parse_list(raw, "log.dir"),
        max_connections_per_ip_overrides=_ip_overrides(raw["max.connections.per.ip.overrides"] or ""),
        socket_receive_buffer_bytes=_buffer_bytes(static, "socket.receive.buffer.bytes"),
        socket_send_buffer_bytes=_buffer_bytes(static, "socket.send.buffer.bytes"),
        remote_log_manager_follower_thread_pool_size=_follower_threads(
            {**static, **dynamic_default, **dynamic_broker}
        ),
        remote_log_metadata_manager_class_path=raw["remote.log.metadata.manager.class.path"],
        remote_log_storage_manager_class_name=raw["remote.log.storage.manager.class.name"],
        remote_log_storage_manager_class_path=raw["remote.log.storage.manager.class.path"],
        remote_log_wal_storage_manager_class_name=raw["remote.log.wal.storage.manager.class.name"],
        remote_log_wal_storage_manager_class_path=raw["remote.log.wal.storage.manager.class.path"],
        remote_storage_manager_configs=storage_manager,
        remote_wal_storage_manager_configs=wal_manager,
        remote_metadata_manager_configs=metadata_manager,
        remote_metadata_topic=metadata_topic(metadata_manager, defaults),
    )
    if len(set(config.log_dirs)) != len(config.log_dirs):
        raise ConfigError("log.dirs names a directory twice")
    check_relations(config)
    log = log_config(config, {})
    if config.remote_log_storage_system_enable:
        check_retention(log, "log.")
    return config


def _heard(
    raw: Mapping[str, str | None],
    storage_manager: Mapping[str, str],
    metadata_manager: Mapping[str, str],
    wal_manager: Mapping[str, str],
) -> set[str]:
    """Name the settings of the managers that somebody reads. One listener's own value means nothing yet, even
    of a name that means something for all."""
    storage_prefix, metadata_prefix, wal_prefix = (raw[name] or "" for name in _MANAGER_PREFIXES)
    heard = set()
    if raw["remote.log.storage.manager.class.name"] is not None:
        heard |= {storage_prefix + name for name in storage_manager}
    if raw["remote.log.wal.storage.manager.class.name"] is not None:
        heard |= {wal_prefix + name for name in wal_manager}
    built_in = raw["remote.log.metadata.manager.class.name"] == TOPIC_METADATA_MANAGER
    without_effect = WITHOUT_EFFECT if built_in else frozenset()
    return heard | {
        metadata_prefix + name
        for name in metadata_manager
        if name not in without_effect and not (built_in and name.startswith(METADATA_CLIENTS))
    }


def _follower_threads(given: Mapping[str, str]) -> int:
    """Return the newer setting if it was given, else the one that it replaced."""
    newer, older = "remote.log.manager.follower.thread.pool.size", "remote.log.manager.thread.pool.size"
    name = newer if newer in given or older not in given else older
    value: int = BROKER[name].parse(given.get(name) or BROKER[name].default or "")
    return value


def _buffer_bytes(static: Mapping[str, str], name: str) -> int:
    """Return what was asked for, else -1: Kafka's default of 100 KB would keep the kernel from choosing."""
    value: int = BROKER[name].parse(static.get(name, "-1"))
    return value


def _check_roles(raw: Mapping[str, str | None]) -> None:
    roles = parse_list(raw, "process.roles")
    if roles and "broker" not in roles:
        raise ConfigError("process.roles must contain broker: every node of this cluster is one")


_COUNT = re.compile(r"[0-9]{1,10}")


def _ip_overrides(text: str) -> dict[str, int]:
    found = {}
    for entry in parse_value(ConfigType.LIST, "max.connections.per.ip.overrides", text):
        host, _, count = entry.rpartition(":")
        if not host or _COUNT.fullmatch(count) is None:
            raise invalid("max.connections.per.ip.overrides", entry, "Expected HOST:COUNT")
        found[host] = int(count)
    return found
