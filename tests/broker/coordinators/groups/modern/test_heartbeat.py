"""One group that the server assigns, step by step: epochs, reconciliation, fencing, timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.account import MemoryAccount
from broker.coordinators.groups.consumer_group import GroupState
from broker.coordinators.groups.modern.heartbeat import ConsumerHeartbeat, ResolveRegexes
from broker.coordinators.groups.offsets import OffsetToCommit
from broker.coordinators.groups.shard import CONSUMER_GROUP_BYTES, ConsumerSettings, GroupConfig
from broker.coordinators.machine import DecisionDraft, in_steps
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import MemberState, TopicsRecord
from protocol.work import finish
from tests.broker.coordinators.groups import group_driver
from tests.broker.coordinators.groups.consumer_driver import (
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    ConsumerDriver,
    claims_of,
    flat,
)
from tests.broker.coordinators.groups.group_driver import GROUP


@pytest.fixture
def d() -> ConsumerDriver:
    driver = ConsumerDriver()
    driver.create("t", 4)
    return driver


def refusal(d: ConsumerDriver, **changes: Any) -> KafkaError:
    values: dict[str, Any] = {"group_id": GROUP, "member_id": "m", "member_epoch": 0}
    with pytest.raises(KafkaError) as caught:
        finish(in_steps(d.machine.decide(ConsumerHeartbeat(**(values | changes)), DecisionDraft(d.now, -1))))
    return caught.value


def settled(d: ConsumerDriver, *members: Consumer) -> None:
    """Let all of them send heartbeats until none of them has anything left to do."""
    for _ in range(6):
        d.advance(INTERVAL_MS)
        for member in members:
            member.revoke()
            member.beat()
    assert d.consumers.state is GroupState.STABLE


# --- joining ---


def test_the_first_member_gets_everything(d: ConsumerDriver) -> None:
    answer = d.join()
    assert answer["member_id"] == "m"
    assert answer["member_epoch"] == 2
    assert answer["heartbeat_interval_ms"] == 5_000
    assert flat(answer["assignment"]) == d.partitions("t")
    assert d.consumers.state is GroupState.STABLE
    assert (d.consumers.epoch, d.consumers.target_epoch) == (2, 2)


def test_a_heartbeat_that_changes_nothing_makes_no_record(d: ConsumerDriver) -> None:
    d.join()
    written = len(d.log)
    answer = d.beat("m", 2)
    assert answer["assignment"] is None
    assert answer["member_epoch"] == 2
    assert len(d.log) == written


def test_a_full_heartbeat_is_told_its_assignment_again(d: ConsumerDriver) -> None:
    d.join()
    written = len(d.log)
    answer = d.beat("m", 2, topics=("t",), claims=(), rebalance_timeout_ms=REBALANCE_MS)
    assert flat(answer["assignment"]) == d.partitions("t")
    assert len(d.log) == written


def test_the_second_member_gets_its_share_once_it_was_given_up(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    one.beat()
    d.advance(INTERVAL_MS)
    two.beat()
    assert two.epoch == 3
    assert not two.owned
    assert d.consumers.members["m2"].current.state is MemberState.UNRELEASED_PARTITIONS
    answer = one.beat()
    assert answer["member_epoch"] == 2, "it stays behind until it has given up what it must"
    assert d.consumers.members["m1"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert len(one.wanted) == 2
    assert len(one.owned) == 4
    two.beat()
    assert not two.owned
    one.revoke()
    assert one.beat()["member_epoch"] == 3
    two.beat()
    assert len(one.owned) == len(two.owned) == 2
    assert d.consumers.state is GroupState.STABLE


def test_one_that_says_nothing_of_what_it_owns_owns_all_of_it(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    one.beat()
    d.advance(INTERVAL_MS)
    two.beat()
    one.beat()
    assert d.beat("m1", one.epoch)["member_epoch"] == one.epoch
    assert d.consumers.members["m1"].current.state is MemberState.UNREVOKED_PARTITIONS
    two.beat()
    assert not two.owned


def test_the_next_assignment_waits_for_its_interval(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    one.beat()
    d.advance(INTERVAL_MS - 1)
    two.beat()
    assert two.epoch == 2
    assert (d.consumers.epoch, d.consumers.target_epoch) == (3, 2)
    assert d.consumers.state is GroupState.ASSIGNING
    d.advance(1)
    one.beat()
    assert d.consumers.target_epoch == 3
    assert d.consumers.state is GroupState.RECONCILING


def test_without_an_interval_each_change_is_assigned_at_once(d: ConsumerDriver) -> None:
    d.settings = ConsumerSettings(assignment_interval_ms=0)
    d.join("m1")
    d.join("m2")
    assert d.consumers.target_epoch == 3


def test_the_assignor_most_members_ask_for_assigns(d: ConsumerDriver) -> None:
    d.create("u", 4)
    members = [Consumer(d, f"m{number}", {"topics": ("t", "u"), "assignor": "range"}) for number in range(2)]
    members.append(Consumer(d, "m2", {"topics": ("t", "u")}))
    settled(d, *members)
    assert sorted(partition for _, partition in members[0].owned) == [0, 0, 1, 1]


def test_a_full_group_takes_no_more(d: ConsumerDriver) -> None:
    d.machine.config = GroupConfig(consumer_max_size=1)
    d.join("m1")
    error = refusal(d, member_id="m2", topics=("t",))
    assert error.code is ErrorCode.group_max_size_reached
    assert error.message == "The consumer group has reached its maximum capacity of 1 members."
    assert d.join("m1")["member_epoch"] == 2


# --- refusals ---


def test_a_group_that_is_not_there(d: ConsumerDriver) -> None:
    error = refusal(d, member_epoch=3)
    assert (error.code, error.message) == (ErrorCode.group_id_not_found, "Consumer group g not found.")
    error = refusal(d, member_epoch=-1)
    assert (error.code, error.message) == (ErrorCode.group_id_not_found, "Group g not found.")


def test_a_member_nobody_knows(d: ConsumerDriver) -> None:
    d.join()
    for epoch in (2, -1):
        error = refusal(d, member_id="x", member_epoch=epoch)
        assert error.code is ErrorCode.unknown_member_id
        assert error.message == "Member x is not a member of group g."


def test_an_epoch_of_the_future_is_fenced(d: ConsumerDriver) -> None:
    d.join()
    error = refusal(d, member_epoch=3)
    assert error.code is ErrorCode.fenced_member_epoch
    assert error.message == (
        "The consumer group member has a greater member epoch (3) than the one known by the group "
        "coordinator (2). The member must abandon all its partitions and rejoin."
    )


def test_the_epoch_before_counts_only_for_one_that_missed_the_answer(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    settled(d, one)
    two.beat()
    settled(d, one, two)
    current = d.consumers.members["m1"].current
    assert current.previous_epoch < current.epoch
    owned = flat(current.assigned)
    told = d.beat("m1", current.previous_epoch, claims=claims_of(owned))
    assert told["member_epoch"] == current.epoch
    for claims in (None, claims_of(d.partitions("t"))):
        error = refusal(d, member_id="m1", member_epoch=current.previous_epoch, claims=claims)
        assert error.code is ErrorCode.fenced_member_epoch
        assert error.message is not None
        assert error.message.startswith("The consumer group member has a smaller member epoch")


def test_one_that_claims_what_it_never_had_holds_nobody_up(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    settled(d, one, two)
    d.beat("m1", one.epoch, claims=claims_of(two.owned))
    settled(d, one, two)
    assert not one.owned & two.owned


def test_a_name_no_record_can_hold(d: ConsumerDriver) -> None:
    assert d.join(topics=("t" * 40_000,)) is ErrorCode.invalid_request
    assert d.join("m" * 40_000) is ErrorCode.invalid_request
    assert GROUP not in d.machine.consumers


# --- subscriptions ---


def test_another_subscription_takes_away_at_once_what_it_lacks(d: ConsumerDriver) -> None:
    d.create("u", 2)
    one = Consumer(d, "m1")
    one.beat()
    one.beat(topics=("u",))
    assert d.consumers.epoch == 3
    assert not one.wanted
    assert d.consumers.members["m1"].current.state is MemberState.UNREVOKED_PARTITIONS
    one.revoke()
    d.advance(INTERVAL_MS)
    one.beat()
    one.beat()
    assert one.owned == d.partitions("u")


def test_new_partitions_reach_the_members(d: ConsumerDriver) -> None:
    one = Consumer(d, "m1")
    one.beat()
    d.add_partitions("t", 2)
    d.advance(INTERVAL_MS)
    one.beat()
    assert one.epoch == 3
    assert one.owned == d.partitions("t")
    assert len(one.owned) == 6


def test_a_deleted_topic_is_taken_away_and_one_created_later_is_given(d: ConsumerDriver) -> None:
    one = Consumer(d, "m1", {"topics": ("t", "u")})
    one.beat()
    d.create("u", 2)
    settled(d, one)
    assert one.owned == d.partitions("t", "u")
    d.delete("u")
    settled(d, one)
    assert one.owned == d.partitions("t")


def test_a_topic_nobody_reads_changes_nothing(d: ConsumerDriver) -> None:
    d.join()
    d.create("u", 2)
    written = len(d.log)
    d.beat("m", 2)
    assert len(d.log) == written
    assert not d.consumers.is_stale


def test_a_list_of_topics_that_an_earlier_kafka_left_is_deleted(d: ConsumerDriver) -> None:
    d.join()
    d.machine.apply(TopicsRecord(group_id=GROUP, value=True), offset=99, producer_id=-1)
    d.consumers.checked_in_epoch = None
    d.beat("m", 2)
    assert not d.consumers.has_topics_record


# --- regular expressions ---


def test_a_regular_expression_is_looked_up_and_then_assigned(d: ConsumerDriver) -> None:
    d.create("ta", 1)
    d.create("u", 1)
    one = Consumer(d, "m1", {"topics": (), "regex": "t.*"})
    answer = one.beat()
    assert answer["member_epoch"] >= 1
    assert d.consumers.regexes["t.*"].topics == ("t", "ta")
    settled(d, one)
    assert one.owned == d.partitions("t", "ta")


def test_a_new_topic_that_matches_is_found_once_the_pause_is_over(d: ConsumerDriver) -> None:
    one = Consumer(d, "m1", {"topics": (), "regex": "t.*"})
    settled(d, one)
    d.create("ta", 1)
    one.beat()
    assert "ta" not in d.consumers.regexes["t.*"].topics
    d.advance(10_001)
    one.beat()
    assert "ta" in d.consumers.regexes["t.*"].topics
    settled(d, one)
    assert one.owned == d.partitions("t", "ta")


def test_an_expression_that_is_none(d: ConsumerDriver) -> None:
    error = refusal(d, topics=(), regex="[")
    assert error.code is ErrorCode.invalid_regular_expression
    assert error.message == ("SubscribedTopicRegex `[` is not a valid regular expression: missing closing ].")
    assert GROUP not in d.machine.consumers


def test_an_expression_goes_with_its_last_member(d: ConsumerDriver) -> None:
    one, two = (Consumer(d, f"m{n}", {"topics": (), "regex": "t.*"}) for n in (1, 2))
    settled(d, one, two)
    one.leave()
    assert "t.*" in d.consumers.regexes
    two.beat(regex="")
    assert not d.consumers.regexes
    settled(d, two)
    assert not two.owned


def test_topics_of_a_group_that_is_gone_meanwhile_change_nothing(d: ConsumerDriver) -> None:
    assert d.ask(ResolveRegexes(group_id="gone")) == 0
    assert not d.log


# --- leaving ---


def test_one_that_leaves_makes_room_for_the_others(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    settled(d, one, two)
    epoch = d.consumers.epoch
    answer = d.beat("m2", -1)
    assert answer["member_epoch"] == -1
    assert "m2" not in d.consumers.members
    assert d.consumers.epoch == epoch + 1
    settled(d, one)
    assert one.owned == d.partitions("t")


def test_one_without_heartbeats_is_fenced_when_its_session_is_over(d: ConsumerDriver) -> None:
    d.join()
    d.advance(SESSION_MS - 1)
    assert "m" in d.consumers.members
    d.advance(1)
    assert not d.consumers.members
    assert d.consumers.state is GroupState.EMPTY


def test_several_whose_time_is_over_at_once_go_together(d: ConsumerDriver) -> None:
    for number in range(3):
        d.join(f"m{number}")
    epoch = d.consumers.epoch
    d.advance(SESSION_MS)
    assert not d.consumers.members
    assert d.consumers.epoch == epoch + 1


def test_one_that_does_not_give_up_in_time_is_fenced(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    one.beat(rebalance_timeout_ms=20_000)
    d.advance(INTERVAL_MS)
    two.beat()
    one.beat()
    d.advance(19_999)
    one.beat()
    assert "m1" in d.consumers.members
    d.advance(1)
    assert "m1" not in d.consumers.members
    two.beat()
    two.beat()
    assert two.owned == d.partitions("t")


def test_its_time_to_give_up_begins_anew_after_a_crash(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    one.beat(rebalance_timeout_ms=20_000)
    d.advance(INTERVAL_MS)
    two.beat()
    one.beat()
    d.crash()
    d.advance(19_999)
    assert "m1" in d.consumers.members
    d.advance(1)
    assert "m1" not in d.consumers.members


def test_a_pause_of_the_broker_fences_nobody(d: ConsumerDriver) -> None:
    d.join()
    d.now_ms += 10 * SESSION_MS
    finish(d.machine.resume(d.now))
    d.advance(SESSION_MS - 1)
    assert "m" in d.consumers.members


def test_a_clock_that_is_put_back_delays_no_assignment(
    d: ConsumerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    d.join("m1")
    monkeypatch.setattr(group_driver, "EPOCH_MS", group_driver.EPOCH_MS - 3_600_000)
    d.advance(INTERVAL_MS)
    d.join("m2")
    assert d.consumers.target_epoch == d.consumers.epoch


# --- static members ---


def test_a_static_member_finds_its_place_again(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1", instance_id="i1"), Consumer(d, "m2", instance_id="i2")
    settled(d, one, two)
    owned, epoch = set(one.owned), d.consumers.epoch
    assert d.beat("m1", -2, instance_id="i1")["member_epoch"] == -2
    back = Consumer(d, "m9", instance_id="i1")
    back.beat()
    assert back.owned == owned
    assert d.consumers.epoch == epoch, "nothing is assigned anew"
    assert d.consumers.static_members == {"i1": "m9", "i2": "m2"}
    error = refusal(d, member_id="m1", member_epoch=epoch, instance_id="i1")
    assert error.code is ErrorCode.fenced_instance_id
    assert error.message == "Static member m1 with instance id i1 was fenced by member m9."


def test_a_static_member_that_stays_away_is_fenced(d: ConsumerDriver) -> None:
    d.join("m1", instance_id="i1")
    d.beat("m1", -2, instance_id="i1")
    d.advance(SESSION_MS)
    assert not d.consumers.members
    assert not d.consumers.static_members


def test_a_static_member_that_is_away_has_nothing_to_give_up(d: ConsumerDriver) -> None:
    """It has the time of its session, whatever time it had for that."""
    said = {"instance_id": "i1", "rebalance_timeout_ms": SESSION_MS // 3}
    epoch = d.join("m1", **said)["member_epoch"]
    d.advance(INTERVAL_MS)
    d.join("m2")
    d.beat("m1", epoch, instance_id="i1")
    assert d.consumers.members["m1"].current.state is MemberState.UNREVOKED_PARTITIONS
    d.beat("m1", -2, instance_id="i1")
    d.advance(SESSION_MS // 2)
    assert "m1" in d.consumers.members
    d.crash()
    d.advance(SESSION_MS // 2)
    assert "m1" in d.consumers.members
    d.advance(SESSION_MS)
    assert "m1" not in d.consumers.members


def test_an_instance_that_is_in_use(d: ConsumerDriver) -> None:
    d.join("m1", instance_id="i1")
    error = refusal(d, member_id="m2", instance_id="i1", topics=("t",))
    assert error.code is ErrorCode.unreleased_instance_id
    assert error.message == (
        "Static member m2 with instance id i1 cannot join the group because the instance id is owned by "
        "m1 member."
    )


def test_an_instance_nobody_knows(d: ConsumerDriver) -> None:
    d.join("m1")
    error = refusal(d, member_id="m1", member_epoch=2, instance_id="i9")
    assert (error.code, error.message) == (ErrorCode.unknown_member_id, "Instance id i9 is unknown.")


# --- offsets ---


def commit(d: ConsumerDriver, epoch: int, **changes: Any) -> Any:
    topic_id = d.image.topics["t"].id
    offsets = (OffsetToCommit("t", changes.pop("partition", 0), 5, topic_id=topic_id),)
    values = {"member_id": "m1", "generation": epoch, "offsets": offsets}
    return d.commit(5, **(values | changes))


def test_a_member_commits_in_its_epoch(d: ConsumerDriver) -> None:
    one = Consumer(d, "m1")
    one.beat()
    assert commit(d, 2) == (ErrorCode.none,)
    assert commit(d, 3) is ErrorCode.stale_member_epoch
    assert commit(d, 1) is ErrorCode.stale_member_epoch
    assert commit(d, 2, member_id="x") is ErrorCode.unknown_member_id
    assert commit(d, -1, member_id="") is ErrorCode.unknown_member_id
    assert commit(d, 2, knows_epochs=False) is ErrorCode.unsupported_version


def test_an_epoch_behind_may_commit_what_it_has_had_since(d: ConsumerDriver) -> None:
    one, two = Consumer(d, "m1"), Consumer(d, "m2")
    settled(d, one)
    first = one.epoch
    two.beat()
    settled(d, one, two)
    assert one.epoch > first
    kept = {partition for _, partition in one.owned}
    assert commit(d, first, partition=min(kept)) == (ErrorCode.none,)
    lost = {0, 1, 2, 3} - kept
    assert commit(d, first, partition=min(lost)) is ErrorCode.stale_member_epoch
    gained = {partition for _, partition in two.owned}
    assert commit(d, two.epoch - 1, member_id="m2", partition=min(gained)) is ErrorCode.stale_member_epoch


def test_an_empty_group_takes_commits_of_anybody(d: ConsumerDriver) -> None:
    one = Consumer(d, "m1")
    one.beat()
    one.leave()
    assert commit(d, -1, member_id="") == (ErrorCode.none,)


def test_offsets_of_topics_members_read_are_kept(d: ConsumerDriver) -> None:
    one = Consumer(d, "m1")
    one.beat()
    commit(d, 2)
    assert d.delete_offsets(("t", 0)) == (ErrorCode.group_subscribed_to_topic,)
    assert d.delete_groups(GROUP) == (ErrorCode.non_empty_group,)
    one.leave()
    assert d.delete_offsets(("t", 0)) == (ErrorCode.none,)
    assert d.committed() is None
    assert d.delete_groups(GROUP) == (ErrorCode.none,)
    assert GROUP not in d.machine.consumers
    assert d.delete_groups(GROUP) == (ErrorCode.group_id_not_found,)


def test_a_group_that_only_stored_offsets_becomes_one_of_consumers(d: ConsumerDriver) -> None:
    d.commit(7)
    assert GROUP in d.machine.groups
    d.join()
    assert GROUP not in d.machine.groups
    assert d.committed() == 7
    assert d.beat("m", -1)["member_epoch"] == -1
    d.advance(d.config.offsets_retention_ms)
    d.ask_expiry()
    assert GROUP not in d.machine.consumers


# --- memory ---


def test_members_are_counted_and_given_back() -> None:
    memory = MemoryAccount()
    d = ConsumerDriver(memory=memory)
    d.create("t", 4)
    d.join(topics=("t", "x" * 1_000))
    held = memory.held_bytes
    assert held > 2_000
    d.crash()
    assert memory.held_bytes == held
    d.beat("m", -1)
    assert memory.held_bytes == CONSUMER_GROUP_BYTES
    assert d.delete_groups(GROUP) == (ErrorCode.none,)
    assert memory.held_bytes == 0


def test_groups_themselves_are_counted() -> None:
    d = ConsumerDriver(memory=MemoryAccount(host_bytes_max=3 * CONSUMER_GROUP_BYTES))
    answers = []
    for number in range(4):
        answers.append(d.join(group_id=f"g{number}"))
        d.beat("m", -1, group_id=f"g{number}")
    assert ErrorCode.coordinator_not_available in answers
    assert len(d.machine.consumers) < 4


def test_topics_of_an_expression_there_is_no_room_for_are_not_kept() -> None:
    d = ConsumerDriver(memory=MemoryAccount(host_bytes_max=8_000))
    for number in range(1_000):
        d.create(f"t{number}", 1)
    assert d.join(topics=(), regex="t.*")["member_epoch"] == 1
    assert not d.consumers.regexes
    looks = []
    for _ in range(20):
        d.advance(1_000)
        before = d.tokens
        d.beat("m", 1)
        looks.append(d.tokens - before > 1)
    assert 1 <= sum(looks) <= 2, "it is tried again, but not with every heartbeat"


def test_groups_that_the_log_named_leave_room_for_topics_of_expressions() -> None:
    d = ConsumerDriver(memory=MemoryAccount(host_bytes_max=3 * CONSUMER_GROUP_BYTES))
    d.create("t1", 1)
    for number in range(9):
        assert isinstance(d.join(group_id=f"g{number}", client_host=f"/10.0.0.{number // 2}"), dict)
    d.crash()
    d.join(topics=(), regex="t.*", client_host="/10.0.0.9")
    assert [resolved.topics for resolved in d.consumers.regexes.values()] == [("t1",)]


def test_a_subscription_there_is_no_room_for_is_refused() -> None:
    d = ConsumerDriver(memory=MemoryAccount(host_bytes_max=20_000))
    d.create("t", 1)
    d.join("m1")
    assert d.join("m2", topics=tuple(f"{n:0>1000}" for n in range(30))) is ErrorCode.coordinator_not_available
    assert "m2" not in d.consumers.members
    assert d.join("m3", client_host="/10.0.0.9")["member_epoch"] >= 1


def test_a_subscription_that_no_record_holds_is_refused_alone() -> None:
    """What is decided with it would be refused together with it, in other groups too."""
    d = ConsumerDriver(config=GroupConfig(record_max_bytes=900_000))
    names = tuple("\U0001f600" * 7_000 + str(at) for at in range(50))
    assert d.join(topics=names) is ErrorCode.invalid_request


def test_all_that_a_member_says_of_itself_is_counted() -> None:
    d = ConsumerDriver()
    d.join("a")
    before = d.memory.held_bytes
    d.join("b", instance_id="i" * 30_000, rack_id="r" * 30_000)
    assert d.memory.held_bytes - before > 60_000
    d.beat("b", -1, instance_id="i" * 30_000)
    assert d.memory.held_bytes == before
