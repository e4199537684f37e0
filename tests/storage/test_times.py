"""Looking for a record by its time in one batch: what is found, and what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.compression import Codec, DecompressedTooLarge, compress, decompress_apart
from protocol.records import build_batch, iter_records, iter_times, parse_header, records_data
from storage import times
from storage.prepare import Task
from storage.times import record_at_time, run_here

ROWS = st.lists(
    st.tuples(st.none() | st.binary(max_size=9), st.binary(max_size=200), st.integers(0, 50)), min_size=1
)


def batch_of(rows: list[tuple[bytes | None, bytes, int]], codec: Codec) -> bytes:
    records = [(key, value, (("h", key),), 1_000 + time) for key, value, time in rows]
    return bytes(build_batch(records, base_offset=7, codec=codec))


@given(ROWS, st.sampled_from(list(Codec)), st.integers(950, 1_060), st.integers(0, 20))
def test_the_first_record_of_that_time_is_found(
    rows: list[tuple[bytes | None, bytes, int]], codec: Codec, timestamp: int, start: int
) -> None:
    batch = batch_of(rows, codec)
    header = parse_header(batch)
    records = list(iter_records(batch))
    assert list(iter_times(records_data(batch, 0, header), header)) == [
        (record.offset, record.timestamp) for record in records
    ]
    at_time = [record for record in records if record.timestamp >= timestamp]
    found = run_here(record_at_time(batch, timestamp, start))
    if not at_time:
        assert found == (header.max_timestamp, max(7, start), header.leader_epoch)
        return
    expected = [(record.timestamp, record.offset, -1) for record in at_time if record.offset >= start]
    assert found == (expected[0] if expected else None)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_grows_is_unpacked_in_a_task(codec: Codec) -> None:
    batch = batch_of([(None, bytes(1 << 20), 0), (None, b"", 5)], codec)
    assert isinstance(next(record_at_time(batch, 1_005, 0)), Task)
    assert run_here(record_at_time(batch, 1_005, 0)) == (1_005, 8, -1)


def test_a_small_batch_needs_no_task() -> None:
    batch = batch_of([(None, bytes(1_000), 0)], Codec.ZSTD)
    assert list(record_at_time(batch, 1_000, 0)) == []


def test_one_that_becomes_too_much_is_taken_at_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "UNPACKED_BYTES_MAX", 1 << 20)
    batch = batch_of([(None, bytes(2 << 20), 0), (None, b"", 5)], Codec.ZSTD)
    assert run_here(record_at_time(batch, 1_002, 0)) == (1_005, 7, -1)


@pytest.mark.parametrize("codec", list(Codec))
def test_apart_it_becomes_the_same(codec: Codec) -> None:
    data = bytes(range(256)) * 500
    assert bytes(decompress_apart(codec, compress(codec, data), len(data))) == data
    if codec not in (Codec.NONE, Codec.SNAPPY):
        with pytest.raises(DecompressedTooLarge):
            decompress_apart(codec, compress(codec, data), len(data) - 1)


def test_many_records_are_looked_through_in_steps() -> None:
    batch = batch_of([(None, b"", 0)] * 1_000, Codec.NONE)
    assert len(list(record_at_time(batch, 2_000, 0))) == 4
