"""What the tests of transactional requests share: a transaction coordinator that answers on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from tests.broker.raw_client import RawClient, batch_of

if TYPE_CHECKING:
    from broker.server import Broker

Name = tuple[str, int]


@dataclass
class Asked:
    transactional_id: str
    producer: tuple[int, int]
    partitions: list[Name]
    verify_only: bool


@dataclass
class AnsweringCoordinator:
    """Agrees to everything, unless `errors` or `failures` say otherwise, once the gate is open."""

    errors: dict[Name, ErrorCode] = field(default_factory=dict)
    failures: list[ErrorCode] = field(default_factory=list)
    """What the next questions are refused with as a whole."""
    asked: list[Asked] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asking: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def verifying(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[Name]
    ) -> None:
        """It has always to be waited for."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Name],
        *,
        verify_only: bool,
        transaction_version: int,
    ) -> Mapping[Name, ErrorCode]:
        self.asked.append(
            Asked(transactional_id, (producer_id, producer_epoch), list(partitions), verify_only)
        )
        self.asking.set()
        await self.gate.wait()
        if self.failures:
            raise KafkaError(self.failures.pop(0))
        return {name: self.errors.get(name, ErrorCode.none) for name in partitions}


async def coordinated(broker: Broker) -> AnsweringCoordinator:
    """Give the broker a transaction coordinator."""
    await broker.components.cluster.ensure_internal("__transaction_state")
    coordinator = broker.components.verifier.coordinator = AnsweringCoordinator()
    return coordinator


def txn_batch(sequence: int, *values: bytes, epoch: int = 0, producer_id: int = 7, **fields: Any) -> bytes:
    return batch_of(
        *(values or (b"v",)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
        **fields,
    )


async def write_markers(
    client: RawClient,
    *partitions: Name,
    committed: bool = True,
    epoch: int = 0,
    producer_id: int = 7,
    coordinator_epoch: int = 0,
    version: int = 2,
    transaction_version: int = 0,
) -> dict[Name, ErrorCode]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": committed,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
    }
    response = await client.call(Api.WRITE_TXN_MARKERS, version, markers=[marker])
    (row,) = response.markers
    assert row.producer_id == producer_id
    return {
        (topic.name, each.partition_index): each.error_code
        for topic in row.topics
        for each in topic.partitions
    }
