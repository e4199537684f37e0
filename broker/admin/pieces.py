"""Large families in pieces.

Owns: how many samples are made between two turns of the loop. Does not own: the families (metrics,
tier_metrics, wal_metrics). Invariant: each row is in one piece, in its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PIECE: Final = 200
"""Samples in one piece, about 1 ms; those of 5,000 partitions would hold the loop for 0.2 s."""


def pieces(rows: Sequence[T], size: int | None = None) -> Iterator[Sequence[T]]:
    """Slices of `rows`; at least one, so that a family without samples is named too."""
    step = size or PIECE
    for at in range(0, max(len(rows), 1), step):
        yield rows[at : at + step]
