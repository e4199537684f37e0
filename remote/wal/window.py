"""The objects of one stream that are on their way to the store: sequential numbers, a few at a time, and the
contiguous prefix of those that arrived.

Owns: which number comes next, how many may be under way, what an arrival completes, where the stream ended.
Does not own: the puts, settling doubt about one of them, what is in an object (`T`). Pure.

Invariants. Numbers rise by one and are never used twice. Only the prefix counts: an object is handed out by
`arrived` once every object before it has arrived, in order, exactly once. Once the stream is sealed at some
number nothing at or above it is ever handed out, and no number is given any more.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

IN_FLIGHT_MAX: Final = 4


class Window(Generic[T]):
    __slots__ = ("_arrived", "_end", "_in_flight", "_limit", "_next", "prefix")

    def __init__(self, *, limit: int = IN_FLIGHT_MAX) -> None:
        self.prefix = 0
        """The first number that has not arrived, or not all before it."""
        self._limit = limit
        self._next = 0
        self._end: int | None = None
        self._in_flight: dict[int, T] = {}
        self._arrived: dict[int, T] = {}

    def __repr__(self) -> str:
        end = "" if self._end is None else f", sealed at {self._end}"
        return f"<Window [{self.prefix}, {self._next}), {len(self._in_flight)} in flight{end}>"

    @property
    def has_room(self) -> bool:
        """Whether another object may leave. What waits for an earlier one counts too: it holds memory."""
        return self._end is None and len(self._in_flight) + len(self._arrived) < self._limit

    @property
    def is_sealed(self) -> bool:
        return self._end is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way any more."""
        return not self._in_flight

    @property
    def end(self) -> int:
        """The number that the next object gets; of a sealed stream, where it ended."""
        return self._next if self._end is None else self._end

    def sent(self, item: T) -> int:
        """Give an object its number."""
        assert self.has_room, self
        seq = self._next
        self._next += 1
        self._in_flight[seq] = item
        return seq

    def arrived(self, seq: int) -> list[tuple[int, T]]:
        """Take note that an object is in the store. Return those that count from now on."""
        item = self._in_flight.pop(seq)
        if self._end is not None and seq >= self._end:
            return []
        self._arrived[seq] = item
        counted = []
        while self.prefix in self._arrived:
            counted.append((self.prefix, self._arrived.pop(self.prefix)))
            self.prefix += 1
        return counted

    def sealed(self, at: int) -> list[tuple[int, T]]:
        """Take note that the stream ended at `at`: the object that was to be there, and all above, count
        never. Return those that were sent in vain, in order; of puts still under way only `gave_up` and
        `arrived` may follow."""
        assert at >= self.prefix, f"sealed at {at}, where {self} already counted"
        self._end = at if self._end is None else min(at, self._end)
        void = [*self._in_flight.items(), *self._arrived.items()]
        for seq in [seq for seq in self._arrived if seq >= self._end]:
            del self._arrived[seq]
        return sorted((each for each in void if each[0] >= self._end), key=lambda each: each[0])

    def gave_up(self, seq: int) -> None:
        """Take note that nothing more is done about an object of a sealed stream."""
        assert self._end is not None, self
        self._in_flight.pop(seq)
