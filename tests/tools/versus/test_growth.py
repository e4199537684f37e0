"""The growth tool's sums and tables, without any broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.console import Failure
from tools.versus import growth


@given(total=st.integers(0, 10_000), piece=st.integers(1, 1000))
def test_pieces_add_up(total: int, piece: int) -> None:
    found = list(growth.pieces(total, piece))
    assert sum(found) == total
    assert all(0 < size <= piece for size in found)


def test_a_full_disk_is_refused_before_anything_is_written() -> None:
    growth.check_space(100_000_000_000, 10_000_000_000)
    with pytest.raises(Failure, match="11 GB of disk are free, 15 GB are needed"):
        growth.check_space(11_000_000_000, 10_000_000_000)


def test_growth_tables() -> None:
    assert growth.markdown([{"log": "10 GB", "ready again": "0.61 s"}]) == (
        "| log | ready again |\n| --- | --- |\n| 10 GB | 0.61 s |\n"
    )
