"""DeleteRecords requests, versions 0 to 2.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from protocol.requests import RequestStruct


class DeleteRecordsPartition(RequestStruct):
    __slots__ = ("offset", "partition_index")

    def __init__(
        self,
        *,
        partition_index: int,
        offset: int,
    ) -> None:
        self.partition_index: Final = partition_index
        self.offset: Final = offset


class DeleteRecordsTopic(RequestStruct):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str,
        partitions: tuple[DeleteRecordsPartition, ...],
    ) -> None:
        self.name: Final = name
        self.partitions: Final = partitions


class DeleteRecordsRequest(RequestStruct):
    __slots__ = ("timeout", "topics")

    def __init__(
        self,
        *,
        topics: tuple[DeleteRecordsTopic, ...],
        timeout: timedelta,
    ) -> None:
        self.topics: Final = topics
        self.timeout: Final = timeout
