"""Beginning a log at the end of a copy in the tier: which copy, and what it tells of the log before it.

Owns: the choice of the copy, for a replica that follows a leader and for one that has lost its epochs;
reading what goes with a copy. Does not own: the fold, the objects (storage_manager), asking a leader, the log
(storage), when and how often it is tried (broker/replicas/restore).

Invariant: a restore point is whole and checked before anything is done to a log: epochs and producers are
those of the very copy at whose end the log begins, and the epochs agree with what the brokers say of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote.cold.fold import PartitionFold
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import BadObject, IndexKind, StorageManager
from storage.epochs import EpochCache, decode_epochs
from storage.producers import CorruptSnapshot, decode_producers


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """What a log that begins at the end of a copy has to know of what is before it."""

    start: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, start offset), all that the copy knows below `start`."""
    producers: bytes
    """The producer snapshot at `start`."""

    @property
    def known_from(self) -> int:
        """The first offset whose epoch is known: no log that begins here may start earlier."""
        return self.epochs[0][1] if self.epochs else self.start


# --- which copy ---


def copy_before(fold: PartitionFold, offset: int, *, epoch: int) -> RemoteSegment | None:
    """Return a copy that has the record before `offset`, of this leader epoch: up to there it has the same
    records as every log that has that record of that epoch."""
    return next((copy for copy in fold.holders(offset - 1) if _epoch_at(copy, offset - 1) == epoch), None)


def copy_below_local(fold: PartitionFold, epochs: EpochCache, local_start: int) -> RemoteSegment | None:
    """Return the copy that most likely precedes a log of which only the epochs from `local_start` on are
    known: one that goes on with the log's own epoch, else the one of the newest epoch that may precede it."""
    own = epochs.epoch_for(local_start)
    best: tuple[bool, int] | None = None
    found: RemoteSegment | None = None
    for copy in fold.holders(local_start - 1):
        epoch = _epoch_at(copy, local_start - 1)
        if own is not None and epoch > own:
            continue
        goes_on = own is not None and copy.end_offset > local_start and _epoch_at(copy, local_start) == own
        if best is None or (goes_on, epoch) > best:
            best, found = (goes_on, epoch), copy
    return found


def _epoch_at(copy: RemoteSegment, offset: int) -> int:
    epoch = EpochCache(copy.epochs).epoch_for(offset)
    assert epoch is not None, (offset, copy)
    return epoch


# --- what it tells ---


async def fetch_restore_point(storage: StorageManager, copy: RemoteSegment) -> RestorePoint:
    """Read what a log has to know that begins where `copy` ends. Raise what the storage manager does."""
    epochs = await fetch_epochs(storage, copy)
    producers = await storage.fetch_index(copy, IndexKind.PRODUCER_SNAPSHOT)
    try:
        decode_producers(producers)
    except CorruptSnapshot as error:
        raise BadObject(f"the producer snapshot of copy {copy.id} cannot be read: {error}") from error
    return RestorePoint(start=copy.end_offset, epochs=epochs, producers=producers)


async def fetch_epochs(storage: StorageManager, copy: RemoteSegment) -> tuple[tuple[int, int], ...]:
    """Read the leader epochs of the log before the end of `copy`, its own among them."""
    data = await storage.fetch_index(copy, IndexKind.LEADER_EPOCH)
    try:
        cache = EpochCache(decode_epochs(data))
    except ValueError as error:
        raise BadObject(f"the leader epochs of copy {copy.id} cannot be read: {error}") from error
    cache.truncate_from_end(copy.end_offset)
    if tuple(cache.entries_within(copy.base_offset, copy.end_offset)) != copy.epochs:
        raise BadObject(f"copy {copy.id} has the leader epochs {copy.epochs}, its index says {cache}")
    return tuple(cache.entries())
