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
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from protocol.checksum import crc32c
from protocol.errors import ErrorCode, KafkaError
from protocol.records import BatchHeader, iter_records, parse_control
from protocol.work import Work, finish

REMEMBERED_BATCHES = 5
VERIFICATIONS_MAX: Final = 10_000
"""Questions about a transaction that are under way, or were answered with an error, in one log."""
PRODUCERS_MAX: Final = 100_000
"""Of one log. Each takes about 460 bytes."""
PRODUCER_BYTES: Final = 460
SILENT_LOOKS: Final = 16
_ENTRIES_PER_STEP: Final = 64
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
        "frozen",
        "kept",
        "last_timestamp",
        "marker_offset",
        "next_sequence",
        "producer_id",
        "txn_first_offset",
        "visited",
    )

    def __init__(self, producer_id: int, epoch: int, frozen: int = 0) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.kept: list[tuple[int, int, int, int, int]] = []
        """`batches` as plain tuples: to name one costs as much as all else that a batch changes here."""
        self.frozen = frozen
        """How often the table was frozen before this was made: what is older belongs to who froze it."""
        self.marker_offset = -1
        """Of its last end-transaction marker, if that was since the table was read from a snapshot."""
        self.visited = -1
        """Where it was last heard of when it was last looked at for being silent."""
        self.next_sequence = 0
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.txn_first_offset = -1

    def copy(self, frozen: int) -> ProducerEntry:
        made = ProducerEntry(self.producer_id, self.epoch, frozen)
        made.kept = self.kept.copy()
        made.next_sequence = self.next_sequence
        made.last_timestamp = self.last_timestamp
        made.coordinator_epoch = self.coordinator_epoch
        made.txn_first_offset = self.txn_first_offset
        made.marker_offset = self.marker_offset
        made.visited = self.visited
        return made

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

    @property
    def heard_at(self) -> int:
        """The offset of its last batch or marker."""
        return max(self.last_offset, self.marker_offset)

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


class ProducerTable:
    __slots__ = ("entries", "frozen", "ongoing", "unreplicated", "verifications")

    def __init__(self) -> None:
        self.verifications: dict[int, Verification] = {}
        """By producer id. Not part of a snapshot."""
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: OrderedDict[int, int] = OrderedDict()
        """The producer id by first offset, ascending. Ordered, because the first key of a plain dictionary of
        which many were taken is looked for among all that went."""
        self.unreplicated: dict[
            int, int
        ] = {}  # first offset -> marker offset of decided transactions at or past HW
        self.frozen = 0

    def __repr__(self) -> str:
        return f"ProducerTable({len(self.entries)} producers, {len(self.ongoing)} open transactions)"

    # --- transactions of clients ---

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self.entries.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds: bool, now_ms: int
    ) -> Verification | None:
        """Return what a batch of a transaction needs to be appended once the transaction coordinator has
        agreed; None where the transaction is open here already. KafkaError for an epoch that is over."""
        entry = self.entries.get(producer_id)
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
            # who waits for its answer asks again
            del self.verifications[next(iter(self.verifications))]
        made = Verification(epoch=epoch, sequence=sequence, adds=adds, now_ms=now_ms)
        self.verifications[producer_id] = made
        return made

    def check_verified(self, header: BatchHeader, verified: Verification | None) -> None:
        """Refuse a data batch that would begin a transaction which the coordinator does not know of."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self.entries.get(producer_id)
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
        entry = self.entries.get(header.producer_id)
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
        entry = self.entries.get(producer_id)
        if (
            entry is None
            or entry.next_sequence != sequence
            or entry.epoch != epoch
            or (entry.txn_first_offset >= 0) is not in_transaction
            or (self.verifications and producer_id in self.verifications)
        ):
            return False
        if entry.frozen != self.frozen:
            entry = self._own(entry)
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
        entry = self._entry(producer_id, header.producer_epoch)
        if entry.epoch != header.producer_epoch:
            entry.set_epoch(header.producer_epoch)
        entry.sent(header.base_sequence, first_offset, last_offset, header.max_timestamp)
        if header.is_transactional:
            if self.verifications:
                self.verifications.pop(producer_id, None)
            if entry.txn_first_offset < 0:
                entry.txn_first_offset = first_offset
                self.ongoing[first_offset] = producer_id

    def _entry(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The entry of a producer, to be changed. A new one may take the place of one that was silent."""
        entry = self.entries.get(producer_id)
        if entry is None:
            if len(self.entries) >= PRODUCERS_MAX:
                self.forget_silent()
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch, self.frozen)
        elif entry.frozen != self.frozen:
            entry = self._own(entry)
        return entry

    def _own(self, entry: ProducerEntry) -> ProducerEntry:
        """Put a copy in the place of an entry that belongs to who froze it."""
        made = self.entries[entry.producer_id] = entry.copy(self.frozen)
        return made

    def freeze(self) -> list[ProducerEntry]:
        """All entries as they are now, which will not change any more."""
        self.frozen += 1
        return list(self.entries.values())

    def forget_silent(self) -> None:
        """Forget one producer, as if its time were over: outside a transaction, and not heard of since it
        was last looked at here, if such a one is near. Kafka has no bound but the time."""
        oldest: ProducerEntry | None = None
        for producer_id in list(islice(self.entries, SILENT_LOOKS)):
            entry = self.entries.pop(producer_id)
            is_idle = entry.txn_first_offset < 0
            heard_at = entry.heard_at
            if is_idle and entry.visited == heard_at:
                return
            if is_idle and (oldest is None or heard_at < oldest.heard_at):
                oldest = entry
            entry.visited = heard_at
            self.entries[producer_id] = entry
        if oldest is not None:
            del self.entries[oldest.producer_id]

    def check_coordinated(self, header: BatchHeader, verified: Verification | None) -> None:
        """Refuse a batch of a coordinator's records, which have no sequence."""
        if header.is_transactional:
            self.check_verified(header, verified)
        entry = self.entries.get(header.producer_id)
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
        entry = self.entries.get(producer_id)
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
        entry = self._entry(producer_id, header.producer_epoch)
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

    def expire(self, before_ms: int) -> int:
        """Forget producers silent since `before_ms` and outside a transaction, and questions as old."""
        silent = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.last_timestamp <= before_ms and entry.txn_first_offset < 0
        ]
        for producer_id in silent:
            del self.entries[producer_id]
        for producer_id in [each for each, it in self.verifications.items() if it.since_ms <= before_ms]:
            del self.verifications[producer_id]
        return len(silent)

    def clear(self) -> None:
        self.entries.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.verifications.clear()

    def active(self) -> Iterator[ActiveProducer]:
        """Those that are known now, each as it is when it is taken."""
        for entry in list(self.entries.values()):
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
        return finish(encode_producers(list(self.entries.values()), note))


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


def encode_producers(entries: Sequence[ProducerEntry], note: bytes = b"") -> Work[bytes]:
    """A snapshot file, in steps."""
    body = bytearray(_COUNT.pack(len(entries)))
    older = bytearray()
    for at, entry in enumerate(entries, 1):
        if at % _ENTRIES_PER_STEP == 0:
            yield
        batches = entry.batches
        last = batches[-1] if batches else None
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            last.last_sequence if last else -1,
            last.last_offset if last else -1,
            last.last_offset - last.first_offset if last else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        if len(batches) > 1:
            older += _OLDER_HEAD.pack(entry.producer_id, len(batches) - 1)
            for batch in batches[:-1]:
                older += _OLDER.pack(
                    batch.last_sequence,
                    batch.last_offset,
                    batch.last_offset - batch.first_offset,
                    batch.timestamp,
                )
    if note:
        body += _NOTE_MAGIC + _NOTE_SIZE.pack(len(note)) + note
    if older:
        body += _OLDER_MAGIC + older
    return _HEAD.pack(_SNAPSHOT_VERSION, crc32c(bytes(body))) + body


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
    table = ProducerTable()
    for _ in range(count):
        _read_entry(table, body, at)
        at += _ENTRY.size
    note = b""
    if body[at : at + len(_NOTE_MAGIC)] == _NOTE_MAGIC:
        (size,) = _NOTE_SIZE.unpack_from(body, at + len(_NOTE_MAGIC))
        at += len(_NOTE_MAGIC) + _NOTE_SIZE.size
        note = body[at : at + size]
        at += size
    if body[at : at + len(_OLDER_MAGIC)] == _OLDER_MAGIC:
        _read_older(table, body, at + len(_OLDER_MAGIC))
    open_txns = [
        (e.txn_first_offset, e.producer_id) for e in table.entries.values() if e.txn_first_offset >= 0
    ]
    table.ongoing.update(sorted(open_txns))
    return table, note


def _read_entry(table: ProducerTable, body: bytes, at: int) -> None:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator, txn_first = _ENTRY.unpack_from(
        body, at
    )
    entry = table.entries[producer_id] = ProducerEntry(producer_id, epoch)
    entry.last_timestamp = timestamp
    entry.coordinator_epoch = coordinator
    entry.txn_first_offset = txn_first
    if offset >= 0:
        entry.kept.append(_sent(sequence, offset, delta, timestamp))
        entry.next_sequence = (sequence + 1) & SEQUENCE_MASK


def _read_older(table: ProducerTable, body: bytes, at: int) -> None:
    while at < len(body):
        producer_id, count = _OLDER_HEAD.unpack_from(body, at)
        at += _OLDER_HEAD.size
        entry = table.entries.get(producer_id)
        if entry is None or not 0 < count < REMEMBERED_BATCHES:
            raise CorruptSnapshot(f"older batches of producer {producer_id}")
        last = entry.kept.pop()
        for _ in range(count):
            sequence, offset, delta, timestamp = _OLDER.unpack_from(body, at)
            entry.kept.append(_sent(sequence, offset, delta, timestamp))
            at += _OLDER.size
        entry.kept.append(last)


def _sent(last_sequence: int, last_offset: int, delta: int, timestamp: int) -> SentBatch:
    return SentBatch(
        (last_sequence - delta) & SEQUENCE_MASK, last_sequence, last_offset - delta, last_offset, timestamp
    )
