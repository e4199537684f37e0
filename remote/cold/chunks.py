"""What was read of copied segments, in memory: pieces of 1 MiB that all readers share.

Owns: which chunks are kept, which are being loaded and which of those may start, the bytes of all of them,
and the pins of those that are being served. Does not own: how a chunk is fetched and proven (the load that is
passed in), what is read ahead (reader). Invariant: what is kept and what is being loaded is no more than
`bytes_max`, except for what slow clients hold beyond half of it; a chunk that is being served is never
dropped; a chunk is loaded once, however many want it, and stays although nobody waits any more: a store
slower than every reader's patience still gets them on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple
from uuid import UUID

from remote.cold.flights import Flights, Spawn

CHUNK_BYTES: Final = 1 << 20
CACHE_BYTES: Final = 64 << 20
LOAD_DEADLINE_S: Final = 60.0


class ChunkKey(NamedTuple):
    segment_id: UUID
    number: int


class Missing(Exception):
    """Bytes were asked for that are not at hand: the chunks [first, stop) are to be loaded first."""

    def __init__(self, first: int, stop: int) -> None:
        super().__init__(f"chunks {first} to {stop}")
        self.first = first
        self.stop = stop


class Chunk:
    __slots__ = ("data", "is_unread", "pins")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pins = 0
        self.is_unread = True


class ChunkCache:
    def __init__(
        self,
        spawn: Spawn,
        *,
        parallel: Callable[[], int],
        bytes_max: int = CACHE_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        deadline_s: float = LOAD_DEADLINE_S,
    ) -> None:
        """At most `parallel()` chunks are loaded at a time."""
        self.chunk_bytes = chunk_bytes
        self._parallel = parallel
        self._bytes_max = bytes_max
        self._flights: Flights[ChunkKey, Chunk] = Flights(spawn, deadline_s=deadline_s)
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        """Least recently used first."""
        self._turns: deque[asyncio.Future[None]] = deque()
        """Loads that wait until they may start."""
        self._loading = 0
        self.size_bytes = 0
        """Of the chunks kept, and of each that is being loaded."""
        self.pinned_bytes = 0
        self._unread_bytes = 0
        self.hits = 0
        self.misses = 0
        self.read_ahead = 0
        self.evictions = 0

    def __repr__(self) -> str:
        return (
            f"<ChunkCache {len(self._chunks)} chunks, {self.size_bytes} bytes, {self.pinned_bytes} pinned, "
            f"{self._loading} loading, {len(self._turns)} to load>"
        )

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    @property
    def parallel(self) -> int:
        return max(1, self._parallel())

    @property
    def loading(self) -> int:
        return self._loading

    @property
    def waiting(self) -> int:
        """How many loads have not started yet."""
        return len(self._turns)

    async def get(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> Chunk:
        chunk = self._chunks.get(key)
        if chunk is not None:
            self.hits += 1
            self._chunks.move_to_end(key)
        else:
            self.misses += 1
            chunk = await self._flights.join(key, lambda: self._load(key, load))
        if chunk.is_unread:
            chunk.is_unread = False
            self._unread_bytes -= len(chunk.data)
        return chunk

    def begin(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> None:
        """Load a chunk that `get` is about to wait for."""
        if key not in self._chunks:
            self._flights.start(key, lambda: self._load(key, load))

    def get_ahead(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> bool:
        """Start to load a chunk that will be wanted soon, if nobody waits for one that is wanted now and what
        was read ahead is less than half of all. Return whether it is there or on its way."""
        if key in self._chunks or key in self._flights:
            return True
        ahead = self._unread_bytes + (self._loading + 1) * self.chunk_bytes
        if self._turns or ahead > self._bytes_max // 2 or not self._may_start():
            return False
        self.read_ahead += 1
        self._flights.start(key, lambda: self._load(key, load))
        return True

    def drop(self, segment_id: UUID) -> None:
        """Forget the chunks of a segment, but for those that are being served."""
        for key in [key for key, chunk in self._chunks.items() if key.segment_id == segment_id]:
            if not self._chunks[key].pins:
                self._evict(key)

    async def _load(self, key: ChunkKey, load: Callable[[], Awaitable[bytes]]) -> Chunk:
        await self._turn()
        try:
            data = await load()
        finally:
            self._loading -= 1
            self.size_bytes -= self.chunk_bytes
            self._start_more()
        chunk = Chunk(data)
        self._chunks[key] = chunk
        self.size_bytes += len(data)
        self._unread_bytes += len(data)
        return chunk

    async def _turn(self) -> None:
        """Wait for a place among those that are loading, and for room."""
        if self._turns or not self._may_start():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back()
                else:
                    self._turns.remove(turn)
                raise
        else:
            self._take()

    def _take(self) -> None:
        self._loading += 1
        self.size_bytes += self.chunk_bytes

    def _give_back(self) -> None:
        self._loading -= 1
        self.size_bytes -= self.chunk_bytes
        self._start_more()

    def _start_more(self) -> None:
        while self._turns and self._may_start():
            self._take()
            self._turns.popleft().set_result(None)

    def _may_start(self) -> bool:
        """Whether one more may be loaded; makes the room for it."""
        if self._loading >= self.parallel:
            return False
        limit = self._bytes_max + max(0, self.pinned_bytes - self._bytes_max // 2) - self.chunk_bytes
        if self.size_bytes > limit:
            self._evict_to(limit)
        return self.size_bytes <= limit

    def _evict_to(self, limit: int) -> None:
        unpinned: Iterable[ChunkKey] = [key for key, chunk in self._chunks.items() if not chunk.pins]
        for key in unpinned:
            if self.size_bytes <= limit:
                return
            self._evict(key)

    def _evict(self, key: ChunkKey) -> None:
        chunk = self._chunks.pop(key)
        self.size_bytes -= len(chunk.data)
        self.evictions += 1
        if chunk.is_unread:
            self._unread_bytes -= len(chunk.data)

    # --- serving ---

    def pin(self, chunk: Chunk) -> None:
        if not chunk.pins:
            self.pinned_bytes += len(chunk.data)
        chunk.pins += 1

    def unpin(self, chunk: Chunk) -> None:
        chunk.pins -= 1
        if not chunk.pins:
            self.pinned_bytes -= len(chunk.data)
            self._start_more()


class PinnedChunks:
    """A file of which some chunks are in memory: what one reader reads and one client is sent. They stay in
    the cache as long as it lives."""

    __slots__ = ("_cache", "_chunks", "path")

    def __init__(self, cache: ChunkCache, path: str) -> None:
        self.path = path
        self._cache = cache
        self._chunks: dict[int, Chunk] = {}

    def __repr__(self) -> str:
        return f"PinnedChunks({self.path!r}, {sorted(self._chunks)})"

    def __contains__(self, number: int) -> bool:
        return number in self._chunks

    def add(self, number: int, chunk: Chunk) -> None:
        if number not in self._chunks:
            self._cache.pin(chunk)
            self._chunks[number] = chunk

    def keep(self, first: int, stop: int) -> None:
        """Let go of all chunks but [first, stop)."""
        for number in [number for number in self._chunks if not first <= number < stop]:
            self._cache.unpin(self._chunks.pop(number))

    def fileno(self) -> int:
        """-1: there is no descriptor to send from."""
        return -1

    def pread(self, size: int, offset: int) -> bytes:
        chunk_bytes = self._cache.chunk_bytes
        first, at = divmod(offset, chunk_bytes)
        if at + size <= chunk_bytes and first in self._chunks:
            return self._chunks[first].data[at : at + size]
        stop = -(-(offset + size) // chunk_bytes)
        if any(number not in self._chunks for number in range(first, stop)):
            raise Missing(first, stop)
        pieces = []
        for number in range(first, stop):
            begin = max(0, offset - number * chunk_bytes)
            pieces.append(self._chunks[number].data[begin : offset + size - number * chunk_bytes])
        return b"".join(pieces)

    def preadv(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def __del__(self) -> None:
        self.keep(0, 0)
