"""What the brokers say about the tiers: golden files and generated topics are read as FORMAT.md says, and
other bytes are refused.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cold.events import decode_event
from remote.cold.fold import TierFold
from remote.cold.partitioner import metadata_partition
from remote.cold.segments import TieredPartition
from tests.golden.samples import FOLDER
from tests.verify.page import encode
from tests.verify.stores import NOW_MS, make
from tools.verify.core.keys import StreamKey, topic_text
from tools.verify.core.tier_topics import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINDINGS_MAX,
    TIER_RECORD_BAD,
    ColdTold,
    ToldCopy,
    ToldSlice,
    WalTold,
    tier_partition,
    unpack_slices,
)

Record = tuple[bytes, bytes | None]


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    file = FOLDER / f"{name}.bin"
    return file.read_bytes(), json.loads(file.with_suffix(".json").read_text())


def told(name: str) -> Record:
    return golden(f"{name}-key")[0], golden(name)[0]


def id_text(uuid: str) -> str:
    return topic_text(UUID(uuid).bytes)


TOPIC = id_text(golden("copy-started")[1]["topic_id"])
COPY = TOPIC, 7, id_text(golden("copy-started")[1]["segment_id"])
STREAM = StreamKey(1, 40, 2)


def cold(*records: Record, partitions: int = 0) -> ColdTold:
    found = ColdTold("about-the-tier", partitions)
    for offset, record in enumerate(records):
        found.add(3, offset, *record)
    return found


def wal(*records: Record, partitions: int = 0) -> WalTold:
    found = WalTold("about-the-wal", partitions)
    for offset, record in enumerate(records):
        found.add(1, offset, *record)
    return found


def changed(name: str, key: dict[str, Any] | None = None, **values: Any) -> Record:
    """The record of a golden file with other values, written by the tables of the page."""
    fields = [_bytes_for(golden(each)[1]) for each in (f"{name}-key", name)]
    layouts = [each.pop("layout") for each in fields]
    one, other = (
        encode(layout, each | more)
        for layout, each, more in zip(layouts, fields, (key or {}, values), strict=True)
    )
    return one, other


def _bytes_for(reading: dict[str, Any]) -> dict[str, Any]:
    def value(name: str, found: Any) -> Any:
        if name.endswith("_id") and isinstance(found, str):
            return UUID(found)
        if name == "custom" and found is not None:
            return bytes.fromhex(found)
        if name.endswith("tags"):
            return {int(number): bytes.fromhex(data) for number, data in found.items()}
        if isinstance(found, list):
            return [{each: value(each, inner) for each, inner in row.items()} for row in found]
        return found

    return {name: value(name, found) for name, found in reading.items() if name != "layout"} | {
        "layout": reading["layout"]
    }


def without_value(record: Record) -> Record:
    return record[0], None


# --- the golden files ---


def test_a_copy_that_was_begun() -> None:
    found = cold(told("copy-started"))
    assert found.findings() == []
    assert found.copies() == {
        COPY: ToldCopy(
            *COPY,
            COPY_STARTED,
            100,
            104,
            176,
            1_700_000_000_005,
            ((2, 100), (3, 102)),
            1_700_000_060_000,
            True,
        )
    }


def test_a_copy_that_was_finished() -> None:
    found = cold(told("copy-started"), told("copy-updated"))
    copy = found.copies()[COPY]
    assert (copy.state, copy.base, copy.event_ms) == (COPY_FINISHED, 100, 1_700_000_061_000)
    assert found.findings() == []


def test_a_log_start_and_a_deletion() -> None:
    found = cold(told("log-start-moved"), told("partition-deleted"))
    assert found.moved_starts() == {(TOPIC, 7): 102}
    assert found.deletions() == {(TOPIC, 7): 0}
    assert (found.copies(), found.findings()) == ({}, [])


def test_an_object_of_the_wal_tier() -> None:
    found = wal(told("wal-object-told"))
    assert found.findings() == []
    ((place, each),) = found.objects().items()
    assert place == (STREAM, 3)
    assert (each.state, each.put_id, each.event_ms) == (COPY_FINISHED, bytes(range(16)), 1_700_000_000_000)
    assert unpack_slices(each.entries) == tuple(
        ToldSlice(TOPIC, partition, 300, 399, 3, 5, 7) for partition in (7, 8)
    )
    assert found.counting() == {STREAM: frozenset({3})}


def test_an_object_of_the_wal_tier_that_goes() -> None:
    found = wal(told("wal-object-told"), told("wal-object-deleted"))
    assert found.findings() == []
    assert {place: each.state for place, each in found.objects().items()} == {(STREAM, 3): DELETE_STARTED}
    assert found.counting() == {}


def test_a_slice_that_is_told_alone_is_read_and_not_kept() -> None:
    found = wal(told("wal-slice-told"))
    assert (found.findings(), found.objects()) == ([], {})


# --- what records mean together ---


def test_null_values_take_a_copy_away() -> None:
    gone = changed("copy-updated", state=DELETE_FINISHED)
    records = [told("copy-started"), told("copy-updated"), gone]
    start, update = without_value(records[0]), without_value(records[1])
    assert cold(*records).copies()[COPY].state == DELETE_FINISHED
    half = cold(*records, start)
    assert (half.copies()[COPY].base, half.copies()[COPY].state) == (-1, DELETE_FINISHED)
    assert half.findings() == []
    assert cold(*records, start, update).copies() == {}


def test_what_is_told_again_or_late_changes_nothing() -> None:
    gone = changed("copy-updated", state=DELETE_STARTED)
    found = cold(told("copy-started"), told("copy-updated"), gone, told("copy-updated"), told("copy-started"))
    assert found.copies()[COPY].state == DELETE_STARTED
    late = wal(told("wal-object-told"), told("wal-object-deleted"), told("wal-object-told"))
    assert late.objects()[STREAM, 3].state == DELETE_STARTED


def test_the_highest_log_start_counts_until_it_is_taken_away() -> None:
    lower = changed("log-start-moved", tags={1000: (50).to_bytes(8, "big")})
    found = cold(told("log-start-moved"), lower)
    assert found.moved_starts() == {(TOPIC, 7): 102}
    found.add(3, 9, *without_value(lower))
    assert found.moved_starts() == {}


def test_a_copy_of_which_no_start_is_told_is_a_finding() -> None:
    (finding,) = cold(told("copy-updated")).findings()
    assert (finding.code, finding.topic_id, finding.partition, finding.first, finding.end) == (
        TIER_RECORD_BAD, "about-the-tier", 3, 0, 1,
    )  # fmt: skip
    assert cold(changed("copy-updated", state=DELETE_FINISHED)).findings() == []


def test_an_object_without_entries_says_nothing_of_its_slices() -> None:
    found = wal(changed("wal-object-told", entries=[]))
    assert found.objects()[STREAM, 3].entries == b""
    assert found.counting() == {STREAM: frozenset({3})}


def test_records_about_a_stream_are_about_no_object() -> None:
    began = changed("wal-object-told", {"seq": -1}, seq=-1, entries=[], state=COPY_STARTED)
    ended = changed("wal-object-deleted", {"seq": -1}, seq=-1, state=COPY_FINISHED)
    found = wal(began)
    assert (found.streams(), found.objects(), found.counting()) == ({STREAM: COPY_STARTED}, {}, {})
    found.add(1, 1, *ended)
    assert found.streams() == {STREAM: COPY_FINISHED}
    assert found.findings() == []


def test_an_object_of_which_only_the_end_is_told_does_not_count() -> None:
    found = wal(changed("wal-object-deleted", state=COPY_FINISHED))
    assert found.counting() == {}


# --- what cannot be ---

BAD_COLD: dict[str, Record] = {
    "no frame": (told("copy-started")[0], b""),
    "another frame": changed("copy-started", frame=2),
    "another version": changed("copy-started", version=1),
    "of another kind": (told("copy-started")[0], told("copy-updated")[1]),
    "an update of another kind": (told("copy-updated")[0], told("copy-started")[1]),
    "a deletion of another kind": (told("partition-deleted")[0], told("copy-updated")[1]),
    "of another topic": changed("copy-started", topic_id=UUID(int=1)),
    "of another partition": changed("copy-started", partition=8),
    "of another copy": changed("copy-started", segment_id=UUID(int=1)),
    "an update of another copy": changed("copy-updated", segment_id=UUID(int=1)),
    "a deletion of another topic": changed("partition-deleted", topic_id=UUID(int=1)),
    "offsets back": changed("copy-started", last_offset=99),
    "below zero": changed("copy-started", base_offset=-1),
    "past all offsets": changed("copy-started", last_offset=(1 << 63) - 1),
    "of no size": changed("copy-started", size=-1),
    "no epochs": changed("copy-started", epochs=[]),
    "epochs back": changed("copy-started", epochs=[{"epoch": 2, "start_offset": 3}] * 2),
    "no state": changed("copy-updated", state=4),
    "a state below zero": changed("copy-started", state=-1),
    "no state of a deletion": changed("partition-deleted", state=3),
    "no log start": changed("log-start-moved", tags={}),
    "half a log start": changed("log-start-moved", tags={1000: b"\0\0\0\1"}),
    "a log start below zero": changed("log-start-moved", tags={1000: b"\xff" * 8}),
    "an odd flag": changed("copy-started", tags={0: b"\2"}),
    "a byte too many": (told("copy-started")[0], (told("copy-started")[1] or b"") + b"\0"),
    "another key version": changed("copy-started", {"version": 1}),
    "another key": (b"\0\3" + told("copy-started")[0][2:], None),
    "half a key": (told("copy-started")[0][:-1], None),
    "more than a key": (told("partition-deleted")[0] + b"\0", None),
    "a copy without an id": changed("copy-started", {"segment_id": UUID(int=0)}, segment_id=UUID(int=0)),
    "a partition below zero": changed("copy-started", {"partition": -1}, partition=-1),
    "a name that is no text": (
        told("copy-updated")[0], (told("copy-updated")[1] or b"").replace("ä".encode(), b"\xff\xff"),
    ),
}  # fmt: skip
BAD_WAL: dict[str, Record] = {
    "of another kind": (told("wal-object-told")[0], told("wal-object-deleted")[1]),
    "of another stream": changed("wal-object-told", generation=3),
    "of another object": changed("wal-object-told", seq=4),
    "a slice of another object": changed("wal-slice-told", seq=4),
    "another slice": changed("wal-slice-told", slice_id=UUID(int=1)),
    "a slice of another kind": (told("wal-slice-told")[0], told("wal-object-told")[1]),
    "of nobody": changed("wal-object-told", {"node": -1}, node=-1),
    "below the stream": changed("wal-object-told", {"seq": -2}, seq=-2),
    "a slice of a stream": changed("wal-slice-told", {"seq": -1}, seq=-1),
    "no state": changed("wal-object-told", state=9),
    "another key": (b"\0\4" + told("wal-slice-told")[0][2:], None),
    "half a key": (told("wal-slice-told")[0][:-1], None),
    "a byte too many": (told("wal-object-told")[0], (told("wal-object-told")[1] or b"") + b"\0"),
}
BAD_ENTRIES = [
    {"start_offset": 7},
    {"start_offset": -1},
    {"start_position": -1},
    {"start_position": 400},
    {"partition": -1},
]


@pytest.mark.parametrize("name", BAD_COLD)
def test_a_record_of_the_cold_tier_that_cannot_be_is_a_finding_and_changes_nothing(name: str) -> None:
    found = cold(told("copy-started"), BAD_COLD[name], told("log-start-moved"))
    (finding,) = found.findings()
    assert (finding.code, finding.partition, finding.first, finding.end) == (TIER_RECORD_BAD, 3, 1, 2)
    assert finding.actual
    assert found.copies() == cold(told("copy-started")).copies()
    assert found.moved_starts() == {(TOPIC, 7): 102}


@pytest.mark.parametrize("name", BAD_WAL)
def test_a_record_of_the_wal_tier_that_cannot_be_is_a_finding_and_changes_nothing(name: str) -> None:
    _refused_alone(BAD_WAL[name])


@pytest.mark.parametrize("change", BAD_ENTRIES, ids=str)
def test_a_slice_that_cannot_be_is_a_finding_of_its_object(change: dict[str, int]) -> None:
    entry = _bytes_for(golden("wal-object-told")[1])["entries"][0]
    _refused_alone(changed("wal-object-told", entries=[entry, entry | change]))


def _refused_alone(record: Record) -> None:
    found = wal(told("wal-object-told"), record)
    (finding,) = found.findings()
    assert (finding.code, finding.partition, finding.first) == (TIER_RECORD_BAD, 1, 1)
    assert found.objects() == wal(told("wal-object-told")).objects()


def test_a_record_without_a_key_is_a_finding() -> None:
    found = ColdTold()
    found.add(0, 5, None, told("copy-started")[1])
    assert [finding.first for finding in found.findings()] == [5]


def test_unknown_tagged_fields_are_skipped() -> None:
    tags = {0: b"\1", 77: b"later"}
    found = cold(
        changed("copy-started", tags=tags, partition_tags={5: b""}),
        changed("copy-updated", tags={1000: b"?"}),
    )
    assert found.findings() == []
    assert found.copies()[COPY].state == COPY_FINISHED


def test_records_belong_to_one_partition() -> None:
    right = tier_partition(TOPIC, 7, 50)
    found = ColdTold("about-the-tier", 50)
    found.add(right, 0, *told("copy-started"))
    assert found.findings() == []
    found.add(right + 1, 0, *told("copy-started"))
    assert [finding.partition for finding in found.findings()] == [right + 1]
    about = WalTold("about-the-wal", 3)
    about.add(1, 0, *told("wal-object-told"))
    about.add(2, 0, *told("wal-object-told"))
    assert [finding.partition for finding in about.findings()] == [2]


@given(st.uuids(), st.integers(0, (1 << 31) - 1), st.integers(1, 1000))
def test_the_partition_is_the_one_that_brokers_write_to(topic_id: UUID, number: int, count: int) -> None:
    assert tier_partition(topic_text(topic_id.bytes), number, count) == metadata_partition(
        TieredPartition(topic_id, number), count
    )


def test_of_many_refused_records_the_first_are_named() -> None:
    found = ColdTold()
    for offset in range(FINDINGS_MAX + 5):
        found.add(0, offset, b"?", None)
    assert (len(found.findings()), found.refused) == (FINDINGS_MAX, FINDINGS_MAX + 5)


# --- bytes that nobody wrote ---

NAMES = (
    "copy-started", "copy-updated", "log-start-moved", "partition-deleted",
    "wal-object-told", "wal-object-deleted", "wal-slice-told",
)  # fmt: skip
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 6), st.binary(max_size=6)), min_size=1, max_size=4
)


@pytest.mark.parametrize("name", NAMES)
def test_of_a_record_that_is_cut_anywhere_nothing_is_taken(name: str) -> None:
    key, value = told(name)
    assert value is not None
    for size in range(len(value)):
        found = _fold(name)
        found.add(0, 0, key, value[:size])
        assert found.refused == 1, size
    for size in range(len(key)):
        found = _fold(name)
        found.add(0, 0, key[:size], None)
        assert found.refused == 1, size


@given(st.sampled_from(NAMES), EDITS, st.booleans())
def test_any_bytes_are_read_or_refused(name: str, edits: list[tuple[int, int, bytes]], is_key: bool) -> None:
    key, value = (bytearray(each or b"") for each in told(name))
    for at, size, new in edits:
        (key if is_key else value)[at : at + size] = new
    found = _fold(name)
    found.add(0, 0, bytes(key), bytes(value))
    assert found.refused == len(_fold_findings(found))


@given(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_rubbish_is_refused(key: bytes | None, value: bytes | None) -> None:
    for found in (ColdTold(), WalTold()):
        found.add(0, 0, key, value)
        found.findings()


def _fold(name: str) -> ColdTold | WalTold:
    return WalTold() if name.startswith("wal") else ColdTold()


def _fold_findings(found: ColdTold | WalTold) -> list[Any]:
    """Those of records that were refused."""
    return [each for each in found.findings() if "no start is told" not in each.actual]


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x07"])
def test_a_count_without_bytes_costs_nothing(count: bytes) -> None:
    key, value = told("wal-object-told")
    assert value is not None
    at = value.index(b"\x03", 3 + 16 + 24)  # two entries: the count plus one
    hostile = value[:at] + count + value[at + 1 :]
    found = WalTold()
    tracemalloc.start()
    found.add(0, 0, key, hostile)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.refused == 1
    assert peak < 1 << 20


@pytest.mark.parametrize("raw", [b"\x80" * 5 + b"\x00", b"\xff\xff\xff\xff\x0f", b"\xff" * 9])
def test_a_number_of_more_than_31_bits_is_refused(raw: bytes) -> None:
    key, value = told("copy-started")
    assert value is not None
    assert cold((key, raw + value[1:])).refused == 1


# --- others who write and read them ---


def generated(seed: int) -> Iterator[Record]:
    made = make(seed, NOW_MS)
    for _, key, value in made.cold.told():
        yield key, value


@pytest.mark.parametrize("seed", range(60))
def test_generated_records_mean_what_brokers_make_of_them(seed: int) -> None:
    fold, found = TierFold(), ColdTold()
    for offset, (key, value) in enumerate(generated(seed)):
        fold.apply(decode_event(key, value))
        found.add(0, offset, key, value)
    assert found.findings() == []
    ours = {copy: each for copy, each in found.copies().items() if each.state != DELETE_FINISHED}
    theirs = {}
    for partition in fold.partitions():
        of = fold.get(partition)
        assert of is not None
        for each in of.copies():
            copy = topic_text(partition.topic_id.bytes), partition.number, topic_text(each.id.bytes)
            theirs[copy] = ToldCopy(
                *copy, int(each.state), each.base_offset, each.end_offset, each.size_bytes,
                each.max_timestamp_ms, each.epochs, each.event_timestamp_ms, not each.has_aborted,
            )  # fmt: skip
        about = topic_text(partition.topic_id.bytes), partition.number
        assert found.moved_starts().get(about, 0) == of.log_start
        assert found.deletions().get(about) == (None if of.deletion is None else int(of.deletion))
    assert ours == theirs


@pytest.mark.parametrize("seed", range(60))
def test_generated_records_of_the_wal_tier_say_what_was_stored(seed: int) -> None:
    made = make(seed, NOW_MS)
    found = WalTold()
    for offset, (_, key, value) in enumerate(made.wal.told()):
        found.add(0, offset, key, value)
    assert found.findings() == []
    stored = {(StreamKey(*life.stream), each.seq): each for life in made.wal.streams for each in life.objects}
    for place, told_of in found.objects().items():
        each = stored[place]
        if not told_of.entries:
            continue
        assert told_of.put_id == each.put_id
        assert [
            (row.topic_id, row.partition, row.start, row.end) for row in unpack_slices(told_of.entries)
        ] == [
            (piece.history.topic.short_id, piece.history.number, piece.start, piece.end)
            for piece in each.slices
        ]
    counting = found.counting()
    for life in made.wal.streams:
        seqs = {each.seq for each in life.objects if each.seq > life.boundary}
        assert counting.get(StreamKey(*life.stream), frozenset()) <= seqs
