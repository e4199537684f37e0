"""The frontier: who moves the high watermark, and who is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.metadata_records import PartitionImage
from broker.replicas.partition import FetchTime, IsrProposal, Partition, TopicStats
from protocol.errors import ErrorCode, KafkaError
from storage.policy import LogConfig


class FakeLog:
    """The part of a log a partition looks at."""

    def __init__(self, **config: Any) -> None:
        self.config = LogConfig(**config)
        self.needs_walk = self.config.needs_walk
        self.log_start_offset = 0
        self.high_watermark = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.begun: list[int] = []
        """Leader epochs."""

    def set_high_watermark(self, high_watermark: int) -> None:
        assert high_watermark <= self.log_end_offset
        self.high_watermark = high_watermark

    @property
    def epochs(self) -> SimpleNamespace:
        return SimpleNamespace(latest=self.begun[-1] if self.begun else -1)

    def epoch_start(self, leader_epoch: int) -> None:
        self.begun.append(leader_epoch)


class Commit:
    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.outcome: ErrorCode | None = None

    def reached(self) -> None:
        assert self.outcome is None
        self.outcome = ErrorCode.none

    def failed(self, code: ErrorCode) -> None:
        assert self.outcome is None
        self.outcome = code


class FakePeers:
    """The other brokers: all there unless told otherwise. Its clock is moved by hand."""

    lag_s = 30.0

    def __init__(self) -> None:
        self.at = 1000.0
        self.epochs: dict[int, int] = {}
        """Broker epochs by node; any other is not eligible."""
        self.gone: set[int] = set()
        self.told: list[Partition] = []

    def now(self) -> float:
        return self.at

    def is_eligible(self, node_id: int, broker_epoch: int) -> bool:
        return node_id not in self.gone and broker_epoch in (-1, self.epochs.get(node_id, broker_epoch))

    def is_live(self, node_id: int) -> bool:
        return node_id not in self.gone

    def proposed(self, partition: Partition) -> None:
        self.told.append(partition)


def view_of(
    replicas: tuple[int, ...],
    isr: tuple[int, ...] | None = None,
    *,
    leader: int = 1,
    leader_epoch: int = 3,
    partition_epoch: int = 5,
) -> PartitionImage:
    return PartitionImage(
        index=0,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        replicas=replicas,
        isr=replicas if isr is None else isr,
    )


def partition_of(
    log: FakeLog,
    members: tuple[int, ...] = (1,),
    isr: tuple[int, ...] | None = None,
    *,
    syncs: bool = False,
    peers: FakePeers | None = None,
) -> Partition:
    made: Any = log
    partition = Partition(
        topic="t",
        index=0,
        topic_id=UUID(int=1),
        log=made,
        node_id=1,
        stats=TopicStats(),
        peers=peers or FakePeers(),
    )
    lead(partition, view_of(members, isr), syncs=syncs)
    return partition


def lead(partition: Partition, view: PartitionImage, *, syncs: bool = False) -> bool:
    return partition.lead(view, syncs=syncs, internal=False)


def test_a_single_replica_commits_with_the_write() -> None:
    log = FakeLog()
    partition = partition_of(log)
    commit = Commit(5)
    partition.wait_committed(commit)
    log.log_end_offset = 5
    assert partition.advance()
    assert (log.high_watermark, commit.outcome) == (5, ErrorCode.none)


def test_a_single_replica_that_syncs_commits_with_the_sync() -> None:
    log = FakeLog()
    partition = partition_of(log, syncs=True)
    commit = Commit(5)
    partition.wait_committed(commit)
    log.log_end_offset = 8
    assert not partition.advance()
    assert partition.synced_to(6)
    assert (log.high_watermark, commit.outcome) == (6, ErrorCode.none)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 20)), max_size=40))
def test_the_high_watermark_is_the_least_end_and_never_goes_back(moves: list[tuple[int, int]]) -> None:
    log = FakeLog()
    partition = partition_of(log, (1, 2, 3))
    ends = {1: 0, 2: 0, 3: 0}
    commits = [Commit(at) for at in (1, 5, 3, 9, 20)]
    for commit in commits:
        partition.wait_committed(commit)
    before = 0
    for member, steps in moves:
        ends[member] = min(ends[member] + steps, 40) if member == 1 else min(ends[member] + steps, ends[1])
        if member == 1:
            log.log_end_offset = ends[1]
            partition.advance()
        else:
            partition.follower_at(member, ends[member])
        heard = set(ends) == {1} | {each.node_id for each in partition.followers() if each.end_offset >= 0}
        assert log.high_watermark == (min(ends.values()) if heard else 0) >= before
        before = log.high_watermark
        for commit in commits:
            assert (commit.outcome is ErrorCode.none) == (commit.needed <= before)


def test_waiters_fail_with_the_role_and_with_the_disk() -> None:
    for act, code in (
        (lambda p: p.follow(view_of((1, 2), leader=2, leader_epoch=4)), ErrorCode.not_leader_or_follower),
        (lambda p: p.leave(), ErrorCode.not_leader_or_follower),
        (lambda p: p.go_offline(), ErrorCode.kafka_storage_error),
    ):
        log = FakeLog()
        partition = partition_of(log, (1, 2))
        commit = Commit(1)
        partition.wait_committed(commit)
        act(partition)
        assert commit.outcome is code
        assert partition.fast_log is None
        assert (partition.offline, partition.is_leader) == (
            code is ErrorCode.kafka_storage_error,
            code is ErrorCode.kafka_storage_error,
        )


def test_a_new_epoch_starts_where_the_log_ends() -> None:
    log = FakeLog()
    partition = partition_of(log)
    log.log_end_offset = 7
    assert not lead(partition, view_of((1,), leader_epoch=3))
    assert lead(partition, view_of((1,), leader_epoch=4))
    assert (partition.epoch_start, log.begun) == (7, [3, 4])


def test_epochs_a_client_believes_in() -> None:
    partition = partition_of(FakeLog())
    assert partition.epoch_error(-1) is ErrorCode.none
    assert partition.epoch_error(3) is ErrorCode.none
    assert partition.epoch_error(2) is ErrorCode.fenced_leader_epoch
    assert partition.epoch_error(4) is ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize(
    ("members", "isr", "least", "is_ok"),
    [
        ((1,), (1,), 2, True),
        ((1, 2), (1,), 2, False),
        ((1, 2), (1, 2), 2, True),
        ((1, 2, 3), (1, 2), 5, False),
    ],
)
def test_min_insync_replicas_ask_for_no_more_than_there_are(
    members: tuple[int, ...], isr: tuple[int, ...], least: int, is_ok: bool
) -> None:
    partition = partition_of(FakeLog(min_insync_replicas=least), members, isr)
    assert partition.acks_all_ok is is_ok
    if not is_ok:
        with pytest.raises(KafkaError) as error:
            partition.check_acks_all()
        assert error.value.code is ErrorCode.not_enough_replicas


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup_policy": ("compact",)},
        {"compression_type": "gzip"},
        {"message_timestamp_type": "LogAppendTime"},
    ],
)
def test_the_short_way_is_closed_where_records_must_be_read(config: dict[str, Any]) -> None:
    assert partition_of(FakeLog(**config)).fast_log is None
    assert partition_of(FakeLog()).fast_log is not None


# --- followers and the ISR ------------------------------------------------------------------------------


def heard_from(partition: Partition, ends: dict[int, int], **more: int) -> None:
    for node_id, end in ends.items():
        partition.follower_at(node_id, end, **more)


def proposed(partition: Partition) -> tuple[int, ...]:
    proposal = partition.proposal
    return () if proposal is None else tuple(node_id for node_id, _ in proposal.isr)


def commit(partition: Partition, proposal: IsrProposal | None, isr: tuple[int, ...]) -> bool:
    assert proposal is not None
    return partition.committed(
        proposal, isr=isr, leader_epoch=proposal.leader_epoch, partition_epoch=proposal.partition_epoch + 1
    )


def test_a_member_of_the_isr_that_was_never_heard_from_holds_the_high_watermark() -> None:
    log = FakeLog()
    partition = partition_of(log, (1, 2, 3))
    log.log_end_offset = 5
    assert not partition.advance()
    heard_from(partition, {2: 5})
    assert log.high_watermark == 0
    heard_from(partition, {3: 4})
    assert log.high_watermark == 4


def test_a_follower_joins_with_all_that_is_committed_and_something_of_this_epoch() -> None:
    """KIP-497: until the controller answers, the high watermark waits for who was proposed."""
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), (1,), peers=peers)
    log.log_end_offset = log.high_watermark = 10
    assert lead(partition, view_of((1, 2), (1,), leader_epoch=4, partition_epoch=6))
    heard_from(partition, {2: 9})
    assert (partition.proposal, peers.told) == (None, [])
    heard_from(partition, {2: 10}, broker_epoch=77)
    assert partition.proposal is not None
    assert partition.proposal.isr == ((1, -1), (2, 77))
    assert (partition.isr, partition.maximal_isr) == ((1,), {1, 2})
    assert peers.told == [partition]
    peers.at += 1000
    log.log_end_offset = 20
    assert not partition.advance()
    assert not commit(partition, partition.proposal, (1, 2))
    assert (partition.isr, partition.proposal, partition.partition_epoch) == ((1, 2), None, 7)
    heard_from(partition, {2: 20})
    assert log.high_watermark == 20


def test_the_answer_to_an_older_proposal_says_nothing_of_the_one_under_way() -> None:
    log = FakeLog()
    partition = partition_of(log, (1, 2, 3), (1,))
    heard_from(partition, {2: 0})
    older = partition.proposal
    assert lead(partition, view_of((1, 2, 3), (1,), leader_epoch=4, partition_epoch=9))
    heard_from(partition, {3: 0}, broker_epoch=77)
    assert older is not None
    assert partition.proposal is not older
    assert not partition.committed(older, isr=(1, 2), leader_epoch=4, partition_epoch=10)
    assert (partition.isr, partition.partition_epoch, proposed(partition)) == ((1,), 9, (1, 3))


def test_a_follower_behind_the_start_of_the_epoch_does_not_join() -> None:
    log = FakeLog()
    log.log_end_offset = 10
    log.high_watermark = 4
    partition = partition_of(log, (1, 2, 3), (1, 3))
    heard_from(partition, {3: 4, 2: 6})
    assert (log.high_watermark, partition.epoch_start, partition.proposal) == (4, 10, None)
    heard_from(partition, {2: 10})
    assert proposed(partition) == (1, 3, 2)


def test_a_follower_that_would_bring_back_what_was_deleted_does_not_join() -> None:
    log = FakeLog()
    log.log_start_offset = log.log_end_offset = 9
    partition = partition_of(log, (1, 2), (1,))
    heard_from(partition, {2: 9}, log_start=8)
    assert partition.proposal is None
    heard_from(partition, {2: 9}, log_start=9)
    assert proposed(partition) == (1, 2)


def test_another_incarnation_or_a_fenced_broker_does_not_join() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), (1,), peers=peers)
    peers.epochs[2] = 8
    heard_from(partition, {2: 0}, broker_epoch=7)
    assert partition.proposal is None
    peers.gone.add(2)
    heard_from(partition, {2: 0}, broker_epoch=8)
    assert partition.proposal is None
    peers.gone.clear()
    heard_from(partition, {2: 0}, broker_epoch=8)
    assert proposed(partition) == (1, 2)


def test_who_is_behind_for_too_long_leaves_and_counts_until_that_is_committed() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2, 3), peers=peers)
    log.log_end_offset = 10
    heard_from(partition, {2: 10, 3: 4})
    assert log.high_watermark == 4
    peers.at += 30
    assert not partition.propose_shrink()
    peers.at += 1
    assert partition.propose_shrink()
    assert proposed(partition) == (1, 2)
    assert partition.maximal_isr == {1, 2, 3}
    assert not partition.propose_shrink(), "one change at a time"
    assert not partition.advance()
    assert commit(partition, partition.proposal, (1, 2))
    assert log.high_watermark == 10


def test_a_follower_that_reads_up_to_where_the_leader_was_stays_in_sync() -> None:
    """It is always a little behind a busy leader and yet never late."""
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), peers=peers)
    for _ in range(10):
        log.log_end_offset += 100
        peers.at += 20
        heard_from(partition, {2: log.log_end_offset - 100})
        assert not partition.propose_shrink()
    for _ in range(3):
        log.log_end_offset += 100
        peers.at += 20
        heard_from(partition, {2: 950})
    assert partition.propose_shrink()


def test_a_follower_at_the_end_is_in_sync_however_long_ago_it_was_heard() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), peers=peers)
    heard_from(partition, {2: 0})
    peers.at += 10_000
    assert not partition.propose_shrink()


def test_a_follower_that_asks_for_other_partitions_of_its_session_is_there() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), peers=peers)
    heard_from(partition, {2: 0})
    follower, fetch_time = partition.follower(2), FetchTime()
    assert follower is not None
    follower.fetch_time = fetch_time
    peers.at += 1000
    fetch_time.at = peers.at
    log.log_end_offset = 5
    assert not partition.propose_shrink(), "it had everything a moment ago"
    peers.at += 31
    fetch_time.at = peers.at - 30.5
    heard_from(partition, {2: 0})
    fetch_time.at = peers.at = peers.at + 31
    assert partition.propose_shrink(), "once it was heard to be behind, asking for others is no excuse"


def test_the_high_watermark_waits_for_who_is_about_to_join_but_not_for_ever() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), (1,), peers=peers)
    heard_from(partition, {2: 0})
    partition.withdraw(partition.proposal)  # type: ignore[arg-type]
    log.log_end_offset = 5
    assert not partition.advance()
    peers.at += 31
    assert partition.advance()
    assert log.high_watermark == 5


def test_the_high_watermark_stands_still_below_min_insync_replicas() -> None:
    log = FakeLog(min_insync_replicas=2)
    partition = partition_of(log, (1, 2))
    log.log_end_offset = 5
    heard_from(partition, {2: 3})
    assert log.high_watermark == 3
    waiter = Commit(5)
    partition.wait_committed(waiter)
    lead(partition, view_of((1, 2), (1,), partition_epoch=6))
    assert waiter.outcome is ErrorCode.not_enough_replicas_after_append
    heard_from(partition, {2: 4})
    assert log.high_watermark == 3
    lead(partition, view_of((1, 2), (1, 2), partition_epoch=7))
    assert log.high_watermark == 4


def test_an_answer_to_an_old_proposal_changes_nothing() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2, 3), (1,), peers=peers)
    heard_from(partition, {2: 0})
    first = partition.proposal
    lead(partition, view_of((1, 2, 3), (1,), partition_epoch=9))
    assert partition.proposal is None
    assert not commit(partition, first, (1, 2))
    heard_from(partition, {3: 0})
    second = partition.proposal
    assert second is not None
    partition.withdraw(first)  # type: ignore[arg-type]
    assert partition.proposal is second
    partition.follow(view_of((1, 2, 3), (2, 3), leader=2, leader_epoch=4, partition_epoch=10))
    assert not commit(partition, second, (1, 3))
    assert (partition.isr, partition.maximal_isr) == ((), frozenset())


def test_the_image_that_comes_after_the_answer_is_old_news() -> None:
    log = FakeLog()
    partition = partition_of(log, (1, 2, 3), (1,))
    heard_from(partition, {2: 0})
    commit(partition, partition.proposal, (1, 2))
    heard_from(partition, {3: 0})
    under_way = partition.proposal
    assert not lead(partition, view_of((1, 2, 3), (1,), partition_epoch=5))
    assert not lead(partition, view_of((1, 2, 3), (1, 2), partition_epoch=6))
    assert partition.isr == (1, 2)
    assert partition.proposal is under_way, "what may be committed counts"
    assert partition.maximal_isr == {1, 2, 3}


def test_a_new_epoch_of_the_same_leader_gives_members_their_full_time() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2), peers=peers)
    log.log_end_offset = 5
    heard_from(partition, {2: 3})
    peers.at += 100
    lead(partition, view_of((1, 2), leader_epoch=4, partition_epoch=6))
    assert not partition.propose_shrink()
    assert log.high_watermark == 3
    peers.at += 31
    assert partition.propose_shrink()


def test_a_replica_that_is_taken_away_is_asked_no_more() -> None:
    log = FakeLog()
    partition = partition_of(log, (1, 2, 3), (1, 2))
    heard_from(partition, {2: 0, 3: 0})
    lead(partition, view_of((1, 2), (1, 2), partition_epoch=6))
    assert partition.follower(3) is None
    log.log_end_offset = 4
    heard_from(partition, {2: 4})
    assert log.high_watermark == 4


def test_deleted_records_are_gone_when_every_live_replica_has_deleted_them() -> None:
    log, peers = FakeLog(), FakePeers()
    partition = partition_of(log, (1, 2, 3), peers=peers)
    log.log_start_offset = 7
    heard_from(partition, {2: 9}, log_start=7)
    heard_from(partition, {3: 9}, log_start=5)
    assert partition.low_watermark == 5
    waiter, given_up = Commit(7), Commit(7)
    partition.wait_deleted(waiter)
    partition.wait_deleted(given_up)
    partition.wait_deleted_no_more(given_up)
    heard_from(partition, {3: 9}, log_start=6)
    assert waiter.outcome is None
    heard_from(partition, {3: 9}, log_start=7)
    assert (waiter.outcome, given_up.outcome) == (ErrorCode.none, None)
    heard_from(partition, {3: 9}, log_start=5)
    peers.gone.add(3)
    assert partition.low_watermark == 7


def test_who_waits_no_more_is_not_kept_while_the_high_watermark_stands_still() -> None:
    log = FakeLog()
    partition = partition_of(log, (1, 2))
    log.log_end_offset = 9
    commits = [Commit(needed) for needed in (1, 9, 5)]
    for commit in commits:
        partition.wait_committed(commit)
    partition.wait_no_more(commits[2])
    assert partition.commit_waits == 2
    partition.follower_at(2, 9)
    assert [commit.outcome for commit in commits] == [ErrorCode.none, ErrorCode.none, None]
    assert partition.commit_waits == 0
