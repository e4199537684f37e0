"""A manifest against the log, record by record, where their sums differ.

Owns the rules: what was acknowledged by all is there, unaltered; what was refused is not; what nobody knows
is there at most once, in whole batches. Does not own reading either side (manifest, the engines). Invariant:
at most a bounded number of rows is in memory; what exceeds a bound is told as unchecked, never as a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tools.verify.core.facts import BUCKET_BITS
from tools.verify.core.findings import Counted, Finding, Severity, declare
from tools.verify.core.manifest import (
    ALL,
    BUCKET,
    Manifest,
    ManifestFile,
    Numbers,
    Partition,
    by_partition,
    open_rows,
)
from tools.verify.core.manifest_digests import HALF, LOW_BITS, Offsets, Words, mixed
from tools.verify.core.manifest_files import Guarantee, Outcome, Rows
from tools.verify.core.outcome import Unchecked

LOSS: Final = declare(
    "manifest-loss",
    Severity.ERROR,
    "Records that all replicas had acknowledged are not in the log.",
    "Look for them in other copies, also in directories of brokers that are gone.",
)
ALTERED: Final = declare(
    "manifest-altered",
    Severity.ERROR,
    "Another record than was sent is at the offset that was acknowledged for it.",
    "Compare the copies of this offset, and which leader epoch wrote each.",
)
PHANTOM: Final = declare(
    "manifest-phantom",
    Severity.ERROR,
    "A record is in the log whose producer was told that it was refused.",
    "Consumers may see it although the application counts it as not sent.",
)
DUPLICATE: Final = declare(
    "manifest-duplicate",
    Severity.ERROR,
    "A record of an idempotent producer is in the log more often than it was sent.",
    "Look for a producer epoch or a sequence that was forgotten between these two offsets.",
)
TORN: Final = declare(
    "manifest-torn-batch",
    Severity.ERROR,
    "Of a batch with unknown outcome some records are in the log and others are not.",
    "A batch is appended whole or not at all: look at how the log was cut at this offset.",
)

ROWS_MAX: Final = 4 << 20
"""Of the manifest, that are compared at once."""
OTHERS_MAX: Final = 8 << 20
"""Records in the log without a row at their offset that are kept."""

CHOICES_MAX: Final = 100_000
"""Ways that are tried to tell which records are in a sum."""

Columns = tuple[Offsets, Words, Words]
"""Offsets, key hashes, value hashes of data records."""


class Wanted(NamedTuple):
    """A partition whose records are compared within `ranges`, which `Manifest.differing` gave."""

    topic_id: str
    partition: int
    log_start: int
    ranges: tuple[tuple[int, int], ...]
    exempt: tuple[tuple[int, int, str], ...] = ()
    """Where nothing has to be, and as what that is counted."""
    is_compacted: bool = False


ReadRecords = Callable[[Sequence[Wanted]], Iterator[tuple[str, int, Columns]]]
"""Yields the data records within the ranges, in pieces, ascending in each piece, each offset once."""


class Compared(NamedTuple):
    findings: list[Finding]
    counted: list[Counted]
    unchecked: list[Unchecked]


@dataclass(slots=True)
class _Expected:
    """What was acknowledged with an offset in the ranges of one partition, ascending."""

    offsets: Offsets
    key_hashes: Words
    value_hashes: Words
    acks: npt.NDArray[np.int8]
    is_seen: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.is_seen = np.zeros(len(self.offsets), bool)


class _Others(NamedTuple):
    """Records of one partition for which no row has their offset."""

    offsets: Offsets
    key_hashes: Words
    value_hashes: Words
    words: Words
    """A mix of key and value alone."""


class _Open(NamedTuple):
    """Rows of one topic whose sends have no offset."""

    words: Words
    partitions: Numbers
    outcomes: Numbers
    acks: Numbers
    batches: Numbers
    files: Numbers


def words_of(key_hashes: Words, value_hashes: Words) -> Words:
    return mixed(np.zeros(len(key_hashes), np.int64), key_hashes, value_hashes)


def compare(manifest: Manifest, wanted: Sequence[Wanted], read: ReadRecords) -> Compared:
    return _Comparison(manifest, wanted).run(read)


class _Comparison:
    def __init__(self, manifest: Manifest, wanted: Sequence[Wanted]) -> None:
        self._manifest = manifest
        self._wanted = {(each.topic_id, each.partition): each for each in wanted}
        self._found = Compared([], [], [])
        self._others: dict[Partition, list[Columns]] = {}
        self._others_count = 0
        self._cut: set[Partition] = set()
        """Of whose other records some are not kept."""

    def run(self, read: ReadRecords) -> Compared:
        found = self._found
        for group in groups(self._manifest, self._wanted.values()):
            expected = self._load(group)
            for topic_id, partition, columns in read(group):
                self._join(topic_id, partition, expected, columns)
            for place, rows in expected.items():
                self._judge_absent(place, rows)
        self._count_below_start()
        self._judge_others()
        found.findings.sort()
        found.counted.sort()
        found.unchecked.sort()
        return found

    # --- rows with an offset ---

    def _load(self, group: Sequence[Wanted]) -> dict[Partition, _Expected]:
        ranges = {
            (each.topic_id, each.partition): np.array(each.ranges, np.int64).reshape(-1, 2) for each in group
        }
        parts: dict[Partition, list[Rows]] = {place: [] for place in ranges}
        for place, rows in self._rows_of(set(ranges)):
            is_ok = (rows["outcome"] == Outcome.OK) & (rows["offset"] >= 0)
            offsets = rows["offset"].astype(np.int64)
            at = np.searchsorted(ranges[place][:, 0], offsets, "right") - 1
            is_within = is_ok & (at >= 0) & (offsets < ranges[place][at, 1])
            if is_within.any():
                parts[place].append(rows[is_within])
        return {place: self._expected(place, rows) for place, rows in parts.items()}

    def _rows_of(self, places: set[Partition]) -> Iterator[tuple[Partition, Rows]]:
        topics = {topic_id for topic_id, _ in places}
        for file in self._manifest.files:
            if not topics & set(file.topics.values()):
                continue
            for _, rows in open_rows(file):
                for topic, partition, own in by_partition(rows):
                    place = file.topics.get(topic, ""), partition
                    if place in places:
                        yield place, own

    def _expected(self, place: Partition, parts: list[Rows]) -> _Expected:
        rows: Any = np.concatenate(parts) if parts else np.empty(0, _NO_ROWS)
        offsets = rows["offset"].astype(np.int64)
        is_weak = rows["acks"] != ALL
        order = np.lexsort((is_weak, offsets))
        offsets, is_weak = offsets[order], is_weak[order]
        is_again = np.zeros(len(offsets), bool)
        is_again[1:] = offsets[1:] == offsets[:-1]
        # What only a leader acknowledged may go with it, and its offset be given to another record.
        self._count("acks1-absent", place, offsets[is_again & is_weak])
        for offset in offsets[is_again & ~is_weak].tolist():
            self._find(
                DUPLICATE, place, offset, offset + 1, "one send for each offset", "acknowledged for two sends"
            )
        kept = order[~is_again]
        return _Expected(
            offsets[~is_again],
            rows["key_hash"][kept].astype(np.uint64),
            rows["value_hash"][kept].astype(np.uint64),
            rows["acks"][kept],
        )

    def _join(
        self, topic_id: str, partition: int, expected: dict[Partition, _Expected], columns: Columns
    ) -> None:
        place = topic_id, partition
        rows = expected.get(place)
        if rows is None or not len(columns[0]):
            return
        offsets, key_hashes, value_hashes = columns
        at = np.searchsorted(rows.offsets, offsets)
        is_told = at < len(rows.offsets)
        is_told[is_told] = rows.offsets[at[is_told]] == offsets[is_told]
        found = at[is_told]
        rows.is_seen[found] = True
        is_other_key = rows.key_hashes[found] != key_hashes[is_told]
        is_other_value = rows.value_hashes[found] != value_hashes[is_told]
        is_weak = (is_other_key | is_other_value) & (rows.acks[found] != ALL)
        self._count("acks1-absent", place, offsets[is_told][is_weak])
        for each in np.flatnonzero((is_other_key | is_other_value) & ~is_weak).tolist():
            row, mine = found[each], np.flatnonzero(is_told)[each]
            self._find(
                ALTERED,
                place,
                int(offsets[mine]),
                int(offsets[mine]) + 1,
                _hashes(rows.key_hashes[row], rows.value_hashes[row]),
                _hashes(key_hashes[mine], value_hashes[mine]),
            )
        others = offsets[~is_told], key_hashes[~is_told], value_hashes[~is_told]
        if self._others_count + len(others[0]) > OTHERS_MAX:
            self._cut.add(place)
        elif len(others[0]):
            self._others_count += len(others[0])
            self._others.setdefault(place, []).append(others)

    def _judge_absent(self, place: Partition, rows: _Expected) -> None:
        wanted = self._wanted[place]
        is_absent = ~rows.is_seen
        if not is_absent.any():
            return
        for first, end, what in wanted.exempt:
            is_exempt = is_absent & (rows.offsets >= first) & (rows.offsets < end)
            self._count(what, place, rows.offsets[is_exempt])
            is_absent &= ~is_exempt
        if wanted.is_compacted and is_absent.any():
            is_gone = is_absent & self._is_superseded(place, rows)
            self._count("compaction", place, rows.offsets[is_gone])
            is_absent &= ~is_gone
            for _, end, what in wanted.exempt:  # a later record of its key may have been there
                is_hidden = is_absent & (rows.offsets < end)
                self._count(what, place, rows.offsets[is_hidden])
                is_absent &= ~is_hidden
        is_weak = is_absent & (rows.acks != ALL)
        self._count("acks1-absent", place, rows.offsets[is_weak])
        lost = np.flatnonzero(is_absent & ~is_weak)
        for run in np.split(lost, np.flatnonzero(np.diff(lost) != 1) + 1):
            if len(run):
                first, end = int(rows.offsets[run[0]]), int(rows.offsets[run[-1]]) + 1
                self._find(LOSS, place, first, end, f"{len(run)} records", "none of them")

    def _is_superseded(self, place: Partition, rows: _Expected) -> npt.NDArray[np.bool_]:
        """Whether the log may leave out a record for compaction: a later one has its key, or it is a null."""
        keys, offsets = [rows.key_hashes], [rows.offsets]
        for _, own in self._rows_of({place}):
            own = own[(own["outcome"] == Outcome.OK) & (own["offset"] >= 0)]
            keys.append(own["key_hash"].astype(np.uint64))
            offsets.append(own["offset"].astype(np.int64))
        for columns in self._others.get(place, []):
            offsets.append(columns[0])
            keys.append(columns[1])
        all_keys, all_offsets = np.concatenate(keys), np.concatenate(offsets)
        distinct, numbers = np.unique(all_keys, return_inverse=True)
        last = np.zeros(len(distinct), np.int64)
        np.maximum.at(last, numbers, all_offsets)
        later = last[np.searchsorted(distinct, rows.key_hashes)] > rows.offsets
        found: npt.NDArray[np.bool_] = later | (rows.value_hashes == 0)
        return found

    def _count_below_start(self) -> None:
        """Count what retention or DeleteRecords took: by whole buckets, and by rows in the one it is in."""
        for place, wanted in self._wanted.items():
            sums = self._manifest.sums.get(place)
            if sums is None or wanted.log_start <= 0:
                continue
            below = sums.buckets < wanted.log_start >> BUCKET_BITS
            if amount := int(sums.records[below].sum()):
                end = (wanted.log_start >> BUCKET_BITS) << BUCKET_BITS
                self._found.counted.append(Counted("log-start", *place, 0, end, amount))

    # --- records without a row at their offset ---

    def _judge_others(self) -> None:
        others = {place: self._others_of(parts) for place, parts in self._others.items()}
        open_rows_of = self._open_rows()
        for place in self._cut:
            self._unchecked(place, "it holds too many records that no producer of the manifest tells of")
        for place in sorted(self._wanted):
            if place not in self._cut:
                self._judge_open(place, others.get(place, _NO_OTHERS), open_rows_of.get(place[0], _NO_OPEN))

    def _others_of(self, parts: list[Columns]) -> _Others:
        offsets = np.concatenate([part[0] for part in parts])
        key_hashes = np.concatenate([part[1] for part in parts])
        value_hashes = np.concatenate([part[2] for part in parts])
        order = np.argsort(offsets, kind="stable")
        offsets, key_hashes, value_hashes = offsets[order], key_hashes[order], value_hashes[order]
        return _Others(offsets, key_hashes, value_hashes, words_of(key_hashes, value_hashes))

    def _open_rows(self) -> dict[str, _Open]:
        parts: dict[str, list[_Open]] = {}
        topics = {topic_id for topic_id, _ in self._wanted}
        without = {topic_id for topic_id, _ in self._manifest.without_offset} & topics
        for number, file in enumerate(self._manifest.files):
            if not without & set(file.topics.values()):
                continue
            for _, rows in open_rows(file):
                rows = rows[(rows["outcome"] != Outcome.OK) | (rows["offset"] < 0)]
                for topic in np.unique(rows["topic"]).tolist():
                    own = rows[rows["topic"] == topic]
                    parts.setdefault(file.topics.get(topic, ""), []).append(
                        _Open(
                            words_of(own["key_hash"].astype(np.uint64), own["value_hash"].astype(np.uint64)),
                            own["partition"].astype(np.int64),
                            own["outcome"].astype(np.int64),
                            own["acks"].astype(np.int64),
                            own["batch"].astype(np.int64),
                            np.full(len(own), number, np.int64),
                        )
                    )
        return {
            topic_id: _Open(*(np.concatenate(each) for each in zip(*own, strict=True)))
            for topic_id, own in parts.items()
        }

    def _judge_open(self, place: Partition, others: _Others, sends: _Open) -> None:
        is_own = sends.partitions == place[1]
        is_any = sends.partitions < 0
        is_unknown, is_fail = sends.outcomes == Outcome.UNKNOWN, sends.outcomes == Outcome.FAIL
        is_ok = sends.outcomes == Outcome.OK
        left = self._without_summed(place, others, sends.words[(is_own | is_any) & ~is_fail])
        if left is None:
            return
        others = left
        words, first_at, counts = np.unique(others.words, return_index=True, return_counts=True)
        acknowledged = _tally(words, sends.words[is_own & is_ok])
        unknown = _tally(words, sends.words[is_own & is_unknown])
        anywhere = _tally(words, sends.words[is_any & ~is_fail])
        refused = _tally(words, sends.words[(is_own | is_any) & is_fail])
        surplus = np.maximum(counts - acknowledged - unknown - anywhere, 0)
        phantoms = np.minimum(surplus, refused)
        self._blame(PHANTOM, place, others, words, phantoms, "refused by the broker", "in the log")
        self._judge_again(place, others, words, surplus - phantoms, acknowledged + unknown)
        present = np.minimum(np.maximum(counts - acknowledged, 0), unknown)
        if amount := int(present.sum()):
            at = others.offsets[first_at[present > 0]]
            self._found.counted.append(
                Counted("unknown-present", *place, int(at.min()), int(at.max()) + 1, amount)
            )
        if amount := int((is_own & is_unknown).sum()) - int(present.sum()):
            self._found.counted.append(Counted("unknown-absent", *place, amount=amount))
        self._judge_acknowledged(place, words, counts, sends, is_own & is_ok)
        self._judge_batches(place, others, sends, is_own & is_unknown)

    def _judge_again(
        self, place: Partition, others: _Others, words: Words, surplus: Numbers, open_sends: Numbers
    ) -> None:
        """Judge records beyond what was sent without an offset: duplicates, or not of this manifest."""
        amounts = np.where(surplus > 0, surplus, 0)
        if not amounts.any():
            return
        told = open_sends > 0
        left = words[amounts > 0]
        for _, rows in self._rows_of({place}):
            rows = rows[(rows["outcome"] == Outcome.OK) & (rows["offset"] >= 0)]
            mine = words_of(rows["key_hash"].astype(np.uint64), rows["value_hash"].astype(np.uint64))
            told |= np.isin(words, mine[np.isin(mine, left)])
        again = np.where(told, amounts, 0)
        if amount := int((amounts - again).sum()):
            self._found.counted.append(Counted("not-in-manifest", *place, amount=amount))
        if not again.any():
            return
        if not all(Guarantee.IDEMPOTENT in file.head.guarantees for file in self._files_of(place)):
            self._found.counted.append(Counted("sent-again", *place, amount=int(again.sum())))
        elif not self._is_all_told(place):
            self._found.counted.append(Counted("manifest-unfinished", *place, amount=int(again.sum())))
        else:
            self._blame(DUPLICATE, place, others, words, again, "each send once", "once more")

    def _files_of(self, place: Partition) -> list[ManifestFile]:
        """Return the files that may tell of a partition: of what is cut off nobody knows the topic."""
        return [
            file for file in self._manifest.files if place[0] in file.topics.values() or not file.is_whole
        ]

    def _is_all_told(self, place: Partition) -> bool:
        """Whether no send is untold that could be alike with one of the manifest."""
        return not self._manifest.has_unread_file and all(
            file.is_whole or Guarantee.UNIQUE in file.head.guarantees for file in self._files_of(place)
        )

    def _judge_acknowledged(
        self, place: Partition, words: Words, counts: Numbers, sends: _Open, is_wanted: npt.NDArray[np.bool_]
    ) -> None:
        """Judge what was acknowledged without an offset: it is there as often as it was sent."""
        wanted = self._wanted[place]
        mine, first_at, needed = np.unique(sends.words[is_wanted], return_index=True, return_counts=True)
        has = np.zeros(len(mine), np.int64)
        at = np.searchsorted(words, mine)
        is_there = at < len(words)
        is_there[is_there] = words[at[is_there]] == mine[is_there]
        has[is_there] = counts[at[is_there]]
        missing = np.maximum(needed - has, 0)
        is_weak = sends.acks[is_wanted][first_at] != ALL
        if amount := int(missing[is_weak].sum()):
            self._found.counted.append(Counted("acks1-absent", *place, amount=amount))
        if amount := int(missing[~is_weak].sum()):
            if wanted.log_start > 0:
                self._found.counted.append(Counted("log-start", *place, amount=amount))
            elif wanted.is_compacted:
                self._found.counted.append(Counted("compaction", *place, amount=amount))
            elif wanted.exempt:
                self._found.counted.append(Counted(wanted.exempt[0][2], *place, amount=amount))
            else:
                self._find(LOSS, place, -1, -1, f"{amount} records, without offset", "none of them")

    def _judge_batches(
        self, place: Partition, others: _Others, sends: _Open, is_unknown: npt.NDArray[np.bool_]
    ) -> None:
        wanted = self._wanted[place]
        if wanted.is_compacted:
            return
        is_batch = is_unknown & (sends.batches != 0)
        alike = dict(zip(*np.unique(sends.words, return_counts=True), strict=True)) if is_batch.any() else {}
        where = dict(zip(others.words.tolist(), others.offsets.tolist(), strict=True)) if alike else {}
        batches: dict[tuple[int, int], list[int]] = {}
        for at in np.flatnonzero(is_batch).tolist():
            batches.setdefault((int(sends.files[at]), int(sends.batches[at])), []).append(
                int(sends.words[at])
            )
        for _, own in sorted(batches.items()):
            present = [where[word] for word in own if word in where]
            if not 0 < len(present) < len(own) or any(alike[word] > 1 for word in own):
                continue
            first, end = min(present), max(present) + 1
            absent = len(own) - len(present)
            is_explained = 0 < wanted.log_start > first - absent or any(
                exempt_first < end + absent and first - absent < exempt_end
                for exempt_first, exempt_end, _ in wanted.exempt
            )
            if is_explained:
                continue
            if self._is_all_told(place):
                self._find(TORN, place, first, end, f"{len(own)} records or none", f"{len(present)} of them")
            else:
                self._found.counted.append(Counted("manifest-unfinished", *place, amount=len(present)))

    # --- sums without rows ---

    def _without_summed(self, place: Partition, others: _Others, open_words: Words) -> _Others | None:
        """Compare what there are only sums of, bucket by bucket, and leave out what they explain. Return None
        where a record may be in a sum or of a send without an answer that had the same key and value."""
        sums = self._manifest.only_sums.get(place)
        wanted = self._wanted[place]
        if sums is None:
            return others
        is_clear = True
        is_unique = all(Guarantee.UNIQUE in file.head.guarantees for file in self._files_of(place))
        is_left = np.ones(len(others.offsets), bool)
        is_open = np.isin(others.words, open_words)
        buckets = others.offsets >> BUCKET_BITS
        ranges = np.array(wanted.ranges, np.int64).reshape(-1, 2)
        for bucket, records, total_low, total_high in zip(*(each.tolist() for each in sums), strict=True):
            first, end = bucket * BUCKET, (bucket + 1) * BUCKET
            if not ((ranges[:, 0] < end) & (ranges[:, 1] > first)).any():
                continue
            if first < wanted.log_start:
                if end > wanted.log_start:
                    self._unchecked(
                        place, f"of offsets {first} to {end} there is only a sum, and some are deleted"
                    )
                is_left &= buckets != bucket
                continue
            if any(low < end and first < high for low, high, _ in wanted.exempt):
                self._unchecked(
                    place, f"of offsets {first} to {end} there is only a sum, and some are damaged"
                )
                is_left &= buckets != bucket
                continue
            is_in = (buckets == bucket) & ~is_open
            words = mixed(others.offsets[is_in], others.key_hashes[is_in], others.value_hashes[is_in])
            found = int(is_in.sum()), int((words & LOW_BITS).sum()), int((words >> HALF).sum())
            is_left &= ~is_in
            if found == (records, total_low, total_high):
                continue
            either = np.flatnonzero(is_open & (buckets == bucket))
            if len(either) and not is_unique:
                columns = others.offsets[either], others.key_hashes[either], others.value_hashes[either]
                missing = records - found[0], total_low - found[1], total_high - found[2]
                chosen = _adding_up(mixed(*columns), *missing) if missing[0] >= 0 else None
                if chosen:
                    is_left[either[chosen]] = False
                    continue
                if chosen is None or missing[0] <= len(either):  # others may have sent some of them
                    why = "hold records that may be in a sum or of sends without an answer"
                    self._unchecked(place, f"offsets {first} to {end} {why}")
                    is_clear = False
                    continue
                is_clear = False
            if found[0] > records:
                self._unchecked(place, f"offsets {first} to {end} hold records of others beside a sum")
            elif place in self._manifest.weak:
                absent = max(records - found[0], 1)
                self._found.counted.append(Counted("acks1-absent", *place, first, end, absent))
            elif found[0] == records and not (wanted.is_compacted and not self._is_all_told(place)):
                self._find(ALTERED, place, first, end, f"{records} records", "others")
            elif found[0] == records:
                why = "hold as many records as a sum, of which some may be compacted and some of others"
                self._unchecked(place, f"offsets {first} to {end} {why}")
            elif wanted.is_compacted:
                self._found.counted.append(Counted("compaction", *place, first, end, records - found[0]))
            else:
                self._find(LOSS, place, first, end, f"{records} records", f"{found[0]} records")
        if not is_clear:
            return None
        return _Others(
            others.offsets[is_left],
            others.key_hashes[is_left],
            others.value_hashes[is_left],
            others.words[is_left],
        )

    # --- telling ---

    def _blame(
        self,
        code: str,
        place: Partition,
        others: _Others,
        words: Words,
        amounts: Numbers,
        expected: str,
        actual: str,
    ) -> None:
        """Name the last records of each word, as many as the amounts say."""
        for at in np.flatnonzero(amounts > 0).tolist():
            offsets = others.offsets[others.words == words[at]]
            for offset in offsets[-int(amounts[at]) :].tolist():
                self._find(code, place, offset, offset + 1, expected, actual)

    def _find(self, code: str, place: Partition, first: int, end: int, expected: str, actual: str) -> None:
        self._found.findings.append(
            Finding(code, *place, first, end, place="manifest", expected=expected, actual=actual)
        )

    def _count(self, what: str, place: Partition, offsets: Offsets) -> None:
        if len(offsets):
            self._found.counted.append(
                Counted(what, *place, int(offsets[0]), int(offsets[-1]) + 1, len(offsets))
            )

    def _unchecked(self, place: Partition, why: str) -> None:
        self._found.unchecked.append(Unchecked("manifest", f"Partition {place[1]} of {place[0]}: {why}."))


def groups(manifest: Manifest, wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """Cut what is wanted into parts with at most so many rows of the manifest, but at least one range."""
    group: list[Wanted] = []
    room = ROWS_MAX
    for each in wanted:
        sums = manifest.sums.get((each.topic_id, each.partition))
        ranges: list[tuple[int, int]] = []
        for first, end in each.ranges:
            size = 0
            if sums is not None:
                is_within = (sums.buckets >= first >> BUCKET_BITS) & (sums.buckets < end >> BUCKET_BITS)
                size = int(sums.records[is_within].sum())
            if size > room and (group or ranges):
                if ranges:
                    group.append(each._replace(ranges=tuple(ranges)))
                yield group
                group, ranges, room = [], [], ROWS_MAX
            ranges.append((first, end))
            room -= size
        if ranges:
            group.append(each._replace(ranges=tuple(ranges)))
    if group:
        yield group


def _adding_up(words: Words, count: int, low: int, high: int) -> list[int] | None:
    """Return which so many of the words have these sums, none if no choice has, None if there are too many
    to try."""
    if count > len(words):
        return []
    if comb(len(words), count) > CHOICES_MAX:
        return None
    lows, highs = (words & LOW_BITS).tolist(), (words >> HALF).tolist()
    for chosen in combinations(range(len(words)), count):
        if sum(lows[at] for at in chosen) == low and sum(highs[at] for at in chosen) == high:
            return list(chosen)
    return []


def _tally(words: Words, sends: Words) -> Numbers:
    """Count, for each of `words`, which are ascending, how often it is among the sends."""
    found = np.zeros(len(words), np.int64)
    if len(words) and len(sends):
        mine, counts = np.unique(sends, return_counts=True)
        at = np.searchsorted(words, mine)
        is_there = at < len(words)
        is_there[is_there] = words[at[is_there]] == mine[is_there]
        found[at[is_there]] = counts[is_there]
    return found


def _hashes(key_hash: np.uint64, value_hash: np.uint64) -> str:
    return f"{int(key_hash):016x} {int(value_hash):016x}"


_NO_ROWS: Final = np.dtype(
    [("offset", ">i8"), ("key_hash", ">u8"), ("value_hash", ">u8"), ("acks", "i1"), ("outcome", "u1")]
)
_NO_WORDS: Final = np.empty(0, np.uint64)
_NO_NUMBERS: Final = np.empty(0, np.int64)
_NO_OTHERS: Final = _Others(_NO_NUMBERS, _NO_WORDS, _NO_WORDS, _NO_WORDS)
_NO_OPEN: Final = _Open(_NO_WORDS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)
