"""What the answers of one leader point to, on its way from the store into the logs.

Owns: which slices are read together, handing them on in order when they are there, letting go of those that
count no more, how long a report may wait for them. Does not own: memory, deadlines and the judgement of the
store (remote.wal.hydrator), order and offsets of one partition (slice_queue), appending (fetcher).

Invariants. A slice is appended only while its partition is still followed in the epoch in which it was
pointed to, from a log that ends inside of it: both are asked after the read, with no wait before the append.
What cannot be read, or is not what was pointed to, is asked of the leader and never passed over. Nothing is
appended after `stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Final, Protocol

from broker.replicas.fetch_position import Position
from protocol.pointers import BYTES, ObjectPlace, SlicePointer
from remote.bad_object import BadObject
from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.hydrator import Hydrator, NotRead
from remote.wal.slice_queue import Slice

logger = logging.getLogger(__name__)

REPORT_WAIT_S: Final = 0.1
"""So long the next Fetch waits for what the last one pointed to: it reports how far the log has come."""
LOOK_S: Final = 0.02
"""How long a Fetch stays at the leader while there is no room for what it points to."""
SLOW_SHARE: Final = 0.2
"""While only slower reads are under way a Fetch stays at the leader for such a part of the time they take by
now: that much later may they be reported, and no longer than `REPORT_WAIT_S`."""
GAP_BYTES: Final = 64 << 10
"""What is read between two slices rather than asking twice, unless they are larger themselves."""
TURN_BYTES: Final = 1 << 20
"""How much is appended before the loop gets another turn."""
SLICE_COST_BYTES: Final = 32 << 10
"""What the append of a slice costs beside its bytes: a thousand small ones would hold the loop for 50 ms."""


class Appender(Protocol):
    """Who follows the partitions."""

    def now(self) -> float: ...
    def is_followed(self, position: Position) -> bool: ...
    def append_slice(self, position: Position, slice_: Slice) -> bool:
        """Append what a slice brings; BadObject when it does not fit. Return whether the log took it."""

    def look_again(self, position: Position) -> None: ...
    def look_at_all(self) -> None: ...


class _Read:
    """One range of one object, for some slices."""

    __slots__ = ("asked_at", "end", "place", "slices", "start", "task", "there_at", "wanted")

    def __init__(self, place: Place, slices: list[tuple[Position, Slice]], asked_at: float) -> None:
        self.place = place
        self.slices = slices
        self.start = min(each.pointer.position for _, each in slices)
        self.end = max(each.pointer.position + each.pointer.size for _, each in slices)
        self.asked_at = asked_at
        self.there_at = -inf
        self.wanted = len(slices)
        """How many of them are neither appended nor given up."""
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<_Read [{self.start}, {self.end}) of {self.place}, {self.wanted} slices>"


class Hydrating:
    def __init__(self, hydrator: Hydrator, appender: Appender) -> None:
        self._hydrator = hydrator
        self._appender = appender
        self._tasks: asyncio.TaskGroup | None = None
        self._pointed: list[tuple[Position, Sequence[SlicePointer], Sequence[ObjectPlace]]] = []
        self._queued: dict[Position, None] = {}
        """Positions with slices on their way, or that wait for room."""
        self._reads: dict[_Read, None] = {}
        """Those that somebody waits for, in the order in which they began."""
        self._has_moved = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Hydrating {list(self._reads)}>"

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._tasks = task_group
        self._hydrator.on_away.append(self._store_is_away)
        self._hydrator.on_room.append(self._there_is_room)

    def stop(self) -> None:
        """Give up all that is under way."""
        if self._tasks is None:
            return
        self._tasks = None
        self._hydrator.on_away.remove(self._store_is_away)
        self._hydrator.on_room.remove(self._there_is_room)
        self._drop_all()
        self._pointed.clear()

    def _drop_all(self) -> None:
        queued, self._queued = self._queued, {}
        for position in queued:
            if position.slices is not None:
                position.slices.drop()
                position.slices.waits_for_room = False

    # --- requests ---

    def stay_s(self, most_s: float) -> float:
        """Return how long the next Fetch may stay at the leader: less while there will be something to
        report, or room for more."""
        if self._reads:
            age_s = self._appender.now() - next(reversed(self._reads)).asked_at
            most_s = min(most_s, SLOW_SHARE * age_s if age_s >= REPORT_WAIT_S else 0.0, REPORT_WAIT_S)
        return min(most_s, LOOK_S) if self.waits_for_room else most_s

    @property
    def waits_for_room(self) -> bool:
        return any(each.slices is not None and each.slices.waits_for_room for each in self._queued)

    @property
    def takes_pointers(self) -> bool:
        return self._hydrator.objects_allowed() > 0

    def pointed(self, position: Position) -> int:
        """Return what to ask for a position: from where pointers are wanted, or BYTES, or NOTHING."""
        queue = position.slices
        if queue is None or (not queue and not self.takes_pointers):
            return BYTES
        return queue.pointed(position.partition.log.log_end_offset, self._appender.now())

    async def wait_reads(self) -> None:
        """Wait for what was pointed to last, and no longer than a report may wait."""
        now = self._appender.now()
        fresh = [each for each in self._reads if now - each.asked_at < REPORT_WAIT_S]
        if not fresh:
            return
        try:
            async with asyncio.timeout(fresh[0].asked_at + REPORT_WAIT_S - now):
                while any(each in self._reads for each in fresh):
                    self._has_moved.clear()
                    await self._has_moved.wait()
        except TimeoutError:
            return

    # --- answers ---

    def add(
        self, position: Position, pointers: Sequence[SlicePointer], objects: Sequence[ObjectPlace]
    ) -> None:
        """Take note of what an answer points to; it is read from the next `begin` on."""
        self._pointed.append((position, pointers, objects))

    def took_bytes(self, position: Position, size: int) -> None:
        """Take note that the leader itself has sent records."""
        self._hydrator.stats.direct_bytes_in += size
        if position.slices is not None:
            position.slices.got_bytes()

    def begin(self) -> None:
        """Read what was pointed to since the last time: of each object one range, for all partitions."""
        pointed, self._pointed = self._pointed, []
        if self._tasks is None:
            return
        allowed = self._hydrator.objects_allowed()
        by_object: dict[ObjectPlace, list[tuple[Position, Slice]]] = {}
        for position, pointers, objects in pointed:
            self._queue(position, pointers, objects, by_object, allowed)
        now = self._appender.now()
        for place, slices in by_object.items():
            *stream, seq = place
            for together in ranges(slices):
                read = _Read(Place(Stream(*stream), seq), together, now)
                for _, each in together:
                    each.begin(partial(self._done, read, each.pointer.size))
                self._reads[read] = None
                read.task = self._tasks.create_task(self._hydrate(read), name=f"read {read.place}")

    def _queue(
        self,
        position: Position,
        pointers: Sequence[SlicePointer],
        objects: Sequence[ObjectPlace],
        by_object: dict[ObjectPlace, list[tuple[Position, Slice]]],
        allowed: float,
    ) -> None:
        queue = position.slices
        if queue is None or not self._appender.is_followed(position):
            return
        end = position.partition.log.log_end_offset
        for pointer in pointers:
            follows = queue.follows(pointer, end)
            if follows is None:
                continue
            if not follows:
                if not queue:
                    queue.fail()  # to ask for the same pointers again would never end
                break
            place = objects[pointer.object]
            if place not in by_object and len(by_object) >= allowed:
                break
            if not self._hydrator.reserve(pointer.size):
                self._lacks_room(position)
                break
            by_object.setdefault(place, []).append((position, queue.add(pointer)))
            self._queued[position] = None
        self._appender.look_again(position)

    def _lacks_room(self, position: Position) -> None:
        """Wait for room; what does not fit where half of the memory is free is asked of the leader."""
        queue = position.slices
        assert queue is not None, position
        if not self._hydrator.has_room:
            queue.waits_for_room = True
            self._queued[position] = None
        elif not queue:
            queue.fail()

    def _done(self, read: _Read, size: int) -> None:
        """Free the memory of one slice. A read of which nothing is wanted any more is given up."""
        self._hydrator.release(size)
        read.wanted -= 1
        if not read.wanted:
            self._reads.pop(read, None)
            self._has_moved.set()
            if read.task is not None and read.there_at == -inf and read.task is not asyncio.current_task():
                read.task.cancel()

    # --- one read ---

    async def _hydrate(self, read: _Read) -> None:
        try:
            data = memoryview(await self._hydrator.read(read.place, read.start, read.end))
        except NotRead as error:
            self._not_read(read, error)
            return
        read.there_at = self._appender.now()
        for _, each in read.slices:
            if not each.is_done:
                at = each.pointer.position - read.start
                each.data, each.there_at = data[at : at + each.pointer.size], read.there_at
        taken = 0
        for position in dict.fromkeys(position for position, _ in read.slices):
            while (size := self._append_next(position)) is not None:
                taken += size + SLICE_COST_BYTES
                if taken >= TURN_BYTES:
                    taken = 0
                    await asyncio.sleep(0)
        for _, each in read.slices:
            each.keep_own_bytes()
        # what waits for a slice of another read is not waited for here
        self._reads.pop(read, None)
        self._has_moved.set()

    def _append_next(self, position: Position) -> int | None:
        """Append the next slice of a position, if it is there. Return its size."""
        queue = position.slices
        each = None if queue is None else queue.take()
        if queue is None or each is None:
            return None
        size, stats = each.pointer.size, self._hydrator.stats
        try:
            if not self._appender.is_followed(position):
                queue.drop()
                return size
            if self._appender.append_slice(position, each):
                stats.append_s.note(self._appender.now() - each.there_at)
                stats.hydrated_slices += 1
                stats.hydrated_bytes += size
        except BadObject as error:
            logger.error("%s: not appended from the store, asked of the leader: %s", position, error)
            stats.hydration_failures += 1
            queue.fail()
        finally:
            each.done()
            if not queue and not queue.waits_for_room:
                self._queued.pop(position, None)
        self._appender.look_again(position)
        return size

    def _not_read(self, read: _Read, error: NotRead) -> None:
        """Ask the leader for what could not be read. What comes after it is pointed to again later."""
        wanted = [(position, each) for position, each in read.slices if not each.is_done]
        if wanted:
            logger.info("%d slices are asked of the leader: %s", len(wanted), error)
        self._hydrator.stats.hydration_failures += len(wanted)
        for position, each in wanted:
            if not each.is_done and position.slices is not None:
                position.slices.fail()
                self._queued.pop(position, None)
                self._appender.look_again(position)

    # --- the store and the memory of the broker ---

    def _store_is_away(self) -> None:
        slices = sum(len(each.slices) for each in self._queued if each.slices is not None)
        self._hydrator.stats.hydration_failures += slices
        self._drop_all()
        self._appender.look_at_all()

    def _there_is_room(self) -> None:
        for position in list(self._queued):
            queue = position.slices
            if queue is not None and queue.waits_for_room:
                queue.waits_for_room = False
                if not queue:
                    del self._queued[position]
                self._appender.look_again(position)
        self._has_moved.set()


def ranges(slices: list[tuple[Position, Slice]]) -> Iterator[list[tuple[Position, Slice]]]:
    """Cut the slices of one object into those that are read together: all of them, unless what lies between
    them is more than both what is worth another request and a quarter of what is wanted."""
    together: list[tuple[Position, Slice]] = []
    end = wanted = unwanted = 0
    for position, each in sorted(slices, key=lambda each: each[1].pointer.position):
        at, size = each.pointer.position, each.pointer.size
        gap = max(at - end, 0)
        if together and unwanted + gap > max(GAP_BYTES, wanted // 4):
            yield together
            together, wanted, unwanted, gap = [], 0, 0, 0
        elif not together:
            gap = 0
        together.append((position, each))
        end, wanted, unwanted = at + size, wanted + size, unwanted + gap
    if together:
        yield together
