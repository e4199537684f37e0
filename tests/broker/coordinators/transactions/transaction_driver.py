"""Drives a transaction machine as its shell does, but in plain calls: decide, keep the records, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker.coordinators.account import MemoryAccount
from broker.coordinators.machine import DecisionDraft, Instant, in_steps
from broker.coordinators.transactions.commands import (
    NEEDS_ID,
    AddPartitions,
    Complete,
    EndTransaction,
    ExpireIds,
    InitProducer,
    Producer,
)
from broker.coordinators.transactions.machine import TransactionConfig, TransactionMachine
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.transactions import (
    UNTAGGED,
    Transaction,
    TransactionRecord,
    TransactionState,
    encode_transaction_record,
)
from protocol.work import finish

ID = "x"
TIMEOUT_MS = 60_000
EPOCH_MS = 1_700_000_000_000
PARTITION = ("t", 0)
NOT_IN_VERSION_0: Mapping[str, Any] = {
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "client_version": 0,
}


@dataclass
class Driver:
    config: TransactionConfig = field(default_factory=TransactionConfig)
    now_ms: int = 1_000
    memory: MemoryAccount = field(default_factory=MemoryAccount)
    machine: TransactionMachine = field(init=False)
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    next_id: int = 1_000
    level: int = 2
    """Of transaction.version."""
    loses: bool = False
    """Whether records are not appended, nor applied."""

    def __post_init__(self) -> None:
        self.machine = self._make()
        finish(self.machine.loaded(self.now))

    def _make(self) -> TransactionMachine:
        return TransactionMachine(
            self.config,
            self.memory.share(),
            on_prepared=self.prepared.append,
            on_ended=self.ended.append,
            level=lambda: self.level,
        )

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, EPOCH_MS + self.now_ms)

    def transaction(self, transactional_id: str = ID) -> Transaction:
        return self.machine.transactions[transactional_id]

    def state(self, transactional_id: str = ID) -> TransactionState:
        return self.transaction(transactional_id).state

    def ask(self, command: Any) -> Any:
        """Return the answer, or the error that refuses the command."""
        reply = self._ask(command)
        if reply is NEEDS_ID:
            self.next_id += 1
            reply = self._ask(replace(command, new_producer_id=self.next_id))
        return reply

    def _ask(self, command: Any) -> Any:
        before = dict(self.machine.transactions)
        try:
            decision = finish(in_steps(self.machine.decide(command, DecisionDraft(self.now, 1))))
        except KafkaError as error:
            assert self.machine.transactions == before
            return error.code
        assert self.machine.transactions == before, "deciding changes nothing"
        assert not decision.replies
        self.take(decision.records)
        return decision.response

    def take(self, records: Sequence[Any]) -> None:
        if self.loses:
            return
        for record in records:
            offset = len(self.log)
            self.log.append(finish(in_steps(self.machine.encode(record))))
            self.machine.apply(record, offset=offset, producer_id=-1)

    def tick(self) -> None:
        decision = finish(self.machine.tick(self.now))
        self.take(decision.records)

    def advance(self, ms: int) -> None:
        """Let time pass, striking every deadline when it comes."""
        end_ms = self.now_ms + ms
        while (at_ms := self.machine.next_deadline_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.tick()
        self.now_ms = end_ms

    def crash(self) -> None:
        """Forget everything but the log."""
        before = self.durable()
        self.machine.memory.release()
        self.machine = self._make()
        for offset, (key, value) in enumerate(self.log):
            record = self.machine.decode(key, value)
            assert record is not None
            self.machine.apply(record, offset=offset, producer_id=-1)
        assert self.durable() == before
        finish(self.machine.loaded(self.now))

    def durable(self) -> dict[str, Transaction]:
        """Return what a restart keeps."""
        versions = {key: value and value[:2] for key, value in self.log}
        kept: dict[str, Transaction] = {}
        for transactional_id, found in self.machine.transactions.items():
            key, _ = encode_transaction_record(
                TransactionRecord(transactional_id=transactional_id, transaction=None)
            )
            kept[transactional_id] = replace(found, last_producer_epoch=-1)
            if versions[key] == UNTAGGED.to_bytes(2):
                kept[transactional_id] = replace(kept[transactional_id], **NOT_IN_VERSION_0)
        return kept

    # --- commands with the usual arguments ---

    def init(self, expected: tuple[int, int] | None = None, **changes: Any) -> Any:
        values = {"transactional_id": ID, "timeout_ms": TIMEOUT_MS, "expected": expected}
        return self.ask(InitProducer(**(values | changes)))  # type: ignore[arg-type]

    def begin(self, **changes: Any) -> Producer:
        """Return a new producer's id and epoch."""
        producer = self.init(**changes)
        assert isinstance(producer, Producer), producer
        assert producer.error is ErrorCode.none
        return producer

    def add(self, producer: Producer, *partitions: tuple[str, int], **changes: Any) -> Any:
        values = {
            "transactional_id": ID,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "partitions": partitions or (PARTITION,),
            "version": 2,
        }
        return self.ask(AddPartitions(**(values | changes)))  # type: ignore[arg-type]

    def end(self, producer: Producer, *, commits: bool = True, **changes: Any) -> Any:
        values = {
            "transactional_id": ID,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "commits": commits,
            "version": 2,
        }
        return self.ask(EndTransaction(**(values | changes)))  # type: ignore[arg-type]

    def complete(self, transactional_id: str = ID) -> Any:
        prepared = self.transaction(transactional_id)
        return self.ask(Complete(transactional_id=transactional_id, prepared=prepared))

    def expire(self) -> Any:
        return self.ask(ExpireIds(transactional_ids=tuple(self.machine.transactions)))

    def set(self, **changes: Any) -> None:
        """Put the transaction where it would take many commands to get to, as a record of it does."""
        made = replace(self.transaction(), **changes)
        self.take([TransactionRecord(transactional_id=ID, transaction=made)])
