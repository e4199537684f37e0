"""The topics that belong to the brokers: one table of what they are called, how they are made, and what a
client may do with them.

Owns: their names, first settings and rights. Does not own: making them (requests.py), what is written to
them. Invariant: a topic is internal by its name alone, on every broker alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.config.broker import BrokerConfig

METADATA_TOPIC = "__cluster_metadata"
"""Kafka's name for the metadata log. There is no such topic, and none may be created."""
REMOTE_LOG_METADATA = "__remote_log_metadata"
REMOTE_WAL_LOG_METADATA = "__remote_wal_log_metadata"
REMOTE_PREFIX = "__remote_"
"""What topics of the tiers begin with. Clients see and read them like any other, as with Kafka. Unlike there
they may not write or delete them, give them partitions, or have them cleaned up otherwise: any of it would
lose track of what is in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a topic is created with by the broker itself."""

    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """Clients may not write it or delete records from it, and may ask for it to be created as any other."""

    name: str
    defaults: Callable[[BrokerConfig], TopicDefaults] | None = None
    """None: no broker creates it by itself."""
    is_listed: bool = True
    """Whether clients are told that it is internal."""


def _consumer_offsets(config: BrokerConfig) -> TopicDefaults:
    return TopicDefaults(
        partitions=config.offsets_topic_num_partitions,
        replication_factor=config.offsets_topic_replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )


def _transaction_state(config: BrokerConfig) -> TopicDefaults:
    return TopicDefaults(
        partitions=config.transaction_state_log_num_partitions,
        replication_factor=config.transaction_state_log_replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


def _remote_log_metadata(config: BrokerConfig) -> TopicDefaults:
    topic = config.remote_metadata_topic
    return TopicDefaults(
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("delete.retention.ms", str(_TOMBSTONES_KEPT_MS)),
            ("min.insync.replicas", str(topic.min_isr)),
            ("retention.ms", str(topic.retention_ms)),
            ("segment.bytes", str(_METADATA_SEGMENT_BYTES)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


def _remote_wal_log_metadata(config: BrokerConfig) -> TopicDefaults:
    """It is only an index of what the bucket says, so its replicas are as many as the other tier's have, and
    it has parts for the brokers that write, not for partitions. A record stays as long as its object, which
    no retention could know; the KIP's rule, longer than any local retention, holds by itself."""
    topic = config.remote_metadata_topic
    return TopicDefaults(
        partitions=min(topic.partitions, _WAL_METADATA_PARTITIONS),
        replication_factor=topic.replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("delete.retention.ms", str(_TOMBSTONES_KEPT_MS)),
            ("min.insync.replicas", str(topic.min_isr)),
            ("segment.bytes", str(_METADATA_SEGMENT_BYTES)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


_WAL_METADATA_PARTITIONS = 12
"""Each broker writes to one."""
_TOMBSTONES_KEPT_MS = 86_400_000
"""Whatever the brokers' own setting is: who was away for longer than half of it reads everything anew."""
_METADATA_SEGMENT_BYTES = 16 << 20
"""A segment that is still written is not compacted, and a new leader reads all of it."""
BROKER_TOPICS: Mapping[str, InternalTopic] = {
    topic.name: topic
    for topic in (
        InternalTopic(name="__consumer_offsets", defaults=_consumer_offsets),
        InternalTopic(name="__transaction_state", defaults=_transaction_state),
        InternalTopic(name="__share_group_state"),
        InternalTopic(name=REMOTE_LOG_METADATA, defaults=_remote_log_metadata, is_listed=False),
        InternalTopic(name=REMOTE_WAL_LOG_METADATA, defaults=_remote_wal_log_metadata, is_listed=False),
    )
}
INTERNAL_TOPICS: Mapping[str, InternalTopic] = {
    name: topic for name, topic in BROKER_TOPICS.items() if topic.is_listed
}
"""Those of which clients are told that they are internal."""


def internal_defaults(config: BrokerConfig, name: str) -> TopicDefaults | None:
    """How the broker creates this topic; None if it never does so by itself."""
    topic = BROKER_TOPICS.get(name)
    return None if topic is None or topic.defaults is None else topic.defaults(config)


def is_of_the_brokers(name: str) -> bool:
    """Whether brokers alone write it, or would if it were there."""
    return name in BROKER_TOPICS or is_of_the_tiers(name)


def is_of_the_tiers(name: str) -> bool:
    """Whether clients must leave it as the brokers made it."""
    return name.startswith(REMOTE_PREFIX)


def may_client_write(name: str) -> bool:
    return not is_of_the_brokers(name)
