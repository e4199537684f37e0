"""What the parts of the verifier say of generated stores: nothing of whole ones, of damaged ones the damage.

Owns the scan of batches and the reading of the metadata log against the generator, and bytes that nobody
wrote. Does not own what several places say together. Invariant: a part that cannot fail here is not tested.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verify import deck
from tests.verify.faults import Plan, compare, plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import STORE, World
from tools.verify.core.batches import RunScanner
from tools.verify.core.findings import Finding
from tools.verify.core.meta import read_meta
from tools.verify.core.stores import open_source

ROOT = Path(__file__).resolve().parent.parent.parent
META_FAULTS = [
    "slot_missing",
    "slot_flipped",
    "slot_with_another_number",
    "chain_broken",
    "two_writers",
    "unknown_record",
    "snapshot_of_another_state",
]
BATCH_FAULTS = [
    "flipped_body",
    "flipped_head",
    "bad_magic",
    "wild_length",
    "length_past_the_end",
    "torn_closed_segment",
    "zeros_behind_a_closed_segment",
    "offset_back",
    "cold_flipped",
]


def batch_findings(world: World) -> Iterator[Finding]:
    """Of the logs of replicas, and of the copies that count."""
    for replica in world.replicas:
        history = replica.history
        for segment in replica.segments:
            yield from scanned(world, replica.path(segment), history.topic.short_id, history.number)
    for path in sorted(world.files):
        if path.startswith(STORE + "tier/") and path.endswith(".log") and path not in world.ages:
            _, topic_id, number, _ = path.removeprefix(STORE).split("/")
            yield from scanned(world, path, topic_id, int(number))


def scanned(world: World, path: str, topic_id: str, partition: int) -> Iterator[Finding]:
    scanner = RunScanner(world.place(path), first=int(path.rpartition("/")[2][:20]))
    scanner.feed(world.files[path])
    for fault in scanner.finish().faults:
        yield Finding(fault.code, topic_id, partition, fault.first, fault.end, fault.place, fault.position)


def meta_findings(world: World, root: Path) -> list[Finding]:
    world.write_to(root)
    return read_meta(open_source(f"file://{root}/store")).findings


def planted(name: str) -> Iterator[Plan]:
    found = 0
    for seed in range(80):
        plan = plant(seed, NOW_MS, only={name}, count=2)
        if plan.planted and found < 4:
            found += 1
            yield plan
    assert found, name


@pytest.mark.parametrize("seed", range(15))
def test_a_whole_store_gives_no_finding(seed: int, tmp_path: Path) -> None:
    world = build(seed, NOW_MS)
    assert list(batch_findings(world)) == []
    assert meta_findings(world, tmp_path / "made") == []


@pytest.mark.parametrize("part", range(4))
def test_the_fold_of_the_metadata_log_is_the_cluster(part: int, tmp_path: Path) -> None:
    for seed in range(part * 10, part * 10 + 10):
        world = build(seed, NOW_MS)
        world.write_to(tmp_path / "made")
        state = read_meta(open_source(f"file://{tmp_path}/made/store")).state
        assert {
            topic.name: [
                [each.leader, each.leader_epoch, each.partition_epoch, *each[3:5]]
                for each in topic.partitions
            ]
            for topic in state.topics.values()
        } == {
            topic.name: [
                [each.leader, each.leader_epoch, each.partition_epoch, tuple(each.replicas), tuple(each.isr)]
                for each in topic.partitions
            ]
            for topic in world.topics()
        }, seed


@pytest.mark.parametrize("name", META_FAULTS)
def test_a_fault_of_the_metadata_log_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    for plan in planted(name):
        findings = meta_findings(plan.world, tmp_path / "made")
        assert compare(plan.planted, findings) == [], plan.world.seed


@pytest.mark.parametrize("name", BATCH_FAULTS)
def test_a_fault_of_a_batch_is_named_and_nothing_else(name: str) -> None:
    for plan in planted(name):
        assert compare(plan.planted, list(batch_findings(plan.world))) == [], plan.world.seed


def test_the_names_of_faults_are_those_of_the_deck() -> None:
    assert {*META_FAULTS, *BATCH_FAULTS} <= set(deck.NAMES)


HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from random import Random
from tests.verify.stores import NOW_MS, build
from tools.verify.core import layouts
from tools.verify.core.batches import RunScanner
from tools.verify.core.keys import parse_key
rng = Random(5)
decoders = {
    "meta/": layouts.decode_slot,
    "tier/": layouts.decode_index_object,
    "wal/": lambda data: layouts.decode_wal_table(data, len(data)),
    "index/": layouts.decode_wal_index,
    "floors": layouts.decode_floors,
}
refused = 0
for seed in range(6):
    files = build(seed, NOW_MS).files
    for path in sorted(files):
        data, key = bytearray(files[path]), path.removeprefix("store/")
        for _ in range(4):
            for _ in range(rng.randint(1, 6)):
                if data:
                    at = rng.randrange(len(data))
                    data[at : at + rng.choice([1, 1, 4, 30])] = rng.choice(
                        [b"", b"\\xff" * 4, b"\\x7f\\xff\\xff\\xff", rng.randbytes(3), b"[" * 2000]
                    )
            parse_key("".join(chr(rng.randrange(1, 0xD800)) for _ in range(9)) + key[rng.randrange(3) :])
            if path.endswith(".log"):
                scanner = RunScanner(path)
                scanner.feed(bytes(data))
                scanner.finish()
            for part, decode in decoders.items():
                if part in key:
                    try:
                        decode(bytes(data))
                    except layouts.Malformed:
                        refused += 1
deep = b"[" * 200_000
for body in (deep, b'{"a":' * 100_000, b"1" * 100_000):
    try:
        layouts.read_json(body)
    except ValueError:
        refused += 1
assert refused > 500, refused
"""


def test_bytes_that_nobody_wrote_are_refused_in_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
