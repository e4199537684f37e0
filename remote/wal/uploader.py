"""Stores the tails of the partitions that this broker leads, as combined objects of one stream.

Owns: when a cut is taken, how many slices wait for the store, what happens to the tails when a stream ends,
the life of the parts. Does not own: which partitions there are and what wakes this
(broker.replicas.wal.leading), which of them a cut takes (combiner), reading their slices (cutter), the stream
and its objects under way (stream_writer).

Invariants. Every byte of a tail is in exactly one object that counts, in order, unless its stream was sealed
before that: then it is stored anew in the next one. Memory: as many objects as may be under way, and the one
that is cut; the log is the spool for all the rest, so a store that is away costs nothing but time. No append
waits for anything here.

Theory of operation. One task waits until something is dirty, the interval is over and the stream has room;
then it has one slice after the other read, with turns of the loop between them, and sends the object. When a
stream has ended every tail goes back to what counts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from remote.keys import Stream
from remote.wal.combiner import Combiner
from remote.wal.cutter import Cutter
from remote.wal.sources import Offload, Piece, Source, UploadSettings, Writer
from remote.wal.stats import WalStats
from remote.wal.storage_manager import WalStorageManager
from remote.wal.stream_writer import StreamWriter

SLICES_MAX: Final = 256
"""In one object, whose table is made, and whose slices are told, in one turn: each takes 1 to 2 ms."""
STOP_S: Final = 1.0
"""A stop waits so long for what is under way."""


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
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        first = settings()
        self._combiner: Combiner[Source] = Combiner(
            interval_s=first.interval_s, object_bytes=first.object_bytes
        )
        self._sources: dict[Source, None] = {}
        self._cutter = Cutter(
            sources=self._sources, stats=stats, offload=offload, clock=self._loop.time, cpu_s=cpu_s
        )
        self._nudge = asyncio.Event()
        self._writer = StreamWriter(
            manager=manager,
            writer=writer,
            settings=settings,
            stats=stats,
            offload=offload,
            now_ms=now_ms,
            random=random,
            fail=fail,
            nudge=self._nudge.set,
        )
        self.on_counted, self.on_stream = self._writer.on_counted, self._writer.on_stream
        self._main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Uploader {self._writer} {self._combiner} {self._cutter}>"

    @property
    def stream(self) -> Stream | None:
        """The stream that is written now."""
        return self._writer.stream

    @property
    def under_way(self) -> int:
        """How many objects are being put."""
        return self._writer.under_way

    # --- what there is to store ---

    def add(self, source: Source) -> None:
        """Store the tail of this partition, beginning with what it has."""
        self._sources[source] = None
        if source.tail.cut_to < source.log.log_end_offset:
            self.mark(source)

    def forget(self, source: Source) -> None:
        """Read nothing more of it. What was cut of it is stored all the same."""
        self._sources.pop(source, None)
        self._cutter.forget(source)
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
        if self._writer.sealed_for is not None:
            self._nudge.set()

    # --- life ---

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._writer.start(task_group)
        self._main = task_group.create_task(self._run())

    async def stop(self) -> None:
        """Store what is there within a second, then give up what is still under way."""
        if self._main is None:
            return
        main, self._main = self._main, None
        self._loop.call_soon(main.cancel)
        await asyncio.wait([main])
        rest = []
        try:
            async with asyncio.timeout(STOP_S):
                await self._drain()
        except TimeoutError:
            pass
        finally:
            rest = self._writer.give_up()
        if rest:
            await asyncio.wait(rest)

    async def _drain(self) -> None:
        while self._combiner or self._writer.under_way:
            self._nudge.clear()
            self._go_back_if_ended()
            if self._combiner and self._may_cut():
                await self._cut()
            elif self._writer.under_way or self._writer.is_ending:
                await self._nudge.wait()
            else:
                return

    async def _run(self) -> None:
        while True:
            self._nudge.clear()
            self._go_back_if_ended()
            for source in self._cutter.take_due(now := self._loop.time()):
                self._combiner.mark(source, now)
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
        waits = [self._cutter.wait_s(now)]
        if self._may_cut():
            waits.append(self._combiner.wait_s(now, is_idle=not self._writer.under_way))
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def _may_cut(self) -> bool:
        return self._writer.slices < self._settings().slices and self._writer.has_room

    def _go_back_if_ended(self) -> None:
        """Store anew what does not count, once nothing is under way any more in a stream that was sealed."""
        if not self._writer.end_if_settled():
            return
        for source in self._sources:
            source.tail.rewind()
            if source.tail.cut_to < source.log.log_end_offset:
                self._combiner.mark(source, self._loop.time())

    # --- cutting ---

    async def _cut(self) -> None:
        """Send one object with what is dirty."""
        settings, combiner, writer = self._settings(), self._combiner, self._writer
        combiner.interval_s, combiner.object_bytes = settings.interval_s, settings.object_bytes
        writer.ensure_open()
        cut = combiner.begin(self._loop.time())
        turns = self._cutter.turns
        turns.total_s = 0.0
        turns.begin()
        pieces: list[Piece] = []
        try:
            was_full = await self._cutter.fill(
                cut,
                pieces,
                slices_max=min(SLICES_MAX, settings.slices - writer.slices),
                object_bytes=combiner.object_bytes,
                is_in_vain=writer.is_sealed,
            )
            if pieces and not writer.is_sealed():
                writer.send(pieces)
                pieces = []
            turns.end()
        finally:
            cut.end()
            for piece in pieces:  # of a cut that was cancelled, or for a stream that ended meanwhile
                piece.tail.cut_again(piece.row.start)
                if piece.source in self._sources:
                    combiner.mark(piece.source, self._loop.time())
        combiner.ended(self._loop.time(), loop_s=turns.total_s, was_full=was_full)
        await asyncio.sleep(0)
