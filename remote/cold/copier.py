"""One closed segment of a partition led here into the tier.

Owns: the order of a copy's steps, and what is checked between them. Does not own: which segments are due
(policy), the objects (storage manager), the meaning of the events (fold), when a partition gets its turn
(broker.replicas.tiering). Invariant: a copy is said to be finished only by the leader that began it, in the
same epoch, after all of it is durable, and while the log still has just these bytes; whatever ends a copy
earlier leaves it begun, for a deletion, and the next attempt has another id.

The steps: look through the segment, say STARTED, store it, ask whether role, epoch and log are what they
were, say FINISHED. Two leaders may copy the same offsets at once: what both have is below what is stable, so
it is the same, and one of the copies is found superfluous later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from protocol.errors import KafkaError
from remote.bad_object import BadObject
from remote.cold.claim import Claim
from remote.cold.events import updated
from remote.cold.metadata_manager import Metadata
from remote.cold.pacing import PacerStatistics
from remote.cold.policy import plan_copy
from remote.cold.removal import Removal
from remote.cold.scan import BLOCKS_AT_ONCE, SegmentChanged, SegmentDamaged, SegmentScan, read_again
from remote.cold.segments import (
    RemoteSegment,
    SegmentState,
)
from remote.cold.storage_manager import (
    BLOCK_BYTES,
    SegmentData,
    StorageManager,
)
from remote.cold.tenure import Tenure, TenureOver
from remote.store.object_store import NoSuchObject, StoreError
from remote.store.tempo import Tempo
from remote.store.upload import apart
from storage.log import ClosedSegment, HeldSegment

STALL_S: Final = 300.0
"""The longest time without a step of an upload; a wait for the quota does not count."""

_KNOWN: Final = (TenureOver, SegmentChanged, KafkaError, StoreError, NoSuchObject, BadObject)

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


class Quota(Protocol):
    async def take(self, size: int) -> None:
        """Wait until so many more bytes may be sent."""

    def statistics(self) -> PacerStatistics: ...


class CopyFailed(Exception):
    """The copy cannot be finished; the next attempt may do better."""


class Copier:
    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: Callable[[], str],
        storage: StorageManager,
        metadata: Metadata,
        removal: Removal,
        quota: Quota,
        custom_bytes_max: int,
        now_ms: Callable[[], int],
        random: random.Random,
        offload: Offload,
        tempo: Tempo | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.copied = 0
        self.under_way: set[UUID] = set()
        """Copies that are begun and may yet be finished; all other unfinished ones are nobody's."""
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._storage = storage
        self._metadata = metadata
        self._removal = removal
        self.quota = quota
        self._custom_bytes_max = custom_bytes_max
        self._now_ms = now_ms
        self._random = random
        self._offload = offload
        self._tempo = tempo or Tempo()
        self._block_bytes = block_bytes

    def __repr__(self) -> str:
        return f"<Copier {self.copied} copied, {len(self.under_way)} under way>"

    async def copy_next(self, tenure: Tenure) -> bool:
        """Copy the oldest segment that is due, if one is. Return whether another one may be due after it.

        One turn copies one segment: partitions that wait come first, and while the quota is spent nobody
        keeps the others from what is left of it.
        """
        tenure.check()
        due = self.due(tenure)
        if not due:
            return False
        await self._give_up_earlier(tenure)
        tenure.check()
        with tenure.log.open_segment(due[0].base_offset) as held:
            await self._copy(tenure, due[0], held)
        return len(due) > 1

    def waiting(self, tenure: Tenure) -> list[ClosedSegment]:
        """The segments that are closed, committed and not in the tier, oldest first."""
        log = tenure.log
        return log.closed_segments(max(log.tiered_end, log.log_start_offset), log.last_stable_offset)

    def due(self, tenure: Tenure) -> list[ClosedSegment]:
        """The segments to copy now, oldest first."""
        log = tenure.log
        closed = self.waiting(tenure)
        if not closed or log.epochs_incomplete:
            return []
        return plan_copy(
            log.config,
            closed,
            now_ms=self._now_ms(),
            tiered_end=log.tiered_end,
            last_stable_offset=log.last_stable_offset,
            log_start=log.log_start_offset,
            log_size=log.size_from(closed[0].base_offset),
        )

    async def _give_up_earlier(self, tenure: Tenure) -> None:
        """Say of every unfinished copy that it goes: nobody is at work on it, because a partition has one
        copy at a time, and its beginner, if that is not this broker, leads no more. The word that one of them
        is finished may still be under way: then it is refused that it goes, and the next turn finds it
        finished."""
        fold = self._metadata.fold(tenure.partition)
        for segment in [] if fold is None else list(fold.unfinished()):
            await self._removal.begin(tenure, segment)

    async def _copy(self, tenure: Tenure, closed: ClosedSegment, held: HeldSegment) -> None:
        log = tenure.log
        generation = log.generation
        scan = SegmentScan(
            held.file,
            held.size,
            base_offset=closed.base_offset,
            end_offset=closed.end_offset,
            block_bytes=self._block_bytes,
            epochs_below=held.epochs[0][1] if held.epochs else closed.end_offset,
        )
        while not scan.is_done:
            try:
                async with self._tempo.turn(held.size):
                    tenure.check()
                    blocks = self._blocks_at_once()
                    size = min(blocks * self._block_bytes, held.size)
                    await self._read(tenure, partial(scan.go_on, blocks), size)
            except SegmentDamaged as error:
                if log.generation != generation:
                    raise SegmentChanged("the log was cut while it was looked through") from error
                raise
        held = _with_epochs(held, scan.epochs)
        producers = await self._producers(tenure, closed.end_offset)
        tenure.check()
        segment = RemoteSegment(
            partition=tenure.partition,
            topic=tenure.topic,
            id=UUID(int=self._random.getrandbits(128), version=4),
            base_offset=closed.base_offset,
            end_offset=closed.end_offset,
            broker_id=self._broker_id,
            max_timestamp_ms=closed.max_timestamp,
            event_timestamp_ms=self._now_ms(),
            size_bytes=held.size,
            epochs=tuple(held.epochs),
            has_aborted=closed.has_aborted,
        )
        if log.generation != generation:
            raise SegmentChanged("the log was cut before the copy began")
        self.under_way.add(segment.id)
        try:
            await self._carry(tenure, segment, held, scan, producers, generation)
        finally:
            self.under_way.discard(segment.id)
        self.copied += 1
        tenure.counts.remote_copy_bytes += segment.size_bytes

    async def _carry(
        self,
        tenure: Tenure,
        segment: RemoteSegment,
        held: HeldSegment,
        scan: SegmentScan,
        producers: bytes,
        generation: int,
    ) -> None:
        claim = Claim(
            segment,
            leader_epoch=tenure.leader_epoch,
            metadata=self._metadata,
            clock=asyncio.get_running_loop().time,
        )
        await claim.begin()
        custom = await self._store(tenure, segment, claim, held, scan, producers)
        tenure.check()
        if tenure.log.generation != generation:
            raise SegmentChanged("the log was cut while it was copied")
        finished = updated(
            segment,
            SegmentState.COPY_FINISHED,
            broker_id=self._broker_id,
            now_ms=self._now_ms(),
            custom=custom,
        )
        self._removal.finished(segment.id)
        await self._metadata.submit(
            finished, leader_epoch=tenure.leader_epoch, expects=SegmentState.COPY_STARTED
        )

    async def _store(
        self,
        tenure: Tenure,
        segment: RemoteSegment,
        claim: Claim,
        held: HeldSegment,
        scan: SegmentScan,
        producers: bytes,
    ) -> bytes | None:
        tenure.counts.remote_copy += 1
        limit = asyncio.timeout(STALL_S)

        def progress(within_s: float | None) -> None:
            tenure.check()
            if not limit.expired():
                now = asyncio.get_running_loop().time()
                limit.reschedule(None if within_s is None else now + within_s)

        def give_up() -> None:
            if not limit.expired():
                limit.reschedule(0.0)

        async def read(start: int, end: int) -> memoryview:
            """Read all at once, or in slices beside clients."""
            buffer, at = apart(end - start), start
            while at < end:
                progress(STALL_S)
                until = end
                if self._tempo.is_busy():
                    until = min(end, at + self._blocks_at_once() * self._block_bytes)
                    until -= until % self._block_bytes if until < end else 0
                call = partial(
                    read_again,
                    held.file,
                    at,
                    until,
                    size=held.size,
                    block_crcs=scan.block_crcs,
                    block_bytes=self._block_bytes,
                    buffer=buffer[at - start : until - start],
                )
                await self._read(tenure, call, until - at)
                at = until
            await claim.hold()
            return buffer

        async def pace(size: int) -> None:
            progress(None)
            await self.quota.take(size)
            progress(STALL_S)
            await claim.hold()

        data = SegmentData(
            size=held.size,
            read=read,
            offset_index=held.offset_index,
            time_index=held.time_index,
            txn_index=held.txn_index,
            producers=producers,
            epochs_until_end=tuple(held.epochs_until_end),
            batch_count=scan.batch_count,
            crc32c=scan.crc32c,
            block_crcs=tuple(scan.block_crcs),
            block_bytes=self._block_bytes,
        )
        try:
            async with limit:
                tenure.on_end = give_up
                custom = await self._storage.copy_segment(
                    segment,
                    data,
                    cluster_id=self._cluster_id(),
                    leader_epoch=tenure.leader_epoch,
                    pace=pace,
                )
        except _KNOWN:
            raise
        except TimeoutError as error:
            tenure.check()
            raise CopyFailed(f"the store took nothing for {STALL_S:.0f} s") from error
        except Exception as error:  # a manager of others may raise anything
            raise StoreError(f"the storage manager failed: {error!r}") from error
        finally:
            tenure.on_end = None
        if custom is not None and len(custom) > self._custom_bytes_max:
            raise CopyFailed(
                f"the storage manager wants {len(custom)} bytes kept with a segment, and "
                f"remote.log.metadata.custom.metadata.max.bytes allows {self._custom_bytes_max}"
            )
        return custom

    async def _producers(self, tenure: Tenure, end: int) -> bytes:
        steps = tenure.log.producers_until(end)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                snapshot: bytes = ended.value
                return snapshot
            await asyncio.sleep(0)
            tenure.check()

    def _blocks_at_once(self) -> int:
        """Return how many blocks are read without a rest: beside clients those of BLOCK_BYTES."""
        return max(1, BLOCK_BYTES // self._block_bytes) if self._tempo.is_busy() else BLOCKS_AT_ONCE

    async def _read(self, tenure: Tenure, call: Callable[[], Any], size: int) -> None:
        """Read from the segment's file in another thread. A disk that fails is the log's to deal with."""
        time = asyncio.get_running_loop().time
        begun_s = time()
        try:
            await self._offload(call)
        except OSError as error:
            raise tenure.log.flush_failed(error) from error
        await self._tempo.rest(size, time() - begun_s)


def _with_epochs(held: HeldSegment, before: Sequence[tuple[int, int]]) -> HeldSegment:
    """Return the segment with the epochs of its batches below the log start as well, which the log has
    forgotten: a copy says what all of its bytes are."""
    if not before:
        return held
    (first_epoch, _), *later = before
    known = held.epochs[1:] if held.epochs and held.epochs[0][0] == before[-1][0] else held.epochs
    epochs = [(first_epoch, held.segment.base_offset), *later, *known]
    return replace(held, epochs=epochs, epochs_until_end=epochs)
