"""A group's settings: its own values above the brokers' defaults.

Owns: every group setting parsed, and what a group may be set to. Does not own: where a group's own values are
kept (the image). Invariant: no group gets beyond the limits that the broker sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.config.levels import Levels
from broker.config.tables import BROKER, GROUP, Definition
from broker.config.values import ConfigError, check_lengths

EFFECTIVE_GROUP: Final = frozenset(
    {"consumer.assignment.interval.ms", "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"}
)
"""Settings of a group that something acts on."""
GROUP_LIMITS: Final = tuple(
    f"group.consumer.{limit}.{name.removeprefix('consumer.')}"
    for name in sorted(EFFECTIVE_GROUP)
    for limit in ("max", "min")
)
"""Settings of a broker by which those of a group are refused."""


def group_values(config: Levels, overrides: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: definition.parse(overrides[name]) if name in overrides else _group_default(config, definition)
        for name, definition in GROUP.items()
    }


def _group_default(config: Levels, definition: Definition) -> Any:
    name = next((name for name in definition.synonyms if name in BROKER), None)
    return definition.parse(definition.default or "") if name is None else config.get(name)


def check_group_configs(config: Levels, overrides: Mapping[str, str]) -> None:
    for name in overrides:
        if name not in GROUP:
            raise ConfigError(f"Unknown group config name: {name}")
    check_lengths(overrides)
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
