"""What the settings of one broker must say to each other.

Owns: the rules that Kafka checks once all its settings are read, and those without which this broker cannot
work. Does not own: limits of single values (checks), listeners (listeners), tiering and retention (tiering).
Invariant: a refusal names every setting that it speaks of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from broker.config.values import ConfigError

_CLEANER_BYTES_MIN = 1 << 20
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
"""The first that is set counts."""
_RANGES = (
    *(
        (f"group.{kind}.{what}", f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
        for kind in ("consumer", "share", "streams")
        for what in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
    ),
    *(
        (f"group.share.{what}", f"group.share.min.{what}", f"group.share.max.{what}")
        for what in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
    ),
)
"""A default for groups, and the least and the most that a group may set."""
_NOT_ABOVE = (
    *((least, most) for _, least, most in _RANGES),
    *((least, value) for value, least, _ in _RANGES),
    *((value, most) for value, _, most in _RANGES),
    ("group.share.max.size", "group.share.max.share.sessions"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
    # Kafka takes these two the wrong way round, and then every member is refused
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    # a longer wait ends in a timeout, or has its follower taken for one that is behind
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)
_BELOW = (
    *(
        (f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms")
        for kind in ("consumer", "share", "streams")
    ),
    # Kafka takes any two, and a broker whose heartbeats are rarer is fenced again and again
    ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
)


class Settings(Protocol):
    def get(self, name: str) -> Any: ...


def check_relations(config: Settings) -> None:
    """ConfigError for the first rule that the settings of a broker break together."""
    broken = next(_broken(config), None)
    if broken is not None:
        raise ConfigError(broken)


def _broken(config: Settings) -> Iterator[str]:
    get = config.get
    for lower, upper in _NOT_ABOVE:
        if get(lower) > get(upper):
            yield f"{lower} ({get(lower)}) must be less than or equal to {upper} ({get(upper)})"
    for lower, upper in _BELOW:
        if get(lower) >= get(upper):
            yield f"{lower} ({get(lower)}) must be less than {upper} ({get(upper)})"
    buffer_bytes, threads = get("log.cleaner.dedupe.buffer.size"), get("log.cleaner.threads")
    if buffer_bytes // threads <= _CLEANER_BYTES_MIN:
        yield (
            f"log.cleaner.dedupe.buffer.size ({buffer_bytes}) must be more than 1 MiB for each of "
            f"log.cleaner.threads ({threads})"
        )
    delay_ms, idle_ms = get("connection.failed.authentication.delay.ms"), get("connections.max.idle.ms")
    if 0 <= idle_ms <= delay_ms:
        yield (
            f"connection.failed.authentication.delay.ms ({delay_ms}) must be less than "
            f"connections.max.idle.ms ({idle_ms})"
        )
    queued, request = get("queued.max.request.bytes"), get("socket.request.max.bytes")
    if 0 < queued < request:
        yield (
            f"queued.max.request.bytes ({queued}) must be larger or equal to "
            f"socket.request.max.bytes ({request})"
        )
    if get("max.connections.per.ip") == 0 and not get("max.connections.per.ip.overrides"):
        yield "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides is set"
    retention = next(name for name in _RETENTION if get(name) is not None)
    if get(retention) == 0:
        yield f"{retention} must be unlimited (-1) or, greater than or equal to 1"
    dirs = {*(get("log.dirs") or ()), *(get("log.dir") or ())}
    strange = [name for name in get("cordoned.log.dirs") or () if name not in dirs and name != "*"]
    if strange:
        yield f"cordoned.log.dirs names {strange[0]}, which is not in log.dirs or log.dir"
