"""One task: its bytes, read once, as facts.

Owns the reading of copies, slices and index objects, and what is wrong with one of them by itself. Does not
own record batches (batches), layouts, data directories (directory), or what objects mean together
(judge). Invariant: it never raises; what the source does not give is a row of its own, and what is gone too;
memory is bounded by one piece, one batch and the largest head.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from tools.verify.core import crc as sums
from tools.verify.core.batches import RunScanner, Scanned
from tools.verify.core.cold_sections import SectionsCheck
from tools.verify.core.facts import (
    GENERAL,
    BatchRow,
    Fact,
    Fault,
    NotChecked,
    NotRead,
    Piece,
    Row,
    Run,
    Skipped,
    StreamObject,
    Tally,
    Vanished,
)
from tools.verify.core.feeding import feed_from
from tools.verify.core.findings import Severity, declare
from tools.verify.core.keys import StreamKey, tier_key
from tools.verify.core.layouts import (
    OFFSETS,
    SEAL,
    TRANSACTIONS,
    IndexHead,
    Malformed,
    WalSlice,
    WalTable,
    decode_index_head,
    decode_index_object,
    decode_wal_index,
    decode_wal_table,
    index_head_size,
    wal_table_end,
)
from tools.verify.core.log_scan import scan_log
from tools.verify.core.plan import (
    LIMITLESS,
    READ_BYTES,
    ColdUnit,
    LogUnit,
    Task,
    Unit,
    WalIndexUnit,
    WalUnit,
    unit_place,
)
from tools.verify.core.stores import Gone, Listed, Source, SourceFailed, TooLarge
from tools.verify.core.tables import Table
from tools.verify.core.tier_topics import ToldSlice

COLD_BAD_INDEX = declare(
    "cold-bad-index",
    Severity.ERROR,
    "The index object of a copy cannot be read by its layout, or a checksum in it does not agree.",
    "The partition's leader can build it anew from the data.",
)
COLD_SWAPPED = declare(
    "cold-swapped",
    Severity.ERROR,
    "An index object says that it belongs to another cluster, partition or copy than its key.",
    "Somebody moved or copied objects; restore the one that was under this key.",
)
COLD_RANGE_CRC = declare(
    "cold-range-crc",
    Severity.ERROR,
    "The data of a copy is made of sound batches, but not of those whose checksum the index object has.",
    "Compare with another copy; let a replica that has the offsets copy them anew.",
)
COLD_SECTION_DIFFERS = declare(
    "cold-section-differs",
    Severity.ERROR,
    "A section of an index object fails its checksum, or is not what the data give.",
    "The partition's leader can build the index object anew from the data.",
)
COLD_METADATA_DIFFERS = declare(
    "cold-metadata-differs",
    Severity.ERROR,
    "What an index object says of its copy is not what the topic about the tier or the data says.",
    "The data decides; the partition's leader can build the index object anew.",
)
WAL_BAD_OBJECT = declare(
    "wal-bad-object",
    Severity.ERROR,
    "Head or table of an object of the WAL tier cannot be read, or a checksum in it does not agree.",
    "Replicas or the cold tier may have its offsets; an index object repeats its table.",
)
WAL_SWAPPED = declare(
    "wal-swapped",
    Severity.ERROR,
    "An object of the WAL tier says that it has another key, or is of another cluster.",
    "Somebody moved or copied objects; restore the one that was under this key.",
)
WAL_SLICE_CRC = declare(
    "wal-slice-crc",
    Severity.ERROR,
    "A slice is made of sound batches, but not of those whose checksum or offsets the table has.",
    "Replicas or the cold tier may have its offsets.",
)
WAL_SHORT = declare(
    "wal-short",
    Severity.ERROR,
    "An object of the WAL tier has fewer bytes than its table says.",
    "Replicas or the cold tier may have its offsets.",
)
WAL_TAIL = declare(
    "wal-tail",
    Severity.ERROR,
    "An object of the WAL tier has more bytes than its table says.",
    "What is behind its end is never read; find out who wrote it.",
)
WAL_INDEX_DIFFERS = declare(
    "wal-index-differs",
    Severity.ERROR,
    "An index object of the WAL tier cannot be read, or repeats another table than the object has.",
    "The objects decide; nothing is lost while they are there.",
)
WAL_METADATA_DIFFERS = declare(
    "wal-metadata-differs",
    Severity.ERROR,
    "The topic about the WAL tier tells of other slices than the object has.",
    "The store is right; readers that follow the topic are not told of all there is.",
)
INDEX_BYTES_MAX: Final = 256 << 20
TABLE_BYTES_MAX: Final = 64 << 20
FIRST_READ: Final = 64 << 10


Tables = dict[tuple[int, int, int, int], int]
"""Hashes of the tables of a task's objects by stream and number: the tables themselves may be large."""


class ScannedUnit(NamedTuple):
    """What a unit gave; `identity` is empty if it must be read again next time."""

    identity: str
    rows: list[Row]


def scan(task: Task) -> Iterator[ScannedUnit]:
    """Read a task, unit by unit; last comes what all of that took."""
    counts = task.source.counts
    before = counts.requests, counts.received
    tables: Tables = {}
    doubted: set[StreamKey] = set()
    done: list[tuple[WalUnit, ScannedUnit]] = []
    for unit in task.units:
        rows = _rows_of(task, unit, tables)
        identity = unit.identity if is_sound(rows) else ""
        if isinstance(unit, WalUnit):
            # What an index object says against it comes later; without all of its slices it is not proved.
            done.append((unit, ScannedUnit("" if task.choice.topics else identity, rows)))
            continue
        if isinstance(unit, WalIndexUnit) and not is_sound(rows):
            doubted.add(unit.stream)
        yield ScannedUnit(identity, rows)
    for unit, scanned in done:
        yield scanned._replace(identity="") if unit.stream in doubted else scanned
    effort = Tally("", 0, 0, 0, counts.requests - before[0], counts.received - before[1])
    yield ScannedUnit("", [(*GENERAL, effort)])


def _rows_of(task: Task, unit: Unit, tables: Tables) -> list[Row]:
    try:
        return _scan_unit(task, unit, tables)
    except SourceFailed as error:
        return unread(unit, str(error))
    except Gone as error:
        return _gone(unit, str(error))
    except MemoryError:
        return unread(unit, "it needs more memory than there is")


def is_sound(rows: list[Row]) -> bool:
    """Whether a unit was read whole and nothing was wrong with it."""
    return not any(isinstance(row[2], (Fault, NotRead, NotChecked, Vanished, Skipped)) for row in rows)


def unread(unit: Unit, why: str) -> list[Row]:
    """Say that it could not be read, and to judges which offsets they know nothing of."""
    place = unit_place(unit)
    rows: list[Row] = [("", -1, NotRead(place, why))]
    match unit:
        case ColdUnit():
            end = unit.told.end if unit.told else LIMITLESS
            rows.append((unit.topic_id, unit.partition, Skipped(place, unit.base, end, "unread")))
        case LogUnit():
            rows.append((unit.topic_id, unit.partition, Skipped(f"{place}/", *unit.bases, "unread")))
        case WalUnit():
            rows += [
                (each.topic_id, each.partition, Skipped(place, each.start, each.end, "unread"))
                for each in unit.told or ()
            ]
    return rows


def _gone(unit: Unit, place: str) -> list[Row]:
    """Say that it went between the listing and the reading: also to whom it may matter more than to judges
    of partitions."""
    match unit:
        case ColdUnit():
            gone = Vanished(place, unit.base, unit.told.end if unit.told else LIMITLESS)
            return [(unit.topic_id, unit.partition, gone), ("", -1, gone)]
        case WalUnit():
            rows: list[Row] = [
                (each.topic_id, each.partition, Vanished(place, each.start, each.end))
                for each in unit.told or ()
            ]
            return [*rows, ("", -1, Vanished(place, -1, -1))]
        case _:
            return [("", -1, Vanished(place, -1, -1))]


def _scan_unit(task: Task, unit: Unit, tables: Tables) -> list[Row]:
    match unit:
        case ColdUnit():
            return [
                (unit.topic_id, unit.partition, fact) if not isinstance(fact, Tally) else ("", -1, fact)
                for fact in _Copy(task, unit).facts()
            ]
        case WalUnit():
            return list(_scan_object(task, unit, tables))
        case WalIndexUnit():
            return list(_scan_wal_index(task, unit, tables))
        case LogUnit():
            return scan_log(task.source, unit)


# --- the cold tier ---


class _Copy:
    """The data of a copy, its index object, and what metadata says of both."""

    def __init__(self, task: Task, unit: ColdUnit) -> None:
        self._task = task
        self._source = task.source
        self._cluster_id = task.cluster_id
        self._unit = unit
        self._end = unit.told.end if unit.told else -1
        self._key = tier_key(unit.topic_id, unit.partition, unit.base, unit.segment_id, "log")
        self._sections: SectionsCheck | None = None

    def facts(self) -> list[Fact]:
        unit = self._unit
        found: list[Fact] = []
        head: IndexHead | None = None
        if unit.index_object is not None:
            head = self._read_index(unit.index_object, found)
        if unit.data is None:
            return found
        if head is not None:
            self._end = head.end_offset
        if unit.is_young and head is not None and head.size != unit.data.size:
            return found
        if self._end >= 0 and not self._task.choice.takes(self._key):
            read = unit.index_object.size if unit.index_object else 0
            return [*found, Skipped(self._key, unit.base, self._end), Tally(self._key, read, 0, 0)]
        on_table = self._sections.on_table if self._sections is not None else None
        scanner = RunScanner(self._key, first=unit.base, on_table=on_table)
        feed_from(scanner, self._source, self._key, 0, unit.data.size)
        scanned = scanner.finish()
        due = unit.told.size if unit.told else head.size if head else scanned.size
        if scanned.size != due:
            # The size is a fault already; what it leaves at the end is the same one.
            kept = [each for each in scanned.faults if each.end >= 0 and each.position < due]
            scanned = scanned._replace(faults=kept)
        found += rows_of(scanned)
        found += self._judge_data(head, scanned)
        first, end = (unit.base, self._end) if self._end >= 0 else _range_of(scanned.runs, unit.base)
        epoch = head.leader_epoch if head else max((run.leader_epoch for run in scanned.runs), default=-1)
        is_short = scanned.size < due
        found.append(Piece("cold", self._key, 0, scanned.size, first, end, epoch, is_bad=is_short))
        read = scanned.size + (unit.index_object.size if unit.index_object else 0)
        found.append(tally(self._key, read, scanned))
        return found

    def _read_index(self, index: Listed, found: list[Fact]) -> IndexHead | None:
        unit = self._unit
        try:
            data = self._source.read_all(index.key, INDEX_BYTES_MAX)
            head = decode_index_head(data[: index_head_size(data)], len(data))
        except TooLarge as error:
            found.append(Fault(COLD_BAD_INDEX, index.key, 0, actual=str(error)))
            return None
        except Malformed as error:
            found.append(Fault(COLD_BAD_INDEX, index.key, error.position, actual=error.why))
            return None
        wanted = unit.topic_id, unit.partition, unit.segment_id, unit.base
        says = head.topic_id, head.partition, head.segment_id, head.base_offset
        if self._cluster_id and head.cluster_id != self._cluster_id:
            wanted, says = (*wanted, self._cluster_id), (*says, head.cluster_id)  # type: ignore[assignment]
        if says != wanted:
            found.append(Fault(COLD_SWAPPED, index.key, 0, -1, -1, _words(wanted), _words(says)))
            return None
        told = unit.told
        if told is not None:
            about = told.end, told.size, told.max_timestamp_ms
            if (head.end_offset, head.size, head.max_timestamp_ms) != about:
                says_too = head.end_offset, head.size, head.max_timestamp_ms
                found.append(
                    Fault(COLD_METADATA_DIFFERS, index.key, 0, -1, -1, _words(about), _words(says_too))
                )
            elif tuple((each.epoch, each.start_offset) for each in head.epochs) != told.epochs:
                epochs = " ".join(f"{each.epoch}@{each.start_offset}" for each in head.epochs)
                expected = " ".join(f"{epoch}@{start}" for epoch, start in told.epochs)
                found.append(Fault(COLD_METADATA_DIFFERS, index.key, 0, -1, -1, expected, epochs))
            elif told.has_no_aborts != (head.sections[TRANSACTIONS].size == 0):
                says_so = "no aborted transaction" if told.has_no_aborts else "some"
                actual = f"{head.sections[TRANSACTIONS].size} bytes of them"
                found.append(Fault(COLD_METADATA_DIFFERS, index.key, 0, -1, -1, says_so, actual))
        sections = {}
        for section in head.sections.values():
            part = data[section.start : section.start + section.size]
            sections[section.kind] = part
            if crc32c(part) != section.crc:
                actual = f"section {section.kind}: {crc32c(part):08x}"
                found.append(
                    Fault(
                        COLD_SECTION_DIFFERS, index.key, section.start, -1, -1, f"{section.crc:08x}", actual
                    )
                )
        if not found:
            self._sections = SectionsCheck(COLD_SECTION_DIFFERS, index.key, head, sections)
        return head

    def _judge_data(self, head: IndexHead | None, scanned: Scanned) -> list[Fact]:
        if head is None:
            return []
        key, size = self._key, scanned.size
        found: list[Fact] = []
        if self._unit.told is not None and size != self._unit.told.size:
            return []
        if size != head.size:
            if self._unit.told is None:
                code = "cold-short" if size < head.size else "cold-tail"
                at = min(size, head.size)
                found.append(Fault(code, key, at, -1, -1, f"{head.size} bytes", f"{size} bytes"))
            return found
        if scanned.faults:
            return found
        found += self._judge_epochs(head, scanned.runs)
        if found:
            return found
        if scanned.crc != head.data_crc:
            at = self._damaged_block(head)
            first, end = _offsets_at(scanned.runs, at, at + head.block_size)
            return [Fault(COLD_RANGE_CRC, key, at, first, end, f"{head.data_crc:08x}", f"{scanned.crc:08x}")]
        if blocks_crc(head) != head.data_crc:
            place = tier_key(*self._unit[:4], "idx")
            return [Fault(COLD_BAD_INDEX, place, -1, actual="block_crcs: not those of the data")]
        batches = sum(run.batches for run in scanned.runs)
        newest = max((run.max_timestamp for run in scanned.runs), default=-1)
        says = head.batch_count, head.end_offset >= max((run.end for run in scanned.runs), default=0), newest
        if says != (batches, True, head.max_timestamp_ms):
            ends = max((run.end for run in scanned.runs), default=-1)
            expected = f"{batches} batches to offset {ends}, newest {newest}"
            actual = f"{head.batch_count} batches to offset {head.end_offset}, newest {head.max_timestamp_ms}"
            place = tier_key(*self._unit[:4], "idx")
            found.append(Fault(COLD_METADATA_DIFFERS, place, 0, -1, -1, expected, actual))
        elif self._sections is not None:
            found += self._sections.faults(scanned)
        return found

    def _damaged_block(self, head: IndexHead) -> int:
        """Read once more, and return where the first block begins that does not agree."""
        for number, due in enumerate(head.block_crcs):
            at, crc = number * head.block_size, 0
            end = min(at + head.block_size, head.size)
            for start in range(at, end, READ_BYTES):
                crc = crc32c(self._source.read(self._key, start, min(READ_BYTES, end - start)), crc)
            if crc != due:
                return at
        return 0

    def _judge_epochs(self, head: IndexHead, runs: list[Run]) -> list[Fact]:
        """Hold the epoch of each run against the index object's."""
        for run in runs:
            starts = [each for each in head.epochs if each.start_offset <= run.first]
            due = starts[-1].epoch if starts else -1
            if due != run.leader_epoch:
                expected, actual = f"epoch {due}", f"epoch {run.leader_epoch}"
                return [
                    Fault("epoch-mismatch", run.place, run.position, run.first, run.end, expected, actual)
                ]
        return []


def blocks_crc(head: IndexHead) -> int:
    """Return the checksum of all the data by those of its blocks."""
    crc = 0
    left = head.size
    for each in head.block_crcs:
        size = min(left, head.block_size)
        left -= size
        for start in range(0, size, READ_BYTES):
            crc = sums.shift(crc, min(READ_BYTES, size - start))
        crc ^= each
    return crc


# --- the WAL tier ---


def _scan_object(task: Task, unit: WalUnit, tables: Tables) -> Iterator[Row]:
    key, size = unit.listed.key, unit.listed.size
    try:
        whole = size <= READ_BYTES
        first = task.source.read(key, 0, size if whole else FIRST_READ)
        found = _table_of(task, unit, first)
    except Malformed as error:
        yield "", -1, Fault(WAL_BAD_OBJECT, key, error.position, actual=error.why)
        yield "", -1, StreamObject(key, unit.stream, unit.seq, False, -1)
        return
    table, fault = found
    if fault is not None:
        yield "", -1, fault
        yield "", -1, StreamObject(key, unit.stream, unit.seq, False, -1)
        return
    tables[(*unit.stream, unit.seq)] = hash(table)
    yield from _judge_told(unit, table)
    if table.head.kind == SEAL:
        yield "", -1, StreamObject(key, unit.stream, unit.seq, True, table.head.metadata_seq)
    if size != table.object_size:
        code = WAL_SHORT if size < table.object_size else WAL_TAIL
        expected, actual = f"{table.object_size} bytes", f"{size} bytes"
        yield "", -1, Fault(code, key, min(size, table.object_size), -1, -1, expected, actual)
    read, batches, records = table.data_at, 0, 0
    for each in table.slices:
        if task.choice.topics and each.topic_id not in task.choice.topics:
            continue
        if not task.choice.takes(f"{key} {each.position}"):
            yield each.topic_id, each.partition, Skipped(key, each.start, each.end)
            continue
        stop = min(each.position + each.size, size)
        scanner = RunScanner(key, position=each.position, first=each.start)
        if stop <= len(first):
            scanner.feed(memoryview(first)[each.position : stop])
        else:
            feed_from(scanner, task.source, key, each.position, stop)
        scanned = scanner.finish()
        for fact in _slice_facts(unit, each, scanned):
            yield each.topic_id, each.partition, fact
        read += each.size
        batches += sum(run.batches for run in scanned.runs)
        records += sum(run.records for run in scanned.runs)
    yield "", -1, Tally(key, read, batches, records)


def _table_of(task: Task, unit: WalUnit, first: bytes) -> tuple[WalTable, Fault | None]:
    end = wal_table_end(first)
    if end > len(first):
        if end > min(unit.listed.size, TABLE_BYTES_MAX):
            raise Malformed(11, f"table_size: ends at {end}, and the object has {unit.listed.size} bytes")
        first = task.source.read(unit.listed.key, 0, end)
    table = decode_wal_table(first[:end], None)
    wanted = (*unit.stream, unit.seq, task.cluster_id or table.head.cluster_id)
    says = (*table.head.stream, table.head.seq, table.head.cluster_id)
    if wanted != says:
        return table, Fault(WAL_SWAPPED, unit.listed.key, 0, -1, -1, _words(wanted), _words(says))
    return table, None


def _judge_told(unit: WalUnit, table: WalTable) -> Iterator[Row]:
    if not unit.told:
        return
    has = sorted(
        ToldSlice(
            each.topic_id, each.partition, each.position, each.position + each.size - 1, each.leader_epoch,
            each.start, each.end,
        )
        for each in table.slices
    )  # fmt: skip
    if (told := sorted(unit.told)) != has:
        other = next(
            (pair for pair in zip(told, has, strict=False) if pair[0] != pair[1]), (len(told), len(has))
        )
        yield (
            "",
            -1,
            Fault(WAL_METADATA_DIFFERS, unit.listed.key, -1, -1, -1, _words(other[1:]), _words(other[:1])),
        )


def _slice_facts(unit: WalUnit, told: WalSlice, scanned: Scanned) -> Iterator[Fact]:
    key = unit.listed.key
    is_short = scanned.size < told.size
    if is_short:
        # the object's size is a fault already
        yield from rows_of(scanned, is_without_faults=True)
    else:
        yield from rows_of(scanned)
    is_bad = False
    if not scanned.faults and not is_short:
        ends = max((run.end for run in scanned.runs), default=-1)
        if scanned.crc != told.data_crc:
            expected, actual = f"{told.data_crc:08x}", f"{scanned.crc:08x}"
            yield Fault(WAL_SLICE_CRC, key, told.position, told.start, told.end, expected, actual)
            is_bad = True
        elif ends > told.end:
            expected, actual = f"at most {told.end}", str(ends)
            yield Fault(WAL_SLICE_CRC, key, told.position, told.start, told.end, expected, actual)
            is_bad = True
        else:
            for run in scanned.runs:
                if run.leader_epoch != told.batch_epoch:
                    expected, actual = f"epoch {told.batch_epoch}", f"epoch {run.leader_epoch}"
                    yield Fault("epoch-mismatch", key, run.position, run.first, run.end, expected, actual)
    yield Piece(
        "wal", key, told.position, told.size, told.start, told.end, told.leader_epoch, told.epoch_start,
        told.log_start, unit.stream, unit.seq, is_bad or is_short,
    )  # fmt: skip


def _scan_wal_index(task: Task, unit: WalIndexUnit, tables: Tables) -> Iterator[Row]:
    key = unit.listed.key
    try:
        head, repeated = decode_wal_index(task.source.read_all(key, TABLE_BYTES_MAX))
    except TooLarge as error:
        if unit.is_first:
            yield "", -1, Fault(WAL_INDEX_DIFFERS, key, 0, actual=str(error))
        return
    except Malformed as error:
        if unit.is_first:
            yield "", -1, Fault(WAL_INDEX_DIFFERS, key, error.position, actual=error.why)
        return
    wanted = (*unit.stream, unit.seq, task.cluster_id or head.cluster_id)
    says = (*head.stream, head.seq, head.cluster_id)
    if wanted != says:
        if unit.is_first:
            yield "", -1, Fault(WAL_SWAPPED, key, 0, -1, -1, _words(wanted), _words(says))
        return
    for table in repeated:
        there = tables.get((*unit.stream, table.head.seq))
        if there is not None and there != hash(table):
            actual = f"another table of object {table.head.seq}"
            yield "", -1, Fault(WAL_INDEX_DIFFERS, key, 0, actual=actual)
        if unit.is_first and table.head.seq in unit.missing:
            for each in table.slices:
                yield each.topic_id, each.partition, Piece(
                    "wal", key, each.position, each.size, each.start, each.end, each.leader_epoch,
                    each.epoch_start, each.log_start, unit.stream, table.head.seq, True,
                )  # fmt: skip
    if unit.is_first:
        yield "", -1, Tally(key, unit.listed.size, 0, 0)


# --- for all ---


def rows_of(scanned: Scanned, *, is_without_faults: bool = False) -> list[Fact]:
    found: list[Fact] = [*scanned.runs, *scanned.producers, *scanned.marks, *scanned.digests]
    if not is_without_faults:
        found += scanned.faults
    return found


def tally(place: str, size: int, scanned: Scanned) -> Tally:
    batches = sum(run.batches for run in scanned.runs)
    return Tally(place, size, batches, sum(run.records for run in scanned.runs))


def _range_of(runs: list[Run], base: int) -> tuple[int, int]:
    return base, max((run.end for run in runs), default=base)


def _offsets_at(runs: list[Run], start: int, end: int) -> tuple[int, int]:
    """Return the offsets of the runs that have bytes there."""
    there = [run for run in runs if run.position < end and start < run.position + run.size]
    return min((run.first for run in there), default=-1), max((run.end for run in there), default=-1)


def _words(values: tuple[object, ...]) -> str:
    return " ".join(str(each) for each in values)


# --- the second pass ---


class LookTask(NamedTuple):
    """A stretch of one place, whose batches are wanted one by one."""

    number: int
    source: Source
    place: str
    key: str
    """Of the place in its source."""
    position: int
    size: int
    first: int
    end: int


def look(task: LookTask) -> list[BatchRow | Fact]:
    """Return the sound batches with offsets in [first, end)."""
    found: list[BatchRow | Fact] = []
    try:
        start, stop = _narrowed(task)
        rows, is_sound_there = _batch_rows(task, start, stop)
        if not is_sound_there and (start, stop) != (task.position, task.position + task.size):
            rows, _ = _batch_rows(task, task.position, task.position + task.size)
        found += rows
    except Gone:
        found.append(Vanished(task.place, task.first, task.end))
    except SourceFailed as error:
        found.append(NotRead(task.place, str(error)))
    return found


def _batch_rows(task: LookTask, start: int, stop: int) -> tuple[list[BatchRow], bool]:
    rows: list[BatchRow] = []

    def on_table(table: Table, _: object) -> None:
        which = (table.base < task.end) & (table.end > task.first)
        if not which.any():
            return
        kept = table.keep(which)
        columns = (
            column.tolist()
            for column in (kept.position, kept.base, kept.end, kept.size, kept.epoch, kept.crc, kept[-1])
        )
        rows.extend(BatchRow(task.place, *values) for values in zip(*columns, strict=True))

    scanner = RunScanner(task.place, position=start, on_table=on_table)
    feed_from(scanner, task.source, task.key, start, stop)
    return rows, not scanner.finish().faults


def _narrowed(task: LookTask) -> tuple[int, int]:
    """Return a smaller stretch, by the offset index beside the log. It is a hint alone: whoever follows it
    looks whether batches begin there."""
    start, stop = task.position, task.position + task.size
    if task.size <= READ_BYTES or not task.key.endswith(".log"):
        return start, stop
    try:
        base = int(task.key.rpartition("/")[2].partition("-")[0].partition(".")[0])
        if task.key.startswith("tier/"):
            _, sections = decode_index_object(
                task.source.read_all(f"{task.key.removesuffix('.log')}.idx", INDEX_BYTES_MAX)
            )
            data = sections[OFFSETS]
        else:
            data = task.source.read_all(f"{task.key.removesuffix('.log')}.index", INDEX_BYTES_MAX)
    except (Gone, TooLarge, Malformed, ValueError):
        return start, stop
    last, is_past = -1, False
    for relative, position in struct.iter_unpack(">ii", data[: len(data) // 8 * 8]):
        if relative < last or not start <= position < stop:
            continue
        last = relative
        if is_past:
            return start, position
        if base + relative < task.first:
            start = position
        is_past = base + relative >= task.end
    return start, stop
