"""What a log remembers of its producers: sequences, epochs, and open transactions.

Owns: one entry per producer id with its last five batches, the open and the decided-but-unreplicated
transactions (from which the last stable offset follows), what an end-transaction marker does to them, the
questions to the transaction coordinator that are under way, and Kafka's snapshot format of the entries. Does
not own: the log, files, clocks, asking the coordinator. Invariant: the entries equal what applying the log's
batches in order yields, apart from what expiry dropped; no transaction begins in the log but with the answer
to a question that was asked since the last one ended.

A snapshot is Kafka's version 1 file. Kafka keeps only the last batch of a producer in it; the four before
follow behind Kafka's entries, inside the CRC, where Kafka's reader ignores them: so all five survive a
clean restart too. In the same place the log may leave a note of its own beside the table.

The entries that the log heard of last are objects; all others are packed, as the rows that a snapshot has of
them, in a third of the memory: a partition may know many producers of which each comes once.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from protocol.checksum import crc32c
from protocol.errors import ErrorCode, KafkaError
from protocol.records import BatchHeader, iter_records, parse_control
from protocol.work import Work, finish

REMEMBERED_BATCHES = 5
VERIFICATIONS_MAX: Final = 10_000
"""Questions about a transaction that are under way, or were answered with an error, in one log."""
PRODUCERS_MAX: Final = 80_000
"""Of one log: the most for which a dictionary keeps to its 60 bytes for each however many come and go."""
UNPACKED_MAX: Final = 1_024
"""Of one log, as objects: producers that take turns are not packed between their batches."""
UNPACKED_AT_REST: Final = 64
"""As many are never packed for being silent for a while."""
FORGOTTEN_AT_ONCE: Final = 256
"""When a log knows too many: to find the first of a dictionary takes a look at all that went before it."""
PACKED_BYTES: Final = 280
"""What a packed producer takes with five batches and its place in the table; 170 with one."""
UNPACKED_BYTES: Final = 900
"""The same for one that is not packed; 500 with one batch."""
_ENTRIES_PER_STEP: Final = 256
_PACKED_PER_STEP: Final = 64
NO_EPOCH = -1
LAST_EPOCH: Final = 0x7FFF
NO_SEQUENCE = -1
EPOCH_PER_TRANSACTION: Final = 2
"""The transaction version from which on every transaction has an epoch of its own."""
SEQUENCE_MASK = 0x7FFFFFFF
ABORT_MARKER = 0

_SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_LAST_TIMESTAMP_AT = 26
_TXN_FIRST_OFFSET_AT = 38
_LONG = struct.Struct(">q")
_NOTE_MAGIC = b"NOTE"
_NOTE_SIZE = struct.Struct(">H")
_OLDER_MAGIC = b"OLD1"
_OLDER_HEAD = struct.Struct(">qb")
_OLDER = struct.Struct(">iqiq")


class SentBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTxn:
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Verification:
    """A question to the transaction coordinator whether a producer's transaction includes this log.

    Its identity is what counts: the transaction that was asked about may end, and another begin, before the
    answer is there.
    """

    __slots__ = ("adds", "epoch", "lowest_sequence", "since_ms")

    def __init__(self, *, epoch: int, sequence: int, adds: bool, now_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        """The least one asked for: if its question fails, none above it may be appended before it."""
        self.adds = adds
        """Whether the coordinator includes the log in the transaction with the answer, which has an epoch of
        its own then."""
        self.since_ms = now_ms

    def __repr__(self) -> str:
        return f"<Verification epoch {self.epoch} from sequence {self.lowest_sequence}>"

    def asked_again(self, epoch: int, sequence: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


UNASKED: Final = Verification(epoch=NO_EPOCH, sequence=NO_SEQUENCE, adds=False, now_ms=0)
"""Stands for every answer while `transaction.partition.verification.enable` is false."""


class CorruptSnapshot(Exception):
    """A producer snapshot that cannot be trusted: rebuild from an older one or from the log."""


class ProducerEntry:
    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "kept",
        "last_timestamp",
        "marker_offset",
        "next_sequence",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.kept: list[tuple[int, int, int, int, int]] = []
        """`batches` as plain tuples: to name one costs as much as all else that a batch changes here."""
        self.marker_offset = -1
        """Of its last end-transaction marker, if that was since the entry was packed."""
        self.next_sequence = 0
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.txn_first_offset = -1

    def __repr__(self) -> str:
        return f"ProducerEntry(id={self.producer_id}, epoch={self.epoch}, next={self.next_sequence})"

    @property
    def batches(self) -> list[SentBatch]:
        """The last ones, oldest first."""
        return [SentBatch(*each) for each in self.kept]

    @property
    def last_sequence(self) -> int:
        return self.kept[-1][1] if self.kept else -1

    @property
    def last_offset(self) -> int:
        return self.kept[-1][3] if self.kept else -1

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.kept.clear()
            self.next_sequence = 0

    def sent(self, sequence: int, first_offset: int, last_offset: int, timestamp: int) -> None:
        """Remember a data batch."""
        if sequence == NO_SEQUENCE:  # of a coordinator; in a snapshot it is told by its last sequence
            last_sequence = NO_SEQUENCE
            sequence = (NO_SEQUENCE - (last_offset - first_offset)) & SEQUENCE_MASK
        else:
            last_sequence = (sequence + last_offset - first_offset) & SEQUENCE_MASK
        if len(self.kept) == REMEMBERED_BATCHES:
            del self.kept[0]
        self.kept.append((sequence, last_sequence, first_offset, last_offset, timestamp))
        self.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        self.last_timestamp = timestamp

    def packed(self) -> bytes:
        """Its row of a snapshot, then the rows of its older batches. The row says of its last batch that it
        came when the producer was heard of last; where that was a marker, the time of the batch follows."""
        *older, last = self.kept or (_NO_BATCH,)
        _, last_sequence, first_offset, last_offset, timestamp = last
        row = _ENTRY.pack(
            self.producer_id,
            self.epoch,
            last_sequence,
            last_offset,
            last_offset - first_offset,
            self.last_timestamp,
            self.coordinator_epoch,
            self.txn_first_offset,
        )
        for _, sequence, first, end, at_ms in older:
            row += _OLDER.pack(sequence, end, end - first, at_ms)
        if self.kept and timestamp != self.last_timestamp:
            row += _LONG.pack(timestamp)
        return row


_NO_BATCH: Final = (-1, -1, -1, -1, -1)


def _unpacked(row: bytes) -> ProducerEntry:
    producer_id, epoch, sequence, offset, delta, heard_ms, coordinator, txn_first = _ENTRY.unpack_from(row)
    entry = ProducerEntry(producer_id, epoch)
    entry.last_timestamp = heard_ms
    entry.coordinator_epoch = coordinator
    entry.txn_first_offset = txn_first
    if offset < 0:
        return entry
    end = _end_of_batches(row)
    for at in range(_ENTRY.size, end, _OLDER.size):
        entry.kept.append(_sent(*_OLDER.unpack_from(row, at)))
    timestamp = heard_ms if end == len(row) else _LONG.unpack_from(row, end)[0]
    entry.kept.append(_sent(sequence, offset, delta, timestamp))
    entry.next_sequence = (sequence + 1) & SEQUENCE_MASK
    return entry


def _end_of_batches(row: bytes) -> int:
    return len(row) - (len(row) - _ENTRY.size) % _OLDER.size


def _heard_at(entry: ProducerEntry) -> int:
    """Return the offset of its last batch or marker."""
    kept = entry.kept
    return max(kept[-1][3], entry.marker_offset) if kept else entry.marker_offset


def _last_timestamp(row: bytes) -> int:
    heard_ms: int = _LONG.unpack_from(row, _LAST_TIMESTAMP_AT)[0]
    return heard_ms


def _txn_first_offset(row: bytes) -> int:
    first_offset: int = _LONG.unpack_from(row, _TXN_FIRST_OFFSET_AT)[0]
    return first_offset


class ProducerTable:
    __slots__ = ("_heard_until", "_packed", "_unpacked", "ongoing", "unreplicated", "verifications")

    def __init__(self) -> None:
        self.verifications: dict[int, Verification] = {}
        """By producer id. Not part of a snapshot."""
        self._packed: dict[int, bytes] = {}
        """By producer id: who was heard of longest ago comes first."""
        self._unpacked: dict[int, ProducerEntry] = {}
        """The others, those that the log heard of last."""
        self._heard_until = -1
        """The last offset of a producer when it was last looked for silent ones."""
        self.ongoing: OrderedDict[int, int] = OrderedDict()
        """The producer id by first offset, ascending. Ordered, because the first key of a plain dictionary of
        which many were taken is looked for among all that went."""
        self.unreplicated: dict[
            int, int
        ] = {}  # first offset -> marker offset of decided transactions at or past HW

    @classmethod
    def of(cls, rows: dict[int, bytes]) -> ProducerTable:
        """The table of what was packed."""
        table = cls()
        table._packed = rows
        begun = [(_txn_first_offset(row), producer_id) for producer_id, row in rows.items()]
        table.ongoing.update(sorted(each for each in begun if each[0] >= 0))
        return table

    def __repr__(self) -> str:
        return f"ProducerTable({self.count} producers, {len(self.ongoing)} open transactions)"

    @property
    def count(self) -> int:
        """How many producers are known."""
        return len(self._packed) + len(self._unpacked)

    @property
    def size_bytes(self) -> int:
        """What they take in memory, at most."""
        return len(self._packed) * PACKED_BYTES + len(self._unpacked) * UNPACKED_BYTES

    def known(self, producer_id: int) -> ProducerEntry | None:
        """The entry of a producer, to be read at once: it may be a copy."""
        entry = self._unpacked.get(producer_id)
        if entry is None:
            row = self._packed.get(producer_id)
            return None if row is None else _unpacked(row)
        return entry

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """All that is known, by producer id, for who looks at a whole table; to be read only."""
        return MappingProxyType({entry.producer_id: entry for entry in map(_unpacked, self.freeze())})

    # --- transactions of clients ---

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self.known(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds: bool, now_ms: int
    ) -> Verification | None:
        """Return what a batch of a transaction needs to be appended once the transaction coordinator has
        agreed; None where the transaction is open here already. KafkaError for an epoch that is over."""
        entry = self.known(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _old_epoch(producer_id, epoch, entry.epoch)
            if entry.txn_first_offset >= 0 and entry.epoch == epoch:
                return None
        known = self.verifications.get(producer_id)
        if known is not None:
            known.asked_again(epoch, sequence)
            return known
        if len(self.verifications) >= VERIFICATIONS_MAX:
            self.forget_questions(FORGOTTEN_AT_ONCE)
        made = Verification(epoch=epoch, sequence=sequence, adds=adds, now_ms=now_ms)
        self.verifications[producer_id] = made
        return made

    def forget_questions(self, count: int) -> None:
        """Forget the oldest ones: who waits for an answer asks again."""
        for producer_id in list(islice(self.verifications, count)):
            del self.verifications[producer_id]

    def check_verified(self, header: BatchHeader, verified: Verification | None) -> None:
        """Refuse a data batch that would begin a transaction which the coordinator does not know of."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self.known(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _old_epoch(producer_id, epoch, entry.epoch)
            if entry.txn_first_offset >= 0 and entry.epoch == epoch:
                return
        if verified is UNASKED:
            return
        if verified is None or self.verifications.get(producer_id) is not verified:
            raise KafkaError(ErrorCode.invalid_txn_state, "Record was not part of an ongoing transaction")

    def _check_sequence_asked(
        self, asked: Verification, entry: ProducerEntry | None, header: BatchHeader
    ) -> None:
        sequence = header.base_sequence
        if asked.adds and sequence != 0 and (entry is None or not entry.kept):
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} is not known here and starts with sequence {sequence}",
            )
        if sequence > asked.lowest_sequence:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {sequence} before {asked.lowest_sequence}",
            )

    # --- appends of clients ---

    def check(self, header: BatchHeader, verified: Verification | None = None) -> SentBatch | None:
        """The remembered batch this one repeats, or None when it may be appended; KafkaError otherwise."""
        entry = self.known(header.producer_id)
        epoch = header.producer_epoch
        sequence = header.base_sequence
        is_next = entry is None or epoch != entry.epoch or sequence == entry.next_sequence
        if not is_next and entry is not None:
            repeated = _repeated(entry, header)
            if repeated is not None:
                return repeated
        if header.is_transactional:
            self.check_verified(header, verified)
        if self.verifications:
            asked = self.verifications.get(header.producer_id)
            if asked is not None and (entry is None or epoch >= entry.epoch):
                self._check_sequence_asked(asked, entry, header)
        if entry is None:
            return None  # expired or never seen: Kafka accepts any sequence
        if not is_next:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {sequence}, expected {entry.next_sequence}",
            )
        if epoch < entry.epoch:
            raise _old_epoch(header.producer_id, epoch, entry.epoch)
        if epoch != entry.epoch and sequence != 0 and entry.epoch != NO_EPOCH:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} starts epoch {epoch} with sequence {sequence}",
            )
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} sent a plain batch inside its transaction",
            )
        return None

    def follow(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        in_transaction: bool = False,
    ) -> bool:
        """`check` and `appended` for a batch of a producer that goes on where it stopped, in a transaction
        that is open here or outside of one; False for any other. Written out, because it runs for every batch
        of a busy producer."""
        entry = self._unpacked.get(producer_id)
        if entry is None:
            if producer_id not in self._packed:
                return False
            entry = self.to_change(producer_id, epoch)
        if (
            entry.next_sequence != sequence
            or entry.epoch != epoch
            or (entry.txn_first_offset >= 0) is not in_transaction
            or (self.verifications and producer_id in self.verifications)
        ):
            return False
        last_sequence = (sequence + last_offset - first_offset) & SEQUENCE_MASK
        kept = entry.kept
        if len(kept) == REMEMBERED_BATCHES:
            del kept[0]
        kept.append((sequence, last_sequence, first_offset, last_offset, timestamp))
        entry.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        entry.last_timestamp = timestamp
        return True

    # --- what was appended ---

    def appended(self, header: BatchHeader, first_offset: int, last_offset: int) -> None:
        """Remember a data batch with a producer id."""
        producer_id = header.producer_id
        entry = self.to_change(producer_id, header.producer_epoch)
        if entry.epoch != header.producer_epoch:
            entry.set_epoch(header.producer_epoch)
        entry.sent(header.base_sequence, first_offset, last_offset, header.max_timestamp)
        if header.is_transactional:
            if self.verifications:
                self.verifications.pop(producer_id, None)
            if entry.txn_first_offset < 0:
                entry.txn_first_offset = first_offset
                self.ongoing[first_offset] = producer_id

    def to_change(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The entry of a producer, to be changed at once: later it may have been packed. A new one may take
        the place of one that was silent."""
        entry = self._unpacked.get(producer_id)
        if entry is not None:
            return entry
        row = self._packed.pop(producer_id, None)
        if row is not None:
            entry = _unpacked(row)
        else:
            # where none could be forgotten, there is no use in looking again for each that comes
            if (excess := self.count - PRODUCERS_MAX) >= 0 and excess % FORGOTTEN_AT_ONCE == 0:
                self.forget_silent(FORGOTTEN_AT_ONCE)
            entry = ProducerEntry(producer_id, epoch)
        if len(self._unpacked) >= UNPACKED_MAX:
            self._pack_some()
        self._unpacked[producer_id] = entry
        return entry

    def _pack_some(self) -> None:
        """Pack a quarter of the entries, those that were not heard of for longest."""
        by_age = sorted(self._unpacked.values(), key=_heard_at)
        for entry in by_age[: (len(by_age) + 3) // 4]:
            self._pack(entry)

    def _pack(self, entry: ProducerEntry) -> None:
        del self._unpacked[entry.producer_id]
        self._packed[entry.producer_id] = entry.packed()

    def pack_silent(self) -> Work[None]:
        """Pack, in steps, those that were not heard of since this was done last, but for a few."""
        if len(self._unpacked) <= UNPACKED_AT_REST:
            return
        heard_until, self._heard_until = self._heard_until, max(map(_heard_at, self._unpacked.values()))
        silent = [(_heard_at(entry), producer_id) for producer_id, entry in self._unpacked.items()]
        yield
        for at, (heard_at, producer_id) in enumerate(sorted(silent), 1):
            if heard_at > heard_until or len(self._unpacked) <= UNPACKED_AT_REST:
                break
            entry = self._unpacked.get(producer_id)
            if entry is not None and _heard_at(entry) == heard_at:
                self._pack(entry)
            if at % _PACKED_PER_STEP == 0:
                yield

    def freeze(self) -> list[bytes]:
        """All entries as they are now, packed."""
        return [*self._packed.values(), *(entry.packed() for entry in self._unpacked.values())]

    def forget_silent(self, count: int) -> None:
        """Forget `count` producers, as if their time were over: those that were silent for longest, outside
        of transactions, as far as they are found among as many. Kafka has no bound but the time."""
        while self._unpacked and len(self._packed) < count:
            self._pack_some()
        for producer_id in list(islice(self._packed, count)):
            row = self._packed.pop(producer_id)
            if _txn_first_offset(row) >= 0:
                self._packed[producer_id] = row

    def check_coordinated(self, header: BatchHeader, verified: Verification | None) -> None:
        """Refuse a batch of a coordinator's records, which have no sequence."""
        if header.is_transactional:
            self.check_verified(header, verified)
        entry = self.known(header.producer_id)
        if entry is None:
            return
        if header.producer_epoch < entry.epoch:
            raise _old_epoch(header.producer_id, header.producer_epoch, entry.epoch)
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} wrote a plain batch inside its transaction",
            )

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Refuse a marker that is late. Where every transaction has an epoch of its own, its marker has the
        next one: one of the epoch of what is open is of the transaction before. Where nothing is open, it is
        the same marker again, for who had no answer; the last epoch of all has no next one."""
        entry = self.known(producer_id)
        if entry is None:
            return
        is_of_before = (
            transaction_version >= EPOCH_PER_TRANSACTION
            and epoch == entry.epoch != LAST_EPOCH
            and entry.txn_first_offset >= 0
        )
        if epoch < entry.epoch or is_of_before:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"marker of epoch {epoch} for producer {producer_id} at {entry.epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"marker of coordinator epoch {coordinator_epoch}, seen {entry.coordinator_epoch}",
            )

    def ended(
        self, header: BatchHeader, marker_offset: int, *, is_aborted: bool, coordinator_epoch: int
    ) -> CompletedTxn | None:
        """Apply an end-of-transaction marker; the transaction it decides, if one was open."""
        producer_id = header.producer_id
        entry = self.to_change(producer_id, header.producer_epoch)
        entry.set_epoch(header.producer_epoch)
        entry.last_timestamp = header.max_timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.marker_offset = marker_offset
        if self.verifications:
            asked = self.verifications.get(producer_id)
            # with an epoch for every transaction the marker has that of the next, which was asked about
            if asked is not None and not (asked.adds and asked.epoch == header.producer_epoch):
                del self.verifications[producer_id]
        first_offset, entry.txn_first_offset = entry.txn_first_offset, -1
        if first_offset < 0:
            return None
        return CompletedTxn(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=marker_offset,
            is_aborted=is_aborted,
        )

    def last_stable_after(self, completed: CompletedTxn) -> int:
        """The first offset still undecided once `completed` is: what the transaction index stores beside
        it."""
        for first_offset in self.ongoing:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn) -> None:
        if self.ongoing.pop(completed.first_offset, None) is not None:
            self.unreplicated[completed.first_offset] = completed.last_offset

    # --- watermarks ---

    def first_unstable_offset(self) -> int:
        """The first offset a read_committed reader must not pass, or -1."""
        first = next(iter(self.ongoing), -1)
        if not self.unreplicated:
            return first
        decided = min(self.unreplicated)
        return decided if first < 0 else min(first, decided)

    def replicated_to(self, high_watermark: int) -> None:
        if self.unreplicated:
            for first in [f for f, marker in self.unreplicated.items() if marker < high_watermark]:
                del self.unreplicated[first]

    def log_starts_at(self, log_start_offset: int) -> None:
        """Decided transactions below the new start hold nothing back any more."""
        for first in [f for f, marker in self.unreplicated.items() if marker < log_start_offset]:
            del self.unreplicated[first]

    def expire(self, before_ms: int) -> Work[int]:
        """Forget, in steps, producers silent since `before_ms` and outside a transaction, and questions as
        old."""
        forgotten = 0
        for at, producer_id in enumerate([*self._packed, *self._unpacked], 1):
            if at % _ENTRIES_PER_STEP == 0:
                yield
            row = self._packed.get(producer_id)
            if row is not None:
                if _last_timestamp(row) <= before_ms and _txn_first_offset(row) < 0:
                    del self._packed[producer_id]
                    forgotten += 1
                continue
            entry = self._unpacked.get(producer_id)
            if entry is not None and entry.last_timestamp <= before_ms and entry.txn_first_offset < 0:
                del self._unpacked[producer_id]
                forgotten += 1
        yield
        for producer_id in [each for each, it in self.verifications.items() if it.since_ms <= before_ms]:
            del self.verifications[producer_id]
        return forgotten

    def clear(self) -> None:
        self._packed.clear()
        self._unpacked.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.verifications.clear()

    def active(self) -> Iterator[ActiveProducer]:
        """Those that are known now, each as it is when it is taken."""
        for producer_id in [*self._packed, *self._unpacked]:
            entry = self.known(producer_id)
            if entry is None:
                continue
            yield ActiveProducer(
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.txn_first_offset,
            )

    # --- snapshots ---

    def encode(self, note: bytes = b"") -> bytes:
        return finish(encode_producers(self.freeze(), note))


def _repeated(entry: ProducerEntry, header: BatchHeader) -> SentBatch | None:
    first = header.base_sequence
    last = header.last_sequence
    for batch in entry.batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    return None


def _old_epoch(producer_id: int, epoch: int, newest: int) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_producer_epoch,
        f"producer {producer_id} has epoch {newest} here, the batch says {epoch}",
    )


def encode_producers(rows: Sequence[bytes], note: bytes = b"") -> Work[bytes]:
    """A snapshot file of what was frozen, in steps."""
    body = bytearray(_HEAD.size) + _COUNT.pack(len(rows))
    older = bytearray()
    for first in range(0, len(rows), _ENTRIES_PER_STEP):
        if first:
            yield
        for row in rows[first : first + _ENTRIES_PER_STEP]:
            body += row[: _ENTRY.size]
            if len(row) >= _ENTRY.size + _OLDER.size:
                batches = row[_ENTRY.size : _end_of_batches(row)]
                older += row[: _LONG.size] + bytes((len(batches) // _OLDER.size,)) + batches
    if note:
        body += _NOTE_MAGIC + _NOTE_SIZE.pack(len(note)) + note
    if older:
        body += _OLDER_MAGIC + older
    with memoryview(body) as view:
        _HEAD.pack_into(body, 0, _SNAPSHOT_VERSION, crc32c(view[_HEAD.size :]))
    return bytes(body)


def replay_marker(
    table: ProducerTable, view: bytes | bytearray | memoryview, header: BatchHeader, last_offset: int
) -> CompletedTxn | None:
    """Apply a control batch; the transaction it decides is not yet completed in the table."""
    marker = read_marker(view, header)
    if marker is None:
        return None
    return table.ended(header, last_offset, is_aborted=marker[0] == ABORT_MARKER, coordinator_epoch=marker[1])


def read_marker(view: bytes | bytearray | memoryview, header: BatchHeader) -> tuple[int, int] | None:
    """(type, coordinator epoch) of an end-transaction marker; None for a control batch of another kind or
    one that compaction emptied."""
    for record in iter_records(view, 0, header):
        kind, _, coordinator_epoch = parse_control(record)
        return (kind, coordinator_epoch) if kind in (0, 1) else None
    return None


def decode_producers(data: bytes) -> tuple[ProducerTable, bytes]:
    """The table of a snapshot file and the note beside it; CorruptSnapshot when it is short, of another
    version or fails its CRC."""
    try:
        return _decode(data)
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptSnapshot(str(error)) from error


def _decode(data: bytes) -> tuple[ProducerTable, bytes]:
    version, crc = _HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"version {version}")
    body = data[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshot("wrong CRC")
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size
    if count < 0 or at + count * _ENTRY.size > len(body):
        raise CorruptSnapshot(f"{count} entries in {len(body)} bytes")
    rows: dict[int, bytes] = {}
    for _ in range(count):
        (producer_id,) = _LONG.unpack_from(body, at)
        rows[producer_id] = body[at : at + _ENTRY.size]
        at += _ENTRY.size
    note = b""
    if body[at : at + len(_NOTE_MAGIC)] == _NOTE_MAGIC:
        (size,) = _NOTE_SIZE.unpack_from(body, at + len(_NOTE_MAGIC))
        at += len(_NOTE_MAGIC) + _NOTE_SIZE.size
        note = body[at : at + size]
        at += size
    if body[at : at + len(_OLDER_MAGIC)] == _OLDER_MAGIC:
        _read_older(rows, body, at + len(_OLDER_MAGIC))
    return ProducerTable.of(rows), note


def _read_older(rows: dict[int, bytes], body: bytes, at: int) -> None:
    while at < len(body):
        producer_id, count = _OLDER_HEAD.unpack_from(body, at)
        at += _OLDER_HEAD.size
        end = at + count * _OLDER.size
        row = rows.get(producer_id)
        is_known = row is not None and len(row) == _ENTRY.size and _unpacked(row).kept
        if row is None or not is_known or not 0 < count < REMEMBERED_BATCHES or end > len(body):
            raise CorruptSnapshot(f"older batches of producer {producer_id}")
        rows[producer_id] = row + body[at:end]
        at = end


def _sent(last_sequence: int, last_offset: int, delta: int, timestamp: int) -> SentBatch:
    return SentBatch(
        (last_sequence - delta) & SEQUENCE_MASK, last_sequence, last_offset - delta, last_offset, timestamp
    )
