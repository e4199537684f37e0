"""Fetch: from a request to its answer, at once or when there is more to read.

Owns: what is due at once, the long poll, the short way of a Fetch that continues the one before it, and the
turns that a long one takes. Does not own: reading (broker.replicas.read), the wait for the tier
(remote_fetch), the session's bookkeeping (fetch_sessions), packing (fetch_response), sending (net), what a
leader learns from followers (follower_fetch). Invariant: a Fetch is answered once: with what it asked for,
with an error, or with what there is when its wait is over; a wait that ended stands at no partition.

A Fetch of more than `ROWS_AT_ONCE` partitions, its own or its session's, is parsed, read and packed in turns
of the loop, while its connection waits. Its long poll looks only at the partitions that have moved; without a
session it is in an account of its own (long_polls), or the fetch of whoever has many connections would hold
any memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol

from broker.control.cluster import Cluster
from broker.handlers.fetch_response import FetchResponse, holder_of, pack_error
from broker.handlers.hang_up import or_hang_up
from broker.handlers.long_polls import LongPolls
from broker.handlers.places import Place, Places
from broker.handlers.remote_fetch import RemoteFetches
from broker.net.connection import Answer, AnswerSlot, Connection, Frame
from broker.net.sending import Bulk
from broker.replicas.fetch_sessions import FetchSessions, FetchTurn, PartitionRequest
from broker.replicas.nearest import ReplicaSelector
from broker.replicas.partition import Partition
from broker.replicas.purgatory import Purgatory, Waiter
from broker.replicas.read import ClientReader, FetchPass, PartitionRead
from broker.replicas.replica_manager import ReplicaManager
from broker.replicas.tier_reads import TierReads
from broker.turns import Turns
from protocol.errors import ErrorCode
from protocol.fetch import (
    FETCH_SHAPES_FROM,
    FETCH_TOPIC_IDS,
    FetchRequest,
    FetchShape,
    asks_for_replica,
    parse_short_fetch,
    parsing_fetch,
)
from protocol.primitives import ROWS_A_STEP, ROWS_AT_ONCE
from protocol.work import Work, finish

logger = logging.getLogger(__name__)

_SHAPE_BYTES_MAX: Final = 64 * 1024
"""The longest request that is kept with what it was parsed to, some 2,000 partitions."""
_SHAPE_ROWS_MAX: Final = 65_536
"""How many partitions of such requests all connections keep together, each about 500 bytes."""
_SHAPE_ROWS_MIN: Final = 32
"""How many each may keep, however many connections there are."""
_LONG_MAX: Final = 4
"""How many Fetches of clients that go in turns are in work at once, and how many of followers: each takes
some 100 MB at its largest."""
_LEFT_A_STEP: Final = 1024


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

    async def answer_long(
        self,
        connection: Connection,
        slot: AnswerSlot,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> None:
        """Answer one of many partitions, in turns of the loop."""


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
        turns: Turns,
        rows_max: Callable[[], int],
        max_bytes: int,
    ) -> None:
        """Without a `tier` there is none. More than `rows_max` topics and partitions are refused."""
        self._spawn = spawn
        self._turns = turns
        self._rows_max = rows_max
        self._places = Places(_LONG_MAX)
        self._followers_places = Places(_LONG_MAX)
        self.polls: LongPolls[LongFetchWait] = LongPolls()
        self._followers = followers
        self._sessions = sessions
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._max_bytes = max_bytes
        reader = ClientReader(replicas=replicas, cluster=cluster, near=near, tier=tier, max_bytes=max_bytes)
        response = FetchResponse(cluster=cluster, sessions=sessions, now_ms=now_ms, count=_count)
        self.reader = reader
        self.read = reader.read
        self.respond = response.respond
        self._responding = response.responding
        self.remote: RemoteFetches | None = None
        if tier is not None:
            self.remote = RemoteFetches(
                tier=tier,
                reader=reader,
                respond=response,
                purgatory=purgatory,
                spawn=spawn,
                answer_long=self._answer_from_tier,
            )

    def handle(
        self, connection: Connection, frame: Frame, *, version: int, correlation_id: int, body_at: int
    ) -> Answer:
        view = memoryview(frame)
        request = parse_short_fetch(view, body_at, version, self._rows_max())
        connection.memo.last_fetch = None
        if request is None:
            slot = connection.slot()
            kept = memoryview(connection.keep(frame))
            answering = self._parse_long(connection, slot, kept, body_at, version, correlation_id)
            self._in_turns(connection, answering)
            return slot
        turn = self._sessions.turn(
            request,
            uses_ids=version >= FETCH_TOPIC_IDS,
            now_ms=self._now_ms(),
            holder=holder_of(connection, self._sessions) if request.session_id else None,
        )
        is_small = len(frame) <= _SHAPE_BYTES_MAX and (
            len(request.items) <= _SHAPE_ROWS_MIN
            or len(request.items) <= _SHAPE_ROWS_MAX // connection.connection_count
        )
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
                request,
                uses_ids=last.version >= FETCH_TOPIC_IDS,
                now_ms=self._now_ms(),
                holder=connection.memo.holder,
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
        if len(turn.wanted) > ROWS_AT_ONCE:
            slot = connection.slot()
            answering = self._continue_long(connection, slot, request, turn, version, correlation_id)
            self._in_turns(connection, answering)
            return slot
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

    # --- in turns ---

    def _in_turns(self, connection: Connection, answering: Coroutine[Any, Any, None]) -> None:
        self._spawn(or_hang_up(connection, answering, "a Fetch", logger))

    async def _parse_long(
        self,
        connection: Connection,
        slot: AnswerSlot,
        frame: memoryview,
        body_at: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Take a request that is too long to be parsed at once."""
        # what brokers ask of each other waits for no client
        is_follower = connection.is_peer or asks_for_replica(frame, body_at, version)
        place = Place(self._followers_places if is_follower else self._places)
        try:
            try:
                if not await self._has_place(connection, place):
                    return
                request = await self._turns.run(parsing_fetch(frame, body_at, version, self._rows_max()))
                turn = await self._turns.run(
                    self._sessions.turning(
                        request,
                        uses_ids=version >= FETCH_TOPIC_IDS,
                        now_ms=self._now_ms(),
                        holder=holder_of(connection, self._sessions) if request.session_id else None,
                    )
                )
            finally:
                # a long poll may take weeks, and what waits has nothing of the frame
                del frame
                connection.let_go()
            if turn.error:
                connection.answer(slot, pack_error(version, correlation_id, turn.error, 0))
                connection.resume()
            elif request.replica_id >= 0:
                await self._followers.answer_long(connection, slot, turn, request, version, correlation_id)
            else:
                await self._answer_long(connection, slot, request, turn, version, correlation_id)
        finally:
            place.give_back()

    async def _continue_long(
        self,
        connection: Connection,
        slot: AnswerSlot,
        request: FetchRequest,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
    ) -> None:
        """Answer a short request of a session of many partitions."""
        place = Place(self._places)
        try:
            if await self._has_place(connection, place):
                await self._answer_long(connection, slot, request, turn, version, correlation_id)
        finally:
            place.give_back()

    async def _has_place(self, connection: Connection, place: Place) -> bool:
        """Return True with the place, or False where the client has gone before there was one."""
        if connection.is_closing:
            return False
        connection.waiter = place
        has_place = await place.take()
        connection.waiter = None
        return has_place and not connection.is_closing

    async def _answer_long(
        self,
        connection: Connection,
        slot: AnswerSlot,
        request: FetchRequest,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
    ) -> None:
        min_bytes = min(request.min_bytes, request.max_bytes, self._max_bytes)
        wait = LongFetchWait(self, connection, slot, turn, request, version, correlation_id, min_bytes)
        try:
            fetched = await self._turns.run(self._reading(turn, request, version, wait))
            if wait.done:
                return  # the client is gone
            is_due = fetched.is_due or fetched.wants is not None or fetched.available >= min_bytes
            if not is_due and request.max_wait_ms > 0 and wait.stands and self._may_wait(wait):
                self._purgatory.watch(wait, request.max_wait_ms / 1000)
                wait.begin(fetched)
                if fetched.is_held_back and not wait.done:
                    wait.hold_back()
                return
        except BaseException:
            wait.abandoned()
            raise
        await self._turns.run(wait.leaving())
        await self._respond_long(connection, slot, turn, version, correlation_id, fetched)

    def _may_wait(self, wait: LongFetchWait) -> bool:
        """Say whether there is memory for a poll to wait in; end others that have to make room for it."""
        if wait.turn.session is not None:
            return True
        ended = self.polls.enter(wait, wait.connection.address, wait.turn.size)
        for each in ended:
            if each is not wait:
                each.expired()
        return wait not in ended

    async def _respond_long(
        self,
        connection: Connection,
        slot: AnswerSlot,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
        fetched: FetchPass,
    ) -> None:
        if fetched.wants is not None and self.remote is not None:
            self.remote.wait(connection, turn, version, correlation_id, fetched, slot)
            return
        answer = await self._turns.run(self._responding(connection, turn, version, correlation_id, fetched))
        connection.answer(slot, answer)
        connection.resume()

    async def _answer_from_tier(
        self,
        connection: Connection,
        turn: FetchTurn,
        version: int,
        correlation_id: int,
        fetched: FetchPass,
        slot: AnswerSlot,
    ) -> None:
        """Answer once the tier was read; it goes before those that have not begun."""
        place = Place(self._places)
        try:
            await place.take_again()
            if not connection.is_closing:
                work = self._responding(connection, turn, version, correlation_id, fetched)
                connection.answer(slot, await self._turns.run(work))
                connection.resume()
        finally:
            place.give_back()

    def _reading(
        self, turn: FetchTurn, request: FetchRequest, version: int, wait: LongFetchWait | None = None
    ) -> Work[FetchPass]:
        """`read` in steps. A wait is told of each partition before anything else can happen to it."""
        fetched = self.reader.begin(request)
        all_wanted = list(turn.wanted)
        for at in range(0, len(all_wanted), ROWS_A_STEP):
            some = all_wanted[at : at + ROWS_A_STEP]
            before = len(fetched.reads)
            self.reader.read_some(fetched, some, turn, request, version)
            if wait is not None:
                wait.stand_at(some, fetched.reads[before:])
            yield
        return fetched

    def end_long(self, wait: LongFetchWait) -> None:
        """Answer a wait that is over."""
        self._in_turns(wait.connection, self._ending(wait))

    def leave_long(self, wait: LongFetchWait) -> None:
        """Let go of a wait that nobody is there to hear of."""
        self._in_turns(wait.connection, self._turns.run(wait.letting_go()))

    async def _ending(self, wait: LongFetchWait) -> None:
        place = Place(self._places)
        try:
            # before any that has not begun: what waits holds memory
            await place.take_again()
            await self._turns.run(wait.leaving())
            if wait.connection.is_closing:
                await self._turns.run(wait.letting_go())
                return
            fetched = await self._turns.run(self._reading(wait.turn, wait.request, wait.version))
            await self._respond_long(
                wait.connection, wait.slot, wait.turn, wait.version, wait.correlation_id, fetched
            )
        finally:
            place.give_back()


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
        slot: AnswerSlot | None = None,
    ) -> None:
        super().__init__()
        self.slot: AnswerSlot = connection.slot() if slot is None else slot
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
            partition.data_waits_no_more(self)
        self._partitions = []


class LongFetchWait(Waiter):
    """The long poll of a Fetch of many partitions. A wake costs what has moved: those partitions are read
    again, and all of them only once the wait is over."""

    __slots__ = (
        "_available",
        "_fetch",
        "_has_begun",
        "_min_bytes",
        "_sizes",
        "_standing",
        "connection",
        "correlation_id",
        "request",
        "slot",
        "turn",
        "version",
    )

    def __init__(
        self,
        fetch: Fetch,
        connection: Connection,
        slot: AnswerSlot,
        turn: FetchTurn,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        min_bytes: int,
    ) -> None:
        super().__init__()
        self.moved = {}
        self.connection = connection
        self.slot = slot
        self.turn = turn
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self._fetch = fetch
        self._min_bytes = min_bytes
        self._available = 0
        self._sizes: dict[Partition, int] = {}
        """What was there to read, where there was anything."""
        self._standing: dict[Partition, PartitionRequest] = {}
        self._has_begun = False
        """It was begun; until then it only takes note of what moves."""
        if connection.is_closing:
            # nobody would take it from there again
            self.done = True
        else:
            connection.waiter = self

    @property
    def stands(self) -> bool:
        return bool(self._standing)

    def stand_at(self, some: Iterable[PartitionRequest], reads: Iterable[PartitionRead]) -> None:
        for wanted in some:
            partition: Partition | None = wanted.partition
            if partition is not None and not self.done:
                self._standing[partition] = wanted
                partition.data_waiters[self] = None
        for read in reads:
            if read.part is not None:
                self._sizes[read.wanted.partition] = read.part.size

    def begin(self, fetched: FetchPass) -> None:
        """Wait for more than was read, unless it has come meanwhile."""
        self._available = fetched.available
        self._has_begun = True
        self.poke()

    def poke(self) -> None:
        if not self._has_begun:
            return
        moved, self.moved = self.moved, {}
        assert moved is not None
        if self._available >= self._min_bytes or len(moved) > ROWS_AT_ONCE or self._ends_by(moved):
            self.expired()

    def _ends_by(self, moved: Iterable[Partition]) -> bool:
        reader = self._fetch.reader
        for partition in moved:
            wanted = self._standing.get(partition)
            if wanted is None:
                continue
            one = reader.begin(self.request)
            reader.read_some(one, (wanted,), self.turn, self.request, self.version)
            if one.is_due or one.failures or one.wants is not None:
                return True
            if one.is_held_back:
                self.hold_back()
            self._available += one.available - self._sizes.get(partition, 0)
            self._sizes[partition] = one.available
            if self._available >= self._min_bytes:
                return True
        return False

    def hold_back(self) -> None:
        """Look again when the quota of the tier allows it."""
        if self._fetch.remote is not None and self.moved is not None:
            self.moved.update(dict.fromkeys(self._standing))
            self._fetch.remote.tier.poke_when_open(self)

    def finish(self) -> None:
        super().finish()
        self._fetch.polls.leave(self)

    def expired(self) -> None:
        self.finish()
        self._fetch.end_long(self)

    def abandoned(self) -> None:
        self.finish()
        if len(self._standing) > _LEFT_A_STEP:
            self._fetch.leave_long(self)
        else:
            finish(self.letting_go())

    def broke(self, error: Exception) -> None:
        self.abandoned()
        logger.error("a Fetch failed after its wait", exc_info=error)
        self.connection.close("its Fetch failed")

    def leaving(self) -> Work[None]:
        """Stand at no partition any more."""
        self.done = True
        while self._standing:
            partition, _ = self._standing.popitem()
            partition.data_waits_no_more(self)
            if not len(self._standing) % _LEFT_A_STEP:
                yield
        self._sizes = {}

    def letting_go(self) -> Work[None]:
        """Leave, and drop what was asked for."""
        yield from self.leaving()
        if self.turn.session is None:
            yield from self.turn.letting_go()


def _repeats(request: FetchRequest, turn: FetchTurn) -> bool:
    """Whether the next request may be like this one: within a session, or without one and each partition
    asked for once."""
    if request.session_id:
        return request.session_epoch > 0
    return request.session_epoch < 0 and len(turn.wanted) == len(request.items)


def _count(partition: Partition, read: PartitionRead) -> None:
    stats = partition.stats
    stats.fetch += 1
    if read.part is not None:
        stats.bytes_out += read.part.size
    elif read.error is not ErrorCode.none:
        stats.failed_fetch += 1
