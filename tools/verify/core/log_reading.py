"""A log of a data directory, read once and compared with the files beside it.

Owns the order in which a log is read, and what an unclean end leaves legally. Does not own names
(directory), formats (kafka_files), batches (batches) or how files are compared (log_checks, producers).
Invariant: of each file at most the bytes that the listing saw are read, so a broker may go on appending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tools.verify.core.batches import OFFSET_BACK, PIECE, RunScanner, Scanned
from tools.verify.core.directory import (
    CHECKPOINT_OUTSIDE,
    EPOCHS,
    LOG_STARTS,
    RECOVERY,
    SMALL_FILE,
    WATERMARKS,
    Log,
    segments,
)
from tools.verify.core.facts import Fault, LocalLog, RecordDigest, Run, Vanished
from tools.verify.core.feeding import feed_from
from tools.verify.core.findings import Severity, declare
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
from tools.verify.core.log_checks import (
    EPOCHS_DIFFER,
    INDEX_DIFFERS,
    TIMEINDEX_DIFFERS,
    TXNINDEX_DIFFERS,
    OffsetIndexCheck,
    TimeIndexCheck,
    check_aborted,
    check_epochs,
    damage_of,
)
from tools.verify.core.plan import LIMITLESS
from tools.verify.core.producers import EXPIRY_MS, Producers
from tools.verify.core.record_sums import RecordSums
from tools.verify.core.stores import Gone, Source, TooLarge
from tools.verify.core.tables import Markers, Table

UNCLEAN_TAIL = declare(
    "unclean-tail",
    Severity.WARNING,
    "Behind the last batch of a log that was not closed lies a piece of one.",
    "Recovery cuts it off at the next start; nothing of it was confirmed.",
)
SNAPSHOT_DIFFERS = declare(
    "snapshot-differs",
    Severity.ERROR,
    "A snapshot of producers does not say what follows from the log.",
    "Remove the file while the broker is stopped; it is made again from the log.",
)


class LogFacts(NamedTuple):
    """What a log is."""

    log: LocalLog | None
    """None from a part that does not reach its end."""
    scans: list[Scanned]
    """Of its segments, in order."""
    faults: list[Fault]
    """Those of the scans too."""
    vanished: list[Vanished]
    size: int
    """Bytes that were read, of all files."""
    records: list[RecordDigest]
    """Of its segments, if they were asked for."""


class _Pair(Protocol):
    def add(self, table: Table) -> None: ...


def check_log(
    source: Source,
    number: int,
    log: Log,
    *,
    bases: tuple[int, int] = (0, 1 << 62),
    expiry_ms: int = EXPIRY_MS,
    has_records: bool = False,
) -> LogFacts:
    """Read a log, or the segments of it whose base offsets are in [first, end). SourceFailed when the disk
    does not answer. `expiry_ms`: after which silence its broker forgets a producer.
    `has_records`: sum the records as well, to compare them with a manifest."""
    return _LogCheck(source, number, log, bases, expiry_ms, has_records=has_records).facts()


class _LogCheck:
    def __init__(
        self,
        source: Source,
        number: int,
        log: Log,
        bases: tuple[int, int],
        expiry_ms: int,
        *,
        has_records: bool,
    ) -> None:
        self._has_records = has_records
        self._records: list[RecordDigest] = []
        self._source = source
        self._number = number
        self._log = log
        self._place = f"{number}:{log.name}"
        self._files = segments(log.files)
        self._all = log.bases
        self._bases = [base for base in self._all if bases[0] <= base < bases[1]]
        self._is_last = not self._all or bases[1] > self._all[-1]
        self._unsure_from = max(log.recovery_point, 0) if log.is_live else 1 << 62
        """From this offset on a crash may have left less than there was."""
        self._producers = Producers("", expiry_ms=expiry_ms)
        self._snapshots: list[int] = []
        self._scans: list[Scanned] = []
        self._faults: list[Fault] = []
        self._vanished: list[Vanished] = []
        self._size = 0
        self._end = 0
        self._has_lost_end = False
        """Where the log ends is not known."""

    def facts(self) -> LogFacts:
        self._begin()
        done = -1
        nexts = dict(zip(self._all, self._all[1:], strict=False))
        for base in self._bases:
            if base < done:
                continue  # a segment that is about to take its place covers it
            following = nexts.get(base, -1)
            end = self._check_segment(base, following)
            if end is not None and self._files[base, "log"].key.endswith(".swap"):
                done = end
        self._compare_snapshots(self._end + 1)
        for offset in self._snapshots:
            self._snapshot(offset)  # what it should say is not known, whether it can be read is
        return self._finish()

    def _begin(self) -> None:
        """Take up what was known of producers where the first segment begins."""
        first = self._bases[0] if self._bases else 0
        self._end = first
        snapshot = self._snapshot(first) if first > 0 else None
        self._producers.begin(first, snapshot)
        self._snapshots = sorted(base for base, kind in self._files if kind == "snapshot" and base > first)

    def _check_segment(self, base: int, following: int) -> int | None:
        listed = self._files[base, "log"]
        place = f"{self._number}:{listed.key}"
        offsets, offsets_fault = self._offset_index(base)
        times, times_fault = self._time_index(base)
        pairs: list[_Pair] = [each for each in (offsets, times) if each is not None]
        self._producers.place = place
        faults_before, aborted_before = len(self._producers.faults), len(self._producers.aborted)

        def on_table(table: Table, markers: Markers) -> None:
            for pair in pairs:
                pair.add(table)
            self._add(table, markers)

        if base != self._end and self._producers.end >= 0:
            self._producers.has_holes = True
        sums = RecordSums(place) if self._has_records else None
        scanner = RunScanner(place, first=base, on_table=on_table, on_data=None if sums is None else sums.add)
        try:
            feed_from(scanner, self._source, listed.key, 0, listed.size)
        except Gone:
            # Nobody knows how far the last one went: what was in it may be somewhere else by now.
            self._vanished.append(Vanished(place, base, following if following >= 0 else LIMITLESS))
            self._producers.has_holes = self._has_lost_end = True
            return None
        scanned = self._judge_tail(scanner.finish(), base, following)
        self._size += scanned.size
        self._scans.append(scanned)
        if damage_of(scanned):
            self._producers.has_holes = True
        self._end = max(self._end, scanned.runs[-1].end if scanned.runs else base)
        sound_to = scanned.runs[-1].position + scanned.runs[-1].size if scanned.runs else 0
        self._has_lost_end = any(fault.position >= sound_to for fault in scanned.faults)
        is_open = following < 0 and self._log.is_live
        is_final = following >= 0 and self._end <= self._unsure_from
        is_swap = listed.key.endswith(".swap")  # it covers those behind it
        if following not in self._bases and scanned.runs and not is_swap:
            self._faults += _past(scanned.runs[-1], following)
        self._faults += scanned.faults
        if sums is not None:
            self._records += sums.finish()
            told = {fault.position for fault in scanned.faults}
            self._faults += [fault for fault in sums.faults if fault.position not in told]
        self._faults += self._producers.faults[faults_before:]
        if offsets is not None:
            offsets_fault = offsets.fault(scanned, is_open=is_open)
        if times is not None:
            times_fault = times.fault(scanned, is_open=is_open, is_final=is_final)
        txn_fault = self._check_aborted(base, self._producers.aborted[aborted_before:])
        self._faults += [each for each in (offsets_fault, times_fault, txn_fault) if each is not None]
        return self._end

    def _judge_tail(self, scanned: Scanned, base: int, following: int) -> Scanned:
        """Tell what recovery would cut off from damage."""
        tail = [fault for fault in scanned.faults if fault.position >= scanned.valid_end]
        end = scanned.runs[-1].end if scanned.runs else base
        if not tail or following >= 0 or end < self._unsure_from:
            return scanned
        cut = tail[0]._replace(code=UNCLEAN_TAIL)
        return scanned._replace(faults=[*(each for each in scanned.faults if each not in tail), cut])

    # --- indexes ---

    def _offset_index(self, base: int) -> tuple[OffsetIndexCheck | None, Fault | None]:
        place, data, fault = self._small(base, "index", INDEX_DIFFERS)
        return (None if data is None else OffsetIndexCheck(place, base, offset_entries(data))), fault

    def _time_index(self, base: int) -> tuple[TimeIndexCheck | None, Fault | None]:
        place, data, fault = self._small(base, "timeindex", TIMEINDEX_DIFFERS)
        return (None if data is None else TimeIndexCheck(place, base, time_entries(data))), fault

    def _check_aborted(self, base: int, made: Sequence[tuple[Aborted, bool]]) -> Fault | None:
        place, data, fault = self._small(base, "txnindex", TXNINDEX_DIFFERS)
        if fault is not None:
            return fault
        try:
            told = aborted_transactions(data or b"")
        except BadFile as error:
            return Fault(TXNINDEX_DIFFERS, place, error.position, actual=error.why)
        producers = self._producers
        return check_aborted(
            place,
            told,
            made,
            may_lack_from=self._unsure_from,
            is_complete=producers.is_complete and not producers.has_holes,
        )

    def _small(self, base: int, kind: str, code: str) -> tuple[str, bytes | None, Fault | None]:
        """The bytes of a file beside a segment, as far as the listing saw them; None if there is none."""
        listed = self._files.get((base, kind))
        if listed is None:
            return f"{self._place}/{base:020d}.{kind}", None, None
        place = f"{self._number}:{listed.key}"
        if listed.size > SMALL_FILE:
            return place, None, Fault(code, place, SMALL_FILE, actual=f"{listed.size} bytes")
        try:
            data = self._source.read(listed.key, 0, listed.size)
        except Gone:
            return place, None, None
        self._size += len(data)
        return place, data, None

    # --- producers ---

    def _add(self, table: Table, markers: Markers) -> None:
        """Take batches, comparing snapshots at their offsets on the way."""
        done = 0
        while self._snapshots and self._snapshots[0] <= int(table.base[-1]):
            upto = int(table.base.searchsorted(self._snapshots[0]))
            if upto > done:
                self._producers.add(table.keep(slice(done, upto)), markers)
            self._compare_snapshots(self._snapshots[0] + 1)
            done = upto
        if done < len(table.base):
            self._producers.add(table.keep(slice(done, None)), markers)

    def _compare_snapshots(self, before: int) -> None:
        """Compare the snapshots at offsets below `before` with what is known now."""
        while self._snapshots and self._snapshots[0] < before:
            offset = self._snapshots.pop(0)
            told = self._snapshot(offset)
            listed = self._files[offset, "snapshot"]
            if told is None:
                continue
            found = self._producers.differs(told, offset, listed.modified_ms)
            if found is not None:
                producer, expected, actual = found
                place = f"{self._number}:{listed.key}"
                text = f"producer {producer}: "
                self._faults.append(
                    Fault(SNAPSHOT_DIFFERS, place, -1, offset, offset + 1, text + expected, text + actual)
                )

    def _snapshot(self, offset: int) -> dict[int, Producer] | None:
        place, data, fault = self._small(offset, "snapshot", SNAPSHOT_DIFFERS)
        if fault is not None:
            self._faults.append(fault)
        if data is None:
            return None
        try:
            return producer_snapshot(data)
        except BadFile as error:
            if not (self._log.is_live and offset >= self._unsure_from and not data):
                self._faults.append(
                    Fault(SNAPSHOT_DIFFERS, place, error.position, offset, offset + 1, actual=error.why)
                )
            return None

    # --- the whole ---

    def _finish(self) -> LogFacts:
        log = self._log
        first = self._bases[0] if self._bases else 0
        if self._producers.doubted and self._all and first == self._all[0]:
            expected, actual = self._producers.doubted[0]
            place = f"{self._place}/{first:020d}.snapshot"
            self._faults.append(Fault(SNAPSHOT_DIFFERS, place, -1, first, first + 1, expected, actual))
        epochs = self._epochs()
        self._overlaps()
        known: LocalLog | None = None
        if self._is_last:
            self._check_points()
            node = -1
            known = LocalLog(
                self._place,
                node,
                log.log_start,
                self._all[0] if self._all else max(log.log_start, 0),
                self._end if self._all else max(log.log_start, 0),
                log.high_watermark,
                tuple(epochs),
            )
        self._faults.sort(key=lambda fault: (fault.place, fault.position, fault.code))
        return LogFacts(known, self._scans, self._faults, self._vanished, self._size, self._records)

    def _epochs(self) -> list[tuple[int, int]]:
        place = f"{self._place}/{EPOCHS}"
        try:
            data = self._source.read_all(f"{self._log.name}/{EPOCHS}", SMALL_FILE)
            self._size += len(data)
            epochs = leader_epochs(data)
        except Gone:
            epochs = []
        except (BadFile, TooLarge) as error:
            at = error.position if isinstance(error, BadFile) else 0
            self._faults.append(Fault(EPOCHS_DIFFER, place, at, actual=str(error)))
            return []
        runs = list(self._runs())
        for fault in check_epochs(
            place,
            epochs,
            runs,
            log_start=max(self._log.log_start, self._all[0] if self._all else 0),
            may_lack_from=self._unsure_from,
        ):
            self._faults.append(self._at_its_batch(place, fault, runs))
        return epochs

    def _at_its_batch(self, place: str, fault: Fault, runs: Sequence[Run]) -> Fault:
        """A fault that begins inside a run, with the position of the batch; if there is none, the file of
        epochs names an offset where no epoch can begin."""
        if fault.position < 0 or any(run.place == fault.place and run.first == fault.first for run in runs):
            return fault
        position = self._position_of(fault.place, fault.first)
        if position >= 0:
            return fault._replace(position=position)
        expected, actual = f"epoch {fault.actual}", f"epoch {fault.expected}"
        return Fault(EPOCHS_DIFFER, place, -1, fault.first, fault.end, expected, actual)

    def _position_of(self, place: str, offset: int) -> int:
        """Read a segment again, up to the batch that begins with this offset; -1 if there is none."""
        found = -1

        def on_table(table: Table, _: Markers) -> None:
            nonlocal found
            at = int(table.base.searchsorted(offset))
            if at < len(table.base) and table.base[at] == offset:
                found = int(table.position[at])

        listed = self._files[_base_of(place), "log"]
        scanner = RunScanner(place, on_table=on_table)
        try:
            for start in range(0, listed.size, PIECE):
                scanner.feed(self._source.read(listed.key, start, min(PIECE, listed.size - start)))
                if found >= 0:
                    break
        except Gone:
            return -1
        scanner.finish()
        return found

    def _runs(self) -> Iterator[Run]:
        for scanned in self._scans:
            yield from scanned.runs

    def _overlaps(self) -> None:
        """Name segments that begin before the one in front of them ends."""
        end, place = -1, ""
        for run in self._runs():
            if run.place != place and run.first < end:
                text = f"at least {end}"
                self._faults.append(
                    Fault(OFFSET_BACK, run.place, run.position, run.first, end, text, str(run.first))
                )
            end, place = max(end, run.end), run.place

    def _check_points(self) -> None:
        log = self._log
        for name, offset in (
            (RECOVERY, log.recovery_point),
            (LOG_STARTS, log.log_start),
            (WATERMARKS, log.high_watermark),
        ):
            if offset > self._end and self._all and not self._has_lost_end:
                place = f"{self._number}:{name}"
                text = f"at most {self._end} for {log.name}"
                self._faults.append(
                    Fault(CHECKPOINT_OUTSIDE, place, -1, self._end, offset, text, str(offset))
                )


def _past(run: Run, following: int) -> list[Fault]:
    """A segment that goes on past the base of the next one, which somebody else reads."""
    if not 0 <= following < run.end:
        return []
    text = f"at most {following}"
    return [Fault(OFFSET_BACK, run.place, run.position, following, run.end, text, str(run.end))]


def _base_of(place: str) -> int:
    return int(place.rpartition("/")[2].partition(".")[0])
