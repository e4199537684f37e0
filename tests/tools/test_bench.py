"""The numbers of a bench run: percentiles, rates and payloads, without any broker."""

from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import bench
from tools.console import Failure

samples = st.lists(st.floats(min_value=0, max_value=1e6, allow_nan=False), min_size=1, max_size=200)


@given(samples=samples)
def test_percentiles_are_samples_in_order(samples: list[float]) -> None:
    found = bench.summary(samples)
    order = [found[name] for name in ("min", "p50", "p90", "p95", "p99", "p999", "max")]
    assert order == sorted(order)
    assert set(order) <= {round(sample, 3) for sample in samples}
    assert found["min"] <= found["mean"] + 0.001
    assert found["mean"] <= found["max"] + 0.001


@given(samples=samples, name=st.sampled_from(list(dict(bench.PERCENTILES))))
def test_a_percentile_is_the_smallest_sample_with_that_share_at_or_below(
    samples: list[float], name: str
) -> None:
    share = dict(bench.PERCENTILES)[name]
    found = bench.summary(samples)[name]
    below = [sample for sample in samples if round(sample, 3) < found]
    assert len(below) < share * len(samples) or len(samples) == 1
    assert sum(round(sample, 3) <= found for sample in samples) >= share * len(samples) - 1e-9


def test_no_samples_no_summary() -> None:
    assert bench.summary([]) == {}


@pytest.mark.parametrize("size", [1, 7, 100, 1000, 100_000, 3_000_000])
def test_payloads_have_their_size_and_differ(size: int) -> None:
    payloads = bench.payloads_of(size)
    assert {len(payload) for payload in payloads} == {size}
    assert size < 7 or len(set(payloads)) > 1
    assert payloads == bench.payloads_of(size), "the same in every run"


def test_large_payloads_are_few() -> None:
    assert sum(map(len, bench.payloads_of(40_000_000))) <= 2 * 40_000_000


def test_what_librdkafka_refuses_is_one_line() -> None:
    with pytest.raises(Failure, match=r"is outside allowed range [0-9.]+$"), bench.refusals():
        confluent_kafka.Producer({"linger.ms": 1e9})


def test_result_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    bench.emit_result(
        {
            "run": "produce",
            "records": 1000,
            "bytes": 1_000_000,
            "seconds": 0.5,
            "records_per_s": 2000.0,
            "mb_per_s": 2.0,
            "latency_ms": {"p50": 1.5},
        }
    )
    assert capsys.readouterr().out.splitlines() == [
        "produce: 1,000 records, 1,000,000 bytes in 0.500 s: 2,000 records/s, 2.00 MB/s",
        "  latency ms: p50 1.5",
    ]


def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bench.progress_bar(10, quiet=False) as progress:
        progress(5)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bench.progress_bar(10, quiet=False) as progress:
        progress(5)
        progress(5)
    assert "10/10" in capsys.readouterr().err
