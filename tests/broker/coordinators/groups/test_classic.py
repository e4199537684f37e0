"""The classic group protocol, scene by scene."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.account import MemoryAccount
from broker.coordinators.groups.classic import Heartbeat, Sync
from broker.coordinators.groups.membership import PROTOCOLS_MAX, State
from broker.coordinators.groups.offsets import Commit, OffsetToCommit
from broker.coordinators.groups.shard import GroupConfig as Config
from protocol.errors import ErrorCode
from protocol.work import finish
from tests.broker.coordinators.groups.group_driver import (
    GROUP,
    NO_ANSWER,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    subscription,
)


@pytest.fixture
def d() -> Driver:
    return Driver()


# --- joining ---


def test_a_new_dynamic_member_is_sent_back_for_its_id(d: Driver) -> None:
    reply = d.answers[d.join()]
    assert reply["error_code"] is ErrorCode.member_id_required
    assert reply["member_id"] == "m-1"
    assert d.state() is State.EMPTY
    assert d.group.pending_join == {"m-1": "/127.0.0.1"}


def test_an_old_client_joins_without_an_id(d: Driver) -> None:
    token = d.join(requires_known_member=False)
    assert d.state() is State.PREPARING_REBALANCE
    d.advance(0)
    assert d.answers[token]["error_code"] is ErrorCode.none
    assert d.answers[token]["member_id"] == "m-1"


def test_the_first_join_completes_at_once_without_a_delay(d: Driver) -> None:
    member_id, token = d.join_known()
    assert token not in d.answers
    d.advance(0)
    reply = d.answers[token]
    assert (reply["error_code"], reply["generation_id"], reply["leader"]) == (ErrorCode.none, 1, member_id)
    assert [m["member_id"] for m in reply["members"]] == [member_id]
    assert (reply["protocol_type"], reply["protocol_name"]) == ("consumer", "range")
    assert d.state() is State.COMPLETING_REBALANCE


def test_only_the_leader_learns_the_members(d: Driver) -> None:
    leader, first = d.join_known()
    follower, second = d.join_known()
    d.advance(0)
    assert {m["member_id"] for m in d.answers[first]["members"]} == {leader, follower}
    assert d.answers[second]["members"] == ()
    assert d.answers[second]["leader"] == leader


def test_the_initial_delay_is_extended_while_members_arrive() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=3_000))
    _, first = d.join_known()
    d.advance(2_000)
    _, second = d.join_known()
    d.advance(1_000)
    assert first not in d.answers
    d.advance(3_000)
    assert {first, second} <= d.answers.keys()


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=3_000))
    _, first = d.join_known(rebalance_timeout_ms=7_000)
    for _ in range(6):
        d.advance(1_000)
        d.join_known(rebalance_timeout_ms=7_000)
    assert first not in d.answers
    d.advance(1_000)
    assert first in d.answers


def test_the_protocol_most_members_prefer_is_chosen(d: Driver) -> None:
    both = (("range", b""), ("sticky", b""))
    other = (("sticky", b""), ("range", b""))
    tokens = [d.join_known(protocols=protocols)[1] for protocols in (both, other, other)]
    d.advance(0)
    assert d.answers[tokens[0]]["protocol_name"] == "sticky"


def test_a_protocol_not_everyone_knows_is_not_chosen(d: Driver) -> None:
    _, first = d.join_known(protocols=(("new", b""), ("old", b"")))
    d.join_known(protocols=(("old", b""),))
    d.advance(0)
    assert d.answers[first]["protocol_name"] == "old"


def test_a_member_whose_protocols_nobody_shares_is_refused(d: Driver) -> None:
    d.stable()
    for changes in ({"protocols": (("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}):
        reply = d.answers[d.join(**changes)]
        assert reply["error_code"] is ErrorCode.inconsistent_group_protocol
    assert d.state() is State.STABLE


def test_the_first_member_needs_a_protocol(d: Driver) -> None:
    for changes in ({"protocols": ()}, {"protocol_type": ""}):
        assert d.answers[d.join(**changes)]["error_code"] is ErrorCode.inconsistent_group_protocol
    assert not d.machine.groups["g"].members, "the group is there all the same, as in Kafka"


def test_a_member_id_nobody_gave_is_unknown(d: Driver) -> None:
    assert d.answers[d.join("stranger")]["error_code"] is ErrorCode.unknown_member_id
    d.stable()
    reply = d.answers[d.join("stranger")]
    assert (reply["error_code"], reply["member_id"]) == (ErrorCode.unknown_member_id, "stranger")


def test_a_full_group_takes_nobody_more() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=0, max_size=1))
    member_id = d.stable()[0]
    reply = d.answers[d.join()]
    assert (reply["error_code"], reply["member_id"]) == (ErrorCode.group_max_size_reached, "")
    d.join(member_id)
    d.advance(0)
    assert d.state() is State.COMPLETING_REBALANCE


def test_a_group_above_a_lowered_bound_rebalances_when_it_is_loaded() -> None:
    d = Driver()
    members = d.stable(3)
    d.config = Config(initial_rebalance_delay_ms=0, max_size=2)
    d.crash()
    assert d.state() is State.PREPARING_REBALANCE
    tokens = [d.join(member_id) for member_id in members]
    assert d.answers[tokens[2]]["error_code"] is ErrorCode.group_max_size_reached
    d.advance(REBALANCE_MS)
    assert len(d.group.members) == 2


# --- rebalances ---


def test_another_member_makes_the_group_rebalance(d: Driver) -> None:
    (first,) = d.stable()
    second, joining = d.join_known()
    assert d.state() is State.PREPARING_REBALANCE
    assert d.heartbeat(first) is ErrorCode.rebalance_in_progress
    assert joining not in d.answers
    rejoining = d.join(first)
    assert d.answers[joining]["generation_id"] == d.answers[rejoining]["generation_id"] == 2
    lead = d.sync(first, {first: b"1", second: b"2"})
    follow = d.sync(second)
    assert d.answers[lead]["assignment"] == b"1"
    assert d.answers[follow]["assignment"] == b"2"


def test_a_follower_waits_for_the_leader(d: Driver) -> None:
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    waiting = d.sync(follower)
    assert waiting not in d.answers
    assert not d.log
    d.sync(leader, {follower: b"x"})
    assert d.answers[waiting]["assignment"] == b"x"
    assert d.group.members[leader].assignment == b""


def test_the_leader_forces_a_rebalance_by_joining(d: Driver) -> None:
    leader, follower = d.stable(2)
    d.join(leader)
    assert d.state() is State.PREPARING_REBALANCE
    d.join(follower)
    assert d.group.generation == 2


def test_a_follower_that_joins_unchanged_gets_the_same_generation(d: Driver) -> None:
    leader, follower = d.stable(2)
    reply = d.answers[d.join(follower)]
    assert (reply["generation_id"], reply["leader"], reply["members"]) == (1, leader, ())
    assert d.state() is State.STABLE


def test_a_changed_subscription_makes_the_group_rebalance(d: Driver) -> None:
    _, follower = d.stable(2)
    d.join(follower, protocols=(("range", subscription("other")),))
    assert d.state() is State.PREPARING_REBALANCE


def test_a_lost_join_answer_is_given_again(d: Driver) -> None:
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    again = d.answers[d.join(leader)]
    assert again["generation_id"] == 1
    assert {m["member_id"] for m in again["members"]} == {leader, follower}
    assert d.answers[d.join(follower)]["members"] == ()


def test_a_join_repeated_while_waiting_answers_the_first(d: Driver) -> None:
    (leader,) = d.stable()
    d.join_known()
    second, waiting = d.join_known()
    repeated = d.join(second)
    assert d.answers[waiting]["error_code"] is ErrorCode.rebalance_in_progress
    d.join(leader)
    d.advance(REBALANCE_MS)
    assert d.answers[repeated]["error_code"] is ErrorCode.none


def test_members_who_do_not_rejoin_in_time_are_dropped(d: Driver) -> None:
    slow, fast = d.stable(2)
    d.join(fast, protocols=(("range", subscription("t", "u")),))
    for _ in range(REBALANCE_MS // 5_000):
        assert d.heartbeat(slow) is ErrorCode.rebalance_in_progress
        d.advance(5_000)
    assert set(d.group.members) == {fast}
    assert d.group.leader == fast
    assert d.group.generation == 2
    assert d.heartbeat(slow) is ErrorCode.unknown_member_id


def test_members_who_do_not_sync_in_time_are_dropped(d: Driver) -> None:
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    waiting = d.sync(follower)
    for _ in range(REBALANCE_MS // 5_000):
        assert d.heartbeat(leader) is ErrorCode.none
        d.advance(5_000)
    assert d.answers[waiting]["error_code"] is ErrorCode.rebalance_in_progress
    assert set(d.group.members) == {follower}
    assert d.state() is State.PREPARING_REBALANCE
    d.join(follower)
    assert d.group.generation == 2


def test_a_follower_that_never_syncs_is_dropped_from_a_stable_group(d: Driver) -> None:
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    d.sync(leader)
    for _ in range(REBALANCE_MS // 5_000):
        for member_id in (leader, follower):
            d.heartbeat(member_id)
        d.advance(5_000)
    assert set(d.group.members) == {leader}
    assert d.state() is State.PREPARING_REBALANCE


def test_a_join_during_the_sync_sends_everyone_back(d: Driver) -> None:
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    waiting = d.sync(follower)
    d.join_known()
    assert d.answers[waiting]["error_code"] is ErrorCode.rebalance_in_progress
    assert d.answers[d.sync(leader)] is ErrorCode.rebalance_in_progress


def test_a_new_member_that_never_answers_is_dropped(d: Driver) -> None:
    (leader,) = d.stable()
    _, waiting = d.join_known()
    for _ in range(70):
        d.advance(5_000)
        d.heartbeat(leader)
    assert waiting in d.answers


def test_a_pending_member_that_does_not_come_back_holds_up_nothing(d: Driver) -> None:
    (leader,) = d.stable()
    d.join()
    d.join(leader)
    assert d.state() is State.PREPARING_REBALANCE
    d.advance(SESSION_MS)
    assert d.state() is State.COMPLETING_REBALANCE
    assert not d.group.pending_join


def test_the_assignment_is_handed_out_again_to_whoever_asks(d: Driver) -> None:
    (member_id,) = d.stable()
    again = d.answers[d.sync(member_id)]
    assert again["assignment"] == member_id.encode()
    assert (again["protocol_type"], again["protocol_name"]) == ("consumer", "range")


# --- sessions ---


def test_a_silent_member_is_dropped_and_the_rest_rebalances(d: Driver) -> None:
    quiet, loud = d.stable(2)
    d.advance(SESSION_MS - 1)
    assert d.heartbeat(loud) is ErrorCode.none
    d.advance(1)
    assert set(d.group.members) == {loud}
    assert d.state() is State.PREPARING_REBALANCE
    assert d.heartbeat(quiet, generation=1) is ErrorCode.unknown_member_id


def test_the_last_silent_member_leaves_an_empty_group_in_the_log(d: Driver) -> None:
    d.stable()
    d.advance(SESSION_MS)
    assert d.state() is State.EMPTY
    durable = d.machine.durable.groups[GROUP]
    assert (durable.generation, durable.members, durable.protocol) == (2, (), None)
    assert durable.protocol_type == "consumer"


def test_members_waiting_for_us_do_not_expire(d: Driver) -> None:
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    d.sync(follower)
    for _ in range(3):
        d.advance(SESSION_MS // 2)
        d.heartbeat(leader)
    assert set(d.group.members) == {leader, follower}


def test_a_commit_keeps_the_session(d: Driver) -> None:
    (member_id,) = d.stable()
    for offset in range(3):
        d.advance(SESSION_MS - 1)
        assert d.commit(offset, member_id=member_id, generation=1) == (ErrorCode.none,)
    assert d.state() is State.STABLE


def test_a_process_that_stood_still_gives_its_members_time(d: Driver) -> None:
    d.stable(2)
    d.now_ms += 3 * SESSION_MS
    finish(d.machine.resume(d.now))
    d.advance(SESSION_MS - 1)
    assert d.state() is State.STABLE
    d.advance(1)
    assert d.state() is State.EMPTY


def test_a_process_that_stood_still_takes_no_time_from_anybody(d: Driver) -> None:
    (leader,) = d.stable()
    _, waiting = d.join_known()
    finish(d.machine.resume(d.now))
    for _ in range(4):
        d.advance(SESSION_MS - 1)
        d.heartbeat(leader)
    assert waiting not in d.answers


# --- leaving ---


def test_leaving_makes_the_rest_rebalance(d: Driver) -> None:
    first, second = d.stable(2)
    assert d.leave((first, None)) == (ErrorCode.none,)
    assert d.state() is State.PREPARING_REBALANCE
    assert d.group.leader == second


def test_several_leave_at_once_each_with_its_own_answer(d: Driver) -> None:
    first, second = d.stable(2)
    assert d.leave((first, None), ("stranger", None), (second, None)) == (
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
    )
    assert d.state() is State.EMPTY


def test_strangers_leaving_change_nothing(d: Driver) -> None:
    d.stable()
    assert d.leave(("stranger", None)) == (ErrorCode.unknown_member_id,)
    assert d.state() is State.STABLE


def test_nobody_leaves_a_group_that_is_not_there(d: Driver) -> None:
    assert d.leave(("stranger", None)) is ErrorCode.unknown_member_id


def test_a_pending_member_may_leave(d: Driver) -> None:
    pending = d.answers[d.join()]["member_id"]
    assert d.leave((pending, None)) == (ErrorCode.none,)
    assert not d.machine.groups
    assert d.machine.next_deadline_ms() is None


def test_leaving_answers_whoever_still_waits(d: Driver) -> None:
    (leader,) = d.stable()
    member_id, waiting = d.join_known()
    d.leave((member_id, None))
    assert d.answers[waiting]["error_code"] is ErrorCode.unknown_member_id
    d.join(leader)
    other, _ = d.join_known()
    d.join(leader)
    synced = d.sync(other)
    d.leave((other, None))
    assert d.answers[synced]["error_code"] is ErrorCode.unknown_member_id


def test_the_last_one_to_be_waited_for_leaves_and_the_rest_goes_on(d: Driver) -> None:
    first, second = d.stable(2)
    waiting = d.join(first)
    assert waiting not in d.answers
    d.leave((second, None))
    assert d.answers[waiting]["generation_id"] == 2


# --- static members ---


def test_a_static_member_is_in_at_once(d: Driver) -> None:
    token = d.join(instance_id="a")
    d.advance(0)
    assert d.answers[token]["member_id"] == "a-1"


def test_a_returning_static_member_causes_no_rebalance(d: Driver) -> None:
    leader, follower = d.stable_static("a", "b")
    records = len(d.log)
    reply = d.answers[d.join(instance_id="b")]
    assert (reply["error_code"], reply["generation_id"], reply["skip_assignment"]) == (
        ErrorCode.none,
        1,
        False,
    )
    assert reply["leader"] == leader
    assert d.state() is State.STABLE
    assert len(d.log) == records + 1
    assert d.answers[d.sync(reply["member_id"])]["assignment"] == follower.encode()
    assert d.heartbeat(follower, instance_id="b") is ErrorCode.fenced_instance_id
    assert d.heartbeat(follower) is ErrorCode.unknown_member_id
    d.crash()
    assert d.group.static_members["b"] == reply["member_id"]


def test_a_returning_static_leader_skips_the_assignment(d: Driver) -> None:
    d.stable_static("a", "b")
    reply = d.answers[d.join(instance_id="a")]
    assert reply["skip_assignment"]
    assert reply["leader"] == reply["member_id"]
    assert len(reply["members"]) == 2


def test_an_older_returning_static_leader_is_told_of_its_former_id(d: Driver) -> None:
    former, _ = d.stable_static("a", "b")
    reply = d.answers[d.join(instance_id="a", can_skip_assignment=False)]
    assert (reply["leader"], reply["members"], reply["skip_assignment"]) == (former, (), False)
    assert d.group.leader == reply["member_id"]


def test_a_static_member_that_would_change_the_protocol_causes_a_rebalance(d: Driver) -> None:
    both = (("range", b""), ("sticky", b""))
    d.settle([d.join(instance_id="a", protocols=both)])
    d.join(instance_id="a", protocols=(("sticky", b""),))
    assert d.group.generation == 2
    assert d.group.protocol == "sticky"


def test_a_static_member_back_during_the_sync_causes_another_rebalance(d: Driver) -> None:
    d.join(instance_id="a")
    d.join(instance_id="b")
    d.advance(0)
    synced = d.sync(d.group.static_members["b"])
    d.join(instance_id="b")
    assert d.answers[synced]["error_code"] is ErrorCode.fenced_instance_id
    assert d.state() is State.PREPARING_REBALANCE


def test_a_static_member_that_takes_over_fences_the_one_that_waits(d: Driver) -> None:
    d.stable_static("a", "b")
    waiting = d.join(d.group.static_members["b"], instance_id="b", protocols=(("range", b"x"),))
    old = d.group.static_members["b"]
    d.join(instance_id="b", protocols=(("range", b"x"),))
    reply = d.answers[waiting]
    assert (reply["error_code"], reply["member_id"]) == (ErrorCode.fenced_instance_id, old)


def test_static_members_stay_until_their_session_ends(d: Driver) -> None:
    leader, other = d.stable_static("a", "b")
    d.join(other, instance_id="b", protocols=(("range", b"x"),))
    assert d.state() is State.PREPARING_REBALANCE
    d.advance(SESSION_MS)
    assert set(d.group.members) == {other}
    assert d.group.generation == 2
    assert leader not in d.group.members


def test_an_administrator_removes_a_static_member_by_its_instance(d: Driver) -> None:
    d.stable_static("a", "b")
    assert d.leave(("", "a"), ("", "nobody"), ("", None)) == (
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    )
    assert set(d.group.static_members) == {"b"}


def test_a_wrong_member_id_for_an_instance_is_fenced_everywhere(d: Driver) -> None:
    d.stable_static("a")
    changes: dict[str, Any] = {"instance_id": "a", "generation": 1}
    assert d.heartbeat("other", **changes) is ErrorCode.fenced_instance_id
    assert d.answers[d.sync("other", **changes)] is ErrorCode.fenced_instance_id
    assert d.commit(1, member_id="other", **changes) is ErrorCode.fenced_instance_id
    assert d.leave(("other", "a")) == (ErrorCode.fenced_instance_id,)
    assert d.answers[d.join("other", instance_id="a")]["error_code"] is ErrorCode.fenced_instance_id


def test_an_instance_nobody_knows_is_unknown(d: Driver) -> None:
    d.stable_static("a")
    assert d.heartbeat("other", instance_id="z") is ErrorCode.unknown_member_id


# --- generations and states ---


def test_stale_and_future_generations_are_refused_everywhere(d: Driver) -> None:
    (member_id,) = d.stable()
    for generation in (0, 2):
        assert d.heartbeat(member_id, generation=generation) is ErrorCode.illegal_generation
        assert d.answers[d.sync(member_id, generation=generation)] is ErrorCode.illegal_generation
        assert d.commit(1, member_id=member_id, generation=generation) is ErrorCode.illegal_generation
    assert d.committed() is None


@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_a_sync_of_another_protocol_is_refused(d: Driver, changes: dict[str, Any]) -> None:
    (member_id,) = d.stable()
    assert d.answers[d.sync(member_id, **changes)] is ErrorCode.inconsistent_group_protocol


def test_what_a_group_that_is_not_there_answers(d: Driver) -> None:
    beat = Heartbeat(group_id=GROUP, member_id="m", generation=1)
    assert d.ask(beat) is ErrorCode.unknown_member_id
    assert d.ask(Sync(group_id=GROUP, member_id="m", generation=1)) is ErrorCode.unknown_member_id
    assert finish(d.machine.describe(GROUP)) is None
    assert d.delete_groups(GROUP) == (ErrorCode.group_id_not_found,)
    assert d.delete_offsets(("t", 0)) is ErrorCode.group_id_not_found
    offsets = (OffsetToCommit("t", 0, 5),)
    for knows, code in ((True, ErrorCode.group_id_not_found), (False, ErrorCode.illegal_generation)):
        commit = Commit(group_id=GROUP, member_id="m", generation=3, knows_epochs=knows, offsets=offsets)
        assert d.ask(commit) is code


def test_heartbeats_count_while_the_assignment_is_computed(d: Driver) -> None:
    member_id, _ = d.join_known()
    d.advance(0)
    for _ in range(3):
        d.advance(SESSION_MS - 1)
        assert d.heartbeat(member_id) is ErrorCode.none
    assert d.state() is State.COMPLETING_REBALANCE


# --- restarts ---


def test_a_restart_keeps_a_stable_group_with_fresh_sessions(d: Driver) -> None:
    members = d.stable(2)
    d.advance(SESSION_MS - 1)
    d.crash()
    assert d.state() is State.STABLE
    assert list(d.group.members) == members
    d.advance(SESSION_MS - 1)
    for member_id in members:
        assert d.heartbeat(member_id) is ErrorCode.none
        assert d.answers[d.sync(member_id)]["assignment"] == member_id.encode()


def test_a_restart_during_a_rebalance_goes_back_to_the_last_generation(d: Driver) -> None:
    (first,) = d.stable()
    second, _ = d.join_known()
    d.join(first)
    assert d.group.generation == 2
    d.crash()
    assert (d.state(), d.group.generation) == (State.STABLE, 1)
    assert d.heartbeat(first, generation=2) is ErrorCode.illegal_generation
    assert d.answers[d.join(second)]["error_code"] is ErrorCode.unknown_member_id


def test_nothing_is_written_before_the_leader_assigned(d: Driver) -> None:
    d.join_known()
    d.advance(0)
    assert d.log == []


def test_described_and_listed_as_it_is(d: Driver) -> None:
    (member_id,) = d.stable()
    described = finish(d.machine.describe(GROUP))
    assert described is not None
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    (member,) = described["members"]
    assert (member["member_id"], member["client_host"]) == (member_id, "/127.0.0.1")
    assert member["member_assignment"] == member_id.encode()
    assert member["member_metadata"] == subscription("t")
    for states, types, expected in (
        ((), (), 1),
        ({"stable"}, {"classic"}, 1),
        ({"empty"}, (), 0),
        ((), {"consumer"}, 0),
    ):
        assert len(finish(d.machine.listed(states, types))) == expected
    d.join(member_id)
    described = finish(d.machine.describe(GROUP))
    assert described is not None
    assert described["protocol_data"] == ""


def test_no_answer_is_no_answer(d: Driver) -> None:
    (leader,) = d.stable()
    assert d.ask(d.join_command(leader, protocols=(("range", b"new"),))) is not NO_ANSWER


def test_a_group_everyone_left_before_it_began_can_be_joined() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=3_000))
    member_id, _ = d.join_known()
    d.leave((member_id, None))
    assert d.state() is State.PREPARING_REBALANCE
    _, token = d.join_known()
    d.advance(6_000)
    assert d.answers[token]["error_code"] is ErrorCode.none
    assert d.answers[d.join(protocol_type="connect")]["error_code"] is ErrorCode.inconsistent_group_protocol


def test_a_group_that_was_only_asked_about_is_forgotten(d: Driver) -> None:
    pending = d.answers[d.join()]["member_id"]
    d.leave((pending, None))
    assert not d.machine.groups
    d.join()
    d.advance(SESSION_MS)
    assert not d.machine.groups
    assert d.log == []


def test_a_group_too_large_for_the_log_troubles_nobody_else() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=0, record_max_bytes=10_000))
    leader, _ = d.join_known()
    follower, _ = d.join_known()
    d.advance(0)
    waiting = d.sync(follower)
    lead = d.sync(leader, {leader: b"x" * 20_000})
    for token in (lead, waiting):
        # Not 27, on which both would join again, for ever.
        assert d.answers[token]["error_code"] is ErrorCode.unknown_server_error
    assert d.state() is State.PREPARING_REBALANCE
    assert d.log == []
    d.settle([d.join(leader), d.join(follower)])


def test_a_static_member_that_grows_too_large_is_refused_and_stays_as_it_was() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=0, record_max_bytes=10_000))
    _, old_id = d.stable_static("a", "b")
    held = d.memory.held_bytes
    reply = d.answers[d.join(instance_id="b", protocols=(("range", b"x" * 20_000),))]
    assert (reply["error_code"], reply["member_id"]) == (ErrorCode.unknown_server_error, "")
    assert (d.state(), d.memory.held_bytes) == (State.STABLE, held)
    assert d.heartbeat(old_id, instance_id="b") is ErrorCode.none
    d.crash()
    assert d.heartbeat(old_id, instance_id="b") is ErrorCode.none


def test_a_group_with_more_members_than_a_record_can_hold_takes_no_more() -> None:
    d = Driver(Config(initial_rebalance_delay_ms=0, record_max_bytes=200))
    for _ in range(3):
        d.join_known()
    assert d.answers[d.join()]["error_code"] is ErrorCode.group_max_size_reached


# --- memory ---


def test_one_host_may_hold_its_share_and_others_still_find_room() -> None:
    d = Driver(memory=MemoryAccount(bytes_max=20_000, host_bytes_max=10_000))
    first, _ = d.join_known(protocols=(("range", bytes(6_000)),))
    greedy = d.answers[d.join(protocols=(("range", bytes(3_000)),))]
    assert greedy["error_code"] is ErrorCode.coordinator_not_available
    assert d.memory.refused == 1
    d.join_known(client_host="/10.0.0.2", protocols=(("range", bytes(6_000)),))
    d.leave((first, None))
    d.join_known(protocols=(("range", bytes(3_000)),))


def test_the_bound_over_all_hosts_holds() -> None:
    d = Driver(memory=MemoryAccount(bytes_max=20_000, host_bytes_max=10_000))
    for host in ("/1", "/2"):
        d.join_known(client_host=host, protocols=(("range", bytes(7_000)),))
    reply = d.answers[d.join(client_host="/3", protocols=(("range", bytes(3_000)),))]
    assert reply["error_code"] is ErrorCode.coordinator_not_available
    assert d.memory.held_bytes <= 20_000


class CountedReads(tuple[tuple[str, bytes], ...]):
    """Protocols that count how often they are looked through."""

    reads = 0

    def __iter__(self) -> Any:
        self.reads += 1
        return super().__iter__()


def test_what_neither_fits_nor_can_be_stored_is_refused_for_good() -> None:
    """A client tries again after COORDINATOR_NOT_AVAILABLE."""
    d = Driver(Config(record_max_bytes=5_000), memory=MemoryAccount(bytes_max=20_000, host_bytes_max=10_000))
    reply = d.answers[d.join(protocols=(("range", bytes(11_000)),))]
    assert reply["error_code"] is ErrorCode.unknown_server_error
    assert not d.machine.groups
    assert d.memory.held_bytes == 0


def test_an_assignment_for_which_there_is_no_room_is_refused() -> None:
    d = Driver(memory=MemoryAccount(bytes_max=20_000, host_bytes_max=10_000))
    leader, _ = d.join_known()
    d.advance(0)
    assert d.answers[d.sync(leader, {leader: bytes(9_000)})] is ErrorCode.coordinator_not_available
    assert d.answers[d.sync(leader, {leader: b"a"})]["assignment"] == b"a"


def test_members_that_are_gone_hold_nothing(d: Driver) -> None:
    d.join()
    d.stable(2)
    assert d.memory.held_bytes > 0
    d.advance(10 * SESSION_MS)
    d.expire()
    assert not d.machine.groups
    assert d.memory.held_bytes == 0


def test_a_join_costs_what_it_brings_and_not_what_others_list(d: Driver) -> None:
    """Each of many members lists as many protocols as it may: no look at all of them at each join."""
    listed = tuple((f"p{number}", b"") for number in range(PROTOCOLS_MAX))
    for _ in range(5):
        d.join_known(protocols=listed)
    counted = CountedReads(listed)
    for member in d.group.members.values():
        member.protocols = counted
    assert d.group.supports("consumer", (("p7", b""),))
    assert not d.group.supports("consumer", (("other", b""),))
    assert counted.reads == 0


@pytest.mark.parametrize("name", ["group_id", "client_id", "instance_id", "protocol_type"])
def test_names_too_long_for_a_record_are_refused(d: Driver, name: str) -> None:
    changes: dict[str, Any] = {name: "é" * 16_384}
    reply = d.answers[d.join(**changes)]
    assert reply is ErrorCode.invalid_request
    assert d.answers[d.join(protocols=(("p" * 32_768, b""),))] is ErrorCode.invalid_request
    assert d.answers[d.join(protocols=(("p" * 32_767, b""),))]["error_code"] is ErrorCode.member_id_required
