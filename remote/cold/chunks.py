"""What was read of copied segments, in memory: pieces of 1 MiB that all readers share.

Owns: which chunks are kept, which are being loaded and which of those may start, the bytes of all of them,
and the pins of those that are being served. Does not own: how a chunk is fetched and proven (the load that is
passed in), how far is read ahead (copies). Invariant: what is kept and what is being loaded is no more than
`bytes_max`, except for what slow clients hold beyond half of it; a chunk that is being served is never
dropped; a chunk is loaded once, however many want it, and stays although nobody waits any more: a store
slower than every reader's patience still gets them on.

Chunks in a row are asked for in one go, as many as the store gives in half a second: of a GB that is read
from MinIO in ranges of 8 MiB it spends 0.6 s of CPU, in ranges of 1 MiB 1.3 s. What is read ahead takes no
more than half of the places and a quarter of the room that is left for it, so the first readers get long
runs and a hundred get a chunk each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakSet

from protocol.checksum import Buffer
from remote.cold.flights import Flights, Spawn

CHUNK_BYTES: Final = 1 << 20
CACHE_BYTES: Final = 64 << 20
LOAD_DEADLINE_S: Final = 60.0
RUN_CHUNKS_MAX: Final = 8
"""In one go at most."""
RUN_S_MAX: Final = 0.5
"""A store that takes longer for so many is asked for half as many from then on, and for more again once it is
quicker."""

Load: TypeAlias = Callable[[int, int], Awaitable[Sequence[Buffer | Exception]]]
"""Return the chunks [first, stop), proven, or for each of them why it cannot be had."""


class ChunkKey(NamedTuple):
    segment_id: UUID
    number: int


class Missing(OSError):
    """Bytes were asked for that are not at hand: the chunks [first, stop) are to be loaded first. Who is
    sending them meets it after they were let go of."""

    def __init__(self, first: int, stop: int) -> None:
        super().__init__(f"chunks {first} to {stop}")
        self.first = first
        self.stop = stop


class Chunk:
    __slots__ = ("data", "is_gone", "is_unread", "pins")

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data).toreadonly()
        self.pins = 0
        self.is_unread = True
        self.is_gone = False
        """Whether the cache had to let it go, perhaps before who waited for it had it."""


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
        """At most `parallel()` loads are under way at a time."""
        self.chunk_bytes = chunk_bytes
        self._parallel = parallel
        self._bytes_max = bytes_max
        self._flights: Flights[ChunkKey, Chunk] = Flights(spawn, deadline_s=deadline_s)
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        """Least recently used first."""
        self._turns: deque[tuple[asyncio.Future[None], int]] = deque()
        """Loads that wait until they may start, and of how many chunks each is."""
        self._loading = 0
        self._loading_bytes = 0
        self._run_chunks = RUN_CHUNKS_MAX
        self._holders: WeakSet[PinnedChunks] = WeakSet()
        self._loop = asyncio.get_running_loop()
        self._released: deque[Chunk] = deque()
        """What is to be unpinned in the next turn of the loop."""
        self.let_go = 0
        """How often chunks were taken from who did not take them."""
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

    @property
    def run_chunks(self) -> int:
        """How many are loaded in one go at most, for now."""
        return max(1, min(self._run_chunks, self._bytes_max // self.chunk_bytes // 4))

    async def get(self, key: ChunkKey, load: Load) -> Chunk:
        chunk = self._chunks.get(key)
        if chunk is not None:
            self.hits += 1
            self._chunks.move_to_end(key)
        else:
            self.misses += 1
            self.begin(key.segment_id, key.number, key.number + 1, load)
            chunk = await self._flights.wait(key)
        if chunk.is_unread:
            chunk.is_unread = False
            self._unread_bytes -= len(chunk.data)
        return chunk

    def begin(self, segment_id: UUID, first: int, stop: int, load: Load) -> None:
        """Load the chunks of [first, stop) that are neither here nor on their way, which `get` is about to
        wait for."""
        at = first
        while (at := self.first_missing(segment_id, at, stop)) < stop:
            at = self._start(segment_id, at, min(stop, at + self.run_chunks), load)

    def get_ahead(self, segment_id: UUID, first: int, stop: int, load: Load) -> int:
        """Start to load what will be wanted soon, from the first of [first, stop) that is neither here nor on
        its way: if nobody waits for what is wanted now, and as much as is due to one reader of the half of
        all that is for what was read ahead. Return where that ends, `first` if nothing is started."""
        at = self.first_missing(segment_id, first, stop)
        left = (self._bytes_max // 2 - self._unread_bytes - self._loading_bytes) // self.chunk_bytes
        if at == stop or self._turns or left < 1 or self._loading >= (self.parallel + 1) // 2:
            return first
        count = min(stop - at, self.run_chunks, max(1, left // 4))
        if not self._may_start(count):
            return first
        end = self._start(segment_id, at, at + count, load)
        self.read_ahead += end - at
        return end

    def first_missing(self, segment_id: UUID, first: int, stop: int) -> int:
        """Return the first of [first, stop) that is neither here nor on its way, `stop` if there is none."""
        for number in range(first, stop):
            key = ChunkKey(segment_id, number)
            if key not in self._chunks and key not in self._flights:
                return number
        return stop

    def drop(self, segment_id: UUID) -> None:
        """Forget the chunks of a segment, but for those that are being served; give up to load what nobody
        waits for."""
        self._flights.give_up([key for key in self._flights if key.segment_id == segment_id])
        for key in [key for key, chunk in self._chunks.items() if key.segment_id == segment_id]:
            if not self._chunks[key].pins:
                self._evict(key)

    def _start(self, segment_id: UUID, first: int, stop: int, load: Load) -> int:
        """Load the first ones of [first, stop) in one go, up to one that is here or on its way; return where
        that is."""
        stop = next(
            (at for at in range(first + 1, stop) if self.first_missing(segment_id, at, at + 1) > at), stop
        )
        keys = [ChunkKey(segment_id, number) for number in range(first, stop)]
        self._flights.start_all(keys, lambda: self._load(keys, load))
        return stop

    async def _load(self, keys: Sequence[ChunkKey], load: Load) -> Sequence[Chunk | Exception]:
        count = len(keys)
        await self._turn(count)
        time = asyncio.get_running_loop().time
        begun_s = time()
        try:
            found = await load(keys[0].number, keys[-1].number + 1)
            assert len(found) == count, (len(found), keys)
        except BaseException:
            self._note_time(count, time() - begun_s)
            self._give_back(count)
            raise
        self._note_time(count, time() - begun_s)
        outcomes: list[Chunk | Exception] = []
        for key, data in zip(keys, found, strict=True):
            if isinstance(data, Exception):
                outcomes.append(data)
                continue
            chunk = self._chunks[key] = Chunk(data)
            self.size_bytes += len(data)
            self._unread_bytes += len(data)
            outcomes.append(chunk)
        self._give_back(count)
        return outcomes

    def _note_time(self, count: int, took_s: float) -> None:
        if took_s > RUN_S_MAX:
            self._run_chunks = max(1, min(self._run_chunks, count // 2))
        elif count >= self._run_chunks and took_s < RUN_S_MAX / 4:
            self._run_chunks = min(2 * self._run_chunks, RUN_CHUNKS_MAX)

    async def _turn(self, count: int) -> None:
        """Wait for a place among those that are loading, and for room."""
        if self._turns or not self._may_start(count):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns.append((turn, count))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(count)
                elif (turn, count) in self._turns:
                    self._turns.remove((turn, count))
                raise
        else:
            self._take(count)

    def _take(self, count: int) -> None:
        self._loading += 1
        self._loading_bytes += count * self.chunk_bytes
        self.size_bytes += count * self.chunk_bytes

    def _give_back(self, count: int) -> None:
        self._loading -= 1
        self._loading_bytes -= count * self.chunk_bytes
        self.size_bytes -= count * self.chunk_bytes
        self._start_more()

    def _start_more(self) -> None:
        while self._turns and self._may_start(self._turns[0][1]):
            turn, count = self._turns.popleft()
            if not turn.cancelled():
                self._take(count)
                turn.set_result(None)

    def _may_start(self, count: int) -> bool:
        """Whether so many more may be loaded in one go; makes the room for them."""
        if self._loading >= self.parallel:
            return False
        room = count * self.chunk_bytes
        limit = self._bytes_max + max(0, self.pinned_bytes - self._bytes_max // 2) - room
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
        chunk.is_gone = True
        self.size_bytes -= len(chunk.data)
        self.evictions += 1
        if chunk.is_unread:
            chunk.is_unread = False
            self._unread_bytes -= len(chunk.data)

    # --- serving ---

    def pin(self, chunk: Chunk) -> None:
        if not chunk.pins:
            self.pinned_bytes += len(chunk.data)
            if chunk.is_gone:
                self.size_bytes += len(chunk.data)
        chunk.pins += 1

    def unpin(self, chunk: Chunk) -> None:
        chunk.pins -= 1
        if not chunk.pins:
            self.pinned_bytes -= len(chunk.data)
            if chunk.is_gone:
                self.size_bytes -= len(chunk.data)
            self._start_more()

    def release(self, chunks: Collection[Chunk]) -> None:
        """Unpin them in the next turn of the loop: the garbage collector calls this in the middle of
        anything, and in any thread."""
        if chunks:
            self._released.extend(chunks)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody reads any more
                self._loop.call_soon_threadsafe(self._unpin_released)

    def _unpin_released(self) -> None:
        while self._released:
            self.unpin(self._released.popleft())

    def note_holder(self, holder: PinnedChunks) -> None:
        self._holders.add(holder)

    def let_go_of(self, *, unused_s: float, held_s: float) -> None:
        """Take the chunks from those who have not asked for any byte of them for `unused_s`, and from those
        who have held some for `held_s`, taking a byte now and then."""
        now_s = asyncio.get_running_loop().time()
        for holder in sorted(self._holders, key=lambda each: (each.used_s, each.path)):
            is_late = now_s - holder.used_s > unused_s or now_s - holder.begun_s > held_s
            if holder.is_holding and is_late:
                self.let_go += 1
                holder.keep(0, 0)


class PinnedChunks:
    """A file of which some chunks are in memory: what one reader reads and one client is sent. They stay in
    the cache as long as it lives."""

    __slots__ = ("__weakref__", "_cache", "_chunks", "begun_s", "path", "used_s")

    def __init__(self, cache: ChunkCache, path: str) -> None:
        self.path = path
        self._cache = cache
        self._chunks: dict[int, Chunk] = {}
        self.begun_s = 0.0
        """When it began to hold what it holds, by the loop's clock."""
        self.used_s = 0.0
        """When it was last read."""

    def __repr__(self) -> str:
        return f"PinnedChunks({self.path!r}, {sorted(self._chunks)})"

    def __contains__(self, number: int) -> bool:
        return number in self._chunks

    @property
    def is_holding(self) -> bool:
        return bool(self._chunks)

    def add(self, number: int, chunk: Chunk) -> None:
        if number not in self._chunks:
            self.used_s = asyncio.get_running_loop().time()
            if not self._chunks:
                self.begun_s = self.used_s
            self._cache.note_holder(self)
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
        self.used_s = asyncio.get_running_loop().time()
        first, at = divmod(offset, chunk_bytes)
        if at + size <= chunk_bytes and first in self._chunks:
            return bytes(self._chunks[first].data[at : at + size])
        stop = -(-(offset + size) // chunk_bytes)
        if any(number not in self._chunks for number in range(first, stop)):
            raise Missing(first, stop)
        pieces = []
        for number in range(first, stop):
            begin = max(0, offset - number * chunk_bytes)
            pieces.append(self._chunks[number].data[begin : offset + size - number * chunk_bytes])
        return b"".join(pieces)

    def view(self, size: int, offset: int) -> memoryview:
        """Return the bytes from `offset` on, at most `size` and no more than lie in one piece of memory."""
        number, at = divmod(offset, self._cache.chunk_bytes)
        if number not in self._chunks:
            raise Missing(number, number + 1)
        self.used_s = asyncio.get_running_loop().time()
        return self._chunks[number].data[at : at + size]

    def preadv(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def __del__(self) -> None:
        self._cache.release(self._chunks.values())
