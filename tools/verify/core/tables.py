"""The facts of one place, from columns with the heads of its batches.

Owns runs, producers' sequences, transactions' beginnings and ends, and digests, and the folding of each over
many tables. Does not own finding batches or judging them (batches). Invariant: the facts do not depend on how
the batches were divided into tables; of each kind at most FACTS_LIMIT are kept, the others counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tools.verify.core.facts import BUCKET_BITS, Digest, Mark, ProducerRun, Run

Column = npt.NDArray[Any]

TRANSACTIONAL: Final = 16
CONTROL: Final = 32
SEQUENCE_MASK: Final = 0x7FFFFFFF
BEGIN: Final = 0
COMMIT: Final = 1
ABORT: Final = 2

FACTS_LIMIT: Final = 100_000
"""Of each kind, in one place: hostile bytes stay within memory."""
FEW: Final = 12
"""Batches that cost less one by one than the columns of a table do."""
GAPS_SPLIT: Final = 256
"""So many holes between offsets end a run each; more are only noted in it."""
SUM_MASK: Final = (1 << 63) - 1

Markers = dict[int, tuple[int, int]]
"""By position of the control batch: (COMMIT, ABORT or another kind below 0, coordinator epoch)."""


class Table(NamedTuple):
    """The heads of consecutive sound batches as columns of numbers."""

    position: Column
    size: Column
    base: Column
    end: Column
    """Exclusive."""
    epoch: Column
    crc: Column
    attributes: Column
    max_timestamp: Column
    producer_id: Column
    producer_epoch: Column
    sequence: Column
    records: Column

    def keep(self, which: Column | slice) -> Table:
        return Table(*(column[which] for column in self))


class Facts:
    """Folds tables, which must come in order, into the facts of a place."""

    def __init__(self, place: str, end: int) -> None:
        self.place = place
        self.end = end
        """The lowest offset that the next batch may have."""
        self.dropped = 0
        self._next_position = -1
        self._epoch = -1
        self._splits_left = GAPS_SPLIT
        self._runs: list[list[int]] = []
        self._open: dict[int, list[int]] = {}
        """The last run of each producer id."""
        self._producers: list[ProducerRun] = []
        self._marks: list[Mark] = []
        self._transactions: set[int] = set()
        """Producer ids with an open one."""
        self._digests: list[list[int]] = []

    def add(self, table: Table, markers: Markers) -> None:
        """Take batches in order that lie behind those before; there is at least one."""
        if len(table.base) <= FEW:
            self.add_few(zip(*(column.tolist() for column in table), strict=True), markers)
            return
        self._add_runs(table)
        self._add_digests(table)
        flags = table.attributes & (TRANSACTIONAL | CONTROL)
        if bool(flags.any()):
            self._add_marks(table.keep(np.flatnonzero(flags)), markers)
        sent = np.flatnonzero((table.producer_id >= 0) & (table.sequence >= 0) & (flags & CONTROL == 0))
        if len(sent):
            self._add_producers(table.keep(sent) if len(sent) < len(flags) else table)
        self.end = int(table.end[-1])

    def add_few(self, rows: Iterable[Sequence[int]], markers: Markers) -> None:
        """The same for rows of a table."""
        for row in rows:
            self._add_one(markers, *row)

    def finish(self) -> tuple[list[Run], list[ProducerRun], list[Mark], list[Digest]]:
        runs = [Run(self.place, *_nine(run), has_gaps=bool(run[9])) for run in self._runs]
        for run in self._open.values():
            self._close(run)
        self._open.clear()
        self._producers.sort(key=lambda run: (run.producer_id, run.first))
        digests = [Digest(self.place, *digest) for digest in self._digests]
        return runs, self._producers, self._marks, digests

    def _add_one(
        self,
        markers: Markers,
        position: int,
        size: int,
        base: int,
        end: int,
        epoch: int,
        crc: int,
        attributes: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        records: int,
    ) -> None:
        is_new = self._next_position != position or self._epoch != epoch
        is_hole = base != self.end and not is_new
        if is_hole and self._splits_left:
            self._splits_left -= 1
            is_new, is_hole = True, False
        is_control = bool(attributes & CONTROL)
        has_gaps = is_hole or records != end - base
        counts = 1, max(records, 0), int(is_control)
        self._take_run((position, size, base, end, epoch, *counts, max_timestamp, has_gaps), is_new=is_new)
        self._next_position, self._epoch = position + size, epoch
        mixed = _mix_one(base, size, epoch, crc)
        self._take_digest((base >> BUCKET_BITS, base, end, 1, mixed & 0xFFFFFFFF, mixed >> 32))
        if is_control or attributes & TRANSACTIONAL:
            self._take_mark(position, producer_id, producer_epoch, base, markers, is_end=is_control)
        if producer_id >= 0 and sequence >= 0 and not is_control:
            last = sequence + end - base - 1 & SEQUENCE_MASK
            self._take_sent((producer_id, producer_epoch, sequence, last, base, end, max_timestamp))
        self.end = end

    def _add_runs(self, table: Table) -> None:
        position, base, end, epoch = table.position, table.base, table.end, table.epoch
        new = np.empty(len(base), np.bool_)
        new[0] = self._next_position != int(position[0]) or self._epoch != int(epoch[0])
        new[1:] = (epoch[1:] != epoch[:-1]) | (position[1:] != position[:-1] + table.size[:-1])
        holes = np.empty(len(base), np.bool_)
        holes[0] = int(base[0]) != self.end
        holes[1:] = base[1:] != end[:-1]
        holes &= ~new
        if bool(holes.any()):
            split = np.flatnonzero(holes)[: self._splits_left]
            self._splits_left -= len(split)
            new[split] = True
            holes[split] = False
        holes |= table.records != end - base
        starts = np.flatnonzero(new) if new[0] else np.concatenate(([0], np.flatnonzero(new)))
        lasts = np.append(starts[1:], len(base)) - 1
        rows = zip(
            position[starts].tolist(),
            np.add.reduceat(table.size, starts).tolist(),
            base[starts].tolist(),
            end[lasts].tolist(),
            epoch[starts].tolist(),
            (lasts - starts + 1).tolist(),
            np.add.reduceat(np.maximum(table.records, 0), starts).tolist(),
            np.add.reduceat((table.attributes & CONTROL) >> 5, starts).tolist(),
            np.maximum.reduceat(table.max_timestamp, starts).tolist(),
            np.logical_or.reduceat(holes, starts).tolist(),
            strict=True,
        )
        is_new = bool(new[0])
        for row in rows:
            self._take_run(row, is_new=is_new)
            is_new = True
        self._next_position = int(position[-1] + table.size[-1])
        self._epoch = int(epoch[-1])

    def _take_run(self, row: tuple[int, ...], *, is_new: bool) -> None:
        """Add to the last run, or take a new one."""
        if not is_new and self._runs:
            run = self._runs[-1]
            run[1] += row[1]
            run[3] = row[3]
            for field in (5, 6, 7):
                run[field] += row[field]
            run[8] = max(run[8], row[8])
            run[9] |= row[9]
        elif len(self._runs) < FACTS_LIMIT:
            self._runs.append(list(row))
        else:
            self.dropped += 1

    def _add_digests(self, table: Table) -> None:
        mixed = mix(table)
        buckets = table.base >> BUCKET_BITS
        starts = np.concatenate(([0], np.flatnonzero(buckets[1:] != buckets[:-1]) + 1))
        lasts = np.append(starts[1:], len(buckets)) - 1
        rows = zip(
            buckets[starts].tolist(),
            table.base[starts].tolist(),
            table.end[lasts].tolist(),
            (lasts - starts + 1).tolist(),
            np.add.reduceat((mixed & np.uint64(0xFFFFFFFF)).astype(np.int64), starts).tolist(),
            np.add.reduceat((mixed >> np.uint64(32)).astype(np.int64), starts).tolist(),
            strict=True,
        )
        for row in rows:
            self._take_digest(row)

    def _take_digest(self, row: tuple[int, ...]) -> None:
        digest = self._digests[-1] if self._digests else None
        if digest is not None and digest[0] == row[0]:
            digest[2] = row[2]
            for field in (3, 4, 5):
                digest[field] = digest[field] + row[field] & SUM_MASK
        elif len(self._digests) < FACTS_LIMIT:
            self._digests.append(list(row))
        else:
            self.dropped += 1

    def _add_marks(self, table: Table, markers: Markers) -> None:
        is_control = table.attributes & CONTROL != 0
        order = np.argsort(table.producer_id, kind="stable")
        producer, control = table.producer_id[order], is_control[order]
        may_begin = np.ones(len(order), np.bool_)
        may_begin[1:] = (producer[1:] != producer[:-1]) | control[:-1]
        telling = np.sort(order[control | may_begin])
        rows = zip(
            table.position[telling].tolist(),
            table.producer_id[telling].tolist(),
            table.producer_epoch[telling].tolist(),
            table.base[telling].tolist(),
            is_control[telling].tolist(),
            strict=True,
        )
        for position, producer_id, epoch, offset, is_end in rows:
            self._take_mark(position, producer_id, epoch, offset, markers, is_end=is_end)

    def _take_mark(
        self, position: int, producer_id: int, epoch: int, offset: int, markers: Markers, *, is_end: bool
    ) -> None:
        """Take a batch of a transaction, or the marker of its end."""
        kind, coordinator_epoch = BEGIN, -1
        if is_end:
            kind, coordinator_epoch = markers.get(position, (-1, -1))
            if kind not in (COMMIT, ABORT):
                return
            self._transactions.discard(producer_id)
        elif producer_id in self._transactions:
            return
        else:
            self._transactions.add(producer_id)
        if len(self._marks) < FACTS_LIMIT:
            self._marks.append(Mark(self.place, producer_id, epoch, offset, kind, coordinator_epoch))
        else:
            self.dropped += 1

    def _add_producers(self, table: Table) -> None:
        order = np.argsort(table.producer_id, kind="stable")
        producer, epoch = table.producer_id[order], table.producer_epoch[order]
        first, base, end = table.sequence[order], table.base[order], table.end[order]
        last = (first + (end - base) - 1) & SEQUENCE_MASK
        new = np.ones(len(order), np.bool_)
        new[1:] = (
            (producer[1:] != producer[:-1])
            | (epoch[1:] != epoch[:-1])
            | (first[1:] != (last[:-1] + 1) & SEQUENCE_MASK)
        )
        starts = np.flatnonzero(new)
        lasts = np.append(starts[1:], len(order)) - 1
        rows = zip(
            producer[starts].tolist(),
            epoch[starts].tolist(),
            first[starts].tolist(),
            last[lasts].tolist(),
            base[starts].tolist(),
            end[lasts].tolist(),
            table.max_timestamp[order][lasts].tolist(),
            strict=True,
        )
        for row in rows:
            self._take_sent(row)

    def _take_sent(self, row: tuple[int, ...]) -> None:
        """Add to what a producer sent last, or begin anew."""
        run = self._open.get(row[0])
        if run is not None and run[1] == row[1] and row[2] == (run[3] + 1) & SEQUENCE_MASK:
            run[3], run[5], run[6] = row[3], row[5], row[6]
            return
        if run is not None:
            self._close(run)
        elif len(self._open) >= FACTS_LIMIT:
            self.dropped += 1
            return
        self._open[row[0]] = list(row)

    def _close(self, run: list[int]) -> None:
        if len(self._producers) < FACTS_LIMIT:
            self._producers.append(ProducerRun(self.place, *run))
        else:
            self.dropped += 1


def _nine(run: list[int]) -> tuple[int, int, int, int, int, int, int, int, int]:
    position, size, first, end, epoch, batches, records, control, max_timestamp, _ = run
    return position, size, first, end, epoch, batches, records, control, max_timestamp


def mix(table: Table) -> Column:
    """64 bits of each batch's base offset, length, leader epoch and CRC (the finalizer of MurmurHash3)."""
    mixed = table.base.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= table.size.astype(np.uint64) << np.uint64(32) | table.crc
    mixed += (table.epoch & 0xFFFFFFFF).astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))


def _mix_one(base: int, size: int, epoch: int, crc: int) -> int:
    """What `mix` is of one batch."""
    mixed = base * 0x9E3779B97F4A7C15 & _WORD ^ (size << 32 | crc)
    mixed = mixed + (epoch & 0xFFFFFFFF) * 0xC2B2AE3D27D4EB4F & _WORD
    mixed = (mixed ^ mixed >> 33) * 0xFF51AFD7ED558CCD & _WORD
    mixed = (mixed ^ mixed >> 33) * 0xC4CEB9FE1A85EC53 & _WORD
    return mixed ^ mixed >> 33


_WORD: Final = (1 << 64) - 1
