"""Whole verifications of generated stores: nothing of whole ones, of damaged ones the damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest

from tests.verify import deck
from tests.verify.faults import Plan, compare, plant
from tests.verify.stores import NOW_MS, build
from tests.verify.world import World
from tools.verify import verification
from tools.verify.core.outcome import Exit, Options, Outcome, Progress
from tools.verify.core.stores import FileSource, Gone, SourceFailed
from tools.verify.verification import plan, verify

T = TypeVar("T")

STORE_FAULTS = [
    "cold_says_another_topic",
    "cold_index_missing",
    "cold_short",
    "cold_tail",
    "cold_flipped",
    "cold_other_sum",
    "cold_index_flipped",
    "cold_index_cut",
    "cold_section_flipped",
    "cold_swapped",
    "wal_table_lies",
    "wal_table_flipped",
    "wal_short",
    "wal_tail",
    "wal_swapped",
    "wal_index_flipped",
    "wal_index_elsewhere",
    "wal_orphan",
    "floors_flipped",
    "floors_of_another",
    "seal_flipped",
    "seal_of_no_slot",
    "slot_missing",
    "chain_broken",
]
"""What a store shows without the logs of brokers."""


def options(root: Path, **more: object) -> Options:
    given: dict[str, object] = {"store": f"file://{root}/store", "workers": 1}
    return Options(**{**given, **more})  # type: ignore[arg-type]


def of_store(world: World, root: Path) -> Outcome:
    world.write_to(root)
    return verify(options(root))


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_store_gives_no_finding(seed: int, tmp_path: Path) -> None:
    outcome = of_store(build(seed, NOW_MS), tmp_path / "made")
    assert outcome.findings == ()
    assert outcome.exit_code(is_strict=True) is Exit.CLEAN
    assert {each.what for each in outcome.unchecked} >= {"data-directories"}


def test_the_names_of_faults_are_those_of_the_deck() -> None:
    assert set(STORE_FAULTS) <= set(deck.NAMES)


def planted(name: str) -> list[Plan]:
    plans = (plant(seed, NOW_MS, only={name}, count=2) for seed in range(60))
    found = list(islice((each for each in plans if each.planted), 2))
    assert found, name
    return found


def test_what_was_to_be_deleted_when_brokers_stopped_is_no_finding_however_long_ago(tmp_path: Path) -> None:
    for number, damaged in enumerate(planted("wal_orphan")):
        root = tmp_path / str(number)
        assert {each.code for each in of_store(damaged.world, root).findings} == {"wal-orphan"}
        for path in root.rglob("*"):  # nothing was put after it
            os.utime(path, (1_700_000_000, 1_700_000_000))
        outcome = verify(options(root))
        assert outcome.findings == ()
        assert "young-orphan" in {each.what for each in outcome.counted}


@pytest.mark.parametrize("name", STORE_FAULTS)
def test_damage_of_a_store_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    for each in planted(name):
        outcome = of_store(each.world, tmp_path / "made")
        assert compare(each.planted, list(outcome.findings)) == [], each.world.seed
        assert outcome.unread == ()
        assert outcome.exit_code(is_strict=True) is Exit.FINDINGS


def test_the_outcome_does_not_hang_on_the_cut_nor_on_processes(tmp_path: Path) -> None:
    each = plant(11, NOW_MS, count=8)
    whole = of_store(each.world, tmp_path / "made")
    assert whole.findings
    for size in (1, 3000):
        assert verify(options(tmp_path / "made", task_bytes=size)) == whole


def test_a_store_that_cannot_be_read_is_no_finding(tmp_path: Path) -> None:
    world = build(3, NOW_MS)
    root = tmp_path / "made"
    world.write_to(root)
    clean = verify(options(root))
    assert clean.coverage
    os.rename(root / "store", root / "elsewhere")
    outcome = verify(options(root))
    assert outcome.findings == ()
    assert outcome.exit_code() is Exit.UNFINISHED
    with pytest.raises(SourceFailed):
        plan(options(root))


class Torn(FileSource):
    """A store that does not give some of its objects."""

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        if key.endswith(("3", "Q.log", "g.log")):
            raise SourceFailed(f"{key}: refused")
        return super().opened(key, read)


def test_objects_that_cannot_be_read_leave_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial scan is unfinished: what it did not see is not called lost."""
    monkeypatch.setattr(verification, "open_source", lambda url: Torn(url.removeprefix("file://")))
    unfinished = 0
    for seed in range(10):
        outcome = of_store(build(seed, NOW_MS), tmp_path / "made")
        assert outcome.findings == ()
        unfinished += outcome.exit_code() is Exit.UNFINISHED
    assert unfinished > 3


class Going(FileSource):
    """A store whose brokers collect while it is verified: what was listed last of a stream is gone."""

    def opened(self, key: str, read: Callable[[int], T]) -> T:
        if key.startswith("tier/") and key.endswith("Q.log"):
            raise Gone(key)
        return super().opened(key, read)


def test_what_goes_after_the_listing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "open_source", lambda url: Going(url.removeprefix("file://")))
    gone = 0
    for seed in range(20):
        outcome = of_store(build(seed, NOW_MS), tmp_path / "made")
        assert outcome.findings == ()
        assert outcome.unread == ()
        gone += any(each.what == "between-listings" for each in outcome.counted)
    assert gone


def test_an_object_of_the_wal_tier_goes_with_its_boundary_or_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collected, if a boundary has come since; else it is missing below others that count."""
    root = tmp_path / "made"
    key = "wal/3/00000000000000000003-0000000000/00000000000000000000"

    def has_the_first() -> bool:
        folder = (root / "store" / key).parent
        return (root / "store" / key).exists() and len(list(folder.iterdir())) > 1

    for seed in range(200):
        build(seed, NOW_MS).write_to(root)
        if has_the_first() and not (root / "store" / key).parent.joinpath("boundary").exists():
            break
    for has_boundary in (True, False):
        world = build(seed, NOW_MS)
        world.write_to(root)
        assert has_the_first()

        class Collected(FileSource):
            def opened(self, name: str, read: Callable[[int], T]) -> T:
                if name == key:
                    if has_boundary:  # noqa: B023
                        (root / "store" / key).parent.joinpath("boundary").mkdir(exist_ok=True)
                        (root / "store" / key).parent.joinpath("boundary", key[-20:]).touch()
                    (root / "store" / key).unlink(missing_ok=True)
                    raise Gone(name)
                return super().opened(name, read)

        monkeypatch.setattr(verification, "open_source", lambda url: Collected(url.removeprefix("file://")))
        found = [each for each in verify(options(root)).findings if each.code == "wal-gap"]
        assert [each.place for each in found] == ([] if has_boundary else [key])


def test_topics_can_be_chosen_by_name_or_id(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    everything = of_store(world, tmp_path / "made")
    chosen = next(each for each in everything.coverage if each.topic and not each.topic.startswith("__"))
    for given in (chosen.topic, chosen.topic_id):
        outcome = verify(options(tmp_path / "made", topics=(given,)))
        assert outcome.coverage == tuple(
            each for each in everything.coverage if each.topic_id == chosen.topic_id
        )
        assert outcome.figures.scanned_bytes < everything.figures.scanned_bytes


def test_a_sample_reads_less_and_finds_nothing_of_its_own(tmp_path: Path) -> None:
    seen = set()
    for seed in range(5):
        world = build(seed, NOW_MS)
        whole = of_store(world, tmp_path / "made")
        some = verify(options(tmp_path / "made", sample=0.5))
        assert some.findings == ()
        assert some == verify(options(tmp_path / "made", sample=0.5, task_bytes=1))
        assert some.figures.scanned_bytes <= whole.figures.scanned_bytes
        seen |= {each.what for each in some.counted}
        assert "sampled" in {each.what for each in some.unchecked}
    assert "sampled" in seen


def test_what_is_planned_is_what_is_read(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    outcome = of_store(world, tmp_path / "made")
    planned = plan(options(tmp_path / "made"))
    parts = {each.kind: each for each in planned.parts}
    assert set(parts) == {"meta", "cold", "wal"}
    assert outcome.figures.scanned_bytes == parts["cold"].size + parts["wal"].size
    assert planned.tasks == outcome.effort.tasks
    assert planned.dollars == 0.0


def test_progress_ends_with_everything_read(tmp_path: Path) -> None:
    world = build(4, NOW_MS)
    world.write_to(tmp_path / "made")
    told: list[Progress] = []
    verify(options(tmp_path / "made", task_bytes=2000), told.append)
    assert told[0].phase == "listing"
    scanned = [each for each in told if each.phase == "scanning"]
    assert scanned[-1].done_bytes == scanned[-1].all_bytes > 0
    assert scanned[-1].done_tasks == scanned[-1].all_tasks > 3


def test_of_damaged_offsets_all_holders_are_told(tmp_path: Path) -> None:
    """A plan for repairs takes the good copy from among them."""
    seen = 0
    for seed in range(30):
        each = plant(seed, NOW_MS, only={"altered_value"}, count=1)
        if not each.planted:
            continue
        each.world.write_to(tmp_path / "made")
        data = tuple(f"{tmp_path}/made/d{number}" for number in range(len(each.world.directories)))
        outcome = verify(options(tmp_path / "made", data=data))
        for found in outcome.findings:
            (covered,) = (
                one
                for one in outcome.coverage
                if (one.topic_id, one.partition) == (found.topic_id, found.partition)
            )
            holders = [one for one in covered.holders if one.first <= found.first < one.end]
            assert found.place in {one.place for one in holders}
            assert len({one.place for one in holders}) > 1
            seen += 1
        undamaged = [one for one in outcome.coverage if not one.damaged]
        assert undamaged
        assert all(one.holders == () for one in undamaged)
        if seen > 3:
            break
    assert seen
