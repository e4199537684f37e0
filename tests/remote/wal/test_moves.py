"""Moves: those that hold back much and cost little, the oldest first, within what was stored since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.wal.moves import (
    FREE_BYTES,
    MARKS_MAX,
    OBJECTS_MIN,
    SAVED_MAX_BYTES,
    SHARE,
    Candidate,
    Marks,
    MoveBudget,
    Stored,
    inherited,
)

MUCH = Stored(10 * OBJECTS_MIN, 1 << 40)
START = Stored(0, 0)


@given(st.lists(st.integers(1, 5), max_size=200), st.data())
def test_the_oldest_slice_above_a_floor_is_never_taken_for_younger_than_it_is(
    sizes: list[int], data: st.DataObject
) -> None:
    marks = Marks(0, START)
    ends = [0]
    for number, size in enumerate(sizes, 1):
        ends.append(ends[-1] + size)
        marks.note(ends[-1], Stored(number, number))
        assert len(marks._marks) <= MARKS_MAX + 1
    floor = data.draw(st.integers(0, ends[-1]))
    since = marks.oldest(floor)
    above = [number for number, end in enumerate(ends) if end > floor]
    if not above:
        assert since is None
        return
    assert since is not None and since.objects <= above[0]
    if len(sizes) < MARKS_MAX:
        assert since.objects == above[0]


def test_what_was_there_before_a_leader_is_old_enough() -> None:
    candidate = Candidate(inherited(5, START).oldest(0) or START, 10)
    assert MoveBudget().choose([("a", candidate)], START) == ["a"]
    assert inherited(5, START).oldest(5) is None


def test_what_few_objects_came_after_is_left() -> None:
    few = Stored(OBJECTS_MIN - 1, 1 << 40)
    assert MoveBudget().choose([("a", Candidate(START, 10))], few) == []


def test_what_is_large_beside_what_it_holds_back_is_left() -> None:
    now = Stored(OBJECTS_MIN, SHARE * 8 * FREE_BYTES)
    small, large = Candidate(START, 8 * FREE_BYTES), Candidate(START, 8 * FREE_BYTES + 1)
    assert MoveBudget().choose([("small", small), ("large", large)], now) == ["small"]


def test_the_oldest_goes_first_and_what_is_too_dear_now_holds_up_the_younger() -> None:
    budget = MoveBudget()
    budget.choose([], MUCH)
    later = Stored(MUCH.objects + 1, MUCH.bytes)
    since = [Stored(number, number) for number in range(3)]
    half = SAVED_MAX_BYTES // 2 + 1
    candidates = [
        ("c", Candidate(since[2], 1)),
        ("b", Candidate(since[1], half)),
        ("a", Candidate(since[0], half)),
    ]
    assert budget.choose(candidates, later) == ["a"]


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_moves_cost_a_share_of_what_was_stored_and_a_trifle_a_round(rounds: int) -> None:
    budget = MoveBudget()
    moved = 0
    each = 4 << 20
    for number in range(1, rounds + 1):
        now = Stored(OBJECTS_MIN * number, number * (100 << 20))
        chosen = budget.choose([(at, Candidate(START, 1 << 20)) for at in range(1000)], now)
        moved += len(chosen) << 20
    assert moved <= rounds * ((100 << 20) // SHARE + FREE_BYTES)
    assert moved >= rounds * each // 2
