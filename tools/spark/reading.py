"""What a read of topics comes to: partitions, their offsets, and tasks that other processes can do.

Owns the choice between objects and brokers, and the rules of Spark's Kafka source for offsets, times and
lost data. Does not own options (options), Spark's classes (source) or where bytes lie (topic). Invariant: the
tasks of a read hold each of its offsets once; what an object holds is read there, from brokers only the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from protocol.errors import ErrorCode
from protocol.records import parse_header
from tools.client import Address, Client
from tools.spark.options import EARLIEST, LATEST, BadOption, Point, ReadOptions
from tools.topic_source import Aborted, BrokerSource, OffsetsGone
from tools.verify.core.lineage import without
from tools.verify.core.stores import Gone
from tools.verify.core.stretches import Stretch
from tools.verify.core.tables import CONTROL, TRANSACTIONAL
from tools.verify.core.topic import (
    ClusterBytes,
    Missing,
    NoSuchTopic,
    Part,
    TopicBytes,
    open_topic,
    read_part,
)
from tools.verify.core.topic_places import Damaged
from tools.verify.core.topic_transactions import Aborted as AbortedTransaction

T = TypeVar("T")
TopicPartition = tuple[str, int]
Ranges = Mapping[TopicPartition, tuple[int, int]]

DEADLINE_S: Final = 30.0


class DataLost(Exception):
    """Offsets that were asked for are gone. One line says which."""


class Task(NamedTuple):
    """Consecutive offsets of one partition that one process reads."""

    topic: str
    partition: int
    first: int
    end: int
    parts: tuple[Part, ...] = ()
    """Empty: it is read from brokers."""
    aborted: tuple[AbortedTransaction, ...] = ()


class Row(NamedTuple):
    """A batch of data, with the offsets of it that were asked for."""

    batch: memoryview
    header: Any
    first: int
    end: int


class Rows(NamedTuple):
    """Batches of data that lie together, with the offsets of them that were asked for."""

    stretch: Stretch
    first: int
    end: int


# --- brokers ---


class Brokers:
    """A running cluster, asked from code that does not await."""

    def __init__(self, bootstrap: str, *, read_committed: bool) -> None:
        self._addresses = [Address.parse(each) for each in bootstrap.split(",")]
        self._read_committed = read_committed
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._topics: dict[str, BrokerSource] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self.run(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def run(self, work: Awaitable[T]) -> T:
        return self._loop.run_until_complete(work)

    def client(self) -> Client:
        if self._client is None:
            self._client = self.run(self._made())
        return self._client

    async def _made(self) -> Client:
        return Client(self._addresses, deadline_s=DEADLINE_S)

    def names(self) -> list[str]:
        answer = self.run(self.client().refresh())
        return sorted(row.name for row in answer.topics if row.error_code == ErrorCode.none)

    def topic(self, name: str) -> BrokerSource:
        if name not in self._topics:
            source = BrokerSource(self.client(), name, read_committed=self._read_committed)
            self._topics[name] = self.run(source.open())
        return self._topics[name]

    def read(self, task: Task) -> Iterator[Row]:
        pieces = self.topic(task.topic).read(task.partition, task.first, task.end)
        try:
            while (piece := self.run(anext(pieces, None))) is not None:
                if piece.batch is not None:
                    yield Row(piece.batch, piece.header, max(piece.first, task.first), task.end)
        finally:
            self.run(pieces.aclose())


# --- planning ---


@dataclass(slots=True)
class Topics:
    """The topics of a read, as they are now."""

    options: ReadOptions
    objects: Mapping[str, TopicBytes]
    brokers: Brokers | None
    names: Sequence[str]

    def partitions(self) -> list[TopicPartition]:
        found = []
        for name in self.names:
            if self.brokers is not None:
                numbers: Sequence[int] = self.brokers.topic(name).partitions
            else:
                numbers = self.objects[name].partitions()
            if self.options.assigned is not None:
                wanted = self.options.assigned[name]
                if absent := sorted(set(wanted) - set(numbers)):
                    raise BadOption(f"assign: topic {name} has no partition {absent[0]}")
                numbers = wanted
            found += [(name, number) for number in numbers]
        return sorted(found)

    def bounds(self, name: str, partition: int) -> tuple[int, int]:
        if self.brokers is not None:
            return self.brokers.run(self.brokers.topic(name).bounds(partition))
        found = self.objects[name].partition(partition)
        return found.bounds.start, found.stable_end if self.options.read_committed else found.bounds.end

    def offset_at(self, name: str, partition: int, timestamp_ms: int) -> int | None:
        if self.brokers is not None:
            return self.brokers.run(self.brokers.topic(name).offset_at(partition, timestamp_ms))
        return self.objects[name].partition(partition).offset_at(timestamp_ms)

    def resolve(self, point: Point, which: str) -> dict[TopicPartition, int]:
        """Return the offset of each partition that a start or an end means."""
        partitions = self.partitions()
        if point.everywhere is None and set(point.each) != set(partitions):
            differs = sorted(set(point.each) ^ set(partitions))[0]
            state = "is missing" if differs in partitions else "is not read"
            raise BadOption(f"{which}: name each partition that is read: {differs[0]}-{differs[1]} {state}")
        return {each: self._resolve_one(point.of(*each), point.is_time, which, each) for each in partitions}

    def _resolve_one(self, value: int, is_time: bool, which: str, where: TopicPartition) -> int:
        if not is_time:
            if value not in (EARLIEST, LATEST):
                return value
            return self.bounds(*where)[value == LATEST]
        found = self.offset_at(*where, value)
        if found is not None:
            return found
        if which.startswith("starting") and not self.options.is_latest_without_match:
            raise BadOption(
                f"{which}: {where[0]}-{where[1]} has no record of {value} or later; "
                "startingOffsetsByTimestampStrategy=latest begins at its end then"
            )
        return self.bounds(*where)[1]

    def plan(self, ranges: Ranges) -> list[Task]:
        """Cut what is to be read into tasks."""
        wanted = {where: self._checked(where, *each) for where, each in sorted(ranges.items())}
        limit = self.options.task_bytes_max
        if (least := self.options.partitions_min) > len(wanted):
            whole = [self._parts(where, *each, None) for where, each in wanted.items()]
            limit = max(1, min(limit, sum(part.size for parts in whole for part in parts) // least))
        return [task for where, each in wanted.items() for task in self._tasks(where, *each, limit)]

    def _checked(self, where: TopicPartition, first: int, end: int) -> tuple[int, int]:
        if first >= end:
            return first, first
        start, stop = self.bounds(*where)
        if first < start or end > stop:
            self.lost(f"{where[0]}-{where[1]} has offsets {start} to {stop}, and {first} to {end} are wanted")
        return max(first, start), min(end, stop)

    def lost(self, what: str) -> None:
        """Raise DataLost, unless lost data is to be passed over."""
        if self.options.fail_on_data_loss:
            raise DataLost(f"data was lost: {what}; failOnDataLoss=false reads what there is")

    def _parts(self, where: TopicPartition, first: int, end: int, bytes_max: int | None) -> list[Part]:
        topic = self.objects.get(where[0])
        if topic is None or where[1] not in topic.partitions() or first >= end:
            return []
        partition = topic.partition(where[1])
        if self.options.read_committed:
            # Behind that, only a broker may have the marker that says what a transaction came to.
            end = min(end, partition.stable_end)
        return partition.parts(first, end, bytes_max=bytes_max)

    def _tasks(self, where: TopicPartition, first: int, end: int, limit: int) -> Iterator[Task]:
        parts = self._parts(where, first, end, limit)
        if self.brokers is not None:
            holes = without([(first, end)], [(part.first, part.end) for part in parts])
            yield from (Task(*where, *hole) for hole in holes)
        elif first < end:
            for hole in self.objects[where[0]].partition(where[1]).holes(first, end):
                self.lost(f"offsets {hole[0]} to {hole[1]} of {where[0]}-{where[1]} are in no place")
        for group in _grouped(parts, limit):
            low, high = group[0].first, group[-1].end
            aborted: Sequence[AbortedTransaction] = ()
            if self.options.read_committed:
                aborted = self.objects[where[0]].aborted(where[1], low, high)
            yield Task(*where, low, high, tuple(group), tuple(aborted))


def _grouped(parts: Iterable[Part], limit: int) -> Iterator[list[Part]]:
    """Put small parts that follow each other together."""
    group: list[Part] = []
    size = 0
    for part in parts:
        if group and (size + part.size > limit or group[-1].end != part.first):
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size
    if group:
        yield group


def open_topics(options: ReadOptions, brokers: Brokers | None) -> Topics:
    """Look what there is. Raise BadOption for topics that are not there, SourceFailed, Failure."""
    sources = options.sources()
    cluster = ClusterBytes(sources) if sources else None
    names: Sequence[str] = options.topics
    if options.pattern is not None:
        known = brokers.names() if brokers is not None else cluster.names() if cluster is not None else []
        names = [each for each in known if not each.startswith("__") and re.fullmatch(options.pattern, each)]
    if cluster is None:
        return Topics(options, {}, brokers, names)
    try:
        objects = cluster.open(names)
    except NoSuchTopic as error:
        if brokers is None:
            raise BadOption(str(error)) from None
        objects = {}
    return Topics(options, objects, brokers, names)


def with_brokers(options: ReadOptions, work: Callable[[Topics], T]) -> T:
    """Open the topics for one piece of work."""
    if options.bootstrap is None:
        return work(open_topics(options, None))
    with Brokers(options.bootstrap, read_committed=options.read_committed) as brokers:
        return work(open_topics(options, brokers))


# --- reading ---


def read_task(options: ReadOptions, task: Task) -> Iterator[Row | Rows]:
    """Yield the batches of data of a task. Raise DataLost, SourceFailed."""
    if not task.parts:
        yield from _from_brokers(options, task)
        return
    at = task.first
    filtered = Aborted(task.aborted)
    try:
        for part in task.parts:
            for whole in read_part(part):
                stretch = whole.rising_from(at)
                if len(stretch.starts):
                    at = int(stretch.last_offsets()[-1]) + 1
                    yield from _data(filtered, stretch, task)
    except (Damaged, Gone) as error:
        left = task._replace(first=max(at, task.first), parts=())
        yield from _elsewhere(options, left, filtered, error)


def _data(filtered: Aborted, stretch: Stretch, task: Task) -> Iterator[Row | Rows]:
    if not stretch.has(TRANSACTIONAL | CONTROL).any():
        has_records = stretch.counts() > 0
        yield Rows(stretch if has_records.all() else stretch.only(has_records), task.first, task.end)
        return
    for raw, _ in stretch.batches():
        header = parse_header(raw, 0)
        is_aborted = filtered.covers(header)
        if header.is_control:
            filtered.note_marker(raw, header)
        elif not is_aborted and header.count > 0:
            yield Row(raw, header, task.first, task.end)


def _from_brokers(options: ReadOptions, task: Task) -> Iterator[Row]:
    assert options.bootstrap is not None
    with Brokers(options.bootstrap, read_committed=options.read_committed) as brokers:
        at = task.first
        while at < task.end:
            try:
                yield from brokers.read(task._replace(first=at))
                return
            except OffsetsGone as gone:
                if options.fail_on_data_loss:
                    raise DataLost(f"data was lost: {task.topic}-{task.partition}: {gone}") from None
                at = gone.log_start


def _elsewhere(options: ReadOptions, left: Task, filtered: Aborted, error: Exception) -> Iterator[Row | Rows]:
    """Read the rest of a task whose objects have gone or are damaged since it was planned."""
    if options.bootstrap is not None:
        yield from _from_brokers(options, left)
        return
    partition = open_topic(options.sources(), left.topic).partition(left.partition)
    at = left.first
    while at < left.end:
        try:
            for stretch in partition.stretches(at, left.end):
                at = int(stretch.last_offsets()[-1]) + 1
                yield from _data(filtered, stretch, left)
            return
        except Missing as missing:
            if options.fail_on_data_loss:
                raise DataLost(f"data was lost: {missing}; {error}") from None
            at = missing.end
