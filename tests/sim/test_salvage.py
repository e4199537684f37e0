"""The second opinion on a disk is checked: where it stops reading, and which gap it takes for one that
compaction made."""

from __future__ import annotations

import pytest

from protocol import records
from tests.sim.salvage import TornFiles, kept_ends, readable_ends

TP = ("t", 0)
FIRST, SECOND = (f"/data/t-0/{base:020d}.log" for base in (0, 5))


def stored(base_offset: int, *, epoch: int = 0) -> bytes:
    """A batch of two records."""
    rows = [(None, b"a", (), 1), (None, b"b", (), 1)]
    return bytes(records.build_batch(rows, base_offset=base_offset, leader_epoch=epoch))


def end_of(first: bytes, second: bytes, whole: dict[str, bytes] | None = None) -> int:
    return readable_ends({FIRST: first, SECOND: second}, ["/data"], whole)[TP]


def test_it_reads_on_into_the_segment_that_follows() -> None:
    assert end_of(stored(0) + stored(3), stored(5)) == 7


@pytest.mark.parametrize("first", [stored(0), stored(0) + stored(3)[:-1], b""])
def test_it_stops_where_a_tail_is_missing(first: bytes) -> None:
    assert end_of(first, stored(5), {FIRST: stored(0) + stored(3)}) < 5


def test_it_goes_on_behind_a_segment_that_lost_nothing() -> None:
    assert end_of(stored(0), stored(5), {FIRST: stored(0)}) == 7


def test_a_second_cut_does_not_make_a_torn_segment_whole() -> None:
    """The gap behind it is no compaction's, whatever else happens before a life has recovered it."""
    torn = TornFiles()
    full = {FIRST: stored(0) + stored(3), SECOND: stored(5)}
    left = {FIRST: stored(0), SECOND: stored(5)}
    torn.note(torn.whole(full), left)
    again = torn.whole(left)
    assert again == {SECOND: stored(5)}
    assert readable_ends(left, ["/data"], again)[TP] == 2
    torn.note(again, left)
    assert torn.whole({**left, FIRST: full[FIRST]}).keys() == {FIRST, SECOND}, "a life made it anew"


@pytest.mark.parametrize(
    ("before", "left", "kept"),
    [
        (stored(0) + stored(2), stored(0) + stored(2), 4),
        (stored(0) + stored(2), stored(0), 2),
        (stored(0) + stored(2), stored(0) + stored(2)[:-1], 2),
        (stored(0), stored(0) + stored(2), 2),
        (stored(0) + stored(2, epoch=1) + stored(4, epoch=1), stored(0) + stored(2) + stored(4), 2),
        (stored(0) + stored(3, epoch=1), stored(0) + stored(2), 3),
        (stored(0) + stored(4), stored(0) + stored(2) + stored(4), 6),
        (b"", stored(0), 0),
    ],
    ids=[
        "all",
        "less",
        "torn",
        "more",
        "others",
        "others inside a batch",
        "not yet compacted",
        "nothing before",
    ],
)
def test_what_a_power_cut_brings_back_is_not_what_was_there_before(
    before: bytes, left: bytes, kept: int
) -> None:
    assert kept_ends({FIRST: before}, {FIRST: left}, ["/data"])[TP] == kept
