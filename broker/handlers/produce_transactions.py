"""What a Produce of a transaction needs before its batches may be appended.

Owns: which partitions of a request the transaction coordinator has to know of, asking it and asking again,
and what a partition is answered that it does not agree to. Does not own: the question itself (the verifier),
the append, which looks again at what was verified (the log), nor the order of a connection's requests
(Produce). Invariant: a partition is asked about before its first batch of a transaction, and not again before
that has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from broker.config.broker import BrokerConfig
from broker.control.cluster import Cluster
from broker.control.internal_topics import may_client_write
from broker.coordinators.transactions.verification import Question, Verifier
from broker.replicas.replica_manager import ReplicaManager
from broker.turns import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import ROWS_A_STEP, TopicKey
from protocol.produce import ProduceResult
from protocol.records import check_one_batch
from protocol.work import Work, finish
from storage.producers import UNASKED, Verification

ABORTABLE_FROM: Final = 11
"""The version of Produce whose clients know TRANSACTION_ABORTABLE."""
ADDS_FROM: Final = 12
"""The version of Produce that includes a partition in the transaction, so that nobody else has to."""
_FIRST_PAUSE_S: Final = 0.001

Rows: TypeAlias = Sequence[tuple[TopicKey, Sequence[tuple[int, memoryview | None]]]]
Place: TypeAlias = tuple[TopicKey, int]

_NOT_THERE: Final = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class TransactionalProduce:
    """The batches of a transaction in one request, and what is known of their partitions."""

    __slots__ = (
        "_asked",
        "_batches",
        "_enabled",
        "_is_of_several",
        "adds",
        "refused",
        "transactional_id",
        "verified",
        "version",
    )

    def __init__(self, *, version: int, transactional_id: str, is_enabled: bool) -> None:
        self.version = version
        self.transactional_id = transactional_id
        self.adds = version >= ADDS_FROM
        self._enabled = is_enabled
        self._batches: dict[Place, tuple[str, int, int, int]] = {}
        """The partition's topic, and the producer id, epoch and sequence of its batch."""
        self._is_of_several = False
        self._asked: dict[tuple[str, int], Place] = {}
        self.verified: dict[Place, Verification] = {}
        self.refused: dict[Place, ProduceResult] = {}
        """What the partitions are answered that are not to be appended to."""

    @property
    def is_asked_for(self) -> bool:
        return bool(self._asked)

    def verification(self, place: Place) -> Verification | None:
        return self.verified.get(place) if self._enabled else UNASKED

    def note(self, place: Place, topic: str, records: memoryview | None) -> None:
        """Take note of a record set, if it is of a transaction and could be appended at all."""
        try:
            header = check_one_batch(records, self.version)
        except KafkaError:
            return
        if header.is_transactional and header.producer_id >= 0:
            batch = (topic, header.producer_id, header.producer_epoch, header.base_sequence)
            if self._batches and self._producer != batch[1:3]:
                self._is_of_several = True
            self._batches[place] = batch

    def check_producer(self) -> None:
        """Refuse a request of several producers."""
        if self._is_of_several:
            raise KafkaError(
                ErrorCode.invalid_producer_id_mapping,
                "Transactional records contained more than one producer ID",
            )

    def beginning(self, replicas: ReplicaManager, now_ms: int) -> Work[None]:
        """Find out which partitions are to be asked about. Called again before they are asked about again."""
        self._asked.clear()
        self.refused.clear()
        if not (self.adds or self._enabled):
            return
        for at, (place, batch) in enumerate(self._batches.items(), 1):
            if not at % ROWS_A_STEP:
                yield
            topic, producer_id, epoch, sequence = batch
            partition = replicas.find(topic, place[1])
            if isinstance(partition, ErrorCode):
                self.refused[place] = _result(place[1], partition, self.adds)
                continue
            try:
                verification = partition.log.producer_table.begin_verification(
                    producer_id, epoch, sequence, adds=self.adds, now_ms=now_ms
                )
            except KafkaError as error:
                self.refused[place] = _result(place[1], error.code, self.adds)
                continue
            if verification is not None:
                self.verified[place] = verification
                self._asked[topic, place[1]] = place

    async def ask(self, verifier: Verifier, timeout_ms: int) -> Mapping[tuple[str, int], ErrorCode]:
        """Ask the coordinator; return its errors, for `take`."""
        return await verifier.check(self._question(), timeout_ms=timeout_ms)

    def ask_now(self, verifier: Verifier) -> bool:
        """Ask it, if it is here and nothing is to be added; return whether that was so."""
        if self.adds:
            return False
        errors = verifier.check_now(self._question())
        if errors is None:
            return False
        finish(self.take(errors))
        return True

    def _question(self) -> Question:
        producer_id, producer_epoch = self._producer
        return Question(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=list(self._asked),
            adds=self.adds,
            maps_abortable=self.version < ABORTABLE_FROM,
        )

    @property
    def _producer(self) -> tuple[int, int]:
        _topic, producer_id, epoch, _sequence = next(iter(self._batches.values()))
        return producer_id, epoch

    def take(self, errors: Mapping[tuple[str, int], ErrorCode]) -> Work[bool]:
        """Refuse what the coordinator does; return whether it was busy with the end of the transaction
        before."""
        is_busy = False
        for at, (name, code) in enumerate(errors.items(), 1):
            if not at % ROWS_A_STEP:
                yield
            place = self._asked.get(name)
            if place is not None:
                self.refused[place] = _result(place[1], code, self.adds)
                is_busy = is_busy or code is ErrorCode.concurrent_transactions
        return is_busy


class ProduceTransactions:
    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        cluster: Cluster,
        verifier: Verifier,
        now_ms: Callable[[], int],
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._replicas = replicas
        self._cluster = cluster
        self._verifier = verifier
        self._now_ms = now_ms

    def noting(self, version: int, transactional_id: str) -> TransactionalProduce:
        config = self._config
        return TransactionalProduce(
            version=version,
            transactional_id=transactional_id,
            is_enabled=config.transaction_partition_verification_enable,
        )

    def note(
        self,
        transaction: TransactionalProduce,
        topic: TopicKey,
        name: str | None,
        index: int,
        records: memoryview | None,
    ) -> None:
        """Take note of one partition of the request; what the append will refuse is left to it."""
        if name is None or not may_client_write(name):
            return
        if self._cluster.image.partition(name, index) is not None:
            transaction.note((topic, index), name, records)

    def beginning(self, transaction: TransactionalProduce) -> Work[None]:
        transaction.check_producer()
        return transaction.beginning(self._replicas, self._now_ms())

    def settle_now(self, transaction: TransactionalProduce) -> bool:
        """`settle` where nothing has to be waited for; return whether that was so."""
        return not transaction.is_asked_for or transaction.ask_now(self._verifier)

    async def settle(self, transaction: TransactionalProduce) -> None:
        """Ask about what is to be asked about. A coordinator that still ends the transaction before is asked
        again for a while: for a client that costs much more."""
        loop = asyncio.get_running_loop()
        config = self._config
        wait_ms = min(config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms)
        until = loop.time() + wait_ms / 1000
        pause_s = _FIRST_PAUSE_S
        while transaction.is_asked_for:
            errors = await transaction.ask(self._verifier, config.request_timeout_ms)
            work = transaction.take(errors)
            is_busy = finish(work) if len(errors) < ROWS_A_STEP else await self._turns.run(work)
            if not (is_busy and transaction.adds) or loop.time() >= until:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, config.add_partitions_to_txn_retry_backoff_ms / 1000)
            await self._turns.run(self.beginning(transaction))

    @property
    def _config(self) -> BrokerConfig:
        return self._cluster.broker_config


def _result(index: int, code: ErrorCode, adds: bool) -> ProduceResult:
    """What a producer is answered for an error of the coordinator. Older ones know what to do with
    NOT_ENOUGH_REPLICAS, which has them try again and ask for no metadata."""
    if code is ErrorCode.invalid_txn_state:
        return ProduceResult(index, code.value, message="Partition was not added to the transaction")
    if code in _NOT_THERE or (code is ErrorCode.concurrent_transactions and not adds):
        why = "Unable to verify the partition has been added to the transaction. Underlying error: "
        message = why + code.name.upper()
        return ProduceResult(index, ErrorCode.not_enough_replicas.value, message=message)
    return ProduceResult(index, code.value)
