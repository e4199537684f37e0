"""The rules about the cold tier are checked: a clean history passes, and every way to spoil it is caught by
the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.errors import ErrorCode
from tests.sim.history import (
    BrokerState,
    Crash,
    DeleteRecords,
    FoldSeen,
    Freed,
    HadAlone,
    History,
    MetaSlot,
    ObjectChange,
    PartitionState,
    ReplicaLog,
    Result,
    Sample,
    TierCopy,
    TierSeen,
    TopicPartition,
)
from tests.sim.test_checks import T, batch, fetch, final, send
from tests.sim.tier_checks import METADATA_TOPIC, RULES
from tests.sim.verdict import judge

B0, B1, B2 = batch(0, 10, 11), batch(2, 12, 13), batch(4, 14)
ID = ("topic", 0)
KEY = "tier/topic/0/0-one.log"


def copy(id_: str, state: str, objects: tuple[int | None, ...] = (100, 50)) -> TierCopy:
    return TierCopy(partition=ID, id=id_, base=0, end=4, size=100, state=state, objects=objects)


def replica(local: int, tiered: int, readable_to: int | None = None) -> ReplicaLog:
    whole = final(B0, B1, B2)
    return ReplicaLog(
        log_start_offset=0,
        high_watermark=5,
        log_end_offset=5,
        batches=tuple(each for each in whole.batches if each.next_offset > local),
        epochs=whole.epochs,
        local_log_start_offset=local,
        tiered_end=tiered,
        readable_to=readable_to,
        last_stable_offset=5,
    )


def change(at: float, digest: str, state: str, key: str = KEY) -> ObjectChange:
    return ObjectChange(at=at, sent=at, node=1, key=key, copy="one", digest=digest, state=state)


def led_by(tp: TopicPartition, *reigns: tuple[float, int, int, tuple[int, ...]]) -> tuple[MetaSlot, ...]:
    """Slots by which each (since, leader, epoch, ISR) begins, of replicas 1 and 2."""
    return tuple(
        MetaSlot(
            seq=seq,
            at=since,
            node=1,
            life=1,
            controller_epoch=1,
            hash=f"{seq}",
            previous_hash=f"{seq - 1}",
            partitions=(
                PartitionState(
                    tp=tp, leader=node, leader_epoch=epoch, partition_epoch=seq, replicas=(1, 2), isr=isr
                ),
            ),
        )
        for seq, (since, node, epoch, isr) in enumerate(reigns, 1)
    )


def clean() -> History:
    """One broker. [0, 4) is copied at 3 and leaves the disk; a second copy of it was begun and given up."""
    history = History()
    history.sends = [send((10, 11), 1, 0), send((12, 13), 2, 2), send((14,), 2.6, 4)]
    history.fetches = [fetch(3, 0, B0, B1, hw=5, seek=True), fetch(8, 4, B2, hw=5)]
    history.tier_changes = [
        change(3.0, "data", "COPY_STARTED"),
        change(3.1, "data", "COPY_STARTED", "tier/topic/0/0-two.log"),
        change(4.0, "", "DELETE_STARTED", "tier/topic/0/0-two.log"),
    ]
    history.samples = [
        Sample(at=2.9, tp=T, logs=(replica(0, 0),)),
        Sample(at=5, tp=T, logs=(replica(4, 4, readable_to=4),)),
    ]
    told = ((ID, "one", "COPY_FINISHED"),)
    history.tiers = [
        TierSeen(at=3.05, copies=(copy("one", "COPY_STARTED", (100, None)),)),
        TierSeen(at=3.5, copies=(copy("one", "COPY_FINISHED"), copy("two", "COPY_STARTED", (100, None)))),
        TierSeen(
            at=9,
            copies=(copy("one", "COPY_FINISHED"),),
            folds=(FoldSeen(node=0, index=0, copies=told), FoldSeen(node=1, index=0, copies=told)),
            is_final=True,
        ),
    ]
    history.logs = {T: final(B0, B1, B2)}
    return history


Mutation = Callable[[History], None]


def change_log(history: History, **what: object) -> None:
    sample = history.samples[1]
    history.samples[1] = replace(sample, logs=(replace(sample.logs[0], **what),))  # type: ignore[arg-type]


def start_locally_before_the_log(history: History) -> None:
    change_log(history, log_start_offset=4, local_log_start_offset=2)


def start_locally_past_what_is_stable(history: History) -> None:
    change_log(history, local_log_start_offset=5, last_stable_offset=4, readable_to=5, batches=())


def take_for_tiered_what_the_log_has_not(history: History) -> None:
    change_log(history, tiered_end=6)


def let_go_of_what_is_not_in_the_tier(history: History) -> None:
    change_log(history, readable_to=2)


def lose_an_object(history: History) -> None:
    history.tiers[1] = replace(history.tiers[1], copies=(copy("one", "COPY_FINISHED", (100, None)),))


def finish_with_a_short_object(history: History) -> None:
    history.tiers[1] = replace(history.tiers[1], copies=(copy("one", "COPY_FINISHED", (60, 50)),))


def delete_before_it_is_said(history: History) -> None:
    history.tier_changes.append(change(5, "", "COPY_FINISHED"))


def finish_before_the_object_is_there(history: History) -> None:
    history.tier_changes[0] = change(3.0, "data", "COPY_FINISHED")


def put_other_bytes(history: History) -> None:
    history.tier_changes.append(change(3.2, "other", "COPY_STARTED"))


def go_back(history: History) -> None:
    history.tiers[2] = replace(
        history.tiers[2], backward=("copy one goes from DELETE_STARTED to COPY_FINISHED",)
    )


def know_too_little(history: History) -> None:
    folds = (*history.tiers[2].folds, FoldSeen(node=2, index=0, copies=()))
    history.tiers[2] = replace(history.tiers[2], folds=folds)


def know_too_much(history: History) -> None:
    more = ((ID, "one", "COPY_FINISHED"), (ID, "two", "DELETE_STARTED"))
    folds = (*history.tiers[2].folds, FoldSeen(node=2, index=0, copies=more))
    history.tiers[2] = replace(history.tiers[2], folds=folds)


def leave_an_object(history: History) -> None:
    history.tiers[2] = replace(history.tiers[2], unreferenced=("tier/topic/0/0-two.log",))


def know_another_epoch(history: History) -> None:
    sample = history.samples[0]
    behind = replace(sample.logs[0], node=2, is_leader=False, epochs=((1, 3),))
    history.samples[0] = replace(
        sample, logs=(replace(sample.logs[0], is_leader=True), behind), is_final=True
    )


def know_no_epochs_of_the_tier(history: History) -> None:
    change_log(history, is_leader=True, tier_epochs=((1, 0),), epochs=((1, 4),))


def free_what_is_not_in_the_tier(history: History) -> None:
    history.freed.append(Freed(at=4.9, tp=T, node=1, start=0, end=4, readable_to=2))


def delete_what_nothing_else_has(history: History) -> None:
    gone = change(8.0, "", "DELETE_STARTED")
    history.tier_changes.append(replace(gone, alone=HadAlone(T, shared=((0, 0), (2, 0)))))


def delete_what_a_log_gets_back_from_nowhere(history: History) -> None:
    gone = change(8.0, "", "DELETE_STARTED")
    history.tier_changes.append(replace(gone, alone=HadAlone(T, parted=((0, 0), (2, 0)))))


def say_out_of_range(history: History) -> None:
    refused = fetch(6, 2, hw=-1, seek=True, client="late")
    history.fetches.append(replace(refused, result="fail", error=ErrorCode.offset_out_of_range.name))


@pytest.mark.parametrize(
    ("rule", "mutation"),
    [
        ("9 tier bounds", start_locally_before_the_log),
        ("9 tier bounds", start_locally_past_what_is_stable),
        ("9 tier bounds", take_for_tiered_what_the_log_has_not),
        ("7 nobody is sent away", say_out_of_range),
        ("11 tier objects", put_other_bytes),
        ("12 epochs of the tier", know_another_epoch),
        ("12 epochs of the tier", know_no_epochs_of_the_tier),
        ("17 freed is in the tier", free_what_is_not_in_the_tier),
        ("17 gone is not needed", delete_what_nothing_else_has),
        ("17 gone is not needed", delete_what_a_log_gets_back_from_nowhere),
        ("17 leaders have all", let_go_of_what_is_not_in_the_tier),
        ("17 copies have objects", lose_an_object),
        ("17 copies have objects", finish_with_a_short_object),
        ("17 copies have objects", delete_before_it_is_said),
        ("17 copies have objects", finish_before_the_object_is_there),
        ("17 states go forward", go_back),
        ("17 folds are equal", know_too_little),
        ("17 folds are equal", know_too_much),
        ("17 nothing unreferenced", leave_an_object),
    ],
)
def test_a_spoiled_history_is_caught_by_its_rule(rule: str, mutation: Mutation) -> None:
    history = clean()
    mutation(history)
    assert rule in judge(history).rules()


def test_a_clean_history_passes() -> None:
    verdict = judge(clean())
    assert verdict.clean, "\n".join(map(str, verdict.violations))


def test_every_rule_has_a_mutation() -> None:
    marks = test_a_spoiled_history_is_caught_by_its_rule.pytestmark  # type: ignore[attr-defined]
    assert {rule for rule, _ in marks[0].args[1]} == set(RULES)


def test_epochs_are_looked_at_from_where_both_logs_begin_to_what_both_have_committed() -> None:
    history = clean()
    sample = history.samples[0]
    leader = replace(sample.logs[0], is_leader=True)
    behind = replace(
        leader, node=2, is_leader=False, log_start_offset=2, high_watermark=4, epochs=((1, 2), (2, 4))
    )
    history.samples[0] = replace(sample, logs=(leader, behind))
    assert "12 epochs of the tier" not in judge(history).rules()


def test_what_was_deleted_with_its_records_or_is_of_a_lost_lineage_is_not_needed() -> None:
    history = clean()
    gone = change(8.0, "", "DELETE_STARTED")
    history.tier_changes.append(replace(gone, alone=HadAlone(T, shared=((0, 1),), parted=((9, 0),))))
    history.freed.append(Freed(at=4.9, tp=T, node=1, start=0, end=4, readable_to=4))
    assert judge(history).clean


@pytest.mark.parametrize(
    ("second", "isr", "is_excused"),
    [(4.0, (2,), True), (5.0, (2,), False), (4.0, (1, 2), False)],
    ids=["by one that was passed over", "before that", "by one of the ISR"],
)
def test_what_one_lets_go_of_that_an_unclean_election_passed_over_is_lost_already(
    second: float, isr: tuple[int, ...], is_excused: bool
) -> None:
    history = clean()
    history.unclean_topics.add("t")
    history.slots = led_by(T, (0.1, 1, 0, (1,)), (second, 2, 1, isr))
    free_what_is_not_in_the_tier(history)
    assert ("17 freed is in the tier" not in judge(history).rules()) is is_excused


@pytest.mark.parametrize(
    ("at", "alone", "is_needed"),
    [
        (6.5, HadAlone(T, parted=((0, 0), (2, 0))), False),
        (7.5, HadAlone(T, parted=((0, 0), (2, 0))), True),
        (6.5, HadAlone(T, shared=((0, 0), (2, 0))), True),
    ],
    ids=["by who had it not", "after it was given back", "by who had it"],
)
def test_what_a_second_unclean_election_gives_back_was_rightly_deleted_by_who_did_not_have_it(
    at: float, alone: HadAlone, is_needed: bool
) -> None:
    """1 led with what 2 had not; 2 leads from 6 on, and from 7 on again 1."""
    history = clean()
    history.unclean_topics.add("t")
    history.slots = led_by(T, (0.1, 1, 0, (1,)), (6.0, 2, 1, (2,)), (7.0, 1, 2, (1,)))
    history.tier_changes.append(replace(change(at, "", "DELETE_STARTED"), alone=alone))
    assert ("17 gone is not needed" in judge(history).rules()) is is_needed


@pytest.mark.parametrize(
    ("invoked", "before", "result", "reigns", "is_needed"),
    [
        (5.0, 4, "unknown", ((0.1, 1, 0, (1, 2)), (6.0, 2, 1, (2,))), False),
        (5.0, 4, "unknown", ((0.1, 1, 0, (1, 2)),), True),
        (5.0, 4, "unknown", ((0.1, 1, 0, (1, 2)), (6.0, 1, 1, (1,))), True),
        (6.1, 4, "unknown", ((0.1, 1, 0, (1, 2)), (6.0, 2, 1, (2,))), True),
        (5.0, 4, "unknown", ((0.1, 1, 0, (1, 2)), (6.9, 2, 1, (2,))), True),
        (5.0, 3, "unknown", ((0.1, 1, 0, (1, 2)), (6.0, 2, 1, (2,))), True),
        (5.0, 4, "fail", ((0.1, 1, 0, (1, 2)), (6.0, 2, 1, (2,))), True),
    ],
    ids=[
        "of who led before",
        "of who leads",
        "of who leads again",
        "of who leads by then",
        "of who leads until later",
        "of a part",
        "and was refused",
    ],
)
def test_what_was_asked_of_a_leader_that_died_with_it_was_rightly_deleted(
    invoked: float,
    before: int,
    result: Result,
    reigns: tuple[tuple[float, int, int, tuple[int, ...]], ...],
    is_needed: bool,
) -> None:
    """The copy's end goes on at 6.5; the final log still has its records, from before the deletion."""
    history = clean()
    history.slots = led_by(T, *reigns)
    history.deletes.append(DeleteRecords(tp=T, before=before, invoked=invoked, done=7.0, result=result))
    gone = change(6.5, "", "DELETE_STARTED")
    history.tier_changes.append(replace(gone, alone=HadAlone(T, shared=((0, 0), (2, 0)))))
    assert ("17 gone is not needed" in judge(history).rules()) is is_needed


@pytest.mark.parametrize(
    ("index_sent", "index_at", "is_excused"),
    [(3.0, 3.0, True), (3.0, 9.0, True), (5.5, 5.5, False)],
    ids=["its index came before", "its index was on its way", "all of it was sent later"],
)
def test_who_was_told_of_a_copy_may_lose_that_before_its_last_object_comes(
    index_sent: float, index_at: float, is_excused: bool
) -> None:
    """The power cut at 5 takes what was told from the only one in sync, who is back at 5.2. The data is sent
    at 6."""
    history = clean()
    *before, back = led_by((METADATA_TOPIC, 0), (0.1, 1, 0, (1, 2)), (4.0, 2, 1, (2,)), (5.2, 2, 2, (2,)))
    back = replace(back, brokers=(BrokerState(id=2, epoch=back.seq, fenced=False),))
    history.slots = (*before, back)
    history.crashes.append(Crash(node=2, life=1, at=5.0, power=True))
    history.tier_changes += [
        replace(change(index_at, "index", "", "late.idx"), copy="late", sent=index_sent),
        replace(change(6.1, "data", "", "late.log"), copy="late", sent=6.0),
    ]
    history.tiers[2] = replace(history.tiers[2], unreferenced=("late.log",))
    assert ("17 nothing unreferenced" not in judge(history).rules()) is is_excused


def test_out_of_range_is_right_where_the_log_does_not_reach() -> None:
    history = clean()
    for offset in (5, 9):
        refused = fetch(6, offset, hw=-1, seek=True, client="late")
        history.fetches.append(replace(refused, result="fail", error=ErrorCode.offset_out_of_range.name))
    assert judge(history).clean
