"""ConsumerGroupHeartbeat requests, versions 0 to 1.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class TopicPartitions(RequestStruct):
    __slots__ = ("partitions", "topic_id")

    def __init__(
        self,
        *,
        topic_id: UUID | None,
        partitions: tuple[int, ...] = (),
    ) -> None:
        self.topic_id: Final = topic_id
        self.partitions: Final = partitions


class ConsumerGroupHeartbeatRequest(RequestStruct):
    __slots__ = (
        "group_id",
        "instance_id",
        "member_epoch",
        "member_id",
        "rack_id",
        "rebalance_timeout",
        "server_assignor",
        "subscribed_topic_names",
        "subscribed_topic_regex",
        "topic_partitions",
    )

    def __init__(
        self,
        *,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout: timedelta = timedelta(milliseconds=-1),
        subscribed_topic_names: tuple[str, ...] | None = None,
        server_assignor: str | None = None,
        topic_partitions: tuple[TopicPartitions, ...] | None,
        subscribed_topic_regex: str | None = None,  # version 1
    ) -> None:
        self.group_id: Final = group_id
        self.member_id: Final = member_id
        self.member_epoch: Final = member_epoch
        self.instance_id: Final = instance_id
        self.rack_id: Final = rack_id
        self.rebalance_timeout: Final = rebalance_timeout
        self.subscribed_topic_names: Final = subscribed_topic_names
        self.server_assignor: Final = server_assignor
        self.topic_partitions: Final = topic_partitions
        self.subscribed_topic_regex: Final = subscribed_topic_regex
