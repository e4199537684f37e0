"""Committed offsets: what may change them, and when they expire.

Owns the commands on offsets and on whole groups, whatever protocol the members of a group speak. Does not own
membership, which a group judges by itself (`broker.coordinators.groups.membership`), nor what is stored
(`broker.coordinators.groups.durable`).
Invariant: an offset changes only by a record; while a group's members may still read an offset, only a
commit, a request to delete it or the end of its topic does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from broker.coordinators.groups.consumer_group import ConsumerGroup, GroupState
from broker.coordinators.groups.durable import offset_tombstone
from broker.coordinators.groups.membership import Group, State
from broker.coordinators.groups.shard import (
    GroupDecision,
    GroupDraft,
    GroupShard,
    check_storable,
    is_storable,
)
from broker.coordinators.machine import TransactionalProducer
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.offsets import CommittedOffset, CoordinatorRecord, GroupRecord, OffsetRecord
from protocol.work import Work

INT64_MAX: Final = 2**63 - 1
OFFSETS_PER_STEP: Final = 32
_new_tuple = tuple.__new__
"""A named tuple of all its fields, in half the time."""


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: UUID | None = None


class Commit(NamedTuple):
    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    retention_ms: int = -1
    knows_epochs: bool = True
    """Older clients get ILLEGAL_GENERATION for a group that does not exist, and cannot be members that speak
    the consumer protocol.
    """

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> CommitDecision | Work[CommitDecision]:
        check_storable(self.group_id)
        check = check_committer(
            shard,
            self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            knows_epochs=self.knows_epochs,
        )
        expire_ms = -1
        if self.retention_ms >= 0:
            expire_ms = min(draft.now.wall_ms + self.retention_ms, INT64_MAX)
        if len(self.offsets) >= OFFSETS_PER_STEP:
            return self._recording(shard, draft, expire_ms, check)
        errors = [_record_offset(shard, draft, self.group_id, one, expire_ms, check) for one in self.offsets]
        return self._recorded(shard, draft, errors)

    def _recording(
        self, shard: GroupShard, draft: GroupDraft, expire_ms: int, check: Check | None
    ) -> Work[CommitDecision]:
        errors = yield from _record_offsets(
            shard, draft, self.group_id, self.offsets, expire_ms=expire_ms, check=check
        )
        return self._recorded(shard, draft, errors)

    def _recorded(self, shard: GroupShard, draft: GroupDraft, errors: list[ErrorCode]) -> CommitDecision:
        now = draft.now
        shard.committed_offsets += len(draft.records)
        group = shard.groups.get(self.group_id)
        if group is None:
            if not draft.records:
                # Its first commit begins a group even if nothing of it could be kept.
                shard.ensure_group(self.group_id, now.wall_ms)
        elif self.member_id:
            member = group.members.get(self.member_id)
            if member is not None:
                shard.restart_session(group, member, now)
        return draft.decision(tuple(errors), soft=False)


CommitDecision: TypeAlias = GroupDecision[tuple[ErrorCode, ...]]
Check: TypeAlias = Callable[[UUID | None, int], None]
"""Raises KafkaError unless the committer may move the offset of this partition."""


def check_committer(
    shard: GroupShard,
    group_id: str,
    *,
    member_id: str,
    instance_id: str | None,
    generation: int,
    knows_epochs: bool,
    in_transaction: bool = False,
) -> Check | None:
    """Raise KafkaError unless this committer may move the group's offsets now; return what is to be asked of
    each partition, if anything.
    """
    consumers = shard.consumers.get(group_id)
    if consumers is not None:
        return _check_consumer(consumers, member_id, instance_id, generation, knows_epochs, in_transaction)
    group = shard.groups.get(group_id)
    if group is not None and in_transaction:
        group.check_transactional_commit(member_id, instance_id, generation)
    elif group is not None:
        group.check_commit(member_id, instance_id, generation)
    elif generation >= 0:
        is_known = knows_epochs and not in_transaction
        raise KafkaError(ErrorCode.group_id_not_found if is_known else ErrorCode.illegal_generation)
    return None


def _check_consumer(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    knows_epochs: bool,
    in_transaction: bool,
) -> Check | None:
    if epoch < 0 and not group.members:
        return None
    if in_transaction and epoch == -1 and not member_id and instance_id is None:
        return None
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id)
    if not in_transaction and not member.is_classic and not knows_epochs:
        raise KafkaError(ErrorCode.unsupported_version)
    stale = ErrorCode.stale_member_epoch
    if member.is_classic or in_transaction:
        stale = ErrorCode.illegal_generation
    if epoch > member.epoch:
        raise KafkaError(stale)
    if epoch == member.epoch:
        return None
    current = member.current

    def check(topic_id: UUID | None, partition: int) -> None:
        # An epoch behind is good enough for what the member has had since (KIP-1251).
        since = None
        if topic_id is not None:
            since = current.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = current.revoking.get(topic_id, {}).get(partition)
        if since is None or epoch < since:
            raise KafkaError(stale)

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnCommit:
    """A commit that counts once the transaction of its producer is committed."""

    group_id: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    offsets: tuple[OffsetToCommit, ...]
    producer: TransactionalProducer

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[tuple[ErrorCode, ...]]]:
        check_storable(self.group_id)
        check = check_committer(
            shard,
            self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            knows_epochs=True,
            in_transaction=True,
        )
        wall_ms = draft.now.wall_ms
        errors = yield from _record_offsets(
            shard, draft, self.group_id, self.offsets, expire_ms=-1, check=check
        )
        shard.committed_offsets += len(draft.records)
        if _group(shard, self.group_id) is None and not draft.records:
            shard.ensure_group(self.group_id, wall_ms)
        return draft.decision(tuple(errors), soft=False)


def _record_offsets(
    shard: GroupShard,
    draft: GroupDraft,
    group_id: str,
    offsets: Iterable[OffsetToCommit],
    *,
    expire_ms: int,
    check: Check | None,
) -> Work[list[ErrorCode]]:
    """Record each of many offsets; return an error or none for each."""
    errors = []
    for at, offset in enumerate(offsets, 1):
        if at % OFFSETS_PER_STEP == 0:
            yield
        errors.append(_record_offset(shard, draft, group_id, offset, expire_ms, check))
    return errors


def _record_offset(
    shard: GroupShard,
    draft: GroupDraft,
    group_id: str,
    offset: OffsetToCommit,
    expire_ms: int,
    check: Check | None,
) -> ErrorCode:
    """Make a record of an offset if it can be stored; return why it cannot. Raise KafkaError if it may not be
    moved."""
    metadata = offset.metadata
    if metadata and not _may_keep(metadata, shard.config.offset_metadata_max_bytes):
        return ErrorCode.offset_metadata_too_large
    if check is not None:
        check(offset.topic_id, offset.partition)
    draft.records.append(_offset_record(group_id, offset, draft.now.wall_ms, expire_ms))
    return ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    group_id: str
    partitions: tuple[tuple[str, int], ...]

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[tuple[ErrorCode, ...]]]:
        group = _group(shard, self.group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found)
        is_others = isinstance(group, Group) and not group.uses_consumer_protocol
        if is_others and group.state is not State.EMPTY:
            raise KafkaError(ErrorCode.non_empty_group)
        known = yield from shard.durable.keys(self.group_id)
        errors = []
        for at, (topic, partition) in enumerate(self.partitions, 1):
            if at % OFFSETS_PER_STEP == 0:
                yield
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
                continue
            errors.append(ErrorCode.none)
            if (topic, partition) in known:
                draft.records.append(offset_tombstone(self.group_id, topic, partition))
        return draft.decision(tuple(errors), soft=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroups:
    group_ids: tuple[str, ...]

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[tuple[ErrorCode, ...]]]:
        errors = []
        for group_id in self.group_ids:
            yield
            group = _group(shard, group_id)
            if group is None:
                errors.append(ErrorCode.group_id_not_found)
            elif not _is_empty(group):
                errors.append(ErrorCode.non_empty_group)
            else:
                errors.append(ErrorCode.none)
                yield from _forget(group_id, (yield from shard.durable.keys(group_id)), draft)
                draft.records += _group_tombstones(group)
        return draft.decision(tuple(errors), soft=False)


def _forget(group_id: str, partitions: Iterable[tuple[str, int]], draft: GroupDraft) -> Work[None]:
    for at, (topic, partition) in enumerate(partitions, 1):
        draft.records.append(offset_tombstone(group_id, topic, partition))
        if at % OFFSETS_PER_STEP == 0:
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTopics:
    """Delete the offsets of deleted topics, but not those of a new topic of the same name."""

    topics: Mapping[str, UUID]
    group_ids: tuple[str, ...]

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[int]]:
        durable = shard.durable
        for group_id in self.group_ids:
            yield
            for at, (topic, partition) in enumerate((yield from durable.keys(group_id)), 1):
                if at % OFFSETS_PER_STEP == 0:
                    yield
                if topic not in self.topics:
                    continue
                ours = (None, self.topics[topic])
                # A tombstone takes those of open transactions too.
                if all(each.topic_id in ours for each in durable.known(group_id, topic, partition)):
                    draft.records.append(offset_tombstone(group_id, topic, partition))
        return draft.decision(len(draft.records), soft=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """Delete the offsets whose time is over, or whose topic has gone without a word to this coordinator: it
    was deleted before the partition was led here, say. Kafka keeps those until their time is over."""

    group_ids: tuple[str, ...]

    def decide(self, shard: GroupShard, draft: GroupDraft, /) -> Work[GroupDecision[int]]:
        durable = shard.durable
        for group_id in self.group_ids:
            yield
            group = _group(shard, group_id)
            if group is None:
                continue
            expired, kept = yield from _expired(shard, group, draft.now.wall_ms)
            yield from _forget(group_id, expired, draft)
            shard.expired_offsets += len(expired)
            is_idle = _is_empty(group) and not (isinstance(group, Group) and group.pending_join)
            if kept == 0 and is_idle and not durable.has_open_transaction(group.group_id):
                draft.records += _group_tombstones(group)
        return draft.decision(len(draft.records), soft=False)


def _group(shard: GroupShard, group_id: str) -> Group | ConsumerGroup | None:
    return shard.consumers.get(group_id) or shard.groups.get(group_id)


def _is_empty(group: Group | ConsumerGroup) -> bool:
    return group.state is State.EMPTY or group.state is GroupState.EMPTY


def _group_tombstones(group: Group | ConsumerGroup) -> list[CoordinatorRecord]:
    if isinstance(group, ConsumerGroup):
        return list(group.tombstones())
    return [GroupRecord(group_id=group.group_id, metadata=None)]


def _expired(
    shard: GroupShard, group: Group | ConsumerGroup, wall_ms: int
) -> Work[tuple[list[tuple[str, int]], int]]:
    """Return the partitions whose offsets' time is over, and how many others there are. A topic that is not
    there was deleted: who leads the partition now knows of every topic that was known where the offset was
    committed, as the leader before heard no later of its own end."""
    expired: list[tuple[str, int]] = []
    count = 0
    for topic, partition, offset in shard.durable.partitions(group.group_id):
        count += 1
        if count % OFFSETS_PER_STEP == 0:
            yield
        if shard.durable.is_pending(group.group_id, topic, partition):
            continue
        since_ms = group.retention_starts_ms(topic, offset.commit_timestamp_ms)
        if offset.topic_id is not None and shard.topics.name_of(offset.topic_id) is None:
            is_over = True
        elif since_ms is None:
            continue
        elif offset.expire_timestamp_ms >= 0:
            is_over = wall_ms >= offset.expire_timestamp_ms
        else:
            is_over = wall_ms - since_ms >= shard.config.offsets_retention_ms
        if is_over:
            expired.append((topic, partition))
    return expired, count - len(expired)


def _offset_record(group_id: str, offset: OffsetToCommit, wall_ms: int, expire_ms: int) -> OffsetRecord:
    topic, partition, moved_to, leader_epoch, metadata, topic_id = offset
    if expire_ms >= 0:
        # The format that has an expiry has neither an epoch nor an id.
        leader_epoch, topic_id = -1, None
    committed = _new_tuple(
        CommittedOffset, (moved_to, wall_ms, leader_epoch, metadata or "", expire_ms, topic_id, -1)
    )
    return _new_tuple(OffsetRecord, (group_id, topic, partition, committed))


def _may_keep(metadata: str, longest: int) -> bool:
    return _java_length(metadata) <= longest and is_storable(metadata)


def _java_length(text: str) -> int:
    """Return the number of UTF-16 units, which Kafka counts, whatever the setting's name says."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
