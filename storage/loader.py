"""Opening a log directory: what an interrupted process left, and what the log therefore is.

Owns: finishing or undoing interrupted swaps and deletes, recovery past the recovery point, rebuilding
indexes, epochs and producers. Does not own: the running log, or which directories there are. Invariant:
after loading, everything in the directory is a function of the good bytes of its segments, so loading it
again changes nothing.

Kafka reads the whole segment again that holds the recovery point. Here a snapshot at or below that point
may carry a `SegmentMark`, and where the index files still are what it saw, reading begins there. Nothing
hangs on what reached the disk in which order: a mark, an index or a snapshot that a power cut took, tore or
brought back does not agree with the others, and then the segment is read from its start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import join
from uuid import UUID

from protocol.errors import CorruptBatch
from protocol.ids import decode_id, encode_id
from protocol.records import BatchHeader
from storage.epochs import EpochCache, decode_epochs
from storage.files import Files, write_replacing
from storage.index import AbortedTxn
from storage.policy import LogConfig
from storage.producers import CorruptSnapshot, ProducerTable, decode_producers, replay_marker
from storage.segment import (
    CLEANED,
    DELETED,
    LOG,
    RECOVERY_BYTES,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    Segment,
    SegmentMark,
    segment_name,
)

EPOCHS = "leader-epoch-checkpoint"
METADATA = "partition.metadata"
NAME_DIGITS = 20
REPLAYED_PER_SLICE = 256
"""Batch headers, about 1 ms."""


@dataclass(slots=True, kw_only=True)
class CleanState:
    """What a clean stop noted of a log, so that the next start need not read it."""

    topic_id: UUID | None
    segments: list[tuple[int, int]]
    """The base offset and size of each."""
    log_end_offset: int
    mtime_ms: int
    """The last segment's time of change."""
    newest_timestamp: int
    """The newest timestamp in the last segment."""
    epochs: list[tuple[int, int]]
    has_producers: bool


@dataclass(slots=True, kw_only=True)
class Loaded:
    topic_id: UUID | None
    segments: list[Segment]
    epochs: EpochCache
    producers: ProducerTable
    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int
    recovery_point: int
    dropped_bytes: int = 0
    has_snapshot: bool = False
    """Whether there is one of the producers at the log's end."""
    is_noted: bool = False
    """Whether a clean stop left the log just so."""
    rewritten: list[str] = field(default_factory=list)
    """Files to sync with the next flush."""


def load(
    files: Files,
    path: str,
    *,
    config: LogConfig,
    is_clean: bool,
    is_doubted: bool,
    recovery_point: int,
    gapless_from: int | None,
    log_start_offset: int | None,
    now_ms: int,
    state: CleanState | None = None,
) -> Generator[None, None, Loaded]:
    """Open the directory `path`, in slices of a few milliseconds. Raises OSError when the disk does. Whoever
    stops between two slices leaves what a crash would have left there.

    `is_doubted`: a sync failed since the recovery point. What is read past it may stand in memory alone,
    where no later sync finds it to write unless it is written once more.

    `log_start_offset` is what the checkpoint says, None if it does not name the log. Of a tiered log it tells
    the start; any other one starts with its first segment at the latest.

    Past `gapless_from` no segment was ever compacted, so one that ends before the next begins lost its
    tail with the power. None: that cannot be said.
    """
    is_tiered = config.remote_storage_enable
    saved_start = log_start_offset or 0
    names = _finish_interrupted(files, path)
    if not names:
        return _made_new(files, path, saved_start, now_ms)
    _remove_stray_snapshots(files, path, names, recovery_point)
    bases = sorted(int(name[:NAME_DIGITS]) for name in names if _is_segment_file(name, LOG))
    if is_clean and state is not None:
        loaded = _load_noted(files, path, bases, state, now_ms=now_ms)
        if loaded is not None:
            _find_starts(loaded, log_start_offset, is_tiered)
            return _start_at(loaded, files, path, saved_start, now_ms)
    _remove_orphans(files, path, names, set(bases))
    segments = [
        Segment(files, path, base, size=files.size(join(path, segment_name(base) + LOG)), created_ms=now_ms)
        for base in bases
    ]
    if not segments:  # a log was taken away, to begin anew; what tells of it would pass for the new one's
        _remove_snapshots(files, path)
        segments = [Segment.create(files, path, saved_start, now_ms=now_ms)]
    loaded = Loaded(
        topic_id=read_topic_id(files, path),
        segments=segments,
        epochs=EpochCache(),
        producers=ProducerTable(),
        log_start_offset=0,
        local_log_start_offset=0,
        log_end_offset=0,
        recovery_point=recovery_point,
    )
    epochs = _read_epochs(files, path)
    noted = epochs.entries() if epochs is not None else []
    if epochs is not None:
        loaded.epochs = epochs
    _find_starts(loaded, log_start_offset, is_tiered)
    if is_clean:
        yield from _load_clean(loaded, files, path, config, epochs_known=epochs is not None)
    else:
        since = recovery_point if epochs is not None else 0
        yield from _recover(
            loaded, files, path, config, since=since, gapless_from=gapless_from, is_doubted=is_doubted
        )
        _complete_epochs(loaded)
        if loaded.epochs.entries() != noted:
            loaded.rewritten.append(join(path, EPOCHS))
        if is_tiered:  # what is read here may not have reached the disk since that point
            loaded.rewritten.append(join(path, EPOCHS))
            loaded.rewritten += [
                snapshot_path(path, at) for at in snapshot_offsets(files, path) if at >= recovery_point
            ]
    loaded.recovery_point = loaded.log_end_offset if is_clean else min(recovery_point, loaded.log_end_offset)
    for offset in snapshot_offsets(files, path):
        if offset > loaded.log_end_offset:
            files.unlink(snapshot_path(path, offset))
    return _start_at(loaded, files, path, saved_start, now_ms)


def _made_new(files: Files, path: str, log_start_offset: int, now_ms: int) -> Loaded:
    segment = Segment.create(files, path, log_start_offset, now_ms=now_ms)
    return Loaded(
        topic_id=None,
        segments=[segment],
        epochs=EpochCache(),
        producers=ProducerTable(),
        log_start_offset=log_start_offset,
        local_log_start_offset=log_start_offset,
        log_end_offset=log_start_offset,
        recovery_point=0,
        rewritten=[segment.path(LOG)],
    )


def _find_starts(loaded: Loaded, saved: int | None, is_tiered: bool) -> None:
    """Set where the log starts, and where its local part does, by the checkpoint of log starts and the first
    segment. The checkpoint names a tiered log before any of its segments go. One that it does not name starts
    with its segments, unless the checkpoint was lost: then the epochs tell, which are cut at the log start,
    never at the local one. Too early a start costs readers an error until it is moved; too late a one, what
    is in the tier."""
    base = loaded.segments[0].base_offset
    if not is_tiered:
        start = max(saved or 0, base)
    elif saved is not None:
        start = saved
    else:
        start = min(base, loaded.epochs.known_from or 0)
    loaded.log_start_offset = start
    loaded.local_log_start_offset = max(start, base)


def _start_at(loaded: Loaded, files: Files, path: str, log_start_offset: int, now_ms: int) -> Loaded:
    """Apply the checkpointed log start. Past the log's end it means the log lost its tail: begin anew
    there, so that no offset that was deleted is ever given out again."""
    if log_start_offset > loaded.log_end_offset:
        # snapshots first: one that is left would bring its producers into the new log
        _remove_snapshots(files, path)
        for segment in loaded.segments:
            remove_segment_files(files, segment)
        loaded.segments = [Segment.create(files, path, log_start_offset, now_ms=now_ms)]
        loaded.rewritten = [loaded.segments[0].path(LOG)]
        loaded.log_end_offset = loaded.log_start_offset = loaded.local_log_start_offset = log_start_offset
        loaded.recovery_point = min(loaded.recovery_point, log_start_offset)
        loaded.is_noted = False
        loaded.epochs.clear()
        loaded.producers.clear()
    # From the start first: an epoch that is moved up to the end of the log has no records, and goes.
    loaded.epochs.truncate_from_start(loaded.log_start_offset)
    loaded.epochs.truncate_from_end(loaded.log_end_offset)
    return loaded


def _load_noted(
    files: Files, path: str, bases: list[int], state: CleanState, *, now_ms: int
) -> Loaded | None:
    """The log as noted at the clean stop, unless the files tell otherwise."""
    if not bases or bases != [base for base, _ in state.segments]:
        return None
    last_log = join(path, segment_name(bases[-1]) + LOG)
    if files.size(last_log) != state.segments[-1][1] or files.mtime_ms(last_log) != state.mtime_ms:
        return None
    segments = [Segment(files, path, base, size=size, created_ms=now_ms) for base, size in state.segments]
    segments[-1].max_timestamp = state.newest_timestamp
    producers = ProducerTable()
    if state.has_producers:
        producers = producers_at(files, path, segments, state.log_end_offset)
    return Loaded(
        topic_id=state.topic_id,
        segments=segments,
        epochs=EpochCache(state.epochs),
        producers=producers,
        log_start_offset=bases[0],
        local_log_start_offset=bases[0],
        log_end_offset=state.log_end_offset,
        recovery_point=state.log_end_offset,
        has_snapshot=True,
        is_noted=True,
    )


def _load_clean(
    loaded: Loaded, files: Files, path: str, config: LogConfig, *, epochs_known: bool
) -> Iterator[None]:
    try:
        loaded.log_end_offset = loaded.segments[-1].end_offset()
        if not epochs_known:
            _rebuild_epochs(loaded.epochs, loaded.segments)
    except CorruptBatch:  # the marker lied: someone cut or damaged the log since
        since = loaded.segments[-1].base_offset if epochs_known else 0
        yield from _recover(loaded, files, path, config, since=since)
        return
    loaded.producers = producers_at(files, path, loaded.segments, loaded.log_end_offset)


def _rebuild_epochs(epochs: EpochCache, segments: Sequence[Segment]) -> None:
    for segment in segments:
        for found in segment.scan(0, segment.size):
            if found.header.leader_epoch > epochs.latest:
                epochs.assign(found.header.leader_epoch, start_offset=found.header.base_offset)


def _complete_epochs(loaded: Loaded) -> None:
    """The epochs may know of a log start that the checkpoint of log starts does not: find again what they
    dropped."""
    entries = loaded.epochs.entries()
    known_from = entries[0][1] if entries else loaded.log_end_offset
    if known_from <= loaded.log_start_offset:
        return
    found = EpochCache()
    try:
        _rebuild_epochs(found, loaded.segments)
    except CorruptBatch:
        return  # below the recovery point, where nothing is cut: the reader of those offsets will be told
    earlier = [(epoch, start) for epoch, start in found.entries() if start < known_from]
    named = {epoch for epoch, _ in earlier}
    loaded.epochs = EpochCache(earlier + [entry for entry in entries if entry[0] not in named])


# --- recovery ---


def _recover(
    loaded: Loaded,
    files: Files,
    path: str,
    config: LogConfig,
    *,
    since: int,
    gapless_from: int | None = None,
    is_doubted: bool = False,
) -> Iterator[None]:
    """Read every batch from the newest mark at or below `since` on, or from the start of the segment that
    holds it; cut at the first bad one, or where one is missing, and drop every later segment; rebuild what
    follows from the bytes."""
    segments = loaded.segments
    first = max(0, bisect_right([segment.base_offset for segment in segments], since) - 1)
    interval = config.index_interval_bytes
    size = segments[first].size
    start, position, table = _resume(files, path, segments[first], since, interval)
    segments[first].size = size
    stale = [offset for offset in snapshot_offsets(files, path) if offset > start]
    for offset in stale:
        files.unlink(snapshot_path(path, offset))
    if stale:
        files.fsync_dir(path)  # or a power cut may bring one back, and its mark fit what is appended since
    if table is None:
        table = producers_at(files, path, segments[:first], start)
    loaded.producers = table
    loaded.epochs.truncate_from_end(start)
    expected = start
    unread = RECOVERY_BYTES
    for index in range(first, len(segments)):
        segment = segments[index]
        if index > first:
            write_snapshot(files, path, segment.base_offset, table)
            loaded.rewritten.append(snapshot_path(path, segment.base_offset))
        size = segment.size
        known = position if index == first else 0
        for batch, header in segment.recover(expected, interval, position=known):
            expected = header.next_offset
            _replay(loaded, segment, batch, header)
            unread -= header.size
            if unread <= 0:
                unread = RECOVERY_BYTES
                yield
        loaded.dropped_bytes += size - segment.size
        if is_doubted:
            yield from segment.write_anew(known)
        # what the recovery point vouches for is on the disk as it is, names included
        if segment.size < size or expected > since or since == 0:
            loaded.rewritten += [segment.path(kind) for kind in SEGMENT_SUFFIXES]
        is_cut = segment.size < size or _is_torn_off(segments, index, expected, gapless_from)
        if is_cut or _reaches_into_the_next(segments, index, expected):
            if index + 1 < len(segments):
                for later in segments[index + 1 :]:
                    loaded.dropped_bytes += later.size
                    remove_segment_files(files, later)
                del segments[index + 1 :]
                files.fsync_dir(path)  # or a power cut may bring one back in the place of a new one
            break
        if index < len(segments) - 1:
            segment.seal()
            expected = max(expected, segments[index + 1].base_offset)
    loaded.log_end_offset = max(expected, segments[-1].base_offset)
    loaded.has_snapshot = position > 0 and loaded.log_end_offset == start


def _resume(
    files: Files, path: str, segment: Segment, since: int, index_interval: int
) -> tuple[int, int, ProducerTable | None]:
    """The offset and position from which the segment must be read, and the producers there if a snapshot
    told them."""
    for at in reversed(snapshot_offsets(files, path)):
        if not segment.base_offset < at <= since:
            continue
        try:
            table, note = decode_producers(files.read(snapshot_path(path, at)))
        except CorruptSnapshot:
            continue
        mark = SegmentMark.decode(note)
        if mark is not None and segment.resume(mark, at, index_interval):
            return at, mark.position, table
    return segment.base_offset, 0, None


def _is_torn_off(segments: Sequence[Segment], index: int, end_offset: int, gapless_from: int | None) -> bool:
    """Whether a segment lost whole batches at its end, while the next one is still there."""
    if gapless_from is None or index + 1 == len(segments):
        return False
    return max(end_offset, gapless_from) < segments[index + 1].base_offset


def _reaches_into_the_next(segments: Sequence[Segment], index: int, end_offset: int) -> bool:
    """Whether a power cut brought back what was cut off a segment before the next one was made. The epochs of
    both together need not rise: only this one is a log."""
    return index + 1 < len(segments) and segments[index + 1].base_offset < end_offset


def _replay(loaded: Loaded, segment: Segment, batch: bytes, header: BatchHeader) -> None:
    if header.leader_epoch > loaded.epochs.latest:
        loaded.epochs.assign(header.leader_epoch, start_offset=header.base_offset)
    aborted = replay_producer(loaded.producers, batch, header)
    if aborted is not None:
        segment.add_aborted(aborted)


def replay_producer(table: ProducerTable, batch: bytes, header: BatchHeader) -> AbortedTxn | None:
    """Apply a stored batch to the table; what the transaction index must say of it."""
    if header.producer_id < 0:
        return None
    if not header.is_control:
        table.appended(header, header.base_offset, header.last_offset)
        return None
    completed = replay_marker(table, batch, header, header.last_offset)
    if completed is None:
        return None
    stable = table.last_stable_after(completed)
    table.complete(completed)
    if not completed.is_aborted:
        return None
    return AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)


def producers_at(files: Files, path: str, segments: Sequence[Segment], offset: int) -> ProducerTable:
    """The producers as of `offset`: the newest snapshot at or below it, and the batches since."""
    steps = replaying_producers(files, path, segments, offset)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            table: ProducerTable = end.value
            return table


def replaying_producers(
    files: Files, path: str, segments: Sequence[Segment], offset: int
) -> Generator[None, None, ProducerTable]:
    """`producers_at` in slices. The segments must be the log's own at each of them."""
    table, since = _newest_snapshot(files, path, offset)
    ends = [segment.base_offset for segment in segments[1:]] + [offset]
    for segment, end in list(zip(segments, ends, strict=False)):
        if segment.size == 0 or segment.base_offset >= offset or end <= since:
            continue
        try:
            yield from _replay_producers(table, segment, since, offset)
        except CorruptBatch:
            continue  # damage where nothing is cut: only a reader of it gets an error
    return table


def _replay_producers(table: ProducerTable, segment: Segment, since: int, offset: int) -> Iterator[None]:
    position = segment.locate(since)[0] if since > segment.base_offset else 0
    for count, found in enumerate(segment.scan(position, segment.size), 1):
        header = found.header
        if header.last_offset >= offset:
            break
        if header.producer_id >= 0 and header.base_offset >= since:
            replay_producer(table, segment.read_batch(found) if header.is_control else b"", header)
        if count % REPLAYED_PER_SLICE == 0:
            yield


def _newest_snapshot(files: Files, path: str, offset: int) -> tuple[ProducerTable, int]:
    for at in reversed(snapshot_offsets(files, path)):
        if at > offset:
            continue
        try:
            return decode_producers(files.read(snapshot_path(path, at)))[0], at
        except CorruptSnapshot:
            files.unlink(snapshot_path(path, at))
    return ProducerTable(), 0


# --- what an interrupted process left ---


def _finish_interrupted(files: Files, path: str) -> list[str]:
    """Remove temporary files, undo a compaction that was not yet decided, finish one that was (its `.swap`
    files are all there once no `.cleaned` is left). The names that remain."""
    names = files.listdir(path)
    marked = [name for name in names if name.endswith((DELETED, CLEANED, SWAP, ".tmp"))]
    if not marked:
        return names
    cleaned = [name for name in marked if name.endswith(CLEANED)]
    first_cleaned = min((int(name[:NAME_DIGITS]) for name in cleaned), default=None)
    for name in marked:
        undecided = (
            first_cleaned is not None and name.endswith(SWAP) and int(name[:NAME_DIGITS]) >= first_cleaned
        )
        if not name.endswith((CLEANED, SWAP)) or undecided:
            files.unlink(join(path, name))
    for name in cleaned:
        files.unlink(join(path, name))
    _finish_swaps(files, path)
    files.fsync_dir(path)
    return files.listdir(path)


def _finish_swaps(files: Files, path: str) -> None:
    names = files.listdir(path)
    for name in names:
        if not name.endswith(LOG + SWAP):
            continue
        base = int(name[:NAME_DIGITS])
        swap = Segment(files, path, base, size=files.size(join(path, name)), created_ms=0, suffix=SWAP)
        end = base
        for found in swap.scan(0, swap.size):
            end = found.header.next_offset
        for other in names:
            if other[:NAME_DIGITS].isdigit() and not other.endswith((SWAP, SNAPSHOT)):
                offset = int(other[:NAME_DIGITS])
                if base < offset < end:  # files of `base` itself are replaced, or were already
                    files.unlink(join(path, other))
    # the log goes last: until it does, a repeated start finds the swap again
    for name in sorted(names, key=lambda name: name.endswith(LOG + SWAP)):
        if name.endswith(SWAP):
            files.rename(join(path, name), join(path, name.removesuffix(SWAP)))


def _remove_stray_snapshots(files: Files, path: str, names: Sequence[str], recovery_point: int) -> None:
    """Remove snapshots of no segment, but for the newest, as each clean stop leaves one, and the newest that
    recovery may begin with."""
    snapshots = [name for name in names if _is_segment_file(name, SNAPSHOT)]
    if len(snapshots) < 2:
        return
    bases = {name[:NAME_DIGITS] for name in names if _is_segment_file(name, LOG)}
    kept = snapshots[-1:] + [name for name in snapshots if int(name[:NAME_DIGITS]) <= recovery_point][-1:]
    for name in snapshots:
        if name[:NAME_DIGITS] not in bases and name not in kept:
            files.unlink(join(path, name))


def _remove_orphans(files: Files, path: str, names: Sequence[str], bases: set[int]) -> None:
    """Remove index files without their log."""
    for name in names:
        for kind in SEGMENT_SUFFIXES:
            if kind != LOG and _is_segment_file(name, kind) and int(name[:NAME_DIGITS]) not in bases:
                files.unlink(join(path, name))


def _is_segment_file(name: str, kind: str) -> bool:
    return name.endswith(kind) and len(name) == NAME_DIGITS + len(kind) and name[:NAME_DIGITS].isdigit()


# --- the small files ---


def snapshot_path(path: str, offset: int) -> str:
    return join(path, segment_name(offset) + SNAPSHOT)


def snapshot_offsets(files: Files, path: str) -> list[int]:
    return [int(name[:NAME_DIGITS]) for name in files.listdir(path) if _is_segment_file(name, SNAPSHOT)]


def _remove_snapshots(files: Files, path: str) -> None:
    for offset in snapshot_offsets(files, path):
        files.unlink(snapshot_path(path, offset))


def write_snapshot(files: Files, path: str, offset: int, table: ProducerTable) -> None:
    write_replacing(files, snapshot_path(path, offset), table.encode())


def remove_segment_files(files: Files, segment: Segment) -> None:
    for kind in SEGMENT_SUFFIXES:
        files.unlink(segment.path(kind))


def _read_epochs(files: Files, path: str) -> EpochCache | None:
    try:
        return EpochCache(decode_epochs(files.read(join(path, EPOCHS))))
    except (FileNotFoundError, ValueError):
        return None


def read_topic_id(files: Files, path: str) -> UUID | None:
    try:
        text = files.read(join(path, METADATA)).decode("ascii")
        fields = dict(line.split(": ", 1) for line in text.splitlines() if line)
        return decode_id(fields["topic_id"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def encode_metadata(topic_id: UUID) -> bytes:
    """`partition.metadata` as Kafka writes it."""
    return f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()
