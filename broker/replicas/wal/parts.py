"""Which partitions take part in the WAL tier, as leaders and as followers.

Owns: the rule. Does not own: what follows from it (leading, hydrating). Invariant: what is uploaded holds all
that is hydrated, on every broker alike, because topics' configurations decide and nothing else; without the
system switch nothing takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.config.values import ResourceType
from broker.control.image import Image
from broker.control.internal_topics import is_of_the_brokers
from broker.replicas.partition import Partition

ENABLE: Final = "remote.wal.storage.enable"
ALSO_STORED: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Uploaded beside the topics that use the tier: without them the store alone would have no offsets of groups
and no transactions. Their followers fetch from the leader."""


class WalParts:
    def __init__(self, *, is_enabled: bool, image: Callable[[], Image]) -> None:
        self._is_enabled = is_enabled
        self._image = image
        self._counted_at = -1
        self._is_used = False

    def uploads(self, partition: Partition) -> bool:
        """Whether its leader stores what is appended."""
        if not self._is_enabled:
            return False
        if partition.topic in ALSO_STORED:
            return self.is_used
        return self.hydrates(partition)

    def hydrates(self, partition: Partition) -> bool:
        """Whether its followers read from the store what the leader points to."""
        return (
            self._is_enabled
            and partition.log.config.remote_wal_storage_enable
            and not is_of_the_brokers(partition.topic)
        )

    @property
    def is_used(self) -> bool:
        """Whether any topic uses the tier."""
        image = self._image()
        if image.seq != self._counted_at:
            self._counted_at = image.seq
            self._is_used = any(
                resource is ResourceType.TOPIC
                and values.get(ENABLE) == "true"
                and name in image.topics
                and not is_of_the_brokers(name)
                for (resource, name), values in image.configs.items()
            )
        return self._is_used
