"""The side-by-side bench without any broker: rows, ratios, verdicts and how they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages, records
from protocol.apis import Api
from tools.versus import caller, load, rows
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


# ---- the load's requests -----------------------------------------------------------------------------------


def fields_of(api: Api, version: int, frame: bytes) -> Any:
    """A request whose header is size, key, version, correlation id, client id and no tags."""
    head = 4 + 8 + 2 + len(caller.CLIENT_ID) + 1
    return messages.codec(api, version, "request").decode(memoryview(frame)[head:])


def test_a_prebuilt_produce_holds_one_good_batch_for_each_partition() -> None:
    wanted = load.Load(kind="produce", record_bytes=100, batch_records=8, partitions=3)
    prebuilt, api, version = load._prebuild(wanted, "topic")
    assert len(prebuilt) == 3
    assert len({len(request) for request in prebuilt}) == 1
    for partition, request in enumerate(prebuilt):
        row = fields_of(api, version, request).topic_data[0].partition_data[0]
        assert row.index == partition
        [(_, header)] = records.check_produced(row.records, walk=True)
        assert header.count == 8


def test_numbered_requests_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "NUMBERED_REQUESTS_MAX", 5)
    wanted = load.Load(kind="produce", record_bytes=10, batch_records=2, idempotent=True)
    prebuilt, api, version = load._prebuild(wanted, "topic")
    rows_of = [fields_of(api, version, one).topic_data[0].partition_data[0] for one in prebuilt[:3]]
    assert [records.parse_header(row.records).base_sequence for row in rows_of] == [0, 2, 4]
    assert all(records.check_produced(row.records, walk=True) for row in rows_of)


def test_numbered_requests_of_connections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "NUMBERED_REQUESTS_MAX", 6)
    wanted = load.Load(kind="produce", record_bytes=10, connections=3, idempotent=True)
    prebuilt, api, version = load._prebuild(wanted, "topic")
    rows_of = [fields_of(api, version, one).topic_data[0].partition_data[0] for one in prebuilt]
    headers = [records.parse_header(row.records) for row in rows_of]
    assert [(header.producer_id, header.base_sequence) for header in headers] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_a_prebuilt_fetch_asks_for_its_partition() -> None:
    prebuilt, api, version = load._prebuild(load.Load(kind="fetch", record_bytes=0, partitions=2), "topic")
    rows_of = [fields_of(api, version, one).topics[0].partitions[0] for one in prebuilt]
    assert [row.partition for row in rows_of] == [0, 1]


@given(first=st.integers(0, 1000), many=st.integers(1, 5), count=st.integers(1, 7))
def test_any_run_of_requests_up_to_the_window_is_one_slice(first: int, many: int, count: int) -> None:
    one = [bytes([number]) * 3 for number in range(count)]
    repeats = 1 + -(-5 // count)
    requests = load._Requests(memoryview(b"".join(one) * repeats), 3, count, 10)
    expected = b"".join(one[(first + at) % count] for at in range(many))
    assert bytes(requests.slice(first, many)) == expected


def test_an_answer_in_parts_is_one_answer() -> None:
    missing = {7: 10}
    assert not load._is_whole(missing, 7, 4, 10)
    assert load._is_whole(missing, 7, 6, 10)
    assert missing == {7: 10}
    with pytest.raises(load.Failure, match="another size"):
        load._is_whole(missing, 7, 11, 10)
    with pytest.raises(load.Failure, match="closed"):
        load._is_whole(missing, 7, 0, 10)
