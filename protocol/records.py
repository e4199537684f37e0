"""RecordBatch v2 (KIP-98) as a view on bytes, and the few places where records inside a batch are read or
made.

Owns: the 61-byte header, the CRC, stamping in place, validation of what producers send, walking and
building records, the codecs, control records. Does not own: which batches a log takes (storage) nor message
formats 0 and 1, which Kafka 4 no longer stores and we refuse.
Invariant: a batch that passed `check_produced` keeps its bytes; only base offset and leader epoch, which
the CRC does not cover, are stamped over it (`restamp_append_time` is the one exception and renews the CRC).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from protocol.checksum import crc32c
from protocol.compression import Codec, DecompressedTooLarge, compress, decompress, reach
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.primitives import pack_uvarint, write_uvarint
from protocol.work import Work, at_once

Buffer: TypeAlias = bytes | bytearray | memoryview


# --- layout ---

BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
COUNT_AT: Final = 57
HEADER_SIZE: Final = 61

OVERHEAD: Final = LEADER_EPOCH_AT
"""Base offset and length, which the length field does not count."""
CRC_FROM: Final = ATTRIBUTES_AT
"""The CRC covers everything from here on: neither the base offset nor the leader epoch."""
MAGIC: Final = 2

HEADER_LAYOUT: Final = "qiibIhiqqqhii"
"""All fields of the header, in the order of BatchHeader's."""
HEADER: Final = Struct(f">{HEADER_LAYOUT}")
STAMP: Final = Struct(">qii")
"""Base offset, length, leader epoch."""
OFFSETS: Final = Struct(">q15xi")
"""Base offset, last offset delta."""
LENGTH: Final = Struct(">i")
LEADER_EPOCH: Final = Struct(">i")
CRC: Final = Struct(">I")
ATTRIBUTES: Final = Struct(">h")
INT64: Final = Struct(">q")
"""The base offset, a timestamp, the producer id."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""Bits of the attributes."""

_LENGTH_SMALLEST: Final = 14
"""Below this Kafka calls any record set corrupt: the smallest message of format 0."""
RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers: seven fields of one byte."""

_CONTROL_KEY = Struct(">hh")
_END_TXN_VALUE = Struct(">hi")
_MARKER = Struct(">5B2hBhiB")
"""The record of a marker: its length, three zeros, key and value with their lengths, no headers."""

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's name; tuple.count is not used

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """The codec id; 5 to 7 are no Codec."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time after which tombstones may go; the cleaner keeps it in the base timestamp (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


NewRecord: TypeAlias = Record | tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]


def next_sequence(sequence: int, increment: int) -> int:
    """Sequences wrap from 2³¹−1 to 0."""
    return (sequence + increment) & 0x7FFFFFFF


# --- headers ---


def parse_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Return the header at `at`, checking only that 61 bytes are there; `iter_batches` checks more."""
    if len(buf) - at < HEADER_SIZE:
        raise CorruptBatch(at, f"{len(buf) - at} bytes are no batch header")
    # `_make` takes half a microsecond more, at every batch of a scan
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buf, at))


def crc_of(buf: Buffer, at: int, size: int) -> int:
    """Return the CRC-32C that the header of the batch of `size` bytes at `at` should state."""
    return crc32c(memoryview(buf)[at + CRC_FROM : at + size])


def crc_ok(buf: Buffer, at: int, header: BatchHeader) -> bool:
    return crc_of(buf, at, header.length + OVERHEAD) == header.crc


def iter_batches(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch of a stored or fetched record set with its position; raises at the first bad one, CRC
    included.
    """
    at, end = 0, len(buf)
    while at < end:
        header = parse_header(buf, at)
        check_stored(buf, at, header)
        yield at, header
        at += header.length + OVERHEAD


def check_stored(buf: Buffer, at: int, header: BatchHeader) -> None:
    """Check what holds for any batch in a log: size, magic, CRC, offsets. Compaction may leave count 0."""
    if header.magic != MAGIC:
        raise CorruptBatch(at, f"magic {header.magic}")
    if header.length + OVERHEAD < HEADER_SIZE:
        raise CorruptBatch(at, f"batch of {header.length + OVERHEAD} bytes is smaller than its header")
    if header.length + OVERHEAD > len(buf) - at:
        raise CorruptBatch(at, f"batch of {header.length + OVERHEAD} bytes is cut to {len(buf) - at}")
    if header.base_offset < 0 or header.last_offset_delta < 0:
        raise CorruptBatch(at, f"offsets {header.base_offset} + {header.last_offset_delta}")
    if not crc_ok(buf, at, header):
        raise CorruptBatch(
            at, f"CRC is {crc_of(buf, at, header.length + OVERHEAD)}, header states {header.crc}"
        )


# --- what producers send ---


def check_produced(
    buf: Buffer | None,
    *,
    version: int | None = None,
    max_message_bytes: int | None = None,
    walk: bool = False,
) -> list[tuple[int, BatchHeader]]:
    """The one batch of a produced record set, with everything Kafka refuses refused by Kafka's codes, in
    its order.

    The list has one entry because produce v3+ allows one batch per partition; what follows its `size` is an
    incomplete batch, which Kafka cuts off without a word. With `walk` every record is read as well.
    """
    header = check_one_batch(buf, version)
    assert buf is not None
    if header.base_offset != 0:
        raise _invalid(f"base offset is {header.base_offset}, a producer sends 0")
    if max_message_bytes is not None and header.size > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"batch of {header.size} bytes, max.message.bytes is {max_message_bytes}",
        )
    if not crc_ok(buf, 0, header):
        raise _corrupt(f"stored CRC {header.crc} is not that of the bytes")
    check_client_header(header)
    check_count(buf, header)
    if walk:
        check_records(buf, 0, header)
    return [(0, header)]


def check_first_batch(buf: Buffer | None) -> BatchHeader | None:
    """What the record set begins with, if that is a whole batch of today's format; what cannot be a batch at
    all is refused.
    """
    size = None if buf is None else _batch_size(buf, 0)
    if buf is None or size is None or size < HEADER_SIZE or buf[MAGIC_AT] != MAGIC:
        return None
    return BatchHeader._make(HEADER.unpack_from(buf, 0))


def check_one_batch(buf: Buffer | None, version: int | None) -> BatchHeader:
    """Check what does not depend on the log that it is meant for, and return the header."""
    if buf is None:
        raise _invalid("no records")
    size = _batch_size(buf, 0)
    if size is None:
        raise _invalid("not one whole record batch")
    magic = buf[MAGIC_AT]
    if magic != MAGIC:
        raise _invalid(f"message format {magic}, only 2 is taken")
    if size < HEADER_SIZE:
        raise _corrupt(f"batch of {size} bytes is smaller than its header")
    header = BatchHeader._make(HEADER.unpack_from(buf, 0))
    if version is not None and version < 7 and header.codec == Codec.ZSTD:
        raise KafkaError(ErrorCode.unsupported_compression_type, "zstd needs produce version 7")
    if _batch_size(buf, size) is not None:
        raise _invalid("more than one record batch for one partition")
    return header


def _batch_size(buf: Buffer, at: int) -> int | None:
    """Size of the batch at `at`; None if it is not all there, an error if no batch can start like this."""
    left = len(buf) - at
    if left < OVERHEAD:
        return None
    length: int = LENGTH.unpack_from(buf, at + LENGTH_AT)[0]
    if length < _LENGTH_SMALLEST:
        raise _corrupt(f"batch length {length}")
    if left <= MAGIC_AT:
        return None
    if buf[at + MAGIC_AT] > MAGIC:
        raise _corrupt(f"magic {buf[at + MAGIC_AT]}")
    return length + OVERHEAD if left >= length + OVERHEAD else None


def check_client_header(header: BatchHeader) -> None:
    """Check the rules on header fields of a client's batch; size, magic, base offset and CRC are checked
    elsewhere.
    """
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise _invalid(f"{header.count} records with last offset delta {header.last_offset_delta}")
    attributes = header.attributes
    if attributes & (CONTROL | LOG_APPEND_TIME) or attributes & CODEC_MASK > Codec.ZSTD:
        if attributes & CONTROL:
            raise _invalid("clients do not write control records")
        if attributes & LOG_APPEND_TIME:
            raise KafkaError(
                ErrorCode.invalid_timestamp, "producers do not set the timestamp type to LogAppendTime"
            )
        raise _invalid(f"codec {attributes & CODEC_MASK}")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise _invalid(f"sequence {header.base_sequence} with producer id {header.producer_id}")


def check_count(buf: Buffer, header: BatchHeader) -> None:
    """Refuse a count that the bytes of the batch cannot hold, as far as that is seen without reading the
    records: each takes `RECORD_BYTES_MIN`, and of uncompressed ones the first fills the batch if and only if
    it is alone.
    """
    section, count = header.size - HEADER_SIZE, header.count
    if count * RECORD_BYTES_MIN > reach(header.codec, section):
        raise _invalid(f"{count} records in {section} bytes")
    if header.codec:
        return
    size_field = lone_record_size(section)
    fills = size_field is not None and buf[HEADER_SIZE : HEADER_SIZE + len(size_field)] == size_field
    if fills == (count == 1):
        return
    if fills or not _fills(bytes(buf[HEADER_SIZE : HEADER_SIZE + _VARINT_BYTES_MAX]), section):
        raise _invalid(f"a first record that does not fit to {count} records in {section} bytes")


@lru_cache(maxsize=4096)
def lone_record_size(section: int) -> bytes | None:
    """Return the size field, in the fewest bytes, of a record that fills a section of so many bytes; None
    where there is none, because one byte less for the size is one too many for the field."""
    for width in range(1, min(section, _VARINT_BYTES_MAX) + 1):
        size_field = pack_uvarint((section - width) << 1)
        if len(size_field) == width:
            return size_field
    return None


def _fills(start: bytes, section: int) -> bool:
    """Whether the first record fills the section; its size field may take more bytes than it must."""
    try:
        size, at = _varint(start, 0)
    except (IndexError, _BadRecord):
        return False
    return at + size == section


def check_records(buf: Buffer, at: int, header: BatchHeader) -> None:
    """Read every record of a client's batch: sizes, counts and deltas must add up."""
    try:
        for index, record in enumerate(iter_records(buf, at, header)):
            if record.offset != header.base_offset + index:
                raise _invalid(f"record {index} has offset delta {record.offset - header.base_offset}")
    except DecompressedTooLarge as error:
        raise KafkaError(ErrorCode.message_too_large, error.reason) from error
    except CorruptBatch as error:
        raise _invalid(error.reason) from error


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, why)


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, why)


# --- stamping ---


def stamp(buf: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at `at` its place in the log."""
    INT64.pack_into(buf, at, base_offset)
    LEADER_EPOCH.pack_into(buf, at + LEADER_EPOCH_AT, leader_epoch)


def restamp_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Make the single batch in `batch` one with LogAppendTime: type bit, max timestamp, CRC."""
    (attributes,) = ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)
    ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    INT64.pack_into(batch, MAX_TIMESTAMP_AT, now_ms)
    CRC.pack_into(batch, CRC_AT, crc_of(batch, 0, len(batch)))


# --- records ---


def iter_records(batch: Buffer, at: int = 0, header: BatchHeader | None = None) -> Iterator[Record]:
    """The records of the batch at `at`. Strict: sizes and counts must add up, no byte may be left over.

    Record attributes are unused in format 2 and not looked at, as in Kafka.
    """
    if header is None:
        header = parse_header(batch, at)
    if not header.count and header.size == HEADER_SIZE:
        return  # what compaction leaves of a batch to keep its producer's sequence
    yield from iter_section(records_data(batch, at, header), header, at)


def iter_section(data: bytes, header: BatchHeader, at: int = 0) -> Iterator[Record]:
    """The records in a section that `records_data` unpacked."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    if header.count < 0:
        raise CorruptBatch(at, f"record count {header.count}")
    if abs(base_timestamp) > _TIMESTAMP_MAX:
        raise CorruptBatch(at, f"base timestamp {base_timestamp}")
    new, total, position = tuple.__new__, len(data), 0
    try:
        # One-byte varints are read in place: a call for each would double the 1.5 µs a record takes.
        for _ in range(header.count):
            if (byte := data[position]) < 0x80:
                size, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                size, position = _varint(data, position)
            end = position + size
            if size < 0 or end > total:
                raise _BadRecord(f"record of {size} bytes, {total - position} are left")
            if (byte := data[position + 1]) < 0x80:
                delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                delta, position = _varint(data, position + 1, _VARLONG_SHIFT_MAX)
                if abs(delta) > _TIMESTAMP_MAX:
                    raise _BadRecord(f"timestamp delta {delta}")
            if (byte := data[position]) < 0x80:
                offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                offset_delta, position = _varint(data, position)
            if (byte := data[position]) < 0x80:
                size, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                size, position = _varint(data, position)
            key = None  # Kafka takes any negative size for null
            if size >= 0:
                position += size
                key = data[position - size : position]
            if (byte := data[position]) < 0x80:
                size, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                size, position = _varint(data, position)
            value = None
            if size >= 0:
                position += size
                value = data[position - size : position]
            headers: tuple[tuple[str, bytes | None], ...] = ()
            if data[position]:
                headers, position = _headers(data, position, end)
            else:
                position += 1
            if position != end:
                raise _BadRecord(f"record ends at {position} and not at {end} as its size says")
            timestamp = base_timestamp + delta if append_time is None else append_time
            yield new(Record, (base_offset + offset_delta, timestamp, key, value, headers))
    except (IndexError, _BadRecord) as error:
        raise CorruptBatch(at, f"record structure: {error}") from error
    if position != total:
        raise CorruptBatch(at, f"{total - position} bytes after the last record")


def iter_times(data: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """The offset and the timestamp of each record in an unpacked section. What follows them in a record is
    not looked at."""
    append_time = header.max_timestamp if header.is_log_append_time else None
    position = 0
    try:
        for _ in range(header.count):
            size, position = _varint(data, position)
            end = position + size
            if size < 0 or end > len(data):
                raise _BadRecord(f"record of {size} bytes, {len(data) - position} are left")
            delta, position = _varint(data, position + 1, _VARLONG_SHIFT_MAX)
            offset_delta, position = _varint(data, position)
            if position > end:
                raise _BadRecord("a record that ends within its offset")
            position = end
            timestamp = header.base_timestamp + delta if append_time is None else append_time
            yield header.base_offset + offset_delta, timestamp
    except (IndexError, _BadRecord) as error:
        raise CorruptBatch(0, f"record structure: {error}") from error
    if position != len(data):
        raise CorruptBatch(0, f"{len(data) - position} bytes after the last record")


def records_data(batch: Buffer, at: int, header: BatchHeader, limit: int | None = None) -> bytes:
    """Return the records section, decompressed; DecompressedTooLarge above `limit`."""
    if header.size < HEADER_SIZE or header.size > len(batch) - at:
        raise CorruptBatch(at, f"batch of {header.size} bytes in {len(batch) - at}")
    section = memoryview(batch)[at + HEADER_SIZE : at + header.size]
    if not header.codec:
        return bytes(section)
    try:
        return decompress(header.codec, section, limit)
    except CorruptBatch as error:
        error.at = at
        raise


def repack(
    batch: Buffer, at: int, header: BatchHeader, section: bytes, codec: Codec, level: int | None
) -> bytearray:
    """Return the batch at `at` with its unpacked section in another codec. No record is touched."""
    data = compress(codec, section, level) if codec else section
    out = bytearray(memoryview(batch)[at : at + HEADER_SIZE])
    out += data
    LENGTH.pack_into(out, LENGTH_AT, len(out) - OVERHEAD)
    ATTRIBUTES.pack_into(out, ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | codec)
    CRC.pack_into(out, CRC_AT, crc_of(out, 0, len(out)))
    return out


class _BadRecord(Exception):
    pass


_VARINT_SHIFT_MAX = 28  # 5 bytes
_VARINT_BYTES_MAX = 5
_VARLONG_SHIFT_MAX = 63  # 10 bytes
_RECORDS_PER_STEP = 64
_TIMESTAMP_MAX = 1 << 62  # so that base and delta add up to an int64; Java lets them wrap


def _varint(data: Buffer, at: int, shift_max: int = _VARINT_SHIFT_MAX) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > shift_max:
            raise _BadRecord(f"varint too long at {at}")


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise _BadRecord(f"field of {size} bytes, the record has {end - at}")
    return data[at:stop], stop


def _headers(data: bytes, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = _varint(data, at)
    if count < 0 or count > end - at:
        raise _BadRecord(f"{count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        key, at = _bytes(data, at, end)
        if key is None:
            raise _BadRecord("header without a key")
        value, at = _bytes(data, at, end)
        headers.append((str(key, "utf-8", "replace"), value))
    return tuple(headers), at


# --- building ---


def build_in_steps(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset: int | None = None,
) -> Work[bytearray]:
    """A batch of the given records. Record values keep their offsets; (key, value, headers, timestamp) are
    numbered from the base offset. `last_offset` is for batches that lost records to compaction and keep
    their range.
    """
    if not records and last_offset is None:
        raise ValueError("a batch without records needs last_offset")
    rows = []
    for index, record in enumerate(records):
        rows.append(_numbered(record, base_offset + index))
        if index % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
            yield
    if not rows:
        codec = Codec.NONE  # as Kafka; there is nothing to compress
    timestamps = [row.timestamp for row in rows]
    base_timestamp = timestamps[0] if timestamps else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    max_timestamp = max(timestamps, default=NO_TIMESTAMP) if log_append_time is None else log_append_time
    attributes = (
        codec
        | (LOG_APPEND_TIME if log_append_time is not None else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
        | (DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    section = bytearray()
    for index, row in enumerate(rows, 1):
        _write_record(section, row, base_offset, base_timestamp)
        if index % _RECORDS_PER_STEP == 0:
            yield
    last = rows[-1].offset if last_offset is None else last_offset
    return _whole(
        compress(codec, section, level) if codec else section,
        base_offset,
        leader_epoch,
        attributes,
        last - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(rows),
    )


build_batch = at_once(build_in_steps)


def build_pairs_in_steps(
    pairs: Sequence[tuple[bytes, bytes | None]],
    timestamp: int,
    *,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> Work[bytearray]:
    """What `build_in_steps` makes of keys and values of one time, in a third of its time."""
    section = bytearray()
    for index, (key, value) in enumerate(pairs):
        # attributes and the time after the first record's are zero
        value_part = b"\x01" if value is None else _signed(len(value)) + value
        body = b"".join((b"\0\0", _signed(index), _signed(len(key)), key, value_part, b"\0"))
        section += _signed(len(body))
        section += body
        if index % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
            yield
    return _whole(
        compress(codec, section, None) if codec else section,
        0,
        -1,
        codec | (TRANSACTIONAL if transactional else 0),
        len(pairs) - 1,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        len(pairs),
    )


_SIGNED_BYTES: Final = tuple(bytes((value << 1,)) for value in range(64))


def _signed(value: int) -> bytes:
    """Return the signed varint of what is not negative."""
    if value < 64:
        return _SIGNED_BYTES[value]
    if value < 8192:
        return bytes((value << 1 & 0x7F | 0x80, value >> 6))
    return pack_uvarint(value << 1)


def _whole(
    data: Buffer, base_offset: int, leader_epoch: int, attributes: int, last_delta: int, *others: int
) -> bytearray:
    """Return the batch of a section of records; `others` are the fields of its header from the base timestamp
    on."""
    batch = bytearray(HEADER_SIZE)
    batch += data
    size = len(batch) - OVERHEAD
    HEADER.pack_into(batch, 0, base_offset, size, leader_epoch, MAGIC, 0, attributes, last_delta, *others)
    CRC.pack_into(batch, CRC_AT, crc_of(batch, 0, len(batch)))
    return batch


def _numbered(record: NewRecord, offset: int) -> Record:
    if isinstance(record, Record):
        return record
    key, value, headers, timestamp = record
    return Record(offset, timestamp, key, value, tuple(headers))


def _write_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)  # attributes
    _write_varint(body, record.timestamp - base_timestamp)
    _write_varint(body, record.offset - base_offset)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for key, value in record.headers:
        _write_bytes(body, key.encode())
        _write_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1
    else:
        _write_varint(out, len(value))
        out += value


def _write_varint(out: bytearray, value: int) -> None:
    if 0 <= value < 64:
        out.append(value << 1)
    else:
        write_uvarint(out, (value << 1) ^ (value >> 63))


# --- control records ---


def end_txn_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a transaction on one partition."""
    batch = bytearray(HEADER_SIZE + _MARKER.size)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        TRANSACTIONAL | CONTROL,
        0,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        1,
    )
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    # lengths are zigzag: 16 bytes of which the key has four and the value six, versions are 0, no headers
    _MARKER.pack_into(batch, HEADER_SIZE, 32, 0, 0, 0, 8, 0, kind, 12, 0, coordinator_epoch, 0)
    CRC.pack_into(batch, CRC_AT, crc_of(batch, 0, len(batch)))
    return batch


def parse_control(record: Record) -> tuple[int, int, int]:
    """(type, version, coordinator epoch) of a control record; the epoch is -1 for types other than
    ControlType's.
    """
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptBatch(0, "control record without a type")
    version, kind = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatch(0, f"control record version {version}")
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return kind, version, -1
    if record.value is None or len(record.value) < _END_TXN_VALUE.size:
        raise CorruptBatch(0, "transaction marker without a coordinator epoch")
    value_version, coordinator_epoch = _END_TXN_VALUE.unpack_from(record.value)
    if value_version < 0:
        raise CorruptBatch(0, f"transaction marker version {value_version}")
    return kind, version, coordinator_epoch
