"""The right to go on with an upload, and for how long after it was last asked for anything may come of it.

Owns: `Claim`, the times within which a put of ours can begin, be tried and arrive, and what follows from
them for whoever deletes. Does not own: the steps of a copy (copier), of a deletion (removal, the sweep),
attempts at one request (remote.store). Invariant: no put of a copy begins later than CONFIRMED_S after it was
committed that the copy is begun; so none arrives later than LATE_UPLOAD_S after the objects of that copy were
deleted, which follows the commit of its deletion.

A broker whose image is old does not know that others lead, and tries on for minutes. It has to commit, in the
metadata topic, that the copy is begun before it sends more: the leader of the topic refuses that to an old
leader, and of a copy that goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from remote.cold.metadata_manager import Metadata
from remote.cold.segments import RemoteSegment, SegmentStarted, SegmentState
from remote.store.resilient import BYTES_PER_S_MIN, DEADLINE_S, RETRIES_END_S
from remote.store.upload import PART_BYTES

CONFIRMED_S: Final = 30.0
"""So long after it was committed that a copy is begun, a put of it may begin."""
TRIED_S: Final = RETRIES_END_S + DEADLINE_S + PART_BYTES / BYTES_PER_S_MIN
"""The longest time from there to the end of its last attempt."""
ARRIVES_S: Final = 60.0
"""A request that its sender gave up may reach the store so much later, by all that stores promise."""
LATE_UPLOAD_S: Final = 120.0
"""What was deleted is deleted again so much later, and then nothing of the upload can arrive any more."""
assert CONFIRMED_S + TRIED_S + ARRIVES_S <= LATE_UPLOAD_S


class Claim:
    def __init__(
        self,
        segment: RemoteSegment,
        *,
        leader_epoch: int,
        metadata: Metadata,
        clock: Callable[[], float],
    ) -> None:
        self._segment = segment
        self._leader_epoch = leader_epoch
        self._metadata = metadata
        self._clock = clock
        self._asked_at = clock()
        """When that was asked for of which the commit came last."""
        self._asking = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Claim of {self._segment.id}, {self._clock() - self._asked_at:.0f} s old>"

    async def begin(self) -> None:
        """Return once it is committed that the copy is begun."""
        self._asked_at = self._clock()
        await self._metadata.submit(SegmentStarted(segment=self._segment), leader_epoch=self._leader_epoch)

    async def hold(self) -> None:
        """Return when a put may begin: at once, or after another commit. KafkaError where it may not."""
        while not self.is_fresh:
            async with self._asking:
                if not self.is_fresh:
                    await self._ask_again()

    @property
    def is_fresh(self) -> bool:
        return self._clock() - self._asked_at < CONFIRMED_S

    async def _ask_again(self) -> None:
        asked_at = self._clock()
        await self._metadata.submit(
            SegmentStarted(segment=self._segment),
            leader_epoch=self._leader_epoch,
            expects=SegmentState.COPY_STARTED,
        )
        self._asked_at = asked_at
