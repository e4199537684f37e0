"""What a log asks of batches into which it looks, and what it stores of them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from protocol.compression import Codec
from protocol.errors import ErrorCode, KafkaError
from protocol.records import Record, build_batch, crc_ok, iter_records, parse_header
from storage.policy import LogConfig
from storage.prepare import INLINE_BYTES, UNPACKED_BYTES, RecordsRejected
from storage.unified_log import UnifiedLog
from tests.storage.support import NOW, batch_of, headers_of, log_on, read_all, records_of, renew_crc

HOUR = 3_600_000


def general(log: UnifiedLog, batch: bytearray, **options: Any) -> Any:
    return log.append_records(bytes(batch), leader_epoch=0, now_ms=NOW, **options)


def crooked(*deltas: int, timestamp: int = NOW, **options: object) -> bytearray:
    """A batch whose header is in order and whose records have other offsets than it says."""
    batch = build_batch(
        [Record(delta, timestamp, b"k", b"v") for delta in deltas],
        last_offset=len(deltas) - 1,
        **options,  # type: ignore[arg-type]
    )
    assert parse_header(batch).count == len(deltas)
    return batch


def test_a_compacted_topic_refuses_records_without_a_key_by_index(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(cleanup_policy=("compact",)))
    assert log.needs_walk
    with pytest.raises(RecordsRejected) as caught:
        general(log, batch_of([(b"k", b"v"), (None, b"v"), (b"k", None), (None, None)]))
    assert caught.value.code is ErrorCode.invalid_record
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    assert log.log_end_offset == 0
    assert general(log, batch_of([(b"k", None)])).last_offset == 0


def test_log_append_time_rewrites_type_timestamp_and_crc(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(message_timestamp_type="LogAppendTime"))
    appended = general(log, batch_of(2, timestamp=5))
    assert appended.log_append_time == NOW
    header = headers_of(log)[0]
    assert header.is_log_append_time and header.max_timestamp == NOW
    assert crc_ok(read_all(log), 0, header)
    assert [record.timestamp for record in records_of(log)] == [NOW, NOW]
    assert log.offset_for_timestamp(NOW, 10) == (NOW, 0, 0)


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
def test_compression_type_rebuilds_other_codecs(tmp_path: Path, wanted: str, sent: Codec) -> None:
    log = log_on(tmp_path, config=LogConfig(compression_type=wanted))
    batch = batch_of(20, codec=sent, producer=(4, 0, 0))
    expected = [(record.key, record.value, record.timestamp) for record in iter_records(batch)]
    general(log, batch)
    header = headers_of(log)[0]
    assert header.codec == {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[wanted]
    assert (header.producer_id, header.base_sequence, header.count) == (4, 0, 20)
    assert [(record.key, record.value, record.timestamp) for record in records_of(log)] == expected
    duplicate = general(log, batch_of(20, codec=sent, producer=(4, 0, 0)))
    assert (duplicate.duplicate, duplicate.first_offset, duplicate.log_append_time) == (True, 0, NOW)


def test_full_validation_looks_at_every_record(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(record_validation="full"))
    late = [(b"k", b"v", (), NOW), (b"k", b"v", (), NOW + HOUR), (b"k", b"v", (), NOW)]
    general(log, build_batch(late))
    log.set_config(LogConfig(record_validation="full", message_timestamp_before_max_ms=10))
    with pytest.raises(RecordsRejected) as caught:
        general(log, build_batch([(b"k", b"v", (), NOW), (b"k", b"v", (), NOW - 11)]))
    assert caught.value.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in caught.value.record_errors] == [1]
    damaged = batch_of(2)
    damaged[61] = 0x7E
    renew_crc(damaged)
    with pytest.raises(KafkaError) as refusal:
        general(log, damaged)
    assert refusal.value.code is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("limit", ["before", "after"])
def test_limits_of_time_that_somebody_chose_hold_for_every_record(
    tmp_path: Path, limit: str, codec: Codec
) -> None:
    """The header of a batch names two times, whatever its records say."""
    log = log_on(tmp_path)
    far = NOW - 11 if limit == "before" else NOW + 11
    batch = build_batch([(b"k", b"v", (), each) for each in (NOW, far, NOW, far)], codec=codec)
    struct.pack_into(">q", batch, 35, NOW)  # the max timestamp
    renew_crc(batch)
    assert not log.needs_walk
    general(log, batch)
    log.set_config(LogConfig(**{f"message_timestamp_{limit}_max_ms": 10}))
    assert log.needs_walk
    with pytest.raises(RecordsRejected) as caught:
        general(log, batch)
    assert caught.value.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    assert general(log, build_batch([(b"k", b"v", (), NOW)], codec=codec)).first_offset == 4
    log.set_config(LogConfig(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=10))
    assert general(log, batch).first_offset == 5


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_few_bytes_that_become_many_are_unpacked_elsewhere(tmp_path: Path, codec: Codec) -> None:
    log = log_on(tmp_path, config=LogConfig(record_validation="full"))

    def tasks(value_bytes: int) -> int:
        batch = bytes(build_batch([(None, bytes(value_bytes), (), NOW)], codec=codec))
        assert len(batch) <= INLINE_BYTES
        return sum(1 for task in log.prepare(batch, now_ms=NOW) if task is not None and task.run() is None)

    assert tasks(1_000) == tasks(UNPACKED_BYTES - 100) == 0
    assert tasks(UNPACKED_BYTES) == tasks(500_000) == 1


def test_a_bad_crc_or_two_batches_are_refused_by_the_general_path(tmp_path: Path) -> None:
    log = log_on(tmp_path)
    damaged = batch_of(1)
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        general(log, damaged)
    assert caught.value.code is ErrorCode.corrupt_message
    with pytest.raises(KafkaError) as caught:
        general(log, batch_of(1) + batch_of(1))
    assert caught.value.code is ErrorCode.invalid_record
    assert general(log, batch_of(1) + batch_of(2), origin="coordinator").last_offset == 2


# --- records that are not what their header says ---


@pytest.mark.parametrize("deltas", [(-5,), (7,), (0, 2, 1), (1, 0)], ids=str)
@pytest.mark.parametrize(
    "config",
    [LogConfig(compression_type="gzip"), LogConfig(cleanup_policy=("compact",))],
    ids=["codec", "keys"],
)
def test_where_records_are_read_their_offsets_must_add_up(
    tmp_path: Path, config: LogConfig, deltas: tuple[int, ...]
) -> None:
    log = log_on(tmp_path, config=config)
    log.append_records(batch_of(3), leader_epoch=0, now_ms=NOW)
    with pytest.raises(KafkaError) as refused:
        log.append_records(crooked(*deltas), leader_epoch=0, now_ms=NOW)
    assert refused.value.code is ErrorCode.invalid_record
    assert log.log_end_offset == 3


def test_where_records_are_read_their_own_timestamps_count(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(cleanup_policy=("compact",)))
    batch = batch_of(1, timestamp=NOW + 86_400_000)
    struct.pack_into(">q", batch, 35, NOW)  # the header claims less
    renew_crc(batch)
    with pytest.raises(KafkaError) as refused:
        log.append_records(batch, leader_epoch=0, now_ms=NOW)
    assert refused.value.code is ErrorCode.invalid_timestamp


def test_a_bomb_on_a_topic_whose_records_are_read_is_too_large(tmp_path: Path) -> None:
    log = log_on(tmp_path, config=LogConfig(cleanup_policy=("compact",)))
    bomb = build_batch([(b"k", bytes(20 << 20), (), NOW)], codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as refused:
        log.append_records(bomb, leader_epoch=0, now_ms=NOW)
    assert refused.value.code is ErrorCode.message_too_large


def test_a_timestamp_past_all_time_is_refused_where_records_are_rebuilt(tmp_path: Path) -> None:
    config = LogConfig(compression_type="gzip", message_timestamp_type="LogAppendTime")
    log = log_on(tmp_path, config=config)
    batch = build_batch([(b"a", b"1", (), 1 << 62)], delete_horizon_ms=0)
    struct.pack_into(">h", batch, 21, 0)
    struct.pack_into(">q", batch, 27, 1 << 62)
    renew_crc(batch)
    with pytest.raises(KafkaError) as refusal:
        log.append_records(batch, leader_epoch=0, now_ms=NOW)
    assert refusal.value.code is ErrorCode.invalid_record
    assert log.log_end_offset == 0
