"""The objects of a store, read by the tables of FORMAT.md.

Owns the layouts of sections 1, 3, 4 and 6: slots, index objects and what a broker caches of them, objects
and index objects of the WAL tier, floors. Does not own the records of the tiers' topics,
record batches (batches), nor what several objects say together (meta, judge).
Invariant: bytes are read to their end or refused with `Malformed`, whatever they are; nothing is allocated
for a count or size that the bytes there cannot hold.

Ids are given as Kafka shows them, 22 characters, but for those of single puts.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from tools.verify.core.keys import StreamKey, topic_text

T = TypeVar("T")

HEAD_BYTES_MAX: Final = 4 << 20
"""Of an index object in `tier/`."""
SLOT_MAGIC: Final = b"TWM1"
INDEX_MAGIC: Final = b"TWIX"
WAL_MAGIC: Final = b"TWWO"
FLOORS_MAGIC: Final = b"TWWF"
OFFSETS, TIMES, PRODUCERS, TRANSACTIONS, EPOCHS = range(5)
"""The sections of an index object."""
SLICES, SEAL, INDEX = range(3)
"""The kinds of object in the WAL tier."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class Malformed(Exception):
    """Bytes that are not what the page says."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(position, why)
        self.position = position
        self.why = why

    def __str__(self) -> str:
        return f"byte {self.position}: {self.why}"


# --- types ---


class Cursor:
    """A place in bytes, which goes on with each field that is read."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def refuse(self, why: str) -> Malformed:
        return Malformed(self.at, why)

    def take(self, size: int, what: str) -> bytes:
        at = self.at
        if size < 0 or size > self.end - at:
            raise self.refuse(f"{what}: {size} bytes, and {self.end - at} are left")
        self.at = at + size
        return self.data[at : self.at]

    def unpack(self, form: struct.Struct, what: str) -> tuple[Any, ...]:
        if form.size > self.end - self.at:
            raise self.refuse(f"{what}: {form.size} bytes, and {self.end - self.at} are left")
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def u8(self, what: str) -> int:
        return self.take(1, what)[0]

    def u16(self, what: str) -> int:
        return int.from_bytes(self.take(2, what), "big")

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "big")

    def i8(self, what: str) -> int:
        return int.from_bytes(self.take(1, what), "big", signed=True)

    def i32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "big", signed=True)

    def i64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "big", signed=True)

    def uuid(self, what: str) -> str:
        return topic_text(self.take(16, what))

    def text(self, what: str) -> str:
        return self.utf8(self.u16(what), what)

    def utf8(self, size: int, what: str) -> str:
        at = self.at
        try:
            return self.take(size, what).decode()
        except UnicodeDecodeError:
            raise Malformed(at, f"{what}: not UTF-8") from None

    def count(self, count: int, least: int, what: str) -> range:
        """Return so many turns, unless what is left has no place for as many of `least` bytes each."""
        if count < 0 or count * least > self.end - self.at:
            raise self.refuse(f"{what}: {count} of them, and {self.end - self.at} bytes are left")
        return range(count)

    def expect(self, value: bytes, what: str) -> None:
        at = self.at
        if (found := self.take(len(value), what)) != value:
            raise Malformed(at, f"{what}: {found.hex()} instead of {value.hex()}")

    def crc_before(self, start: int = 0) -> None:
        at = self.at
        told = self.u32("checksum")
        if (found := crc32c(memoryview(self.data)[start:at])) != told:
            raise Malformed(at, f"checksum: {told:08x}, and the bytes before have {found:08x}")

    def crc_after(self) -> None:
        at = self.at
        told = self.u32("checksum")
        if (found := crc32c(memoryview(self.data)[self.at : self.end])) != told:
            raise Malformed(at, f"checksum: {told:08x}, and the bytes after have {found:08x}")

    def finish(self) -> None:
        if self.at != self.end:
            raise self.refuse(f"{self.end - self.at} bytes too many")


def read_json(raw: bytes) -> Any:
    """Return the JSON value. Raise ValueError for anything else, and for text that is not Unicode."""
    try:
        found = json.loads(raw.decode(), parse_constant=_no_json)
        if _SURROGATE.search(raw):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return found


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# --- the metadata log ---


class MetaRecord(NamedTuple):
    name: str
    version: int
    fields: dict[str, Any]


class Slot(NamedTuple):
    """A slot of the metadata log, or a snapshot of it."""

    seq: int
    controller_epoch: int
    put_id: bytes
    previous_hash: bytes
    records: tuple[MetaRecord, ...]
    sha256: bytes
    """Of all its bytes, which the slot after it names."""


_SLOT: Final = struct.Struct(">QI16s32s")


def decode_slot(data: bytes) -> Slot:
    cursor = Cursor(data)
    cursor.expect(SLOT_MAGIC, "magic")
    cursor.crc_after()
    seq, epoch, put_id, previous_hash = cursor.unpack(_SLOT, "head")
    records = tuple(_meta_record(cursor) for _ in cursor.count(cursor.u32("records"), 4, "records"))
    cursor.finish()
    return Slot(seq, epoch, put_id, previous_hash, records, hashlib.sha256(data).digest())


def _meta_record(cursor: Cursor) -> MetaRecord:
    size = cursor.u32("record")
    at = cursor.at
    raw = cursor.take(size, "record")
    try:
        match read_json(raw):
            case [str(name), int(version), dict(fields)] if not isinstance(version, bool):
                return MetaRecord(name, version, fields)
    except ValueError as error:
        raise Malformed(at, f"record: {error}") from None
    raise Malformed(at, "record: not an array of name, version and fields")


# --- the cold tier ---


class Epoch(NamedTuple):
    epoch: int
    start_offset: int


class Section(NamedTuple):
    kind: int
    start: int
    size: int
    crc: int


class IndexHead(NamedTuple):
    """What an index object says about itself and the data beside it."""

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    segment_id: str
    base_offset: int
    end_offset: int
    broker_id: int
    leader_epoch: int
    started_ms: int
    max_timestamp_ms: int
    size: int
    """Of the data, in bytes."""
    batch_count: int
    data_crc: int
    block_size: int
    block_crcs: tuple[int, ...]
    epochs: tuple[Epoch, ...]
    sections: dict[int, Section]
    head_size: int

    @property
    def object_size(self) -> int:
        """Of the index object, by what its head says."""
        return max(section.start + section.size for section in self.sections.values())


_INDEX_ABOUT: Final = struct.Struct(">16si16sqqiiqqQIII")
_EPOCH: Final = struct.Struct(">iq")
_SECTION: Final = struct.Struct(">BQQI")


def index_head_size(first: bytes) -> int:
    """Return how many bytes the head has, from the first ten or more."""
    cursor = Cursor(first)
    cursor.expect(INDEX_MAGIC, "magic")
    cursor.expect(b"\0\1", "version")
    size = cursor.u32("head_size")
    if not cursor.at < size <= HEAD_BYTES_MAX:
        raise Malformed(6, f"head_size: {size}")
    return size


def decode_index_head(data: bytes, object_size: int) -> IndexHead:
    """Read the head out of the first bytes of an index object, which has `object_size`."""
    head_size = index_head_size(data)
    if head_size > len(data):
        raise Malformed(6, f"head_size: {head_size}, and {len(data)} bytes are there")
    cursor = Cursor(data, 10, head_size)
    _check_crc_at_end(data, head_size)
    cluster_id, topic = cursor.text("cluster_id"), cursor.text("topic")
    at = cursor.at
    (
        topic_id, partition, segment_id, base, end, broker_id, leader_epoch, started, newest, size, batches,
        crc, block_size,
    ) = cursor.unpack(_INDEX_ABOUT, "head")  # fmt: skip
    if not 0 <= base < end or partition < 0:
        raise Malformed(at, f"offsets {base} to {end} of partition {partition}")
    if block_size < 1:
        raise Malformed(at, "block_size: 0")
    blocks = cursor.u32("block_crcs")
    if blocks != -(-size // block_size):
        raise cursor.refuse(f"block_crcs: {blocks} for {size} bytes in blocks of {block_size}")
    cursor.count(blocks, 4, "block_crcs")
    block_crcs = struct.unpack(f">{blocks}I", cursor.take(4 * blocks, "block_crcs"))
    at = cursor.at
    count = cursor.u32("epochs")
    epochs = tuple(
        Epoch(*cursor.unpack(_EPOCH, "epochs")) for _ in cursor.count(count, _EPOCH.size, "epochs")
    )
    if not epochs or epochs[0].start_offset > base or not _is_ascending(epochs):
        raise Malformed(at, "epochs: none, not ascending, or later than the base offset")
    sections = _sections(cursor, head_size, object_size)
    cursor.at += 4  # the checksum
    cursor.finish()
    return IndexHead(
        cluster_id, topic, topic_text(topic_id), partition, topic_text(segment_id), base, end, broker_id,
        leader_epoch, started, newest, size, batches, crc, block_size, block_crcs, epochs, sections,
        head_size,
    )  # fmt: skip


def decode_index_object(data: bytes) -> tuple[IndexHead, dict[int, bytes]]:
    """Return the head and the bytes of each section, whose checksums agree."""
    head = decode_index_head(data, len(data))
    found = {}
    for kind, section in head.sections.items():
        found[kind] = data[section.start : section.start + section.size]
        if crc32c(found[kind]) != section.crc:
            raise Malformed(section.start, f"section {kind}: the checksum does not agree")
    return head, found


def _sections(cursor: Cursor, start: int, object_size: int) -> dict[int, Section]:
    at = cursor.at
    if (count := cursor.u16("indexes")) != 5:
        raise Malformed(at, f"indexes: {count}, not five")
    found: dict[int, Section] = {}
    for _ in range(count):
        section = Section(*cursor.unpack(_SECTION, "indexes"))
        if section.kind > EPOCHS or section.kind in found or section.start != start:
            raise cursor.refuse(f"indexes: kind {section.kind} at {section.start}, and {start} comes next")
        found[section.kind] = section
        start += section.size
    if start != object_size:
        raise Malformed(at, f"indexes: they end at {start}, and the object at {object_size}")
    return found


def _is_ascending(epochs: tuple[Epoch, ...]) -> bool:
    return all(
        one.epoch < other.epoch and one.start_offset < other.start_offset for one, other in pairwise(epochs)
    )


def _check_crc_at_end(data: bytes, end: int) -> None:
    if end < 4:
        raise Malformed(0, "no place for a checksum")
    Cursor(data, end - 4, end).crc_before()


# --- what a broker keeps of it on its disk ---


class BlockSums(NamedTuple):
    size: int
    block_bytes: int
    crcs: tuple[int, ...]


def decode_block_sums(data: bytes) -> BlockSums:
    cursor = Cursor(data)
    size, block_bytes = cursor.unpack(_SUMS, "head")
    rest = len(data) - cursor.at
    if block_bytes < 1 or rest % 4 or rest // 4 != -(-size // block_bytes):
        raise cursor.refuse(f"blocks: {rest} bytes for {size} in blocks of {block_bytes}")
    return BlockSums(size, block_bytes, struct.unpack(f">{rest // 4}I", data[cursor.at :]))


def strip_cache_tail(name: str, data: bytes) -> bytes:
    """Return what a cached file of this name holds before its tail, which agrees."""
    at = len(data) - _TAIL.size
    if at < 0:
        raise Malformed(0, "no place for the tail")
    cursor = Cursor(data, at)
    magic, version, crc, zeros = cursor.unpack(_TAIL, "tail")
    if (magic, version, zeros) != (INDEX_MAGIC, 1, 0):
        raise Malformed(at, "tail: not TWIX, version 1 and zeros")
    if crc32c(memoryview(data)[:at], crc32c(name.encode("utf-8", "surrogateescape"))) != crc:
        raise Malformed(at, "tail: the checksum does not agree")
    return data[:at]


_SUMS: Final = struct.Struct(">QI")
_TAIL: Final = struct.Struct(">4sIII")


# --- the WAL tier ---


class WalHead(NamedTuple):
    kind: int
    stream: StreamKey
    seq: int
    put_id: bytes
    metadata_seq: int
    writer_node: int
    writer_epoch: int
    written_ms: int
    cluster_id: str
    head_size: int
    table_size: int


class WalPlace(NamedTuple):
    stream: StreamKey
    seq: int


class WalSlice(NamedTuple):
    topic_id: str
    partition: int
    leader_epoch: int
    epoch_start: int
    batch_epoch: int
    start: int
    end: int
    log_start: int
    position: int
    size: int
    data_crc: int
    previous: WalPlace | None


class WalTable(NamedTuple):
    """An object of the WAL tier up to its data."""

    head: WalHead
    slices: tuple[WalSlice, ...]

    @property
    def data_at(self) -> int:
        return self.head.head_size + self.head.table_size

    @property
    def object_size(self) -> int:
        """Of the whole object, by what its table says."""
        return self.slices[-1].position + self.slices[-1].size if self.slices else self.data_at


_WAL_SIZES: Final = struct.Struct(">4sHBII")
_WAL_HEAD: Final = struct.Struct(">iqIq16sqiqq")
_SLICE: Final = struct.Struct(">16siiqiqqqQII")
_PLACE: Final = struct.Struct(">iqIq")


def wal_table_end(first: bytes) -> int:
    """Return how many bytes an object of the WAL tier has before its data, from the first 15 or more."""
    cursor = Cursor(first)
    magic, version, kind, head_size, table_size = cursor.unpack(_WAL_SIZES, "head")
    if (magic, version) != (WAL_MAGIC, 1) or kind > INDEX:
        raise Malformed(0, f"head: {magic.hex()}, version {version}, kind {kind}")
    if head_size < cursor.at:
        raise Malformed(7, f"head_size: {head_size}")
    end: int = head_size + table_size
    return end


def decode_wal_table(data: bytes, object_size: int | None) -> WalTable:
    """Read head and table out of the first bytes of an object or a seal, which has `object_size`; None: the
    bytes are all of the table, and nothing but it."""
    head, cursor = _wal_head(data)
    if head.kind == INDEX:
        raise Malformed(6, "kind: an index object under the key of an object")
    end = head.head_size + head.table_size
    if end > len(data) or (object_size is None and end < len(data)):
        raise Malformed(11, f"table_size: ends at {end}, and {len(data)} bytes are there")
    _check_crc_at_end(data, end)
    cursor.end = end
    slices = []
    at = cursor.at
    start = end
    for _ in cursor.count(cursor.u32("slices"), _SLICE.size + 1, "slices"):
        slices.append(_wal_slice(cursor, start))
        start += slices[-1].size
    if (head.kind == SEAL) != (not slices):
        raise Malformed(at, f"slices: {len(slices)} in an object of kind {head.kind}")
    cursor.at += 4  # the checksum
    cursor.finish()
    if object_size is not None and start != object_size:
        raise Malformed(at, f"slices: they end at {start}, and the object at {object_size}")
    return WalTable(head, tuple(slices))


def decode_wal_index(data: bytes) -> tuple[WalHead, tuple[WalTable, ...]]:
    """Return the head of an index object, and the tables of consecutive objects that it repeats."""
    head, cursor = _wal_head(data)
    if head.kind != INDEX:
        raise Malformed(6, f"kind: {head.kind} under the key of an index object")
    if head.head_size + head.table_size != len(data):
        raise Malformed(11, f"table_size: {head.table_size}, and {len(data)} bytes are there")
    _check_crc_at_end(data, len(data))
    tables = []
    for number in cursor.count(cursor.u32("tables"), 4, "tables"):
        size = cursor.u32("table")
        at = cursor.at
        table = _inside(at, decode_repeated_table, cursor.take(size, "table"))
        if (table.head.stream, table.head.seq) != (head.stream, head.seq + number):
            raise Malformed(at, f"table {number}: of object {table.head.seq} of {table.head.stream}")
        tables.append(table)
    cursor.at += 4  # the checksum
    cursor.finish()
    return head, tuple(tables)


def decode_repeated_table(table: bytes) -> WalTable:
    """Read a table that an index object repeats: the data is not there."""
    return decode_wal_table(table, None)


def _inside(at: int, read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except Malformed as error:
        raise Malformed(at + error.position, error.why) from None


def _wal_head(data: bytes) -> tuple[WalHead, Cursor]:
    """Return the head, and where its table begins."""
    wal_table_end(data)
    cursor = Cursor(data)
    _, _, kind, head_size, table_size = cursor.unpack(_WAL_SIZES, "head")
    if head_size > len(data):
        raise Malformed(7, f"head_size: {head_size}, and {len(data)} bytes are there")
    _check_crc_at_end(data, head_size)
    cursor.end = head_size
    node, epoch, generation, seq, put_id, metadata_seq, writer, writer_epoch, written = cursor.unpack(
        _WAL_HEAD, "head"
    )
    cluster_id = cursor.text("cluster_id")
    cursor.at += 4  # the checksum
    cursor.finish()
    head = WalHead(
        kind, StreamKey(node, epoch, generation), seq, put_id, metadata_seq, writer, writer_epoch, written,
        cluster_id, head_size, table_size,
    )  # fmt: skip
    cursor.end = len(data)
    return head, cursor


def _wal_slice(cursor: Cursor, position: int) -> WalSlice:
    at = cursor.at
    raw_id, *row = cursor.unpack(_SLICE, "slices")
    found = WalSlice(topic_text(raw_id), *row, _wal_place(cursor, "previous"))  # type: ignore[call-arg]
    if found.position != position or found.size < 1:
        raise Malformed(at, f"slices: {found.size} bytes at {found.position}, and {position} comes next")
    if not 0 <= found.start < found.end or found.partition < 0:
        raise Malformed(at, f"slices: offsets {found.start} to {found.end} of partition {found.partition}")
    return found


def _wal_place(cursor: Cursor, name: str) -> WalPlace | None:
    at = cursor.at
    places = cursor.u8(name)
    if places > 1:
        raise Malformed(at, f"{name}: {places} places")
    if not places:
        return None
    node, epoch, generation, seq = cursor.unpack(_PLACE, name)
    return WalPlace(StreamKey(node, epoch, generation), seq)


class WalFloor(NamedTuple):
    topic_id: str
    partition: int
    leader_epoch: int
    epoch_start: int
    floor: int
    stored_to: int
    moved: WalPlace | None
    """What is needed of slices before it lies in slices from it on once more."""


class Floors(NamedTuple):
    node: int
    broker_epoch: int
    metadata_seq: int
    written_ms: int
    cluster_id: str
    floors: tuple[WalFloor, ...]


_FLOORS: Final = struct.Struct(">iqqq")
_FLOOR: Final = struct.Struct(">16siiqqq")


def decode_floors(data: bytes) -> Floors:
    cursor = Cursor(data)
    cursor.expect(FLOORS_MAGIC, "magic")
    version = cursor.u16("version")
    if version not in (1, 2):
        raise Malformed(4, f"version: {version}, and 1 and 2 are known")
    _check_crc_at_end(data, len(data))
    about = cursor.unpack(_FLOORS, "head")
    cluster_id = cursor.text("cluster_id")
    at = cursor.at
    floors = tuple(_floor_rows(cursor, has_moves=version == 2))
    if len({row[:2] for row in floors}) != len(floors):
        raise Malformed(at, "floors: a partition twice")
    cursor.at += 4  # the checksum
    cursor.finish()
    return Floors(*about, cluster_id, floors)  # type: ignore[call-arg]


def _floor_rows(cursor: Cursor, *, has_moves: bool) -> Iterator[WalFloor]:
    for _ in cursor.count(cursor.u32("floors"), _FLOOR.size + has_moves, "floors"):
        raw_id, *row = cursor.unpack(_FLOOR, "floors")
        moved = _wal_place(cursor, "moved") if has_moves else None
        yield WalFloor(topic_text(raw_id), *row, moved)  # type: ignore[call-arg]
