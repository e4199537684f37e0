"""The transaction coordinator of this broker: one replicated machine for each partition of
`__transaction_state` it leads.

Owns which partition a transactional id belongs to and the life of its machines. Does not own what they decide,
nor requests and responses.
Invariant: a machine lives exactly as long as this broker leads its partition in one leader epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from broker.endpoint import Endpoint
from protocol.errors import ErrorCode

R = TypeVar("R", covariant=True)

TRANSACTIONS_TOPIC = "__transaction_state"


class TransactionCommand(Protocol[R]):
    @property
    def transactional_id(self) -> str: ...

    def decide(self, state: Any, means: Any, /) -> Any: ...


class TransactionCoordinator:
    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` that the id belongs to."""
        raise NotImplementedError

    async def find(self, transactional_id: str, listener: str) -> tuple[int, Endpoint]:
        """Return the broker that coordinates the id and its endpoint of that listener. The first call creates
        the topic.
        """
        raise NotImplementedError

    async def ask(self, transactional_id: str, command: TransactionCommand[R]) -> R:
        """Return the machine's answer once it is durable; raise KafkaError as Kafka would answer."""
        raise NotImplementedError

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
        *,
        verify_only: bool,
        transaction_version: int,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """Add the partitions to the transaction, or tell which are in it. Raise KafkaError for what refuses
        all of them: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
        INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
        """
        raise NotImplementedError
