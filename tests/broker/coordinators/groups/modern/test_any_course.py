"""Groups that the server assigns, in any course of events: members come, go, stall, change their minds, lie
and are fenced, topics come and go, the coordinator crashes.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.coordinators.groups.consumer_group import (
    ConsumerGroup,
    GroupState,
    bytes_of_partitions,
    held_bytes,
)
from broker.coordinators.groups.shard import CONSUMER_GROUP_BYTES, resolved_bytes
from protocol.stored.consumer_groups import MemberState
from tests.broker.coordinators.groups.consumer_driver import (
    INTERVAL_MS,
    SESSION_MS,
    Consumer,
    ConsumerDriver,
    claims_of,
    flat,
)
from tests.broker.coordinators.groups.group_driver import GROUP

NAMES = ("t", "u", "v")
SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"topics": ("t",)},
    {"topics": ("t", "u")},
    {"topics": ("u", "v")},
    {"topics": ()},
    {"topics": (), "regex": "[tu]"},
    {"topics": ("v",), "regex": "t.*"},
    {"topics": ("t",), "assignor": "range"},
]
WHO = st.integers(0, 4)


class AnyCourse(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver()
        self.driver.create("t", 4)
        self.driver.create("u", 3)
        self.members = [
            Consumer(self.driver, f"m{number}", instance_id=f"i{number}" if number == 4 else None)
            for number in range(5)
        ]
        self.ids = 5

    # --- members ---

    @rule(who=WHO)
    def beat(self, who: int) -> None:
        self.members[who].beat()

    @rule(who=WHO)
    def revoke(self, who: int) -> None:
        self.members[who].revoke()

    @rule(who=WHO)
    def revoke_and_beat(self, who: int) -> None:
        self.members[who].revoke()
        self.members[who].beat()

    @rule(who=st.lists(WHO, min_size=2, max_size=5, unique=True), revokes=st.booleans(), again=st.booleans())
    def beat_together(self, who: list[int], revokes: bool, again: bool) -> None:
        """The first one's heartbeat may come twice, as one does that was sent again on another connection;
        what answers the second is lost then, and it may have told of new partitions.
        """
        for number in who if revokes else ():
            self.members[number].revoke()
        again = again and self.members[who[0]].is_member
        commands = [self.members[number].next_beat() for number in who]
        answers = self.driver.ask_together([*commands, commands[0]] if again else commands)
        for number, answer in zip(who, answers, strict=False):
            self.members[number].answered(answer)
        if again:
            self.members[who[0]].has_missed = True

    @rule(who=WHO, chosen=st.sampled_from(SUBSCRIPTIONS))
    def change_mind(self, who: int, chosen: dict[str, Any]) -> None:
        member = self.members[who]
        member.subscription = chosen
        if member.is_member:
            member.beat(**({"regex": ""} | chosen))

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.members[who].leave()

    @rule()
    def static_restart(self) -> None:
        """Leave for a while and come back under another id."""
        member = self.members[4]
        if member.is_member:
            self.driver.beat(member.member_id, -2, instance_id=member.instance_id)
        member.is_member = False
        member.owned = set()
        self.ids += 1
        member.member_id = f"m{self.ids}"
        member.beat()

    @rule(who=WHO)
    def lose_an_answer(self, who: int) -> None:
        """The heartbeat arrives, its answer does not."""
        member = self.members[who]
        if member.is_member:
            member.has_missed = True
            self.driver.beat(
                member.member_id,
                member.epoch,
                claims=claims_of(member.owned),
                instance_id=member.instance_id,
            )

    @rule(who=WHO, epoch=st.integers(-3, 9), index=st.integers(0, 5))
    def lie(self, who: int, epoch: int, index: int) -> None:
        """Claim what it may not own, in an epoch it may not be in; then it is as gone as one fenced."""
        member = self.members[who]
        claims = claims_of({(UUID(int=1), index), (UUID(int=99), 0)})
        if epoch > 0:
            self.driver.beat(member.member_id, epoch, claims=claims)
            member.is_member = False
            member.owned = set()

    @rule(who=WHO, epoch=st.integers(-1, 9), partition=st.integers(0, 3))
    def commit(self, who: int, epoch: int, partition: int) -> None:
        self.driver.commit(5, member_id=self.members[who].member_id, generation=epoch, partition=partition)

    # --- the rest of the world ---

    @rule(ms=st.sampled_from([1, INTERVAL_MS, 10_000, SESSION_MS, 300_000]))
    def wait(self, ms: int) -> None:
        self.driver.advance(ms)
        for member in self.members:
            if member.may_be_fenced:
                member.is_member, member.owned, member.wanted = False, set(), set()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def more_partitions(self, name: str, count: int) -> None:
        if name in self.driver.image.topics:
            self.driver.add_partitions(name, count)
        else:
            self.driver.create(name, count)

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        if name in self.driver.image.topics:
            self.driver.delete(name)

    @rule()
    def crash(self) -> None:
        self.driver.crash()

    @rule()
    def expire_and_delete(self) -> None:
        self.driver.expire()
        self.driver.delete_groups(GROUP)

    # --- what must hold ---

    @invariant()
    def nothing_is_owned_twice(self) -> None:
        owned = [one for member in self.members for one in member.owned]
        assert len(owned) == len(set(owned)), [member.owned for member in self.members]

    @invariant()
    def the_log_says_it_all(self) -> None:
        replayed = self.driver.replayed()
        assert replayed.durable == self.driver.machine.durable
        group, again = self.driver.machine.consumers.get(GROUP), replayed.consumers.get(GROUP)
        if group is None or again is None:
            assert group is again is None
            return
        assert _followed(group) == _followed(again)
        held = [
            one
            for member in group.members.values()
            for owned in (member.current.assigned, member.current.revoking)
            for one in flat(owned)
        ]
        assert len(held) == len(set(held))

    @invariant()
    def memory_is_counted(self) -> None:
        groups = self.driver.machine.consumers.values()
        members = [member for group in groups for member in group.members.values()]
        counted = sum(
            held_bytes(member.member_id, member.metadata) + bytes_of_partitions(member.current)
            for member in members
        )
        counted += sum(resolved_bytes(one) for group in groups for one in group.regexes.values())
        assert self.driver.memory.held_bytes == counted + CONSUMER_GROUP_BYTES * len(groups)

    def teardown(self) -> None:
        """With heartbeats alone everybody gets a share, and everything has an owner."""
        for _ in range(12):
            self.driver.advance(INTERVAL_MS + 10_001)
            for member in self.members:
                if member.may_be_fenced:
                    member.is_member, member.owned = False, set()
                member.revoke()
                member.beat()
                self.nothing_is_owned_twice()
        group = self.driver.consumers
        assert group.state is GroupState.STABLE, (group, group.members)
        subscribed = {
            name
            for member in self.members
            for name in self.driver.image.topics
            if name in member.subscription["topics"]
            or (name in "tu" and member.subscription.get("regex") == "[tu]")
            or (name == "t" and member.subscription.get("regex") == "t.*")
        }
        owned = [one for member in self.members for one in member.owned]
        assert sorted(owned) == sorted(self.driver.partitions(*subscribed))
        for member in self.members:
            assert group.members[member.member_id].current.state is MemberState.STABLE
            assert flat(group.members[member.member_id].current.assigned) == member.owned
        log = len(self.driver.log)
        for member in self.members:
            member.beat()
        assert len(self.driver.log) == log, "a heartbeat that changes nothing makes a record"


def _followed(group: ConsumerGroup) -> tuple[object, ...]:
    """What follows from the records, whatever their order."""
    return (
        dict(group.members),
        dict(group.static_members),
        {topic_id: dict(owners) for topic_id, owners in group.owners().items()},
        sorted(group.subscribed_topics()),
        sorted(group.member_regexes()),
        group.state,
        group.classic_members,
    )


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
