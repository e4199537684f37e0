"""The fold against one that looks at every offset, in every order that its records can come."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.events import NO_COPY, Tombstone
from remote.cold.fold import PartitionFold, TierFold
from remote.cold.packed import unpack_copy
from remote.cold.segments import (
    LogStartMoved,
    PartitionDeletion,
    PartitionState,
    RemoteSegment,
    SegmentStarted,
    SegmentState,
    SegmentUpdated,
    TierEvent,
)
from storage.epochs import EpochCache
from tests.remote.cold.copies import (
    END_MAX,
    PARTITION,
    UPDATED_MS,
    Life,
    Lineage,
    copy_of,
    epochs_of,
    events_of,
    lives,
    trees,
    update,
)

OFFSETS = range(END_MAX + 8)
FINISHED = SegmentState.COPY_FINISHED


def fold_of(found: list[Life]) -> TierFold:
    fold = TierFold()
    for life in found:
        for event in events_of(life):
            fold.apply(event)
    return fold


def partition_of(found: list[Life]) -> PartitionFold:
    return fold_of(found).get(PARTITION) or PartitionFold(PARTITION)


def finished(*segments: RemoteSegment) -> PartitionFold:
    return partition_of([Life(segment=segment, state=FINISHED) for segment in segments])


def deletion(state: PartitionState) -> PartitionDeletion:
    return PartitionDeletion(
        partition=PARTITION, topic="logs", state=state, broker_id=1, event_timestamp_ms=5
    )


class Reference:
    """What a log with `epochs` has in the tier, offset by offset."""

    def __init__(self, found: list[Life], epochs: EpochCache) -> None:
        self.epochs = epochs
        self.copies = [life.segment for life in found if life.state is FINISHED]

    def agreed(self, segment: RemoteSegment) -> set[int]:
        cache = EpochCache(segment.epochs)
        offsets = range(segment.base_offset, segment.end_offset)
        return {at for at in offsets if cache.epoch_for(at) == self.epochs.epoch_for(at)}

    def covered(self, copies: list[RemoteSegment] | None = None) -> set[int]:
        return {at for segment in (self.copies if copies is None else copies) for at in self.agreed(segment)}

    def chain_end(self, log_start: int, local_start: int) -> int:
        covered = self.covered()
        if local_start in covered:
            return next(at for at in count(local_start) if at not in covered)
        below = [at + 1 for at in covered if log_start <= at < local_start]
        return max(below, default=0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Life], Lineage]:
    lineages = draw(trees())
    return draw(lives(lineages)), draw(st.sampled_from(lineages))


# --- lineage ---


@given(cases())
def test_a_chain_is_followed_back_to_where_it_begins(case: tuple[list[Life], Lineage]) -> None:
    found, lineage = case
    epochs = epochs_of(lineage)
    fold, covered = partition_of(found), Reference(found, epochs_of(lineage)).covered()
    for end in OFFSETS:
        start = next(at for at in range(end, -1, -1) if at - 1 not in covered)
        assert fold.chain_start(epochs, end) == start


@given(cases())
def test_whoever_has_an_offset_is_named_once_for_each_epoch(case: tuple[list[Life], Lineage]) -> None:
    found, _ = case
    fold, copies = partition_of(found), Reference(found, EpochCache()).copies
    for offset in OFFSETS:
        having = [copy for copy in copies if copy.base_offset <= offset < copy.end_offset]
        named = fold.holders(offset)
        assert {copy.id for copy in named} <= {copy.id for copy in having}
        assert sorted(epoch_at(copy, offset) for copy in named) == sorted(
            {epoch_at(copy, offset) for copy in having}
        )


def epoch_at(copy: RemoteSegment, offset: int) -> int:
    epoch = EpochCache(copy.epochs).epoch_for(offset)
    assert epoch is not None
    return epoch


@given(cases())
def test_the_newest_copy_goes_on_furthest_in_the_newest_epoch(case: tuple[list[Life], Lineage]) -> None:
    found, _ = case
    copies = Reference(found, EpochCache()).copies
    newest = partition_of(found).newest()
    assert (newest is None) == (not copies)
    if newest is None:
        return
    assert newest.id in {copy.id for copy in copies}
    latest = max(copy.epochs[-1][0] for copy in copies)
    assert newest.epochs[-1][0] == latest
    assert newest.end_offset == max(copy.end_offset for copy in copies if copy.epochs[-1][0] == latest)


@given(cases())
def test_each_offset_is_found_in_a_copy_that_has_it_in_this_lineage(
    case: tuple[list[Life], Lineage],
) -> None:
    found, lineage = case
    epochs = epochs_of(lineage)
    fold, reference = partition_of(found), Reference(found, epochs)
    for offset in OFFSETS:
        segment = fold.find(offset, epochs)
        if segment is None:
            assert offset not in reference.covered()
            continue
        original = next(copy for copy in reference.copies if copy.id == segment.id)
        agreed = reference.agreed(original)
        assert offset in agreed
        assert segment.end_offset == next(at for at in count(offset) if at not in agreed)
        assert segment.base_offset == original.base_offset
        assert segment.epochs == tuple(e for e in original.epochs if e[1] < segment.end_offset)


@given(cases(), st.integers(0, END_MAX), st.integers(0, END_MAX))
def test_the_tiered_end_is_where_what_is_in_the_tier_first_breaks_off(
    case: tuple[list[Life], Lineage], one: int, other: int
) -> None:
    found, lineage = case
    log_start, local_start = sorted((one, other))
    epochs = epochs_of(lineage)
    epochs.truncate_from_start(log_start)
    end = partition_of(found).chain_end(epochs, log_start=log_start, local_start=local_start)
    assert end == Reference(found, epochs).chain_end(log_start, local_start)


@given(cases(), st.integers(0, END_MAX + 5))
def test_copies_with_aborts_are_told_apart(case: tuple[list[Life], Lineage], start: int) -> None:
    found, _ = case
    fold = partition_of(found)
    expected = [copy for copy in fold.finished() if copy.has_aborted and copy.end_offset > start]
    assert list(fold.aborting(start)) == expected


@given(cases(), st.data())
def test_lists_of_copies_may_be_read_on_after_changes(
    case: tuple[list[Life], Lineage], data: st.DataObject
) -> None:
    """What is there all the time is told once, in order."""
    found, _ = case
    there = [life.segment for life in found if life.state is FINISHED]
    coming = [life.segment for life in found if life.state is SegmentState.COPY_STARTED]
    fold = fold_of(found)
    partition = fold.get(PARTITION) or PartitionFold(PARTITION)
    told, stayed = [], {copy.id for copy in there}
    for segment in partition.finished():
        told.append((segment.base_offset, segment.id))
        change = data.draw(st.sampled_from([None, *there, *coming]))
        if change is None:
            continue
        stayed.discard(change.id)
        is_there = change in there
        fold.apply(update(change, SegmentState.DELETE_STARTED if is_there else FINISHED))
    assert told == sorted(set(told))
    assert {segment_id for _, segment_id in told} >= stayed


@given(cases(), st.integers(0, END_MAX))
def test_the_chain_reads_every_offset_that_is_there_in_order(
    case: tuple[list[Life], Lineage], log_start: int
) -> None:
    found, lineage = case
    epochs = epochs_of(lineage)
    fold, covered = partition_of(found), Reference(found, epochs).covered()
    offset, read = log_start, set()
    for segment in fold.chain(epochs, log_start):
        first = max(segment.base_offset, offset)
        if first not in covered:
            first = min(at for at in covered if at >= offset)
        assert first == fold.first_readable(epochs, offset)
        read |= set(range(first, segment.end_offset))
        offset = segment.end_offset
    assert read == {at for at in covered if at >= log_start}
    assert fold.first_readable(epochs, offset) is None


@given(cases(), st.integers(0, END_MAX))
def test_what_is_superseded_may_go_at_once_and_nothing_more_could(
    case: tuple[list[Life], Lineage], log_start: int
) -> None:
    found, lineage = case
    epochs = epochs_of(lineage)
    epochs.truncate_from_start(log_start)
    reference = Reference(found, epochs)
    gone = {segment.id for segment in partition_of(found).superseded(epochs, log_start)}
    kept = [copy for copy in reference.copies if copy.id not in gone]
    needed = {at for at in reference.covered() if at >= log_start}
    assert reference.covered(kept) >= needed
    for copy in kept:
        rest = reference.covered([other for other in kept if other is not copy])
        is_useless = {at for at in reference.agreed(copy) if at >= log_start} <= rest
        is_below = copy.end_offset <= log_start
        is_of_a_later_leader = copy.epochs[-1][0] > epochs.latest
        assert not is_useless or is_below or is_of_a_later_leader, copy
    for copy in reference.copies:
        if copy.end_offset <= log_start or copy.epochs[-1][0] > epochs.latest:
            assert copy.id not in gone


@given(cases(), st.integers(0, END_MAX))
def test_the_size_counts_what_is_neither_superseded_nor_below_the_log(
    case: tuple[list[Life], Lineage], log_start: int
) -> None:
    found, lineage = case
    epochs = epochs_of(lineage)
    fold = partition_of(found)
    below = [copy for copy in Reference(found, epochs).copies if copy.end_offset <= log_start]
    assert sorted(copy.id for copy in fold.below(log_start)) == sorted(copy.id for copy in below)
    useless = {copy.id for copy in fold.superseded(epochs, log_start)} | {copy.id for copy in below}
    size = sum(copy.size_bytes for copy in fold.finished() if copy.id not in useless)
    assert fold.size_bytes(epochs, log_start) == size


@given(cases(), st.randoms(use_true_random=False))
def test_answers_do_not_depend_on_the_order_in_which_copies_came_and_went(
    case: tuple[list[Life], Lineage], rng: random.Random
) -> None:
    """Copies come in one order, some go; a fold that never heard of those says the same."""
    found, lineage = case
    epochs = epochs_of(lineage)
    fold = TierFold()
    for life in rng.sample(found, len(found)):
        for event in events_of(replace(life, state=FINISHED)):
            fold.apply(event)
    for life in rng.sample(found, len(found)):
        if life.state > FINISHED:
            fold.apply(update(life.segment, life.state))
    stay = [life for life in found if life.state <= FINISHED]
    stay = [replace(life, state=FINISHED) for life in stay]
    here, there = fold.get(PARTITION) or PartitionFold(PARTITION), partition_of(stay)
    assert list(here.finished()) == list(there.finished())
    assert here.finished_bytes == there.finished_bytes
    for offset in OFFSETS:
        assert here.find(offset, epochs) == there.find(offset, epochs)
        for local_start in (0, offset):
            ends = [one.chain_end(epochs, log_start=0, local_start=local_start) for one in (here, there)]
            assert ends[0] == ends[1]
    assert here.superseded(epochs, 0) == there.superseded(epochs, 0)


# --- lineage, by example ---

MAIN: Lineage = ((0, 0), (1, 10), (2, 30))


def test_the_tiered_end_falls_when_epochs_are_cut() -> None:
    fold = finished(copy_of(MAIN, 0, 20, number=1), copy_of(MAIN, 20, 40, number=2))
    epochs = epochs_of(MAIN)
    assert fold.chain_end(epochs, log_start=0, local_start=0) == 40
    epochs.truncate_from_end(30)
    epochs.assign(3, start_offset=25)
    assert fold.chain_end(epochs, log_start=0, local_start=0) == 25
    epochs.truncate_from_end(10)
    epochs.assign(4, start_offset=5)
    assert fold.chain_end(epochs, log_start=0, local_start=0) == 5


def test_an_unclean_leader_reads_a_copy_up_to_where_it_parts_from_it() -> None:
    fold = finished(copy_of(MAIN, 0, 40, number=1))
    epochs = epochs_of(((0, 0), (1, 10), (3, 25)))
    found = fold.find(12, epochs)
    assert found is not None
    assert (found.base_offset, found.end_offset, found.epochs) == (0, 25, ((0, 0), (1, 10)))
    assert fold.find(25, epochs) is None
    assert fold.after(found, epochs) is None
    assert fold.superseded(epochs, 0) == [], "it alone has what came before"
    whole = fold.segment(found.id)
    assert whole is not None
    assert whole.end_offset == 40


def test_of_two_leaders_copies_of_the_same_offsets_the_longer_stays() -> None:
    short, long = copy_of(MAIN, 0, 12, number=1), copy_of(MAIN, 0, 20, number=2)
    equal = copy_of(MAIN, 0, 20, number=3)
    epochs = epochs_of(MAIN)
    assert [copy.id for copy in finished(short, long).superseded(epochs, 0)] == [short.id]
    assert [copy.id for copy in finished(equal, short, long).superseded(epochs, 0)] == [short.id, equal.id]
    found = finished(equal, long).find(15, epochs)
    assert found is not None
    assert found.id == long.id, "of equals the lower id, on every broker"


def test_a_copy_between_two_that_reach_over_it_is_superseded() -> None:
    epochs = epochs_of(((0, 0),))
    left, middle, right = (
        copy_of(((0, 0),), base, end, number=number)
        for number, (base, end) in enumerate([(0, 50), (40, 70), (60, 100)], 1)
    )
    assert finished(left, middle, right).superseded(epochs, 0) == []
    filled = copy_of(((0, 0),), 45, 65, number=4)
    assert [copy.id for copy in finished(left, filled, middle, right).superseded(epochs, 0)] == [filled.id]


def test_a_superset_that_is_not_finished_supersedes_nothing() -> None:
    short, long = copy_of(MAIN, 0, 12, number=1), copy_of(MAIN, 0, 20, number=2)
    fold = partition_of(
        [Life(segment=short, state=FINISHED), Life(segment=long, state=SegmentState.COPY_STARTED)]
    )
    assert fold.superseded(epochs_of(MAIN), 0) == []
    assert list(fold.unfinished()) == [long]
    fold.apply(update(long, FINISHED))
    assert [copy.id for copy in fold.superseded(epochs_of(MAIN), 0)] == [short.id]


def test_copies_of_a_lost_lineage_are_superseded_and_those_of_a_later_leader_are_not() -> None:
    lost = copy_of(((0, 0), (1, 5)), 5, 20, number=1)
    later = copy_of(((0, 0), (2, 5), (7, 20)), 5, 25, number=2)
    known = copy_of(((0, 0), (2, 5)), 0, 20, number=3)
    fold = finished(lost, later, known)
    gone = fold.superseded(epochs_of(((0, 0), (2, 5), (3, 30))), 0)
    assert [copy.id for copy in gone] == [lost.id]


def test_without_the_epochs_of_the_whole_log_nothing_is_superseded() -> None:
    lost = finished(copy_of(((0, 0), (1, 5)), 0, 20, number=1))
    assert lost.superseded(EpochCache(), 0) == []
    assert lost.superseded(EpochCache([(2, 1)]), 0) == []
    assert [copy.id for copy in lost.superseded(EpochCache([(2, 0)]), 0)] == [UUID(int=1)]


def test_copies_below_the_log_start_belong_to_expiry() -> None:
    old, straddling = copy_of(MAIN, 0, 20, number=1), copy_of(MAIN, 20, 40, number=2)
    fold = finished(old, straddling)
    epochs = epochs_of(MAIN)
    epochs.truncate_from_start(25)
    assert fold.superseded(epochs, 25) == []
    assert [copy.id for copy in fold.below(25)] == [old.id]
    assert fold.first_readable(epochs, 25) == 25
    assert fold.chain_end(epochs, log_start=25, local_start=25) == 40
    assert fold.find(19, epochs) is None


def test_a_gap_ends_the_chain_unless_the_log_has_it() -> None:
    fold = finished(copy_of(MAIN, 0, 10, number=1), copy_of(MAIN, 20, 30, number=2))
    epochs = epochs_of(MAIN)
    assert fold.chain_end(epochs, log_start=0, local_start=0) == 10
    assert fold.chain_end(epochs, log_start=0, local_start=15) == 10
    assert fold.chain_end(epochs, log_start=0, local_start=20) == 30
    assert fold.chain_end(epochs, log_start=12, local_start=15) == 0
    assert [copy.base_offset for copy in fold.chain(epochs, 0)] == [0, 20]
    assert fold.first_readable(epochs, 12) == 20
    assert fold.first_readable(epochs, 30) is None


# --- records ---


def history(found: list[Life]) -> list[TierEvent | Tombstone]:
    """The log of legal transitions, the lives beside each other, tombstones after what is over."""
    lanes: list[list[TierEvent | Tombstone]] = []
    for life in found:
        lane: list[TierEvent | Tombstone] = list(events_of(life))
        if life.state is SegmentState.DELETE_FINISHED:
            lane += [Tombstone(PARTITION, life.segment.id, is_update) for is_update in (False, True)]
        lanes.append(lane)
    longest = max(map(len, lanes), default=0)
    return [lane[at] for at in range(longest) for lane in lanes if at < len(lane)]


def key_of(said: TierEvent | Tombstone) -> tuple[object, ...]:
    match said:
        case Tombstone(segment_id=segment_id, is_update=is_update):
            return (segment_id, is_update)
        case SegmentStarted(segment=segment):
            return (segment.id, False)
        case SegmentUpdated():
            return (said.id, True)
        case PartitionDeletion():
            return (None, False)
        case LogStartMoved():
            return (NO_COPY, True)


def apply_all(said: list[TierEvent | Tombstone]) -> TierFold:
    fold = TierFold()
    for one in said:
        fold.apply(one)
    return fold


@given(trees().flatmap(lives), st.randoms(use_true_random=False))
def test_the_fold_is_a_function_of_the_set_of_events(found: list[Life], rng: random.Random) -> None:
    events = [event for life in found for event in events_of(life)]
    expected = fold_of(found)
    assert apply_all(rng.sample(events * 2, len(events) * 2)) == expected


@given(trees().flatmap(lives), st.data())
def test_a_compacted_log_gives_the_same_fold(found: list[Life], data: st.DataObject) -> None:
    """Up to some offset only the last record of each key is left, and old tombstones are gone."""
    log = history(found)
    cleaned_to = data.draw(st.integers(0, len(log)))
    last = {key_of(said): at for at, said in enumerate(log[:cleaned_to])}
    drops_tombstones = data.draw(st.booleans())
    head = [
        said
        for at, said in enumerate(log[:cleaned_to])
        if last[key_of(said)] == at and not (drops_tombstones and isinstance(said, Tombstone))
    ]
    assert apply_all(head + log[cleaned_to:]) == apply_all(log)


@given(trees().flatmap(lives), st.data())
def test_a_replayed_suffix_changes_nothing(found: list[Life], data: st.DataObject) -> None:
    log = history(found)
    suffix = log[data.draw(st.integers(0, len(log))) :]
    assert apply_all(log + suffix) == apply_all(log)
    assert apply_all(log + suffix + suffix) == apply_all(log)


@given(trees().flatmap(lives))
def test_no_prefix_of_the_tombstones_shows_a_copy_that_is_gone(found: list[Life]) -> None:
    log = history(found)
    over = {life.segment.id for life in found if life.state is SegmentState.DELETE_FINISHED}
    ended: set[object] = set()
    fold = TierFold()
    for said in log:
        fold.apply(said)
        if isinstance(said, SegmentUpdated) and said.state is SegmentState.DELETE_FINISHED:
            ended.add(said.id)
        partition = fold.get(PARTITION)
        if partition is not None:
            there = [*partition.finished(), *partition.unfinished(), *partition.deleting()]
            assert not ended & {segment.id for segment in there}
    assert ended == over


def moved(log_start: int) -> LogStartMoved:
    return LogStartMoved(
        partition=PARTITION, topic="logs", log_start=log_start, broker_id=1, event_timestamp_ms=5
    )


def test_the_highest_log_start_counts_in_any_order_until_its_tombstone() -> None:
    for order in ((3, 9, 5), (9, 5, 3)):
        fold = apply_all([moved(start) for start in order])
        partition = fold.get(PARTITION)
        assert partition is not None
        assert partition.implied_start == partition.log_start == 9
        fold.apply(Tombstone(PARTITION, NO_COPY, True))
        assert fold == TierFold()


def test_a_log_starts_with_its_lowest_copy_unless_it_was_told_to_start_later() -> None:
    finished = SegmentState.COPY_FINISHED
    fold = fold_of(
        [Life(segment=copy_of(MAIN, base, base + 10, number=base), state=finished) for base in (10, 20)]
    )
    partition = fold.get(PARTITION)
    assert partition is not None
    assert partition.implied_start == 10
    fold.apply(moved(25))
    assert partition.implied_start == 25


def test_the_first_of_many_is_found_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be 100,000, and this is asked on the loop, for each few that go."""
    states = (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED)
    copies = [copy_of(((0, 0),), base, base + 1, number=base + 1) for base in range(300)]
    found = fold_of([Life(segment=copy, state=states[at % 3]) for at, copy in enumerate(copies)])
    fold = found.get(PARTITION)
    assert fold is not None
    unpacked: list[UUID] = []

    def unpack(packed: bytes, **named: Any) -> RemoteSegment:
        unpacked.append(named["segment_id"])
        return unpack_copy(packed, **named)

    monkeypatch.setattr("remote.cold.fold.unpack_copy", unpack)
    firsts = (next(fold.unfinished()), next(fold.below(300)), next(fold.deleting()))
    assert [copy.base_offset for copy in firsts] == [0, 1, 2]
    assert (fold.unfinished_count, fold.finished_count, fold.deleting_count) == (100, 100, 100)
    assert len(unpacked) == 3


def test_a_fold_without_records_has_no_partitions() -> None:
    life = Life(segment=copy_of(MAIN, 0, 5, number=1), state=SegmentState.DELETE_FINISHED)
    fold = fold_of([life])
    partition = fold.get(PARTITION)
    assert partition is not None
    assert partition.deleted() == [life.segment.id]
    assert partition.segment(life.segment.id) is None
    fold.apply(Tombstone(PARTITION, life.segment.id, False))
    assert partition.deleted() == [life.segment.id]
    fold.apply(Tombstone(PARTITION, life.segment.id, True))
    assert fold.partitions() == []


def test_apply_says_whether_anything_changed() -> None:
    segment = copy_of(MAIN, 0, 5, number=1)
    fold = TierFold()
    assert fold.apply(SegmentStarted(segment=segment))
    assert not fold.apply(SegmentStarted(segment=segment))
    assert fold.apply(update(segment, FINISHED))
    assert not fold.apply(update(segment, FINISHED))
    assert not fold.apply(SegmentStarted(segment=segment))
    assert not fold.apply(Tombstone(PARTITION, None))
    assert fold.apply(deletion(PartitionState.DELETE_MARKED))
    assert not fold.apply(deletion(PartitionState.DELETE_MARKED))


def test_a_finished_deletion_of_the_partition_ends_every_copy() -> None:
    segments = [copy_of(MAIN, base, base + 5, number=base + 1) for base in (0, 5, 10)]
    fold = TierFold()
    for segment in segments:
        fold.apply(SegmentStarted(segment=segment))
    fold.apply(update(segments[0], FINISHED))
    for state in PartitionState:
        fold.apply(deletion(state))
    partition = fold.get(PARTITION)
    assert partition is not None
    assert partition.deletion is PartitionState.DELETE_FINISHED
    assert [*partition.finished(), *partition.unfinished(), *partition.deleting()] == []
    assert partition.deleted() == [segment.id for segment in segments]
    assert partition.finished_bytes == 0
    fold.apply(SegmentStarted(segment=copy_of(MAIN, 20, 25, number=99)))
    assert partition.unfinished_count == 0, "whatever the order"
    for number in (1, 6, 11, 99):
        for is_update in (False, True):
            fold.apply(Tombstone(PARTITION, copy_of(MAIN, 0, 5, number=number).id, is_update))
    fold.apply(Tombstone(PARTITION, None))
    assert fold.partitions() == []


def test_custom_metadata_is_that_of_the_last_update() -> None:
    segment = copy_of(MAIN, 0, 5, number=1)
    fold = fold_of([Life(segment=segment, state=SegmentState.COPY_STARTED)])
    fold.apply(update(segment, FINISHED, b"where it lies"))
    partition = fold.get(PARTITION)
    assert partition is not None
    expected = replace(
        segment, state=FINISHED, custom=b"where it lies", event_timestamp_ms=UPDATED_MS + FINISHED
    )
    assert partition.segment(segment.id) == expected
    assert fold.refusal(update(segment, SegmentState.DELETE_STARTED)) is not None
    assert fold.refusal(update(segment, SegmentState.DELETE_STARTED, b"where it lies")) is None
    fold.apply(update(segment, SegmentState.DELETE_STARTED, b"where it lies"))
    assert [copy.custom for copy in partition.deleting()] == [b"where it lies"]


# --- refusals ---

LEGAL = {
    (None, SegmentState.COPY_STARTED),
    (SegmentState.COPY_STARTED, SegmentState.COPY_STARTED),
    (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED),
    (SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED),
    (SegmentState.COPY_FINISHED, SegmentState.COPY_FINISHED),
    (SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED),
    (SegmentState.DELETE_STARTED, SegmentState.DELETE_STARTED),
    (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED),
    (SegmentState.DELETE_FINISHED, SegmentState.DELETE_FINISHED),
}


@pytest.mark.parametrize("target", list(SegmentState))
@pytest.mark.parametrize("state", [None, *SegmentState])
def test_transitions_that_are_not_legal_are_refused(state: SegmentState | None, target: SegmentState) -> None:
    segment = copy_of(MAIN, 0, 5, number=1)
    fold = fold_of([] if state is None else [Life(segment=segment, state=state)])
    event: TierEvent = update(segment, target)
    if target is SegmentState.COPY_STARTED:
        event = SegmentStarted(segment=segment)
    assert (fold.refusal(event) is None) == ((state, target) in LEGAL)


def test_an_update_cannot_start_a_copy() -> None:
    segment = copy_of(MAIN, 0, 5, number=1)
    fold = fold_of([Life(segment=segment, state=SegmentState.COPY_STARTED)])
    assert fold.refusal(update(segment, SegmentState.COPY_STARTED)) is not None


def test_an_id_stands_for_one_copy() -> None:
    segment = copy_of(MAIN, 0, 5, number=1)
    fold = fold_of([Life(segment=segment, state=SegmentState.COPY_STARTED)])
    assert fold.refusal(SegmentStarted(segment=replace(segment, end_offset=6))) is not None
    fold = fold_of([Life(segment=segment, state=SegmentState.DELETE_FINISHED)])
    fold.apply(Tombstone(PARTITION, segment.id, False))
    assert fold.refusal(SegmentStarted(segment=segment)) is not None, "its end is not forgotten yet"


def test_nothing_starts_in_a_partition_that_is_being_deleted() -> None:
    segment = copy_of(MAIN, 0, 5, number=1)
    fold = fold_of([Life(segment=segment, state=SegmentState.COPY_STARTED)])
    assert fold.refusal(deletion(PartitionState.DELETE_STARTED)) is not None
    for state in PartitionState:
        assert fold.refusal(deletion(state)) is None
        fold.apply(deletion(state))
        assert fold.refusal(SegmentStarted(segment=copy_of(MAIN, 5, 9, number=2))) is not None
        assert fold.refusal(deletion(state)) is None
    assert fold.refusal(deletion(PartitionState.DELETE_MARKED)) is not None


SOUND = copy_of(MAIN, 5, 15, number=1)


@pytest.mark.parametrize(
    "segment",
    [
        replace(SOUND, base_offset=-1, epochs=((0, -1),)),
        replace(SOUND, end_offset=5),
        replace(SOUND, epochs=()),
        replace(SOUND, epochs=((0, 6),)),
        replace(SOUND, epochs=((0, 5), (0, 7))),
        replace(SOUND, epochs=((0, 5), (1, 5))),
        replace(SOUND, epochs=((1, 5), (0, 7))),
        replace(SOUND, epochs=((-1, 5),)),
        replace(SOUND, epochs=((0, 5), (1, 15))),
        replace(SOUND, size_bytes=-1),
        replace(SOUND, custom=b""),
        replace(SOUND, state=FINISHED),
    ],
)
def test_a_copy_that_cannot_be_is_refused(segment: RemoteSegment) -> None:
    assert TierFold().refusal(SegmentStarted(segment=SOUND)) is None
    assert TierFold().refusal(SegmentStarted(segment=segment)) is not None


@given(trees().flatmap(lives))
def test_a_copy_comes_out_as_it_went_in(found: list[Life]) -> None:
    partition = partition_of(found)
    for life in found:
        expected = replace(life.segment, state=life.state)
        if life.state is not SegmentState.COPY_STARTED:
            expected = replace(expected, event_timestamp_ms=UPDATED_MS + life.state)
        is_gone = life.state is SegmentState.DELETE_FINISHED
        assert partition.segment(life.segment.id) == (None if is_gone else expected)
    there = [*partition.finished(), *partition.unfinished(), *partition.deleting()]
    assert len(there) == sum(life.state is not SegmentState.DELETE_FINISHED for life in found)
    assert partition.finished_count == len(list(partition.finished()))
