"""Reading partitions for Fetch: what a client and what a follower may see of each log.

Owns: finding the partition, its bounds and errors, which replica is nearest to a client, and how a request's
bytes are shared out among its partitions. Does not own: waiting for more, sessions and packing (the
handlers), what a leader learns from a follower's offset (partition). Invariant: a client sees nothing at or
past the high watermark, with read_committed nothing past the last stable offset; a follower whose log has
parted from this one gets neither bytes nor pointers; the first batch is served whole whatever the limits are,
so that a reader always advances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from broker.control.cluster import Cluster
from broker.replicas.fetch_sessions import FetchTurn, PartitionRequest
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.partition import Partition
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.throttle import Throttle
from protocol.errors import ErrorCode, KafkaError
from protocol.fetch import FetchRequest
from protocol.pointers import BYTES
from remote.wal.extents import Extent
from remote.wal.tail import Offer
from storage.log import AbstractLog, LogSlice, TieredOffset

_READ_COMMITTED: Final = 1
_STORAGE_ERROR_FROM: Final = 6
_ZSTD_FROM: Final = 10
_RACK_FROM: Final = 11
"""A client that can be sent to a follower may read from one."""
_LEADER_UNKNOWN: Final = (
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
_NO_ABORTED: Final[tuple[tuple[int, int], ...]] = ()
_OFFSET_NOT_AVAILABLE_FROM: Final = 11
REMOTE_READS_MAX: Final = 64
"""How many partitions of one Fetch are read from the tier; the others are empty and come first another time.
"""
POINTERS_MAX: Final = 2_000
"""How many slices one answer points to: about 5 ms of the loop here, and as much at the follower. The other
partitions come first another time."""


class PartitionRead:
    """What one partition gives to one Fetch."""

    __slots__ = (
        "aborted",
        "diverging",
        "error",
        "high_watermark",
        "last_stable",
        "part",
        "pointers",
        "preferred",
        "start",
        "wanted",
    )

    def __init__(
        self,
        wanted: PartitionRequest,
        high_watermark: int = -1,
        last_stable: int = -1,
        start: int = -1,
        part: LogSlice | None = None,
        aborted: Iterable[tuple[int, int]] | None = None,
        error: ErrorCode = ErrorCode.none,
    ) -> None:
        self.wanted = wanted
        self.high_watermark = high_watermark
        self.last_stable = last_stable
        self.start = start
        self.part = part
        self.aborted = aborted if aborted is None else list(aborted)
        self.error = error
        self.diverging: tuple[int, int] | None = None
        self.preferred = -1
        self.pointers: Sequence[Extent] = ()
        """Where a follower finds the records in the WAL tier, instead of `part`."""

    def fail(self, error: ErrorCode) -> None:
        """Become a read that failed; one without an error stays as it is."""
        if error is ErrorCode.none:
            return
        self.high_watermark = self.last_stable = self.start = -1
        self.part = self.aborted = None
        self.error = error


class RemoteWant(NamedTuple):
    """A read of what the log has in the tier alone."""

    read: PartitionRead
    """Where it goes."""
    partition: Partition
    offset: int
    limit: int
    min_one: bool
    bound: int
    committed: bool


class Tier(Protocol):
    def is_open(self) -> bool:
        """Whether another read from the tier may begin now."""


class FetchPass:
    """All reads of one pass. `is_due` when the answer must not wait for more bytes."""

    __slots__ = ("available", "is_due", "is_held_back", "pointers_left", "reads", "room", "size", "wants")

    def __init__(self, room: int) -> None:
        self.room = room
        """How many bytes are still allowed."""
        self.pointers_left = POINTERS_MAX
        """How many slices a follower may still be pointed to."""
        self.reads: list[PartitionRead] = []
        self.wants: list[RemoteWant] | None = None
        """What is still to be read, from the tier."""
        self.is_held_back = False
        """A partition got nothing because the quota of the tier is spent."""
        self.size = 0
        """With what is set aside for the tier."""
        self.available = 0
        """What min_bytes is compared with: a partition that has more than was read counts with all it may
        give, because Kafka would fill that with a piece of the next batch."""
        self.is_due = False

    @property
    def failures(self) -> int:
        return sum(read.error is not ErrorCode.none for read in self.reads)


class PartitionFinder:
    def __init__(self, *, replicas: ReplicaManager, cluster: Cluster) -> None:
        self._replicas = replicas
        self._cluster = cluster

    def find(self, wanted: PartitionRequest, *, reads_followers: bool) -> ErrorCode | None:
        """Find the partition and keep it in `wanted` until the next change of metadata, or return why there
        is none to read; an error is looked up each time.
        """
        wanted.partition = None
        wanted.generation = -1
        topic = wanted.topic
        if isinstance(topic, UUID):
            name = self._cluster.image.topic_names.get(topic)
            if name is None:
                return ErrorCode.unknown_topic_id
        else:
            name = topic
        found = self._replicas.replica(name, wanted.index)
        if isinstance(found, ErrorCode):
            return found
        if isinstance(topic, UUID) and found.topic_id != topic:
            return ErrorCode.inconsistent_topic_id
        if not found.is_leader and (not reads_followers or found.is_to_lead):
            error = found.epoch_error(wanted.leader_epoch)
            return ErrorCode.not_leader_or_follower if error is ErrorCode.none else error
        wanted.partition = found
        wanted.generation = self._replicas.generation
        return None


class ClientReader:
    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        cluster: Cluster,
        near: ReplicaSelector | None = None,
        tier: Tier | None = None,
        max_bytes: int,
    ) -> None:
        """`near` chooses the replica that a client with a rack is sent to. Without a `tier` what is in it
        cannot be read."""
        self._replicas = replicas
        self._finder = PartitionFinder(replicas=replicas, cluster=cluster)
        self._near = near
        self._tier = tier
        self._max_bytes = max_bytes

    def read(self, turn: FetchTurn, request: FetchRequest, version: int) -> FetchPass:
        """Read all partitions of a request, within the bytes it allows; what is in the tier is only planned,
        with its share of those bytes."""
        fetched = self.begin(request)
        self.read_some(fetched, turn.wanted, turn, request, version)
        return fetched

    def begin(self, request: FetchRequest) -> FetchPass:
        return FetchPass(min(request.max_bytes, self._max_bytes))

    def read_some(
        self,
        fetched: FetchPass,
        some: Iterable[PartitionRequest],
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
    ) -> None:
        """Read some partitions of the request; `read` in pieces."""
        room = fetched.room
        committed = request.isolation == _READ_COMMITTED
        only_changes = turn.session is not None
        near = self._near if request.rack else None
        generation = self._replicas.generation
        reads = fetched.reads
        for wanted in some:
            if wanted.generation != generation:
                error = self._finder.find(wanted, reads_followers=version >= _RACK_FROM)
                if error is not None:
                    aborted = _NO_ABORTED if error in _LEADER_UNKNOWN else None
                    reads.append(PartitionRead(wanted, aborted=aborted, error=error_known_to(version, error)))
                    fetched.is_due = fetched.is_due or error not in _LEADER_UNKNOWN
                    continue
            partition: Partition = wanted.partition
            if near is not None:
                preferred = near.select(partition, request.rack, wanted.offset)
                if preferred >= 0:
                    reads.append(_elsewhere(wanted, partition, preferred))
                    fetched.is_due = True
                    continue
            held = partition.log
            high_watermark, start = held.high_watermark, held.log_start_offset
            last_stable = held.last_stable_offset
            offset = wanted.offset
            bound = last_stable if committed else high_watermark
            if (
                offset == bound
                and (wanted.leader_epoch < 0 or wanted.leader_epoch == partition.leader_epoch)
                and (wanted.last_epoch < 0 or wanted.last_epoch == partition.leader_epoch)
            ):
                # a reader at the end, which is what most fetches of an idle topic are
                if (
                    not only_changes
                    or high_watermark != wanted.sent_high_watermark
                    or start != wanted.sent_start
                ):
                    aborted = _NO_ABORTED if committed else None
                    reads.append(PartitionRead(wanted, high_watermark, last_stable, start, None, aborted))
                continue
            try:
                read = self._read_one(
                    wanted, partition, bound, room, version, min_one=fetched.size == 0, committed=committed
                )
            except TieredOffset:
                room = self._plan(fetched, wanted, bound, room, version, committed=committed)
                continue
            if read.part is not None:
                size = read.part.size
                fetched.size += size
                fetched.available += size if read.part.next_offset >= bound else max(size, wanted.max_bytes)
                room = max(0, room - size)
            elif read.error is not ErrorCode.none or read.diverging is not None:
                fetched.is_due = True
            reads.append(read)
        fetched.room = room

    def _read_one(
        self,
        wanted: PartitionRequest,
        partition: Partition,
        bound: int,
        room: int,
        version: int,
        *,
        min_one: bool,
        committed: bool,
    ) -> PartitionRead:
        held = partition.log
        error = partition.epoch_error(wanted.leader_epoch)
        if error is not ErrorCode.none:
            return PartitionRead(wanted, error=error)
        if version < _ZSTD_FROM and held.config.compression_type == "zstd":
            return PartitionRead(wanted, error=ErrorCode.unsupported_compression_type)
        read = PartitionRead(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
        if committed:
            read.aborted = []
        try:
            if wanted.last_epoch >= 0:
                read.diverging = divergence(held, wanted)
                if read.diverging is not None:
                    return read
            if (room > 0 and wanted.max_bytes > 0) or min_one or not _is_inside(held, wanted.offset):
                part = held.read(wanted.offset, min(wanted.max_bytes, room), bound=bound, min_one=min_one)
                if part is not None and part.size > 0:
                    read.part = part
                    if committed:
                        read.aborted = held.aborted_in(wanted.offset, part.next_offset)
        except TieredOffset:
            raise
        except KafkaError as failure:
            return PartitionRead(wanted, error=error_known_to(version, failure.code))
        return read

    def _plan(
        self,
        fetched: FetchPass,
        wanted: PartitionRequest,
        bound: int,
        room: int,
        version: int,
        *,
        committed: bool,
    ) -> int:
        """Take a read from the tier into the plan, in its turn; return the room that is left then."""
        partition: Partition = wanted.partition
        held = partition.log
        read = PartitionRead(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
        fetched.reads.append(read)
        if self._tier is None:
            read.fail(error_known_to(version, ErrorCode.offset_not_available))
            fetched.is_due = True
            return room
        wants = fetched.wants or []
        if len(wants) >= REMOTE_READS_MAX:
            return room
        if not self._tier.is_open():
            fetched.is_held_back = True
            return room
        limit, min_one = min(wanted.max_bytes, room), fetched.size == 0
        if limit <= 0 and not min_one:
            return room
        wants.append(RemoteWant(read, partition, wanted.offset, limit, min_one, bound, committed))
        fetched.wants = wants
        fetched.size += max(limit, 1)
        return max(0, room - limit)

    def look_again(self, want: RemoteWant, version: int) -> bool:
        """Whether a partition may still be read; fails its read if not."""
        wanted = want.read.wanted
        if wanted.generation == self._replicas.generation:
            return True
        error = self._finder.find(wanted, reads_followers=version >= _RACK_FROM)
        if error is None and wanted.partition is want.partition:
            error = want.partition.epoch_error(wanted.leader_epoch)
            if error is ErrorCode.none:
                return True
        want.read.fail(error_known_to(version, error or ErrorCode.not_leader_or_follower))
        return False


class FollowerReader:
    def __init__(
        self,
        *,
        node_id: int,
        replicas: ReplicaManager,
        cluster: Cluster,
        throttle: Throttle,
        max_bytes: int,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._finder = PartitionFinder(replicas=replicas, cluster=cluster)
        self._throttle = throttle
        self._max_bytes = max_bytes

    def read(self, asked: Iterable[PartitionRequest], request: FetchRequest) -> FetchPass:
        """Read the partitions of `asked`, within the bytes that the request allows."""
        fetched = self.begin(request)
        self.read_some(fetched, asked, request)
        return fetched

    def begin(self, request: FetchRequest) -> FetchPass:
        return FetchPass(min(request.max_bytes, self._max_bytes))

    def read_some(self, fetched: FetchPass, some: Iterable[PartitionRequest], request: FetchRequest) -> None:
        """Read some of the partitions; `read` in pieces."""
        room, pointers_left = fetched.room, fetched.pointers_left
        for wanted in some:
            error = self.find(wanted)
            if error is not None:
                fetched.reads.append(PartitionRead(wanted, error=error))
                fetched.is_due = fetched.is_due or error not in _LEADER_UNKNOWN
                continue
            read = self._read_one(wanted, request, room, pointers_left, min_one=fetched.size == 0)
            size = 0
            if read.part is not None:
                size = read.part.size
            elif read.pointers:
                size = sum(each.size for each in read.pointers)
                pointers_left -= len(read.pointers)
            if size:
                fetched.size += size
                fetched.available += size
                room = max(0, room - size)
            elif read.error is not ErrorCode.none or read.diverging is not None:
                fetched.is_due = True
            fetched.reads.append(read)
        fetched.room, fetched.pointers_left = room, pointers_left

    def find(self, wanted: PartitionRequest) -> ErrorCode | None:
        """Find the partition, as `PartitionFinder.find`; a leader alone is read from."""
        if wanted.generation == self._replicas.generation:
            return None
        return self._finder.find(wanted, reads_followers=False)

    def check(
        self, wanted: PartitionRequest, partition: Partition, request: FetchRequest
    ) -> tuple[int, int] | None:
        """Return where the two logs part, or None. Raise KafkaError when the offset must not count."""
        error = partition.epoch_error(wanted.leader_epoch)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        if partition.follower(request.replica_id) is None:
            raise KafkaError(_stranger_error(wanted))
        self._replicas.check_broker_epoch(request.replica_id, request.replica_epoch)
        held = partition.log
        if wanted.last_epoch >= 0 and wanted.last_epoch != held.epochs.latest:
            diverging = divergence(held, wanted)
            if diverging is not None:
                return diverging
        elif wanted.last_epoch >= 0 and wanted.offset > held.log_end_offset:
            return wanted.last_epoch, held.log_end_offset
        if not held.log_start_offset <= wanted.offset <= held.log_end_offset:
            raise KafkaError(ErrorCode.offset_out_of_range)
        return None

    def _read_one(
        self, wanted: PartitionRequest, request: FetchRequest, room: int, pointers_left: int, *, min_one: bool
    ) -> PartitionRead:
        partition: Partition = wanted.partition
        held = partition.log
        try:
            diverging = self.check(wanted, partition, request)
            read = PartitionRead(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
            read.diverging = diverging
            if diverging is not None or wanted.offset == held.log_end_offset:
                return read
            limit = min(wanted.max_bytes, room)
            if limit <= 0 and not min_one:
                return read
            # its offset is inside of the log, and most followers take records alone
            offer = (
                offer_to(wanted, partition, takes_pointers=True) if request.takes_pointers else Offer.BYTES
            )
            if offer is Offer.POINTERS:
                read.pointers = _pointers(wanted, partition, limit, pointers_left)
            elif offer is Offer.BYTES and not self._is_throttled(partition, request.replica_id):
                part = held.read(wanted.offset, limit, bound=held.log_end_offset, min_one=min_one)
                if part is not None and part.size > 0:
                    read.part = part
        except TieredOffset as failure:
            start = held.log_start_offset
            return PartitionRead(wanted, held.high_watermark, start=start, error=failure.code)
        except KafkaError as failure:
            return PartitionRead(wanted, error=failure.code)
        return read

    def _is_throttled(self, partition: Partition, replica_id: int) -> bool:
        """Whether the throttle says to wait. It never holds back a replica that is in sync, and so never
        pushes one out."""
        if replica_id in partition.isr:
            return False
        listed = partition.log.config.leader_replication_throttled_replicas
        return self._throttle.holds_back(listed, partition.index, self._node_id)


def offer_to(wanted: PartitionRequest, partition: Partition, *, takes_pointers: bool) -> Offer:
    """Say what a follower gets of a partition now: pointers, records or nothing."""
    offset, end, tail = wanted.offset, partition.log.log_end_offset, partition.tail
    if tail is None or not takes_pointers or wanted.pointed == BYTES:
        return Offer.BYTES if offset < end else Offer.NOTHING
    if wanted.pointed <= offset:
        return tail.offer(offset, end)
    # records would not fit behind what is still being read
    return Offer.POINTERS if tail.offer(wanted.pointed, end) is Offer.POINTERS else Offer.NOTHING


def _pointers(wanted: PartitionRequest, partition: Partition, limit: int, count_max: int) -> Sequence[Extent]:
    assert partition.tail is not None, partition
    offset = max(wanted.offset, wanted.pointed)
    return partition.tail.pointers(offset, max_bytes=limit, count_max=count_max)


def error_known_to(version: int, code: ErrorCode) -> ErrorCode:
    """The error in a version's terms: clients before v6 do not know KAFKA_STORAGE_ERROR, and look elsewhere
    after NOT_LEADER_OR_FOLLOWER; those before v11 do not know OFFSET_NOT_AVAILABLE, and ask again when they
    are told nothing."""
    if code is ErrorCode.kafka_storage_error and version < _STORAGE_ERROR_FROM:
        return ErrorCode.not_leader_or_follower
    if code is ErrorCode.offset_not_available and version < _OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.none
    return code


def divergence(held: AbstractLog, wanted: PartitionRequest) -> tuple[int, int] | None:
    """Return where this log and what the reader has read so far diverge (KIP-595); None if they agree."""
    epoch, end = held.end_offset_for_epoch(wanted.last_epoch)
    if epoch < 0 or end < 0:
        raise KafkaError(ErrorCode.offset_out_of_range, "the last fetched epoch is unknown")
    if wanted.offset < held.log_start_offset:
        raise KafkaError(ErrorCode.offset_out_of_range)
    if epoch < wanted.last_epoch or end < wanted.offset:
        return epoch, end
    return None


def _elsewhere(wanted: PartitionRequest, partition: Partition, preferred: int) -> PartitionRead:
    """A read without data that names the replica to ask instead."""
    held = partition.log
    read = PartitionRead(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
    read.preferred = preferred
    return read


def _is_inside(held: AbstractLog, offset: int) -> bool:
    return held.log_start_offset <= offset <= held.log_end_offset


def _stranger_error(wanted: PartitionRequest) -> ErrorCode:
    """The error for a follower that is not among the replicas: it has newer metadata, or should get it."""
    if wanted.leader_epoch >= 0:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.not_leader_or_follower
