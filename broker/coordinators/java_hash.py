"""The hash of a string in Java, by which Kafka places ids.

Owns that one function. Does not own what is placed by it.
Invariant: for every string it is what `String.hashCode` returns, as an unsigned number.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from operator import mul
from typing import Final

_KEPT: Final = 4_096
_UTF_16: Final = f"utf-16-{sys.byteorder[0]}e"
_UNITS: Final = 256
"""What is hashed by one pass over a table; an id may have 32,767."""
_BITS: Final = 0xFFFFFFFF
_POWERS: Final[tuple[int, ...]] = tuple(pow(31, power, _BITS + 1) for power in range(_UNITS - 1, -1, -1))
_BLOCK: Final[int] = pow(31, _UNITS, _BITS + 1)


def java_hash(text: str) -> int:
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    first = len(units) % _UNITS
    value: int = sum(map(mul, units[:first], _POWERS[_UNITS - first :])) & _BITS
    for at in range(first, len(units), _UNITS):
        value = (value * _BLOCK + sum(map(mul, units[at : at + _UNITS], _POWERS))) & _BITS
    return value


@lru_cache(maxsize=_KEPT)
def java_hash_kept(text: str) -> int:
    """Return the hash of a string that is asked for again and again."""
    return java_hash(text)
