"""A stretch of one object or file on its way into a scanner.

Owns how much is asked for at once. Does not own sources (stores) or scanners (batches).
Invariant: the scanner is done with a piece before the next is read into the same memory: fresh memory would
cost a quarter more of all that a scan takes.
"""

from __future__ import annotations

from tools.verify.core.batches import RunScanner
from tools.verify.core.plan import READ_BYTES
from tools.verify.core.stores import Source


def feed_from(scanner: RunScanner, source: Source, key: str, at: int, end: int) -> None:
    """Feed the bytes from `at` to `end`, or to where there are no more."""
    while at < end:
        size = min(READ_BYTES, end - at)
        if scanner.feed(source.read_piece(key, at, size)) < size:
            return
        at += size
