"""DescribeQuorum requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class PartitionData(RequestStruct):
    __slots__ = ("partition_index",)

    def __init__(
        self,
        *,
        partition_index: int,
    ) -> None:
        self.partition_index: Final = partition_index


class TopicData(RequestStruct):
    __slots__ = ("partitions", "topic_name")

    def __init__(
        self,
        *,
        topic_name: str,
        partitions: tuple[PartitionData, ...],
    ) -> None:
        self.topic_name: Final = topic_name
        self.partitions: Final = partitions


class DescribeQuorumRequest(RequestStruct):
    __slots__ = ("topics",)

    def __init__(
        self,
        *,
        topics: tuple[TopicData, ...],
    ) -> None:
        self.topics: Final = topics
