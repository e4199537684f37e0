"""The WAL bench: its sums, its goals, the kernel's and the brokers' counts, and one small run."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages, wire
from protocol.apis import Api
from tools.console import Failure
from tools.scrape import Histogram, Scrape, look
from tools.versus import sockets, wal, wal_clients, wal_rows, wal_system
from tools.versus.caller import PRODUCE_VERSION
from tools.versus.load import Load
from tools.versus.wal_clients import WalSpec
from tools.versus.wal_rows import FILE, MINIO, OFF, ON, Goal, Runs

# --- pairs of runs and goals ---


def runs_of(off: list[float], on: list[float], figure: str = "p99_ms") -> Runs:
    runs = Runs()
    for which, values in ((OFF, off), (ON, on)):
        for value in values:
            runs.add(which, {figure: value})
    return runs


def test_a_difference_within_that_of_equal_runs_is_none() -> None:
    assert runs_of([10.0, 12.0], [12.5]).is_same("p99_ms")
    assert not runs_of([10.0, 10.5], [12.0]).is_same("p99_ms")
    assert not runs_of([10.0], [10.0]).is_same("p99_ms"), "of one run nothing is known"
    assert not Runs().is_same("p99_ms")


@given(
    st.lists(st.floats(1, 1e6), min_size=2, max_size=9), st.lists(st.floats(1, 1e6), min_size=1, max_size=9)
)
def test_equal_runs_never_differ(off: list[float], on: list[float]) -> None:
    runs = runs_of(off, on)
    spread = runs.spread("p99_ms")
    assert spread is not None
    assert spread >= 0
    assert runs_of(off, off).is_same("p99_ms")
    if min(off) <= min(on) and max(on) <= max(off):
        assert runs.is_same("p99_ms"), "the medians lie within all of off"


def test_a_goal_may_be_a_bound_or_a_multiple_of_off() -> None:
    bound = Goal(figure="p99_ms", label="p99", at_most=10)
    assert bound.told(runs_of([99.0], [10.0])) == "p99 ≤ 10 met"
    assert bound.told(runs_of([99.0], [10.5])) == "p99 ≤ 10 **missed**"
    assert bound.told(runs_of([99.0], [])) == ""
    times = Goal(figure="p99_ms", label="p99", at_most=1.5, times_off=True, or_more=1)
    assert times.told(runs_of([0.5], [1.4])) == "p99 ≤ 1.5 × off or 1 more met"
    assert times.told(runs_of([10.0], [15.0])) == "p99 ≤ 1.5 × off or 1 more met"
    assert times.told(runs_of([10.0], [15.1])) == "p99 ≤ 1.5 × off or 1 more **missed**"
    assert times.told(runs_of([], [15.1])) == ""
    least = Goal(figure="p99_ms", label="speed", at_least=0.85, times_off=True)
    assert least.told(runs_of([100.0], [85.0])) == "speed ≥ 0.85 × off met"
    assert least.told(runs_of([100.0], [84.0])) == "speed ≥ 0.85 × off **missed**"


def test_rows_are_selected_by_name_and_by_group() -> None:
    assert [row.name for row in wal_rows.select(["cpu", "bytes-1000"])] == [
        "bytes-1000",
        "cpu-30",
        "cpu-100",
        "cpu-300k",
    ]
    assert wal_rows.select([]) == list(wal_rows.ROWS)
    with pytest.raises(ValueError, match="no row nonsense"):
        wal_rows.select(["nonsense"])


def test_every_row_has_its_work() -> None:
    assert {row.name for row in wal_rows.ROWS} == {*wal.WORK, wal.REFUSED}
    assert wal.SETTINGS.keys() <= wal.WORK.keys()


def test_a_table_tells_medians_ratios_and_spreads() -> None:
    runs = Runs()
    for which, value in ((OFF, 10.0), (ON, 11.5), (OFF, 11.0), (ON, 12.5)):
        runs.add(which, {"p50_ms": value, "p99_ms": value})
    line = wal_rows.markdown(wal_rows.select(["acks1-latency"]), FILE, {"acks1-latency": runs}).splitlines()[
        2
    ]
    _, _, off, on, ratio, spread, goals, _ = (cell.strip() for cell in line.split("|"))
    assert off == "10.5 ms p50 to the acknowledgement, 10.5 ms p99"
    assert on == "12.0 ms p50 to the acknowledgement, 12.0 ms p99"
    assert (ratio, spread) == ("1.14, 1.14", "10 %, 10 %")
    assert goals == "p50 ≤ 1.1 × off **missed**, p99 ≤ 1.5 × off or 1 more met"


def test_a_goal_for_one_store_is_told_for_that_store() -> None:
    rows, runs = wal_rows.select(["e2e-alone"]), Runs()
    runs.add(ON, {"p50_ms": 10.0, "p99_ms": 45.0})
    assert wal_rows.markdown(rows, MINIO, {"e2e-alone": runs}).count("met") == 2
    assert wal_rows.markdown(rows, FILE, {"e2e-alone": runs}).count("**missed**") == 2


@given(st.lists(st.floats(0, 0.1), min_size=6, max_size=6), st.floats(0, 1000))
def test_stages_sum_to_the_whole(values: list[float], whole_ms: float) -> None:
    found = dict(wal_rows.stages(dict(zip(wal_system.STAGES, values, strict=True)), whole_ms))
    assert found.keys() == wal_rows.STAGES.keys()
    whole = found.pop("whole_ms")
    assert sum(found.values()) == pytest.approx(whole, abs=1e-6)


def test_stages_of_all_runs_are_told_by_their_means() -> None:
    runs = Runs()
    runs.add(ON, wal_rows.stages({"wait": 0.001, "report": 0.004, "get": 0.001}, 10.0))
    runs.add(ON, wal_rows.stages({"wait": 0.003, "report": 0.004, "get": 0.001}, 12.0))
    text = wal_rows.stages_markdown(
        wal_rows.select(["e2e", "bytes"]), {"e2e-alone": runs, "bytes-12": Runs()}
    )
    assert text.splitlines()[2].endswith("| 2.00 | 0.00 | 0.00 | 1.00 | 0.00 | 3.00 | 5.00 | 11.00 |")
    assert len(text.splitlines()) == 3
    assert wal_rows.stages_markdown(wal_rows.select(["bytes-12"]), {"bytes-12": Runs()}) == ""


# --- what brokers say ---

PAGE = """# HELP of_topic Bytes.
# TYPE of_topic counter
of_topic_total{topic="a"} 5.0
of_topic_total{topic="b \\"c\\", d"} 7.0
times_bucket{le="0.005"} 2.0
times_bucket{le="0.01"} 3.0
times_bucket{le="+Inf"} 4.0
times_sum 0.5
plain 1e3
"""


def test_metrics_are_added_up_and_compared() -> None:
    one = Scrape.parse(PAGE)
    assert (one.value("of_topic_total"), one.value("of_topic_total", topic="a")) == (12, 5)
    assert one.value("of_topic_total", topic='b \\"c\\", d') == 7
    assert (one.value("plain"), one.value("absent")) == (1000, 0)
    assert (one + one).value("of_topic_total", topic="a") == 10
    assert (one + one - one).histogram("times") == one.histogram("times")
    assert one.names == {"of_topic_total", "times_bucket", "times_sum", "plain"}


def test_a_histogram_tells_mean_percentile_and_what_is_above() -> None:
    times = Scrape.parse(PAGE).histogram("times")
    assert (times.count, times.mean) == (4, 0.125)
    assert [times.quantile(share) for share in (0.5, 0.75, 1.0)] == [0.005, 0.01, float("inf")]
    assert (times.above(0.005), times.above(0.01)) == (2, 1)
    with pytest.raises(Failure, match="no bound"):
        times.above(0.007)
    with pytest.raises(Failure, match="no histogram"):
        Histogram().above(0.007)
    assert (Histogram().mean, Histogram().quantile(0.5)) == (0, 0)


# --- what the kernel says ---


def test_bytes_between_brokers_are_those_of_their_connections() -> None:
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        port, other_port = (each.getsockname()[1] for each in listening)
        old = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        old_end = stack.enter_context(listening[0].accept()[0])
        exchange(old, old_end, 1000, 0)
        with sockets.BetweenBrokers([os.getpid()], [port]) as between:
            exchange(old, old_end, 500, 30)
            new = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            new_end = stack.enter_context(listening[0].accept()[0])
            exchange(new, new_end, 0, 200_000)
            strange = stack.enter_context(socket.create_connection(("127.0.0.1", other_port)))
            exchange(strange, stack.enter_context(listening[1].accept()[0]), 4000, 4000)
            found = between.so_far()
            assert 0 <= found - 200_530 <= 1, "a connection that is opened counts one byte for it"
            new.close()
            assert between.so_far() == found, "what a connection moved stays when it is gone"


def exchange(one: socket.socket, other: socket.socket, there: int, back: int) -> None:
    for sender, receiver, size in ((one, other, there), (other, one, back)):
        sender.sendall(b"x" * size)
        while size:
            size -= len(receiver.recv(size))


def test_nobody_elses_connection_is_counted() -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with other, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with (
            sockets.BetweenBrokers([other.pid], [port]) as between,
            socket.create_connection(("127.0.0.1", port)) as one,
            listening.accept()[0] as its_end,
        ):
            exchange(one, its_end, 100, 0)
            assert between.so_far() == 0
        other.communicate(b"\n")


def test_a_kernel_that_refuses_is_a_failure() -> None:
    with pytest.raises(Failure, match="does not tell"):
        sockets.parse(struct.pack("=IHHIIi", 20, sockets.ERROR, 0, 1, 0, -1))


# --- clients ---


def test_requests_of_one_size_reach_every_partition_once() -> None:
    spec = WalSpec(
        kind="paced", port=1, pid=1, topic="t", record_bytes=100, partitions=12, at_once=4, batch_records=3
    )
    requests = wal_clients.requests_of(spec)
    assert len({len(each) for each in requests}) == 1
    found = []
    for request in requests:
        frame = memoryview(request)[4:]
        body = frame[wire.parse_head(frame).body_at :]
        fields = messages.decode_request(Api.PRODUCE, PRODUCE_VERSION, body)
        found += [row.index for row in fields.topic_data[0].partition_data]
    assert found == list(range(12))


# --- a small run ---

TINY = wal.Sizes(seconds=1.0, warm_s=0.5, many=20, gb_max=0.05)


@pytest.mark.requirement("1176-56")
def test_the_throughput_run_of_the_proposal_in_small(tmp_path: Path) -> None:
    """Its records, linger and rate; how long it goes on decides what the figures are worth."""
    row = wal_rows.select(["acks1-latency"])[0]
    sizes = wal.Sizes(seconds=1.0, warm_s=0.5, many=20, gb_max=0.1)
    runs = wal.measure([row], FILE, 1, sizes, tmp_path)[row.name]
    assert not runs.failure
    assert {measure.name for measure in row.measures} <= runs.on[0].keys()
    assert runs.on[0]["record_share"] == 0


def test_both_kinds_go_through_rows_in_turn(tmp_path: Path) -> None:
    chosen = wal_rows.select(["e2e-alone"])
    found = wal.measure(chosen, FILE, 1, TINY, tmp_path)
    for row in chosen:
        runs = found[row.name]
        assert not runs.failure
        assert (len(runs.off), len(runs.on)) == (1, 1)
        assert {measure.name for measure in row.measures} <= runs.on[0].keys()
    crossed = found["e2e-alone"]
    assert crossed.off[0]["record_share"] > 1, "two followers are sent every record"
    assert crossed.on[0]["record_share"] == 0
    assert crossed.on[0]["socket_share"] < crossed.off[0]["socket_share"]
    assert wal_rows.stages_markdown(chosen, found)
    assert not list(tmp_path.iterdir()), "what was started or written is gone"


def test_a_row_that_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[tuple[str, dict[str, float]]]:
        raise Failure("no such luck")

    def pair(row: wal_rows.Row, *_: object) -> list[tuple[str, dict[str, float]]]:
        return fail() if row.name == "bytes-12" else [(OFF, {"p50_ms": 2.0}), (ON, {"p50_ms": 1.0})]

    monkeypatch.setattr(wal, "_pair", pair)
    found = wal.measure(wal_rows.select(["bytes-12", "acks-all-50"]), FILE, 2, TINY, tmp_path)
    assert found["bytes-12"].failure == "no such luck"
    assert found["acks-all-50"].values(ON, "p50_ms") == [1.0, 1.0]


def test_brokers_of_both_kinds_are_asked_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def refused(which: str, folder: Path) -> Iterator[str]:
        yield folder.name

    def cost(load: Load, figure: str, broker: str, topic: str, core: int, which: str) -> float:
        assert which in broker
        asked.append((topic, broker))
        spoiled = topic.endswith("-2")
        return 100.0 if spoiled else (7.0 if which == ON else 5.0) + int(broker[-1])

    monkeypatch.setattr(wal_system, "refused", refused)
    monkeypatch.setattr(wal, "_cost_of", cost)
    sizes = wal.Sizes(seconds=5 / wal.CPU_ROUNDS_PER_S)
    found = list(wal.cpu_of_requests(sizes, tmp_path / "cpu"))
    assert [(which, each["deep_us"]) for which, each in found] == [(OFF, 5), (ON, 8), (OFF, 7), (ON, 10)]
    turns = [broker for topic, broker in asked if topic.startswith("one_us")]
    brokers_ = turns[:4]
    assert len(set(brokers_)) == 4
    for number in range(5):
        at = number % 4
        assert turns[4 * number : 4 * number + 4] == brokers_[at:] + brokers_[:at], "another one is the first"


def test_what_cannot_be_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wal.main(["--rows", "nonsense"]) == 1
    monkeypatch.setattr(wal, "EXECUTABLE", tmp_path / "absent")
    assert wal.main(["--store", "minio"]) == 1
    assert "make minio" in capsys.readouterr().err


def test_a_page_that_does_not_answer_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(Failure, match=f"no metrics at port {port}"):
        look([port])
