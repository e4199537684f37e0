"""When the tails of which partitions leave together in one object.

Owns: which partitions have something to store, since when, in which order their slices are taken, when an
object is full, and the time between two cuts. Does not own: reading slices, the object's bytes
(combined_object), sending it (uploader). Pure: time is an argument.

The interval is the least time between two cuts, not a tick: after a pause the first append leaves at once.
Bytes only bound an object, because what costs is the number of objects; where one is full the next follows
it without the interval. As long as nothing else is under way and objects are small, a quarter of the interval
is enough in two cases. What a producer waits for (acks=all) leaves then: it asks for no more objects than the
store takes one after the other. And so does anything while fewer objects were cut lately than the interval
allows: of sparse records few wait, and objects are as many as the interval says, but for a few. A cut is
taken in portions by its caller, with turns of the loop between them; cuts that hold the loop for long widen
the interval, so that they take at most a tenth of it.

Invariants. A partition that was marked is offered by each cut until its reader says that nothing is left;
what is marked while a cut is being read is offered again. An object holds at most the bytes it may, or one
slice. Nobody starves: partitions are offered in the order in which they got something to store, one that had
more than its share goes behind all others, and one whose slice did not fit comes first next time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LOOP_SHARE: Final = 0.1
"""Of the loop's time, what cuts may take."""
INTERVAL_MAX_S: Final = 0.5
"""However long a cut took: after four times as long followers are sent the bytes directly."""
SOONEST_SHARE: Final = 0.25
"""Of the interval, for what a producer waits for, and while there are objects saved up."""
SAVED_MAX: Final = 4.0
"""Objects that were not cut when they might have been, and may follow others sooner."""
SMALL_BYTES: Final = 64 << 10
"""Where objects are larger the records of many producers are under way, and the interval gathers them."""
SHARES: Final = 4
"""A partition gets at most this part of an object while others wait."""


class Combiner(Generic[K]):
    __slots__ = (
        "_begun_at",
        "_cut",
        "_cut_s",
        "_dirty",
        "_not_before",
        "_saved",
        "interval_s",
        "is_awaited",
        "object_bytes",
    )

    def __init__(self, *, interval_s: float, object_bytes: int) -> None:
        self.interval_s = interval_s
        self.object_bytes = object_bytes
        self._dirty: OrderedDict[K, float] = OrderedDict()
        """Since when each has something to store."""
        self._not_before = self._begun_at = -inf
        self._saved = 0.0
        self._cut_s = 0.0
        self._cut: Cut[K] | None = None
        """The last one."""
        self.is_awaited = False
        """Whether a producer waits for something that no cut has begun to take."""

    def __repr__(self) -> str:
        return f"<Combiner {len(self._dirty)} dirty, every {self.spacing_s * 1000:.0f} ms>"

    def __len__(self) -> int:
        return len(self._dirty)

    def __contains__(self, key: object) -> bool:
        return key in self._dirty

    @property
    def spacing_s(self) -> float:
        """The least time between two cuts now."""
        return max(self.interval_s, min(self._cut_s / LOOP_SHARE, INTERVAL_MAX_S))

    def mark(self, key: K, now: float, *, is_awaited: bool = False) -> None:
        """Take note that a partition has something to store, and of whether a producer waits for it."""
        self.is_awaited = self.is_awaited or is_awaited
        if key not in self._dirty:
            self._dirty[key] = now

    def forget(self, key: K) -> None:
        """Store nothing more of a partition, which is led no longer or does not use the tier."""
        self._dirty.pop(key, None)
        if self._cut is not None:
            self._cut.forget(key)

    def wait_s(self, now: float, *, is_idle: bool = False) -> float | None:
        """Return in how many seconds the next cut is due, 0 for at once and None where nothing waits;
        `is_idle` says that no object is under way."""
        if not self._dirty:
            return None
        due = self._not_before
        if is_idle and self._cut is not None and self._cut.bytes < SMALL_BYTES:
            share = SOONEST_SHARE if self.is_awaited else max(SOONEST_SHARE, 1.0 - self._saved)
            due = min(due, self._begun_at + share * self.spacing_s)
        return max(due - now, 0.0)

    def begin(self, now: float) -> Cut[K]:
        """Begin an object. The caller takes its slices, and says when it is done."""
        spacing_s = self.spacing_s
        if self._cut is not None:
            allowed = (now - self._begun_at) / spacing_s
            self._saved = min(max(self._saved + allowed - 1.0, 0.0), SAVED_MAX)
        self._not_before = now + spacing_s
        self._begun_at = now
        self.is_awaited = False
        self._cut = Cut(self._dirty, self.object_bytes)
        return self._cut

    def ended(self, now: float, *, loop_s: float, was_full: bool = False) -> None:
        """Take note of how long the last cut held the loop in all, which may put off the next one, and of
        whether it left something because of its bytes, which does not wait for the interval."""
        self._cut_s = loop_s
        soonest = now + min(loop_s / LOOP_SHARE, INTERVAL_MAX_S)
        if was_full:
            self._not_before = soonest
        else:
            self._not_before = max(self._not_before, now + self.spacing_s - self.interval_s)


class Cut(Generic[K]):
    """One object being filled."""

    __slots__ = ("_dirty", "_held_back", "_limit", "_offered", "_share", "_to_offer", "bytes", "current")

    def __init__(self, dirty: OrderedDict[K, float], limit: int) -> None:
        self.bytes = 0
        self.current: K | None = None
        self._dirty = dirty
        self._limit = limit
        self._to_offer = len(dirty)
        self._offered: set[K] = set()
        self._share = limit if len(dirty) == 1 else max(limit // SHARES, 1)
        self._held_back: OrderedDict[K, float] = OrderedDict()
        """Partitions whose next slice did not fit, which come first next time."""

    def next(self) -> K | None:
        """Return the partition to read next, None when the object is done. Each is offered once."""
        assert self.current is None, self.current
        if self._to_offer and self._dirty and self.bytes < self._limit:
            self._to_offer -= 1
            key = next(iter(self._dirty))
            if key not in self._offered:  # all before it were, or were given up
                self._offered.add(key)
                self.current = key
                return key
        self.end()
        return None

    @property
    def since(self) -> float | None:
        """Since when the partition that is read has had something to store; None once it was given up."""
        return None if self.current is None else self._dirty.get(self.current)

    @property
    def room(self) -> int:
        """How many bytes the partition that is read may add."""
        return min(self._limit - self.bytes, self._share)

    @property
    def is_empty(self) -> bool:
        """Whether a slice may be larger than `room`: one batch above the limit is an object of its own."""
        return not self.bytes

    def took(self, size: int, *, has_more: bool, now: float) -> None:
        """Take note of what the partition added, `size` 0 where its next batch did not fit, and of whether
        it has more."""
        key, self.current = self.current, None
        assert key is not None
        self.bytes += size
        since = self._dirty.pop(key, None)
        if since is None or not has_more:
            return  # it was given up meanwhile, or everything it has is in this object
        if size:
            self._dirty[key] = now
        else:
            self._held_back[key] = since

    def forget(self, key: K) -> None:
        """Do not offer again what did not fit."""
        self._held_back.pop(key, None)

    def end(self) -> None:
        """Offer nothing more."""
        self._to_offer = 0
        while self._held_back:
            key, since = self._held_back.popitem()
            self._dirty[key] = since
            self._dirty.move_to_end(key, last=False)
