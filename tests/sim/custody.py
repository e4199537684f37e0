"""Owns the question who was bound to keep a record, and whether all of them lost it.

From the committed ISRs (the metadata log, in time) and the crashes (what each disk kept) it works out, for
any record, whether there came a moment in which no member of the ISR had it any more. Only that, or an
unclean election, excuses the loss of what a high watermark had passed. Does not own the rules.

Invariant: a history alone decides; where a moment is not known exactly, the member is taken to have lost the
record only if its own crash took it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from math import inf, nextafter

from tests.sim.history import Crash, History, PartitionState, TopicPartition

ALONE = (1,)
BEGINNING = 0.0
NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """From `at` on this is committed."""

    at: float
    seq: int
    state: PartitionState
    is_unclean: bool  # its leader was not a member of the ISR before


class Custody:
    def __init__(self, history: History) -> None:
        self._crashes = sorted(history.crashes, key=lambda crash: crash.at)
        self._moments: dict[TopicPartition, list[Moment]] = defaultdict(list)
        self._times: dict[TopicPartition, list[float]] = defaultdict(list)
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._registered = [
            (slot.at, broker.id)
            for slot in history.slots
            for broker in slot.brokers
            if broker.epoch == slot.seq
        ]
        for slot in history.slots:
            for state in slot.partitions:
                known = self._moments[state.tp]
                is_known = bool(known) and known[-1].state.topic_id == state.topic_id
                before = known[-1].state if is_known else None
                is_unclean = (
                    before is not None
                    and state.leader >= 0
                    and state.leader_epoch != before.leader_epoch
                    and not state.may_lead_after(before)
                )
                known.append(Moment(at=slot.at, seq=slot.seq, state=state, is_unclean=is_unclean))
                self._times[state.tp].append(slot.at)
                if state.leader != NO_LEADER:
                    self._leaders[state.tp, state.leader_epoch] = state.leader

    def partitions(self) -> list[TopicPartition]:
        return sorted(self._moments)

    def moments(self, tp: TopicPartition) -> list[Moment]:
        return self._moments.get(tp, [])

    def at(self, tp: TopicPartition, when: float) -> PartitionState | None:
        place = bisect_right(self._times.get(tp, ()), when)
        return self._moments[tp][place - 1].state if place else None

    def during(self, tp: TopicPartition, begin: float, end: float) -> list[PartitionState]:
        """Every state that was in force at some time between the two."""
        times = self._times.get(tp, ())
        first = max(0, bisect_right(times, begin) - 1)
        return [moment.state for moment in self.moments(tp)[first : bisect_right(times, end)]]

    def leader_of(self, tp: TopicPartition, epoch: int) -> int | None:
        """Who led in this epoch, as committed; None when nobody did, or nothing was committed."""
        return self._leaders.get((tp, epoch))

    def last_of_epoch(self, tp: TopicPartition, epoch: int, when: float) -> float:
        """The last time up to `when` at which no later epoch had begun: a broker that has not heard of one
        shows what was so then."""
        later = (moment.at for moment in self.moments(tp) if moment.state.leader_epoch > epoch)
        return min([when, *(nextafter(at, BEGINNING) for at in later)])

    def was_overthrown(self, tp: TopicPartition, node: int, when: float) -> bool:
        """Whether an unclean election took the lead from this node, which may not have heard of it: until it
        does it counts itself as the only one in sync."""
        has_led, is_overthrown = False, False
        for moment in self.moments(tp):
            if moment.at > when:
                break
            if moment.state.leader == node:
                has_led, is_overthrown = True, False
            elif moment.is_unclean and has_led:
                is_overthrown = True
        return is_overthrown

    def is_single(self, tp: TopicPartition) -> bool:
        """Whether it never had more than one replica."""
        return all(len(moment.state.replicas) == 1 for moment in self.moments(tp))

    def whose_watermark_holds(self, tp: TopicPartition, when: float) -> set[int]:
        """Every replica; since an unclean election, those who were in the ISR after it. The others may not
        have heard of it, and keep what it took back until they have."""
        state = self.at(tp, when)
        bound = set(ALONE if state is None else state.replicas)
        for moment in self.moments(tp):
            if moment.at > when:
                break
            if moment.is_unclean:
                bound = set()
            bound.update(moment.state.isr)
        return bound

    def _took(self, crash: Crash, tp: TopicPartition, offset: int) -> bool:
        """Whether this crash took the record at `offset` from its node."""
        if crash.replaced:
            return True
        return crash.power and offset >= max(crash.kept_end.get(tp, 0), crash.synced_end.get(tp, 0))

    def is_lost(
        self, tp: TopicPartition, offset: int, begin: float, end: float, *, was_synced: bool = False
    ) -> bool:
        """Whether everybody who was bound to keep what was committed between `begin` and `end` lost it;
        `was_synced` when no power cut can be the reason."""
        if any(moment.is_unclean and moment.at > begin for moment in self.moments(tp)):
            return True
        losses = self._losses(tp, offset, begin, was_synced=was_synced)
        return self._is_lost_to(tp, losses, begin, end)

    def was_lost_between(self, tp: TopicPartition, offset: int, begin: float, end: float) -> bool:
        """Whether what was committed at this offset from `begin` on was lost by all by `end`."""
        if any(moment.is_unclean and begin < moment.at <= end for moment in self.moments(tp)):
            return True
        losses = self._losses(tp, offset, begin, was_synced=False)
        return self._is_lost_to(tp, [crash for crash in losses if crash.at <= end], begin, end)

    def was_lost_before(self, tp: TopicPartition, offset: int, when: float) -> bool:
        """Whether crashes up to then took this record from everybody who was bound to it, whenever it was
        committed."""
        losses = self._losses(tp, offset, BEGINNING, was_synced=False)
        return self._is_lost_to(tp, [crash for crash in losses if crash.at <= when], BEGINNING, when)

    def _is_lost_to(self, tp: TopicPartition, losses: list[Crash], begin: float, end: float) -> bool:
        if not losses:
            return False
        bound = [state.isr for state in self.during(tp, begin, end)] or [ALONE]
        return any(self._all_lost(tp, losses, begin, isr) for isr in sorted(set(bound)))

    def each_lost(self, tp: TopicPartition, offset: int, begin: float, end: float) -> bool:
        """Whether each one of them lost it. Otherwise, when all that were left in the ISR did, somebody who
        had left it had a copy still: the last member standing took it away (KIP-966 tells of it)."""
        losers = {crash.node for crash in self._losses(tp, offset, begin, was_synced=False)}
        bound = [state.isr for state in self.during(tp, begin, end)] or [ALONE]
        return any(losers >= set(isr) for isr in bound)

    def _losses(self, tp: TopicPartition, offset: int, begin: float, *, was_synced: bool) -> list[Crash]:
        """Crashes that took this record: those from `begin` on, and those whose node is not yet back."""
        return [
            crash
            for crash in self._crashes
            if self._took(crash, tp, offset)
            and (crash.replaced or not was_synced)
            and (crash.at >= begin or not self._is_back(crash, begin))
        ]

    def _is_back(self, crash: Crash, when: float) -> bool:
        return any(node == crash.node and crash.at < at <= when for at, node in self._registered)

    def _all_lost(self, tp: TopicPartition, losses: list[Crash], begin: float, isr: tuple[int, ...]) -> bool:
        changes: list[tuple[float, int, Crash | PartitionState]] = [(crash.at, 0, crash) for crash in losses]
        changes += [(moment.at, 1, moment.state) for moment in self.moments(tp) if moment.at > begin]
        changes.sort(key=lambda change: change[:2])
        holders, members = set(isr), set(isr)
        for at, _, change in changes:
            if isinstance(change, Crash):
                holders.discard(change.node)
            else:
                # who joins after a loss by what it had fetched before it is dead, and not noticed yet
                gone = {crash.node for crash in losses if crash.at <= at and not self._is_back(crash, at)}
                joined = set(change.isr) - members - gone
                members = set(change.isr)
                holders = (holders & members) | joined  # who joins has copied what a holder had
            if not holders:
                return True
        return False

    def led_on(self, tp: TopicPartition, node: int, since: float) -> bool:
        """Whether `node` led at that time and ever after: one that led before may append without having heard
        of its end, even if it leads again by the time it answers."""
        if not self.moments(tp):
            return True
        states = self.during(tp, since, inf)
        return bool(states) and states[0].leader == node and all(each.leader in (node, -1) for each in states)
