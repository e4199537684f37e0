"""End-of-transaction markers on the partitions that this broker leads.

Owns: the control batch of each partition, the wait until it is on every replica in sync, and what is answered
for each partition. Does not own: which transaction ends how (the transaction coordinator), the log's checks of
a marker (storage), nor the order of markers among the records of a coordinator (its replicated state).
Invariant: a partition is answered without an error only once its marker is committed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of one transaction, for partitions led by one broker."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]


class Markers(Protocol):
    """Writes markers: `MarkerWriter`, or what stands for it in a test."""

    async def write(self, marker: Marker) -> Mapping[tuple[str, int], ErrorCode]:
        """Return once each partition has its marker on all replicas in sync, or an error."""
