"""Owns the rules about groups that the server assigns: who owns a partition when, and what a member may do
that was fenced.

A member owns a partition from the answer that gives it until it says that it does not any more, or leaves;
for certain it does so up to the last heartbeat of its time that was answered well. Does not own members that
assign themselves, nor which commit counts (checks.py).

Invariant: only what two answers of the coordinator say is held against it, in the order in which they were
asked for and given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from tests.sim.checks import LATEST, OFFSETS_TOPIC, Case
from tests.sim.history import Beat, History, TopicPartition


@dataclass(slots=True)
class Tenure:
    """One member's time with one partition; `begun` when it was told, `confirmed` when it last asked as its
    owner and was answered well."""

    group: str
    tp: TopicPartition
    member: str
    epoch: int
    begun: float
    confirmed: float


def tenures_of(history: History) -> list[Tenure]:
    """Who had which partition when, for certain."""
    found: list[Tenure] = []
    holders: dict[tuple[str, str], dict[TopicPartition, Tenure]] = defaultdict(dict)
    for beat in sorted(history.beats, key=lambda beat: beat.invoked):
        held = holders[beat.group, beat.member]
        for tp in list(held):
            if beat.sent_epoch <= 0 or (beat.claimed is not None and tp not in beat.claimed):
                del held[tp]
        if beat.result != "ok" or beat.sent_epoch < 0:
            continue
        given = tuple(held) if beat.given is None else beat.given
        for tenure in held.values():
            tenure.confirmed = beat.invoked
        for tp in given:
            if tp not in held:
                held[tp] = Tenure(
                    group=beat.group,
                    tp=tp,
                    member=beat.member,
                    epoch=beat.epoch,
                    begun=beat.done,
                    confirmed=beat.done,
                )
                found.append(held[tp])
    found += _classic_tenures(history)
    return found


def _classic_tenures(history: History) -> Iterator[Tenure]:
    """The same of members that assign themselves elsewhere, in the groups where the server does it for them:
    they own what they were told until they join anew, for certain up to their last good heartbeat."""
    groups = {beat.group for beat in history.beats}
    for sync in history.syncs:
        if sync.group not in groups:
            continue
        beats = [
            beat.invoked
            for beat in history.heartbeats
            if beat.result == "ok"
            and (beat.group, beat.member, beat.generation) == (sync.group, sync.member, sync.generation)
        ]
        for tp in sync.assignment:
            yield Tenure(
                group=sync.group,
                tp=tp,
                member=sync.member,
                epoch=sync.generation,
                begun=sync.done,
                confirmed=max([sync.done, *beats]),
            )


def one_owner_at_a_time(case: Case) -> Iterator[str]:
    """16 At no time are two members told that a partition is theirs, and at one epoch only one ever is."""
    history = case.history
    if _was_forgotten(case):
        return
    by_place: dict[tuple[str, TopicPartition], list[Tenure]] = defaultdict(list)
    for tenure in tenures_of(history):
        by_place[tenure.group, tenure.tp].append(tenure)
    for (group, tp), tenures in by_place.items():
        for number, one in enumerate(tenures):
            for other in tenures[number + 1 :]:
                if one.member == other.member:
                    continue
                begun, end = max(one.begun, other.begun), min(one.confirmed, other.confirmed)
                if begun < end:
                    who = f"{one.member} and {other.member}"
                    yield f"{group}: {tp} was owned by {who} from {begun:.3f} to {end:.3f}"
    owners: dict[tuple[str, TopicPartition, int], set[str]] = defaultdict(set)
    for beat in history.beats:
        for tp in (beat.given or ()) if beat.result == "ok" else ():
            owners[beat.group, tp, beat.epoch].add(beat.member)
    for sync in history.syncs:
        for tp in sync.assignment:
            if (sync.group, tp) in by_place:
                owners[sync.group, tp, sync.generation].add(sync.member)
    for (group, tp, epoch), members in owners.items():
        if len(members) > 1:
            yield f"{group} epoch {epoch}: {tp} was given to {sorted(members)}"


def fenced_is_rejected(case: Case) -> Iterator[str]:
    """16 Nothing is accepted from a member that left or was told that it is none, nor a commit of what
    another was given at a later epoch."""
    history = case.history
    if _was_forgotten(case):
        return
    over = _when_over(history)
    given = tenures_of(history)
    for commit in history.commits:
        if commit.result != "ok" or commit.generation < 0:
            continue
        what = f"{commit.group}: the commit {commit.tag} of {commit.member} at epoch {commit.generation}"
        gone = over.get((commit.group, commit.member, commit.generation), ())
        if any(begun < commit.invoked and commit.done < again for begun, again in gone):
            yield f"{what} was accepted after that member was gone"
        for tenure in given:
            is_another = (tenure.group, tenure.tp) == (commit.group, commit.tp)
            is_another = is_another and tenure.member != commit.member
            if is_another and tenure.epoch > commit.generation and tenure.begun < commit.invoked:
                yield f"{what} was accepted after {tenure.member} was given it at {tenure.epoch}"
                break


def epochs_of_members_grow(case: Case) -> Iterator[str]:
    """16 A member's epoch never falls while it stays one."""
    if _was_forgotten(case):
        return
    newest: dict[tuple[str, str], tuple[int, float]] = {}
    for beat in sorted(case.history.beats, key=lambda beat: beat.invoked):
        place = beat.group, beat.member
        if beat.sent_epoch <= 0:
            newest.pop(place, None)
        if beat.result != "ok" or beat.sent_epoch < 0:
            continue
        epoch, done = newest.get(place, (0, 0.0))
        if beat.epoch < epoch and done < beat.invoked:
            yield f"{beat.group}: {beat.member} was at epoch {epoch} and is told {beat.epoch}"
        newest[place] = max((epoch, done), (beat.epoch, beat.done))


def _when_over(history: History) -> dict[tuple[str, str, int], list[tuple[float, float]]]:
    """When a member's epoch was over: from when it heard so, because it left or was not known any more, until
    it asked and was given the same again, as a static member that comes back is."""
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    epochs: dict[tuple[str, str], int] = {}
    for beat in sorted(history.beats, key=lambda beat: beat.invoked):
        place = beat.group, beat.member
        has_ended = beat.result == "ok" and beat.sent_epoch < 0
        if has_ended or (beat.result == "fail" and beat.error in GONE):
            epoch = epochs.get(place, 0) if beat.sent_epoch <= 0 else beat.sent_epoch
            if epoch > 0:
                found[*place, epoch].append((beat.done, inf))
        elif beat.result == "ok":
            epochs[place] = beat.epoch
            times = found.get((*place, beat.epoch))
            if times and times[-1][1] == inf:
                times[-1] = (times[-1][0], beat.invoked)
    return found


GONE = frozenset({"unknown_member_id", "fenced_member_epoch"})


def _was_forgotten(case: Case) -> bool:
    beats: list[Beat] = case.history.beats
    begun = min((beat.invoked for beat in beats), default=inf)
    return bool(beats) and case.is_forgotten(OFFSETS_TOPIC, LATEST, begun, inf)


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "16 one owner at a time": one_owner_at_a_time,
    "16 fenced is rejected": fenced_is_rejected,
    "16 epochs of members": epochs_of_members_grow,
}
