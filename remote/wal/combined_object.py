"""One object of the WAL tier (KIP-1176): the tails of many partitions, and a table of where each lies.

Owns: the layout of a combined object, of a seal and of an index object, one version of it, and every check
that needs no other object. Does not own: keys (remote.keys), which slices go into an object (combiner), what
an object counts for (streams, seals: a reader's matter), the batches themselves. FORMAT.md tells others the
same: both change with the version alone.

A head of known size comes first, then the table, then the slices without gaps. So a first ranged read tells
which attempt won a key (its put-id) and, for all but the largest tables, everything else; no reader has to
know where an object ends. The head has a checksum, head and table have one, and each slice has one in its
row.

Invariant: whatever the bytes, reading gives what was written or BadObject. A row names all that the bucket
alone must tell: which log, of which lineage, which offsets, from where the log began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from protocol.checksum import Buffer, crc32c
from remote.bad_object import BadObject
from remote.keys import Stream

MAGIC: Final = b"TWWO"
VERSION: Final = 1
HEAD_READ_BYTES: Final = 64 << 10
"""Asked for first: head and table of 600 slices."""
TABLE_BYTES_MAX: Final = 64 << 20
INDEXED_OBJECTS: Final = 256
"""So many objects have their tables repeated in one index object."""


class ObjectKind(IntEnum):
    SLICES = 0
    SEAL = 1
    INDEX = 2


class Place(NamedTuple):
    """One object of one stream."""

    stream: Stream
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What an object says about itself."""

    kind: ObjectKind
    cluster_id: str
    place: Place
    """Where it lies; of an index object, the first object that it repeats."""
    put_id: bytes
    """16 bytes that tell one attempt to write this key from any other."""
    metadata_seq: int
    """The newest slot of the metadata log that the writer had applied. Of a seal: the slot for whose sake the
    stream ends."""
    writer: tuple[int, int]
    """(node id, broker epoch): of a seal, often another broker than the stream's."""
    written_ms: int
    """By the writer's clock: nothing may be decided by it."""


class Row(NamedTuple):
    """One slice: consecutive batches of one partition, out of one segment and one batch epoch."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    """In which the writer led."""
    epoch_start: int
    """Where that epoch began in the writer's log: what older epochs have from there on is void."""
    batch_epoch: int
    """The one that is stamped on the batches, at most `leader_epoch`."""
    start: int
    end: int
    """Exclusive. Compaction leaves gaps: batches may begin above `start` and end below `end`."""
    log_start: int
    """Of the writer's log: what is below was deleted, and is not to come back."""
    position: int
    """Of the first byte in the object."""
    size: int
    crc32c: int
    previous: Place | None
    """Where the partition's slice before this one lies, where this is its first one in the stream."""


_new_tuple = tuple.__new__
_POSITION: Final = Row._fields.index("position")

_HEAD = Struct(">4sHBIIiqIq16sqiqq")
_TEXT = Struct(">H")
_CRC = Struct(">I")
_COUNT = Struct(">I")
_ROW = Struct(">16siiqiqqqQIIB")
_PLACE = Struct(">iqIq")
_REST_MIN = _COUNT.size + _CRC.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Head and rows of one object."""

    head: Head
    rows: tuple[Row, ...]
    body_at: int
    """Where the slices begin."""

    @property
    def size_bytes(self) -> int:
        """Of the whole object."""
        return self.rows[-1].position + self.rows[-1].size if self.rows else self.body_at


def table_bytes(cluster_id: str, rows: Iterable[Row]) -> int:
    """Return how many bytes stand before the first slice."""
    return _head_bytes(cluster_id.encode()) + _REST_MIN + sum(map(_row_bytes, rows))


def place_slices(cluster_id: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the positions that their slices get in one object, in this order."""
    position = table_bytes(cluster_id, rows)
    placed = []
    for row in rows:
        # a fifth of what `_replace` takes, where a cut holds the loop for hundreds of rows
        placed.append(_new_tuple(Row, (*row[:_POSITION], position, *row[_POSITION + 1 :])))
        position += row.size
    return placed


def encode_table(head: Head, rows: Sequence[Row]) -> bytes:
    """Return head and table of an object of slices, or of a seal, which has no rows. The slices follow."""
    assert head.kind is ObjectKind.SLICES or (head.kind is ObjectKind.SEAL and not rows), head
    return _with_crc(head, len(rows), b"".join(map(_encode_row, rows)))


def encode_index(head: Head, tables: Sequence[bytes]) -> bytes:
    """Return an index object: the heads and tables of consecutive objects, as they are in these."""
    assert head.kind is ObjectKind.INDEX, head
    return _with_crc(head, len(tables), b"".join(_COUNT.pack(len(each)) + each for each in tables))


def _encode_row(row: Row) -> bytes:
    *numbers, previous = row[1:]
    out = _ROW.pack(row.topic_id.bytes, *numbers, previous is not None)
    if row.previous is not None:
        out += _PLACE.pack(*row.previous.stream, row.previous.seq)
    return out


def _row_bytes(row: Row) -> int:
    return _ROW.size if row.previous is None else _ROW.size + _PLACE.size


def _head_bytes(cluster_id: bytes) -> int:
    return _HEAD.size + _TEXT.size + len(cluster_id) + _CRC.size


def _with_crc(head: Head, count: int, entries: bytes) -> bytes:
    """Return the head, then the entries behind their number, with a checksum of all of it."""
    assert len(head.put_id) == 16, head.put_id
    cluster_id = head.cluster_id.encode()
    out = bytearray(
        _HEAD.pack(
            MAGIC,
            VERSION,
            head.kind,
            _head_bytes(cluster_id),
            _REST_MIN + len(entries),
            *head.place.stream,
            head.place.seq,
            head.put_id,
            head.metadata_seq,
            *head.writer,
            head.written_ms,
        )
    )
    out += _TEXT.pack(len(cluster_id))
    out += cluster_id
    out += _CRC.pack(crc32c(out))
    out += _COUNT.pack(count)
    out += entries
    out += _CRC.pack(crc32c(out))
    return bytes(out)


class _Start(NamedTuple):
    head: Head
    head_bytes: int
    end: int
    """Of the table, its checksum included."""


def decode_head(data: Buffer) -> Head:
    """Read what an object says about itself; `data` may end anywhere after the head."""
    return _decode_start(data).head


def table_end(data: Buffer) -> int:
    """Return how many of an object's first bytes hold its head and its table."""
    return _decode_start(data).end


def decode_table(data: Buffer) -> Table:
    """Read head and table; `data` may go on after them."""
    start = _decode_start(data)
    if start.head.kind is ObjectKind.INDEX:
        raise BadObject("an index object where one with slices was looked for")
    count, entries = _checked_entries(data, start)
    rows = tuple(_decode_rows(entries, count, start.end))
    if start.head.kind is ObjectKind.SEAL and rows:
        raise BadObject(f"a seal with {len(rows)} slices")
    return Table(head=start.head, rows=rows, body_at=start.end)


def decode_index(data: Buffer) -> tuple[Head, tuple[Table, ...]]:
    """Read an index object; BadObject unless its tables are those of consecutive objects of its stream."""
    head, raw = split_index(data)
    stream, first = head.place
    tables: list[Table] = []
    for seq, each in enumerate(raw, first):
        table = decode_table(each)
        if table.head.place != (stream, seq) or table.body_at != len(each):
            raise BadObject(f"an index object repeats {table.head.place} in the place of {stream}, {seq}")
        tables.append(table)
    return head, tuple(tables)


def split_index(data: Buffer) -> tuple[Head, list[memoryview]]:
    """Return the tables of an index object as bytes, for who reads one after another."""
    start = _decode_start(data)
    if start.head.kind is not ObjectKind.INDEX:
        raise BadObject(f"an object of kind {start.head.kind.name}, not an index object")
    if len(data) != start.end:
        raise BadObject(f"an index object of {len(data)} bytes, its table ends at {start.end}")
    count, entries = _checked_entries(data, start)
    tables: list[memoryview] = []
    at = 0
    for _ in range(count):
        if len(entries) - at < _COUNT.size:
            raise BadObject("an index object is cut inside a table")
        (size,) = _COUNT.unpack_from(entries, at)
        at += _COUNT.size
        if len(entries) - at < size:
            raise BadObject("an index object is cut inside a table")
        tables.append(entries[at : at + size])
        at += size
    if at != len(entries):
        raise BadObject(f"{len(entries) - at} bytes after the last table of an index object")
    return start.head, tables


def check_slice(row: Row, data: Buffer) -> None:
    """BadObject unless these are the bytes of the slice."""
    if len(data) != row.size:
        raise BadObject(f"{len(data)} bytes of a slice of {row.size}")
    if crc32c(data) != row.crc32c:
        raise BadObject(f"the slice of partition {row.partition} at position {row.position} fails its CRC")


def _decode_start(data: Buffer) -> _Start:
    if len(data) < _HEAD.size:
        raise BadObject(f"an object of the WAL tier of {len(data)} bytes")
    (
        magic,
        version,
        kind,
        head_bytes,
        rest_bytes,
        *stream,
        seq,
        put_id,
        metadata_seq,
        node_id,
        epoch,
        at_ms,
    ) = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BadObject(f"no object of the WAL tier: it starts with {bytes(magic)!r}")
    if version != VERSION:
        raise BadObject(f"an object of the WAL tier of version {version}, this release reads {VERSION}")
    if head_bytes < _head_bytes(b"") or len(data) < head_bytes:
        raise BadObject(f"an object of the WAL tier is cut: {len(data)} bytes, its head has {head_bytes}")
    view = memoryview(data)[:head_bytes]
    if _CRC.unpack_from(view, head_bytes - _CRC.size) != (crc32c(view[: -_CRC.size]),):
        raise BadObject("the head of an object of the WAL tier fails its CRC")
    text = view[_HEAD.size + _TEXT.size : -_CRC.size]
    if _TEXT.unpack_from(view, _HEAD.size) != (len(text),) or kind > max(ObjectKind):
        raise BadObject("the head of an object of the WAL tier does not add up")
    if not _REST_MIN <= rest_bytes <= TABLE_BYTES_MAX:
        raise BadObject(f"an object of the WAL tier with a table of {rest_bytes} bytes")
    try:
        cluster_id = str(text, "utf-8")
    except UnicodeDecodeError:
        raise BadObject("the cluster id in an object of the WAL tier is not UTF-8") from None
    head = Head(
        kind=ObjectKind(kind),
        cluster_id=cluster_id,
        place=Place(Stream(*stream), seq),
        put_id=put_id,
        metadata_seq=metadata_seq,
        writer=(node_id, epoch),
        written_ms=at_ms,
    )
    return _Start(head, head_bytes, head_bytes + rest_bytes)


def _checked_entries(data: Buffer, start: _Start) -> tuple[int, memoryview]:
    """Return the number of entries, and their bytes."""
    if len(data) < start.end:
        raise BadObject(f"an object of the WAL tier is cut: {len(data)} bytes, its table ends at {start.end}")
    view = memoryview(data)[: start.end]
    if _CRC.unpack_from(view, start.end - _CRC.size) != (crc32c(view[: -_CRC.size]),):
        raise BadObject("the table of an object of the WAL tier fails its CRC")
    (count,) = _COUNT.unpack_from(view, start.head_bytes)
    return count, view[start.head_bytes + _COUNT.size : -_CRC.size]


def _decode_rows(entries: memoryview, count: int, body_at: int) -> Iterator[Row]:
    at, position = 0, body_at
    for _ in range(count):
        if len(entries) - at < _ROW.size:
            raise BadObject("the table of an object of the WAL tier is cut inside a row")
        topic_id, *numbers, places = _ROW.unpack_from(entries, at)
        at += _ROW.size
        previous: Place | None = None
        if places:
            if places > 1 or len(entries) - at < _PLACE.size:
                raise BadObject("the table of an object of the WAL tier is cut inside a row")
            *stream, seq = _PLACE.unpack_from(entries, at)
            at += _PLACE.size
            previous = Place(Stream(*stream), seq)
        row = Row._make((UUID(bytes=topic_id), *numbers, previous))
        if row.position != position or not row.size or not row.start < row.end:
            raise BadObject(f"a row of the WAL tier does not add up: {row}")
        position += row.size
        yield row
    if at != len(entries):
        raise BadObject(f"{len(entries) - at} bytes after the last row of an object of the WAL tier")
