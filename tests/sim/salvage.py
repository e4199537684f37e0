"""Owns the second opinion on a disk: how far each log can be read, worked out from the bytes alone.

A careful reader that shares nothing with the broker's own recovery but the batch format, so that the verdict
on what a crash may take does not depend on the code it judges.

Invariant: every offset below a log's readable end was in a whole, valid batch, in order and without a gap
between segments.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from protocol import records
from protocol.errors import CorruptBatch
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
        directory, name = posixpath.split(path)
        above, log = posixpath.split(directory)
        match = _LOG_DIRECTORY.fullmatch(log)
        if above not in log_dirs or match is None or not name.endswith(".log"):
            continue
        tp = (match["topic"], int(match["index"]))
        found.setdefault(tp, []).append((path, int(name.removesuffix(".log")), data))
    return found


def readable_ends(
    snapshot: Mapping[str, bytes], log_dirs: Sequence[str], whole: Mapping[str, bytes] | None = None
) -> dict[TopicPartition, int]:
    """`whole` is what the files held before a power cut: a segment that is still so lost no tail, and if the
    next one begins later, then because compaction took what was between."""
    return {tp: _readable_end(parts, whole or {}) for tp, parts in segments(snapshot, log_dirs).items()}


def _readable_end(parts: list[tuple[str, int, bytes]], whole: Mapping[str, bytes]) -> int:
    """Where a careful reader stops: at the first byte that is not part of a valid batch, or at a gap."""
    end = parts[0][1]
    is_whole = False
    for path, base, data in parts:
        if base > end and not is_whole:
            return end
        end, is_whole = max(base, end), whole.get(path) == data
        at = 0
        while at < len(data):
            if len(data) - at < records.HEADER_SIZE:
                return end
            try:
                header = records.parse_header(data, at)
            except CorruptBatch:
                return end
            if header.size < records.HEADER_SIZE or at + header.size > len(data) or header.base_offset < end:
                return end
            if not records.crc_ok(data, at, header):
                return end
            end = header.next_offset
            at += header.size
    return end
