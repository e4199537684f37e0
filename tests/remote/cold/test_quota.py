"""Quotas keep to their rate in every window, whatever is asked of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.quota import Quota, Samples

SAMPLES, SAMPLE_S = 11, 1.0
WINDOW_S = SAMPLES * SAMPLE_S
SIZES = st.lists(st.integers(1, 5_000), min_size=1, max_size=200)


def spend(
    quota: Quota, sizes: list[int], rate: int, *, late_s: list[float], start: float = 100.0
) -> list[tuple[float, int]]:
    """Charge one after the other, each as soon as nothing is owed, or a little later."""
    now = start
    charged = []
    for at, size in enumerate(sizes):
        now += quota.wait_s(now, rate)
        now += late_s[at % len(late_s)]
        quota.charge(size, now, rate)
        charged.append((now, size))
    return charged


def in_window(charged: list[tuple[float, int]], start: float) -> int:
    return sum(size for at, size in charged if start <= at <= start + WINDOW_S)


@pytest.mark.requirement("956-07", "956-08", "956-16", "956-17")
@given(SIZES, st.integers(100, 2_000), st.lists(st.floats(0, 0.01), min_size=1, max_size=5))
def test_no_window_has_more_than_the_rate_one_charge_and_what_was_saved(
    sizes: list[int], rate: int, late_s: list[float]
) -> None:
    charged = spend(Quota(samples=SAMPLES, sample_s=SAMPLE_S), sizes, rate, late_s=late_s)
    for start, _ in charged:
        assert in_window(charged, start) <= rate * WINDOW_S * 1.01 + max(sizes) + len(sizes)


@given(SIZES, st.integers(100, 2_000), st.lists(st.floats(0, 0.01), min_size=1, max_size=5))
def test_who_always_asks_gets_the_rate_in_every_window(
    sizes: list[int], rate: int, late_s: list[float]
) -> None:
    charged = spend(Quota(samples=SAMPLES, sample_s=SAMPLE_S), sizes, rate, late_s=late_s)
    last = charged[-1][0]
    for start, _ in charged:
        if start + WINDOW_S <= last:
            assert in_window(charged, start) >= rate * WINDOW_S - 2 * max(sizes)


def test_every_window_of_uploads_is_within_a_twentieth_of_the_quota() -> None:
    """Parts of 8 MiB at 20 MB/s, woken up to 5 ms late."""
    rate, part = 20_000_000, 8 << 20
    late_s = [0.0, 0.001, 0.005, 0.0002]
    charged = spend(Quota(samples=SAMPLES, sample_s=SAMPLE_S), [part] * 500, rate, late_s=late_s)
    for at in range(1000, 1900):
        sent = in_window(charged, at / 10)
        if at / 10 >= 100.0 and at / 10 + WINDOW_S <= charged[-1][0]:
            assert sent == pytest.approx(rate * WINDOW_S, rel=0.05)


def test_a_charge_above_the_quota_passes_and_those_behind_it_wait_for_it() -> None:
    quota = Quota(samples=SAMPLES, sample_s=SAMPLE_S)
    assert quota.wait_s(5.0, 10) == 0
    quota.charge(1000, 5.0, 10)
    assert quota.wait_s(5.0, 10) == pytest.approx(100)
    assert quota.wait_s(55.0, 10) == pytest.approx(50)
    assert quota.wait_s(105.0, 10) == 0


def test_a_changed_rate_counts_from_now_on() -> None:
    quota = Quota(samples=SAMPLES, sample_s=SAMPLE_S)
    quota.charge(1000, 0.0, 10)
    assert quota.wait_s(50.0, 10) == pytest.approx(50)
    assert quota.wait_s(50.0, 100) == pytest.approx(5)
    assert quota.wait_s(52.0, 100) == pytest.approx(3)
    assert quota.wait_s(52.0, 1) == pytest.approx(300)


def test_without_a_limit_nothing_waits_and_nothing_is_saved_for_later() -> None:
    quota = Quota(samples=SAMPLES, sample_s=SAMPLE_S)
    unlimited = (1 << 63) - 1
    for at in range(1000):
        quota.charge(1 << 30, at / 1000, unlimited)
        assert quota.wait_s(at / 1000, unlimited) == 0
    quota.charge(1000, 1.0, 1000)
    quota.charge(1000, 1.0, 1000)
    assert quota.wait_s(1.0, 1000) > 1.8


def test_a_quiet_time_saves_a_hundredth_of_the_window() -> None:
    quota = Quota(samples=SAMPLES, sample_s=SAMPLE_S)
    quota.charge(1, 0.0, 1000)
    quota.charge(1000, 1_000.0, 1000)
    assert quota.wait_s(1_000.0, 1000) == pytest.approx(1 - 0.11)


def test_a_refund_is_as_if_nothing_had_been_charged() -> None:
    quota = Quota(samples=SAMPLES, sample_s=SAMPLE_S)
    quota.charge(500, 0.0, 100)
    quota.charge(300, 1.0, 100)
    quota.refund(300, 1.0, 100)
    assert quota.wait_s(1.0, 100) == pytest.approx(4)
    assert quota.byte_rate(1.0) == pytest.approx(500 / 10)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 100)), max_size=60))
def test_samples_tell_of_the_window_only(steps: list[tuple[float, int]]) -> None:
    samples = Samples(samples=4, sample_s=0.5)
    now, added = 0.0, []
    for pause, value in steps:
        now += pause
        samples.add(value, now)
        added.append((int(now / 0.5), value))
        kept = [value for number, value in added if number > int(now / 0.5) - 4]
        told = samples.statistics(now)
        assert (told.total, told.count, told.max) == (sum(kept), len(kept), max(kept))
        assert told.average == sum(kept) / len(kept)
    assert samples.statistics(now + 2.5).count == 0
    assert samples.statistics(now + 2.5).average == 0


def test_the_rate_is_over_whole_samples_and_the_current_one() -> None:
    quota = Quota(samples=11, sample_s=1.0)
    quota.charge(1_000, 20.5, 100)
    assert quota.byte_rate(20.5) == pytest.approx(1_000 / 10.5)
    assert quota.byte_rate(31.5) == 0
    single = Quota(samples=1, sample_s=2.0)
    single.charge(1_000, 20.0, 100)
    assert single.byte_rate(20.0) == pytest.approx(500)
