"""Groups that the server assigns: the same course of requests to Tidewal and to Apache Kafka, answer by
answer, and word by word where something is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

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
    started_twins,
)
from tests.compat.peers import Java, unique, until

BEAT = Api.CONSUMER_GROUP_HEARTBEAT
VERSIONS = range(SERVED[BEAT].min_version, SERVED[BEAT].max_version + 1)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, java: Java) -> Iterator[Twins]:
    with started_twins(tmp_path_factory.mktemp("twins"), java) as pair:
        yield pair


def new_topic(twins: Twins, partitions: int) -> str:
    """Make a topic that the coordinators of both sides know; Kafka's hears of it after its leaders do."""
    topic = twins.topic(partitions=partitions)
    for side in twins.sides:
        until(partial(_assigns, side, topic, partitions), f"an assignment of {topic}")
    return topic


def _assigns(side: Side, topic: str, partitions: int) -> bool:
    fields = join_group_fields(unique("scratch"), "m", subscribed_topic_names=[topic])
    answer = side.client.call(BEAT, 0, **fields)
    rows = answer.assignment.topic_partitions if answer.assignment is not None else ()
    return sum(len(row.partitions) for row in rows) == partitions


class Group:
    """A group of both sides, whose target assignment follows every change at once."""

    def __init__(self, twins: Twins, *, partitions: int = 4, interval_ms: int = 0) -> None:
        self.twins = twins
        self.group_id = unique("group")
        self.topic = new_topic(twins, partitions)
        self.set(consumer_assignment_interval_ms=f"{interval_ms}")

    def set(self, **configs: str) -> None:
        rows = [
            {"name": name.replace("_", "."), "config_operation": 0, "value": value}
            for name, value in configs.items()
        ]
        resource = {"resource_type": 32, "resource_name": self.group_id, "configs": rows}
        self.twins.same(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)

    def beat(self, member_id: str, epoch: int, version: int = 1, **changes: Any) -> Any:
        fields = heartbeat_fields(self.group_id, member_id, epoch) | changes
        return self.same(BEAT, version, **fields)

    def join(self, member_id: str, version: int = 1, **changes: Any) -> Any:
        fields = join_group_fields(self.group_id, member_id, subscribed_topic_names=[self.topic]) | changes
        return self.same(BEAT, version, **fields)

    def owns(self, *partitions: int) -> list[Any]:
        return [{"topic_id": TopicId(self.topic), "partitions": list(partitions)}] if partitions else []

    def described(self) -> Any:
        return self.same(
            Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[self.group_id], include_authorized_operations=True
        )

    def same(self, api: Api, version: int, **fields: Any) -> Any:
        """The answer, which both sides give in the same words."""
        plain, texts = [], []
        for side in self.twins.sides:
            answer = side.client.call(api, version, **side.resolve(fields))
            plain.append(_in_order(side.plain(answer)))
            texts.append(_texts(answer))
        found = list(differences(plain[0], plain[1])) + list(differences(texts[0], texts[1]))
        assert not found, "\n".join([f"{api.name} v{version}", *map(str, found), str(fields)])
        return plain[0]


def _texts(answer: Any) -> list[Any]:
    groups = sorted(getattr(answer, "groups", ()), key=lambda row: row.group_id)
    rows = [answer, *groups]
    return [getattr(row, "error_message", None) for row in rows]


def _in_order(value: Any, name: str = "") -> Any:
    """Lists of topics and partitions in one order; which one means nothing."""
    if isinstance(value, dict):
        return {key: _in_order(item, key) for key, item in value.items()}
    if isinstance(value, list):
        items = [_in_order(item) for item in value]
        return sorted(items, key=str) if name in ("topic_partitions", "partitions") else items
    return value


@pytest.mark.parametrize("version", VERSIONS)
def test_one_member_from_its_first_heartbeat_to_its_last(twins: Twins, version: int) -> None:
    group = Group(twins)
    joined = group.join("m", version)
    assert joined["error_code"] == 0
    group.beat("m", 2, version)
    group.beat("m", 2, version, topic_partitions=group.owns(0, 1, 2, 3))
    group.join("m", version)
    group.described()
    group.beat("m", -1, version)
    group.described()
    group.beat("m", 2, version)


def test_two_members_share(twins: Twins) -> None:
    group = Group(twins)
    group.join("a")
    group.join("b")
    group.described()
    answer = group.beat("a", 2, topic_partitions=group.owns(0, 1, 2, 3))
    (row,) = answer["assignment"]["topic_partitions"]
    kept = row["partitions"]
    group.beat("b", 3, topic_partitions=[])
    group.described()
    group.beat("a", 2, topic_partitions=group.owns(*kept))
    group.beat("b", 3, topic_partitions=[])
    group.described()
    # the epoch before, from one that owns a part, all and more than it was given
    group.beat("a", 2, topic_partitions=group.owns(kept[0]))
    group.beat("a", 2, topic_partitions=group.owns(*kept))
    group.beat("a", 2, topic_partitions=group.owns(0, 1, 2, 3))
    group.beat("a", 2)
    group.beat("b", -1)
    group.beat("a", 3, topic_partitions=group.owns(*kept))
    group.described()


def test_another_subscription(twins: Twins) -> None:
    group = Group(twins)
    other = new_topic(twins, 2)
    group.join("a")
    group.join("b", subscribed_topic_names=[other, group.topic])
    group.beat("a", 2, subscribed_topic_names=[other], topic_partitions=group.owns(0, 1, 2, 3))
    group.described()
    group.beat("a", 2, topic_partitions=[])
    group.described()
    group.beat("a", 2, subscribed_topic_names=["no-such-topic"])
    group.beat("a", 4, subscribed_topic_names=[])
    group.described()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_an_assignor(twins: Twins, assignor: str) -> None:
    group = Group(twins, partitions=3)
    topics = [group.topic]
    if assignor == "range":
        # which topic `uniform` takes first depends on the topics' ids
        topics.append(new_topic(twins, 3))
    for member_id in ("a", "b"):
        group.join(member_id, server_assignor=assignor, subscribed_topic_names=topics)
    group.beat("a", 2, topic_partitions=[])
    group.beat("b", 3, topic_partitions=[])
    described = group.same(
        Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group.group_id], include_authorized_operations=False
    )
    assert described["groups"][0]["assignor_name"] == assignor


def test_static_members(twins: Twins) -> None:
    group = Group(twins)
    group.join("a", instance_id="i")
    group.join("b", instance_id="i")
    group.beat("a", 2, instance_id="j")
    group.beat("x", 2, instance_id="i")
    group.beat("a", -2, instance_id="i")
    group.described()
    group.beat("a", 2, instance_id="i")
    group.join("b", instance_id="i")
    group.described()
    group.beat("a", 2, instance_id="i")
    group.beat("a", -1, instance_id="i")
    group.beat("b", -2)
    group.beat("b", -1, instance_id="i")
    group.described()


def test_what_is_refused(twins: Twins) -> None:
    group = Group(twins)
    group.beat("a", 2)
    group.beat("a", -1)
    for version in VERSIONS:
        group.join("", version, subscribed_topic_names=None)
        group.join(" ", version)
        group.join("a", version, group_id="")
        group.join("a", version, instance_id="")
        group.join("a", version, rack_id=" ")
        group.join("a", version, rebalance_timeout=-1)
        group.join("a", version, topic_partitions=None)
        group.join("a", version, topic_partitions=group.owns(1))
        group.join("a", version, subscribed_topic_names=None)
        group.join("a", version, server_assignor="nobody-knows")
        group.beat("a", -2, version)
        group.beat("a", -3, version)
        group.beat("", 1, version)
    group.join("a")
    group.beat("a", 9)
    group.beat("b", 2)
    group.beat("b", -1)
    group.beat("a", 2, topic_partitions=[{"topic_id": UUID(int=99), "partitions": [1, 1, 7]}])


@pytest.mark.parametrize(
    "regex",
    [
        "[",
        "(",
        "a)",
        "*",
        "a**",
        "a{1001}",
        "[z-a]",
        "(?=a)",
        "(?<=a)b",
        r"\1",
        r"\p{Nope}",
        "a\\",
        "(?P<n",
        "x{2,1}",
    ],
)
def test_a_regular_expression_that_is_none(twins: Twins, regex: str) -> None:
    group = Group(twins)
    refused = group.join("a", subscribed_topic_names=None, subscribed_topic_regex=regex)
    assert refused["error_code"] == 128


def test_a_regular_expression(twins: Twins) -> None:
    group = Group(twins)
    group.join("a", subscribed_topic_names=None, subscribed_topic_regex=group.topic[:-1] + ".")

    def has_all() -> bool:
        answer = group_beat_of_each(group, "a")
        return all(one is not None and one for one in answer)

    until(has_all, "the topics of the expression")
    described = group.described()
    assert described["groups"][0]["group_state"] == "Stable"
    group.beat("a", -1)
    group.described()


def group_beat_of_each(group: Group, member_id: str) -> list[Any]:
    """What each side gives a member that says all anew, in the epoch in which that side has it."""
    found = []
    for side in group.twins.sides:
        described = side.client.call(
            Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group.group_id], include_authorized_operations=False
        )
        (member,) = described.groups[0].members
        fields = join_group_fields(
            group.group_id,
            member_id,
            member_epoch=member.member_epoch,
            subscribed_topic_names=[],
            subscribed_topic_regex=group.topic[:-1] + ".",
        )
        answer = side.client.call(BEAT, 1, **fields)
        found.append(answer.assignment.topic_partitions if answer.assignment is not None else None)
    return found


def test_offsets_of_members(twins: Twins) -> None:
    group = Group(twins)
    group.join("a")
    for version in range(2, 11):
        for epoch in (-1, 0, 1, 2, 3):
            for member_id in ("a", "x", ""):
                fields = commit_fields(group.group_id, group.topic, offset=epoch + 5)
                fields |= {"member_id": member_id, "generation_id_or_member_epoch": epoch}
                group.same(Api.OFFSET_COMMIT, version, **fields)
    for version in (9, 10):
        for epoch in (-1, 0, 1, 2, 3):
            for member in ("a", "x", None) if epoch < 0 else ("a", "x"):
                asked = [{"name": group.topic, "topic_id": TopicId(group.topic), "partition_indexes": [0, 9]}]
                row = {
                    "group_id": group.group_id,
                    "member_id": member,
                    "member_epoch": epoch,
                    "topics": asked,
                }
                group.same(Api.OFFSET_FETCH, version, groups=[row], require_stable=False)
    partition = {"name": group.topic, "partitions": [{"partition_index": 0}]}
    group.same(Api.OFFSET_DELETE, 0, group_id=group.group_id, topics=[partition])
    group.same(Api.DELETE_GROUPS, 2, groups_names=[group.group_id])
    group.beat("a", -1)
    group.same(Api.OFFSET_DELETE, 0, group_id=group.group_id, topics=[partition])
    group.same(Api.DELETE_GROUPS, 2, groups_names=[group.group_id])
    group.described()


def test_each_protocol_tells_of_its_own(twins: Twins) -> None:
    group = Group(twins)
    group.join("a")
    for version in range(7):
        group.same(Api.DESCRIBE_GROUPS, version, groups=[group.group_id], include_authorized_operations=False)
    fields = commit_fields(classic := unique("group"), group.topic, offset=1)
    group.same(Api.OFFSET_COMMIT, 8, **fields)
    for version in VERSIONS:
        group.same(
            Api.CONSUMER_GROUP_DESCRIBE,
            version,
            group_ids=[classic, "", "no-such-group"],
            include_authorized_operations=True,
        )
    for filters in ([], ["consumer"], ["Classic"], ["no-such-type"], ["share"]):
        for version in (4, 5):
            answers = []
            for side in twins.sides:
                answer = side.client.call(Api.LIST_GROUPS, version, states_filter=[], types_filter=filters)
                answers.append(
                    (
                        answer.error_code,
                        sorted(
                            (row.group_id, row.protocol_type, row.group_state, getattr(row, "group_type", ""))
                            for row in answer.groups
                            if row.group_id in (group.group_id, classic)
                        ),
                    )
                )
            assert answers[0] == answers[1], (filters, version)


def test_a_classic_member_joins_a_group_of_consumers(twins: Twins) -> None:
    group = Group(twins)
    group.join("a")
    refused = join_fields(group.group_id, protocol_type="connect")
    group.same(Api.JOIN_GROUP, 9, **refused)
    group.same(Api.JOIN_GROUP, 9, **join_fields(group.group_id, member_id="x", group_instance_id="i"))
    group.same(
        Api.HEARTBEAT, 4, group_id=group.group_id, generation_id=2, member_id="a", group_instance_id=None
    )
    group.same(
        Api.HEARTBEAT, 4, group_id=group.group_id, generation_id=1, member_id="x", group_instance_id=None
    )
    leaver = {"member_id": "x", "group_instance_id": None, "reason": None}
    group.same(Api.LEAVE_GROUP, 5, group_id=group.group_id, members=[leaver])
    group.same(
        Api.SYNC_GROUP,
        5,
        group_id=group.group_id,
        generation_id=1,
        member_id="a",
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
