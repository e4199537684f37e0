"""`tidewal tier check`: what the brokers say of the cold tier against what the object store holds.

Owns: what counts as wrong, and showing it. Does not own: what the brokers say (reader), options
(tools.commands). Invariant: nothing is changed. What comes or goes meanwhile is no complaint: what is
missing was named before and after the listing, what nobody names was named neither before nor after.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from uuid import UUID

from broker.control.metadata_log import BrokenLog, parse_slot
from broker.control.metadata_records import ClusterBorn
from broker.process import store_at
from protocol.checksum import crc32c
from protocol.errors import ErrorCode, KafkaError
from remote.bad_object import BadObject
from remote.cold.fold import PartitionFold
from remote.cold.index_object import check_header, decode_index_object
from remote.cold.object_tier import key_of
from remote.cold.segments import RemoteSegment, TieredPartition
from remote.cold.storage_manager import (
    SegmentHeader,
)
from remote.keys import SNAPSHOTS, TIER, SegmentPart, TierKey, parse_tier_key, slot_key, topic_prefix
from remote.store.location import BadStoreUrl, FileLocation, parse_store_url
from remote.store.metered import StoreStats
from remote.store.object_store import NoSuchObject, ObjectInfo, ObjectStore, StoreError
from storage.files import DiskFiles
from tools.client import Client
from tools.console import Failure, emit, emit_json, emit_table
from tools.tier.reader import (
    LOCAL_START,
    LOG_START,
    TierReader,
    copies_of,
    partitions_of,
    size_text,
    time_text,
)

_AFTER_DATA: Final = "brokers answer KAFKA_STORAGE_ERROR there; put the object back from a backup"
_AFTER_INDEX: Final = "brokers make the index anew from the data as they need it; put it back from a backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    problem: str
    where: str
    """A key, or a partition."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A partition at one moment."""

    finished: Mapping[UUID, RemoteSegment]
    named: frozenset[UUID]
    """The finished ones, those being copied, those being deleted."""

    @staticmethod
    def of(fold: PartitionFold | None) -> Seen:
        if fold is None:
            return Seen(finished={}, named=frozenset())
        return Seen(
            finished={copy.id: copy for copy in fold.finished()},
            named=frozenset(copy.id for copy in copies_of(fold)),
        )


def compare(
    before: Mapping[TieredPartition, Seen],
    objects: Sequence[ObjectInfo],
    after: Mapping[TieredPartition, Seen],
) -> list[Problem]:
    """Find what is wrong with the listing that was made between the two moments."""
    sizes = {info.key: info.size for info in objects}
    problems: list[Problem] = []
    for partition, seen in before.items():
        for copy in seen.finished.values():
            if copy.id in after[partition].finished:
                problems += _missing(copy, sizes)
    nobody = Seen(finished={}, named=frozenset())
    for info in objects:
        key = parse_tier_key(info.key)
        if key is None:
            problems.append(Problem(problem="unreferenced", where=info.key, detail="not a key of the tier"))
            continue
        partition = partition_of(key)
        moments = (before.get(partition, nobody), after.get(partition, nobody))
        if not any(key.segment_id in moment.named for moment in moments):
            detail = f"{info.size} bytes of {time_text(info.modified_ms) or '?'}"
            problems.append(Problem(problem="unreferenced", where=info.key, detail=detail))
    return problems


def partition_of(key: TierKey) -> TieredPartition:
    return TieredPartition(key.topic_id, key.partition)


def _missing(copy: RemoteSegment, sizes: Mapping[str, int]) -> Iterator[Problem]:
    data, index = (key_of(copy, part) for part in (SegmentPart.DATA, SegmentPart.INDEX))
    for key, next_ in ((data, _AFTER_DATA), (index, _AFTER_INDEX)):
        if key not in sizes:
            detail = f"offsets [{copy.base_offset}, {copy.end_offset}): {next_}"
            yield Problem(problem="missing", where=key, detail=detail)
    if sizes.get(data, copy.size_bytes) != copy.size_bytes:
        detail = f"{sizes[data]} bytes, not {copy.size_bytes}"
        yield Problem(problem="wrong size", where=data, detail=detail)


def holes(copies: Iterable[RemoteSegment], start: int, end: int) -> list[tuple[int, int]]:
    """The offsets of [start, end) that are in no copy."""
    found = []
    for copy in sorted(copies, key=lambda copy: copy.base_offset):
        if start < (edge := min(copy.base_offset, end)):
            found.append((start, edge))
        start = max(start, copy.end_offset)
    return [*found, (start, end)] if start < end else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    topics: list[str]
    copies: int
    bytes: int
    problems: list[Problem]


async def run(client: Client, topics: Sequence[str], url: str, *, is_deep: bool, as_json: bool) -> None:
    """Compare, and show what is wrong; all topics, and those that are gone, when none is named."""
    store = open_store(url)
    try:
        await check_cluster(client, store, url)
        report = await report_on(client, topics, store, is_deep=is_deep)
    except (StoreError, BrokenLog) as error:
        raise Failure(str(error), exit_code=2) from None
    finally:
        await store.close()
    show(report, as_json=as_json)


def open_store(url: str) -> ObjectStore:
    """Failure for a URL that is none, or of no directory."""
    try:
        location = parse_store_url(url, os.environ)
    except BadStoreUrl as error:
        raise Failure(str(error), exit_code=2) from None
    if isinstance(location, FileLocation) and not DiskFiles().exists(location.path):
        raise Failure(f"{url}: there is no such directory", exit_code=2)
    return store_at(location, StoreStats())


async def check_cluster(client: Client, store: ObjectStore, url: str) -> None:
    """Failure when this is another cluster's store: everything would be missing."""
    await client.refresh([])
    snapshots = await store.list(SNAPSHOTS)
    try:
        slot = await store.get(snapshots[-1].key if snapshots else slot_key(1))
    except NoSuchObject:
        raise Failure(f"{url} holds no cluster: give the --store of the brokers", exit_code=2) from None
    born = [record.cluster_id for record in parse_slot(slot).records if isinstance(record, ClusterBorn)]
    if born != [client.known.cluster_id]:
        told = f"{url} holds cluster {', '.join(born)}, the brokers are of {client.known.cluster_id}"
        raise Failure(f"{told}: give the --store of the brokers", exit_code=2)


async def report_on(client: Client, topics: Sequence[str], store: ObjectStore, *, is_deep: bool) -> Report:
    if not topics:
        answer = await client.refresh()
        names = sorted(topic.name for topic in answer.topics if not topic.is_internal)
        prefixes = [TIER]
    else:
        names = list(dict.fromkeys(topics))
        prefixes = []
    partitions = [(name, each) for name in names for each in await partitions_of(client, name)]
    prefixes = prefixes or [topic_prefix(topic_id) for topic_id in {each.topic_id for _, each in partitions}]
    local_starts = {each: await _start(client, name, each, LOCAL_START) for name, each in partitions}
    reader = TierReader(client)
    await reader.open()
    known = {each for _, each in partitions}
    # Partitions that only the store knows, whose topics are gone, are read as well.
    known |= {partition_of(key) for info in await _list(store, prefixes) if (key := parse_tier_key(info.key))}
    await reader.read(known)
    before = {each: Seen.of(reader.get(each)) for each in known}
    objects = await _list(store, prefixes)
    known |= {partition_of(key) for info in objects if (key := parse_tier_key(info.key))}
    await reader.read(known)
    after = {each: Seen.of(reader.get(each)) for each in known}
    problems = compare(before, objects, after)
    copies = [copy for seen in before.values() for copy in seen.finished.values()]
    for name, each in partitions:
        log_start = await _start(client, name, each, LOG_START)
        local_start = local_starts[each]
        if log_start is None or local_start is None:
            continue
        for start, end in holes(before[each].finished.values(), log_start, local_start):
            where = f"{name}-{each.number}"
            detail = f"offsets [{start}, {end}) are nowhere"
            problems.append(Problem(problem="hole", where=where, detail=detail))
    if is_deep:
        problems += await _damaged(store, copies, problems, reader)
    problems.sort(key=lambda problem: (problem.problem, problem.where))
    return Report(
        topics=names, copies=len(copies), bytes=sum(copy.size_bytes for copy in copies), problems=problems
    )


async def _start(client: Client, topic: str, partition: TieredPartition, name: int) -> int | None:
    """Return the offset; None where the broker does not know the name of it."""
    code, offset, _ = await client.list_offset(topic, partition.number, name)
    if code == ErrorCode.unsupported_version:
        return None
    if code != ErrorCode.none:
        raise KafkaError(code, f"partition {topic}-{partition.number}")
    return offset


async def _list(store: ObjectStore, prefixes: Iterable[str]) -> list[ObjectInfo]:
    return [info for prefix in prefixes for info in await store.list(prefix)]


async def _damaged(
    store: ObjectStore, copies: Sequence[RemoteSegment], problems: Sequence[Problem], reader: TierReader
) -> list[Problem]:
    """Read every object of the copies and compare it with its checksums."""
    told = {problem.where for problem in problems}
    found = []
    for copy in copies:
        data, index = (key_of(copy, part) for part in (SegmentPart.DATA, SegmentPart.INDEX))
        if told.intersection((data, index)):
            continue
        key, next_, why = index, _AFTER_INDEX, None
        try:
            header = await _read_index(store, index, copy)
            key, next_ = data, _AFTER_DATA
            await _read_through(store, data, header)
        except BadObject as error:
            why = str(error)
        except NoSuchObject as error:
            why = f"{error} is gone"
        if why is not None:
            await reader.read([copy.partition])
            if copy.id in Seen.of(reader.get(copy.partition)).finished:
                found.append(Problem(problem="damaged", where=key, detail=f"{why}: {next_}"))
    return found


async def _read_index(store: ObjectStore, key: str, copy: RemoteSegment) -> SegmentHeader:
    head, _ = decode_index_object(await store.get(key))
    check_header(head.header, copy)
    return head.header


async def _read_through(store: ObjectStore, key: str, header: SegmentHeader) -> None:
    """BadObject at the first block that is wrong."""
    for number, crc in enumerate(header.block_crcs):
        start = number * header.block_bytes
        data = await store.get_range(key, start, start + header.block_bytes)
        if crc32c(data) != crc:
            raise BadObject(f"the block at {start} fails its CRC")


def show(report: Report, *, as_json: bool) -> None:
    """Print what was found; Failure when something is wrong."""
    if as_json:
        emit_json({"sound": not report.problems, **asdict(report)})
    elif report.problems:
        emit_table(("problem", "where", "detail"), [asdict(problem) for problem in report.problems])
    else:
        emit(f"{report.copies:,} copies with {size_text(report.bytes)}: all there, and nothing else")
    if report.problems:
        counts = Counter(problem.problem for problem in report.problems)
        raise Failure(", ".join(f"{count} {name}" for name, count in counts.items()))
