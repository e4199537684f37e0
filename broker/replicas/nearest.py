"""KIP-392: the replica that a consumer in some rack should read from.

Owns: Kafka's rack-aware choice. Does not own: the followers' state (partition) or the racks (image).
Invariant: only a follower in sync that has the offset is ever named, and never this broker itself.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.control.image import Image
from broker.replicas.partition import Follower, Partition


class ReplicaSelector:
    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    def select(self, partition: Partition, rack: str, offset: int) -> int:
        """Return the node to ask instead, or -1 to read here: on a follower, or if the leader is as near."""
        if not partition.is_leader:
            return -1
        brokers = self._image().brokers
        here = brokers.get(partition.node_id)
        if here is not None and here.rack == rack:
            return -1
        near: list[Follower] = []
        for follower in partition.followers():
            broker = brokers.get(follower.node_id)
            if (
                broker is not None
                and broker.rack == rack
                and not broker.fenced
                and follower.node_id in partition.isr
                and follower.log_start <= offset <= follower.end_offset
            ):
                near.append(follower)
        if not near:
            return -1
        return max(near, key=lambda each: (each.end_offset, each.caught_up_at, -each.node_id)).node_id
