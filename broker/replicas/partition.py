"""One partition as its broker sees it: role, epoch, in-sync replicas, and the frontier that all wait for.

Owns: the leader's rules (when an append is allowed and when committed, which replica is in sync), what it
knows of its followers, and the waiters. Does not own: bytes (the log), time-outs (purgatory), fsync (replica
manager), getting a change of the ISR committed (isr) or fetching as a follower (fetcher).

Invariants. The high watermark is the least end offset over the maximal ISR, the committed one and what was
proposed for it, and over the replicas about to join; it stands still while the committed ISR is below
min.insync.replicas, and never goes back within an epoch. A follower that leaves the ISR counts until that is
committed. An acks=all append is answered only when the high watermark has passed it.

What moves a member's end offset differs: the leader's own moves with the append, or with the fsync where a
single replica must survive a power cut; a follower's moves with what it asks for. The frontier and the
waiters stay the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol
from uuid import UUID

from broker.control.metadata_records import NO_LEADER, PartitionImage
from protocol.errors import ErrorCode, KafkaError
from remote.wal.tail import Tail
from storage.log import AbstractLog

NAMED_MAX: Final = 10
JOIN_LAG_S: Final = 1.0
"""A replica that reads from the store is waited for until it joins, once all that it lacks is so young, or
younger than what the store itself lacks and so much. Producers wait meanwhile."""


class CommitWaiter(Protocol):
    """Waits for the high watermark to pass `needed`."""

    needed: int

    def reached(self) -> None: ...
    def failed(self, code: ErrorCode) -> None: ...


class DataWaiter(Protocol):
    """Waits for something new to read."""

    def poke(self) -> None: ...


class Peers(Protocol):
    """What a leader has to know of the other brokers, and where it reports what it decides about them."""

    @property
    def lag_s(self) -> float:
        """How long a follower may be behind and still be in sync."""

    def now(self) -> float:
        """The loop's clock: it never goes back."""

    def is_eligible(self, node_id: int, broker_epoch: int) -> bool:
        """Whether this incarnation of the broker may join an ISR; epoch -1 names none."""

    def is_live(self, node_id: int) -> bool: ...

    def proposed(self, partition: Partition) -> None:
        """Take note of its new proposal."""


class FetchTime:
    """The time of a follower's last Fetch, for all partitions of its session at once."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = -inf


class Follower:
    """What a leader knows of one follower, from its last Fetch."""

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "end_offset",
        "fetch_time",
        "fetched_at",
        "leader_end",
        "log_start",
        "node_id",
    )

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.end_offset = UNKNOWN
        self.log_start = UNKNOWN
        self.broker_epoch = -1
        self.leader_end = UNKNOWN
        """Where the leader's log ended at the last Fetch."""
        self.fetched_at = -inf
        self.caught_up_at = -inf
        self.fetch_time: FetchTime | None = None
        """Counts for a partition that is left out of a request because nothing of it changed."""

    def __repr__(self) -> str:
        return f"<Follower {self.node_id} [{self.log_start}, {self.end_offset}) epoch {self.broker_epoch}>"

    def elected(self, *, leader_end: int, is_in_sync: bool, now: float) -> None:
        """Restart the lag clock of an in-sync follower in a new epoch; any other starts as lagging."""
        self.leader_end = leader_end
        self.fetched_at = self.caught_up_at = now if is_in_sync else -inf

    def fetched(self, *, offset: int, log_start: int, leader_end: int, broker_epoch: int, now: float) -> None:
        """Take note of a Fetch. The follower is caught up now if it has all there is, and was at its last
        Fetch if it has all there was then: a busy leader is never quite reached."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self.leader_end:
            self.caught_up_at = self._seen_at()
        self.end_offset = offset
        self.log_start = log_start
        self.leader_end = max(self.leader_end, leader_end)
        self.broker_epoch = broker_epoch
        self.fetched_at = now

    def left(self) -> None:
        """Forget its times after it left the ISR: until its next Fetch nothing waits for it."""
        self.fetched_at = self.caught_up_at = -inf
        self.fetch_time = None

    def is_caught_up(self, leader_end: int, *, now: float, lag_s: float) -> bool:
        if self.end_offset == leader_end:
            return True
        seen_at = self._seen_at() if self.end_offset >= self.leader_end else self.caught_up_at
        return now - seen_at <= lag_s

    @property
    def heard_at(self) -> float:
        """The time of its last Fetch in this epoch, or since it left the ISR."""
        return max(self.fetched_at, -inf if self.fetch_time is None else self.fetch_time.at)

    def _seen_at(self) -> float:
        """The time of the last Fetch at which it had all there was."""
        return max(self.caught_up_at, self.heard_at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IsrProposal:
    """The ISR a leader asks the controller for, on top of the partition epoch it knows."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(node id, broker epoch) of each member; -1 for an epoch that is not known yet."""
    expands: bool


UNKNOWN: Final = -1


class TopicStats:
    """What a topic has seen, as plain numbers that are read at scrape time."""

    __slots__ = (
        "aux_state_builds",
        "bytes_in",
        "bytes_out",
        "failed_aux_state_builds",
        "failed_fetch",
        "failed_produce",
        "failed_remote_copy",
        "failed_remote_delete",
        "failed_remote_fetch",
        "fetch",
        "messages_in",
        "produce",
        "remote_copy",
        "remote_copy_bytes",
        "remote_delete",
        "remote_fetch",
        "remote_fetch_bytes",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce = 0
        self.failed_produce = 0
        self.fetch = 0
        self.failed_fetch = 0
        self.remote_fetch = 0
        self.remote_fetch_bytes = 0
        self.failed_remote_fetch = 0
        self.remote_copy = 0
        self.remote_copy_bytes = 0
        self.failed_remote_copy = 0
        self.remote_delete = 0
        self.failed_remote_delete = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.aux_state_builds = 0
        self.failed_aux_state_builds = 0


class Partition:
    __slots__ = (
        "_commit_waiters",
        "_followers",
        "_low_waiters",
        "_peers",
        "_stands_alone",
        "acks_all_ok",
        "data_waiters",
        "dirty",
        "epoch_start",
        "fast_log",
        "has_room",
        "index",
        "internal",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "maximal_isr",
        "node_id",
        "offline",
        "partition_epoch",
        "proposal",
        "replica_waiters",
        "replicas",
        "replication_factor",
        "stats",
        "stored_to",
        "synced",
        "syncing",
        "syncs",
        "tail",
        "told_high_watermark",
        "topic",
        "topic_id",
        "when_awaited",
    )

    def __init__(
        self,
        *,
        topic: str,
        index: int,
        topic_id: UUID,
        log: AbstractLog,
        node_id: int,
        stats: TopicStats,
        peers: Peers,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        self.stats = stats
        self.internal = False
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.epoch_start = 0
        self.is_leader = False
        self.offline = False
        self.replicas: tuple[int, ...] = ()
        self.replication_factor = 0
        """The number of replicas without those that a reassignment under way is about to add; set while this
        broker leads."""
        self.isr: tuple[int, ...] = ()
        """The committed ISR."""
        self.maximal_isr: frozenset[int] = frozenset()
        self.proposal: IsrProposal | None = None
        self.dirty = False
        """Bytes are staged and not yet written."""
        self.syncs = False
        """Only fsynced bytes count as this broker's end offset."""
        self.synced = 0
        """After a kill the rest of the log is only in the page cache: nothing there is acknowledged, a
        repeated batch neither, before it was synced."""
        self.syncing = False
        self.fast_log: AbstractLog | None = None
        """The log when a plain client batch may be appended as it is, None when anything needs the long way.
        """
        self.has_room = True
        """Whether producers may append; not while `remote.log.pressure.policy` refuses them."""
        self.acks_all_ok = False
        self.tail: Tail | None = None
        """What this leader stores in the WAL tier; None where it does not."""
        self.when_awaited: Callable[[], None] | None = None
        """Called when another producer waits for a commit."""
        self.stored_to = UNKNOWN
        """Everything below is in the WAL tier, as far as this broker knows, as a leader or as a follower."""
        self.data_waiters: dict[DataWaiter, None] = {}
        """Consumers, which see what is committed."""
        self.replica_waiters: dict[DataWaiter, None] = {}
        """Followers, which see everything."""
        self.told_high_watermark = -1
        """The high watermark at which consumers were woken last."""
        self._commit_waiters: OrderedDict[CommitWaiter, None] | None = None  # an empty one takes memory
        """Ordered by the offset that each waits for."""
        self._low_waiters: list[CommitWaiter] = []
        self._followers: dict[int, Follower] = {}
        self._peers = peers
        self._stands_alone = False

    def __repr__(self) -> str:
        role = "offline" if self.offline else "leader" if self.is_leader else "follower"
        log = self.log
        return (
            f"<Partition {self.topic}-{self.index} {role} epoch {self.leader_epoch} isr {list(self.isr)}"
            f" [{log.log_start_offset}, {log.high_watermark}, {log.log_end_offset}]>"
        )

    # --- role ---

    def lead(self, view: PartitionImage, *, syncs: bool, internal: bool) -> bool:
        """Lead as `view` says, unless its partition epoch is behind an answer of the controller. Return
        whether the leader epoch is new."""
        is_known = self.is_leader and view.leader_epoch == self.leader_epoch
        if is_known and view.partition_epoch < self.partition_epoch:
            return False
        was_leader = self.is_leader
        self.replicas = view.replicas
        self.replication_factor = len(view.replicas) - len(view.adding)
        self.syncs = syncs and len(view.replicas) == 1
        self.internal = internal
        if not is_known or view.partition_epoch > self.partition_epoch:
            # what was proposed on top of an older partition epoch cannot be committed any more
            self._commit_isr(view.isr, view.partition_epoch)
        self._followers = {
            node_id: self._followers.get(node_id) or Follower(node_id)
            for node_id in view.replicas
            if node_id != self.node_id
        }
        if not is_known:
            self._begin_epoch(view.leader_epoch, was_leader=was_leader)
        self.refresh()
        self.advance()
        if self._low_waiters:
            # a replica that was waited for may have been taken away
            self._low_watermark_moved()
        return not is_known

    def _begin_epoch(self, leader_epoch: int, *, was_leader: bool) -> None:
        self.tail = None  # of an earlier epoch, in which followers may have had other records
        self.leader_epoch = leader_epoch
        self.leader_id = self.node_id
        self.epoch_start = self.log.log_end_offset
        if leader_epoch > self.log.epochs.latest + 1:
            # a leader between may have stored other records than these, where they were not committed
            self.stored_to = min(self.stored_to, self.log.high_watermark)
        self.synced = self.log.recovery_point
        self.is_leader = True
        now = self._peers.now()
        for node_id in self._followers:
            follower = self._followers[node_id] = (
                self._followers[node_id] if was_leader else Follower(node_id)
            )
            follower.elected(
                leader_end=self.epoch_start if was_leader else UNKNOWN,
                is_in_sync=node_id in self.isr,
                now=now,
            )
        self.log.epoch_start(leader_epoch)

    @property
    def epoch_begin(self) -> int:
        """Where the leader epoch begins in the log: below `epoch_start` for a leader that came back in the
        epoch in which it had led before."""
        begin = self.log.epochs.start_of(self.leader_epoch)
        return self.epoch_start if begin is None else begin

    def follow(self, view: PartitionImage) -> bool:
        """Follow another leader, or none. Return whether the leader epoch is new."""
        newer = view.leader_epoch > self.leader_epoch or self.is_leader
        self.replicas = view.replicas
        self.leader_epoch = view.leader_epoch
        self.partition_epoch = view.partition_epoch
        if len(view.isr) > 1 and self.node_id in view.isr and view.leader != self.node_id:
            self.log.may_lack_end = False
        self._resign(view.leader)
        return newer

    @property
    def is_to_lead(self) -> bool:
        """Whether it leads once it is restored: nobody may conclude anything from what it has until then."""
        return not self.is_leader and self.leader_id == self.node_id

    @property
    def min_isr(self) -> int:
        """The number of in-sync replicas that acks=all needs, at most the number of replicas."""
        return min(self.log.config.min_insync_replicas, max(len(self.replicas), 1))

    def leave(self) -> None:
        """Give up the role when this broker is no replica any more."""
        self._resign(NO_LEADER)

    def _resign(self, leader_id: int) -> None:
        self.is_leader = False
        self.tail = None
        self.leader_id = leader_id
        self.isr = ()
        self.maximal_isr = frozenset()
        self.proposal = None
        self._followers = {}
        self.refresh()
        self._fail_waiters(ErrorCode.not_leader_or_follower)

    def go_offline(self) -> None:
        """Refuse reads and writes until a restart, because the log directory failed."""
        self.offline = True
        self.proposal = None
        self.refresh()
        self._fail_waiters(ErrorCode.kafka_storage_error)

    def stay_offline(self, view: PartitionImage) -> None:
        """Propose an ISR without this broker, and so, if it leads, another leader: it has no log. The last
        replica in sync has none to hand over to, and its log may be whole again after a restart."""
        if view.partition_epoch < self.partition_epoch:
            return
        if view.leader == self.node_id:
            self.is_leader = True
            self.leader_id = self.node_id
            self.leader_epoch = view.leader_epoch
            self.replicas = view.replicas
            self._commit_isr(view.isr, view.partition_epoch)
        else:
            self.follow(view)
        rest = tuple(node_id for node_id in view.isr if node_id != self.node_id)
        if rest and self.node_id in view.isr:
            self._propose(rest)

    def refresh(self) -> None:
        """Prepare the per-request decisions again, after the role or the configuration changed."""
        log = self.log
        writable = self.is_leader and not self.offline and not self.internal and self.has_room
        self.fast_log = log if writable and not log.needs_walk else None
        self.acks_all_ok = len(self.isr) >= self.min_isr
        self._stands_alone = self.replicas == self.isr == (self.node_id,) and not self.syncs
        if self.is_leader and not self.acks_all_ok:
            # the high watermark stands still from here on
            self._fail_commits(ErrorCode.not_enough_replicas_after_append)

    # --- checks ---

    @property
    def stands_alone(self) -> bool:
        """Whether what its leader here has written is committed."""
        return self.is_leader and self._stands_alone

    def check_acks_all(self) -> None:
        if not self.acks_all_ok:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{self.topic}-{self.index} has {len(self.isr)} in-sync replicas, "
                "fewer than min.insync.replicas",
            )

    def check_room(self) -> None:
        if not self.has_room:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"the log directory of {self.topic}-{self.index} is short of room until the tier takes more "
                "(remote.log.pressure.policy=refuse)",
            )

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """Return the error for a client's leader epoch that is not this one; -1 stands for no epoch."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.none
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    # --- frontier ---

    def frontier(self) -> int:
        leader_end = self.log.log_end_offset
        end = self.synced if self.syncs else leader_end
        now: float | None = None
        peers, members = self._peers, self.maximal_isr
        for follower in self._followers.values():
            if follower.end_offset >= end:
                continue
            if follower.node_id not in members:
                # a replica about to join is waited for: it would never reach a watermark that runs ahead
                now = peers.now() if now is None else now
                if not self._is_caught_up(follower, leader_end, now=now, lag_s=peers.lag_s, is_member=False):
                    continue
                if not peers.is_eligible(follower.node_id, follower.broker_epoch):
                    continue
            end = follower.end_offset
        return end

    def _is_caught_up(
        self, follower: Follower, leader_end: int, *, now: float, lag_s: float, is_member: bool
    ) -> bool:
        """Whether a follower is in sync. Where the time of appends is known, it is if the first record that
        it lacks is young enough: one that reads from the store is always behind, and may report an offset
        later than the Fetch by which it would count as caught up."""
        tail, end = self.tail, follower.end_offset
        if tail is None or end < 0 or end >= leader_end or (tail.is_direct and not is_member):
            since = None
        else:
            since = tail.end_times.appended_at(end)
        if tail is None or since is None:
            return follower.is_caught_up(leader_end, now=now, lag_s=lag_s)
        if not is_member:
            lag_s = min(lag_s, tail.unstored_s(leader_end, now) + JOIN_LAG_S)
        return now - since <= lag_s

    def followers(self) -> Iterable[Follower]:
        return self._followers.values()

    def follower(self, node_id: int) -> Follower | None:
        """Return None for a broker that is no replica, or not yet known here as one."""
        return self._followers.get(node_id)

    def follower_at(
        self, node_id: int, end_offset: int, *, log_start: int = 0, broker_epoch: int = -1
    ) -> bool:
        """Take note that a follower fetches from `end_offset` on. Return whether the high watermark moved."""
        follower = self._followers[node_id]
        has_moved = follower.end_offset != end_offset
        follower.fetched(
            offset=end_offset,
            log_start=log_start,
            leader_end=self.log.log_end_offset,
            broker_epoch=broker_epoch,
            now=self._peers.now(),
        )
        if self.proposal is None and node_id not in self.isr:
            self._consider(follower)
        if self._low_waiters:
            self._low_watermark_moved()
        return has_moved and self.advance()

    def synced_to(self, offset: int) -> bool:
        self.synced = max(self.synced, offset)
        return self.advance()

    def advance(self) -> bool:
        """Move the high watermark as far as the members allow, and answer the requests that waited for it."""
        if not self.is_leader or self.offline:
            return False
        log = self.log
        if self._stands_alone:
            frontier = log.log_end_offset
        elif self.acks_all_ok:
            frontier = self.frontier()
        else:
            return False
        if frontier <= log.high_watermark:
            return False
        log.set_high_watermark(frontier)
        waiters = self._commit_waiters
        while waiters and (first := next(iter(waiters))).needed <= frontier:
            del waiters[first]
            first.reached()
        return True

    # --- in-sync replicas ---

    def _commit_isr(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        for node_id in self.isr:
            if node_id not in isr and (follower := self._followers.get(node_id)) is not None:
                follower.left()
        self.isr = isr
        self.maximal_isr = frozenset(isr)
        self.partition_epoch = partition_epoch
        self.proposal = None

    def _consider(self, follower: Follower) -> None:
        """Propose that it joins once it has everything committed, and something of this epoch: before that,
        offsets that were committed in an earlier one could be missing from its log. Its log start must have
        come as far as ours: it would bring back what was deleted, and below our start no comparison of epochs
        tells whether its batches are ours."""
        if (
            follower.end_offset >= self.log.high_watermark
            and follower.end_offset >= self.epoch_start
            and follower.log_start >= self.log.log_start_offset
            and self._peers.is_eligible(follower.node_id, follower.broker_epoch)
        ):
            self._propose((*self.isr, follower.node_id))

    def propose_shrink(self) -> bool:
        """Propose an ISR without the followers that have lagged too long, if there are any."""
        if not self.is_leader or self.offline or self.proposal is not None:
            return False
        end, now, lag_s = self.log.log_end_offset, self._peers.now(), self._peers.lag_s
        rest = tuple(
            node_id
            for node_id in self.isr
            if (follower := self._followers.get(node_id)) is None
            or self._is_caught_up(follower, end, now=now, lag_s=lag_s, is_member=True)
        )
        if rest == self.isr:
            return False
        self._propose(rest)
        return True

    def _propose(self, isr: tuple[int, ...]) -> None:
        followers = self._followers
        self.proposal = IsrProposal(
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=tuple(
                (node_id, followers[node_id].broker_epoch if node_id in followers else -1) for node_id in isr
            ),
            expands=len(isr) > len(self.isr),
        )
        self.maximal_isr = frozenset((*self.isr, *isr))
        self._peers.proposed(self)

    def committed(
        self, proposal: IsrProposal, *, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int
    ) -> bool:
        """Take over the ISR that the controller committed. Return whether the high watermark moved."""
        if proposal is not self.proposal or leader_epoch != self.leader_epoch:
            return False
        if partition_epoch < self.partition_epoch:
            return False
        self._commit_isr(isr, partition_epoch)
        self.refresh()
        return self.advance()

    def withdraw(self, proposal: IsrProposal) -> bool:
        """Drop a proposal that the controller will never commit. Return whether the high watermark moved."""
        if proposal is not self.proposal:
            return False
        self._commit_isr(self.isr, self.partition_epoch)
        return self.advance()

    def peers_changed(self) -> bool:
        """Wait no longer for replicas whose broker is gone. Return whether the high watermark moved."""
        if self._low_waiters:
            self._low_watermark_moved()
        return self.advance()

    # --- low watermark ---

    @property
    def low_watermark(self) -> int:
        """The least log start of all live replicas: below it every one of them has deleted."""
        low = self.log.log_start_offset
        for follower in self._followers.values():
            if follower.log_start < low and self._peers.is_live(follower.node_id):
                low = follower.log_start
        return low

    def wait_deleted(self, waiter: CommitWaiter) -> None:
        self._low_waiters.append(waiter)

    def wait_deleted_no_more(self, waiter: CommitWaiter) -> None:
        if waiter in self._low_waiters:
            self._low_waiters.remove(waiter)

    def log_start_moved(self) -> None:
        """Answer the deletions that waited for this replica's own log start."""
        if self._low_waiters:
            self._low_watermark_moved()

    def _low_watermark_moved(self) -> None:
        low = self.low_watermark
        waiting, self._low_waiters = self._low_waiters, []
        for waiter in waiting:
            if waiter.needed <= low:
                waiter.reached()
            else:
                self._low_waiters.append(waiter)

    # --- waiters ---

    def data_waits_no_more(self, waiter: DataWaiter) -> None:
        """Forget a consumer, if it waits here; after the last, the room of as many as there were as well: a
        dictionary from which all is taken keeps it."""
        waiters = self.data_waiters
        waiters.pop(waiter, None)
        if not waiters:
            waiters.clear()

    @property
    def commit_waits(self) -> int:
        return len(self._commit_waiters or ())

    def wait_committed(self, waiter: CommitWaiter) -> None:
        """Add a waiter. They come in append order, so the one with the least offset stands first."""
        waiters = self._commit_waiters
        if waiters is None:
            waiters = self._commit_waiters = OrderedDict()
        if waiters and next(reversed(waiters)).needed > waiter.needed:
            ordered = sorted([*waiters, waiter], key=lambda each: each.needed)
            waiters.clear()
            waiters.update(dict.fromkeys(ordered))
        else:
            waiters[waiter] = None
        if self.when_awaited is not None:
            self.when_awaited()

    def wait_no_more(self, waiter: CommitWaiter) -> None:
        """Drop a waiter whose time is up; the high watermark may stand still for much longer."""
        if self._commit_waiters is not None:
            self._commit_waiters.pop(waiter, None)

    def _fail_waiters(self, code: ErrorCode) -> None:
        self._fail_commits(code)
        failed, self._low_waiters = self._low_waiters, []
        for waiter in failed:
            waiter.failed(code)

    def _fail_commits(self, code: ErrorCode) -> None:
        failed, self._commit_waiters = self._commit_waiters, None
        for waiter in failed or ():
            waiter.failed(code)


def few_of(names: Sequence[str]) -> str:
    """Return the names for one log line, the first ten and how many more."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
