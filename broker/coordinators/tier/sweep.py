"""Deletes what topics that are gone have left in the tier.

Owns: finding it, in the metadata this broker leads, and the order in which it goes. Does not own: deleting
objects (the storage manager), what is legal (machine). Invariants: nothing is deleted of a topic that any
event before it could have been told of; a copy is forgotten only once its objects were deleted, and deleted a
second time so much later that no put of them can land any more.

Whoever deletes a topic need not be there for this, nor its leaders: what the metadata has and the image has
not is dead. The image here is at least as new as every event, because a leader of the metadata takes none
once its image names another leader (machine).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from broker.control.image import Image
from broker.coordinators.pace import Pace
from broker.coordinators.tier.coordinator import TierCoordinator
from broker.coordinators.tier.machine import TierCommand
from protocol.errors import KafkaError
from remote.cold.claim import LATE_UPLOAD_S
from remote.cold.events import updated
from remote.cold.fold import PartitionFold
from remote.cold.segments import (
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentState,
    TieredPartition,
    TierEvent,
)

logger = logging.getLogger(__name__)

SWEEP_EVERY_S: Final = 30.0
AT_ONCE: Final = 4


class SegmentDeleter(Protocol):
    """The storage manager, as far as it concerns the sweep."""

    async def delete_segment(self, segment: RemoteSegment) -> None:
        """Delete the objects of a copy; to do it again is no error."""


class _Dead:
    """A partition of a topic that is gone, between its first round and its last."""

    def __init__(self, index: int, partition: TieredPartition) -> None:
        self.index = index
        self.partition = partition
        self.topic = ""
        """Its name, as the copies told it while there were any."""
        self.deleted_s: float | None = None
        """When the last of its objects was deleted for the first time."""
        self.error: str | None = None


class Sweep:
    def __init__(
        self,
        *,
        node_id: int,
        coordinator: TierCoordinator,
        image: Callable[[], Image],
        now_ms: Callable[[], int],
    ) -> None:
        self.storage: SegmentDeleter | None = None
        """None: nothing is swept."""
        self._node_id = node_id
        self._coordinator = coordinator
        self._image = image
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._dead: dict[TieredPartition, _Dead] = {}
        self._is_due = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Sweep of {len(self._dead)} partitions>"

    @property
    def left(self) -> int:
        """How many partitions of dead topics were found and are not done."""
        return len(self._dead)

    def wake(self) -> None:
        """Look now: a topic was deleted."""
        self._is_due.set()

    async def run(self) -> None:
        """Sweep as long as this broker leads any of the metadata."""
        while self._coordinator.led:
            self._is_due.clear()
            if self.storage is not None:
                await self._round(self.storage)
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._is_due.wait()
            except TimeoutError:
                continue
        self._dead.clear()

    def _pause_s(self) -> float:
        waits = [
            each.deleted_s + LATE_UPLOAD_S - self._loop.time()
            for each in self._dead.values()
            if each.deleted_s is not None
        ]
        return min(max(min(waits, default=SWEEP_EVERY_S), 1.0), SWEEP_EVERY_S)

    async def _round(self, storage: SegmentDeleter) -> None:
        await self._find()
        now_s = self._loop.time()
        due = iter(
            [
                each
                for each in self._dead.values()
                if each.deleted_s is None or now_s >= each.deleted_s + LATE_UPLOAD_S
            ]
        )

        async def work() -> None:
            for each in due:
                await self._advance(storage, each)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _find(self) -> None:
        pace = Pace(self._loop)
        found = {}
        for index, machine in list(self._coordinator.machines()):
            for partition in list(machine.fold.partitions()):
                if self._image().topic_by_id(partition.topic_id) is None:
                    known = self._dead.get(partition)
                    found[partition] = known if known is not None else _Dead(index, partition)
                await pace.yield_if_due()
        self._dead = found

    async def _advance(self, storage: SegmentDeleter, dead: _Dead) -> None:
        try:
            if dead.deleted_s is None:
                await self._delete(storage, dead)
                dead.deleted_s = self._loop.time()
            else:
                await self._finish(storage, dead)
                self._dead.pop(dead.partition, None)
            dead.error = None
        except KafkaError as error:
            # another broker leads it now, or the log has no quorum: the next round looks again
            logger.debug("sweeping %s: %s", dead.partition, error)
        except Exception as error:  # a storage manager of others may raise anything
            if dead.error != str(error):
                logger.warning(
                    "objects of deleted topic %s, partition %d, cannot be deleted yet: %s",
                    dead.partition.topic_id,
                    dead.partition.number,
                    error,
                )
            dead.error = str(error)

    async def _delete(self, storage: SegmentDeleter, dead: _Dead) -> None:
        """Mark the partition, then delete every copy's objects."""
        fold = self._fold(dead)
        if fold is None:
            return
        for state in (PartitionState.DELETE_MARKED, PartitionState.DELETE_STARTED):
            if fold.deletion is None or fold.deletion < state:
                await self._tell(dead, self._deletion(dead, state))
        for segment in fold.copies():
            if segment.state is not SegmentState.DELETE_STARTED:
                await self._tell(dead, self._update(segment, SegmentState.DELETE_STARTED))
            await storage.delete_segment(segment)

    async def _finish(self, storage: SegmentDeleter, dead: _Dead) -> None:
        """Delete again what may have landed late, then forget the copies and the partition."""
        fold = self._fold(dead)
        if fold is None:
            return
        for segment in fold.copies():
            await storage.delete_segment(segment)
            await self._tell(dead, self._update(segment, SegmentState.DELETE_FINISHED))
        await self._tell(dead, self._deletion(dead, PartitionState.DELETE_FINISHED))
        logger.info(
            "deleted topic %s, partition %d, has left the tier",
            dead.partition.topic_id,
            dead.partition.number,
        )

    def _fold(self, dead: _Dead) -> PartitionFold | None:
        for index, machine in self._coordinator.machines():
            if index == dead.index:
                return machine.fold.get(dead.partition)
        return None

    def _deletion(self, dead: _Dead, state: PartitionState) -> PartitionDeletion:
        fold = self._fold(dead)
        segment = None if fold is None else next(fold.copies(), None)
        if segment is not None:
            dead.topic = segment.topic
        return PartitionDeletion(
            partition=dead.partition,
            topic=dead.topic,
            state=state,
            broker_id=self._node_id,
            event_timestamp_ms=self._now_ms(),
        )

    def _update(self, segment: RemoteSegment, state: SegmentState) -> TierEvent:
        return updated(segment, state, broker_id=self._node_id, now_ms=self._now_ms())

    async def _tell(self, dead: _Dead, event: TierEvent) -> None:
        await self._coordinator.ask(dead.index, TierCommand(event=event, leader_epoch=None))
