"""The memory of groups and transactional ids: a host has its share, and who holds little the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.account import MemoryAccount

MAX, HOST_MAX, LITTLE = 1_000, 200, 10


def account() -> MemoryAccount:
    return MemoryAccount(bytes_max=MAX, host_bytes_max=HOST_MAX, little_bytes=LITTLE)


def ask(memory: MemoryAccount, host: str, size: int) -> bool:
    may = memory.may_take(host, size)
    if may:
        memory.take(host, size)
    return may


def test_however_many_hosts_take_all_they_may_others_find_room() -> None:
    memory = account()
    for host in range(20):
        while ask(memory, f"10.0.0.{host}", 25):
            pass
    assert memory.held_bytes == MAX * 3 // 4
    assert not ask(memory, "10.0.0.0", 1), "who holds much gets nothing of the last quarter"
    assert all(ask(memory, f"10.0.1.{host}", LITTLE) for host in range(25))
    assert memory.held_bytes == MAX
    assert not ask(memory, "10.0.2.1", 1)


def test_a_network_is_one_host() -> None:
    memory = account()
    hosts = [f"/2001:db8:1:2::{at}" for at in range(1, 30)]
    assert sum(ask(memory, host, 20) for host in hosts) == HOST_MAX // 20
    assert ask(memory, "2001:db8:1:3::1", 20)
    for host in hosts[: HOST_MAX // 20]:
        memory.take(host, -20)
    assert memory.held_bytes == 20


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 150)), max_size=80))
def test_the_bounds_hold_whoever_asks(asked: list[tuple[int, int]]) -> None:
    memory = account()
    held = dict.fromkeys(range(13), 0)
    for host, size in asked:
        before = sum(held.values())
        may = ask(memory, str(host), size)
        would_hold = held[host] + size
        if may:
            held[host] = would_hold
            assert would_hold <= HOST_MAX
            assert sum(held.values()) <= (MAX if would_hold <= LITTLE else MAX * 3 // 4)
        elif would_hold <= LITTLE:
            assert before + size > MAX
    assert memory.held_bytes == sum(held.values())
