"""What the generator writes is what FORMAT.md and Kafka ask for, and nothing of the project went into it."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c

from tests import format_page
from tests.verify import deck, faults
from tests.verify import kafka_bytes as kafka
from tests.verify.page import FORMAT, encode
from tests.verify.stores import NOW_MS, build, make
from tests.verify.world import STORE, World

FOLDER = Path(__file__).parent
MAY_VERIFY = {"run.py"}
PROJECT = {"protocol", "storage", "remote", "broker", "tools"}
SEEDS = range(40)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_the_generator_uses_nothing_of_the_project() -> None:
    """The runner alone asks the verifier; and of the tests only the reader of the page is used."""
    files = [path for path in FOLDER.glob("*.py") if not path.name.startswith("test_")]
    assert len(files) > 10
    for path in [*files, Path(format_page.__file__)]:
        names = imports(path)
        used = {name.split(".")[0] for name in names} & PROJECT
        assert used == ({"tools"} if path.name in MAY_VERIFY else set()), path.name
        assert all(name.startswith("tools.verify.") for name in names if name.startswith("tools")), path.name
        others = {name for name in names if name.startswith("tests.") and not name.startswith("tests.verify")}
        assert others <= {"tests.format_page"}, path.name


def whole_objects(world: World) -> dict[str, bytes]:
    """Those that are not still being copied."""
    return {
        path.removeprefix(STORE): data
        for path, data in world.files.items()
        if path.startswith(STORE) and not (path.startswith(STORE + "tier/") and path in world.ages)
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_every_object_is_read_by_the_tables_of_the_page(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_page, "crc32c", crc32c)  # the page's own takes a second a store
    world = build(seed, NOW_MS)
    for key, data in whole_objects(world).items():
        layout = FORMAT.kind_of(key).layout
        FORMAT.read("wal floors 2" if layout == "wal floors" and data[4:6] == b"\0\2" else layout, data)


@pytest.mark.parametrize("seed", range(10))
def test_every_file_of_a_manifest_is_read_by_the_tables_of_the_page(seed: int) -> None:
    layouts = {1: "manifest topics", 2: "manifest rows", 3: "manifest digests", 4: "manifest end"}
    made = make(seed, NOW_MS)
    for notes in made.manifest.notes:
        head, *blocks = notes.pieces()
        assert FORMAT.read("manifest head", head)["head_size"] == len(head)
        for number, each in enumerate(blocks):
            told = FORMAT.read("manifest block head", each[:28])
            assert (told["number"], told["size"]) == (number, len(each) - 28)
            FORMAT.read(layouts[told["kind"]], each[28:])


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256))])
def test_the_checksum_is_that_of_the_page(data: bytes) -> None:
    assert crc32c(data) == format_page.crc32c(data)


def test_the_same_seed_gives_the_same_bytes() -> None:
    for seed in SEEDS[:5]:
        assert build(seed, NOW_MS).files == build(seed, NOW_MS).files
        one, other = faults.plant(seed, NOW_MS), faults.plant(seed, NOW_MS)
        assert (one.files, one.planted) == (other.files, other.planted)


def test_a_store_is_small() -> None:
    assert max(build(seed, NOW_MS).size() for seed in SEEDS) < 1 << 20


@pytest.mark.parametrize("codec", range(5))
def test_another_reader_of_kafka_reads_the_batches(codec: int) -> None:
    rng = Random(codec)
    for count in (1, 2, 30):
        records = tuple(
            kafka.Rec(
                at,
                at,
                rng.choice([None, b"", b"key"]),
                rng.choice([None, b"", rng.randbytes(9)]),
                (("h", None),) if rng.random() < 0.3 else (),
            )
            for at in range(count)
        )
        batch = kafka.Batch(7, 7 + count - 1, 3, records, 1000, 1000 + count - 1, codec=codec)
        read = MemoryRecords(kafka.encode_batch(batch)).next_batch()
        assert read is not None
        assert read.validate_crc()
        assert [(each.offset - 7, each.timestamp - 1000, each.key, each.value) for each in read] == [
            each[:4] for each in records
        ]


def test_a_partition_is_told_of_where_the_page_says() -> None:
    topic = UUID("f18cb3a1-6b6b-49d3-9e1f-1e03f1add35c")
    assert kafka.short_id(topic) == "8YyzoWtrSdOeHx4D8a3TXA"
    assert [kafka.tier_partition(topic, number, 50) for number in (0, 1, 7)] == [24, 19, 33]


def test_every_kind_of_object_and_oddity_is_written() -> None:
    """Else a generator that has lost one half would go unnoticed."""
    seen: dict[str, int] = {}
    for seed in range(60):
        for key in whole_objects(build(seed, NOW_MS)):
            name = FORMAT.kind_of(key).name
            seen[name] = seen.get(name, 0) + 1
    assert set(seen) == {kind.name for kind in FORMAT.kinds}
    assert min(seen.values()) > 5, seen


def test_every_fault_is_planted_and_changes_what_is_stored() -> None:
    for name in deck.NAMES:
        for seed in range(200):
            plan = faults.plant(seed, NOW_MS, only={name}, count=1)
            if plan.planted:
                assert [each.name for each in plan.planted] == [name]
                assert plan.files != build(seed, NOW_MS).files, name
                break
        else:
            pytest.fail(f"{name} is never planted")


def test_a_checksum_of_the_page_can_be_told_wrong() -> None:
    boundary = encode("nothing", {})
    assert boundary == b""
    head = dict.fromkeys(("node", "broker_epoch", "metadata_seq", "written_ms"), 1)
    right = encode("wal floors", {**head, "cluster_id": "c", "floors": []})
    assert right[-4:] == crc32c(right[:-4]).to_bytes(4, "big")
    with pytest.raises(format_page.Refused):
        FORMAT.read("wal floors", right[:-1] + bytes([right[-1] ^ 1]))
