"""The verifier against generated stores: nothing is said of whole ones, and of damaged ones the damage alone.

`make verify-stores` runs many more of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.verify import deck
from tests.verify.faults import plant
from tests.verify.run import check_clean, check_damaged, options
from tests.verify.stores import NOW_MS
from tests.verify.world import STORE
from tools.verify.verification import verify


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("has_data", [True, False])
def test_of_a_whole_store_nothing_is_said(part: int, has_data: bool, tmp_path: Path) -> None:
    for seed in range(part * 2, part * 2 + 2):
        assert check_clean(seed, tmp_path / "made", has_data=has_data) == [], seed


@pytest.mark.parametrize("part", range(8))
def test_of_a_damaged_store_the_damage_alone_is_said(part: int, tmp_path: Path) -> None:
    planted = 0
    for seed in range(part * 4, part * 4 + 4):
        wrong, plan = check_damaged(seed, tmp_path / "made")
        assert wrong == [], seed
        planted += len(plan.planted)
    assert planted > 4


@pytest.mark.parametrize(
    "name",
    [
        "cold_section_elsewhere", "cold_producers_section_lies", "cold_aborted_section_lies",
        "cold_epochs_section_lies",
    ],
)  # fmt: skip
def test_a_fault_of_a_section_is_named(name: str, tmp_path: Path) -> None:
    planted = 0
    for seed in range(36, 60):
        wrong, plan = check_damaged(seed, tmp_path / "made", [name], count=3, has_data=False)
        assert wrong == [], seed
        planted += len(plan.planted)
        if planted > 5:
            return
    assert planted


@pytest.mark.parametrize("name", [name for name in deck.NAMES if name.startswith("manifest_")])
def test_a_fault_of_a_manifest_is_named(name: str, tmp_path: Path) -> None:
    for seed in range(300):
        if plant(seed, NOW_MS, only={name}, count=1).planted:
            wrong, _ = check_damaged(seed, tmp_path / "made", {name}, count=1)
            assert wrong == [], seed
            return
    pytest.fail("it is never planted")


def test_objects_below_a_seal_are_missed_also_where_it_is_the_newest_in_the_store(tmp_path: Path) -> None:
    for seed in range(100):
        plan = plant(seed, NOW_MS, only={"wal_missing"}, count=1)
        gone = {each.place for one in plan.planted for each in one.expected}
        for life in plan.made.wal.streams:
            if life.seal is not None and any(each.key in gone for each in life.objects):
                plan.world.ages[f"{STORE}{life.seal.key}"] = 0
                plan.world.write_to(tmp_path / "made")
                outcome = verify(options(plan.world, tmp_path / "made"))
                assert "wal-gap" in {each.code for each in outcome.findings}, seed
                return
    pytest.fail("none was sealed")


def test_what_was_in_a_copy_without_its_data_is_told_once(tmp_path: Path) -> None:
    for seed in range(56, 100):
        plan = plant(seed, NOW_MS, only={"cold_data_missing"}, count=1)
        plan.world.write_to(tmp_path / "made")
        outcome = verify(options(plan.world, tmp_path / "made"))
        assert not [each for each in outcome.findings if each.code.startswith("manifest-")], seed
        if any(each.what == "damaged" for each in outcome.counted):
            return
    pytest.fail("no producer noted what was in it")


HOSTILE = """
import resource, sys, tempfile
from pathlib import Path
from random import Random
from tests.verify.run import options
from tests.verify.stores import NOW_MS, build
from tools.verify.verification import verify
findings = 0
with tempfile.TemporaryDirectory() as folder:
    for seed in range(14):
        rng, world = Random(seed), build(seed, NOW_MS)
        files = world.files
        for path in sorted(files):
            if rng.random() < 0.5:
                continue
            data = bytearray(files[path])
            for _ in range(rng.randint(1, 5)):
                at = rng.randrange(len(data) + 1)
                data[at : at + rng.choice([0, 1, 4, 30])] = rng.choice(
                    [b"", b"\\xff" * 4, b"\\x7f\\xff\\xff\\xff", rng.randbytes(3), b"[" * 2000, bytes(8)]
                )
            files[path] = bytes(data)
        for number in range(20):
            name = "".join(chr(rng.choice([46, 45, 48, 65, 256, 0x1F600])) for _ in range(9))
            key = rng.choice(["meta/", "tier/", "wal/1/", "", "meta/snapshot/"]) + name.strip(".")
            files[rng.choice(["store/", "store/", "d0/"]) + key + str(number)] = rng.randbytes(20)
        world.write_to(Path(folder) / "made")
        outcome = verify(options(world, Path(folder) / "made"))
        findings += len(outcome.findings)
assert findings > 200, findings
# ru_maxrss of a program begins with what the one that started it had
own = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
peak = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
assert peak < 1 << 20, peak
"""


def test_bytes_and_keys_that_nobody_wrote_are_findings_within_a_gigabyte() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", [155, 236, 312])
def test_what_an_unread_rest_of_a_compacted_log_may_have_replaced_is_not_lost(
    seed: int, tmp_path: Path
) -> None:
    """These tear the only batch with a later record of a key that a producer noted."""
    wrong, plan = check_damaged(seed, tmp_path / "made", {"torn_closed_segment"}, count=2)
    assert plan.planted
    assert wrong == []


def test_a_log_without_its_epochs_is_read_by_those_of_its_batches(tmp_path: Path) -> None:
    """Else it gives way to an older copy in the cold tier, and what is not in that seems lost."""
    wrong, plan = check_damaged(361, tmp_path / "made")
    assert "epochs_that_are_no_text" in [each.name for each in plan.planted]
    assert wrong == []


def test_a_sum_that_compaction_and_others_made_up_for_is_no_alteration(tmp_path: Path) -> None:
    """The end of the manifest is damaged, so nobody knows what else was sent to the compacted topic."""
    wrong, plan = check_damaged(1467, tmp_path / "made")
    assert "manifest_block_lies" in {each.name for each in plan.planted}
    assert wrong == []


def test_what_lies_below_the_only_segment_is_not_lost_with_it(tmp_path: Path) -> None:
    """Retention deleted it, and no checkpoint says so; then the segment has no sound batch any more."""
    wrong, plan = check_damaged(2850, tmp_path / "made")
    assert "bad_magic" in {each.name for each in plan.planted}
    assert wrong == []


def test_an_altered_value_is_found_where_an_index_is_wrong_too(tmp_path: Path) -> None:
    wrong, plan = check_damaged(2787, tmp_path / "made")
    assert {"altered_value", "index_elsewhere"} <= {each.name for each in plan.planted}
    assert wrong == []
