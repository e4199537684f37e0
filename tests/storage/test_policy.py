"""What retention may take, and never more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.policy import LogConfig, SegmentFacts, plan_deletion
from tests.storage.support import NOW


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 100)), min_size=1, max_size=8),
    st.integers(-1, 60),
    st.integers(-1, 200),
    st.integers(0, 80),
    st.integers(0, 80),
)
def test_retention_takes_only_a_prefix_it_may_take(
    rows: list[tuple[int, int, int]], retention_ms: int, retention_bytes: int, log_start: int, bound: int
) -> None:
    ends = [sum(count for _, count, _ in rows[: at + 1]) for at in range(len(rows))]
    segments = [
        SegmentFacts(size=size if count else 0, end_offset=end, timestamp=NOW + time)
        for (size, count, time), end in zip(rows, ends, strict=True)
    ]
    config = LogConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    plan = plan_deletion(config, segments, now_ms=NOW + 120, log_start_offset=log_start, high_watermark=bound)
    assert not plan.is_local and not plan.roll_active
    count = plan.count
    gone, kept = segments[:count], segments[count:]
    assert all(facts.end_offset <= bound for facts in gone)
    assert not gone or not (segments[-1].size == 0 and not kept)
    if retention_bytes >= 0 and retention_ms < 0 and gone and gone[-1].end_offset > log_start:
        assert sum(facts.size for facts in kept) >= retention_bytes
    if retention_ms < 0 and retention_bytes < 0:
        assert all(facts.end_offset <= log_start for facts in gone)
    if kept and retention_ms >= 0:
        first = kept[0]
        old = (NOW + 120) - first.timestamp > retention_ms
        assert not old or first.end_offset > bound or (first is segments[-1] and first.size == 0)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_each_codec_compresses_at_its_own_level(codec: str) -> None:
    config = LogConfig(compression_gzip_level=4, compression_lz4_level=5, compression_zstd_level=6)
    assert config.compression_level(codec) == {"gzip": 4, "lz4": 5, "zstd": 6}[codec]
    assert config.compression_level("snappy") is None


def test_what_stays_on_the_disk_is_what_is_said_or_all() -> None:
    assert LogConfig(local_retention_ms=3, local_retention_bytes=4).effective_local_retention == (3, 4)
    assert LogConfig(retention_ms=5, retention_bytes=6).effective_local_retention == (5, 6)
