"""`tidewal dump-log`: sound files are shown whole, damaged ones end in one line with position and reason."""

from __future__ import annotations

import io
import json
import struct
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from protocol import records
from protocol.compression import Codec
from protocol.stored.consumer_groups import (
    ClassicSide,
    CurrentAssignment,
    CurrentRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    TargetRecord,
)
from protocol.stored.offsets import (
    CommittedOffset,
    GroupMember,
    GroupMetadata,
    GroupRecord,
    OffsetRecord,
    encode_coordinator_record,
)
from storage.producers import ProducerTable
from storage.segment import SegmentMark
from tools import dump_log
from tools.console import Failure

NOW = 1_700_000_000_000
BATCHES = dump_log.RecordFilter()
ALL = dump_log.RecordFilter(records=True)


def batch(base_offset: int, values: list[bytes], *, timestamp: int = NOW, **options: Any) -> bytes:
    rows = [(b"key", value, (("h", b"x"), ("empty", None)), timestamp + n) for n, value in enumerate(values)]
    return bytes(records.build_batch(rows, base_offset=base_offset, leader_epoch=3, **options))


def segment(folder: Path, *batches: bytes, base: int = 0) -> Path:
    path = folder / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def shown(*paths: Path, wanted: dump_log.RecordFilter = BATCHES) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = dump_log.dump_files(list(paths), wanted=wanted, as_json=True)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def text_of(*paths: Path, wanted: dump_log.RecordFilter = BATCHES) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = dump_log.dump_files(list(paths), wanted=wanted, as_json=False)
    return code, out.getvalue()


@pytest.mark.parametrize("codec", list(Codec))
def test_segment_with_records(tmp_path: Path, codec: Codec) -> None:
    values = [b"one", b"", b"\xff\x00"]
    path = segment(
        tmp_path,
        batch(0, values, codec=codec),
        batch(3, [b"two"], producer_id=9, producer_epoch=1, base_sequence=4),
    )
    code, rows = shown(path, wanted=ALL)
    assert code == 0
    batches = [row for row in rows if row["kind"] == "batch"]
    assert [(row["base_offset"], row["last_offset"], row["codec"]) for row in batches] == [
        (0, 2, codec.name.lower()),
        (3, 3, "none"),
    ]
    assert (batches[1]["producer_id"], batches[1]["producer_epoch"], batches[1]["base_sequence"]) == (9, 1, 4)
    found = [row for row in rows if row["kind"] == "record"]
    assert [row["value"] for row in found] == ["one", "", {"base64": "/wA="}, "two"]
    assert found[0]["headers"] == [["h", "x"], ["empty", None]]
    assert found[2]["timestamp"] == NOW + 2
    end = rows[-1]
    assert (end["kind"], end["ok"], end["batches"], end["records"]) == ("end", True, 2, 4)
    assert (end["bytes"], end["first_offset"], end["last_offset"]) == (path.stat().st_size, 0, 3)


def test_segment_for_people(tmp_path: Path) -> None:
    path = segment(tmp_path, batch(0, [b"hello"]))
    code, text = text_of(path, wanted=ALL)
    assert code == 0
    assert "2023-11-14T22:13:20.000Z" in text
    assert 'value "hello"' in text
    assert "producer_id" not in text, "a batch without a producer does not speak of one"
    assert (
        text.splitlines()[-1]
        == f"{path}: batches 1, records 1, bytes {path.stat().st_size}, first offset 0, last offset 0"
    )


def test_control_batches_are_named(tmp_path: Path) -> None:
    marker = records.end_txn_marker(
        commit=False, producer_id=5, producer_epoch=0, timestamp=NOW, coordinator_epoch=7
    )
    code, rows = shown(segment(tmp_path, bytes(marker)), wanted=ALL)
    assert code == 0
    control = next(row for row in rows if row["kind"] == "record")
    assert (control["control"], control["coordinator_epoch"]) == ("abort", 7)


BASE_OFFSET = range(8)  # a base offset that rose is a gap, and compaction leaves gaps as well
LEADER_EPOCH = range(12, 16)  # outside the CRC, and any value may be right


def test_every_flipped_byte_and_every_cut_is_one_line(tmp_path: Path) -> None:
    """Whatever is done to the second batch, the first is shown and the damage has position, offset and
    reason.
    """
    first, second = batch(10, [b"one", b"two"]), batch(12, [b"three"])
    for at in range(1, len(second)):
        assert_damaged(segment(tmp_path, first, second[:at], base=10), position=len(first), offset=12)
    for at in range(len(second)):
        flipped = bytearray(second)
        flipped[at] ^= 0xFF
        path = segment(tmp_path, first, bytes(flipped), base=10)
        if at in BASE_OFFSET or at in LEADER_EPOCH:
            assert shown(path)[1][-1]["kind"] == "end"
        else:
            assert_damaged(path, position=len(first), offset=12)


def assert_damaged(path: Path, *, position: int, offset: int) -> None:
    code, rows = shown(path, wanted=ALL)
    assert code == 1
    assert sum(row["kind"] == "batch" for row in rows) == 1
    end = rows[-1]
    assert (end["ok"], end["position"], end["offset"]) == (False, position, offset)
    assert end["reason"]


def test_damage_for_people(tmp_path: Path) -> None:
    path = segment(tmp_path, batch(0, [b"one"]) + b"\0" * 100)
    code, text = text_of(path)
    assert code == 1
    last = text.splitlines()[-1]
    assert last.startswith(f"{path}: CORRUPT at position {path.stat().st_size - 100} (offset 1): ")
    assert "batches 1" in last


@given(data=st.binary(max_size=400))
def test_no_bytes_end_in_a_trace(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    names = [f"{0:020d}{suffix}" for suffix in dump_log._BY_SUFFIX] + list(dump_log._BY_NAME)
    for name in names:
        (folder / name).write_bytes(data)
        code, rows = shown(folder / name, wanted=ALL)
        assert code in (0, 1)
        assert rows[-1]["kind"] == "end"
        (folder / name).unlink()


# --- __consumer_offsets ---


def test_decodes_what_a_coordinator_wrote(tmp_path: Path) -> None:
    commit = CommittedOffset(offset=17, leader_epoch=2, metadata="note", commit_timestamp_ms=NOW)
    member = GroupMember(
        member_id="m-1",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10,
        subscription=b"",
        assignment=b"",
    )
    group = GroupMetadata(
        protocol_type="consumer", generation=3, protocol="range", leader="m-1", members=(member,)
    )
    pairs = [
        encode_coordinator_record(record)
        for record in (
            OffsetRecord(group_id="g", topic="t", partition=4, committed=commit),
            OffsetRecord(group_id="g", topic="t", partition=5, committed=None),
            GroupRecord(group_id="g", metadata=group),
            GroupRecord(group_id="gone", metadata=None),
        )
    ]
    pairs.append((b"\0\x63other", b"kept as it is"))
    path = segment(tmp_path, bytes(records.build_batch([(key, value, (), NOW) for key, value in pairs])))
    code, rows = shown(path, wanted=dump_log.RecordFilter(decode="offsets"))
    assert code == 0
    offset, no_offset, metadata, no_group, other = (row for row in rows if row["kind"] == "decoded")
    assert (offset["group"], offset["topic"], offset["partition"]) == ("g", "t", 4)
    assert (offset["committed_offset"], offset["leader_epoch"], offset["metadata"]) == (17, 2, "note")
    assert (no_offset["deletes"], no_offset["partition"]) == ("offset", 5)
    assert (metadata["generation"], metadata["protocol"], metadata["leader"]) == (3, "range", "m-1")
    assert [row["member_id"] for row in metadata["members"]] == ["m-1"]
    assert (no_group["deletes"], no_group["group"]) == ("group", "gone")
    assert other["value"] == "kept as it is"
    counted = {
        name: rows[-1][name] for name in ("offset_commits", "offset_tombstones", "groups", "group_tombstones")
    }
    assert set(counted.values()) == {1}


def test_decodes_groups_that_the_server_assigns(tmp_path: Path) -> None:
    topic_id = UUID(int=7)
    current = CurrentAssignment(
        epoch=5, state=MemberState.UNREVOKED_PARTITIONS, assigned={topic_id: {2: 3, 1: 3}}
    )
    member = MemberMetadata(
        topics=("t",), classic=ClassicSide(session_timeout_ms=9, protocols=(("range", b"x"),))
    )
    pairs = [
        encode_coordinator_record(record)
        for record in (
            CurrentRecord(group_id="g", member_id="m", value=current),
            MemberRecord(group_id="g", member_id="m", value=member),
            TargetRecord(group_id="g", member_id="m", value={topic_id: (1, 2)}),
            MemberRecord(group_id="g", member_id="gone", value=None),
        )
    ]
    path = segment(tmp_path, bytes(records.build_batch([(key, value, (), NOW) for key, value in pairs])))
    code, rows = shown(path, wanted=dump_log.RecordFilter(decode="offsets"))
    assert code == 0
    where, who, target, gone = (row for row in rows if row["kind"] == "decoded")
    assert (where["of"], where["group"], where["member_id"]) == ("Current", "g", "m")
    assert (where["epoch"], where["state"]) == (5, "unrevoked_partitions")
    assert where["assigned"] == {str(topic_id): [1, 2]}
    assert (who["topics"], who["classic"]) == (["t"], {"session_timeout_ms": 9, "protocols": ["range"]})
    assert target["partitions"] == {str(topic_id): [1, 2]}
    assert (gone["deletes"], gone["member_id"]) == ("Member", "gone")
    assert rows[-1]["consumer_groups"] == 4


def test_what_cannot_be_decoded_is_damage(tmp_path: Path) -> None:
    path = segment(tmp_path, bytes(records.build_batch([(b"\0\1\0\x09short", b"", (), NOW)], base_offset=3)))
    code, rows = shown(path, wanted=dump_log.RecordFilter(decode="offsets"))
    assert (code, rows[-1]["position"], rows[-1]["offset"]) == (1, 0, 3)
    assert "not a record of this topic" in rows[-1]["reason"]


# --- indexes ---


def index_bytes(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def test_index_is_checked_against_its_log(tmp_path: Path) -> None:
    first, second = batch(100, [b"a", b"b"]), batch(102, [b"c"])
    segment(tmp_path, first, second, base=100)
    index = tmp_path / f"{100:020d}.index"
    index.write_bytes(index_bytes((1, 0), (2, len(first))))
    code, rows = shown(index)
    assert code == 0
    assert [(row["offset"], row["position"]) for row in rows[:-1]] == [(101, 0), (102, len(first))]
    index.write_bytes(index_bytes((1, 0), (2, len(first) - 1)))
    code, rows = shown(index)
    assert (code, rows[-1]["position"]) == (1, 8)
    index.write_bytes(index_bytes((2, len(first)), (1, 0)))
    assert shown(index)[0] == 1
    index.write_bytes(index_bytes((1, 0))[:-3])
    assert shown(index)[1][-1]["reason"] == "5 bytes left over, entries have 8"


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_preallocated_zeros_are_not_entries(tmp_path: Path, kind: str) -> None:
    segment(tmp_path, batch(0, [b"a"]))
    path = tmp_path / f"{0:020d}.{kind}"
    path.write_bytes(bytes(8 * 12 * 100))
    code, rows = shown(path)
    assert (code, rows[-1]["entries"]) == (0, 0)


def test_timeindex_is_checked_against_its_log(tmp_path: Path) -> None:
    segment(tmp_path, batch(0, [b"a", b"b"]), batch(2, [b"c"], timestamp=NOW + 50))
    path = tmp_path / f"{0:020d}.timeindex"
    path.write_bytes(struct.pack(">qi", NOW + 1, 1) + struct.pack(">qi", NOW + 50, 2))
    code, rows = shown(path)
    assert (code, rows[-1]["entries"]) == (0, 2)
    path.write_bytes(struct.pack(">qi", NOW + 1, 1) + struct.pack(">qi", NOW + 49, 2))
    code, rows = shown(path)
    assert (code, rows[-1]["position"]) == (1, 12)


def test_transaction_index(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 5, 11, 21, 22) + struct.pack(">hqqqq", 0, 5, 33, 43, 44))
    code, rows = shown(path)
    assert (code, rows[-1]["entries"], rows[0]["first_offset"]) == (0, 2, 11)
    path.write_bytes(struct.pack(">hqqqq", 1, 5, 11, 21, 22))
    assert shown(path)[0] == 1


def snapshot_bytes(*producers: tuple[int, ...]) -> bytes:
    body = struct.pack(">i", len(producers)) + b"".join(struct.pack(">qhiqiqiq", *row) for row in producers)
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_producer_snapshot(tmp_path: Path) -> None:
    path = tmp_path / f"{7:020d}.snapshot"
    data = snapshot_bytes((5, 0, 39, 42, 9, NOW, 0, -1))
    path.write_bytes(data)
    code, rows = shown(path)
    assert (code, rows[0]["producer_id"], rows[0]["last_sequence"], rows[-1]["producers"]) == (0, 5, 39, 1)
    for damaged in (data[:-1], data + b"\0", data[:20] + b"\1" + data[21:], b"", b"\0\2" + data[2:]):
        path.write_bytes(damaged)
        assert shown(path)[0] == 1


def test_a_snapshot_with_a_mark_of_its_segment(tmp_path: Path) -> None:
    path = tmp_path / f"{7:020d}.snapshot"
    mark = SegmentMark(100_000, 8, 1, 24, 2, 34, 3)
    path.write_bytes(ProducerTable().encode(mark.encode()))
    code, rows = shown(path)
    assert (code, rows[-1]["producers"]) == (0, 0)
    told = {name: value for name, value in rows[0].items() if name not in ("file", "kind")}
    assert (rows[0]["kind"], list(told.values())) == ("mark", list(mark))
    path.write_bytes(ProducerTable().encode(mark.encode() + b"x"))
    assert shown(path)[0] == 1


# --- small files ---


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("leader-epoch-checkpoint", "0\n2\n0 0\n3 17\n", 2),
        ("recovery-point-offset-checkpoint", "0\n1\nsome-topic 0 17\n", 1),
        ("recovery-point-offset-checkpoint", "0\n1\n2024 0 17\n", 1),
        ("log-start-offset-checkpoint", "0\n0\n", 0),
        ("cleaner-offset-checkpoint", "", 0),
        ("partition.metadata", "version: 0\ntopic_id: V7wjNzMrSR278fouVXsmSw", 2),
        ("meta.properties", "#\nnode.id=1\ncluster.id=abc\n", 2),
    ],
)
def test_checkpoints(tmp_path: Path, name: str, text: str, entries: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    code, rows = shown(path)
    assert (code, rows[-1]["entries"]) == (0, entries)


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "0\n2\n0 0\n",
        "0\n1\nzero 0\n",
        "0\n",
        "0\nx\n",
        "0\n1\n0 0 0 0\n",
        "0\n\u00b2\n",
        "0\n1\n\u00b2 0\n",
        "0\n1\n0 " + "1" * 5000,
    ],
)
def test_damaged_checkpoint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(text)
    code, rows = shown(path)
    assert code == 1
    assert rows[-1]["reason"]


def test_clean_shutdown_marker(tmp_path: Path) -> None:
    path = tmp_path / ".kafka_cleanshutdown"
    path.write_text('{"version":0,"brokerEpoch":15}')
    code, rows = shown(path)
    assert (code, rows[0]["brokerEpoch"]) == (0, 15)


@pytest.mark.parametrize("text", ["[1]", "{", '{"version":NaN}', "[" * 100_000])
def test_damaged_clean_shutdown_marker(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".kafka_cleanshutdown"
    path.write_text(text)
    assert shown(path)[0] == 1


@pytest.mark.parametrize("name", ["\u00b2\u00b2", "1" * 30])
def test_a_name_that_only_looks_like_an_offset_is_none(tmp_path: Path, name: str) -> None:
    path = segment(tmp_path, batch(0, [b"a"]))
    code, rows = shown(path.rename(tmp_path / f"{name}.log"))
    assert (code, rows[-1]["records"]) == (0, 1)
    (tmp_path / f"{name}.index").write_bytes(b"")
    assert shown(tmp_path / f"{name}.index")[0] == 1


@pytest.mark.parametrize("name", ["none.log", "notes.txt", "."])
def test_what_is_not_there_or_not_known_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(Failure):
        shown(tmp_path / name)


def test_swap_and_deleted_files_are_read_as_what_they_were(tmp_path: Path) -> None:
    path = segment(tmp_path, batch(0, [b"a"]))
    for suffix in (".deleted", ".swap", ".cleaned"):
        assert shown(path.rename(path.with_suffix(".log" + suffix)))[1][-1]["records"] == 1
        path = segment(tmp_path, batch(0, [b"a"]))
