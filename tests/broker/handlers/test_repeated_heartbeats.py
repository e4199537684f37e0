"""ConsumerGroupHeartbeats like the one before: answered as if they had been read."""

from __future__ import annotations

from typing import Any

import pytest

from broker.handlers import consumer_groups
from broker.server import Broker
from protocol.apis import Api
from protocol.errors import ErrorCode, KafkaError
from tests.broker.raw_client import RawClient, create_topic
from tests.clients.group_requests import JOIN, coordinator_is_there, heartbeat_fields

PADDING = b"\0"
"""What follows a request is ignored, and makes it unlike the one before."""


def heartbeat(epoch: int, **changes: Any) -> dict[str, Any]:
    return heartbeat_fields("g", "member", epoch, **changes)


async def ready(client: RawClient, broker: Broker) -> None:
    await create_topic(broker, "t", 2)
    await coordinator_is_there(client, "g")


async def beat(client: RawClient, fields: dict[str, Any], padding: bytes = b"") -> tuple[Any, ...]:
    frame = client.encode(Api.CONSUMER_GROUP_HEARTBEAT, 1, fields)[4:]
    await client.send_frame(frame + padding)
    answer = await client.receive_as(Api.CONSUMER_GROUP_HEARTBEAT, 1)
    assert client.answered == client.correlation_id
    return answer.error_code, answer.error_message, answer.member_epoch, answer.assignment


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs of heartbeats that were not read."""
    found: list[int] = []
    usual = consumer_groups.ConsumerGroupHandlers._heartbeat_again

    def noting(self: Any, command: Any, said: tuple[int, ...]) -> Any:
        found.extend(said)
        return usual(self, command, said)

    monkeypatch.setattr(consumer_groups.ConsumerGroupHandlers, "_heartbeat_again", noting)
    return found


async def test_one_like_the_last_is_answered_as_if_it_were_read(broker: Broker, repeated: list[int]) -> None:
    async with await RawClient.open(broker) as client:
        await ready(client, broker)
        code, _, epoch, assignment = await beat(client, heartbeat(0, **JOIN))
        assert (code, len(assignment.topic_partitions[0].partitions)) == (ErrorCode.none, 2)
        first = await beat(client, heartbeat(epoch))
        assert first == (ErrorCode.none, None, epoch, None)
        assert repeated == []
        assert await beat(client, heartbeat(epoch)) == first
        assert repeated == [epoch]
        for said in (epoch + 5, epoch, 1, -3, epoch):
            short = await beat(client, heartbeat(said))
            assert await beat(client, heartbeat(said), PADDING) == short
        # a padded one is read, and is what the next is compared with
        assert await beat(client, heartbeat(epoch)) == first
        other = heartbeat(epoch, member_id="nobody")
        assert (await beat(client, other))[0] is ErrorCode.unknown_member_id
        assert (await beat(client, heartbeat(epoch)))[0] is ErrorCode.none


async def test_one_that_leaves_or_joins_is_read(broker: Broker, repeated: list[int]) -> None:
    async with await RawClient.open(broker) as client:
        await ready(client, broker)
        _, _, epoch, _ = await beat(client, heartbeat(0, **JOIN))
        for _ in range(2):
            assert (await beat(client, heartbeat(epoch)))[0] is ErrorCode.none
        assert (await beat(client, heartbeat(0)))[0] is ErrorCode.invalid_request
        assert (await beat(client, heartbeat(epoch)))[0] is ErrorCode.none
        assert (await beat(client, heartbeat(-1)))[::2] == (ErrorCode.none, -1)
        assert (await beat(client, heartbeat(epoch)))[0] is ErrorCode.unknown_member_id
        assert (await beat(client, heartbeat(epoch)))[0] is ErrorCode.unknown_member_id


async def test_one_that_is_refused_is_counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was read, also where the protocol was turned off meanwhile."""

    def refuse(self: object) -> None:
        raise KafkaError(ErrorCode.unsupported_version)

    counts = broker.components.counters.requests
    async with await RawClient.open(broker) as client:
        await ready(client, broker)
        _, _, epoch, _ = await beat(client, heartbeat(0, **JOIN))
        await beat(client, heartbeat(epoch))
        monkeypatch.setattr(consumer_groups.ConsumerGroupHandlers, "_check_on", refuse)
        before = counts[Api.CONSUMER_GROUP_HEARTBEAT]
        assert (await beat(client, heartbeat(epoch)))[0] is ErrorCode.unsupported_version
        assert counts[Api.CONSUMER_GROUP_HEARTBEAT] == before + 1
