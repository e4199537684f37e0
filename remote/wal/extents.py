"""What the leader of one partition has stored of its log in this epoch, and may point followers to.

Owns: the extents in order of offset, finding those that follow an offset, forgetting the oldest. Does not
own: whether an extent counts (window), the bytes. Pure.

Invariants. Extents are contiguous: each begins where the one before it ends, or everything before was
forgotten. What is found begins at the offset that was asked for, or holds it. A new epoch, or a log that was
cut, begins with nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from remote.wal.combined_object import Place

KEPT_MAX: Final = 512
"""At 50 cuts a second ten seconds of one partition: a follower further behind gets bytes. So many take
140 KiB."""
FORGET_AT: Final = 32
"""Fewer are kept whether or not a follower lacks them."""


class Extent(NamedTuple):
    """One slice of the log in one object."""

    start: int
    end: int
    batch_epoch: int
    place: Place
    position: int
    size: int
    crc32c: int


class Extents:
    """Extents of one partition, oldest first."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[Extent] = deque(maxlen=KEPT_MAX)

    def __repr__(self) -> str:
        return f"<Extents [{self.start}, {self.end}) in {len(self._kept)}>"

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._kept)

    @property
    def start(self) -> int:
        """The first offset that is known, -1 without any."""
        return self._kept[0].start if self._kept else -1

    @property
    def end(self) -> int:
        """Past the last offset that is known, -1 without any."""
        return self._kept[-1].end if self._kept else -1

    def add(self, extent: Extent) -> None:
        """Add what follows; a gap forgets all before it, because nothing points across one."""
        if self._kept and extent.start != self._kept[-1].end:
            self._kept.clear()
        self._kept.append(extent)

    def forget(self, below: int) -> None:
        """Forget those that lie wholly below an offset, but the newest `FORGET_AT`."""
        kept = self._kept
        while len(kept) > FORGET_AT and kept[0].end <= below:
            kept.popleft()

    def clear(self) -> None:
        self._kept.clear()

    def after(self, offset: int, *, max_bytes: int, count_max: int) -> list[Extent]:
        """Return the extents from the one that holds `offset` on: whole ones, at most `max_bytes` in all but
        never none for that; nothing where `offset` is outside of what is known."""
        if not self.start <= offset < self.end:
            return []
        first = bisect_right(self._kept, offset, key=lambda extent: extent.start) - 1
        found: list[Extent] = []
        room = max_bytes
        for extent in islice(self._kept, first, first + count_max):
            if found and extent.size > room:
                break
            found.append(extent)
            room -= extent.size
        return found
