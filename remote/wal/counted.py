"""What the uploader tells about its stream: an object that counts, a stream that began or ended.

Owns: the shape of it. Does not own: when it is told (uploader), what listeners make of it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from remote.keys import Stream
from remote.wal.combined_object import Place, Row


class Counted(NamedTuple):
    """An object that is in the store, and all before it in its stream too."""

    place: Place
    rows: tuple[Row, ...]
    table: bytes
    """Its head and its table, as they are in the object."""
    size: int
    stored_ms: int
    """By this broker's clock."""


OnCounted = Callable[[Counted], None]
"""Called for each object of a stream, in order, once everything in it may be pointed to. Must not fail."""

OnStream = Callable[[Stream, bool], None]
"""(stream, whether it began): before its first object, and once nothing can be added to it any more."""
