"""A store and data directories at one moment, as far as there is such a thing while brokers write.

Owns the order in which metadata, files and objects are listed, and what is read at once: the metadata log,
floors, the topics about the tiers. Does not own the reading of batches (scan) or judging.
Invariant: metadata is read before and after the listings; files are listed before objects, so that what
leaves a disk for the store in between is seen twice rather than never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tools.verify.core.data_view import DataView, judge_directories, view_directories
from tools.verify.core.facts import Fault
from tools.verify.core.findings import Counted, Finding, Severity, declare
from tools.verify.core.group_check import Committed, read_commits
from tools.verify.core.judge import PartitionContext
from tools.verify.core.keys import WAL, StreamKey, WalFloors, parse_key, stream_prefix
from tools.verify.core.layouts import Floors, Malformed, decode_floors
from tools.verify.core.listing import Listing, StreamListing, sort_out
from tools.verify.core.meta import Meta, read_meta
from tools.verify.core.meta_fold import State
from tools.verify.core.outcome import Unchecked, Unread
from tools.verify.core.stores import Gone, Listed, Source, SourceFailed, TooLarge
from tools.verify.core.told import TierTopics, Told, TopicReader

WAL_FLOORS_BAD = declare(
    "wal-floors-bad",
    Severity.ERROR,
    "The floors of a broker cannot be read by their layout, or say that they are another's.",
    "The broker puts them again within half a minute while it runs.",
)
FLOORS_BYTES_MAX = 64 << 20


@dataclass(slots=True)
class StoreView:
    """What one reading of a store gave, without its data."""

    listing: Listing | None = None
    floors: list[Floors] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


@dataclass(slots=True)
class Snapshot:
    """All that is read once, before any batch."""

    before: Meta | None = None
    after: Meta | None = None
    store: StoreView = field(default_factory=StoreView)
    told: Told = field(default_factory=Told)
    data: DataView = field(default_factory=DataView)
    committed: Committed | None = None
    """Offsets of groups, read before the logs were listed; None: no directory was given."""
    findings: list[Finding] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    cluster_id: str = ""

    @property
    def names(self) -> dict[tuple[str, int], str]:
        """Topics of the logs in data directories."""
        return {(own.topic_id, own.log.partition): own.log.topic for own in self.data.logs if own.topic_id}

    @property
    def states(self) -> list[State]:
        """The cluster before and after the listing, as far as it is known."""
        return [each.state for each in (self.before, self.after) if each is not None and each.is_there]

    @property
    def last_slot(self) -> int:
        """Of the metadata log, -1: nothing says which."""
        return self.after.state.seq if self.after is not None and self.after.is_there else -1

    @property
    def has_image(self) -> bool:
        """Whether all topics of the cluster are known."""
        return self.after is not None and self.after.is_there and self.after.is_whole

    def topic_ids(self) -> dict[str, str]:
        """Return the id of each topic by its name."""
        found = {name: topic_id for (topic_id, _), name in self.names.items()}
        for state in self.states[-1:]:
            found = {topic.name: topic.topic_id for topic in state.topics.values()}
        return found

    def in_sync_places(self) -> set[tuple[str, int]]:
        """Return the partitions of which a replica in sync was listed; any, where nobody knows which are."""
        found = set()
        for own in self.data.logs:
            isr = [own.node]
            for state in self.states:
                topic = state.topics.get(own.topic_id)
                if topic is not None and own.log.partition < len(topic.partitions):
                    isr = [node for node in topic.partitions[own.log.partition].isr if node in isr]
            if isr:
                found.add((own.topic_id, own.log.partition))
        return found

    def dead_topics(self) -> frozenset[str] | None:
        """Return the topics of copies that the cluster does not have, None: nobody knows which it has."""
        if not self.has_image or self.after is None or self.store.listing is None:
            return None
        return frozenset(copy[0] for copy in self.store.listing.copies) - self.after.state.topics.keys()

    def other_context(self) -> PartitionContext:
        """Return what is to be said of partitions that nothing tells of."""
        return PartitionContext(
            is_known=False, is_dead=self.has_image, is_told=self.told.copies_after is not None
        )

    def ids_of(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the ids of topics that are named or given as they are."""
        found = {topic_id for (topic_id, _), name in self.names.items() if name in wanted}
        for meta in (self.before, self.after):
            if meta is not None:
                found |= {each.topic_id for each in meta.state.topics.values() if each.name in wanted}
        return frozenset(found | {each for each in wanted if len(each) == 22})


def freeze(store: Source | None, data: Sequence[Source], read: TopicReader | None = None) -> Snapshot:
    """Read what there is to read at once. What does not answer is in `unread`.

    `read`: how the topics about the tiers are read from a running cluster; None: out of the directories.
    """
    found = Snapshot()
    if store is not None:
        found.before = _try_meta(store, found)
    found.data = view_directories(data, found.states)
    if data:
        found.committed = read_commits(found.data, data, found.states)
        if found.data.is_live:
            found.data = view_directories(data, found.states)
    topics = TierTopics(found.states[0] if found.states else None)
    topics.read_before(found.data, data, read)
    if store is not None:
        found.store = _view_store(store, found)
    again = view_directories(data, found.states) if found.data.is_live and read is None else found.data
    found.told = topics.read_after(again, data, read)
    if store is not None:
        found.after = _try_meta(store, found)
        _take_meta(found)
    found.findings += judge_directories(found.data, found.states, has_image=found.has_image)
    found.findings += topics.findings()
    found.unread += [*found.data.unread, *topics.unread]
    if found.committed is not None:
        found.unread += found.committed.unread
    found.unchecked += _unchecked(found, topics, has_store=store is not None, has_data=bool(data))
    if not found.cluster_id:
        found.cluster_id = next(
            (told for each in found.data.directories if (told := each.properties.get("cluster.id", ""))), ""
        )
    return found


def _unchecked(
    found: Snapshot, topics: TierTopics, *, has_store: bool, has_data: bool
) -> Iterator[Unchecked]:
    listing = found.store.listing
    if not has_store:
        why = "no store was given (--store), so neither its objects nor the metadata log were looked at"
        yield Unchecked("store", why)
    elif found.after is not None and not found.after.is_there:
        why = "there is no metadata log in the store, so topics, configuration and leaders are not known"
        yield Unchecked("metadata", why)
    if not has_data:
        why = "no data directory was given (--data), so what only the logs of brokers have was not looked at"
        yield Unchecked("data-directories", why)
    if listing is not None and (listing.copies or listing.streams):
        yield from topics.unchecked()


def _take_meta(found: Snapshot) -> None:
    if found.after is None:
        return
    found.findings += found.after.findings
    found.counted += found.after.counted
    found.cluster_id = found.after.state.cluster_id
    found.findings += [_finding(fault) for fault in found.store.faults]


def _finding(fault: Fault) -> Finding:
    return Finding(fault.code, place=fault.place, position=fault.position, expected=fault.expected,
                   actual=fault.actual)  # fmt: skip


def _try_meta(source: Source, found: Snapshot) -> Meta | None:
    try:
        return read_meta(source)
    except SourceFailed as error:
        found.unread.append(Unread("meta/", str(error)))
        return None


def _view_store(source: Source, snapshot: Snapshot) -> StoreView:
    """List a store, its floors first: what they say is stored must be listed after."""
    found = StoreView()
    cluster_id = snapshot.before.state.cluster_id if snapshot.before is not None else ""
    try:
        keys = [each for each in source.list(WAL) if isinstance(parse_key(each.key), WalFloors)]
        for each in keys:
            _read_floors(source, each, cluster_id, found)
        found.listing = sort_out(source.list(""))
    except SourceFailed as error:
        snapshot.unread.append(Unread("", str(error)))
    return found


def _read_floors(source: Source, listed: Listed, cluster_id: str, found: StoreView) -> None:
    key = parse_key(listed.key)
    assert isinstance(key, WalFloors)
    try:
        floors = decode_floors(source.read_all(listed.key, FLOORS_BYTES_MAX))
    except Gone:
        return
    except TooLarge as error:
        found.faults.append(Fault(WAL_FLOORS_BAD, listed.key, 0, actual=str(error)))
        return
    except Malformed as error:
        found.faults.append(Fault(WAL_FLOORS_BAD, listed.key, error.position, actual=error.why))
        return
    if floors.node != key.node or (cluster_id and floors.cluster_id != cluster_id):
        expected, actual = f"{key.node} {cluster_id}", f"{floors.node} {floors.cluster_id}"
        found.faults.append(Fault(WAL_FLOORS_BAD, listed.key, 0, -1, -1, expected, actual))
        return
    found.floors.append(floors)


def streams_now(source: Source, streams: Iterable[StreamKey]) -> dict[StreamKey, StreamListing]:
    """Return what there is of these streams now, after the listing."""
    found: dict[StreamKey, StreamListing] = {}
    for stream in sorted(streams):
        found |= sort_out(source.list(stream_prefix(stream))).streams
    return found
