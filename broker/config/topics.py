"""A topic's settings: its own values above what the brokers' levels say.

Owns: every topic setting parsed, the LogConfig made from them, and what a topic may be set to. Does not own:
where a topic's own values are kept (the image), or what a setting does (storage.policy). Invariant: equal
settings give the same LogConfig, however many topics have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from broker.config.levels import ALIKE_MAX, Levels
from broker.config.tables import (
    BROKER,
    CHAIN_OF,
    HIDDEN_TOPIC,
    INTERNAL_SEGMENT_BYTES,
    TOPIC,
    Definition,
    check_wal_name,
)
from broker.config.tiering import check_tiered_topic, check_wal_topic
from broker.config.values import ConfigError, check_lengths
from storage.policy import LogConfig

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
_UNIT_MS = {"log.retention.minutes": MINUTE_MS} | dict.fromkeys(
    ("log.roll.hours", "log.roll.jitter.hours", "log.retention.hours"), HOUR_MS
)
LOG_FIELDS = {name: field for name in TOPIC if (field := name.replace(".", "_")) in LogConfig.__annotations__}
"""Field of a LogConfig by topic setting; the other topic settings are accepted without effect."""


def topic_values(config: Levels, overrides: Mapping[str, str]) -> Mapping[str, Any]:
    """Return every topic setting, parsed: the topic's own value, else what the broker's levels say."""
    return _topic_values(config, tuple(sorted(overrides.items())))


@lru_cache(maxsize=ALIKE_MAX)
def _topic_values(config: Levels, overrides: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    own = dict(overrides)
    return {
        name: definition.parse(own[name]) if name in own else _broker_value(config, definition)
        for name, definition in TOPIC.items()
    }


def _broker_value(config: Levels, definition: Definition) -> Any:
    if not definition.synonyms:
        return definition.parse(definition.default or "")
    for name in CHAIN_OF.get(definition.synonyms[0], definition.synonyms):
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


def log_config(config: Levels, overrides: Mapping[str, str]) -> LogConfig:
    """Return the settings of a log: those of `config`, dynamic ones included, under the topic's own."""
    all_values = topic_values(config, overrides)
    values = {field: all_values[name] for name, field in LOG_FIELDS.items()}
    internal = overrides.get(INTERNAL_SEGMENT_BYTES)
    if internal is not None:
        values["segment_bytes"] = HIDDEN_TOPIC[INTERNAL_SEGMENT_BYTES].parse(internal)
    return LogConfig(**values)


def check_topic_configs(
    config: Levels, overrides: Mapping[str, str], *, before: Mapping[str, str], is_internal: bool
) -> None:
    """ConfigError unless a topic may have all these settings together; `before` are those it has."""
    for name in overrides:
        if name not in TOPIC and name not in HIDDEN_TOPIC:
            check_wal_name(name, TOPIC)
            raise ConfigError(f"Unknown topic config name: {name}")
    check_lengths(overrides)
    for name, definition in HIDDEN_TOPIC.items():
        if name in overrides:
            definition.parse(overrides[name])
    values = topic_values(config, overrides)
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    log = log_config(config, overrides)
    check_tiered_topic(
        log,
        is_system_enabled=config.get("remote.log.storage.system.enable"),
        was_tiered=before.get("remote.storage.enable", "").lower() == "true",
        is_internal=is_internal,
    )
    check_wal_topic(
        log,
        is_system_enabled=config.get("remote.log.wal.storage.system.enable"),
        was_on=before.get("remote.wal.storage.enable", "").lower() == "true",
        is_internal=is_internal,
    )
