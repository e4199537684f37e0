"""Work in steps: names are sorted as they would be at once, with little between two steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol import work
from protocol.work import finish, in_order


@given(st.lists(st.text(max_size=3), max_size=60), st.integers(4, 12))
def test_names_are_sorted_in_steps_as_at_once(names: list[str], size: int) -> None:
    before, work._SORTED = work._SORTED, size  # type: ignore[misc]
    try:
        assert finish(in_order(names)) == sorted(names)
        assert finish(in_order(iter(names))) == sorted(names)
    finally:
        work._SORTED = before  # type: ignore[misc]


def test_many_names_take_many_steps() -> None:
    names = [f"{at * 7919 % 10_007:05}" for at in range(10_000)]
    assert sum(1 for _ in in_order(names)) > 10_000 / 512


def test_long_names_are_sorted_a_few_at_once() -> None:
    """Those that differ in their ends alone are read in full to be compared."""
    compared = [0]

    class Name(str):
        def __lt__(self, other: str) -> bool:
            compared[0] += 1
            return str.__lt__(self, other)

    names = [Name(f"{at * 7919 % 1_009:030000}") for at in range(400)]
    most = before = 0
    steps = in_order(names)
    try:
        while True:
            next(steps)
            most = max(most, compared[0] - before)
            before = compared[0]
    except StopIteration as end:
        assert end.value == sorted(names)
    assert most < 300
