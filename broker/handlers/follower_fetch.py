"""Fetch from a follower: what the leader learns from being asked, and the wait for more.

Owns: a follower's session from request to request, counting its offsets, telling it of a high watermark that
moved while nothing was appended. Does not own: reading (broker.replicas.read), the rules of the ISR
(partition), packing (fetch_response). Invariant: a follower's offset counts only if its epoch, its
incarnation and its place among the replicas are those this leader knows, and its log has not parted from this
one; each request counts once, when it comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from math import inf
from typing import Any, Final, NamedTuple

from broker.control.cluster import Cluster
from broker.handlers.fetch import FetchWait
from broker.handlers.fetch_response import FetchResponse
from broker.handlers.hang_up import or_hang_up
from broker.net.connection import Answer, AnswerSlot, Connection
from broker.replicas.fetch_sessions import FetchSessions, FetchTurn, PartitionRequest
from broker.replicas.partition import UNKNOWN, FetchTime, Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.read import FetchPass, FollowerReader, PartitionRead, offer_to
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.throttle import Throttle
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.fetch import FetchRequest
from protocol.pointers import BYTES
from protocol.primitives import ROWS_A_STEP, ROWS_AT_ONCE
from protocol.work import Work
from remote.wal.stats import WalStats
from remote.wal.tail import Offer, Tail

logger = logging.getLogger(__name__)

WATERMARK_WAIT_S: Final = 0.01
"""How long a high watermark waits for a batch to travel with. The next Fetch of a busy follower carries it
anyway; an answer at once for each move would double what replication costs."""
POINTED_WATERMARK_WAIT_S: Final = 0.001
"""The same for a follower that reads from the store: no batch is to come with this answer."""

GATHER_S: Final = 1.0
GATHER_WAIT_S: Final = 0.02
"""How long after a partition got its leader here its followers are held only shortly: one that is held for
other partitions asks for this one next time, and acks=all waits for it."""
LOOK_AT_ALL_S: Final = 5.0
"""How long a log start that retention moved may wait until followers are told."""

FETCHED_LATELY_S: Final = 10.0
"""A follower that has not asked for so long is away: nobody knows what it will read."""


class Asked(NamedTuple):
    """A Fetch, and where it is answered."""

    connection: Connection
    turn: FetchTurn
    request: FetchRequest
    version: int
    correlation_id: int


class FollowerSession:
    """What is kept of one follower from request to request: the partitions that must be looked at.

    A follower asks for thousands of partitions and is told of a few, so the others cost nothing: each is
    watched, and counts as changed when something was appended, committed or decided about it.
    """

    __slots__ = (
        "_watches",
        "all_changed_at",
        "changed",
        "fetch_time",
        "generation",
        "is_over",
        "moved",
        "replica_id",
        "takes_pointers",
        "wait",
    )

    def __init__(self, replica_id: int, *, takes_pointers: bool = False) -> None:
        self.replica_id = replica_id
        self.takes_pointers = takes_pointers
        self.is_over = False
        self.changed: dict[PartitionRequest, None] = {}
        self.moved: dict[PartitionRequest, Partition] | None = None
        """What something happened to while a request is read in turns, before it can wait."""
        self.fetch_time = FetchTime()
        self.wait: FollowerFetchWait | None = None
        self.generation = -1
        self.all_changed_at = -inf
        self._watches: dict[PartitionRequest, PartitionWatch] = {}

    @property
    def watermark_wait_s(self) -> float:
        return POINTED_WATERMARK_WAIT_S if self.takes_pointers else WATERMARK_WAIT_S

    def __repr__(self) -> str:
        return f"<FollowerSession {len(self._watches)} watched, {len(self.changed)} changed>"

    def watch(self, wanted: PartitionRequest) -> None:
        """Watch its partition from now on."""
        partition: Partition = wanted.partition
        watch = self._watches.get(wanted)
        if watch is not None:
            if watch.partition is partition:
                return
            watch.leave()
        watch = self._watches[wanted] = PartitionWatch(self, wanted, partition)
        partition.replica_waiters[watch] = None

    def forget_all_but(self, kept: Collection[PartitionRequest]) -> None:
        for wanted in self._watches.keys() - kept:
            watch = self._watches.pop(wanted)
            watch.leave()
            follower = watch.partition.follower(self.replica_id)
            if follower is not None and follower.fetch_time is self.fetch_time:
                follower.fetch_time = None
        # not only those watched: a partition that was not here yet would be read twice once it is
        for wanted in self.changed.keys() - kept:
            del self.changed[wanted]

    def to_back(self, served: Iterable[PartitionRequest]) -> None:
        for wanted in served:
            if wanted in self.changed:
                del self.changed[wanted]
                self.changed[wanted] = None

    def close(self) -> None:
        for watch in self._watches.values():
            watch.leave()
        self._watches.clear()
        self.changed.clear()
        self.is_over = True


class PartitionWatch(Waiter):
    """Stands at one partition for one session, and marks it as changed when something happens to it."""

    __slots__ = ("_session", "_wanted", "partition")

    def __init__(self, session: FollowerSession, wanted: PartitionRequest, partition: Partition) -> None:
        super().__init__()
        self._session = session
        self._wanted = wanted
        self.partition = partition

    @property
    def replica_id(self) -> int:
        return self._session.replica_id

    @property
    def fetched_at(self) -> float:
        return self._session.fetch_time.at

    @property
    def is_pointed(self) -> bool:
        """Whether its follower reads what comes next from the store, as things are."""
        takes_pointers, tail = self._session.takes_pointers, self.partition.tail
        offer = offer_to(self._wanted, self.partition, takes_pointers=takes_pointers)
        if offer is not Offer.NOTHING:
            return offer is Offer.POINTERS
        return takes_pointers and tail is not None and not tail.is_direct and self._wanted.pointed != BYTES

    def poke(self) -> None:
        session = self._session
        session.changed[self._wanted] = None
        if session.wait is not None and not session.wait.done:
            session.wait.partition_changed(self._wanted, self.partition)
        elif session.moved is not None:
            session.moved[self._wanted] = self.partition

    def expired(self) -> None:
        raise AssertionError("it has no deadline")

    def broke(self, error: Exception) -> None:
        wait = self._session.wait
        if wait is None or wait.done:
            raise error
        wait.broke(error)

    def leave(self) -> None:
        self.done = True
        self.partition.replica_waiters.pop(self, None)


def modes_of_followers(partition: Partition, now: float) -> dict[int, bool]:
    """Say of each follower that has fetched lately whether it is pointed to the store, or sent records."""
    return {
        watch.replica_id: watch.is_pointed
        for watch in partition.replica_waiters
        if isinstance(watch, PartitionWatch) and now - watch.fetched_at <= FETCHED_LATELY_S
    }


class FollowerFetch:
    def __init__(
        self,
        *,
        node_id: int,
        throttle: Throttle,
        replicas: ReplicaManager,
        cluster: Cluster,
        sessions: FetchSessions,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        turns: Turns,
        max_bytes: int,
        wal_stats: WalStats,
    ) -> None:
        self._spawn = spawn
        self._turns = turns
        self.remote = None
        """A follower reads nothing from the tier through its leader."""
        self._node_id = node_id
        self._throttle = throttle
        self._replicas = replicas
        self._purgatory = purgatory
        self._wal_stats = wal_stats
        self._reader = FollowerReader(
            node_id=node_id, replicas=replicas, cluster=cluster, throttle=throttle, max_bytes=max_bytes
        )
        response = FetchResponse(
            cluster=cluster, sessions=sessions, now_ms=now_ms, count=self._count, for_followers=True
        )
        self.respond = response.respond
        self._responding = response.responding
        self._sessions: dict[tuple[int, bool], FollowerSession] = {}
        """The one that counts of each broker, and the one in which it takes pointers: an older one is of a
        connection that is lost."""
        self._hurries_until = -inf
        replicas.on_leadership.append(self._leads)

    def _leads(self, topic: str, index: int, leader_epoch: int | None) -> None:
        now = self._replicas.now()
        if leader_epoch is None:
            return
        if now >= self._hurries_until:
            for session in self._sessions.values():
                if session.wait is not None and not session.wait.done:
                    self._purgatory.watch(session.wait, GATHER_WAIT_S)
        self._hurries_until = now + GATHER_S

    def answer(
        self,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> Answer:
        connection.is_peer = True
        session = self._session(turn, request)
        asked = list(_changed(turn))
        if len(asked) > ROWS_AT_ONCE:
            slot = connection.slot()
            answering = self.answer_long(connection, slot, turn, request, version, correlation_id)
            self._spawn(or_hang_up(connection, answering, "a follower's Fetch", logger))
            return slot
        self._learn(asked, request, session)
        self._learned(session)
        fetched = self.read(turn, request, version)
        if self._is_due(fetched, request, session):
            answer = self.respond(connection, turn, version, correlation_id, fetched)
            connection.unsent += len(answer) if isinstance(answer, bytes) else answer.size
            return answer
        assert session is not None
        asked_at_once = Asked(connection, turn, request, version, correlation_id)
        until = self._replicas.now() + request.max_wait_ms / 1000
        return self._wait(asked_at_once, session, fetched.failures, until=until)

    async def answer_long(
        self,
        connection: Connection,
        slot: AnswerSlot,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> None:
        """Answer one for which many partitions must be looked at, in turns of the loop."""
        connection.is_peer = True
        session = self._session(turn, request)
        asked = Asked(connection, turn, request, version, correlation_id)
        until = self._replicas.now() + request.max_wait_ms / 1000
        await self._answer_in_turns(asked, session, self._reading(turn, request, session), slot, until)

    def look_again(self, wait: FollowerFetchWait, *, is_over: bool) -> None:
        """Go on with a wait in turns, because much has changed for it: answer it if it is over or there is
        something to tell, and have it wait for the rest of its time otherwise."""
        asked, until = wait.asked, -inf if is_over else wait.until
        work = self._reading_changed(asked.turn, asked.request)
        answering = self._answer_in_turns(asked, wait.session, work, wait.slot, until, wait.failures)
        self._spawn(or_hang_up(asked.connection, answering, "a follower's Fetch", logger))

    async def _answer_in_turns(
        self,
        asked: Asked,
        session: FollowerSession | None,
        reading: Work[FetchPass],
        slot: AnswerSlot,
        until: float,
        failures: float = inf,
    ) -> None:
        connection, turn, request, version, correlation_id = asked
        moved: dict[PartitionRequest, Partition] = {}
        if session is not None:
            session.moved = moved
        try:
            fetched = await self._turns.run(reading)
        finally:
            if session is not None:
                session.moved = None
        is_over = self._replicas.now() >= until or fetched.failures > failures
        if is_over or self._is_due(fetched, request, session):
            answer = await self._turns.run(
                self._responding(connection, turn, version, correlation_id, fetched)
            )
            connection.answer(slot, answer)
            connection.resume()
            return
        assert session is not None
        if connection.is_closing:
            return
        self._wait(asked, session, fetched.failures, until=until, slot=slot)
        for wanted, partition in moved.items():
            if session.wait is not None and not session.wait.done:
                session.wait.partition_changed(wanted, partition)

    def _reading(
        self, turn: FetchTurn, request: FetchRequest, session: FollowerSession | None
    ) -> Work[FetchPass]:
        """Learn from all partitions, then read those that changed, in steps."""
        asked = list(_changed(turn))
        for at in range(0, len(asked), ROWS_A_STEP):
            self._learn(asked[at : at + ROWS_A_STEP], request, session)
            yield
        self._learned(session)
        return (yield from self._reading_changed(turn, request))

    def _reading_changed(self, turn: FetchTurn, request: FetchRequest) -> Work[FetchPass]:
        fetched = self._reader.begin(request)
        asked = list(_changed(turn))
        for at in range(0, len(asked), ROWS_A_STEP):
            self._reader.read_some(fetched, asked[at : at + ROWS_A_STEP], request)
            yield
        return fetched

    def _is_due(self, fetched: FetchPass, request: FetchRequest, session: FollowerSession | None) -> bool:
        return (
            fetched.available >= request.min_bytes
            or fetched.is_due
            or request.max_wait_ms <= 0
            or session is None
        )

    def _wait(
        self,
        asked: Asked,
        session: FollowerSession,
        failures: int,
        *,
        until: float,
        slot: AnswerSlot | None = None,
    ) -> AnswerSlot:
        wait = FollowerFetchWait(self, session, asked, failures, until, slot)
        session.wait = wait
        now = self._replicas.now()
        wait_s = until - now
        if now < self._hurries_until:
            wait_s = min(wait_s, GATHER_WAIT_S)
        if is_behind(session):
            wait.is_hurried = True
            wait_s = min(wait_s, session.watermark_wait_s)
        self._purgatory.watch(wait, wait_s)
        return wait.slot

    def read(self, turn: FetchTurn, request: FetchRequest, version: int) -> FetchPass:
        return self._reader.read(list(_changed(turn)), request)

    def hurry(self, wait: FollowerFetchWait) -> None:
        """End a wait soon, because a high watermark has moved that its follower was not told of."""
        wait.is_hurried = True
        self._purgatory.watch(wait, wait.session.watermark_wait_s)

    def _session(self, turn: FetchTurn, request: FetchRequest) -> FollowerSession | None:
        """Return the follower's session; without one every partition is read and nothing is waited for."""
        held = turn.session
        if held is None:
            return None
        session = held.reader
        if not isinstance(session, FollowerSession) or session.is_over:
            lane = (request.replica_id, request.takes_pointers)
            before = self._sessions.get(lane)
            if before is not None:
                before.close()
            session = FollowerSession(request.replica_id, takes_pointers=request.takes_pointers)
            held.reader = self._sessions[lane] = session
        if request.forgotten:
            session.forget_all_but(dict.fromkeys(held.wanted.values()).keys())
        now = self._replicas.now()
        if session.generation != self._replicas.generation or now - session.all_changed_at > LOOK_AT_ALL_S:
            session.generation, session.all_changed_at = self._replicas.generation, now
            session.changed.update(dict.fromkeys(held.wanted.values()))
        else:
            for item in request.items:
                wanted = held.wanted.get((item.topic, item.partition))
                if wanted is not None:
                    session.changed[wanted] = None
        return session

    def _learn(
        self, asked: Iterable[PartitionRequest], request: FetchRequest, session: FollowerSession | None
    ) -> None:
        """Count the follower's offset at each partition, before anything is read: a high watermark that moves
        by it leaves with this answer."""
        reader, now = self._reader, self._replicas.now()
        for wanted in asked:
            if reader.find(wanted) is not None:
                continue
            partition: Partition = wanted.partition
            try:
                if reader.check(wanted, partition, request) is not None:
                    continue
            except KafkaError:
                continue  # `read` comes to the same answer and gives it
            moved = partition.follower_at(
                request.replica_id,
                wanted.offset,
                log_start=wanted.log_start,
                broker_epoch=request.replica_epoch,
            )
            if 0 <= wanted.told_to <= wanted.offset:
                self._wal_stats.report_s.note(now - wanted.told_at)
                wanted.told_to = UNKNOWN
            follower = partition.follower(request.replica_id)
            if follower is not None:
                follower.fetch_time = None if session is None else session.fetch_time
            if moved:
                self._replicas.wake_committed(partition)
            if session is not None:
                session.watch(wanted)
                if _is_up_to_date(wanted, partition, request.replica_id):
                    session.changed.pop(wanted, None)

    def _learned(self, session: FollowerSession | None) -> None:
        if session is not None:
            session.fetch_time.at = self._replicas.now()

    def _count(self, partition: Partition, read: PartitionRead) -> None:
        """Count replication apart: it is no client's traffic."""
        tail = partition.tail
        if read.pointers and tail is not None:
            self._count_pointers(tail, read)
        if read.part is not None:
            partition.stats.replication_bytes_out += read.part.size
            if tail is not None and partition.log.config.remote_wal_storage_enable:
                # topics of the brokers are stored as well, and never read from there
                self._wal_stats.direct_bytes_out += read.part.size
            self._throttle.sent(
                partition.log.config.leader_replication_throttled_replicas,
                partition.index,
                self._node_id,
                read.part.size,
            )

    def _count_pointers(self, tail: Tail, read: PartitionRead) -> None:
        stats, wanted, now = self._wal_stats, read.wanted, self._replicas.now()
        stats.pointed_bytes += sum(each.size for each in read.pointers)
        if read.pointers[-1].end == tail.extents.end:
            # to a follower that has kept up until here
            stats.told_s.note(now - tail.stored_at)
            wanted.told_to, wanted.told_at = tail.extents.end, now


class FollowerFetchWait(FetchWait):
    """A follower's long poll. What it may be told of what was appended ends it; a high watermark that moves
    alone shortens it."""

    __slots__ = ("_owner", "asked", "failures", "is_hurried", "session", "until")

    def __init__(
        self,
        owner: FollowerFetch,
        session: FollowerSession,
        asked: Asked,
        failures: int,
        until: float,
        slot: AnswerSlot | None = None,
    ) -> None:
        """It stands at no partition itself: the watches of its session do."""
        connection, turn, request, version, correlation_id = asked
        super().__init__(
            owner, connection, turn, request, version, correlation_id, request.min_bytes, [], failures, slot
        )
        self._owner = owner
        self.session = session
        self.asked = asked
        self.failures = failures
        self.until = until
        self.is_hurried = False

    def poke(self) -> None:
        if len(self.session.changed) <= ROWS_AT_ONCE:
            super().poke()
        else:
            self.finish()
            self._owner.look_again(self, is_over=False)

    def expired(self) -> None:
        """End the wait, unless the earlier of its two deadlines already has."""
        if self.done:
            return
        if len(self.session.changed) <= ROWS_AT_ONCE:
            super().expired()
        else:
            self.finish()
            self._owner.look_again(self, is_over=True)

    def partition_changed(self, wanted: PartitionRequest, partition: Partition) -> None:
        """Read all that changed only if this partition may end the wait: of a thousand that are committed at
        once, a thousand would be read a thousand times."""
        if not _is_at_end(wanted, partition, takes_pointers=self.session.takes_pointers):
            self.poke()
        if not self.done and not self.is_hurried and _is_untold(wanted, partition):
            self._owner.hurry(self)


def _changed(turn: FetchTurn) -> Iterable[PartitionRequest]:
    """The partitions that must be looked at: all of them without a session."""
    session = None if turn.session is None else turn.session.reader
    return session.changed if isinstance(session, FollowerSession) else turn.wanted


def is_behind(session: FollowerSession) -> bool:
    """Whether a high watermark has moved that this follower was not told of."""
    return any(
        wanted.partition is not None and _is_untold(wanted, wanted.partition) for wanted in session.changed
    )


def _is_untold(wanted: PartitionRequest, partition: Partition) -> bool:
    return partition.log.high_watermark != wanted.sent_high_watermark


def _is_at_end(wanted: PartitionRequest, partition: Partition, *, takes_pointers: bool) -> bool:
    """Whether there is nothing to tell, and nothing has become wrong with asking here."""
    return (
        partition.is_leader
        and not partition.offline
        and partition is wanted.partition
        and partition.epoch_error(wanted.leader_epoch) is ErrorCode.none
        and wanted.offset <= partition.log.log_end_offset
        and offer_to(wanted, partition, takes_pointers=takes_pointers) is Offer.NOTHING
    )


def _is_up_to_date(wanted: PartitionRequest, partition: Partition, replica_id: int) -> bool:
    """Whether the follower has everything, was told everything and is in sync: then the partition need not be
    looked at until something happens to it."""
    held = partition.log
    return (
        wanted.offset == held.log_end_offset
        and wanted.sent_high_watermark == held.high_watermark
        and wanted.sent_start == held.log_start_offset
        and replica_id in partition.isr
    )
