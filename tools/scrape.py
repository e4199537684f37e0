"""What brokers say of themselves at /metrics, added up and compared: counters, and histograms of times.

Owns reading that text, sums over brokers, differences between two looks, and what a histogram tells. Does not
own the names' meaning. Pure but for `look`.
Invariant: a name that a broker does not have counts as zero; the mean of a histogram is exact, its
percentiles are the bound of the bucket.
"""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tools.console import Failure

LOOK_S_MAX = 60.0
LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many lie at or below each bound, and the sum of all."""

    up_to: Mapping[float, float] = field(default_factory=dict)
    sum: float = 0.0

    @property
    def count(self) -> float:
        return max(self.up_to.values(), default=0.0)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the bound of the bucket in which that share is reached; 0 of none at all."""
        wanted = share * self.count
        return next((bound for bound, many in sorted(self.up_to.items()) if many and many >= wanted), 0.0)

    def above(self, bound: float) -> float:
        """Return how many lie above it, which must be one of its bounds or beyond all."""
        if bound not in self.up_to:
            raise Failure(f"{bound} is no bound of a histogram") if self.up_to else Failure("no histogram")
        return self.count - self.up_to[bound]


class Scrape:
    """The samples of one look at one or several brokers."""

    def __init__(self, values: Mapping[Key, float] | None = None) -> None:
        self._values = dict(values or {})

    @staticmethod
    def parse(text: str) -> Scrape:
        found: dict[Key, float] = {}
        for line in text.splitlines():
            if line.startswith("#") or (match := LINE.match(line)) is None:
                continue
            name, labels, value = match.groups()
            found[name, tuple(sorted(LABEL.findall(labels or "")))] = float(value)
        return Scrape(found)

    def __add__(self, other: Scrape) -> Scrape:
        keys = self._values.keys() | other._values.keys()
        return Scrape({key: self._values.get(key, 0.0) + other._values.get(key, 0.0) for key in keys})

    def __sub__(self, before: Scrape) -> Scrape:
        return Scrape({key: value - before._values.get(key, 0.0) for key, value in self._values.items()})

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._values}

    def samples(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """Return each sample of that name with its labels."""
        return [(dict(labels), value) for (each, labels), value in self._values.items() if each == name]

    def value(self, name: str, **labels: str) -> float:
        """Add up the samples of that name that have these labels."""
        wanted = labels.items()
        return sum(
            value for (each, of), value in self._values.items() if each == name and wanted <= dict(of).items()
        )

    def histogram(self, name: str) -> Histogram:
        up_to: dict[float, float] = {}
        for (each, labels), value in self._values.items():
            if each == f"{name}_bucket":
                bound = math.inf if (le := dict(labels)["le"]) == "+Inf" else float(le)
                up_to[bound] = up_to.get(bound, 0.0) + value
        return Histogram(up_to, self.value(f"{name}_sum"))


def look(ports: Iterable[int]) -> Scrape:
    """Ask the admin ports; return the sums over all of them."""
    total = Scrape()
    for port in ports:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LOOK_S_MAX) as answer:
                total += Scrape.parse(answer.read().decode())
        except OSError as error:
            raise Failure(f"no metrics at port {port}: {error}") from None
    return total
