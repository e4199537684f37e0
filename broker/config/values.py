"""Kafka's types of values: how a text is read as one, and written again.

Owns: the types, reading and writing, the error of a setting that cannot be taken. Does not own: which setting
has which type (tables), or its limits (checks). Invariant: reading takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from math import isinf
from typing import Any

STRING_BYTES_MAX = 2**15 - 1
_SHOWN_MAX = 1000


class ConfigError(Exception):
    """A setting that cannot be taken; one line for the operator."""


class ResourceType(IntEnum):
    """Kafka's config resource types, by number."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


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


# Every pattern takes time in proportion to its text: a value may be as long as a request. The lengths keep
# out what Python refuses to parse, or parses to infinity after a long while.
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,9})?")
_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


def parse_value(kind: ConfigType, name: str, text: str) -> Any:
    """Parse as Kafka's ConfigDef does; ConfigError in its words."""
    trimmed = text.strip()
    match kind:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            limit = 1 << _BITS[kind]
            if _INTEGER.fullmatch(trimmed) is None or not -limit <= int(trimmed) < limit:
                raise invalid(name, text, f"Not a number of type {kind.name}")
            return int(trimmed)
        case ConfigType.DOUBLE:
            if _DOUBLE.fullmatch(trimmed) is None or isinf(float(trimmed)):
                raise invalid(name, text, "Not a number of type DOUBLE")
            return float(trimmed)
        case ConfigType.LIST:
            return tuple(item.strip() for item in trimmed.split(",")) if trimmed else ()
        case _:
            return trimmed


def parse_list(raw: Mapping[str, str | None], name: str) -> tuple[str, ...]:
    """Return the items of a list among unparsed settings; a list that is not set is empty."""
    return tuple(parse_value(ConfigType.LIST, name, raw[name] or ""))


def format_value(value: Any) -> str | None:
    """Write a parsed value as Kafka does: the inverse."""
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


def invalid(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {shown(value)} for configuration {shown(name)}: {why}")


def shown(value: object) -> str:
    """Return a value or name as one short line, whatever is in it."""
    text = str(value)
    cut = text[:_SHOWN_MAX]
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return cut if len(text) <= _SHOWN_MAX else f"{cut}… ({len(text)} characters)"


def check_text(name: str, text: str) -> None:
    """ConfigError for what no file name, address or answer may hold."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name + text):
        raise ConfigError(f"Configuration {shown(name)} has a character that no text has, NUL or half a pair")


def check_lengths(values: Mapping[str, str]) -> None:
    """ConfigError when a name or value does not fit the responses of every version, which describe it."""
    for name, value in values.items():
        if len(name.encode()) > STRING_BYTES_MAX or len(value.encode()) > STRING_BYTES_MAX:
            raise ConfigError(f"Configuration {name[:100]} is longer than {STRING_BYTES_MAX} bytes")
