"""Where a listener of a broker is reached.

Owns: that value. Does not own: listeners, or which of them a peer uses. Invariant: it is pure, so records of
the metadata log and connections may both carry it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a broker listens, as it is registered."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def packed(self) -> list[Any]:
        return [self.listener, self.host, self.port, self.protocol]

    @staticmethod
    def unpacked(row: list[Any]) -> Endpoint:
        return Endpoint(listener=row[0], host=row[1], port=row[2], protocol=row[3])
