"""Deadlines under one timer, and waking in portions."""

from __future__ import annotations

import asyncio
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

from broker.replicas.purgatory import WAKE_PORTION, Purgatory, Waiter


class FakeLoop:
    """A clock that is moved by hand, and callbacks that run when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Any] = []
        self.soon: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any) -> Any:
        timer = Timer(when, call)
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    def armed(self) -> list[Any]:
        return [timer for timer in self.timers if not timer.cancelled]

    def go_to(self, when: float) -> None:
        self.now = when
        for timer in self.armed():
            if timer.when <= when:
                timer.cancelled = True
                timer.call()


class Timer:
    def __init__(self, when: float, call: Any) -> None:
        self.when = when
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Recorder(Waiter):
    def __init__(self, events: list[str], name: str) -> None:
        super().__init__()
        self.events = events
        self.name = name

    def expired(self) -> None:
        self.finish()
        self.events.append(self.name)

    def poke(self) -> None:
        self.expired()


class Waited:
    def __init__(self, waiters: list[Waiter]) -> None:
        self.data_waiters = dict.fromkeys(waiters)


def made() -> tuple[Purgatory, Any, list[str]]:
    loop: Any = FakeLoop()
    return Purgatory(loop), loop, []


def test_waiters_expire_in_the_order_of_their_deadlines_under_one_timer() -> None:
    purgatory, loop, events = made()
    for name, wait_s in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("a2", 1.0)):
        purgatory.watch(Recorder(events, name), wait_s)
        assert len(loop.armed()) == 1
    loop.go_to(0.9)
    assert events == []
    loop.go_to(2.0)
    assert events == ["a", "a2", "b"]
    loop.go_to(3.0)
    assert events == ["a", "a2", "b", "c"]
    assert loop.armed() == []


def test_who_is_done_before_the_deadline_hears_nothing_and_is_let_go() -> None:
    purgatory, loop, events = made()
    for at in range(5000):
        waiter = Recorder(events, str(at))
        purgatory.watch(waiter, 10.0)
        waiter.finish()
        assert getrefcount(waiter) == 2, "the test's, and the call's"
    assert len(purgatory._heap) <= 1100
    assert len(purgatory) == 0
    loop.go_to(10.0)
    assert events == []


def test_waking_many_lets_others_have_their_turn() -> None:
    purgatory, loop, events = made()
    waiters: list[Waiter] = [Recorder(events, str(at)) for at in range(3 * WAKE_PORTION)]
    partition: Any = Waited(waiters)
    purgatory.wake(partition)
    assert len(events) == WAKE_PORTION
    waiters[WAKE_PORTION].finish()
    while loop.soon:
        before = len(events)
        loop.soon.pop(0)()
        assert len(events) - before <= WAKE_PORTION
    assert events == [str(at) for at in range(3 * WAKE_PORTION) if at != WAKE_PORTION]


async def test_the_real_loop_fires_the_timer() -> None:
    purgatory = Purgatory(asyncio.get_running_loop())
    fired = asyncio.Event()

    class Setter(Waiter):
        def expired(self) -> None:
            self.finish()
            fired.set()

    purgatory.watch(Setter(), 0.01)
    async with asyncio.timeout(5):
        await fired.wait()


def test_many_appends_put_a_waiter_in_line_once() -> None:
    """Waiters whose min_bytes are far away stay after a poke; the line must not grow with each append."""
    loop = FakeLoop()
    purgatory = Purgatory(loop)  # type: ignore[arg-type]

    class Patient(Recorder):
        def poke(self) -> None:
            self.events.append(self.name)

    pokes: list[str] = []
    count = 10 * WAKE_PORTION
    partition: Any = SimpleNamespace(data_waiters={Patient(pokes, str(at)): None for at in range(count)})
    for _ in range(50):
        purgatory.wake(partition)
    assert len(purgatory._wakes) <= count
    pokes.clear()
    while loop.soon:
        loop.soon.pop(0)()
    assert len(set(pokes)) == count


def test_followers_are_woken_before_the_consumers_that_stand_in_line() -> None:
    purgatory, loop, events = made()
    consumers = [Recorder(events, f"consumer {at}") for at in range(3 * WAKE_PORTION)]
    follower = Recorder(events, "follower")
    partition: Any = SimpleNamespace(
        data_waiters=dict.fromkeys(consumers), replica_waiters=dict.fromkeys([follower])
    )
    purgatory.wake(partition)
    purgatory.wake_followers(partition)
    loop.soon.pop(0)()
    assert events.index("follower") == WAKE_PORTION
    while loop.soon:
        loop.soon.pop(0)()
    assert len(events) == 3 * WAKE_PORTION + 1
