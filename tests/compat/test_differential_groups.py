"""Groups that the broker assigns, asked of Tidewal and of Apache Kafka by raw requests: members that come and
go, lie, are fenced and come back, in both versions, beside members of the classic protocol.

Owns which requests are sent. Does not own how answers are compared (differential).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from protocol.apis import SERVED, Api
from tests.clients.group_requests import heartbeat_fields, join_group_fields
from tests.compat.differential import (
    Side,
    TopicId,
    Twins,
    commit_fields,
    differences,
    join_fields,
    offset_fetch_fields,
)
from tests.compat.peers import unique, until
from tests.compat.twin_producers import Producer, begun, ended, same, txn_commit_fields

pytestmark = pytest.mark.kafka

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
ROUNDS_MAX = 12
GROUP_RESOURCE = 32


@dataclass(slots=True)
class Member:
    """A member by the id that it gave itself, and what each side told it."""

    group: str
    id: str
    topics: list[str]
    epoch: int = JOINING
    owned: dict[Side, list[dict[str, Any]]] = field(default_factory=dict)
    is_counted: bool = False
    """Whether how many partitions it is given is compared, and not which: the uniform assignor goes by the
    order in which a hash table of Java has the members."""

    def fields(self, **options: Any) -> dict[str, Any]:
        if self.epoch == JOINING:
            return join_group_fields(self.group, self.id, subscribed_topic_names=self.topics) | options
        return heartbeat_fields(self.group, self.id, self.epoch, topic_partitions=self.owned.get) | options

    def beat(self, twins: Twins, version: int = 1, **options: Any) -> Any:
        """One heartbeat; what the answers tell is taken over."""
        fields = self.fields(**options)
        answers = []
        for side in twins.sides:
            side.labels.setdefault(self.id, self.id)
            answer = twins.one(side, Api.CONSUMER_GROUP_HEARTBEAT, version, fields)
            if isinstance(answer, dict) and answer["assignment"] is not None:
                self.owned[side] = [
                    {"topic_id": TopicId(row["topic_id"]), "partitions": row["partitions"]}
                    for row in answer["assignment"]["topic_partitions"]
                ]
            answers.append(counted(answer) if self.is_counted else answer)
        found = list(differences(*answers))
        assert not found, "\n".join([f"heartbeat v{version}", *map(str, found), str(fields)])
        if answers[0]["error_code"] == 0:
            self.epoch = answers[0]["member_epoch"]
        return answers[0]

    @property
    def count(self) -> int:
        (count,) = {sum(len(row["partitions"]) for row in rows) for rows in self.owned.values()} or {0}
        return count


def counted(value: Any, name: str = "") -> Any:
    """An answer with numbers of partitions in place of partitions."""
    if name == "topic_partitions":
        return sum(len(row["partitions"]) for row in value)
    if isinstance(value, dict):
        return {each: counted(item, each) for each, item in value.items()}
    return [counted(item) for item in value] if isinstance(value, list) else value


def settle(twins: Twins, *members: Member, version: int = 1) -> None:
    """All in turn, until nobody is told anything new: as many heartbeats on both sides."""
    for _ in range(ROUNDS_MAX):
        before = [(member.epoch, str(member.owned)) for member in members]
        for member in members:
            member.beat(twins, version)
        if before == [(member.epoch, str(member.owned)) for member in members]:
            return
    raise AssertionError(f"no rest after {ROUNDS_MAX} rounds: {members}")


def topic_of(twins: Twins, partitions: int, prefix: str = "topic") -> str:
    """A topic that the coordinators of both sides know of: a member of another group is given it."""
    name = twins.topic(partitions=partitions, prefix=prefix)
    for side in twins.sides:
        probe = Member(unique("probe"), unique("member"), [name])

        def is_known(side: Side = side, probe: Member = probe) -> bool:
            fields = side.resolve(probe.fields())
            answer = side.client.call(Api.CONSUMER_GROUP_HEARTBEAT, 1, **fields)
            gone = side.resolve(probe.fields(member_epoch=LEAVING))
            side.client.call(Api.CONSUMER_GROUP_HEARTBEAT, 1, **gone)
            return bool(answer.assignment is not None and answer.assignment.topic_partitions)

        until(is_known, f"{name} to be known to the coordinator")
    return name


def described(twins: Twins, group: str, *, is_counted: bool = False) -> Any:
    answers: list[Any] = []
    for version in range(SERVED[Api.CONSUMER_GROUP_DESCRIBE].max_version + 1):
        both = twins.both(
            Api.CONSUMER_GROUP_DESCRIBE, version, group_ids=[group], include_authorized_operations=False
        )
        ours, theirs = map(counted, both) if is_counted else both
        found = list(differences(ours, theirs))
        assert not found, "\n".join([f"CONSUMER_GROUP_DESCRIBE v{version}", *map(str, found)])
        answers.append(ours)
    for version in (0, 5, 6):
        twins.same(Api.DESCRIBE_GROUPS, version, groups=[group], include_authorized_operations=False)
    for types in ([], ["consumer"], ["Classic"]):
        ours, theirs = (
            [row for row in answer["groups"] if row["group_id"] == group]
            for answer in twins.both(Api.LIST_GROUPS, 5, states_filter=[], types_filter=types)
        )
        assert ours == theirs
    return answers[-1]["groups"][0]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
def test_three_members_come_and_go(twins: Twins, version: int, assignor: str | None) -> None:
    group = unique("group")
    is_counted = assignor != "range"
    # What the uniform assignor gives is compared where all get as many.
    names = [topic_of(twins, 4), topic_of(twins, 2 if is_counted else 3)]
    total = 6 if is_counted else 7
    members = [
        Member(group, f"member-{number}-of-{group}", names, is_counted=is_counted) for number in range(3)
    ]
    for at, member in enumerate(members):
        member.beat(twins, version, server_assignor=assignor)
        settle(twins, *members[: at + 1], version=version)
        described(twins, group, is_counted=is_counted)
    assert sum(member.count for member in members) == total
    members[0].beat(twins, version, member_epoch=LEAVING)
    described(twins, group, is_counted=is_counted)
    settle(twins, *members[1:], version=version)
    assert sum(member.count for member in members[1:]) == total
    if not is_counted:  # which of the two topics it held is not compared, so how much it loses is not either
        members[1].beat(twins, version, subscribed_topic_names=names[:1])
        settle(twins, *members[1:], version=version)
        described(twins, group)
    members[2].beat(twins, version, server_assignor="range")
    settle(twins, *members[1:], version=version)
    described(twins, group, is_counted=is_counted)
    for member in members[1:]:
        member.beat(twins, version, member_epoch=LEAVING)
    assert described(twins, group, is_counted=is_counted)["group_state"] == "Empty"
    twins.same(Api.DELETE_GROUPS, 2, groups_names=[group])
    described(twins, group, is_counted=is_counted)


@pytest.mark.parametrize("version", [0, 1])
def test_heartbeats_that_cannot_be(twins: Twins, version: int) -> None:
    name, group = topic_of(twins, 2), unique("group")
    fresh = Member(group, unique("fresh"), [name])
    for options in (
        {"group_id": ""},
        {"member_id": ""} if version else {},
        {"member_epoch": -3},
        {"member_epoch": 5},
        {"member_epoch": LEAVING},
        {"member_epoch": LEAVING_FOR_A_WHILE},
        {"member_epoch": LEAVING_FOR_A_WHILE, "instance_id": "fixed"},
        {"instance_id": ""},
        {"rebalance_timeout": -1},
        {"rebalance_timeout": 0},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
        {"topic_partitions": None},
        {"topic_partitions": [{"topic_id": TopicId(name), "partitions": [0]}]},
        {"server_assignor": "no-such"},
        {"server_assignor": ""},
        {"rack_id": ""},
        {"subscribed_topic_regex": "(", "subscribed_topic_names": None},
        {"subscribed_topic_regex": "", "subscribed_topic_names": None},
        {"subscribed_topic_regex": "(?=ahead)", "subscribed_topic_names": None},
        {"subscribed_topic_names": ["no-such-topic", "sl/ash", ""]},
    ):
        member = Member(unique("group"), unique("member"), [name])
        for side in twins.sides:
            side.labels[member.id] = "<member>"
        fields = member.fields(**options)
        answer = twins.same(Api.CONSUMER_GROUP_HEARTBEAT, version, **fields)
        if answer["error_code"] == 0 and options.get("member_id", "-"):
            twins.same(Api.CONSUMER_GROUP_HEARTBEAT, version, **{**fields, "member_epoch": LEAVING})
    fresh.beat(twins, version)
    settle(twins, fresh, version=version)
    assert fresh.count == 2
    lies: list[dict[str, Any]] = [
        {"member_epoch": fresh.epoch + 1},
        {"member_epoch": fresh.epoch - 1},
        {"member_epoch": fresh.epoch - 1, "topic_partitions": []},
        {"member_id": "nobody"},
        {"topic_partitions": []},
        {"topic_partitions": [{"topic_id": TopicId(name), "partitions": [0, 1, 9]}]},
        {"topic_partitions": [{"topic_id": TopicId("no-such"), "partitions": [0]}]},
        {"instance_id": "late"},
        {"server_assignor": "no-such"},
        {
            "member_epoch": JOINING,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": [name],
            "topic_partitions": [],
        },
    ]
    for options in lies:
        twins.same(Api.CONSUMER_GROUP_HEARTBEAT, version, **fresh.fields(**options))
        described(twins, group)


def test_a_regex_subscribes_to_what_it_matches(twins: Twins) -> None:
    prefix = unique("re")
    first, second, third = (topic_of(twins, 1, f"{prefix}-{letter}") for letter in "aab")
    for expression, expected in (
        (f"{prefix}-a.*", {first, second}),
        (f"{prefix}-[ab].*", {first, second, third}),
        (f"({prefix}-b.*|nothing)", {third}),
    ):
        # A group of its own for each: one is looked up at once, the next of a group after ten seconds.
        group = unique("group")
        member = Member(group, unique("member"), [])
        pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": expression}
        member.beat(twins, **pattern)
        for side in twins.sides:
            wait_resolved(side, member, pattern, expected)
        described(twins, group)
        member.beat(twins, member_epoch=LEAVING)


def wait_resolved(side: Side, member: Member, pattern: dict[str, Any], expected: set[str]) -> None:
    """Heartbeats to one side until these topics are given: it looks for them in the background."""
    fields = {
        **member.fields(**pattern),
        "member_epoch": JOINING,
        "rebalance_timeout": 60_000,
        "topic_partitions": [],
    }

    def is_given() -> bool:
        answer = side.plain(side.client.call(Api.CONSUMER_GROUP_HEARTBEAT, 1, **side.resolve(fields)))
        rows = (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]
        return {row["topic_id"] for row in rows} == expected

    until(is_given, f"{pattern} to be resolved", pause_s=0.02)


@pytest.mark.parametrize("version", [0, 1])
def test_a_static_members_comings_and_goings(twins: Twins, version: int) -> None:
    name, group = topic_of(twins, 4), unique("group")
    fixed, other, again, double = (
        Member(group, unique(what), [name]) for what in ("fixed", "other", "again", "double")
    )
    static = {"instance_id": "fixed"}
    fixed.beat(twins, version, **static)
    other.beat(twins, version)
    settle(twins, fixed, other, version=version)
    described(twins, group)
    double.beat(twins, version, **static)
    fixed.beat(twins, version, member_epoch=LEAVING_FOR_A_WHILE, **static)
    described(twins, group)
    other.beat(twins, version)
    again.beat(twins, version, **static)
    again.beat(twins, version, **static)
    described(twins, group)
    fixed.epoch = again.epoch
    fixed.beat(twins, version, **static)
    again.beat(twins, version, member_epoch=LEAVING, **static)
    settle(twins, other, version=version)
    assert other.count == 4
    described(twins, group)


def test_offsets_of_members(twins: Twins) -> None:
    name, group = topic_of(twins, 2), unique("group")
    member = Member(group, unique("member"), [name])
    member.beat(twins)
    settle(twins, member)
    inside = {"member_id": member.id, "generation_id_or_member_epoch": member.epoch}
    for options in (
        {},
        inside,
        {**inside, "generation_id_or_member_epoch": member.epoch - 1},
        {**inside, "generation_id_or_member_epoch": member.epoch + 1},
        {**inside, "generation_id_or_member_epoch": -1},
        {**inside, "member_id": "nobody"},
        {**inside, "group_instance_id": "fixed"},
    ):
        for version in (2, 6, 7, 8, 9, 10):
            if version >= 7 or "group_instance_id" not in options:
                twins.same(Api.OFFSET_COMMIT, version, **commit_fields(group, name, offset=3, **options))
    for member_id, epoch in (
        (None, -1),
        (member.id, member.epoch),
        (member.id, member.epoch + 1),
        (member.id, member.epoch - 1),
        ("nobody", member.epoch),
        (member.id, -1),
        ("", -1),
    ):
        for version in range(8, 11):
            fields = offset_fetch_fields(group, name)
            fields["groups"][0] |= {"member_id": member_id, "member_epoch": epoch}
            twins.same(Api.OFFSET_FETCH, version, **fields)
    deleted = [{"name": name, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    twins.same(Api.OFFSET_DELETE, 0, group_id=group, topics=deleted)
    twins.same(Api.DELETE_GROUPS, 2, groups_names=[group])
    for api, fields in (
        (Api.HEARTBEAT, {"generation_id": member.epoch}),
        (
            Api.SYNC_GROUP,
            {
                "generation_id": member.epoch,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [],
            },
        ),
    ):
        at = {"group_id": group, "member_id": member.id, "group_instance_id": None}
        twins.same(api, 4, **at, **fields)
    leaving = {"member_id": member.id, "group_instance_id": None, "reason": None}
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[{**leaving, "member_id": "nobody"}, leaving])
    described(twins, group)


def test_offsets_of_members_within_a_transaction(twins: Twins) -> None:
    name, group, producer = topic_of(twins, 1), unique("group"), Producer(unique("txn"))
    member = Member(group, unique("member"), [name])
    member.beat(twins)
    settle(twins, member)
    begun(twins, producer)
    for more in (0, 1, -1, -99):
        for member_id in (member.id, "nobody"):
            options = {"member_id": member_id, "generation_id": member.epoch + more}
            same(twins, Api.TXN_OFFSET_COMMIT, 5, **txn_commit_fields(producer, group, name, **options))
    twins.same(Api.OFFSET_FETCH, 9, **offset_fetch_fields(group, name))
    ended(twins, producer, 5)
    twins.same(Api.OFFSET_FETCH, 9, **offset_fetch_fields(group, name))


def subscription(*names: str, owned: bytes = b"\x00\x00\x00\x00") -> bytes:
    """A consumer's metadata in version 1 of its own protocol."""
    topics = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in names)
    return b"\x00\x01" + len(names).to_bytes(4, "big") + topics + b"\xff\xff\xff\xff" + owned


def test_a_classic_member_in_a_group_of_the_new_protocol(twins: Twins) -> None:
    name, group = topic_of(twins, 2), unique("group")
    modern = Member(group, unique("modern"), [name])
    modern.beat(twins)
    settle(twins, modern)
    bad = join_fields(group, protocols=[{"name": "range", "metadata": b"nonsense"}])
    twins.same(Api.JOIN_GROUP, 9, **bad)
    twins.same(Api.JOIN_GROUP, 9, **join_fields(group, protocol_type="connect"))
    joining = join_fields(group, protocols=[{"name": "range", "metadata": subscription(name)}])
    for side in twins.sides:
        side.remembered["classic"] = side.client.call(Api.JOIN_GROUP, 9, **joining).member_id
        side.labels[side.remembered["classic"]] = "<classic>"

    def classic(side: Side) -> Any:
        return side.remembered["classic"]

    at = {"group_id": group, "member_id": classic, "group_instance_id": None}
    joined = twins.same(Api.JOIN_GROUP, 9, **{**joining, "member_id": classic})
    generation = joined["generation_id"]
    described(twins, group)
    sync = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    twins.same(Api.SYNC_GROUP, 5, **at, generation_id=generation, **sync)
    twins.same(Api.SYNC_GROUP, 5, **at, generation_id=generation + 7, **sync)
    settle(twins, modern)
    for given in (generation, generation - 1, generation + 1):
        twins.same(Api.HEARTBEAT, 4, **at, generation_id=given)
    rejoined = twins.same(Api.JOIN_GROUP, 9, **{**joining, "member_id": classic})
    twins.same(Api.SYNC_GROUP, 5, **at, generation_id=rejoined["generation_id"], **sync)
    settle(twins, modern)
    described(twins, group)
    modern.beat(twins, member_epoch=LEAVING)
    described(twins, group)
    twins.same(Api.HEARTBEAT, 4, **at, generation_id=rejoined["generation_id"])
    leaving = {"member_id": classic, "group_instance_id": None, "reason": None}
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[leaving])
    described(twins, group)


def test_a_member_of_the_new_protocol_in_a_classic_group(twins: Twins) -> None:
    name, group = topic_of(twins, 2), unique("group")
    joining = join_fields(group, protocols=[{"name": "range", "metadata": subscription(name)}])
    for side in twins.sides:
        side.remembered["classic"] = side.client.call(Api.JOIN_GROUP, 9, **joining).member_id
        side.labels[side.remembered["classic"]] = "<classic>"

    def classic(side: Side) -> Any:
        return side.remembered["classic"]

    at = {"group_id": group, "member_id": classic, "group_instance_id": None, "generation_id": 1}
    twins.same(Api.JOIN_GROUP, 9, **{**joining, "member_id": classic})
    mine = b"\x00\x01\x00\x00\x00\x01" + len(name).to_bytes(2, "big") + name.encode()
    mine += b"\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"
    twins.same(
        Api.SYNC_GROUP,
        5,
        **at,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": classic, "assignment": mine}],
    )
    modern = Member(group, unique("modern"), [name])
    modern.beat(twins)
    described(twins, group)
    twins.same(Api.HEARTBEAT, 4, **at)
    settle(twins, modern)
    again = join_fields(
        group,
        classic,
        protocols=[{"name": "range", "metadata": subscription(name)}],
    )
    rejoined = twins.same(Api.JOIN_GROUP, 9, **again)
    sync = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    twins.same(Api.SYNC_GROUP, 5, **{**at, "generation_id": rejoined["generation_id"]}, **sync)
    settle(twins, modern)
    described(twins, group)
    leaving = {"member_id": classic, "group_instance_id": None, "reason": None}
    twins.same(Api.LEAVE_GROUP, 5, group_id=group, members=[leaving])
    settle(twins, modern)
    assert modern.count == 2
    described(twins, group)
    foreign = unique("group")
    twins.same(Api.JOIN_GROUP, 5, **join_fields(foreign, protocol_type="connect", group_instance_id="fixed"))
    stranger = Member(foreign, unique("stranger"), [name])
    stranger.beat(twins)
    described(twins, foreign)


def test_groups_that_are_described_wrongly(twins: Twins) -> None:
    group, classic = unique("group"), unique("classic")
    twins.same(Api.OFFSET_COMMIT, 8, **commit_fields(classic, topic_of(twins, 1), offset=1))
    for version in range(SERVED[Api.CONSUMER_GROUP_DESCRIBE].max_version + 1):
        for asked in ([group], [classic], [""], [], [group, classic]):
            twins.same(
                Api.CONSUMER_GROUP_DESCRIBE, version, group_ids=asked, include_authorized_operations=False
            )


def test_configs_of_a_group(twins: Twins) -> None:
    group = unique("group")
    for key, value in (
        ("consumer.session.timeout.ms", "50000"),
        ("consumer.heartbeat.interval.ms", "6000"),
        ("consumer.session.timeout.ms", "1"),
        ("consumer.session.timeout.ms", "99999999"),
        ("consumer.heartbeat.interval.ms", "99999999"),
        ("consumer.heartbeat.interval.ms", "soon"),
        ("no.such", "1"),
    ):
        for resource in (group, ""):
            entry = {"name": key, "config_operation": 0, "value": value}
            altered = [{"resource_type": GROUP_RESOURCE, "resource_name": resource, "configs": [entry]}]
            twins.same(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=altered, validate_only=False)
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}
    for synonyms in (True, False):
        twins.same(
            Api.DESCRIBE_CONFIGS,
            4,
            resources=[resource],
            include_synonyms=synonyms,
            include_documentation=False,
        )
    name = topic_of(twins, 1)
    member = Member(group, unique("member"), [name])
    assert member.beat(twins)["heartbeat_interval"] is not None
