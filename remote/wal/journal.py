"""What the metadata topic of the WAL tier says, all its records together (KIP-1176).

Owns: the states and which may follow which, the records that an event becomes, what they add up to, how that
differs from the bucket. Does not own: the records' bytes (protocol.stored.wal_log), who writes them
(broker.coordinators.wal), reading them (tools). Pure.

The bucket is the truth: of an object that is FINISHED here a reader still checks the head. Events are facts,
and none of them is decided here. One record per object says that it counts and where its slices lie; an
update says that it goes; once it is gone both keys get null values. One record per stream says that it was
opened, an update that all of its objects were told: a stream without that may have more than is told here.

Invariants: a state never goes back, so records that come twice, late or in another order change nothing;
what compaction leaves means what all of it meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from protocol.pointers import ObjectPlace
from protocol.stored.wal_log import (
    STREAM_SEQ,
    ObjectRow,
    PackedEntry,
    Row,
    RowKey,
    SliceEntry,
    encode_entries,
    encode_key,
    encode_object,
)
from remote.keys import Stream
from remote.wal.combined_object import Place, Table
from remote.wal.combined_object import Row as SliceRow

LogRow = tuple[bytes, bytes | None]
"""Key and value of a record."""
ENTRIES_AT_ONCE: Final = 256
"""Encoding more would hold the loop for over a quarter of a millisecond."""


class ObjectState(IntEnum):
    """KIP-405's states of a segment, which KIP-1176 keeps for a combined object."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


def may_follow(before: ObjectState | None, after: ObjectState) -> bool:
    """Whether an object in one state may come to another, or be told to be in its own again."""
    if before is None:
        return after is ObjectState.COPY_STARTED
    return after in _AFTER[before]


_AFTER: Final = {
    ObjectState.COPY_STARTED: frozenset(
        (ObjectState.COPY_STARTED, ObjectState.COPY_FINISHED, ObjectState.DELETE_STARTED)
    ),
    ObjectState.COPY_FINISHED: frozenset((ObjectState.COPY_FINISHED, ObjectState.DELETE_STARTED)),
    ObjectState.DELETE_STARTED: frozenset((ObjectState.DELETE_STARTED, ObjectState.DELETE_FINISHED)),
    ObjectState.DELETE_FINISHED: frozenset((ObjectState.DELETE_FINISHED,)),
}


# --- records of events ---


class Teller(NamedTuple):
    """Who tells an event, and when by its clock."""

    broker_id: int
    now_ms: int


def stream_rows(stream: Stream, state: ObjectState, teller: Teller) -> list[LogRow]:
    """Tell that a stream was opened (COPY_STARTED), or that all of its objects are told (COPY_FINISHED)."""
    is_update = state is not ObjectState.COPY_STARTED
    return [_row(Place(stream, STREAM_SEQ), state, teller, is_update=is_update)]


def finished_row(place: Place, put_id: bytes, entries: bytes, teller: Teller) -> LogRow:
    """Tell that an object counts."""
    return _row(place, ObjectState.COPY_FINISHED, teller, put_id=put_id, entries=entries)


def deletion_rows(place: Place, state: ObjectState, teller: Teller) -> list[LogRow]:
    """Tell that an object goes, or that it is gone: then nothing about it is to stay. Its own record goes
    first, else one might read that it counts after that it is deleted is no longer there."""
    told = _row(place, state, teller, is_update=True)
    if state is not ObjectState.DELETE_FINISHED:
        return [told]
    at = object_place(place)
    return [told, *((encode_key(RowKey(is_update, at, None)), None) for is_update in (False, True))]


def _row(
    place: Place,
    state: ObjectState,
    teller: Teller,
    *,
    is_update: bool = False,
    put_id: bytes = bytes(16),
    entries: bytes = b"",
) -> LogRow:
    at = object_place(place)
    value = encode_object(
        is_update=is_update,
        combined_id=put_id,
        place=at,
        entries=entries,
        broker_id=teller.broker_id,
        event_timestamp_ms=teller.now_ms,
        state=state,
    )
    return encode_key(RowKey(is_update, at, None)), value


def object_place(place: Place) -> ObjectPlace:
    return ObjectPlace(*place.stream, place.seq)


def place_of(place: ObjectPlace) -> Place:
    return Place(Stream(place.node_id, place.broker_epoch, place.generation), place.seq)


def encode_slices(put_id: bytes, rows: tuple[SliceRow, ...]) -> Iterator[bytes]:
    """Yield the entries of an object's slices, some at a time. A slice's id is the object's and its number:
    whoever reads the table knows it too."""
    for first in range(0, len(rows), ENTRIES_AT_ONCE):
        yield encode_entries(_packed(put_id, rows, first))


def _packed(put_id: bytes, rows: tuple[SliceRow, ...], first: int) -> Iterator[PackedEntry]:
    base = int.from_bytes(put_id) + 1
    for number, row in enumerate(rows[first : first + ENTRIES_AT_ONCE], first):
        yield (
            row.topic_id.bytes,
            row.partition,
            ((base + number) & _ALL_BITS).to_bytes(16),
            row.position,
            row.position + row.size - 1,
            row.leader_epoch,
            row.start,
            row.end,
        )


_ALL_BITS: Final = (1 << 128) - 1


# --- what they add up to ---


@dataclass(slots=True)
class Known:
    """One object, as its two records tell it."""

    row: ObjectRow | None = None
    update: ObjectState | None = None

    @property
    def state(self) -> ObjectState:
        told = self.update if self.row is None else max(ObjectState(self.row.state), self.update or 0)
        assert told is not None, "what no record tells of is not kept"
        return ObjectState(told)


class Journal:
    """The fold of all records of one partition of the topic, or of all of them."""

    def __init__(self) -> None:
        self.objects: dict[Place, Known] = {}
        self.streams: dict[Stream, ObjectState] = {}
        """COPY_FINISHED: all that its writer stored has been told."""

    def __repr__(self) -> str:
        return f"<Journal of {len(self.objects)} objects in {len(self.streams)} streams>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Journal) and (self.objects, self.streams) == (other.objects, other.streams)

    __hash__ = None  # type: ignore[assignment]

    def apply(self, key: RowKey, row: Row | None) -> None:
        """Take one record, `row` being None for a null value. What is told of single slices is skipped: it
        says nothing that the record of their object does not."""
        if key.slice is not None:
            return
        place = place_of(key.place)
        if key.place.seq == STREAM_SEQ:
            self._apply_stream(place.stream, row)
            return
        known = self.objects.setdefault(place, Known())
        if row is None:
            if key.is_update:
                known.update = None
            else:
                known.row = None
        elif isinstance(row, ObjectRow):
            if key.is_update:
                known.update = ObjectState(max(row.state, known.update or 0))
            elif known.row is None:
                known.row = row
        if known.row is None and known.update is None:
            del self.objects[place]

    def _apply_stream(self, stream: Stream, row: Row | None) -> None:
        if row is None:
            self.streams.pop(stream, None)
        elif isinstance(row, ObjectRow):
            before = self.streams.get(stream, ObjectState.COPY_STARTED)
            self.streams[stream] = max(before, ObjectState(row.state))

    def finished(self) -> Iterator[tuple[Place, ObjectRow]]:
        """Yield what may be read, in the order of the streams and their numbers."""
        for place in sorted(self.objects):
            known = self.objects[place]
            if known.row is not None and known.state is ObjectState.COPY_FINISHED:
                yield place, known.row


# --- against the bucket ---


class Difference(NamedTuple):
    what: str
    place: Place
    detail: str


def differences(before: Journal, bucket: Mapping[Place, Table], after: Journal) -> list[Difference]:
    """Find where the topic, read before and after the bucket was, says something else than the bucket, whose
    objects that count these are. What came or went meanwhile is none."""
    found = []
    told = dict(after.finished())
    for place, row in before.finished():
        table = bucket.get(place)
        if place not in told:
            continue
        if table is None:
            found.append(Difference("missing", place, "told to count, and not in the bucket"))
        elif not is_told_right(row, table):
            found.append(
                Difference("other", place, "the object in the bucket has another id, or other slices")
            )
    for place, table in bucket.items():
        if place not in before.objects and place not in after.objects:
            found.append(Difference("untold", place, f"{len(table.rows)} slices that the topic has not"))
    return sorted(found, key=lambda each: each.place)


def is_told_right(row: ObjectRow, table: Table) -> bool:
    """Whether a record tells this object. One whose entries would not fit a record has none."""
    if row.combined_id.bytes != table.head.put_id:
        return False
    return not row.entries or row.entries == entries_of(table)


def entries_of(table: Table) -> tuple[SliceEntry, ...]:
    packed = (
        each
        for first in range(0, len(table.rows), ENTRIES_AT_ONCE)
        for each in _packed(table.head.put_id, table.rows, first)
    )
    return tuple(
        SliceEntry(UUID(bytes=topic_id), partition, UUID(bytes=segment_id), *numbers)
        for topic_id, partition, segment_id, *numbers in packed
    )


def fold(rows: Iterable[tuple[RowKey, Row | None]]) -> Journal:
    journal = Journal()
    for key, row in rows:
        journal.apply(key, row)
    return journal
