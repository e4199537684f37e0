"""Which partitions are stored once more, so that what little is needed of them holds back no stream.

Owns: since when the store has the oldest slice of a partition that is needed, whose turn it is, and how many
bytes that may cost. Does not own: storing (uploader), what a move makes of older slices (floors). Pure.

Objects of a stream go in their order, so one record of an idle partition would keep all that came after it.
Moving is worth it where much came after and little is to be moved. What moves cost is paid from what was
stored since: they add at most an eighth to it, and a trifle a round where little comes in.

Invariant: the marks of a partition are bounded, whatever is stored: they grow coarser, and a slice is then
taken to be older than it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

OBJECTS_MIN: Final = 256
"""What came after fewer is not worth a move."""
SHARE: Final = 8
"""A move costs at most this part of what it lets go, and all moves of what was stored."""
FREE_BYTES: Final = 1 << 20
"""What moves may cost in each round all the same."""
SAVED_MAX_BYTES: Final = 64 << 20
MARKS_MAX: Final = 32


class Stored(NamedTuple):
    """How much this broker has stored in its life, at some moment."""

    objects: int
    bytes: int


class Marks:
    """What was stored by when, of one partition: the end of some slices, and the totals when the first of
    them came to the store."""

    __slots__ = ("_marks",)

    def __init__(self, end: int, since: Stored) -> None:
        self._marks: list[tuple[int, Stored]] = [(end, since)]

    def note(self, end: int, now: Stored) -> None:
        """Take note of a slice up to `end`."""
        marks = self._marks
        marks.append((end, now))
        if len(marks) > MARKS_MAX:  # two become one, as old as the older of them
            pairs = zip(marks[::2], marks[1::2], strict=False)
            last = marks[-1:] if len(marks) % 2 else []
            self._marks = [(newer[0], older[1]) for older, newer in pairs] + last

    def oldest(self, floor: int) -> Stored | None:
        """Return the totals when the oldest slice was stored that reaches above `floor`; None without."""
        del self._marks[
            : next((at for at, mark in enumerate(self._marks) if mark[0] > floor), len(self._marks))
        ]
        return self._marks[0][1] if self._marks else None


def inherited(end: int, now: Stored) -> Marks:
    """What a leader did not store itself, or in an earlier life, is taken to be worth a move."""
    return Marks(end, now._replace(objects=now.objects - OBJECTS_MIN))


class Candidate(NamedTuple):
    since: Stored
    """When the oldest slice that is needed was stored."""
    size: int
    """Bytes to be stored once more."""


class MoveBudget:
    """What moves may cost."""

    def __init__(self) -> None:
        self._saved = 0
        self._paid_to = 0

    def choose(self, candidates: Iterable[tuple[T, Candidate]], now: Stored) -> list[T]:
        """Return whom to move in this round, those first that hold back most."""
        self._saved += (now.bytes - self._paid_to) // SHARE + FREE_BYTES
        self._paid_to = now.bytes
        self._saved = min(self._saved, SAVED_MAX_BYTES)
        chosen: list[T] = []
        for source, (since, size) in sorted(candidates, key=lambda each: each[1].since):
            held_bytes = now.bytes - since.bytes
            if now.objects - since.objects < OBJECTS_MIN or size > max(FREE_BYTES, held_bytes // SHARE):
                continue
            if size > self._saved:
                break  # it is next, once enough is saved
            self._saved -= size
            chosen.append(source)
        return chosen
