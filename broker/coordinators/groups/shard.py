"""The groups of one coordinator partition: what the log says of them, and what only memory knows.

Owns which groups there are, when one appears and when it is forgotten, and the deadlines of their members.
Does not own what a group decides (`broker.coordinators.groups.classic`, `.offsets`), nor the shell that runs
it (`broker.coordinators.groups.machine`).
Invariant: a group is here as long as it has members, metadata or offsets; a group that is not here has no
deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from broker.control.image import Image
from broker.coordinators.account import MemoryAccount, MemoryShare
from broker.coordinators.groups.consumer_group import ConsumerGroup, bytes_of_partitions, held_bytes
from broker.coordinators.groups.consumer_group import Member as Consumer
from broker.coordinators.groups.durable import Durable
from broker.coordinators.groups.membership import (
    MEMBER_BYTES,
    Group,
    Member,
    Protocols,
    State,
    bytes_of,
    text_bytes,
)
from broker.coordinators.groups.topics import Topics
from broker.coordinators.machine import DecisionDraft, Instant, Timers
from broker.decisions import Decision
from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer_groups import ResolvedRegex
from protocol.stored.offsets import CoordinatorRecord
from protocol.work import Work

STRING_BYTES_MAX: Final = 2**15 - 1
_STORABLE_LENGTH: Final = STRING_BYTES_MAX // 4
"""Of a text that is short enough whatever is in it."""
GROUP_BYTES: Final = 1 << 10
"""About what a group takes besides its members."""
CONSUMER_GROUP_BYTES: Final = 3 << 10
"""About what a group takes that the server assigns, besides its members."""
NOBODY: Final = ""
"""The host to which is counted what belongs to no one client."""
FROM_LOG: Final = "log"
"""The host to which groups are counted that the log named. It is asked for nothing, so that their number does
not use up what nobody may have."""
EXPECTED_BYTES: Final = 512
"""About what a member takes that was given its id only, besides that."""
_RESOLVED_BYTES: Final = 512
_MEMBER_RECORD_BYTES: Final = 64
"""No member takes less of the record of its group."""


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
    consumer_max_size: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Which assignors members may ask for; the first is for groups whose members ask for none."""
    migration_policy: str = "bidirectional"

    @property
    def members_max(self) -> int:
        """How many members a group may have, and could have for its record to be stored."""
        return min(self.max_size, self.record_max_bytes // _MEMBER_RECORD_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """What is set for one group that the server assigns."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    """From one target assignment to the next."""


_USUAL: Final = ConsumerSettings()

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class GroupShard:
    """The state that the commands read; all but `durable` is lost in a restart and made anew from it."""

    def __init__(
        self,
        config: GroupConfig,
        memory: MemoryShare | None = None,
        *,
        topics: Topics | None = None,
        settings_of: Callable[[str], ConsumerSettings] | None = None,
    ) -> None:
        self.config = config
        self.memory = MemoryAccount().share() if memory is None else memory
        self.topics = Topics(Image) if topics is None else topics
        self.settings_of = (lambda group_id: _USUAL) if settings_of is None else settings_of
        self.durable = Durable()
        self.groups: dict[str, Group] = {}
        """Groups of the classic protocol."""
        self.becoming_classic: dict[str, Group] = {}
        """Groups whose records of the classic protocol are on their way into the log."""
        self.becoming_consumer: set[str] = set()
        """Groups whose members go on in a group that the server assigns, likewise."""
        self.resolving: set[str] = set()
        """Groups whose regular expressions are being looked up."""
        self.to_resolve: list[str] = []
        """Those of them for which nobody has begun yet."""
        self._consumer_hosts: dict[str, str] = {}
        """The host of the client by which each group that the server assigns began."""
        self.timers = Timers()
        self.consumer_rebalances = 0
        self.completed_rebalances = 0
        self.committed_offsets = 0
        self.expired_offsets = 0

    # --- groups ---

    @property
    def consumers(self) -> Mapping[str, ConsumerGroup]:
        """Groups that the server assigns."""
        return self.durable.consumers

    def ensure_group(self, group_id: str, wall_ms: int) -> None:
        """Make a group that only stores offsets, if there is none of this id."""
        if group_id not in self.groups and group_id not in self.consumers:
            self.groups[group_id] = Group(group_id, wall_ms)

    def begin_group(self, group_id: str, wall_ms: int, host: str) -> Group:
        """Make a group for a client that joins."""
        group = self.groups[group_id] = Group(group_id, wall_ms, begun_by=host)
        self.memory.take(host, GROUP_BYTES)
        return group

    def drop_group(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        has_moved = group_id in self.becoming_consumer
        assert has_moved or not group.members, f"{group!r} was deleted with members"
        self.becoming_consumer.discard(group_id)
        for member_id in list(group.members):
            self.discard(group, member_id)
        if group.begun_by is not None:
            self.memory.take(group.begun_by, -GROUP_BYTES)
        for member_id in list(group.pending_join):
            self.expect_no_more(group, member_id)
            self.timers.cancel(session_key(group, member_id))
        self.timers.cancel(join_key(group))
        self.timers.cancel(sync_key(group))

    def forget_if_idle(self, group: Group) -> None:
        """Drop a group that was only about to be joined: it was never durable, so no record deletes it."""
        group_id = group.group_id
        is_idle = group.state is State.EMPTY and not group.pending_join and group.generation == 0
        if is_idle and not self.durable.is_named(group_id):
            self.drop_group(group_id)

    # --- members ---

    def restart_session(self, group: Group, member: Member, now: Instant) -> None:
        self.timers.set(session_key(group, member.member_id), now.mono_ms + member.session_timeout_ms)

    def add(self, group: Group, member: Member) -> None:
        self.expect_no_more(group, member.member_id)
        group.add(member)
        self.recount(member)

    def discard(self, group: Group, member_id: str) -> None:
        """Remove a member, or one that was expected."""
        self.expect_no_more(group, member_id)
        member = group.members.get(member_id)
        if member is not None:
            self.memory.take(member.client_host, -member.counted_bytes)
            group.remove(member_id)
        self.timers.cancel(session_key(group, member_id))

    def expect(self, group: Group, member_id: str, host: str) -> None:
        """Remember a member id that was given to a client, until it joins with it."""
        group.pending_join[member_id] = host
        self.memory.take(host, EXPECTED_BYTES + text_bytes(member_id))

    def expect_no_more(self, group: Group, member_id: str) -> None:
        host = group.pending_join.pop(member_id, None)
        if host is not None:
            self.memory.take(host, -EXPECTED_BYTES - text_bytes(member_id))

    # --- consumers ---

    def is_converting(self, group_id: str) -> bool:
        """Whether the group changes its protocol with records that are on their way: what was done for that
        in memory must not outlive them.
        """
        return group_id in self.becoming_consumer or group_id in self.becoming_classic

    def look_up_regexes(self, group_id: str) -> None:
        """Have the topics looked through for the group's regular expressions, outside of this decision."""
        self.resolving.add(group_id)
        self.to_resolve.append(group_id)

    def count_consumers(self, group_id: str, host: str) -> None:
        """Count a group that the server assigns, besides its members."""
        self._consumer_hosts[group_id] = host
        self.memory.take(host, CONSUMER_GROUP_BYTES)

    def count_consumers_no_more(self, group_id: str) -> None:
        host = self._consumer_hosts.pop(group_id, None)
        if host is not None:
            self.memory.take(host, -CONSUMER_GROUP_BYTES)

    def count_resolved(self, before: ResolvedRegex | None, after: ResolvedRegex | None) -> None:
        """Count the topics of a regular expression, which are nobody's in particular."""
        for resolved, sign in ((before, -1), (after, 1)):
            if resolved is not None:
                self.memory.take(NOBODY, sign * resolved_bytes(resolved))

    def forget_consumer(self, group_id: str, member: Consumer) -> None:
        """Cancel the deadlines of a member that has gone."""
        for kind in CONSUMER_KINDS:
            self.timers.cancel(consumer_key(kind, group_id, member.member_id))

    def recount_consumer(self, before: Consumer | None, after: Consumer | None) -> None:
        """Count what a member holds now."""
        if (
            before is not None
            and after is not None
            and before.metadata is after.metadata
            and before.current.has_same(after.current)
        ):
            return
        if before is not None:
            self.memory.take(before.metadata.client_host, -_consumer_bytes(before))
        if after is not None:
            self.memory.take(after.metadata.client_host, _consumer_bytes(after))

    # --- memory ---

    def may_hold(self, group: Group | None, member_id: str, host: str, protocols: Protocols) -> bool:
        """Whether there is room for what a join brings."""
        member = group.members.get(member_id) if group is not None else None
        if member is not None:
            more = bytes_of(protocols) - bytes_of(member.protocols)
        else:
            more = bytes_of(protocols) + MEMBER_BYTES + (GROUP_BYTES if group is None else 0)
        return more <= 0 or self.memory.may_take(host, more)

    def check_assignment(self, leader: Member, assignments: Mapping[str, bytes]) -> None:
        """Refuse what there is no room for. One that no record can hold is refused as such, and not kept."""
        size = sum(map(len, assignments.values()))
        if size <= self.config.record_max_bytes and not self.memory.may_take(leader.client_host, size):
            raise KafkaError(ErrorCode.coordinator_not_available, "the groups hold too much metadata")

    def recount(self, member: Member) -> None:
        """Count what the member holds now."""
        held = member.held_bytes
        if held != member.counted_bytes:
            self.memory.take(member.client_host, held - member.counted_bytes)
            member.counted_bytes = held


GroupDraft: TypeAlias = DecisionDraft[CoordinatorRecord]
GroupDecision: TypeAlias = Decision[CoordinatorRecord, R]


class GroupCommand(Protocol[R_co]):
    """A command whose decision may take so long that it is made in steps."""

    def decide(
        self, shard: GroupShard, draft: GroupDraft, /
    ) -> GroupDecision[R_co] | Work[GroupDecision[R_co]]: ...


def resolved_bytes(resolved: ResolvedRegex) -> int:
    """About what is kept of the topics of a regular expression; their names are there once for all."""
    return _RESOLVED_BYTES + 8 * len(resolved.topics)


def _consumer_bytes(member: Consumer) -> int:
    return held_bytes(member.member_id, member.metadata) + bytes_of_partitions(member.current)


# --- deadlines ---

CONSUMER_SESSION: Final = "consumer session"
CONSUMER_REBALANCE: Final = "consumer rebalance"
CONSUMER_JOIN: Final = "consumer join"
CONSUMER_SYNC: Final = "consumer sync"
CONSUMER_KINDS: Final = (CONSUMER_SESSION, CONSUMER_REBALANCE, CONSUMER_JOIN, CONSUMER_SYNC)


def consumer_key(kind: str, group_id: str, member_id: str) -> tuple[str, str, str]:
    return (kind, group_id, member_id)


def session_key(group: Group, member_id: str) -> tuple[str, str, str]:
    return ("session", group.group_id, member_id)


def join_key(group: Group) -> tuple[str, str, str]:
    return ("join", group.group_id, "")


def sync_key(group: Group) -> tuple[str, str, str]:
    return ("sync", group.group_id, "")


# --- names ---


def check_storable(*texts: str) -> None:
    """Refuse what the records cannot hold: newer requests may carry longer strings."""
    for text in texts:
        if not is_storable(text):
            raise KafkaError(ErrorCode.invalid_request, "a name is too long to be stored")


def is_storable(text: str) -> bool:
    return len(text) <= _STORABLE_LENGTH or len(text.encode()) <= STRING_BYTES_MAX
