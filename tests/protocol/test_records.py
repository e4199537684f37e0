"""Record batches against what other clients make of them, every refusal of Kafka's, and hostile bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from struct import unpack_from
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.checksum import crc32c
from protocol.compression import DECOMPRESSED_BYTES_FREE, Codec, compress
from protocol.errors import CorruptBatch, ErrorCode, KafkaError
from protocol.primitives import pack_uvarint
from protocol.records import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    COUNT_AT,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_LAYOUT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    OFFSETS,
    OVERHEAD,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    STAMP,
    BatchHeader,
    ControlType,
    Record,
    build_batch,
    build_pairs_in_steps,
    check_produced,
    check_records,
    crc_of,
    crc_ok,
    end_txn_marker,
    iter_batches,
    iter_records,
    lone_record_size,
    next_sequence,
    parse_control,
    parse_header,
    restamp_append_time,
    stamp,
)
from protocol.work import finish

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

New = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]

RECORDS: list[New] = [
    (b"key", b"value", [], 1_700_000_000_000),
    (None, b"v" * 300, [("h", b"1"), ("h", None)], 1_700_000_000_005),
    (b"", None, [("", b"")], 1_699_999_999_990),
    (b"k" * 200, b"", [], 1_700_000_100_000),
]

NEW_RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(
            st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | st.binary(max_size=70)),
            max_size=3,
        ),
        st.integers(-1, 1 << 45),
    ),
    min_size=1,
    max_size=8,
)


def plain(batch: Any) -> list[New]:
    return [(r.key, r.value, list(r.headers), r.timestamp) for r in iter_records(batch)]


def patched(batch: bytes | bytearray, at: int, data: bytes, *, renew_crc: bool = True) -> bytearray:
    out = bytearray(batch)
    out[at : at + len(data)] = data
    if renew_crc:
        out[17:21] = crc_of(out, 0, len(out)).to_bytes(4, "big")
    return out


def resized(batch: bytes | bytearray, section: bytes) -> bytearray:
    out = bytearray(batch[:HEADER_SIZE]) + section
    return patched(out, 8, (len(out) - 12).to_bytes(4, "big"))


# --- there and back ---


@given(NEW_RECORDS, st.sampled_from(Codec), st.integers(0, 1 << 50))
def test_built_batches_are_read_back(new: list[New], codec: Codec, base_offset: int) -> None:
    batch = build_batch(new, codec=codec, base_offset=base_offset, leader_epoch=3)
    header = parse_header(batch)
    assert [tuple(one) for one in plain(batch)] == [(k, v, list(h), t) for k, v, h, t in new]
    assert [r.offset for r in iter_records(batch)] == list(range(base_offset, header.next_offset))
    assert (header.size, header.count, header.codec) == (len(batch), len(new), codec)
    assert header.max_timestamp == max(t for *_, t in new)
    assert crc_ok(batch, 0, header)
    assert [(r.offset, r.key) for r in iter_records(batch)] == [
        (base_offset + i, one[0]) for i, one in enumerate(new)
    ]
    assert [at for at, _ in iter_batches(batch + batch)] == [0, len(batch)]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("builder", [DefaultRecordBatchBuilder, KafkaPythonBuilder])
def test_batches_of_other_clients_are_read(builder: Callable[..., Any], codec: Codec) -> None:
    made = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=True,
        producer_id=77,
        producer_epoch=2,
        base_sequence=5,
        batch_size=1 << 20,
    )
    for offset, (key, value, headers, timestamp) in enumerate(RECORDS * 50):
        made.append(offset, timestamp, key, value, list(headers))
    batch = bytes(made.build())
    assert plain(batch) == [(k, v, list(h), t) for k, v, h, t in RECORDS * 50]
    ((_, header),) = check_produced(batch, version=9, walk=True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 5)
    assert (header.last_sequence, header.is_transactional, header.producer_id) == (204, True, 77)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("reader", [DefaultRecordBatch, KafkaPythonBatch])
def test_other_clients_read_our_batches(reader: Callable[..., Any], codec: Codec) -> None:
    batch = build_batch(RECORDS * 50, codec=codec, base_offset=1000)
    theirs = reader(bytes(batch))
    assert theirs.validate_crc()
    got = [(r.offset, r.key, r.value, list(r.headers), r.timestamp) for r in theirs]
    assert got == [(1000 + i, k, v, list(h), t) for i, (k, v, h, t) in enumerate(RECORDS * 50)]


def test_compaction_keeps_offsets_and_range() -> None:
    kept = [Record(12, 5, b"k", b"v"), Record(17, 9, b"l", None)]
    batch = build_batch(kept, base_offset=10, last_offset=20, delete_horizon_ms=1234)
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.count) == (10, 20, 2)
    assert header.delete_horizon_ms == header.base_timestamp == 1234
    assert list(iter_records(batch)) == kept
    empty = build_batch([], base_offset=10, last_offset=20, codec=Codec.ZSTD)
    assert list(iter_records(empty)) == []
    assert (parse_header(empty).last_offset, parse_header(empty).codec) == (20, Codec.NONE)
    assert list(iter_records(patched(empty, 22, bytes([Codec.ZSTD])))) == []
    assert parse_header(build_batch(kept, base_offset=10)).delete_horizon_ms is None
    with pytest.raises(ValueError, match="last_offset"):
        build_batch([])


def test_append_time_counts_for_every_record() -> None:
    batch = build_batch(RECORDS)
    restamp_append_time(batch, 42)
    header = parse_header(batch)
    assert (header.is_log_append_time, header.max_timestamp, header.count) == (True, 42, len(RECORDS))
    assert crc_ok(batch, 0, header)
    assert {record.timestamp for record in iter_records(batch)} == {42}
    assert build_batch(RECORDS, log_append_time=42) == batch


def test_stamping_touches_base_offset_and_epoch_only() -> None:
    batch = build_batch(RECORDS)
    data = bytearray(b"head" + batch)
    stamp(memoryview(data), 4, 1 << 40, 9)
    header = parse_header(data, 4)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 9)
    assert crc_ok(data, 4, header)
    assert data[:4] == b"head"
    assert data[12:16] == batch[8:12]
    assert data[20:] == batch[16:]


def test_sequences_wrap() -> None:
    assert next_sequence((1 << 31) - 1, 1) == 0
    assert next_sequence((1 << 31) - 3, 5) == 2
    assert parse_header(build_batch(RECORDS)).last_sequence == -1
    assert parse_header(build_batch(RECORDS, producer_id=1, base_sequence=(1 << 31) - 2)).last_sequence == 1


def test_end_transaction_markers() -> None:
    for commit in (True, False):
        batch = end_txn_marker(
            commit=commit, producer_id=5, producer_epoch=1, coordinator_epoch=9, timestamp=100
        )
        header = parse_header(batch)
        assert header.is_control
        assert header.is_transactional
        (record,) = iter_records(batch)
        assert parse_control(record) == (ControlType.COMMIT if commit else ControlType.ABORT, 0, 9)
        assert len(batch) == 78, "as long as Kafka's"


@given(st.booleans(), st.integers(0, 1 << 60), st.integers(0, 32767), st.integers(0, (1 << 31) - 1))
def test_markers_are_what_the_builder_makes(
    commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    key = (0).to_bytes(2, "big") + int(commit).to_bytes(2, "big")
    value = (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big")
    assert end_txn_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=100,
        base_offset=7,
        leader_epoch=2,
    ) == build_batch(
        [Record(7, 100, key, value)],
        base_offset=7,
        leader_epoch=2,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def test_control_records_of_other_types_and_broken_ones() -> None:
    assert parse_control(Record(0, 0, b"\0\0\0\2", b"leader change")) == (2, 0, -1)
    assert parse_control(Record(0, 0, b"\0\1\0\1later", b"\0\1\0\0\0\3later")) == (1, 1, 3)
    for key, value in (
        (None, b""),
        (b"\0\0\0", b""),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\1", b"\0\0"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\0"),
    ):
        with pytest.raises(CorruptBatch):
            parse_control(Record(0, 0, key, value))


# --- what producers send ---


@given(
    pairs=st.lists(
        st.tuples(st.binary(max_size=99), st.none() | st.binary(max_size=99)), min_size=1, max_size=99
    ),
    timestamp=st.integers(0, 1 << 50),
    codec=st.sampled_from((Codec.NONE, Codec.LZ4)),
    producer=st.sampled_from(({}, {"producer_id": 7, "producer_epoch": 2, "transactional": True})),
)
def test_pairs_of_one_time_make_the_batch_that_records_make(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int, codec: Codec, producer: dict[str, Any]
) -> None:
    rows = [(key, value, (), timestamp) for key, value in pairs]
    made = finish(build_pairs_in_steps(pairs, timestamp, codec=codec, **producer))
    assert made == build_batch(rows, codec=codec, **producer)


GOOD = build_batch(RECORDS)
IDEMPOTENT = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=0)

REFUSED: dict[str, tuple[bytes | bytearray | None, ErrorCode]] = {
    "null": (None, ErrorCode.invalid_record),
    "empty": (b"", ErrorCode.invalid_record),
    "11 bytes": (GOOD[:11], ErrorCode.invalid_record),
    "16 bytes": (GOOD[:16], ErrorCode.invalid_record),
    "cut by one byte": (GOOD[:-1], ErrorCode.invalid_record),
    "two batches": (GOOD + GOOD, ErrorCode.invalid_record),
    "a second one that cannot be": (GOOD + bytes(12), ErrorCode.corrupt_message),
    "batch length 13": (patched(GOOD, 8, b"\0\0\0\x0d"), ErrorCode.corrupt_message),
    "batch length -1": (patched(GOOD, 8, b"\xff\xff\xff\xff"), ErrorCode.corrupt_message),
    "magic 3": (patched(GOOD, 16, b"\3"), ErrorCode.corrupt_message),
    "magic -1": (patched(GOOD, 16, b"\xff"), ErrorCode.corrupt_message),
    "magic 1": (patched(GOOD, 16, b"\1"), ErrorCode.invalid_record),
    "magic 0": (patched(GOOD, 16, b"\0"), ErrorCode.invalid_record),
    "smaller than a header": (patched(GOOD, 8, b"\0\0\0\x30")[:60], ErrorCode.corrupt_message),
    "wrong CRC": (patched(GOOD, 17, b"abcd", renew_crc=False), ErrorCode.corrupt_message),
    "flipped byte": (patched(GOOD, 70, bytes([GOOD[70] ^ 1]), renew_crc=False), ErrorCode.corrupt_message),
    "base offset 1": (patched(GOOD, 0, b"\0\0\0\0\0\0\0\1"), ErrorCode.invalid_record),
    "count 0": (patched(GOOD, 57, b"\0\0\0\0"), ErrorCode.invalid_record),
    "count -1": (patched(GOOD, 57, b"\xff\xff\xff\xff"), ErrorCode.invalid_record),
    "count too large": (patched(GOOD, 57, b"\0\0\0\5"), ErrorCode.invalid_record),
    "last offset delta too large": (patched(GOOD, 23, b"\0\0\0\4"), ErrorCode.invalid_record),
    "last offset delta -1, count 0": (
        patched(patched(GOOD, 23, b"\xff\xff\xff\xff"), 57, b"\0\0\0\0"),
        ErrorCode.invalid_record,
    ),
    "control": (build_batch(RECORDS, control=True), ErrorCode.invalid_record),
    "log append time": (build_batch(RECORDS, log_append_time=5), ErrorCode.invalid_timestamp),
    "producer without sequence": (build_batch(RECORDS, producer_id=1), ErrorCode.invalid_record),
    "codec 5": (patched(GOOD, 22, b"\5"), ErrorCode.invalid_record),
    "codec 7": (patched(GOOD, 22, b"\7"), ErrorCode.invalid_record),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_record_sets(case: str) -> None:
    data, code = REFUSED[case]
    with pytest.raises(KafkaError) as caught:
        check_produced(data, version=9)
    assert caught.value.code is code


def test_good_record_sets_pass() -> None:
    for batch in (GOOD, IDEMPOTENT, build_batch(RECORDS, codec=Codec.GZIP)):
        for buffer in (bytes(batch), batch, memoryview(batch)):
            assert check_produced(buffer, version=3, walk=True) == [(0, parse_header(batch))]


def test_the_beginning_of_a_second_batch_is_cut_off_as_kafka_does() -> None:
    for extra in (1, 11, 16, len(GOOD) - 1):
        ((_, header),) = check_produced(GOOD + GOOD[:extra])
        assert header.size == len(GOOD)


def test_zstd_needs_produce_7() -> None:
    batch = build_batch(RECORDS, codec=Codec.ZSTD)
    check_produced(batch, version=7)
    with pytest.raises(KafkaError) as caught:
        check_produced(batch, version=6)
    assert caught.value.code is ErrorCode.unsupported_compression_type


def test_size_is_judged_before_the_crc() -> None:
    broken = patched(GOOD, 17, b"abcd", renew_crc=False)
    check_produced(GOOD, max_message_bytes=len(GOOD))
    with pytest.raises(KafkaError) as caught:
        check_produced(broken, max_message_bytes=len(GOOD) - 1)
    assert caught.value.code is ErrorCode.message_too_large


# --- records that do not add up ---

ONE = build_batch([(b"k", b"v", [("h", b"x")], 0)])
SECTION = bytes(ONE[HEADER_SIZE:])  # size, attributes, time, offset, 1 "k", 1 "v", 1 header: 1 "h", 1 "x"

BAD_SECTIONS = {
    "empty": b"",
    "cut": SECTION[:-1],
    "a byte left over": SECTION + b"\0",
    "size too small": bytes([SECTION[0] - 2]) + SECTION[1:],
    "size too large": bytes([SECTION[0] + 2]) + SECTION[1:] + b"\0",
    "negative size": b"\1" + SECTION[1:],
    "size of 6 bytes": b"\x80\x80\x80\x80\x80\0" + SECTION[1:],
    "offset delta 1": SECTION[:3] + b"\2" + SECTION[4:],
    "key beyond the record": SECTION[:4] + b"\x40" + SECTION[5:],
    "value beyond the record": SECTION[:6] + b"\x40" + SECTION[7:],
    "negative header count": SECTION[:8] + b"\1" + SECTION[9:],
    "more headers than bytes": SECTION[:8] + b"\x40" + SECTION[9:],
    "one header too many": SECTION[:8] + b"\4" + SECTION[9:],
    "header without a key": SECTION[:9] + b"\1" + SECTION[10:],
    "header value beyond the record": SECTION[:11] + b"\x40" + SECTION[12:],
    "timestamp of 11 bytes": b"\x40" + SECTION[1:2] + b"\x80" * 10 + b"\1" + SECTION[3:] + bytes(20),
    "timestamp beyond 63 bits": bytes([SECTION[0] + 18])
    + SECTION[1:2]
    + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    + SECTION[3:],
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("case", BAD_SECTIONS)
def test_records_that_do_not_add_up(case: str, codec: Codec) -> None:
    section = compress(codec, BAD_SECTIONS[case])
    batch = patched(resized(ONE, section), 22, bytes([codec]))
    is_seen = codec is Codec.NONE and case in SEEN_UNREAD
    for walk in (False, True):
        with pytest.raises(KafkaError) if walk or is_seen else nullcontext() as caught:
            check_produced(batch, walk=walk)
        assert caught is None or caught.value.code is ErrorCode.invalid_record


SEEN_UNREAD = {
    "empty",
    "cut",
    "a byte left over",
    "size too small",
    "negative size",
    "size of 6 bytes",
    "timestamp of 11 bytes",
}
"""Where the only record does not fill the batch."""


def counted(batch: bytearray, count: int) -> bytearray:
    """The batch with another count, and offsets that go with it."""
    return patched(
        patched(batch, 23, (count - 1).to_bytes(4, "big", signed=True)), 57, count.to_bytes(4, "big")
    )


@pytest.mark.parametrize("codec", Codec)
def test_a_count_that_the_bytes_cannot_hold(codec: Codec) -> None:
    """One batch of 61 bytes would take 2³¹ offsets otherwise."""
    batch = build_batch([(None, None, (), 0)], codec=codec)
    check_produced(batch)
    for count in (2**31 - 1, 10_000_000):
        with pytest.raises(KafkaError, match="records in") as caught:
            check_produced(counted(batch, count))
        assert caught.value.code is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", Codec)
def test_the_smallest_records_are_taken_in_any_codec(codec: Codec) -> None:
    for count in (1, 2, 10):
        check_produced(build_batch([(None, None, (), 0)] * count, codec=codec))
    # equal ones, which no producer sends, compress best; nothing here reads their offsets
    record = build_batch([(None, None, (), 0)])[HEADER_SIZE:]
    batch = resized(ONE, compress(codec, bytes(record) * 200_000))
    check_produced(counted(patched(batch, 22, bytes([codec])), 200_000))


@given(st.integers(0, 70_000))
def test_the_size_of_a_lone_record_fills_its_section(section: int) -> None:
    size_field = lone_record_size(section)
    if size_field is None:
        assert section in (0, 65, 8194)
    else:
        assert size_field == pack_uvarint((section - len(size_field)) << 1)


def test_a_first_record_fills_the_batch_if_and_only_if_it_is_alone() -> None:
    one = build_batch([(b"k", b"v" * 100, (), 0)])
    with pytest.raises(KafkaError, match="first record"):
        check_produced(counted(one, 2))
    two = build_batch([(b"k", b"v" * 100, (), 0)] * 2)
    with pytest.raises(KafkaError, match="first record"):
        check_produced(counted(two, 1))
    wide = bytes(one[HEADER_SIZE : HEADER_SIZE + 2])
    padded = bytes([wide[0], wide[1] | 0x80, 0]) + bytes(one[HEADER_SIZE + 2 :])
    check_produced(resized(one, padded))  # a size field may be longer than it must


def test_timestamps_that_would_overflow() -> None:
    batch = patched(ONE, 27, b"\x7f" + bytes(7))
    with pytest.raises(CorruptBatch, match="timestamp"):
        list(iter_records(batch))


@given(st.binary(max_size=60), st.integers(-1, 5))
def test_any_bytes_for_records_give_records_or_corrupt(section: bytes, count: int) -> None:
    batch = patched(resized(ONE, section), 57, count.to_bytes(4, "big", signed=True))
    try:
        got = list(iter_records(batch))
    except CorruptBatch:
        return
    assert len(got) == count


@given(NEW_RECORDS, st.sampled_from(Codec), st.data())
@settings(max_examples=200)
def test_mutated_batches_give_records_or_corrupt(new: list[New], codec: Codec, data: st.DataObject) -> None:
    batch = build_batch(new, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    try:
        for record in iter_records(batch):
            assert isinstance(record, Record)
    except CorruptBatch:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_for_a_record_set_give_batches_or_corrupt(data: bytes) -> None:
    try:
        assert sum(header.size for _, header in iter_batches(data)) == len(data)
    except CorruptBatch:
        pass
    try:
        check_produced(data, version=9, walk=True)
    except KafkaError:
        pass


@given(NEW_RECORDS, st.data())
def test_one_flipped_bit_is_found(new: list[New], data: st.DataObject) -> None:
    batch = build_batch(new)
    bit = data.draw(st.integers(16 * 8, len(batch) * 8 - 1))  # magic onwards: what a CRC or a bound covers
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBatch):
        list(iter_batches(batch))


def test_stored_batches_are_checked_where_they_are_bad() -> None:
    for bad in (patched(GOOD, 16, b"\1"), patched(GOOD, 8, b"\0\0\0\x20"), GOOD[:-1], GOOD[:40]):
        got = []
        with pytest.raises(CorruptBatch) as caught:
            for at, _ in iter_batches(GOOD + bad):
                got.append(at)  # what came before the error
        assert got == [0]
        assert caught.value.at == len(GOOD)
    negative = patched(GOOD, 0, b"\xff" * 8)
    with pytest.raises(CorruptBatch, match="offsets"):
        list(iter_batches(negative))


# --- small things ---


def test_a_bomb_in_a_batch_is_too_large_for_kafka_too() -> None:
    bomb = bytes(cramjam.zstd.compress(bytes(DECOMPRESSED_BYTES_FREE + 1)))
    batch = patched(resized(ONE, bomb), 22, bytes([Codec.ZSTD]))
    with pytest.raises(KafkaError) as caught:
        check_produced(batch, walk=True)
    assert caught.value.code is ErrorCode.message_too_large


def test_a_short_header_is_corrupt() -> None:
    with pytest.raises(CorruptBatch) as caught:
        parse_header(GOOD[:60])
    assert str(caught.value) == "at 0: 60 bytes are no batch header"
    assert isinstance(parse_header(GOOD), BatchHeader)


def test_sections_beyond_the_buffer_are_corrupt() -> None:
    with pytest.raises(CorruptBatch):
        list(iter_records(GOOD[:-1]))
    with pytest.raises(KafkaError):
        check_records(GOOD[:-1], 0, parse_header(GOOD))


def test_the_layout_has_every_field_where_it_is_named() -> None:
    batch = build_batch(
        RECORDS, base_offset=7, leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=5
    )
    layout = [
        (BASE_OFFSET_AT, "q", 7),
        (LENGTH_AT, "i", len(batch) - OVERHEAD),
        (LEADER_EPOCH_AT, "i", 3),
        (MAGIC_AT, "b", MAGIC),
        (CRC_AT, "I", crc32c(batch[CRC_FROM:])),
        (ATTRIBUTES_AT, "h", 0),
        (LAST_OFFSET_DELTA_AT, "i", len(RECORDS) - 1),
        (BASE_TIMESTAMP_AT, "q", RECORDS[0][3]),
        (MAX_TIMESTAMP_AT, "q", RECORDS[3][3]),
        (PRODUCER_ID_AT, "q", 9),
        (PRODUCER_EPOCH_AT, "h", 2),
        (BASE_SEQUENCE_AT, "i", 5),
        (COUNT_AT, "i", len(RECORDS)),
    ]
    assert "".join(kind for _, kind, _ in layout) == HEADER_LAYOUT
    for at, kind, value in layout:
        assert unpack_from(f">{kind}", batch, at) == (value,)
    assert HEADER.unpack_from(batch) == parse_header(batch)
    assert STAMP.unpack_from(batch) == (7, len(batch) - OVERHEAD, 3)
    assert OFFSETS.unpack_from(batch) == (7, len(RECORDS) - 1)
    assert HEADER.size == HEADER_SIZE
