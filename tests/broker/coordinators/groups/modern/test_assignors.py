"""The assignors of the server: complete, without doubles, balanced, sticky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinators.groups.modern.assignors import ASSIGNORS, RANGE, UNIFORM, Subscriber, Targets
from protocol.work import finish

TOPICS = tuple(UUID(int=number) for number in range(1, 6))


def assigned(
    name: str,
    subscriptions: Mapping[str, Sequence[UUID]],
    partitions: Mapping[UUID, int],
    before: Targets | None = None,
    instances: Mapping[str, str] | None = None,
) -> Targets:
    subscribers = [
        Subscriber(
            member_id=member_id,
            instance_id=(instances or {}).get(member_id),
            topics=frozenset(topics),
            target=(before or {}).get(member_id, {}),
        )
        for member_id, topics in subscriptions.items()
    ]
    return finish(ASSIGNORS[name](subscribers, partitions))


def sizes(targets: Targets) -> list[int]:
    return [sum(map(len, target.values())) for target in targets.values()]


def check_sound(
    targets: Targets, subscriptions: Mapping[str, Sequence[UUID]], partitions: Mapping[UUID, int]
) -> None:
    assert targets.keys() == subscriptions.keys()
    given_out = []
    for member_id, target in targets.items():
        assert set(target) <= set(subscriptions[member_id])
        for topic_id, some in target.items():
            assert some == tuple(sorted(set(some)))
            assert some
            given_out += [(topic_id, partition) for partition in some]
    assert len(given_out) == len(set(given_out)), "a partition has two owners"
    wanted = {topic_id for topics in subscriptions.values() for topic_id in topics}
    assert set(given_out) == {(one, index) for one in wanted for index in range(partitions[one])}


PARTITIONS = st.fixed_dictionaries({topic_id: st.integers(1, 9) for topic_id in TOPICS})
MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)
MIXED = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.sampled_from(TOPICS), max_size=4, unique=True), min_size=1
)


@given(st.sampled_from([UNIFORM, RANGE]), MIXED, MIXED, PARTITIONS, PARTITIONS)
def test_every_partition_goes_to_one_who_is_subscribed(
    name: str,
    first: dict[str, list[UUID]],
    then: dict[str, list[UUID]],
    partitions: dict[UUID, int],
    more: dict[UUID, int],
) -> None:
    before = assigned(name, first, partitions)
    check_sound(before, first, partitions)
    check_sound(assigned(name, then, more, before), then, more)


@given(MEMBERS, MEMBERS, st.lists(st.sampled_from(TOPICS), min_size=1, unique=True), PARTITIONS, PARTITIONS)
def test_members_of_one_subscription_get_equal_shares(
    first: list[str],
    then: list[str],
    topics: list[UUID],
    partitions: dict[UUID, int],
    more: dict[UUID, int],
) -> None:
    before = assigned(UNIFORM, dict.fromkeys(first, topics), partitions)
    assert max(sizes(before)) - min(sizes(before)) <= 1
    after = assigned(UNIFORM, dict.fromkeys(then, topics), more, before)
    assert max(sizes(after)) - min(sizes(after)) <= 1


@given(MEMBERS, MEMBERS, st.lists(st.sampled_from(TOPICS), min_size=1, unique=True), PARTITIONS)
def test_no_more_is_moved_than_must_be(
    first: list[str], then: list[str], topics: list[UUID], partitions: dict[UUID, int]
) -> None:
    before = assigned(UNIFORM, dict.fromkeys(first, topics), partitions)
    after = assigned(UNIFORM, dict.fromkeys(then, topics), partitions, before)
    kept = sum(
        len(set(some) & set(after.get(member_id, {}).get(topic_id, ())))
        for member_id, target in before.items()
        for topic_id, some in target.items()
    )
    total = sum(partitions[topic_id] for topic_id in topics)
    base, extra = divmod(total, len(then))
    # Whoever stays may keep its share, and those with the most one more, as long as there are any.
    had = sorted((sizes({"": before[one]})[0] for one in then if one in before), reverse=True)
    most = sum(min(size, base + (place < extra)) for place, size in enumerate(had))
    assert kept == most


@given(st.sampled_from([UNIFORM, RANGE]), MIXED, PARTITIONS)
def test_an_assignment_that_is_sound_stays(
    name: str, subscriptions: dict[str, list[UUID]], partitions: dict[UUID, int]
) -> None:
    before = assigned(name, subscriptions, partitions)
    assert assigned(name, subscriptions, partitions, before) == before


@given(MIXED, PARTITIONS, MIXED)
def test_no_single_move_would_make_it_more_even(
    subscriptions: dict[str, list[UUID]], partitions: dict[UUID, int], first: dict[str, list[UUID]]
) -> None:
    targets = assigned(UNIFORM, subscriptions, partitions, assigned(UNIFORM, first, partitions))
    loads = dict(zip(targets, sizes(targets), strict=True))
    for giver, target in targets.items():
        for taker, topics in subscriptions.items():
            if set(target) & set(topics):
                assert loads[giver] - loads[taker] <= 1, (giver, taker, targets)


def test_of_equals_the_one_gets_more_that_kafka_comes_to_first() -> None:
    (topic,) = TOPICS[:1]
    before: Targets = {"q": {topic: (0, 1, 2, 3)}, "p": {topic: (4, 5, 6)}}
    after = assigned(UNIFORM, dict.fromkeys(("q", "p", "r"), (topic,)), {topic: 7}, before)
    # p is 112 and q 113: buckets 0 and 1
    assert after == {"p": {topic: (4, 5, 6)}, "q": {topic: (0, 1)}, "r": {topic: (2, 3)}}


def test_what_is_gone_or_shrunk_is_not_kept() -> None:
    topic, other = TOPICS[:2]
    before: Targets = {"a": {topic: (0, 1, 9), other: (0,)}, "b": {topic: (1,)}}
    after = assigned(UNIFORM, {"a": [topic], "b": [topic]}, {topic: 3}, before)
    check_sound(after, {"a": [topic], "b": [topic]}, {topic: 3})


def test_range_gives_runs_and_the_first_members_one_more() -> None:
    topic, other = TOPICS[:2]
    targets = assigned(RANGE, dict.fromkeys("cab", (topic, other)), {topic: 7, other: 3})
    assert targets == {
        "a": {topic: (0, 1, 2), other: (0,)},
        "b": {topic: (3, 4), other: (1,)},
        "c": {topic: (5, 6), other: (2,)},
    }


def test_range_places_static_members_by_what_stays_theirs() -> None:
    (topic,) = TOPICS[:1]
    targets = assigned(RANGE, dict.fromkeys("abc", (topic,)), {topic: 3}, instances={"c": "1", "b": "2"})
    assert targets == {"c": {topic: (0,)}, "b": {topic: (1,)}, "a": {topic: (2,)}}


@pytest.mark.parametrize("name", [UNIFORM, RANGE])
def test_nobody_to_assign_to(name: str) -> None:
    assert assigned(name, {}, {}) == {}
    assert assigned(name, {"a": []}, {}) == {"a": {}}


@pytest.mark.parametrize("kinds", [1, 2])
def test_a_large_group_is_assigned_in_short_steps(kinds: int) -> None:
    topics = [UUID(int=number) for number in range(1, 101)]
    halves = [topics, topics[10:]]
    subscribers = [
        Subscriber(
            member_id=f"m{number}", instance_id=None, topics=frozenset(halves[number % kinds]), target={}
        )
        for number in range(1_000)
    ]
    work = ASSIGNORS[UNIFORM](subscribers, dict.fromkeys(topics, 100))
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            targets: Targets = end.value
            break
        steps += 1
    # A step looks at no more than a few hundred partitions or members.
    assert steps > 10_000 // 1_000
    assert sum(sizes(targets)) == 10_000
    assert max(sizes(targets)) - min(sizes(targets)) <= 1
