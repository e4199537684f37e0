"""Rounds: decisions that share an append, and which commands may still be decided before it.

Owns how decisions share batches and a round, the bounds of both, and what a round knows of the state that its
records touch. Does not own deciding (`deciding`), nor the way into the log (`flushing`).
Invariant: a command that may join a round depends on nothing that a record of the round changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from broker.coordinators.machine import Encoded, Machine, Share, TransactionalProducer
from broker.decisions import Decision
from protocol.work import Work
from storage.log import NewMarker

R_co = TypeVar("R_co", covariant=True)
RecordT = TypeVar("RecordT")

ROUND_BYTES_MAX: Final = 512 << 10
"""Decisions of one round stop here, so that a round stays one batch below the default max.message.bytes."""
RECORD_OVERHEAD_BYTES: Final = 32
PARTS_MAX: Final = 16
"""Of one round, each a batch of its own: they are appended in one go."""
RECORDS_PER_STEP: Final = 16
REPLIES_PER_STEP: Final = 8
"""Whoever waits for a reply goes on in the next turn of the loop, and encodes it there."""
SHORT_BYTES_MAX: Final = 16 << 10
"""Of a round that takes no turns."""
_MARKERS: Final = ("markers",)
"""The scope of markers, which no command has."""


class Asked(Protocol[R_co]):
    """A command, which may be decided in steps."""

    def decide(self, state: Any, means: Any, /) -> Decision[Any, R_co] | Work[Decision[Any, R_co]]: ...


class Tick:
    """A deadline, queued among the commands so that what arrived before it is decided before it."""


TICK: Final = Tick()
Entry: TypeAlias = Asked[Any] | NewMarker | Tick
Touched: TypeAlias = "tuple[Hashable | None, Share | None, TransactionalProducer | None]"
"""What a command touches: its scope, and the part of that; and whose transaction its records are of."""
ALL: Final[Touched] = (None, None, None)


@dataclass(slots=True)
class Part(Generic[RecordT]):
    """Decisions that share batches: plain ones, those of one transaction, or a marker."""

    producer: TransactionalProducer | None = None
    marker: NewMarker | None = None
    records: list[RecordT] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    replies: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        return self.producer is None and self.marker is None


@dataclass(slots=True)
class Round(Generic[RecordT]):
    """Decisions that share an append."""

    parts: list[Part[RecordT]] = field(default_factory=list)
    scopes: dict[Hashable | None, str | None] = field(default_factory=dict)
    """What the records touch, and the kind of the commands where these shared it."""
    touched: set[tuple[Hashable, Hashable]] = field(default_factory=set)
    """The parts of shared scopes that nothing else may touch."""
    size: int = 0
    soft: bool = False

    @property
    def plain(self) -> Part[RecordT] | None:
        """Return its only part, if that is plain."""
        parts = self.parts
        return parts[0] if len(parts) == 1 and parts[0].is_plain else None

    def is_short(self) -> bool:
        """Whether it is built, applied and answered in one step."""
        part = self.plain
        return (
            part is not None
            and len(part.records) <= RECORDS_PER_STEP
            and len(part.replies) <= REPLIES_PER_STEP
            and self.size <= SHORT_BYTES_MAX
        )

    # --- what may join ---

    def may_join(self, machine: Machine[Any, Any], command: Entry) -> bool:
        """Whether nothing the command depends on is in here, on its way into the log."""
        scopes = self.scopes
        if not scopes:
            return True
        if isinstance(command, Tick) or None in scopes or self.size > ROUND_BYTES_MAX:
            return False
        if len(self.parts) >= PARTS_MAX:
            return False
        if isinstance(command, NewMarker):
            return True  # what it changes, no decision of a scope depends on
        scope = machine.scope(command)
        if scope is None:
            return False
        return scope not in scopes or self._has_room(scope, machine.share(command))

    def _has_room(self, scope: Hashable, share: Share | None) -> bool:
        """Whether a command that touches so much of a scope depends on nothing that is in here of it."""
        if share is None or self.scopes[scope] != share.kind:
            return False
        return share.part is None or (scope, share.part) not in self.touched

    # --- joining ---

    def add_marker(self, marker: NewMarker, token: int) -> None:
        self.parts.append(Part(marker=marker, replies=[(token, None)]))
        self.scopes[_MARKERS] = None

    def add(
        self,
        touched: Touched,
        decision: Decision[RecordT, Any],
        encoded: list[Encoded],
        replies: tuple[tuple[int, Any], ...],
        size: int,
    ) -> None:
        scope, share, producer = touched
        parts = self.parts
        if not parts or producer is not None or not parts[-1].is_plain:
            parts.append(Part(producer=producer))
        part = parts[-1]
        part.records += decision.records
        part.encoded += encoded
        part.replies += replies
        self.size += size
        self.soft = self.soft or decision.soft
        if share is None or self.scopes.get(scope, share.kind) != share.kind:
            self.scopes[scope] = None
            return
        self.scopes[scope] = share.kind
        if share.part is not None:
            self.touched.add((scope, share.part))
