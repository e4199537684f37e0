"""The time in which this broker leads one tiered partition, and what it may ask of others meanwhile.

Owns: `Tenure`, which every step of a copy or a deletion asks before it acts. Does not own: the role
(partition), the steps (copier, removal, expirer). Invariant: a tenure
that is over never begins again; a new leader epoch is a new tenure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from protocol.errors import KafkaError
from remote.cold.segments import TieredPartition
from storage.log import AbstractLog

LOG_START_S: Final = 30.0
"""The longest wait for a log start to be durable."""


class Counts(Protocol):
    """What was asked of the tier for a topic, and how it went, since the broker started."""

    remote_copy: int
    remote_copy_bytes: int
    failed_remote_copy: int
    remote_delete: int
    failed_remote_delete: int


class TenureOver(Exception):
    """This broker leads the partition no more, or in another epoch: what was begun is another's to settle."""


class Tenure:
    __slots__ = (
        "began_at",
        "counts",
        "is_over",
        "leader_epoch",
        "log",
        "on_end",
        "on_start_moved",
        "partition",
        "topic",
    )

    def __init__(
        self,
        *,
        partition: TieredPartition,
        topic: str,
        log: AbstractLog,
        leader_epoch: int,
        began_at: float,
        counts: Counts,
        on_start_moved: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.topic = topic
        self.log = log
        self.leader_epoch = leader_epoch
        self.began_at = began_at
        """On the loop's clock."""
        self.counts = counts
        self.on_start_moved = on_start_moved
        """Called, not from within a change of the log, after its start moved."""
        self.on_end: Callable[[], None] | None = None
        """Called when the role ends, while an upload is under way: gives it up."""
        self.is_over = False

    def __repr__(self) -> str:
        state = " over" if self.is_over else ""
        return f"<Tenure {self.topic}-{self.partition.number} epoch {self.leader_epoch}{state}>"

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition.number}"

    def end(self) -> None:
        """The role is over."""
        self.is_over = True
        if self.on_end is not None:
            self.on_end()

    def check(self) -> None:
        if self.is_over or self.log.offline is not None:
            raise TenureOver(self.name)

    async def start_log_at(self, offset: int) -> None:
        """Move the log start there, if it is not past it; return once that is durable. KafkaError if it will
        not be."""
        if offset > self.log.log_start_offset:
            await start_log_at(self.log, offset)
            self.on_start_moved()


async def start_log_at(log: AbstractLog, offset: int) -> None:
    """Return once the log starts at `offset` or later and the disk knows it; raise KafkaError if it will not,
    TimeoutError for a disk that takes too long."""
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: KafkaError | None) -> None:
        if moved.done():
            return
        if error is None:
            moved.set_result(None)
        else:
            moved.set_exception(error)

    log.advance_log_start(offset, done)
    async with asyncio.timeout(LOG_START_S):
        await moved
