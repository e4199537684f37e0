"""Producer snapshots: whole, damaged, and any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.records import BatchHeader, parse_header
from protocol.work import finish
from storage import producers
from storage.producers import UNASKED, CorruptSnapshot, ProducerTable, decode_producers, encode_producers
from tests.storage.support import batch_of


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
        assert table.check(header, UNASKED) is None
        table.appended(header, offset, offset + count - 1)
        offset += count
    again = decode_producers(table.encode())[0]
    assert list(again.active()) == list(table.active())
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


def fill(table: ProducerTable, count: int, *, first: int = 0, offset: int = 0) -> None:
    for at in range(count):
        header = data_header(producer_id=first + at)
        table.appended(header, offset + at, offset + at)


def data_header(*, producer_id: int, epoch: int = 0, sequence: int = 0) -> BatchHeader:
    return parse_header(batch_of(1, producer=(producer_id, epoch, sequence)))


def test_what_was_frozen_changes_no_more() -> None:
    table = ProducerTable()
    fill(table, 3)
    expected = table.encode()
    frozen = table.freeze()
    table.follow(0, 0, 1, 10, 10, 5)
    table.appended(data_header(producer_id=1, sequence=1), 11, 11)
    table.appended(data_header(producer_id=9), 12, 12)
    table.expire(1 << 40)
    assert finish(encode_producers(frozen)) == expected
    assert table.encode() != expected


def test_a_bounded_table_forgets_who_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that goes on is remembered, however many come and are heard of once."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 50)
    table = ProducerTable()
    table.appended(data_header(producer_id=1_000_000), 0, 0)
    for at in range(1, 2_000):
        fill(table, 1, first=at, offset=2 * at)
        assert table.follow(1_000_000, 0, at, 2 * at + 1, 2 * at + 1, 5)
    assert len(table.entries) == 50


def test_a_producer_whose_epoch_goes_up_with_each_transaction_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its batches are forgotten with its epoch, and what is left of it is still the newest."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 50)
    table = ProducerTable()
    for at in range(2_000):
        fill(table, 1, first=at, offset=2 * at)
        header = data_header(producer_id=1_000_000, epoch=at)
        assert (table.entries.get(1_000_000) is not None) == (at > 0)
        table.ended(header, 2 * at + 1, is_aborted=False, coordinator_epoch=0)


def test_a_producer_in_a_transaction_is_not_forgotten() -> None:
    table = ProducerTable()
    fill(table, 2)
    for entry in table.entries.values():
        entry.txn_first_offset = 0
    for _ in range(5):
        table.forget_silent()
    assert len(table.entries) == 2
