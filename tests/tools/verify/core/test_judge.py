"""The judge of one partition, held against histories with replicas, slices and copies, legal and damaged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.verify.core.compare import Chain, compare, suspects
from tools.verify.core.facts import (
    BUCKET_BITS,
    BatchRow,
    Digest,
    Fault,
    LocalLog,
    PartitionFact,
    Piece,
    Run,
    Vanished,
)
from tools.verify.core.findings import Finding
from tools.verify.core.judge import LIMITLESS, Explained, Extent, PartitionContext, Verdict, judge

TOPIC = "8YyzoWtrSdOeHx4D8a3TXA"
STREAM = (1, 5, 0)
CONTEXT = PartitionContext(leader=0, in_sync=(0, 1, 2))


class Bytes(NamedTuple):
    """A batch of the model."""

    first: int
    end: int
    epoch: int
    crc: int
    size: int = 100


@dataclass
class Place:
    name: str
    batches: list[Bytes]
    tier: str
    leader_epoch: int = -1
    epoch_start: int = -1
    seq: int = -1
    log_start: int = -1
    faults: list[Fault] = field(default_factory=list)

    def facts(self) -> list[PartitionFact]:
        found: list[PartitionFact] = list(self.faults)
        position = 0
        runs: list[Run] = []
        digests: dict[int, Digest] = {}
        for each in self.batches:
            if runs and runs[-1].end == each.first and runs[-1].leader_epoch == each.epoch:
                last = runs[-1]
                runs[-1] = last._replace(end=each.end, size=last.size + each.size, batches=last.batches + 1)
            else:
                records = each.end - each.first
                runs.append(
                    Run(
                        self.name,
                        position,
                        each.size,
                        each.first,
                        each.end,
                        each.epoch,
                        1,
                        records,
                        0,
                        0,
                        False,
                    )
                )
            bucket = each.first >> BUCKET_BITS
            low, high = hash(each) & 0xFFFFFFFF, (hash(each) >> 32) & 0x7FFFFFFF
            now = digests.get(bucket)
            digests[bucket] = (
                Digest(self.name, bucket, each.first, each.end, 1, low, high)
                if now is None
                else now._replace(
                    end=each.end, batches=now.batches + 1, low=now.low + low, high=now.high + high
                )
            )
            position += each.size
        if self.tier != "local" and self.batches:
            found.append(
                Piece(
                    self.tier,
                    self.name,
                    0,
                    position,
                    self.batches[0].first,
                    self.batches[-1].end,
                    self.leader_epoch,
                    self.epoch_start,
                    self.log_start,
                    STREAM if self.tier == "wal" else (-1, -1, -1),
                    self.seq,
                )
            )
        return [*found, *runs, *digests.values()]

    def rows(self, first: int, end: int) -> list[BatchRow]:
        found, position = [], 0
        for each in self.batches:
            if each.first < end and first < each.end:
                found.append(
                    BatchRow(
                        self.name,
                        position,
                        each.first,
                        each.end,
                        each.size,
                        each.epoch,
                        each.crc,
                        each.end - each.first,
                    )
                )
            position += each.size
        return found


@dataclass
class History:
    truth: list[Bytes]
    places: list[Place]
    logs: list[LocalLog]
    context: PartitionContext = CONTEXT
    extents: dict[tuple[int, int, int], Extent] = field(default_factory=dict)

    def facts(self) -> list[PartitionFact]:
        return [*self.logs, *(fact for place in self.places for fact in place.facts())]

    def judged(self, rng: random.Random | None = None) -> tuple[Verdict, list[Finding]]:
        facts = self.facts()
        if rng is not None:
            rng.shuffle(facts)
        verdict = judge(TOPIC, 0, self.context, self.extents, facts)
        found = list(verdict.findings)
        for suspect in verdict.suspects:
            wanted = {look.place for look in suspect.looks}
            rows = [
                row
                for place in self.places
                if place.name in wanted
                for row in place.rows(suspect.first, suspect.end)
            ]
            found += compare(TOPIC, 0, verdict.chains, suspect, rows)
        return verdict, found


def cut(batches: Sequence[Bytes], rng: random.Random, most: int) -> list[list[Bytes]]:
    found, at = [], 0
    while at < len(batches):
        size = rng.randint(1, most)
        found.append(list(batches[at : at + size]))
        at += size
    return found


def history(seed: int) -> History:
    """A log whose oldest part is in the cold tier alone, its tail on three replicas and in slices."""
    rng = random.Random(seed)
    start = rng.choice([0, 0, 7, (1 << BUCKET_BITS) - 50])
    truth: list[Bytes] = []
    offset, epoch = start, 0
    starts = {0: start}
    for _ in range(rng.randint(8, 60)):
        if rng.random() < 0.1:
            epoch += rng.randint(1, 3)
            starts[epoch] = offset
        end = offset + rng.choice([1, 1, 5, 40])
        truth.append(Bytes(offset, end, epoch, rng.getrandbits(32), rng.randint(70, 200)))
        offset = end
    places: list[Place] = []
    cold_upto = rng.randint(0, len(truth) - 1)
    for number, batches in enumerate(cut(truth[:cold_upto], rng, 12)):
        places.append(Place(f"tier/{number:03d}.log", batches, "cold", leader_epoch=batches[-1].epoch))
    wal_from = rng.randint(0, cold_upto)
    seq = rng.randint(0, 3)
    for batches in cut(truth[wal_from:], rng, 5):
        for part in by_epoch(batches):
            at = part[0].epoch
            places.append(
                Place(f"wal/{seq:03d}", part, "wal", leader_epoch=at, epoch_start=starts[at], seq=seq)
            )
            if rng.random() < 0.2:  # stored twice, cut elsewhere
                for again in cut(part, rng, 2):
                    seq += 1
                    places.append(
                        Place(
                            f"wal/{seq:03d}", again, "wal", leader_epoch=at, epoch_start=starts[at], seq=seq
                        )
                    )
            seq += 1
    logs = []
    for node in range(3):
        first = rng.randint(0, cold_upto)
        upto = len(truth) if node == 0 else rng.randint(max(first, len(truth) - 3), len(truth))
        mine = truth[first:upto]
        end = mine[-1].end if mine else truth[first].first
        name = f"{node}:t-0"
        for number, batches in enumerate(cut(mine, rng, 20)):
            places.append(Place(f"{name}/{number:03d}.log", batches, "local"))
        epochs = tuple((each, begin) for each, begin in sorted(starts.items()) if begin < end)
        logs.append(LocalLog(name, node, start, truth[first].first, end, end, epochs))
    lowest = min(log.end for log in logs)
    logs = [log._replace(high_watermark=lowest) for log in logs]
    return History(truth, places, logs, extents={STREAM: Extent(0, seq + 1)})


def by_epoch(batches: Sequence[Bytes]) -> list[list[Bytes]]:
    found: list[list[Bytes]] = []
    for each in batches:
        if found and found[-1][-1].epoch == each.epoch:
            found[-1].append(each)
        else:
            found.append([each])
    return found


@given(st.integers(0, 1 << 32))
def test_nothing_is_found_in_a_sound_log_however_it_is_cut(seed: int) -> None:
    made = history(seed)
    verdict, found = made.judged()
    assert not found
    assert verdict.coverage.log_start == made.truth[0].first
    assert verdict.coverage.log_end == made.truth[-1].end
    spans = verdict.coverage.spans
    assert min(span.first for span in spans) == verdict.coverage.log_start
    assert max(span.end for span in spans) == verdict.coverage.log_end


@given(st.integers(0, 1 << 32))
def test_the_order_of_facts_changes_nothing(seed: int) -> None:
    made = history(seed)
    made.places[seed % len(made.places)].batches.pop()
    assert made.judged() == made.judged(random.Random(seed))


@given(st.integers(0, 1 << 32), st.data())
def test_an_altered_batch_is_named_once_at_the_place_that_the_others_outvote(
    seed: int, data: st.DataObject
) -> None:
    made = history(seed)
    limit = made.logs[0].high_watermark
    held: dict[int, int] = {}
    for place in made.places:
        for each in place.batches:
            held[each.first] = held.get(each.first, 0) + 1
    choices = [
        (place, at)
        for place in made.places
        for at, each in enumerate(place.batches)
        if held[each.first] > 2 and each.end <= limit
    ]
    if not choices:
        return
    place, at = data.draw(st.sampled_from(choices))
    old = place.batches[at]
    others = [each for each in made.places if each is not place and old in each.batches]
    only_slices = all(each.tier == "wal" for each in others)
    place.batches[at] = old._replace(crc=old.crc ^ 1)
    _, found = made.judged()
    assert [(each.place, each.first, each.end) for each in found] == [(place.name, old.first, old.end)]
    assert (
        found[0].code
        in {
            "local": ("replicas-differ", "copies-differ"),
            "wal": ("copies-differ", "overlap") if only_slices else ("copies-differ",),
            "cold": ("copies-differ",),
        }[place.tier]
    )


@given(st.integers(0, 1 << 32), st.data())
def test_offsets_that_are_nowhere_are_a_gap(seed: int, data: st.DataObject) -> None:
    made = history(seed)
    lost = data.draw(st.sampled_from(made.truth[1:-1]))
    for place in made.places:
        place.batches = [each for each in place.batches if each.first != lost.first]
    _, found = made.judged()
    assert [(each.code, each.first, each.end) for each in found] == [("gap", lost.first, lost.end)]


def test_offsets_that_only_a_checkpoint_tells_of_are_a_gap_too() -> None:
    """A follower's checkpoint past the end of its log says nothing of the logs of others."""
    made = simple()
    made.places[1].batches[:] = [Bytes(15, 20, 1, 4)]
    told = Fault("checkpoint-outside-log", "1:recovery-point-offset-checkpoint", -1, 10, 15)
    made.places[1].faults.append(told)
    assert [(each.code, each.first, each.end) for each in made.judged()[1]] == [
        ("checkpoint-outside-log", 10, 15),
        ("gap", 10, 15),
    ]


def test_bytes_behind_a_segment_hide_nothing_of_the_next() -> None:
    made = simple()
    made.places[1].faults.append(Fault("trailing-bytes", "0:t-0/0.log", 100, 10, -1))
    made.places.append(Place("tier/1.log", [Bytes(10, 15, 0, 99)], "cold", leader_epoch=0))
    found = [(each.code, each.place, each.first, each.end) for each in made.judged()[1]]
    assert ("copies-differ", "tier/1.log", 10, 15) in found


def test_what_only_places_of_one_tier_hold_differs_among_them() -> None:
    made = simple()
    made.places.append(Place("tier/1.log", [Bytes(5, 10, 0, 99)], "cold", leader_epoch=0))
    assert [(each.code, each.first, each.end) for each in made.judged()[1]] == [("overlap", 5, 10)]
    made.logs[0] = made.logs[0]._replace(first=5)
    made.places.append(Place("0:t-0/0.log", [Bytes(5, 10, 0, 2)], "local"))
    assert [(each.code, each.place) for each in made.judged()[1]] == [("copies-differ", "tier/1.log")]


@given(st.integers(0, 1 << 32), st.data())
def test_a_damaged_batch_is_found_once_whether_or_not_another_copy_has_it(
    seed: int, data: st.DataObject
) -> None:
    made = history(seed)
    place = data.draw(st.sampled_from([each for each in made.places if each.batches]))
    at = data.draw(st.integers(0, len(place.batches) - 1))
    lost = place.batches.pop(at)
    place.faults.append(Fault("bad-crc", place.name, 17, lost.first, lost.end))
    _, found = made.judged()
    assert [(each.code, each.place, each.first, each.end) for each in found] == [
        ("bad-crc", place.name, lost.first, lost.end)
    ]


def simple(**changes: object) -> History:
    """One replica with the offsets 10 to 20, and a copy in the cold tier with 0 to 10."""
    early = [Bytes(0, 5, 0, 1), Bytes(5, 10, 0, 2)]
    late = [Bytes(10, 15, 0, 3), Bytes(15, 20, 1, 4)]
    made = History(
        early + late,
        [Place("tier/0.log", early, "cold", leader_epoch=0), Place("0:t-0/1.log", late, "local")],
        [LocalLog("0:t-0", 0, 0, 10, 20, 20, ((0, 0), (1, 15)))],
        PartitionContext(leader=0, in_sync=(0,)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def counted(made: History) -> set[tuple[str, int, int]]:
    verdict, found = made.judged()
    assert not found
    return {(each.what, each.first, each.end) for each in verdict.counted}


def test_what_a_tail_of_a_deposed_leader_holds_is_dead() -> None:
    made = simple()
    made.places.append(Place("wal/1", [Bytes(14, 30, 0, 9)], "wal", leader_epoch=0, epoch_start=0, seq=1))
    made.places.append(Place("wal/2", [Bytes(15, 20, 1, 4)], "wal", leader_epoch=1, epoch_start=15, seq=2))
    assert ("dead", 15, 30) in counted(made)


def test_a_slice_above_the_seal_does_not_count_and_one_below_a_boundary_neither() -> None:
    made = simple(extents={STREAM: Extent(3, 5)})
    made.places.append(Place("wal/2", [Bytes(10, 15, 0, 77)], "wal", leader_epoch=9, epoch_start=0, seq=2))
    made.places.append(Place("wal/5", [Bytes(20, 30, 1, 78)], "wal", leader_epoch=9, epoch_start=0, seq=5))
    assert counted(made) == {("dead", 10, 15), ("sealed", 20, 30)}


@pytest.mark.parametrize(
    ("context", "what"),
    [
        (PartitionContext(is_compacted=True), "compaction"),
        (PartitionContext(explained=(Explained(0, 10, "retention"),)), "retention"),
    ],
)
def test_what_may_be_missing_is_counted(context: PartitionContext, what: str) -> None:
    made = simple(context=context)
    del made.places[0]
    assert counted(made) == {(what, 0, 10)}


def test_what_went_while_it_was_read_is_counted() -> None:
    made = simple()
    del made.places[0]
    assert made.judged()[1]
    verdict = judge(TOPIC, 0, made.context, {}, [*made.facts(), Vanished("tier/0.log", 0, 10)])
    assert not verdict.findings
    assert [each.what for each in verdict.counted] == ["between-listings"]


def test_what_the_last_segment_had_when_it_went_is_counted_as_far_as_the_store_had_it() -> None:
    made = simple()
    made = replace(made, context=made.context._replace(stored_to=22))
    assert made.judged()[1]
    verdict = judge(TOPIC, 0, made.context, {}, [*made.facts(), Vanished("0:t-0/2.log", 20, LIMITLESS)])
    assert not verdict.findings
    assert [(each.what, each.first, each.end) for each in verdict.counted] == [("between-listings", 20, 22)]


def test_a_log_starts_where_the_highest_of_all_says() -> None:
    made = simple()
    del made.places[0]
    assert made.judged()[1]
    made.logs = [made.logs[0]._replace(log_start=10)]
    assert counted(made) == {("log-start", 0, 10)}
    made.logs = [made.logs[0]._replace(log_start=-1)]
    made.context = made.context._replace(moved_start=10)
    assert counted(made) == {("log-start", 0, 10)}


def test_the_end_that_a_leader_told_is_missing_if_nobody_has_it() -> None:
    made = simple(context=PartitionContext(stored_to=33))
    assert [(each.code, each.first, each.end) for each in made.judged()[1]] == [("gap", 20, 33)]


def test_lost_objects_of_a_stream_explain_what_is_missing_between_their_neighbours() -> None:
    made = simple(extents={STREAM: Extent(0, 9, lost=(4,))})
    made.places[1].batches.clear()
    made.logs.clear()
    made.places.append(Place("wal/3", [Bytes(10, 12, 0, 9)], "wal", leader_epoch=0, epoch_start=0, seq=3))
    made.places.append(Place("wal/5", [Bytes(15, 20, 0, 4)], "wal", leader_epoch=0, epoch_start=0, seq=5))
    assert not made.judged()[1]
    made.extents = {STREAM: Extent(0, 9)}
    assert [(each.code, each.first, each.end) for each in made.judged()[1]] == [("gap", 12, 15)]


def test_lost_objects_explain_what_is_missing_of_a_partition_that_moved() -> None:
    made = simple(extents={STREAM: Extent(0, 9, lost=(5,))})
    made.places[1].batches.clear()
    made.logs.clear()
    for seq, first, end in ((3, 10, 12), (4, 12, 16), (6, 14, 20)):
        place = Place(
            f"wal/{seq}", [Bytes(first, end, 0, seq)], "wal", leader_epoch=0, epoch_start=0, seq=seq
        )
        made.places.append(place)
    made.places[-3].batches.clear()
    made.extents = {STREAM: Extent(3, 9, lost=(3, 5))}
    assert not made.judged()[1]
    made.extents = {STREAM: Extent(3, 9, lost=(5,))}
    assert not made.judged()[1], "the beginning of what was stored once more may lie there"


def test_a_replica_in_sync_may_not_end_below_what_is_committed() -> None:
    made = simple(context=PartitionContext(leader=0, in_sync=(0, 1)))
    made.logs.append(LocalLog("1:t-0", 1, 0, 10, 15, 15, ((0, 0),)))
    made.places.append(Place("1:t-0/1.log", [Bytes(10, 15, 0, 3)], "local"))
    assert [(each.code, each.place, each.first, each.end) for each in made.judged()[1]] == [
        ("replica-short", "1:t-0", 15, 20)
    ]
    for context in (made.context._replace(in_sync=(0,)), made.context._replace(acks_by_store=True)):
        made.context = context
        assert not made.judged()[1]


def test_nor_does_a_wrong_index_excuse_it() -> None:
    made = simple(context=PartitionContext(leader=0, in_sync=(0, 1)))
    made.logs.append(LocalLog("1:t-0", 1, 0, 10, 15, 15, ((0, 0),)))
    wrong = Fault("index-differs", "1:t-0/1.index", 0, 10, LIMITLESS)
    made.places.append(Place("1:t-0/1.log", [Bytes(10, 15, 0, 3)], "local", faults=[wrong]))
    assert {each.code for each in made.judged()[1]} == {"index-differs", "replica-short"}


def test_a_batch_that_one_of_two_replicas_lacks_is_named_at_the_follower() -> None:
    made = simple()
    late = [Bytes(10, 15, 0, 3), Bytes(15, 18, 1, 4), Bytes(18, 20, 1, 5)]
    made.places[1].batches[:] = late
    made.logs.append(LocalLog("1:t-0", 1, 0, 10, 20, 20, ((0, 0), (1, 15))))
    made.places.append(Place("1:t-0/1.log", [late[0], late[2]], "local"))
    assert [(each.code, each.place, each.first, each.end) for each in made.judged()[1]] == [
        ("replicas-differ", "1:t-0/1.log", 15, 18)
    ]


@given(st.integers(0, 1 << 32))
def test_where_a_running_broker_starts_its_log_is_not_known_by_an_old_checkpoint(seed: int) -> None:
    """Retention goes on between two checkpoints; once it has stopped its checkpoint is right."""
    made = history(seed)
    start = made.truth[0].first
    for is_live in (True, False):
        logs = [log._replace(log_start=start - 7, is_live=is_live) for log in made.logs]
        verdict, found = replace(made, logs=logs).judged()
        if is_live or start < 7:
            assert not [each for each in found if each.first < start - 7]
        if is_live and start >= 7:
            assert not found
            counted = {each.what: (each.first, each.end) for each in verdict.counted}
            assert counted["retention"] == (start - 7, start)
        elif start >= 7:
            assert [(each.code, each.first, each.end) for each in found] == [("gap", start - 7, start)]


def test_a_log_without_a_checkpoint_begins_with_its_first_segment() -> None:
    """Slices may say an older start: they are not written again when retention goes on."""
    batches = [Bytes(at, at + 1, 0, at) for at in range(20)]
    slices = Place("wal/000", batches[8:], "wal", leader_epoch=0, epoch_start=0, seq=0, log_start=0)
    local = Place("0:t-0/000.log", batches[15:], "local")
    log = LocalLog("0:t-0", 0, -1, 15, 20, 20, ((0, 0),))
    for first, expected in ((15, []), (-1, [("gap", 0, 8)])):
        known = log._replace(log_start=first if first < 0 else -1, first=max(first, 0))
        made = History(batches, [slices, local], [known], extents={STREAM: Extent(0, 1)})
        assert [(each.code, each.first, each.end) for each in made.judged()[1]] == expected


def test_copies_that_follow_each_other_are_not_compared() -> None:
    """Their sums over the bucket in which one ends and the other begins say nothing of each other."""

    def chain(name: str, first: int, end: int) -> Chain:
        return Chain(name, 0, (), ((first, end),), (Digest(name, 0, first, end, 1, first, end),))

    assert suspects([chain("cold 0", 0, 100), chain("local 0:t-0", 100, 300)]) == []
    (suspect,) = suspects([chain("cold 0", 0, 101), chain("local 0:t-0", 100, 300)])
    assert (suspect.first, suspect.end) == (0, 1 << BUCKET_BITS)
