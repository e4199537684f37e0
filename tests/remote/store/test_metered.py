"""Every call that reaches the store inside is counted once, and once more by its answer or its fault."""

from __future__ import annotations

import pytest

from remote.store.metered import LATENCY_BOUNDS_S, MeteredStore, StoreStats
from remote.store.object_store import Fault, NoSuchObject, Operation, StoreError
from tests.remote.store.scripted import Scripted, passing, run


def test_answers_errors_and_bytes_are_counted() -> None:
    async def main() -> StoreStats:
        inner, stats = Scripted(), StoreStats()
        store = MeteredStore(inner, stats)
        inner.will(0.02)
        await store.put("k", bytes(100))
        await store.put_if_absent("l", bytes(10))
        await store.put_if_absent("l", bytes(10))
        await store.get("k")
        await store.get_range("k", 0, 7)
        inner.will(0.0, passing(Fault.THROTTLED))
        with pytest.raises(StoreError):
            await store.get("k")
        with pytest.raises(NoSuchObject):
            await store.get("nothing")
        inner.will(0.0, passing())
        await store.put_if_absent("m", bytes(10))
        return stats

    stats = run(main())
    assert stats.requests == {
        Operation.PUT: 1,
        Operation.PUT_IF_ABSENT: 3,
        Operation.GET: 3,
        Operation.GET_RANGE: 1,
    }
    assert stats.errors == {(Operation.GET, "throttled"): 1, (Operation.PUT_IF_ABSENT, "unknown"): 1}
    assert (stats.bytes_read, stats.bytes_written) == (107, 110)
    assert sum(stats.latency_counts[Operation.GET]) == 2
    assert stats.latency_counts[Operation.PUT][LATENCY_BOUNDS_S.index(0.025)] == 1
    assert stats.latency_sums_s[Operation.PUT] == pytest.approx(0.02, abs=0.001)
