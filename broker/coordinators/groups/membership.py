"""One consumer group's membership: its members, its leader, and how far its rebalance is.

Owns the states of a group and the transitions between them, its members, the choice of leader and protocol,
what its members subscribe to, and what membership means for its offsets. Does not own when anything happens
(`broker.coordinators.groups.classic`), nor what of it is durable (`broker.coordinators.groups.durable`).
Invariant: states change along `TRANSITIONS` alone; a group with members has a leader among them; an
instance id belongs to one member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from protocol.errors import ErrorCode, KafkaError
from protocol.stored.consumer import subscribed_topics
from protocol.stored.offsets import GroupMember, GroupMetadata
from protocol.work import Work

CONSUMER_PROTOCOL: Final = "consumer"

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""Name and metadata, in the order the member prefers."""
SUBSCRIBED_MAX: Final = 20_000
"""Of topics that are kept for a group; one that subscribes to more is taken to subscribe to every topic."""
PROTOCOLS_MAX: Final = 100
"""Of one member; clients list one for each assignor they are set to use."""
MEMBERS_PER_STEP: Final = 16
"""Of work in turns."""
MEMBER_BYTES: Final = 1 << 10
"""About what a member takes besides its metadata, its assignment and its names."""


class State(Enum):
    """The state of a group that has an entry; a group without one is reported as Dead."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


class Event(Enum):
    """What moves a group to another state."""

    REBALANCE = auto()
    """Members must join again, because one came, left or changed."""
    JOINED = auto()
    """The join phase is over; a generation begins with the members that joined."""
    EMPTIED = auto()
    """The join phase is over and no member is left."""
    ASSIGNED = auto()
    """The leader's assignment is on its way into the log."""


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.EMPTY: {
        Event.REBALANCE: State.PREPARING_REBALANCE,
    },
    State.PREPARING_REBALANCE: {
        Event.JOINED: State.COMPLETING_REBALANCE,
        Event.EMPTIED: State.EMPTY,
    },
    State.COMPLETING_REBALANCE: {
        Event.ASSIGNED: State.STABLE,
        Event.REBALANCE: State.PREPARING_REBALANCE,
    },
    State.STABLE: {
        Event.REBALANCE: State.PREPARING_REBALANCE,
    },
}


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    is_new: bool = False
    counted_bytes: int = 0
    """What the account of all groups' memory holds for it."""

    @property
    def held_bytes(self) -> int:
        """About what is kept of it in memory."""
        texts = (self.member_id, self.instance_id or "", self.client_id)
        return MEMBER_BYTES + sum(map(text_bytes, texts)) + bytes_of(self.protocols) + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the coordinator, so that its silence means nothing. A new member's wait is
        bounded all the same.
        """
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def durable(self, protocol: str | None) -> GroupMember:
        return GroupMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )


class Group:
    """The living half of a group: its members and how far its rebalance is. A restart keeps of it what was
    made durable.
    """

    __slots__ = (
        "_supporters",
        "awaiting_join",
        "begun_by",
        "generation",
        "group_id",
        "initial_remaining_ms",
        "leader",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_members",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, wall_ms: int, begun_by: str | None = None) -> None:
        self.group_id = group_id
        self.begun_by = begun_by
        """The host of the client whose join it began with."""
        self.state = State.EMPTY
        self.previous_state: State | None = None
        self.state_since_ms = wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_join: dict[str, str] = {}
        """The host of each client that was given a member id and has not joined with it."""
        self.pending_sync: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_added = False
        self.initial_remaining_ms: int | None = None
        self.awaiting_join = 0
        """How many members wait for the answer to their join."""
        self._supporters: dict[str, int] = {}
        """How many members list each protocol."""

    @classmethod
    def from_durable(cls, group_id: str, metadata: GroupMetadata) -> Work[Group]:
        group = cls(group_id, metadata.state_timestamp_ms)
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol = metadata.protocol
        group.leader = metadata.leader
        for at, member in enumerate(metadata.members, 1):
            if at % MEMBERS_PER_STEP == 0:
                yield
            group.add(
                Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=_rebalance_timeout_ms(member),
                    session_timeout_ms=member.session_timeout_ms,
                    protocol_type=metadata.protocol_type,
                    protocols=((metadata.protocol or "", member.subscription),),
                    assignment=member.assignment,
                )
            )
        group.state = State.STABLE if group.members else State.EMPTY
        group.subscribed_topics = yield from group.topics_of_members()
        return group

    def __repr__(self) -> str:
        return (
            f"<Group {self.group_id!r} {self.state.value} generation={self.generation} "
            f"{len(self.members)} members>"
        )

    def durable(self) -> Work[GroupMetadata]:
        members = []
        for member in self.members.values():
            members.append(member.durable(self.protocol))
            if len(members) % MEMBERS_PER_STEP == 0:
                yield
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp_ms=self.state_since_ms,
            members=tuple(members),
        )

    def move(self, event: Event, wall_ms: int) -> None:
        state = TRANSITIONS[self.state].get(event)
        assert state is not None, f"{self!r} cannot move on {event.name}"
        self.previous_state, self.state, self.state_since_ms = self.state, state, wall_ms

    # --- members ---

    def add(self, member: Member) -> None:
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.awaiting_join += member.join_token is not None
        self._count(member.protocols, 1)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
            self.awaiting_join -= member.join_token is not None
            self._count(member.protocols, -1)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_sync.discard(member_id)

    def replace_static(self, instance_id: str, new_member_id: str) -> Member:
        """Give the instance, which is back under a new id, its own place and assignment."""
        old = self.members.pop(self.static_members[instance_id])
        self.set_join_token(old, None)
        old.sync_token = None
        if self.leader == old.member_id:
            self.leader = new_member_id
        self.pending_sync.discard(old.member_id)
        old.member_id = new_member_id
        self.members[new_member_id] = old
        self.static_members[instance_id] = new_member_id
        return old

    def set_join_token(self, member: Member, token: int | None) -> None:
        self.awaiting_join += (token is not None) - (member.join_token is not None)
        member.join_token = token

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._supporters.get(name, 0) + change
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                raise KafkaError(ErrorCode.unknown_member_id)
            if owner != member_id:
                raise KafkaError(ErrorCode.fenced_instance_id)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        return member

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        return member

    # --- offsets ---

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raise KafkaError unless this committer may move the group's offsets now."""
        if generation < 0 and self.state is State.EMPTY:
            return
        # A standalone consumer under the id of a group with members is refused: it would move their offsets.
        self.check_generation(member_id, instance_id, generation)
        if self.state is State.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raise KafkaError unless this committer may move the group's offsets in a transaction. Older clients
        name no member, and a rebalance is no reason: the transaction may end after it."""
        if generation < 0 and self.state is State.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.check_generation(member_id, instance_id, generation)

    def retention_starts_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of a topic's offset began; None while the group keeps it alive.

        Offsets live as long as their group has members which may read them; then retention runs from the
        moment the group became empty.
        """
        is_standalone, is_empty = self.protocol_type is None, self.state is State.EMPTY
        knows_topics = self.uses_consumer_protocol and self.subscribed_topics is not None
        may_expire = is_standalone or is_empty or (knows_topics and self.state is State.STABLE)
        if not may_expire or self.is_subscribed_to(topic):
            return None
        if is_empty and not is_standalone and self.state_since_ms >= 0:
            return self.state_since_ms
        return commit_timestamp_ms

    # --- rebalance ---

    @property
    def can_rebalance(self) -> bool:
        return Event.REBALANCE in TRANSITIONS[self.state]

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_join and self.awaiting_join == len(self.members)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        if not self.members:
            return bool(protocols)
        return any(self._is_common(name) for name, _ in protocols)

    def _is_common(self, protocol: str) -> bool:
        return self._supporters.get(protocol) == len(self.members)

    def select_protocol(self) -> Work[str]:
        """Return the protocol most members prefer among those all of them know; of equals the one voted for
        first.
        """
        votes: dict[str, int] = {}
        for at, member in enumerate(self.members.values(), 1):
            choice = next(name for name, _ in member.protocols if self._is_common(name))
            votes[choice] = votes.get(choice, 0) + 1
            if at % MEMBERS_PER_STEP == 0:
                yield
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first member that has; False when none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.join_token is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.join_token is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def begin_generation(self, wall_ms: int) -> Work[None]:
        self.generation += 1
        self.protocol = (yield from self.select_protocol()) if self.members else None
        self.subscribed_topics = yield from self.topics_of_members()
        self.pending_sync.clear()
        self.move(Event.JOINED if self.members else Event.EMPTIED, wall_ms)

    # --- subscriptions ---

    def topics_of_members(self) -> Work[frozenset[str] | None]:
        """Return what the members subscribe to; None when only they know, or it is too much to keep."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = yield from subscribed_topics(member.metadata(self.protocol))
            if subscribed is None or len(topics) + len(subscribed) > SUBSCRIBED_MAX:
                return None
            topics.update(subscribed)
            yield
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics


def _rebalance_timeout_ms(member: GroupMember) -> int:
    """Return its rebalance timeout; the oldest records have one timeout for both."""
    return member.session_timeout_ms if member.rebalance_timeout_ms < 0 else member.rebalance_timeout_ms


def bytes_of(protocols: Protocols) -> int:
    return sum(text_bytes(name) + len(metadata) for name, metadata in protocols)


def text_bytes(text: str) -> int:
    """About what it takes in memory and in a record, whichever of them is more."""
    return len(text) if text.isascii() else 4 * len(text)
