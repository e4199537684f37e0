"""Owns the looks at the WAL tier while a run goes on: what goes with an object that is deleted, what brokers
hold in memory, what is left when nothing is under way.

The truth is the bucket's journal, the metadata log and the logs themselves; a broker is asked only for counts
of what it holds. Does not own the rules (wal_checks.py) nor the fold (wallog.py).

Invariant: looking changes nothing; what is noted is a plain value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.control.internal_topics import REMOTE_WAL_LOG_METADATA
from protocol.stored.wal_log import Row, RowKey, decode_key, decode_row
from remote.keys import WAL, Stream, WalPart, parse_wal_key, wal_key
from remote.wal import combined_object
from remote.wal.combined_object import Place
from remote.wal.extents import KEPT_MAX
from remote.wal.journal import Journal, differences
from remote.wal.untold import BYTES_MAX
from tests.sim.history import TopicPartition, WalGone, WalLook
from tests.sim.node import Node
from tests.sim.tier import MetadataLog
from tests.sim.tier_checks import FINISHED
from tests.sim.wallog import Fold, Lineage, Slice, covered_to, lineage, useless, valid_end

if TYPE_CHECKING:
    from tests.sim.stage import Stage


class WalWatch:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._fold = Fold()
        self._read = 0
        self._sorted: Mapping[tuple[UUID, int], list[Slice]] = {}
        self._sorted_at = 0
        """How much of the journal was read when the slices were sorted."""
        self._most: dict[tuple[int, int, str], WalLook] = {}
        self.is_toggled = False
        """Whether topics are taken out of the tier, and what it had of them then is needed no longer."""
        self.rests = False
        """Whether a run goes on until what nothing needs is gone, and all is told."""
        self._metadata_log = MetadataLog(REMOTE_WAL_LOG_METADATA, _decode)

    @property
    def fold(self) -> Fold:
        journal = self._stage.bucket.wal_journal
        while self._read < len(journal):
            self._fold.note(journal[self._read])
            self._read += 1
        return self._fold

    def slices(self, tp: TopicPartition) -> list[Slice]:
        """Every slice of a partition that counts by now."""
        topic = self._stage.truth.image.topics.get(tp[0])
        if topic is None:
            return []
        fold = self.fold
        if self._sorted_at != self._read:
            self._sorted, self._sorted_at = fold.by_partition(), self._read
        return self._sorted.get((topic.id, tp[1]), [])

    def ends(self) -> dict[Stream, int | None]:
        return {stream: seen.end for stream, seen in self.fold.streams.items()}

    # what goes ----------------------------------------------------------------------------------------------

    def note_gone(self, key: str) -> None:
        """An object is deleted: note what of it is needed still."""
        named = parse_wal_key(key)
        seen = None if named is None else self.fold.streams.get(named.stream)
        if named is None or seen is None or named.part is not WalPart.OBJECT:
            return
        if named.seq not in seen.objects or not seen.counts(named.seq, self._stage.loop.now):
            return
        for row in seen.objects[named.seq].table.rows:
            self._stage.history.wal_gone += self._needed(key, row)

    def _needed(self, key: str, row: combined_object.Row) -> Iterator[WalGone]:
        stage = self._stage
        topic = stage.truth.image.topic_by_id(row.topic_id)
        if topic is None or row.partition >= len(topic.partitions):
            return
        tp = topic.name, row.partition
        start, epochs = self._begin(tp)
        slices = self.slices(tp)
        starts = lineage(slices, epochs)
        end = valid_end(row, starts)
        start = covered_to(max(start, row.start), row, self._kept(slices, key), starts)
        if end <= start:
            return
        ends = dict(stage.ends(tp))
        lost = {crash.node for crash in stage.history.crashes if crash.power or crash.replaced}
        owed = [ends[number] for number in stage.isr(tp) if number in ends and number not in lost]
        is_copied = self.is_toggled or any(
            copy.end >= end
            for copy in stage.tier_copies()
            if (copy.topic_id, copy.index, copy.state) == (topic.id, row.partition, FINISHED)
        )
        if not is_copied or any(each < end for each in owed) or max(ends.values(), default=0) < end:
            yield WalGone(stage.loop.now, key, tp, start, end, tuple(sorted(ends.items())))

    def _kept(self, slices: Iterable[Slice], gone: str) -> Iterator[Slice]:
        """Those in objects that are there and stay for now, but for the one that goes."""
        for each in slices:
            key = wal_key(each.stream, each.seq)
            is_above = each.seq > self.fold.streams[each.stream].boundary
            if is_above and key != gone and key in self._stage.bucket.objects:
                yield each

    def _begin(self, tp: TopicPartition) -> tuple[int, Lineage]:
        """Where a log begins, by the replica that has it furthest, and the epochs that its leader knows: its
        own as well, if nothing was written in it."""
        stage = self._stage
        logs = [log for node in stage.nodes.values() if (log := node.log(tp)) is not None]
        leader = stage.leader(tp)
        led = None if leader is None else leader.log(tp)
        partition = stage.truth.image.partition(*tp)
        epochs = [] if led is None else [*led.epochs.entries()]
        if led is not None and partition is not None and partition.leader_epoch not in dict(epochs):
            epochs.append((partition.leader_epoch, led.log_end_offset))
        return max((log.log_start_offset for log in logs), default=0), epochs

    # what is held -------------------------------------------------------------------------------------------

    def look(self) -> None:
        for node in self._stage.nodes.values():
            if node.is_ready:
                for what, (count, limit) in _held(node).items():
                    before = self._most.get((node.id, node.life, what))
                    if before is None or count > before.most:
                        look = WalLook(node.id, node.life, what, count, limit)
                        self._most[node.id, node.life, what] = look

    # the end ------------------------------------------------------------------------------------------------

    def restless(self) -> list[str]:
        """Objects that nothing needs any more and that are there."""
        if not self.rests:
            return []
        stage = self._stage
        starts: dict[TopicPartition, int] = {}

        def is_dead(row: combined_object.Row) -> bool:
            topic = stage.truth.image.topic_by_id(row.topic_id)
            if topic is None:
                return True
            tp = topic.name, row.partition
            if tp not in starts:
                # a deletion that an unclean election took back is still seen on followers
                leader = stage.leader(tp)
                led = None if leader is None else leader.log(tp)
                starts[tp] = 0 if led is None else led.log_start_offset
            return row.end <= starts[tp]

        objects = stage.bucket.objects
        found = [key for seen in self.fold.streams.values() for key in useless(seen, objects, is_dead)]
        return found + self.untold()

    def untold(self) -> list[str]:
        """Where the topic about the tier says something else than the bucket, by its leaders' disks."""
        stage, name = self._stage, REMOTE_WAL_LOG_METADATA
        journal = Journal()
        for tp in stage.partitions_of([name]) if name in stage.truth.image.topics else []:
            leader = stage.leader(tp)
            if leader is None or not leader.is_ready:
                return [f"nobody leads {tp}"]
            for said in self._metadata_log.said(leader.disk, leader.log_dirs, tp[1]):
                assert isinstance(said, tuple)
                journal.apply(*said)
        bucket = {
            Place(stream, seq): seen.objects[seq].table
            for stream, seen in self.fold.streams.items()
            for seq in range(seen.boundary + 1, len(seen.counted_at))
            if wal_key(stream, seq) in stage.bucket.objects
        }
        return [f"{each.what} {each.place}: {each.detail}" for each in differences(journal, bucket, journal)]

    def keep(self) -> None:
        """Into the history."""
        stage, history = self._stage, self._stage.history
        # copies: while the census is taken boundaries go on, and what is left then is in its grace
        history.wal_changes = [*stage.bucket.wal_journal]
        history.wal_reads = [*stage.bucket.wal_reads]
        history.wal_looks = [*self._most.values()]
        if self.rests:
            history.wal_untold = tuple(self.untold())
            history.wal_left = tuple(sorted(key for key in stage.bucket.objects if key.startswith(WAL)))
        for node in stage.ready():
            assert node.broker is not None
            history.wal_direct[node.id] = node.broker.components.wal_stats.direct_bytes_in


def _decode(key: Any, value: Any) -> tuple[RowKey, Row | None]:
    return decode_key(key), None if value is None else decode_row(value)


def _held(node: Node) -> Mapping[str, tuple[int, int]]:
    """What one broker's part of the tier holds in memory now, and what it may hold."""
    assert node.broker is not None
    components = node.broker.components
    tails = [each.tail for each in components.replicas.partitions() if each.tail is not None]
    wal = components.wal
    assert wal is not None
    in_flight = node.config.remote_wal_log_manager_combiner_thread_pool_size
    return {
        "bytes that are read": (wal.hydrator.bytes_held, wal.hydrator.bytes_max),
        "bytes that are to be told": (wal.telling.held_bytes, BYTES_MAX),
        "objects that are put": (wal.uploader.under_way, in_flight),
        "extents of a partition": (max((len(tail.extents) for tail in tails), default=0), KEPT_MAX),
    }
