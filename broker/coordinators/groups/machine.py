"""Consumer groups as a pure state machine: the groups of one partition, as their shell drives them.

Owns how commands, deadlines and records reach the groups, which commands touch the same state, and what can
be read of groups. Does not own what a command leads to (`broker.coordinators.groups.classic`, `.offsets`),
the log it is replayed from, nor the replies clients wait for (`broker.coordinators.replicated_state`).
Invariant: `durable` is changed by `apply` and `apply_marker` alone and equals a replay of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.coordinators.account import MemoryShare
from broker.coordinators.groups import classic
from broker.coordinators.groups.membership import MEMBERS_PER_STEP, Group, State
from broker.coordinators.groups.offsets import Commit, TxnCommit
from broker.coordinators.groups.shard import GroupCommand, GroupConfig, GroupDecision, GroupShard
from broker.coordinators.machine import DecisionDraft, Instant
from protocol.codec import Fields
from protocol.stored.offsets import (
    CoordinatorRecord,
    OffsetRecord,
    decode_coordinator_record,
    encode_in_steps,
)
from protocol.work import Work

DEADLINES_PER_STEP: Final = 16
GROUPS_PER_STEP: Final = 64
_NO_TOKEN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    groups: Mapping[State, int]
    members: int
    offsets: int
    completed_rebalances: int
    committed_offsets: int
    expired_offsets: int


class GroupMachine(GroupShard):
    """Every group whose id hashes to one partition."""

    def __init__(self, config: GroupConfig, memory: MemoryShare | None = None) -> None:
        super().__init__(config, memory)
        self._is_live = False

    # --- deciding ---

    def decide(
        self, command: GroupCommand[Any], token: int, now: Instant
    ) -> GroupDecision[Any] | Work[GroupDecision[Any]]:
        return command.decide(self, DecisionDraft(now, token))

    def scope(self, command: GroupCommand[Any]) -> Hashable | None:
        return getattr(command, "group_id", None)

    def is_stackable(self, command: GroupCommand[Any]) -> bool:
        # A commit is judged by the membership alone, which no commit changes.
        return isinstance(command, Commit | TxnCommit)

    def tick(self, now: Instant) -> Work[GroupDecision[None]]:
        draft: DecisionDraft[CoordinatorRecord] = DecisionDraft(now, _NO_TOKEN)
        for at, key in enumerate(self.timers.due(now.mono_ms), 1):
            yield from classic.meet_deadline(self, key, draft)
            if at % DEADLINES_PER_STEP == 0:
                yield
        return draft.decision(soft=True)

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_ms()

    def resume(self, now: Instant) -> Work[None]:
        return classic.extend_sessions(self, now)

    # --- applying ---

    def loaded(self, now: Instant) -> Work[None]:
        self._is_live = True
        for group_id, metadata in self.durable.groups.items():
            self.groups[group_id] = yield from Group.from_durable(group_id, metadata)
            yield
        for at, group_id in enumerate((*self.durable.offsets, *self.durable.pending_groups()), 1):
            self.ensure_group(group_id, now.wall_ms)
            if at % GROUPS_PER_STEP == 0:
                yield
        draft: DecisionDraft[CoordinatorRecord] = DecisionDraft(now, _NO_TOKEN)
        yield from classic.restore_members(self, draft)
        assert not draft.records and not draft.replies

    def apply(self, record: CoordinatorRecord, *, offset: int, producer_id: int) -> None:
        self.durable.apply(record, offset=offset, producer_id=producer_id)
        if not isinstance(record, OffsetRecord):
            if record.metadata is None:
                self.drop_group(record.group_id)
        elif record.committed is not None and self._is_live:
            # A group that only stores offsets has no metadata record; it is here because its offsets are.
            self.ensure_group(record.group_id, record.committed.commit_timestamp_ms)

    def apply_marker(self, *, producer_id: int, committed: bool) -> Work[None]:
        taken = yield from self.durable.apply_marker(producer_id=producer_id, committed=committed)
        for at, (group_id, offset) in enumerate(taken, 1):
            if at % GROUPS_PER_STEP == 0:
                yield
            if self._is_live:
                self.ensure_group(group_id, offset.commit_timestamp_ms)

    def encode(self, record: CoordinatorRecord) -> Work[tuple[bytes, bytes | None]]:
        return encode_in_steps(record)

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        return decode_coordinator_record(key, value)

    # --- reading: what is durable or soft right now, never what is on its way ---

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
        if types and "classic" not in types:
            return rows
        for at, group in enumerate(list(self.groups.values()), 1):
            if at % GROUPS_PER_STEP == 0:
                yield
            if states and group.state.value.lower() not in states:
                continue
            rows.append(
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type or "",
                    "group_state": group.state.value,
                    "group_type": "classic",
                }
            )
        return rows

    def statistics(self) -> GroupStatistics:
        counts = dict.fromkeys(State, 0)
        for group in self.groups.values():
            counts[group.state] += 1
        return GroupStatistics(
            groups=counts,
            members=sum(len(group.members) for group in self.groups.values()),
            offsets=sum(len(p) for topics in self.durable.offsets.values() for p in topics.values()),
            completed_rebalances=self.completed_rebalances,
            committed_offsets=self.committed_offsets,
            expired_offsets=self.expired_offsets,
        )
