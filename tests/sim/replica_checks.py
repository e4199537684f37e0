"""Owns the rules about replicas and the metadata log: what no client sees and every client relies on.

Replicas agree below their high watermarks, an ack counts the whole ISR, leaders come from the ISR, and the
metadata log is one chain with one writer at a time. The committed ISRs and leaders are read from the bucket,
not asked of a broker. Does not own how a history came to be.

Invariant: a rule looks only at values; the same history gives the same verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise

from tests.sim.checks import ALL, Case, wrong_epoch_starts
from tests.sim.custody import NO_LEADER
from tests.sim.history import MetaSlot, PartitionState, ReplicaLog

GENESIS = "00" * 32


# 9 ----------------------------------------------------------------------------------------------------------


def replica_marks_are_ordered(case: Case) -> Iterator[str]:
    """9 (replicas) On every replica log start <= HW <= LEO, and no HW that still holds is past the end of a
    member of the ISR, unless all who were bound to keep what it had passed lost it."""
    for sample in case.history.samples:
        state = case.custody.at(sample.tp, sample.at)
        bound = case.custody.whose_watermark_holds(sample.tp, sample.at)
        highest = max((log.high_watermark for log in sample.logs if log.node in bound), default=0)
        for log in sample.logs:
            where = f"{sample.tp} on node {log.node} at {sample.at:.3f}"
            if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
                marks = (log.log_start_offset, log.high_watermark, log.log_end_offset)
                yield f"{where}: log start, HW, LEO = {marks}"
            is_behind = state is not None and log.node in state.isr and log.log_end_offset < highest
            if is_behind and not case.custody.was_lost_before(sample.tp, highest - 1, sample.at):
                yield f"{where}: in the ISR it ends at {log.log_end_offset}, HW is {highest}"


# 10 ---------------------------------------------------------------------------------------------------------


def replicas_agree(case: Case) -> Iterator[str]:
    """10 Two replicas are the same byte for byte below both high watermarks that still hold, but for what all
    who were bound to keep it lost, and in the end entirely."""
    for sample in case.history.samples:
        bound = case.custody.whose_watermark_holds(sample.tp, sample.at)
        for one, other in combinations(sample.logs, 2):
            if not sample.is_final and not {one.node, other.node} <= bound:
                continue
            end = min(one.high_watermark, other.high_watermark)
            if sample.is_final:
                end = max(one.log_end_offset, other.log_end_offset)
                if one.log_end_offset != other.log_end_offset:
                    yield (
                        f"{sample.tp} ends at {one.log_end_offset} on node {one.node},"
                        f" at {other.log_end_offset} on node {other.node}"
                    )
            start = max(one.begins, other.begins)
            first, second = _digests(one, start, end), _digests(other, start, end)
            if first != second:
                at = min(place for place, _ in first.items() ^ second.items())
                if not sample.is_final and case.custody.was_lost_before(sample.tp, at, sample.at):
                    continue
                yield f"{sample.tp} at {sample.at:.3f}: nodes {one.node} and {other.node} differ from {at}"


def _digests(log: ReplicaLog, start: int, end: int) -> dict[int, str]:
    return {
        batch.base_offset: batch.digest
        for batch in log.counted
        if batch.base_offset >= start and batch.next_offset <= end
    }


def replicas_are_whole(case: Case) -> Iterator[str]:
    """10 (each one) Offsets follow each other, epochs never fall, and the cache knows where each began."""
    for sample in case.history.samples:
        for log in sample.logs:
            where = f"{sample.tp} on node {log.node} at {sample.at:.3f}"
            for before, after in pairwise(log.counted):
                if after.base_offset != before.next_offset:
                    yield f"{where}: {after.base_offset} follows {before.next_offset - 1}"
                if after.leader_epoch < before.leader_epoch:
                    yield f"{where}: epoch {after.leader_epoch} at {after.base_offset} after a newer one"
            yield from wrong_epoch_starts(log, where)


# 12, 13 -----------------------------------------------------------------------------------------------------


def acks_count_everyone(case: Case) -> Iterator[str]:
    """13 When acks=all is answered, every member of the committed ISR has the record."""
    for send in case.history.sends:
        if send.result != "ok" or send.acks != ALL or not send.ends:
            continue
        if case.custody.was_overthrown(send.tp, send.node, send.since):
            continue
        states = case.custody.during(send.tp, send.since, send.done)
        members = [
            member for member in (states[0].isr if states else ()) if all(member in s.isr for s in states)
        ]
        last = send.base_offset + len(send.values) - 1
        for member in members:
            if any(crash.node == member and crash.at >= send.invoked for crash in case.history.crashes):
                continue  # it may have had it, from an earlier attempt too
            end = dict(send.ends).get(member, 0)
            if end <= last:
                yield (
                    f"{send.tp} {send.values[0]} acked up to {last} at {send.done:.3f},"
                    f" node {member} of the ISR ended at {end}"
                )


def appends_are_by_the_leader(case: Case) -> Iterator[str]:
    """12 Whoever acknowledged an append of an epoch was that epoch's committed leader."""
    for tp, log in case.history.logs.items():
        epoch_of = {value: batch.leader_epoch for batch in log.counted for value in batch.values}
        for send in case.history.sends:
            epoch = epoch_of.get(send.values[0])
            if send.tp != tp or send.result != "ok" or send.attempts != 1 or epoch is None:
                continue
            leader = case.custody.leader_of(tp, epoch)
            if leader not in (None, send.node):
                yield f"{tp} {send.values[0]} of epoch {epoch} was acked by {send.node}, led by {leader}"


def leaders_come_from_the_isr(case: Case) -> Iterator[str]:
    """13 A leader was in sync: it is in the ISR before and after, unless the loss was asked for."""
    for tp in case.custody.partitions():
        for moment in case.custody.moments(tp):
            state, where = moment.state, f"{tp} slot {moment.seq}"
            if moment.is_unclean and tp[0] not in case.history.unclean_topics:
                yield f"{where}: {state.leader} leads and was not in the ISR"
            if state.leader != NO_LEADER and state.leader not in state.isr:
                yield f"{where}: leader {state.leader} is not in its ISR {state.isr}"
            if not set(state.isr) <= set(state.replicas) or len(set(state.isr)) != len(state.isr):
                yield f"{where}: ISR {state.isr} of replicas {state.replicas}"


def epochs_count_changes(case: Case) -> Iterator[str]:
    """12 (metadata) A new leader has a new epoch, and every change a new partition epoch."""
    for tp in case.custody.partitions():
        for before, after in pairwise(moment.state for moment in case.custody.moments(tp)):
            if after.topic_id != before.topic_id:
                continue  # deleted and created again, perhaps changed in the same slot
            where = f"{tp} partition epoch {after.partition_epoch}"
            if after.leader != before.leader and after.leader_epoch <= before.leader_epoch:
                yield f"{where}: from leader {before.leader} to {after.leader} in epoch {after.leader_epoch}"
            if after.leader_epoch < before.leader_epoch or after.partition_epoch <= before.partition_epoch:
                yield f"{where}: epochs went back"


def the_unclean_leave(case: Case) -> Iterator[str]:
    """13 Whoever lost what it had not synced is in no ISR with another member when it is back."""
    states: dict[tuple[str, int], PartitionState] = {}
    for slot in case.history.slots:
        back = {
            broker.id
            for broker in slot.brokers
            if broker.epoch == slot.seq and _lost_something(case, broker.id, slot)
        }
        states = {tp: state for tp, state in states.items() if tp[0] not in slot.deleted}
        states.update((state.tp, state) for state in slot.partitions)
        made = {state.tp for state in slot.partitions if state.partition_epoch == 0}  # with nothing to lose
        for tp, state in states.items():
            if len(state.isr) > 1 and back & set(state.isr) and tp not in made:
                yield f"{tp} slot {slot.seq}: {sorted(back)} came back after a loss into the ISR {state.isr}"


def _lost_something(case: Case, node: int, slot: MetaSlot) -> bool:
    """Between its last registration and this one."""
    before = max(
        (
            earlier.at
            for earlier in case.history.slots
            if earlier.seq < slot.seq
            and any(broker.id == node and broker.epoch == earlier.seq for broker in earlier.brokers)
        ),
        default=0.0,
    )
    return any(
        crash.node == node and (crash.power or crash.replaced) and before <= crash.at <= slot.at
        for crash in case.history.crashes
    )


def isr_is_never_empty(case: Case) -> Iterator[str]:
    """13 The last member of an ISR stays in it, unless its disk is another one."""
    replaced = {crash.node for crash in case.history.crashes if crash.replaced}
    for tp in case.custody.partitions():
        for before, after in pairwise(case.custody.moments(tp)):
            if before.state.isr and not after.state.isr and not replaced & set(before.state.isr):
                yield f"{tp} slot {after.seq}: the ISR {before.state.isr} was emptied"


# 19 ---------------------------------------------------------------------------------------------------------


def slots_are_one_chain(case: Case) -> Iterator[str]:
    """19 Slots follow each other, in number, in time and by hash."""
    before = None
    for slot in case.history.slots:
        seq, at, previous = (0, 0.0, GENESIS) if before is None else (before.seq, before.at, before.hash)
        if slot.seq != seq + 1:
            yield f"slot {slot.seq} follows slot {seq}"
        elif slot.previous_hash != previous:
            yield f"slot {slot.seq} does not name the hash of slot {seq}"
        if slot.at < at:
            yield f"slot {slot.seq} was put before slot {seq}"
        before = slot
    for key in case.history.collected_early:
        yield f"{key} was deleted before a boundary said so"


def one_writer_per_epoch(case: Case) -> Iterator[str]:
    """19 A controller epoch is claimed once, by its only writer, and is higher than those before."""
    writers: dict[int, set[tuple[int, int]]] = defaultdict(set)
    newest = 0
    for slot in case.history.slots:
        writers[slot.controller_epoch].add((slot.node, slot.life))
        if slot.elects is not None and not slot.is_void:
            if slot.elects <= newest:
                yield f"slot {slot.seq} claims controller epoch {slot.elects} after {newest}"
            newest = max(newest, slot.elects)
        elif slot.controller_epoch > newest:
            yield f"slot {slot.seq} is of controller epoch {slot.controller_epoch}, which nobody claimed"
    for epoch, who in writers.items():
        if len(who) > 1:
            yield f"controller epoch {epoch} has the writers {sorted(who)}"


def state_is_the_fold(case: Case) -> Iterator[str]:
    """19 What a broker takes the cluster to be is what the slots say."""
    states = {slot.seq: slot.state for slot in case.history.slots}
    for image in case.history.images:
        if states.get(image.seq) != image.state:
            yield f"node {image.node} life {image.life} has another image of slot {image.seq}"


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "9 replica watermarks": replica_marks_are_ordered,
    "10 replicas agree": replicas_agree,
    "10 replicas are whole": replicas_are_whole,
    "12 appends by the leader": appends_are_by_the_leader,
    "12 epochs count changes": epochs_count_changes,
    "13 acks count everyone": acks_count_everyone,
    "13 leaders in sync": leaders_come_from_the_isr,
    "13 the unclean leave": the_unclean_leave,
    "13 ISR never empty": isr_is_never_empty,
    "19 one chain": slots_are_one_chain,
    "19 one writer": one_writer_per_epoch,
    "19 state is the fold": state_is_the_fold,
}
