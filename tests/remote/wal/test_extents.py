"""Extents: what is found follows the offset without a gap, and nothing is found across one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remote.keys import Stream
from remote.wal.combined_object import Place
from remote.wal.extents import KEPT_MAX, Extent, Extents

STREAM = Stream(1, 7, 0)
STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5), st.integers(1, 100)), max_size=30)


def fill(extents: Extents, steps: list[tuple[int, int, int]]) -> list[Extent]:
    """Add one extent a step, behind a gap where the step says so; return all since the last gap."""
    end = 10
    since_gap: list[Extent] = []
    for seq, (gap, count, size) in enumerate(steps):
        if gap:
            since_gap.clear()
        start = end + gap
        end = start + count
        extent = Extent(start, end, 3, Place(STREAM, seq), 100, size, 0)
        extents.add(extent)
        since_gap.append(extent)
    return since_gap


@given(STEPS, st.integers(0, 200), st.integers(1, 300), st.integers(1, 5))
def test_what_is_found_holds_the_offset_and_follows_it(
    steps: list[tuple[int, int, int]], offset: int, max_bytes: int, count_max: int
) -> None:
    extents = Extents()
    since_gap = fill(extents, steps)
    found = extents.after(offset, max_bytes=max_bytes, count_max=count_max)
    holding = [extent for extent in since_gap if extent.end > offset]
    if not holding or holding[0].start > offset:
        assert found == []
        return
    assert found == holding[: len(found)]
    assert 1 <= len(found) <= count_max
    assert len(found) == 1 or sum(extent.size for extent in found) <= max_bytes
    if len(found) < min(count_max, len(holding)):
        assert sum(extent.size for extent in holding[: len(found) + 1]) > max_bytes


def test_the_oldest_are_forgotten() -> None:
    extents = Extents()
    kept = fill(extents, [(0, 1, 1)] * (KEPT_MAX + 10))[-KEPT_MAX:]
    assert list(extents) == kept
    assert extents.after(kept[0].start - 1, max_bytes=10, count_max=10) == []


def test_nothing_is_known_after_a_new_beginning() -> None:
    extents = Extents()
    fill(extents, [(0, 2, 2)] * 3)
    extents.clear()
    assert (extents.start, extents.end) == (-1, -1)
    assert extents.after(10, max_bytes=10, count_max=10) == []
