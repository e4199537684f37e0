"""Two logs that parted come together again at the last offset they share (KIP-101, KIP-279, KIP-595)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replicas.fetch_sessions import PartitionRequest
from broker.replicas.follower_log import plan_truncation
from broker.replicas.read import divergence
from protocol.apis import Api
from protocol.fetch import FetchItem
from storage.epochs import EpochCache
from tests.broker.raw_client import batch_of
from tests.broker.replication_driver import Replicas, log_of


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


# --- between brokers ---


def test_what_was_never_committed_gives_way_to_the_next_leader() -> None:
    """KIP-101, scenario 2: the returning leader cuts its own tail by epoch, not by high watermark."""

    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        world.fabric.cut("node1", "node2")
        world.fabric.cut("node1", "node3")
        await world.append(1, b"lost", acks=1)
        await world.append(1, b"lost too", acks=1)
        world.kill(1)
        world.fabric.heal()
        await world.append(2, b"b")
        await world.start(1)
        await world.append(2, b"c")
        await world.agree(1, 2, 3)
        assert world.nodes[1].values() == [b"a", b"b", b"c"]

    Replicas().run(main)


def test_a_follower_keeps_its_tail_past_the_high_watermark_through_a_restart() -> None:
    """KIP-101, scenario 1: a restart before the high watermark came must not cut what may be committed."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        await world.append(1, b"b")
        log_of(world, 2).high_watermark = 1
        world.nodes[2].logs.checkpoint_high_watermarks()
        world.kill(2, is_noticed=False)
        world.kill(1, is_noticed=False)
        await world.start(2)
        assert world.nodes[2].values() == [b"a", b"b"]

    Replicas(2).run(main)


def test_short_reigns_leave_no_divergence_behind() -> None:
    """KIP-279: epochs that one replica never saw are found by asking again, from cut to cut."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"common")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        for reign in range(3):
            world.change(leader=1, isr=(1,))
            for _ in range(2):
                await world.append(1, b"by 1 in reign %d" % reign, acks=1)
            world.change(leader=2, isr=(2,))
            for _ in range(3):
                await world.append(2, b"by 2 in reign %d" % reign, acks=1)
        kept = world.nodes[2].values()
        world.fabric.heal()
        await world.agree(1, 2)
        assert world.nodes[1].values() == kept
        assert len(set(world.nodes[1].values())) == 4

    Replicas(2).run(main)


def test_a_reign_without_a_record_is_forgotten() -> None:
    """An epoch that one replica led with nothing in it contradicts the next leader's."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        world.hold(2)
        world.change(leader=1)
        world.let_go(2)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        world.fabric.heal()
        await world.agree(1, 2)

    Replicas(2).run(main)


def test_an_empty_replica_begins_where_the_leaders_log_does() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        for at in range(6):
            await world.append(1, b"%d" % at)
        await world.append(1, b"6", b"7", b"8")
        log_of(world, 1).advance_log_start(7)
        world.change(replicas=(1, 2, 3))
        await world.until(lambda: 3 in world.isr())
        assert log_of(world, 3).log_start_offset == 7
        await world.append(1, b"9")
        assert world.nodes[3].values()[-3:] == [b"7", b"8", b"9"]

    Replicas(3).run(main)


def test_an_empty_replica_that_starts_inside_a_batch_of_a_leader_that_starts_before_it_is_filled() -> None:
    """It heard of a delete that the leader of now did not hear of."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.append(1, b"b", b"c", b"d")
        await world.agree(1, 2)
        world.kill(2)
        log_of(world, 1).advance_log_start(1)
        await world.start(2)
        log_of(world, 2).truncate_fully(3)
        await world.until(lambda: 2 in world.isr())
        await world.append(1, b"e")
        assert world.nodes[2].values() == [b"b", b"c", b"d", b"e"]
        assert log_of(world, 2).log_start_offset == 3

    Replicas(2).run(main)


def test_a_replica_whose_end_was_deleted_by_the_leader_begins_anew() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2, 3)
        await world.append(1, b"a")
        await world.agree(1, 2, 3)
        world.kill(3)
        for _ in range(10):
            await world.append(1, b"x")
        log_of(world, 1).advance_log_start(8)
        await world.start(3)
        await world.until(lambda: 3 in world.isr())
        assert log_of(world, 3).log_start_offset == 8

    Replicas().run(main)


def test_a_replica_that_parted_from_what_the_leader_has_deleted_since_begins_anew() -> None:
    """The leader's epochs no longer tell that the logs differ: it has nothing left from before its start,
    which lies inside a batch and where the other one ends."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        await world.append(1, b"lost", acks=1)
        await world.append(1, b"lost too", acks=1)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b", b"c", b"d", b"e")
        log_of(world, 2).advance_log_start(3)
        world.fabric.heal()
        await world.agree(1, 2)
        await world.until(lambda: 1 in world.isr())
        assert log_of(world, 1).log_start_offset == 3
        assert world.nodes[1].values() == world.nodes[2].values() == [b"b", b"c", b"d", b"e"]

    Replicas(2).run(main)


def test_a_replica_whose_batches_were_all_deleted_begins_anew_without_their_producers() -> None:
    """The leader's log begins where the other one ends, so that no epoch tells that they parted."""

    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        lost = batch_of(b"lost", producer_id=7, producer_epoch=0, base_sequence=0)
        await append_batch(world, 1, lost)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        log_of(world, 2).advance_log_start(2)
        world.fabric.heal()
        await world.until(lambda: 1 in world.isr())
        log = log_of(world, 1)
        assert (log.log_start_offset, log.log_end_offset) == (2, 2)
        assert [segment.base_offset for segment in log.segments] == [2]
        assert not log.producer_table.entries
        world.change(leader=1)
        await append_batch(world, 1, lost)
        await world.append(1, b"c")
        await world.agree(1, 2)
        assert world.nodes[2].values() == [b"lost", b"c"], "it is no duplicate"

    Replicas(2).run(main)


def test_a_replica_that_agrees_with_its_leader_keeps_its_producers_when_all_is_deleted() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        await append_batch(world, 1, batch)
        await world.agree(1, 2)
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
        await world.ask(1, Api.DELETE_RECORDS, 2, topics=topics, timeout=30_000)
        for log in (log_of(world, 1), log_of(world, 2)):
            assert (log.log_start_offset, log.log_end_offset) == (1, 1)
            assert log.producer_table.entries.keys() == {7}
        world.kill(2)
        await world.start(2)
        await world.until(lambda: 2 in world.isr())
        assert log_of(world, 2).producer_table.entries.keys() == {7}

    Replicas(2).run(main)


async def append_batch(world: Replicas, node_id: int, batch: bytearray) -> None:
    node = world.nodes[node_id]
    await node.run(node.replicas.append("t", 0, batch, timeout_ms=30_000, required_acks=1, origin="client"))


def test_an_unclean_leader_takes_what_was_committed_with_it() -> None:
    async def main(world: Replicas) -> None:
        world.create(1, 2)
        await world.append(1, b"a")
        await world.agree(1, 2)
        world.fabric.cut("node1", "node2")
        for _ in range(3):
            await world.append(1, b"gone")
        assert world.isr() == (1,)
        world.change(leader=2, isr=(2,))
        await world.append(2, b"b")
        world.fabric.heal()
        await world.agree(1, 2)
        assert world.nodes[1].values() == [b"a", b"b"]

    Replicas(2).run(main)
