"""Rounds that settle together, for as long as a seed likes: whatever the loop runs between an append and its
write (timers, maintenance, deletions, closing connections, stops, crashes) finds promises kept.

In service a round waits for the end of its turn of the loop, and only where connections keep each other
company; here each waits, up to `LINGER_MAX_S`.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.net import server as network
from broker.net.connection import Connection
from broker.net.server import NetworkServer
from storage.unified_log import UnifiedLog
from tests.sim.scenario import simulate

SEEDS = 20
SEEDS_PER_TEST = 10
LINGER_MAX_S = 0.02
LINGER_LONG_S = 1.0
LINGER_LONG_CHANCE = 0.1


class Lingering:
    """A loop that takes its time where a round waits for company."""

    def __init__(self, loop: Any, opened: Counter[str]) -> None:
        self._loop = loop
        self._rng = random.Random(0)
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        if callback.__name__ != "finish_deferred":
            return self._loop.call_soon(callback, *args)
        self._opened["rounds"] += 1
        longest_s = LINGER_LONG_S if self._rng.random() < LINGER_LONG_CHANCE else LINGER_MAX_S
        return self._loop.call_later(self._rng.random() * longest_s, callback, *args)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the rounds that were left open, and the batches whose buffer was used again before the write."""
    counts: Counter[str] = Counter()
    prepare, append, flush = NetworkServer.__init__, UnifiedLog.append_plain, UnifiedLog.flush_staged
    copies: dict[int, tuple[memoryview, bytes]] = {}

    def init(self: NetworkServer, **given: Any) -> None:
        prepare(self, **{**given, "loop": Lingering(given["loop"], counts)})

    def appended(self: UnifiedLog, batch: memoryview, *rest: Any) -> int:
        offset = append(self, batch, *rest)
        if offset >= 0:
            copies[id(batch)] = batch, bytes(batch)
        return offset

    def flushed(self: UnifiedLog) -> None:
        for batch in self._staged:
            _, copy = copies.pop(id(batch), (batch, None))
            counts["batches overwritten"] += copy is not None and copy != batch
        flush(self)

    monkeypatch.setattr(network, "_ROUNDS_APART", 0)
    monkeypatch.setattr(NetworkServer, "__init__", init)
    monkeypatch.setattr(UnifiedLog, "append_plain", appended)
    monkeypatch.setattr(UnifiedLog, "flush_staged", flushed)
    logging.disable(logging.CRITICAL)
    yield counts
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_with_open_rounds(first: int, opened: Counter[str]) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        outcome = simulate(seed)
        assert outcome.passed, f"seed {seed}: {outcome.line()}"
    assert opened["rounds"] > SEEDS_PER_TEST
    assert not opened["batches overwritten"]


def test_a_buffer_that_is_used_too_early_is_noticed(
    opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "get_buffer", lambda self, _hint: self._reader.get_buffer())
    assert any(not simulate(seed).passed or opened["batches overwritten"] for seed in range(SEEDS))
