"""The frontier: who moves the high watermark, and who is told."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.partition import Partition, TopicStats
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
        self.epochs: list[int] = []

    def set_high_watermark(self, high_watermark: int) -> None:
        assert high_watermark <= self.log_end_offset
        self.high_watermark = high_watermark

    def epoch_start(self, leader_epoch: int) -> None:
        self.epochs.append(leader_epoch)


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


def partition_of(log: FakeLog, members: tuple[int, ...] = (1,), *, syncs: bool = False) -> Partition:
    made: Any = log
    partition = Partition(topic="t", index=0, topic_id=UUID(int=1), log=made, node_id=1, stats=TopicStats())
    partition.lead(leader_epoch=3, replicas=members, isr=members, syncs=syncs, internal=False)
    return partition


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
        assert log.high_watermark == min(ends.values()) >= before
        before = log.high_watermark
        for commit in commits:
            assert (commit.outcome is ErrorCode.none) == (commit.needed <= before)


def test_waiters_fail_with_the_role_and_with_the_disk() -> None:
    for act, code in (
        (lambda p: p.resign(leader_id=2, leader_epoch=4), ErrorCode.not_leader_or_follower),
        (lambda p: p.go_offline(), ErrorCode.kafka_storage_error),
    ):
        log = FakeLog()
        partition = partition_of(log, (1, 2))
        commit = Commit(1)
        partition.wait_committed(commit)
        act(partition)
        assert commit.outcome is code
        assert partition.fast_log is None
        with pytest.raises(KafkaError) as error:
            partition.check_leader()
        assert error.value.code is code


def test_a_new_epoch_starts_where_the_log_ends() -> None:
    log = FakeLog()
    partition = partition_of(log)
    log.log_end_offset = 7
    changes = {"replicas": (1,), "isr": (1,), "syncs": False, "internal": False}
    assert not partition.lead(leader_epoch=3, **changes)  # type: ignore[arg-type]
    assert partition.lead(leader_epoch=4, **changes)  # type: ignore[arg-type]
    assert (partition.epoch_start, log.epochs) == (7, [3, 4])


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
    partition = partition_of(FakeLog(min_insync_replicas=least), members)
    partition.isr = isr
    partition.refresh()
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
