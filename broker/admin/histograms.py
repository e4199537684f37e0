"""Counts by bounds, as Prometheus wants to have them.

Owns: adding them up. Does not own: the bounds (who counts has them). Invariant: the last bucket holds all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def buckets_of(bounds_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return each bound with all that does not exceed it; `counts` has one more, of what exceeds them all."""
    names = (*map(str, bounds_s), "+Inf")
    return [(name, float(below)) for name, below in zip(names, accumulate(counts), strict=True)]
