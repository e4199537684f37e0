"""Indexes against a list of what was put into them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.index import AbortedTxn, BadIndex, OffsetIndex, TimeIndex, decode_aborted

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
