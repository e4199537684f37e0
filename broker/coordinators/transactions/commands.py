"""What can be asked of the transactions of one partition, and when it is refused.

Owns: each command's checks, in Kafka's order and with Kafka's errors. Does not own: what a transaction
becomes (`broker.coordinators.transactions.transitions`), where transactions are kept (`machine`), nor the
requests that commands are made of.
Invariant: a command changes nothing; it leads to at most one record for each transactional id it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from broker.coordinators.machine import DecisionDraft
from broker.coordinators.transactions.transitions import (
    BY_EPOCH,
    ENDED,
    EPOCH_MAX,
    PARTITIONS_PER_STEP,
    PREPARED,
    after_end,
    begun,
    begun_anew,
    completed,
    fenced,
    is_exhausted,
    prepared,
    rotated,
    with_partitions,
)
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.transactions import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    UNTAGGED,
    Transaction,
    TransactionRecord,
    TransactionState,
    value_version,
)
from protocol.work import Work

STORED_ID_BYTES_MAX: Final = (1 << 15) - 1
IDS_PER_STEP: Final = 64
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TransactionDraft: TypeAlias = DecisionDraft[TransactionRecord]
TransactionDecision: TypeAlias = Decision[TransactionRecord, R]


class Transactions(Protocol):
    """The state that commands read."""

    @property
    def transactions(self) -> Mapping[str, Transaction]: ...
    @property
    def id_expiration_ms(self) -> int: ...
    @property
    def level(self) -> int:
        """Of transaction.version, by which the coordinator itself works."""

    def check_room(self, transactional_id: str, host: str | None, transaction: Transaction) -> None:
        """Raise KafkaError where there is no memory for it in place of what is there. `host` is that of a
        client which brings a new id."""


class TransactionCommand(Protocol[R_co]):
    def decide(
        self, state: Transactions, draft: TransactionDraft, /
    ) -> TransactionDecision[R_co] | Work[TransactionDecision[R_co]]: ...


class Producer(NamedTuple):
    """A producer's id and epoch from now on, or why it has none."""

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


NEEDS_ID: Final = Producer(ErrorCode.unknown_producer_id)
"""The command is to be repeated with a new producer id, and has changed nothing. It is no client's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """Begin a producer: fence those before it, and end what they left open."""

    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    """The id and epoch that a producer believes to have, which goes on after an error (KIP-360)."""
    new_producer_id: int = NO_PRODUCER_ID
    host: str = ""

    def decide(self, state: Transactions, draft: TransactionDraft) -> TransactionDecision[Producer]:
        check_storable(self.transactional_id)
        found = state.transactions.get(self.transactional_id)
        if found is None:
            return self._begin(state, draft)
        if self.expected is not None and not self._may_be(found, *self.expected):
            raise KafkaError(ErrorCode.producer_fenced)
        if found.state in PREPARED:
            raise KafkaError(ErrorCode.concurrent_transactions)
        if found.state is TransactionState.ONGOING:
            # The producer asks again, and gets its epoch when the markers are written.
            _write(draft, self.transactional_id, fenced(found, state.level, draft.now.wall_ms))
            return draft.decision(Producer(ErrorCode.concurrent_transactions), soft=False)
        return self._go_on(state, draft, found)

    def _begin(self, state: Transactions, draft: TransactionDraft) -> TransactionDecision[Producer]:
        if self.new_producer_id == NO_PRODUCER_ID:
            return draft.decision(NEEDS_ID, soft=False)
        made = begun(producer_id=self.new_producer_id, timeout_ms=self.timeout_ms, now_ms=draft.now.wall_ms)
        state.check_room(self.transactional_id, self.host, made)
        return self._answer(draft, made, self.host)

    def _may_be(self, found: Transaction, producer_id: int, epoch: int) -> bool:
        """Whether a producer with this id is the last one; the epoch is looked at later. It may have the id
        before, where it does not know yet that its epochs were used up."""
        return producer_id == found.producer_id or (
            producer_id == found.previous_producer_id and is_exhausted(epoch)
        )

    def _go_on(
        self, state: Transactions, draft: TransactionDraft, found: Transaction
    ) -> TransactionDecision[Producer]:
        current = found.producer_epoch
        expected_epoch = None if self.expected is None else self.expected[1]
        if is_exhausted(current):
            if expected_epoch not in (None, current):
                # What Kafka answers: there is no epoch to go on with.
                raise KafkaError(
                    ErrorCode.unknown_server_error, f"producer {found.producer_id} has no epoch left"
                )
            if self.new_producer_id == NO_PRODUCER_ID:
                return draft.decision(NEEDS_ID, soft=False)
            return self._answer(
                draft,
                rotated(
                    found,
                    producer_id=self.new_producer_id,
                    keeps_epoch=self.expected is not None,
                    timeout_ms=self.timeout_ms,
                    now_ms=draft.now.wall_ms,
                ),
            )
        if expected_epoch is None:
            epoch, last_epoch = current + 1, NO_PRODUCER_EPOCH
        elif expected_epoch == current:
            epoch, last_epoch = current + 1, current
        elif expected_epoch == found.last_producer_epoch:
            epoch, last_epoch = current, found.last_producer_epoch  # the answer was lost
        else:
            raise KafkaError(ErrorCode.producer_fenced)
        return self._answer(
            draft,
            begun_anew(
                found,
                producer_epoch=epoch,
                last_producer_epoch=last_epoch,
                timeout_ms=self.timeout_ms,
                now_ms=draft.now.wall_ms,
            ),
        )

    def _answer(
        self, draft: TransactionDraft, made: Transaction, host: str = ""
    ) -> TransactionDecision[Producer]:
        _write(draft, self.transactional_id, made, host)
        reply = Producer(ErrorCode.none, made.producer_id, made.producer_epoch)
        return draft.decision(reply, soft=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Include partitions in the transaction of a producer, and begin one if none is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[str, int], ...]
    version: int
    """Of the transaction, as the client's request says."""

    def decide(self, state: Transactions, draft: TransactionDraft) -> Work[TransactionDecision[ErrorCode]]:
        found = _of_producer(state, self.transactional_id, self.producer_id, self.producer_epoch)
        if found.state in PREPARED:
            raise KafkaError(ErrorCode.concurrent_transactions)
        if found.state is TransactionState.ONGOING and (yield from self._are_in(found)):
            return draft.decision(ErrorCode.none, soft=False)
        _check_stored_version(state, self.version)
        now_ms = draft.now.wall_ms
        made = yield from with_partitions(found, self.partitions, version=self.version, now_ms=now_ms)
        state.check_room(self.transactional_id, None, made)
        _write(draft, self.transactional_id, made)
        return draft.decision(ErrorCode.none, soft=False)

    def _are_in(self, found: Transaction) -> Work[bool]:
        for at, each in enumerate(self.partitions, 1):
            if not found.has(*each):
                return False
            if at % PARTITIONS_PER_STEP == 0:
                yield
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commit or abort; the answer comes when nothing can change the outcome, before markers are written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    version: int
    """Of the transaction, as the client's request says."""
    new_producer_id: int = NO_PRODUCER_ID

    def decide(self, state: Transactions, draft: TransactionDraft) -> TransactionDecision[Producer]:
        found = state.transactions.get(self.transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        if self.version >= BY_EPOCH:
            return self._by_epoch(state, draft, found)
        if found.producer_id != self.producer_id:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        if found.producer_epoch != self.producer_epoch:
            raise KafkaError(ErrorCode.producer_fenced)
        _check_given(self.producer_epoch)
        if found.state is TransactionState.ONGOING:
            made = prepared(found, commits=self.commits, version=0, now_ms=draft.now.wall_ms)
            _write(draft, self.transactional_id, made)
            return draft.decision(Producer(), soft=False)
        self._check_end(found)
        return draft.decision(Producer(), soft=False)

    def _by_epoch(
        self, state: Transactions, draft: TransactionDraft, found: Transaction
    ) -> TransactionDecision[Producer]:
        # The producer did not hear that it got another id.
        knows_old_id = (
            found.previous_producer_id == self.producer_id
            and self.producer_epoch == EPOCH_MAX - 1
            and found.producer_epoch == 0
        )
        is_repeated = knows_old_id or found.producer_epoch == self.producer_epoch + 1
        if found.producer_id != self.producer_id and not knows_old_id:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        _check_given(self.producer_epoch)
        if not self._has_valid_epoch(found, is_repeated=is_repeated):
            raise KafkaError(ErrorCode.producer_fenced)
        if found.state is TransactionState.ONGOING or self._aborts_nothing(found, is_repeated=is_repeated):
            _check_stored_version(state, self.version)
            return self._prepare(draft, found)
        if found.state in ENDED and not is_repeated:
            raise KafkaError(ErrorCode.invalid_txn_state)
        self._check_end(found)
        reply = Producer(ErrorCode.none, found.producer_id, found.producer_epoch)
        return draft.decision(reply, soft=False)

    def _has_valid_epoch(self, found: Transaction, *, is_repeated: bool) -> bool:
        is_current = self.producer_epoch == found.producer_epoch
        if found.state in PREPARED:
            return found.producer_epoch == self.producer_epoch + 1
        if found.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            return is_repeated or is_current
        return is_current

    def _aborts_nothing(self, found: Transaction, *, is_repeated: bool) -> bool:
        """Whether it aborts what never began for the coordinator: a producer which does not know whether any
        partition was included gets a new epoch all the same."""
        return not self.commits and found.state in ENDED and not is_repeated

    def _prepare(self, draft: TransactionDraft, found: Transaction) -> TransactionDecision[Producer]:
        is_last_epoch = is_exhausted(found.producer_epoch)
        if is_last_epoch and self.new_producer_id == NO_PRODUCER_ID:
            return draft.decision(NEEDS_ID, soft=False)
        made = prepared(
            found,
            commits=self.commits,
            version=self.version,
            next_producer_id=self.new_producer_id if is_last_epoch else NO_PRODUCER_ID,
            now_ms=draft.now.wall_ms,
        )
        _write(draft, self.transactional_id, made)
        return draft.decision(Producer(ErrorCode.none, *after_end(made)), soft=False)

    def _check_end(self, found: Transaction) -> None:
        """Raise unless the transaction has ended already in the way that is asked for."""
        committed = TransactionState.COMPLETE_COMMIT if self.commits else TransactionState.COMPLETE_ABORT
        commits = TransactionState.PREPARE_COMMIT if self.commits else TransactionState.PREPARE_ABORT
        if found.state is commits:
            raise KafkaError(ErrorCode.concurrent_transactions)
        if found.state is not committed:
            raise KafkaError(ErrorCode.invalid_txn_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Note that every partition has the marker; False where that is no longer the question."""

    transactional_id: str
    prepared: Transaction
    """The one whose markers were written. Before transaction version 2, the next one has its epoch too."""

    def decide(self, state: Transactions, draft: TransactionDraft) -> TransactionDecision[bool]:
        found = state.transactions.get(self.transactional_id)
        if found is None or found.state not in PREPARED or not self._is_the_same(found):
            return draft.decision(False, soft=False)
        _write(draft, self.transactional_id, completed(found, now_ms=draft.now.wall_ms))
        return draft.decision(True, soft=False)

    def _is_the_same(self, found: Transaction) -> bool:
        told = self.prepared
        return (
            (found.producer_id, found.producer_epoch) == (told.producer_id, told.producer_epoch)
            and (found.started_ms, found.updated_ms) == (told.started_ms, told.updated_ms)
            and found.commits is told.commits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireIds:
    """Delete those of these ids which were not used for long; the answer is how many they are."""

    transactional_ids: tuple[str, ...]

    def decide(self, state: Transactions, draft: TransactionDraft) -> Work[TransactionDecision[int]]:
        oldest_ms = draft.now.wall_ms - state.id_expiration_ms
        for at, transactional_id in enumerate(self.transactional_ids, 1):
            found = state.transactions.get(transactional_id)
            if found is not None and found.state in ENDED and found.updated_ms <= oldest_ms:
                _write(draft, transactional_id, None)
            if at % IDS_PER_STEP == 0:
                yield
        return draft.decision(len(draft.records), soft=False)


def check_storable(transactional_id: str) -> None:
    """Refuse an id that no record can hold, as Kafka does: with an error it did not foresee."""
    if len(transactional_id.encode("utf-8", "surrogatepass")) > STORED_ID_BYTES_MAX:
        raise KafkaError(ErrorCode.unknown_server_error, "the transactional id is too long to be stored")


def _check_stored_version(state: Transactions, version: int) -> None:
    """Refuse a transaction whose version records of the cluster's level cannot tell. Clients look at the
    level first. Kafka answers this too, and has the id wait for ever for the record that it did not write."""
    if version > 0 and value_version(state.level) == UNTAGGED:
        raise KafkaError(ErrorCode.unsupported_version, "transaction.version is 0 in this cluster")


def _check_given(producer_epoch: int) -> None:
    """Refuse the epoch that is only for fencing: no producer was given it."""
    if producer_epoch >= EPOCH_MAX:
        raise KafkaError(ErrorCode.producer_fenced)


def _of_producer(
    state: Transactions, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction:
    found = state.transactions.get(transactional_id)
    if found is None or found.producer_id != producer_id:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    if found.producer_epoch != producer_epoch:
        raise KafkaError(ErrorCode.producer_fenced)
    _check_given(producer_epoch)
    return found


def _write(draft: TransactionDraft, transactional_id: str, made: Transaction | None, host: str = "") -> None:
    draft.records.append(TransactionRecord(transactional_id=transactional_id, transaction=made, host=host))
