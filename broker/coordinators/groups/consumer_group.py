"""One group that the server assigns (KIP-848): what its records say, and what follows from them.

Owns the fold of a group's records, its members with their epochs and partitions, who holds which partition,
what the group is subscribed to, and its state. Does not own what is decided
(`broker.coordinators.groups.modern.heartbeat`), nor the records (`protocol.stored.consumer_groups`).
Invariant: `apply` alone changes it, but for the few fields under "soft", which a restart forgets. The last
value of each key makes the state, in whatever order the keys come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from sys import intern
from typing import Final, TypeVar
from uuid import UUID

from broker.coordinators.groups.membership import bytes_of, text_bytes
from protocol.stored.consumer_groups import (
    NOTHING,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    Owned,
    RegexRecord,
    ResolvedRegex,
    Target,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
    TopicsRecord,
)
from protocol.work import Work

V = TypeVar("V")

LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
MEMBER_BYTES: Final = 1 << 10
"""About what a member takes besides what it is subscribed to and what it holds."""
_PARTITION_BYTES: Final = 128
_TEXT_BYTES: Final = 64
_TOPICS_PER_STEP: Final = 512
_NEW: Final = CurrentAssignment()
_FIRST_EPOCH: Final = 1
"""Of a group for which no record names another one."""


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """Its epoch has no assignment yet."""
    RECONCILING = "Reconciling"
    """Its members are on their way to the assignment."""
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as its records say; one that has not joined yet has none, and is in epoch 0."""

    member_id: str
    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    current: CurrentAssignment = field(default=_NEW)

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        return self.metadata.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that will be back."""
        return self.current.epoch == STATIC_LEAVE_EPOCH

    def has_reached(self, target_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == target_epoch


def held_bytes(member_id: str, metadata: MemberMetadata) -> int:
    """About what is kept of a member in memory, besides its partitions."""
    texts = (
        member_id,
        metadata.instance_id or "",
        metadata.rack_id or "",
        metadata.client_id,
        metadata.client_host,
        metadata.regex or "",
        *metadata.topics,
    )
    classic = metadata.classic
    return (
        MEMBER_BYTES
        + sum(map(text_bytes, texts))
        + _TEXT_BYTES * len(metadata.topics)
        + (bytes_of(classic.protocols) if classic is not None else 0)
    )


class ConsumerGroup:
    __slots__ = (
        "_assignors",
        "_classic_count",
        "_classic_protocols",
        "_currents",
        "_metadatas",
        "_named_topics",
        "_owners",
        "_regex_members",
        "_regex_topics",
        "_state",
        "_target_epoch",
        "checked_in_epoch",
        "group_epoch",
        "group_id",
        "has_topics_record",
        "looked_at_ms",
        "members",
        "regexes",
        "static_members",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch: GroupEpoch | None = None
        self._target_epoch: TargetEpoch | None = None
        self._metadatas: dict[str, MemberMetadata] = {}
        self._currents: dict[str, CurrentAssignment] = {}
        self.targets: dict[str, Target] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_topics_record = False
        # --- what follows from these ---
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self._owners: dict[UUID, dict[int, str]] = {}
        self._named_topics: dict[str, int] = {}
        self._regex_topics: dict[str, int] = {}
        self._regex_members: dict[str, int] = {}
        self._assignors: dict[str, int] = {}
        self._classic_protocols: dict[str, int] = {}
        self._classic_count = 0
        self._state: GroupState | None = None
        # --- soft ---
        self.looked_at_ms: int | None = None
        """When the topics were looked through for it last."""
        self.checked_in_epoch: int | None = None
        """From which epoch on its hash is that of its topics; None once one of them may have changed."""

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroup {self.group_id!r} {self.state.value} epoch={self.epoch} "
            f"assigned={self.target_epoch} {len(self.members)} members>"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerGroup) and self._durable() == other._durable()

    __hash__ = None  # type: ignore[assignment]

    def _durable(self) -> tuple[object, ...]:
        return (
            self.group_id,
            self.group_epoch,
            self._target_epoch,
            self._metadatas,
            self._currents,
            self.targets,
            self.regexes,
            self.has_topics_record,
        )

    @property
    def is_gone(self) -> bool:
        """Whether no record tells of it any more."""
        return not (
            self.group_epoch is not None
            or self._target_epoch is not None
            or self._metadatas
            or self._currents
            or self.targets
            or self.regexes
        )

    # --- applying ---

    def apply(self, record: ConsumerGroupRecord) -> None:
        self._state = None
        match record:
            case GroupEpochRecord(value=value):
                self.group_epoch = value
            case TargetEpochRecord(value=value):
                self._target_epoch = value
            case TopicsRecord(value=value):
                self.has_topics_record = value is not None
            case MemberRecord(member_id=member_id, value=metadata):
                _set(self._metadatas, member_id, metadata)
                self._renew(member_id)
            case CurrentRecord(member_id=member_id, value=current):
                _set(self._currents, member_id, current)
                self._renew(member_id)
            case TargetRecord(member_id=member_id, value=target):
                _set(self.targets, member_id, target)
            case RegexRecord(regex=regex, value=resolved):
                known = self.regexes.get(regex)
                for topic in known.topics if known is not None else ():
                    _count(self._regex_topics, topic, -1)
                if resolved is not None:
                    # Topics that many expressions match are named once.
                    resolved = replace(resolved, topics=tuple(map(intern, resolved.topics)))
                _set(self.regexes, regex, resolved)
                for topic in resolved.topics if resolved is not None else ():
                    _count(self._regex_topics, topic, 1)

    def _renew(self, member_id: str) -> None:
        """Put a member together anew from its two records."""
        old = self.members.get(member_id)
        metadata = self._metadatas.get(member_id)
        if metadata is None:
            if old is not None:
                del self.members[member_id]
                self._leave(old)
            return
        new = Member(member_id=member_id, metadata=metadata, current=self._currents.get(member_id, _NEW))
        self.members[member_id] = new
        if old is not None and not old.current.has_same(new.current):
            self._disown(member_id, old.current)
            self._own(member_id, new.current)
        elif old is None:
            self._own(member_id, new.current)
        if old is None or old.metadata is not metadata:
            if old is not None:
                self._unsubscribe(old)
            self._subscribe(new)

    def _leave(self, member: Member) -> None:
        self._disown(member.member_id, member.current)
        self._unsubscribe(member)

    def _own(self, member_id: str, current: CurrentAssignment) -> None:
        for owned in (current.assigned, current.revoking):
            for topic_id, partitions in owned.items():
                owners = self._owners.setdefault(topic_id, {})
                for partition in partitions:
                    owners[partition] = member_id

    def _disown(self, member_id: str, current: CurrentAssignment) -> None:
        for owned in (current.assigned, current.revoking):
            for topic_id, partitions in owned.items():
                owners = self._owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    del self._owners[topic_id]

    def _subscribe(self, member: Member) -> None:
        self._count_member(member, 1)
        if member.metadata.instance_id is not None:
            self.static_members[member.metadata.instance_id] = member.member_id

    def _unsubscribe(self, member: Member) -> None:
        self._count_member(member, -1)
        instance_id = member.metadata.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _count_member(self, member: Member, change: int) -> None:
        metadata = member.metadata
        for topic in metadata.topics:
            _count(self._named_topics, topic, change)
        if metadata.regex:
            _count(self._regex_members, metadata.regex, change)
        if metadata.assignor is not None:
            _count(self._assignors, metadata.assignor, change)
        if metadata.classic is not None:
            self._classic_count += change
            for name in {name for name, _ in metadata.classic.protocols}:
                _count(self._classic_protocols, name, change)

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """Return the records that delete every key of the group."""
        group_id = self.group_id
        member_ids = list(self._metadatas | self._currents)
        records: list[ConsumerGroupRecord] = []
        records += (CurrentRecord(group_id=group_id, member_id=one, value=None) for one in member_ids)
        targets = dict.fromkeys((*member_ids, *self.targets))
        records += (TargetRecord(group_id=group_id, member_id=one, value=None) for one in targets)
        records.append(TargetEpochRecord(group_id=group_id, value=None))
        records += (MemberRecord(group_id=group_id, member_id=one, value=None) for one in member_ids)
        records += (RegexRecord(group_id=group_id, regex=regex, value=None) for regex in self.regexes)
        records.append(TopicsRecord(group_id=group_id, value=None))
        records.append(GroupEpochRecord(group_id=group_id, value=None))
        return records

    # --- reading ---

    @property
    def protocol_type(self) -> str:
        return "consumer"

    @property
    def epoch(self) -> int:
        return self.group_epoch.epoch if self.group_epoch is not None else _FIRST_EPOCH

    @property
    def is_stale(self) -> bool:
        """Whether topics it is subscribed to may have changed since its hash was made."""
        return self.checked_in_epoch is None or self.epoch < self.checked_in_epoch

    @property
    def metadata_hash(self) -> int:
        return self.group_epoch.metadata_hash if self.group_epoch is not None else 0

    @property
    def target_epoch(self) -> int:
        return self._target_epoch.epoch if self._target_epoch is not None else 0

    @property
    def assigned_at_ms(self) -> int:
        return self._target_epoch.timestamp_ms if self._target_epoch is not None else 0

    @property
    def state(self) -> GroupState:
        if self._state is None:
            self._state = self._make_state()
        return self._state

    def _make_state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        target_epoch = self.target_epoch
        if all(member.has_reached(target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def classic_members(self) -> int:
        return self._classic_count

    def all_speak_classic_without(self, leaving: Mapping[str, Member]) -> bool:
        """Whether every member but these speaks the classic protocol."""
        leaving_classic = sum(member.is_classic for member in leaving.values())
        return self.classic_members - leaving_classic == len(self.members) - len(leaving)

    def supports_classic(self, protocols: Iterator[str]) -> bool:
        """Whether all members of the classic protocol know one of these."""
        return any(self._classic_protocols.get(name, 0) == self.classic_members for name in protocols)

    def owner_of(self, topic_id: UUID, partition: int) -> str | None:
        """Return the member that holds the partition, or has not yet said that it gave it up."""
        owners = self._owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def owners(self) -> Mapping[UUID, Mapping[int, str]]:
        return self._owners

    def assignor(self, default: str, without: Member | None = None, plus: Member | None = None) -> str:
        """Return the assignor that most members ask for, of equals the one asked for first."""
        votes = dict(self._assignors)
        for member, change in ((without, -1), (plus, 1)):
            if member is not None and member.metadata.assignor is not None:
                _count(votes, member.metadata.assignor, change)
        return max(votes, key=votes.__getitem__) if votes else default

    @property
    def has_regexes(self) -> bool:
        """Whether a member is subscribed by a regular expression."""
        return bool(self._regex_members)

    def named_topics(self) -> list[str]:
        return list(self._named_topics)

    def regex_members(self, regex: str) -> int:
        return self._regex_members.get(regex, 0)

    def member_regexes(self) -> list[str]:
        return list(self._regex_members)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._named_topics or topic in self._regex_topics

    def subscribed_topics(self) -> list[str]:
        """Return each topic that a member is subscribed to, by its name or by a regular expression."""
        return list(self._named_topics | self._regex_topics)

    def topics_after(
        self, leaving: Mapping[str, Member], coming: Member | None, lost_regexes: frozenset[str] = frozenset()
    ) -> Work[list[str]]:
        """Return what the group is subscribed to once these members have left and this one is there; nothing
        else of the group may change meanwhile."""
        named = dict(self._named_topics)
        changes = [(member, -1) for member in leaving.values()]
        if coming is not None:
            changes.append((coming, 1))
        done = 0
        for member, change in changes:
            for topic in member.metadata.topics:
                _count(named, topic, change)
                done += 1
                if done % _TOPICS_PER_STEP == 0:
                    yield
        found = dict.fromkeys(named)
        yield
        if not lost_regexes:
            matched: list[Iterable[str]] = [list(self._regex_topics)]
        else:
            matched = [it.topics for regex, it in self.regexes.items() if regex not in lost_regexes]
        for topics in matched:
            left = iter(topics)
            while some := dict.fromkeys(islice(left, _TOPICS_PER_STEP)):
                found.update(some)
                yield
        return list(found)

    def topics_of(self, member: Member) -> Iterator[str]:
        """Yield the names of what it is subscribed to; one may come twice. A regular expression that is not
        looked up yet matches nothing.
        """
        yield from member.metadata.topics
        resolved = self.regexes.get(member.metadata.regex) if member.metadata.regex else None
        if resolved is not None:
            yield from resolved.topics

    def target_of(self, member: Member) -> Target:
        """Return its target assignment; a static member's that comes back is the one of its instance."""
        instance_id = member.metadata.instance_id
        member_id = member.member_id if instance_id is None else self.static_members.get(instance_id)
        return self.targets.get(member_id, NOTHING) if member_id is not None else NOTHING

    def retention_starts_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of a topic's offset began; None while members may read it."""
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def waits_for_others(self, member: Member) -> bool:
        """Whether a partition of its target is still held by another member."""
        if member.current.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        assigned = member.current.assigned
        for topic_id, partitions in self.targets.get(member.member_id, NOTHING).items():
            has, owners = assigned.get(topic_id, {}), self._owners.get(topic_id, {})
            if any(partition not in has and partition in owners for partition in partitions):
                return True
        return False


def member_tombstones(group_id: str, member_id: str) -> tuple[ConsumerGroupRecord, ...]:
    return (
        CurrentRecord(group_id=group_id, member_id=member_id, value=None),
        TargetRecord(group_id=group_id, member_id=member_id, value=None),
        MemberRecord(group_id=group_id, member_id=member_id, value=None),
    )


def count_of(owned: Owned) -> int:
    return sum(map(len, owned.values()))


def bytes_of_partitions(current: CurrentAssignment) -> int:
    return _PARTITION_BYTES * (count_of(current.assigned) + count_of(current.revoking))


def _set(mapping: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _count(counts: dict[str, int], key: str, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
