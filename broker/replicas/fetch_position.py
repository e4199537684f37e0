"""One partition as it is fetched in one leader epoch, and what its leader was told of it.

Owns: from where a partition is fetched and whether it may be now, the slices on their way to it, what was
said in a fetch session. Does not own: requests and answers (fetcher), reading slices (wal.hydrating).
Invariant: a position belongs to one leader in one epoch; what was begun for it counts for no other.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.replicas.partition import UNKNOWN, Partition
from protocol.fetch import FetchItem
from protocol.pointers import FROM_OFFSET
from remote.wal.slice_queue import SliceQueue

Key = tuple[UUID, int]

_SESSION_EPOCH_MAX = 2**31 - 1


class Position:
    """One partition as it is fetched in one leader epoch."""

    __slots__ = (
        "adopting",
        "is_stuck",
        "is_verified",
        "key",
        "lag",
        "leader_epoch",
        "leader_id",
        "needs_reset",
        "partition",
        "restore",
        "slices",
        "told_high_watermark",
        "told_log_start",
        "wait_until",
    )

    def __init__(self, partition: Partition, *, takes_pointers: bool = False) -> None:
        self.partition = partition
        self.key: Key = (partition.topic_id, partition.index)
        self.leader_id = partition.leader_id
        self.leader_epoch = partition.leader_epoch
        self.wait_until = 0.0
        self.is_stuck = False
        """Set when only a change of the image can help."""
        self.adopting = UNKNOWN
        """The log start that is on its way to the disk."""
        self.is_verified = False
        """The leader has answered without seeing a divergence, or this log was begun anew for it."""
        self.needs_reset = False
        """Set when this log ends outside the leader's, whose start and end are to be asked."""
        self.restore: asyncio.Task[None] | None = None
        """Brings the log up from the tier; nothing is fetched meanwhile."""
        self.lag: int | None = None
        self.told_high_watermark = UNKNOWN
        self.told_log_start = UNKNOWN
        """The leader's, as it last said."""
        self.slices = SliceQueue() if takes_pointers else None
        """What the leader pointed to in the store; None where it sends all records itself."""
        held = partition.log
        if held.epochs.latest < 0:
            # without epochs to compare, nothing past the high watermark can be trusted
            self.cuts(held.high_watermark)
            held.truncate_to(held.high_watermark)

    def __repr__(self) -> str:
        return f"<{self.partition!r} from {self.leader_id} epoch {self.leader_epoch}>"

    def __str__(self) -> str:
        followed = f"broker {self.leader_id} in epoch {self.leader_epoch}"
        return f"{self.partition.topic}-{self.partition.index}, following {followed}"

    @property
    def lane(self) -> tuple[int, bool]:
        """Which leader is asked, and whether for pointers."""
        return self.leader_id, self.slices is not None

    def is_ready(self, now: float) -> bool:
        return not self.is_stuck and self.restore is None and now >= self.wait_until

    def item(self, max_bytes: int, pointed: int = FROM_OFFSET) -> FetchItem:
        held = self.partition.log
        return FetchItem(
            self.partition.topic_id,
            self.partition.index,
            self.leader_epoch,
            held.log_end_offset,
            held.epochs.latest,
            max_bytes,
            held.log_start_offset,
            pointed,
        )

    def cuts(self, offset: int) -> None:
        """Take note that the log is about to be cut at `offset`: what is on its way is behind that."""
        partition = self.partition
        partition.stored_to = min(partition.stored_to, offset)
        if self.slices is not None:
            self.slices.cut(offset)

    def counts(self, asked: FetchItem, *, says_offsets_alone: bool) -> bool:
        """Whether the answer to `asked` still counts: epoch and log are what they were. Offsets alone do as
        well after the log has grown by slices."""
        if self.leader_epoch != asked.leader_epoch:
            return False
        end = self.partition.log.log_end_offset
        return end == asked.offset or (self.slices is not None and says_offsets_alone and end > asked.offset)

    def stored(self, start: int, end: int) -> None:
        """Take note that the records of a slice, appended here, are in the store."""
        partition = self.partition
        if start <= max(partition.stored_to, partition.log.log_start_offset):
            partition.stored_to = max(partition.stored_to, end)


class OwnSession:
    """What the leader knows of our partitions, so that only what changed is said again (KIP-227)."""

    __slots__ = ("epoch", "id", "told")

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.told: dict[Key, FetchItem] = {}

    def tell(self, looked_at: dict[Key, FetchItem | None]) -> tuple[list[FetchItem], list[Key]]:
        """Return (what is new, what is to be forgotten) of these; None marks a partition not to be fetched
        now."""
        told = self.told
        news: list[FetchItem] = []
        gone: list[Key] = []
        for key, item in looked_at.items():
            if item is None:
                if told.pop(key, None) is not None:
                    gone.append(key)
            elif told.get(key) != item:
                told[key] = item
                news.append(item)
        return news, gone

    def answered(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = self.epoch + 1 if self.epoch < _SESSION_EPOCH_MAX else 1
