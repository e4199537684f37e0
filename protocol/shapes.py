"""What requests of a client have in common, one after the other: reading the few numbers that differ.

Owns: telling by its bytes whether a request is like an earlier one, and the numbers in which it may differ.
Does not own: where these are (the readers of each API), nor what is done then. Produce and Fetch have shapes
of their own, of which only a part is compared.
Invariant: a request of a shape has the bytes of the first one everywhere but in its correlation id and at the
places that were named.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, calcsize
from typing import Final

from protocol.primitives import INT32, Buffer

CORRELATED_AT: Final = 4
"""Where the correlation id is: in a request after its API and version, in a response after its size."""


class FrameShape:
    """A request that may come again with other numbers at a few places."""

    __slots__ = ("_common", "_read", "_size")

    def __init__(self, frame: Buffer, places: Sequence[int], kind: str) -> None:
        """`frame` has no size; `kind` is what struct calls the numbers at `places`, which are in order."""
        layout, at = [f">{CORRELATED_AT}s{INT32.size}x"], CORRELATED_AT + INT32.size
        for place in places:
            layout.append(f"{place - at}s{kind}")
            at = place + calcsize(f">{kind}")
        fields = Struct("".join((*layout, f"{len(frame) - at}s")))
        self._read = fields.unpack
        self._size = fields.size
        found = self._read(frame)
        self._common = (found[0], *found[1::2])

    def read(self, frame: Buffer) -> tuple[int, ...] | None:
        """Return the numbers of a request of this shape; None for any other."""
        if len(frame) != self._size:
            return None
        found = self._read(frame)
        return found[2::2] if (found[0], *found[1::2]) == self._common else None


def correlated(response: bytes, correlation_id: int) -> bytes:
    """Return the response with another correlation id."""
    return b"".join(
        (response[:CORRELATED_AT], INT32.pack(correlation_id), response[CORRELATED_AT + INT32.size :])
    )
