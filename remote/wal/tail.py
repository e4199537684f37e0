"""What the leader of one partition has stored of its log in one leader epoch, and what it still has to.

Owns: how far the log was cut into slices and how far these are stored, what a follower may be pointed to or
has to be sent, since when the oldest record that is not stored has waited. Does not own: reading slices,
sending them (uploader), sessions and packing (broker). Pure: time is an argument.

Invariants. `stored_to` <= `cut_to`, but while the tail moves: then what it has stored is stored once more. A
follower is pointed only to what this leader stored in this epoch; what
is older it is sent at once, what is not stored yet only while the tail `is_direct`. What was cut and did not
come to the store is cut again (`rewind`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID

from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.extents import FORGET_AT, Extent, Extents
from storage.log import ReadCursor

DIRECT_AFTER_S: Final = 2.0
"""What has waited for the store so long is sent to followers, like all that follows it."""
POINTED_AT_ONCE: Final = 64
"""Slices of one partition in one answer."""
_TIMES_MAX: Final = 128
_OLDER_MAX: Final = 64


class TailKey(NamedTuple):
    topic_id: UUID
    partition: int


class Offer(Enum):
    """What a follower gets that stands at some offset."""

    NOTHING = auto()
    POINTERS = auto()
    BYTES = auto()


class Move(NamedTuple):
    """A part of the log that is stored once more."""

    start: int
    end: int
    place: Place | None = None
    """Of its first slice, once that counts."""
    is_cut: bool = False
    """Whether all of it was read, and what came meanwhile is in `end`: compaction may have taken records for
    the sake of that."""


class EndTimes:
    """When which records were appended, so that a lag in offsets can be told as time.

    Appends within `spacing_s` count as one, of those that were long ago within `coarse_s`: a record is told
    to be older than it is by less than that, and never younger."""

    __slots__ = ("_appends", "_coarse_s", "_older", "_spacing_s", "_start")

    def __init__(self, start: int, *, spacing_s: float, coarse_s: float = 0.0) -> None:
        self._spacing_s = spacing_s
        self._coarse_s = coarse_s
        self._older: deque[tuple[float, int]] = deque()
        """What was before `_appends`."""
        self._start = start
        """The first offset of which the time is known."""
        self._appends: deque[tuple[float, int]] = deque()
        """When the first of some appends came, and where the log ended after the last of them."""

    def note(self, end: int, now: float) -> None:
        """Take note that the log ends at `end` now, after something was appended."""
        appends = self._appends
        if appends and now - appends[-1][0] < self._spacing_s:
            appends[-1] = (appends[-1][0], end)
            return
        appends.append((now, end))
        if len(appends) > _TIMES_MAX:
            self._grow_old(*appends.popleft())

    def _grow_old(self, at: float, end: int) -> None:
        older = self._older
        if older and at - older[-1][0] < self._coarse_s:
            older[-1] = (older[-1][0], end)
            return
        older.append((at, end))
        if len(older) > _OLDER_MAX:
            self._start = older.popleft()[1]

    def appended_at(self, offset: int) -> float | None:
        """Return when the record at `offset` was appended; None where that is not known."""
        if offset < self._start:
            return None
        older = self._older
        appends = older if older and offset < older[-1][1] else self._appends
        at = bisect_right(appends, offset, key=itemgetter(1))
        return appends[at][0] if at < len(appends) else None


class Tail:
    """One partition in one leader epoch."""

    __slots__ = (
        "cursor",
        "cut_to",
        "end_times",
        "epoch_start",
        "extents",
        "floor",
        "in_stream",
        "is_direct",
        "key",
        "leader_epoch",
        "moved",
        "moving",
        "previous",
        "stored_at",
        "stored_to",
    )

    def __init__(
        self,
        key: TailKey,
        *,
        leader_epoch: int,
        epoch_start: int,
        stored_to: int,
        end_times: EndTimes,
        previous: Place | None = None,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.epoch_start = epoch_start
        self.cut_to = stored_to
        """Where the next slice begins."""
        self.stored_to = stored_to
        """Everything below counts as stored, as far as this leader knows."""
        self.floor = -1
        """Nothing below is needed from the store, as this leader said last; -1 before it said anything."""
        self.stored_at = 0.0
        """When the newest slice began to count."""
        self.extents = Extents()
        self.end_times = end_times
        self.is_direct = False
        """Whether followers are sent what is not stored."""
        self.moving: Move | None = None
        """What is stored once more at present."""
        self.moved: Place | None = None
        """What is needed of what lies before it was stored once more from there on."""
        self.previous = previous
        """Where the newest slice of this partition lies that this broker stored."""
        self.in_stream: Stream | None = None
        """The stream for which the first slice was cut; a slice in another one names `previous`."""
        self.cursor: ReadCursor | None = None
        """Where in which file the next slice begins, for the reader of the log."""

    def __repr__(self) -> str:
        mode = "direct" if self.is_direct else "pointers"
        return f"<Tail {self.key.partition} stored to {self.stored_to}, cut to {self.cut_to}, {mode}>"

    def stored(self, extent: Extent, now: float) -> None:
        """Take note that a slice counts: its object and all before it in the stream are in the store."""
        self.extents.add(extent)
        if self.moving is not None:
            self._moved_on(self.moving, extent)
        self.stored_at = now
        self.stored_to = max(self.stored_to, extent.end)
        self.previous = extent.place

    def forget_read(self, ends: Iterable[int]) -> None:
        """Forget what no follower lacks, given where their logs end. One whose log ends below all that is
        known is sent records whatever is kept."""
        extents = self.extents
        if len(extents) > FORGET_AT:
            start = extents.start
            extents.forget(min((end for end in ends if end >= start), default=self.stored_to))

    def rewind(self) -> None:
        """Cut again what did not come to the store: the stream was sealed."""
        self.cut_to = self.stored_to
        self.cursor = None
        self.moving = None

    def cut(self, end: int, log_end: int) -> None:
        """Take note that the next slice, up to `end`, was read from a log that ends at `log_end`."""
        self.cut_to = end
        move = self.moving
        if move is not None and not move.is_cut and end >= move.end:
            self.moving = move._replace(end=max(move.end, log_end), is_cut=True)

    def cut_again(self, start: int) -> None:
        """Cut once more what begins at `start`, or further down where the tail moves by now."""
        self.cut_to = min(self.cut_to, start)
        self.cursor = None

    def move(self, start: int, end: int) -> None:
        """Store once more what lies in [start, end) of the log, and then what follows."""
        assert start < self.stored_to, (start, self)
        self.moving = Move(start, end)
        self.cut_to = start
        self.cursor = None

    def _moved_on(self, move: Move, extent: Extent) -> None:
        """Take note of a slice. With one that begins as low as the move a run begins: of those that were cut
        before it each goes on where the last one ended, and one of them begins so low only where the log
        start has come as far."""
        place = extent.place if move.place is None and extent.start <= move.start else move.place
        if place is None:
            return
        self.moving = move._replace(place=place)
        if move.is_cut and extent.end >= move.end:
            self.moved, self.moving = place, None

    def skip_to(self, log_start: int) -> None:
        """Go on at the log's start: what lies below was deleted before it was stored."""
        if self.cut_to < log_start:
            self.cut_to = log_start
            self.cursor = None
            if self.moving is not None and self.moving.start < log_start:
                self.moving = self.moving._replace(start=log_start)
        self.stored_to = max(self.stored_to, min(log_start, self.cut_to))

    def offer(self, offset: int, end: int) -> Offer:
        """Say what a follower gets that stands at `offset` of a log that ends at `end`."""
        if offset >= end:
            return Offer.NOTHING
        extents = self.extents
        if extents and extents.start <= offset < extents.end:
            return Offer.POINTERS
        if offset < self.stored_to:
            return Offer.BYTES
        return Offer.BYTES if self.is_direct else Offer.NOTHING

    def pointers(self, offset: int, *, max_bytes: int, count_max: int = POINTED_AT_ONCE) -> list[Extent]:
        return self.extents.after(offset, max_bytes=max_bytes, count_max=min(count_max, POINTED_AT_ONCE))

    def unstored_s(self, end: int, now: float) -> float:
        """Return for how many seconds the oldest record has waited that is not stored."""
        if self.stored_to >= end:
            return 0.0
        since = self.end_times.appended_at(self.stored_to)
        return inf if since is None else now - since

    def judge(self, end: int, now: float) -> bool:
        """Decide anew whether followers are sent what is not stored. Return whether that changed."""
        limit_s = DIRECT_AFTER_S / 2 if self.is_direct else DIRECT_AFTER_S
        is_direct = self.unstored_s(end, now) > limit_s
        changed = is_direct is not self.is_direct
        self.is_direct = is_direct
        return changed
