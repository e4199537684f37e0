"""Jobs of a broker's threads are held between their effect and the report of it, and let go."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.background import Background, Hold
from tests.sim.loop import SimLoop


class Always(random.Random):
    """Every chance happens, or none."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize(("chance", "is_done"), [(0.0, False), (0.99, True)], ids=["before", "after"])
def test_a_held_job_is_reported_when_it_is_let_go(chance: float, is_done: bool) -> None:
    loop = SimLoop(keep_trace=True)
    hold = Hold(loop, "broker-1", Always(chance))
    done: list[float] = []

    async def play() -> None:
        hold.begin()
        job = loop.create_task(Background(hold, random.Random(0)).run(lambda: done.append(loop.now)))
        await asyncio.sleep(2)
        assert bool(done) == is_done
        assert not job.done()
        hold.let_go()
        await job
        assert loop.now >= 1002

    loop.run(play())
    assert len(done) == 1
    assert any("held broker-1" in line for line in loop.trace_lines or ())


def test_without_a_hold_a_job_takes_a_moment_and_its_error_is_raised() -> None:
    loop = SimLoop()
    background = Background(Hold(loop, "broker-1", random.Random(0)), random.Random(0))

    def fail() -> None:
        raise OSError(5, "no")

    async def play() -> None:
        with pytest.raises(OSError, match="no"):
            await background.run(fail)

    loop.run(play())
