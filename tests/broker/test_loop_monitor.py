"""The monitor of the loop tells how long everybody waited, for whom, and what of it was the machine's."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker import loop_monitor
from broker.at_work import AtWork
from broker.loop_monitor import BOUNDS_S, PROBE_S, TOLD_FROM_S, LoopMonitor, place_in
from broker.ports import World
from broker.process import real_world
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import DEADLINE_S, RawClient

if TYPE_CHECKING:
    from broker.server import Broker


class Watched:
    """A monitor whose clocks and whose other thread are the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.look: Callable[[], None] | None = None
        self.timers: list[tuple[float, Callable[[], None]]] = []
        anything: Any = None
        world = World(
            files=anything,
            network=anything,
            store=anything,
            now_ms=lambda: 0,
            random=random.Random(0),
            offload=anything,
            elapsed_s=lambda: self.now_s,
            cpu_s=lambda: self.cpu_s,
            watch=self.watch,
        )
        loop: Any = self
        at_work = AtWork(loop)
        self.monitor = LoopMonitor(loop=loop, world=world, at_work=at_work)
        self.at_work = at_work

    def watch(self, every_s: float, look: Callable[[], None]) -> Callable[[], None]:
        self.look = look
        return lambda: setattr(self, "look", None)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now_s + delay_s, call))
        return threading.Timer(0, call)

    def turn(self) -> None:
        """Let the loop come to the timer when it is due, or at once if it is overdue."""
        due_s, call = self.timers.pop()
        self.now_s = max(self.now_s, due_s)
        call()

    def hold(self, duration_s: float, *, cpu_s: float) -> None:
        """Hold the loop from the moment when the timer is due, seen halfway by the other thread."""
        self.now_s = self.timers[-1][0] + duration_s / 2
        assert self.look is not None
        self.look()
        self.now_s += duration_s / 2
        self.cpu_s += cpu_s
        self.turn()


def test_a_loop_that_sleeps_is_not_late(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.monitor.start()
    for _ in range(100):
        watched.turn()
    assert watched.monitor.stalls.counts[0] == 100
    assert watched.monitor.stalls.worst_s == watched.monitor.held.worst_s == 0
    assert not caplog.records


def test_a_loop_that_is_held_is_late_and_the_line_says_by_what(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.at_work.request = (Api.DELETE_GROUPS, "10.0.0.1", 999)
    watched.monitor.start()
    watched.hold(0.3, cpu_s=0.25)
    assert watched.monitor.stalls.worst_s == pytest.approx(0.3)
    assert watched.monitor.held.worst_s == pytest.approx(0.25)
    (record,) = caplog.records
    assert (
        "held for 300 ms, 250 of them on the processor, by DeleteGroups of 10.0.0.1:999"
        in record.getMessage()
    )
    watched.at_work.request = None
    watched.hold(2.0, cpu_s=0.001)
    assert watched.monitor.held.worst_s == pytest.approx(0.25), "another process had the processor"
    assert "work in the background, in broker/loop_monitor.py" in caplog.records[1].getMessage()


def test_what_is_short_is_counted_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.monitor.start()
    watched.hold(TOLD_FROM_S * 0.9, cpu_s=0.05)
    assert sum(watched.monitor.stalls.counts) == 1
    assert watched.monitor.stalls.counts[BOUNDS_S.index(0.1)] == 1
    assert not caplog.records


def test_at_most_one_line_per_second(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.monitor.start()
    for _ in range(20):
        watched.hold(0.2, cpu_s=0.2)
    assert 4 <= len(caplog.records) <= 5
    assert sum(watched.monitor.stalls.counts) == 20


def test_nothing_is_watched_after_the_stop_or_without_another_thread() -> None:
    watched = Watched()
    watched.monitor.start()
    watched.monitor.stop()
    assert watched.look is None


@pytest.mark.parametrize("kind", ["request", "task", "turns"])
async def test_a_broker_names_the_request_that_holds_its_loop(
    broker: Broker, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monitor = broker.components.loop_monitor
    seen = threading.Event()
    described = monitor._described

    def describe() -> str:
        try:
            return described()
        finally:
            seen.set()

    def hold() -> Any:
        # whatever else may have held this loop is over
        monitor._seen, monitor._next_line_s = None, 0.0
        seen.clear()
        assert seen.wait(10), "nobody looked"
        return {"throttle_time": 0, "error_code": 0, "groups": []}

    def at_once(ctx: Any, request: Any) -> Any:
        return hold()

    async def in_task(ctx: Any, request: Any) -> Any:
        await asyncio.sleep(0)
        return hold()

    def in_turns(ctx: Any, request: Any) -> Any:
        for _ in range(5000):
            yield
        return hold()

    monitor._described = describe  # type: ignore[method-assign]
    dispatcher: Any = broker.components.network.service
    handler = {"request": at_once, "task": in_task, "turns": in_turns}[kind]
    dispatcher._handlers[int(Api.LIST_GROUPS)] = handler
    async with await RawClient.open(broker) as client:
        port = client.writer.get_extra_info("sockname")[1]
        assert (await client.call(Api.LIST_GROUPS, 0)).error_code is ErrorCode.none
        async with asyncio.timeout(DEADLINE_S):
            while f"ListGroups of 127.0.0.1:{port}" not in caplog.text:  # noqa: ASYNC110 - the broker's timer
                await asyncio.sleep(PROBE_S)
    assert monitor.stalls.worst_s >= TOLD_FROM_S
    names = {family.name for family in broker.components.metrics()}
    assert {"tidewal_loop_stall_seconds", "tidewal_loop_stall_processor_seconds"} <= names


async def test_a_simulated_world_has_no_monitor(broker: Broker) -> None:
    world = dataclasses.replace(real_world(broker.config, None), watch=None)
    monitor = LoopMonitor(
        loop=asyncio.get_running_loop(), world=world, at_work=AtWork(asyncio.get_running_loop())
    )
    monitor.start()
    assert monitor._timer is None
    monitor.stop()


def test_the_place_is_the_innermost_of_ours_in_the_threads_own_part() -> None:
    root = Path(loop_monitor.__file__).parent.parent
    text = (
        "Thread 0x0000000000000007 (most recent call first):\n"
        f'  File "{root}/storage/log.py", line 3 in append\n'
        "\n"
        "Current thread 0x000000000000000a (most recent call first):\n"
        '  File "/usr/lib/python3.11/json.py", line 1 in loads\n'
        f'  File "{root}/broker/handlers/acls.py", line 12 in described\n'
        f'  File "{root}/broker/server.py", line 5 in run\n'
    )
    assert place_in(text, 10) == "broker/handlers/acls.py:12 (described)"
    assert place_in(text, 7) == "storage/log.py:3 (append)"
    assert place_in(text, 1) is None


async def test_a_note_is_taken_for_each_task() -> None:
    at_work = AtWork(asyncio.get_running_loop())
    seen: dict[int, list[str | None]] = {1: [], 2: []}

    async def work(port: int) -> None:
        at_work.begin_task((Api.FETCH, "h", port))
        for _ in range(3):
            await asyncio.sleep(0)
            seen[port].append(at_work.name())
        at_work.end_task()
        seen[port].append(at_work.name())

    async with asyncio.TaskGroup() as group:
        for port in seen:
            group.create_task(work(port))
    assert seen == {port: [f"Fetch of h:{port}"] * 3 + [None] for port in (1, 2)}
    assert not at_work._tasks
