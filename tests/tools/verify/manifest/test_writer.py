"""A manifest is read back as it was written, up to its last whole block when its writer is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from tools.verify.core.manifest import Manifest, id_text, open_rows, read_manifests
from tools.verify.core.manifest_digests import mixed
from tools.verify.core.manifest_files import Guarantee, Outcome, read_head
from tools.verify.manifest import outcomes
from tools.verify.manifest.writer import ROWS_PER_BLOCK, ManifestWriter, sums_of

TOPIC_ID = bytes(range(16))


def writer_at(path: Path, **also: bool) -> ManifestWriter:
    return ManifestWriter(path, started_ms=5, clock=lambda: 0.0, writer="test", cluster_id="c", **also)


def note(writer: ManifestWriter, number: int, *, topic: int = 0, partition: int = 0) -> None:
    writer.note(
        topic,
        partition,
        order=writer.send(),
        key_hash=number,
        value_hash=number * 3,
        outcome=outcomes.Outcome.OK,
        offset=number,
    )


def rows_of(manifest: Manifest) -> list[int]:
    return [
        offset for file in manifest.files for _, rows in open_rows(file) for offset in rows["offset"].tolist()
    ]


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    with writer_at(tmp_path / "a.manifest", is_idempotent=True, is_unique=True) as writer:
        topic = writer.topic("orders", TOPIC_ID)
        assert writer.topic("orders") == topic
        for number in range(ROWS_PER_BLOCK + 5):
            note(writer, number, topic=topic, partition=number % 3)
    manifest = read_manifests([str(tmp_path)], {})
    assert (manifest.findings, manifest.counted, manifest.unchecked) == ([], [], [])
    assert manifest.rows == ROWS_PER_BLOCK + 5
    assert manifest.partitions() == {(id_text(TOPIC_ID), number) for number in range(3)}
    assert rows_of(manifest) == list(range(ROWS_PER_BLOCK + 5))
    (file,) = manifest.files
    assert file.is_whole
    assert (file.head.started_ms, file.head.writer, file.head.cluster_id) == (5, "test", "c")
    assert file.head.guarantees == Guarantee.IDEMPOTENT | Guarantee.UNIQUE


def test_a_writer_that_does_not_know_the_id_is_told_by_the_name(tmp_path: Path) -> None:
    with writer_at(tmp_path / "a.manifest") as writer:
        note(writer, 1, topic=writer.topic("orders"))
        note(writer, 2, topic=writer.topic("<gone>"))
    manifest = read_manifests([str(tmp_path)], {"orders": "A" * 22})
    assert manifest.partitions() == {("A" * 22, 0)}
    assert [each.why for each in manifest.unchecked] == [
        "Topic <gone> of the manifest is not known by that name."
    ]


def test_a_manifest_without_files_is_told_as_unchecked(tmp_path: Path) -> None:
    assert [each.what for each in read_manifests([str(tmp_path)], {}).unchecked] == ["manifest"]


def test_no_file_is_written_over(tmp_path: Path) -> None:
    writer_at(tmp_path / "a.manifest").close()
    with pytest.raises(FileExistsError):
        writer_at(tmp_path / "a.manifest")


def test_rows_leave_when_a_block_is_full_or_a_second_old(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "a.manifest"
    writer = ManifestWriter(path, started_ms=5, clock=lambda: now[0])
    note(writer, 0, topic=writer.topic("t"))
    size = path.stat().st_size
    writer.flush_old()
    assert path.stat().st_size == size
    now[0] = 1.0
    writer.flush_old()
    assert path.stat().st_size == size + 28 + 48
    for number in range(ROWS_PER_BLOCK):
        note(writer, number)
    assert path.stat().st_size == size + 28 + 48 + 28 + ROWS_PER_BLOCK * 48
    writer.close()
    note(writer, 1)
    writer.close()


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    with writer_at(tmp_path / "a.manifest") as writer:
        topic = writer.topic("t", TOPIC_ID)
        threads = [
            threading.Thread(target=lambda: [note(writer, number, topic=topic) for number in range(9000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    manifest = read_manifests([str(tmp_path)], {})
    assert (manifest.findings, manifest.rows) == ([], 36_000)
    orders = np.concatenate([rows["order"] for _, rows in open_rows(manifest.files[0])])
    assert sorted(orders.tolist()) == list(range(1, 36_001))


def test_offsets_that_go_back_from_one_block_to_the_next_are_named(tmp_path: Path) -> None:
    with writer_at(tmp_path / "a.manifest", is_ordered=True) as writer:
        topic = writer.topic("t", TOPIC_ID)
        for number in (10, 11, 5, 12):
            note(writer, number, topic=topic)
            writer.flush()
    manifest = read_manifests([str(tmp_path)], {})
    assert [(each.code, each.first) for each in manifest.findings] == [("manifest-order", 5)]


# --- killed ---

KILLED = """
import sys
from pathlib import Path
from tests.tools.verify.manifest.test_writer import note, writer_at
writer = writer_at(Path(sys.argv[1]))
topic = writer.topic("t", bytes(range(16)))
for number in range(10**9):
    note(writer, number, topic=topic)
    if number == 50_000:
        print("go", flush=True)
"""


def test_a_killed_writer_leaves_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.manifest"
    folder = Path(__file__).parent.parent.parent.parent.parent
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, cwd=folder)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"go"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    manifest = read_manifests([str(tmp_path)], {})
    assert manifest.findings == []
    assert [each.what for each in manifest.counted] == ["manifest-unfinished"]
    assert manifest.rows >= 3 * ROWS_PER_BLOCK
    assert rows_of(manifest) == list(range(manifest.rows))
    assert not manifest.files[0].is_whole


def small(path: Path, *, keeps_rows: bool = True) -> bytes:
    writer = writer_at(path, keeps_rows=keeps_rows)
    topic = writer.topic("t", TOPIC_ID)
    for number in range(6):
        note(writer, number, topic=topic)
        if number % 2:
            writer.flush()
    writer.close()
    return path.read_bytes()


def test_a_file_cut_anywhere_is_readable_up_to_there_and_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "a.manifest"
    whole = small(path)
    ends = [0]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        manifest = read_manifests([str(tmp_path)], {})
        assert manifest.findings == [], size
        assert [each.what for each in manifest.counted] == ["manifest-unfinished"], size
        assert rows_of(manifest) == list(range(manifest.rows))
        ends.append(manifest.rows)
    assert ends == sorted(ends)
    assert set(ends) == {0, 2, 4, 6}


def test_every_altered_byte_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "a.manifest"
    whole = small(path)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        manifest = read_manifests([str(tmp_path)], {})
        assert {each.code for each in manifest.findings} == {"manifest-bad-file"}, at
        assert {each.place for each in manifest.findings} == {"manifest:a.manifest"}
        assert not any(file.is_whole for file in manifest.files)


def test_what_follows_damaged_content_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.manifest"
    whole = bytearray(small(path))
    at = bytes(whole).index(b"TWMB", bytes(whole).index(b"TWMB") + 1)
    whole[at + 28] ^= 1
    path.write_bytes(whole)
    manifest = read_manifests([str(tmp_path)], {})
    assert [(each.code, each.position) for each in manifest.findings] == [("manifest-bad-file", at)]
    assert rows_of(manifest) == [2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(300))
def test_hostile_bytes_never_crash_the_reader(seed: int, tmp_path: Path) -> None:
    """With right checksums too: whatever a block says, it is refused or bounded."""
    rng = random.Random(seed)
    path = tmp_path / "a.manifest"
    whole = bytearray(small(path, keeps_rows=bool(seed % 2)))
    head_size = int.from_bytes(whole[6:10], "big")
    blocks = []
    at = head_size
    while at < len(whole):
        size = int.from_bytes(whole[at + 16 : at + 20], "big")
        blocks.append((bytearray(whole[at : at + 28]), bytearray(whole[at + 28 : at + 28 + size])))
        at += 28 + size
    for head, content in blocks:
        for part, start in ((head, 4), (content, 0)):
            for _ in range(rng.randrange(3)):
                if len(part) > start:
                    part[rng.randrange(start, len(part))] = rng.choice([0, 1, 127, 128, 255])
        if rng.random() < 0.7:
            head[16:20] = len(content).to_bytes(4, "big")
        head[20:24] = crc32c(content).to_bytes(4, "big")
        head[24:28] = crc32c(head[:24]).to_bytes(4, "big")
    path.write_bytes(bytes(whole[:head_size]) + b"".join(head + content for head, content in blocks))
    manifest = read_manifests([str(tmp_path)], {})
    assert all(each.code in {"manifest-bad-file", "manifest-order"} for each in manifest.findings)
    with path.open("rb") as file:
        assert read_head(file) is not None


# --- sums ---


def test_sums_replace_rows_with_an_offset_and_only_those(tmp_path: Path) -> None:
    rng = random.Random(1)
    path = tmp_path / "a.manifest"
    offsets: dict[int, list[int]] = {0: [], 1: []}
    with writer_at(path, keeps_rows=False) as writer:
        topic = writer.topic("t", TOPIC_ID)
        for _ in range(40_000):
            partition = rng.randrange(2)
            number = len(offsets[partition])
            offsets[partition].append(number)
            note(writer, number, topic=topic, partition=partition)
        writer.note(topic, 0, order=writer.send(), key_hash=1, value_hash=2, outcome=outcomes.Outcome.UNKNOWN)
    manifest = read_manifests([str(tmp_path)], {})
    assert rows_of(manifest) == [-1]
    assert manifest.rows == 40_001
    for partition, own in offsets.items():
        numbers = np.array(own, np.uint64)
        words = mixed(numbers.astype(np.int64), numbers, numbers * np.uint64(3))
        sums = manifest.sums[id_text(TOPIC_ID), partition]
        assert sums.buckets.tolist() == [0, 1]
        assert int(sums.records.sum()) == len(own)
        assert int(sums.low.sum()) == int((words & np.uint64(0xFFFFFFFF)).sum())
        assert int(sums.high.sum()) == int((words >> np.uint64(32)).sum())
    assert path.stat().st_size < 2000


def test_no_rows_have_no_sums() -> None:
    assert sums_of(b"") == (b"", b"")


# --- outcomes ---


@pytest.mark.parametrize("code", [6, 7, 20, 56, -1, 13, 45, 47, 9999])
def test_nobody_knows_after_a_timeout_or_a_change_of_leader(code: int) -> None:
    assert outcomes.outcome_of(code) is outcomes.Outcome.UNKNOWN


@pytest.mark.parametrize("code", [10, 18, 87])
def test_a_record_that_no_attempt_gets_in_is_refused(code: int) -> None:
    assert outcomes.outcome_of(code) is outcomes.Outcome.FAIL


@pytest.mark.parametrize("code", [2, 3, 5, 19])
def test_a_refusal_says_nothing_of_the_attempt_before(code: int) -> None:
    assert outcomes.outcome_of(code) is outcomes.Outcome.UNKNOWN


def test_both_sides_mean_the_same_by_an_outcome() -> None:
    assert [(each.name, int(each)) for each in outcomes.Outcome] == [
        (each.name, int(each)) for each in Outcome
    ]


@pytest.mark.parametrize("outcome", range(3))
def test_an_end_that_counts_otherwise_is_damage(outcome: int, tmp_path: Path) -> None:
    path = tmp_path / "a.manifest"
    with writer_at(path) as writer:
        topic = writer.topic("t", TOPIC_ID)
        for number in range(5):
            note(writer, number, topic=topic)
    data = path.read_bytes()
    start = len(data) - 60
    end = [int.from_bytes(data[-32 + at : len(data) - 24 + at], "big") for at in range(0, 32, 8)]
    assert end == [5, 5, 0, 0]
    end[1 + outcome] += 1
    content = b"".join(each.to_bytes(8, "big") for each in end)
    head = data[start : start + 20] + crc32c(content).to_bytes(4, "big")
    path.write_bytes(data[:start] + head + crc32c(head).to_bytes(4, "big") + content)
    (found,) = read_manifests([str(tmp_path)], {}).findings
    assert (found.code, found.position) == ("manifest-bad-file", start)
