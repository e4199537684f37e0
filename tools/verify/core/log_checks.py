"""Whether the files beside a segment say what follows from its batches.

Owns the offset, time and transaction index and the leader epochs, each compared with what was read. Does not
own their formats (kafka_files), producers (producers) or which files there are (directory). Invariant: a file
is held only against batches that are there and sound; one fault names a file, at its first wrong entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from tools.verify.core.batches import COUNT_MISMATCH, Scanned
from tools.verify.core.facts import Fault, Run
from tools.verify.core.findings import Severity, declare
from tools.verify.core.kafka_files import Aborted, Column, Entries
from tools.verify.core.tables import Table

INDEX_DIFFERS = declare(
    "index-differs",
    Severity.ERROR,
    "An offset index does not lead to the batches that it names.",
    "Remove the file while the broker is stopped; it is made again from the log.",
)
TIMEINDEX_DIFFERS = declare(
    "timeindex-differs",
    Severity.ERROR,
    "A time index does not have the largest timestamps of its segment.",
    "Remove the file while the broker is stopped; it is made again from the log.",
)
TXNINDEX_DIFFERS = declare(
    "txnindex-differs",
    Severity.ERROR,
    "A transaction index does not have the aborted transactions of its segment.",
    "Readers of committed data may see aborted records or miss others; take the segment from a replica.",
)
EPOCHS_DIFFER = declare(
    "epochs-differ",
    Severity.ERROR,
    "The file of leader epochs does not say where the batches change theirs.",
    "Take the log from a replica: a follower would cut its own at the wrong offset.",
)
EPOCH_MISMATCH = declare(
    "epoch-mismatch",
    Severity.ERROR,
    "A batch has another leader epoch than the log at its offsets.",
    "No checksum covers the epoch; compare with another copy.",
)
EPOCH_BACK = declare(
    "epoch-back",
    Severity.ERROR,
    "A batch has an older leader epoch than one before it.",
    "No checksum covers the epoch; compare with another copy.",
)


class OffsetIndexCheck:
    """Each entry names a batch by its last offset and its position."""

    def __init__(self, place: str, base: int, entries: Entries) -> None:
        self._place = place
        self._offsets = entries.first + base
        self._positions = entries.second
        self._rest = entries.rest
        self._order = np.argsort(self._positions, kind="stable")
        self._sorted = self._positions[self._order]
        self._fits = np.zeros(len(self._positions), np.bool_)

    def add(self, table: Table) -> None:
        low = int(np.searchsorted(self._sorted, table.position[0]))
        high = int(np.searchsorted(self._sorted, table.position[-1], "right"))
        if low == high:
            return
        which = self._order[low:high]
        rows = np.searchsorted(table.position, self._positions[which])
        fits = table.position[rows] == self._positions[which]
        fits &= table.end[rows] - 1 == self._offsets[which]
        self._fits[which] = fits

    def fault(self, scanned: Scanned, *, is_open: bool) -> Fault | None:
        """What is wrong, once the segment was read. `is_open`: a piece may lie behind its batches."""
        wrong = ~self._fits
        wrong[1:] |= (self._positions[1:] <= self._positions[:-1]) & self._fits[:-1]
        for start, end in _damaged(scanned, is_open=is_open):
            wrong &= (self._positions < start) | (self._positions >= end)
        return _first_wrong(
            INDEX_DIFFERS, self._place, wrong, self._offsets, self._positions, self._rest, 8, "byte"
        )


class TimeIndexCheck:
    """Each entry names the batch that had the largest timestamp so far, by its last offset."""

    def __init__(self, place: str, base: int, entries: Entries) -> None:
        self._place = place
        self._timestamps = entries.first
        self._offsets = entries.second + base
        self._rest = entries.rest
        self._order = np.argsort(self._offsets, kind="stable")
        self._sorted = self._offsets[self._order]
        self._fits = np.zeros(len(self._offsets), np.bool_)
        self._is_largest = np.zeros(len(self._offsets), np.bool_)
        self._largest = -1

    def add(self, table: Table) -> None:
        before = np.maximum.accumulate(np.concatenate(([self._largest], table.max_timestamp)))
        self._largest = int(before[-1])
        low = int(np.searchsorted(self._sorted, table.base[0]))
        high = int(np.searchsorted(self._sorted, table.end[-1]))
        if low == high:
            return
        which = self._order[low:high]
        rows = np.searchsorted(table.end, self._offsets[which], "right")
        self._fits[which] = (table.end[rows] - 1 == self._offsets[which]) & (
            table.max_timestamp[rows] == self._timestamps[which]
        )
        self._is_largest[which] = before[rows] < self._timestamps[which]

    def fault(self, scanned: Scanned, *, is_open: bool, is_final: bool) -> Fault | None:
        """What is wrong, once the segment was read. `is_final`: it must have the largest of all."""
        wrong = ~self._fits
        damage = damage_of(scanned)
        if not damage:
            wrong |= ~self._is_largest
        wrong[1:] |= (self._timestamps[1:] <= self._timestamps[:-1]) & self._fits[:-1]
        for fault in damage:
            wrong &= (self._offsets < fault.first) | ((fault.end >= 0) & (self._offsets >= fault.end))
        if is_open and scanned.runs:
            wrong &= self._offsets < scanned.runs[-1].end
        found = _first_wrong(
            TIMEINDEX_DIFFERS, self._place, wrong, self._offsets, self._timestamps, self._rest, 12, "time"
        )
        last = int(self._timestamps[-1]) if len(self._timestamps) else -1
        if found is None and is_final and not damage and len(self._timestamps) and last != self._largest:
            position = 12 * len(self._timestamps)
            found = Fault(
                TIMEINDEX_DIFFERS, self._place, position, expected=f"time {self._largest}", actual="its end"
            )
        return found


def _first_wrong(
    code: str, place: str, wrong: Column, offsets: Column, values: Column, rest: int, size: int, what: str
) -> Fault | None:
    which = np.flatnonzero(wrong)
    if len(which):
        at = int(which[0])
        more = f", and {len(which) - 1} more" if len(which) > 1 else ""
        offset = int(offsets[at])
        told = f"offset {offset} with {what} {int(values[at])}{more}"
        return Fault(code, place, at * size, offset, offset + 1, "an entry that its batches have", told)
    if rest:
        at = len(offsets) * size
        return Fault(code, place, at, expected="whole entries", actual=f"{rest} bytes more")
    return None


def damage_of(scanned: Scanned) -> list[Fault]:
    """The faults that leave offsets without bytes: where only the count is wrong, all else holds."""
    return [fault for fault in scanned.faults if fault.code != COUNT_MISMATCH]


def _damaged(scanned: Scanned, *, is_open: bool) -> list[tuple[int, int]]:
    """The stretches of bytes that belong to no sound batch."""
    starts = sorted(run.position for run in scanned.runs)
    found: list[tuple[int, int]] = []
    for fault in damage_of(scanned):
        at = bisect_right(starts, fault.position)
        found.append((fault.position, starts[at] if at < len(starts) else scanned.size))
    if is_open:
        found.append((scanned.valid_end, 1 << 62))
    return found


def check_aborted(
    place: str,
    told: Sequence[Aborted],
    made: Sequence[tuple[Aborted, bool]],
    *,
    may_lack_from: int,
    is_complete: bool,
) -> Fault | None:
    """Compare a transaction index with the transactions whose markers are in the segment.

    `made`: with whether all of it is sure. `may_lack_from`: offset from which a crash may have lost entries.
    `is_complete`: no batch is missing, so what was not made must not be there.
    """
    by_marker = {each.last_offset: (at, each) for at, each in enumerate(told)}
    expected = {each.last_offset: (each, is_sure) for each, is_sure in made}
    for at, entry in enumerate(told):
        if entry.last_offset not in expected and is_complete:
            return _txn_fault(place, at, "no aborted transaction", entry)
    for offset, (entry, is_sure) in expected.items():
        if offset not in by_marker:
            if offset >= may_lack_from:
                continue
            at = sum(1 for each in told if each.last_offset < offset)
            return Fault(
                TXNINDEX_DIFFERS, place, 34 * at, entry.first_offset, offset + 1, _shown(entry), "absent"
            )
        at, found = by_marker[offset]
        agrees = found == entry if is_sure else found.producer_id == entry.producer_id
        if not agrees:
            return _txn_fault(place, at, _shown(entry), found)
    markers = [each.last_offset for each in told]
    for at in range(1, len(markers)):
        if markers[at] <= markers[at - 1]:
            return _txn_fault(place, at, "ascending markers", told[at])
    return None


def _txn_fault(place: str, at: int, expected: str, found: Aborted) -> Fault:
    first, last = found.first_offset, found.last_offset
    return Fault(TXNINDEX_DIFFERS, place, 34 * at, first, max(first, last + 1), expected, _shown(found))


def _shown(entry: Aborted) -> str:
    return (
        f"producer {entry.producer_id} from {entry.first_offset} to {entry.last_offset}, "
        f"stable to {entry.last_stable_offset}"
    )


def check_epochs(
    place: str,
    epochs: Sequence[tuple[int, int]],
    runs: Sequence[Run],
    *,
    log_start: int,
    may_lack_from: int,
) -> list[Fault]:
    """Compare the file of leader epochs with the runs of a log, which are in order.

    A run that goes back, against those around it that the file knows, is damage of its own; any other
    difference is one of the file. `may_lack_from`: offset from which on the newest epochs may not have been
    written yet. Below the log's start the file need not know anything.
    """
    starts = [start for _, start in epochs]
    log_start = min([log_start, *starts[:1]])
    faults: list[Fault] = []
    differs: Fault | None = None
    odd = [_odd(epochs, starts, run, log_start) for run in runs]
    after = _after(runs, odd)
    largest = -1
    for run, wrong, following in zip(runs, odd, after, strict=True):
        if wrong is None or (
            run.leader_epoch > (epochs[-1][0] if epochs else -1) and run.first >= may_lack_from
        ):
            is_back = run.leader_epoch < largest
            if is_back:
                faults.append(_epoch_fault(EPOCH_BACK, run, f"at least {largest}"))
            largest = max(largest, run.leader_epoch)
            continue
        told, inside = wrong
        if run.leader_epoch < largest or 0 <= following < run.leader_epoch:
            code = EPOCH_MISMATCH if epochs else EPOCH_BACK
            faults.append(_epoch_fault(code, run, str(told if told >= 0 else max(largest, following))))
        elif told > run.leader_epoch:
            faults.append(_epoch_fault(EPOCH_MISMATCH, run, str(told)))
        elif told == run.leader_epoch:
            begun = epochs[bisect_right(starts, inside) - 1][0]
            faults.append(_epoch_fault(EPOCH_MISMATCH, run._replace(first=inside), str(begun)))
        else:
            largest = max(largest, run.leader_epoch)
            first = max(run.first, log_start)
            actual = f"epoch {told}" if told >= 0 else "no epoch"
            expected = f"epoch {run.leader_epoch} at {first}"
            differs = differs or Fault(EPOCHS_DIFFER, place, -1, first, run.end, expected, actual)
    return faults if differs is None else [differs, *faults]


def _odd(
    epochs: Sequence[tuple[int, int]], starts: Sequence[int], run: Run, log_start: int
) -> tuple[int, int] | None:
    """What the file says where a run begins, and where in it another epoch begins; None if both agree."""
    first = max(run.first, log_start)
    if first >= run.end:
        return None
    which = bisect_right(starts, first) - 1
    told = epochs[which][0] if which >= 0 else -1
    inside = starts[which + 1] if which + 1 < len(starts) and starts[which + 1] < run.end else -1
    return None if told == run.leader_epoch and inside < 0 else (told, inside)


def _after(runs: Sequence[Run], odd: Sequence[object]) -> list[int]:
    """For each run, the epoch of the next one of which the file says the same."""
    found: list[int] = []
    following = -1
    for run, wrong in zip(reversed(runs), reversed(odd), strict=True):
        found.append(following)
        if wrong is None:
            following = run.leader_epoch
    return found[::-1]


def _epoch_fault(code: str, run: Run, expected: str) -> Fault:
    return Fault(code, run.place, run.position, run.first, run.end, expected, str(run.leader_epoch))
