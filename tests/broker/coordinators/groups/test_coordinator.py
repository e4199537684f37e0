"""Groups on a broker as it really is: bytes on a socket, segments on a disk, a restart in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.coordinators.groups.coordinator import OFFSETS_TOPIC
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.coordinators.groups.group_driver import subscription
from tests.broker.raw_client import create_topic
from tools.client import Address, Client

if TYPE_CHECKING:
    from broker.server import Broker
    from tests.conftest import MakeBroker

GROUP = "g"


class Member:
    """One member of the group, over the wire."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.member_id = ""
        self.generation = -1

    async def request(self, api: Api, **fields: Any) -> Any:
        return await self.client.request(api, {"group_id": GROUP, **fields})

    async def join(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "session_timeout": 10_000,
            "rebalance_timeout": 60_000,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("t")}],
            "reason": None,
        }
        reply = await self.request(Api.JOIN_GROUP, member_id=self.member_id, **(fields | changes))
        self.member_id = reply.member_id
        if reply.error_code is ErrorCode.member_id_required:
            return await self.join(**changes)
        self.generation = reply.generation_id
        return reply

    async def sync(self) -> Any:
        return await self.request(
            Api.SYNC_GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": self.member_id, "assignment": b"mine"}],
        )

    async def beat(self) -> ErrorCode:
        reply = await self.request(
            Api.HEARTBEAT,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
        )
        code: ErrorCode = reply.error_code
        return code

    async def commit(self, offset: int) -> ErrorCode:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        reply = await self.request(
            Api.OFFSET_COMMIT,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.generation,
            group_instance_id=None,
            topics=[{"name": "t", "topic_id": self.client.known.topic_ids["t"], "partitions": [row]}],
        )
        code: ErrorCode = reply.topics[0].partitions[0].error_code
        return code

    async def committed(self) -> int | None:
        groups = [{"group_id": GROUP, "member_id": None, "topics": None}]
        reply = await self.client.request(Api.OFFSET_FETCH, {"groups": groups, "require_stable": True})
        (group,) = reply.groups
        assert group.error_code is ErrorCode.none
        rows = [row for topic in group.topics for row in topic.partitions]
        return rows[0].committed_offset if rows else None


def connect(broker: Broker) -> Client:
    listener = next(iter(broker.listeners.values()))
    return Client([Address(listener.host, listener.port)])


async def find(client: Client) -> None:
    fields = {"key_type": 0, "coordinator_keys": [GROUP]}
    reply = await client.request(Api.FIND_COORDINATOR, fields)
    assert reply.coordinators[0].error_code is ErrorCode.none


@pytest.mark.parametrize("codec", ["0", "4"])
async def test_a_group_survives_a_restart(make_broker: MakeBroker, codec: str) -> None:
    broker = await make_broker(offsets_topic_compression_codec=codec)
    async with connect(broker) as client:
        await client.refresh(["t"], create=True)
        await find(client)
        member = Member(client)
        assert (await member.join()).error_code is ErrorCode.none
        assert (await member.sync()).assignment == b"mine"
        for offset in range(100):
            assert await member.commit(offset) is ErrorCode.none
        assert await member.committed() == 99
        known = (member.member_id, member.generation)
    await broker.stop()
    again = await make_broker(offsets_topic_compression_codec=codec)
    async with connect(again) as client:
        await client.refresh(["t"])
        await find(client)
        member = Member(client)
        member.member_id, member.generation = known
        assert await member.beat() is ErrorCode.none
        assert await member.committed() == 99
        assert (await member.sync()).assignment == b"mine"
        assert await member.commit(100) is ErrorCode.none


async def test_the_offsets_topic_is_kafka_s(broker: Broker) -> None:
    async with connect(broker) as client:
        await find(client)
        reply = await client.refresh([OFFSETS_TOPIC])
        (topic,) = reply.topics
        assert topic.is_internal
        assert len(topic.partitions) == 50


async def test_a_deleted_topic_s_offsets_are_gone(broker: Broker) -> None:
    async with connect(broker) as client:
        await client.refresh(["t"], create=True)
        await find(client)
        member = Member(client)
        assert await member.commit(7) is ErrorCode.none
        fields = {"topics": [{"name": "t", "topic_id": None}], "timeout": 5_000}
        await client.request_controller(Api.DELETE_TOPICS, fields)
        await client.refresh(["t"], create=True)
        assert await member.committed() is None


async def test_a_smaller_batch_bound_reaches_the_coordinator(broker: Broker) -> None:
    """max.message.bytes may change while offsets are committed; a commit is then several batches."""
    async with connect(broker) as client:
        await create_topic(broker, "many", partitions=100)
        await client.refresh(["many"])
        await find(client)
        change = [{"name": "max.message.bytes", "config_operation": 0, "value": "4000"}]
        resource = {"resource_type": 2, "resource_name": OFFSETS_TOPIC, "configs": change}
        fields = {"resources": [resource], "validate_only": False}
        reply = await client.request_controller(Api.INCREMENTAL_ALTER_CONFIGS, fields)
        assert reply.responses[0].error_code is ErrorCode.none
        rows = [
            {"partition_index": at, "committed_offset": at, "committed_metadata": "x" * 100}
            for at in range(100)
        ]
        topic = {"name": "many", "topic_id": client.known.topic_ids["many"], "partitions": rows}
        answer = await client.request(
            Api.OFFSET_COMMIT,
            {
                "group_id": GROUP,
                "member_id": "",
                "generation_id_or_member_epoch": -1,
                "group_instance_id": None,
                "topics": [topic],
            },
        )
        assert {row.error_code for row in answer.topics[0].partitions} == {ErrorCode.none}
        large = [{"name": "range", "metadata": subscription("t" * 200) + bytes(5_000)}]
        member = Member(client)
        assert (await member.join(protocols=large)).error_code is ErrorCode.none
        assert (await member.sync()).error_code is ErrorCode.unknown_server_error
        machine = broker.components.groups.machine(GROUP)
        assert machine.groups[GROUP].members, "nobody lost the group, which is its members' own trouble"
