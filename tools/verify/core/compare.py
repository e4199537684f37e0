"""Copies of the same offsets, against each other: first by sums over buckets, then batch by batch.

Owns which copies are compared where, and who is outvoted. Does not own which bytes count (lineage) or the
reading of the second pass (scan). Invariant: copies with equal batches never differ, however slices and
segments cut them; of a difference each batch is named once, at the place that the others outvote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tools.verify.core.facts import BUCKET_BITS, BatchRow, Digest, Run
from tools.verify.core.findings import Finding, Severity, declare
from tools.verify.core.lineage import Range

REPLICAS_DIFFER = declare(
    "replicas-differ",
    Severity.ERROR,
    "Replicas hold different bytes at the same offsets, below the high watermark of both.",
    "Take the offsets from the copy that the others confirm; --repair-plan names it.",
)
COPIES_DIFFER = declare(
    "copies-differ",
    Severity.ERROR,
    "The same offsets have different bytes in local logs, the WAL tier and the cold tier.",
    "Take the offsets from the copy that the others confirm; --repair-plan names it.",
)
OVERLAP = declare(
    "overlap",
    Severity.ERROR,
    "Two places of one tier hold the same offsets with different bytes, and no other has them.",
    "Find out which of the two the partition's leader wrote; a replica that was not given may tell.",
)
MODULUS: Final = 1 << 63
SUSPECTS_MAX: Final = 10_000
"""Buckets of one partition for the second pass: more are named as they are, in one finding."""


class Chain(NamedTuple):
    """A copy: places that follow each other, without two of them for one offset."""

    name: str
    """`local <directory>`, `wal <number>` or `cold <number>`."""
    rank: int
    """Of two copies that differ, with nobody to outvote either, the higher is named."""
    runs: tuple[Run, ...]
    """Ascending."""
    ranges: tuple[Range, ...]
    """What of it counts, without what its faults name."""
    digests: tuple[Digest, ...]

    @property
    def tier(self) -> str:
        return self.name.partition(" ")[0]


class Look(NamedTuple):
    """Where the batches of a stretch of one copy lie."""

    chain: str
    place: str
    position: int
    size: int


class Suspect(NamedTuple):
    """Offsets whose copies must be compared batch by batch."""

    first: int
    end: int
    looks: tuple[Look, ...]


class Sum(NamedTuple):
    first: int
    end: int
    batches: int
    low: int
    high: int


def layers(parts: Iterable[tuple[int, int, int]]) -> list[list[int]]:
    """Return the parts (first, end, number) as few rows of numbers, in none of which two overlap."""
    rows: list[list[int]] = []
    ends: list[int] = []
    for first, end, number in sorted(parts):
        for at, row in enumerate(rows):
            if ends[at] <= first:
                row.append(number)
                ends[at] = end
                break
        else:
            rows.append([number])
            ends.append(end)
    return rows


def suspects(chains: Sequence[Chain]) -> list[Suspect]:
    """Return the stretches in which copies do not agree, or only batches can tell."""
    sums = [_sums(chain.digests) for chain in chains]
    buckets: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(sums):
        for bucket in each:
            buckets[bucket].append(number)
    found: list[Range] = []
    for bucket, numbers in buckets.items():
        low, high = bucket << BUCKET_BITS, (bucket + 1) << BUCKET_BITS
        holders = [number for number, chain in enumerate(chains) if _meets(chain.ranges, low, high)]
        if len(holders) < 2 or not _overlap([chains[number].ranges for number in holders], low, high):
            continue
        values = {sums[number].get(bucket) for number in {*holders, *numbers}}
        if len(values) > 1:
            found.append((low, high))
    return [_suspect(chains, first, end) for first, end in sorted(found)]


def _meets(ranges: Sequence[Range], low: int, high: int) -> bool:
    return any(first < high and low < end for first, end in ranges)


def _overlap(copies: Sequence[Sequence[Range]], low: int, high: int) -> bool:
    """Whether an offset in [low, high) is in two of the copies, where one may begin as another ends."""
    parts = sorted(
        (max(first, low), min(end, high)) for ranges in copies for first, end in ranges
        if first < high and low < end
    )  # fmt: skip
    return any(after[0] < before[1] for before, after in pairwise(parts))


def _sums(digests: Iterable[Digest]) -> dict[int, Sum]:
    found: dict[int, Sum] = {}
    for each in digests:
        now = found.get(each.bucket)
        if now is None:
            found[each.bucket] = Sum(each.first, each.end, each.batches, each.low, each.high)
        else:
            found[each.bucket] = Sum(
                min(now.first, each.first),
                max(now.end, each.end),
                now.batches + each.batches,
                (now.low + each.low) % MODULUS,
                (now.high + each.high) % MODULUS,
            )
    return found


def _suspect(chains: Sequence[Chain], first: int, end: int) -> Suspect:
    looks = [
        Look(chain.name, run.place, run.position, run.size)
        for chain in chains
        for run in chain.runs
        if run.first < end and first < run.end
    ]
    return Suspect(first, end, tuple(looks))


class Batches(NamedTuple):
    """What a copy holds at one base offset; `row` None: nothing, although it holds the offsets around."""

    chain: Chain
    row: BatchRow | None


def compare(
    topic_id: str,
    partition: int,
    chains: Sequence[Chain],
    suspect: Suspect,
    rows: Iterable[BatchRow],
) -> list[Finding]:
    """Return the batches in which copies differ, consecutive ones of one place as one."""
    home = {(look.place, look.position): look.chain for look in suspect.looks}
    by_place: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for look in suspect.looks:
        by_place[look.place].append(
            (look.position, look.position + look.size, home[look.place, look.position])
        )
    held: dict[int, dict[str, BatchRow]] = defaultdict(dict)
    for row in rows:
        for start, stop, name in by_place[row.place]:
            if start <= row.position < stop:
                held[row.base].setdefault(name, row)
    found: list[Finding] = []
    for base in sorted(held):
        there = held[base]
        if not suspect.first <= base < suspect.end:
            continue
        end = max(row.end for row in there.values())
        sides = [
            Batches(chain, there.get(chain.name))
            for chain in chains
            if _holds(chain.ranges, base, min(row.end for row in there.values()))
        ]
        found += _outvoted(topic_id, partition, base, end, sides)
    return _merged(found)


def _holds(ranges: Sequence[Range], first: int, end: int) -> bool:
    return any(low <= first and end <= high for low, high in ranges)


def _identity(row: BatchRow | None) -> tuple[int, ...]:
    return () if row is None else (row.end, row.size, row.leader_epoch, row.crc)


def _outvoted(topic_id: str, partition: int, base: int, end: int, sides: Sequence[Batches]) -> list[Finding]:
    groups: dict[tuple[int, ...], list[Batches]] = defaultdict(list)
    for side in sides:
        groups[_identity(side.row)].append(side)
    if len(groups) < 2:
        return []
    believed = min(groups.values(), key=lambda group: (-len(group), min(one.chain.rank for one in group)))
    found = []
    for group in groups.values():
        if group is believed:
            continue
        for side in group:
            place, position = _place_of(side, base)
            code = _code(side, believed)
            told = _told(believed[0]), _told(side)
            found.append(Finding(code, topic_id, partition, base, end, place, position, *told))
    return found


def _place_of(side: Batches, base: int) -> tuple[str, int]:
    if side.row is not None:
        return side.row.place, side.row.position
    before = [run for run in side.chain.runs if run.first <= base]
    run = before[-1] if before else side.chain.runs[0]
    return run.place, -1


def _code(side: Batches, believed: Sequence[Batches]) -> str:
    tiers = {one.chain.tier for one in believed}
    if side.chain.tier == "local" and "local" in tiers:
        return REPLICAS_DIFFER
    return OVERLAP if tiers == {side.chain.tier} else COPIES_DIFFER


def _told(side: Batches) -> str:
    row = side.row
    if row is None:
        return "no such batch"
    return f"epoch {row.leader_epoch}, {row.size} bytes, crc {row.crc & 0xFFFFFFFF:08x}"


def _merged(found: list[Finding]) -> list[Finding]:
    merged: list[Finding] = []
    last: dict[tuple[str, str], int] = {}
    for each in found:
        key = each.code, each.place
        at = last.get(key)
        if at is not None and merged[at].end >= each.first:
            merged[at] = merged[at]._replace(end=max(merged[at].end, each.end))
        else:
            last[key] = len(merged)
            merged.append(each)
    return merged
