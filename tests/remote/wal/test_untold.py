"""What is kept to be told: in order, all of it, in bounded memory, whatever fails."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.untold import Batch, EventKind, ReadBack, Spans, Stored, Untold

STREAM = Stream(1, 5, 0)
OTHER = Stream(1, 5, 1)
RUNS = st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda run: (run[0], run[0] + run[1]))


@given(st.lists(st.tuples(st.booleans(), RUNS), max_size=30))
def test_runs_are_a_set_of_numbers(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    spans, numbers = Spans(), set[int]()
    for is_added, run in steps:
        if is_added:
            spans.add(*run)
            numbers |= set(range(*run))
        else:
            spans.discard(*run)
            numbers -= set(range(*run))
        assert list(spans) == sorted(numbers)
        assert spans.count == len(numbers)
        assert bool(spans) == bool(numbers)
        assert {number for number in range(50) if number in spans} == numbers
        runs = list(spans.runs())
        assert all(one[1] < other[0] for one, other in pairwise(runs))


def stored(seq: int) -> Stored:
    return Stored(seq, seq.to_bytes(16), ())


SIZE = stored(0).size_bytes


GOING = ("DELETE_STARTED", "DELETE_FINISHED")


class Topic:
    """Where events go, and the bucket that they are about."""

    def __init__(self, untold: Untold) -> None:
        self.untold = untold
        self.bucket: dict[Place, Stored] = {}
        self.told: list[tuple[Stream, EventKind, int]] = []

    def step(self, count_max: int, *, is_taken: bool = True) -> bool:
        due = self.untold.next(count_max=count_max)
        match due:
            case None:
                return False
            case ReadBack(stream, seqs):
                found = [self.bucket[Place(stream, seq)] for seq in seqs if Place(stream, seq) in self.bucket]
                self.untold.read_back(stream, seqs, found)
            case Batch(stream, events):
                assert 0 < len(events) <= count_max
                self.told += [(stream, event.kind, event.seq) for event in events]
                if is_taken:
                    self.untold.told(due)
                else:
                    self.untold.refused(stream)
        return True

    def drain(self, count_max: int = 10) -> None:
        while self.step(count_max):
            pass

    def kinds(self, stream: Stream = STREAM) -> list[tuple[str, int]]:
        return [(kind.name, seq) for of, kind, seq in self.told if of == stream]


@given(seed=st.integers(0, 2**32), bytes_max=st.sampled_from([0, SIZE, 3 * SIZE, 1 << 20]))
@pytest.mark.requirement("1176-26", "1176-28")
def test_all_is_told_in_order_whatever_fails(seed: int, bytes_max: int) -> None:
    rng = random.Random(seed)
    untold = Untold(bytes_max=bytes_max)
    topic = Topic(untold)
    untold.opened(STREAM)
    count = rng.randrange(1, 40)
    starting = deleted = 0
    most = max(bytes_max, 0) + 10 * SIZE
    for seq in range(count):
        topic.bucket[Place(STREAM, seq)] = stored(seq)
        untold.counted(STREAM, stored(seq))
        assert untold.bytes <= most
        if rng.random() < 0.4:
            starting = rng.randint(starting, seq + 1)
            untold.deleted([Place(STREAM, each) for each in range(deleted, starting)], finished=False)
        if rng.random() < 0.4 and deleted < starting:
            end = rng.randint(deleted, starting)
            for each in range(deleted, end):
                topic.bucket.pop(Place(STREAM, each), None)
            untold.deleted([Place(STREAM, each) for each in range(deleted, end)], finished=True)
            deleted = end
        while rng.random() < 0.6:
            topic.step(rng.randint(1, 10), is_taken=rng.random() < 0.6)
    untold.ended(STREAM)
    topic.drain(rng.randint(1, 10))
    assert not untold
    assert (untold.bytes, untold.count) == (0, 0)
    told = topic.kinds()
    assert told[0] == ("OPENED", -1)
    assert told[-1] == ("ENDED", -1)
    finished = {seq for kind, seq in told if kind == "OBJECT"}
    assert finished >= set(range(starting, count)), "all that stays is told"
    assert {seq for kind, seq in told if kind == "DELETE_FINISHED"} == set(range(deleted))
    assert {seq for kind, seq in told if kind == "DELETE_STARTED"} == set(range(starting))
    for seq in range(count):
        ends = [told.index(event) for kind in GOING if (event := (kind, seq)) in told]
        assert ("OBJECT", seq) not in told[min(ends, default=len(told)) :], f"{seq} comes back"
    objects = [seq for kind, seq in dict.fromkeys(told) if kind == "OBJECT"]
    assert objects == sorted(objects)


@pytest.mark.requirement("1176-28")
def test_an_outage_keeps_no_more_than_its_bound() -> None:
    untold = Untold(bytes_max=10 * SIZE)
    topic = Topic(untold)
    for seq in range(100_000):
        if seq >= 99_950:
            topic.bucket[Place(STREAM, seq)] = stored(seq)
        untold.counted(STREAM, stored(seq))
        if seq % 1_500 == 1_499:
            gone = [Place(STREAM, each) for each in range(seq - 1_499, seq - 49)]
            untold.deleted(gone, finished=False)
            untold.deleted(gone, finished=True)
    assert untold.bytes <= 10 * SIZE
    each = untold._streams[STREAM]
    kept = sum(len(list(spans.runs())) for spans in (each.forgotten, each.deleting, each.deleted))
    assert kept < 300
    topic.bucket.update({Place(STREAM, seq): stored(seq) for seq in range(98_950, 99_950)})
    topic.drain(500)
    told = [seq for kind, seq in topic.kinds() if kind == "OBJECT"]
    assert told == sorted(told)
    assert set(told) >= set(range(98_950, 100_000))
    assert not untold


def test_one_stream_that_is_refused_lets_others_go_first() -> None:
    untold = Untold()
    topic = Topic(untold)
    untold.counted(STREAM, stored(0))
    untold.counted(OTHER, stored(0))
    topic.step(10, is_taken=False)
    topic.step(10)
    assert topic.kinds(OTHER) == [("OBJECT", 0)]
    topic.drain()
    assert topic.kinds() == [("OBJECT", 0), ("OBJECT", 0)]


def test_objects_that_another_tells_are_let_go_and_deletions_are_not() -> None:
    untold = Untold()
    topic = Topic(untold)
    untold.counted(STREAM, stored(0))
    untold.ended(STREAM)
    untold.deleted([Place(STREAM, 3)], finished=False)
    untold.forget_objects(STREAM)
    assert untold.bytes == 0
    topic.drain()
    assert topic.kinds() == [("DELETE_STARTED", 3)]
