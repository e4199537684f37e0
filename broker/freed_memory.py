"""Memory that large requests have freed, given back to the system.

glibc's heap shrinks at its end alone: one small allocation above 200 MB of freed names of topics keeps all of
it, for good. And an arena of the interpreter stays for one small object in it: of what the caches of a burst
hold, or of the freed objects that the interpreter keeps to use again.
Owns: when it is worth to look, what is done, and that it stays short. Does not own: the accounts that bound
what requests may take (broker.net), nor which caches can do without what they hold (broker.process).
Invariant: nothing is given back while that would hold the heap for long, which its holes tell, and the more
of these there are, the less often they are counted; where the C library has no such calls, nothing is ever
done.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

LOOKS_EVERY_S: Final = 0.1
WORTH_BYTES: Final = 16 << 20
"""What has to be free before it is given back; some 1 to 2 ms for that much."""
FALL_BYTES: Final = WORTH_BYTES // 2
"""Where so much went back by itself, a burst is over, and more of it may be free."""
_HOLES_MAX: Final = 8192
"""Each hole is one call of the system: 57,000 of them held the heap for 85 ms. To count them takes time too,
25 ms for 100,000: for each time that there are so many, one look is left out."""
TRIES_MAX: Final = 16
"""After so many in a row, which take 14 s, what is held counts as in use: a request of many rows takes some
seconds, and only after it there is something to give back."""
_PAUSES_MAX: Final = 9
"""How many looks at most are left out between those that find the process grown, and nothing freed."""
_PAUSES_FREED: Final = 1
"""How many are left out after those that find something freed: what is given back under load is taken again
at once."""
_UNCHANGED_MAX: Final = 9
"""How many looks at most do not ask the heap because the process is as large as before."""
_FLOATS_KEPT: Final = 100
_LISTS_KEPT: Final = 80
"""And as many dicts."""
_TUPLES_KEPT: Final = 2000
"""Of each length."""
_LENGTHS: Final = (1, 2, 3)
"""Of tuples that large requests leave many of."""


class HeapState(NamedTuple):
    free_bytes: int
    """Free within the heap, given back or not: the heap itself does not tell them apart."""
    holes: int


class Heap(Protocol):
    def resident_bytes(self) -> int:
        """The memory that the process has."""

    def state(self) -> HeapState: ...

    def give_back(self) -> None: ...


class FreedMemory:
    """Looks at the heap from time to time, and gives back what has become free."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._settled_bytes = self._highest_bytes = heap.resident_bytes()
        """The memory of the process that counts as in use, and the most that was seen since something was
        given back.
        """
        self._seen_bytes = self._settled_bytes
        """What it was at the last look that asked the heap."""
        self._unchanged = 0
        """Looks since then."""
        self._returned_bytes = heap.state().free_bytes
        """The most that may be given back already of what is free."""
        self._pauses = 0
        """Looks that are left out, whatever they would find."""
        self._tries_pauses = 0
        self._next_pauses = 0
        """Looks that are left out unless something is freed."""
        self._tries = 0
        """How often in a row it was done."""

    def look(self) -> bool:
        """Give back what is free if it is worth it, and return whether it was done."""
        if self._pauses:
            self._pauses -= 1
            return False
        resident = self._heap.resident_bytes()
        if resident == self._seen_bytes and not self._tries and self._unchanged < _UNCHANGED_MAX:
            self._unchanged += 1
            return False
        self._seen_bytes, self._unchanged = resident, 0
        free_bytes, holes = self._heap.state()
        self._settled_bytes = min(self._settled_bytes, resident)
        self._highest_bytes = max(self._highest_bytes, resident)
        self._returned_bytes = min(self._returned_bytes, free_bytes)
        if holes > _HOLES_MAX:
            self._pauses, self._seen_bytes = 5 * holes // _HOLES_MAX, -1
            return False
        is_freed = (
            self._highest_bytes - resident >= FALL_BYTES or free_bytes - self._returned_bytes >= WORTH_BYTES
        )
        if not is_freed and resident - self._settled_bytes < WORTH_BYTES:
            self._tries_pauses = self._next_pauses = self._tries = 0
            return False
        if is_freed:
            self._pauses = _PAUSES_FREED
        elif self._tries_pauses:
            self._tries_pauses -= 1
            return False
        self._tries_pauses, self._next_pauses = self._next_pauses, min(2 * self._next_pauses + 1, _PAUSES_MAX)
        self._heap.give_back()
        after = self._heap.resident_bytes()
        self._tries += 1
        if self._tries == TRIES_MAX:
            self._tries = 0
            self._settled_bytes = after
        self._settled_bytes = min(self._settled_bytes, after)
        self._highest_bytes = self._seen_bytes = after
        self._returned_bytes = self._heap.state().free_bytes
        return True


def watch_freed_memory(loop: asyncio.AbstractEventLoop, freed: FreedMemory) -> None:
    """Look every now and then, as long as the loop runs."""

    def look() -> None:
        loop.call_later(LOOKS_EVERY_S, look)
        freed.look()

    loop.call_later(LOOKS_EVERY_S, look)


# --- the heap of glibc ---


class _MallInfo(ctypes.Structure):
    """What `mallinfo2` tells, in bytes and counts."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class CHeap:
    """The heap of this process."""

    def __init__(self, library: ctypes.CDLL, statm: int, forgets: Sequence[Callable[[], None]]) -> None:
        self._info = library.mallinfo2
        self._info.restype = _MallInfo
        self._trim = library.malloc_trim
        self._trim.argtypes = (ctypes.c_size_t,)
        self._statm = statm
        self._forgets = forgets
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def resident_bytes(self) -> int:
        return int(os.pread(self._statm, 128, 0).split()[1]) * self._page_bytes

    def state(self) -> HeapState:
        info = self._info()
        return HeapState(free_bytes=info.fordblks, holes=info.ordblks)

    def give_back(self) -> None:
        for forget in self._forgets:
            forget()
        gather_kept_objects()
        self._trim(0)


def c_heap(forgets: Sequence[Callable[[], None]] = ()) -> CHeap | None:
    """Return the heap of this process, which empties caches by `forgets` before it gives something back; None
    where the C library cannot be asked to.
    """
    try:
        library = ctypes.CDLL(None)
        if not hasattr(library, "mallinfo2") or not hasattr(library, "malloc_trim"):
            return None
        return CHeap(library, os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC), forgets)
    except OSError:
        return None


def gather_kept_objects() -> None:
    """Have the interpreter keep freed objects that lie side by side, in place of those of a burst.

    Of the objects made here, the first are those that it kept. The others are new, and it makes them where
    most is in use. A list lets go of its last element first, so that the new ones are kept, and the old ones
    are freed for good.
    """
    floats = [0.5 + at for at in range(2 * _FLOATS_KEPT)]
    lists: list[list[int]] = [[] for _ in range(2 * _LISTS_KEPT)]
    dicts = [{"": at} for at in range(2 * _LISTS_KEPT)]
    del floats, lists, dicts
    for length in _LENGTHS:
        filling = [None] * length
        tuples = [tuple(filling) for _ in range(2 * _TUPLES_KEPT)]
        del tuples
