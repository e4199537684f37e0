"""Objects of the WAL tier there and back, with flipped bits, cut, of other versions and kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.bad_object import BadObject
from remote.wal.combined_object import (
    Head,
    ObjectKind,
    Place,
    Row,
    check_slice,
    decode_head,
    decode_index,
    decode_table,
    encode_index,
    encode_table,
    place_slices,
    table_end,
)
from tests.remote.wal.wal_samples import heads, objects, rows

Object = tuple[Head, list[Row], list[bytes], bytes]


@given(objects())
def test_an_object_there_and_back(each: Object) -> None:
    head, placed, slices, data = each
    table = decode_table(data)
    assert (table.head, list(table.rows)) == (head, placed)
    assert table.size_bytes == len(data)
    for row, expected in zip(table.rows, slices, strict=True):
        found = data[row.position : row.position + row.size]
        assert found == expected
        check_slice(row, found)


@given(objects())
def test_the_first_bytes_say_how_many_hold_head_and_table(each: Object) -> None:
    head, placed, _, data = each
    end = table_end(data)
    table = decode_table(data[:end])
    assert (table.head, list(table.rows), table.body_at) == (head, placed, end)
    assert decode_head(data[:end]) == head


@given(objects(), st.data())
def test_a_flipped_bit_or_a_cut_of_head_and_table_is_found(each: Object, data: st.DataObject) -> None:
    good = each[3][: table_end(each[3])]
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    flipped = bytearray(good)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadObject):
        decode_table(flipped)
    with pytest.raises(BadObject):
        decode_table(good[: data.draw(st.integers(0, len(good) - 1))])


@given(objects(), st.data())
def test_damaged_bytes_of_a_slice_are_found(each: Object, data: st.DataObject) -> None:
    _, placed, slices, _ = each
    at = data.draw(st.integers(0, len(slices) - 1))
    damaged = bytearray(slices[at])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (damaged, slices[at][:-1], slices[at] + b"\0"):
        with pytest.raises(BadObject):
            check_slice(placed[at], wrong)


@given(st.binary(max_size=300))
def test_garbage_is_bad(garbage: bytes) -> None:
    for data in (garbage, b"TWWO" + garbage, b"TWWO\x00\x01\x00\x00" + garbage):
        with pytest.raises(BadObject):
            decode_table(data)
        with pytest.raises(BadObject):
            decode_index(data)


@given(heads(ObjectKind.SEAL))
def test_a_seal_is_head_and_nothing_else(head: Head) -> None:
    data = encode_table(head, ())
    table = decode_table(data)
    assert (table.head, table.rows, table.size_bytes) == (head, (), len(data))


@given(st.data())
def test_positions_follow_each_other_behind_the_table(data: st.DataObject) -> None:
    head = data.draw(heads())
    slices = data.draw(st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=5))
    placed = place_slices(head.cluster_id, [data.draw(rows(each)) for each in slices])
    assert placed[0].position == table_end(encode_table(head, placed))
    shifted = [placed[0], placed[1]._replace(position=placed[1].position + 1), *placed[2:]]
    with pytest.raises(BadObject, match="does not add up"):
        decode_table(encode_table(head, shifted))


@given(st.lists(objects(), min_size=1, max_size=4), heads(ObjectKind.INDEX))
def test_an_index_object_repeats_the_tables_of_consecutive_objects(each: list[Object], head: Head) -> None:
    first = Place(head.place.stream, min(head.place.seq, 2**62))
    head = replace(head, place=first)
    tables = []
    expected = []
    for number, (its_head, its_rows, _, _) in enumerate(each):
        its_head = replace(its_head, place=Place(first.stream, first.seq + number), cluster_id="one")
        placed = place_slices("one", its_rows)
        tables.append(encode_table(its_head, placed))
        expected.append((its_head, tuple(placed)))
    data = encode_index(head, tables)
    found_head, found = decode_index(data)
    assert found_head == head
    assert [(table.head, table.rows) for table in found] == expected
    with pytest.raises(BadObject):
        decode_index(data + b"\0")
    with pytest.raises(BadObject):
        decode_table(data)
    if len(tables) > 1:
        with pytest.raises(BadObject, match="in the place of"):
            decode_index(encode_index(head, tables[::-1]))


@given(objects())
def test_another_version_is_named(each: Object) -> None:
    data = bytearray(each[3])
    data[4:6] = b"\x00\x02"
    with pytest.raises(BadObject, match="version 2, this release reads 1"):
        decode_head(data)
