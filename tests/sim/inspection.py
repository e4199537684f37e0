"""Owns the look at the files of a broker that is gone: what its logs hold, and whether recovery is exact.

Works on a copy of the disk, as if the process had been killed now: opens every log through storage, compares
indexes, producer state and epochs with what a plain walk over the bytes gives, then kills and opens again,
which must change nothing. Does not own the rules.

Invariant: the disk that is looked at is not changed by looking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.config.broker import BrokerConfig
from protocol import records
from storage.log import AbstractLog
from storage.segment import Segment
from storage.unified_log import UnifiedLog
from tests.sim.client import read_batch
from tests.sim.disk import Disk
from tests.sim.history import Batch, Recovery, TopicPartition
from tests.sim.restart import TopicConfigs, open_logs, told_nothing

REMEMBERED_BATCHES = 5

Tiered = Callable[[TopicPartition, UnifiedLog], Sequence[records.BatchHeader]]
"""The batches that a log may read from the tier, before its files begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    log_end_offset: int
    batches: tuple[Batch, ...]
    epochs: tuple[tuple[int, int], ...]


def nothing_tiered(tp: TopicPartition, log: UnifiedLog) -> Sequence[records.BatchHeader]:
    return ()


def inspect(
    disk: Disk,
    config: BrokerConfig,
    partitions: Sequence[TopicPartition],
    *,
    latest_ms: int,
    topic_configs: TopicConfigs = told_nothing,
    tiered: Tiered = nothing_tiered,
    alive: Mapping[TopicPartition, AbstractLog] | None = None,
) -> tuple[dict[TopicPartition, FoundLog], Recovery]:
    """What the logs hold after a kill at this moment, and every way in which recovery was not exact;
    `latest_ms` is the latest that the broker's clock ever showed, `alive` are logs as it has them now."""
    expired_ms = latest_ms - config.producer_id_expiration_ms
    differences: list[str] = []
    first_disk = disk.clone()
    first = open_logs(first_disk, config, differences, topic_configs)
    found = {tp: _contents(first.logs[tp]) for tp in partitions if tp in first.logs}
    for tp, log in sorted(first.logs.items()):
        wrong = _check_log(log, expired_ms, tiered(tp, log))
        if alive is not None and tp in alive:
            wrong += _changes(alive[tp], log)
        differences += [f"{tp[0]}-{tp[1]}: {what}" for what in wrong]
    before = {tp: _state(log) for tp, log in sorted(first.logs.items())}
    second_disk = first_disk.clone()
    second = open_logs(second_disk, config, differences, topic_configs)
    after = {tp: _state(log) for tp, log in sorted(second.logs.items())}
    differences += [
        f"{tp[0]}-{tp[1]}: a second restart changed {before.get(tp)} to {after.get(tp)}"
        for tp in sorted(before.keys() | after.keys())
        if before.get(tp) != after.get(tp)
    ]
    differences += _changed_logs(first_disk, second_disk)
    return found, Recovery(differences=tuple(differences))


def _changed_logs(first: Disk, second: Disk) -> list[str]:
    """Segment bytes are data: no restart may change one after the first has cut what was broken."""
    before, after = (
        {p: d for p, d in disk.snapshot().items() if p.endswith(".log")} for disk in (first, second)
    )
    return [
        f"a second restart changed {path}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _state(log: UnifiedLog) -> tuple[object, ...]:
    producers = sorted(
        (entry.producer_id, entry.epoch, [batch[:4] for batch in entry.batches])
        for entry in log.producer_table.entries.values()
    )
    return (
        log.log_start_offset,
        log.local_log_start_offset,
        log.log_end_offset,
        tuple(log.epochs.entries()),
        tuple(map(str, producers)),
        tuple((segment.base_offset, segment.size) for segment in log.segments),
    )


def _changes(before: AbstractLog, after: AbstractLog) -> list[str]:
    """What a restart would change of a log in the tier. The start that a follower heard of may be behind on
    the disk."""
    if not before.is_tiered or before.epochs_incomplete:
        return []
    start, end = before.log_start_offset, before.log_end_offset
    facts = [
        ("local start", before.local_log_start_offset, after.local_log_start_offset),
        ("end", end, after.log_end_offset),
        ("epochs", before.epochs.entries_within(start, end), after.epochs.entries_within(start, end)),
    ]
    wrong = [f"a restart changes its {what}: {now} to {then}" for what, now, then in facts if now != then]
    if after.log_start_offset > start:
        wrong.append(f"a restart changes its start: {start} to {after.log_start_offset}")
    return wrong


def _walk(segment: Segment) -> list[tuple[int, records.BatchHeader, bytes]]:
    data = segment.file.pread(segment.size, 0)
    return [(at, header, data[at : at + header.size]) for at, header in records.iter_batches(data)]


def _contents(log: UnifiedLog) -> FoundLog:
    batches = [
        read_batch(memoryview(data), 0, header)
        for segment in log.segments
        for _, header, data in _walk(segment)
    ]
    return FoundLog(
        log_end_offset=log.log_end_offset, batches=tuple(batches), epochs=tuple(log.epochs.entries())
    )


def batches_of(parts: Sequence[tuple[str, int, bytes]]) -> list[Batch]:
    """Every whole batch of a log's segments, while its broker lives."""
    return [
        read_batch(memoryview(data), at, header)
        for _, _, data in parts
        for at, header in records.iter_batches(data)
    ]


def _check_log(log: UnifiedLog, expired_ms: int, tiered: Sequence[records.BatchHeader]) -> list[str]:
    wrong: list[str] = []
    producers: dict[int, tuple[int, deque[records.BatchHeader]]] = {}
    opened: dict[int, int] = {}
    for header in tiered:
        if header.next_offset <= log.segments[0].base_offset:
            _count(producers, header, log)
            _open(opened, header, log)
    end = log.segments[0].base_offset
    for segment in log.segments:
        rows = _walk(segment)
        wrong += _check_indexes(segment, rows)
        for _, header, _ in rows:
            end = header.next_offset
            _count(producers, header, log)
            _open(opened, header, log)
    end = max(end, log.segments[-1].base_offset)
    if log.log_end_offset != end:
        wrong.append(f"the log ends at {end}, it says {log.log_end_offset}")
    for producer_id, (epoch, headers) in producers.items():
        owed = [
            (header.base_sequence, header.last_sequence, header.base_offset, header.last_offset)
            for header in headers
            if header.max_timestamp >= expired_ms
        ]
        if not owed:
            continue
        entry = log.producer_table.known(producer_id)
        known = [tuple(batch[:4]) for batch in entry.batches] if entry is not None else []
        # Batches that retention or DeleteRecords took may still be known; those in the log must be, unless
        # there was a moment at which they had expired.
        if entry is None or entry.epoch != epoch or known[-len(owed) :] != owed:
            wrong.append(f"producer {producer_id}: the log says {epoch} {owed}, the table {entry} {known}")
    seen_from = log.log_start_offset if tiered else log.segments[0].base_offset
    return wrong + _check_opened(log, opened, seen_from)


def _check_opened(log: UnifiedLog, opened: Mapping[int, int], seen_from: int) -> list[str]:
    """Return the producers of which the table says something else about an open transaction than the log,
    where that can tell: what is deleted, or in a tier that was not looked at, may have begun one."""
    known = {
        producer_id: entry.txn_first_offset
        for producer_id, entry in log.producer_table.entries.items()
        if entry.txn_first_offset >= 0
    }
    return [
        f"producer {producer_id}: the log has a transaction open from {opened.get(producer_id)} on, the table"
        f" from {known.get(producer_id)} on"
        for producer_id in sorted(known.keys() | opened.keys())
        if opened.get(producer_id) != known.get(producer_id)
        and not (producer_id in known and known[producer_id] < max(seen_from, log.log_start_offset))
    ]


def _open(opened: dict[int, int], header: records.BatchHeader, log: UnifiedLog) -> None:
    if header.next_offset <= log.log_start_offset or not header.is_transactional:
        return
    if header.is_control:
        opened.pop(header.producer_id, None)
    else:
        opened.setdefault(header.producer_id, header.base_offset)


def _count(
    producers: dict[int, tuple[int, deque[records.BatchHeader]]],
    header: records.BatchHeader,
    log: UnifiedLog,
) -> None:
    is_counted = header.next_offset > log.log_start_offset  # see ReplicaLog
    if not is_counted or header.producer_id < 0:
        return
    epoch, batches = producers.get(header.producer_id, (-1, deque(maxlen=REMEMBERED_BATCHES)))
    if header.producer_epoch != epoch:
        batches = deque(maxlen=REMEMBERED_BATCHES)
    if header.base_sequence >= 0:  # which neither a marker has nor what a coordinator writes for a producer
        batches.append(header)
    producers[header.producer_id] = (header.producer_epoch, batches)


def _check_indexes(segment: Segment, rows: list[tuple[int, records.BatchHeader, bytes]]) -> list[str]:
    wrong: list[str] = []
    at_position = {at: header for at, header, _ in rows}
    for entry in segment.offsets.entries:
        relative, position = entry >> 32, entry & 0xFFFFFFFF
        header = at_position.get(position)
        if header is None or header.last_offset - segment.base_offset != relative:
            wrong.append(f"segment {segment.base_offset}: the offset index says {relative} is at {position}")
    largest: dict[int, int] = {}
    running = -1
    for _, header, _ in rows:
        running = max(running, header.max_timestamp)
        for offset in range(header.base_offset, header.next_offset):
            largest[offset - segment.base_offset] = running
    times = list(zip(segment.times.timestamps, segment.times.offsets, strict=True))
    for timestamp, relative in times:
        if largest.get(relative) != timestamp:
            wrong.append(
                f"segment {segment.base_offset}: the time index says {timestamp} by {relative},"
                f" the log {largest.get(relative)}"
            )
    if segment.largest_timestamp != running:
        wrong.append(
            f"segment {segment.base_offset}: largest timestamp {segment.largest_timestamp}, not {running}"
        )
    return wrong
