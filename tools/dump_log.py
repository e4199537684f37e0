"""What a partition's files hold, for people and for scripts: segments, indexes, snapshots, checkpoints.

Owns reading and printing. Shares with the broker only the record format; the index and checkpoint layouts are
read here on their own, so that a mistake in the broker's writer shows up instead of being read back by its
own reader.
Invariant: whatever the bytes are, a file ends in its counts or in one line with position and reason, never in
a trace.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from protocol import records
from protocol.checksum import crc32c
from protocol.compression import Codec
from protocol.errors import CorruptBatch
from protocol.records import BatchHeader
from protocol.stored.consumer_groups import ClassicSide, ConsumerGroupRecord, TargetRecord
from protocol.stored.offsets import GroupMember, GroupRecord, OffsetRecord, decode_coordinator_record
from protocol.stored.schema import BadRecord
from tools.console import Failure, emit, emit_json

Row = dict[str, Any]
Buffer = bytes | mmap.mmap

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_CRC_FROM = 6
_MARK_MAGIC = b"NOTE"
_MARK_SIZE = struct.Struct(">H")
_MARK = struct.Struct(">qqIqIqI")
_EARLIER_MAGIC = b"OLD1"
_EARLIER_HEAD = struct.Struct(">qb")
_EARLIER_BATCH = struct.Struct(">iqiq")
_IN_FLIGHT_SUFFIXES = (".deleted", ".swap", ".cleaned")


class Damage(Exception):
    """The bytes at `position` cannot be right. `offset` is the first log offset that is not readable, if
    known.
    """

    def __init__(self, position: int, reason: str, *, offset: int | None = None) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason
        self.offset = offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """What to show of a segment's records."""

    records: bool = False
    decode: str | None = None


class Counts(Row):
    """Totals of one file, in the order in which they are printed."""

    def add(self, name: str, amount: int = 1) -> None:
        self[name] = self.get(name, 0) + amount


class Kind(NamedTuple):
    name: str
    rows: Callable[[Path, RecordFilter, Counts], Iterator[Row]]


def dump_files(paths: list[Path], *, wanted: RecordFilter, as_json: bool) -> int:
    """Print every file; return 1 if any is damaged, else 0. A missing or unknown file ends it at once."""
    for path in paths:
        if not path.is_file():
            raise Failure(f"{path}: {_why_unreadable(path)}")
        kind_of(path)
    damaged = [path for path in paths if not _dump_one(path, wanted, as_json)]
    return 1 if damaged else 0


def _why_unreadable(path: Path) -> str:
    if path.is_dir():
        return "is a directory, name the files in it"
    return "not a regular file" if path.exists() else "no such file"


def kind_of(path: Path) -> Kind:
    name = path.name
    for suffix in _IN_FLIGHT_SUFFIXES:
        name = name.removesuffix(suffix)
    kind = _BY_NAME.get(name) or _BY_SUFFIX.get(Path(name).suffix)
    if kind is None:
        raise Failure(f"{path}: not a file this command reads ({', '.join((*_BY_SUFFIX, *_BY_NAME))})")
    return kind


def _dump_one(path: Path, wanted: RecordFilter, as_json: bool) -> bool:
    kind = kind_of(path)
    counts = Counts()
    damage: Damage | None = None
    if not as_json:
        emit(f"{path}: {kind.name}")
    try:
        for row in kind.rows(path, wanted, counts):
            if as_json:
                emit_json({"file": str(path), **row})
            else:
                emit(human(row))
    except Damage as error:
        damage = error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    end: Row = {"file": str(path), "kind": "end", "of": kind.name, "ok": damage is None, **counts}
    if damage is not None:
        end |= {"position": damage.position, "reason": damage.reason}
        if damage.offset is not None:
            end["offset"] = damage.offset
    if as_json:
        emit_json(end)
    else:
        emit(_human_end(path, counts, damage))
    return damage is None


def human(row: Row) -> str:
    """Print `name value` pairs; a record is indented under its batch."""
    indent = "    " if row["kind"] in ("record", "decoded") else "  "
    return indent + " ".join(
        f"{name} {_human_value(name, value)}"
        for name, value in row.items()
        if name != "kind" and _is_telling(name, value)
    )


def _is_telling(name: str, value: object) -> bool:
    """Leave out what is empty, flags that are off, and the producer of a batch that has none."""
    return not (value is None or value is False or value == "" or (value == -1 and name in _PRODUCER_FIELDS))


_PRODUCER_FIELDS = ("producer_id", "producer_epoch", "base_sequence", "last_sequence")


def _human_value(name: str, value: object) -> str:
    if name in ("key", "value") or isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if name.endswith("timestamp") and isinstance(value, int) and value >= 0:
        return _time_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time_text(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _human_end(path: Path, counts: Counts, damage: Damage | None) -> str:
    totals = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items())
    if damage is None:
        return f"{path}: {totals or 'empty'}"
    at = f"at position {damage.position}" + (
        f" (offset {damage.offset})" if damage.offset is not None else ""
    )
    return f"{path}: CORRUPT {at}: {damage.reason}" + (f"; before that: {totals}" if totals else "")


def _mapped(path: Path) -> Buffer:
    """Map the file's bytes without copying them; segments may be larger than memory."""
    if path.stat().st_size == 0:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _base_offset(path: Path) -> int | None:
    digits = path.name.split(".", 1)[0]
    return int(digits) if _is_number(digits) and digits[0] != "-" else None


# --- segments ---


def batches(path: Path) -> Iterator[tuple[int, BatchHeader, Buffer]]:
    """Yield every batch of a segment with its position, checked as recovery checks it; `Damage` at the first
    bad one."""
    data = _mapped(path)
    expected = _base_offset(path) or 0
    try:
        for position, header in records.iter_batches(memoryview(data)):
            if header.base_offset < expected:
                raise Damage(
                    position,
                    f"base offset {header.base_offset} is below {expected}, where the log was",
                    offset=expected,
                )
            yield position, header, data
            expected = header.next_offset
    except CorruptBatch as error:
        raise Damage(error.at, error.reason, offset=expected) from None


def _segment_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    counts |= {"batches": 0, "records": 0, "bytes": 0}
    decode = decoder(wanted.decode)
    for position, header, data in batches(path):
        yield _batch_row(position, header)
        counts.setdefault("first_offset", header.base_offset)
        if wanted.records or decode is not None:
            yield from _record_rows(position, header, data, decode, counts)
        counts.add("batches")
        counts.add("records", header.count)
        counts.add("bytes", header.size)
        counts["last_offset"] = header.last_offset


def _batch_row(position: int, header: BatchHeader) -> Row:
    row: Row = {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "position": position,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "codec": _codec_name(header.codec),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }
    if header.delete_horizon_ms is not None:
        row["delete_horizon_timestamp"] = header.delete_horizon_ms
    return row


def _codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec in tuple(Codec) else f"unknown({codec})"


def _record_rows(
    position: int, header: BatchHeader, data: Buffer, decode: Decoder | None, counts: Counts
) -> Iterator[Row]:
    batch = memoryview(data)[position : position + header.size]
    expected = header.base_offset
    try:
        for record in records.iter_records(batch):
            if not expected <= record.offset <= header.last_offset:
                raise Damage(position, f"record offset {record.offset} is outside its batch", offset=expected)
            expected = record.offset + 1
            if decode is not None and not header.is_control:
                yield {"kind": "decoded", "offset": record.offset, **decode(record, counts)}
            else:
                yield _record_row(record, header)
    except CorruptBatch as error:
        raise Damage(position, f"records: {error.reason}", offset=expected) from None
    except BadRecord as error:
        raise Damage(position, f"not a record of this topic: {error}", offset=expected - 1) from None
    finally:
        batch.release()


def _record_row(record: records.Record, header: BatchHeader) -> Row:
    row: Row = {"kind": "record", "offset": record.offset, "timestamp": record.timestamp}
    if header.is_control:
        return row | control_fields(record)
    row |= {"key": readable(record.key), "value": readable(record.value)}
    if record.headers:
        row["headers"] = [[name, readable(value)] for name, value in record.headers]
    return row


def control_fields(record: records.Record) -> Row:
    try:
        kind, version, coordinator_epoch = records.parse_control(record)
    except (CorruptBatch, ValueError, struct.error) as error:
        return {"control": f"unreadable ({error})"}
    name = records.ControlType(kind).name.lower() if kind in tuple(records.ControlType) else f"type {kind}"
    return {"control": name, "version": version, "coordinator_epoch": coordinator_epoch}


def readable(data: bytes | None) -> object:
    """Return text if it is printable text, otherwise base64 under that name, so that nothing is lost."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable():
        return text
    return {"base64": base64.b64encode(data).decode()}


# --- internal topics ---

Decoder = Callable[[records.Record, Counts], Row]


def decoder(name: str | None) -> Decoder | None:
    if name is None:
        return None
    if name not in _DECODERS:
        raise Failure(f"--decode {name}: not one of {', '.join(_DECODERS)}")
    return _DECODERS[name]


def _decode_offsets(record: records.Record, counts: Counts) -> Row:
    """Decode one record of __consumer_offsets; a record of a type we do not keep is shown as it is."""
    if record.key is None:
        raise BadRecord("no key")
    found = decode_coordinator_record(record.key, record.value)
    match found:
        case OffsetRecord(committed=None):
            counts.add("offset_tombstones")
            return {
                "deletes": "offset",
                "group": found.group_id,
                "topic": found.topic,
                "partition": found.partition,
            }
        case OffsetRecord(committed=committed):
            assert committed is not None
            counts.add("offset_commits")
            return {
                "group": found.group_id,
                "topic": found.topic,
                "partition": found.partition,
                "committed_offset": committed.offset,
                "leader_epoch": committed.leader_epoch,
                "metadata": committed.metadata,
                "commit_timestamp": committed.commit_timestamp_ms,
            }
        case GroupRecord(metadata=None):
            counts.add("group_tombstones")
            return {"deletes": "group", "group": found.group_id}
        case GroupRecord(metadata=metadata):
            assert metadata is not None
            counts.add("groups")
            return {
                "group": found.group_id,
                "protocol_type": metadata.protocol_type,
                "protocol": metadata.protocol,
                "generation": metadata.generation,
                "leader": metadata.leader,
                "members": [_member(member) for member in metadata.members],
            }
        case _ if found is not None:
            counts.add("consumer_groups")
            return _consumer_group(found)
        case _:
            counts.add("of_other_types")
            return {"key": readable(record.key), "value": readable(record.value)}


def _consumer_group(record: ConsumerGroupRecord) -> Row:
    """Show a record of a group that the server assigns, under the fields of its value."""
    kind = type(record).__name__.removesuffix("Record")
    named = {
        name: value for name in ("member_id", "regex") if (value := getattr(record, name, None)) is not None
    }
    if record.value is None:
        return {"deletes": kind, "group": record.group_id, **named}
    row: Row = {"group": record.group_id, "of": kind, **named}
    if isinstance(record, TargetRecord):
        return {**row, "partitions": _by_topic(record.value)}
    if isinstance(record.value, bool):
        return row
    for each in dataclasses.fields(record.value):
        value = getattr(record.value, each.name)
        match value:
            case Mapping():
                row[each.name] = _by_topic(value)
            case ClassicSide():
                row[each.name] = {
                    "session_timeout_ms": value.session_timeout_ms,
                    "protocols": [name for name, _ in value.protocols],
                }
            case IntEnum():
                row[each.name] = value.name.lower()
            case tuple():
                row[each.name] = list(value)
            case _:
                row[each.name] = value
    return row


def _by_topic(partitions: Mapping[UUID, Iterable[int]]) -> Row:
    return {str(topic_id): sorted(some) for topic_id, some in partitions.items()}


def _member(member: GroupMember) -> Row:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
    }


# --- indexes ---


def _fixed_rows(
    data: Buffer, entry: struct.Struct, *, zero_fill: bool
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield (position, fields) of each entry. With `zero_fill` the run of zeros that Kafka preallocates is
    not entries."""
    whole = len(data) - len(data) % entry.size
    end = whole
    if zero_fill:
        end = len(bytes(data[:whole]).rstrip(b"\0"))
        end = min(whole, -(-end // entry.size) * entry.size)
        if end == 0 and len(data) == entry.size:
            end = entry.size
    for position in range(0, end, entry.size):
        yield position, entry.unpack_from(data, position)
    if whole != len(data):
        raise Damage(whole, f"{len(data) - whole} bytes left over, entries have {entry.size}")


def _sibling_log(path: Path) -> Path | None:
    log = path.with_name(path.name.split(".", 1)[0] + ".log")
    return log if log.is_file() and path.suffix not in _IN_FLIGHT_SUFFIXES else None


def _index_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    """Check that offsets and positions rise, and that at each position a batch starts, at or below the
    offset."""
    counts["entries"] = 0
    base = _require_base(path)
    starts = _batch_starts(path)
    last = (-1, -1)
    for position, (relative, at) in _fixed_rows(_mapped(path), _INDEX_ENTRY, zero_fill=True):
        if relative < 0 or (relative, at) <= last or (last[0] >= 0 and relative <= last[0]):
            raise Damage(position, f"entry {relative} -> {at} does not come after {last[0]} -> {last[1]}")
        if starts is not None and starts.get(at, base + relative + 1) > base + relative:
            raise Damage(
                position, f"offset {base + relative} points to {at}, where no batch that reaches it starts"
            )
        last = (relative, at)
        counts.add("entries")
        yield {"kind": "index", "offset": base + relative, "position": at}


def _batch_starts(path: Path) -> dict[int, int] | None:
    """Return {position: base offset} of the segment beside this index, as far as it is sound; None without
    one."""
    log = _sibling_log(path)
    if log is None:
        return None
    starts: dict[int, int] = {}
    try:
        for position, header, _ in batches(log):
            starts[position] = header.base_offset
    except Damage:
        pass
    return starts


def _timeindex_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    """Check that timestamps and offsets rise, and no record up to an entry's offset is younger than it."""
    counts["entries"] = 0
    base = _require_base(path)
    log = _sibling_log(path)
    youngest = _youngest_up_to(log) if log is not None else None
    last = (-1, -1)
    for position, (timestamp, relative) in _fixed_rows(_mapped(path), _TIME_ENTRY, zero_fill=True):
        if counts["entries"] and (timestamp < last[0] or relative < last[1]):
            raise Damage(
                position, f"entry {timestamp} -> {relative} does not come after {last[0]} -> {last[1]}"
            )
        if youngest is not None and youngest(base + relative) > timestamp:
            raise Damage(
                position, f"a record at or below offset {base + relative} is younger than {timestamp}"
            )
        last = (timestamp, relative)
        counts.add("entries")
        yield {"kind": "timeindex", "timestamp": timestamp, "offset": base + relative}


def _youngest_up_to(log: Path) -> Callable[[int], int]:
    """Return a function of rising offsets: the largest timestamp of the batches that end at or below the
    offset."""
    rows = batches(log)
    pending: BatchHeader | None = None
    largest = -1

    def youngest(offset: int) -> int:
        nonlocal pending, largest
        try:
            while True:
                if pending is None:
                    pending = next(rows)[1]
                if pending.last_offset > offset:
                    break
                largest = max(largest, pending.max_timestamp)
                pending = None
        except (StopIteration, Damage):
            pass
        return largest

    return youngest


def _require_base(path: Path) -> int:
    base = _base_offset(path)
    if base is None:
        raise Damage(0, "the file name is not a base offset")
    return base


def _txnindex_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    counts["entries"] = 0
    last_stable = -1
    for position, (version, producer_id, first, last, stable) in _fixed_rows(
        _mapped(path), _TXN_ENTRY, zero_fill=False
    ):
        if version != 0:
            raise Damage(position, f"version {version}, only 0 is known")
        if first > last or stable < last_stable:
            raise Damage(position, f"offsets {first} to {last}, last stable {stable} after {last_stable}")
        last_stable = stable
        counts.add("entries")
        yield {
            "kind": "aborted",
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }


def _snapshot_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    counts["producers"] = 0
    data = path.read_bytes()
    if len(data) < _SNAPSHOT_HEAD.size:
        raise Damage(0, f"{len(data)} bytes are no snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        raise Damage(0, f"version {version}, only 1 is known")
    if crc != crc32c(data[_SNAPSHOT_CRC_FROM:]):
        raise Damage(2, f"CRC is {crc32c(data[_SNAPSHOT_CRC_FROM:])}, the file states {crc}")
    end = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
    if len(data) != end and not data.startswith((_MARK_MAGIC, _EARLIER_MAGIC), end):
        raise Damage(6, f"{count} producers do not fill {len(data)} bytes")
    names = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_offset",
        "offset_delta",
        "last_timestamp",
        "coordinator_epoch",
        "current_txn_first_offset",
    )
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size : end]):
        counts.add("producers")
        yield {"kind": "producer", **dict(zip(names, fields, strict=True))}
    if data.startswith(_MARK_MAGIC, end):
        yield _mark(data, end)
        end += len(_MARK_MAGIC) + _MARK_SIZE.size + _MARK.size
    yield from _earlier_batches(data, end + len(_EARLIER_MAGIC), counts)


def _mark(data: bytes, at: int) -> Row:
    """Decode what Tidewal noted of the segment at this offset: where it stood, and its index files by size
    and CRC."""
    names = (
        "position",
        *("index_bytes", "index_crc"),
        *("timeindex_bytes", "timeindex_crc"),
        *("txnindex_bytes", "txnindex_crc"),
    )
    at += len(_MARK_MAGIC)
    try:
        (size,) = _MARK_SIZE.unpack_from(data, at)
        fields = _MARK.unpack_from(data, at + _MARK_SIZE.size)
    except struct.error:
        raise Damage(at, "the mark is cut short") from None
    if size != _MARK.size:
        raise Damage(at, f"a mark of {size} bytes, only {_MARK.size} are known")
    return {"kind": "mark", **dict(zip(names, fields, strict=True))}


def _earlier_batches(data: bytes, at: int, counts: Counts) -> Iterator[Row]:
    """Decode what Tidewal remembers beyond Kafka's entries: up to four batches before each producer's
    last."""
    names = ("last_sequence", "last_offset", "offset_delta", "timestamp")
    while at < len(data):
        try:
            producer_id, count = _EARLIER_HEAD.unpack_from(data, at)
            at += _EARLIER_HEAD.size
            for _ in range(count):
                fields = _EARLIER_BATCH.unpack_from(data, at)
                at += _EARLIER_BATCH.size
                counts.add("earlier_batches")
                yield {
                    "kind": "earlier_batch",
                    "producer_id": producer_id,
                    **dict(zip(names, fields, strict=True)),
                }
        except struct.error:
            raise Damage(at, "earlier batches are cut short") from None


# --- small text files ---


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise Damage(error.start, "not text") from None


def _checkpoint(names: tuple[str, ...]) -> Callable[[Path, RecordFilter, Counts], Iterator[Row]]:
    """Decode Kafka's checkpoints: a version line (0), a count line, then one line an entry. One never written
    is empty."""

    def rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
        counts["entries"] = 0
        lines = _lines(path)
        if not lines:
            return
        if len(lines) < 2 or not _is_number(lines[1]):
            raise Damage(0, "no version and count in the first two lines")
        if lines[0] != "0":
            raise Damage(0, f"version {lines[0]}, only 0 is known")
        position = len(lines[0]) + len(lines[1]) + 2
        for line in lines[2:]:
            fields = line.split()
            if len(fields) != len(names) or not all(_is_number(field) for field in fields[-2:]):
                raise Damage(position, f"line {line!r} is not `{' '.join(names)}`")
            numbers = (
                field if name == "topic" else int(field) for name, field in zip(names, fields, strict=True)
            )
            yield {"kind": "checkpoint", **dict(zip(names, numbers, strict=True))}
            counts.add("entries")
            position += len(line) + 1
        if counts["entries"] != int(lines[1]):
            raise Damage(position, f"{counts['entries']} entries, the file states {lines[1]}")

    return rows


def _is_number(text: str) -> bool:
    """Return whether it fits in 64 bits and is ASCII: there are digits that no number is made of."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 20


def _properties_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    counts["entries"] = 0
    separator = "=" if path.name == "meta.properties" else ":"
    position = 0
    for line in _lines(path):
        if line.strip() and not line.startswith("#"):
            name, found, value = line.partition(separator)
            if not found:
                raise Damage(position, f"line {line!r} has no `{separator}`")
            counts.add("entries")
            yield {"kind": "property", name.strip(): value.strip()}
        position += len(line.encode()) + 1


def _clean_shutdown_rows(path: Path, wanted: RecordFilter, counts: Counts) -> Iterator[Row]:
    text = "\n".join(_lines(path))
    if not text.strip():
        return
    try:
        fields = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Damage(getattr(error, "pos", 0), "not JSON") from None
    if not isinstance(fields, dict):
        raise Damage(0, "not a JSON object")
    yield {"kind": "property", **fields}


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not know."""
    raise ValueError(name)


_SEGMENT = Kind("log segment", _segment_rows)
_BY_SUFFIX: Mapping[str, Kind] = {
    ".log": _SEGMENT,
    ".index": Kind("offset index", _index_rows),
    ".timeindex": Kind("time index", _timeindex_rows),
    ".txnindex": Kind("transaction index", _txnindex_rows),
    ".snapshot": Kind("producer snapshot", _snapshot_rows),
}
_OFFSETS = Kind("offset checkpoint", _checkpoint(("topic", "partition", "offset")))
_BY_NAME: Mapping[str, Kind] = {
    "leader-epoch-checkpoint": Kind("leader epochs", _checkpoint(("leader_epoch", "start_offset"))),
    "recovery-point-offset-checkpoint": _OFFSETS,
    "log-start-offset-checkpoint": _OFFSETS,
    "replication-offset-checkpoint": _OFFSETS,
    "cleaner-offset-checkpoint": _OFFSETS,
    "partition.metadata": Kind("partition metadata", _properties_rows),
    "meta.properties": Kind("directory metadata", _properties_rows),
    ".kafka_cleanshutdown": Kind("clean shutdown marker", _clean_shutdown_rows),
}
_DECODERS: Mapping[str, Decoder] = {"offsets": _decode_offsets}
