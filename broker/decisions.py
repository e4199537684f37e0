"""The contract of the state machines: commands read a state and return decisions; records change it.

Owns: what a command is, and what it leads to. The controller (`broker.control`) and the coordinators
(`broker.coordinators`) keep to it: each has a state, commands over it, and a shell that makes the records of
a decision durable. Does not own: any state, any command, nor when a decision becomes true.

Invariant: deciding changes nothing that a restart would keep. The records of a decision are made durable,
then applied, then its replies are sent, in this order; what was refused raised KafkaError and has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from protocol.errors import ErrorCode, KafkaError

StateT_contra = TypeVar("StateT_contra", contravariant=True)
MeansT_contra = TypeVar("MeansT_contra", contravariant=True)
RecordT_co = TypeVar("RecordT_co", covariant=True)
ResponseT_co = TypeVar("ResponseT_co", covariant=True)


LISTED_MAX_CHARS: Final = 1_000


class Decision(NamedTuple, Generic[RecordT_co, ResponseT_co]):
    """What a command leads to. Nothing of it is sent before its records are durable and applied."""

    records: tuple[RecordT_co, ...] = ()
    response: ResponseT_co | None = None
    """The answer to the command. None where a later decision answers it, by its token."""
    replies: tuple[tuple[int, Any], ...] = ()
    """Answers to earlier commands, by token; they are sent before the response."""
    soft: bool = False
    """Memory already reckons with the records: if they do not become durable, the state must be rebuilt."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one item of a command was refused. Not the error itself, which holds the frames that raised it:
    a response names many items."""

    code: ErrorCode
    message: str | None = None

    @classmethod
    def of(cls, error: KafkaError) -> Refusal:
        return cls(error.code, error.message)


def listed(names: Iterable[str], separator: str) -> str:
    """Return the names for a message, which is cut anyway: those of a request may have 100 MB in all."""
    told: list[str] = []
    left = LISTED_MAX_CHARS
    for name in names:
        told.append(name[:left])
        left -= len(name) + len(separator)
        if left <= 0:
            break
    return separator.join(told)


class Command(Protocol[StateT_contra, MeansT_contra, RecordT_co, ResponseT_co]):
    def decide(self, state: StateT_contra, means: MeansT_contra, /) -> Decision[RecordT_co, ResponseT_co]:
        """Read the state, and what the shell provides besides it, such as the time or the configuration.
        Raise KafkaError to refuse the command as a whole.
        """
