"""One partition in memory for a coordinator, whose appends wait and fail on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from broker.turns import Turns
from protocol import records as batches
from protocol.errors import ErrorCode, KafkaError
from storage.log import CoordinatorBatch, NewMarker


@dataclass
class AppendedAt:
    first_offset: int


@dataclass
class FakeLog:
    """Appends wait at the gate and fail as planned."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    failures: list[tuple[ErrorCode, bool]] = field(default_factory=list)
    """What the next appends fail with, and whether the batch is in the log all the same."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    appending: asyncio.Event = field(default_factory=asyncio.Event)
    read_error: Exception | None = None
    is_on_all: bool = True
    is_alone: bool = False
    """Whether it has no other replica; appends do not wait at an open gate then."""
    refused: list[ErrorCode | None] = field(default_factory=list)
    """What the next batches of rounds with transactions are refused with."""
    rounds: list[int] = field(default_factory=list)
    """How many batches each round with transactions had."""

    def __post_init__(self) -> None:
        self.gate.set()

    async def append(
        self,
        topic: str,
        index: int,
        batch: bytearray,
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
        is_own: bool = True,
    ) -> AppendedAt:
        self.appending.set()
        await self.gate.wait()
        return self._append(batch, expected_leader_epoch)

    def stands_alone(self, topic: str, index: int) -> bool:
        return self.is_alone and self.gate.is_set()

    def append_alone(
        self, topic: str, index: int, batch: bytearray, *, expected_leader_epoch: int
    ) -> AppendedAt:
        self.appending.set()
        return self._append(batch, expected_leader_epoch)

    def _append(self, batch: bytearray, expected_leader_epoch: int) -> AppendedAt:
        failure, is_kept = self.failures.pop(0) if self.failures else (None, True)
        first = self.end
        if is_kept:
            header = batches.parse_header(batch)
            batches.stamp(batch, 0, first, expected_leader_epoch)
            self.batches.append(bytes(batch))
            self.end += header.last_offset_delta + 1
        if failure is not None:
            raise KafkaError(failure)
        return AppendedAt(first)

    async def append_all(
        self,
        topic: str,
        index: int,
        batches: Sequence[CoordinatorBatch | NewMarker],
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
    ) -> list[AppendedAt | KafkaError]:
        """Refuses what `refused` plans; everything else is appended as ever."""
        outcomes: list[AppendedAt | KafkaError] = []
        for batch in batches:
            code = self.refused.pop(0) if self.refused else None
            if code is not None:
                outcomes.append(KafkaError(code))
                continue
            data = batch.data if isinstance(batch, CoordinatorBatch) else bytearray(_marker(batch))
            outcomes.append(
                await self.append(
                    topic,
                    index,
                    data,
                    timeout_ms=timeout_ms,
                    expected_leader_epoch=expected_leader_epoch,
                )
            )
        self.rounds.append(len(batches))
        return outcomes

    def read_all(self, topic: str, index: int) -> Iterator[bytes]:
        if self.read_error is not None:
            raise self.read_error
        yield from self.batches

    def is_replicated(self, topic: str, index: int) -> bool:
        return self.is_on_all

    def counts(self) -> list[int]:
        return [batches.parse_header(batch).count for batch in self.batches]


def _marker(marker: NewMarker) -> bytearray:
    return batches.end_txn_marker(
        commit=marker.committed,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=0,
    )


def turns() -> Turns:
    """Work in turns that goes on as often as it likes."""
    return Turns(loop=asyncio.get_running_loop(), elapsed_s=lambda: 0.0, steps=lambda: 1 << 30)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
