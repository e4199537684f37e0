"""What knows of the copies in the tier: KIP-405's RemoteLogMetadataManager, as an interface with coroutines.

Owns: the `MetadataManager` interface, and `Metadata`, as much of it as the steps of copies and deletions
need. Does not own: any implementation (the brokers' own is broker.coordinators.tier.metadata, plugins loads
others), what the events mean together (fold), what is done about a copy. Invariant: a broker acts on what a
manager knows of a partition only while that is caught up: what others were told before its role began is in
the fold.

Where Kafka's interface has look-ups by offset and epoch, this one gives the fold, which has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from remote.cold.fold import PartitionFold
from remote.cold.segments import SegmentState, TieredPartition, TierEvent


class Metadata(Protocol):
    """What is known of a partition's copies, and telling what happens to them."""

    def fold(self, partition: TieredPartition) -> PartitionFold | None:
        """Return what is known so far; None if that is nothing."""

    async def submit(
        self, event: TierEvent, *, leader_epoch: int, expects: SegmentState | None = None
    ) -> None:
        """Return once the event is kept for good and in the fold here. `expects` is the state of the copy out
        of which the event was decided: in another one, but for the event's own, it is to be refused, also
        if the copy came there a moment ago. A `SegmentStarted` has it where the copy is begun already: to be
        refused unless it is, and agreed on anew, not answered from what is known here.

        Raise KafkaError where it is refused: INVALID_RECORD after what was told before, FENCED_LEADER_EPOCH
        and UNKNOWN_LEADER_EPOCH for another leader epoch of the partition than it has, UNKNOWN_TOPIC_ID;
        REQUEST_TIMED_OUT where the outcome is not known in time. An event told again changes nothing."""


class MetadataManager(Metadata, Protocol):
    """What others make is a class that takes one mapping, the `rlmm.config.` settings without their prefix.
    It also sees to it that the copies of deleted topics go."""

    @property
    def on_change(self) -> list[Callable[[TieredPartition], None]]:
        """Called for a followed partition after its fold has changed, and when it is caught up."""

    def start(self, task_group: asyncio.TaskGroup) -> None:
        """Serve from now on; wait for nothing."""

    async def stop(self) -> None: ...

    def follow(self, partition: TieredPartition) -> None:
        """Keep up with a partition until `unfollow`."""

    def unfollow(self, partition: TieredPartition) -> None: ...

    def renew(self, partition: TieredPartition) -> None:
        """Call it caught up again only with all that was told before now: a role began here."""

    def is_caught_up(self, partition: TieredPartition) -> bool: ...

    async def wait_caught_up(self, partition: TieredPartition) -> None:
        """Return when it is, which may be never: the caller sets the deadline."""
