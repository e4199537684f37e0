"""Every broker, topic and group setting of Kafka 4.3, and our own: type, default, synonyms, limits.

Owns: the tables `BROKER`, `TOPIC` and `GROUP`, as a live broker described its settings (`data/*.tsv`), and
which setting stands in for one that is not set. Does not own: reading the files (table_files), or which level
wins (levels). Invariant: each name is there once; one that is not there is refused with the nearest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.config.checks import BROKER_CHECKS, GROUP_CHECKS, TOPIC_CHECKS, Check, at_least
from broker.config.table_files import read_table
from broker.config.values import ConfigError, ConfigType, parse_value


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
"""What the server that was asked for its settings had set; the defaults are those of Kafka's source."""
STANDALONE_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}
"""Without an external store there can be no second broker."""
_TOPIC_SYNONYMS = {
    "flush.ms": ("log.flush.interval.ms",),
    "retention.ms": ("log.retention.ms",),
    "segment.jitter.ms": ("log.roll.jitter.ms",),
    "segment.ms": ("log.roll.ms",),
}
"""Described without a synonym while the first name of the chain is unset, so the tables do not tell."""
CHAINS: tuple[tuple[str, ...], ...] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
"""Settings in the order in which they are asked; the first that is set counts."""
CHAIN_OF = {
    **{name: chain for chain in CHAINS for name in chain},
    "log.flush.scheduler.interval.ms": ("log.flush.scheduler.interval.ms",),
}
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
THROTTLED_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})
"""Kafka describes these where they were set, and never their default."""
_OWN_BROKER = (
    Definition(
        name="log.flush.single.replica",
        kind=ConfigType.BOOLEAN,
        default="false",
        read_only=True,
        synonyms=(),
        documentation=_SINGLE_REPLICA_DOC,
    ),
    Definition(
        name="record.validation",
        kind=ConfigType.STRING,
        default="header",
        read_only=False,
        synonyms=(),
        check=BROKER_CHECKS["record.validation"],
        documentation=_VALIDATION_DOC,
    ),
    *(
        Definition(
            name=name,
            kind=ConfigType.LONG,
            default=str(2**63 - 1),
            read_only=False,
            synonyms=(),
            check=at_least(0),
            documentation=_THROTTLED_RATE_DOC.format(name.partition(".")[0]),
        )
        for name in sorted(THROTTLED_RATES)
    ),
)
_OWN_TOPIC = (
    Definition(
        name="record.validation",
        kind=ConfigType.STRING,
        default="header",
        read_only=False,
        synonyms=("record.validation",),
        check=TOPIC_CHECKS["record.validation"],
        documentation=_VALIDATION_DOC,
    ),
)
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
HIDDEN_TOPIC = {
    INTERNAL_SEGMENT_BYTES: Definition(
        name=INTERNAL_SEGMENT_BYTES,
        kind=ConfigType.INT,
        default=None,
        read_only=False,
        synonyms=(),
        check=at_least(61),
        documentation=_INTERNAL_SEGMENT_DOC,
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
    found = {}
    for line in read_table(table).splitlines()[1:]:
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
    """Tell null from an empty value: only what is not null is described with a synonym."""
    if value:
        return value
    return "" if synonyms or (table == "topic" and kind == "list") else None


BROKER = _load("broker", BROKER_CHECKS, _OWN_BROKER)
TOPIC = _load("topic", TOPIC_CHECKS, _OWN_TOPIC)
GROUP = _load("group", GROUP_CHECKS, ())
_OWN_DEFAULTS = {"broker.heartbeat.interval.ms": "1000", "broker.session.timeout.ms": "6000"}
"""A metadata slot takes milliseconds, so a lost broker is noticed earlier than by Kafka's defaults."""
BROKER_DEFAULTS = {name: definition.default for name, definition in BROKER.items()} | _OWN_DEFAULTS


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    from difflib import get_close_matches  # only ever needed to refuse to start

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.5)), None)


def check_known(name: str) -> None:
    """ConfigError unless it is a broker setting, one for a listener, or one of a plugin."""
    if base_name(name) in BROKER or name.startswith(_PLUGIN_PREFIXES):
        return
    guess = nearest(name, BROKER)
    hint = f"; did you mean {guess}?" if guess else ""
    raise ConfigError(f"Unknown configuration {name}{hint}")


def base_name(name: str) -> str:
    """Strip `listener.name.NAME.`, and the mechanism that may follow it, from a setting for one listener."""
    match = _LISTENER_NAME.fullmatch(name)
    if match is None:
        return name
    base = match[1]
    return next((known for known in (base, base.partition(".")[2]) if known in BROKER), base)
