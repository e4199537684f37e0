"""The next step of a member towards its target assignment: what it keeps, gives up and gets.

Owns that one decision. Does not own the target (`broker.coordinators.groups.modern.assignors`), when the step
is due, nor its record (`broker.coordinators.groups.modern.heartbeat`).
Invariant: a partition is given to a member only when no other one holds it. A member gives up what it must
before it gets anything, and until it says that it has given something up it is held to own it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from broker.coordinators.groups.consumer_group import ConsumerGroup, Member
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import CurrentAssignment, MemberState, Owned, Target
from protocol.work import Work

_TOPICS_PER_STEP: Final = 16
_PARTITIONS_PER_STEP: Final = 512


class Claim(NamedTuple):
    """A topic and partitions of it that a member says it owns."""

    topic_id: UUID | None
    partitions: AbstractSet[int]


class _Parts(NamedTuple):
    """How the partitions of a member and of its target compare."""

    kept: Owned
    """All of what it has, where nothing is to be revoked."""
    to_revoke: dict[UUID, dict[int, int]]
    free: dict[UUID, list[int]]
    """Of the target, what it may have at once."""
    has_unreleased: bool
    """Whether others still hold some of the target."""


def next_assignment(
    group: ConsumerGroup,
    member: Member,
    *,
    target: Target,
    target_epoch: int,
    subscribed: Collection[UUID],
    has_subscription_changed: bool,
    claims: Iterable[Claim] | None,
) -> Work[CurrentAssignment]:
    """Return the member's assignment after this step; its own one when nothing is to be done.

    `claims` is None for a member that did not say what it owns.
    """
    current = member.current
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            if has_subscription_changed:
                return _without_unsubscribed(current, subscribed, claims)
            return current
        case MemberState.UNREVOKED_PARTITIONS if _owns_any(claims, current.revoking):
            if has_subscription_changed:
                return _without_unsubscribed(current, subscribed, claims)
            return current
        case MemberState.UNKNOWN:
            if claims is None or any(claim.partitions for claim in claims):
                raise KafkaError(
                    ErrorCode.fenced_member_epoch,
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                )
            current = replace(current, epoch=target_epoch)
    parts = yield from _compare(group, current, target, subscribed)
    if parts.to_revoke and _owns_any(claims, parts.to_revoke):
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=member.current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=parts.kept,
            revoking=parts.to_revoke,
        )
    assigned = parts.kept
    if parts.free:
        assigned = dict(assigned)
        for topic_id, partitions in parts.free.items():
            assigned[topic_id] = {**assigned.get(topic_id, {}), **dict.fromkeys(partitions, target_epoch)}
    return CurrentAssignment(
        epoch=target_epoch,
        previous_epoch=member.current.epoch,
        state=MemberState.UNRELEASED_PARTITIONS if parts.has_unreleased else MemberState.STABLE,
        assigned=assigned,
    )


def _compare(
    group: ConsumerGroup, current: CurrentAssignment, target: Target, subscribed: Collection[UUID]
) -> Work[_Parts]:
    all_kept: dict[UUID, Mapping[int, int]] = {}
    to_revoke: dict[UUID, dict[int, int]] = {}
    all_free: dict[UUID, list[int]] = {}
    has_unreleased = False
    count = 0
    owners = group.owners()
    for topic_id in dict.fromkeys((*target, *current.assigned)):
        wanted = frozenset(target.get(topic_id, ())) if topic_id in subscribed else frozenset()
        has: Mapping[int, int] = current.assigned.get(topic_id, {})
        kept = {partition: epoch for partition, epoch in has.items() if partition in wanted}
        if kept:
            all_kept[topic_id] = kept
        if len(kept) < len(has):
            to_revoke[topic_id] = {
                partition: epoch for partition, epoch in has.items() if partition not in wanted
            }
        if len(kept) < len(wanted):
            held, own = owners.get(topic_id, {}), current.revoking.get(topic_id, {})
            missing = sorted(wanted.difference(kept))
            free = [partition for partition in missing if partition not in held or partition in own]
            has_unreleased = has_unreleased or len(free) < len(missing)
            if free:
                all_free[topic_id] = free
        count += len(wanted) + len(has) + _PARTITIONS_PER_STEP // _TOPICS_PER_STEP
        if count >= _PARTITIONS_PER_STEP:
            count = 0
            yield
    return _Parts(all_kept if to_revoke else current.assigned, to_revoke, all_free, has_unreleased)


def _without_unsubscribed(
    current: CurrentAssignment, subscribed: Collection[UUID], claims: Iterable[Claim] | None
) -> CurrentAssignment:
    """Return the assignment without topics the member is subscribed to no longer. The target will leave them
    out too, but it may not be there yet.
    """
    lost = {topic_id: has for topic_id, has in current.assigned.items() if topic_id not in subscribed}
    if not lost:
        return current
    kept = {topic_id: has for topic_id, has in current.assigned.items() if topic_id in subscribed}
    revoking: dict[UUID, Mapping[int, int]] = dict(current.revoking)
    for topic_id, has in lost.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **has}
    if _owns_any(claims, revoking):
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    # It has given them up already.
    return replace(current, previous_epoch=current.epoch, assigned=kept)


def _owns_any(claims: Iterable[Claim] | None, owned: Owned) -> bool:
    """Whether the member says that it owns one of these; a member that says nothing may own all of them."""
    if claims is None:
        return True
    for claim in claims:
        has = owned.get(claim.topic_id) if claim.topic_id is not None else None
        # Looks through the smaller of the two, however much is claimed.
        if has is not None and not has.keys().isdisjoint(claim.partitions):
            return True
    return False


def is_within(claims: Iterable[Claim] | None, owned: Owned) -> bool:
    """Whether all that the member says it owns is among these; False if it does not say."""
    if claims is None:
        return False
    for claim in claims:
        has = owned.get(claim.topic_id) if claim.topic_id is not None else None
        if has is None or len(claim.partitions) > len(has) or not claim.partitions <= has.keys():
            return False
    return True
