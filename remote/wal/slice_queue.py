"""The slices of one partition that a follower was pointed to and has not appended yet.

Owns: their order, from where pointers are wanted next, which slice may be appended to a log that ends where
it does, what of a slice is appended, and when the leader is asked for the records themselves. Does not own:
reading slices (hydrator), the log, requests. Pure: time is an argument.

Invariants. Slices are taken in the order of their offsets, and nothing between two of them is passed over:
one that begins above what the log has, or was passed as a gap of compaction, is never appended. Whole batches
below the log's end are left out. What is appended has the checksum, the epoch and the offsets that its
pointer states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from protocol.checksum import crc32c
from protocol.errors import CorruptBatch
from protocol.pointers import BYTES, FROM_OFFSET, NOTHING, SlicePointer
from protocol.records import parse_header
from remote.bad_object import BadObject

GAP_S: Final = 2.0
"""How long nothing may follow a gap at the end of a slice; then the leader is asked for what it has."""
_POSITION_MAX: Final = (1 << 63) - 1
"""What lies further in an object cannot be asked of a store."""


class Slice:
    """One slice, from its pointer to the log."""

    __slots__ = ("_on_done", "data", "pointer", "there_at")

    def __init__(self, pointer: SlicePointer) -> None:
        self.pointer = pointer
        self.data: memoryview | None = None
        self.there_at = 0.0
        """When it was read."""
        self._on_done: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "read" if self.data is not None else "on its way"
        return f"<Slice [{self.pointer.start}, {self.pointer.end}) {state}>"

    @property
    def is_done(self) -> bool:
        """Whether it was appended, or is not wanted any more."""
        return self._on_done is None

    def begin(self, on_done: Callable[[], None]) -> None:
        """Take note of who is to know when the slice needs no memory any more."""
        self._on_done = on_done

    def keep_own_bytes(self) -> None:
        """Let go of what was read with the slice, which may be much more than was reserved for it."""
        if self.data is not None:
            self.data = memoryview(bytes(self.data))

    def done(self) -> None:
        on_done, self._on_done, self.data = self._on_done, None, None
        if on_done is not None:
            on_done()


class SliceQueue:
    __slots__ = ("_asks_bytes", "_covered_at", "_covered_to", "_slices", "waits_for_room")

    def __init__(self) -> None:
        self.waits_for_room = False
        """A slice was pointed to for which there was no memory."""
        self._slices: deque[Slice] = deque()
        self._asks_bytes = False
        self._covered_to = -1
        """Up to where the slices reached that were appended, beyond their last batch."""
        self._covered_at = 0.0

    def __repr__(self) -> str:
        mode = ", asks for bytes" if self._asks_bytes else ", waits for room" if self.waits_for_room else ""
        return f"<SliceQueue {list(self._slices)}{mode}>"

    def __len__(self) -> int:
        return len(self._slices)

    def pointed(self, end: int, now: float) -> int:
        """Return what to ask for, for a log that ends at `end`: from where pointers are wanted, or BYTES, or
        NOTHING."""
        if self._asks_bytes:
            return BYTES
        if self.waits_for_room:
            return NOTHING
        if self._slices:
            return self._slices[-1].pointer.end
        if self._covered_to > end:
            return BYTES if now - self._covered_at > GAP_S else self._covered_to
        return FROM_OFFSET

    def follows(self, pointer: SlicePointer, end: int) -> bool | None:
        """Return whether the slice goes on where the queue ends; None for one that brings nothing new."""
        known = self._slices[-1].pointer.end if self._slices else max(end, self._covered_to)
        if pointer.end <= known:
            return None
        is_inside = pointer.size > 0 and pointer.position + pointer.size <= _POSITION_MAX
        return pointer.start <= known and is_inside and not self._asks_bytes

    def add(self, pointer: SlicePointer) -> Slice:
        added = Slice(pointer)
        self._slices.append(added)
        return added

    def take(self) -> Slice | None:
        """Take out the first slice, if it has been read."""
        if not self._slices or self._slices[0].data is None:
            return None
        return self._slices.popleft()

    def records(self, each: Slice, end: int) -> memoryview:
        """Return what is to be appended of a slice that was taken, to a log that ends at `end`. BadObject
        when these are not the bytes that were pointed to, or do not follow."""
        pointer, data = each.pointer, each.data
        assert data is not None, each
        if not pointer.start <= max(end, self._covered_to) or pointer.end < end:
            raise BadObject(f"{each} does not fit a log that ends at {end}")
        if len(data) != pointer.size or crc32c(data) != pointer.crc32c:
            raise BadObject(f"{each} fails its CRC")
        return fitting(pointer, data, end)

    def appended(self, each: Slice, now: float) -> None:
        if each.pointer.end > self._covered_to:
            self._covered_to, self._covered_at = each.pointer.end, now
        each.done()

    def got_bytes(self) -> None:
        """Take note that the leader has sent records, in the place of what it pointed to before: what comes
        next may be read from the store again."""
        self.drop()
        self._asks_bytes = False

    def fail(self) -> None:
        """Let go of all slices, and ask the leader for the records that the first of them was to bring."""
        self.drop()
        self._asks_bytes = True

    def drop(self) -> None:
        """Let go of all slices: the log was cut, or others are to be asked for."""
        dropped, self._slices = self._slices, deque()
        for each in dropped:
            each.done()

    def cut(self, end: int) -> None:
        """Begin anew for a log that is cut at `end`."""
        self.drop()
        self._covered_to = min(self._covered_to, end)
        self._asks_bytes = self.waits_for_room = False


def fitting(pointer: SlicePointer, data: memoryview, end: int) -> memoryview:
    """Return the batches at or above `end`; BadObject for batches that the pointer does not tell of."""
    at, begins_at = 0, -1
    try:
        while at < len(data):
            header = parse_header(data, at)
            is_inside = pointer.start <= header.base_offset and header.next_offset <= pointer.end
            if not is_inside or header.leader_epoch != pointer.batch_epoch or header.size <= 0:
                raise BadObject(
                    f"a batch at {header.base_offset} of epoch {header.leader_epoch} in {pointer}"
                )
            if begins_at < 0 and header.last_offset >= end:
                begins_at = at
            at += header.size
    except CorruptBatch as error:
        raise BadObject(str(error)) from None
    return data[begins_at:] if begins_at >= 0 else data[:0]
