"""Commands to the metadata topic as one broker sends them to another: records of a Produce.

Owns: what a record must have to be a command. Does not own: the bytes of an event (remote.cold.events),
whether the event is taken (machine), the request around it (handlers). Invariant: what is no command is told
apart before anything is done about it; a batch of records is commands as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final

from broker.coordinators.tier.machine import TierCommand
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import Buffer, NewRecord, Record, build_batch, check_produced, iter_records
from protocol.stored.schema import BadRecord
from remote.cold.events import Tombstone, decode_event, encode_event
from remote.cold.segments import SegmentState

LEADER_EPOCH_HEADER: Final = "leader-epoch"
"""Of the user's partition, in the broker that sends the event."""
FROM_STATE_HEADER: Final = "from-state"
"""Of the copy, as its sender saw it; absent where any will do."""
COMMANDS_MAX: Final = 1_000
"""In one batch."""
_EPOCH: Final = Struct(">i")
_STATE: Final = Struct(">B")


def encode_commands(commands: Sequence[TierCommand], *, now_ms: int) -> bytearray:
    """Return a batch with a record for each."""
    rows: list[NewRecord] = []
    for command in commands:
        assert command.leader_epoch is not None, f"{command} is for this broker alone"
        key, value = encode_event(command.event)
        headers = [(LEADER_EPOCH_HEADER, _EPOCH.pack(command.leader_epoch))]
        if command.expects is not None:
            headers.append((FROM_STATE_HEADER, _STATE.pack(command.expects)))
        rows.append((key, value, tuple(headers), now_ms))
    return build_batch(rows)


def parse_commands(records: Buffer | None, *, version: int) -> list[TierCommand] | None:
    """Return what a batch asks for; None if its records are none of a broker's. Raise KafkaError for a batch
    that no log would take, or commands that cannot be read."""
    (_at, header), *_ = check_produced(records, version=version)
    assert records is not None
    if header.is_transactional or header.codec or header.count > COMMANDS_MAX:
        # brokers send them as they are: to unpack what a client sends here would hold the loop
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
        commands.append(TierCommand(event=event, leader_epoch=leader_epoch, expects=_from_state(row)))
    return commands


def _leader_epoch(row: Record) -> int | None:
    for name, value in row.headers:
        if name == LEADER_EPOCH_HEADER and value is not None and len(value) == _EPOCH.size:
            epoch: int = _EPOCH.unpack(value)[0]
            return epoch
    return None


def _from_state(row: Record) -> SegmentState | None:
    """Raise KafkaError for one that is no state: without its condition a command says something else."""
    for name, value in row.headers:
        if name == FROM_STATE_HEADER:
            try:
                return SegmentState(_STATE.unpack(value or b"")[0])
            except (ValueError, StructError) as error:
                raise KafkaError(ErrorCode.invalid_record, f"{FROM_STATE_HEADER} is no state") from error
    return None
