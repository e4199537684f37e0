"""The loop: virtual time, kill at any step, nothing that fails goes unseen, and one order for one program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from tests.sim.loop import Killed, Process, SimFailure, SimLoop


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimLoop()

    async def main() -> float:
        start = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - start

    assert loop.run(main()) == pytest.approx(3600, abs=0.001)
    assert loop.steps < 10


def test_timers_of_a_machine_at_rest_fire_together_and_never_early() -> None:
    loop = SimLoop()
    machine = Process(loop, "machine")
    fired: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        begun = loop.now
        await asyncio.sleep(seconds)
        fired.append((name, loop.now - begun))

    async def main() -> None:
        loop.slack_s = 2.0
        tasks = [machine.spawn(wait(str(number), 0.3 * number)) for number in range(1, 6)]
        tasks += [machine.spawn(wait("line", 0.01)), loop.create_task(wait("audience", 0.3))]
        await asyncio.wait(tasks)

    loop.run(main())
    assert fired[0] == ("line", pytest.approx(0.01, abs=0.001))
    assert fired[1] == ("audience", pytest.approx(0.3, abs=0.001))
    assert sorted(fired[2:]) == [(str(number), pytest.approx(2.0, abs=0.001)) for number in range(1, 6)]


def test_timeouts_and_groups_work_under_virtual_time() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def worker(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(name)

        async with asyncio.TaskGroup() as group:
            for index, seconds in enumerate((3.0, 1.0, 2.0)):
                group.create_task(worker(str(index), seconds))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return seen

    assert SimLoop().run(main()) == ["1", "2", "0"]


def test_an_error_in_a_callback_fails_the_run() -> None:
    loop = SimLoop()

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(SimFailure, match="ZeroDivisionError"):
        loop.run(main())


def test_an_error_in_a_forgotten_task_fails_the_run() -> None:
    loop = SimLoop()

    async def broken() -> None:
        raise ValueError("nobody looks at me")

    async def main() -> None:
        kept = loop.create_task(broken())
        await asyncio.sleep(1)
        assert kept.done()

    with pytest.raises(SimFailure, match="nobody looks at me"):
        loop.run(main())


def test_deadlock_and_livelock_fail_the_run() -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimFailure, match="deadlock"):
        SimLoop().run(never())
    busy = SimLoop(max_steps=1000)

    def again() -> None:
        busy.call_soon(again)

    again()
    with pytest.raises(SimFailure, match="livelock"):
        busy.run(never())


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_killed_process_never_runs_again_not_even_its_finally(steps: int) -> None:
    loop = SimLoop()
    ran: list[str] = []

    async def victim() -> None:
        try:
            for index in range(5):
                ran.append(str(index))
                await asyncio.sleep(0.1)
        finally:
            if process.alive:
                ran.append("finally")

    process = Process(loop, "victim")

    async def main() -> list[str]:
        process.die_in_steps(steps, power=False)
        process.spawn(victim())
        await asyncio.sleep(10)
        return list(ran)

    full = ["0", "1", "2", "3", "4", "finally"]
    survived = loop.run(main())
    assert survived == full[: len(survived)]
    assert process.alive == (survived == full)


def test_killed_inside_a_step_ends_the_task_quietly() -> None:
    loop = SimLoop()
    process = Process(loop, "victim")

    async def victim() -> None:
        try:
            process.die()
            process.check_alive()
        except Exception:
            pytest.fail("Killed must not be caught as an Exception")

    async def main() -> None:
        process.spawn(victim())
        await asyncio.sleep(1)

    loop.run(main())
    with pytest.raises(Killed):
        process.check_alive()


def test_threads_signals_and_resolvers_are_refused() -> None:
    loop = SimLoop()

    async def main() -> None:
        with pytest.raises(AssertionError):
            loop.run_in_executor(None, lambda: None)
        with pytest.raises(AssertionError):
            await loop.getaddrinfo("x", 1)
        with pytest.raises(AssertionError):
            loop.add_signal_handler(15, lambda: None)

    loop.run(main())


SET_ORDER = """
import asyncio
from tests.sim.loop import SimLoop
loop = SimLoop()
async def worker(n):
    try:
        await asyncio.sleep(100)
    finally:
        loop.trace("cancelled", n)
async def main():
    tasks = [loop.create_task(worker(n)) for n in range(50)]
    junk = [object() for _ in range(len(str(id(tasks))) * 37)]
    await asyncio.sleep(1)
    for task in set(tasks):
        task.cancel()
    await asyncio.wait(tasks)
    futures = {loop.create_future() for _ in range(50)}
    loop.trace("futures", *[future.serial for future in futures])
loop.run(main())
print(loop.trace_digest())
"""


def test_sets_of_tasks_have_one_order_under_every_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SET_ORDER],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_stall_moves_time_for_everybody() -> None:
    loop = SimLoop()
    late: list[float] = []

    async def main() -> Any:
        start = loop.now
        loop.call_later(1, lambda: late.append(loop.now - start))
        loop.stall(15)
        await asyncio.sleep(0.01)
        return late

    assert loop.run(main())[0] >= 15


def test_a_paused_process_runs_nothing_and_then_everything_late_and_in_order() -> None:
    loop = SimLoop()
    process = Process(loop, "sleeper")
    ran: list[tuple[str, int]] = []

    async def sleeper() -> None:
        loop.call_later(1, lambda: ran.append(("one", round(loop.now - begun))))
        loop.call_later(2, lambda: ran.append(("two", round(loop.now - begun))))
        await asyncio.sleep(3)
        ran.append(("three", round(loop.now - begun)))

    async def main() -> None:
        process.spawn(sleeper())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        assert ran == [("one", 1)]
        process.resume()
        await asyncio.sleep(1)

    begun = loop.now
    loop.run(main())
    assert ran == [("one", 1), ("two", 12), ("three", 12)]


def test_a_paused_process_can_be_killed() -> None:
    loop = SimLoop()
    process = Process(loop, "sleeper")

    async def main() -> None:
        process.spawn(asyncio.sleep(1, "never"))
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(1)
        process.die()
        process.resume()
        await asyncio.sleep(1)
        assert not any(task.done() for task in process.tasks)

    loop.run(main())
