"""Varints and tagged fields: there and back, and one verdict of all readers on the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import Api
from protocol.errors import MalformedRequest
from protocol.fetch import parse_fetch, parse_replica_fetch
from protocol.messages import decode_request, decode_response
from protocol.pointers import POINTER_TAG
from protocol.primitives import (
    UVARINT_MAX,
    pack_count,
    pack_text,
    pack_uvarint,
    read_count,
    read_name,
    read_tag,
    read_text,
    read_uvarint,
    skip_tags,
    take,
    write_uvarint,
)
from protocol.produce import parse_produce
from protocol.wire import parse_head

PRODUCE = b"\x00" + pack(">hi", 1, 500) + b"\x01"  # no transactional id, no topics
FETCH = pack(">iiibii", 500, 1, 1 << 20, 0, 0, -1) + b"\x01\x01\x01"  # no topics, none forgotten, no rack
METADATA = b"\x01\x01\x00"  # no topics
FETCHED = pack(">iBihi", 1, 0, 0, 0, 0) + b"\x01"  # no topics

READERS: dict[str, Callable[[bytes], object]] = {
    "primitives": lambda tags: skip_tags(memoryview(tags), 0),
    "request header": lambda tags: parse_head(pack(">hhih", Api.METADATA, 12, 1, -1) + tags),
    "Produce": lambda tags: parse_produce(memoryview(PRODUCE + tags), 0, 13),
    "Fetch": lambda tags: parse_fetch(memoryview(FETCH + tags), 0, 17),
    "Fetch response": lambda tags: parse_replica_fetch(memoryview(FETCHED + tags)),
    "codec": lambda tags: decode_request(Api.METADATA, 12, memoryview(METADATA + tags)),
    "codec, Fetch": lambda tags: decode_request(Api.FETCH, 17, memoryview(FETCH + tags)),
    "response header": lambda tags: decode_response(Api.HEARTBEAT, 4, pack(">i", 1) + tags + bytes(7)),
}


def verdict(read: Callable[[bytes], object], tags: bytes) -> str:
    try:
        read(tags)
    except MalformedRequest:
        return "malformed"
    return "read"


def agreed(tags: bytes) -> str:
    """Return the one verdict of all readers on a section of tagged fields that ends the message."""
    verdicts = {name: verdict(read, tags) for name, read in READERS.items()}
    assert len(set(verdicts.values())) == 1, verdicts
    return verdicts["primitives"]


LONGEST = b"\xff\xff\xff\xff\x07"
VARINTS = {
    "2^31-1": (LONGEST, True),
    "2^31": (b"\x80\x80\x80\x80\x08", False),
    "2^32-1": (b"\xff\xff\xff\xff\x0f", False),
    "2^35-1": (b"\xff\xff\xff\xff\x7f", False),
    "six bytes": (b"\x80\x80\x80\x80\x80\x00", False),
    "ten bytes": (b"\xff" * 9 + b"\x01", False),
    "2 in five bytes": (b"\x82\x80\x80\x80\x00", True),
}


@pytest.mark.parametrize("name", VARINTS)
def test_the_number_of_a_tagged_field_has_31_bits_for_every_reader(name: str) -> None:
    varint, is_good = VARINTS[name]
    assert agreed(b"\x01" + varint + b"\x01x") == ("read" if is_good else "malformed")


@pytest.mark.parametrize("name", VARINTS)
def test_the_size_of_a_tagged_field_is_judged_alike_by_every_reader(name: str) -> None:
    fits = name == "2 in five bytes"
    assert agreed(b"\x01\x63" + VARINTS[name][0] + b"xy") == ("read" if fits else "malformed")


@pytest.mark.parametrize("name", VARINTS)
def test_the_count_of_tagged_fields_is_judged_alike_by_every_reader(name: str) -> None:
    fits = name == "2 in five bytes"
    assert agreed(VARINTS[name][0] + b"\x63\x01x\x64\x00") == ("read" if fits else "malformed")


@pytest.mark.parametrize("tags", [b"\x00", b"\x01\x63\x00", b"\x02\x63\x02ab\xe4\x07\x00"])
def test_unknown_tagged_fields_are_skipped_by_every_reader_and_cut_ones_refused(tags: bytes) -> None:
    assert agreed(tags) == "read"
    without = [read for name, read in READERS.items() if name != "response header"]
    for size in range(len(tags)):
        assert {verdict(read, tags[:size]) for read in without} == {"malformed"}


UNKNOWN = st.integers(2, UVARINT_MAX).filter(lambda tag: tag != POINTER_TAG)  # which one reader knows


@given(st.lists(st.tuples(UNKNOWN, st.binary(max_size=9)), max_size=3), st.data())
def test_any_section_is_judged_alike_by_every_reader(
    fields: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    tags = bytearray(pack_uvarint(len(fields)))
    for tag, value in fields:
        tags += pack_uvarint(tag) + pack_uvarint(len(value)) + value
    assert agreed(bytes(tags)) == "read"
    size_of_one = data.draw(st.sampled_from([b"", b"\x80", b"\xff\xff\xff\xff\x0f"]))
    broken = b"\x01\x63" + size_of_one
    assert agreed(broken + b"\xff\xff\xff\xff\xff" * 2) == "malformed"


@pytest.mark.parametrize("size", [12, 14])
def test_a_known_tagged_field_of_the_wrong_size_is_malformed_for_both_readers_of_fetch(size: int) -> None:
    state = pack(">iq", 5, 7) + b"\x00"
    good = FETCH + b"\x01\x01\x0d" + state
    assert parse_fetch(memoryview(good), 0, 17).replica_id == 5
    assert decode_request(Api.FETCH, 17, memoryview(good)).replica_state.replica_id == 5
    bad = memoryview(FETCH + b"\x01\x01" + bytes([size]) + state + b"\x00")
    with pytest.raises(MalformedRequest):
        parse_fetch(bad, 0, 17)
    with pytest.raises(MalformedRequest):
        decode_request(Api.FETCH, 17, bad)


# --- varints ---


@given(st.integers(0, UVARINT_MAX))
def test_varints_come_back(value: int) -> None:
    packed = pack_uvarint(value)
    assert read_uvarint(memoryview(packed), 0) == (value, len(packed))
    out = bytearray(b"x")
    write_uvarint(out, value)
    assert out == b"x" + packed


@given(st.binary(max_size=7), st.integers(0, 7))
def test_any_bytes_are_a_varint_or_malformed(data: bytes, at: int) -> None:
    try:
        value, end = read_uvarint(data, at)
    except MalformedRequest:
        return
    assert 0 <= value <= UVARINT_MAX
    assert at < end <= len(data)


# --- fields ---


def test_a_tagged_field_is_found_and_the_others_skipped() -> None:
    tags = memoryview(b"\x03\x00\x01a\x01\x02bc\x05\x00|")
    assert read_tag(tags, 0, 1) == (b"bc", len(tags) - 1)
    assert read_tag(tags, 0, 5) == (b"", len(tags) - 1)
    assert read_tag(tags, 0, 2) == (None, len(tags) - 1)


@given(st.none() | st.text(st.characters(codec="utf-8"), max_size=200), st.booleans())
def test_texts_come_back(text: str | None, flexible: bool) -> None:
    packed = memoryview(pack_text(text, flexible))
    assert read_text(packed, 0, flexible) == (text, len(packed))
    if text is None:
        with pytest.raises(MalformedRequest):
            read_name(packed, 0, flexible)


@given(st.integers(0, 300), st.booleans())
def test_a_count_is_refused_when_its_elements_cannot_be_there(count: int, flexible: bool) -> None:
    packed = pack_count(count, flexible)
    data = memoryview(packed + bytes(2 * count))
    assert read_count(data, 0, flexible, 2) == (count, len(packed))
    if count:
        with pytest.raises(MalformedRequest):
            read_count(data[:-1], 0, flexible, 2)
    with pytest.raises(MalformedRequest):
        read_count(memoryview(pack_count(-1, flexible)), 0, flexible, 0)


def test_a_field_beyond_the_end_or_of_a_negative_size_is_malformed() -> None:
    assert take(memoryview(b"abc"), 1, 2) == b"bc"
    for size in (3, -1):
        with pytest.raises(MalformedRequest):
            take(memoryview(b"abc"), 1, size)
