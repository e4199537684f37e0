"""What may become of what one end of a link sends to the other, and the faults made of that.

Owns: the rules in force, each fault until its block ends, and what several rules on one link amount to. Does
not own how a rule is enforced (namespaces, proxies). Invariant: a fault is in force when its block begins,
and undone when it ends.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.clusters import Seat

End = int | str
"""A broker by its node id, or one of these."""
STORE: Final = "store"
CLIENTS: Final = "clients"
Pair = tuple[End, End]
"""Who sends, and to whom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    is_cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    """The share of packets that is lost."""
    bytes_per_s: float | None = None

    def __and__(self, other: Rule) -> Rule:
        rates = [rate for rate in (self.bytes_per_s, other.bytes_per_s) if rate is not None]
        return Rule(
            is_cut=self.is_cut or other.is_cut,
            delay_s=self.delay_s + other.delay_s,
            loss=1 - (1 - self.loss) * (1 - other.loss),
            bytes_per_s=min(rates, default=None),
        )


CLEAR: Final = Rule()
CUT: Final = Rule(is_cut=True)


class Links:
    """Between all `ends`. A subclass enforces what `_enforce` is given, before that returns."""

    kind: str

    def __init__(self, ends: Sequence[End]) -> None:
        self.ends = tuple(ends)
        self._active: list[tuple[frozenset[Pair], Rule]] = []

    def seat(self, end: End) -> Seat:
        """Where a broker, or the store, runs and is found."""
        raise NotImplementedError

    def store_port(self, broker: End) -> int:
        """Where that broker reaches the store, on the store's host."""
        raise NotImplementedError

    def _enforce(self, rules: Mapping[Pair, Rule]) -> None:
        """Only links that are not clear are among them."""
        raise NotImplementedError

    @contextlib.contextmanager
    def ruled(self, pairs: Iterable[Pair], rule: Rule) -> Iterator[None]:
        active = frozenset(pairs), rule
        self._active.append(active)
        self._enforce(self._rules())
        try:
            yield
        finally:
            self._active.remove(active)
            self._enforce(self._rules())

    def _rules(self) -> dict[Pair, Rule]:
        rules: dict[Pair, Rule] = {}
        for pairs, rule in self._active:
            for pair in pairs:
                rules[pair] = rules.get(pair, CLEAR) & rule
        return rules

    # --- which links ---

    def sent_by(self, end: End, to: Sequence[End] = ()) -> list[Pair]:
        """To those, or to everyone."""
        return [(end, other) for other in to or self.ends if other != end]

    def between(self, end: End, others: Sequence[End] = ()) -> list[Pair]:
        """Both ways."""
        there = self.sent_by(end, others)
        return list(itertools.chain(there, ((to, by) for by, to in there)))

    # --- faults; `others` are all when none is named ---

    def cut(self, end: End, *others: End) -> contextlib.AbstractContextManager[None]:
        return self.ruled(self.between(end, others), CUT)

    def cut_one_way(self, by: End, *to: End) -> contextlib.AbstractContextManager[None]:
        """What `by` sends is lost; what is sent to it arrives."""
        return self.ruled(self.sent_by(by, to), CUT)

    def deaf(self, end: End, *to: End) -> contextlib.AbstractContextManager[None]:
        """What is sent to it is lost; what it sends arrives."""
        return self.ruled(((by, it) for it, by in self.sent_by(end, to)), CUT)

    def slow(self, end: End, *others: End, bytes_per_s: float) -> contextlib.AbstractContextManager[None]:
        return self.ruled(self.between(end, others), Rule(bytes_per_s=bytes_per_s))

    def delay(self, end: End, *others: End, delay_s: float) -> contextlib.AbstractContextManager[None]:
        """Each way."""
        return self.ruled(self.between(end, others), Rule(delay_s=delay_s))

    def lossy(self, end: End, *others: End, loss: float) -> contextlib.AbstractContextManager[None]:
        return self.ruled(self.between(end, others), Rule(loss=loss))
