"""Whole runs: 200 seeds against a real broker, one trace per seed, and proof that a broken broker does not
get through."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from protocol.records import BatchHeader
from storage.producers import ProducerTable, SentBatch
from storage.unified_log import SegmentFlush, UnifiedLog
from tests.sim.scenario import simulate

SEEDS = 200
SEEDS_PER_TEST = 20


# A request whose task is cancelled before its first step leaves a handler that never began.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of killed brokers have nothing to say, then or when they are collected."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        outcome = simulate(seed)
        assert outcome.passed, f"{outcome.line()}\nreplay: python -m tests.sim.run --seed {seed}"


@pytest.mark.parametrize("seed", [1, 18, 43, 157])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert first.trace == second.trace
    assert first.history == second.history


def test_different_seeds_give_different_traces() -> None:
    assert len({simulate(seed).trace for seed in range(5)}) == 5


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    lines = {
        subprocess.run(
            [
                sys.executable,
                "-c",
                "from tests.sim.scenario import simulate\nfor s in range(16): print(simulate(s).trace)",
            ],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(lines) == 1


# --- a broken broker is caught ------------------------------------------------------------------------------


def is_noticed(rule: str, seeds: range) -> bool:
    return any(rule in simulate(seed).verdict.rules() for seed in seeds)


def test_a_broker_that_does_not_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentFlush, "run", lambda _: None)
    assert is_noticed("1 acked is kept", range(40, 240))


def test_a_broker_that_forgets_its_producers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: ProducerTable, header: BatchHeader) -> SentBatch | None:
        return None

    monkeypatch.setattr(ProducerTable, "check", check)
    assert is_noticed("4 no duplicates", range(65, 265))


def test_a_broker_that_drops_a_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[[UnifiedLog], None] = UnifiedLog.flush_staged

    def flush(self: UnifiedLog) -> None:
        if self.log_end_offset % 7 == 3 and self.topic == "t":
            self._staged = []
        honest(self)

    monkeypatch.setattr(UnifiedLog, "flush_staged", flush)
    assert any(not simulate(seed).passed for seed in range(50))
