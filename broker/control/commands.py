"""What the controller's commands have in common: what they may look at, and what they lead to.

Owns: the rules beside the image, the type of a command and of its decision. Does not own: any command
(topics.py, config_changes.py, brokers.py, leaders.py), winning the slot that makes a decision true, or which
requests may ask for it.

Invariant: deciding changes nothing. A command reads one image and returns the records that would carry it
out; it refuses as a whole by raising KafkaError, and item by item in its response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from uuid import UUID

from broker.config.broker import BrokerConfig
from broker.control.image import Image
from broker.control.metadata_records import Record
from broker.decisions import Command

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a decision may look at besides the image."""

    config: BrokerConfig
    new_id: Callable[[], UUID]
    pick: Callable[[int], int]
    """Return a number below the argument: where placement begins."""


ControllerCommand: TypeAlias = Command[Image, Rules, Record, R]
