"""What a log asks of batches whose records it must look at, and the form in which it stores them.

Owns: the limits of a batch and of its records, recompressing and restamping, doing so in slices. Does not
own: offsets, appending (log), running the slices and tasks (Produce). Invariant: the log is not changed, and
no step takes long: records are walked a few at a time, and native work on many bytes is handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

from protocol.compression import Codec, DecompressedTooLarge, reach
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import (
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    iter_batches,
    iter_section,
    parse_header,
    records_data,
    repack,
    restamp_append_time,
)
from storage.policy import LONG_MAX, LogConfig
from storage.producers import ProducerTable, Verification, read_marker

Buffer = bytes | bytearray | memoryview
Origin = Literal["client", "coordinator"]

WALK_RECORDS = 256
"""Records a slice: about 0.5 ms."""
INLINE_BYTES = 32 << 10
"""A batch of this size or less: packing and unpacking costs less than handing it to a thread."""

UNPACKED_BYTES = 64 << 10
"""What a batch may become before it is handed to a thread."""

T = TypeVar("T")

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class RecordsRejected(KafkaError):
    """A batch refused for some of its records: Produce answers their indexes in `record_errors`."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class Task:
    """Work that touches nothing but its own bytes; its outcome is kept for the caller."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class TargetLog(Protocol):
    """The part of a log that says how it stores a batch."""

    topic: str
    partition: int
    config: LogConfig
    producer_table: ProducerTable


class Prepared(NamedTuple):
    """Batches as `log` stores them, still without offsets; an empty one stands for a duplicate."""

    log: TargetLog
    batches: list[tuple[bytearray, BatchHeader]]
    now_ms: int
    origin: Origin


Preparing = Generator[Task | None, None, Prepared]


def prepare(
    log: TargetLog, buf: Buffer, *, now_ms: int, origin: Origin, verified: Verification | None = None
) -> Preparing:
    """Check batches and rebuild them as `log` stores them, in slices; see `AbstractLog.prepare`."""
    batches = _checked_batches(buf)
    if origin == "client":
        if len(batches) != 1:
            raise KafkaError(ErrorCode.invalid_record, f"{len(batches)} batches for one partition")
        sent = log.producer_table.check(batches[0][1], verified)
        if sent is not None:
            return Prepared(log, [(bytearray(), batches[0][1])], now_ms, origin)
    ready = []
    for at, header in batches:
        ready.append((yield from _prepare_batch(log, buf, at, header, now_ms=now_ms, origin=origin)))
    return Prepared(log, ready, now_ms, origin)


def _checked_batches(buf: Buffer) -> list[tuple[int, BatchHeader]]:
    try:
        batches = list(iter_batches(buf))
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.corrupt_message, error.reason) from error
    if not batches:
        raise KafkaError(ErrorCode.invalid_record, "no record batch")
    return batches


def _prepare_batch(
    log: TargetLog, buf: Buffer, at: int, header: BatchHeader, *, now_ms: int, origin: Origin
) -> Generator[Task | None, None, tuple[bytearray, BatchHeader]]:
    """Return the batch as this log stores it: checked, recompressed and restamped as the configuration
    asks."""
    config = log.config
    check_size(config, header)
    wanted = header.codec if header.is_control else _CODECS.get(config.compression_type, header.codec)
    is_rebuilt = wanted != header.codec
    reads_records = origin == "client" and config.reads_records
    section = b""
    if header.is_control:
        marker = read_marker(memoryview(buf)[at : at + header.size], header)
        if marker is not None and header.producer_id >= 0:
            log.producer_table.check_marker(header.producer_id, header.producer_epoch, marker[1], 0)
    if is_rebuilt or reads_records:
        section = yield from _unpacked(buf, at, header)
        yield from _walk(log, section, header, now_ms, origin)
    if origin == "client":
        _check_timestamps(config, header, now_ms)
    append_time = now_ms if config.is_log_append_time else None
    if is_rebuilt:
        level = config.compression_level(config.compression_type)
        batch = yield from _off_loop(
            len(section), lambda: repack(buf, at, header, section, Codec(wanted), level)
        )
    else:
        batch = bytearray(memoryview(buf)[at : at + header.size])
        if append_time is None:
            return batch, header
    if append_time is not None:
        restamp_append_time(batch, append_time)
    rebuilt = parse_header(batch)
    check_size(log.config, rebuilt)
    return batch, rebuilt


def _walk(
    log: TargetLog, section: bytes, header: BatchHeader, now_ms: int, origin: Origin
) -> Generator[None, None, None]:
    """Check of each record what Kafka does, wherever they are read anyway. Offsets must add up: a rebuilt
    batch would otherwise take those of its neighbours."""
    needs_key = origin == "client" and log.config.is_compacted
    checks_time = origin == "client"
    expected = header.base_offset
    keyless: list[tuple[int, str]] = []
    outside: list[tuple[int, str]] = []
    # the values of a large section are not copied
    records = iter_section(
        section if len(section) <= UNPACKED_BYTES else cast(bytes, memoryview(section)), header
    )
    while True:
        after_max_ms, before_max_ms = log.config.timestamp_after_max_ms, log.config.timestamp_before_max_ms
        part = _read_some(records)
        for offset, timestamp, key, _value, _headers in part:
            if offset != expected or timestamp > LONG_MAX:
                raise KafkaError(
                    ErrorCode.invalid_record,
                    f"record with offset {offset} in place of {expected}, timestamp {timestamp}",
                )
            index = expected - header.base_offset
            if needs_key and key is None:
                keyless.append((index, "Compacted topic cannot accept message without key"))
            if (
                checks_time
                and timestamp != NO_TIMESTAMP
                and not -after_max_ms <= now_ms - timestamp <= before_max_ms
            ):
                outside.append((index, f"Timestamp {timestamp} of the record is out of range"))
            expected += 1
        if len(part) < WALK_RECORDS:
            break
        yield None
    if outside:
        raise RecordsRejected(ErrorCode.invalid_timestamp, outside[0][1], tuple(outside))
    if keyless:
        raise RecordsRejected(
            ErrorCode.invalid_record,
            f"a compacted topic takes no record without a key ({log.topic}-{log.partition})",
            tuple(keyless),
        )


def _read_some(records: Iterator[Record]) -> list[Record]:
    try:
        return list(islice(records, WALK_RECORDS))
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.invalid_record, error.reason) from error


def _unpacked(buf: Buffer, at: int, header: BatchHeader) -> Generator[Task | None, None, bytes]:
    """Return the records section. How much a few bytes become shows only when they are unpacked, so that is
    tried within bounds first."""
    if header.codec and header.size <= INLINE_BYTES:
        try:
            return records_data(buf, at, header, limit=UNPACKED_BYTES)
        except DecompressedTooLarge:
            pass
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.invalid_record, error.reason) from error
    return (yield from _off_loop(reach(header.codec, header.size), lambda: records_data(buf, at, header)))


def _off_loop(size: int, work: Callable[[], T]) -> Generator[Task | None, None, T]:
    """Return the result of native work on `size` bytes, which is worth a thread when they are many."""
    task = Task(work)
    if size > INLINE_BYTES:
        yield task
    else:
        task.run()
    try:
        result: T = task.result()
    except DecompressedTooLarge as error:
        raise KafkaError(ErrorCode.message_too_large, error.reason) from error
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.invalid_record, error.reason) from error
    return result


def stores_as_built(config: LogConfig, header: BatchHeader) -> bool:
    """Whether a log of these settings keeps a batch without compressing or restamping it."""
    return (
        not config.is_log_append_time and _CODECS.get(config.compression_type, header.codec) == header.codec
    )


def check_size(config: LogConfig, header: BatchHeader) -> None:
    if header.size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"batch of {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if header.size > config.segment_bytes:
        raise KafkaError(
            ErrorCode.record_list_too_large,
            f"batch of {header.size} bytes, segment.bytes is {config.segment_bytes}",
        )


def _check_timestamps(config: LogConfig, header: BatchHeader, now_ms: int) -> None:
    if header.max_timestamp - now_ms > config.timestamp_after_max_ms or (
        now_ms - header.base_timestamp > config.timestamp_before_max_ms
        and header.base_timestamp != NO_TIMESTAMP
    ):
        raise bad_timestamp(header, now_ms)


def bad_timestamp(header: BatchHeader, now_ms: int) -> KafkaError:
    return RecordsRejected(
        ErrorCode.invalid_timestamp,
        f"timestamps {header.base_timestamp} to {header.max_timestamp} are out of range at {now_ms}",
        ((0, f"Timestamp {header.base_timestamp} of the record is out of range"),),
    )
