"""The assignors of the server: which member is to get which partition.

Owns `uniform` and `range`, each as a pure function in steps. Does not own when an assignment is made, nor how
members get there (`broker.coordinators.groups.modern.reconcile`).
Invariant: every partition of a topic that somebody is subscribed to goes to exactly one member, and that one
is subscribed to its topic. `uniform` leaves no two members further apart than one partition where their
subscriptions allow that, and moves no partition that need not move for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, TypeAlias
from uuid import UUID

from broker.coordinators.java_hash import java_hash_kept
from protocol.stored.consumer_groups import Target
from protocol.work import Work

UNIFORM: Final = "uniform"
RANGE: Final = "range"
_AT_ONCE: Final = 256
"""Partitions that are looked at, or given to somebody, between two turns."""
_HASHED_AT_ONCE: Final = 16
_ROUNDS_MAX: Final = 16
"""Of the search for a better balance among members of different subscriptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    """Those that exist; equal ones may be one object."""
    target: Target
    """What it was to have up to now."""


Targets: TypeAlias = dict[str, dict[UUID, tuple[int, ...]]]
Assignor: TypeAlias = Callable[[Collection[Subscriber], Mapping[UUID, int]], Work[Targets]]
"""From the members, and how many partitions each topic has, to what each member is to have."""


# --- range ---


def assign_range(subscribers: Collection[Subscriber], partitions: Mapping[UUID, int]) -> Work[Targets]:
    """Give each member a run of partitions of each topic, to members in the same order for every topic: of
    topics with as many partitions, a member gets the same ones.
    """
    ordered = sorted(subscribers, key=_range_order)
    counts: dict[UUID, int] = {}
    at = 0
    for subscriber in ordered:
        for topic_id in subscriber.topics:
            counts[topic_id] = counts.get(topic_id, 0) + 1
            at += 1
            if at % _AT_ONCE == 0:
                yield
    targets: Targets = {}
    served = dict.fromkeys(counts, 0)
    for subscriber in ordered:
        target = targets[subscriber.member_id] = {}
        for topic_id in sorted(subscriber.topics):
            base, extra = divmod(partitions[topic_id], counts[topic_id])
            place = served[topic_id]
            served[topic_id] += 1
            start = place * base + min(place, extra)
            end = start + base + (place < extra)
            if start < end:
                target[topic_id] = tuple(range(start, end))
            at += 1
            if at % _AT_ONCE == 0:
                yield
    return targets


def _range_order(subscriber: Subscriber) -> tuple[bool, str]:
    """Static members first, by what stays the same when they come back."""
    instance_id = subscriber.instance_id
    return (instance_id is None, subscriber.member_id if instance_id is None else instance_id)


# --- uniform ---


def in_javas_order(subscribers: Collection[Subscriber]) -> Work[list[Subscriber]]:
    """Return the members in the order in which a HashMap of Kafka's has them by their ids: who of equals gets
    more, or is first, is then the same there and here.
    """
    buckets = 16
    while len(subscribers) > buckets * 3 // 4:
        buckets *= 2

    placed: list[tuple[int, int, Subscriber]] = []
    for at, subscriber in enumerate(subscribers, 1):
        hashed = java_hash_kept(subscriber.member_id)
        placed.append(((hashed ^ hashed >> 16) & (buckets - 1), at, subscriber))
        if at % _HASHED_AT_ONCE == 0:
            yield
    return [subscriber for _, _, subscriber in sorted(placed, key=itemgetter(0, 1))]


class _Holdings:
    """What each member has so far."""

    def __init__(self, subscribers: Collection[Subscriber]) -> None:
        self.by_member: dict[str, dict[UUID, set[int]]] = {one.member_id: {} for one in subscribers}
        self.sizes: dict[str, int] = dict.fromkeys(self.by_member, 0)
        self.taken: dict[UUID, set[int]] = {}

    def give(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self.by_member[member_id].setdefault(topic_id, set()).add(partition)
        self.sizes[member_id] += 1
        self.taken.setdefault(topic_id, set()).add(partition)

    def take(self, member_id: str, topic_id: UUID, partition: int) -> None:
        has = self.by_member[member_id]
        has[topic_id].discard(partition)
        if not has[topic_id]:
            del has[topic_id]
        self.sizes[member_id] -= 1
        self.taken[topic_id].discard(partition)

    def keep(self, subscriber: Subscriber, partitions: Mapping[UUID, int]) -> Work[None]:
        """Leave a member what it had, as far as it still may have it and there is such a partition."""
        for topic_id, had in subscriber.target.items():
            if topic_id not in subscriber.topics:
                continue
            taken, end = self.taken.get(topic_id, ()), partitions[topic_id]
            for partition in had:
                if 0 <= partition < end and partition not in taken:
                    self.give(subscriber.member_id, topic_id, partition)
                    if self.sizes[subscriber.member_id] % _AT_ONCE == 0:
                        yield

    def targets(self) -> Work[Targets]:
        targets: Targets = {}
        count = 0
        for member_id, has in self.by_member.items():
            targets[member_id] = {topic_id: tuple(sorted(some)) for topic_id, some in has.items()}
            count += self.sizes[member_id] + 1
            if count >= _AT_ONCE:
                count = 0
                yield
        return targets


def assign_uniform(subscribers: Collection[Subscriber], partitions: Mapping[UUID, int]) -> Work[Targets]:
    """Give each member as many partitions as any other, as far as subscriptions allow, and leave as many as
    possible where they are.
    """
    subscribers = yield from in_javas_order(subscribers)
    holdings = _Holdings(subscribers)
    count = 0
    for subscriber in subscribers:
        yield from holdings.keep(subscriber, partitions)
        count += holdings.sizes[subscriber.member_id] % _AT_ONCE + 1
        if count >= _AT_ONCE:
            count = 0
            yield
    first = next(iter(subscribers), None)
    if first is None:
        return {}
    if all(one.topics is first.topics or one.topics == first.topics for one in subscribers):
        yield from _fill_evenly(holdings, sorted(first.topics), partitions)
    else:
        topics = yield from _Topics.of(subscribers, partitions)
        yield from _fill_least_loaded(holdings, topics)
        yield from _balance(holdings, topics)
    return (yield from holdings.targets())


def _fill_evenly(holdings: _Holdings, topics: Collection[UUID], partitions: Mapping[UUID, int]) -> Work[None]:
    """Of members that are all subscribed to the same topics."""
    sizes = holdings.sizes
    total = sum(partitions[topic_id] for topic_id in topics)
    base, extra = divmod(total, len(sizes))
    free: list[tuple[UUID, int]] = []
    for topic_id in topics:
        taken: Collection[int] = holdings.taken.get(topic_id, ())
        free += [(topic_id, index) for index in range(partitions[topic_id]) if index not in taken]
        yield
    needy: list[tuple[str, int]] = []
    count = 0
    for left, (member_id, size) in zip(range(len(sizes), 0, -1), list(sizes.items()), strict=True):
        # Whoever has more than its share keeps one more, as long as there are any; who has not takes one more
        # only where all those left must.
        takes_extra = extra > 0 and (size > base or left <= extra)
        extra -= takes_extra
        quota = base + takes_extra
        surplus = size - quota
        if surplus < 0:
            needy.append((member_id, -surplus))
        elif surplus > 0:
            dropped = _last_of(holdings.by_member[member_id], surplus)
            for topic_id, partition in dropped:
                holdings.take(member_id, topic_id, partition)
                count += 1
                if count % _AT_ONCE == 0:
                    yield
            free += dropped
        count += 1
        if count % _AT_ONCE == 0:
            yield
    at = 0
    for member_id, need in needy:
        for topic_id, partition in free[at : at + need]:
            holdings.give(member_id, topic_id, partition)
            count += 1
            if count % _AT_ONCE == 0:
                yield
        at += need
    assert at == len(free), f"{len(free) - at} partitions are left"


def _last_of(has: Mapping[UUID, set[int]], surplus: int) -> list[tuple[UUID, int]]:
    """Return so many of a member's partitions, the last ones, in order."""
    found: list[tuple[UUID, int]] = []
    for topic_id in sorted(has, reverse=True):
        some = sorted(has[topic_id])[-(surplus - len(found)) :]
        found = [(topic_id, partition) for partition in some] + found
        if len(found) == surplus:
            break
    return found


class _Topics:
    """Who is subscribed to what, those topics first that leave the least choice."""

    def __init__(self) -> None:
        self.members: dict[UUID, list[str]] = {}
        self.partitions: Mapping[UUID, int] = {}

    @classmethod
    def of(cls, subscribers: Collection[Subscriber], partitions: Mapping[UUID, int]) -> Work[_Topics]:
        topics = cls()
        members: dict[UUID, list[str]] = {}
        count = 0
        for subscriber in subscribers:
            for topic_id in subscriber.topics:
                members.setdefault(topic_id, []).append(subscriber.member_id)
                count += 1
                if count % _AT_ONCE == 0:
                    yield

        def order(topic_id: UUID) -> tuple[float, int, UUID]:
            have = len(members[topic_id])
            return (-partitions[topic_id] / have, have, topic_id)

        topics.members = {topic_id: members[topic_id] for topic_id in sorted(members, key=order)}
        topics.partitions = partitions
        return topics


def _fill_least_loaded(holdings: _Holdings, topics: _Topics) -> Work[None]:
    """Give what nobody has to the member with the fewest partitions among those subscribed."""
    count = 0
    for topic_id, members in topics.members.items():
        taken: Collection[int] = holdings.taken.get(topic_id, ())
        free = [index for index in range(topics.partitions[topic_id]) if index not in taken]
        if not free:
            continue
        ordered = sorted(members, key=holdings.sizes.__getitem__)
        heap = [(holdings.sizes[member_id], place) for place, member_id in enumerate(ordered)]
        yield
        for partition in free:
            size, place = heap[0]
            holdings.give(ordered[place], topic_id, partition)
            heapq.heapreplace(heap, (size + 1, place))
            count += 1
            if count % _AT_ONCE == 0:
                yield


def _balance(holdings: _Holdings, topics: _Topics) -> Work[None]:
    """Move partitions of each topic from those who have most to those who have least, until a round over all
    topics finds nothing more to move.
    """
    for _ in range(_ROUNDS_MAX):
        moved = 0
        for topic_id, members in topics.members.items():
            if len(members) > 1:
                moved += yield from _balance_topic(holdings, topic_id, members)
            yield
        if not moved:
            return


def _balance_topic(holdings: _Holdings, topic_id: UUID, members: list[str]) -> Work[int]:
    """Return how many partitions were moved."""
    sizes = holdings.sizes
    if max(sizes[one] for one in members) - min(sizes[one] for one in members) <= 1:
        return 0
    yield
    members = sorted(members, key=sizes.__getitem__)
    least = [(sizes[member_id], place) for place, member_id in enumerate(members)]
    # Of those with equally many the last one gives first.
    most = [
        (-sizes[member_id], -place)
        for place, member_id in enumerate(members)
        if topic_id in holdings.by_member[member_id]
    ]
    heapq.heapify(least)
    heapq.heapify(most)
    moved = 0
    while most:
        size, place = -most[0][0], -most[0][1]
        giver = members[place]
        if sizes[giver] != size or topic_id not in holdings.by_member[giver]:
            heapq.heappop(most)
            if topic_id in holdings.by_member[giver]:
                heapq.heappush(most, (-sizes[giver], -place))
            continue
        least_size, least_place = least[0]
        taker = members[least_place]
        if sizes[taker] != least_size:
            heapq.heapreplace(least, (sizes[taker], least_place))
            continue
        if size - least_size <= 1:
            break
        partition = max(holdings.by_member[giver][topic_id])
        holdings.take(giver, topic_id, partition)
        holdings.give(taker, topic_id, partition)
        moved += 1
        if moved % (_AT_ONCE // 4) == 0:
            yield
    return moved


ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: assign_uniform, RANGE: assign_range}
