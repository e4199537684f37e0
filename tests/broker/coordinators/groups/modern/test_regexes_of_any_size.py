"""Looking through topics by a pattern: in turns on the loop, in another thread if its program is large."""

from __future__ import annotations

import pytest

from broker.coordinators.groups.modern.regexes import by_size, is_large, matched, matching
from protocol.work import finish

NAMES = [f"{'a' * 240}{number:03}" for number in range(96)]


@pytest.mark.parametrize("pattern", ["a+[0-9]+", "a{50}.*", "[a-z]*(1|2)."])
def test_a_small_program_is_work_for_the_loop(pattern: str) -> None:
    assert not is_large(pattern)
    assert finish(matching([pattern], NAMES))[pattern] == matched(pattern, NAMES)
    turns = sum(1 for _ in matching([pattern], NAMES))
    assert turns >= len(NAMES) // 24


@pytest.mark.parametrize("pattern", ["(?:a?){300}[a-z]*[0-9]+", "a{240}.*", "(?:.?){250}"])
def test_a_large_program_is_none(pattern: str) -> None:
    assert is_large(pattern)
    assert matched(pattern, reversed(NAMES)) == tuple(NAMES)


def test_what_is_no_expression_here_matches_nothing() -> None:
    """It may have been one for the broker that stored it, and must not bring this one down."""
    small, large = finish(by_size(["a.*", "(", "a{240}.*"]))
    assert (small, large) == (["a.*", "("], ["a{240}.*"])
    assert finish(matching(small, NAMES)) == {"a.*": tuple(NAMES), "(": ()}


def test_one_expression_is_compiled_a_step() -> None:
    assert sum(1 for _ in by_size([f"a{{{number}}}" for number in range(100)])) == 100
