"""Owns the second opinion on the WAL tier: its streams, where they end and what counts, folded from the
bucket's journal alone.

Shares nothing with the brokers' own uploader, hydrator and collector but the formats. Bodies are read once,
when they are put: the journal keeps of each batch where it lies in the log and its digest. Does not own the
rules.

Invariant: an object counts from the moment at which it and all before it in its stream were there, below the
stream's lowest seal; a seal at or below a boundary that was there before it is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from protocol import records
from protocol.errors import CorruptBatch
from remote.bad_object import BadObject
from remote.keys import Stream, WalKey, WalPart, parse_wal_key, wal_key
from remote.wal.combined_object import (
    Head,
    ObjectKind,
    Row,
    Table,
    check_slice,
    decode_head,
    decode_index,
    decode_table,
)
from tests.sim.history import SliceBatch, WalChange, digest

Lineage = Sequence[tuple[int, int]]
"""(leader epoch, its first offset), oldest first."""


# what is put ------------------------------------------------------------------------------------------------


def read_put(key: str, data: bytes) -> tuple[bytes, tuple[tuple[SliceBatch, ...], ...], tuple[str, ...]]:
    """What the journal keeps of a put: head and table, or all bytes of what has no slices; the batches of
    each slice; and what is wrong with it."""
    named = parse_wal_key(key)
    if named is None or named.part is WalPart.BOUNDARY:
        return data, (), ()
    try:
        if named.part is WalPart.INDEX:
            decode_index(data)
            return data, (), tuple(_misplaced(named, decode_head(data)))
        table = decode_table(data)
        if table.size_bytes != len(data):
            raise BadObject(f"{len(data)} bytes, by its table {table.size_bytes}")
        slices = tuple(
            tuple(_batches(row, memoryview(data)[row.position : row.position + row.size]))
            for row in table.rows
        )
    except (BadObject, CorruptBatch) as error:
        return data, (), (f"{key}: {error}",)
    return data[: table.body_at], slices, tuple(_misplaced(named, table.head))


def _misplaced(named: WalKey, head: Head) -> Iterator[str]:
    if head.place != (named.stream, named.seq):
        yield f"{head.place} lies at {named}"
    if (head.kind is ObjectKind.INDEX) is not (named.part is WalPart.INDEX):
        yield f"an object of kind {head.kind.name} lies at {named}"


def _batches(row: Row, data: memoryview) -> Iterator[SliceBatch]:
    check_slice(row, data)
    for at, header in records.iter_batches(data):
        if not records.crc_ok(data, at, header):
            raise BadObject(f"the batch at {header.base_offset} of {row} fails its CRC")
        if header.leader_epoch != row.batch_epoch:
            raise BadObject(f"a batch of epoch {header.leader_epoch} in {row}")
        if not row.start <= header.base_offset < header.next_offset <= row.end:
            raise BadObject(f"the batch {header.base_offset} to {header.next_offset - 1} in {row}")
        yield SliceBatch(
            header.base_offset,
            header.next_offset,
            header.leader_epoch,
            digest(data[at : at + header.size]),
        )


# what follows from it ---------------------------------------------------------------------------------------


class Slice(NamedTuple):
    """A slice in an object that counts."""

    stream: Stream
    seq: int
    at: float
    """When its object began to count."""
    head: Head
    row: Row
    batches: tuple[SliceBatch, ...]


class SeenObject(NamedTuple):
    at: float
    node: int
    table: Table
    batches: tuple[tuple[SliceBatch, ...], ...]


class SeenSeal(NamedTuple):
    at: float
    head: Head
    is_void: bool


class SeenStream:
    """One stream. `objects` are those that were put first at their numbers, deleted or not."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.objects: dict[int, SeenObject] = {}
        self.seals: dict[int, SeenSeal] = {}
        self.boundary = -1
        self.late: list[tuple[float, int]] = []
        """Objects that were put at a number again, or where a boundary had passed."""
        self.counted_at: list[float] = []
        """When each object began to count."""
        self.wrong: list[str] = []

    def __repr__(self) -> str:
        return f"<{self.stream}: {len(self.counted_at)} count, ends at {self.end}, boundary {self.boundary}>"

    @property
    def end(self) -> int | None:
        """Where its lowest valid seal lies; None while it has none."""
        return min((seq for seq, seal in self.seals.items() if not seal.is_void), default=None)

    def counts(self, seq: int, at: float) -> bool:
        """Whether the object of this number counted by then."""
        return seq < len(self.counted_at) and self.counted_at[seq] <= at

    def note_object(self, seq: int, seen: SeenObject) -> None:
        if seq in self.objects or seq <= self.boundary:
            self.late.append((seen.at, seq))
            return
        self.objects[seq] = seen
        self._count_on(seen.at)

    def note_seal(self, seq: int, at: float, head: Head) -> None:
        is_void = seq <= self.boundary
        if is_void and seq in self.seals:
            return
        self.seals[seq] = SeenSeal(at, head, is_void)
        if not is_void and seq in self.objects:
            self.wrong.append(f"{self.stream} is sealed at {seq}, where an object was")

    def note_boundary(self, through: int, at: float) -> None:
        end = self.end
        if end is not None and through >= end:
            self.wrong.append(f"the boundary {through} of {self.stream} at {at:.3f} passes its seal at {end}")
        elif through >= len(self.counted_at):
            counted = len(self.counted_at)
            self.wrong.append(
                f"the boundary {through} of {self.stream} at {at:.3f} passes what counts, {counted} objects"
            )
        self.boundary = max(self.boundary, through)

    def _count_on(self, at: float) -> None:
        end = self.end
        while (seq := len(self.counted_at)) in self.objects and (end is None or seq < end):
            self.counted_at.append(at)


class Fold:
    """All streams, by the journal up to wherever it was read."""

    def __init__(self, changes: Iterable[WalChange] = ()) -> None:
        self.streams: dict[Stream, SeenStream] = {}
        self.wrong: list[str] = []
        for change in changes:
            self.note(change)

    def note(self, change: WalChange) -> None:
        named = parse_wal_key(change.key)
        if named is None or change.kind != "put":
            return
        self.wrong += change.wrong
        if change.wrong:
            return
        seen = self.streams.get(named.stream)
        if seen is None:
            seen = self.streams[named.stream] = SeenStream(named.stream)
        if named.part is WalPart.BOUNDARY:
            seen.note_boundary(named.seq, change.at)
        elif named.part is WalPart.INDEX:
            self._note_index(change, seen)
        else:
            table = decode_table(change.table)
            if table.head.kind is ObjectKind.SEAL:
                seen.note_seal(named.seq, change.at, table.head)
            else:
                seen.note_object(named.seq, SeenObject(change.at, change.node, table, change.batches))

    def _note_index(self, change: WalChange, seen: SeenStream) -> None:
        for table in decode_index(change.table)[1]:
            seq = table.head.place.seq
            if seq not in seen.objects or seen.objects[seq].table != table or not seen.counts(seq, change.at):
                seen.wrong.append(f"{change.key} repeats {seq}, which does not count or is another")

    def slices(self) -> Iterator[Slice]:
        """Every slice that counts, stream by stream, in order."""
        for stream, seen in sorted(self.streams.items()):
            for seq, at in enumerate(seen.counted_at):
                found = seen.objects[seq]
                for row, batches in zip(found.table.rows, found.batches, strict=True):
                    yield Slice(stream, seq, at, found.table.head, row, batches)

    def by_partition(self) -> dict[tuple[UUID, int], list[Slice]]:
        """Every slice that counts, of each partition."""
        found: dict[tuple[UUID, int], list[Slice]] = defaultdict(list)
        for each in self.slices():
            found[each.row.topic_id, each.row.partition].append(each)
        return found


def lineage(slices: Iterable[Slice], known: Lineage = ()) -> dict[int, int]:
    """Each leader epoch and its first offset, as rows and what is `known` of a log tell."""
    starts = dict(known)
    for each in slices:
        starts.setdefault(each.row.leader_epoch, each.row.epoch_start)
    return starts


def valid_end(row: Row, starts: dict[int, int]) -> int:
    """Where what the slice holds becomes void: at the start of any later epoch."""
    later = (start for epoch, start in starts.items() if epoch > row.leader_epoch)
    return max(row.start, min((row.end, *later)))


def useless(seen: SeenStream, objects: Container[str], is_dead: Callable[[Row], bool]) -> Iterator[str]:
    """Objects of a stream that are there and are to go: void ones, and those that are dead with all that lie
    below them. One that is needed holds back what lies above it, in whatever order they arrived."""
    is_all_dead = True
    for seq in sorted({*seen.objects, *(seq for _, seq in seen.late)}):
        if wal_key(seen.stream, seq) not in objects or seq in seen.seals:
            continue
        is_void = seq <= seen.boundary or (seen.end is not None and seq > seen.end)
        if not is_void:
            is_all_dead = is_all_dead and all(map(is_dead, seen.objects[seq].table.rows))
        if is_void or is_all_dead:
            yield wal_key(seen.stream, seq)


def is_replaced(each: Slice, start: int, end: int, slices: Iterable[Slice], starts: dict[int, int]) -> bool:
    """Whether what the slice holds of these offsets is void because a later epoch's slice holds some of them:
    after an unclean election a log goes on above where an epoch began that it has nothing of."""
    return any(
        other.row.leader_epoch > each.row.leader_epoch
        and other.row.start < end
        and start < valid_end(other.row, starts)
        for other in slices
    )


def covered_to(start: int, row: Row, others: Iterable[Slice], starts: dict[int, int]) -> int:
    """Up to where other slices, of this epoch or later ones, hold what the row's slice holds from `start`."""
    spans = sorted(
        (other.row.start, valid_end(other.row, starts))
        for other in others
        if other.row.leader_epoch >= row.leader_epoch
    )
    for begin, end in spans:
        if begin <= start:
            start = max(start, end)
    return start
