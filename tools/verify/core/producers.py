"""What a log knows of its producers at some offset, made again from its batches.

Owns sequences, epochs and open transactions of each producer, the aborted transactions that follow, and how
what was made again is compared with a snapshot. Does not own files (kafka_files, log_checks).
Invariant: what cannot be known, because it lies before the first offset that was read or was compacted away,
is never held against a file.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tools.verify.core.facts import Fault
from tools.verify.core.findings import Severity, declare
from tools.verify.core.kafka_files import Aborted, Column, Producer, Sent
from tools.verify.core.tables import (
    ABORT,
    COMMIT,
    CONTROL,
    FACTS_LIMIT,
    SEQUENCE_MASK,
    TRANSACTIONAL,
    Markers,
    Table,
)

SEQUENCE_GAP = declare(
    "sequence-gap",
    Severity.ERROR,
    "Sequence numbers of a producer are missing between two of its batches, though no offset is.",
    "Records that the producer sent are not there; compare with another copy.",
)
SEQUENCE_DUPLICATE = declare(
    "sequence-duplicate",
    Severity.ERROR,
    "A batch has sequence numbers that an earlier batch of its producer had.",
    "Records are there twice.",
)
PRODUCER_EPOCH_BACK = declare(
    "producer-epoch-back",
    Severity.ERROR,
    "A batch has an older epoch of its producer than one before it.",
    "A producer wrote that had been fenced.",
)
MARKER_WITHOUT_TRANSACTION = declare(
    "marker-without-transaction",
    Severity.WARNING,
    "A marker ends a transaction that has no record in this partition.",
    "It is legal after an interrupted commit; many of them are not.",
)

KEPT: Final = 5
"""Batches that are remembered of each producer."""
EXPIRY_MS: Final = 86_400_000
"""Kafka's default of producer.id.expiration.ms."""
FAULTS_MAX: Final = 100


class _State:
    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "has_marker",
        "hole",
        "instead",
        "is_from_snapshot",
        "is_sure",
        "seen",
        "sent",
        "start",
        "timestamp",
    )

    def __init__(self, epoch: int, *, is_sure: bool) -> None:
        self.epoch = epoch
        self.sent: list[Sent] = []
        self.timestamp = -1
        self.coordinator_epoch = -1
        self.start = -1
        self.is_sure = is_sure
        """Nothing that was before is unknown."""
        self.hole = self.seen = -1
        """How many holes were before its last batch, and before its last batch or marker."""
        self.has_marker = False
        """One was seen: where its transaction begins is known from there on."""
        self.is_from_snapshot = False
        """Nothing of it was seen in the log."""
        self.instead = (-1, -1)
        """Epoch and sequence with which the next batch would show that the last one was the odd one."""


class Producers:
    """Takes the tables of a log in order, from an offset whose state is known or not."""

    def __init__(self, place: str, *, expiry_ms: int = EXPIRY_MS, is_compacted: bool = False) -> None:
        self.place = place
        """Of the batches that come."""
        self.faults: list[Fault] = []
        self.aborted: list[tuple[Aborted, bool]] = []
        """In the order of their markers; whether the last stable offset is sure."""
        self.doubted: list[tuple[str, str]] = []
        """What the log says and what the snapshot at its beginning said of the same producer."""
        self.has_holes = is_compacted
        """Offsets are missing, so that batches may have been compacted away, or could not be read."""
        self.is_thinned = is_compacted
        """Records are missing in batches, whose times may be others since."""
        self.end = -1
        self._holes = self._hole = 0
        """So many gaps between offsets were passed: what may be missing between two batches is in one."""
        self._first = 0
        """Nothing below was read."""
        self._known: dict[int, _State] = {}
        self.is_complete = False
        """Every producer that was there at the beginning is known."""
        self._expiry_ms = expiry_ms

    def begin(self, offset: int, snapshot: dict[int, Producer] | None) -> None:
        """Start at an offset with what a snapshot says; None if nothing is known. Offset 0 needs none."""
        self.end = self._first = offset
        self._known = {}
        self.is_complete = snapshot is not None or offset == 0
        for each in (snapshot or {}).values():
            state = self._known[each.producer_id] = _State(each.epoch, is_sure=True)
            state.hole = state.seen = 0
            state.is_from_snapshot = True
            state.sent = [*each.older, each.last] if each.last.last_offset >= 0 else []
            state.timestamp = each.last.timestamp
            state.coordinator_epoch = each.coordinator_epoch
            state.start = each.transaction_start

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset by producer id."""
        return {producer: state.start for producer, state in self._known.items() if state.start >= 0}

    def add(self, table: Table, markers: Markers) -> None:
        """Take the next batches."""
        before = np.concatenate(([self.end], table.end[:-1]))
        holes = np.cumsum(table.base != before) + self._holes
        if int(holes[-1]) != self._holes:
            self.has_holes = True
            self._holes = int(holes[-1])
        if bool((table.records != table.end - table.base).any()):
            self.is_thinned = True
        self.end = int(table.end[-1])
        which = np.flatnonzero(table.producer_id >= 0)
        if len(which):
            self._add(table.keep(which), holes[which], markers)

    def _add(self, table: Table, holes: Column, markers: Markers) -> None:
        """Of consecutive batches of a producer the first and the last few tell all."""
        order = np.argsort(table.producer_id, kind="stable")
        producer, epochs, first = table.producer_id[order], table.producer_epoch[order], table.sequence[order]
        last = (first + (table.end - table.base)[order] - 1) & SEQUENCE_MASK
        flags = table.attributes[order] & (TRANSACTIONAL | CONTROL)
        new = np.ones(len(order), np.bool_)
        new[1:] = (
            (producer[1:] != producer[:-1])
            | (epochs[1:] != epochs[:-1])
            | (first[1:] != (last[:-1] + 1) & SEQUENCE_MASK)
            | (flags[1:] != flags[:-1])
            | (flags[1:] & CONTROL != 0)
        )
        starts = np.flatnonzero(new)
        sizes = np.diff(starts, append=len(order))
        telling = new | (np.repeat(starts + sizes, sizes) - np.arange(len(order)) <= KEPT)
        begins = np.repeat(order[starts], sizes)[telling]
        in_turn = np.argsort(begins, kind="stable")
        rows = order[telling][in_turn]
        told = zip(
            table.position[rows].tolist(),
            table.producer_id[rows].tolist(),
            table.producer_epoch[rows].tolist(),
            table.sequence[rows].tolist(),
            table.base[rows].tolist(),
            table.end[rows].tolist(),
            table.max_timestamp[rows].tolist(),
            table.attributes[rows].tolist(),
            holes[rows].tolist(),
            new[telling][in_turn].tolist(),
            strict=True,
        )
        for position, producer_id, epoch, sequence, base, end, timestamp, attributes, hole, is_first in told:
            self._hole = hole
            if attributes & CONTROL:
                kind, coordinator_epoch = markers.get(position, (-1, -1))
                if kind in (COMMIT, ABORT):
                    is_abort = kind == ABORT
                    self._ended(position, producer_id, epoch, base, timestamp, is_abort, coordinator_epoch)
            else:
                at = (position, producer_id, epoch, sequence, base, end, timestamp)
                self._sent(*at, is_transactional=bool(attributes & TRANSACTIONAL), is_checked=is_first)

    def _state(self, producer: int, epoch: int) -> tuple[_State | None, bool]:
        """What is known of a producer, and whether that was so before; None if there are too many."""
        state = self._known.get(producer)
        if state is not None:
            return state, True
        if len(self._known) >= FACTS_LIMIT:
            self.has_holes = True
            return None, False
        state = self._known[producer] = _State(epoch, is_sure=self.is_complete and self._hole == 0)
        return state, False

    def _sent(
        self,
        position: int,
        producer: int,
        epoch: int,
        sequence: int,
        base: int,
        end: int,
        timestamp: int,
        *,
        is_transactional: bool,
        is_checked: bool,
    ) -> None:
        state, is_known = self._state(producer, epoch)
        if state is None:
            return
        if is_known and is_checked:
            self._check(state, position, epoch, sequence, base, end, timestamp)
        state.hole = state.seen = self._hole
        state.is_from_snapshot = False
        if epoch != state.epoch:
            state.epoch = epoch
            state.sent = []
        last = (sequence + end - base - 1) & SEQUENCE_MASK
        state.sent.append(Sent(last, end - 1, end - base - 1, timestamp))
        del state.sent[:-KEPT]
        state.timestamp = timestamp
        if is_transactional and state.start < 0:
            state.start = base

    def _check(
        self,
        state: _State,
        position: int,
        epoch: int,
        sequence: int,
        base: int,
        end: int,
        timestamp: int,
    ) -> None:
        """Name what Kafka would have refused. A producer that was silent for long may have been forgotten."""
        is_doubtful = state.hole != self._hole and epoch >= state.epoch
        if is_doubtful or abs(timestamp - state.timestamp) >= self._expiry_ms or sequence < 0:
            return
        follows = (state.sent[-1].last_sequence + 1) & SEQUENCE_MASK if state.sent else 0
        was_odd, state.instead = state.instead, (-1, -1)
        if (epoch, sequence) == was_odd or (not state.sent and not state.is_sure and epoch == state.epoch):
            return
        wanted = 0 if epoch > state.epoch else follows
        if epoch >= state.epoch and sequence == wanted:
            return
        if state.is_from_snapshot:
            self.doubted.append(
                (f"epoch {epoch}, sequence {sequence}", f"epoch {state.epoch}, sequence {follows}")
            )
            return
        # where one batch in a row is odd, the next goes on from the one before it
        state.instead = state.epoch, (follows + end - base) & SEQUENCE_MASK
        told = f"epoch {epoch}, sequence {sequence}"
        if epoch < state.epoch:
            self._fault(PRODUCER_EPOCH_BACK, position, base, end, f"at least epoch {state.epoch}", told)
            return
        is_again = epoch == state.epoch and 0 < (wanted - sequence) & SEQUENCE_MASK <= 1 << 30
        code = SEQUENCE_DUPLICATE if is_again else SEQUENCE_GAP
        self._fault(code, position, base, end, f"epoch {max(epoch, state.epoch)}, sequence {wanted}", told)

    def _ended(
        self,
        position: int,
        producer: int,
        epoch: int,
        offset: int,
        timestamp: int,
        is_abort: bool,
        coordinator_epoch: int,
    ) -> None:
        state, _ = self._state(producer, epoch)
        if state is None:
            return
        if epoch < state.epoch:
            told = f"epoch {epoch}"
            self._fault(PRODUCER_EPOCH_BACK, position, offset, offset + 1, f"at least {state.epoch}", told)
        if epoch != state.epoch:
            state.epoch = epoch
            state.sent = []
        state.is_from_snapshot = False
        state.timestamp = timestamp
        state.coordinator_epoch = coordinator_epoch
        had_marker, state.has_marker = state.has_marker, True
        is_known = (state.is_sure or had_marker) and state.seen in (-1, self._hole)
        state.seen = self._hole
        start, state.start = state.start, -1
        if start < 0:
            if is_known:
                text = f"a transaction of producer {producer}"
                self._fault(MARKER_WITHOUT_TRANSACTION, position, offset, offset + 1, text, "none is open")
            return
        if is_abort:
            others = [each.start for each in self._known.values() if each.start >= 0]
            stable = min(others, default=offset + 1)
            entry = Aborted(producer, start, offset, stable)
            self.aborted.append((entry, self.is_complete and not self.has_holes))

    def _fault(self, code: str, position: int, first: int, end: int, expected: str, actual: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(code, self.place, position, first, end, expected, actual))

    # --- comparing ---

    def differs(
        self, snapshot: dict[int, Producer], offset: int, modified_ms: int
    ) -> tuple[int, str, str] | None:
        """Whether a snapshot at `offset`, to which all was taken, says something else: producer id, what
        follows from the log, what the snapshot says. `modified_ms`: when it was written, at the latest."""
        for producer_id in sorted(self._known.keys() | snapshot.keys()):
            state, told = self._known.get(producer_id), snapshot.get(producer_id)
            if told is None:
                assert state is not None
                is_forgotten = state.start < 0 and state.timestamp + self._expiry_ms <= modified_ms
                if not is_forgotten and not self.has_holes:
                    return producer_id, _shown(state), "absent"
            elif state is None:
                if self.is_complete and not self.has_holes:
                    return producer_id, "absent", _shown_told(told)
            elif max(told.last.last_offset, told.transaction_start) >= offset or not self._agrees(
                state, told
            ):
                return producer_id, _shown(state), _shown_told(told)
        return None

    def _agrees(self, state: _State, told: Producer) -> bool:
        last = state.sent[-1] if state.sent else Sent(-1, -1, 0, -1)
        if self.has_holes and last.last_offset != told.last.last_offset:
            return True
        if state.epoch != told.epoch:
            return False
        is_before = not state.is_sure and told.last.last_offset < self._first
        if not (is_before and not state.sent) and last[:3] != told.last[:3]:
            return False
        is_whole = not self.has_holes and not self.is_thinned
        if state.timestamp != told.last.timestamp and is_whole:
            return False
        is_ended = state.has_marker or state.is_sure
        if state.coordinator_epoch != told.coordinator_epoch and is_ended:
            return self.has_holes
        if not self._agrees_on_transaction(state.start, told.transaction_start, is_sure=is_ended):
            return False
        older = state.sent[:-1][-len(told.older) :] if told.older else []
        return not is_whole or tuple(older) == told.older[len(told.older) - len(older) :]

    def _agrees_on_transaction(self, found: int, told: int, *, is_sure: bool) -> bool:
        if found == told:
            return True
        return self.has_holes or (not is_sure and told < self._first)


def _shown(state: _State) -> str:
    last = state.sent[-1] if state.sent else Sent(-1, -1, 0, -1)
    return (
        f"epoch {state.epoch}, sequence {last.last_sequence} at offset {last.last_offset}, "
        f"transaction at {state.start}"
    )


def _shown_told(told: Producer) -> str:
    return (
        f"epoch {told.epoch}, sequence {told.last.last_sequence} at offset {told.last.last_offset}, "
        f"transaction at {told.transaction_start}"
    )
