"""Owns the rules about the cold tier: what a log may let go of, and what the bucket owes whom.

What is in the tier is read from the brokers' committed records and from the bucket, not asked of a broker.
The rules of the logs themselves (nothing acked is lost, nothing is missing in the middle, replicas agree)
look at the tier and the files as one log; they are in checks.py and replica_checks.py.

Invariant: a rule looks only at values; the same history gives the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from protocol.errors import ErrorCode
from tests.sim.checks import LATEST, Case
from tests.sim.custody import NO_LEADER
from tests.sim.history import Freed, ReplicaLog, TierCopy, TopicPartition

FINISHED = "COPY_FINISHED"
METADATA_TOPIC = "__remote_log_metadata"


def is_metadata_forgotten(case: Case, since: float) -> bool:
    """Whether something that was committed about the tier by then may be known to nobody any more."""
    partitions = (tp for tp in case.custody.partitions() if tp[0] == METADATA_TOPIC)
    return any(case.is_forgotten(tp, LATEST, since, since) for tp in partitions)


def tier_bounds_are_ordered(case: Case) -> Iterator[str]:
    """9 (tier) log start <= local start <= LSO on every replica; none takes for tiered what it has not."""
    for sample in case.history.samples:
        for log in sample.logs:
            local = log.local_log_start_offset
            if local is None:
                continue
            where = f"{sample.tp} on node {log.node} at {sample.at:.3f}"
            stable = log.high_watermark if log.last_stable_offset is None else log.last_stable_offset
            if not log.log_start_offset <= local <= max(stable, log.log_start_offset):
                yield f"{where}: log start, local start, LSO = {(log.log_start_offset, local, stable)}"
            if log.tiered_end > log.log_end_offset:
                yield f"{where}: tiered up to {log.tiered_end}, the log ends at {log.log_end_offset}"


def leaders_have_all(case: Case) -> Iterator[str]:
    """17 Whoever leads has everything from its log start on, in the tier or in its files."""
    for sample in case.history.samples:
        for log in sample.logs:
            local = log.local_log_start_offset
            if local is not None and log.readable_to is not None and log.readable_to < local:
                where = f"{sample.tp} on node {log.node} at {sample.at:.3f}"
                yield f"{where}: {log.readable_to} to {local - 1} are neither in the tier nor in the files"


def epochs_are_those_of_the_records(case: Case) -> Iterator[str]:
    """12 (tier) What a replica knows of leader epochs is what its leader's records say, in the tier and in
    the files, back to the log start: also what it was given with a place in the tier to begin at. Who holds
    what all who were bound to it lost knows it by its old epoch until it hears from the leader."""
    for sample in case.history.samples:
        leader = next((log for log in sample.logs if log.is_leader), None)
        if leader is None or not leader.counted or _has_hole(leader):
            continue
        told = recomputed_epochs(leader)
        bound = case.custody.whose_watermark_holds(sample.tp, sample.at)
        for log in sample.logs:
            if not log.has_all_epochs or (not sample.is_final and not {log.node, leader.node} <= bound):
                continue
            start = max(log.log_start_offset, leader.log_start_offset)
            end = min(log.high_watermark, leader.high_watermark)
            known, owed = epochs_within(log.epochs, start, end), epochs_within(told, start, end)
            if known == owed:
                continue
            parted = min(first for _, first in {*known} ^ {*owed})
            if not sample.is_final and case.custody.was_lost_before(sample.tp, parted, sample.at):
                continue
            where = f"{sample.tp} on node {log.node} at {sample.at:.3f}"
            yield f"{where}: knows the epochs {known} of {start} to {end}, the records have {owed}"


def _has_hole(log: ReplicaLog) -> bool:
    """Whether what is in the tier cannot be read up to where the files begin, or was not looked at."""
    local = log.local_log_start_offset
    if local is None or local <= log.log_start_offset:
        return False
    return log.readable_to is None or log.readable_to < local


def recomputed_epochs(log: ReplicaLog) -> list[tuple[int, int]]:
    starts = dict(log.tier_epochs)
    for batch in log.counted:
        starts.setdefault(batch.leader_epoch, batch.base_offset)
    return list(starts.items())


def epochs_within(epochs: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Those of [start, end), each with its first offset there."""
    found: list[tuple[int, int]] = []
    for epoch, first in epochs:
        if first <= start:
            found = [(epoch, start)]
        elif first < end:
            found.append((epoch, first))
    return found if start < end else []


def what_leaves_a_disk_is_in_the_tier(case: Case) -> Iterator[str]:
    """17 Local retention takes only what can be read from the tier at that moment; unless an unclean election
    had given the lead to one without these records, whose copies replace those that a node knows of which has
    not heard of that yet."""
    for freed in case.history.freed:
        if freed.readable_to < freed.end and not (
            is_metadata_forgotten(case, freed.at) or _was_passed_over(case, freed)
        ):
            yield (
                f"{freed.tp} on node {freed.node} let go of {freed.start} to {freed.end - 1}"
                f" at {freed.at:.3f}, the tier has it up to {freed.readable_to}"
            )


def _was_passed_over(case: Case, freed: Freed) -> bool:
    state = case.custody.at(freed.tp, freed.at)
    is_unclean = any(each.is_unclean and each.at <= freed.at for each in case.custody.moments(freed.tp))
    return is_unclean and state is not None and freed.node not in state.isr


def what_leaves_the_tier_is_not_needed(case: Case) -> Iterator[str]:
    """17 A finished copy goes when its records were deleted, when another finished one has them, or when the
    log parted from it: none of them is in the final log, unless the copy went by a log that had parted from
    it and an unclean election gave the lead back to one that had not, or by a deletion that died with its
    leader before the next one had heard of it."""
    for change in case.history.tier_changes:
        tp, shared, parted = change.alone
        log = None if tp is None else case.history.logs.get(tp)
        if tp is None or log is None or is_metadata_forgotten(case, change.at):
            continue
        is_given_back = any(each.is_unclean and each.at > change.at for each in case.custody.moments(tp))
        asked = _asked_of_earlier_leaders(case, tp, change.at)
        kept = {(each.base_offset, each.leader_epoch) for each in log.counted if each.next_offset > asked}
        lost = sorted(kept.intersection(shared if is_given_back else (*shared, *parted)))
        if lost:
            yield f"{change.key} goes at {change.at:.3f}, no other copy of {tp} has {lost[:3]}"


def _asked_of_earlier_leaders(case: Case, tp: TopicPartition, when: float) -> int:
    """Where clients asked a log to begin while another node led it than at that time. What that one said of
    copies below stands, even if it was the only one to begin there."""
    leader, since = NO_LEADER, 0.0
    for moment in case.custody.moments(tp):
        if moment.at <= when and moment.state.leader not in (leader, NO_LEADER):
            leader, since = moment.state.leader, moment.at
    asked = (
        delete.before
        for delete in case.history.deletes
        if delete.tp == tp and delete.result != "fail" and delete.invoked < since
    )
    return max(asked, default=0)


def copies_have_their_objects(case: Case) -> Iterator[str]:
    """17 A copy that is said to be whole has both its objects, at any moment, with the bytes it says."""
    for change in case.history.tier_changes:
        if change.state == FINISHED:
            yield f"{change.key} {'comes' if change.digest else 'goes'} at {change.at:.3f}, its copy is whole"
    for seen in case.history.tiers:
        for copy in seen.copies:
            is_whole = None not in copy.objects and copy.objects[0] == copy.size
            if copy.state == FINISHED and not is_whole and not _is_end_forgotten(case, copy):
                yield f"copy {copy.id} of {copy.base} to {copy.end} of {copy.size} bytes has {copy.objects}"


def _is_end_forgotten(case: Case, copy: TierCopy) -> bool:
    """Whether its objects were deleted, and that this was to be may be known to nobody any more."""
    gone = [change.at for change in case.history.tier_changes if change.copy == copy.id and not change.digest]
    return any(is_metadata_forgotten(case, at) for at in gone)


def objects_stay_as_they_are(case: Case) -> Iterator[str]:
    """11 (tier) Under one key there is ever one object."""
    first: dict[str, str] = {}
    for change in case.history.tier_changes:
        if change.digest and first.setdefault(change.key, change.digest) != change.digest:
            yield f"{change.key} was put anew at {change.at:.3f} with other bytes"


def states_go_forward(case: Case) -> Iterator[str]:
    """17 What is said of a copy follows what was said before."""
    for seen in case.history.tiers:
        for what in seen.backward:
            yield f"{what}, seen at {seen.at:.3f}"


def folds_are_equal(case: Case) -> Iterator[str]:
    """17 In the end every broker knows the copies that the metadata tells of, and no others."""
    for seen in case.history.tiers:
        told = {fold.index: set(fold.copies) for fold in seen.folds if fold.node == 0}
        for fold in seen.folds:
            odd = told[fold.index] ^ set(fold.copies)
            if odd:
                yield f"node {fold.node} differs on metadata partition {fold.index} by {sorted(odd)[:4]}"


def nothing_is_unreferenced(case: Case) -> Iterator[str]:
    """17 In the end every object of the tier belongs to a copy, unless all who were told of it lost that.
    They were told before the first request for any object of the copy was sent: a later one may be on its
    way, or wait for its turn, while they lose it."""
    copies: dict[str, str] = {}
    since: dict[str, float] = {}
    for change in case.history.tier_changes:
        copy = copies[change.key] = change.copy or change.key
        since[copy] = min(change.sent, since.get(copy, change.sent))
    for seen in case.history.tiers:
        for key in seen.unreferenced:
            told = since[copies[key]] if key in copies else 0.0
            if not is_metadata_forgotten(case, told):
                yield f"nobody speaks of {key}"


def nobody_is_sent_away(case: Case) -> Iterator[str]:
    """7 (tier) No consumer hears that an offset is out of range that it may read, in the tier or not."""
    history = case.history
    for fetch in history.fetches:
        log = history.logs.get(fetch.tp)
        if log is None or fetch.error != ErrorCode.offset_out_of_range.name:
            continue
        earlier = [
            each.high_watermark
            for each in history.fetches
            if each.tp == fetch.tp and each.result == "ok" and each.done < fetch.invoked
        ]
        end = max(earlier, default=0)
        if log.log_start_offset <= fetch.offset < min(end, log.log_end_offset) and not case.is_forgotten(
            fetch.tp, fetch.offset, 0.0, fetch.done
        ):
            yield f"{fetch.tp} {fetch.client} heard that {fetch.offset} is out of range at {fetch.done:.3f}"


RULES: dict[str, Callable[[Case], Iterable[str]]] = {
    "9 tier bounds": tier_bounds_are_ordered,
    "7 nobody is sent away": nobody_is_sent_away,
    "11 tier objects": objects_stay_as_they_are,
    "12 epochs of the tier": epochs_are_those_of_the_records,
    "17 leaders have all": leaders_have_all,
    "17 freed is in the tier": what_leaves_a_disk_is_in_the_tier,
    "17 gone is not needed": what_leaves_the_tier_is_not_needed,
    "17 copies have objects": copies_have_their_objects,
    "17 states go forward": states_go_forward,
    "17 folds are equal": folds_are_equal,
    "17 nothing unreferenced": nothing_is_unreferenced,
}
