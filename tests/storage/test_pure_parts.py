"""Epochs, indexes, producer snapshots and retention decisions against the plainest models of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.records import parse_header
from storage.epochs import UNDEFINED, EpochCache, decode_epochs
from storage.index import AbortedTxn, BadIndex, OffsetIndex, TimeIndex, decode_aborted
from storage.policy import LogConfig, SegmentFacts, plan_deletion
from storage.producers import CorruptSnapshot, ProducerTable, decode_producers
from tests.storage.support import NOW, batch_of

HISTORY = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12).map(
    lambda steps: [
        (sum(epoch for epoch, _ in steps[: at + 1]), sum(size for _, size in steps[: at + 1]))
        for at in range(len(steps))
    ]
)


def cache_of(history: list[tuple[int, int]]) -> EpochCache:
    cache = EpochCache()
    for epoch, start in history:
        cache.assign(epoch, start_offset=start)
    return cache


# ---- epochs ----


@given(HISTORY, st.integers(0, 60))
def test_each_offset_belongs_to_the_last_epoch_that_started_at_or_before_it(
    history: list[tuple[int, int]], offset: int
) -> None:
    started = [(start, epoch) for epoch, start in history if start <= offset]
    assert cache_of(history).epoch_for(offset) == (max(started)[1] if started else None)


@given(HISTORY, st.integers(-1, 40))
def test_an_epoch_ends_where_the_next_one_starts(history: list[tuple[int, int]], asked: int) -> None:
    cache = cache_of(history)
    entries = cache.entries()
    epoch, end = cache.end_offset_for(asked, log_end_offset=1000)
    if asked < 0 or not entries or asked > entries[-1][0]:
        assert (epoch, end) == UNDEFINED
    elif asked == entries[-1][0]:
        assert (epoch, end) == (asked, 1000)
    else:
        assert end == min(start for other, start in entries if other > asked)
        assert epoch == max((other for other, _ in entries if other <= asked), default=asked)


@given(HISTORY, st.integers(0, 50))
def test_truncation_forgets_only_what_is_gone(history: list[tuple[int, int]], cut: int) -> None:
    whole = cache_of(history)
    head, tail = cache_of(history), cache_of(history)
    head.truncate_from_end(cut)
    tail.truncate_from_start(cut)
    for offset in range(60):
        if offset < cut:
            assert head.epoch_for(offset) == whole.epoch_for(offset)
        else:
            assert tail.epoch_for(offset) == whole.epoch_for(offset)
    assert all(start < cut for _, start in head.entries())
    assert sum(start < cut for _, start in tail.entries()) == 0


@given(HISTORY)
def test_the_epoch_checkpoint_round_trips(history: list[tuple[int, int]]) -> None:
    cache = cache_of(history)
    assert EpochCache(decode_epochs(cache.encode())) == cache
    epochs, starts = zip(*cache.entries(), strict=True) if cache.entries() else ((), ())
    assert list(epochs) == sorted(set(epochs)) and list(starts) == sorted(set(starts))


@pytest.mark.parametrize("bad", [b"", b"1\n0\n", b"0\n2\n1 1\n", b"0\n1\nx 1\n", b"0\n1\n1\n", b"\xff\xfe"])
def test_a_bad_epoch_checkpoint_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        decode_epochs(bad)


# ---- indexes ----

STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60)


@given(STEPS, st.integers(0, 4000), st.integers(0, 400_000))
def test_offset_index_looks_up_the_last_entry_at_or_before(
    steps: list[tuple[int, int]], offset: int, position: int
) -> None:
    index = OffsetIndex()
    entries: list[tuple[int, int]] = []
    for offset_step, position_step in steps:
        last = entries[-1] if entries else (-1, 0)
        entries.append((last[0] + offset_step, last[1] + position_step))
        index.append(*entries[-1])
    assert index.lookup(offset) == max((at for entry, at in entries if entry <= offset), default=0)
    assert index.boundary_within(position) == max((at for _, at in entries if at <= position), default=0)
    data = index.encode()
    assert data == b"".join(entry.to_bytes(4, "big") + at.to_bytes(4, "big") for entry, at in entries)
    again = OffsetIndex.decode(data + bytes(80), 1 << 30)
    assert again.entries == index.entries or not entries
    index.truncate(offset)
    assert len(index) == sum(entry < offset for entry, _ in entries)


@given(STEPS, st.integers(0, 400_000), st.integers(0, 4000))
def test_time_index_never_skips_a_later_record(
    steps: list[tuple[int, int]], timestamp: int, offset: int
) -> None:
    index = TimeIndex()
    entries: list[tuple[int, int]] = []
    for offset_step, time_step in steps:
        last = entries[-1] if entries else (0, -1)
        entries.append((last[0] + time_step, last[1] + offset_step))
        index.maybe_append(*entries[-1])
        index.maybe_append(entries[-1][0], entries[-1][1] + 1)
    assert index.lookup(timestamp) == max((at for time, at in entries if time < timestamp), default=0)
    data = index.encode()
    assert data == b"".join(time.to_bytes(8, "big") + at.to_bytes(4, "big") for time, at in entries)
    again = TimeIndex.decode(data)
    assert (again.timestamps, again.offsets) == (index.timestamps, index.offsets)
    index.truncate(offset)
    assert len(index) == sum(at < offset for _, at in entries)


@given(st.binary(max_size=200))
def test_index_decoders_take_or_refuse_any_bytes(data: bytes) -> None:
    for decode in (
        lambda: OffsetIndex.decode(data, 1000),
        lambda: TimeIndex.decode(data),
        lambda: decode_aborted(data),
    ):
        try:
            decode()
        except BadIndex:
            pass


def test_aborted_transactions_have_kafkas_layout() -> None:
    txn = AbortedTxn(1, 2, 3, 4)
    assert txn.encode() == b"\0\0" + b"".join(value.to_bytes(8, "big") for value in (1, 2, 3, 4))
    assert decode_aborted(txn.encode() * 2) == [txn, txn]


# ---- producers ----


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=30)
)
def test_a_snapshot_holds_all_that_is_remembered(steps: list[tuple[int, int, int, bool]]) -> None:
    table = ProducerTable()
    epochs: dict[int, int] = {}
    offset = 0
    for producer, epoch_step, count, transactional in steps:
        entry = table.entries.get(producer)
        epoch = epochs[producer] = epochs.get(producer, 0) + (1 if epoch_step == 2 else 0)
        sequence = entry.next_sequence if entry and entry.epoch == epoch else 0
        is_open = entry is not None and entry.txn_first_offset >= 0
        header = parse_header(
            batch_of(count, producer=(producer, epoch, sequence), transactional=transactional or is_open)
        )
        assert table.check(header) is None
        table.appended(header, offset, offset + count - 1)
        offset += count
    again = decode_producers(table.encode())[0]
    assert again.active() == table.active()
    assert again.ongoing == table.ongoing
    for producer, entry in table.entries.items():
        assert list(again.entries[producer].batches) == list(entry.batches)
        assert again.entries[producer].next_sequence == entry.next_sequence


def test_a_damaged_snapshot_is_refused_at_every_byte() -> None:
    table = ProducerTable()
    for producer in range(3):
        for sequence in range(4):
            table.appended(parse_header(batch_of(1, producer=(producer, 0, sequence))), sequence, sequence)
    data = table.encode()
    decode_producers(data)
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]):
            with pytest.raises(CorruptSnapshot):
                decode_producers(damaged)


@given(st.binary(max_size=300))
def test_the_snapshot_decoder_takes_or_refuses_any_bytes(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode_producers(data)


# ---- retention ----


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
    count, only_local = plan_deletion(
        config, segments, now_ms=NOW + 120, log_start_offset=log_start, high_watermark=bound
    )
    assert not only_local
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
