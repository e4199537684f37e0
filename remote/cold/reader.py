"""Reading what is in the tier alone: records by offset, aborted transactions, offsets by time.

Owns: from an offset to the copy that holds it and the batches in it, reading again after damage, what the
caller is told when nothing can be read, the broker's read quota (KIP-956). Does not own: which copies count
(fold), their bytes and indexes (copies), who waits how long (the broker). Invariant: what is given was copied
from this log's own lineage and proven; an offset that cannot be read now is OFFSET_NOT_AVAILABLE (the fold is
behind, the store is away) or KAFKA_STORAGE_ERROR (damaged, twice), never OFFSET_OUT_OF_RANGE, which would
send a consumer elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import parse_header
from remote.bad_object import BadObject
from remote.cold.chunks import Missing
from remote.cold.copies import FIRST_RUN_CHUNKS, OpenCopies, Source, reading
from remote.cold.flights import Spawn
from remote.cold.pacing import PacerStatistics
from remote.cold.segments import RemoteSegment, SegmentState, TieredPartition
from remote.store.object_store import NoSuchObject, StoreError
from storage.epochs import EpochCache
from storage.index import AbortedTxn, BadIndex
from storage.log import LogSlice
from storage.times import Finding, Found, record_at_time

logger = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 8 << 20
"""What one read gives at most, but for a batch that is larger."""
HELD_MANY_BYTES: Final = 64 << 20
"""Beyond this held for clients, most of them slow, and promised to reads under way, one gives a chunk at
most."""
COPIES_TRIED: Final = 4
"""How many copies of one offset are tried: of two leaders' copies one may be deleted while it is read."""
_USED_MAX: Final = 10_000
_TOLD_MAX: Final = 1000
_TURN: Final = 16
"""Segments looked at in one turn of the loop."""

T = TypeVar("T")


class Fold(Protocol):
    """What is known of one partition's copies."""

    def segment(self, segment_id: UUID) -> RemoteSegment | None: ...
    def aborting(self, start: int) -> Iterable[RemoteSegment]:
        """Return the finished copies with aborted transactions that end above `start`, by base offset."""

    def find(self, offset: int, epochs: EpochCache) -> RemoteSegment | None:
        """Return the finished copy that has `offset` of this lineage; its `end_offset` is where the lineage
        parts from it, if it does."""


class Metadata(Protocol):
    @property
    def on_change(self) -> list[Callable[[TieredPartition], None]]: ...
    def fold(self, partition: TieredPartition) -> Fold | None: ...
    def is_caught_up(self, partition: TieredPartition) -> bool: ...
    async def wait_caught_up(self, partition: TieredPartition) -> None: ...


class ReadQuota(Protocol):
    """What the broker may read from the tier in a window of time."""

    def is_spent(self) -> bool: ...
    def note(self, size_bytes: int) -> None: ...
    def opens_in(self) -> float:
        """Return the seconds until it is not spent any more."""

    def statistics(self) -> PacerStatistics: ...

    def note_throttled(self) -> None:
        """Count one who was sent away because it is spent."""


class RemoteSlice(LogSlice):
    """Whole batches of a copied segment."""

    __slots__ = ()


class RemoteRead(NamedTuple):
    part: RemoteSlice | None
    """None when not even one batch may be given, or none is left in the tier from the offset on."""
    next_offset: int
    """Where to read on."""
    segment: RemoteSegment | None = None
    """The whole copy that it was read from."""


class RemoteReader:
    def __init__(
        self,
        *,
        metadata: Metadata,
        copies: OpenCopies,
        quota: ReadQuota,
        spawn: Spawn,
        barrier_wait_s: Callable[[], float],
    ) -> None:
        """`barrier_wait_s` is how long a read waits for the fold to catch up."""
        self._metadata = metadata
        self.copies = copies
        self.quota = quota
        self._spawn = spawn
        self._barrier_wait_s = barrier_wait_s
        self._used: OrderedDict[UUID, TieredPartition] = OrderedDict()
        """The copies that were read, so that those that are deleted are forgotten. Least recently first."""
        self._used_of: dict[TieredPartition, set[UUID]] = {}
        self._to_look_at: dict[TieredPartition, None] = {}
        """Partitions whose copies have changed since they were looked at."""
        self._is_looking = False
        self._promised_bytes = 0
        """What the reads under way may give in all."""
        self._told: OrderedDict[UUID, None] = OrderedDict()
        """The damaged copies that the log tells of already."""
        self.reads = 0
        self.read_bytes = 0
        self.damaged = 0
        """How often bytes or indexes were missing or not what was copied."""
        self.refused = 0
        """How often that was so again after they were fetched anew."""
        self.unavailable = 0
        """How often the store did not answer, or the fold was behind."""
        metadata.on_change.append(self._changed)

    def __repr__(self) -> str:
        return f"<RemoteReader {self.reads} reads, {self.damaged} damaged, {self.copies!r}>"

    async def start(self) -> None:
        """Take over the index files of an earlier run. Reads before that are fine."""
        await self.copies.start()

    @property
    def waiting(self) -> int:
        """How many chunks wait to be read from the store."""
        return self.copies.waiting

    @property
    def held_bytes(self) -> int:
        """What memory holds for reads under way and for clients that are being sent what was read."""
        return self.copies.pinned_bytes

    # --- records ---

    async def read(
        self,
        partition: TieredPartition,
        epochs: EpochCache,
        offset: int,
        max_bytes: int,
        *,
        bound: int,
        min_one: bool,
    ) -> RemoteRead:
        """Return whole batches of [offset, bound) from one copy, at most `max_bytes` unless `min_one` and the
        first is larger. KafkaError 78 or 56."""
        is_much_held = self.held_bytes + self._promised_bytes > HELD_MANY_BYTES
        limit = min(max_bytes, self.copies.chunk_bytes if is_much_held else READ_BYTES_MAX)
        self._promised_bytes += limit
        try:
            return await self._read_up_to(partition, epochs, offset, limit, bound, min_one=min_one)
        finally:
            self._promised_bytes -= limit

    async def _read_up_to(
        self,
        partition: TieredPartition,
        epochs: EpochCache,
        offset: int,
        limit: int,
        bound: int,
        *,
        min_one: bool,
    ) -> RemoteRead:
        async def use(found: RemoteSegment, segment: RemoteSegment) -> RemoteRead:
            end = min(bound, found.end_offset)
            part = await self._read(segment, offset, limit, end, min_one=min_one)
            if part is None:
                return RemoteRead(None, offset)
            return RemoteRead(part, part.next_offset, segment) if part.size else RemoteRead(None, end)

        result = await self._with_copy(partition, epochs, offset, use)
        while result.part is None and offset < result.next_offset < bound:
            # a log that was compacted once has gaps: what comes next may be in the copy behind this one
            offset = result.next_offset
            if self._find(partition, epochs, offset) is None:
                break
            result = await self._with_copy(partition, epochs, offset, use)
        if result.part is not None:
            self.reads += 1
            self.read_bytes += result.part.size
            self._read_on(partition, epochs, result)
        return result

    async def _read(
        self, segment: RemoteSegment, offset: int, limit: int, bound: int, *, min_one: bool
    ) -> RemoteSlice | None:
        copy = await self.copies.open(segment)
        source = self.copies.source(copy)
        view = reading(copy, source.file)
        hint = copy.hints.get(offset)
        run = FIRST_RUN_CHUNKS if offset == segment.base_offset else 0
        if hint is not None:
            run = hint.run
            view.remember(offset, hint.position)
        part = await _loading(
            source,
            lambda: view.read(offset, limit, bound=bound, end_offset=segment.end_offset, min_one=min_one),
        )
        if part is None or not part.size:
            return None if part is None else RemoteSlice(*part)
        if not segment.base_offset <= part.first_offset < segment.end_offset:
            raise BadObject(f"a batch of offset {part.first_offset} at {part.position}")
        end = part.position + part.size
        size = self.copies.chunk_bytes
        await source.load(part.position // size, -(-end // size), run=run)
        copy.remember(part.next_offset, end, run)
        return RemoteSlice(
            source.held(part.position, end), part.position, part.size, part.first_offset, part.next_offset
        )

    def _read_on(self, partition: TieredPartition, epochs: EpochCache, read: RemoteRead) -> None:
        """Open the next copy while the reader still has the last run of this one before it."""
        now, part, fold = read.segment, read.part, self._metadata.fold(partition)
        copy = None if now is None else self.copies.get(now.id)
        hint = None if copy is None else copy.hints.get(read.next_offset)
        if now is None or part is None or hint is None or fold is None:
            return
        if now.size_bytes - part.position - part.size > hint.run * self.copies.chunk_bytes:
            return
        found = fold.find(now.end_offset, epochs)
        if found is not None and found.base_offset == now.end_offset:
            opened = self.copies.get(found.id)
            if opened is None or found.base_offset not in opened.hints:
                self._spawn(self._open_ahead(self._whole(found), hint.run))

    async def _open_ahead(self, segment: RemoteSegment, run: int) -> None:
        try:
            copy = await self.copies.open(segment)
            if segment.base_offset not in copy.hints:
                copy.remember(segment.base_offset, 0, run)
                await self.copies.source(copy).load(0, 1, run=run)
        except Exception as error:  # its reader will hear of it
            logger.debug("%s could not be opened ahead of its reader: %s", segment.id, error)

    # --- aborted transactions ---

    async def aborted(
        self,
        partition: TieredPartition,
        epochs: EpochCache,
        start: int,
        end: int,
        *,
        local_start: Callable[[], int],
        local: Callable[[int, int], list[tuple[int, int]]],
    ) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that overlap [start, end), from the
        copies below what `local_start` says and then what `local` adds. KafkaError 78 or 56."""
        await self._catch_up(partition)
        found: dict[tuple[int, int], None] = {}
        at, until = start, local_start()
        while at < until:
            if await self._aborted_in_tier(partition, epochs, (start, end), at, until, found):
                return list(found)
            at, until = until, local_start()  # more of the log may have gone to the tier meanwhile
        found.update(dict.fromkeys(local(start, end)))
        return list(found)

    async def _aborted_in_tier(
        self,
        partition: TieredPartition,
        epochs: EpochCache,
        asked: tuple[int, int],
        at: int,
        until: int,
        found: dict[tuple[int, int], None],
    ) -> bool:
        """Add what the copies of [at, until) say of what is asked; return whether nothing behind can add to
        it."""
        start, end = asked
        for looked_at, known in enumerate(self._aborting(partition, at)):
            if known.base_offset >= until:
                break
            if looked_at % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            at = max(at, known.base_offset)
            # this lineage may have some of it from other copies
            while at < min(known.end_offset, until):
                segment = self._find(partition, epochs, at)
                if segment is None:
                    raise self._not_available(f"no copy of offset {at} of {partition} is known")
                if segment.has_aborted:
                    for txn in await self._with_copy(partition, epochs, at, self._aborted_of):
                        if not start <= txn.last_offset < segment.end_offset:
                            continue
                        if txn.first_offset < end:
                            found[txn.producer_id, txn.first_offset] = None
                        if txn.last_stable_offset >= end:
                            return True
                at = segment.end_offset
        return False

    def _aborting(self, partition: TieredPartition, start: int) -> Iterable[RemoteSegment]:
        fold = self._metadata.fold(partition)
        return () if fold is None else fold.aborting(start)

    async def _aborted_of(self, _: RemoteSegment, segment: RemoteSegment) -> list[AbortedTxn]:
        return await self.copies.aborted(await self.copies.open(segment))

    # --- times ---

    async def find_timestamp(
        self,
        partition: TieredPartition,
        epochs: EpochCache,
        timestamp: int,
        *,
        log_start: int,
        local_start: int,
    ) -> tuple[int, int, int] | None:
        """Return (timestamp, offset, leader epoch) of the first record from `log_start` on at or after
        `timestamp`, None if none is in copies that begin below `local_start`. KafkaError 78 or 56."""
        await self._catch_up(partition)
        offset, looked_at = log_start, 0
        while offset < local_start:
            segment = self._find(partition, epochs, offset)
            if segment is None:
                raise self._not_available(f"nothing is known of offset {offset} of {partition}")
            looked_at += 1
            if looked_at % _TURN == 0:
                await asyncio.sleep(0)
            if segment.max_timestamp_ms >= timestamp:
                result = await self._find_timestamp(partition, epochs, timestamp, offset)
                if result is not None and result[1] < segment.end_offset:
                    return result
            offset = segment.end_offset
        return None

    async def _find_timestamp(
        self, partition: TieredPartition, epochs: EpochCache, timestamp: int, start: int
    ) -> tuple[int, int, int] | None:
        async def use(_: RemoteSegment, segment: RemoteSegment) -> tuple[int, int, int] | None:
            copy = await self.copies.open(segment)
            times = await self.copies.times(copy)
            source = self.copies.source(copy)
            view = reading(copy, source.file, times=times)
            at = start
            while True:
                batch = await _loading(source, partial(view.batch_at_time, timestamp, at))
                if batch is None:
                    return None
                found = await self._run(record_at_time(batch, timestamp, at))
                if found is not None:
                    return found
                at = parse_header(batch).next_offset

        return await self._with_copy(partition, epochs, start, use)

    async def _run(self, finding: Finding) -> Found | None:
        while True:
            try:
                task = next(finding)
            except StopIteration as end:
                found: Found | None = end.value
                return found
            if task is None:
                await asyncio.sleep(0)
            else:
                await self.copies.offload(task.run)

    # --- the way to a copy ---

    async def _with_copy(
        self,
        partition: TieredPartition,
        epochs: EpochCache,
        offset: int,
        use: Callable[[RemoteSegment, RemoteSegment], Awaitable[T]],
    ) -> T:
        """Use the copy that holds `offset`, which `use` is given as this lineage has it and as a whole: again
        once it was fetched anew, if its bytes are not what was copied, and another one if there is one."""
        failed: set[UUID] = set()
        for _ in range(COPIES_TRIED):
            segment = self._find(partition, epochs, offset)
            if segment is None:
                await self._catch_up(partition)
                segment = self._find(partition, epochs, offset)
            if segment is None:
                raise self._not_available(f"no copy of offset {offset} of {partition} is known")
            self._note_use(segment)
            try:
                return await use(segment, self._whole(segment))
            except (StoreError, OSError) as error:
                raise self._not_available(f"copy {segment.id} could not be read: {error}") from error
            except _DAMAGE as error:
                self.damaged += 1
                await self.copies.forget(segment.id)
                if segment.id in failed:
                    self.refused += 1
                    self._tell(segment, error)
                    raise KafkaError(ErrorCode.kafka_storage_error, f"copy {segment.id}: {error}") from error
                failed.add(segment.id)
            except KafkaError:
                raise
            except Exception as error:  # a storage manager of others may raise anything
                self._tell(segment, error, is_damaged=False)
                raise self._not_available(f"copy {segment.id} could not be read: {error!r}") from error
        raise self._not_available(f"the copies of offset {offset} of {partition} change while they are read")

    def _find(self, partition: TieredPartition, epochs: EpochCache, offset: int) -> RemoteSegment | None:
        """A copy that is known is read although the fold may be behind: its bytes are this lineage's, and
        they never change."""
        fold = self._metadata.fold(partition)
        return None if fold is None else fold.find(offset, epochs)

    def _whole(self, found: RemoteSegment) -> RemoteSegment:
        fold = self._metadata.fold(found.partition)
        return (None if fold is None else fold.segment(found.id)) or found

    async def _catch_up(self, partition: TieredPartition) -> None:
        """Wait until the fold holds what there was when this broker's role began."""
        if self._metadata.is_caught_up(partition):
            return
        try:
            async with asyncio.timeout(self._barrier_wait_s()):
                await self._metadata.wait_caught_up(partition)
        except TimeoutError:
            raise self._not_available(f"the metadata of {partition} is not read up to its end yet") from None

    def _not_available(self, message: str) -> KafkaError:
        self.unavailable += 1
        return KafkaError(ErrorCode.offset_not_available, message)

    def _tell(self, segment: RemoteSegment, error: Exception, *, is_damaged: bool = True) -> None:
        """Log it once for each copy: consumers ask again and again."""
        if segment.id in self._told:
            return
        self._told[segment.id] = None
        if len(self._told) > _TOLD_MAX:
            self._told.popitem(last=False)
        if not is_damaged:
            logger.error(
                "the storage manager failed on the copy %s of %s-%d, which cannot be read for now",
                segment.id,
                segment.topic,
                segment.partition.number,
                exc_info=error,
            )
            return
        logger.error(
            "the copy %s of %s-%d [%d, %d) in the tier cannot be read, its partition answers "
            "KAFKA_STORAGE_ERROR there: %s; look at it with `tidewal tier check %s`",
            segment.id,
            segment.topic,
            segment.partition.number,
            segment.base_offset,
            segment.end_offset,
            error,
            segment.topic,
        )

    # --- copies that go ---

    def _note_use(self, segment: RemoteSegment) -> None:
        self._used[segment.id] = segment.partition
        self._used.move_to_end(segment.id)
        self._used_of.setdefault(segment.partition, set()).add(segment.id)
        if len(self._used) > _USED_MAX:
            self._unused(next(iter(self._used)))

    def _unused(self, segment_id: UUID) -> None:
        partition = self._used.pop(segment_id)
        others = self._used_of[partition]
        others.discard(segment_id)
        if not others:
            del self._used_of[partition]

    def _changed(self, partition: TieredPartition) -> None:
        """Look soon, once for all changes until then: a partition may have thousands of copies."""
        if partition in self._used_of:
            self._to_look_at[partition] = None
            if not self._is_looking:
                self._is_looking = True
                self._spawn(self._forget_gone())

    async def _forget_gone(self) -> None:
        """Drop what is kept of copies that are not read any more, in slices."""
        try:
            while self._to_look_at:
                partition = next(iter(self._to_look_at))
                del self._to_look_at[partition]
                for number, segment_id in enumerate(list(self._used_of.get(partition, ()))):
                    if number % _TURN == 0:
                        await asyncio.sleep(0)
                    fold = self._metadata.fold(partition)
                    segment = None if fold is None else fold.segment(segment_id)
                    is_read = segment is not None and segment.state is SegmentState.COPY_FINISHED
                    if not is_read and segment_id in self._used:
                        self._unused(segment_id)
                        await self.copies.forget(segment_id)
        finally:
            self._is_looking = False


async def _loading(source: Source, look: Callable[[], T]) -> T:
    """Do what reads in the source, as often as it takes until all that it reads is there."""
    while True:
        try:
            return look()
        except Missing as missing:
            await source.load(missing.first, missing.stop)


_DAMAGE: Final = (BadObject, NoSuchObject, CorruptBatch, BadIndex)
