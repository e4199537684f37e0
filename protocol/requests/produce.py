"""Produce requests, versions 3 to 13.

Generated from the message schema by tools/generate_requests.py; `make requests` writes it anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from protocol.requests import RequestStruct


class PartitionProduceData(RequestStruct):
    __slots__ = ("index", "records")

    def __init__(
        self,
        *,
        index: int,
        records: memoryview | None,
    ) -> None:
        self.index: Final = index
        self.records: Final = records


class TopicProduceData(RequestStruct):
    __slots__ = ("name", "partition_data", "topic_id")

    def __init__(
        self,
        *,
        name: str = "",  # up to version 12
        partition_data: tuple[PartitionProduceData, ...],
        topic_id: UUID | None = None,  # version 13
    ) -> None:
        self.name: Final = name
        self.partition_data: Final = partition_data
        self.topic_id: Final = topic_id


class ProduceRequest(RequestStruct):
    __slots__ = ("acks", "timeout", "topic_data", "transactional_id")

    def __init__(
        self,
        *,
        transactional_id: str | None = None,
        acks: int,
        timeout: timedelta,
        topic_data: tuple[TopicProduceData, ...],
    ) -> None:
        self.transactional_id: Final = transactional_id
        self.acks: Final = acks
        self.timeout: Final = timeout
        self.topic_data: Final = topic_data
