"""The groups of one coordinator partition: what the log says of them, and what only memory knows.

Owns which groups there are, when one appears and when it is forgotten, and the deadlines of their members.
Does not own what a group decides (`broker.coordinators.groups.classic`, `.offsets`), nor the shell that runs
it (`broker.coordinators.groups.machine`).
Invariant: a group is here as long as it has members, metadata or offsets; a group that is not here has no
deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from broker.coordinators.groups.durable import Durable
from broker.coordinators.groups.membership import Group, Member, State
from broker.coordinators.machine import DecisionDraft, Instant, Timers
from broker.decisions import Command, Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.offsets import CoordinatorRecord

STRING_BYTES_MAX: Final = 2**15 - 1


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


R = TypeVar("R")


class GroupShard:
    """The state that the commands read; all but `durable` is lost in a restart and made anew from it."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.durable = Durable()
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self.completed_rebalances = 0
        self.committed_offsets = 0
        self.expired_offsets = 0

    # --- groups ---

    def ensure_group(self, group_id: str, wall_ms: int) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, wall_ms)
        return group

    def drop_group(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        assert not group.members, f"{group!r} was deleted with members"
        for member_id in group.pending_join:
            self.timers.cancel(session_key(group, member_id))
        self.timers.cancel(join_key(group))
        self.timers.cancel(sync_key(group))

    def forget_if_idle(self, group: Group) -> None:
        """Drop a group that was only about to be joined: it was never durable, so no record deletes it."""
        group_id = group.group_id
        is_idle = group.state is State.EMPTY and not group.pending_join and group.generation == 0
        if is_idle and group_id not in self.durable.groups and not self.durable.keys(group_id):
            del self.groups[group_id]

    # --- members ---

    def restart_session(self, group: Group, member: Member, now: Instant) -> None:
        self.timers.set(session_key(group, member.member_id), now.mono_ms + member.session_timeout_ms)

    def discard(self, group: Group, member_id: str) -> None:
        group.remove(member_id)
        self.timers.cancel(session_key(group, member_id))


GroupDraft: TypeAlias = DecisionDraft[CoordinatorRecord]
GroupDecision: TypeAlias = Decision[CoordinatorRecord, R]
GroupCommand: TypeAlias = Command[GroupShard, GroupDraft, CoordinatorRecord, R]


# --- deadlines ---


def session_key(group: Group, member_id: str) -> tuple[str, str, str]:
    return ("session", group.group_id, member_id)


def join_key(group: Group) -> tuple[str, str, str]:
    return ("join", group.group_id, "")


def sync_key(group: Group) -> tuple[str, str, str]:
    return ("sync", group.group_id, "")


# --- names ---


def check_storable(*texts: str) -> None:
    """Refuse what the records cannot hold: newer requests may carry longer strings."""
    if not all(map(is_storable, texts)):
        raise KafkaError(ErrorCode.invalid_request, "a name is too long to be stored")


def is_storable(text: str) -> bool:
    return len(text) <= STRING_BYTES_MAX // 4 or len(text.encode()) <= STRING_BYTES_MAX
