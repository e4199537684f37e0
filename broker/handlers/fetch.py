"""Fetch: from a request to its answer, at once or when there is more to read.

Owns: what is due at once, the long poll, and the short way of a Fetch that continues the one before it. Does
not own: reading (broker.replicas.read), the wait for the tier (remote_fetch), the session's bookkeeping
(fetch_sessions), packing (fetch_response), sending (net), what a leader learns from followers
(follower_fetch). Invariant: a Fetch is answered once: with what it asked for, with an error, or with what
there is when its wait is over; a wait that ended stands at no partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from broker.control.cluster import Cluster
from broker.handlers.fetch_response import FetchResponse, pack_error
from broker.handlers.remote_fetch import RemoteFetches
from broker.net.connection import Answer, AnswerSlot, Connection, Frame
from broker.net.sending import Bulk
from broker.replicas.fetch_sessions import FetchSessions, FetchTurn
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.read import ClientReader, FetchPass, PartitionRead
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.tier_reads import TierReads
from protocol.errors import ErrorCode
from protocol.fetch import FETCH_SHAPES_FROM, FETCH_TOPIC_IDS, FetchRequest, FetchShape, parse_fetch

logger = logging.getLogger(__name__)

_SHAPE_BYTES_MAX: Final = 64 * 1024
"""The longest request that is kept with what it was parsed to, some 2,000 partitions."""


class Followers(Protocol):
    """What answers a Fetch that names a replica."""

    def answer(
        self,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> Answer: ...


class LastFetch(NamedTuple):
    """A connection's last Fetch. Without a session its turn serves the next one too: where the partitions
    were found is kept, only the offsets are new."""

    shape: FetchShape
    version: int
    request: FetchRequest
    turn: FetchTurn


class Fetch:
    def __init__(
        self,
        *,
        followers: Followers,
        near: ReplicaSelector | None = None,
        tier: TierReads | None = None,
        replicas: ReplicaManager,
        cluster: Cluster,
        sessions: FetchSessions,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        max_bytes: int,
    ) -> None:
        """Without a `tier` there is none."""
        self._followers = followers
        self._sessions = sessions
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._max_bytes = max_bytes
        reader = ClientReader(replicas=replicas, cluster=cluster, near=near, tier=tier, max_bytes=max_bytes)
        response = FetchResponse(cluster=cluster, sessions=sessions, now_ms=now_ms, count=_count)
        self.read = reader.read
        self.respond = response.respond
        self.remote: RemoteFetches | None = None
        if tier is not None:
            self.remote = RemoteFetches(
                tier=tier, reader=reader, respond=response, purgatory=purgatory, spawn=spawn
            )

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        view = memoryview(frame)
        request = parse_fetch(view, body_at, version)
        turn = self._sessions.turn(request, uses_ids=version >= FETCH_TOPIC_IDS, now_ms=self._now_ms())
        connection.memo.last_fetch = None
        is_small = len(frame) <= _SHAPE_BYTES_MAX
        if request.replica_id < 0 and version >= FETCH_SHAPES_FROM and is_small and _repeats(request, turn):
            shape = FetchShape(view, body_at, version, request)
            connection.memo.last_fetch = LastFetch(shape, version, request, turn)
        return self._answer(connection, request, turn, version, correlation_id)

    def repeat(self, connection: Connection, frame: Frame) -> Answer:
        """Answer a Fetch that asks for what the connection's last one did, from where it ended; None for any
        other. `handle` does the same by the long way."""
        last: LastFetch | None = connection.memo.last_fetch
        found = None if last is None else last.shape.read(frame)
        if last is None or found is None:
            return None
        correlation_id, session_epoch, items = found
        request, turn = last.request, last.turn
        if items is not None:
            request.items = items
        if request.session_id:
            request.session_epoch = session_epoch
            turn = self._sessions.turn(
                request, uses_ids=last.version >= FETCH_TOPIC_IDS, now_ms=self._now_ms()
            )
        elif session_epoch != request.session_epoch:
            return None
        elif items is not None:
            for wanted, item in zip(turn.wanted, items, strict=True):
                wanted.update(item)
        return self._answer(connection, request, turn, last.version, correlation_id)

    def _answer(
        self,
        connection: Connection,
        request: FetchRequest,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
    ) -> Answer:
        if turn.error:
            return pack_error(version, correlation_id, turn.error, 0)
        if request.replica_id >= 0:
            return self._followers.answer(connection, turn, request, version, correlation_id)
        fetched = self.read(turn, request, version)
        if fetched.wants is not None and self.remote is not None:
            slot = connection.slot()
            self.remote.wait(connection, turn, version, correlation_id, fetched, slot)
            return slot
        min_bytes = min(request.min_bytes, request.max_bytes, self._max_bytes)
        if fetched.available >= min_bytes or fetched.is_due or request.max_wait_ms <= 0:
            answer = self.respond(connection, turn, version, correlation_id, fetched)
            connection.unsent += len(answer) if isinstance(answer, bytes) else answer.size
            return answer
        partitions = [wanted.partition for wanted in turn.wanted if wanted.partition is not None]
        if not partitions:
            return self.respond(connection, turn, version, correlation_id, fetched)
        wait = FetchWait(
            self, connection, turn, request, version, correlation_id, min_bytes, partitions, fetched.failures
        )
        self._purgatory.watch(wait, request.max_wait_ms / 1000)
        if fetched.is_held_back:
            wait.hold_back()
        return wait.slot


class FetchSide(Protocol):
    """How the Fetch of a client, or of a follower, is read and answered."""

    @property
    def read(self) -> Callable[[FetchTurn, FetchRequest, int], FetchPass]: ...
    @property
    def respond(self) -> Callable[[Connection, FetchTurn, int, int, FetchPass], bytes | Bulk]: ...
    @property
    def remote(self) -> RemoteFetches | None:
        """What goes on where something is to be read from the tier."""


class FetchWait(Waiter):
    """A long poll. It stands at every partition it reads, and reads again when one of them moves."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_failures",
        "_fetch",
        "_min_bytes",
        "_partitions",
        "_request",
        "_turn",
        "_version",
        "slot",
    )

    def __init__(
        self,
        fetch: FetchSide,
        connection: Connection,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        min_bytes: int,
        partitions: list[Partition],
        failures: int,
    ) -> None:
        super().__init__()
        self.slot: AnswerSlot = connection.slot()
        self._fetch = fetch
        self._connection = connection
        self._turn = turn
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._min_bytes = min_bytes
        self._partitions = partitions
        self._failures = failures
        connection.waiter = self
        for partition in partitions:
            partition.data_waiters[self] = None

    def poke(self) -> None:
        fetched = self._fetch.read(self._turn, self._request, self._version)
        failed = fetched.failures > self._failures
        if failed or fetched.is_due or fetched.available >= self._min_bytes or fetched.wants is not None:
            self._answer(fetched)
        elif fetched.is_held_back:
            self.hold_back()

    def hold_back(self) -> None:
        """Look again when the quota of the tier allows it."""
        if self._fetch.remote is not None:
            self._fetch.remote.tier.poke_when_open(self)

    def expired(self) -> None:
        self._answer(self._fetch.read(self._turn, self._request, self._version))

    def abandoned(self) -> None:
        self.finish()
        self._leave()

    def broke(self, error: Exception) -> None:
        self.abandoned()
        logger.error("a Fetch failed after its wait", exc_info=error)
        self._connection.close("its Fetch failed")

    def _answer(self, fetched: FetchPass) -> None:
        self.finish()
        self._leave()
        connection = self._connection
        if fetched.wants is not None and self._fetch.remote is not None:
            self._fetch.remote.wait(
                connection, self._turn, self._version, self._correlation_id, fetched, self.slot
            )
            return
        answer = self._fetch.respond(connection, self._turn, self._version, self._correlation_id, fetched)
        connection.answer(self.slot, answer)
        connection.resume()

    def _leave(self) -> None:
        for partition in self._partitions:
            partition.data_waiters.pop(self, None)
        self._partitions = []


def _repeats(request: FetchRequest, turn: FetchTurn) -> bool:
    """Whether the next request may be like this one: within a session, or without one and each partition
    asked for once."""
    if request.session_id:
        return request.session_epoch > 0
    return request.session_epoch < 0 and len(list(turn.wanted)) == len(request.items)


def _count(partition: Partition, read: PartitionRead) -> None:
    stats = partition.stats
    stats.fetch += 1
    if read.part is not None:
        stats.bytes_out += read.part.size
    elif read.error is not ErrorCode.none:
        stats.failed_fetch += 1
