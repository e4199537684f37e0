"""Deletes objects of the WAL tier that nobody needs, from the oldest of a stream on.

Owns: reading tables in order, what is dead from the boundary on, the boundary, the two steps of a deletion,
sweeping what arrived late. Does not own: when a slice is dead (floors), where a stream ends (seal), which
streams there are and whose turn it is (broker).

A round takes a few steps of one stream and remembers little: the oldest living object holds back all that
come after it, so nothing further up is read. What a round would do that slept for an hour is what it would
have done before: what is dead stays dead.

Invariants. The boundary is put, and known to be there, before the first object goes; it stays below the
stream's end, so no seal that counts is passed, and no object goes that a writer may still take for missing.
Between the boundary and the deletion lies a grace, by this process's monotonic clock: who has been pointed to
an object can read it to its end. Seals and boundaries stay. What lies below a boundary or above the end, and
is no seal, is void and goes, whenever it came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from protocol.checksum import Buffer
from remote.bad_object import BadObject
from remote.keys import Stream, WalPart, parse_wal_key, stream_prefix, wal_key
from remote.store.object_store import NoSuchObject, ObjectStore, PutResult
from remote.wal.combined_object import (
    HEAD_READ_BYTES,
    INDEXED_OBJECTS,
    MAGIC,
    VERSION,
    ObjectKind,
    Place,
    Table,
    decode_table,
    split_index,
    table_end,
)
from remote.wal.floors import View, is_dead
from remote.wal.seal import Sealer

GRACE_S: Final = 60.0
LATE_S: Final = 120.0
"""What a dead writer sent arrives within this time, or is found when somebody looks again."""
BOUNDARY_EVERY_S: Final = 120.0
BOUNDARY_OBJECTS: Final = 4096
"""Boundaries stay for ever: a new one has to be worth it."""
TABLES_A_ROUND: Final = 8192
HEADS_A_ROUND: Final = 512
DELETED_A_ROUND: Final = 8192
SWEPT_A_ROUND: Final = 512
AT_ONCE: Final = 8

logger = logging.getLogger(__name__)

OnDeleted = Callable[[Sequence[Place], bool], None]
"""(objects, whether they are gone): before the first of them goes, and once all of them are."""


class MissingObject(Exception):
    """A stream has a hole where an object should lie: its end has to be looked for again."""


class _Doomed(NamedTuple):
    """Objects below the boundary or above the end, in their grace."""

    seqs: Sequence[int]
    size: int
    due_s: float


@dataclass(slots=True)
class Course:
    """How far one stream has been collected."""

    stream: Stream
    boundary: int
    dead_to: int
    """From the boundary up to here, exclusive, everything is dead."""
    dead_bytes: int = 0
    bounded_s: float = -inf
    living: Table | None = None
    """The first object that is needed, as it was read last."""
    doomed: deque[_Doomed] = field(default_factory=deque)
    began_s: float = 0.0

    @property
    def unreferenced_bytes(self) -> int:
        return self.dead_bytes + sum(each.size for each in self.doomed)


class Collector:
    def __init__(
        self, store: ObjectStore, sealer: Sealer, *, cluster_id: Callable[[], str], view: View
    ) -> None:
        self.on_deleted: list[OnDeleted] = []
        self._store = store
        self._sealer = sealer
        self._cluster_id = cluster_id
        self._view = view
        self._loop = asyncio.get_running_loop()
        self._courses: dict[Stream, Course] = {}

    def __repr__(self) -> str:
        return f"<Collector of {len(self._courses)} streams, {self.unreferenced_bytes} bytes to go>"

    @property
    def unreferenced_bytes(self) -> int:
        return sum(course.unreferenced_bytes for course in self._courses.values())

    def held_back(self, stream: Stream, end: int) -> int:
        """Return how many objects wait for the oldest one that is needed, that one included."""
        course = self._courses.get(stream)
        return 0 if course is None else end - course.dead_to

    def forget(self, stream: Stream) -> None:
        """Begin with nothing known the next time: another broker collects it, or its end was wrong."""
        self._courses.pop(stream, None)

    async def collect(self, stream: Stream, end: int, *, is_sealed: bool) -> bool:
        """Take a round of a stream whose objects count up to `end`. Return whether nothing is left of it, and
        nothing can come."""
        now = self._loop.time()
        course = self._courses.get(stream)
        if course is None:
            boundary = await self._sealer.boundary(stream)
            course = Course(stream, boundary, boundary + 1, began_s=now)
            self._courses[stream] = course
        await self._delete_due(course)
        await self._find_dead(course, end, is_sealed=is_sealed)
        if self._is_worth_it(course, is_sealed=is_sealed):
            await self._move_boundary(course)
        await self._sweep(course, end if is_sealed else None)
        is_empty = is_sealed and not course.doomed and course.boundary >= end - 1
        return is_empty and self._loop.time() >= course.began_s + LATE_S

    # --- what is dead ---

    async def _find_dead(self, course: Course, end: int, *, is_sealed: bool) -> None:
        tables_left, heads_left = TABLES_A_ROUND, HEADS_A_ROUND
        while course.dead_to < end and tables_left > 0 and heads_left > 0:
            if course.living is not None and not self._is_dead(course.living):
                return
            course.living = None
            block = course.dead_to - course.dead_to % INDEXED_OBJECTS
            raw: Sequence[bytes | memoryview] = ()
            if block + INDEXED_OBJECTS <= end:
                raw = await self._indexed(course.stream, block)
            if raw:
                raw = raw[course.dead_to - block :]
            else:
                count = min(AT_ONCE, end - course.dead_to, block + INDEXED_OBJECTS - course.dead_to)
                raw = await self._heads(course, count)
                heads_left -= count
            tables_left -= len(raw)
            if not await self._take_dead(course, raw, is_sealed=is_sealed):
                return

    async def _take_dead(self, course: Course, raw: Sequence[bytes | memoryview], *, is_sealed: bool) -> bool:
        """Go on through the tables that follow; return whether all of them are dead."""
        for data in raw:
            await asyncio.sleep(0)  # a table takes a part of a millisecond, an index object would take many
            place = Place(course.stream, course.dead_to)
            try:
                table = decode_table(data)
            except BadObject as error:
                if not is_sealed or _is_newer(data) or not await self._is_damaged(place):
                    logger.warning("%s cannot be read, and holds back what follows: %s", place, error)
                    return False
                course.dead_to += 1
                continue
            head = table.head
            if (
                head.kind is not ObjectKind.SLICES
                or head.place != place
                or head.cluster_id != self._cluster_id()
            ):
                logger.warning("at %s lies something else, which holds back what follows: %s", place, head)
                return False
            if not self._is_dead(table):
                course.living = table
                return False
            course.dead_to += 1
            course.dead_bytes += table.size_bytes
        return True

    def _is_dead(self, table: Table) -> bool:
        head = table.head
        return all(is_dead(row, head.place, head.metadata_seq, self._view) for row in table.rows)

    async def _indexed(self, stream: Stream, block: int) -> Sequence[memoryview]:
        """Return the tables of a block of objects as its index object has them, none without one."""
        try:
            head, tables = split_index(await self._store.get(wal_key(stream, block, WalPart.INDEX)))
        except (NoSuchObject, BadObject):
            return ()
        return tables if head.place == (stream, block) and len(tables) == INDEXED_OBJECTS else ()

    async def _heads(self, course: Course, count: int) -> Sequence[bytes]:
        """Return the tables of the next objects, read from themselves."""
        first = course.dead_to
        try:
            return await asyncio.gather(
                *(self._table(Place(course.stream, seq)) for seq in range(first, first + count))
            )
        except NoSuchObject:
            # a hole, or another broker collects this stream too
            self.forget(course.stream)
            raise MissingObject(f"one of {count} objects from {first} on of {course.stream}") from None

    async def _table(self, place: Place) -> bytes:
        key = wal_key(*place)
        data = await self._store.get_range(key, 0, HEAD_READ_BYTES)
        try:
            end = table_end(data)
        except BadObject:
            return data
        return data[:end] if end <= len(data) else await self._store.get_range(key, 0, end)

    async def _is_damaged(self, place: Place) -> bool:
        """Whether an object cannot be read when it is asked for once more either."""
        try:
            decode_table(await self._table(place))
        except (BadObject, NoSuchObject):
            return True
        return False

    # --- how it goes ---

    def _is_worth_it(self, course: Course, *, is_sealed: bool) -> bool:
        dead = course.dead_to - course.boundary - 1
        is_due = self._loop.time() >= course.bounded_s + BOUNDARY_EVERY_S
        return dead > 0 and (is_sealed or is_due or dead >= BOUNDARY_OBJECTS)

    async def _move_boundary(self, course: Course) -> None:
        boundary = course.dead_to - 1
        key = wal_key(course.stream, boundary, WalPart.BOUNDARY)
        if await self._store.put_if_absent(key, b"") is PutResult.UNKNOWN:
            return  # the next round asks again, and nothing goes before that
        seqs = range(course.boundary + 1, boundary + 1)
        size, course.dead_bytes = course.dead_bytes, 0
        course.boundary = boundary
        course.bounded_s = self._loop.time()
        self._doom(course, seqs, size)

    def _doom(self, course: Course, seqs: Sequence[int], size: int) -> None:
        course.doomed.append(_Doomed(seqs, size, self._loop.time() + GRACE_S))
        self._tell(course.stream, seqs, is_gone=False)

    def _tell(self, stream: Stream, seqs: Iterable[int], *, is_gone: bool) -> None:
        places = [Place(stream, seq) for seq in seqs]
        for listener in self.on_deleted:
            listener(places, is_gone)

    async def _delete_due(self, course: Course) -> None:
        left = DELETED_A_ROUND
        while course.doomed and course.doomed[0].due_s <= self._loop.time() and left > 0:
            doomed = course.doomed[0]
            left -= len(doomed.seqs)
            await self._delete(wal_key(course.stream, seq) for seq in doomed.seqs)
            if course.doomed and course.doomed[0] is doomed:
                course.doomed.popleft()
                self._tell(course.stream, doomed.seqs, is_gone=True)

    async def _delete(self, keys: Iterable[str]) -> None:
        waiting = iter(list(keys))

        async def work() -> None:
            for key in waiting:
                await self._store.delete(key)

        workers: list[Awaitable[None]] = [work() for _ in range(AT_ONCE)]
        await asyncio.gather(*workers)

    async def _sweep(self, course: Course, end: int | None) -> None:
        """Doom what arrived late, and delete index objects of which nothing is left."""
        stream, prefix = course.stream, stream_prefix(course.stream)
        void = await self._void(course, "", lambda seq: seq <= course.boundary)
        if end is not None:
            void += await self._void(course, wal_key(stream, end), lambda seq: seq > end)
        if void:
            self._doom(course, [seq for seq, _ in void], sum(size for _, size in void))
        is_empty = end is not None and course.boundary >= end - 1
        found = await self._store.list(f"{prefix}{WalPart.INDEX}", at_most=SWEPT_A_ROUND)
        await self._delete(
            info.key
            for info in found
            if (key := parse_wal_key(info.key))
            and (is_empty or key.seq + INDEXED_OBJECTS - 1 <= course.boundary)
        )

    async def _void(
        self, course: Course, after: str, is_void: Callable[[int], bool]
    ) -> list[tuple[int, int]]:
        """Return (seq, bytes) of the first objects after a key that are void, no seals, and not doomed."""
        page = await self._store.list(stream_prefix(course.stream), after=after, at_most=SWEPT_A_ROUND)
        return [
            (key.seq, info.size)
            for info in page
            if (key := parse_wal_key(info.key)) is not None
            and key.part is WalPart.OBJECT
            and is_void(key.seq)
            and not self._sealer.is_seal_size(info)
            and not any(key.seq in each.seqs for each in course.doomed)
        ]


def _is_newer(data: Buffer) -> bool:
    """Whether another release wrote these bytes, which may read them."""
    return bytes(data[:4]) == MAGIC and data[4:6] != VERSION.to_bytes(2, "big")
