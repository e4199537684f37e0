"""Whether the sections of an index object say what follows from the data beside it.

Owns the comparison of all five. Does not own how each is compared (log_checks, producers), their formats
(kafka_files) or checksums (scan). Invariant: a section is held only against what its data show: what began in
a copy before is believed.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.verify.core.batches import Scanned
from tools.verify.core.facts import Fault
from tools.verify.core.kafka_files import (
    Aborted,
    BadFile,
    Producer,
    aborted_transactions,
    leader_epochs,
    offset_entries,
    producer_snapshot,
    time_entries,
)
from tools.verify.core.layouts import EPOCHS, OFFSETS, PRODUCERS, TIMES, TRANSACTIONS, IndexHead
from tools.verify.core.log_checks import OffsetIndexCheck, TimeIndexCheck, check_aborted, check_epochs
from tools.verify.core.producers import Producers
from tools.verify.core.tables import ABORT, Markers, Table

ALWAYS = 1 << 62


class SectionsCheck:
    """Takes the tables of the data in order, then says what is wrong."""

    def __init__(self, code: str, place: str, head: IndexHead, sections: dict[int, bytes]) -> None:
        self._code = code
        self._place = place
        self._head = head
        self._sections = sections
        base = head.base_offset
        self._offsets = OffsetIndexCheck(place, base, offset_entries(sections[OFFSETS]))
        self._times = TimeIndexCheck(place, base, time_entries(sections[TIMES]))
        self._producers = Producers(place)
        self._producers.begin(base, None)
        self._aborts: dict[int, int] = {}
        """Producer by the offset of the marker."""

    def on_table(self, table: Table, markers: Markers) -> None:
        self._offsets.add(table)
        self._times.add(table)
        self._producers.add(table, markers)
        if markers:
            columns = table.position.tolist(), table.base.tolist(), table.producer_id.tolist()
            for position, base, producer in zip(*columns, strict=True):
                if markers.get(position, (0, 0))[0] == ABORT:
                    self._aborts[base] = producer

    def faults(self, scanned: Scanned) -> list[Fault]:
        """Return what is wrong, once all of the data was taken and nothing of it is damaged."""
        found = []
        checks: tuple[tuple[int, Callable[[Scanned], Fault | None]], ...] = (
            (OFFSETS, lambda scanned: self._offsets.fault(scanned, is_open=False)),
            (TIMES, lambda scanned: self._times.fault(scanned, is_open=False, is_final=False)),
            (PRODUCERS, self._judge_producers),
            (TRANSACTIONS, self._judge_transactions),
            (EPOCHS, self._judge_epochs),
        )
        for kind, check in checks:
            section = self._head.sections[kind]
            try:
                fault = check(scanned)
            except BadFile as error:
                fault = Fault(self._code, self._place, error.position, actual=error.why)
            if fault is not None:
                at = section.start + max(fault.position, 0)
                actual = f"section {kind}: {fault.actual}"
                found.append(fault._replace(code=self._code, place=self._place, position=at, actual=actual))
        return found

    def _judge_producers(self, _: Scanned) -> Fault | None:
        told: dict[int, Producer] = producer_snapshot(self._sections[PRODUCERS])
        differs = self._producers.differs(told, self._head.end_offset, self._head.started_ms)
        if differs is None:
            return None
        producer, expected, actual = differs
        about = f"producer {producer}: "
        return Fault(self._code, self._place, -1, -1, -1, about + expected, about + actual)

    def _judge_transactions(self, _: Scanned) -> Fault | None:
        told: list[Aborted] = aborted_transactions(self._sections[TRANSACTIONS])
        for at, each in enumerate(told):
            if self._aborts.get(each.last_offset) != each.producer_id:
                actual = f"producer {each.producer_id} to {each.last_offset}"
                expected = "the marker of an aborted transaction"
                return Fault(
                    self._code, self._place, 34 * at, each.last_offset, each.last_offset + 1, expected, actual
                )
        producers = self._producers
        return check_aborted(
            self._place,
            told,
            producers.aborted,
            may_lack_from=ALWAYS,
            is_complete=producers.is_complete and not producers.has_holes,
        )

    def _judge_epochs(self, scanned: Scanned) -> Fault | None:
        told = leader_epochs(self._sections[EPOCHS])
        head = self._head
        for epoch, start in told:
            if start >= head.end_offset:
                return self._epoch_fault(f"epochs that begin below {head.end_offset}", f"{epoch} at {start}")
        starts = dict(told)
        for each in head.epochs[1:]:
            if (start := starts.get(each.epoch, -1)) != each.start_offset:
                expected = f"epoch {each.epoch} at {each.start_offset}, as the head says"
                return self._epoch_fault(expected, f"at {start}" if start >= 0 else "no such epoch")
        faults = check_epochs(
            self._place, told, scanned.runs, log_start=head.base_offset, may_lack_from=ALWAYS
        )
        return faults[0] if faults else None

    def _epoch_fault(self, expected: str, actual: str) -> Fault:
        return Fault(self._code, self._place, -1, -1, -1, expected, actual)
