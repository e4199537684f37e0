"""Fetch from a follower: the log up to its end, and what the leader learns from being asked.

Owns: reading for followers with their errors, the wait for more, telling them of a high watermark that moved
while nothing was appended, and throttling replicas that catch up. Does not own: the rules of the ISR
(partition), sessions and packing (fetch). Invariant: a follower's offset counts only if its epoch, its
incarnation and its place among the replicas are those this leader knows, and its log has not parted from
this one; each request counts once, when it comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from typing import Any, Final

from broker.handlers.fetch import NOBODY_IS_LEADER, Fetch, Fetched, FetchWait, Read, divergence
from broker.net.connection import Answer, Connection
from broker.replicas.fetch_sessions import FetchTurn, Wanted
from broker.replicas.partition import Partition, Visit
from broker.replicas.purgatory import Waiter
from broker.replicas.throttle import Throttle
from protocol.errors import ErrorCode, KafkaError
from protocol.hot import Address, FetchRequest, fetch_partition_head, fetch_partition_tail

WATERMARK_WAIT_S: Final = 0.01
"""How long a high watermark waits for a batch to travel with. The next Fetch of a busy follower carries it
anyway; an answer at once for each move would double what replication costs."""

GATHER_S: Final = 1.0
GATHER_WAIT_S: Final = 0.02
"""How long after a partition got its leader here its followers are held only shortly: one that is held for
other partitions asks for this one next time, and acks=all waits for it."""
LOOK_AT_ALL_S: Final = 5.0
"""How long a log start that retention moved may wait to be told."""


class Standing:
    """One follower's session from request to request: the partitions that must be looked at.

    A follower asks for thousands of partitions and hears of a few, so the others cost nothing: each is
    watched, and counts as changed when something was appended, committed or decided about it.
    """

    __slots__ = ("_replica_id", "_taps", "changed", "full_at", "generation", "is_over", "visit", "wait")

    def __init__(self, replica_id: int) -> None:
        self._replica_id = replica_id
        self.is_over = False
        self.changed: dict[Wanted, None] = {}
        self.visit = Visit()
        self.wait: ReplicaFetchWait | None = None
        self.generation = -1
        self.full_at = -inf
        self._taps: dict[Wanted, _Tap] = {}

    def __repr__(self) -> str:
        return f"<Standing {len(self._taps)} watched, {len(self.changed)} changed>"

    def watch(self, wanted: Wanted) -> None:
        """From now on its partition tells what happens to it."""
        partition: Partition = wanted.partition
        tap = self._taps.get(wanted)
        if tap is not None:
            if tap.partition is partition:
                return
            tap.leave()
        tap = self._taps[wanted] = _Tap(self, wanted, partition)
        partition.replica_waiters[tap] = None

    def forget_all_but(self, kept: Collection[Wanted]) -> None:
        for wanted in self._taps.keys() - kept:
            tap = self._taps.pop(wanted)
            tap.leave()
            follower = tap.partition.follower(self._replica_id)
            if follower is not None and follower.visit is self.visit:
                follower.visit = None
        # not only who was watched: a partition that was not here yet would be read twice once it is
        for wanted in self.changed.keys() - kept:
            del self.changed[wanted]

    def to_back(self, served: Iterable[Wanted]) -> None:
        for wanted in served:
            if wanted in self.changed:
                del self.changed[wanted]
                self.changed[wanted] = None

    def close(self) -> None:
        for tap in self._taps.values():
            tap.leave()
        self._taps.clear()
        self.changed.clear()
        self.is_over = True


class _Tap(Waiter):
    """Stands at one partition for one session."""

    __slots__ = ("_standing", "_wanted", "partition")

    def __init__(self, standing: Standing, wanted: Wanted, partition: Partition) -> None:
        super().__init__()
        self._standing = standing
        self._wanted = wanted
        self.partition = partition

    def poke(self) -> None:
        standing = self._standing
        standing.changed[self._wanted] = None
        if standing.wait is not None and not standing.wait.done:
            standing.wait.heard_of(self._wanted, self.partition)

    def expired(self) -> None:
        raise AssertionError("it has no deadline")

    def broke(self, error: Exception) -> None:
        wait = self._standing.wait
        if wait is None or wait.done:
            raise error
        wait.broke(error)

    def leave(self) -> None:
        self.done = True
        self.partition.replica_waiters.pop(self, None)


class ReplicaFetch(Fetch):
    is_privileged = True

    def __init__(self, *, node_id: int, throttle: Throttle, **rest: Any) -> None:
        super().__init__(followers=None, **rest)
        self._node_id = node_id
        self._throttle = throttle
        self._standings: dict[int, Standing] = {}
        """The one that counts of each broker: an older one is of a connection that is lost."""
        self._gathers_until = -inf
        self._replicas.on_leadership.append(self._leads)

    def _leads(self, topic: str, index: int, leader_epoch: int | None) -> None:
        now = self._replicas.now()
        if leader_epoch is None:
            return
        if now >= self._gathers_until:
            for standing in self._standings.values():
                if standing.wait is not None and not standing.wait.done:
                    self._purgatory.watch(standing.wait, GATHER_WAIT_S)
        self._gathers_until = now + GATHER_S

    def answer_follower(
        self,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> Answer:
        standing = self._standing(turn, request)
        self._take_note(turn, request, version, standing)
        fetched = self.read(turn, request, version)
        if (
            fetched.available >= request.min_bytes
            or fetched.is_due
            or request.max_wait_ms <= 0
            or standing is None
        ):
            answer = self.respond(connection, turn, version, correlation_id, fetched)
            connection.unsent += len(answer) if isinstance(answer, bytes) else answer.size
            return answer
        wait = ReplicaFetchWait(
            self,
            connection,
            turn,
            request,
            version,
            correlation_id,
            request.min_bytes,
            [],
            fetched.failures,
        )
        wait.standing = standing
        standing.wait = wait
        wait_s = request.max_wait_ms / 1000
        if self._replicas.now() < self._gathers_until:
            wait_s = min(wait_s, GATHER_WAIT_S)
        if is_behind(standing):
            wait.will_tell = True
            wait_s = min(wait_s, WATERMARK_WAIT_S)
        self._purgatory.watch(wait, wait_s)
        return wait.slot

    def _standing(self, turn: FetchTurn, request: FetchRequest) -> Standing | None:
        """None without a session: everything is looked at, and answered at once."""
        session = turn.session
        if session is None:
            return None
        standing = session.reader
        if not isinstance(standing, Standing) or standing.is_over:
            before = self._standings.get(request.replica_id)
            if before is not None:
                before.close()
            standing = Standing(request.replica_id)
            session.reader = self._standings[request.replica_id] = standing
        if request.forgotten:
            standing.forget_all_but(dict.fromkeys(session.wanted.values()).keys())
        now = self._replicas.now()
        if standing.generation != self._replicas.generation or now - standing.full_at > LOOK_AT_ALL_S:
            standing.generation, standing.full_at = self._replicas.generation, now
            standing.changed.update(dict.fromkeys(session.wanted.values()))
        else:
            for item in request.items:
                wanted = session.wanted.get((item.topic, item.partition))
                if wanted is not None:
                    standing.changed[wanted] = None
        return standing

    # -------------------------------------------------------------------------------------------- learning

    def _take_note(
        self, turn: FetchTurn, request: FetchRequest, version: int, standing: Standing | None
    ) -> None:
        """What every partition's leader learns, before anything is read: the watermark that moves by it goes
        out with this answer."""
        for wanted in list(self._to_look_at(turn)):
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
            follower = partition.follower(request.replica_id)
            if follower is not None:
                follower.visit = None if standing is None else standing.visit
            if moved:
                self._replicas.wake_committed(partition)
            if standing is not None:
                standing.watch(wanted)
                if _is_settled(wanted, partition, request.replica_id):
                    standing.changed.pop(wanted, None)
        if standing is not None:
            standing.visit.at = self._replicas.now()

    def _to_look_at(self, turn: FetchTurn) -> Iterable[Wanted]:
        standing = None if turn.session is None else turn.session.reader
        return standing.changed if isinstance(standing, Standing) else turn.wanted

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
        for wanted in list(self._to_look_at(turn)):
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

    def _pack_partition(
        self, listener: str, version: int, read: Read, pieces: list[Any], addresses: dict[int, Address]
    ) -> int:
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
        return size


class ReplicaFetchWait(FetchWait):
    """Woken by appends. A high watermark that moves without one shortens the wait instead of ending it."""

    __slots__ = ("standing", "will_tell")

    standing: Standing

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.will_tell = False

    def expired(self) -> None:
        """Of two deadlines the first one counts."""
        if not self.done:
            super().expired()

    def heard_of(self, wanted: Wanted, partition: Partition) -> None:
        """Something happened to one partition. All that changed is looked at only for what may end the wait:
        a thousand that are committed at once would be looked at a thousand times."""
        if not _is_at_end(wanted, partition):
            self.poke()
        if not self.done and not self.will_tell and _is_untold(wanted, partition):
            self.will_tell = True
            self._fetch.watch(self, WATERMARK_WAIT_S)


def is_behind(standing: Standing) -> bool:
    """Whether a high watermark has moved that this follower was not told of."""
    return any(
        wanted.partition is not None and _is_untold(wanted, wanted.partition) for wanted in standing.changed
    )


def _is_untold(wanted: Wanted, partition: Partition) -> bool:
    return partition.log.high_watermark != wanted.sent_high_watermark


def _is_at_end(wanted: Wanted, partition: Partition) -> bool:
    """There is nothing to read, and nothing has become wrong with asking here."""
    return (
        partition.is_leader
        and not partition.offline
        and partition is wanted.partition
        and partition.epoch_error(wanted.leader_epoch) is ErrorCode.none
        and wanted.offset == partition.log.log_end_offset
    )


def _is_settled(wanted: Wanted, partition: Partition, replica_id: int) -> bool:
    """It has everything and was told everything, and is in sync: there is nothing to do until it moves."""
    held = partition.log
    return (
        wanted.offset == held.log_end_offset
        and wanted.sent_high_watermark == held.high_watermark
        and wanted.sent_start == held.log_start_offset
        and replica_id in partition.isr
    )


def _stranger_error(wanted: Wanted) -> ErrorCode:
    """To a follower that is none of this partition: it has newer metadata, or should get it."""
    if wanted.leader_epoch >= 0:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.not_leader_or_follower
