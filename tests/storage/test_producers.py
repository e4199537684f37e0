"""Producer snapshots: whole, damaged, and any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.records import parse_header
from storage.producers import CorruptSnapshot, ProducerTable, decode_producers
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
        assert table.check(header) is None
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
