"""Commands to the metadata topic as one broker sends them to another: records of a Produce.

Owns: what a record must have to be a command. Does not own: the bytes of an event (remote.cold.events),
whether the event is taken (machine), the request around it (handlers). Invariant: what is no command is told
apart before anything is done about it; a batch of records is commands as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from broker.coordinators.tier.machine import TierCommand
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import Buffer, NewRecord, Record, build_batch, check_produced, iter_records
from protocol.stored.schema import BadRecord
from remote.cold.events import Tombstone, decode_event, encode_event
from remote.cold.segments import TierEvent

LEADER_EPOCH_HEADER: Final = "leader-epoch"
"""Of the user's partition, in the broker that sends the event."""
COMMANDS_MAX: Final = 1_000
"""In one batch."""
_EPOCH: Final = Struct(">i")


def encode_commands(commands: Sequence[tuple[TierEvent, int]], *, now_ms: int) -> bytearray:
    """Return a batch with a record for each (event, leader epoch)."""
    rows: list[NewRecord] = []
    for event, leader_epoch in commands:
        key, value = encode_event(event)
        rows.append((key, value, ((LEADER_EPOCH_HEADER, _EPOCH.pack(leader_epoch)),), now_ms))
    return build_batch(rows)


def parse_commands(records: Buffer | None, *, version: int) -> list[TierCommand] | None:
    """Return what a batch asks for; None if its records are none of a broker's. Raise KafkaError for a batch
    that no log would take, or commands that cannot be read."""
    (_at, header), *_ = check_produced(records, version=version)
    assert records is not None
    if header.is_transactional or header.count > COMMANDS_MAX:
        return None
    try:
        rows = list(iter_records(records, 0, header))
    except CorruptBatch as error:
        raise KafkaError(ErrorCode.invalid_record, error.reason) from error
    commands = []
    for row in rows:
        leader_epoch = _leader_epoch(row)
        if row.key is None or leader_epoch is None:
            return None
        try:
            event = decode_event(row.key, row.value)
        except BadRecord as error:
            raise KafkaError(ErrorCode.invalid_record, str(error)) from error
        if isinstance(event, Tombstone):
            raise KafkaError(ErrorCode.invalid_record, "a command tells an event, and this is none")
        commands.append(TierCommand(event=event, leader_epoch=leader_epoch))
    return commands


def _leader_epoch(row: Record) -> int | None:
    for name, value in row.headers:
        if name == LEADER_EPOCH_HEADER and value is not None and len(value) == _EPOCH.size:
            epoch: int = _EPOCH.unpack(value)[0]
            return epoch
    return None
