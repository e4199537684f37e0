"""AlterPartitionReassignments requests, versions 0 to 1.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class ReassignablePartition(RequestStruct):
    __slots__ = ("partition_index", "replicas")

    def __init__(
        self,
        *,
        partition_index: int,
        replicas: tuple[int, ...] | None = None,
    ) -> None:
        self.partition_index: Final = partition_index
        self.replicas: Final = replicas


class ReassignableTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[ReassignablePartition, ...],
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class AlterPartitionReassignmentsRequest(RequestStruct):
    __slots__ = ("allow_replication_factor_change", "timeout", "topics")

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(milliseconds=60000),
        topics: tuple[ReassignableTopic, ...],
        allow_replication_factor_change: bool = True,  # version 1
    ) -> None:
        self.timeout: Final = timeout
        self.topics: Final = topics
        self.allow_replication_factor_change: Final = allow_replication_factor_change
