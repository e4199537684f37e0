"""Transactions as a pure state machine: the transactional ids of one partition, as their shell drives them.

Owns: what is known of each id, the deadlines of open transactions, the memory that ids take, and what can be
read of them. Does not own: what a command leads to (`broker.coordinators.transactions.commands`), markers
(`marker_sender`), nor the log it is replayed from (`broker.coordinators.replicated_state`).
Invariant: `transactions` is changed by `apply` alone and equals a replay of the log but for what Kafka's
format has no place for: `last_producer_epoch`, and at level 0 of transaction.version the tagged fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.coordinators.account import MemoryAccount, MemoryShare
from broker.coordinators.machine import DecisionDraft, Instant, Timers
from broker.coordinators.transactions.commands import (
    TransactionCommand,
    TransactionDecision,
)
from broker.coordinators.transactions.transitions import (
    BY_EPOCH,
    ENDED,
    OPEN_FOR_EVER_MS,
    PARTITIONS_PER_STEP,
    PREPARED,
    fenced,
)
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.transactions import (
    Transaction,
    TransactionRecord,
    TransactionState,
    decode_transaction_record,
    encode_in_steps,
    encode_transaction_record,
    is_short,
    value_version,
)
from protocol.work import Work

DEADLINES_PER_STEP: Final = 16
TIMED_OUT_AT_ONCE: Final = 256
"""In one decision; those left are due in the next."""
IDS_PER_STEP: Final = 64
ID_BYTES: Final = 1 << 10
"""About what an id takes besides its characters and its partitions."""
TOPIC_BYTES: Final = 320
PARTITION_BYTES: Final = 64
_NO_TOKEN: Final = -1
_FROM_LOG: Final = ""
"""In the place of a host, for ids that the log named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    id_expiration_ms: int = 604_800_000
    retry_ms: int = 10_000
    """How long after its deadline a transaction is looked at again that could not be aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatistics:
    states: dict[TransactionState, int]
    committed: int
    aborted: int
    timed_out: int
    expired: int


class TransactionMachine:
    """Every transactional id whose hash is of one partition."""

    def __init__(
        self,
        config: TransactionConfig,
        memory: MemoryShare | None = None,
        on_prepared: Callable[[str], None] = lambda transactional_id: None,
        on_ended: Callable[[str], None] = lambda transactional_id: None,
        level: Callable[[], int] = lambda: BY_EPOCH,
    ) -> None:
        """`level` is that of transaction.version now. `on_prepared` hears of each transaction whose markers
        are to be written: when it is prepared, after loading, and again as long as it is not over; `on_ended`
        of each that is over."""
        self.config = config
        self.memory = MemoryAccount().share() if memory is None else memory
        self.transactions: dict[str, Transaction] = {}
        self.timers = Timers()
        self.states = dict.fromkeys(TransactionState, 0)
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0
        self.expired = 0
        self._on_prepared = on_prepared
        self._on_ended = on_ended
        self._level = level
        self._hosts: dict[str, str] = {}
        """The host of each id that a client brought since this machine was made."""
        self._is_live = False
        self._clock_lead_ms = 0
        """What the monotonic clock shows more than the other."""

    # --- deciding ---

    @property
    def id_expiration_ms(self) -> int:
        return self.config.id_expiration_ms

    @property
    def level(self) -> int:
        return self._level()

    def check_room(self, transactional_id: str, host: str | None, transaction: Transaction) -> None:
        if host is None:
            host = self._hosts.get(transactional_id)
        before = self.transactions.get(transactional_id)
        more = held_bytes(transactional_id, transaction) - held_bytes(transactional_id, before)
        if more > 0 and not self.memory.may_take(host, more):
            raise KafkaError(ErrorCode.coordinator_not_available, "the transactions take too much memory")

    def decide(
        self, command: TransactionCommand[Any], draft: DecisionDraft[TransactionRecord]
    ) -> TransactionDecision[Any] | Work[TransactionDecision[Any]]:
        self._clock_lead_ms = draft.now.mono_ms - draft.now.wall_ms
        return command.decide(self, draft)

    def scope(self, command: TransactionCommand[Any]) -> Hashable | None:
        return getattr(command, "transactional_id", None)

    def share(self, command: TransactionCommand[Any]) -> None:
        return None

    def tick(self, now: Instant) -> Work[TransactionDecision[None]]:
        """Abort what is open longer than its producer said, and tell again of what is not over yet."""
        self._clock_lead_ms = now.mono_ms - now.wall_ms
        draft: DecisionDraft[TransactionRecord] = DecisionDraft(now, _NO_TOKEN)
        again: list[tuple[tuple[str, ...], int]] = []
        for at, key in enumerate(self.timers.due(now.mono_ms), 1):
            (transactional_id,) = key
            found = self.transactions.get(transactional_id)
            if found is not None and found.state is TransactionState.ONGOING:
                deadline_ms = found.started_ms + found.timeout_ms
                if deadline_ms < now.wall_ms:
                    made = fenced(found, self._level(), now.wall_ms)
                    draft.records.append(
                        TransactionRecord(transactional_id=transactional_id, transaction=made)
                    )
                    # its record may not become durable
                    again.append((key, now.mono_ms + self.config.retry_ms))
                    self.timed_out += 1
                else:
                    again.append((key, now.mono_ms + deadline_ms + 1 - now.wall_ms))
            elif found is not None and found.state in PREPARED:
                self._on_prepared(transactional_id)
                again.append((key, now.mono_ms + self.config.retry_ms))
            if len(draft.records) >= TIMED_OUT_AT_ONCE:
                break
            if at % DEADLINES_PER_STEP == 0:
                yield
        for key, at_ms in again:
            self.timers.set(key, at_ms)
        return draft.decision(soft=False)

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_ms()

    def resume(self, now: Instant) -> None:
        """Give nobody more time: a transaction's time is that of the clock on the wall."""

    # --- applying ---

    def loaded(self, now: Instant) -> Work[None]:
        self._is_live = True
        self._clock_lead_ms = now.mono_ms - now.wall_ms
        for at, (transactional_id, found) in enumerate(list(self.transactions.items()), 1):
            self._set_deadline(transactional_id, found)
            if found.state in PREPARED:
                self.timers.set((transactional_id,), now.mono_ms)
            if at % IDS_PER_STEP == 0:
                yield

    def apply(self, record: TransactionRecord, *, offset: int, producer_id: int) -> None:
        transactional_id, made = record.transactional_id, record.transaction
        before = self.transactions.get(transactional_id)
        if before is not None:
            self.states[before.state] -= 1
        if made is None:
            self.transactions.pop(transactional_id, None)
            self.expired += before is not None
        else:
            self.states[made.state] += 1
            self.transactions[transactional_id] = made
        if record.host != _FROM_LOG:
            self._hosts[transactional_id] = record.host
        self._count(transactional_id, before, made)
        if not self._is_live:
            return
        self._set_deadline(transactional_id, made)
        if made is None:
            self._on_ended(transactional_id)
        elif made.state in PREPARED:
            self._on_prepared(transactional_id)
        elif made.state is TransactionState.COMPLETE_COMMIT:
            self.committed += 1
            self._on_ended(transactional_id)
        elif made.state is TransactionState.COMPLETE_ABORT:
            self.aborted += 1
            self._on_ended(transactional_id)

    def apply_marker(self, *, producer_id: int, committed: bool) -> None:
        """Ignore it: nothing in this log belongs to a transaction."""

    def encode(
        self, record: TransactionRecord
    ) -> tuple[bytes, bytes | None] | Work[tuple[bytes, bytes | None]]:
        version = value_version(self._level())
        if is_short(record):
            return encode_transaction_record(record, version)
        return encode_in_steps(record, version)

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        return decode_transaction_record(key, value)

    def _set_deadline(self, transactional_id: str, made: Transaction | None) -> None:
        if made is None or made.state in ENDED:
            self.timers.cancel((transactional_id,))
        elif made.state in PREPARED:
            at_ms = made.updated_ms + self.config.retry_ms + self._clock_lead_ms
            self.timers.set((transactional_id,), at_ms)
        elif made.timeout_ms < OPEN_FOR_EVER_MS:
            at_ms = made.started_ms + made.timeout_ms + 1 + self._clock_lead_ms
            self.timers.set((transactional_id,), at_ms)

    def _count(self, transactional_id: str, before: Transaction | None, made: Transaction | None) -> None:
        if before is not None and made is not None and before.partitions is made.partitions:
            return
        host = self._hosts.get(transactional_id, _FROM_LOG)
        more = held_bytes(transactional_id, made) - held_bytes(transactional_id, before)
        if more:
            self.memory.take(host, more)
        if made is None:
            self._hosts.pop(transactional_id, None)

    # --- reading: what is durable right now, never what is on its way ---

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
    ) -> Work[dict[tuple[str, int], ErrorCode]]:
        """Tell which of the partitions the open transaction includes; raise KafkaError where it is not this
        producer's."""
        found = self.transactions.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        if found.producer_epoch != producer_epoch:
            raise KafkaError(ErrorCode.producer_fenced)
        if found.state in PREPARED:
            raise KafkaError(ErrorCode.concurrent_transactions)
        errors: dict[tuple[str, int], ErrorCode] = {}
        for at, each in enumerate(partitions, 1):
            errors[each] = ErrorCode.none if found.has(*each) else ErrorCode.transaction_abortable
            if at % PARTITIONS_PER_STEP == 0:
                yield
        return errors

    def listed(
        self,
        *,
        producer_ids: Collection[int],
        states: Collection[TransactionState] | None,
        open_longer_than_ms: int,
        now_ms: int,
    ) -> Work[list[Fields]]:
        """Return a row for each id that passes the filters; no producer ids, or None for the states, pass
        all, and so does a negative duration."""
        rows: list[Fields] = []
        for at, (transactional_id, found) in enumerate(list(self.transactions.items()), 1):
            if at % IDS_PER_STEP == 0:
                yield
            if producer_ids and found.producer_id not in producer_ids:
                continue
            if states is not None and found.state not in states:
                continue
            if open_longer_than_ms >= 0 and now_ms - found.started_ms <= open_longer_than_ms:
                continue
            rows.append(
                {
                    "transactional_id": transactional_id,
                    "producer_id": found.producer_id,
                    "transaction_state": found.state.title,
                }
            )
        return rows

    def statistics(self) -> TransactionStatistics:
        return TransactionStatistics(
            states=dict(self.states),
            committed=self.committed,
            aborted=self.aborted,
            timed_out=self.timed_out,
            expired=self.expired,
        )


def held_bytes(transactional_id: str, transaction: Transaction | None) -> int:
    """Return about what the id takes in memory."""
    if transaction is None:
        return 0
    partitions = transaction.partitions
    return (
        ID_BYTES
        + 2 * len(transactional_id)
        + TOPIC_BYTES * len(partitions)
        + PARTITION_BYTES * sum(map(len, partitions.values()))
    )
