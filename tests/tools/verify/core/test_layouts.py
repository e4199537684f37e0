"""The objects of a store: the golden files are read as FORMAT.md's tables read them, and other bytes are
refused.
"""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from tests.golden.samples import FOLDER
from tools.verify.core.keys import StreamKey
from tools.verify.core.layouts import (
    EPOCHS,
    Malformed,
    decode_block_sums,
    decode_floors,
    decode_index_head,
    decode_index_object,
    decode_slot,
    decode_wal_index,
    decode_wal_table,
    index_head_size,
    read_json,
    strip_cache_tail,
    wal_table_end,
)

READERS: dict[str, Callable[[bytes], Any]] = {
    "slot": decode_slot,
    "slot-birth": decode_slot,
    "snapshot": decode_slot,
    "segment-index": decode_index_object,
    "wal-object": lambda data: decode_wal_table(data, len(data)),
    "wal-seal": lambda data: decode_wal_table(data, len(data)),
    "wal-index": decode_wal_index,
    "wal-floors": decode_floors,
    "wal-floors-2": decode_floors,
    "block-sums": decode_block_sums,
}


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    file = FOLDER / f"{name}.bin"
    return file.read_bytes(), json.loads(file.with_suffix(".json").read_text())


def text_of(uuid: str) -> str:
    return urlsafe_b64encode(UUID(uuid).bytes)[:22].decode()


def resealed(data: bytes, at: int) -> bytes:
    """With the right checksum of all before at that place."""
    return data[:at] + struct.pack(">I", crc32c(data[:at])) + data[at + 4 :]


# --- the golden files ---


@pytest.mark.parametrize("name", ["slot", "slot-birth", "snapshot"])
def test_a_slot(name: str) -> None:
    data, told = golden(name)
    slot = decode_slot(data)
    assert (slot.seq, slot.controller_epoch) == (told["seq"], told["controller_epoch"])
    assert (slot.put_id.hex(), slot.previous_hash.hex()) == (told["put_id"], told["previous_hash"])
    assert [list(record) for record in slot.records] == told["records"]


def test_a_slot_names_the_hash_of_the_one_before() -> None:
    assert decode_slot(golden("slot")[0]).previous_hash == decode_slot(golden("slot-birth")[0]).sha256


def test_an_index_object() -> None:
    data, told = golden("segment-index")
    head, sections = decode_index_object(data)
    for name in (
        "cluster_id", "topic", "partition", "base_offset", "end_offset", "broker_id", "leader_epoch",
        "started_ms", "max_timestamp_ms", "size", "batch_count", "data_crc", "block_size", "head_size",
    ):  # fmt: skip
        assert getattr(head, name) == told[name]
    assert (head.topic_id, head.segment_id) == (text_of(told["topic_id"]), text_of(told["segment_id"]))
    assert list(head.block_crcs) == told["block_crcs"]
    assert [epoch._asdict() for epoch in head.epochs] == told["epochs"]
    assert [list(section) for section in head.sections.values()] == [
        list(row.values()) for row in told["indexes"]
    ]
    assert head.object_size == len(data)
    assert sections[EPOCHS].startswith(b"0\n3\n")
    assert [sections[kind] for kind in (0, 1, 2, 3)] == [
        golden(name)[0] for name in ("offset-index", "time-index", "producer-snapshot", "transaction-index")
    ]
    assert decode_index_head(data[: head.head_size], len(data)) == head
    assert index_head_size(data[:10]) == head.head_size


def test_an_object_of_the_wal_tier() -> None:
    data, told = golden("wal-object")
    table = decode_wal_table(data, len(data))
    head = told["head"]
    assert table.head.stream == StreamKey(head["node"], head["broker_epoch"], head["generation"])
    for name in (
        "kind", "seq", "metadata_seq", "writer_node", "writer_epoch", "written_ms", "cluster_id", "head_size",
        "table_size",
    ):  # fmt: skip
        assert getattr(table.head, name) == head[name]
    assert table.head.put_id.hex() == head["put_id"]
    for row, one in zip(table.slices, told["slices"], strict=True):
        assert row.topic_id == text_of(one["topic_id"])
        assert list(row[1:-1]) == list(one.values())[1:-1]
        places = [] if row.previous is None else [[*row.previous.stream, row.previous.seq]]
        assert places == [list(place.values()) for place in one["previous"]]
        assert crc32c(data[row.position : row.position + row.size]) == row.data_crc
    assert table.object_size == len(data)
    assert decode_wal_table(data[: wal_table_end(data[:15])], len(data)) == table


def test_a_seal_and_an_index_object_of_the_wal_tier() -> None:
    data, told = golden("wal-seal")
    seal = decode_wal_table(data, len(data))
    assert (seal.head.kind, seal.slices, seal.object_size) == (1, (), len(data))
    assert seal.head.metadata_seq == told["head"]["metadata_seq"]
    head, tables = decode_wal_index(golden("wal-index")[0])
    whole = golden("wal-object")[0]
    assert (head.seq, [table.head.seq for table in tables]) == (2, [2, 3])
    assert tables[1] == decode_wal_table(whole, len(whole))


@pytest.mark.parametrize("version", ["wal-floors", "wal-floors-2"])
def test_floors(version: str) -> None:
    data, told = golden(version)
    floors = decode_floors(data)
    for name in ("node", "broker_epoch", "metadata_seq", "written_ms", "cluster_id"):
        assert getattr(floors, name) == told[name]
    for row, one in zip(floors.floors, told["floors"], strict=True):
        places = [list(place.values()) for place in one.pop("moved", [])]
        assert list(row[1:-1]) == list(one.values())[1:]
        assert [[*place.stream, place.seq] for place in (row.moved,) if place is not None] == places
    assert {row.topic_id for row in floors.floors} == {text_of(told["floors"][0]["topic_id"])}


def test_what_a_broker_keeps_on_its_disk() -> None:
    data, told = golden("block-sums")
    assert [*decode_block_sums(data)[:2]] == [told["size"], told["block_bytes"]]
    name = f"{golden('copy-started')[1]['segment_id']}.sums"
    kept = data + golden("cache-tail")[0]
    assert strip_cache_tail(name, kept) == data
    for other, damaged in (("x.sums", kept), (name, kept[:-1]), (name, b"\1" + kept[1:]), (name, b"")):
        with pytest.raises(Malformed):
            strip_cache_tail(other, damaged)


# --- what is refused ---


@pytest.mark.parametrize("name", READERS)
def test_a_cut_anywhere_is_refused_and_so_is_a_byte_more(name: str) -> None:
    data = golden(name)[0]
    for damaged in [*(data[:size] for size in range(len(data))), data + b"\0"]:
        with pytest.raises(Malformed):
            READERS[name](damaged)


@pytest.mark.parametrize("name", [name for name in READERS if name != "block-sums"])
def test_a_byte_that_differs_is_refused(name: str) -> None:
    """But of an object of the WAL tier only up to its data, which has checksums of its own."""
    data = golden(name)[0]
    end = wal_table_end(data) if name == "wal-object" else len(data)
    for at in range(end):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(Malformed):
            READERS[name](bytes(damaged))


def slot_of(*records: bytes) -> bytes:
    body = struct.pack(">QI16s32sI", 1, 1, bytes(16), bytes(32), len(records))
    body += b"".join(struct.pack(">I", len(record)) + record for record in records)
    return b"TWM1" + struct.pack(">I", crc32c(body)) + body


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{}",
        b'["Name", 0]',
        b'["Name", true, {}]',
        b'["Name", 0.5, {}]',
        b'["Name", 0, []]',
        b'["Name", 0, {"a": NaN}]',
        b'["Name", 0, {"a": "\\ud800"}]',
        b'["Name", 0, {"a": "\xff"}]',
        b'["Name", 0, {"a": ' + b"9" * 5000 + b"}]",
        b'["Name", 0, {}] x',
        b"[" * 100_000,
        b'["Name", 0, ' + b'{"a":' * 100_000,
    ],
    ids=lambda record: record[:30].decode("latin-1"),
)
def test_a_record_that_is_none_is_refused(record: bytes) -> None:
    with pytest.raises(Malformed, match=r"byte 76: record"):
        decode_slot(slot_of(record))


def test_a_record_in_another_alphabet_is_read() -> None:
    record = '["Näme", 0, {"a": "\\ud83d\\ude00 – 😀"}]'.encode()
    assert decode_slot(slot_of(record)).records[0].fields == {"a": "😀 – 😀"}


_WAL = golden("wal-object")[1]["head"]
CHECKSUMS = {  # where they lie, the inner ones first
    "segment-index": [golden("segment-index")[1]["head_size"] - 4],
    "wal-object": [_WAL["head_size"] - 4, _WAL["head_size"] + _WAL["table_size"] - 4],
    "wal-index": [golden("wal-index")[1]["head"]["head_size"] - 4, -4],
    "wal-floors": [-4],
    "wal-floors-2": [-4],
}


@pytest.mark.parametrize("name", CHECKSUMS)
@pytest.mark.parametrize("value", [0, 1, 2, 3, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF])
def test_counts_that_do_not_fit_are_refused_with_valid_checksums(name: str, value: int) -> None:
    data = golden(name)[0]
    for at in range(4, len(data) - 8):
        damaged = data[:at] + struct.pack(">I", value) + data[at + 4 :]
        for crc in CHECKSUMS[name]:
            damaged = resealed(damaged, crc % len(data))
        read_within_bounds(READERS[name], damaged)


def read_within_bounds(read: Callable[[bytes], Any], data: bytes) -> None:
    """Again where it was too much: all of the process is measured, and a bad reader always takes it."""
    bound = 64 * len(data) + 300_000
    assert any(peak_of(read, data) < bound for _ in range(3)), bound


def peak_of(read: Callable[[bytes], Any], data: bytes) -> int:
    tracemalloc.start()
    try:
        read(data)
    except Malformed:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@given(
    name=st.sampled_from(sorted(READERS)),
    data=st.binary(max_size=400),
    keeps=st.integers(0, 120),
    seals=st.booleans(),
)
@example(name="wal-index", data=b"", keeps=0, seals=False)
def test_hostile_bytes_are_refused_and_nothing_else(name: str, data: bytes, keeps: int, seals: bool) -> None:
    """Whole, or behind a sound beginning, with checksums that are right and with those that are not."""
    hostile = golden(name)[0][:keeps] + data
    if seals and len(hostile) > 8:
        hostile = (
            hostile[:4] + struct.pack(">I", crc32c(hostile[8:])) + hostile[8:]
            if "slot" in name
            else resealed(hostile, len(hostile) - 4)
        )
    read_within_bounds(READERS[name], hostile)


@given(st.sampled_from(sorted(READERS)), st.integers(0, 1 << 32))
def test_mutated_objects_are_refused_and_nothing_else(name: str, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(golden(name)[0])
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
        if not data:
            break
    hostile = bytes(data)
    if name in CHECKSUMS:
        for at in CHECKSUMS[name]:
            if len(hostile) >= abs(at) + 4:
                hostile = resealed(hostile, at % len(hostile))
    elif "slot" in name or name == "snapshot":
        hostile = hostile[:4] + struct.pack(">I", crc32c(hostile[8:])) + hostile[8:]
    read_within_bounds(READERS[name], hostile)


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
@example(b'"\\uD800"')
@example(b"1e999")
def test_json_is_read_or_refused_with_one_error(raw: bytes) -> None:
    try:
        found = read_json(raw)
    except ValueError:
        return
    json.dumps(found, ensure_ascii=False).encode()
