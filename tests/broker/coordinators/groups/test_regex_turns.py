"""Looking through topics by a pattern goes in steps that are the shorter the larger its program is."""

from __future__ import annotations

import pytest

from broker.coordinators.groups.modern.regexes import matching

NAMES = [f"{'a' * 240}{number:03}" for number in range(96)]


@pytest.mark.parametrize(
    ("pattern", "names_at_once"), [("a+[0-9]+", 24), ("(?:a?){300}[a-z]*[0-9]+", 1), ("a{120}.*", 12)]
)
def test_a_large_program_looks_at_fewer_names_between_two_turns(pattern: str, names_at_once: int) -> None:
    work = matching([pattern], NAMES)
    turns = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            assert done.value == {pattern: tuple(NAMES)}
            break
        turns += 1
    assert turns >= len(NAMES) // names_at_once
