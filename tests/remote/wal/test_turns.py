"""The turns of a cut: short, longer where others take long, bounded, and counted by the work done."""

from __future__ import annotations

import asyncio

import pytest

from remote.wal.stats import WalStats
from remote.wal.turns import TURN_MAX_S, TURN_S, Turns


@pytest.mark.parametrize(
    ("others_s", "turn_s"),
    [(0.0, TURN_S), (0.01, TURN_S), (0.04, 0.002), (0.08, TURN_MAX_S), (9.0, TURN_MAX_S)],
)
def test_turns_of_a_cut_are_longer_where_others_hold_the_loop_for_long_and_bounded(
    others_s: float, turn_s: float
) -> None:
    async def main() -> None:
        now, worked, held = 0.0, 0.0, [0.0]
        turns = Turns(lambda: now, lambda: worked, WalStats())

        async def others() -> None:
            nonlocal now
            while True:
                now += others_s
                held.append(0.0)
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        for _ in range(2000):
            now += 0.00005
            worked += 0.00005
            held[-1] += 0.00005
            await turns.step()
        task.cancel()
        assert max(held) <= turn_s + 0.0001
        assert max(held[2:-1]) >= turn_s - 0.0001
        assert turns.total_s <= 0.1 + 1e-6

    asyncio.run(main())


def test_a_cut_that_other_processes_hold_up_does_not_widen_the_interval() -> None:
    async def main() -> None:
        now = worked = 0.0
        stats = WalStats()
        turns = Turns(lambda: now, lambda: worked, stats)
        for _ in range(10):
            now += 0.04
            worked += 0.00005
            await turns.step()
        turns.end()
        assert turns.total_s == pytest.approx(0.0005)
        assert stats.cut_loop_s.sum_s == pytest.approx(0.4)

    asyncio.run(main())
