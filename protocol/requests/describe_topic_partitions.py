"""DescribeTopicPartitions requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class Cursor(RequestStruct):
    __slots__ = ("partition_index", "topic_name")

    def __init__(
        self,
        *,
        topic_name: str,
        partition_index: int,
    ) -> None:
        self.topic_name: Final = topic_name
        self.partition_index: Final = partition_index


class TopicRequest(RequestStruct):
    __slots__ = ("name",)

    def __init__(
        self,
        *,
        name: str,
    ) -> None:
        self.name: Final = name


class DescribeTopicPartitionsRequest(RequestStruct):
    __slots__ = ("cursor", "response_partition_limit", "topics")

    def __init__(
        self,
        *,
        topics: tuple[TopicRequest, ...],
        response_partition_limit: int = 2000,
        cursor: Cursor | None = None,
    ) -> None:
        self.topics: Final = topics
        self.response_partition_limit: Final = response_partition_limit
        self.cursor: Final = cursor
