"""OffsetDelete requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class OffsetDeleteRequestPartition(RequestStruct):
    __slots__ = ("partition_index",)

    def __init__(
        self,
        *,
        partition_index: int,
    ) -> None:
        self.partition_index: Final = partition_index


class OffsetDeleteRequestTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[OffsetDeleteRequestPartition, ...],
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class OffsetDeleteRequest(RequestStruct):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str,
        topics: tuple[OffsetDeleteRequestTopic, ...],
    ) -> None:
        self.group_id: Final = group_id
        self.topics: Final = topics
