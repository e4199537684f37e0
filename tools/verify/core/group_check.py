"""Committed offsets out of data directories, against the ends of the logs.

Owns which replicas are read for that, and what is passed over. Does not own commits (groups) or records
(told_records). Invariant: the commits were there before the logs were listed, so every log reaches as far as
any of them; partitions of which something could not be read accuse no group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tools.verify.core.data_view import DataView
from tools.verify.core.findings import Counted, Finding
from tools.verify.core.groups import OFFSETS_TOPIC, Bounds, GroupOffsets
from tools.verify.core.judge import LIMITLESS
from tools.verify.core.meta_fold import State
from tools.verify.core.outcome import Coverage, Unchecked, Unread
from tools.verify.core.stores import Source, SourceFailed
from tools.verify.core.told import replicas_of
from tools.verify.core.told_records import ToldRecords


class Committed(NamedTuple):
    """What groups have committed, as far as directories have it."""

    offsets: GroupOffsets
    unchecked: list[Unchecked]
    unread: list[Unread]


def read_commits(view: DataView, sources: Sequence[Source], states: Sequence[State]) -> Committed:
    """Read the topic of committed offsets, before the logs are listed that are held against it."""
    found = Committed(GroupOffsets(), [], [])
    topic = states[-1].named(OFFSETS_TOPIC) if states else None
    numbers = sorted({own.log.partition for own in view.logs if own.log.topic == OFFSETS_TOPIC})
    damaged = 0
    for number in numbers:
        replicas = replicas_of(view, OFFSETS_TOPIC, number, topic)
        try:
            records = ToldRecords([(sources[own.directory], own.log) for own in replicas])
            for record in records.records():
                found.offsets.add(record.key, record.value)
        except SourceFailed as error:
            found.unread.append(Unread(f"{OFFSETS_TOPIC} {number}", str(error)))
            continue
        damaged += bool(records.holes)
    if damaged:
        why = f"records of {damaged} partitions of {OFFSETS_TOPIC} are damaged: what groups committed there"
        found.unchecked.append(Unchecked("groups", f"{why} may be older than what was looked at"))
    return found


def reached(view: DataView, states: Sequence[State]) -> set[tuple[str, int]]:
    """Return the partitions of which all replicas in sync were listed: one of them has the end."""
    nodes = {own.node for own in view.logs}
    return {
        (topic.topic_id, number)
        for state in states[-1:]
        for topic in state.topics.values()
        for number, partition in enumerate(topic.partitions)
        if partition.isr and nodes.issuperset(partition.isr)
    }


def judge_commits(
    committed: Committed,
    coverage: Sequence[Coverage],
    whole: set[tuple[str, int]],
    found: Mapping[tuple[str, int], Sequence[Finding]],
) -> tuple[list[Finding], list[Counted], list[Unchecked]]:
    """Hold commits against the logs of `whole` partitions, of which these findings tell what is damaged."""
    bounds: Mapping[tuple[str, int], Bounds] = {
        (each.topic, each.partition): Bounds(
            each.topic_id, each.log_start, _reach(each, found.get((each.topic_id, each.partition), ()))
        )
        for each in coverage
        if each.topic and each.log_end >= 0 and (each.topic_id, each.partition) in whole
    }
    findings, counted = committed.offsets.judge(bounds)
    unchecked = list(committed.unchecked)
    if committed.offsets.refused:
        why = f"{committed.offsets.refused} records of {OFFSETS_TOPIC} could not be read"
        unchecked.append(Unchecked("groups", why))
    if committed.offsets.dropped:
        unchecked.append(Unchecked("groups", f"{committed.offsets.dropped} commits were too many to keep"))
    return findings, counted, unchecked


def _reach(log: Coverage, found: Sequence[Finding]) -> int:
    """Return how far a log reached before its end was damaged, which may be any offset."""
    if any(each.end < 0 and each.first >= log.log_end for each in found):
        return LIMITLESS
    return max([log.log_end, *(end for _, end in log.damaged)])
