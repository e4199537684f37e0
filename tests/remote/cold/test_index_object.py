"""Index objects there and back, with flipped bits, cut, of other versions and of other segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checksum import crc32c
from remote.bad_object import BadObject
from remote.cold.index_object import (
    HEAD_BYTES_MAX,
    HEAD_READ_BYTES,
    check_header,
    decode_head,
    decode_index_object,
    encode_header,
    encode_index_object,
    head_size,
    section_of,
)
from remote.cold.segments import TieredPartition
from remote.cold.storage_manager import (
    BLOCK_BYTES,
    IndexKind,
    SegmentHeader,
    header_of,
)
from tests.remote.cold.segment_samples import INDEXES, Copy, headers

Indexes = Mapping[IndexKind, bytes]


@given(headers(), INDEXES)
def test_index_objects_there_and_back(header: SegmentHeader, indexes: Indexes) -> None:
    data = encode_index_object(header, indexes)
    head, found = decode_index_object(data)
    assert (head.header, found) == (header, indexes)
    assert head.object_bytes == len(data)


@given(headers(), INDEXES)
def test_the_head_alone_says_where_everything_is(header: SegmentHeader, indexes: Indexes) -> None:
    data = encode_index_object(header, indexes)
    size = head_size(data[:10])
    head = decode_head(data[:size])
    assert head.header == header
    for kind, section in head.sections.items():
        ranged = data[section.start : section.end]
        assert section_of(ranged, head, kind, at=section.start) == indexes[kind]


@given(headers())
def test_a_header_is_kept_without_its_indexes(header: SegmentHeader) -> None:
    assert decode_head(encode_header(header)).header == header


@given(headers(), INDEXES, st.data())
def test_a_flipped_bit_or_a_cut_is_found(
    header: SegmentHeader, indexes: Indexes, data: st.DataObject
) -> None:
    good = encode_index_object(header, indexes)
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    flipped = bytearray(good)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadObject):
        decode_index_object(flipped)
    with pytest.raises(BadObject):
        decode_index_object(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(BadObject):
        decode_index_object(good + b"\0")


@given(st.binary(max_size=300))
def test_garbage_is_bad(garbage: bytes) -> None:
    for data in (garbage, b"TWIX" + garbage, b"TWIX\x00\x01" + garbage):
        with pytest.raises(BadObject):
            decode_index_object(data)


@given(st.binary(max_size=300))
def test_garbage_with_a_right_checksum_is_bad(garbage: bytes) -> None:
    """Whatever a head says of itself, nothing but BadObject is raised and no length is trusted."""
    start = b"TWIX\x00\x01" + (10 + len(garbage) + 4).to_bytes(4, "big") + garbage
    with pytest.raises(BadObject):
        decode_index_object(start + crc32c(start).to_bytes(4, "big"))


def sample() -> tuple[Copy, SegmentHeader, bytes]:
    copy = Copy()
    header = header_of(copy.segment, copy.data, cluster_id="c", leader_epoch=3)
    return copy, header, encode_index_object(header, copy.indexes)


def with_crc(head: bytearray) -> bytes:
    head[-4:] = crc32c(head[:-4]).to_bytes(4, "big")
    return bytes(head)


@pytest.mark.parametrize("version", [0, 2, 0xFFFF])
def test_another_version_is_named(version: int) -> None:
    data = bytearray(sample()[2])
    data[4:6] = version.to_bytes(2, "big")
    with pytest.raises(BadObject, match=f"version {version}, this release reads 1"):
        decode_head(data)


@pytest.mark.parametrize("size", [0, 10, HEAD_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_head_of_an_impossible_size_is_refused_before_anything_is_read(size: int) -> None:
    with pytest.raises(BadObject, match=f"a head of {size} bytes"):
        head_size(b"TWIX\x00\x01" + size.to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("row", "field", "value", "says"),
    [
        (0, slice(0, 1), b"\x07", "kind 7"),
        (1, slice(0, 1), b"\x04", "does not add up at its LEADER_EPOCH"),
        (1, slice(1, 9), bytes(8), "does not add up at its PRODUCER_SNAPSHOT"),
        (0, slice(9, 17), b"\xff" * 8, "does not add up at its PRODUCER_SNAPSHOT"),
    ],
)
def test_a_table_that_does_not_add_up_is_bad(row: int, field: slice, value: bytes, says: str) -> None:
    data = sample()[2]
    head = bytearray(data[: head_size(data)])
    table = len(head) - 4 - 5 * 21
    at = table + row * 21
    head[at + field.start : at + field.stop] = value
    with pytest.raises(BadObject, match=says):
        decode_head(with_crc(head))


def test_a_missing_index_and_bytes_after_the_table_are_bad() -> None:
    data = sample()[2]
    head = bytearray(data[: head_size(data)])
    table = len(head) - 4 - 5 * 21
    head[table - 2 : table] = (4).to_bytes(2, "big")
    with pytest.raises(BadObject, match="4 of 5 indexes"):
        decode_head(with_crc(head))
    longer = bytearray(data[: head_size(data)]) + b"\0"
    longer[6:10] = len(longer).to_bytes(4, "big")
    for row in range(5):  # the indexes follow a longer head
        at = table + row * 21 + 1
        longer[at : at + 8] = (int.from_bytes(longer[at : at + 8], "big") + 1).to_bytes(8, "big")
    with pytest.raises(BadObject, match="1 bytes after the table"):
        decode_head(with_crc(longer))


def test_blocks_that_do_not_cover_the_segment_are_bad() -> None:
    _, header, _ = sample()
    wrong = replace(header, size_bytes=header.size_bytes + BLOCK_BYTES)
    with pytest.raises(BadObject, match="1 checksums for"):
        decode_head(encode_header(wrong))


@pytest.mark.parametrize(
    "change",
    [
        {"id": UUID(int=9)},
        {"partition": TieredPartition(UUID(int=1), 8)},
        {"partition": TieredPartition(UUID(int=2), 7)},
        {"base_offset": 99},
        {"end_offset": 151},
        {"size_bytes": 2999},
    ],
)
def test_a_header_of_another_segment_is_refused(change: dict[str, Any]) -> None:
    copy, header, _ = sample()
    check_header(header, copy.segment)
    check_header(header, replace(copy.segment, end_offset=120, epochs=((0, 100),)))
    with pytest.raises(BadObject, match="payments-7, offsets \\[100, 150\\), 3000 bytes"):
        check_header(header, replace(copy.segment, **change))


def test_the_largest_segment_with_a_hundred_epochs_is_told_by_one_read() -> None:
    _, header, _ = sample()
    size = (1 << 31) - 1
    largest = replace(
        header,
        cluster_id="c" * 22,
        topic="t" * 249,
        size_bytes=size,
        block_crcs=(0,) * (-(-size // BLOCK_BYTES)),
        epochs=((1, 1),) * 100,
    )
    assert len(encode_header(largest)) < HEAD_READ_BYTES / 4
