"""Fetch from a follower: the log up to its end, and what the leader learns from being asked.

Owns: reading for followers with their errors, the wait for more, telling them of a high watermark that moved
while nothing was appended, and throttling replicas that catch up. Does not own: the rules of the ISR
(partition), sessions and packing (fetch). Invariant: a follower's offset counts only if its epoch, its
incarnation and its place among the replicas are those this leader knows, and its log has not parted from
this one; each request counts once, when it comes.
"""

from __future__ import annotations

from typing import Any, Final

from broker.fetch_sessions import FetchTurn, Wanted
from broker.handlers.fetch import NOBODY_IS_LEADER, Fetch, Fetched, FetchWait, Read, divergence
from broker.network import Answer, Connection
from broker.partition import DataWaiter, Partition
from broker.throttle import Throttle
from protocol.errors import ErrorCode, KafkaError
from protocol.hot import FetchRequest, Hint, fetch_partition_head, fetch_partition_tail

WATERMARK_WAIT_S: Final = 0.01
"""How long a high watermark waits for a batch to travel with. The next Fetch of a busy follower carries it
anyway; an answer at once for each move would double what replication costs."""


class ReplicaFetch(Fetch):
    is_privileged = True

    def __init__(self, *, node_id: int, throttle: Throttle, **rest: Any) -> None:
        super().__init__(followers=None, **rest)
        self._node_id = node_id
        self._throttle = throttle

    def answer_follower(
        self,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> Answer:
        self._take_note(turn, request, version)
        fetched = self.read(turn, request, version)
        if fetched.available >= request.min_bytes or fetched.is_due or request.max_wait_ms <= 0:
            answer = self.respond(turn, version, correlation_id, fetched)
            connection.unsent += len(answer) if isinstance(answer, bytes) else answer.size
            return answer
        partitions = [wanted.partition for wanted in turn.wanted if wanted.partition is not None]
        if not partitions:
            return self.respond(turn, version, correlation_id, fetched)
        wait = ReplicaFetchWait(
            self,
            connection,
            turn,
            request,
            version,
            correlation_id,
            request.min_bytes,
            partitions,
            fetched.failures,
        )
        wait_s = request.max_wait_ms / 1000
        if is_behind(turn):
            wait.will_tell = True
            wait_s = min(wait_s, WATERMARK_WAIT_S)
        self._purgatory.watch(wait, wait_s)
        return wait.slot

    # -------------------------------------------------------------------------------------------- learning

    def _take_note(self, turn: FetchTurn, request: FetchRequest, version: int) -> None:
        """What every partition's leader learns, before anything is read: the watermark that moves by it goes
        out with this answer."""
        for wanted in turn.wanted:
            if self._find(wanted, version) is not None:
                continue
            partition: Partition = wanted.partition
            try:
                if self._check(wanted, partition, request) is not None:
                    continue
            except KafkaError:
                continue  # `read` comes to the same answer and gives it
            moved = partition.follower_at(
                request.replica_id,
                wanted.offset,
                log_start=wanted.log_start,
                broker_epoch=request.replica_epoch,
            )
            if moved:
                self._replicas.wake_committed(partition)

    def _check(self, wanted: Wanted, partition: Partition, request: FetchRequest) -> tuple[int, int] | None:
        """Where the two logs part, or None. KafkaError when the offset must not count."""
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

    # --------------------------------------------------------------------------------------------- reading

    def read(self, turn: FetchTurn, request: FetchRequest, version: int) -> Fetched:
        fetched = Fetched()
        room = min(request.max_bytes, self._max_bytes)
        for wanted in turn.wanted:
            error = self._find(wanted, version)
            if error is not None:
                fetched.reads.append(Read(wanted, error=error))
                fetched.is_due = fetched.is_due or error not in NOBODY_IS_LEADER
                continue
            read = self._read_for(wanted, request, room, min_one=fetched.size == 0)
            if read.part is not None:
                size = read.part.size
                fetched.size += size
                fetched.available += size
                room = max(0, room - size)
            elif read.error is not ErrorCode.none or read.diverging is not None:
                fetched.is_due = True
            fetched.reads.append(read)
        return fetched

    def _find(self, wanted: Wanted, version: int) -> ErrorCode | None:
        if wanted.generation == self._replicas.generation:
            return None
        return self._resolve(wanted, version)

    def _read_for(self, wanted: Wanted, request: FetchRequest, room: int, *, min_one: bool) -> Read:
        partition: Partition = wanted.partition
        held = partition.log
        try:
            diverging = self._check(wanted, partition, request)
            read = Read(wanted, held.high_watermark, held.last_stable_offset, held.log_start_offset)
            read.diverging = diverging
            if diverging is not None or wanted.offset == held.log_end_offset:
                return read
            limit = min(wanted.max_bytes, room)
            if (limit > 0 or min_one) and not self._is_throttled(partition, request.replica_id):
                part = held.read(wanted.offset, limit, bound=held.log_end_offset, min_one=min_one)
                if part is not None and part.size > 0:
                    read.part = part
        except KafkaError as failure:
            return Read(wanted, error=failure.code)
        return read

    def _is_throttled(self, partition: Partition, replica_id: int) -> bool:
        """Only who is out of sync anyway: a throttle must not push a replica out."""
        if replica_id in partition.isr:
            return False
        listed = partition.log.config.leader_replication_throttled_replicas
        return self._throttle.holds_back(listed, partition.index, self._node_id)

    # ------------------------------------------------------------------------------------------- answering

    def _pack_partition(self, version: int, read: Read, pieces: list[Any], hints: dict[int, Hint]) -> None:
        """Replication is no client's traffic, and its followers ask the image who leads."""
        wanted, part = read.wanted, read.part
        size = 0 if part is None else part.size
        pieces.append(
            fetch_partition_head(
                version,
                wanted.index,
                read.error.value,
                read.high_watermark,
                read.last_stable,
                read.start,
                None,
                size,
            )
        )
        partition: Partition | None = wanted.partition
        if part is not None and partition is not None:
            partition.stats.replication_bytes_out += size
            self._throttle.sent(
                partition.log.config.leader_replication_throttled_replicas,
                partition.index,
                self._node_id,
                size,
            )
            pieces.append(part)
        pieces.append(fetch_partition_tail(version, read.diverging))


class ReplicaFetchWait(FetchWait):
    """Woken by appends. A high watermark that moves without one shortens the wait instead of ending it."""

    __slots__ = ("will_tell",)

    will_tell: bool

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.will_tell = False

    @staticmethod
    def waiters_of(partition: Partition) -> dict[DataWaiter, None]:
        return partition.replica_waiters

    def poke(self) -> None:
        super().poke()
        if not self.done and not self.will_tell and is_behind(self._turn):
            self.will_tell = True
            self._fetch.watch(self, WATERMARK_WAIT_S)


def is_behind(turn: FetchTurn) -> bool:
    """Whether a high watermark has moved that this follower was not told of."""
    return any(
        wanted.partition is not None and wanted.partition.log.high_watermark != wanted.sent_high_watermark
        for wanted in turn.wanted
    )


def _stranger_error(wanted: Wanted) -> ErrorCode:
    """To a follower that is none of this partition: it has newer metadata, or should get it."""
    if wanted.leader_epoch >= 0:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.not_leader_or_follower
