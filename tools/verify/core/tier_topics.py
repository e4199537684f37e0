"""What the brokers say about the tiers: the topics `__remote_log_metadata` and `__remote_wal_log_metadata`.

Owns the layouts of sections 5 and 7 of FORMAT.md and what their records mean together: the copies in the cold
tier with their states, where logs start, the objects of the WAL tier. Does not own how the records are read
(snapshot), or what the store has of all that (listing, judge).
Invariant: `add` raises for no bytes; a record that is refused changes nothing and is a finding; what is kept
is no larger than the records that count.

The last record of each key counts, and a null value takes the key away. As a broker that leads no more may
say something late, the highest state that was told of a copy or object is its state.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import pairwise
from typing import Final, NamedTuple

from tools.verify.core.findings import Finding, Severity, declare
from tools.verify.core.keys import StreamKey, topic_bytes, topic_text
from tools.verify.core.layouts import Cursor, Malformed

TIER_RECORD_BAD = declare(
    "tier-record-bad",
    Severity.ERROR,
    "A record of the brokers' topics about the tiers cannot be read by its layout, or says what cannot be.",
    "Brokers pass over it; find out who wrote it, and write a null value under its key.",
)
COPY_STARTED, COPY_FINISHED, DELETE_STARTED, DELETE_FINISHED = range(4)
"""The states of copies and of objects of the WAL tier."""
DELETE_MARKED: Final = 0
"""The first state of the deletion of a partition, which goes on as 1 and 2."""
STREAM_SEQ: Final = -1
"""In the place of an object's number: the record is about the stream."""
FINDINGS_MAX: Final = 1000
"""Refused records that are named; the others are only counted."""

Copy = tuple[str, int, str]
"""Topic id, partition and id of the copy."""
Partition = tuple[str, int]
"""Topic id and number."""


class ToldCopy(NamedTuple):
    """A copy in the cold tier."""

    topic_id: str
    partition: int
    segment_id: str
    state: int
    base: int
    """-1, as all that follows but `event_ms`: only that the copy was deleted is known."""
    end: int
    """Exclusive."""
    size: int
    max_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]
    event_ms: int
    """When something was told of it last."""
    has_no_aborts: bool = False
    """Its transaction index is empty."""


class ToldSlice(NamedTuple):
    """A slice in an object of the WAL tier."""

    topic_id: str
    partition: int
    position: int
    last_position: int
    leader_epoch: int
    start: int
    end: int
    """Exclusive."""


class ToldObject(NamedTuple):
    """An object of the WAL tier."""

    state: int
    put_id: bytes
    entries: bytes
    """What `unpack_slices` reads; empty: its slices are not told."""
    event_ms: int


class _Reader(Cursor):
    """Kafka's flexible encoding."""

    __slots__ = ()

    def uvarint(self, what: str) -> int:
        at, value = self.at, 0
        for shift in range(0, 35, 7):
            byte = self.u8(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 31:
                    break
                return value
        raise Malformed(at, f"{what}: more than 31 bits")

    def ctext(self, what: str) -> str:
        if (size := self.uvarint(what)) == 0:
            raise self.refuse(f"{what}: null")
        return self.utf8(size - 1, what)

    def cbytes(self, what: str) -> bytes | None:
        size = self.uvarint(what)
        return self.take(size - 1, what) if size else None

    def turns(self, least: int, what: str) -> range:
        if (count := self.uvarint(what)) == 0:
            raise self.refuse(f"{what}: null")
        return self.count(count - 1, least, what)

    def tags(self, what: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for _ in self.count(self.uvarint(what), 2, what):
            number = self.uvarint(what)
            if number in found:
                raise self.refuse(f"{what}: field {number} twice")
            found[number] = self.take(self.uvarint(what), what)
        return found

    def frame(self) -> int:
        """Return the kind of the record."""
        at = self.at
        if (frame := self.uvarint("frame")) != 1:
            raise Malformed(at, f"frame: {frame}")
        kind = self.uvarint("kind")
        if (version := self.uvarint("version")) != 0:
            raise self.refuse(f"version: {version}")
        return kind

    def state(self, last: int) -> int:
        at = self.at
        if not 0 <= (state := self.i8("state")) <= last:
            raise Malformed(at, f"state: {state}")
        return state

    def number(self, what: str) -> int:
        """Read an `i32` that names a partition."""
        at = self.at
        if (number := self.i32(what)) < 0:
            raise Malformed(at, f"{what}: {number}")
        return number


class _Refused(Exception):
    """A record that can be read and says what cannot be."""


class _Told:
    """What both topics have in common: the record that is refused."""

    def __init__(self, topic_id: str, partitions: int) -> None:
        self._topic_id = topic_id
        self._partitions = partitions
        self._found: list[Finding] = []
        self.refused = 0
        """Records; the first of them are in `findings`."""

    def add(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take a record of the topic; those of one partition in the order of their offsets."""
        try:
            self._add(partition, key, value)
        except (Malformed, _Refused) as error:
            self._refuse(partition, offset, str(error))

    def refused_records(self) -> list[Finding]:
        """Return what is wrong with single records so far."""
        return sorted(self._found)

    def findings(self) -> list[Finding]:
        """Return what is wrong with the records so far, all of which were given."""
        return self.refused_records()

    def _add(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        raise NotImplementedError

    def _refuse(self, partition: int, offset: int, why: str) -> None:
        self.refused += 1
        if len(self._found) < FINDINGS_MAX:
            end = offset + 1 if offset >= 0 else -1
            self._found.append(Finding(TIER_RECORD_BAD, self._topic_id, partition, offset, end, actual=why))


# --- the cold tier ---


class _Start(NamedTuple):
    base: int
    end: int
    size: int
    max_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]
    event_ms: int
    has_no_aborts: bool
    state: int


class _Update(NamedTuple):
    state: int
    event_ms: int
    partition: int
    """Of the topic about the tier, where it was told."""
    offset: int


_KEY: Final = struct.Struct(">BB")
_COPY_ENDS: Final = struct.Struct(">qqiqq")
_EPOCH: Final = struct.Struct(">iq")
_EVENT: Final = struct.Struct(">iq")
_NOBODY: Final = topic_text(bytes(16))
_LOG_START_TAG: Final = 1000


class ColdTold(_Told):
    """What is told of the cold tier so far.

    `topic_id`: of `__remote_log_metadata`, for findings. `partitions`: of it, 0: unknown, so that records are
    not held against where they belong.
    """

    def __init__(self, topic_id: str = "", partitions: int = 0) -> None:
        super().__init__(topic_id, partitions)
        self._starts: dict[Copy, _Start] = {}
        self._updates: dict[Copy, _Update] = {}
        self._moved: dict[Partition, int] = {}
        self._deletions: dict[Partition, int] = {}
        self._offset = -1

    def add(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        self._offset = offset
        super().add(partition, offset, key, value)

    def copies(self) -> dict[Copy, ToldCopy]:
        """Return the copies that there are, those that are being made or deleted included."""
        found = {}
        for copy, start in self._starts.items():
            update = self._updates.get(copy)
            state, event = start.state, start.event_ms
            if update is not None:
                state, event = max(state, update.state), max(event, update.event_ms)
            base, end, size, newest, epochs, _, has_no_aborts, _ = start
            found[copy] = ToldCopy(*copy, state, base, end, size, newest, epochs, event, has_no_aborts)
        for copy, update in self._updates.items():
            if copy not in found:
                found[copy] = ToldCopy(*copy, update.state, -1, -1, -1, -1, (), update.event_ms)
        return found

    def moved_starts(self) -> dict[Partition, int]:
        """Return where logs start by `log start moved`."""
        return dict(self._moved)

    def deletions(self) -> dict[Partition, int]:
        """Return the partitions that are being deleted, with how far that is."""
        return dict(self._deletions)

    def findings(self) -> list[Finding]:
        found = super().findings()
        for copy, update in self._updates.items():
            if copy not in self._starts and update.state != DELETE_FINISHED:
                why = f"state {update.state} of the copy {copy[2]}, of which no start is told"
                end = update.offset + 1 if update.offset >= 0 else -1
                found.append(
                    Finding(TIER_RECORD_BAD, self._topic_id, update.partition, update.offset, end, actual=why)
                )
        return sorted(found)

    def _add(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        kind, topic_id, number, segment_id = _read_copy_key(key)
        if self._partitions and partition != (right := tier_partition(topic_id, number, self._partitions)):
            raise _Refused(f"of {topic_id} {number}, which partition {right} is about")
        about = topic_id, number
        match kind:
            case 0:
                self._start((*about, segment_id), value)
            case 1 if segment_id == _NOBODY:
                self._move(about, value)
            case 1:
                self._update(partition, (*about, segment_id), value)
            case _:
                self._delete(about, value)

    def _start(self, copy: Copy, value: bytes | None) -> None:
        if value is None:
            self._starts.pop(copy, None)
        else:
            self._starts[copy] = _read_started(copy, value)

    def _update(self, partition: int, copy: Copy, value: bytes | None) -> None:
        if value is None:
            self._updates.pop(copy, None)
            return
        state, event, _ = _read_updated(copy, value)
        old = self._updates.get(copy)
        if old is not None:
            state, event = max(state, old.state), max(event, old.event_ms)
        self._updates[copy] = _Update(state, event, partition, self._offset)

    def _move(self, about: Partition, value: bytes | None) -> None:
        if value is None:
            self._moved.pop(about, None)
            return
        _, _, tags = _read_updated((*about, _NOBODY), value)
        raw = tags.get(_LOG_START_TAG, b"")
        start = int.from_bytes(raw, "big", signed=True)
        if len(raw) != 8 or start < 0:
            raise _Refused(f"log start moved to {raw.hex() or 'nothing'}")
        self._moved[about] = max(start, self._moved.get(about, 0))

    def _delete(self, about: Partition, value: bytes | None) -> None:
        if value is None:
            self._deletions.pop(about, None)
            return
        reader = _Reader(value)
        if (kind := reader.frame()) != 2:
            raise _Refused(f"a value of kind {kind} under the key of a deletion")
        _read_partition(reader, about)
        reader.unpack(_EVENT, "event")
        state = reader.state(2)
        reader.tags("tags")
        reader.finish()
        self._deletions[about] = max(state, self._deletions.get(about, DELETE_MARKED))


def _read_copy_key(key: bytes | None) -> tuple[int, str, int, str]:
    """Return kind, topic id, partition and id of the copy."""
    reader = _Reader(_not_null(key))
    version, kind = reader.unpack(_KEY, "key")
    if version != 0 or kind > 2:
        raise Malformed(0, f"key: version {version}, kind {kind}")
    topic_id, number = reader.uuid("topic_id"), reader.number("partition")
    segment_id = reader.uuid("segment_id") if kind < 2 else _NOBODY
    reader.finish()
    if kind == 0 and segment_id == _NOBODY:
        raise _Refused("the start of a copy without an id")
    return kind, topic_id, number, segment_id


def _not_null(key: bytes | None) -> bytes:
    if key is None:
        raise _Refused("no key")
    return key


def _read_partition(reader: _Reader, about: Partition) -> None:
    reader.ctext("topic")
    found = reader.uuid("topic_id"), reader.i32("partition")
    reader.tags("partition_tags")
    if found != about:
        raise _Refused(f"of {found[0]} {found[1]}, and its key is of {about[0]} {about[1]}")


def _read_copy(reader: _Reader, copy: Copy) -> None:
    _read_partition(reader, copy[:2])
    found = reader.uuid("segment_id")
    reader.tags("segment_tags")
    if found != copy[2]:
        raise _Refused(f"of the copy {found}, and its key is of {copy[2]}")


def _read_started(copy: Copy, value: bytes) -> _Start:
    reader = _Reader(value)
    if (kind := reader.frame()) != 0:
        raise _Refused(f"a value of kind {kind} under the key of a start")
    _read_copy(reader, copy)
    base, last, _, newest, event = reader.unpack(_COPY_ENDS, "copy")
    epochs = []
    for _ in reader.turns(_EPOCH.size + 1, "epochs"):
        epochs.append(reader.unpack(_EPOCH, "epochs"))
        reader.tags("epochs")
    size = reader.i32("size")
    reader.cbytes("custom")
    state = reader.state(DELETE_FINISHED)
    flag = reader.tags("tags").get(0, b"\0")
    reader.finish()
    if not 0 <= base <= last or size < 0 or last == (1 << 63) - 1:
        raise _Refused(f"offsets {base} to {last} in {size} bytes")
    if not epochs or any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairwise(epochs)):
        raise _Refused("epochs: none, or not ascending")
    if flag not in (b"\0", b"\1"):
        raise _Refused(f"field 0: {flag[:8].hex() or 'nothing'}")
    return _Start(base, last + 1, size, newest, tuple(epochs), event, flag == b"\1", state)


def _read_updated(copy: Copy, value: bytes) -> tuple[int, int, dict[int, bytes]]:
    """Return state, time and tagged fields."""
    reader = _Reader(value)
    if (kind := reader.frame()) != 1:
        raise _Refused(f"a value of kind {kind} under the key of an update")
    _read_copy(reader, copy)
    _, event = reader.unpack(_EVENT, "event")
    reader.cbytes("custom")
    state = reader.state(DELETE_FINISHED)
    tags = reader.tags("tags")
    reader.finish()
    return state, event, tags


def tier_partition(topic_id: str, partition: int, count: int) -> int:
    """Return which of the `count` partitions of `__remote_log_metadata` speaks of this one."""
    high, low = struct.unpack(">QQ", topic_bytes(topic_id))
    mixed = 31 * (31 * (31 + (low ^ low >> 32)) + (high ^ high >> 32)) + partition
    number = mixed & 0xFFFFFFFF
    return (_murmur2(number) & 0x7FFFFFFF) % count


def _murmur2(number: int) -> int:
    """Return Kafka's hash of the four bytes of a number."""
    mix = 0x5BD1E995
    word = int.from_bytes(number.to_bytes(4, "big"), "little") * mix & 0xFFFFFFFF
    word = (word ^ word >> 24) * mix & 0xFFFFFFFF
    found = (0x9747B28C ^ 4) * mix & 0xFFFFFFFF ^ word
    found = (found ^ found >> 13) * mix & 0xFFFFFFFF
    return found ^ found >> 15


# --- the WAL tier ---

_WAL_KEY: Final = struct.Struct(">BBiqIq")
_WAL_ABOUT: Final = struct.Struct(">16siqIq")
_WAL_ENTRY: Final = struct.Struct(">16si16sqqiqq")
_WAL_OF_SLICE: Final = struct.Struct(">16siiqIq")
_PACKED_SLICE: Final = struct.Struct(">16siqqiqq")


class _Untold(NamedTuple):
    """What was told of an object, by its two keys."""

    first: ToldObject | None = None
    update: tuple[int, int] | None = None
    """State and time."""


class WalTold(_Told):
    """What is told of the WAL tier so far.

    `topic_id`: of `__remote_wal_log_metadata`, for findings. `partitions`: of it, 0: unknown.
    """

    def __init__(self, topic_id: str = "", partitions: int = 0) -> None:
        super().__init__(topic_id, partitions)
        self._told: dict[tuple[StreamKey, int], _Untold] = {}

    def objects(self) -> dict[tuple[StreamKey, int], ToldObject]:
        """Return the objects of which something is told, and has not been taken back."""
        found = {}
        for (stream, seq), told in self._told.items():
            if seq != STREAM_SEQ:
                found[stream, seq] = _together(told)
        return found

    def counting(self) -> dict[StreamKey, frozenset[int]]:
        """Return the objects that count, of those of which nothing is told that they go."""
        found: dict[StreamKey, set[int]] = defaultdict(set)
        for (stream, seq), told in self._told.items():
            if seq != STREAM_SEQ and told.first is not None and _together(told).state == COPY_FINISHED:
                found[stream].add(seq)
        return {stream: frozenset(seqs) for stream, seqs in found.items()}

    def streams(self) -> dict[StreamKey, int]:
        """Return the streams by their states: `COPY_STARTED`, or `COPY_FINISHED` once all of it is told."""
        return {stream: _together(told).state for (stream, seq), told in self._told.items() if seq < 0}

    def _add(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        reader = _Reader(_not_null(key))
        version, kind, node, broker_epoch, generation, seq = reader.unpack(_WAL_KEY, "key")
        if version != 0 or kind > 3:
            raise Malformed(0, f"key: version {version}, kind {kind}")
        if kind > 1:
            about = reader.uuid("topic_id"), reader.i32("partition"), reader.uuid("slice_id")
        reader.finish()
        if node < 0 or broker_epoch < 0 or seq < (STREAM_SEQ if kind < 2 else 0):
            raise _Refused(f"object {seq} of {node}, {broker_epoch}, {generation}")
        if self._partitions and partition != node % self._partitions:
            raise _Refused(f"of broker {node}, which partition {node % self._partitions} is about")
        place = StreamKey(node, broker_epoch, generation), seq
        if kind > 1:
            if value is not None:
                _read_slice(kind, about, place, value)
            return
        self._object(kind, place, value)

    def _object(self, kind: int, place: tuple[StreamKey, int], value: bytes | None) -> None:
        told = self._told.get(place, _Untold())
        if value is None:
            told = told._replace(update=None) if kind else told._replace(first=None)
        else:
            found = _read_object(kind, place, value)
            if kind == 0:
                told = told._replace(first=found)
            elif told.update is None:
                told = told._replace(update=(found.state, found.event_ms))
            else:
                state, event = told.update
                told = told._replace(update=(max(state, found.state), max(event, found.event_ms)))
        if told == _Untold():
            self._told.pop(place, None)
        else:
            self._told[place] = told


def _together(told: _Untold) -> ToldObject:
    first = told.first or ToldObject(COPY_STARTED, b"", b"", -1)
    if told.update is None:
        return first
    state, event = told.update
    return first._replace(state=max(first.state, state), event_ms=max(first.event_ms, event))


def _read_place(reader: _Reader, place: tuple[StreamKey, int], found: tuple[int, ...]) -> None:
    if found != (*place[0], place[1]):
        raise reader.refuse(f"of {found}, and its key is of {(*place[0], place[1])}")


def _read_object(kind: int, place: tuple[StreamKey, int], value: bytes) -> ToldObject:
    reader = _Reader(value)
    if (found := reader.frame()) != kind:
        raise _Refused(f"a value of kind {found} under a key of kind {kind}")
    put_id, *told = reader.unpack(_WAL_ABOUT, "object")
    _read_place(reader, place, tuple(told))
    entries = bytearray()
    for _ in reader.turns(_WAL_ENTRY.size + 1, "entries"):
        topic_id, partition, _, first, last, epoch, start, end = reader.unpack(_WAL_ENTRY, "entries")
        reader.tags("entries")
        if partition < 0 or not 0 <= first <= last or not 0 <= start < end:
            raise reader.refuse(f"entries: offsets {start} to {end} in bytes {first} to {last}")
        entries += _PACKED_SLICE.pack(topic_id, partition, first, last, epoch, start, end)
    _, event = reader.unpack(_EVENT, "event")
    state = reader.state(DELETE_FINISHED)
    reader.cbytes("custom")
    reader.tags("tags")
    reader.finish()
    return ToldObject(state, put_id, bytes(entries), event)


def _read_slice(kind: int, about: tuple[str, int, str], place: tuple[StreamKey, int], value: bytes) -> None:
    """Check a record of one slice. No release writes any, so nothing is kept of it."""
    reader = _Reader(value)
    if (found := reader.frame()) != kind:
        raise _Refused(f"a value of kind {found} under a key of kind {kind}")
    reader.ctext("topic")
    topic_id, partition, slice_id, *_ = reader.unpack(_WAL_ENTRY, "slice")
    if (topic_text(topic_id), partition, topic_text(slice_id)) != about:
        raise _Refused("of another slice than its key")
    _, _, *told = reader.unpack(_WAL_OF_SLICE, "object")
    _read_place(reader, place, tuple(told))
    reader.unpack(_EVENT, "event")
    reader.state(DELETE_FINISHED)
    reader.cbytes("custom")
    reader.tags("tags")
    reader.finish()


def unpack_slices(entries: bytes) -> tuple[ToldSlice, ...]:
    """Return the slices of a `ToldObject`, in the order of its table."""
    return tuple(
        ToldSlice(topic_text(topic_id), *rest) for topic_id, *rest in _PACKED_SLICE.iter_unpack(entries)
    )
