"""What a log takes, what it refuses with which code, and what it stores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.records import (
    Record,
    build_batch,
    end_txn_marker,
    iter_batches,
    parse_header,
)
from protocol.work import finish
from storage import unified_log
from storage.loader import snapshot_offsets, snapshot_path
from storage.policy import LogConfig
from storage.producers import decode_producers, encode_producers
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    NOW,
    append,
    append_short,
    batch_of,
    directory_bytes,
    headers_of,
    log_on,
    read_all,
    records_of,
)

HOUR = 3_600_000


def refused(log: UnifiedLog, batch: bytearray, **options: Any) -> ErrorCode:
    end, size = log.log_end_offset, log.size
    with pytest.raises(KafkaError) as caught:
        append(log, batch, **options)
    assert (log.log_end_offset, log.size) == (end, size), "a refused batch leaves no trace"
    return caught.value.code


def test_offsets_and_epoch_are_stamped_and_nothing_else(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    batches = [batch_of(3), batch_of(2)]
    originals = [bytes(batch) for batch in batches]
    assert [append(log, batch, epoch=4).first_offset for batch in batches] == [0, 3]
    stored = read_all(log)
    for (at, header), original in zip(iter_batches(stored), originals, strict=True):
        batch = stored[at : at + header.size]
        assert batch[8:12] + batch[16:] == original[8:12] + original[16:]
        assert header.leader_epoch == 4
    assert [header.base_offset for header in headers_of(log)] == [0, 3]


def test_several_batches_reach_the_file_with_one_flush(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    for _ in range(3):
        batch = batch_of(2)
        log.append(batch, parse_header(batch), 0, leader_epoch=0, now_ms=NOW)
    assert log.segments[-1].file.size() == 0
    log.flush_staged()
    assert log.segments[-1].file.size() == log.size
    assert len(headers_of(log)) == 3


@pytest.mark.parametrize(
    "config",
    [
        LogConfig(),
        LogConfig(compression_type="gzip"),
        LogConfig(message_timestamp_type="LogAppendTime"),
        LogConfig(max_message_bytes=60),
    ],
)
def test_an_own_batch_is_stored_as_one_that_is_checked(tmp_path: Path, config: LogConfig) -> None:
    logs = [log_on(tmp_path / name, config=config) for name in ("own", "checked")]
    outcomes: list[Any] = []
    for log in logs:
        for count in (1, 2):
            try:
                if log is logs[0]:
                    outcomes.append(log.append_own(batch_of(count), leader_epoch=3, now_ms=NOW + 5))
                else:
                    outcomes.append(
                        log.append_records(
                            batch_of(count), leader_epoch=3, now_ms=NOW + 5, origin="coordinator"
                        )
                    )
            except KafkaError as error:
                outcomes.append(error.code)
    assert outcomes[:2] == outcomes[2:]
    read = [[] if log.log_end_offset == 0 else records_of(log) for log in logs]
    assert read[0] == read[1]


def test_size_limits(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(max_message_bytes=500))
    assert refused(log, batch_of(1, value_bytes=600)) is ErrorCode.message_too_large
    log = log_on(tmp_path / "b", config=LogConfig(segment_bytes=500))
    assert refused(log, batch_of(1, value_bytes=600)) is ErrorCode.record_list_too_large


def test_timestamp_bounds(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(timestamp=NOW + HOUR))
    append(log, batch_of(timestamp=0))
    append(log, batch_of(timestamp=-1))
    assert refused(log, batch_of(timestamp=NOW + HOUR + 1)) is ErrorCode.invalid_timestamp
    log.set_config(LogConfig(message_timestamp_before_max_ms=1000))
    assert refused(log, batch_of(timestamp=NOW - 1001)) is ErrorCode.invalid_timestamp
    append(log, batch_of(timestamp=NOW - 1000))


shapes = st.tuples(
    st.integers(1, 3),
    st.integers(0, 200),
    st.sampled_from([-1, 0, NOW - 6 * HOUR, NOW - HOUR, NOW, NOW, NOW, NOW + 1, NOW + 2 * HOUR]),
    st.none() | st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 6)),
    st.sampled_from([0, 0, 0, 1]),
    st.booleans(),
)


@settings(deadline=None)
@given(
    st.lists(shapes, max_size=40),
    st.sampled_from(
        [
            LogConfig(segment_bytes=600, index_interval_bytes=100),
            LogConfig(max_message_bytes=250, segment_index_bytes=32, index_interval_bytes=0),
            LogConfig(segment_ms=HOUR, message_timestamp_before_max_ms=5 * HOUR),
        ]
    ),
)
def test_the_short_way_in_leaves_what_append_leaves(shapes: list[Any], config: LogConfig) -> None:
    with tempfile.TemporaryDirectory() as root:
        short, whole = (log_on(f"{root}/{name}", config=config) for name in ("short", "whole"))
        epoch = 0
        for count, size, timestamp, producer, newer, flushes in shapes:
            epoch += newer
            batch = batch_of(count, value_bytes=size, timestamp=timestamp, producer=producer)
            outcomes = []
            for log in (short, whole):
                try:
                    if log is short:
                        outcomes.append(append_short(log, bytearray(batch), epoch=epoch))
                    else:
                        header = parse_header(batch)
                        appended = log.append(bytearray(batch), header, 0, leader_epoch=epoch, now_ms=NOW)
                        outcomes.append((appended.first_offset, appended.last_offset))
                except KafkaError as error:
                    outcomes.append((error.code, error.message))
                if flushes:
                    log.flush_staged()
            assert outcomes[0] == outcomes[1]
        assert short.producers() == whole.producers()
        assert short.clean_state().epochs == whole.clean_state().epochs
        for log in (short, whole):
            log.close()
        assert directory_bytes(short.directory) == directory_bytes(whole.directory)


# --- idempotence ---


def test_duplicates_of_the_last_five_batches_get_their_offsets(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    for sequence in range(0, 14, 2):
        append(log, batch_of(2, producer=(1, 0, sequence)))
    for sequence in range(4, 14, 2):
        appended = append(log, batch_of(2, producer=(1, 0, sequence)))
        assert (appended.duplicate, appended.first_offset, appended.last_offset) == (
            True,
            sequence,
            sequence + 1,
        )
    assert refused(log, batch_of(2, producer=(1, 0, 2))) is ErrorCode.out_of_order_sequence_number
    assert refused(log, batch_of(1, producer=(1, 0, 12))) is ErrorCode.out_of_order_sequence_number
    assert refused(log, batch_of(1, producer=(1, 0, 15))) is ErrorCode.out_of_order_sequence_number
    assert append(log, batch_of(1, producer=(1, 0, 14))).first_offset == 14


def test_epochs_of_a_producer(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(1, producer=(1, 3, 0)))
    assert refused(log, batch_of(1, producer=(1, 2, 1))) is ErrorCode.invalid_producer_epoch
    assert refused(log, batch_of(1, producer=(1, 4, 1))) is ErrorCode.out_of_order_sequence_number
    append(log, batch_of(1, producer=(1, 4, 0)))
    assert refused(log, batch_of(1, producer=(1, 3, 1))) is ErrorCode.invalid_producer_epoch


def test_an_unknown_producer_may_start_anywhere(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    assert append(log, batch_of(1, producer=(1, 3, 77))).first_offset == 0
    assert append(log, batch_of(1, producer=(1, 3, 78))).first_offset == 1


def test_sequences_wrap_around(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(3, producer=(1, 0, 0x7FFFFFFE)))
    assert log.producers()[0].last_sequence == 0
    duplicate = append(log, batch_of(3, producer=(1, 0, 0x7FFFFFFE)))
    assert duplicate.duplicate
    assert append(log, batch_of(1, producer=(1, 0, 1))).first_offset == 3


def test_silent_producers_expire_but_not_inside_a_transaction(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(1, producer=(1, 0, 0)))
    append(log, batch_of(1, producer=(2, 0, 0), transactional=True))
    assert finish(log.expire_producers(NOW + 86_399_999)) == 0
    assert finish(log.expire_producers(NOW + 86_400_000)) == 1
    assert [producer.producer_id for producer in log.producers()] == [2]
    assert append(log, batch_of(1, producer=(1, 0, 40))).first_offset == 2


# --- transactions ---


def marker(
    log: UnifiedLog, producer: int, *, commit: bool, coordinator_epoch: int = 0, epoch: int = 0
) -> Any:
    batch = end_txn_marker(
        commit=commit,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=NOW,
    )
    return log.append_records(batch, leader_epoch=0, now_ms=NOW, origin="coordinator")


def test_the_last_stable_offset_follows_open_and_unreplicated_transactions(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(2))
    append(log, batch_of(1, producer=(1, 0, 0), transactional=True))
    append(log, batch_of(1, producer=(2, 0, 0), transactional=True))
    assert log.last_stable_offset == 2
    marker(log, 1, commit=True)
    log.set_high_watermark(4)
    assert log.last_stable_offset == 2  # decided, but its marker is not replicated
    log.set_high_watermark(5)
    assert log.last_stable_offset == 3
    marker(log, 2, commit=False)
    log.set_high_watermark(6)
    assert log.last_stable_offset == 6
    assert log.aborted_in(0, 6) == [(2, 3)]
    assert log.aborted_in(0, 3) == []
    assert log.aborted_in(6, 9) == []


def test_a_plain_batch_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(1, producer=(1, 0, 0), transactional=True))
    assert refused(log, batch_of(1, producer=(1, 0, 1))) is ErrorCode.invalid_txn_state


def test_a_marker_of_a_fenced_coordinator_or_producer_is_refused(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, batch_of(1, producer=(1, 5, 0), transactional=True))
    marker(log, 1, commit=True, coordinator_epoch=3, epoch=5)
    for options, code in (
        ({"coordinator_epoch": 2, "epoch": 5}, ErrorCode.transaction_coordinator_fenced),
        ({"coordinator_epoch": 3, "epoch": 4}, ErrorCode.invalid_producer_epoch),
    ):
        with pytest.raises(KafkaError) as caught:
            marker(log, 1, commit=True, **options)
        assert caught.value.code is code
    assert log.log_end_offset == 2


# --- followers ---


def test_a_follower_takes_what_the_leader_stored(tmp_path: Path) -> None:
    leader, follower = log_on(tmp_path / "leader"), log_on(tmp_path / "follower")
    for index in range(4):
        append(leader, batch_of(2, producer=(1, 0, 2 * index)), epoch=index)
    append(leader, batch_of(1, producer=(2, 0, 0), transactional=True), epoch=4)
    leader.append_records(
        end_txn_marker(commit=False, producer_id=2, producer_epoch=0, coordinator_epoch=0, timestamp=NOW),
        leader_epoch=4,
        now_ms=NOW,
        origin="coordinator",
    )
    data = read_all(leader)
    appended = follower.append_as_follower(data)
    assert (appended.first_offset, appended.last_offset) == (0, leader.log_end_offset - 1)
    assert read_all(follower) == data
    assert follower.epochs == leader.epochs
    assert follower.producers() == leader.producers()
    assert follower.aborted_in(0, 100) == leader.aborted_in(0, 100)


def test_a_follower_refuses_what_does_not_follow(tmp_path: Path) -> None:
    follower = log_on(tmp_path)
    first = batch_of(2, base_offset=0, leader_epoch=3)
    follower.append_as_follower(first)
    damaged = batch_of(1, base_offset=3, leader_epoch=3)
    damaged[-1] ^= 1
    for bad in (
        first,
        batch_of(2, base_offset=1, leader_epoch=3),
        batch_of(1, base_offset=2, leader_epoch=2),
        batch_of(1, base_offset=2, leader_epoch=3) + damaged,
        bytearray(),
    ):
        with pytest.raises(CorruptBatch):
            follower.append_as_follower(bad)
        assert follower.log_end_offset == 2
    follower.append_as_follower(batch_of(1, base_offset=9, leader_epoch=3))  # compaction leaves gaps
    assert [record.offset for record in records_of(follower)] == [0, 1, 9]


# --- roll ---


def test_roll_by_size_time_and_index(tmp_path: Path) -> None:
    log = log_on(tmp_path / "size", config=LogConfig(segment_bytes=300))
    for _ in range(6):
        append(log, batch_of(1))
    assert all(segment.size <= 300 for segment in log.segments) and len(log.segments) > 1

    log = log_on(tmp_path / "time", config=LogConfig(segment_ms=1000))
    for timestamp in (NOW, NOW + 1000, NOW + 1001):
        append(log, batch_of(1, timestamp=timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 2]

    log = log_on(tmp_path / "clock", config=LogConfig(segment_ms=1000))
    for now_ms in (NOW, NOW + 1000, NOW + 1001):
        append(log, batch_of(1, timestamp=-1), now_ms=now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]

    log = log_on(tmp_path / "index", config=LogConfig(segment_index_bytes=36, index_interval_bytes=0))
    for index in range(10):
        append(log, batch_of(1, timestamp=NOW + index))
    assert len(log.segments) > 2


def test_roll_when_an_offset_no_longer_fits_the_segment(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    log.append_as_follower(batch_of(1, base_offset=0, leader_epoch=0))
    log.append_as_follower(batch_of(1, base_offset=(1 << 31) - 1, leader_epoch=0))
    log.append_as_follower(batch_of(1, base_offset=1 << 31, leader_epoch=0))
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 31]
    empty = log_on(tmp_path / "empty")
    empty.append_as_follower(batch_of(1, base_offset=1 << 40, leader_epoch=0))
    assert [segment.base_offset for segment in empty.segments] == [1 << 40]
    assert [record.offset for record in records_of(empty)] == [1 << 40]


def test_jitter_shortens_the_life_of_a_segment(tmp_path: Path) -> None:
    log = log_on(
        tmp_path,
        config=LogConfig(
            segment_ms=100_000, segment_jitter_ms=100_000, message_timestamp_after_max_ms=1 << 60
        ),
    )
    for index in range(300):
        append(log, batch_of(1, timestamp=NOW + 1000 * index))
    lives = [b.base_offset - a.base_offset for a, b in zip(log.segments, log.segments[1:], strict=False)]
    assert len(set(lives)) > 1


def test_max_timestamp_and_lookup_by_time(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(segment_bytes=400, index_interval_bytes=100))
    assert log.offset_of_max_timestamp() is None
    timestamps = [NOW, NOW + 50, NOW + 20, NOW + 90, NOW + 10, NOW + 90, NOW + 30]
    for timestamp in timestamps:
        append(log, batch_of(1, timestamp=timestamp), epoch=2)
    assert log.offset_of_max_timestamp() == (NOW + 90, 3, 2)
    for wanted in range(NOW - 5, NOW + 95, 5):
        at = next((index for index, timestamp in enumerate(timestamps) if timestamp >= wanted), None)
        expected = None if at is None else (timestamps[at], at, 2)
        assert log.offset_for_timestamp(wanted, 100) == expected
    assert log.offset_for_timestamp(NOW + 60, 3) is None


def test_records_keep_their_own_timestamps_inside_a_batch(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    append(log, build_batch([(b"k", b"v", (), NOW + delta) for delta in (0, 30, 10, 40)]))
    assert log.offset_for_timestamp(NOW + 5, 10) == (NOW + 30, 1, 0)
    assert log.offset_of_max_timestamp() == (NOW + 40, 3, 0)
    assert isinstance(records_of(log)[0], Record)


def test_a_snapshot_of_many_producers_is_written_after_the_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unified_log, "PRODUCERS_AT_ONCE", 0)
    log = log_on(tmp_path)
    append(log, batch_of(1, producer=(5, 0, 0)))
    end = log.log_end_offset
    log.roll(end, NOW)
    frozen = log.frozen
    assert frozen is not None and log.is_restless(NOW)
    append(log, batch_of(1, producer=(5, 0, 1)))
    log.write_frozen(frozen, finish(encode_producers(frozen.rows, frozen.note)))
    assert log.frozen is None
    table, _ = decode_producers(log.files.read(snapshot_path(log.directory, end)))
    assert [each.last_sequence for each in table.active()] == [0]


def test_no_snapshot_is_written_of_a_log_that_was_cut_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unified_log, "PRODUCERS_AT_ONCE", 0)
    log = log_on(tmp_path)
    append(log, batch_of(1, producer=(5, 0, 0)))
    end = log.log_end_offset
    log.roll(end, NOW)
    frozen = log.frozen
    assert frozen is not None
    log.truncate_to(0)
    log.write_frozen(frozen, finish(encode_producers(frozen.rows, frozen.note)))
    assert log.frozen is None
    assert end not in snapshot_offsets(log.files, log.directory)
