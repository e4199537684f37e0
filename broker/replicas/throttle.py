"""How many bytes a second replication may take for the replicas an operator listed.

Owns: one rate over Kafka's sliding window, and reading its lists. Does not own: where the rate and the lists
are configured, or which traffic is asked about. Invariant: without a rate, or for a replica on no list,
nothing is counted and nothing held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

EVERY_REPLICA: Final = "*"


class Throttle:
    def __init__(
        self,
        *,
        rate: Callable[[], int],
        clock: Callable[[], float],
        samples: int,
        sample_s: float,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._samples = samples
        self._sample_s = sample_s
        self._sent: deque[tuple[int, int]] = deque()
        """(number of the sample, bytes), oldest first."""

    def __repr__(self) -> str:
        return f"<Throttle {self._bytes()} B in the window, {self._rate()} B/s allowed>"

    def sent(self, listed: Sequence[str], index: int, node_id: int, size: int) -> None:
        if not is_listed(listed, index, node_id):
            return
        now = self._now()
        if self._sent and self._sent[-1][0] == now:
            size += self._sent.pop()[1]
        self._sent.append((now, size))
        self._forget(now)

    def holds_back(self, listed: Sequence[str], index: int, node_id: int) -> bool:
        if not is_listed(listed, index, node_id):
            return False
        self._forget(self._now())
        return self._bytes() > self._rate() * self._window_s()

    def _now(self) -> int:
        return int(self._clock() / self._sample_s)

    def _forget(self, now: int) -> None:
        while self._sent and self._sent[0][0] <= now - self._samples:
            self._sent.popleft()

    def _window_s(self) -> float:
        """The time that all samples but the current one take, however few there were: a burst after a quiet
        time is not free."""
        return (self._samples - 1) * self._sample_s

    def _bytes(self) -> int:
        return sum(size for _, size in self._sent)


def is_listed(listed: Sequence[str], index: int, node_id: int) -> bool:
    """Whether a topic's list `partition:broker,…` or `*` names this replica."""
    return bool(listed) and (EVERY_REPLICA in listed or f"{index}:{node_id}" in listed)
