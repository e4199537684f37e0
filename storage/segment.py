"""One segment: a `.log` file, its indexes, and finding batches in it.

Owns: positions, the sparse indexes, scanning headers, rebuilding the indexes from the log. Does not own:
which segments there are, roll and retention, what the batches mean. Invariant: every index entry points at
the start of a batch that is in the file or staged for it; index files are only ever behind the log, never
ahead of it, and are rebuilt when they do not fit. What index files say after a crash is believed as far as a
`SegmentMark` confirms it, entry for entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from os.path import join
from struct import Struct
from typing import NamedTuple, cast

from protocol.checksum import crc32c
from protocol.errors import CorruptBatch
from protocol.records import (
    HEADER_SIZE,
    OFFSETS,
    OVERHEAD,
    BatchHeader,
    check_stored,
    parse_header,
)
from storage.files import DiskFiles, File, Files, write_replacing
from storage.index import (
    ABORTED_SIZE,
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    AbortedTxn,
    BadIndex,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
)
from storage.log import LogSlice, ReadableFile
from storage.policy import INT32_MAX

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)

SCAN_BYTES = 4096
"""Covers one default index interval."""
RECOVERY_BYTES = 1 << 20
HINTS_MAX = 32
INDEX_BYTES = 10 << 20
SMALL_BYTES = 64 << 10
"""A segment of this size or less: walking its headers costs less than making two index files (0.6 ms)."""
NO_EPOCH = -1
_offsets_of = OFFSETS.unpack_from


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Found(NamedTuple):
    """A batch in a segment."""

    position: int
    header: BatchHeader


_MARK = Struct(">qqIqIqI")


class SegmentMark(NamedTuple):
    """The state of a segment at some offset, and what its index files held then. They only grow behind that,
    so a reader that finds the same bytes again need not read the log before it."""

    position: int
    offsets_size: int
    offsets_crc: int
    times_size: int
    times_crc: int
    aborted_size: int
    aborted_crc: int

    def encode(self) -> bytes:
        return _MARK.pack(*self)

    @staticmethod
    def decode(data: bytes) -> SegmentMark | None:
        return SegmentMark(*_MARK.unpack(data)) if len(data) == _MARK.size else None


class Segment:
    __slots__ = (
        "_aborted",
        "_file",
        "_files",
        "_hints",
        "_offsets",
        "_suffix",
        "_times",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "first_timestamp",
        "index_bytes_max",
        "is_index_full",
        "is_sealed",
        "is_used",
        "max_timestamp",
        "max_timestamp_offset",
        "size",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        file: File | None = None,
        suffix: str = "",
    ) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        """With staged bytes."""
        self.created_ms = created_ms
        self._suffix = suffix
        self._file = file
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._aborted: list[AbortedTxn] | None = None
        self._hints: dict[int, int] = {}
        self.bytes_since_index = 0
        self.index_bytes_max = INDEX_BYTES
        self.is_index_full = False
        self.first_timestamp: int | None = None
        self.max_timestamp: int | None = None
        """None: not yet looked up."""
        self.max_timestamp_offset = 0
        self.is_sealed = True
        self.is_used = False

    @staticmethod
    def create(files: Files, directory: str, base_offset: int, *, now_ms: int, suffix: str = "") -> Segment:
        """A new, empty segment."""
        for kind in SEGMENT_SUFFIXES:
            files.unlink(join(directory, segment_name(base_offset) + kind + suffix))
        path = join(directory, segment_name(base_offset) + LOG + suffix)
        file = files.open(path, create=True)
        segment = Segment(files, directory, base_offset, size=0, created_ms=now_ms, file=file, suffix=suffix)
        segment.reset_indexes()
        return segment

    @staticmethod
    def over(
        file: ReadableFile,
        base_offset: int,
        *,
        size: int,
        offsets: OffsetIndex,
        times: TimeIndex | None = None,
        max_timestamp: int = -1,
    ) -> Segment:
        """A segment whose bytes and indexes are at hand elsewhere, for looking up and reading alone: no file
        of it is opened here. What `file` raises comes through."""
        segment = Segment(DiskFiles(), "", base_offset, size=size, created_ms=0, file=cast(File, file))
        segment._offsets, segment._times, segment._aborted = offsets, times, []
        segment.max_timestamp = max_timestamp
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def path(self, kind: str) -> str:
        return join(self.directory, segment_name(self.base_offset) + kind + self._suffix)

    @property
    def file(self) -> File:
        self.is_used = True
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path(LOG))
        return file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    # --- appending ---

    def appended(self, size: int, last_offset: int, max_timestamp: int, index_interval: int) -> None:
        """Account for a batch placed at the end."""
        if self._offsets is None:
            self._load_indexes()  # while `size` is what the file holds: the batch is written later
        position = self.size
        if position == 0:
            self.first_timestamp = max_timestamp
        largest = self.max_timestamp
        if max_timestamp > (self.largest_timestamp if largest is None else largest):
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > index_interval:
            self._index(last_offset - self.base_offset, position)
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.size = position + size
        self.is_sealed = False

    def _index(self, relative_offset: int, position: int) -> None:
        """Every fourth batch of 1 KB comes here, so properties and lengths are not asked twice."""
        offsets, times, timestamp = self._offsets, self._times, self.max_timestamp
        assert offsets is not None and times is not None and timestamp is not None
        offsets.append(relative_offset, position)
        times.maybe_append(timestamp, self.max_timestamp_offset - self.base_offset)
        self._look_whether_full(offsets, times)

    def _look_whether_full(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        self.is_index_full = (
            len(offsets.entries) >= self.index_bytes_max // OFFSET_ENTRY_SIZE
            or len(times.timestamps) >= self.index_bytes_max // TIME_ENTRY_SIZE - 1
        )

    def add_aborted(self, txn: AbortedTxn) -> None:
        aborted = self.aborted
        data = txn.encode()
        self._files.open(self.path(TXN_INDEX), create=True).pwrite(data, len(aborted) * len(data))
        aborted.append(txn)

    def write_aborted(self, aborted: list[AbortedTxn]) -> None:
        """Make these the whole transaction index."""
        self._aborted = aborted
        write_replacing(self._files, self.path(TXN_INDEX), b"".join(txn.encode() for txn in aborted))

    def reset_indexes(self) -> None:
        self._offsets = OffsetIndex()
        self._times = TimeIndex()
        self._aborted = []
        self._hints.clear()
        self.first_timestamp = None
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self.bytes_since_index = 0
        self.is_index_full = False
        self.is_sealed = False

    # --- indexes ---

    @property
    def offsets(self) -> OffsetIndex:
        if self._offsets is None:
            self._load_indexes()
            assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self._load_indexes()
            assert self._times is not None
        return self._times

    def index_bytes(self) -> int:
        """The size of the offset index, without reading it."""
        if self._offsets is not None:
            return len(self._offsets) * OFFSET_ENTRY_SIZE
        try:
            return self._files.size(self.path(OFFSET_INDEX))
        except FileNotFoundError:
            return 0

    @property
    def aborted(self) -> list[AbortedTxn]:
        if self._aborted is None:
            try:
                self._aborted = decode_aborted(self._files.read(self.path(TXN_INDEX)))
            except FileNotFoundError:
                self._aborted = []
            except BadIndex as error:
                raise CorruptBatch(0, str(error)) from error
        return self._aborted

    def _load_indexes(self) -> None:
        """Read the index files, or rebuild the indexes from the log when they are missing or cannot be
        right."""
        self.is_used = True
        try:
            self._offsets = OffsetIndex.decode(self._files.read(self.path(OFFSET_INDEX)), self.size)
            self._times = TimeIndex.decode(self._files.read(self.path(TIME_INDEX)))
            self._check_last_entry(self._offsets)
        except (BadIndex, CorruptBatch, FileNotFoundError):
            self._rebuild_indexes()
            return
        self.max_timestamp = self._times.last_timestamp()
        self.max_timestamp_offset = self.base_offset + self._times.last_offset()

    def _check_last_entry(self, offsets: OffsetIndex) -> None:
        """A stale index shows where it should end: its last entry must point at the batch it names.
        Indexes that are empty beside records may be what a power cut left of them."""
        if self.size and not offsets.entries and self.size > 2 * SCAN_BYTES:
            raise BadIndex("no entries")
        if self.size and not self._times and (self.first_batch_timestamp() or 0) >= 0:
            raise BadIndex("no timestamps")
        if self.max_timestamp is not None and self.max_timestamp != self._times_end():
            raise BadIndex("a time index of another moment")
        if offsets.entries:
            position = offsets.last_position()
            found = next(self.scan(position, self.size))
            if found.header.last_offset - self.base_offset != offsets.entries[-1] >> 32:
                raise BadIndex(f"offset index names another batch at {position}")

    def _times_end(self) -> int:
        return self._times.last_timestamp() if self._times is not None else -1

    def _rebuild_indexes(self, index_interval: int = SCAN_BYTES) -> None:
        size, aborted = self.size, self._aborted
        self.reset_indexes()
        self._aborted = aborted
        self.size = 0
        try:
            for found in self.scan(0, size):
                header = found.header
                self.appended(header.size, header.last_offset, header.max_timestamp, index_interval)
        except (CorruptBatch, OSError):
            # half an index would hide what lies behind the damage: the next reader is to be told as well
            self._offsets = self._times = self.max_timestamp = None
            self.is_sealed = True
            raise
        finally:
            self.size = size
        self.is_sealed = False
        self.settle()

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp of all records, -1 if none has one."""
        if self.max_timestamp is None and not self._find_largest_timestamp():
            self._load_indexes()
        timestamp = self.max_timestamp
        assert timestamp is not None
        return timestamp

    def _find_largest_timestamp(self) -> bool:
        """Read the largest timestamp from the last entry of the time index: retention asks every segment soon
        after a start."""
        try:
            file = self._files.open(self.path(TIME_INDEX))
        except FileNotFoundError:
            return False
        entries, rest = divmod(file.size(), TIME_ENTRY_SIZE)
        last = file.pread(TIME_ENTRY_SIZE, (entries - 1) * TIME_ENTRY_SIZE) if entries else b""
        file.close()
        timestamp = int.from_bytes(last[:8], "big", signed=True)
        if rest or timestamp <= 0:  # missing, damaged, or zeros that Kafka allocated
            return False
        self.max_timestamp = timestamp
        self.max_timestamp_offset = self.base_offset + int.from_bytes(last[8:], "big", signed=True)
        return True

    def first_batch_timestamp(self) -> int | None:
        """What rolling by time counts from; None while empty."""
        if self.first_timestamp is None and self.size:
            found = next(self.scan(0, self.size), None)
            self.first_timestamp = found.header.max_timestamp if found else None
        return self.first_timestamp

    def seal(self) -> None:
        """Write the index files as they are now. Called when the segment is closed to appends, or the log
        is."""
        if self.is_sealed:
            return
        if self.largest_timestamp >= 0:
            self.times.maybe_append(self.largest_timestamp, self.max_timestamp_offset - self.base_offset)
        write_replacing(self._files, self.path(OFFSET_INDEX), self.offsets.encode())
        write_replacing(self._files, self.path(TIME_INDEX), self.times.encode())
        self.is_sealed = True

    def release(self) -> None:
        """Give back the descriptor, and what only reading needs, unless it was used since the last call."""
        if not self.is_used:
            self._file = None
            if self.is_sealed:
                _ = self.largest_timestamp if self._times is not None else None
                self._offsets = self._times = None
                self._hints.clear()
        self.is_used = False

    def close(self) -> None:
        self._file = None

    def forget(self) -> None:
        """Let go of the descriptor and all that was kept for reading: the log is no more."""
        self._file = self._offsets = self._times = self._aborted = None
        self._hints.clear()

    def rename_to(self, suffix: str) -> None:
        """Give every file of the segment another suffix, the log last."""
        old, self._suffix = self._suffix, suffix
        for kind in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, LOG):
            path = self.path(kind)
            self._files.rename(path.removesuffix(suffix) + old if suffix else path + old, path)

    # --- finding ---

    def scan(self, position: int, stop: int) -> Iterator[Found]:
        """Batch headers from a batch boundary on; CorruptBatch where no whole batch is."""
        for found_at, _size, chunk, at in self._batches(position, stop):
            yield Found(found_at, parse_header(chunk, at))

    def _batches(self, position: int, stop: int) -> Iterator[tuple[int, int, bytes, int]]:
        """(position, size, a piece of the file, where in it the header stands) of each batch."""
        file = self.file
        chunk = b""
        chunk_at = 0
        while position < stop:
            if stop - position < HEADER_SIZE:
                raise CorruptBatch(position, f"{stop - position} bytes are no batch")
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                chunk = file.pread(min(SCAN_BYTES, stop - position), position)
                chunk_at, at = position, 0
                if len(chunk) < HEADER_SIZE:
                    raise CorruptBatch(position, f"{len(chunk)} bytes are no batch header")
            size = int.from_bytes(chunk[at + 8 : at + 12], "big", signed=True) + OVERHEAD
            if size < HEADER_SIZE or position + size > stop:
                raise CorruptBatch(position, f"batch of {size} bytes, {stop - position} are left")
            yield position, size, chunk, at
            position += size

    def remember(self, offset: int, position: int) -> None:
        """The batch with `offset`, or the first one after it, begins at `position`: a reader that goes on
        there need not look for it."""
        hints = self._hints
        if len(hints) >= HINTS_MAX:
            del hints[next(iter(hints))]
        hints[offset] = position

    def read_batch(self, found: Found) -> bytes:
        return self.file.pread(found.header.size, found.position)

    def locate(self, offset: int) -> tuple[int, int]:
        """(position, base offset) of the batch that holds `offset`, or of the first one after it; the size
        and `offset` when there is none."""
        position = self._hints.get(offset)
        if position is not None:
            return position, offset
        for found in self.scan(self.offsets.lookup(offset - self.base_offset), self.size):
            if found.header.last_offset >= offset:
                return found.position, found.header.base_offset
        return self.size, offset

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        bound: int,
        end_offset: int,
        min_one: bool,
        at: int | None = None,
    ) -> LogSlice | None:
        """Batches from `offset` up to `bound`; `end_offset` is where the next segment begins. None when
        the first batch is larger than `max_bytes`; a slice of size 0 when nothing of [offset, end_offset)
        is left here. `at` is the position, where the caller knows it."""
        position, first_offset = self.locate(offset) if at is None else (at, offset)
        if bound >= end_offset:
            stop, next_offset = self.size, end_offset
        else:
            stop, next_offset = self.locate(bound)[0], bound
        if stop - position > max_bytes:
            stop, next_offset = self._cut(position, position + max_bytes, min_one)
            if stop == position:
                return None
        if stop < self.size:
            self.remember(next_offset, stop)
        return LogSlice(self.file, position, stop - position, first_offset, next_offset)

    def _cut(self, position: int, limit: int, min_one: bool) -> tuple[int, int]:
        """The last batch boundary in (position, limit] known without much reading, and its offset."""
        boundary = self.offsets.boundary_within(limit)
        if boundary > position:
            return boundary, int.from_bytes(self.file.pread(8, boundary), "big")
        stop, next_offset = position, -1
        for found_at, size, chunk, at in self._batches(position, self.size):
            end = found_at + size
            if end > limit and not (min_one and stop == position):
                break
            base_offset, last_delta = _offsets_of(chunk, at)
            stop, next_offset = end, base_offset + last_delta + 1
            if end >= limit:
                break
        return stop, next_offset

    def batch_at_time(self, timestamp: int, start_offset: int) -> bytes | None:
        """The first batch with records from `start_offset` on that says it has one at or after
        `timestamp`."""
        if not self.size or self.largest_timestamp < timestamp:
            return None
        behind = max(self.times.lookup(timestamp), start_offset - self.base_offset)
        for found in self.scan(self.offsets.lookup(behind), self.size):
            header = found.header
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset and header.count:
                return self.read_batch(found)
        return None

    def newest_batch(self) -> bytes | None:
        """The first batch that says it has a record of the segment's highest timestamp."""
        highest = self.largest_timestamp
        if highest < 0:
            return None
        position, _ = self.locate(self.max_timestamp_offset)
        for found in self.scan(position, self.size):
            if found.header.max_timestamp == highest and found.header.count:
                return self.read_batch(found)
        return None

    def end_offset(self) -> int:
        """One past the last offset, found from the last index entry. CorruptBatch when the tail is no
        batch."""
        end = self.base_offset
        for found in self.scan(self.offsets.last_position(), self.size):
            end = found.header.next_offset
        return end

    # --- cutting and recovering ---

    def open_to_cut(self, offset: int) -> None:
        """`truncate` finds open what it needs."""
        self._hints.clear()  # with a hint nothing would be opened
        self.locate(offset)

    def truncate(self, offset: int) -> None:
        """Drop the batch that holds `offset` and everything after it."""
        position, _ = self.locate(offset)
        self._hints.clear()
        self.offsets.truncate(offset - self.base_offset)
        self.times.truncate(offset - self.base_offset)
        self.file.truncate(position)
        self.size = position
        kept = [txn for txn in self.aborted if txn.last_offset < offset]
        if len(kept) < len(self.aborted):
            self.write_aborted(kept)
        self.max_timestamp = self.times.last_timestamp()
        self.max_timestamp_offset = self.base_offset + self.times.last_offset()
        for found in self.scan(self.offsets.last_position(), position):
            if found.header.max_timestamp > self.max_timestamp:
                self.max_timestamp = found.header.max_timestamp
                self.max_timestamp_offset = found.header.last_offset
        if not position:
            self.first_timestamp = None
        self.is_sealed = False

    @property
    def is_small(self) -> bool:
        return self.size <= SMALL_BYTES

    def settle(self) -> None:
        """Write indexes as `seal` does, for a segment that may grow again: a small one has no index files."""
        if self.is_sealed:
            return
        if self.is_small:
            for kind in (OFFSET_INDEX, TIME_INDEX):
                self._files.unlink(self.path(kind))
        else:
            self.seal()

    def mark(self) -> SegmentMark:
        """What `resume` needs to go on from the end as it is now, once the segment is settled."""
        offsets = times = b""
        if not self.is_small:
            offsets, times = self.offsets.encode(), self.times.encode()
        aborted = b"".join(txn.encode() for txn in self.aborted)
        return SegmentMark(
            self.size,
            *(len(offsets), crc32c(offsets)),
            *(len(times), crc32c(times)),
            *(len(aborted), crc32c(aborted)),
        )

    def resume(self, mark: SegmentMark, offset: int, index_interval: int) -> bool:
        """Take over what the index files say of everything before `offset`: only if it is what the mark saw
        and leads to a batch that ends there."""
        try:
            offsets = OffsetIndex.decode(
                self._marked(OFFSET_INDEX, mark.offsets_size, mark.offsets_crc), mark.position
            )
            times = TimeIndex.decode(self._marked(TIME_INDEX, mark.times_size, mark.times_crc))
            aborted = decode_aborted(self._marked(TXN_INDEX, mark.aborted_size, mark.aborted_crc))
            behind = list(self.scan(offsets.last_position(), min(mark.position, self.size)))
        except (BadIndex, CorruptBatch):
            return False
        if not behind or behind[-1].header.next_offset != offset or mark.position > self.size:
            return False
        self.reset_indexes()
        self._offsets, self._times, self._aborted = offsets, times, aborted
        self.max_timestamp = times.last_timestamp()
        self.max_timestamp_offset = self.base_offset + times.last_offset()
        self._look_whether_full(offsets, times)
        if not offsets.entries:
            self.size = 0
            for found in behind:
                header = found.header
                self.appended(header.size, header.last_offset, header.max_timestamp, index_interval)
        return True

    def _marked(self, kind: str, size: int, crc: int) -> bytes:
        try:
            data = self._files.open(self.path(kind)).pread(size, 0)
        except FileNotFoundError:
            data = b""
        if len(data) != size or crc32c(data) != crc:
            raise BadIndex(f"{self.path(kind)} is not what was marked")
        return data

    def recover(
        self, expected_offset: int, index_interval: int, *, position: int = 0
    ) -> Iterator[tuple[bytes, BatchHeader]]:
        """Read every batch from `position` on (where `resume` took the rest over), rebuild the indexes, and
        cut the file at the first bad one. The caller must exhaust the iterator; it then finds `size` at the
        end of what is good."""
        file = self.file
        total = file.size()
        if not position:
            self.reset_indexes()
        self._cut_aborted()
        self.size = position
        for batch, header in _good_batches(file, position, total, self.base_offset, expected_offset):
            self.appended(header.size, header.last_offset, header.max_timestamp, index_interval)
            yield batch, header
        if self.size < total:
            file.truncate(self.size)
            file.fsync()  # or a power cut may bring the rest back behind what is appended from now on

    def write_anew(self, position: int) -> Iterator[None]:
        """Make what stands from `position` on the next sync's work, though the kernel may take it for
        written."""
        for at in range(position, self.size, RECOVERY_BYTES):
            self.file.pwrite(self.file.pread(min(RECOVERY_BYTES, self.size - at), at), at)
            yield
        self.file.truncate(self.size)

    def _cut_aborted(self) -> None:
        """Make the transaction index end with what is known."""
        path = self.path(TXN_INDEX)
        if not self.aborted:
            self._files.unlink(path)
        elif self._files.size(path) > len(self.aborted) * ABORTED_SIZE:
            self._files.open(path).truncate(len(self.aborted) * ABORTED_SIZE)


def _good_batches(
    file: File, position: int, total: int, base_offset: int, expected_offset: int
) -> Iterator[tuple[bytes, BatchHeader]]:
    """Batches from `position` until the first that is damaged, out of order or out of the segment's range."""
    chunk = b""
    chunk_at = position
    while total - position >= HEADER_SIZE:
        at = position - chunk_at
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_at, at = file.pread(RECOVERY_BYTES, position), position, 0
        header = parse_header(chunk, at)
        size = header.length + OVERHEAD
        if size < HEADER_SIZE or position + size > total:
            return
        if at + size > len(chunk):
            chunk, chunk_at, at = file.pread(max(RECOVERY_BYTES, size), position), position, 0
        try:
            check_stored(chunk, at, header)
        except CorruptBatch:
            return
        if header.base_offset < expected_offset or header.last_offset - base_offset > INT32_MAX:
            return
        if header.leader_epoch < NO_EPOCH:
            return  # one that is too high or too low by damage costs nothing that follows
        expected_offset = header.next_offset
        yield chunk[at : at + size], header
        position += size
