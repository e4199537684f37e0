"""What the controller's commands have in common: what they may look at, and what they lead to.

Owns: the rules beside the image, the type of a command and of its decision. Does not own: any command
(topics.py, config_changes.py, brokers.py, leaders.py), winning the slot that makes a decision true, or which
requests may ask for it.

Invariants: deciding changes nothing. A command reads one image and returns the records that would carry it
out; it refuses as a whole by raising KafkaError, and item by item in its response. What grows with a request
or with the image is decided in turns, upon an image that nobody else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.image import Image
from broker.control.metadata_records import Record
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

RECORDS_MAX_PER_COMMAND: Final = 10_000
"""The most records that one command of a client may lead to, as in Kafka: they share a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a decision may look at besides the image."""

    config: BrokerConfig
    new_id: Callable[[], UUID]
    pick: Callable[[int], int]
    """Return a number below the argument: where placement begins."""


class ControllerCommand(Protocol[R_co]):
    def decide(self, image: Image, rules: Rules, /) -> Decision[Record, R_co] | Work[Decision[Record, R_co]]:
        """Read the image and the rules, in turns where there may be much to look at. Raise KafkaError to
        refuse the command as a whole."""


def deciding(command: ControllerCommand[R], image: Image, rules: Rules) -> Work[Decision[Record, R]]:
    """Decide any command in turns."""
    decided = command.decide(image, rules)
    if isinstance(decided, Decision):
        return decided
    return (yield from decided)


def too_large() -> KafkaError:
    return KafkaError(ErrorCode.policy_violation, "Unable to perform excessively large batch operation.")
