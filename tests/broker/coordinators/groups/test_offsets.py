"""Committed offsets: who may move them, how long they live, what deletes them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.coordinators.groups.machine import GroupMachine
from broker.coordinators.groups.membership import State
from broker.coordinators.groups.offsets import OffsetToCommit
from broker.coordinators.groups.shard import GroupConfig
from protocol.errors import ErrorCode
from protocol.stored.offsets import CommittedOffset, OffsetRecord
from protocol.work import finish
from tests.broker.coordinators.groups.consumer_driver import ConsumerDriver
from tests.broker.coordinators.groups.group_driver import GROUP, SESSION_MS, TOPIC_ID, Driver, subscription

RETENTION_MS = 1_000_000


@pytest.fixture
def d() -> Driver:
    return Driver(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS))


def commit_in(d: Driver, member_id: str, offset: int, **changes: Any) -> Any:
    return d.commit(offset, member_id=member_id, generation=d.group.generation, **changes)


# --- committing ---


def test_a_consumer_without_a_group_may_commit(d: Driver) -> None:
    assert d.commit(7) == (ErrorCode.none,)
    assert d.committed() == 7
    assert d.state() is State.EMPTY
    assert d.group.protocol_type is None
    d.crash()
    assert d.committed() == 7
    assert GROUP in d.machine.groups


def test_nobody_commits_from_outside_a_living_group(d: Driver) -> None:
    d.stable()
    assert d.commit(7) is ErrorCode.unknown_member_id
    assert d.committed() is None


def test_an_administrator_may_commit_for_an_empty_group(d: Driver) -> None:
    d.stable()
    d.advance(SESSION_MS)
    assert d.commit(7) == (ErrorCode.none,)


def test_a_commit_with_an_id_but_no_generation_is_judged_by_both(d: Driver) -> None:
    (member_id,) = d.stable()
    assert d.commit(7, member_id=member_id) is ErrorCode.illegal_generation
    assert d.commit(7, member_id="stranger") is ErrorCode.unknown_member_id


def test_members_commit_while_others_rejoin_but_not_while_they_sync(d: Driver) -> None:
    (member_id,) = d.stable()
    d.join_known()
    assert d.state() is State.PREPARING_REBALANCE
    assert commit_in(d, member_id, 5) == (ErrorCode.none,)
    d.join(member_id)
    assert d.state() is State.COMPLETING_REBALANCE
    assert commit_in(d, member_id, 6) is ErrorCode.rebalance_in_progress
    assert d.committed() == 5


def test_metadata_is_bounded_for_each_partition(d: Driver) -> None:
    offsets = (
        OffsetToCommit("t", 0, 1, metadata="x" * 4_096),
        OffsetToCommit("t", 1, 2, metadata="x" * 4_097),
        OffsetToCommit("t", 2, 3, metadata="\N{GRINNING FACE}" * 2_049),
        OffsetToCommit("t", 3, 4, metadata="é" * 4_096),
        OffsetToCommit("t", 4, 5, metadata=None),
    )
    too_large, fine = ErrorCode.offset_metadata_too_large, ErrorCode.none
    assert d.commit(0, offsets=offsets) == (fine, too_large, too_large, fine, fine)
    assert [d.committed(partition=index) for index in range(5)] == [1, None, None, 4, 5]


def test_metadata_fits_the_record_however_much_is_allowed() -> None:
    d = Driver(GroupConfig(offset_metadata_max_bytes=100_000))
    offsets = (
        OffsetToCommit("t", 0, 1, metadata="x" * 32_767),
        OffsetToCommit("t", 1, 2, metadata="x" * 32_768),
        OffsetToCommit("t", 2, 3, metadata="é" * 16_384),
    )
    too_large = ErrorCode.offset_metadata_too_large
    for retention_ms in (-1, 5):
        answer = d.commit(0, offsets=offsets, retention_ms=retention_ms)
        assert answer == (ErrorCode.none, too_large, too_large)


def test_all_of_a_commit_is_kept(d: Driver) -> None:
    d.commit(0, offsets=(OffsetToCommit("t", 3, 9, leader_epoch=4, metadata="why"),))
    found = d.machine.durable.get(GROUP, "t", 3)
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (9, 4, "why")
    assert found.commit_timestamp_ms == d.now.wall_ms
    assert found.record_offset == 0


# --- expiry ---


def test_offsets_of_an_empty_group_expire_from_when_it_emptied(d: Driver) -> None:
    (member_id,) = d.stable()
    commit_in(d, member_id, 5)
    d.advance(RETENTION_MS)
    assert d.state() is State.EMPTY
    d.expire()
    assert d.committed() == 5
    d.advance(SESSION_MS)
    d.expire()
    assert d.committed() is None
    assert GROUP not in d.machine.groups
    assert d.machine.durable.groups == {}


def test_offsets_of_a_topic_that_is_gone_do_not_wait_for_their_time() -> None:
    """As where it was deleted before anybody here coordinated the group."""
    d = ConsumerDriver()
    gone, kept = d.create("t", 2), d.create("kept", 1)
    epoch = d.join("m")["member_epoch"]
    offsets = (
        OffsetToCommit("t", 0, 5, topic_id=gone),
        OffsetToCommit("kept", 0, 6, topic_id=kept),
        OffsetToCommit("of no id", 0, 7),
    )
    in_group = {"member_id": "m", "generation": epoch}
    d.commit(0, offsets=offsets, **in_group)
    d.ask_expiry()
    assert (d.committed(), d.committed("kept"), d.committed("of no id")) == (5, 6, 7)
    d.delete("t")
    new = d.create("t", 2)
    d.commit(0, offsets=(OffsetToCommit("t", 1, 8, topic_id=new),), **in_group)
    assert d.committed() == 5
    d.ask_expiry()
    assert (d.committed(), d.committed(partition=1)) == (None, 8)
    assert (d.committed("kept"), d.committed("of no id")) == (6, 7)


def test_offsets_of_a_living_group_expire_only_for_topics_nobody_subscribes_to(d: Driver) -> None:
    (member_id,) = d.stable()
    commit_in(d, member_id, 5)
    commit_in(d, member_id, 6, topic="former")
    for _ in range(RETENTION_MS // 5_000):
        d.heartbeat(member_id)
        d.advance(5_000)
    d.expire()
    assert (d.committed(), d.committed("former")) == (5, None)
    assert d.state() is State.STABLE


def test_nothing_expires_in_a_living_group_of_another_protocol(d: Driver) -> None:
    (member_id,) = d.stable(protocol_type="connect")
    commit_in(d, member_id, 5)
    for _ in range(RETENTION_MS // 5_000):
        d.heartbeat(member_id)
        d.advance(5_000)
    d.expire()
    assert d.committed() == 5


def test_nothing_expires_while_the_group_rebalances(d: Driver) -> None:
    (member_id,) = d.stable(session_timeout_ms=2 * RETENTION_MS, rebalance_timeout_ms=2 * RETENTION_MS)
    commit_in(d, member_id, 5, topic="former")
    d.join_known(session_timeout_ms=2 * RETENTION_MS)
    d.advance(RETENTION_MS)
    d.expire()
    assert d.committed("former") == 5


def test_a_standalone_consumer_s_offsets_expire_each_from_its_commit(d: Driver) -> None:
    d.commit(1, partition=0)
    d.advance(RETENTION_MS // 2)
    d.commit(2, partition=1)
    d.advance(RETENTION_MS // 2)
    d.expire()
    assert (d.committed(partition=0), d.committed(partition=1)) == (None, 2)
    d.advance(RETENTION_MS // 2)
    d.expire()
    assert d.machine.durable.offsets == {}
    assert not d.machine.groups


def test_a_retention_time_of_the_commit_s_own_counts_instead(d: Driver) -> None:
    d.commit(1, retention_ms=10)
    d.crash()
    d.advance(9)
    d.expire()
    assert d.committed() == 1
    d.advance(1)
    d.expire()
    assert d.committed() is None


def test_an_empty_group_without_offsets_goes_but_not_one_that_is_being_joined(d: Driver) -> None:
    d.join()
    d.expire()
    assert GROUP in d.machine.groups
    d.advance(SESSION_MS)
    d.expire()
    assert GROUP not in d.machine.groups


# --- deleting ---


def test_deleted_topics_take_their_offsets_along(d: Driver) -> None:
    d.commit(1)
    d.commit(2, topic="other")
    d.commit(3, group_id="h")
    assert d.forget_topics("t") == 2
    assert d.machine.durable.get("h", "t", 0) is None
    assert (d.committed(), d.committed("other")) == (None, 2)


def test_a_topic_deleted_late_leaves_its_successor_s_offsets(d: Driver) -> None:
    """A partition that was loading hears of the deletion after the first commit for the topic's successor."""
    successor = OffsetToCommit("t", 0, 5, topic_id=UUID(int=8))
    deleted = OffsetToCommit("t", 1, 6, topic_id=TOPIC_ID)
    d.commit(0, offsets=(successor, deleted))
    assert d.forget_topics("t") == 1
    assert (d.committed(partition=0), d.committed(partition=1)) == (5, None)


def test_offsets_of_a_topic_in_use_are_not_deleted(d: Driver) -> None:
    (member_id,) = d.stable()
    commit_in(d, member_id, 1)
    commit_in(d, member_id, 2, topic="former")
    in_use, done = ErrorCode.group_subscribed_to_topic, ErrorCode.none
    assert d.delete_offsets(("t", 0), ("former", 0), ("never", 0)) == (in_use, done, done)
    assert (d.committed(), d.committed("former")) == (1, None)


def test_offsets_of_a_living_group_of_another_protocol_are_not_deleted(d: Driver) -> None:
    d.stable(protocol_type="connect")
    assert d.delete_offsets(("t", 0)) is ErrorCode.non_empty_group


def test_a_subscription_nobody_can_read_counts_as_to_everything(d: Driver) -> None:
    d.stable(protocols=(("range", b"\0"),))
    assert d.delete_offsets(("t", 0)) == (ErrorCode.group_subscribed_to_topic,)


def test_offsets_of_an_empty_group_are_deleted(d: Driver) -> None:
    d.commit(1)
    written = len(d.log)
    assert d.delete_offsets(("t", 0), ("t", 1)) == (ErrorCode.none, ErrorCode.none)
    assert len(d.log) == written + 1
    assert d.committed() is None


def test_groups_are_deleted_when_they_are_empty(d: Driver) -> None:
    d.commit(1)
    d.commit(2, group_id="h")
    d.join(group_id="joining", requires_known_member=False)
    assert d.delete_groups(GROUP, "nobody", "joining") == (
        ErrorCode.none,
        ErrorCode.group_id_not_found,
        ErrorCode.non_empty_group,
    )
    assert GROUP not in d.machine.groups
    assert d.committed() is None
    d.crash()
    assert set(d.machine.groups) == {"h"}


def test_a_deleted_group_can_begin_again(d: Driver) -> None:
    d.stable()
    d.advance(SESSION_MS)
    d.delete_groups(GROUP)
    d.stable()
    assert d.group.generation == 1


def test_subscriptions_are_read_from_what_the_members_sent(d: Driver) -> None:
    d.settle([d.join_known(protocols=(("range", subscription(t)),))[1] for t in ("a", "b")])
    assert d.group.subscribed_topics == {"a", "b"}
    d.crash()
    assert d.group.subscribed_topics == {"a", "b"}


# Transactions, as a log that has them is read


def apply_pending(
    d: Driver, offset: int, *, at: int, producer_id: int = 9, topic_id: UUID | None = None
) -> None:
    committed = CommittedOffset(offset=offset, commit_timestamp_ms=d.now.wall_ms, topic_id=topic_id)
    record = OffsetRecord(group_id=GROUP, topic="t", partition=0, committed=committed)
    d.machine.apply(record, offset=at, producer_id=producer_id)


@pytest.mark.parametrize(("is_committed", "expected"), [(True, 8), (False, 3)])
def test_a_transaction_s_offsets_wait_for_its_end(d: Driver, is_committed: bool, expected: int) -> None:
    d.commit(3)
    apply_pending(d, 8, at=10)
    assert d.machine.durable.is_pending(GROUP, "t", 0)
    assert d.committed() == 3
    finish(d.machine.apply_marker(producer_id=9, committed=is_committed))
    assert d.committed() == expected
    assert not d.machine.durable.is_pending(GROUP, "t", 0)


def test_a_commit_after_a_transaction_s_own_is_the_newer_one(d: Driver) -> None:
    apply_pending(d, 8, at=-1)
    d.commit(3)
    finish(d.machine.apply_marker(producer_id=9, committed=True))
    assert d.committed() == 3


def test_pending_offsets_keep_their_group_and_go_with_it(d: Driver) -> None:
    d.commit(3)
    apply_pending(d, 8, at=10)
    d.advance(RETENTION_MS)
    d.expire()
    assert d.committed() == 3
    d.delete_groups(GROUP)
    finish(d.machine.apply_marker(producer_id=9, committed=True))
    assert d.committed() is None


@pytest.mark.parametrize("had_offset", [False, True])
@pytest.mark.parametrize(("topic_id", "expected"), [(UUID(int=8), 8), (TOPIC_ID, None)])
def test_a_topic_deleted_late_leaves_what_a_transaction_commits_for_its_successor(
    d: Driver, had_offset: bool, topic_id: UUID, expected: int | None
) -> None:
    if had_offset:
        d.commit(0, offsets=(OffsetToCommit("t", 0, 3, topic_id=TOPIC_ID),))
    apply_pending(d, 8, at=10, topic_id=topic_id)
    d.forget_topics("t")
    finish(d.machine.apply_marker(producer_id=9, committed=True))
    assert d.committed() == expected


def test_what_does_not_fit_a_record_is_refused_or_bounded(d: Driver) -> None:
    assert d.commit(1, group_id="g" * 32_768) is ErrorCode.invalid_request
    assert d.commit(1, group_id="g" * 32_767) == (ErrorCode.none,)
    assert d.commit(2**63 - 1, retention_ms=2**63 - 1) == (ErrorCode.none,)
    d.crash()
    assert d.committed() == 2**63 - 1


def test_a_group_whose_offsets_are_all_pending_is_there(d: Driver) -> None:
    committed = CommittedOffset(offset=8, commit_timestamp_ms=d.now.wall_ms)
    record = OffsetRecord(group_id=GROUP, topic="t", partition=0, committed=committed)
    machine = GroupMachine(d.config)
    machine.apply(record, offset=0, producer_id=9)
    finish(machine.loaded(d.now))
    assert machine.groups[GROUP].state is State.EMPTY
    finish(machine.apply_marker(producer_id=9, committed=True))
    assert machine.durable.get(GROUP, "t", 0) == committed.at(0)
