"""The contract between a pure coordinator and the shell that runs it over an internal partition.

Owns what a machine offers its shell, the draft of a decision with the two clocks it may look at, and the
timers of a pure machine. Does not own any log, loop or socket (`broker.coordinators.replicated_state`), nor
what is decided (`broker.coordinators.groups`).
Invariant: durable state changes only in `Machine.apply`, so recovery is `apply` in a loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from types import GeneratorType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from broker.decisions import Decision
from protocol.work import Work
from storage.producers import Verification

CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
RecordT = TypeVar("RecordT")
ResponseT = TypeVar("ResponseT")
T = TypeVar("T")


class Instant(NamedTuple):
    """Now, on two clocks: sessions are durations and must survive a wall clock that jumps; records carry
    wall time.
    """

    mono_ms: int
    wall_ms: int


class TransactionalProducer(NamedTuple):
    """Whose transaction the records of a command are of: `producer` of such a command."""

    producer_id: int
    producer_epoch: int
    verified: Verification | None = None
    """What the log needs to begin the transaction."""


_new_tuple = tuple.__new__
"""A named tuple of all its fields, in half the time."""


class DecisionDraft(Generic[RecordT]):
    """What a command has led to so far, and what it may look at besides the state: the time, and the token
    by which a later decision can answer it.
    """

    __slots__ = ("now", "records", "replies", "token")

    def __init__(self, now: Instant, token: int) -> None:
        self.now = now
        self.token = token
        self.records: list[RecordT] = []
        self.replies: list[tuple[int, Any]] = []

    def reply(self, token: int, answer: Any) -> None:
        """Answer a command that waits, this one or an earlier one."""
        self.replies.append((token, answer))

    def decision(self, response: ResponseT | None = None, *, soft: bool) -> Decision[RecordT, ResponseT]:
        return _new_tuple(Decision, (tuple(self.records), response, tuple(self.replies), soft))


class Share(NamedTuple):
    """What a command touches of its scope, where that is not all of it."""

    kind: str
    part: Hashable | None = None
    """What no other command of the kind may touch at the same time; None if they may touch the same."""


Encoded: TypeAlias = tuple[bytes, bytes | None]
"""The key and the value of a record."""


def in_steps(result: T | Work[T]) -> Work[T]:
    """Return what a machine has made at once, or makes in steps."""
    if isinstance(result, GeneratorType):
        made: T = yield from result
        return made
    return cast(T, result)


class Machine(Protocol[CommandT_contra, RecordT]):
    """A pure state machine. `decide` may change soft state, which a restart forgets; never durable state.

    What grows with a command or with the state is done in steps. Its shell begins nothing else that changes
    the state before that has ended; what only reads may come between two steps.
    """

    def decide(
        self, command: CommandT_contra, draft: DecisionDraft[RecordT]
    ) -> Decision[RecordT, Any] | Work[Decision[RecordT, Any]]:
        """Raise KafkaError, having changed nothing, to refuse the command. What the draft holds after any
        other error is lost, but for whose waiting was over: they are told of the error.
        """

    def tick(self, now: Instant) -> Decision[RecordT, Any] | Work[Decision[RecordT, Any]]:
        """Do what the deadlines up to now ask for; the decision has no response."""

    def next_deadline_ms(self) -> int | None:
        """Return when to tick next, on the monotonic clock. It may be early, never late."""

    def resume(self, now: Instant) -> Work[None] | None:
        """Give peers their full time again, after the process stood still."""

    def loaded(self, now: Instant) -> Work[None] | None:
        """Build the soft state; everything in the log was applied."""

    def apply(self, record: RecordT, *, offset: int, producer_id: int) -> None: ...

    def apply_marker(self, *, producer_id: int, committed: bool) -> Work[None] | None:
        """End a transaction of which records were applied."""

    def encode(self, record: RecordT) -> Encoded | Work[Encoded]: ...

    def decode(self, key: bytes, value: bytes | None) -> RecordT | None:
        """Return the record, or None for one of a kind this machine does not know."""

    def scope(self, command: CommandT_contra) -> Hashable | None:
        """Return the part of the state that the command reads and writes; None for all of it."""

    def share(self, command: CommandT_contra) -> Share | None:
        """Return the part of its scope that the command touches; None for all of it. Commands of one kind and
        of other parts may be decided before each other's records are applied.
        """


_COMPACT_AT: Final = 64


class Timers:
    """Deadlines by key. Moving one later, which every heartbeat does, costs a dictionary write and no
    heap operation; cancelled ones leave the heap at the latest when they are most of it.
    """

    __slots__ = ("_deadlines", "_heap", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[tuple[str, ...], int] = {}
        self._queued: dict[tuple[str, ...], int] = {}
        self._heap: list[tuple[int, tuple[str, ...]]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: tuple[str, ...], at_ms: int) -> None:
        self._deadlines[key] = at_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or queued_ms > at_ms:
            self._push(key, at_ms)

    def cancel(self, key: tuple[str, ...]) -> None:
        self._deadlines.pop(key, None)

    def at(self, key: tuple[str, ...]) -> int | None:
        return self._deadlines.get(key)

    def next_ms(self) -> int | None:
        while self._heap:
            at_ms, key = self._heap[0]
            if self._queued.get(key) == at_ms and key in self._deadlines:
                return at_ms
            self._pop()
        return None

    def due(self, now_ms: int) -> Iterator[tuple[str, ...]]:
        """Yield each key whose deadline has come, once, in the order of the deadlines."""
        while self._heap and self._heap[0][0] <= now_ms:
            key = self._pop()
            deadline_ms = self._deadlines.get(key) if key is not None else None
            if key is None or deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self._push(key, deadline_ms)
                continue
            del self._deadlines[key]
            yield key

    def _push(self, key: tuple[str, ...], at_ms: int) -> None:
        self._queued[key] = at_ms
        heapq.heappush(self._heap, (at_ms, key))
        if len(self._heap) > _COMPACT_AT + 2 * len(self._deadlines):
            self._compact()

    def _compact(self) -> None:
        self._queued = {key: at_ms for key, at_ms in self._queued.items() if key in self._deadlines}
        self._heap = [(at_ms, key) for key, at_ms in self._queued.items()]
        heapq.heapify(self._heap)

    def _pop(self) -> tuple[str, ...] | None:
        """Take the first entry; None when a later push had replaced it."""
        at_ms, key = heapq.heappop(self._heap)
        if self._queued.get(key) != at_ms:
            return None
        del self._queued[key]
        return key
