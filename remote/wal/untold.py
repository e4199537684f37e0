"""What is still to be told in the metadata topic, in bounded memory however long the topic is away.

Owns: in which order the events of a stream are told, what is kept of an object until then and what is read
from the bucket again, what need not be told any more. Does not own: the records (journal), sending them.
Pure.

Invariants. An object is told before any with a higher number in its stream, the end of a stream after all of
them. What is kept of objects stays within `bytes_max`, but for one: past it only their numbers are, and a run
of numbers is two. An event leaves only by `told`; one that was told and lost its answer is told again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from remote.keys import Stream
from remote.wal.combined_object import Place, Row

BYTES_MAX: Final = 8 << 20
_OBJECT_BYTES: Final = 300
_ROW_BYTES: Final = 400
"""What CPython takes for an object and for each of its rows, roughly."""


class Spans:
    """A set of numbers as runs [start, end), sorted and apart from each other."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, *runs: tuple[int, int]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in runs:
            self.add(start, end)

    def __repr__(self) -> str:
        return f"<Spans {', '.join(f'[{start}, {end})' for start, end in self.runs())}>"

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __iter__(self) -> Iterator[int]:
        for start, end in self.runs():
            yield from range(start, end)

    @property
    def count(self) -> int:
        return sum(self._ends) - sum(self._starts)

    @property
    def first(self) -> int:
        return self._starts[0]

    def runs(self) -> Iterator[tuple[int, int]]:
        return zip(tuple(self._starts), tuple(self._ends), strict=True)

    def add(self, start: int, end: int) -> None:
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)  # those it touches
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def discard(self, start: int, end: int) -> None:
        """Take the numbers of a run out."""
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low >= high:
            return
        left = [run for run in ((self._starts[low], start), (end, self._ends[high - 1])) if run[0] < run[1]]
        self._starts[low:high] = [run[0] for run in left]
        self._ends[low:high] = [run[1] for run in left]


class Stored(NamedTuple):
    """An object that counts."""

    seq: int
    put_id: bytes
    rows: tuple[Row, ...]

    @property
    def size_bytes(self) -> int:
        return _OBJECT_BYTES + _ROW_BYTES * len(self.rows)


class EventKind(Enum):
    OPENED = auto()
    OBJECT = auto()
    DELETE_STARTED = auto()
    DELETE_FINISHED = auto()
    ENDED = auto()


class Event(NamedTuple):
    kind: EventKind
    seq: int
    stored: Stored | None = None


class Batch(NamedTuple):
    """Events of one stream, in the order in which they are told."""

    stream: Stream
    events: tuple[Event, ...]


class ReadBack(NamedTuple):
    """Objects to be read from the bucket before anything else of their stream is told."""

    stream: Stream
    seqs: range


@dataclass(slots=True)
class _Stream:
    is_opened: bool = False
    is_ended: bool = False
    held: deque[Stored] = field(default_factory=deque)
    forgotten: Spans = field(default_factory=Spans)
    """Objects of which only the numbers are left."""
    deleting: Spans = field(default_factory=Spans)
    deleted: Spans = field(default_factory=Spans)

    @property
    def has_objects(self) -> bool:
        return bool(self.held or self.forgotten)

    @property
    def count(self) -> int:
        spans = self.forgotten.count + self.deleting.count + self.deleted.count
        return self.is_opened + self.is_ended + len(self.held) + spans


class Untold:
    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self.bytes = 0
        """Kept of objects."""
        self._bytes_max = bytes_max
        self._streams: dict[Stream, _Stream] = {}

    def __repr__(self) -> str:
        return f"<Untold {self.count} events of {len(self._streams)} streams, {self.bytes} bytes>"

    def __bool__(self) -> bool:
        return bool(self._streams)

    @property
    def count(self) -> int:
        return sum(each.count for each in self._streams.values())

    @property
    def room(self) -> int:
        """How much more may be kept of objects."""
        return max(0, self._bytes_max - self.bytes)

    # --- what happens ---

    def opened(self, stream: Stream) -> None:
        self._stream(stream).is_opened = True

    def counted(self, stream: Stream, stored: Stored) -> None:
        """Take note of an object; in a stream they come in order."""
        each = self._stream(stream)
        if self.bytes + stored.size_bytes > self._bytes_max:
            each.forgotten.add(stored.seq, stored.seq + 1)
        else:
            each.held.append(stored)
            self.bytes += stored.size_bytes

    def deleted(self, places: Iterable[Place], *, finished: bool) -> None:
        """Take note that objects go, or are gone."""
        for place in places:
            each = self._stream(place.stream)
            (each.deleted if finished else each.deleting).add(place.seq, place.seq + 1)

    def ended(self, stream: Stream) -> None:
        self._stream(stream).is_ended = True

    # --- what is to be told ---

    def next(self, *, count_max: int) -> Batch | ReadBack | None:
        """Return what comes first: it stays until it is told."""
        for stream, each in self._streams.items():
            events = self._events(each, count_max)
            if events:
                return Batch(stream, tuple(events))
            return ReadBack(stream, self._first_forgotten(each, count_max))
        return None

    def _events(self, each: _Stream, count_max: int) -> list[Event]:
        events = [Event(EventKind.OPENED, -1)] if each.is_opened else []
        self._let_go_of_deleted(each)
        until = each.forgotten.first if each.forgotten else None
        for stored in each.held:
            if len(events) >= count_max or (until is not None and stored.seq > until):
                break
            events.append(Event(EventKind.OBJECT, stored.seq, stored))
        if until is not None or len(events) >= count_max:
            return events
        for kind, spans in (
            (EventKind.DELETE_STARTED, each.deleting),
            (EventKind.DELETE_FINISHED, each.deleted),
        ):
            for seq in spans:
                if len(events) >= count_max:
                    return events
                events.append(Event(kind, seq))
        if each.is_ended and len(events) < count_max:
            events.append(Event(EventKind.ENDED, -1))
        return events

    def _let_go_of_deleted(self, each: _Stream) -> None:
        """Forget objects that are not to be read any more: that they go is all that is to be told."""
        for spans in (each.deleting, each.deleted):
            for start, end in spans.runs():
                each.forgotten.discard(start, end)
        kept = [one for one in each.held if one.seq not in each.deleting and one.seq not in each.deleted]
        if len(kept) < len(each.held):
            self.bytes -= sum(one.size_bytes for one in each.held) - sum(one.size_bytes for one in kept)
            each.held = deque(kept)

    def _first_forgotten(self, each: _Stream, count_max: int) -> range:
        start, end = next(each.forgotten.runs())
        return range(start, min(end, start + count_max))

    def read_back(self, stream: Stream, seqs: range, found: Iterable[Stored]) -> None:
        """Take what the bucket has of these objects, as far as there is room, but one always. What it has
        not is deleted."""
        each = self._streams.get(stream)
        if each is None:
            return
        read: list[Stored] = []
        stop = seqs.stop
        for one in found:
            if read and one.size_bytes > self.room:
                stop = one.seq
                break
            read.append(one)
            self.bytes += one.size_bytes
        each.forgotten.discard(seqs.start, stop)
        each.held = deque(sorted((*read, *each.held)))
        if not each.count:
            del self._streams[stream]

    def told(self, batch: Batch) -> None:
        """Let go of what is in the topic for good."""
        each = self._streams.get(batch.stream)
        if each is None:
            return
        for event in batch.events:
            match event.kind:
                case EventKind.OPENED:
                    each.is_opened = False
                case EventKind.ENDED:
                    each.is_ended = False
                case EventKind.OBJECT:
                    if each.held and each.held[0].seq == event.seq:
                        self.bytes -= each.held.popleft().size_bytes
                case EventKind.DELETE_STARTED:
                    each.deleting.discard(event.seq, event.seq + 1)
                case EventKind.DELETE_FINISHED:
                    each.deleted.discard(event.seq, event.seq + 1)
        if not each.count:
            del self._streams[batch.stream]

    def refused(self, stream: Stream) -> None:
        """Put a stream behind the others: who leads its part of the topic does not answer."""
        each = self._streams.pop(stream, None)
        if each is not None:
            self._streams[stream] = each

    def forget_objects(self, stream: Stream) -> None:
        """Leave the objects of a stream to others: what its writer was when it stored them it is no more."""
        each = self._streams.get(stream)
        if each is None:
            return
        self.bytes -= sum(one.size_bytes for one in each.held)
        each.held.clear()
        each.forgotten = Spans()
        each.is_ended = False
        if not each.count:
            del self._streams[stream]

    def _stream(self, stream: Stream) -> _Stream:
        return self._streams.setdefault(stream, _Stream())
