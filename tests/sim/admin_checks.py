"""Owns the rules about topics and settings as operators see them: what was ordered happened, once, between
order and answer, and nothing else did; what a broker tells is the cluster as it was after some slot.

The metadata log is the order of all changes, so no order has to be guessed. Kafka promises less of reads than
of orders: a broker may lag behind the log, but what it tells is one state, not older than what it told
before, than its own registration, and than what it answered as done. An order without an answer may happen
once, at any time after it was given, or never. A refusal is decided from the controller's latest state
without a slot, so a controller that was replaced and does not know may refuse by an old one.

Invariant: a rule looks only at values; the same history gives the same verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from protocol.errors import ErrorCode
from tests.sim.checks import Case
from tests.sim.history import PLACES, SETTING, AdminEvent, AdminOp, ClusterRead, History, MetaSlot

INTERNAL = "__"
DECIDED = ("create", "delete", "grow", "configure")
LAG_S = 2.0  # of a broker when nothing fails: a few heartbeats
Fact = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One event, and the slot it is of."""

    slot: MetaSlot
    event: AdminEvent


def _happened(history: History) -> list[Happened]:
    """The settings that a topic is made with are part of its making."""
    asked = {(op.topic, op.asked) for op in history.admin if op.kind == "configure"}
    return [
        Happened(slot=slot, event=event)
        for slot in history.slots
        for event in slot.events
        if not event.topic.startswith(INTERNAL)
        and (
            event.kind != "configure" or (event.topic, event.value) in asked or not _makes(slot, event.topic)
        )
    ]


def _makes(slot: MetaSlot, topic: str) -> bool:
    return any(event.kind == "create" and event.topic == topic for event in slot.events)


def _explains(op: AdminOp, happened: Happened) -> bool:
    """Whether this event is what an order that was done had ordered."""
    event = happened.event
    same = (op.kind, op.topic) == (event.kind, event.topic) and op.asked == event.value
    named = not op.topic_id or not event.topic_id or op.topic_id == event.topic_id
    return same and named and op.invoked <= happened.slot.at <= op.done


# orders -----------------------------------------------------------------------------------------------------


def what_is_done_happened(case: Case) -> Iterator[str]:
    """19 An order that was answered as done took effect between order and answer, each its own."""
    _, missing = _matched(case.history)
    for op in missing:
        yield f"{_name(op)} was done at {op.done:.3f}, and no slot says so"


def what_happened_was_ordered(case: Case) -> Iterator[str]:
    """19 Whatever became of a topic was ordered, and not refused: nothing is undone, or done twice."""
    left, _ = _matched(case.history)
    orders: dict[tuple[str, str, object], list[AdminOp]] = defaultdict(list)
    for op in case.history.admin:
        if op.result == "unknown":
            orders[op.kind, op.topic, op.asked].append(op)
    for open_orders in orders.values():
        open_orders.sort(key=lambda op: op.invoked)
    for happened in left:
        event = happened.event
        candidates = orders[event.kind, event.topic, event.value]
        if candidates and candidates[0].invoked <= happened.slot.at:
            candidates.pop(0)
        else:
            what = f"{event.kind} {event.topic} {event.value}"
            yield f"slot {happened.slot.seq}: {what} happened, and nobody had ordered it"


def _matched(history: History) -> tuple[list[Happened], list[AdminOp]]:
    """The events that no done order explains, and the done orders without an event."""
    left, missing = _happened(history), []
    for op in sorted(history.admin, key=lambda op: op.done):
        if op.result != "ok" or op.kind not in DECIDED:
            continue
        mine = next((happened for happened in left if _explains(op, happened)), None)
        if mine is not None:
            left.remove(mine)
        elif not _stood_already(history, op):
            missing.append(op)
    return left, missing


def _stood_already(history: History, op: AdminOp) -> bool:
    """Whether a setting had the value that was ordered when the order was given: that makes no slot."""
    fact = op.topic, SETTING
    stood = [slot.facts[fact] for slot in history.slots if slot.at <= op.invoked and fact in slot.facts]
    return op.kind == "configure" and stood[-1:] == [op.asked]


def refusals_are_true(case: Case) -> Iterator[str]:
    """19 What was refused because a topic is there, or is not, was refused by a state there had been; by one
    between order and answer, as long as there was only one controller."""
    history = case.history
    has_changed = sum(slot.elects is not None for slot in history.slots) > 1
    for op in history.admin:
        wanted = {
            ErrorCode.topic_already_exists.name: True,
            ErrorCode.unknown_topic_or_partition.name: False,
        }.get(op.error)
        if wanted is None or (op.index and not wanted):
            continue  # the topic may have fewer partitions than that
        since = 0.0 if has_changed else op.invoked
        if wanted not in _was_there(history, op.topic, since, op.done):
            yield f"{_name(op)} was refused with {op.error}, which was never so"


def _was_there(history: History, topic: str, since: float, until: float) -> set[bool]:
    """Whether the topic existed, in every moment of that time, within slots too."""
    is_there, seen = False, set()
    for slot in history.slots:
        if slot.at > until:
            break
        if slot.at >= since:
            seen.add(is_there)
        for event in slot.events:
            if event.topic == topic and event.kind in ("create", "delete"):
                is_there = event.kind == "create"
                if slot.at >= since:
                    seen.add(is_there)
    return seen | {is_there}


def topics_are_new(case: Case) -> Iterator[str]:
    """19 A topic that is made has an id that no topic had before."""
    seen: set[str] = set()
    for happened in _happened(case.history):
        if happened.event.kind == "create":
            if happened.event.topic_id in seen:
                yield f"slot {happened.slot.seq}: {happened.event.topic} has an id that was given before"
            seen.add(happened.event.topic_id)


def moves_arrive(case: Case) -> Iterator[str]:
    """19 In the end a partition is where the last order put it that was done, unless a later one is open."""
    history = case.history
    if not history.slots:
        return
    final = _states(history)[-1]
    for op in history.admin:
        places = final.get((op.topic, PLACES))
        if op.kind != "reassign" or op.result != "ok" or places is None or _is_made_anew(history, op):
            continue
        others = [other for other in history.admin if _same_partition(other, op) and other is not op]
        # an order without an answer may arrive at any time
        if any(
            other.result == "unknown" or (other.result == "ok" and other.done > op.invoked)
            for other in others
        ):
            continue
        replicas = places[1][op.index][1]  # type: ignore[index]
        if replicas != op.asked:
            yield f"{_name(op)} was done, it is on {replicas}"


def _same_partition(one: AdminOp, other: AdminOp) -> bool:
    return (one.kind, one.topic, one.index) == (other.kind, other.topic, other.index)


def _is_made_anew(history: History, op: AdminOp) -> bool:
    return any(
        happened.event.kind == "create"
        and happened.event.topic == op.topic
        and happened.slot.at >= op.invoked
        for happened in _happened(history)
    )


def _name(op: AdminOp) -> str:
    return f"{op.kind} {op.topic} {op.asked} (node {op.node}, {op.invoked:.3f})"


# reads ------------------------------------------------------------------------------------------------------


def reads_go_forward(case: Case) -> Iterator[str]:
    """19 What a broker tells is one state of the log, none of the future, and none older than what it had
    told, registered with, or answered as done; in the end it knows the newest."""
    history = case.history
    states = _states(history)
    seqs = [slot.seq for slot in history.slots]
    told: list[tuple[float, int, int]] = []  # answered at, by node, from the state at this place
    done = [
        (op.done, node, place)
        for op, place in _places_of_done(history)
        for node in (op.node, history.slots[place].node)  # who answered waits until it has heard itself
    ]
    for read in sorted(history.reads, key=lambda read: read.invoked):
        known = [place for at, node, place in (*told, *done) if node == read.node and at < read.invoked]
        least = max((*known, _registered(history, read)), default=-1)
        if read.is_final:
            least = max(at for at, slot in enumerate(history.slots) if slot.at <= read.invoked - LAG_S)
        place = next((at for at in range(max(least, 0), len(states)) if _tells(read, states[at])), None)
        if place is None or history.slots[place].at > read.done:
            past = max((at for at in range(least) if _tells(read, states[at])), default=None)
            what = "no state there was" if past is None else f"slot {seqs[past]}, older than {seqs[least]}"
            yield f"node {read.node} told at {read.invoked:.3f} to {read.done:.3f} of {what}: {_short(read)}"
        else:
            told.append((read.done, read.node, place))


def _states(history: History) -> list[dict[Fact, object]]:
    """What is there after each slot; a topic that is not there has no fact."""
    states: list[dict[Fact, object]] = []
    state: dict[Fact, object] = {}
    for slot in history.slots:
        if slot.facts:
            state = {**state, **slot.facts}
            state = {fact: value for fact, value in state.items() if value is not None}
        states.append(state)
    return states


def _tells(read: ClusterRead, state: dict[Fact, object]) -> bool:
    if any(state.get(fact) != value for fact, value in read.facts.items()):
        return False
    return not read.is_all or sum(aspect == PLACES for _, aspect in state) == len(read.facts)


def _places_of_done(history: History) -> Iterator[tuple[AdminOp, int]]:
    """Orders that are done, and the place of their slot."""
    place_of = {slot.seq: place for place, slot in enumerate(history.slots)}
    happened = _happened(history)
    for op in history.admin:
        if op.result == "ok" and op.kind in DECIDED:
            places = [place_of[each.slot.seq] for each in happened if _explains(op, each)]
            if places:
                yield op, places[0]


def _registered(history: History, read: ClusterRead) -> int:
    """The place of the slot its life began with."""
    places = [
        place
        for place, slot in enumerate(history.slots)
        if slot.at <= read.invoked
        and any(broker.id == read.node and broker.epoch == slot.seq for broker in slot.brokers)
    ]
    return max(places, default=-1)


def _short(read: ClusterRead) -> str:
    return "; ".join(f"{name} {value}" for (name, _), value in sorted(read.facts.items()))[:300]


# marks ------------------------------------------------------------------------------------------------------


def nothing_comes_back(case: Case) -> Iterator[str]:
    """19 (made anew) A topic that was deleted and made anew holds nothing that was written to another of its
    name, unless the power took the id of that one's log, and all that was acknowledged to it, unless disks or
    unclean elections took it."""
    history = case.history
    marks = {(mark.topic_id, mark.value): mark for mark in history.marks}
    lost_power = any(crash.power for crash in history.crashes)
    took = lost_power or any(crash.replaced for crash in history.crashes)
    took = took or any(
        moment.is_unclean for tp in case.custody.partitions() for moment in case.custody.moments(tp)
    )
    for remains in history.remains:
        where = f"{remains.topic} on node {remains.node}"
        for value in remains.values:
            mark = marks.get((remains.topic_id, value))
            if mark is None and not lost_power:
                yield f"{where}: {value} was not written to this one ({remains.topic_id})"
            elif mark is not None and mark.result == "fail":
                yield f"{where}: {value} had been refused"
        for mark in history.marks:
            is_owed = mark.topic_id == remains.topic_id and mark.result == "ok" and not took
            if is_owed and mark.value not in remains.values:
                yield f"{where}: {mark.value} was acked and is not there"


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "19 done happened": what_is_done_happened,
    "19 happened was ordered": what_happened_was_ordered,
    "19 refusals": refusals_are_true,
    "19 new ids": topics_are_new,
    "19 moves arrive": moves_arrive,
    "19 reads go forward": reads_go_forward,
    "19 nothing comes back": nothing_comes_back,
}
