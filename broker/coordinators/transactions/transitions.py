"""What a transaction becomes: one function for each change of one transactional id.

Owns: the fields of the next state, as Kafka fills them in. Does not own: whether a request may change
anything (`broker.coordinators.transactions.commands`), nor the record that says so.
Invariant: each function returns a new value and changes nothing; a producer epoch grows, or begins at 0 with
another producer id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from protocol.stored.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState
from protocol.work import Work

EPOCH_MAX: Final = (1 << 15) - 1
BY_EPOCH: Final = 2
"""The transaction version from which each transaction has an epoch of its own (KIP-890)."""
PARTITIONS_PER_STEP: Final = 128
OPEN_FOR_EVER_MS: Final = (1 << 31) - 1
"""The timeout of a transaction that none ends but its producer (two-phase commit)."""

ENDED: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})


def is_exhausted(producer_epoch: int) -> bool:
    """Whether no client may get a further epoch of this producer id; one is left for fencing it."""
    return producer_epoch >= EPOCH_MAX - 1


def begun(*, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return what a transactional id is when its first producer begins."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        updated_ms=now_ms,
    )


def begun_anew(
    transaction: Transaction,
    *,
    producer_epoch: int,
    last_producer_epoch: int,
    timeout_ms: int,
    now_ms: int,
) -> Transaction:
    """Return it with the epoch that its next producer gets."""
    return replace(
        transaction,
        previous_producer_id=NO_PRODUCER_ID,
        producer_epoch=producer_epoch,
        last_producer_epoch=last_producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions={},
        started_ms=-1,
        updated_ms=now_ms,
    )


def rotated(
    transaction: Transaction, *, producer_id: int, keeps_epoch: bool, timeout_ms: int, now_ms: int
) -> Transaction:
    """Return it with a new producer id; `keeps_epoch` lets the producer repeat the request that asked."""
    return replace(
        transaction,
        producer_id=producer_id,
        previous_producer_id=transaction.producer_id,
        producer_epoch=0,
        last_producer_epoch=transaction.producer_epoch if keeps_epoch else NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions={},
        started_ms=-1,
        updated_ms=now_ms,
    )


def with_partitions(
    transaction: Transaction, added: Sequence[tuple[str, int]], *, version: int, now_ms: int
) -> Work[Transaction]:
    """Return it open, with these partitions too."""
    partitions = yield from _merged(transaction.partitions, added)
    return replace(
        transaction,
        previous_producer_id=NO_PRODUCER_ID,
        state=TransactionState.ONGOING,
        partitions=partitions,
        started_ms=now_ms if transaction.state in ENDED else transaction.started_ms,
        updated_ms=now_ms,
        client_version=version,
    )


def prepared(
    transaction: Transaction,
    *,
    commits: bool,
    version: int,
    next_producer_id: int = NO_PRODUCER_ID,
    now_ms: int,
) -> Transaction:
    """Return it about to end: from here on its markers are written, whatever happens."""
    epoch, last_epoch = transaction.producer_epoch, transaction.last_producer_epoch
    if version >= BY_EPOCH:
        assert epoch < EPOCH_MAX, "no epoch is left to fence the producer"
        epoch, last_epoch = epoch + 1, epoch
    return replace(
        transaction,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=next_producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        state=TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT,
        # aborted without a partition it never began
        started_ms=now_ms if transaction.state in ENDED else transaction.started_ms,
        updated_ms=now_ms,
        client_version=version,
    )


def fenced(transaction: Transaction, level: int, now_ms: int) -> Transaction:
    """Return an open transaction about to be aborted under an epoch that no producer has, by the version that
    the cluster's level of transaction.version asks for, whatever the producer's is. There is no epoch after
    the last, which Kafka lets a client use that guesses it."""
    epoch = transaction.producer_epoch
    if level >= BY_EPOCH and epoch < EPOCH_MAX:
        return prepared(transaction, commits=False, version=BY_EPOCH, now_ms=now_ms)
    made = prepared(transaction, commits=False, version=0, now_ms=now_ms)
    if epoch >= EPOCH_MAX:
        return made
    return replace(made, producer_epoch=epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)


def completed(transaction: Transaction, *, now_ms: int) -> Transaction:
    """Return it ended; a producer whose epochs are used up goes on with the next id."""
    commits = transaction.state is TransactionState.PREPARE_COMMIT
    producer_id, epoch = after_end(transaction)
    return replace(
        transaction,
        producer_id=producer_id,
        previous_producer_id=NO_PRODUCER_ID
        if producer_id == transaction.producer_id
        else transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=epoch,
        state=TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT,
        partitions={},
        updated_ms=now_ms,
    )


def after_end(transaction: Transaction) -> tuple[int, int]:
    """Return the producer id and epoch that a prepared transaction will have when it is complete."""
    if transaction.client_version >= BY_EPOCH and transaction.next_producer_id != NO_PRODUCER_ID:
        return transaction.next_producer_id, 0
    return transaction.producer_id, transaction.producer_epoch


def _merged(
    present: Mapping[str, frozenset[int]], added: Sequence[tuple[str, int]]
) -> Work[Mapping[str, frozenset[int]]]:
    by_topic: dict[str, list[int]] = {}
    for at, (topic, index) in enumerate(added, 1):
        by_topic.setdefault(topic, []).append(index)
        if at % PARTITIONS_PER_STEP == 0:
            yield
    merged = dict(present)
    for at, (topic, indexes) in enumerate(by_topic.items(), 1):
        merged[topic] = merged.get(topic, frozenset()).union(indexes)
        if at % PARTITIONS_PER_STEP == 0:
            yield
    return merged
