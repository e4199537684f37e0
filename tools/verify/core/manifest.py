"""What producers noted of their sends: totals, sums by bucket, and the order of the sends.

Owns one pass over all files of a manifest, and which buckets of a log differ from it. Does not own the
layout (manifest_files) or the exact comparison (manifest_rules). Invariant: what is kept is a sum for each
bucket and a few words for each partition, so its memory does not grow with the rows.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tools.verify.core.facts import BUCKET_BITS, RecordDigest
from tools.verify.core.findings import Counted, Finding, Severity, declare
from tools.verify.core.manifest_digests import HALF, LOW_BITS, mixed
from tools.verify.core.manifest_files import (
    BadFile,
    Damage,
    End,
    Guarantee,
    Head,
    Kind,
    Outcome,
    Rows,
    manifest_files,
    read_blocks,
    read_head,
)
from tools.verify.core.outcome import Unchecked

BAD_FILE: Final = declare(
    "manifest-bad-file",
    Severity.ERROR,
    "A file of the manifest is damaged.",
    "What is after the damage is not compared: take the manifest from a backup, or leave this file out.",
)
ORDER: Final = declare(
    "manifest-order",
    Severity.ERROR,
    "Records of one producer were acknowledged in another order than they were sent.",
    "Consumers saw them in that order too; look for what wrote these offsets twice.",
)

ALL: Final = -1
"""As acks."""
BUCKET: Final = 1 << BUCKET_BITS
NO_ID: Final = bytes(16)

Partition = tuple[str, int]
"""Topic id, 22 characters, and number."""
Numbers = npt.NDArray[np.int64]


def id_text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


class Sums(NamedTuple):
    """By bucket, ascending."""

    buckets: Numbers
    records: Numbers
    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]


@dataclass(slots=True)
class ManifestFile:
    path: Path
    head: Head
    topics: dict[int, str] = field(default_factory=dict)
    """Number in this file to topic id; without those that nothing knows."""
    is_whole: bool = False
    """Written to its end and undamaged: nothing was sent that it does not tell."""
    last: int = -1
    """Where the last block began when the file was read first: what a running producer adds is left alone."""


@dataclass(slots=True)
class Manifest:
    files: list[ManifestFile] = field(default_factory=list)
    has_unread_file: bool = False
    """Of one not even the head is there: nobody knows what it told."""
    findings: list[Finding] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    rows: int = 0
    sums: dict[Partition, Sums] = field(default_factory=dict)
    """Of what was acknowledged with an offset."""
    only_sums: dict[Partition, Sums] = field(default_factory=dict)
    """The part of them of which there are no rows."""
    weak: set[Partition] = field(default_factory=set)
    """Where some of that part was not acknowledged by all."""
    without_offset: dict[Partition, int] = field(default_factory=dict)
    """Rows of sends whose offset nobody knows; partition -1: nor their partition."""

    def partitions(self) -> set[Partition]:
        known = {each for each in self.without_offset if each[1] >= 0}
        return set(self.sums) | known

    def topics(self) -> set[str]:
        return {topic_id for topic_id, _ in (*self.sums, *self.without_offset)}

    def differing(
        self,
        topic_id: str,
        partition: int,
        digests: Iterable[RecordDigest],
        log_start: int,
    ) -> list[tuple[int, int]]:
        """Ranges of offsets, ascending, whose records must be compared one by one.

        The digests are those of places that hold no offset twice. What lies below the start of the log is
        left out.
        """
        stored = merged([_columns_of(digests)])
        told = self.sums.get((topic_id, partition), merged([]))
        buckets = np.union1d(stored.buckets, told.buckets)
        is_equal = np.ones(len(buckets), bool)
        for ours, theirs in zip(stored[1:], told[1:], strict=True):
            is_equal &= _spread(ours, stored.buckets, buckets) == _spread(theirs, told.buckets, buckets)
        differ = buckets[~is_equal]
        return _ranges(differ[(differ + 1) * BUCKET > log_start], log_start)


def _ranges(buckets: Numbers, log_start: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for bucket in buckets.tolist():
        first, end = max(bucket * BUCKET, log_start), (bucket + 1) * BUCKET
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return found


def _spread(values: npt.NDArray[np.generic], at: Numbers, over: Numbers) -> npt.NDArray[np.generic]:
    found = np.zeros(len(over), values.dtype)
    found[np.searchsorted(over, at)] = values
    return found


def _columns_of(digests: Iterable[RecordDigest]) -> Sums:
    rows = [(each.bucket, each.records, each.low, each.high) for each in digests]
    return Sums(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.uint64),
        np.array([row[3] for row in rows], np.uint64),
    )


def merged(parts: Sequence[Sums]) -> Sums:
    """Add up the sums of equal buckets."""
    none = np.empty(0, np.int64)
    all_of = [np.concatenate(columns) for columns in zip(*parts, strict=True)] if parts else []
    if not all_of or not len(all_of[0]):
        return Sums(none, none, none.astype(np.uint64), none.astype(np.uint64))
    order = np.argsort(all_of[0], kind="stable")
    buckets, records, low, high = (each[order] for each in all_of)
    starts = np.flatnonzero(np.concatenate(([True], buckets[1:] != buckets[:-1])))
    return Sums(buckets[starts], *(np.add.reduceat(each, starts) for each in (records, low, high)))


# --- reading ---


def read_manifests(directories: Iterable[str], topic_ids: Mapping[str, str]) -> Manifest:
    """Read all files once. `topic_ids` tells the id of a topic by its name, for writers that did not know."""
    manifest = Manifest()
    reader = _Reader(manifest, topic_ids)
    for directory in directories:
        paths = manifest_files(Path(directory))
        if not paths:
            manifest.unchecked.append(Unchecked("manifest", f"{directory} holds no file *.manifest."))
        for path in paths:
            reader.read(path)
    reader.finish()
    return manifest


def open_rows(file: ManifestFile) -> Iterator[tuple[int, Rows]]:
    """Yield position and rows of each block with rows once more, of those that were there at first."""
    with file.path.open("rb") as opened:
        read_head(opened)
        for block in read_blocks(opened):
            if block.position > file.last:
                return
            if not isinstance(block, Damage) and block.kind is Kind.ROWS:
                yield block.position, block.rows


class _Reader:
    def __init__(self, manifest: Manifest, topic_ids: Mapping[str, str]) -> None:
        self._manifest = manifest
        self._topic_ids = topic_ids
        self._sums: dict[Partition, list[Sums]] = defaultdict(list)
        self._only_sums: dict[Partition, list[Sums]] = defaultdict(list)
        self._without: dict[Partition, int] = defaultdict(int)

    def read(self, path: Path) -> None:
        found = self._manifest
        with path.open("rb") as opened:
            try:
                head = read_head(opened)
            except BadFile as error:
                self._damaged(path, error.damage)
                found.has_unread_file = True
                return
            if head is None:
                found.has_unread_file = True
                found.counted.append(Counted("manifest-unfinished"))
                return
            file = ManifestFile(path, head)
            found.files.append(file)
            order = _OrderCheck(file) if Guarantee.ORDERED in head.guarantees else None
            end: End | None = None
            totals = np.zeros(len(Outcome), np.int64)
            is_damaged = False
            for block in read_blocks(opened):
                file.last = block.position
                if isinstance(block, Damage):
                    self._damaged(path, block)
                    is_damaged = True
                    continue
                if end is not None:
                    self._damaged(
                        path, Damage(block.position, "the end of the file", "a block after its end")
                    )
                    is_damaged = True
                    break
                if block.kind is Kind.TOPICS:
                    for topic in block.topics:
                        self._learn(file, topic.number, topic.topic_id, topic.name)
                elif block.kind is Kind.ROWS:
                    totals += np.bincount(block.rows["outcome"], minlength=len(Outcome))
                    self._add_rows(file, block.rows, order)
                elif block.kind is Kind.DIGESTS:
                    totals[Outcome.OK] += int(block.rows["records"].sum())
                    self._add_digests(file, block.rows)
                else:
                    end = block.end
            if order is not None:
                found.findings += order.finish()
        counted = End(int(totals.sum()), *totals.tolist())
        found.rows += counted.rows
        if end is not None and end != counted and not is_damaged:
            self._damaged(path, Damage(file.last, str(end), str(counted)))
            is_damaged = True
        if end is None and not is_damaged:
            found.counted.append(Counted("manifest-unfinished"))
        file.is_whole = end is not None and not is_damaged

    def finish(self) -> None:
        found = self._manifest
        found.sums = {partition: merged(parts) for partition, parts in self._sums.items()}
        found.only_sums = {partition: merged(parts) for partition, parts in self._only_sums.items()}
        found.without_offset = dict(self._without)
        found.findings.sort()
        found.unchecked = sorted(set(found.unchecked))

    def _damaged(self, path: Path, damage: Damage) -> None:
        self._manifest.findings.append(
            Finding(
                BAD_FILE,
                place=f"manifest:{path.name}",
                position=damage.position,
                expected=damage.expected,
                actual=damage.actual,
            )
        )

    def _learn(self, file: ManifestFile, number: int, topic_id: bytes, name: str) -> None:
        known = id_text(topic_id) if topic_id != NO_ID else self._topic_ids.get(name)
        if known is None:
            self._manifest.unchecked.append(
                Unchecked("manifest", f"Topic {name} of the manifest is not known by that name.")
            )
        else:
            file.topics[number] = known

    def _add_rows(self, file: ManifestFile, rows: Rows, order: _OrderCheck | None) -> None:
        has_offset = (rows["outcome"] == Outcome.OK) & (rows["offset"] >= 0)
        if not has_offset.all():
            others = rows[~has_offset]
            for topic in np.unique(others["topic"]).tolist():
                topic_id = file.topics.get(topic)
                partitions = others["partition"][others["topic"] == topic]
                for partition, count in zip(*np.unique(partitions, return_counts=True), strict=True):
                    if topic_id is not None:
                        self._without[topic_id, max(-1, int(partition))] += int(count)
            rows = rows[has_offset]
        for topic, partition, own in by_partition(rows):
            topic_id = file.topics.get(topic)
            if topic_id is None:
                continue
            offsets = own["offset"].astype(np.int64)
            is_kept = own["acks"] == ALL  # the offset of another may be given to a later record
            if order is not None and is_kept.any():
                order.add(topic_id, partition, own["order"].astype(np.int64)[is_kept], offsets[is_kept])
            words = mixed(offsets, own["key_hash"].astype(np.uint64), own["value_hash"].astype(np.uint64))
            ones = np.ones(len(own), np.int64)
            sums = Sums(offsets >> BUCKET_BITS, ones, words & LOW_BITS, words >> HALF)
            self._append(self._sums, (topic_id, partition), sums)

    def _add_digests(self, file: ManifestFile, digests: Rows) -> None:
        for topic, partition, own in by_partition(digests):
            topic_id = file.topics.get(topic)
            if topic_id is None:
                continue
            sums = Sums(
                own["bucket"].astype(np.int64),
                own["records"].astype(np.int64),
                own["low"].astype(np.uint64),
                own["high"].astype(np.uint64),
            )
            place = topic_id, partition
            self._append(self._sums, place, sums)
            self._append(self._only_sums, place, sums)
            if (own["acks"] != ALL).any():
                self._manifest.weak.add(place)

    def _append(self, to: dict[Partition, list[Sums]], partition: Partition, sums: Sums) -> None:
        """Add one piece; pieces are merged in steps, each twice as large as the one before it."""
        parts = to[partition]
        parts.append(merged([sums]))
        while len(parts) > 1 and 2 * len(parts[-1].buckets) > len(parts[-2].buckets):
            last = parts.pop()
            parts[-1] = merged([parts[-1], last])


def by_partition(rows: Rows) -> Iterator[tuple[int, int, Rows]]:
    """Yield the rows of each topic and partition, in the order in which they were."""
    if not len(rows):
        return
    topics, partitions = rows["topic"], rows["partition"]
    places = topics.astype(np.int64) << 32 | partitions.astype(np.int64)
    if (places == places[0]).all():
        yield int(topics[0]), int(partitions[0]), rows
        return
    found, numbers = np.unique(places, return_inverse=True)
    order = np.argsort(numbers.astype(np.uint16) if len(found) <= 1 << 16 else numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(found))).tolist()
    start = 0
    for place, end in zip(found.tolist(), ends, strict=True):
        yield place >> 32, place & 0xFFFFFFFF, rows[order[start:end]]
        start = end


class _OrderCheck:
    """Within a file and a partition, offsets ascend with the order of the sends.

    Answers mostly come in that order, so one pass with the last row of each partition is enough; a partition
    with an answer that came late is looked at once more, with all its rows.
    """

    def __init__(self, file: ManifestFile) -> None:
        self._file = file
        self._last: dict[Partition, tuple[int, int]] = {}
        self._late: set[Partition] = set()
        self._findings: list[Finding] = []

    def add(self, topic_id: str, partition: int, orders: Numbers, offsets: Numbers) -> None:
        place = topic_id, partition
        if (orders[1:] < orders[:-1]).any():
            by_order = np.argsort(orders, kind="stable")
            orders, offsets = orders[by_order], offsets[by_order]
        last_order, last_offset = self._last.get(place, (-1, -1))
        if orders[0] < last_order or offsets[0] <= last_offset or (offsets[1:] <= offsets[:-1]).any():
            self._late.add(place)
        self._last[place] = max(last_order, int(orders[-1])), max(last_offset, int(offsets.max()))

    def finish(self) -> list[Finding]:
        for topic_id, partition in sorted(self._late):
            orders, offsets = self._rows_of(topic_id, partition)
            by_order = np.lexsort((offsets, orders))
            offsets = offsets[by_order]
            highest = np.maximum.accumulate(offsets)
            for at in (np.flatnonzero(offsets[1:] < highest[:-1]) + 1).tolist():
                self._findings.append(
                    Finding(
                        ORDER,
                        topic_id,
                        partition,
                        int(offsets[at]),
                        int(offsets[at]) + 1,
                        place=f"manifest:{self._file.path.name}",
                        expected=f"an offset after {highest[at - 1]}",
                        actual=f"{offsets[at]}",
                    )
                )
        return self._findings

    def _rows_of(self, topic_id: str, partition: int) -> tuple[Numbers, Numbers]:
        numbers = [number for number, known in self._file.topics.items() if known == topic_id]
        orders, offsets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for _, rows in open_rows(self._file):
            is_own = np.isin(rows["topic"], numbers) & (rows["partition"] == partition)
            own = rows[is_own & (rows["outcome"] == Outcome.OK) & (rows["offset"] >= 0)]
            orders.append(own["order"].astype(np.int64))
            offsets.append(own["offset"].astype(np.int64))
        return np.concatenate(orders), np.concatenate(offsets)
