"""What large requests have freed goes back to the system, seldom enough to cost nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.freed_memory import FALL_BYTES, TRIES_MAX, WORTH_BYTES, FreedMemory, HeapState, c_heap

MB = 1 << 20
LOOKS = 320
"""Some half a minute of them."""


@dataclass
class FakeHeap:
    """Memory in use, in the heap and beside it; what the heap has free is resident until it is given back."""

    used: int = 50 * MB
    beside: int = 0
    """In use, and given back at once when it is freed, as the frame of a large request is."""
    free: int = 0
    resident_free: int = 0
    holes: int = 400
    given_back: int = 0
    counted: int = 0
    """How often its holes were."""

    def use(self, size: int) -> None:
        self.used += size
        again = min(size, self.free)
        self.free -= again
        self.resident_free = min(self.resident_free, self.free)

    def release(self, size: int) -> None:
        self.used -= size
        self.free += size
        self.resident_free += size

    def resident_bytes(self) -> int:
        return self.used + self.beside + self.resident_free

    def state(self) -> HeapState:
        self.counted += 1
        return HeapState(free_bytes=self.free, holes=self.holes)

    def give_back(self) -> None:
        self.given_back += 1
        self.resident_free = 0


def look_on(freed: FreedMemory, times: int = LOOKS) -> int:
    return sum(freed.look() for _ in range(times))


def test_what_is_freed_goes_back() -> None:
    heap = FakeHeap()
    freed = FreedMemory(heap)
    heap.use(200 * MB)
    heap.release(200 * MB)
    assert look_on(freed, 1) == 1
    assert heap.resident_free == 0


def test_what_is_used_for_long_is_left_alone() -> None:
    heap = FakeHeap()
    freed = FreedMemory(heap)
    heap.use(200 * MB)
    assert look_on(freed) == TRIES_MAX
    assert look_on(freed) == 0


def test_a_heap_in_too_many_holes_is_left_alone() -> None:
    heap = FakeHeap(holes=50_000)
    freed = FreedMemory(heap)
    heap.use(200 * MB)
    heap.release(200 * MB)
    assert look_on(freed) == 0
    heap.holes = 500
    assert look_on(freed) > 0


def test_the_more_holes_a_heap_has_the_less_often_they_are_counted() -> None:
    """To count 100,000 of them holds the loop for 25 ms."""
    for is_worth in (False, True):
        heap = FakeHeap(holes=100_000)
        freed = FreedMemory(heap)
        if is_worth:
            heap.use(200 * MB)
            heap.release(200 * MB)
        heap.counted = 0
        assert look_on(freed) == 0
        assert 0 < heap.counted < LOOKS // 40


bursts = st.lists(
    st.tuples(
        st.integers(0, 150),  # MB in the heap
        st.integers(0, 100),  # MB beside it
        st.integers(1, 200),  # looks while they are in use
        st.integers(0, 20),  # MB of them that stay in use
        st.integers(1, 5),  # looks until the next one
    ),
    min_size=1,
    max_size=12,
)


@given(bursts)
def test_after_any_bursts_little_that_is_free_stays(many: list[tuple[int, int, int, int, int]]) -> None:
    heap = FakeHeap()
    freed = FreedMemory(heap)
    for inside, beside, during, stays, after in many:
        heap.use(inside * MB)
        heap.beside += beside * MB
        look_on(freed, during)
        heap.release(max(inside - stays, 0) * MB)
        heap.beside -= beside * MB
        look_on(freed, after)
    look_on(freed)
    # once what was not worth it before, and once what has come since
    assert heap.resident_free < 2 * WORTH_BYTES
    done = heap.given_back
    look_on(freed)
    assert heap.given_back == done, "it goes on though nothing happens"


@given(st.lists(st.integers(-FALL_BYTES // 2 + 1, FALL_BYTES // 2 - 1), max_size=200))
def test_small_ups_and_downs_cost_nothing(steps: list[int]) -> None:
    heap = FakeHeap(used=80 * MB)
    freed = FreedMemory(heap)
    for step in steps:
        heap.used = 80 * MB + step
        freed.look()
    assert not heap.given_back


def told_by(script: str) -> list[int]:
    """What a process of its own prints: numbers."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=True, timeout=60
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(c_heap() is None, reason="this C library gives nothing back")
def test_a_real_heap_shrinks_though_its_end_is_in_use() -> None:
    full, pinned, after = told_by("""
        from broker.freed_memory import c_heap
        heap = c_heap()
        names = [bytes(16_000) for _ in range(6_000)]
        end = bytes(16_000)
        full = heap.resident_bytes()
        del names
        pinned = heap.resident_bytes()
        heap.give_back()
        print(full, pinned, heap.resident_bytes())
    """)
    assert full - pinned < 8 * MB, "nothing keeps it, so nothing is tried here"
    assert pinned - after > 64 * MB


def test_what_the_interpreter_keeps_lies_together() -> None:
    """Floats that it kept, each from another place of a burst, are others afterwards, side by side."""
    before, after = told_by("""
        from broker.freed_memory import gather_kept_objects

        def places():
            return len({id(each) >> 14 for each in [0.25 + at for at in range(90)]})

        burst = [0.5 + at for at in range(100_000)]
        kept = burst[::1000]
        del burst
        others = [0.75 + at for at in range(200)]
        del kept
        del others
        before = places()
        gather_kept_objects()
        print(before, places())
    """)
    assert 4 * after < before
