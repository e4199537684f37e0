"""The tier bench: its sums, its goals, and one small run of our own on a local store."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages
from protocol.apis import Api
from protocol.records import build_batch
from tools.console import Failure
from tools.versus import rows, tier, tier_clients, tier_fold, tier_rows
from tools.versus.caller import FETCH_VERSION
from tools.versus.tier_rows import KAFKA, LOCAL, MINIO, Goal

TINY = tier.Sizes(
    rounds=1,
    segment_bytes=1_100_000,
    segments=5,
    idle_s=1.0,
    quota_bytes_per_s=4_000_000,
    large_bytes=2_200_000,
    cold_bytes=4_000_000,
    many_s=1.0,
    joined_bytes=8_000_000,
    joined_local_bytes=4_000_000,
    live_segments=100,
)


# --- sums ---


@given(st.lists(st.integers(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values_and_most_are_not_above_it(values: list[int], share: float) -> None:
    found = tier_rows.percentile(values, share)
    assert found in values
    assert sum(each <= found for each in values) >= share * len(values) - 1e-6


def test_a_steady_rate_is_the_same_in_every_window() -> None:
    at_s = [each / 10 for each in range(300)]
    totals = [0.0] * 20 + [each * 2e6 for each in range(1, 201)] + [200 * 2e6] * 80
    found = tier_rows.rates(at_s, totals, 11.0)
    assert len(found) > 80
    assert all(each == pytest.approx(2e7) for each in found)


def test_a_file_that_is_missed_or_seen_twice_once_changes_no_rate() -> None:
    at_s = [float(each) for each in range(40)]
    totals = [each * 5.0 for each in range(40)]
    totals[12], totals[30] = 0.0, 1000.0
    found = tier_rows.rates(at_s, totals, 10.0)
    assert len(found) == 30
    assert found == pytest.approx([5.0] * 30, abs=0.5), "one sample, the one beside it, is a tenth"


def test_nothing_that_grows_or_less_than_a_window_is_no_rate() -> None:
    assert tier_rows.rates([0.0, 1.0, 2.0], [5.0, 5.0, 5.0]) == []
    assert tier_rows.rates([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]) == []
    assert tier_rows.rates([], []) == []


@given(st.lists(st.integers(0, 50), min_size=30, max_size=60))
def test_no_window_is_faster_than_all_there_was(growths: list[int]) -> None:
    totals = [float(sum(growths[:at])) for at in range(len(growths) + 1)]
    found = tier_rows.rates([float(at) for at in range(len(totals))], totals, 5.0)
    assert all(0 <= each <= max(later - earlier for earlier, later in pairwise(totals)) for each in found)


def test_values_of_a_time_are_those_begun_in_it() -> None:
    assert tier_rows.within([1.0, 2.0, 3.0], [10, 20, 30], 1.0, 3.0) == [10, 20]


# --- goals and rows ---


def test_a_goal_says_who_misses_it() -> None:
    goal = Goal(figure="stall_ms", label="stall", at_most=20)
    found = {LOCAL: {"stall_ms": 5.0}, MINIO: {"stall_ms": 21.0}, KAFKA: {"stall_ms": 99.0}}
    assert goal.told(found) == "stall ≤ 20 **missed** (MinIO)"
    assert goal.told({LOCAL: {"stall_ms": 20.0}}) == "stall ≤ 20 met"
    assert goal.told({LOCAL: {}}) == "-"


def test_a_goal_may_be_what_kafka_does() -> None:
    goal = Goal(figure="mb_per_s", label="cold", at_least=0, as_kafka=True, of=(LOCAL,))
    assert (
        goal.told({LOCAL: {"mb_per_s": 5.0}, KAFKA: {"mb_per_s": 4.0}}) == "cold (local store) ≥ Kafka's met"
    )
    assert "missed" in goal.told({LOCAL: {"mb_per_s": 3.0}, KAFKA: {"mb_per_s": 4.0}})
    assert goal.told({LOCAL: {"mb_per_s": 5.0}}) == "-"


def test_rows_are_selected_in_their_order() -> None:
    assert [row.name for row in tier_rows.select(["fold", "upload"])] == ["upload", "fold"]
    assert tier_rows.select([]) == list(tier_rows.ROWS)
    with pytest.raises(ValueError, match="no row nonsense"):
        tier_rows.select(["nonsense"])


def test_a_table_has_a_column_for_each_system() -> None:
    chosen = tier_rows.select(["upload"])
    results = {LOCAL: {"upload": {"mb_per_s": 400.0, "cpu_s_per_gb": 5.0}}, MINIO: {}}
    assert tier_rows.markdown(chosen, [LOCAL, MINIO], results).splitlines()[2] == (
        "| closed segments uploaded, nothing else going on; broker's CPU | 400 MB/s, 5.00 s/GB | - | "
        "CPU ≤ 4 **missed** (local store) |"
    )


def test_sizes_are_scaled_but_mean_something() -> None:
    small = tier.Sizes().scaled(0.01)
    assert small.segments == 3 * tier.PARTITIONS
    assert small.cold_bytes > 5 * small.segment_bytes
    assert tier.Sizes().scaled(2.0) == tier.Sizes()


# --- clients ---


def _fetched(records: bytes, error: int = 0) -> memoryview:
    row = {
        "partition_index": 0,
        "error_code": error,
        "high_watermark": 9,
        "last_stable_offset": 9,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    }
    fields = {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": 0,
        "responses": [{"topic": "logs", "partitions": [row]}],
    }
    return memoryview(messages.encode_response(Api.FETCH, FETCH_VERSION, 1, fields))[4:]


def test_readers_go_on_after_the_last_whole_batch() -> None:
    batch = bytes(build_batch([(None, b"value", (), 1)] * 3, base_offset=7))
    assert tier_clients._next_offset(_fetched(batch + batch[:20]), 7) == (len(batch) + 20, 10)
    assert tier_clients._next_offset(_fetched(b""), 7) == (0, 7)
    with pytest.raises(Failure, match="error 1"):
        tier_clients._next_offset(_fetched(b"", error=1), 7)


def test_all_segments_are_folded_and_found() -> None:
    found = tier_fold.measure(500)
    assert found["segments"] == 500
    assert found.keys() == {"segments", "cpu_s", "bytes", "find_us"}


# --- a small run ---


def test_a_broker_of_ours_goes_through_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "SETTLE_CLIENT_S", 0.3)
    monkeypatch.setattr(tier, "CONSUMERS", 3)
    rounds = tier.Rounds([LOCAL])
    chosen = tier_rows.select(["upload", "paced", "cold", "many", "fold", "ready"])
    tier.measure([LOCAL], chosen, TINY, tmp_path, rounds)
    medians = rounds.medians()[LOCAL]
    needs_longer = {"slowest", "fastest"}
    for row in chosen:
        assert {measure.name for measure in row.measures} - needs_longer <= medians[row.name].keys(), row.name
    assert rows.number(medians["cold"]["mb_per_s"]) in tier_rows.markdown(chosen, [LOCAL], rounds.medians())
    assert not list(tmp_path.iterdir()), "what was started or written is gone"


def test_an_empty_disk_takes_from_its_leader_what_the_tier_has_not(tmp_path: Path) -> None:
    rounds = tier.Rounds([LOCAL])
    chosen = tier_rows.select(["join", "join-copy"])
    tier.measure([LOCAL], chosen, TINY, tmp_path, rounds)
    medians = rounds.medians()[LOCAL]
    for row in chosen:
        assert {measure.name for measure in row.measures} <= medians[row.name].keys(), row.name
    assert medians["join"]["over_mb"] <= 1
    assert medians["join"]["copied_mb"] <= 0.15 * medians["join-copy"]["copied_mb"]
    assert not list(tmp_path.iterdir()), "what was started or written is gone"
