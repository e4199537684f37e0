"""A broken broker of one does not get through whole runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.coordinators.groups.offsets import Commit
from protocol.records import BatchHeader
from storage.flush import SegmentFlush
from storage.producers import ProducerTable, SentBatch, Verification
from storage.segmented_log import SegmentedLog
from storage.unified_log import UnifiedLog
from tests.sim.scenario import simulate

pytestmark = pytest.mark.usefixtures("quiet")


def is_noticed(rule: str, seeds: range) -> bool:
    return any(rule in simulate(seed).verdict.rules() for seed in seeds)


def test_a_broker_that_does_not_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentFlush, "run", lambda _: None)
    assert is_noticed("1 acked is kept", range(13, 213))


def test_a_broker_that_forgets_its_producers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(
        self: ProducerTable, header: BatchHeader, verified: Verification | None = None
    ) -> SentBatch | None:
        return None

    monkeypatch.setattr(ProducerTable, "check", check)
    assert is_noticed("4 no duplicates", range(4, 204))


def test_a_broker_that_drops_a_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[[UnifiedLog], None] = UnifiedLog.flush_staged

    def flush(self: UnifiedLog) -> None:
        if self.log_end_offset % 7 == 3 and self.topic == "t":
            self._staged = []
        honest(self)

    monkeypatch.setattr(UnifiedLog, "flush_staged", flush)
    assert any(not simulate(seed).passed for seed in range(50))


def test_a_coordinator_that_goes_on_after_an_error_of_its_own_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decide(self: Commit, shard: object, draft: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(Commit, "decide", decide)
    assert any("Commit failed: ZeroDivisionError" in simulate(seed).error for seed in range(50))


def test_a_broker_that_names_no_aborted_transaction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentedLog, "aborted_in", lambda self, start, end: [])
    assert is_noticed("14 nothing open is read", range(9, 60))
