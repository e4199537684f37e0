"""Two logs that parted come together again at the last offset they share (KIP-101, KIP-279, KIP-595)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replicas.fetch_sessions import PartitionRequest
from broker.replicas.fetcher import plan_truncation
from broker.replicas.read import divergence
from protocol.fetch import FetchItem
from storage.epochs import EpochCache


class Log:
    """A log as far as epochs tell: which epoch wrote which offset."""

    log_start_offset = 0

    def __init__(self, writers: list[int]) -> None:
        self.writers = writers
        self.epochs = EpochCache()
        for offset, epoch in enumerate(writers):
            if epoch != self.epochs.latest:
                self.epochs.assign(epoch, start_offset=offset)

    @property
    def log_end_offset(self) -> int:
        return len(self.writers)

    def lead(self, epoch: int) -> None:
        self.epochs.assign(epoch, start_offset=self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, log_end_offset=self.log_end_offset)

    def truncate_to(self, offset: int) -> None:
        del self.writers[offset:]
        self.epochs.truncate_from_end(offset)


def bring_together(leader: Log, follower: Log) -> None:
    """As fetching does."""
    held: Any = leader
    mine: Any = follower
    for _ in range(100):
        if follower.epochs.latest < 0:
            assert follower.log_end_offset == 0
            return
        asked = FetchItem("t", 0, 99, follower.log_end_offset, follower.epochs.latest, 1)
        parts = divergence(held, PartitionRequest(asked))
        if parts is None:
            return
        before = (follower.log_end_offset, follower.epochs.latest)
        follower.truncate_to(plan_truncation(mine, *parts))
        assert (follower.log_end_offset, follower.epochs.latest) < before, "each cut gets further"
    raise AssertionError("it never ends")


@st.composite
def parted(draw: st.DrawFn) -> tuple[Log, Log, int]:
    """A leader, a follower and how much they share. An epoch was written by one leader, so past the fork no
    epoch is in both; the one of the fork may go on in one of them."""
    common: list[int] = sorted(draw(st.lists(st.integers(1, 4), max_size=6)))
    fork = common[-1] if common else 0
    mine: list[int] = []
    theirs: list[int] = []
    if common and draw(st.booleans()):
        draw(st.sampled_from([mine, theirs])).extend([fork] * draw(st.integers(0, 3)))
    for epoch in range(fork + 1, fork + draw(st.integers(1, 8))):
        count = draw(st.integers(0, 3))
        draw(st.sampled_from([mine, theirs])).extend([epoch] * count)
    leader, follower = Log(common + theirs), Log(common + mine)
    if draw(st.booleans()):
        follower.lead(fork + 20)  # and wrote nothing
    leader.lead(fork + 30)
    return leader, follower, len(common)


@given(parted())
def test_a_follower_is_cut_to_what_both_have_and_not_an_offset_more(case: tuple[Log, Log, int]) -> None:
    leader, follower, common = case
    shared = 0
    for mine, theirs in zip(follower.writers, leader.writers, strict=False):
        if mine != theirs:
            break
        shared += 1
    assert shared >= common
    bring_together(leader, follower)
    assert follower.writers == leader.writers[: len(follower.writers)]
    assert len(follower.writers) == shared


@pytest.mark.parametrize(
    ("leader", "follower", "kept"),
    [
        ([0, 0, 0], [0, 0], 2),
        ([0, 0], [0, 0, 0], 2),
        ([0, 0, 2], [0, 0, 1, 1], 2),
        ([0, 2, 4, 6], [0, 1, 3, 5, 5], 1),
        ([1, 1, 2], [0, 0, 0], 0),
        ([0, 0, 1, 2], [0, 0, 1, 1, 3], 3),
    ],
    ids=["behind", "ahead", "another epoch", "fast leaders", "nothing shared", "shared epoch"],
)
def test_the_examples_of_the_kips(leader: list[int], follower: list[int], kept: int) -> None:
    ahead, behind = Log(leader), Log(follower)
    ahead.lead(9)
    bring_together(ahead, behind)
    assert len(behind.writers) == kept
