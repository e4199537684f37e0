"""The verifier against generated stores: nothing is said of whole ones, and of damaged ones the damage alone.

`make verify-stores` runs many more of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify import deck
from tests.verify.run import check_clean, check_damaged

OF_STORES = [
    "slot_missing", "slot_flipped", "slot_with_another_number", "chain_broken", "two_writers",
    "unknown_record", "snapshot_of_another_state", "record_of_no_meaning", "epoch_of_nobody",
    "boundary_with_bytes", "unknown_key",
    "cold_index_missing", "cold_short", "cold_tail", "cold_flipped", "cold_other_sum", "cold_index_flipped",
    "cold_index_cut", "cold_section_flipped", "cold_swapped", "cold_says_another_topic", "cold_head_lies",
    "cold_of_another_cluster", "cold_block_sums_lie", "cold_section_elsewhere", "cold_epochs_section_lies",
    "cold_aborted_section_lies", "cold_producers_section_lies",
    "wal_table_flipped", "wal_slice_flipped", "wal_short", "wal_tail", "wal_swapped", "wal_table_lies",
    "wal_of_another_cluster", "wal_epoch_lies", "wal_index_flipped", "wal_index_elsewhere", "wal_orphan",
    "floors_flipped", "floors_of_another", "seal_flipped", "seal_of_no_slot",
]  # fmt: skip
"""Faults that show without the brokers' directories."""


@pytest.mark.parametrize("part", range(4))
def test_of_a_whole_store_nothing_is_said(part: int, tmp_path: Path) -> None:
    for seed in range(1000 + part * 3, 1003 + part * 3):
        assert check_clean(seed, tmp_path / "made", has_data=False) == [], seed


@pytest.mark.parametrize("part", range(10))
def test_of_a_damaged_store_the_damage_alone_is_said(part: int, tmp_path: Path) -> None:
    planted = 0
    for seed in range(part * 4, part * 4 + 4):
        wrong, plan = check_damaged(seed, tmp_path / "made", OF_STORES, has_data=False)
        assert wrong == [], seed
        planted += len(plan.planted)
    assert planted > 4


def test_the_names_are_those_of_the_deck() -> None:
    assert set(OF_STORES) <= set(deck.NAMES)
