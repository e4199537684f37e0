"""What may be changed while a broker runs.

Owns: the check of dynamic settings, of one broker or of all. Does not own: where they are kept (the image) or
what follows a change. Invariant: what passes here can be built into a BrokerConfig.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.broker import BrokerConfig
from broker.config.tables import BROKER, base_name, check_wal_name
from broker.config.tiering import check_retention
from broker.config.topics import log_config
from broker.config.values import ConfigError, check_lengths

_SECURITY_PREFIXES = ("ssl.", "sasl.")
_PER_BROKER = frozenset({"listeners", "listener.security.protocol.map", "principal.builder.class"})
_NOT_WHILE_RUNNING = frozenset({"listeners", "listener.security.protocol.map"})
"""Kafka rebinds while it runs; here a listener is opened once, at start."""


def check_broker_configs(config: BrokerConfig, dynamic: Mapping[str, str], *, per_broker: bool) -> None:
    """ConfigError unless these may be a broker's (or the cluster's default) dynamic settings."""
    check_lengths(dynamic)
    fixed = sorted(
        name for name in dynamic if name in _NOT_WHILE_RUNNING or (name in BROKER and BROKER[name].read_only)
    )
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    secret = sorted(
        name for name in dynamic if name.startswith("ssl.") and name in BROKER and not BROKER[name].read_only
    )
    if secret:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"[{', '.join(secret)}]"
        )
    wal_prefix = config.raw("remote.log.wal.storage.manager.impl.prefix") or ""
    for name, text in dynamic.items():
        definition = BROKER.get(base_name(name))
        if definition is not None:
            definition.parse(text)
        elif not name.startswith(wal_prefix):
            check_wal_name(name, BROKER)
    own = sorted(name for name in dynamic if _is_per_broker(name))
    if own and not per_broker:
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"[{', '.join(own)}]"
        )
    wanted = config.with_dynamic(
        default=config.dynamic_default if per_broker else dynamic,
        broker=dynamic if per_broker else config.dynamic_broker,
    )
    check_retention(log_config(wanted, {}), "log.")


def _is_per_broker(name: str) -> bool:
    if name in _PER_BROKER or name.startswith("listener.name."):
        return True
    return name in BROKER and name.startswith(_SECURITY_PREFIXES)
