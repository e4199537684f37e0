"""What leaders still need of the WAL tier: one small object per broker, and what follows for a slice.

Owns: the layout of a floors object, in two versions; which slice is dead by what its partition's leader
says; how far a predecessor had stored a log. Does not own: computing floors (broker), reading and deleting
objects (collector). FORMAT.md tells others the same layout. Pure.

Invariants. What a row says stays true for ever, so an object that arrives late or is read late does no harm:
in this leader epoch nobody needs a slice that ends at or below `floor`, of those stored until then, and what
older epochs have at and above `epoch_start` is void; what lies before the place to which a partition moved is
there and after it once more, as far as it is needed. A log that left a tier may be stored again in the same
epoch: what is written by a newer image than the leader had when he spoke is not judged by that. A slice is
dead only by the word of who leads its partition now, in the epoch in which he leads, or because its topic is
gone from an image that is at least as new as the slice. Who does not know enough takes it for living.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from protocol.checksum import Buffer, crc32c
from remote.bad_object import BadObject
from remote.keys import Stream
from remote.wal.combined_object import Place, Row

MAGIC: Final = b"TWWF"
VERSION: Final = 1
VERSION_OF_MOVES: Final = 2
"""Written only where a partition has moved."""

_HEAD = Struct(">4sHiqqqH")
_COUNT = Struct(">I")
_ROW = Struct(">16siiqqq")
_MOVED = Struct(">iqIq")
_CRC = Struct(">I")


class Floor(NamedTuple):
    """What the leader of one partition says of it."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    epoch_start: int
    """Where this epoch began in the leader's log, or above."""
    floor: int
    """Nothing below is needed from the WAL tier any more."""
    stored_to: int
    """Everything below, from the log start or the cold tier's end on, is in the WAL tier; -1 where the leader
    does not know."""
    moved: Place | None = None
    """All that is needed of what lies before it, in this writer's streams or of older leader epochs, was
    stored once more from it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    cluster_id: str
    writer: tuple[int, int]
    """(node id, broker epoch)."""
    metadata_seq: int
    """The newest slot of the metadata log that the writer had applied."""
    written_ms: int
    """By the writer's clock: nothing may be decided by it."""
    rows: tuple[Floor, ...]


def encode_floors(floors: Floors) -> bytes:
    cluster_id = floors.cluster_id.encode()
    has_moves = any(row.moved is not None for row in floors.rows)
    version = VERSION_OF_MOVES if has_moves else VERSION
    out = bytearray(
        _HEAD.pack(MAGIC, version, *floors.writer, floors.metadata_seq, floors.written_ms, len(cluster_id))
    )
    out += cluster_id
    out += _COUNT.pack(len(floors.rows))
    for row in floors.rows:
        out += _ROW.pack(row.topic_id.bytes, *row[1:-1])
        if has_moves:
            out.append(row.moved is not None)
            if row.moved is not None:
                out += _MOVED.pack(*row.moved.stream, row.moved.seq)
    out += _CRC.pack(crc32c(out))
    return bytes(out)


def decode_floors(data: Buffer) -> Floors:
    """Read a floors object; BadObject when it is none, damaged, or of a version that is not known."""
    if len(data) < _HEAD.size + _COUNT.size + _CRC.size:
        raise BadObject(f"a floors object of {len(data)} bytes")
    magic, version, node_id, broker_epoch, metadata_seq, written_ms, text_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BadObject(f"no floors object: it starts with {bytes(magic)!r}")
    if version not in (VERSION, VERSION_OF_MOVES):
        raise BadObject(f"a floors object of version {version}, this release reads up to {VERSION_OF_MOVES}")
    view = memoryview(data)
    if _CRC.unpack_from(view, len(view) - _CRC.size) != (crc32c(view[: -_CRC.size]),):
        raise BadObject("a floors object fails its CRC")
    at = _HEAD.size + text_bytes
    if len(view) < at + _COUNT.size + _CRC.size:
        raise BadObject("a floors object is cut inside its cluster id")
    (count,) = _COUNT.unpack_from(view, at)
    rows = _read_rows(view[at + _COUNT.size : -_CRC.size], count, has_moves=version == VERSION_OF_MOVES)
    try:
        cluster_id = str(view[_HEAD.size : at], "utf-8")
    except UnicodeDecodeError:
        raise BadObject("the cluster id in a floors object is not UTF-8") from None
    return Floors(
        cluster_id=cluster_id,
        writer=(node_id, broker_epoch),
        metadata_seq=metadata_seq,
        written_ms=written_ms,
        rows=rows,
    )


def _read_rows(data: memoryview, count: int, *, has_moves: bool) -> tuple[Floor, ...]:
    rows: list[Floor] = []
    at = 0
    try:
        for _ in range(count):
            topic_id, *numbers = _ROW.unpack_from(data, at)
            at += _ROW.size
            moved: Place | None = None
            if has_moves:
                places, at = data[at], at + 1
                if places > 1:
                    raise BadObject(f"a partition moved to {places} places")
                if places:
                    *stream, seq = _MOVED.unpack_from(data, at)
                    at += _MOVED.size
                    moved = Place(Stream(*stream), seq)
            rows.append(Floor._make((UUID(bytes=topic_id), *numbers, moved)))
    except (IndexError, StructError):
        at = -1
    if at != len(data):
        raise BadObject(f"a floors object with {len(data)} bytes for {count} partitions")
    return tuple(rows)


class View(Protocol):
    """What an image and the floors of the current leaders say."""

    @property
    def metadata_seq(self) -> int:
        """How new the image is."""

    def has_topic(self, topic_id: UUID) -> bool: ...

    def floor(self, topic_id: UUID, partition: int, metadata_seq: int) -> Floor | None:
        """Return what the partition's current leader said in its current epoch, once it had applied
        `metadata_seq`; None without a leader or before it said anything."""


def is_dead(row: Row, place: Place, metadata_seq: int, view: View) -> bool:
    """Whether nobody needs a slice of the object at `place` any more, whose writer had applied
    `metadata_seq`."""
    if not view.has_topic(row.topic_id):
        return view.metadata_seq >= metadata_seq
    floor = view.floor(row.topic_id, row.partition, metadata_seq)
    if floor is None or floor.leader_epoch < row.leader_epoch:
        return False
    if floor.leader_epoch == row.leader_epoch:
        return row.end <= floor.floor or _is_moved(floor.moved, place)
    # of an older epoch: void from the start of this one on
    if floor.moved is not None or row.start >= floor.epoch_start:
        return True
    return min(row.end, floor.epoch_start) <= floor.floor


def _is_moved(moved: Place | None, place: Place) -> bool:
    """Whether a slice of the writer lies before what it stored once more."""
    return moved is not None and place.stream[:2] == moved.stream[:2] and place < moved


def stored_before(
    floors: Iterable[Floor], topic_id: UUID, partition: int, epochs: Iterable[tuple[int, int]]
) -> int | None:
    """Return up to where predecessors had stored a log whose epochs begin as `epochs` tell, oldest first;
    None if none of them said anything that holds for this log. Nothing that was said before a leader who did
    not store the log counts: since then it may have been collected; nor what lies above the start of a later
    epoch that this log has nothing of: the tier has other records there."""
    starts = dict(epochs)
    known: int | None = None
    said = [floor for floor in floors if (floor.topic_id, floor.partition) == (topic_id, partition)]
    since = max((floor.leader_epoch for floor in said if floor.stored_to < 0), default=-1)
    for floor in said:
        if floor.leader_epoch <= since:
            continue
        if floor.leader_epoch not in starts:
            continue  # nothing of that epoch is in this log, which may be another one below it too
        ends = (start for epoch, start in starts.items() if epoch > floor.leader_epoch)
        void = (
            other.epoch_start
            for other in said
            if other.leader_epoch > floor.leader_epoch and other.leader_epoch not in starts
        )
        stored = min((floor.stored_to, next(ends, floor.stored_to), *void))
        known = stored if known is None else max(known, stored)
    return known
