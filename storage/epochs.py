"""Which leader epoch began at which offset.

Owns: the list of (epoch, start offset) of one log and Kafka's text checkpoint of it. Does not own: the
file, or leadership. Invariant: epochs and start offsets both strictly increase, so each offset belongs to
exactly one epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

UNDEFINED = (-1, -1)
OPEN_END = (1 << 63) - 1
"""Where the newest epoch ends: nowhere yet."""


class EpochCache:
    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = -1
        for epoch, start in entries:
            self.assign(epoch, start_offset=start)

    def __repr__(self) -> str:
        return f"EpochCache({self.entries()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochCache) and self.entries() == other.entries()

    __hash__ = None  # type: ignore[assignment]

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def known_from(self) -> int | None:
        """The first offset whose epoch is known."""
        return self._starts[0] if self._starts else None

    def entries_until(self, end_offset: int) -> list[tuple[int, int]]:
        """The entries of a log that ends at `end_offset`."""
        return self.entries()[: bisect_left(self._starts, end_offset)]

    def entries_within(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The epochs of [start_offset, end_offset), each with its first offset there."""
        within = EpochCache(self.entries_until(end_offset))
        within.truncate_from_start(start_offset)
        return within.entries()

    def assign(self, epoch: int, *, start_offset: int) -> bool:
        """`epoch` starts at `start_offset`; what contradicts it goes. True if anything changed."""
        if self._epochs and epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def end_offset_for(self, epoch: int, *, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and where it ends, as OffsetForLeaderEpoch answers."""
        if epoch == UNDEFINED[0] or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def epoch_for(self, offset: int) -> int | None:
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else None

    def start_of(self, epoch: int) -> int | None:
        """Where an epoch begins that has an entry."""
        at = bisect_left(self._epochs, epoch)
        return self._starts[at] if at < len(self._epochs) and self._epochs[at] == epoch else None

    def span(self, offset: int) -> tuple[int, int, int] | None:
        """The epoch of `offset`, its start and its end."""
        at = bisect_right(self._starts, offset)
        return self._span(at - 1) if at else None

    def spans(self, start: int = 0) -> Iterator[tuple[int, int, int]]:
        """(epoch, start, end) of all that end above `start`, oldest first."""
        for at in range(max(bisect_right(self._starts, start) - 1, 0), len(self._starts)):
            yield self._span(at)

    def _span(self, at: int) -> tuple[int, int, int]:
        end = self._starts[at + 1] if at + 1 < len(self._starts) else OPEN_END
        return self._epochs[at], self._starts[at], end

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that start at or past the new end of the log."""
        changed = False
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            changed = True
        self.latest = self._epochs[-1] if self._epochs else -1
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget epochs that end before the new start; the one that spans it now starts there."""
        gone = bisect_right(self._starts, start_offset)
        if gone == 0 or (gone == 1 and self._starts[0] == start_offset):
            return False
        del self._epochs[: gone - 1]
        del self._starts[: gone - 1]
        self._starts[0] = start_offset
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
        self.latest = -1

    def encode(self) -> bytes:
        lines = ["0", str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in self.entries()]
        return ("\n".join(lines) + "\n").encode()


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """The entries of a `leader-epoch-checkpoint`; ValueError when it is not one."""
    lines = data.decode("ascii").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise ValueError("unknown version of a leader epoch checkpoint")
    if not data.endswith(b"\n"):  # torn within its last number, it may still look whole
        raise ValueError("a leader epoch checkpoint without its end")
    entries = [
        (int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:] if line.strip())
    ]
    if len(entries) != int(lines[1]):
        raise ValueError("a leader epoch checkpoint of the wrong length")
    return entries
