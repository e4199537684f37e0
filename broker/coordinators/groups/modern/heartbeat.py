"""The protocol of groups that the server assigns (KIP-848): members send heartbeats and are told what to own.

Owns its commands, what each leads to, when the group's epoch rises and its target assignment is made anew,
and what happens when the time of a member is over. Does not own the state
(`broker.coordinators.groups.consumer_group`), the assignors, the step of one member towards its target
(`.reconcile`), how a group changes its protocol (`.migration`), nor request versions
(`broker.handlers.consumer_groups`).
Invariant: a heartbeat that changes nothing makes no record. A member is told an epoch, and given a partition,
only with the record that makes it durable.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypedDict
from uuid import UUID

from broker.coordinators.groups.consumer_group import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    Member,
    held_bytes,
    member_tombstones,
)
from broker.coordinators.groups.modern import migration
from broker.coordinators.groups.modern.assignors import ASSIGNORS, Subscriber
from broker.coordinators.groups.modern.reconcile import Claim, is_within, next_assignment
from broker.coordinators.groups.modern.regexes import check_regex
from broker.coordinators.groups.shard import (
    CONSUMER_GROUP_BYTES,
    CONSUMER_REBALANCE,
    CONSUMER_SESSION,
    NOBODY,
    GroupDecision,
    GroupDraft,
    GroupShard,
    check_storable,
    consumer_key,
    resolved_bytes,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import (
    NOTHING,
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

logger = logging.getLogger(__name__)

REGEX_PAUSE_MS: Final = 10_000
"""From one look through all topics to the next."""
REGEX_REFRESH_MS: Final = 600_000
"""After this long they are looked through even if no topic was created."""
_MEMBERS_PER_STEP: Final = 16
_new_tuple = tuple.__new__


class HeartbeatReply(TypedDict):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Owned | None
    """None when there is nothing new in it."""


class ConsumerHeartbeat(NamedTuple):
    """What is None, or -1, is as the member said before."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    """In order, each once."""
    regex: str | None = None
    assignor: str | None = None
    claims: tuple[Claim, ...] | None = None
    """The partitions it owns."""
    client_id: str = ""
    client_host: str = ""

    def decide(
        self, shard: GroupShard, draft: GroupDraft, /
    ) -> GroupDecision[HeartbeatReply] | Work[GroupDecision[HeartbeatReply]]:
        group = self.steady_group(shard)
        if group is None:
            return self._change(shard, draft)
        member = group.members[self.member_id]
        if member.has_reached(group.target_epoch):
            return draft.decision(_stepped(shard, group, member, member, draft), soft=False)
        return self._step(shard, group, member, draft)

    @property
    def tells_nothing_new(self) -> bool:
        """Whether it says nothing of what its member wants."""
        return (
            self.topics is None
            and self.regex is None
            and self.rack_id is None
            and self.assignor is None
            and self.rebalance_timeout_ms == -1
        )

    def in_epoch(self, member_epoch: int) -> ConsumerHeartbeat:
        return _new_tuple(ConsumerHeartbeat, (*self[:2], member_epoch, *self[3:]))

    def steady_group(self, shard: GroupShard) -> ConsumerGroup | None:
        """Return its group if neither epoch nor target of that can change with it, but only what the member
        holds: it has nothing new to say, and is in the epoch in which it was left.
        """
        group = shard.consumers.get(self.group_id)
        member = group.members.get(self.member_id) if group is not None else None
        if group is None or member is None:
            return None
        metadata = member.metadata
        if (
            self.member_epoch != member.epoch
            or self.member_epoch <= 0
            or group.epoch > group.target_epoch
            or group.is_stale
            or not self.tells_nothing_new
            or self.client_id != metadata.client_id
            or self.client_host != metadata.client_host
            or metadata.classic is not None
        ):
            return None
        if self.instance_id is not None and group.static_members.get(self.instance_id) != self.member_id:
            return None
        return group

    def _step(
        self, shard: GroupShard, group: ConsumerGroup, member: Member, draft: GroupDraft
    ) -> Work[GroupDecision[HeartbeatReply]]:
        """Take the member one step towards its target."""
        after = yield from reconcile(
            shard,
            group,
            member,
            target_epoch=group.target_epoch,
            target=group.target_of(member),
            has_subscription_changed=False,
            claims=self.claims,
            draft=draft,
        )
        return draft.decision(_stepped(shard, group, member, after, draft), soft=False)

    def _change(self, shard: GroupShard, draft: GroupDraft) -> Work[GroupDecision[HeartbeatReply]]:
        if self.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            reply = yield from _leave(shard, self, draft)
        else:
            reply = yield from heartbeat_in_full(shard, self, draft)
        return draft.decision(reply, soft=shard.is_converting(self.group_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRegexes:
    """Tell a group which topics its regular expressions match."""

    group_id: str
    resolved: Mapping[str, ResolvedRegex] = field(default_factory=dict)

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[int]]:
        yield from _regexes_resolved(shard, self, draft)
        return draft.decision(len(draft.records), soft=False)


# --- staying ---


def _stepped(
    shard: GroupShard, group: ConsumerGroup, before: Member, after: Member, draft: GroupDraft
) -> HeartbeatReply:
    """Return the answer to a member that has nothing new to say."""
    if _wants_look(shard, group, before, before, draft, is_new_regex=False):
        _look_up(shard, group, draft)
    _watch_revocation(shard, group, before, after, draft)
    with_assignment = after is not before and after.current.assigned != before.current.assigned
    return _reply(shard, group, after, draft, with_assignment=with_assignment)


def heartbeat_in_full(
    shard: GroupShard, command: ConsumerHeartbeat, draft: GroupDraft
) -> Work[HeartbeatReply]:
    """Return the answer to a member that stays or joins, whatever it says."""
    is_joining = command.member_epoch == 0
    begun = yield from _group_for(shard, command, draft, creates=is_joining)
    group = begun.group
    _check_size(shard, group, command.member_id)
    known = _member_for(group, command, is_joining)
    is_new = known.member_id not in group.members
    _check_room(shard, known, command, begun.is_new)
    member, replaced = known, None
    if known.member_id != command.member_id:
        # A static member is back: it goes on from where its instance was.
        member, replaced = migration.replace_static(group, known, command.member_id, draft), known
    metadata = _updated(member.metadata, command)
    updated = member if metadata is member.metadata else replace(member, metadata=metadata)
    if is_new or (metadata is not member.metadata and metadata != member.metadata):
        draft.records.append(
            MemberRecord(group_id=group.group_id, member_id=updated.member_id, value=metadata)
        )
    names_changed = metadata.topics != member.metadata.topics
    regex = _regex_change(group, member, updated, draft)
    wants_look = _wants_look(shard, group, member, updated, draft, is_new_regex=regex.is_new)
    step = yield from advance(
        shard,
        group,
        before=member,
        after=updated,
        replaced=replaced,
        bump=names_changed or regex.is_resolved,
        has_subscription_changed=names_changed or regex.has_changed,
        lost_regexes=regex.lost,
        claims=command.claims,
        draft=draft,
    )
    begun.settle()
    if wants_look:
        _look_up(shard, group, draft)
    _watch_revocation(shard, group, member, step, draft)
    is_full = (
        command.rebalance_timeout_ms != -1
        and (command.topics is not None or command.regex is not None)
        and command.claims is not None
    )
    with_assignment = is_joining or is_full or step.current.assigned != member.current.assigned
    return _reply(shard, group, step, draft, with_assignment=with_assignment)


def _reply(
    shard: GroupShard, group: ConsumerGroup, member: Member, draft: GroupDraft, *, with_assignment: bool
) -> HeartbeatReply:
    settings = shard.settings_of(group.group_id)
    shard.timers.set(
        consumer_key(CONSUMER_SESSION, group.group_id, member.member_id),
        draft.now.mono_ms + settings.session_timeout_ms,
    )
    return {
        "member_id": member.member_id,
        "member_epoch": member.epoch,
        "heartbeat_interval_ms": settings.heartbeat_interval_ms,
        "assignment": member.current.assigned if with_assignment else None,
    }


# --- who it is ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """The group that a heartbeat is about, and what is to be done once it is accepted."""

    group: ConsumerGroup
    is_new: bool = False
    upgrade: migration.Upgrade | None = None

    def settle(self) -> None:
        if self.upgrade is not None:
            self.upgrade.settle()


def _group_for(
    shard: GroupShard, command: ConsumerHeartbeat, draft: GroupDraft, *, creates: bool
) -> Work[_Begun]:
    group = shard.consumers.get(command.group_id)
    if group is not None:
        return _Begun(group=group)
    group_id = command.group_id
    classic = shard.groups.get(group_id)
    if classic is None:
        if not creates:
            raise KafkaError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
    elif not creates:
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
    check_storable(group_id)
    if classic is None:
        return _Begun(group=ConsumerGroup(group_id), is_new=True)
    upgrade = yield from migration.to_consumer(shard, classic, draft)
    return _Begun(group=upgrade.group, is_new=True, upgrade=upgrade)


def _check_size(shard: GroupShard, group: ConsumerGroup, member_id: str) -> None:
    size_max = shard.config.consumer_max_size
    if len(group.members) >= size_max and member_id not in group.members:
        raise KafkaError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def _member_for(group: ConsumerGroup, command: ConsumerHeartbeat, is_joining: bool) -> Member:
    """Return the member as it is known, or a new one. One under another id is the static member whose
    instance has come back.
    """
    if command.instance_id is None:
        member = group.members.get(command.member_id)
        if member is None:
            if not is_joining:
                raise unknown_member(group, command.member_id)
            return Member(member_id=command.member_id)
        _check_epoch(member, command)
        return member
    static = static_member(group, command.instance_id)
    if is_joining:
        if static is None:
            return group.members.get(command.member_id) or Member(member_id=command.member_id)
        if not static.is_classic and not static.is_away:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {command.member_id} with instance id {command.instance_id} cannot join the "
                f"group because the instance id is owned by {static.member_id} member.",
            )
        return static
    static = check_instance(static, command.member_id, command.instance_id)
    _check_epoch(static, command)
    return static


def static_member(group: ConsumerGroup, instance_id: str) -> Member | None:
    member_id = group.static_members.get(instance_id)
    return None if member_id is None else group.members.get(member_id)


def check_instance(member: Member | None, member_id: str, instance_id: str) -> Member:
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def unknown_member(group: ConsumerGroup, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
    )


def _check_epoch(member: Member, command: ConsumerHeartbeat) -> None:
    received, known = command.member_epoch, member.epoch
    if received in (0, known):
        return
    may_have_missed = received < known and received == member.current.previous_epoch
    if may_have_missed and is_within(command.claims, member.current.assigned):
        # The answer with the new epoch may have been lost.
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {'greater' if received > known else 'smaller'} member epoch "
        f"({received}) than the one known by the group coordinator ({known}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _updated(metadata: MemberMetadata, command: ConsumerHeartbeat) -> MemberMetadata:
    """Return the metadata with what is new; itself where nothing is."""
    timeout_ms = command.rebalance_timeout_ms
    if (
        command.tells_nothing_new
        and command.instance_id in (None, metadata.instance_id)
        and command.client_id == metadata.client_id
        and command.client_host == metadata.client_host
        and metadata.classic is None
    ):
        return metadata
    return replace(
        metadata,
        instance_id=metadata.instance_id if command.instance_id is None else command.instance_id,
        rack_id=metadata.rack_id if command.rack_id is None else command.rack_id,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=metadata.assignor if command.assignor is None else command.assignor,
        topics=metadata.topics if command.topics is None else command.topics,
        regex=metadata.regex if command.regex is None else command.regex,
        client_id=command.client_id,
        client_host=command.client_host,
        classic=None,
    )


def _check_room(shard: GroupShard, member: Member, command: ConsumerHeartbeat, is_new_group: bool) -> None:
    """Refuse what no record can hold, and what there is no memory for."""
    check_storable(command.member_id, command.instance_id or "", command.rack_id or "", command.client_id)
    check_storable(command.regex or "", *(command.topics or ()))
    check_memory(shard, member, _updated(member.metadata, command), is_new_group)


def check_memory(
    shard: GroupShard, member: Member, metadata: MemberMetadata, is_new_group: bool = False
) -> None:
    held = holds = held_bytes(member.member_id, metadata)
    if metadata is not member.metadata:
        held = held_bytes(member.member_id, member.metadata)
    more = holds if member.metadata == MemberMetadata() else holds - held
    more += CONSUMER_GROUP_BYTES if is_new_group else 0
    if holds > shard.config.record_max_bytes:
        raise KafkaError(ErrorCode.invalid_request, "the subscription is too large to be stored")
    if more > 0 and not shard.memory.may_take(metadata.client_host, more):
        raise KafkaError(ErrorCode.coordinator_not_available, "the groups hold too much metadata")


# --- regular expressions ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexChange:
    has_changed: bool = False
    is_new: bool = False
    """Whether nobody in the group had it before."""
    is_resolved: bool = False
    """Whether the topics of the member are other ones at once."""
    lost: frozenset[str] = frozenset()
    """What nobody is subscribed by any more."""


def _regex_change(group: ConsumerGroup, before: Member, after: Member, draft: GroupDraft) -> RegexChange:
    old, new = before.metadata.regex, after.metadata.regex
    if old == new:
        return RegexChange()
    lost: frozenset[str] = frozenset()
    is_new = bool(new) and group.regex_members(new or "") == 0
    if is_new:
        check_regex(new or "")
    if old and group.regex_members(old) == 1:
        draft.records.append(regex_tombstone(group, old))
        lost = frozenset((old,))
    is_resolved = (not is_new and new in group.regexes) if new else bool(old)
    return RegexChange(has_changed=True, is_new=is_new, is_resolved=is_resolved, lost=lost)


def _wants_look(
    shard: GroupShard,
    group: ConsumerGroup,
    before: Member,
    after: Member,
    draft: GroupDraft,
    *,
    is_new_regex: bool,
) -> bool:
    """Whether the topics are to be looked through for the group's regular expressions."""
    if not is_new_regex and not group.has_regexes:
        return False
    if group.group_id in shard.resolving:
        return False
    latest = next(iter(group.regexes.values()), None)
    now_ms = draft.now.wall_ms
    if latest is not None and 0 <= now_ms - latest.timestamp_ms <= REGEX_PAUSE_MS:
        return False
    looked_ms = group.looked_at_ms
    if not is_new_regex and looked_ms is not None and 0 <= now_ms - looked_ms <= REGEX_PAUSE_MS:
        # What was found then could not be kept.
        return False
    wanted = set(group.member_regexes())
    old = before.metadata.regex
    if old and old != after.metadata.regex and group.regex_members(old) == 1:
        wanted.discard(old)
    if after.metadata.regex:
        wanted.add(after.metadata.regex)
    if not wanted:
        return False
    return (
        latest is None
        or len(wanted) != len(group.regexes)
        or latest.version < shard.topics.created_in
        or now_ms > latest.timestamp_ms + REGEX_REFRESH_MS
    )


def _look_up(shard: GroupShard, group: ConsumerGroup, draft: GroupDraft) -> None:
    group.looked_at_ms = draft.now.wall_ms
    shard.look_up_regexes(group.group_id)


def _regexes_resolved(shard: GroupShard, command: ResolveRegexes, draft: GroupDraft) -> Work[None]:
    shard.resolving.discard(command.group_id)
    group = shard.consumers.get(command.group_id)
    if group is None:
        return
    bump = False
    topics = dict.fromkeys(group.named_topics())
    for regex, resolved in command.resolved.items():
        yield
        if group.regex_members(regex) == 0:
            continue
        size = sum(map(len, resolved.topics)) + 4 * len(resolved.topics)
        if size > shard.config.record_max_bytes:
            logger.error("group %r: %r matches more topics than a record holds", group.group_id, regex)
            continue
        known = group.regexes.get(regex)
        more = resolved_bytes(resolved) - (resolved_bytes(known) if known is not None else 0)
        if more > 0 and not shard.memory.may_take(NOBODY, more):
            logger.error("group %r: no room for the topics of %r", group.group_id, regex)
            continue
        bump = bump or (known.topics if known is not None else ()) != resolved.topics
        topics.update(dict.fromkeys(resolved.topics))
        draft.records.append(RegexRecord(group_id=group.group_id, regex=regex, value=resolved))
    hash_now = yield from shard.topics.hash_of(topics)
    if bump or hash_now != group.metadata_hash:
        bump_epoch(shard, group, hash_now, draft)


# --- the epoch and the target ---


def bump_epoch(shard: GroupShard, group: ConsumerGroup, metadata_hash: int, draft: GroupDraft) -> int:
    epoch = group.epoch + 1
    draft.records.append(
        GroupEpochRecord(group_id=group.group_id, value=GroupEpoch(epoch=epoch, metadata_hash=metadata_hash))
    )
    group.checked_in_epoch = epoch
    shard.consumer_rebalances += 1
    return epoch


def advance(
    shard: GroupShard,
    group: ConsumerGroup,
    *,
    before: Member,
    after: Member,
    replaced: Member | None,
    bump: bool,
    has_subscription_changed: bool,
    lost_regexes: frozenset[str],
    claims: Iterable[Claim] | None,
    draft: GroupDraft,
) -> Work[Member]:
    """Return the member after its next step, and record what changes on the way: the group's epoch, the
    target assignment, and what the member owns.
    """
    epoch = yield from advance_epoch(
        shard, group, before=before, after=after, bump=bump, lost_regexes=lost_regexes, draft=draft
    )
    target_epoch, target = yield from advance_target(
        shard, group, after=after, before=before, replaced=replaced, epoch=epoch, draft=draft
    )
    return (
        yield from reconcile(
            shard,
            group,
            after,
            target_epoch=target_epoch,
            target=target,
            has_subscription_changed=has_subscription_changed,
            claims=claims,
            draft=draft,
        )
    )


def advance_epoch(
    shard: GroupShard,
    group: ConsumerGroup,
    *,
    before: Member,
    after: Member,
    bump: bool,
    lost_regexes: frozenset[str],
    draft: GroupDraft,
) -> Work[int]:
    """Return the group's epoch, a new one if `bump` or its topics ask for it."""
    epoch = group.epoch
    if not bump and not group.is_stale:
        return epoch
    topics = yield from group.topics_after({before.member_id: before}, after, lost_regexes)
    hash_now = yield from shard.topics.hash_of(topics)
    if bump or hash_now != group.metadata_hash:
        epoch = bump_epoch(shard, group, hash_now, draft)
    else:
        group.checked_in_epoch = epoch
    if group.has_topics_record:
        draft.records.append(TopicsRecord(group_id=group.group_id, value=None))
    return epoch


def advance_target(
    shard: GroupShard,
    group: ConsumerGroup,
    *,
    before: Member,
    after: Member,
    replaced: Member | None,
    epoch: int,
    draft: GroupDraft,
) -> Work[tuple[int, Target]]:
    """Return the target's epoch and the member's part of it; made anew when the group's epoch is a later one
    and the last was made long enough ago.
    """
    interval_ms = shard.settings_of(group.group_id).assignment_interval_ms
    made_at_ms, now_ms = group.assigned_at_ms, draft.now.wall_ms
    # A clock that was put back, or another broker's, is no reason to wait longer.
    may_assign = not made_at_ms or not 0 <= now_ms - made_at_ms < interval_ms
    if group.target_epoch >= epoch or not may_assign:
        target = group.targets.get(replaced.member_id, NOTHING) if replaced else group.target_of(after)
        return group.target_epoch, target
    members = dict(group.members)
    if replaced is not None:
        members.pop(replaced.member_id, None)
    members[after.member_id] = after
    subscribers, partitions = yield from _subscribers(shard, group, members, replaced, after)
    name = group.assignor(shard.config.consumer_assignors[0], without=before, plus=after)
    assign = ASSIGNORS.get(name, ASSIGNORS[shard.config.consumer_assignors[0]])
    targets = yield from assign(subscribers, partitions)
    for at, member_id in enumerate(members, 1):
        target = targets.get(member_id, {})
        if target != group.targets.get(member_id):
            draft.records.append(TargetRecord(group_id=group.group_id, member_id=member_id, value=target))
        if at % _MEMBERS_PER_STEP == 0:
            yield
    draft.records.append(
        TargetEpochRecord(group_id=group.group_id, value=TargetEpoch(epoch=epoch, timestamp_ms=now_ms))
    )
    return epoch, targets.get(after.member_id, {})


def _subscribers(
    shard: GroupShard,
    group: ConsumerGroup,
    members: Mapping[str, Member],
    replaced: Member | None,
    after: Member,
) -> Work[tuple[list[Subscriber], dict[UUID, int]]]:
    """Return what an assignor needs to know: members with what they are subscribed to, and the partitions."""
    by_subscription: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    partitions: dict[UUID, int] = {}
    subscribers = []
    for at, (member_id, member) in enumerate(members.items(), 1):
        key = (member.metadata.topics, member.metadata.regex)
        topics = by_subscription.get(key)
        if topics is None:
            topics = by_subscription[key] = frozenset(shard.topics.ids_of(group.topics_of(member)))
            for topic_id in topics:
                partitions[topic_id] = shard.topics.partitions_of(topic_id)
            yield
        holder = replaced.member_id if replaced is not None and member is after else member_id
        subscribers.append(
            Subscriber(
                member_id=member_id,
                instance_id=member.metadata.instance_id,
                topics=topics,
                target=group.targets.get(holder, NOTHING),
            )
        )
        if at % _MEMBERS_PER_STEP == 0:
            yield
    return subscribers, partitions


def reconcile(
    shard: GroupShard,
    group: ConsumerGroup,
    member: Member,
    *,
    target_epoch: int,
    target: Target,
    has_subscription_changed: bool,
    claims: Iterable[Claim] | None,
    draft: GroupDraft,
) -> Work[Member]:
    if not has_subscription_changed and member.has_reached(target_epoch):
        return member
    current = yield from next_assignment(
        group,
        member,
        target=target,
        target_epoch=target_epoch,
        subscribed=frozenset(shard.topics.ids_of(group.topics_of(member))),
        has_subscription_changed=has_subscription_changed,
        claims=claims,
    )
    if current == member.current:
        return member
    draft.records.append(CurrentRecord(group_id=group.group_id, member_id=member.member_id, value=current))
    return Member(member_id=member.member_id, metadata=member.metadata, current=current)


def _watch_revocation(
    shard: GroupShard, group: ConsumerGroup, before: Member, after: Member, draft: GroupDraft
) -> None:
    """Give a member that must give up partitions its time for that."""
    if after.current is before.current:
        return
    key = consumer_key(CONSUMER_REBALANCE, group.group_id, after.member_id)
    if after.current.state is MemberState.UNREVOKED_PARTITIONS:
        shard.timers.set(key, draft.now.mono_ms + max(after.metadata.rebalance_timeout_ms, 0))
    else:
        shard.timers.cancel(key)


# --- leaving ---


def _leave(shard: GroupShard, command: ConsumerHeartbeat, draft: GroupDraft) -> Work[HeartbeatReply]:
    group = shard.consumers.get(command.group_id)
    if group is None:
        is_classic = command.group_id in shard.groups
        what = "is not a consumer group" if is_classic else "not found"
        raise KafkaError(ErrorCode.group_id_not_found, f"Group {command.group_id} {what}.")
    reply: HeartbeatReply = {
        "member_id": command.member_id,
        "member_epoch": command.member_epoch,
        "heartbeat_interval_ms": 0,
        "assignment": None,
    }
    if command.instance_id is None:
        member = group.members.get(command.member_id)
        if member is None:
            raise unknown_member(group, command.member_id)
    else:
        static = static_member(group, command.instance_id)
        member = check_instance(static, command.member_id, command.instance_id)
        if command.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(member.current, epoch=STATIC_LEAVE_EPOCH, revoking=NOTHING)
            draft.records.append(
                CurrentRecord(group_id=group.group_id, member_id=member.member_id, value=away)
            )
            return reply
    yield from fence(shard, group, {member.member_id: member}, draft, "it left")
    return reply


def fence(
    shard: GroupShard, group: ConsumerGroup, members: Mapping[str, Member], draft: GroupDraft, reason: str
) -> Work[None]:
    """Remove members from the group, which becomes a classic one if it has only members of that protocol
    left.
    """
    if not members:
        return
    logger.info(
        "group %r: %s removed from epoch %d, because %s", group.group_id, _named(members), group.epoch, reason
    )
    if migration.may_become_classic(shard, group, members):
        yield from migration.to_classic(shard, group, members, draft)
        return
    for at, member_id in enumerate(members, 1):
        draft.records += member_tombstones(group.group_id, member_id)
        if at % _MEMBERS_PER_STEP == 0:
            yield
    lost = _lost_regexes(group, members.values())
    for regex in sorted(lost):
        draft.records.append(regex_tombstone(group, regex))
    topics = yield from group.topics_after(members, None, lost)
    hash_now = yield from shard.topics.hash_of(topics)
    bump_epoch(shard, group, hash_now, draft)


def regex_tombstone(group: ConsumerGroup, regex: str) -> RegexRecord:
    return RegexRecord(group_id=group.group_id, regex=regex, value=None)


def _lost_regexes(group: ConsumerGroup, members: Collection[Member]) -> frozenset[str]:
    counts: dict[str, int] = {}
    for member in members:
        if member.metadata.regex:
            counts[member.metadata.regex] = counts.get(member.metadata.regex, 0) + 1
    return frozenset(regex for regex, count in counts.items() if group.regex_members(regex) == count)


def _named(members: Mapping[str, Member]) -> str:
    first = repr(next(iter(members)))
    return first if len(members) == 1 else f"{first} and {len(members) - 1} more"


def is_overdue(member: Member, kind: str) -> bool:
    """Whether what its deadline was for is still to be done. One that is away has given up everything."""
    if kind != CONSUMER_REBALANCE:
        return True
    return member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_away
