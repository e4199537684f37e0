"""Copies of real segments in a real store, and a reader of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from protocol.checksum import crc32c
from protocol.records import BatchHeader, build_batch, iter_batches, parse_header, stamp
from remote.cold.chunks import ChunkCache
from remote.cold.copies import OpenCopies
from remote.cold.index_cache import IndexCache
from remote.cold.object_tier import ObjectTier
from remote.cold.reader import RemoteReader
from remote.cold.segments import RemoteSegment, SegmentState, TieredPartition
from remote.cold.storage_manager import SegmentData
from remote.store.object_store import ObjectStore
from storage.epochs import EpochCache
from storage.files import DiskFiles
from storage.index import AbortedTxn
from storage.segment import OFFSET_INDEX, TIME_INDEX, Segment

T = TypeVar("T")

PARTITION = TieredPartition(UUID(int=77), 3)
START_MS = 1_700_000_000_000


async def inline(call: Callable[[], T]) -> T:
    await asyncio.sleep(0)
    return call()


class Tasks:
    """Keeps what is spawned, and tells of what failed."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    async def finish(self) -> None:
        while waiting := [task for task in self.tasks if not task.done()]:
            await asyncio.wait(waiting)
        for task in self.tasks:
            task.result()


class Known:
    """What is known of the copies: the first of those added that has an offset counts."""

    def __init__(self) -> None:
        self.on_change: list[Callable[[TieredPartition], None]] = []
        self.segments: list[RemoteSegment] = []
        self.caught_up = asyncio.Event()
        self.caught_up.set()

    def add(self, segment: RemoteSegment) -> None:
        self.segments.append(segment)
        self.changed()

    def remove(self, segment: RemoteSegment) -> None:
        self.segments.remove(segment)
        self.changed()

    def changed(self) -> None:
        for told in self.on_change:
            told(PARTITION)

    def fold(self, partition: TieredPartition) -> Known | None:
        return self if partition == PARTITION and self.segments else None

    def is_caught_up(self, _: TieredPartition) -> bool:
        return self.caught_up.is_set()

    async def wait_caught_up(self, _: TieredPartition) -> None:
        await self.caught_up.wait()

    def segment(self, segment_id: UUID) -> RemoteSegment | None:
        return next((each for each in self.segments if each.id == segment_id), None)

    def find(self, offset: int, _: EpochCache) -> RemoteSegment | None:
        return next((each for each in self.segments if each.base_offset <= offset < each.end_offset), None)

    def aborting(self, start: int) -> Sequence[RemoteSegment]:
        having = [each for each in self.segments if each.has_aborted and each.end_offset > start]
        return sorted(having, key=lambda each: each.base_offset)


class Unlimited:
    def is_spent(self) -> bool:
        return False

    def note(self, size_bytes: int) -> None:
        pass

    def opens_in(self) -> float:
        return 0.0

    def note_throttled(self) -> None:
        pass


class Tier:
    """A log's closed segments, copied; its batches are kept to compare with."""

    def __init__(
        self,
        store: ObjectStore,
        directory: Path,
        *,
        chunk_bytes: int = 1 << 20,
        cache_bytes: int = 64 << 20,
        parallel: int = 10,
        barrier_wait_s: float = 5.0,
    ) -> None:
        self.store = store
        self.directory = directory
        self.files = DiskFiles()
        self.spawn = Tasks()
        self.known = Known()
        self.storage = ObjectTier(store)
        self.chunks = ChunkCache(
            self.spawn, parallel=lambda: parallel, chunk_bytes=chunk_bytes, bytes_max=cache_bytes
        )
        self.indexes = IndexCache(
            files=self.files,
            directory=str(directory / "remote-log-index-cache"),
            bytes_max=lambda: 1 << 20,
            offload=inline,
            spawn=self.spawn,
        )
        self.copies = OpenCopies(
            storage=self.storage,
            chunks=self.chunks,
            indexes=self.indexes,
            files=self.files,
            offload=inline,
        )
        self.reader = RemoteReader(
            metadata=self.known,
            copies=self.copies,
            quota=Unlimited(),
            spawn=self.spawn,
            barrier_wait_s=lambda: barrier_wait_s,
        )
        self.batches: list[bytes] = []
        self.end = 0
        self._ids = 0

    async def copy(
        self,
        batches: Sequence[bytes],
        *,
        end: int | None = None,
        aborted: Sequence[AbortedTxn] = (),
        index_interval: int = 200,
        block_bytes: int | None = None,
    ) -> RemoteSegment:
        """Copy a segment of these batches behind what was copied, their offsets as they are if they have
        any. The segment ends at `end`, by default with its last batch."""
        base = self.end
        path = self.directory / f"made{self._ids}"
        path.mkdir()
        segment = Segment.create(self.files, str(path), base, now_ms=START_MS)
        stamped = []
        for batch in batches:
            data = bytearray(batch)
            header = parse_header(data, 0)
            if header.base_offset == 0:
                stamp(data, 0, base_offset=self.end, leader_epoch=0)
                header = parse_header(data, 0)
            segment.appended(len(data), header.last_offset, header.max_timestamp, index_interval)
            segment.file.writev([data])
            stamped.append(bytes(data))
            self.end = header.next_offset
        segment.seal()
        self.batches += stamped
        self.end = self.end if end is None else end
        self._ids += 1
        remote = RemoteSegment(
            partition=PARTITION,
            topic="t",
            id=UUID(int=1000 + self._ids),
            base_offset=base,
            end_offset=self.end,
            broker_id=1,
            max_timestamp_ms=segment.largest_timestamp,
            event_timestamp_ms=START_MS,
            size_bytes=segment.size,
            epochs=((0, base),),
            has_aborted=bool(aborted),
            state=SegmentState.COPY_FINISHED,
        )
        block_bytes = block_bytes or self.chunks.chunk_bytes
        whole = b"".join(stamped)

        async def read(start: int, stop: int) -> bytes:
            return whole[start:stop]

        data_of = SegmentData(
            size=len(whole),
            read=read,
            offset_index=self.files.read(segment.path(OFFSET_INDEX)),
            time_index=self.files.read(segment.path(TIME_INDEX)),
            txn_index=b"".join(txn.encode() for txn in aborted),
            producers=b"",
            epochs_until_end=((0, 0),),
            batch_count=len(stamped),
            crc32c=crc32c(whole),
            block_crcs=tuple(
                crc32c(whole[at : at + block_bytes]) for at in range(0, len(whole), block_bytes)
            ),
            block_bytes=block_bytes,
        )
        await self.storage.copy_segment(remote, data_of, cluster_id="c", leader_epoch=0, pace=_at_once)
        self.known.add(remote)
        return remote

    async def read(
        self, offset: int, max_bytes: int = 1 << 20, *, bound: int | None = None, min_one: bool = True
    ) -> Any:
        return await self.reader.read(
            PARTITION,
            EPOCHS,
            offset,
            max_bytes,
            bound=self.end if bound is None else bound,
            min_one=min_one,
        )

    def key(self, segment: RemoteSegment, suffix: str) -> str:
        from remote.cold.object_tier import key_of
        from remote.keys import SegmentPart

        return key_of(segment, SegmentPart(suffix))


EPOCHS = EpochCache([(0, 0)])


async def _at_once(_: int) -> None:
    pass


def batch(
    count: int = 1,
    *,
    value_bytes: int = 30,
    timestamp: int = START_MS,
    base_offset: int = 0,
    step_ms: int = 1,
) -> bytes:
    data = build_batch(
        [(b"k", b"v" * value_bytes, (), timestamp + at * step_ms) for at in range(count)],
    )
    if base_offset:
        stamp(data, 0, base_offset=base_offset, leader_epoch=0)
    return bytes(data)


def headers_of(records: bytes) -> list[BatchHeader]:
    return [header for _, header in iter_batches(records)]


def again(segment: RemoteSegment, number: int) -> RemoteSegment:
    """The same segment as another copy."""
    return replace(segment, id=UUID(int=number))
