"""How many bytes a second a quota leaves (KIP-956).

Owns: the debt of what was charged, and what was measured in Kafka's window of samples. Does not own: the
clock, the rate, who waits (pacing). Invariant: where nothing is charged while something is owed, no period
has more charged to it than the rate allows in it, one charge, and what may be saved.

Kafka compares the average over a window of samples with the quota, so what a quiet window saves may be spent
at once, and other windows have twice the quota. Here each charge is paid off at the rate before the next,
which keeps every window and lets a charge of any size pass. A hundredth of the window may be saved: it makes
up for those who wake a little late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

_SAVED_SHARE: Final = 0.01
_NO_TIME_S: Final = 1e-6


class Quota:
    def __init__(self, *, samples: int, sample_s: float) -> None:
        assert samples >= 1 and sample_s > 0, (samples, sample_s)
        self._saved_s = samples * sample_s * _SAVED_SHARE
        self._rate = 0.0
        self._debt = 0.0
        """Bytes; below zero they are saved."""
        self._at = 0.0
        self._bytes = Samples(samples=samples, sample_s=sample_s)

    def __repr__(self) -> str:
        return f"Quota({self._debt:.0f} bytes owed at {self._rate:.0f} bytes/s)"

    def wait_s(self, now: float, rate: int) -> float:
        """How long until nothing is owed, at this rate from now on."""
        if now > self._at:
            self._debt = max(self._debt - self._rate * (now - self._at), -self._rate * self._saved_s)
            self._at = now
        if rate != self._rate:
            self._rate = float(rate)
            self._debt = max(self._debt, -self._rate * self._saved_s)
        wait_s = self._debt / self._rate
        return wait_s if wait_s > _NO_TIME_S else 0.0

    def charge(self, size: int, now: float, rate: int) -> None:
        """Whether anything is owed or not."""
        self.wait_s(now, rate)
        self._debt += size
        self._bytes.add(size, now)

    def refund(self, size: int, now: float, rate: int) -> None:
        """Take back a charge that nobody will use."""
        self.charge(-size, now, rate)

    def byte_rate(self, now: float) -> float:
        """Charged bytes a second over the window."""
        return self._bytes.statistics(now).total / self._bytes.elapsed_s(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStatistics:
    total: float
    count: int
    max: float

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0


class Samples:
    """What was measured in the last so many samples, the current one among them."""

    def __init__(self, *, samples: int, sample_s: float) -> None:
        self._samples = samples
        self._sample_s = sample_s
        self._kept: deque[tuple[int, float, int, float]] = deque()
        """(number of the sample, total, count, greatest), oldest first."""

    def add(self, value: float, now: float) -> None:
        number = int(now / self._sample_s)
        self._forget(number)
        if self._kept and self._kept[-1][0] == number:
            _, total, count, greatest = self._kept.pop()
            self._kept.append((number, total + value, count + 1, max(greatest, value)))
        else:
            self._kept.append((number, value, 1, value))

    def statistics(self, now: float) -> SampleStatistics:
        self._forget(int(now / self._sample_s))
        return SampleStatistics(
            total=sum(total for _, total, _, _ in self._kept),
            count=sum(count for _, _, count, _ in self._kept),
            max=max((greatest for *_, greatest in self._kept), default=0.0),
        )

    def elapsed_s(self, now: float) -> float:
        """The time that the samples take: all but the current one whole, however few there were."""
        current_s = now - int(now / self._sample_s) * self._sample_s
        return max((self._samples - 1) * self._sample_s + current_s, self._sample_s)

    def _forget(self, number: int) -> None:
        while self._kept and self._kept[0][0] <= number - self._samples:
            self._kept.popleft()
