"""One partition as it is fetched: which answers still count for it, and what of its log is in the store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.replicas.fetch_position import OwnSession, Position
from broker.replicas.partition import UNKNOWN


def position(*, start: int = 0, end: int = 10, stored_to: int = UNKNOWN, takes_pointers: bool = True) -> Any:
    epochs = SimpleNamespace(latest=0)
    log = SimpleNamespace(log_start_offset=start, log_end_offset=end, high_watermark=0, epochs=epochs)
    partition: Any = SimpleNamespace(
        topic_id=UUID(int=1), index=0, leader_id=1, leader_epoch=4, log=log, stored_to=stored_to
    )
    return Position(partition, takes_pointers=takes_pointers)


@pytest.mark.parametrize(
    ("stored_to", "log_start", "slice_", "known"),
    [
        (UNKNOWN, 0, (0, 5), 5),
        (UNKNOWN, 3, (2, 5), 5),
        (UNKNOWN, 0, (4, 5), UNKNOWN),
        (4, 0, (4, 9), 9),
        (4, 0, (5, 9), 4),
        (9, 0, (4, 5), 9),
    ],
)
def test_only_what_is_stored_without_a_hole_is_known_to_be(
    stored_to: int, log_start: int, slice_: tuple[int, int], known: int
) -> None:
    """What was sent directly in between may not be in the store, and the next leader has to store it."""
    held = position(start=log_start, stored_to=stored_to)
    held.stored(*slice_)
    assert held.partition.stored_to == known


def test_a_cut_takes_back_what_is_known_to_be_stored() -> None:
    held = position(stored_to=8)
    held.cuts(9)
    assert held.partition.stored_to == 8
    held.cuts(6)
    assert held.partition.stored_to == 6


@pytest.mark.parametrize(
    ("takes_pointers", "end", "alone", "counts"),
    [
        (True, 10, False, True),
        (True, 12, True, True),
        (True, 12, False, False),
        (True, 9, True, False),
        (False, 12, True, False),
    ],
)
def test_an_answer_counts_for_the_log_that_was_asked_for(
    takes_pointers: bool, end: int, alone: bool, counts: bool
) -> None:
    """A log that has grown by slices since still takes the leader's offsets, and no records."""
    held = position(takes_pointers=takes_pointers)
    asked = held.item(1000)
    held.partition.log.log_end_offset = end
    assert held.counts(asked, says_offsets_alone=alone) is counts
    assert not held.counts(asked._replace(leader_epoch=3), says_offsets_alone=alone)


def test_only_what_changed_is_said_again() -> None:
    told = OwnSession()
    held = position()
    item = held.item(1000)
    assert told.tell({held.key: item}) == ([item], [])
    assert told.tell({held.key: item}) == ([], [])
    moved = item._replace(pointed=12)
    assert told.tell({held.key: moved}) == ([moved], [])
    assert told.tell({held.key: None}) == ([], [held.key])
    assert told.tell({held.key: None}) == ([], [])
