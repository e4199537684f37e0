"""ListPartitionReassignments requests, version 0.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class ListPartitionReassignmentsTopics(RequestStruct):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str,
        partition_indexes: tuple[int, ...] = (),
    ) -> None:
        self.name: Final = name
        self.partition_indexes: Final = partition_indexes


class ListPartitionReassignmentsRequest(RequestStruct):
    __slots__ = ("timeout", "topics")

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(milliseconds=60000),
        topics: tuple[ListPartitionReassignmentsTopics, ...] | None,
    ) -> None:
        self.timeout: Final = timeout
        self.topics: Final = topics
