"""Stores the tails of the partitions that this broker leads, as combined objects of one stream.

Owns: when a cut is taken and in which turns of the loop, the reading of slices, the objects under way, what
happens when the stream is sealed, the index objects. Does not own: which partitions there are and what wakes
this (broker.replicas.wal.leading), which slices go into an object (combiner), what counts (window), settling
doubt about one put (storage_manager), the bytes (combined_object).

Invariants. Every byte of a tail is in exactly one object that counts, in order, unless its stream was sealed
before that: then it is stored anew in the next one. Nothing is told before the object and all before it are
in the store. Memory: as many objects as may be under way, and the one that is cut; the log is the spool for
all the rest, so a store that is away costs nothing but time. No append waits for anything here.

Theory of operation. One task waits until something is dirty, the interval is over and the window has room;
then it reads one slice after the other with turns of the loop between them, and sends the object with a task
of its own. A put that finds a seal ends the stream: those above it are given up, those below are waited for,
and then every tail goes back to what counts. The next generation begins once this broker's image has come to
the slot for whose sake the stream was sealed, and says that it lives: until then others may lead.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from protocol.checksum import crc32c
from protocol.errors import KafkaError
from remote.keys import Stream, WalPart, wal_key
from remote.store.object_store import PutResult, StoreError
from remote.wal.combined_object import (
    INDEXED_OBJECTS,
    Head,
    ObjectKind,
    Place,
    Row,
    encode_index,
    encode_table,
    place_slices,
)
from remote.wal.combiner import Combiner, Cut
from remote.wal.counted import Counted, OnCounted, OnStream
from remote.wal.extents import Extent
from remote.wal.stats import WalStats
from remote.wal.storage_manager import CombinedMetadata, SlotTaken, WalStorageManager
from remote.wal.tail import Tail
from remote.wal.window import Window
from storage.log import AbstractLog, LogSlice

TURN_S: Final = 0.001
"""So long a cut holds the loop at a time."""
TURN_MAX_S: Final = 0.003
TURN_SHARE: Final = 0.05
"""Where others hold it for long between two turns, a turn is longer, in this proportion: a cut of hundreds of
slices would take seconds."""
TURN_SLICES: Final = 64
"""At most so many slices in one turn, where no clock tells."""
SLICES_MAX: Final = 256
"""In one object, whose table is made, and whose slices are told, in one turn: each takes 1 to 2 ms."""
BACKLOG_BYTES_PER_S: Final = 128 << 20
"""What has waited so long that followers were sent it is stored no faster, behind what comes in."""
BACKLOG_AHEAD_S: Final = 0.02
READ_HERE_BYTES: Final = 64 << 10
"""A slice of a backlog up to this size is read on the loop: a thousand in a cut, each by way of another
thread, would take seconds."""
READ_AGAIN_S: Final = 1.0
"""A log that could not be read is read again so much later, if nothing is appended before."""
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
"""The pauses between attempts at one object, each of which lasts for seconds itself."""
STOP_S: Final = 1.0
"""A stop waits so long for what is under way."""
INDEX_ATTEMPTS: Final = 5
INDEXES_AT_ONCE: Final = 2
"""Index objects under way. What comes on top is left out: readers then read the tables one by one."""

logger = logging.getLogger(__name__)


class Source(Protocol):
    """One partition that this broker leads, in one leader epoch."""

    def __hash__(self) -> int: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def log(self) -> AbstractLog: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def is_awaited(self) -> bool:
        """Whether a producer waits until its followers have what was appended."""

    def was_cut(self, *, has_more: bool) -> None:
        """Take note that what there was is in an object; unless there is more, the next append is to be
        marked."""

    def stored(self) -> None:
        """Take note that more of the tail counts."""

    def unreadable(self, error: KafkaError) -> None:
        """Take note that the log could not be read; it is tried again in a while."""


class Writer(Protocol):
    """The broker that writes, as its cluster knows it."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def metadata_seq(self) -> int:
        """The newest slot that it has applied."""

    def may_reopen(self, slot: int) -> bool:
        """Whether it has applied `slot` and is live by what it has applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    interval_s: float
    object_bytes: int
    in_flight: int
    """Objects under way."""
    slices: int
    """Slices that are cut and not yet stored."""


class Offload(Protocol):
    def __call__(self, call: Callable[[], bytes], /) -> Awaitable[bytes]: ...


class _Piece(NamedTuple):
    """One slice that was read for the object that is being cut."""

    source: Source
    tail: Tail
    row: Row
    data: bytes


@dataclass(slots=True, kw_only=True)
class _Sent:
    """An object under way, without its bytes."""

    owners: list[tuple[Source, Tail]]
    rows: tuple[Row, ...]
    table: bytes
    size: int
    cut_at: float


class Uploader:
    def __init__(
        self,
        *,
        manager: WalStorageManager,
        writer: Writer,
        settings: Callable[[], UploadSettings],
        stats: WalStats,
        offload: Offload,
        now_ms: Callable[[], int],
        cpu_s: Callable[[], float],
        random: random.Random,
        fail: Callable[[str], None],
    ) -> None:
        """`fail` ends the broker: another process takes itself for this one."""
        self.on_counted: list[OnCounted] = []
        self.on_stream: list[OnStream] = []
        self._manager = manager
        self._writer = writer
        self._settings = settings
        self._stats = stats
        self._offload = offload
        self._now_ms = now_ms
        self._random = random
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        first = settings()
        self._combiner: Combiner[Source] = Combiner(
            interval_s=first.interval_s, object_bytes=first.object_bytes
        )
        self._sources: dict[Source, None] = {}
        self._parked: dict[Source, None] = {}
        """With a backlog that is not yet due."""
        self._backlog_due = 0.0
        self._unread: dict[Source, None] = {}
        """Those whose logs could not be read."""
        self._read_again_at = 0.0
        self._stream: Stream | None = None
        self._window: Window[_Sent] | None = None
        self._generation = 0
        self._sealed_for: int | None = None
        """The slot for whose sake the last stream was sealed, until the next one is open."""
        self._slices = 0
        """Cut and not yet stored."""
        self._tables: list[bytes] = []
        """Of objects that no index object repeats yet."""
        self._indexes = 0
        self._turns = _Turns(self._loop.time, cpu_s, stats)
        self._nudge = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._puts: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._is_in_trouble = False

    def __repr__(self) -> str:
        return f"<Uploader {self._stream} {self._window} {self._combiner}>"

    @property
    def stream(self) -> Stream | None:
        """The stream that is written now."""
        return self._stream

    # --- what there is to store ---

    def add(self, source: Source) -> None:
        """Store the tail of this partition, beginning with what it has."""
        self._sources[source] = None
        if source.tail.cut_to < source.log.log_end_offset:
            self.mark(source)

    def forget(self, source: Source) -> None:
        """Read nothing more of it. What was cut of it is stored all the same."""
        self._sources.pop(source, None)
        self._parked.pop(source, None)
        self._unread.pop(source, None)
        self._combiner.forget(source)

    def mark(self, source: Source) -> None:
        """Take note that its log has grown."""
        combiner = self._combiner
        is_awaited = source.is_awaited
        if not len(combiner) or (is_awaited and not combiner.is_awaited):
            self._nudge.set()
        combiner.mark(source, self._loop.time(), is_awaited=is_awaited)

    def look_again(self) -> None:
        """Take note that what was waited for may have come: the image has changed."""
        if self._sealed_for is not None:
            self._nudge.set()

    # --- life ---

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._tasks = task_group
        self._main = task_group.create_task(self._run())

    async def stop(self) -> None:
        """Store what is there within a second, then give up what is still under way."""
        if self._main is None:
            return
        main, self._main = self._main, None
        self._loop.call_soon(main.cancel)
        await asyncio.wait([main])
        try:
            async with asyncio.timeout(STOP_S):
                await self._drain()
        except TimeoutError:
            pass
        finally:
            self._tasks = None
            rest = [*self._puts.values(), *self._others]
            for task in rest:
                task.cancel()
            self._puts.clear()
        if rest:
            await asyncio.wait(rest)

    async def _drain(self) -> None:
        while self._combiner or self._puts:
            self._nudge.clear()
            self._end_stream()
            if self._combiner and self._may_cut():
                await self._cut()
            elif self._puts:
                await self._nudge.wait()
            else:
                return

    async def _run(self) -> None:
        while True:
            self._nudge.clear()
            self._end_stream()
            self._unpark()
            wait_s = self._wait_s()
            if wait_s == 0:
                await self._cut()
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await self._nudge.wait()
            except TimeoutError:
                pass

    def _wait_s(self) -> float | None:
        """Return in how many seconds there is something to do, None where only others can tell."""
        now = self._loop.time()
        waits = []
        if self._may_cut() and (wait_s := self._combiner.wait_s(now, is_idle=not self._puts)) is not None:
            waits.append(wait_s)
        if self._parked:
            waits.append(max(self._backlog_due - BACKLOG_AHEAD_S - now, TURN_S))
        if self._unread:
            waits.append(max(self._read_again_at - now, TURN_S))
        return min(waits, default=None)

    def _may_cut(self) -> bool:
        if self._slices >= self._settings().slices:
            return False
        if self._window is not None:
            return self._window.has_room
        return self._sealed_for is None or self._writer.may_reopen(self._sealed_for)

    # --- streams ---

    def _open_stream(self) -> Window[_Sent]:
        if self._sealed_for is not None:
            self._stats.generations += 1
            self._sealed_for = None
        writer = self._writer
        self._stream = Stream(writer.node_id, writer.broker_epoch, self._generation)
        self._window = Window(limit=self._settings().in_flight)
        for listener in self.on_stream:
            listener(self._stream, True)
        return self._window

    def _end_stream(self) -> None:
        """Go back to what counts, once nothing is under way any more in a stream that was sealed."""
        stream, window = self._stream, self._window
        if stream is None or window is None or not window.is_sealed or not window.is_settled:
            return
        self._stream = self._window = None
        self._generation += 1
        self._slices = 0
        self._tables.clear()
        for source in self._sources:
            source.tail.rewind()
            if source.tail.cut_to < source.log.log_end_offset:
                self._combiner.mark(source, self._loop.time())
        for listener in self.on_stream:
            listener(stream, False)

    # --- cutting ---

    async def _cut(self) -> None:
        """Send one object with what is dirty."""
        settings, combiner = self._settings(), self._combiner
        combiner.interval_s, combiner.object_bytes = settings.interval_s, settings.object_bytes
        window = self._window or self._open_stream()
        cut = combiner.begin(self._loop.time())
        turns = self._turns
        turns.total_s = 0.0
        turns.begin()
        pieces: list[_Piece] = []
        slices_max = min(SLICES_MAX, settings.slices - self._slices)
        try:
            was_full = await self._fill(cut, pieces, turns, window, slices_max)
            if len(pieces) > TURN_SLICES:
                await turns.over()
            if pieces and not window.is_sealed:
                self._send(window, pieces)
                pieces = []
            turns.end()
        finally:
            cut.end()
            for piece in pieces:  # of a cut that was cancelled, or for a stream that ended meanwhile
                piece.tail.cut_to, piece.tail.cursor = piece.row.start, None
                if piece.source in self._sources:
                    combiner.mark(piece.source, self._loop.time())
        combiner.ended(self._loop.time(), loop_s=turns.total_s, was_full=was_full)
        await asyncio.sleep(0)

    async def _fill(
        self,
        cut: Cut[Source],
        pieces: list[_Piece],
        turns: _Turns,
        window: Window[_Sent],
        slices_max: int,
    ) -> bool:
        """Read a slice of each dirty partition. Return whether something was left for the next object."""
        is_left = False
        while len(pieces) < slices_max and not window.is_sealed:
            source = cut.next()
            if source is None:
                break
            tail, log = source.tail, source.log
            is_backlog = tail.is_direct
            if is_backlog and self._backlog_due > self._loop.time() + BACKLOG_AHEAD_S:
                self._parked[source] = None
                cut.took(0, has_more=False, now=self._loop.time())
                continue
            piece: _Piece | None = None
            try:
                found = self._find(tail, log, cut.room)
                if found is None or (found.size > cut.room and not cut.is_empty):
                    pass
                elif is_backlog and found.size > READ_HERE_BYTES:
                    turns.end()
                    piece = await self._read_away(source, found)
                    turns.begin()
                else:
                    piece = _piece(source, found, found.read())
            except (OSError, KafkaError) as error:
                source.unreadable(error if isinstance(error, KafkaError) else log.flush_failed(error))
                now = self._loop.time()
                cut.took(0, has_more=False, now=now)
                if source in self._sources:
                    if not self._unread:
                        self._read_again_at = now + READ_AGAIN_S
                    self._unread[source] = None
                continue
            if piece is not None:
                pieces.append(piece)
                tail.cut_to = piece.row.end
            now, since = self._loop.time(), cut.since
            has_more = found is not None and tail.cut_to < log.log_end_offset
            is_left = is_left or (has_more and not is_backlog)
            cut.took(0 if piece is None else piece.row.size, has_more=has_more, now=now)
            source.was_cut(has_more=has_more)
            if is_backlog and piece is not None:
                self._backlog_due = max(self._backlog_due, now) + piece.row.size / BACKLOG_BYTES_PER_S
            if piece is not None and since is not None:
                self._stats.wait_s.note(now - since)
            await turns.step()
        return is_left or len(pieces) == slices_max or cut.bytes >= self._combiner.object_bytes

    def _find(self, tail: Tail, log: AbstractLog, room: int) -> LogSlice | None:
        """Return the next slice, of one segment and one batch epoch; None where the log has no more."""
        tail.skip_to(log.local_log_start_offset)
        at, end = tail.cut_to, log.log_end_offset
        while at < end:
            span = log.epochs.span(at)
            bound = log.epochs.known_from if span is None else span[2]
            bound = end if bound is None else min(bound, end)
            found, tail.cursor = log.read_on(at, room, bound=bound, cursor=tail.cursor)
            if found is not None:
                return found
            at = bound  # compaction has left nothing of it
        return None

    async def _read_away(self, source: Source, found: LogSlice) -> _Piece | None:
        """Read what may not be in memory any more; None where the role has ended meanwhile."""
        tail, generation = source.tail, source.log.generation
        data = await self._offload(found.read)
        if source not in self._sources or source.tail is not tail or source.log.generation != generation:
            return None
        return _piece(source, found, data)

    def _unpark(self) -> None:
        if self._parked and self._backlog_due <= self._loop.time() + BACKLOG_AHEAD_S:
            parked, self._parked = self._parked, {}
            for source in parked:
                self._combiner.mark(source, self._loop.time())
        if self._unread and self._read_again_at <= self._loop.time():
            unread, self._unread = self._unread, {}
            for source in unread:
                self._combiner.mark(source, self._loop.time())

    # --- sending ---

    def _send(self, window: Window[_Sent], pieces: list[_Piece]) -> None:
        assert self._stream is not None
        pieces.sort(key=lambda piece: sorted(piece.source.replicas))  # one range serves one follower
        place, writer = Place(self._stream, window.end), self._writer
        rows = tuple(place_slices(writer.cluster_id, [self._row(piece, place.stream) for piece in pieces]))
        head = Head(
            kind=ObjectKind.SLICES,
            cluster_id=writer.cluster_id,
            place=place,
            put_id=self._random.randbytes(16),
            metadata_seq=writer.metadata_seq,
            writer=(writer.node_id, writer.broker_epoch),
            written_ms=self._now_ms(),
        )
        table = encode_table(head, rows)
        data = b"".join([table, *(piece.data for piece in pieces)])
        sent = _Sent(
            owners=[(piece.source, piece.tail) for piece in pieces],
            rows=rows,
            table=table,
            size=len(data),
            cut_at=self._loop.time(),
        )
        seq = window.sent(sent)
        assert seq == place.seq, (seq, place)
        self._slices += len(rows)
        assert self._tasks is not None
        metadata = CombinedMetadata(head=head, rows=rows)
        self._puts[seq] = self._tasks.create_task(self._put(window, metadata, data))

    def _row(self, piece: _Piece, stream: Stream) -> Row:
        """Name the slice before this one, where this is the partition's first in the stream."""
        tail = piece.tail
        if tail.in_stream == stream:
            return piece.row
        tail.in_stream = stream
        return piece.row._replace(previous=tail.previous)

    async def _put(self, window: Window[_Sent], metadata: CombinedMetadata, data: bytes) -> None:
        seq = metadata.place.seq
        pause_s = RETRY_MIN_S
        while True:
            try:
                await self._manager.copy(metadata, data)
            except SlotTaken as taken:
                self._taken(window, seq, taken.head)
                return
            except StoreError as error:
                if not self._is_in_trouble:
                    self._is_in_trouble = True
                    logger.warning("the ends of logs wait on this disk for the store: %s", error)
            else:
                self._arrived(window, seq)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _arrived(self, window: Window[_Sent], seq: int) -> None:
        if window is not self._window or self._puts.pop(seq, None) is None:
            return  # it was given up
        self._nudge.set()
        if self._is_in_trouble:
            self._is_in_trouble = False
            logger.info("the ends of logs go to the store again")
        counted = window.arrived(seq)
        if not counted:
            return
        assert self._stream is not None
        now, stream, stats = self._loop.time(), self._stream, self._stats
        owners: dict[Source, None] = {}
        for number, sent in counted:
            place = Place(stream, number)
            for (source, tail), row in zip(sent.owners, sent.rows, strict=True):
                tail.stored(
                    Extent(row.start, row.end, row.batch_epoch, place, row.position, row.size, row.crc32c),
                    now,
                )
                owners[source] = None
            self._slices -= len(sent.rows)
            stats.objects += 1
            stats.slices += len(sent.rows)
            stats.stored_bytes += sent.size
            stats.copy_s.note(now - sent.cut_at)
        for source in owners:
            source.stored()
        stored_ms = self._now_ms()
        for number, sent in counted:
            told = Counted(Place(stream, number), sent.rows, sent.table, sent.size, stored_ms)
            for listener in self.on_counted:
                listener(told)
            self._index(told)

    def _taken(self, window: Window[_Sent], seq: int, head: Head) -> None:
        """End the stream at a seal: nothing at or above it will ever count."""
        if window is not self._window or self._puts.pop(seq, None) is None:
            return
        self._nudge.set()
        if head.kind is not ObjectKind.SEAL:
            self._fail(
                f"another process writes as node {self._writer.node_id} in broker epoch "
                f"{self._writer.broker_epoch}: {head.place} holds what this one did not write"
            )
            return
        logger.info("stream %s was ended at %d by broker %d", head.place.stream, seq, head.writer[0])
        self._sealed_for = max(self._sealed_for or 0, head.metadata_seq)
        window.sealed(seq)
        window.gave_up(seq)
        self._stats.void_objects += 1
        for above in [other for other in self._puts if other > seq]:
            self._puts.pop(above).cancel()
            window.gave_up(above)
            self._stats.void_objects += 1

    # --- index objects ---

    def _index(self, counted: Counted) -> None:
        """Repeat the tables of each 256 objects in one."""
        stream, seq = counted.place
        self._tables.append(counted.table)
        if (seq + 1) % INDEXED_OBJECTS:
            return
        tables, self._tables = self._tables, []
        if self._indexes < INDEXES_AT_ONCE and len(tables) == INDEXED_OBJECTS and self._tasks is not None:
            self._indexes += 1
            self._spawn(self._put_index(Place(stream, seq + 1 - INDEXED_OBJECTS), tables))

    async def _put_index(self, place: Place, tables: list[bytes]) -> None:
        writer = self._writer
        head = Head(
            kind=ObjectKind.INDEX,
            cluster_id=writer.cluster_id,
            place=place,
            put_id=self._random.randbytes(16),
            metadata_seq=writer.metadata_seq,
            writer=(writer.node_id, writer.broker_epoch),
            written_ms=self._now_ms(),
        )
        key = wal_key(place.stream, place.seq, WalPart.INDEX)
        try:
            data = await self._offload(partial(encode_index, head, tables))
            for attempt in range(INDEX_ATTEMPTS):
                try:
                    if await self._manager.store.put_if_absent(key, data) is not PutResult.UNKNOWN:
                        return
                except StoreError as error:
                    logger.debug("an index object is not stored: %s", error)
                await asyncio.sleep(2.0**attempt)
        finally:
            self._indexes -= 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


class _Turns:
    """How long a cut holds the loop, and when it is the others' turn.

    What counts is the time that the cut itself works: where other processes take the processor, slower cuts
    would widen the interval and take no less of it."""

    __slots__ = ("_began_at", "_clock", "_cpu_s", "_stats", "_steps", "_turn_s", "_worked_s", "total_s")

    def __init__(self, clock: Callable[[], float], cpu_s: Callable[[], float], stats: WalStats) -> None:
        self.total_s = 0.0
        self._clock = clock
        self._cpu_s = cpu_s
        self._stats = stats
        self._turn_s = TURN_S
        self.begin()

    def begin(self) -> None:
        self._began_at, self._worked_s = self._clock(), self._cpu_s()
        self._steps = 0

    def end(self) -> None:
        self.total_s += self._cpu_s() - self._worked_s
        self._stats.cut_loop_s.note(self._clock() - self._began_at)

    async def step(self) -> None:
        """Let others run once the turn is over."""
        self._steps += 1
        turn_s = self._turn_s
        if self._steps >= TURN_SLICES * turn_s / TURN_S or self._cpu_s() - self._worked_s >= turn_s:
            await self.over()

    async def over(self) -> None:
        self.end()
        ended_at = self._clock()
        await asyncio.sleep(0)
        self.begin()
        self._turn_s = min(max(TURN_SHARE * (self._began_at - ended_at), TURN_S), TURN_MAX_S)


def _piece(source: Source, found: LogSlice, data: bytes) -> _Piece:
    tail, log = source.tail, source.log
    row = Row(
        topic_id=tail.key.topic_id,
        partition=tail.key.partition,
        leader_epoch=tail.leader_epoch,
        epoch_start=tail.epoch_start,
        # as it is stamped on the first batch: the others are of the same one
        batch_epoch=int.from_bytes(data[12:16], "big", signed=True),
        start=min(tail.cut_to, found.first_offset),
        end=found.next_offset,
        log_start=log.log_start_offset,
        position=0,
        size=len(data),
        crc32c=crc32c(data),
        previous=None,
    )
    return _Piece(source, tail, row, data)
