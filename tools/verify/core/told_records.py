"""The records of a topic of the brokers, out of the logs of its replicas.

Owns which replica's bytes are taken for which offsets. Does not own what the records say (tier_topics,
groups) or what is wrong with the logs (log_scan). Invariant: records come in the order of their offsets, each
offset once; what no replica has sound is among the holes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from tools.verify.core.batches import RunScanner
from tools.verify.core.heads import head
from tools.verify.core.lineage import Range, without
from tools.verify.core.records import BadRecords, Record, read_records
from tools.verify.core.stores import Gone, Listed, Source
from tools.verify.core.tables import CONTROL, Markers, Table

PIECE_BYTES: Final = 8 << 20
_SEGMENT: Final = re.compile(r"(?:.*/)?([0-9]{20})\.log", re.ASCII)


class Log(Protocol):
    """What a listing and the checkpoints say of a log."""

    @property
    def files(self) -> tuple[Listed, ...]: ...

    @property
    def high_watermark(self) -> int:
        """-1 without one."""
        ...

    @property
    def log_start(self) -> int:
        """-1 without one."""
        ...


class _Batch(NamedTuple):
    base: int
    end: int
    key: str
    position: int
    size: int
    is_control: bool


@dataclass(slots=True)
class Replica:
    """The sound batches of one replica."""

    source: Source
    batches: list[_Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    damaged: list[Range] = field(default_factory=list)
    """Offsets that should be there and are not sound."""


class ToldRecords:
    """Records of one partition of a topic; `replicas` are its logs, the most trusted first."""

    def __init__(self, replicas: Sequence[tuple[Source, Log]]) -> None:
        self.holes: list[Range] = []
        """Offsets that are in no replica; more are found while records are read."""
        self._parts: list[tuple[Range, Replica]] = []
        end = max((log.high_watermark for _, log in replicas), default=-1)
        wanted: list[Range] = []
        for number, (source, log) in enumerate(replicas):
            replica = read_replica(source, log)
            if number == 0:
                end = max(end, replica.end) if log.high_watermark < 0 else end
                wanted = [(replica.start, end)] if replica.start < end else []
            held = without([(replica.start, replica.end)], replica.damaged)
            left = without(wanted, held)
            self._parts += [(each, replica) for each in without(wanted, left)]
            wanted = left
        self.holes = wanted
        self._parts.sort(key=lambda part: part[0])

    def records(self) -> Iterator[Record]:
        """Yield data records in the order of their offsets. Raise SourceFailed."""
        for (first, end), replica in self._parts:
            for batch in replica.batches:
                if batch.base < end and first < batch.end and not batch.is_control:
                    yield from self._records(replica.source, batch, first, end)

    def _records(self, source: Source, batch: _Batch, first: int, end: int) -> Iterator[Record]:
        try:
            data = source.read(batch.key, batch.position, batch.size)
            found = read_records(data, head(data, 0))
        except (BadRecords, Gone):
            self.holes.append((max(batch.base, first), min(batch.end, end)))
            return
        for record in found:
            if first <= record.offset < end:
                yield record


def read_replica(source: Source, log: Log) -> Replica:
    """Return where the sound batches of a log lie. Raise SourceFailed."""
    found = Replica(source)
    files = sorted((int(name[1]), each) for each in log.files if (name := _SEGMENT.fullmatch(each.key)))
    first = files[0][0] if files else 0
    found.start = first
    found.end = found.start
    for number, (base, listed) in enumerate(files):
        limit = files[number + 1][0] if number + 1 < len(files) else -1
        scanner = RunScanner(listed.key, first=base, on_table=_collector(found.batches, listed.key))
        try:
            for start in range(0, listed.size, PIECE_BYTES):
                scanner.feed(source.read(listed.key, start, min(PIECE_BYTES, listed.size - start)))
        except Gone:
            found.damaged.append((base, limit if limit >= 0 else base))
        scanned = scanner.finish()
        last = found.batches[-1].end if found.batches else base
        for fault in scanned.faults:
            end = fault.end if fault.end >= 0 else limit
            if fault.first < end:
                found.damaged.append((fault.first, end))
        found.end = max(found.end, last, limit)
    if first < log.log_start <= found.end:
        found.start = log.log_start
    return found


def _collector(into: list[_Batch], key: str) -> Callable[[Table, Markers], None]:
    def collect(table: Table, _: Markers) -> None:
        columns = table.base, table.end, table.position, table.size, table.attributes
        for base, end, position, size, attributes in zip(*(each.tolist() for each in columns), strict=True):
            into.append(_Batch(base, end, key, position, size, bool(attributes & CONTROL)))

    return collect
