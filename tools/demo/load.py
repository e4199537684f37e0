"""The producers of the demo: one for each partition, idempotent, acks=all, at a steady pace.

Owns what is sent, that it is sent again until it is acknowledged, and what was acknowledged when. Does not
own what is read back (judgement) nor the brokers. It speaks through tools.client, so that the demo needs no
client of others.
Invariant: one batch is under way in a partition, and it goes again as it was, under the same sequence; the
sums hold what was acknowledged and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from protocol.records import build_batch
from tools.client import Address, Client, RequestFailed
from tools.console import Failure
from tools.demo.judgement import RECORD_BYTES, Sums, value_of

T = TypeVar("T")

BATCH_RECORDS: Final = 20
DEADLINE_S: Final = 10.0
GIVEN_UP_S: Final = 60.0
"""No batch of a producer is acknowledged for so long: the demo has failed."""
PAUSE_S: Final = 0.02
SEQUENCES: Final = 1 << 31
_STORED: Final = (ErrorCode.none, ErrorCode.duplicate_sequence_number)


class Notes(Protocol):
    """Whoever wants to know what was acknowledged where."""

    def note(self, topic: str, partition: int, first_offset: int, values: Sequence[bytes]) -> None: ...

    def close(self) -> None: ...


class Producer:
    """Writes one partition until it is told to stop."""

    def __init__(
        self,
        client: Client,
        topic: str,
        partition: int,
        *,
        series: int,
        bytes_per_s: float,
        notes: Notes | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.sums = Sums(f"{topic}-{partition}", series)
        self.acknowledged_s: list[float] = []
        """When each batch was."""
        self._client = client
        self._batch_every_s = BATCH_RECORDS * RECORD_BYTES / bytes_per_s
        self._notes = notes
        self._producer = (-1, -1)

    async def run(self, stopping: asyncio.Event) -> None:
        """Write until `stopping`; Failure when nothing is acknowledged any more."""
        await self._become_producer()
        due_s = time.perf_counter()
        while not stopping.is_set():
            first = self.sums.records
            values = [value_of(self.sums.series, first + each) for each in range(BATCH_RECORDS)]
            offset = await self._deliver(self._batch(values, first))
            self.acknowledged_s.append(time.perf_counter())
            for value in values:
                self.sums.add(value)
            if self._notes is not None:
                self._notes.note(self.topic, self.partition, offset, values)
            # after an outage it goes on at its pace: what was not sent meanwhile is not made up for
            due_s = max(due_s + self._batch_every_s, time.perf_counter())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), due_s - time.perf_counter())

    def _batch(self, values: Sequence[bytes], sequence: int) -> bytes:
        now_ms = time.time_ns() // 1_000_000  # noqa: TID251 (a client's clock)
        producer_id, epoch = self._producer
        return bytes(
            build_batch(
                [(None, value, (), now_ms) for value in values],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence % SEQUENCES,
            )
        )

    async def _become_producer(self) -> None:
        async def ask() -> tuple[int, int] | None:
            answer = await self._client.request(
                Api.INIT_PRODUCER_ID,
                {
                    "transactional_id": None,
                    "transaction_timeout": 60_000,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
            return None if answer.error_code else (answer.producer_id, answer.producer_epoch)

        self._producer = await self._insist(ask)

    async def _deliver(self, batch: bytes) -> int:
        """Send it until it is acknowledged; return its first offset."""

        async def ask() -> int | None:
            row = await self._client.produce(self.topic, self.partition, batch)
            return int(row.base_offset) if row.error_code in _STORED else None

        return await self._insist(ask)

    async def _insist(self, ask: Callable[[], Awaitable[T | None]]) -> T:
        """Ask until there is an answer, each time after a look who leads; Failure when it takes too long."""
        ends_s = time.perf_counter() + GIVEN_UP_S
        while time.perf_counter() < ends_s:
            with contextlib.suppress(KafkaError, RequestFailed):
                if (answer := await ask()) is not None:
                    return answer
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(KafkaError, RequestFailed):
                await self._client.refresh([self.topic])
        raise Failure(f"{self.sums.name}: no batch was acknowledged for {GIVEN_UP_S:.0f} s")


def client_of(bootstrap: Sequence[Address]) -> Client:
    return Client(bootstrap, client_id="tidewal-demo", deadline_s=DEADLINE_S)
