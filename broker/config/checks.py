"""The limits of each setting's value, as Kafka's own validators have them.

Owns: one check per topic, broker and group setting that has one. Does not own: what several settings may say
together (topics, groups, listeners, broker). Invariant: a check raises ConfigError in Kafka's words, or does
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from broker.config.values import ConfigError, invalid

Check = Callable[[str, Any], None]


def at_least(least: float) -> Check:
    def check(name: str, value: Any) -> None:
        if value < least:
            raise invalid(name, value, f"Value must be at least {least}")

    return check


def _between(least: float, most: float) -> Check:
    def check(name: str, value: Any) -> None:
        at_least(least)(name, value)
        if value > most:
            raise invalid(name, value, f"Value must be no more than {most}")

    return check


def _one_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise invalid(name, value, f"String must be one of: {', '.join(allowed)}")

    return check


def _non_empty(name: str, value: Any) -> None:
    if not value:
        raise invalid(name, value, "String must be non-empty")


def _each_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        if "" in value:
            raise ConfigError(f"Configuration '{name}' values must not be empty.")
        for item in value:
            if item not in allowed:
                raise invalid(name, item, f"String must be one of: {', '.join(allowed)}")

    return check


def _gzip_level(name: str, value: Any) -> None:
    if value != -1 and not 1 <= value <= 9:
        raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")


_THROTTLED = re.compile(r"\*|(?:[0-9]+:[0-9]+)(?:\s*,\s*[0-9]+:[0-9]+)*")


def _throttled(name: str, value: Any) -> None:
    text = ",".join(value)
    if text and _THROTTLED.fullmatch(text) is None:
        raise invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LEAST_SEGMENT_BYTES = 1024 * 1024
TOPIC_CHECKS: dict[str, Check] = {
    "cleanup.policy": _each_of("compact", "delete"),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _between(1, 17),
    "compression.type": _one_of(*_CODECS),
    "compression.zstd.level": _between(-131072, 22),
    "delete.retention.ms": at_least(0),
    "file.delete.delay.ms": at_least(0),
    "flush.messages": at_least(1),
    "flush.ms": at_least(0),
    "follower.replication.throttled.replicas": _throttled,
    "index.interval.bytes": at_least(0),
    "leader.replication.throttled.replicas": _throttled,
    "local.retention.bytes": at_least(-2),
    "local.retention.ms": at_least(-2),
    "max.compaction.lag.ms": at_least(1),
    "max.message.bytes": at_least(0),
    "message.timestamp.after.max.ms": at_least(0),
    "message.timestamp.before.max.ms": at_least(0),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _between(0, 1),
    "min.compaction.lag.ms": at_least(0),
    "min.insync.replicas": at_least(1),
    "record.validation": _one_of("header", "full"),
    "remote.copy.lag.bytes": at_least(-1),
    "remote.copy.lag.ms": at_least(-1),
    "remote.log.pressure.policy": _one_of("keep", "refuse", "drop"),
    "retention.ms": at_least(-1),
    "segment.bytes": at_least(_LEAST_SEGMENT_BYTES),
    "segment.index.bytes": at_least(4),
    "segment.jitter.ms": at_least(0),
    "segment.ms": at_least(1),
}


def _names(text: str) -> list[str]:
    return text.split()


_AT_LEAST_1 = _names("""
    log.cleaner.threads
    background.threads controller.quota.window.num controller.quota.window.size.seconds
    group.consumer.heartbeat.interval.ms group.consumer.max.heartbeat.interval.ms
    group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.session.timeout.ms group.coordinator.threads
    group.max.size leader.imbalance.check.interval.seconds log.dir.failure.timeout.ms
    log.flush.interval.messages log.retention.check.interval.ms log.roll.hours
    max.request.partition.size.limit min.insync.replicas num.io.threads num.network.threads num.partitions
    num.recovery.threads.per.data.dir offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.num.partitions
    offsets.topic.replication.factor offsets.topic.segment.bytes producer.id.expiration.ms
    queued.max.requests quota.window.num quota.window.size.seconds replication.quota.window.num
    replication.quota.window.size.seconds socket.listen.backlog.size socket.request.max.bytes
    transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.state.log.num.partitions
    transaction.state.log.replication.factor transaction.state.log.segment.bytes
    transactional.id.expiration.ms log.cleaner.max.compaction.lag.ms log.roll.ms
    remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
    remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
    remote.log.manager.task.interval.ms remote.log.manager.thread.pool.size
    remote.log.reader.max.pending.tasks remote.log.reader.threads
""")
_AT_LEAST_0 = _names("""
    connection.failed.authentication.delay.ms log.cleaner.backoff.ms log.cleaner.delete.retention.ms
    log.cleaner.io.buffer.size log.cleaner.min.compaction.lag.ms
    log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
    log.index.interval.bytes log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
    log.dir.min.free.bytes log.roll.jitter.hours log.roll.jitter.ms log.segment.delete.delay.ms
    max.connection.creation.rate remote.log.metadata.custom.metadata.max.bytes
    max.connections max.connections.per.ip max.incremental.fetch.session.cache.slots message.max.bytes
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.response.max.bytes
""")


def _retention_ms(name: str, value: Any) -> None:
    if value < 1 and value != -1:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")


_NON_EMPTY = _names("""
    remote.log.metadata.manager.class.name remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.storage.manager.class.name
    remote.log.storage.manager.impl.prefix
""")
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
BROKER_CHECKS: dict[str, Check] = {
    "replica.selector.class": _one_of("", LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    **dict.fromkeys(_AT_LEAST_1, at_least(1)),
    **dict.fromkeys(_AT_LEAST_0, at_least(0)),
    **dict.fromkeys(_NON_EMPTY, _non_empty),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _between(1, 17),
    "compression.type": _one_of(*_CODECS),
    "compression.zstd.level": _between(-131072, 22),
    "fetch.max.bytes": at_least(1024),
    "log.cleaner.io.max.bytes.per.second": at_least(1),
    "log.cleaner.min.cleanable.ratio": _between(0, 1),
    "log.cleanup.policy": _each_of("compact", "delete"),
    "log.index.size.max.bytes": at_least(4),
    "log.local.retention.bytes": at_least(-2),
    "log.local.retention.ms": at_least(-2),
    "log.remote.copy.lag.bytes": at_least(-1),
    "log.remote.copy.lag.ms": at_least(-1),
    "log.message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "log.retention.ms": _retention_ms,
    "log.segment.bytes": at_least(_LEAST_SEGMENT_BYTES),
    "process.roles": _each_of("broker", "controller"),
    "record.validation": _one_of("header", "full"),
    "remote.log.wal.storage.manager.class.name": _non_empty,
    "remote.log.wal.storage.manager.impl.prefix": _non_empty,
    "remote.wal.log.manager.combiner.queue.size": _between(1, 1 << 20),
    # after two seconds without a cut followers would be sent the records
    "remote.wal.log.manager.combiner.task.interval.ms": _between(1, 1_000),
    "remote.wal.log.manager.combiner.task.upload.bytes": _between(1 << 10, 64 << 20),
    "remote.wal.log.manager.combiner.thread.pool.size": _between(1, 16),
    "remote.wal.log.manager.thread.pool.size": _between(1, 256),
    # what is shorter than 4 KiB is not counted, and the codec reads no more structs than that
    "request.rows.max": _between(4096, 1 << 18),
    "security.inter.broker.protocol": _one_of(*PROTOCOLS),
}


def _offset_reset(name: str, value: Any) -> None:
    if value not in ("earliest", "latest") and not str(value).startswith("by_duration:P"):
        raise invalid(
            name,
            value,
            f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', "
            "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )


GROUP_CHECKS: dict[str, Check] = {
    "share.auto.offset.reset": _offset_reset,
    "share.isolation.level": _one_of("read_committed", "read_uncommitted"),
    "streams.num.standby.replicas": at_least(0),
}
