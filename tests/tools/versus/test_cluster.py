"""The cluster bench: silence, the verdict on what is read back, its rows, and one small run of our own."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.versus import brokers, cluster, failover, nodes, rows, table
from tools.versus.failover import ReadBack, judge

TINY = cluster.Sizes(
    starts=1, rounds=1, latency_records=20, throughput_records=1000, kills=0, fill_bytes=1_000_000
)


# --- silence and verdict ---


def test_silence_is_the_longest_gap_from_the_kill_on() -> None:
    assert failover.silence_s([1.0, 5.0, 5.1, 7.1, 7.2], since_s=5.05) == pytest.approx(2.0)
    assert failover.silence_s([1.0, 8.0], since_s=5.0) == 3.0, "the first one after the kill ends a gap too"
    assert failover.silence_s([1.0], since_s=5.0) == 0.0


@given(times=st.lists(st.integers(0, 1000), unique=True).map(sorted), since=st.integers(0, 1000))
def test_silence_is_never_shorter_than_a_gap_after_the_kill(times: list[int], since: int) -> None:
    found = failover.silence_s([float(each) for each in times], float(since))
    after = [each for each in times if each >= since]
    assert all(later - earlier <= found for earlier, later in pairwise(after))
    assert found <= max([since, *after]) - since


@pytest.mark.parametrize(
    ("acknowledged", "found", "verdict"),
    [
        ([0, 1, 2], [0, 1, 2], ReadBack(checked=3, lost=0, doubled=0, disordered=0)),
        ([0, 2], [0, 1, 2, 3], ReadBack(checked=4, lost=0, doubled=0, disordered=0)),
        ([0, 1, 2], [0, 2], ReadBack(checked=3, lost=1, doubled=0, disordered=0)),
        ([0, 1], [0, 1, 1], ReadBack(checked=2, lost=0, doubled=1, disordered=0)),
        ([0, 1, 2], [0, 2, 1], ReadBack(checked=3, lost=0, doubled=0, disordered=1)),
        ([], [], failover.NOTHING_READ),
    ],
    ids=["all there", "more than acknowledged", "lost", "twice", "out of order", "nothing"],
)
def test_what_is_read_back_is_judged(acknowledged: list[int], found: list[int], verdict: ReadBack) -> None:
    assert judge(acknowledged, found) == verdict
    assert verdict.is_good is not any((verdict.lost, verdict.doubled, verdict.disordered))


def test_verdicts_add_up() -> None:
    one = ReadBack(checked=10, lost=1, doubled=2, disordered=3)
    assert one + one == ReadBack(checked=20, lost=2, doubled=4, disordered=6)


def test_two_clients_in_one_log_are_told_apart() -> None:
    values = [failover._value(client, number) for number in (7, 8) for client in (b"s", b"r")]
    values.append(failover._value(b"s", 0))
    assert failover.numbers_of(values, b"s") == [7, 8, 0]
    assert failover.numbers_of(values, b"r") == [7, 8]


def test_median_and_longest_silence_keep_each_round() -> None:
    assert cluster.silences([3.0, 1.0, 2.0]) == {
        "median_s": 2.0,
        "max_s": 3.0,
        "round_1_s": 3.0,
        "round_2_s": 1.0,
        "round_3_s": 2.0,
    }


# --- the table ---


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in cluster.ROWS]
    assert len(set(names)) == len(names)


def test_a_row_says_who_is_better_and_what_was_read_back_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [row for row in cluster.ROWS if row.name in ("throughput", "read", "stop")]
    read = {"checked": 1200.0, "lost": 0.0, "doubled": 0.0, "disordered": 0.0}
    ours = {
        "throughput": [{"mb_per_s": 50.0, "cpu_s_per_gb": 2.0}],
        "read": [read],
        "stop": [{"seconds": 1.0}],
    }
    theirs = {"throughput": [{"mb_per_s": 100.0, "cpu_s_per_gb": 4.0}], "read": [read]}
    options = argparse.Namespace(markdown=tmp_path / "table.md", json=tmp_path / "table.json")
    table.report(chosen, {"Tidewal": ours, "Kafka": theirs}, options)
    text = options.markdown.read_text()
    assert text.splitlines()[2:] == [
        "| C client, 1 KB, idempotent, default batches; CPU of all nodes | 50.0 MB/s, 2.00 s/GB "
        "| 100 MB/s, 4.00 s/GB | 0.50, 0.50 | ≥ 1 **missed**, ≤ 1 met |",
        "| read back after the kills | 1,200 records, 0 lost, 0 twice, 0 out of order "
        "| 1,200 records, 0 lost, 0 twice, 0 out of order | - | - |",
        "| SIGTERM to all nodes | 1.00 s | - | - | - |",
    ]
    assert capsys.readouterr().out == f"{text}\n1 of 2 targets met\n"
    assert '"disordered": 0.0' in options.json.read_text()


# --- nodes ---


def test_partitions_are_led_in_turn(tmp_path: Path) -> None:
    found = nodes.Cluster(
        "none", [brokers.Broker("none", tmp_path, set(), node_id=each) for each in (4, 5, 6)]
    )
    assert found.assignment(4) == [[4, 5, 6], [5, 6, 4], [6, 4, 5], [4, 5, 6]]
    assert found.assignment(1, leader=6) == [[6, 4, 5]]


def test_a_quorum_has_an_id_that_kafka_takes_and_a_port_for_each() -> None:
    quorum = brokers.Quorum.of([1, 2, 3])
    assert len(quorum.cluster_id) == 22
    assert not quorum.cluster_id.startswith("-")
    assert len(set(quorum.ports.values())) == 3


def test_without_kafka_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(brokers.Kafka, "is_there", lambda: False)
    assert cluster.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "bench-cluster: Apache Kafka is not here (make kafka); --own measures this broker alone\n"
    )


def test_a_cluster_of_ours_goes_through_all_of_it(tmp_path: Path) -> None:
    [ours] = cluster.systems(with_kafka=False)
    with ours.make(tmp_path / "brokers") as brief:
        cluster._start(ours, brief)
        cluster._live(ours, brief, TINY)
        killed = failover.kill_leader(brief, brief.controller(), "killed")
        pids = [node.pid for node in brief.up]
    assert killed.read.is_good
    assert killed.read.checked >= 4 * failover.WARM_RECORDS
    assert min(killed.stock_s, killed.raw_s) > 0
    shown = {row.name: row for row in cluster.ROWS if not row.name.startswith("kill") and row.name != "read"}
    assert ours.rounds.keys() == shown.keys()
    for name, row in shown.items():
        assert {measure.name for measure in row.measures} <= rows.median(ours.rounds[name]).keys()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not list((tmp_path / "brokers").glob("[0-9]"))
