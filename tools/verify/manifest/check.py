"""Manifests against the log, as it lies in a store, in data directories, or in both.

Owns when which side is read, and how records become columns. Does not own the rules (manifest_rules) or
which place is read at which offset (topic). Invariant: a manifest is read before the log, so that whatever it
calls acknowledged was so before the log was looked at; no more than a piece of either is in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tools.verify.core.findings import Counted, Finding
from tools.verify.core.lineage import Range
from tools.verify.core.manifest import Manifest, Partition, read_manifests
from tools.verify.core.manifest_digests import record_digests
from tools.verify.core.manifest_rules import LOSS, Columns, Wanted, compare
from tools.verify.core.outcome import Unchecked, Unread
from tools.verify.core.record_sums import Rows, hash_records, new_rows
from tools.verify.core.record_sums import columns as as_columns
from tools.verify.core.records import BadRecords
from tools.verify.core.stores import Source, SourceFailed
from tools.verify.core.topic import ClusterBytes, Missing, NoSuchTopic, PartitionBytes

PIECE: Final = 1 << 16
"""Records that are held at once."""


class Checked(NamedTuple):
    findings: list[Finding]
    counted: list[Counted]
    unchecked: list[Unchecked]
    unread: list[Unread]


def check_manifests(
    directories: Sequence[str],
    sources: Sequence[Source],
    damaged: Mapping[Partition, Sequence[Range]],
    topics: frozenset[str] = frozenset(),
) -> Checked:
    """Compare what producers noted with the log. What findings about a partition name is not told again."""
    found = Checked([], [], [], [])
    try:
        names = ClusterBytes(sources).topic_ids()
        manifest = read_manifests(directories, names)
        found.findings.extend(manifest.findings)
        found.counted.extend(manifest.counted)
        found.unchecked.extend(manifest.unchecked)
        name_of = {topic_id: name for name, topic_id in names.items()}
        places = {
            place
            for place in manifest.partitions()
            if not topics or topics & {place[0], name_of.get(place[0], "")}
        }
        _compare(manifest, places, sources, name_of, damaged, found)
    except (SourceFailed, OSError) as error:
        found.unread.append(Unread("manifest", str(error)))
    return found


def _compare(
    manifest: Manifest,
    places: set[Partition],
    sources: Sequence[Source],
    name_of: Mapping[str, str],
    damaged: Mapping[Partition, Sequence[Range]],
    found: Checked,
) -> None:
    logs = _open(sources, places, name_of)
    for topic_id in sorted({topic_id for topic_id, _ in places - set(logs)}):
        found.unchecked.append(Unchecked("manifest", f"Topic {topic_id} of the manifest is in no place."))
    ranges: dict[Partition, list[Range]] = {}
    for place, log in sorted(logs.items()):
        start, end = log.to_its_end()
        digests = [
            digest for columns in columns_of(log, start, end) for digest in record_digests("", *columns)
        ]
        ranges[place] = manifest.differing(*place, digests, start)
    logs = _open(sources, set(ranges), name_of)  # what was deleted meanwhile lies below the start by now
    wanted = [
        Wanted(
            *place,
            log.to_its_end().start,
            tuple(ranges[place]),
            tuple((first, end, "damaged") for first, end in damaged.get(place, ())),
            log.is_compacted,
        )
        for place, log in sorted(logs.items())
    ]

    def read(group: Sequence[Wanted]) -> Iterator[tuple[str, int, Columns]]:
        for each in group:
            for first, end in each.ranges:
                for columns in columns_of(logs[each.topic_id, each.partition], first, end):
                    yield each.topic_id, each.partition, columns

    compared = compare(manifest, wanted, read)
    starts: dict[Partition, int] = {}
    if any(each.code == LOSS for each in compared.findings):
        logs = _open(sources, set(ranges), name_of)
        starts = {place: log.bounds.start for place, log in logs.items()}
    for each in compared.findings:
        if each.code == LOSS and 0 <= each.first < each.end <= starts.get((each.topic_id, each.partition), 0):
            amount = each.end - each.first
            found.counted.append(Counted("between-listings", *each[1:5], amount))
        else:
            found.findings.append(each)
    found.counted.extend(compared.counted)
    found.unchecked.extend(compared.unchecked)


def _open(
    sources: Sequence[Source], places: set[Partition], name_of: Mapping[str, str]
) -> dict[Partition, PartitionBytes]:
    """Open the partitions that there are, as they are now."""
    partitions: dict[str, list[int]] = defaultdict(list)
    for topic_id, number in places:
        partitions[topic_id].append(number)
    cluster = ClusterBytes(sources)
    found: dict[Partition, PartitionBytes] = {}
    for topic_id, numbers in partitions.items():
        name = name_of.get(topic_id, "")
        try:
            topic = cluster.open([name])[name]
        except NoSuchTopic:
            continue
        if topic.topic_id != topic_id:
            continue
        there = topic.partitions()
        found |= {(topic_id, number): topic.partition(number) for number in numbers if number in there}
    return found


def columns_of(log: PartitionBytes, first: int, end: int) -> Iterator[Columns]:
    """Yield offsets and hashes of the data records of [first, end), in pieces, without what is missing."""
    rows = new_rows()
    at = first
    while at < end:
        try:
            for batch in log.batches(at, end):
                head = batch.head
                at = head.last_offset + 1
                if head.is_control:
                    continue
                try:
                    hash_records(batch.data, head, rows)
                except BadRecords:
                    continue
                if len(rows[0]) >= PIECE:
                    yield _within(rows, first, end)
                    rows = new_rows()
            break
        except Missing as missing:
            at = max(at + 1, missing.end)
    if rows[0]:
        yield _within(rows, first, end)


def _within(rows: Rows, first: int, end: int) -> Columns:
    offsets, keys, values = as_columns(rows)
    which = (offsets >= first) & (offsets < end)
    return offsets[which], keys[which], values[which]
