"""What a verification costs at list price."""

from __future__ import annotations

from tools.verify.core.price import dollars, list_requests


def test_a_million_objects_are_listed_for_half_a_cent_and_read_for_forty() -> None:
    assert list_requests(1_000_000) == 1000
    assert list_requests(0) == 1
    assert list_requests(1001) == 2
    assert dollars(0, 1000) == 0.005
    assert round(dollars(1_000_000, 0), 6) == 0.4
    assert round(dollars(0, 0, 10**12), 6) == 90.0
