"""Consumer groups as a pure state machine: membership, rebalances and committed offsets of one partition.

Owns what a group decides for every command of the classic group protocol, what of it is durable (the
metadata a rebalance ended with, and offsets), and when its members' time is up. Does not own the log it is
replayed from, who waits for which reply, or request and response versions (`broker.replicated_state`,
`broker.handlers.groups`).
Invariant: `durable` is changed by `apply` alone and equals a replay of the log; an assignment is handed out
only with the record that makes it durable; a member, generation or instance that is not the group's own is
always refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from broker.coordinators.groups.membership import CAME_FROM, Group, Member, Protocols, State
from broker.coordinators.machine import Decision, Instant, Timers
from protocol.errors import ErrorCode, KafkaError
from protocol.formats import (
    CommittedOffset,
    CoordinatorRecord,
    GroupMetadata,
    GroupRecord,
    OffsetRecord,
    decode_coordinator_record,
    encode_coordinator_record,
)

logger = logging.getLogger(__name__)

INT64_MAX: Final = 2**63 - 1
STRING_BYTES_MAX: Final = 2**15 - 1

Record: TypeAlias = CoordinatorRecord
Fields: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in its first join: it cannot send heartbeats yet."""
    offset_metadata_max_bytes: int = 4_096
    record_max_bytes: int = 1_000_000
    offsets_retention_ms: int = 604_800_000


# Commands. Each names its group, except those that concern all of a partition.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    group_id: str
    leavers: tuple[Leaver, ...]


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    group_id: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    retention_ms: int = -1
    offsets: tuple[OffsetToCommit, ...]
    knows_missing_group: bool = True
    """Older clients are told of a missing group as of an old generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroups:
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTopics:
    """These topics were deleted: so are the offsets committed for them, but not those for a successor."""

    topics: Mapping[str, UUID]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    pass


Command: TypeAlias = (
    Join | Sync | Heartbeat | Leave | Commit | DeleteOffsets | DeleteGroups | ForgetTopics | ExpireOffsets
)


class Turn:
    """What one decision has come to so far."""

    __slots__ = ("now", "records", "replies")

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.records: list[Record] = []
        self.replies: list[tuple[int, Any]] = []

    def reply(self, token: int, answer: Any) -> None:
        self.replies.append((token, answer))

    def decision(self, *, soft: bool) -> Decision[Record]:
        return Decision(records=tuple(self.records), replies=tuple(self.replies), soft=soft)


Offsets: TypeAlias = dict[str, dict[str, dict[int, CommittedOffset]]]
"""Group id → topic → partition → offset."""


@dataclass(slots=True)
class Durable:
    """What the log says, and nothing else. Two of them are equal when the same records were applied."""

    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = field(default_factory=dict)
    """Offsets of transactions that are still open, by producer id."""

    def put(self, group_id: str, topic: str, partition: int, offset: CommittedOffset) -> None:
        self.offsets.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.offsets.get(group_id, {}).get(topic, {}).get(partition)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        for pending in self.pending.values():
            pending.pop((group_id, topic, partition), None)
        topics = self.offsets.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
        if not topics:
            del self.offsets[group_id]

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return any((group_id, topic, partition) in pending for pending in self.pending.values())

    def has_open_transaction(self, group_id: str) -> bool:
        return any(key[0] == group_id for pending in self.pending.values() for key in pending)

    def partitions(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self.offsets.get(group_id, {}).items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def keys(self, group_id: str) -> set[tuple[str, int]]:
        """Every partition a tombstone would change something for."""
        committed = {(topic, partition) for topic, partition, _ in self.partitions(group_id)}
        return committed | {
            key[1:] for pending in self.pending.values() for key in pending if key[0] == group_id
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    groups: Mapping[State, int]
    members: int
    offsets: int
    completed_rebalances: int
    committed_offsets: int
    expired_offsets: int


class GroupMachine:
    """Every group whose id hashes to one partition."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.durable = Durable()
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self._is_live = False
        self._completed_rebalances = 0
        self._committed_offsets = 0
        self._expired_offsets = 0

    # Machine

    def decide(self, command: Command, token: int, now: Instant) -> Decision[Record]:
        turn = Turn(now)
        match command:
            case Commit():
                self._commit(command, token, turn)
                return turn.decision(soft=False)
            case Heartbeat():
                self._heartbeat(command, token, turn)
            case Join():
                self._join(command, token, turn)
            case Sync():
                self._sync(command, token, turn)
            case Leave():
                self._leave(command, token, turn)
            case DeleteOffsets():
                self._delete_offsets(command, token, turn)
                return turn.decision(soft=False)
            case DeleteGroups():
                self._delete_groups(command, token, turn)
                return turn.decision(soft=False)
            case ForgetTopics():
                self._forget_topics(command, token, turn)
                return turn.decision(soft=False)
            case ExpireOffsets():
                self._expire_offsets(token, turn)
                return turn.decision(soft=False)
        return turn.decision(soft=True)

    def tick(self, now: Instant) -> Decision[Record]:
        turn = Turn(now)
        for kind, group_id, member_id in self.timers.due(now.mono_ms):
            group = self.groups.get(group_id)
            if group is None:
                continue
            if kind == "session":
                self._session_expired(group, member_id, turn)
            elif kind == "join":
                self._join_time_is_up(group, turn)
            else:
                self._sync_time_is_up(group, turn)
        return turn.decision(soft=True)

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_ms()

    def resume(self, now: Instant) -> None:
        for group in self.groups.values():
            for member in group.members.values():
                at_ms = self.timers.at(_session_key(group, member.member_id))
                if at_ms is not None and at_ms < now.mono_ms + member.session_timeout_ms:
                    self._restart_session(group, member, now)

    def loaded(self, now: Instant) -> None:
        self._is_live = True
        for group_id, metadata in self.durable.groups.items():
            self.groups[group_id] = Group.from_durable(group_id, metadata)
        pending = (key[0] for keys in self.durable.pending.values() for key in keys)
        for group_id in (*self.durable.offsets, *pending):
            self._ensure_simple_group(group_id, now.wall_ms)
        turn = Turn(now)
        for group in self.groups.values():
            for member in group.members.values():
                self._restart_session(group, member, now)
            if len(group.members) > self.config.max_size:
                # The bound was lowered: the members find out by rejoining, with time to commit before.
                self._prepare_rebalance(group, turn, "it is larger than it may be")
        assert not turn.records and not turn.replies

    def apply(self, record: Record, *, offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self._apply_offset(record, offset, producer_id)
        elif record.metadata is None:
            self.durable.groups.pop(record.group_id, None)
            self._drop_group(record.group_id)
        else:
            self.durable.groups[record.group_id] = record.metadata

    def apply_marker(self, *, producer_id: int, committed: bool) -> None:
        for (group_id, topic, partition), offset in self.durable.pending.pop(producer_id, {}).items():
            current = self.durable.get(group_id, topic, partition)
            # A plain commit after the transactional one is the newer of the two, whenever that one ends.
            if committed and (current is None or offset.record_offset > current.record_offset):
                self.durable.put(group_id, topic, partition, offset)
                if self._is_live:
                    self._ensure_simple_group(group_id, offset.commit_timestamp_ms)

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        return encode_coordinator_record(record)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        return decode_coordinator_record(key, value)

    def scope(self, command: Command) -> Hashable | None:
        return getattr(command, "group_id", None)

    def is_stackable(self, command: Command) -> bool:
        # A commit is judged by the membership alone, which no commit changes.
        return isinstance(command, Commit)

    # Reading: always what is durable or soft right now, never what is on its way.

    def describe(self, group_id: str) -> Fields | None:
        group = self.groups.get(group_id)
        if group is None:
            return None
        is_stable = group.state is State.STABLE
        return {
            "group_id": group_id,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": (group.protocol or "") if is_stable else "",
            "members": tuple(
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                    "member_assignment": member.assignment,
                }
                for member in group.members.values()
            ),
        }

    def listed(self, states: Collection[str], types: Collection[str]) -> list[Fields]:
        """Filters compare without regard to case; an empty one lets everything pass."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        if wanted_types and "classic" not in wanted_types:
            return []
        return [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": "classic",
            }
            for group in self.groups.values()
            if not wanted_states or group.state.value.lower() in wanted_states
        ]

    def statistics(self) -> GroupStatistics:
        counts = dict.fromkeys(State, 0)
        for group in self.groups.values():
            counts[group.state] += 1
        return GroupStatistics(
            groups=counts,
            members=sum(len(group.members) for group in self.groups.values()),
            offsets=sum(len(p) for topics in self.durable.offsets.values() for p in topics.values()),
            completed_rebalances=self._completed_rebalances,
            committed_offsets=self._committed_offsets,
            expired_offsets=self._expired_offsets,
        )

    # Joining

    def _join(self, command: Join, token: int, turn: Turn) -> None:
        _check_storable(
            command.group_id,
            command.new_member_id,
            command.instance_id or "",
            command.client_id,
            command.protocol_type,
            *(name for name, _ in command.protocols),
        )
        group = self.groups.get(command.group_id)
        if group is None:
            if command.member_id:
                turn.reply(token, join_error(ErrorCode.unknown_member_id, command.member_id))
                return
            # It stays, empty, even when this join is refused below.
            group = self.groups[command.group_id] = Group(command.group_id, turn.now.wall_ms)
        if not self._accepts(group, command.member_id):
            self._discard(group, command.member_id)
            turn.reply(token, join_error(ErrorCode.group_max_size_reached))
        elif not group.supports(command.protocol_type, command.protocols):
            turn.reply(token, join_error(ErrorCode.inconsistent_group_protocol, command.member_id))
        elif command.member_id:
            self._join_existing(group, command, token, turn)
        else:
            self._join_new(group, command, token, turn)

    def _accepts(self, group: Group, member_id: str) -> bool:
        member = group.members.get(member_id)
        match group.state:
            case State.EMPTY:
                return True
            case State.PREPARING_REBALANCE:
                # Counting who waits, not who belongs: of a group above a lowered bound the last to rejoin go.
                if member is not None and member.join_token is not None:
                    return True
                return group.awaiting_join < self.config.max_size
            case State.COMPLETING_REBALANCE | State.STABLE:
                return member is not None or len(group.members) < self.config.max_size

    def _join_new(self, group: Group, command: Join, token: int, turn: Turn) -> None:
        member_id = command.new_member_id
        if command.instance_id is not None:
            if command.instance_id in group.static_members:
                self._join_returning_static(group, command, token, turn)
            else:
                self._add_member(group, member_id, command, token, turn)
        elif command.requires_known_member:
            group.pending_join.add(member_id)
            self.timers.set(
                ("session", group.group_id, member_id), turn.now.mono_ms + command.session_timeout_ms
            )
            turn.reply(token, join_error(ErrorCode.member_id_required, member_id))
        else:
            self._add_member(group, member_id, command, token, turn)

    def _join_existing(self, group: Group, command: Join, token: int, turn: Turn) -> None:
        if command.member_id in group.pending_join and command.instance_id is None:
            self._add_member(group, command.member_id, command, token, turn)
            return
        try:
            member = group.check_member(command.member_id, command.instance_id)
        except KafkaError as error:
            turn.reply(token, join_error(error.code, command.member_id))
            return
        is_same = member.protocols == command.protocols
        match group.state:
            case State.PREPARING_REBALANCE:
                self._rejoin(group, member, command, token, turn)
            case State.COMPLETING_REBALANCE if is_same:
                # It did not get the answer to its join; the generation goes on as it is.
                turn.reply(token, self._joined(group, member))
            case State.STABLE if is_same and group.leader != member.member_id:
                turn.reply(token, self._joined(group, member))
            case State.COMPLETING_REBALANCE | State.STABLE:
                self._rejoin(group, member, command, token, turn)
            case State.EMPTY:
                raise AssertionError(f"{group!r} has a member but is empty")

    def _join_returning_static(self, group: Group, command: Join, token: int, turn: Turn) -> None:
        assert command.instance_id is not None
        old_leader = group.leader
        old = group.members[group.static_members[command.instance_id]]
        if old.join_token is not None:
            turn.reply(old.join_token, join_error(ErrorCode.fenced_instance_id, old.member_id))
        if old.sync_token is not None:
            turn.reply(old.sync_token, sync_error(ErrorCode.fenced_instance_id))
        self.timers.cancel(_session_key(group, old.member_id))
        member = group.replace_static(command.instance_id, command.new_member_id)
        member.is_new = False
        self._update(group, member, command, token, turn)
        self._restart_session(group, member, turn.now)
        if group.state is State.STABLE:
            if group.select_protocol() != group.protocol:
                self._prepare_rebalance(group, turn, f"{member.member_id!r} changes the protocol")
                return
            if not self._persist(group, turn):
                self._prepare_rebalance(group, turn, "its metadata is too large to be stored")
                return
            member.join_token = None
            turn.reply(token, self._joined_in_place(group, member, command, old_leader))
        elif group.state is State.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id right now.
            self._prepare_rebalance(group, turn, f"{member.member_id!r} is back")
        else:
            self._maybe_complete_join(group, turn)

    def _add_member(self, group: Group, member_id: str, command: Join, token: int, turn: Turn) -> None:
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
            join_token=token,
            is_new=True,
        )
        group.add(member)
        self.timers.set(
            _session_key(group, member_id), turn.now.mono_ms + self.config.new_member_join_timeout_ms
        )
        self._rebalance_or_complete_join(group, turn, f"{member_id!r} joined")

    def _rejoin(self, group: Group, member: Member, command: Join, token: int, turn: Turn) -> None:
        self._update(group, member, command, token, turn)
        self._rebalance_or_complete_join(group, turn, f"{member.member_id!r} joined again")

    def _update(self, group: Group, member: Member, command: Join, token: int, turn: Turn) -> None:
        if member.join_token is not None:
            # It asks again, so it gave up on the first answer; nobody may be left waiting for ever.
            turn.reply(member.join_token, join_error(ErrorCode.rebalance_in_progress, member.member_id))
        member.protocols = command.protocols
        member.rebalance_timeout_ms = command.rebalance_timeout_ms
        member.session_timeout_ms = command.session_timeout_ms
        member.join_token = token

    def _joined(self, group: Group, member: Member) -> Fields:
        is_leader = group.leader == member.member_id
        return join_reply(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader or "",
            members=_member_list(group) if is_leader else (),
        )

    def _joined_in_place(self, group: Group, member: Member, command: Join, old_leader: str | None) -> Fields:
        """The answer to a static member that is back without a rebalance."""
        if command.can_skip_assignment:
            reply = self._joined(group, member)
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

    # Rebalance

    def _rebalance_or_complete_join(self, group: Group, turn: Turn, reason: str) -> None:
        if group.state in CAME_FROM[State.PREPARING_REBALANCE]:
            self._prepare_rebalance(group, turn, reason)
        else:
            self._maybe_complete_join(group, turn)

    def _prepare_rebalance(self, group: Group, turn: Turn, reason: str) -> None:
        logger.info("group %r: rebalance after generation %d, %s", group.group_id, group.generation, reason)
        if group.state is State.COMPLETING_REBALANCE:
            self._cancel_assignment(group, turn)
        group.pending_sync.clear()
        self.timers.cancel(_sync_key(group))
        is_initial = group.state is State.EMPTY
        group.move_to(State.PREPARING_REBALANCE, turn.now.wall_ms)
        if is_initial:
            delay_ms = self.config.initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self.timers.set(_join_key(group), turn.now.mono_ms + delay_ms)
        elif group.has_all_joined:
            self._complete_join(group, turn)
        else:
            self.timers.set(_join_key(group), turn.now.mono_ms + group.rebalance_timeout_ms)

    def _maybe_complete_join(self, group: Group, turn: Turn) -> None:
        is_initial = group.previous_state is State.EMPTY
        if group.state is State.PREPARING_REBALANCE and not is_initial and group.has_all_joined:
            self._complete_join(group, turn)

    def _join_time_is_up(self, group: Group, turn: Turn) -> None:
        if group.state is not State.PREPARING_REBALANCE:
            return
        remaining_ms = group.initial_remaining_ms
        if remaining_ms and group.new_member_added:
            # Members still arrive: wait as long again, within the rebalance timeout.
            delay_ms = self.config.initial_rebalance_delay_ms
            group.new_member_added = False
            group.initial_remaining_ms = max(remaining_ms - delay_ms, 0)
            self.timers.set(_join_key(group), turn.now.mono_ms + min(delay_ms, remaining_ms))
            return
        self._complete_join(group, turn)

    def _complete_join(self, group: Group, turn: Turn) -> None:
        self.timers.cancel(_join_key(group))
        group.initial_remaining_ms = None
        late = [m for m in group.members.values() if m.join_token is None and m.instance_id is None]
        for member in late:
            self._discard(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none came: their sessions decide.
            self.timers.set(_join_key(group), turn.now.mono_ms + group.rebalance_timeout_ms)
            return
        group.begin_generation(turn.now.wall_ms)
        if not group.members:
            self._persist(group, turn)
            logger.info("group %r: empty in generation %d", group.group_id, group.generation)
            return
        for member in group.members.values():
            if member.join_token is not None:
                turn.reply(member.join_token, self._joined(group, member))
                member.join_token = None
            member.is_new = False
            group.pending_sync.add(member.member_id)
            self._restart_session(group, member, turn.now)
        self.timers.set(_sync_key(group), turn.now.mono_ms + group.rebalance_timeout_ms)

    def _persist(self, group: Group, turn: Turn) -> bool:
        """False when no batch can hold the group: that is its own trouble, never the whole partition's."""
        record = GroupRecord(group_id=group.group_id, metadata=group.durable())
        _, value = self.encode(record)
        if len(value or b"") > self.config.record_max_bytes:
            return False
        turn.records.append(record)
        return True

    def _cancel_assignment(self, group: Group, turn: Turn) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_token is not None:
                turn.reply(member.sync_token, sync_error(ErrorCode.rebalance_in_progress))
                member.sync_token = None
                self._restart_session(group, member, turn.now)

    def _sync(self, command: Sync, token: int, turn: Turn) -> None:
        group = self.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        member = group.check_member(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        if _differs(command.protocol_type, group.protocol_type) or _differs(
            command.protocol_name, group.protocol
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if group.state is State.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.timers.cancel(_sync_key(group))
        if group.state is State.STABLE:
            turn.reply(token, _synced(group, member))
            return
        if member.sync_token is not None:
            turn.reply(member.sync_token, sync_error(ErrorCode.rebalance_in_progress))
        member.sync_token = token
        if group.leader == member.member_id:
            self._assign(group, command.assignments, turn)

    def _assign(self, group: Group, assignments: Mapping[str, bytes], turn: Turn) -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        if not self._persist(group, turn):
            self._prepare_rebalance(group, turn, "its metadata is too large to be stored")
            return
        group.move_to(State.STABLE, turn.now.wall_ms)
        logger.info("group %r: generation %d is stable", group.group_id, group.generation)
        self._completed_rebalances += 1
        for member in group.members.values():
            if member.sync_token is not None:
                turn.reply(member.sync_token, _synced(group, member))
                member.sync_token = None
                self._restart_session(group, member, turn.now)

    def _sync_time_is_up(self, group: Group, turn: Turn) -> None:
        if group.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not group.pending_sync:
            return
        for member_id in sorted(group.pending_sync):
            self._discard(group, member_id)
        self._prepare_rebalance(group, turn, "members did not sync in time")

    # Staying and leaving

    def _heartbeat(self, command: Heartbeat, token: int, turn: Turn) -> None:
        group = self.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        member = group.check_member(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        self._restart_session(group, member, turn.now)
        is_rebalancing = group.state is State.PREPARING_REBALANCE
        turn.reply(token, ErrorCode.rebalance_in_progress if is_rebalancing else ErrorCode.none)

    def _leave(self, command: Leave, token: int, turn: Turn) -> None:
        group = self.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        errors = tuple(self._leave_one(group, leaver, turn) for leaver in command.leavers)
        turn.reply(token, errors)
        if ErrorCode.none not in errors:
            return
        if group.state is State.PREPARING_REBALANCE:
            self._maybe_complete_join(group, turn)
        elif group.state is not State.EMPTY:
            self._prepare_rebalance(group, turn, "members left")
        self._forget_if_idle(group)

    def _leave_one(self, group: Group, leaver: Leaver, turn: Turn) -> ErrorCode:
        member_id = leaver.member_id
        if not member_id:
            # An administrator removes a static member by its instance id.
            static_id = group.static_members.get(leaver.instance_id) if leaver.instance_id else None
            if static_id is None:
                return ErrorCode.unknown_member_id
            member_id = static_id
        elif member_id in group.pending_join:
            self._discard(group, member_id)
            return ErrorCode.none
        else:
            try:
                group.check_member(member_id, leaver.instance_id)
            except KafkaError as error:
                return error.code
        self._dismiss(group, group.members[member_id], turn)
        return ErrorCode.none

    def _session_expired(self, group: Group, member_id: str, turn: Turn) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.pending_join.discard(member_id)
        elif member.is_excused:
            return
        else:
            self._dismiss(group, member, turn)
            if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
                self._prepare_rebalance(group, turn, f"{member_id!r} was not heard of in time")
                return
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            self._complete_join(group, turn)
        self._forget_if_idle(group)

    def _forget_if_idle(self, group: Group) -> None:
        """A group that somebody only began to join was never made durable, so nothing needs to delete it."""
        group_id = group.group_id
        is_idle = group.state is State.EMPTY and not group.pending_join and group.generation == 0
        if is_idle and group_id not in self.durable.groups and not self.durable.keys(group_id):
            del self.groups[group_id]

    def _dismiss(self, group: Group, member: Member, turn: Turn) -> None:
        """Remove a member that may still wait for an answer; if it is alive it joins anew."""
        if member.join_token is not None:
            turn.reply(member.join_token, join_error(ErrorCode.unknown_member_id))
        if member.sync_token is not None:
            turn.reply(member.sync_token, sync_error(ErrorCode.unknown_member_id))
        self._discard(group, member.member_id)

    def _discard(self, group: Group, member_id: str) -> None:
        group.remove(member_id)
        self.timers.cancel(_session_key(group, member_id))

    def _restart_session(self, group: Group, member: Member, now: Instant) -> None:
        self.timers.set(_session_key(group, member.member_id), now.mono_ms + member.session_timeout_ms)

    # Offsets

    def _commit(self, command: Commit, token: int, turn: Turn) -> None:
        self._check_committer(command)
        now = turn.now
        expire_ms = -1 if command.retention_ms < 0 else min(now.wall_ms + command.retention_ms, INT64_MAX)
        errors = []
        for offset in command.offsets:
            metadata = offset.metadata or ""
            is_long = _java_length(metadata) > self.config.offset_metadata_max_bytes
            if is_long or not _is_storable(metadata):
                errors.append(ErrorCode.offset_metadata_too_large)
                continue
            errors.append(ErrorCode.none)
            turn.records.append(_offset_record(command.group_id, offset, now.wall_ms, expire_ms))
        self._committed_offsets += len(turn.records)
        turn.reply(token, tuple(errors))
        group = self.groups.get(command.group_id)
        if group is None and not turn.records:
            # Its first commit begins a group even if nothing of it could be kept.
            self.groups[command.group_id] = Group(command.group_id, now.wall_ms)
        member = group.members.get(command.member_id) if group is not None else None
        if group is not None and member is not None:
            self._restart_session(group, member, now)

    def _check_committer(self, command: Commit) -> None:
        _check_storable(command.group_id)
        group = self.groups.get(command.group_id)
        if group is None:
            if command.generation < 0:
                return
            missing = (
                ErrorCode.group_id_not_found if command.knows_missing_group else ErrorCode.illegal_generation
            )
            raise KafkaError(missing)
        if command.generation < 0 and group.state is State.EMPTY:
            return
        if command.generation < 0 and not command.member_id and command.instance_id is None:
            # A standalone consumer under the id of a living group would move that group's offsets.
            raise KafkaError(ErrorCode.unknown_member_id)
        group.check_member(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        if group.state is State.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    def _delete_offsets(self, command: DeleteOffsets, token: int, turn: Turn) -> None:
        group = self.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found)
        if group.state is not State.EMPTY and not group.uses_consumer_protocol:
            raise KafkaError(ErrorCode.non_empty_group)
        known = self.durable.keys(command.group_id)
        errors = []
        for topic, partition in command.partitions:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
                continue
            errors.append(ErrorCode.none)
            if (topic, partition) in known:
                turn.records.append(_offset_tombstone(command.group_id, topic, partition))
        turn.reply(token, tuple(errors))

    def _delete_groups(self, command: DeleteGroups, token: int, turn: Turn) -> None:
        errors = []
        for group_id in command.group_ids:
            group = self.groups.get(group_id)
            if group is None:
                errors.append(ErrorCode.group_id_not_found)
            elif group.state is not State.EMPTY:
                errors.append(ErrorCode.non_empty_group)
            else:
                errors.append(ErrorCode.none)
                for topic, partition in sorted(self.durable.keys(group_id)):
                    turn.records.append(_offset_tombstone(group_id, topic, partition))
                turn.records.append(GroupRecord(group_id=group_id, metadata=None))
        turn.reply(token, tuple(errors))

    def _forget_topics(self, command: ForgetTopics, token: int, turn: Turn) -> None:
        group_ids = {key[0] for pending in self.durable.pending.values() for key in pending}
        for group_id in sorted(group_ids | self.durable.offsets.keys()):
            for topic, partition in sorted(self.durable.keys(group_id)):
                committed = self.durable.get(group_id, topic, partition)
                successor = committed is not None and committed.topic_id not in (
                    None,
                    command.topics.get(topic),
                )
                if topic in command.topics and not successor:
                    turn.records.append(_offset_tombstone(group_id, topic, partition))
        turn.reply(token, len(turn.records))

    def _expire_offsets(self, token: int, turn: Turn) -> None:
        for group in self.groups.values():
            expired = list(self._expired(group, turn.now.wall_ms))
            for topic, partition in expired:
                turn.records.append(_offset_tombstone(group.group_id, topic, partition))
            self._expired_offsets += len(expired)
            kept = sum(1 for _ in self.durable.partitions(group.group_id)) - len(expired)
            is_idle = group.state is State.EMPTY and not group.pending_join
            if kept == 0 and is_idle and not self.durable.has_open_transaction(group.group_id):
                turn.records.append(GroupRecord(group_id=group.group_id, metadata=None))
        turn.reply(token, len(turn.records))

    def _expired(self, group: Group, wall_ms: int) -> Iterable[tuple[str, int]]:
        """Offsets live on as long as their group does; retention runs from the moment it became empty."""
        is_standalone = group.protocol_type is None
        is_aware = group.uses_consumer_protocol and group.subscribed_topics is not None
        if not (is_standalone or group.state is State.EMPTY or (is_aware and group.state is State.STABLE)):
            return
        is_empty = not is_standalone and group.state is State.EMPTY
        for topic, partition, offset in self.durable.partitions(group.group_id):
            if group.is_subscribed_to(topic) or self.durable.is_pending(group.group_id, topic, partition):
                continue
            since_ms = (
                group.state_since_ms if is_empty and group.state_since_ms >= 0 else offset.commit_timestamp_ms
            )
            if offset.expire_timestamp_ms >= 0:
                is_over = wall_ms >= offset.expire_timestamp_ms
            else:
                is_over = wall_ms - since_ms >= self.config.offsets_retention_ms
            if is_over:
                yield topic, partition

    # Applying

    def _apply_offset(self, record: OffsetRecord, offset: int, producer_id: int) -> None:
        if record.committed is None:
            self.durable.remove(record.group_id, record.topic, record.partition)
            return
        committed = record.committed.at(offset)
        if producer_id < 0:
            self.durable.put(record.group_id, record.topic, record.partition, committed)
        else:
            key = (record.group_id, record.topic, record.partition)
            self.durable.pending.setdefault(producer_id, {})[key] = committed
        if self._is_live:
            self._ensure_simple_group(record.group_id, committed.commit_timestamp_ms)

    def _ensure_simple_group(self, group_id: str, wall_ms: int) -> None:
        """A group that only stores offsets has no metadata record; it is here because its offsets are."""
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id, wall_ms)

    def _drop_group(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        assert not group.members, f"{group!r} was deleted with members"
        for member_id in group.pending_join:
            self.timers.cancel(_session_key(group, member_id))
        self.timers.cancel(_join_key(group))
        self.timers.cancel(_sync_key(group))


# Replies


def join_reply(
    *,
    member_id: str,
    generation: int = -1,
    protocol_type: str | None = None,
    protocol: str | None = None,
    leader: str = "",
    members: tuple[Fields, ...] = (),
    error: ErrorCode = ErrorCode.none,
) -> Fields:
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


def join_error(error: ErrorCode, member_id: str = "") -> Fields:
    return join_reply(member_id=member_id, error=error)


def sync_error(error: ErrorCode) -> Fields:
    return {"error_code": error, "protocol_type": None, "protocol_name": None, "assignment": b""}


def _synced(group: Group, member: Member) -> Fields:
    return {
        "error_code": ErrorCode.none,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }


def _member_list(group: Group) -> tuple[Fields, ...]:
    return tuple(
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "metadata": member.metadata(group.protocol),
        }
        for member in group.members.values()
    )


# Small things


def _session_key(group: Group, member_id: str) -> tuple[str, str, str]:
    return ("session", group.group_id, member_id)


def _join_key(group: Group) -> tuple[str, str, str]:
    return ("join", group.group_id, "")


def _sync_key(group: Group) -> tuple[str, str, str]:
    return ("sync", group.group_id, "")


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual


def _check_storable(*texts: str) -> None:
    """The wire's newer strings may be longer than those of the records."""
    if not all(map(_is_storable, texts)):
        raise KafkaError(ErrorCode.invalid_request, "a name is too long to be stored")


def _is_storable(text: str) -> bool:
    return len(text) <= STRING_BYTES_MAX // 4 or len(text.encode()) <= STRING_BYTES_MAX


def _java_length(text: str) -> int:
    """Kafka counts UTF-16 units, whatever the configuration's name says."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _offset_record(group_id: str, offset: OffsetToCommit, wall_ms: int, expire_ms: int) -> OffsetRecord:
    return OffsetRecord(
        group_id=group_id,
        topic=offset.topic,
        partition=offset.partition,
        committed=CommittedOffset(
            offset=offset.offset,
            # The format that has an expiry has neither an epoch nor an id.
            leader_epoch=offset.leader_epoch if expire_ms < 0 else -1,
            metadata=offset.metadata or "",
            commit_timestamp_ms=wall_ms,
            expire_timestamp_ms=expire_ms,
            topic_id=offset.topic_id if expire_ms < 0 else None,
        ),
    )


def _offset_tombstone(group_id: str, topic: str, partition: int) -> OffsetRecord:
    return OffsetRecord(group_id=group_id, topic=topic, partition=partition, committed=None)
