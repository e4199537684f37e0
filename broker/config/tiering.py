"""What the settings of the tiers may say together, and what their managers are told.

Owns: the rules between retention, local retention, copy lag and tiering, for a topic and for the brokers'
defaults, in Kafka's words; which topics may use the WAL tier; the settings behind the prefixes of the
managers. Does not
own: names, types and single values (tables, checks), loading a manager (remote/cold/plugins.py), or what a
setting does. Invariant: what passes here leaves no tiered log that would delete what it has not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.config.tables import METADATA_CLIENTS, METADATA_MANAGER, unknown
from broker.config.values import ConfigError, invalid
from storage.policy import LogConfig

TOPIC_METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
"""Kafka's own, which keeps its records in a topic; here the name stands for what the broker does itself."""
WITHOUT_EFFECT = frozenset(
    {
        "remote.log.metadata.initialization.retry.interval.ms",
        "remote.log.metadata.initialization.retry.max.timeout.ms",
    }
)


class MetadataTopic(NamedTuple):
    """How the metadata manager's own topic is made and waited for."""

    partitions: int
    replication_factor: int
    min_isr: int
    retention_ms: int
    consume_wait_ms: int


# --- a topic ---


def check_tiered_topic(
    log: LogConfig, *, is_system_enabled: bool, was_tiered: bool, is_internal: bool
) -> None:
    """ConfigError unless a topic may be tiered, or stop being so, under these settings."""
    if not log.remote_storage_enable:
        if was_tiered and not log.remote_log_delete_on_disable:
            raise ConfigError(_KEEPS_REMOTE)
        return
    if not is_system_enabled:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    if log.cleanup_policy not in ((), ("delete",)):
        raise ConfigError(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being "
            "an empty list."
        )
    if is_internal:
        raise ConfigError("Remote log storage does not support internal topics: remote.storage.enable")
    check_retention(log, "")
    if log.remote_log_copy_disable:
        for what, local, total in _retentions(log):
            if local not in (-2, total):
                raise ConfigError(
                    f"When `remote.log.copy.disable` is set to true, the `local.{what}` and `{what}` must be "
                    "set to the identical value because there will be no more logs copied to the remote "
                    "storage."
                )


_KEEPS_REMOTE = (
    "It is invalid to disable remote storage without deleting remote data. "
    "If you want to keep the remote data and turn to read only, please set "
    "`remote.storage.enable=true,remote.log.copy.disable=true`. "
    "If you want to disable remote storage and delete all remote data, please set "
    "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
)


def check_retention(log: LogConfig, prefix: str) -> None:
    """ConfigError unless local retention lies within retention, and the copy lag within local retention;
    `prefix` is what the settings' names begin with at this level."""
    lags = (log.remote_copy_lag_bytes, log.remote_copy_lag_ms)
    for (what, local, total), lag in zip(_retentions(log), lags, strict=True):
        name = f"{prefix}local.{what}"
        if total > -1 and local == -1:
            raise invalid(name, local, f"Value must not be -1 as {prefix}{what} value is set as {total}.")
        if total > -1 and local > total:
            raise invalid(name, local, f"Value must not be more than {prefix}{what} property value: {total}")
        effective = total if local == -2 else local
        if 0 <= effective < lag:
            lag_name = f"{prefix}remote.copy.lag.{what.rpartition('.')[2]}"
            raise invalid(lag_name, lag, f"Value must not exceed {name} (effective value: {effective})")


def _retentions(log: LogConfig) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    return (
        ("retention.bytes", log.local_retention_bytes, log.retention_bytes),
        ("retention.ms", log.local_retention_ms, log.retention_ms),
    )


def copy_lag_warning(log: LogConfig, prefix: str) -> str | None:
    """Tell of a lag that is set in vain: either one suffices for a copy, and 0 always does."""
    bytes_name, ms_name = f"{prefix}remote.copy.lag.bytes", f"{prefix}remote.copy.lag.ms"
    if log.remote_copy_lag_bytes > 0 and log.remote_copy_lag_ms == 0:
        return _in_vain(bytes_name, log.remote_copy_lag_bytes, ms_name)
    if log.remote_copy_lag_ms > 0 and log.remote_copy_lag_bytes == 0:
        return _in_vain(ms_name, log.remote_copy_lag_ms, bytes_name)
    return None


def _in_vain(name: str, value: int, other: str) -> str:
    return (
        f"{name}={value} has no effect while {other} is 0, which copies segments at once; "
        f"set {other} to -1 to wait for either of the two"
    )


def check_wal_topic(log: LogConfig, *, is_system_enabled: bool, was_on: bool, is_internal: bool) -> None:
    """ConfigError unless a topic may send its tail to the store. Any cleanup policy and number of replicas
    may, with the cold tier or without. A topic that has it on keeps it, and may be altered otherwise, when
    brokers come back with the system switched off."""
    if not log.remote_wal_storage_enable:
        return
    if is_internal:
        raise ConfigError(
            "remote.wal.storage.enable cannot be set on internal topics: "
            "the brokers decide which of them are stored"
        )
    if not is_system_enabled and not was_on:
        raise ConfigError(
            "remote.wal.storage.enable cannot be switched on while "
            "remote.log.wal.storage.system.enable=false in the brokers"
        )


# --- the managers ---


def manager_configs(raw: Mapping[str, str | None], prefix: str) -> dict[str, str]:
    """Return what a manager is told, under the names that follow its prefix."""
    return {
        name[len(prefix) :]: text
        for name, text in raw.items()
        if prefix and name.startswith(prefix) and text is not None
    }


def check_metadata_manager(configs: Mapping[str, str], prefix: str) -> None:
    """ConfigError when the metadata manager that is built in does not know one of its settings."""
    for name in configs:
        if name not in METADATA_MANAGER and not name.startswith(METADATA_CLIENTS):
            raise unknown(name, METADATA_MANAGER, prefix)


def metadata_topic(configs: Mapping[str, str], defaults: Mapping[str, str | None]) -> MetadataTopic:
    """Read the metadata manager's settings; `defaults` may know better ones than Kafka's."""

    def value(name: str) -> Any:
        text = configs.get(name) or defaults.get(name) or METADATA_MANAGER[name].default
        assert text is not None, name
        return METADATA_MANAGER[name].parse(text)

    replicas = value("remote.log.metadata.topic.replication.factor")
    min_isr = value("remote.log.metadata.topic.min.isr")
    if "remote.log.metadata.topic.min.isr" not in configs:
        # more than there can be would refuse every record
        min_isr = min(min_isr, replicas)
    return MetadataTopic(
        partitions=value("remote.log.metadata.topic.num.partitions"),
        replication_factor=replicas,
        min_isr=min_isr,
        retention_ms=value("remote.log.metadata.topic.retention.ms"),
        consume_wait_ms=value("remote.log.metadata.consume.wait.ms"),
    )
