"""The rules about groups that the server assigns are checked: a clean history passes, and every way to spoil
it is caught by the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.checks import OFFSETS_TOPIC
from tests.sim.group_checks import RULES
from tests.sim.history import Beat, Commit, Crash, Heartbeat, History, Sync, TopicPartition
from tests.sim.verdict import judge

T, U, V = ("t", 0), ("t", 1), ("t", 2)
Places = tuple[TopicPartition, ...]


def beat(
    member: str,
    at: float,
    sent: int,
    epoch: int,
    claimed: Places | None = None,
    given: Places | None = None,
    **changes: object,
) -> Beat:
    base = Beat(
        group="g",
        member=member,
        sent_epoch=sent,
        epoch=epoch,
        claimed=claimed,
        given=given,
        invoked=at,
        done=at + 0.1,
        result="ok",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def commit(member: str, tp: TopicPartition, epoch: int, at: float, **changes: object) -> Commit:
    base = Commit(
        group="g",
        member=member,
        generation=epoch,
        tp=tp,
        offset=1,
        tag=f"{member}{at}",
        invoked=at,
        done=at + 0.05,
        result="ok",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def clean() -> History:
    """One member owns all, gives one away to a second, falls silent, is put out, and joins again; a classic
    one has a partition of its own."""
    history = History()
    history.beats = [
        beat("a", 1.0, 0, 1, (), (T, U)),
        beat("b", 2.0, 0, 2, (), ()),
        beat("a", 2.5, 1, 1, (T, U), (T,)),
        beat("a", 3.0, 1, 2, (T,), (T,)),
        beat("b", 3.5, 2, 2, (), (U,)),
        beat("a", 4.0, 2, 2, (T,)),
        beat("b", 4.2, 2, 2, (U,)),
        beat("b", 12.0, 2, 3, (U,), (T, U)),
        beat("a", 13.0, 2, 2, (T,), result="fail", error="unknown_member_id"),
        beat("b", 14.0, 3, 3, (T, U)),
        beat("a", 14.5, 0, 4, (), ()),
    ]
    history.syncs = [Sync(group="g", member="c", generation=9, assignment=(V,), invoked=12.5, done=12.6)]
    history.heartbeats = [
        Heartbeat(group="g", member="c", generation=9, invoked=15.0, done=15.1, result="ok")
    ]
    history.commits = [
        commit("a", U, 1, 1.5),
        commit("a", T, 2, 4.1),
        commit("b", U, 2, 4.3),
        commit("a", T, 2, 13.5, result="fail"),
    ]
    return history


Mutation = Callable[[History], None]


def give_before_it_is_given_up(history: History) -> None:
    history.beats[1] = replace(history.beats[1], given=(U,))
    history.beats[4] = replace(history.beats[4], claimed=(U,))


def go_on_with_two(history: History) -> None:
    history.beats.insert(9, beat("a", 13.6, 2, 2, (T,)))


def give_one_to_two_at_one_epoch(history: History) -> None:
    history.beats[10] = replace(history.beats[10], epoch=3, given=(U,))


def give_what_a_classic_member_has(history: History) -> None:
    history.syncs[0] = replace(history.syncs[0], assignment=(V, T))


def accept_a_commit_of_who_is_gone(history: History) -> None:
    history.commits.append(commit("a", ("t", 3), 2, 13.5))


def accept_a_commit_after_leaving(history: History) -> None:
    history.beats.append(beat("b", 15.0, -1, -1))
    history.commits.append(commit("b", U, 3, 15.5))


def accept_a_commit_of_what_another_owns(history: History) -> None:
    history.commits.append(commit("a", U, 1, 3.7))


def let_an_epoch_fall(history: History) -> None:
    history.beats[5] = replace(history.beats[5], epoch=1)


MUTATIONS: dict[Mutation, set[str]] = {
    give_before_it_is_given_up: {"16 one owner at a time"},
    go_on_with_two: {"16 one owner at a time"},
    give_one_to_two_at_one_epoch: {"16 one owner at a time"},
    give_what_a_classic_member_has: {"16 one owner at a time"},
    accept_a_commit_of_who_is_gone: {"16 fenced is rejected"},
    accept_a_commit_after_leaving: {"16 fenced is rejected"},
    accept_a_commit_of_what_another_owns: {"16 fenced is rejected"},
    let_an_epoch_fall: {"16 epochs of members"},
}


def test_a_clean_history_passes() -> None:
    assert not judge(clean()).violations


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_each_fault_is_caught_by_the_rule_that_names_it(mutate: Mutation) -> None:
    history = clean()
    mutate(history)
    assert judge(history).rules() == MUTATIONS[mutate]


def test_every_rule_has_a_mutation() -> None:
    assert set().union(*MUTATIONS.values()) == set(RULES)


def test_a_static_member_may_come_back_at_the_epoch_at_which_it_left() -> None:
    history = clean()
    history.beats += [beat("b", 15.0, -2, -2), beat("b", 16.0, 0, 3, (), (T, U))]
    history.commits.append(commit("b", U, 3, 16.5))
    assert not judge(history).violations
    history.commits.append(commit("b", U, 3, 15.5))
    assert judge(history).rules() == {"16 fenced is rejected"}


def test_a_group_that_all_lost_to_power_is_excused() -> None:
    history = clean()
    let_an_epoch_fall(history)
    history.crashes.append(Crash(life=1, at=3.2, power=True, synced_end={}, kept_end={OFFSETS_TOPIC: 0}))
    assert not judge(history).violations
