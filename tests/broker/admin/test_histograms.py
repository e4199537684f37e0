"""Buckets hold what does not exceed their bound, and the last one all."""

from __future__ import annotations

from broker.admin.histograms import buckets_of
from remote.wal.stats import BOUNDS_S, Times


def test_each_bucket_holds_those_before_it() -> None:
    assert buckets_of((0.5, 1.0), (3, 0, 2)) == [("0.5", 3), ("1.0", 3), ("+Inf", 5)]


def test_a_time_is_in_the_first_bucket_that_it_does_not_exceed() -> None:
    times = Times()
    for seconds in (0.003, 0.0031, 100.0):
        times.note(seconds)
    found = dict(buckets_of(BOUNDS_S, times.counts))
    assert (found["0.002"], found["0.003"], found["0.005"], found["10.0"], found["+Inf"]) == (0, 1, 2, 2, 3)
