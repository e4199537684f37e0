"""The memory of long polls of many partitions that have no session.

Owns: how much they hold together, and which of them ends so that another fits in. Does not own: what a poll
holds and how it ends (fetch), sessions (fetch_sessions). Invariant: those that wait hold at most `bytes_max`;
whoever comes when that is taken does not wait, unless others of an address that holds more end for it.

A client that is answered early has lost nothing, and asks again: Kafka's answer to a poll may come at any
time. Of the address that holds most the last that came goes first, so that those which wait are not driven
around by each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

POLLS_BYTES_MAX: Final = 64 << 20
"""Two hundred thousand partitions, as much as sessions may have."""

PollT = TypeVar("PollT", bound=Hashable)


class LongPolls(Generic[PollT]):
    def __init__(self, bytes_max: int = POLLS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.cut_short = 0
        """How many were answered before their time."""
        self._sizes: dict[str, dict[PollT, int]] = {}
        """By address, in the order of coming."""
        self._by_address: Counter[str] = Counter()
        self._address_of: dict[PollT, str] = {}

    def __repr__(self) -> str:
        return f"<LongPolls {len(self._address_of)} of {self.bytes} bytes, {self.cut_short} cut short>"

    def __len__(self) -> int:
        return len(self._address_of)

    def enter(self, poll: PollT, address: str, size: int) -> list[PollT]:
        """Count one that is to wait. Return those that have to end for it and are counted no longer: that may
        be itself."""
        self._sizes.setdefault(address, {})[poll] = size
        self._address_of[poll] = address
        self._by_address[address] += size
        self.bytes += size
        ended: list[PollT] = []
        while self.bytes > self.bytes_max:
            # of two that hold the same the newcomer's: nobody ends for an equal
            most = max(self._by_address, key=lambda each: (self._by_address[each], each == address))
            last = next(reversed(self._sizes[most]))
            self.leave(last)
            ended.append(last)
        self.cut_short += len(ended)
        return ended

    def leave(self, poll: PollT) -> None:
        """Count one no longer; do nothing for one that is not counted."""
        address = self._address_of.pop(poll, None)
        if address is None:
            return
        sizes = self._sizes[address]
        size = sizes.pop(poll)
        self.bytes -= size
        self._by_address[address] -= size
        if not sizes:
            del self._sizes[address], self._by_address[address]
