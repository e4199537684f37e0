"""The log of one coordinator, as its shell sees it.

Owns what a shell asks of the partitions of its broker, and the way of one part of a round into one of them:
batches of what may be in one, and the refusals that are certain. Does not own which round is next and what
follows from it (`flushing`), nor any partition (`broker.replicas`).
Invariant: what is built here is appended in the leader epoch in which the coordinator was opened, or not at
all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from broker.coordinators.machine import Encoded, TransactionalProducer
from broker.coordinators.shell.rounds import RECORD_OVERHEAD_BYTES
from protocol import records as batches
from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.work import Work
from storage.log import CoordinatorBatch, NewMarker

BATCH_OVERHEAD_BYTES: Final = 1 << 10

NOT_APPENDED: Final = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.invalid_record,
    }
)
"""After these the log is what it was."""
_AS_COORDINATOR: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_record: ErrorCode.unknown_server_error,
}


def coordinator_error(code: ErrorCode) -> ErrorCode:
    """Return what a client of a coordinator gets when the coordinator's own log fails."""
    return _AS_COORDINATOR.get(code, code)


class Appended(Protocol):
    @property
    def first_offset(self) -> int: ...


Outcome: TypeAlias = Appended | KafkaError


class CoordinatorLog(Protocol):
    """What a coordinator needs of the partitions of this broker."""

    async def append(
        self,
        topic: str,
        index: int,
        batch: bytearray,
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
        is_own: bool = False,
    ) -> Appended:
        """Return once the batch is on every replica in sync; raise KafkaError otherwise. Nothing needs to be
        checked again of one that `is_own`: it was built here just now."""

    async def append_all(
        self,
        topic: str,
        index: int,
        batches: Sequence[CoordinatorBatch | NewMarker],
        *,
        timeout_ms: int,
        expected_leader_epoch: int,
    ) -> Sequence[Outcome]:
        """Append in order; return once what was appended is on every replica in sync. A marker or a batch of
        a transaction that is refused stops no other; after a plain batch that is refused nothing is appended.
        Raise KafkaError where nothing was appended, or what was may be lost."""

    def stands_alone(self, topic: str, index: int) -> bool:
        """Whether there is a replica here and no other."""

    def append_alone(
        self, topic: str, index: int, batch: bytearray, *, expected_leader_epoch: int
    ) -> Appended:
        """`append` to a log that stands alone, at once."""

    def read_all(self, topic: str, index: int) -> Iterator[bytes]: ...

    def is_replicated(self, topic: str, index: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    append_timeout_ms: int = 5_000
    codec: int = Codec.NONE
    batch_bytes_max: int = 1_048_588


class ShellLog:
    """The partition of one coordinator in one leader epoch."""

    def __init__(
        self,
        *,
        topic: str,
        index: int,
        leader_epoch: int,
        partitions: CoordinatorLog,
        now_ms: Callable[[], int],
        config: StateConfig,
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.config = config
        """May be replaced at any time; the next append uses it."""
        self._partitions = partitions
        self._now_ms = now_ms

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- batches ---

    def is_surely_refused(self, record_size: int) -> bool:
        """Whether no batch may hold the record, which the log would find."""
        config = self.config
        is_plain = config.codec == Codec.NONE
        return is_plain and record_size + batches.HEADER_SIZE > config.batch_bytes_max

    def split(self, encoded: Sequence[Encoded]) -> Iterator[int]:
        """Yield the number of records of each batch; one that is too large goes alone and is refused."""
        limit = self.config.batch_bytes_max - BATCH_OVERHEAD_BYTES
        count = size = 0
        for key, value in encoded:
            record_size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            if count and size + record_size > limit:
                yield count
                count = size = 0
            count += 1
            size += record_size
        yield count

    def build(
        self, encoded: Sequence[Encoded], producer: TransactionalProducer | None = None
    ) -> Work[bytearray]:
        now_ms = self._now_ms()
        if producer is None:
            return batches.build_pairs_in_steps(encoded, now_ms, codec=self.config.codec)
        return batches.build_pairs_in_steps(
            encoded,
            now_ms,
            codec=self.config.codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=True,
        )

    # --- appending ---

    def takes_at_once(self, size: int) -> bool:
        """Whether so much goes into one batch, and is as safe as it will be once it is written."""
        if size > self.config.batch_bytes_max - BATCH_OVERHEAD_BYTES:
            return False
        return self._partitions.stands_alone(self.topic, self.index)

    def append_alone(self, batch: bytearray) -> Appended:
        return self._partitions.append_alone(
            self.topic, self.index, batch, expected_leader_epoch=self.leader_epoch
        )

    def append(self, batch: bytearray) -> Awaitable[Appended]:
        return self._partitions.append(
            self.topic,
            self.index,
            batch,
            timeout_ms=self.config.append_timeout_ms,
            expected_leader_epoch=self.leader_epoch,
            is_own=True,
        )

    def append_all(self, parts: Sequence[CoordinatorBatch | NewMarker]) -> Awaitable[Sequence[Outcome]]:
        return self._partitions.append_all(
            self.topic,
            self.index,
            parts,
            timeout_ms=self.config.append_timeout_ms,
            expected_leader_epoch=self.leader_epoch,
        )

    # --- reading ---

    def read_all(self) -> Iterator[bytes]:
        return self._partitions.read_all(self.topic, self.index)

    def is_replicated(self) -> bool:
        return self._partitions.is_replicated(self.topic, self.index)
