"""Groups that change their protocol online: classic to consumer and back, with members of both at once."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.groups.classic import Heartbeat, Join, Leave, Leaver, Sync
from broker.coordinators.groups.consumer_group import GroupState
from broker.coordinators.groups.membership import State
from broker.coordinators.groups.shard import GroupConfig
from protocol.errors import ErrorCode
from protocol.stored.consumer import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from protocol.work import finish
from tests.broker.coordinators.groups.consumer_driver import (
    INTERVAL_MS,
    SESSION_MS,
    Consumer,
    ConsumerDriver,
)
from tests.broker.coordinators.groups.group_driver import GROUP

REBALANCE = ErrorCode.rebalance_in_progress


@pytest.fixture
def d() -> ConsumerDriver:
    driver = ConsumerDriver(config=GroupConfig(initial_rebalance_delay_ms=0))
    driver.create("t", 4)
    return driver


class Classic:
    """A client of the classic protocol, cooperative, which may lead."""

    def __init__(self, d: ConsumerDriver, name: str, instance_id: str | None = None) -> None:
        self.d = d
        self.member_id = ""
        self.new_member_id = name
        self.instance_id = instance_id
        self.generation = -1
        self.owned: set[int] = set()
        self.leads: list[str] | None = None

    def _subscription(self) -> bytes:
        owned = (("t", tuple(sorted(self.owned))),) if self.owned else ()
        return encode_subscription(Subscription(topics=("t",), owned_partitions=owned))

    def join(self, **changes: Any) -> Any:
        """Join, with the id it is given at once if it has none."""
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.member_id,
            "new_member_id": "" if self.member_id else self.new_member_id,
            "instance_id": self.instance_id,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("cooperative-sticky", self._subscription()), ("range", self._subscription())),
        }
        token = self.d.send(Join(**(values | changes)))
        self.d.advance(0)
        answer = self.d.answers.get(token)
        if isinstance(answer, ErrorCode):
            return answer
        if answer is not None and answer["error_code"] is ErrorCode.member_id_required:
            self.member_id = answer["member_id"]
            return self.join(**changes)
        if answer is not None:
            self.joined(answer)
        return token if answer is None else answer

    def joined(self, answer: Any) -> None:
        if answer["error_code"] is not ErrorCode.none:
            return
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        is_leader = answer["leader"] == self.member_id
        self.leads = [one["member_id"] for one in answer["members"]] if is_leader else None

    def sync(self, **assigned: tuple[int, ...]) -> Any:
        answer = self.d.ask(
            Sync(
                group_id=GROUP,
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name="cooperative-sticky",
                assignments={
                    member_id: encode_assignment(Assignment(partitions=(("t", some),)))
                    for member_id, some in assigned.items()
                },
            )
        )
        if isinstance(answer, ErrorCode):
            return answer
        self.owned = self.read(answer)
        return answer

    @staticmethod
    def read(answer: Any) -> set[int]:
        assert answer["error_code"] is ErrorCode.none, answer
        found = decode_assignment(answer["assignment"])
        return {partition for _, some in found.partitions for partition in some}

    def beat(self) -> Any:
        return self.d.ask(
            Heartbeat(
                group_id=GROUP,
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
            )
        )

    def follow(self) -> None:
        """Do what a client does when a heartbeat tells it to rejoin."""
        if self.beat() is REBALANCE:
            self.join()
            self.sync()

    def leave(self) -> Any:
        return self.d.ask(Leave(group_id=GROUP, leavers=(Leaver(self.member_id, self.instance_id),)))


def stable_pair(d: ConsumerDriver) -> tuple[Classic, Classic]:
    """Return two members of a stable classic group, with half of the partitions each."""
    one, two = Classic(d, "c1"), Classic(d, "c2")
    first = one.join()
    if isinstance(first, dict):
        one.sync(c1=(0, 1, 2, 3))
    token = two.join()
    assert isinstance(token, int)
    one.join()
    two.joined(d.answers[token])
    waiting = d.send(Sync(group_id=GROUP, member_id="c2", generation=two.generation))
    one.sync(c1=(0, 1), c2=(2, 3))
    two.owned = two.read(d.answers[waiting])
    assert d.state() is State.STABLE
    return one, two


def settled(d: ConsumerDriver, *members: Any) -> None:
    for _ in range(10):
        d.advance(INTERVAL_MS)
        for member in members:
            if isinstance(member, Classic):
                member.follow()
            else:
                member.revoke()
                member.beat()


def test_a_consumer_that_joins_makes_it_a_consumer_group(d: ConsumerDriver) -> None:
    one, two = stable_pair(d)
    generation = one.generation
    held = d.memory.held_bytes
    new = Consumer(d, "m1")
    new.beat()
    assert GROUP not in d.machine.groups
    assert d.memory.held_bytes > held // 2
    group = d.consumers
    assert group.epoch == generation + 1
    assert new.epoch == generation + 1
    assert group.classic_members == 2
    d.crash()
    settled(d, one, two, new)
    owned = [*one.owned, *two.owned, *(partition for _, partition in new.owned)]
    assert sorted(owned) == [0, 1, 2, 3]
    assert len(new.owned) in (1, 2)
    assert d.consumers.state is GroupState.STABLE


def test_a_log_that_ends_within_an_upgrade(d: ConsumerDriver) -> None:
    """The records of a large group take several batches. Wherever the log ends, its members go on from the
    generation they have, or begin anew."""
    stable_pair(d)
    first = len(d.log)
    Consumer(d, "m1").beat()
    whole = d.log
    generation = 2
    is_seen = False
    for end in range(first, len(whole) + 1):
        d.log = whole[:end]
        d.machine.memory.release()
        d.machine = d.replayed()
        finish(d.machine.loaded(d.now))
        group = d.machine.consumers.get(GROUP)
        if group is None:
            continue
        assert group.epoch >= generation, f"after {end - first} records"
        for member_id in list(group.members):
            if not group.members[member_id].is_classic:
                continue
            is_seen = True
            member = Classic(d, "")
            member.member_id, member.generation = member_id, generation
            member.follow()
            if member.generation == generation and group.members[member_id].epoch != generation:
                member.join()
            assert member.generation >= generation
    assert is_seen


def test_members_that_wait_in_a_rebalance_are_told_to_join_again(d: ConsumerDriver) -> None:
    one, two = stable_pair(d)
    three = Classic(d, "c3")
    token = three.join()
    assert isinstance(token, int)
    Consumer(d, "m1").beat()
    assert d.answers[token]["error_code"] is REBALANCE
    assert one.beat() is REBALANCE
    assert two.beat() is REBALANCE


def test_with_the_last_consumer_it_is_a_classic_group_again(d: ConsumerDriver) -> None:
    one, two = stable_pair(d)
    new = Consumer(d, "m1")
    new.beat()
    settled(d, one, two, new)
    epoch = d.consumers.epoch
    new.leave()
    assert GROUP not in d.machine.consumers
    assert d.state() is State.PREPARING_REBALANCE
    assert d.group.generation == epoch
    assert one.beat() is REBALANCE
    d.crash()
    assert d.state() is State.STABLE
    token = one.join()
    assert isinstance(token, int)
    two.join()
    one.joined(d.answers[token])
    assert one.generation == two.generation == epoch + 1


def test_a_consumer_whose_session_is_over_takes_the_protocol_with_it(d: ConsumerDriver) -> None:
    one, two = stable_pair(d)
    new = Consumer(d, "m1")
    new.beat()
    settled(d, one, two, new)
    for _ in range(3):
        d.advance(SESSION_MS // 2)
        one.beat()
        two.beat()
    assert GROUP not in d.machine.consumers
    assert d.group.members.keys() == {"c1", "c2"}


def test_consumers_whose_time_is_over_at_once_take_the_protocol_with_them(d: ConsumerDriver) -> None:
    one, two = stable_pair(d)
    new = [Consumer(d, "m1"), Consumer(d, "m2")]
    for member in new:
        member.beat()
    settled(d, one, two, *new)
    for member in new:
        member.beat()
    for _ in range(2):
        d.advance(SESSION_MS // 2)
        one.beat()
        two.beat()
    assert GROUP not in d.machine.consumers
    assert d.group.members.keys() == {"c1", "c2"}


def test_a_classic_member_joins_a_consumer_group(d: ConsumerDriver) -> None:
    new, old = Consumer(d, "m1"), Classic(d, "c1")
    settled(d, new)
    answer = old.join()
    assert answer["protocol_name"] == "cooperative-sticky"
    assert answer["leader"] == ""
    assert not answer["members"]
    old.sync()
    assert not old.owned
    settled(d, old, new)
    assert len(old.owned) == len(new.owned) == 2
    assert not old.owned & {partition for _, partition in new.owned}
    assert d.consumers.members["c1"].is_classic
    assert old.leave() == (ErrorCode.none,)
    settled(d, new)
    assert len(new.owned) == 4


def test_a_classic_member_that_does_not_rejoin_is_fenced(d: ConsumerDriver) -> None:
    new, old = Consumer(d, "m1"), Classic(d, "c1")
    settled(d, new)
    old.join()
    old.sync()
    settled(d, old, new)
    Consumer(d, "m2").beat()
    assert old.beat() is REBALANCE
    for _ in range(7):
        d.advance(10_000)
        new.beat()
        if GROUP in d.machine.consumers and "c1" in d.consumers.members:
            old.beat()
    assert "c1" not in d.consumers.members


def test_a_classic_member_that_does_not_sync_is_fenced(d: ConsumerDriver) -> None:
    new, old = Consumer(d, "m1"), Classic(d, "c1")
    settled(d, new)
    old.join()
    for _ in range(6):
        d.advance(10_000)
        new.beat()
        old.beat()
    assert "c1" not in d.consumers.members


def test_what_a_classic_member_says_is_checked(d: ConsumerDriver) -> None:
    new, old = Consumer(d, "m1"), Classic(d, "c1")
    settled(d, new)
    refused = old.join(protocol_type="connect")
    assert refused["error_code"] is ErrorCode.inconsistent_group_protocol
    refused = old.join(protocols=(("range", b"\0"),))
    assert refused["error_code"] is ErrorCode.unknown_server_error
    written = len(d.log)
    assert old.join(instance_id="i9")["error_code"] is ErrorCode.unknown_member_id
    assert len(d.log) == written
    old.join()
    old.sync()
    old.generation += 1
    assert old.beat() is ErrorCode.illegal_generation
    assert old.sync() is ErrorCode.illegal_generation
    old.member_id = "m1"
    assert old.beat() is ErrorCode.unknown_member_id
    old.member_id = "x"
    assert old.sync() is ErrorCode.unknown_member_id
    assert old.leave() == (ErrorCode.unknown_member_id,)
    assert "m1" in d.consumers.members


def test_a_classic_member_commits_in_its_generation(d: ConsumerDriver) -> None:
    new, old = Consumer(d, "m1"), Classic(d, "c1")
    settled(d, new)
    old.join()
    old.sync()
    assert d.commit(3, member_id="c1", generation=old.generation) == (ErrorCode.none,)
    wrong = d.commit(3, member_id="c1", generation=old.generation + 1)
    assert wrong is ErrorCode.illegal_generation


def test_the_first_classic_member_of_an_emptied_group_makes_it_classic(d: ConsumerDriver) -> None:
    new, old = Consumer(d, "m1"), Classic(d, "c1")
    new.beat()
    new.leave()
    stranger = Classic(d, "c9")
    stranger.member_id = "c9"
    assert stranger.join()["error_code"] is ErrorCode.unknown_member_id
    assert GROUP in d.machine.consumers
    old.join()
    assert GROUP not in d.machine.consumers
    old.sync(c1=(0, 1, 2, 3))
    assert d.state() is State.STABLE


def test_a_consumer_makes_an_emptied_classic_group_its_own(d: ConsumerDriver) -> None:
    old = Classic(d, "c1")
    old.join()
    old.sync(c1=(0, 1, 2, 3))
    old.leave()
    d.commit(7)
    new = Consumer(d, "m1")
    new.beat()
    assert GROUP not in d.machine.groups
    assert len(new.owned) == 4
    assert d.committed() == 7


def test_a_static_member_moves_to_the_other_protocol_and_back(d: ConsumerDriver) -> None:
    old = Classic(d, "c1", instance_id="i1")
    old.join()
    old.sync(c1=(0, 1, 2, 3))
    new = Consumer(d, "m1", instance_id="i1")
    new.beat()
    assert d.consumers.members.keys() == {"m1"}
    settled(d, new)
    assert len(new.owned) == 4
    back = Classic(d, "c2", instance_id="i1")
    answer = back.join()
    assert answer["error_code"] is ErrorCode.none
    assert GROUP not in d.machine.consumers
    assert d.group.static_members == {"i1": "c2"}
    d.crash()
    assert d.group.members.keys() == {"c2"}


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        ("disabled", False, False),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_the_policy_says_what_may_change(
    d: ConsumerDriver, policy: str, upgrades: bool, downgrades: bool
) -> None:
    stable_pair(d)
    d.machine.config = GroupConfig(initial_rebalance_delay_ms=0, migration_policy=policy)
    new = Consumer(d, "m1")
    answer = new.beat()
    assert (answer is ErrorCode.group_id_not_found) is not upgrades
    if not upgrades:
        assert d.state() is State.STABLE
        return
    new.leave()
    assert (GROUP not in d.machine.consumers) is downgrades


def test_a_group_of_another_kind_cannot_become_one_of_consumers(d: ConsumerDriver) -> None:
    old = Classic(d, "c1")
    old.join(protocol_type="connect", protocols=(("x", b"y"),))
    assert Consumer(d, "m1").beat() is ErrorCode.group_id_not_found
    assert GROUP in d.machine.groups


def test_without_migration_no_classic_member_joins(d: ConsumerDriver) -> None:
    d.machine.config = GroupConfig(migration_policy="disabled")
    settled(d, Consumer(d, "m1"))
    refused = Classic(d, "c1").join()
    assert refused["error_code"] is ErrorCode.inconsistent_group_protocol


SUBSCRIPTION = encode_subscription(Subscription(topics=("t",)))


def test_a_protocol_that_is_listed_twice_counts_once(d: ConsumerDriver) -> None:
    """Else it would pass for one that all members know, and none would be left for the classic group."""
    d.join("m")
    first, second, third = (Classic(d, name) for name in "abc")
    doubled = tuple((name, SUBSCRIPTION) for name in ("r", "r", "x"))
    assert first.join(protocols=doubled)["error_code"] is ErrorCode.none
    assert second.join(protocols=(("x", SUBSCRIPTION),))["error_code"] is ErrorCode.none
    refused = third.join(protocols=(("r", SUBSCRIPTION),))
    assert refused["error_code"] is ErrorCode.inconsistent_group_protocol
    d.beat("m", -1)
    assert d.machine.groups[GROUP].members.keys() == {"a", "b"}


def test_a_group_becomes_a_classic_one_whatever_its_members_say_of_protocols(d: ConsumerDriver) -> None:
    """Only that for the first one is looked at when they join."""
    d.join("m")
    first, second = Classic(d, "a"), Classic(d, "b")
    assert first.join(protocols=(("good", SUBSCRIPTION), ("bad", b"")))["error_code"] is ErrorCode.none
    assert second.join(protocols=(("bad", SUBSCRIPTION),))["error_code"] is ErrorCode.none
    d.beat("m", -1)
    assert d.machine.groups[GROUP].members.keys() == {"a", "b"}


@pytest.mark.parametrize("assigned", [(-1,), (-5, 0, 1), (7,), (2**31 - 1,)])
def test_partitions_that_are_not_there_are_no_reason_not_to_assign(
    d: ConsumerDriver, assigned: tuple[int, ...]
) -> None:
    """A leader of the classic protocol assigns what it likes."""
    leader = Classic(d, "a")
    leader.join()
    leader.sync(a=assigned)
    d.join("m")
    (topic_id,) = (topic.id for topic in d.image.topics.values())
    targets = [target.get(topic_id, ()) for target in d.consumers.targets.values()]
    assert sorted(partition for target in targets for partition in target) == [0, 1, 2, 3]


def test_a_group_too_large_for_one_record_stays_a_consumer_group() -> None:
    """The record would be refused, and the partition loaded anew, each time that the last consumer's time is
    over."""
    d = ConsumerDriver(config=GroupConfig(initial_rebalance_delay_ms=0, record_max_bytes=10_000))
    d.create("t", 4)
    d.join("m")
    large = encode_subscription(Subscription(topics=("t",), user_data=b"x" * 4_000))
    members = [Classic(d, name) for name in "abc"]
    for member in members:
        assert member.join(protocols=(("range", large),))["error_code"] is ErrorCode.none
    d.beat("m", -1)
    assert d.consumers.members.keys() == {"a", "b", "c"}
    assert members[0].beat() is REBALANCE
    assert members[0].join(protocols=(("range", large),))["error_code"] is ErrorCode.none
    d.ask(Leave(group_id=GROUP, leavers=(Leaver("c"),)))
    assert d.machine.groups[GROUP].members.keys() == {"a", "b"}, "what is left has room"
