"""Events of the WAL tier as one broker sends them to another: records of a Produce.

Owns: what tells such records from a client's, who sends them and in what state that broker is. Does not own:
the records' bytes (protocol.stored.wal_log), whether they are taken (leading), the request around them
(handlers). Invariant: a batch is a broker's as a whole or not at all; the leader looks at keys alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from broker.coordinators.pace import Pace
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import Buffer, NewRecord, build_batch, check_produced, iter_records
from protocol.stored.schema import BadRecord
from protocol.stored.wal_log import RowKey, decode_key
from remote.wal.combined_object import Place
from remote.wal.journal import LogRow, Teller, encode_slices, finished_row
from remote.wal.untold import Stored

SENDER_HEADER: Final = "sender"
"""Of the first record in a batch."""
RECORDS_MAX: Final = 3_000
"""In one batch."""
_SENDER: Final = Struct(">iqqq")


BATCH_OVERHEAD_BYTES: Final = 1 << 10
"""Of a batch around its records, and of the first of them, generously."""


async def object_rows(
    place: Place, stored: Stored, teller: Teller, *, bytes_max: int, pace: Pace
) -> list[LogRow]:
    """Return the record that an object counts, without entries where those would not fit a batch: a reader
    has them from the object itself."""
    pieces = []
    for piece in encode_slices(stored.put_id, stored.rows):
        pieces.append(piece)
        await pace.yield_if_due()
    entries = b"".join(pieces)
    if len(entries) > bytes_max - BATCH_OVERHEAD_BYTES:
        entries = b""
    return [finished_row(place, stored.put_id, entries, teller)]


class Sender(NamedTuple):
    node_id: int
    broker_epoch: int
    metadata_seq: int
    """The newest slot of the metadata log that it had applied."""
    number: int
    """Goes up with every batch: what arrives after a later one is left out."""


@dataclass(frozen=True, slots=True)
class Told:
    """One batch."""

    sender: Sender
    keys: tuple[tuple[RowKey, bool], ...]
    """And whether the record has a value."""
    batch: bytearray


def make_told(rows: Sequence[LogRow], sender: Sender, *, now_ms: int) -> Told:
    records: list[NewRecord] = []
    for key, value in rows:
        headers = () if records else ((SENDER_HEADER, _SENDER.pack(*sender)),)
        records.append((key, value, headers, now_ms))
    keys = tuple((decode_key(key), value is not None) for key, value in rows)
    return Told(sender, keys, build_batch(records))


def parse_told(records: Buffer | None, *, version: int) -> Told | None:
    """Return what a batch tells; None if its records are none of a broker's. Raise KafkaError for a batch
    that no log would take, or keys that cannot be read."""
    (_at, header), *_ = check_produced(records, version=version)
    assert records is not None
    if header.is_transactional or header.codec or header.count > RECORDS_MAX:
        return None
    sender: Sender | None = None
    keys = []
    try:
        for row in iter_records(records, 0, header):
            if sender is None:
                sender = _sender(row.headers)
            if sender is None or row.key is None:
                return None
            keys.append((decode_key(row.key), row.value is not None))
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.invalid_record, error.reason) from error
    except BadRecord as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error
    return None if sender is None else Told(sender, tuple(keys), bytearray(records[: header.size]))


def _sender(headers: Sequence[tuple[str, bytes | None]]) -> Sender | None:
    for name, value in headers:
        if name == SENDER_HEADER and value is not None and len(value) == _SENDER.size:
            return Sender._make(_SENDER.unpack(value))
    return None
