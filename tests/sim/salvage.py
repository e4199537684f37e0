"""Owns the second opinion on a disk: how far each log can be read, worked out from the bytes alone.

A careful reader that shares nothing with the broker's own recovery but the batch format, so that the verdict
on what a crash may take does not depend on the code it judges.

Invariant: every offset below a log's readable end was in a whole, valid batch, in order and without a gap
between segments.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from protocol import records
from protocol.errors import CorruptBatch
from protocol.records import BatchHeader
from tests.sim.history import TopicPartition

_LOG_DIRECTORY = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<index>\d+)")


class TornFiles:
    """The files of which a power cut took something, for as long as no life has made others of them."""

    def __init__(self) -> None:
        self._torn: dict[str, bytes] = {}

    def whole(self, before: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files that held all that was written to them, of what the disk held before a crash."""
        return {path: data for path, data in before.items() if self._torn.get(path) != data}

    def note(self, whole: Mapping[str, bytes], left: Mapping[str, bytes]) -> None:
        """Remember what the crash left of them."""
        self._torn = {path: data for path, data in left.items() if whole.get(path) != data}


def segments(
    snapshot: Mapping[str, bytes], log_dirs: Sequence[str]
) -> dict[TopicPartition, list[tuple[str, int, bytes]]]:
    """(path, base offset, bytes) of every segment of every log, in order."""
    found: dict[TopicPartition, list[tuple[str, int, bytes]]] = {}
    for path, data in sorted(snapshot.items()):
        named = _segment_at(path)
        if named is not None and named[0] in log_dirs:
            found.setdefault(named[1], []).append((path, named[2], data))
    return found


@lru_cache(maxsize=8192)
def _segment_at(path: str) -> tuple[str, TopicPartition, int] | None:
    """The directory of logs, the partition and the base offset of a segment's path; None for other files."""
    directory, name = posixpath.split(path)
    above, log = posixpath.split(directory)
    match = _LOG_DIRECTORY.fullmatch(log)
    if match is None or not name.endswith(".log"):
        return None
    return above, (match["topic"], int(match["index"])), int(name.removesuffix(".log"))


def readable_ends(
    snapshot: Mapping[str, bytes], log_dirs: Sequence[str], whole: Mapping[str, bytes] | None = None
) -> dict[TopicPartition, int]:
    """`whole` is what the files held before a power cut: a segment that is still so lost no tail, and if the
    next one begins later, then because compaction took what was between."""
    return {tp: _readable_end(parts, whole or {}) for tp, parts in segments(snapshot, log_dirs).items()}


def kept_ends(
    before: Mapping[str, bytes],
    left: Mapping[str, bytes],
    log_dirs: Sequence[str],
    whole: Mapping[str, bytes] | None = None,
) -> dict[TopicPartition, int]:
    """Up to where each log that a crash left is the one that was there before. A cut of a file that was not
    synced may be undone: what had been cut off is there again, in place of what was written since."""
    found = readable_ends(left, log_dirs, whole)
    had = segments(before, log_dirs)
    for tp, parts in segments(left, log_dirs).items():
        if tp in had:
            end = _readable_end(had[tp], whole or {})
            found[tp] = min(found[tp], end, *_parted([*_batches(had[tp])], [*_batches(parts)]))
    return found


def _parted(one: Sequence[BatchHeader], other: Sequence[BatchHeader]) -> Iterator[int]:
    """Offsets from which on two logs are of different leader epochs."""
    mine = iter(one)
    at = next(mine, None)
    for header in other:
        while at is not None and at.next_offset <= header.base_offset:
            at = next(mine, None)
        if at is None:
            return
        if at.base_offset < header.next_offset and at.leader_epoch != header.leader_epoch:
            yield max(at.base_offset, header.base_offset)


def _batches(parts: list[tuple[str, int, bytes]]) -> Iterator[BatchHeader]:
    """Every valid batch of a log, up to the first in a segment that is none."""
    end = 0
    for _, base, data in parts:
        end = max(base, end)
        for header in _valid(data, end):
            yield header
            end = header.next_offset


def _readable_end(parts: list[tuple[str, int, bytes]], whole: Mapping[str, bytes]) -> int:
    """Where a careful reader stops: at the first byte that is not part of a valid batch, or at a gap."""
    end = parts[0][1]
    is_whole = False
    for path, base, data in parts:
        if base > end and not is_whole:
            return end
        end, is_whole = max(base, end), whole.get(path) == data
        size = 0
        for header in _valid(data, end):
            end = header.next_offset
            size += header.size
        if size < len(data):
            return end
    return end


def _valid(data: bytes, end: int) -> Iterator[BatchHeader]:
    """The batches of a segment one after the other, the first of them at `end` or above, up to the first
    byte that is not part of a valid one."""
    at = 0
    while len(data) - at >= records.HEADER_SIZE:
        try:
            header = records.parse_header(data, at)
        except CorruptBatch:
            return
        if header.size < records.HEADER_SIZE or at + header.size > len(data) or header.base_offset < end:
            return
        if not records.crc_ok(data, at, header):
            return
        yield header
        end = header.next_offset
        at += header.size
