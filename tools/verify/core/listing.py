"""What lies in a store by its listing, against what metadata says should be there.

Owns missing, left-over, short and long copies of the cold tier, and which objects of a stream of the WAL tier
count. Does not own the bytes (scan) or offsets (judge). Invariant: what metadata read before and after the
listing does not agree on is never a finding, nor is anything that was younger than the grace when the newest
object was put: whoever had to delete it may not have run since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from tools.verify.core.facts import StreamObject
from tools.verify.core.findings import Counted, Finding, Severity, declare
from tools.verify.core.judge import Explained, Extent, Stream
from tools.verify.core.keys import (
    MetaBoundary,
    MetaSlot,
    MetaSnapshot,
    StreamKey,
    TierData,
    TierIndex,
    WalBoundary,
    WalIndex,
    WalObject,
    parse_key,
    tier_key,
    wal_key,
)
from tools.verify.core.plan import ColdUnit, WalIndexUnit, WalUnit
from tools.verify.core.stores import Listed
from tools.verify.core.tier_topics import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_FINISHED,
    DELETE_STARTED,
    Copy,
    Partition,
    ToldCopy,
    ToldSlice,
)

UNKNOWN_KEY = declare(
    "unknown-key",
    Severity.WARNING,
    "An object of the store has a key that none of ours has.",
    "Find out who else writes to this prefix; brokers never read or delete it.",
)
COLD_MISSING_DATA = declare(
    "cold-missing-data",
    Severity.ERROR,
    "A copy counts, and its data is not in the store.",
    "Restore the object from a version or backup of the bucket, or let a replica copy the offsets anew.",
)
COLD_MISSING_INDEX = declare(
    "cold-missing-index",
    Severity.ERROR,
    "A copy counts, and its index object is not in the store.",
    "The partition's leader can build it anew from the data.",
)
COLD_ORPHAN = declare(
    "cold-orphan",
    Severity.ERROR,
    "An object of the cold tier belongs to no copy that counts or is being made.",
    "Nothing reads it; once it is certain that no broker is about to, delete it.",
)
COLD_SHORT = declare(
    "cold-short",
    Severity.ERROR,
    "The data of a copy has fewer bytes than metadata says.",
    "Let a replica that has the offsets copy them anew.",
)
COLD_TAIL = declare(
    "cold-tail",
    Severity.ERROR,
    "The data of a copy has more bytes than metadata says.",
    "What is behind its end is never read; find out who wrote it.",
)
WAL_GAP = declare(
    "wal-gap",
    Severity.ERROR,
    "Objects of a stream are missing below others that count.",
    "Restore them from a version or backup of the bucket; replicas or the cold tier may have the offsets.",
)
WAL_ORPHAN = declare(
    "wal-orphan",
    Severity.ERROR,
    "An object of the WAL tier does not count any more, and nobody has deleted it.",
    "Nothing reads it; the brokers' collectors should have deleted it.",
)
WAL_SEAL_BAD = declare(
    "wal-seal-bad",
    Severity.ERROR,
    "A seal names a slot of the metadata log that there is not.",
    "Find out who wrote it: a seal ends a stream for good.",
)

IN_FLIGHT_MAX: Final = 4
"""Objects of a stream whose puts may be under way at once."""


class StreamListing(NamedTuple):
    """The objects of a stream by their numbers."""

    objects: dict[int, Listed]
    boundaries: dict[int, Listed]
    indexes: dict[int, Listed]


class ListedCopy(NamedTuple):
    """What is listed of a copy. A store may have millions: keys are left out, for they follow from it."""

    data_base: int
    data_size: int
    """-1: its data is not there."""
    data_ms: int
    index_base: int
    index_size: int
    """-1: its index object is not there."""
    index_ms: int

    @property
    def base(self) -> int:
        """What its keys say; of two that differ, which no broker puts, the higher."""
        return max(self.data_base, self.index_base)


NOTHING_LISTED: Final = ListedCopy(-1, -1, -1, -1, -1, -1)


class Listing(NamedTuple):
    """A store's keys, sorted into what they name."""

    copies: dict[Partition, dict[str, ListedCopy]]
    """By the ids of the copies."""
    streams: dict[StreamKey, StreamListing]
    unknown: tuple[Listed, ...]
    objects: int
    size: int
    meta_objects: int
    meta_size: int
    newest_ms: int
    """When the newest object was put: until then brokers were there to delete what does not count."""


def sort_out(listed: Iterable[Listed]) -> Listing:
    copies: dict[Partition, dict[str, ListedCopy]] = defaultdict(dict)
    streams: dict[StreamKey, StreamListing] = defaultdict(lambda: StreamListing({}, {}, {}))
    unknown = []
    objects = size = meta_objects = meta_size = newest_ms = 0
    for each in listed:
        objects += 1
        size += each.size
        newest_ms = max(newest_ms, each.modified_ms)
        match parse_key(each.key):
            case TierData(topic_id, partition, base, segment_id):
                mine = copies[topic_id, partition]
                index = mine.get(segment_id, NOTHING_LISTED)[3:]
                mine[segment_id] = ListedCopy(base, each.size, each.modified_ms, *index)
            case TierIndex(topic_id, partition, base, segment_id):
                mine = copies[topic_id, partition]
                data = mine.get(segment_id, NOTHING_LISTED)[:3]
                mine[segment_id] = ListedCopy(*data, base, each.size, each.modified_ms)
            case WalObject(stream, seq):
                streams[stream].objects[seq] = each
            case WalIndex(stream, seq):
                streams[stream].indexes[seq] = each
            case WalBoundary(stream, seq):
                streams[stream].boundaries[seq] = each
            case MetaSlot() | MetaSnapshot() | MetaBoundary():
                meta_objects += 1
                meta_size += each.size
            case None:
                unknown.append(each)
    sorted_out = dict(copies), dict(streams), tuple(unknown)
    return Listing(*sorted_out, objects, size, meta_objects, meta_size, newest_ms)


class Copies(NamedTuple):
    """What the listing says of the cold tier."""

    units: list[ColdUnit]
    """To be read."""
    findings: list[Finding]
    counted: list[Counted]
    explained: dict[tuple[str, int], list[Explained]]
    """Offsets whose absence is told or legal."""


def judge_copies(
    listing: Listing,
    before: Mapping[Copy, ToldCopy] | None,
    after: Mapping[Copy, ToldCopy] | None,
    dead_topics: frozenset[str] | None,
    grace_ms: int,
) -> Copies:
    """Hold the copies that are listed against what metadata says of them, None: it could not be read. Empties
    `listing.copies` on its way.

    `dead_topics`: topics of copies whose id the image does not have, None: there is no image.
    """
    found = Copies([], [], [], defaultdict(list))
    absent: dict[Partition, set[str]] = defaultdict(set)
    for topic_id, number, segment_id in chain(before or (), after or ()):
        if segment_id not in listing.copies.get((topic_id, number), ()):
            absent[topic_id, number].add(segment_id)
    for partition in sorted({*listing.copies, *absent}):
        listed = listing.copies.pop(partition, {})
        is_dead = dead_topics is not None and partition[0] in dead_topics
        dead = 0
        for segment_id in sorted({*listed, *absent.get(partition, ())}):
            copy = *partition, segment_id
            told = _Told(before.get(copy) if before else None, after.get(copy) if after else None)
            is_told = before is not None and after is not None and not _is_half_told(told)
            if is_told and is_dead:
                dead += 1
                continue
            base, data, index = _objects_of(copy, listed.get(segment_id, NOTHING_LISTED))
            if is_told:
                _judge_told(found, copy, base, data, index, told, listing.newest_ms, grace_ms)
            else:
                _judge_untold(found, copy, base, data, index, listing.newest_ms, grace_ms)
        if dead:
            found.counted.append(Counted("dead", *partition, amount=dead))
    return found


def _objects_of(copy: Copy, listed: ListedCopy) -> tuple[int, Listed | None, Listed | None]:
    """Return its base offset, data and index object."""
    topic_id, partition, segment_id = copy
    data = index = None
    if listed.data_size >= 0:
        key = tier_key(topic_id, partition, listed.data_base, segment_id, "log")
        data = Listed(key, listed.data_size, listed.data_ms)
    if listed.index_size >= 0:
        key = tier_key(topic_id, partition, listed.index_base, segment_id, "idx")
        index = Listed(key, listed.index_size, listed.index_ms)
    return listed.base, data, index


class _Told(NamedTuple):
    before: ToldCopy | None
    after: ToldCopy | None


def _is_half_told(told: _Told) -> bool:
    """Whether a copy counts of which no start is told: a finding, from which nothing else follows."""
    return any(each is not None and each.base < 0 and each.state == COPY_FINISHED for each in told)


def _judge_untold(
    found: Copies,
    copy: Copy,
    base: int,
    data: Listed | None,
    index: Listed | None,
    newest_ms: int,
    grace_ms: int,
) -> None:
    """Judge without metadata: the index object is put first and deleted last, so data never stands alone."""
    topic_id, partition, segment_id = copy
    put_ms = max((each.modified_ms for each in (data, index) if each is not None), default=-1)
    if put_ms < 0:
        return
    is_young = newest_ms - put_ms <= grace_ms
    if data is not None and index is not None:
        found.units.append(ColdUnit(topic_id, partition, base, segment_id, data, index, None, is_young))
    elif is_young:
        found.counted.append(Counted("young-orphan", topic_id, partition, base, -1))
    elif data is None:
        found.counted.append(Counted("unfinished-copy", topic_id, partition, base, -1))
    else:
        found.units.append(ColdUnit(topic_id, partition, base, segment_id, data, index, None))
        place = tier_key(topic_id, partition, base, segment_id, "idx")
        found.findings.append(Finding(COLD_MISSING_INDEX, topic_id, partition, base, -1, place))


def _judge_told(
    found: Copies,
    copy: Copy,
    base: int,
    data: Listed | None,
    index: Listed | None,
    told: _Told,
    newest_ms: int,
    grace_ms: int,
) -> None:
    topic_id, partition, segment_id = copy
    finished = [each for each in told if each is not None and each.state == COPY_FINISHED]
    if len(finished) == 2:
        _judge_finished(found, copy, base, data, index, finished[1])
        return
    if finished:
        one = finished[0]
        found.explained[topic_id, partition].append(Explained(one.base, one.end, "between-listings"))
        found.counted.append(Counted("between-listings", topic_id, partition, one.base, one.end))
        return
    state = told.after.state if told.after is not None else DELETE_FINISHED
    if state in (COPY_STARTED, DELETE_STARTED):
        what = "unfinished-copy" if state == COPY_STARTED else "deleting"
        found.counted.append(Counted(what, topic_id, partition, base, -1))
        return
    told_ms = max((each.event_ms for each in told if each is not None), default=-1)
    for each, end in ((index, "idx"), (data, "log")):
        if each is None:
            continue
        is_old = newest_ms - max(each.modified_ms, told_ms) > grace_ms
        if is_old and (told.after is not None or told.before is None):
            place = tier_key(topic_id, partition, base, segment_id, end)
            says = "nothing told" if told.after is None else "told to be deleted"
            found.findings.append(
                Finding(COLD_ORPHAN, topic_id, partition, base, -1, place, -1, "a copy that counts", says)
            )
        else:
            found.counted.append(Counted("young-orphan", topic_id, partition, base, -1))


def _judge_finished(
    found: Copies, copy: Copy, base: int, data: Listed | None, index: Listed | None, told: ToldCopy
) -> None:
    topic_id, partition, segment_id = copy
    if data is None and index is None:
        base = told.base
    for each, end, code in ((data, "log", COLD_MISSING_DATA), (index, "idx", COLD_MISSING_INDEX)):
        if each is None:
            place = tier_key(topic_id, partition, base, segment_id, end)
            found.findings.append(Finding(code, topic_id, partition, told.base, told.end, place))
    if data is None:
        found.explained[topic_id, partition].append(Explained(told.base, told.end, ""))
        return
    found.units.append(ColdUnit(topic_id, partition, base, segment_id, data, index, told))
    if data.size != told.size:
        is_short = data.size < told.size
        found.findings.append(
            Finding(
                COLD_SHORT if is_short else COLD_TAIL, topic_id, partition, told.base, told.end, data.key,
                min(data.size, told.size), f"{told.size} bytes", f"{data.size} bytes",
            )
        )  # fmt: skip


# --- the WAL tier ---


class Streams(NamedTuple):
    """What the listing says of the WAL tier, once its seals are known."""

    extents: dict[Stream, Extent]
    findings: list[Finding]
    counted: list[Counted]


def missing_objects(stream: StreamListing) -> tuple[int, ...]:
    """Return the numbers between the first and the last that should be there and are not."""
    low = max(stream.boundaries, default=-1) + 1
    there = sorted(seq for seq in stream.objects if seq >= low)
    if not there or there[-1] - low - len(there) > 1 << 16:
        return ()
    return tuple(seq for seq in range(low, there[-1]) if seq not in stream.objects)


def judge_streams(
    streams: Mapping[StreamKey, StreamListing],
    again: Mapping[StreamKey, StreamListing],
    seen: Sequence[StreamObject],
    told: Mapping[StreamKey, frozenset[int]],
    last_slot: int,
    newest_ms: int,
    grace_ms: int,
) -> Streams:
    """Say which objects of each stream count.

    `again`: what there was later of those that lacked objects. `seen`: seals, and objects that cannot be
    read. `told`: objects that the topic about the tier said count, both before and after the listing.
    `last_slot`: of the metadata log, -1 unknown. `newest_ms`: when the newest object of the store was put.
    """
    found = Streams({}, [], [])
    seals: dict[StreamKey, list[StreamObject]] = defaultdict(list)
    bad: dict[StreamKey, set[int]] = defaultdict(set)
    for each in seen:
        stream = StreamKey(*each.stream)
        if each.is_seal:
            seals[stream].append(each)
        else:
            bad[stream].add(each.seq)
    for stream in sorted({*streams, *told}):
        listing = streams.get(stream, StreamListing({}, {}, {}))
        _judge_stream(
            found, stream, listing, again.get(stream), seals[stream], bad[stream],
            told.get(stream, frozenset()), last_slot, newest_ms, grace_ms,
        )  # fmt: skip
    return found


def _judge_stream(
    found: Streams,
    stream: StreamKey,
    listing: StreamListing,
    again: StreamListing | None,
    seals: Sequence[StreamObject],
    bad: set[int],
    told: frozenset[int],
    last_slot: int,
    newest_ms: int,
    grace_ms: int,
) -> None:
    low = max(listing.boundaries, default=-1) + 1
    for seal in seals:
        if 0 <= last_slot < seal.metadata_seq and seal.seq >= low:
            place = wal_key(stream, seal.seq)
            expected = f"at most {last_slot}"
            found.findings.append(
                Finding(WAL_SEAL_BAD, place=place, expected=expected, actual=str(seal.metadata_seq))
            )
    sealed_at = min((seal.seq for seal in seals if seal.seq >= low), default=None)
    there = sorted(seq for seq in listing.objects if seq >= low)
    wanted = sorted(seq for seq in told if seq >= low and (sealed_at is None or seq < sealed_at))
    end, lost = _end_of(there, wanted, low, sealed_at)
    late = again.objects.keys() & set(lost) if again is not None else set()
    if late:
        found.counted.append(Counted("between-listings", amount=len(late)))
    for first, last in _stretches([seq for seq in lost if seq not in late]):
        found.findings.append(
            Finding(
                WAL_GAP, place=wal_key(stream, first), expected=f"objects {first} to {last}",
                actual="not there",
            )
        )  # fmt: skip
    found.extents[stream] = Extent(low, end, tuple(sorted({*lost, *(bad & set(range(low, end)))})))
    _find_left_over(found, stream, listing, low, end, newest_ms, grace_ms)


def _end_of(
    there: Sequence[int], wanted: Sequence[int], low: int, sealed_at: int | None
) -> tuple[int, list[int]]:
    """Return the exclusive end of what counts, and the numbers below it that are missing.

    Without a seal, the first missing number ends the stream if puts that are under way explain it.
    """
    if sealed_at is not None:
        held = set(there)
        return sealed_at, [seq for seq in range(low, sealed_at) if seq not in held]
    known = sorted({*there, *wanted})
    if not known:
        return low, []
    held = set(there)
    surest = max(wanted, default=low - 1)
    missing: list[int] = []
    for seq in range(low, known[-1]):
        if seq in held:
            continue
        if seq > surest and known[-1] - seq < IN_FLIGHT_MAX:
            return seq, missing
        missing.append(seq)
    if known[-1] not in held:
        missing.append(known[-1])
    return known[-1] + 1, missing


def _stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for each in numbers:
        if found and found[-1][1] + 1 == each:
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return found


def _find_left_over(
    found: Streams,
    stream: StreamKey,
    listing: StreamListing,
    low: int,
    end: int,
    newest_ms: int,
    grace_ms: int,
) -> None:
    """Name what lies at or below a boundary, or above the end, for longer than the grace."""
    young = 0
    for seq, each in sorted(listing.objects.items()):
        if seq < low:
            over = [one.modified_ms for number, one in listing.boundaries.items() if number >= seq]
            since = max(each.modified_ms, min(over))
        elif seq >= end and not (seq == end and end in listing.objects):
            sealed = listing.objects.get(end)
            since = max(each.modified_ms, sealed.modified_ms if sealed else 0)
        else:
            continue
        if newest_ms - since > grace_ms:
            why = "below a boundary" if seq < low else "above the end"
            found.findings.append(Finding(WAL_ORPHAN, place=each.key, actual=why))
        else:
            young += 1
    if young:
        found.counted.append(Counted("young-orphan", amount=young))


def wal_units(
    listing: Listing, told: Mapping[tuple[StreamKey, int], tuple[ToldSlice, ...]]
) -> tuple[dict[StreamKey, list[WalUnit]], dict[StreamKey, list[WalIndexUnit]]]:
    """Return what there is to read of the WAL tier."""
    objects: dict[StreamKey, list[WalUnit]] = {}
    indexes: dict[StreamKey, list[WalIndexUnit]] = {}
    for stream, each in listing.streams.items():
        objects[stream] = [
            WalUnit(stream, seq, one, told.get((stream, seq))) for seq, one in sorted(each.objects.items())
        ]
        missing = missing_objects(each)
        indexes[stream] = [
            WalIndexUnit(stream, seq, one, missing, False) for seq, one in sorted(each.indexes.items())
        ]
    return objects, indexes
