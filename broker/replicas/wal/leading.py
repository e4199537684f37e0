"""What this broker stores in the WAL tier as a leader: a tail for each partition that it leads and uploads.

Owns: `Partition.tail` from the beginning of a role to its end, where a tail begins, what tells the uploader
that a log has grown, when followers are sent what waits for the store, and that a tail is stored once more
where it holds back much (remote.wal.moves). Does not own: which partitions take part (parts), cutting and
storing (remote.wal.uploader), what followers are answered (handlers), what is needed of a tail (collecting).
Invariant: a partition has a tail exactly while it is led here and uploads, one for each leader epoch; nothing
stands on the way of an append: the log's growth is noted where waiting followers are woken, after the
answers, and only by the first append since the last cut. What comes on top is seen by that cut, or by the
next look at what waits too long.

A tail begins where this broker knows that the store has everything below: what it hydrated as a follower, or
stored itself, or was told by an earlier leader; otherwise, and where the log has been out of the tier since,
at the log's start, or where the cold tier ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol
from uuid import UUID

from broker.control.cluster import Cluster
from broker.control.image import Delta
from broker.replicas.partition import UNKNOWN, Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.trouble import Trouble
from broker.replicas.wal.parts import WalParts
from protocol.errors import ErrorCode, KafkaError
from remote.wal.floors import Floor
from remote.wal.moves import Candidate, Marks, MoveBudget, Stored, inherited
from remote.wal.stats import WalStats
from remote.wal.tail import EndTimes, Tail, TailKey
from remote.wal.uploader import Uploader
from storage.epochs import EpochCache
from storage.log import AbstractLog

LOOKED_AT_ONCE: Final = 256
JUDGED_EVERY_S: Final = 0.1
JUDGED_AT_ONCE: Final = 1000
"""Takes a millisecond of the loop."""
SPACING_MAX_S: Final = 0.25
COARSE_SHARE: Final = 1 / 32
"""Of the lag that a replica in sync may have: the times of appends are known for twice as long."""

KnownStored = Callable[[UUID, int, EpochCache], int | None]
"""(topic id, partition, epochs of the log here): the offset below which the store has everything, None where
nobody said."""


class Replicas(Protocol):
    """The replica manager, as far as this needs it."""

    @property
    def on_role(self) -> list[Callable[[Partition], None]]: ...
    @property
    def lag_s(self) -> float: ...
    @property
    def purgatory(self) -> Purgatory: ...
    def partitions(self) -> Iterator[Partition]: ...
    def replica(self, topic: str, index: int) -> Partition | ErrorCode: ...
    def wake_committed(self, partition: Partition) -> None: ...


class Led(Waiter):
    """One partition in one leader epoch. It stands among the followers that wait for records, and so hears of
    an append after its answer; until that is cut it stands there no more."""

    __slots__ = ("_leading", "_looked_at", "_moved", "is_marked", "marks", "noted_to", "partition", "tail")

    def __init__(self, leading: WalLeading, partition: Partition, tail: Tail, marks: Marks) -> None:
        super().__init__()
        self.partition = partition
        self.tail = tail
        self.marks = marks
        """When the slices of this tail came to the store."""
        self._moved = tail.moved
        self.noted_to = partition.log.log_end_offset
        self.is_marked = False
        """Whether a cut is to come, which sees what is appended until then."""
        self._looked_at = 0.0
        self._leading = leading

    def __repr__(self) -> str:
        return f"<Led {self.partition.topic}-{self.partition.index} {self.tail}>"

    @property
    def log(self) -> AbstractLog:
        return self.partition.log

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.partition.replicas

    @property
    def is_awaited(self) -> bool:
        return self.partition.commit_waits > 0

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    def poke(self) -> None:
        """Note that the log has grown. It is also poked when something was stored, or the watermark moved."""
        if self.partition.log.log_end_offset > self.noted_to:
            self._leading.grown(self)

    def look(self, now: float) -> None:
        """Note when what is new was appended: after the last look, where no append was heard of since."""
        end = self.partition.log.log_end_offset
        if end > self.noted_to:
            self.tail.end_times.note(end, self._looked_at if self.is_marked else now)
            self.noted_to = end
        self._looked_at = now

    def mark(self, now: Stored) -> None:
        """Note what came to the store; once all of a move did, nothing older is needed."""
        tail = self.tail
        if tail.moved is not self._moved:
            self._moved = tail.moved
            self.marks = Marks(tail.stored_to, now)
        elif tail.moving is None:
            self.marks.note(tail.stored_to, now)

    def awaited(self) -> None:
        """Take note that a producer waits for the followers to have what it sends."""
        if self.is_marked:
            self._leading.hurry(self)

    def was_cut(self, *, has_more: bool) -> None:
        self._leading.was_cut(self, has_more=has_more)

    def expired(self) -> None:
        """Wait on: there is no deadline."""

    def stored(self) -> None:
        self._leading.stored(self)

    def unreadable(self, error: KafkaError) -> None:
        self._leading.unreadable(self, error)


class WalLeading:
    def __init__(
        self,
        *,
        parts: WalParts,
        replicas: Replicas,
        uploader: Uploader,
        stats: WalStats,
    ) -> None:
        self.known_stored: KnownStored | None = None
        self._parts = parts
        self._replicas = replicas
        self._uploader = uploader
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._led: dict[Partition, Led] = {}
        self._unstored: dict[Led, None] = {}
        """Those of which something waits for the store, or is sent directly."""
        self._to_judge: list[Led] = []
        """Of these, whom this round has still before it."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_running = False
        self._is_used = False
        """Whether any topic uses the tier: then those of the brokers are stored too."""
        self._moves = MoveBudget()
        self._trouble = Trouble("to be read for the WAL tier", self._loop.time)
        replicas.on_role.append(self._role_changed)

    def __repr__(self) -> str:
        return f"<WalLeading {len(self._led)} tails, {len(self._unstored)} with unstored records>"

    def tails(self) -> Iterator[tuple[Partition, Tail]]:
        for partition, led in self._led.items():
            yield partition, led.tail

    # --- life ---

    def start(self) -> None:
        """Begin with the partitions that are here."""
        self._is_running = True
        for partition in self._replicas.partitions():
            self._role_changed(partition)

    def stop(self) -> None:
        """Hear of no append any more. What was marked before is still stored."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- roles and configurations ---

    def image_changed(self, delta: Delta) -> Iterator[None]:
        """Look again at every partition, in slices, where configurations changed: a topic may use the
        tier now, or not any more."""
        self._uploader.look_again()
        if not (delta.configs_changed or delta.topics_created or delta.topics_deleted):
            return
        was_used, self._is_used = self._is_used, self._parts.is_used
        if not delta.configs_changed and self._is_used is was_used:
            return
        for at, partition in enumerate(list(self._replicas.partitions()), 1):
            self._role_changed(partition)
            if at % LOOKED_AT_ONCE == 0:
                yield

    def _role_changed(self, partition: Partition) -> None:
        if not self._is_running:
            return
        if not self._parts.uploads(partition):
            partition.stored_to = 0  # from now on it is collected, here and wherever it is led
        led = self._led.get(partition)
        if not self._is_to_store(partition):
            if led is not None:
                self._let_go(led)
        elif led is None or led.tail.leader_epoch != partition.leader_epoch:
            self._take(partition, led)

    def _is_to_store(self, partition: Partition) -> bool:
        return (
            partition.is_leader
            and not partition.offline
            and self._replicas.replica(partition.topic, partition.index) is partition
            and self._parts.uploads(partition)
        )

    def begin_anew(self, partition: Partition) -> None:
        """Store a log again from its start on: the cold tier, for whose sake it was collected, is gone."""
        led = self._led.get(partition)
        if led is not None:
            partition.stored_to = 0
            self._take(partition, led)

    def _take(self, partition: Partition, before: Led | None) -> None:
        if before is not None:
            self._let_go(before)
        log, now = partition.log, self._loop.time()
        known = self._stored_before(partition)
        begin = log.log_start_offset if log.tiered_end <= log.log_start_offset else log.tiered_end
        if known is not None:
            begin = max(begin, known)
        end = log.log_end_offset
        begin = min(begin, end)
        # what a leader took over counts as appended now; a backlog of unknown age is sent at once
        times_from = end if known is None else begin
        lag_s = self._replicas.lag_s
        end_times = EndTimes(
            times_from, spacing_s=min(SPACING_MAX_S, lag_s / 100), coarse_s=lag_s * COARSE_SHARE
        )
        if begin < end:
            end_times.note(end, now)
        tail = Tail(
            TailKey(partition.topic_id, partition.index),
            leader_epoch=partition.leader_epoch,
            epoch_start=partition.epoch_begin,
            stored_to=begin,
            end_times=end_times,
            previous=None if before is None else before.tail.previous,
        )
        led = self._led[partition] = Led(self, partition, tail, inherited(begin, self._totals))
        partition.tail = tail
        partition.stored_to = begin
        partition.replica_waiters[led] = None
        partition.when_awaited = led.awaited
        self._uploader.add(led)
        if begin < end:
            self._watch(led)
            self._judge(led, now)

    def _stored_before(self, partition: Partition) -> int | None:
        if partition.stored_to != UNKNOWN:
            return partition.stored_to or None
        if self.known_stored is None:
            return None
        return self.known_stored(partition.topic_id, partition.index, partition.log.epochs)

    def _let_go(self, led: Led) -> None:
        partition = led.partition
        del self._led[partition]
        led.finish()
        self._unstored.pop(led, None)
        partition.replica_waiters.pop(led, None)
        partition.when_awaited = None
        if partition.tail is led.tail:
            partition.tail = None
        self._uploader.forget(led)
        self._trouble.ended(led)

    # --- what happens to a tail ---

    def grown(self, led: Led) -> None:
        led.look(self._loop.time())
        self._watch(led)
        self._mark(led)

    def _mark(self, led: Led) -> None:
        self._uploader.mark(led)
        led.is_marked = True
        led.partition.replica_waiters.pop(led, None)

    def hurry(self, led: Led) -> None:
        self._uploader.mark(led)

    def was_cut(self, led: Led, *, has_more: bool) -> None:
        """Hear of the next append, unless something is left for the next cut."""
        if self._led.get(led.partition) is not led:
            return
        led.look(self._loop.time())
        if led.is_marked and not has_more:
            led.is_marked = False
            led.partition.replica_waiters[led] = None

    def stored(self, led: Led) -> None:
        """Let followers be pointed to what counts now."""
        partition = led.partition
        self._trouble.ended(led)
        if self._led.get(partition) is not led:
            return
        led.mark(self._totals)
        partition.stored_to = led.tail.stored_to
        led.tail.forget_read(follower.end_offset for follower in partition.followers())
        self._replicas.purgatory.wake_followers(partition)

    def unreadable(self, led: Led, error: KafkaError) -> None:
        if self._led.get(led.partition) is led:  # its role may end while it is read in a thread
            self._trouble.failed(led, led.name, error)
        self.was_cut(led, has_more=False)

    # --- what holds back much ---

    @property
    def _totals(self) -> Stored:
        return Stored(self._stats.objects, self._stats.stored_bytes)

    def move_some(self, floors: Iterable[tuple[Partition, Floor]]) -> None:
        """Store once more what is needed of some partitions, of which nothing below these floors is."""
        if not self._is_running:
            return
        candidates = []
        for partition, row in floors:
            led, floor = self._led.get(partition), row.floor
            if led is None or led.tail.leader_epoch != row.leader_epoch:
                continue  # another role than that of which it was said
            if led.tail.moving is not None or led.tail.is_direct:
                continue
            if not led.log.local_log_start_offset <= floor < led.tail.stored_to:
                continue
            since = led.marks.oldest(floor)
            if since is not None:
                candidates.append(((led, floor), Candidate(since, led.log.size_from(floor))))
        for led, floor in self._moves.choose(candidates, self._totals):
            led.tail.move(floor, led.log.log_end_offset)
            self._stats.moves += 1
            self._mark(led)

    # --- what waits too long ---

    def _watch(self, led: Led) -> None:
        self._unstored[led] = None
        if self._timer is None and self._is_running:
            self._timer = self._loop.call_later(JUDGED_EVERY_S, self._judge_all)

    def _judge_all(self) -> None:
        """Judge a portion; so often that each has its turn in every `JUDGED_EVERY_S`."""
        self._timer = None
        now = self._loop.time()
        if not self._to_judge:
            self._to_judge = list(self._unstored)
        portion = self._to_judge[-JUDGED_AT_ONCE:]
        del self._to_judge[-JUDGED_AT_ONCE:]
        share = len(portion) / max(len(self._unstored), len(portion), 1)
        for led in portion:
            if led in self._unstored:
                self._judge(led, now)
        if self._unstored:
            self._timer = self._loop.call_later(share * JUDGED_EVERY_S, self._judge_all)
        else:
            self._to_judge.clear()

    def _judge(self, led: Led, now: float) -> None:
        led.look(now)
        tail, end = led.tail, led.noted_to
        if tail.judge(end, now):
            self._stats.mode_changes += 1
            self._replicas.wake_committed(led.partition)
        if tail.stored_to >= end and not tail.is_direct:
            self._unstored.pop(led, None)


class ClusterWriter:
    """This broker, as the uploader names it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def cluster_id(self) -> str:
        return self._cluster.image.cluster_id

    @property
    def node_id(self) -> int:
        return self._cluster.node_id

    @property
    def broker_epoch(self) -> int:
        return self._cluster.broker_epoch

    @property
    def metadata_seq(self) -> int:
        return self._cluster.image.seq

    def may_reopen(self, slot: int) -> bool:
        image = self._cluster.image
        broker = image.brokers.get(self.node_id)
        return (
            image.seq >= slot
            and broker is not None
            and broker.epoch == self.broker_epoch
            and not broker.fenced
        )
