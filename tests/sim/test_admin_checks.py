"""The rules about operators are checked: a clean history passes, and every way to spoil it is caught by the
rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.history import (
    PLACES,
    SETTING,
    AdminEvent,
    AdminOp,
    BrokerState,
    ClusterRead,
    Crash,
    History,
    Mark,
    MetaSlot,
    Remains,
)
from tests.sim.test_replica_checks import chain, slot
from tests.sim.verdict import judge

A, B = "id-a", "id-b"
BORN = ((0, (1, 2), (1, 2)),)
GROWN = (*BORN, (0, (2, 1), (2, 1)))


def event(kind: Any, value: object = None, topic_id: str = A) -> AdminEvent:
    return AdminEvent(kind=kind, topic="x", topic_id=topic_id, value=value)


def op(kind: Any, invoked: float, done: float, asked: object = None, **changes: object) -> AdminOp:
    base = AdminOp(kind=kind, topic="x", asked=asked, invoked=invoked, done=done, result="ok")
    return replace(base, **changes)  # type: ignore[arg-type]


def read(
    at: float, node: int, places: object, *, is_all: bool = False, is_final: bool = False
) -> ClusterRead:
    facts = {("x", PLACES): places} if places is not None or not is_all else {}
    return ClusterRead(
        node=node, life=1, invoked=at, done=at + 0.01, facts=facts, is_all=is_all, is_final=is_final
    )


def made(at: float, *events: AdminEvent, facts: dict[str, object], **what: Any) -> MetaSlot:
    named = {("x", aspect): value for aspect, value in facts.items()}
    return slot(at, 1, 1, events=events, facts=named, **what)


def clean() -> History:
    """Controller 1, broker 2 behind it. The topic x is made, grows, gets a setting by an order that hears no
    answer, is deleted and made anew, and moves."""
    history = History()
    history.slots = chain(
        slot(0.1, 1, 1, elects=1, brokers=(BrokerState(id=1, epoch=1, fenced=False),)),
        slot(0.2, 1, 1, brokers=(BrokerState(id=2, epoch=2, fenced=False),)),
        made(1, event("create", 1), facts={PLACES: (A, BORN), SETTING: ""}),
        made(2, event("grow", 2), facts={PLACES: (A, GROWN)}),
        made(3.5, event("configure", "77", ""), facts={SETTING: "77"}),
        made(5, event("delete"), facts={PLACES: None, SETTING: None}),
        made(6, event("create", 1, B), facts={PLACES: (B, BORN), SETTING: ""}),
        made(8, facts={PLACES: (B, ((0, (2, 1), (1, 2)),))}),
    )
    history.admin = [
        op("create", 0.9, 1.1, 1, topic_id=A, node=2),
        op("create", 1.2, 1.3, 1, result="fail", error="topic_already_exists"),
        op("grow", 1.9, 2.1, 2),
        op("configure", 2.5, 3, "77", result="unknown"),
        op("delete", 4.9, 5.1, topic_id=A),
        op("delete", 5.2, 5.3, result="fail", error="unknown_topic_or_partition"),
        op("create", 5.9, 6.1, 1, topic_id=B),
        op("reassign", 7.9, 8.1, (2, 1)),
    ]
    history.reads = [
        read(0.5, 2, None, is_all=True),
        read(1.15, 2, (A, BORN), is_all=True),
        read(2.5, 2, (A, BORN)),  # it lags behind the growth, which 1 answered
        read(2.5, 1, (A, GROWN)),
        ClusterRead(node=1, life=1, invoked=4, done=4.1, facts={("x", SETTING): "77"}),
        read(5.5, 1, None),
        read(5.6, 2, (A, GROWN)),
        read(20, 1, (B, ((0, (2, 1), (1, 2)),)), is_all=True, is_final=True),
        read(20, 2, (B, ((0, (2, 1), (1, 2)),)), is_all=True, is_final=True),
    ]
    history.marks = [
        Mark(topic="x", topic_id=A, value=1, result="ok", done=1.5),
        Mark(topic="x", topic_id=B, value=2, result="ok", done=6.5),
        Mark(topic="x", topic_id=B, value=3, result="unknown", done=7.5),
        Mark(topic="x", topic_id=B, value=4, result="fail", done=7.5),
    ]
    history.remains = [Remains(node=node, topic="x", topic_id=B, values=(2,)) for node in (1, 2)]
    return history


Mutation = Callable[[History], None]


def change_op(at: int, **changes: object) -> Mutation:
    def spoil(history: History) -> None:
        history.admin[at] = replace(history.admin[at], **changes)  # type: ignore[arg-type]

    return spoil


def change_slot(seq: int, **changes: object) -> Mutation:
    def spoil(history: History) -> None:
        slots = list(history.slots)
        slots[seq - 1] = replace(slots[seq - 1], **changes)  # type: ignore[arg-type]
        history.slots = tuple(slots)

    return spoil


def change_read(at: int, **changes: object) -> Mutation:
    def spoil(history: History) -> None:
        history.reads[at] = replace(history.reads[at], **changes)  # type: ignore[arg-type]

    return spoil


def add_read(extra: ClusterRead) -> Mutation:
    return lambda history: history.reads.append(extra)


def both(one: Mutation, other: Mutation) -> Mutation:
    def spoil(history: History) -> None:
        one(history)
        other(history)

    return spoil


def forget_an_order(at: int) -> Mutation:
    def spoil(history: History) -> None:
        del history.admin[at]

    return spoil


def hold(*values: int) -> Mutation:
    def spoil(history: History) -> None:
        history.remains[1] = replace(history.remains[1], values=values)

    return spoil


DONE, ORDERED, READS, BACK = (
    "19 done happened",
    "19 happened was ordered",
    "19 reads go forward",
    "19 nothing comes back",
)
MUTATIONS: list[tuple[str, Mutation, set[str]]] = [
    ("a growth that is acknowledged and never was", change_slot(4, events=()), {DONE}),
    ("a setting that is acknowledged and never was", change_op(3, result="ok", asked="76"), {DONE, ORDERED}),
    ("an effect after the answer", change_slot(4, at=2.2), {DONE, ORDERED}),
    ("a creation under another id", change_op(0, topic_id="id-c"), {DONE, ORDERED}),
    ("fewer partitions than were asked for", change_op(0, asked=3), {DONE, ORDERED}),
    ("an acknowledged creation undone", forget_an_order(4), {ORDERED}),
    ("a refused setting that took effect", change_op(3, result="fail"), {ORDERED}),
    ("an effect before its order", change_op(3, invoked=3.6, done=3.7), {ORDERED}),
    (
        "an open order that took effect twice",
        change_slot(8, events=(event("configure", "77", ""),)),
        {ORDERED},
    ),
    ("a refusal as already there of what is not", change_op(1, invoked=0.5, done=0.6), {"19 refusals"}),
    ("a refusal as unknown of what is there", change_op(5, invoked=6.5, done=6.6), {"19 refusals"}),
    (
        "an id that comes back",
        both(change_slot(7, events=(event("create", 1),)), change_op(6, topic_id=A)),
        {"19 new ids"},
    ),
    ("a move that did not arrive", change_op(7, asked=(1, 2)), {"19 moves arrive"}),
    ("a state there never was", change_read(3, facts={("x", PLACES): (A, BORN[:0])}), {READS}),
    ("a state of the future", change_read(1, invoked=0.95, done=0.96), {READS}),
    ("one broker goes back", add_read(read(2.6, 1, (A, BORN))), {READS}),
    ("what it answered as done is not there", add_read(read(1.2, 2, None)), {READS}),
    ("what the controller committed is not there", add_read(read(1.2, 1, None)), {READS}),
    ("what came before its registration", add_read(read(0.15, 1, (A, BORN))), {READS}),
    ("a setting that is old", change_read(4, facts={("x", SETTING): "76"}), {READS}),
    ("a topic too many", change_read(0, facts={("y", PLACES): (A, BORN)}), {READS}),
    ("a topic too few", change_read(1, facts={}), {READS}),
    ("it never learns", change_read(8, facts={("x", PLACES): (B, BORN)}), {READS}),
    ("a value of the former topic", hold(2, 1), {BACK}),
    ("a value that was refused", hold(2, 4), {BACK}),
    ("an acked value that is gone", hold(), {BACK}),
]


def test_a_clean_history_is_clean() -> None:
    assert not judge(clean()).violations


@pytest.mark.parametrize(("what", "spoil", "rules"), MUTATIONS, ids=[what for what, *_ in MUTATIONS])
def test_every_way_to_spoil_it_is_caught(what: str, spoil: Mutation, rules: set[str]) -> None:
    history = clean()
    spoil(history)
    assert judge(history).rules() == rules, what


def test_an_open_order_may_never_happen_and_its_value_may_be_there() -> None:
    history = clean()
    history.admin.append(op("grow", 6.5, 9.5, 2, result="unknown"))
    hold(2, 3)(history)
    assert not judge(history).violations


def test_a_setting_that_already_stood_makes_no_slot() -> None:
    history = clean()
    history.admin.append(op("configure", 4, 4.1, "77"))
    assert not judge(history).violations


def test_a_replaced_controller_may_refuse_by_what_it_knew() -> None:
    history = clean()
    change_op(1, invoked=5.2, done=5.3)(history)
    assert judge(history).rules() == {"19 refusals"}
    change_slot(8, controller_epoch=2, elects=2)(history)
    assert not judge(history).violations


def test_what_disks_lost_is_not_owed_to_a_topic_that_came_and_went() -> None:
    history = clean()
    hold()(history)
    history.crashes.append(Crash(node=2, life=1, at=7, power=True))
    assert not judge(history).violations
