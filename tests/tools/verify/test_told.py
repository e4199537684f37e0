"""Stores whose brokers left their data directories: what these say of the tiers, and of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.verify import deck, stores
from tests.verify import kafka_bytes as kafka
from tests.verify.faults import compare, plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import World
from tools.verify.core.outcome import Options, Outcome
from tools.verify.core.snapshot import freeze
from tools.verify.core.stores import open_source
from tools.verify.verification import verify

ROOT = Path(__file__).resolve().parents[3]
FAULTS = [
    "cold_told_otherwise",
    "wal_told_otherwise",
    "cold_data_missing",
    "cold_orphan",
    "wal_missing",
    "unknown_directory",
    "directory_of_another",
]


def verified(world: World, root: Path) -> Outcome:
    world.write_to(root)
    data = tuple(f"{root}/d{number}" for number in range(len(world.directories)))
    given = Options(store=f"file://{root}/store", data=data, workers=1)
    return verify(given)


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 6])
def test_what_is_told_agrees_with_a_whole_store(seed: int, tmp_path: Path) -> None:
    outcome = verified(build(seed, NOW_MS), tmp_path / "made")
    assert outcome.findings == ()
    assert outcome.unread == ()
    assert outcome.unchecked == ()


@pytest.mark.parametrize("name", FAULTS)
def test_what_only_the_brokers_can_tell_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    assert name in deck.NAMES
    plans = (plant(seed, NOW_MS, only={name}, count=2) for seed in (0, 1, *range(3, 18), *range(20, 40)))
    found = list(islice((each for each in plans if each.planted), 2))
    assert found
    for each in found:
        outcome = verified(each.world, tmp_path / "made")
        assert compare(each.planted, list(outcome.findings)) == [], each.world.seed


def test_a_commit_beyond_the_end_of_a_log_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a replica that may reach further was not given."""
    history = build(4, NOW_MS).histories[0]
    monkeypatch.setattr(
        stores,
        "group_offsets",
        lambda world: [
            kafka.group_offset("g", history.topic.name, history.number, history.end + 5, time=NOW_MS),
            kafka.group_offset("h", history.topic.name, history.number, history.end, time=NOW_MS),
        ],
    )
    world = build(4, NOW_MS)
    world.write_to(tmp_path / "made")
    data = tuple(f"{tmp_path}/made/d{number}" for number in range(len(world.directories)))
    given = Options(store=f"file://{tmp_path}/made/store", data=data, workers=1)
    (found,) = verify(given).findings
    assert found[:5] == ("group-offset-outside-log", *history.id, history.end, history.end + 5)
    assert verify(given).exit_code() == 0
    partition = history.topic.partitions[history.number]
    some = tuple(
        path
        for path, directory in zip(data, world.directories, strict=True)
        if directory.node != partition.isr[-1]
    )
    assert verify(replace(given, data=some)).findings == ()


def test_a_topic_of_the_tier_with_a_hole_accuses_nobody(tmp_path: Path) -> None:
    """A record that no replica has any more would make orphans of the copies that it told of."""
    accused = 0
    for seed in range(8):
        world = build(seed, NOW_MS)
        world.write_to(tmp_path / "made")
        for path in (tmp_path / "made").glob("d*/__remote_*/*.log"):
            data = bytearray(path.read_bytes())
            if len(data) > 100:
                data[80] ^= 1
                path.write_bytes(bytes(data))
                accused += 1
        sources = [open_source(f"{tmp_path}/made/d{number}") for number in range(len(world.directories))]
        found = freeze(open_source(f"file://{tmp_path}/made/store"), sources)
        assert [each for each in found.findings if not each.code.startswith("tier-record")] == []
        told = found.told
        if told.copies_after is None:
            listing = found.store.listing
            is_there = listing.copies or listing.streams
            assert "tier-topics" in {each.what for each in found.unchecked} or not is_there
    assert accused


HOSTILE = """
import os, random, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from tests.verify.stores import NOW_MS, build
from tools.verify.core.outcome import Options
from tools.verify.verification import verify

if __name__ == "__main__":
    rng, root = random.Random(3), Path(sys.argv[1])
    for seed in range(3):
        build(seed, NOW_MS).write_to(root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for path in rng.sample(files, 60):
            data = bytearray(path.read_bytes())
            for _ in range(rng.randint(1, 5)):
                at = rng.randrange(len(data) + 1)
                data[at : at + rng.choice([1, 4, 30])] = rng.choice(
                    [b"", b"\\xff" * 4, b"\\x7f\\xff\\xff\\xff", rng.randbytes(3)]
                )
            path.write_bytes(bytes(data))
        huge = [*root.glob("store/tier/*/*/*.idx"), *root.glob("store/wal/*/*/index/0*")][:2]
        for path in [*huge, *sorted(root.glob("store/wal/*/*/0*"))[:2]]:
            os.truncate(path, 3 << 30)
        data = tuple(str(path) for path in sorted(root.glob("d*")))
        options = Options(store=f"file://{root}/store", data=data, workers=1)
        assert verify(options).findings
"""


def test_whatever_lies_there_a_verification_ends_within_a_gigabyte(tmp_path: Path) -> None:
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE)
    done = subprocess.run(
        [sys.executable, str(script), f"{tmp_path}/made"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
