"""A topic's batches without a broker, from a store, from data directories, or from both.

Owns which place is read at which offset, where a log starts and ends, and offsets by time. Does not own the
places (topic_places), transactions (topic_transactions) or what is done with batches. Invariant: batches come
in the order of their offsets, each once, and only those of the newest leader that stored these offsets.

Nothing is written and nobody is asked: what brokers do meanwhile is seen when the cluster is opened anew.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tools.verify.core.directory import Directory, Log
from tools.verify.core.heads import HEAD_SIZE, head
from tools.verify.core.kafka_files import time_entries
from tools.verify.core.keys import TIER, TierData
from tools.verify.core.layouts import OFFSETS, TIMES
from tools.verify.core.lineage import Claim, Lineage, Range, without
from tools.verify.core.meta import Meta, read_meta
from tools.verify.core.records import BadRecords, read_records
from tools.verify.core.stores import FileSource, Gone, Source
from tools.verify.core.stretches import RawBatch, Stretch
from tools.verify.core.tier_topics import COPY_FINISHED, ColdTold, ToldCopy, tier_partition
from tools.verify.core.topic_places import (
    COLD,
    LOCAL,
    Damaged,
    LocalReplica,
    Place,
    cold_places,
    local_replica,
    positions_in,
    read_directories,
    section,
    wal_places,
    walk_sound,
    walk_stretches,
)
from tools.verify.core.topic_transactions import Aborted, Transactions, fold_transactions

COLD_TOPIC: Final = "__remote_log_metadata"
LIMITLESS: Final = 1 << 62
RANKS: Final = {LOCAL: 0, COLD: 1}
"""Which tier is read first where several hold the same; the WAL tier last, whose objects are small."""


class NoSuchTopic(Exception):
    """Nothing is known of a topic of this name. One line says so."""


class Missing(Exception):
    """Offsets between log start and end are in no place that can be read. One line says which."""

    def __init__(self, what: str, first: int, end: int, why: str = "") -> None:
        super().__init__(f"{what}: offsets {first} to {end} are in no place{why and f' ({why})'}")
        self.first = first
        self.end = end


class Bounds(NamedTuple):
    start: int
    end: int
    """Exclusive: what is committed, as far as that can be known without a broker."""


class Part(NamedTuple):
    """Consecutive offsets, and the bytes of one place that hold them; may be sent to another process."""

    source: Source
    key: str
    position: int
    size: int
    first: int
    end: int


def read_part(part: Part) -> Iterator[Stretch]:
    """Yield the batches that hold offsets of the part. Raise Damaged, Gone, SourceFailed."""
    for whole in walk_stretches(part.source, part.key, part.position, part.size):
        stretch = whole.before(part.end)
        is_end = len(stretch.starts) < len(whole.starts)
        below = stretch.last_offsets() < part.first
        if below.any():
            stretch = stretch.only(~below)
        if len(stretch.starts):
            yield stretch
        if is_end:
            return


class _Link(NamedTuple):
    """Offsets of a partition and the place where they are read."""

    first: int
    end: int
    place: Place


class PartitionBytes:
    """One partition, as it was when the cluster was opened."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[LocalReplica],
        places: Sequence[Place],
        *,
        in_sync: Sequence[int] | None,
        moved_start: int,
        is_compacted: bool,
    ) -> None:
        self._name = name
        self.is_compacted = is_compacted
        self._places = [*(place for replica in replicas for place in replica.places), *places]
        self._lineage = Lineage(
            Claim(place.authority, place.authority_start, *run)
            for place in self._places
            for run in place.runs
        )
        self._indexes: dict[str, tuple[list[int], list[int]]] = {}
        self._transactions: Transactions | None = None
        self.bounds = self._bounds(replicas, places, in_sync, moved_start)
        self._chain = self._links({})

    def _bounds(
        self,
        replicas: Sequence[LocalReplica],
        places: Sequence[Place],
        in_sync: Sequence[int] | None,
        moved_start: int,
    ) -> Bounds:
        covered = self._lineage.covered()
        cold = [place for place in places if place.tier == COLD]
        told = [moved_start]
        if replicas and not cold:
            told.append(max(replicas, key=lambda each: _authority(each.places)).first)
        if not covered:
            start = max(0, *told, *(each.log_start for each in replicas))
            return Bounds(start, start)
        told += [place.log_start for place in self._places]
        start = max(*told, covered[0][0])
        by_node = {replica.node: replica for replica in replicas}
        ends = [place.end for place in cold]
        if in_sync and all(node in by_node for node in in_sync):
            ends.append(min(by_node[node].end for node in in_sync))
        elif replicas and in_sync is None:
            ends.append(min(replica.end for replica in replicas))
        else:
            ends.append(max((place.end for place in places), default=-1))
        # What a watermark says is committed, be it there or not; the rest only as far as it is there.
        committed = [each.high_watermark for each in replicas]
        return Bounds(start, max(start, *committed, min(max(ends), covered[-1][1])))

    def to_its_end(self) -> Bounds:
        """Take in what is there above what is known to be committed too; return the new bounds."""
        covered = self._lineage.covered()
        if covered and covered[-1][1] > self.bounds.end:
            self.bounds = Bounds(self.bounds.start, covered[-1][1])
            self._chain = self._links({})
        return self.bounds

    def _links(self, unread: Mapping[str, Sequence[Range]]) -> list[_Link]:
        """Return where each offset between start and end is read, in their order. `unread`: the offsets that
        a file or object does not give."""
        waiting: list[tuple[int, int, int, int]] = []
        for number, place in enumerate(self._places):
            rank = RANKS.get(place.tier, len(RANKS))
            for run in place.runs:
                for first, end in without(self._lineage.counting(*run), unread.get(place.key, ())):
                    waiting.append((first, rank, -end, number))
        waiting.sort(reverse=True)
        open_: list[tuple[int, int, int]] = []
        found: list[_Link] = []
        at, stop = self.bounds
        while at < stop:
            while waiting and waiting[-1][0] <= at:
                _, rank, end, number = waiting.pop()
                heapq.heappush(open_, (rank, end, number))
            while open_ and -open_[0][1] <= at:
                heapq.heappop(open_)
            if open_:
                _, end, number = open_[0]
                place = self._places[number]
                if found and found[-1].place is place and found[-1].end == at:
                    found[-1] = found[-1]._replace(end=min(-end, stop))
                else:
                    found.append(_Link(at, min(-end, stop), place))
                at = -end
            elif waiting:
                at = waiting[-1][0]
            else:
                break
        return found

    def holes(self, start: int, end: int) -> list[Range]:
        """Return the offsets within the bounds that are in no place, though no compaction explains it."""
        if self.is_compacted:
            return []
        low, high = max(start, self.bounds.start), min(end, self.bounds.end)
        return without([(low, high)], [(link.first, link.end) for link in self._chain])

    def parts(self, start: int, end: int, *, bytes_max: int | None = None) -> list[Part]:
        """Return what is to be read for these offsets; none much larger than `bytes_max`, where an index
        allows."""
        found: list[Part] = []
        for link in self._chain:
            first, last = max(start, link.first), min(end, link.end)
            if first < last:
                found += self._cut(link.place, first, last, bytes_max)
        return found

    def batches(self, start: int, end: int) -> Iterator[RawBatch]:
        """Yield what `stretches` does, batch by batch."""
        for stretch in self.stretches(start, end):
            yield from stretch.batches()

    def stretches(self, start: int, end: int) -> Iterator[Stretch]:
        """Yield whole batches, control batches too, that hold these offsets; of damaged ones another copy.

        Raise Missing where there is none; whoever goes on behind it gets what is sound there.
        """
        at, end = max(start, self.bounds.start), min(end, self.bounds.end)
        unread: dict[str, list[Range]] = defaultdict(list)
        sound: dict[str, int] = {}
        links, why = self._chain, ""
        ends = [link.end for link in links]
        while at < end:
            number = bisect_right(ends, at)
            link = links[number] if number < len(links) else None
            stop = end if link is None else min(link.first, end)
            if at < stop:
                if not self.is_compacted or why:
                    raise Missing(self._name, at, stop, why)
                at = stop
                continue
            assert link is not None
            try:
                begin = sound.get(link.place.key, 0)
                for part in self._cut(link.place, at, min(link.end, end), None, begin):
                    for stretch in read_part(part):
                        later = stretch.rising_from(at)
                        if len(later.starts):
                            at = int(later.last_offsets()[-1]) + 1
                            yield later
                at = max(at, min(link.end, end))
            except Gone as error:
                why = str(error)
                unread[link.place.key].append((at, LIMITLESS))
            except Damaged as error:
                why = str(error)
                following = _next_sound(link.place, error)
                if following is not None:
                    sound[link.place.key] = following.head.position
                behind = link.place.end if following is None else following.head.base_offset
                if behind <= at and following is not None:
                    continue  # what is damaged lies below
                unread[link.place.key].append((at, max(at + 1, behind)))
            else:
                continue
            links = self._links(unread)
            ends = [each.end for each in links]

    # --- transactions ---

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """Return the aborted transactions that have offsets there, in the order of their markers."""
        found = self._folded().aborted
        return [each for each in found if each.last_offset >= start and each.first_offset < end]

    @property
    def stable_end(self) -> int:
        """Where the first transaction that is still open begins, or the end."""
        return max(self.bounds.start, min([self.bounds.end, *self._folded().open.values()]))

    def _folded(self) -> Transactions:
        if self._transactions is None:
            links = [(link.place, link.first, link.end) for link in self._chain]
            self._transactions = fold_transactions(links, self.bounds.start)
        return self._transactions

    # --- time ---

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset of a record of that time or later; None without one."""
        for link in self._chain:
            begin = self._not_before(link, timestamp_ms)
            if begin is None:
                continue
            for batch in self.batches(begin, link.end):
                if batch.head.max_timestamp < timestamp_ms:
                    continue
                try:
                    for record in read_records(batch.data, batch.head):
                        if record.timestamp >= timestamp_ms and record.offset >= begin:
                            return record.offset
                except BadRecords:
                    continue
        return None

    def _not_before(self, link: _Link, timestamp_ms: int) -> int | None:
        """Return from where on a record of that time may be in there; None: nowhere."""
        place = link.place
        if place.segment is None:
            return link.first
        if place.segment.head is not None and place.segment.head.max_timestamp_ms < timestamp_ms:
            return None
        entries = time_entries(section(place, TIMES))
        times = entries.first.tolist()
        if not times or times != sorted(times):
            return link.first
        at = bisect_left(times, timestamp_ms)
        if at == 0:
            return link.first
        return max(link.first, int(entries.second[at - 1]) + place.segment.base)

    # --- bytes ---

    def _cut(
        self, place: Place, first: int, end: int, bytes_max: int | None, begin: int = 0
    ) -> Iterator[Part]:
        position, stop = place.position, place.position + place.size
        if position < begin < stop:
            position = begin
        is_whole = first <= place.first and end >= place.end
        if place.segment is None or (is_whole and (bytes_max is None or place.size <= bytes_max)):
            yield Part(place.source, place.key, position, stop - position, first, end)
            return
        offsets, positions = self._index(place)
        before = bisect_right(offsets, first) - 1
        if before >= 0:
            position = max(position, positions[before])
        after = bisect_left(offsets, end) + 1
        if after < len(positions):
            stop = min(stop, positions[after])
        if bytes_max is not None:
            for where in positions[max(before, 0) : after]:
                if where - position < bytes_max or stop - where < bytes_max // 4:
                    continue
                data = place.source.read(place.key, where, HEAD_SIZE)
                if len(data) < HEAD_SIZE or not first < (base := head(data, 0).base_offset) < end:
                    continue
                yield Part(place.source, place.key, position, where - position, first, base)
                position, first = where, base
        yield Part(place.source, place.key, position, stop - position, first, end)

    def _index(self, place: Place) -> tuple[list[int], list[int]]:
        assert place.segment is not None
        if place.key not in self._indexes:
            found = positions_in(section(place, OFFSETS), place.segment.base)
            self._indexes[place.key] = found
        return self._indexes[place.key]


def _next_sound(place: Place, damage: Damaged) -> RawBatch | None:
    """Return the first sound batch behind the damage, as far as lengths lead there."""
    if damage.following < 0:
        return None
    size = place.position + place.size - damage.following
    try:
        return next(walk_sound(place.source, place.key, damage.following, size), None)
    except Gone:
        return None


def _authority(places: Sequence[Place]) -> int:
    return max((place.authority for place in places), default=-1)


class TopicBytes:
    """One topic, as it was when the cluster was opened."""

    def __init__(
        self,
        name: str,
        topic_id: str,
        cluster_id: str,
        configs: Mapping[str, str],
        partitions: Mapping[int, PartitionBytes],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        """As Kafka shows it, empty if no place says it."""
        self.cluster_id = cluster_id
        self.configs = configs
        self._partitions = partitions

    def partitions(self) -> list[int]:
        return sorted(self._partitions)

    def partition(self, number: int) -> PartitionBytes:
        return self._partitions[number]

    def bounds(self, partition: int) -> Bounds:
        return self._partitions[partition].bounds

    def batches(self, partition: int, start: int, end: int) -> Iterator[RawBatch]:
        return self._partitions[partition].batches(start, end)

    def aborted(self, partition: int, start: int, end: int) -> list[Aborted]:
        return self._partitions[partition].aborted(start, end)


def open_topic(sources: Sequence[Source], topic: str) -> TopicBytes:
    """Open one topic. Raise NoSuchTopic, SourceFailed."""
    return ClusterBytes(sources).open([topic])[topic]


class ClusterBytes:
    """A store, data directories, or both, as they are listed now."""

    def __init__(self, sources: Sequence[Source]) -> None:
        stores = [each for each in sources if not (isinstance(each, FileSource) and not each.is_store)]
        if len(stores) > 1:
            raise ValueError("more than one store")
        self._store = stores[0] if stores else None
        directories = [each for each in sources if each is not self._store]
        # Metadata first: what it says of the past is still so when the rest is listed.
        self._meta: Meta | None = None
        if self._store is not None:
            meta = read_meta(self._store)
            self._meta = meta if meta.is_there else None
        self._directories = read_directories(directories)
        self._told: tuple[TopicBytes, dict[int, tuple[ColdTold, bool]]] | None = None

    @property
    def cluster_id(self) -> str:
        if self._meta is not None and self._meta.state.cluster_id:
            return self._meta.state.cluster_id
        return next((each.properties.get("cluster.id", "") for _, each in self._directories), "")

    def names(self) -> list[str]:
        """Return the names of all topics of which something is known."""
        found = {log.topic for _, _, log in self._logs()}
        if self._meta is not None:
            found = {topic.name for topic in self._meta.state.topics.values()}
        return sorted(found)

    def topic_ids(self) -> dict[str, str]:
        """Return the id of each topic by its name, without those of which none is known."""
        found = {name: self._id_of(name) for name in self.names()}
        return {name: topic_id for name, topic_id in found.items() if topic_id}

    def open(self, names: Iterable[str]) -> dict[str, TopicBytes]:
        """Open topics. Raise NoSuchTopic, SourceFailed."""
        ids = {name: self._id_of(name) for name in names}
        slices: Mapping[tuple[str, int], list[Place]] = {}
        if self._store is not None:
            slices = wal_places(self._store, [each for each in ids.values() if each])
        return {name: self._open(name, topic_id, slices) for name, topic_id in ids.items()}

    def _id_of(self, name: str) -> str:
        if self._meta is not None:
            topic = self._meta.state.named(name)
            if topic is None:
                raise NoSuchTopic(
                    f"topic {name} is not one of the {len(self._meta.state.topics)} in the store"
                )
            return topic.topic_id
        logs = [log for _, _, log in self._logs() if log.topic == name]
        if not logs:
            raise NoSuchTopic(f"topic {name} is not there: no metadata and no data directory has it")
        return next((log.topic_id for log in logs if log.topic_id), "")

    def _logs(self) -> Iterator[tuple[Source, Directory, Log]]:
        for source, directory in self._directories:
            for log in directory.logs:
                yield source, directory, log

    def _open(self, name: str, topic_id: str, slices: Mapping[tuple[str, int], list[Place]]) -> TopicBytes:
        replicas: dict[int, list[LocalReplica]] = defaultdict(list)
        for source, directory, log in self._logs():
            if log.topic == name and log.topic_id in ("", topic_id):
                replica = local_replica(source, directory, log)
                if replica is not None:
                    replicas[log.partition].append(replica)
        places: dict[int, list[Place]] = defaultdict(list)
        for (each, number), found in slices.items():
            if each == topic_id:
                places[number] += found
        moved: dict[int, int] = {}
        if self._store is not None and topic_id and name != COLD_TOPIC:
            for key, place in cold_places(self._store, f"{TIER}{topic_id}/", self._told_copy):
                told = self._told_of(topic_id, key.partition)
                if told is None or told.has(key.segment_id):
                    places[key.partition].append(place)
                if told is not None:
                    moved[key.partition] = told.moved_start
        in_sync: dict[int, Sequence[int] | None] = defaultdict(lambda: None)
        numbers = {*replicas, *places}
        configs: Mapping[str, str] = {}
        if self._meta is not None:
            topic = self._meta.state.topics[topic_id]
            numbers = set(range(len(topic.partitions)))
            in_sync |= {number: each.isr for number, each in enumerate(topic.partitions)}
            configs = self._meta.state.topic_config(name)
        is_compacted = name.startswith("__") or "compact" in configs.get("cleanup.policy", "")
        partitions = {
            number: PartitionBytes(
                f"{name}-{number}",
                replicas[number],
                places[number],
                in_sync=in_sync[number],
                moved_start=moved.get(number, -1),
                is_compacted=is_compacted,
            )
            for number in sorted(numbers)
        }
        return TopicBytes(name, topic_id, self.cluster_id, configs, partitions)

    # --- what the brokers say of the cold tier ---

    def _told_copy(self, copy: TierData) -> ToldCopy | None:
        told = self._told_of(copy.topic_id, copy.partition)
        return told.copies.get(copy.segment_id) if told is not None else None

    def _told_of(self, topic_id: str, partition: int) -> _ToldCopies | None:
        """Return what the brokers' topic says of a partition's copies; None where that cannot be read."""
        if self._told is None:
            try:
                self._told = self.open([COLD_TOPIC])[COLD_TOPIC], {}
            except NoSuchTopic:
                return None
        topic, folded = self._told
        numbers = topic.partitions()
        if not numbers:
            return None
        number = tier_partition(topic_id, partition, len(numbers))
        if number not in folded:
            folded[number] = _fold_told(topic.partition(number))
        told, is_whole = folded[number]
        states = {
            copy.segment_id: copy
            for copy in told.copies().values()
            if (copy.topic_id, copy.partition) == (topic_id, partition)
        }
        return _ToldCopies(states, is_whole, told.moved_starts().get((topic_id, partition), -1))


class _ToldCopies(NamedTuple):
    copies: Mapping[str, ToldCopy]
    is_whole: bool
    """Whether all that was told could be read."""
    moved_start: int

    def has(self, segment_id: str) -> bool:
        """Whether the copy counts; one of which nothing can be known does."""
        copy = self.copies.get(segment_id)
        return copy.state == COPY_FINISHED if copy is not None else not self.is_whole


def _fold_told(partition: PartitionBytes) -> tuple[ColdTold, bool]:
    told = ColdTold()
    start, end = partition.bounds
    at = start
    is_whole = start == 0 or end > start
    try:
        for batch in partition.batches(start, end):
            if batch.head.is_control:
                continue
            for record in read_records(batch.data, batch.head):
                told.add(0, record.offset, record.key, record.value)
            at = batch.head.last_offset + 1
    except (Missing, BadRecords):
        is_whole = False
    return told, is_whole and at > start
