"""Counters that no component keeps for itself: requests, errors, elections.

Owns: the numbers. Does not own: their names and their collection (metrics). Invariant: counting is an
addition to a plain int.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.control.image import Delta

_API_KEYS: Final = 128


class Counters:
    def __init__(self) -> None:
        self.requests = [0] * _API_KEYS
        """Requests by API key."""
        self.errors: Counter[int] = Counter()
        """Requests answered as a whole with an error, by its code."""
        self.elections = 0
        self.unclean_elections = 0

    def follow(self, delta: Delta) -> None:
        self.elections += delta.elections
        self.unclean_elections += delta.unclean_elections
