"""Copies and the logs they were taken from: a tree of lineages in which each epoch has one leader."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from hypothesis import strategies as st

from remote.cold.segments import RemoteSegment, SegmentStarted, SegmentState, SegmentUpdated, TieredPartition
from storage.epochs import EpochCache

PARTITION = TieredPartition(UUID(int=7), 3)
END_MAX = 40

Lineage = tuple[tuple[int, int], ...]
"""(epoch, start), from offset 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A copy and how far it came."""

    segment: RemoteSegment
    state: SegmentState


UPDATED_MS = 3000


def copy_of(
    lineage: Lineage,
    base: int,
    end: int,
    *,
    number: int,
    size: int = 100,
    max_timestamp_ms: int = 1000,
    has_aborted: bool = False,
) -> RemoteSegment:
    """The copy of [base, end) of a log with this lineage."""
    epochs = [(epoch, max(start, base)) for epoch, start in lineage if start < end]
    first = max(at for at, (_, start) in enumerate(epochs) if start <= base)
    return RemoteSegment(
        partition=PARTITION,
        topic="logs",
        id=UUID(int=number),
        base_offset=base,
        end_offset=end,
        broker_id=1,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=2000,
        size_bytes=size,
        epochs=tuple(epochs[first:]),
        has_aborted=has_aborted,
    )


def epochs_of(lineage: Lineage) -> EpochCache:
    return EpochCache(lineage)


def events_of(life: Life) -> list[SegmentStarted | SegmentUpdated]:
    """What was said of a copy until now."""
    events: list[SegmentStarted | SegmentUpdated] = [SegmentStarted(segment=life.segment)]
    return events + [update(life.segment, state) for state in list(SegmentState)[1 : life.state + 1]]


def update(segment: RemoteSegment, state: SegmentState, custom: bytes | None = None) -> SegmentUpdated:
    return SegmentUpdated(
        partition=segment.partition,
        topic=segment.topic,
        id=segment.id,
        state=state,
        broker_id=1,
        event_timestamp_ms=UPDATED_MS + state,
        custom=custom,
    )


@st.composite
def trees(draw: st.DrawFn) -> list[Lineage]:
    """Lineages that share what they have up to where a leader lost the others' records."""
    lineages: list[Lineage] = [((0, 0),)]
    for epoch in range(1, draw(st.integers(1, 5))):
        parent = draw(st.sampled_from(lineages))
        lowest = parent[-1][1] + 1 if draw(st.booleans()) else 1
        start = draw(st.integers(lowest, END_MAX + epoch))
        kept = tuple(entry for entry in parent if entry[1] < start)
        lineages.append((*kept, (epoch, start)))
    return lineages


@st.composite
def lives(draw: st.DrawFn, lineages: list[Lineage], *, count_max: int = 12) -> list[Life]:
    found = []
    for number in range(1, 1 + draw(st.integers(0, count_max))):
        base = draw(st.integers(0, END_MAX - 1))
        end = draw(st.integers(base + 1, END_MAX + 5))
        state = draw(st.sampled_from([SegmentState.COPY_FINISHED] * 6 + list(SegmentState)))
        lineage, has_aborted = draw(st.sampled_from(lineages)), draw(st.booleans())
        segment = copy_of(lineage, base, end, number=number, size=number, has_aborted=has_aborted)
        found.append(Life(segment=segment, state=state))
    return found
