"""What the feature of groups that the broker assigns does to them, as a member sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.control.feature_levels import GROUP_VERSION
from protocol.apis import Api
from protocol.errors import ErrorCode
from tests.broker.raw_client import RawClient, create_topic

if TYPE_CHECKING:
    from broker.server import Broker

DEADLINE_S = 10.0
PAUSE_S = 0.02
LOADING = (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)


async def until(ask: Callable[[], Awaitable[Any]], is_it: Callable[[Any], bool]) -> Any:
    """Ask until the answer is it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await ask()
            if is_it(answer):
                return answer
            await asyncio.sleep(PAUSE_S)


class Member:
    """One member of the group `g`, on a connection of its own."""

    def __init__(self, client: RawClient, member_id: str, group_id: str = "g") -> None:
        self.client = client
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}

    async def beat(self, **fields: Any) -> Any:
        """Heartbeat as a client would, and take over what is assigned."""
        rows = [{"topic_id": topic, "partitions": held} for topic, held in self.owned.items()]
        answer = await self.client.call(
            Api.CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topic_partitions=[] if self.epoch == 0 else rows,
            **fields,
        )
        if answer.error_code is ErrorCode.none:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = {
                    each.topic_id: [*each.partitions] for each in answer.assignment.topic_partitions
                }
        return answer

    async def join(self, **fields: Any) -> Any:
        await self.client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group_id])
        wanted = {
            "rebalance_timeout": timedelta(seconds=30),
            "subscribed_topic_names": ["t"],
            "server_assignor": None,
            **fields,
        }
        return await until(partial(self.beat, **wanted), lambda answer: answer.error_code not in LOADING)

    async def described(self) -> Any:
        answer = await self.client.call(
            Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[self.group_id], include_authorized_operations=False
        )
        return answer.groups[0]


@asynccontextmanager
async def members_of(broker: Broker, *member_ids: str) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await RawClient.open(broker)) for _ in member_ids]
        yield [Member(client, member_id) for client, member_id in zip(clients, member_ids, strict=True)]


async def test_without_the_feature_heartbeats_are_refused_and_come_back_with_it(broker: Broker) -> None:
    await create_topic(broker, "t")
    async with members_of(broker, "first") as (member,):
        await member.join()
        for level, code in ((0, ErrorCode.unsupported_version), (1, ErrorCode.none)):
            update = {"feature": GROUP_VERSION, "max_version_level": level, "upgrade_type": 1 if level else 2}
            changed = await member.client.call(
                Api.UPDATE_FEATURES, 2, feature_updates=[update], timeout=10_000
            )
            assert changed.error_code is ErrorCode.none
            assert (await member.beat()).error_code is code
            assert (await member.described()).error_code is code
