"""Compaction: keep the last record of each key, drop aborted data, and let tombstones and markers go in time.

Owns: choosing dirty logs, the map of keys, filtering batches, writing the cleaned segments. Does not own:
swapping them in (UnifiedLog), retention, timers. Invariant: offsets never change, a batch keeps its base and
last offset, sequences and epoch; every key keeps at least its last record below the cleaned end, and nothing
at or past the first unstable offset or in the active segment is touched.

Everything is a generator stepped on the loop, in slices of well under a millisecond; each step yields the
milliseconds to wait before the next one, which is how `log.cleaner.io.max.bytes.per.second` is held.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from protocol.compression import DecompressedTooLarge, compress
from protocol.errors import CorruptBatch, KafkaError
from protocol.records import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    COUNT_AT,
    CRC,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_SIZE,
    INT64,
    LENGTH,
    LENGTH_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD,
    BatchHeader,
    check_stored,
    crc_of,
    iter_records,
    parse_control,
    records_data,
)
from storage.checkpoints import Done, TopicPartition
from storage.index import AbortedTxn
from storage.policy import LONG_MAX, SegmentExtent, plan_groups
from storage.producers import ProducerTable
from storage.segment import CLEANED, SEGMENT_SUFFIXES, Found, Segment
from storage.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

RECORDS_PER_SLICE = 256
BYTES_INLINE = 32 << 10
UNPACKED_INLINE = 64 << 10
"""What so small a batch may become before it is unpacked beside the loop."""
WRITE_BYTES = 512 << 10
KEY_BYTES_EXACT = 64
KEY_OVERHEAD_BYTES = 100
"""The size of a dict entry, its key object and its offset."""

_CODEC_NAMES = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_ABORT, _COMMIT = 0, 1

Slices = Generator[int, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    enabled: bool = True
    """`log.cleaner.enable`"""
    dedupe_bytes: int = 134_217_728
    """`log.cleaner.dedupe.buffer.size`"""
    io_max_bytes_per_second: float = float("inf")
    """`log.cleaner.io.max.bytes.per.second`"""


class CompactedLogs(Protocol):
    """The logs to compact, and what their owner does for it."""

    cleaner: CleanerSettings
    logs: dict[TopicPartition, UnifiedLog]
    cleaned_upto: dict[TopicPartition, int]
    uncleanable: set[TopicPartition]

    def settle_closed(self, log: UnifiedLog) -> int:
        """Return up to where the recovery point on disk covers closed segments: only they may get gaps."""

    def checkpoint_cleaner(self) -> None: ...

    def run_in_background(self, job: Callable[[], None], done: Done) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """What may be compacted in one log: dirty is [first_dirty, end)."""

    log: UnifiedLog
    first_dirty: int
    end: int
    dirty_ratio: float
    is_overdue: bool
    """Whether `max.compaction.lag.ms` is over."""

    @property
    def is_due(self) -> bool:
        if self.end <= self.first_dirty or self.dirty_ratio <= 0:
            return False
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def plan_cleaning(log: UnifiedLog, cleaned_upto: int, now_ms: int) -> CleaningPlan:
    segments = list(log.segments)
    active = segments[-1]
    first_dirty = cleaned_upto if log.log_start_offset <= cleaned_upto <= log.log_end_offset else 0
    first_dirty = max(first_dirty, log.log_start_offset)
    end = min(active.base_offset, log.last_stable_offset)
    clean_bytes = dirty_bytes = 0
    earliest = LONG_MAX
    lag_ms = log.config.min_compaction_lag_ms
    for at, segment in enumerate(segments[:-1]):
        if segments[at + 1].base_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        if segment.base_offset >= end:
            break
        if lag_ms > 0 and segment.largest_timestamp > now_ms - lag_ms:
            end = min(end, segment.base_offset)
            break
        dirty_bytes += segment.size
        if log.config.max_compaction_lag_ms < LONG_MAX:
            timestamp = segment.first_batch_timestamp()
            if timestamp is not None and timestamp > 0:
                earliest = min(earliest, timestamp)
    total = clean_bytes + dirty_bytes
    return CleaningPlan(
        log=log,
        first_dirty=first_dirty,
        end=end,
        dirty_ratio=dirty_bytes / total if total else 0.0,
        is_overdue=earliest < LONG_MAX and now_ms - earliest > log.config.max_compaction_lag_ms,
    )


def clean_logs(owner: CompactedLogs, now_ms: int) -> Iterator[int]:
    """Compact every log that is dirty enough, the dirtiest first."""
    if not owner.cleaner.enabled:
        return
    plans = []
    for key, log in list(owner.logs.items()):
        if not log.config.is_compacted or log.offline is not None or key in owner.uncleanable:
            continue
        try:
            plan = plan_cleaning(log, owner.cleaned_upto.get(key, 0), now_ms)
        except (CorruptBatch, OSError) as error:
            _give_up(owner, key, error)
            continue
        if plan.is_due:
            plans.append((key, plan))
        yield 0
    plans.sort(key=lambda entry: -entry[1].dirty_ratio)
    for key, plan in plans:
        try:
            settled = owner.settle_closed(plan.log)
            if settled > plan.first_dirty:
                yield from _clean_log(owner, key, replace(plan, end=min(plan.end, settled)), now_ms)
        except KafkaError as error:
            logger.warning("compaction of %s-%d stopped: %s", *key, error)
        except CorruptBatch as error:
            _give_up(owner, key, error)
        except OSError as error:
            plan.log.flush_failed(error)


def _give_up(owner: CompactedLogs, key: TopicPartition, error: Exception) -> None:
    owner.uncleanable.add(key)
    logger.error("%s-%d cannot be compacted until the next start: %s", *key, error)


def _clean_log(owner: CompactedLogs, key: TopicPartition, plan: CleaningPlan, now_ms: int) -> Slices:
    """Map the keys, then rewrite group by group. Whenever retention, a truncation or a deletion changes
    the closed segments meanwhile, stop: the next round plans anew."""
    log = plan.log
    shape = log.shape
    pace = Pace(owner.cleaner.io_max_bytes_per_second)
    keys = KeyMap(owner.cleaner.dedupe_bytes)
    segments = [segment for segment in log.segments[:-1] if segment.base_offset < plan.end]
    try:
        for wait_ms in _map_keys(owner, segments, plan, keys, pace):
            yield wait_ms
            if log.shape != shape:
                return
        if keys.end <= plan.first_dirty:
            return
        transactions = Transactions()
        for group in _groups(log, [segment for segment in segments if segment.base_offset < keys.end]):
            cleaned = yield from _clean_group(owner, log, group, keys, transactions, now_ms, pace)
            if cleaned is None:
                return
            log.swap_in(cleaned, group, now_ms)
            shape = log.shape
            yield 0
    except CorruptBatch:
        if log.shape == shape:
            raise
        return
    owner.cleaned_upto[key] = keys.end
    owner.checkpoint_cleaner()


def _groups(log: UnifiedLog, segments: list[Segment]) -> list[list[Segment]]:
    extents = [
        SegmentExtent(
            base_offset=segment.base_offset,
            end_offset=log.end_of(segment),
            size=segment.size,
            index_bytes=segment.index_bytes(),
        )
        for segment in segments
    ]
    runs = plan_groups(
        extents, segment_bytes=log.config.segment_bytes, index_bytes=log.config.segment_index_bytes
    )
    return [segments[start:stop] for start, stop in runs]


class Pace:
    """Turns bytes read and written into milliseconds to wait."""

    __slots__ = ("_bytes", "_ms_per_byte")

    def __init__(self, bytes_per_second: float) -> None:
        self._ms_per_byte = 1000 / bytes_per_second
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count

    def wait_ms(self) -> int:
        wait = int(self._bytes * self._ms_per_byte)
        if wait:
            self._bytes = 0
        return wait


class KeyMap:
    """The last offset of each key in the dirty part, as far as memory goes. Long keys are represented by a
    digest."""

    __slots__ = ("_room", "end", "offsets")

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes
        self.offsets: dict[bytes, int] = {}
        self.end = 0
        """Every record below is in the map or needs not be."""

    def put(self, key: bytes, offset: int) -> bool:
        """False when the map is full."""
        key = _short(key)
        if key not in self.offsets:
            self._room -= KEY_OVERHEAD_BYTES + len(key)
            if self._room < 0 and self.offsets:
                return False
        self.offsets[key] = offset
        return True

    def last_offset(self, key: bytes) -> int:
        return self.offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    # the prefix makes a digest 65 bytes long, a length no exact key has
    return key if len(key) <= KEY_BYTES_EXACT else b"#" + hashlib.blake2b(key).digest()


class Transactions:
    """Which batches belong to aborted transactions, and which markers still have something to say."""

    __slots__ = ("_aborted", "_committed", "_pending")

    def __init__(self) -> None:
        self._pending: list[AbortedTxn] = []
        self._aborted: dict[int, list[AbortedTxn | bool]] = {}
        """The open one of each producer id, and whether data of it was seen."""
        self._committed: set[int] = set()

    def add(self, aborted: list[AbortedTxn]) -> None:
        """The aborted transactions that end in the next segment."""
        self._pending = sorted({*self._pending, *aborted}, key=lambda txn: txn.first_offset)

    def is_aborted_data(self, header: BatchHeader) -> bool:
        self._begin_upto(header.last_offset)
        if not header.is_transactional:
            return False
        txn = self._aborted.get(header.producer_id)
        if txn is None:
            self._committed.add(header.producer_id)
            return False
        txn[1] = True
        return True

    def ended_by(self, header: BatchHeader, kind: int) -> tuple[bool, AbortedTxn | None]:
        """(the marker's transaction has no data left, the index entry to keep)."""
        self._begin_upto(header.last_offset)
        if kind == _ABORT:
            txn = self._aborted.pop(header.producer_id, None)
            if txn is None or not txn[1]:
                return True, None
            assert isinstance(txn[0], AbortedTxn)
            return False, txn[0]
        if kind == _COMMIT:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen, None
        return False, None

    def _begin_upto(self, offset: int) -> None:
        while self._pending and self._pending[0].first_offset <= offset:
            txn = self._pending.pop(0)
            self._aborted.setdefault(txn.producer_id, [txn, False])


# --- the key map ---


def _map_keys(
    owner: CompactedLogs, segments: list[Segment], plan: CleaningPlan, keys: KeyMap, pace: Pace
) -> Slices:
    """Read the dirty part and note the last offset of every key."""
    log = plan.log
    transactions = Transactions()
    keys.end = plan.first_dirty
    for at, segment in enumerate(segments):
        next_base = segments[at + 1].base_offset if at + 1 < len(segments) else plan.end
        if next_base <= plan.first_dirty:
            continue
        transactions.add(_aborted_around(log, segment.base_offset, next_base))
        first_dirty = plan.first_dirty
        position = segment.locate(first_dirty)[0] if first_dirty > segment.base_offset else 0
        for found in segment.scan(position, segment.size):
            header = found.header
            if header.base_offset >= plan.end:
                break
            batch = segment.read_batch(found)
            check_stored(batch, 0, header)
            pace.add(header.size)
            if header.is_control:
                transactions.ended_by(header, _marker_kind(batch, header))
            elif not transactions.is_aborted_data(header):
                records = 0
                data = yield from _unpacked(owner, batch, header)
                for record in walk(data, header):
                    if record.key is not None and record.offset >= plan.first_dirty:
                        if not keys.put(record.key, record.offset):
                            return
                        records += 1
                        if records % RECORDS_PER_SLICE == 0:
                            yield 0
            keys.end = max(keys.end, header.next_offset)
            yield pace.wait_ms()
        keys.end = max(keys.end, next_base)


def _aborted_around(log: UnifiedLog, start: int, end: int) -> list[AbortedTxn]:
    return [
        txn
        for segment in log.segments
        for txn in segment.aborted
        if txn.last_offset >= start and txn.first_offset < end
    ]


def _marker_kind(batch: bytes, header: BatchHeader) -> int:
    for record in iter_records(batch, 0, header):
        return parse_control(record)[0]
    return -1


# --- rewriting ---


def _clean_group(
    owner: CompactedLogs,
    log: UnifiedLog,
    group: list[Segment],
    keys: KeyMap,
    transactions: Transactions,
    now_ms: int,
    pace: Pace,
) -> Generator[int, None, Segment | None]:
    """One synced `.cleaned` segment with what remains of neighbouring ones; None if the log changed
    meanwhile."""
    shape = log.shape
    cleaned = Segment.create(log.files, log.directory, group[0].base_offset, now_ms=now_ms, suffix=CLEANED)
    output = _Output(cleaned, log.config.index_interval_bytes)
    for segment in group:
        transactions.add(_aborted_around(log, segment.base_offset, log.end_of(segment)))
        for found in segment.scan(0, segment.size):
            pace.add(found.header.size)
            yield from _clean_batch(owner, segment, found, output, keys, transactions, log, now_ms)
            yield pace.wait_ms()
            if log.shape != shape:
                _discard(log, cleaned)
                return None
    output.finish()
    synced: list[OSError | None] = []
    owner.run_in_background(lambda: _sync(log, cleaned), synced.append)
    while not synced:
        yield 1
    if log.shape != shape:
        _discard(log, cleaned)
        return None
    if synced[0] is not None:
        raise synced[0]
    return cleaned


def _sync(log: UnifiedLog, cleaned: Segment) -> None:
    for kind in SEGMENT_SUFFIXES:
        file = log.files.open(cleaned.path(kind))
        file.fsync()
        file.close()


def _discard(log: UnifiedLog, cleaned: Segment) -> None:
    for kind in SEGMENT_SUFFIXES:
        log.files.unlink(cleaned.path(kind))


class _Output:
    """Collects batches and writes them in larger pieces."""

    __slots__ = ("_aborted", "_index_interval", "_pending", "_pending_bytes", "_segment")

    def __init__(self, segment: Segment, index_interval: int) -> None:
        self._segment = segment
        self._index_interval = index_interval
        self._pending: list[bytes | bytearray] = []
        self._pending_bytes = 0
        self._aborted: list[AbortedTxn] = []

    def add(self, batch: bytes | bytearray, last_offset: int, max_timestamp: int) -> None:
        self._segment.appended(len(batch), last_offset, max_timestamp, self._index_interval)
        self._pending.append(batch)
        self._pending_bytes += len(batch)
        if self._pending_bytes >= WRITE_BYTES:
            self._write()

    def add_aborted(self, txn: AbortedTxn) -> None:
        self._aborted.append(txn)

    def _write(self) -> None:
        if self._pending:
            self._segment.file.writev(self._pending)
            self._pending = []
            self._pending_bytes = 0

    def finish(self) -> None:
        """All four files exist afterwards, so that a swap replaces all four of the old segment."""
        self._write()
        self._segment.write_aborted(self._aborted)
        self._segment.seal()


def _clean_batch(
    owner: CompactedLogs,
    segment: Segment,
    found: Found,
    output: _Output,
    keys: KeyMap,
    transactions: Transactions,
    log: UnifiedLog,
    now_ms: int,
) -> Slices:
    header = found.header
    if header.base_offset >= keys.end:
        # beyond what the map knows; its transaction, if any, stays as it is
        output.add(segment.read_batch(found), header.last_offset, header.max_timestamp)
        return
    batch = segment.read_batch(found)
    check_stored(batch, 0, header)
    horizon = header.delete_horizon_ms
    is_empty_marker = False
    if header.is_control:
        is_empty_marker, aborted = transactions.ended_by(header, _marker_kind(batch, header))
        if aborted is not None:
            output.add_aborted(aborted)
        drop_all = is_empty_marker and horizon is not None and horizon <= now_ms
    else:
        drop_all = transactions.is_aborted_data(header)
    kept: list[Walked] = []
    total = 0
    has_tombstone = False
    if not drop_all:
        data = yield from _unpacked(owner, batch, header)
        for record in walk(data, header):
            total += 1
            if header.is_control or _is_kept(record, header, keys, horizon, now_ms):
                kept.append(record)
                has_tombstone = has_tombstone or (not header.is_control and record.is_tombstone)
            if total % RECORDS_PER_SLICE == 0:
                yield 0
    if kept:
        new_horizon = None
        if horizon is None and (has_tombstone or is_empty_marker):
            new_horizon = now_ms + log.config.delete_retention_ms
        if len(kept) == total and new_horizon is None:
            output.add(batch, header.last_offset, header.max_timestamp)
            return
        level = log.config.compression_level(_CODEC_NAMES.get(header.codec, ""))
        rebuilt = yield from _rebuild(owner, batch, header, kept, new_horizon, level)
        output.add(rebuilt, header.last_offset, max_timestamp_of(rebuilt))
    elif _keeps_producer(header, log.producer_table):
        output.add(_emptied(batch), header.last_offset, header.max_timestamp)


def _is_kept(record: Walked, header: BatchHeader, keys: KeyMap, horizon: int | None, now_ms: int) -> bool:
    if record.offset >= keys.end:
        return True
    if record.key is None or record.offset < keys.last_offset(record.key):
        return False
    return not record.is_tombstone or horizon is None or now_ms < horizon


def _keeps_producer(header: BatchHeader, producers: ProducerTable) -> bool:
    """Whether a producer's last sequence (or, after a marker, its epoch) is known from this batch alone."""
    entry = producers.known(header.producer_id) if header.producer_id >= 0 else None
    if entry is None:
        return False
    if entry.last_offset >= 0:
        return header.last_offset == entry.last_offset
    return header.is_control and header.producer_epoch == entry.epoch


# --- records as slices of their batch ---


class Walked:
    """A record where it stands: enough to judge it, and its bytes to copy."""

    __slots__ = ("body_at", "data", "delta", "delta_end", "end", "is_tombstone", "key", "offset", "start")

    def __init__(
        self,
        data: bytes,
        start: int,
        body_at: int,
        delta: int,
        delta_end: int,
        end: int,
        offset: int,
        key: bytes | None,
        is_tombstone: bool,
    ) -> None:
        self.data = data
        self.start = start
        self.body_at = body_at
        self.delta = delta
        self.delta_end = delta_end
        self.end = end
        self.offset = offset
        self.key = key
        self.is_tombstone = is_tombstone


def walk(data: bytes, header: BatchHeader) -> Iterator[Walked]:
    """The records of a batch, given its records section, without building them. CorruptBatch when sizes do
    not add up."""
    at = 0
    try:
        for _ in range(header.count):
            start = at
            size, body_at = _varint(data, at)
            end = body_at + size
            if size <= 0 or end > len(data):
                raise CorruptBatch(start, f"record of {size} bytes")
            delta, delta_end = _varint(data, body_at + 1)
            offset_delta, at = _varint(data, delta_end)
            key_size, at = _varint(data, at)
            key = None
            if key_size >= 0:
                key = data[at : at + key_size]
                at += key_size
            value_size, at = _varint(data, at)
            if at > end or at + max(value_size, 0) > end:
                raise CorruptBatch(start, "record fields exceed the record")
            offset = header.base_offset + offset_delta
            yield Walked(data, start, body_at, delta, delta_end, end, offset, key, value_size < 0)
            at = end
    except IndexError as error:
        raise CorruptBatch(at, "record cut short") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _encode_varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _unpacked(owner: CompactedLogs, batch: bytes, header: BatchHeader) -> Generator[int, None, bytes]:
    """The records section. How much a few bytes become shows only when they are unpacked."""
    if not header.codec:
        return records_data(batch, 0, header)
    if header.size <= BYTES_INLINE:
        try:
            return records_data(batch, 0, header, limit=UNPACKED_INLINE)
        except DecompressedTooLarge:
            pass
    return (yield from _beside(owner, lambda: records_data(batch, 0, header)))


def _beside(owner: CompactedLogs, work: Callable[[], bytes]) -> Generator[int, None, bytes]:
    """What native code does with a large batch takes too long for the loop."""
    result: list[bytes | CorruptBatch] = []
    done: list[OSError | None] = []

    def job() -> None:
        try:
            result.append(work())
        except CorruptBatch as error:
            result.append(error)

    owner.run_in_background(job, done.append)
    while not done:
        yield 1
    if isinstance(result[0], CorruptBatch):
        raise result[0]
    return result[0]


def _rebuild(
    owner: CompactedLogs,
    batch: bytes,
    header: BatchHeader,
    kept: list[Walked],
    new_horizon: int | None,
    level: int | None,
) -> Generator[int, None, bytearray]:
    """The batch with only `kept` in it. A delete horizon takes the place of the base timestamp (KIP-534),
    so the timestamp deltas are then written anew; otherwise records are copied as they are."""
    head = bytearray(batch[:HEADER_SIZE])
    section = bytearray()
    for at, record in enumerate(kept, 1):
        if new_horizon is None:
            section += record.data[record.start : record.end]
        else:
            delta = _encode_varint(min(record.delta + header.base_timestamp - new_horizon, LONG_MAX))
            rest = record.data[record.delta_end : record.end]
            section += _encode_varint(1 + len(delta) + len(rest))
            section.append(record.data[record.body_at])
            section += delta
            section += rest
        if at % RECORDS_PER_SLICE == 0:
            yield 0
    if new_horizon is not None:
        ATTRIBUTES.pack_into(head, ATTRIBUTES_AT, header.attributes | DELETE_HORIZON)
        INT64.pack_into(head, BASE_TIMESTAMP_AT, new_horizon)
    if not header.is_log_append_time:
        newest = min(max(record.delta for record in kept) + header.base_timestamp, LONG_MAX)
        INT64.pack_into(head, MAX_TIMESTAMP_AT, newest)
    if not header.codec:
        return _sealed(head, section, len(kept))
    if len(section) <= BYTES_INLINE:
        return _sealed(head, compress(header.codec, section, level), len(kept))
    packed = yield from _beside(owner, lambda: compress(header.codec, section, level))
    return _sealed(head, packed, len(kept))


def _emptied(batch: bytes) -> bytearray:
    """Only the header: offsets, producer, sequence and epoch stay known."""
    head = bytearray(batch[:HEADER_SIZE])
    (attributes,) = ATTRIBUTES.unpack_from(head, ATTRIBUTES_AT)
    ATTRIBUTES.pack_into(head, ATTRIBUTES_AT, attributes & ~(CODEC_MASK | DELETE_HORIZON))
    INT64.pack_into(head, BASE_TIMESTAMP_AT, -1)
    return _sealed(head, b"", 0)


def _sealed(head: bytearray, data: bytes | bytearray, count: int) -> bytearray:
    head += data
    LENGTH.pack_into(head, LENGTH_AT, len(head) - OVERHEAD)
    LENGTH.pack_into(head, COUNT_AT, count)
    CRC.pack_into(head, CRC_AT, crc_of(head, 0, len(head)))
    return head


def max_timestamp_of(batch: bytes | bytearray) -> int:
    timestamp: int = INT64.unpack_from(batch, MAX_TIMESTAMP_AT)[0]
    return timestamp
