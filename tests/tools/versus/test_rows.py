"""Rows of the side-by-side bench: ratios, verdicts and how they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.versus import rows
from tools.versus.load import Measured
from tools.versus.rows import Measure, Row, Verdict


def measured(**changes: Any) -> Measured:
    fields: dict[str, Any] = {
        "requests": 1000,
        "records": 1000,
        "bytes": 1_000_000,
        "seconds": 0.5,
        "broker_cpu_s": 0.01,
        "client_cpu_s": 0.1,
        "latency_us": {"p50": 40.0, "p99": 90.0},
    }
    return Measured(**(fields | changes))


def row_of(*measures: Measure) -> Row:
    return Row(name="raw-1x1", title="raw", measures=measures, load=None)


def test_rows_have_names_of_their_own_and_read_what_is_there() -> None:
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    for at, row in enumerate(rows.ROWS):
        assert row.reads is None or row.reads in names[:at], "what a row reads is written before it"


@given(names=st.sets(st.sampled_from([row.name for row in rows.ROWS])))
def test_chosen_rows_come_with_what_they_read(names: set[str]) -> None:
    chosen = [row.name for row in rows.select(names)]
    assert names <= set(chosen)
    assert {row.reads for row in rows.select(names)} - {None} <= set(chosen)
    assert chosen == [row.name for row in rows.ROWS if row.name in chosen]


def test_all_rows_when_none_is_named_and_none_that_is_unknown() -> None:
    assert rows.select([]) == list(rows.ROWS)
    with pytest.raises(ValueError, match="no row nonsense; there are produce-2000"):
        rows.select(["start", "nonsense"])


def test_figures_of_one_round() -> None:
    found = rows.figures(measured())
    assert found["mb_per_s"] == pytest.approx(2.0)
    assert found["cpu_s_per_gb"] == pytest.approx(10.0)
    assert found["requests_per_s"] == pytest.approx(2000.0)
    assert found["cpu_us"] == pytest.approx(10.0)
    assert (found["p50_us"], found["p99_us"]) == (40.0, 90.0)
    assert "cpu_us" not in rows.figures(measured(requests=0, latency_us={}))


def test_the_median_of_a_figure_is_its_own() -> None:
    assert rows.median([{"a": 1, "b": 9}, {"a": 3, "b": 7}, {"a": 2, "b": 8}]) == {"a": 2, "b": 8}
    assert rows.median([]) == {}


@pytest.mark.parametrize(
    ("measure", "ratio", "is_met"),
    [
        (Measure(name="rate", unit="", at_least=1.2), 1.2, True),
        (Measure(name="rate", unit="", at_least=1.2), 1.19, False),
        (Measure(name="cpu", unit="", at_most=0.35), 0.35, True),
        (Measure(name="cpu", unit="", at_most=0.35), 0.36, False),
    ],
)
def test_a_target_is_met_at_its_bound(measure: Measure, ratio: float, is_met: bool) -> None:
    assert measure.is_met(ratio) is is_met
    assert str(Verdict(measure=measure, ratio=ratio)).endswith("met" if is_met else "**missed**")


def test_a_missing_figure_is_no_verdict() -> None:
    row = row_of(*rows.LATENCY)
    assert rows.verdicts(row, {"p50_us": 1.0}, {"p99_us": 2.0}) == []
    assert [found.ratio for found in rows.verdicts(row, {"p50_us": 1.0}, {"p50_us": 4.0})] == [0.25]


def test_the_table_and_its_sum() -> None:
    row = row_of(*rows.LATENCY)
    ours = {"raw-1x1": {"p50_us": 44.0, "p99_us": 210.0, "cpu_us": 36.0}}
    theirs = {"raw-1x1": {"p50_us": 110.0, "p99_us": 300.0, "cpu_us": 150.0}}
    names = ["Tidewal", "Kafka", "Kafka, not pinned"]
    lines = rows.markdown(
        [row], names, {"Tidewal": ours, "Kafka": theirs, "Kafka, not pinned": {}}
    ).splitlines()
    assert lines == [
        "| row | Tidewal | Kafka | Kafka, not pinned | ours / Kafka | ours / Kafka, not pinned | target |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| raw | 44.0 µs p50, 210 µs p99, 36.0 µs CPU | 110 µs p50, 300 µs p99, 150 µs CPU | - "
        "| 0.40, 0.70, 0.24 | - | ≤ 0.6 met, ≤ 0.6 **missed**, ≤ 0.4 met |",
    ]
    assert rows.summary([row], ours, theirs) == "2 of 3 targets met"


def test_one_broker_alone_has_no_ratios() -> None:
    table = rows.markdown([row_of(*rows.STARTS)], ["Tidewal"], {"Tidewal": {"raw-1x1": {"ready_s": 0.41}}})
    assert table.splitlines() == ["| row | Tidewal |", "| --- | --- |", "| raw | 0.410 s to ready |"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.4321, "0.432"), (4.321, "4.32"), (43.21, "43.2"), (43210.0, "43,210")]
)
def test_numbers(value: float, text: str) -> None:
    assert rows.number(value) == text


# --- the load's requests ---
