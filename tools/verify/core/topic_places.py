"""Where the bytes of topics lie, without a broker: local logs, the cold tier's copies, the WAL tier's slices.

Owns what is listed, and which places of a partition there are, by what they say themselves. Does not own
which of them count at an offset, or reading them (topic). Invariant: no record batch is read but those at the
end of a log's last segment; what cannot be read as what its key says is no place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from tools.verify.core.directory import EPOCHS, Directory, Log, list_directory, segments
from tools.verify.core.heads import FRAME, HEAD_SIZE, head
from tools.verify.core.kafka_files import BadFile, leader_epochs, offset_entries
from tools.verify.core.keys import (
    WAL,
    StreamKey,
    TierData,
    TierIndex,
    WalBoundary,
    WalIndex,
    WalObject,
    parse_key,
    wal_key,
)
from tools.verify.core.layouts import (
    OFFSETS,
    PRODUCERS,
    SEAL,
    TIMES,
    TRANSACTIONS,
    IndexHead,
    Malformed,
    WalTable,
    decode_index_head,
    decode_wal_index,
    decode_wal_table,
    index_head_size,
    wal_table_end,
)
from tools.verify.core.stores import FileSource, Gone, Listed, Source, TooLarge
from tools.verify.core.stretches import RawBatch, Stretch, count_sound, cut, frames, stretch_of
from tools.verify.core.tier_topics import COPY_FINISHED, ToldCopy

LOCAL: Final = "local"
COLD: Final = "cold"
WAL_TIER: Final = "wal"
PIECE: Final = 8 << 20
"""Of one request."""
FILE_PIECE: Final = 2 << 20
"""Of a file: so much memory is had again and again, where more would be fresh each time, which costs as much
as the reading."""
FILE_BYTES_MAX: Final = 64 << 20
"""Of a file beside a segment, and of a table."""
FIRST_BYTES: Final = 64 << 10
"""Of the first request for an object: what it says of itself is seldom larger."""
WAL_INDEX_BYTES_MAX: Final = 1 << 30


class Run(NamedTuple):
    """Offsets of one batch epoch."""

    first: int
    end: int
    epoch: int


class Segment(NamedTuple):
    """What lies beside the batches of a local or tiered segment."""

    base: int
    files: tuple[tuple[str, str], ...] = ()
    """Of a local segment: kinds and keys."""
    following: str = ""
    """The snapshot of producers at its end, if it is a local one that is closed."""
    head: IndexHead | None = None
    """Of a tiered one, and the key of its index object."""
    index_key: str = ""

    @property
    def is_closed(self) -> bool:
        return self.head is not None or bool(self.following)


class Place(NamedTuple):
    """Consecutive batches in one file or object."""

    tier: str
    source: Source
    key: str
    position: int
    size: int
    runs: tuple[Run, ...]
    authority: int
    """The leader epoch of who wrote it, and where that began, -1 if it does not say."""
    authority_start: int
    log_start: int
    """As its writer knew it, -1 if it does not say."""
    segment: Segment | None = None

    @property
    def first(self) -> int:
        return self.runs[0].first

    @property
    def end(self) -> int:
        return self.runs[-1].end


class LocalReplica(NamedTuple):
    """A replica's log in a data directory."""

    node: int
    log_start: int
    first: int
    end: int
    high_watermark: int
    places: tuple[Place, ...]


KINDS: Final = {OFFSETS: "index", TIMES: "timeindex", TRANSACTIONS: "txnindex"}


def section(place: Place, kind: int) -> bytes:
    """Return a file beside a segment, or a section of its index object; nothing if it is not there.

    `kind` is that of the section.
    """
    segment = place.segment
    assert segment is not None
    try:
        if segment.head is not None:
            _, start, size, crc = segment.head.sections[kind]
            data = place.source.read(segment.index_key, start, size)
            return data if crc32c(data) == crc else b""
        key = segment.following if kind == PRODUCERS else dict(segment.files).get(KINDS[kind], "")
        return place.source.read_all(key, FILE_BYTES_MAX) if key else b""
    except (Gone, TooLarge):
        return b""


# --- data directories ---


def read_directories(sources: Sequence[Source]) -> list[tuple[Source, Directory]]:
    return [(source, list_directory(source, number)) for number, source in enumerate(sources)]


def local_replica(source: Source, directory: Directory, log: Log) -> LocalReplica | None:
    """Return the log as it is now; None if it has no segment."""
    files = segments(log.files)
    bases = sorted(base for base, kind in files if kind == "log")
    if not bases:
        return None
    epochs = _epochs(source, log) or _epochs_of_batches(source, [files[base, "log"] for base in bases])
    end = _log_end(source, files, bases[-1])
    places = []
    for base, following in [*pairwise(bases), (bases[-1], end)]:
        listed = files[base, "log"]
        snapshot = files.get((following, "snapshot")) if base != bases[-1] else None
        kinds = tuple((kind, each.key) for (start, kind), each in files.items() if start == base)
        runs = _runs(base, following, epochs)
        if runs:
            authority, begins = epochs[-1]
            beside = Segment(base, kinds, snapshot.key if snapshot else "")
            places.append(
                Place(
                    LOCAL, source, listed.key, 0, listed.size, runs, authority, begins, log.log_start, beside
                )
            )
    node = directory.properties.get("node.id", "")
    return LocalReplica(
        int(node) if node.isascii() and node.isdigit() else -1,
        log.log_start,
        bases[0],
        end,
        log.high_watermark,
        tuple(places),
    )


def _epochs(source: Source, log: Log) -> list[tuple[int, int]]:
    """Return the epochs of a log, ascending, as their file says; nothing if it cannot be read."""
    try:
        return leader_epochs(source.read_all(f"{log.name}/{EPOCHS}", FILE_BYTES_MAX))
    except (Gone, TooLarge, BadFile):
        return []


def _epochs_of_batches(source: Source, listed: Sequence[Listed]) -> list[tuple[int, int]]:
    """Return the epochs of a log, ascending, as its batches say."""
    found: list[tuple[int, int]] = []
    for each in listed:
        with suppress(Gone):
            for batch in walk_sound(source, each.key, 0, each.size):
                if not found or batch.head.leader_epoch > found[-1][0]:
                    found.append((batch.head.leader_epoch, batch.head.base_offset))
    return found or [(-1, 0)]


def _runs(first: int, end: int, epochs: Sequence[tuple[int, int]]) -> tuple[Run, ...]:
    """Cut [first, end) at the epochs; the first of them is taken to reach below its start."""
    found = []
    starts = [*(start for _, start in epochs[1:]), end]
    for (epoch, start), following in zip(epochs, starts, strict=True):
        low, high = max(first, start), min(end, following)
        if start == epochs[0][1]:
            low = first
        if low < high:
            found.append(Run(low, high, epoch))
    return tuple(found)


def _log_end(source: Source, files: Mapping[tuple[int, str], Listed], base: int) -> int:
    """Return the offset behind the last sound batch of a log whose last segment begins at `base`."""
    listed = files[base, "log"]
    positions = [0]
    index = files.get((base, "index"))
    if index is not None:
        positions += (each for each in index_positions(source, index.key, base)[1] if each < listed.size)
    end = base
    for position in sorted({0, max(positions)}, reverse=True):
        try:
            for batch in walk_sound(source, listed.key, position, listed.size - position):
                if batch.head.last_offset < end:
                    break
                end = batch.head.last_offset + 1
        except Gone:
            pass
        if end > base:  # else what the last entry points to is damaged
            break
    return end


def index_positions(source: Source, key: str, base: int) -> tuple[list[int], list[int]]:
    """Return last offsets of batches and where these begin; nothing if the index cannot be read."""
    try:
        return positions_in(source.read_all(key, FILE_BYTES_MAX), base)
    except (Gone, TooLarge):
        return [], []


def positions_in(index: bytes, base: int) -> tuple[list[int], list[int]]:
    entries = offset_entries(index)
    offsets, positions = (entries.first + base).tolist(), entries.second.tolist()
    return (offsets, positions) if offsets == sorted(offsets) and positions == sorted(positions) else ([], [])


# --- batches in a stretch of bytes ---


class Damaged(Exception):
    """Bytes that are no sound batch. One line says where."""

    def __init__(self, key: str, position: int, following: int = -1) -> None:
        super().__init__(f"{key}: no sound batch at byte {position}")
        self.key = key
        self.position = position
        self.following = following
        """Where the next batch begins, if the length is right; -1: it cannot be."""


def walk_stretches(source: Source, key: str, position: int, size: int) -> Iterator[Stretch]:
    """Yield the batches of some bytes of a file or object, whose checksums agree. Raise Damaged, Gone.

    A batch that is cut off by the end of the file, and not by `size`, ends it.
    """
    at, end, unfinished = position, position + size, 0
    piece = FILE_PIECE if isinstance(source, FileSource) else PIECE
    while at < end:
        wanted = min(max(piece, unfinished), end - at)
        view = memoryview(source.read(key, at, wanted))
        starts, stop = frames(view, 0, FILE_BYTES_MAX - FRAME)
        for found in cut(stretch_of(view, at, starts, np.append(starts, stop)[1:])):
            count = count_sound(found)
            if count:
                yield found.only(slice(0, count))
            if count < len(found.starts):
                raise Damaged(key, at + int(found.starts[count]), at + int(found.ends[count]))
        unfinished = 0
        if stop + HEAD_SIZE <= len(view):
            unfinished = head(view, stop).size
            if not HEAD_SIZE <= unfinished <= FILE_BYTES_MAX:
                raise Damaged(key, at + stop)
        if len(view) < wanted or at + wanted == end:
            return
        at += stop  # what is read twice is less than what it costs to join it with the rest


def walk(source: Source, key: str, position: int, size: int) -> Iterator[RawBatch]:
    """Yield them one by one. Raise Damaged, Gone."""
    for stretch in walk_stretches(source, key, position, size):
        yield from stretch.batches()


def walk_sound(source: Source, key: str, position: int, size: int) -> Iterator[RawBatch]:
    """Yield what is sound, and pass over what is not as far as lengths lead. Raise Gone."""
    end = position + size
    while 0 <= position < end:
        try:
            yield from walk(source, key, position, end - position)
            return
        except Damaged as damage:
            position = damage.following


# --- the cold tier ---


def cold_places(
    source: Source, prefix: str, told_of: Callable[[TierData], ToldCopy | None]
) -> Iterator[tuple[TierData, Place]]:
    """Yield the copies below the prefix, by their index objects; what has none that fits it by its record.

    `told_of`: what the brokers' topic says of a copy.
    """
    data: dict[TierData, Listed] = {}
    indexes: dict[TierData, Listed] = {}
    for listed in source.list(prefix):
        match parse_key(listed.key):
            case TierData() as key:
                data[key] = listed
            case TierIndex() as key:
                indexes[TierData(key.topic_id, key.partition, key.base_offset, key.segment_id)] = listed
    for copy, listed in sorted(data.items()):
        index = indexes.get(copy)
        place = _indexed(source, copy, listed, index) if index is not None else None
        if place is None:
            place = _told_place(source, listed, told_of(copy))
        if place is not None:
            yield copy, place


def _indexed(source: Source, copy: TierData, listed: Listed, index: Listed) -> Place | None:
    head_of = _index_head(source, index)
    if head_of is None or head_of.size != listed.size:
        return None
    named = head_of.topic_id, head_of.partition, head_of.base_offset, head_of.segment_id
    runs = _runs(
        head_of.base_offset,
        head_of.end_offset,
        [(each.epoch, each.start_offset) for each in head_of.epochs],
    )
    if named != tuple(copy) or not runs:
        return None
    beside = Segment(head_of.base_offset, head=head_of, index_key=index.key)
    return Place(COLD, source, listed.key, 0, listed.size, runs, head_of.leader_epoch, -1, -1, beside)


def _told_place(source: Source, listed: Listed, told: ToldCopy | None) -> Place | None:
    """Return a copy that was finished and has all of its bytes; the batches prove themselves."""
    if told is None or told.state != COPY_FINISHED or told.size != listed.size or not told.epochs:
        return None
    runs = _runs(told.base, told.end, told.epochs)
    return Place(COLD, source, listed.key, 0, listed.size, runs, told.epochs[-1][0], -1, -1) if runs else None


def _index_head(source: Source, listed: Listed) -> IndexHead | None:
    try:
        first = source.read(listed.key, 0, min(FIRST_BYTES, listed.size))
        size = index_head_size(first)
        if size > len(first):
            first = source.read(listed.key, 0, size)
        return decode_index_head(first, listed.size)
    except (Gone, Malformed):
        return None


# --- the WAL tier ---


@dataclass(slots=True)
class _Stream:
    objects: dict[int, Listed] = field(default_factory=dict)
    indexes: dict[int, Listed] = field(default_factory=dict)
    boundary: int = -1


def wal_places(source: Source, wanted: Iterable[str]) -> dict[tuple[str, int], list[Place]]:
    """Return the slices of these topics in objects that count, by topic id and partition."""
    topics = frozenset(wanted)
    found: dict[tuple[str, int], list[Place]] = defaultdict(list)
    for stream, table in _tables(source):
        key = wal_key(stream, table.head.seq)
        for each in table.slices:
            if each.topic_id in topics:
                runs = (Run(each.start, each.end, each.batch_epoch),)
                found[each.topic_id, each.partition].append(
                    Place(
                        WAL_TIER, source, key, each.position, each.size, runs, each.leader_epoch,
                        each.epoch_start, each.log_start,
                    )
                )  # fmt: skip
    return found


def _tables(source: Source) -> Iterator[tuple[StreamKey, WalTable]]:
    """Yield the tables of the objects that count: of each stream those above its boundary, up to the first
    that is missing or a seal."""
    for stream, listed in sorted(_streams(source).items()):
        repeated: dict[int, WalTable] = {}
        numbers = listed.objects.keys()
        for index in listed.indexes.values():
            repeated |= {table.head.seq: table for table in _repeated(source, stream, index)}
        at = listed.boundary + 1
        while at in numbers:
            table = repeated.get(at) or _table(source, listed.objects[at])
            at += 1
            if table is None or (table.head.stream, table.head.seq) != (stream, at - 1):
                continue  # what it holds is in another place, or missing
            if table.head.kind == SEAL:
                break
            yield stream, table


def _streams(source: Source) -> dict[StreamKey, _Stream]:
    found: dict[StreamKey, _Stream] = defaultdict(_Stream)
    for listed in source.list(WAL):
        match parse_key(listed.key):
            case WalObject(stream, seq):
                found[stream].objects[seq] = listed
            case WalIndex(stream, seq):
                found[stream].indexes[seq] = listed
            case WalBoundary(stream, seq):
                found[stream].boundary = max(found[stream].boundary, seq)
    return found


def _repeated(source: Source, stream: StreamKey, listed: Listed) -> Sequence[WalTable]:
    try:
        head_of, tables = decode_wal_index(source.read_all(listed.key, WAL_INDEX_BYTES_MAX))
    except (Gone, TooLarge, Malformed):
        return ()
    return tables if head_of.stream == stream else ()


def _table(source: Source, listed: Listed) -> WalTable | None:
    try:
        first = source.read(listed.key, 0, min(FIRST_BYTES, listed.size))
        end = wal_table_end(first)
        if end > FILE_BYTES_MAX:
            return None
        if end > len(first):
            first = source.read(listed.key, 0, end)
        return decode_wal_table(first[:end], listed.size)
    except (Gone, Malformed):
        return None
