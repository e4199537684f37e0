"""A topic read without its broker is what the broker answered, whatever holds it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools.verify.left_behind import IN_STORE, KINDS, LeftBehind, leave
from tools.topic_source import Aborted, pieces
from tools.verify.core.kafka_files import offset_entries
from tools.verify.core.stores import Source, open_source
from tools.verify.core.topic import ClusterBytes, Missing, NoSuchTopic, PartitionBytes, open_topic, read_part

LATER = 1 << 62


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> LeftBehind:
    return leave(tmp_path_factory.mktemp("left"))[0]


def opened(sources: Sequence[Source], name: str) -> PartitionBytes:
    return open_topic(sources, name).partition(0)


def places(left: LeftBehind, which: str) -> list[Source]:
    found = []
    if "store" in which:
        found.append(open_source(left.url))
    if "data" in which:
        found.append(open_source(str(left.data)))
    return found


CASES = [
    *((name, "store and data") for name in KINDS),
    *((name, "store") for name in IN_STORE),
    ("plain", "data"),
    ("open", "data"),
]


@pytest.mark.requirement("1176-41")
@pytest.mark.parametrize(("name", "which"), CASES)
def test_it_is_what_the_broker_answered(left: LeftBehind, name: str, which: str) -> None:
    wanted = left.answers[name]
    found = opened(places(left, which), name)
    assert found.bounds == (wanted.start, wanted.end)
    assert found.stable_end == wanted.stable_end
    assert not found.holes(0, LATER)
    raw = list(found.batches(0, LATER))
    offsets = [batch.head.base_offset for batch in raw]
    assert offsets == sorted(set(offsets))
    if (name, which) == ("compact", "store"):  # the WAL tier has what compaction took from the disk
        assert offsets == list(range(300))
        return
    assert b"".join(bytes(batch.data) for batch in raw) == wanted.raw
    assert {time: found.offset_at(time) for time in wanted.times} == wanted.times


@pytest.mark.parametrize(("name", "which"), [case for case in CASES if case[0] in ("tiers", "open", "plain")])
def test_what_was_aborted(left: LeftBehind, name: str, which: str) -> None:
    wanted = left.answers[name]
    found = opened(places(left, which), name)
    for start, end in ((0, found.stable_end), (101, 205), (wanted.start + 50, found.stable_end)):
        records = b"".join(bytes(batch.data) for batch in found.batches(start, end))
        aborted = Aborted(found.aborted(start, end))
        delivered = [
            (piece.end, bytes(piece.batch))
            for piece in pieces(records, max(start, found.bounds.start), aborted)
            if piece.batch is not None
        ]
        assert delivered == [
            (last, batch)
            for last, batch in wanted.committed
            if last > start and int.from_bytes(batch[:8], "big") < end
        ]


@pytest.mark.parametrize(("name", "which"), CASES)
def test_any_cut_gives_the_same_batches(left: LeftBehind, name: str, which: str) -> None:
    found = opened(places(left, which), name)
    start, end = found.bounds
    whole = {batch.head.base_offset: bytes(batch.data) for batch in found.batches(start, end)}
    for first, last in ((start, end), (start + 3, end - 5), (start + 40, start + 41)):
        wanted = {
            base: data
            for base, data in whole.items()
            if base < last and base + int.from_bytes(data[23:27], "big") >= first
        }
        for bytes_max in (None, 4000):
            parts = found.parts(first, last, bytes_max=bytes_max)
            cut = [batch for part in parts for stretch in read_part(part) for batch in stretch.batches()]
            assert {batch.head.base_offset: bytes(batch.data) for batch in cut} == wanted
            assert len(cut) == len(wanted)
            assert [part.first for part in parts[1:]] == [
                part.end for part in parts[:-1]
            ] or name == "compact"


def test_a_large_segment_is_cut_by_its_index(left: LeftBehind) -> None:
    found = opened(places(left, "store"), "tiers")
    parts = found.parts(0, LATER, bytes_max=4000)
    keys = [part.key for part in parts if part.key.startswith("tier/")]
    assert len(keys) > len(set(keys))
    assert sum(part.size for part in found.parts(*found.bounds)) >= len(left.answers["tiers"].raw)
    (one,) = found.parts(60, 61)
    assert one.size < 16384


def test_what_is_damaged_is_read_elsewhere(left: LeftBehind, tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/store"
    shutil.copytree(left.data, data)
    shutil.copytree(left.url.removeprefix("file://"), tmp_path / "store")
    whole = left.answers["cut"].raw
    copy = open_source(url), open_source(str(data))
    parts = opened(copy, "cut").parts(0, LATER)
    local = [part for part in parts if not part.key.startswith(("tier/", "wal/"))]
    assert local
    log = data / local[-1].key
    log.write_bytes(log.read_bytes()[:200] + b"?" + log.read_bytes()[201:])
    found = opened(copy, "cut")
    assert b"".join(bytes(batch.data) for batch in found.batches(0, LATER)) == whole
    shutil.rmtree(tmp_path / "store" / "wal")
    shutil.rmtree(tmp_path / "store" / "tier")
    with pytest.raises(Missing, match=r"cut-0: offsets \d+ to \d+ are in no place"):
        list(opened(copy, "cut").batches(0, LATER))


def test_what_is_sound_behind_damage_is_read(left: LeftBehind, tmp_path: Path) -> None:
    shutil.copytree(left.data, tmp_path / "data")
    source = open_source(f"{tmp_path}/data")
    whole = list(opened([source], "open").batches(0, LATER))
    log = sorted((tmp_path / "data" / "open-0").glob("*.log"))[0]
    damaged = whole[2].head
    data = bytearray(log.read_bytes())
    data[damaged.position + 70] ^= 1
    log.write_bytes(bytes(data))
    batches = opened([source], "open").batches(0, LATER)
    assert [next(batches).data, next(batches).data] == [each.data for each in whole[:2]]
    with pytest.raises(Missing) as missing:
        next(batches)
    assert (missing.value.first, missing.value.end) == (damaged.base_offset, damaged.last_offset + 1)
    behind = opened([source], "open").batches(missing.value.end, LATER)
    assert [each.data for each in behind] == [each.data for each in whole[3:]]


def test_what_was_committed_and_is_not_there_is_a_hole(left: LeftBehind, tmp_path: Path) -> None:
    shutil.copytree(left.data, tmp_path / "data")
    log = sorted((tmp_path / "data" / "open-0").glob("*.log"))[-1]
    log.write_bytes(log.read_bytes()[:-30])
    found = opened([open_source(f"{tmp_path}/data")], "open")
    end = left.answers["open"].end
    assert found.bounds.end == end
    ((first, last),) = found.holes(0, LATER)
    assert (first < end, last) == (True, end)
    with pytest.raises(Missing, match=f"offsets {first} to {end} are in no place"):
        list(found.batches(0, LATER))


def test_what_is_gone_is_a_hole(left: LeftBehind, tmp_path: Path) -> None:
    shutil.copytree(left.url.removeprefix("file://"), tmp_path / "store")
    store = [open_source(f"file://{tmp_path}/store")]
    segments = [part.key for part in opened(store, "tiers").parts(0, LATER) if part.key.startswith("tier/")]
    gone = next(part for part in opened(store, "tiers").parts(0, LATER) if part.key == segments[1])
    (tmp_path / "store" / gone.key).unlink()
    shutil.rmtree(tmp_path / "store" / "wal")
    found = opened(store, "tiers")
    holes = found.holes(0, LATER)
    assert holes and holes[0][0] >= gone.first
    with pytest.raises(Missing):
        list(found.batches(0, LATER))


def test_a_copy_without_its_index_object_is_read_by_its_record(left: LeftBehind, tmp_path: Path) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    shutil.copytree(left.url.removeprefix("file://"), store)
    shutil.copytree(left.data, data)
    shutil.rmtree(store / "wal")
    shutil.rmtree(data / "tiers-0")
    sources = [open_source(f"file://{store}"), open_source(str(data))]
    whole = opened(sources, "tiers")
    raw = [bytes(batch.data) for batch in whole.batches(0, LATER)]
    topic_id = open_topic(sources, "tiers").topic_id
    first, second, *_ = sorted((store / "tier" / topic_id / "0").glob("*.idx"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:40])
    found = opened(sources, "tiers")
    assert found.bounds == whole.bounds
    assert [bytes(batch.data) for batch in found.batches(0, LATER)] == raw
    assert found.aborted(0, LATER) == whole.aborted(0, LATER)
    log = first.with_suffix(".log")
    log.write_bytes(log.read_bytes()[:-1])
    assert opened(sources, "tiers").bounds.start > whole.bounds.start


def test_a_log_ends_with_what_is_sound_though_the_last_entry_of_its_index_points_to_damage(
    left: LeftBehind, tmp_path: Path
) -> None:
    shutil.copytree(left.data, tmp_path / "data")
    source = open_source(f"{tmp_path}/data")
    log = sorted((tmp_path / "data" / "plain-0").glob("*.log"))[-1]
    position = int(offset_entries(log.with_suffix(".index").read_bytes()).second.max())
    sound, rest = log.read_bytes()[:position], log.read_bytes()[position:]
    log.write_bytes(sound + bytes(len(rest)))
    first = int.from_bytes(rest[:8], "big")
    assert first > int(log.stem)
    with pytest.raises(Missing) as missing:
        list(opened([source], "plain").batches(0, LATER))
    assert missing.value.first == first


def test_names(left: LeftBehind) -> None:
    assert set(KINDS) <= set(ClusterBytes(places(left, "store")).names())
    assert set(KINDS) <= set(ClusterBytes(places(left, "data")).names())
    for which in ("store", "data"):
        with pytest.raises(NoSuchTopic, match="topic nope is not"):
            open_topic(places(left, which), "nope")
