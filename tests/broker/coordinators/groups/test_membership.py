"""Membership of one group: its states and their transitions, its leader, its static members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.groups.membership import TRANSITIONS, Event, Group, Member, State
from protocol.errors import ErrorCode, KafkaError


def member(member_id: str, instance_id: str | None = None) -> Member:
    return Member(
        member_id=member_id,
        instance_id=instance_id,
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000,
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
    )


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_a_group_moves_along_the_table_alone(state: State, event: Event) -> None:
    group = Group("g", 1)
    group.state = state
    target = TRANSITIONS[state].get(event)
    if target is None:
        with pytest.raises(AssertionError):
            group.move(event, 2)
        assert (group.state, group.state_since_ms) == (state, 1)
    else:
        group.move(event, 2)
        assert (group.previous_state, group.state, group.state_since_ms) == (state, target, 2)


def test_the_transitions_are_those_of_kafka_but_for_dead() -> None:
    """A group that is Dead has no entry here."""
    edges = {(state.value, target.value) for state in State for target in TRANSITIONS[state].values()}
    assert edges == {
        ("Empty", "PreparingRebalance"),
        ("PreparingRebalance", "CompletingRebalance"),
        ("PreparingRebalance", "Empty"),
        ("CompletingRebalance", "Stable"),
        ("CompletingRebalance", "PreparingRebalance"),
        ("Stable", "PreparingRebalance"),
    }


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.EMPTY}
    while more := {to for state in reached for to in TRANSITIONS[state].values()} - reached:
        reached |= more
    assert reached == set(State) == {state for state in State if TRANSITIONS[state]}


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "return"]), st.integers(0, 3), st.booleans())))
def test_a_group_with_members_has_a_leader_among_them_and_one_member_for_each_instance(
    steps: list[tuple[str, int, bool]],
) -> None:
    group, ids = Group("g", 0), 0
    for what, number, is_static in steps:
        instance_id = f"static-{number}" if is_static else None
        known = sorted(group.members)
        if what == "add" and (instance_id is None or instance_id not in group.static_members):
            ids += 1
            group.add(member(f"m-{ids}", instance_id))
        elif what == "remove" and known:
            group.remove(known[number % len(known)])
        elif what == "return" and instance_id is not None and instance_id in group.static_members:
            ids += 1
            old_id = group.static_members[instance_id]
            group.replace_static(instance_id, f"m-{ids}")
            with pytest.raises(KafkaError) as refused:
                group.check_member(old_id, instance_id)
            assert refused.value.code is ErrorCode.fenced_instance_id
        assert (group.leader in group.members) if group.members else group.leader is None
        statics = {one.instance_id: one.member_id for one in group.members.values() if one.instance_id}
        assert statics == group.static_members
        assert all(one.member_id == member_id for member_id, one in group.members.items())
