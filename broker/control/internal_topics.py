"""The topics a broker makes for itself, as Kafka makes them.

Owns: their names and first settings. Does not own: making them (cluster.py), what is written to them.
Invariant: a function of the configuration.
"""

from __future__ import annotations

from broker.config.broker import BrokerConfig
from broker.control.controller import NewTopic

MADE_BY_THE_BROKER = frozenset({"__consumer_offsets", "__transaction_state"})


def internal_topic(config: BrokerConfig, name: str) -> NewTopic:
    if name == "__consumer_offsets":
        return NewTopic(
            name=name,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
    if name == "__transaction_state":
        return NewTopic(
            name=name,
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
    raise ValueError(f"not an internal topic: {name}")
