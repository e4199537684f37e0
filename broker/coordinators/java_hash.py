"""The hash of a string in Java, by which Kafka places ids.

Owns that one function. Does not own what is placed by it.
Invariant: for every string it is what `String.hashCode` returns, as an unsigned number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_KEPT: Final = 4_096


def java_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=_KEPT)
def java_hash_kept(text: str) -> int:
    """Return the hash of a string that is asked for again and again."""
    return java_hash(text)
