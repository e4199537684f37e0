"""The classic group protocol: members join, one of them assigns, all of them stay or leave.

Owns its commands, what each leads to, when a rebalance begins and ends, and what happens when the time of a
member or of a phase is over. Does not own the states and their transitions
(`broker.coordinators.groups.membership`), committed offsets (`broker.coordinators.groups.offsets`), nor
request and response versions (`broker.handlers.groups`).
Invariant: an assignment is handed out only with the record that makes it durable; a member, generation or
instance that is not the group's own is always refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from broker.coordinators.groups.membership import (
    MEMBERS_PER_STEP,
    Event,
    Group,
    Member,
    Protocols,
    State,
    bytes_of,
)
from broker.coordinators.groups.shard import (
    GroupDecision,
    GroupDraft,
    GroupShard,
    check_storable,
    join_key,
    session_key,
    sync_key,
)
from broker.coordinators.machine import Instant
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.offsets import GroupRecord, encode_in_steps
from protocol.work import Work

logger = logging.getLogger(__name__)


# --- commands ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    group_id: str
    member_id: str
    new_member_id: str
    """The id to give if this is a new member; made outside, because it is random."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member: bool = True
    can_skip_assignment: bool = True

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[JoinReply]]:
        return draft.decision((yield from _join(shard, self, draft)), soft=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[SyncReply]]:
        return draft.decision((yield from _sync(shard, self, draft)), soft=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> GroupDecision[ErrorCode]:
        return draft.decision(_heartbeat(shard, self, draft), soft=True)


class Leaver(NamedTuple):
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    group_id: str
    leavers: tuple[Leaver, ...]

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[tuple[ErrorCode, ...]]]:
        return draft.decision((yield from _leave(shard, self, draft)), soft=True)


# --- joining ---


def _join(shard: GroupShard, command: Join, draft: GroupDraft) -> Work[JoinReply | None]:
    check_storable(
        command.group_id,
        command.new_member_id,
        command.instance_id or "",
        command.client_id,
        command.protocol_type,
        *(name for name, _ in command.protocols),
    )
    group = shard.groups.get(command.group_id)
    if group is None and command.member_id:
        return join_error(ErrorCode.unknown_member_id, command.member_id)
    if not shard.may_hold(group, command.member_id, command.client_host, command.protocols):
        # Too much for a record would be refused when the group is to be stored, as Kafka does.
        is_storable = bytes_of(command.protocols) <= shard.config.record_max_bytes
        code = ErrorCode.coordinator_not_available if is_storable else ErrorCode.unknown_server_error
        return join_error(code, command.member_id)
    if group is None:
        # It stays, empty, even when this join is refused below.
        group = shard.begin_group(command.group_id, draft.now.wall_ms, command.client_host)
    if not _accepts(shard, group, command.member_id):
        shard.discard(group, command.member_id)
        return join_error(ErrorCode.group_max_size_reached)
    if not group.supports(command.protocol_type, command.protocols):
        return join_error(ErrorCode.inconsistent_group_protocol, command.member_id)
    if command.member_id:
        return (yield from _join_existing(shard, group, command, draft))
    return (yield from _join_new(shard, group, command, draft))


def _accepts(shard: GroupShard, group: Group, member_id: str) -> bool:
    member = group.members.get(member_id)
    match group.state:
        case State.EMPTY:
            return True
        case State.PREPARING_REBALANCE:
            # Counts waiting members, not all: of a group above a lowered bound the last to rejoin leave.
            if member is not None and member.join_token is not None:
                return True
            return group.awaiting_join < shard.config.members_max
        case State.COMPLETING_REBALANCE | State.STABLE:
            return member is not None or len(group.members) < shard.config.members_max


def _join_new(shard: GroupShard, group: Group, command: Join, draft: GroupDraft) -> Work[JoinReply | None]:
    member_id = command.new_member_id
    if command.instance_id is not None:
        if command.instance_id in group.static_members:
            return (yield from _join_returning_static(shard, group, command, draft))
    elif command.requires_known_member:
        shard.expect(group, member_id, command.client_host)
        shard.timers.set(session_key(group, member_id), draft.now.mono_ms + command.session_timeout_ms)
        return join_error(ErrorCode.member_id_required, member_id)
    yield from _add_member(shard, group, member_id, command, draft)
    return None


def _join_existing(
    shard: GroupShard, group: Group, command: Join, draft: GroupDraft
) -> Work[JoinReply | None]:
    if command.member_id in group.pending_join and command.instance_id is None:
        yield from _add_member(shard, group, command.member_id, command, draft)
        return None
    try:
        member = group.check_member(command.member_id, command.instance_id)
    except KafkaError as error:
        return join_error(error.code, command.member_id)
    is_same = member.protocols == command.protocols
    match group.state:
        case State.PREPARING_REBALANCE:
            yield from _rejoin(shard, group, member, command, draft)
        case State.COMPLETING_REBALANCE if is_same:
            # It did not get the answer to its join; the generation goes on as it is.
            return (yield from _joined_again(group, member))
        case State.STABLE if is_same and group.leader != member.member_id:
            return (yield from _joined_again(group, member))
        case State.COMPLETING_REBALANCE | State.STABLE:
            yield from _rejoin(shard, group, member, command, draft)
        case State.EMPTY:
            raise AssertionError(f"{group!r} has a member but is empty")
    return None


def _join_returning_static(
    shard: GroupShard, group: Group, command: Join, draft: GroupDraft
) -> Work[JoinReply | None]:
    assert command.instance_id is not None
    old_leader = group.leader
    old = group.members[group.static_members[command.instance_id]]
    if old.join_token is not None:
        draft.reply(old.join_token, join_error(ErrorCode.fenced_instance_id, old.member_id))
    if old.sync_token is not None:
        draft.reply(old.sync_token, sync_error(ErrorCode.fenced_instance_id))
    before = (old.member_id, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
    shard.timers.cancel(session_key(group, old.member_id))
    member = group.replace_static(command.instance_id, command.new_member_id)
    member.is_new = False
    _update(shard, group, member, command, draft)
    shard.restart_session(group, member, draft.now)
    if group.state is State.STABLE:
        if (yield from group.select_protocol()) != group.protocol:
            yield from begin_rebalance(shard, group, draft, f"{member.member_id!r} changes the protocol")
            return None
        group.set_join_token(member, None)
        if not (yield from _persist(shard, group, draft)):
            return _stay_as_before(shard, group, member, before, draft)
        return (yield from _joined_in_place(group, member, command, old_leader))
    if group.state is State.COMPLETING_REBALANCE:
        # The leader may be assigning to the old id right now.
        yield from begin_rebalance(shard, group, draft, f"{member.member_id!r} is back")
    else:
        yield from _maybe_complete_join(shard, group, draft)
    return None


def _stay_as_before(
    shard: GroupShard,
    group: Group,
    member: Member,
    before: tuple[str, Protocols, int, int],
    draft: GroupDraft,
) -> JoinReply:
    """Give a static member its former id back, because the group cannot be stored with what it lists now."""
    assert member.instance_id is not None
    logger.warning("group %r: %r is refused, its metadata is too large", group.group_id, member.member_id)
    shard.timers.cancel(session_key(group, member.member_id))
    old_id, protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
    group.replace_static(member.instance_id, old_id)
    group.set_protocols(member, protocols)
    shard.recount(member)
    shard.restart_session(group, member, draft.now)
    return join_reply(
        member_id="",
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        error=ErrorCode.unknown_server_error,
    )


def _add_member(
    shard: GroupShard, group: Group, member_id: str, command: Join, draft: GroupDraft
) -> Work[None]:
    if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
        group.new_member_added = True
    member = Member(
        member_id=member_id,
        instance_id=command.instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        session_timeout_ms=command.session_timeout_ms,
        protocol_type=command.protocol_type,
        protocols=command.protocols,
        join_token=draft.token,
        is_new=True,
    )
    shard.add(group, member)
    shard.timers.set(
        session_key(group, member_id), draft.now.mono_ms + shard.config.new_member_join_timeout_ms
    )
    yield from _rebalance_or_complete_join(shard, group, draft, f"{member_id!r} joined")


def _rejoin(shard: GroupShard, group: Group, member: Member, command: Join, draft: GroupDraft) -> Work[None]:
    _update(shard, group, member, command, draft)
    yield from _rebalance_or_complete_join(shard, group, draft, f"{member.member_id!r} joined again")


def _update(shard: GroupShard, group: Group, member: Member, command: Join, draft: GroupDraft) -> None:
    if member.join_token is not None:
        # It asks again, so it gave up on the first answer; no request may be left waiting for ever.
        draft.reply(member.join_token, join_error(ErrorCode.rebalance_in_progress, member.member_id))
    group.set_protocols(member, command.protocols)
    shard.recount(member)
    member.rebalance_timeout_ms = command.rebalance_timeout_ms
    member.session_timeout_ms = command.session_timeout_ms
    group.set_join_token(member, draft.token)


def _joined_again(group: Group, member: Member) -> Work[JoinReply]:
    """Return the answer to a member whose generation goes on."""
    is_leader = group.leader == member.member_id
    return _joined(group, member, (yield from _member_list(group)) if is_leader else ())


def _joined(group: Group, member: Member, members: tuple[JoinedMember, ...]) -> JoinReply:
    return join_reply(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        members=members,
    )


def _joined_in_place(group: Group, member: Member, command: Join, old_leader: str | None) -> Work[JoinReply]:
    """Return the answer to a static member that is back without a rebalance."""
    if command.can_skip_assignment:
        reply = yield from _joined_again(group, member)
        reply["skip_assignment"] = group.leader == member.member_id
        return reply
    # An older client that finds itself leader would assign anew: it is told the leader's former id.
    return join_reply(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=old_leader or "",
    )


# --- rebalance ---


def _rebalance_or_complete_join(
    shard: GroupShard, group: Group, draft: GroupDraft, reason: str
) -> Work[None]:
    if group.can_rebalance:
        yield from begin_rebalance(shard, group, draft, reason)
    else:
        yield from _maybe_complete_join(shard, group, draft)


def begin_rebalance(shard: GroupShard, group: Group, draft: GroupDraft, reason: str) -> Work[None]:
    logger.info("group %r: rebalance after generation %d, %s", group.group_id, group.generation, reason)
    if group.state is State.COMPLETING_REBALANCE:
        yield from _cancel_assignment(shard, group, draft)
    group.pending_sync.clear()
    shard.timers.cancel(sync_key(group))
    is_initial = group.state is State.EMPTY
    group.move(Event.REBALANCE, draft.now.wall_ms)
    if is_initial:
        delay_ms = shard.config.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        shard.timers.set(join_key(group), draft.now.mono_ms + delay_ms)
    elif group.has_all_joined:
        yield from _complete_join(shard, group, draft)
    else:
        shard.timers.set(join_key(group), draft.now.mono_ms + group.rebalance_timeout_ms)


def _maybe_complete_join(shard: GroupShard, group: Group, draft: GroupDraft) -> Work[None]:
    is_initial = group.previous_state is State.EMPTY
    if group.state is State.PREPARING_REBALANCE and not is_initial and group.has_all_joined:
        yield from _complete_join(shard, group, draft)


def _join_deadline_passed(shard: GroupShard, group: Group, draft: GroupDraft) -> Work[None]:
    if group.state is not State.PREPARING_REBALANCE:
        return
    remaining_ms = group.initial_remaining_ms
    if remaining_ms and group.new_member_added:
        # Members still arrive: wait as long again, within the rebalance timeout.
        delay_ms = shard.config.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_remaining_ms = max(remaining_ms - delay_ms, 0)
        shard.timers.set(join_key(group), draft.now.mono_ms + min(delay_ms, remaining_ms))
        return
    yield from _complete_join(shard, group, draft)


def _complete_join(shard: GroupShard, group: Group, draft: GroupDraft) -> Work[None]:
    shard.timers.cancel(join_key(group))
    group.initial_remaining_ms = None
    late = [m for m in group.members.values() if m.join_token is None and m.instance_id is None]
    for at, member in enumerate(late, 1):
        shard.discard(group, member.member_id)
        if at % MEMBERS_PER_STEP == 0:
            yield
    if group.members and not group.elect_joined_leader():
        # Only static members are left and none came: their sessions decide.
        shard.timers.set(join_key(group), draft.now.mono_ms + group.rebalance_timeout_ms)
        return
    yield from group.begin_generation(draft.now.wall_ms)
    if not group.members:
        yield from _persist(shard, group, draft)
        logger.info("group %r: empty in generation %d", group.group_id, group.generation)
        return
    members = yield from _member_list(group)
    for at, member in enumerate(group.members.values(), 1):
        if at % MEMBERS_PER_STEP == 0:
            yield
        if member.join_token is not None:
            is_leader = member.member_id == group.leader
            draft.reply(member.join_token, _joined(group, member, members if is_leader else ()))
            group.set_join_token(member, None)
        member.is_new = False
        group.pending_sync.add(member.member_id)
        shard.restart_session(group, member, draft.now)
    shard.timers.set(sync_key(group), draft.now.mono_ms + group.rebalance_timeout_ms)


def _persist(shard: GroupShard, group: Group, draft: GroupDraft) -> Work[bool]:
    """Record the group's metadata. False when no batch can hold it: that must fail this group alone, and
    not its whole partition.
    """
    metadata = yield from group.durable()
    size = sum(len(member.subscription) + len(member.assignment) for member in metadata.members)
    record = GroupRecord(group_id=group.group_id, metadata=metadata)
    if size <= shard.config.record_max_bytes:
        _, value = yield from encode_in_steps(record)
        size = len(value or b"")
    if size > shard.config.record_max_bytes:
        return False
    draft.records.append(record)
    return True


def _cancel_assignment(
    shard: GroupShard, group: Group, draft: GroupDraft, error: ErrorCode = ErrorCode.rebalance_in_progress
) -> Work[None]:
    for at, member in enumerate(group.members.values(), 1):
        if at % MEMBERS_PER_STEP == 0:
            yield
        member.assignment = b""
        shard.recount(member)
        if member.sync_token is not None:
            draft.reply(member.sync_token, sync_error(error))
            member.sync_token = None
            shard.restart_session(group, member, draft.now)


def _sync(shard: GroupShard, command: Sync, draft: GroupDraft) -> Work[SyncReply | None]:
    group = shard.groups.get(command.group_id)
    if group is None:
        raise KafkaError(ErrorCode.unknown_member_id)
    member = group.check_generation(command.member_id, command.instance_id, command.generation)
    if _differs(command.protocol_type, group.protocol_type) or _differs(
        command.protocol_name, group.protocol
    ):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    if group.state is State.PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.rebalance_in_progress)
    is_leader = group.leader == member.member_id
    if is_leader and group.state is State.COMPLETING_REBALANCE:
        shard.check_assignment(member, command.assignments)
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        shard.timers.cancel(sync_key(group))
    if group.state is State.STABLE:
        return _synced(group, member)
    if member.sync_token is not None:
        draft.reply(member.sync_token, sync_error(ErrorCode.rebalance_in_progress))
    member.sync_token = draft.token
    if is_leader:
        yield from _assign(shard, group, command.assignments, draft)
    return None


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual


def _assign(
    shard: GroupShard, group: Group, assignments: Mapping[str, bytes], draft: GroupDraft
) -> Work[None]:
    for at, member in enumerate(group.members.values(), 1):
        if at % MEMBERS_PER_STEP == 0:
            yield
        member.assignment = assignments.get(member.member_id, b"")
        shard.recount(member)
    if not (yield from _persist(shard, group, draft)):
        # No client takes this for a reason to join again, so the group does not rebalance for ever.
        yield from _cancel_assignment(shard, group, draft, ErrorCode.unknown_server_error)
        yield from begin_rebalance(shard, group, draft, "its metadata is too large to be stored")
        return
    group.move(Event.ASSIGNED, draft.now.wall_ms)
    logger.info("group %r: generation %d is stable", group.group_id, group.generation)
    shard.completed_rebalances += 1
    for at, member in enumerate(group.members.values(), 1):
        if at % MEMBERS_PER_STEP == 0:
            yield
        if member.sync_token is not None:
            draft.reply(member.sync_token, _synced(group, member))
            member.sync_token = None
            shard.restart_session(group, member, draft.now)


def _sync_deadline_passed(shard: GroupShard, group: Group, draft: GroupDraft) -> Work[None]:
    if group.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not group.pending_sync:
        return
    for at, member_id in enumerate(sorted(group.pending_sync), 1):
        shard.discard(group, member_id)
        if at % MEMBERS_PER_STEP == 0:
            yield
    yield from begin_rebalance(shard, group, draft, "members did not sync in time")


# --- staying and leaving ---


def _heartbeat(shard: GroupShard, command: Heartbeat, draft: GroupDraft) -> ErrorCode:
    group = shard.groups.get(command.group_id)
    if group is None:
        raise KafkaError(ErrorCode.unknown_member_id)
    member = group.check_generation(command.member_id, command.instance_id, command.generation)
    shard.restart_session(group, member, draft.now)
    is_rebalancing = group.state is State.PREPARING_REBALANCE
    return ErrorCode.rebalance_in_progress if is_rebalancing else ErrorCode.none


def _leave(shard: GroupShard, command: Leave, draft: GroupDraft) -> Work[tuple[ErrorCode, ...]]:
    group = shard.groups.get(command.group_id)
    if group is None:
        raise KafkaError(ErrorCode.unknown_member_id)
    errors = []
    for leaver in command.leavers:
        errors.append(_leave_one(shard, group, leaver, draft))
        if len(errors) % MEMBERS_PER_STEP == 0:
            yield
    if ErrorCode.none not in errors:
        return tuple(errors)
    if group.state is State.PREPARING_REBALANCE:
        yield from _maybe_complete_join(shard, group, draft)
    elif group.state is not State.EMPTY:
        yield from begin_rebalance(shard, group, draft, "members left")
    shard.forget_if_idle(group)
    return tuple(errors)


def _leave_one(shard: GroupShard, group: Group, leaver: Leaver, draft: GroupDraft) -> ErrorCode:
    member_id = leaver.member_id
    if not member_id:
        # An administrator removes a static member by its instance id.
        static_id = group.static_members.get(leaver.instance_id) if leaver.instance_id else None
        if static_id is None:
            return ErrorCode.unknown_member_id
        member_id = static_id
    elif member_id in group.pending_join:
        shard.discard(group, member_id)
        return ErrorCode.none
    else:
        try:
            group.check_member(member_id, leaver.instance_id)
        except KafkaError as error:
            return error.code
    _dismiss(shard, group, group.members[member_id], draft)
    return ErrorCode.none


def _session_expired(shard: GroupShard, group: Group, member_id: str, draft: GroupDraft) -> Work[None]:
    member = group.members.get(member_id)
    if member is None:
        shard.expect_no_more(group, member_id)
    elif member.is_waiting:
        return
    else:
        _dismiss(shard, group, member, draft)
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            yield from begin_rebalance(shard, group, draft, f"{member_id!r} sent no heartbeat in time")
            return
    if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
        yield from _complete_join(shard, group, draft)
    shard.forget_if_idle(group)


def _dismiss(shard: GroupShard, group: Group, member: Member, draft: GroupDraft) -> None:
    """Remove a member that may still wait for an answer; if it is alive it joins anew."""
    if member.join_token is not None:
        draft.reply(member.join_token, join_error(ErrorCode.unknown_member_id))
    if member.sync_token is not None:
        draft.reply(member.sync_token, sync_error(ErrorCode.unknown_member_id))
    shard.discard(group, member.member_id)


# --- deadlines ---


def meet_deadline(shard: GroupShard, key: tuple[str, ...], draft: GroupDraft) -> Work[None]:
    """Do what is due at the deadline of this key."""
    kind, group_id, member_id = key
    group = shard.groups.get(group_id)
    if group is None:
        return
    if kind == "session":
        yield from _session_expired(shard, group, member_id, draft)
    elif kind == "join":
        yield from _join_deadline_passed(shard, group, draft)
    else:
        yield from _sync_deadline_passed(shard, group, draft)


def extend_sessions(shard: GroupShard, now: Instant) -> Work[None]:
    """Give every member that has a session its full time again."""
    for group in list(shard.groups.values()):
        if group.members:
            yield
        for at, member in enumerate(group.members.values(), 1):
            if at % MEMBERS_PER_STEP == 0:
                yield
            at_ms = shard.timers.at(session_key(group, member.member_id))
            if at_ms is not None and at_ms < now.mono_ms + member.session_timeout_ms:
                shard.restart_session(group, member, now)


def restore_members(shard: GroupShard, draft: GroupDraft) -> Work[None]:
    """Begin the sessions of the members that the log names."""
    for group in list(shard.groups.values()):
        if group.members:
            yield
        for at, member in enumerate(group.members.values(), 1):
            if at % MEMBERS_PER_STEP == 0:
                yield
            shard.recount(member)
            shard.restart_session(group, member, draft.now)
        if len(group.members) > shard.config.members_max:
            # The bound was lowered: the members find out by rejoining, with time to commit before.
            yield from begin_rebalance(shard, group, draft, "it is larger than it may be")


# --- replies ---


class JoinedMember(TypedDict):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(TypedDict):
    error_code: ErrorCode
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...]


class SyncReply(TypedDict):
    error_code: ErrorCode
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


def join_reply(
    *,
    member_id: str,
    generation: int = -1,
    protocol_type: str | None = None,
    protocol: str | None = None,
    leader: str = "",
    members: tuple[JoinedMember, ...] = (),
    error: ErrorCode = ErrorCode.none,
) -> JoinReply:
    return {
        "error_code": error,
        "generation_id": generation,
        "protocol_type": protocol_type,
        "protocol_name": protocol,
        "leader": leader,
        "skip_assignment": False,
        "member_id": member_id,
        "members": members,
    }


def join_error(error: ErrorCode, member_id: str = "") -> JoinReply:
    return join_reply(member_id=member_id, error=error)


def sync_error(error: ErrorCode) -> SyncReply:
    return {"error_code": error, "protocol_type": None, "protocol_name": None, "assignment": b""}


def _synced(group: Group, member: Member) -> SyncReply:
    return {
        "error_code": ErrorCode.none,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }


def _member_list(group: Group) -> Work[tuple[JoinedMember, ...]]:
    members: list[JoinedMember] = []
    for member in group.members.values():
        members.append(
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata(group.protocol),
            }
        )
        if len(members) % MEMBERS_PER_STEP == 0:
            yield
    return tuple(members)
