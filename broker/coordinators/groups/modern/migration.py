"""Groups that change their protocol while their members stay: classic to consumer, and back.

Owns when a group may change, the records by which it does, and what becomes of its members, assignments and
waiting requests. Does not own either protocol (`broker.coordinators.groups.classic`, `.modern.heartbeat`).
Invariant: a group is described by the records of one protocol alone. Its members keep what they own across a
change, and learn of it by their own protocol: a classic one by being told to rejoin.

The records of an upgrade have Kafka's order but for the group's epoch, which is first where Kafka has it
after the members. Kafka writes them as one batch or not at all; here those of a large group take several, and
a log that ends between two of them must not have members of which no epoch tells.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from broker.coordinators.groups.classic import begin_rebalance, join_error, sync_error
from broker.coordinators.groups.consumer_group import ConsumerGroup, Member, member_tombstones
from broker.coordinators.groups.membership import CONSUMER_PROTOCOL, Group, State
from broker.coordinators.groups.membership import Member as ClassicMember
from broker.coordinators.groups.shard import (
    CONSUMER_SESSION,
    GroupDraft,
    GroupShard,
    consumer_key,
    session_key,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer import (
    Assignment,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from protocol.stored.consumer_groups import (
    NOTHING,
    ClassicSide,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    Target,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from protocol.stored.offsets import GroupMember, GroupMetadata, GroupRecord
from protocol.stored.schema import BadRecord, version_of
from protocol.work import Work

logger = logging.getLogger(__name__)

DISABLED = "disabled"
UPGRADE = "upgrade"
DOWNGRADE = "downgrade"
BIDIRECTIONAL = "bidirectional"
_MEMBERS_PER_STEP = 16
_MEMBER_RECORD_BYTES = 64
"""Of a member in the record of its group, besides its id, its subscription and its assignment."""


# --- classic to consumer ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """A group as it will be once the records are applied; `settle` tells the members that wait."""

    group: ConsumerGroup
    classic: Group
    shard: GroupShard
    draft: GroupDraft

    def settle(self) -> None:
        self.shard.becoming_consumer.add(self.group.group_id)
        for member in self.classic.members.values():
            if member.join_token is not None:
                error = join_error(ErrorCode.rebalance_in_progress, member.member_id)
                self.draft.reply(member.join_token, error)
                self.classic.set_join_token(member, None)
            if member.sync_token is not None:
                self.draft.reply(member.sync_token, sync_error(ErrorCode.rebalance_in_progress))
                member.sync_token = None
            self.shard.timers.set(
                consumer_key(CONSUMER_SESSION, self.group.group_id, member.member_id),
                self.draft.now.mono_ms + member.session_timeout_ms,
            )
        if self.classic.members:
            logger.info("group %r: a consumer group from now on", self.group.group_id)


def to_consumer(shard: GroupShard, classic: Group, draft: GroupDraft) -> Work[Upgrade]:
    """Record that a classic group is a consumer group, with the members, generation and assignment it has."""
    group_id = classic.group_id
    group = ConsumerGroup(group_id)
    records: list[ConsumerGroupRecord] = []
    if classic.state is not State.EMPTY:
        _check_upgrade(shard, classic)
        topics: dict[str, None] = {}
        for at, member in enumerate(classic.members.values(), 1):
            metadata, target = _as_consumer(shard, classic, member)
            topics.update(dict.fromkeys(metadata.topics))
            records += _member_records(group_id, member.member_id, metadata, target, classic.generation)
            if at % (_MEMBERS_PER_STEP // 4) == 0:
                yield
        hash_now = yield from shard.topics.hash_of(topics)
        records += (
            GroupEpochRecord(
                group_id=group_id, value=GroupEpoch(epoch=classic.generation, metadata_hash=hash_now)
            ),
            TargetEpochRecord(group_id=group_id, value=TargetEpoch(epoch=classic.generation)),
        )
        records.sort(key=_in_order)
        for at, record in enumerate(records, 1):
            group.apply(record)
            if at % _MEMBERS_PER_STEP == 0:
                yield
    draft.records.append(GroupRecord(group_id=group_id, metadata=None))
    draft.records += records
    return Upgrade(group=group, classic=classic, shard=shard, draft=draft)


_ORDER = {
    GroupEpochRecord.KIND: 0,
    MemberRecord.KIND: 1,
    TargetRecord.KIND: 2,
    TargetEpochRecord.KIND: 3,
    CurrentRecord.KIND: 4,
}


def _in_order(record: ConsumerGroupRecord) -> int:
    return _ORDER[record.KIND]


def _check_upgrade(shard: GroupShard, classic: Group) -> None:
    if shard.config.migration_policy not in (UPGRADE, BIDIRECTIONAL):
        raise _cannot_upgrade(classic, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER_PROTOCOL:
        raise _cannot_upgrade(classic, "the group does not use the consumer embedded protocol")
    if len(classic.members) > shard.config.consumer_max_size:
        raise _cannot_upgrade(classic, "the group size exceeds the consumer group maximum size")


def _cannot_upgrade(classic: Group, reason: str, *, more: str = "") -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.{more}",
    )


def _as_consumer(
    shard: GroupShard, classic: Group, member: ClassicMember
) -> tuple[MemberMetadata, dict[UUID, tuple[int, ...]]]:
    try:
        # Before the first generation no protocol is chosen; the one the member likes best stands for it.
        protocol = classic.protocol or next((name for name, _ in member.protocols), None)
        subscription = decode_subscription(member.metadata(protocol))
        assignment = decode_assignment(member.assignment) if member.assignment else None
    except BadRecord:
        raise _cannot_upgrade(classic, "the embedded consumer protocol is malformed") from None
    if assignment is not None and assignment.user_data:
        raise _cannot_upgrade(
            classic,
            "an unsupported custom assignor is in use",
            more=" Please refer to the documentation or switch to a default assignor before re-attempting "
            "the upgrade.",
        )
    target: dict[UUID, tuple[int, ...]] = {}
    for name, partitions in assignment.partitions if assignment is not None else ():
        topic_id = shard.topics.id_of(name)
        if topic_id is not None:
            target[topic_id] = tuple(sorted(set(partitions)))
    metadata = MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )
    return metadata, target


def _member_records(
    group_id: str, member_id: str, metadata: MemberMetadata, target: Target, generation: int
) -> Iterator[ConsumerGroupRecord]:
    yield MemberRecord(group_id=group_id, member_id=member_id, value=metadata)
    yield TargetRecord(group_id=group_id, member_id=member_id, value=target)
    yield CurrentRecord(
        group_id=group_id,
        member_id=member_id,
        value=CurrentAssignment(
            epoch=generation,
            previous_epoch=generation,
            assigned={
                topic_id: dict.fromkeys(partitions, generation)
                for topic_id, partitions in target.items()
                if partitions
            },
        ),
    )


# --- consumer to classic ---


def may_become_classic(shard: GroupShard, group: ConsumerGroup, leaving: Mapping[str, Member]) -> bool:
    """Whether the group has, once these have left, members of the classic protocol alone."""
    left = len(group.members) - len(leaving)
    if left <= 0 or not group.all_speak_classic_without(leaving):
        return False
    if shard.config.migration_policy not in (DOWNGRADE, BIDIRECTIONAL) or left > shard.config.members_max:
        return False
    return fits_a_record(shard, group, leaving)


def fits_a_record(shard: GroupShard, group: ConsumerGroup, leaving: Mapping[str, Member]) -> bool:
    """Whether the one record that a classic group has could hold those that stay. Where it could not, the
    group goes on as it is, with members of the classic protocol.
    """
    room = shard.config.record_max_bytes
    for member in group.members.values():
        if member.member_id in leaving or member.metadata.classic is None:
            continue
        target = group.targets.get(member.member_id, NOTHING)
        room -= _MEMBER_RECORD_BYTES + len(member.member_id) + 4 * sum(map(len, target.values()))
        room -= sum(len(shard.topics.name_of(topic_id) or "") + 6 for topic_id in target)
        room -= max(len(data) for _, data in member.metadata.classic.protocols)
        if room < 0:
            return False
    return True


def to_classic(
    shard: GroupShard,
    group: ConsumerGroup,
    leaving: Mapping[str, Member],
    draft: GroupDraft,
    *,
    joining: Member | None = None,
    rebalances: bool = True,
) -> Work[None]:
    """Record that the group is a classic one, of its members without those that leave, and with the one that
    takes a place of theirs.
    """
    group_id = group.group_id
    draft.records += group.tombstones()
    yield
    members = {**group.members}
    targets = dict(group.targets)
    for member_id in leaving:
        del members[member_id]
    if joining is not None:
        replaced = group.static_members.get(joining.metadata.instance_id or "")
        draft.records += member_tombstones(group_id, joining.member_id)
        members[joining.member_id] = joining
        targets[joining.member_id] = targets.get(replaced or "", NOTHING)
    wall_ms = draft.now.wall_ms
    protocol = _common_protocol(members.values())
    stored = []
    for at, member in enumerate(members.values(), 1):
        stored.append(_as_classic(shard, member, protocol, targets.get(member.member_id, NOTHING)))
        if at % _MEMBERS_PER_STEP == 0:
            yield
    metadata = GroupMetadata(
        protocol_type=CONSUMER_PROTOCOL,
        generation=group.epoch,
        protocol=protocol,
        leader=next(iter(members)),
        state_timestamp_ms=wall_ms,
        members=tuple(stored),
    )
    draft.records.append(GroupRecord(group_id=group_id, metadata=metadata))
    classic = yield from Group.from_durable(group_id, metadata)
    for at, member in enumerate(members.values(), 1):
        speaks = member.metadata.classic
        if speaks is not None:
            classic.set_protocols(classic.members[member.member_id], speaks.protocols)
        shard.timers.set(
            session_key(classic, member.member_id),
            draft.now.mono_ms + classic.members[member.member_id].session_timeout_ms,
        )
        if at % _MEMBERS_PER_STEP == 0:
            yield
    if rebalances:
        yield from begin_rebalance(shard, classic, draft, "it was a consumer group")
    shard.becoming_classic[group_id] = classic
    logger.info("group %r: a classic group from now on", group_id)


def _common_protocol(members: Collection[Member]) -> str:
    """Return the protocol that most members like best among those all of them know."""
    listed = [
        [name for name, _ in member.metadata.classic.protocols]
        for member in members
        if member.metadata.classic is not None
    ]
    common = set(listed[0]).intersection(*listed[1:])
    votes: dict[str, int] = {}
    for names in listed:
        choice = next(name for name in names if name in common)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__)


def _as_classic(shard: GroupShard, member: Member, protocol: str, target: Target) -> GroupMember:
    metadata = member.metadata
    assert metadata.classic is not None
    subscription = next(data for name, data in metadata.classic.protocols if name == protocol)
    return GroupMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=metadata.classic.session_timeout_ms,
        subscription=subscription,
        assignment=encoded_assignment(shard, target, subscription),
    )


def encoded_assignment(shard: GroupShard, partitions: Mapping[UUID, Collection[int]], like: bytes) -> bytes:
    """Return partitions as the classic protocol has them, in the version of a member's subscription; in the
    first one, if that is none: nobody looks at subscriptions for protocols which are not chosen.
    """
    try:
        version = min(max(version_of(like), 0), 3)
    except BadRecord:
        version = 0
    named = ((shard.topics.name_of(topic_id), some) for topic_id, some in partitions.items())
    return encode_assignment(
        Assignment(partitions=tuple((name, tuple(sorted(some))) for name, some in named if name is not None)),
        version,
    )


# --- members that change their id ---


def replace_static(group: ConsumerGroup, old: Member, member_id: str, draft: GroupDraft) -> Member:
    """Give a static member that is back its own place, under its new id."""
    group_id = group.group_id
    new = replace(old, member_id=member_id, current=replace(old.current, epoch=0, previous_epoch=0))
    draft.records += member_tombstones(group_id, old.member_id)
    draft.records.append(MemberRecord(group_id=group_id, member_id=member_id, value=new.metadata))
    target = group.targets.get(old.member_id, NOTHING)
    draft.records.append(TargetRecord(group_id=group_id, member_id=member_id, value=target))
    draft.records.append(CurrentRecord(group_id=group_id, member_id=member_id, value=new.current))
    return new
