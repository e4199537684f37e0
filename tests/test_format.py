"""FORMAT.md tells what is written: by its tables alone the golden files are read, and the broker writes the
same bytes still.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.metadata_records import RECORD_TYPES, decode_record
from protocol.checksum import crc32c as broker_crc32c
from protocol.ids import decode_id
from protocol.stored.slots import decode_slot
from remote.cold.copies import BlockSums
from remote.cold.events import decode_event
from remote.cold.index_object import HEAD_BYTES_MAX, decode_index_object
from remote.cold.partitioner import metadata_partition
from remote.cold.segments import (
    NEXT_PARTITION_STATES,
    NEXT_STATES,
    PartitionState,
    SegmentState,
    TieredPartition,
)
from remote.cold.storage_manager import IndexKind
from remote.keys import Stream, WalPart, parse_tier_key, parse_wal_key, wal_key
from remote.wal.combined_object import ObjectKind, check_slice, decode_index, decode_table
from remote.wal.floors import decode_floors
from storage.epochs import decode_epochs
from tests.format_page import PAGE, FormatPage, Refused, crc32c
from tests.golden.samples import FOLDER, Sample, samples
from tests.remote.test_keys import SEQ, STREAMS, TIER_KEYS, TierKey, tier_key

TEXT = PAGE.read_text()
FORMAT = FormatPage(TEXT)
SAMPLES = {sample.name: sample for sample in samples()}
FILES = sorted(file.stem for file in FOLDER.glob("*.bin"))
SECTIONS = {
    IndexKind.OFFSET: "offset index",
    IndexKind.TIMESTAMP: "time index",
    IndexKind.PRODUCER_SNAPSHOT: "producer snapshot",
    IndexKind.TRANSACTION: "transaction index",
}


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    file = FOLDER / f"{name}.bin"
    return file.read_bytes(), json.loads(file.with_suffix(".json").read_text())


def test_each_sample_has_its_golden_file() -> None:
    """A sample without one: python -m tests.golden.samples."""
    assert sorted(SAMPLES) == FILES


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=lambda sample: sample.name)
def test_what_is_written_is_what_was_written(sample: Sample) -> None:
    """A byte that changes needs a new version: another layout in FORMAT.md, another sample, another file."""
    data, reading = golden(sample.name)
    assert sample.data == data
    assert (sample.key, sample.layout) == (reading["key"], reading["layout"])


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_is_read_by_the_tables_of_the_page(name: str) -> None:
    data, reading = golden(name)
    key, layout = reading.pop("key"), reading.pop("layout")
    assert FORMAT.read(layout, data) == reading
    if key is not None:
        assert FORMAT.kind_of(key).layout == layout.removesuffix(" 2")


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=lambda sample: sample.name)
def test_by_the_tables_a_cut_is_noticed(sample: Sample) -> None:
    layout, data = sample.layout, sample.data
    types = [field.type for field in FORMAT.layouts[layout]]
    if types and types[-1].startswith("end") and "crc32c after" not in types:
        return
    end = int.from_bytes(data[6:10], "big") if layout == "index object" else len(data)
    for size in range(end):
        with pytest.raises(Refused):
            FORMAT.read(layout, data[:size])


@pytest.mark.parametrize("name", ["slot", "segment-index", "producer-snapshot", "wal-floors", "wal-floors-2"])
def test_by_the_tables_a_checksum_covers_all_but_what_has_one_value(name: str) -> None:
    sample = SAMPLES[name]
    end = int.from_bytes(sample.data[6:10], "big") if name == "segment-index" else len(sample.data)
    for at in range(end):
        damaged = bytearray(sample.data)
        damaged[at] ^= 1
        with pytest.raises(Refused):
            FORMAT.read(sample.layout, bytes(damaged))


def test_every_layout_has_a_golden_file() -> None:
    """Or is part of one that has."""
    part_of = {
        other: layout
        for layout, own in FORMAT.layouts.items()
        for field in own
        if (other := field.type.rpartition(" × ")[2]) in FORMAT.layouts
    }
    shown = {sample.layout for sample in SAMPLES.values()} | {"older batches"}
    assert {layout for layout in FORMAT.layouts if layout not in part_of and layout not in shown} == set()


# --- objects of the store ---


def test_a_slot_is_read_alike_by_the_broker() -> None:
    for name in ("slot-birth", "slot", "snapshot"):
        data, reading = golden(name)
        slot = decode_slot(data)
        assert (slot.seq, slot.put_id.hex()) == (reading["seq"], reading["put_id"])
        assert slot.previous_hash.hex() == reading["previous_hash"]
        assert [json.loads(record) for record in slot.records] == reading["records"]
        for record in slot.records:
            decode_record(record)


def test_the_page_names_all_records_with_their_fields_and_defaults() -> None:
    ours = {
        name: {field.name: ... if field.default is MISSING else field.default for field in fields(record)}
        for name, record in RECORD_TYPES.items()
    }
    assert ours == FORMAT.records
    assert "All versions are 0" in TEXT
    assert {record.VERSION for record in RECORD_TYPES.values()} == {0}


def test_the_golden_slots_show_every_record() -> None:
    shown = {
        record[0]
        for name in ("slot", "slot-birth", "slot-features", "snapshot")
        for record in golden(name)[1]["records"]
    }
    assert shown == set(RECORD_TYPES)


def test_an_index_object_and_its_sections_are_read_alike_by_the_broker() -> None:
    data, reading = golden("segment-index")
    segment = golden("segment-data")[0]
    head, indexes = decode_index_object(data)
    assert reading["size"] == head.header.size_bytes == len(segment)
    assert reading["data_crc"] == crc32c(segment)
    size = reading["block_size"]
    blocks = [segment[at : at + size] for at in range(0, len(segment), size)]
    assert reading["block_crcs"] == [crc32c(block) for block in blocks]
    end = reading["head_size"]
    for row in reading["indexes"]:
        section = data[row["start"] : row["start"] + row["size"]]
        assert (row["start"], row["section_crc"]) == (end, crc32c(section))
        end += row["size"]
        kind = IndexKind(row["kind"])
        assert section == indexes[kind]
        if kind in SECTIONS:
            FORMAT.read(SECTIONS[kind], section)
    assert end == len(data)
    assert decode_epochs(indexes[IndexKind.LEADER_EPOCH]) == [(0, 0), (2, 60), (3, 102)]


def test_the_tail_of_a_cached_index_covers_its_name_and_what_is_before() -> None:
    reading = golden("cache-tail")[1]
    name = f"{golden('copy-started')[1]['segment_id']}.sums"
    assert reading["crc"] == crc32c(name.encode() + golden("block-sums")[0])
    sums = BlockSums.decode(golden("block-sums")[0])
    told = golden("block-sums")[1]
    assert [sums.size_bytes, sums.block_bytes, list(sums.crcs)] == [
        told["size"],
        told["block_bytes"],
        told["blocks"],
    ]


def test_the_older_batches_of_producers_are_read_by_the_page() -> None:
    more = bytes.fromhex(golden("producer-snapshot")[1]["more"])
    (producer,) = FORMAT.read("older batches", more)["producers"]
    assert (producer["producer_id"], len(producer["batches"])) == (5, 1)


def test_objects_of_the_wal_tier_are_read_alike_by_the_broker() -> None:
    data, reading = golden("wal-object")
    table = decode_table(data)
    head = reading["head"]
    assert table.head.put_id.hex() == head["put_id"]
    assert [*table.head.place.stream, table.head.place.seq] == [
        head[name] for name in ("node", "broker_epoch", "generation", "seq")
    ]
    assert (table.body_at, table.size_bytes) == (head["head_size"] + head["table_size"], len(data))
    for row, told in zip(table.rows, reading["slices"], strict=True):
        assert [str(row.topic_id), *row[1:-1]] == list(told.values())[:-1]
        assert [[*place.stream, place.seq] for place in (row.previous,) if place] == [
            list(place.values()) for place in told["previous"]
        ]
        check_slice(row, data[row.position : row.position + row.size])
    seal = decode_table(golden("wal-seal")[0])
    assert (seal.head.kind, seal.rows, seal.head.writer) == (ObjectKind.SEAL, (), (3, 52))
    _, tables = decode_index(golden("wal-index")[0])
    assert tables[1] == table
    for name in ("wal-floors", "wal-floors-2"):
        data, reading = golden(name)
        floors = decode_floors(data)
        assert floors.writer == (reading["node"], reading["broker_epoch"])
        for row, told in zip(floors.rows, reading["floors"], strict=True):
            moved = [list(place.values()) for place in told.pop("moved", [])]
            assert [str(row.topic_id), *row[1:-1]] == list(told.values())
            assert [[*place.stream, place.seq] for place in (row.moved,) if place] == moved


@given(st.sampled_from(WalPart), STREAMS, SEQ)
def test_keys_of_the_wal_tier_are_those_of_the_page(part: WalPart, stream: Stream, seq: int) -> None:
    layouts = {WalPart.OBJECT: "wal object", WalPart.INDEX: "wal index", WalPart.BOUNDARY: "nothing"}
    assert FORMAT.kind_of(wal_key(stream, seq, part)).layout == layouts[part]


@given(st.from_regex(next(kind.key for kind in FORMAT.kinds if kind.layout == "wal object"), fullmatch=True))
def test_the_page_takes_for_an_object_of_the_wal_tier_what_the_broker_does(key: str) -> None:
    found = parse_wal_key(key)
    assert found is not None and found.part is WalPart.OBJECT


@given(TIER_KEYS)
def test_the_page_knows_the_keys_of_the_tier(named: TierKey) -> None:
    key = tier_key(*named)
    assert FORMAT.kind_of(key).layout == ("batches" if key.endswith(".log") else "index object")


@given(
    st.from_regex(next(kind.key for kind in FORMAT.kinds if kind.layout == "index object"), fullmatch=True)
)
def test_the_broker_knows_the_keys_of_the_page(key: str) -> None:
    named = parse_tier_key(key)
    assert named is not None
    assert tier_key(*named) == key


# --- records of the topic ---


@pytest.mark.parametrize("name", ["copy-started", "copy-updated", "partition-deleted"])
def test_a_record_is_read_alike_by_the_broker(name: str) -> None:
    key, value = golden(f"{name}-key")[0], golden(name)[0]
    event: Any = decode_event(key, value)
    reading = golden(name)[1]
    told = event.segment if name == "copy-started" else event
    assert (told.topic, int(told.state)) == (reading["topic"], reading["state"])
    assert (str(told.partition.topic_id), told.partition.number) == (
        reading["topic_id"],
        reading["partition"],
    )


def test_a_log_start_is_read_alike_by_the_broker() -> None:
    event: Any = decode_event(golden("log-start-moved-key")[0], golden("log-start-moved")[0])
    reading = golden("log-start-moved")[1]
    ((number, field),) = reading["tags"].items()
    assert (int(number), bytes.fromhex(field)) == (1000, event.log_start.to_bytes(8, "big"))
    assert str(event.partition.topic_id) == reading["topic_id"]
    assert golden("log-start-moved-key")[1]["segment_id"] == str(UUID(int=0))


@pytest.mark.parametrize(
    ("told", "states", "legal"),
    [
        (FORMAT.states[0], SegmentState, NEXT_STATES),
        (FORMAT.states[1], PartitionState, NEXT_PARTITION_STATES),
    ],
)
def test_the_page_says_which_state_may_follow_which(
    told: dict[str, tuple[int, set[str]]], states: type[IntEnum], legal: dict[Any, frozenset[Any]]
) -> None:
    assert {name: number for name, (number, _) in told.items()} == {state.name: state for state in states}
    for state in states:
        before = {"nothing" if one is None else one.name for one, after in legal.items() if state in after}
        assert told[state.name][1] == before


def test_the_page_says_where_records_are() -> None:
    ((id_text, *told),) = re.findall(r"topic (\S{22}) has (\d+), (\d+) and (\d+) for its", TEXT)
    partitions = [TieredPartition(decode_id(id_text), number) for number in (0, 1, 7)]
    assert [metadata_partition(partition, 50) for partition in partitions] == list(map(int, told))


# --- conventions ---


def test_the_page_says_how_checksums_are_made() -> None:
    assert crc32c(b"123456789") == 0xE3069283 == broker_crc32c(b"123456789")


def test_the_page_says_how_large_a_head_may_be() -> None:
    (mebibytes,) = re.findall(r"at most (\d+) MiB", TEXT)
    assert int(mebibytes) << 20 == HEAD_BYTES_MAX


def test_lines_of_the_page_may_be_read() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 120 and not line.startswith("|")] == []
