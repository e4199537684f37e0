"""The contract between a pure coordinator and the shell that runs it over an internal partition.

Owns the shape of a decision, the two clocks a decision may look at, and the timers of a pure machine. Does
not own any log, loop or socket (`broker.replicated_state`), nor what is decided (`broker.group`).
Invariant: durable state changes only in `Machine.apply`, so recovery is `apply` in a loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

Record = TypeVar("Record")
Command = TypeVar("Command", contravariant=True)


class Instant(NamedTuple):
    """Now, twice: sessions are durations and must survive a clock that jumps; what is written is wall
    time.
    """

    mono_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Record]):
    """What a command leads to. Replies (by token, also to earlier commands) wait until the records are
    durable.

    `soft` says that memory already reckons with the records: if they do not get durable, the machine is
    void.
    """

    records: tuple[Record, ...] = ()
    replies: tuple[tuple[int, Any], ...] = ()
    soft: bool = False


class Machine(Protocol[Command, Record]):
    """A pure state machine. `decide` may change soft state, which a restart forgets; never durable state."""

    def decide(self, command: Command, token: int, now: Instant) -> Decision[Record]:
        """Raises KafkaError, having changed nothing, to refuse the command."""

    def tick(self, now: Instant) -> Decision[Record]:
        """Do what the deadlines up to now ask for."""

    def next_deadline_ms(self) -> int | None:
        """When to tick next, on the monotonic clock. It may be early, never late."""

    def resume(self, now: Instant) -> None:
        """The process stood still: give peers their full time again before any is given up."""

    def loaded(self, now: Instant) -> None:
        """Everything in the log was applied; build the soft state."""

    def apply(self, record: Record, *, offset: int, producer_id: int) -> None: ...

    def apply_marker(self, *, producer_id: int, committed: bool) -> None: ...

    def encode(self, record: Record) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """None for a record of a kind this machine does not know."""

    def scope(self, command: Command) -> Hashable | None:
        """What part of the state the command reads and writes; None for all of it."""

    def is_stackable(self, command: Command) -> bool:
        """Whether stackable commands of one scope may be decided before each other's records are applied."""


_COMPACT_AT: Final = 64


class Timers:
    """Deadlines by key. Moving one later, which every heartbeat does, costs a dictionary write and no
    heap; what was cancelled leaves the heap at the latest when it is most of it.
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
        """Each key whose deadline has come, once, in the order of the deadlines."""
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
