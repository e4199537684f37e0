"""What raw clients say to a coordinator of groups: the fields of their requests.

Owns a ConsumerGroupHeartbeat and an OffsetCommit with nothing special about them, for every version: fields
that a version lacks are left out where the request is encoded. Does not own how a request is sent, nor what
is expected of the answer.
Invariant: what a test is about, it says itself, as changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from protocol.apis import Api
from tests.broker.raw_client import DEADLINE_S, RawClient

JOIN: Final[dict[str, Any]] = {
    "rebalance_timeout": 300_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
"""What the first heartbeat of a member says besides."""


def heartbeat_fields(group_id: str, member_id: str, epoch: int, /, **changes: Any) -> dict[str, Any]:
    """Return a heartbeat which says that nothing has changed."""
    fields: dict[str, Any] = {
        "group_id": group_id,
        "member_id": member_id,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    return fields | changes


def join_group_fields(group_id: str, member_id: str, /, **changes: Any) -> dict[str, Any]:
    """Return the first heartbeat of a member, which is subscribed to `t`."""
    return heartbeat_fields(group_id, member_id, 0, **(JOIN | changes))


def offset_row(partition: int, offset: int, metadata: str = "", leader_epoch: int = -1) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "committed_metadata": metadata,
    }


def topic_row(name: str, topic_id: Any, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "partitions": list(rows)}


def commit_fields(group_id: str, topics: Sequence[dict[str, Any]], /, **changes: Any) -> dict[str, Any]:
    """Return a commit of one that is no member."""
    fields: dict[str, Any] = {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": list(topics),
    }
    return fields | changes


async def coordinator_is_there(client: RawClient, group_id: str) -> None:
    """Return once the group has a coordinator."""
    async with asyncio.timeout(DEADLINE_S):
        while (
            (await client.call(Api.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group_id]))
            .coordinators[0]
            .error_code
        ):
            pass
