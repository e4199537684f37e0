"""What there is to read, cut into tasks of about one size.

Owns units (what is read and judged as one) and tasks (what a process takes at once). Does not own the
listing (snapshot) or the reading (scan). Invariant: every listed object with batches is in exactly one unit,
every unit in one task; the cut depends on the listing alone, so that two engines and two runs agree.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from tools.verify.core.keys import StreamKey
from tools.verify.core.outcome import PlannedPart
from tools.verify.core.stores import Listed, Source
from tools.verify.core.tier_topics import ToldCopy, ToldSlice

LIMITLESS: Final = 1 << 62
WHOLE: Final = (0, LIMITLESS)
READ_BYTES: Final = 8 << 20
"""Of one request."""
UNIT_BYTES: Final = 256 << 10
"""A smaller unit counts as so many: whatever else there is to do for it takes as long as reading them."""
INDEX_OBJECTS: Final = 256
"""Tables that an index object of the WAL tier repeats, at most."""


class ColdUnit(NamedTuple):
    """A copy: its data and its index object, either of which may be missing."""

    topic_id: str
    partition: int
    base: int
    segment_id: str
    data: Listed | None
    index_object: Listed | None
    told: ToldCopy | None
    is_young: bool = False
    """It may be under way, and nobody told whether it is."""

    @property
    def size(self) -> int:
        return sum(each.size for each in (self.data, self.index_object) if each is not None)

    @property
    def name(self) -> str:
        return (self.data or self.index_object or Listed("", 0, 0)).key

    @property
    def identity(self) -> str:
        both = self.data, self.index_object
        files = "|".join(f"{each.key} {each.size} {each.modified_ms}" if each else "" for each in both)
        return f"{files}|{self.told[3:9] if self.told else ''}"


class WalUnit(NamedTuple):
    """An object of the WAL tier, or a seal."""

    stream: StreamKey
    seq: int
    listed: Listed
    told: tuple[ToldSlice, ...] | None
    """None: the topic about the tier says nothing of its slices."""

    @property
    def size(self) -> int:
        return self.listed.size

    @property
    def name(self) -> str:
        return self.listed.key

    @property
    def identity(self) -> str:
        told = "" if self.told is None else f"{crc32c(repr(self.told).encode()):08x}"
        return f"{self.listed.key} {self.listed.size} {self.listed.modified_ms}|{told}"


class WalIndexUnit(NamedTuple):
    """An index object of the WAL tier, held against those objects of its task that it repeats."""

    stream: StreamKey
    seq: int
    listed: Listed
    missing: tuple[int, ...]
    """Numbers of objects that should be there and are not: what it says of them explains what is missing."""
    is_first: bool
    """Whether this task is the one that tells what is wrong with the index object itself."""

    @property
    def size(self) -> int:
        return self.listed.size

    @property
    def name(self) -> str:
        return self.listed.key

    @property
    def identity(self) -> str:
        """Never the same: it is held against those of its objects that are read in the same run."""
        return ""


class LogUnit(NamedTuple):
    """The directory of a log, or whole segments of it, with the files as they were seen."""

    directory: int
    node: int
    name: str
    topic: str
    topic_id: str
    """As Kafka shows it, empty: the log does not say."""
    partition: int
    files: tuple[Listed, ...]
    """Of all segments. Keys below the data directory."""
    recovery_point: int
    high_watermark: int
    log_start: int
    """By the checkpoints, -1 without one."""
    is_live: bool
    """Its broker may be running, or was killed: the tail may be torn."""
    bases: tuple[int, int] = WHOLE
    """The segments to read: those whose base offsets are in [first, end)."""

    @property
    def size(self) -> int:
        return sum(each.size for each in self.own_files())

    def own_files(self) -> list[Listed]:
        """Return the files of the segments to read; those of the whole log go with the last of them."""
        first, end = self.bases
        found = []
        for each in self.files:
            base = each.key.rpartition("/")[2][:20]
            at = int(base) if len(base) == 20 and base.isdecimal() else LIMITLESS - 1
            if first <= at < end:
                found.append(each)
        return found

    @property
    def is_last(self) -> bool:
        return self.bases[1] >= LIMITLESS

    @property
    def identity(self) -> str:
        about = f"{self.directory}:{self.node}:{self.name}:{self.topic_id}:{self.bases[0]}:{self.bases[1]}:"
        if self.is_last:
            about += f"{self.recovery_point} {self.high_watermark} {self.log_start} {self.is_live}"
        else:
            about += f"{self.is_live and self.recovery_point < self.bases[1]}"
        return about + "".join(f"|{each.key} {each.size} {each.modified_ms}" for each in self.own_files())


Unit = ColdUnit | WalUnit | WalIndexUnit | LogUnit


class Choice(NamedTuple):
    """Which data of a task is read."""

    share: float = 1.0
    """Of what may be left out."""
    seed: int = 0
    topics: frozenset[str] = frozenset()
    """Ids, empty: all. Slices of others are passed over."""

    def takes(self, name: str) -> bool:
        """Whether what has this name is in the sample, the same for the same seed."""
        return self.share >= 1.0 or random.Random(f"{self.seed} {name}").random() < self.share


EVERYTHING: Final = Choice()


class Task(NamedTuple):
    number: int
    kind: str
    """`cold`, `wal` or `data`."""
    source: Source
    cluster_id: str
    units: tuple[Unit, ...]
    size: int
    choice: Choice = EVERYTHING


def unit_place(unit: Unit) -> str:
    return f"{unit.directory}:{unit.name}" if isinstance(unit, LogUnit) else unit.name


def weight_of(task: Task) -> int:
    """Return how many bytes would take as long as the task does."""
    return sum(max(unit.size, UNIT_BYTES) for unit in task.units)


def requests_of(unit: Unit) -> int:
    """Return how many requests the reading of a unit takes at a store."""
    match unit:
        case ColdUnit():
            data = -(-unit.data.size // READ_BYTES) if unit.data else 0
            return data + (unit.index_object is not None)
        case LogUnit():
            return sum(-(-each.size // READ_BYTES) for each in unit.own_files())
        case _:
            return max(1, -(-unit.size // READ_BYTES))


class _Drafts:
    """Tasks of one kind, filled one after another."""

    def __init__(self, kind: str, source: Source, cluster_id: str, size_max: int) -> None:
        self._kind = kind
        self._source = source
        self._cluster_id = cluster_id
        self._size_max = size_max
        self._units: list[Unit] = []
        self._size = self._weight = 0
        self.done: list[Task] = []

    def add(self, unit: Unit) -> None:
        weight = max(unit.size, UNIT_BYTES)
        if self._units and self._weight + weight > self._size_max:
            self.close()
        self._units.append(unit)
        self._size += unit.size
        self._weight += weight

    def close(self) -> None:
        if self._units:
            units = tuple(self._units)
            self.done.append(Task(-1, self._kind, self._source, self._cluster_id, units, self._size))
        self._units = []
        self._size = self._weight = 0


def cold_tasks(units: Iterable[ColdUnit], source: Source, cluster_id: str, size_max: int) -> list[Task]:
    drafts = _Drafts("cold", source, cluster_id, size_max)
    for unit in sorted(units):
        drafts.add(unit)
    drafts.close()
    return drafts.done


def wal_tasks(
    objects: Mapping[StreamKey, Sequence[WalUnit]],
    indexes: Mapping[StreamKey, Sequence[WalIndexUnit]],
    source: Source,
    cluster_id: str,
    size_max: int,
) -> list[Task]:
    """Return tasks of consecutive objects of one stream each, with the index objects that repeat them."""
    found: list[Task] = []
    for stream in sorted({*objects, *indexes}):
        drafts = _Drafts("wal", source, cluster_id, size_max)
        for unit in sorted(objects.get(stream, ())):
            drafts.add(unit)
        drafts.close()
        left = {each.seq: each for each in indexes.get(stream, ())}
        tasks = []
        told: set[int] = set()
        for task in drafts.done:
            seqs = [unit.seq for unit in task.units if isinstance(unit, WalUnit)]
            about = [
                each._replace(is_first=seq not in told)
                for seq, each in sorted(left.items())
                if seq <= max(seqs) and min(seqs) < seq + INDEX_OBJECTS
            ]
            told |= {each.seq for each in about}
            units = (*task.units, *about)
            tasks.append(task._replace(units=units, size=task.size + sum(each.size for each in about)))
        alone = tuple(each._replace(is_first=True) for seq, each in sorted(left.items()) if seq not in told)
        if alone:
            size = sum(each.size for each in alone)
            tasks.append(Task(-1, "wal", source, cluster_id, alone, size))
        found += tasks
    return _joined(found, size_max)


def _joined(tasks: Iterable[Task], size_max: int) -> list[Task]:
    """Put small tasks of neighbouring streams together."""
    found: list[Task] = []
    weight = 0
    for task in tasks:
        weight += weight_of(task)
        if found and weight <= size_max:
            last = found[-1]
            found[-1] = last._replace(units=last.units + task.units, size=last.size + task.size)
        else:
            found.append(task)
            weight = weight_of(task)
    return found


def log_tasks(units: Iterable[LogUnit], sources: Sequence[Source], size_max: int) -> list[Task]:
    found: list[Task] = []
    by_directory: dict[int, _Drafts] = {}
    for unit in sorted(units):
        drafts = by_directory.setdefault(
            unit.directory, _Drafts("data", sources[unit.directory], "", size_max)
        )
        drafts.add(unit)
    for _, drafts in sorted(by_directory.items()):
        drafts.close()
        found += drafts.done
    return found


def numbered(tasks: Iterable[Task], choice: Choice = EVERYTHING) -> list[Task]:
    """Number the tasks, the largest first, so that no engine ends with a long one."""
    ordered = sorted(tasks, key=lambda task: (-weight_of(task), task.kind, unit_place(task.units[0])))
    return [task._replace(number=number, choice=choice) for number, task in enumerate(ordered)]


def parts_of(tasks: Iterable[Task]) -> tuple[PlannedPart, ...]:
    """Return what the tasks read, by kind."""
    totals: dict[str, list[int]] = {}
    for task in tasks:
        total = totals.setdefault(task.kind, [0, 0, 0])
        for unit in task.units:
            total[0] += _objects(unit)
            total[1] += unit.size
            total[2] += requests_of(unit)
    return tuple(PlannedPart(kind, *total) for kind, total in sorted(totals.items()))


def _objects(unit: Unit) -> int:
    match unit:
        case ColdUnit():
            return sum(each is not None for each in (unit.data, unit.index_object))
        case LogUnit():
            return len(unit.own_files())
        case _:
            return 1
