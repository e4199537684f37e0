"""Requests of groups that the server assigns as bytes in every version, and what the settings do to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from broker.config.values import ResourceType
from broker.control.metadata_records import ConfigChanged, TopicDeleted
from broker.handlers.consumer_groups import TOPICS_MAX
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.coordinators.fake_log import settle
from tests.broker.handlers.test_groups import GROUP, TOPIC_ID, Client, config, versions
from tests.clients.group_requests import heartbeat_fields, join_group_fields

BEAT, DESCRIBE = Api.CONSUMER_GROUP_HEARTBEAT, Api.CONSUMER_GROUP_DESCRIBE


@asynccontextmanager
async def running(**properties: str) -> AsyncIterator[Client]:
    client = Client(config(**properties))
    async with asyncio.TaskGroup() as tasks:
        await client.groups.start(tasks)
        await client.find()
        yield client
        await client.groups.stop()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running() as one:
        yield one


async def beat(client: Client, version: int = -1, **changes: Any) -> Any:
    return await client.call(BEAT, version, **(heartbeat_fields(GROUP, "m", 2) | changes))


async def join(client: Client, version: int = -1, **changes: Any) -> Any:
    return await client.call(BEAT, version, **(join_group_fields(GROUP, "m") | changes))


def partitions(answer: Any) -> dict[UUID, list[int]]:
    return {row.topic_id: sorted(row.partitions) for row in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", versions(BEAT))
async def test_a_member_joins_stays_and_leaves(client: Client, version: int) -> None:
    joined = await join(client, version)
    assert joined.error_code is ErrorCode.none
    assert (joined.member_id, joined.member_epoch) == ("m", 2)
    assert joined.heartbeat_interval.total_seconds() == 5
    assert partitions(joined) == {TOPIC_ID: [0, 1, 2]}
    stayed = await beat(client, version)
    assert (stayed.error_code, stayed.member_epoch, stayed.assignment) == (ErrorCode.none, 2, None)
    left = await beat(client, version, member_epoch=-1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)


async def test_version_0_gives_an_id_to_a_member_without_one(client: Client) -> None:
    joined = await join(client, 0, member_id="")
    assert joined.error_code is ErrorCode.none
    assert len(joined.member_id) == 22
    refused = await join(client, 1, member_id="")
    assert refused.error_code is ErrorCode.invalid_request
    assert refused.error_message == "MemberId can't be empty."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (
            {"topic_partitions": [{"topic_id": TOPIC_ID, "partitions": [1]}]},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
async def test_what_is_wrong_by_itself(client: Client, changes: dict[str, Any], message: str) -> None:
    refused = await join(client, **changes)
    assert (refused.error_code, refused.error_message) == (ErrorCode.invalid_request, message)


async def test_more_topics_than_a_member_may_name(client: Client) -> None:
    refused = await join(client, subscribed_topic_names=["t"] * (TOPICS_MAX + 1))
    assert refused.error_code is ErrorCode.invalid_request


async def test_claims_of_any_number_change_nothing(client: Client) -> None:
    await join(client)
    rows = [{"topic_id": TOPIC_ID, "partitions": list(range(5_000))}] * 3
    stayed = await beat(client, topic_partitions=rows)
    assert (stayed.error_code, stayed.assignment) == (ErrorCode.none, None)


async def test_an_assignor_nobody_knows(client: Client) -> None:
    refused = await join(client, server_assignor="sticky")
    assert refused.error_code is ErrorCode.unsupported_assignor
    assert refused.error_message == (
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range."
    )


@pytest.mark.parametrize("regex", ["t.*", "t.*(?:x?){200}"], ids=["on the loop", "in a thread"])
async def test_a_regular_expression_is_looked_up_behind_the_heartbeat(client: Client, regex: str) -> None:
    client.cluster.create("tea", UUID(int=8), partitions=1)
    client.cluster.create("coffee", UUID(int=9), partitions=1)
    joined = await join(client, subscribed_topic_names=None, subscribed_topic_regex=regex)
    assert joined.error_code is ErrorCode.none
    await settle()
    group = client.groups.machine(GROUP).consumers[GROUP]
    assert group.regexes[regex].topics == ("t", "tea")
    refused = await join(client, member_id="n", subscribed_topic_regex="[")
    assert refused.error_code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_describing(client: Client, version: int) -> None:
    await join(client, instance_id="i", rack_id="r")
    both = [GROUP, "none", GROUP]
    answer = await client.call(DESCRIBE, version, group_ids=both, include_authorized_operations=True)
    found, missing = answer.groups
    assert found.error_code is ErrorCode.none
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    assert found.assignor_name == "uniform"
    assert found.authorized_operations == 3400
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
    assert (member.client_id, member.client_host) == ("client", "/10.0.0.1")
    assert (member.member_epoch, tuple(member.subscribed_topic_names)) == (2, ("t",))
    for assignment in (member.assignment, member.target_assignment):
        (row,) = assignment.topic_partitions
        assert (row.topic_id, row.topic_name, tuple(row.partitions)) == (TOPIC_ID, "t", (0, 1, 2))
    if version >= 1:
        assert member.member_type == 1
    assert missing.error_code is ErrorCode.group_id_not_found
    assert missing.error_message == "Group none not found."


async def test_each_protocol_tells_of_its_own_groups(client: Client) -> None:
    await client.stable()
    answer = await client.call(DESCRIBE, 1, group_ids=[GROUP], include_authorized_operations=False)
    assert answer.groups[0].error_code is ErrorCode.group_id_not_found
    assert answer.groups[0].error_message == f"Group {GROUP} is not a consumer group."
    await join(client, group_id="h")
    listed = await client.call(Api.LIST_GROUPS, 5, states_filter=[], types_filter=[])
    assert {(row.group_id, row.group_type) for row in listed.groups} == {
        (GROUP, "classic"),
        ("h", "consumer"),
    }
    only = await client.call(Api.LIST_GROUPS, 5, states_filter=["stable"], types_filter=["Consumer"])
    assert [(row.group_id, row.protocol_type, row.group_state) for row in only.groups] == [
        ("h", "consumer", "Stable")
    ]
    classic = await client.call(Api.DESCRIBE_GROUPS, 6, groups=["h"], include_authorized_operations=False)
    assert classic.groups[0].error_code is ErrorCode.group_id_not_found
    assert classic.groups[0].error_message == "Group h is not a classic group."
    older = await client.call(Api.DESCRIBE_GROUPS, 5, groups=["h"], include_authorized_operations=False)
    assert (older.groups[0].error_code, older.groups[0].group_state) == (ErrorCode.none, "Dead")


@pytest.mark.parametrize("version", [9, 10])
async def test_who_reads_offsets_as_a_member_is_one(client: Client, version: int) -> None:
    await join(client)

    async def fetched(member_id: str | None, epoch: int) -> ErrorCode:
        asked = [{"name": "t", "topic_id": TOPIC_ID, "partition_indexes": [0]}]
        group = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, "topics": asked}
        answer = await client.call(Api.OFFSET_FETCH, version, groups=[group], require_stable=False)
        code: ErrorCode = answer.groups[0].error_code
        return code

    assert await fetched("m", 2) is ErrorCode.none
    assert await fetched(None, -1) is ErrorCode.none
    assert await fetched("m", 1) is ErrorCode.stale_member_epoch
    assert await fetched("x", 2) is ErrorCode.unknown_member_id


async def test_a_topic_that_changes_is_noticed(client: Client) -> None:
    client.cluster.create("u", UUID(int=8), partitions=1)
    await join(client, subscribed_topic_names=["t", "u"])
    await beat(client)
    group = client.groups.machine(GROUP).consumers[GROUP]
    client.cluster.create("v", UUID(int=9), partitions=1)
    await settle()
    assert not group.is_stale
    client.cluster.apply(TopicDeleted(topic_id=UUID(int=8)))
    await settle()
    assert group.is_stale
    await beat(client)
    assert group.epoch == 3


# --- settings ---


async def test_the_heartbeat_interval_is_as_set() -> None:
    async with running(group_consumer_heartbeat_interval_ms="6000") as client:
        assert (await join(client)).heartbeat_interval.total_seconds() == 6


async def test_the_session_lasts_as_long_as_set() -> None:
    async with running(group_consumer_session_timeout_ms="50000") as client:
        await join(client)
        assert client.groups.consumer_settings(GROUP).session_timeout_ms == 50_000
        machine = client.groups.machine(GROUP)
        at_ms = machine.next_deadline_ms()
        assert at_ms is not None
        assert 49_000 < at_ms - asyncio.get_running_loop().time() * 1_000 <= 50_000


async def test_assignments_follow_each_other_as_set() -> None:
    async with running(group_consumer_assignment_interval_ms="0") as client:
        await join(client)
        await join(client, member_id="n")
        assert client.groups.machine(GROUP).consumers[GROUP].target_epoch == 3
    async with running() as client:
        await join(client)
        await join(client, member_id="n")
        assert client.groups.machine(GROUP).consumers[GROUP].target_epoch == 2


async def test_a_group_has_at_most_as_many_members_as_set() -> None:
    async with running(group_consumer_max_size="1") as client:
        await join(client)
        refused = await join(client, member_id="n")
        assert refused.error_code is ErrorCode.group_max_size_reached


async def test_only_the_assignors_that_are_set_may_be_asked_for() -> None:
    async with running(group_consumer_assignors="range") as client:
        refused = await join(client, server_assignor="uniform")
        assert refused.error_code is ErrorCode.unsupported_assignor
        await join(client)
        answer = await client.call(DESCRIBE, 1, group_ids=[GROUP], include_authorized_operations=False)
        assert answer.groups[0].assignor_name == "range"


async def test_a_group_changes_its_protocol_as_far_as_is_set() -> None:
    async with running(group_consumer_migration_policy="DISABLED") as client:
        await client.stable()
        refused = await join(client)
        assert refused.error_code is ErrorCode.group_id_not_found
        assert refused.error_message == (
            f"Cannot upgrade classic group {GROUP} to consumer group because online upgrade is disabled."
        )


async def test_a_group_may_have_settings_of_its_own(client: Client) -> None:
    client.cluster.apply(
        ConfigChanged(
            resource_type=ResourceType.GROUP,
            resource_name=GROUP,
            name="consumer.heartbeat.interval.ms",
            value="7000",
        )
    )
    assert (await join(client)).heartbeat_interval.total_seconds() == 7
    assert (await join(client, group_id="h")).heartbeat_interval.total_seconds() == 5
