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


def between(least: float, most: float) -> Check:
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


def _one_of_any_case(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        if value.lower() not in {each.lower() for each in allowed}:
            raise invalid(name, value, f"String must be one of (case insensitive): {', '.join(allowed)}")

    return check


def _non_empty(name: str, value: Any) -> None:
    if not value:
        raise invalid(name, value, "String must be non-empty")


def _items(name: str, value: Any) -> None:
    if "" in value:
        raise ConfigError(f"Configuration '{name}' values must not be empty.")


def _some_items(name: str, value: Any) -> None:
    if not value:
        raise ConfigError(
            f"Configuration '{name}' must not be empty. Valid values include: any non-empty value"
        )
    _items(name, value)


def _each_like(pattern: str, form: str) -> Check:
    compiled = re.compile(pattern)

    def check(name: str, value: Any) -> None:
        for item in value:
            if compiled.fullmatch(item) is None:
                raise invalid(name, item, f"Each entry should be in the form {form}")

    return check


def _each_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> None:
        _items(name, value)
        for item in value:
            if item not in allowed:
                raise invalid(name, item, f"String must be one of: {', '.join(allowed)}")

    return check


def _assignors(name: str, value: Any) -> None:
    """Refuse what is not built in: Kafka loads a class of this name, and ends without it."""
    if not value:
        raise ConfigError(
            f"Configuration '{name}' must not be empty. Valid values include: {', '.join(ASSIGNORS)}"
        )
    _each_of(*ASSIGNORS)(name, value)


def _rebalance_protocols(name: str, value: Any) -> None:
    _each_of("consumer", "classic", "share", "streams")(name, value)
    if "classic" not in value:
        raise ConfigError(f"{name}: disabling the 'classic' protocol is not supported.")


def _compression_id(name: str, value: Any) -> None:
    if not 0 <= value <= 4:
        raise invalid(name, value, "Value must be 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)")


def _buffer_bytes(name: str, value: Any) -> None:
    if value != -1 and value < 1:
        raise invalid(name, value, "Value must be at least 1, or -1 to leave the size to the system")


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


ASSIGNORS = ("uniform", "range")
"""How the broker may assign partitions to the members of a group."""
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LEAST_SEGMENT_BYTES = 1024 * 1024
TOPIC_CHECKS: dict[str, Check] = {
    "cleanup.policy": _each_of("compact", "delete"),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": between(1, 17),
    "compression.type": _one_of(*_CODECS),
    "compression.zstd.level": between(-131072, 22),
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
    "min.cleanable.dirty.ratio": between(0, 1),
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
    add.partitions.to.txn.retry.backoff.ms alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds background.threads
    controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
    controller.quota.window.num controller.quota.window.size.seconds
    delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
    delegation.token.max.lifetime.ms group.consumer.heartbeat.interval.ms
    group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms group.consumer.max.size
    group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
    group.consumer.session.timeout.ms group.coordinator.background.threads group.coordinator.threads
    group.max.size group.share.heartbeat.interval.ms group.share.max.heartbeat.interval.ms
    group.share.max.session.timeout.ms group.share.max.share.sessions
    group.share.min.heartbeat.interval.ms group.share.min.session.timeout.ms
    group.share.session.timeout.ms group.streams.heartbeat.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
    group.streams.session.timeout.ms kafka.metrics.polling.interval.secs
    leader.imbalance.check.interval.seconds log.cleaner.max.compaction.lag.ms log.cleaner.threads
    log.dir.failure.timeout.ms log.flush.interval.messages log.retention.check.interval.ms log.roll.hours
    log.roll.ms max.request.partition.size.limit metadata.log.max.record.bytes.between.snapshots
    metrics.num.samples metrics.sample.window.ms min.insync.replicas num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.fetchers offsets.commit.timeout.ms
    offsets.load.buffer.size offsets.retention.check.interval.ms offsets.retention.minutes
    offsets.topic.replication.factor offsets.topic.segment.bytes producer.id.expiration.ms
    queued.max.requests quota.window.num quota.window.size.seconds remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
    remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
    remote.log.manager.thread.pool.size remote.log.reader.max.pending.tasks remote.log.reader.threads
    replication.quota.window.num replication.quota.window.size.seconds share.coordinator.load.buffer.size
    share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms socket.listen.backlog.size
    socket.request.max.bytes telemetry.max.bytes
    transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.state.log.replication.factor
    transaction.state.log.segment.bytes transactional.id.expiration.ms
""")
_AT_LEAST_0 = _names("""
    add.partitions.to.txn.retry.backoff.max.ms connection.failed.authentication.delay.ms
    controller.quorum.append.linger.ms controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
    group.consumer.assignment.interval.ms group.consumer.max.assignment.interval.ms
    group.consumer.min.assignment.interval.ms group.share.assignment.interval.ms
    group.share.max.assignment.interval.ms group.share.min.assignment.interval.ms
    group.streams.assignment.interval.ms group.streams.initial.rebalance.delay.ms
    group.streams.max.assignment.interval.ms group.streams.max.standby.replicas
    group.streams.min.assignment.interval.ms group.streams.num.standby.replicas log.cleaner.backoff.ms
    log.cleaner.delete.retention.ms log.cleaner.io.buffer.size log.cleaner.min.compaction.lag.ms
    log.dir.min.free.bytes log.flush.offset.checkpoint.interval.ms
    log.flush.start.offset.checkpoint.interval.ms log.index.interval.bytes
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms log.roll.jitter.hours
    log.roll.jitter.ms log.segment.delete.delay.ms max.connection.creation.rate max.connections
    max.connections.per.ip max.incremental.fetch.session.cache.slots message.max.bytes
    metadata.log.max.snapshot.interval.ms metadata.max.idle.interval.ms node.id
    remote.log.metadata.custom.metadata.max.bytes replica.fetch.backoff.ms replica.fetch.max.bytes
    replica.fetch.response.max.bytes
""")
_OURS_AT_LEAST_1 = _names("""
    broker.heartbeat.interval.ms broker.session.timeout.ms default.replication.factor
    group.max.session.timeout.ms group.min.session.timeout.ms
    replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.socket.timeout.ms
    request.timeout.ms
""")
"""Kafka takes any number for these, and does not work with a smaller one; likewise the next."""
_OURS_AT_LEAST_0 = _names("""
    group.initial.rebalance.delay.ms log.flush.interval.ms log.flush.scheduler.interval.ms
    offset.metadata.max.bytes replica.fetch.min.bytes replica.fetch.wait.max.ms
""")
PARTITIONS_MAX = 10_000
"""Most partitions that one topic is created with: all of them are one command to the controller."""
_PARTITIONS = _names("""
    num.partitions offsets.topic.num.partitions transaction.state.log.num.partitions
""")


def _retention_ms(name: str, value: Any) -> None:
    if value < 1 and value != -1:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")


def _process_roles(name: str, value: Any) -> None:
    if not value:
        raise ConfigError(
            f"Configuration '{name}' must not be empty. Valid values include: [broker, controller]"
        )
    _each_of("broker", "controller")(name, value)


_NON_EMPTY = _names("""
    remote.log.metadata.manager.class.name remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.storage.manager.class.name
    remote.log.storage.manager.impl.prefix
""")
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_ITEMS = _names("""
    config.providers cordoned.log.dirs early.start.listeners kafka.metrics.reporters metric.reporters
    sasl.enabled.mechanisms sasl.kerberos.principal.to.local.rules sasl.oauthbearer.expected.audience
    ssl.cipher.suites ssl.enabled.protocols
""")
_SOME_ITEMS = _names("""
    advertised.listeners controller.listener.names group.share.assignors log.dir log.dirs
""")
BROKER_CHECKS: dict[str, Check] = {
    "replica.selector.class": _one_of("", LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    **dict.fromkeys((*_AT_LEAST_1, *_OURS_AT_LEAST_1), at_least(1)),
    **dict.fromkeys((*_AT_LEAST_0, *_OURS_AT_LEAST_0), at_least(0)),
    **dict.fromkeys(_PARTITIONS, between(1, PARTITIONS_MAX)),
    **dict.fromkeys(_NON_EMPTY, _non_empty),
    **dict.fromkeys(_ITEMS, _items),
    **dict.fromkeys(_SOME_ITEMS, _some_items),
    "controller.quorum.bootstrap.servers": _each_like(r"[^@]+:[0-9]{1,5}", "{host}:{port}"),
    "controller.quorum.voters": _each_like(r"[0-9]+@[^@]+:[0-9]{1,5}", "{id}@{host}:{port}"),
    "group.consumer.assignors": _assignors,
    "group.consumer.migration.policy": _one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    "group.coordinator.append.linger.ms": at_least(-1),
    "group.coordinator.cached.buffer.max.bytes": at_least(512 * 1024),
    "group.coordinator.rebalance.protocols": _rebalance_protocols,
    "group.share.delivery.count.limit": between(2, 10),
    "group.share.max.delivery.count.limit": between(5, 25),
    "group.share.max.partition.max.record.locks": between(2000, 10_000),
    "group.share.max.record.lock.duration.ms": between(30_000, 3_600_000),
    "group.share.max.size": between(1, 1000),
    "group.share.min.delivery.count.limit": between(2, 5),
    "group.share.min.partition.max.record.locks": between(100, 2000),
    "group.share.min.record.lock.duration.ms": between(1000, 30_000),
    "group.share.partition.max.record.locks": between(100, 10_000),
    "group.share.record.lock.duration.ms": between(1000, 3_600_000),
    "metadata.log.segment.bytes": at_least(8 << 20),
    "offsets.topic.compression.codec": _compression_id,
    # what Kafka takes below this makes a topic that it refuses when it is to be created
    "offsets.topic.segment.bytes": at_least(_LEAST_SEGMENT_BYTES),
    "transaction.state.log.segment.bytes": at_least(_LEAST_SEGMENT_BYTES),
    "sasl.oauthbearer.assertion.algorithm": _one_of_any_case("ES256", "RS256"),
    "sasl.oauthbearer.assertion.claim.exp.seconds": between(0, 86_400),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": between(0, 3600),
    "share.coordinator.append.linger.ms": at_least(-1),
    "share.coordinator.cached.buffer.max.bytes": at_least(512 * 1024),
    "share.coordinator.snapshot.update.records.per.snapshot": between(0, 500),
    "share.coordinator.state.topic.compression.codec": _compression_id,
    "socket.receive.buffer.bytes": _buffer_bytes,
    "socket.send.buffer.bytes": _buffer_bytes,
    "ssl.client.auth": _one_of("required", "requested", "none"),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": between(1, 17),
    "compression.type": _one_of(*_CODECS),
    "compression.zstd.level": between(-131072, 22),
    "fetch.max.bytes": at_least(1024),
    "log.cleaner.io.max.bytes.per.second": at_least(1),
    "log.cleaner.min.cleanable.ratio": between(0, 1),
    "log.cleanup.policy": _each_of("compact", "delete"),
    "log.index.size.max.bytes": at_least(4),
    "log.local.retention.bytes": at_least(-2),
    "log.local.retention.ms": at_least(-2),
    "log.remote.copy.lag.bytes": at_least(-1),
    "log.remote.copy.lag.ms": at_least(-1),
    "log.message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "log.retention.ms": _retention_ms,
    "log.segment.bytes": at_least(_LEAST_SEGMENT_BYTES),
    "process.roles": _process_roles,
    "record.validation": _one_of("header", "full"),
    "remote.log.wal.storage.manager.class.name": _non_empty,
    "remote.log.wal.storage.manager.impl.prefix": _non_empty,
    "remote.wal.log.manager.combiner.queue.size": between(1, 1 << 20),
    # after two seconds without a cut followers would be sent the records
    "remote.wal.log.manager.combiner.task.interval.ms": between(1, 1_000),
    "remote.wal.log.manager.combiner.task.upload.bytes": between(1 << 10, 64 << 20),
    "remote.wal.log.manager.combiner.thread.pool.size": between(1, 16),
    "remote.wal.log.manager.thread.pool.size": between(1, 256),
    # what is shorter than 4 KiB is not counted, and the codec reads no more structs than that
    "request.rows.max": between(4096, 1 << 18),
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
    **{
        f"{kind}.{what}": at_least(least)
        for kind in ("consumer", "share", "streams")
        for what, least in (
            ("assignment.interval.ms", 0),
            ("heartbeat.interval.ms", 1),
            ("session.timeout.ms", 1),
        )
    },
    "share.delivery.count.limit": at_least(2),
    "share.partition.max.record.locks": at_least(100),
    "share.record.lock.duration.ms": at_least(1000),
    "streams.initial.rebalance.delay.ms": at_least(0),
    "share.auto.offset.reset": _offset_reset,
    "share.isolation.level": _one_of("read_committed", "read_uncommitted"),
    "streams.num.standby.replicas": at_least(0),
}
