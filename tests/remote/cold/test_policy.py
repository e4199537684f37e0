"""What is copied and what expires: KIP-1241's rows, Kafka's cases, and properties of any log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.policy import EXPIRED_AT_ONCE, copy_lag, plan_copy, plan_expiry
from remote.cold.segments import RemoteSegment
from storage.log import ClosedSegment
from storage.policy import LogConfig
from tests.remote.cold.copies import copy_of

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
GB = 1 << 30


def tiered(
    *,
    local_ms: int = -2,
    local_bytes: int = -2,
    lag_ms: int = 0,
    lag_bytes: int = -1,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    is_copy_disabled: bool = False,
) -> LogConfig:
    return LogConfig(
        remote_storage_enable=True,
        remote_log_copy_disable=is_copy_disabled,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        local_retention_ms=local_ms,
        local_retention_bytes=local_bytes,
        remote_copy_lag_ms=lag_ms,
        remote_copy_lag_bytes=lag_bytes,
    )


def closed(base: int, *, size: int = 100, age_ms: int = 0, count: int = 10) -> ClosedSegment:
    return ClosedSegment(
        base_offset=base, end_offset=base + count, size=size, max_timestamp=NOW - age_ms, has_aborted=False
    )


def copied(
    config: LogConfig,
    segments: list[ClosedSegment],
    *,
    active_size: int = 0,
    tiered_end: int = 0,
    log_start: int = 0,
    last_stable_offset: int = 1 << 40,
) -> list[int]:
    plan = plan_copy(
        config,
        segments,
        now_ms=NOW,
        tiered_end=tiered_end,
        last_stable_offset=last_stable_offset,
        log_start=log_start,
        log_size=sum(segment.size for segment in segments) + active_size,
    )
    return [segment.base_offset for segment in plan]


# --- KIP-1241 ---


@pytest.mark.requirement(
    "1241-01", "1241-02", "1241-05", "1241-06", "1241-07", "1241-08", "1241-17", "1241-19"
)
@pytest.mark.parametrize(
    ("local", "lag", "expected"),
    [
        ((-1, -1), (0, 0), (0, 0)),
        ((-1, -1), (-1, -1), (None, None)),
        ((-1, -1), (DAY, GB), (DAY, GB)),
        ((3 * DAY, -1), (0, 0), (0, 0)),
        ((3 * DAY, -1), (-1, -1), (3 * DAY, None)),
        ((3 * DAY, -1), (DAY, GB), (DAY, GB)),
        ((-1, 3 * GB), (0, 0), (0, 0)),
        ((-1, 3 * GB), (-1, -1), (None, 3 * GB)),
        ((-1, 3 * GB), (DAY, GB), (DAY, GB)),
        ((3 * DAY, 3 * GB), (0, 0), (0, 0)),
        ((3 * DAY, 3 * GB), (-1, -1), (3 * DAY, 3 * GB)),
        ((3 * DAY, 3 * GB), (DAY, GB), (DAY, GB)),
    ],
)
@pytest.mark.parametrize("is_inherited", [False, True])
def test_the_rows_of_the_kip(
    local: tuple[int, int],
    lag: tuple[int, int],
    expected: tuple[int | None, int | None],
    is_inherited: bool,
) -> None:
    """What makes a segment due, and that exactly that does; local retention said or taken from the log's."""
    config = tiered(
        local_ms=-2 if is_inherited else local[0],
        local_bytes=-2 if is_inherited else local[1],
        retention_ms=local[0],
        retention_bytes=local[1],
        lag_ms=lag[0],
        lag_bytes=lag[1],
    )
    assert copy_lag(config) == expected
    ms, size = expected
    waits = ms not in (None, 0) or size not in (None, 0)
    assert copied(config, [closed(0)]) == ([] if waits else [0])
    if ms:
        assert copied(config, [closed(0, age_ms=ms - 1)]) == []
        assert copied(config, [closed(0, age_ms=ms)]) == [0]
    elif waits:
        assert copied(config, [closed(0, age_ms=100 * DAY)]) == [], "no age is asked for"
    if size:
        assert copied(config, [closed(0)], active_size=size - 1) == []
        assert copied(config, [closed(0)], active_size=size) == [0]
    elif waits:
        assert copied(config, [closed(0)], active_size=100 * GB) == [], "no size is asked for"


@pytest.mark.requirement("1241-19")
def test_the_most_delay_without_a_limit_of_local_retention_is_none_where_kafka_never_copies() -> None:
    config = tiered(local_ms=-1, local_bytes=-1, lag_ms=-1, lag_bytes=-1)
    assert copied(config, [closed(0), closed(10)]) == [0, 10]


@pytest.mark.requirement("1241-12", "1241-13", "1241-18")
def test_defaults_copy_at_once() -> None:
    assert copied(LogConfig(remote_storage_enable=True), [closed(0), closed(10)]) == [0, 10]


@pytest.mark.requirement("1241-18")
def test_either_lag_suffices_and_0_is_at_once() -> None:
    both = tiered(lag_ms=DAY, lag_bytes=GB)
    assert copied(both, [closed(0, age_ms=DAY)]) == [0]
    assert copied(both, [closed(0)], active_size=GB) == [0]
    assert copied(both, [closed(0, age_ms=DAY - 1)], active_size=GB - 1) == []
    assert copied(tiered(lag_ms=DAY, lag_bytes=0), [closed(0)]) == [0]
    assert copied(tiered(lag_ms=0, lag_bytes=GB), [closed(0)]) == [0], "bytes alone delay nothing"


@pytest.mark.requirement("1241-20")
def test_what_has_no_age_or_a_future_one_does_not_wait() -> None:
    config = tiered(lag_ms=DAY)
    future = closed(0, age_ms=-1)
    unknown = ClosedSegment(base_offset=0, end_offset=10, size=100, max_timestamp=-1, has_aborted=False)
    assert copied(config, [future]) == [0]
    assert copied(config, [unknown]) == [0]


@pytest.mark.requirement("1241-20")
def test_the_size_behind_a_segment_is_that_of_all_after_it() -> None:
    segments = [closed(0, size=40), closed(10, size=30)]
    config = tiered(lag_ms=-1, lag_bytes=50)
    assert copied(config, segments, active_size=20) == [0]
    assert copied(config, segments, active_size=19) == []
    assert copied(config, segments, active_size=50) == [0, 10]


@pytest.mark.requirement("1241-20")
def test_the_first_that_waits_ends_the_search() -> None:
    segments = [closed(0, age_ms=DAY), closed(10, age_ms=0), closed(20, age_ms=DAY)]
    assert copied(tiered(lag_ms=DAY), segments) == [0]


@pytest.mark.requirement("1241-10")
def test_only_what_is_below_the_last_stable_offset_is_copied() -> None:
    segments = [closed(0), closed(10), closed(20)]
    assert copied(tiered(), segments, last_stable_offset=20) == [0, 10]
    assert copied(tiered(), segments, last_stable_offset=19) == [0]


def test_a_segment_in_which_the_tier_ends_is_copied_whole() -> None:
    segments = [closed(0), closed(10), closed(20)]
    assert copied(tiered(), segments, tiered_end=10) == [10, 20]
    assert copied(tiered(), segments, tiered_end=15) == [10, 20]
    assert copied(tiered(), segments, log_start=21) == [20]


def test_what_is_not_copied_any_more_counts_for_the_size_before_it_only() -> None:
    segments = [closed(0, size=1000), closed(10, size=10)]
    assert copied(tiered(lag_ms=-1, lag_bytes=10), segments, tiered_end=10) == []
    assert copied(tiered(lag_ms=-1, lag_bytes=10), segments, tiered_end=10, active_size=10) == [10]


def test_nothing_is_copied_where_copying_is_off() -> None:
    assert copied(LogConfig(), [closed(0)]) == []
    assert copied(tiered(is_copy_disabled=True), [closed(0)]) == []


LAGS = st.sampled_from([-1, 0, 1, 30, 100])
RETENTIONS = st.sampled_from([-1, 0, 50, 200])
ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 90), st.integers(-20, 150)), max_size=8)


@given(ROWS, LAGS, LAGS, RETENTIONS, RETENTIONS, *[st.integers(0, 80)] * 4)
def test_a_plan_is_a_run_of_segments_each_due_by_itself(
    rows: list[tuple[int, int, int]],
    lag_ms: int,
    lag_bytes: int,
    local_ms: int,
    local_bytes: int,
    tiered_end: int,
    log_start: int,
    stable: int,
    active: int,
) -> None:
    segments = []
    base = 0
    for count, size, age_ms in rows:
        segments.append(closed(base, size=size, age_ms=age_ms, count=count))
        base += count
    config = tiered(lag_ms=lag_ms, lag_bytes=lag_bytes, local_ms=local_ms, local_bytes=local_bytes)
    plan = copied(
        config,
        segments,
        active_size=active,
        tiered_end=tiered_end,
        log_start=log_start,
        last_stable_offset=stable,
    )
    wanted = [s for s in segments if s.end_offset > max(tiered_end, log_start)]
    assert plan == [s.base_offset for s in wanted[: len(plan)]]

    def is_due(segment: ClosedSegment) -> bool:
        after = active + sum(s.size for s in segments if s.base_offset > segment.base_offset)
        age = NOW - segment.max_timestamp
        ms = local_ms if lag_ms == -1 else lag_ms
        size = local_bytes if lag_bytes == -1 else lag_bytes
        checks = [age >= ms or age < 0] if ms != -1 else []
        checks += [after >= size] if size != -1 else []
        return segment.end_offset <= stable and (any(checks) or not checks)

    assert all(is_due(segment) for segment in wanted[: len(plan)])
    assert len(plan) == len(wanted) or not is_due(wanted[len(plan)])


@pytest.mark.requirement("X-1")
@given(ROWS, LAGS, st.sampled_from([0, 50, 200]))
def test_the_longer_the_lag_the_less_is_copied(
    rows: list[tuple[int, int, int]], lag_ms: int, local_ms: int
) -> None:
    """So a follower that starts where the tier ends starts earlier."""
    segments = [closed(at * 10, size=size, age_ms=abs(age_ms)) for at, (_, size, age_ms) in enumerate(rows)]
    shorter = copied(tiered(lag_ms=min(max(lag_ms, 0), local_ms), local_ms=local_ms), segments)
    longest = copied(tiered(lag_ms=-1, local_ms=local_ms), segments)
    assert shorter[: len(longest)] == longest


# --- expiry ---


def remote(base: int, *, size: int = 100, age_ms: int = 0, count: int = 10) -> RemoteSegment:
    return copy_of(((0, 0),), base, base + count, number=base + 1, size=size, max_timestamp_ms=NOW - age_ms)


def expired(
    config: LogConfig,
    segments: list[RemoteSegment],
    *,
    log_start: int = 0,
    local_start: int | None = None,
    local_only: int = 0,
) -> tuple[int, list[int]]:
    end = segments[-1].end_offset if segments else 0
    plan = plan_expiry(
        config,
        iter(segments),
        now_ms=NOW,
        log_start=log_start,
        local_start=max(end, log_start) if local_start is None else local_start,
        tier_bytes=sum(segment.size_bytes for segment in segments),
        local_only_bytes=local_only,
    )
    return plan.log_start, [segment.base_offset for segment in plan.delete]


def hours_stored(config: LogConfig) -> int:
    """How long the tier has a copy, looked at every hour."""
    ages = range(30 * 24)
    begins = next(age for age in ages if copied(config, [closed(0, age_ms=age * HOUR)]))
    return next(age for age in ages if expired(config, [remote(0, age_ms=age * HOUR)])[1]) - begins


@pytest.mark.requirement("1241-14")
@pytest.mark.parametrize(("days", "least"), [(3, 0.25), (7, 0.10)])
def test_the_most_delay_saves_the_tier_what_the_disk_has_anyway(days: int, least: float) -> None:
    at_once, late = (
        hours_stored(tiered(retention_ms=days * DAY, local_ms=DAY, lag_ms=lag_ms)) for lag_ms in (0, -1)
    )
    assert (at_once, late) == (days * 24, days * 24 - 24)
    assert 1 - late / at_once >= least


def test_time_takes_what_is_as_old_as_its_limit() -> None:
    segments = [remote(0, age_ms=DAY), remote(10, age_ms=DAY - 1), remote(20, age_ms=DAY)]
    assert expired(tiered(retention_ms=DAY), segments) == (10, [0])
    assert expired(tiered(retention_ms=-1), segments) == (0, [])


def test_size_counts_what_is_local_alone_and_never_takes_more_than_the_excess() -> None:
    segments = [remote(0), remote(10), remote(20)]
    assert expired(tiered(retention_bytes=300), segments) == (0, [])
    assert expired(tiered(retention_bytes=300), segments, local_only=99) == (0, [])
    assert expired(tiered(retention_bytes=300), segments, local_only=100) == (10, [0])
    assert expired(tiered(retention_bytes=0), segments) == (30, [0, 10, 20])


def test_what_is_below_the_log_start_goes() -> None:
    segments = [remote(0), remote(10), remote(20)]
    assert expired(tiered(), segments, log_start=25) == (25, [0, 10])


def test_only_a_policy_of_deletion_has_retention() -> None:
    kept = LogConfig(remote_storage_enable=True, cleanup_policy=(), retention_ms=1, retention_bytes=1)
    assert expired(kept, [remote(0, age_ms=DAY)]) == (0, [])


def test_records_without_times_are_as_old_as_their_copy() -> None:
    segment = copy_of(((0, 0),), 0, 10, number=1, max_timestamp_ms=-1)
    old = NOW - segment.event_timestamp_ms
    assert expired(tiered(retention_ms=old), [segment]) == (10, [0])
    assert expired(tiered(retention_ms=old + 1), [segment]) == (0, [])


def test_the_log_start_follows_to_what_can_be_read() -> None:
    assert expired(tiered(), [remote(10), remote(20)], log_start=5) == (10, [])
    assert expired(tiered(), [remote(10)], log_start=0, local_start=7) == (7, [])
    assert expired(tiered(), [], log_start=0, local_start=7) == (7, [])
    lost = [remote(0, age_ms=DAY), remote(20)]
    assert expired(tiered(retention_ms=DAY), lost) == (20, [0])
    whole = [remote(0), remote(20)]
    assert expired(tiered(), whole) == (0, []), "not over what can be read before it"


def test_a_plan_is_bounded_and_reads_no_further_than_it_needs() -> None:
    asked = []

    def many() -> object:
        for at in range(EXPIRED_AT_ONCE * 2):
            asked.append(at)
            yield remote(at * 10, age_ms=DAY)

    plan = plan_expiry(
        tiered(retention_ms=DAY),
        many(),  # type: ignore[arg-type]
        now_ms=NOW,
        log_start=0,
        local_start=10**9,
        tier_bytes=10**9,
        local_only_bytes=0,
    )
    assert len(plan.delete) == EXPIRED_AT_ONCE
    assert plan.log_start == EXPIRED_AT_ONCE * 10
    assert len(asked) == EXPIRED_AT_ONCE + 1


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), max_size=8),
    st.integers(-1, 100),
    st.integers(-1, 300),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_expiry_takes_a_prefix_and_nothing_that_retention_keeps(
    rows: list[tuple[int, int]], retention_ms: int, retention_bytes: int, log_start: int, local_only: int
) -> None:
    segments = [remote(at * 10, size=size, age_ms=age) for at, (size, age) in enumerate(rows)]
    config = tiered(retention_ms=retention_ms, retention_bytes=retention_bytes)
    start, gone = expired(config, segments, log_start=log_start, local_only=local_only)
    assert gone == [segment.base_offset for segment in segments[: len(gone)]]
    assert start >= log_start
    assert all(segment.end_offset <= start for segment in segments[: len(gone)])
    left = segments[len(gone) :]
    if left:
        assert start <= max(log_start, left[0].base_offset)
        assert left[0].end_offset > log_start
        assert retention_ms < 0 or NOW - left[0].max_timestamp_ms < retention_ms
        size = sum(segment.size_bytes for segment in left) + local_only
        assert retention_bytes < 0 or size - retention_bytes < left[0].size_bytes or size <= retention_bytes
    for at in range(len(gone)):
        is_below = segments[at].end_offset <= log_start
        is_old = retention_ms >= 0 and NOW - segments[at].max_timestamp_ms >= retention_ms
        size = sum(segment.size_bytes for segment in segments[at:]) + local_only
        is_surplus = retention_bytes >= 0 and size - segments[at].size_bytes >= retention_bytes
        assert is_below or is_old or is_surplus
