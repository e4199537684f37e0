"""Incremental fetch sessions (KIP-227): what a consumer asked for and what it was last told.

Owns: the sessions, their epochs, what they hold of memory, and which session makes room for another. Does not
own: reading logs or packing. Invariant: at most `max_sessions` sessions of `SESSIONS_BYTES_MAX` together; a
session's epoch goes up by one with each request that used it, so a request that was lost or repeated is told
apart.

A session outlives its connection, as in Kafka, because its client may come back for it. But what nobody is
connected for goes first when room is needed, and at once beyond `LEFT_BYTES_MAX`. When the bytes are short
the host that holds most gives way, whoever comes later; a client that gets no session asks in full.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

from protocol.errors import ErrorCode
from protocol.fetch import FetchItem, FetchRequest
from protocol.primitives import ROWS_A_STEP, ROWS_AT_ONCE, TopicKey
from protocol.work import Work, let_go, let_go_of_all

EVICTION_MS: Final = 120_000
SESSIONS_BYTES_MAX: Final = 64 << 20
"""A hundred thousand partitions, more than a thousand consumers have as a rule."""
LEFT_BYTES_MAX: Final = 8 << 20
"""Of sessions whose connection is gone."""
ENTRY_BYTES: Final = 512
"""What a partition takes in a session besides its topic's name: found by counting, rounded up."""
ALONE_BYTES: Final = 320
"""The same for one in a long poll without a session, with what it takes to stand there."""
INITIAL_EPOCH, FINAL_EPOCH, MAX_EPOCH = 0, -1, 2**31 - 1


class PartitionRequest:
    """One partition that a consumer or follower asks for: the numbers of its request, and what was answered
    last."""

    __slots__ = (
        "generation",
        "index",
        "last_epoch",
        "leader_epoch",
        "log_start",
        "max_bytes",
        "offset",
        "partition",
        "pointed",
        "sent_high_watermark",
        "sent_start",
        "told_at",
        "told_to",
        "topic",
    )

    def __init__(self, item: FetchItem) -> None:
        self.topic, self.index = item.topic, item.partition
        self.update(item)
        self.sent_high_watermark = -1
        self.sent_start = -1
        self.told_to = -1
        """The end of the slices that a follower was pointed to and did not report yet, and when."""
        self.told_at = 0.0
        self.partition: Any = None
        """The partition found at `generation`, kept here for its reader to save the look-up."""
        self.generation = -1

    def update(self, item: FetchItem) -> None:
        (
            _,
            _,
            self.leader_epoch,
            self.offset,
            self.last_epoch,
            self.max_bytes,
            self.log_start,
            self.pointed,
        ) = item


class SessionReader(Protocol):
    def to_back(self, served: Iterable[PartitionRequest]) -> None:
        """Put these last in the order of reading, because they got data."""

    def close(self) -> None:
        """End with the session."""


class Holder:
    """A connection, as far as sessions are held for it."""

    __slots__ = ("host", "is_gone")

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_gone = False


class FetchSession:
    __slots__ = (
        "bytes",
        "counted",
        "created_ms",
        "epoch",
        "holder",
        "id",
        "is_privileged",
        "reader",
        "used_ms",
        "uses_ids",
        "wanted",
    )

    def __init__(
        self,
        session_id: int,
        wanted: dict[tuple[TopicKey, int], PartitionRequest],
        *,
        size: int,
        holder: Holder,
        uses_ids: bool,
        is_privileged: bool,
        now_ms: int,
    ) -> None:
        self.id = session_id
        self.is_privileged = is_privileged
        self.reader: SessionReader | None = None
        """The state its reader keeps from request to request."""
        self.wanted = wanted
        self.bytes = size
        self.counted = 0
        """How many of its bytes are in the account of all sessions."""
        self.holder = holder
        """The connection that used it last."""
        self.uses_ids = uses_ids
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.epoch = 1

    def update(self, items: Iterable[FetchItem], forgotten: Iterable[tuple[TopicKey, int]]) -> None:
        for item in items:
            key = (item.topic, item.partition)
            known = self.wanted.get(key)
            if known is None:
                self.wanted[key] = PartitionRequest(item)
                self.bytes += entry_bytes(item.topic)
            else:
                known.update(item)
        for key in forgotten:
            if self.wanted.pop(key, None) is not None:
                self.bytes -= entry_bytes(key[0])

    def to_back(self, served: Collection[PartitionRequest]) -> None:
        """Put partitions that got data last, so that a full response starves none."""
        for wanted in served:
            key = (wanted.topic, wanted.index)
            if self.wanted.pop(key, None) is not None:
                self.wanted[key] = wanted
        if self.reader is not None:
            self.reader.to_back(served)


def entry_bytes(topic: TopicKey) -> int:
    return ENTRY_BYTES + len(topic) if isinstance(topic, str) else ENTRY_BYTES


class FetchTurn:
    """How one Fetch is to be answered: which partitions, in which session, or with which session error."""

    __slots__ = ("creates", "epoch", "error", "named", "session", "size", "wanted")

    def __init__(
        self,
        named: dict[tuple[TopicKey, int], PartitionRequest] | None = None,
        *,
        session: FetchSession | None = None,
        alone: list[PartitionRequest] | None = None,
        creates: bool = False,
        size: int = -1,
        error: ErrorCode = ErrorCode.none,
    ) -> None:
        """`alone`: the partitions of a long request in no session, whose names nobody will look up."""
        self.named = {} if named is None else named
        """The partitions by their names; those of a session are also its own."""
        self.wanted: Collection[PartitionRequest] = self.named.values() if alone is None else alone
        self.session = session
        self.epoch = session.epoch if session is not None else -1
        self.creates = creates
        self.size = size
        """What they will take in a session, or waiting without one; -1 where nobody has added it up."""
        self.error = error

    def letting_go(self) -> Work[None]:
        """Drop the partitions of one that is answered and in no session, bit by bit."""
        if isinstance(self.wanted, list):
            yield from let_go(self.wanted)
        else:
            yield from let_go_of_all(self.named)


class FetchSessions:
    def __init__(
        self,
        *,
        max_sessions: int,
        randrange: Callable[[int, int], int],
        discard: Callable[[dict[Any, Any]], object] = len,
    ) -> None:
        """`discard` is handed the partitions of a session that ended, to let go of them in turns."""
        self._discard = discard
        self._max_sessions = max_sessions
        self._randrange = randrange
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Least recently used first."""
        self._by_host: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        """Bytes of plain and of privileged sessions by the host that holds them."""
        self.bytes = 0
        self.evictions = 0
        self.refusals = 0
        """How often a client got no session, or lost one that grew."""

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self._sessions)} of {self._max_sessions}, {self.evictions} evicted>"

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.wanted) for session in self._sessions.values())

    # --- one request ---

    def turn(
        self, request: FetchRequest, *, uses_ids: bool, now_ms: int, holder: Holder | None = None
    ) -> FetchTurn:
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.close(request.session_id)
            named = {(item.topic, item.partition): PartitionRequest(item) for item in request.items}
            return FetchTurn(named, creates=request.session_epoch == INITIAL_EPOCH)
        session = self._find(request, uses_ids=uses_ids)
        if isinstance(session, ErrorCode):
            return FetchTurn(error=session)
        if request.items or request.forgotten:
            session.update(request.items, request.forgotten)
            if not session.wanted:
                self.close(session.id)
                return FetchTurn()
        return self._continued(session, holder, now_ms)

    def turning(
        self, request: FetchRequest, *, uses_ids: bool, now_ms: int, holder: Holder | None = None
    ) -> Work[FetchTurn]:
        """`turn` in steps; uses the items up."""
        items, forgotten = request.items, request.forgotten
        request.items, request.forgotten = [], []
        request.item_ats = []
        items.reverse()
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.close(request.session_id)
            named: dict[tuple[TopicKey, int], PartitionRequest] = {}
            size = 0
            creates = request.session_epoch == INITIAL_EPOCH
            while items:
                item = items.pop()
                named[item.topic, item.partition] = PartitionRequest(item)
                size += entry_bytes(item.topic)
                if not len(items) % ROWS_A_STEP:
                    yield
            if creates:
                return FetchTurn(named, creates=True, size=size)
            alone = list(named.values())
            yield from let_go_of_all(named)
            return FetchTurn(alone=alone, size=size - (ENTRY_BYTES - ALONE_BYTES) * len(alone))
        while True:
            session = self._find(request, uses_ids=uses_ids)
            if isinstance(session, ErrorCode):
                return FetchTurn(error=session)
            if not items and not forgotten:
                if not session.wanted:
                    self.close(session.id)
                    return FetchTurn()
                return self._continued(session, holder, now_ms)
            session.update([items.pop() for _ in range(min(len(items), ROWS_A_STEP))], ())
            session.update((), forgotten[:ROWS_A_STEP])
            del forgotten[:ROWS_A_STEP]
            yield

    def _find(self, request: FetchRequest, *, uses_ids: bool) -> FetchSession | ErrorCode:
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.fetch_session_id_not_found
        if session.epoch != request.session_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if session.uses_ids != uses_ids:
            return ErrorCode.fetch_session_topic_id_error
        return session

    def _continued(self, session: FetchSession, holder: Holder | None, now_ms: int) -> FetchTurn:
        if holder is not None and session.holder is not holder:
            self._count(session, -session.counted)
            session.holder = holder
        if session.counted != session.bytes:
            grows = session.bytes > session.counted
            self._count(session, session.bytes - session.counted)
            if grows and not self._make_room(0, session.holder.host, session.is_privileged, session):
                self.close(session.id)
                self.refusals += 1
                return FetchTurn(error=ErrorCode.fetch_session_id_not_found)
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        return FetchTurn(session.wanted, session=session)

    # --- coming and going ---

    def create(
        self,
        turn: FetchTurn,
        *,
        uses_ids: bool,
        now_ms: int,
        holder: Holder | None = None,
        is_privileged: bool = False,
    ) -> int:
        """Return a new session's id, or 0 when there is no room. A follower's is privileged: no consumer's
        takes its place while it is used."""
        holder = Holder("") if holder is None else holder
        named = turn.named
        size = turn.size if turn.size >= 0 else sum(entry_bytes(topic) for topic, _ in named)
        if len(self._sessions) >= self._max_sessions and not self._evict((is_privileged, len(named)), now_ms):
            return 0
        if not self._make_room(size, holder.host, is_privileged):
            self.refusals += 1
            return 0
        session_id = self._randrange(1, 2**31 - 1)
        while session_id in self._sessions:
            session_id = self._randrange(1, 2**31 - 1)
        session = self._sessions[session_id] = FetchSession(
            session_id,
            named,
            size=size,
            holder=holder,
            uses_ids=uses_ids,
            is_privileged=is_privileged,
            now_ms=now_ms,
        )
        self._count(session, size)
        return session_id

    def left(self, holder: Holder) -> None:
        """Its connection is gone: its sessions stay as long as they are small and nobody needs the room."""
        holder.is_gone = True
        left = [session for session in self._sessions.values() if session.holder.is_gone]
        over = sum(session.counted for session in left) - LEFT_BYTES_MAX
        for session in sorted(left, key=lambda each: -each.counted):
            if over <= 0:
                break
            over -= session.counted
            self._evict_one(session)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._count(session, -session.counted)
            if session.reader is not None:
                session.reader.close()
            if len(session.wanted) > ROWS_AT_ONCE:
                self._discard(session.wanted)

    # --- room ---

    def _count(self, session: FetchSession, change: int) -> None:
        session.counted += change
        self.bytes += change
        by_host, host = self._by_host[session.is_privileged], session.holder.host
        by_host[host] += change
        if by_host[host] <= 0:
            del by_host[host]

    def _evict(self, rank: tuple[bool, int], now_ms: int) -> bool:
        """Make room for a session of this (privilege, size): one without a connection or a stale one goes,
        else an old one below it."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms <= EVICTION_MS:
            evictable = [s for s in self._sessions.values() if now_ms - s.created_ms > EVICTION_MS]
            left = next((s for s in self._sessions.values() if s.holder.is_gone), None)
            if left is not None:
                oldest = left
            elif not evictable:
                return False
            else:
                oldest = min(evictable, key=lambda each: (each.is_privileged, len(each.wanted), each.id))
                if rank <= (oldest.is_privileged, len(oldest.wanted)):
                    return False
        self._evict_one(oldest)
        return True

    def _make_room(
        self, size: int, host: str, is_privileged: bool, grown: FetchSession | None = None
    ) -> bool:
        """Evict until `size` more bytes fit in; False where they would be of the host that holds most. For a
        session that has grown its bytes are counted already."""
        while self.bytes + size > SESSIONS_BYTES_MAX:
            victim = self._victim(size, host, is_privileged, grown)
            if victim is None:
                return False
            self._evict_one(victim)
        return True

    def _victim(
        self, size: int, host: str, is_privileged: bool, grown: FetchSession | None
    ) -> FetchSession | None:
        others = [session for session in self._sessions.values() if session is not grown]
        left = next((session for session in others if session.holder.is_gone), None)
        if left is not None:
            return left
        if is_privileged:
            plain = [session for session in others if not session.is_privileged]
            if plain:
                return max(plain, key=lambda each: each.counted)
        by_host = self._by_host[is_privileged]
        most = max(by_host, key=by_host.__getitem__, default=host)
        least = 0
        if by_host[most] <= by_host[host] + size:
            # whoever asks holds most: it may have this one in place of a larger one
            most, least = host, size if grown is None else grown.counted
        held = [s for s in others if s.is_privileged == is_privileged and s.holder.host == most]
        victim = max(held, key=lambda each: each.counted, default=None)
        return victim if victim is not None and victim.counted > least else None

    def _evict_one(self, session: FetchSession) -> None:
        self.close(session.id)
        self.evictions += 1
