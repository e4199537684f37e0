"""The stream that this broker writes: its objects under way, what counts of them, its end, the next one.

Owns: the numbers of objects, their heads and places, the puts and their repetition, what an arrival
completes, what a seal ends and when the next generation may begin. Does not own: what goes into an object and
when (uploader, cutter), what counts (window), settling doubt about one put (storage_manager), the bytes
(combined_object).

Invariants. Nothing is told before the object and all before it are in the store. As many objects are under
way as may be, and nothing else holds their bytes. Nothing is told of a stream's objects after its end was.

A put that finds a seal ends the stream: those above it are given up, those below are waited for. One that
finds what cannot be read ends it too, and this broker seals it. The next generation begins once this broker's
image has come to the slot for whose sake the stream was sealed, and says that it lives: until then others may
lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from remote.keys import Stream, wal_key
from remote.store.object_store import StoreError
from remote.wal.combined_object import Head, ObjectKind, Place, Row, encode_table, place_slices
from remote.wal.counted import Counted, OnCounted, OnStream
from remote.wal.extents import Extent
from remote.wal.index_puts import IndexPuts
from remote.wal.seal import Sealer
from remote.wal.sources import Offload, Piece, Source, UploadSettings, Writer, head_by
from remote.wal.stats import WalStats
from remote.wal.storage_manager import CombinedMetadata, SlotTaken, WalStorageManager
from remote.wal.tail import Tail
from remote.wal.window import Window

RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
"""The pauses between attempts at one object, each of which lasts for seconds itself."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Sent:
    """An object under way, without its bytes."""

    owners: list[tuple[Source, Tail]]
    rows: tuple[Row, ...]
    table: bytes
    size: int
    cut_at: float


class StreamWriter:
    def __init__(
        self,
        *,
        manager: WalStorageManager,
        writer: Writer,
        settings: Callable[[], UploadSettings],
        stats: WalStats,
        offload: Offload,
        now_ms: Callable[[], int],
        random: random.Random,
        fail: Callable[[str], None],
        nudge: Callable[[], None],
    ) -> None:
        """`nudge` is called whenever fewer objects are under way; `fail` ends the broker: another process
        takes itself for this one."""
        self.on_counted: list[OnCounted] = []
        self.on_stream: list[OnStream] = []
        self.stream: Stream | None = None
        """The one that is written now."""
        self.slices = 0
        """Sent and not yet stored."""
        self.sealed_for: int | None = None
        """The slot for whose sake the last stream was sealed, until the next one is open."""
        self._manager = manager
        self._writer = writer
        self._settings = settings
        self._stats = stats
        self._now_ms = now_ms
        self._random = random
        self._fail = fail
        self._nudge = nudge
        self._loop = asyncio.get_running_loop()
        self._window: Window[_Sent] | None = None
        self._generation = 0
        self._indexes = IndexPuts(
            store=manager.store, writer=writer, offload=offload, now_ms=now_ms, random=random
        )
        self._sealer = Sealer(
            manager.store,
            cluster_id=lambda: writer.cluster_id,
            writer=lambda: (writer.node_id, writer.broker_epoch),
            rng=random,
            now_ms=now_ms,
        )
        self._sealing: asyncio.Task[None] | None = None
        """Ends the stream that is written, because something in it cannot be read."""
        self._tasks: asyncio.TaskGroup | None = None
        self._puts: dict[int, asyncio.Task[None]] = {}
        self._is_in_trouble = False
        self._is_over = False
        """Whether nothing more is stored in this life."""

    def __repr__(self) -> str:
        return f"<StreamWriter {self.stream} {self._window}>"

    @property
    def under_way(self) -> int:
        """How many objects are being put."""
        return len(self._puts)

    @property
    def has_room(self) -> bool:
        """Whether another object may leave."""
        if self._is_over:
            return False
        if self._window is not None:
            return self._window.has_room
        return self.sealed_for is None or self._writer.may_reopen(self.sealed_for)

    def is_sealed(self) -> bool:
        """Whether nothing that is sent now would count."""
        return self._window is not None and self._window.is_sealed

    @property
    def is_ending(self) -> bool:
        """Whether this broker seals its own stream."""
        return self._sealing is not None

    def start(self, task_group: asyncio.TaskGroup) -> None:
        self._tasks = task_group
        self._indexes.start(task_group)

    def give_up(self) -> list[asyncio.Task[None]]:
        """Begin nothing more; return what ends now."""
        self._tasks = None
        rest = [*self._puts.values()]
        if self._sealing is not None:
            rest.append(self._sealing)
        for task in rest:
            task.cancel()
        self._puts.clear()
        return rest + self._indexes.give_up()

    # --- streams ---

    def ensure_open(self) -> None:
        """Begin a stream if there is none."""
        if self._window is not None:
            return
        if self.sealed_for is not None:
            self._stats.generations += 1
            self.sealed_for = None
        writer = self._writer
        self.stream = Stream(writer.node_id, writer.broker_epoch, self._generation)
        self._window = Window(limit=self._settings().in_flight)
        for listener in self.on_stream:
            listener(self.stream, True)

    def end_if_settled(self) -> bool:
        """End a stream that was sealed once nothing is under way in it any more. Return whether it ended:
        then every tail has to go back to what counts."""
        stream, window = self.stream, self._window
        if stream is None or window is None or not window.is_sealed or not window.is_settled:
            return False
        if self._sealing is not None:
            return False
        self.stream = self._window = None
        self._generation += 1
        self.slices = 0
        self._indexes.stream_ended()
        for listener in self.on_stream:
            listener(stream, False)
        return True

    # --- objects ---

    def send(self, pieces: list[Piece]) -> None:
        """Send an object of these slices."""
        stream, window, writer = self.stream, self._window, self._writer
        assert stream is not None and window is not None and self._tasks is not None
        pieces.sort(key=lambda piece: sorted(piece.source.replicas))  # one range serves one follower
        place = Place(stream, window.end)
        rows = tuple(place_slices(writer.cluster_id, [_row(piece, stream) for piece in pieces]))
        head = head_by(
            writer,
            ObjectKind.SLICES,
            place,
            put_id=self._random.randbytes(16),
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
        self.slices += len(rows)
        metadata = CombinedMetadata(head=head, rows=rows)
        self._puts[seq] = self._tasks.create_task(self._put(window, metadata, data))

    async def _put(self, window: Window[_Sent], metadata: CombinedMetadata, data: bytes) -> None:
        seq = metadata.place.seq
        pause_s = RETRY_MIN_S
        while True:
            try:
                copied = await self._manager.copy(metadata, data)
            except SlotTaken as taken:
                self._taken(window, seq, taken.head)
                return
            except StoreError as error:
                if not self._is_in_trouble:
                    self._is_in_trouble = True
                    logger.warning("the ends of logs wait on this disk for the store: %s", error)
            else:
                if copied.custom is not None and len(copied.custom) > self._settings().custom_bytes:
                    await self._drop(window, metadata.place, len(copied.custom))
                else:
                    self._arrived(window, seq)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _arrived(self, window: Window[_Sent], seq: int) -> None:
        if window is not self._window or self._puts.pop(seq, None) is None:
            return  # it was given up
        self._nudge()
        if self._is_in_trouble:
            self._is_in_trouble = False
            logger.info("the ends of logs go to the store again")
        counted = window.arrived(seq)
        if not counted:
            return
        assert self.stream is not None
        now, stream, stats = self._loop.time(), self.stream, self._stats
        owners: dict[Source, None] = {}
        for number, sent in counted:
            place = Place(stream, number)
            for (source, tail), row in zip(sent.owners, sent.rows, strict=True):
                tail.stored(
                    Extent(row.start, row.end, row.batch_epoch, place, row.position, row.size, row.crc32c),
                    now,
                )
                owners[source] = None
            self.slices -= len(sent.rows)
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
            self._indexes.counted(told)

    def _taken(self, window: Window[_Sent], seq: int, head: Head | None) -> None:
        """End the stream at a seal, or at what cannot be read: nothing at or above it will ever count."""
        if window is not self._window or self._puts.pop(seq, None) is None:
            return
        self._nudge()
        if head is None:
            logger.error("object %d of %s cannot be read: a new stream is opened", seq, self.stream)
            self._seal()
        elif head.kind is not ObjectKind.SEAL:
            self._fail(
                f"another process writes as node {self._writer.node_id} in broker epoch "
                f"{self._writer.broker_epoch}: {head.place} holds what this one did not write"
            )
            return
        else:
            logger.info("stream %s was ended at %d by broker %d", head.place.stream, seq, head.writer[0])
            self.sealed_for = max(self.sealed_for or 0, head.metadata_seq)
        self._give_up_from(window, seq)

    async def _drop(self, window: Window[_Sent], place: Place, custom_bytes: int) -> None:
        """Drop an object of which its manager says more than may be told, and store nothing more: that would
        not change."""
        logger.error(
            "the manager of the WAL tier says %d bytes of an object, which is more than "
            "remote.log.metadata.custom.metadata.max.bytes: nothing more is stored there",
            custom_bytes,
        )
        self._is_over = True
        with contextlib.suppress(StoreError):
            await self._manager.store.delete(wal_key(*place))
        if window is self._window and self._puts.pop(place.seq, None) is not None:
            self._nudge()
            self._seal()
            self._give_up_from(window, place.seq)

    def _give_up_from(self, window: Window[_Sent], seq: int) -> None:
        window.sealed(seq)
        window.gave_up(seq)
        self._stats.void_objects += 1
        for above in [other for other in self._puts if other > seq]:
            self._puts.pop(above).cancel()
            window.gave_up(above)
            self._stats.void_objects += 1

    def _seal(self) -> None:
        stream = self.stream
        assert stream is not None
        if self._sealing is None and self._tasks is not None:
            self._sealing = self._tasks.create_task(self._end(stream))

    async def _end(self, stream: Stream) -> None:
        """Seal the stream, however often that has to be tried."""
        pause_s = RETRY_MIN_S
        while True:
            try:
                end = await self._sealer.end(stream, asked_by=self._writer.metadata_seq)
                break
            except StoreError as error:
                logger.warning("%s is not ended yet: %s", stream, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
        self.sealed_for = max(self.sealed_for or 0, end.asked_by)
        self._sealing = None
        self._nudge()


def _row(piece: Piece, stream: Stream) -> Row:
    """Name the slice before this one, where this is the partition's first in the stream."""
    tail = piece.tail
    if tail.in_stream == stream:
        return piece.row
    tail.in_stream = stream
    return piece.row._replace(previous=tail.previous)
