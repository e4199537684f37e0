"""The bytes and indexes of copied segments that are being read, proven before anybody sees them.

Owns: which copies are open (indexes decoded, descriptor, where readers go on), proving data by the checksums
of the copy's header, the two ways to its bytes: chunks in memory, or the object's own file where the store is
a directory of this machine. Does not own: which copy holds an offset (reader), keeping chunks and index files
(chunks, index_cache), fetching (storage_manager). Invariant: no byte of a copy is looked at or served before
the checksum of its block was found right; open copies are bounded by number and bytes.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from protocol.checksum import Buffer, crc32c
from remote.bad_object import BadObject
from remote.cold.chunks import RUN_CHUNKS_MAX, ChunkCache, ChunkKey, Missing, PinnedChunks
from remote.cold.index_cache import IndexCache, Offload
from remote.cold.rebuild import Rebuilt
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import (
    IndexKind,
    PieceManager,
    SegmentHeader,
)
from remote.store.object_store import NoSuchObject
from storage.files import File, Files
from storage.index import ABORTED_SIZE, AbortedTxn, OffsetIndex, TimeIndex, decode_aborted
from storage.log import ReadableFile
from storage.segment import Segment

OPEN_BYTES: Final = 16 << 20
OPEN_MAX: Final = 128
"""Of a store that is a directory each open copy holds a descriptor."""
HINTS_MAX: Final = 256
PROVEN_AT_ONCE: Final = 8 << 20
FIRST_RUN_CHUNKS: Final = 2
"""What is read ahead of a reader that seems to go on; twice as much each time that it does."""
_ABORTED_IN_A_TURN: Final = 1000
"""Entries of a transaction index, about 1 ms of the loop."""
_PROVEN_IN_A_TURN: Final = 2
"""Chunks, about 0.2 ms of the loop."""
_OBJECT_BYTES: Final = 200
"""What a decoded entry of a transaction index takes, roughly."""
_SUMS_HEAD: Final = Struct(">QI")


class BlockSums:
    """The checksum of each block of a copy's data."""

    __slots__ = ("block_bytes", "crcs", "size_bytes")

    def __init__(self, *, size_bytes: int, block_bytes: int, crcs: Sequence[int]) -> None:
        if block_bytes <= 0 or len(crcs) != -(-size_bytes // block_bytes):
            raise BadObject(f"{len(crcs)} checksums of {block_bytes} bytes each for {size_bytes} bytes")
        self.size_bytes = size_bytes
        self.block_bytes = block_bytes
        self.crcs = array("I", crcs)

    def check(self, start: int, data: Buffer) -> None:
        """Prove whole blocks from `start` on; BadObject."""
        first, rest = divmod(start, self.block_bytes)
        if rest or ((start + len(data)) % self.block_bytes and start + len(data) != self.size_bytes):
            raise BadObject(f"{len(data)} bytes at {start} are no whole blocks of {self.block_bytes}")
        view = memoryview(data)
        for at in range(0, len(data), self.block_bytes):
            if crc32c(view[at : at + self.block_bytes]) != self.crcs[first + at // self.block_bytes]:
                raise BadObject(f"other bytes at {start + at} than were copied")

    def encode(self) -> bytes:
        crcs = b"".join(crc.to_bytes(4, "big") for crc in self.crcs)
        return _SUMS_HEAD.pack(self.size_bytes, self.block_bytes) + crcs

    @staticmethod
    def decode(data: bytes) -> BlockSums:
        if len(data) < _SUMS_HEAD.size or (len(data) - _SUMS_HEAD.size) % 4:
            raise BadObject(f"checksums of {len(data)} bytes")
        size_bytes, block_bytes = _SUMS_HEAD.unpack_from(data)
        crcs = [int.from_bytes(data[at : at + 4], "big") for at in range(_SUMS_HEAD.size, len(data), 4)]
        return BlockSums(size_bytes=size_bytes, block_bytes=block_bytes, crcs=crcs)


class Hint(NamedTuple):
    """Where a reader stopped, and will go on."""

    position: int
    run: int
    """How many chunks are then read ahead in one go."""


class OpenCopy:
    """One copy that is read, perhaps by many."""

    __slots__ = ("aborted", "file", "hints", "offsets", "proven", "proving", "segment", "sums", "times")

    def __init__(
        self, segment: RemoteSegment, sums: BlockSums, offsets: OffsetIndex, file: File | None
    ) -> None:
        self.segment = segment
        self.sums = sums
        self.offsets = offsets
        self.times: TimeIndex | None = None
        self.aborted: list[AbortedTxn] | None = None
        self.file = file
        """The object itself, where it is a file of this machine."""
        self.proven: set[int] = set()
        """Which chunks of that file were proven."""
        self.proving: dict[int, asyncio.Event] = {}
        """Which are being proven; it is set when that has ended."""
        self.hints: OrderedDict[int, Hint] = OrderedDict()
        """By offset."""

    def __repr__(self) -> str:
        segment = self.segment
        return f"OpenCopy({segment.id} [{segment.base_offset}, {segment.end_offset}))"

    @property
    def size_bytes(self) -> int:
        times = 0 if self.times is None else 2 * len(self.times)
        aborted = 0 if self.aborted is None else len(self.aborted)
        return 8 * (len(self.offsets) + times) + 4 * len(self.sums.crcs) + _OBJECT_BYTES * (aborted + 2)

    def remember(self, offset: int, position: int, run: int = 0) -> None:
        """Note that a reader stopped there who had `run` chunks read ahead, 0 for none."""
        hints = self.hints
        hints.pop(offset, None)
        if len(hints) >= HINTS_MAX:
            hints.popitem(last=False)
        hints[offset] = Hint(position, min(2 * run, RUN_CHUNKS_MAX) or FIRST_RUN_CHUNKS)


class Source(Protocol):
    """The bytes of one copy for one reader. `file` raises Missing for what `load` has not brought yet."""

    @property
    def file(self) -> ReadableFile: ...
    async def load(self, first: int, stop: int, *, run: int = 0) -> None:
        """Bring the chunks [first, stop), proven; if the reader will go on there, those behind too, `run` in
        one go."""

    def held(self, start: int, end: int) -> ReadableFile:
        """Return the file from which the bytes [start, end), which are loaded, are sent."""


class OpenCopies:
    def __init__(
        self,
        *,
        storage: PieceManager,
        chunks: ChunkCache,
        indexes: IndexCache,
        files: Files,
        offload: Offload,
        bytes_max: int = OPEN_BYTES,
        copies_max: int = OPEN_MAX,
    ) -> None:
        self._storage = storage
        self.chunks = chunks
        self.indexes = indexes
        self._files = files
        self.offload = offload
        self._bytes_max = bytes_max
        self._copies_max = copies_max
        self._copies: OrderedDict[UUID, OpenCopy] = OrderedDict()
        """Least recently used first."""

    def __repr__(self) -> str:
        return f"<OpenCopies {len(self._copies)} open, {self.chunks!r}>"

    def __len__(self) -> int:
        return len(self._copies)

    def __contains__(self, segment_id: UUID) -> bool:
        return segment_id in self._copies

    def get(self, segment_id: UUID) -> OpenCopy | None:
        """Return the copy if it is open."""
        return self._copies.get(segment_id)

    @property
    def chunk_bytes(self) -> int:
        return self.chunks.chunk_bytes

    async def start(self) -> None:
        await self.indexes.open()

    @property
    def waiting(self) -> int:
        return self.chunks.waiting

    @property
    def pinned_bytes(self) -> int:
        """What is held in memory for those it is being read for or sent to."""
        return self.chunks.pinned_bytes

    async def open(self, segment: RemoteSegment) -> OpenCopy:
        """Return the copy with its offset index; StoreError, NoSuchObject, BadObject, BadIndex."""
        copy = self._copies.get(segment.id)
        if copy is None:
            sums = BlockSums.decode(await self.indexes.get(segment.id, _SUMS, lambda: self._sums(segment)))
            if sums.size_bytes != segment.size_bytes:
                raise BadObject(f"{sums.size_bytes} bytes where {segment.size_bytes} were copied")
            data = await self._index(segment, IndexKind.OFFSET)
            offsets = OffsetIndex.decode(data, segment.size_bytes)
            opened = OpenCopy(segment, sums, offsets, await self._local_file(segment))
            copy = self._copies.setdefault(segment.id, opened)
            self._close_some(but=copy)
        self._copies.move_to_end(segment.id)
        return copy

    async def times(self, copy: OpenCopy) -> TimeIndex:
        if copy.times is None:
            copy.times = TimeIndex.decode(await self._index(copy.segment, IndexKind.TIMESTAMP))
            self._close_some(but=copy)
        return copy.times

    async def aborted(self, copy: OpenCopy) -> list[AbortedTxn]:
        if copy.aborted is None:
            data = await self._index(copy.segment, IndexKind.TRANSACTION)
            found: list[AbortedTxn] = []
            step = _ABORTED_IN_A_TURN * ABORTED_SIZE
            for at in range(0, len(data), step):
                if at:
                    await asyncio.sleep(0)
                found += decode_aborted(data[at : at + step])
            copy.aborted = found
            self._close_some(but=copy)
        return copy.aborted

    def source(self, copy: OpenCopy) -> Source:
        if copy.file is not None:
            return LocalSource(copy, copy.file, self.chunks.chunk_bytes, self.offload)
        return ChunkedSource(copy, self._storage, self.chunks)

    def keep_rebuilt(self, segment: RemoteSegment, rebuilt: Rebuilt, _lost: Exception) -> None:
        """Keep what was made of a copy's data, so that the data need not be read for it again."""
        self.indexes.put(segment.id, _SUMS, _sums_of(rebuilt.header).encode())
        for kind, name in _INDEX_NAMES.items():
            if kind in rebuilt.indexes:
                self.indexes.put(segment.id, name, rebuilt.indexes[kind])

    async def forget(self, segment_id: UUID) -> None:
        """Drop everything that is kept of a copy: it is gone, or it is to be fetched again."""
        self._copies.pop(segment_id, None)
        self.chunks.drop(segment_id)
        await self.indexes.forget(segment_id)

    async def _sums(self, segment: RemoteSegment) -> bytes:
        return _sums_of(await self._storage.fetch_header(segment)).encode()

    async def _index(self, segment: RemoteSegment, kind: IndexKind) -> bytes:
        return await self.indexes.get(
            segment.id, _INDEX_NAMES[kind], lambda: self._storage.fetch_index(segment, kind)
        )

    async def _local_file(self, segment: RemoteSegment) -> File | None:
        path = self._storage.local_path(segment)
        if path is None:
            return None
        try:
            file = await self.offload(lambda: self._files.open(path))
            size = file.size()
        except FileNotFoundError:
            raise NoSuchObject(path) from None
        if size != segment.size_bytes:
            raise BadObject(f"{path} has {size} bytes where {segment.size_bytes} were copied")
        return file

    def _close_some(self, *, but: OpenCopy) -> None:
        total = sum(copy.size_bytes for copy in self._copies.values())
        for segment_id, copy in list(self._copies.items()):
            if total <= self._bytes_max and len(self._copies) <= self._copies_max:
                return
            if copy is not but:
                total -= copy.size_bytes
                del self._copies[segment_id]


class ChunkedSource:
    """Bytes that come from the store by chunks."""

    def __init__(self, copy: OpenCopy, storage: PieceManager, chunks: ChunkCache) -> None:
        self._copy = copy
        self._load = _Loader(copy, storage, chunks.chunk_bytes)
        self.chunks = chunks
        self.file = PinnedChunks(chunks, str(copy.segment.id))

    async def load(self, first: int, stop: int, *, run: int = 0) -> None:
        chunks, segment_id = self.chunks, self._copy.segment.id
        missing = self._missing(first, stop)
        if missing:
            chunks.begin(segment_id, missing[0], missing[-1] + 1, self._load)
        self._read_on(stop, run)
        while missing:
            for number in missing:
                chunk = await chunks.get(ChunkKey(segment_id, number), self._load)
                self.file.add(number, chunk)
            missing = self._missing(first, stop)  # a slow store: what came first may have been let go of

    def _missing(self, first: int, stop: int) -> list[int]:
        return [number for number in range(first, stop) if number not in self.file]

    def held(self, start: int, end: int) -> ReadableFile:
        chunk_bytes = self.chunks.chunk_bytes
        self.file.keep(start // chunk_bytes, -(-end // chunk_bytes))
        return self.file

    def _read_on(self, at: int, run: int) -> None:
        """Begin with the next run while the reader still has half of one before it."""
        chunks, segment_id = self.chunks, self._copy.segment.id
        last = -(-self._copy.segment.size_bytes // chunks.chunk_bytes)
        near = min(at + max(FIRST_RUN_CHUNKS, run // 2), last)
        if not run or (first := chunks.first_missing(segment_id, at, near)) == near:
            return
        end = min(first + run, last)
        while first < near and (stop := chunks.get_ahead(segment_id, first, end, self._load)) > first:
            first = stop


class _Loader:
    """Fetches and proves chunks. It knows nothing of who wants them, whose memory it would keep held."""

    __slots__ = ("_chunk_bytes", "_copy", "_storage")

    def __init__(self, copy: OpenCopy, storage: PieceManager, chunk_bytes: int) -> None:
        self._copy = copy
        self._storage = storage
        self._chunk_bytes = chunk_bytes

    async def __call__(self, first: int, stop: int) -> Sequence[Buffer | Exception]:
        """One that is damaged is no reason to do without the others."""
        segment, size = self._copy.segment, self._chunk_bytes
        end = min(stop * size, segment.size_bytes)
        try:
            pieces = await self._storage.fetch_pieces(segment, first * size, end, piece_bytes=size)
        except BadObject as error:
            if stop - first == 1:
                return (error,)
            return [(await self(number, number + 1))[0] for number in range(first, stop)]
        found: list[Buffer | Exception] = []
        for number, piece in zip(range(first, stop), pieces, strict=True):
            if number > first and (number - first) % _PROVEN_IN_A_TURN == 0:
                await asyncio.sleep(0)
            try:
                self._copy.sums.check(number * size, piece)
            except BadObject as error:
                found.append(error)
            else:
                found.append(piece)
        return found


class LocalSource:
    """Bytes of a file on this machine: read where they are, and sent from there."""

    def __init__(self, copy: OpenCopy, file: File, chunk_bytes: int, offload: Offload) -> None:
        self._copy = copy
        self._local = file
        self._chunk_bytes = chunk_bytes
        self._offload = offload
        self.file = ProvenFile(file, copy.proven, chunk_bytes)

    async def load(self, first: int, stop: int, *, run: int = 0) -> None:
        copy = self._copy
        most, last = (
            max(1, PROVEN_AT_ONCE // self._chunk_bytes),
            -(-copy.segment.size_bytes // self._chunk_bytes),
        )
        at = first
        while at < stop:
            if at in copy.proven:
                at += 1
            elif at in copy.proving:
                await copy.proving[at].wait()
            else:
                # in one go with what comes next, which also brings it into memory off the loop
                end = min(at + most, last if run else stop)
                known = (
                    number for number in range(at + 1, end) if number in copy.proven or number in copy.proving
                )
                await self._prove(range(at, next(known, end)))

    async def _prove(self, numbers: range) -> None:
        """Prove chunks; who wants one of them meanwhile waits, and looks again."""
        copy, done = self._copy, asyncio.Event()
        start = numbers[0] * self._chunk_bytes
        end = min((numbers[-1] + 1) * self._chunk_bytes, copy.segment.size_bytes)

        def prove() -> None:
            data = self._local.pread(end - start, start)
            if len(data) != end - start:
                raise BadObject(f"{self._local.path}: {len(data)} of the bytes {start} to {end}")
            copy.sums.check(start, data)

        copy.proving.update(dict.fromkeys(numbers, done))
        try:
            await self._offload(prove)
            copy.proven.update(numbers)
        finally:
            for number in numbers:
                del copy.proving[number]
            done.set()

    def held(self, start: int, end: int) -> ReadableFile:
        return self._local


class ProvenFile:
    """A file of which only what was proven can be read."""

    __slots__ = ("_chunk_bytes", "_file", "_proven", "path")

    def __init__(self, file: File, proven: set[int], chunk_bytes: int) -> None:
        self.path = file.path
        self._file = file
        self._proven = proven
        self._chunk_bytes = chunk_bytes

    def fileno(self) -> int:
        return self._file.fileno()

    def pread(self, size: int, offset: int) -> bytes:
        first, stop = offset // self._chunk_bytes, -(-(offset + size) // self._chunk_bytes)
        if not self._proven.issuperset(range(first, stop)):
            raise Missing(first, stop)
        return self._file.pread(size, offset)

    def preadv(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)


def reading(copy: OpenCopy, file: ReadableFile, *, times: TimeIndex | None = None) -> Segment:
    """Return the copy as a segment to look up and read in."""
    segment = copy.segment
    return Segment.over(
        file,
        segment.base_offset,
        size=segment.size_bytes,
        offsets=copy.offsets,
        times=times,
        max_timestamp=segment.max_timestamp_ms,
    )


def _sums_of(header: SegmentHeader) -> BlockSums:
    return BlockSums(size_bytes=header.size_bytes, block_bytes=header.block_bytes, crcs=header.block_crcs)


_SUMS: Final = "sums"
_INDEX_NAMES: Final = {
    IndexKind.OFFSET: "index",
    IndexKind.TIMESTAMP: "timeindex",
    IndexKind.TRANSACTION: "txnindex",
}
"""As a segment's files are called."""
