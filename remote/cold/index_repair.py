"""Putting index objects that were lost, and made anew from the data, back into the store.

Owns: who does it, how often it is tried, and what makes it safe beside a deletion. Does not own: making them
(rebuild), the object (object tier), deletions (removal). Invariant: nothing is put but by the leader of the
partition, of a copy that is finished, after a commit of just that; and nothing of it arrives later than
LATE_UPLOAD_S after that commit.

So no object is left behind: a deletion is committed after that commit or makes it be refused. The deletion by
this leader then deletes twice, LATE_UPLOAD_S apart, as after an upload; a later leader does so in the first
LATE_UPLOAD_S of its time, and the sweep always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from uuid import UUID

from protocol.errors import KafkaError
from remote.bad_object import BadObject
from remote.cold.claim import ARRIVES_S, LATE_UPLOAD_S
from remote.cold.flights import Spawn
from remote.cold.metadata_manager import Metadata
from remote.cold.rebuild import Rebuilt
from remote.cold.removal import Removal
from remote.cold.segments import RemoteSegment, SegmentState, SegmentUpdated, TieredPartition
from remote.cold.storage_manager import (
    IndexKind,
    SegmentHeader,
)
from remote.cold.tenure import Tenure, TenureOver
from remote.store.object_store import NoSuchObject, StoreError

logger = logging.getLogger(__name__)

PUT_S: Final = 30.0
"""For the commit and the put after it: small, as a new leader may begin before the old one is refused."""
assert PUT_S + ARRIVES_S < LATE_UPLOAD_S
ATTEMPTS: Final = 6
PAUSE_S: Final = 10.0
"""Between attempts: a replica that is restored leads soon."""
UNDER_WAY_MAX: Final = 64


class IndexObjects(Protocol):
    async def check_index(self, segment: RemoteSegment) -> None:
        """NoSuchObject or BadObject when the index object is lost."""

    async def put_index(
        self, segment: RemoteSegment, header: SegmentHeader, indexes: Mapping[IndexKind, bytes]
    ) -> None: ...


class IndexRepair:
    def __init__(
        self,
        *,
        broker_id: int,
        objects: IndexObjects,
        metadata: Metadata,
        removal: Removal,
        tenure_of: Callable[[TieredPartition], Tenure | None],
        spawn: Spawn,
    ) -> None:
        self.repaired = 0
        self._broker_id = broker_id
        self._objects = objects
        self._metadata = metadata
        self._removal = removal
        self._tenure_of = tenure_of
        self._spawn = spawn
        self._under_way: set[UUID] = set()

    def __repr__(self) -> str:
        return f"<IndexRepair {self.repaired} repaired, {len(self._under_way)} under way>"

    def begin(self, segment: RemoteSegment, rebuilt: Rebuilt, _lost: Exception) -> None:
        """Put back what was made, if that is all of it. What finds no room here is made again some day."""
        is_new = segment.id not in self._under_way
        if rebuilt.is_whole and is_new and len(self._under_way) < UNDER_WAY_MAX:
            self._under_way.add(segment.id)
            self._spawn(self._repair(segment, rebuilt))

    async def _repair(self, segment: RemoteSegment, rebuilt: Rebuilt) -> None:
        try:
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(PAUSE_S)
                tenure = self._tenure_of(segment.partition)
                if tenure is not None and await self._try(tenure, segment, rebuilt):
                    return
        finally:
            self._under_way.discard(segment.id)

    async def _try(self, tenure: Tenure, segment: RemoteSegment, rebuilt: Rebuilt) -> bool:
        """Return whether there is nothing more to do."""
        try:
            return await self._put(tenure, segment, rebuilt)
        except TenureOver:
            return False
        except (KafkaError, StoreError, TimeoutError) as error:
            logger.info(
                "the index object of the copy %s of %s is not put back yet: %s",
                segment.id,
                tenure.name,
                error,
            )
            return False

    async def _put(self, tenure: Tenure, segment: RemoteSegment, rebuilt: Rebuilt) -> bool:
        try:
            await self._objects.check_index(segment)
        except (BadObject, NoSuchObject):
            pass
        else:
            return True
        tenure.check()
        fold = self._metadata.fold(tenure.partition)
        known = None if fold is None else fold.segment(segment.id)
        if known is None or known.state is not SegmentState.COPY_FINISHED:
            return True
        claim = SegmentUpdated(
            partition=known.partition,
            topic=tenure.topic,
            id=known.id,
            state=SegmentState.COPY_FINISHED,
            broker_id=self._broker_id,
            event_timestamp_ms=known.event_timestamp_ms,
            custom=known.custom,
        )
        self._removal.finished(known.id)
        try:
            async with asyncio.timeout(PUT_S):
                await self._metadata.submit(
                    claim, leader_epoch=tenure.leader_epoch, expects=SegmentState.COPY_FINISHED
                )
                tenure.check()
                await self._objects.put_index(known, rebuilt.header, rebuilt.indexes)
        finally:
            self._removal.finished(known.id)
        self.repaired += 1
        logger.warning("the index object of the copy %s of %s was put back", known.id, tenure.name)
        return True
