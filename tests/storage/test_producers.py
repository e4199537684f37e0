"""Producer tables, packed or not, and their snapshots: whole, damaged, and any bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import KafkaError
from protocol.records import BatchHeader, parse_header
from protocol.work import finish
from storage import producers
from storage.producers import UNASKED, CorruptSnapshot, ProducerTable, decode_producers, encode_producers
from tests.storage.support import batch_of

STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["next", "repeat", "epoch", "gap", "commit", "abort", "follow"]),
        st.integers(1, 3),
        st.booleans(),
    ),
    max_size=60,
)


class Replayed:
    """A table that is told of what producers send, as a log would."""

    def __init__(self) -> None:
        self.table = ProducerTable()
        self.offset = 0

    def step(self, producer: int, what: str, count: int, transactional: bool) -> object:
        """Send and, where the table takes it, remember; return what the table says."""
        entry = self.table.known(producer)
        epoch = entry.epoch if entry else 0
        sequence = entry.next_sequence if entry else 0
        is_open = entry is not None and entry.txn_first_offset >= 0
        if what in ("commit", "abort"):
            self.offset += 1
            header = data_header(producer_id=producer, epoch=epoch)._replace(max_timestamp=self.offset)
            ended = self.table.ended(header, self.offset, is_aborted=what == "abort", coordinator_epoch=count)
            if ended is not None:
                self.table.complete(ended)
            return ended
        first, last = self.offset + 1, self.offset + count
        if what == "follow":
            if taken := self.table.follow(producer, epoch, sequence, first, last, 7 * first, is_open):
                self.offset = last
            return taken
        if what == "repeat" and entry is not None and entry.batches:
            oldest = entry.batches[0]
            sequence, count = oldest.first_sequence, oldest.last_sequence - oldest.first_sequence + 1
        if what == "epoch" and not is_open:
            epoch, sequence = epoch + 1, 0
        header = parse_header(
            batch_of(
                count,
                producer=(producer, epoch, sequence + 3 * (what == "gap")),
                transactional=transactional or is_open,
            )
        )._replace(max_timestamp=first)
        try:
            repeated = self.table.check(header, UNASKED)
        except KafkaError as error:
            return error.code
        if repeated is None:
            self.table.appended(header, first, first + count - 1)
            self.offset = first + count - 1
        return repeated


def facts(table: ProducerTable) -> dict[int, tuple[object, ...]]:
    return {
        producer_id: (
            entry.epoch,
            entry.batches,
            entry.next_sequence,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for producer_id in table.entries
        if (entry := table.known(producer_id)) is not None
    }


@settings(max_examples=150)
@given(STEPS)
def test_what_is_packed_says_what_it_said(steps: list[tuple[int, str, int, bool]]) -> None:
    """Whatever producers send, a table that packs all but two of them answers as one that packs none."""
    packing, plain = Replayed(), Replayed()
    for step in steps:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(producers, "UNPACKED_MAX", 2)
            told = packing.step(*step)
        assert told == plain.step(*step)
        assert facts(packing.table) == facts(plain.table)
        assert packing.table.ongoing == plain.table.ongoing


@settings(max_examples=50)
@given(STEPS)
def test_a_snapshot_holds_all_that_is_remembered(steps: list[tuple[int, str, int, bool]]) -> None:
    replayed = Replayed()
    for step in steps:
        replayed.step(*step)
    table = replayed.table
    again = decode_producers(table.encode())[0]
    assert list(again.active()) == list(table.active())
    assert again.ongoing == table.ongoing
    for producer, entry in table.entries.items():
        kept = again.entries[producer]
        assert [batch[:4] for batch in kept.batches] == [batch[:4] for batch in entry.batches]
        assert kept.next_sequence == entry.next_sequence
    assert again.encode() == table.encode()


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
    finish(table.expire(1 << 40))
    assert finish(encode_producers(frozen)) == expected
    assert table.encode() != expected


def test_who_was_silent_for_too_long_is_forgotten_packed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "UNPACKED_MAX", 4)
    monkeypatch.setattr(producers, "_ENTRIES_PER_STEP", 3)
    table = ProducerTable()
    for at in range(20):
        assert not table.follow(at, 0, 0, at, at, at)
        table.to_change(at, 0).sent(0, at, at, 1_000 * (at % 2))
    for at in (2, 18):
        table.to_change(at, 0).txn_first_offset = at
    forgetting = table.expire(999)
    next(forgetting)
    table.follow(16, 0, 1, 30, 30, 5_000)
    assert finish(forgetting) == 7
    assert sorted(table.entries) == sorted([*range(1, 20, 2), 2, 16, 18])


def test_who_is_silent_between_two_looks_is_packed_but_for_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "UNPACKED_AT_REST", 3)
    table = ProducerTable()
    fill(table, 20)
    finish(table.pack_silent())
    assert len(table._unpacked) == 20, "all were heard of since the table was made"
    for at in (4, 11, 17, 19):
        assert table.follow(at, 0, 1, 100 + at, 100 + at, 5)
    looking = table.pack_silent()
    next(looking)
    assert table.follow(0, 0, 1, 200, 200, 5), "heard of while it is looked for silent ones"
    finish(looking)
    assert table._unpacked.keys() == {0, 4, 11, 17, 19}
    finish(table.pack_silent())
    assert table._unpacked.keys() == {0, 17, 19}
    assert table.follow(5, 0, 1, 300, 300, 5)
    assert table.count == 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ProducerTable:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 50)
    monkeypatch.setattr(producers, "UNPACKED_MAX", 8)
    monkeypatch.setattr(producers, "FORGOTTEN_AT_ONCE", 5)
    return ProducerTable()


def test_a_bounded_table_forgets_who_is_silent(small: ProducerTable) -> None:
    """A producer that goes on is remembered, however many come and are heard of once."""
    small.appended(data_header(producer_id=1_000_000), 0, 0)
    for at in range(1, 2_000):
        fill(small, 1, first=at, offset=2 * at)
        assert small.follow(1_000_000, 0, at, 2 * at + 1, 2 * at + 1, 5)
    assert 45 < small.count <= 50
    assert small.entries.keys() == {1_000_000, *range(2_001 - small.count, 2_000)}


def test_a_producer_whose_epoch_goes_up_with_each_transaction_is_not_silent(small: ProducerTable) -> None:
    """Its batches are forgotten with its epoch, and what is left of it is still the newest."""
    for at in range(2_000):
        fill(small, 1, first=at, offset=2 * at)
        header = data_header(producer_id=1_000_000, epoch=at)
        assert (small.known(1_000_000) is not None) == (at > 0)
        small.ended(header, 2 * at + 1, is_aborted=False, coordinator_epoch=0)


def test_a_producer_in_a_transaction_is_not_forgotten(small: ProducerTable) -> None:
    for at in range(200):
        small.to_change(at, 0).txn_first_offset = 0
    small.forget_silent(100)
    assert small.count == 200


def test_many_producers_take_little_memory() -> None:
    """They are held packed, as little as a row of a snapshot and a place in a dictionary."""
    table = ProducerTable()
    tracemalloc.start()
    try:
        for at in range(20_000):
            table.to_change(at + 1_000_000, 0).sent(0, at + 1_000, at + 1_000, 1_700_000_000_000 + at)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20_000 * 190
    assert held < table.size_bytes
