"""The combiner against a model of partitions that get bytes at any time: each byte leaves once, in order,
within bounds, and no partition waits for ever."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.wal.combiner import INTERVAL_MAX_S, LOOP_SHARE, SAVED_MAX, SMALL_BYTES, Combiner, Cut

OBJECT_BYTES = 100


class Partitions:
    """Batches that wait to be stored, by partition."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[int]] = {}
        self.stored: dict[str, list[int]] = {}
        self.made: dict[str, list[int]] = {}

    def append(self, key: str, size: int) -> None:
        self.waiting.setdefault(key, []).append(size)
        self.made.setdefault(key, []).append(size)

    def read(self, key: str, room: int, *, any_size: bool) -> int:
        """Store whole batches of a partition, as many as fit; return their bytes."""
        batches = self.waiting.get(key, [])
        size = 0
        while batches and (size + batches[0] <= room or (any_size and not size)):
            size += batches[0]
            self.stored.setdefault(key, []).append(batches.pop(0))
        return size


def fill(combiner: Combiner[str], partitions: Partitions, now: float) -> list[tuple[str, int]]:
    cut = combiner.begin(now)
    taken = []
    while (key := cut.next()) is not None:
        size = partitions.read(key, cut.room, any_size=cut.is_empty)
        cut.took(size, has_more=bool(partitions.waiting.get(key)), now=now)
        if size:
            taken.append((key, size))
    combiner.ended(now, loop_s=0.0)
    return taken


STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 130)), max_size=12), min_size=1, max_size=12
)


@given(STEPS)
@settings(max_examples=200)
def test_every_batch_leaves_once_in_order_within_bounds(steps: list[list[tuple[str, int]]]) -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    partitions = Partitions()
    now = 0.0
    for step in steps:
        for key, size in step:
            partitions.append(key, size)
            combiner.mark(key, now)
        taken = fill(combiner, partitions, now)
        assert sum(size for _, size in taken) <= OBJECT_BYTES or len(taken) == 1
        assert len({key for key, _ in taken}) == len(taken)
        now += 0.02
    rounds = 0
    while len(combiner):
        assert combiner.wait_s(now) is not None
        assert fill(combiner, partitions, now)
        now += 0.02
        rounds += 1
        assert rounds < 200
    assert partitions.stored == partitions.made
    assert combiner.wait_s(now) is None


@given(st.integers(2, 8), st.integers(1, 40))
def test_nobody_starves_beside_partitions_that_always_have_more(busy: int, size: int) -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    partitions = Partitions()
    keys = [f"busy {number}" for number in range(busy)]
    for key in keys:
        for _ in range(50):
            partitions.append(key, size)
        combiner.mark(key, 0.0)
    partitions.append("quiet", 100)
    combiner.mark("quiet", 0.0)
    for cuts in range(1, 100):
        fill(combiner, partitions, cuts * 0.02)
        if "quiet" in partitions.stored:
            break
    assert cuts <= 2 * (busy + 1)


def test_what_is_marked_during_a_cut_is_offered_by_the_next_one() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    combiner.mark("a", 0.0)
    cut = combiner.begin(0.0)
    assert cut.next() == "a"
    cut.took(10, has_more=False, now=0.0)
    combiner.mark("a", 0.001)
    combiner.mark("b", 0.001)
    assert cut.next() is None
    assert "a" in combiner and "b" in combiner
    assert combiner.wait_s(0.001) == pytest.approx(0.019)


def test_a_partition_that_is_given_up_while_it_is_read_is_not_offered_again() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    combiner.mark("a", 0.0)
    cut = combiner.begin(0.0)
    assert cut.next() == "a"
    combiner.forget("a")
    cut.took(10, has_more=True, now=0.0)
    assert cut.next() is None
    assert len(combiner) == 0


def test_the_first_append_after_a_pause_leaves_at_once() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    partitions = Partitions()
    for now in (1.0, 1.005, 9.0):
        partitions.append("a", 1)
        combiner.mark("a", now)
        wait_s = combiner.wait_s(now)
        assert wait_s is not None
        assert wait_s == pytest.approx(0.015 if now == 1.005 else 0.0)
        fill(combiner, partitions, now + wait_s)


def test_cuts_that_hold_the_loop_widen_the_interval_up_to_a_bound() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    for loop_s, expected in ((0.001, 0.02), (0.01, 0.01 / LOOP_SHARE), (10.0, INTERVAL_MAX_S)):
        combiner.ended(0.0, loop_s=loop_s)
        assert combiner.spacing_s == pytest.approx(expected)


def test_an_only_partition_may_fill_the_object() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    combiner.mark("a", 0.0)
    cut: Cut[str] = combiner.begin(0.0)
    assert cut.next() == "a"
    assert cut.room == OBJECT_BYTES


@pytest.mark.requirement("1176-32")
def test_what_a_producer_waits_for_leaves_sooner_while_nothing_else_is_under_way() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=1 << 20)
    combiner.mark("a", 0.0, is_awaited=True)
    cut = combiner.begin(0.0)
    cut.next()
    cut.took(100, has_more=False, now=0.0)
    combiner.ended(0.0, loop_s=0.0)
    combiner.mark("a", 0.001)
    assert combiner.wait_s(0.001, is_idle=True) == pytest.approx(0.019)
    combiner.mark("b", 0.001, is_awaited=True)
    assert combiner.wait_s(0.001, is_idle=True) == pytest.approx(0.004)
    assert combiner.wait_s(0.001, is_idle=False) == pytest.approx(0.019)
    cut = combiner.begin(0.005)
    cut.next()
    cut.took(SMALL_BYTES, has_more=False, now=0.005)
    cut.next()
    cut.took(1, has_more=False, now=0.005)
    combiner.ended(0.005, loop_s=0.0)
    combiner.mark("a", 0.006, is_awaited=True)
    assert combiner.wait_s(0.006, is_idle=True) == pytest.approx(0.019)


def test_a_partition_that_is_given_up_while_its_slice_does_not_fit_is_offered_no_more() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    combiner.mark("a", 0.0)
    combiner.mark("b", 0.0)
    cut = combiner.begin(0.0)
    assert cut.next() == "a"
    cut.took(20, has_more=False, now=0.0)
    assert cut.next() == "b"
    cut.took(0, has_more=True, now=0.0)
    combiner.forget("b")
    cut.end()
    assert "b" not in combiner
    assert not len(combiner)


def test_a_partition_is_offered_once_in_a_cut_although_others_are_given_up_meanwhile() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=OBJECT_BYTES)
    for key in "abc":
        combiner.mark(key, 0.0)
    cut = combiner.begin(0.0)
    assert cut.next() == "a"
    cut.took(20, has_more=True, now=0.0)
    combiner.forget("b")
    assert cut.next() == "c"
    cut.took(20, has_more=False, now=0.0)
    assert cut.next() is None
    assert "a" in combiner


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=80))
def test_sparse_records_leave_sooner_in_no_more_objects_than_the_interval_allows(pauses: list[float]) -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=1 << 20)
    partitions = Partitions()
    now, cuts = 0.0, []
    for pause_s in pauses:
        partitions.append("a", 1)
        combiner.mark("a", now)
        wait_s = combiner.wait_s(now, is_idle=True)
        assert wait_s is not None
        assert wait_s <= 0.02 + 1e-9
        now += wait_s
        cuts.append(now)
        fill(combiner, partitions, now)
        now += pause_s
    for at, first in enumerate(cuts):
        for further, last in enumerate(cuts[at + 1 :], 1):
            assert further <= (last - first) / 0.02 + SAVED_MAX + 1e-6
    for before, after in pairwise(cuts):
        assert after - before >= 0.005 - 1e-9


def test_what_was_saved_up_in_a_pause_lets_the_next_few_leave_sooner() -> None:
    combiner: Combiner[str] = Combiner(interval_s=0.02, object_bytes=1 << 20)
    partitions = Partitions()
    waits = []
    now = 0.0
    for pause_s in (1.0, *[0.006] * 7):
        partitions.append("a", 1)
        combiner.mark("a", now)
        wait_s = combiner.wait_s(now, is_idle=True)
        assert wait_s is not None
        waits.append(wait_s)
        now += wait_s
        fill(combiner, partitions, now)
        now += pause_s
    assert waits[:7] == [0.0] * 7
    assert waits[7] == pytest.approx(0.004)
