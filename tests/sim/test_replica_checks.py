"""The rules about replicas and the metadata log are checked: a clean cluster's history passes, and every way
to spoil it is caught by the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.checks import ALL
from tests.sim.history import (
    BrokerState,
    Crash,
    DeleteRecords,
    History,
    ImageSeen,
    MetaSlot,
    PartitionState,
    ReplicaLog,
    Sample,
    Send,
)
from tests.sim.replica_checks import RULES
from tests.sim.test_checks import T, batch, fetch, final, send
from tests.sim.verdict import judge

ISR = (1, 2, 3)
B0, B1, B2, B3 = (
    batch(0, 10, 11),
    batch(2, 12, 13),
    batch(4, 14, 15, epoch=1),
    batch(6, 16, epoch=2),
)


def state(leader: int, epoch: int, partition_epoch: int, isr: tuple[int, ...]) -> PartitionState:
    return PartitionState(
        tp=T, leader=leader, leader_epoch=epoch, partition_epoch=partition_epoch, replicas=ISR, isr=isr
    )


def broker(number: int, epoch: int, *, fenced: bool = False) -> BrokerState:
    return BrokerState(id=number, epoch=epoch, fenced=fenced)


def chain(*slots: MetaSlot) -> tuple[MetaSlot, ...]:
    """Numbers, hashes and states that belong together."""
    made: list[MetaSlot] = []
    for seq, slot in enumerate(slots, 1):
        before = made[-1].hash if made else "00" * 32
        made.append(replace(slot, seq=seq, hash=f"h{seq}", previous_hash=before, state=f"s{seq}"))
    return tuple(made)


def slot(at: float, node: int, epoch: int, **what: object) -> MetaSlot:
    base = MetaSlot(seq=0, at=at, node=node, life=1, controller_epoch=epoch, hash="", previous_hash="")
    return replace(base, **what)  # type: ignore[arg-type]


def replica(node: int, *batches: object, hw: int = 7, end: int = 7, start: int = 0) -> ReplicaLog:
    whole = final(*batches, end=end)  # type: ignore[arg-type]
    return ReplicaLog(
        node=node,
        log_start_offset=start,
        high_watermark=hw,
        log_end_offset=end,
        batches=whole.batches,
        epochs=whole.epochs,
    )


def acked(values: tuple[int, ...], at: float, offset: int, node: int, **changes: object) -> Send:
    end = offset + len(values)
    base = send(values, at, offset, node=node, connection=node, ends=tuple((member, end) for member in ISR))
    return replace(base, **changes)  # type: ignore[arg-type]


def clean() -> History:
    """Three brokers. 1 leads and loses power at 5; 2 takes over with 3; 1 comes back; at 8 the controller 2
    is paused, 3 becomes controller and leader of epoch 2."""
    history = History()
    history.sends = [
        acked((10, 11), 1, 0, 1),
        acked((12, 13), 2, 2, 1, acks=1),
        acked((99,), 4, 4, 1, acks=1, client="q"),  # on 1 alone, and its leadership ended
        acked((14, 15), 7, 4, 2, ends=((2, 6), (3, 6))),
        acked((16,), 10, 6, 3),
    ]
    history.fetches = [
        fetch(1.6, 0, B0, hw=2, seek=True),
        fetch(3, 2, B1, hw=4),
        fetch(8, 4, B2, hw=6, epoch=1, node=2),
        fetch(8.1, 0, B0, B1, hw=4, epoch=1, node=3, client="d", seek=True),  # a follower, behind
    ]
    registered = tuple(broker(number, 1) for number in ISR)
    history.slots = chain(
        slot(0.1, 1, 1, elects=1, brokers=registered),
        slot(0.2, 1, 1, partitions=(state(1, 0, 0, ISR),)),
        slot(6, 2, 2, elects=2),
        slot(6.1, 2, 2, brokers=(broker(1, 1, fenced=True),), partitions=(state(2, 1, 1, (2, 3)),)),
        slot(7.9, 2, 2, brokers=(broker(1, 5),)),
        slot(8.2, 2, 2, partitions=(state(2, 1, 2, ISR),)),
        slot(9, 3, 3, elects=3),
        slot(9.1, 3, 3, partitions=(state(3, 2, 3, (1, 3)),)),
        slot(11, 3, 3, partitions=(state(3, 2, 4, ISR),)),
    )
    history.crashes = [
        Crash(node=1, life=1, at=5, power=True, synced_end={T: 0}, kept_end={T: 3}),
    ]
    history.samples = [
        Sample(
            at=8.15,
            tp=T,
            logs=(
                replica(1, B0, B1, hw=3, end=4),
                replica(2, B0, B1, B2, hw=6, end=6),
                replica(3, B0, B1, B2, hw=4, end=6),
            ),
        ),
        Sample(at=20, tp=T, logs=tuple(replica(number, B0, B1, B2, B3) for number in ISR), is_final=True),
    ]
    history.logs = {T: replace(final(B0, B1, B2, B3), node=3)}
    history.images = [ImageSeen(node=number, life=1, seq=9, state="s9") for number in ISR]
    return history


# --- the ways to spoil it -----------------------------------------------------------------------------------

Mutation = Callable[[History], None]


def change_slot(history: History, seq: int, **what: object) -> None:
    slots = list(history.slots)
    slots[seq - 1] = replace(slots[seq - 1], **what)  # type: ignore[arg-type]
    history.slots = tuple(slots)


def change_replica(history: History, sample: int, node: int, changed: ReplicaLog) -> None:
    logs = [changed if log.node == node else log for log in history.samples[sample].logs]
    history.samples[sample] = replace(history.samples[sample], logs=tuple(logs))


def end_before(history: History, *batches: object) -> None:
    """The final log is this much, on every replica."""
    history.logs[T] = replace(final(*batches), node=3)  # type: ignore[arg-type]
    end = history.logs[T].log_end_offset
    logs = tuple(replica(number, *batches, hw=end, end=end) for number in ISR)
    history.samples[1] = replace(history.samples[1], logs=logs)


def lose_what_only_one_member_lost(history: History) -> None:
    history.crashes.append(Crash(node=3, life=1, at=12, power=True, kept_end={T: 6}))
    end_before(history, B0, B1, B2)


def lose_what_members_lost_one_after_the_other(history: History) -> None:
    """1 lost it, came back into the ISR with a copy of it, then 2 and 3 lose it: 1 has it."""
    history.crashes += [
        Crash(node=2, life=1, at=12, power=True, kept_end={T: 0}),
        Crash(node=3, life=1, at=12, power=True, kept_end={T: 0}),
    ]
    history.fetches.clear()
    end_before(
        history, B0, replace(B2, base_offset=2, next_offset=4), replace(B3, base_offset=4, next_offset=5)
    )
    history.sends[3] = replace(history.sends[3], result="unknown", base_offset=-1)
    history.sends[4] = replace(history.sends[4], result="unknown", base_offset=-1)
    history.sends[1] = replace(history.sends[1], acks=ALL)


def lose_an_ack_of_a_leader_that_stayed(history: History) -> None:
    history.sends.append(acked((17,), 12, 7, 3, acks=1))


def read_what_is_lost(history: History) -> None:
    history.sends.append(acked((17,), 12, 7, 3, acks=1, result="unknown", base_offset=-1))
    seventeen = batch(7, 17, epoch=2)
    history.fetches.append(fetch(13, 6, B3, seventeen, hw=8, epoch=2, node=3, client="e", seek=True))


def ack_without_a_member(history: History) -> None:
    history.sends[0] = replace(history.sends[0], ends=((1, 2), (2, 2), (3, 1)))


def ack_without_a_member_that_has_no_log(history: History) -> None:
    history.sends[0] = replace(history.sends[0], ends=((1, 2), (2, 2)))


def ack_in_an_epoch_of_another(history: History) -> None:
    history.sends[4] = replace(history.sends[4], node=2)


def append_by_two_nodes_in_one_epoch(history: History) -> None:
    history.sends[1] = replace(history.sends[1], node=2)


def lower_the_hw_of_a_follower(history: History) -> None:
    history.fetches.append(fetch(9, 0, B0, hw=3, epoch=1, node=3, client="d", seek=True))


def put_hw_of_a_follower_above_its_end(history: History) -> None:
    change_replica(history, 0, 1, replica(1, B0, B1, hw=5, end=4))


def leave_a_member_behind_the_watermark(history: History) -> None:
    change_replica(history, 1, 2, replica(2, B0, B1, B2, hw=6, end=6))


def differ_below_both_watermarks(history: History) -> None:
    change_replica(history, 0, 3, replica(3, B0, replace(B1, digest="other"), B2, hw=4, end=6))


def differ_in_the_end(history: History) -> None:
    change_replica(history, 1, 2, replica(2, B0, B1, B2, replace(B3, digest="other")))


def lose_the_middle_of_a_replica(history: History) -> None:
    change_replica(history, 0, 2, replica(2, B0, B2, hw=2, end=6))


def let_an_epoch_fall_on_a_replica(history: History) -> None:
    fallen = replace(B2, leader_epoch=0), replace(B1, leader_epoch=1)
    odd = replica(2, B0, fallen[1], fallen[0], hw=2, end=6)
    change_replica(history, 0, 2, odd)


def forget_an_epoch_on_a_replica(history: History) -> None:
    broken = replace(history.samples[0].logs[1], epochs=((0, 0),))
    change_replica(history, 0, 2, broken)


def elect_from_outside_the_isr(history: History) -> None:
    change_slot(history, 4, partitions=(state(3, 1, 1, (3,)),))
    change_slot(history, 6, partitions=(state(3, 1, 2, ISR),))
    slots = list(history.slots)
    slots.insert(3, slot(6.05, 2, 2, partitions=(state(1, 0, 1, (1, 2)),)))
    history.slots = chain(*slots)
    change_slot(history, 5, partitions=(state(3, 1, 2, (3,)),))
    change_slot(history, 7, partitions=(state(3, 1, 3, ISR),))
    change_slot(history, 9, partitions=(state(3, 2, 4, (1, 3)),))
    change_slot(history, 10, partitions=(state(3, 2, 5, ISR),))
    history.images.clear()
    history.sends[3] = replace(history.sends[3], node=3)
    change_slot(history, 6, brokers=(broker(1, 6),))


def lead_without_being_in_the_isr(history: History) -> None:
    change_slot(history, 8, partitions=(state(3, 2, 3, (1,)),))


def put_a_stranger_into_the_isr(history: History) -> None:
    change_slot(history, 9, partitions=(state(3, 2, 4, (1, 2, 3, 4)),))


def change_the_leader_in_its_epoch(history: History) -> None:
    change_slot(history, 8, partitions=(state(3, 1, 3, (1, 3)),))
    history.sends[3] = replace(history.sends[3], node=3)
    history.sends.pop()
    end_before(history, B0, B1, B2)


def repeat_a_partition_epoch(history: History) -> None:
    change_slot(history, 9, partitions=(state(3, 2, 3, ISR),))


def keep_the_one_who_lost_in_the_isr(history: History) -> None:
    change_slot(history, 4, brokers=(), partitions=(state(2, 1, 1, ISR),))
    history.sends[3] = replace(history.sends[3], ends=((1, 6), (2, 6), (3, 6)))
    history.samples.pop(0)


def empty_an_isr(history: History) -> None:
    change_slot(history, 9, partitions=(state(-1, 3, 4, ()),))


def lose_a_slot(history: History) -> None:
    history.slots = (*history.slots[:4], *history.slots[5:])


def break_the_chain(history: History) -> None:
    change_slot(history, 5, previous_hash="other")


def put_a_slot_too_early(history: History) -> None:
    change_slot(history, 7, at=8.0)


def collect_before_the_boundary(history: History) -> None:
    history.collected_early = ("meta/4",)


def write_as_the_controller_of_another(history: History) -> None:
    change_slot(history, 5, node=1)


def claim_an_epoch_twice(history: History) -> None:
    change_slot(history, 7, elects=2, controller_epoch=2, node=2)
    change_slot(history, 8, controller_epoch=2, node=2)
    change_slot(history, 9, controller_epoch=2, node=2)


def write_in_an_epoch_nobody_claimed(history: History) -> None:
    change_slot(history, 3, elects=None)
    change_slot(history, 7, elects=None)


def believe_another_state(history: History) -> None:
    history.images.append(ImageSeen(node=2, life=1, seq=8, state="s9"))


MUTATIONS: dict[Mutation, set[str]] = {
    lose_what_only_one_member_lost: {"1 acked is kept"},
    lose_what_members_lost_one_after_the_other: {"1 acked is kept", "3 one value per offset"},
    lose_an_ack_of_a_leader_that_stayed: {"1 acked is kept"},
    read_what_is_lost: {"8 read stays read"},
    ack_without_a_member: {"13 acks count everyone"},
    ack_without_a_member_that_has_no_log: {"13 acks count everyone"},
    ack_in_an_epoch_of_another: {"12 appends by the leader"},
    append_by_two_nodes_in_one_epoch: {"12 appends by the leader", "12 epochs"},
    lower_the_hw_of_a_follower: {"9 watermarks"},
    put_hw_of_a_follower_above_its_end: {"9 replica watermarks"},
    leave_a_member_behind_the_watermark: {"9 replica watermarks", "10 replicas agree"},
    differ_below_both_watermarks: {"10 replicas agree"},
    differ_in_the_end: {"10 replicas agree"},
    lose_the_middle_of_a_replica: {"10 replicas are whole"},
    let_an_epoch_fall_on_a_replica: {"10 replicas are whole"},
    forget_an_epoch_on_a_replica: {"10 replicas are whole"},
    elect_from_outside_the_isr: {"13 leaders in sync"},
    lead_without_being_in_the_isr: {"13 leaders in sync"},
    put_a_stranger_into_the_isr: {"13 leaders in sync"},
    change_the_leader_in_its_epoch: {"12 epochs count changes"},
    repeat_a_partition_epoch: {"12 epochs count changes"},
    keep_the_one_who_lost_in_the_isr: {"13 the unclean leave"},
    empty_an_isr: {"13 ISR never empty"},
    lose_a_slot: {"19 one chain"},
    break_the_chain: {"19 one chain"},
    put_a_slot_too_early: {"19 one chain"},
    collect_before_the_boundary: {"19 one chain"},
    write_as_the_controller_of_another: {"19 one writer"},
    claim_an_epoch_twice: {"19 one writer"},
    write_in_an_epoch_nobody_claimed: {"19 one writer"},
    believe_another_state: {"19 state is the fold"},
}


def test_a_clean_history_passes() -> None:
    verdict = judge(clean())
    assert not verdict.violations
    assert (verdict.lost_by_all, verdict.lost_with_leader) == (0, 1)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_each_fault_is_caught_by_the_rule_that_names_it(mutate: Mutation) -> None:
    history = clean()
    mutate(history)
    verdict = judge(history)
    assert verdict.rules() == MUTATIONS[mutate], "\n".join(map(str, verdict.violations))


def test_every_rule_has_a_mutation_that_only_it_catches() -> None:
    alone = {next(iter(rules)) for rules in MUTATIONS.values() if len(rules) == 1}
    assert set(RULES) <= alone


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_topic_made_anew_counts_its_epochs_anew(is_made_anew: bool) -> None:
    """It may have been made and changed in one slot: its first state is then a later one."""
    history = clean()
    before = replace(state(1, 2, 3, ISR), tp=("u", 0), topic_id="first")
    after = replace(state(3, 0, 1, ISR), tp=("u", 0), topic_id="second" if is_made_anew else "first")
    added = [slot(11.5 + number, 3, 3, partitions=(each,)) for number, each in enumerate((before, after))]
    history.slots = chain(*history.slots, *added)
    assert judge(history).rules() == (set() if is_made_anew else {"12 epochs count changes"})


# --- what may be lost ---------------------------------------------------------------------------------------


def test_what_every_member_lost_may_be_gone_and_is_counted() -> None:
    history = clean()
    history.crashes += [Crash(node=number, life=2, at=12, power=True, kept_end={T: 6}) for number in ISR]
    end_before(history, B0, B1, B2)
    verdict = judge(history)
    assert not verdict.violations
    assert verdict.lost_by_all == 1


def test_a_replaced_disk_counts_as_a_loss() -> None:
    history = clean()
    history.crashes += [Crash(node=number, life=2, at=12, power=True, kept_end={T: 6}) for number in (1, 2)]
    history.crashes.append(Crash(node=3, life=2, at=12, power=True, replaced=True))
    end_before(history, B0, B1, B2)
    assert not judge(history).violations


def after_an_unclean_election() -> History:
    """3 was alone in the ISR with what 2 had not: 2 leads from 12 on."""
    history = clean()
    history.unclean_topics.add("t")
    alone = slot(11.5, 3, 3, partitions=(state(3, 2, 5, (3,)),))
    lost = slot(12, 3, 3, partitions=(state(2, 3, 6, (2,)),))
    history.slots = chain(*history.slots, alone, lost)
    end_before(history, B0, B1, B2)
    return history


def read_before_and_after(history: History, node: int) -> None:
    """`node` answers in two of its lives within epoch 1, which 2 leads, and has a lower HW in the latter."""
    history.fetches += [
        fetch(7.5, 0, B0, hw=6, epoch=1, node=node, life=2, client="e", seek=True),
        fetch(8.6, 0, B0, hw=4, epoch=1, node=node, life=3, client="f", seek=True),
    ]


def test_the_watermark_of_a_follower_that_crashed_begins_at_what_it_had_noted() -> None:
    history = clean()
    read_before_and_after(history, 1)
    assert judge(history).rules() == {"9 watermarks"}
    history.crashes.append(Crash(node=1, life=2, at=8.3, power=False, synced_end={}, kept_end={T: 6}))
    assert not judge(history).violations


def test_the_watermark_of_a_leader_stays_whatever_happens_to_it() -> None:
    history = clean()
    read_before_and_after(history, 2)
    history.crashes.append(Crash(node=2, life=2, at=8.3, power=False, synced_end={}, kept_end={T: 6}))
    assert judge(history).rules() == {"9 watermarks"}


def test_an_unclean_election_that_was_allowed_excuses_what_it_took() -> None:
    verdict = judge(after_an_unclean_election())
    assert not verdict.violations
    assert verdict.lost_by_all == 1


@pytest.mark.parametrize(("at", "node", "is_excused"), [(12.5, 3, True), (12.5, 2, False), (11.7, 3, True)])
def test_a_leader_that_has_not_heard_of_an_unclean_election_may_acknowledge_in_vain(
    at: float, node: int, is_excused: bool
) -> None:
    """3 led until 12; what was asked of it before that is lost by the election as well."""
    history = after_an_unclean_election()
    history.sends.append(acked((99,), at, 7, node))
    assert (not judge(history).violations) == is_excused


OTHER_B3 = batch(6, 17, epoch=3)


@pytest.mark.parametrize(("epoch", "node", "is_excused"), [(2, 3, True), (3, 3, False), (3, 2, False)])
def test_a_leader_that_has_not_heard_of_an_unclean_election_may_be_read_in_vain(
    epoch: int, node: int, is_excused: bool
) -> None:
    """3 led until 12; who knows of the epoch after it gives what the election left."""
    history = after_an_unclean_election()
    end_before(history, B0, B1, B2, OTHER_B3)
    history.sends += [acked((17,), 12.1, 6, 2), send((18,), 11.7, node=3, client="q")]
    eighteen, other_bytes = batch(6, 18, epoch=2), replace(B2, digest="other")
    history.fetches += [
        fetch(13, 6, eighteen, hw=7, epoch=epoch, node=node, client="late", seek=True),
        fetch(13, 4, other_bytes, hw=7, epoch=epoch, node=node, client="later", seek=True),
    ]
    rules = judge(history).rules()
    assert rules == (set() if is_excused else {"3 one value per offset", "11 bytes"})


def test_who_has_not_heard_of_an_unclean_election_keeps_its_watermark() -> None:
    history = after_an_unclean_election()
    behind = replica(2, B0, B1, B2, hw=6, end=6)
    ahead = replica(3, B0, B1, B2, B3)
    history.samples.append(Sample(at=12.1, tp=T, logs=(behind, ahead)))
    history.samples.append(Sample(at=12.2, tp=T, logs=(replica(2, B0, B1, B2, OTHER_B3), ahead)))
    assert not judge(history).violations


def test_who_was_in_the_isr_after_an_unclean_election_agrees_with_its_leader() -> None:
    history = after_an_unclean_election()
    back = slot(12.5, 3, 3, partitions=(state(2, 3, 7, (2, 3)),))
    gone = slot(12.6, 3, 3, partitions=(state(2, 3, 8, (2,)),))
    history.slots = chain(*history.slots, back, gone)
    ahead = replica(3, B0, B1, B2, B3)
    history.samples.append(Sample(at=12.7, tp=T, logs=(replica(2, B0, B1, B2, hw=6, end=6), ahead)))
    history.samples.append(Sample(at=12.8, tp=T, logs=(replica(2, B0, B1, B2, OTHER_B3), ahead)))
    assert judge(history).rules() == {"9 replica watermarks", "10 replicas agree"}


def test_before_an_unclean_election_a_watermark_holds_on_every_replica() -> None:
    history = after_an_unclean_election()
    logs = replica(3, B0, B1, B2, hw=6, end=6), replica(2, B0, B1, B2, OTHER_B3)
    history.samples.append(Sample(at=11.9, tp=T, logs=logs))
    assert judge(history).rules() == {"9 replica watermarks"}


def test_what_the_last_member_lost_while_another_had_it_is_counted_apart() -> None:
    history = clean()
    alone = slot(11.5, 3, 3, partitions=(state(3, 2, 5, (3,)),))
    back = slot(12.5, 3, 3, brokers=(broker(3, 11),), partitions=(state(3, 3, 6, (3,)),))
    history.slots = chain(*history.slots, alone, back)
    history.crashes.append(Crash(node=3, life=1, at=12, power=True, kept_end={T: 6}))
    end_before(history, B0, B1, B2)
    verdict = judge(history)
    assert not verdict.violations
    assert (verdict.lost_by_all, verdict.lost_by_last) == (0, 1)


@pytest.mark.parametrize(("registered_again", "lost"), [(False, 1), (True, None)])
def test_who_joins_by_what_it_had_fetched_before_its_crash_has_nothing(
    registered_again: bool, lost: int | None
) -> None:
    history = clean()
    history.crashes.append(Crash(node=1, life=2, at=11.6, power=True, kept_end={T: 0}))
    back = (broker(1, 11),) if registered_again else ()
    history.slots = chain(
        *history.slots,
        slot(11.5, 3, 3, partitions=(state(3, 2, 5, (3,)),)),
        slot(11.7, 3, 3, brokers=back),
        slot(11.8, 3, 3, partitions=(state(3, 2, 6, (1, 3)),)),
        slot(12, 3, 3, partitions=(state(1, 3, 7, (1,)),)),
    )
    end_before(history, B0, B1, B2)
    verdict = judge(history)
    assert verdict.clean == (lost is not None)
    assert lost is None or verdict.lost_by_last == lost


def test_what_was_read_after_the_crash_of_a_member_that_was_not_back_may_go_with_it() -> None:
    history = clean()
    history.crashes.append(Crash(node=3, life=1, at=11.2, power=True, kept_end={T: 6}))
    history.fetches.append(fetch(11.4, 6, B3, hw=7, epoch=2, node=1, client="e", seek=True))
    alone = slot(12, 1, 4, elects=4, partitions=(state(3, 3, 5, (3,)),))
    history.slots = chain(*history.slots, alone)
    end_before(history, B0, B1, B2)
    assert not judge(history).violations


@pytest.mark.parametrize("invoked", [9.4, 9.6])
def test_a_member_that_died_after_an_earlier_attempt_may_have_had_what_the_next_one_is_told(
    invoked: float,
) -> None:
    history = clean()
    history.sends[-1] = replace(
        history.sends[-1], invoked=invoked, asked=9.9, attempts=2, ends=((1, 6), (3, 7))
    )
    history.crashes.append(Crash(node=1, life=2, at=9.5, power=False, kept_end={T: 6}))
    assert judge(history).rules() == ({"13 acks count everyone"} if invoked > 9.5 else set())


def test_a_watermark_outlives_what_the_last_member_lost_until_its_replica_hears_of_it() -> None:
    history = clean()
    history.crashes.append(Crash(node=3, life=1, at=12, power=True, kept_end={T: 6}))
    ahead = replica(1, B0, B1, B2, B3)
    behind = replica(3, B0, B1, B2, hw=6, end=6)
    other = replace(replica(3, B0, B1, B2, OTHER_B3), is_leader=True)
    history.samples.append(Sample(at=12.6, tp=T, logs=(ahead, behind)))
    history.samples.append(Sample(at=12.7, tp=T, logs=(ahead, other)))
    alone = slot(11.5, 3, 3, partitions=(state(3, 2, 5, (3,)),))
    back = slot(12.5, 3, 3, brokers=(broker(3, 11),), partitions=(state(3, 3, 6, (3,)),))
    history.slots = chain(*history.slots, alone, back)
    end_before(history, B0, B1, B2)
    assert not judge(history).violations
    history.crashes.pop()
    rules = judge(history).rules()
    assert {"9 replica watermarks", "10 replicas agree", "12 epochs of the tier"} <= rules


@pytest.mark.parametrize("node", [1, 3])
def test_a_follower_may_give_what_the_last_member_lost_until_it_hears_of_it(node: int) -> None:
    """Its leader, which lost it, may not."""
    history = clean()
    history.crashes.append(Crash(node=3, life=1, at=12, power=True, kept_end={T: 6}))
    alone = slot(11.5, 3, 3, partitions=(state(3, 2, 5, (3,)),))
    back = slot(12.5, 3, 3, brokers=(broker(3, 11),), partitions=(state(3, 3, 6, (3,)),))
    history.slots = chain(*history.slots, alone, back)
    end_before(history, B0, B1, B2)
    history.fetches.append(fetch(12.6, 6, B3, hw=7, epoch=3, node=node, life=2, client="late", seek=True))
    rules = judge(history).rules()
    assert ("8 read stays read" in rules) == (node == 3), rules


# --- what lies below a log start ----------------------------------------------------------------------------

NOBODYS = batch(0, 77, epoch=3)
"""Of a later epoch, and what comes next does not follow it."""


def start_at_two(history: History, *, of_one: tuple[object, ...]) -> None:
    """In the end all logs start at 2; replica 1 still holds something of its own below that."""
    history.deletes.append(DeleteRecords(tp=T, before=2, invoked=15, done=15.1, result="ok", low_watermark=2))
    history.logs[T] = replace(final(B1, B2, B3, log_start=2), node=3)
    logs = [replica(number, B1, B2, B3, start=2) for number in ISR]
    odd = replace(replica(1, B1, B2, B3, start=2), batches=(NOBODYS, *of_one))
    history.samples[1] = replace(history.samples[1], logs=(odd, *logs[1:]))


def test_what_a_replica_holds_below_its_log_start_is_not_compared() -> None:
    history = clean()
    start_at_two(history, of_one=(B1, B2, B3))
    assert not judge(history).violations


@pytest.mark.parametrize(
    ("held", "rules"),
    [
        ((B1, B2, replace(B3, digest="other")), {"10 replicas agree"}),
        ((B1, B3), {"10 replicas agree", "10 replicas are whole"}),
        ((B2, B3), {"10 replicas agree"}),
    ],
    ids=["other bytes", "the middle is lost", "the first is lost"],
)
def test_beside_it_every_difference_above_the_log_start_is_caught(
    held: tuple[object, ...], rules: set[str]
) -> None:
    history = clean()
    start_at_two(history, of_one=held)
    assert judge(history).rules() == rules
