"""The hash of a string is the one that Java's `String.hashCode` defines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.java_hash import java_hash


def defined(text: str) -> int:
    """31 times what is before, plus the unit of UTF-16, in 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value


@given(st.text(st.characters(exclude_categories=()), max_size=40), st.integers(0, 60))
def test_the_hash_is_as_java_defines_it(text: str, times: int) -> None:
    assert java_hash(text * times) == defined(text * times)


def test_hashes_that_java_gives() -> None:
    assert java_hash("") == 0
    assert java_hash("hello") == 99_162_322
    assert java_hash("polygenelubricants") == 0x80000000
    for count in (255, 256, 257, 511, 512, 513, 32_767):
        assert java_hash("x" * count) == defined("x" * count)
