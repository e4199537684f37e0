"""Every broker, topic and group setting of Kafka 4.3, and our own: type, default, synonyms, limits.

Owns: the tables `BROKER`, `TOPIC` and `GROUP`, as a live broker described its settings (`data/*.tsv`), and
which setting stands in for one that is not set. Does not own: reading the files (table_files), or which level
wins (levels). Invariant: each name is there once; one that is not there is refused with the nearest.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from broker.config.checks import (
    BROKER_CHECKS,
    GROUP_CHECKS,
    PARTITIONS_MAX,
    TOPIC_CHECKS,
    Check,
    at_least,
    between,
)
from broker.config.table_files import read_table
from broker.config.values import ConfigError, ConfigType, parse_value, shown


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
    "remote.log.metadata.topic.min.isr": "1",
    "remote.log.metadata.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}
"""Without an external store there can be no second broker. What the metadata manager is told is named without
its prefix."""
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
_COPY_LAG_DOC = (
    "How {} a closed segment may become before it is copied to remote storage: 0 copies at once, -1 waits "
    "for the local retention. With both lags set, the one that is reached first counts (KIP-1241)."
)
_MIN_FREE_DOC = (
    "Below so many free bytes in a log directory, each tiered topic's remote.log.pressure.policy counts "
    "there; 0 switches that off."
)
_ROWS_DOC = (
    "How many rows one request may have, which are the items of all its arrays, nested ones counted; the "
    "connection that sends more is closed. Where an answer has so many already, what the request names again "
    "is refused."
)
_PRESSURE_DOC = (
    "What happens to a tiered topic whose segments cannot be copied while a disk runs full: keep everything, "
    "refuse what producers send, or drop the oldest segments without a copy."
)
_WAL_DOCS = {
    "remote.log.wal.storage.system.enable": "Whether topics may have remote.wal.storage.enable (KIP-1176).",
    "remote.log.wal.storage.manager.class.name": "What keeps combined objects, as package.module:Class; "
    "unset, the broker's own object store does.",
    "remote.log.wal.storage.manager.class.path": "Folders to look in for that class, separated as on PATH.",
    "remote.log.wal.storage.manager.impl.prefix": "What the names of that class's settings begin with.",
    "remote.wal.log.manager.thread.pool.size": "Reads of combined objects that one broker has under way at "
    "once as a follower.",
    "remote.wal.log.manager.combiner.thread.pool.size": "Combined objects that one broker has on their way "
    "to the store at once.",
    "remote.wal.log.manager.combiner.queue.size": "Slices that are cut and not yet stored: at so many "
    "nothing more is cut until some are.",
    "remote.wal.log.manager.combiner.task.interval.ms": "The time between two combined objects of one "
    "broker, at least, small ones that follow a pause aside; after a pause the first record leaves at once.",
    "remote.wal.log.manager.combiner.task.upload.bytes": "The most bytes of one combined object; a larger "
    "batch is an object of its own.",
    "remote.wal.local.sync": "Whether an object in a store on this machine is synced before it counts.",
}
_WAL_TOPIC = "remote.wal.storage.enable"
_WAL_TOPIC_DOC = (
    "Whether the end of each log goes to the object store within milliseconds, and followers read it there "
    "(KIP-1176)."
)
_INTERNAL_SEGMENT_DOC = "segment.bytes without its lower bound; for tests."
THROTTLED_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})
"""Kafka describes these where they were set, and never their default."""
INITIAL_TASK_DELAY = "log.initial.task.delay.ms"
HIDDEN_BROKER = frozenset({INITIAL_TASK_DELAY})
"""Kafka knows these and describes them nowhere."""
_INITIAL_TASK_DELAY_DOC = "How long after its start a broker first looks what retention lets go; for tests."


def _copy_lags(*, of_topic: bool) -> Iterator[Definition]:
    """Define the lags of a topic, or those of the brokers for topics that set none."""
    for name, default, what in (
        ("remote.copy.lag.bytes", "-1", "far behind the end of its log"),
        ("remote.copy.lag.ms", "0", "old"),
    ):
        of_brokers = f"log.{name}"
        yield Definition(
            name=name if of_topic else of_brokers,
            kind=ConfigType.LONG,
            default=default,
            read_only=False,
            synonyms=(of_brokers,) if of_topic else (),
            check=TOPIC_CHECKS[name] if of_topic else BROKER_CHECKS[of_brokers],
            documentation=_COPY_LAG_DOC.format(what),
        )


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
        name="log.dir.min.free.bytes",
        kind=ConfigType.LONG,
        default=str(1 << 30),
        read_only=False,
        synonyms=(),
        check=BROKER_CHECKS["log.dir.min.free.bytes"],
        documentation=_MIN_FREE_DOC,
    ),
    Definition(
        name="request.rows.max",
        kind=ConfigType.INT,
        default="100000",
        read_only=False,
        synonyms=(),
        check=BROKER_CHECKS["request.rows.max"],
        documentation=_ROWS_DOC,
    ),
    Definition(
        name=INITIAL_TASK_DELAY,
        kind=ConfigType.LONG,
        default="30000",
        read_only=True,
        synonyms=(),
        check=at_least(0),
        documentation=_INITIAL_TASK_DELAY_DOC,
    ),
    *_copy_lags(of_topic=False),
    *(
        Definition(
            name=name,
            kind=kind,
            default=default,
            read_only=not name.startswith("remote.wal.log.manager.combiner.task."),
            synonyms=(),
            check=BROKER_CHECKS.get(name),
            documentation=_WAL_DOCS[name],
        )
        for name, kind, default in (
            ("remote.log.wal.storage.system.enable", ConfigType.BOOLEAN, "true"),
            ("remote.log.wal.storage.manager.class.name", ConfigType.STRING, None),
            ("remote.log.wal.storage.manager.class.path", ConfigType.STRING, None),
            ("remote.log.wal.storage.manager.impl.prefix", ConfigType.STRING, "rwsm.config."),
            ("remote.wal.local.sync", ConfigType.BOOLEAN, "false"),
            ("remote.wal.log.manager.thread.pool.size", ConfigType.INT, "8"),
            ("remote.wal.log.manager.combiner.thread.pool.size", ConfigType.INT, "4"),
            ("remote.wal.log.manager.combiner.queue.size", ConfigType.INT, "16384"),
            ("remote.wal.log.manager.combiner.task.interval.ms", ConfigType.INT, "20"),
            ("remote.wal.log.manager.combiner.task.upload.bytes", ConfigType.INT, str(4 << 20)),
        )
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
    *_copy_lags(of_topic=True),
    Definition(
        name="remote.log.pressure.policy",
        kind=ConfigType.STRING,
        default="keep",
        read_only=False,
        synonyms=(),
        check=TOPIC_CHECKS["remote.log.pressure.policy"],
        documentation=_PRESSURE_DOC,
    ),
    Definition(
        name=_WAL_TOPIC,
        kind=ConfigType.BOOLEAN,
        default="false",
        read_only=False,
        synonyms=(),
        documentation=_WAL_TOPIC_DOC,
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
METADATA_MANAGER = {
    name: Definition(
        name=name,
        kind=kind,
        default=default,
        read_only=True,
        synonyms=(),
        check=check,
    )
    for name, kind, default, check in (
        ("remote.log.metadata.consume.wait.ms", ConfigType.LONG, "120000", at_least(0)),
        ("remote.log.metadata.initialization.retry.interval.ms", ConfigType.LONG, "100", at_least(0)),
        ("remote.log.metadata.initialization.retry.max.timeout.ms", ConfigType.LONG, "120000", at_least(0)),
        ("remote.log.metadata.topic.min.isr", ConfigType.SHORT, "2", at_least(1)),
        ("remote.log.metadata.topic.num.partitions", ConfigType.INT, "50", between(1, PARTITIONS_MAX)),
        ("remote.log.metadata.topic.replication.factor", ConfigType.SHORT, "3", at_least(1)),
        ("remote.log.metadata.topic.retention.ms", ConfigType.LONG, "-1", None),
    )
}
"""What the metadata manager that keeps its records in a topic is told, behind its prefix."""
METADATA_CLIENTS = tuple(
    f"remote.log.metadata.{whose}." for whose in ("common.client", "consumer", "producer")
)
"""Settings of the clients that Kafka's has; here brokers talk to each other without any."""
ALIASES = {
    f"remote.log.manager.{kip}.quota.{end}": f"remote.log.manager.{known}.{known_end}"
    for kip, known in (("write", "copy"), ("read", "fetch"))
    for end, known_end in (
        ("default", "max.bytes.per.second"),
        ("window.num", "quota.window.num"),
        ("window.size.seconds", "quota.window.size.seconds"),
    )
}
"""Broker settings by the names that KIP-956 proposed."""
_PLUGIN_PREFIXES = (
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
_OWN_DEFAULTS = {
    # a metadata slot takes milliseconds, so a lost broker is noticed earlier than by Kafka's defaults
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "6000",
    # every broker has a store, and it costs nothing before a topic is tiered
    "remote.log.storage.system.enable": "true",
}
BROKER_DEFAULTS = {name: definition.default for name, definition in BROKER.items()} | _OWN_DEFAULTS
PLAIN_S3_DEFAULTS = {"remote.wal.log.manager.combiner.task.interval.ms": "100"}
"""A put takes S3 itself tens of milliseconds and costs money: fewer and larger objects lose nothing."""


_WAL_NAMES = (_WAL_TOPIC, *_WAL_DOCS)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    from difflib import get_close_matches  # only ever needed to refuse to start

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.5)), None)


def check_known(name: str, plugins: tuple[str, ...] = ()) -> None:
    """ConfigError unless it is a broker setting, one for a listener, or one of a plugin; `plugins` are the
    prefixes of those whose names are not known here."""
    if base_name(name) in BROKER or name.startswith((*_PLUGIN_PREFIXES, *plugins)):
        return
    check_wal_name(name, BROKER)
    raise unknown(name, BROKER)


def check_wal_name(name: str, known: Container[str]) -> None:
    """ConfigError when a name speaks of the WAL tier and is none of those at this level. KIP-1176 itself has
    two for the topic's switch, and Kafka would keep an unknown one of a broker without a word."""
    if name in known or "wal" not in name.split("."):
        return
    what = "topic config name:" if known is TOPIC else "configuration"
    if name in TOPIC or name in BROKER:
        whose = "topics" if name in TOPIC else "brokers"
        raise ConfigError(f"Unknown {what} {name}: it is a setting of {whose}")
    guess = nearest(name, _WAL_NAMES) or _WAL_TOPIC
    whose = "" if guess in known else ", a setting of topics" if guess in TOPIC else ", a setting of brokers"
    raise ConfigError(f"Unknown {what} {name}; did you mean {guess}{whose}?")


def unknown(name: str, known: Iterable[str], prefix: str = "") -> ConfigError:
    guess = nearest(name, known)
    hint = f"; did you mean {prefix}{guess}?" if guess else ""
    return ConfigError(f"Unknown configuration {shown(prefix + name)}{hint}")


def base_name(name: str) -> str:
    """Strip `listener.name.NAME.`, and the mechanism that may follow it, from a setting for one listener."""
    match = _LISTENER_NAME.fullmatch(name)
    if match is None:
        return name
    base = match[1]
    return next((known for known in (base, base.partition(".")[2]) if known in BROKER), base)
