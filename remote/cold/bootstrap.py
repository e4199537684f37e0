"""Beginning a log at the end of a copy in the tier: which copy, and what it tells of the log before it.

Owns: the choice of the copy, for a replica that follows a leader and for one that has lost its epochs;
reading what goes with a copy. Does not own: the fold, the objects (storage_manager), asking a leader, the log
(storage), when and how often it is tried (broker/replicas/restore).

Invariant: a restore point is whole and checked before anything is done to a log: its epochs agree with what
the brokers say of the copy, its producers are those at the offset where the log begins.

A copy may go on with what the log never had, when an unclean election cut the log inside it: then it begins
inside the copy, and the producers there are made from the batches before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import CorruptBatch
from protocol.records import HEADER_SIZE, check_stored, parse_header
from remote.bad_object import BadObject
from remote.cold.fold import PartitionFold
from remote.cold.segments import RemoteSegment
from remote.cold.storage_manager import (
    IndexKind,
    StorageManager,
)
from storage.epochs import EpochCache, decode_epochs
from storage.loader import replay_producer
from storage.producers import CorruptSnapshot, ProducerTable, decode_producers

PIECE_BYTES: Final = 1 << 18
"""What a replay fetches at a time; to walk the smallest batches of it takes about 10 ms of the loop."""


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


def copies_ahead(
    fold: PartitionFold, epochs: EpochCache, *, log_start: int, local_start: int, log_end: int
) -> list[tuple[RemoteSegment, int]]:
    """Return the copies that may go on where a log ends, and up to where: the newest of all, which may be of
    epochs that this log has lost, then the last of those that its own epochs tell of."""
    newest = fold.newest()
    found = [] if newest is None or newest.end_offset <= log_end else [(newest, newest.end_offset)]
    end = fold.chain_end(epochs, log_start=log_start, local_start=local_start)
    own = fold.find(end - 1, epochs) if end > log_end else None
    whole = None if own is None else fold.segment(own.id)
    if whole is not None and (whole, end) not in found:
        found.append((whole, end))
    return found


def is_continued(epochs: EpochCache, log_end: int, point: RestorePoint) -> bool:
    """Whether a log with these epochs, which ends there, is the beginning of the log before the point: both
    have the same epochs in all that both know, and something in common."""
    start = max(epochs.known_from or 0, point.known_from)
    if epochs.known_from is None or start >= log_end:
        return False
    return epochs.entries_within(start, log_end) == EpochCache(point.epochs).entries_within(start, log_end)


def _epoch_at(copy: RemoteSegment, offset: int) -> int:
    epoch = EpochCache(copy.epochs).epoch_for(offset)
    assert epoch is not None, (offset, copy)
    return epoch


# --- what it tells ---


async def fetch_restore_point(
    storage: StorageManager, fold: PartitionFold, copy: RemoteSegment, end: int
) -> RestorePoint:
    """Read what a log has to know that begins at `end`, where `copy` ends or at a batch inside it. Raise what
    the storage manager does."""
    epochs = EpochCache(await fetch_epochs(storage, copy))
    epochs.truncate_from_end(end)
    if end == copy.end_offset:
        table = await fetch_producers(storage, copy)
    else:
        table = await _replayed_producers(storage, fold, copy, end, epochs)
    return RestorePoint(start=end, epochs=tuple(epochs.entries()), producers=table.encode())


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


async def fetch_producers(storage: StorageManager, copy: RemoteSegment) -> ProducerTable:
    """Read the producers at the end of `copy`."""
    try:
        return decode_producers(await storage.fetch_index(copy, IndexKind.PRODUCER_SNAPSHOT))[0]
    except CorruptSnapshot as error:
        raise BadObject(f"the producer snapshot of copy {copy.id} cannot be read: {error}") from error


# --- inside a copy ---


async def _replayed_producers(
    storage: StorageManager, fold: PartitionFold, copy: RemoteSegment, end: int, epochs: EpochCache
) -> ProducerTable:
    """Make the producers at a batch inside a copy: those at the end of the newest copy of this lineage that
    ends where the replay begins, and every batch since."""
    replays = [(copy, end)]
    table = ProducerTable()
    while (before := fold.find(replays[-1][0].base_offset - 1, epochs)) is not None:
        base = replays[-1][0].base_offset
        whole = fold.segment(before.id)
        if whole is not None and whole.end_offset == base:
            table = await fetch_producers(storage, whole)
            break
        replays.append((before, base))
    for each, until in reversed(replays):
        await _replay(storage, each, until, table)
    return table


async def _replay(storage: StorageManager, copy: RemoteSegment, until: int, table: ProducerTable) -> None:
    """Apply to `table` all batches of a copy below an offset."""
    position, rest = 0, b""
    while position < copy.size_bytes:
        piece = await storage.fetch_segment(copy, position, min(position + PIECE_BYTES, copy.size_bytes))
        if not piece:
            raise BadObject(f"copy {copy.id} ends at byte {position}, not at {copy.size_bytes}")
        position += len(piece)
        data = rest + piece
        at = 0
        try:
            while len(data) - at >= HEADER_SIZE:
                header = parse_header(data, at)
                if header.base_offset >= until:
                    return
                if header.size > len(data) - at:
                    break
                check_stored(data, at, header)
                if header.producer_id >= 0:
                    replay_producer(table, data[at : at + header.size], header)
                at += header.size
        except CorruptBatch as error:
            raise BadObject(f"copy {copy.id} is damaged before byte {position}: {error}") from error
        rest = data[at:]
