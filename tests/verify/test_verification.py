"""The verifier against generated stores: nothing is said of whole ones, and of damaged ones the damage alone.

`make verify-stores` runs many more of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.run import check_clean, check_damaged


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("has_data", [True, False])
def test_of_a_whole_store_nothing_is_said(part: int, has_data: bool, tmp_path: Path) -> None:
    for seed in range(1000 + part * 2, 1002 + part * 2):
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
    for seed in range(20):
        wrong, plan = check_damaged(seed, tmp_path / "made", [name], count=3, has_data=False)
        assert wrong == [], seed
        planted += len(plan.planted)
        if planted > 5:
            return
    assert planted
