"""What is durable, applied to a machine: a whole log to a new one, or a round to the one that decided it.

Owns the order of records and of transactions' markers among them, and the steps that this takes. Does not own
what records do (`machine`), nor when a machine counts (`broker.coordinators.replicated_state`).
Invariant: a machine that is built from a log is what one became that was told of its records one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from broker.coordinators.machine import Machine, in_steps
from broker.coordinators.pace import Pace
from broker.coordinators.shell.log import Outcome, ShellLog
from broker.coordinators.shell.rounds import RECORDS_PER_STEP, Part
from broker.turns import Turns
from protocol import records as batches
from protocol.errors import KafkaError
from protocol.stored.schema import BadRecord
from protocol.work import Work

logger = logging.getLogger(__name__)

ROWS_PER_LOOK: Final = 64
"""A batch may have thousands of rows; to look at the clock takes a tenth of the time of one."""


def apply_all(
    machine: Machine[Any, Any],
    records: Sequence[Any],
    first_offset: int,
    counts: Callable[[Machine[Any, Any]], bool],
    producer_id: int = -1,
) -> Work[None]:
    """Apply records that were appended, as long as the machine `counts`."""
    for at, record in enumerate(records):
        if not counts(machine):
            return
        try:
            machine.apply(record, offset=first_offset + at, producer_id=producer_id)
        except Exception as error:
            error.add_note(f"of {type(record).__name__} at offset {first_offset + at}")
            raise
        if at % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield


def settle(
    machine: Machine[Any, Any],
    part: Part[Any],
    sizes: Sequence[int],
    outcomes: Iterator[Outcome],
    counts: Callable[[Machine[Any, Any]], bool],
) -> Work[tuple[KafkaError, bool] | None]:
    """Apply what was appended of a part; return why the rest was not, and whether there is more than that."""
    refused: KafkaError | None = None
    at = 0
    for size in sizes:
        outcome = next(outcomes)
        if isinstance(outcome, KafkaError):
            refused = refused or outcome
        elif part.marker is not None:
            marker = part.marker
            yield from in_steps(
                machine.apply_marker(producer_id=marker.producer_id, committed=marker.committed)
            )
        elif refused is None:
            producer_id = -1 if part.producer is None else part.producer.producer_id
            records = part.records[at : at + size]
            yield from apply_all(machine, records, outcome.first_offset, counts, producer_id)
            at += size
    return None if refused is None else (refused, at > 0)


async def replay(machine: Machine[Any, Any], log: ShellLog, turns: Turns, pace: Pace) -> None:
    """Build a machine from its log. Of plain records only the last of each key is decoded, which saves most
    of the work: a compacted log may lack the others anyway.
    """
    latest: dict[bytes, batches.Record] = {}
    for chunk in log.read_all():
        for at, header in batches.iter_batches(chunk):
            rows = batches.iter_records(chunk, at, header)
            if header.is_control or header.is_transactional:
                await _apply_latest(machine, latest, log, pace)
                await turns.run(_apply_in_order(machine, header, rows, log))
            else:
                for number, row in enumerate(rows):
                    if row.key is not None:
                        latest.pop(row.key, None)
                        latest[row.key] = row
                    if number % ROWS_PER_LOOK == ROWS_PER_LOOK - 1:
                        await pace.yield_if_due()
            await pace.yield_if_due()
    await _apply_latest(machine, latest, log, pace)


async def _apply_latest(
    machine: Machine[Any, Any], latest: dict[bytes, batches.Record], log: ShellLog, pace: Pace
) -> None:
    for row in latest.values():
        _apply(machine, row, log, producer_id=-1)
        await pace.yield_if_due()
    latest.clear()


def _apply_in_order(
    machine: Machine[Any, Any], header: batches.BatchHeader, rows: Iterator[batches.Record], log: ShellLog
) -> Work[None]:
    for number, row in enumerate(rows, 1):
        if number % ROWS_PER_LOOK == 0:
            yield
        if not header.is_control:
            _apply(machine, row, log, producer_id=header.producer_id)
            continue
        kind, _, _ = batches.parse_control(row)
        if kind in (batches.ControlType.ABORT, batches.ControlType.COMMIT):
            committed = kind == batches.ControlType.COMMIT
            yield from in_steps(machine.apply_marker(producer_id=header.producer_id, committed=committed))


def _apply(machine: Machine[Any, Any], row: batches.Record, log: ShellLog, *, producer_id: int) -> None:
    """Apply a row, unless a newer or foreign writer left it: such a record must not fail its partition."""
    if row.key is None:
        return
    try:
        record = machine.decode(row.key, row.value)
    except BadRecord as error:
        logger.error("%s: ignored the record at offset %d: %s", log, row.offset, error)
        return
    if record is not None:
        machine.apply(record, offset=row.offset, producer_id=producer_id)
