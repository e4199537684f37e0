"""DescribeLogDirs requests, versions 1 to 5.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from typing import Final

from protocol.requests import RequestStruct


class DescribableLogDirTopic(RequestStruct):
    __slots__ = ("partitions", "topic")

    def __init__(
        self,
        *,
        topic: str,
        partitions: tuple[int, ...] = (),
    ) -> None:
        self.topic: Final = topic
        self.partitions: Final = partitions


class DescribeLogDirsRequest(RequestStruct):
    __slots__ = ("topics",)

    def __init__(
        self,
        *,
        topics: tuple[DescribableLogDirTopic, ...] | None,
    ) -> None:
        self.topics: Final = topics
