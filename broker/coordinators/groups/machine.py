"""Consumer groups as a pure state machine: the groups of one partition, as their shell drives them.

Owns how commands, deadlines and records reach the groups, which commands touch the same state, and what can
be read of groups. Does not own what a command leads to (`broker.coordinators.groups.classic`, `.offsets`),
the log it is replayed from, nor the replies clients wait for (`broker.coordinators.replicated_state`).
Invariant: `durable` is changed by `apply` and `apply_marker` alone and equals a replay of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from broker.coordinators.account import MemoryShare
from broker.coordinators.groups import classic
from broker.coordinators.groups.consumer_group import ConsumerGroup, GroupState, Member
from broker.coordinators.groups.membership import MEMBERS_PER_STEP, Group, State
from broker.coordinators.groups.modern import classic_members, heartbeat
from broker.coordinators.groups.offsets import Commit, TxnCommit
from broker.coordinators.groups.shard import (
    CONSUMER_KINDS,
    CONSUMER_REBALANCE,
    CONSUMER_SESSION,
    FROM_LOG,
    NOBODY,
    ConsumerSettings,
    GroupCommand,
    GroupConfig,
    GroupDecision,
    GroupShard,
    consumer_key,
)
from broker.coordinators.groups.topics import Topics
from broker.coordinators.machine import DecisionDraft, Encoded, Instant, Share
from protocol.codec import Fields
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import (
    ConsumerGroupRecord,
    MemberMetadata,
    MemberState,
    RegexRecord,
    packed_consumer_group,
)
from protocol.stored.offsets import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    decode_coordinator_record,
    encode_in_steps,
    encode_offset_record,
)
from protocol.work import Work

DEADLINES_PER_STEP: Final = 16
GROUPS_PER_STEP: Final = 64
_NO_TOKEN: Final = -1
_COMMITS: Final = (Commit, TxnCommit)
_OF_COMMITS: Final = Share("commits")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    groups: Mapping[State, int]
    """Of the classic protocol."""
    consumers: Mapping[GroupState, int]
    """Assigned by the server."""
    members: int
    offsets: int
    completed_rebalances: int
    consumer_rebalances: int
    committed_offsets: int
    expired_offsets: int


class GroupMachine(GroupShard):
    """Every group whose id hashes to one partition."""

    def __init__(
        self,
        config: GroupConfig,
        memory: MemoryShare | None = None,
        *,
        topics: Topics | None = None,
        settings_of: Callable[[str], ConsumerSettings] | None = None,
    ) -> None:
        super().__init__(config, memory, topics=topics, settings_of=settings_of)
        self._is_live = False

    # --- deciding ---

    def decide(
        self, command: GroupCommand[Any], draft: DecisionDraft[CoordinatorRecord]
    ) -> GroupDecision[Any] | Work[GroupDecision[Any]]:
        if isinstance(command, classic_members.COMMANDS) and command.group_id in self.consumers:
            return classic_members.decide(self, command, draft)
        return command.decide(self, draft)

    def scope(self, command: GroupCommand[Any]) -> Hashable | None:
        return getattr(command, "group_id", None)

    def share(self, command: GroupCommand[Any]) -> Share | None:
        if isinstance(command, _COMMITS):
            # It is judged by the membership alone, which no commit changes.
            return _OF_COMMITS
        if isinstance(command, heartbeat.ConsumerHeartbeat) and command.steady_group(self) is not None:
            # It is judged by the target, which none of these changes, and by what other members hold: one
            # that is about to give something up holds it until that is in the log, and no two of them are
            # to get the same.
            return Share("members", command.member_id)
        return None

    def tick(self, now: Instant) -> Work[GroupDecision[None]]:
        draft: DecisionDraft[CoordinatorRecord] = DecisionDraft(now, _NO_TOKEN)
        overdue: dict[str, dict[str, Member]] = {}
        for at, key in enumerate(self.timers.due(now.mono_ms), 1):
            if key[0] in CONSUMER_KINDS:
                self._find_overdue(key, overdue)
            else:
                yield from classic.meet_deadline(self, key, draft)
            if at % DEADLINES_PER_STEP == 0:
                yield
        for group_id, members in overdue.items():
            # All of a group at once: what one leads to is not applied before the others are looked at.
            yield from heartbeat.fence(self, self.consumers[group_id], members, draft, "their time was over")
        return draft.decision(soft=True)

    def _find_overdue(self, key: tuple[str, ...], overdue: dict[str, dict[str, Member]]) -> None:
        kind, group_id, member_id = key
        group = self.consumers.get(group_id)
        member = group.members.get(member_id) if group is not None else None
        if member is not None and heartbeat.is_overdue(member, kind):
            overdue.setdefault(group_id, {})[member_id] = member

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_ms()

    def resume(self, now: Instant) -> Work[None]:
        yield from classic.extend_sessions(self, now)
        for group in list(self.consumers.values()):
            for at, member in enumerate(list(group.members.values()), 1):
                key = consumer_key(CONSUMER_SESSION, group.group_id, member.member_id)
                at_ms = self.timers.at(key)
                if at_ms is not None:
                    self.timers.set(key, max(at_ms, now.mono_ms + self._session_ms(group, member)))
                if at % MEMBERS_PER_STEP == 0:
                    yield
            yield

    def _session_ms(self, group: ConsumerGroup, member: Member) -> int:
        classic_side = member.metadata.classic
        if classic_side is not None:
            return classic_side.session_timeout_ms
        return self.settings_of(group.group_id).session_timeout_ms

    # --- applying ---

    def loaded(self, now: Instant) -> Work[None]:
        self._is_live = True
        for group_id, metadata in self.durable.groups.items():
            if group_id in self.consumers:
                continue  # left behind by a change of protocol; the newer of the two counts
            self.groups[group_id] = yield from Group.from_durable(group_id, metadata)
            yield
        for at, group_id in enumerate((*self.durable.offsets, *self.durable.pending_groups()), 1):
            self.ensure_group(group_id, now.wall_ms)
            if at % GROUPS_PER_STEP == 0:
                yield
        draft: DecisionDraft[CoordinatorRecord] = DecisionDraft(now, _NO_TOKEN)
        yield from classic.restore_members(self, draft)
        assert not draft.records and not draft.replies
        for group in list(self.consumers.values()):
            self.count_consumers(group.group_id, FROM_LOG)
            for resolved in group.regexes.values():
                self.count_resolved(None, resolved)
            for at, member in enumerate(list(group.members.values()), 1):
                self._restore_consumer(group, member, now)
                if at % MEMBERS_PER_STEP == 0:
                    yield
            yield

    def _restore_consumer(self, group: ConsumerGroup, member: Member, now: Instant) -> None:
        self.recount_consumer(None, member)
        key = consumer_key(CONSUMER_SESSION, group.group_id, member.member_id)
        self.timers.set(key, now.mono_ms + self._session_ms(group, member))
        if member.current.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
            key = consumer_key(CONSUMER_REBALANCE, group.group_id, member.member_id)
            self.timers.set(key, now.mono_ms + max(member.metadata.rebalance_timeout_ms, 0))

    def apply(self, record: CoordinatorRecord, *, offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self.durable.apply_offset(record, offset, producer_id)
            if record.committed is not None and self._is_live:
                # A group that only stores offsets has no metadata record; it is here because its offsets are.
                self.ensure_group(record.group_id, record.committed.commit_timestamp_ms)
        elif isinstance(record, GroupRecord):
            self.durable.apply(record, offset=offset, producer_id=producer_id)
            self._group_changed(record)
        else:
            self._apply_consumer(record, offset)

    def _group_changed(self, record: GroupRecord) -> None:
        if record.metadata is None:
            self.drop_group(record.group_id)
            return
        converted = self.becoming_classic.pop(record.group_id, None)
        if converted is not None:
            self.groups[record.group_id] = converted
            for member in converted.members.values():
                self.recount(member)

    def _apply_consumer(self, record: ConsumerGroupRecord, offset: int) -> None:
        group_id = record.group_id
        group: ConsumerGroup | None = self.consumers.get(group_id)
        member_id = getattr(record, "member_id", None)
        before = group.members.get(member_id) if group is not None and member_id is not None else None
        known = None
        if group is not None and isinstance(record, RegexRecord):
            known = group.regexes.get(record.regex)
        self.durable.apply(record, offset=offset, producer_id=-1)
        if not self._is_live:
            return
        if isinstance(record, RegexRecord):
            self.count_resolved(known, record.value)
        had, group = group, self.consumers.get(group_id)
        if had is None and group is not None:
            host = record.value.client_host if isinstance(record.value, MemberMetadata) else NOBODY
            self.count_consumers(group_id, host)
        elif group is None:
            self.count_consumers_no_more(group_id)
        after = group.members.get(member_id) if group is not None and member_id is not None else None
        if before is not after:
            self.recount_consumer(before, after)
            if before is not None and after is None:
                self.forget_consumer(group_id, before)
        if record.value is not None:
            # A group that only stored offsets until now.
            self.drop_group(group_id)
        elif group is None and group_id in self.durable.offsets and group_id not in self.groups:
            self.ensure_group(group_id, next(self.durable.partitions(group_id))[2].commit_timestamp_ms)

    def apply_marker(self, *, producer_id: int, committed: bool) -> Work[None]:
        taken = yield from self.durable.apply_marker(producer_id=producer_id, committed=committed)
        for at, (group_id, offset) in enumerate(taken, 1):
            if at % GROUPS_PER_STEP == 0:
                yield
            if self._is_live:
                self.ensure_group(group_id, offset.commit_timestamp_ms)

    def encode(self, record: CoordinatorRecord) -> Encoded | Work[Encoded]:
        if isinstance(record, OffsetRecord):
            return encode_offset_record(record)
        packed = None if isinstance(record, GroupRecord) else packed_consumer_group(record)
        return encode_in_steps(record) if packed is None else packed

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        return decode_coordinator_record(key, value)

    # --- reading: what is durable or soft right now, never what is on its way ---

    def check_reader(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise KafkaError for one that says it is a member and is not, or not in this epoch."""
        group = self.consumers.get(group_id)
        if group is None or (member_id is None and member_epoch < 0):
            return
        member = group.members.get(member_id or "")
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        if member_epoch != member.epoch:
            is_classic = member.is_classic
            raise KafkaError(ErrorCode.illegal_generation if is_classic else ErrorCode.stale_member_epoch)

    def describe_consumers(self, group_id: str) -> Work[Fields]:
        """Return the group that the server assigns as it is when this begins; its members as each is when its
        turn comes. Raise KafkaError if there is none of this id.
        """
        group = self.consumers.get(group_id)
        if group is None:
            what = "is not a consumer group" if group_id in self.groups else "not found"
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} {what}.")
        members: list[Fields] = []
        row = {
            "group_id": group_id,
            "group_state": group.state.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": group.assignor(self.config.consumer_assignors[0]),
            "members": members,
        }
        for member in list(group.members.values()):
            members.append(self._described(group, member))
            yield
        return row

    def _described(self, group: ConsumerGroup, member: Member) -> Fields:
        metadata, current = member.metadata, member.current
        owned = {topic_id: list(has) for topic_id, has in current.assigned.items()}
        for topic_id, has in current.revoking.items():
            owned.setdefault(topic_id, []).extend(has)
        return {
            "member_id": member.member_id,
            "instance_id": metadata.instance_id,
            "rack_id": metadata.rack_id,
            "member_epoch": member.epoch,
            "client_id": metadata.client_id,
            "client_host": metadata.client_host,
            "subscribed_topic_names": metadata.topics,
            "subscribed_topic_regex": metadata.regex or "",
            "assignment": {"topic_partitions": self._named_partitions(owned)},
            "target_assignment": {
                "topic_partitions": self._named_partitions(group.targets.get(member.member_id, {}))
            },
            "member_type": 0 if member.is_classic else 1,
        }

    def _named_partitions(self, partitions: Mapping[UUID, Collection[int]]) -> list[Fields]:
        named = ((topic_id, self.topics.name_of(topic_id), some) for topic_id, some in partitions.items())
        return [
            {"topic_id": topic_id, "topic_name": name, "partitions": sorted(some)}
            for topic_id, name, some in named
            if name is not None
        ]

    def describe(self, group_id: str) -> Work[Fields | None]:
        """Return the group as it is when this begins; its members as each is when its turn comes."""
        group = self.groups.get(group_id)
        if group is None:
            return None
        is_stable, protocol = group.state is State.STABLE, group.protocol
        members: list[Fields] = []
        row = {
            "group_id": group_id,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": (protocol or "") if is_stable else "",
            "members": members,
        }
        for member in list(group.members.values()):
            members.append(
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata(protocol) if is_stable else b"",
                    "member_assignment": member.assignment,
                }
            )
            if len(members) % MEMBERS_PER_STEP == 0:
                yield
        return row

    def listed(self, states: Collection[str], types: Collection[str]) -> Work[list[Fields]]:
        """Return a row for each group that passes the filters, in small letters; an empty one passes all."""
        rows: list[Fields] = []
        groups: list[Group | ConsumerGroup] = []
        if not types or "classic" in types:
            groups += self.groups.values()
        if not types or "consumer" in types:
            groups += self.consumers.values()
        for at, group in enumerate(groups, 1):
            if at % GROUPS_PER_STEP == 0:
                yield
            if states and group.state.value.lower() not in states:
                continue
            rows.append(
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type or "",
                    "group_state": group.state.value,
                    "group_type": "classic" if isinstance(group, Group) else "consumer",
                }
            )
        return rows

    def statistics(self) -> GroupStatistics:
        counts = dict.fromkeys(State, 0)
        for group in self.groups.values():
            counts[group.state] += 1
        consumers = dict.fromkeys(GroupState, 0)
        for consumer in self.consumers.values():
            consumers[consumer.state] += 1
        members = sum(len(group.members) for group in self.groups.values())
        return GroupStatistics(
            groups=counts,
            consumers=consumers,
            members=members + sum(len(group.members) for group in self.consumers.values()),
            offsets=sum(len(p) for topics in self.durable.offsets.values() for p in topics.values()),
            completed_rebalances=self.completed_rebalances,
            consumer_rebalances=self.consumer_rebalances,
            committed_offsets=self.committed_offsets,
            expired_offsets=self.expired_offsets,
        )
