"""ListOffsets requests, versions 1 to 11.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class ListOffsetsPartition(RequestStruct):
    __slots__ = ("current_leader_epoch", "partition_index", "timestamp")

    def __init__(
        self,
        *,
        partition_index: int,
        timestamp: int,
        current_leader_epoch: int = -1,  # from version 4
    ) -> None:
        self.partition_index: Final = partition_index
        self.timestamp: Final = timestamp
        self.current_leader_epoch: Final = current_leader_epoch


class ListOffsetsTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[ListOffsetsPartition, ...],
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class ListOffsetsRequest(RequestStruct):
    __slots__ = ("isolation_level", "replica_id", "timeout", "topics")

    def __init__(
        self,
        *,
        replica_id: int,
        topics: tuple[ListOffsetsTopic, ...],
        isolation_level: int = 0,  # from version 2
        timeout: timedelta = timedelta(0),  # from version 10
    ) -> None:
        self.replica_id: Final = replica_id
        self.topics: Final = topics
        self.isolation_level: Final = isolation_level
        self.timeout: Final = timeout
