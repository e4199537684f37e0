"""Incremental fetch sessions (KIP-227): what a consumer asked for and what it was last told.

Owns: the sessions, their epochs, and which session makes room for a new one. Does not own: reading logs or
packing. Invariant: at most `max_sessions` sessions; a session's epoch goes up by one with each request that
used it, so a request that was lost or repeated is told apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

from protocol.errors import ErrorCode
from protocol.fetch import FetchItem, FetchRequest
from protocol.primitives import TopicKey

EVICTION_MS: Final = 120_000
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


class FetchSession:
    __slots__ = ("created_ms", "epoch", "id", "is_privileged", "reader", "used_ms", "uses_ids", "wanted")

    def __init__(
        self,
        session_id: int,
        wanted: dict[tuple[TopicKey, int], PartitionRequest],
        *,
        uses_ids: bool,
        is_privileged: bool,
        now_ms: int,
    ) -> None:
        self.id = session_id
        self.is_privileged = is_privileged
        self.reader: SessionReader | None = None
        """The state its reader keeps from request to request."""
        self.wanted = wanted
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
            else:
                known.update(item)
        for key in forgotten:
            self.wanted.pop(key, None)

    def to_back(self, served: Collection[PartitionRequest]) -> None:
        """Put partitions that got data last, so that a full response starves none."""
        for wanted in served:
            key = (wanted.topic, wanted.index)
            if self.wanted.pop(key, None) is not None:
                self.wanted[key] = wanted
        if self.reader is not None:
            self.reader.to_back(served)


class FetchTurn:
    """How one Fetch is to be answered: which partitions, in which session, or with which session error."""

    __slots__ = ("creates", "epoch", "error", "session", "wanted")

    def __init__(
        self,
        wanted: Iterable[PartitionRequest] = (),
        *,
        session: FetchSession | None = None,
        creates: bool = False,
        error: ErrorCode = ErrorCode.none,
    ) -> None:
        self.wanted = wanted
        self.session = session
        self.epoch = session.epoch if session is not None else -1
        self.creates = creates
        self.error = error


class FetchSessions:
    def __init__(self, *, max_sessions: int, randrange: Callable[[int, int], int]) -> None:
        self._max_sessions = max_sessions
        self._randrange = randrange
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Least recently used first."""
        self.evictions = 0

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self._sessions)} of {self._max_sessions}, {self.evictions} evicted>"

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.wanted) for session in self._sessions.values())

    def turn(self, request: FetchRequest, *, uses_ids: bool, now_ms: int) -> FetchTurn:
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._full(request)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchTurn(error=ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            return FetchTurn(error=ErrorCode.invalid_fetch_session_epoch)
        if session.uses_ids != uses_ids:
            return FetchTurn(error=ErrorCode.fetch_session_topic_id_error)
        if request.items or request.forgotten:
            session.update(request.items, request.forgotten)
            if not session.wanted:
                self._close(session.id)
                return FetchTurn()
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        return FetchTurn(session.wanted.values(), session=session)

    def _full(self, request: FetchRequest) -> FetchTurn:
        """Close the session named in a full request. Epoch 0 asks for a new one, -1 does not."""
        self._close(request.session_id)
        wanted = {(item.topic, item.partition): PartitionRequest(item) for item in request.items}
        return FetchTurn(wanted.values(), creates=request.session_epoch == INITIAL_EPOCH)

    def create(
        self, wanted: Iterable[PartitionRequest], *, uses_ids: bool, now_ms: int, is_privileged: bool = False
    ) -> int:
        """Return a new session's id, or 0 when there is no room. A follower's is privileged: no consumer's
        takes its place while it is used."""
        partitions = {(each.topic, each.index): each for each in wanted}
        if len(self._sessions) >= self._max_sessions and not self._evict(
            (is_privileged, len(partitions)), now_ms
        ):
            return 0
        session_id = self._randrange(1, 2**31 - 1)
        while session_id in self._sessions:
            session_id = self._randrange(1, 2**31 - 1)
        self._sessions[session_id] = FetchSession(
            session_id, partitions, uses_ids=uses_ids, is_privileged=is_privileged, now_ms=now_ms
        )
        return session_id

    def _evict(self, rank: tuple[bool, int], now_ms: int) -> bool:
        """Make room for a session of this (privilege, size): a stale one goes, else an old one below it."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms <= EVICTION_MS:
            evictable = [s for s in self._sessions.values() if now_ms - s.created_ms > EVICTION_MS]
            if not evictable:
                return False
            oldest = min(evictable, key=lambda each: (each.is_privileged, len(each.wanted), each.id))
            if rank <= (oldest.is_privileged, len(oldest.wanted)):
                return False
        self._close(oldest.id)
        self.evictions += 1
        return True

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.reader is not None:
            session.reader.close()
