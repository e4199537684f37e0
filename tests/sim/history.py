"""Owns what a run leaves behind: every client operation, every crash, the metadata log as the bucket saw it,
and the final state of every replica, as plain values.

Results are classified the only way that is safe: ok (answered well), fail (answered with an error that is
decided before anything is appended), unknown (everything else: time-outs, lost connections, and errors that
may come after the append). Does not own judging them.

Invariant: an operation is recorded once, when its fate for the client is sealed, with the times the client
saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from protocol.errors import ErrorCode

Result = Literal["ok", "fail", "unknown"]
TopicPartition = tuple[str, int]
Marker = Literal["", "commit", "abort"]
Fate = Literal["committed", "aborted", "unknown"]

UNKNOWN_CODES = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_controller,
        ErrorCode.network_exception,
        ErrorCode.unknown_server_error,
    }
)

VALUE_BYTES = 8
LARGE = 1 << 62
"""Set in a value whose record is so large that a broker which packs it anew does so in turns of the loop."""
LARGE_BYTES = 33 << 10


def classify(code: ErrorCode) -> Result:
    if code == ErrorCode.none:
        return "ok"
    return "unknown" if code in UNKNOWN_CODES else "fail"


def digest(data: bytes | memoryview | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def payload(value: int) -> bytes:
    """The record value that carries `value`, and enough of its own to notice a changed byte."""
    head = value.to_bytes(VALUE_BYTES, "big")
    times = LARGE_BYTES // VALUE_BYTES if value & LARGE else value % 5
    return head + head * times + b"."


def value_of(data: bytes | None) -> int:
    """The carried value, or -1 for bytes nobody sent."""
    if data is None or len(data) < VALUE_BYTES + 1:
        return -1
    value = int.from_bytes(data[:VALUE_BYTES], "big")
    return value if payload(value) == data else -1


class Origin(NamedTuple):
    """One record that was read to be copied."""

    tp: TopicPartition
    offset: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One batch of one producer; `node` and `life` are those of the broker that answered the attempt which
    was begun at `asked`. `ends` is where each replica ended when an acks=all ack arrived, on its
    broker or left on its disk."""

    client: str
    connection: int
    tp: TopicPartition
    values: tuple[int, ...]
    acks: int
    invoked: float
    done: float
    result: Result
    error: str = ""
    base_offset: int = -1
    node: int = 1
    life: int = 0
    asked: float | None = None
    producer: tuple[int, int] | None = None
    sequence: int = -1
    attempts: int = 1
    ends: tuple[tuple[int, int], ...] = ()
    transaction: str = ""
    """The key of the transaction that it is in."""
    origins: tuple[Origin, ...] = ()
    """What a copier read each of these values from."""

    @property
    def since(self) -> float:
        """Nothing that happened before this can have anything to do with the answer."""
        return self.invoked if self.asked is None else self.asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`producer` is its id and epoch. A `marker` ends the transaction of its producer and has no value."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    digest: str
    values: tuple[int, ...]
    producer: tuple[int, int] = (-1, -1)
    is_transactional: bool = False
    marker: Marker = ""

    def pairs(self) -> list[tuple[int, int]]:
        return list(enumerate(self.values, self.base_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One fetch of an assigned consumer; `seek` says that its offset does not follow from the last one."""

    client: str
    tp: TopicPartition
    offset: int
    invoked: float
    done: float
    result: Result
    error: str = ""
    seek: bool = False
    leader_epoch: int = -1
    batches: tuple[Batch, ...] = ()
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    node: int = 1
    life: int = 0
    is_committed: bool = False
    """Whether it asked for nothing but what is committed (read_committed)."""
    aborted: tuple[tuple[int, int], ...] = ()
    """The producer id and the first offset of each aborted transaction that the answer names."""

    def delivered(self) -> list[tuple[int, int]]:
        """The (offset, value) of every record that a stock client hands to its user."""
        if not self.is_committed:
            return [pair for batch in self.batches for pair in batch.pairs() if pair[0] >= self.offset]
        waiting = sorted(self.aborted, key=lambda each: each[1])
        given: list[tuple[int, int]] = []
        aborting: set[int] = set()
        for batch in self.batches:
            while waiting and waiting[0][1] < batch.next_offset:
                aborting.add(waiting.pop(0)[0])
            if batch.marker == "abort":
                aborting.discard(batch.producer[0])
            elif not (batch.is_transactional and batch.producer[0] in aborting):
                given += [pair for pair in batch.pairs() if pair[0] >= self.offset]
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction as its producer knows of it in the end. It is `aborted` when nobody ever asked for its
    commit (`asked` is None), or the commit was refused for certain."""

    key: str
    client: str
    transactional_id: str
    producer: tuple[int, int]
    version: int
    """Of the protocol: 1 adds its partitions before it writes to them, 2 has an epoch of its own."""
    begun: float
    done: float
    fate: Fate
    asked: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSeen:
    """What a coordinator tells of a transactional id when all have had their time to end."""

    transactional_id: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecords:
    tp: TopicPartition
    before: int
    invoked: float
    done: float
    result: Result
    low_watermark: int = -1
    error: str = ""


AdminKind = Literal["create", "delete", "grow", "configure", "reassign", "elect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOp:
    """What an operator asked for and heard. `asked` is a number of partitions (create, grow), a setting's
    value (configure) or the replicas of `index` (reassign); `topic_id` is what the answer names. `node` and
    `life` are those of the broker that was asked."""

    kind: AdminKind
    topic: str
    asked: object = None
    index: int = 0
    invoked: float
    done: float
    result: Result
    error: str = ""
    topic_id: str = ""
    node: int = 1
    life: int = 1


# What is known of a topic, by (name, aspect): PLACES are its id and, for each partition, leader epoch,
# replicas and ISR; SETTING is the one setting that operators change. None: there is no such topic.
Facts = Mapping[tuple[str, str], object]
PLACES, SETTING = "places", "retention.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRead:
    """What one answer said of some topics, or of all there are; `is_final` when nothing was under way."""

    node: int
    life: int
    invoked: float
    done: float
    facts: Facts
    is_all: bool = False
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One value written to one incarnation of a topic that comes and goes."""

    topic: str
    topic_id: str
    value: int
    result: Result
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """The values in one replica of a topic that comes and goes, and which incarnation it is of."""

    node: int
    topic: str
    topic_id: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member learned what it owns in one generation."""

    group: str
    member: str
    generation: int
    assignment: tuple[TopicPartition, ...]
    invoked: float
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    group: str
    member: str
    generation: int
    invoked: float
    done: float
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat of a member whose group the server assigns. `claimed` is what it said that it owns, None
    for as before; `given` is what it was told to own, None for as before. It leaves with an epoch below 0."""

    group: str
    member: str
    sent_epoch: int
    epoch: int
    claimed: tuple[TopicPartition, ...] | None
    given: tuple[TopicPartition, ...] | None
    invoked: float
    done: float
    result: Result
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """`tag` is unique and travels as the commit's metadata, so a read names the commit it saw."""

    group: str
    member: str
    generation: int
    tp: TopicPartition
    offset: int
    tag: str
    invoked: float
    done: float
    result: Result
    error: str = ""
    transaction: str = ""
    """The key of the transaction that it is in; its result is that transaction's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRead:
    group: str
    tp: TopicPartition
    offset: int
    tag: str
    invoked: float
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A life of a broker that ended without a clean stop, and what the disk kept of each log: as read from
    the bytes (`kept_end`), and as the broker's own recovery has it, which may be more: what this life had cut
    off. `replaced` when the next life begins on an empty disk."""

    life: int
    at: float
    power: bool
    node: int = 1
    replaced: bool = False
    synced_end: Mapping[TopicPartition, int] = field(default_factory=dict)
    kept_end: Mapping[TopicPartition, int] = field(default_factory=dict)
    recovered_end: Mapping[TopicPartition, int] | None = None
    was_ready: bool = True
    """Whether that life ever served: one that did not has appended nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLog:
    """One replica's log: from its files, but for the high watermark, which is what the broker knows.

    `batches` is everything that its files hold; what of it counts is told by `counted` and `pairs`. Files
    lose whole segments only, so a replica may hold batches below its log start, from before it adopted
    that start: they were deleted, nobody is served them, and they may never have been committed.
    """

    node: int = 1
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    batches: tuple[Batch, ...]
    epochs: tuple[tuple[int, int], ...] = ()
    local_log_start_offset: int | None = None
    """Where `batches` begin, if not at the log start: what is before is in the tier and was not looked at."""
    tiered_end: int = 0
    readable_to: int | None = None
    """How far the tier can be read from the log start on, as its objects are; None where that counts for
    nothing."""
    last_stable_offset: int | None = None
    is_leader: bool = False
    tier_epochs: tuple[tuple[int, int], ...] = ()
    """Each leader epoch and where it begins, by the batches that its log may read from the tier."""
    has_all_epochs: bool = True
    """Whether its broker takes what it knows of epochs for whole."""

    @property
    def begins(self) -> int:
        """The first offset that `batches` can tell of."""
        local = self.local_log_start_offset
        return self.log_start_offset if local is None else max(local, self.log_start_offset)

    @property
    def counted(self) -> tuple[Batch, ...]:
        """The batches with a record at or above the log start."""
        return tuple(batch for batch in self.batches if batch.next_offset > self.begins)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(offset, value) of every record at or above the log start."""
        start = self.begins
        return tuple(pair for batch in self.counted for pair in batch.pairs() if pair[0] >= start)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalLog(ReplicaLog):
    """One partition after healing: its leader's log, and what the leader served of it."""

    served: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Replicas of one partition, looked at in one moment; at the end, when nothing may differ any more."""

    at: float
    tp: TopicPartition
    logs: tuple[ReplicaLog, ...]
    is_final: bool = False


# The cold tier ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCopy:
    """One copy of a segment as the committed records of the tier tell of it; `partition` names the topic by
    its id, `objects` are the sizes of its data and its index, None for one that is not there."""

    partition: tuple[str, int]
    id: str
    base: int
    end: int
    size: int
    state: str
    objects: tuple[int | None, ...]


class HadAlone(NamedTuple):
    """The (offset, epoch) of the batches that only one finished copy of `tp` had, above the log start of its
    leader: those that the leader's log had too, and those from which it had parted."""

    tp: TopicPartition | None = None
    shared: tuple[tuple[int, int], ...] = ()
    parted: tuple[tuple[int, int], ...] = ()


NOTHING_ALONE = HadAlone()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """One object of the tier that came or went, and what was said of its copy by then. `sent` is when the
    request for it left its sender, `digest` is of what is there afterwards; empty for nothing. `alone` is
    what went with it."""

    at: float
    sent: float
    node: int
    key: str
    copy: str
    digest: str
    state: str
    alone: HadAlone = NOTHING_ALONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """A local log that began later than a moment before, though nobody cut it, and how far what its files
    held until then could be read from the tier. What is below `start` had been deleted for good."""

    at: float
    tp: TopicPartition
    node: int
    start: int
    end: int
    readable_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSeen:
    """What a broker takes the copies to be that one partition of the metadata tells of; node 0: what its log
    says. Each is (partition, id, state)."""

    node: int
    index: int
    copies: tuple[tuple[tuple[str, int], str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSeen:
    """The tier in one moment; at the end, when nothing is under way, with the objects nobody speaks of."""

    at: float
    copies: tuple[TierCopy, ...]
    unreferenced: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    folds: tuple[FoldSeen, ...] = ()
    is_final: bool = False


# The WAL tier -----------------------------------------------------------------------------------------------


class SliceBatch(NamedTuple):
    """One batch in an object of the WAL tier."""

    base: int
    next: int
    epoch: int
    digest: str


class WalChange(NamedTuple):
    """One put below `wal/` that took effect, or one delete, and who had sent it."""

    at: float
    node: int
    life: int
    kind: str  # put, delete
    key: str
    size: int = 0
    table: bytes = b""
    """Head and table of an object, without its slices; all of what has none."""
    batches: tuple[tuple[SliceBatch, ...], ...] = ()
    """Of each slice."""
    wrong: tuple[str, ...] = ()
    """What was wrong with its bytes when it was put."""


class WalRead(NamedTuple):
    """A part of an object of the WAL tier, behind its first bytes, that a broker asked for."""

    at: float
    node: int
    life: int
    key: str


class WalGone(NamedTuple):
    """What went with an object of the WAL tier and was still needed at that moment."""

    at: float
    key: str
    tp: TopicPartition
    start: int
    end: int
    ends: tuple[tuple[int, int], ...]
    """Where each replica ended, on its broker or on the disk that was left."""


class WalLook(NamedTuple):
    """The most that a broker's part of the WAL tier held at any look, and what it may hold."""

    node: int
    life: int
    what: str
    most: int
    limit: int


# The metadata log, as the bucket saw it ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChange:
    """One put that took effect, or one delete, below `meta/`, and who had sent it."""

    at: float
    node: int
    life: int
    kind: str
    key: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """`adding` are the replicas that a reassignment under way brings. Epochs count within one `topic_id`."""

    tp: TopicPartition
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    topic_id: str = ""

    def may_lead_after(self, before: PartitionState) -> bool:
        """Whether its leader was in sync: a member of the ISR, or one whose joining it ended a reassignment,
        which takes those away that are not to stay in the same breath."""
        has_shrunk = {*self.replicas} < {*before.replicas} and before.leader not in self.replicas
        has_ended = self.leader in before.replicas and has_shrunk and not self.adding
        return self.leader in before.isr or has_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    id: int
    epoch: int
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminEvent:
    """What one record did to a topic; `value` as in AdminOp."""

    kind: AdminKind
    topic: str
    topic_id: str
    value: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSlot:
    """One slot, who put it there and when, and what it changed. `elects` is a controller epoch it claims."""

    seq: int
    at: float
    node: int
    life: int
    controller_epoch: int
    hash: str
    previous_hash: str
    elects: int | None = None
    is_void: bool = False
    partitions: tuple[PartitionState, ...] = ()
    brokers: tuple[BrokerState, ...] = ()
    deleted: tuple[str, ...] = ()
    events: tuple[AdminEvent, ...] = ()
    facts: Facts = field(default_factory=dict)
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSeen:
    """What a broker took the cluster to be, having applied slots up to `seq`."""

    node: int
    life: int
    seq: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What one restart found in files against what the log itself says, by name; empty when they agree."""

    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What one broker holds when every client has gone and nothing is under way: `tasks` and `waiters` by
    kind, `connections` as (peer, whether its end is there: "open", "gone" or "untold"), heartbeats that are
    `silent_beats` because their connection is lost, `queues` by name, what it keeps of what is `no_more`, and
    open files that were `deleted`. `others` are the brokers of the cluster but this one, `followed` those
    that lead what it follows."""

    node: int
    life: int
    at: float
    others: tuple[int, ...]
    followed: tuple[int, ...]
    is_controller: bool
    tasks: Mapping[str, int]
    waiters: Mapping[str, int] = field(default_factory=dict)
    overdue: int = 0
    connections: tuple[tuple[str, str], ...] = ()
    counted_connections: int = 0
    silent_beats: tuple[int, ...] = ()
    queues: Mapping[str, int] = field(default_factory=dict)
    no_more: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    tier_leaders: tuple[int, ...] = ()
    """Who leads a partition of the cold tier's metadata."""
    lanes: int = 1
    """On which a broker may follow another."""
    watched_lanes: int = 1
    """On which it may have followed another until its topics left the WAL tier: who stops is watched for."""


@dataclass(slots=True)
class History:
    """One run. `single_replica_flush` is the broker's log.flush.single.replica; `unclean_topics` are those in
    which a replica from outside the ISR may be made leader, because the configuration or an operator says so.
    `forgets` says that logs lose what is old by themselves. Partitions of which `slots` say nothing have one
    replica, on node 1."""

    single_replica_flush: bool = False
    forgets: bool = False
    clocks_differ: bool = False
    """Somebody's clock was set: what is to happen at a time may happen an hour or a day later."""
    unclean_topics: set[str] = field(default_factory=set)
    sends: list[Send] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    deletes: list[DeleteRecords] = field(default_factory=list)
    admin: list[AdminOp] = field(default_factory=list)
    reads: list[ClusterRead] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    remains: list[Remains] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    transactions_seen: list[TransactionSeen] = field(default_factory=list)
    unstable: list[tuple[str, TopicPartition]] = field(default_factory=list)
    """Groups and partitions of which an open transaction still held an offset in the end."""
    copies_of: dict[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    """By group of copiers: what they read."""
    commits: list[Commit] = field(default_factory=list)
    commit_reads: list[CommitRead] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    logs: dict[TopicPartition, FinalLog] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    tiers: list[TierSeen] = field(default_factory=list)
    tier_changes: list[ObjectChange] = field(default_factory=list)
    freed: list[Freed] = field(default_factory=list)
    is_calm: bool = False
    """Nothing was done to this run that would make a leader send records which its followers can read in the
    WAL tier."""
    wal_window: int = 4
    """So many objects of a stream may be under way."""
    wal_changes: list[WalChange] = field(default_factory=list)
    wal_reads: list[WalRead] = field(default_factory=list)
    wal_gone: list[WalGone] = field(default_factory=list)
    wal_looks: list[WalLook] = field(default_factory=list)
    wal_direct: dict[int, int] = field(default_factory=dict)
    """Bytes of records of partitions that use the WAL tier which each broker fetched from leaders."""
    wal_left: tuple[str, ...] = ()
    """Objects below `wal/` that were there in the end, of a run that goes on until all that nothing needs is
    gone."""
    wal_untold: tuple[str, ...] = ()
    """Where the topic about the WAL tier said something else than the bucket then."""
    slots: tuple[MetaSlot, ...] = ()
    collected_early: tuple[str, ...] = ()
    images: list[ImageSeen] = field(default_factory=list)
    censuses: list[Census] = field(default_factory=list)

    def operations(self) -> int:
        return (
            len(self.sends)
            + len(self.fetches)
            + len(self.deletes)
            + len(self.admin)
            + len(self.reads)
            + len(self.marks)
            + len(self.syncs)
            + len(self.heartbeats)
            + len(self.beats)
            + len(self.transactions)
            + len(self.commits)
            + len(self.commit_reads)
        )
