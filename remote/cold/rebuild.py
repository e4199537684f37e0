"""What an index object said, made anew from the data of its copy when the object is missing or damaged.

Owns: `RebuildingManager`, which gives the indexes of a copy whatever became of its index object; reading the
data once for all who ask, and what is kept of the outcome; what was before the segment: producers and leader
epochs, from the index object of the copy before it or, where that is lost as well, from its data, and so on.
Does not own: what proves the data (data_scan), the objects (storage manager), putting the object back
(index_repair), caches on the disk. Invariant: what is given was proven batch by batch and agrees with the
metadata, or BadObject is raised; what hangs on the log before the segment is given only where that is known.

What is known without anything before it: offset and time index, block checksums. A transaction index needs
the transactions that were open before, unless the metadata says that it is empty, or nothing is left of the
log before it: then nobody reads what those transactions wrote there, and their first offset in the segment
does as well. The producer snapshot needs all of the log before the segment.

The copy before a segment is one that has the offset before it in the segment's own leader epoch: one leader
wrote both. Where the segment begins with a new epoch it is the one that ends there, if all that have that
offset agree on its epoch: of two histories none is chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.cold.bootstrap import fetch_epochs, fetch_producers
from remote.cold.data_scan import DataScan
from remote.cold.flights import Flights, Spawn
from remote.cold.index_cache import Offload
from remote.cold.segments import RemoteSegment, SegmentState, TieredPartition
from remote.cold.storage_manager import (
    BLOCK_BYTES,
    IndexKind,
    Pace,
    PieceManager,
    SegmentData,
    SegmentHeader,
    StorageManager,
)
from remote.store.object_store import NoSuchObject
from storage.epochs import EpochCache
from storage.producers import ProducerTable, decode_producers

logger = logging.getLogger(__name__)

T = TypeVar("T")

PIECE_BYTES: Final = 1 << 20
"""Read at a time."""
SLICE_BYTES: Final = 1 << 18
"""Looked at in one go, in another thread."""
AT_ONCE_MAX: Final = 2
DEADLINE_S: Final = 1800.0
"""For one copy, and for those before it where they are lost too. Those that wait have a shorter one."""
KEPT_BYTES: Final = 16 << 20
REMEMBERED_S: Final = 60.0
"""How long data that does not prove itself is not read again: consumers ask again and again."""
REMEMBERED_MAX: Final = 1000
WALK_MAX: Final = 1000
"""Copies without their index objects that are read one after another to know what was before the next."""
_WAIT_MIN_S: Final = 0.01
_HEADER_BYTES: Final = 64 << 10
"""What a header takes at most, roughly."""


class Fold(Protocol):
    """What is known of one partition's copies."""

    def segment(self, segment_id: UUID) -> RemoteSegment | None: ...
    def holders(self, offset: int) -> list[RemoteSegment]:
        """Return the finished copies that have `offset`, of any lineage."""

    def copies(self) -> Iterator[RemoteSegment]: ...


class Metadata(Protocol):
    def fold(self, partition: TieredPartition) -> Fold | None: ...


class ReadQuota(Protocol):
    def is_spent(self) -> bool: ...
    def note(self, size_bytes: int) -> None: ...
    def opens_in(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What is known of the log before an offset."""

    producers: bytes | None
    """Their snapshot; None: nothing is known of them."""
    is_exact: bool
    """Whether those are in it that only wrote what is not in the tier any more."""
    epochs: tuple[tuple[int, int], ...] | None
    lacks: str = ""
    """Why not all is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """All that could be made of a copy's index object."""

    header: SegmentHeader
    indexes: Mapping[IndexKind, bytes]
    at_end: Before
    """What is known of the log at the segment's end."""

    @property
    def is_whole(self) -> bool:
        return len(self.indexes) == len(IndexKind)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.indexes.values())) + len(self.at_end.producers or b"") + _HEADER_BYTES


class Rebuilder:
    def __init__(
        self,
        *,
        storage: StorageManager,
        metadata: Metadata,
        quota: ReadQuota,
        cluster_id: Callable[[], str],
        offload: Offload,
        spawn: Spawn,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.on_rebuilt: list[Callable[[RemoteSegment, Rebuilt, Exception], None]] = []
        """Called with the whole copy, and with what became of its index object."""
        self._storage = storage
        self._metadata = metadata
        self._quota = quota
        self._cluster_id = cluster_id
        self._offload = offload
        self._block_bytes = block_bytes
        self._flights: Flights[tuple[UUID, bool], Rebuilt] = Flights(spawn, deadline_s=DEADLINE_S)
        self._places = asyncio.Semaphore(AT_ONCE_MAX)
        self._walks = asyncio.Semaphore(AT_ONCE_MAX - 1)
        """For those that read other copies too, which takes long: one place is left to what readers need."""
        self._kept: OrderedDict[UUID, Rebuilt] = OrderedDict()
        """Least recently asked for first."""
        self._kept_bytes = 0
        self._refused: OrderedDict[tuple[UUID, bool], tuple[float, str]] = OrderedDict()
        """When data was found unfit, and why."""
        self.lost = 0
        """How often an index object was missing or damaged when it was asked for, twice."""
        self.rebuilt = 0
        self.failed = 0
        """How often nothing, or not what was asked for, could be made of the data."""
        self.read_bytes = 0

    def __repr__(self) -> str:
        return f"<Rebuilder {self.rebuilt} rebuilt, {self.failed} failed, {len(self._flights)} under way>"

    @property
    def under_way(self) -> int:
        return len(self._flights)

    def made(self, segment: RemoteSegment) -> Rebuilt | None:
        """Return what was made for this copy, if it is still at hand."""
        kept = self._kept.get(segment.id)
        if kept is not None:
            self._kept.move_to_end(segment.id)
        return kept

    async def header(self, segment: RemoteSegment, lost: Exception) -> SegmentHeader:
        """Return what the index object said, which is `lost`. BadObject, StoreError."""
        return (await self._rebuilt(segment, lost, None)).header

    async def index(self, segment: RemoteSegment, kind: IndexKind, lost: Exception) -> bytes:
        rebuilt = await self._rebuilt(segment, lost, kind)
        data = rebuilt.indexes.get(kind)
        if data is None:
            raise BadObject(
                f"{lost}; the data makes no {kind.name} index, as {rebuilt.at_end.lacks}: {_ADVICE}"
            )
        return data

    async def _rebuilt(self, segment: RemoteSegment, lost: Exception, kind: IndexKind | None) -> Rebuilt:
        self.lost += 1
        fold = self._metadata.fold(segment.partition)
        whole = None if fold is None else fold.segment(segment.id)
        if fold is None or whole is None or whole.state is not SegmentState.COPY_FINISHED:
            raise lost  # it is on its way out, and its objects with it
        is_plain = kind in _PLAIN or (kind is IndexKind.TRANSACTION and not whole.has_aborted)
        is_walking = not is_plain
        key = segment.id, is_walking
        why = self._why_refused(key)
        if why is not None:
            raise BadObject(why)
        return await self._flights.join(key, lambda: self._rebuild(fold, whole, lost, is_walking=is_walking))

    def _why_refused(self, key: tuple[UUID, bool]) -> str | None:
        found = self._refused.get(key)
        if found is None or asyncio.get_running_loop().time() - found[0] >= REMEMBERED_S:
            return None
        return found[1]

    async def _rebuild(
        self, fold: Fold, segment: RemoteSegment, lost: Exception, *, is_walking: bool
    ) -> Rebuilt:
        async with self._walks if is_walking else contextlib.nullcontext(), self._places:
            try:
                before = await self._before(fold, segment, is_walking=is_walking)
                rebuilt = await self._through(segment, before)
            except NoSuchObject as error:
                raise BadObject(f"{lost}; the data of the copy is missing too: {error}") from error
            except BadObject as error:
                self.failed += 1
                why = f"{lost}; no other can be made, {error}"
                self._refuse((segment.id, is_walking), why)
                logger.error(
                    "the index object of the copy %s of %s is lost (%s) and its data makes none: %s; %s",
                    segment.id,
                    _name_of(segment),
                    lost,
                    error,
                    _ADVICE,
                )
                raise BadObject(why) from error
        self.rebuilt += 1
        if is_walking and not rebuilt.is_whole:
            self.failed += 1
            self._refuse((segment.id, is_walking), f"{lost}; {rebuilt.at_end.lacks}: {_ADVICE}")
        logger.warning(
            "the index object of the copy %s of %s is lost (%s): it was made anew from %d bytes of data%s",
            segment.id,
            _name_of(segment),
            lost,
            segment.size_bytes,
            f", but for some of it, as {rebuilt.at_end.lacks}" if rebuilt.at_end.lacks else "",
        )
        for listener in self.on_rebuilt:
            listener(segment, rebuilt, lost)
        return rebuilt

    def _refuse(self, key: tuple[UUID, bool], why: str) -> None:
        self._refused[key] = asyncio.get_running_loop().time(), why
        self._refused.move_to_end(key)
        if len(self._refused) > REMEMBERED_MAX:
            self._refused.popitem(last=False)

    def _keep(self, segment_id: UUID, rebuilt: Rebuilt) -> None:
        old = self._kept.pop(segment_id, None)
        if old is not None:
            self._kept_bytes -= old.size_bytes
            rebuilt = old if old.is_whole else rebuilt
        self._kept[segment_id] = rebuilt
        self._kept_bytes += rebuilt.size_bytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.size_bytes

    # --- what was before ---

    async def _before(self, fold: Fold, segment: RemoteSegment, *, is_walking: bool) -> Before:
        """Find what is known at the base offset of a copy."""
        to_read: list[tuple[RemoteSegment, int]] = []
        at = segment
        while True:
            if at.base_offset == 0 or _is_oldest(fold, at):
                before = _beginning(at.base_offset)
                break
            found = copy_before_segment(fold, at)
            if found is None:
                return _unknown(f"it is not certain which copy has the log before offset {at.base_offset}")
            known = await self._at_end(found) if found.end_offset == at.base_offset else None
            if known is not None:
                before = known
                break
            if not is_walking or len(to_read) == WALK_MAX:
                return _unknown(f"the index object of the copy before it, {found.id}, is lost too")
            to_read.append((found, at.base_offset))
            at = found
        for copy, until in reversed(to_read):
            before = await self._pass(copy, until, before)
        return before

    async def _at_end(self, copy: RemoteSegment) -> Before | None:
        """Read what the index object of a copy says; None if it is lost."""
        try:
            producers = (await fetch_producers(self._storage, copy)).encode()
            epochs = await fetch_epochs(self._storage, copy)
        except (BadObject, NoSuchObject):
            kept = self._kept.get(copy.id)
            return None if kept is None or kept.at_end.producers is None else kept.at_end
        return Before(producers=producers, is_exact=True, epochs=epochs)

    async def _pass(self, copy: RemoteSegment, until: int, before: Before) -> Before:
        """Return what is known at `until`, in or at the end of a copy whose index object is lost."""
        try:
            if until == copy.end_offset:
                return (await self._through(copy, before)).at_end
            return _after(before, copy, await self._scan(copy, before, until=until), until)
        except NoSuchObject as error:
            raise BadObject(f"the copy before it has no data: {error}") from error

    # --- the data ---

    async def _through(self, segment: RemoteSegment, before: Before) -> Rebuilt:
        scan = await self._scan(segment, before)
        if (scan.aborted or before.is_exact) and bool(scan.aborted) != segment.has_aborted:
            raise BadObject(
                f"{len(scan.aborted)} transactions were aborted in it, the metadata says otherwise"
            )
        at_end = _after(before, segment, scan, segment.end_offset)
        indexes = {IndexKind.OFFSET: scan.offset_index, IndexKind.TIMESTAMP: scan.time_index}
        if before.producers is not None or not segment.has_aborted:
            indexes[IndexKind.TRANSACTION] = b"".join(txn.encode() for txn in scan.aborted)
        if at_end.is_exact and at_end.producers is not None:
            indexes[IndexKind.PRODUCER_SNAPSHOT] = at_end.producers
        if at_end.epochs is not None:
            indexes[IndexKind.LEADER_EPOCH] = EpochCache(at_end.epochs).encode()
        header = SegmentHeader(
            cluster_id=self._cluster_id(),
            partition=segment.partition,
            topic=segment.topic,
            segment_id=segment.id,
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            broker_id=segment.broker_id,
            leader_epoch=segment.epochs[-1][0],
            started_ms=segment.event_timestamp_ms,
            max_timestamp_ms=segment.max_timestamp_ms,
            epochs=segment.epochs,
            size_bytes=segment.size_bytes,
            batch_count=scan.batch_count,
            crc32c=scan.crc32c,
            block_bytes=self._block_bytes,
            block_crcs=tuple(scan.block_crcs),
        )
        rebuilt = Rebuilt(header=header, indexes=indexes, at_end=at_end)
        self._keep(segment.id, rebuilt)
        return rebuilt

    async def _scan(self, segment: RemoteSegment, before: Before, *, until: int | None = None) -> DataScan:
        known = before.producers
        producers = ProducerTable() if known is None else decode_producers(known)[0]
        scan = DataScan(segment, producers=producers, until=until, block_bytes=self._block_bytes)
        for start in range(0, segment.size_bytes, PIECE_BYTES):
            end = min(start + PIECE_BYTES, segment.size_bytes)
            while self._quota.is_spent():  # noqa: ASYNC110 - reads that serve clients go first
                await asyncio.sleep(max(self._quota.opens_in(), _WAIT_MIN_S))
            data = memoryview(await self._storage.fetch_segment(segment, start, end))
            self._quota.note(len(data))
            self.read_bytes += len(data)
            if len(data) != end - start:
                raise BadObject(f"its data ends at byte {start + len(data)}, not at {segment.size_bytes}")
            for at in range(0, len(data), SLICE_BYTES):
                part = data[at : at + SLICE_BYTES]
                await self._offload(partial(scan.feed, part))
        scan.finish()
        return scan


class RebuildingManager:
    """A storage manager that has the indexes of copies whose index objects are lost. It asks again for one
    that is missing before it believes that; one that is damaged the managers ask for again themselves."""

    def __init__(self, inner: PieceManager, rebuilder: Rebuilder) -> None:
        self._inner = inner
        self.rebuilder = rebuilder

    def __repr__(self) -> str:
        return f"<RebuildingManager {self._inner!r}, {self.rebuilder!r}>"

    async def copy_segment(
        self, segment: RemoteSegment, data: SegmentData, *, cluster_id: str, leader_epoch: int, pace: Pace
    ) -> bytes | None:
        return await self._inner.copy_segment(
            segment, data, cluster_id=cluster_id, leader_epoch=leader_epoch, pace=pace
        )

    async def fetch_segment(self, segment: RemoteSegment, start: int, end: int) -> bytes:
        return await self._inner.fetch_segment(segment, start, end)

    async def fetch_pieces(
        self, segment: RemoteSegment, start: int, end: int, *, piece_bytes: int
    ) -> Sequence[Buffer]:
        return await self._inner.fetch_pieces(segment, start, end, piece_bytes=piece_bytes)

    async def fetch_index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        made = self.rebuilder.made(segment)
        if made is not None and kind in made.indexes:
            return made.indexes[kind]
        try:
            return await _twice(lambda: self._inner.fetch_index(segment, kind))
        except (BadObject, NoSuchObject) as lost:
            return await self.rebuilder.index(segment, kind, lost)

    async def fetch_header(self, segment: RemoteSegment) -> SegmentHeader:
        made = self.rebuilder.made(segment)
        if made is not None:
            return made.header
        try:
            return await _twice(lambda: self._inner.fetch_header(segment))
        except (BadObject, NoSuchObject) as lost:
            return await self.rebuilder.header(segment, lost)

    async def delete_segment(self, segment: RemoteSegment) -> None:
        await self._inner.delete_segment(segment)

    def local_path(self, segment: RemoteSegment) -> str | None:
        return self._inner.local_path(segment)

    async def close(self) -> None:
        await self._inner.close()


def copy_before_segment(fold: Fold, segment: RemoteSegment) -> RemoteSegment | None:
    """Return a finished copy that has the log before `segment`; None where that is not certain."""
    last = segment.base_offset - 1
    first_epoch = segment.epochs[0][0]
    having = [(epoch, copy) for copy in fold.holders(last) if (epoch := _epoch_at(copy, last)) <= first_epoch]
    # one that ends where the segment begins needs no look at its data
    having.sort(key=lambda found: (-found[0], found[1].end_offset != segment.base_offset))
    if not having or having[0][0] == first_epoch:
        return having[0][1] if having else None
    known = {_epoch_at(copy, last) for copy in fold.copies() if copy.base_offset <= last < copy.end_offset}
    epoch, copy = having[0]
    return copy if known == {epoch} and copy.end_offset == segment.base_offset else None


def _is_oldest(fold: Fold, segment: RemoteSegment) -> bool:
    """Whether no copy has anything of the log before it, or had until a moment ago."""
    return not any(copy.base_offset < segment.base_offset for copy in fold.copies())


def _epoch_at(copy: RemoteSegment, offset: int) -> int:
    epoch = EpochCache(copy.epochs).epoch_for(offset)
    assert epoch is not None, (offset, copy)
    return epoch


def _beginning(offset: int) -> Before:
    """What is known where the first copy begins: of a log from 0 on that is everything."""
    lacks = f"nothing is left of the log before offset {offset}" if offset else ""
    return Before(producers=ProducerTable().encode(), is_exact=offset == 0, epochs=(), lacks=lacks)


def _unknown(lacks: str) -> Before:
    return Before(producers=None, is_exact=False, epochs=None, lacks=lacks)


def _after(before: Before, copy: RemoteSegment, scan: DataScan, end: int) -> Before:
    return Before(
        producers=None if before.producers is None else scan.producers.encode(),
        is_exact=before.is_exact,
        epochs=_epochs_until(before.epochs, copy, end),
        lacks=before.lacks,
    )


def _epochs_until(
    before: tuple[tuple[int, int], ...] | None, copy: RemoteSegment, end: int
) -> tuple[tuple[int, int], ...] | None:
    """Return the epochs of the log up to `end`, which is in `copy` or where it ends."""
    if before is None:
        return None
    cache = EpochCache(before)
    cache.truncate_from_end(copy.base_offset)
    for epoch, start in copy.epochs:
        if start < end:
            cache.assign(epoch, start_offset=start)
    return tuple(cache.entries())


def _name_of(segment: RemoteSegment) -> str:
    return f"{segment.topic}-{segment.partition.number} [{segment.base_offset}, {segment.end_offset})"


async def _twice(read: Callable[[], Awaitable[T]]) -> T:
    try:
        return await read()
    except NoSuchObject:
        return await read()


_ADVICE: Final = "put the object back from a version or a backup of the bucket"
_PLAIN: Final = (None, IndexKind.OFFSET, IndexKind.TIMESTAMP)
"""What follows from the data alone."""
