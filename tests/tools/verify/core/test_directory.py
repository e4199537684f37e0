"""A data directory: which logs it has, what its checkpoints say, and what is nobody's log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools.verify.core import real_logs
from tools.verify.core.directory import CHECKPOINT_OUTSIDE, DIRECTORY_UNKNOWN, Directory, list_directory
from tools.verify.core.stores import Listed, SourceFailed, open_source

ID = "0bWkZ1DLS9mFlNbIkEXpbg"


def listed(path: Path, number: int = 0) -> Directory:
    return list_directory(open_source(str(path)), number)


@pytest.mark.requirement("1176-16")
def test_the_logs_of_a_real_broker(made: Path) -> None:
    found = listed(made)
    assert found.faults == []
    assert found.aside == []
    assert found.is_clean is ("killed" not in str(made))
    assert found.properties["node.id"] == "1"
    assert len(found.properties["cluster.id"]) == 22
    logs = {log.name: log for log in found.logs}
    assert {f"{topic}-0" for topic in real_logs.TOPICS} <= set(logs)
    for name, log in logs.items():
        metadata = (made / name / "partition.metadata").read_text()
        assert f"topic_id: {log.topic_id}" in metadata
        assert (log.topic, log.partition) == (name.rpartition("-")[0], int(name.rpartition("-")[2]))
        assert log.is_live is not found.is_clean
        assert log.bases == sorted(int(path.stem) for path in (made / name).glob("*.log"))
        assert {each.key: each.size for each in log.files} == {
            f"{name}/{path.name}": path.stat().st_size for path in (made / name).iterdir()
        }
    assert logs["trimmed-0"].log_start == 100
    for name in ("plain-0", "mixed-0", "compact-0"):
        assert logs[name].high_watermark > 0
        assert len(logs[name].bases) > 1


def test_pieces_of_a_log_are_whole_segments_and_all_of_them(made: Path) -> None:
    for log in listed(made).logs:
        for size in (1, 7_000, 13_000, 1 << 40):
            parts = log.parts(size)
            assert parts[-1][1] == 1 << 62
            assert [first for first, _ in parts[1:]] == [end for _, end in parts[:-1]]
            assert sum(sum(first <= base < end for first, end in parts) for base in log.bases) == len(
                log.bases
            )
            assert len(parts) == (len(log.bases) if size == 1 else 1 if size == 1 << 40 else len(parts))


def write(root: Path, **files: bytes) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


METADATA = f"version: 0\ntopic_id: {ID}\n".encode()


def test_folders_that_are_no_logs_are_left_aside(tmp_path: Path) -> None:
    uuid = "0123456789abcdef0123456789abcdef"
    names = ["a-0", "a.b-c-12", "store", "wal", "x", f"a-0.{uuid}-delete", f"b-3.{uuid}-future", "a-4-stray"]
    for name in names:
        write(tmp_path, **{f"{name}/partition.metadata": METADATA})
    write(
        tmp_path,
        **{"empty-7/notes.txt": b"", "a-0/deeper/00000000000000000000.log": b"x", "a-99999999999/x": b""},
    )
    found = listed(tmp_path)
    assert [(log.topic, log.partition, log.topic_id) for log in found.logs] == [
        ("a", 0, ID),
        ("a.b-c", 12, ID),
    ]
    assert found.aside == [f"a-0.{uuid}-delete", "a-4-stray", f"b-3.{uuid}-future"]
    assert found.logs[0].bases == []
    assert found.faults == []


def test_a_segment_that_is_about_to_take_anothers_place_has_it(tmp_path: Path) -> None:
    old, new = f"{0:020d}.log", f"{0:020d}.log.swap"
    write(
        tmp_path,
        **{
            f"a-0/{old}": b"old",
            f"a-0/{new}": b"newer",
            f"a-0/{9:020d}.log": b"",
            f"a-0/{9:020d}.log.cleaned": b"",
        },
    )
    (log,) = listed(tmp_path).logs
    assert log.bases == [0, 9]
    assert log.parts(5) == [(0, 1 << 62)]
    assert log.parts(4) == [(0, 9), (9, 1 << 62)]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write(tmp_path, **{"a-0/partition.metadata": b"?", "recovery-point-offset-checkpoint": b"0\n1\na 0 x\n"})
    write(tmp_path, **{"replication-offset-checkpoint": b"0\n1\na 0 5\n"})
    found = listed(tmp_path, 3)
    assert [(name, fault.code, fault.place, fault.position) for name, fault in found.faults] == [
        ("", CHECKPOINT_OUTSIDE, "3:recovery-point-offset-checkpoint", 4),
        ("a-0", DIRECTORY_UNKNOWN, "3:a-0/partition.metadata", 0),
    ]
    (log,) = found.logs
    assert (log.recovery_point, log.high_watermark, log.log_start, log.topic_id) == (-1, 5, -1, "")


def test_hostile_names_are_no_logs(tmp_path: Path) -> None:
    for name in (b"\xff-0", b"a\n-0", "ä-0".encode(), b"-0", b" -1", b"a--1", b"a-0x"):
        folder = bytes(tmp_path) + b"/" + name
        Path(folder.decode(errors="surrogateescape")).mkdir()
        Path((folder + b"/partition.metadata").decode(errors="surrogateescape")).write_bytes(METADATA)
    assert [log.name for log in listed(tmp_path).logs] == ["a--1"]
    assert re.fullmatch(r"a-", listed(tmp_path).logs[0].topic)


def test_a_directory_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(SourceFailed):
        listed(tmp_path / "nowhere")


def test_sizes_are_those_of_the_listing(tmp_path: Path) -> None:
    write(tmp_path, **{f"a-0/{0:020d}.log": b"12345"})
    (log,) = listed(tmp_path).logs
    assert [(each.key, each.size) for each in log.files] == [(f"a-0/{0:020d}.log", 5)]
    assert isinstance(log.files[0], Listed)
