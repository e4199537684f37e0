"""Slots there and back, with flipped bits, cut, and with records that do not add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import crc32c
from protocol.stored.schema import BadRecord
from protocol.stored.slots import Slot, decode_slot, encode_slot, slot_hash

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


SLOTS = st.builds(
    Slot,
    seq=st.integers(0, (1 << 64) - 1),
    controller_epoch=st.integers(0, (1 << 32) - 1),
    put_id=st.binary(min_size=16, max_size=16),
    previous_hash=st.binary(min_size=32, max_size=32),
    records=st.lists(st.binary(max_size=50), max_size=4).map(tuple),
)


@given(SLOTS)
def test_slots_there_and_back(slot: Slot) -> None:
    data = encode_slot(slot)
    assert decode_slot(data) == slot
    assert len(slot_hash(data)) == 32


@given(SLOTS, st.data())
def test_a_slot_with_a_flipped_bit_or_cut_is_bad(slot: Slot, data: st.DataObject) -> None:
    encoded = bytearray(encode_slot(slot))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadRecord):
        decode_slot(encoded)
    with pytest.raises(BadRecord):
        decode_slot(encode_slot(slot)[: data.draw(st.integers(0, len(encoded) - 1))])


@pytest.mark.parametrize("count", [1, 3, (1 << 32) - 1])
def test_a_slot_whose_records_do_not_add_up_is_bad(count: int) -> None:
    good = encode_slot(
        Slot(seq=1, controller_epoch=1, put_id=bytes(16), previous_hash=bytes(32), records=(b"a", b"b"))
    )
    body = bytearray(good[8:])
    body[60:64] = count.to_bytes(4, "big")
    with pytest.raises(BadRecord):
        decode_slot(good[:4] + crc32c(body).to_bytes(4, "big") + body)
