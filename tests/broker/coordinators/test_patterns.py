"""Expressions of clients: what is valid, and that none takes long to be compiled."""

from __future__ import annotations

import pytest
import re2

from broker.coordinators.patterns import TOO_LARGE, InvalidPattern, compiled


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", ""),
        ("a*", "aaa"),
        ("orders-[0-9]{2,4}", "orders-123"),
        (r"\p{Greek}+", "λόγος"),
        ("|".join(f"topic-{at:04}" for at in range(2_000)), "topic-1234"),
    ],
)
def test_what_is_of_use_is_compiled(pattern: str, text: str) -> None:
    assert compiled(pattern).fullmatch(text) is not None
    assert compiled(pattern).fullmatch("?" + text) is None


@pytest.mark.parametrize("pattern", ["[", "(", "a**", "(?=a)b", "(((a{1,30}){1,30}){1,30})b"])
def test_what_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)" + r"\pL" * 300,
        "(?i)[" + r"\PL" * 1_000 + "]",
        "x{0,1000}" * 8,
        "x{1000}" * 8,
        "(?:x{3,}y{900}){1,3}" + "z{1000,}" * 2,
    ],
)
def test_what_takes_long_is_refused_before_it_does(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(*given: object) -> object:
        raise AssertionError("compiled all the same")

    monkeypatch.setattr(re2, "compile", compile_)
    with pytest.raises(InvalidPattern, match=TOO_LARGE):
        compiled(pattern)


def test_a_program_that_is_too_large_is_refused_by_the_engine() -> None:
    with pytest.raises(InvalidPattern, match=TOO_LARGE):
        compiled(r"\pL{900}")
    assert re2.compile("a").fullmatch("a")


def test_an_answer_is_given_again_without_compiling() -> None:
    assert compiled("once-more") is compiled("once-more")
