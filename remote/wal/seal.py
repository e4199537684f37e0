"""Ending the streams of a writer that cannot be asked: a seal at the first free slot.

Owns: the boundary of a stream, finding its end or making one, which generations there are. Does not own: who
needs a stream to end (broker), what the writer does then (uploader), deleting anything (collector).

The walk: of what the store lists above the boundary the first free slot is tried, never believed, because a
list may be old: a put that loses shows what lies there. A writer that is faster than this is stopped by a
seal further up, and the walk goes on below it. The lowest seal that counts is the end.

Invariants. A seal counts only when the boundary, read after the seal was won or found, is below it: a slot at
or below it may have been deleted, and free for that alone. So a walk that slept through anything ends the
stream where it ends, or nowhere. Walks of any number of brokers agree on the end, and a walk that is done
again changes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from remote.bad_object import BadObject
from remote.keys import Stream, WalKey, WalPart, parse_wal_key, stream_prefix, wal_key
from remote.store.object_store import NoSuchObject, ObjectInfo, ObjectStore, PutResult, StoreError
from remote.wal.combined_object import (
    HEAD_READ_BYTES,
    Head,
    ObjectKind,
    Place,
    decode_head,
    encode_table,
    table_bytes,
)

PAGE_KEYS: Final = 1000
STREAM_PAGE_KEYS: Final = 256
"""Of a stream that has gone a seal and its boundaries stay."""
LOST_BEFORE_STOP: Final = 4
"""So many slots are lost to the writer before it is stopped further up."""
STOP_AHEAD: Final = 64
WALKS_MAX: Final = 8
SLOTS_TRIED_MAX: Final = 4096
PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
GENERATIONS_MAX: Final = 1 << 16
PAST: Final = "~"
"""Sorts after all that a key may hold."""


class End(NamedTuple):
    """Where a stream ends: nothing at or above `seq` counts."""

    stream: Stream
    seq: int
    asked_by: int
    """The slot of the metadata log for whose sake it ends."""


class StreamPage(NamedTuple):
    """Some streams, one after the other."""

    streams: dict[Stream, list[ObjectInfo]]
    """Each with what lies first in it."""
    more_after: str | None
    """The key after which the next ones are listed; None after the last."""


class Sealer:
    def __init__(
        self,
        store: ObjectStore,
        *,
        cluster_id: Callable[[], str],
        writer: Callable[[], tuple[int, int]],
        rng: random.Random,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._writer = writer
        self._random = rng
        self._now_ms = now_ms

    async def boundary(self, stream: Stream, *, known: int = -1) -> int:
        """Return the highest slot that may have been deleted, -1 without one."""
        prefix = f"{stream_prefix(stream)}{WalPart.BOUNDARY}"
        after = "" if known < 0 else wal_key(stream, known, WalPart.BOUNDARY)
        while True:
            page = await self._store.list(prefix, after=after, at_most=PAGE_KEYS)
            known = max((known, *(key.seq for info in page if (key := parse_wal_key(info.key)))))
            if len(page) < PAGE_KEYS:
                return known
            after = page[-1].key

    async def streams(self, prefix: str) -> AsyncIterator[Stream]:
        """Yield the streams below a prefix, in order."""
        page = StreamPage({}, "")
        while page.more_after is not None:
            page = await self.stream_page(prefix, page.more_after)
            for stream in page.streams:
                yield stream

    async def stream_page(self, prefix: str, after: str) -> StreamPage:
        """Return the next streams below a prefix, by one request: of those of which little is left it shows
        many, and no more than the beginning of any other."""
        page = await self._store.list(prefix, after=after, at_most=STREAM_PAGE_KEYS)
        streams: dict[Stream, list[ObjectInfo]] = {}
        more_after = page[-1].key if len(page) == STREAM_PAGE_KEYS else None
        for info in page:
            if (key := parse_wal_key(info.key)) is not None:
                streams.setdefault(key.stream, []).append(info)
        if more_after is not None and (last := parse_wal_key(more_after)) is not None:
            more_after = stream_prefix(last.stream) + PAST
        return StreamPage(streams, more_after)

    async def end_epoch(self, node_id: int, broker_epoch: int, *, asked_by: int) -> End:
        """End what one incarnation of a broker writes: its newest generation, and on to one whose seal was
        asked for by `asked_by` or later. Until its image is there the writer opens none after that."""
        first = Stream(node_id, broker_epoch, 0)
        generation = 0
        async for stream in self.streams(stream_prefix(first).rpartition("-")[0] + "-"):
            generation = stream.generation
        for number in range(generation, GENERATIONS_MAX):
            end = await self.end(first._replace(generation=number), asked_by=asked_by)
            if end.asked_by >= asked_by:
                return end
        raise StoreError(f"broker {node_id}, epoch {broker_epoch}, has too many streams in the WAL tier")

    async def end(self, stream: Stream, *, asked_by: int) -> End:
        """Return where a stream ends, after ending it if it has no end."""
        boundary = await self.boundary(stream)
        for _ in range(WALKS_MAX):
            end = await self._walk(stream, boundary, asked_by)
            boundary = await self.boundary(stream, known=boundary)
            if end is not None and end.seq > boundary:
                return end
        raise StoreError(f"{stream} was collected all the time while its end was looked for")

    def is_seal_size(self, info: ObjectInfo) -> bool:
        """Whether an object is as small as one without slices."""
        return info.size <= table_bytes(self._cluster_id(), ())

    async def _walk(self, stream: Stream, boundary: int, asked_by: int) -> End | None:
        at = boundary + 1
        ahead = STOP_AHEAD
        is_stopped = False
        for lost in range(1, SLOTS_TRIED_MAX):
            at, seal = await self._first_free(stream, at)
            if seal is not None:
                return End(stream, at, seal.metadata_seq)
            taken, head = await self._place(Place(stream, at), asked_by)
            if not taken:
                return None
            if head is not None and head.kind is ObjectKind.SEAL:
                return End(stream, at, head.metadata_seq)
            at += 1
            if lost >= LOST_BEFORE_STOP and not is_stopped:
                taken, head = await self._place(Place(stream, at + ahead), asked_by)
                is_stopped = head is not None and head.kind is ObjectKind.SEAL
                ahead *= 2
        raise StoreError(f"{stream} is written faster than its end is looked for")

    async def _first_free(self, stream: Stream, at: int) -> tuple[int, Head | None]:
        """Return the first slot from `at` on that is not listed, or a seal before it, with its head."""
        prefix = stream_prefix(stream)
        while True:
            page = await self._store.list(
                prefix, after=wal_key(stream, at - 1) if at else "", at_most=PAGE_KEYS
            )
            for info in page:
                if parse_wal_key(info.key) != WalKey(stream, WalPart.OBJECT, at):
                    return at, None
                if self.is_seal_size(info):
                    head = await self.head(Place(stream, at))
                    if head is not None and head.kind is ObjectKind.SEAL:
                        return at, head
                at += 1
            if len(page) < PAGE_KEYS:
                return at, None

    async def head(self, place: Place) -> Head | None:
        """Return what an object says about itself; None when it is gone, or cannot be read."""
        try:
            data = await self._store.get_range(wal_key(*place), 0, HEAD_READ_BYTES)
            return decode_head(data)
        except (NoSuchObject, BadObject):
            return None

    async def _place(self, place: Place, asked_by: int) -> tuple[bool, Head | None]:
        """Put a seal where nothing lies. Return whether anything lies there then, and its head, None if it
        cannot be read."""
        head = Head(
            kind=ObjectKind.SEAL,
            cluster_id=self._cluster_id(),
            place=place,
            put_id=self._random.randbytes(16),
            metadata_seq=asked_by,
            writer=self._writer(),
            written_ms=self._now_ms(),
        )
        data = encode_table(head, ())
        for pause_s in PAUSES_S:
            result = await self._store.put_if_absent(wal_key(*place), data)
            if result is PutResult.WON:
                return True, head
            try:
                found = await self._store.get_range(wal_key(*place), 0, HEAD_READ_BYTES)
            except NoSuchObject:
                if result is PutResult.LOST:
                    return False, None  # taken a moment ago and gone now: collected
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.0))
                continue
            try:
                return True, decode_head(found)
            except BadObject:
                return True, None
        raise StoreError(f"nobody knows whether a seal lies at {place}")
