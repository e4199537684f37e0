"""Which leader's bytes count at which offsets.

Owns the order among writers of the same offsets. Does not own what is wrong with their bytes (judge).
Invariant: an offset belongs to the batch epoch that its newest writer stored there; a writer counts only
below where the epochs of all newer writers begin, and where none of them holds the same offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Range = tuple[int, int]


class Claim(NamedTuple):
    """Offsets that a writer of some authority holds, with the epoch stamped on their batches."""

    authority: int
    """The leader epoch of the writer, or the last epoch of a replica's log."""
    authority_start: int
    """Where that epoch begins, -1: unknown, so it limits nobody."""
    first: int
    end: int
    epoch: int


class Lineage:
    """The epochs of a log, as its newest writers tell them."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._epochs: list[int] = []
        limit: int | None = None
        same: list[Claim] = []
        for claim in [*sorted(claims, key=lambda claim: (-claim.authority, claim.first)), None]:
            if same and (claim is None or claim.authority != same[0].authority):
                for each in same:
                    end = each.end if limit is None else min(each.end, limit)
                    self._add(each.first, end, each.epoch)
                starts = [each.authority_start for each in same if each.authority_start >= 0]
                if starts:
                    limit = min(starts) if limit is None else min(limit, *starts)
                same = []
            if claim is not None:
                same.append(claim)

    def _add(self, first: int, end: int, epoch: int) -> None:
        for low, high in list(self._free(first, end)):
            at = bisect_left(self._firsts, low)
            before = at > 0 and self._ends[at - 1] == low and self._epochs[at - 1] == epoch
            after = at < len(self._firsts) and self._firsts[at] == high and self._epochs[at] == epoch
            if before and after:
                self._ends[at - 1] = self._ends[at]
                del self._firsts[at], self._ends[at], self._epochs[at]
            elif before:
                self._ends[at - 1] = high
            elif after:
                self._firsts[at] = low
            else:
                self._firsts.insert(at, low)
                self._ends.insert(at, high)
                self._epochs.insert(at, epoch)

    def _free(self, first: int, end: int) -> Iterator[Range]:
        at = bisect_right(self._ends, first)
        while first < end and at < len(self._firsts) and self._firsts[at] < end:
            if first < self._firsts[at]:
                yield first, self._firsts[at]
            first = max(first, self._ends[at])
            at += 1
        if first < end:
            yield first, end

    def counting(self, first: int, end: int, epoch: int) -> list[Range]:
        """Return the parts of [first, end) that belong to batches of this epoch."""
        found = []
        at = bisect_right(self._ends, first)
        while at < len(self._firsts) and self._firsts[at] < end:
            if self._epochs[at] == epoch:
                found.append((max(first, self._firsts[at]), min(end, self._ends[at])))
            at += 1
        return found

    def covered(self) -> list[Range]:
        """Return all offsets that somebody holds, ascending and united."""
        return united(zip(self._firsts, self._ends, strict=True))


def united(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return what of `ranges` is in none of `taken`."""
    found = []
    holes = united(taken)
    at = 0
    for first, end in united(ranges):
        while at < len(holes) and holes[at][1] <= first:
            at += 1
        now = at
        while now < len(holes) and holes[now][0] < end:
            if first < holes[now][0]:
                found.append((first, holes[now][0]))
            first = max(first, holes[now][1])
            now += 1
        if first < end:
            found.append((first, end))
    return found
