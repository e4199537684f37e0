"""Records of __transaction_state: what is known of each transactional id, in Kafka's own format.

Owns: the record, its versions, the numbers of the states. Does not own: the batches around it (records.py),
which state follows which (the transaction machine). A record has a version before its key, which is the
record's type, and one before its value.
Invariant: what Kafka wrote is read whatever its version, and what is written is what Kafka 4.3 writes at the
same level of transaction.version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct, pack
from typing import Final

from protocol.primitives import Buffer, write_uvarint
from protocol.stored.schema import BadRecord, Column, StoredSchema, decode_versioned, version_of
from protocol.work import Work

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
UNTAGGED, TAGGED = 0, 1
"""The versions of values."""


class TransactionState(IntEnum):
    """The number of each state in a record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Never stored: what expired is deleted."""
    PREPARE_EPOCH_FENCE = 7
    """Never stored: an open transaction of a fenced producer goes to PREPARE_ABORT at once."""

    @property
    def title(self) -> str:
        """The name that clients and tools know it by."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id: its producer, and the transaction that is open or was the last."""

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    """The id before this one, until the first change after the producer got a new one."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id that the producer has after this transaction, where its epochs are used up."""
    producer_epoch: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before this one; it is not stored, as in Kafka."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """Kept for what a newer Kafka wrote."""
    timeout_ms: int
    state: TransactionState
    partitions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The numbers of the partitions of each topic."""
    started_ms: int = -1
    updated_ms: int
    client_version: int = 0
    """The transaction version by which its producer works."""

    @property
    def commits(self) -> bool:
        """Whether it is committed, or about to be."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def has(self, topic: str, index: int) -> bool:
        return index in self.partitions.get(topic, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """`transaction` None deletes the id."""

    transactional_id: str
    transaction: Transaction | None
    host: str = field(default="", compare=False)
    """Of the client that brought the id; it is not stored."""


def value_version(level: int) -> int:
    """Return the version of values that Kafka writes at this level of transaction.version."""
    return TAGGED if level >= 1 else UNTAGGED


def encode_transaction_record(record: TransactionRecord, version: int = TAGGED) -> tuple[bytes, bytes | None]:
    """(key, value) as Kafka 4.3 writes them. Version 0 has no place for the fields that version 1 tags."""
    found = record.transaction
    if found is None:
        return _key(record), None
    out = _head(found, version)
    if found.state is not TransactionState.EMPTY:
        for topic, indexes in found.partitions.items():
            _write_topic(out, topic, indexes, version)
    return _key(record), _whole(out, found, version)


def encode_in_steps(record: TransactionRecord, version: int = TAGGED) -> Work[tuple[bytes, bytes | None]]:
    """`encode_transaction_record`, for the loop: a transaction may have thousands of partitions."""
    found = record.transaction
    if found is None or len(found.partitions) < _TOPICS_PER_STEP:
        return encode_transaction_record(record, version)
    out = _head(found, version)
    assert found.state is not TransactionState.EMPTY, "an id without a transaction has no partitions"
    for at, (topic, indexes) in enumerate(found.partitions.items(), 1):
        _write_topic(out, topic, indexes, version)
        if at % _TOPICS_PER_STEP == 0:
            yield
    return _key(record), _whole(out, found, version)


def is_short(record: TransactionRecord) -> bool:
    """Whether it is encoded in one step."""
    found = record.transaction
    if found is None:
        return True
    partitions = found.partitions
    return len(partitions) < _TOPICS_PER_STEP and sum(map(len, partitions.values())) <= _NUMBERS_PER_STEP


def _key(record: TransactionRecord) -> bytes:
    name = record.transactional_id.encode()
    return _KEY_HEAD.pack(0, len(name)) + name


def _head(found: Transaction, version: int) -> bytearray:
    """What comes before the topics, and how many they are."""
    out = bytearray(
        _HEAD.pack(version, found.producer_id, found.producer_epoch, found.timeout_ms, found.state)
    )
    is_null = found.state is TransactionState.EMPTY
    if version == UNTAGGED:
        out += _COUNT.pack(-1 if is_null else len(found.partitions))
    elif is_null:
        out.append(0)
    else:
        write_uvarint(out, len(found.partitions) + 1)
    return out


def _write_topic(out: bytearray, topic: str, indexes: frozenset[int], version: int) -> None:
    text = topic.encode()
    if version == UNTAGGED:
        out += _LENGTH.pack(len(text)) + text
        out += pack(f">i{len(indexes)}i", len(indexes), *sorted(indexes))
        return
    write_uvarint(out, len(text) + 1)
    out += text
    write_uvarint(out, len(indexes) + 1)
    out += pack(f">{len(indexes)}ix", *sorted(indexes))  # and no tags


def _whole(out: bytearray, found: Transaction, version: int) -> bytes:
    out += _TIMES.pack(found.updated_ms, found.started_ms)
    if version != UNTAGGED:
        _write_tags(out, found)
    return bytes(out)


def _write_tags(out: bytearray, found: Transaction) -> None:
    """Write the tagged fields, of which those that are -1, or version 0, are absent."""
    previous, following = found.previous_producer_id, found.next_producer_id
    if previous == NO_PRODUCER_ID:
        # Kafka's is the id before the last change, whether that changed it or not
        previous = found.producer_id
    tags = bytearray()
    count = 0
    if previous != NO_PRODUCER_ID:
        tags += _LONG_TAG.pack(0, 8, previous)
        count += 1
    if following != NO_PRODUCER_ID:
        tags += _LONG_TAG.pack(1, 8, following)
        count += 1
    if found.client_version != 0:
        tags += _SHORT_TAG.pack(2, 2, found.client_version)
        count += 1
    if found.next_producer_epoch != NO_PRODUCER_EPOCH:
        tags += _SHORT_TAG.pack(3, 2, found.next_producer_epoch)
        count += 1
    out.append(count)
    out += tags


def decode_transaction_record(key: Buffer, value: Buffer | None) -> TransactionRecord | None:
    """The record, or None for a type we do not keep. Raises BadRecord for bytes that are none."""
    if version_of(key) != 0:
        return None
    transactional_id = decode_versioned(_KEY, 0, key).transactional_id
    return TransactionRecord(
        transactional_id=transactional_id, transaction=None if value is None else _decode(value)
    )


def _decode(value: Buffer) -> Transaction:
    stored = decode_versioned(_VALUE, version_of(value), value)
    try:
        state = TransactionState(stored.transaction_status)
    except ValueError:
        raise BadRecord(f"no state of a transaction is {stored.transaction_status}") from None
    partitions: dict[str, frozenset[int]] = {}
    for row in stored.transaction_partitions or ():
        partitions[row.topic] = partitions.get(row.topic, frozenset()) | frozenset(row.partition_ids)
    producer_id = stored.producer_id
    previous_id = getattr(stored, "previous_producer_id", NO_PRODUCER_ID)
    return Transaction(
        producer_id=producer_id,
        previous_producer_id=NO_PRODUCER_ID if previous_id == producer_id else previous_id,
        next_producer_id=getattr(stored, "next_producer_id", NO_PRODUCER_ID),
        producer_epoch=stored.producer_epoch,
        next_producer_epoch=getattr(stored, "next_producer_epoch", NO_PRODUCER_EPOCH),
        timeout_ms=stored.transaction_timeout_ms,
        state=state,
        partitions={} if state is TransactionState.EMPTY else partitions,
        started_ms=stored.start_timestamp_ms,
        updated_ms=stored.last_update_timestamp_ms,
        client_version=getattr(stored, "client_transaction_version", 0),
    )


# --- schemas ---

_TOPICS_PER_STEP = 16
_NUMBERS_PER_STEP = 256
# Every transaction writes three, so they are written by hand; the schemas below read them.
_KEY_HEAD = Struct(">hh")
_HEAD = Struct(">hqhib")
_TIMES = Struct(">qq")
_COUNT = Struct(">i")
_LENGTH = Struct(">h")
_LONG_TAG = Struct(">BBq")
_SHORT_TAG = Struct(">BBh")

_KEY = StoredSchema(
    name="TransactionLogKey",
    versions=range(1),
    flexible_from=1 << 15,
    columns=(Column(name="transactional_id", kafka_type="string"),),
)
_PARTITIONS = StoredSchema(
    name="PartitionsSchema",
    versions=range(2),
    flexible_from=1,
    columns=(
        Column(name="topic", kafka_type="string"),
        Column(name="partition_ids", kafka_type="int32", is_array=True),
    ),
)
_VALUE = StoredSchema(
    name="TransactionLogValue",
    versions=range(2),
    flexible_from=1,
    columns=(
        Column(name="producer_id", kafka_type="int64"),
        Column(name="previous_producer_id", kafka_type="int64", since=1, tag=0, default=NO_PRODUCER_ID),
        Column(name="next_producer_id", kafka_type="int64", since=1, tag=1, default=NO_PRODUCER_ID),
        Column(name="producer_epoch", kafka_type="int16"),
        Column(name="next_producer_epoch", kafka_type="int16", since=1, tag=3, default=NO_PRODUCER_EPOCH),
        Column(name="transaction_timeout_ms", kafka_type="int32"),
        Column(name="transaction_status", kafka_type="int8"),
        Column(name="transaction_partitions", kafka_type=None, items=_PARTITIONS, is_nullable=True),
        Column(name="last_update_timestamp_ms", kafka_type="int64"),
        Column(name="start_timestamp_ms", kafka_type="int64"),
        Column(name="client_transaction_version", kafka_type="int16", since=1, tag=2, default=0),
    ),
)
