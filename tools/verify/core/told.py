"""What the topics about the tiers say before a listing and after it, whoever has them.

Owns which replicas are read, from where on, and when what they say is taken as unknown. Does not own the
records (tier_topics), how they come out of logs (told_records) or out of a cluster (bootstrap).
Invariant: what is not known whole is not known at all: half of what was told would accuse the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tools.verify.core.data_view import DataView, OwnLog
from tools.verify.core.findings import Finding
from tools.verify.core.keys import StreamKey
from tools.verify.core.meta_fold import State, Topic
from tools.verify.core.outcome import Unchecked, Unread
from tools.verify.core.stores import Source, SourceFailed
from tools.verify.core.tier_topics import (
    COPY_FINISHED,
    ColdTold,
    Copy,
    ToldCopy,
    ToldSlice,
    WalTold,
    unpack_slices,
)
from tools.verify.core.told_records import ToldRecords

COLD_TOPIC = "__remote_log_metadata"
WAL_TOPIC = "__remote_wal_log_metadata"
Fold = ColdTold | WalTold
Take = Callable[[int, int, bytes | None, bytes | None], None]
TopicReader = Callable[[str, Take, Mapping[int, int]], Mapping[int, int]]
"""Of a running cluster: gives the records of the topic from these offsets on, and returns where it ended.
Raises SourceFailed."""


@dataclass(slots=True)
class Told:
    """What the topics say, before and after the listing; None: nobody told."""

    copies_before: Mapping[Copy, ToldCopy] | None = None
    copies_after: Mapping[Copy, ToldCopy] | None = None
    moved_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    counting: Mapping[StreamKey, frozenset[int]] = field(default_factory=dict)
    """Objects of the WAL tier that counted both times."""
    slices: Mapping[tuple[StreamKey, int], tuple[ToldSlice, ...]] = field(default_factory=dict)


class _Topic:
    """One of the two topics, read as far as it is there."""

    def __init__(self, name: str, fold: Fold, topic: Topic | None) -> None:
        self.name = name
        self.fold = fold
        self.topic = topic
        self.is_known = True
        self.why = ""
        self._next: dict[int, int] = {}

    def read_cluster(self, read: TopicReader) -> None:
        self._next.update(read(self.name, self.fold.add, dict(self._next)))

    def read_logs(self, view: DataView, sources: Sequence[Source]) -> None:
        """Take what is new in the logs of each partition. Raise SourceFailed."""
        if self.topic is None:
            return
        for number in range(len(self.topic.partitions)):
            mine = replicas_of(view, self.name, number, self.topic)
            if not mine:
                self._unknown(f"no directory has partition {number} of {self.name}")
                continue
            records = ToldRecords([(sources[own.directory], own.log) for own in mine])
            start = self._next.get(number, 0)
            for record in records.records():
                if record.offset >= start:
                    self.fold.add(number, record.offset, record.key, record.value)
                    self._next[number] = record.offset + 1
            if records.holes:
                first, end = records.holes[0]
                self._unknown(f"offsets {first} to {end - 1} of {self.name} {number} are damaged")

    def _unknown(self, why: str) -> None:
        self.is_known = False
        self.why = self.why or why


def replicas_of(view: DataView, name: str, number: int, topic: Topic | None) -> list[OwnLog]:
    """Return the logs of a partition of this topic, the most trusted first."""
    known = topic.partitions[number] if topic is not None and number < len(topic.partitions) else None
    mine = [
        own
        for own in view.logs
        if own.log.partition == number
        and (own.topic_id == topic.topic_id if topic is not None else own.log.topic == name)
    ]
    leader, isr = (known.leader, known.isr) if known is not None else (-1, ())
    return sorted(mine, key=lambda own: _trust(own, leader, isr))


def _trust(own: OwnLog, leader: int, isr: Sequence[int]) -> tuple[bool, bool, int, int]:
    """The leader's log first, then those in sync, the longest of them."""
    size = sum(each.size for each in own.log.files)
    return own.node != leader, own.node not in isr, -own.log.high_watermark, -size


class TierTopics:
    """Both topics, read once before the listing and once after it."""

    def __init__(self, state: State | None) -> None:
        topics = {name: state.named(name) if state is not None else None for name in (COLD_TOPIC, WAL_TOPIC)}
        self._has_state = state is not None
        self._cold = ColdTold(*_about(topics[COLD_TOPIC]))
        self._wal = WalTold(*_about(topics[WAL_TOPIC]))
        self._topics = [
            _Topic(COLD_TOPIC, self._cold, topics[COLD_TOPIC]),
            _Topic(WAL_TOPIC, self._wal, topics[WAL_TOPIC]),
        ]
        self._copies: Mapping[Copy, ToldCopy] = {}
        self._counting: Mapping[StreamKey, frozenset[int]] = {}
        self.unread: list[Unread] = []

    def read_before(self, view: DataView, sources: Sequence[Source], read: TopicReader | None = None) -> None:
        self._read(view, sources, read)
        self._copies, self._counting = self._cold.copies(), self._wal.counting()

    def read_after(self, view: DataView, sources: Sequence[Source], read: TopicReader | None = None) -> Told:
        self._read(view, sources, read)
        told = Told()
        cold, wal = self._topics
        if cold.is_known:
            told.copies_before, told.copies_after = self._copies, self._cold.copies()
            told.moved_starts = self._cold.moved_starts()
        if wal.is_known:
            now = self._wal.counting()
            told.counting = {
                stream: seqs & now.get(stream, frozenset()) for stream, seqs in self._counting.items()
            }
            told.slices = {
                place: unpack_slices(each.entries)
                for place, each in self._wal.objects().items()
                if each.state == COPY_FINISHED and each.entries
            }
        return told

    def _read(self, view: DataView, sources: Sequence[Source], read: TopicReader | None) -> None:
        for topic in self._topics:
            if not topic.is_known:
                continue
            if read is None and not self._has_state:
                topic.is_known, topic.why = False, "no metadata log says whether all of it is there"
                continue
            try:
                if read is not None:
                    topic.read_cluster(read)
                else:
                    topic.read_logs(view, sources)
            except SourceFailed as error:
                self.unread.append(Unread(topic.name, str(error)))
                topic.is_known, topic.why = False, str(error)

    def findings(self) -> list[Finding]:
        """What is wrong with records; of a topic that is not known whole, only what shows in one record."""
        found: list[Finding] = []
        for topic in self._topics:
            found += topic.fold.findings() if topic.is_known else topic.fold.refused_records()
        return found

    def unchecked(self) -> list[Unchecked]:
        return [
            Unchecked("tier-topics", f"what {topic.name} says was not used: {topic.why}")
            for topic in self._topics
            if not topic.is_known
        ]


def _about(topic: Topic | None) -> tuple[str, int]:
    return (topic.topic_id, len(topic.partitions)) if topic is not None else ("", 0)
