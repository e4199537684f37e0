"""Members of the classic protocol in a group that the server assigns, on its way from one protocol to the
other.

Owns what JoinGroup, SyncGroup, Heartbeat and LeaveGroup lead to in such a group. Does not own the protocol of
the others (`broker.coordinators.groups.modern.heartbeat`), whose epochs and assignments these members share,
nor how the group got here (`.migration`).
Invariant: such a member's generation is its epoch. It is told REBALANCE_IN_PROGRESS whenever another protocol
would have told it something new, and joining is how it takes its next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from broker.coordinators.groups.classic import (
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    Sync,
    SyncReply,
    join_error,
    join_reply,
)
from broker.coordinators.groups.consumer_group import ConsumerGroup, Member
from broker.coordinators.groups.membership import CONSUMER_PROTOCOL
from broker.coordinators.groups.modern import heartbeat, migration
from broker.coordinators.groups.modern.reconcile import Claim
from broker.coordinators.groups.shard import (
    CONSUMER_JOIN,
    CONSUMER_SESSION,
    CONSUMER_SYNC,
    GroupDecision,
    GroupDraft,
    GroupShard,
    check_storable,
    consumer_key,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer import Subscription, decode_subscription
from protocol.stored.consumer_groups import NOTHING, ClassicSide, MemberMetadata, MemberRecord, MemberState
from protocol.stored.schema import BadRecord
from protocol.work import Work

COMMANDS: Final = (Join, Sync, Heartbeat, Leave)
_MEMBERS_PER_STEP: Final = 16


def decide(
    shard: GroupShard, command: Join | Sync | Heartbeat | Leave, draft: GroupDraft
) -> GroupDecision[Any] | Work[GroupDecision[Any]]:
    """Decide a command of the classic protocol for a group that the server assigns."""
    group = shard.consumers[command.group_id]
    match command:
        case Join() if not group.members:
            return _join_emptied(shard, group, command, draft)
        case Join():
            return _in_steps(shard, command, _join_or_refuse(shard, group, command, draft), draft)
        case Sync():
            return draft.decision(_sync(shard, group, command, draft), soft=False)
        case Heartbeat():
            return draft.decision(_heartbeat(shard, group, command, draft), soft=False)
        case Leave():
            return _in_steps(shard, command, _leave(shard, group, command, draft), draft)


def _in_steps(
    shard: GroupShard, command: Join | Leave, work: Work[Any], draft: GroupDraft
) -> Work[GroupDecision[Any]]:
    response = yield from work
    return draft.decision(response, soft=shard.is_converting(command.group_id))


# --- joining ---


def _join_emptied(
    shard: GroupShard, group: ConsumerGroup, command: Join, draft: GroupDraft
) -> Work[GroupDecision[JoinReply]]:
    """Let a group without members be one of the classic protocol again."""
    if command.member_id:
        return draft.decision(join_error(ErrorCode.unknown_member_id, command.member_id), soft=False)
    draft.records += group.tombstones()
    return (yield from command.decide(shard, draft))


def _join_or_refuse(
    shard: GroupShard, group: ConsumerGroup, command: Join, draft: GroupDraft
) -> Work[JoinReply]:
    try:
        return (yield from _join(shard, group, command, draft))
    except KafkaError as error:
        draft.records.clear()
        return join_error(error.code)


def _join(shard: GroupShard, group: ConsumerGroup, command: Join, draft: GroupDraft) -> Work[JoinReply]:
    if shard.config.migration_policy == migration.DISABLED:
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    is_unknown = not command.member_id
    member_id = command.new_member_id if is_unknown else command.member_id
    size_max = shard.config.consumer_max_size
    if len(group.members) >= size_max and member_id not in group.members:
        raise KafkaError(ErrorCode.group_max_size_reached)
    names = [name for name, _ in command.protocols]
    if command.protocol_type != CONSUMER_PROTOCOL or not group.supports_classic(iter(names)):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    if is_unknown and command.instance_id is None and command.requires_known_member:
        return join_error(ErrorCode.member_id_required, member_id)
    check_storable(member_id, command.instance_id or "", command.client_id, *names)
    subscription = _subscription(command)
    known, replaced = _member_for(group, command, member_id)
    metadata = _updated(known.metadata, command, subscription)
    check_storable(*metadata.topics)
    heartbeat.check_memory(shard, known, metadata)
    becomes_classic = replaced is not None and _may_replace_last(shard, group, replaced)
    member = known
    if replaced is not None:
        member = migration.replace_static(group, replaced, member_id, draft)
    updated = replace(member, metadata=metadata)
    is_new = member_id not in group.members and replaced is None
    if is_new or metadata != member.metadata:
        draft.records.append(MemberRecord(group_id=group.group_id, member_id=member_id, value=metadata))
    lost_regexes = _lost_regex(group, member, draft)
    names_changed = metadata.topics != member.metadata.topics
    has_changed = names_changed or bool(member.metadata.regex)
    claims = tuple(_claims(shard, subscription))
    epoch = yield from heartbeat.advance_epoch(
        shard, group, before=member, after=updated, bump=has_changed, lost_regexes=lost_regexes, draft=draft
    )
    if becomes_classic:
        assert replaced is not None
        target = group.targets.get(replaced.member_id, NOTHING)
        step = updated
        is_behind = group.target_epoch < epoch
        if not is_behind:
            step = yield from heartbeat.reconcile(
                shard,
                group,
                updated,
                target_epoch=group.target_epoch,
                target=target,
                has_subscription_changed=has_changed,
                claims=claims,
                draft=draft,
            )
        yield from migration.to_classic(
            shard, group, {replaced.member_id: replaced}, draft, joining=step, rebalances=is_behind
        )
    else:
        target_epoch, target = yield from heartbeat.advance_target(
            shard, group, before=member, after=updated, replaced=replaced, epoch=epoch, draft=draft
        )
        step = yield from heartbeat.reconcile(
            shard,
            group,
            updated,
            target_epoch=target_epoch,
            target=target,
            has_subscription_changed=has_changed,
            claims=claims,
            draft=draft,
        )
        _await_sync(shard, group, command, member_id, draft)
    return join_reply(
        member_id=member_id,
        generation=step.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol=names[0],
    )


def _subscription(command: Join) -> Subscription:
    try:
        return decode_subscription(command.protocols[0][1])
    except BadRecord:
        # As in Kafka, which trips over it.
        raise KafkaError(ErrorCode.unknown_server_error) from None


def _member_for(group: ConsumerGroup, command: Join, member_id: str) -> tuple[Member, Member | None]:
    """Return the member as it is known, or a new one, and the static member whose place it takes."""
    if command.instance_id is None:
        return group.members.get(member_id) or Member(member_id=member_id), None
    static = heartbeat.static_member(group, command.instance_id)
    if command.member_id:
        return heartbeat.check_instance(static, member_id, command.instance_id), None
    if static is None:
        return Member(member_id=member_id), None
    return static, static


def _may_replace_last(shard: GroupShard, group: ConsumerGroup, replaced: Member) -> bool:
    """Whether the member that goes is the last one that does not speak the classic protocol."""
    if replaced.is_classic or not group.all_speak_classic_without({replaced.member_id: replaced}):
        return False
    allows = shard.config.migration_policy in (migration.DOWNGRADE, migration.BIDIRECTIONAL)
    fits = len(group.members) <= shard.config.members_max
    return allows and fits and migration.fits_a_record(shard, group, {replaced.member_id: replaced})


def _updated(metadata: MemberMetadata, command: Join, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=metadata.instance_id if command.instance_id is None else command.instance_id,
        rack_id=subscription.rack_id or metadata.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex="",
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        assignor=metadata.assignor,
        classic=ClassicSide(session_timeout_ms=command.session_timeout_ms, protocols=command.protocols),
    )


def _lost_regex(group: ConsumerGroup, member: Member, draft: GroupDraft) -> frozenset[str]:
    """Delete the regular expression of a member that had one, unless others have it too."""
    regex = member.metadata.regex
    if not regex or group.regex_members(regex) != 1:
        return frozenset()
    draft.records.append(heartbeat.regex_tombstone(group, regex))
    return frozenset((regex,))


def _claims(shard: GroupShard, subscription: Subscription) -> list[Claim]:
    claims = []
    for name, partitions in subscription.owned_partitions:
        topic_id: UUID | None = shard.topics.id_of(name)
        if topic_id is not None:
            claims.append(Claim(topic_id, frozenset(partitions)))
    return claims


def _await_sync(
    shard: GroupShard, group: ConsumerGroup, command: Join, member_id: str, draft: GroupDraft
) -> None:
    now_ms = draft.now.mono_ms
    key = _keys(group, member_id)
    shard.timers.cancel(key(CONSUMER_JOIN))
    shard.timers.set(key(CONSUMER_SESSION), now_ms + command.session_timeout_ms)
    shard.timers.set(key(CONSUMER_SYNC), now_ms + command.rebalance_timeout_ms)


def _keys(group: ConsumerGroup, member_id: str) -> Callable[[str], tuple[str, str, str]]:
    return lambda kind: consumer_key(kind, group.group_id, member_id)


# --- syncing and staying ---


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Member, ClassicSide]:
    """Return a member of the classic protocol, in this generation."""
    if instance_id is None:
        member = group.members.get(member_id)
    else:
        static = heartbeat.static_member(group, instance_id)
        member = heartbeat.check_instance(static, member_id, instance_id)
    classic = member.metadata.classic if member is not None else None
    if member is None or classic is None:
        raise KafkaError(ErrorCode.unknown_member_id)
    if member.epoch != generation:
        raise KafkaError(ErrorCode.illegal_generation)
    return member, classic


def _sync(shard: GroupShard, group: ConsumerGroup, command: Sync, draft: GroupDraft) -> SyncReply:
    member, classic = _classic_member(group, command.member_id, command.instance_id, command.generation)
    name, like = classic.protocols[0]
    if command.protocol_type not in (None, CONSUMER_PROTOCOL) or command.protocol_name not in (None, name):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    key = _keys(group, member.member_id)
    if group.epoch > member.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        _await_join(shard, group, member, draft)
        raise KafkaError(ErrorCode.rebalance_in_progress)
    shard.timers.cancel(key(CONSUMER_SYNC))
    shard.timers.set(key(CONSUMER_SESSION), draft.now.mono_ms + classic.session_timeout_ms)
    return {
        "error_code": ErrorCode.none,
        "protocol_type": command.protocol_type,
        "protocol_name": command.protocol_name,
        "assignment": migration.encoded_assignment(shard, member.current.assigned, like),
    }


def _await_join(shard: GroupShard, group: ConsumerGroup, member: Member, draft: GroupDraft) -> None:
    key = consumer_key(CONSUMER_JOIN, group.group_id, member.member_id)
    if shard.timers.at(key) is None:
        shard.timers.set(key, draft.now.mono_ms + max(member.metadata.rebalance_timeout_ms, 0))


def _heartbeat(shard: GroupShard, group: ConsumerGroup, command: Heartbeat, draft: GroupDraft) -> ErrorCode:
    member, classic = _classic_member(group, command.member_id, command.instance_id, command.generation)
    key = consumer_key(CONSUMER_SESSION, group.group_id, member.member_id)
    shard.timers.set(key, draft.now.mono_ms + classic.session_timeout_ms)
    state = member.current.state
    if (
        member.epoch < group.epoch
        or state is MemberState.UNREVOKED_PARTITIONS
        or (state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
    ):
        _await_join(shard, group, member, draft)
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


# --- leaving ---


def _leave(
    shard: GroupShard, group: ConsumerGroup, command: Leave, draft: GroupDraft
) -> Work[tuple[ErrorCode, ...]]:
    errors = []
    leaving: dict[str, Member] = {}
    for leaver in command.leavers:
        try:
            member = _leaver(group, leaver)
        except KafkaError as error:
            errors.append(error.code)
        else:
            errors.append(ErrorCode.none)
            leaving[member.member_id] = member
        if len(errors) % _MEMBERS_PER_STEP == 0:
            yield
    yield from heartbeat.fence(shard, group, leaving, draft, "they left")
    return tuple(errors)


def _leaver(group: ConsumerGroup, leaver: Leaver) -> Member:
    if leaver.instance_id is None:
        member = group.members.get(leaver.member_id)
        if member is None:
            raise heartbeat.unknown_member(group, leaver.member_id)
        return member
    static = heartbeat.static_member(group, leaver.instance_id)
    # An administrator removes a static member by its instance id alone.
    member_id = leaver.member_id or (static.member_id if static is not None else "")
    return heartbeat.check_instance(static, member_id, leaver.instance_id)
