"""How long, and how often, a Produce asks a coordinator that still ends the transaction before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config.broker import from_properties
from broker.handlers.produce_transactions import ProduceTransactions


class BusyCoordinator:
    """A transaction whose coordinator is busy, however often it is asked."""

    is_asked_for = True
    adds = True

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, verifier: object, timeout_ms: int) -> bool:
        self.asked += 1
        return True

    def begin(self, replicas: object, now_ms: int) -> None:
        pass


async def pauses(monkeypatch: pytest.MonkeyPatch, **properties: str) -> tuple[list[float], BusyCoordinator]:
    """The pauses between questions, in a time that passes with them alone."""
    found: list[float] = []
    time_s = 0.0

    async def sleep(delay_s: float) -> None:
        nonlocal time_s
        time_s += delay_s
        found.append(delay_s)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("broker.handlers.produce_transactions.asyncio.sleep", sleep)
    monkeypatch.setattr(loop, "time", lambda: time_s, raising=False)
    config = from_properties({name.replace("_", "."): value for name, value in properties.items()})
    produce = ProduceTransactions(
        replicas=cast(Any, None),
        cluster=cast(Any, SimpleNamespace(broker_config=config)),
        verifier=cast(Any, None),
        now_ms=lambda: 0,
    )
    busy = BusyCoordinator()
    await produce.settle(cast(Any, busy))
    monkeypatch.undo()
    return found, busy


async def test_the_pause_between_questions_grows_to_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = await pauses(monkeypatch, add_partitions_to_txn_retry_backoff_ms="7")
    assert max(found) == 0.007
    assert found == sorted(found)


async def test_questions_end_with_the_longest_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    found, busy = await pauses(monkeypatch, add_partitions_to_txn_retry_backoff_max_ms="50")
    assert 0.05 <= sum(found) < 0.08
    assert busy.asked == len(found) + 1
    found, busy = await pauses(monkeypatch, add_partitions_to_txn_retry_backoff_max_ms="0")
    assert (found, busy.asked) == ([], 1)
