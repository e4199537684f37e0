"""What the WAL tier of one broker has done, as plain numbers that are read at scrape time.

Owns: the numbers. Does not own: counting requests to the store (remote.store.metered), showing them
(broker.admin). Invariant: to count is an addition and never waits; each stage of a record's way to a follower
is timed once, by who ends it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Fine where the target of a stage lies, a few milliseconds."""


class Times:
    """How long one stage took: counts by the first bound that is not exceeded, the last one of the rest."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def __repr__(self) -> str:
        return f"<Times {self.total}, {self.sum_s:.3f} s>"

    @property
    def total(self) -> int:
        return sum(self.counts)

    def note(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count


class WalStats:
    """Of one broker, as a leader and as a follower."""

    __slots__ = (
        "append_s",
        "copy_s",
        "cut_loop_s",
        "direct_bytes_in",
        "direct_bytes_out",
        "events",
        "events_waiting",
        "generations",
        "get_s",
        "held_back_objects",
        "hydrated_bytes",
        "hydrated_slices",
        "hydration_failures",
        "mode_changes",
        "moves",
        "objects",
        "pointed_bytes",
        "report_s",
        "slices",
        "stored_bytes",
        "told_s",
        "unreferenced_bytes",
        "void_objects",
        "wait_s",
    )

    def __init__(self) -> None:
        # --- as a leader ---
        self.wait_s = Times()
        """From the first append of a slice to its cut."""
        self.copy_s = Times()
        """From the cut to the moment the object counts: it and all before it are stored."""
        self.told_s = Times()
        """From there to the answer that points a follower to a slice."""
        self.report_s = Times()
        """From that answer to the Fetch that reports the slice's end."""
        self.cut_loop_s = Times()
        """How long one turn of a cut held the loop."""
        self.moves = 0
        self.objects = 0
        """That count."""
        self.slices = 0
        self.stored_bytes = 0
        self.pointed_bytes = 0
        """Told to followers by pointers."""
        self.direct_bytes_out = 0
        """Sent to followers of partitions that use the tier, by a Fetch."""
        self.mode_changes = 0
        """Partitions that began to be sent directly, or ended it."""
        self.void_objects = 0
        """Sent in vain, to a stream that had been sealed."""
        self.generations = 0
        """Streams opened after a seal."""
        # --- as a follower ---
        self.get_s = Times()
        """One ranged read, from its pointer to the last byte."""
        self.append_s = Times()
        """Checking and appending one slice, once it is there."""
        self.hydrated_bytes = 0
        self.hydrated_slices = 0
        self.hydration_failures = 0
        """Slices that were asked of the leader instead: not read in time, gone or damaged."""
        self.direct_bytes_in = 0
        """Fetched from leaders for partitions that use the tier."""
        # --- metadata and collection ---
        self.events = 0
        """Records written to the metadata topic."""
        self.events_waiting = 0
        self.unreferenced_bytes = 0
        """Of objects of this broker's streams that nothing needs and that are not deleted yet."""
        self.held_back_objects = 0
        """That wait for the oldest of their stream that is needed, that one included."""

    def __repr__(self) -> str:
        return f"<WalStats {self.objects} objects, {self.hydrated_slices} slices hydrated>"
