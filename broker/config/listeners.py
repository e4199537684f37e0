"""Listeners: where a broker listens, what it tells clients, and which one is for the other brokers.

Owns: reading and checking `listeners`, `advertised.listeners`, the protocol map and the inter-broker
listener. Does not own: opening one (broker.net). Invariant: every listener has a name and a port of its own
and speaks PLAINTEXT; those of a controller alone are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from broker.config.checks import PROTOCOLS
from broker.config.values import ConfigError, ConfigType, invalid, parse_list, parse_value

WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::", "[::]"})


class Listener(NamedTuple):
    name: str
    protocol: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in WILDCARD_HOSTS


def protocol_map(raw: Mapping[str, str | None]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in parse_list(raw, "listener.security.protocol.map"):
        name, colon, protocol = entry.rpartition(":")
        if not colon or not name or protocol.upper() not in PROTOCOLS:
            raise invalid("listener.security.protocol.map", entry, "Expected LISTENER:PROTOCOL")
        if name.upper() in found:
            raise invalid("listener.security.protocol.map", entry, "A listener is named twice")
        found[name.upper()] = protocol.upper()
    return found


_LISTENER = re.compile(r"([A-Za-z0-9_\-]+)://(\[[0-9A-Fa-f:.%]*\]|[^:/\[\]]*):(-?[0-9]+)")


def parse_listeners(
    text: str, protocols: Mapping[str, str], controllers: set[str], setting: str
) -> tuple[Listener, ...]:
    """Parse the listeners clients may use: the controller's are not opened, it lives in every broker."""
    found = []
    for entry in parse_value(ConfigType.LIST, setting, text):
        match = _LISTENER.fullmatch(entry)
        if match is None or not 0 <= int(match[3]) <= 65535:
            raise invalid(setting, entry, "Expected NAME://HOST:PORT")
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


def advertised_listeners(
    raw: Mapping[str, str | None],
    listeners: tuple[Listener, ...],
    protocols: Mapping[str, str],
    controllers: set[str],
) -> tuple[Listener, ...]:
    _check_opened(listeners)
    text = raw["advertised.listeners"]
    if not text:
        return listeners
    advertised = parse_listeners(text, protocols, controllers, "advertised.listeners")
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


def inter_broker_listener(raw: Mapping[str, str | None], advertised: tuple[Listener, ...]) -> str:
    name = (raw["inter.broker.listener.name"] or raw["security.inter.broker.protocol"] or "").upper()
    names = [listener.name for listener in advertised]
    if name not in names:
        raise ConfigError(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. "
            f"The valid options based on currently configured listeners are {','.join(names)}"
        )
    return name
