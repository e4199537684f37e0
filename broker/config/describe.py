"""What DescribeConfigs says of a broker, a topic or a group.

Owns: the rows with value, source and synonyms, in Kafka's order and words. Does not own: the response
(handlers.configs). Invariant: a row never shows a secret, nor the value of a setting of unknown type.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from broker.config.broker import EFFECTIVE
from broker.config.groups import group_values
from broker.config.levels import ALIKE_MAX, Levels
from broker.config.tables import (
    BROKER,
    CHAIN_OF,
    GROUP,
    HIDDEN_BROKER,
    THROTTLED_RATES,
    TOPIC,
    Definition,
    base_name,
)
from broker.config.topics import LOG_FIELDS, topic_values
from broker.config.values import ConfigType, format_value

WITHOUT_EFFECT = "Accepted without effect: this broker has nothing that it could change."


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


def describe_broker(config: Levels) -> list[ConfigRow]:
    """Describe every broker setting Kafka knows, and whatever else was set."""
    return list(_broker_rows(config))


@lru_cache(maxsize=1)
def _broker_rows(config: Levels) -> tuple[ConfigRow, ...]:
    given = {*config.static, *config.dynamic_default, *config.dynamic_broker}
    names = (BROKER.keys() - THROTTLED_RATES | given) - HIDDEN_BROKER
    return tuple(_broker_row(config, name) for name in sorted(names))


def describe_broker_defaults(config: Levels) -> list[ConfigRow]:
    """Describe the cluster-wide default: only what was set there."""
    rows = []
    for name in sorted(config.dynamic_default):
        row = _broker_row(config, name)
        synonyms = tuple(s for s in row.synonyms if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER)
        value = None if row.sensitive else config.dynamic_default[name]
        rows.append(row._replace(value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER, synonyms=synonyms))
    return rows


def describe_topic(config: Levels, overrides: Mapping[str, str]) -> list[ConfigRow]:
    return list(_topic_rows(config, tuple(sorted(overrides.items()))))


@lru_cache(maxsize=ALIKE_MAX)
def _topic_rows(config: Levels, overrides: tuple[tuple[str, str], ...]) -> tuple[ConfigRow, ...]:
    own = dict(overrides)
    values = topic_values(config, own)
    return tuple(
        _inherited_row(config, TOPIC[name], own, values[name], ConfigSource.TOPIC) for name in sorted(TOPIC)
    )


def describe_group(config: Levels, overrides: Mapping[str, str]) -> list[ConfigRow]:
    return list(_group_rows(config, tuple(sorted(overrides.items()))))


@lru_cache(maxsize=ALIKE_MAX)
def _group_rows(config: Levels, overrides: tuple[tuple[str, str], ...]) -> tuple[ConfigRow, ...]:
    own = dict(overrides)
    values = group_values(config, own)
    return tuple(
        _inherited_row(config, GROUP[name], own, values[name], ConfigSource.GROUP) for name in sorted(GROUP)
    )


def _inherited_row(
    config: Levels,
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
        documentation=definition.documentation if name in LOG_FIELDS else WITHOUT_EFFECT,
    )


def _broker_row(config: Levels, name: str) -> ConfigRow:
    definition = BROKER.get(base_name(name))
    # a setting of unknown type may hold a secret
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
        documentation=definition.documentation if definition and name in EFFECTIVE else WITHOUT_EFFECT,
    )


def _synonyms(config: Levels, name: str, *, sensitive: bool) -> list[Synonym]:
    """Return where a broker setting's value comes from, the strongest first, beginning with the name that was
    asked for."""
    base = base_name(name)
    chain = (name, base) if base != name else CHAIN_OF.get(name, (name,))
    levels = (
        (config.dynamic_broker, ConfigSource.DYNAMIC_BROKER),
        (config.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (config.static, ConfigSource.STATIC_BROKER),
        ({} if name in THROTTLED_RATES else config.defaults, ConfigSource.DEFAULT),
    )
    found = [
        Synonym(name=synonym, value=None if sensitive else level.get(synonym), source=source)
        for level, source in levels
        for synonym in chain
        if level.get(synonym) is not None
    ]
    start = next((at for at, synonym in enumerate(found) if synonym.name == name), len(found))
    return found[start:]
