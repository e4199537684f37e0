"""Which packets get through, and when: the rules of `rules.py` packet by packet.

Owns: what is under way, the queue in front of a slow link, and the dice. Does not own where packets come
from or go to, nor the clock. Invariant: without a rule a packet goes at once; what is under way is bounded,
and what comes on top of it is lost, as on a real link.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Mapping

from tests.links.rules import CLEAR, Pair, Rule

QUEUE_S_MAX = 0.5
"""A slow link holds as much as it sends in that time."""
UNDER_WAY_MAX = 20_000


class Traffic:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._rules: dict[Pair, Rule] = {}
        self._free_s: dict[Pair, float] = {}
        """Until when a slow link is busy with what it took."""
        self._under_way: list[tuple[float, int, Pair, bytes]] = []
        self._numbers = itertools.count()

    def rule(self, rules: Mapping[Pair, Rule]) -> None:
        """From now on. What is cut now also loses what is under way."""
        self._rules = dict(rules)
        self._under_way = [each for each in self._under_way if not self._of(each[2]).is_cut]
        heapq.heapify(self._under_way)

    def _of(self, pair: Pair) -> Rule:
        return self._rules.get(pair, CLEAR)

    def take(self, pair: Pair, packet: bytes, now_s: float) -> bool:
        """Whether it goes on at once; if not it is under way, or lost."""
        rule = self._rules.get(pair)
        if rule is None:
            return True
        if rule.is_cut or self._dice.random() < rule.loss:
            return False
        at_s = now_s + rule.delay_s
        if rule.bytes_per_s is not None:
            begins_s = max(now_s, self._free_s.get(pair, now_s))
            if begins_s > now_s + QUEUE_S_MAX:
                return False
            self._free_s[pair] = begins_s + len(packet) / rule.bytes_per_s
            at_s = self._free_s[pair] + rule.delay_s
        if at_s <= now_s:
            return True
        if len(self._under_way) < UNDER_WAY_MAX:
            heapq.heappush(self._under_way, (at_s, next(self._numbers), pair, packet))
        return False

    def arrived(self, now_s: float) -> list[tuple[Pair, bytes]]:
        """What has been under way for long enough, in the order in which it arrives."""
        found = []
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, pair, packet = heapq.heappop(self._under_way)
            found.append((pair, packet))
        return found

    def next_s(self) -> float | None:
        """When the next packet arrives."""
        return self._under_way[0][0] if self._under_way else None
