"""What the demo knows of itself at a moment: its steps, the brokers, where each partition's bytes are.

Owns these facts and what can be read off them. Does not own how they come about (steps, watcher) nor how they
are shown (picture). Pure.
Invariant: a step is told once, when it has ended, with the time it took.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Condition(StrEnum):
    STARTING = "starting"
    RUNS = "runs"
    KILLED = "killed"
    EMPTIED = "disk emptied"
    STOPPED = "stopped"


class Outcome(StrEnum):
    WAITING = " "
    UNDER_WAY = ">"
    HELD = "+"
    LEFT_OUT = "-"
    FAILED = "!"


@dataclass(slots=True, kw_only=True)
class Step:
    name: str
    outcome: Outcome = Outcome.WAITING
    seconds: float | None = None
    told: str = ""
    """What came of it; while it is under way, what it waits for."""


@dataclass(slots=True, kw_only=True)
class BrokerState:
    node_id: int
    condition: Condition = Condition.STARTING
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Ends are exclusive; None of a tier stands for nothing in it."""

    topic: str
    number: int
    leader: int | None
    in_sync: tuple[int, ...]
    log_start: int
    local_start: int
    log_end: int
    cold_end: int | None = None
    wal_end: int | None = None
    disk_bytes: int = 0
    """At its leader."""
    cold_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(slots=True, kw_only=True)
class StoreState:
    wal_bytes: int = 0
    cold_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class DemoState:
    steps: list[Step]
    brokers: list[BrokerState]
    partitions: list[PartitionState] = field(default_factory=list)
    store: StoreState = field(default_factory=StoreState)
    records: int = 0
    """Acknowledged so far."""
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    elapsed_s: float = 0.0

    def broker(self, node_id: int) -> BrokerState:
        return next(broker for broker in self.brokers if broker.node_id == node_id)
