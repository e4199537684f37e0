"""Taking copies out of the tier: those that retention is done with, and those nobody will finish.

Owns: the steps of a deletion (said first, then the objects, then said to be done), which copies need a second
deletion of their objects, and when that is due. Does not own: which copies go (expirer), what may follow
which state (segments), the objects (storage manager). Invariant: no object goes before its deletion was
committed, on the state in which the copy was chosen, and the deletion is not said to be done while a late
upload may still bring an object back.

A request that its sender gave up may reach the store afterwards, and a leader of before may not know yet
that it is none. So the objects of an upload that did not end well, or ended a moment ago, are deleted twice,
so far apart that nothing more can come (claim).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from protocol.errors import ErrorCode, KafkaError
from remote.cold.claim import LATE_UPLOAD_S
from remote.cold.events import updated
from remote.cold.metadata_manager import Metadata
from remote.cold.segments import RemoteSegment, SegmentState, TieredPartition
from remote.cold.storage_manager import StorageManager
from remote.cold.tenure import Tenure

LOOK_AGAIN_S: Final = 1.0
"""When a copy is looked at again that became another one than was chosen."""

logger = logging.getLogger(__name__)


class Removal:
    """The deletions of one broker. What waits for its second deletion is known to this object alone: a leader
    that comes after it begins the wait anew."""

    def __init__(
        self,
        *,
        broker_id: int,
        storage: StorageManager,
        metadata: Metadata,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.deleted = 0
        """Copies whose deletion was completed here."""
        self._broker_id = broker_id
        self._storage = storage
        self._metadata = metadata
        self._now_ms = now_ms
        self._clock = clock
        self._first_at: dict[UUID, tuple[TieredPartition, float]] = {}
        """Whose each is, and when its objects were deleted for the first time."""
        self._finished_at: dict[UUID, float] = {}
        """Of the last LATE_UPLOAD_S."""

    def __repr__(self) -> str:
        return f"<Removal {self.deleted} deleted, {len(self._first_at)} to be deleted again>"

    def finished(self, id_: UUID) -> None:
        """An upload of this broker ended well, just now, or an index object of the copy is being put anew."""
        now = self._clock()
        self._finished_at[id_] = now
        for old in [old for old, at in self._finished_at.items() if now - at >= LATE_UPLOAD_S]:
            del self._finished_at[old]

    async def begin(self, tenure: Tenure, seen: RemoteSegment) -> None:
        """Commit that this copy goes, unless that was said already. KafkaError INVALID_RECORD where it is not
        any more what it was when it was chosen: the word that it is finished may have been under way."""
        known = self._find(tenure, seen.id)
        if known is not None and known.state is not SegmentState.DELETE_STARTED:
            await self._say(tenure, known, SegmentState.DELETE_STARTED, expects=seen.state)

    async def remove(self, tenure: Tenure, seen: RemoteSegment) -> float:
        """Take the next steps with this copy, as far as they are due. Return how long to wait until more is
        due, 0 when the copy is gone."""
        known = self._find(tenure, seen.id)
        if known is None:
            self._first_at.pop(seen.id, None)
            return 0.0
        if known.state not in (seen.state, SegmentState.DELETE_STARTED):
            return LOOK_AGAIN_S
        left_s = self.wait_s(seen.id)
        if left_s > 0:
            return left_s
        try:
            await self.begin(tenure, seen)
        except KafkaError as error:
            if error.code is not ErrorCode.invalid_record:
                raise
            logger.info("%s keeps a copy that has changed since it was to go: %s", tenure.name, error)
            return LOOK_AGAIN_S
        tenure.check()
        # what was put while the deletion was told is known now, and later nothing is put any more
        is_once = self._is_settled(tenure, known)
        tenure.counts.remote_delete += 1
        await self._storage.delete_segment(known)
        if not is_once and seen.id not in self._first_at:
            self._first_at[seen.id] = (tenure.partition, self._clock())
            return LATE_UPLOAD_S
        await self._say(tenure, known, SegmentState.DELETE_FINISHED, expects=SegmentState.DELETE_STARTED)
        self._first_at.pop(seen.id, None)
        self.deleted += 1
        return 0.0

    def forget(self, partition: TieredPartition) -> None:
        """Drop what is known of a partition's copies; its next leader begins anew."""
        for id_ in [id_ for id_, (known, _) in self._first_at.items() if known == partition]:
            del self._first_at[id_]

    def _find(self, tenure: Tenure, id_: UUID) -> RemoteSegment | None:
        """Look it up as it is known now: between two steps another may have settled it."""
        tenure.check()
        fold = self._metadata.fold(tenure.partition)
        return None if fold is None else fold.segment(id_)

    def _is_settled(self, tenure: Tenure, segment: RemoteSegment) -> bool:
        """Whether its upload ended well, and so long ago that nothing of it can be under way. What an earlier
        leader finished, it finished before this one began."""
        finished_at = self._finished_at.get(segment.id, tenure.began_at)
        is_old = self._clock() - finished_at >= LATE_UPLOAD_S
        return segment.state is SegmentState.COPY_FINISHED and is_old

    def wait_s(self, id_: UUID) -> float:
        """How long nothing is due for this copy, because its objects were deleted a moment ago."""
        first_at = self._first_at.get(id_)
        return 0.0 if first_at is None else max(0.0, first_at[1] + LATE_UPLOAD_S - self._clock())

    async def _say(
        self, tenure: Tenure, segment: RemoteSegment, state: SegmentState, *, expects: SegmentState
    ) -> None:
        event = updated(segment, state, broker_id=self._broker_id, now_ms=self._now_ms())
        await self._metadata.submit(event, leader_epoch=tenure.leader_epoch, expects=expects)
