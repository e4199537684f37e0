"""All wrappers together, in the order in which they are put around a store."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from remote.store.memory_store import MemoryStore
from remote.store.metered import StoreStats
from remote.store.object_store import NoSuchObject, Operation, PutResult, StoreError
from remote.store.stores import harden
from tests.remote.store.faulty_store import FaultProfile, FaultyStore
from tests.remote.store.scripted import NEVER_S, Scripted, passing, run


def test_each_attempt_of_a_hardened_store_is_counted() -> None:
    async def main() -> StoreStats:
        inner, stats = Scripted(), StoreStats()
        await inner.bucket.put("k", b"x")
        store = harden(inner, stats=stats, rng=random.Random(1))
        inner.will(0.0, passing())
        inner.will(NEVER_S)
        inner.will(0.0)
        assert await store.get("k") == b"x"
        return stats

    stats = run(main())
    assert (stats.requests[Operation.GET], stats.retries, stats.hedges, stats.hedges_won) == (3, 1, 1, 1)


@given(seed=st.integers(0, 2**32))
def test_a_hardened_store_tells_the_truth_over_a_bad_line(seed: int) -> None:
    """Whoever wins or loses is right about it; UNKNOWN is settled by reading; a read is what was put."""

    async def main() -> None:
        bucket, rng = MemoryStore(), random.Random(seed)
        profile = FaultProfile(
            latency_max_s=0.5, error_before_chance=0.2, error_after_chance=0.2, hang_chance=0.02
        )
        rivals = [harden(FaultyStore(bucket, profile, rng), stats=StoreStats(), rng=rng) for _ in range(3)]

        async def claim(rival: int, key: str) -> None:
            mine = b"%d" % rival
            result = await rivals[rival].put_if_absent(key, mine)
            if result is PutResult.WON:
                assert bucket.objects[key] == mine
            elif result is PutResult.LOST:
                assert bucket.objects[key] != mine
            try:
                assert await rivals[rival].get(key) == bucket.objects[key]
            except NoSuchObject:
                assert result is PutResult.UNKNOWN
            except StoreError:
                pass

        await asyncio.gather(*(claim(n, f"k/{slot}") for slot in range(5) for n in range(3)))

    run(main())
