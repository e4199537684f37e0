"""The rate of replication, and who it holds for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replicas.throttle import Throttle, is_listed
from tests.broker.replication_driver import Replicas

EVERYONE = ("*",)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def throttle_of(clock: Clock, rate: int) -> Throttle:
    return Throttle(rate=lambda: rate, clock=clock, samples=11, sample_s=1)


def test_only_who_is_listed_is_held_back() -> None:
    assert is_listed(("0:1", "3:2"), 3, 2)
    assert not is_listed(("0:1", "3:2"), 3, 1)
    assert is_listed(EVERYONE, 9, 9)
    assert not is_listed((), 0, 1)
    throttle = throttle_of(Clock(), 1)
    throttle.sent((), 0, 1, 1 << 30)
    assert not throttle.holds_back(EVERYONE, 0, 1)
    throttle.sent(EVERYONE, 0, 1, 1 << 30)
    assert throttle.holds_back(EVERYONE, 0, 1)
    assert not throttle.holds_back(("0:2",), 0, 1)


def test_what_was_sent_is_forgotten_with_its_window() -> None:
    clock = Clock()
    throttle = throttle_of(clock, 100)
    throttle.sent(EVERYONE, 0, 1, 1001)
    clock.now += 10
    assert throttle.holds_back(EVERYONE, 0, 1)
    clock.now += 1
    assert not throttle.holds_back(EVERYONE, 0, 1)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 500)), max_size=200))
def test_who_asks_before_sending_stays_near_the_rate(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    throttle = throttle_of(clock, 100)
    sent: list[tuple[float, int]] = []
    for wait_s, size in steps:
        clock.now += wait_s
        if not throttle.holds_back(EVERYONE, 0, 1):
            throttle.sent(EVERYONE, 0, 1, size)
            sent.append((clock.now, size))
        within = sum(size for at, size in sent if at > clock.now - 10)
        assert within <= 10 * 100 + 500, "a window's worth, and the one that went over it"


# --- between brokers ---


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_throttled_replica_catches_up_at_its_rate_and_never_leaves_the_isr_by_it(role: str) -> None:
    async def main(world: Replicas) -> None:
        throttled = {f"{role}_replication_throttled_replicas": "0:1,0:3"}
        world.create(1, 2, **throttled)
        for _ in range(20):
            await world.append(1, bytes(100_000))
        before = world.loop.now
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: 3 in world.isr(), timeout_s=600)
        assert world.loop.now - before > 5, "2 MB at 100 kB/s, less a window of 1 MB and one answer"
        before = world.loop.now
        for _ in range(20):
            await world.append(1, bytes(100_000))
        assert world.loop.now - before < 5
        assert set(world.isr()) == {1, 2, 3}

    properties = {
        f"{role}_replication_throttled_rate": "100000",
        "replica_fetch_max_bytes": "200000",
        "replica_fetch_response_max_bytes": "200000",
    }
    Replicas(**properties).run(main)  # type: ignore[arg-type]
