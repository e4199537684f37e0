"""Manifests against the log, as it lies in a store, in data directories, or in both.

Owns when which side is read, and how records become columns. Does not own the rules (manifest_rules) or
which place is read at which offset (topic). Invariant: a manifest is read before the log, so that whatever it
calls acknowledged was so before the log was looked at; no more than a piece of either is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tools.verify.core.findings import Counted, Finding
from tools.verify.core.lineage import Range
from tools.verify.core.manifest import Manifest, Partition, read_manifests
from tools.verify.core.manifest_digests import record_digests
from tools.verify.core.manifest_rules import LOSS, Columns, ReadRecords, Wanted, compare
from tools.verify.core.outcome import Unchecked, Unread
from tools.verify.core.record_sums import Rows, hash_all, new_rows
from tools.verify.core.record_sums import columns as as_columns
from tools.verify.core.stores import Source, SourceFailed
from tools.verify.core.topic import LIMITLESS, ClusterBytes, Missing, PartitionBytes


class Checked(NamedTuple):
    findings: list[Finding]
    counted: list[Counted]
    unchecked: list[Unchecked]
    unread: list[Unread]


def check_manifests(
    directories: Sequence[str],
    sources: Sequence[Source],
    topic_ids: Mapping[str, str],
    damaged: Mapping[Partition, Sequence[Range]],
    has_replica: AbstractSet[Partition],
    topics: frozenset[str] = frozenset(),
) -> Checked:
    """Compare what producers noted with the log. What findings about a partition name is not told again.

    `topic_ids`: by name. `has_replica`: partitions of which a replica in sync is among the sources.
    """
    found = Checked([], [], [], [])
    try:
        manifest = read_manifests(directories, topic_ids)
        found.findings.extend(manifest.findings)
        found.counted.extend(manifest.counted)
        found.unchecked.extend(manifest.unchecked)
        name_of = {topic_id: name for name, topic_id in topic_ids.items()}
        places = {
            place
            for place in manifest.partitions()
            if not topics or topics & {place[0], name_of.get(place[0], "")}
        }
        logs = _open(sources, places, name_of)
        for topic_id in sorted({topic_id for topic_id, _ in places - set(logs)}):
            found.unchecked.append(Unchecked("manifest", f"Topic {topic_id} of the manifest is in no place."))
        compared = compare(manifest, list(_wanted(manifest, logs, damaged, has_replica, found)), _read(logs))
        found.counted.extend(compared.counted)
        found.unchecked.extend(compared.unchecked)
        if any(each.code == LOSS for each in compared.findings):
            logs = _open(sources, set(logs), name_of)  # what went meanwhile lies below its start by now
        for each in compared.findings:
            log = logs.get((each.topic_id, each.partition))
            start = log.bounds.start if log is not None and each.code == LOSS else -1
            if 0 <= each.first < start:
                amount = min(each.end, start) - each.first
                found.counted.append(Counted("between-listings", *each[1:4], min(each.end, start), amount))
                each = each._replace(first=min(each.end, start), expected=f"records up to {each.end}")
            if each.first < each.end or each.first < 0:
                found.findings.append(each)
    except (SourceFailed, OSError) as error:
        found.unread.append(Unread("manifest", str(error)))
    return found


def _wanted(
    manifest: Manifest,
    logs: Mapping[Partition, PartitionBytes],
    damaged: Mapping[Partition, Sequence[Range]],
    has_replica: AbstractSet[Partition],
    found: Checked,
) -> Iterator[Wanted]:
    """Yield each partition with the offsets at which its sums are not those of the manifest."""
    for place, log in sorted(logs.items()):
        start, end = log.to_its_end()
        digests = [
            digest for columns in columns_of(log, start, end) for digest in record_digests("", *columns)
        ]
        exempt = [
            (first, last, "damaged")
            for first, last in damaged.get(place, ())
            if last < LIMITLESS or log.is_compacted  # there what cannot be read may have replaced the rest
        ]
        if place not in has_replica:
            exempt.append((end, LIMITLESS, "elsewhere"))
            why = f"of partition {place[1]} of {place[0]} no log of a replica in sync was given"
            found.unchecked.append(Unchecked("manifest", f"{why}: what is not below {end} may be there"))
        ranges = manifest.differing(*place, digests, start)
        yield Wanted(*place, start, tuple(ranges), tuple(exempt), log.is_compacted)


def _read(logs: Mapping[Partition, PartitionBytes]) -> ReadRecords:
    def read(group: Sequence[Wanted]) -> Iterator[tuple[str, int, Columns]]:
        for each in group:
            for first, end in each.ranges:
                for columns in columns_of(logs[each.topic_id, each.partition], first, end):
                    yield each.topic_id, each.partition, columns

    return read


def _open(
    sources: Sequence[Source], places: AbstractSet[Partition], name_of: Mapping[str, str]
) -> dict[Partition, PartitionBytes]:
    """Open the partitions that there are, as they are now."""
    cluster = ClusterBytes(sources)
    ids = cluster.topic_ids()
    names = {name_of.get(topic_id, "") for topic_id, _ in places}
    topics = cluster.open(sorted(name for name in names if name in ids))
    return {
        (topic.topic_id, number): topic.partition(number)
        for topic in topics.values()
        for number in topic.partitions()
        if (topic.topic_id, number) in places
    }


def columns_of(log: PartitionBytes, first: int, end: int) -> Iterator[Columns]:
    """Yield offsets and hashes of the data records of [first, end), in pieces, without what is missing."""
    at = first
    while at < end:
        try:
            for stretch in log.stretches(at, end):
                at = int(stretch.last_offsets()[-1]) + 1
                rows = new_rows()
                hash_all(stretch.of_data(), rows)
                if rows[0]:
                    yield _within(rows, first, end)
            break
        except Missing as missing:
            at = max(at + 1, missing.end)


def _within(rows: Rows, first: int, end: int) -> Columns:
    offsets, keys, values = as_columns(rows)
    which = (offsets >= first) & (offsets < end)
    if which.all():
        return offsets, keys, values
    return offsets[which], keys[which], values[which]
