"""One partition as its broker sees it: role, epoch, in-sync replicas, and the frontier everybody waits for.

Owns: the leader's rules (who may append, when an append is committed) and the two kinds of waiters. Does not
own: bytes (the log), time-outs (purgatory) or fsync (replica manager). Invariant: the high watermark is the
least end offset over the in-sync replicas and never goes back within an epoch; an acks=all append is answered
only when the high watermark has passed it.

What moves a member's end offset differs: the leader's own moves with the append, or with the fsync where a
single replica must survive a power cut; a follower's moves with what it reports. The frontier and the waiters
stay the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from protocol.errors import ErrorCode, KafkaError
from storage.log import AbstractLog


class CommitWaiter(Protocol):
    """Waits for the high watermark to pass `needed`."""

    needed: int

    def reached(self) -> None: ...
    def failed(self, code: ErrorCode) -> None: ...


class DataWaiter(Protocol):
    """Waits for something new to read."""

    def poke(self) -> None: ...


class TopicStats:
    """What a topic has seen, as plain numbers that are read at scrape time."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetch", "failed_produce", "fetch", "messages_in", "produce")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce = 0
        self.failed_produce = 0
        self.fetch = 0
        self.failed_fetch = 0


class Partition:
    __slots__ = (
        "_commit_waiters",
        "_ends",
        "_stands_alone",
        "acks_all_ok",
        "data_waiters",
        "dirty",
        "epoch_start",
        "fast_log",
        "index",
        "internal",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "node_id",
        "offline",
        "replicas",
        "stats",
        "synced",
        "syncing",
        "syncs",
        "topic",
        "topic_id",
    )

    def __init__(
        self, *, topic: str, index: int, topic_id: UUID, log: AbstractLog, node_id: int, stats: TopicStats
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        self.stats = stats
        self.internal = False
        self.leader_id = -1
        self.leader_epoch = -1
        self.epoch_start = 0
        self.is_leader = False
        self.offline = False
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.dirty = False
        """Bytes are staged and not yet written."""
        self.syncs = False
        """Only fsynced bytes count as this broker's end offset."""
        self.synced = log.recovery_point
        """After a kill the rest of the log is only in the page cache: nothing there is acknowledged, a
        repeated batch neither, before it was synced."""
        self.syncing = False
        self.fast_log: AbstractLog | None = None
        """The log when a plain client batch may be appended as it is, None when anything needs the long way.
        """
        self.acks_all_ok = False
        self.data_waiters: dict[DataWaiter, None] = {}
        self._commit_waiters: OrderedDict[CommitWaiter, None] | None = None  # an empty one takes memory
        """The one that waits for the least first."""
        self._ends: dict[int, int] = {}
        self._stands_alone = False

    def __repr__(self) -> str:
        role = "offline" if self.offline else "leader" if self.is_leader else "follower"
        log = self.log
        return (
            f"<Partition {self.topic}-{self.index} {role} epoch {self.leader_epoch} isr {list(self.isr)}"
            f" [{log.log_start_offset}, {log.high_watermark}, {log.log_end_offset}]>"
        )

    # ------------------------------------------------------------------------------------------------- role

    def lead(
        self, *, leader_epoch: int, replicas: Iterable[int], isr: Iterable[int], syncs: bool, internal: bool
    ) -> bool:
        """Leads in this epoch with these members. True when the epoch is new."""
        newer = leader_epoch > self.leader_epoch or not self.is_leader
        self.replicas, self.isr = tuple(replicas), tuple(isr)
        self.syncs = syncs and len(self.replicas) == 1
        self.internal = internal
        if newer:
            self.leader_epoch = leader_epoch
            self.leader_id = self.node_id
            self.epoch_start = self.log.log_end_offset
            self.is_leader = True
            self._ends.clear()
            self.log.epoch_start(leader_epoch)
        self.refresh()
        self.advance()
        return newer

    def resign(self, *, leader_id: int, leader_epoch: int) -> None:
        self.is_leader = False
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.refresh()
        self._fail_waiters(ErrorCode.not_leader_or_follower)

    def go_offline(self) -> None:
        """The log's directory failed: nothing here may be read or written again until a restart."""
        self.offline = True
        self.refresh()
        self._fail_waiters(ErrorCode.kafka_storage_error)

    def refresh(self) -> None:
        """Prepares the per-request decisions again, after the role or the configuration changed."""
        log = self.log
        writable = self.is_leader and not self.offline and not self.internal
        self.fast_log = log if writable and not log.needs_walk else None
        needed = min(log.config.min_insync_replicas, max(len(self.replicas), 1))
        self.acks_all_ok = len(self.isr) >= needed
        self._stands_alone = self.isr == (self.node_id,) and not self.syncs

    # ---------------------------------------------------------------------------------------------- checks

    def check_leader(self) -> None:
        if self.offline:
            raise KafkaError(ErrorCode.kafka_storage_error)
        if not self.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)

    def check_acks_all(self) -> None:
        if not self.acks_all_ok:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{self.topic}-{self.index} has {len(self.isr)} in-sync replicas, "
                "fewer than min.insync.replicas",
            )

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """How the epoch a client believes in compares with ours; -1 believes nothing."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.none
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    # -------------------------------------------------------------------------------------------- frontier

    def frontier(self) -> int:
        end = self.synced if self.syncs else self.log.log_end_offset
        for member in self.isr:
            if member != self.node_id:
                end = min(end, self._ends.get(member, 0))
        return end

    def follower_at(self, node_id: int, end_offset: int) -> bool:
        """A follower told its log end offset. True when the high watermark moved."""
        self._ends[node_id] = end_offset
        return self.advance()

    def synced_to(self, offset: int) -> bool:
        self.synced = max(self.synced, offset)
        return self.advance()

    def advance(self) -> bool:
        """Moves the high watermark as far as the members allow and answers who waited for that."""
        if not self.is_leader or self.offline:
            return False
        log = self.log
        frontier = log.log_end_offset if self._stands_alone else self.frontier()
        if frontier <= log.high_watermark:
            return False
        log.set_high_watermark(frontier)
        waiters = self._commit_waiters
        while waiters and (first := next(iter(waiters))).needed <= frontier:
            del waiters[first]
            first.reached()
        return True

    @property
    def commit_waits(self) -> int:
        return len(self._commit_waiters or ())

    def wait_committed(self, waiter: CommitWaiter) -> None:
        """In append order, so the one that waits for the least stands first."""
        waiters = self._commit_waiters
        if waiters is None:
            waiters = self._commit_waiters = OrderedDict()
        if waiters and next(reversed(waiters)).needed > waiter.needed:
            ordered = sorted([*waiters, waiter], key=lambda each: each.needed)
            waiters.clear()
            waiters.update(dict.fromkeys(ordered))
        else:
            waiters[waiter] = None

    def wait_no_more(self, waiter: CommitWaiter) -> None:
        """Its time is up; the high watermark may stand still for much longer."""
        if self._commit_waiters is not None:
            self._commit_waiters.pop(waiter, None)

    def _fail_waiters(self, code: ErrorCode) -> None:
        failed, self._commit_waiters = self._commit_waiters, None
        for waiter in failed or ():
            waiter.failed(code)
