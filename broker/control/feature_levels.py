"""The features of a cluster, by Kafka's names: which levels this release serves, and which one a cluster has.

Owns: names, ranges, the levels of a cluster that never changed one. Does not own: changing a level
(features.py), the levels in force (`Image.features`), what a level means to a client (the coordinators).
Invariant: FIRST_LEVELS never change. They are what the metadata log of a cluster stands for that says nothing
of features, whichever release wrote it; a level that a later release adds is reached by a record alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

GROUP_VERSION: Final = "group.version"
"""1 and above: groups that the broker assigns (KIP-848) are served."""
METADATA_VERSION: Final = "metadata.version"
"""Of the answers of a KRaft cluster of Kafka 4.3. A cluster cannot leave it, as one of Kafka 4.3 cannot."""
TRANSACTION_VERSION: Final = "transaction.version"
"""2: an epoch per transaction, and partitions that join it by being written to (KIP-890)."""


class Levels(NamedTuple):
    least: int
    most: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.least <= level <= self.most


SUPPORTED: Final[Mapping[str, Levels]] = MappingProxyType(
    {
        GROUP_VERSION: Levels(0, 1),
        METADATA_VERSION: Levels(7, 30),
        TRANSACTION_VERSION: Levels(0, 2),
    }
)
FIRST_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {GROUP_VERSION: 1, METADATA_VERSION: 30, TRANSACTION_VERSION: 2}
)
ONLY_KAFKAS: Final = frozenset(
    {"eligible.leader.replicas.version", "kraft.version", "share.version", "streams.version"}
)
"""Features of Kafka 4.3 that are not served: at level 0 for good, and not listed."""
