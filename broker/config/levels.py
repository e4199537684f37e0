"""The levels of a broker's settings, and which one wins.

Owns: dynamic values of one broker, of all brokers, the properties it was started with and the defaults, and
looking a name up in them. Does not own: the typed view (broker), or topics and groups (topics, groups).
Invariant: the levels of a broker do not change; a new value makes new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.config.tables import BROKER

ALIKE_MAX = 128
"""Most topics have the same settings, and one request may name thousands of topics."""


class Levels:
    """The texts of a broker's settings by name, level by level."""

    static: Mapping[str, str]
    aliased: tuple[str, ...]
    """Names of `static` values that were given under another one."""
    defaults: Mapping[str, str | None]
    dynamic_default: Mapping[str, str]
    dynamic_broker: Mapping[str, str]

    def raw(self, name: str) -> str | None:
        """Return the text in force for one name, dynamic values before static ones before the default."""
        for level in (self.dynamic_broker, self.dynamic_default, self.static, self.defaults):
            value = level.get(name)
            if value is not None:
                return value
        return None

    def get(self, name: str) -> Any:
        """Return the parsed value of any setting Kafka knows; None where it has none."""
        text = self.raw(name)
        return None if text is None else BROKER[name].parse(text)
