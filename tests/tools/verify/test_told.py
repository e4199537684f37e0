"""Stores whose brokers left their data directories: what these say of the tiers, and of themselves."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.verify import deck
from tests.verify.faults import compare, plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import World
from tools.verify.core.outcome import Options, Outcome
from tools.verify.core.plan import LogUnit
from tools.verify.core.snapshot import Snapshot, freeze
from tools.verify.core.stores import open_source
from tools.verify.verification import Verification

FAULTS = [
    "cold_told_otherwise",
    "wal_told_otherwise",
    "cold_data_missing",
    "cold_orphan",
    "wal_missing",
    "unknown_directory",
    "directory_of_another",
]


class StoreAlone(Verification):
    """Takes from the directories what they tell, and leaves their logs unread."""

    def logs(self, snapshot: Snapshot) -> list[LogUnit]:
        return []


def verified(world: World, root: Path) -> Outcome:
    world.write_to(root)
    data = tuple(f"{root}/d{number}" for number in range(len(world.directories)))
    given = Options(now_ms=NOW_MS, store=f"file://{root}/store", data=data, workers=1)
    return StoreAlone(given, lambda _: None).run()


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 6])
def test_what_is_told_agrees_with_a_whole_store(seed: int, tmp_path: Path) -> None:
    outcome = verified(build(seed, NOW_MS), tmp_path / "made")
    assert outcome.findings == ()
    assert outcome.unread == ()
    assert outcome.unchecked == ()


@pytest.mark.parametrize("name", FAULTS)
def test_what_only_the_brokers_can_tell_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    assert name in deck.NAMES
    plans = (plant(seed, NOW_MS, only=name, count=2) for seed in (0, 1, *range(3, 18), *range(20, 40)))
    found = list(islice((each for each in plans if each.planted), 2))
    assert found
    for each in found:
        outcome = verified(each.world, tmp_path / "made")
        assert compare(each.planted, list(outcome.findings)) == [], each.world.seed


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
            assert "tier-topics" in {each.what for each in found.unchecked} or not found.store.listing
    assert accused
