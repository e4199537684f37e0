"""DescribeProducers requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class TopicRequest(RequestStruct):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str,
        partition_indexes: tuple[int, ...] = (),
    ) -> None:
        self.name: Final = name
        self.partition_indexes: Final = partition_indexes


class DescribeProducersRequest(RequestStruct):
    __slots__ = ("topics",)

    def __init__(
        self,
        *,
        topics: tuple[TopicRequest, ...],
    ) -> None:
        self.topics: Final = topics
