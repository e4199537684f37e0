"""Reads the slices of one object from the logs, in turns of the loop.

Owns: one slice after the other out of what is dirty, where in which file the next begins, at what rate a
backlog follows what comes in, when a log that could not be read is read again. Does not own: what is dirty
and when there is a cut (combiner, uploader), sending what was read (stream_writer).

Invariants. A slice lies in one segment and one batch epoch. A turn is short; what may not be in memory any
more is read away from the loop. Of a role that ended while its slice was read there, nothing is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from protocol.errors import KafkaError
from remote.wal.combiner import Cut
from remote.wal.sources import Offload, Piece, Source, piece_of
from remote.wal.stats import WalStats
from remote.wal.tail import Tail
from remote.wal.turns import TURN_S, TURN_SLICES, Turns
from storage.log import AbstractLog, LogSlice

BACKLOG_BYTES_PER_S: Final = 128 << 20
"""What has waited so long that followers were sent it is stored no faster, behind what comes in."""
BACKLOG_AHEAD_S: Final = 0.02
READ_HERE_BYTES: Final = 64 << 10
"""A slice of a backlog up to this size is read on the loop: a thousand in a cut, each by way of another
thread, would take seconds."""
READ_AGAIN_S: Final = 1.0
"""A log that could not be read is read again so much later, if nothing is appended before."""


class Cutter:
    def __init__(
        self,
        *,
        sources: Container[Source],
        stats: WalStats,
        offload: Offload,
        clock: Callable[[], float],
        cpu_s: Callable[[], float],
    ) -> None:
        """`sources` are those whose role has not ended."""
        self.turns = Turns(clock, cpu_s, stats)
        self._sources = sources
        self._stats = stats
        self._offload = offload
        self._clock = clock
        self._parked: dict[Source, None] = {}
        """With a backlog that is not yet due."""
        self._backlog_due = 0.0
        self._unread: dict[Source, None] = {}
        """Those whose logs could not be read."""
        self._read_again_at = 0.0

    def __repr__(self) -> str:
        return f"<Cutter {len(self._parked)} parked, {len(self._unread)} unread>"

    def forget(self, source: Source) -> None:
        self._parked.pop(source, None)
        self._unread.pop(source, None)

    # --- what is put off ---

    def wait_s(self, now: float) -> float | None:
        """Return in how many seconds something is due that was put off; None where nothing was."""
        waits = []
        if self._parked:
            waits.append(max(self._backlog_due - BACKLOG_AHEAD_S - now, TURN_S))
        if self._unread:
            waits.append(max(self._read_again_at - now, TURN_S))
        return min(waits, default=None)

    def take_due(self, now: float) -> list[Source]:
        """Return what was put off until now, and put it off no longer."""
        due: list[Source] = []
        if self._parked and self._backlog_due <= now + BACKLOG_AHEAD_S:
            due += self._parked
            self._parked.clear()
        if self._unread and self._read_again_at <= now:
            due += self._unread
            self._unread.clear()
        return due

    # --- reading ---

    async def fill(
        self,
        cut: Cut[Source],
        pieces: list[Piece],
        *,
        slices_max: int,
        object_bytes: int,
        is_in_vain: Callable[[], bool],
    ) -> bool:
        """Add a slice of each dirty partition to `pieces`, until nobody can use them any more. Return whether
        something was left for the next object."""
        turns = self.turns
        is_left = False
        while len(pieces) < slices_max and not is_in_vain():
            source = cut.next()
            if source is None:
                break
            tail, log = source.tail, source.log
            is_backlog = tail.is_direct
            if is_backlog and self._backlog_due > self._clock() + BACKLOG_AHEAD_S:
                self._parked[source] = None
                cut.took(0, has_more=False, now=self._clock())
                continue
            piece: Piece | None = None
            try:
                found = _find(tail, log, cut.room)
                if found is None or (found.size > cut.room and not cut.is_empty):
                    pass
                elif is_backlog and found.size > READ_HERE_BYTES:
                    turns.end()
                    piece = await self._read_away(source, found)
                    turns.begin()
                else:
                    piece = piece_of(source, found, found.read())
            except (OSError, KafkaError) as error:
                source.unreadable(error if isinstance(error, KafkaError) else log.flush_failed(error))
                now = self._clock()
                cut.took(0, has_more=False, now=now)
                if source in self._sources:
                    if not self._unread:
                        self._read_again_at = now + READ_AGAIN_S
                    self._unread[source] = None
                continue
            if piece is not None:
                pieces.append(piece)
                tail.cut(piece.row.end, log.log_end_offset)
            now, since = self._clock(), cut.since
            has_more = found is not None and tail.cut_to < log.log_end_offset
            is_left = is_left or (has_more and not is_backlog)
            cut.took(0 if piece is None else piece.row.size, has_more=has_more, now=now)
            source.was_cut(has_more=has_more)
            if is_backlog and piece is not None:
                self._backlog_due = max(self._backlog_due, now) + piece.row.size / BACKLOG_BYTES_PER_S
            if piece is not None and since is not None:
                self._stats.wait_s.note(now - since)
            await turns.step()
        if len(pieces) > TURN_SLICES:
            await turns.over()
        return is_left or len(pieces) == slices_max or cut.bytes >= object_bytes

    async def _read_away(self, source: Source, found: LogSlice) -> Piece | None:
        """Read what may not be in memory any more; None where the role has ended meanwhile, or something
        else is to be cut next."""
        tail, generation, cut_to = source.tail, source.log.generation, source.tail.cut_to
        data = await self._offload(found.read)
        if source not in self._sources or source.tail is not tail or source.log.generation != generation:
            return None
        if tail.cut_to != cut_to:
            return None
        return piece_of(source, found, data)


def _find(tail: Tail, log: AbstractLog, room: int) -> LogSlice | None:
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
