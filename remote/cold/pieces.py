"""Which copies have which offsets of one leader epoch.

Owns: the index of an epoch's pieces, a piece being the offsets that one copy has of it; where what they have
breaks off, and where one can do without another. Does not own: the copies, which epochs a log has (lineage).
Invariant: a piece that another contains is set aside, so of all others both ends rise, and one bisection
finds the piece that has an offset; which are set aside follows from the pieces, not from their order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple


class Piece(NamedTuple):
    """The offsets that a copy has of one epoch."""

    start: int
    end: int
    number: int

    def contains(self, other: Piece) -> bool:
        """Whether `other` adds nothing; of equals the one with the lower id stays."""
        if (self.start, self.end) == (other.start, other.end):
            return self.number <= other.number
        return self.start <= other.start and other.end <= self.end


class EpochIndex:
    """The pieces of one epoch. Those in the columns contain none of each other, so `starts` and `ends` both
    rise; each piece in `aside` lies in one of them."""

    __slots__ = ("aside", "aside_length_max", "ends", "ids", "overlap_ends", "run_ends", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.ids: list[int] = []
        self.run_ends: list[int] = []
        """Ends after which there is a gap, or nothing."""
        self.overlap_ends: list[int] = []
        """Ends above the start of the next column."""
        self.aside: list[Piece] = []
        self.aside_length_max = 0

    def find(self, offset: int) -> int:
        """The column that has `offset`, -1 without one."""
        at = bisect_right(self.starts, offset) - 1
        return at if at >= 0 and self.ends[at] > offset else -1

    def first_from(self, offset: int) -> int | None:
        """The lowest offset at or above `offset` that is there."""
        at = bisect_right(self.starts, offset)
        if at and self.ends[at - 1] > offset:
            return offset
        return self.starts[at] if at < len(self.starts) else None

    def last_end(self, offset: int) -> int | None:
        """The end of what is there at or below `offset`."""
        at = bisect_right(self.starts, offset) - 1
        return None if at < 0 else min(self.ends[at], offset + 1)

    def run_start(self, offset: int) -> int:
        """Where what is there up to `offset`, which is there, begins without a gap."""
        at = bisect_right(self.run_ends, offset)
        return self.starts[bisect_left(self.starts, self.run_ends[at - 1]) if at else 0]

    def run_end(self, offset: int) -> int:
        """Where what is there from `offset` on breaks off."""
        return self.run_ends[bisect_right(self.run_ends, offset)]

    def covers(self, start: int, end: int, *, without: set[int]) -> bool:
        """Whether other copies than those of `without` have all of it."""
        at = start
        while at < end:
            reached = at
            column = bisect_right(self.starts, at) - 1
            while column >= 0 and self.ends[column] > at:
                if self.ids[column] not in without:
                    reached = self.ends[column]
                    break
                column -= 1
            first = bisect_left(self.aside, (at - self.aside_length_max,))
            for piece in self.aside[first : bisect_left(self.aside, (at + 1,))]:
                if piece.end > reached and piece.number not in without:
                    reached = piece.end
            if reached == at:
                return False
            at = reached
        return True

    def doubtful(self, low: int, high: int) -> set[int]:
        """All copies of which others may have what lies within [low, high), or that have nothing there."""
        found = set(self.ids[: bisect_left(self.starts, low)])
        found.update(self.ids[bisect_right(self.ends, high) :])
        for end in self.overlap_ends:
            at = bisect_left(self.ends, end)
            found.update(self.ids[at : at + 2])
        for piece in self.aside:
            found.add(piece.number)
            found.add(self.ids[self.find(piece.start)])
        return found

    def add(self, piece: Piece) -> None:
        at = bisect_right(self.starts, piece.start) - 1
        if at >= 0 and self._column(at).contains(piece):
            self._set_aside(piece)
            return
        first = bisect_left(self.starts, piece.start)
        past = bisect_right(self.ends, piece.end)
        for column in range(first, past):
            self._set_aside(self._column(column))
        self._replace(first, past, piece)

    def remove(self, piece: Piece) -> None:
        column = bisect_left(self.starts, piece.start)
        if column == len(self.starts) or self._column(column) != piece:
            at = bisect_left(self.aside, piece)
            assert self.aside[at] == piece, piece
            del self.aside[at]
            return
        self._replace(column, column + 1, None)
        first = bisect_left(self.aside, (piece.start,))
        freed = self.aside[first : bisect_left(self.aside, (piece.end,))]
        del self.aside[first : first + len(freed)]
        for other in freed:
            self.add(other)

    def _column(self, at: int) -> Piece:
        return Piece(self.starts[at], self.ends[at], self.ids[at])

    def _set_aside(self, piece: Piece) -> None:
        insort(self.aside, piece)
        self.aside_length_max = max(self.aside_length_max, piece.end - piece.start)

    def _replace(self, first: int, past: int, piece: Piece | None) -> None:
        """Put `piece`, or nothing, in the place of columns [first, past)."""
        touched = self.ends[max(first - 1, 0) : past]
        if touched:
            for marks in (self.run_ends, self.overlap_ends):
                del marks[bisect_left(marks, touched[0]) : bisect_right(marks, touched[-1])]
        self.starts[first:past] = array("q", [] if piece is None else [piece.start])
        self.ends[first:past] = array("q", [] if piece is None else [piece.end])
        self.ids[first:past] = [] if piece is None else [piece.number]
        for column in range(max(first - 1, 0), first if piece is None else first + 1):
            end = self.ends[column]
            if column + 1 == len(self.starts) or end < self.starts[column + 1]:
                insort(self.run_ends, end)
            elif end > self.starts[column + 1]:
                insort(self.overlap_ends, end)
